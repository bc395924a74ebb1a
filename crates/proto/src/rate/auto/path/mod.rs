//! What one receiver's answers say about its path, and what that path allows.
//!
//! A path's queue is a known integrator: it grows by what is sent and shrinks at the capacity. So two
//! numbers are estimated, the queue and the capacity, and the rate is the capacity plus what brings the
//! queue to its target:
//!
//! 1. Queue: delay above the least, the least of a few samples when they come close together (hosts
//!    are late at times, never early). What has left since the sample's poll is added, what was served
//!    since then subtracted: the delay of the answer does not make the loop swing.
//! 2. Capacity: while the queue is never empty, the narrowest link takes as long for what was sent in a
//!    sample as the sending took, and the growth of the queue besides. Bytes sent over that time is the rate *at the sender* which the link
//!    takes, whatever is lost by chance, before or behind it. If the queue overflowed, what arrived counts,
//!    divided by the share that chance leaves. While the queue is empty, the same ratio is a lower bound.
//! 3. While a queue stands: hold. When it stays away although the rate was meant to build it, the link
//!    has become wider: the step doubles each round until a queue stands (climb); at the start likewise,
//!    from doubling on (startup).

mod startup;

use super::loss::{Overflow, RandomLoss};
use super::neighbours::{Others, Standing};
use super::queue::{self, QUEUE_MAX, QUEUE_MIN};
use super::span::Span;
use crate::rate::{RatePhase, RateSample};
use crate::time::{Duration, Timestamp};
use alloc::collections::VecDeque;

/// Samples that are remembered.
const SPANS_MAX: usize = 64;
/// Samples whose polls left within this time share the least of their delays.
const HICCUP: Duration = Duration::from_millis(8);
/// Growth of a round with which a climb begins when the limit has never been seen.
const CLIMB_BLIND: f64 = 0.25;
/// Largest growth of a round while climbing.
const CLIMB_MAX: f64 = 1.0;
/// So much longer, and for so many answer delays more, does who has this surplus over its share wait before it climbs: the
/// others shall find out whether there is more.
const CLIMB_YIELD: (f64, f64) = (2.0, 10.0);
const CLIMB_SURPLUS: f64 = 0.2;
/// No climb begins for so long after losses without a queue: at first, for they may have been chance, and at most.
const CLIMB_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The queue is let run empty this often.
const DRAIN_EVERY: Duration = Duration::from_secs(4);
/// Sooner, but not sooner than this, when somebody else has held the queue above the wished one for so many
/// answer delays: if that is because he takes our queue for the least delay, he will see that it is not.
const DRAIN_SOONER: Duration = Duration::from_secs(1);
const CROWDED_DELAYS: f64 = 5.0;
/// A queue so much longer than the wished one is not of our making.
const CROWDED: f64 = 1.3;
/// When others tell of a queue that is longer than ours by this share of the wished one, ours hides as much, or theirs is another.
const HIDDEN: f64 = 0.3;
/// That is looked for this many answer delays after the queue was last empty, for what is lost meanwhile would be taken for chance.
const LOOK_DELAYS: f64 = 2.0;
/// Whatever the estimates say: never faster than this, relative to the most that lately arrived.
const DELIVERED_MAX: f64 = 2.5;
/// How long that is remembered, in seconds.
const PEAK_MEMORY: f64 = 10.0;
/// Random loss so much above what is believed is not believed before slowing down was in vain.
const SURPRISE: f64 = 0.2;
/// So far below empty is aimed while draining, because the estimates may be a little wrong.
const DRAIN_MARGIN: f64 = 0.001;
/// The same when more may stand than is seen: if the capacity is wrong by so much, that is not seen either.
const DRAIN_MARGIN_UNSEEN: f64 = 0.04;
/// A queue that counts as empty.
const DRAINED: f64 = 0.0003;
/// After each time the queue is held short for this long.
const LEARN_FOR: Duration = Duration::from_millis(400);
/// Queues below this share of the wished one are short: they cannot have overflowed.
const LOW: f64 = 0.5;
/// Share of the longest harmless queue below which losses are chance.
const SAFE: f64 = 0.8;
/// Share of the queue that overflowed that may stand.
const BORNE: f64 = 0.85;
/// The queue may have become larger: what is believed grows by this with each drain.
const FULL_GROWTH: f64 = 1.1;
/// Up to this many seconds, or what was seen: links that hold more are rare, and a belief without end would take as long to
/// come down from.
const FULL_GROWN_MAX: f64 = 2.0;
/// So many samples in a row with more loss than chance explains are overflow even without a queue.
const EXCESSES: u32 = 3;
/// That no queue stands says something only when the sender has not paused for so long: a short burst builds none.
const PUSHED_MIN: f64 = 0.05;
/// Bounds of the rate relative to the capacity while holding.
const HOLD_MIN: f64 = 0.5;
const HOLD_MAX: f64 = 1.25;
/// While draining: others shall not have the time to fill what we leave.
const DRAIN_MIN: f64 = 0.15;
/// Who takes more than its share does not yield so soon after the rate was found: what is taken then is still being learnt.
const YIELD_AFTER: Duration = Duration::from_secs(1);

