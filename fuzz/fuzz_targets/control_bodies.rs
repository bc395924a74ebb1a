//! Any bytes as the body of each control endpoint, from either side: refused, or what was read is written
//! and read the same, and what passed its check keeps within the limits.

#![no_main]

use downpour_proto::BlockId;
use downpour_transport::control::{
    ApiError, Event, HAVE_RANGES_MAX, HaveRequest, JoinReply, JoinRequest, LeaveRequest,
    MANIFEST_SYMBOLS_MAX, REASON_LEN_MAX, ReadyRequest, Receipt, SignedReceipt,
};
use downpour_transport::identity::PublicKey;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&read).expect("what was read can be written");
    let again: T = serde_json::from_slice(&text).expect("and read again");
    assert_eq!(again, read);
    Some(read)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 9 {
        0 => {
            let _ = read::<JoinRequest>(body).map(|request| request.check());
        }
        1 => {
            let _ = read::<JoinReply>(body).map(|reply| (reply.check(), format!("{reply:?}")));
        }
        2 => {
            read::<ReadyRequest>(body);
        }
        3 => have(body),
        4 => {
            if let Some(signed) = read::<SignedReceipt>(body) {
                assert!(signed.verify(&PublicKey::from_bytes([7; 32])).is_err());
            }
        }
        5 => {
            read::<Receipt>(body);
        }
        6 => {
            let _ = read::<LeaveRequest>(body).map(|leave| leave.check());
        }
        7 => event(body),
        _ => {
            let _ = serde_json::from_slice::<ApiError>(body).map(|error| error.to_string());
        }
    }
});

fn have(body: &[u8]) {
    let Some(have) = read::<HaveRequest>(body) else { return };
    let fits = have.check().is_ok();
    for piece in have.clone().into_pieces() {
        assert!(piece.data.len() + piece.manifest.len() <= HAVE_RANGES_MAX);
        assert!(!fits || piece.check().is_ok());
    }
    if fits {
        let ends = have.data.iter().chain(&have.manifest).map(|range| range.1);
        assert!(ends.max().is_none_or(|end| end <= BlockId::NUMBER_END));
    }
}

fn event(body: &[u8]) {
    let Some(event) = read::<Event>(body) else { return };
    let fits =
        !matches!(&event, Event::Manifest { symbols, .. } if symbols.len() > MANIFEST_SYMBOLS_MAX);
    let line = serde_json::to_vec(&event.clipped()).expect("an event has a JSON form");
    assert!(!fits || line.len() <= 6 * REASON_LEN_MAX + 6 * MANIFEST_SYMBOLS_MAX + 200);
}
