//! Polls and repair advertisements, from the sender to all (`docs/protocol.md#WIRE-4`, `#WIRE-5`).
//!
//! A poll opens a round: it says what was sent, what repair is already on its way, and who shall answer.
//! An advertisement repeats only the list of blocks, at once after a NACK, so that others who wait to
//! ask for the same keep silent.

use super::ParseError;
use super::header::{HEADER_LEN, TAG_LEN};
use super::reader::{Reader, put_varint};
use crate::ids::{BLOCK_SYMBOLS_MAX, BlockId, PacketNumber, ReceiverId, Round, SymbolId};
use crate::time::{Duration, Timestamp};
use alloc::vec::Vec;

/// Most open blocks that a poll or an advertisement lists; the sender's window is no larger. Their usual entry is of
/// three bytes.
pub const POLL_BLOCKS_MAX: usize = 448;

/// Bytes of a poll before its list.
const POLL_FIXED_LEN: usize = 49;
/// Most bytes of a list, whatever T is. A full poll is no longer than IPv6's datagrams at MTU 1500.
const LIST_LEN_MAX: usize = 1420 - POLL_FIXED_LEN;
/// Most bytes of one block in it.
pub(crate) const ENTRY_LEN_MAX: usize = 5 + 2 + 2 + 2;
const _: () = assert!(2 + 3 * POLL_BLOCKS_MAX <= LIST_LEN_MAX);

/// The state of an open block at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenBlock {
    /// Which block.
    pub block: BlockId,
    /// Its source symbols, 1 ..= 1024.
    pub k: u16,
    /// Symbols of it sent before this message, source and repair; 0 ..= 2048.
    pub sent: u16,
    /// Symbols of it that will have been sent when what is planned now is done; ≥ `sent`, ≥ `k`.
    pub planned: u16,
}

impl OpenBlock {
    /// What follows `before` in a list; all is told relative to it, because most blocks are the next of their kind.
    fn emit(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let (next, k) = before.map_or((0, 0), |b| (b.block.raw() + 1, b.k));
        let step = self.block.raw() as i32 - next as i32;
        let step = ((step << 1) ^ (step >> 31)) as u32;
        put_varint(step << 1 | u32::from(self.k != k), out);
        if self.k != k {
            put_varint(self.k.into(), out);
        }
        put_varint((self.planned - self.k).into(), out);
        put_varint((self.planned - self.sent).into(), out);
    }

    fn parse(before: Option<&Self>, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (next, same_k) = before.map_or((0, 0), |b| (b.block.raw() + 1, b.k));
        let first = reader.varint()?;
        let (step, has_k) = (first >> 1, first & 1 == 1);
        let step = (step >> 1) as i32 ^ -((step & 1) as i32);
        let raw = next.checked_add_signed(step).ok_or(ParseError::BadField)?;
        let block = BlockId::from_raw(raw).ok_or(ParseError::BadField)?;
        let k = if has_k { reader.varint()? } else { same_k.into() };
        let (repair, lacking) = (reader.varint()?, reader.varint()?);
        let k_ok = (1..=BLOCK_SYMBOLS_MAX.into()).contains(&k) && has_k == (k != same_k.into());
        let end = u32::from(SymbolId::END);
        if !k_ok || repair > end || k + repair > end || lacking > k + repair {
            return Err(ParseError::BadField);
        }
        // All of them are at most SymbolId::END, a u16.
        let planned = (k + repair) as u16;
        Ok(Self { block, k: k as u16, sent: planned - lacking as u16, planned })
    }
}

/// Most bytes of a list in a session whose symbols' datagrams have `datagram_len`: no poll is longer, so that no path and
/// no receiver takes data but not polls. A block fits always.
pub(crate) fn list_len_max(datagram_len: usize) -> usize {
    let room = datagram_len.saturating_sub(HEADER_LEN + TAG_LEN + POLL_FIXED_LEN);
    room.clamp(2 + ENTRY_LEN_MAX, LIST_LEN_MAX)
}

/// Bytes that a list of these blocks takes.
pub(crate) fn list_len(blocks: impl Iterator<Item = OpenBlock>) -> usize {
    let (mut out, mut before) = (Vec::new(), None);
    for block in blocks {
        block.emit(before.as_ref(), &mut out);
        before = Some(block);
    }
    2 + out.len()
}

/// Those of the blocks that a list of so many bytes has room for; the last are left out.
pub(crate) fn fitting(blocks: impl Iterator<Item = OpenBlock>, len_max: usize) -> Vec<OpenBlock> {
    let (mut out, mut fitting) = (Vec::new(), Vec::new());
    for block in blocks {
        block.emit(fitting.last(), &mut out);
        if 2 + out.len() > len_max {
            break;
        }
        fitting.push(block);
    }
    fitting
}

