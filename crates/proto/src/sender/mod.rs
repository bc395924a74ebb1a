//! The sending machine of a session.
//!
//! What the driver offers goes out in order as blocks of symbols; what receivers ask for goes out as
//! repair; polls open rounds and draw feedback; the rate controller and the pacer say when. The type
//! here only routes: members, window, straggler policy, rounds and the policies of rate and recovery are
//! leaves of their own.
//!
//! Deliberately absent: bytes. The machine works on symbol numbers, the driver keeps the bytes and codes them
//! when asked by [`Work`]. Also absent: who may join, receipts, TLS: the driver tells the outcome by the
//! commands.

mod members;
mod neighbours;
mod passing;
mod prompt;
mod repair;
mod rounds;
mod straggler;
mod transmit;
mod window;

pub use members::{Delivery, MEMBERS_MAX};
pub use transmit::round_interval;
pub use window::WINDOW_BLOCKS_MAX;

use crate::budget::{Budget, Shares};
use crate::feedback::GROUP_WITHOUT_BACKOFF;
use crate::grtt::Grtt;
use crate::ids::{BlockId, BlockKind, Epoch, Geometry, PacketNumber, ReceiverId, Round, StreamId};
use crate::pacer::Pacer;
use crate::range_set::RangeSet;
use crate::rate::{RateController, RatePhase, RateSummary};
use crate::recovery::Recovery;
use crate::time::{Duration, Timestamp};
use crate::timer::{Deadline, Reason, TimerTable};
use crate::units::Rate;
use crate::wire::{Header, TAG_LEN, list_len_max};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use members::{Member, Members};
use passing::Passing;
use prompt::Prompt;
use rounds::RoundLog;
use straggler::{REVIEW_INTERVAL, Standing, Stragglers, Verdict};
use window::{Offered, Window};

/// The stream's rate under any ceiling, also one of zero: every deadline must come.
const STREAM_RATE_MIN: Rate = Rate::from_bps(1);

/// Most blocks offered and not yet opened; [`Sender::offer_room`] says how many more fit.
pub const OFFERED_MAX: usize = 4096;

/// Most work and events that wait to be polled. The driver drains both after each input.
const QUEUE_MAX: usize = 8 * WINDOW_BLOCKS_MAX;

/// What a session needs to know from the start.
#[derive(Debug)]
pub struct SenderConfig {
    /// Sizes of symbols and blocks.
    pub geometry: Geometry,
    /// This stream.
    pub stream: StreamId,
    /// Key version that headers carry.
    pub epoch: Epoch,
    /// Rate control.
    pub rate: Box<dyn RateController>,
    /// Repair.
    pub recovery: Box<dyn Recovery>,
    /// A guess at the round trip, while nobody has joined whose is shorter ([`Sender::expect_round_trip`]).
    pub initial_rtt: Duration,
    /// Most blocks open at once, 1 ..= [`WINDOW_BLOCKS_MAX`]; each costs the driver K·T bytes and its repair.
    pub window_blocks: usize,
    /// Share of all that is sent that pulls get while the stream runs, 0 ..= 1.
    pub pull_share: f64,
}

/// What the driver shall do and report back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read the block's k·T bytes and keep them.
    Load {
        /// Which block.
        block: BlockId,
        /// Its source symbols.
        k: u16,
    },
    /// Make repair symbols `from .. from + count` of a loaded block and keep them.
    Encode {
        /// Which block.
        block: BlockId,
        /// First repair index.
        from: u16,
        /// How many.
        count: u16,
    },
    /// Forget the block's bytes and repair.
    Release {
        /// Which block.
        block: BlockId,
    },
}

