//! The 8-byte header that a symbol travels with (`docs/protocol.md#WIRE-9`).
//!
//! ```text
//!  bit 63  62          61         60       44       34       24              0
//!  | 1     | epoch's 1 | manifest | block 16 | k-1 10 | sym 11 | packet number 24 |
//! ```
//!
//! The low bits of what the receiver knows nearly: of the epoch, the block's number and the packet number. It makes the
//! whole header of them ([`Short::lengthen`]), and that is what the seal authenticates: a wrong guess opens nothing.

use super::ParseError;
use super::header::{Header, Kind, TAG_LEN};
use crate::ids::{BlockId, BlockKind, Epoch, StreamId, SymbolId};

/// Bytes of a symbol's header on the wire.
pub const SHORT_LEN: usize = 8;

const SHORT: u64 = 1 << 63;
const EPOCH_AT: u32 = 62;
const MANIFEST_AT: u32 = 61;
const BLOCK_AT: u32 = 45;
const BLOCK_BITS: u32 = 16;
const K_AT: u32 = 35;
const PACKET_BITS: u32 = 24;

/// A symbol's header as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short(u64);

/// What a receiver knows of a stream, near enough to tell what the missing bits are.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    /// Whose stream.
    pub stream: StreamId,
    /// Its epoch, of which a symbol tells the lowest bit.
    pub epoch: Epoch,
    /// The packet number that is expected next.
    pub packet: u64,
    /// Numbers of blocks that are sent now, of data and of the manifest.
    pub blocks: [u32; 2],
}

impl Short {
    /// Whether `datagram` begins with one.
    pub fn begins(datagram: &[u8]) -> bool {
        datagram.first().is_some_and(|first| first >> 7 == 1)
    }

    /// Reads it at the front of `datagram`, which must also have room for the tag.
    pub fn parse(datagram: &[u8]) -> Result<Self, ParseError> {
        if datagram.len() < SHORT_LEN + TAG_LEN {
            return Err(ParseError::Truncated);
        }
        let bytes = datagram.first_chunk().ok_or(ParseError::Truncated)?;
        let short = Self(u64::from_be_bytes(*bytes));
        if short.0 & SHORT == 0 {
            return Err(ParseError::UnknownType);
        }
        short.symbol().map(|_| short)
    }

    /// Of a symbol's header; others have none.
    pub fn of(header: &Header) -> Option<Self> {
        let Kind::Symbol { block, k, symbol } = header.kind else { return None };
        let number = u64::from(block.number()) & ((1 << BLOCK_BITS) - 1);
        let packet = u64::from(header.packet_low) & ((1 << PACKET_BITS) - 1);
        Some(Self(
            SHORT
                | u64::from(header.epoch.0 & 1) << EPOCH_AT
                | u64::from(block.kind() == BlockKind::Manifest) << MANIFEST_AT
                | number << BLOCK_AT
                | u64::from(k - 1) << K_AT
                | u64::from(symbol.raw()) << PACKET_BITS
                | packet,
        ))
    }

    /// Its bytes.
    pub const fn emit(self) -> [u8; SHORT_LEN] {
        self.0.to_be_bytes()
    }

    /// The whole header, as far as `near` is right.
    pub fn lengthen(self, near: &Near) -> Result<Header, ParseError> {
        let bits = |at: u32, count: u32| self.0 >> at & ((1 << count) - 1);
        let manifest = bits(MANIFEST_AT, 1);
        let number = nearest(
            u64::from(near.blocks[manifest as usize]),
            bits(BLOCK_AT, BLOCK_BITS),
            BLOCK_BITS,
        );
        let number = u32::try_from(number).map_err(|_| ParseError::BadField)?;
        let block = match manifest {
            0 => BlockId::data(number),
            _ => BlockId::manifest(number),
        };
        let (k, symbol) = self.symbol()?;
        Ok(Header {
            epoch: Epoch(near.epoch.0 & !1 | bits(EPOCH_AT, 1) as u8),
            stream: near.stream,
            packet_low: nearest(near.packet, bits(0, PACKET_BITS), PACKET_BITS) as u32,
            kind: Kind::Symbol { block: block.ok_or(ParseError::BadField)?, k, symbol },
        })
    }

    /// k and which symbol.
    fn symbol(self) -> Result<(u16, SymbolId), ParseError> {
        let k = (self.0 >> K_AT & 0x3FF) as u16 + 1;
        let symbol = SymbolId::from_raw((self.0 >> PACKET_BITS & 0x7FF) as u16);
        let symbol = symbol.ok_or(ParseError::BadField)?;
        if symbol.repair_index().is_none() && symbol.raw() >= k {
            return Err(ParseError::BadField);
        }
        Ok((k, symbol))
    }
}

