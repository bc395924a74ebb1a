//! Systematic Reed–Solomon by a Cauchy matrix over GF(2^8): up to 128 source and 128 repair symbols
//! (`docs/protocol.md#CODE-4`).
//!
//! 1. Source symbol i has the point i, repair symbol j the point 128 + j: 256 different elements of the field.
//! 2. Repair symbol j is Σ aᵢ / (i + 128 + j) over the source symbols aᵢ ("+" is the field's, exclusive or).
//! 3. With P(z) = Σ aᵢ Π (z + l) over all l ≠ i, a symbol is P at its point over a product of its own. P has a degree
//!    below k, so any k symbols tell it (Lagrange), and with it all others.
//! 4. Much cancels: with M the points that are lost, R those of as many repair symbols, a lost aₘ is the sum over
//!    all symbols s that are there (source and R) of s times Aₘ Bₛ / (m + s),
//! 5. where Aₘ = Π (m + r) over R / Π (m + l) over the other l in M, Bₛ = Π (s + m) over M / Π (s + r) over the other r in R.
//!
//! So both ways are one sum of products for each symbol that is made, and decoding costs what was lost, not what is there.

use super::gf256::{EXP, LOG, invert};
use super::kernel::{Kernel, combine};
use super::{CodecError, SymbolSet};
use std::ops::Range;

/// The point of repair symbol 0.
const REPAIR_POINT: u8 = 128;

/// Writes the repair symbols `range` of `source` into `out`.
pub(super) fn encode(
    kernel: Kernel,
    source: &[u8],
    symbol_len: usize,
    range: Range<u16>,
    out: &mut [u8],
) {
    let ins: Vec<&[u8]> = source.chunks_exact(symbol_len).collect();
    let mut outs: Vec<&mut [u8]> = out.chunks_exact_mut(symbol_len).collect();
    let points = range.map(|index| REPAIR_POINT + index as u8);
    let factors: Vec<u8> =
        points.flat_map(|repair| (0..ins.len() as u8).map(move |i| invert(i ^ repair))).collect();
    combine(kernel, &mut outs, &ins, &factors);
}

/// Fills the holes of `block` by as many symbols of `repair`.
pub(super) fn decode(
    kernel: Kernel,
    block: &mut [u8],
    symbol_len: usize,
    present: &SymbolSet,
    repair: &[(u16, &[u8])],
) -> Result<(), CodecError> {
    let (mut ins, mut there): (Vec<&[u8]>, Vec<u8>) = Default::default();
    let (mut outs, mut lost): (Vec<&mut [u8]>, Vec<u8>) = Default::default();
    for (index, symbol) in (0..).zip(block.chunks_exact_mut(symbol_len)) {
        if present.contains(index) {
            ins.push(symbol);
            there.push(index as u8);
        } else {
            outs.push(symbol);
            lost.push(index as u8);
        }
    }
    for (index, symbol) in repair {
        let point = REPAIR_POINT + *index as u8;
        if there.contains(&point) {
            return Err(CodecError::Twice);
        }
        ins.push(symbol);
        there.push(point);
    }
    combine(kernel, &mut outs, &ins, &factors(&lost, &there, repair.len()));
    Ok(())
}

/// What each of the symbols `there`, of which the last `repairs` are repair symbols, is multiplied by for each that is
/// `lost`: points 4 and 5 above, by logarithms.
fn factors(lost: &[u8], there: &[u8], repairs: usize) -> Vec<u8> {
    let repair = &there[there.len() - repairs..];
    let quotient = |point: u8, above: &[u8], below: &[u8]| {
        // Both are of `repairs` points or one less, each logarithm below 255: no overflow, and no sum below zero.
        let sum = |points: &[u8]| -> u32 {
            points
                .iter()
                .filter(|p| **p != point)
                .map(|p| u32::from(LOG[usize::from(p ^ point)]))
                .sum()
        };
        sum(above) + 255 * 128 - sum(below)
    };
    let of_there: Vec<u32> = there.iter().map(|s| quotient(*s, lost, repair)).collect();
    let of_pair = |m: u8, of_lost: u32| {
        let parts = there.iter().zip(&of_there);
        parts.map(move |(s, of_s)| {
            EXP[((of_lost + of_s + 255 - u32::from(LOG[usize::from(m ^ s)])) % 255) as usize]
        })
    };
    lost.iter().flat_map(|m| of_pair(*m, quotient(*m, repair, lost))).collect()
}