/// What a sample is a mean over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// What was sent between two polls.
    One,
    /// Several times that, at rates that may be unlike while the rate is being found.
    Several,
    /// Several times that, at unlike rates.
    Unlike,
}

/// Whether the queue is being let run empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// Until ours is thought to have gone.
    Queue,
    /// How long it is, is not known: for as long as it may take.
    Deep,
}

/// The path to one receiver.
#[derive(Clone, Debug)]
pub(super) struct Path {
    loss: RandomLoss,
    spans: VecDeque<Span>,
    phase: RatePhase,
    /// Bytes per second at the sender; a lower bound while not `saturated`.
    capacity: f64,
    saturated: bool,
    /// At the last sample.
    queue: f64,
    /// How much later than the least of its neighbours a sample is, on average.
    jitter: f64,
    /// The longest queue lately that lost no more than chance takes: a shorter one does not overflow.
    queue_safe: f64,
    /// Where the queue was when it overflowed.
    queue_full: Option<f64>,
    /// Expected now; kept up to date by [`advance`](Self::advance).
    predicted: f64,
    advanced: Timestamp,
    /// Answer delay: round trip and sample length, smoothed.
    delay: f64,
    /// The shortest round trip, in seconds.
    rtt_min: f64,
    /// Samples in a row that looked congested at the start.
    suspects: u32,
    /// The most that arrived, bytes per second, fading.
    delivered_peak: f64,
    /// Samples in a row that lost more than chance explains.
    excesses: u32,
    /// Random loss that slowing down has shown to be random.
    believed: f64,
    /// When the session found its rate.
    found: Timestamp,
    /// When the rate was last cut because of losses without a queue.
    slowed: Timestamp,
    /// When a full queue was last noticed by its losses alone.
    full_unseen: Option<Timestamp>,
    /// For how long the sender has not paused, in seconds.
    pushed: f64,
    climb: f64,
    climb_due: Timestamp,
    /// How long after losses without a queue no climb begins.
    climb_wait: Duration,
    emptied: Timestamp,
    /// The queue has been shorter than crowded the last time.
    roomy: Timestamp,
    drain_began: Timestamp,
    draining: Drain,
    learning: bool,
    allowed: f64,
    /// Not followed, and not heard since.
    is_aside: bool,
    others: Others,
    pub(super) heard: Timestamp,
}

