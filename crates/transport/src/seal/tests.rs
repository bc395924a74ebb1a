//! What is sealed opens once, for whom it is meant, and nothing else opens.

use super::{
    HEADER_LEN, OVERHEAD, OpenKeys, Opened, Reject, RejectCounts, ReplayWindow, SealError,
    SealKeys, Secret, Suite, TAG_LEN,
};
use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use downpour_proto::wire::{Header, Kind, ParseError};
use downpour_proto::{BlockId, Epoch, PacketNumber, ReceiverId, StreamId, SymbolId};
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use std::collections::HashSet;

const STREAM: StreamId = StreamId(0xfeed_0001);
const SECRET: Secret = Secret::new([7; 32]);
const PAYLOAD: &[u8] = b"sixteen and some";

fn poll(epoch: Epoch, stream: StreamId, number: u64) -> Header {
    Header { epoch, stream, packet_low: number as u32, kind: Kind::Poll }
}

fn symbol(epoch: Epoch, number: u64, block: u32) -> Header {
    let block = BlockId::data(block).unwrap();
    let kind = Kind::Symbol { block, k: 1000, symbol: SymbolId::source(5) };
    Header { kind, ..poll(epoch, STREAM, number) }
}

fn sealer() -> SealKeys {
    SealKeys::stream(Suite::Aes256Gcm, &SECRET, STREAM, Epoch(0))
}

fn opener() -> OpenKeys {
    OpenKeys::stream(Suite::Aes256Gcm, &SECRET, STREAM, Epoch(0), PacketNumber(1))
}

fn sealed_as(keys: &mut SealKeys, header: &Header, number: u64) -> Vec<u8> {
    let mut datagram = Vec::new();
    keys.append(PacketNumber(number), header, PAYLOAD, &mut datagram).unwrap();
    datagram
}

fn sealed(keys: &mut SealKeys, number: u64) -> Vec<u8> {
    let header = poll(keys.epoch, STREAM, number);
    sealed_as(keys, &header, number)
}

fn open_it<'a>(open: &mut OpenKeys, datagram: &'a mut [u8]) -> Result<Opened<'a>, Reject> {
    match open.header(datagram) {
        Ok(header) => open.open(&header, datagram),
        Err(ParseError::Truncated) => Err(Reject::Truncated),
        Err(_) => Err(Reject::Malformed),
    }
}

#[test]
fn what_is_sealed_opens_under_each_suite() {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        assert_eq!(Suite::from_id(suite.id()), Some(suite));
        let mut keys = SealKeys::stream(suite, &SECRET, STREAM, Epoch(0));
        let mut open = OpenKeys::stream(suite, &SECRET, STREAM, Epoch(0), PacketNumber(1));
        // Numbers on both sides of a key's run and of the 32 bits in the header.
        for number in [1, 2, (1 << 24) - 1, 1 << 24, (1 << 31) + 5, 1 << 32, (1 << 32) + 1] {
            let mut datagram = sealed(&mut keys, number);
            assert_ne!(&datagram[HEADER_LEN..][..PAYLOAD.len()], PAYLOAD);
            let opened = open_it(&mut open, &mut datagram).unwrap();
            assert_eq!(opened.number, PacketNumber(number));
            assert_eq!(opened.payload, PAYLOAD);
            assert_eq!(opened.datagram_len, HEADER_LEN + PAYLOAD.len() + TAG_LEN);
        }
        assert_eq!(open.rejects().total(), 0);
    }
}

