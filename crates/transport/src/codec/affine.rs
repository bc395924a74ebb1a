//! An engine for reed-solomon-simd by GFNI: less work than its own ones, and none of their 8 MiB of tables.
//!
//! A product with a constant of GF(2^16) is a linear map of 16 bits: four maps of 8 bits to 8, which the instruction
//! `GF2P8AFFINEQB` each does for 32 bytes at a time. A constant so is 32 bytes, made when it is needed; the crate's own
//! engines look products up in a table of 128 bytes for each of 65,536 constants, which costs a process
//! that repairs a single block the making of them all.
//!
//! Layout: as the crate's shards have it, 64 bytes are 32 elements, their low bytes first.
//!
//! Invariant: [`Affine::new`] gives an engine only where the machine has the instructions; every `unsafe` here stands for
//! that, or for a vector read from or written to an array of 64 bytes.
#![allow(unsafe_code)]

use reed_solomon_simd::engine::{Engine, GF_MODULUS, GfElement, ShardsRefMut, tables};
use std::arch::x86_64::{
    __m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi64x,
    _mm256_storeu_si256, _mm256_xor_si256,
};
use std::iter::zip;
use std::sync::LazyLock;

/// What 64 bytes are multiplied by: the maps low to low, high to low, low to high, high to high.
#[derive(Clone, Copy)]
struct Factor([u64; 4]);

/// The transform's factors ("skew") by their index, as far as blocks of 1024 source and 1024 repair symbols need them.
static SKEW: LazyLock<Vec<Factor>> = LazyLock::new(|| (0..2048).map(Factor::skew).collect());

impl Factor {
    /// The constant whose logarithm is `log`.
    fn new(log: GfElement) -> Self {
        let tables = tables::get_exp_log();
        let product = |bit: u32| tables::mul(1 << bit, log, &tables.exp, &tables.log);
        let mut columns = [[0; 8]; 4];
        for (bit, column) in (0..16).zip((0..8).cycle()) {
            let [low, high] = product(bit).to_le_bytes();
            let from = (bit / 8) as usize;
            columns[from][column] = low;
            columns[2 + from][column] = high;
        }
        Self(columns.map(|columns| transposed(u64::from_le_bytes(columns)).swap_bytes()))
    }

    /// The transform's factor `index`. There, unlike in a product, the greatest logarithm is that of zero.
    fn skew(index: usize) -> Self {
        let log = tables::get_skew()[index];
        if log == GF_MODULUS { Self([0; 4]) } else { Self::new(log) }
    }
}

/// The 8 × 8 bits of `rows`, mirrored (Warren, Hacker's Delight, section 7-3).
fn transposed(rows: u64) -> u64 {
    let swapped = |rows: u64, mask: u64, by: u32| {
        let moved = (rows ^ rows >> by) & mask;
        rows ^ moved ^ moved << by
    };
    let rows = swapped(rows, 0x00aa_00aa_00aa_00aa, 7);
    let rows = swapped(rows, 0x0000_cccc_0000_cccc, 14);
    swapped(rows, 0x0000_0000_f0f0_f0f0, 28)
}

/// See the module.
pub(super) struct Affine(());

impl Affine {
    /// An engine, if the machine has the instructions for it.
    pub(super) fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni");
        has.then_some(Self(()))
    }

    /// Two layers of a transform: of shards `dist` and twice as far apart.
    fn two_layers<const INVERSE: bool>(
        &self,
        data: &mut ShardsRefMut<'_>,
        pos: usize,
        end: usize,
        dist: usize,
        skew_delta: usize,
    ) {
        for from in (0..end).step_by(4 * dist) {
            let base = from + dist + skew_delta - 1;
            let factors = [base, base + dist, base + 2 * dist].map(skew);
            for at in from..from + dist {
                let four = data.dist4_mut(pos + at, dist);
                // SAFETY: the machine has the instructions, or there were no `self`.
                unsafe { two_layers::<INVERSE>(four, factors) };
            }
        }
    }
}