impl Path {
    /// A path of which nothing is known: it allows anything. `known` is what rate (bytes/s) the session has found
    /// already, and when.
    pub(super) fn new(now: Timestamp, known: Option<(Timestamp, f64)>) -> Self {
        let (found, rate) = known.unwrap_or((Timestamp::ZERO, 0.0));
        Self {
            loss: RandomLoss::new(),
            spans: VecDeque::new(),
            phase: if known.is_some() { RatePhase::Hold } else { RatePhase::Startup },
            capacity: rate,
            saturated: false,
            queue: 0.0,
            jitter: 0.0,
            queue_safe: 0.0,
            queue_full: None,
            predicted: 0.0,
            advanced: now,
            delay: 0.0,
            rtt_min: f64::MAX,
            suspects: 0,
            delivered_peak: rate,
            excesses: 0,
            believed: 0.0,
            found,
            slowed: Timestamp::ZERO,
            full_unseen: None,
            pushed: 0.0,
            climb: 0.0,
            climb_due: now,
            climb_wait: CLIMB_WAIT.0,
            emptied: now,
            roomy: now,
            drain_began: now,
            draining: Drain::No,
            learning: true,
            allowed: f64::INFINITY,
            is_aside: false,
            others: Others::default(),
            heard: now,
        }
    }

    /// Another path has shown the session's limit: this one goes on from `capacity`, no more by doubling.
    pub(super) fn end_startup(&mut self, now: Timestamp, capacity: f64) {
        self.found = now;
        if self.phase == RatePhase::Startup {
            self.phase = RatePhase::Hold;
            self.capacity = capacity;
            self.delivered_peak = self.delivered_peak.max(capacity);
            self.allow();
        }
    }

    /// It does not hold the rate down before it is heard again.
    pub(super) fn set_aside(&mut self) {
        self.is_aside = true;
        self.spans.clear();
        self.allowed = f64::INFINITY;
    }

    pub(super) const fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// It is heard: if it was set aside it is like a new one, but for what does not change with the rate.
    pub(super) fn take_up(&mut self, now: Timestamp, known: Option<(Timestamp, f64)>) {
        if self.is_aside {
            let (loss, believed) = (self.loss, self.believed);
            let (queue_safe, queue_full) = (self.queue_safe, self.queue_full);
            let rtt_min = self.rtt_min;
            *self =
                Self { loss, believed, queue_safe, queue_full, rtt_min, ..Self::new(now, known) };
        }
    }

    /// What the path allows, bytes per second.
    pub(super) const fn allowed(&self) -> f64 {
        self.allowed
    }

    pub(super) const fn phase(&self) -> RatePhase {
        self.phase
    }

    /// Bytes per second that the path takes, and whether it is more than a lower bound.
    pub(super) const fn capacity(&self) -> (f64, bool) {
        (self.capacity, self.saturated)
    }

    pub(super) const fn random_loss(&self) -> f64 {
        self.loss.share()
    }

    pub(super) fn queue(&self) -> Duration {
        Duration::from_secs_f64(self.queue)
    }

    /// The queue that may stand with no more lost than by chance, while the rate is held: the longest that did, or
    /// [`BORNE`] of the one that overflowed.
    pub(super) fn queue_borne(&self) -> Duration {
        let is_held = self.phase == RatePhase::Hold;
        let borne = self.queue_safe.max(BORNE * self.queue_full.unwrap_or(0.0));
        Duration::from_secs_f64(if is_held { borne } else { 0.0 })
    }

    /// How long an answer takes, from the beginning of what it tells about.
    pub(super) const fn delay(&self) -> f64 {
        self.delay
    }

