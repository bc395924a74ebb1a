//! `background`: uses what others leave, by one-way delay (after LEDBAT, RFC 6817, and LEDBAT++;
//! `docs/protocol.md#RATE-3`, `docs/protocol.md#RATE-4`).
//!
//! 1. The queue is the greater of two measures: how much longer the round trip is than the shortest of the last one to
//!    two minutes, and how much longer a poll was on its way than the fastest lately, less what clocks drift in that
//!    time. Whoever keeps a queue up for a quarter of a minute does not become the path. Two samples in a row must show it:
//!    one may be of a late host.
//! 2. The target is a third of the longest queue lately, at least 0.7 and at most 2 ms: whoever comes when TCP has the link sees
//!    only by how much TCP's queue varies, and a short queue is full before it is 2 ms long.
//! 3. Below the target the rate rises by at most a fiftieth in each round; not by more than fills a part of the target in that time,
//!    for what is too much shows only a round or two later. Faster at the start, and when long no queue was seen.
//! 4. Above it, it falls by what empties the queue in a round; to half when there is loss. It falls again by what
//!    a poll has shown that left after it fell.
//! 5. Every ten seconds it is silent but for a little for two round trips, so that the path's own delay shows.
//!
//! A round is a round trip, or the time between two polls if that is longer. Four of them without an answer from anyone, and
//! at least half a second, halve the rate.
//!
//! Deliberately absent: fairness among several of its kind, any lower bound but that of a stream that has to
//! learn, and loss where no queue is seen: that is chance.

use super::paths::{Heard, Paths};
use super::{RATE_MIN, RateController, RatePhase, RateSample, RateSummary};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

const INITIAL: Rate = Rate::from_mbps(1);
/// Queue above which it gives way, in seconds: at least and at most, and between them this share of the longest lately.
const TARGET: (f64, f64) = (0.0007, 0.002);
const TARGET_OF_LONGEST: f64 = 0.35;
/// How long the longest queue and the most that arrived are remembered, in seconds.
const LONGEST_MEMORY: f64 = 10.0;
const PEAK_MEMORY: f64 = 60.0;
/// What clocks that drift by 100 ppm add to a one-way delay in the ten seconds of its memory.
const DRIFT: f64 = 0.001;
/// Growth of a round; and at least this share of the most that lately arrived, which the link must take.
const GROWTH: f64 = 0.02;
const GROWTH_OF_PEAK: f64 = 0.0025;
/// A round's growth fills no more than this share of the target in a round.
const GROWTH_OF_TARGET: f64 = 0.8;
/// The same at the start and when no queue has been seen for long, of the longest target; and its bounds.
const CLEAR_OF_TARGET: f64 = 0.5;
const CLEAR_GROWTH: (f64, f64) = (0.02, 0.3);
/// A link is thought to take at least this; growth is then at least this share of it.
const SOME: Rate = Rate::from_mbps(10);
const CLEAR_OF_SOME: f64 = 0.05;
/// How long that is: when the rate is below this share of the most that lately arrived, and otherwise.
const CLEAR: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
const LOW: f64 = 0.3;
/// Bounds of a fall; with loss it is the second.
const FALL: (f64, f64) = (0.05, 0.5);
/// The path's own delay is looked for this often, at this share of the rate: at a fixed low rate a burst that has just left
/// would have to be paid for by most of a second.
const QUIET_EVERY: Duration = Duration::from_secs(10);
const QUIET_SHARE: f64 = 1.0 / 16.0;
/// A shortest round trip is remembered for one to two of these.
const RTT_EPOCH: Duration = Duration::from_secs(60);
/// Silence of so many of the longest round trips or the limiting receiver's rounds, and at least this long, halves the rate.
const SILENT_ROUNDS: f64 = 4.0;
const SILENT_MIN: Duration = Duration::from_millis(500);

