//! The receiving machine of a session.
//!
//! It notes which symbols have come, answers polls, NACKs by count what is lacking and not on its way,
//! says when a block can be rebuilt, and what has to be pulled because the stream is past it.
//!
//! Deliberately absent: bytes (the driver keeps symbols and rebuilds blocks when asked by [`Work`]) and
//! objects (whether all is there is the store's to say).

mod backlog;
mod block;
mod greet;
mod neighbours;
mod pulls;
mod silence;
mod stats;

pub use pulls::{PULLS_DEFAULT, PULLS_MAX};
pub use stats::ReceiverStats;

use crate::base_delay::BaseDelay;
use crate::feedback::FeedbackPolicy;
use crate::ids::{BlockId, BlockKind, Epoch, Geometry, ReceiverId, Round, StreamId, SymbolId};
use crate::range_set::RangeSet;
use crate::rng::Rng;
use crate::time::{Duration, Timestamp};
use crate::timer::{Deadline, Reason, TimerTable};
use crate::wire::{
    Advert, FEEDBACK_NEEDS_MAX, Feedback, Header, Kind, Need, OpenBlock, ParseError, Poll, Presence,
};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use backlog::Backlog;
use block::{Partial, Stage};
use core::ops::Range;
use pulls::Pulls;
use silence::Silence;
use stats::Losses;

/// Most blocks of which symbols are kept at once: the sender's window and as many that wait for a pull.
pub const PARTIAL_BLOCKS_MAX: usize = 2 * crate::wire::POLL_BLOCKS_MAX;

/// Of the blocks that are kept one in so many may wait to be stored before that counts as delay.
const BACKLOG_SHARE: usize = 4;

/// What a receiver needs to know from the start.
#[derive(Debug)]
pub struct ReceiverConfig {
    /// Sizes of symbols and blocks.
    pub geometry: Geometry,
    /// The stream to listen to.
    pub stream: StreamId,
    /// Our number in the session.
    pub me: ReceiverId,
    /// When we speak.
    pub feedback: Box<dyn FeedbackPolicy>,
    /// Blocks of which symbols are kept at once, 1 ..= [`PARTIAL_BLOCKS_MAX`]; each costs the driver K·T bytes.
    pub partial_blocks: usize,
    /// Pulls of data at once, 1 ..= [`PULLS_MAX`]; each costs the driver K·T bytes.
    pub pulls: usize,
    /// Something is held from an earlier attempt: ask for it by [`Work::Seed`].
    pub resume: bool,
    /// The stream is listened to; otherwise everything is pulled.
    pub on_stream: bool,
    /// The sender learns from our messages where to send the stream: greet it until the stream is heard.
    pub greets: bool,
    /// A session of products: a block's last source symbol may come without the zeros that it ends with, which the
    /// driver adds (`docs/protocol.md#PROD-13`).
    pub products: bool,
}

/// What to do with a datagram's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Keep the symbol: it is new and wanted.
    Keep,
    /// Nothing to keep.
    Drop,
}

/// What the driver shall do and report back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// See which source symbols of the block are held from before; answer by [`Receiver::seeded`].
    Seed {
        /// Which block.
        block: BlockId,
        /// Its source symbols.
        k: u16,
    },
    /// Enough symbols are there: rebuild what is lacking and store the block.
    Complete {
        /// Which block.
        block: BlockId,
        /// Its source symbols.
        k: u16,
        /// Source symbols are lacking.
        decode: bool,
    },
    /// Get the block from the sender over TLS.
    Pull(Pull),
    /// Forget the symbols of the block.
    Forget {
        /// Which block.
        block: BlockId,
    },
}

/// A pull of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// Repair symbols `from .. until`; answer by [`Receiver::pulled_repair`].
    Repair {
        /// Which block.
        block: BlockId,
        /// First repair index.
        from: u16,
        /// One past the last.
        until: u16,
    },
    /// All its bytes; answer by [`Receiver::pulled_bytes`].
    Bytes {
        /// Which block.
        block: BlockId,
    },
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// Stored.
    Stored(BlockId),
    /// There was no room for it, or it could not be verified yet: it has to come again.
    Refused(BlockId),
    /// Its bytes were false: it has to come again, as bytes, over TLS.
    False(BlockId),
    /// The pull failed.
    PullFailed(BlockId),
}

