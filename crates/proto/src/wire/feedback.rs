//! Feedback, from one receiver to the sender (`docs/protocol.md#WIRE-6`).
//!
//! One message does both: it reports how the stream arrives (for rate control and loss), and NACKs with a
//! count per block. It answers the newest poll that the receiver has.

use super::ParseError;
use super::reader::Reader;
use crate::ids::{BlockId, Round, SymbolId};
use crate::time::{Duration, Timestamp};
use alloc::vec::Vec;

/// Most blocks that one feedback message asks repair for; the oldest go first.
pub const FEEDBACK_NEEDS_MAX: usize = 64;

/// A NACK: how many more symbols of a block a receiver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Which block.
    pub block: BlockId,
    /// The newest [`super::OpenBlock::planned`] that the receiver knows of: should all of that come, `count` is
    /// still lacking. So the same request twice is one request.
    pub planned: u16,
    /// Symbols lacking beyond the plan; 1 ..= 1024.
    pub count: u16,
}

/// One receiver's answer to a poll. Counters are since the receiver joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The round answered.
    pub round: Round,
    /// From the poll's arrival to this message's leaving. Whole microseconds on the wire.
    pub hold: Duration,
    /// How much longer the poll was on its way than the fastest of the last ten seconds. Whole microseconds
    /// on the wire.
    pub queue: Duration,
    /// What of that is the path's, not the store's. Whole microseconds on the wire.
    pub path_queue: Duration,
    /// Arrival of the poll, on the receiver's clock.
    pub polled_at: Timestamp,
    /// Authentic datagrams of the stream that had come when the poll came, the poll included.
    pub received: u64,
    /// Datagrams that the receiver's own socket buffer had no room for.
    pub host_drops: u64,
    /// Data blocks that it holds, to show progress.
    pub data_held: u32,
    /// Repair asked for.
    pub needs: Vec<Need>,
}

impl Feedback {
    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        debug_assert!(self.needs.len() <= FEEDBACK_NEEDS_MAX);
        out.extend_from_slice(&self.round.0.to_be_bytes());
        out.extend_from_slice(&micros(self.hold));
        out.extend_from_slice(&micros(self.queue));
        out.extend_from_slice(&self.polled_at.as_nanos().to_be_bytes());
        out.extend_from_slice(&self.received.to_be_bytes());
        out.extend_from_slice(&self.host_drops.to_be_bytes());
        out.extend_from_slice(&micros(self.path_queue));
        // Reserved.
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.data_held.to_be_bytes());
        out.push(self.needs.len() as u8);
        for need in &self.needs {
            out.extend_from_slice(&need.block.raw().to_be_bytes());
            out.extend_from_slice(&need.planned.to_be_bytes());
            out.extend_from_slice(&need.count.to_be_bytes());
        }
    }

    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(body);
        let round = Round(reader.u32()?);
        let hold = Duration::from_micros(u64::from(reader.u32()?));
        let queue = Duration::from_micros(u64::from(reader.u32()?));
        let polled_at = Timestamp::from_nanos(reader.u64()?);
        let (received, host_drops) = (reader.u64()?, reader.u64()?);
        let path_queue = Duration::from_micros(u64::from(reader.u32()?));
        let _reserved = reader.u32()?;
        let data_held = reader.u32()?;
        let count = usize::from(reader.u8()?);
        if count > FEEDBACK_NEEDS_MAX {
            return Err(ParseError::BadField);
        }
        let needs = (0..count).map(|_| parse_need(&mut reader)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Self {
            round,
            hold,
            queue,
            path_queue,
            polled_at,
            received,
            host_drops,
            data_held,
            needs,
        })
    }
}

fn micros(time: Duration) -> [u8; 4] {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).to_be_bytes()
}

fn parse_need(reader: &mut Reader<'_>) -> Result<Need, ParseError> {
    let block = BlockId::from_raw(reader.u32()?).ok_or(ParseError::BadField)?;
    let (planned, count) = (reader.u16()?, reader.u16()?);
    if planned > SymbolId::END || !(1..=crate::ids::BLOCK_SYMBOLS_MAX).contains(&count) {
        return Err(ParseError::BadField);
    }
    Ok(Need { block, planned, count })
}

#[cfg(test)]
mod tests {
    use super::{FEEDBACK_NEEDS_MAX, Feedback, Need};
    use crate::ids::{BlockId, Round};
    use crate::time::{Duration, Timestamp};
    use alloc::vec::Vec;
    use core::ops::Range;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    /// Where the reserved bytes stand.
    const RESERVED: Range<usize> = 40..44;

    proptest! {
        #[test]
        fn emitted_feedback_parses_to_itself(
            (round, hold_us, at, received, host_drops) in any::<(u32, u32, u64, u64, u64)>(),
            (data_held, queue_us, path_queue_us) in any::<(u32, u32, u32)>(),
            needs in proptest::collection::vec(
                (0u32..1 << 27, 0u16..=2048, 1u16..=1024), 0..=FEEDBACK_NEEDS_MAX),
        ) {
            let needs = needs
                .into_iter()
                .map(|(raw, planned, count)| {
                    Need { block: BlockId::from_raw(raw).unwrap(), planned, count }
                })
                .collect();
            let feedback = Feedback {
                round: Round(round),
                hold: Duration::from_micros(u64::from(hold_us)),
                queue: Duration::from_micros(u64::from(queue_us)),
                path_queue: Duration::from_micros(u64::from(path_queue_us)),
                polled_at: Timestamp::from_nanos(at),
                received,
                host_drops,
                data_held,
                needs,
            };
            let mut body = Vec::new();
            feedback.emit(&mut body);
            prop_assert_eq!(Feedback::parse(&body), Ok(feedback.clone()));
            body[RESERVED].fill(0xff);
            prop_assert_eq!(Feedback::parse(&body), Ok(feedback), "what is reserved is not looked at");
        }

        #[test]
        fn any_bytes_parse_or_are_refused(mut body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(feedback) = Feedback::parse(&body) {
                let mut again = Vec::new();
                feedback.emit(&mut again);
                body[RESERVED].fill(0);
                prop_assert_eq!(&again, &body);
            }
        }
    }
}
