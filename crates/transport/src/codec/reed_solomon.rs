//! Systematic Reed–Solomon over GF(2^16), reed-solomon-simd's *low-rate* form: up to 1024 source and 1024 repair symbols.
//!
//! How: the crate cannot resume, so a later range of repair symbols costs as much as all up to its end; and it decodes
//! at the same cost whatever was lost.
//!
//! Invariant: the crate's default types are not used. Their repair symbols depend on how many are made, and they decode
//! *wrongly, without an error*, when both sides' counts differ.

use super::{CodecError, SymbolSet};
use reed_solomon_simd::Error;
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{LowRateDecoder, LowRateEncoder, RateDecoder, RateEncoder};
use std::ops::Range;

/// Makes repair symbols. Keeps about 2 MB at k = 1024 between calls.
#[derive(Default)]
pub(super) struct Encoder {
    // `None` before the first call: the crate has no empty state.
    inner: Option<LowRateEncoder<DefaultEngine>>,
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
            || LowRateEncoder::new(k, end, symbol_len, DefaultEngine::new(), None),
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
    inner: Option<LowRateDecoder<DefaultEngine>>,
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
            || LowRateDecoder::new(k, repair_end, symbol_len, DefaultEngine::new(), None),
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
