//! What the stream passes by while nobody follows it (`docs/protocol.md#STRAG-7`).
//!
//! All may lose it at once: the way to them was cut, their sender's machine stood still, or nothing long passes. They come
//! back when they hear it, and what was passed by meanwhile each of them has to pull. So for a while nothing is, and then
//! no more than those who pull ask for.

use crate::ids::{BlockId, BlockKind};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

/// For so long they are waited for, and what is open stays open.
const WAIT: Duration = Duration::from_secs(2);

/// Data blocks passed by beyond what was asked for: else whoever pulls would wait for a way and back each time.
const AHEAD: u32 = 8;

/// Where nobody asks for so long all who pull may hold what comes next: twice as many are passed by.
const UNASKED: Duration = Duration::from_secs(1);

/// While nobody follows the stream a probe comes so often, and takes so little of what the stream may send: who left because
/// only what is short came waits for something long.
const PROBE_EVERY: (Duration, u64) = (Duration::from_secs(1), 20);

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// When somebody was last known to follow the stream.
    followed_at: Timestamp,
    /// One past the last data block that somebody has, or has asked for; and when one was asked for last.
    wanted_end: u32,
    wanted_at: Timestamp,
    /// Blocks beyond [`AHEAD`], as nobody asks.
    unasked: u32,
    probed_at: Timestamp,
}

impl Passing {
    /// Somebody follows the stream, or did until now; data blocks below `end` have been opened.
    pub(super) fn followed(&mut self, now: Timestamp, end: u32) {
        self.followed_at = now;
        self.wanted(now, end);
    }

    /// Data blocks below `end` are asked for by pull, or need not be.
    pub(super) fn wanted(&mut self, now: Timestamp, end: u32) {
        self.wanted_at = now;
        if end > self.wanted_end {
            (self.wanted_end, self.unasked) = (end, 0);
        }
    }

    /// Nobody follows the stream at `now`.
    pub(super) fn review(&mut self, now: Timestamp) {
        if now.since(self.wanted_at) >= UNASKED && !self.is_waiting(now) {
            self.wanted_at = now;
            self.unasked = self.unasked.saturating_mul(2).saturating_add(AHEAD);
        }
    }

    /// Whether a probe is due, of this length, at this rate of the stream.
    pub(super) fn probes(&mut self, now: Timestamp, len: usize, rate: Rate) -> bool {
        let (least, share) = PROBE_EVERY;
        let is_due = now.since(self.probed_at) >= least.max(rate.time_for(len as u64 * share));
        if is_due {
            self.probed_at = now;
        }
        is_due
    }

    /// They may be back at once.
    pub(super) fn is_waiting(&self, now: Timestamp) -> bool {
        now.since(self.followed_at) <= WAIT
    }

    /// Whether the block is left to those who pull.
    pub(super) fn passes(&self, now: Timestamp, block: BlockId) -> bool {
        let end = self.wanted_end.saturating_add(AHEAD).saturating_add(self.unasked);
        !self.is_waiting(now) && (block.kind() == BlockKind::Manifest || block.number() < end)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD, PROBE_EVERY, Passing, UNASKED, WAIT};
    use crate::ids::BlockId;
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;

    const MS: Duration = Duration::from_millis(1);

    fn end(passing: &Passing, now: Timestamp) -> u32 {
        (0..).find(|number| !passing.passes(now, BlockId::data(*number).unwrap())).unwrap()
    }

    #[test]
    fn what_is_passed_by_goes_a_little_beyond_what_is_asked_for() {
        let (mut passing, mut now) = (Passing::default(), Timestamp::ZERO);
        passing.followed(now, 100);
        now = now + WAIT;
        passing.review(now);
        assert!(passing.is_waiting(now) && end(&passing, now) == 0);
        now = now + MS;
        assert_eq!(end(&passing, now), 100 + AHEAD);
        assert!(passing.passes(now, BlockId::manifest(500).unwrap()));
        passing.wanted(now, 104);
        assert_eq!(end(&passing, now), 104 + AHEAD);
        // While they pull what they missed nothing more is passed by.
        for _ in 0..10 {
            now = now + UNASKED - MS;
            passing.wanted(now, 40);
            passing.review(now);
            assert_eq!(end(&passing, now), 104 + AHEAD);
        }
    }

    #[test]
    fn where_nobody_asks_more_and_more_is_passed_by() {
        let (mut passing, mut now) = (Passing::default(), Timestamp::ZERO + WAIT + MS);
        for doubled in 1..5 {
            passing.review(now);
            assert_eq!(end(&passing, now), AHEAD << doubled);
            now = now + UNASKED;
        }
        passing.wanted(now, 11);
        assert_eq!(end(&passing, now), 11 + AHEAD);
    }

    #[test]
    fn probes_take_little_of_any_rate() {
        let (mut passing, (least, share)) = (Passing::default(), PROBE_EVERY);
        for (kbps, every) in [(100_000, least), (8, Duration::from_millis(1_500) * share as u32)] {
            let start = passing.probed_at;
            let mut probes =
                |after| passing.probes(start + after, 1_500, Rate::from_bps(kbps * 1_000));
            assert!(!probes(every - MS) && probes(every) && !probes(every + MS));
        }
    }
}