    /// Takes a sample; its poll left at `rate` (bytes/s).
    pub(super) fn on_sample(&mut self, now: Timestamp, sample: &RateSample, rate: f64, over: Over) {
        let mixed = over != Over::One;
        self.heard = now;
        self.see_round_trip(sample.rtt.as_secs_f64());
        let queue_raw = sample.queue_delay.as_secs_f64();
        if sample.sent_packets == 0 || sample.send_interval.is_zero() {
            self.queue = queue_raw;
            self.delay = sample.rtt.as_secs_f64();
            return;
        }
        let delay = sample.rtt.as_secs_f64() + sample.send_interval.as_secs_f64();
        self.delay += if self.delay > 0.0 { 0.25 * (delay - self.delay) } else { delay };
        let before = self.queue;
        self.queue = self.least_queue(sample.poll_sent, queue_raw);
        self.jitter += 0.05 * ((queue_raw - self.queue).min(QUEUE_MIN) - self.jitter);
        if self.queue < CROWDED * self.wish() {
            self.roomy = now;
        }
        if self.queue <= DRAINED && !self.is_draining() {
            // Whoever emptied it: all who see it will look for the next time together.
            self.emptied = now;
        }
        let is_mean = (mixed || sample.app_limited) && self.is_early(sample);
        let excess = self.is_overflow(now, sample, before, is_mean) && !is_mean;
        let low = self.busy_above();
        let send = sample.send_interval.as_secs_f64();
        let span = Span {
            poll_sent: sample.poll_sent,
            sent: sample.sent_bytes as f64,
            arrived: sample.sent_bytes as f64 * sample.arrived_share(),
            send,
            receive: (send + self.queue - before).max(0.2 * send),
            receive_raw: sample.receive_interval.as_secs_f64(),
            queue_raw,
            // What a pausing sender sent says little about the path, unless a long queue outlasted the pause, nor what
            // was sent at unlike rates.
            busy: before > low
                && self.queue > low
                && (before >= send || over != Over::Unlike)
                && (before >= send && self.queue > 2.0 * self.wish() || !sample.app_limited),
            ran_empty: before > low && self.queue <= low,
            excess,
        };
        if self.spans.len() == SPANS_MAX {
            self.spans.pop_front();
        }
        self.spans.push_back(span);
        let delivered = span.arrived / span.receive.max(span.send);
        // That a pausing sender sent less says nothing about what would arrive.
        let fades = if sample.app_limited { 0.0 } else { span.send / PEAK_MEMORY };
        self.delivered_peak = delivered.max(self.delivered_peak * libm::exp(-fades));
        self.pushed = if sample.app_limited { 0.0 } else { self.pushed + send };
        match self.phase {
            RatePhase::Startup => self.startup(now, span, (rate, mixed), sample.app_limited),
            _ => self.hold(now, &span, (rate, over), sample.app_limited),
        }
        self.predict(now, sample);
        self.allow();
    }

    /// Where others are heard a round trip that is shorter than any before uncovers a queue that had stood all the time: what was
    /// taken for chance then was its overflow, and how long it may be is not known.
    fn see_round_trip(&mut self, rtt: f64) {
        if self.others.is_shared && rtt + QUEUE_MIN < self.rtt_min {
            self.loss = RandomLoss::new();
            (self.queue_full, self.queue_safe) = (None, 0.0);
        }
        self.rtt_min = self.rtt_min.min(rtt);
    }

    /// A sample over many rounds: this receiver answers only now and then. It tells whether the path is in
    /// trouble at `rate` (bytes/s); if it is, the path is followed from here on.
    pub(super) fn on_sparse_sample(&mut self, now: Timestamp, sample: &RateSample, rate: f64) {
        self.heard = now;
        self.spans.clear();
        self.delay = sample.rtt.as_secs_f64();
        self.allowed = f64::INFINITY;
        self.queue = sample.queue_delay.as_secs_f64();
        let (sent, lost) = (sample.sent_packets as f64, sample.lost_packets() as f64);
        let is_queued = self.queue > 4.0 * QUEUE_MAX;
        let is_early = self.is_early(sample);
        let is_lossy = !is_early && self.loss.is_half_known() && self.loss.is_excess(sent, lost);
        if let Some(takes) = self.shown_by_sparse(sample, rate) {
            self.capacity = takes;
        } else if is_queued || is_lossy {
            // Not slower than now: many may report the same trouble.
            self.capacity = rate;
        } else {
            if !is_early && !self.is_full_for_some(sent, lost) {
                self.loss.learn(sent, lost);
            }
            return;
        }
        self.phase = RatePhase::Hold;
        self.allowed = self.capacity;
    }

