//! What a session carries, as its endpoint and its account see it: one manifest, or products.

use crate::object::{ContentSource, EntryId, Withdrawn};
use crate::product::Queue;
use downpour_proto::BlockId;
use downpour_transport::{BlockSource, FirstReads, Part, SourceError};
use std::ops::Range;
use std::sync::Arc;

/// The sender's data. What only a manifest has is asked of its [content](Carried::content).
pub(super) trait Carried: BlockSource {
    /// What is sent by one manifest; `None`: products.
    fn content(&self) -> Option<&ContentSource> {
        None
    }

    /// Length of the data space, once known.
    fn data_len(&self) -> Option<u64> {
        self.content()?.data_len()
    }

    /// Source symbols of a block that may be offered.
    fn symbols(&self, block: BlockId) -> Option<u16>;

    /// Fills `buf` from `offset` of the data space.
    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;

    /// `range` of the data space, if all of it is in memory.
    fn kept(&self, range: Range<u64>) -> Option<Vec<Part>> {
        self.content()?.kept(range)
    }

    /// What is read before it can be asked for.
    fn first_reads(&self) -> Arc<FirstReads> {
        self.content().map(ContentSource::first_reads).unwrap_or_default()
    }

    /// Objects, and their bytes once known.
    fn objects(&self) -> (u64, Option<u64>);

    /// Products so far; `None`: it is one manifest.
    fn products(&self) -> Option<u64> {
        None
    }

    /// Why not all that was promised can be had any more, so that the session cannot go on.
    fn lost(&self) -> Option<String> {
        self.content()?.lost()
    }

    /// Objects given up so far.
    fn withdrawn(&self) -> Vec<Withdrawn> {
        self.content().map(ContentSource::withdrawn).unwrap_or_default()
    }

    /// Whether there are files without data, which nobody reads.
    fn has_empty(&self) -> bool {
        self.content().is_some_and(ContentSource::has_empty)
    }

    /// Gives up those of them that are not as they were, or, when they have `gone` to receivers, hold some. Waits for their disk.
    fn look_at_empty(&self, gone: bool) {
        self.content().inspect(|content| content.look_at_empty(gone));
    }

    /// Gives an object up; products are taken as they come.
    fn give_up(&self, entry: EntryId, reason: &str) {
        self.content().inspect(|content| content.give_up(entry, reason));
    }

    /// Bytes in so many data blocks, about.
    fn bytes_of(&self, blocks: u32) -> u64;
}

impl Carried for ContentSource {
    fn content(&self) -> Option<&ContentSource> {
        Some(self)
    }

    fn symbols(&self, block: BlockId) -> Option<u16> {
        self.symbols(block)
    }

    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.read_data(offset, buf)
    }

    fn objects(&self) -> (u64, Option<u64>) {
        (u64::from(self.tree().len()), self.data_len())
    }

    fn bytes_of(&self, blocks: u32) -> u64 {
        let bytes = u64::from(blocks) * self.geometry().block_len();
        self.data_len().map_or(bytes, |len| bytes.min(len))
    }
}

impl Carried for Queue {
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

    fn bytes_of(&self, blocks: u32) -> u64 {
        self.bytes_of(blocks)
    }
}
