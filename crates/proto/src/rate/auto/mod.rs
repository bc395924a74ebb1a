//! `auto`: fills the pipe without being told its rate, and keeps its queue short.
//!
//! Each receiver that answers has a [`Path`] with an estimate of capacity, queue and random loss, and
//! a rate that it allows; the session sends at the least of them. No report from anybody for several
//! answer times halves the rate, again and again; while no path is followed it stays as it is, for who is
//! not heard at all leaves the stream (`docs/protocol.md#STRAG-3`).
//!
//! Deliberately absent: any reaction to loss as such. Loss counts only when it is more than chance
//! explains, and then only as a measure of what the path delivers.

mod loss;
mod neighbours;
mod path;
mod queue;
mod span;

use super::paths::{Heard, Paths};
use super::{Load, RATE_MIN, RateController, RatePhase, RateSample, RateSummary};
use crate::feedback::REPORTS_MAX;
use crate::ids::{ReceiverId, StreamId};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use neighbours::Neighbours;
use path::{Over, Path};

/// Before anything is known.
const INITIAL: Rate = Rate::from_mbps(10);
/// A path that has not answered so many polls is no longer followed, unless it limits the rate.
const SPARSE_POLLS: f64 = 8.0;
/// In a group of which not all answer each poll only who has answered so new a poll is followed while the rate is sought.
/// Waiting for all took four times as long with 16 receivers as with 4.
const NEWEST_POLLS: f64 = 1.5;
/// A sample over more polls than this is a mean over several rates while the rate is being found: the least that a
/// thousand receivers report so would be far below what they can take.
const MIXED_POLLS: f64 = 2.5;
/// The highest of these rates over their mean from which on a queue that stands at both ends may have been away between.
const UNLIKE: f64 = 1.4;
/// A sender that sent less than this share of what it might has paused: what it may send says nothing of the queue.
const PAUSED: f64 = 0.5;
/// When most paths have shown to take so many times as much as the one that is followed, its limit is its own and not
/// the session's: if it is left out, the rate need not be sought again.
const FAR_MORE: f64 = 1.5;
/// Polls that are remembered.
const POLLS_MAX: usize = 64;
/// Silence of so many answer times, and at least this long, halves the rate.
const SILENT_DELAYS: f64 = 4.0;
const SILENT_MIN: Duration = Duration::from_millis(300);

impl Heard for Path {
    fn heard(&self) -> Timestamp {
        self.heard
    }
}

/// The default controller.
#[derive(Debug)]
pub struct Auto {
    paths: Paths<Path>,
    rate: f64,
    /// What the paths allow, before silence is counted.
    followed_rate: f64,
    /// When some path has first shown its limit: a new one need not be tried from the beginning.
    found: Option<Timestamp>,
    /// Between the polls, smoothed, in seconds.
    poll_interval: f64,
    ticked: Option<Timestamp>,
    /// Sent until the last poll, bytes; and what might have been since.
    sent: u64,
    paced: f64,
    advanced: Timestamp,
    /// When polls left, and the rate at that time in bytes per second.
    polls: VecDeque<(Timestamp, f64)>,
    ceiling: Rate,
    heard: Timestamp,
    silent: f64,
    phase: RatePhase,
    /// The sender had nothing to send for most of the time since the last poll but one.
    paused: bool,
    neighbours: Neighbours,
}

impl Auto {
    /// Starts at 10 Mbit/s, a rate that every link is thought to stand for the first round trips.
    pub fn new(now: Timestamp) -> Self {
        Self {
            paths: Paths::new(),
            rate: INITIAL.bps() as f64 / 8.0,
            followed_rate: INITIAL.bps() as f64 / 8.0,
            found: None,
            poll_interval: 0.0,
            ticked: None,
            sent: 0,
            paced: 0.0,
            advanced: now,
            polls: VecDeque::new(),
            ceiling: Rate::MAX,
            heard: now,
            silent: 1.0,
            phase: RatePhase::Startup,
            paused: false,
            neighbours: Neighbours::default(),
        }
    }

