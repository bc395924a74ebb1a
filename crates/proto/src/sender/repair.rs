//! Feedback comes in: it is digested into rate, loss and round trip, and its NACKs into repair.

use super::members::{Asked, SILENCED};
use super::window::BIG_ASKERS_MAX;
use super::{Delivery, Sender};
use crate::feedback::GROUP_WITHOUT_BACKOFF;
use crate::ids::{ReceiverId, Round};
use crate::rate::RateSample;
use crate::time::{Duration, Timestamp};
use crate::timer::Reason;
use crate::wire::{Feedback, HEADER_LEN, Need, ParseError, TAG_LEN};

/// A NACK above this share of k is answered on the stream only when many ask (`docs/protocol.md#REP-6`).
const BIG_NEED_SHARE: u16 = 4;

/// NACKs up to this count are always answered, whatever k.
const SMALL_NEED: u16 = 32;

/// What one receiver has been given of a block, in all its NACKs, is much of it above this share of k. Who loses less than
/// a third of all lacks less.
const MUCH_GIVEN_SHARE: u16 = 2;

/// Share of the group that must ask for much of a block before the stream gives it.
const BIG_ASKERS_SHARE: u32 = 4;

/// Where nobody has answered for so long, for so many GRTTs, and to so many polls, the way is cut: nothing new is sent on it.
const CUT_OFF: (Duration, u32, u32) = (Duration::from_secs(1), 10, 10);

impl Sender {
    /// An authentic feedback body from `from`, which the host's kernel had at `arrived`; what the rate controller was told by it.
    pub fn handle_feedback(
        &mut self,
        now: Timestamp,
        arrived: Timestamp,
        from: ReceiverId,
        body: &[u8],
    ) -> Result<Option<RateSample>, ParseError> {
        self.advance(now);
        let report = Feedback::parse(body)?;
        let bytes = self.stats.bytes;
        if self.is_cut_off()
            && core::mem::replace(&mut self.cut_off, self.answered.0) < self.answered.0
        {
            self.members.on_stream_mut().for_each(|(_, member)| member.cut_off());
        }
        let Some(member) = self.members.by_id.get_mut(&from) else {
            return Ok(None);
        };
        self.stats.feedback += 1;
        self.stats.feedback_bytes += (HEADER_LEN + body.len() + TAG_LEN) as u64;
        let is_followed = !self.stragglers.on_trial(from);
        // What is lost by one that is not followed tells nothing of its path.
        let kept = (!is_followed).then(|| member.loss.clone());
        let sample = member.on_report(arrived, from, &report, &self.rounds, bytes);
        if let Some(loss) = kept {
            member.loss = loss;
        }
        if member.delivery != Delivery::Stream {
            return Ok(None);
        }
        if sample.is_some() {
            self.members.asked = Asked::default();
            self.on_answered(report.round);
        }
        let told = sample.filter(|_| is_followed);
        if let Some(sample) = told {
            self.grtt.on_sample(sample.rtt.min(self.round_trip_max));
            self.config.rate.on_sample(now, &sample);
            self.apply_rate();
        }
        for need in &report.needs {
            self.stats.nacks += 1;
            self.end_idle();
            if !self.serve(from, need) {
                self.stats.nacks_refused += 1;
            }
        }
        if !report.needs.is_empty() {
            self.schedule_encoding();
            self.wake_pacer();
        }
        Ok(told)
    }

    /// Nobody on the stream answers any more (`docs/protocol.md#REP-5`).
    pub(super) fn is_cut_off(&self) -> bool {
        let (least, grtts, polls) = CUT_OFF;
        let asked = self.round.0.wrapping_sub(self.answered.0.0);
        let wait = least.max(self.grtt.value().saturating_mul(grtts));
        asked >= polls && self.now.since(self.answered.1) > wait && self.is_hoped_for()
    }

    /// Somebody has come. Before, while nobody followed the stream, nobody could answer. What is open stays open for its answer.
    pub(super) fn on_follower(&mut self, delivery: Delivery) {
        if delivery == Delivery::Stream {
            self.pad_again();
        }
        if delivery == Delivery::Stream && self.members.streaming() == 1 {
            self.answered.1 = self.now;
        }
    }

    /// Somebody on the stream has been heard lately, and may be again.
    pub(super) fn is_hoped_for(&self) -> bool {
        let (round, at) = self.answered;
        round != Round(0) && self.now.since(at) <= SILENCED
    }

