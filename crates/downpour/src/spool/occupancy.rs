//! How full the spool is, how fast it fills, and what producers are told. Pure.
//!
//! Room is what the section says, or the file system's; the fuller of the two counts. Rates are averages over some minutes. The
//! level falls back only when there is clearly room again, so that producers are not stopped and started by each file.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// Time over which rates are averaged.
const AVERAGE: Duration = Duration::from_secs(300);
/// A level is left when the share is so far below it.
const SLACK: f64 = 0.05;

/// How full.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// There is room.
    #[default]
    Room,
    /// Somebody should look.
    Alarm,
    /// Producers should stop.
    Full,
}

impl Level {
    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Room => "there is room",
            Self::Alarm => "it is filling up",
            Self::Full => "it is full, and producers are asked to wait",
        }
    }
}

/// Where the levels begin, and how much room there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of files that have room.
    pub(super) bytes_max: Option<u64>,
    /// Share at which the alarm is raised.
    pub(super) alarm: f64,
    /// Share at which the spool is full.
    pub(super) full: f64,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Bytes of files in the spool.
    pub(super) bytes: u64,
    /// Bytes that have come in since the beginning.
    pub(super) bytes_in: u64,
    /// Bytes of the file system, and those that are free.
    pub(super) disk: (u64, u64),
}

/// How full the spool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Occupancy {
    /// How full.
    pub level: Level,
    /// Bytes of files.
    pub bytes: u64,
    /// Bytes until it is full.
    pub bytes_free: u64,
    /// Share of the room that is taken.
    pub share: f64,
    /// Bytes per second that come in.
    pub in_bytes_per_s: f64,
    /// Bytes per second that leave.
    pub out_bytes_per_s: f64,
    /// Seconds until it is full, as it goes now; none when it does not fill.
    pub full_in_s: Option<u64>,
}

/// Follows the measurements.
#[derive(Debug)]
pub(super) struct Gauge {
    bounds: Bounds,
    last: Option<(Duration, Measured)>,
    now: Occupancy,
}

impl Gauge {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, last: None, now: Occupancy::default() }
    }

    pub(super) const fn now(&self) -> &Occupancy {
        &self.now
    }

    pub(super) fn measure(&mut self, at: Duration, measured: Measured) {
        self.rates(at, measured);
        let (disk, free) = measured.disk;
        let disk_share = (disk - free.min(disk)) as f64 / disk.max(1) as f64;
        let disk_left = free as f64 - (1.0 - self.bounds.full) * disk as f64;
        let (share, left) = match self.bounds.bytes_max {
            Some(room) => {
                let left = self.bounds.full * room as f64 - measured.bytes as f64;
                let share = measured.bytes as f64 / room.max(1) as f64;
                (share.max(disk_share), left.min(disk_left))
            }
            None => (disk_share, disk_left),
        };
        let filling = self.now.in_bytes_per_s - self.now.out_bytes_per_s;
        self.now.bytes = measured.bytes;
        self.now.bytes_free = left.max(0.0) as u64;
        self.now.share = share;
        self.now.full_in_s = (filling > 1.0).then(|| (left.max(0.0) / filling) as u64);
        self.now.level = self.level(share);
    }

    fn rates(&mut self, at: Duration, measured: Measured) {
        let Some((before, last)) = self.last.replace((at, measured)) else { return };
        let passed = at.saturating_sub(before).as_secs_f64();
        if passed <= 0.0 {
            self.last = Some((before, last));
            return;
        }
        let came = (measured.bytes_in - last.bytes_in) as f64;
        let left = (last.bytes as f64 + came - measured.bytes as f64).max(0.0);
        let weight = 1.0 - (-passed / AVERAGE.as_secs_f64()).exp();
        self.now.in_bytes_per_s += weight * (came / passed - self.now.in_bytes_per_s);
        self.now.out_bytes_per_s += weight * (left / passed - self.now.out_bytes_per_s);
    }

    fn level(&self, share: f64) -> Level {
        let bounds = [(Level::Full, self.bounds.full), (Level::Alarm, self.bounds.alarm)];
        let holds = |(level, bound): &(Level, f64)| {
            let slack = if self.now.level >= *level { SLACK } else { 0.0 };
            share >= bound - slack
        };
        bounds.into_iter().find(holds).map_or(Level::Room, |(level, _)| level)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounds, Gauge, Level, Measured};
    use std::time::Duration;

    const BOUNDS: Bounds = Bounds { bytes_max: Some(1000), alarm: 0.8, full: 0.95 };
    const DISK: (u64, u64) = (1_000_000, 900_000);

    fn gauge_at(shares: &[u64]) -> Vec<Level> {
        let mut gauge = Gauge::new(BOUNDS);
        let measured = |bytes: u64| Measured { bytes, bytes_in: 1000, disk: DISK };
        let level = |(at, bytes): (u64, &u64)| {
            gauge.measure(Duration::from_secs(at), measured(*bytes));
            gauge.now().level
        };
        (0..).zip(shares).map(level).collect()
    }

    #[test]
    fn levels_rise_at_once_and_fall_with_slack() {
        use Level::{Alarm, Full, Room};
        let levels = gauge_at(&[100, 800, 949, 950, 910, 899, 760, 749, 799]);
        assert_eq!(levels, [Room, Alarm, Alarm, Full, Full, Alarm, Alarm, Room, Room]);
    }

    #[test]
    fn the_fuller_of_section_and_disk_counts() {
        let mut gauge = Gauge::new(BOUNDS);
        let measured = Measured { bytes: 1, bytes_in: 1, disk: (1_000_000, 10_000) };
        gauge.measure(Duration::ZERO, measured);
        assert_eq!((gauge.now().level, gauge.now().bytes_free), (Level::Full, 0));
    }

    #[test]
    fn time_until_full_follows_what_comes_and_leaves() {
        let mut gauge = Gauge::new(Bounds { bytes_max: Some(1_000_000), ..BOUNDS });
        // 100 bytes a second come, 40 leave, for an hour.
        for second in (0..3600).step_by(10) {
            let measured = Measured { bytes: 60 * second, bytes_in: 100 * second, disk: DISK };
            gauge.measure(Duration::from_secs(second), measured);
        }
        let now = gauge.now();
        assert!(
            (now.in_bytes_per_s - 100.0).abs() < 0.1 && (now.out_bytes_per_s - 40.0).abs() < 0.1,
            "{now:?}"
        );
        let left = 950_000 - 60 * 3590;
        assert!(now.full_in_s.unwrap().abs_diff(left / 60) < 20, "{now:?}");
        // Nothing comes any more: it does not fill.
        let quiet = Measured { bytes: 0, bytes_in: 359_000, disk: DISK };
        gauge.measure(Duration::from_secs(7200), quiet);
        assert_eq!(gauge.now().full_in_s, None);
    }
}
