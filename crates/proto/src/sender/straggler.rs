//! Who holds the others back (`docs/protocol.md#STRAG`).
//!
//! The rate follows the least capable receiver, so what the others could take is not seen while it is
//! followed. Therefore a *trial*: the limiting receiver is left out of the rate for a short while. If the
//! stream then runs more than twice as fast as before, and it gets less than half of that, it leaves the
//! stream and pulls; if not, it is followed again and its next trial comes later and later. Where all are
//! held up by the same thing, a slow host say, the stream gains nothing without it, and it stays. When another one
//! then holds the stream as far down, a few may be left out together: two that are slow alike hide each other. Each has a
//! pause of its own: that one was tried in vain must not keep the one who really is slow. A receiver that loses
//! far more than the others leaves without a trial. Who left is asked back after a wait, on trial; each failure
//! doubles the wait. However many are away: between two of them the one who limits has its turn.

use crate::ids::{ReceiverId, Round};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

/// How often the members are looked over.
pub(super) const REVIEW_INTERVAL: Duration = Duration::from_millis(100);

/// A trial lasts at most so many round trips, but no less than the second and no more than the third
/// (`docs/protocol.md#STRAG-1`).
const TRIAL_TIME: (u32, Duration, Duration) =
    (20, Duration::from_millis(1_500), Duration::from_secs(4));

/// The first part of a trial is not judged: the rate has to rise first. The same of this.
const TRIAL_RAMP: (u32, Duration, Duration) =
    (6, Duration::from_millis(500), Duration::from_millis(1_500));

/// Who has limited at two reviews is tried, or who has brought the stream down to this share in between.
const FALLEN: f64 = 1.0 / 3.0;

/// Who is tried while another holds the stream down much further is not the one; that is seen sooner.
const TRIAL_TURN: Duration = Duration::from_millis(200);

/// Several who are slow alike are tried together: another that holds the stream no higher than this above the rate before
/// joins the trial, up to this part of the group, and no more than this; two also where they are this part of it.
const ALIKE: f64 = 1.5;
const TRIED_SHARE: u32 = 8;
const TRIED_MAX: u32 = 4;
const TRIED_TWO: u32 = 2;
const TRIED_TWO_SHARE: u32 = 3;

/// Of the rest it needs this much to be judged too slow before the time is over.
const TRIAL_EVIDENCE: (Duration, u64) = (Duration::from_millis(200), 200);

/// Between trials, whoever is tried: the rate settles in between.
const TRIAL_GAP: Duration = Duration::from_millis(500);

/// Wait before the next trial of one who could not follow, but without whom the stream was not faster either; doubles
/// up to the second of [`TRIAL_PAUSE`].
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

/// Wait before the next trial of one who has passed; doubles up to the second.
const TRIAL_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(120));

/// Wait before a receiver that left the stream is asked back; doubles up to the second.
const RETURN_PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(160));

/// Who gets less than this share of what the stream sends cannot keep up.
const KEEPS_UP_SHARE: f64 = 0.5;

/// Loss above this, and above [`LOSS_RATIO`] times the median of the group, is repair that only one needs
/// (`docs/protocol.md#STRAG-2`).
const LOSS_MIN: f64 = 0.15;
const LOSS_RATIO: f64 = 3.0;

/// For this long.
const LOSS_TIME: Duration = Duration::from_secs(2);

/// After this much of it the stream spends no repair on what only that receiver lacks.
const SUSPECT_TIME: Duration = Duration::from_millis(300);

/// What to do with a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Leave it out of the rate for now.
    Try(ReceiverId),
    /// It leaves the stream and pulls.
    Leave(ReceiverId),
    /// It may come back to the stream, on trial.
    Return(ReceiverId),
}

/// What the policy sees of one receiver on the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) id: ReceiverId,
    pub(super) loss: f64,
    /// (sent, received) datagrams in the interval.
    pub(super) span: (u64, u64),
}

/// One who is left out of the rate.
#[derive(Clone, Copy, Debug)]
struct Tried {
    id: ReceiverId,
    /// What was sent, and what of that it received, since the rate has had time to rise.
    span: (u64, u64),
}

impl Tried {
    fn follows(&self) -> bool {
        let (sent, received) = self.span;
        received as f64 >= KEEPS_UP_SHARE * sent as f64
    }
}

/// One who has been losing far more than the others.
#[derive(Clone, Copy, Debug)]
struct Losing {
    since: Timestamp,
    /// What was sent since then, and what of that it received. The share of its losses remembers what was before.
    span: (u64, u64),
}

