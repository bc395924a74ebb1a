//! What a session carries, as its endpoint and its account see it: one manifest, or products.

use crate::object::{ContentSource, EntryId, Withdrawn};
use crate::product::Queue;
use downpour_proto::BlockId;
use downpour_transport::{BlockSource, FirstReads, Part, SourceError};
use std::ops::Range;
use std::sync::Arc;

/// The sender's data.
pub(super) trait Carried: BlockSource {
    /// Length of the data space, once known.
    fn data_len(&self) -> Option<u64>;

    /// Source symbols of a block that may be offered.
    fn symbols(&self, block: BlockId) -> Option<u16>;

    /// Fills `buf` from `offset` of the data space.
    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;

    /// `range` of the data space, if all of it is in memory.
    fn kept(&self, range: Range<u64>) -> Option<Vec<Part>> {
        let _ = range;
        None
    }

    /// What is read before it can be asked for.
    fn first_reads(&self) -> Arc<FirstReads> {
        Arc::default()
    }

    /// Objects, and their bytes once known.
    fn objects(&self) -> (u64, Option<u64>);

    /// Products so far; `None`: it is one manifest.
    fn products(&self) -> Option<u64> {
        None
    }

    /// Why not all that was promised can be had any more, so that the session cannot go on.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Objects given up so far.
    fn withdrawn(&self) -> Vec<Withdrawn>;

    /// Whether there are files without data, which nobody reads.
    fn has_empty(&self) -> bool {
        false
    }

    /// Gives up those of them that are not as they were, or, when they have `gone` to receivers, hold some. Waits for their disk.
    fn look_at_empty(&self, gone: bool) {
        let _ = gone;
    }

    /// Gives an object up; products are taken as they come.
    fn give_up(&self, _entry: EntryId, _reason: &str) {}

    /// Bytes in so many data blocks, about.
    fn bytes_of(&self, blocks: u32) -> u64;
}

impl Carried for ContentSource {
    fn data_len(&self) -> Option<u64> {
        self.data_len()
    }

    fn symbols(&self, block: BlockId) -> Option<u16> {
        self.symbols(block)
    }

    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.read_data(offset, buf)
    }

    fn kept(&self, range: Range<u64>) -> Option<Vec<Part>> {
        self.kept(range)
    }

    fn first_reads(&self) -> Arc<FirstReads> {
        self.first_reads()
    }

    fn objects(&self) -> (u64, Option<u64>) {
        (u64::from(self.tree().len()), self.data_len())
    }

    fn lost(&self) -> Option<String> {
        self.lost()
    }

    fn withdrawn(&self) -> Vec<Withdrawn> {
        self.withdrawn()
    }

    fn has_empty(&self) -> bool {
        self.has_empty()
    }

    fn look_at_empty(&self, gone: bool) {
        self.look_at_empty(gone);
    }

    fn give_up(&self, entry: EntryId, reason: &str) {
        self.give_up(entry, reason);
    }

    fn bytes_of(&self, blocks: u32) -> u64 {
        let bytes = u64::from(blocks) * self.geometry().block_len();
        self.data_len().map_or(bytes, |len| bytes.min(len))
    }
}

impl Carried for Queue {
    fn data_len(&self) -> Option<u64> {
        None
    }

    fn symbols(&self, block: BlockId) -> Option<u16> {
        self.symbols(block)
    }

    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.read_data(offset, buf)
    }

    fn objects(&self) -> (u64, Option<u64>) {
        let (products, bytes) = self.inserted();
        (products, Some(bytes))
    }

    fn products(&self) -> Option<u64> {
        Some(self.inserted().0)
    }

    fn withdrawn(&self) -> Vec<Withdrawn> {
        Vec::new()
    }

    fn bytes_of(&self, blocks: u32) -> u64 {
        self.bytes_of(blocks)
    }
}
