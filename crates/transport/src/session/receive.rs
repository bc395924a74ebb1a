//! The receiver's driver.
//!
//! Each turn: datagrams that came are opened in place and shown to the machine, and the symbols it wants are
//! copied into their block; then commands, finished work, what is due by time; then feedback; then sleep.
//! Rebuilding, verifying and writing are the workers'.
//!
//! Invariant: nothing is allocated per datagram.

use super::assembly::{Assembly, Symbols};
use super::gather::Arrivals;
use super::neighbours::Bystanders;
use super::workers::Workers;
use super::{Broken, SessionError};
use crate::trace::{Tap, Trace, Way};
use crate::{
    Accepted, BlockSink, Clock, Codec, Interest, MulticastReceiver, OpenKeys, RecvBatch,
    RecvOptions, RejectCounts, SealKeys, Secret, Spare, Suite, UnicastSocket, Waker,
    take_short_turns, wait,
};
use downpour_proto::receiver::{Disposition, Event, Pull, ReceiverStats, Work, WorkDone};
use downpour_proto::wire::{Header, Kind, ParseError};
use downpour_proto::{
    BlockId, BlockKind, Duration, Epoch, PacketNumber, Receiver, ReceiverConfig, Rng, Timestamp,
};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver as Inbox, Sender as Channel, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How often the snapshot is renewed and the socket's drops are read.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);

/// Receive calls in one turn, each of up to 16 messages.
const RECV_CALLS_MAX: usize = 4;

/// Send and receive buffer of the feedback socket.
const FEEDBACK_BUFFER_LEN: usize = 256 << 10;

/// What a receiver's driver needs.
pub struct ReceiveSetup {
    /// The machine's configuration.
    pub machine: ReceiverConfig,
    /// Decides the machine's random waits; logged by the owner.
    pub seed: u64,
    /// Where the stream comes from; `None`: everything is pulled, or it is `unicast`.
    pub stream: Option<MulticastReceiver>,
    /// The stream comes to the address from which our feedback goes out.
    pub unicast: bool,
    /// Where feedback goes.
    pub feedback: SocketAddr,
    /// The session stays open: its workers do not give way to others.
    pub open: bool,
    /// The cipher.
    pub suite: Suite,
    /// Version of the stream's key.
    pub epoch: Epoch,
    /// Its secret.
    pub secret: Secret,
    /// A packet number that it has reached lately (`docs/protocol.md#KEY-2`).
    pub packet: PacketNumber,
    /// The secret that our feedback is sealed with.
    pub feedback_secret: Secret,
    /// Where blocks go.
    pub sink: Arc<dyn BlockSink>,
    /// Share of the datagrams to drop unseen, 0 ..= 1: for demonstrations and tests.
    pub inject_loss: f64,
    /// Where the buffers of pulled blocks go when they are stored.
    pub spare: Spare,
    /// Where each datagram is noted.
    pub trace: Option<Trace>,
    /// Told what happens; called on the driver's thread, must not block.
    pub on_event: Box<dyn FnMut(ReceiveEvent) + Send>,
}

/// What the owner should know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveEvent {
    /// A datagram of the stream that is as long as they get came for the first time: multicast works.
    Heard,
    /// Nothing of the stream has come for too long.
    StreamLost,
    /// The same of its symbols, while its polls come.
    SymbolsLost,
    /// The stream is heard again.
    StreamHeard,
    /// The sender says to leave the stream and pull: see [`ReceiveHandle::set_on_stream`].
    LeaveStream,
    /// Pull this, and answer by [`ReceiveHandle::pulled_bytes`], [`ReceiveHandle::pulled_repair`] or
    /// [`ReceiveHandle::pull_failed`].
    Pull(Pull),
    /// A block was rebuilt from authentic symbols, and its bytes are false: a member forges.
    FalseBlock,
    /// The driver has ended, because it or a worker panicked. The last event.
    Broken(Broken),
}

