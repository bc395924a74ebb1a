//! `bmtp`: the Bulk Multicast Protocol as SLAC built it (Ishihara 2002).
//!
//! Sender: segments of 1400 bytes behind a header of seven integers; new segments in order, what is NAKed before them,
//! all at one rate. Receiver:
//!
//! 1. A jump in segment numbers marks what lies between as missing now; so does silence, for all that is not here.
//! 2. For every packet it draws whether to send a status packet: with probability (1 + b·m/s)/N, m packets missing of
//!    s in the last interval of about a second, N the sender's estimate of its receivers. So all
//!    together send about one for each packet.
//! 3. The status packet names the segments that have been missing for 1000 ms; they count as missing anew from then.
//!
//! The paper gives no layout of the status packet, no rule for N and none for the silence: those here are ours
//! (`docs/profiles.md`). It carries no file name either.
//!
//! Deliberately absent: any knowledge at the sender of who has all. It ends when nobody has asked for a while.

use super::feedback::{Context, Feedback};
use super::message::{Data, Message, Parsed, Status, Via, Wire, segments};
use super::receiver::Interval;
use super::recovery::Shared;
use super::{ReceiverProfile, SenderProfile};
use crate::rate::Bmtp;
use crate::time::{Duration, Timestamp};
use crate::wire::ParseError;
use crate::wire::reader::Reader;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a segment, SEGSIZE.
pub const SEGMENT_LEN: u16 = 1400;
/// Seven integers of four bytes.
pub const HEADER_LEN: usize = 28;
/// What the figures started with, packets per second.
pub const RATE_INITIAL: f64 = 200.0;
/// A segment is asked for when it has been missing for this long.
pub const NAK_AFTER: Duration = Duration::from_millis(1000);
/// b of the kept status rule: its Fig. 4 prints ratio 1.206 for 23 missing of 558, and 1.329 for 99 of 1503.
const B: f64 = 5.0;
/// a of the rejected one.
const A: f64 = 0.1;
/// Rates are measured over at least this.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most NAKs in a status packet: as long as a data packet.
const NAKS_MAX: usize = SEGMENT_LEN as usize / 4;
/// The sender is silent when nothing came for this long and for this many packets.
const SILENT_AFTER: Duration = Duration::from_millis(500);
const SILENT_PACKETS: f64 = 20.0;
/// While it is, a receiver draws this often, and who has a NAK to send at no less than this: it may be the only one of many.
const SILENT_DRAW: Duration = Duration::from_millis(50);
const SILENT_SHARE: f64 = 0.1;
/// The sender ends when nobody has asked for this long and the time of so many packets: a silence is noticed, a NAK falls
/// due, and is drawn.
const QUIET: Duration = Duration::from_secs(5);
const QUIET_PACKETS: u32 = SILENT_PACKETS as u32;
/// The mark of a status packet, where data have 0 or 1.
const STATUS_MARK: u32 = 2;

/// When a status packet is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatusRule {
    /// 1/N + b·(m/s)/N, which the paper kept.
    #[default]
    Kept,
    /// max(m/s, a)/N, which it rejected.
    Rejected,
}

impl StatusRule {
    /// N times the probability: what the paper prints as "ratio".
    pub fn ratio(self, missing: u32, received: u32) -> f64 {
        let sent = f64::from(missing) + f64::from(received);
        let share = if sent > 0.0 { f64::from(missing) / sent } else { 0.0 };
        match self {
            Self::Kept => 1.0 + B * share,
            Self::Rejected => share.max(A),
        }
    }
}

/// A sender's profile that starts at `rate` packets per second and never exceeds `ceiling`.
pub fn sender(rate: f64, ceiling: f64) -> SenderProfile {
    SenderProfile {
        rate: Box::new(Bmtp::new(rate, ceiling)),
        recovery: Box::new(Shared::new(QUIET, false).with_packets(QUIET_PACKETS)),
        wire: Box::new(BmtpWire),
    }
}

/// A receiver's profile.
pub fn receiver(rule: StatusRule) -> ReceiverProfile {
    let feedback = Box::new(BmtpFeedback { rule, ..BmtpFeedback::default() });
    ReceiverProfile { feedback, wire: Box::new(BmtpWire) }
}

