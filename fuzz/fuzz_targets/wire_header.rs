//! Any bytes are a header, whole or a symbol's, or are refused, and what was read is written back as it stood.

#![no_main]

use downpour_proto::wire::{HEADER_LEN, Header, Near, SHORT_LEN, Short};
use downpour_proto::{Epoch, StreamId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = Header::parse(bytes) {
        assert_eq!(header.emit(), bytes[..HEADER_LEN]);
    }
    if let Ok(short) = Short::parse(bytes) {
        assert_eq!(short.emit(), bytes[..SHORT_LEN]);
        assert!(Short::begins(bytes));
        if let Ok(header) = short.lengthen(&near(&bytes[SHORT_LEN..])) {
            assert_eq!(Short::of(&header), Some(short));
        }
    }
});

/// What a receiver may know: made of the bytes where the tag would be.
fn near(bytes: &[u8]) -> Near {
    let word = |at: usize| {
        let word = bytes[at..].first_chunk().expect("a tag is as long");
        u32::from_be_bytes(*word)
    };
    Near {
        stream: StreamId(7),
        epoch: Epoch(4),
        packet: u64::from(word(0)) << 32 | u64::from(word(4)),
        blocks: [word(8), word(12)],
    }
}
