//! Systematic Reed–Solomon over GF(2^16), reed-solomon-simd's *low-rate* form: up to 1024 source and 1024 repair symbols.
//!
//! How: the source symbols are the values of a polynomial at the first points, the repair symbols its values at the next
//! ones ([`transform`](super::transform)). It is done strip by strip: 384 bytes of all symbols at a time. Making some
//! repair symbols costs nearly as much as making all up to their end; rebuilding costs little less where little was lost.

use super::transform::{Piece, Plain, Row, Vectors, WIDTH, Wanted};
#[cfg(target_arch = "x86_64")]
use super::vectors;
use super::{CodecError, SymbolSet};
use reed_solomon_simd::engine::{GF_MODULUS, GF_ORDER, GfElement, tables};
use std::iter::{once, zip};
use std::ops::Range;

const STRIP: usize = size_of::<Row>();
const ZEROS: Row = [Piece([0; 64]); WIDTH];

/// Makes repair symbols and fills holes. Keeps at most 768 KiB between calls; nothing before the first.
#[derive(Default)]
pub(super) struct ReedSolomon(Option<Box<dyn Coder>>);

impl ReedSolomon {
    pub(super) fn coder(&mut self) -> &mut dyn Coder {
        let best = || CODERS.iter().find_map(|new| new()).expect("the last is always there");
        self.0.get_or_insert_with(best).as_mut()
    }
}

type Made = Option<Box<dyn Coder>>;

/// The coders, the fastest first; `None` where the machine cannot.
const CODERS: &[fn() -> Made] = &[
    #[cfg(target_arch = "x86_64")]
    || coder(vectors::gfni::Here::new()),
    #[cfg(target_arch = "x86_64")]
    || coder(vectors::avx512::Here::new()),
    #[cfg(target_arch = "x86_64")]
    || coder(vectors::avx2::Here::new()),
    || coder(Some(Plain::new())),
];

fn coder<V: Vectors + 'static>(vectors: Option<V>) -> Made {
    Some(Box::new(Rows { vectors: vectors?, rows: Vec::new() }))
}

/// The code, of a block of k symbols of T bytes; what comes was checked.
pub(super) trait Coder: Send + Sync {
    /// See [`super::Codec::encode`].
    fn encode(&mut self, source: &[u8], of: (u16, usize), range: Range<u16>, out: &mut [u8]);

    /// See [`super::Codec::decode`]: as many repair symbols as there are holes.
    fn decode(
        &mut self,
        block: &mut [u8],
        of: (u16, usize),
        present: &SymbolSet,
        repair: &[(u16, &[u8])],
    ) -> Result<(), CodecError>;
}

struct Rows<V> {
    vectors: V,
    rows: Vec<Row>,
}

impl<V: Vectors> Coder for Rows<V> {
    fn encode(&mut self, source: &[u8], of: (u16, usize), range: Range<u16>, out: &mut [u8]) {
        let ((k, symbol_len), vectors) = ((usize::from(of.0), of.1), &self.vectors);
        let (from, to) = (usize::from(range.start), usize::from(range.end));
        let size = k.next_power_of_two();
        let (first, last) = (from / size * size, (to - 1) / size * size);
        self.rows.resize(if first == last { size } else { 2 * size }, ZEROS);
        let (coefficients, spare) = self.rows.split_at_mut(size);
        for at in (0..symbol_len).step_by(STRIP) {
            for (row, symbol) in zip(&mut *coefficients, source.chunks_exact(symbol_len)) {
                load(row, symbol, at);
            }
            coefficients[k..].fill(ZEROS);
            vectors.inverse(coefficients, k);
            for first in (first..=last).step_by(size) {
                let values = if first < last {
                    spare.copy_from_slice(coefficients);
                    &mut *spare
                } else {
                    &mut *coefficients
                };
                let here = from.saturating_sub(first)..to.min(first + size) - first;
                let wanted = Wanted::new((0..here.end).map(|index| here.contains(&index)));
                vectors.forward(values, first + size, &wanted);
                for index in here {
                    let symbol = &mut out[(first + index - from) * symbol_len..][..symbol_len];
                    store(&values[index], symbol, at);
                }
            }
        }
    }

