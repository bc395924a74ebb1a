//! The erasure code: source symbols of a block in, repair symbols out, and back.
//!
//! Systematic Reed–Solomon over GF(2^16), reed-solomon-simd's *low-rate* form. Any k of the k source and
//! 1024 repair symbols rebuild the block (`docs/protocol.md#CODE-1`).
//!
//! How: [`Encoder::encode`] takes a whole block and writes a range of its repair symbols; the crate cannot
//! resume, so a later range costs as much as all symbols up to its end. Ask for about 128 at a time and
//! keep them. [`Decoder::decode`] takes the block with holes and the repair symbols that came, and fills
//! the holes in place.
//!
//! Invariants:
//! - Repair symbol i of a block is the same whatever range it was asked for in, and the decoder needs no
//!   agreement with the encoder but k and T. The crate's default types lack this: they decode *wrongly,
//!   without an error*, when both sides' counts differ. They must not be used here.
//! - A block is as good as the symbols fed in: false symbols give false bytes. The digests find that.
//!
//! Not here: which symbols to make or keep (`downpour_proto`), a kernel of our own.

use downpour_proto::{BLOCK_SYMBOLS_MAX, REPAIR_SYMBOLS_MAX};
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{LowRateDecoder, LowRateEncoder, RateDecoder, RateEncoder};
use std::fmt;
use std::ops::Range;

/// A set of source symbols of one block.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SymbolSet([u64; SET_WORDS]);

const SET_WORDS: usize = BLOCK_SYMBOLS_MAX as usize / 64;

impl SymbolSet {
    /// Nothing.
    pub const EMPTY: Self = Self([0; SET_WORDS]);

    /// Adds source symbol `index`; whether it was absent. An index beyond a block is never added.
    pub fn insert(&mut self, index: u16) -> bool {
        let Some(word) = self.0.get_mut(usize::from(index) / 64) else { return false };
        let bit = 1 << (index % 64);
        let absent = *word & bit == 0;
        *word |= bit;
        absent
    }

    /// Adds all symbols of `range`.
    pub fn insert_range(&mut self, range: Range<u16>) {
        for index in range {
            self.insert(index);
        }
    }

    /// Whether source symbol `index` is in the set.
    pub fn contains(&self, index: u16) -> bool {
        self.0.get(usize::from(index) / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// How many there are.
    pub fn len(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; SET_WORDS]
    }

    /// Whether all of `0..k` are in the set.
    pub fn covers(&self, k: u16) -> bool {
        let k = usize::from(k);
        let full = k / 64;
        let tail_mask = (1u64 << (k % 64)) - 1;
        self.0[..full].iter().all(|word| *word == u64::MAX)
            && (tail_mask == 0 || self.0[full] & tail_mask == tail_mask)
    }
}

impl fmt::Debug for SymbolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SymbolSet({} symbols)", self.len())
    }
}

/// What was wrong with a call; each is a mistake of the caller, for the machine never asks for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecError {
    /// The block is not 1..=1024 symbols of an even, non-zero length, or a symbol has another length.
    Shape,
    /// A repair index of 1024 or more, or a range that runs backwards.
    RepairIndex,
    /// Fewer than k distinct symbols.
    TooFew,
    /// The same repair symbol twice.
    Twice,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => "the block is not 1 to 1024 symbols of one even length",
            Self::RepairIndex => "repair index out of range",
            Self::TooFew => "fewer symbols than the block's source symbols",
            Self::Twice => "the same repair symbol twice",
        })
    }
}

impl std::error::Error for CodecError {}

/// Source symbols of a block of `len` bytes; checks what the code needs.
fn source_symbols(len: usize, symbol_len: usize) -> Result<usize, CodecError> {
    let even = symbol_len > 0 && symbol_len.is_multiple_of(2);
    if !even || len == 0 || !len.is_multiple_of(symbol_len) {
        return Err(CodecError::Shape);
    }
    let k = len / symbol_len;
    if k > usize::from(BLOCK_SYMBOLS_MAX) { Err(CodecError::Shape) } else { Ok(k) }
}

/// Makes repair symbols. Keeps its working space (about 2 MB at k = 1024) between calls.
#[derive(Default)]
pub struct Encoder {
    // `None` before the first call: the crate has no empty state.
    inner: Option<LowRateEncoder<DefaultEngine>>,
}

