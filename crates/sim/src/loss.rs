//! What an edge loses: nothing, each datagram independently, or bursts.
//!
//! Both models are drawn by runs: how many pass until the next one is lost is one draw, so that a
//! datagram that passes costs a decrement and no random number.

use crate::rng::Rng;

/// A loss model's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Loses nothing.
    None,
    /// Each datagram independently, with this probability.
    Random(f64),
    /// Gilbert–Elliott with a lossless good state and a bad state that loses all: `share` of all
    /// datagrams are lost, in bursts of mean length `burst` (at least 1).
    Burst {
        /// Long-run share lost.
        share: f64,
        /// Mean number of consecutive losses.
        burst: f64,
    },
}

impl Loss {
    /// Long-run share lost.
    pub const fn share(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Random(p) => p,
            Self::Burst { share, .. } => share,
        }
    }
}

/// A loss model at work on one edge.
#[derive(Clone, Debug)]
pub struct LossProcess {
    model: Loss,
    rng: Rng,
    /// Passes left before the next loss.
    pass: u64,
    /// Losses left in this burst.
    lose: u64,
}

impl LossProcess {
    /// A process of its own randomness, which starts at a random point of its cycle.
    pub fn new(model: Loss, rng: Rng) -> Self {
        let mut this = Self { model, rng, pass: 0, lose: 0 };
        this.next_run();
        this
    }

    /// Whether the next datagram is lost.
    #[inline]
    pub fn is_lost(&mut self) -> bool {
        if self.pass > 0 {
            self.pass -= 1;
            return false;
        }
        if self.lose == 0 {
            return false;
        }
        self.lose -= 1;
        if self.lose == 0 {
            self.next_run();
        }
        true
    }

    fn next_run(&mut self) {
        match self.model {
            Loss::None => (self.pass, self.lose) = (u64::MAX, 0),
            Loss::Random(p) => (self.pass, self.lose) = (self.rng.geometric(p), 1),
            Loss::Burst { share, burst } => {
                let burst = burst.max(1.0);
                let gap = burst * (1.0 - share) / share.max(1e-12);
                // A gap has at least one pass, a burst at least one loss.
                self.pass = 1 + self.rng.geometric((1.0 / gap).min(1.0));
                self.lose = 1 + self.rng.geometric(1.0 / burst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Loss, LossProcess};
    use crate::rng::Rng;

    fn share_and_burst(model: Loss) -> (f64, f64) {
        let mut process = LossProcess::new(model, Rng::new(3));
        let n = 1_000_000;
        let (mut lost, mut bursts, mut before) = (0u32, 0u32, false);
        for _ in 0..n {
            let now = process.is_lost();
            lost += u32::from(now);
            bursts += u32::from(now && !before);
            before = now;
        }
        (f64::from(lost) / f64::from(n), f64::from(lost) / f64::from(bursts.max(1)))
    }

    #[test]
    fn models_keep_their_share_and_burst_length() {
        assert_eq!(share_and_burst(Loss::None).0, 0.0);
        let (share, _) = share_and_burst(Loss::Random(0.05));
        assert!((share - 0.05).abs() < 0.002, "{share}");
        let (share, burst) = share_and_burst(Loss::Burst { share: 0.05, burst: 10.0 });
        assert!((share - 0.05).abs() < 0.003, "{share}");
        assert!((burst - 10.0).abs() < 0.5, "{burst}");
    }
}