/// The keys were made elsewhere, by HMAC-SHA256 and the words of `docs/protocol.md#KEY-1` and `#KEY-3` alone; suites and tag
/// are those of `#WIRE-1`.
#[test]
fn the_keys_are_those_of_the_protocols_document() {
    let from = ReceiverId(9);
    let stream = |suite| SealKeys::stream(suite, &SECRET, STREAM, Epoch(0));
    let (aes, chacha) = (Suite::Aes256Gcm, Suite::ChaCha20Poly1305);
    let cases = [
        (
            stream(aes),
            (1_u64 << 24) + 5,
            "9f64d8639d7fe6f9adbef6aa000dad67648b03b5f2296c2789ba42821f4e9a0e",
        ),
        (stream(chacha), 3, "2062ad6466af5e0c522d5c30e0064d014ccb23d53b87b47db72979ef4db60f20"),
        (
            SealKeys::feedback(aes, &SECRET, STREAM, from),
            3,
            "b2501b8cf3f3dfea4439bae8d6d07a3ab9e4fcba1bb9f2fd6ad36ac0da246653",
        ),
    ];
    for (mut keys, number, key) in cases {
        let byte = |at| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).unwrap();
        let key: [u8; 32] = std::array::from_fn(byte);
        let key = LessSafeKey::new(UnboundKey::new(keys.schedule.suite.algorithm(), &key).unwrap());
        let nonce: [u8; 12] = [&[0; 4][..], &number.to_be_bytes()[..]].concat().try_into().unwrap();
        let mut datagram = sealed(&mut keys, number);
        let (header, body) = datagram.split_at_mut(HEADER_LEN);
        let nonce = Nonce::assume_unique_for_key(nonce);
        assert_eq!(key.open_in_place(nonce, Aad::from(header), body).unwrap(), PAYLOAD);
    }
}

// docs/protocol.md#KEY-2: who joins late is told where the stream is.
#[test]
fn a_late_receiver_opens_what_comes_after_the_number_told_at_join() {
    let suite = Suite::Aes256Gcm;
    for told in [(1 << 32) - 3, (1 << 33) + 7, 5 << 40] {
        let mut keys = sealer();
        let next = PacketNumber(told + 1);
        let mut late = OpenKeys::stream(suite, &SECRET, STREAM, Epoch(0), next);
        for number in told + 1..told + 5 {
            let opened = sealed(&mut keys, number);
            assert_eq!(
                open_it(&mut late, &mut opened.clone()).unwrap().number,
                PacketNumber(number)
            );
        }
        // Without being told it takes them for others, and none is genuine then.
        let other = sealed(&mut keys, told + 6);
        assert_eq!(open_it(&mut opener(), &mut other.clone()), Err(Reject::Forged), "{told}");
    }
}

#[test]
fn an_empty_payload_is_sealed_too() {
    let mut datagram = Vec::new();
    let header = poll(Epoch(0), STREAM, 1);
    sealer().append(PacketNumber(1), &header, &[], &mut datagram).unwrap();
    assert_eq!(datagram.len(), HEADER_LEN + TAG_LEN);
    assert!(open_it(&mut opener(), &mut datagram).unwrap().payload.is_empty());
}

#[test]
fn each_reason_is_counted() {
    let mut keys = sealer();
    let mut open = opener();
    // Who knows which blocks are sent takes no symbol for an early one.
    open.expect_blocks(0, 0);
    // Not a power of two: number 0, one flipped bit away, would count as replayed.
    let genuine = sealed(&mut keys, 3);
    for bit in 0..genuine.len() * 8 {
        let mut bent = genuine.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        assert!(open_it(&mut open, &mut bent).is_err(), "bit {bit}");
    }
    // A bit of the packet number leads to another nonce, so it counts as forged. Of the type's bits one makes an
    // advertisement of the poll, one a symbol and one a presence; those of the six bytes of zeros are not ours.
    let forged = (4 + PAYLOAD.len() + TAG_LEN) as u64 * 8 + 3;
    let mut expected =
        RejectCounts { wrong_epoch: 8, wrong_stream: 32, forged, ..Default::default() };
    assert_eq!(open.rejects(), expected);

    assert_eq!(open_it(&mut open, &mut genuine.clone()).map(|o| o.number), Ok(PacketNumber(3)));
    assert_eq!(open_it(&mut open, &mut genuine.clone()), Err(Reject::Replayed));
    assert_eq!(
        open_it(&mut open, &mut genuine[..HEADER_LEN + TAG_LEN - 1].to_vec()),
        Err(Reject::Truncated)
    );
    assert_eq!(open_it(&mut open, &mut []), Err(Reject::Truncated));
    open.limit_len(genuine.len());
    let mut longer = genuine.clone();
    longer.push(0);
    assert_eq!(open_it(&mut open, &mut longer), Err(Reject::Oversized));
    expected.replayed = 1;
    expected.oversized = 1;
    assert_eq!(open.rejects(), expected);
    assert_eq!(open.rejects().total(), expected.total());
}

