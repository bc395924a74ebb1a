//! A sender and some receivers on a small network in virtual time.

use downpour_proto::receiver::{self, Disposition, Pull};
use downpour_proto::sender::{self, Delivery};
use downpour_proto::wire::{Feedback, Kind, Need};
use downpour_proto::{
    BlockId, Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, Receiver, ReceiverConfig,
    ReceiverId, Rng, Round, Rounds, Sender, SenderConfig, StreamId, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const GEOMETRY: Geometry =
    Geometry { symbol_len: 1440, block_symbols: 256, ..Geometry::IPV4 };

pub(crate) struct Node {
    pub(crate) machine: Receiver,
    pub(crate) loss: f64,
    pub(crate) alive: bool,
    /// Its answers do not come to the sender.
    pub(crate) mute: bool,
    /// Nothing long comes to it.
    pub(crate) only_short: bool,
    /// Symbols kept, by block: any k distinct ones must be there when a block is completed.
    pub(crate) kept: BTreeMap<BlockId, BTreeSet<u16>>,
    pub(crate) stored: BTreeSet<BlockId>,
}

pub(crate) enum To {
    Receiver(usize, downpour_proto::wire::Header, Vec<u8>),
    Sender(ReceiverId, Vec<u8>),
    Bytes(usize, BlockId, u16),
    Repair(usize, BlockId, u16, u16),
}

pub(crate) fn config(delay: Duration, mbps: u64) -> SenderConfig {
    SenderConfig {
        geometry: GEOMETRY,
        stream: StreamId(9),
        epoch: Epoch(0),
        rate: Box::new(downpour_proto::rate::Fixed::new(Rate::from_mbps(mbps))),
        recovery: Box::new(Parity::default()),
        initial_rtt: delay * 2,
        window_blocks: 64,
        pull_share: PULL_SHARE_DEFAULT,
    }
}

pub(crate) struct Net {
    pub(crate) now: Timestamp,
    pub(crate) sender: Sender,
    pub(crate) nodes: Vec<Node>,
    pub(crate) delay: Duration,
    pub(crate) rng: Rng,
    pub(crate) queue: BTreeMap<(Timestamp, u64), To>,
    pub(crate) serial: u64,
    pub(crate) blocks: BTreeMap<BlockId, u16>,
    pub(crate) done: bool,
    pub(crate) left: Vec<ReceiverId>,
    /// Who was asked back to the stream, and whether nobody can come back.
    pub(crate) asked_back: Vec<ReceiverId>,
    pub(crate) none_rejoins: bool,
    /// Nothing comes through, either way; what is asked for by pull waits.
    pub(crate) is_cut: bool,
    /// How long a pull takes.
    pub(crate) pull_time: Duration,
}

impl Net {
    pub(crate) fn new(losses: &[f64], delay: Duration, mbps: u64) -> Self {
        let now = Timestamp::ZERO;
        let mut net = Self {
            now,
            sender: Sender::new(config(delay, mbps), now),
            nodes: Vec::new(),
            delay,
            rng: Rng::new(42),
            queue: BTreeMap::new(),
            serial: 0,
            blocks: BTreeMap::new(),
            done: false,
            left: Vec::new(),
            asked_back: Vec::new(),
            none_rejoins: false,
            is_cut: false,
            pull_time: delay * 4,
        };
        for loss in losses {
            net.join(*loss);
        }
        net
    }

    pub(crate) fn join(&mut self, loss: f64) {
        let me = ReceiverId(self.nodes.len() as u32 + 1);
        let config = ReceiverConfig {
            geometry: GEOMETRY,
            stream: StreamId(9),
            me,
            feedback: Box::new(Rounds),
            partial_blocks: 128,
            pulls: downpour_proto::receiver::PULLS_DEFAULT,
            resume: false,
            on_stream: true,
            greets: false,
            products: false,
        };
        let machine = Receiver::new(config, u64::from(me.0), self.now);
        let (kept, stored) = (BTreeMap::new(), BTreeSet::new());
        let (alive, mute, only_short) = (true, false, false);
        self.nodes.push(Node { machine, loss, alive, mute, only_short, kept, stored });
        assert!(self.sender.join(self.now, me, Delivery::Stream));
    }

    pub(crate) fn offer(&mut self, symbols: u32) {
        let mut left = symbols;
        let mut number = 0;
        while left > 0 {
            let k = left.min(u32::from(GEOMETRY.block_symbols)) as u16;
            let block = BlockId::data(number).unwrap();
            self.blocks.insert(block, k);
            self.sender.offer(self.now, block, k);
            left -= u32::from(k);
            number += 1;
        }
        self.sender.finish(self.now);
        self.sender.start(self.now);
    }

    pub(crate) fn post(&mut self, after: Duration, to: To) {
        self.serial += 1;
        self.queue.insert((self.now + after, self.serial), to);
    }

    pub(crate) fn drain_sender(&mut self) {
        let mut body = Vec::new();
        loop {
            while let Some(work) = self.sender.poll_work() {
                let done = match work {
                    sender::Work::Load { block, .. } => {
                        sender::WorkDone::Loaded { block, tail: GEOMETRY.symbol_len }
                    }
                    sender::Work::Encode { block, from, count } => {
                        sender::WorkDone::Encoded { block, until: from + count }
                    }
                    sender::Work::Release { .. } => continue,
                };
                self.sender.handle_work(self.now, done);
            }
            while let Some(event) = self.sender.poll_event() {
                match event {
                    sender::Event::StreamDone => self.done = true,
                    sender::Event::SourceSent { .. } | sender::Event::SourcePassed { .. } => {
                        panic!("the session does not stay open")
                    }
                    sender::Event::LeaveStream(id) | sender::Event::Unheard(id) => {
                        self.left.push(id);
                        self.nodes[id.0 as usize - 1].machine.set_on_stream(self.now, false);
                        self.drain_receiver(id.0 as usize - 1);
                    }
                    sender::Event::ReturnToStream(id) if self.none_rejoins => {
                        self.asked_back.push(id);
                        self.sender.set_delivery(self.now, id, Delivery::Pull);
                    }
                    sender::Event::ReturnToStream(id) => {
                        self.asked_back.push(id);
                        self.nodes[id.0 as usize - 1].machine.set_on_stream(self.now, true);
                        self.drain_receiver(id.0 as usize - 1);
                    }
                }
            }
            let Some(transmit) = self.sender.poll_transmit(self.now, &mut body) else { break };
            if matches!(transmit.header.kind, Kind::Symbol { .. }) {
                body.resize(usize::from(GEOMETRY.symbol_len), 0);
            }
            let is_long = matches!(transmit.header.kind, Kind::Symbol { .. } | Kind::Probe);
            for at in 0..self.nodes.len() {
                let node = &self.nodes[at];
                let is_cut = self.is_cut || is_long && node.only_short;
                if node.alive && !is_cut && self.rng.unit() >= node.loss {
                    self.post(self.delay, To::Receiver(at, transmit.header, body.clone()));
                }
            }
        }
    }

    /// Until the sender has closed all blocks; nobody needs more, and one says so.
    pub(crate) fn settle(&mut self) {
        self.drain_sender();
        while self.sender.open_blocks() > 0 {
            self.now = self.sender.poll_timeout().unwrap().at;
            self.sender.handle_timeout(self.now);
            self.drain_sender();
            let received = self.sender.packet().0;
            self.report(ReceiverId(1), self.sender.round(), received, Vec::new());
        }
    }

    pub(crate) fn drain_receiver(&mut self, at: usize) {
        let now = self.now;
        let mut body = Vec::new();
        let mut posts = Vec::new();
        let mut asked = 0;
        let node = &mut self.nodes[at];
        while let Some(work) = node.machine.poll_work() {
            match work {
                receiver::Work::Complete { block, k, .. } => {
                    let symbols = node.kept.remove(&block).unwrap_or_default();
                    let n = symbols.len();
                    assert!(n >= usize::from(k), "{block} from {n} symbols");
                    assert!(node.stored.insert(block), "{block} twice");
                    node.machine.handle_work(now, receiver::WorkDone::Stored(block));
                }
                receiver::Work::Forget { block } => {
                    node.kept.remove(&block);
                }
                receiver::Work::Pull(Pull::Bytes { block }) => {
                    asked = asked.max(block.number() + 1);
                    posts.push(To::Bytes(at, block, self.blocks[&block]));
                }
                receiver::Work::Pull(Pull::Repair { block, from, until }) => {
                    asked = asked.max(block.number() + 1);
                    posts.push(To::Repair(at, block, from, until));
                }
                receiver::Work::Seed { .. } => unreachable!("no resume here"),
            }
        }
        let answer =
            node.machine.poll_transmit(now, &mut body).filter(|_| !node.mute && !self.is_cut);
        if let Some((header, _)) = answer {
            let Kind::Feedback { receiver } = header.kind else { panic!("{header:?}") };
            posts.push(To::Sender(receiver, body));
        }
        while let Some(event) = node.machine.poll_event() {
            let delivery = match event {
                receiver::Event::SymbolsLost | receiver::Event::StreamLost => Delivery::Pull,
                receiver::Event::StreamHeard => Delivery::Stream,
                _ => continue,
            };
            self.sender.set_delivery(now, ReceiverId(at as u32 + 1), delivery);
        }
        if asked > 0 {
            self.sender.on_pull(now, asked);
        }
        for post in posts {
            let is_answer = matches!(post, To::Sender(..));
            self.post(if is_answer { self.delay } else { self.pull_time }, post);
        }
    }

    pub(crate) fn deliver(&mut self, to: To) {
        let now = self.now;
        match to {
            To::Sender(from, body) => {
                self.sender.handle_feedback(now, now, from, &body).unwrap();
                self.drain_sender();
            }
            To::Receiver(at, header, body) => {
                let node = &mut self.nodes[at];
                if !node.alive {
                    return;
                }
                let disposition = node.machine.handle_datagram(now, now, &header, &body).unwrap();
                if let (Disposition::Keep, Kind::Symbol { block, symbol, .. }) =
                    (disposition, header.kind)
                {
                    assert!(node.kept.entry(block).or_default().insert(symbol.raw()));
                }
                self.drain_receiver(at);
            }
            To::Bytes(at, block, k) => {
                let node = &mut self.nodes[at];
                if node.machine.pulled_bytes(now, block, k) {
                    assert!(node.stored.insert(block));
                    node.machine.handle_work(now, receiver::WorkDone::Stored(block));
                }
                self.drain_receiver(at);
            }
            To::Repair(at, block, from, until) => {
                let node = &mut self.nodes[at];
                if !node.machine.holds(block) {
                    let kept = node.kept.entry(block).or_default();
                    kept.extend((from..until).map(|i| 1024 + i));
                }
                node.machine.pulled_repair(now, block, from..until);
                self.drain_receiver(at);
            }
        }
    }

    /// What `from` asks for, whether it lacks it or not.
    pub(crate) fn ask(&mut self, from: ReceiverId, needs: Vec<Need>) {
        self.tell(from, self.sender.round(), needs);
    }

    pub(crate) fn tell(&mut self, from: ReceiverId, round: Round, needs: Vec<Need>) {
        self.report(from, round, 0, needs);
    }

    pub(crate) fn report(
        &mut self,
        from: ReceiverId,
        round: Round,
        received: u64,
        needs: Vec<Need>,
    ) {
        let told = Feedback {
            round,
            hold: Duration::ZERO,
            queue: Duration::ZERO,
            path_queue: Duration::ZERO,
            polled_at: self.now,
            received,
            host_drops: 0,
            data_held: 0,
            needs,
        };
        let mut body = Vec::new();
        told.emit(&mut body);
        self.sender.handle_feedback(self.now, self.now, from, &body).unwrap();
    }

    /// Runs until every live receiver has all, or `limit` of virtual time has passed.
    pub(crate) fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        self.drain_sender();
        while self.now < end && !self.complete() {
            let sender = self.sender.poll_timeout().map(|d| d.at);
            let nodes = self
                .nodes
                .iter()
                .filter(|n| n.alive)
                .filter_map(|n| n.machine.poll_timeout().map(|d| d.at));
            let packet = self.queue.keys().next().map(|k| k.0);
            let next = nodes.chain(sender).chain(packet).min().expect("something is pending");
            self.now = self.now.max(next);
            while let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= self.now) {
                let to = entry.remove();
                self.deliver(to);
            }
            self.sender.handle_timeout(self.now);
            self.drain_sender();
            for at in 0..self.nodes.len() {
                if self.nodes[at].alive {
                    self.nodes[at].machine.handle_timeout(self.now);
                    self.drain_receiver(at);
                }
            }
        }
    }

    pub(crate) fn complete(&self) -> bool {
        self.nodes.iter().filter(|n| n.alive).all(|n| n.machine.has_all())
    }

    pub(crate) fn ratio(&self) -> f64 {
        let stats = self.sender.stats();
        let source: u32 = self.blocks.values().map(|k| u32::from(*k)).sum();
        (stats.source_symbols + stats.repair_symbols) as f64 / f64::from(source)
    }
}
