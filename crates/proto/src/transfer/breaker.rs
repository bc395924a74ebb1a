//! A circuit breaker for one endpoint: while it fails, it is left alone but for one probe at a time.
//!
//! ```text
//! closed ──(failures in a row)──▶ open ──(its time is over)──▶ half-open: one probe
//!    ▲                              ▲                              │
//!    └───────────(success)──────────┼──────────────────────────────┤
//!                                   └──(failure: a longer time)────┘
//! ```
//!
//! Only failures of the endpoint or of the way to it are told; that one file fails says nothing about either.

use super::Backoff;
use crate::rng::Rng;
use crate::time::{Duration, Timestamp};

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerConfig {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open, by the number of times that it opened in a row.
    pub open: Backoff,
    /// A probe that says nothing for so long has failed.
    pub probe_time: Duration,
}

/// Whether the endpoint may be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// As much as is wanted.
    Yes,
    /// Once, to see whether it works again; the answer must be told.
    Probe,
    /// Not before this time.
    No(Timestamp),
}

/// A breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    rng: Rng,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { times: u32, until: Timestamp },
    HalfOpen { times: u32, until: Timestamp },
}

impl Breaker {
    /// Closed. `seed` decides its jitter.
    pub const fn new(config: BreakerConfig, seed: u64) -> Self {
        Self { config, rng: Rng::new(seed), state: State::Closed { failures: 0 } }
    }

    /// Asks before the endpoint is used. A probe is given once.
    pub fn permit(&mut self, now: Timestamp) -> Permit {
        match self.state {
            State::Closed { .. } => Permit::Yes,
            State::Open { until, .. } | State::HalfOpen { until, .. } if now < until => {
                Permit::No(until)
            }
            State::Open { times, .. } => {
                self.state = State::HalfOpen { times, until: now + self.config.probe_time };
                Permit::Probe
            }
            // The probe has not come back.
            State::HalfOpen { .. } => {
                self.fail(now);
                self.permit(now)
            }
        }
    }

    /// When it will be tried again; `None` while it is closed.
    pub const fn opens_until(&self) -> Option<Timestamp> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until, .. } | State::HalfOpen { until, .. } => Some(until),
        }
    }

    /// When the next probe is given, or the one that is under way was; `None` while it is closed.
    pub fn probe_at(&self) -> Option<Timestamp> {
        match self.state {
            State::HalfOpen { until, .. } => Some(until - self.config.probe_time),
            State::Open { .. } | State::Closed { .. } => self.opens_until(),
        }
    }

    /// The endpoint did what was asked.
    pub const fn succeed(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// The probe found nothing to ask the endpoint for, and is given back: the next is given at once.
    pub const fn unprobe(&mut self, now: Timestamp) {
        if let State::HalfOpen { times, .. } = self.state {
            self.state = State::Open { times, until: now };
        }
    }

    /// The endpoint, or the way to it, failed.
    pub fn fail(&mut self, now: Timestamp) {
        self.state = match self.state {
            State::Closed { failures } if failures + 1 < self.config.failures => {
                State::Closed { failures: failures + 1 }
            }
            State::Closed { .. } => self.opened(1, now),
            // What was under way when it opened.
            open @ State::Open { .. } => open,
            State::HalfOpen { times, .. } => self.opened(times.saturating_add(1), now),
        };
    }

    fn opened(&mut self, times: u32, now: Timestamp) -> State {
        State::Open { times, until: now + self.config.open.wait(times, &mut self.rng) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Breaker, BreakerConfig, Permit};
    use crate::time::{Duration, Timestamp};

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    fn breaker() -> Breaker {
        let open = Backoff { first: SECONDS(10), factor: 2.0, cap: SECONDS(40), jitter: 0.0 };
        Breaker::new(BreakerConfig { failures: 3, open, probe_time: SECONDS(5) }, 1)
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + SECONDS(seconds)
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = breaker();
        for _ in 0..2 {
            breaker.fail(at(0));
            breaker.fail(at(0));
            assert_eq!(breaker.permit(at(0)), Permit::Yes);
            breaker.succeed();
        }
        (0..3).for_each(|_| breaker.fail(at(1)));
        assert_eq!(breaker.permit(at(1)), Permit::No(at(11)));
        breaker.fail(at(2));
        assert_eq!(breaker.opens_until(), Some(at(11)), "what was under way prolongs nothing");
    }

    #[test]
    fn one_probe_decides_and_each_that_fails_makes_the_next_wait_longer() {
        let mut breaker = breaker();
        (0..3).for_each(|_| breaker.fail(at(0)));
        for (now, until) in [(10, 30), (30, 70), (70, 110), (110, 150)] {
            assert_eq!(breaker.permit(at(now)), Permit::Probe);
            assert_eq!(breaker.permit(at(now)), Permit::No(at(now + 5)), "one at a time");
            assert_eq!(breaker.probe_at(), Some(at(now)), "it is under way");
            breaker.fail(at(now));
            assert_eq!(breaker.permit(at(now)), Permit::No(at(until)));
            assert_eq!(breaker.probe_at(), Some(at(until)));
        }
        assert_eq!(breaker.permit(at(150)), Permit::Probe);
        breaker.succeed();
        assert_eq!((breaker.permit(at(150)), breaker.opens_until()), (Permit::Yes, None));
        (0..3).for_each(|_| breaker.fail(at(200)));
        assert_eq!(breaker.permit(at(200)), Permit::No(at(210)), "it begins anew");
    }

    #[test]
    fn a_probe_that_found_nothing_to_ask_is_given_back() {
        let mut breaker = breaker();
        breaker.unprobe(at(0));
        assert_eq!(breaker.permit(at(0)), Permit::Yes, "closed, there is none");
        (0..3).for_each(|_| breaker.fail(at(0)));
        breaker.unprobe(at(1));
        assert_eq!(breaker.permit(at(1)), Permit::No(at(10)), "open, neither");
        assert_eq!(breaker.permit(at(10)), Permit::Probe);
        breaker.unprobe(at(11));
        assert_eq!(breaker.permit(at(11)), Permit::Probe);
        breaker.fail(at(11));
        assert_eq!(breaker.permit(at(11)), Permit::No(at(31)), "that was one probe");
    }

    #[test]
    fn a_probe_that_never_comes_back_has_failed() {
        let mut breaker = breaker();
        (0..3).for_each(|_| breaker.fail(at(0)));
        assert_eq!(breaker.permit(at(10)), Permit::Probe);
        assert_eq!(breaker.permit(at(14)), Permit::No(at(15)));
        assert_eq!(breaker.permit(at(15)), Permit::No(at(35)));
    }
}
