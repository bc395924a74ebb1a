//! One sender budget for the stream and the pulls (`docs/protocol.md#PULL-4`).
//!
//! While the stream runs, all pulls together get a small share; when it has nothing left to send they get
//! all. Without this a straggler's pull at full speed costs the healthy 11 %, a late joiner's 47 %
//! (modelled at 100 Mbit/s).
//!
//! The rate controller's rate is the stream's alone: it judges a path by what it sent there. What pulls take beside
//! it looks to the controller as a link that is narrower by their share.

use crate::units::Rate;

/// Default share of all that is sent that pulls get while the stream runs.
pub const PULL_SHARE_DEFAULT: f64 = 0.02;

/// Largest share: a stream that gets nothing never ends.
const PULL_SHARE_MAX: f64 = 0.9;

/// Divides what the sender sends.
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

    /// What of `ceiling` is left for the stream.
    pub fn of_stream(&self, ceiling: Rate) -> Rate {
        Rate::from_bps(ceiling.bps() - ceiling.scale(self.pull_share).bps())
    }

    /// What pulls get beside a stream of this rate, within their share of `ceiling`.
    pub fn of_pulls(&self, stream: Rate, ceiling: Rate) -> Rate {
        let beside = stream.scale(self.pull_share / (1.0 - self.pull_share));
        beside.min(ceiling.scale(self.pull_share))
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, PULL_SHARE_DEFAULT};
    use crate::units::Rate;

    #[test]
    fn pulls_get_their_share_of_what_both_send() {
        for share in [0.0, PULL_SHARE_DEFAULT, 0.3, 0.6, 1.0] {
            let (budget, stream) = (Budget::new(share), Rate::from_mbps(100));
            let pulls = budget.of_pulls(stream, Rate::MAX);
            let of_both = pulls.bps() as f64 / (stream.bps() + pulls.bps()) as f64;
            assert!((of_both - share.min(0.9)).abs() < 1e-6, "{share}: {pulls}");
        }
    }

    #[test]
    fn both_together_keep_to_the_ceiling() {
        for share in [0.0, PULL_SHARE_DEFAULT, 0.3, 0.6, 1.0] {
            let (budget, ceiling) = (Budget::new(share), Rate::from_mbps(100));
            let stream = budget.of_stream(ceiling);
            let pulls = budget.of_pulls(stream, ceiling);
            assert!(stream.bps() + pulls.bps() <= ceiling.bps(), "{share}: {stream}, {pulls}");
            // Also before the stream is told that somebody pulls.
            assert_eq!(budget.of_pulls(ceiling, ceiling), ceiling.scale(share.min(0.9)));
        }
    }
}