/// What the driver should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing of the stream has come for a while: join the multicast group anew, a switch may have forgotten. Told again
    /// and again while the stream counts as lost.
    StreamQuiet,
    /// Nothing of the stream has come for too long: tell the sender that we pull.
    StreamLost,
    /// The same of its symbols alone, while its polls come: what is as long does not get through.
    SymbolsLost,
    /// The stream is heard again: tell the sender that we follow it.
    StreamHeard,
    /// The sender says to leave the multicast group and pull: this receiver cannot keep up.
    LeaveStream,
    /// What the sender takes of its way to here, for the receivers of other sessions on this network.
    Neighbour(Presence),
}

/// The newest poll, as far as answers need it.
#[derive(Clone, Debug)]
struct LastPoll {
    poll: Poll,
    at: Timestamp,
    /// How much longer it took than the fastest lately.
    path_queue: Duration,
    /// The same, and when it came, by an account which the store's backlog is a part of.
    queue: Duration,
    told_at: Timestamp,
    received: u64,
}

/// The receiving machine.
///
/// Contract: call one input or command, then drain [`poll_transmit`](Self::poll_transmit),
/// [`poll_work`](Self::poll_work) and [`poll_event`](Self::poll_event) until each is `None`, then read
/// [`poll_timeout`](Self::poll_timeout). After [`handle_datagram`](Self::handle_datagram) draining may wait
/// until the end of a batch. `now` never runs backwards; a spurious timeout is harmless.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    now: Timestamp,
    rng: Rng,
    partial: BTreeMap<BlockId, Partial>,
    data: RangeSet,
    manifest: RangeSet,
    data_end: u32,
    manifest_end: u32,
    finished: bool,
    last_poll: Option<LastPoll>,
    base_delay: BaseDelay,
    backlog: Backlog,
    /// A report or NACK is to be sent now.
    feedback_due: bool,
    /// Something changed that may let a pull start.
    pull_check: bool,
    /// Blocks that the stream shall not bring (raw ids): they were refused or false, or there was no room for them.
    by_pull: RangeSet,
    pulls: Pulls,
    timers: TimerTable,
    work: VecDeque<Work>,
    events: VecDeque<Event>,
    stats: ReceiverStats,
    losses: Losses,
    host_drops: u64,
    counter: u64,
    silence: Silence,
    /// What other senders say, for ours.
    passing: Vec<Presence>,
    /// Datagrams of the stream that had come when greeting began.
    greeted_at_count: u64,
}

impl Receiver {
    /// A machine for one session; `seed` decides its random waits.
    pub fn new(config: ReceiverConfig, seed: u64, now: Timestamp) -> Self {
        debug_assert!((1..=PARTIAL_BLOCKS_MAX).contains(&config.partial_blocks));
        let mut timers = TimerTable::default();
        if config.on_stream {
            timers.set(Reason::Silence, now + Silence::wait(Duration::ZERO));
        }
        if config.greets {
            timers.set(Reason::Greet, now);
        }
        Self {
            now,
            rng: Rng::new(seed),
            partial: BTreeMap::new(),
            data: RangeSet::new(),
            manifest: RangeSet::new(),
            data_end: 0,
            manifest_end: 0,
            finished: false,
            last_poll: None,
            base_delay: BaseDelay::new(),
            backlog: Backlog::new(
                config.geometry.block_symbols,
                config.partial_blocks / BACKLOG_SHARE,
            ),
            feedback_due: false,
            pull_check: false,
            by_pull: RangeSet::new(),
            pulls: Pulls::new(config.pulls),
            timers,
            work: VecDeque::new(),
            events: VecDeque::new(),
            stats: ReceiverStats::default(),
            losses: Losses::default(),
            host_drops: 0,
            counter: 0,
            silence: Silence::default(),
            passing: Vec::new(),
            greeted_at_count: 0,
            config,
        }
    }

    fn advance(&mut self, now: Timestamp) {
        debug_assert!(now >= self.now, "time ran backwards");
        self.now = now;
    }

    // Commands.

    /// These blocks are held from an earlier attempt.
    pub fn have(&mut self, now: Timestamp, kind: BlockKind, blocks: Range<u32>) {
        self.advance(now);
        let drop: Vec<BlockId> = self
            .partial
            .iter()
            .filter(|(id, p)| {
                id.kind() == kind && blocks.contains(&id.number()) && p.stage != Stage::Completing
            })
            .map(|(id, _)| *id)
            .collect();
        drop.into_iter().for_each(|block| self.forget(block));
        self.pulls.end_within(kind, &blocks);
        self.pull_check = true;
        self.held_mut(kind).insert_range(blocks);
    }

