//! `tfmcc`: a share like one TCP's, after RFC 4654, computed at the sender from the reports.
//!
//! 1. Each receiver has a loss event rate (the weighted mean of the last eight loss intervals, RFC 5348
//!    section 5.4) and a round trip; TCP's throughput equation makes a rate of them.
//! 2. The session sends at the least of these. That receiver is the current limiting one (CLR) and answers every
//!    poll.
//! 3. Before the first loss the rate is twice the least that arrives (slow start). The first loss interval is the one
//!    that stands for half of what arrived then.
//! 4. A rise is held to one datagram per round trip in each round trip; a fall is immediate. Silence halves.
//!
//! Deliberately absent: any difference between chance and congestion. Every loss counts, as with TCP.

use super::paths::{Heard, Paths};
use super::{RateController, RatePhase, RateSample, RateSummary};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

/// Before anything is known.
const INITIAL: Rate = Rate::from_mbps(1);
const RATE_MIN: Rate = Rate::from_bps(128_000);
/// Bytes of a full datagram.
const PACKET: f64 = 1472.0;
/// Weights of the loss intervals, the newest first (RFC 5348 section 5.4).
const WEIGHTS: [f64; 8] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];
/// TCP today is CUBIC, which takes more than the equation's Reno.
const CUBIC: f64 = 1.4;
/// Silence of so many round trips, and at least this long, halves the rate.
const SILENT_RTTS: f64 = 10.0;
const SILENT_MIN: Duration = Duration::from_millis(500);

/// Fair to TCP.
#[derive(Debug)]
pub struct Tfmcc {
    paths: Paths<Path>,
    /// Bytes per second.
    rate: f64,
    slow_start: bool,
    raised: Timestamp,
    heard: Timestamp,
    ceiling: Rate,
}

#[derive(Debug)]
struct Path {
    rtt: f64,
    /// Loss intervals in datagrams, the newest first; the first is open.
    intervals: [f64; 9],
    /// How many are known, the open one included; 0: no loss yet.
    known: usize,
    event_until: Timestamp,
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
    fn on_sample(&mut self, sample: &RateSample) {
        let rtt = sample.rtt.as_secs_f64().max(1e-4);
        self.rtt += if self.rtt > 0.0 { 0.1 * (rtt - self.rtt) } else { rtt };
        let interval = sample.receive_interval.as_secs_f64();
        if sample.sent_packets == 0 || interval <= 0.0 {
            return;
        }
        let share = (sample.received_packets as f64 / sample.sent_packets as f64).min(1.0);
        self.delivered = share * sample.sent_bytes as f64 / interval;
        self.intervals[0] += sample.sent_packets as f64;
        // Losses within a round trip are one event.
        if share < 1.0 && sample.poll_sent >= self.event_until {
            self.event_until = sample.poll_sent + Duration::from_secs_f64(self.rtt);
            if self.known == 0 {
                self.intervals[0] = interval_for(0.5 * self.delivered, self.rtt);
                self.known = 1;
            }
            self.intervals.rotate_right(1);
            self.intervals[0] = 0.0;
            self.known = (self.known + 1).min(self.intervals.len());
        }
    }

    /// Bytes per second that TCP would get; infinite before the first loss.
    fn fair(&self) -> f64 {
        if self.known < 2 {
            return f64::INFINITY;
        }
        let mean = |intervals: &[f64]| {
            let weighed = intervals.iter().zip(WEIGHTS);
            let (sum, weight) = weighed
                .fold((0.0, 0.0), |(s, w), (interval, weight)| (s + interval * weight, w + weight));
            sum / weight
        };
        // The open interval counts only if it makes the mean longer.
        let with_open = mean(&self.intervals[..(self.known).min(8)]);
        let length = with_open.max(mean(&self.intervals[1..self.known])).max(1.0);
        CUBIC * throughput(1.0 / length, self.rtt)
    }
}