/// [`fitting`] has seen to it that they fit.
fn emit_blocks(blocks: &[OpenBlock], out: &mut Vec<u8>) {
    debug_assert!(blocks.len() <= POLL_BLOCKS_MAX);
    out.extend_from_slice(&(blocks.len() as u16).to_be_bytes());
    let mut before = None;
    for block in blocks {
        block.emit(before, out);
        before = Some(block);
    }
}

fn parse_blocks(reader: &mut Reader<'_>) -> Result<Vec<OpenBlock>, ParseError> {
    let count = usize::from(reader.u16()?);
    if count > POLL_BLOCKS_MAX {
        return Err(ParseError::BadField);
    }
    let mut blocks: Vec<OpenBlock> = Vec::with_capacity(count);
    for _ in 0..count {
        blocks.push(OpenBlock::parse(blocks.last(), reader)?);
    }
    Ok(blocks)
}

/// Opens a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Number of the round.
    pub round: Round,
    /// Full packet number of this datagram.
    pub packet: PacketNumber,
    /// When it was sent, on the sender's clock.
    pub sent_at: Timestamp,
    /// Receivers on the stream.
    pub group_size: u32,
    /// The group's round trip, to scale back-off by. Whole microseconds on the wire.
    pub grtt: Duration,
    /// Nothing will be opened any more: the block ends are final.
    pub finished: bool,
    /// The current limiting receiver, which always answers.
    pub clr: Option<ReceiverId>,
    /// Who shall leave the multicast group now and pull (`docs/protocol.md#STRAG-5`).
    pub leaves: Option<ReceiverId>,
    /// Share of the receivers that shall answer though they need nothing, in 1/(2^32 − 1).
    pub report_share: u32,
    /// One past the highest data block opened so far.
    pub data_end: u32,
    /// One past the highest manifest block opened so far.
    pub manifest_end: u32,
    /// The open blocks. A block below its end that is not listed is closed: who lacks it pulls.
    pub blocks: Vec<OpenBlock>,
}

impl Poll {
    const FINISHED: u8 = 1;

    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.round.0.to_be_bytes());
        out.extend_from_slice(&self.packet.0.to_be_bytes());
        out.extend_from_slice(&self.sent_at.as_nanos().to_be_bytes());
        out.extend_from_slice(&self.group_size.to_be_bytes());
        let grtt_us = u32::try_from(self.grtt.as_micros()).unwrap_or(u32::MAX);
        out.extend_from_slice(&grtt_us.to_be_bytes());
        out.push(if self.finished { Self::FINISHED } else { 0 });
        for receiver in [self.clr, self.leaves] {
            out.extend_from_slice(&receiver.map_or(0, |id| id.0).to_be_bytes());
        }
        out.extend_from_slice(&self.report_share.to_be_bytes());
        out.extend_from_slice(&self.data_end.to_be_bytes());
        out.extend_from_slice(&self.manifest_end.to_be_bytes());
        emit_blocks(&self.blocks, out);
    }

    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(body);
        let round = Round(reader.u32()?);
        let packet = PacketNumber(reader.u64()?);
        let sent_at = Timestamp::from_nanos(reader.u64()?);
        let group_size = reader.u32()?;
        let grtt = Duration::from_micros(u64::from(reader.u32()?));
        let flags = reader.u8()?;
        let clr = Some(ReceiverId(reader.u32()?)).filter(|id| id.0 != 0);
        let leaves = Some(ReceiverId(reader.u32()?)).filter(|id| id.0 != 0);
        let report_share = reader.u32()?;
        let (data_end, manifest_end) = (reader.u32()?, reader.u32()?);
        let ends_ok = data_end <= BlockId::NUMBER_END && manifest_end <= BlockId::NUMBER_END;
        if flags > Self::FINISHED || !ends_ok {
            return Err(ParseError::BadField);
        }
        let blocks = parse_blocks(&mut reader)?;
        reader.end()?;
        let finished = flags == Self::FINISHED;
        Ok(Self {
            round,
            packet,
            sent_at,
            group_size,
            grtt,
            finished,
            clr,
            leaves,
            report_share,
            data_end,
            manifest_end,
            blocks,
        })
    }
}

/// Says at once what repair a NACK has drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advert {
    /// The blocks whose plan has grown.
    pub blocks: Vec<OpenBlock>,
}

