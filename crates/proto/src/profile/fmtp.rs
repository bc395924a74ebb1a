//! `fmtp`: the File Multicast Transport Protocol under LDM7 (Tan 2019; FMTPv3 of Unidata's LDM).
//!
//! The sender pushes product by product, in order, at the circuit's rate: BOP (size, metadata), data blocks, EOP. It keeps
//! each until every receiver has said RETX_END, or a constant time after its EOP; then it sends RETX_EOP and RETX_REJ to
//! those that have not, releases it, and answers RETX_REJ from then on; also when more waits for a receiver than its
//! share. The latter, and the RETX_REJ unasked, are ours: who waits for repair would wait for ever. A receiver has one
//! TCP connection to it:
//!
//! 1. A gap in byte offsets: RETX_REQ at once. EOP: RETX_REQ for what was not heard of. Repairs come by the connection.
//! 2. A jump in product indexes: BOP_REQ for each that was missed, which brings RETX_BOP. For which there is no room
//!    among the open products waits until one of these is over. Ours.
//! 3. A timer for each product, 20 × bytes / link rate in bit/s: EOP_REQ if there was no EOP, which brings RETX_EOP.
//! 4. Of a session's last product RETX_EOP comes unasked as well, when RETX_END is not there a second after its EOP. Ours.
//!
//! Deliberately absent: the MACs of later versions, admission, and the backlog of products that were missed
//! altogether, which is the feed's matter.

use super::feedback::{Context, Feedback};
use super::message::{Begin, Data, METADATA_MAX, Message, Parsed, STREAM_MESSAGE_MAX, Via, Wire};
use super::recovery::{Each, Keep};
use super::{OFFERED_MAX, ReceiverProfile, SenderProfile};
use crate::range_set::RangeSet;
use crate::rate::Shaped;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use crate::wire::ParseError;
use crate::wire::reader::Reader;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a data block.
pub const SEGMENT_LEN: u16 = 1448;
/// Product index, byte offset, payload length, flags.
pub const HEADER_LEN: usize = 12;
/// How long a product is kept after its end when somebody still lacks it.
pub const KEEP: Duration = Duration::from_secs(600);
/// The receivers' preset of the link's rate, for the timer of a product.
pub const LINK_RATE: Rate = Rate::from_mbps(20);
/// The timer of a product: so many times bytes over bit/s, which is 2.5 times the time it takes.
const TIMER_FACTOR: f64 = 20.0;
/// Not less, for the smallest products. Ours.
const TIMER_MIN: Duration = Duration::from_millis(200);
/// A jump of more than this is a step back.
const JUMP_MAX: u32 = 1 << 31;
/// Ranges of indexes that wait for room: a sender holds no more products than would take.
const WANTED_RANGES_MAX: usize = OFFERED_MAX;
/// Most blocks in one RETX_REQ: its length has 16 bits.
const REQUEST_SEGMENTS_MAX: u32 = u16::MAX as u32 / SEGMENT_LEN as u32;

const BOP: u16 = 0x0001;
const EOP: u16 = 0x0002;
const MEM_DATA: u16 = 0x0004;
const RETX_REQ: u16 = 0x0008;
const RETX_REJ: u16 = 0x0010;
const RETX_END: u16 = 0x0020;
const RETX_DATA: u16 = 0x0040;
const BOP_REQ: u16 = 0x0080;
const RETX_BOP: u16 = 0x0100;
const EOP_REQ: u16 = 0x0200;
const RETX_EOP: u16 = 0x0400;

/// Start time (seconds high, low, nanoseconds), product size, length of the metadata.
const BOP_FIXED_LEN: usize = 18;
const _: () = assert!(BOP_FIXED_LEN + METADATA_MAX <= SEGMENT_LEN as usize);
const _: () = assert!(HEADER_LEN + SEGMENT_LEN as usize <= STREAM_MESSAGE_MAX);

/// A sender's profile, shaped to `rate` (bytes of UDP payload and of repairs).
pub fn sender(rate: Rate, keep: Duration) -> SenderProfile {
    SenderProfile {
        rate: Box::new(Shaped::new(rate)),
        recovery: Box::new(Each::new(Via::Stream, Keep::AfterEnd(keep))),
        wire: Box::new(FmtpWire),
    }
}

