//! Rates of the papers' profiles: packets of one size, driven by what their own feedback says.
//!
//! Smaller than [`RateController`](super::RateController): there are no polls, so there are no samples. `bmtp` is told
//! rates, `afdp` that something was asked for, and [`Shaped`] nothing at all.

use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use core::fmt;

/// One step of a rate, as the papers' programs print it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLine {
    /// Who reported the least.
    pub from: ReceiverId,
    /// What it reported, packets per second.
    pub reported: f64,
    /// What is sent from now on, packets per second.
    pub rate: f64,
}

/// Decides how fast a profile's sender sends.
///
/// Call contract: `now` never runs backwards; [`on_period`](Self::on_period) is called once in each
/// [`period`](Self::period).
pub trait PacketRate: Send + fmt::Debug {
    /// The rate now, when a full packet has `packet_len` bytes of UDP payload. Never zero.
    fn rate(&self, packet_len: u32) -> Rate;

    /// A receiver says how many packets per second it gets.
    fn on_report(&mut self, _from: ReceiverId, _packets_per_s: f64) {}

    /// A request for repair is about to be served.
    fn on_request(&mut self, _now: Timestamp) {}

    /// Time between two looks at the rate.
    fn period(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// A period is over.
    fn on_period(&mut self, _now: Timestamp) -> Option<RateLine> {
        None
    }
}

/// One rate, given by hand: the circuit's.
#[derive(Clone, Copy, Debug)]
pub struct Shaped(Rate);

impl Shaped {
    /// Sends at `rate`, which must not be zero.
    pub const fn new(rate: Rate) -> Self {
        Self(rate)
    }
}

impl PacketRate for Shaped {
    fn rate(&self, _packet_len: u32) -> Rate {
        self.0
    }
}
