//! What to pull, and how often to try (`docs/protocol.md#PULL`).
//!
//! A block is pulled when the sender has passed it and no longer lists it: its repair is over. The manifest
//! goes first, then data in order. Few pulls run at once; a failed one waits, longer each time.

use crate::ids::{BlockId, BlockKind};
use crate::time::{Duration, Timestamp};
use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Range;

/// Pulls that run at once.
pub const PULLS_MAX: usize = 8;

/// Wait after a pull that failed; doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Failed blocks of which the wait is remembered.
pub(super) const FAILED_MAX: usize = 4_096;

/// Pulls under way and pulls that failed.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    running: BTreeSet<BlockId>,
    failed: BTreeMap<BlockId, (Timestamp, Duration)>,
}

impl Pulls {
    /// The manifest always has room of its own: pulls of data may be waiting for it.
    pub(super) fn has_room(&self, kind: BlockKind) -> bool {
        let max = match kind {
            BlockKind::Data => PULLS_MAX,
            BlockKind::Manifest => 2 * PULLS_MAX,
        };
        self.running.len() < max
    }

    /// Those under way for blocks of `kind` within `numbers` are not needed any more.
    pub(super) fn end_within(&mut self, kind: BlockKind, numbers: &Range<u32>) {
        self.running.retain(|block| block.kind() != kind || !numbers.contains(&block.number()));
    }

    pub(super) fn is_running(&self, block: BlockId) -> bool {
        self.running.contains(&block)
    }

    pub(super) fn start(&mut self, block: BlockId) {
        self.running.insert(block);
    }

    /// Ended, well or because the stream completed the block first.
    pub(super) fn end(&mut self, block: BlockId) {
        self.running.remove(&block);
        self.failed.remove(&block);
    }

    /// It brought nothing, or what it brought could not be kept. Returns when it may be tried again.
    pub(super) fn fail(&mut self, now: Timestamp, block: BlockId) -> Timestamp {
        self.running.remove(&block);
        let wait = self.failed.get(&block).map_or(RETRY.0, |(_, last)| (*last * 2).min(RETRY.1));
        if self.failed.len() < FAILED_MAX {
            self.failed.insert(block, (now + wait, wait));
        }
        now + wait
    }

    /// Whether the block may be pulled now.
    pub(super) fn may_start(&self, now: Timestamp, block: BlockId) -> bool {
        !self.is_running(block) && self.failed.get(&block).is_none_or(|(at, _)| *at <= now)
    }

    /// When the next failed pull may be tried again.
    pub(super) fn next_retry(&self, now: Timestamp) -> Option<Timestamp> {
        self.failed.values().map(|(at, _)| *at).filter(|at| *at > now).min()
    }
}
