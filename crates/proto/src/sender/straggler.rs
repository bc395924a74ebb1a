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

/// A trial lasts at most so many round trips, but no less than the second and no more than the third.
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

/// Loss above this, and above [`LOSS_RATIO`] times the median of the others, is repair that only one needs.
const LOSS_MIN: f64 = 0.15;
const LOSS_RATIO: f64 = 3.0;

/// For this long.
const LOSS_TIME: Duration = Duration::from_secs(2);

/// After this much of it the stream spends no repair on what only that receiver lacks.
const SUSPECT_TIME: Duration = Duration::from_millis(300);

/// Members of which this much is remembered.
const REMEMBERED_MAX: usize = 1_024;

/// What to do with a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Leave it out of the rate for now.
    Try(ReceiverId),
    /// It keeps up: follow it again.
    Keep(ReceiverId),
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

/// Who is known is always followed; new ones are while there is room.
fn remember(waits: &mut Waits, id: ReceiverId, wait: (Timestamp, Duration)) {
    if waits.len() < REMEMBERED_MAX || waits.contains_key(&id) {
        waits.insert(id, wait);
    }
}

/// The policy's memory.
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
        }
    }

    /// The group's greatest round trip: over a long one the rate rises more slowly, and trials last longer.
    pub(super) const fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
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
        // Where rounds take longer than reviews are apart, many a review has heard of nobody.
        if standings.len() >= 2
            && let Some(id) = self.one_that_loses(now, standings)
        {
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
        let (id, slot) = self.away.iter_mut().find(|(_, (at, _))| *at <= now)?;
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
        if self.away.contains_key(&id) {
            self.told.insert(id);
        }
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
        remember(&mut self.away, id, (now + longest, longest));
        self.put_off(now + longest);
    }

    fn wait(&mut self, now: Timestamp, id: ReceiverId) {
        self.end_trial(id);
        self.lossy.remove(&id);
        let pause = self.away.get(&id).map_or(RETURN_PAUSE.0, |(_, last)| *last * 2);
        let pause = pause.min(RETURN_PAUSE.1);
        remember(&mut self.away, id, (now + pause, pause));
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
            return self.keep(now, now + TRIAL_GAP);
        }
        let another = limiting.filter(|_| since >= TRIAL_TURN)?;
        if rate < trial.before.scale(KEEPS_UP_SHARE) {
            // It holds the stream down much further: it is the one to try.
            return self.keep(now, now);
        }
        if since < trial.ramp || trial.gains(rate) {
            return None;
        }
        // It holds the stream about as far down: it may be slow like these, or the one instead of them.
        let least = (streaming / TRIED_TWO_SHARE).clamp(1, TRIED_TWO);
        let few = (streaming / TRIED_SHARE).clamp(least, TRIED_MAX) as usize;
        if rate.scale(1.0 / ALIKE) > trial.before || trial.tried.len() >= few {
            return self.keep(now, now);
        }
        trial.join(another, now);
        Some(Verdict::Try(another))
    }

    /// All who are on trial are followed again.
    fn keep(&mut self, now: Timestamp, next_trial: Timestamp) -> Option<Verdict> {
        let Trial { tried: kept, before, .. } = self.trial.take()?;
        self.next_trial = next_trial;
        // A whole trial of who limits, in vain: it has had its turn.
        let is_done = before > Rate::from_bps(0) && next_trial > now;
        self.next_return = if is_done { now } else { next_trial + TRIAL_GAP };
        for tried @ Tried { id, .. } in &kept {
            let first = if tried.follows() { TRIAL_PAUSE.0 } else { DOUBT_PAUSE };
            let pause = self.passed.get(id).map_or(first, |(_, last)| *last * 2);
            let pause = pause.min(TRIAL_PAUSE.1);
            remember(&mut self.passed, *id, (now + pause, pause));
            // What it lost in the moment before, when the stream had just become too fast for it, has to show again.
            if let Some(losing) = self.lossy.get_mut(id) {
                *losing = Losing { since: now - LOSS_TIME / 2, span: (0, 0) };
            }
        }
        kept.first().map(|first| Verdict::Keep(first.id))
    }

    /// A receiver that has lost far more than the others for long enough.
    fn one_that_loses(&mut self, now: Timestamp, standings: &[Standing]) -> Option<ReceiverId> {
        let mut losses: Vec<f64> = standings.iter().map(|s| s.loss).collect();
        losses.sort_by(f64::total_cmp);
        // The lower median: with two receivers the better one is the yardstick.
        let median = losses[(losses.len() - 1) / 2];
        let limit = LOSS_MIN.max(LOSS_RATIO * median);
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
mod tests {
    use super::{REMEMBERED_MAX, REVIEW_INTERVAL, Standing, Stragglers, Trial, Verdict};
    use crate::ids::{ReceiverId, Round};
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;
    use alloc::vec::Vec;

    /// Runs reviews for `secs`; receiver 1 gets `share` of the stream while on trial, all of it otherwise.
    fn verdicts(secs: u64, share: f64, loss: f64) -> Vec<(u64, Verdict)> {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let mut seen = Vec::new();
        let mut away = false;
        for step in 0..secs * 10 {
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step as u32;
            let share_got = if policy.on_trial(ReceiverId(1)) { share } else { 1.0 - loss };
            let got = (share_got * 1000.0) as u64;
            let free = away || policy.on_trial(ReceiverId(1));
            let rate = Rate::from_mbps(100).scale(if free { 1.0 } else { share });
            let slow = Standing { id: ReceiverId(1), loss, span: (1000, got) };
            let healthy = Standing { id: ReceiverId(2), loss: 0.0, span: (1000, 1000) };
            let standings = [healthy, healthy, slow];
            let limiting = if away { ReceiverId(2) } else { ReceiverId(1) };
            let here = if away { &standings[..2] } else { &standings[..] };
            if let Some(v) = policy.review(now, 3, here, Some(limiting), rate) {
                seen.push((step / 10, v));
                match v {
                    Verdict::Leave(_) => away = true,
                    Verdict::Return(_) => away = false,
                    Verdict::Try(_) | Verdict::Keep(_) => {}
                }
            }
        }
        seen
    }

    #[test]
    fn a_receiver_with_a_tenth_of_the_rate_leaves_within_two_seconds() {
        let seen = verdicts(3, 0.1, 0.0);
        assert_eq!(seen[0].1, Verdict::Try(ReceiverId(1)));
        assert!(matches!(seen[1], (0..2, Verdict::Leave(ReceiverId(1)))), "{seen:?}");
    }

    #[test]
    fn one_that_is_merely_slower_stays_and_is_tried_ever_less_often() {
        let seen = verdicts(100, 0.8, 0.0);
        assert!(seen.iter().all(|(_, v)| !matches!(v, Verdict::Leave(_))));
        let trials = seen.iter().filter(|(_, v)| matches!(v, Verdict::Try(_))).count();
        assert!((3..=6).contains(&trials), "{seen:?}");
    }

    #[test]
    fn a_trial_outlasts_reviews_that_hear_of_nobody() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let all = [1, 2].map(|id| Standing { id: ReceiverId(id), loss: 0.0, span: (340, 340) });
        let trials = (0..300).filter(|step| {
            let now = Timestamp::ZERO + REVIEW_INTERVAL * *step;
            // Rounds of 0.2 s; both limit by turns.
            let heard = if step % 2 == 0 { &all[..] } else { &[] };
            let limiting = Some(ReceiverId(1 + step / 2 % 2)).filter(|id| !policy.on_trial(*id));
            let verdict = policy.review(now, 2, heard, limiting, Rate::from_mbps(20));
            assert!(!matches!(verdict, Some(Verdict::Leave(_))), "{verdict:?}");
            matches!(verdict, Some(Verdict::Try(_)))
        });
        // After 0, 5, 15 s, each of the two.
        let trials = trials.count();
        assert!((4..=7).contains(&trials), "{trials}");
    }

    #[test]
    fn one_that_loses_a_third_leaves_and_is_asked_back_on_trial() {
        let seen = verdicts(40, 0.9, 0.3);
        let left = seen.iter().position(|(_, v)| *v == Verdict::Leave(ReceiverId(1))).unwrap();
        assert!(seen[left].0 <= 5, "{seen:?}");
        assert!(
            seen[left..]
                .iter()
                .any(|(at, v)| { *v == Verdict::Return(ReceiverId(1)) && *at >= seen[left].0 + 9 })
        );
    }

    /// Whoever was not followed has lost much until then, and is heard of late where its queue is full.
    #[test]
    fn what_one_lost_before_it_was_followed_does_not_make_it_leave() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let healthy = Standing { id: ReceiverId(1), loss: 0.0, span: (1000, 1000) };
        for step in 0..50 {
            let got = if step == 0 { 600 } else { 950 };
            let slow = Standing { id: ReceiverId(2), loss: 0.4, span: (1000, got) };
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
            let verdict = policy.review(now, 2, &[healthy, slow], None, Rate::from_mbps(10));
            assert_eq!(verdict, None, "{step}");
        }
        assert!(policy.is_doubted(Timestamp::ZERO + REVIEW_INTERVAL * 50, ReceiverId(2)));
    }

    #[test]
    fn a_trial_in_vain_does_not_delay_that_of_another() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let at = |step: u32| Timestamp::ZERO + REVIEW_INTERVAL * step;
        let (healthy, slow) = (ReceiverId(1), ReceiverId(2));
        let left = (0..50).find(|step| {
            // At first the healthy one seems to limit.
            let limiting = if *step < 5 { healthy } else { slow };
            let got = if policy.on_trial(slow) { 100 } else { 1000 };
            let standings = [(healthy, 1000), (slow, got)].map(|(id, received)| Standing {
                id,
                loss: 0.0,
                span: (1000, received),
            });
            let rate = if policy.on_trial(slow) { 100 } else { 10 };
            let verdict =
                policy.review(at(*step), 2, &standings, Some(limiting), Rate::from_mbps(rate));
            verdict == Some(Verdict::Leave(slow))
        });
        // 1.5 s of trial, half a second between, 0.7 s of trial.
        assert!(left.is_some_and(|step| step <= 30), "{left:?}");
        assert_eq!(policy.leaving(Round(7)), Some(slow));
        policy.forget(slow);
        assert_eq!(policy.leaving(Round(7)), None);
    }

    #[test]
    fn two_that_are_slow_alike_are_tried_together_and_leave() {
        for group in [16, 6] {
            assert_eq!(who_leaves(group), [ReceiverId(1), ReceiverId(2)], "{group}");
        }
        assert_eq!(who_leaves(5), [], "two of five are not few");
    }

    /// Of a group in which the first two have a tenth of the rate.
    fn who_leaves(group: u32) -> Vec<ReceiverId> {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let slow = [ReceiverId(1), ReceiverId(2)];
        let mut left = Vec::new();
        for step in 0..40 {
            let here = |id: &ReceiverId| !left.contains(id);
            let limiting = slow.into_iter().find(|id| here(id) && !policy.on_trial(*id));
            let (rate, got) = if limiting.is_some() { (10, 1000) } else { (100, 100) };
            let standings: Vec<Standing> = (1..=group)
                .map(ReceiverId)
                .filter(here)
                .map(|id| {
                    let received = if slow.contains(&id) { got } else { 1000 };
                    Standing { id, loss: 0.0, span: (1000, received) }
                })
                .collect();
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
            let (streaming, limiting) = (standings.len() as u32, limiting.or(Some(ReceiverId(3))));
            let rate = Rate::from_mbps(rate);
            if let Some(Verdict::Leave(id)) =
                policy.review(now, streaming, &standings, limiting, rate)
            {
                left.push(id);
            }
        }
        left
    }

    /// The stream goes no faster than the first, and who comes back to a slow one is not seen to be slow.
    #[test]
    fn who_holds_the_stream_down_is_tried_however_many_may_come_back() {
        let (group, slow) = (200, 60);
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let at = |step: u32| Timestamp::ZERO + REVIEW_INTERVAL * step;
        let mut away: Vec<ReceiverId> = (2..=slow).map(ReceiverId).collect();
        for id in &away {
            policy.leave(at(0), *id);
        }
        let (mut fast, steps) = (0, 100..3000);
        for step in steps.clone() {
            let here = |id: &ReceiverId| !away.contains(id);
            let is_slow = |id: ReceiverId| id.0 <= slow;
            let followed = |id: &ReceiverId| here(id) && !policy.on_trial(*id);
            let limiting = (1..=slow).map(ReceiverId).find(followed);
            let (rate, got) = if limiting.is_some() { (10, 1000) } else { (100, 100) };
            fast += u32::from(limiting.is_none());
            let standings: Vec<Standing> = (1..=group)
                .map(ReceiverId)
                .filter(here)
                .map(|id| {
                    let received = if is_slow(id) { got } else { 1000 };
                    Standing { id, loss: 0.0, span: (1000, received) }
                })
                .collect();
            let (streaming, limiting) =
                (standings.len() as u32, limiting.or(Some(ReceiverId(group))));
            let rate = Rate::from_mbps(rate);
            match policy.review(at(step), streaming, &standings, limiting, rate) {
                Some(Verdict::Leave(id)) => away.push(id),
                Some(Verdict::Return(id)) => away.retain(|other| *other != id),
                _ => {}
            }
        }
        assert!(away.len() + 2 >= slow as usize, "{} of {slow} are away", away.len());
        let steps = steps.len() as u32;
        assert!(fast * 10 > steps * 9, "fast for {fast} of {steps} reviews");
    }

    #[test]
    fn over_a_long_way_the_rate_has_longer_to_rise() {
        // Without the slow one the stream is twice as fast only after 0.65 s.
        let leaves = |round_trip| {
            let mut policy = Stragglers::new(Timestamp::ZERO);
            policy.set_round_trip(round_trip);
            let (slow, other) = (ReceiverId(1), ReceiverId(2));
            (0..30u32).any(|step| {
                let tried = policy.trial.as_ref().map_or(0, |trial| {
                    (Timestamp::ZERO + REVIEW_INTERVAL * step).since(trial.from).as_millis()
                });
                let rate = if tried >= 650 { 100 } else { 40 };
                let (got, limiting) =
                    if policy.on_trial(slow) { (400, other) } else { (1000, slow) };
                let standings = [(slow, got), (other, 1000)].map(|(id, received)| Standing {
                    id,
                    loss: 0.0,
                    span: (1000, received),
                });
                let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
                let rate = Rate::from_mbps(rate);
                let verdict = policy.review(now, 2, &standings, Some(limiting), rate);
                verdict == Some(Verdict::Leave(slow))
            })
        };
        assert!(leaves(Duration::from_millis(120)));
        assert!(!leaves(Duration::from_millis(1)), "the other one seemed to limit as much");
    }

    #[test]
    fn who_limits_for_a_moment_is_not_tried() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        for step in 0..20u32 {
            let all = [1, 2, 3].map(|id| Standing { id: ReceiverId(id), loss: 0.0, span: (9, 9) });
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
            let limiting = Some(ReceiverId(1 + step % 3));
            assert_eq!(policy.review(now, 3, &all, limiting, Rate::from_mbps(20)), None);
        }
    }

    #[test]
    fn one_whose_leaving_makes_nothing_faster_stays() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let (one, other) = (ReceiverId(1), ReceiverId(2));
        for step in 0..600 {
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
            // An overloaded host: who is not followed loses most, and the stream is hardly faster.
            let (got, rate) = if policy.on_trial(one) { (300, 120) } else { (1000, 80) };
            let standings = [(one, got), (other, 1000)].map(|(id, received)| Standing {
                id,
                loss: 0.0,
                span: (1000, received),
            });
            let verdict = policy.review(now, 2, &standings, Some(one), Rate::from_mbps(rate));
            assert_ne!(verdict, Some(Verdict::Leave(one)));
        }
    }

    #[test]
    fn who_is_remembered_waits_twice_as_long_each_time_also_among_many() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
        for id in 0..2 * REMEMBERED_MAX as u32 {
            policy.leave(at(0), ReceiverId(id));
        }
        assert_eq!(
            (policy.away.len(), policy.due_back(at(10))),
            (REMEMBERED_MAX, Some(ReceiverId(0)))
        );
        policy.leave(at(10), ReceiverId(0));
        assert_eq!(policy.away[&ReceiverId(0)], (at(30), Duration::from_secs(20)));
        let keep = |policy: &mut Stragglers, id| {
            let round_trip = Duration::from_millis(10);
            policy.trial = Some(Trial::new(ReceiverId(id), at(0), Rate::from_mbps(1), round_trip));
            policy.keep(at(0), at(0));
        };
        (0..2 * REMEMBERED_MAX as u32).for_each(|id| keep(&mut policy, id));
        let first = policy.passed[&ReceiverId(0)].1;
        keep(&mut policy, 0);
        assert_eq!(
            (policy.passed.len(), policy.passed[&ReceiverId(0)].1),
            (REMEMBERED_MAX, first * 2)
        );
    }

    #[test]
    fn who_is_asked_back_and_cannot_come_is_asked_again_later() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let (one, other) = (ReceiverId(1), ReceiverId(2));
        policy.came_to_nothing(Timestamp::ZERO, one);
        assert_eq!(policy.leaving(Round(0)), None, "it was not asked back");
        policy.leave(Timestamp::ZERO, one);
        assert_eq!(policy.leaving(Round(0)), Some(one));
        let here = [Standing { id: other, loss: 0.0, span: (1000, 1000) }];
        let mut asked = Vec::new();
        for step in 0..350 {
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
            let rate = Rate::from_mbps(100);
            if let Some(Verdict::Return(id)) = policy.review(now, 2, &here, None, rate) {
                policy.came_to_nothing(now, id);
                assert!(!policy.on_trial(id));
                assert_eq!(policy.leaving(Round(0)), None, "it may wait in its group");
                asked.push(step / 10);
            }
        }
        assert_eq!(asked, [10, 30]);
    }

    #[test]
    fn a_single_receiver_is_never_a_straggler() {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        let only = Standing { id: ReceiverId(1), loss: 0.5, span: (1000, 100) };
        for step in 0..100u32 {
            let now = Timestamp::ZERO + Duration::from_millis(100) * step;
            let rate = Rate::from_mbps(10);
            assert_eq!(policy.review(now, 1, &[only], Some(ReceiverId(1)), rate), None);
        }
    }
}
