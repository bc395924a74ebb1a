//! What waits to be stored, told as if it were a queue on the path.
//!
//! A receiver that stores more slowly than the stream comes fills its memory, and then loses whole blocks. It is like
//! a link that is narrower than those before it; so that is what it says: the time that the store needs for what
//! waits, beyond an allowance, counts as delay of the polls, and the sender's rate control holds the rate at what
//! the store takes (`docs/protocol.md#FB-7`). Pauses of the store within the allowance nobody hears of.
//!
//! 1. The pace: symbols stored over the time in which something waited, the newest blocks weighing most. A
//!    store that stands still becomes slower with each look.
//! 2. What waits: the symbols of blocks that wait or are being stored, less what the pace has done since the last
//!    one was; and of those that are still coming the newest block's worth, so that it does not grow by whole blocks.

use crate::time::{Duration, Timestamp};

/// The weight of what is known of the pace falls by this part with each block.
const FADE: f64 = 1.0 / 16.0;

/// Blocks stored before the pace is known.
const KNOWN_AFTER: u32 = 4;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Symbols of a whole block, and as many as may wait without a word.
    block: f64,
    allowance: f64,
    /// Symbols that wait, in so many blocks.
    waiting: f64,
    blocks: u32,
    /// Symbols that came since the last block was whole.
    coming: f64,
    /// When the store began with what it does now.
    began: Timestamp,
    /// Symbols stored, and the seconds that took; fading.
    stored: f64,
    busy: f64,
    known: u32,
}

impl Backlog {
    /// For blocks of `k` symbols, of which `allowance` may wait without a word.
    pub(super) fn new(k: u16, allowance: usize) -> Self {
        let block = f64::from(k);
        Self {
            block,
            allowance: block * allowance as f64,
            waiting: 0.0,
            blocks: 0,
            coming: 0.0,
            began: Timestamp::ZERO,
            stored: 0.0,
            busy: 0.0,
            known: 0,
        }
    }

    /// A symbol was kept.
    pub(super) fn on_symbol(&mut self) {
        self.coming = (self.coming + 1.0).min(self.block);
    }

    /// A block of `k` symbols is whole and waits.
    pub(super) fn on_whole(&mut self, now: Timestamp, k: u16) {
        if self.blocks == 0 {
            self.began = now;
        }
        self.blocks += 1;
        self.waiting += f64::from(k);
        self.coming = (self.coming - f64::from(k)).max(0.0);
    }

    /// One of them is stored, or given up.
    pub(super) fn on_done(&mut self, now: Timestamp, k: u16) {
        self.blocks = self.blocks.saturating_sub(1);
        self.waiting = if self.blocks == 0 { 0.0 } else { self.waiting - f64::from(k) };
        self.stored += f64::from(k) - FADE * self.stored;
        self.busy += now.since(self.began).as_secs_f64() - FADE * self.busy;
        self.known = self.known.saturating_add(1);
        self.began = now;
    }

    /// How long the store needs for what waits beyond the allowance.
    pub(super) fn delay(&self, now: Timestamp) -> Duration {
        if self.blocks == 0 || self.known < KNOWN_AFTER {
            return Duration::ZERO;
        }
        let since = now.since(self.began).as_secs_f64();
        let late = since - self.block * self.busy / self.stored;
        let pace = self.stored / (self.busy + late.max(0.0)).max(1e-9);
        let done = (pace * since).min(self.block);
        let beyond = self.waiting + self.coming - done - self.allowance;
        Duration::from_secs_f64((beyond / pace).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Backlog;
    use crate::time::{Duration, Timestamp};

    const K: u16 = 100;

    /// A store that takes a block each 10 ms gets one each `every` ms, for a second; what it says then.
    fn after_a_second(every: u64) -> Duration {
        let mut backlog = Backlog::new(K, 8);
        let (mut waiting, mut free_at, mut now) = (0, 0, Timestamp::ZERO);
        for ms in 0..1000 {
            now = Timestamp::ZERO + Duration::from_millis(ms);
            for _ in 0..u64::from(K) / every {
                backlog.on_symbol();
            }
            if waiting > 0 && ms == free_at {
                backlog.on_done(now, K);
                waiting -= 1;
                free_at = ms + 10;
            }
            if ms % every == every - 1 {
                backlog.on_whole(now, K);
                free_at = if waiting == 0 { ms + 10 } else { free_at };
                waiting += 1;
            }
        }
        backlog.delay(now)
    }

    #[test]
    fn a_store_that_keeps_up_says_nothing() {
        assert_eq!(after_a_second(20), Duration::ZERO);
        assert_eq!(after_a_second(10), Duration::ZERO);
    }

    #[test]
    fn a_store_of_half_the_pace_tells_what_it_is_behind() {
        // Of 200 blocks 100 are stored, and 8 may wait.
        let behind = after_a_second(5);
        assert!((900..940).contains(&behind.as_millis()), "{behind:?}");
    }

    #[test]
    fn a_store_that_stands_still_tells_more_and_more() {
        let mut backlog = Backlog::new(K, 1);
        let mut now = Timestamp::ZERO;
        for _ in 0..5 {
            backlog.on_whole(now, K);
            now = now + Duration::from_millis(10);
            backlog.on_done(now, K);
        }
        (0..3).for_each(|_| backlog.on_whole(now, K));
        let soon = backlog.delay(now + Duration::from_millis(10));
        let later = backlog.delay(now + Duration::from_millis(500));
        assert!(
            soon <= Duration::from_millis(11) && later > Duration::from_millis(50),
            "{soon:?} {later:?}"
        );
    }
}