/// Seven integers, big-endian: session id, clients, bytes of the segment, segment, packet, repair mark, bytes of the
/// file. A status packet has the same seven places: session id, 0, packets per 1000 s, missing, received, mark 2,
/// number of NAKs; then the NAKs.
#[derive(Debug)]
struct BmtpWire;

impl Wire for BmtpWire {
    fn segment_len(&self) -> u16 {
        SEGMENT_LEN
    }

    fn packet_len(&self) -> u32 {
        u32::from(SEGMENT_LEN) + HEADER_LEN as u32
    }

    fn emit(&self, message: &Message, body_len: u16, out: &mut Vec<u8>) -> bool {
        let mut put = |words: [u32; 7]| {
            words.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        };
        match message {
            Message::Data(data) => {
                let size = data.size.and_then(|size| u32::try_from(size).ok()).unwrap_or(u32::MAX);
                let (body, repair) = (u32::from(body_len), u32::from(data.repair));
                let Data { product, clients, segment, packet, .. } = *data;
                put([product, clients, body, segment, packet, repair, size]);
            }
            Message::Status(status) => {
                let naks = &status.naks[..status.naks.len().min(NAKS_MAX)];
                let rate = (status.rate * 1000.0) as u32;
                let count = naks.len() as u32;
                let Status { product, missing, received, .. } = *status;
                put([product, 0, rate, missing, received, STATUS_MARK, count]);
                naks.iter().for_each(|nak| out.extend_from_slice(&nak.to_be_bytes()));
            }
            _ => return false,
        }
        true
    }

    fn parse<'a>(&self, via: Via, bytes: &'a [u8]) -> Result<Parsed<'a>, ParseError> {
        if via == Via::Stream {
            return Err(ParseError::UnknownType);
        }
        let mut reader = Reader::new(bytes);
        let mut words = [0u32; 7];
        for word in &mut words {
            *word = reader.u32()?;
        }
        let [product, clients, body_len, segment, packet, mark, size] = words;
        if mark == STATUS_MARK {
            let [_, _, rate, missing, received, _, count] = words;
            if count as usize > NAKS_MAX {
                return Err(ParseError::BadField);
            }
            let naks = (0..count).map(|_| reader.u32()).collect::<Result<Vec<u32>, _>>()?;
            reader.end()?;
            let rate = f64::from(rate) / 1000.0;
            let status = Status { product, rate, missing, received, naks };
            return Ok((Message::Status(status), &[]));
        }
        let count = segments(u64::from(size), SEGMENT_LEN).ok_or(ParseError::BadField)?;
        if mark > 1 || segment >= count {
            return Err(ParseError::BadField);
        }
        let body = reader.bytes(body_len as usize)?;
        reader.end()?;
        let (repair, size) = (mark == 1, Some(u64::from(size)));
        let data = Data { product, segment, packet, repair, size, clients };
        Ok((Message::Data(data), body))
    }
}

#[derive(Clone, Copy, Debug)]
struct Counting {
    since: Timestamp,
    received: u32,
    missing: u32,
}

#[derive(Debug, Default)]
struct BmtpFeedback {
    rule: StatusRule,
    product: u32,
    clients: u32,
    last_packet: Option<u32>,
    heard: Option<Timestamp>,
    counting: Option<Counting>,
    naks: u32,
    report: Option<Interval>,
    /// Missing since, in order of time; some may have come meanwhile.
    missing: VecDeque<(Timestamp, Range<u32>)>,
    /// All segments below have been heard of or noticed as missing.
    noticed: u32,
    silent: bool,
    deadline: Option<Timestamp>,
}

impl BmtpFeedback {
    fn silent_after(&self) -> Duration {
        // Of what was sent, as the sender counts when it waits: what was lost does not make it slower.
        let rate = self.report.map_or(0.0, |report| {
            let (received, missing) = (f64::from(report.received), f64::from(report.missing));
            report.rate * (received + missing) / received
        });
        let packets = if rate > 0.0 { SILENT_PACKETS / rate } else { 0.0 };
        SILENT_AFTER.max(Duration::from_secs_f64(packets.min(60.0)))
    }

