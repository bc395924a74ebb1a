//! The transforms of Reed–Solomon over GF(2^16), on strips of all symbols of a block.
//!
//! The arithmetic is reed-solomon-simd's: a systematic code by the additive FFT of Lin, Chung and Han (FOCS 2014) in the Cantor
//! basis. The crate works on whole symbols; a strip of them all, 768 KiB at most, stays in a core's cache from the first
//! step to the last. Here is what every machine can do; [`vectors`](super::vectors) is faster.
//!
//! Layout: as the crate's shards have it, 64 bytes are 32 elements, their low bytes first.
#![allow(unsafe_code)]

use reed_solomon_simd::engine::{DefaultEngine, Engine, GfElement, ShardsRefMut};
use std::iter::zip;
use std::ops::Range;
use std::slice;

/// Of one symbol, so much at a time, in pieces of 32 elements.
pub(super) const WIDTH: usize = 6;

/// 32 elements, on a line of the cache: a vector across two costs two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Piece(pub(super) [u8; 64]);

/// One symbol's strip.
pub(super) type Row = [Piece; WIDTH];

/// The steps of the code, on the rows of all symbols.
pub(super) trait Vectors: Send + Sync {
    /// What a row is multiplied by.
    type Factor: Copy + Send + Sync;

    /// The constant whose logarithm is `log`.
    fn factor(&self, log: GfElement) -> Self::Factor;

    /// `row` times a constant.
    fn multiply(&self, row: &mut Row, by: Self::Factor);

    /// Values to coefficients; from `end` on all rows are zeros. Their number is a power of two.
    fn inverse(&self, rows: &mut [Row], end: usize);

    /// Coefficients to values at `first` and the following points, as far as they are wanted.
    fn forward(&self, rows: &mut [Row], first: usize, wanted: &Wanted);

    /// The first `count` rows, a power of two, are as many of the coefficients of the formal derivative afterwards.
    fn derive(&self, rows: &mut [Row], count: usize);
}

/// A set of rows.
pub(super) struct Wanted(Vec<u16>);

impl Wanted {
    pub(super) fn new(rows: impl IntoIterator<Item = bool>) -> Self {
        let mut before = 0;
        let count = |wanted| {
            before += u16::from(wanted);
            before
        };
        Self([0].into_iter().chain(rows.into_iter().map(count)).collect())
    }

    /// Whether any is in `range`; there may be fewer rows.
    pub(super) fn any(&self, range: Range<usize>) -> bool {
        let before = |end: usize| self.0[end.min(self.0.len() - 1)];
        before(range.start) < before(range.end)
    }
}

/// The crate's own engine, for machines without the vectors.
pub(super) struct Plain(DefaultEngine);

impl Plain {
    pub(super) fn new() -> Self {
        Self(DefaultEngine::new())
    }
}

fn plain(pieces: &mut [Piece]) -> &mut [[u8; 64]] {
    // SAFETY: a piece is an array of 64 bytes, but for its alignment.
    unsafe { slice::from_raw_parts_mut(pieces.as_mut_ptr().cast(), pieces.len()) }
}

fn shards(rows: &mut [Row]) -> ShardsRefMut<'_> {
    ShardsRefMut::new(rows.len(), WIDTH, plain(rows.as_flattened_mut()))
}

impl Vectors for Plain {
    type Factor = GfElement;

    fn factor(&self, log: GfElement) -> GfElement {
        log
    }

    fn multiply(&self, row: &mut Row, by: GfElement) {
        self.0.mul(plain(row), by);
    }

    fn inverse(&self, rows: &mut [Row], end: usize) {
        let size = rows.len();
        self.0.ifft(&mut shards(rows), 0, size, end, 0);
    }

    fn forward(&self, rows: &mut [Row], first: usize, wanted: &Wanted) {
        let (size, end) = (rows.len(), wanted.0.len() - 1);
        self.0.fft(&mut shards(rows), 0, size, end, first);
    }

    fn derive(&self, rows: &mut [Row], count: usize) {
        derive(rows, count, |pieces, others| {
            for (piece, other) in zip(pieces, others) {
                zip(&mut piece.0, other.0).for_each(|(x, y)| *x ^= y);
            }
        });
    }
}

/// Adds to each of the first `count` coefficients those whose index has one bit more; all are read before they are changed.
#[inline(always)]
pub(super) fn derive(rows: &mut [Row], count: usize, add: impl Fn(&mut [Piece], &[Piece])) {
    let (size, run) = (rows.len(), count.min(8));
    for from in (0..count).step_by(run) {
        let (here, after) = rows[from..].split_at_mut(run);
        for index in 0..run {
            let (row, next) = here[index..].split_first_mut().expect("it has this index");
            for bit in [1, 2, 4].into_iter().filter(|bit| *bit < run && index & bit == 0) {
                add(row, &next[bit - 1]);
            }
        }
        let mut bit = run;
        while bit < size {
            if from & bit == 0 {
                add(here.as_flattened_mut(), after[bit - run..][..run].as_flattened());
            }
            bit *= 2;
        }
    }
}
