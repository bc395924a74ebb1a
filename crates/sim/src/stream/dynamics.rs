//! What the matrix does not show: a rate that changes, a second session, TCP beside.

use super::{Answers, Noise, Outcome, ReceiverSetup, Report, SessionSetup, Setup, Words, run};
use crate::hiccups::Hiccups;
use crate::link::{FRAME_LEN, LinkConfig};
use crate::loss::Loss;
use crate::rng::Rng;
use downpour_proto::rate::{Auto, Background, RateController, Tfmcc};
use downpour_proto::{Duration, Rate, Timestamp};

/// TCP runs before a session begins beside it.
const WARM: Duration = Duration::from_secs(2);

/// The link of a run.
#[derive(Clone, Copy, Debug)]
pub struct Bed {
    /// Its rate, Mbit/s.
    pub mbps: u64,
    /// Its queue.
    pub queue_ms: u64,
    /// Round trip of everybody, without queue.
    pub rtt_us: u64,
    /// Of each session.
    pub receivers: usize,
    /// Random loss of the session's receivers.
    pub loss_pct: f64,
    /// Seed.
    pub seed: u64,
    /// Who decides the rate of the sessions.
    pub controller: Kind,
    /// Prints a line for each answer of the first session.
    pub trace: bool,
    /// How sessions hear one another.
    pub words: Words,
}

/// A session beside TCP flows.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// The flows' share of what they and the session got, all together.
    pub tcp_of_all: f64,
    /// Their share of what the link can carry.
    pub tcp: f64,
    /// How much of the link is used.
    pub used: f64,
}

/// What a session that joins does to the one that had the link. Shares are of what the link can carry.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    /// The least share that the first had in a second of the 20 s after.
    pub least: f64,
    /// Until the first has 40 % in a second again; none if it never had less, all 20 s if it does not come to it.
    pub back: Duration,
    /// Until the second has 40 %.
    pub second: Duration,
    /// How much of the link both use in those 20 s.
    pub used: f64,
    /// Which share of what both sent in the run the queue dropped.
    pub dropped: f64,
}

/// A controller that finds its rate by itself.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// [`Auto`].
    Auto,
    /// [`Tfmcc`].
    Tfmcc,
    /// [`Background`].
    Background,
}

impl Kind {
    fn build(self, now: Timestamp) -> Box<dyn RateController> {
        match self {
            Self::Auto => Box::new(Auto::new(now)),
            Self::Tfmcc => Box::new(Tfmcc::new(now)),
            Self::Background => Box::new(Background::new(now)),
        }
    }
}

impl Bed {
    fn session(&self, start: Duration, trace: bool) -> SessionSetup {
        let receiver = ReceiverSetup {
            rtt: Duration::from_micros(self.rtt_us),
            own: None,
            loss: if self.loss_pct > 0.0 {
                Loss::Random(self.loss_pct / 100.0)
            } else {
                Loss::None
            },
            drift_ppm: 50.0,
            step: None,
            noise: Noise {
                usual: Duration::from_micros(100),
                hiccup_share: 0.01,
                hiccup: Duration::from_millis(5),
            },
            hiccups: Hiccups::NONE,
        };
        SessionSetup {
            start,
            controller: self.controller.build(Timestamp::ZERO + start),
            receivers: vec![receiver; self.receivers],
            packets: u64::MAX,
            answers: Answers::default(),
            hiccups: Hiccups::NONE,
            fed_from: Duration::ZERO,
            trace,
        }
    }

    fn run(
        &self,
        starts: &[Duration],
        changes: &[(u64, u64)],
        cubics: usize,
        seconds: u64,
    ) -> Report {
        run(Setup {
            seed: self.seed,
            shared: LinkConfig::bottleneck(
                Rate::from_mbps(self.mbps),
                Duration::from_millis(self.queue_ms),
                Duration::ZERO,
            ),
            changes: changes
                .iter()
                .map(|(at, mbps)| (Duration::from_secs(*at), Rate::from_mbps(*mbps)))
                .collect(),
            sessions: starts
                .iter()
                .enumerate()
                .map(|(i, start)| self.session(*start, self.trace && i == 0))
                .collect(),
            cubic_rtts: vec![Duration::from_micros(self.rtt_us); cubics],
            words: self.words,
            stranger: None,
            counted_from: WARM,
            end: Duration::from_secs(seconds),
        })
    }

