//! For tests of the whole: a daemon that dies at a named point, and a mover that lies.
//!
//! | variable | what |
//! | --- | --- |
//! | `DOWNPOUR_KILL_AT=NAME` | the process ends as by `kill -9` when it gets to the point |
//! | `DOWNPOUR_LIE=SHARE` | this share of files that arrive is damaged behind the session's back, which says that all is well |
//!
//! Neither is set in a daemon that is meant to work; both cost one look at a constant otherwise.

use std::sync::OnceLock;

/// All points, before and after each commit of a file's life and of the records beside it.
pub const KILL_POINTS: [&str; 14] = [
    "claim.before",
    "claim.after",
    "offer.after",
    "sent.before",
    "sent.after",
    "verified.before",
    "verified.after",
    "receipted.before",
    "receipted.after",
    "arrived.before",
    "log.before",
    "adopt.before",
    "adopt.after",
    "answer.before",
];

/// Ends the process here if that is wanted.
pub(super) fn kill_point(name: &str) {
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(KILL_POINTS.contains(&name), "{name}");
    let wanted = WANTED.get_or_init(|| std::env::var("DOWNPOUR_KILL_AT").ok());
    if wanted.as_deref() == Some(name) {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        std::process::abort();
    }
}

/// Whether to damage a file, by its key: the share of keys that are below it.
pub(super) fn lies_about(key: &[u8; 16], attempt: u64) -> bool {
    static SHARE: OnceLock<f64> = OnceLock::new();
    let share = *SHARE.get_or_init(|| {
        std::env::var("DOWNPOUR_LIE").ok().and_then(|text| text.parse().ok()).unwrap_or(0.0)
    });
    if share <= 0.0 {
        return false;
    }
    let (head, _) = key.split_first_chunk().unwrap_or((&[0; 8], &[]));
    let mut rng = downpour_proto::Rng::new(u64::from_le_bytes(*head) ^ attempt);
    rng.unit() < share
}
