//! A whole session in virtual time: the engine's sender and receivers, without bytes, on a tree network.
//!
//! The world is the driver of all machines at once. It does at once (or after a set time) what they ask for,
//! carries datagrams and feedback over the [`Network`], and plays the control plane: joins, receipts,
//! who leaves the stream, pulls. All follows from one seed.
//!
//! Invariants that it checks: blocks come of K distinct symbols, once; a receiver and the sender keep no
//! more than they may; time never runs backwards; and when all have everything or have died, the sender comes to
//! rest. Each machine has a clock of its own.

mod config;
mod ending;
mod events;
mod host;
mod ledger;
mod outcome;
mod products;
mod pulls;

pub use config::{Controller, ReceiverConfig, WorldConfig};
pub use outcome::{Fate, Outcome, ReceiverOutcome, bound};
pub use products::{Product, ideal_fifo};

use crate::hiccups::HiccupProcess;
use crate::link::{FRAME_LEN, HEADERS_LEN};
use crate::network::{Network, NodeId, is_cut};
use crate::rng::Rng;
use downpour_proto::receiver::{Event as ReceiverEvent, Pull, Work as ReceiverWork, WorkDone};
use downpour_proto::sender::{
    Delivery, Event as SenderEvent, Work as SenderWork, WorkDone as SenderDone,
};
use downpour_proto::wire::{HEADER_LEN, Kind, TAG_LEN};
use downpour_proto::{
    BlockId, Duration, Epoch, Parity, ReceiverId, Sender, SenderConfig, StreamId, SymbolId,
    Timestamp,
};
use events::{Event, Events, Index, ToReceiver, ToSender};
use host::{Datagram, Host, Log};
use products::Products;
use pulls::{PATIENCE, PIECE_LEN, PullServer, Request, TCP_PAYLOAD_LEN, block_of};
use std::collections::VecDeque;
use std::rc::Rc;

/// As in `downpour`.
const INITIAL_RTT: Duration = Duration::from_millis(20);

/// How often the control plane tells receivers off the stream how far it is.
const ENDS_INTERVAL: Duration = Duration::from_millis(50);

/// The sender gives up a receiver that died silently after this.
const DEATH_NOTICED: Duration = Duration::from_secs(5);

/// More events than this within one instant are a loop.
const AT_ONCE_MAX: u32 = 1_000_000;

/// Receivers of one node with the same delay: they see the same datagrams at the same times.
#[derive(Debug)]
struct Group {
    node: NodeId,
    delay: Duration,
    log: Log,
    members: Vec<Index>,
}

/// A world at work. See [`World::run`].
#[derive(Debug)]
pub struct World {
    config: WorldConfig,
    now: Timestamp,
    rng: Rng,
    events: Events,
    network: Network,
    sender: Sender,
    hiccups: HiccupProcess,
    hosts: Vec<Host>,
    groups: Vec<Group>,
    rough: Vec<Index>,
    group_of: Vec<Option<usize>>,
    offers: VecDeque<(BlockId, u16)>,
    products: Products,
    offered_all: bool,
    sender_timer: Timestamp,
    pulls: PullServer,
    number: u64,
    message: Vec<u8>,
    empty: Rc<[u8]>,
    stats: outcome::Counters,
    unfinished: usize,
    stream_done: bool,
    /// Events in this instant.
    at_once: u32,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(config: WorldConfig) -> Self {
        let mut rng = Rng::new(config.seed);
        let network = Network::new(config.edges.clone(), &mut rng);
        let zeros: Rc<[u8]> = vec![0; usize::from(config.geometry.symbol_len)].into();
        let hosts: Vec<Host> =
            (0..config.receivers.len()).map(|i| Host::new(i, &config, &zeros, &mut rng)).collect();
        let (groups, group_of, rough) = group(&hosts);
        let sender = Sender::new(
            SenderConfig {
                geometry: config.geometry,
                stream: StreamId(1),
                epoch: Epoch(0),
                rate: config.controller.build(),
                recovery: Box::new(Parity::default()),
                initial_rtt: INITIAL_RTT,
                window_blocks: config.window_blocks,
                pull_share: config.pull_share,
            },
            Timestamp::ZERO,
        );
        Self {
            offers: blocks(&config),
            products: Products::new(&config),
            unfinished: hosts.len(),
            now: Timestamp::ZERO,
            events: Events::default(),
            network,
            sender,
            hiccups: HiccupProcess::new(config.hiccups, &mut rng),
            hosts,
            groups,
            rough,
            group_of,
            offered_all: false,
            sender_timer: Timestamp::MAX,
            pulls: PullServer::default(),
            number: 0,
            message: Vec::new(),
            empty: Rc::from([]),
            stats: outcome::Counters::default(),
            stream_done: false,
            at_once: 0,
            rng,
            config,
        }
    }