    /// A block that was stored must come again after all, as bytes over TLS: what it held proved false.
    pub fn forgotten(&mut self, now: Timestamp, block: BlockId) {
        self.advance(now);
        self.held_mut(block.kind()).remove(block.number());
        // Another thread may still be at work on what else is in it.
        let storing = self.partial.get_mut(&block).filter(|p| p.stage == Stage::Completing);
        storing.into_iter().for_each(|partial| partial.in_vain = true);
        self.by_pull.insert(block.raw());
        self.stats.false_blocks += 1;
        self.pull_check = true;
    }

    /// What the control plane says of the sender's progress; with the stream the polls say it.
    pub fn update_ends(&mut self, now: Timestamp, data: u32, manifest: u32, finished: bool) {
        self.advance(now);
        self.data_end = self.data_end.max(data);
        self.manifest_end = self.manifest_end.max(manifest);
        self.finished |= finished;
        self.pull_check = true;
    }

    /// One past the highest data and manifest blocks that the sender was heard to have opened.
    pub const fn ends(&self) -> (u32, u32) {
        (self.data_end, self.manifest_end)
    }

    /// Joins or leaves the stream, as the sender has told us or because it is not heard.
    pub fn set_on_stream(&mut self, now: Timestamp, on_stream: bool) {
        self.advance(now);
        self.silence = Silence::default();
        self.follow(on_stream);
    }

    fn follow(&mut self, on_stream: bool) {
        self.config.on_stream = on_stream;
        self.losses.interrupt();
        self.pull_check = true;
        if on_stream {
            self.timers.set(Reason::Silence, self.now + Silence::wait(Duration::ZERO));
        } else {
            self.timers.stop(Reason::Silence);
            self.timers.stop(Reason::Nack);
            self.feedback_due = false;
        }
    }

    /// The socket buffer has dropped this many datagrams since it was opened.
    pub fn set_host_drops(&mut self, drops: u64) {
        self.host_drops = drops;
    }

    // Inputs.

    /// An authentic datagram of the stream, which the host's kernel had at `arrived`, not when the driver came round to it:
    /// a busy host must not look like a queue on the path. `Keep`: the driver keeps the symbol.
    pub fn handle_datagram(
        &mut self,
        now: Timestamp,
        arrived: Timestamp,
        header: &Header,
        body: &[u8],
    ) -> Result<Disposition, ParseError> {
        debug_assert!(arrived <= now, "a datagram is handled after it arrived");
        self.advance(now);
        self.stats.received += 1;
        match header.kind {
            Kind::Symbol { block, k, symbol } => {
                // protocol.md#WIRE-3
                self.config.geometry.check(k, symbol, body.len(), self.config.products)?;
                if body.len() == usize::from(self.config.geometry.symbol_len) {
                    self.silence.on_full();
                }
                Ok(self.on_symbol(block, k, symbol))
            }
            Kind::Poll => {
                self.on_poll(arrived, Poll::parse(body)?);
                Ok(Disposition::Drop)
            }
            Kind::Advert => {
                let advert = Advert::parse(body)?;
                advert.blocks.iter().for_each(|listing| self.on_listing(listing, None));
                Ok(Disposition::Drop)
            }
            Kind::Probe => {
                self.silence.on_full();
                Ok(Disposition::Drop)
            }
            Kind::Presence { receiver: None } => {
                let presence = Presence::parse(body)?;
                if self.is_limiting() {
                    self.events.push_back(Event::Neighbour(presence));
                }
                Ok(Disposition::Drop)
            }
            Kind::Feedback { .. } | Kind::Presence { receiver: Some(_) } => {
                Err(ParseError::UnknownType)
            }
        }
    }

    /// The answer to [`Work::Seed`].
    pub fn seeded(&mut self, now: Timestamp, block: BlockId, held: &[Range<u16>]) {
        self.advance(now);
        if let Some(partial) = self.partial.get_mut(&block) {
            held.iter().for_each(|range| partial.insert_source(range.clone()));
            self.complete_if_ready(block);
        }
    }

    /// The answer to [`Pull::Repair`]: the symbols are with the driver.
    pub fn pulled_repair(&mut self, now: Timestamp, block: BlockId, repair: Range<u16>) {
        self.advance(now);
        self.pulls.end(block);
        self.pull_check = true;
        if let Some(partial) = self.partial.get_mut(&block) {
            if partial.stage == Stage::Pulling {
                partial.stage = Stage::Collecting;
            }
            repair.for_each(|index| {
                partial.insert(SymbolId::repair(index));
            });
            // What was pulled is not asked for again, should it not suffice.
            partial.planned = partial.planned.max(partial.k + partial.held().min(partial.k));
            self.complete_if_ready(block);
        }
    }