    /// Whether a queue that is not ours stands and loses something, but no more than half.
    fn is_full_for_some(&self, sent: f64, lost: f64) -> bool {
        let is_crowded = self.queue > CROWDED * self.wish();
        is_crowded && lost <= 0.5 * sent && self.loss.is_excess(sent, lost)
    }

    /// Through a queue that is always full hardly any poll comes, so that there may be no other sample: what such a path
    /// took since the rate was found is what it takes. Who takes less than half is no one to follow on so little.
    fn shown_by_sparse(&self, sample: &RateSample, rate: f64) -> Option<f64> {
        let (sent, lost) = (sample.sent_packets as f64, sample.lost_packets() as f64);
        let share = sample.arrived_share() / (1.0 - self.loss.share());
        let takes = share * sample.sent_bytes as f64 / sample.send_interval.as_secs_f64();
        let is_full = self.is_full_for_some(sent, lost) && !self.is_early(sample);
        is_full.then_some(takes.min(rate))
    }

    /// Whether a sample began before the rate was found: nobody knows which part of it was too fast.
    fn is_early(&self, sample: &RateSample) -> bool {
        sample.opened() < self.found
    }

    /// Time has passed at `rate` (bytes/s).
    pub(super) fn advance(&mut self, now: Timestamp, rate: f64) {
        let passed = now.since(self.advanced).as_secs_f64();
        self.advanced = now;
        if self.capacity > 0.0 {
            let grown = self.predicted + passed * (rate / self.capacity - 1.0);
            self.predicted = self.bounded(grown);
        }
    }

    /// Time has passed in which the sender paused, after so many bytes since the last poll.
    pub(super) fn rest(&mut self, now: Timestamp, sent: f64) {
        let passed = now.since(self.advanced).as_secs_f64();
        self.advanced = now;
        if self.capacity > 0.0 {
            self.predicted = self.bounded(self.predicted + sent / self.capacity - passed);
        }
        if self.predicted <= DRAINED && !self.is_draining() {
            self.emptied = now;
        }
    }

    /// A poll has left: it will tell the queue as it is now. True if from now on more than what is seen of it is let run empty.
    pub(super) fn on_poll(&mut self, now: Timestamp) -> bool {
        if self.phase == RatePhase::Startup || self.spans.is_empty() {
            return false;
        }
        let was_draining = self.is_draining();
        // Somebody else's queue does not run empty for our sake.
        let patience = Duration::from_secs_f64(0.05 + 3.0 * self.delay);
        let is_empty = self.predicted <= DRAINED && self.draining == Drain::Queue;
        if self.is_draining() && (is_empty || now.since(self.drain_began) > patience) {
            self.draining = Drain::No;
            self.empty(now);
            self.queue_full =
                self.queue_full.map(|full| full.max((full * FULL_GROWTH).min(FULL_GROWN_MAX)));
            self.queue_safe /= FULL_GROWTH;
        } else if !self.is_draining()
            && (now.since(self.emptied) > DRAIN_EVERY
                || self.is_crowded(now) && now.since(self.emptied) > DRAIN_SOONER
                || self.others.hidden > HIDDEN * self.wish()
                    && now.since(self.emptied).as_secs_f64() > LOOK_DELAYS * self.delay)
        {
            self.drain(now, Drain::Queue);
        }
        let learn_for = LEARN_FOR.max(Duration::from_secs_f64(2.0 * self.delay));
        self.learning &= now.since(self.emptied) < learn_for || !self.loss.is_known();
        self.allow();
        !was_draining && self.unseen() > 0.0
    }

    fn is_draining(&self) -> bool {
        self.draining != Drain::No
    }

