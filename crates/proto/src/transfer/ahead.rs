//! How many ranges may be asked for and not stored: what a receiver that dies had for nothing.
//!
//! A disk that cannot follow would let all memory fill with what is not stored. So no more is asked for than keeps
//! connections, hashing and disk busy at once ([`UNSTORED`]), and twice what a round trip holds at the rate that was
//! seen: a path over which more goes is asked for more by and by, as TCP's own window grows.

use crate::time::{Duration, Timestamp};

/// Bytes that may be asked for and not stored, where a round trip holds little (`docs/protocol.md#WAN-2`).
pub const UNSTORED: u64 = 48 << 20;

/// Of the rate that was seen so much is still believed a look later.
const FADE: f64 = 0.875;

/// Ranges of a transfer that may be under way, by what came so far.
#[derive(Debug)]
pub struct Ahead {
    rtt: Duration,
    range_len: u64,
    least: usize,
    most: usize,
    /// Bytes a second: the highest of late.
    rate: f64,
    bytes: u64,
    at: Timestamp,
}

impl Ahead {
    /// For ranges of `range_len` bytes over a path of this round trip: never more than `most`, and two for each of
    /// `connections` if that is not more.
    pub fn new(rtt: Duration, range_len: u64, connections: usize, most: usize) -> Self {
        let (range_len, most) = (range_len.max(1), most.max(1));
        let least = (2 * connections).clamp(1, most);
        Self { rtt, range_len, least, most, rate: 0.0, bytes: 0, at: Timestamp::ZERO }
    }

    /// `bytes` have come so far.
    pub fn look(&mut self, now: Timestamp, bytes: u64) {
        let span = now.since(self.at).as_secs_f64();
        if span > 0.0 {
            let rate = bytes.saturating_sub(self.bytes) as f64 / span;
            self.rate = rate.max(FADE * self.rate);
            (self.at, self.bytes) = (now, bytes);
        }
    }

    /// Ranges that may be under way now.
    pub fn ranges(&self) -> usize {
        let on_the_way = (2.0 * self.rate * self.rtt.as_secs_f64()) as u64;
        let ranges = UNSTORED.saturating_add(on_the_way) / self.range_len;
        usize::try_from(ranges).unwrap_or(usize::MAX).clamp(self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::{Ahead, UNSTORED};
    use crate::time::{Duration, Timestamp};

    const LEN: u64 = 2 << 20;

    /// After three seconds at this rate, MB/s, by looks each 200 ms.
    fn after(rtt: u64, rate: u64, connections: usize, most: usize) -> Ahead {
        let mut ahead = Ahead::new(Duration::from_millis(rtt), LEN, connections, most);
        for look in 1..=15 {
            let now = Timestamp::ZERO + Duration::from_millis(200 * look);
            ahead.look(now, rate * 200_000 * look);
        }
        ahead
    }

    #[test]
    fn what_is_not_stored_stays_far_below_a_hundred_megabytes() {
        for (rtt, rate) in [(0, 2_000), (1, 2_000), (50, 62), (160, 100)] {
            let bytes = after(rtt, rate, 8, 128).ranges() as u64 * LEN;
            assert!((48_000_000..86_000_000).contains(&bytes), "{rtt} ms, {rate} MB/s: {bytes}");
        }
        assert_eq!(after(0, 2_000, 4, 128).ranges() as u64 * LEN, UNSTORED);
    }

    #[test]
    fn a_path_that_holds_much_is_asked_for_more_by_and_by_up_to_memory() {
        // 10 Gbit/s over 100 ms: 125 MB on their way, when as much may be asked for.
        let (rtt, most) = (Duration::from_millis(100), 256);
        let mut ahead = Ahead::new(rtt, LEN, 8, most);
        let mut came = 0;
        for look in 1..=10 {
            let asked = ahead.ranges() as u64 * LEN;
            came += (2 * asked).min(250_000_000);
            ahead.look(Timestamp::ZERO + Duration::from_millis(200 * look), came);
        }
        assert!(ahead.ranges() as u64 * LEN > 280_000_000, "{ahead:?}");
        assert_eq!(after(100, 100_000, 8, most).ranges(), most);
    }

    #[test]
    fn a_rate_that_was_is_forgotten_and_each_connection_has_two() {
        let mut ahead = after(100, 1_000, 4, 256);
        let before = ahead.ranges();
        for look in 16..60 {
            ahead.look(Timestamp::ZERO + Duration::from_millis(200 * look), 3_000_000_000);
        }
        assert!(before > 100 && ahead.ranges() as u64 * LEN <= UNSTORED + LEN, "{ahead:?}");
        assert_eq!(after(0, 10, 16, 256).ranges(), 32);
        assert_eq!(after(0, 10, 16, 20).ranges(), 20, "memory allows no more");
    }
}
