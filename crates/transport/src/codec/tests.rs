//! What holds for both codes, and what each one's symbols are.

use super::{Codec, CodecError, SymbolSet};
use downpour_proto::{Code, Rng};
use proptest::prelude::{ProptestConfig, any, proptest};

/// What a case is made of, all from one number.
struct Random(Rng);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.0.next_u64() as u8).collect()
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
fn round_trip(codec: &mut Codec, seed: u64, k: u16, lost: u16, repair_end: u16) {
    let (code, mut random) = (codec.code, Random(Rng::new(seed)));
    let symbol_len = match code {
        Code::ReedSolomon | Code::Mixed => 2 * (1 + random.below(40)) as usize,
        Code::Cauchy => 1 + random.below(300) as usize,
    };
    let at = |index: u16| usize::from(index) * symbol_len;
    let source = random.bytes(at(k));
    let mut repair = vec![0; at(repair_end)];
    let mut from = 0;
    while from < repair_end {
        let to = repair_end.min(from + 1 + random.below(200) as u16);
        codec.encode(&source, symbol_len, from..to, &mut repair[at(from)..at(to)]).unwrap();
        from = to;
    }
    let mut block = source.clone();
    let mut present = SymbolSet::EMPTY;
    assert!((0..k).all(|index| present.insert(index)));
    for index in random.choose(usize::from(lost), k) {
        present.0[usize::from(index) / 64] &= !(1 << (index % 64));
        block[at(index)..][..symbol_len].fill(0xaa);
    }
    assert_eq!(present.len(), k - lost);
    let ids = random.choose(usize::from(lost), repair_end);
    let symbols: Vec<(u16, &[u8])> =
        ids.iter().map(|id| (*id, &repair[at(*id)..][..symbol_len])).collect();
    codec.decode(&mut block, symbol_len, &present, &symbols).unwrap();
    assert!(
        block == source,
        "{code:?}: k {k}, lost {lost}, repair below {repair_end}, seed {seed}"
    );
}

// docs/protocol.md#CODE-1: any k symbols rebuild the block.
proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn any_k_symbols_rebuild(k in any::<u16>(), lost in any::<u16>(), end in any::<u16>(), seed in any::<u64>()) {
        for code in Code::ALL {
            let k = 1 + k % code.block_symbols_max();
            let lost = lost % (k + 1);
            let least = lost.max(1);
            let repair_end = least + end % (code.repair_max(k) + 1 - least);
            round_trip(&mut Codec::new(code), seed, k, lost, repair_end);
        }
    }
}

#[test]
fn working_space_is_reused_across_shapes() {
    for code in Code::ALL {
        let mut codec = Codec::new(code);
        let most = code.block_symbols_max();
        let shapes = [
            (most, 51, 128),
            (1, 1, code.repair_max(1)),
            (most - 24, most - 24, code.repair_max(most - 24)),
            (3, 2, 2),
            (most, most, code.repair_max(most)),
        ];
        for (seed, (k, lost, end)) in shapes.into_iter().chain(shapes).enumerate() {
            round_trip(&mut codec, seed as u64, k, lost, end);
        }
    }
}

#[test]
fn a_repair_symbol_is_the_same_in_every_range() {
    for code in Code::ALL {
        let k = code.block_symbols_max() - 24;
        let end = code.repair_max(k);
        let source = Random(Rng::new(7)).bytes(usize::from(k) * 64);
        let mut codec = Codec::new(code);
        let mut all = vec![0; usize::from(end) * 64];
        codec.encode(&source, 64, 0..end, &mut all).unwrap();
        for range in [0..1, 0..51, 50..51, 64..65, 100..end, end - 1..end] {
            let mut some = vec![0; range.len() * 64];
            codec.encode(&source, 64, range.clone(), &mut some).unwrap();
            assert!(some == all[usize::from(range.start) * 64..usize::from(range.end) * 64]);
        }
    }
}

