//! The bytes of the blocks that a sender has open: source symbols as they were read or lie at hand, repair as it was made.
//!
//! What lies at hand is not copied, so its last symbol may end early; only for coding are the zeros added.
//!
//! A block that was closed may be opened again while workers still read it or make repair of it. The bytes that came first
//! are kept, and repair counts that was made of them: the machine has asked for no other.

use crate::{Codec, Part};
use downpour_proto::{BLOCK_SYMBOLS_MAX, BlockId, Code};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A block's source symbols.
#[derive(Clone)]
pub(super) enum Source {
    /// All of them.
    Read(Arc<Vec<u8>>),
    /// Without zeros after the last.
    AtHand(Part),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::AtHand(bytes) => bytes,
        }
    }

    /// The buffer that it was read into, if nobody else uses it.
    pub(super) fn into_buffer(self) -> Option<Vec<u8>> {
        match self {
            Self::Read(bytes) => Arc::try_unwrap(bytes).ok(),
            Self::AtHand(_) => None,
        }
    }
}

/// Which of a session's loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load(u64);

/// The bytes of an open block.
pub(super) struct Loaded {
    pub(super) load: Load,
    pub(super) source: Source,
    /// First repair index and symbols, in order of index.
    repair: Vec<(u16, Vec<u8>)>,
}

/// The open blocks that are loaded.
#[derive(Default)]
pub(super) struct LoadedBlocks {
    blocks: BTreeMap<BlockId, Loaded>,
    loads: u64,
}

impl LoadedBlocks {
    /// A block was loaded, without repair so far. Gives the bytes back if it is there already.
    pub(super) fn insert(&mut self, block: BlockId, source: Source) -> Result<(), Source> {
        if self.blocks.contains_key(&block) {
            return Err(source);
        }
        self.loads += 1;
        self.blocks.insert(block, Loaded { load: Load(self.loads), source, repair: Vec::new() });
        Ok(())
    }

    /// Repair symbols from index `from` on were made of this load; false when it is there no more.
    pub(super) fn encoded(
        &mut self,
        block: BlockId,
        load: Load,
        from: u16,
        symbols: Vec<u8>,
    ) -> bool {
        let loaded = self.blocks.get_mut(&block).filter(|loaded| loaded.load == load);
        loaded.map(|loaded| loaded.repair.push((from, symbols))).is_some()
    }

    pub(super) fn get(&self, block: BlockId) -> Option<&Loaded> {
        self.blocks.get(&block)
    }

    pub(super) fn remove(&mut self, block: BlockId) -> Option<Loaded> {
        self.blocks.remove(&block)
    }
}

impl Loaded {
    /// The first `len` bytes of a symbol; `None` while it is not there.
    pub(super) fn symbol(&self, symbol: u16, symbol_len: usize, len: usize) -> Option<&[u8]> {
        let (bytes, index) = match symbol.checked_sub(BLOCK_SYMBOLS_MAX) {
            None => (self.source.bytes(), symbol),
            Some(index) => {
                let (from, symbols) = self.repair.iter().rev().find(|(from, _)| *from <= index)?;
                (&symbols[..], index - from)
            }
        };
        bytes.get(usize::from(index) * symbol_len..)?.get(..len)
    }
}

/// Bytes of a block's last symbol but for the zeros that it ends with.
pub(super) fn tail(bytes: &[u8], symbol_len: usize) -> u16 {
    let last = bytes.chunks(symbol_len).next_back().unwrap_or_default();
    // A symbol's length is a u16.
    last.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u16 + 1)
}

/// Makes repair symbols, on a worker.
pub(super) struct Coder {
    codec: Codec,
    symbol_len: usize,
    /// Room for a block with the zeros after it.
    padded: Vec<u8>,
}

impl Coder {
    pub(super) fn new(code: Code, symbol_len: usize) -> Self {
        Self { codec: Codec::new(code), symbol_len, padded: Vec::new() }
    }

