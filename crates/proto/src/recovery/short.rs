//! How many receivers are likely to be short of a block.
//!
//! A block of k source symbols and r repair symbols leaves a receiver short when it loses more than r of the
//! k + r. With independent loss p that is a binomial tail; the normal approximation with continuity
//! correction is within a symbol of it for the sizes here, and the steering in `parity` takes up what is left
//! (also that real loss comes in bursts).

use alloc::vec::Vec;

/// Receivers that are taken to lose independently, for whether anybody needs a symbol. Those of a large group share some
/// of their losses, and what one of a thousand lacks it may ask for.
const APART_MAX: f64 = 16.0;

/// Receivers of one loss share, and their chances to lose just j symbols before they have enough, and no more than j.
struct Tail {
    share: f64,
    receivers: f64,
    just: f64,
    fewer: f64,
}

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

    /// Repair of a block of `k` that is worth sending unasked, at most `max`: as long as the receivers that a symbol
    /// spares a wait of `round` symbols wait longer together than all do for a symbol that nobody needs.
    ///
    /// A receiver that loses j symbols before it has k is spared by the jth. The chance of just that is
    /// C(k + j − 1, j) pʲ (1 − p)ᵏ. The jth is in vain when no receiver loses as many; what is not in vain is sent in any
    /// case, now or when it is asked for. From one j to the next the first becomes less beside the second.
    pub fn repair_worth(&self, k: u16, round: f64, max: u16) -> u16 {
        let all = self.receivers();
        let apart = (APART_MAX / all.max(1.0)).min(1.0);
        let k = f64::from(k);
        let lossy = self.bins.iter().enumerate().skip(1).filter(|(_, receivers)| **receivers > 0.0);
        let mut tails: Vec<Tail> = lossy
            .map(|(bin, receivers)| {
                let share = bin as f64 * Self::BIN_WIDTH;
                let none = libm::pow(1.0 - share, k);
                Tail { share, receivers: *receivers, just: none, fewer: none }
            })
            .collect();
        if tails.is_empty() {
            return 0;
        }
        for j in 1..=max {
            let times = (k + f64::from(j) - 1.0) / f64::from(j);
            let (mut spared, mut vain) = (0.0, 1.0);
            for tail in &mut tails {
                vain *= libm::pow(tail.fewer, tail.receivers * apart);
                tail.just *= times * tail.share;
                tail.fewer = (tail.fewer + tail.just).min(1.0);
                spared += tail.receivers * tail.just;
            }
            if spared * round < all * vain {
                return j - 1;
            }
        }
        max
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
        table.add(0.3175, 1.0);
        let worth = |round| table.repair_worth(1, round, 100);
        // p = 0.3175, k = 1: of C(j, j) pʲ (1 − p) = 0.217, 0.069, 0.0218, 0.0069, … those that are more than
        // (1 − pʲ) / round, that is 0.68, 0.90, 0.97, 0.99, …
        assert_eq!([3.0, 5.0, 15.0, 50.0, 150.0].map(worth), [0, 1, 2, 3, 4]);
        assert_eq!(LossTable::default().repair_worth(27, 100.0, 100), 0, "nobody is there");
        let mut group = LossTable::default();
        group.add(0.0, 16.0);
        assert_eq!(group.repair_worth(27, 1e6, 100), 0, "nothing is lost");
    }

    fn worth(receivers: f64, k: u16) -> f64 {
        let mut group = LossTable::default();
        group.add(0.05, receivers);
        f64::from(group.repair_worth(k, 7.0, 1024))
    }

    #[test]
    fn what_somebody_will_need_in_any_case_is_worth_it_however_seldom_it_spares_a_round() {
        // No number of losses of a full block is so likely that a symbol would be worth the mean receiver's while.
        let expected = 1024.0 * 0.05 / 0.95;
        assert!((0.85..1.0).contains(&(worth(1.0, 1024) / expected)), "{}", worth(1.0, 1024));
        assert!((1.0..1.3).contains(&(worth(16.0, 1024) / expected)), "{}", worth(16.0, 1024));
    }

    #[test]
    fn more_is_worth_it_in_a_group_and_no_more_in_a_large_one() {
        for k in [1, 27, 400, 1024] {
            assert!(worth(1.0, k) <= worth(16.0, k));
            assert_eq!(worth(16.0, k), worth(1_000.0, k));
            assert!(worth(16.0, k) <= 2.0 * f64::from(k) * 0.05 / 0.95 + 3.0, "{k}");
        }
    }

    #[test]
    fn who_asks_for_a_symbol_in_a_group_gets_no_second_one_unless_a_round_is_long() {
        let spare = |receivers: f64, round| {
            let mut asker = LossTable::default();
            asker.add(0.05, 1.0);
            asker.add(0.0, receivers - 1.0);
            asker.repair_worth(1, round, 1024)
        };
        assert_eq!([7.0, 50.0, 1000.0].map(|round| spare(1.0, round)), [0, 1, 2]);
        assert_eq!([7.0, 50.0, 1000.0].map(|round| spare(16.0, round)), [0, 0, 1]);
    }
}
