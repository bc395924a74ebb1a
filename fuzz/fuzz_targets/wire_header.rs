//! Any bytes are a header or are refused, and what was read is written back as it stood.

#![no_main]

use downpour_proto::wire::{HEADER_LEN, Header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = Header::parse(bytes) {
        assert_eq!(header.emit(), bytes[..HEADER_LEN]);
    }
});
