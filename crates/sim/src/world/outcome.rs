//! What came of a run.

use super::World;
use crate::link::{FRAME_LEN, HEADERS_LEN};
use downpour_proto::receiver::ReceiverStats;
use downpour_proto::sender::SenderStats;
use downpour_proto::{Duration, Rate, ReceiverId, Round, Timestamp};

/// How a receiver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has everything.
    Complete,
    /// Its machine died.
    Died,
    /// The run ended before it had everything.
    Unfinished,
}

/// One receiver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverOutcome {
    /// Who.
    pub id: ReceiverId,
    /// How it ended.
    pub fate: Fate,
    /// When it had everything, since the session's start.
    pub completed: Option<Duration>,
    /// Σ latency of all products, delivered in order, of a session that stays open.
    pub latency: Duration,
    /// Its machine's counters.
    pub stats: ReceiverStats,
    /// Most blocks of which it kept symbols at once.
    pub most_partial: usize,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Each receiver.
    pub receivers: Vec<ReceiverOutcome>,
    /// The sender's counters.
    pub sender: SenderStats,
    /// Source symbols of the session.
    pub source_symbols: u64,
    /// Frame bytes that the sender sent as stream.
    pub stream_bytes: u64,
    /// Frame bytes of feedback, lost ones too.
    pub feedback_bytes: u64,
    /// Bytes of pulls.
    pub pull_bytes: u64,
    /// Rounds.
    pub rounds: u32,
    /// Most feedback messages between two polls.
    pub feedback_peak: u64,
    /// Frames that inner queues had no room for.
    pub dropped: u64,
    /// Virtual end of the run.
    pub ended: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) stream_bytes: u64,
    pub(super) feedback_bytes: u64,
    feedback_peak: u64,
    feedback_now: u64,
    feedback_round: Option<Round>,
}

impl Counters {
    pub(super) fn on_feedback(&mut self, round: Round) {
        if self.feedback_round != Some(round) {
            self.feedback_round = Some(round);
            self.feedback_now = 0;
        }
        self.feedback_now += 1;
        self.feedback_peak = self.feedback_peak.max(self.feedback_now);
    }
}

impl World {
    pub(super) fn outcome(&self) -> Outcome {
        if self.config.trace {
            for host in self.hosts.iter().filter(|h| h.completed_at.is_none() && !h.dead) {
                println!("unfinished: {:?}", host.machine);
            }
            println!("pulls: {:?}", self.pulls);
        }
        let since_start = |at: Timestamp| at.since(Timestamp::ZERO);
        let receivers = self.hosts.iter().enumerate().map(|(index, host)| ReceiverOutcome {
            id: host.id,
            fate: match host.completed_at {
                Some(_) => Fate::Complete,
                None if host.dead => Fate::Died,
                None => Fate::Unfinished,
            },
            completed: host.completed_at.map(since_start),
            latency: self.products.latency(index),
            stats: *host.machine.stats(),
            most_partial: host.most_partial,
        });
        Outcome {
            receivers: receivers.collect(),
            sender: *self.sender.stats(),
            source_symbols: super::blocks(&self.config).iter().map(|(_, k)| u64::from(*k)).sum(),
            stream_bytes: self.stats.stream_bytes,
            feedback_bytes: self.stats.feedback_bytes,
            pull_bytes: self.pulls.bytes,
            rounds: self.sender.round().0,
            feedback_peak: self.stats.feedback_peak,
            dropped: self.network.dropped(),
            ended: since_start(self.now),
        }
    }
}

impl Outcome {
    /// When the last of these receivers had everything.
    ///
    /// # Panics
    /// If one of them never had.
    pub fn completed(&self, who: impl IntoIterator<Item = usize>) -> Duration {
        let of = |index: usize| {
            let receiver = &self.receivers[index];
            receiver.completed.unwrap_or_else(|| panic!("not complete: {receiver:?}"))
        };
        who.into_iter().map(of).max().unwrap_or_default()
    }

    /// When the last of all receivers had everything.
    ///
    /// # Panics
    /// If one of them never had.
    pub fn wall(&self) -> Duration {
        self.completed(0..self.receivers.len())
    }

    /// Symbols sent over source symbols.
    pub fn overhead(&self) -> f64 {
        let sent = self.sender.source_symbols + self.sender.repair_symbols;
        sent as f64 / self.source_symbols as f64
    }

    /// Feedback bytes over the stream's bytes.
    pub fn feedback_share(&self) -> f64 {
        self.feedback_bytes as f64 / self.stream_bytes as f64
    }

    /// Feedback messages that reached the sender, for each round.
    pub fn feedback_per_round(&self) -> f64 {
        self.sender.feedback as f64 / f64::from(self.rounds.max(1))
    }

    /// Feedback messages that reached the sender, for each second.
    pub fn feedback_rate(&self) -> f64 {
        self.sender.feedback as f64 / self.ended.as_secs_f64()
    }
}

/// The least time for `len` bytes at `rate` with a share `loss` lost (`size · (1514/1472) · 8 / (rate · (1 − p))`).
pub fn bound(len: u64, rate: Rate, loss: f64) -> Duration {
    let frames = len as f64 * FRAME_LEN as f64 / (FRAME_LEN - HEADERS_LEN) as f64;
    Duration::from_secs_f64(frames * 8.0 / (rate.bps() as f64 * (1.0 - loss)))
}
