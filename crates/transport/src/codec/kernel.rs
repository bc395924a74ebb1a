//! Sums of products of whole symbols, by the widest vectors that the machine has.
//!
//! How: the symbols are cut into strips of two vectors. Of each strip the sums of four outputs are made at a time, in
//! registers, while the inputs' strips stay in the first cache. The last strip overlaps the one before it: an output
//! is overwritten, never added to, so making a byte twice does no harm. Symbols shorter than a strip, and
//! machines without these instructions, get the scalar form in `gf256`.
//!
//! Invariant: with `transform`, `vectors`, `prefetch`, `udp/sys` and `turns` the only `unsafe` of this crate. Each
//! stands for one of two things: a function compiled for instructions whose presence [`Kernel::best`] has seen, or a
//! vector read from or written to a slice whose length was checked in the same line.
#![allow(unsafe_code)]

use super::gf256;

/// By which instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Scalar,
    /// Products by two look-ups of 16 entries.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Products by one instruction, 32 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Gfni,
    /// The same, 64 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Gfni512,
}

impl Kernel {
    /// The fastest that this machine has.
    pub(super) fn best() -> Self {
        Self::all().last().copied().unwrap_or(Self::Scalar)
    }

    /// Those that this machine has, the fastest last.
    pub(super) fn all() -> Vec<Self> {
        let mut all = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            all.push(Self::Avx2);
            if is_x86_feature_detected!("gfni") {
                all.push(Self::Gfni);
                if is_x86_feature_detected!("avx512f") {
                    all.push(Self::Gfni512);
                }
            }
        }
        all
    }
}

/// Outputs of which one strip is made at a time.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 4;

