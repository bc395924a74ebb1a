//! `afdp`: an interval between packets that requests make longer and time makes shorter (Cooperstock 1996).
//!
//! Tp grows with each request for repair that is served, before it is served, and falls periodically whatever
//! happens. A minimum keeps the network usable for others; *rabid* overrides it, *nice* raises it to 100 ms. The paper gives
//! no steps: ours stand in `docs/profiles.md`. The minimum of 10 ms follows from its table 1, where a broadcast of
//! AFDP takes about a tenth of a 10 Mbit/s Ethernet, and a unicast to three hosts three tenths.

use super::packets::{PacketRate, RateLine};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

/// A request served makes Tp longer by this factor: more than the falls between two checks of one subscriber make up
/// for, else a single one could not slow it down.
const RAISE: f64 = 1.5;
/// A period makes it shorter by this factor.
const FALL: f64 = 0.95;
const PERIOD: Duration = Duration::from_millis(100);
/// Tp never grows beyond this, so that the end comes.
const TP_MAX: Duration = Duration::from_secs(1);
/// What stands for no minimum: a clock's grain.
const TP_FLOOR: Duration = Duration::from_micros(1);

/// How short the interval may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfdpLimits {
    /// Not below this.
    Min(Duration),
    /// Not below 100 ms.
    Nice,
    /// As short as the subscribers can take it.
    Rabid,
}

impl AfdpLimits {
    /// The minimum unless something else is said.
    pub const DEFAULT: Self = Self::Min(Duration::from_millis(10));

    /// Least interval.
    pub const fn min(self) -> Duration {
        match self {
            Self::Min(min) => min,
            Self::Nice => Duration::from_millis(100),
            Self::Rabid => TP_FLOOR,
        }
    }
}

/// The interval Tp.
#[derive(Clone, Copy, Debug)]
pub struct Afdp {
    interval: Duration,
    min: Duration,
}

impl Afdp {
    /// The interval that the secretary suggests at first.
    pub const INITIAL: Duration = Duration::from_millis(10);

    /// Starts at `initial`, or at the minimum if that is more.
    pub fn new(initial: Duration, limits: AfdpLimits) -> Self {
        let min = limits.min().clamp(TP_FLOOR, TP_MAX);
        Self { interval: initial.clamp(min, TP_MAX), min }
    }

    /// Tp.
    pub const fn interval(&self) -> Duration {
        self.interval
    }
}

impl PacketRate for Afdp {
    fn rate(&self, packet_len: u32) -> Rate {
        Rate::of(u64::from(packet_len), self.interval)
    }

    fn on_request(&mut self, _now: Timestamp) {
        self.interval = self.interval.mul_f64(RAISE).min(TP_MAX);
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn on_period(&mut self, _now: Timestamp) -> Option<RateLine> {
        self.interval = self.interval.mul_f64(FALL).max(self.min);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Afdp, AfdpLimits, PacketRate, TP_MAX};
    use crate::time::{Duration, Timestamp};

    fn after(rate: &mut Afdp, requests: u32, periods: u32) -> Duration {
        (0..requests).for_each(|_| rate.on_request(Timestamp::ZERO));
        (0..periods).for_each(|_| assert_eq!(rate.on_period(Timestamp::ZERO), None));
        rate.interval()
    }

    #[test]
    fn requests_slow_it_down_and_time_speeds_it_up_to_the_minimum() {
        let mut rate = Afdp::new(Afdp::INITIAL, AfdpLimits::DEFAULT);
        assert_eq!(after(&mut rate, 0, 10), Duration::from_millis(10));
        assert_eq!(after(&mut rate, 1, 0), Duration::from_micros(15_000));
        assert_eq!(after(&mut rate, 0, 1), Duration::from_micros(14_250));
        assert_eq!(after(&mut rate, 0, 9), Duration::from_millis(10));
        assert_eq!(after(&mut rate, 1000, 0), TP_MAX);
        assert_eq!(rate.rate(1250).bps(), 10_000);
    }

    #[test]
    fn nice_raises_the_minimum_and_rabid_overrides_it() {
        let mut nice = Afdp::new(Afdp::INITIAL, AfdpLimits::Nice);
        assert_eq!(after(&mut nice, 0, 1000), Duration::from_millis(100));
        let mut rabid = Afdp::new(Afdp::INITIAL, AfdpLimits::Rabid);
        assert!(after(&mut rabid, 0, 80) < Duration::from_micros(200));
        assert_eq!(after(&mut rabid, 0, 1000), super::TP_FLOOR);
    }
}
