//! The bytes of the blocks that a sender has open: source symbols as they were read or lie at hand, repair as it was made.
//!
//! What lies at hand is not copied, so its last symbol may end early; only for coding are the zeros added.

use crate::{Encoder, Part};
use downpour_proto::{BLOCK_SYMBOLS_MAX, Code};
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
}

/// The bytes of an open block.
pub(super) struct Loaded {
    pub(super) source: Source,
    /// First repair index and symbols, in order of index.
    repair: Vec<(u16, Vec<u8>)>,
}

impl Loaded {
    /// Without repair so far.
    pub(super) const fn new(source: Source) -> Self {
        Self { source, repair: Vec::new() }
    }

    /// Repair symbols from index `from` on were made.
    pub(super) fn encoded(&mut self, from: u16, symbols: Vec<u8>) {
        self.repair.push((from, symbols));
    }

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

    /// The buffer that the source was read into, if nobody else uses it.
    pub(super) fn into_buffer(self) -> Option<Vec<u8>> {
        match self.source {
            Source::Read(bytes) => Arc::try_unwrap(bytes).ok(),
            Source::AtHand(_) => None,
        }
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
    encoder: Encoder,
    symbol_len: usize,
    /// Room for a block with the zeros after it.
    padded: Vec<u8>,
}

impl Coder {
    pub(super) fn new(code: Code, symbol_len: usize) -> Self {
        Self { encoder: Encoder::new(code), symbol_len, padded: Vec::new() }
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
        let made = self.encoder.encode(source, symbol_len, range, &mut symbols);
        debug_assert!(made.is_ok(), "{made:?}");
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::{Coder, Loaded, Source, tail};
    use crate::Roll;
    use downpour_proto::{BLOCK_SYMBOLS_MAX, Code};
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
        let mut loaded = Loaded::new(at_hand);
        assert_eq!(loaded.symbol(4, 20, 10), Some(&(80..90).collect::<Vec<u8>>()[..]));
        assert_eq!(loaded.symbol(BLOCK_SYMBOLS_MAX + 1, 20, 20), None);
        loaded.encoded(0, repair.clone());
        assert_eq!(loaded.symbol(BLOCK_SYMBOLS_MAX + 1, 20, 20), Some(&repair[20..40]));
        assert!(loaded.into_buffer().is_none());
        assert_eq!(Loaded::new(read).into_buffer().map(|buffer| buffer.len()), Some(100));
    }
}