/// A receiver's profile; `link` is for its timers.
pub fn receiver(link: Rate) -> ReceiverProfile {
    let feedback = Box::new(FmtpFeedback::new(link));
    ReceiverProfile { feedback, wire: Box::new(FmtpWire) }
}

#[derive(Debug)]
struct FmtpWire;

fn put(out: &mut Vec<u8>, product: u32, offset: u32, len: u16, flags: u16) {
    out.extend_from_slice(&product.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
}

const fn offset_of(segment: u32) -> u32 {
    segment.saturating_mul(SEGMENT_LEN as u32)
}

fn emit_begin(begin: &Begin, out: &mut Vec<u8>) {
    let metadata = &begin.metadata[..begin.metadata.len().min(METADATA_MAX)];
    let flags = if begin.repair { RETX_BOP } else { BOP };
    put(out, begin.product, 0, (BOP_FIXED_LEN + metadata.len()) as u16, flags);
    let (seconds, nanos) =
        (begin.offered_unix_ns / 1_000_000_000, begin.offered_unix_ns % 1_000_000_000);
    let size = u32::try_from(begin.size).unwrap_or(u32::MAX);
    for word in [(seconds >> 32) as u32, seconds as u32, nanos as u32, size] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(&(metadata.len() as u16).to_be_bytes());
    out.extend_from_slice(metadata);
}

fn parse_begin(product: u32, repair: bool, payload: &[u8]) -> Result<Begin, ParseError> {
    let mut reader = Reader::new(payload);
    let seconds = reader.u64()?;
    let nanos = reader.u32()?;
    let size = u64::from(reader.u32()?);
    let len = usize::from(reader.u16()?);
    let metadata = reader.bytes(len)?.to_vec();
    reader.end()?;
    if nanos >= 1_000_000_000 || len > METADATA_MAX {
        return Err(ParseError::BadField);
    }
    let offered_unix_ns = seconds
        .checked_mul(1_000_000_000)
        .and_then(|ns| ns.checked_add(u64::from(nanos)))
        .ok_or(ParseError::BadField)?;
    Ok(Begin { product, size, offered_unix_ns, metadata, repair })
}

impl Wire for FmtpWire {
    fn segment_len(&self) -> u16 {
        SEGMENT_LEN
    }

    fn packet_len(&self) -> u32 {
        u32::from(SEGMENT_LEN) + HEADER_LEN as u32
    }

    fn emit(&self, message: &Message, body_len: u16, out: &mut Vec<u8>) -> bool {
        match *message {
            Message::Begin(ref begin) => emit_begin(begin, out),
            Message::Data(Data { product, segment, repair, .. }) => {
                let flags = if repair { RETX_DATA } else { MEM_DATA };
                put(out, product, offset_of(segment), body_len, flags);
            }
            Message::End { product, repair } => {
                put(out, product, 0, 0, if repair { RETX_EOP } else { EOP });
            }
            Message::Request { product, ref segments } => {
                for range in segments {
                    for first in range.clone().step_by(REQUEST_SEGMENTS_MAX as usize) {
                        let count = (range.end - first).min(REQUEST_SEGMENTS_MAX);
                        let len = count * u32::from(SEGMENT_LEN);
                        put(out, product, offset_of(first), len as u16, RETX_REQ);
                    }
                }
            }
            Message::BeginRequest { product } => put(out, product, 0, 0, BOP_REQ),
            Message::EndRequest { product } => put(out, product, 0, 0, EOP_REQ),
            Message::Complete { product } => put(out, product, 0, 0, RETX_END),
            Message::Rejected { product } => put(out, product, 0, 0, RETX_REJ),
            Message::Welcome(_) | Message::Join { .. } | Message::Status(_) => return false,
        }
        true
    }

    fn parse<'a>(&self, via: Via, bytes: &'a [u8]) -> Result<Parsed<'a>, ParseError> {
        let mut reader = Reader::new(bytes);
        let (product, offset) = (reader.u32()?, reader.u32()?);
        let (len, flags) = (reader.u16()?, reader.u16()?);
        // The stream's own three come by datagram, and nothing else does.
        if matches!(flags, BOP | EOP | MEM_DATA) != (via == Via::Datagram) {
            return Err(ParseError::UnknownType);
        }
        let segment_len = u32::from(SEGMENT_LEN);
        let segment = offset / segment_len;
        let has_payload = matches!(flags, BOP | RETX_BOP | MEM_DATA | RETX_DATA);
        let payload = reader.bytes(if has_payload { usize::from(len) } else { 0 })?;
        reader.end()?;
        let message = match flags {
            BOP | RETX_BOP => Message::Begin(parse_begin(product, flags == RETX_BOP, payload)?),
            MEM_DATA | RETX_DATA if offset % segment_len == 0 => {
                let repair = flags == RETX_DATA;
                let (packet, size, clients) = (0, None, 0);
                let data = Data { product, segment, packet, repair, size, clients };
                return Ok((Message::Data(data), payload));
            }
            EOP | RETX_EOP => Message::End { product, repair: flags == RETX_EOP },
            RETX_REQ if len > 0 => {
                let end = (u64::from(offset) + u64::from(len)).div_ceil(u64::from(segment_len));
                let end = u32::try_from(end).map_err(|_| ParseError::BadField)?;
                let segments = core::iter::once(segment..end).collect();
                Message::Request { product, segments }
            }
            BOP_REQ => Message::BeginRequest { product },
            EOP_REQ => Message::EndRequest { product },
            RETX_END => Message::Complete { product },
            RETX_REJ => Message::Rejected { product },
            MEM_DATA | RETX_DATA | RETX_REQ => return Err(ParseError::BadField),
            _ => return Err(ParseError::UnknownType),
        };
        Ok((message, &[]))
    }

    fn stream_len(&self, head: &[u8]) -> Result<Option<usize>, ParseError> {
        let Some(head) = head.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([head[8], head[9]]));
        match u16::from_be_bytes([head[10], head[11]]) {
            RETX_BOP | RETX_DATA if len <= usize::from(SEGMENT_LEN) => Ok(Some(HEADER_LEN + len)),
            RETX_BOP | RETX_DATA => Err(ParseError::BadField),
            _ => Ok(Some(HEADER_LEN)),
        }
    }
}

