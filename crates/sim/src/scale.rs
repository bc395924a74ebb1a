//! How a session grows with its group: the rows of `docs/results/simulation.md`.

use crate::link::LinkConfig;
use crate::loss::Loss;
use crate::network::{EdgeConfig, NodeId};
use crate::world::{Outcome, ReceiverConfig, World, WorldConfig, bound};
use downpour_proto::{Duration, Rate};

/// A session behind one link with a 20 ms queue.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// How many.
    pub receivers: usize,
    /// The shared link, Mbit/s.
    pub mbps: u64,
    /// Round trip, without the queue.
    pub rtt_ms: u64,
    /// Lost on each receiver's own edge, each datagram independently.
    pub loss_pct: f64,
    /// Lost on inner edges, each shared by this many receivers; 0: there are none.
    pub shared_by: usize,
    /// Of data.
    pub mib: u64,
    /// Of all randomness.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    row: Row,
    /// Everything.
    pub outcome: Outcome,
}

impl Row {
    /// Everybody has all within ten minutes.
    pub fn run(self) -> Measured {
        let rate = Rate::from_mbps(self.mbps);
        let rtt = Duration::from_millis(self.rtt_ms);
        let loss =
            if self.loss_pct > 0.0 { Loss::Random(self.loss_pct / 100.0) } else { Loss::None };
        let mut config = WorldConfig::star(self.receivers, rate, rtt, loss);
        config.seed = self.seed;
        config.data_len = self.mib << 20;
        // Following every symbol of a thousand receivers takes gigabytes.
        config.check = self.receivers <= 100;
        if self.shared_by > 0 {
            let inner = LinkConfig::wire(rtt / 8);
            config.receivers = (0..self.receivers)
                .map(|index| ReceiverConfig::at(NodeId(2 + index / self.shared_by), rtt / 8))
                .collect();
            for _ in 0..self.receivers.div_ceil(self.shared_by) {
                let parent = NodeId(1);
                config.edges.push(EdgeConfig { parent, loss, ..EdgeConfig::from_sender(inner) });
            }
        }
        Measured { row: self, outcome: World::run(config) }
    }
}

impl Measured {
    /// Time until the last had everything, over the least that is possible.
    pub fn of_bound(&self) -> f64 {
        let Row { mib, mbps, loss_pct, .. } = self.row;
        let bound = bound(mib << 20, Rate::from_mbps(mbps), loss_pct / 100.0);
        self.outcome.wall().as_secs_f64() / bound.as_secs_f64()
    }

    /// One line of the table.
    pub fn line(&self) -> String {
        let Row { receivers, mbps, rtt_ms, loss_pct, shared_by, mib, .. } = self.row;
        let edges = if shared_by > 0 { format!(" shared by {shared_by}") } else { String::new() };
        format!(
            "{receivers:>5} x {mib} MiB  {mbps} Mbit/s  rtt {rtt_ms:>3} ms  loss {loss_pct} %{edges}  time {:.2} x bound  \
             symbols {:.3} x source  feedback {:.2} %, {:.1} a round, {:.0}/s",
            self.of_bound(),
            self.outcome.overhead(),
            self.outcome.feedback_share() * 100.0,
            self.outcome.feedback_per_round(),
            self.outcome.feedback_rate(),
        )
    }
}