/// What the driver has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// [`Work::Load`] is done.
    Loaded {
        /// Which block.
        block: BlockId,
        /// Bytes of its last source symbol but for the zeros that it ends with. An open session sends no more of it.
        tail: u16,
    },
    /// The block's bytes cannot be had. It is dropped; receivers find out by pulling it.
    LoadFailed(BlockId),
    /// [`Work::Encode`] is done: repair symbols below `until` are there.
    Encoded {
        /// Which block.
        block: BlockId,
        /// One past the last repair symbol made.
        until: u16,
    },
}

/// What the driver should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The receiver cannot keep up: tell it to leave the multicast group and pull.
    LeaveStream(ReceiverId),
    /// The same, since no answer of it comes.
    Unheard(ReceiverId),
    /// The receiver may come back to the multicast group.
    ReturnToStream(ReceiverId),
    /// All source symbols of a block of an open session have just been sent, since then.
    SourceSent {
        /// Which block.
        block: BlockId,
        /// When its first one was sent.
        began_at: Timestamp,
    },
    /// Not all source symbols of a block of an open session will be sent: nobody on the stream needs it, or its
    /// bytes cannot be had. Of each block either this is told or that they were sent.
    SourcePassed {
        /// Which block.
        block: BlockId,
    },
    /// Everything offered was sent and settled, and [`Sender::finish`] was called.
    StreamDone,
}

/// A datagram to send now. The driver adds the body and the seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its header. For `Kind::Symbol` the driver appends that symbol's first `body_len` bytes, for the others the
    /// message that [`Sender::poll_transmit`] wrote.
    pub header: Header,
    /// Bytes of its body.
    pub body_len: usize,
    /// Its full packet number, for the seal.
    pub packet: PacketNumber,
}

impl Transmit {
    /// Bytes of the datagram.
    pub const fn datagram_len(&self) -> usize {
        self.header.len_sent() + self.body_len + TAG_LEN
    }
}

/// Counters and estimates for progress and reports. Bytes are UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SenderStats {
    /// Datagrams with source symbols.
    pub source_symbols: u64,
    /// Datagrams with repair symbols.
    pub repair_symbols: u64,
    /// Of these, sent before any NACK of theirs.
    pub proactive_symbols: u64,
    /// Datagrams with symbols of manifest blocks, source or repair.
    pub manifest_symbols: u64,
    /// Bytes by which source symbols were shorter than T (`docs/protocol.md#PROD-13`).
    pub cut_bytes: u64,
    /// Polls, advertisements and probes.
    pub messages: u64,
    /// All bytes of the stream.
    pub bytes: u64,
    /// Bytes of polls, advertisements and probes among them.
    pub message_bytes: u64,
    /// Feedback messages that came.
    pub feedback: u64,
    /// Their bytes.
    pub feedback_bytes: u64,
    /// NACKs (block and count) in them.
    pub nacks: u64,
    /// NACKs that were not answered on the stream.
    pub nacks_refused: u64,
    /// Blocks settled and closed.
    pub blocks_closed: u64,
    /// Blocks opened again for a late NACK.
    pub blocks_reopened: u64,
}

/// One receiver, for progress and reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberStats {
    /// How it is served.
    pub delivery: Delivery,
    /// Loss share lately, if it has reported.
    pub loss: Option<f64>,
    /// Of all that was sent while it followed the stream; 0 before it has reported.
    pub loss_ever: f64,
    /// Round trip of its last answer.
    pub rtt: Option<Duration>,
    /// Data blocks it holds.
    pub data_held: u32,
    /// Feedback messages from it.
    pub feedback: u64,
    /// NACKs (block and count) in them.
    pub nacks: u64,
    /// Datagrams of the stream that it got.
    pub received: u64,
    /// Datagrams that its socket buffer had no room for.
    pub host_drops: u64,
}