    fn drain(&mut self, now: Timestamp, what: Drain) {
        self.draining = what;
        self.drain_began = now;
        self.predicted = self.bounded(self.predicted + self.unseen());
    }

    /// How much more of the queue may stand than is seen, while it is let run empty.
    fn unseen(&self) -> f64 {
        if self.is_draining() { self.others.hidden.min(self.wish()) } else { 0.0 }
    }

    fn is_crowded(&self, now: Timestamp) -> bool {
        now.since(self.roomy).as_secs_f64() > CROWDED_DELAYS * self.delay.max(0.05)
    }

    fn empty(&mut self, now: Timestamp) {
        self.emptied = now;
        self.learning = true;
    }

    /// Least delay of the newest samples that left within [`HICCUP`].
    fn least_queue(&self, poll_sent: Timestamp, raw: f64) -> f64 {
        let since = poll_sent - HICCUP;
        let recent = self.spans.iter().rev().take_while(|s| s.poll_sent >= since);
        recent.fold(raw, |least, s| least.min(s.queue_raw))
    }

    /// Whether a queue overflowed in the sample; learns the random loss and the full queue.
    fn is_overflow(
        &mut self,
        now: Timestamp,
        sample: &RateSample,
        before: f64,
        is_mean: bool,
    ) -> bool {
        let (sent, lost) = (sample.sent_packets as f64, sample.lost_packets() as f64);
        let peak = before.max(self.queue);
        let opened = sample.opened();
        // A single late sample is no long queue.
        let standing = before.min(self.queue);
        let usual = lost <= self.loss.share() * sent;
        if usual && standing > self.queue_safe {
            self.queue_safe = standing;
        }
        if peak > LOW * self.wish() {
            if !is_mean && self.is_not_believed(now, opened) {
                return true;
            }
            // With a queue like this, losses may be overflow and teach nothing about chance.
            let safe = peak < SAFE * self.queue_safe;
            let likely = !safe && peak > self.likely_full();
            let mild = self.queue_full.is_none() && queue::is_very_shallow(peak, self.rtt_min);
            let overflow = self.loss.judge_queued(sent, lost, likely, mild);
            if safe {
                if overflow != Overflow::Severe {
                    return sample.host_drops > 0;
                }
                self.queue_safe = 0.0;
            }
            match self.queue_full {
                Some(full) if standing > full => self.queue_full = Some(standing),
                Some(full) if overflow != Overflow::No => {
                    self.queue_full = Some(0.5 * (full + peak));
                }
                None if overflow != Overflow::No => self.queue_full = Some(peak),
                _ => {}
            }
            return overflow == Overflow::Severe || sample.host_drops > 0;
        }
        if is_mean {
            return false;
        }
        let excess = self.loss.is_excess(sent, lost);
        self.excesses = if excess { self.excesses + 1 } else { 0 };
        if sample.host_drops > 0 {
            return true;
        }
        if self.is_not_believed(now, opened) {
            return true;
        }
        // No queue to blame. If slowing down does not help, it is chance.
        if self.excesses < EXCESSES || opened < self.slowed || self.slowed_in_vain(opened) {
            if excess && opened >= self.slowed {
                self.loss.doubt();
            }
            self.loss.learn(sent, lost);
            return false;
        }
        self.slowed = now;
        true
    }

    /// Whether so much is lost that it is taken for overflow although no queue is seen, or one that is full but short.
    fn is_not_believed(&mut self, now: Timestamp, opened: Timestamp) -> bool {
        if self.loss.share() > self.believed + SURPRISE
            && self.loss.is_tried()
            && opened >= self.slowed
        {
            if self.slowed_in_vain(opened) {
                self.believed = self.loss.share();
            } else {
                self.loss = RandomLoss::new();
                self.slowed = now;
                return true;
            }
        }
        // At first not so soon, unless others are heard: TCP needs room to begin in.
        let is_first = self.full_unseen.is_none() && self.others.is_shared;
        let is_due = is_first || now.since(self.full_unseen.unwrap_or(self.found)) > DRAIN_EVERY;
        if self.loss.is_beyond_belief() && is_due {
            // The queue is full, and has been for so long that its delay is taken for the path's.
            self.loss = RandomLoss::new();
            self.full_unseen = Some(now);
            self.drain(now, Drain::Deep);
            return true;
        }
        false
    }

