//! The matrix of cells that `auto` is judged by.

use super::{Answers, Noise, ReceiverSetup, SessionSetup, Setup, Words, run};
use crate::hiccups::Hiccups;
use crate::link::{FRAME_LEN, LinkConfig};
use crate::loss::Loss;
use crate::rng::Rng;
use downpour_proto::rate::{Auto, Load};
use downpour_proto::{Duration, Rate, Timestamp};

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Rate of the shared link, Mbit/s.
    pub mbps: u64,
    /// Its queue; at least ten frames.
    pub queue_ms: u64,
    /// Round trip without queue.
    pub rtt_us: u64,
    /// Loss of each receiver.
    pub loss_pct: f64,
    /// Mean burst; 0: independent.
    pub burst: f64,
    /// 4 have unlike round trips.
    pub receivers: usize,
    /// One has a bottleneck of its own.
    pub narrow: bool,
    /// All hosts are busy, and for the first 200 ms there is hardly anything to send.
    pub busy: bool,
    /// A session behind some other link that this one hears.
    pub stranger: Option<Load>,
}

/// What came of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The cell.
    pub cell: Cell,
    /// Bound over wall time: utilisation from start to end.
    pub utilisation: f64,
    /// Median standing queue.
    pub queue: Duration,
    /// When 90 % of the rate was first reached.
    pub ramp: Duration,
    /// Share of what was sent that queues dropped.
    pub dropped: f64,
    /// The highest rate that was set, over the narrowest link's.
    pub rate_most: f64,
}

/// The middle one of what `figure` finds in `runs`; of an even number the upper one of the two.
///
/// # Panics
///
/// Without a run.
pub fn median<T, F: PartialOrd + Copy>(runs: &[T], figure: impl Fn(&T) -> F) -> F {
    let mut figures: Vec<F> = runs.iter().map(figure).collect();
    figures.sort_by(|a, b| a.partial_cmp(b).expect("no figure is NaN"));
    figures[figures.len() / 2]
}

/// How long the file of a cell lasts at the full rate.
const LASTS: Duration = Duration::from_secs(30);
/// The narrow receiver's link, as a share of the shared one.
const NARROW: f64 = 0.6;
/// A busy sender reads and hashes before it sends.
const FED_FROM: Duration = Duration::from_millis(200);
/// Busy hosts: processes wait for a processor.
const BUSY_RECEIVER: Hiccups =
    Hiccups::new(Duration::from_millis(100), Duration::from_millis(5), Duration::from_millis(20));
const BUSY_SENDER: Hiccups =
    Hiccups::new(Duration::from_millis(200), Duration::from_millis(1), Duration::from_millis(20));

impl Cell {
    /// A small session behind some other link, as `stranger`.
    pub const STRANGER: Load = Load { rate: Rate::from_mbps(1), queue: Duration::from_millis(5) };
    /// A large one.
    pub const RICH: Load = Load { rate: Rate::from_mbps(2000), ..Self::STRANGER };

