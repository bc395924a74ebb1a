//! `tfmcc`: a share like one TCP's, after RFC 4654, computed at the sender from the reports
//! (`docs/protocol.md#RATE-1`, `docs/protocol.md#RATE-2`).
//!
//! 1. Each receiver has a loss event rate (the weighted mean of the last eight loss intervals, RFC 5348
//!    section 5.4, with the discounting of section 5.5) and a round trip; TCP's throughput equation makes a rate of
//!    them: Reno's, or CUBIC's where that is more (RFC 9438 section 5.1), as for TCP itself.
//! 2. The session sends at the least of these. That receiver is the current limiting one (CLR) and answers every
//!    poll.
//! 3. Before the first loss the rate is twice the least that arrives (slow start). The first loss interval is the one
//!    that stands for half of what arrived then. Until eight intervals have followed, what a long one took off the
//!    weight of older ones stays off: where the start met an overflow early, it must not be remembered for longer.
//! 4. A sample that is longer than a round trip may hold several events: as many as its losses are more than what is sent
//!    in a round trip, but never more than one in sixteen datagrams, at which TCP is down to its least window.
//! 5. A rise is held to one datagram per round trip, or a tenth, in each round trip, and to twice what lately arrived at the
//!    limiting receiver (RFC 5348 section 4.3); a fall is immediate. Silence halves. When nobody is left who has lost
//!    anything, the limiting receiver is the one that gets the least.
//! 6. Datagrams leave by threes, as TCP's do: what leaves one by one finds room where those do not.
//!
//! Deliberately absent: any difference between chance and congestion. Every loss counts, as with TCP, and so does what a
//! host had no room for. Queues do not, so a slow store is known by what it loses (`docs/protocol.md#FB-7`).

use super::paths::{Heard, Paths};
use super::{RATE_MIN, RateController, RatePhase, RateSample, RateSummary};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

/// Before anything is known.
const INITIAL: Rate = Rate::from_mbps(1);
/// Bytes of a full datagram.
const PACKET: f64 = 1472.0;
/// Weights of the loss intervals, the newest first (RFC 5348 section 5.4).
const WEIGHTS: [f64; 8] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];
/// CUBIC's datagrams on their way, with (round trip / loss event rate)^0.75 as the unit: the RFC's 1.05 is for losses
/// that come evenly; those of a full queue do not.
const CUBIC: f64 = 1.8;
/// Datagrams between two loss events of one sample, at least: at fewer the equation gives less than two a round trip,
/// which is the least that TCP sends.
const EVENT_PACKETS_MIN: f64 = 16.0;
/// TCP sends two or three for each acknowledgment (RFC 5681 section 4.2).
const BURST_PACKETS: u32 = 3;
/// Growth of a round trip at most, if that is more than a datagram.
const GROWTH: f64 = 0.1;
/// Older loss intervals never weigh less than this share when the open one is long.
const DISCOUNT_MIN: f64 = 0.5;
/// While fewer intervals are known than this, the open one included, that discount stays. Later it does not: where losses
/// come by chance, each lucky interval would make the mean longer than it is.
const SETTLED: usize = 9;
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
    /// Something was heard last, or the first poll left: before it nobody could answer.
    heard: Option<Timestamp>,
    ceiling: Rate,
}

#[derive(Debug)]
struct Path {
    rtt: f64,
    /// The shortest.
    least_rtt: f64,
    /// Loss intervals in datagrams, the newest first; the first is open.
    intervals: [f64; 9],
    /// What discounts have left of the weight of each.
    left: [f64; 9],
    /// How many are known, the open one included; 0: no loss yet.
    known: usize,
    event_until: Timestamp,
    /// Bytes per second that arrived, of the last sample, and of it and the two before the most: one may be of a late host.
    delivered: f64,
    arrives: [f64; 3],
    /// It is on trial, and has not been heard since.
    aside: bool,
    heard: Timestamp,
}

impl Heard for Path {
    fn heard(&self) -> Timestamp {
        self.heard
    }
}

