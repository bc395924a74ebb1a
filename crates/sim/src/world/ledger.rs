//! What a receiver has kept, followed by an own hand: every block must come of K distinct symbols, once.

use downpour_proto::{BlockId, ReceiverId, SymbolId};
use std::collections::{BTreeMap, BTreeSet};

const WORDS: usize = SymbolId::END as usize / 64;

/// One receiver's books.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    kept: BTreeMap<BlockId, [u64; WORDS]>,
    whole: BTreeSet<BlockId>,
    stored: BTreeSet<BlockId>,
}

impl Ledger {
    /// A symbol that the machine wants.
    pub(super) fn keep(&mut self, who: ReceiverId, block: BlockId, symbol: SymbolId) {
        assert!(self.note(block, symbol), "receiver {who} keeps {block} {symbol:?} twice");
    }

    /// A repair symbol that was pulled; it may be there already.
    pub(super) fn pulled(&mut self, block: BlockId, symbol: SymbolId) {
        self.note(block, symbol);
    }

    /// The block was pulled as bytes.
    pub(super) fn pulled_whole(&mut self, block: BlockId) {
        self.whole.insert(block);
    }

    /// The machine says that the block can be rebuilt.
    pub(super) fn complete(&mut self, who: ReceiverId, block: BlockId, k: u16) {
        let held: u32 =
            self.kept.get(&block).map_or(0, |bits| bits.iter().map(|w| w.count_ones()).sum());
        assert!(
            held >= u32::from(k) || self.whole.contains(&block),
            "receiver {who} completes {block} with {held} of {k} symbols"
        );
    }

    /// The block is stored.
    pub(super) fn store(&mut self, who: ReceiverId, block: BlockId) {
        assert!(self.stored.insert(block), "receiver {who} stores {block} twice");
        self.forget(block);
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        self.kept.remove(&block);
        self.whole.remove(&block);
    }

    /// Blocks of which symbols are kept.
    pub(super) fn kept_blocks(&self) -> usize {
        self.kept.len()
    }

    fn note(&mut self, block: BlockId, symbol: SymbolId) -> bool {
        let bits = self.kept.entry(block).or_insert([0; WORDS]);
        let (word, bit) = (usize::from(symbol.raw()) / 64, symbol.raw() % 64);
        let fresh = bits[word] & (1 << bit) == 0;
        bits[word] |= 1 << bit;
        fresh
    }
}