#[derive(Clone, Debug)]
struct Trial {
    tried: Vec<Tried>,
    /// When the last of them was left out.
    from: Timestamp,
    /// The stream's rate when all were still followed; zero if one has just come back.
    before: Rate,
    /// How long it lasts, and its part that is not judged.
    time: Duration,
    ramp: Duration,
    /// Reviews since the rate has had time to rise, and those at which the stream was more than twice as fast as before.
    reviews: (u32, u32),
}

impl Trial {
    fn new(id: ReceiverId, from: Timestamp, before: Rate, round_trip: Duration) -> Self {
        let of = |(times, least, most): (u32, Duration, Duration)| {
            round_trip.saturating_mul(times).clamp(least, most)
        };
        let (time, ramp) = (of(TRIAL_TIME), of(TRIAL_RAMP));
        Self { tried: vec![Tried { id, span: (0, 0) }], from, before, time, ramp, reviews: (0, 0) }
    }

    /// Leaves out one more: all begin anew.
    fn join(&mut self, id: ReceiverId, now: Timestamp) {
        self.tried.push(Tried { id, span: (0, 0) });
        self.tried.iter_mut().for_each(|tried| tried.span = (0, 0));
        (self.from, self.reviews) = (now, (0, 0));
    }

    fn add(&mut self, rate: Rate, standings: &[Standing]) {
        let spans = self.tried.iter_mut().filter_map(|tried| {
            let standing = standings.iter().find(|s| s.id == tried.id)?;
            Some((tried, standing.span))
        });
        let mut heard = false;
        for (tried, (sent, received)) in spans {
            tried.span.0 += sent;
            tried.span.1 += received;
            heard = true;
        }
        if heard {
            self.reviews.0 += 1;
            self.reviews.1 += u32::from(self.gains(rate));
        }
    }

    /// At this rate the stream is much faster without them.
    fn gains(&self, rate: Rate) -> bool {
        rate.scale(KEEPS_UP_SHARE) > self.before
    }

    fn has_gained(&self) -> bool {
        self.reviews.1 * 2 > self.reviews.0
    }

    /// The first whom the stream is much faster without, and who cannot follow, by `evidence` datagrams at least.
    fn has_failed(&self, evidence: u64) -> Option<ReceiverId> {
        let fails = |tried: &&Tried| tried.span.0 >= evidence && !tried.follows();
        self.tried.iter().find(fails).filter(|_| self.has_gained()).map(|tried| tried.id)
    }
}

/// When something may come again, and the wait after that.
type Waits = BTreeMap<ReceiverId, (Timestamp, Duration)>;

/// The policy's memory, of members alone: [`MEMBERS_MAX`](super::MEMBERS_MAX) bounds it.
#[derive(Debug)]
pub(super) struct Stragglers {
    trial: Option<Trial>,
    next_trial: Timestamp,
    /// When the next may come back: until then it is the turn of who limits.
    next_return: Timestamp,
    /// Whom the rate followed at the last review, and the rate.
    last: (Option<ReceiverId>, Rate),
    /// Who has passed a trial: when the next may come.
    passed: Waits,
    lossy: BTreeMap<ReceiverId, Losing>,
    /// Who left the stream: when it may return.
    away: Waits,
    /// Those of them who were told to leave, and have not been asked back since.
    told: BTreeSet<ReceiverId>,
    round_trip: Duration,
    loss_median: f64,
}

