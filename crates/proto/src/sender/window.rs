//! The blocks on their way: offered, open, and lately closed.
//!
//! A block is *offered* by the driver in the order of sending, *opened* when there is room in the window
//! and something to send soon (its bytes are then read), *settled* when all that is planned was sent and
//! nobody has asked for more for long enough, and then *closed*. Who still lacks it pulls; a late NACK can
//! reopen a block that was closed not long ago.

use crate::ids::{BlockId, BlockKind, REPAIR_SYMBOLS_MAX, ReceiverId, Round, SymbolId};
use crate::time::Timestamp;
use crate::wire::{OpenBlock, POLL_BLOCKS_MAX};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Most blocks open at once, whatever the round trip.
pub const WINDOW_BLOCKS_MAX: usize = POLL_BLOCKS_MAX;

/// Closed blocks that a late NACK may reopen.
const RECENT_BLOCKS: usize = 256;

/// Repair symbols encoded at a time: about what a block at 5 % loss needs, and little to throw away.
pub const ENCODE_BATCH: u16 = 128;

/// Receivers remembered that asked for much of one block.
pub(super) const BIG_ASKERS_MAX: usize = 16;

/// A block offered by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) block: BlockId,
    pub(super) k: u16,
}

/// A block in the window.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) block: BlockId,
    pub(super) k: u16,
    pub(super) opened_at: Timestamp,
    /// When its first symbol was sent.
    pub(super) began_at: Timestamp,
    /// Its bytes are with the driver.
    pub(super) loaded: bool,
    /// Symbols sent: the source in order, then repair in order.
    pub(super) sent: u16,
    /// Symbols to send as planned now.
    pub(super) planned: u16,
    /// Repair symbols that the driver has encoded or is encoding.
    pub(super) encode_asked: u16,
    pub(super) encoded: u16,
    /// Somebody asked for more than was planned.
    pub(super) asked: bool,
    pub(super) proactive_done: bool,
    /// Repair symbols planned unasked.
    pub(super) proactive: u16,
    pub(super) settles_at: Option<Timestamp>,
    /// The first poll that tells all the plan as sent, and until when answers to it are waited for.
    pub(super) last_call: Option<(Round, Timestamp)>,
    pub(super) big_askers: Vec<ReceiverId>,
}

impl Open {
    fn new(offered: Offered, opened_at: Timestamp) -> Self {
        Self {
            block: offered.block,
            k: offered.k,
            opened_at,
            began_at: opened_at,
            loaded: false,
            sent: 0,
            planned: offered.k,
            encode_asked: 0,
            encoded: 0,
            asked: false,
            proactive_done: false,
            proactive: 0,
            settles_at: None,
            last_call: None,
            big_askers: Vec::new(),
        }
    }

    /// The next symbol, if it is planned and ready.
    pub(super) fn next_symbol(&self) -> Option<SymbolId> {
        if !self.loaded || self.sent >= self.planned {
            return None;
        }
        match self.sent.checked_sub(self.k) {
            None => Some(SymbolId::source(self.sent)),
            Some(repair) if repair < self.encoded => Some(SymbolId::repair(repair)),
            Some(_) => None,
        }
    }

    /// Raises the plan to `planned` symbols; false when it is already there.
    pub(super) fn raise(&mut self, planned: u16) -> bool {
        let planned = planned.min(self.k + REPAIR_SYMBOLS_MAX);
        if planned <= self.planned {
            return false;
        }
        self.planned = planned;
        self.settles_at = None;
        self.last_call = None;
        true
    }

    /// The next batch to encode so that what is planned, or `ahead` repair symbols, will be ready.
    pub(super) fn encode_next(&mut self, ahead: u16) -> Option<(u16, u16)> {
        let wanted = self.planned.saturating_sub(self.k).max(ahead).min(REPAIR_SYMBOLS_MAX);
        if !self.loaded || wanted <= self.encode_asked || self.encode_asked != self.encoded {
            return None;
        }
        let from = self.encode_asked;
        let to = wanted.next_multiple_of(ENCODE_BATCH).min(REPAIR_SYMBOLS_MAX);
        self.encode_asked = to;
        Some((from, to - from))
    }

    /// `receiver` asks for a large part of the block; how many different ones have.
    pub(super) fn big_asker(&mut self, receiver: ReceiverId) -> usize {
        if !self.big_askers.contains(&receiver) && self.big_askers.len() < BIG_ASKERS_MAX {
            self.big_askers.push(receiver);
        }
        self.big_askers.len()
    }

    pub(super) const fn listing(&self) -> OpenBlock {
        OpenBlock { block: self.block, k: self.k, sent: self.sent, planned: self.planned }
    }
}

