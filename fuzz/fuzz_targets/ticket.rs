//! Any text as a ticket, as it is and with a digest that fits: refused with a reason, or it makes the same
//! ticket again and names only addresses that can be.

#![no_main]

use downpour::ticket::{ADDRS_MAX, PREFIX, TICKET_LEN_MAX, Ticket};
use downpour_transport::control::encode_base64url;
use libfuzzer_sys::fuzz_target;
use std::time::{Duration, UNIX_EPOCH};

/// A ticket of any JSON, whole.
fn around(json: &[u8]) -> String {
    let text = format!("{PREFIX}{}", encode_base64url(json));
    let check = encode_base64url(&blake3::hash(text.as_bytes()).as_bytes()[..4]);
    format!("{text}.{check}")
}

fn read(text: &str) {
    let ticket = match text.parse::<Ticket>() {
        Ok(ticket) => ticket,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!((1..=ADDRS_MAX).contains(&ticket.addrs.len()));
    assert!(ticket.addrs.iter().all(|addr| addr.is_ascii() && !addr.contains(char::is_whitespace)));
    let again = ticket.to_string();
    if again.len() <= TICKET_LEN_MAX {
        assert_eq!(again.parse::<Ticket>().as_ref(), Ok(&ticket));
    }
    let late = UNIX_EPOCH + Duration::from_secs(1 << 40);
    let _ = ticket.check_time(late).map_err(|expired| expired.to_string());
}

fuzz_target!(|bytes: &[u8]| {
    read(&around(bytes));
    if let Ok(text) = std::str::from_utf8(bytes) {
        read(text);
        read(&format!("{PREFIX}{text}"));
    }
});
