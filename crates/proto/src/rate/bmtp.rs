//! `bmtp`: a little more than the slowest receiver gets (Ishihara 2002).
//!
//! Every 500 ms the new rate is K = 1.05 times the least of what receivers have reported last in that time (Fig. 3:
//! a new report counts at once); without reports it stays. Receivers measure over about a second, so it grows by about 4.5 % per
//! second, and falls without end when more than 1 − 1/K = 4.76 % of all packets are lost. That is the paper's rule and is kept.

use super::packets::{PacketRate, RateLine};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::collections::BTreeMap;

/// How much faster than the slowest.
const K: f64 = 1.05;
/// Never less, so that the sender stays to be heard: packets per second.
const RATE_MIN: f64 = 1.0;
const PERIOD: Duration = Duration::from_millis(500);

/// Follows the slowest report.
#[derive(Clone, Debug)]
pub struct Bmtp {
    rate: f64,
    ceiling: f64,
    /// What each has reported last in this period: no more receivers than the driver knows.
    reports: BTreeMap<ReceiverId, f64>,
}

impl Bmtp {
    /// Starts at `rate` packets per second, and never exceeds `ceiling`.
    pub const fn new(rate: f64, ceiling: f64) -> Self {
        Self {
            rate: rate.clamp(RATE_MIN, ceiling.max(RATE_MIN)),
            ceiling,
            reports: BTreeMap::new(),
        }
    }
}

impl PacketRate for Bmtp {
    fn rate(&self, packet_len: u32) -> Rate {
        Rate::from_bps((self.rate * f64::from(packet_len) * 8.0) as u64)
    }

    fn on_report(&mut self, from: ReceiverId, packets_per_s: f64) {
        self.reports.insert(from, packets_per_s);
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn on_period(&mut self, _now: Timestamp) -> Option<RateLine> {
        let reports = core::mem::take(&mut self.reports);
        let (from, reported) = reports.into_iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        self.rate = (K * reported).clamp(RATE_MIN, self.ceiling.max(RATE_MIN));
        Some(RateLine { from, reported, rate: self.rate })
    }
}

#[cfg(test)]
mod tests {
    use super::{Bmtp, PacketRate};
    use crate::ids::ReceiverId;
    use crate::time::Timestamp;

    #[test]
    fn the_new_rate_is_the_papers() {
        // Fig. 3: rec_rate and new_send_rate.
        let mut rate = Bmtp::new(200.0, f64::INFINITY);
        for (reported, new) in [
            (200.995_026, 211.044_769),
            (210.789_215, 221.328_674),
            (220.558_884, 231.586_823),
            (252.495_010, 265.119_751),
        ] {
            rate.on_report(ReceiverId(1), reported);
            let line = rate.on_period(Timestamp::ZERO).unwrap();
            assert!((line.rate - new).abs() < 2e-5, "{} {new}", line.rate);
        }
    }

    #[test]
    fn the_slowest_of_the_latest_counts_and_silence_changes_nothing() {
        let mut rate = Bmtp::new(200.0, f64::INFINITY);
        for (receiver, reported) in [(1, 90.0), (2, 100.0), (1, 200.0), (3, 150.0)] {
            rate.on_report(ReceiverId(receiver), reported);
        }
        let line = rate.on_period(Timestamp::ZERO).unwrap();
        assert_eq!((line.from, line.reported, line.rate), (ReceiverId(2), 100.0, 105.0));
        assert_eq!(rate.on_period(Timestamp::ZERO), None);
        assert_eq!(rate.rate(1428).bps(), 105 * 1428 * 8);
        rate.on_report(ReceiverId(1), 0.0);
        assert_eq!(rate.on_period(Timestamp::ZERO).unwrap().rate, super::RATE_MIN);
    }
}