    /// On the grid: where rates change, sessions meet, and TCP is beside.
    pub fn all() -> Vec<Self> {
        let mut beds = Vec::new();
        for rtt_us in [200, 10_000, 50_000] {
            for queue_ms in [5, 20, 50] {
                for loss_pct in [0.0, 5.0] {
                    for (mbps, receivers) in [(20, 2), (100, 2), (100, 8), (300, 2)] {
                        beds.push(Self {
                            mbps,
                            queue_ms,
                            rtt_us,
                            receivers,
                            loss_pct,
                            ..Self::BASE
                        });
                    }
                }
            }
        }
        beds
    }

    /// Off the grid.
    pub fn random(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let between = |rng: &mut Rng, low: f64, high: f64| low * (high / low).powf(rng.unit());
        Self {
            mbps: between(rng, 10.0, 400.0) as u64,
            queue_ms: between(rng, 5.0, 50.0) as u64,
            rtt_us: between(rng, 200.0, 50_000.0) as u64,
            receivers: 1 + rng.below(10) as usize,
            loss_pct: if rng.chance(0.3) { 0.0 } else { between(rng, 0.05, 8.0) },
            seed,
            ..Self::BASE
        }
    }

    /// 100 Mbit/s, two receivers 10 ms away, a queue of 20 ms.
    pub const BASE: Self = Self {
        mbps: 100,
        queue_ms: 20,
        rtt_us: 10_000,
        receivers: 2,
        loss_pct: 0.0,
        seed: 1,
        controller: Kind::Auto,
        trace: false,
        words: Words::Heard,
    };

    /// The rate falls to `low` at 10 s and is back at 20 s. Returns utilisation of the link between two
    /// seconds after each change and the next one.
    pub fn change(&self, low: u64) -> (f64, f64) {
        let report = self.run(&[Duration::ZERO], &[(10, low), (20, self.mbps)], 0, 30);
        let good = 1.0 - self.loss_pct / 100.0;
        let used = |from: u64, to: u64, mbps: u64| {
            let outcome = &report.sessions[0];
            let rate = outcome.rate_between(Duration::from_secs(from), Duration::from_secs(to));
            rate.bps() as f64 / (mbps as f64 * 1e6 * good)
        };
        (used(12, 20, low), used(22, 29, self.mbps))
    }

    /// How much of the link is used in the last minute of so many seconds, and from the second to the tenth second after
    /// its rate has then fallen to a half.
    pub fn lasting(&self, seconds: u64) -> (f64, f64) {
        let report = self.run(&[Duration::ZERO], &[(seconds, self.mbps / 2)], 0, seconds + 10);
        let used = |from: u64, to: u64, mbps: u64| {
            let (from, to) = (Duration::from_secs(from), Duration::from_secs(to));
            report.sessions[0].rate_between(from, to).bps() as f64 / (mbps as f64 * 1e6)
        };
        (used(seconds - 60, seconds, self.mbps), used(seconds + 2, seconds + 10, self.mbps / 2))
    }

    /// Two sessions, the second begins at 5 s. The share of the larger from 15 to 60 s, and how much of
    /// the link both use.
    pub fn two(&self) -> (f64, f64) {
        let (rates, used) = self.together(&[0, 5]);
        (rates[0].max(rates[1]) / (rates[0] + rates[1]), used)
    }

    /// A second session begins at 5 s and some: how many seconds later both have within 60:40, for good as far as 40 s.
    pub fn even_after(&self) -> u64 {
        let second = Duration::from_millis(5000 + 130 * (self.seed % 30));
        let report = self.run(&[Duration::ZERO, second], &[], 0, 40);
        let is_even = |s: u64| {
            let (at, until) = (Duration::from_secs(s), Duration::from_secs(s + 1));
            let rates = report.sessions.iter().map(|o| o.rate_between(at, until).bps());
            let rates: Vec<u64> = rates.collect();
            rates[0].max(rates[1]) * 10 <= 6 * (rates[0] + rates[1])
        };
        let last = (6..40).rev().find(|s| !is_even(*s));
        last.map_or(0, |s| (s + 1) - second.as_secs_f64() as u64)
    }