    /// Runs a session to its end.
    pub fn run(config: WorldConfig) -> Outcome {
        let mut world = Self::new(config);
        world.begin();
        let end = Timestamp::ZERO + world.config.end;
        while world.unfinished > 0 && world.step(end) {}
        let outcome = world.outcome();
        if world.config.check && world.unfinished == 0 {
            world.check_end();
        }
        outcome
    }

    /// The next event. False: none comes until then.
    fn step(&mut self, until: Timestamp) -> bool {
        let Some((at, event)) = self.events.pop() else { return false };
        if at > until {
            self.events.push(at, event);
            return false;
        }
        debug_assert!(at >= self.now);
        self.at_once = if at == self.now { self.at_once + 1 } else { 0 };
        assert!(self.at_once < AT_ONCE_MAX, "time stands still at {at:?}: {event:?}");
        self.now = at;
        let awake = self.awake(event.host());
        if awake > at {
            self.events.push(awake, event);
        } else {
            self.handle(event);
        }
        true
    }

    /// When the process of `host` notices what happens now.
    fn awake(&self, host: events::Host) -> Timestamp {
        match host {
            events::Host::Sender => self.hiccups.awake(self.now),
            events::Host::Receiver(index) => self.hosts[index].awake(self.now),
            events::Host::None => self.now,
        }
    }