/// Gives way to any other traffic.
#[derive(Debug)]
pub struct Background {
    paths: Paths<Path>,
    /// Bytes per second.
    rate: f64,
    startup: bool,
    /// The rate was changed last.
    moved: Timestamp,
    fell: Timestamp,
    quiet_from: Timestamp,
    quiet: bool,
    /// Something was heard last, or the first poll left: before it nobody could answer.
    heard: Option<Timestamp>,
    ceiling: Rate,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    rtt: f64,
    /// Round trip, or the time between two polls if that is longer.
    round: f64,
    /// The most that arrived, bytes per second, fading.
    peak: f64,
    /// The shortest of this epoch and of the one before.
    shortest: [f64; 2],
    epoch: Timestamp,
    /// Of the last sample and of the one before.
    queues: [f64; 2],
    /// The longest that two samples in a row have shown, fading.
    longest: f64,
    lossy: bool,
    delivered: f64,
    poll_sent: Timestamp,
    heard: Timestamp,
}

impl Heard for Path {
    fn heard(&self) -> Timestamp {
        self.heard
    }
}

impl Path {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        let rtt = sample.rtt.as_secs_f64().max(1e-4);
        self.rtt += if self.rtt > 0.0 { 0.25 * (rtt - self.rtt) } else { rtt };
        let round = rtt.max(sample.send_interval.as_secs_f64());
        self.round += if self.round > 0.0 { 0.25 * (round - self.round) } else { round };
        if now.since(self.epoch) > RTT_EPOCH {
            self.epoch = now;
            self.shortest = [rtt, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(rtt);
        let shortest = self.shortest[0].min(self.shortest[1]);
        let queue = (sample.queue_delay.as_secs_f64() - DRIFT).max(rtt - shortest);
        self.queues = [queue, self.queues[0]];
        self.poll_sent = sample.poll_sent;
        let fades = sample.send_interval.as_secs_f64() / LONGEST_MEMORY;
        self.longest = self.queue().max(self.longest * libm::exp(-fades));
        // What came in less time than it was sent in had waited somewhere.
        let interval = sample.receive_interval.max(sample.send_interval).as_secs_f64();
        if sample.sent_packets > 0 && interval > 0.0 {
            let share = sample.arrived_share();
            self.delivered = share * sample.sent_bytes as f64 / interval;
            self.lossy = share < 1.0;
            self.peak = self.delivered.max(self.peak * libm::exp(-interval / PEAK_MEMORY));
        }
    }

    /// What two samples in a row showed: one may be of a late host.
    const fn queue(&self) -> f64 {
        self.queues[0].min(self.queues[1])
    }

    /// By how much the rate may grow in a round. `is_clear`: no queue has been seen for long.
    fn growth(&self, rate: f64, is_clear: bool) -> f64 {
        let some = SOME.bps() as f64 / 8.0;
        if is_clear {
            let gain = CLEAR_OF_TARGET * TARGET.1 / self.round;
            return (gain.clamp(CLEAR_GROWTH.0, CLEAR_GROWTH.1) * rate).max(CLEAR_OF_SOME * some);
        }
        let shown = rate.max(self.peak).max(some);
        let most = GROWTH_OF_TARGET * self.target() / self.round * shown;
        (GROWTH * rate).max(GROWTH_OF_PEAK * shown).min(most)
    }

    /// Queue above which it gives way, in seconds.
    fn target(&self) -> f64 {
        (TARGET_OF_LONGEST * self.longest).clamp(TARGET.0, TARGET.1)
    }
}

impl Background {
    /// Starts at 1 Mbit/s.
    pub const fn new(now: Timestamp) -> Self {
        Self {
            paths: Paths::new(),
            rate: INITIAL.bps() as f64 / 8.0,
            startup: true,
            moved: now,
            fell: now,
            quiet_from: now,
            quiet: false,
            heard: None,
            ceiling: Rate::MAX,
        }
    }

