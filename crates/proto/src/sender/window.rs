//! The blocks on their way: offered, open, and lately closed.
//!
//! A block is *offered* by the driver in the order of sending, *opened* when there is room in the window
//! and something to send soon (its bytes are then read), *settled* when all that is planned was sent and
//! nobody has asked for more for long enough, and then *closed*. Who still lacks it pulls; a late NACK can
//! reopen a block that was closed not long ago.

use crate::code::Code;
use crate::ids::{BlockId, BlockKind, ReceiverId, Round, SymbolId};
use crate::time::Timestamp;
use crate::wire::{ENTRY_LEN_MAX, OpenBlock, POLL_BLOCKS_MAX, fitting, list_len};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Most blocks open at once, whatever the round trip.
pub const WINDOW_BLOCKS_MAX: usize = POLL_BLOCKS_MAX;

/// Closed blocks that a late NACK may reopen: so many times as may be open.
const RECENT_WINDOWS: usize = 2;

/// Receivers remembered that asked for much of one block.
pub(super) const BIG_ASKERS_MAX: usize = 16;

/// Symbols of one block that were planned because a receiver asked: for each of the [`GIVEN_MAX`] who were given most.
#[derive(Debug, Default)]
pub(super) struct Given(Vec<(ReceiverId, u16)>);

/// Receivers of which that is remembered for each block.
const GIVEN_MAX: usize = 16;

impl Given {
    fn of(&self, receiver: ReceiverId) -> u16 {
        self.0.iter().find(|(id, _)| *id == receiver).map_or(0, |(_, count)| *count)
    }

    pub(super) fn add(&mut self, receiver: ReceiverId, count: u16) {
        if let Some((_, given)) = self.0.iter_mut().find(|(id, _)| *id == receiver) {
            *given = given.saturating_add(count);
        } else if self.0.len() < GIVEN_MAX {
            self.0.push((receiver, count));
        } else if let Some(least) = self.0.iter_mut().min_by_key(|(_, given)| *given) {
            *least = (receiver, count);
        }
    }
}

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
    code: Code,
    pub(super) opened_at: Timestamp,
    /// When its first symbol was sent.
    pub(super) began_at: Timestamp,
    /// Its bytes are with the driver.
    pub(super) loaded: bool,
    /// Bytes to send of its last source symbol, once it is loaded.
    pub(super) tail: u16,
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
    pub(super) given: Given,
}

impl Open {
    fn new(offered: Offered, code: Code, opened_at: Timestamp) -> Self {
        Self {
            block: offered.block,
            k: offered.k,
            code,
            opened_at,
            began_at: opened_at,
            loaded: false,
            tail: 0,
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
            given: Given::default(),
        }
    }

    /// The next symbol, if it is planned and ready; none is sent twice (`docs/protocol.md#REP-2`).
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
        let planned = planned.min(self.code.symbols_max(self.k));
        if planned <= self.planned {
            return false;
        }
        self.planned = planned;
        self.settles_at = None;
        self.last_call = None;
        true
    }

    /// The next batch to encode so that what is planned will be ready, or a first one `ahead` of any plan.
    pub(super) fn encode_next(&mut self, ahead: bool) -> Option<(u16, u16)> {
        let (batch, max) = (self.code.encode_batch(self.k), self.code.repair_max(self.k));
        let ahead = if ahead { batch.min(self.k / 4) } else { 0 };
        let wanted = self.planned.saturating_sub(self.k).max(ahead).min(max);
        if !self.loaded || wanted <= self.encode_asked || self.encode_asked != self.encoded {
            return None;
        }
        let from = self.encode_asked;
        let to = wanted.next_multiple_of(batch).min(max);
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
    /// Most bytes of a list of them.
    list_len_max: usize,
    code: Code,
    pub(super) offered: VecDeque<Offered>,
    pub(super) open: VecDeque<Open>,
    /// No open block before this one has a symbol to send now: they are many, and looked at for each symbol.
    ready_from: usize,
    /// Lately closed, and what was given of them: to be opened again does not make it less.
    recent: VecDeque<(OpenBlock, Given)>,
    pub(super) data_end: u32,
    pub(super) manifest_end: u32,
}

impl Window {
    pub(super) const fn new(limit: usize, list_len_max: usize, code: Code) -> Self {
        Self {
            limit,
            list_len_max,
            code,
            offered: VecDeque::new(),
            open: VecDeque::new(),
            ready_from: 0,
            recent: VecDeque::new(),
            data_end: 0,
            manifest_end: 0,
        }
    }

    /// No further block can be opened now: there are as many as there may be, or the polls have no room for more.
    pub(super) fn is_full(&self) -> bool {
        let most = (self.open.len() + 1) * ENTRY_LEN_MAX;
        let listings = || self.open.iter().map(Open::listing);
        self.open.len() >= self.limit
            || 2 + most > self.list_len_max
                && list_len(listings()) + ENTRY_LEN_MAX > self.list_len_max
    }