/// The sending machine.
///
/// Contract: call one input or command (`handle_*`, [`offer`](Self::offer), [`join`](Self::join), …), then drain
/// [`poll_transmit`](Self::poll_transmit), [`poll_work`](Self::poll_work) and [`poll_event`](Self::poll_event)
/// until each is `None`, then read [`poll_timeout`](Self::poll_timeout). `now` never runs backwards; a
/// spurious [`handle_timeout`](Self::handle_timeout) is harmless.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    now: Timestamp,
    started: bool,
    finished: bool,
    done: bool,
    passing: Passing,
    /// The session stays open: see [`Sender::stay_open`].
    prompt: Option<Prompt>,
    members: Members,
    window: Window,
    rounds: RoundLog,
    grtt: Grtt,
    /// What is longer is not the group's round trip, but that of one who is late.
    round_trip_max: Duration,
    pacer: Pacer,
    /// The controller has not found the rate yet.
    searching: bool,
    found_at: Timestamp,
    budget: Budget,
    stragglers: Stragglers,
    timers: TimerTable,
    work: VecDeque<Work>,
    events: VecDeque<Event>,
    /// Datagrams left in the burst that the pacer let go, and what of it was sent.
    burst_left: u32,
    burst_bytes: u64,
    packet: PacketNumber,
    round: Round,
    /// The newest round to which anybody on the stream has answered, and when that was, or somebody came to a stream that nobody
    /// followed.
    answered: (Round, Timestamp),
    /// Of those who were cut off before this round's answer it is noted.
    cut_off: Round,
    probe_due: bool,
    /// When the last one left for who joins.
    probed_at: Option<Timestamp>,
    poll_due: bool,
    /// The receivers are told our presence with the next poll.
    tell_due: bool,
    /// Blocks whose plan grew since the last advertisement.
    advert: Vec<BlockId>,
    advert_due: bool,
    /// Symbols sent since the last poll.
    unpolled: u32,
    /// Polls in a row with no symbol before them.
    idle_polls: u32,
    /// Times that the sender could not keep the rate for its own reasons.
    limited: u64,
    limited_marked: bool,
    stats: SenderStats,
    ceiling: Rate,
}

impl Sender {
    /// A machine that sends nothing before [`start`](Self::start).
    pub fn new(config: SenderConfig, now: Timestamp) -> Self {
        debug_assert!((1..=WINDOW_BLOCKS_MAX).contains(&config.window_blocks));
        let datagram = config.geometry.datagram_len() as u32;
        Self {
            now,
            started: false,
            finished: false,
            done: false,
            passing: Passing::default(),
            prompt: None,
            members: Members::default(),
            window: Window::new(
                config.window_blocks,
                list_len_max(config.geometry.datagram_len()),
                config.geometry.code,
            ),
            rounds: RoundLog::default(),
            grtt: Grtt::new(config.initial_rtt),
            round_trip_max: Duration::MAX,
            pacer: Pacer::new(now, config.rate.rate(), datagram)
                .with_burst_min(config.rate.burst_packets_min()),
            searching: false,
            found_at: Timestamp::ZERO,
            budget: Budget::new(config.pull_share),
            stragglers: Stragglers::new(now),
            timers: TimerTable::default(),
            work: VecDeque::new(),
            events: VecDeque::new(),
            burst_left: 0,
            burst_bytes: 0,
            packet: PacketNumber(0),
            round: Round(0),
            answered: (Round(0), now),
            cut_off: Round(0),
            probe_due: false,
            probed_at: None,
            poll_due: false,
            tell_due: false,
            advert: Vec::new(),
            advert_due: false,
            unpolled: 0,
            idle_polls: 0,
            limited: 0,
            limited_marked: false,
            stats: SenderStats::default(),
            ceiling: Rate::MAX,
            config,
        }
    }

    fn advance(&mut self, now: Timestamp) {
        debug_assert!(now >= self.now, "time ran backwards");
        self.now = now;
    }

    // Commands.

