//! Systematic Reed–Solomon over GF(2^16), reed-solomon-simd's *low-rate* form: up to 1024 source and 1024 repair symbols.
//!
//! How: the crate cannot resume, so a later range of repair symbols costs as much as all up to its end; and it decodes
//! at the same cost whatever was lost.
//!
//! Invariant: the crate's default types are not used. Their repair symbols depend on how many are made, and they decode
//! *wrongly, without an error*, when both sides' counts differ.

use super::{CodecError, SymbolSet};
use reed_solomon_simd::Error;
use reed_solomon_simd::engine::{
    DefaultEngine, Engine, GF_MODULUS, GF_ORDER, GfElement, ShardsRefMut, tables,
};
use reed_solomon_simd::rate::{LowRateDecoder, LowRateEncoder, RateDecoder, RateEncoder};
use std::iter;
use std::ops::Range;

/// Makes repair symbols. Keeps about 2 MB at k = 1024 between calls.
#[derive(Default)]
pub(super) struct Encoder {
    // `None` before the first call: the crate has no empty state.
    inner: Option<LowRateEncoder<Fastest>>,
}

impl Encoder {
    /// See [`super::Encoder::encode`], which has checked what comes; of a block of k symbols of T bytes.
    pub(super) fn encode(
        &mut self,
        source: &[u8],
        (k, symbol_len): (u16, usize),
        range: Range<u16>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let (k, end) = (usize::from(k), usize::from(range.end));
        let encoder = ready(
            &mut self.inner,
            |kept| kept.reset(k, end, symbol_len),
            || LowRateEncoder::new(k, end, symbol_len, Fastest::new(), None),
        )?;
        for symbol in source.chunks_exact(symbol_len) {
            encoder.add_original_shard(symbol).map_err(|_| CodecError::Shape)?;
        }
        let made = encoder.encode().map_err(|_| CodecError::TooFew)?;
        for (index, room) in range.zip(out.chunks_exact_mut(symbol_len)) {
            let symbol = made.recovery(usize::from(index)).ok_or(CodecError::RepairIndex)?;
            room.copy_from_slice(symbol);
        }
        Ok(())
    }
}

/// Fills holes. Keeps about 3 MB at k = 1024 between calls.
#[derive(Default)]
pub(super) struct Decoder {
    inner: Option<LowRateDecoder<Fastest>>,
}

impl Decoder {
    /// See [`super::Decoder::decode`], which has checked what comes: as many repair symbols as there are holes.
    pub(super) fn decode(
        &mut self,
        block: &mut [u8],
        (k, symbol_len): (u16, usize),
        present: &SymbolSet,
        repair: &[(u16, &[u8])],
    ) -> Result<(), CodecError> {
        let repair_end = repair.iter().map(|(index, _)| usize::from(*index) + 1).max().unwrap_or(0);
        let k = usize::from(k);
        let decoder = ready(
            &mut self.inner,
            |kept| kept.reset(k, repair_end, symbol_len),
            || LowRateDecoder::new(k, repair_end, symbol_len, Fastest::new(), None),
        )?;
        for (index, symbol) in block.chunks_exact(symbol_len).enumerate() {
            if present.contains(index as u16) {
                decoder.add_original_shard(index, symbol).map_err(|_| CodecError::Shape)?;
            }
        }
        for (index, symbol) in repair {
            decoder
                .add_recovery_shard(usize::from(*index), symbol)
                .map_err(|_| CodecError::Twice)?;
        }
        let filled = decoder.decode().map_err(|_| CodecError::TooFew)?;
        for (index, symbol) in filled.restored_original_iter() {
            block[index * symbol_len..][..symbol_len].copy_from_slice(symbol);
        }
        Ok(())
    }
}

