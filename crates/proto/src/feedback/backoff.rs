//! The NACK back-off: a truncated exponential, so that of many who lack the same a few speak first
//! (RFC 5401 section 3.2.2).

use crate::rng::Rng;
use crate::time::Duration;

/// A random wait in `0 ..= max` for a group of `group_size`.
///
/// RFC 5401: with λ = ln(group size) + 1 and x uniform in [λ/(T(e^λ − 1)), λ/(T(e^λ − 1)) + λ/T], the wait is
/// T/λ · ln(x (e^λ − 1) T/λ): most of the group near T, a few early.
pub(crate) fn truncated_exponential(max: Duration, group_size: u32, rng: &mut Rng) -> Duration {
    if max.is_zero() {
        return Duration::ZERO;
    }
    let lambda = libm::log(f64::from(group_size.max(1))) + 1.0;
    let spread = libm::exp(lambda) - 1.0;
    // x (e^λ − 1) T/λ with x = λ/T · (1/(e^λ − 1) + u) is 1 + u (e^λ − 1).
    let wait = libm::log(1.0 + rng.unit() * spread) / lambda;
    max.mul_f64(wait.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::truncated_exponential;
    use crate::rng::Rng;
    use crate::time::Duration;

    #[test]
    fn few_speak_early_whatever_the_group() {
        let max = Duration::from_millis(600);
        for group in [100u32, 1_000, 10_000] {
            let mut rng = Rng::new(u64::from(group));
            let waits = (0..group).map(|_| truncated_exponential(max, group, &mut rng));
            let early = waits.filter(|w| *w < max / 6).count();
            // One GRTT of six: until then nobody can have been silenced.
            assert!(early < 12, "{early} of {group} speak within the first GRTT");
        }
    }

    #[test]
    fn stays_within_the_limit() {
        let mut rng = Rng::new(1);
        assert!((0..1_000).all(|_| {
            truncated_exponential(Duration::from_millis(10), 50, &mut rng)
                <= Duration::from_millis(10)
        }));
        assert_eq!(truncated_exponential(Duration::ZERO, 50, &mut rng), Duration::ZERO);
    }
}