    /// The whole session follows the path whose queue is the longest for its target.
    fn decide(&mut self, now: Timestamp) {
        let excess = |path: &Path| path.queue() / path.target();
        let worst = self.paths.by_id.iter().max_by(|a, b| excess(a.1).total_cmp(&excess(b.1)));
        let Some((id, path)) = worst else { return };
        self.paths.limiting = Some(*id);
        let (path, queue, target) = (*path, path.queue(), path.target());
        let rounds = (now.since(self.moved).as_secs_f64() / path.round).min(1.0);
        self.moved = now;
        if queue > target {
            self.startup = false;
        }
        let initial = INITIAL.bps() as f64 / 8.0;
        if queue > target || queue > 0.5 * target && path.lossy {
            if path.poll_sent >= self.fell {
                let empties = (queue - 0.5 * target) / path.round;
                let fall = if path.lossy { FALL.1 } else { empties.clamp(FALL.0, FALL.1) };
                self.rate *= 1.0 - fall;
                self.fell = now;
            }
        } else if self.rate < 2.0 * path.delivered.max(initial) && !self.is_doubtful() {
            let growth = path.growth(self.rate, self.is_clear(now, &path));
            self.rate += growth * rounds * (1.0 - queue / target);
        }
        self.rate = self.rate.max(RATE_MIN.bps() as f64 / 8.0);
    }

    /// Whether somebody's last sample showed a queue: it will be believed with the next one.
    fn is_doubtful(&self) -> bool {
        self.paths.values().any(|path| path.queues[0] > path.target())
    }

    /// Whether no queue has been seen for so long that far more may be free.
    fn is_clear(&self, now: Timestamp, path: &Path) -> bool {
        let is_low = self.rate < LOW * path.peak;
        self.startup || now.since(self.fell) > if is_low { CLEAR.0 } else { CLEAR.1 }
    }

    fn is_quiet(&self, now: Timestamp) -> bool {
        let since = now.since(self.quiet_from);
        let time = Duration::from_secs_f64(2.0 * self.longest_rtt() + 0.01);
        since >= QUIET_EVERY && since < QUIET_EVERY + time
    }

    /// How long nothing may be heard. Of the rounds only the limiting receiver's counts: in a large group the others answer
    /// seldom.
    fn patience(&self) -> Duration {
        let round = self.paths.followed().map_or(0.0, |path| path.round);
        Duration::from_secs_f64(SILENT_ROUNDS * round.max(self.longest_rtt())).max(SILENT_MIN)
    }

    fn longest_rtt(&self) -> f64 {
        self.paths.values().map(|path| path.rtt).fold(0.0, f64::max)
    }
}

impl RateController for Background {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        self.heard = Some(now);
        let path = self.paths.entry(sample.receiver, || Path {
            rtt: 0.0,
            round: 0.0,
            peak: 0.0,
            shortest: [f64::INFINITY; 2],
            epoch: now,
            queues: [0.0; 2],
            longest: 0.0,
            lossy: false,
            delivered: 0.0,
            poll_sent: now,
            heard: now,
        });
        path.heard = now;
        path.on_sample(now, sample);
        if path.delivered > 0.0 && !self.is_quiet(now) {
            self.decide(now);
        }
    }