    fn begin(&mut self) {
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index].config;
            if let Some(dies) = host.dies {
                self.events.push(Timestamp::ZERO + dies, Event::Death(index));
            }
            if host.joins.is_zero() {
                self.join(index);
            } else {
                self.events.push(Timestamp::ZERO + host.joins, Event::Join(index));
            }
        }
        if let Some(ceiling) = self.config.ceiling {
            self.sender.set_ceiling(self.now, ceiling);
        }
        self.sender.start(self.now);
        if let Some(first) = self.products.next_at() {
            self.sender.stay_open(self.now);
            self.events.push(first, Event::Insert);
        }
        self.events.push(self.now + ENDS_INTERVAL, Event::Ends);
        self.drive_sender();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::SenderTimer => {
                self.sender_timer = Timestamp::MAX;
                self.sender.handle_timeout(self.now);
                self.drive_sender();
            }
            Event::SenderWork(done) => {
                self.sender.handle_work(self.now, done);
                self.drive_sender();
            }
            Event::GroupMessage(group) => self.group_message(group),
            Event::Message(index) => self.drive_receiver(index),
            Event::ReceiverTimer(index) => {
                self.hosts[index].timer = Timestamp::MAX;
                self.drive_receiver(index);
            }
            Event::ReceiverWork(index, done) => {
                self.catch_up(index);
                self.receiver_done(index, done);
                self.drive_receiver(index);
            }
            Event::Feedback(from, arrived, body) => {
                self.stats.on_feedback(self.sender.round());
                let taken = self.sender.handle_feedback(self.now, arrived, from, &body);
                taken.expect("the receivers' feedback is well formed");
                if self.config.trace {
                    self.print_trace(from);
                }
                self.drive_sender();
            }
            Event::Insert => {
                self.insert();
                self.drive_sender();
            }
            Event::Join(index) => {
                self.join(index);
                self.drive_sender();
            }
            Event::Death(index) => self.die(index),
            Event::ToSender(from, what) => self.at_sender(from, what),
            Event::ToReceiver(index, what) => self.at_receiver(index, what),
            Event::Serve => {
                self.pulls.scheduled = false;
                self.serve();
            }
            Event::Ends => {
                self.tell_ends();
                self.events.push(self.now + ENDS_INTERVAL, Event::Ends);
            }
        }
    }

    fn print_trace(&self, from: ReceiverId) {
        let (rate, stats) = (self.sender.rate_summary(), self.sender.stats());
        println!(
            "{:?} from {from} round {:?}: {} {:?} bottleneck {:?} queue {:?} chance {:.4} limiting {:?} \
             grtt {:?} open {} source {} repair {} ({} proactive) nacks {} dropped {}",
            self.now,
            self.sender.round(),
            rate.rate,
            rate.phase,
            rate.bottleneck.map(|r| r.to_string()),
            rate.queue_delay,
            rate.random_loss,
            rate.limiting,
            self.sender.grtt(),
            self.sender.open_blocks(),
            stats.source_symbols,
            stats.repair_symbols,
            stats.proactive_symbols,
            stats.nacks,
            self.network.dropped(),
        );
    }

    // Joining and leaving.

    fn join(&mut self, index: Index) {
        let log_end = self.group_of[index].map_or(0, |group| self.groups[group].log.end());
        let host = &mut self.hosts[index];
        if host.dead {
            return;
        }
        host.join(log_end);
        let delivery = if host.config.pull_only { Delivery::Pull } else { Delivery::Stream };
        let id = host.id;
        let rtt = (self.network.delay(host.config.node) + host.delay()) * 2;
        if delivery == Delivery::Stream {
            self.sender.expect_round_trip(rtt);
        }
        assert!(self.sender.join(self.now, id, delivery), "the session is full");
        self.drive_receiver(index);
    }

    fn die(&mut self, index: Index) {
        let host = &mut self.hosts[index];
        if host.dead || host.ended {
            return;
        }
        host.dead = true;
        let id = host.id;
        self.unfinished -= usize::from(host.completed_at.is_none());
        let noticed = self.now + DEATH_NOTICED;
        self.events.push(noticed, Event::ToSender(id, ToSender::Delivery(Delivery::Ended)));
    }

    // The sender's driver.

    fn drive_sender(&mut self) {
        loop {
            self.offer();
            let mut message = std::mem::take(&mut self.message);
            while let Some(transmit) = self.sender.poll_transmit(self.now, &mut message) {
                self.multicast(&transmit, &message);
            }
            self.message = message;
            let mut worked = false;
            while let Some(work) = self.sender.poll_work() {
                worked |= self.sender_work(work);
            }
            while let Some(event) = self.sender.poll_event() {
                self.sender_event(event);
            }
            if !worked {
                break;
            }
        }
        assert!(self.sender.open_blocks() <= self.config.window_blocks.max(128));
        if let Some(deadline) = self.sender.poll_timeout()
            && deadline.at < self.sender_timer
        {
            self.sender_timer = deadline.at.max(self.now);
            self.events.push(self.sender_timer, Event::SenderTimer);
        }
    }

    /// Products whose time has come are offered, each in blocks of its own.
    fn insert(&mut self) {
        self.offers.extend(self.products.insert(self.now, self.config.geometry));
        if let Some(next) = self.products.next_at() {
            self.events.push(next, Event::Insert);
        }
    }

    fn offer(&mut self) {
        while self.sender.offer_room() > 0 {
            let Some((block, k)) = self.offers.pop_front() else { break };
            self.sender.offer(self.now, block, k);
        }
        let over = self.offers.is_empty() && self.products.next_at().is_none();
        if over && !self.offered_all {
            self.offered_all = true;
            self.sender.finish(self.now);
        }
    }

    /// True when the machine was told the result at once.
    fn sender_work(&mut self, work: SenderWork) -> bool {
        let (done, after) = match work {
            SenderWork::Load { block, .. } => {
                let tail = self.products.tail(block).unwrap_or(self.config.geometry.symbol_len);
                (SenderDone::Loaded { block, tail }, self.config.load_time)
            }
            SenderWork::Encode { block, from, count } => {
                (SenderDone::Encoded { block, until: from + count }, self.config.code_time)
            }
            SenderWork::Release { .. } => return false,
        };
        if after.is_zero() {
            self.sender.handle_work(self.now, done);
        } else {
            self.events.push(self.now + after, Event::SenderWork(done));
        }
        after.is_zero()
    }

    fn sender_event(&mut self, event: SenderEvent) {
        match event {
            SenderEvent::LeaveStream(id) | SenderEvent::Unheard(id) => {
                self.tell(id, ToReceiver::OnStream(false))
            }
            SenderEvent::ReturnToStream(id) => self.tell(id, ToReceiver::OnStream(true)),
            SenderEvent::SourceSent { .. } | SenderEvent::SourcePassed { .. } => {}
            SenderEvent::StreamDone => {
                self.stream_done = true;
                self.tell_ends();
            }
        }
    }

    fn multicast(&mut self, transmit: &downpour_proto::sender::Transmit, message: &[u8]) {
        self.number += 1;
        let is_symbol = matches!(transmit.header.kind, Kind::Symbol { .. });
        let body_len = transmit.body_len;
        let datagram = Datagram {
            number: self.number,
            header: transmit.header,
            body: if is_symbol { Rc::clone(&self.empty) } else { message.into() },
            body_len,
            frame_len: transmit.datagram_len() as u64 + HEADERS_LEN,
        };
        self.stats.stream_bytes += datagram.frame_len;
        let arrivals = self.network.multicast(self.now, datagram.frame_len);
        for (index, group) in self.groups.iter_mut().enumerate() {
            let Some(at) = arrivals[group.node.0] else { continue };
            if !is_symbol {
                self.events.push(at + group.delay, Event::GroupMessage(index));
            }
            group.log.push(at, datagram.clone());
        }
        for &index in &self.rough {
            let host = &mut self.hosts[index];
            if !host.is_listening() || !host.on_stream {
                continue;
            }
            let Some(at) = arrivals[host.config.node.0] else { continue };
            for look in host.enter(at, &datagram).into_iter().flatten() {
                self.events.push(look, Event::Message(index));
            }
        }
    }

    // The receivers' driver.

    fn group_message(&mut self, group: usize) {
        let members = std::mem::take(&mut self.groups[group].members);
        for &index in &members {
            let awake = self.hosts[index].awake(self.now);
            if awake == self.now {
                self.drive_receiver(index);
            } else {
                self.events.push(awake, Event::Message(index));
            }
        }
        let listening = members.iter().map(|index| &self.hosts[*index]);
        let seen = listening.filter(|h| h.is_listening()).map(Host::seen).min();
        let group = &mut self.groups[group];
        group.members = members;
        group.log.forget(seen.unwrap_or(u64::MAX));
    }

    fn catch_up(&mut self, index: Index) {
        let host = &mut self.hosts[index];
        match self.group_of[index] {
            Some(group) => host.catch_up(self.now, &self.groups[group].log),
            None => host.catch_up(self.now, &Log::default()),
        }
    }

    fn drive_receiver(&mut self, index: Index) {
        if !self.hosts[index].is_listening() {
            return;
        }
        self.catch_up(index);
        let now = self.hosts[index].clock(self.now);
        self.hosts[index].machine.handle_timeout(now);
        while let Some(work) = self.hosts[index].machine.poll_work() {
            self.receiver_work(index, work);
        }
        while let Some(event) = self.hosts[index].machine.poll_event() {
            self.receiver_event(index, event);
        }
        self.send_feedback(index);
        self.look_at(index);
    }

    /// Bounds, completion, next timer.
    fn look_at(&mut self, index: Index) {
        let host = &mut self.hosts[index];
        let partial = host.machine.partial_blocks();
        host.most_partial = host.most_partial.max(partial);
        if let Some(ledger) = &host.ledger {
            let kept = ledger.kept_blocks();
            assert!(
                kept <= partial.max(self.config.partial_blocks),
                "{kept} kept, {partial} known"
            );
        }
        if host.completed_at.is_none() && host.machine.has_all() {
            host.completed_at = Some(self.now);
            host.dead = true; // It has left; the sender learns of it by the receipt.
            self.unfinished -= 1;
            let (id, back) = (host.id, self.back(index));
            self.events.push(back, Event::ToSender(id, ToSender::Receipt));
            return;
        }
        if let Some(due) = host.next_timeout()
            && due < host.timer
        {
            host.timer = due.max(self.now);
            self.events.push(host.timer, Event::ReceiverTimer(index));
        }
    }

    fn receiver_work(&mut self, index: Index, work: ReceiverWork) {
        match work {
            ReceiverWork::Seed { block, .. } => {
                let now = self.hosts[index].clock(self.now);
                self.hosts[index].machine.seeded(now, block, &[]);
            }
            ReceiverWork::Complete { block, k, decode } => {
                let host = &mut self.hosts[index];
                if let Some(ledger) = &mut host.ledger {
                    ledger.complete(host.id, block, k);
                }
                let after = if decode { self.config.code_time } else { Duration::ZERO };
                if let Some(ready) = host.ready.get_mut(&block) {
                    *ready = *ready + after;
                }
                self.store(index, block, self.now + after);
            }
            ReceiverWork::Pull(pull) => {
                let (id, at) = (self.hosts[index].id, self.back(index));
                self.events.push(at, Event::ToSender(id, ToSender::Pull(pull)));
            }
            ReceiverWork::Forget { block } => {
                if let Some(ledger) = &mut self.hosts[index].ledger {
                    ledger.forget(block);
                }
            }
        }
    }

    /// A block is rebuilt at `at`, and then stored.
    fn store(&mut self, index: Index, block: BlockId, at: Timestamp) {
        let (stored, done) = (self.hosts[index].store(at), WorkDone::Stored(block));
        if stored == self.now {
            self.receiver_done(index, done);
        } else {
            self.events.push(stored, Event::ReceiverWork(index, done));
        }
    }

    fn receiver_done(&mut self, index: Index, done: WorkDone) {
        let host = &mut self.hosts[index];
        if let (Some(ledger), WorkDone::Stored(block)) = (&mut host.ledger, done) {
            ledger.store(host.id, block);
        }
        if let WorkDone::Stored(block) = done {
            // It was there before its receiver caught up with the log.
            let ready = host.ready.remove(&block).unwrap_or(self.now);
            self.products.stored(index, block, ready);
        }
        host.machine.handle_work(host.clock(self.now), done);
    }

    fn receiver_event(&mut self, index: Index, event: ReceiverEvent) {
        let delivery = match event {
            ReceiverEvent::StreamLost | ReceiverEvent::SymbolsLost | ReceiverEvent::LeaveStream => {
                Delivery::Pull
            }
            ReceiverEvent::StreamHeard => Delivery::Stream,
            ReceiverEvent::StreamQuiet | ReceiverEvent::Neighbour(_) => return,
        };
        let at = self.back(index).max(self.hosts[index].told);
        self.hosts[index].told = at;
        let word = Event::ToSender(self.hosts[index].id, ToSender::Delivery(delivery));
        self.events.push(at, word);
    }

    fn send_feedback(&mut self, index: Index) {
        let mut message = std::mem::take(&mut self.message);
        let now = self.hosts[index].clock(self.now);
        while self.hosts[index].machine.poll_transmit(now, &mut message).is_some() {
            let len = (HEADER_LEN + message.len() + TAG_LEN) as u64 + HEADERS_LEN;
            self.stats.feedback_bytes += len;
            let (node, at) = (self.hosts[index].config.node, self.back_now(index));
            let cut = self.network.is_cut(self.now, node)
                || is_cut(&self.hosts[index].config.cuts, self.now);
            if !cut && !self.rng.chance(self.config.feedback_loss) {
                let id = self.hosts[index].id;
                self.events.push(at, Event::Feedback(id, at, message.clone()));
            }
        }
        self.message = message;
    }

    // The control plane: TLS, so that what a cut holds up comes when the way is open again.

    fn back_now(&self, index: Index) -> Timestamp {
        let host = &self.hosts[index];
        self.now + self.network.delay(host.config.node) + host.delay()
    }

    fn back(&self, index: Index) -> Timestamp {
        let host = &self.hosts[index];
        let mut leaves = self.now;
        while self.network.is_cut(leaves, host.config.node) || is_cut(&host.config.cuts, leaves) {
            leaves = leaves + Duration::from_millis(200);
        }
        leaves + self.network.delay(host.config.node) + host.delay()
    }

    fn tell(&mut self, id: ReceiverId, what: ToReceiver) {
        let index = id.0 as usize - 1;
        let at = self.back(index);
        self.events.push(at, Event::ToReceiver(index, what));
    }

    fn tell_ends(&mut self) {
        let (data, manifest, finished) = self.sender.ends();
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            let needs = host.is_listening() && (!host.on_stream || self.stream_done);
            if needs {
                self.tell(self.hosts[index].id, ToReceiver::Ends(data, manifest, finished));
            }
        }
    }

    fn at_sender(&mut self, from: ReceiverId, what: ToSender) {
        let index = from.0 as usize - 1;
        match what {
            ToSender::Delivery(delivery) => {
                if !self.hosts[index].ended {
                    self.hosts[index].ended = delivery == Delivery::Ended;
                    self.sender.set_delivery(self.now, from, delivery);
                }
            }
            ToSender::Receipt => {
                self.hosts[index].ended = true;
                self.sender.set_delivery(self.now, from, Delivery::Ended);
            }
            ToSender::Pull(pull) => {
                let left = match pull {
                    Pull::Repair { from, until, .. } => u64::from(until - from),
                    Pull::Bytes { block } => u64::from(self.symbols_of(block)),
                } * u64::from(self.config.geometry.symbol_len);
                let request =
                    Request { receiver: index, pull, left, ready_at: self.now, asked_at: self.now };
                self.pulls.requests.push_back(request);
                self.serve();
                let block = block_of(&pull);
                if block.kind() == downpour_proto::BlockKind::Data {
                    self.sender.on_pull(self.now, block.number() + 1);
                }
            }
        }
        self.drive_sender();
    }

    fn at_receiver(&mut self, index: Index, what: ToReceiver) {
        if !self.hosts[index].is_listening() {
            return;
        }
        self.catch_up(index);
        let host = &mut self.hosts[index];
        let now = host.clock(self.now);
        match what {
            ToReceiver::OnStream(on) => {
                host.on_stream = on;
                host.machine.set_on_stream(now, on);
            }
            ToReceiver::Ends(data, manifest, finished) => {
                host.machine.update_ends(now, data, manifest, finished);
            }
            ToReceiver::Pulled(Pull::Repair { block, from, until }) => {
                // It may have gone meanwhile.
                let wants = host.machine.is_collecting(block);
                if let Some(ledger) = host.ledger.as_mut().filter(|_| wants) {
                    (from..until).for_each(|i| ledger.pulled(block, SymbolId::repair(i)));
                }
                host.machine.pulled_repair(now, block, from..until);
            }
            ToReceiver::Pulled(Pull::Bytes { block }) => {
                let k = self.symbols_of(block);
                let host = &mut self.hosts[index];
                if host.machine.pulled_bytes(now, block, k) {
                    if let Some(ledger) = &mut host.ledger {
                        ledger.pulled_whole(block);
                    }
                    self.store(index, block, self.now);
                }
            }
            ToReceiver::PullFailed(pull) => {
                host.machine.handle_work(now, WorkDone::PullFailed(block_of(&pull)));
            }
        }
        self.drive_receiver(index);
    }

    fn symbols_of(&self, block: BlockId) -> u16 {
        if let Some(k) = self.products.symbols(block) {
            return k;
        }
        let len = match block.kind() {
            downpour_proto::BlockKind::Data => self.config.data_len,
            downpour_proto::BlockKind::Manifest => self.config.manifest_len,
        };
        self.config.geometry.symbols_of(block.number(), len)
    }

    /// Serves pulls as far as the budget goes.
    fn serve(&mut self) {
        loop {
            let mut request = match self.pulls.next(self.now) {
                Ok(request) => request,
                Err(again) => {
                    if let Some(at) = again.filter(|_| !self.pulls.scheduled) {
                        self.pulls.scheduled = true;
                        self.events.push(at, Event::Serve);
                    }
                    return;
                }
            };
            if !self.hosts[request.receiver].is_listening() {
                continue;
            }
            let piece = request.left.min(PIECE_LEN);
            self.pulls.spend(self.now, piece, self.sender.shares().pulls);
            let (carried, at) = self.carry(request.receiver, piece);
            request.left -= carried;
            if carried > 0 {
                request.asked_at = self.now;
            }
            if request.left == 0 {
                let event = ToReceiver::Pulled(request.pull);
                self.events.push(at, Event::ToReceiver(request.receiver, event));
            } else if self.now.since(request.asked_at) > PATIENCE {
                let at = self.back(request.receiver);
                let event = ToReceiver::PullFailed(request.pull);
                self.events.push(at, Event::ToReceiver(request.receiver, event));
            } else {
                request.ready_at = at;
                self.pulls.requests.push_back(request);
            }
        }
    }

    /// Sends `bytes` to one receiver by TCP: how many arrive, and when the next may be sent (when the last
    /// has arrived, or a loss has been noticed).
    fn carry(&mut self, index: Index, bytes: u64) -> (u64, Timestamp) {
        let node = self.hosts[index].config.node;
        let noticed = self.back_now(index) + Duration::from_millis(1);
        if is_cut(&self.hosts[index].config.cuts, self.now) {
            return (0, noticed);
        }
        let (mut left, mut arrived, mut last) = (bytes, 0, noticed);
        while left > 0 {
            let len = left.min(TCP_PAYLOAD_LEN);
            left -= len;
            let passed = self.network.unicast(self.now, node, FRAME_LEN);
            // What is lost does not hold up what is behind it, and is sent again.
            let Some(at) = passed.and_then(|at| self.hosts[index].pass(at, FRAME_LEN)) else {
                continue;
            };
            (arrived, last) = (arrived + len, at);
        }
        (arrived, if arrived == bytes { last } else { last.max(noticed) })
    }
}

