//! What a path holds, and what loss leaves of it to one connection.

use crate::time::Duration;
use crate::units::Rate;

/// Payload of a TCP segment.
const SEGMENT: f64 = 1448.0;
/// Loss below this holds nobody.
const LOSS_MIN: f64 = 1e-7;

/// Bytes under way when `rate` is kept up over a round trip of `rtt`.
pub fn bdp(rate: Rate, rtt: Duration) -> u64 {
    rate.bytes_in(rtt)
}

/// What one connection of Reno (Mathis et al. 1997: (MSS/RTT)·√(3/2)/√p) or CUBIC (RFC 9438, section 5.1) reaches at
/// most, the greater of the two; `None` when too little is lost to hold it.
pub fn loss_bound(rtt: Duration, loss: f64) -> Option<Rate> {
    (loss > LOSS_MIN).then(|| {
        let rtt = rtt.as_secs_f64().max(1e-4);
        Rate::from_bps((window(rtt, loss) * SEGMENT * 8.0 / rtt) as u64)
    })
}

/// Mean window in segments.
fn window(rtt_s: f64, loss: f64) -> f64 {
    let reno = libm::sqrt(1.5 / loss);
    let cubic = 1.054 * libm::pow(rtt_s / loss, 0.75);
    reno.max(cubic)
}

#[cfg(test)]
mod tests {
    use super::{bdp, loss_bound};
    use crate::time::Duration;
    use crate::units::Rate;

    #[test]
    fn a_gigabit_over_a_tenth_of_a_second_holds_12_5_mb() {
        assert_eq!(bdp(Rate::from_mbps(1000), Duration::from_millis(100)), 12_500_000);
    }

    #[test]
    fn reno_at_one_loss_in_a_hundred_thousand_reaches_45_mbit_and_cubic_more() {
        // Mathis: 1448 bytes, 100 ms, p = 1e-5: 388 segments. CUBIC over the same way: 1054.
        let bound = loss_bound(Duration::from_millis(100), 1e-5).unwrap();
        assert!((120e6..124e6).contains(&(bound.bps() as f64)), "{bound}");
        // Over a short way CUBIC is no faster than Reno.
        let near = loss_bound(Duration::from_millis(1), 1e-2).unwrap();
        assert!((141e6..143e6).contains(&(near.bps() as f64)), "{near}");
        assert_eq!(loss_bound(Duration::from_millis(100), 0.0), None);
    }
}
