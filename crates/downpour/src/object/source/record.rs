//! What the sender has promised so far: sections, digests, and which blocks were read.

use crate::object::digest::Digest;
use crate::object::layout::Group;
use crate::object::limits::GROUP_LEN;
use crate::object::manifest::DigestSection;
use crate::object::tree::{EntryId, Tree};
use downpour_proto::Geometry;
use std::ops::Range;

/// Grows section by section. Memory: the manifest itself, and 32 bytes for each group.
pub(super) struct Record {
    geometry: Geometry,
    sections: Vec<Emitted>,
    digests: Vec<Digest>,
    /// End of what the sections cover in the data space.
    covered: u64,
    last: Option<Digest>,
    /// One bit for each data block that was read.
    read: Vec<u64>,
}

struct Emitted {
    bytes: Box<[u8]>,
    first_block: u32,
}

impl Record {
    pub(super) fn new(geometry: Geometry) -> Self {
        let (sections, digests, read) = (Vec::new(), Vec::new(), Vec::new());
        Self { geometry, sections, digests, covered: 0, last: None, read }
    }

    /// Adds a section. Returns its manifest blocks.
    pub(super) fn push(&mut self, bytes: Vec<u8>) -> Range<u32> {
        let first_block = self.manifest_blocks();
        self.sections.push(Emitted { bytes: bytes.into(), first_block });
        first_block..self.manifest_blocks()
    }

    /// Adds what a digest section promises.
    pub(super) fn cover(&mut self, section: &DigestSection) {
        self.digests.extend_from_slice(&section.digests);
        self.covered = section.data_end;
    }

    /// The manifest is complete.
    pub(super) fn end(&mut self, digest: Digest) {
        self.last = Some(digest);
    }

    pub(super) fn sections(&self) -> u32 {
        self.sections.len() as u32
    }

    pub(super) fn manifest_digest(&self) -> Option<Digest> {
        self.last
    }

    pub(super) fn final_len(&self) -> Option<u64> {
        self.last.map(|_| self.covered)
    }

    pub(super) fn covered(&self) -> u64 {
        self.covered
    }

    /// Data blocks that may be offered end here.
    pub(super) fn offered(&self) -> u32 {
        let blocks = match self.last {
            Some(_) => self.geometry.blocks(self.covered),
            None => self.covered / self.geometry.block_len(),
        };
        // Below BlockId::NUMBER_END: checked when the source was made, and for streams as they grow.
        blocks as u32
    }

    pub(super) fn data_symbols(&self, number: u32) -> Option<u16> {
        (number < self.offered()).then(|| self.geometry.symbols_of(number, self.covered))
    }

    pub(super) fn data_range(&self, number: u32) -> Range<u64> {
        if number >= self.offered() {
            return 0..0;
        }
        let start = u64::from(number) * self.geometry.block_len();
        start..self.covered.min(start + self.geometry.block_len())
    }

    /// Marks a data block as read. Returns whether it was read before.
    pub(super) fn mark_read(&mut self, number: u32) -> bool {
        if number >= self.offered() {
            return false;
        }
        let (word, bit) = (number as usize / 64, 1u64 << (number % 64));
        if self.read.len() <= word {
            self.read.resize(word + 1, 0);
        }
        let again = self.read[word] & bit != 0;
        self.read[word] |= bit;
        again
    }

    /// Recorded digest of a group, unless its file was withdrawn.
    pub(super) fn digest(&self, group: u32) -> Option<Digest> {
        self.digests.get(group as usize).copied().filter(|digest| *digest != Digest::NONE)
    }

    /// Groups covered so far.
    pub(super) fn groups(&self) -> u32 {
        self.digests.len() as u32
    }

    /// A recorded group: where it lies, the length of its file as far as it matters to the digest, and
    /// its digest.
    pub(super) fn group(&self, tree: &Tree, number: u32) -> Option<(Group, u64, Digest)> {
        let digest = self.digest(number)?;
        let mut group = tree.layout().group(number);
        group.data.end = group.data.end.min(self.covered);
        let len = match tree.file_size(EntryId(group.entry)) {
            Some(size) => size,
            None => self.final_len().unwrap_or(self.covered.max(GROUP_LEN + 1)),
        };
        Some((group, len, digest))
    }

    fn manifest_blocks(&self) -> u32 {
        self.sections.last().map_or(0, |last| {
            last.first_block + self.geometry.blocks(last.bytes.len() as u64) as u32
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
        Some(self.geometry.symbols_of(within, section.bytes.len() as u64))
    }

    pub(super) fn read_manifest(&self, number: u32, buf: &mut [u8]) -> Option<usize> {
        let (section, within) = self.manifest_block(number)?;
        let start = within as usize * self.geometry.block_len() as usize;
        let end = section.bytes.len().min(start + self.geometry.block_len() as usize);
        buf.get_mut(..end - start)?.copy_from_slice(&section.bytes[start..end]);
        Some(end - start)
    }
}
