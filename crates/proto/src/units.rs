//! Rates as a type: bits per second on the wire, counted over UDP payloads.

use crate::time::Duration;
use core::fmt;

/// Bits per second. What it counts (UDP payload or whole frames) is said where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// No limit.
    pub const MAX: Self = Self(u64::MAX);

    /// `bps` bits per second.
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// Millions of bits per second.
    pub const fn from_mbps(mbps: u64) -> Self {
        Self(mbps * 1_000_000)
    }

    /// Bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// `bytes` sent in `time`; [`Rate::MAX`] when no time passed.
    pub fn of(bytes: u64, time: Duration) -> Self {
        let nanos = time.as_nanos();
        if nanos == 0 {
            return Self::MAX;
        }
        let bps = u128::from(bytes) * 8_000_000_000 / nanos;
        Self(u64::try_from(bps).unwrap_or(u64::MAX))
    }

    /// How long `bytes` take at this rate; [`Duration::MAX`] at rate zero.
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many bytes pass in `time` at this rate.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// This rate times `factor`, a finite number ≥ 0.
    pub fn scale(self, factor: f64) -> Self {
        debug_assert!(factor.is_finite() && factor >= 0.0);
        Self((self.0 as f64 * factor) as u64)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bps = self.0 as f64;
        match self.0 {
            u64::MAX => write!(f, "unlimited"),
            1_000_000_000.. => write!(f, "{:.2} Gbit/s", bps / 1e9),
            1_000_000.. => write!(f, "{:.1} Mbit/s", bps / 1e6),
            1_000.. => write!(f, "{:.1} kbit/s", bps / 1e3),
            _ => write!(f, "{} bit/s", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;
    use crate::time::Duration;

    #[test]
    fn time_and_bytes_are_inverse() {
        let rate = Rate::from_mbps(100);
        assert_eq!(rate.time_for(12_500_000), Duration::from_secs(1));
        assert_eq!(rate.bytes_in(Duration::from_secs(1)), 12_500_000);
        assert_eq!(Rate::of(12_500_000, Duration::from_secs(1)), rate);
        assert_eq!(Rate::of(1, Duration::ZERO), Rate::MAX);
    }
}
