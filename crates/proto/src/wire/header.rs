//! The 16-byte header (`docs/protocol.md#WIRE-2`). Symbols travel with a shorter one ([`super::Short`]), of which it is made.
//!
//! ```text
//!  0        1        2                 6                10                        16
//!  | type   | epoch  | stream id       | packet number  | block 27 | k-1 10 | sym 11 |
//!                                        low 32 bits      or, in feedback: receiver id
//! ```
//!
//! A symbol tells its block's k itself, so a receiver can start on any datagram.

use super::ParseError;
use super::short::{SHORT_LEN, Short};
use crate::ids::{BlockId, Epoch, ReceiverId, StreamId, SymbolId};
use alloc::vec::Vec;

/// Bytes of the header; also the authenticated data of the seal.
pub const HEADER_LEN: usize = 16;

/// Bytes of the seal's tag at the end of each datagram.
pub const TAG_LEN: usize = 16;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One symbol of a block of `k` source symbols.
    Symbol {
        /// The block.
        block: BlockId,
        /// Source symbols in the block, 1 ..= 1024.
        k: u16,
        /// Which symbol of it.
        symbol: SymbolId,
    },
    /// [`super::Poll`].
    Poll,
    /// [`super::Advert`].
    Advert,
    /// A full-size datagram that shows a joining receiver that multicast reaches it.
    Probe,
    /// [`super::Feedback`], from a receiver to the sender.
    Feedback {
        /// Who sends it.
        receiver: ReceiverId,
    },
    /// [`super::Presence`]: the sender's own, or that of another which a receiver passes on.
    Presence {
        /// Which receiver sends it; `None`: the sender.
        receiver: Option<ReceiverId>,
    },
}

/// The header, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Key version.
    pub epoch: Epoch,
    /// Whose stream.
    pub stream: StreamId,
    /// Low 32 bits of the packet number (feedback: of its counter).
    pub packet_low: u32,
    /// What follows.
    pub kind: Kind,
}

impl Header {
    const SYMBOL: u8 = 1;
    const POLL: u8 = 2;
    const ADVERT: u8 = 3;
    const PROBE: u8 = 4;
    const FEEDBACK: u8 = 5;
    const PRESENCE: u8 = 6;

    /// Reads the header at the front of `datagram`, which must also have room for the tag. A symbol's never travels: it is
    /// made of its short one.
    pub fn parse(datagram: &[u8]) -> Result<Self, ParseError> {
        if datagram.len() < HEADER_LEN + TAG_LEN {
            return Err(ParseError::Truncated);
        }
        let (head, _) = datagram.split_first_chunk().ok_or(ParseError::Truncated)?;
        let [kind, epoch, s0, s1, s2, s3, p0, p1, p2, p3, b0, b1, b2, b3, b4, b5]: [u8; 16] = *head;
        let low = u64::from_be_bytes([0, 0, b0, b1, b2, b3, b4, b5]);
        let kind = match kind {
            Self::FEEDBACK => Kind::Feedback {
                receiver: ReceiverId(u32::try_from(low).map_err(|_| ParseError::BadField)?),
            },
            Self::PRESENCE => {
                let receiver = u32::try_from(low).map_err(|_| ParseError::BadField)?;
                Kind::Presence { receiver: (receiver != 0).then_some(ReceiverId(receiver)) }
            }
            Self::POLL | Self::ADVERT | Self::PROBE if low != 0 => {
                return Err(ParseError::BadField);
            }
            Self::POLL => Kind::Poll,
            Self::ADVERT => Kind::Advert,
            Self::PROBE => Kind::Probe,
            _ => return Err(ParseError::UnknownType),
        };
        Ok(Self {
            epoch: Epoch(epoch),
            stream: StreamId(u32::from_be_bytes([s0, s1, s2, s3])),
            packet_low: u32::from_be_bytes([p0, p1, p2, p3]),
            kind,
        })
    }

    /// Bytes of it on the wire.
    pub const fn len_sent(&self) -> usize {
        if matches!(self.kind, Kind::Symbol { .. }) { SHORT_LEN } else { HEADER_LEN }
    }

    /// Appends it as it travels.
    pub fn append(&self, datagram: &mut Vec<u8>) {
        match Short::of(self) {
            Some(short) => datagram.extend_from_slice(&short.emit()),
            None => datagram.extend_from_slice(&self.emit()),
        }
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let (kind, low) = match self.kind {
            Kind::Symbol { block, k, symbol } => {
                debug_assert!((1..=1024).contains(&k));
                let low =
                    u64::from(block.raw()) << 21 | u64::from(k - 1) << 11 | u64::from(symbol.raw());
                (Self::SYMBOL, low)
            }
            Kind::Poll => (Self::POLL, 0),
            Kind::Advert => (Self::ADVERT, 0),
            Kind::Probe => (Self::PROBE, 0),
            Kind::Feedback { receiver } => (Self::FEEDBACK, u64::from(receiver.0)),
            Kind::Presence { receiver } => {
                (Self::PRESENCE, receiver.map_or(0, |receiver| u64::from(receiver.0)))
            }
        };
        let mut out = [0; HEADER_LEN];
        out[0] = kind;
        out[1] = self.epoch.0;
        out[2..6].copy_from_slice(&self.stream.0.to_be_bytes());
        out[6..10].copy_from_slice(&self.packet_low.to_be_bytes());
        out[10..16].copy_from_slice(&low.to_be_bytes()[2..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{HEADER_LEN, Header, Kind, TAG_LEN};
    use crate::ids::{Epoch, ReceiverId, StreamId};
    use alloc::vec;
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Poll),
            Just(Kind::Advert),
            Just(Kind::Probe),
            any::<u32>().prop_map(|id| Kind::Feedback { receiver: ReceiverId(id) }),
            any::<u32>().prop_map(|id| Kind::Presence {
                receiver: Some(ReceiverId(id)).filter(|_| id > 0)
            }),
        ]
    }

    proptest! {
        #[test]
        fn emitted_headers_parse_to_themselves(
            kind in kinds(), epoch: u8, stream: u32, packet_low: u32
        ) {
            let header =
                Header { epoch: Epoch(epoch), stream: StreamId(stream), packet_low, kind };
            let mut datagram = vec![0; HEADER_LEN + TAG_LEN];
            datagram[..HEADER_LEN].copy_from_slice(&header.emit());
            prop_assert_eq!(Header::parse(&datagram), Ok(header));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(&header.emit()[..], &bytes[..HEADER_LEN]);
            }
        }
    }
}