impl Encoder {
    /// No working space yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes the repair symbols `range` of the block `source` (k·T bytes) into `out`, which must be as
    /// long as they are.
    pub fn encode(
        &mut self,
        source: &[u8],
        symbol_len: usize,
        range: Range<u16>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let k = source_symbols(source.len(), symbol_len)?;
        if range.start > range.end || range.end > REPAIR_SYMBOLS_MAX {
            return Err(CodecError::RepairIndex);
        }
        if out.len() != range.len() * symbol_len {
            return Err(CodecError::Shape);
        }
        if range.is_empty() {
            return Ok(());
        }
        let encoder = self.prepare(k, usize::from(range.end), symbol_len)?;
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

    fn prepare(
        &mut self,
        k: usize,
        repair_end: usize,
        symbol_len: usize,
    ) -> Result<&mut LowRateEncoder<DefaultEngine>, CodecError> {
        match &mut self.inner {
            Some(encoder) => {
                encoder.reset(k, repair_end, symbol_len).map_err(|_| CodecError::Shape)?;
            }
            None => {
                let engine = DefaultEngine::new();
                let encoder = LowRateEncoder::new(k, repair_end, symbol_len, engine, None);
                self.inner = Some(encoder.map_err(|_| CodecError::Shape)?);
            }
        }
        self.inner.as_mut().ok_or(CodecError::Shape)
    }
}

/// Fills the holes of a block. Keeps its working space (about 3 MB at k = 1024) between calls.
#[derive(Default)]
pub struct Decoder {
    inner: Option<LowRateDecoder<DefaultEngine>>,
}

impl Decoder {
    /// No working space yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills in `block` (k·T bytes) every source symbol that is not in `present`, from those that are and
    /// from `repair`: pairs of repair index and symbol. On an error the block is as it was.
    ///
    /// Only as many repair symbols as are needed are used; lower indices decode faster, so give them first.
    pub fn decode<'a>(
        &mut self,
        block: &mut [u8],
        symbol_len: usize,
        present: &SymbolSet,
        repair: impl IntoIterator<Item = (u16, &'a [u8])> + Clone,
    ) -> Result<(), CodecError> {
        let k = source_symbols(block.len(), symbol_len)?;
        let holes = (0..k as u16).filter(|index| !present.contains(*index)).count();
        if holes == 0 {
            return Ok(());
        }
        let repair_end = repair_end(repair.clone().into_iter().take(holes), symbol_len, holes)?;
        let decoder = self.prepare(k, repair_end, symbol_len)?;
        for (index, symbol) in block.chunks_exact(symbol_len).enumerate() {
            if present.contains(index as u16) {
                decoder.add_original_shard(index, symbol).map_err(|_| CodecError::Shape)?;
            }
        }
        for (index, symbol) in repair.into_iter().take(holes) {
            decoder
                .add_recovery_shard(usize::from(index), symbol)
                .map_err(|_| CodecError::Twice)?;
        }
        let filled = decoder.decode().map_err(|_| CodecError::TooFew)?;
        for (index, symbol) in filled.restored_original_iter() {
            block[index * symbol_len..][..symbol_len].copy_from_slice(symbol);
        }
        Ok(())
    }

    fn prepare(
        &mut self,
        k: usize,
        repair_end: usize,
        symbol_len: usize,
    ) -> Result<&mut LowRateDecoder<DefaultEngine>, CodecError> {
        match &mut self.inner {
            Some(decoder) => {
                decoder.reset(k, repair_end, symbol_len).map_err(|_| CodecError::Shape)?;
            }
            None => {
                let engine = DefaultEngine::new();
                let decoder = LowRateDecoder::new(k, repair_end, symbol_len, engine, None);
                self.inner = Some(decoder.map_err(|_| CodecError::Shape)?);
            }
        }
        self.inner.as_mut().ok_or(CodecError::Shape)
    }
}

/// One past the highest repair index, after checking that there are `holes` of the right shape.
fn repair_end<'a>(
    repair: impl Iterator<Item = (u16, &'a [u8])>,
    symbol_len: usize,
    holes: usize,
) -> Result<usize, CodecError> {
    let mut end = 0;
    let mut count = 0;
    for (index, symbol) in repair {
        if index >= REPAIR_SYMBOLS_MAX {
            return Err(CodecError::RepairIndex);
        }
        if symbol.len() != symbol_len {
            return Err(CodecError::Shape);
        }
        end = end.max(usize::from(index) + 1);
        count += 1;
    }
    if count < holes { Err(CodecError::TooFew) } else { Ok(end) }
}

#[cfg(test)]
mod tests {
    use super::{CodecError, Decoder, Encoder, SymbolSet};
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    /// A small generator, so that a case is one number: splitmix64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, end: u64) -> u64 {
            self.next() % end
        }

        fn bytes(&mut self, len: usize) -> Vec<u8> {
            (0..len).map(|_| self.next() as u8).collect()
        }

