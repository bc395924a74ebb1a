//! How long to wait before something that failed is tried again.
//!
//! The wait grows by a factor up to a cap, and is drawn evenly from the part of it that is jitter, so that a thousand files
//! that failed together do not come back together. There is no last try: when to give up is not decided by a count of
//! failures, but by what failed.

use crate::rng::Rng;
use crate::time::Duration;

/// Waits for one kind of failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Before the second try.
    pub first: Duration,
    /// Each further wait is so much longer; at least 1.
    pub factor: f64,
    /// No wait is longer.
    pub cap: Duration,
    /// Part of the wait that is random, 0 to 1: with 0.5 a wait of 10 s is 5 to 10 s.
    pub jitter: f64,
}

impl Backoff {
    /// The longest wait after `tries` tries that failed.
    pub fn longest(&self, tries: u32) -> Duration {
        let mut wait = self.first.min(self.cap);
        for _ in 1..tries {
            if wait >= self.cap {
                break;
            }
            // A product beyond all durations is beyond the cap.
            let seconds = wait.as_secs_f64() * self.factor.max(1.0);
            wait = Duration::try_from_secs_f64(seconds).unwrap_or(self.cap).min(self.cap);
            if self.factor <= 1.0 {
                break;
            }
        }
        wait
    }

    /// The wait after `tries` tries that failed.
    pub fn wait(&self, tries: u32, rng: &mut Rng) -> Duration {
        self.longest(tries).mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * rng.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use crate::rng::Rng;
    use crate::time::Duration;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    fn backoff() -> Backoff {
        Backoff { first: SECONDS(2), factor: 2.0, cap: SECONDS(60), jitter: 0.5 }
    }

    #[test]
    fn it_grows_up_to_its_cap_whatever_the_number_of_tries() {
        let longest: [_; 7] = core::array::from_fn(|tries| backoff().longest(tries as u32 + 1));
        assert_eq!(longest, [2, 4, 8, 16, 32, 60, 60].map(SECONDS));
        assert_eq!(backoff().longest(0), SECONDS(2));
        assert_eq!(backoff().longest(u32::MAX), SECONDS(60));
        let steady = Backoff { factor: 1.0, ..backoff() };
        assert_eq!(steady.longest(u32::MAX), SECONDS(2));
        let wild = Backoff { factor: f64::MAX, ..backoff() };
        assert_eq!(wild.longest(3), SECONDS(60));
    }

    #[test]
    fn what_failed_together_comes_back_spread_and_by_its_seed() {
        let (mut a, mut b) = (Rng::new(3), Rng::new(3));
        let waits: [_; 1000] = core::array::from_fn(|_| backoff().wait(3, &mut a));
        assert!(waits.iter().all(|wait| (SECONDS(4)..=SECONDS(8)).contains(wait)));
        let early = waits.iter().filter(|wait| **wait < SECONDS(6)).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the earlier half");
        assert!(waits.iter().all(|wait| *wait == backoff().wait(3, &mut b)));
        let exact = Backoff { jitter: 0.0, ..backoff() };
        assert_eq!(exact.wait(2, &mut a), SECONDS(4));
    }
}
