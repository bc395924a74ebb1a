//! What the sender has promised so far: sections, digests, and which blocks were read.

use crate::object::bits::Bits;
use crate::object::covered::Covered;
use crate::object::digest::Digest;
use downpour_proto::Geometry;
use std::ops::Range;

/// Grows section by section. Memory: the manifest itself, and 32 bytes for each group.
pub(super) struct Record {
    pub(super) covered: Covered,
    sections: Vec<Emitted>,
    last: Option<Digest>,
    /// Data blocks that were read.
    read: Bits,
}

struct Emitted {
    bytes: Box<[u8]>,
    first_block: u32,
}

impl Record {
    pub(super) fn new(geometry: Geometry) -> Self {
        let covered = Covered::new(geometry);
        Self { covered, sections: Vec::new(), last: None, read: Bits::default() }
    }

    /// Adds a section. Returns its manifest blocks.
    pub(super) fn push(&mut self, bytes: Vec<u8>) -> Range<u32> {
        let first_block = self.manifest_blocks();
        self.sections.push(Emitted { bytes: bytes.into(), first_block });
        first_block..self.manifest_blocks()
    }

    /// The manifest is complete.
    pub(super) fn end(&mut self, digest: Digest) {
        self.last = Some(digest);
        self.covered.finish();
    }

    pub(super) fn sections(&self) -> u32 {
        self.sections.len() as u32
    }

    pub(super) fn manifest_digest(&self) -> Option<Digest> {
        self.last
    }

    pub(super) fn final_len(&self) -> Option<u64> {
        self.last.map(|_| self.covered.end())
    }

    pub(super) fn data_symbols(&self, number: u32) -> Option<u16> {
        let (geometry, end) = (self.covered.geometry(), self.covered.end());
        (number < self.covered.blocks()).then(|| geometry.symbols_of(number, end))
    }

    /// Marks a data block as read. Returns whether it was read before.
    pub(super) fn mark_read(&mut self, number: u32) -> bool {
        number < self.covered.blocks() && !self.read.set(number)
    }

    fn manifest_blocks(&self) -> u32 {
        self.sections.last().map_or(0, |last| {
            last.first_block + self.covered.geometry().blocks(last.bytes.len() as u64) as u32
        })
    }

    /// A manifest block's section and the number of the block within it.
    fn manifest_block(&self, number: u32) -> Option<(&Emitted, u32)> {
        if number >= self.manifest_blocks() {
            return None;
        }
        let after = self.sections.partition_point(|section| section.first_block <= number);
        let section = self.sections.get(after.checked_sub(1)?)?;
        Some((section, number - section.first_block))
    }

    pub(super) fn manifest_symbols(&self, number: u32) -> Option<u16> {
        let (section, within) = self.manifest_block(number)?;
        Some(self.covered.geometry().symbols_of(within, section.bytes.len() as u64))
    }

    pub(super) fn read_manifest(&self, number: u32, buf: &mut [u8]) -> Option<usize> {
        let (section, within) = self.manifest_block(number)?;
        let start = within as usize * self.covered.geometry().block_len() as usize;
        let end = section.bytes.len().min(start + self.covered.geometry().block_len() as usize);
        buf.get_mut(..end - start)?.copy_from_slice(&section.bytes[start..end]);
        Some(end - start)
    }
}