#[derive(Debug)]
struct FmtpFeedback {
    link: Rate,
    /// One past the newest product.
    next: Option<u32>,
    /// When the end of each should have come.
    timers: BTreeMap<u32, Timestamp>,
    /// Products whose begin was missed and asked for, and one past the highest segment of them that was heard of.
    lost: BTreeMap<u32, u32>,
    /// Those for which there was no room: asked for when one that is open is over.
    wanted: RangeSet,
}

impl FmtpFeedback {
    const fn new(link: Rate) -> Self {
        let wanted = RangeSet::new();
        Self { link, next: None, timers: BTreeMap::new(), lost: BTreeMap::new(), wanted }
    }

    fn timer(&self, size: u64) -> Duration {
        let seconds = TIMER_FACTOR * size as f64 / (self.link.bps() as f64).max(1.0);
        Duration::from_secs_f64(seconds.min(1e9)).max(TIMER_MIN)
    }

    /// Something of `product` came by multicast: asks for the begin of each that was jumped over.
    fn jump(&mut self, cx: &mut Context<'_>, product: u32) {
        let next = self.next.unwrap_or(product);
        if product.wrapping_sub(next) >= JUMP_MAX {
            return;
        }
        self.next = Some(product.wrapping_add(1));
        if next <= product {
            self.want(next..product);
        } else {
            // After the last index comes the first.
            self.want(next..u32::MAX);
            self.want(0..product);
        }
        self.ask_wanted(cx);
    }

    fn ask_begin(&mut self, cx: &mut Context<'_>, product: u32, heard: u32) {
        let is_known = cx.products.is_over(product) || cx.products.find(product).is_some();
        if is_known || self.wanted.contains(product) {
            return;
        }
        if let Some(known) = self.lost.get_mut(&product) {
            *known = heard.max(*known);
        } else if self.lost.len() < cx.products.room() {
            self.lost.insert(product, heard);
            cx.out.push(Message::BeginRequest { product });
        } else {
            self.want(product..product.saturating_add(1));
        }
    }