impl Path {
    fn on_sample(&mut self, sample: &RateSample) {
        let rtt = sample.rtt.as_secs_f64().max(1e-4);
        self.rtt += if self.rtt > 0.0 { 0.1 * (rtt - self.rtt) } else { rtt };
        self.least_rtt = self.least_rtt.min(rtt);
        if sample.sent_packets == 0 {
            return;
        }
        let lost = lost(sample);
        let share = 1.0 - lost / sample.sent_packets as f64;
        // What came in less time than it was sent in had waited somewhere.
        let interval = sample.receive_interval.max(sample.send_interval).as_secs_f64().max(1e-6);
        self.delivered = share * sample.sent_bytes as f64 / interval;
        self.arrives.rotate_right(1);
        self.arrives[0] = self.delivered;
        self.intervals[0] += sample.sent_packets as f64;
        // Losses within a round trip are one event. When in a sample they began is not known: in its middle, as a mean.
        // So those that go on over a sample's end are not counted twice.
        let opened = sample.opened();
        if lost > 0.0 && opened >= self.event_until {
            self.event_until =
                opened + sample.send_interval / 2 + Duration::from_secs_f64(self.rtt);
            let mut events = events(sample, self.rtt);
            if self.known == 0 {
                self.intervals[0] = interval_for(0.5 * self.delivered, self.rtt);
                (self.known, events) = (1, 1);
            } else if self.known < SETTLED {
                let discount = self.discount();
                self.left[1..].iter_mut().for_each(|left| *left *= discount);
            }
            let between = sample.sent_packets as f64 / f64::from(events);
            self.intervals[0] -= between * f64::from(events - 1);
            for _ in 0..events {
                self.intervals.rotate_right(1);
                self.intervals[0] = between;
                self.left.rotate_right(1);
                self.left[0] = 1.0;
                self.known = (self.known + 1).min(self.intervals.len());
            }
            self.intervals[0] = 0.0;
        }
    }

    /// Bytes per second that TCP would get; infinite before the first loss.
    fn fair(&self) -> f64 {
        if self.known < 2 {
            return f64::INFINITY;
        }
        // The open interval counts only if it makes the mean longer, and the more the longer it is.
        let newest = &self.intervals[..self.known.min(WEIGHTS.len())];
        let length = mean(newest, &self.left, self.discount()).max(self.closed()).max(1.0);
        throughput(1.0 / length, self.rtt)
    }

    /// Bytes per second that have arrived lately.
    fn arrives(&self) -> f64 {
        self.arrives.iter().copied().fold(0.0, f64::max)
    }

    /// The mean of the closed intervals.
    fn closed(&self) -> f64 {
        mean(&self.intervals[1..self.known], &self.left[1..], 1.0)
    }

    /// What the open interval leaves of the weight of all others.
    fn discount(&self) -> f64 {
        (2.0 * self.closed() / self.intervals[0].max(1.0)).clamp(DISCOUNT_MIN, 1.0)
    }
}

/// Datagrams that did not arrive, or for which the receiver had no room: what its socket dropped is of both kinds.
fn lost(sample: &RateSample) -> f64 {
    sample.lost_packets().max(sample.host_drops).min(sample.sent_packets) as f64
}

/// Loss events of a sample with losses, at least one.
fn events(sample: &RateSample, rtt: f64) -> u32 {
    let sent = sample.sent_packets as f64;
    let lost = lost(sample);
    let sent_per_round = sent * (rtt / sample.send_interval.as_secs_f64()).min(1.0);
    let most = (sent / EVENT_PACKETS_MIN).max(1.0);
    libm::round((lost / sent_per_round).clamp(1.0, most)) as u32
}

/// The weighed mean of loss intervals, of whose weights this is left; all but the newest weigh less by `discount`.
fn mean(intervals: &[f64], left: &[f64], discount: f64) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (n, ((interval, weight), left)) in intervals.iter().zip(WEIGHTS).zip(left).enumerate() {
        let weight = left * if n == 0 { weight } else { weight * discount };
        sum += interval * weight;
        weights += weight;
    }
    sum / weights
}