    /// The answer to [`Pull::Bytes`]: the block is with the driver, whole. True: store it and answer by
    /// [`handle_work`](Self::handle_work); false: the stream was first.
    #[must_use]
    pub fn pulled_bytes(&mut self, now: Timestamp, block: BlockId, k: u16) -> bool {
        self.advance(now);
        self.pull_check = true;
        let completing = self.partial.get(&block).is_some_and(|p| p.stage == Stage::Completing);
        if self.holds(block) || completing {
            self.pulls.end(block);
            return false;
        }
        self.partial.entry(block).or_insert_with(|| Partial::new(k)).stage = Stage::Completing;
        self.backlog.on_whole(self.now, k);
        true
    }

    /// How a block ended.
    pub fn handle_work(&mut self, now: Timestamp, done: WorkDone) {
        self.advance(now);
        self.pull_check = true;
        let in_vain = |block| self.partial.get(&block).is_some_and(|partial| partial.in_vain);
        match done {
            WorkDone::Stored(block) if in_vain(block) => {
                self.fail_pull(block);
                self.forget(block);
            }
            WorkDone::Stored(block) => {
                self.stats.stored += 1;
                self.pulls.end(block);
                self.by_pull.remove(block.raw());
                self.forget(block);
                self.held_mut(block.kind()).insert(block.number());
            }
            WorkDone::Refused(block) | WorkDone::False(block) => {
                self.stats.false_blocks += u64::from(matches!(done, WorkDone::False(_)));
                self.by_pull.insert(block.raw());
                self.fail_pull(block);
                self.forget(block);
            }
            WorkDone::PullFailed(block) => {
                self.fail_pull(block);
                if let Some(partial) = self.partial.get_mut(&block)
                    && partial.stage == Stage::Pulling
                {
                    partial.stage = Stage::Collecting;
                }
            }
        }
    }

