//! Identities on the wire.
//!
//! Each is a newtype, so that a block number cannot be given where a symbol number is meant. The
//! widths are those of the datagram header (`docs/protocol.md#WIRE-2`).

use crate::code::Code;
use crate::wire::{HEADER_LEN, ParseError, SHORT_LEN, TAG_LEN};
use core::fmt;

/// Largest number of source symbols in a block that the wire has room for; a code may take fewer.
pub const BLOCK_SYMBOLS_MAX: u16 = 1024;

/// The same of distinct repair symbols.
pub const REPAIR_SYMBOLS_MAX: u16 = 1024;

/// Which of the two numbered sequences of a session a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockKind {
    /// Bytes of the objects: block `n` is bytes `n·K·T ..` of the data space.
    Data,
    /// Bytes of the manifest's signed sections.
    Manifest,
}

/// A block of a session: its kind and its number within that kind. 27 bits on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);

impl BlockId {
    /// Numbers are below this, in each kind: 99 TB of data at 1448-byte symbols.
    pub const NUMBER_END: u32 = 1 << 26;
    const MANIFEST_BIT: u32 = 1 << 26;

    /// Block `number` of the data space; `None` when the number has no room on the wire.
    pub const fn data(number: u32) -> Option<Self> {
        if number < Self::NUMBER_END { Some(Self(number)) } else { None }
    }

    /// Block `number` of the manifest; `None` when the number has no room on the wire.
    pub const fn manifest(number: u32) -> Option<Self> {
        if number < Self::NUMBER_END { Some(Self(number | Self::MANIFEST_BIT)) } else { None }
    }

    /// From the 27 bits of the header; `None` when higher bits are set.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        if raw < 2 * Self::NUMBER_END { Some(Self(raw)) } else { None }
    }

    /// The 27 bits of the header.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Which sequence the block belongs to.
    pub const fn kind(self) -> BlockKind {
        if self.0 & Self::MANIFEST_BIT == 0 { BlockKind::Data } else { BlockKind::Manifest }
    }

    /// The block's number within its kind.
    pub const fn number(self) -> u32 {
        self.0 & (Self::MANIFEST_BIT - 1)
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            BlockKind::Data => 'd',
            BlockKind::Manifest => 'm',
        };
        write!(f, "{kind}{}", self.number())
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A symbol of a block: `0..k` are source symbols, [`BLOCK_SYMBOLS_MAX`]` + i` is repair symbol `i`.
/// 11 bits on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymbolId(u16);

impl SymbolId {
    /// Ids are below this.
    pub const END: u16 = BLOCK_SYMBOLS_MAX + REPAIR_SYMBOLS_MAX;

    /// Source symbol `index`.
    ///
    /// # Panics
    /// If `index` is not below [`BLOCK_SYMBOLS_MAX`]: the caller's bug.
    pub const fn source(index: u16) -> Self {
        assert!(index < BLOCK_SYMBOLS_MAX);
        Self(index)
    }

    /// Repair symbol `index`.
    ///
    /// # Panics
    /// If `index` is not below [`REPAIR_SYMBOLS_MAX`]: the caller's bug.
    pub const fn repair(index: u16) -> Self {
        assert!(index < REPAIR_SYMBOLS_MAX);
        Self(BLOCK_SYMBOLS_MAX + index)
    }

    /// From the 11 bits of the header; `None` when higher bits are set.
    pub const fn from_raw(raw: u16) -> Option<Self> {
        if raw < Self::END { Some(Self(raw)) } else { None }
    }

    /// The 11 bits of the header.
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// `Some(i)` when this is repair symbol `i`, `None` for a source symbol.
    pub const fn repair_index(self) -> Option<u16> {
        self.0.checked_sub(BLOCK_SYMBOLS_MAX)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// A receiver within a session, as numbered by the sender at JOIN. Zero is never given.
    ReceiverId(u32)
);
id!(
    /// A sender's stream: random for each originator and incarnation, never reused.
    StreamId(u32)
);
id!(
    /// Counts every datagram of a stream, from 1. The low 32 bits travel in each header.
    PacketNumber(u64)
);
id!(
    /// Version of the stream's key; a session has one.
    Epoch(u8)
);
id!(
    /// Number of a poll, from 1.
    Round(u32)
);

/// The fixed sizes of a session, told at JOIN and in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a symbol, T. Even, because one of the codes works on 16-bit words.
    pub symbol_len: u16,
    /// Source symbols in a full block, K; at most [`Code::block_symbols_max`].
    pub block_symbols: u16,
    /// What blocks are coded in.
    pub code: Code,
}