    fn count(&mut self, cx: &mut Context<'_>, packet: u32) {
        let now = cx.now;
        let ahead = self.last_packet.map_or(1, |last| packet.wrapping_sub(last));
        let in_order = ahead != 0 && ahead <= u32::MAX / 2;
        if in_order {
            self.last_packet = Some(packet);
        }
        let Some(counting) = &mut self.counting else {
            self.counting = Some(Counting { since: now, received: 0, missing: 0 });
            return;
        };
        counting.received += 1;
        // A late one had been counted as missing.
        counting.missing = match in_order {
            true => counting.missing.saturating_add(ahead - 1),
            false => counting.missing.saturating_sub(1),
        };
        let Counting { since, received, missing } = *counting;
        let elapsed = now.since(since);
        if elapsed < INTERVAL {
            return;
        }
        let rate = f64::from(received) / elapsed.as_secs_f64();
        let (clients, naks) = (self.clients, core::mem::take(&mut self.naks));
        let ratio = self.rule.ratio(missing, received);
        let interval = Interval { at: now, clients, rate, missing, received, ratio, naks };
        self.report = Some(interval);
        cx.intervals.push(interval);
        self.counting = Some(Counting { since: now, received: 0, missing: 0 });
    }

    fn notice(&mut self, cx: &mut Context<'_>, end: u32) {
        let (from, age) = (self.noticed, cx.age);
        let Some(product) = cx.products.find_mut(self.product) else { return };
        for range in product.notice(from..end, age) {
            self.missing.push_back((cx.now, range));
        }
        self.noticed = self.noticed.max(end);
    }

    /// Sends a status packet, or not.
    fn draw(&mut self, cx: &mut Context<'_>) {
        let ratio = self.report.map_or(1.0, |report| report.ratio);
        let share = ratio / f64::from(self.clients.max(1));
        let least = if self.silent && self.is_due(cx.now) { SILENT_SHARE } else { 0.0 };
        if cx.rng.unit() >= share.max(least) {
            return;
        }
        let naks = self.due(cx);
        if self.report.is_none() && naks.is_empty() {
            return;
        }
        self.naks = self.naks.saturating_add(naks.len() as u32);
        let (rate, missing, received) =
            self.report.map_or((0.0, 0, 0), |r| (r.rate, r.missing, r.received));
        let product = self.product;
        cx.out.push(Message::Status(Status { product, rate, missing, received, naks }));
    }

    /// Something may have been missing for long enough.
    fn is_due(&self, now: Timestamp) -> bool {
        self.missing.front().is_some_and(|(since, _)| now.since(*since) >= NAK_AFTER)
    }

    /// Takes what has been missing for long enough; from now on it is missing anew.
    fn due(&mut self, cx: &mut Context<'_>) -> Vec<u32> {
        let mut naks = Vec::new();
        let Some(product) = cx.products.find(self.product) else { return naks };
        while let Some((since, range)) = self.missing.front().cloned() {
            if cx.now.since(since) < NAK_AFTER || naks.len() == NAKS_MAX {
                break;
            }
            self.missing.pop_front();
            let mut rest = range.clone();
            for segment in range {
                if naks.len() == NAKS_MAX {
                    break;
                }
                rest.start = segment + 1;
                if !product.has(segment) {
                    naks.push(segment);
                }
            }
            if !rest.is_empty() {
                self.missing.push_front((since, rest));
                break;
            }
        }
        let mut again: Vec<Range<u32>> = Vec::new();
        for &segment in &naks {
            match again.last_mut() {
                Some(last) if last.end == segment => last.end += 1,
                _ => again.push(segment..segment + 1),
            }
        }
        self.missing.extend(again.into_iter().map(|range| (cx.now, range)));
        naks
    }
}

impl Feedback for BmtpFeedback {
    fn on_data(&mut self, cx: &mut Context<'_>, data: &Data, _expected: u32) {
        let after = self.silent_after();
        if self.heard.is_some_and(|heard| cx.now.since(heard) > after) {
            // What came in a silence says nothing about what could have come.
            self.counting = None;
        }
        self.heard = Some(cx.now);
        self.silent = false;
        self.product = data.product;
        self.clients = data.clients.max(1);
        self.count(cx, data.packet);
        if !data.repair {
            self.notice(cx, data.segment);
            self.noticed = self.noticed.max(data.segment + 1);
        }
        self.draw(cx);
        self.deadline = Some(cx.now + self.silent_after());
    }