/// What the driver shows of itself, renewed every 50 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveSnapshot {
    /// Counters.
    pub stats: ReceiverStats,
    /// Share of the stream's datagrams that does not come, of late.
    pub loss: f64,
    /// The same of all that was sent while the stream was followed.
    pub loss_ever: f64,
    /// Data blocks stored.
    pub data_held: u64,
    /// Datagrams that were dropped, by reason.
    pub rejects: RejectCounts,
    /// Datagrams that the socket buffer had no room for.
    pub host_drops: u64,
    /// Bytes of receive buffer that the kernel granted.
    pub buffer_len: usize,
    /// Everything below the final ends is stored.
    pub has_all: bool,
}

enum Command {
    Have(BlockKind, Range<u32>),
    Forgotten(BlockId),
    UpdateEnds(u32, u32, bool),
    SetOnStream(bool),
    SetPulls(usize),
    PulledBytes(BlockId, Vec<u8>),
    PulledRepair(BlockId, Range<u16>, Vec<u8>),
    PullFailed(BlockId),
    Stop,
}

/// The owner's end of a receiver's driver. Dropping it stops the driver.
pub struct ReceiveHandle {
    commands: Channel<Command>,
    waker: Waker,
    shared: Arc<Mutex<ReceiveSnapshot>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ReceiveHandle {
    /// Starts the driver.
    pub fn spawn(mut setup: ReceiveSetup) -> Result<Self, SessionError> {
        let socket = setup.stream.take();
        let feedback = UnicastSocket::towards(setup.feedback, FEEDBACK_BUFFER_LEN)?;
        let own_len = match setup.unicast {
            true => feedback.grow_recv_buffer(RecvOptions::default().buffer_len)?,
            false => 0,
        };
        // What was pulled is no more than the pulls that the machine has out; all else is little, and taken at each turn.
        let (commands, inbox) = channel();
        let waker = Waker::new()?;
        let shared = Arc::new(Mutex::new(ReceiveSnapshot {
            buffer_len: socket.as_ref().map_or(own_len, MulticastReceiver::buffer_len),
            ..ReceiveSnapshot::default()
        }));
        let ends = Ends { inbox, waker: waker.clone(), shared: Arc::clone(&shared) };
        let mut driver = Driver::new(setup, socket, feedback, ends)?;
        let thread = thread::Builder::new().name("downpour-recv".to_owned());
        let thread = thread.spawn(move || {
            // Of a driver that panicked only the callback is used again.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run())) {
                (driver.on_event)(ReceiveEvent::Broken(Broken::new("downpour-recv", &*panic)));
            }
        })?;
        Ok(Self { commands, waker, shared, thread: Mutex::new(Some(thread)) })
    }

    fn tell(&self, command: Command) {
        // Fails only when the driver has ended, and then nothing is left to be told.
        let _ = self.commands.send(command);
        self.waker.wake();
    }

    /// See [`Receiver::have`].
    pub fn have(&self, kind: BlockKind, blocks: Range<u32>) {
        self.tell(Command::Have(kind, blocks));
    }

    /// See [`Receiver::forgotten`].
    pub fn forgotten(&self, block: BlockId) {
        self.tell(Command::Forgotten(block));
    }

    /// See [`Receiver::update_ends`].
    pub fn update_ends(&self, data: u32, manifest: u32, finished: bool) {
        self.tell(Command::UpdateEnds(data, manifest, finished));
    }

    /// Leaves the multicast group, or joins it again.
    pub fn set_on_stream(&self, on_stream: bool) {
        self.tell(Command::SetOnStream(on_stream));
    }

    /// See [`Receiver::set_pulls`].
    pub fn set_pulls(&self, most: usize) {
        self.tell(Command::SetPulls(most));
    }

    /// The bytes of a whole block (k·T, zero padded) that was to be pulled.
    pub fn pulled_bytes(&self, block: BlockId, bytes: Vec<u8>) {
        self.tell(Command::PulledBytes(block, bytes));
    }

    /// Repair symbols of a block that were to be pulled.
    pub fn pulled_repair(&self, block: BlockId, range: Range<u16>, bytes: Vec<u8>) {
        self.tell(Command::PulledRepair(block, range, bytes));
    }