    /// The rate is the least that a path allows, of those that answer most polls. In a large group
    /// only the limiting receiver and a few others do.
    fn decide(&mut self, now: Timestamp) {
        let limiting = self.paths.limiting;
        let is_followed = |id: &ReceiverId, path: &Path| {
            let recent = now.since(path.heard).as_secs_f64() < self.memory(path);
            !path.is_aside() && (Some(*id) == limiting || recent)
        };
        let followed = self.paths.by_id.iter().filter(|(id, path)| is_followed(id, path));
        let least = followed.min_by(|a, b| a.1.allowed().total_cmp(&b.1.allowed()));
        let Some((id, path)) = least else { return };
        if path.allowed().is_infinite() && limiting.is_some() {
            return; // Whom we follow has not told enough yet: wait for it.
        }
        self.paths.limiting = Some(*id);
        let (capacity, is_known) = path.capacity();
        self.phase = if self.silent < 1.0 { RatePhase::Silent } else { path.phase() };
        if path.allowed().is_finite() {
            self.followed_rate = path.allowed();
        }
        self.rate = self.followed_rate * self.silent;
        if is_known && self.found.is_none() {
            self.found = Some(now);
            let expected = self.expected_beside(capacity);
            self.paths.by_id.values_mut().for_each(|path| path.end_startup(now, expected));
        }
    }

    /// As of the last poll: before the first there is nothing to decide.
    fn decide_again(&mut self) {
        if let Some(now) = self.ticked {
            self.decide(now);
        }
    }

    /// What is expected of a path that has not shown a limit, when the followed one takes `capacity`: the same, or what
    /// half of the paths have shown to take if that is far more.
    fn expected_beside(&self, capacity: f64) -> f64 {
        let shown = self.paths.values().map(|path| path.capacity().0).filter(|shown| *shown > 0.0);
        let mut shown: Vec<f64> = shown.collect();
        shown.sort_by(f64::total_cmp);
        // The lower median: of two, the one that takes less.
        let most = shown.get(shown.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        if most > FAR_MORE * capacity { most } else { capacity }
    }

    /// Whether polls left at far higher rates than the mean in the time of a sample.
    fn was_unlike(&self, sample: &RateSample) -> bool {
        let during = sample.opened()..=sample.poll_sent;
        let rates = self.polls.iter().filter(|(at, _)| during.contains(at)).map(|(_, rate)| *rate);
        let (count, sum, most) = rates.fold((0.0, 0.0, 0.0_f64), |(count, sum, most), rate| {
            (count + 1.0, sum + rate, most.max(rate))
        });
        most * count > UNLIKE * sum
    }

    /// For how long a path's answer holds, in seconds.
    fn memory(&self, path: &Path) -> f64 {
        if self.found.is_none() && self.paths.by_id.len() > REPORTS_MAX as usize {
            // What it took when less was sent does not hold back who shows now that more can be.
            return NEWEST_POLLS * self.poll_interval;
        }
        SPARSE_POLLS * self.poll_interval + 2.0 * path.delay().min(1.0)
    }

    fn advance(&mut self, now: Timestamp) {
        let rate = self.pace(now);
        for path in self.paths.by_id.values_mut() {
            path.advance(now, rate);
        }
    }

    /// Tells the paths what is to be reckoned with of neighbours.
    fn share(&mut self, now: Timestamp) {
        if self.neighbours.is_empty() {
            return;
        }
        let own = self.paths.followed().map_or(0.0, |path| path.capacity().0);
        let others = self.neighbours.others(now, own);
        self.paths.by_id.values_mut().for_each(|path| path.set_others(others));
    }

    /// The rate since the last time, in bytes per second; counts what might have been sent at it.
    fn pace(&mut self, now: Timestamp) -> f64 {
        let rate = self.rate().bps() as f64 / 8.0;
        self.paced += rate * now.since(self.advanced).as_secs_f64();
        self.advanced = now;
        rate
    }
}

impl RateController for Auto {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        self.heard = now;
        self.silent = 1.0;
        self.advance(now);
        let interval = sample.send_interval.as_secs_f64();
        let sparse = interval > SPARSE_POLLS * self.poll_interval;
        let over = if interval <= MIXED_POLLS * self.poll_interval {
            Over::One
        } else if self.was_unlike(sample) {
            Over::Unlike
        } else {
            Over::Several
        };
        let rate = self.rate;
        // Not the rate of this moment: that may be one at which a queue is let run empty.
        let followed = self.paths.followed().map_or(rate, |path| path.capacity().0);
        let is_new = self.paths.by_id.get(&sample.receiver).is_none_or(Path::is_aside);
        let known = self.found.filter(|_| is_new);
        let known = known.map(|found| (found, self.expected_beside(followed)));
        let path = self.paths.entry(sample.receiver, || Path::new(now, known));
        path.take_up(now, known);
        if sparse && self.poll_interval > 0.0 {
            path.on_sparse_sample(now, sample, rate.max(followed));
        } else {
            let then = self.polls.iter().find(|(at, _)| *at == sample.poll_sent);
            path.on_sample(now, sample, then.map_or(rate, |(_, rate)| *rate), over);
        }
        self.decide(now);
    }