    fn on_tick(&mut self, now: Timestamp, _bytes_sent: u64) {
        if now.since(*self.heard.get_or_insert(now)) > self.patience() {
            self.heard = Some(now);
            self.rate *= 0.5;
        }
        self.moved = if self.is_quiet(now) { now } else { self.moved };
        if now.since(self.quiet_from) >= QUIET_EVERY && !self.is_quiet(now) {
            self.quiet_from = now;
        }
        self.quiet = self.is_quiet(now);
    }

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.paths.remove(receiver);
    }

    fn rate(&self) -> Rate {
        let share = if self.quiet { QUIET_SHARE } else { 1.0 };
        let rate = Rate::from_bps((self.rate * share * 8.0) as u64);
        rate.max(RATE_MIN).min(self.ceiling)
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.ceiling = ceiling;
    }

    fn summary(&self) -> RateSummary {
        let path = self.paths.followed();
        RateSummary {
            phase: if self.startup { RatePhase::Startup } else { RatePhase::Compete },
            rate: self.rate(),
            bottleneck: None,
            random_loss: 0.0,
            queue_delay: path.map_or(Duration::ZERO, |p| Duration::from_secs_f64(p.queue())),
            queue_borne: Duration::ZERO,
            limiting: self.paths.limiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Background;
    use crate::ids::ReceiverId;
    use crate::rate::{RateController, RateSample};
    use crate::time::{Duration, Timestamp};
    use core::ops::Range;

    const ROUND: Duration = Duration::from_millis(20);

    /// Rounds of 20 ms in which all that is sent arrives, with this queue in the one-way delay and this in the
    /// round trip.
    fn rounds(controller: &mut Background, from: u64, count: u64, one_way_ms: u64, rtt_ms: u64) {
        came_in(ROUND, controller, from..from + count, one_way_ms, rtt_ms);
    }

    /// The same, where a round's datagrams came in this time.
    fn came_in(
        receive_interval: Duration,
        controller: &mut Background,
        rounds: Range<u64>,
        one_way_ms: u64,
        rtt_ms: u64,
    ) {
        for n in rounds {
            let now = Timestamp::ZERO + ROUND * n as u32;
            let bytes = controller.rate().bytes_in(ROUND);
            controller.on_tick(now, bytes);
            controller.on_sample(
                now,
                &RateSample {
                    receiver: ReceiverId(1),
                    sent_packets: bytes / 1472 + 1,
                    sent_bytes: bytes,
                    send_interval: ROUND,
                    received_packets: bytes / 1472 + 1,
                    receive_interval,
                    poll_sent: now,
                    bytes_since: 0,
                    rtt: ROUND + Duration::from_millis(rtt_ms),
                    queue_delay: Duration::from_millis(one_way_ms),
                    host_drops: 0,
                    app_limited: false,
                },
            );
        }
    }

    #[test]
    fn it_fills_an_empty_path_and_gives_way_to_a_queue() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 80, 0, 0);
        let free = controller.rate();
        assert!(free.bps() > 20_000_000, "{free}");
        rounds(&mut controller, 80, 50, 10, 10);
        assert!(controller.rate().bps() < 500_000, "{}", controller.rate());
    }

    #[test]
    fn a_queue_that_has_become_the_least_one_way_delay_is_seen_in_the_round_trip() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 80, 0, 0);
        rounds(&mut controller, 80, 50, 0, 10);
        assert!(controller.rate().bps() < 500_000, "{}", controller.rate());
    }

    #[test]
    fn one_late_answer_does_not_make_it_fall() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 80, 0, 0);
        let before = controller.rate();
        for n in 0..50 {
            rounds(&mut controller, 80 + 4 * n, 1, 5, 5);
            rounds(&mut controller, 81 + 4 * n, 3, 0, 0);
        }
        assert!(controller.rate() > before, "{} of {before}", controller.rate());
    }

    #[test]
    fn what_came_at_once_had_waited_and_shows_no_faster_path() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 80, 0, 0);
        rounds(&mut controller, 80, 1, 12, 0);
        came_in(Duration::from_micros(100), &mut controller, 81..82, 10, 0);
        rounds(&mut controller, 82, 3, 0, 0);
        for n in 85..100 {
            let before = controller.rate().bps();
            rounds(&mut controller, n, 1, 0, 0);
            let rise = controller.rate().bps().saturating_sub(before);
            assert!(rise <= before.max(10_000_000) / 12, "{rise} after {before}");
        }
    }

    #[test]
    fn it_rises_again_though_a_stalled_host_tells_one_time_of_arrival() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 80, 0, 0);
        came_in(Duration::from_millis(26), &mut controller, 80..130, 300, 0);
        came_in(Duration::ZERO, &mut controller, 130..630, 0, 0);
        assert!(controller.rate().bps() > 20_000_000, "{}", controller.rate());
    }

    #[test]
    fn who_sees_only_by_how_much_a_queue_varies_gives_way() {
        let mut controller = Background::new(Timestamp::ZERO);
        for n in 0..200 {
            rounds(&mut controller, 8 * n, 4, 0, 0);
            rounds(&mut controller, 8 * n + 4, 4, 1, 1);
        }
        assert!(controller.rate().bps() < 2_000_000, "{}", controller.rate());
    }

    #[test]
    fn the_time_before_the_first_poll_is_no_silence() {
        let mut controller = Background::new(Timestamp::ZERO);
        let begun = controller.rate();
        controller.on_tick(Timestamp::ZERO + Duration::from_secs(20), 0);
        assert_eq!(controller.rate(), begun);
    }
}
