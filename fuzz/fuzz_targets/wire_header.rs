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
        let near = Near {
            stream: StreamId(7),
            epochs: [Epoch(4), Epoch(3)],
            packet: 5 << 32,
            blocks: [70_000, 3],
        };
        if let Ok(header) = short.lengthen(&near) {
            assert_eq!(Short::of(&header), Some(short));
        }
    }
});
