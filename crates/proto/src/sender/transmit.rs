//! What leaves, and in which order: messages that are due, repair of older blocks, then new source.
//!
//! The driver calls [`Sender::poll_transmit`] until there is nothing; with it stand when a burst begins and ends, how far polls
//! are apart, and when a block is settled. Not here: which symbols a block has left (`window`), what NACKs add to that
//! (`repair`), and how fast all of it goes (the pacer, and the rate controller).

use super::Sender;
use super::rounds::SentRound;
use super::{Event, Transmit, Work};
use crate::feedback::{GROUP_WITHOUT_BACKOFF, REPORTS_MAX, backoff_grtt};
use crate::ids::{BlockKind, PacketNumber, Round};
use crate::pacer::BURST_TIME_MAX;
use crate::rate::{RateController, RatePhase};
use crate::time::{Duration, Timestamp};
use crate::timer::Reason;
use crate::units::Rate;
use crate::wire::{Advert, Header, Kind, Poll};
use alloc::vec::Vec;

/// Rounds are at least this long, and at least the time of [`ROUND_BYTES`] of data, but no longer than
/// [`ROUND_SLOW_MAX`] for that (`docs/protocol.md#FB-1`): who has become slow must hear soon that it need not be.
const ROUND_MIN: Duration = Duration::from_millis(5);
const ROUND_BYTES: u64 = 32 * 1024;
/// While the rate is sought, which at most doubles in a round: a small file would be over before it is found.
const ROUND_BYTES_SOUGHT: u64 = 8 * 1024;
const ROUND_SLOW_MAX: Duration = Duration::from_millis(100);

/// Nobody paces polls, so they are no more frequent than full datagrams can be: they would take all of a low rate. But a
/// receiver that misses one must not think that the stream has fallen silent.
const ROUND_DATAGRAM: (u64, Duration) = (1_500, Duration::from_millis(500));

/// The same when the rate has been held for [`HELD_LONG`]: there is little to learn from one answer, and each costs both sides a wake-up.
const ROUND_BYTES_HELD: u64 = 48 * 1024;
/// Then rounds are of two round trips, where that is no longer than this.
const ROUND_TRIPS_HELD: u32 = 2;
const ROUND_HELD_MAX: Duration = Duration::from_millis(20);
/// Before that an answer may still be about the search.
const HELD_LONG: Duration = Duration::from_secs(1);

/// Longest wait between polls while nothing is sent.
const ROUND_IDLE_MAX: Duration = Duration::from_millis(250);

/// Idle polls before they become rarer: receivers may still be short of what was sent last.
const IDLE_POLLS_FAST: u32 = 8;

/// Receivers that shall report in a round though they need nothing: [`REPORTS_MAX`] of a small
/// group and in a session's first rounds, fewer the larger the group is, and one in two rounds in groups so
/// large that their worst receivers speak by themselves. With the NACKs, feedback to a thousand receivers stays
/// below a hundredth of the data, and is no more from ten thousand (`docs/protocol.md#FB-2`).
const FIRST_ROUNDS: u32 = 8;
const REPORTS_OF_GROUP: u32 = 64;
const LARGE_GROUP: u32 = 1_000;

/// Added to the time in which a block settles, for receivers on busy hosts that answer late: the time of this part
/// of the blocks that may be open, within these bounds. An open block costs memory, one closed too early a pull.
const SETTLE_SLACK_PART: u64 = 4;
const SETTLE_SLACK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(150));

/// Loss at which repair is made before it is planned: two symbols of a full block.
const AHEAD_LOSS: f64 = 2e-3;

/// For so long more a small group's block is kept open for those who have not answered since all of it was
/// sent (`docs/protocol.md#REP-5`).
const LAST_CALL: Duration = Duration::from_millis(500);

/// Advertisements are at least this far apart, or a quarter of the GRTT (`docs/protocol.md#FB-4`).
const ADVERT_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Probes for who joins take this part of a ceiling at most, beside what is said by TCP; all of it where they would be farther
/// apart than so otherwise: two have room in the 1.5 s in which a receiver listens for one (`docs/protocol.md#CTL-2`).
const PROBES_PART: u32 = 2;
const PROBES_APART_MAX: Duration = Duration::from_millis(700);