    /// Begins to send: polls at once, symbols as soon as blocks are loaded.
    pub fn start(&mut self, now: Timestamp) {
        self.advance(now);
        if !self.started {
            self.started = true;
            // Probes have had their time.
            self.burst_bytes = 0;
            self.poll_due = true;
            self.timers.set(Reason::Pace, now);
            self.timers.set(Reason::Review, now + REVIEW_INTERVAL);
        }
    }

    /// How many more blocks may be offered now.
    pub fn offer_room(&self) -> usize {
        OFFERED_MAX - self.window.offered.len()
    }

    /// Offers the next block, of `k` source symbols. Blocks are sent in the order offered.
    ///
    /// # Panics
    /// In debug builds, past [`offer_room`](Self::offer_room), after [`finish`](Self::finish), or with `k`
    /// outside 1 ..= K.
    pub fn offer(&mut self, now: Timestamp, block: BlockId, k: u16) {
        self.advance(now);
        debug_assert!(self.offer_room() > 0 && !self.finished);
        debug_assert!((1..=self.config.geometry.block_symbols).contains(&k));
        self.window.offered.push_back(Offered { block, k });
        self.wake_pacer();
    }

    /// More may be offered at any time, and each block is wanted as soon as can be: the rate is found before the
    /// first is offered, and what is sent last is asked for at once (`docs/protocol.md#PROD`).
    pub fn stay_open(&mut self, now: Timestamp) {
        self.advance(now);
        self.prompt = Some(Prompt::default());
        self.wake_pacer();
    }

    /// Nothing more will be offered.
    pub fn finish(&mut self, now: Timestamp) {
        self.advance(now);
        self.finished = true;
        self.wake_pacer();
    }

    /// A receiver takes part from now on. False: the session is full.
    pub fn join(&mut self, now: Timestamp, id: ReceiverId, delivery: Delivery) -> bool {
        self.advance(now);
        self.stragglers.forget(id);
        let fits = self.members.insert(id, Member::new(now, delivery));
        self.on_follower(delivery);
        self.wake_pacer();
        fits
    }

    /// The round trip of a receiver that is about to follow the stream, as its join showed it, counts until one has answered.
    pub fn expect_round_trip(&mut self, rtt: Duration) {
        // Of a few no more than the guess: the search goes on before the first answer. Of many very many would ask at once.
        let is_few = self.members.streaming() < GROUP_WITHOUT_BACKOFF;
        let most = if is_few { self.config.initial_rtt } else { members::LATE.0 };
        self.grtt.on_join(rtt, most);
    }

    /// The receiver holds these data and manifest blocks from an earlier attempt. Of so many ranges that they have no room
    /// the last are not noted.
    pub fn have(&mut self, now: Timestamp, id: ReceiverId, data: RangeSet, manifest: RangeSet) {
        self.advance(now);
        self.members.have(id, &data, &manifest);
        self.wake_pacer();
    }

    /// Data blocks below `end` are asked for by pull, or somebody holds them: while nobody follows the stream, it passes by
    /// what is asked for and little more.
    pub fn on_pull(&mut self, now: Timestamp, end: u32) {
        self.advance(now);
        self.passing.wanted(now, end);
        if self.members.streaming() == 0 {
            self.fill_window();
        }
    }

    /// It pulls from now on, as the sender wants it: nobody is waited for who would follow the stream again.
    pub fn move_to_pull(&mut self, now: Timestamp, id: ReceiverId) {
        self.set_delivery(now, id, Delivery::Pull);
        self.members.set_delivery(id, Delivery::Pull); // Not by its own word.
        self.wake_pacer();
    }

