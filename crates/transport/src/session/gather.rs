//! When a receiver lets messages gather.
//!
//! Being woken costs 7 to 40 µs each time, and looking for all that may have come as much again, which on the plain path is
//! most of the work. Where messages come fast and singly the driver sleeps for a time instead of waiting for the next. Where
//! several come at once, as behind a link that lets through whole bursts, the first one wakes it and the others are there.

use downpour_proto::{Duration, SymbolId, Timestamp};

/// Messages that come singly and faster than this are let gather.
const GATHER_BELOW: Duration = Duration::from_micros(200);

/// The same in an open session, where it is known how many are still to come of a block.
const GATHER_BELOW_OPEN: Duration = Duration::from_micros(500);

/// So many it lets gather, but for no longer than this. Answers to polls leave later by as much, and tell so.
const GATHER_MESSAGES: u32 = 16;
const GATHER_TIME_MAX: Duration = Duration::from_millis(1);

/// Messages no further apart than this come at once, up to [`GATHER_MESSAGES`].
const AT_ONCE: Duration = Duration::from_micros(10);

/// How densely messages have come lately; in an open session, datagrams.
pub(super) struct Arrivals {
    last: Timestamp,
    gap: Gap,
    /// When the first of those came that have come at once, and how many they are.
    began: Timestamp,
    together: u32,
    /// From the first of one such group to the first of the next.
    apart: Gap,
    /// In an open session: how many may still gather, because so many of the block's source come before its last one. That
    /// is waited for by who has a use for the block, and so are repair and the poll that asks for it.
    room: Option<u32>,
}

/// A mean gap, in nanoseconds, in which the newest counts 1/16.
struct Gap(u64);

impl Gap {
    const GAIN_SHIFT: u32 = 4;
    /// No gap counts for more: a stream that resumes after a pause is dense again soon.
    const MAX: Duration = Duration::from_millis(2);

    fn on_gap(&mut self, gap: Duration) {
        let gap = gap.min(Self::MAX).as_nanos() as u64;
        self.0 = self.0 - (self.0 >> Self::GAIN_SHIFT) + (gap >> Self::GAIN_SHIFT);
    }

    fn mean(&self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl Arrivals {
    /// A message of `count` has come.
    pub(super) fn on_message(&mut self, at: Timestamp, count: usize) {
        let gap = at.since(self.last);
        self.last = self.last.max(at);
        self.gap.on_gap(gap);
        for _ in 1..count {
            self.gap.on_gap(Duration::ZERO);
        }
        if gap > AT_ONCE || self.together == GATHER_MESSAGES {
            self.apart.on_gap(at.since(self.began));
            (self.began, self.together) = (at, 0);
        }
        self.together += 1;
    }

    /// A symbol of an open session has come.
    pub(super) fn on_symbol(&mut self, k: u16, symbol: SymbolId) {
        let is_source = symbol.repair_index().is_none();
        let before_last = if is_source { k.saturating_sub(symbol.raw() + 2) } else { 0 };
        self.room = Some(u32::from(before_last));
    }

    /// How long to let messages gather, if they come densely.
    pub(super) fn gather_time(&self, now: Timestamp) -> Option<Duration> {
        let below = self.room.map_or(GATHER_BELOW, |_| GATHER_BELOW_OPEN);
        let most = GATHER_MESSAGES.min(self.room.unwrap_or(GATHER_MESSAGES));
        let is_dense = self.apart.mean() < below && now.since(self.last) < Gap::MAX;
        (is_dense && most > 0).then(|| (self.gap.mean() * most).min(GATHER_TIME_MAX))
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        let longest = || Gap(Gap::MAX.as_nanos() as u64);
        let (last, began) = (Timestamp::ZERO, Timestamp::ZERO);
        Self { last, gap: longest(), began, together: 0, apart: longest(), room: None }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, GATHER_TIME_MAX};
    use downpour_proto::{Duration, SymbolId, Timestamp};

    #[test]
    fn only_what_comes_fast_and_singly_is_let_gather() {
        let mut arrivals = Arrivals::default();
        let mut now = Timestamp::ZERO;
        // So many at once, one microsecond apart, each `gap`.
        let mut pass = |arrivals: &mut Arrivals, gap: u64, messages: u64, times: u32| {
            for _ in 0..times {
                now = now + Duration::from_micros(gap);
                (0..messages).for_each(|n| arrivals.on_message(now + Duration::from_micros(n), 1));
            }
            now + Duration::from_micros(messages)
        };
        let none = None::<Duration>;
        assert_eq!(arrivals.gather_time(Timestamp::ZERO), none, "nothing has come yet");
        let end = pass(&mut arrivals, 260, 1, 100);
        assert_eq!(arrivals.gather_time(end), none, "segmented sends at 2 Gbit/s");
        let end = pass(&mut arrivals, 115, 1, 100);
        assert_eq!(arrivals.gather_time(end), Some(GATHER_TIME_MAX), "single ones at 100 Mbit/s");
        let end = pass(&mut arrivals, 30, 1, 100);
        let time = arrivals.gather_time(end).unwrap();
        assert!(time > Duration::from_micros(400) && time < GATHER_TIME_MAX, "{time:?}");
        let paused = end + Duration::from_millis(3);
        assert_eq!(arrivals.gather_time(paused), none, "the stream has paused");
        let end = pass(&mut arrivals, 1_380, 12, 100);
        assert_eq!(arrivals.gather_time(end), none, "twelve at once: the first one wakes");
        let end = pass(&mut arrivals, 140, 14, 100);
        assert!(arrivals.gather_time(end).is_some(), "as many, but more often");
        let end = pass(&mut arrivals, 1, 1, 1_000);
        assert!(arrivals.gather_time(end).is_some(), "no end of them");
        let end = pass(&mut arrivals, 20_000, 1, 100);
        assert_eq!(arrivals.gather_time(end), none);
    }

    #[test]
    fn in_an_open_session_nothing_gathers_beyond_a_block() {
        let mut arrivals = Arrivals::default();
        let mut now = Timestamp::ZERO;
        for _ in 0..100 {
            now = now + Duration::from_micros(242);
            arrivals.on_message(now, 1);
        }
        assert_eq!(arrivals.gather_time(now), None, "50 Mbit/s");
        let mut time = |symbol| {
            arrivals.on_symbol(100, symbol);
            arrivals.gather_time(now).map_or(0, |time| time.as_nanos() / 1_000)
        };
        assert_eq!(time(SymbolId::source(0)), 1_000);
        assert!((400..500).contains(&time(SymbolId::source(96))), "two before the last");
        assert_eq!(time(SymbolId::source(98)), 0, "the last comes next");
        assert_eq!(time(SymbolId::source(99)), 0, "it is whole, if nothing was lost");
        assert_eq!(time(SymbolId::repair(3)), 0);
    }
}
