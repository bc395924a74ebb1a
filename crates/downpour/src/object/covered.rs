//! What the sections of a manifest cover so far, at either end: the digests of groups, and the blocks that are whole.
//!
//! Invariants: groups below [`Covered::groups`] are covered; blocks below [`Covered::blocks`] lie in covered data only.

use super::digest::Digest;
use super::group::KnownGroup;
use super::manifest::DigestSection;
use super::tree::Tree;
use downpour_proto::Geometry;
use std::ops::Range;

/// Grows section by section: 32 bytes for each group.
pub(crate) struct Covered {
    geometry: Geometry,
    digests: Vec<Digest>,
    end: u64,
    last: bool,
}

impl Covered {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, digests: Vec::new(), end: 0, last: false }
    }

    /// Adds what a section promises.
    pub(crate) fn add(&mut self, section: &DigestSection) {
        self.digests.extend_from_slice(&section.digests);
        self.end = section.data_end;
    }

    /// No section follows.
    pub(crate) fn finish(&mut self) {
        self.last = true;
    }

    /// Whether no section follows.
    pub(crate) fn is_finished(&self) -> bool {
        self.last
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Where it ends in the data space.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn groups(&self) -> u32 {
        self.digests.len() as u32
    }

    /// Blocks that are whole end here.
    pub(crate) fn blocks(&self) -> u32 {
        let blocks = match self.last {
            true => self.geometry.blocks(self.end),
            false => self.end / self.geometry.block_len(),
        };
        // Below BlockId::NUMBER_END: the data space is bounded.
        blocks as u32
    }

    /// Bytes of a block in the data space; none of one that is not whole.
    pub(crate) fn block(&self, number: u32) -> Range<u64> {
        if number >= self.blocks() {
            return 0..0;
        }
        let start = u64::from(number) * self.geometry.block_len();
        start..self.end.min(start + self.geometry.block_len())
    }

    /// Digest of a group that is covered, unless its file was withdrawn.
    pub(crate) fn digest(&self, group: u32) -> Option<Digest> {
        self.digests.get(group as usize).copied().filter(|digest| *digest != Digest::NONE)
    }

    /// The same with all that is known of the group.
    pub(crate) fn known(&self, tree: &Tree, group: u32) -> Option<KnownGroup> {
        Some(KnownGroup::of(tree, group, self.digest(group)?, self.end, self.last))
    }
}
