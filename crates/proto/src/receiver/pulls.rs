//! What to pull, and how often to try (`docs/protocol.md#PULL`).
//!
//! A block is pulled when the sender has passed it and no longer lists it: its repair is over. The manifest
//! goes first, then data in order. Few pulls run at once; a failed one waits, longer each time.

use super::block::Stage;
use super::{LastPoll, PARTIAL_BLOCKS_MAX, Pull, Receiver, Work};
use crate::ids::{BlockId, BlockKind};
use crate::time::{Duration, Timestamp};
use crate::timer::Reason;
use crate::wire::POLL_BLOCKS_MAX;
use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Range;

/// Pulls of data that run at once beside a stream.
pub const PULLS_DEFAULT: usize = 8;

/// Most that may run at once: of a transfer that is all pulls.
pub const PULLS_MAX: usize = 1_024;

/// Wait after a pull that failed; doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Missing blocks looked at for what may be pulled, each time, whatever ends a poll claims: more than there
/// can be that run, wait after a failure, or are still served by the stream; behind these none is different.
const PULL_SCAN_MAX: usize = FAILED_MAX + 2 * PULLS_MAX + PARTIAL_BLOCKS_MAX + POLL_BLOCKS_MAX;

/// Failed blocks that wait each for itself; more wait together.
const FAILED_MAX: usize = 4_096;

/// Pulls under way and pulls that failed.
#[derive(Debug)]
pub(super) struct Pulls {
    most: usize,
    running: BTreeSet<BlockId>,
    failed: BTreeMap<BlockId, (Timestamp, Duration)>,
    /// When those may be tried that are not in `failed`: there may be no room for all that did.
    others: Timestamp,
}

impl Pulls {
    /// With so many of data at once.
    pub(super) fn new(most: usize) -> Self {
        Self { most, running: BTreeSet::new(), failed: BTreeMap::new(), others: Timestamp::ZERO }
    }

    /// The manifest always has room of its own: pulls of data may be waiting for it.
    pub(super) fn has_room(&self, kind: BlockKind) -> bool {
        let max = match kind {
            BlockKind::Data => self.most,
            BlockKind::Manifest => 2 * self.most,
        };
        self.running.len() < max
    }

    /// Blocks of `kind` within `numbers` are not needed any more.
    pub(super) fn end_within(&mut self, kind: BlockKind, numbers: &Range<u32>) {
        let needed = |block: &BlockId| block.kind() != kind || !numbers.contains(&block.number());
        self.running.retain(needed);
        self.failed.retain(|block, _| needed(block));
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
        let at = now + wait;
        if self.has_place_for(now, block) {
            self.failed.insert(block, (at, wait));
        } else {
            self.others = at;
        }
        at
    }

    fn has_place_for(&mut self, now: Timestamp, block: BlockId) -> bool {
        if self.failed.len() >= FAILED_MAX && !self.failed.contains_key(&block) {
            // What could have been tried for so long needs no wait.
            self.failed.retain(|_, (at, _)| *at + RETRY.1 > now);
            return self.failed.len() < FAILED_MAX;
        }
        true
    }

    /// Whether the block may be pulled now.
    pub(super) fn may_start(&self, now: Timestamp, block: BlockId) -> bool {
        let at = self.failed.get(&block).map_or(self.others, |(at, _)| *at);
        !self.is_running(block) && at <= now
    }

    /// When the next failed pull may be tried again.
    pub(super) fn next_retry(&self, now: Timestamp) -> Option<Timestamp> {
        let each = self.failed.values().map(|(at, _)| *at);
        each.chain([self.others]).filter(|at| *at > now).min()
    }
}

impl Receiver {
    pub(super) fn fail_pull(&mut self, block: BlockId) {
        let at = self.pulls.fail(self.now, block);
        self.timers.set_earlier(Reason::Pull, at);
    }

    /// From now on so many pulls of data may run at once, each from the asking until it is stored.
    pub fn set_pulls(&mut self, now: Timestamp, most: usize) {
        self.advance(now);
        self.pulls.most = most.clamp(1, PULLS_MAX);
        self.pull_check = true;
    }

    /// Whether the sender, by what it has told, may have opened the block. Of others there may be any number: a symbol alone may
    /// be a member's forgery.
    pub(super) fn may_be_open(&self, block: BlockId) -> bool {
        let end = match block.kind() {
            BlockKind::Manifest => self.manifest_end,
            BlockKind::Data => self.data_end,
        };
        block.number() < end.saturating_add(POLL_BLOCKS_MAX as u32)
    }