/// The factor by its index.
fn skew(index: usize) -> Factor {
    SKEW.get(index).copied().unwrap_or_else(|| Factor::skew(index))
}

impl Engine for Affine {
    fn fft(
        &self,
        data: &mut ShardsRefMut<'_>,
        pos: usize,
        size: usize,
        truncated_size: usize,
        skew_delta: usize,
    ) {
        // Two layers at a time, from the widest down.
        let (mut span, mut dist) = (size, size / 4);
        while dist != 0 {
            self.two_layers::<false>(data, pos, truncated_size, dist, skew_delta);
            (span, dist) = (dist, dist / 4);
        }
        if span == 2 {
            for from in (0..truncated_size).step_by(2) {
                let (x, y) = data.dist2_mut(pos + from, 1);
                // SAFETY: as in `two_layers`.
                unsafe { layer::<false>(x, y, skew(from + skew_delta)) };
            }
        }
    }

    fn ifft(
        &self,
        data: &mut ShardsRefMut<'_>,
        pos: usize,
        size: usize,
        truncated_size: usize,
        skew_delta: usize,
    ) {
        let (mut dist, mut span) = (1, 4);
        while span <= size {
            self.two_layers::<true>(data, pos, truncated_size, dist, skew_delta);
            (dist, span) = (span, span * 4);
        }
        if dist < size {
            let factor = skew(dist + skew_delta - 1);
            for at in pos..pos + dist {
                let (x, y) = data.dist2_mut(at, dist);
                // SAFETY: as in `two_layers`.
                unsafe { layer::<true>(x, y, factor) };
            }
        }
    }

    fn mul(&self, x: &mut [[u8; 64]], log_m: GfElement) {
        // SAFETY: as in `two_layers`.
        unsafe { multiply(x, Factor::new(log_m)) }
    }
}

/// 32 elements: low bytes, high bytes.
#[derive(Clone, Copy)]
struct Lanes(__m256i, __m256i);

