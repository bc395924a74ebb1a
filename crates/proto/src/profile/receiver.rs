//! The receiving machine of the papers' profiles.
//!
//! Takes what comes, keeps what is here of each product, says where bytes belong, and asks its feedback policy
//! what to say. Everything that comes in is hostile until it fits: a segment has exactly the bytes that its place has, a
//! product is within the limits, one that is over stays over.
//!
//! Deliberately absent: bytes. [`Placement`] tells the driver which part of the packet goes where.

use super::feedback::Context;
use super::message::{Begin, Data, Message, Mode, Via, Welcome};
use super::product::{Product, Products};
use super::{ReceiverProfile, Wire};
use crate::rng::Rng;
use crate::time::Timestamp;
use crate::wire::ParseError;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::Range;

/// Messages that wait for the driver.
const OUT_MAX: usize = 4096;

/// What a receiver needs to know from the start.
#[derive(Debug)]
pub struct ReceiverConfig {
    /// Feedback and wire.
    pub profile: ReceiverProfile,
    /// No product of more bytes is taken.
    pub size_max: u64,
    /// Most products open at once; one where a single file is expected.
    pub products_max: usize,
    /// Of all its randomness.
    pub seed: u64,
}

/// Where the bytes of a segment belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// In which product.
    pub product: u32,
    /// Where in it.
    pub offset: u64,
    /// Which bytes of the packet.
    pub bytes: Range<usize>,
}

/// What a receiver saw in about a second, as the paper's program prints it (Ishihara 2002, fig. 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// When it ended.
    pub at: Timestamp,
    /// The sender's estimate of its receivers.
    pub clients: u32,
    /// Packets per second that came.
    pub rate: f64,
    /// Packets that did not.
    pub missing: u32,
    /// Packets that came.
    pub received: u32,
    /// N times the probability of a status packet.
    pub ratio: f64,
    /// NAKs sent in the interval.
    pub naks: u32,
}

/// What the driver should know.
#[derive(Clone, Debug)]
pub enum Event {
    /// The sender tells how it will send; answer with [`Receiver::join`] when the socket is open.
    Welcome {
        /// By which mode.
        mode: Mode,
        /// Where to.
        group: Option<SocketAddr>,
    },
    /// A product is expected from now on.
    Opened {
        /// Which.
        product: u32,
        /// Its bytes.
        size: u64,
        /// What it is.
        metadata: Vec<u8>,
        /// When it was offered by the sender's clock, 0 if not said.
        offered_unix_ns: u64,
    },
    /// All of it is here. Its table goes with it.
    Complete(u32, Product),
    /// The sender has it no more: what is here of it will never be complete.
    Rejected(u32),
    /// An interval is over.
    Interval(Interval),
}

/// Counters for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Packets of segments that came.
    pub packets: u64,
    /// Of these repairs.
    pub repairs: u64,
    /// Of these with segments that were here.
    pub duplicates: u64,
    /// What was not understood, or did not fit.
    pub malformed: u64,
    /// Products that were beyond a limit.
    pub refused: u64,
    /// Products that the sender had no more.
    pub rejected: u64,
    /// Messages sent.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Segments asked for.
    pub asked: u64,
}

/// The receiving machine.
///
/// Contract as the [`Sender`](super::Sender)'s; what [`handle_datagram`](Self::handle_datagram) returns is placed before
/// [`poll_event`](Self::poll_event) is asked, so that what is complete is there.
#[derive(Debug)]
pub struct Receiver {
    profile: ReceiverProfile,
    products: Products,
    rng: Rng,
    start: Timestamp,
    now: Timestamp,
    out: VecDeque<(Via, Vec<u8>)>,
    events: VecDeque<Event>,
    stats: ReceiverStats,
}

impl Receiver {
    /// A receiver that has nothing.
    pub fn new(config: ReceiverConfig, now: Timestamp) -> Self {
        let ReceiverConfig { profile, size_max, products_max, seed } = config;
        Self {
            products: Products::new(profile.wire.segment_len(), size_max, products_max),
            profile,
            rng: Rng::new(seed),
            start: now,
            now,
            out: VecDeque::new(),
            events: VecDeque::new(),
            stats: ReceiverStats::default(),
        }
    }

    fn advance(&mut self, now: Timestamp) {
        debug_assert!(now >= self.now, "time ran backwards");
        self.now = now;
    }

    /// The socket for the sender's packets is open; datagrams for this receiver alone go to `port`.
    pub fn join(&mut self, now: Timestamp, port: u16) {
        self.advance(now);
        self.consult(|feedback, cx| {
            cx.out.push(Message::Join { port });
            feedback.on_joined(cx);
        });
    }

    // Inputs.

    /// A datagram of the sender.
    pub fn handle_datagram(
        &mut self,
        now: Timestamp,
        bytes: &[u8],
    ) -> Result<Option<Placement>, ParseError> {
        self.handle(now, Via::Datagram, bytes)
    }

    /// A whole message of the connection.
    pub fn handle_stream(
        &mut self,
        now: Timestamp,
        bytes: &[u8],
    ) -> Result<Option<Placement>, ParseError> {
        self.handle(now, Via::Stream, bytes)
    }