    /// The next offered block becomes open.
    pub(super) fn open_next(&mut self, now: Timestamp) -> Option<Offered> {
        let offered = self.offered.pop_front()?;
        self.pass(offered.block);
        self.open.push_back(Open::new(offered, self.code, now));
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

    /// The open block, to be changed: it may have a symbol to send then.
    pub(super) fn find(&mut self, block: BlockId) -> Option<&mut Open> {
        self.ready_from = 0;
        self.open.iter_mut().find(|b| b.block == block)
    }

    /// Symbols that have been planned of a block that is open, or was closed not long ago.
    pub(super) fn planned(&self, block: BlockId) -> Option<u16> {
        let open = self.open.iter().find(|b| b.block == block).map(|b| b.planned);
        open.or_else(|| self.recent.iter().find(|(b, _)| b.block == block).map(|(b, _)| b.sent))
    }

    /// Source symbols of such a block, and what `receiver` was given of it.
    pub(super) fn given(&self, block: BlockId, receiver: ReceiverId) -> (u16, u16) {
        let open = self.open.iter().find(|b| b.block == block).map(|b| (b.k, &b.given));
        let closed = || self.recent.iter().find(|(b, _)| b.block == block);
        let known = open.or_else(|| closed().map(|(b, given)| (b.k, given)));
        known.map_or((0, 0), |(k, given)| (k, given.of(receiver)))
    }

    /// Open blocks of which something was sent.
    pub(super) fn begun(&self) -> usize {
        self.open.iter().filter(|open| open.sent > 0).count()
    }

    /// Source symbols to send of each block that waits, in the order of sending.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u16> {
        let open = self.open.iter().map(|open| open.k.saturating_sub(open.sent));
        open.filter(|left| *left > 0).chain(self.offered.iter().map(|offered| offered.k))
    }

    /// The first open block that has a symbol to send now: repair of older ones goes before new source
    /// (`docs/protocol.md#REP-4`).
    pub(super) fn first_ready(&mut self) -> Option<usize> {
        let from = self.ready_from.min(self.open.len());
        let found = self.open.range(from..).position(|open| open.next_symbol().is_some());
        self.ready_from = found.map_or(self.open.len(), |ahead| from + ahead);
        found.map(|_| self.ready_from)
    }

    /// Symbols of open blocks that are planned and not sent.
    pub(super) fn backlog(&self) -> u64 {
        self.open.iter().map(|b| u64::from(b.planned - b.sent)).sum()
    }

    /// Closes the open block at `index`.
    pub(super) fn close(&mut self, index: usize) -> Option<Open> {
        let mut closed = self.open.remove(index)?;
        self.ready_from = self.ready_from.saturating_sub(1);
        if self.recent.len() == RECENT_WINDOWS * self.code.window_blocks() {
            self.recent.pop_front();
        }
        self.recent.push_back((closed.listing(), core::mem::take(&mut closed.given)));
        Some(closed)
    }

    /// The closed block is not opened again: its bytes cannot be read.
    pub(super) fn forget(&mut self, block: BlockId) {
        self.recent.retain(|(closed, _)| closed.block != block);
    }

    /// Opens a block again that was closed not long ago, with all of it counted as sent, for one who knows of `known`
    /// symbols: not if it knows of all, and there are no more.
    pub(super) fn reopen(&mut self, block: BlockId, known: u16) -> Option<&mut Open> {
        if self.is_full() {
            return None;
        }
        let at = self.recent.iter().position(|(b, _)| b.block == block)?;
        let OpenBlock { k, sent, .. } = self.recent[at].0;
        if known >= sent && sent >= self.code.symbols_max(k) {
            return None;
        }
        let (closed, given) = self.recent.remove(at)?;
        let offered = Offered { block, k: closed.k };
        let mut open = Open::new(offered, self.code, Timestamp::ZERO);
        open.sent = closed.sent;
        open.planned = closed.sent;
        open.proactive_done = true;
        open.given = given;
        self.ready_from = 0;
        self.open.push_front(open);
        self.open.front_mut()
    }

    /// The open blocks of which `which` is true, as they are told. All were opened with room in a list; should their
    /// entries have grown since, the last are left out.
    pub(super) fn listings(&self, which: impl Fn(BlockId) -> bool) -> Vec<OpenBlock> {
        let told = self.open.iter().map(Open::listing).filter(|open| which(open.block));
        fitting(told, self.list_len_max)
    }
}

#[cfg(test)]
mod tests {
    use super::{Offered, Open, WINDOW_BLOCKS_MAX, Window};
    use crate::code::Code;
    use crate::ids::{BlockId, Geometry, SymbolId};
    use crate::time::Timestamp;
    use crate::wire::{list_len, list_len_max};