    /// What is due by time alone.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.advance(now);
        while let Some(reason) = self.timers.expire(now) {
            match reason {
                Reason::Nack => self.feedback_due |= !self.needs().is_empty(),
                Reason::Pull => self.pull_check = true,
                Reason::Silence => self.on_silence(),
                Reason::Greet => self.greet(),
                Reason::Pace | Reason::Poll | Reason::Advert | Reason::Settle | Reason::Review => {}
            }
        }
    }

    // Outputs.

    /// The feedback, or what another sender says, to send now: its header and counter; the body replaces what `message` held.
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        now: Timestamp,
        message: &mut Vec<u8>,
    ) -> Option<(Header, u64)> {
        self.advance(now);
        let is_due = core::mem::take(&mut self.feedback_due);
        if is_due && self.is_greeting() {
            return Some(self.greeting(message));
        }
        if !self.config.on_stream {
            return None;
        }
        if !is_due {
            return self.pass_on(message);
        }
        let last = self.last_poll.as_ref()?;
        let needs = self.needs();
        for need in &needs {
            if let Some(partial) = self.partial.get_mut(&need.block) {
                partial.nacked_at = Some(now);
            }
        }
        self.stats.feedback += 1;
        self.stats.nacks += needs.len() as u64;
        message.clear();
        Feedback {
            round: last.poll.round,
            hold: now.since(last.at),
            queue: last.queue,
            path_queue: last.path_queue,
            polled_at: last.told_at,
            received: last.received,
            host_drops: self.host_drops + self.stats.no_room,
            data_held: self.data.len() as u32,
            needs,
        }
        .emit(message);
        Some(self.feedback_header())
    }

    fn feedback_header(&mut self) -> (Header, u64) {
        self.header_of(Kind::Feedback { receiver: self.config.me })
    }

    fn header_of(&mut self, kind: Kind) -> (Header, u64) {
        self.counter += 1;
        let header = Header {
            epoch: Epoch(0), // A receiver has one key (protocol.md#KEY-3).
            stream: self.config.stream,
            packet_low: self.counter as u32,
            kind,
        };
        (header, self.counter)
    }

    /// The next thing for the driver to do.
    #[must_use]
    pub fn poll_work(&mut self) -> Option<Work> {
        if let Some(work) = self.work.pop_front() {
            return Some(work);
        }
        if core::mem::take(&mut self.pull_check) {
            self.start_pulls();
        }
        self.work.pop_front()
    }

    /// The next thing for the driver to know.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Deadline> {
        self.timers.next()
    }

    // State.

    /// Everything below the final ends is stored.
    pub fn has_all(&self) -> bool {
        self.finished
            && self.data.first_gap(0..self.data_end).is_none()
            && self.manifest.first_gap(0..self.manifest_end).is_none()
    }

    /// Data blocks stored.
    pub fn data_held(&self) -> u64 {
        self.data.len()
    }

    /// Whether a block is stored.
    pub fn holds(&self, block: BlockId) -> bool {
        match block.kind() {
            BlockKind::Data => self.data.contains(block.number()),
            BlockKind::Manifest => self.manifest.contains(block.number()),
        }
    }

    /// Whether symbols of the block are still wanted.
    pub fn is_collecting(&self, block: BlockId) -> bool {
        self.partial.get(&block).is_some_and(|partial| partial.stage != Stage::Completing)
    }

    /// Some block lacks symbols although all of its source was sent: repair comes, or is asked for.
    pub fn waits_for_repair(&self) -> bool {
        self.partial.values().any(|p| p.stage == Stage::Collecting && p.sent >= p.k)
    }

    /// Blocks of which symbols are kept.
    pub fn partial_blocks(&self) -> usize {
        self.partial.len()
    }

    /// Counters.
    pub const fn stats(&self) -> &ReceiverStats {
        &self.stats
    }

    /// Share of the stream's datagrams that does not come, of late.
    pub fn loss(&self) -> f64 {
        self.losses.share()
    }

    /// The same of all that was sent while it followed the stream.
    pub fn loss_ever(&self) -> f64 {
        self.losses.share_ever()
    }

    // Inside.

    const fn held_mut(&mut self, kind: BlockKind) -> &mut RangeSet {
        match kind {
            BlockKind::Data => &mut self.data,
            BlockKind::Manifest => &mut self.manifest,
        }
    }

    fn on_symbol(&mut self, block: BlockId, k: u16, symbol: SymbolId) -> Disposition {
        // The common case first, with one look-up: a block that is being collected.
        if let Some(partial) = self.partial.get_mut(&block) {
            let wanted = partial.k == k && partial.stage != Stage::Completing;
            if !wanted || partial.lacks() == 0 || !partial.insert(symbol) {
                self.stats.unneeded += 1;
                return Disposition::Drop;
            }
            self.stats.repair_kept += u64::from(symbol.repair_index().is_some());
            self.backlog.on_symbol();
            if partial.lacks() == 0 {
                self.complete_if_ready(block);
            }
            return Disposition::Keep;
        }
        let is_by_pull = self.by_pull.contains(block.raw());
        if self.holds(block) || is_by_pull && !self.is_full() {
            self.stats.unneeded += 1;
            return Disposition::Drop;
        }
        let newest = self.last_poll.as_ref().map(|l| l.poll.round);
        if is_by_pull || !self.make_room(block, k, newest) {
            // Begun later it would lack much, and have its place until that has come.
            if self.may_be_open(block) {
                self.by_pull.insert(block.raw());
            }
            self.stats.no_room += 1;
            return Disposition::Drop;
        }
        self.on_symbol(block, k, symbol)
    }

    fn is_full(&self) -> bool {
        self.partial.len() >= self.config.partial_blocks
    }

    /// Makes an entry for the block; false when too many are kept and none can go. `newest` is the newest poll's round.
    fn make_room(&mut self, block: BlockId, k: u16, newest: Option<Round>) -> bool {
        if self.is_full() {
            // The oldest that the stream no longer serves goes: it will be pulled as bytes.
            let closed = self.partial.iter().find(|(_, p)| {
                p.stage == Stage::Collecting && p.listed.is_some() && p.listed != newest
            });
            let Some(victim) = closed.map(|(id, _)| *id) else { return false };
            // A late symbol must not begin it anew: the driver has yet to be told that it goes.
            self.by_pull.insert(victim.raw());
            self.forget(victim);
        }
        self.partial.insert(block, Partial::new(k));
        if self.config.resume {
            self.work.push_back(Work::Seed { block, k });
        }
        true
    }

    fn forget(&mut self, block: BlockId) {
        if let Some(partial) = self.partial.remove(&block) {
            if partial.stage == Stage::Completing {
                self.backlog.on_done(self.now, partial.k);
            }
            self.work.push_back(Work::Forget { block });
        }
    }

    fn complete_if_ready(&mut self, block: BlockId) {
        let Some(partial) = self.partial.get_mut(&block) else { return };
        if partial.lacks() > 0 || partial.stage == Stage::Completing {
            return;
        }
        partial.stage = Stage::Completing;
        let (k, decode) = (partial.k, partial.needs_decoding());
        self.backlog.on_whole(self.now, k);
        self.work.push_back(Work::Complete { block, k, decode });
    }

    fn on_poll(&mut self, arrived: Timestamp, poll: Poll) {
        let newer = self.last_poll.as_ref().is_none_or(|l| poll.round > l.poll.round);
        if !newer {
            return;
        }
        // The wall clock may have been set back between two arrivals.
        let arrived = self.last_poll.as_ref().map_or(arrived, |l| l.at.max(arrived));
        self.data_end = self.data_end.max(poll.data_end);
        self.manifest_end = self.manifest_end.max(poll.manifest_end);
        self.finished |= poll.finished;
        // What is known first: only what is no longer listed makes room for what is new.
        poll.blocks.iter().for_each(|listing| self.on_listing(listing, Some(poll.round)));
        poll.blocks.iter().for_each(|listing| self.begin_listed(listing, poll.round));
        // Also when the stream counts as lost: else it would be heard again, and joined for one round.
        let follows = self.config.on_stream || self.silence.is_lost();
        if follows && poll.leaves == Some(self.config.me) {
            self.set_on_stream(self.now, false);
            self.events.push_back(Event::LeaveStream);
        }
        let reports = self.config.feedback.reports(self.config.me, &poll, &mut self.rng);
        // The clocks differ by something that changes slowly: only the difference of delays counts.
        let transit = arrived.as_nanos().wrapping_sub(poll.sent_at.as_nanos()) as i64;
        let backlog = self.backlog.delay(self.now);
        let path_queue = self.base_delay.excess(self.now, transit);
        let queue = path_queue + backlog;
        let told_at = self.last_poll.as_ref().map_or(arrived, |l| l.told_at);
        let told_at = told_at.max(arrived + backlog);
        let received = self.stats.received;
        if self.config.on_stream {
            self.losses.on_poll(poll.packet, received);
        }
        self.last_poll = Some(LastPoll { at: arrived, path_queue, queue, told_at, received, poll });
        self.on_polled();
        self.pull_check = true;
        self.schedule_nack();
        self.feedback_due |= reports;
    }

    /// A poll of that round, or an advertisement, tells of a block: if it is known, that is noted.
    fn on_listing(&mut self, listing: &OpenBlock, round: Option<Round>) {
        if let Some(partial) = self.partial.get_mut(&listing.block).filter(|p| p.k == listing.k) {
            self.silence.on_sent(partial.on_listing(listing));
            partial.listed = round.or(partial.listed);
        }
    }

    /// Begins a block that a poll tells of and that is not known, if there is room.
    fn begin_listed(&mut self, listing: &OpenBlock, round: Round) {
        let block = listing.block;
        let is_known = self.partial.contains_key(&block) || self.holds(block);
        if is_known || self.by_pull.contains(block.raw()) {
            return;
        }
        if self.make_room(block, listing.k, Some(round)) {
            self.on_listing(listing, Some(round));
        }
    }

    /// Draws a back-off if something is lacking that is not on its way.
    fn schedule_nack(&mut self) {
        if self.timers.is_set(Reason::Nack) || self.needs().is_empty() {
            return;
        }
        let Some(last) = &self.last_poll else { return };
        let wait = self.config.feedback.backoff(self.config.me, &last.poll, &mut self.rng);
        if wait.is_zero() {
            self.feedback_due = true;
        } else {
            self.timers.set(Reason::Nack, self.now + wait);
        }
    }

    /// What to NACK now, oldest first: not what the newest poll has closed, nor what was asked for within
    /// a round trip (`docs/protocol.md#FB-5`).
    fn needs(&self) -> Vec<Need> {
        let Some(last) = &self.last_poll else { return Vec::new() };
        let recently = last.poll.grtt + Duration::from_millis(1);
        let wanted = self.partial.iter().filter(|(_, p)| {
            p.stage == Stage::Collecting
                && p.listed == Some(last.poll.round)
                && p.nacked_at.is_none_or(|at| self.now.since(at) >= recently)
        });
        wanted
            .filter_map(|(block, p)| {
                let count = p.shortfall();
                (count > 0).then_some(Need { block: *block, planned: p.planned, count })
            })
            .take(FEEDBACK_NEEDS_MAX)
            .collect()
    }
}