impl Sender {
    /// Multicasts a full-size probe, for receivers that are joining; none while the last one's time under the ceiling is not over
    /// (`docs/protocol.md#CTL-2`).
    pub fn probe(&mut self, now: Timestamp) {
        self.advance(now);
        let takes = self.ceiling.time_for(self.config.geometry.datagram_len() as u64);
        let apart = takes.max(takes.saturating_mul(PROBES_PART).min(PROBES_APART_MAX));
        if self.probed_at.is_none_or(|last| now.since(last) >= apart) {
            self.probed_at = Some(now);
            self.probe_due = true;
        }
    }

    /// The next datagram to send now, or `None` until the next deadline or input. A message's body replaces
    /// what `message` held.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Timestamp, message: &mut Vec<u8>) -> Option<Transmit> {
        self.advance(now);
        message.clear();
        if self.probe_due {
            self.probe_due = false;
            message.resize(self.config.geometry.probe_len(), 0);
            return Some(self.transmit(Kind::Probe, message.len()));
        }
        if !self.started {
            return None;
        }
        // Before the burst: behind it, it would be lost whenever the burst fills the queue.
        if self.poll_due {
            if let Some(transmit) = self.transmit_presence(message) {
                return Some(transmit);
            }
            return Some(self.transmit_poll(message));
        }
        if self.advert_due {
            return Some(self.transmit_advert(message));
        }
        if self.burst_left == 0 {
            return None;
        }
        if let Some(transmit) = self.transmit_symbol() {
            return Some(transmit);
        }
        self.fill_window();
        if let Some(transmit) = self.transmit_padding(message) {
            return Some(transmit);
        }
        self.ran_dry(message)
    }

    /// The pacer's deadline has come.
    pub(super) fn begin_burst(&mut self) {
        let due = self.pacer.next_send();
        if due > self.now {
            self.timers.set(Reason::Pace, due);
            return;
        }
        if self.limited_marked {
            // What left in a rest has had its time.
            self.burst_bytes = 0;
        }
        self.burst_left = self.pacer.burst_packets_at(self.now);
        self.poll_with_burst();
        self.fill_window();
    }

    /// The rounds of large groups are planned by the polls.
    fn polls_with_bursts(&self) -> bool {
        self.members.streaming() <= GROUP_WITHOUT_BACKOFF
    }

    /// A poll leaves with the burst that is nearest to its time, so that nobody is woken for it alone.
    fn poll_with_burst(&mut self) {
        let gap = self.pacer.burst_time();
        let Some(at) = self.timers.at(Reason::Poll).filter(|_| self.polls_with_bursts()) else {
            return;
        };
        if gap > BURST_TIME_MAX || at > self.now + gap {
            return;
        }
        if at <= self.now + gap / 2 {
            self.timers.stop(Reason::Poll);
            self.poll_due = true;
        } else {
            self.timers.set(Reason::Poll, self.now + gap + gap / 4);
        }
    }

    /// What the pulls leave of the ceiling.
    pub(super) fn stream_ceiling(&self) -> Rate {
        let is_shared = self.members.pulling() > 0;
        if is_shared { self.budget.of_stream(self.ceiling) } else { self.ceiling }
    }

    /// There may be something to send again.
    pub(super) fn wake_pacer(&mut self) {
        if self.started && self.burst_left == 0 && !self.timers.is_set(Reason::Pace) {
            self.timers.set(Reason::Pace, self.pacer.next_send().max(self.now));
        }
    }

    /// Ends the burst: what was sent moves the pacer's deadline.
    fn end_burst(&mut self) {
        self.burst_left = 0;
        if self.burst_bytes > 0 {
            if !self.pacer.on_sent(self.now, self.burst_bytes).is_zero() {
                self.limited += 1;
            }
            self.burst_bytes = 0;
        }
    }

    /// The pacer would let symbols go, but there are none.
    fn ran_dry(&mut self, message: &mut Vec<u8>) -> Option<Transmit> {
        self.end_burst();
        if !self.limited_marked {
            self.limited_marked = true;
            self.limited += 1;
        }
        // What was sent last is polled for at once: in the end game nobody waits for the next round.
        if self.unpolled > 0 {
            return Some(self.transmit_poll(message));
        }
        None
    }

    fn transmit(&mut self, kind: Kind, body_len: usize) -> Transmit {
        self.packet = PacketNumber(self.packet.0 + 1);
        let header = Header {
            epoch: self.config.epoch,
            stream: self.config.stream,
            packet_low: self.packet.0 as u32,
            kind,
        };
        let transmit = Transmit { header, body_len, packet: self.packet };
        let bytes = transmit.datagram_len() as u64;
        self.stats.bytes += bytes;
        if !matches!(kind, Kind::Symbol { .. }) {
            self.stats.messages += 1;
            self.stats.message_bytes += bytes;
        }
        self.burst_bytes += bytes;
        transmit
    }

    fn transmit_symbol(&mut self) -> Option<Transmit> {
        let at = self.window.first_ready()?;
        let full = self.config.geometry.symbol_len;
        let open = &mut self.window.open[at];
        let symbol = open.next_symbol()?;
        let kind = Kind::Symbol { block: open.block, k: open.k, symbol };
        let len = if symbol.raw() + 1 == open.k { open.tail } else { full };
        if open.sent == 0 {
            open.began_at = self.now;
        }
        open.sent += 1;
        let (sent, k, began_at) = (open.sent, open.k, open.began_at);
        match symbol.repair_index() {
            None => {
                self.stats.source_symbols += 1;
                self.stats.cut_bytes += u64::from(full - len);
            }
            Some(index) => {
                self.stats.repair_symbols += 1;
                self.stats.proactive_symbols += u64::from(index < open.proactive);
            }
        }
        self.stats.manifest_symbols += u64::from(open.block.kind() == BlockKind::Manifest);
        if sent == k {
            self.plan_proactive(at);
            if self.prompt.is_some() {
                self.push_event(Event::SourceSent { block: self.window.open[at].block, began_at });
            }
        }
        if self.window.open[at].sent == self.window.open[at].planned {
            let settles_at = self.now + self.settle_time();
            let open = &mut self.window.open[at];
            open.settles_at = Some(settles_at);
            open.last_call = Some((Round(self.round.0.wrapping_add(1)), settles_at + LAST_CALL));
            self.timers.set_earlier(Reason::Settle, settles_at);
            self.poll_due |= self.asks_at_block_end();
        }
        Some(self.transmit_of_burst(kind, usize::from(len)))
    }

    /// One datagram of the burst.
    pub(super) fn transmit_of_burst(&mut self, kind: Kind, body_len: usize) -> Transmit {
        self.unpolled += 1;
        self.end_idle();
        if core::mem::take(&mut self.limited_marked) {
            // What the next poll tells of began in the pause.
            self.limited += 1;
            if self.prompt.is_some() {
                self.burst_left = self.pacer.resume(self.now);
            }
        }
        let transmit = self.transmit(kind, body_len);
        self.burst_left -= 1;
        if self.burst_left == 0 {
            self.end_burst();
            self.timers.set(Reason::Pace, self.pacer.next_send());
        }
        transmit
    }

    /// There is something to answer again: polls are as close as ever, and so is the next one.
    pub(super) fn end_idle(&mut self) {
        if core::mem::take(&mut self.idle_polls) > IDLE_POLLS_FAST && !self.poll_due {
            let at = self.now + self.round_interval();
            self.timers.set_earlier(Reason::Poll, at);
        }
    }

    /// A block's source is all sent: its repair follows at once, by the losses known now.
    fn plan_proactive(&mut self, at: usize) {
        let last = self.last_blocks();
        // What the search lost a small group asks for, and exactly; of a large one all would ask. A product waits for no answer.
        let asks = self.prompt.is_none() && !last && self.members.streaming() <= REPORTS_MAX;
        let searched = !asks && self.window.open[at].began_at < self.found_at;
        let losses = self
            .members
            .losses(self.packet, searched, |id| self.stragglers.is_doubted(self.now, id));
        let round = self.further_round();
        let open = &mut self.window.open[at];
        if open.proactive_done {
            return;
        }
        open.proactive_done = true;
        open.proactive = match round {
            Some(round) => self.config.recovery.prompt(open.k, &losses, round),
            None => self.config.recovery.proactive(open.k, &losses, last),
        };
        open.proactive = open.proactive.min(self.config.geometry.code.repair_max(open.k));
        open.raise(open.k + open.proactive);
        self.schedule_encoding();
    }

    /// So little is left to send that it is over before an answer to it: a further round would be waited for.
    pub(super) fn last_blocks(&self) -> bool {
        if !self.finished || !self.window.offered.is_empty() {
            return false;
        }
        let left = self.window.backlog() * self.config.geometry.datagram_len() as u64;
        let waits = 1.0 + backoff_grtt(self.members.streaming());
        let answered = self.round_interval() + self.grtt.value().mul_f64(waits);
        self.pacer.rate().time_for(left) < answered
    }

    /// Asks for the repair symbols that are planned, or soon will be.
    pub(super) fn schedule_encoding(&mut self) {
        // Where there is loss a first batch is made ahead, before the source has been sent.
        let lossy = self.members.lossy(AHEAD_LOSS);
        let mut wanted = Vec::new();
        for open in &mut self.window.open {
            if let Some((from, count)) = open.encode_next(lossy) {
                wanted.push(Work::Encode { block: open.block, from, count });
            }
        }
        wanted.into_iter().for_each(|work| self.push_work(work));
    }

    pub(super) fn round_interval(&self) -> Duration {
        let (rate, grtt) = (self.pacer.rate(), self.grtt.value());
        let busy = match self.prompt {
            None => {
                let found = self.now.since(self.found_at);
                round_interval(self.config.rate.as_ref(), found, rate, grtt)
            }
            // An open session asks at the ends of its blocks.
            Some(_) => round_of(2 * ROUND_BYTES, rate, grtt),
        };
        let rarer = self.idle_polls.saturating_sub(IDLE_POLLS_FAST).min(10);
        if rarer == 0 { busy } else { busy.max((busy * (1 << rarer)).min(ROUND_IDLE_MAX)) }
    }

    /// How long after its last planned symbol a block stays open: two polls may be lost, and the slowest
    /// receiver's back-off and answer have their time (`docs/protocol.md#REP-5`).
    pub(super) fn settle_time(&self) -> Duration {
        let backoff = backoff_grtt(self.members.streaming());
        let geometry = self.config.geometry;
        let blocks =
            geometry.block_len() * geometry.code.window_blocks() as u64 / SETTLE_SLACK_PART;
        let slack = match self.prompt {
            // The blocks are short, and each poll tells all that are open.
            Some(_) => SETTLE_SLACK.0,
            None => self.pacer.rate().time_for(blocks).clamp(SETTLE_SLACK.0, SETTLE_SLACK.1),
        };
        self.round_interval() * 2 + self.grtt.value().mul_f64(2.0 + backoff) + slack
    }

    /// Closes the blocks whose time has come.
    pub(super) fn settle(&mut self) {
        // What is only read ahead takes no room from those who are late.
        let roomy = 2 * self.window.begun() <= self.config.window_blocks;
        let mut at = 0;
        while at < self.window.open.len() {
            match self.window.open[at].settles_at {
                Some(due) if due <= self.now && !self.is_awaited(at, roomy) => self.close(at),
                Some(due) => {
                    let due = due.max(self.now + ROUND_MIN);
                    self.timers.set_earlier(Reason::Settle, due);
                    at += 1;
                }
                None => at += 1,
            }
        }
        self.wake_pacer();
    }

    /// Somebody who always answers has not yet said whether it needs more of the block, or the way may be cut: nobody has
    /// answered since all of it was sent (`docs/protocol.md#REP-5`).
    fn is_awaited(&self, at: usize, roomy: bool) -> bool {
        let streaming = self.members.streaming();
        if streaming == 0 {
            return self.members.absent() > 0 && self.passing.is_waiting(self.now);
        }
        let Some((round, until)) = self.window.open[at].last_call else { return false };
        let small = streaming <= GROUP_WITHOUT_BACKOFF;
        let is_late = roomy && small && self.now < until && !self.members.have_answered(round);
        self.answered.0 < round && self.is_hoped_for() || is_late
    }

    fn transmit_presence(&mut self, message: &mut Vec<u8>) -> Option<Transmit> {
        if !core::mem::take(&mut self.tell_due) {
            return None;
        }
        self.presence()?.emit(message);
        Some(self.transmit(Kind::Presence { receiver: None }, message.len()))
    }

    fn transmit_poll(&mut self, message: &mut Vec<u8>) -> Transmit {
        self.poll_due = false;
        self.advert_due = false;
        self.advert.clear();
        if self.unpolled == 0 {
            self.idle_polls += 1;
            self.limited += 1;
            let deserted = self.members.streaming() == 0 && self.members.pulling() > 0;
            let (len, rate) = (self.config.geometry.datagram_len(), self.pacer.rate());
            self.probe_due |= deserted && self.passing.probes(self.now, len, rate);
        }
        self.unpolled = 0;
        self.grtt.on_round();
        self.round = Round(self.round.0.wrapping_add(1));
        let streaming = self.members.streaming();
        let first = self.round.0 <= FIRST_ROUNDS;
        let of_group = (REPORTS_OF_GROUP / streaming.max(1)).clamp(1, REPORTS_MAX);
        let reports = if first { REPORTS_MAX } else { of_group };
        let share = if streaming <= reports {
            u32::MAX
        } else {
            let halved = if streaming > LARGE_GROUP && !first { 2 } else { 1 };
            // At most half of 2^32: the group is larger than what shall report.
            (u64::from(u32::MAX) * u64::from(reports) / u64::from(streaming * halved)) as u32
        };
        self.members.ask(self.now, share == u32::MAX);
        let (data_end, manifest_end, finished) = self.ends();
        let poll = Poll {
            round: self.round,
            packet: PacketNumber(self.packet.0 + 1),
            sent_at: self.now,
            group_size: streaming,
            grtt: self.grtt.value(),
            finished,
            clr: self.config.rate.limiting(),
            leaves: self.stragglers.leaving(self.round),
            report_share: share,
            data_end,
            manifest_end,
            blocks: self.window.listings(|_| true),
        };
        poll.emit(message);
        let transmit = self.transmit(Kind::Poll, message.len());
        self.rounds.push(SentRound {
            round: self.round,
            packet: self.packet,
            at: self.now,
            bytes: self.stats.bytes,
            limited: self.limited,
        });
        self.config.rate.on_tick(self.now, self.stats.bytes);
        self.apply_rate();
        self.timers.set(Reason::Poll, self.now + self.round_interval());
        transmit
    }

    fn transmit_advert(&mut self, message: &mut Vec<u8>) -> Transmit {
        self.advert_due = false;
        let again = self.now + (self.grtt.value() / 4).max(ADVERT_INTERVAL_MIN);
        self.timers.set(Reason::Advert, again);
        let listed = core::mem::take(&mut self.advert);
        Advert { blocks: self.window.listings(|block| listed.contains(&block)) }.emit(message);
        self.transmit(Kind::Advert, message.len())
    }
}

/// Between the polls of a stream that is busy, at `rate`, and found it so long ago (`docs/protocol.md#FB-1`).
pub fn round_interval(
    controller: &dyn RateController,
    found: Duration,
    rate: Rate,
    grtt: Duration,
) -> Duration {
    if controller.is_searching() {
        round_of(ROUND_BYTES_SOUGHT, rate, grtt)
    } else if controller.summary().phase == RatePhase::Hold && found >= HELD_LONG {
        let trips = (grtt * ROUND_TRIPS_HELD).min(ROUND_HELD_MAX);
        round_of(ROUND_BYTES_HELD, rate, grtt).max(trips)
    } else {
        round_of(ROUND_BYTES, rate, grtt)
    }
}

fn round_of(bytes: u64, rate: Rate, grtt: Duration) -> Duration {
    let (datagram, longest) = ROUND_DATAGRAM;
    let least = rate.time_for(datagram).min(longest);
    ROUND_MIN.max(grtt).max(rate.time_for(bytes).min(ROUND_SLOW_MAX)).max(least)
}