    /// Leaves these until there is room.
    fn want(&mut self, products: Range<u32>) {
        if self.wanted.iter().count() < WANTED_RANGES_MAX {
            self.wanted.insert_range(products);
        }
    }

    /// Asks for the first of those that wait, as many as there is room for.
    fn ask_wanted(&mut self, cx: &mut Context<'_>) {
        while self.lost.len() < cx.products.room() {
            let first = self.wanted.iter().next();
            let Some(Range { start: product, .. }) = first else { return };
            self.wanted.remove(product);
            // How far it has got is not known: its next segment tells, its end, or its timer.
            self.ask_begin(cx, product, 0);
        }
    }

    /// Everything below `end` has been sent: asks for what is not here and was not asked for.
    fn ask(cx: &mut Context<'_>, number: u32, from: u32, end: u32) {
        let Some(product) = cx.products.find_mut(number) else { return };
        let age = cx.age;
        product.notice(from..end, age);
        product.hear(end);
        let segments = product.missing(from..end, usize::MAX);
        if !segments.is_empty() {
            cx.out.push(Message::Request { product: number, segments });
        }
    }
}

impl Feedback for FmtpFeedback {
    fn on_data(&mut self, cx: &mut Context<'_>, data: &Data, expected: u32) {
        if !data.repair {
            self.jump(cx, data.product);
            Self::ask(cx, data.product, expected, data.segment);
        }
    }

    fn on_unknown(&mut self, cx: &mut Context<'_>, data: &Data) {
        if !data.repair {
            self.jump(cx, data.product);
            self.ask_begin(cx, data.product, data.segment.saturating_add(1));
        }
    }

    fn on_begin(&mut self, cx: &mut Context<'_>, number: u32, repair: bool) {
        if !repair {
            self.jump(cx, number);
        }
        let Some(product) = cx.products.find(number) else {
            self.lost.remove(&number);
            if !cx.products.is_over(number) {
                self.want(number..number.saturating_add(1));
            }
            return;
        };
        self.wanted.remove(number);
        let timer = self.timer(product.size);
        self.timers.insert(number, cx.now + timer);
        let segments = product.segments();
        if let Some(heard) = self.lost.remove(&number) {
            // Products come in order: when a newer one was heard of, all of this one was sent.
            let newer = self.next.is_some_and(|next| next != number.wrapping_add(1));
            let end = if newer { segments } else { heard.min(segments) };
            Self::ask(cx, number, 0, end);
        }
    }

    fn on_end(&mut self, cx: &mut Context<'_>, number: u32) {
        if cx.products.find(number).is_none() {
            self.jump(cx, number);
            self.ask_begin(cx, number, u32::MAX);
            return;
        }
        self.timers.remove(&number);
        let (from, end) = cx
            .products
            .find(number)
            .map_or((0, 0), |product| (product.heard(), product.segments()));
        Self::ask(cx, number, from, end);
    }

    fn on_over(&mut self, cx: &mut Context<'_>, product: u32) {
        self.timers.remove(&product);
        self.lost.remove(&product);
        self.wanted.remove(product);
        self.ask_wanted(cx);
    }

    fn waits_for_begin(&self) -> bool {
        !(self.lost.is_empty() && self.wanted.is_empty())
    }

