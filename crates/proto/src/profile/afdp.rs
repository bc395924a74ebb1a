//! `afdp`: the Adaptive File Distribution Protocol (Cooperstock 1996), without its secretary.
//!
//! The publisher sends numbered packets at intervals of Tp. Subscribers are silent; every Tw each looks whether
//! packets are outstanding: a gap in the numbers, or nothing new since the last look. If so it sends a RESEND_REQUEST by
//! its connection to the publisher's control port. The publisher first raises Tp, then serves the request, then goes
//! on; what was not sent yet cannot be asked for, nor by somebody who is no member. In unicast mode every packet goes
//! to each subscriber within one Tp, and repair to the asker.
//!
//! The paper gives no layouts: ours stand in `docs/profiles.md`. Joining is a message on the control
//! connection; a subscriber that has all says so and leaves.

use super::feedback::{Context, Feedback};
use super::message::{
    Begin, Data, METADATA_MAX, Message, Mode, Parsed, REQUEST_RANGES_MAX, STREAM_MESSAGE_MAX, Via,
    Welcome, Wire, segments,
};
use super::recovery::{Each, Keep, Recovery, Shared};
use super::{ReceiverProfile, SenderProfile};
use crate::rate::{Afdp, AfdpLimits};
use crate::time::{Duration, Timestamp};
use crate::wire::ParseError;
use crate::wire::reader::Reader;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;

/// Bytes of data in a packet.
pub const SEGMENT_LEN: u16 = 1400;
/// Message id, sequence number, packets of the message, flags, bytes.
pub const HEADER_LEN: usize = 16;
/// Time between two sequence checks, Tw.
pub const TW: Duration = Duration::from_millis(500);
/// A publisher whose subscribers have neither left nor asked for this long is done.
const QUIET: Duration = Duration::from_secs(30);

const REPAIR: u16 = 1;
const WELCOME: u8 = 1;
const JOIN: u8 = 2;
const RESEND_REQUEST: u8 = 3;
const LEAVE: u8 = 4;
/// Length and type.
const STREAM_HEADER_LEN: usize = 3;

const _: () = assert!(STREAM_HEADER_LEN + 6 + 8 * REQUEST_RANGES_MAX <= STREAM_MESSAGE_MAX);
const _: () = assert!(METADATA_MAX + 64 <= STREAM_MESSAGE_MAX);

/// A publisher's profile.
pub fn sender(mode: Mode, limits: AfdpLimits) -> SenderProfile {
    let recovery: Box<dyn Recovery> = match mode {
        Mode::Unicast => Box::new(Each::new(Via::Datagram, Keep::Quiet(QUIET))),
        Mode::Multicast | Mode::Broadcast => Box::new(Shared::new(QUIET, true)),
    };
    let rate = Box::new(Afdp::new(Afdp::INITIAL, limits));
    SenderProfile { rate, recovery, wire: Box::new(AfdpWire) }
}

/// A subscriber's profile.
pub fn receiver() -> ReceiverProfile {
    let feedback = Box::new(AfdpFeedback { deadline: None, arrived: false });
    ReceiverProfile { feedback, wire: Box::new(AfdpWire) }
}

#[derive(Debug)]
struct AfdpWire;