#[test]
fn other_secrets_streams_and_purposes_do_not_open() {
    let datagram = sealed(&mut sealer(), 1);
    let other = Secret::random().unwrap();
    let mut open = OpenKeys::stream(Suite::Aes256Gcm, &other, STREAM, Epoch(0), PacketNumber(1));
    assert_eq!(open_it(&mut open, &mut datagram.clone()), Err(Reject::Forged));
    let mut open = OpenKeys::feedback(Suite::Aes256Gcm, &SECRET, STREAM, ReceiverId(1));
    assert_eq!(open_it(&mut open, &mut datagram.clone()), Err(Reject::Forged));
    let mut keys = SealKeys::feedback(Suite::Aes256Gcm, &SECRET, STREAM, ReceiverId(1));
    assert!(open_it(&mut open, &mut sealed(&mut keys, 1)).is_ok());
    let mut open = OpenKeys::feedback(Suite::Aes256Gcm, &SECRET, STREAM, ReceiverId(2));
    assert_eq!(open_it(&mut open, &mut sealed(&mut keys, 2)), Err(Reject::Forged));
}

#[test]
fn a_nonce_is_never_used_twice() {
    let mut keys = sealer();
    sealed(&mut keys, 5);
    for number in [0, 4, 5] {
        let (header, mut out) = (poll(Epoch(0), STREAM, number), Vec::new());
        let result = keys.append(PacketNumber(number), &header, PAYLOAD, &mut out);
        assert!(out.is_empty());
        assert_eq!(result, Err(SealError::NumberNotRising));
    }
    let result = keys.append(PacketNumber(7), &poll(Epoch(0), STREAM, 6), PAYLOAD, &mut Vec::new());
    assert_eq!(result, Err(SealError::HeaderDiffers));
}

#[test]
fn another_epoch_than_the_sessions_does_not_open() {
    let other = SealKeys::stream(Suite::Aes256Gcm, &SECRET, STREAM, Epoch(1));
    let (mut keys, mut open) = (other, opener());
    let whole = sealed(&mut keys, 1);
    let short = sealed_as(&mut keys, &symbol(Epoch(1), 2, 0), 2);
    for mut datagram in [whole, short] {
        assert_eq!(open_it(&mut open, &mut datagram), Err(Reject::WrongEpoch));
    }
}

#[test]
fn a_late_joiner_knows_the_upper_bits_from_the_join() {
    let mut keys = sealer();
    let number = (5 << 32) + 17;
    let mut datagram = sealed(&mut keys, number);
    let next = PacketNumber(number - 1000);
    let mut open = OpenKeys::stream(Suite::Aes256Gcm, &SECRET, STREAM, Epoch(0), next);
    assert_eq!(open_it(&mut open, &mut datagram).unwrap().number, PacketNumber(number));
}

// docs/protocol.md#KEY-2
#[test]
fn who_has_missed_very_much_finds_the_stream_again() {
    let joined = 5 << 40;
    let next = PacketNumber(joined + 1);
    for missed in [(1 << 31) - 1, (1 << 31) + 1, 3 << 30, (1 << 32) - 70_000] {
        let (mut keys, number) = (sealer(), joined + missed);
        let old = sealed(&mut keys, joined - 70_000);
        let mut datagram = sealed(&mut keys, number);
        let mut open = OpenKeys::stream(Suite::Aes256Gcm, &SECRET, STREAM, Epoch(0), next);
        assert_eq!(open_it(&mut open, &mut old.clone()), Err(Reject::Replayed));
        let replay = datagram.clone();
        assert_eq!(open_it(&mut open, &mut datagram).unwrap().number, PacketNumber(number));
        assert_eq!(open_it(&mut open, &mut replay.clone()), Err(Reject::Replayed), "{missed}");
        let mut symbol = sealed_as(&mut keys, &symbol(Epoch(0), number + 1, 0), number + 1);
        assert!(open_it(&mut open, &mut symbol).is_ok(), "{missed}");
    }
}