    fn decode(
        &mut self,
        block: &mut [u8],
        of: (u16, usize),
        present: &SymbolSet,
        repair: &[(u16, &[u8])],
    ) -> Result<(), CodecError> {
        let ((k, symbol_len), vectors) = ((usize::from(of.0), of.1), &self.vectors);
        let first = k.next_power_of_two();
        // What follows the block is known to be zeros.
        let mut there: Vec<bool> =
            (0..first).map(|index| index >= k || present.contains(index as u16)).collect();
        for (index, _) in repair {
            let place = first + usize::from(*index);
            there.resize(there.len().max(place + 1), false);
            if std::mem::replace(&mut there[place], true) {
                return Err(CodecError::Twice);
            }
        }
        let end = there.len();
        there.resize(end.next_power_of_two(), false);
        let locator = locator(&there);
        let factors: Vec<V::Factor> = zip(&there[..end], &locator)
            .map(|(there, log)| vectors.factor(if *there { *log } else { GF_MODULUS - log }))
            .collect();
        self.rows.resize(there.len(), ZEROS);
        let rows = &mut self.rows[..];
        let holes = Wanted::new(there[..k].iter().map(|there| !there));
        for at in (0..symbol_len).step_by(STRIP) {
            rows[k..first].fill(ZEROS);
            zip(&mut *rows, &there).filter(|(_, there)| !**there).for_each(|(row, _)| *row = ZEROS);
            let sources = block.chunks_exact(symbol_len).enumerate();
            let repairs =
                repair.iter().map(|(index, symbol)| (first + usize::from(*index), *symbol));
            for (place, symbol) in sources.filter(|(index, _)| there[*index]).chain(repairs) {
                load(&mut rows[place], symbol, at);
                vectors.multiply(&mut rows[place], factors[place]);
            }
            vectors.inverse(rows, end);
            // At the first points all other coefficients count for nothing.
            vectors.derive(rows, first);
            vectors.forward(&mut rows[..first], 0, &holes);
            let symbols = block.chunks_exact_mut(symbol_len).enumerate();
            for (index, symbol) in symbols.filter(|(index, _)| !there[*index]) {
                vectors.multiply(&mut rows[index], factors[index]);
                store(&rows[index], symbol, at);
            }
        }
        Ok(())
    }
}

/// Takes a strip of a symbol. Of its last piece, where that is short, the first half are the low bytes.
fn load(row: &mut Row, symbol: &[u8], at: usize) {
    if let Some(strip) = symbol[at..].first_chunk::<STRIP>() {
        return zip(row, strip.as_chunks().0).for_each(|(to, piece)| to.0 = *piece);
    }
    let (pieces, rest) = symbol[at..].as_chunks();
    let after = &mut row[pieces.len()..];
    after.fill(Piece([0; 64]));
    if let Some(Piece(last)) = after.first_mut() {
        let (low, high) = rest.split_at(rest.len() / 2);
        last[..low.len()].copy_from_slice(low);
        last[32..][..high.len()].copy_from_slice(high);
    }
    zip(row, pieces).for_each(|(to, piece)| to.0 = *piece);
}

/// The other way.
fn store(row: &Row, symbol: &mut [u8], at: usize) {
    let len = symbol.len().min(at + STRIP);
    let (pieces, rest) = symbol[at..len].as_chunks_mut();
    zip(&mut *pieces, row).for_each(|(to, piece)| *to = piece.0);
    if let Some(Piece(last)) = row.get(pieces.len()) {
        let (low, high) = rest.split_at_mut(rest.len() / 2);
        low.copy_from_slice(&last[..low.len()]);
        high.copy_from_slice(&last[32..][..high.len()]);
    }
}

/// The logarithm of the erasure polynomial at each point up to the last symbol that is there.
///
/// At i it is the sum of log (i + j) over all points j that are erased. Over all points of the field the sum
/// is zero, so it is the negative sum over those that are there: a convolution over as many points as the block
/// has, a power of two, by Walsh transforms, where the crate transforms all 65,536.
fn locator(there: &[bool]) -> Vec<GfElement> {
    let log = &tables::get_exp_log().log[1..there.len()];
    let mut logs: Vec<i32> = once(0).chain(log.iter().map(|log| i32::from(*log))).collect();
    let mut sums: Vec<i32> = there.iter().map(|there| i32::from(*there)).collect();
    walsh(&mut sums);
    walsh(&mut logs);
    let modulus = i32::from(GF_MODULUS);
    for (sum, log) in zip(&mut sums, logs) {
        *sum = *sum * (log % modulus) % modulus;
    }
    walsh(&mut sums);
    // Both transforms together multiply by the size, and 2^16 is one.
    let per_size = (GF_ORDER / there.len()) as i64;
    let log = |sum: i32| i64::from(-sum % modulus) * per_size;
    sums.into_iter().map(|sum| log(sum).rem_euclid(i64::from(modulus)) as GfElement).collect()
}

