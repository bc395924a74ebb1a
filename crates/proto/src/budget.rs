//! One sender budget for the stream and the pulls (`docs/protocol.md#PULL-4`).
//!
//! While the stream runs, all pulls together get a small share; when it has nothing left to send they get
//! all. Without this a straggler's pull at full speed costs the healthy 11 %, a late joiner's 47 %
//! (modelled at 100 Mbit/s).

use crate::units::Rate;

/// Default share of the rate that pulls get while the stream runs.
pub const PULL_SHARE_DEFAULT: f64 = 0.02;

/// Largest share: a stream that gets nothing never ends.
const PULL_SHARE_MAX: f64 = 0.9;

/// Divides the sender's rate.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pull_share: f64,
}

/// What each side gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The stream's rate.
    pub stream: Rate,
    /// The rate of all pulls together.
    pub pulls: Rate,
}

impl Budget {
    /// A budget in which pulls get `pull_share` (0 to a tenth less than all) while the stream runs.
    pub const fn new(pull_share: f64) -> Self {
        Self { pull_share: pull_share.clamp(0.0, PULL_SHARE_MAX) }
    }

    /// Divides `total`.
    pub fn divide(&self, total: Rate, stream_busy: bool, pulling: bool) -> Shares {
        match (stream_busy, pulling) {
            (true, true) => {
                let pulls = total.scale(self.pull_share);
                Shares { stream: Rate::from_bps(total.bps() - pulls.bps()), pulls }
            }
            (true, false) => Shares { stream: total, pulls: total.scale(self.pull_share) },
            (false, _) => Shares { stream: total, pulls: total },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, PULL_SHARE_DEFAULT};
    use crate::units::Rate;

    #[test]
    fn pulls_get_little_beside_the_stream_and_all_after_it() {
        let (budget, total) = (Budget::new(PULL_SHARE_DEFAULT), Rate::from_mbps(100));
        let beside = budget.divide(total, true, true);
        assert_eq!(beside.pulls, Rate::from_mbps(2));
        assert_eq!(beside.stream.bps() + beside.pulls.bps(), total.bps());
        assert_eq!(budget.divide(total, true, false).stream, total);
        assert_eq!(budget.divide(total, false, true).pulls, total);
        assert_eq!(Budget::new(1.0).divide(total, true, true).stream, Rate::from_mbps(10));
    }
}