impl AfdpWire {
    fn emit_stream(message: &Message, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0, 0]);
        match message {
            Message::Welcome(welcome) => {
                out.push(WELCOME);
                emit_welcome(welcome, out);
            }
            Message::Join { port } => {
                out.push(JOIN);
                out.extend_from_slice(&port.to_be_bytes());
            }
            Message::Request { product, segments } => {
                let segments = &segments[..segments.len().min(REQUEST_RANGES_MAX)];
                out.push(RESEND_REQUEST);
                out.extend_from_slice(&product.to_be_bytes());
                out.extend_from_slice(&(segments.len() as u16).to_be_bytes());
                for range in segments {
                    out.extend_from_slice(&range.start.to_be_bytes());
                    out.extend_from_slice(&range.end.to_be_bytes());
                }
            }
            Message::Complete { product } => {
                out.push(LEAVE);
                out.extend_from_slice(&product.to_be_bytes());
            }
            _ => {
                out.truncate(start);
                return false;
            }
        }
        let len = (out.len() - start) as u16;
        out[start..start + 2].copy_from_slice(&len.to_be_bytes());
        true
    }

    fn parse_stream(kind: u8, mut reader: Reader<'_>) -> Result<Message, ParseError> {
        let message = match kind {
            WELCOME => return parse_welcome(reader).map(Message::Welcome),
            JOIN => Message::Join { port: reader.u16()? },
            RESEND_REQUEST => {
                let (product, count) = (reader.u32()?, usize::from(reader.u16()?));
                if count > REQUEST_RANGES_MAX {
                    return Err(ParseError::BadField);
                }
                let mut segments: Vec<Range<u32>> = Vec::with_capacity(count);
                for _ in 0..count {
                    let range = reader.u32()?..reader.u32()?;
                    if range.is_empty() || segments.last().is_some_and(|r| range.start < r.end) {
                        return Err(ParseError::BadField);
                    }
                    segments.push(range);
                }
                Message::Request { product, segments }
            }
            LEAVE => Message::Complete { product: reader.u32()? },
            _ => return Err(ParseError::UnknownType),
        };
        reader.end()?;
        Ok(message)
    }
}

fn emit_welcome(welcome: &Welcome, out: &mut Vec<u8>) {
    out.extend_from_slice(&welcome.begin.product.to_be_bytes());
    out.extend_from_slice(&welcome.begin.size.to_be_bytes());
    out.push(match welcome.mode {
        Mode::Multicast => 0,
        Mode::Broadcast => 1,
        Mode::Unicast => 2,
    });
    match welcome.group {
        None => out.push(0),
        Some(group) => {
            match group {
                SocketAddr::V4(v4) => {
                    out.push(4);
                    out.extend_from_slice(&v4.ip().octets());
                }
                SocketAddr::V6(v6) => {
                    out.push(6);
                    out.extend_from_slice(&v6.ip().octets());
                }
            }
            out.extend_from_slice(&group.port().to_be_bytes());
        }
    }
    let metadata = &welcome.begin.metadata;
    out.extend_from_slice(&metadata[..metadata.len().min(METADATA_MAX)]);
}

fn parse_welcome(mut reader: Reader<'_>) -> Result<Welcome, ParseError> {
    let (product, size) = (reader.u32()?, reader.u64()?);
    let mode = match reader.u8()? {
        0 => Mode::Multicast,
        1 => Mode::Broadcast,
        2 => Mode::Unicast,
        _ => return Err(ParseError::BadField),
    };
    let group = match reader.u8()? {
        0 => None,
        4 => Some(SocketAddr::from((Ipv4Addr::from(reader.u32()?), reader.u16()?))),
        6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(reader.bytes(16)?);
            Some(SocketAddr::from((Ipv6Addr::from(octets), reader.u16()?)))
        }
        _ => return Err(ParseError::BadField),
    };
    let metadata = reader.rest();
    if metadata.len() > METADATA_MAX {
        return Err(ParseError::BadField);
    }
    let metadata = metadata.to_vec();
    let begin = Begin { product, size, offered_unix_ns: 0, metadata, repair: false };
    Ok(Welcome { begin, mode, group })
}

impl Wire for AfdpWire {
    fn segment_len(&self) -> u16 {
        SEGMENT_LEN
    }

    fn packet_len(&self) -> u32 {
        u32::from(SEGMENT_LEN) + HEADER_LEN as u32
    }