/// TCP's throughput, bytes per second, with loss event rate `p` (RFC 5348 section 3.1, and CUBIC's).
fn throughput(p: f64, rtt: f64) -> f64 {
    let root = libm::sqrt(2.0 * p / 3.0);
    let timeouts = 12.0 * libm::sqrt(3.0 * p / 8.0) * p * (1.0 + 32.0 * p * p);
    let reno = 1.0 / (root + timeouts);
    let cubic = CUBIC * libm::pow(rtt / p, 0.75);
    reno.max(cubic) * PACKET / rtt
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
            heard: None,
            ceiling: Rate::MAX,
        }
    }

    fn decide(&mut self, now: Timestamp) {
        let least = |of: fn(&Path) -> f64| {
            let followed = self.paths.by_id.iter().filter(|(_, path)| !path.aside);
            followed.min_by(|a, b| of(a.1).total_cmp(&of(b.1)))
        };
        let lossy = least(Path::fair).filter(|(_, path)| path.fair().is_finite());
        let Some((id, path)) = lossy.or_else(|| least(|path| path.delivered)) else { return };
        let (id, fair, rtt) = (*id, path.fair(), path.rtt);
        let (delivered, arrives) = (path.delivered, path.arrives());
        self.paths.limiting = Some(id);
        if self.slow_start && fair.is_infinite() {
            self.rate = self.rate.max((2.0 * delivered).min(2.0 * self.rate));
            return;
        }
        self.slow_start = false;
        let passed = now.since(self.raised).as_secs_f64();
        self.raised = now;
        let step = (PACKET / rtt).max(GROWTH * self.rate);
        let most = self.rate + step * (passed / rtt).min(1.0);
        self.rate = fair.min(most.min(2.0 * arrives).max(self.rate));
    }
}

