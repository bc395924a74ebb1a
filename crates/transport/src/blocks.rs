//! Where blocks come from and go to: the seam between the transport, which knows blocks and symbols,
//! and the product, which knows files.
//!
//! Both traits are called from worker threads, several at once, never from the thread that keeps time, but for what is at
//! hand.

use crate::Part;
use downpour_proto::BlockId;
use std::fmt;
use std::ops::Range;

/// The sender's bytes. The transport keeps no old data: a block that needs repair is read again.
pub trait BlockSource: Send + Sync + 'static {
    /// Writes the bytes of `block` into `buf` (k·T bytes, whatever is in them), and returns how many they are: zeros follow
    /// them, which the caller writes. Must give the same bytes every time.
    fn read(&self, block: BlockId, buf: &mut [u8]) -> Result<usize, SourceError>;

    /// The same bytes without those zeros, if they are in memory and can be had at once: an open session asks for this
    /// first, on the thread that keeps time, and neither copies them nor wakes a worker.
    fn at_hand(&self, _block: BlockId) -> Option<Part> {
        None
    }
}

/// The sender could not give the bytes that the manifest promised.
#[derive(Debug)]
pub struct SourceError {
    /// What happened, with the object's name, for the report.
    pub reason: String,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for SourceError {}

/// The receiver's end. Verifies, places, journals.
pub trait BlockSink: Send + Sync + 'static {
    /// Copies into `buf` (k·T bytes, of any content) the source symbols of `block` that are held from an
    /// earlier attempt, and returns their index ranges. Called once, when the first symbol of a block comes.
    fn seed(&self, block: BlockId, buf: &mut [u8]) -> Vec<Range<u16>>;

    /// Takes a complete block of k·T bytes.
    fn accept(&self, block: BlockId, data: &[u8]) -> Accepted;
}

/// What the sink did with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// Kept. It need not come again, unless [`BlockSink`] later says so through its own events.
    Kept,
    /// No room to keep it now (its manifest section has not come, or memory is at its cap). It counts as
    /// never received and is pulled later.
    Refused,
    /// Its bytes contradict the signed manifest: a poisoned symbol. Pull it over TLS.
    False,
    /// The sink has failed for good (disk full, target gone) and has told its owner why.
    Failed,
}
