//! A busy host: its process stands still now and then, and then finds at once all that came meanwhile.
//!
//! Time is cut into turns of equal length; each turn has one hiccup of random place and length. When a moment
//! is noticed follows from the seed and the moment alone, so that it may be asked in any order.

use crate::rng::Rng;
use downpour_proto::{Duration, Timestamp};

/// How busy a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hiccups {
    /// There is one in each stretch of this length.
    pub every: Duration,
    /// Shortest.
    pub least: Duration,
    /// Longest; less than `every`.
    pub most: Duration,
}

impl Hiccups {
    /// A host that is never busy.
    pub const NONE: Self =
        Self { every: Duration::ZERO, least: Duration::ZERO, most: Duration::ZERO };

    /// From `least` to `most`, one in each stretch of `every`.
    pub const fn new(every: Duration, least: Duration, most: Duration) -> Self {
        Self { every, least, most }
    }
}

/// One host's hiccups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HiccupProcess {
    hiccups: Hiccups,
    seed: u64,
}

impl HiccupProcess {
    pub(crate) fn new(hiccups: Hiccups, rng: &mut Rng) -> Self {
        debug_assert!(hiccups.every.is_zero() || hiccups.most < hiccups.every);
        Self { hiccups, seed: rng.next_u64() }
    }

    /// When the process is awake to notice what happens at `at`.
    pub(crate) fn awake(&self, at: Timestamp) -> Timestamp {
        let every = self.hiccups.every.as_nanos() as u64;
        if every == 0 {
            return at;
        }
        let mut awake = at.as_nanos();
        // A hiccup may reach into the next turn's.
        let turn = awake / every;
        for turn in turn.saturating_sub(1)..=turn + 1 {
            let hiccup = self.of_turn(turn, every);
            if hiccup.contains(&awake) {
                awake = hiccup.end;
            }
        }
        Timestamp::from_nanos(awake)
    }

    fn of_turn(&self, turn: u64, every: u64) -> std::ops::Range<u64> {
        let mut rng = Rng::new(self.seed ^ turn);
        let (least, most) = (self.hiccups.least.as_nanos(), self.hiccups.most.as_nanos());
        let len = least as u64 + rng.below((most - least) as u64 + 1);
        let from = turn * every + rng.below(every);
        from..from + len
    }
}

#[cfg(test)]
mod tests {
    use super::{HiccupProcess, Hiccups};
    use crate::rng::Rng;
    use downpour_proto::{Duration, Timestamp};

    #[test]
    fn a_host_is_late_by_as_much_as_it_is_told() {
        let ms = Duration::from_millis;
        let host = HiccupProcess::new(Hiccups::new(ms(100), ms(5), ms(20)), &mut Rng::new(1));
        let (mut late, mut last) = (0, Timestamp::ZERO);
        for us in 0..10_000_000 {
            let at = Timestamp::from_nanos(us * 1_000);
            let awake = host.awake(at);
            assert!(awake >= at.max(last) && awake.since(at) <= ms(40), "{at:?}: {awake:?}");
            late += u64::from(awake > at);
            last = awake;
        }
        // 12.5 ms of 100, less what overlaps.
        assert!((1_150_000..1_300_000).contains(&late), "{late}");
    }
}