/// Offered, open and lately closed blocks.
#[derive(Debug)]
pub(super) struct Window {
    /// Most blocks open at once.
    limit: usize,
    pub(super) offered: VecDeque<Offered>,
    pub(super) open: VecDeque<Open>,
    recent: VecDeque<OpenBlock>,
    pub(super) data_end: u32,
    pub(super) manifest_end: u32,
}

impl Window {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            offered: VecDeque::new(),
            open: VecDeque::new(),
            recent: VecDeque::new(),
            data_end: 0,
            manifest_end: 0,
        }
    }

    /// No further block can be opened now.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= self.limit
    }

    /// The next offered block becomes open.
    pub(super) fn open_next(&mut self, now: Timestamp) -> Option<Offered> {
        let offered = self.offered.pop_front()?;
        self.pass(offered.block);
        self.open.push_back(Open::new(offered, now));
        Some(offered)
    }

    /// The next offered block is needed by nobody on the stream.
    pub(super) fn skip_next(&mut self) {
        if let Some(offered) = self.offered.pop_front() {
            self.pass(offered.block);
        }
    }

    fn pass(&mut self, block: BlockId) {
        let end = match block.kind() {
            BlockKind::Data => &mut self.data_end,
            BlockKind::Manifest => &mut self.manifest_end,
        };
        *end = (*end).max(block.number() + 1);
    }

    pub(super) fn find(&mut self, block: BlockId) -> Option<&mut Open> {
        self.open.iter_mut().find(|b| b.block == block)
    }

    /// Symbols of open blocks that are planned and not sent.
    pub(super) fn backlog(&self) -> u64 {
        self.open.iter().map(|b| u64::from(b.planned - b.sent)).sum()
    }

    /// Closes the open block at `index`.
    pub(super) fn close(&mut self, index: usize) -> Option<Open> {
        let closed = self.open.remove(index)?;
        if self.recent.len() == RECENT_BLOCKS {
            self.recent.pop_front();
        }
        self.recent.push_back(closed.listing());
        Some(closed)
    }

    /// Opens a block again that was closed not long ago, with all of it counted as sent.
    pub(super) fn reopen(&mut self, block: BlockId) -> Option<&mut Open> {
        if self.is_full() {
            return None;
        }
        let at = self.recent.iter().position(|b| b.block == block)?;
        let closed = self.recent.remove(at)?;
        let mut open = Open::new(Offered { block, k: closed.k }, Timestamp::ZERO);
        open.sent = closed.sent;
        open.planned = closed.sent;
        open.proactive_done = true;
        self.open.push_front(open);
        self.open.front_mut()
    }

    pub(super) fn listings(&self) -> Vec<OpenBlock> {
        self.open.iter().map(Open::listing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Offered, Window};
    use crate::ids::{BlockId, SymbolId};
    use crate::time::Timestamp;

    #[test]
    fn symbols_go_source_first_then_encoded_repair() {
        let mut window = Window::new(1);
        window.offered.push_back(Offered { block: BlockId::data(3).unwrap(), k: 2 });
        window.open_next(Timestamp::ZERO);
        assert_eq!(window.data_end, 4);
        let open = &mut window.open[0];
        assert_eq!(open.next_symbol(), None, "not loaded");
        open.loaded = true;
        assert_eq!(open.next_symbol(), Some(SymbolId::source(0)));
        open.sent = 2;
        assert_eq!(open.next_symbol(), None, "nothing planned");
        assert!(open.raise(3));
        assert_eq!(open.next_symbol(), None, "not encoded");
        assert_eq!(open.encode_next(0), Some((0, 128)));
        assert_eq!(open.encode_next(0), None, "one batch at a time");
        open.encoded = 128;
        assert_eq!(open.next_symbol(), Some(SymbolId::repair(0)));
        assert!(!open.raise(3), "plans only grow");
    }

    #[test]
    fn a_closed_block_can_be_reopened_for_a_late_nack() {
        let block = BlockId::data(0).unwrap();
        let mut window = Window::new(1);
        window.offered.push_back(Offered { block, k: 2 });
        window.open_next(Timestamp::ZERO);
        window.open[0].sent = 2;
        window.close(0);
        assert!(window.find(block).is_none());
        let open = window.reopen(block).unwrap();
        assert_eq!((open.sent, open.planned, open.loaded), (2, 2, false));
        assert!(window.reopen(block).is_none());
    }

    #[test]
    fn a_full_window_reopens_nothing() {
        let block = BlockId::data(0).unwrap();
        let mut window = Window::new(1);
        window.offered.push_back(Offered { block, k: 2 });
        window.open_next(Timestamp::ZERO);
        window.close(0);
        window.offered.push_back(Offered { block: BlockId::data(1).unwrap(), k: 2 });
        window.open_next(Timestamp::ZERO);
        assert!(window.reopen(block).is_none(), "each open block costs the driver its bytes");
        window.close(0);
        assert!(window.reopen(block).is_some());
    }
}