/// The Walsh–Hadamard transform, in place.
fn walsh(values: &mut [i32]) {
    let mut width = 1;
    while width < values.len() {
        for pair in values.chunks_exact_mut(2 * width) {
            let (left, right) = pair.split_at_mut(width);
            for (a, b) in zip(left, right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        width *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::{CODERS, Coder, SymbolSet, locator};
    use proptest::prelude::{ProptestConfig, any, proptest};
    use reed_solomon_simd::engine::{Engine, GF_MODULUS, GF_ORDER, Naive};
    use reed_solomon_simd::rate::{LowRateEncoder, RateEncoder};

    proptest! {
        #[test]
        fn the_locator_is_the_crates(
            there in proptest::collection::vec((0usize..3000, any::<bool>()), 1..200),
        ) {
            let mut ours = vec![false; 4096];
            let mut theirs = vec![1; GF_ORDER].into_boxed_slice();
            for (index, near) in there {
                let index = if near { index % 64 } else { index };
                (ours[index], theirs[index]) = (true, 0);
            }
            let end = ours.iter().rposition(|there| *there).unwrap() + 1;
            ours.truncate(end.next_power_of_two());
            Naive::eval_poly(theirs.as_mut_array().unwrap(), GF_ORDER);
            for (a, b) in std::iter::zip(&locator(&ours)[..end], &theirs[..end]) {
                assert_eq!(a % GF_MODULUS, b % GF_MODULUS);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        /// Each kind of vector that this machine has, beside the crate's plainest engine, and back.
        #[test]
        fn every_coder_makes_the_crates_symbols_and_rebuilds(
            (k, end, half) in (1usize..=300, 1usize..=200, 1usize..=400),
            (first, lost) in (0usize..200, any::<proptest::sample::Index>()),
            seed in any::<u32>(),
        ) {
            let (symbol_len, first) = (2 * half, first % end);
            let byte = |i: usize| ((i as u32 ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8;
            let source: Vec<u8> = (0..k * symbol_len).map(byte).collect();
            let mut theirs = LowRateEncoder::new(k, end, symbol_len, Naive::new(), None).unwrap();
            source.chunks(symbol_len).for_each(|symbol| theirs.add_original_shard(symbol).unwrap());
            let theirs: Vec<u8> = theirs.encode().unwrap().recovery_iter().flatten().copied().collect();
            let of = (k as u16, symbol_len);
            for mut coder in CODERS.iter().filter_map(|new| new()) {
                let mut made = vec![0; (end - first) * symbol_len];
                coder.encode(&source, of, first as u16..end as u16, &mut made);
                assert!(made == theirs[first * symbol_len..]);
                check(coder.as_mut(), &source, of, (&made, first), 1 + lost.index(k.min(end - first)));
            }
        }
    }

    /// Loses the last `lost` symbols but for the very last, and the first.
    fn check(
        coder: &mut dyn Coder,
        source: &[u8],
        of: (u16, usize),
        (made, first): (&[u8], usize),
        lost: usize,
    ) {
        let (mut block, mut present) = (source.to_vec(), SymbolSet::EMPTY);
        let hole = |index: u16| (usize::from(of.0) - usize::from(index)) % usize::from(of.0) < lost;
        for (index, symbol) in block.chunks_mut(of.1).enumerate() {
            if hole(index as u16) {
                symbol.fill(0xaa);
            } else {
                present.insert(index as u16);
            }
        }
        let repair = made.chunks(of.1).enumerate().map(|(i, symbol)| ((first + i) as u16, symbol));
        let repair: Vec<_> = repair.take(lost).collect();
        coder.decode(&mut block, of, &present, &repair).unwrap();
        assert!(block == source);
    }
}