/// A coder that was kept, made ready for other sizes, or a new one.
fn ready<T>(
    kept: &mut Option<T>,
    reset: impl FnOnce(&mut T) -> Result<(), Error>,
    new: impl FnOnce() -> Result<T, Error>,
) -> Result<&mut T, CodecError> {
    match kept {
        Some(coder) => reset(coder).map_err(|_| CodecError::Shape)?,
        None => *kept = Some(new().map_err(|_| CodecError::Shape)?),
    }
    kept.as_mut().ok_or(CodecError::Shape)
}

/// The engine that is the fastest here.
struct Fastest(Box<dyn Engine + Send + Sync>);

impl Fastest {
    fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(engine) = super::affine::Affine::new() {
            return Self(Box::new(engine));
        }
        Self(Box::new(DefaultEngine::new()))
    }
}

impl Engine for Fastest {
    fn fft(&self, data: &mut ShardsRefMut<'_>, pos: usize, size: usize, end: usize, skew: usize) {
        self.0.fft(data, pos, size, end, skew);
    }

    fn ifft(&self, data: &mut ShardsRefMut<'_>, pos: usize, size: usize, end: usize, skew: usize) {
        self.0.ifft(data, pos, size, end, skew);
    }

    fn mul(&self, x: &mut [[u8; 64]], log_m: GfElement) {
        self.0.mul(x, log_m);
    }

    /// The logarithm of the erasure polynomial at each point up to the last symbol that is there; what follows it is left.
    ///
    /// At i it is the sum of log (i + j) over all points j that are erased. Over all points of the field the sum
    /// is zero, so it is the negative sum over those that are there: a convolution over as many points as the block
    /// has, by two Walsh transforms, where the crate transforms all 65,536.
    fn eval_poly(erasures: &mut [GfElement; GF_ORDER], _: usize) {
        let end = erasures.iter().rposition(|erased| *erased == 0).map_or(1, |last| last + 1);
        let erasures = &mut erasures[..end.next_power_of_two()];
        let mut sums: Vec<i64> = erasures.iter().map(|erased| 1 - i64::from(*erased)).collect();
        let log = &tables::get_exp_log().log[1..erasures.len()];
        let mut logs: Vec<i64> = iter::once(0).chain(log.iter().map(|l| i64::from(*l))).collect();
        walsh(&mut sums);
        walsh(&mut logs);
        let modulus = i64::from(GF_MODULUS);
        for (sum, log) in iter::zip(&mut sums, logs) {
            *sum = *sum * (log % modulus) % modulus;
        }
        walsh(&mut sums);
        // Both transforms together multiply by the size, and 2^16 is one.
        let per_size = (GF_ORDER / erasures.len()) as i64;
        for (log, sum) in iter::zip(erasures, sums) {
            *log = (-sum % modulus * per_size).rem_euclid(modulus) as GfElement;
        }
    }
}

/// The Walsh–Hadamard transform, in place.
fn walsh(values: &mut [i64]) {
    let mut width = 1;
    while width < values.len() {
        for pair in values.chunks_exact_mut(2 * width) {
            let (left, right) = pair.split_at_mut(width);
            for (a, b) in iter::zip(left, right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        width *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::Fastest;
    use proptest::prelude::{any, proptest};
    use reed_solomon_simd::engine::{Engine, GF_MODULUS, GF_ORDER, Naive};

    proptest! {
        #[test]
        fn the_erasure_polynomial_is_the_crates(
            there in proptest::collection::vec((0usize..3000, any::<bool>()), 1..200),
        ) {
            let mut ours = vec![1; GF_ORDER].into_boxed_slice();
            for (index, near) in there {
                ours[if near { index % 64 } else { index }] = 0;
            }
            let end = ours.iter().rposition(|erased| *erased == 0).unwrap() + 1;
            let mut theirs = ours.clone();
            Fastest::eval_poly(ours.as_mut_array().unwrap(), GF_ORDER);
            Naive::eval_poly(theirs.as_mut_array().unwrap(), GF_ORDER);
            for (a, b) in std::iter::zip(&ours[..end], &theirs[..end]) {
                assert_eq!(a % GF_MODULUS, b % GF_MODULUS);
            }
        }
    }
}
