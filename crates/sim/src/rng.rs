//! Randomness from one seed: xoshiro256++, seeded through splitmix64.
//!
//! Own and small, so that a printed seed replays on every platform and with every version of the
//! dependencies.

/// A deterministic generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut seeds = downpour_proto::Rng::new(seed);
        Self { state: std::array::from_fn(|_| seeds.next_u64()) }
    }

    /// Another generator, independent of this one from here on.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Evenly in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Evenly in `[0, end)`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// How many trials fail before the first success of probability `p`; huge when `p` is 0.
    pub fn geometric(&mut self, p: f64) -> u64 {
        if p <= 0.0 {
            return u64::MAX;
        }
        if p >= 1.0 {
            return 0;
        }
        ((1.0 - self.unit()).ln() / (1.0 - p).ln()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn same_seed_same_stream() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let draw = |r: &mut Rng| (0..50).map(|_| r.next_u64()).collect::<Vec<_>>();
        let first = draw(&mut a);
        assert_eq!(first, draw(&mut b));
        assert_ne!(first, draw(&mut c));
    }

    #[test]
    fn geometric_has_the_right_mean() {
        let mut rng = Rng::new(1);
        let n = 100_000;
        let sum: u64 = (0..n).map(|_| rng.geometric(0.05)).sum();
        let mean = sum as f64 / n as f64;
        assert!((mean - 19.0).abs() < 0.3, "{mean}");
    }
}
