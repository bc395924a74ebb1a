//! The [transforms](super::transform) by the widest vectors that an x86 machine has.
//!
//! A constant is a few small tables, or with GFNI four maps of 8 bits to 8, made from 16 products when it is needed; the
//! crate's own engines make 8 MiB of tables at the first use. With AVX-512 the 64 bytes of 32 elements are one vector.
//!
//! Invariant: a type of `vectors!` is only made where the machine has its instructions; every `unsafe` here stands for
//! that, or for a vector read from or written to an array as long.
#![allow(unsafe_code)]

use super::transform::{Piece, Row, WIDTH};
use reed_solomon_simd::engine::{GF_MODULUS, GfElement, tables};
use std::array;

/// What the constant makes of each bit of an element.
type Products = [GfElement; 16];

fn products(log: GfElement) -> Products {
    let tables = tables::get_exp_log();
    array::from_fn(|bit| tables::mul(1 << bit, log, &tables.exp, &tables.log))
}

/// Of the transform's factor `index`. There, unlike in a product, the greatest logarithm is that of zero.
fn skew(index: usize) -> Products {
    let log = tables::get_skew()[index];
    if log == GF_MODULUS { [0; 16] } else { products(log) }
}

/// The transform's factors: so many, for up to 1024 source and 1024 repair symbols.
const SKEWS: usize = 2048;

/// Pieces of four runs of rows, as far apart as the narrower layer's pairs are.
type Four<'a> = [&'a mut [Piece]; 4];

fn four(rows: &mut [Row]) -> Four<'_> {
    let quarter = rows.len() / 4 * WIDTH;
    let (ab, cd) = rows.as_flattened_mut().split_at_mut(2 * quarter);
    let ((a, b), (c, d)) = (ab.split_at_mut(quarter), cd.split_at_mut(quarter));
    [a, b, c, d]
}