    /// Starts the pulls that may run: the manifest first, then data in order.
    pub(super) fn start_pulls(&mut self) {
        let ends = [(BlockKind::Manifest, self.manifest_end), (BlockKind::Data, self.data_end)];
        for (kind, end) in ends {
            let mut from = 0;
            for _ in 0..PULL_SCAN_MAX {
                if !self.pulls.has_room(kind) {
                    break;
                }
                let held = if kind == BlockKind::Data { &self.data } else { &self.manifest };
                let Some(number) = held.first_gap(from..end) else { break };
                from = number + 1;
                let block = match kind {
                    BlockKind::Data => BlockId::data(number),
                    BlockKind::Manifest => BlockId::manifest(number),
                };
                if let Some(block) = block {
                    self.start_pull(block);
                }
            }
        }
        if let Some(at) = self.pulls.next_retry(self.now) {
            self.timers.set_earlier(Reason::Pull, at);
        }
    }

    fn start_pull(&mut self, block: BlockId) {
        if !self.pulls.may_start(self.now, block) || self.still_served(block) {
            return;
        }
        let code = self.config.geometry.code;
        let repair = self
            .partial
            .get(&block)
            .filter(|p| p.stage == Stage::Collecting)
            .and_then(|p| p.pull_repair(code.repair_max(p.k)));
        // protocol.md#PULL-2: repair where a part of it is here.
        let pull = match repair {
            Some(repair) => Pull::Repair { block, from: repair.start, until: repair.end },
            None => Pull::Bytes { block },
        };
        if let Some(partial) = self.partial.get_mut(&block) {
            partial.stage = Stage::Pulling;
        }
        self.stats.pulls += 1;
        self.pulls.start(block);
        self.work.push_back(Work::Pull(pull));
    }

    /// The newest poll tells that the stream has opened the block, and what came before it brought nothing.
    fn is_past(&self, block: BlockId) -> bool {
        self.last_poll.as_ref().is_some_and(|last| match block.kind() {
            BlockKind::Data => block.number() < last.poll.data_end,
            BlockKind::Manifest => block.number() < last.poll.manifest_end,
        })
    }

    /// The newest poll lists the block, of which nothing is kept for want of room (protocol.md#PULL-1). What shall come by
    /// pull does not wait for that (protocol.md#PULL-3).
    fn may_find_room(&self, block: BlockId) -> bool {
        let lists = |last: &LastPoll| last.poll.blocks.iter().any(|open| open.block == block);
        !self.by_pull.contains(block.raw()) && self.last_poll.as_ref().is_some_and(lists)
    }

    /// The block is being completed, or the stream may still bring it.
    fn still_served(&self, block: BlockId) -> bool {
        let newest = self.last_poll.as_ref().map(|l| l.poll.round);
        match self.partial.get(&block) {
            Some(p) if p.stage == Stage::Completing => true,
            // What no poll has listed and the newest one counts as opened was closed before a poll came through.
            // What it does not count, the control plane may know of already.
            Some(p) if self.config.on_stream => {
                p.listed == newest || p.listed.is_none() && !self.is_past(block)
            }
            _ => self.config.on_stream && (!self.is_past(block) || self.may_find_room(block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FAILED_MAX, Pulls, RETRY};
    use crate::ids::{BlockId, BlockKind};
    use crate::time::{Duration, Timestamp};

    const MS: Duration = Duration::from_millis(1);

    fn block(number: u32) -> BlockId {
        BlockId::data(number).unwrap()
    }

    #[test]
    fn however_many_fail_each_waits_longer_each_time() {
        let (mut pulls, mut now) = (Pulls::new(8), Timestamp::ZERO);
        let most = FAILED_MAX as u32;
        for number in 0..most + 100 {
            now = now + MS;
            assert_eq!(pulls.fail(now, block(number)), now + RETRY.0);
            assert!(!pulls.may_start(now, block(number)), "{number}");
        }
        assert_eq!(pulls.failed.len(), FAILED_MAX);
        assert!(pulls.may_start(now + RETRY.0, block(most + 99)));
        // Of one that is known the wait grows also when there is no place for another.
        let again = pulls.fail(now, block(7));
        assert_eq!(again, now + RETRY.0 * 2);
        assert!(!pulls.may_start(again - MS, block(7)) && pulls.may_start(again, block(7)));
        // What nobody has tried for long makes room.
        pulls.fail(now + RETRY.1 + RETRY.0, block(2 * most));
        assert!(pulls.failed.len() < 200 && pulls.failed.contains_key(&block(2 * most)));
    }

    #[test]
    fn what_is_not_needed_any_more_waits_no_more() {
        let mut pulls = Pulls::new(8);
        for number in 0..10 {
            pulls.fail(Timestamp::ZERO, block(number));
        }
        pulls.end_within(BlockKind::Manifest, &(0..10));
        assert_eq!(pulls.failed.len(), 10);
        pulls.end_within(BlockKind::Data, &(2..9));
        assert_eq!(pulls.failed.len(), 3);
        assert!(!pulls.may_start(Timestamp::ZERO, block(9)));
    }
}
