//! Polls and repair advertisements, from the sender to all (`docs/protocol.md#WIRE-4`, `#WIRE-5`).
//!
//! A poll opens a round: it says what was sent, what repair is already on its way, and who shall answer.
//! An advertisement repeats only the list of blocks, at once after a NACK, so that others who wait to
//! ask for the same keep silent.

use super::ParseError;
use super::reader::Reader;
use crate::ids::{BlockId, PacketNumber, ReceiverId, Round, SymbolId};
use crate::time::{Duration, Timestamp};
use alloc::vec::Vec;

/// Most open blocks that a poll or an advertisement lists; the sender's window is no larger.
pub const POLL_BLOCKS_MAX: usize = 128;

const ENTRY_LEN: usize = 10;
const POLL_FIXED_LEN: usize = 50;
// A full poll must fit the smallest symbol in use, so that no path takes data but not polls.
const _: () = assert!(POLL_FIXED_LEN + POLL_BLOCKS_MAX * ENTRY_LEN <= 1420);

/// The state of an open block at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenBlock {
    /// Which block.
    pub block: BlockId,
    /// Its source symbols, 1 ..= 1024.
    pub k: u16,
    /// Symbols of it sent before this message, source and repair; 0 ..= 2048.
    pub sent: u16,
    /// Symbols of it that will have been sent when what is planned now is done; ≥ `sent`.
    pub planned: u16,
}

impl OpenBlock {
    /// Next repair index that the sender has not used: what a pull may start from.
    pub fn repair_next(&self) -> u16 {
        self.planned.saturating_sub(self.k)
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.block.raw().to_be_bytes());
        out.extend_from_slice(&self.k.to_be_bytes());
        out.extend_from_slice(&self.sent.to_be_bytes());
        out.extend_from_slice(&self.planned.to_be_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let block = BlockId::from_raw(reader.u32()?).ok_or(ParseError::BadField)?;
        let (k, sent, planned) = (reader.u16()?, reader.u16()?, reader.u16()?);
        let k_ok = (1..=crate::ids::BLOCK_SYMBOLS_MAX).contains(&k);
        if !k_ok || sent > planned || planned > SymbolId::END {
            return Err(ParseError::BadField);
        }
        Ok(Self { block, k, sent, planned })
    }
}

fn emit_blocks(blocks: &[OpenBlock], out: &mut Vec<u8>) {
    debug_assert!(blocks.len() <= POLL_BLOCKS_MAX);
    out.push(blocks.len() as u8);
    blocks.iter().for_each(|b| b.emit(out));
}

fn parse_blocks(reader: &mut Reader<'_>) -> Result<Vec<OpenBlock>, ParseError> {
    let count = usize::from(reader.u8()?);
    if count > POLL_BLOCKS_MAX {
        return Err(ParseError::BadField);
    }
    (0..count).map(|_| OpenBlock::parse(reader)).collect()
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
    use super::{Advert, OpenBlock, POLL_BLOCKS_MAX, Poll};
    use crate::ids::{BlockId, PacketNumber, ReceiverId, Round};
    use crate::time::{Duration, Timestamp};
    use crate::wire::ParseError;
    use alloc::vec::Vec;
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};

    fn open_block() -> impl Strategy<Value = OpenBlock> {
        (0u32..1 << 27, 1u16..=1024, 0u16..=2048, 0u16..=2048).prop_map(|(raw, k, a, b)| {
            let block = BlockId::from_raw(raw).unwrap();
            OpenBlock { block, k, sent: a.min(b), planned: a.max(b) }
        })
    }

    proptest! {
        #[test]
        fn emitted_polls_parse_to_themselves(
            (round, packet, at, grtt_us, clr, leaves) in any::<(u32, u64, u64, u32, u32, u32)>(),
            (group_size, report_share, finished) in any::<(u32, u32, bool)>(),
            (data_end, manifest_end) in (0u32..=1 << 26, 0u32..=1 << 26),
            blocks in proptest::collection::vec(open_block(), 0..=POLL_BLOCKS_MAX),
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
            prop_assert_eq!(body.len(), super::POLL_FIXED_LEN + super::ENTRY_LEN * poll.blocks.len());
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
}