impl Geometry {
    /// 1448-byte symbols and K = 1024: MTU 1500 on IPv4.
    pub const IPV4: Self = Self::full(1448, Code::ReedSolomon);
    /// 1428-byte symbols and K = 1024: MTU 1500 on IPv6.
    pub const IPV6: Self = Self::full(1428, Code::ReedSolomon);

    /// With blocks as large as `code` takes.
    pub const fn full(symbol_len: u16, code: Code) -> Self {
        Self { symbol_len, block_symbols: code.block_symbols_max(), code }
    }

    /// Whether a block may have `k` source symbols, and this symbol, of `len` bytes. `cut`: its last source symbol may
    /// come without the zeros that it ends with (`docs/protocol.md#PROD-13`).
    pub(crate) fn check(
        self,
        k: u16,
        symbol: SymbolId,
        len: usize,
        cut: bool,
    ) -> Result<(), ParseError> {
        let repair = symbol.repair_index().unwrap_or(0);
        let full = usize::from(self.symbol_len);
        let is_cut = cut && symbol.raw() + 1 == k && (1..full).contains(&len);
        if len != full && !is_cut {
            return Err(ParseError::Truncated);
        }
        if k > self.block_symbols || repair >= self.code.repair_max(k) {
            return Err(ParseError::BadField);
        }
        Ok(())
    }

    /// Bytes of a symbol's datagram: the longest that a session sends.
    pub const fn datagram_len(self) -> usize {
        SHORT_LEN + self.symbol_len as usize + TAG_LEN
    }

    /// Bytes of a probe's body: its datagram is as long as a symbol's (`docs/protocol.md#WIRE-7`).
    pub const fn probe_len(self) -> usize {
        self.datagram_len().saturating_sub(HEADER_LEN + TAG_LEN)
    }

    /// Bytes in a full block, K·T.
    pub const fn block_len(self) -> u64 {
        self.symbol_len as u64 * self.block_symbols as u64
    }

    /// Number of blocks that `len` bytes fill.
    pub const fn blocks(self, len: u64) -> u64 {
        len.div_ceil(self.block_len())
    }

    /// Source symbols of block `number` of a sequence of `len` bytes in all; 0 past its end.
    pub const fn symbols_of(self, number: u32, len: u64) -> u16 {
        let start = number as u64 * self.block_len();
        if start >= len {
            return 0;
        }
        let rest = (len - start).div_ceil(self.symbol_len as u64);
        if rest > self.block_symbols as u64 { self.block_symbols } else { rest as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockId, BlockKind, Geometry, SymbolId};

    #[test]
    fn block_ids_keep_kind_and_number() {
        for number in [0, 1, BlockId::NUMBER_END - 1] {
            let data = BlockId::data(number).unwrap();
            let manifest = BlockId::manifest(number).unwrap();
            assert_eq!((data.kind(), data.number()), (BlockKind::Data, number));
            assert_eq!((manifest.kind(), manifest.number()), (BlockKind::Manifest, number));
            assert_eq!(BlockId::from_raw(manifest.raw()), Some(manifest));
        }
        assert_eq!(BlockId::data(BlockId::NUMBER_END), None);
        assert_eq!(BlockId::from_raw(1 << 27), None);
    }

    // docs/protocol.md#CODE-2
    #[test]
    fn the_last_block_is_as_small_as_it_needs_to_be() {
        let g = Geometry::IPV4;
        assert_eq!(g.symbols_of(0, 133), 1);
        assert_eq!(g.symbols_of(0, g.block_len()), 1024);
        assert_eq!(g.symbols_of(1, g.block_len()), 0);
        assert_eq!(g.symbols_of(1, g.block_len() + 1449), 2);
        assert_eq!(g.blocks(g.block_len() + 1), 2);
    }

    #[test]
    fn symbol_ids_split_source_and_repair() {
        assert_eq!(SymbolId::source(7).repair_index(), None);
        assert_eq!(SymbolId::repair(7).repair_index(), Some(7));
        assert_eq!(SymbolId::from_raw(2048), None);
    }
}