    /// Somebody has answered this round's poll. Blocks that were kept open because nobody had are settled from now on.
    fn on_answered(&mut self, round: Round) {
        let (before, _) = self.answered;
        if round <= before {
            return;
        }
        if self.is_cut_off() {
            self.wake_pacer();
        }
        self.answered = (round, self.now);
        let settles_at = self.now + self.settle_time();
        for open in &mut self.window.open {
            let is_kept = open.last_call.is_some_and(|(call, _)| before < call && call <= round);
            if is_kept && open.settles_at.is_some_and(|due| due <= self.now) {
                open.settles_at = Some(settles_at);
            }
        }
    }

    /// Plans repair for one NACK; false when the stream does not give it.
    fn serve(&mut self, from: ReceiverId, need: &Need) -> bool {
        // Nobody knows of a plan that was not made. Were it taken for the newest one, the same request over and over
        // would raise the plan each time (protocol.md#REP-1).
        let known = self.window.planned(need.block).filter(|planned| need.planned <= *planned);
        if known.is_none() || self.is_refused(from, need) {
            return false;
        }
        let share = self.members.by_id.get(&from).and_then(|m| m.loss.share()).unwrap_or(0.0);
        let (known, last) = (need.planned, self.last_blocks());
        let planned = self
            .plan_for(known, need.count, share)
            .unwrap_or_else(|| self.config.recovery.on_need(known, need.count, share, last));
        // protocol.md#REP-7: a NACK that comes late reopens the block; who does not know all that was planned learns it.
        let reopened = self.window.find(need.block).is_none();
        let open = match reopened {
            true => self.window.reopen(need.block, need.planned),
            false => self.window.find(need.block),
        };
        let Some(open) = open else { return false };
        let (block, k, before) = (open.block, open.k, open.planned);
        let raised = open.raise(planned);
        open.asked |= raised;
        if raised {
            open.given.add(from, need.count.min(open.planned - before));
            self.advertise(block);
        }
        if reopened {
            self.stats.blocks_reopened += 1;
            self.done = false;
            self.push_work(super::Work::Load { block, k });
            // With nothing of it to send, it is there for the next poll to tell, and closes as any other.
            let settles_at = self.now + self.settle_time();
            let poll_at = self.now + self.round_interval();
            if let Some(open) = self.window.find(block).filter(|b| b.sent == b.planned) {
                open.settles_at = Some(settles_at);
                self.timers.set_earlier(Reason::Settle, settles_at);
                self.timers.set_earlier(Reason::Poll, poll_at);
            }
        }
        true
    }

    /// It asks for so much, at once or in all, that the stream does not give it for one: of an open block unless many
    /// ask for as much (protocol.md#REP-6), and of a closed one.
    fn is_refused(&mut self, from: ReceiverId, need: &Need) -> bool {
        let Some(member) = self.members.by_id.get(&from) else { return true };
        let (since, joined_at) = (member.on_stream_since, member.joined_at);
        let streaming = self.members.streaming();
        let (k, given) = self.window.given(need.block, from);
        let much = given.saturating_add(need.count) > SMALL_NEED.max(k / MUCH_GIVEN_SHARE);
        let Some(open) = self.window.find(need.block) else {
            return much || need.count > SMALL_NEED;
        };
        // Who is on trial or loses far more than others may be drowning: the stream gives little of what it
        // lacks (protocol.md#STRAG-6).
        let doubted = self.stragglers.is_doubted(self.now, from);
        let limit = if doubted { 0 } else { open.k / BIG_NEED_SHARE };
        let big = much || need.count > SMALL_NEED.max(limit);
        // Who has come back has missed a part of it, and so may others, but not most unless all had lost the stream.
        let late = open.opened_at < since;
        let quorum = if late { streaming / 2 + 1 } else { streaming.div_ceil(BIG_ASKERS_SHARE) };
        let is_back = open.opened_at >= joined_at && !self.stragglers.is_asked_back(from);
        let alone = doubted || late && !is_back;
        // Of a large group so many asking within a round trip are no coincidence.
        big && (alone || open.big_asker(from) < BIG_ASKERS_MAX.min(quorum as usize))
    }

    /// Tells the others at once, where others wait (`docs/protocol.md#FB-4`).
    fn advertise(&mut self, block: crate::ids::BlockId) {
        if self.members.streaming() <= GROUP_WITHOUT_BACKOFF || self.advert.contains(&block) {
            return;
        }
        self.advert.push(block);
        self.advert_due |= !self.timers.is_set(Reason::Advert);
    }
}