/// The number nearest to `expected` whose low `bits` bits are `low`.
pub fn nearest(expected: u64, low: u64, bits: u32) -> u64 {
    let span = 1 << bits;
    let same = (expected & !(span - 1)) | low;
    if expected.saturating_sub(same) >= span / 2 {
        same.checked_add(span).unwrap_or(same)
    } else if same.saturating_sub(expected) > span / 2 {
        same.checked_sub(span).unwrap_or(same)
    } else {
        same
    }
}

#[cfg(test)]
mod tests {
    use super::{Near, SHORT_LEN, Short, nearest};
    use crate::ids::{BlockId, Epoch, StreamId, SymbolId};
    use crate::wire::{Header, Kind, ParseError, TAG_LEN};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    const NEAR: Near =
        Near { stream: StreamId(7), epoch: Epoch(4), packet: (5 << 32) + 10, blocks: [70_000, 3] };

    fn header(epoch: u8, packet: u64, block: BlockId, k: u16, symbol: SymbolId) -> Header {
        let (epoch, stream) = (Epoch(epoch), NEAR.stream);
        Header { epoch, stream, packet_low: packet as u32, kind: Kind::Symbol { block, k, symbol } }
    }

    fn datagram(short: Short) -> [u8; SHORT_LEN + TAG_LEN] {
        let mut datagram = [0; SHORT_LEN + TAG_LEN];
        datagram[..SHORT_LEN].copy_from_slice(&short.emit());
        datagram
    }

    // docs/protocol.md#WIRE-9
    proptest! {
        #[test]
        fn what_is_near_is_made_whole(
            packet in NEAR.packet - (1 << 22)..NEAR.packet + (1 << 22),
            ahead in 0u32..32_000, manifest: bool, other: bool,
            k in 1u16..=1024, source in 0u16..1024, repair: bool,
        ) {
            let block = if manifest { BlockId::manifest(3 + ahead) } else { BlockId::data(60_000 + ahead) };
            let symbol =
                if repair { SymbolId::repair(source) } else { SymbolId::source(source % k) };
            let header = header(4 + u8::from(other), packet, block.unwrap(), k, symbol);
            let short = Short::of(&header).unwrap();
            prop_assert_eq!(Short::parse(&datagram(short)), Ok(short));
            prop_assert_eq!(short.lengthen(&NEAR), Ok(header));
        }

        #[test]
        fn any_bytes_are_whole_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(short) = Short::parse(&bytes) {
                prop_assert_eq!(&short.emit()[..], &bytes[..SHORT_LEN]);
                prop_assert!(Short::begins(&bytes));
                if let Ok(header) = short.lengthen(&NEAR) {
                    prop_assert_eq!(Short::of(&header), Some(short));
                }
            }
        }
    }

    #[test]
    fn other_headers_and_source_symbols_past_k_are_refused() {
        let block = BlockId::data(1).unwrap();
        let past = Short::of(&header(0, 1, block, 4, SymbolId::source(4))).unwrap();
        assert_eq!(Short::parse(&datagram(past)), Err(ParseError::BadField));
        let symbol = header(0, 1, block, 4, SymbolId::source(3));
        let whole = Short::of(&symbol).unwrap();
        assert_eq!(Short::parse(&datagram(whole)[1..]), Err(ParseError::Truncated));
        assert_eq!(Short::of(&Header { kind: Kind::Poll, ..symbol }), None);
        assert_eq!(Short::parse(&[1; 40]), Err(ParseError::UnknownType));
    }

    #[test]
    fn the_number_is_the_nearest() {
        for (expected, low, full) in [
            (1, 1, 1),
            (1, 0xffff_ffff, 0xffff_ffff),
            (1 << 32, 0, 1 << 32),
            ((1 << 32) + 1, 0xffff_ffff, 0xffff_ffff),
            ((7 << 32) + 101, 99, (7 << 32) + 99),
            (u64::MAX, 5, u64::MAX - 0xffff_ffff + 5),
        ] {
            assert_eq!(nearest(expected, low, 32), full, "{expected} {low}");
        }
        assert_eq!(nearest(65_536 + 5, 65_535, 16), 65_535);
        assert_eq!(nearest(5, 65_535, 16), 65_535, "numbers are not below nothing");
    }
}