    fn emit(&self, message: &Message, body_len: u16, out: &mut Vec<u8>) -> bool {
        let Message::Data(data) = message else { return Self::emit_stream(message, out) };
        let packets = data.size.and_then(|size| segments(size, SEGMENT_LEN)).unwrap_or(u32::MAX);
        for word in [data.product, data.segment, packets] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        let flags = if data.repair { REPAIR } else { 0 };
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&body_len.to_be_bytes());
        true
    }

    fn parse<'a>(&self, via: Via, bytes: &'a [u8]) -> Result<Parsed<'a>, ParseError> {
        let mut reader = Reader::new(bytes);
        if via == Via::Stream {
            let len = usize::from(reader.u16()?);
            let kind = reader.u8()?;
            if len != bytes.len() {
                return Err(ParseError::Truncated);
            }
            return Self::parse_stream(kind, reader).map(|message| (message, &[][..]));
        }
        let (product, segment, packets) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (flags, len) = (reader.u16()?, reader.u16()?);
        if flags > REPAIR || segment >= packets {
            return Err(ParseError::BadField);
        }
        let body = reader.bytes(usize::from(len))?;
        reader.end()?;
        let repair = flags == REPAIR;
        let data = Data { product, segment, packet: segment, repair, size: None, clients: 0 };
        Ok((Message::Data(data), body))
    }

    fn stream_len(&self, head: &[u8]) -> Result<Option<usize>, ParseError> {
        let Some(len) = head.first_chunk::<2>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes(*len));
        if (STREAM_HEADER_LEN..=STREAM_MESSAGE_MAX).contains(&len) {
            Ok(Some(len))
        } else {
            Err(ParseError::BadField)
        }
    }

    fn greets(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct AfdpFeedback {
    deadline: Option<Timestamp>,
    /// Something came since the last look.
    arrived: bool,
}

impl Feedback for AfdpFeedback {
    fn on_joined(&mut self, cx: &mut Context<'_>) {
        self.deadline = Some(cx.now + TW);
    }

    fn on_data(&mut self, _cx: &mut Context<'_>, _data: &Data, _expected: u32) {
        self.arrived = true;
    }

    fn on_over(&mut self, _cx: &mut Context<'_>, _product: u32) {
        self.deadline = None;
    }

    fn on_timeout(&mut self, cx: &mut Context<'_>) {
        if self.deadline.is_none_or(|deadline| deadline > cx.now) {
            return;
        }
        for (number, product) in cx.products.iter() {
            let end = if self.arrived { product.heard() } else { product.segments() };
            let segments = product.missing(0..end, REQUEST_RANGES_MAX);
            if !segments.is_empty() {
                cx.out.push(Message::Request { product: number, segments });
            }
        }
        self.arrived = false;
        self.deadline = Some(cx.now + TW);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are meant")]
mod tests {
    use super::AfdpWire;
    use crate::ids::ReceiverId;
    use crate::profile::{
        Begin, Data, MEMBERS_MAX, Message, Mode, Offer, REQUEST_RANGES_MAX, Sender, SenderConfig,
        To, Via, Welcome, Wire,
    };
    use crate::rate::AfdpLimits;
    use crate::time::Timestamp;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    fn emitted(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(AfdpWire.emit(message, 0, &mut bytes));
        assert_eq!(AfdpWire.stream_len(&bytes), Ok(Some(bytes.len())));
        bytes
    }

    #[test]
    fn who_comes_before_the_product_is_told_of_it_later() {
        let sender = super::sender(Mode::Unicast, AfdpLimits::Rabid);
        let config = SenderConfig { profile: sender, mode: Mode::Unicast, group: None };
        let mut sender = Sender::new(config, Timestamp::ZERO);
        let mut out = Vec::new();
        assert!(sender.connect(Timestamp::ZERO, ReceiverId(1)));
        assert_eq!((sender.joined(), sender.poll_transmit(Timestamp::ZERO, &mut out)), (0, None));
        let offer = Offer { product: 1, size: 5, offered_unix_ns: 0, metadata: b"a".to_vec() };
        assert!(sender.offer(Timestamp::ZERO, offer));
        let told = sender.poll_transmit(Timestamp::ZERO, &mut out);
        assert!(
            matches!(told, Some(transmit) if transmit.to == To::Stream(ReceiverId(1))),
            "{told:?}"
        );
        let welcome = AfdpWire.parse(Via::Stream, &out).unwrap();
        assert!(matches!(welcome.0, Message::Welcome(_)), "{welcome:?}");
    }

    #[test]
    fn who_has_gone_makes_room_for_others() {
        let now = Timestamp::ZERO;
        let profile = super::sender(Mode::Multicast, AfdpLimits::Rabid);
        let config = SenderConfig { profile, mode: Mode::Multicast, group: None };
        let mut sender = Sender::new(config, now);
        for id in 1..5000 {
            assert!(sender.connect(now, ReceiverId(id)), "{id}");
            sender.disconnect(now, ReceiverId(id));
        }
        assert_eq!(sender.members().count(), MEMBERS_MAX);
        for id in 5000..5000 + MEMBERS_MAX as u32 {
            assert!(sender.connect(now, ReceiverId(id)), "{id}");
        }
        assert!(!sender.connect(now, ReceiverId(1_000_000)), "nobody has gone");
    }

    #[test]
    fn messages_on_a_connection_parse_to_themselves() {
        let begin = Begin {
            product: 7,
            size: 7_000_000,
            offered_unix_ns: 0,
            metadata: b"passwd".to_vec(),
            repair: false,
        };
        let (mode, begin_too) = (Mode::Unicast, begin.clone());
        for message in [
            Message::Welcome(Welcome {
                begin,
                mode: Mode::Multicast,
                group: "239.1.2.3:7".parse().ok(),
            }),
            Message::Welcome(Welcome { begin: begin_too.clone(), mode, group: None }),
            Message::Welcome(Welcome { begin: begin_too, mode, group: "[ff15::1]:9".parse().ok() }),
            Message::Join { port: 4000 },
            Message::Request { product: 7, segments: vec![0..5, 9..10] },
            Message::Complete { product: 7 },
        ] {
            let bytes = emitted(&message);
            assert_eq!(AfdpWire.parse(Via::Stream, &bytes), Ok((message, &[][..])));
            for cut in 0..bytes.len() {
                assert!(AfdpWire.parse(Via::Stream, &bytes[..cut]).is_err());
            }
        }
        assert!(!AfdpWire.emit(&Message::End { product: 7, repair: false }, 0, &mut Vec::new()));
    }

    #[test]
    fn a_request_has_at_most_so_many_ranges() {
        let segments = (0..5000).map(|n| 2 * n..2 * n + 1).collect();
        let bytes = emitted(&Message::Request { product: 7, segments });
        let Ok((Message::Request { segments, .. }, _)) = AfdpWire.parse(Via::Stream, &bytes) else {
            panic!()
        };
        assert_eq!(segments.len(), REQUEST_RANGES_MAX);
        let mut bytes = emitted(&Message::Request { product: 7, segments: Vec::from([5..6]) });
        let at = bytes.len() - 1;
        bytes[at] = 5;
        assert!(AfdpWire.parse(Via::Stream, &bytes).is_err(), "an empty range");
        let bytes = emitted(&Message::Request { product: 7, segments: vec![5..8, 7..9] });
        assert!(AfdpWire.parse(Via::Stream, &bytes).is_err(), "a segment twice");
        assert!(
            AfdpWire.stream_len(&[0, 2]).is_err() && AfdpWire.stream_len(&[0xff, 0xff]).is_err()
        );
        assert_eq!(AfdpWire.stream_len(&[0]), Ok(None));
    }

    #[test]
    fn a_packet_says_how_many_there_are() {
        let size = Some(7_000_000);
        let data = Data { product: 7, segment: 4999, packet: 4999, repair: true, size, clients: 3 };
        let mut bytes = Vec::new();
        assert!(AfdpWire.emit(&Message::Data(data), 4, &mut bytes));
        assert_eq!(bytes[8..12], 5000u32.to_be_bytes());
        bytes.extend_from_slice(b"abcd");
        let parsed = Message::Data(Data { size: None, clients: 0, ..data });
        assert_eq!(AfdpWire.parse(Via::Datagram, &bytes), Ok((parsed, &b"abcd"[..])));
        bytes[4..8].copy_from_slice(&5000u32.to_be_bytes());
        assert!(AfdpWire.parse(Via::Datagram, &bytes).is_err(), "beyond the last");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), fix in any::<bool>()) {
            let mut bytes = bytes;
            if fix && bytes.len() > 3 {
                let len = bytes.len() as u16;
                bytes[..2].copy_from_slice(&len.to_be_bytes());
                bytes[2] %= 6;
            }
            let _ = AfdpWire.parse(Via::Datagram, &bytes);
            if let Ok((message, _)) = AfdpWire.parse(Via::Stream, &bytes) {
                prop_assert_eq!(emitted(&message), bytes.clone());
            }
            if let Ok(Some(len)) = AfdpWire.stream_len(&bytes) {
                prop_assert!(len >= 3);
            }
        }
    }
}
