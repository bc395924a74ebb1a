//! Any bytes are a message of this kind or are refused, and what was read is written back as it stood.

#![no_main]

use downpour_proto::wire::Presence;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Presence::parse(bytes) {
        let mut again = Vec::new();
        message.emit(&mut again);
        assert_eq!(again, bytes);
    }
});
