//! How many receivers are likely to be short of a block.
//!
//! A block of k source symbols and r repair symbols leaves a receiver short when it loses more than r of the
//! k + r. With independent loss p that is a binomial tail; the normal approximation with continuity
//! correction is within a symbol of it for the sizes here, and the steering in `parity` takes up what is left
//! (also that real loss comes in bursts).

use alloc::vec::Vec;

/// Loss shares of a group, as a histogram: the cost does not grow with the group.
#[derive(Clone, Debug)]
pub struct LossTable {
    /// Receivers whose loss is about `bin · BIN_WIDTH`, by bin.
    bins: [f64; Self::BINS],
}

impl Default for LossTable {
    fn default() -> Self {
        Self { bins: [0.0; Self::BINS] }
    }
}

impl LossTable {
    const BINS: usize = 128;
    const BIN_WIDTH: f64 = 0.0025;

    /// Adds `receivers` with loss `share`.
    pub fn add(&mut self, share: f64, receivers: f64) {
        // A share between two bins counts partly for each, so that the estimate moves smoothly.
        let at = (share / Self::BIN_WIDTH).clamp(0.0, (Self::BINS - 1) as f64);
        let low = at as usize;
        let part = at - low as f64;
        self.bins[low] += receivers * (1.0 - part);
        if part > 0.0 {
            self.bins[low + 1] += receivers * part;
        }
    }

    /// Receivers in the table.
    pub fn receivers(&self) -> f64 {
        self.bins.iter().sum()
    }

    /// Receivers that are likely to be short of a block of `k` source and `r` repair symbols.
    pub fn short(&self, k: u16, r: u16) -> f64 {
        let n = f64::from(k) + f64::from(r);
        let limit = f64::from(r) + 0.5;
        let tail = |(bin, receivers): (usize, &f64)| {
            let p = bin as f64 * Self::BIN_WIDTH;
            if *receivers <= 0.0 || p <= 0.0 {
                return 0.0;
            }
            let deviation = libm::sqrt(n * p * (1.0 - p)).max(1e-9);
            receivers
                * 0.5
                * libm::erfc((limit - n * p) / deviation * core::f64::consts::FRAC_1_SQRT_2)
        };
        self.bins.iter().enumerate().map(tail).sum()
    }

    /// Repair of a block of `k` that is worth sending, at most `max`: the last symbol that spares the mean receiver a
    /// wait of `round` symbols more often than once in `round` times.
    ///
    /// A receiver that loses j symbols before it has k is spared by the jth. The chance of just that is
    /// C(k + j − 1, j) pʲ (1 − p)ᵏ, which rises to the expected loss and falls after it.
    pub fn repair_worth(&self, k: u16, round: f64, max: u16) -> u16 {
        let receivers = self.receivers();
        let k = f64::from(k);
        let mut chances: Vec<(f64, f64)> =
            self.bins.iter().enumerate().fold(Vec::new(), |mut chances, (bin, receivers)| {
                let p = bin as f64 * Self::BIN_WIDTH;
                if *receivers > 0.0 && p > 0.0 {
                    chances.push((p, receivers * libm::pow(1.0 - p, k)));
                }
                chances
            });
        if chances.is_empty() {
            return 0;
        }
        let (mut worth, mut complete) = (0, receivers - self.lossy());
        complete += chances.iter().map(|(_, chance)| chance).sum::<f64>();
        for j in 1..=max {
            let times = (k + f64::from(j) - 1.0) / f64::from(j);
            chances.iter_mut().for_each(|(p, chance)| *chance *= times * *p);
            let spared: f64 = chances.iter().map(|(_, chance)| chance).sum();
            if spared * round >= receivers {
                worth = j;
            }
            complete += spared;
            if (receivers - complete) * round < receivers {
                break; // All later ones together are not worth one.
            }
        }
        worth
    }

    /// Receivers that lose anything.
    fn lossy(&self) -> f64 {
        self.bins[1..].iter().sum()
    }

    /// Least repair with which at most `target` receivers are likely to be short; at most `max`.
    pub fn repair_for(&self, k: u16, target: f64, max: u16) -> u16 {
        let (mut low, mut high) = (0, max);
        while low < high {
            let mid = low + (high - low) / 2;
            if self.short(k, mid) <= target { high = mid } else { low = mid + 1 }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::LossTable;

    fn repair(receivers: f64) -> u16 {
        let mut table = LossTable::default();
        table.add(0.05, receivers);
        table.repair_for(1024, 1.0, 1024)
    }

    #[test]
    fn agrees_with_the_modelled_figures() {
        // DESIGN 3.1: at 5 % that is 63, 66, 79 symbols for 8, 16, 1000 receivers.
        assert!(repair(8.0).abs_diff(63) <= 1, "{}", repair(8.0));
        assert!(repair(16.0).abs_diff(66) <= 1, "{}", repair(16.0));
        assert!(repair(1000.0).abs_diff(79) <= 2, "{}", repair(1000.0));
    }

    #[test]
    fn no_loss_needs_no_repair_and_an_empty_group_none() {
        let mut table = LossTable::default();
        assert_eq!(table.repair_for(1024, 0.5, 1024), 0);
        table.add(0.0, 8.0);
        assert_eq!(table.repair_for(1024, 0.5, 1024), 0);
    }

    #[test]
    fn repair_is_worth_its_time_by_exact_chances() {
        let mut table = LossTable::default();
        table.add(0.3175, 4.0);
        let worth = |round| table.repair_worth(1, round, 100);
        // p = 0.3175, k = 1: C(j, j) pʲ (1 − p) = 0.217, 0.069, 0.0218, 0.0069, …
        assert_eq!([3.0, 5.0, 15.0, 50.0, 150.0].map(worth), [0, 1, 2, 3, 4]);
        assert_eq!(LossTable::default().repair_worth(27, 100.0, 100), 0, "nobody is there");
        let mut group = LossTable::default();
        group.add(0.0, 16.0);
        assert_eq!(group.repair_worth(27, 1e6, 100), 0, "nothing is lost");
    }

    #[test]
    fn what_is_worth_does_not_depend_on_how_many_there_are() {
        for k in [1, 27, 400, 1024] {
            let worth = |receivers: f64| {
                let mut group = LossTable::default();
                group.add(0.05, receivers);
                group.repair_worth(k, 20.0, 1024)
            };
            assert_eq!(worth(1.0), worth(1_000.0));
            // More than is expected to be lost, and not twice that.
            let expected = f64::from(k) * 0.05 / 0.95;
            assert!(f64::from(worth(1.0)) >= expected.floor(), "{k}: {}", worth(1.0));
            assert!(f64::from(worth(1.0)) <= 2.0 * expected + 3.0, "{k}: {}", worth(1.0));
        }
    }
}