    /// Every cell.
    pub fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for mbps in [5, 20, 100, 300] {
            for queue_ms in [5, 50, 500] {
                for rtt_us in [200, 10_000, 50_000, 200_000] {
                    for (loss_pct, burst) in [
                        (0.0, 0.0),
                        (0.1, 0.0),
                        (1.0, 0.0),
                        (5.0, 0.0),
                        (0.1, 10.0),
                        (1.0, 10.0),
                        (5.0, 10.0),
                    ] {
                        for receivers in [1, 4, 8] {
                            let narrow = receivers == 8;
                            cells.push(Self {
                                mbps,
                                queue_ms,
                                rtt_us,
                                loss_pct,
                                burst,
                                receivers,
                                narrow,
                                busy: false,
                                stranger: None,
                            });
                        }
                    }
                }
            }
        }
        cells
    }

    /// A cell that is not on the matrix's grid: every property at random, so that what is tuned to the grid
    /// shows.
    pub fn random(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        // Evenly in the logarithm.
        let between = |rng: &mut Rng, low: f64, high: f64| low * (high / low).powf(rng.unit());
        let receivers = [1, 2, 4, 8, 16][rng.below(5) as usize];
        Self {
            mbps: between(rng, 3.0, 400.0) as u64,
            queue_ms: between(rng, 5.0, 500.0) as u64,
            rtt_us: between(rng, 100.0, 200_000.0) as u64,
            loss_pct: if rng.chance(0.3) { 0.0 } else { between(rng, 0.05, 8.0) },
            burst: if rng.chance(0.5) { 0.0 } else { between(rng, 1.0, 12.0) },
            receivers,
            narrow: receivers > 4 && rng.chance(0.3),
            busy: rng.chance(0.3),
            stranger: None,
        }
    }

    fn loss(&self) -> Loss {
        let share = self.loss_pct / 100.0;
        match (self.loss_pct, self.burst) {
            (0.0, _) => Loss::None,
            (_, 0.0) => Loss::Random(share),
            (_, burst) => Loss::Burst { share, burst },
        }
    }

    fn receiver(&self, index: usize) -> ReceiverSetup {
        let rtt = Duration::from_micros(self.rtt_us);
        let stretch = match self.receivers {
            4 => [1.0, 0.3, 0.6, 0.1][index],
            _ => 1.0,
        };
        let queue = Duration::from_millis(self.queue_ms);
        let own = (self.narrow && index == 3).then(|| {
            LinkConfig::bottleneck(Rate::from_mbps(self.mbps).scale(NARROW), queue, Duration::ZERO)
        });
        ReceiverSetup {
            rtt: rtt.mul_f64(stretch),
            own,
            loss: self.loss(),
            drift_ppm: [60.0, -90.0, 0.0, 100.0][index % 4],
            step: None,
            noise: Noise {
                usual: Duration::from_micros(100),
                hiccup_share: 0.01,
                hiccup: Duration::from_millis(5),
            },
            hiccups: if self.busy { BUSY_RECEIVER } else { Hiccups::NONE },
        }
    }

    /// Runs it.
    pub fn run(&self, seed: u64, trace: bool) -> Verdict {
        let shared = Rate::from_mbps(self.mbps);
        let narrow = if self.narrow { shared.scale(NARROW) } else { shared };
        let frames = narrow.bytes_in(LASTS) / FRAME_LEN;
        let queue = Duration::from_millis(self.queue_ms);
        let report = run(Setup {
            seed,
            shared: LinkConfig::bottleneck(shared, queue, Duration::ZERO),
            changes: Vec::new(),
            sessions: vec![SessionSetup {
                start: Duration::ZERO,
                controller: Box::new(Auto::new(Timestamp::ZERO)),
                receivers: (0..self.receivers).map(|i| self.receiver(i)).collect(),
                packets: (frames as f64 * (1.0 - self.loss_pct / 100.0)) as u64,
                answers: Answers { loss: self.loss_pct / 100.0 },
                hiccups: if self.busy { BUSY_SENDER } else { Hiccups::NONE },
                fed_from: if self.busy { FED_FROM } else { Duration::ZERO },
                trace,
            }],
            cubic_rtts: Vec::new(),
            words: Words::None,
            stranger: self.stranger,
            counted_from: Duration::ZERO,
            end: LASTS * 3,
        });
        let outcome = &report.sessions[0];
        let wall = outcome.wall.map_or(f64::MAX, |w| w.as_secs_f64());
        Verdict {
            cell: *self,
            utilisation: LASTS.as_secs_f64() / wall,
            queue: outcome.queue(0.5),
            ramp: outcome
                .reached(narrow.scale(1.0 - self.loss_pct / 100.0), 0.9)
                .unwrap_or(LASTS * 3),
            rate_most: outcome.rate_most.bps() as f64 / narrow.bps() as f64,
            dropped: (report.shared_dropped + outcome.own_dropped) as f64 / outcome.sent as f64,
        }
    }
}

impl Verdict {
    /// Of several runs of one cell: each figure's median.
    ///
    /// # Panics
    ///
    /// Without a run.
    pub fn median(runs: &[Self]) -> Self {
        Self {
            cell: runs[0].cell,
            utilisation: median(runs, |v| v.utilisation),
            queue: median(runs, |v| v.queue),
            ramp: median(runs, |v| v.ramp),
            dropped: median(runs, |v| v.dropped),
            rate_most: median(runs, |v| v.rate_most),
        }
    }

    /// The first requirement that the cell misses.
    pub fn misses(&self) -> Option<&'static str> {
        let rtt = Duration::from_micros(self.cell.rtt_us);
        let need = if self.cell.rtt_us >= 200_000 { 0.8 } else { 0.9 };
        if self.utilisation < need {
            return Some("utilisation");
        }
        // The frame that is being sent counts too.
        let frame = Rate::from_mbps(self.cell.mbps).scale(NARROW).time_for(FRAME_LEN);
        if self.queue > (rtt / 4).max(Duration::from_millis(20)) + frame {
            return Some("queue");
        }
        let fed_from = if self.cell.busy { FED_FROM } else { Duration::ZERO };
        (self.ramp > fed_from + rtt * 10 + Duration::from_millis(500)).then_some("ramp")
    }

    /// One line of the table.
    pub fn line(&self) -> String {
        let c = &self.cell;
        let kind = if c.burst > 0.0 { "burst" } else { "random" };
        format!(
            "{:>3} Mbit/s  queue {:>3} ms  rtt {:>5.1} ms  loss {:>4.2} % {kind:<6} x{}{}{}  util {:.3}  queue {:>6.2} ms  ramp {:.1} s  most {:.1}  dropped {:.3} %  {}",
            c.mbps,
            c.queue_ms,
            c.rtt_us as f64 / 1e3,
            c.loss_pct,
            c.receivers,
            if c.narrow { " one narrow" } else { "" },
            if c.busy { " busy" } else { "" },
            self.utilisation,
            self.queue.as_secs_f64() * 1e3,
            self.ramp.as_secs_f64(),
            self.rate_most,
            self.dropped * 100.0,
            self.misses().unwrap_or("")
        )
    }
}