    fn handle(
        &mut self,
        now: Timestamp,
        via: Via,
        bytes: &[u8],
    ) -> Result<Option<Placement>, ParseError> {
        self.advance(now);
        let parsed = self.profile.wire.parse(via, bytes);
        if parsed.is_err() {
            self.stats.malformed += 1;
        }
        let (message, body) = parsed?;
        match message {
            Message::Data(data) => return Ok(self.data(&data, bytes.len(), body.len())),
            Message::Begin(begin) => {
                self.open(&begin);
                self.consult(|feedback, cx| feedback.on_begin(cx, begin.product, begin.repair));
                self.check_complete(begin.product);
            }
            Message::End { product, .. } => {
                if !self.products.is_over(product) {
                    self.consult(|feedback, cx| feedback.on_end(cx, product));
                }
            }
            Message::Rejected { product } => {
                if !self.products.is_over(product) {
                    self.products.close(product);
                    self.stats.rejected += 1;
                    self.consult(|feedback, cx| feedback.on_over(cx, product));
                    self.events.push_back(Event::Rejected(product));
                }
            }
            Message::Welcome(Welcome { begin, mode, group }) => {
                self.events.push_back(Event::Welcome { mode, group });
                self.open(&begin);
                self.check_complete(begin.product);
            }
            // What only a receiver says.
            Message::Join { .. }
            | Message::Status(_)
            | Message::Request { .. }
            | Message::BeginRequest { .. }
            | Message::EndRequest { .. }
            | Message::Complete { .. } => self.stats.malformed += 1,
        }
        Ok(None)
    }

    /// What is due by time alone.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.advance(now);
        if self.profile.feedback.deadline().is_some_and(|at| at <= now) {
            self.consult(|feedback, cx| feedback.on_timeout(cx));
        }
    }

    // Outputs.

    /// The next message to the sender, by datagram to where the data come from or by the connection.
    pub fn poll_transmit(&mut self) -> Option<(Via, Vec<u8>)> {
        let next = self.out.pop_front()?;
        self.stats.messages += 1;
        self.stats.message_bytes += next.1.len() as u64;
        Some(next)
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next product that is expected since the last call, before anything else that has happened.
    pub fn poll_opened(&mut self) -> Option<Event> {
        let at = self.events.iter().position(|event| matches!(event, Event::Opened { .. }))?;
        self.events.remove(at)
    }

    /// When to be called by time alone.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.profile.feedback.deadline()
    }

    /// Whether products are known of whose begin was missed and has not come.
    pub fn waits_for_begin(&self) -> bool {
        self.profile.feedback.waits_for_begin()
    }

    /// What is here.
    pub const fn products(&self) -> &Products {
        &self.products
    }

    /// How to cut what comes on the connection.
    pub fn wire(&self) -> &dyn Wire {
        &*self.profile.wire
    }

    /// Counters.
    pub const fn stats(&self) -> &ReceiverStats {
        &self.stats
    }

    // What is inside.

    fn open(&mut self, begin: &Begin) {
        let known = self.products.find(begin.product).is_some();
        if !self.products.open(self.now, begin) {
            self.stats.refused += 1;
            return;
        }
        if !known && self.products.find(begin.product).is_some() {
            let Begin { product, size, offered_unix_ns, ref metadata, .. } = *begin;
            let metadata = metadata.clone();
            self.events.push_back(Event::Opened { product, size, metadata, offered_unix_ns });
        }
    }

    fn data(&mut self, data: &Data, packet_len: usize, body_len: usize) -> Option<Placement> {
        let number = data.product;
        if self.products.is_over(number) {
            self.stats.duplicates += 1;
            return None;
        }
        if let Some(size) = data.size {
            let (metadata, repair, offered_unix_ns) = (Vec::new(), false, 0);
            self.open(&Begin { product: number, size, offered_unix_ns, metadata, repair });
        }
        let Some(product) = self.products.find(number) else {
            self.consult(|feedback, cx| feedback.on_unknown(cx, data));
            return None;
        };
        let fits = data.segment < product.segments()
            && data.size.is_none_or(|size| size == product.size)
            && body_len == usize::from(self.products.bytes_of(number, data.segment));
        if !fits {
            self.stats.malformed += 1;
            return None;
        }
        self.stats.packets += 1;
        self.stats.repairs += u64::from(data.repair);
        let (expected, age) = (product.heard(), self.now.since(self.start));
        let new = self.products.find_mut(number).is_some_and(|p| p.receive(data.segment, age));
        self.stats.duplicates += u64::from(!new);
        self.consult(|feedback, cx| feedback.on_data(cx, data, expected));
        self.check_complete(number);
        let offset = u64::from(data.segment) * u64::from(self.products.segment_len());
        let bytes = packet_len - body_len..packet_len;
        new.then_some(Placement { product: number, offset, bytes })
    }

    fn check_complete(&mut self, number: u32) {
        if !self.products.find(number).is_some_and(Product::is_complete) {
            return;
        }
        if let Some(product) = self.products.close(number) {
            self.events.push_back(Event::Complete(number, product));
            self.consult(|feedback, cx| {
                cx.out.push(Message::Complete { product: number });
                feedback.on_over(cx, number);
            });
        }
    }

    fn consult(&mut self, ask: impl FnOnce(&mut dyn super::Feedback, &mut Context<'_>)) {
        let (mut out, mut intervals) = (Vec::new(), Vec::new());
        let mut cx = Context {
            now: self.now,
            age: self.now.since(self.start),
            products: &mut self.products,
            rng: &mut self.rng,
            out: &mut out,
            intervals: &mut intervals,
        };
        ask(&mut *self.profile.feedback, &mut cx);
        self.events.extend(intervals.into_iter().map(Event::Interval));
        for message in out {
            let via = match &message {
                Message::Status(_) => Via::Datagram,
                _ => Via::Stream,
            };
            self.stats.asked += match &message {
                Message::Status(status) => status.naks.len() as u64,
                Message::Request { segments, .. } => segments.iter().map(|r| r.len() as u64).sum(),
                _ => 0,
            };
            let mut bytes = Vec::new();
            if self.out.len() < OUT_MAX && self.profile.wire.emit(&message, 0, &mut bytes) {
                self.out.push_back((via, bytes));
            }
        }
    }
}