    fn on_tick(&mut self, now: Timestamp, bytes_sent: u64) {
        if self.ticked.is_none() {
            // How long the session has waited for its receivers is no interval between polls, and no silence.
            (self.advanced, self.heard) = (now, now);
        }
        let interval = now.since(self.ticked.replace(now).unwrap_or(now)).as_secs_f64();
        let sent = bytes_sent.saturating_sub(self.sent) as f64;
        self.sent = bytes_sent;
        let rate = self.pace(now);
        self.paused = sent < PAUSED * self.paced;
        self.paced = 0.0;
        let gain = if self.poll_interval > 0.0 { 0.25 } else { 1.0 };
        self.poll_interval += gain * (interval - self.poll_interval);
        for path in self.paths.by_id.values_mut() {
            if self.paused { path.rest(now, sent) } else { path.advance(now, rate) }
        }
        if self.polls.len() == POLLS_MAX {
            self.polls.pop_front();
        }
        self.polls.push_back((now, self.rate().bps() as f64 / 8.0));
        self.share(now);
        for path in self.paths.by_id.values_mut() {
            if path.on_poll(now) {
                self.neighbours.look(now);
            }
        }
        let delay = self.paths.values().map(Path::delay).fold(0.0, f64::max);
        let patience = Duration::from_secs_f64(delay * SILENT_DELAYS).max(SILENT_MIN);
        if now.since(self.heard) > patience {
            self.heard = now;
            self.silent *= 0.5;
        }
        self.decide(now);
    }

