//! The least delay seen lately: a minimum over a sliding window.
//!
//! The window is what makes clock drift harmless: 100 ppm over ten seconds is one millisecond, and a
//! path that became longer is believed after ten seconds. The controller must let the queue run empty
//! within each window, else the queue itself becomes the base.

use crate::time::{Duration, Timestamp};

/// How long a minimum is believed.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

const BUCKETS: usize = 10;

/// Minimum of the last ten seconds, in buckets of one second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    buckets: [i64; BUCKETS],
    newest: u64,
}

impl Base {
    pub(super) const fn new() -> Self {
        Self { buckets: [i64::MAX; BUCKETS], newest: 0 }
    }

    /// Takes a delay in nanoseconds and returns by how much it exceeds the least one.
    pub(super) fn excess(&mut self, now: Timestamp, delay_ns: i64) -> Duration {
        let bucket = now.as_nanos() / (WINDOW.as_nanos() as u64 / BUCKETS as u64);
        let stale = bucket.saturating_sub(self.newest).min(BUCKETS as u64);
        for age in 0..stale {
            self.buckets[((bucket - age) % BUCKETS as u64) as usize] = i64::MAX;
        }
        self.newest = self.newest.max(bucket);
        let slot = &mut self.buckets[(self.newest % BUCKETS as u64) as usize];
        *slot = (*slot).min(delay_ns);
        let least = self.buckets.iter().copied().min().unwrap_or(delay_ns);
        Duration::from_nanos(delay_ns.saturating_sub(least).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::Base;
    use crate::time::{Duration, Timestamp};

    #[test]
    fn the_base_is_forgotten_after_the_window_and_not_before() {
        let mut base = Base::new();
        let at = |ms: u64| Timestamp::from_nanos(ms * 1_000_000);
        assert_eq!(base.excess(at(0), -5_000_000), Duration::ZERO);
        for ms in (100..9_000).step_by(100) {
            assert_eq!(base.excess(at(ms), 2_000_000), Duration::from_millis(7));
        }
        assert_eq!(base.excess(at(11_000), 2_000_000), Duration::ZERO);
    }

    #[test]
    fn drift_of_100_ppm_adds_less_than_the_window_allows() {
        let mut base = Base::new();
        for ms in 0..60_000u64 {
            let delay = 1_000_000 + ms as i64 * 100;
            let q = base.excess(Timestamp::from_nanos(ms * 1_000_000), delay);
            assert!(q <= Duration::from_micros(1_001), "{q:?} at {ms}");
        }
    }
}