    /// A pull brought nothing.
    pub fn pull_failed(&self, block: BlockId) {
        self.tell(Command::PullFailed(block));
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> ReceiveSnapshot {
        *lock(&self.shared)
    }

    /// Ends the driver, waits until it has ended, and gives its last snapshot.
    pub fn stop(&self) -> ReceiveSnapshot {
        self.tell(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A driver that panicked has said so by its last event.
            let _ = thread.join();
        }
        self.snapshot()
    }
}

impl Drop for ReceiveHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(shared: &Mutex<ReceiveSnapshot>) -> MutexGuard<'_, ReceiveSnapshot> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Job {
    Seed { block: BlockId, k: u16 },
    Complete { block: BlockId, decode: bool, symbols: Box<Symbols> },
}

enum Done {
    /// `bytes` are the whole block's, or none if nothing is held.
    Seeded {
        block: BlockId,
        k: u16,
        bytes: Vec<u8>,
        held: Vec<Range<u16>>,
    },
    Completed {
        block: BlockId,
        accepted: Accepted,
        symbols: Box<Symbols>,
    },
}

struct Ends {
    inbox: Inbox<Command>,
    waker: Waker,
    shared: Arc<Mutex<ReceiveSnapshot>>,
}

struct Driver {
    clock: Clock,
    machine: Receiver,
    socket: Option<MulticastReceiver>,
    feedback: UnicastSocket,
    feedback_to: SocketAddr,
    unicast: bool,
    bystanders: Bystanders,
    open: OpenKeys,
    seal: SealKeys,
    assembly: Assembly,
    spare: Spare,
    symbol_len: usize,
    /// Bytes of a datagram that shows that the stream can be taken (`docs/protocol.md#WIRE-7`).
    probe_len: usize,
    workers: Workers<Job, Done>,
    ends: Ends,
    on_event: Box<dyn FnMut(ReceiveEvent) + Send>,
    inject_loss: f64,
    rng: Rng,
    arrivals: Arrivals,
    is_open: bool,
    heard: bool,
    malformed: u64,
    truncated: u64,
    host_drops: u64,
    message: Vec<u8>,
    datagram: Vec<u8>,
    snapshot_at: Timestamp,
    tap: Option<Tap>,
    stop: bool,
}

impl Driver {
    fn new(
        setup: ReceiveSetup,
        socket: Option<MulticastReceiver>,
        feedback: UnicastSocket,
        ends: Ends,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let (stream, epoch, me) = (setup.machine.stream, setup.epoch, setup.machine.me);
        let geometry = setup.machine.geometry;
        let symbol_len = geometry.symbol_len;
        let sink = setup.sink;
        let workers = Workers::start("downpour-store", setup.open, &ends.waker, || {
            let sink = Arc::clone(&sink);
            let mut desk = Desk {
                codec: Codec::new(geometry.code),
                symbol_len: usize::from(symbol_len),
                seed: Vec::new(),
            };
            move |job| work(job, &*sink, &mut desk)
        })?;
        let next = PacketNumber(setup.packet.0.saturating_add(1));
        let mut open = OpenKeys::stream(setup.suite, &setup.secret, stream, epoch, next);
        open.limit_len(geometry.datagram_len());
        Ok(Self {
            is_open: setup.machine.products,
            machine: Receiver::new(setup.machine, setup.seed, clock.now()),
            clock,
            socket,
            feedback,
            feedback_to: setup.feedback,
            unicast: setup.unicast,
            bystanders: Bystanders::none(),
            open,
            seal: SealKeys::feedback(setup.suite, &setup.feedback_secret, stream, me),
            assembly: Assembly::new(symbol_len),
            spare: setup.spare,
            symbol_len: usize::from(symbol_len),
            probe_len: geometry.datagram_len(),
            workers,
            ends,
            on_event: setup.on_event,
            inject_loss: setup.inject_loss,
            rng: Rng::new(setup.seed ^ 0x6C6F_7373),
            arrivals: Arrivals::default(),
            heard: false,
            malformed: 0,
            truncated: 0,
            host_drops: 0,
            message: Vec::new(),
            datagram: Vec::new(),
            snapshot_at: Timestamp::ZERO,
            tap: setup.trace.map(|trace| trace.tap(&clock)),
            stop: false,
        })
    }