    pub(super) fn encode(&mut self, source: &Source, range: Range<u16>) -> Vec<u8> {
        let symbol_len = self.symbol_len;
        let mut symbols = vec![0; range.len() * symbol_len];
        let mut source = source.bytes();
        if !source.len().is_multiple_of(symbol_len) {
            self.padded.clear();
            self.padded.extend_from_slice(source);
            self.padded.resize(source.len().next_multiple_of(symbol_len), 0);
            source = &self.padded;
        }
        // The arguments are the machine's, whose ranges are within the code's.
        let made = self.codec.encode(source, symbol_len, range, &mut symbols);
        debug_assert!(made.is_ok(), "{made:?}");
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::{Coder, LoadedBlocks, Source, tail};
    use crate::Roll;
    use downpour_proto::{BLOCK_SYMBOLS_MAX, BlockId, Code};
    use std::sync::Arc;

    #[test]
    fn only_zeros_at_the_end_of_the_last_symbol_are_cut() {
        assert_eq!(tail(&[1, 1, 1, 1, 0, 5, 0, 0], 4), 2);
        assert_eq!(tail(&[1, 1, 1, 1, 0, 5, 0, 6], 4), 4);
        assert_eq!(tail(&[1, 0, 0, 0, 0, 0, 0, 0], 4), 0);
        assert_eq!(tail(&[1, 1, 1, 1, 0, 5, 0], 4), 2, "not all of them are there");
    }

    #[test]
    fn what_lies_at_hand_is_coded_as_what_was_read() {
        let mut bytes: Vec<u8> = (0..90).collect();
        let mut roll = Roll::new(100).unwrap();
        roll.append(&bytes);
        let at_hand = Source::AtHand(roll.cut());
        bytes.resize(100, 0);
        let read = Source::Read(Arc::new(bytes));
        let mut coder = Coder::new(Code::Mixed, 20);
        let repair = coder.encode(&read, 0..3);
        assert_eq!(coder.encode(&at_hand, 0..3), repair);
        let (mut blocks, block) = (LoadedBlocks::default(), BlockId::data(0).unwrap());
        assert!(blocks.insert(block, at_hand).is_ok());
        let loaded = blocks.get(block).unwrap();
        assert_eq!(loaded.symbol(4, 20, 10), Some(&(80..90).collect::<Vec<u8>>()[..]));
        assert_eq!(loaded.symbol(BLOCK_SYMBOLS_MAX + 1, 20, 20), None);
        let load = loaded.load;
        assert!(blocks.encoded(block, load, 0, repair.clone()));
        let loaded = blocks.remove(block).unwrap();
        assert_eq!(loaded.symbol(BLOCK_SYMBOLS_MAX + 1, 20, 20), Some(&repair[20..40]));
        assert!(loaded.source.into_buffer().is_none());
        assert_eq!(read.into_buffer().map(|buffer| buffer.len()), Some(100));
    }

    #[test]
    fn what_comes_late_of_a_block_that_was_opened_again_changes_nothing() {
        let (mut blocks, block) = (LoadedBlocks::default(), BlockId::data(0).unwrap());
        let source = |byte| Source::Read(Arc::new(vec![byte; 40]));
        assert!(blocks.insert(block, source(1)).is_ok());
        let first = blocks.get(block).unwrap().load;
        assert!(blocks.remove(block).is_some());
        assert!(!blocks.encoded(block, first, 0, vec![9; 20]), "closed");
        assert!(blocks.insert(block, source(2)).is_ok());
        let second = blocks.get(block).unwrap().load;
        assert!(blocks.encoded(block, second, 0, vec![2; 20]));
        assert!(!blocks.encoded(block, first, 0, vec![9; 20]), "opened again");
        let again = blocks.insert(block, source(3)).unwrap_err();
        assert_eq!(again.into_buffer(), Some(vec![3; 40]));
        let loaded = blocks.get(block).unwrap();
        assert_eq!(loaded.symbol(0, 20, 1), Some(&[2][..]));
        assert_eq!(loaded.symbol(BLOCK_SYMBOLS_MAX, 20, 1), Some(&[2][..]));
    }
}
