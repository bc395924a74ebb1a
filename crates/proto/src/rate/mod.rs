//! Rate control: how fast a session may send.
//!
//! One trait, several controllers. The sender machine digests each receiver's answer to a poll into a
//! [`RateSample`] and gives it to the controller; the controller answers with one rate for the whole
//! group, which the [pacer](crate::Pacer) turns into departures.
//!
//! Invariants: a controller never reads a clock, never allocates without a limit (it remembers at most
//! [`RECEIVERS_MAX`] receivers), and its rate is never zero and never above its ceiling.
//! The papers' profiles have no polls, so nothing to make a sample of: their rates are of another, smaller trait,
//! [`PacketRate`].
//!
//! Deliberately absent: who leaves the group. A controller follows the least capable receiver that
//! still answers, and leaves out whom it is told to.

mod afdp;
mod auto;
mod background;
mod bmtp;
mod fixed;
mod packets;
mod paths;
mod tfmcc;

pub use afdp::{Afdp, AfdpLimits};
pub use auto::Auto;
pub use background::Background;
pub use bmtp::Bmtp;
pub use fixed::Fixed;
pub use packets::{PacketRate, RateLine, Shaped};
pub use tfmcc::Tfmcc;

use crate::ids::{ReceiverId, StreamId};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use core::fmt;

/// A controller remembers at most this many receivers: those that answer every poll. In larger groups
/// the least recently heard is forgotten first.
pub const RECEIVERS_MAX: usize = 64;

/// No controller that seeks the rate goes below this, under a ceiling that is not lower: a stream that stops learns nothing.
pub const RATE_MIN: Rate = Rate::from_bps(128_000);

/// One receiver's report on the datagrams between two polls that it answered.
///
/// Consecutive samples of a receiver are contiguous: each begins at the poll that closed the one
/// before. A lost poll or answer only makes the next sample longer. The very first answer of a receiver
/// closes an empty sample (nothing sent, intervals zero), for the sake of its `rtt` and
/// `queue_delay`.
#[derive(Clone, Copy, Debug)]
pub struct RateSample {
    /// Whose report this is.
    pub receiver: ReceiverId,
    /// Datagrams that left after the opening poll, up to and with the closing one.
    pub sent_packets: u64,
    /// Their bytes (UDP payload).
    pub sent_bytes: u64,
    /// From the opening poll's departure to the closing one's, on the sender's clock.
    pub send_interval: Duration,
    /// How many of `sent_packets` arrived.
    pub received_packets: u64,
    /// From the opening poll's arrival to the closing one's, on the receiver's clock.
    pub receive_interval: Duration,
    /// When the closing poll left, on the sender's clock.
    pub poll_sent: Timestamp,
    /// Bytes that left after the closing poll, until now.
    pub bytes_since: u64,
    /// From the closing poll's departure to the answer's arrival, less the time that the receiver
    /// held the answer back.
    pub rtt: Duration,
    /// How much longer the closing poll was on its way than the fastest of the last ten seconds, by the
    /// receiver's own books ([`BaseDelay`](crate::BaseDelay)): it sees every poll, not only those it answers.
    pub queue_delay: Duration,
    /// Datagrams that the receiver's own socket dropped in the interval: congestion of the host.
    pub host_drops: u64,
    /// The sender had nothing to send, or fell behind its pacer, in a part of the interval: that not
    /// more arrived says nothing about the path.
    pub app_limited: bool,
}

impl RateSample {
    /// When the opening poll left, on the sender's clock.
    pub fn opened(&self) -> Timestamp {
        self.poll_sent - self.send_interval
    }

    /// Datagrams that did not arrive.
    pub const fn lost_packets(&self) -> u64 {
        self.sent_packets.saturating_sub(self.received_packets)
    }

    /// The share of those that left that arrived, 0 to 1; 1 when none left.
    pub fn arrived_share(&self) -> f64 {
        1.0 - self.lost_packets() as f64 / self.sent_packets.max(1) as f64
    }
}

/// What a session tells the other senders on its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// What it takes of its narrowest link.
    pub rate: Rate,
    /// The queue that it sees there.
    pub queue: Duration,
}

/// Decides the rate of a session.
///
/// Call contract: `now` never runs backwards over all calls; [`on_tick`](Self::on_tick) follows each
/// poll that was sent; [`rate`](Self::rate) may be read at any time and is read again after each of the
/// other calls.
pub trait RateController: Send + fmt::Debug {
    /// Takes one receiver's report.
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample);

    /// A poll has just left. `bytes_sent` counts all bytes of the stream so far, the poll included.
    /// Not hearing from anybody for several round trips makes the rate fall; a controller that knows of nobody may
    /// leave it.
    fn on_tick(&mut self, now: Timestamp, bytes_sent: u64);

    /// The receiver is gone, complete, or pulls from now on: it no longer holds the rate down.
    fn on_receiver_gone(&mut self, receiver: ReceiverId);

    /// The receiver is on trial: until it is heard again it does not hold the rate down. What is known of its path
    /// besides its rate may be remembered.
    fn on_trial(&mut self, receiver: ReceiverId) {
        self.on_receiver_gone(receiver);
    }

    /// Another sender on this network has told its load. It is not authentic: it must never raise the rate.
    fn on_neighbour(&mut self, _now: Timestamp, _who: StreamId, _load: Load) {}

    /// What neighbours should know, while the session would take more if it could. `None`: nothing to be told.
    fn load(&self) -> Option<Load> {
        None
    }

    /// The rate now, counted over UDP payloads. Never zero.
    fn rate(&self) -> Rate;

    /// Never faster than this.
    fn set_ceiling(&mut self, ceiling: Rate);

    /// Whom the rate follows. It should answer each poll.
    fn limiting(&self) -> Option<ReceiverId> {
        self.summary().limiting
    }

    /// So many datagrams leave at once, also where the pacer would send fewer.
    fn burst_packets_min(&self) -> u32 {
        1
    }

    /// Each answer may let the rate grow much: polls should follow closely, however slow it still is.
    fn is_searching(&self) -> bool {
        false
    }

    /// For reports.
    fn summary(&self) -> RateSummary;
}

/// What a controller believes, for progress lines, reports and traces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSummary {
    /// Where the controller is in its life.
    pub phase: RatePhase,
    /// The rate now.
    pub rate: Rate,
    /// The narrowest link's rate as far as is known.
    pub bottleneck: Option<Rate>,
    /// Share of datagrams that the limiting receiver's path loses whatever the rate, 0 to 1.
    pub random_loss: f64,
    /// Delay above the least seen, at the limiting receiver.
    pub queue_delay: Duration,
    /// Longest queue that stood there without being full, as far as losses tell; zero while that is not known, or not settled.
    pub queue_borne: Duration,
    /// Whom the rate follows.
    pub limiting: Option<ReceiverId>,
}

/// Where a controller is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatePhase {
    /// The rate is set by hand.
    Fixed,
    /// Growing fast: no limit has been met yet.
    Startup,
    /// At the knee: the narrowest link is busy, its queue short.
    Hold,
    /// The narrowest link has become wider: growing again.
    Climb,
    /// Others keep the queue full: taking a share by their rules.
    Compete,
    /// Nobody has answered for long: slowing down.
    Silent,
}