/// A module for one kind of vector. `Factor` is made of 16 products; `maps` readies it for `times`.
macro_rules! vectors {
    ($name:ident, $features:literal, $has:expr; $($item:item)*) => {
        pub(super) mod $name {
            use super::{Four, SKEWS, four, products, skew};
            use crate::codec::transform::{self, Row, Vectors, Wanted};
            use reed_solomon_simd::engine::GfElement;
            use std::iter::zip;
            use std::ops::Range;
            use std::sync::LazyLock;

            $($item)*

            static SKEW: LazyLock<Vec<Factor>> =
                LazyLock::new(|| (0..SKEWS).map(|index| Factor::new(skew(index))).collect());

            /// One step of a transform on a pair, or of its inverse; `None` is zero.
            #[target_feature(enable = $features)]
            fn butterfly<const INVERSE: bool>(x: &mut Lanes, y: &mut Lanes, by: Option<Maps>) {
                if INVERSE {
                    *y = y.plus(*x);
                }
                if let Some(maps) = by {
                    *x = x.plus(times(*y, maps));
                }
                if !INVERSE {
                    *y = y.plus(*x);
                }
            }

            /// Two layers: `near` and `far` are of the pairs (0, 1) and (2, 3), `wide` of both others.
            #[target_feature(enable = $features)]
            fn two_layers<const INVERSE: bool>(
                [s0, s1, s2, s3]: Four<'_>,
                [near, wide, far]: [Option<Maps>; 3],
            ) {
                for ((s0, s1), (s2, s3)) in zip(zip(s0, s1), zip(s2, s3)) {
                    let [mut a, mut b, mut c, mut d] =
                        [Lanes::load(s0), Lanes::load(s1), Lanes::load(s2), Lanes::load(s3)];
                    if INVERSE {
                        butterfly::<INVERSE>(&mut a, &mut b, near);
                        butterfly::<INVERSE>(&mut c, &mut d, far);
                    }
                    butterfly::<INVERSE>(&mut a, &mut c, wide);
                    butterfly::<INVERSE>(&mut b, &mut d, wide);
                    if !INVERSE {
                        butterfly::<INVERSE>(&mut a, &mut b, near);
                        butterfly::<INVERSE>(&mut c, &mut d, far);
                    }
                    a.store(s0);
                    b.store(s1);
                    c.store(s2);
                    d.store(s3);
                }
            }

            /// The same in all of `rows`; from point `first`, where anything is `wanted`. The factors at point 0 are zero.
            #[target_feature(enable = $features)]
            fn layers<const INVERSE: bool>(
                rows: &mut [Row],
                dist: usize,
                first: usize,
                wanted: impl Fn(Range<usize>) -> bool,
            ) {
                let skews = SKEW.as_slice();
                for from in (0..rows.len()).step_by(4 * dist) {
                    let all = from..from + 4 * dist;
                    if !wanted(all.clone()) {
                        continue;
                    }
                    let base = from + dist + first - 1;
                    let [near, wide, far] = [base, base + dist, base + 2 * dist].map(|i| &skews[i]);
                    let (four, far) = (four(&mut rows[all]), Some(maps(far)));
                    if from + first == 0 {
                        two_layers::<INVERSE>(four, [None, None, far]);
                    } else {
                        two_layers::<INVERSE>(four, [Some(maps(near)), Some(maps(wide)), far]);
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn layer<const INVERSE: bool>(x: &mut [Row], y: &mut [Row], index: usize) {
                let maps = (index + 1 != x.len()).then(|| maps(&SKEW[index]));
                for (x, y) in zip(x.as_flattened_mut(), y.as_flattened_mut()) {
                    let (mut a, mut b) = (Lanes::load(x), Lanes::load(y));
                    butterfly::<INVERSE>(&mut a, &mut b, maps);
                    a.store(x);
                    b.store(y);
                }
            }

            #[target_feature(enable = $features)]
            fn inverse(rows: &mut [Row], end: usize) {
                let (mut dist, mut span) = (1, 4);
                while span <= rows.len() {
                    layers::<true>(rows, dist, 0, |range| range.start < end);
                    (dist, span) = (span, span * 4);
                }
                if dist < rows.len() {
                    let (x, y) = rows.split_at_mut(dist);
                    layer::<true>(x, y, dist - 1);
                }
            }

            #[target_feature(enable = $features)]
            fn forward(rows: &mut [Row], first: usize, wanted: &Wanted) {
                // From the widest down.
                let (mut span, mut dist) = (rows.len(), rows.len() / 4);
                while dist != 0 {
                    layers::<false>(rows, dist, first, |range| wanted.any(range));
                    (span, dist) = (dist, dist / 4);
                }
                if span == 2 {
                    for (at, pair) in (0..).step_by(2).zip(rows.chunks_exact_mut(2)) {
                        if wanted.any(at..at + 2) {
                            let (x, y) = pair.split_at_mut(1);
                            layer::<false>(x, y, at + first);
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn derive(rows: &mut [Row], count: usize) {
                transform::derive(rows, count, |pieces, others| {
                    for (piece, other) in zip(pieces, others) {
                        Lanes::load(piece).plus(Lanes::load(other)).store(piece);
                    }
                });
            }

            #[target_feature(enable = $features)]
            fn multiply(row: &mut Row, factor: &Factor) {
                let maps = maps(factor);
                for lanes in row {
                    times(Lanes::load(lanes), maps).store(lanes);
                }
            }

            /// Stands for the instructions being there.
            pub(in super::super) struct Here(());

            impl Here {
                pub(in super::super) fn new() -> Option<Self> {
                    $has.then_some(Self(()))
                }
            }

            // SAFETY, of all that follow: the machine has the instructions, or there were no `self`.
            impl Vectors for Here {
                type Factor = Factor;

                fn factor(&self, log: GfElement) -> Factor {
                    Factor::new(products(log))
                }

                fn multiply(&self, row: &mut Row, by: Factor) {
                    unsafe { multiply(row, &by) }
                }

                fn inverse(&self, rows: &mut [Row], end: usize) {
                    unsafe { inverse(rows, end) }
                }

                fn forward(&self, rows: &mut [Row], first: usize, wanted: &Wanted) {
                    unsafe { forward(rows, first, wanted) }
                }

                fn derive(&self, rows: &mut [Row], count: usize) {
                    unsafe { derive(rows, count) }
                }
            }
        }
    };
}

/// For each four bits of an element, the lowest first, and each value of them: the low bytes and the high bytes of
/// what the constant makes of it.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Nibbles([[[u8; 16]; 2]; 4]);

impl Nibbles {
    fn new(products: Products) -> Self {
        let mut tables = [[[0; 16]; 2]; 4];
        for (table, bits) in tables.iter_mut().zip(products.as_chunks::<4>().0) {
            let mut sums = [0; 16];
            for (bit, product) in bits.iter().enumerate() {
                let (known, more) = sums[..2 << bit].split_at_mut(1 << bit);
                more.iter_mut().zip(known).for_each(|(sum, part)| *sum = *part ^ product);
            }
            *table = [sums.map(|sum: u16| sum as u8), sums.map(|sum| (sum >> 8) as u8)];
        }
        Self(tables)
    }
}

/// For processors with vectors of 32 bytes.
mod halves {
    use crate::codec::transform::Piece;
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256};

    /// 32 elements: low bytes, high bytes.
    #[derive(Clone, Copy)]
    pub(super) struct Lanes(pub(super) __m256i, pub(super) __m256i);

    impl Lanes {
        #[target_feature(enable = "avx2")]
        pub(super) fn load(from: &Piece) -> Self {
            let from = from.0.as_ptr().cast::<__m256i>();
            // SAFETY: 64 bytes are two vectors; the instruction needs no alignment.
            unsafe { Self(_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
        }

        #[target_feature(enable = "avx2")]
        pub(super) fn store(self, to: &mut Piece) {
            let to = to.0.as_mut_ptr().cast::<__m256i>();
            // SAFETY: as in `load`.
            unsafe {
                _mm256_storeu_si256(to, self.0);
                _mm256_storeu_si256(to.add(1), self.1);
            }
        }

        #[target_feature(enable = "avx2")]
        pub(super) fn plus(self, other: Self) -> Self {
            Self(_mm256_xor_si256(self.0, other.0), _mm256_xor_si256(self.1, other.1))
        }
    }
}

vectors! {
    avx2, "avx2", is_x86_feature_detected!("avx2");

    use super::Nibbles as Factor;
    use super::halves::Lanes;
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_set1_epi8,
        _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_xor_si256,
    };

    type Maps = [[__m256i; 2]; 4];

    #[target_feature(enable = "avx2")]
    fn maps(factor: &Factor) -> Maps {
        let wide = |table: &[u8; 16]| {
            // SAFETY: the table has 16 bytes; the instruction needs no alignment.
            _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) })
        };
        let [a, b, c, d] = &factor.0;
        [[wide(&a[0]), wide(&a[1])], [wide(&b[0]), wide(&b[1])], [wide(&c[0]), wide(&c[1])], [wide(&d[0]), wide(&d[1])]]
    }

    #[target_feature(enable = "avx2")]
    fn times(Lanes(lows, highs): Lanes, maps: Maps) -> Lanes {
        let mask = _mm256_set1_epi8(15);
        let low = |bytes| _mm256_and_si256(bytes, mask);
        let high = |bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
        let nibbles = [low(lows), high(lows), low(highs), high(highs)];
        let sum = |half: usize| {
            let part = |i: usize| _mm256_shuffle_epi8(maps[i][half], nibbles[i]);
            _mm256_xor_si256(_mm256_xor_si256(part(0), part(1)), _mm256_xor_si256(part(2), part(3)))
        };
        Lanes(sum(0), sum(1))
    }
}

vectors! {
    avx512, "avx512f,avx512bw", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");

    use super::Nibbles as Factor;
    use crate::codec::transform::Piece;
    use std::arch::x86_64::{
        __m128i, __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_loadu_si512,
        _mm512_mask_broadcast_i32x4, _mm512_set1_epi8, _mm512_shuffle_epi8, _mm512_shuffle_i64x2,
        _mm512_srli_epi16, _mm512_storeu_si512, _mm512_xor_si512,
    };

    /// 32 elements: low bytes, high bytes.
    #[derive(Clone, Copy)]
    struct Lanes(__m512i);

    /// Of each byte's low four bits and its high ones: what they give to the byte itself, then to the element's other.
    type Maps = [[__m512i; 2]; 2];

    #[target_feature(enable = "avx512f,avx512bw")]
    fn maps(factor: &Factor) -> Maps {
        // SAFETY: a table has 16 bytes; the instruction needs no alignment.
        let table = |table: &[u8; 16]| unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) };
        let halves = |low, high| {
            _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(table(low)), 0xff00, table(high))
        };
        let [a, b, c, d] = &factor.0;
        [[halves(&a[0], &c[1]), halves(&b[0], &d[1])], [halves(&a[1], &c[0]), halves(&b[1], &d[0])]]
    }

    impl Lanes {
        #[target_feature(enable = "avx512f,avx512bw")]
        fn load(from: &Piece) -> Self {
            // SAFETY: 64 bytes are a vector; the instruction needs no alignment.
            Self(unsafe { _mm512_loadu_si512(from.0.as_ptr().cast::<__m512i>()) })
        }

        #[target_feature(enable = "avx512f,avx512bw")]
        fn store(self, to: &mut Piece) {
            // SAFETY: as in `load`.
            unsafe { _mm512_storeu_si512(to.0.as_mut_ptr().cast::<__m512i>(), self.0) }
        }

        #[target_feature(enable = "avx512f,avx512bw")]
        fn plus(self, other: Self) -> Self {
            Self(_mm512_xor_si512(self.0, other.0))
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn times(Lanes(bytes): Lanes, [own, other]: Maps) -> Lanes {
        let mask = _mm512_set1_epi8(15);
        let low = _mm512_and_si512(bytes, mask);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask);
        let product = |[of_low, of_high]: [__m512i; 2]| {
            _mm512_xor_si512(_mm512_shuffle_epi8(of_low, low), _mm512_shuffle_epi8(of_high, high))
        };
        let other = product(other);
        Lanes(_mm512_xor_si512(product(own), _mm512_shuffle_i64x2::<0b01_00_11_10>(other, other)))
    }
}

vectors! {
    gfni, "avx2,gfni", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni");

    use super::halves::Lanes;
    use super::{Products, transposed};
    use std::arch::x86_64::{__m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_set1_epi64x, _mm256_xor_si256};

    /// A product is a linear map of 16 bits, four maps of 8 bits to 8: low to low, high to low, low to high, high to high.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Factor(pub(super) [u64; 4]);

    type Maps = [__m256i; 4];

    impl Factor {
        pub(super) fn new(products: Products) -> Self {
            let mut columns = [[0; 8]; 4];
            for (bit, column) in (0..16).zip((0..8).cycle()) {
                let [low, high] = products[bit].to_le_bytes();
                let from = bit / 8;
                columns[from][column] = low;
                columns[2 + from][column] = high;
            }
            Self(columns.map(|columns| transposed(u64::from_le_bytes(columns)).swap_bytes()))
        }
    }

    #[target_feature(enable = "avx2,gfni")]
    fn maps(factor: &Factor) -> Maps {
        let [a, b, c, d] = factor.0.map(u64::cast_signed);
        [_mm256_set1_epi64x(a), _mm256_set1_epi64x(b), _mm256_set1_epi64x(c), _mm256_set1_epi64x(d)]
    }

    #[target_feature(enable = "avx2,gfni")]
    fn times(Lanes(lows, highs): Lanes, maps: Maps) -> Lanes {
        let low = _mm256_xor_si256(
            _mm256_gf2p8affine_epi64_epi8::<0>(lows, maps[0]),
            _mm256_gf2p8affine_epi64_epi8::<0>(highs, maps[1]),
        );
        let high = _mm256_xor_si256(
            _mm256_gf2p8affine_epi64_epi8::<0>(lows, maps[2]),
            _mm256_gf2p8affine_epi64_epi8::<0>(highs, maps[3]),
        );
        Lanes(low, high)
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

#[cfg(test)]
mod tests {
    use super::{gfni, products};
    use proptest::prelude::{any, proptest};
    use reed_solomon_simd::engine::tables;

    /// `GF2P8AFFINEQB` of one byte: bit i is the parity of byte 7 − i of the map, where the byte has ones (Intel's manual).
    fn mapped(map: u64, byte: u8) -> u8 {
        (0..8).map(|i| ((map.to_be_bytes()[i] & byte).count_ones() as u8 & 1) << i).sum()
    }

    proptest! {
        /// Also where the machine does not have the instruction.
        #[test]
        fn four_maps_are_a_product(element in any::<u16>(), log in any::<u16>()) {
            let gfni::Factor([ll, hl, lh, hh]) = gfni::Factor::new(products(log));
            let [low, high] = element.to_le_bytes();
            let product = [mapped(ll, low) ^ mapped(hl, high), mapped(lh, low) ^ mapped(hh, high)];
            let tables = tables::get_exp_log();
            assert_eq!(u16::from_le_bytes(product), tables::mul(element, log, &tables.exp, &tables.log));
        }
    }
}