#[test]
fn a_block_of_one_symbol_is_rebuilt_from_any_repair_symbol() {
    for code in Code::ALL {
        let end = code.repair_max(1);
        let source = Random(Rng::new(9)).bytes(134);
        let mut repair = vec![0; usize::from(end) * 134];
        Codec::new(code).encode(&source, 134, 0..end, &mut repair).unwrap();
        let mut codec = Codec::new(code);
        for index in [0, 1, 2, end / 2 - 1, end - 1] {
            let mut block = vec![0; 134];
            let symbol = &repair[usize::from(index) * 134..][..134];
            codec.decode(&mut block, 134, &SymbolSet::EMPTY, &[(index, symbol)]).unwrap();
            assert_eq!(block, source);
        }
    }
}

/// The wire must not change by accident: the repair symbols of one block, by the digest of all of them.
#[test]
fn the_symbols_are_those_of_the_protocol() {
    for (code, digest) in [
        (Code::ReedSolomon, "5abb4482443fcf962fd2e2be3dabec1cf1cf5fb1c203abf9b13f2cc6fc470dbd"),
        (Code::Cauchy, "21d2a8cdca37abe387f80e264401ebc7f2b37a1bec1ad89e7f2ab5054ff19768"),
        (Code::Mixed, "5abb4482443fcf962fd2e2be3dabec1cf1cf5fb1c203abf9b13f2cc6fc470dbd"),
    ] {
        let k = code.block_symbols_max();
        let end = code.repair_max(k);
        let source = Random(Rng::new(1)).bytes(usize::from(k) * 62);
        let mut repair = vec![0; usize::from(end) * 62];
        Codec::new(code).encode(&source, 62, 0..end, &mut repair).unwrap();
        assert_eq!(blake3::hash(&repair).to_hex().as_str(), digest, "{code:?}");
    }
    // By hand: 1 / (0 + 128) = 0x83, 1 / (1 + 128) = 0x7e, so r0 = 0x83·1 + 0x7e·2, and so on.
    let mut repair = [0; 3];
    Codec::new(Code::Cauchy).encode(&[1, 2], 1, 0..3, &mut repair).unwrap();
    assert_eq!(repair, [0x7f, 0x63, 0x64]);
}

#[test]
fn misuse_is_an_error_and_leaves_the_block() {
    for code in Code::ALL {
        let mut codec = Codec::new(code);
        let (most, end) = (code.block_symbols_max(), code.repair_max(2));
        let mut out = [0; 8];
        if code == Code::ReedSolomon {
            assert_eq!(codec.encode(&[0; 9], 3, 0..1, &mut out[..3]), Err(CodecError::Shape));
        }
        assert_eq!(codec.encode(&[0; 9], 4, 0..1, &mut out[..4]), Err(CodecError::Shape));
        assert_eq!(codec.encode(&[0; 8], 4, 0..1, &mut out), Err(CodecError::Shape));
        let past = codec.encode(&[0; 8], 4, end - 1..end + 1, &mut out);
        assert_eq!(past, Err(CodecError::RepairIndex));
        let too_many = vec![0; (usize::from(most) + 1) * 2];
        assert_eq!(codec.encode(&too_many, 2, 0..1, &mut out[..2]), Err(CodecError::Shape));
        let mut block = [7; 8];
        let mut decode =
            |repair: &[(u16, &[u8])]| codec.decode(&mut block, 4, &SymbolSet::EMPTY, repair);
        assert_eq!(decode(&[(0, &[0; 4])]), Err(CodecError::TooFew));
        assert_eq!(decode(&[(0, &[0; 4]), (0, &[0; 4])]), Err(CodecError::Twice));
        assert_eq!(decode(&[(0, &[0; 4]), (end, &[0; 4])]), Err(CodecError::RepairIndex));
        assert_eq!(decode(&[(0, &[0; 4]), (1, &[0; 2])]), Err(CodecError::Shape));
        assert_eq!(block, [7; 8]);
    }
}
