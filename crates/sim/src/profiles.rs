//! Sessions of the papers' profiles in virtual time: their machines on a tree network.
//!
//! Datagrams go over the [`Network`] with its rates, queues and losses; a connection is a reliable way that shares
//! the sender's links: what is lost on it goes again after a round trip, and nothing overtakes. What receivers
//! send arrives after the delay of their path.

use crate::link::HEADERS_LEN;
use crate::network::{EdgeConfig, Network, NodeId};
use crate::rng::Rng;
use downpour_proto::profile::{
    Body, Interval, MemberReport, Mode, Offer, Product, Receiver, ReceiverConfig, ReceiverEvent,
    ReceiverProfile, ReceiverStats, Sender, SenderConfig, SenderEvent, SenderProfile, SenderStats,
    To, Via,
};
use downpour_proto::rate::RateLine;
use downpour_proto::{Duration, ReceiverId, Timestamp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// TCP's header with options beyond UDP's.
const TCP_EXTRA_LEN: u64 = 24;
/// Of a connection, one frame after the other.
const TRIES_MAX: u32 = 200;

/// A receiver of a session.
#[derive(Debug)]
pub struct Listener {
    /// Where it is.
    pub node: NodeId,
    /// When its program starts.
    pub starts: Duration,
    /// Feedback and wire.
    pub profile: ReceiverProfile,
}

/// A session to be run.
#[derive(Debug)]
pub struct Session {
    /// The network.
    pub edges: Vec<EdgeConfig>,
    /// Rate, recovery, wire of the sender.
    pub profile: SenderProfile,
    /// How it sends.
    pub mode: Mode,
    /// When it starts.
    pub starts: Duration,
    /// Its receivers.
    pub listeners: Vec<Listener>,
    /// Sizes of its products.
    pub products: Vec<u64>,
    /// Of all randomness.
    pub seed: u64,
    /// Stopped then.
    pub end: Duration,
}

/// What became of a receiver.
#[derive(Debug, Default)]
pub struct Heard {
    /// Products that it completed, with their tables, and when.
    pub complete: Vec<(Timestamp, u32, Product)>,
    /// Products that the sender had no more.
    pub rejected: Vec<u32>,
    /// What it printed.
    pub intervals: Vec<Interval>,
    /// Counters.
    pub stats: ReceiverStats,
}

/// What became of a session.
#[derive(Debug)]
pub struct Outcome {
    /// What the sender printed, and when.
    pub lines: Vec<(Timestamp, RateLine)>,
    /// What left the sender: when, where to, which segment.
    pub sent: Vec<(Timestamp, To, Option<Body>)>,
    /// N, after each period in which it printed.
    pub clients: Vec<u32>,
    /// Each receiver.
    pub heard: Vec<Heard>,
    /// Frame bytes that left the sender.
    pub wire_bytes: u64,
    /// Counters.
    pub stats: SenderStats,
    /// As the sender knows its receivers.
    pub members: Vec<MemberReport>,
    /// When the sender was done.
    pub done: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start,
    Join(usize),
    SenderTimer,
    ReceiverTimer(usize),
    Datagram(usize, Rc<[u8]>),
    Stream(usize, Rc<[u8]>),
    ToSender(usize, bool, Vec<u8>),
}

struct Host {
    receiver: Receiver,
    node: NodeId,
    started: bool,
    timer: Timestamp,
    /// When the newest frame of its connection arrives.
    stream_at: Timestamp,
}

struct World {
    now: Timestamp,
    network: Network,
    sender: Sender,
    hosts: Vec<Host>,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    number: u64,
    timer: Timestamp,
    outcome: Outcome,
}

impl Session {
    /// Runs it.
    pub fn run(self) -> Outcome {
        let mut rng = Rng::new(self.seed);
        let network = Network::new(self.edges, &mut rng);
        let config = SenderConfig { profile: self.profile, mode: self.mode, group: None };
        let mut sender = Sender::new(config, Timestamp::ZERO);
        for (product, size) in (0..).zip(&self.products) {
            let metadata = format!("product {product}").into_bytes();
            let offer = Offer { product, size: *size, offered_unix_ns: 0, metadata };
            assert!(sender.offer(Timestamp::ZERO, offer), "an impossible product");
        }
        sender.finish(Timestamp::ZERO);
        let products_max = self.products.len();
        let mut starts = Vec::new();
        let hosts = self.listeners.into_iter().map(|listener| {
            let Listener { node, profile, .. } = listener;
            let seed = rng.next_u64();
            starts.push(listener.starts);
            let config = ReceiverConfig { profile, size_max: u64::MAX, products_max, seed };
            let receiver = Receiver::new(config, Timestamp::ZERO + listener.starts);
            let timer = Timestamp::MAX;
            Host { receiver, node, started: false, timer, stream_at: Timestamp::ZERO }
        });
        let hosts: Vec<Host> = hosts.collect();
        let heard = hosts.iter().map(|_| Heard::default()).collect();
        let outcome = Outcome {
            lines: Vec::new(),
            sent: Vec::new(),
            clients: Vec::new(),
            heard,
            wire_bytes: 0,
            stats: SenderStats::default(),
            members: Vec::new(),
            done: None,
        };
        let mut world = World {
            now: Timestamp::ZERO,
            network,
            sender,
            hosts,
            events: BinaryHeap::new(),
            number: 0,
            timer: Timestamp::MAX,
            outcome,
        };
        world.push(Timestamp::ZERO + self.starts, Event::Start);
        for (index, start) in starts.into_iter().enumerate() {
            world.push(Timestamp::ZERO + start, Event::Join(index));
        }
        world.run(Timestamp::ZERO + self.end)
    }
}

impl World {
    fn push(&mut self, at: Timestamp, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    fn run(mut self, end: Timestamp) -> Outcome {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > end || self.outcome.done.is_some() {
                break;
            }
            self.now = at;
            self.handle(event);
        }
        for (heard, host) in self.outcome.heard.iter_mut().zip(&self.hosts) {
            heard.stats = *host.receiver.stats();
        }
        self.outcome.stats = *self.sender.stats();
        self.outcome.members = self.sender.members().map(|(_, report)| *report).collect();
        self.outcome
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Start => {
                self.sender.start(now);
                self.drive_sender();
            }
            Event::Join(index) => {
                self.hosts[index].started = true;
                self.sender.connect(now, ReceiverId(index as u32));
                self.drive_sender();
            }
            Event::SenderTimer => {
                self.timer = Timestamp::MAX;
                self.sender.handle_timeout(now);
                self.drive_sender();
            }
            Event::ReceiverTimer(index) => {
                self.hosts[index].timer = Timestamp::MAX;
                self.hosts[index].receiver.handle_timeout(now);
                self.drive_receiver(index);
            }
            Event::Datagram(index, bytes) => {
                if self.hosts[index].started {
                    self.hosts[index].receiver.handle_datagram(now, &bytes).expect("well formed");
                    self.drive_receiver(index);
                }
            }
            Event::Stream(index, bytes) => {
                self.hosts[index].receiver.handle_stream(now, &bytes).expect("well formed");
                self.drive_receiver(index);
            }
            Event::ToSender(index, by_stream, bytes) => {
                let from = ReceiverId(index as u32);
                let taken = match by_stream {
                    true => self.sender.handle_stream(now, from, &bytes),
                    false => self.sender.handle_datagram(now, from, &bytes),
                };
                taken.expect("well formed");
                self.drive_sender();
            }
        }
    }

    fn drive_sender(&mut self) {
        let mut header = Vec::new();
        while let Some(transmit) = self.sender.poll_transmit(self.now, &mut header) {
            let mut bytes = header.clone();
            bytes.resize(header.len() + transmit.body.map_or(0, |body| usize::from(body.len)), 0);
            self.outcome.sent.push((self.now, transmit.to, transmit.body));
            self.send(transmit.to, &bytes.into());
        }
        while let Some(event) = self.sender.poll_event() {
            match event {
                SenderEvent::Rate(line) => {
                    self.outcome.lines.push((self.now, line));
                    self.outcome.clients.push(self.sender.group().clients());
                }
                SenderEvent::Done => self.outcome.done = Some(self.now),
                SenderEvent::Complete(..) | SenderEvent::Released(_) => {}
            }
        }
        if let Some(at) = self.sender.poll_timeout()
            && at < self.timer
        {
            self.timer = at.max(self.now);
            self.push(self.timer, Event::SenderTimer);
        }
    }

    fn send(&mut self, to: To, bytes: &Rc<[u8]>) {
        let len = bytes.len() as u64 + HEADERS_LEN;
        match to {
            To::Group => {
                self.outcome.wire_bytes += len;
                let arrivals = self.network.multicast(self.now, len).to_vec();
                for index in 0..self.hosts.len() {
                    if let Some(at) = arrivals[self.hosts[index].node.0] {
                        self.push(at, Event::Datagram(index, bytes.clone()));
                    }
                }
            }
            To::Each => {
                for id in self.sender.joined_ids().collect::<Vec<_>>() {
                    self.send(To::Datagram(id), bytes);
                }
            }
            To::Datagram(id) => {
                let index = id.0 as usize;
                self.outcome.wire_bytes += len;
                if let Some(at) = self.network.unicast(self.now, self.hosts[index].node, len) {
                    self.push(at, Event::Datagram(index, bytes.clone()));
                }
            }
            To::Stream(id) => self.stream(id.0 as usize, bytes),
        }
    }

    fn stream(&mut self, index: usize, bytes: &Rc<[u8]>) {
        let len = bytes.len() as u64 + HEADERS_LEN + TCP_EXTRA_LEN;
        let node = self.hosts[index].node;
        let again = self.network.delay(node) * 2 + Duration::from_millis(1);
        let mut arrived = None;
        // A round trip later if it was lost, however often.
        let mut late = Duration::ZERO;
        for _ in 0..TRIES_MAX {
            self.outcome.wire_bytes += len;
            arrived = self.network.unicast(self.now, node, len);
            if arrived.is_some() {
                break;
            }
            late = again;
        }
        let at = arrived.expect("the connection is dead") + late;
        let at = at.max(self.hosts[index].stream_at);
        self.hosts[index].stream_at = at;
        self.push(at, Event::Stream(index, bytes.clone()));
    }

    fn drive_receiver(&mut self, index: usize) {
        let delay = self.network.delay(self.hosts[index].node);
        while let Some((via, bytes)) = self.hosts[index].receiver.poll_transmit() {
            let by_stream = via == Via::Stream;
            for part in parts(&self.hosts[index].receiver, by_stream, bytes) {
                self.push(self.now + delay, Event::ToSender(index, by_stream, part));
            }
        }
        while let Some(event) = self.hosts[index].receiver.poll_event() {
            let heard = &mut self.outcome.heard[index];
            match event {
                ReceiverEvent::Welcome { .. } => {
                    self.hosts[index].receiver.join(self.now, 1);
                    return self.drive_receiver(index);
                }
                ReceiverEvent::Complete(number, product) => {
                    heard.complete.push((self.now, number, product));
                }
                ReceiverEvent::Rejected(number) => heard.rejected.push(number),
                ReceiverEvent::Interval(interval) => heard.intervals.push(interval),
                ReceiverEvent::Opened { .. } => {}
            }
        }
        let host = &mut self.hosts[index];
        if let Some(at) = host.receiver.poll_timeout()
            && at < host.timer
        {
            host.timer = at.max(self.now);
            let at = host.timer;
            self.push(at, Event::ReceiverTimer(index));
        }
    }
}

/// Several messages on a connection may have been written at once.
fn parts(receiver: &Receiver, by_stream: bool, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while by_stream && !bytes.is_empty() {
        let len = receiver.wire().stream_len(&bytes).expect("our own").expect("whole");
        let rest = bytes.split_off(len);
        parts.push(std::mem::replace(&mut bytes, rest));
    }
    if !by_stream {
        parts.push(bytes);
    }
    parts
}