        /// `count` distinct numbers below `end`, in random order.
        fn choose(&mut self, count: usize, end: u16) -> Vec<u16> {
            let mut all: Vec<u16> = (0..end).collect();
            for i in 0..count {
                let j = i + self.below((all.len() - i) as u64) as usize;
                all.swap(i, j);
            }
            all.truncate(count);
            all
        }
    }

    /// Encodes a random block, loses `lost` source symbols, decodes with random repair symbols below
    /// `repair_end`, made one batch at a time.
    fn round_trip(codec: &mut (Encoder, Decoder), seed: u64, k: u16, lost: u16, repair_end: u16) {
        let mut random = Random(seed);
        let symbol_len = 2 * (1 + random.below(40)) as usize;
        let source = random.bytes(usize::from(k) * symbol_len);
        let mut repair = vec![0; usize::from(repair_end) * symbol_len];
        let mut from = 0;
        while from < repair_end {
            let to = repair_end.min(from + 1 + random.below(200) as u16);
            let room = &mut repair[usize::from(from) * symbol_len..usize::from(to) * symbol_len];
            codec.0.encode(&source, symbol_len, from..to, room).unwrap();
            from = to;
        }
        let mut block = source.clone();
        let mut present = SymbolSet::EMPTY;
        present.insert_range(0..k);
        for index in random.choose(usize::from(lost), k) {
            present.0[usize::from(index) / 64] &= !(1 << (index % 64));
            block[usize::from(index) * symbol_len..][..symbol_len].fill(0xaa);
        }
        assert_eq!(present.len(), k - lost);
        let ids = random.choose(usize::from(lost), repair_end);
        let symbols: Vec<(u16, &[u8])> = ids
            .iter()
            .map(|id| (*id, &repair[usize::from(*id) * symbol_len..][..symbol_len]))
            .collect();
        codec.1.decode(&mut block, symbol_len, &present, symbols.iter().copied()).unwrap();
        assert!(block == source, "k {k}, lost {lost}, repair below {repair_end}, seed {seed}");
    }

    // docs/protocol.md#CODE-1: any k symbols rebuild the block.
    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
        #[test]
        fn any_k_symbols_rebuild(k in 1u16..=1024, lost in any::<u16>(), end in any::<u16>(), seed in any::<u64>()) {
            let lost = lost % (k + 1);
            let repair_end = lost.max(1) + end % (1025 - lost.max(1));
            round_trip(&mut (Encoder::new(), Decoder::new()), seed, k, lost, repair_end);
        }

        #[test]
        fn covers_is_what_contains_says(k in 0u16..=1024, holes in proptest::collection::vec(0u16..1024, 0..3)) {
            let mut set = SymbolSet::EMPTY;
            for index in (0..1024).filter(|index| !holes.contains(index)) {
                set.insert(index);
            }
            prop_assert_eq!(set.covers(k), (0..k).all(|index| set.contains(index)));
        }
    }

    #[test]
    fn working_space_is_reused_across_shapes() {
        let mut codec = (Encoder::new(), Decoder::new());
        let shapes =
            [(1024, 51, 128), (1, 1, 1024), (1000, 1000, 1024), (3, 2, 2), (1024, 1024, 1024)];
        for (seed, (k, lost, end)) in shapes.into_iter().chain(shapes).enumerate() {
            round_trip(&mut codec, seed as u64, k, lost, end);
        }
    }

    #[test]
    fn a_repair_symbol_is_the_same_in_every_range() {
        let source = Random(7).bytes(700 * 64);
        let mut encoder = Encoder::new();
        let mut all = vec![0; 1024 * 64];
        encoder.encode(&source, 64, 0..1024, &mut all).unwrap();
        for range in [0..1, 0..51, 50..51, 64..65, 100..228, 1023..1024] {
            let mut some = vec![0; range.len() * 64];
            encoder.encode(&source, 64, range.clone(), &mut some).unwrap();
            assert!(some == all[usize::from(range.start) * 64..usize::from(range.end) * 64]);
        }
    }

    #[test]
    fn a_block_of_one_symbol_is_rebuilt_from_any_repair_symbol() {
        let source = Random(9).bytes(134);
        let mut repair = vec![0; 1024 * 134];
        Encoder::new().encode(&source, 134, 0..1024, &mut repair).unwrap();
        let mut decoder = Decoder::new();
        for index in [0u16, 1, 2, 511, 1023] {
            let mut block = vec![0; 134];
            let symbol = &repair[usize::from(index) * 134..][..134];
            decoder.decode(&mut block, 134, &SymbolSet::EMPTY, [(index, symbol)]).unwrap();
            assert_eq!(block, source);
        }
    }

    #[test]
    fn misuse_is_an_error_and_leaves_the_block() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let mut out = [0; 8];
        assert_eq!(encoder.encode(&[0; 9], 3, 0..1, &mut out[..3]), Err(CodecError::Shape));
        assert_eq!(encoder.encode(&[0; 8], 4, 0..1, &mut out), Err(CodecError::Shape));
        assert_eq!(encoder.encode(&[0; 8], 4, 1023..1025, &mut out), Err(CodecError::RepairIndex));
        let too_many = vec![0; 1025 * 2];
        assert_eq!(encoder.encode(&too_many, 2, 0..1, &mut out[..2]), Err(CodecError::Shape));
        let mut block = [7; 8];
        let mut decode = |repair: &[(u16, &[u8])]| {
            decoder.decode(&mut block, 4, &SymbolSet::EMPTY, repair.iter().copied())
        };
        assert_eq!(decode(&[(0, &[0; 4])]), Err(CodecError::TooFew));
        assert_eq!(decode(&[(0, &[0; 4]), (0, &[0; 4])]), Err(CodecError::Twice));
        assert_eq!(decode(&[(0, &[0; 4]), (1024, &[0; 4])]), Err(CodecError::RepairIndex));
        assert_eq!(decode(&[(0, &[0; 4]), (1, &[0; 2])]), Err(CodecError::Shape));
        assert_eq!(block, [7; 8]);
    }
}