    /// Whether the rate was cut for the sake of losses shortly before `opened`.
    fn slowed_in_vain(&self, opened: Timestamp) -> bool {
        self.slowed > Timestamp::ZERO && opened.since(self.slowed) < Duration::from_secs(2)
    }

    fn hold(&mut self, now: Timestamp, span: &Span, (rate, over): (f64, Over), app_limited: bool) {
        let (bytes, time, busy_time) = self.window();
        if busy_time > 0.0 {
            let estimate = bytes / time;
            let gain = (busy_time / self.window_len()).clamp(0.1, 1.0);
            self.capacity += gain * (estimate - self.capacity);
            self.saturated = true;
            self.climb = 0.0;
            self.climb_due = now + Duration::from_secs_f64(2.0 * self.delay);
            self.climb_wait = CLIMB_WAIT.0;
            self.phase = RatePhase::Hold;
            return;
        }
        if span.excess {
            // Who pauses does not show what the link takes, only which share of it was lost.
            let share = span.arrived / span.sent / (1.0 - self.loss.share());
            let measured = if app_limited && share < 1.0 {
                rate.max(self.capacity) * share
            } else if app_limited || span.ran_empty {
                self.capacity // What arrived is less than it takes.
            } else {
                span.shows(self.loss.share())
            };
            self.capacity = self.capacity.min(measured);
            self.climb = 0.0;
            if now >= self.climb_due {
                self.climb_wait = (self.climb_wait * 2).min(CLIMB_WAIT.1);
            }
            self.climb_due = now + self.climb_wait;
            return;
        }
        let measured = span.shows(self.loss.share()).min(span.sent / span.send);
        let is_vague = app_limited || over == Over::Unlike;
        if measured < 0.97 * self.capacity || is_vague || self.pushed < PUSHED_MIN {
            return;
        }
        // The rate is there, the queue is not.
        self.capacity = self.capacity.max(measured.min(self.allowed));
        if now >= self.climb_due + self.way_given() {
            let gentle = self.others.climbed(self.target() / self.time_constant());
            let least = if self.saturated { gentle } else { gentle.max(CLIMB_BLIND) };
            self.climb = (self.climb * 2.0).max(least).min(CLIMB_MAX);
            self.climb_due = now + Duration::from_secs_f64(self.delay);
            if self.climb > 0.1 {
                self.phase = RatePhase::Climb;
                self.saturated = false;
            }
        }
    }

    /// How long who has more than its share leaves it to the others to find out whether there is more.
    fn way_given(&self) -> Duration {
        let is_another_link = self.others.longer > HIDDEN * self.wish();
        if self.climb > 0.0 || is_another_link || self.advanced < self.found + YIELD_AFTER {
            return Duration::ZERO;
        }
        let share = (self.others.surplus / CLIMB_SURPLUS).min(1.0);
        Duration::from_secs_f64(share * (CLIMB_YIELD.0 + CLIMB_YIELD.1 * self.delay))
    }

    /// Bytes and receive time of the newest busy spans, and that time again (0: not busy now).
    fn window(&self) -> (f64, f64, f64) {
        let mut bytes = 0.0;
        let mut time = 0.0;
        for span in self.spans.iter().rev().take_while(|s| s.busy) {
            bytes += span.shows(self.loss.share()) * span.receive;
            time += span.receive;
            if time >= self.window_len() {
                break;
            }
        }
        (bytes, time, time)
    }

    /// Over how much time the capacity is measured: the shorter, the sooner two sessions are even.
    fn window_len(&self) -> f64 {
        self.delay.max(0.05)
    }

