//! What a sender tells the other senders on its network (`docs/protocol.md#WIRE-10`): neither sealed nor believed much.

use super::ParseError;
use super::reader::Reader;
use crate::ids::StreamId;
use crate::rate::Load;
use crate::time::Duration;
use crate::units::Rate;
use alloc::vec::Vec;

const MAGIC: &[u8] = b"downpour";
const VERSION: u32 = 1;

/// A sender says that it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Whose stream.
    pub stream: StreamId,
    /// What it takes. The queue in whole microseconds on the wire.
    pub load: Load,
}

impl Presence {
    /// Appends the datagram's bytes to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let queue_us = u32::try_from(self.load.queue.as_micros()).unwrap_or(u32::MAX);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.stream.0.to_be_bytes());
        out.extend_from_slice(&self.load.rate.bps().to_be_bytes());
        out.extend_from_slice(&queue_us.to_be_bytes());
    }

    /// Reads a whole datagram.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC || reader.u32()? != VERSION {
            return Err(ParseError::UnknownType);
        }
        let stream = StreamId(reader.u32()?);
        let rate = Rate::from_bps(reader.u64()?);
        let queue = Duration::from_micros(u64::from(reader.u32()?));
        reader.end()?;
        Ok(Self { stream, load: Load { rate, queue } })
    }
}

#[cfg(test)]
mod tests {
    use super::Presence;
    use crate::ids::StreamId;
    use crate::rate::Load;
    use crate::time::Duration;
    use crate::units::Rate;
    use crate::wire::ParseError;
    use alloc::vec::Vec;

    #[test]
    fn what_is_told_is_read() {
        let load = Load { rate: Rate::from_mbps(94), queue: Duration::from_micros(4321) };
        let told = Presence { stream: StreamId(0xdead_beef), load };
        let mut bytes = Vec::new();
        told.emit(&mut bytes);
        assert_eq!(Presence::parse(&bytes), Ok(told));
        for len in 0..bytes.len() {
            assert_eq!(Presence::parse(&bytes[..len]), Err(ParseError::Truncated));
        }
        bytes.push(0);
        assert_eq!(Presence::parse(&bytes), Err(ParseError::Trailing));
        bytes[0] ^= 1;
        assert_eq!(Presence::parse(&bytes), Err(ParseError::UnknownType));
    }
}