    fn on_over(&mut self, _cx: &mut Context<'_>, _product: u32) {
        self.missing.clear();
        self.deadline = None;
        self.heard = None;
    }

    fn on_timeout(&mut self, cx: &mut Context<'_>) {
        if self.deadline.is_none_or(|deadline| deadline > cx.now) {
            return;
        }
        if !self.silent {
            self.silent = true;
            let end = cx.products.find(self.product).map_or(0, |product| product.segments());
            self.notice(cx, end);
        }
        self.draw(cx);
        let due = self.missing.front().map(|(since, _)| *since + NAK_AFTER);
        self.deadline = due.map(|due| due.max(cx.now + SILENT_DRAW));
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::{BmtpWire, HEADER_LEN, NAKS_MAX, SEGMENT_LEN, StatusRule};
    use crate::profile::{Data, Message, Status, Via, Wire};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn the_printed_ratio_is_the_papers() {
        // Fig. 4: 23 missing at 533.9 packets/s, 99 missing at 1402.6.
        let ratio = |missing, received| StatusRule::Kept.ratio(missing, received);
        assert!((ratio(23, 535) - 1.206).abs() < 5e-4, "{}", ratio(23, 535));
        assert!((ratio(99, 1404) - 1.329).abs() < 5e-4, "{}", ratio(99, 1404));
        assert_eq!((ratio(0, 500), ratio(0, 0)), (1.0, 1.0));
        // Rejected: a tenth for the flawless, and never less.
        let ratio = |missing, received| StatusRule::Rejected.ratio(missing, received);
        assert_eq!((ratio(0, 500), ratio(5, 95), ratio(30, 70)), (0.1, 0.1, 0.3));
    }

    #[test]
    fn the_header_is_seven_integers() {
        let mut bytes = Vec::new();
        let size = Some(100_000_000);
        let data =
            Data { product: 9, segment: 71_428, packet: 80_000, repair: true, size, clients: 37 };
        assert!(BmtpWire.emit(&Message::Data(data), 800, &mut bytes));
        let words: Vec<u32> =
            bytes.chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [9, 37, 800, 71_428, 80_000, 1, 100_000_000]);
        assert_eq!(bytes.len(), HEADER_LEN);
        bytes.extend_from_slice(&[7; 800]);
        assert_eq!(BmtpWire.parse(Via::Datagram, &bytes), Ok((Message::Data(data), &[7; 800][..])));
        bytes.pop();
        assert!(BmtpWire.parse(Via::Datagram, &bytes).is_err());
    }

    #[test]
    fn a_status_packet_is_no_longer_than_a_data_packet() {
        let naks: Vec<u32> = (0..5000).collect();
        let status = Status { product: 9, rate: 200.995, missing: 23, received: 535, naks };
        let mut bytes = Vec::new();
        assert!(BmtpWire.emit(&Message::Status(status), 0, &mut bytes));
        assert_eq!(bytes.len(), HEADER_LEN + usize::from(SEGMENT_LEN));
        let Ok((Message::Status(status), _)) = BmtpWire.parse(Via::Datagram, &bytes) else {
            panic!()
        };
        assert_eq!((status.rate, status.missing, status.naks.len()), (200.995, 23, NAKS_MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(
            words in any::<[u32; 7]>(), mark in 0u32..4, small in any::<bool>(), body in 0usize..64
        ) {
            let mut words = words;
            words[5] = mark;
            if small {
                (words[2], words[3], words[6]) = (body as u32, words[3] % 4, words[6] % 5600);
            }
            let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            bytes.extend(vec![3; body]);
            if let Ok((Message::Data(data), rest)) = BmtpWire.parse(Via::Datagram, &bytes) {
                let mut again = Vec::new();
                BmtpWire.emit(&Message::Data(data), rest.len() as u16, &mut again);
                again.extend_from_slice(rest);
                prop_assert_eq!(again, bytes.clone());
            }
            for cut in 0..bytes.len().min(40) {
                let _ = BmtpWire.parse(Via::Datagram, &bytes[..cut]);
            }
        }
    }
}