// docs/protocol.md#WIRE-9
#[test]
fn a_symbol_opens_by_what_is_near_and_by_nothing_else() {
    let (mut keys, mut open) = (sealer(), opener());
    let first = symbol(Epoch(0), 3, 0);
    let genuine = sealed_as(&mut keys, &first, 3);
    assert_eq!(genuine.len(), OVERHEAD + PAYLOAD.len());
    for bit in 0..genuine.len() * 8 {
        let mut bent = genuine.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        assert!(open_it(&mut open, &mut bent).is_err(), "bit {bit}");
    }
    assert_eq!(open.header(&genuine), Ok(first));
    assert_eq!(open_it(&mut open, &mut genuine.clone()).unwrap().payload, PAYLOAD);
    assert_eq!(open_it(&mut open, &mut genuine.clone()), Err(Reject::Replayed));
    assert_eq!(open_it(&mut open, &mut genuine[..OVERHEAD - 1].to_vec()), Err(Reject::Truncated));

    // Far from the blocks and numbers that were last: not before a poll has told where the stream is.
    let number = (1 << 25) + 5;
    let far = sealed_as(&mut keys, &symbol(Epoch(0), number, 70_000), number);
    assert_eq!(open_it(&mut open, &mut far.clone()), Err(Reject::Forged));
    let told = sealed(&mut keys, number + 1);
    let (forged, replayed) = (open.rejects().forged, open.rejects().replayed);
    assert!(open_it(&mut open, &mut told.clone()).is_ok());
    let (was_early, after) = (1, open.rejects());
    assert_eq!((forged - after.forged, after.replayed - replayed), (was_early, was_early));
    assert_eq!(open_it(&mut open, &mut far.clone()), Err(Reject::Forged));
    open.expect_blocks(70_001, 2);
    assert_eq!(open_it(&mut open, &mut far.clone()).unwrap().number, PacketNumber(number));
}

#[test]
fn symbols_that_come_before_anybody_tells_which_blocks_are_sent_are_early() {
    let (mut keys, number) = (sealer(), 17);
    let early = sealed_as(&mut keys, &symbol(Epoch(0), number, 70_000), number);
    for told_first in [false, true] {
        let mut open = opener();
        assert_eq!(open_it(&mut open, &mut early.clone()), Err(Reject::Forged));
        if !told_first {
            assert!(open_it(&mut open, &mut sealed(&mut sealer(), number + 1)).is_ok());
        }
        open.expect_blocks(70_001, 0);
        assert_eq!((open.rejects().forged, open.rejects().replayed), (0, 1));
        assert!(open_it(&mut open, &mut early.clone()).is_ok());
    }
    let mut open = opener();
    open.expect_blocks(0, 0);
    assert_eq!(open_it(&mut open, &mut early.clone()), Err(Reject::Forged));
    assert!(open_it(&mut open, &mut sealed(&mut sealer(), number + 1)).is_ok());
    assert_eq!(open.rejects().forged, 1, "it was told");
}

// docs/protocol.md#KEY-2: each packet number passes once.
proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_window_agrees_with_a_set(steps in proptest::collection::vec((any::<bool>(), 0u64..150), 1..300)) {
        let mut window = ReplayWindow::new(128, 1000);
        let (mut seen, mut highest) = (HashSet::new(), 1000u64);
        for (forward, distance) in steps {
            let number = if forward { highest + distance } else { highest.saturating_sub(distance) };
            let expected = (number > highest || highest - number < 128) && !seen.contains(&number);
            prop_assert_eq!(window.is_new(number), expected);
            if expected {
                window.mark(number);
                seen.insert(number);
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn noise_never_opens_or_panics(mut noise in proptest::collection::vec(any::<u8>(), 0..200), ours in any::<bool>()) {
        if ours && noise.len() > 6 {
            noise[1] = 0;
            noise[2..6].copy_from_slice(&STREAM.0.to_be_bytes());
        }
        let mut open = opener();
        assert!(open_it(&mut open, &mut noise).is_err());
        prop_assert_eq!(open.highest(), PacketNumber(0));
    }
}