    /// Three sessions, one more each five seconds. The largest over the least from 15 to 60 s, and how much of the link
    /// they use.
    pub fn three(&self) -> (f64, f64) {
        let (mut rates, used) = self.together(&[0, 5, 10]);
        rates.sort_by(f64::total_cmp);
        (rates[2] / rates[0], used)
    }

    /// A second session begins at 10 s: what becomes of the first.
    pub fn joined(&self) -> Joined {
        const SHARE: f64 = 0.4;
        // At any moment of the four seconds between two times at which the first lets its queue run empty.
        let tenth = Duration::from_millis(100);
        let joins = tenth * (100 + Rng::new(self.seed ^ self.mbps ^ self.rtt_us).below(40) as u32);
        let late = Duration::from_micros(Rng::new(self.seed).below(100_000));
        let report = self.run(&[Duration::ZERO, joins + late], &[], 0, 35);
        let full = self.mbps as f64 * 1e6 * (1.0 - self.loss_pct / 100.0);
        let second = tenth * 10;
        // Seconds that begin each tenth.
        let shares = |o: &Outcome| -> Vec<f64> {
            let starts = (0..190).map(|n| joins + tenth * n);
            starts.map(|at| o.rate_between(at, at + second).bps() as f64 / full).collect()
        };
        let (first, other) = (shares(&report.sessions[0]), shares(&report.sessions[1]));
        let (at, least) = first.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).expect("190");
        let reached = |shares: &[f64], from: usize| {
            let after = shares.iter().skip(from).position(|share| *share >= SHARE);
            after.map_or(second * 20, |after| tenth * (from + after + 10) as u32)
        };
        let used = |o: &Outcome| o.rate_between(joins, joins + second * 20).bps() as f64 / full;
        let sent: u64 = report.sessions.iter().map(|o| o.sent).sum();
        Joined {
            least: *least,
            back: if *least < SHARE { reached(&first, at) } else { Duration::ZERO },
            second: reached(&other, 0),
            used: report.sessions.iter().map(used).sum(),
            dropped: report.shared_dropped as f64 / sent as f64,
        }
    }

    /// Bits per second of sessions that begin at these seconds, from 15 to 60 s, and the share of the link.
    fn together(&self, starts: &[u64]) -> (Vec<f64>, f64) {
        let starts: Vec<Duration> = starts.iter().map(|s| Duration::from_secs(*s)).collect();
        let report = self.run(&starts, &[], 0, 60);
        let rate = |o: &Outcome| {
            o.rate_between(Duration::from_secs(15), Duration::from_secs(60)).bps() as f64
        };
        let rates: Vec<f64> = report.sessions.iter().map(rate).collect();
        let used = rates.iter().sum::<f64>() / (self.mbps as f64 * 1e6);
        (rates, used / (1.0 - self.loss_pct / 100.0))
    }

    /// Beside `flows` CUBIC flows, which were there before, to the end of the minute.
    pub fn beside_tcp(&self, flows: usize) -> Beside {
        let report = self.run(&[WARM], &[], flows, 60);
        let ours = report.sessions[0].received[0] * FRAME_LEN;
        Beside {
            tcp_of_all: report.cubic_bytes as f64 / (ours + report.cubic_bytes) as f64,
            tcp: self.of_link(report.cubic_bytes),
            used: self.of_link(report.shared_bytes),
        }
    }

    /// What share of the link `flows` CUBIC flows use in that time when no session is beside.
    pub fn tcp_alone(&self, flows: usize) -> f64 {
        self.of_link(self.run(&[], &[], flows, 60).cubic_bytes)
    }

    fn of_link(&self, bytes: u64) -> f64 {
        let time = Duration::from_secs(60) - WARM;
        bytes as f64 / Rate::from_mbps(self.mbps).bytes_in(time) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{Bed, WARM};
    use downpour_proto::Duration;

    #[test]
    fn tcp_counts_from_when_the_session_begins() {
        let bed = Bed::BASE;
        let report = bed.run(&[WARM], &[], 1, 60);
        let ours = report.sessions[0].rate_between(WARM, Duration::from_secs(60));
        let beside = bed.beside_tcp(1);
        // Both together fill the link.
        let all = beside.tcp_of_all + ours.bps() as f64 / (bed.mbps as f64 * 1e6);
        assert!((0.995..1.005).contains(&all), "{all} {beside:?}");
    }
}