    fn window(limit: usize, code: Code) -> Window {
        Window::new(limit, list_len_max(Geometry::IPV4.datagram_len()), code)
    }

    #[test]
    fn symbols_go_source_first_then_encoded_repair() {
        let mut window = window(1, Code::ReedSolomon);
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
        assert_eq!(open.encode_next(false), Some((0, 128)));
        assert_eq!(open.encode_next(false), None, "one batch at a time");
        open.encoded = 128;
        assert_eq!(open.next_symbol(), Some(SymbolId::repair(0)));
        assert!(!open.raise(3), "plans only grow");
    }

    #[test]
    fn a_plan_ends_with_the_codes_symbols_and_batches_are_its_own() {
        let mut window = window(2, Code::Cauchy);
        window.offered.push_back(Offered { block: BlockId::data(0).unwrap(), k: 128 });
        window.open_next(Timestamp::ZERO);
        let open = window.find(BlockId::data(0).unwrap()).unwrap();
        open.loaded = true;
        assert_eq!(open.encode_next(true), Some((0, 8)));
        open.encoded = 8;
        assert!(open.raise(900));
        assert_eq!(open.planned, 256);
        assert_eq!(open.encode_next(true), Some((8, 120)));
    }

    #[test]
    fn the_first_block_with_a_symbol_is_found_whatever_has_changed() {
        let mut window = window(8, Code::ReedSolomon);
        let block = |n| BlockId::data(n).unwrap();
        for n in 0..4 {
            window.offered.push_back(Offered { block: block(n), k: 1 });
            window.open_next(Timestamp::ZERO);
        }
        assert_eq!(window.first_ready(), None);
        window.find(block(2)).unwrap().loaded = true;
        assert_eq!(window.first_ready(), Some(2));
        window.find(block(1)).unwrap().loaded = true;
        assert_eq!(window.first_ready(), Some(1));
        window.open[1].sent = 1;
        assert_eq!(window.first_ready(), Some(2));
        window.close(0);
        assert_eq!(window.first_ready(), Some(1));
        window.open[1].sent = 1;
        assert_eq!(window.first_ready(), None);
        window.offered.push_back(Offered { block: block(4), k: 1 });
        window.open_next(Timestamp::ZERO);
        window.find(block(4)).unwrap().loaded = true;
        assert_eq!(window.first_ready(), Some(3));
    }

    #[test]
    fn no_more_blocks_are_open_than_a_poll_has_room_for() {
        let open = |symbol_len: u16, step: u32| {
            let len_max = list_len_max(Geometry { symbol_len, ..Geometry::IPV4 }.datagram_len());
            let mut window = Window::new(WINDOW_BLOCKS_MAX, len_max, Code::Cauchy);
            for n in 0.. {
                if window.is_full() {
                    break;
                }
                let block = BlockId::data(n * step).unwrap();
                window.offered.push_back(Offered { block, k: 128 });
                window.open_next(Timestamp::ZERO);
            }
            assert!(list_len(window.open.iter().map(Open::listing)) <= len_max);
            assert_eq!(window.listings(|_| true).len(), window.open.len());
            window.open.len()
        };
        // Not yet sent, each takes four bytes; later three.
        assert!((331..345).contains(&open(1448, 1)), "{}", open(1448, 1));
        assert!((150..330).contains(&open(1448, 100_000)), "{}", open(1448, 100_000));
        // At MTU 1400 and 576.
        assert!((310..331).contains(&open(1348, 1)), "{}", open(1348, 1));
        assert!((110..120).contains(&open(524, 1)), "{}", open(524, 1));
        assert_eq!(open(2, 1), 1, "there is always room for one");
    }

    #[test]
    fn a_closed_block_can_be_reopened_for_a_late_nack() {
        let block = BlockId::data(0).unwrap();
        let mut window = window(1, Code::ReedSolomon);
        window.offered.push_back(Offered { block, k: 2 });
        window.open_next(Timestamp::ZERO);
        window.open[0].sent = 2;
        window.close(0);
        assert!(window.find(block).is_none());
        assert_eq!(window.planned(block), Some(2));
        let open = window.reopen(block, 0).unwrap();
        assert_eq!((open.sent, open.planned, open.loaded), (2, 2, false));
        assert!(window.reopen(block, 0).is_none());
    }

    #[test]
    fn a_full_window_reopens_nothing() {
        let block = BlockId::data(0).unwrap();
        let mut window = window(1, Code::ReedSolomon);
        window.offered.push_back(Offered { block, k: 2 });
        window.open_next(Timestamp::ZERO);
        window.close(0);
        window.offered.push_back(Offered { block: BlockId::data(1).unwrap(), k: 2 });
        window.open_next(Timestamp::ZERO);
        assert!(window.reopen(block, 0).is_none(), "each open block costs the driver its bytes");
        window.close(0);
        assert!(window.reopen(block, 0).is_some());
    }
}