    fn on_timeout(&mut self, cx: &mut Context<'_>) {
        let due: Vec<u32> = self
            .timers
            .iter()
            .filter(|(_, at)| **at <= cx.now)
            .map(|(number, _)| *number)
            .collect();
        for product in due {
            cx.out.push(Message::EndRequest { product });
            // It is not answered while the product is still being sent.
            let again = cx.products.find(product).map_or(TIMER_MIN, |p| self.timer(p.size));
            self.timers.insert(product, cx.now + again);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.timers.values().min().copied()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are meant")]
mod tests {
    use super::{FmtpFeedback, FmtpWire, HEADER_LEN, LINK_RATE, SEGMENT_LEN};
    use crate::ids::ReceiverId;
    use crate::profile::{
        Begin, Data, Message, Mode, Offer, PRODUCTS_MAX, REQUEST_RANGES_MAX, Receiver,
        ReceiverConfig, ReceiverEvent, Sender, SenderConfig, To, Via, Wire,
    };
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;
    use alloc::vec::Vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    fn begin(repair: bool) -> Message {
        let metadata = b"SDUS53 KLBF".to_vec();
        let offered_unix_ns = 1_434_326_400_123_456_789;
        Message::Begin(Begin { product: 5, size: 39_000, offered_unix_ns, metadata, repair })
    }

    #[test]
    fn messages_parse_to_themselves() {
        let data = |repair| {
            let (packet, size, clients) = (0, None, 0);
            Message::Data(Data { product: 5, segment: 3, packet, repair, size, clients })
        };
        for (message, flags) in [
            (begin(false), 0x0001),
            (Message::End { product: 5, repair: false }, 0x0002),
            (data(false), 0x0004),
            (Message::Request { product: 5, segments: Vec::from([2..4]) }, 0x0008),
            (Message::Rejected { product: 5 }, 0x0010),
            (Message::Complete { product: 5 }, 0x0020),
            (data(true), 0x0040),
            (Message::BeginRequest { product: 5 }, 0x0080),
            (begin(true), 0x0100),
            (Message::EndRequest { product: 5 }, 0x0200),
            (Message::End { product: 5, repair: true }, 0x0400),
        ] {
            let mut bytes = Vec::new();
            let body: &[u8] = if matches!(message, Message::Data(_)) { b"abc" } else { b"" };
            assert!(FmtpWire.emit(&message, body.len() as u16, &mut bytes));
            assert_eq!(u16::from_be_bytes([bytes[10], bytes[11]]), flags);
            bytes.extend_from_slice(body);
            let (via, other) = match flags {
                0x0001 | 0x0002 | 0x0004 => (Via::Datagram, Via::Stream),
                _ => (Via::Stream, Via::Datagram),
            };
            if via == Via::Stream {
                assert_eq!(FmtpWire.stream_len(&bytes), Ok(Some(bytes.len())));
            }
            assert_eq!(FmtpWire.parse(via, &bytes), Ok((message, body)));
            assert!(FmtpWire.parse(other, &bytes).is_err());
            for cut in 0..bytes.len() {
                assert!(FmtpWire.parse(via, &bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn who_asks_and_does_not_read_is_answered_when_it_does() {
        let (now, id) = (Timestamp::ZERO, ReceiverId(1));
        let profile = super::sender(LINK_RATE, super::KEEP);
        let config = SenderConfig { profile, mode: Mode::Multicast, group: None };
        let mut sender = Sender::new(config, now);
        assert!(sender.connect(now, id));
        sender.set_ready(now, id, false);
        let (mut request, mut out) = (Vec::new(), Vec::new());
        FmtpWire.emit(&Message::BeginRequest { product: 5 }, 0, &mut request);
        for _ in 0..100_000 {
            sender.handle_stream(now, id, &request).unwrap();
            assert_eq!(sender.poll_transmit(now, &mut out), None);
        }
        sender.set_ready(now, id, true);
        let answers = core::iter::from_fn(|| sender.poll_transmit(now, &mut out));
        let answers: Vec<_> = answers.map(|transmit| transmit.to).collect();
        assert!(!answers.is_empty() && answers.len() < 10_000, "{}", answers.len());
        assert!(answers.iter().all(|to| *to == To::Stream(id)));
    }

    /// Hundreds wait for one repair each, so the first has the least share; it reads nothing and asks for more than that.
    #[test]
    fn whose_request_is_beyond_its_share_is_told_and_others_are_served() {
        let mut now = Timestamp::ZERO;
        let profile = super::sender(Rate::from_mbps(1000), super::KEEP);
        let config = SenderConfig { profile, mode: Mode::Multicast, group: None };
        let mut sender = Sender::new(config, now);
        for id in (1..400).map(ReceiverId) {
            assert!(sender.connect(now, id));
            sender.set_ready(now, id, false);
        }
        sender.start(now);
        let (size, mut out) = (3000 * u64::from(SEGMENT_LEN), Vec::new());
        let offer = Offer { product: 5, size, offered_unix_ns: 0, metadata: Vec::new() };
        assert!(sender.offer(now, offer));
        while sender.stats().segments < 3000 {
            while sender.poll_transmit(now, &mut out).is_some() {}
            now = sender.poll_timeout().expect("there is more").max(now);
            sender.handle_timeout(now);
        }
        let mut ask = |sender: &mut Sender, id, first| {
            let request = Message::Request { product: 5, segments: Vec::from([first..first + 1]) };
            out.clear();
            FmtpWire.emit(&request, 0, &mut out);
            sender.handle_stream(now, ReceiverId(id), &out).unwrap();
        };
        (2..399).for_each(|id| ask(&mut sender, id, 0));
        (0..1100).for_each(|n| ask(&mut sender, 1, 2 * n));
        ask(&mut sender, 399, 0);
        assert_eq!(sender.stats().requests, 397 + REQUEST_RANGES_MAX as u64 + 1);
        for id in [ReceiverId(1), ReceiverId(399)] {
            sender.set_ready(now, id, true);
        }
        let (mut rejected, mut served) = (Vec::new(), 0);
        now = now + Duration::from_secs(1);
        while let Some(transmit) = sender.poll_transmit(now, &mut out) {
            match transmit.body {
                Some(_) => served += u32::from(transmit.to == To::Stream(ReceiverId(399))),
                None => rejected.push((transmit.to, FmtpWire.parse(Via::Stream, &out).unwrap().0)),
            }
        }
        assert_eq!(rejected, [(To::Stream(ReceiverId(1)), Message::Rejected { product: 5 })]);
        assert_eq!(served, 1);
    }

    #[test]
    fn a_long_range_takes_several_requests() {
        let mut bytes = Vec::new();
        FmtpWire.emit(
            &Message::Request { product: 5, segments: Vec::from([10..101]) },
            0,
            &mut bytes,
        );
        assert_eq!(bytes.len(), 3 * HEADER_LEN);
        let ranges =
            bytes.chunks(HEADER_LEN).map(|one| FmtpWire.parse(Via::Stream, one).unwrap().0);
        let wanted = [10..55, 55..100, 100..101];
        for (message, range) in ranges.zip(wanted) {
            assert_eq!(message, Message::Request { product: 5, segments: Vec::from([range]) });
        }
    }

    fn receiver(products_max: usize) -> Receiver {
        let profile = super::receiver(LINK_RATE);
        let config = ReceiverConfig { profile, size_max: u64::MAX, products_max, seed: 1 };
        Receiver::new(config, Timestamp::ZERO)
    }

    /// What the receiver says to this; a segment has five bytes.
    fn tell(receiver: &mut Receiver, via: Via, message: &Message) -> Vec<Message> {
        let (now, mut bytes) = (Timestamp::ZERO, Vec::new());
        let body: &[u8] = if matches!(message, Message::Data(_)) { &[7; 5] } else { &[] };
        FmtpWire.emit(message, body.len() as u16, &mut bytes);
        bytes.extend_from_slice(body);
        let told = match via {
            Via::Datagram => receiver.handle_datagram(now, &bytes),
            Via::Stream => receiver.handle_stream(now, &bytes),
        };
        told.unwrap();
        let said = core::iter::from_fn(|| receiver.poll_transmit());
        said.map(|(_, bytes)| FmtpWire.parse(Via::Stream, &bytes).unwrap().0).collect()
    }

    fn begin_of(product: u32, size: u64, repair: bool) -> Message {
        let (offered_unix_ns, metadata) = (0, Vec::new());
        Message::Begin(Begin { product, size, offered_unix_ns, metadata, repair })
    }

    fn data_of(product: u32, repair: bool) -> Message {
        Message::Data(Data { product, segment: 0, packet: 0, repair, size: None, clients: 0 })
    }

    #[test]
    fn a_product_for_which_there_was_no_room_is_asked_for_when_there_is() {
        let mut receiver = receiver(2);
        for product in 0..3 {
            assert_eq!(tell(&mut receiver, Via::Datagram, &begin_of(product, 5, false)), []);
            // Of the last not even its data, or its end, lead to a request.
            let asked = match product {
                0 | 1 => Vec::from([Message::Request { product, segments: Vec::from([0..1]) }]),
                _ => tell(&mut receiver, Via::Datagram, &data_of(product, false)),
            };
            let end = Message::End { product, repair: false };
            assert_eq!(tell(&mut receiver, Via::Datagram, &end), asked);
        }
        let said = tell(&mut receiver, Via::Stream, &data_of(0, true));
        assert_eq!(said, [Message::Complete { product: 0 }, Message::BeginRequest { product: 2 }]);
        // Another one was quicker.
        assert_eq!(tell(&mut receiver, Via::Datagram, &begin_of(3, 5, false)), []);
        assert_eq!(tell(&mut receiver, Via::Stream, &begin_of(2, 5, true)), []);
        let said = tell(&mut receiver, Via::Stream, &data_of(1, true));
        assert_eq!(said, [Message::Complete { product: 1 }, Message::BeginRequest { product: 2 }]);
        let said = tell(&mut receiver, Via::Stream, &begin_of(2, 5, true));
        assert_eq!(said, [Message::Request { product: 2, segments: Vec::from([0..1]) }]);
        let said = tell(&mut receiver, Via::Stream, &data_of(2, true));
        assert_eq!(said, [Message::Complete { product: 2 }]);
    }

    #[test]
    fn all_products_of_a_long_jump_are_asked_for_as_there_is_room() {
        let mut receiver = receiver(PRODUCTS_MAX);
        assert_eq!(tell(&mut receiver, Via::Datagram, &begin_of(0, 5, false)), []);
        let mut said = tell(&mut receiver, Via::Datagram, &begin_of(3000, 5, false));
        assert_eq!(said.len(), PRODUCTS_MAX - 2);
        for product in 1..3000 {
            assert_eq!(said.remove(0), Message::BeginRequest { product });
            // It is empty, or the sender has it no more.
            let answer = match product % 2 {
                0 => begin_of(product, 0, true),
                _ => Message::Rejected { product },
            };
            let more = tell(&mut receiver, Via::Stream, &answer).into_iter();
            said.extend(more.filter(|said| !matches!(said, Message::Complete { .. })));
        }
        assert_eq!(said, []);
        let events = core::iter::from_fn(|| receiver.poll_event());
        let complete = events.filter(|event| matches!(event, ReceiverEvent::Complete(..)));
        assert_eq!(complete.count(), 1499);
    }

    #[test]
    fn a_products_timer_is_two_and_a_half_times_its_transmission() {
        let feedback = FmtpFeedback::new(LINK_RATE);
        // 1 MB at 20 Mbit/s takes 0.4 s.
        assert_eq!(feedback.timer(1_000_000), Duration::from_secs(1));
        assert_eq!(feedback.timer(217), super::TIMER_MIN);
        let _ = feedback.timer(u64::MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60), flag in 0u32..12) {
            let mut bytes = bytes;
            if flag < 11 && bytes.len() >= HEADER_LEN {
                let len = (bytes.len() - HEADER_LEN) as u16;
                bytes[8..10].copy_from_slice(&len.to_be_bytes());
                bytes[10..12].copy_from_slice(&(1u16 << flag).to_be_bytes());
                let offset = 1448 * (u32::from(bytes[7]) % 9);
                bytes[4..8].copy_from_slice(&offset.to_be_bytes());
            }
            for via in [Via::Datagram, Via::Stream] {
                if let Ok((message, body)) = FmtpWire.parse(via, &bytes)
                    && !matches!(message, Message::Request { .. })
                {
                    let mut again = Vec::new();
                    FmtpWire.emit(&message, body.len() as u16, &mut again);
                    again.extend_from_slice(body);
                    // Lengths and offsets that mean nothing are not kept.
                    prop_assert_eq!(FmtpWire.parse(via, &again), Ok((message, body)));
                }
            }
            if let Ok(Some(len)) = FmtpWire.stream_len(&bytes) {
                prop_assert!(len >= HEADER_LEN);
            }
        }
    }
}
