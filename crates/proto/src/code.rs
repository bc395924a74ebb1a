//! Which erasure code a session's blocks are in (`docs/protocol.md#CODE-1`).
//!
//! Only its limits stand here; the machines work on symbol numbers, whatever the code.

/// An erasure code, and with it the largest block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Code {
    /// Over GF(2^16): 1024 source symbols, the least repair. Decoding costs the same whatever was lost.
    #[default]
    ReedSolomon,
    /// By a Cauchy matrix over GF(2^8): 128 source symbols. Decoding costs little where little was lost.
    Cauchy,
    /// Blocks of at most 128 source symbols as in `Cauchy`, larger ones as in `ReedSolomon`, whose work does not
    /// become less with the block.
    Mixed,
}

/// Source symbols, and repair symbols, of the Cauchy code.
const CAUCHY_SYMBOLS: u16 = 128;

impl Code {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::ReedSolomon, Self::Cauchy, Self::Mixed];

    /// What users call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReedSolomon => "rs",
            Self::Cauchy => "cauchy",
            Self::Mixed => "mixed",
        }
    }

    /// The number by which it is told at JOIN.
    pub const fn number(self) -> u8 {
        match self {
            Self::ReedSolomon => 1,
            Self::Cauchy => 2,
            Self::Mixed => 3,
        }
    }

    /// The code of this number; `None` for one that is not known here.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.number() == number)
    }

    /// Most source symbols in a block.
    pub const fn block_symbols_max(self) -> u16 {
        match self {
            Self::ReedSolomon | Self::Mixed => 1024,
            Self::Cauchy => CAUCHY_SYMBOLS,
        }
    }

    /// Whether a block of `k` source symbols is coded by the Cauchy matrix.
    pub const fn is_cauchy(self, k: u16) -> bool {
        match self {
            Self::ReedSolomon => false,
            Self::Cauchy => true,
            Self::Mixed => k <= CAUCHY_SYMBOLS,
        }
    }

    /// Distinct repair symbols of a block of `k` source symbols; beyond them a receiver pulls.
    pub const fn repair_max(self, k: u16) -> u16 {
        if self.is_cauchy(k) { CAUCHY_SYMBOLS } else { 1024 }
    }

    /// Distinct symbols of a block of `k` source symbols.
    pub const fn symbols_max(self, k: u16) -> u16 {
        k + self.repair_max(k)
    }

    /// Blocks that the sender keeps open at most. The smaller ones must be more: 2.2 rounds of 10 Gbit/s, and as long
    /// as blocks take to settle, are 40 MB.
    pub const fn window_blocks(self) -> usize {
        match self {
            Self::ReedSolomon | Self::Mixed => 128,
            Self::Cauchy => crate::sender::WINDOW_BLOCKS_MAX,
        }
    }

    /// Repair symbols that are best made at a time: about what a block at 5 % loss needs, and little to throw away.
    /// Each of the Cauchy code costs as much by itself; of the other 128 cost hardly more than one.
    pub const fn encode_batch(self, k: u16) -> u16 {
        if self.is_cauchy(k) { 8 } else { 128 }
    }
}

const _: () = {
    assert!(Code::ReedSolomon.block_symbols_max() <= crate::ids::BLOCK_SYMBOLS_MAX);
    assert!(Code::ReedSolomon.repair_max(1024) <= crate::ids::REPAIR_SYMBOLS_MAX);
    assert!(Code::ReedSolomon.window_blocks() <= crate::sender::WINDOW_BLOCKS_MAX);
    // All symbols are different elements of GF(2^8).
    assert!(2 * CAUCHY_SYMBOLS <= 256);
};