/// TCP's throughput, bytes per second, with loss event rate `p` (RFC 5348 section 3.1).
fn throughput(p: f64, rtt: f64) -> f64 {
    let root = libm::sqrt(2.0 * p / 3.0);
    let timeouts = 12.0 * libm::sqrt(3.0 * p / 8.0) * p * (1.0 + 32.0 * p * p);
    PACKET / (rtt * (root + timeouts))
}

/// The loss interval at which TCP gets `rate`.
fn interval_for(rate: f64, rtt: f64) -> f64 {
    let (mut low, mut high) = (1.0_f64, 1e9_f64);
    for _ in 0..60 {
        let mid = libm::sqrt(low * high);
        if throughput(1.0 / mid, rtt) < rate { low = mid } else { high = mid }
    }
    high
}

impl Tfmcc {
    /// Starts at 1 Mbit/s.
    pub const fn new(now: Timestamp) -> Self {
        Self {
            paths: Paths::new(),
            rate: INITIAL.bps() as f64 / 8.0,
            slow_start: true,
            raised: now,
            heard: now,
            ceiling: Rate::MAX,
        }
    }

    fn decide(&mut self, now: Timestamp) {
        let least = self.paths.by_id.iter().min_by(|a, b| a.1.fair().total_cmp(&b.1.fair()));
        let Some((_, path)) = least else { return };
        let (fair, rtt) = (path.fair(), path.rtt);
        if self.slow_start && fair.is_infinite() {
            let slowest =
                self.paths.by_id.iter().min_by(|a, b| a.1.delivered.total_cmp(&b.1.delivered));
            let Some((id, path)) = slowest else { return };
            self.paths.limiting = Some(*id);
            self.rate = self.rate.max((2.0 * path.delivered).min(2.0 * self.rate));
            return;
        }
        self.paths.limiting = least.map(|(id, _)| *id);
        self.slow_start = false;
        let passed = now.since(self.raised).as_secs_f64();
        self.raised = now;
        let most = self.rate + PACKET / rtt * (passed / rtt).min(1.0);
        self.rate = fair.min(most);
    }
}

impl RateController for Tfmcc {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        self.heard = now;
        let path = self.paths.entry(sample.receiver, || Path {
            rtt: 0.0,
            intervals: [0.0; 9],
            known: 0,
            event_until: Timestamp::ZERO,
            delivered: 0.0,
            heard: now,
        });
        path.heard = now;
        path.on_sample(sample);
        if path.delivered > 0.0 {
            self.decide(now);
        }
    }

    fn on_tick(&mut self, now: Timestamp, _bytes_sent: u64) {
        let rtt = self.paths.values().map(|path| path.rtt).fold(0.0, f64::max);
        let patience = Duration::from_secs_f64(SILENT_RTTS * rtt).max(SILENT_MIN);
        if now.since(self.heard) > patience {
            self.heard = now;
            self.rate *= 0.5;
        }
    }

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.paths.remove(receiver);
    }

    fn rate(&self) -> Rate {
        Rate::from_bps((self.rate * 8.0) as u64).max(RATE_MIN).min(self.ceiling)
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
        RateSummary {
            phase: if self.slow_start { RatePhase::Startup } else { RatePhase::Compete },
            rate: self.rate(),
            bottleneck: None,
            random_loss: 0.0,
            queue_delay: Duration::ZERO,
            limiting: self.paths.limiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PACKET, interval_for, throughput};

    #[test]
    fn the_equation_is_rfc_5348s() {
        // p = 1 %, 100 ms: 1.2 / (R sqrt(p)) less the share of time-outs, about 11.2 datagrams a round trip.
        let datagrams = throughput(0.01, 0.1) * 0.1 / PACKET;
        assert!((datagrams - 11.23).abs() < 0.05, "{datagrams}");
        let interval = interval_for(throughput(0.003, 0.05), 0.05);
        assert!((interval * 0.003 - 1.0).abs() < 1e-6, "{interval}");
    }
}