    fn on_trial(&mut self, receiver: ReceiverId) {
        if let Some(path) = self.paths.by_id.get_mut(&receiver) {
            path.set_aside();
        }
        self.paths.limiting = self.paths.limiting.filter(|limiting| *limiting != receiver);
        self.decide_again();
    }

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.paths.remove(receiver);
        self.decide_again();
    }

    fn on_neighbour(&mut self, now: Timestamp, who: StreamId, load: Load) {
        let standing = self.paths.followed().and_then(Path::standing);
        self.neighbours.hear(now, who, load, standing);
        self.share(now);
    }

    fn load(&self) -> Option<Load> {
        let path = self.paths.followed()?;
        let is_held_back = self.paused || self.silent < 1.0 || self.rate() >= self.ceiling;
        let (capacity, is_known) = path.capacity();
        let taken = if is_known { capacity } else { self.rate };
        let rate = Rate::from_bps((taken * 8.0) as u64);
        (!is_held_back).then_some(Load { rate, queue: path.queue() })
    }

    fn rate(&self) -> Rate {
        Rate::from_bps((self.rate * 8.0) as u64).max(RATE_MIN).min(self.ceiling)
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.ceiling = ceiling;
    }

    fn is_searching(&self) -> bool {
        self.phase == RatePhase::Startup
    }

    fn summary(&self) -> RateSummary {
        let path = self.paths.followed();
        let bottleneck = path.map(Path::capacity).filter(|(_, known)| *known);
        RateSummary {
            phase: self.phase,
            rate: self.rate(),
            bottleneck: bottleneck.map(|(c, _)| Rate::from_bps((c * 8.0) as u64)),
            random_loss: path.map_or(0.0, Path::random_loss),
            queue_delay: path.map_or(Duration::ZERO, Path::queue),
            queue_borne: path.map_or(Duration::ZERO, Path::queue_borne),
            limiting: self.paths.limiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Auto;
    use crate::ids::ReceiverId;
    use crate::rate::{RateController, RateSample};
    use crate::time::{Duration, Timestamp};

    const ROUND: Duration = Duration::from_millis(20);
    const LINK: f64 = 50e6 / 8.0;

    /// A round in which this share of the time was sent in, and this share of it arrived, behind a link of 50 Mbit/s.
    fn round(auto: &mut Auto, now: Timestamp, busy: f64, arrives: f64, queue: &mut f64) {
        let rate = auto.rate().bps() as f64 / 8.0;
        let sent = rate * ROUND.as_secs_f64() * busy;
        let sent_before = auto.sent;
        let before = *queue;
        *queue = (*queue + sent / LINK - ROUND.as_secs_f64()).clamp(0.0, 0.02);
        auto.on_tick(now, sent_before + sent as u64);
        let interval = ROUND + Duration::from_secs_f64((*queue - before).max(0.0));
        auto.on_sample(now, &sample(now, busy, (sent, arrives), (interval, *queue)));
    }

    /// What receiver 1 tells of a round: bytes sent and which share of them arrived, in what time, the queue at its end.
    fn sample(
        now: Timestamp,
        busy: f64,
        (sent, arrives): (f64, f64),
        (receive_interval, queue): (Duration, f64),
    ) -> RateSample {
        RateSample {
            receiver: ReceiverId(1),
            sent_packets: (sent / 1472.0) as u64 + 1,
            sent_bytes: sent as u64,
            send_interval: ROUND,
            received_packets: (sent * arrives / 1472.0) as u64,
            receive_interval,
            poll_sent: now - ROUND,
            bytes_since: sent as u64,
            rtt: ROUND + Duration::from_secs_f64(queue),
            queue_delay: Duration::from_secs_f64(queue),
            host_drops: 0,
            app_limited: busy < 1.0,
        }
    }

    /// A hundred rounds in which receiver 2 answers each poll too, always with this queue in seconds.
    fn beside(queue_of_second: f64) -> (Auto, Timestamp) {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let mut now = Timestamp::ZERO;
        for _ in 1..=100 {
            now = now + ROUND;
            round(&mut auto, now, 1.0, 1.0, &mut queue);
            let second = sample(now, 1.0, (1e5, 1.0), (ROUND, queue_of_second));
            auto.on_sample(now, &RateSample { receiver: ReceiverId(2), ..second });
        }
        (auto, now)
    }

    /// Receiver 2 tells of twenty rounds at once, of which much was lost.
    fn tell_seldom(auto: &mut Auto, now: Timestamp) {
        let seldom = sample(now, 1.0, (2e6, 0.6), (ROUND * 20, 0.0));
        let (receiver, send_interval) = (ReceiverId(2), ROUND * 20);
        auto.on_sample(now, &RateSample { receiver, send_interval, ..seldom });
    }

    #[test]
    fn a_sender_that_pauses_and_loses_much_does_not_take_that_for_the_capacity() {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let at = |n: u32| Timestamp::ZERO + ROUND * n;
        for n in 1..=100 {
            round(&mut auto, at(n), 1.0, 1.0, &mut queue);
        }
        let found = auto.rate().bps();
        assert!((40_000_000..65_000_000).contains(&found), "{found}");
        // The end of a session: a few repair symbols a round, half of which somebody's trial floods away.
        for n in 101..=130 {
            round(&mut auto, at(n), 0.05, 0.5, &mut queue);
        }
        assert!(auto.rate().bps() > found / 8, "{}", auto.rate());
    }

    #[test]
    fn a_pause_does_not_lower_the_rate_of_what_comes_after_it() {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let mut now = Timestamp::ZERO;
        for _ in 1..=200 {
            now = now + ROUND;
            round(&mut auto, now, 1.0, 1.0, &mut queue);
        }
        let found = auto.rate().bps();
        // Polls of an idle session, which this receiver need not answer.
        for _ in 0..2 {
            now = now + Duration::from_millis(100);
            auto.on_tick(now, auto.sent + 100);
            assert!(auto.rate().bps() > found * 9 / 10, "{} of {found}", auto.rate());
        }
    }

    #[test]
    fn whoever_comes_while_the_queue_runs_empty_does_not_take_that_rate_for_the_capacity() {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let mut now = Timestamp::ZERO;
        for _ in 1..=100 {
            now = now + ROUND;
            round(&mut auto, now, 1.0, 1.0, &mut queue);
        }
        auto.rate *= 0.2;
        let second = sample(now, 1.0, (1e4, 1.0), (ROUND, queue));
        auto.on_sample(now, &RateSample { receiver: ReceiverId(2), ..second });
        let (capacity, _) = auto.paths.by_id[&ReceiverId(2)].capacity();
        assert!(capacity > 0.8 * LINK, "{capacity}");
    }

    #[test]
    fn who_answers_seldom_does_not_take_the_rate_of_an_emptying_queue_for_the_capacity() {
        let (mut auto, now) = beside(0.0);
        auto.rate *= 0.2;
        tell_seldom(&mut auto, now);
        let (capacity, _) = auto.paths.by_id[&ReceiverId(2)].capacity();
        assert!(capacity > 0.7 * LINK, "{capacity}");
    }

    /// While the rate was sought much was lost in the queue. Who tells of that afterwards, because it comes late or answers
    /// now and then, is not one that takes less.
    #[test]
    fn what_is_from_before_the_rate_was_found_does_not_lower_it() {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let mut now = Timestamp::ZERO;
        while auto.found.is_none() {
            now = now + ROUND;
            round(&mut auto, now, 1.0, 1.0, &mut queue);
            let second = sample(now, 1.0, (4e5, 1.0), (ROUND, 0.0));
            auto.on_sample(now, &RateSample { receiver: ReceiverId(2), ..second });
        }
        tell_seldom(&mut auto, now);
        for (busy, sent) in [(1.0, 0.0), (1.0, 1.5e5), (0.5, 1.5e5)] {
            let half = sample(now, busy, (sent, 0.5), (ROUND, 0.02));
            let sent_packets = (sent / 1472.0) as u64;
            let half = RateSample { sent_packets, ..half };
            auto.on_sample(now, &RateSample { receiver: ReceiverId(3), ..half });
        }
        for receiver in [2, 3] {
            let (capacity, _) = auto.paths.by_id[&ReceiverId(receiver)].capacity();
            assert!(capacity > 0.8 * LINK, "{receiver}: {capacity}");
        }
    }

    /// A third of the link was sent in the mean of eight rounds, all of it arrived, and a queue stood at both ends. Where each
    /// of them was sent at that rate, that is what a busy link takes; where one was sent at four times it, it is not.
    #[test]
    fn a_mean_over_unlike_rates_is_not_what_a_busy_link_takes() {
        let told = |rates: [f64; 8]| {
            let (mut auto, mut now) = beside(0.015);
            auto.polls.clear();
            for rate in rates {
                now = now + ROUND;
                auto.on_tick(now, auto.sent + (LINK * ROUND.as_secs_f64()) as u64);
                auto.polls.back_mut().unwrap().1 = rate * LINK / 3.0;
            }
            now = now + ROUND;
            let mean = sample(now, 1.0, (8.0 * LINK / 3.0 * 0.02, 1.0), (ROUND * 8, 0.015));
            let (receiver, send_interval) = (ReceiverId(2), ROUND * 8);
            auto.on_sample(now, &RateSample { receiver, send_interval, ..mean });
            auto.paths.by_id[&receiver].capacity().0 / LINK
        };
        let (like, unlike) = (told([1.0; 8]), told([4.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]));
        assert!(like < 0.5, "{like}");
        assert!(unlike > 0.7, "{unlike}");
    }

    #[test]
    fn when_the_only_slow_one_is_left_out_the_rate_that_the_others_have_shown_is_taken_up() {
        let mut auto = Auto::new(Timestamp::ZERO);
        let mut now = Timestamp::ZERO;
        let mut sent = 0.0;
        for _ in 1..=4 {
            now = now + ROUND;
            sent = auto.rate().bps() as f64 / 8.0 * ROUND.as_secs_f64();
            auto.on_tick(now, auto.sent + sent as u64);
            for id in 1..=3 {
                let clear = sample(now, 1.0, (sent, 1.0), (ROUND, 0.0));
                auto.on_sample(now, &RateSample { receiver: ReceiverId(id), ..clear });
            }
        }
        let shown = auto.rate().bps();
        let slow = sample(now, 1.0, (sent, 0.1), (ROUND * 4, 0.06));
        auto.on_sample(now, &RateSample { receiver: ReceiverId(4), ..slow });
        assert!(auto.rate().bps() < shown / 5, "{} of {shown}", auto.rate());
        assert_eq!(auto.limiting(), Some(ReceiverId(4)));
        auto.on_trial(ReceiverId(4));
        assert!(auto.rate().bps() > shown / 3, "{} of {shown}", auto.rate());
    }

    #[test]
    fn one_late_poll_of_a_sender_that_waits_does_not_end_the_start() {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let at = |n: u32| Timestamp::ZERO + ROUND * n;
        round(&mut auto, at(1), 1.0, 1.0, &mut queue);
        // One poll and nothing else, that the receiver's host was late to take.
        let late = Duration::from_millis(14);
        auto.on_tick(at(2), auto.sent + 112);
        auto.on_sample(
            at(2),
            &sample(at(2), 0.01, (112.0, 1.0), (ROUND + late, late.as_secs_f64())),
        );
        for n in 3..=15 {
            round(&mut auto, at(n), 1.0, 1.0, &mut queue);
        }
        assert!(auto.rate().bps() > 40_000_000, "{}", auto.rate());
    }

    /// Sixteen receivers behind a link of 1 Gbit/s, of whom a quarter answers each poll.
    #[test]
    fn a_long_wait_for_the_receivers_does_not_make_the_rate_be_found_later() {
        const LINK: f64 = 1e9 / 8.0;
        let found_after = |wait: Duration| {
            let mut auto = Auto::new(Timestamp::ZERO);
            let mut now = Timestamp::ZERO + wait;
            auto.on_tick(now, 0);
            // Of each round: what was sent and what of it arrived, bytes, and the queue at its end, seconds.
            let mut rounds = alloc::vec![(0.0, 0.0, 0.0)];
            (1..1000).find(|n: &u32| {
                now = now + ROUND;
                let sent = auto.rate().bps() as f64 / 8.0 * ROUND.as_secs_f64();
                let before: f64 = rounds.last().map_or(0.0, |(_, _, queue)| *queue);
                let queue = (before + sent / LINK - ROUND.as_secs_f64()).max(0.0);
                let lost = (queue - 0.05).max(0.0) * LINK;
                rounds.push((sent, sent - lost, queue.min(0.05)));
                auto.on_tick(now, auto.sent + sent as u64);
                let told = &rounds[rounds.len().saturating_sub(5)..];
                let (began, told) = (told[0].2, &told[1..]);
                let sent: f64 = told.iter().map(|(sent, _, _)| sent).sum();
                let arrived: f64 = told.iter().map(|(_, arrived, _)| arrived).sum();
                let queue = told[told.len() - 1].2;
                let send_interval = ROUND * told.len() as u32;
                let took = send_interval.as_secs_f64() + queue - began;
                let times = (Duration::from_secs_f64(took), queue);
                for id in (1..=16).filter(|id| id % 4 == n % 4) {
                    let told = sample(now, 1.0, (sent, arrived / sent), times);
                    let receiver = ReceiverId(id);
                    auto.on_sample(now, &RateSample { receiver, send_interval, ..told });
                }
                auto.rate().bps() as f64 / 8.0 > 0.8 * LINK
            })
        };
        let (at_once, late) = (found_after(Duration::ZERO), found_after(Duration::from_secs(60)));
        assert!(at_once.is_some());
        assert_eq!(at_once, late);
    }

    #[test]
    fn what_is_known_of_a_path_but_its_rate_outlasts_a_trial() {
        let (mut auto, mut queue) = (Auto::new(Timestamp::ZERO), 0.0);
        let at = |n: u32| Timestamp::ZERO + ROUND * n;
        for n in 1..=200 {
            round(&mut auto, at(n), 1.0, 0.95, &mut queue);
        }
        let known = auto.summary().random_loss;
        assert!((0.04..0.08).contains(&known), "{known}");
        auto.on_trial(ReceiverId(1));
        assert_eq!(auto.limiting(), None);
        round(&mut auto, at(260), 1.0, 0.95, &mut queue);
        assert_eq!(auto.limiting(), Some(ReceiverId(1)));
        assert!((auto.summary().random_loss - known).abs() < 0.01, "{:?}", auto.summary());
        auto.on_receiver_gone(ReceiverId(1));
        round(&mut auto, at(261), 1.0, 1.0, &mut queue);
        assert!(auto.summary().random_loss < 0.01, "{:?}", auto.summary());
    }
}