impl Lanes {
    #[target_feature(enable = "avx2,gfni")]
    fn load(from: &[u8; 64]) -> Self {
        let from = from.as_ptr().cast::<__m256i>();
        // SAFETY: 64 bytes are two vectors; the instruction needs no alignment.
        unsafe { Self(_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
    }

    #[target_feature(enable = "avx2,gfni")]
    fn store(self, to: &mut [u8; 64]) {
        let to = to.as_mut_ptr().cast::<__m256i>();
        // SAFETY: as in `load`.
        unsafe {
            _mm256_storeu_si256(to, self.0);
            _mm256_storeu_si256(to.add(1), self.1);
        }
    }

    #[target_feature(enable = "avx2,gfni")]
    fn plus(self, other: Self) -> Self {
        Self(_mm256_xor_si256(self.0, other.0), _mm256_xor_si256(self.1, other.1))
    }

    #[target_feature(enable = "avx2,gfni")]
    fn times(self, maps: [__m256i; 4]) -> Self {
        let low = _mm256_xor_si256(
            _mm256_gf2p8affine_epi64_epi8::<0>(self.0, maps[0]),
            _mm256_gf2p8affine_epi64_epi8::<0>(self.1, maps[1]),
        );
        let high = _mm256_xor_si256(
            _mm256_gf2p8affine_epi64_epi8::<0>(self.0, maps[2]),
            _mm256_gf2p8affine_epi64_epi8::<0>(self.1, maps[3]),
        );
        Self(low, high)
    }
}

impl Factor {
    #[target_feature(enable = "avx2,gfni")]
    fn maps(self) -> [__m256i; 4] {
        let [a, b, c, d] = self.0.map(u64::cast_signed);
        [_mm256_set1_epi64x(a), _mm256_set1_epi64x(b), _mm256_set1_epi64x(c), _mm256_set1_epi64x(d)]
    }
}

#[target_feature(enable = "avx2,gfni")]
fn multiply(x: &mut [[u8; 64]], factor: Factor) {
    let maps = factor.maps();
    for lanes in x {
        Lanes::load(lanes).times(maps).store(lanes);
    }
}

/// One step of the transform on a pair, or of its inverse.
#[target_feature(enable = "avx2,gfni")]
fn butterfly<const INVERSE: bool>(x: Lanes, y: Lanes, maps: [__m256i; 4]) -> (Lanes, Lanes) {
    if INVERSE {
        let y = y.plus(x);
        (x.plus(y.times(maps)), y)
    } else {
        let x = x.plus(y.times(maps));
        (x, y.plus(x))
    }
}

#[target_feature(enable = "avx2,gfni")]
fn layer<const INVERSE: bool>(x: &mut [[u8; 64]], y: &mut [[u8; 64]], factor: Factor) {
    let maps = factor.maps();
    for (x, y) in zip(x, y) {
        let (to_x, to_y) = butterfly::<INVERSE>(Lanes::load(x), Lanes::load(y), maps);
        to_x.store(x);
        to_y.store(y);
    }
}

/// Four shards as far apart as the narrower layer's pairs are.
type Four<'a> = (&'a mut [[u8; 64]], &'a mut [[u8; 64]], &'a mut [[u8; 64]], &'a mut [[u8; 64]]);

/// `factors`: of the pair (0, 1), of both wide pairs, of the pair (2, 3).
#[target_feature(enable = "avx2,gfni")]
fn two_layers<const INVERSE: bool>((s0, s1, s2, s3): Four<'_>, factors: [Factor; 3]) {
    let [near, wide, far] = factors.map(|factor| factor.maps());
    for ((s0, s1), (s2, s3)) in zip(zip(s0, s1), zip(s2, s3)) {
        let mut x = [Lanes::load(s0), Lanes::load(s1), Lanes::load(s2), Lanes::load(s3)];
        if INVERSE {
            (x[0], x[1]) = butterfly::<INVERSE>(x[0], x[1], near);
            (x[2], x[3]) = butterfly::<INVERSE>(x[2], x[3], far);
        }
        (x[0], x[2]) = butterfly::<INVERSE>(x[0], x[2], wide);
        (x[1], x[3]) = butterfly::<INVERSE>(x[1], x[3], wide);
        if !INVERSE {
            (x[0], x[1]) = butterfly::<INVERSE>(x[0], x[1], near);
            (x[2], x[3]) = butterfly::<INVERSE>(x[2], x[3], far);
        }
        x[0].store(s0);
        x[1].store(s1);
        x[2].store(s2);
        x[3].store(s3);
    }
}

#[cfg(test)]
mod tests {
    use super::Affine;
    use proptest::prelude::{any, proptest};
    use reed_solomon_simd::engine::{Engine, Naive, ShardsRefMut};

    proptest! {
        /// Also beyond the factors that are kept.
        #[test]
        fn it_does_what_the_crates_plainest_engine_does(
            (log_size, width, log_m) in (0usize..=6, 1usize..=3, any::<u16>()),
            (skew, truncated) in (0usize..=40, 1usize..=64),
            bytes in proptest::collection::vec(any::<u8>(), 64 * 64 * 3),
        ) {
            let Some(affine) = Affine::new() else { return Ok(()) };
            let size = 1 << log_size;
            let (truncated, skew) = (truncated.min(size), skew * size);
            let made = |engine: &dyn Engine| {
                let mut data: Vec<[u8; 64]> =
                    bytes.as_chunks().0.iter().take(size * width).copied().collect();
                engine.mul(&mut data[..width], log_m);
                let mut shards = ShardsRefMut::new(size, width, &mut data);
                engine.ifft(&mut shards, 0, size, size, skew);
                engine.fft(&mut shards, 0, size, truncated, skew + size);
                data.truncate(truncated * width);
                data
            };
            assert!(made(&affine) == made(&Naive::new()));
        }
    }
}
