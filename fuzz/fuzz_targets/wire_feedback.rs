//! Any bytes are a message of this kind or are refused, and what was read is written back as it stood, with zeros for
//! what is reserved.

#![no_main]

use downpour_proto::wire::Feedback;
use libfuzzer_sys::fuzz_target;
use std::ops::Range;

const RESERVED: Range<usize> = 36..44;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Feedback::parse(bytes) {
        let mut again = Vec::new();
        message.emit(&mut again);
        assert_eq!(again[RESERVED], [0; 8]);
        again[RESERVED].copy_from_slice(&bytes[RESERVED]);
        assert_eq!(again, bytes);
    }
});
