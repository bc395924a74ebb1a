//! Which queue a path is to hold (`docs/protocol.md#RATE-9`).
//!
//! Long enough that the link is never idle, short for all else: it falls with the rate, so that two sessions of unlike rates
//! move towards each other, and where the full queue is short it is a share of that.
//!
//! Where even the full queue is short beside the round trip, TCP's window needs long without a loss to grow, and finds room
//! for its bursts in the rest of the queue only. Sessions that hear one another divide the link by the queue that each
//! holds, and need all of its span.

/// Queue at [`AT`], in seconds; it falls with the fourth root of the rate.
const QUEUE: f64 = 0.007;
/// Share of a short queue that is held at [`AT`], the power of the rate with which it falls (the only thing that brings two
/// sessions together where the queue is short), and its bounds.
const SHARE: f64 = 0.4;
const SHARE_POWER: f64 = 0.3;
const SHARE_BOUNDS: (f64, f64) = (0.15, 0.7);
/// Below this part of the round trip a full queue is shallow, and at most that share of it is held unless neighbours are heard;
/// where it is very shallow, the least share.
const SHALLOW: f64 = 0.3;
const SHALLOW_SHARE: f64 = 0.4;
const VERY_SHALLOW: f64 = 0.1;
/// 100 Mbit/s, in bytes per second.
const AT: f64 = 12.5e6;
/// Bounds of the queue, in seconds.
pub(super) const QUEUE_MIN: f64 = 0.001;
pub(super) const QUEUE_MAX: f64 = 0.020;
/// Bytes in a full datagram, for the least sensible queue.
pub(super) const PACKET: f64 = 1500.0;

/// The queue to hold, in seconds, at `capacity` (bytes/s). `full`: where it overflows, if that is known; `rtt`: the shortest
/// round trip, in seconds; `is_shared`: neighbours are heard on this link.
pub(super) fn wish(capacity: f64, full: Option<f64>, rtt: f64, is_shared: bool) -> f64 {
    if capacity <= 0.0 {
        return QUEUE_MAX;
    }
    let wish = QUEUE * libm::sqrt(libm::sqrt(AT / capacity));
    let share = SHARE * libm::pow(AT / capacity, SHARE_POWER);
    let of_full = full.map_or(f64::MAX, |full| {
        let (least, most) = SHARE_BOUNDS;
        let most = match () {
            () if is_shared || full >= SHALLOW * rtt => most,
            () if is_very_shallow(full, rtt) => least,
            () => SHALLOW_SHARE,
        };
        full * share.clamp(least, most)
    });
    wish.min(QUEUE_MAX).min(of_full).max(QUEUE_MIN).max(1.5 * PACKET / capacity)
}

/// Whether a full queue is so short beside the round trip, both in seconds, that TCP is for long without what it loses there.
pub(super) fn is_very_shallow(full: f64, rtt: f64) -> bool {
    full < VERY_SHALLOW * rtt
}

#[cfg(test)]
mod tests {
    use super::{QUEUE_MAX, wish};

    #[test]
    fn faster_links_get_shorter_queues() {
        assert_eq!(wish(0.0, None, 0.01, false), QUEUE_MAX);
        assert_eq!(wish(12.5e6, None, 0.01, false), 0.007);
        assert!(wish(1.25e6, None, 0.01, false) > 0.012);
        assert!(wish(125e6, None, 0.01, false) < 0.004);
    }

    #[test]
    fn of_a_queue_that_is_short_beside_the_round_trip_more_is_left_to_strangers() {
        let (capacity, full) = (2.5e6, Some(0.006));
        let held = |rtt, is_shared| wish(capacity, full, rtt, is_shared) / 0.006;
        assert!((held(0.05, false) - 0.4).abs() < 1e-9, "{}", held(0.05, false));
        // At least a millisecond is held.
        assert!((held(0.1, false) - 1.0 / 6.0).abs() < 1e-9, "{}", held(0.1, false));
        // The same queue, where the round trip is short, and where sessions divide it by what they hold.
        assert!(held(0.01, false) > 0.6, "{}", held(0.01, false));
        assert_eq!(held(0.05, true), held(0.01, false));
    }
}
