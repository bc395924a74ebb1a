//! The group's round trip, after RFC 5401 section 5.1 (GRTT): the greatest round trip among the receivers that
//! answer, falling slowly when a greater one is no longer heard.

use crate::time::Duration;

/// Least value: below it timers would be shorter than a scheduler's tick.
pub const GRTT_MIN: Duration = Duration::from_micros(200);

/// Greatest value: what RFC 5401 suggests for the Internet.
pub const GRTT_MAX: Duration = Duration::from_secs(15);

/// Estimates the group's round trip.
#[derive(Clone, Debug)]
pub struct Grtt {
    value: Duration,
    /// Greatest sample of the current round.
    peak: Duration,
    /// The greatest that a join showed.
    joined: Option<Duration>,
    /// Somebody has answered.
    is_measured: bool,
}

impl Grtt {
    /// Starts from a guess.
    pub fn new(guess: Duration) -> Self {
        let value = guess.clamp(GRTT_MIN, GRTT_MAX);
        Self { value, peak: Duration::ZERO, joined: None, is_measured: false }
    }

    /// A receiver's round trip as its join showed it: the greatest, but no more than `most`, counts until one has answered.
    pub fn on_join(&mut self, rtt: Duration, most: Duration) {
        let greatest = self.joined.map_or(rtt, |joined| joined.max(rtt));
        self.joined = Some(greatest);
        if !self.is_measured {
            self.value = greatest.min(most).clamp(GRTT_MIN, GRTT_MAX);
        }
    }

    /// A receiver's round trip.
    pub fn on_sample(&mut self, rtt: Duration) {
        self.peak = self.peak.max(rtt);
    }

    /// A round ends: a greater peak counts at once up to twice the value (one late wake-up is not the
    /// group's round trip), a lesser one by a tenth a round (RFC 5401 section 5.1).
    pub fn on_round(&mut self) {
        if self.peak.is_zero() {
            return;
        }
        self.is_measured = true;
        self.value = if self.peak > self.value {
            self.peak.min(self.value * 2)
        } else {
            self.peak.max(self.value * 9 / 10)
        }
        .clamp(GRTT_MIN, GRTT_MAX);
        self.peak = Duration::ZERO;
    }

    /// The estimate.
    pub const fn value(&self) -> Duration {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::{GRTT_MIN, Grtt};
    use crate::time::Duration;

    #[test]
    fn follows_the_slowest_up_fast_and_down_slowly() {
        let ms = Duration::from_millis;
        let mut grtt = Grtt::new(ms(10));
        grtt.on_sample(ms(5));
        grtt.on_sample(ms(15));
        grtt.on_round();
        assert_eq!(grtt.value(), ms(15));
        grtt.on_sample(ms(1));
        grtt.on_round();
        assert_eq!(grtt.value(), ms(15) * 9 / 10);
        grtt.on_round();
        assert_eq!(grtt.value(), ms(15) * 9 / 10, "a round without answers says nothing");
        for _ in 0..100 {
            grtt.on_sample(Duration::from_nanos(1));
            grtt.on_round();
        }
        assert_eq!(grtt.value(), GRTT_MIN);
    }

    #[test]
    fn what_joins_show_counts_until_somebody_answers() {
        let ms = Duration::from_millis;
        let mut grtt = Grtt::new(ms(20));
        for (joins, value) in [(1, 1), (3, 3), (2, 3)] {
            grtt.on_join(ms(joins), ms(20));
            assert_eq!(grtt.value(), ms(value));
        }
        grtt.on_round();
        grtt.on_join(ms(200), ms(20));
        assert_eq!(grtt.value(), ms(20), "nobody has answered");
        grtt.on_join(ms(4), ms(1_000));
        assert_eq!(grtt.value(), ms(200), "by now there are many");
        grtt.on_sample(ms(5));
        grtt.on_round();
        grtt.on_join(ms(300), ms(1_000));
        assert_eq!(grtt.value(), ms(180));
    }
}
