//! The sender's driver.
//!
//! Each turn: feedback that came, commands, finished work; what is due by time; then all that may leave,
//! assembled as one buffer of equal segments, sealed in place and sent in one call; then sleep until
//! the next deadline or input.
//!
//! Invariant: the machine is drained (transmit, work, events) before each sleep.

use super::batch::Batch;
use super::jobs::{Done, Job, work};
use super::loaded::{Coder, LoadedBlocks, Source, tail};
use super::neighbours::Neighbours;
use super::outlet::{Outage, Outlet};
use super::sent::{SendEvent, SendSnapshot};
use super::workers::Workers;
use super::{Broken, SessionError};
use crate::trace::{Tap, Trace, Way};
use crate::{
    BlockSource, Clock, Group, Interest, Interface, OpenKeys, RecvBatch, Reject, RejectCounts,
    SealKeys, Secret, SendOptions, Spare, Suite, UnicastSocket, Waker, take_short_turns, wait,
};
use downpour_proto::sender::{Delivery, Event, Transmit, Work, WorkDone};
use downpour_proto::wire::{HEADER_LEN, Header, Kind, TAG_LEN};
use downpour_proto::{
    BURST_TIME_MAX, BlockId, Duration, PacketNumber, RangeSet, Rate, Reason, ReceiverId, Sender,
    SenderConfig, Timestamp,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender as Channel, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How often the snapshot is renewed.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(100);

/// Feedback receive calls in one turn: a flood of feedback must not keep the stream from leaving.
const FEEDBACK_CALLS_MAX: usize = 4;

/// While bursts wake the driver, feedback is looked for so often: most looks would find none, and the kernel notes when
/// each came.
const FEEDBACK_EVERY: Duration = Duration::from_millis(2);

/// Datagrams that leave before the driver looks for feedback again.
const TURN_DATAGRAMS_MAX: usize = 256;

/// Where the stream goes.
#[derive(Clone, Debug)]
pub struct StreamOut {
    /// The group.
    pub group: Group,
    /// The interface that it leaves by.
    pub interface: Interface,
    /// Socket options.
    pub options: SendOptions,
}

/// What a sender's driver needs.
pub struct SendSetup {
    /// The machine's configuration.
    pub machine: SenderConfig,
    /// Where the stream goes; `None`: all receivers pull.
    pub stream: Option<StreamOut>,
    /// Without a group, the stream goes to the first receiver that greets.
    pub unicast: bool,
    /// Where feedback comes in.
    pub feedback: UnicastSocket,
    /// The cipher.
    pub suite: Suite,
    /// The session stays open, see [`Sender::stay_open`]: its workers do not give way to others.
    pub open: bool,
    /// The secret of the stream's epoch.
    pub secret: Secret,
    /// Where the bytes come from.
    pub source: Arc<dyn BlockSource>,
    /// Where each datagram and each answer is noted.
    pub trace: Option<Trace>,
    /// Told what happens; called on the driver's thread, must not block.
    pub on_event: Box<dyn FnMut(SendEvent) + Send>,
}

enum Command {
    Start,
    Offer(Vec<(BlockId, u16)>),
    Finish,
    Probe,
    Join(ReceiverId, Delivery, Secret),
    ExpectRoundTrip(Duration),
    Forget(ReceiverId),
    Have(ReceiverId, RangeSet, RangeSet),
    SetDelivery(ReceiverId, Delivery),
    MoveToPull(ReceiverId),
    Pulled(u32),
    SetCeiling(Rate),
    Stop,
}

#[derive(Default)]
struct Shared {
    snapshot: Mutex<SendSnapshot>,
    renewed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SendSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owner's end of a sender's driver. Dropping the last one stops it.
pub struct SendHandle {
    commands: Channel<Command>,
    waker: Waker,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SendHandle {
    /// Opens the stream's socket and starts the driver. Nothing is sent before [`probe`](Self::probe) or
    /// [`start`](Self::start).
    pub fn spawn(setup: SendSetup) -> Result<Self, SessionError> {
        let outlet = Outlet::open(&setup)?;
        // Who offers waits for the backlog; all else is little, and taken at each turn.
        let (commands, inbox) = channel();
        let waker = Waker::new()?;
        let shared = Arc::new(Shared::default());
        let mut driver = Driver::new(setup, outlet, inbox, waker.clone(), Arc::clone(&shared))?;
        let thread = thread::Builder::new().name("downpour-send".to_owned());
        let thread = thread.spawn(move || {
            // Of a driver that panicked only the callback is used again.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run())) {
                (driver.on_event)(SendEvent::Broken(Broken::new("downpour-send", &*panic)));
            }
        })?;
        Ok(Self { commands, waker, shared, thread: Mutex::new(Some(thread)) })
    }

    fn tell(&self, command: Command) {
        // Fails only when the driver has ended, and then nothing is left to be told.
        let _ = self.commands.send(command);
        self.waker.wake();
    }

    /// See [`Sender::start`].
    pub fn start(&self) {
        self.tell(Command::Start);
    }

    /// See [`Sender::offer`]; any number, they wait here until the machine has room.
    pub fn offer(&self, blocks: Vec<(BlockId, u16)>) {
        self.shared.lock().backlog += blocks.len();
        self.tell(Command::Offer(blocks));
    }

    /// See [`Sender::finish`].
    pub fn finish(&self) {
        self.tell(Command::Finish);
    }

    /// See [`Sender::probe`].
    pub fn probe(&self) {
        self.tell(Command::Probe);
    }

    /// See [`Sender::join`]. `feedback` is the secret that its feedback is sealed with.
    pub fn join(&self, id: ReceiverId, delivery: Delivery, feedback: Secret) {
        self.tell(Command::Join(id, delivery, feedback));
    }

    /// See [`Sender::expect_round_trip`].
    pub fn expect_round_trip(&self, rtt: Duration) {
        self.tell(Command::ExpectRoundTrip(rtt));
    }

    /// See [`Sender::forget`].
    pub fn forget(&self, id: ReceiverId) {
        self.tell(Command::Forget(id));
    }

    /// See [`Sender::have`].
    pub fn have(&self, id: ReceiverId, data: RangeSet, manifest: RangeSet) {
        self.tell(Command::Have(id, data, manifest));
    }

    /// See [`Sender::set_delivery`].
    pub fn set_delivery(&self, id: ReceiverId, delivery: Delivery) {
        self.tell(Command::SetDelivery(id, delivery));
    }

    /// See [`Sender::on_pull`].
    pub fn pulled(&self, end: u32) {
        self.tell(Command::Pulled(end));
    }

    /// See [`Sender::move_to_pull`].
    pub fn move_to_pull(&self, id: ReceiverId) {
        self.tell(Command::MoveToPull(id));
    }

    /// See [`Sender::set_ceiling`].
    pub fn set_ceiling(&self, ceiling: Rate) {
        self.tell(Command::SetCeiling(ceiling));
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> SendSnapshot {
        self.shared.lock().clone()
    }

    /// The highest packet number sent, as the newest snapshot has it.
    pub fn packet(&self) -> Option<PacketNumber> {
        self.shared.lock().packet
    }

    /// Blocks (or seconds may pass) until at most `blocks` are offered and not opened; false after `limit`.
    pub fn wait_backlog(&self, blocks: usize, limit: Duration) -> bool {
        let guard = self.shared.lock();
        let waited = self.shared.renewed.wait_timeout_while(guard, limit, |s| s.backlog > blocks);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ends the driver, waits until it has ended, and gives its last snapshot.
    pub fn stop(&self) -> SendSnapshot {
        self.tell(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A driver that panicked has said so by its last event.
            let _ = thread.join();
        }
        self.snapshot()
    }
}

impl Drop for SendHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Driver {
    clock: Clock,
    machine: Sender,
    outlet: Outlet,
    /// `None` without a group, or where there is no meeting others.
    neighbours: Option<Neighbours>,
    feedback: UnicastSocket,
    seal: SealKeys,
    suite: Suite,
    open: BTreeMap<ReceiverId, OpenKeys>,
    blocks: LoadedBlocks,
    spare: Spare,
    /// In an open session: what may have blocks at hand.
    source: Option<Arc<dyn BlockSource>>,
    workers: Workers<Job, Done>,
    inbox: Receiver<Command>,
    waker: Waker,
    shared: Arc<Shared>,
    on_event: Box<dyn FnMut(SendEvent) + Send>,
    waiting: VecDeque<(BlockId, u16)>,
    finish: bool,
    symbol_len: usize,
    batch: Batch,
    /// Bytes of one with a whole symbol.
    datagram_len: usize,
    message: Vec<u8>,
    /// When feedback is looked for again.
    feedback_due: Timestamp,
    /// A session of products: answers count at once.
    open_ended: bool,
    send_errors: u64,
    refused_bytes: u64,
    outage: Outage,
    snapshot_at: Timestamp,
    rejects: RejectCounts,
    /// Blocks offered to this thread and not opened, as `Shared` was told last.
    backlog: usize,
    tap: Option<Tap>,
    stop: bool,
}

/// Block buffers kept for reuse.
const SPARE_MAX: usize = 8;

impl Driver {
    fn new(
        setup: SendSetup,
        outlet: Outlet,
        inbox: Receiver<Command>,
        waker: Waker,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let geometry = setup.machine.geometry;
        let symbol_len = usize::from(geometry.symbol_len);
        let (stream, epoch) = (setup.machine.stream, setup.machine.epoch);
        let source = setup.source;
        let workers = Workers::start("downpour-read", setup.open, &waker, || {
            let source = Arc::clone(&source);
            let mut coder = Coder::new(geometry.code, symbol_len);
            move |job| work(job, &*source, &mut coder, symbol_len)
        })?;
        let streams = setup.stream.is_some() || setup.unicast;
        let neighbours = streams.then(|| Neighbours::open(setup.stream.as_ref()));
        let mut machine = Sender::new(setup.machine, clock.now());
        if setup.open {
            machine.stay_open(clock.now());
        }
        Ok(Self {
            machine,
            clock,
            outlet,
            neighbours,
            feedback: setup.feedback,
            seal: SealKeys::stream(setup.suite, &setup.secret, stream, epoch),
            suite: setup.suite,
            open: BTreeMap::new(),
            blocks: LoadedBlocks::default(),
            spare: Spare::new(SPARE_MAX),
            source: setup.open.then_some(source),
            workers,
            inbox,
            waker,
            shared,
            on_event: setup.on_event,
            waiting: VecDeque::new(),
            finish: false,
            symbol_len,
            batch: Batch::new(geometry.datagram_len()),
            datagram_len: geometry.datagram_len(),
            message: Vec::new(),
            feedback_due: Timestamp::ZERO,
            open_ended: setup.open,
            send_errors: 0,
            refused_bytes: 0,
            outage: Outage::default(),
            snapshot_at: Timestamp::ZERO,
            rejects: RejectCounts::default(),
            backlog: 0,
            tap: setup.trace.map(|trace| trace.tap(&clock)),
            stop: false,
        })
    }

    fn run(&mut self) {
        take_short_turns();
        let mut inbound = RecvBatch::new();
        loop {
            let now = self.clock.now();
            if now >= self.feedback_due {
                self.feedback_due = now + FEEDBACK_EVERY;
                self.take_feedback(&mut inbound);
            }
            self.take_commands();
            self.take_results();
            if self.stop {
                break;
            }
            let now = self.clock.now();
            self.machine.handle_timeout(now);
            let more = self.transmit();
            // Sending takes time, and what lies at hand is loaded here.
            let now = self.clock.now();
            self.drain(now);
            self.count_opened();
            if self.publish(now)
                && let Some(neighbours) = &mut self.neighbours
            {
                if let Some(peer) = self.outlet.peer() {
                    neighbours.towards(peer.ip());
                }
                neighbours.meet(self.clock.now(), &mut self.machine, &mut inbound);
            }
            if !more {
                self.sleep();
            }
        }
        self.publish(Timestamp::MAX);
    }

    fn sleep(&mut self) {
        let next = self.machine.poll_timeout();
        // Feedback does not end the sleep before a burst: nothing could leave earlier, and the kernel notes when it came.
        let burst = next.filter(|next| next.reason == Reason::Pace);
        let is_short = burst.is_some_and(|b| b.at.since(self.clock.now()) <= BURST_TIME_MAX);
        if !is_short || self.open_ended {
            self.feedback_due = Timestamp::ZERO;
        }
        let deadline = next.map_or(Timestamp::MAX, |next| next.at);
        // The snapshot waits for the burst.
        let snapshot = if is_short { deadline } else { self.snapshot_at + SNAPSHOT_INTERVAL };
        let deadline = deadline.min(snapshot);
        let inputs = [Interest::Read(self.waker.as_fd()), Interest::Read(self.feedback.as_fd())];
        // An error here would be a bad descriptor, which cannot be; at worst the loop turns at once.
        let _ = if !self.batch.is_empty() {
            let [waker, feedback] = inputs;
            let output = self.outlet.interest(&self.feedback);
            wait(&self.clock, deadline, &[waker, feedback, output])
        } else if is_short {
            wait(&self.clock, deadline, &inputs[..1])
        } else {
            wait(&self.clock, deadline, &inputs)
        };
    }

    fn take_feedback(&mut self, inbound: &mut RecvBatch) {
        for _ in 0..FEEDBACK_CALLS_MAX {
            // An error is a queued ICMP message or nothing to read: neither says anything about a member.
            let Ok(received @ 1..) = self.feedback.recv(inbound) else { return };
            for datagram in inbound.datagrams() {
                if datagram.bytes.len() < HEADER_LEN + TAG_LEN {
                    self.rejects.count(Reject::Truncated);
                    continue;
                }
                let parsed = Header::parse(datagram.bytes);
                let Ok(
                    header @ Header {
                        kind:
                            Kind::Feedback { receiver } | Kind::Presence { receiver: Some(receiver) },
                        ..
                    },
                ) = parsed
                else {
                    self.rejects.count(Reject::Malformed);
                    continue;
                };
                let Some(keys) = self.open.get_mut(&receiver) else {
                    self.rejects.count(Reject::WrongStream);
                    continue;
                };
                match keys.open(&header, datagram.bytes) {
                    Ok(opened) => {
                        let now = self.clock.now();
                        let arrived = now - datagram.waited;
                        // What is late may have left from where the receiver was before.
                        if opened.number == keys.highest() {
                            let (machine, from) = (&self.machine, *datagram.from);
                            self.outlet.heard(now, (receiver, from, datagram.to), |other| {
                                machine.member(other).map_or(Delivery::Ended, |m| m.delivery)
                            });
                        }
                        if let Some(tap) = &mut self.tap {
                            let (number, len) = (opened.number.0, opened.datagram_len);
                            tap.datagram(arrived, Way::In, header.kind, number, len);
                        }
                        let body = opened.payload;
                        let taken = if let Kind::Presence { .. } = header.kind {
                            let heard = self.machine.handle_presence(now, receiver, body);
                            if let (Ok(true), Some(neighbours)) = (heard, &mut self.neighbours) {
                                neighbours.on_passed(now);
                            }
                            heard.map(drop)
                        } else {
                            let told = self.machine.handle_feedback(now, arrived, receiver, body);
                            if let (Ok(Some(sample)), Some(tap)) = (&told, &mut self.tap) {
                                tap.sample(now, sample);
                                tap.rate(now, self.machine.rate_summary());
                            }
                            told.map(drop)
                        };
                        if taken.is_err() {
                            self.rejects.count(Reject::Malformed);
                        }
                    }
                    Err(reject) => self.rejects.count(reject),
                }
            }
            if received == 0 || !inbound.is_full() {
                return;
            }
        }
    }

    fn take_commands(&mut self) {
        self.waker.clear();
        while let Ok(command) = self.inbox.try_recv() {
            let now = self.clock.now();
            match command {
                Command::Start => self.machine.start(now),
                Command::Offer(blocks) => {
                    self.backlog += blocks.len();
                    self.waiting.extend(blocks);
                }
                Command::Finish => self.finish = true,
                Command::Probe => self.machine.probe(now),
                Command::Join(id, delivery, secret) => {
                    let stream = self.machine.stream();
                    self.open.insert(id, OpenKeys::feedback(self.suite, &secret, stream, id));
                    self.machine.join(now, id, delivery);
                }
                Command::ExpectRoundTrip(rtt) => self.machine.expect_round_trip(rtt),
                Command::Forget(id) => {
                    self.open.remove(&id);
                    self.machine.forget(now, id);
                }
                Command::Have(id, data, manifest) => self.machine.have(now, id, data, manifest),
                Command::SetDelivery(id, delivery) => {
                    if delivery == Delivery::Stream {
                        self.outlet.follows(id);
                    }
                    self.machine.set_delivery(now, id, delivery);
                }
                Command::MoveToPull(id) => self.machine.move_to_pull(now, id),
                Command::Pulled(end) => self.pulled(now, end),
                Command::SetCeiling(ceiling) => self.machine.set_ceiling(now, ceiling),
                Command::Stop => self.stop = true,
            }
        }
        self.pass_offers();
        self.drain(self.clock.now());
    }

    /// Who pulls shall not wait until the snapshot is due.
    fn pulled(&mut self, now: Timestamp, end: u32) {
        let before = self.machine.ends();
        self.machine.on_pull(now, end);
        if self.machine.ends() != before {
            self.snapshot_at = Timestamp::ZERO;
            self.publish(now);
            (self.on_event)(SendEvent::Passed);
        }
    }

    fn pass_offers(&mut self) {
        let now = self.clock.now();
        while self.machine.offer_room() > 0
            && let Some((block, k)) = self.waiting.pop_front()
        {
            self.machine.offer(now, block, k);
        }
        if self.finish && self.waiting.is_empty() {
            self.finish = false;
            self.machine.finish(now);
        }
    }

    fn take_results(&mut self) {
        while let Some(done) = self.workers.take() {
            let now = self.clock.now();
            let done = match done {
                Ok(done) => done,
                Err(broken) => {
                    (self.on_event)(SendEvent::Broken(broken));
                    self.stop = true;
                    return;
                }
            };
            let done = match done {
                Done::Loaded { block, bytes, tail } => {
                    if let Err(again) = self.blocks.insert(block, Source::Read(Arc::new(bytes))) {
                        self.reuse(again);
                        continue;
                    }
                    WorkDone::Loaded { block, tail }
                }
                Done::LoadFailed { block, reason } => {
                    (self.on_event)(SendEvent::SourceFailed { block, reason });
                    WorkDone::LoadFailed(block)
                }
                Done::Encoded { block, load, from, until, symbols } => {
                    if !self.blocks.encoded(block, load, from, symbols) {
                        continue;
                    }
                    WorkDone::Encoded { block, until }
                }
            };
            self.machine.handle_work(now, done);
            self.drain(now);
        }
    }

    /// Hands out the machine's work and events.
    fn drain(&mut self, now: Timestamp) {
        while let Some(work) = self.machine.poll_work() {
            match work {
                Work::Load { block, k } => {
                    if let Some(bytes) = self.source.as_ref().and_then(|s| s.at_hand(block)) {
                        let tail = tail(&bytes, self.symbol_len);
                        // Fails when it was read meanwhile, and then the machine knows.
                        let _ = self.blocks.insert(block, Source::AtHand(bytes));
                        self.machine.handle_work(now, WorkDone::Loaded { block, tail });
                        continue;
                    }
                    let bytes = self.spare.take(usize::from(k) * self.symbol_len);
                    self.workers.post(Job::Load { block, bytes });
                }
                Work::Encode { block, from, count } => match self.blocks.get(block) {
                    Some(loaded) => {
                        let (load, source) = (loaded.load, loaded.source.clone());
                        let until = from + count;
                        self.workers.post(Job::Encode { block, load, source, from, until });
                    }
                    None => self.machine.handle_work(now, WorkDone::LoadFailed(block)),
                },
                Work::Release { block } => {
                    if let Some(loaded) = self.blocks.remove(block) {
                        self.reuse(loaded.source);
                    }
                }
            }
        }
        while let Some(event) = self.machine.poll_event() {
            (self.on_event)(match event {
                Event::LeaveStream(id) => SendEvent::LeaveStream(id),
                Event::Unheard(id) => SendEvent::Unheard(id),
                Event::ReturnToStream(id) => SendEvent::ReturnToStream(id),
                Event::SourceSent { block, began_at } => {
                    SendEvent::SourceSent { block, took: now.since(began_at) }
                }
                Event::SourcePassed { block } => SendEvent::SourcePassed { block },
                Event::StreamDone => SendEvent::StreamDone,
            });
        }
        self.pass_offers();
    }

    fn reuse(&self, source: Source) {
        if let Some(bytes) = source.into_buffer() {
            self.spare.give(bytes);
        }
    }

    /// Sends what may leave now; true when there is more at once.
    fn transmit(&mut self) -> bool {
        if !self.flush() {
            return false;
        }
        let mut message = std::mem::take(&mut self.message);
        let mut more = true;
        // One reading for each batch: sealing one takes some 15 µs, reading the clock for each datagram 2 %.
        let mut now = self.clock.now();
        for _ in 0..TURN_DATAGRAMS_MAX {
            if self.batch.is_empty() {
                now = self.clock.now();
            }
            let Some(transmit) = self.machine.poll_transmit(now, &mut message) else {
                more = false;
                break;
            };
            if !self.append(now, &transmit, &message) {
                break;
            }
        }
        self.message = message;
        self.flush() && more
    }

    /// Seals a datagram onto the batch; false when the batch could not be sent on.
    fn append(&mut self, now: Timestamp, transmit: &Transmit, message: &[u8]) -> bool {
        let body = match transmit.header.kind {
            Kind::Symbol { block, symbol, .. } => {
                let loaded = self.blocks.get(block);
                let bytes =
                    loaded.and_then(|l| l.symbol(symbol.raw(), self.symbol_len, transmit.body_len));
                // The machine sends only what it was told is there.
                debug_assert!(bytes.is_some(), "{block} {symbol:?} is not loaded");
                let Some(bytes) = bytes else { return true };
                bytes
            }
            _ => message,
        };
        let room = self.batch.room();
        let start = room.len();
        if self.seal.append(transmit.packet, &transmit.header, body, room).is_err() {
            return true;
        }
        let len = room.len() - start;
        if let Some(tap) = &mut self.tap {
            tap.datagram(now, Way::Out, transmit.header.kind, transmit.packet.0, len);
            if transmit.header.kind == Kind::Poll {
                tap.rate(now, self.machine.rate_summary());
            }
        }
        if self.batch.added(len) { self.flush() } else { true }
    }

    /// Sends the batch; false when the kernel took only a part of it.
    fn flush(&mut self) -> bool {
        if self.batch.is_empty() {
            return true;
        }
        let (outlet, feedback) = (&self.outlet, &self.feedback);
        let full_length = self.batch.segment_len() == self.datagram_len;
        let len = self.batch.len() as u64;
        let sent = self.batch.flush(|bytes, len| outlet.send(feedback, bytes, len));
        if sent.is_ok() && self.outage.on_sent(full_length) {
            (self.on_event)(SendEvent::LeavesAgain);
        }
        sent.unwrap_or_else(|error| {
            // Lost like any datagram: the receivers will ask for it.
            self.refused_bytes += len;
            self.on_refused(&error, full_length);
            true
        })
    }

    fn on_refused(&mut self, error: &io::Error, full_length: bool) {
        self.send_errors += 1;
        if self.send_errors == 1 {
            (self.on_event)(SendEvent::SendFailed { reason: error.to_string() });
        }
        let remedy = self.outage.on_failed(self.clock.now(), full_length);
        if remedy.tell {
            (self.on_event)(SendEvent::NothingLeaves { reason: error.to_string() });
        }
        if remedy.reopen
            && let Some(out) = self.outlet.reopen()
        {
            // What they were met by may have gone with the interface, too.
            self.neighbours = Some(Neighbours::open(Some(out)));
        }
    }

    /// Who waits for the backlog to shrink hears of it at once.
    fn count_opened(&mut self) {
        let left = self.waiting.len() + self.machine.backlog();
        if left < self.backlog {
            self.shared.lock().backlog -= self.backlog - left;
            self.backlog = left;
            self.shared.renewed.notify_all();
        }
    }

    /// Renews the snapshot when that is due; whether it was.
    fn publish(&mut self, now: Timestamp) -> bool {
        if now < self.snapshot_at + SNAPSHOT_INTERVAL {
            return false;
        }
        self.snapshot_at = now;
        let machine = &self.machine;
        let members =
            self.open.keys().filter_map(|id| machine.member(*id).map(|m| (*id, m))).collect();
        let snapshot = SendSnapshot {
            stats: *machine.stats(),
            rate: Some(machine.rate_summary()),
            shares: Some(machine.shares()),
            ends: machine.ends(),
            grtt: machine.grtt(),
            rounds: machine.round().0,
            packet: Some(machine.packet()),
            members,
            rejects: self.rejects,
            send_errors: self.send_errors,
            refused_bytes: self.refused_bytes,
            backlog: 0,
        };
        let mut shown = self.shared.lock();
        *shown = SendSnapshot { backlog: shown.backlog, ..snapshot };
        true
    }
}