impl Stragglers {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self {
            trial: None,
            next_trial: now,
            next_return: now,
            last: (None, Rate::from_bps(0)),
            passed: BTreeMap::new(),
            lossy: BTreeMap::new(),
            away: BTreeMap::new(),
            told: BTreeSet::new(),
            round_trip: Duration::ZERO,
            loss_median: 0.0,
        }
    }

    /// The group's greatest round trip: over a long one the rate rises more slowly, and trials last longer.
    pub(super) const fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// The median of the losses of all on the stream: at a review only some are heard, those of unlike distances each at
    /// another one, and of a large group those above all who lack something.
    pub(super) const fn set_loss_median(&mut self, loss: f64) {
        self.loss_median = loss;
    }

    /// Whether the rate must not follow it now.
    pub(super) fn on_trial(&self, id: ReceiverId) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.tried.iter().any(|tried| tried.id == id))
    }

    /// It is no longer left out of the rate.
    fn end_trial(&mut self, id: ReceiverId) {
        if let Some(trial) = &mut self.trial {
            trial.tried.retain(|tried| tried.id != id);
        }
        self.trial = self.trial.take().filter(|trial| !trial.tried.is_empty());
    }

    /// Of those who have left the stream, the one to name in this round's poll: on a path that loses most
    /// of what is sent to it, it hears a poll sooner than a TCP connection brings it anything.
    pub(super) fn leaving(&self, round: Round) -> Option<ReceiverId> {
        self.told.iter().nth(round.0 as usize % self.told.len().max(1)).copied()
    }

    /// It has been told to leave, and has not been asked back.
    pub(super) fn is_told(&self, id: ReceiverId) -> bool {
        self.told.contains(&id)
    }

    pub(super) fn forget(&mut self, id: ReceiverId) {
        self.end_trial(id);
        self.passed.remove(&id);
        self.lossy.remove(&id);
        self.away.remove(&id);
        self.told.remove(&id);
    }

    /// It is on trial, or loses so much more than the others that it may soon leave: the stream spends no more
    /// on it than on any other (protocol.md#STRAG-6).
    pub(super) fn is_doubted(&self, now: Timestamp, id: ReceiverId) -> bool {
        let long = |losing: &Losing| now.since(losing.since) >= SUSPECT_TIME;
        self.on_trial(id) || self.lossy.get(&id).is_some_and(long)
    }

    /// Looks those over who are `streaming` and have told something since. `limiting`: whom the `rate` follows, once it
    /// has stopped rising.
    pub(super) fn review(
        &mut self,
        now: Timestamp,
        streaming: u32,
        standings: &[Standing],
        limiting: Option<ReceiverId>,
        rate: Rate,
    ) -> Option<Verdict> {
        if let Some(id) = self.due_back(now) {
            self.trial = Some(Trial::new(id, now, Rate::from_bps(0), self.round_trip));
            return Some(Verdict::Return(id));
        }
        if streaming < 2 {
            self.trial = None;
            self.lossy.clear();
            return None;
        }
        if let Some(id) = self.one_that_loses(now, standings) {
            return Some(self.leave(now, id));
        }
        if self.trial.is_some() {
            return self.judge(now, streaming, standings, limiting, rate);
        }
        let (limited, last_rate) = core::mem::replace(&mut self.last, (limiting, rate));
        let id = limiting.filter(|_| now >= self.next_trial)?;
        // Who limits for a moment only has not brought the stream to its own rate yet, and what is gained without
        // it would not be seen.
        if limited != limiting && rate > last_rate.scale(FALLEN) {
            return None;
        }
        if self.passed.get(&id).is_some_and(|(at, _)| now < *at) {
            return None;
        }
        self.trial = Some(Trial::new(id, now, rate, self.round_trip));
        Some(Verdict::Try(id))
    }

    fn due_back(&mut self, now: Timestamp) -> Option<ReceiverId> {
        if self.trial.is_some() || now < self.next_return {
            return None;
        }
        // Who has been due longest: each turn takes a while, and among many the first ones would be due again before the last.
        let due = self.away.iter_mut().filter(|(_, (at, _))| *at <= now);
        let (id, slot) = due.min_by_key(|(_, (at, _))| *at)?;
        slot.0 = Timestamp::MAX; // It is asked back; if that fails it has the next wait.
        let id = *id;
        self.told.remove(&id);
        Some(id)
    }

    pub(super) fn is_asked_back(&self, id: ReceiverId) -> bool {
        self.away.get(&id).is_some_and(|(at, _)| *at == Timestamp::MAX)
    }

    /// It pulls again before it has told anything: where it was asked back, that has failed. It is not told to leave: it may
    /// wait in its group for a stream that comes later.
    pub(super) fn came_to_nothing(&mut self, now: Timestamp, id: ReceiverId) {
        if self.is_asked_back(id) {
            self.wait(now, id);
        }
    }

    /// It is told to leave, and asked back later.
    pub(super) fn leave(&mut self, now: Timestamp, id: ReceiverId) -> Verdict {
        self.wait(now, id);
        self.told.insert(id);
        Verdict::Leave(id)
    }

    /// Nobody comes back before.
    pub(super) fn put_off(&mut self, until: Timestamp) {
        self.next_return = self.next_return.max(until);
    }

    /// Of those on the stream nobody was heard, nor it: one of all comes back after the longest wait, for meanwhile the rate is not
    /// known, and pulls have a part of it.
    pub(super) fn rest(&mut self, now: Timestamp, id: ReceiverId) {
        let (_, longest) = RETURN_PAUSE;
        self.away.insert(id, (now + longest, longest));
        self.put_off(now + longest);
    }

    fn wait(&mut self, now: Timestamp, id: ReceiverId) {
        self.end_trial(id);
        self.lossy.remove(&id);
        let pause = self.away.get(&id).map_or(RETURN_PAUSE.0, |(_, last)| *last * 2);
        let pause = pause.min(RETURN_PAUSE.1);
        self.away.insert(id, (now + pause, pause));
        self.next_trial = now + TRIAL_GAP;
        self.next_return = self.next_trial + TRIAL_GAP;
    }

    /// The trial's verdict, if it is time.
    fn judge(
        &mut self,
        now: Timestamp,
        streaming: u32,
        standings: &[Standing],
        limiting: Option<ReceiverId>,
        rate: Rate,
    ) -> Option<Verdict> {
        let trial = self.trial.as_mut()?;
        let since = now.since(trial.from);
        if since >= trial.ramp {
            trial.add(rate, standings);
        }
        let over = since >= trial.time;
        let (evident_after, evidence) = TRIAL_EVIDENCE;
        let evident = since >= trial.ramp + evident_after;
        if (over || evident)
            && let Some(id) = trial.has_failed(if over { 1 } else { evidence })
        {
            return Some(self.leave(now, id));
        }
        if over {
            self.keep(now, now + TRIAL_GAP);
            return None;
        }
        let another = limiting.filter(|_| since >= TRIAL_TURN)?;
        if rate < trial.before.scale(KEEPS_UP_SHARE) {
            // It holds the stream down much further: it is the one to try.
            self.keep(now, now);
            return None;
        }
        if since < trial.ramp || trial.gains(rate) {
            return None;
        }
        // It holds the stream about as far down: it may be slow like these, or the one instead of them.
        let least = (streaming / TRIED_TWO_SHARE).clamp(1, TRIED_TWO);
        let few = (streaming / TRIED_SHARE).clamp(least, TRIED_MAX) as usize;
        if rate.scale(1.0 / ALIKE) > trial.before || trial.tried.len() >= few {
            self.keep(now, now);
            return None;
        }
        trial.join(another, now);
        Some(Verdict::Try(another))
    }

    /// All who are on trial are followed again.
    fn keep(&mut self, now: Timestamp, next_trial: Timestamp) {
        let Some(Trial { tried: kept, before, .. }) = self.trial.take() else { return };
        self.next_trial = next_trial;
        // A whole trial of who limits, in vain: it has had its turn.
        let is_done = before > Rate::from_bps(0) && next_trial > now;
        self.next_return = if is_done { now } else { next_trial + TRIAL_GAP };
        for tried @ Tried { id, .. } in &kept {
            let first = if tried.follows() { TRIAL_PAUSE.0 } else { DOUBT_PAUSE };
            let pause = self.passed.get(id).map_or(first, |(_, last)| *last * 2);
            let pause = pause.min(TRIAL_PAUSE.1);
            self.passed.insert(*id, (now + pause, pause));
            // What it lost in the moment before, when the stream had just become too fast for it, has to show again.
            if let Some(losing) = self.lossy.get_mut(id) {
                *losing = Losing { since: now - LOSS_TIME / 2, span: (0, 0) };
            }
        }
    }

    /// A receiver that has lost far more than the others for long enough.
    fn one_that_loses(&mut self, now: Timestamp, standings: &[Standing]) -> Option<ReceiverId> {
        let limit = LOSS_MIN.max(LOSS_RATIO * self.loss_median);
        for standing in standings {
            if standing.loss <= limit {
                self.lossy.remove(&standing.id);
                continue;
            }
            let is_tried = self.on_trial(standing.id);
            let Some(losing) = self.lossy.get_mut(&standing.id) else {
                self.lossy.insert(standing.id, Losing { since: now, span: (0, 0) });
                continue;
            };
            losing.span.0 += standing.span.0;
            losing.span.1 += standing.span.1;
            // A trial has its own end; it starts with a flood that may drown the one who is tried.
            if is_tried || now.since(losing.since) < LOSS_TIME {
                continue;
            }
            let (sent, received) = losing.span;
            if sent.saturating_sub(received) as f64 > limit * sent as f64 {
                return Some(standing.id);
            }
            // What it lost was before, when it was not followed.
            *losing = Losing { since: now, span: (0, 0) };
        }
        None
    }
}

#[cfg(test)]
mod tests;