/// Makes each output the sum of all inputs, each times its factor: those of the first output first.
pub(super) fn combine(kernel: Kernel, outs: &mut [&mut [u8]], ins: &[&[u8]], factors: &[u8]) {
    let len = outs.first().map_or(0, |out| out.len());
    assert_eq!(factors.len(), outs.len() * ins.len());
    assert!(
        outs.iter().all(|out| out.len() == len) && ins.iter().all(|symbol| symbol.len() == len)
    );
    match kernel {
        // SAFETY, all three: a kernel is only had from `Kernel::all`, which saw that the machine has it.
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 if len >= avx2::STRIP => unsafe { avx2::combine(outs, ins, factors) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Gfni if len >= gfni::STRIP => unsafe { gfni::combine(outs, ins, factors) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Gfni512 if len >= gfni512::STRIP => unsafe { gfni512::combine(outs, ins, factors) },
        _ => gf256::combine(outs, ins, factors),
    }
}

/// The factors of each [`ROWS`] outputs in the order in which they are used: those of the first input first.
#[cfg(target_arch = "x86_64")]
fn by_input(factors: &[u8], ins: usize) -> Vec<u8> {
    let rows = factors.chunks(ROWS * ins);
    rows.flat_map(|rows| (0..ins).flat_map(move |i| rows.iter().skip(i).step_by(ins).copied()))
        .collect()
}

/// A module with `combine` for one kind of vector. `prepare` makes of a factor what `times` multiplies a vector by.
macro_rules! vectors {
    (
        $name:ident, $features:literal, $vector:ident;
        $zero:ident, $xor:ident, $load:ident, $store:ident;
        $($item:item)*
    ) => {
        #[cfg(target_arch = "x86_64")]
        mod $name {
            use std::arch::x86_64::{$load, $store, $vector, $xor, $zero};

            $($item)*

            const WIDTH: usize = size_of::<$vector>();
            pub(super) const STRIP: usize = 2 * WIDTH;

            #[target_feature(enable = $features)]
            fn load(symbol: &[u8], at: usize) -> [$vector; 2] {
                let strip = &symbol[at..at + STRIP];
                // SAFETY: `strip` has two vectors' bytes; the instruction needs no alignment.
                unsafe { [$load(strip.as_ptr().cast()), $load(strip.as_ptr().add(WIDTH).cast())] }
            }

            #[target_feature(enable = $features)]
            fn store(symbol: &mut [u8], at: usize, sum: [$vector; 2]) {
                let strip = &mut symbol[at..at + STRIP];
                // SAFETY: as in `load`.
                unsafe {
                    $store(strip.as_mut_ptr().cast(), sum[0]);
                    $store(strip.as_mut_ptr().add(WIDTH).cast(), sum[1]);
                }
            }

            /// One strip of `N` outputs.
            #[target_feature(enable = $features)]
            fn strip<const N: usize>(
                outs: &mut [&mut [u8]],
                ins: &[&[u8]],
                factors: &[[u8; N]],
                at: usize,
            ) {
                let mut sums = [[$zero(); 2]; N];
                for (symbol, factors) in ins.iter().zip(factors) {
                    let strip = load(symbol, at);
                    for (sum, factor) in sums.iter_mut().zip(factors) {
                        let factor = prepare(*factor);
                        sum[0] = $xor(sum[0], times(strip[0], factor));
                        sum[1] = $xor(sum[1], times(strip[1], factor));
                    }
                }
                for (out, sum) in outs.iter_mut().zip(sums) {
                    store(out, at, sum);
                }
            }

            #[target_feature(enable = $features)]
            pub(super) fn combine(outs: &mut [&mut [u8]], ins: &[&[u8]], factors: &[u8]) {
                let len = outs.first().map_or(0, |out| out.len());
                let factors = super::by_input(factors, ins.len());
                let mut from = 0;
                while from < len {
                    let at = from.min(len - STRIP);
                    let factors = factors.chunks(super::ROWS * ins.len());
                    for (outs, factors) in outs.chunks_mut(super::ROWS).zip(factors) {
                        match outs.len() {
                            4 => strip::<4>(outs, ins, factors.as_chunks().0, at),
                            3 => strip::<3>(outs, ins, factors.as_chunks().0, at),
                            2 => strip::<2>(outs, ins, factors.as_chunks().0, at),
                            _ => strip::<1>(outs, ins, factors.as_chunks().0, at),
                        }
                    }
                    from += STRIP;
                }
            }
        }
    };
}

vectors! {
    avx2, "avx2", __m256i;
    _mm256_setzero_si256, _mm256_xor_si256, _mm256_loadu_si256, _mm256_storeu_si256;

    use crate::codec::gf256::NIBBLES;
    use std::arch::x86_64::{
        __m128i, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_set1_epi8,
        _mm256_shuffle_epi8, _mm256_srli_epi16, _mm_loadu_si128,
    };

    #[target_feature(enable = "avx2")]
    fn prepare(factor: u8) -> [__m256i; 2] {
        let table = NIBBLES[usize::from(factor)].as_ptr().cast::<__m128i>();
        // SAFETY: the table has 32 bytes: two vectors of 16.
        let halves = unsafe { [_mm_loadu_si128(table), _mm_loadu_si128(table.add(1))] };
        [_mm256_broadcastsi128_si256(halves[0]), _mm256_broadcastsi128_si256(halves[1])]
    }

    #[target_feature(enable = "avx2")]
    fn times(vector: __m256i, factor: [__m256i; 2]) -> __m256i {
        let mask = _mm256_set1_epi8(15);
        let low = _mm256_and_si256(vector, mask);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(vector), mask);
        _mm256_xor_si256(_mm256_shuffle_epi8(factor[0], low), _mm256_shuffle_epi8(factor[1], high))
    }
}

vectors! {
    gfni, "avx2,gfni", __m256i;
    _mm256_setzero_si256, _mm256_xor_si256, _mm256_loadu_si256, _mm256_storeu_si256;

    use std::arch::x86_64::{_mm256_gf2p8mul_epi8, _mm256_set1_epi8};

    #[target_feature(enable = "avx2,gfni")]
    fn prepare(factor: u8) -> __m256i {
        _mm256_set1_epi8(factor.cast_signed())
    }

    #[target_feature(enable = "avx2,gfni")]
    fn times(vector: __m256i, factor: __m256i) -> __m256i {
        _mm256_gf2p8mul_epi8(vector, factor)
    }
}

vectors! {
    gfni512, "avx512f,gfni", __m512i;
    _mm512_setzero_si512, _mm512_xor_si512, _mm512_loadu_si512, _mm512_storeu_si512;

    use std::arch::x86_64::{_mm512_gf2p8mul_epi8, _mm512_set1_epi8};

    #[target_feature(enable = "avx512f,gfni")]
    fn prepare(factor: u8) -> __m512i {
        _mm512_set1_epi8(factor.cast_signed())
    }

    #[target_feature(enable = "avx512f,gfni")]
    fn times(vector: __m512i, factor: __m512i) -> __m512i {
        _mm512_gf2p8mul_epi8(vector, factor)
    }
}

#[cfg(test)]
mod tests {
    use super::{Kernel, combine};
    use proptest::prelude::{any, proptest};

    proptest! {
        #[test]
        fn every_kernel_says_what_the_scalar_one_says(
            (outs, ins, len) in (1usize..=9, 1usize..=9, 1usize..=700),
            bytes in proptest::collection::vec(any::<u8>(), 9 * 700 + 81),
        ) {
            let (bytes, factors) = bytes.split_at(9 * 700);
            let ins: Vec<&[u8]> = bytes.chunks_exact(len).take(ins).collect();
            let factors = &factors[..outs * ins.len()];
            let made = |kernel| {
                let mut sums = vec![vec![0xaa; len]; outs];
                let mut rows: Vec<&mut [u8]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
                combine(kernel, &mut rows, &ins, factors);
                sums
            };
            let scalar = made(Kernel::Scalar);
            for kernel in Kernel::all() {
                assert!(made(kernel) == scalar, "{kernel:?}");
            }
        }
    }
}