impl Advert {
    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_blocks(&self.blocks, out);
    }

    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(body);
        let blocks = parse_blocks(&mut reader)?;
        reader.end()?;
        Ok(Self { blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Advert, ENTRY_LEN_MAX, LIST_LEN_MAX, OpenBlock, POLL_BLOCKS_MAX, POLL_FIXED_LEN, Poll,
        fitting, list_len, list_len_max,
    };
    use crate::ids::{BlockId, Geometry, PacketNumber, ReceiverId, Round};
    use crate::time::{Duration, Timestamp};
    use crate::wire::{HEADER_LEN, ParseError, TAG_LEN};
    use alloc::vec::Vec;
    use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

    fn open_block() -> impl Strategy<Value = OpenBlock> {
        (0u32..1 << 27, 1u16..=1024, 0u16..=1024, 0u16..=2048).prop_map(|(raw, k, repair, sent)| {
            let (block, planned) = (BlockId::from_raw(raw).unwrap(), k + repair);
            OpenBlock { block, k, sent: sent % (planned + 1), planned }
        })
    }

    /// Blocks as they are mostly: one after another, of one k.
    fn open_blocks() -> impl Strategy<Value = Vec<OpenBlock>> {
        let usual =
            (0u32..1 << 26, 0u16..=127, 0..=POLL_BLOCKS_MAX).prop_map(|(from, repair, count)| {
                let block = |n| BlockId::from_raw(from + n as u32).unwrap();
                let (k, planned) = (128, 128 + repair);
                (0..count)
                    .map(|n| OpenBlock { block: block(n), k, sent: planned, planned })
                    .collect()
            });
        prop_oneof![usual, proptest::collection::vec(open_block(), 0..=120)]
    }

    proptest! {
        #[test]
        fn emitted_polls_parse_to_themselves(
            (round, packet, at, grtt_us, clr, leaves) in any::<(u32, u64, u64, u32, u32, u32)>(),
            (group_size, report_share, finished) in any::<(u32, u32, bool)>(),
            (data_end, manifest_end) in (0u32..=1 << 26, 0u32..=1 << 26),
            blocks in open_blocks(),
        ) {
            let poll = Poll {
                round: Round(round),
                packet: PacketNumber(packet),
                sent_at: Timestamp::from_nanos(at),
                group_size,
                grtt: Duration::from_micros(u64::from(grtt_us)),
                finished,
                clr: (clr != 0).then_some(ReceiverId(clr)),
                leaves: (leaves != 0).then_some(ReceiverId(leaves)),
                report_share,
                data_end,
                manifest_end,
                blocks,
            };
            let mut body = Vec::new();
            poll.emit(&mut body);
            let list_len = list_len(poll.blocks.iter().copied());
            prop_assert_eq!(body.len(), POLL_FIXED_LEN + list_len);
            prop_assert!(list_len <= LIST_LEN_MAX && list_len <= 2 + ENTRY_LEN_MAX * poll.blocks.len());
            prop_assert_eq!(Poll::parse(&body), Ok(poll));
            body.push(0);
            prop_assert_eq!(Poll::parse(&body), Err(ParseError::Trailing));
            body.truncate(body.len() - 2);
            prop_assert_eq!(Poll::parse(&body), Err(ParseError::Truncated));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(poll) = Poll::parse(&body) {
                let mut again = Vec::new();
                poll.emit(&mut again);
                prop_assert_eq!(&again, &body);
            }
            if let Ok(advert) = Advert::parse(&body) {
                let mut again = Vec::new();
                advert.emit(&mut again);
                prop_assert_eq!(&again, &body);
            }
        }
    }

    #[test]
    fn no_poll_is_longer_than_a_symbols_datagram() {
        for symbol_len in [504, 524, 1348, 1428, 1448, 8948] {
            let datagram_len = Geometry { symbol_len, ..Geometry::IPV4 }.datagram_len();
            let poll_len = HEADER_LEN + POLL_FIXED_LEN + list_len_max(datagram_len) + TAG_LEN;
            assert_eq!(poll_len, datagram_len.min(1452));
        }
    }

    #[test]
    fn a_list_that_has_grown_too_long_ends_early() {
        let block = |n: u32| BlockId::from_raw(n * 100_000 % (1 << 27)).unwrap();
        let open = |n| OpenBlock { block: block(n), k: 1 + n as u16, sent: 0, planned: 1024 };
        let blocks: Vec<OpenBlock> = (0..300).map(open).collect();
        for len_max in [500, LIST_LEN_MAX] {
            let told = fitting(blocks.iter().copied(), len_max);
            assert_eq!(told[..], blocks[..told.len()]);
            let mut body = Vec::new();
            Advert { blocks: told.clone() }.emit(&mut body);
            assert!(body.len() <= len_max && body.len() + ENTRY_LEN_MAX > len_max);
            assert_eq!(Advert::parse(&body).unwrap().blocks, told);
        }
    }
}
