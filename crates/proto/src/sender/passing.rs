//! What the stream passes by while nobody follows it (`docs/protocol.md#STRAG-7`).
//!
//! All may lose it at once: the way to them was cut, their sender's machine stood still, or nothing long passes. They come
//! back when they hear it, and what was passed by meanwhile each of them has to pull. So for a while nothing is, and then
//! no more than those who pull ask for.

use crate::ids::{BlockId, BlockKind};
use crate::time::{Duration, Timestamp};

/// For so long they are waited for, and what is open stays open.
const WAIT: Duration = Duration::from_secs(2);

/// Data blocks passed by beyond what was asked for: else whoever pulls would wait for a way and back each time.
const AHEAD: u32 = 8;

/// Where nobody asks for so long all who pull may hold what comes next: twice as many are passed by.
const UNASKED: Duration = Duration::from_secs(1);

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// When somebody was last known to follow the stream; `None`: nobody has who may come back.
    followed_at: Option<Timestamp>,
    /// One past the last data block that somebody has, or has asked for; and since when it is.
    wanted_end: u32,
    wanted_at: Timestamp,
    ahead: u32,
}

impl Passing {
    /// Somebody follows the stream, or did until now; data blocks below `end` have been opened.
    pub(super) fn followed(&mut self, now: Timestamp, end: u32) {
        self.followed_at = Some(now);
        self.wanted(now, end);
    }

    /// Nobody will come back by itself.
    pub(super) const fn nobody_returns(&mut self) {
        self.followed_at = None;
    }

    /// Data blocks below `end` are asked for by pull, or need not be.
    pub(super) fn wanted(&mut self, now: Timestamp, end: u32) {
        if end > self.wanted_end {
            (self.wanted_end, self.wanted_at, self.ahead) = (end, now, AHEAD);
        }
    }

    /// Nobody follows the stream at `now`.
    pub(super) fn review(&mut self, now: Timestamp) {
        if self.is_waiting(now) {
            (self.wanted_at, self.ahead) = (now, AHEAD);
        } else if now.since(self.wanted_at) >= UNASKED {
            (self.wanted_at, self.ahead) = (now, self.ahead.saturating_mul(2));
        }
    }

    /// They may be back at once.
    pub(super) fn is_waiting(&self, now: Timestamp) -> bool {
        self.followed_at.is_some_and(|at| now.since(at) <= WAIT)
    }

    /// Whether the block is left to those who pull.
    pub(super) fn passes(&self, now: Timestamp, block: BlockId) -> bool {
        if self.followed_at.is_none() {
            return true;
        }
        let end = self.wanted_end.saturating_add(self.ahead);
        !self.is_waiting(now) && (block.kind() == BlockKind::Manifest || block.number() < end)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD, Passing, UNASKED, WAIT};
    use crate::ids::BlockId;
    use crate::time::{Duration, Timestamp};

    const MS: Duration = Duration::from_millis(1);

    fn end(passing: &Passing, now: Timestamp) -> u32 {
        (0..).find(|number| !passing.passes(now, BlockId::data(*number).unwrap())).unwrap()
    }

    #[test]
    fn what_is_passed_by_goes_a_little_beyond_what_is_asked_for() {
        let (mut passing, mut now) = (Passing::default(), Timestamp::ZERO);
        assert!(passing.passes(now, BlockId::data(1 << 20).unwrap()), "nobody has ever followed");
        passing.followed(now, 100);
        now = now + WAIT;
        passing.review(now);
        assert!(passing.is_waiting(now) && end(&passing, now) == 0);
        now = now + MS;
        assert_eq!(end(&passing, now), 100 + AHEAD);
        assert!(passing.passes(now, BlockId::manifest(500).unwrap()));
        passing.wanted(now, 40);
        assert_eq!(end(&passing, now), 100 + AHEAD);
        passing.wanted(now, 104);
        assert_eq!(end(&passing, now), 104 + AHEAD);
        passing.nobody_returns();
        assert!(passing.passes(now, BlockId::data(1 << 20).unwrap()));
    }

    #[test]
    fn where_nobody_asks_more_and_more_is_passed_by() {
        let (mut passing, mut now) = (Passing::default(), Timestamp::ZERO);
        passing.followed(now, 10);
        now = now + WAIT;
        passing.review(now);
        for doubled in 1..5 {
            now = now + UNASKED - MS;
            passing.review(now);
            now = now + MS;
            passing.review(now);
            assert_eq!(end(&passing, now), 10 + (AHEAD << doubled));
        }
        passing.wanted(now, 11);
        assert_eq!(end(&passing, now), 11 + AHEAD);
    }
}
