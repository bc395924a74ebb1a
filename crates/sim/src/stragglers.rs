//! One receiver of many has trouble: what that costs the others, and how it fares itself.

use crate::link::LinkConfig;
use crate::loss::Loss;
use crate::world::{Outcome, World, WorldConfig};
use downpour_proto::{Duration, Rate, Timestamp};
use std::fmt;

/// What the last receiver suffers from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Its link has a share of the rate only.
    Rate,
    /// It loses 30 % of what comes in.
    Loss,
    /// Its process stands still for five seconds.
    Stop,
    /// Its link is cut for five seconds.
    Cut,
    /// It joins at half-time.
    Late,
}

/// All of them.
pub const TROUBLES: [Trouble; 6] =
    [Trouble::None, Trouble::Rate, Trouble::Loss, Trouble::Stop, Trouble::Cut, Trouble::Late];

/// A session of which one receiver has trouble.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// How many, the troubled one among them.
    pub receivers: usize,
    /// The sender's link, Mbit/s.
    pub mbps: u64,
    /// Round trip, without the queue.
    pub rtt: Duration,
    /// Of data.
    pub mib: u64,
    /// Loss of all others.
    pub loss: f64,
    /// What the troubled one suffers from.
    pub trouble: Trouble,
    /// If it is its rate: how many have that trouble, each behind a link of its own.
    pub troubled: usize,
    /// Its share of the rate.
    pub share: f64,
    /// The queue before its link.
    pub queue: Duration,
    /// Of all randomness.
    pub seed: u64,
    /// Prints a line for each report that the rate controller takes.
    pub trace: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Fates {
    /// When the last of the others had everything.
    pub others: Duration,
    /// When the troubled one had everything, if it did.
    pub troubled: Option<Duration>,
    /// Everything.
    pub outcome: Outcome,
}

impl Scene {
    /// Sixteen receivers near by behind 20 Mbit/s, 64 MiB, and no trouble yet; who has little of the rate has a tenth.
    pub const USUAL: Self = Self {
        receivers: 16,
        mbps: 20,
        rtt: Duration::from_micros(200),
        mib: 64,
        loss: 0.0,
        trouble: Trouble::None,
        troubled: 1,
        share: 0.1,
        queue: Duration::from_millis(50),
        seed: 1,
        trace: false,
    };

    /// Until all have everything.
    pub fn run(self) -> Fates {
        let rate = Rate::from_mbps(self.mbps);
        let random = |share: f64| if share > 0.0 { Loss::Random(share) } else { Loss::None };
        let mut config = WorldConfig::star(self.receivers, rate, self.rtt, random(self.loss));
        (config.seed, config.data_len, config.trace) = (self.seed, self.mib << 20, self.trace);
        config.check = false;
        let half = rate.time_for(config.data_len) / 2;
        let from = Timestamp::ZERO + half * 3 / 5;
        let stop = from..from + Duration::from_secs(5);
        if self.trouble == Trouble::Rate {
            for one in config.receivers.iter_mut().rev().take(self.troubled) {
                one.link =
                    LinkConfig::bottleneck(rate.scale(self.share), self.queue, one.link.delay);
            }
        }
        let one = config.receivers.last_mut().expect("a scene has receivers");
        match self.trouble {
            Trouble::None | Trouble::Rate => {}
            Trouble::Loss => one.loss = random(0.3),
            Trouble::Stop => one.stops = Some(stop),
            Trouble::Cut => one.cuts = vec![stop],
            Trouble::Late => one.joins = half,
        }
        let outcome = World::run(config);
        let mut completed = outcome.receivers.iter().map(|receiver| receiver.completed);
        let troubled = completed.next_back().flatten();
        let completed = completed.take(self.receivers - self.troubled.max(1));
        let others = completed.map(|at| at.unwrap_or(Duration::MAX)).max().unwrap_or_default();
        Fates { others, troubled, outcome }
    }
}

impl fmt::Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "others {:.2} s, ", self.others.as_secs_f64())?;
        match self.troubled {
            Some(at) => write!(f, "itself {:.2} s", at.as_secs_f64())?,
            None => write!(f, "itself never")?,
        }
        let (overhead, pulled) = (self.outcome.overhead(), self.outcome.pull_bytes);
        write!(f, ", symbols {overhead:.3} x source, {pulled} B pulled")
    }
}