impl RateController for Tfmcc {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        self.heard = Some(now);
        let path = self.paths.entry(sample.receiver, || Path {
            rtt: 0.0,
            least_rtt: f64::INFINITY,
            intervals: [0.0; 9],
            left: [1.0; 9],
            known: 0,
            event_until: Timestamp::ZERO,
            delivered: 0.0,
            arrives: [0.0; 3],
            aside: false,
            heard: now,
        });
        path.heard = now;
        path.aside = false;
        path.on_sample(sample);
        if path.delivered > 0.0 {
            self.decide(now);
        }
    }

    fn on_tick(&mut self, now: Timestamp, _bytes_sent: u64) {
        let rtt = self.paths.values().map(|path| path.rtt).fold(0.0, f64::max);
        let patience = Duration::from_secs_f64(SILENT_RTTS * rtt).max(SILENT_MIN);
        if now.since(*self.heard.get_or_insert(now)) > patience {
            self.heard = Some(now);
            // Nothing doubles from zero.
            self.rate = (0.5 * self.rate).max(RATE_MIN.bps() as f64 / 8.0);
        }
    }

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.paths.remove(receiver);
    }

    fn on_trial(&mut self, receiver: ReceiverId) {
        if let Some(path) = self.paths.by_id.get_mut(&receiver) {
            path.aside = true;
        }
        self.paths.limiting = self.paths.limiting.filter(|limiting| *limiting != receiver);
    }

    fn rate(&self) -> Rate {
        Rate::from_bps((self.rate * 8.0) as u64).max(RATE_MIN).min(self.ceiling)
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.ceiling = ceiling;
    }

    fn burst_packets_min(&self) -> u32 {
        BURST_PACKETS
    }

    fn summary(&self) -> RateSummary {
        let path = self.paths.followed();
        let queue = path.map_or(0.0, |path| path.rtt - path.least_rtt).max(0.0);
        RateSummary {
            phase: if self.slow_start { RatePhase::Startup } else { RatePhase::Compete },
            rate: self.rate(),
            bottleneck: None,
            random_loss: 0.0,
            queue_delay: Duration::from_secs_f64(queue),
            queue_borne: Duration::ZERO,
            limiting: self.paths.limiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PACKET, Path, SETTLED, Tfmcc, interval_for, mean, throughput};
    use crate::ids::ReceiverId;
    use crate::rate::{RateController, RateSample};
    use crate::time::{Duration, Timestamp};

    const ROUND: Duration = Duration::from_millis(20);

    /// Rounds of 100 datagrams, one sample each, in which these many were lost.
    fn path(losses: &[u64]) -> Path {
        let mut path = Path {
            rtt: 0.0,
            least_rtt: f64::INFINITY,
            intervals: [0.0; 9],
            left: [1.0; 9],
            known: 0,
            event_until: Timestamp::ZERO,
            delivered: 0.0,
            arrives: [0.0; 3],
            aside: false,
            heard: Timestamp::ZERO,
        };
        for (n, lost) in (1..).zip(losses) {
            path.on_sample(&sample(n, *lost));
        }
        path
    }

    fn sample(round: u32, lost: u64) -> RateSample {
        RateSample {
            receiver: ReceiverId(1),
            sent_packets: 100,
            sent_bytes: 147_200,
            send_interval: ROUND,
            received_packets: 100 - lost,
            receive_interval: ROUND,
            poll_sent: Timestamp::ZERO + ROUND * round,
            bytes_since: 0,
            rtt: ROUND,
            queue_delay: Duration::ZERO,
            host_drops: 0,
            app_limited: false,
        }
    }

    #[test]
    fn the_equation_is_rfc_5348s() {
        // p = 1 %, 50 ms: 1.2 / (R sqrt(p)) less the share of time-outs, about 11.2 datagrams a round trip.
        let datagrams = throughput(0.01, 0.05) * 0.05 / PACKET;
        assert!((datagrams - 11.23).abs() < 0.05, "{datagrams}");
        let interval = interval_for(throughput(0.003, 0.05), 0.05);
        assert!((interval * 0.003 - 1.0).abs() < 1e-6, "{interval}");
    }

    #[test]
    fn few_losses_on_a_long_way_are_worth_what_they_are_to_cubic() {
        // Reno: 1.22 / sqrt(p) = 387 datagrams a round trip.
        let datagrams = throughput(1e-5, 0.1) * 0.1 / PACKET;
        assert!((1_700.0..1_900.0).contains(&datagrams), "{datagrams}");
    }

    #[test]
    fn losses_on_both_sides_of_a_samples_end_are_one_event() {
        let once = path(&[0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(path(&[0, 0, 0, 3, 2, 0, 0]).known, once.known);
        assert_eq!(path(&[0, 0, 0, 3, 0, 2, 0]).known, once.known + 1);
    }

    #[test]
    fn losses_that_last_for_round_trips_are_several_events() {
        // Samples of a hundred datagrams in four round trips.
        let mut one = path(&[0, 1, 0, 0, 0, 0]);
        let mut sample = sample(10, 10);
        sample.rtt = ROUND / 4;
        one.rtt = sample.rtt.as_secs_f64();
        let mut many = path(&[0, 1, 0, 0, 0, 0]);
        many.rtt = one.rtt;
        one.on_sample(&sample);
        sample.received_packets = 50;
        many.on_sample(&sample);
        assert_eq!((one.known, many.known), (3, 4), "10 and 50 of 25 in each");
        assert!(many.intervals.iter().all(|interval| *interval >= 0.0), "{:?}", many.intervals);
        assert!(many.fair() < one.fair());
    }

    #[test]
    fn a_long_time_without_loss_makes_older_losses_count_less() {
        let intervals = [10_000.0, 100.0, 100.0, 100.0];
        let left = [1.0; 4];
        assert!(mean(&intervals, &left, 0.5) > 1.5 * mean(&intervals, &left, 1.0));
    }

    #[test]
    fn an_early_overflow_is_not_remembered_when_the_next_one_ends_a_long_time_without_loss() {
        let mut path = path(&[0, 5, 0, 0, 3]);
        (0..60).for_each(|n| path.on_sample(&sample(n + 6, 0)));
        let before = path.fair();
        path.on_sample(&sample(66, 5));
        assert!(path.known < SETTLED, "{}", path.known);
        assert!(path.fair() > 0.9 * before, "{} after {before}", path.fair());
    }

    /// Rounds in which these receivers get so many bytes, and lose as many datagrams of a hundred; the rate then.
    fn rounds(controller: &mut Tfmcc, from: u32, count: u32, all: &[(u32, u64, u64)]) -> f64 {
        for n in from..from + count {
            let now = Timestamp::ZERO + ROUND * n;
            controller.on_tick(now, 0);
            for &(id, sent_bytes, lost) in all {
                let receiver = ReceiverId(id);
                controller.on_sample(now, &RateSample { receiver, sent_bytes, ..sample(n, lost) });
            }
        }
        controller.rate().bps() as f64
    }

    /// What a hundred datagrams of each round make.
    const FULL: u64 = 147_200;

    #[test]
    fn when_nobody_is_left_who_lost_it_sends_at_most_twice_what_arrives() {
        let mut controller = Tfmcc::new(Timestamp::ZERO);
        rounds(&mut controller, 1, 20, &[(1, FULL, 0), (2, FULL, 0)]);
        let held = rounds(&mut controller, 21, 20, &[(1, FULL, 2), (2, FULL, 0)]);
        controller.on_receiver_gone(ReceiverId(1));
        let arrives = (FULL * 8) as f64 / ROUND.as_secs_f64();
        assert!(held < arrives, "{held}");
        let rate = rounds(&mut controller, 41, 200, &[(2, FULL, 0)]);
        assert!((1.5 * arrives..=2.0 * arrives).contains(&rate), "{rate} of {arrives}");
        // A feed with little in it.
        let idle = rounds(&mut controller, 241, 200, &[(2, FULL / 50, 0)]);
        assert_eq!(idle, rate);
        assert_eq!(controller.limiting(), Some(ReceiverId(2)));
    }

    #[test]
    fn a_feed_that_pauses_does_not_raise_the_rate() {
        let mut controller = Tfmcc::new(Timestamp::ZERO);
        rounds(&mut controller, 1, 20, &[(1, FULL, 0)]);
        rounds(&mut controller, 21, 20, &[(1, FULL, 2)]);
        let before = rounds(&mut controller, 41, 3, &[(1, FULL / 50, 0)]);
        let after = rounds(&mut controller, 44, 1000, &[(1, FULL / 50, 0)]);
        assert!(after <= before, "{after} {before}");
    }

    #[test]
    fn what_was_lost_before_a_trial_counts_after_it() {
        let mut controller = Tfmcc::new(Timestamp::ZERO);
        rounds(&mut controller, 1, 20, &[(1, FULL, 0), (2, FULL, 0)]);
        let before = rounds(&mut controller, 21, 20, &[(1, FULL, 2), (2, FULL, 0)]);
        controller.on_trial(ReceiverId(1));
        assert_eq!(controller.limiting(), None);
        let trial = rounds(&mut controller, 41, 40, &[(2, FULL, 0)]);
        assert!(trial > 2.0 * before, "{trial} of {before}");
        let after = rounds(&mut controller, 81, 1, &[(1, FULL, 0), (2, FULL, 0)]);
        assert!(after < 1.2 * before, "{after} of {before}");
        assert_eq!(controller.limiting(), Some(ReceiverId(1)));
    }

    #[test]
    fn a_sample_that_took_no_time_to_arrive_counts_too() {
        let mut path = path(&[0, 0, 5, 0]);
        let (known, open) = (path.known, path.intervals[0]);
        path.on_sample(&RateSample { receive_interval: Duration::ZERO, ..sample(5, 0) });
        assert_eq!(path.intervals[0], open + 100.0);
        path.on_sample(&RateSample { receive_interval: Duration::ZERO, ..sample(6, 5) });
        assert_eq!(path.known, known + 1);
        let sent = (FULL as f64) / ROUND.as_secs_f64();
        assert!(path.delivered <= sent, "{:?} of {sent}", path.delivered);
    }

    #[test]
    fn what_a_host_had_no_room_for_is_lost() {
        let mut full = path(&[0, 0, 5, 0]);
        let known = full.known;
        full.on_sample(&RateSample { host_drops: 5, ..sample(5, 0) });
        assert_eq!(full.known, known + 1);
        // Its socket's drops have not arrived either: they are not counted twice.
        let mut once = path(&[0; 4]);
        let mut twice = path(&[0; 4]);
        once.on_sample(&sample(5, 50));
        twice.on_sample(&RateSample { host_drops: 50, ..sample(5, 50) });
        assert_eq!(once.delivered, twice.delivered);
    }

    #[test]
    fn the_time_before_the_first_poll_is_no_silence() {
        let mut controller = Tfmcc::new(Timestamp::ZERO);
        let begun = controller.rate();
        let first = Timestamp::ZERO + Duration::from_secs(20);
        controller.on_tick(first, 0);
        assert_eq!(controller.rate(), begun);
        controller.on_tick(first + Duration::from_secs(1), 100_000);
        assert!(controller.rate() < begun, "nobody answered");
    }

    #[test]
    fn a_start_that_fell_silent_for_long_goes_on() {
        let mut controller = Tfmcc::new(Timestamp::ZERO);
        rounds(&mut controller, 1, 20, &[(1, FULL, 0)]);
        let silence = Duration::from_millis(750);
        for n in 0..1200 {
            controller.on_tick(Timestamp::ZERO + ROUND * 20 + silence * n, 0);
        }
        let after = 20 + 1200 * 38;
        let rate = rounds(&mut controller, after, 200, &[(1, FULL, 0)]);
        assert!(rate > 10e6, "{rate}");
    }
}
