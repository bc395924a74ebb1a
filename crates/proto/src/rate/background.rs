//! `background`: uses what others leave, by one-way delay (after LEDBAT, RFC 6817, and LEDBAT++).
//!
//! 1. The queue is the greater of two measures: how much longer a poll was on its way than the fastest lately, and how
//!    much longer the round trip is than the shortest of the last one to two minutes. Whoever keeps a queue up for
//!    a quarter of a minute does not become the path.
//! 2. Below the target the rate rises by at most a fiftieth (or one datagram per round trip) in each round trip, at
//!    the start by half. Above it, it falls in proportion to the excess, at most to half.
//! 3. Losses while a queue stands halve it, once in a round trip.
//! 4. Every ten seconds it is silent but for a little for two round trips, so that the path's own delay shows.
//!
//! Deliberately absent: fairness among several of its kind, and any lower bound but that of a stream that has to
//! learn.

use super::paths::{Heard, Paths};
use super::{RateController, RatePhase, RateSample, RateSummary};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

const INITIAL: Rate = Rate::from_mbps(1);
const RATE_MIN: Rate = Rate::from_bps(128_000);
const PACKET: f64 = 1472.0;
/// Queue above which it gives way, in seconds.
const TARGET: f64 = 0.002;
/// Growth of a round trip at the start.
const STARTUP_GAIN: f64 = 1.5;
/// Afterwards, or one datagram a round trip if that is more.
const GROWTH: f64 = 0.02;
/// The path's own delay is looked for this often.
const QUIET_EVERY: Duration = Duration::from_secs(10);
/// A shortest round trip is remembered for one to two of these.
const RTT_EPOCH: Duration = Duration::from_secs(60);

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
    heard: Timestamp,
    ceiling: Rate,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    rtt: f64,
    /// The shortest of this epoch and of the one before.
    shortest: [f64; 2],
    epoch: Timestamp,
    queue: f64,
    lossy: bool,
    delivered: f64,
    heard: Timestamp,
}

impl Heard for Path {
    fn heard(&self) -> Timestamp {
        self.heard
    }

    fn takes(&self) -> f64 {
        self.delivered
    }
}

impl Path {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        let rtt = sample.rtt.as_secs_f64().max(1e-4);
        self.rtt += if self.rtt > 0.0 { 0.25 * (rtt - self.rtt) } else { rtt };
        if now.since(self.epoch) > RTT_EPOCH {
            self.epoch = now;
            self.shortest = [rtt, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(rtt);
        let shortest = self.shortest[0].min(self.shortest[1]);
        self.queue = sample.queue_delay.as_secs_f64().max(rtt - shortest);
        let interval = sample.receive_interval.as_secs_f64();
        if sample.sent_packets > 0 && interval > 0.0 {
            let share = (sample.received_packets as f64 / sample.sent_packets as f64).min(1.0);
            self.delivered = share * sample.sent_bytes as f64 / interval;
            self.lossy = share < 1.0;
        }
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
            heard: now,
            ceiling: Rate::MAX,
        }
    }

    /// The whole session follows the path with the longest queue.
    fn decide(&mut self, now: Timestamp) {
        let worst = self.paths.by_id.iter().max_by(|a, b| a.1.queue.total_cmp(&b.1.queue));
        let Some((id, path)) = worst else { return };
        self.paths.limiting = Some(*id);
        let (queue, rtt) = (path.queue, path.rtt);
        let passed = now.since(self.moved).as_secs_f64();
        self.moved = now;
        let rounds = (passed / rtt).min(1.0);
        let may_fall = now.since(self.fell).as_secs_f64() >= rtt;
        if queue > TARGET {
            self.startup = false;
        }
        if queue > TARGET || queue > 0.5 * TARGET && path.lossy {
            if may_fall {
                let excess = if path.lossy { 0.5 } else { 0.15 * (queue / TARGET - 1.0) };
                self.rate *= 1.0 - excess.min(0.5);
                self.fell = now;
            }
        } else if self.startup {
            let grown = self.rate * libm::pow(STARTUP_GAIN, rounds);
            self.rate = grown.min(2.0 * path.delivered.max(INITIAL.bps() as f64 / 8.0));
        } else if self.rate < 2.0 * path.delivered {
            let step = (PACKET / rtt).max(GROWTH * self.rate);
            self.rate += step * rounds * (1.0 - queue / TARGET);
        }
        self.rate = self.rate.max(RATE_MIN.bps() as f64 / 8.0);
    }

    fn is_quiet(&self, now: Timestamp) -> bool {
        let rtt = self.paths.values().map(|path| path.rtt).fold(0.0, f64::max);
        let since = now.since(self.quiet_from);
        since >= QUIET_EVERY && since < QUIET_EVERY + Duration::from_secs_f64(2.0 * rtt + 0.01)
    }
}

impl RateController for Background {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        self.heard = now;
        let path = self.paths.entry(sample.receiver, || Path {
            rtt: 0.0,
            shortest: [f64::INFINITY; 2],
            epoch: now,
            queue: 0.0,
            lossy: false,
            delivered: 0.0,
            heard: now,
        });
        path.heard = now;
        path.on_sample(now, sample);
        if path.delivered > 0.0 && !self.is_quiet(now) {
            self.decide(now);
        }
    }

    fn on_tick(&mut self, now: Timestamp, _bytes_sent: u64) {
        if now.since(self.heard) > Duration::from_millis(500) {
            self.heard = now;
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
        let rate = if self.quiet { RATE_MIN } else { Rate::from_bps((self.rate * 8.0) as u64) };
        rate.max(RATE_MIN).min(self.ceiling)
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.ceiling = ceiling;
    }

    fn sustainable(&self, receiver: ReceiverId) -> Option<Rate> {
        self.paths.sustainable(receiver)
    }

    fn limiting(&self) -> Option<ReceiverId> {
        self.paths.limiting
    }

    fn summary(&self) -> RateSummary {
        let path = self.paths.followed();
        RateSummary {
            phase: if self.startup { RatePhase::Startup } else { RatePhase::Compete },
            rate: self.rate(),
            bottleneck: None,
            random_loss: 0.0,
            queue_delay: path.map_or(Duration::ZERO, |p| Duration::from_secs_f64(p.queue)),
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

    const ROUND: Duration = Duration::from_millis(20);

    /// Rounds of 20 ms in which all that is sent arrives, with this queue in the one-way delay and this in the
    /// round trip.
    fn rounds(controller: &mut Background, from: u64, count: u64, one_way_ms: u64, rtt_ms: u64) {
        for n in from..from + count {
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
                    receive_interval: ROUND,
                    poll_sent: now,
                    bytes_since: 0,
                    rtt: ROUND + Duration::from_millis(rtt_ms),
                    queue_delay: Duration::from_millis(one_way_ms),
                    host_drops: 0,
                    ce_marks: 0,
                    app_limited: false,
                },
            );
        }
    }

    #[test]
    fn it_fills_an_empty_path_and_gives_way_to_a_queue() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 12, 0, 0);
        let free = controller.rate();
        assert!(free.bps() > 20_000_000, "{free}");
        rounds(&mut controller, 12, 50, 10, 10);
        assert!(controller.rate().bps() < 500_000, "{}", controller.rate());
    }

    #[test]
    fn a_queue_that_has_become_the_least_one_way_delay_is_seen_in_the_round_trip() {
        let mut controller = Background::new(Timestamp::ZERO);
        rounds(&mut controller, 0, 12, 0, 0);
        rounds(&mut controller, 12, 50, 0, 10);
        assert!(controller.rate().bps() < 500_000, "{}", controller.rate());
    }
}
