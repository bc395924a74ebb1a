//! The symbols of blocks that are being received.
//!
//! Source symbols go straight to their place in the block's buffer, repair symbols beside it. Buffers are
//! reused; how many there are is bounded by the machine, which admits no more blocks than it was told.

use crate::{Codec, SymbolSet, prefetch};
use downpour_proto::{BLOCK_SYMBOLS_MAX, BlockId, SymbolId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Buffers kept for reuse: as many as wait for a store that is as fast as the stream.
const SPARE_MAX: usize = 64;

/// Room for repair symbols that a new buffer starts with.
const REPAIR_ROOM: usize = 96;

/// One block's symbols.
#[derive(Default)]
pub(super) struct Symbols {
    /// k·T bytes; what is not in `present` is undefined.
    pub(super) bytes: Vec<u8>,
    present: SymbolSet,
    repair_ids: Vec<u16>,
    repair: Vec<u8>,
    /// All of `bytes` came at once, by a pull.
    pulled: bool,
}

impl Symbols {
    /// A block that is there already, all of it.
    pub(super) fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes, pulled: true, ..Self::default() }
    }

    /// Takes the buffer, of a block that was pulled.
    pub(super) fn take_pulled(&mut self) -> Option<Vec<u8>> {
        self.pulled.then(|| std::mem::take(&mut self.bytes))
    }

    fn reset(&mut self, len: usize, symbol_len: usize) {
        if self.bytes.capacity() < len {
            // The kernel's pages are zeros already.
            self.bytes = vec![0; len];
        }
        self.bytes.resize(len, 0);
        self.present = SymbolSet::EMPTY;
        self.repair_ids.clear();
        self.repair.clear();
        self.repair.reserve(REPAIR_ROOM * symbol_len);
    }

    /// A body of less than `symbol_len` is a source symbol's without the zeros at its end.
    fn insert(&mut self, symbol: SymbolId, body: &[u8], symbol_len: usize) {
        match symbol.repair_index() {
            Some(index) => {
                if !self.repair_ids.contains(&index) {
                    self.repair_ids.push(index);
                    self.repair.extend_from_slice(body);
                }
            }
            None => {
                let at = usize::from(symbol.raw()) * symbol_len;
                if let Some(room) = self.bytes.get_mut(at..at + symbol_len) {
                    let (bytes, zeros) = room.split_at_mut(body.len());
                    bytes.copy_from_slice(body);
                    zeros.fill(0);
                    self.present.insert(symbol.raw());
                }
            }
        }
    }

    /// Rebuilds the source symbols that are lacking; false when the symbols do not suffice.
    pub(super) fn rebuild(&mut self, codec: &mut Codec, symbol_len: usize) -> bool {
        let ids = self.repair_ids.iter().copied();
        let mut repair: Vec<(u16, &[u8])> = ids.zip(self.repair.chunks_exact(symbol_len)).collect();
        repair.sort_unstable_by_key(|(index, _)| *index);
        codec.decode(&mut self.bytes, symbol_len, &self.present, &repair).is_ok()
    }
}

/// All blocks under way.
pub(super) struct Assembly {
    symbol_len: usize,
    blocks: BTreeMap<BlockId, Symbols>,
    spare: Vec<Symbols>,
}

impl Assembly {
    pub(super) fn new(symbol_len: u16) -> Self {
        let symbol_len = usize::from(symbol_len);
        Self { symbol_len, blocks: BTreeMap::new(), spare: Vec::new() }
    }

    fn entry(&mut self, block: BlockId, k: u16) -> &mut Symbols {
        let Self { symbol_len, blocks, spare } = self;
        blocks.entry(block).or_insert_with(|| {
            let mut symbols = spare.pop().unwrap_or_default();
            symbols.reset(usize::from(k) * *symbol_len, *symbol_len);
            symbols
        })
    }

    /// A source symbol of a block under way is about to be inserted: its place is brought into the cache meanwhile.
    pub(super) fn expect(&self, block: BlockId, symbol: SymbolId) {
        let at = usize::from(symbol.raw()) * self.symbol_len;
        if symbol.repair_index().is_none()
            && let Some(symbols) = self.blocks.get(&block)
            && let Some(room) = symbols.bytes.get(at..at + self.symbol_len)
        {
            prefetch::for_writing(room);
        }
    }

    /// Keeps a symbol that the machine wants.
    pub(super) fn insert(&mut self, block: BlockId, k: u16, symbol: SymbolId, body: &[u8]) {
        let symbol_len = self.symbol_len;
        self.entry(block, k).insert(symbol, body, symbol_len);
    }

    /// Keeps source symbols from before, where the stream has not brought them already.
    pub(super) fn seed(&mut self, block: BlockId, k: u16, bytes: &[u8], held: &[Range<u16>]) {
        let symbol_len = self.symbol_len;
        let symbols = self.entry(block, k);
        for index in held.iter().cloned().flatten().filter(|i| *i < k.min(BLOCK_SYMBOLS_MAX)) {
            let at = usize::from(index) * symbol_len;
            if let Some(body) = bytes.get(at..at + symbol_len) {
                symbols.insert(SymbolId::source(index), body, symbol_len);
            }
        }
    }

    /// Keeps pulled repair symbols `range` of a block under way.
    pub(super) fn insert_repair(&mut self, block: BlockId, range: Range<u16>, bytes: &[u8]) {
        let symbol_len = self.symbol_len;
        let Some(symbols) = self.blocks.get_mut(&block) else { return };
        for (index, body) in range.zip(bytes.chunks_exact(symbol_len)) {
            symbols.insert(SymbolId::repair(index), body, symbol_len);
        }
    }

    pub(super) fn take(&mut self, block: BlockId) -> Option<Symbols> {
        self.blocks.remove(&block)
    }

    /// Gives a buffer back for reuse.
    pub(super) fn recycle(&mut self, symbols: Symbols) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(symbols);
        }
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        if let Some(symbols) = self.blocks.remove(&block) {
            self.recycle(symbols);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Assembly;
    use downpour_proto::{BlockId, SymbolId};

    /// `docs/protocol.md#PROD-13`.
    #[test]
    fn what_was_cut_is_zeros_whatever_the_buffer_held() {
        let mut assembly = Assembly::new(4);
        let block = |number| BlockId::data(number).unwrap();
        for index in 0..3 {
            assembly.insert(block(0), 3, SymbolId::source(index), &[9; 4]);
        }
        assembly.forget(block(0));
        assembly.insert(block(1), 2, SymbolId::source(1), &[7]);
        assembly.insert(block(1), 2, SymbolId::source(0), &[8; 4]);
        let symbols = assembly.take(block(1)).unwrap();
        assert_eq!(symbols.bytes, [8, 8, 8, 8, 7, 0, 0, 0]);
    }
}
