//! How many receivers are likely to be short of a block.
//!
//! A block of k source symbols and r repair symbols leaves a receiver short when it loses more than r of the
//! k + r. With independent loss p that is a binomial tail; the normal approximation with continuity
//! correction is within a symbol of it for the sizes here, and the steering in `parity` takes up what is left
//! (also that real loss comes in bursts).

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
}