    /// The receiver changes between stream and pull, or has ended (complete, left, failed or dead).
    pub fn set_delivery(&mut self, now: Timestamp, id: ReceiverId, delivery: Delivery) {
        self.advance(now);
        if delivery == Delivery::Stream && self.stragglers.is_told(id) {
            return; // Its word that it hears the stream has crossed the order to leave (protocol.md#STRAG-5).
        }
        let old = self.members.set_delivery(id, delivery);
        if old == Some(Delivery::Stream) && delivery != Delivery::Stream {
            self.config.rate.on_receiver_gone(id);
            // The last review may have been before this machine stood still.
            self.passing.followed(now, self.window.data_end);
            if delivery == Delivery::Pull {
                self.members.set_absent(id);
            }
        }
        if delivery != Delivery::Pull {
            self.stragglers.forget(id);
        }
        if let Some(member) = self.members.by_id.get_mut(&id) {
            let pulls_again = (old, delivery) == (Some(Delivery::Stream), Delivery::Pull);
            if pulls_again && !member.has_reported() {
                self.stragglers.came_to_nothing(now, id);
            }
            member.restart_spans();
            if old != Some(Delivery::Stream) {
                member.come_to_stream(now);
                self.on_follower(delivery);
            }
        }
        self.apply_rate();
        self.wake_pacer();
    }

    /// Nothing is known of the receiver any more: it takes part under another number, or never again.
    pub fn forget(&mut self, now: Timestamp, id: ReceiverId) {
        self.set_delivery(now, id, Delivery::Ended);
        self.members.remove(id);
    }

    /// Stream and pulls together are never faster than this from now on.
    pub fn set_ceiling(&mut self, now: Timestamp, ceiling: Rate) {
        self.advance(now);
        self.ceiling = ceiling;
        self.apply_rate();
    }

    // Inputs.

    /// Something that was asked for by [`Work`] is done.
    pub fn handle_work(&mut self, now: Timestamp, done: WorkDone) {
        self.advance(now);
        match done {
            WorkDone::Loaded { block, tail } => {
                let tail = self.tail_sent(tail);
                match self.window.find(block) {
                    Some(open) => {
                        open.loaded = true;
                        open.tail = tail;
                    }
                    // It was closed meanwhile, and nobody wants the bytes.
                    None => self.push_work(Work::Release { block }),
                }
            }
            WorkDone::LoadFailed(block) => {
                if let Some(at) = self.window.open.iter().position(|b| b.block == block) {
                    self.close(at);
                    self.window.forget(block);
                }
            }
            WorkDone::Encoded { block, until } => {
                // What was asked for before the block was closed and opened again is no answer.
                let open = self.window.find(block).filter(|open| open.encode_asked == until);
                if let Some(open) = open {
                    open.encoded = until;
                }
            }
        }
        self.schedule_encoding();
        self.wake_pacer();
    }

