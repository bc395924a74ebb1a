//! The least delay seen lately, between two clocks that drift against each other.
//!
//! 1. The least delay of each epoch of five seconds is kept, with its time; three epochs are remembered, so that
//!    a path that became longer is believed after ten to fifteen seconds.
//! 2. Where the least delays of the epochs move steadily, the clocks drift: the base is moved along. At most
//!    [`DRIFT_MAX`] is taken for drift; the rest is the path.
//!
//! The sender's rate control must let the queue run empty within each epoch, else the queue itself becomes
//! the base.

use crate::time::{Duration, Timestamp};

const EPOCH: Duration = Duration::from_secs(5);
const EPOCHS: usize = 3;

/// What is from before a break is not the base after it: the drift is not known so well.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(20);
const _: () = assert!(FORGOTTEN_AFTER.as_secs() > EPOCH.as_secs() * EPOCHS as u64);

/// Faster drift is not a clock's.
const DRIFT_MAX: f64 = 150e-6;

/// Weight of the newest measurement of the drift.
const DRIFT_GAIN: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
struct Least {
    at: Timestamp,
    delay_ns: i64,
}

/// Tracks the least delay.
#[derive(Clone, Copy, Debug, Default)]
pub struct BaseDelay {
    /// The newest first.
    epochs: [Option<Least>; EPOCHS],
    began: Timestamp,
    drift: f64,
    is_drift_known: bool,
}

impl BaseDelay {
    /// Nothing seen yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { epochs: [None; EPOCHS], began: Timestamp::ZERO, drift: 0.0, is_drift_known: false }
    }

    /// Takes a delay in nanoseconds, measured at `now`, and returns by how much it exceeds the least one. Only
    /// differences of delays count: the clocks' offset may be anything.
    pub fn excess(&mut self, now: Timestamp, delay_ns: i64) -> Duration {
        self.epochs = self.epochs.map(|least| least.filter(|l| now.since(l.at) < FORGOTTEN_AFTER));
        if self.epochs[0].is_none() {
            self.began = now;
        }
        if now.since(self.began) >= EPOCH {
            self.turn(now);
        }
        let newest = Least { at: now, delay_ns };
        let is_less = |least: &Least| delay_ns < self.moved(*least, now);
        if self.epochs[0].as_ref().is_none_or(is_less) {
            self.epochs[0] = Some(newest);
        }
        let known = self.epochs.iter().flatten();
        let base = known.map(|least| self.moved(*least, now)).min();
        Duration::from_nanos(delay_ns.saturating_sub(base.unwrap_or(delay_ns)).max(0) as u64)
    }

    /// What the drift has made of a delay since it was measured. The sender may say any time.
    fn moved(&self, least: Least, now: Timestamp) -> i64 {
        let drift = now.since(least.at).as_nanos() as f64 * self.drift;
        least.delay_ns.saturating_add(drift as i64)
    }

    fn turn(&mut self, now: Timestamp) {
        let oldest = self.epochs.iter().flatten().next_back().copied();
        if let (Some(newest), Some(oldest)) = (self.epochs[0], oldest)
            && newest.at.since(oldest.at) >= EPOCH / 2
        {
            let moved = newest.delay_ns.saturating_sub(oldest.delay_ns) as f64;
            let drift = moved / newest.at.since(oldest.at).as_nanos() as f64;
            let miss = drift.clamp(-DRIFT_MAX, DRIFT_MAX) - self.drift;
            self.drift += if self.is_drift_known { DRIFT_GAIN } else { 1.0 } * miss;
            self.is_drift_known = true;
        }
        self.began = now;
        self.epochs = [None, self.epochs[0], self.epochs[1]];
    }
}

#[cfg(test)]
mod tests {
    use super::BaseDelay;
    use crate::time::{Duration, Timestamp};

    const fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_longer_path_is_believed_after_a_while_and_not_before() {
        let mut base = BaseDelay::new();
        for ms in (0..20_000).step_by(100) {
            assert_eq!(base.excess(at(ms), -5_000_000), Duration::ZERO);
        }
        for ms in (20_000..29_000).step_by(100) {
            assert!(base.excess(at(ms), 2_000_000) > Duration::from_millis(5), "at {ms}");
        }
        for ms in (29_000..45_000).step_by(100) {
            base.excess(at(ms), 2_000_000);
        }
        assert!(base.excess(at(45_000), 2_000_000) < Duration::from_millis(1));
    }

    /// That delays fell by 0.75 ms in ten seconds was taken for drift, and is 12 ms in the time without polls.
    #[test]
    fn what_is_from_before_a_break_makes_no_queue_after_it() {
        let mut base = BaseDelay::new();
        for ms in (0..15_000).step_by(100) {
            base.excess(at(ms), 5_000_000 - ms as i64 * 75);
        }
        for ms in (175_000..185_000).step_by(100) {
            let queue = base.excess(at(ms), 4_000_000);
            assert!(queue < Duration::from_millis(1), "{queue:?} at {ms}");
        }
    }

    /// Whatever a sender says of when its polls left: a minute later a queue is what it is.
    #[test]
    fn impossible_delays_do_no_harm() {
        let mut base = BaseDelay::new();
        let mut ms = 0;
        for delay_ns in [0, 1_000_000, i64::MAX, i64::MIN, i64::MAX - 1, -1, i64::MIN + 1] {
            for _ in 0..20 {
                ms += 1_000;
                base.excess(at(ms), delay_ns);
            }
        }
        for _ in 0..60 {
            ms += 1_000;
            base.excess(at(ms), 2_000_000);
        }
        let queue = base.excess(at(ms + 1_000), 7_000_000);
        assert!((4_900..5_100).contains(&queue.as_micros()), "{queue:?}");
    }

    #[test]
    fn drift_of_100_ppm_hides_no_queue_and_makes_none() {
        for ppm in [-100i64, 100] {
            let mut base = BaseDelay::new();
            for ms in 0..60_000u64 {
                // The queue is empty for 50 ms in every four seconds, else it holds 3 ms.
                let queue_ns: i64 = if ms % 4_000 < 50 { 0 } else { 3_000_000 };
                let q = base.excess(at(ms), 7_000_000 + ms as i64 * ppm + queue_ns);
                let miss = (q.as_nanos() as i64 - queue_ns).abs();
                let allowed = if ms < 10_100 { 1_000_000 } else { 300_000 };
                assert!(miss <= allowed, "{ppm} ppm: {q:?} at {ms} ms");
            }
        }
    }
}
