//! The erasure codes: source symbols of a block in, repair symbols out, and back.
//!
//! Each is systematic, and any k of a block's source and repair symbols rebuild it (`docs/protocol.md#CODE-1`). A
//! session's [`Code`] says which a block is in: `reed_solomon` for large blocks, which needs the fewest repair symbols,
//! or `cauchy` for small ones, which costs the least work.
//!
//! How: [`Codec::encode`] takes a whole block and writes a range of its repair symbols: few at a time, as many as
//! [`Code::encode_batch`] says, to be kept. [`Codec::decode`] takes the block with holes and the repair symbols that
//! came, and fills the holes in place.
//!
//! Invariants:
//! - Repair symbol i of a block is the same whatever range it was asked for in, and the decoder needs no
//!   agreement with the encoder but the code, k and T.
//! - A block is as good as the symbols fed in: false symbols give false bytes. The digests find that.
//!
//! Not here: which symbols to make or keep (`downpour_proto`).

mod cauchy;
mod gf256;
mod kernel;
mod reed_solomon;
#[cfg(test)]
mod tests;
mod transform;
#[cfg(target_arch = "x86_64")]
mod vectors;

use downpour_proto::{BLOCK_SYMBOLS_MAX, Code};
use kernel::Kernel;
use reed_solomon::ReedSolomon;
use std::fmt;
use std::ops::Range;

/// A set of source symbols of one block.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SymbolSet([u64; SET_WORDS]);

const SET_WORDS: usize = BLOCK_SYMBOLS_MAX as usize / 64;

impl SymbolSet {
    /// Nothing.
    pub const EMPTY: Self = Self([0; SET_WORDS]);

    /// Adds source symbol `index`; whether it was absent. An index beyond a block is never added.
    pub fn insert(&mut self, index: u16) -> bool {
        let Some(word) = self.0.get_mut(usize::from(index) / 64) else { return false };
        let bit = 1 << (index % 64);
        let absent = *word & bit == 0;
        *word |= bit;
        absent
    }

    /// Whether source symbol `index` is in the set.
    pub fn contains(&self, index: u16) -> bool {
        self.0.get(usize::from(index) / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// How many there are.
    pub fn len(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; SET_WORDS]
    }
}

impl fmt::Debug for SymbolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SymbolSet({} symbols)", self.len())
    }
}

/// What was wrong with a call; each is a mistake of the caller, for the machine never asks for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecError {
    /// The block is not 1 ..= K symbols of one length that the code takes, or a symbol has another length.
    Shape,
    /// A repair index beyond the code's, or a range that runs backwards.
    RepairIndex,
    /// Fewer than k distinct symbols.
    TooFew,
    /// The same repair symbol twice.
    Twice,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => {
                "the block is not of as many symbols, or of such a length, as the code takes"
            }
            Self::RepairIndex => "repair index out of range",
            Self::TooFew => "fewer symbols than the block's source symbols",
            Self::Twice => "the same repair symbol twice",
        })
    }
}

impl std::error::Error for CodecError {}

/// Source symbols of a block of `len` bytes; checks what the code needs.
fn source_symbols(code: Code, len: usize, symbol_len: usize) -> Result<u16, CodecError> {
    if symbol_len == 0 || len == 0 || !len.is_multiple_of(symbol_len) {
        return Err(CodecError::Shape);
    }
    let k = len / symbol_len;
    if k > usize::from(code.block_symbols_max()) {
        return Err(CodecError::Shape);
    }
    let k = k as u16;
    let fits = code.is_cauchy(k) || symbol_len.is_multiple_of(2);
    if fits { Ok(k) } else { Err(CodecError::Shape) }
}

/// Makes repair symbols, and fills the holes of blocks. Keeps its working space between calls.
pub struct Codec {
    code: Code,
    reed_solomon: ReedSolomon,
    kernel: Kernel,
}

impl Codec {
    /// No working space yet.
    pub fn new(code: Code) -> Self {
        Self { code, reed_solomon: ReedSolomon::default(), kernel: Kernel::best() }
    }

    /// Writes the repair symbols `range` of the block `source` (k·T bytes) into `out`, which must be as
    /// long as they are.
    pub fn encode(
        &mut self,
        source: &[u8],
        symbol_len: usize,
        range: Range<u16>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let k = source_symbols(self.code, source.len(), symbol_len)?;
        if range.start > range.end || range.end > self.code.repair_max(k) {
            return Err(CodecError::RepairIndex);
        }
        if out.len() != range.len() * symbol_len {
            return Err(CodecError::Shape);
        }
        if range.is_empty() {
            return Ok(());
        }
        if self.code.is_cauchy(k) {
            cauchy::encode(self.kernel, source, symbol_len, range, out);
            return Ok(());
        }
        self.reed_solomon.coder().encode(source, (k, symbol_len), range, out);
        Ok(())
    }

    /// Fills in `block` (k·T bytes) every source symbol that is not in `present`, from those that are and
    /// from `repair`: pairs of repair index and symbol. On an error the block is as it was.
    ///
    /// Only as many repair symbols as are needed are used; lower indices decode faster, so give them first.
    pub fn decode(
        &mut self,
        block: &mut [u8],
        symbol_len: usize,
        present: &SymbolSet,
        repair: &[(u16, &[u8])],
    ) -> Result<(), CodecError> {
        let k = source_symbols(self.code, block.len(), symbol_len)?;
        let holes = (0..k).filter(|index| !present.contains(*index)).count();
        if holes == 0 {
            return Ok(());
        }
        let repair = repair.get(..holes).ok_or(CodecError::TooFew)?;
        if repair.iter().any(|(index, _)| *index >= self.code.repair_max(k)) {
            return Err(CodecError::RepairIndex);
        }
        if repair.iter().any(|(_, symbol)| symbol.len() != symbol_len) {
            return Err(CodecError::Shape);
        }
        if self.code.is_cauchy(k) {
            return cauchy::decode(self.kernel, block, symbol_len, present, repair);
        }
        self.reed_solomon.coder().decode(block, (k, symbol_len), present, repair)
    }
}