    fn run(&mut self) {
        take_short_turns();
        let mut inbound = RecvBatch::new();
        loop {
            let more = self.receive(&mut inbound);
            self.take_commands();
            self.take_results();
            if self.stop {
                break;
            }
            let now = self.clock.now();
            self.machine.handle_timeout(now);
            self.drain(now);
            if self.publish(now) {
                self.bystanders.meet(now, &mut self.machine, &mut inbound);
                self.drain(now);
            }
            if !more && !self.gather() {
                self.sleep();
            }
        }
        self.publish(Timestamp::MAX);
    }

    /// Lets messages gather where they come fast and singly; false when they do not. No deadline of a receiver is
    /// finer than this.
    fn gather(&self) -> bool {
        // Each step of a repair is waited for.
        if self.is_open && self.machine.waits_for_repair() {
            return false;
        }
        let time = self.arrivals.gather_time(self.clock.now());
        time.inspect(|time| thread::sleep(*time)).is_some()
    }

    fn sleep(&self) {
        let deadline = self.machine.poll_timeout().map_or(Timestamp::MAX, |d| d.at);
        let deadline = deadline.min(self.snapshot_at + SNAPSHOT_INTERVAL);
        let waker = Interest::Read(self.ends.waker.as_fd());
        // An error here would be a bad descriptor, which cannot be; at worst the loop turns at once.
        let _ = match self.inlet() {
            Some(inlet) => wait(&self.clock, deadline, &[Interest::Read(inlet), waker]),
            None => wait(&self.clock, deadline, &[waker]),
        };
    }