    /// What is due by time alone.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.advance(now);
        while let Some(reason) = self.timers.expire(now) {
            match reason {
                Reason::Pace => self.begin_burst(),
                Reason::Poll => self.poll_due = true,
                Reason::Advert => self.advert_due = !self.advert.is_empty(),
                Reason::Settle => self.settle(),
                Reason::Review => self.review(),
                Reason::Nack | Reason::Silence | Reason::Pull | Reason::Greet => {}
            }
        }
    }

    // Outputs.

    /// The next thing for the driver to do.
    #[must_use]
    pub fn poll_work(&mut self) -> Option<Work> {
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

    // State, for progress, reports and the control plane.

    /// One past the highest data and manifest blocks opened, and whether these ends are final: what a
    /// receiver without the stream is told by the control plane.
    pub fn ends(&self) -> (u32, u32, bool) {
        let last = self.finished && self.window.offered.is_empty();
        (self.window.data_end, self.window.manifest_end, last)
    }

    /// What the stream and the pulls may use now.
    pub fn shares(&self) -> Shares {
        let waiting = !(self.window.offered.is_empty() && self.window.open.is_empty());
        let stream = self.config.rate.rate();
        // Where nobody reports on the stream, or it is idle and measures nothing, TCP finds the pulls' rate by itself.
        let beside = waiting && self.started && self.members.streaming() > 0;
        let pulls = if beside { self.budget.of_pulls(stream, self.ceiling) } else { self.ceiling };
        Shares { stream, pulls }
    }

    /// This stream's id.
    pub const fn stream(&self) -> StreamId {
        self.config.stream
    }

    /// Blocks offered and not yet opened.
    pub fn backlog(&self) -> usize {
        self.window.offered.len()
    }

    /// Counters.
    pub const fn stats(&self) -> &SenderStats {
        &self.stats
    }

    /// Blocks open now.
    pub fn open_blocks(&self) -> usize {
        self.window.open.len()
    }

    /// The highest packet number sent.
    pub const fn packet(&self) -> PacketNumber {
        self.packet
    }

    /// Rounds so far.
    pub const fn round(&self) -> Round {
        self.round
    }

    /// The group's round trip.
    pub const fn grtt(&self) -> Duration {
        self.grtt.value()
    }

    /// What the rate controller believes.
    pub fn rate_summary(&self) -> RateSummary {
        self.config.rate.summary()
    }

    /// One receiver.
    pub fn member(&self, id: ReceiverId) -> Option<MemberStats> {
        self.members.by_id.get(&id).map(|m| MemberStats {
            delivery: m.delivery,
            loss: m.loss.share(),
            loss_ever: m.lost_share(),
            rtt: m.rtt,
            data_held: m.data_held,
            feedback: m.messages,
            nacks: m.nacks,
            received: m.received,
            host_drops: m.host_drops,
        })
    }

    // Inside.

    fn push_work(&mut self, work: Work) {
        debug_assert!(self.work.len() < QUEUE_MAX, "the driver does not drain poll_work");
        self.work.push_back(work);
    }

    fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn apply_rate(&mut self) {
        let ceiling = self.stream_ceiling();
        self.config.rate.set_ceiling(ceiling);
        self.pacer.set_rate(self.shares().stream.max(STREAM_RATE_MIN));
        let summary = self.config.rate.summary();
        self.pacer.set_queue(summary.queue_delay, summary.queue_borne);
        match summary.phase {
            RatePhase::Startup => self.searching = true,
            RatePhase::Silent => {}
            _ if core::mem::take(&mut self.searching) => self.forget_search(summary.random_loss),
            _ => {}
        }
    }

    /// The rate has been found by filling a queue until it overflowed: such losses say nothing about those to come
    /// (`docs/protocol.md#REP-3`).
    fn forget_search(&mut self, chance: f64) {
        let now = self.now;
        self.found_at = now;
        self.members.on_stream_mut().for_each(|(_, member)| member.forget_loss(now, chance));
    }

    /// Opens blocks while there is room and little left to send.
    fn fill_window(&mut self) {
        if !self.started {
            return;
        }
        // Read ahead what is sent within 50 ms, two blocks at least: a read never stalls the stream.
        let symbol = u64::from(self.config.geometry.symbol_len);
        let soon = self.pacer.rate().bytes_in(Duration::from_millis(50)) / symbol;
        while let Some(next) = self.window.offered.front().copied() {
            // Short blocks are not opened by the hundred: each poll tells all that are open.
            let block =
                if self.prompt.is_some() { next.k } else { self.config.geometry.block_symbols };
            let ahead = soon + 2 * u64::from(block);
            if self.skippable(next.block) {
                self.window.skip_next();
                self.tell_passed(next.block);
                continue;
            }
            let nobody = self.members.streaming() == 0 || self.is_cut_off();
            if nobody || self.window.backlog() >= ahead || self.window.is_full() {
                return;
            }
            if let Some(opened) = self.window.open_next(self.now) {
                self.push_work(Work::Load { block: opened.block, k: opened.k });
            }
        }
        self.check_done();
    }

    /// Nobody on the stream needs the block, and somebody is there to say so (`docs/protocol.md#CTL-4`).
    fn skippable(&self, block: BlockId) -> bool {
        if self.members.streaming() == 0 {
            // Who comes later gets what an open session sends from then on.
            let nobody_returns = self.members.absent() == 0;
            return match self.prompt {
                Some(_) => nobody_returns || !self.passing.is_waiting(self.now),
                None if nobody_returns => self.members.pulling() > 0,
                None => self.passing.passes(self.now, block),
            };
        }
        self.members.on_stream().all(|(_, m)| match block.kind() {
            BlockKind::Data => m.had_data.contains(block.number()),
            BlockKind::Manifest => m.had_manifest.contains(block.number()),
        })
    }

    fn tell_passed(&mut self, block: BlockId) {
        if self.prompt.is_some() {
            self.push_event(Event::SourcePassed { block });
        }
    }

    fn close(&mut self, index: usize) {
        let Some(closed) = self.window.close(index) else { return };
        self.config.recovery.on_settled(closed.k, closed.asked);
        self.stats.blocks_closed += 1;
        if closed.sent < closed.k {
            self.tell_passed(closed.block);
        }
        self.push_work(Work::Release { block: closed.block });
        self.check_done();
    }

    fn check_done(&mut self) {
        let empty = self.window.open.is_empty() && self.window.offered.is_empty();
        if self.finished && empty && !self.done {
            self.done = true;
            self.apply_rate();
            self.push_event(Event::StreamDone);
        } else if !empty {
            self.done = false;
        }
    }

    /// Who is not heard pulls: nobody waits for it, and what it loses is told by nobody (protocol.md#STRAG-3).
    fn give_up_unheard(&mut self) {
        let Some(id) = self.members.unheard(self.now, self.grtt.value()) else { return };
        self.stragglers.leave(self.now, id);
        if !self.members.is_heard() {
            self.stragglers.rest(self.now, id);
        }
        self.move_to_pull(self.now, id);
        self.push_event(Event::Unheard(id));
    }

    /// Looks the members over for stragglers.
    fn review(&mut self) {
        self.give_up_unheard();
        self.timers.set(Reason::Review, self.now + REVIEW_INTERVAL);
        let standings: Vec<Standing> = self
            .members
            .on_stream_mut()
            .map(|(id, m)| Standing {
                id,
                loss: m.loss.share().unwrap_or(0.0),
                span: m.take_span(),
            })
            .filter(|standing| standing.span.0 > 0)
            .collect();
        self.round_trip_max = self.members.round_trip_max();
        let busy = !self.window.open.is_empty();
        let summary = self.config.rate.summary();
        let rising = matches!(summary.phase, RatePhase::Startup | RatePhase::Fixed);
        let limiting = summary.limiting.filter(|_| busy && !rising);
        let streaming = self.members.streaming();
        if streaming > 0 {
            self.passing.followed(self.now, self.window.data_end);
        } else {
            self.passing.review(self.now);
            self.wake_pacer();
        }
        self.stragglers.set_round_trip(self.grtt.value());
        self.stragglers.set_loss_median(self.members.loss_median());
        if streaming > 0 && !self.members.is_heard() {
            self.stragglers.put_off(self.now + REVIEW_INTERVAL);
        }
        match self.stragglers.review(self.now, streaming, &standings, limiting, summary.rate) {
            Some(Verdict::Try(id)) => self.config.rate.on_trial(id),
            Some(Verdict::Leave(id)) => {
                self.members.set_delivery(id, Delivery::Pull);
                self.config.rate.on_receiver_gone(id);
                self.push_event(Event::LeaveStream(id));
            }
            Some(Verdict::Return(id)) => {
                self.members.set_delivery(id, Delivery::Stream);
                if let Some(member) = self.members.by_id.get_mut(&id) {
                    member.restart_spans();
                    member.come_to_stream(self.now);
                    member.loss = crate::loss::Loss::default();
                }
                self.on_follower(Delivery::Stream);
                self.push_event(Event::ReturnToStream(id));
            }
            None => {}
        }
        self.apply_rate();
    }
}