/// The blocks of a session in the order of sending.
fn blocks(config: &WorldConfig) -> VecDeque<(BlockId, u16)> {
    let geometry = config.geometry;
    let number = |n: u64| u32::try_from(n).expect("fewer blocks than ids");
    let manifest = (0..number(geometry.blocks(config.manifest_len))).map(|n| {
        let block = BlockId::manifest(n).expect("fewer blocks than ids");
        (block, geometry.symbols_of(n, config.manifest_len))
    });
    let data = (0..number(geometry.blocks(config.data_len))).map(|n| {
        let block = BlockId::data(n).expect("fewer blocks than ids");
        (block, geometry.symbols_of(n, config.data_len))
    });
    manifest.chain(data).collect()
}

/// Sorts the receivers into groups; those with rough edges stand alone.
fn group(hosts: &[Host]) -> (Vec<Group>, Vec<Option<usize>>, Vec<Index>) {
    let (mut groups, mut group_of, mut rough): (Vec<Group>, _, _) =
        (Vec::new(), Vec::new(), vec![]);
    for (index, host) in hosts.iter().enumerate() {
        if host.is_rough() {
            rough.push(index);
            group_of.push(None);
            continue;
        }
        let (node, delay) = (host.config.node, host.delay());
        let found = groups.iter().rposition(|g| g.node == node && g.delay == delay);
        let at = found.unwrap_or_else(|| {
            groups.push(Group { node, delay, log: Log::default(), members: Vec::new() });
            groups.len() - 1
        });
        groups[at].members.push(index);
        group_of.push(Some(at));
    }
    (groups, group_of, rough)
}