    /// Where the stream comes in.
    fn inlet(&self) -> Option<BorrowedFd<'_>> {
        let group = self.socket.as_ref().map(AsFd::as_fd);
        group.or_else(|| self.unicast.then(|| self.feedback.as_fd()))
    }

    fn receive_some(&self, inbound: &mut RecvBatch) -> io::Result<usize> {
        match &self.socket {
            Some(socket) => socket.recv(inbound),
            None if self.unicast => self.feedback.recv(inbound),
            None => Ok(0),
        }
    }

    /// Takes datagrams; true when more are likely waiting.
    fn receive(&mut self, inbound: &mut RecvBatch) -> bool {
        for _ in 0..RECV_CALLS_MAX {
            // An error is a queued ICMP message or nothing to read.
            let Ok(1..) = self.receive_some(inbound) else { return false };
            let now = self.clock.now();
            for message in inbound.messages() {
                let count = if self.is_open { message.datagrams } else { 1 };
                self.arrivals.on_message(now - message.waited, count);
            }
            for datagram in inbound.datagrams() {
                if self.inject_loss > 0.0 && self.rng.unit() < self.inject_loss {
                    continue;
                }
                self.take_datagram(now, now - datagram.waited, datagram.bytes);
            }
            if !inbound.is_full() {
                return false;
            }
        }
        true
    }

    fn take_datagram(&mut self, now: Timestamp, arrived: Timestamp, bytes: &mut [u8]) {
        let header = match self.open.header(bytes) {
            Ok(header) => header,
            Err(ParseError::Truncated) => return self.truncated += 1,
            Err(_) => return self.malformed += 1,
        };
        if let Kind::Symbol { block, symbol, .. } = header.kind {
            self.assembly.expect(block, symbol);
        }
        let Ok(opened) = self.open.open(&header, bytes) else { return };
        let body = opened.payload;
        if let Kind::Symbol { k, symbol, .. } = header.kind
            && self.is_open
        {
            self.arrivals.on_symbol(k, symbol);
        }
        if let Some(tap) = &mut self.tap {
            let (number, len) = (opened.number.0, opened.datagram_len);
            tap.datagram(arrived, Way::In, header.kind, number, len);
        }
        match self.machine.handle_datagram(now, arrived, &header, body) {
            Ok(Disposition::Keep) => {
                if let Kind::Symbol { block, k, symbol } = header.kind {
                    self.assembly.insert(block, k, symbol, body);
                }
            }
            Ok(Disposition::Drop) if header.kind == Kind::Poll => self.expect_blocks(),
            Ok(Disposition::Drop) => {}
            Err(_) => self.malformed += 1,
        }
        if !self.heard && opened.datagram_len == self.probe_len {
            self.heard = true;
            (self.on_event)(ReceiveEvent::Heard);
        }
    }

    /// What is sent now is near the ends that were told last (`docs/protocol.md#WIRE-9`).
    fn expect_blocks(&mut self) {
        let (data, manifest) = self.machine.ends();
        self.open.expect_blocks(data, manifest);
    }

    fn take_commands(&mut self) {
        self.ends.waker.clear();
        while let Ok(command) = self.ends.inbox.try_recv() {
            let now = self.clock.now();
            match command {
                Command::Have(kind, blocks) => self.machine.have(now, kind, blocks),
                Command::Forgotten(block) => self.machine.forgotten(now, block),
                Command::UpdateEnds(data, manifest, finished) => {
                    self.machine.update_ends(now, data, manifest, finished);
                    self.expect_blocks();
                }
                Command::SetOnStream(on) => self.set_on_stream(now, on),
                Command::SetPulls(most) => self.machine.set_pulls(now, most),
                Command::PulledBytes(block, bytes) => self.pulled_bytes(now, block, bytes),
                Command::PulledRepair(block, range, bytes) => {
                    self.assembly.insert_repair(block, range.clone(), &bytes);
                    self.machine.pulled_repair(now, block, range);
                }
                Command::PullFailed(block) => {
                    self.machine.handle_work(now, WorkDone::PullFailed(block));
                }
                Command::Stop => self.stop = true,
            }
            self.drain(now);
        }
    }

    fn set_on_stream(&mut self, now: Timestamp, on_stream: bool) {
        if let Some(socket) = &mut self.socket {
            let changed = if on_stream { socket.rejoin() } else { socket.leave() };
            if changed.is_err() && on_stream {
                // Still without the stream, which the sender believes to be followed again: pulling goes on.
                return (self.on_event)(ReceiveEvent::StreamLost);
            }
        }
        self.machine.set_on_stream(now, on_stream && self.inlet().is_some());
    }

    fn pulled_bytes(&mut self, now: Timestamp, block: BlockId, bytes: Vec<u8>) {
        let k = bytes.len().div_ceil(self.symbol_len) as u16;
        if self.machine.pulled_bytes(now, block, k) {
            self.assembly.forget(block);
            let symbols = Box::new(Symbols::whole(bytes));
            self.workers.post(Job::Complete { block, decode: false, symbols });
        }
    }

    fn take_results(&mut self) {
        while let Some(done) = self.workers.take() {
            let now = self.clock.now();
            let done = match done {
                Ok(done) => done,
                Err(broken) => {
                    (self.on_event)(ReceiveEvent::Broken(broken));
                    self.stop = true;
                    return;
                }
            };
            match done {
                Done::Seeded { block, k, bytes, held } => {
                    // The stream may have been first: then nobody would take the block out again.
                    if self.machine.is_collecting(block) {
                        self.assembly.seed(block, k, &bytes, &held);
                        self.machine.seeded(now, block, &held);
                    }
                }
                Done::Completed { block, accepted, mut symbols } => {
                    match symbols.take_pulled() {
                        Some(bytes) => self.spare.give(bytes),
                        None => self.assembly.recycle(*symbols),
                    }
                    let outcome = match accepted {
                        Accepted::Kept => WorkDone::Stored(block),
                        // Of one that has failed for good the owner hears by the sink itself.
                        Accepted::Refused | Accepted::Failed => WorkDone::Refused(block),
                        Accepted::False => {
                            (self.on_event)(ReceiveEvent::FalseBlock);
                            WorkDone::False(block)
                        }
                    };
                    self.machine.handle_work(now, outcome);
                }
            }
            self.drain(now);
        }
    }

    /// Hands out the machine's work, events and feedback.
    fn drain(&mut self, now: Timestamp) {
        while let Some(work) = self.machine.poll_work() {
            match work {
                Work::Seed { block, k } => self.workers.post(Job::Seed { block, k }),
                Work::Complete { block, decode, .. } => match self.assembly.take(block) {
                    Some(symbols) => {
                        let symbols = Box::new(symbols);
                        self.workers.post(Job::Complete { block, decode, symbols });
                    }
                    None => self.machine.handle_work(now, WorkDone::Refused(block)),
                },
                Work::Pull(pull) => (self.on_event)(ReceiveEvent::Pull(pull)),
                Work::Forget { block } => self.assembly.forget(block),
            }
        }
        while let Some(event) = self.machine.poll_event() {
            (self.on_event)(match event {
                Event::StreamQuiet => {
                    if let Some(socket) = &mut self.socket {
                        // What fails here is tried again by the next silence.
                        let _ = (socket.leave(), socket.rejoin());
                        // The interface may be another one for them as well.
                        self.bystanders = Bystanders::none();
                    }
                    continue;
                }
                Event::Neighbour(presence) => {
                    self.bystanders.tell(self.feedback_to.ip(), presence);
                    continue;
                }
                Event::StreamLost => ReceiveEvent::StreamLost,
                Event::SymbolsLost => ReceiveEvent::SymbolsLost,
                Event::StreamHeard => ReceiveEvent::StreamHeard,
                Event::LeaveStream => ReceiveEvent::LeaveStream,
            });
        }
        while let Some((header, counter)) = self.machine.poll_transmit(now, &mut self.message) {
            self.send_feedback(&header, counter);
        }
    }

    fn send_feedback(&mut self, header: &Header, counter: u64) {
        self.datagram.clear();
        let (number, message) = (PacketNumber(counter), &self.message);
        if self.seal.append(number, header, message, &mut self.datagram).is_ok() {
            if let Some(tap) = &mut self.tap {
                let len = self.datagram.len();
                tap.datagram(self.clock.now(), Way::Out, header.kind, counter, len);
            }
            // Lost like any datagram: the next poll asks again.
            let _ = self.feedback.send(&self.datagram, self.feedback_to);
        }
    }

    /// Renews the snapshot when that is due; whether it was.
    fn publish(&mut self, now: Timestamp) -> bool {
        if now < self.snapshot_at + SNAPSHOT_INTERVAL {
            return false;
        }
        self.snapshot_at = now;
        let own = || self.unicast.then(|| self.feedback.drops().ok()).flatten();
        if let Some(drops) = self.socket.as_ref().map_or_else(own, |s| s.drops().ok()) {
            // The kernel's counter has 32 bits: what was added since the last look counts.
            let added = drops.wrapping_sub(self.host_drops as u32);
            self.host_drops += u64::from(added);
            self.machine.set_host_drops(self.host_drops);
        }
        let mut shared = lock(&self.ends.shared);
        shared.stats = *self.machine.stats();
        (shared.loss, shared.loss_ever) = (self.machine.loss(), self.machine.loss_ever());
        shared.data_held = self.machine.data_held();
        shared.rejects = self.open.rejects();
        shared.rejects.malformed += self.malformed;
        shared.rejects.truncated += self.truncated;
        shared.host_drops = self.host_drops;
        shared.has_all = self.machine.has_all();
        true
    }
}

/// A worker's own.
struct Desk {
    codec: Codec,
    symbol_len: usize,
    /// Used again for each block of which nothing is held, so for nearly all: memory that is new for each
    /// took a fifth of all work where nothing limits.
    seed: Vec<u8>,
}

fn work(job: Job, sink: &dyn BlockSink, desk: &mut Desk) -> Done {
    match job {
        Job::Seed { block, k } => {
            desk.seed.resize(usize::from(k) * desk.symbol_len, 0);
            let held = sink.seed(block, &mut desk.seed);
            let is_held = !held.is_empty();
            let bytes = if is_held { std::mem::take(&mut desk.seed) } else { Vec::new() };
            Done::Seeded { block, k, bytes, held }
        }
        Job::Complete { block, decode, mut symbols } => {
            let whole = !decode || symbols.rebuild(&mut desk.codec, desk.symbol_len);
            // Symbols that do not suffice although the machine counted them: a bug, not data loss.
            debug_assert!(whole, "{block} cannot be rebuilt");
            let accepted =
                if whole { sink.accept(block, &symbols.bytes) } else { Accepted::Refused };
            Done::Completed { block, accepted, symbols }
        }
    }
}