    /// The queue that is expected when what leaves now arrives.
    fn predict(&mut self, now: Timestamp, sample: &RateSample) {
        self.advanced = now;
        let grown = if self.capacity > 0.0 {
            let served = now.since(sample.poll_sent).as_secs_f64();
            self.queue + self.unseen() + sample.bytes_since as f64 / self.capacity - served
        } else {
            self.queue
        };
        self.predicted = self.bounded(grown);
    }

    /// A queue is never less than empty nor more than full.
    fn bounded(&self, queue: f64) -> f64 {
        queue.clamp(0.0, self.queue_full.unwrap_or(10.0).max(self.queue + self.unseen()))
    }

    fn allow(&mut self) {
        if self.phase == RatePhase::Startup || self.spans.is_empty() {
            return;
        }
        let unseen = if self.unseen() > 0.0 { DRAIN_MARGIN_UNSEEN } else { 0.0 };
        let margin = DRAIN_MARGIN.max(unseen * self.time_constant());
        let wish = if self.is_draining() { -margin } else { self.yielding(self.target()) };
        let factor = 1.0 + (wish - self.predicted) / self.time_constant();
        let factor = match self.draining {
            Drain::No if self.climb > 0.0 => factor.max(1.0 + self.climb),
            Drain::No => factor.clamp(HOLD_MIN, HOLD_MAX),
            Drain::Queue => factor.clamp(DRAIN_MIN, HOLD_MAX),
            Drain::Deep => DRAIN_MIN,
        };
        self.allowed = (self.capacity * factor).min(DELIVERED_MAX * self.delivered_peak);
    }

    /// The queue to hold now: a short one for a while after each drain, in which losses teach what is
    /// chance.
    fn target(&self) -> f64 {
        if self.learning { 0.8 * LOW * self.wish() } else { self.wish() }
    }

    /// What is held of this queue when neighbours have less than their share.
    fn yielding(&self, wish: f64) -> f64 {
        let is_early = self.advanced < self.found + YIELD_AFTER;
        if is_early { wish } else { self.others.held(wish, self.time_constant()) }
    }

    pub(super) fn set_others(&mut self, others: Others) {
        // What is let run empty now was decided at its beginning.
        let hidden = if self.is_draining() { self.others.hidden } else { others.hidden };
        self.others = Others { hidden, ..others };
    }

    /// What the queue says of neighbours; nothing while it is let run empty.
    pub(super) fn standing(&self) -> Option<Standing> {
        let wish = self.wish();
        let yielded = (1.0 - self.yielding(wish) / wish).min(1.0);
        let is_steady = !self.is_draining();
        is_steady.then_some(Standing { queue: self.queue, lately: self.lately(), wish, yielded })
    }

    /// The longest queue of the last answer delay: of what others tell now, as much may have gone meanwhile.
    fn lately(&self) -> f64 {
        let newest = self.spans.back().map_or(Timestamp::ZERO, |span| span.poll_sent);
        let is_recent = |s: &&Span| newest.since(s.poll_sent).as_secs_f64() <= self.delay;
        let recent = self.spans.iter().rev().take_while(is_recent);
        recent.fold(self.queue, |longest, s| longest.max(s.queue_raw))
    }

    /// The queue to hold in general.
    fn wish(&self) -> f64 {
        queue::wish(self.capacity, self.queue_full, self.rtt_min, self.others.is_shared)
    }

    /// With a queue above this, overflow is the likely cause of losses.
    fn likely_full(&self) -> f64 {
        self.queue_full.map_or(2.0 * self.wish(), |full| 0.6 * full)
    }

    /// Above this the link has certainly been busy.
    fn busy_above(&self) -> f64 {
        (0.25 * self.wish()).max(2.0 * self.jitter)
    }

    /// How fast a wrong queue is set right.
    fn time_constant(&self) -> f64 {
        self.delay.max(0.02)
    }
}
