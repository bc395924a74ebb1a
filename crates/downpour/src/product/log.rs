//! A line for each product, as JSON: what became of it, and when. Times are nanoseconds since 1970.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A sender's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InsertedLine {
    /// Its number in the session.
    pub product: u64,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// When it was due: what latency is counted from.
    pub inserted_ns: u64,
    /// When the first datagram of its first block left; 0: that block was not sent, because nobody followed the stream.
    pub first_sent_ns: u64,
    /// When the last source datagram of its last block left; 0 likewise.
    pub last_sent_ns: u64,
    /// Why it was withdrawn, if it was: it has no place at any receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
}

/// A receiver's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceivedLine {
    /// Its number in the session.
    pub product: u64,
    /// Its name.
    pub name: String,
    /// What the publisher said of it.
    pub meta: String,
    /// Its bytes.
    pub size: u64,
    /// Its BLAKE3; empty where nothing verifies (profile `fmtp`).
    pub digest: String,
    /// When it was inserted, by the sender's clock.
    pub inserted_ns: u64,
    /// When its last block was complete, by ours.
    pub arrived_ns: u64,
    /// When it had been verified and placed, by ours.
    pub delivered_ns: u64,
    /// The sender's clock less ours, when the receiver joined.
    pub clock_ahead_ns: i64,
    /// By so much that may be wrong.
    pub clock_error_ns: u64,
}

/// A file of such lines. What cannot be written is told once, at the end.
#[derive(Debug)]
pub struct ProductLog {
    file: Mutex<(File, Option<io::Error>)>,
}

impl ProductLog {
    /// Empties or makes the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: Mutex::new((File::create(path)?, None)) })
    }

    /// Adds a line.
    pub fn add(&self, line: &impl Serialize) {
        // Strings and numbers: nothing that JSON could refuse.
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let (file, failure) = &mut *self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let end = file.stream_position();
        if let Err(error) = file.write_all(&text) {
            // A part of a line would be taken for the beginning of the next one. What is no file has no end to go back to.
            let _ = end.and_then(|end| {
                file.set_len(end)?;
                file.seek(SeekFrom::Start(end))
            });
            failure.get_or_insert(error);
        }
    }

    /// What could not be written.
    pub fn failure(&self) -> Option<String> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.1.as_ref().map(|error| format!("the log of products is not whole: {error}"))
    }
}
