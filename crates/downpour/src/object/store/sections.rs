//! Manifest blocks, in any order, to verified sections, in theirs.
//!
//! A section starts at a block of its own and tells its length there (`docs/protocol.md#MAN-1`). Its blocks are held
//! until all are in; then hash chain and signature decide. When they do not fit, all blocks of the section are
//! forgotten, as nobody can say which of them is false; and a false length is found out early where
//! the lengths of the blocks contradict it, or the manifest's end (`docs/protocol.md#MAN-12`).

use crate::object::limits::MANIFEST_HELD_MAX;
use crate::object::manifest::{Chain, ManifestError, ManifestId, declared_len};
use downpour_proto::Geometry;
use downpour_transport::identity::PublicKey;
use std::collections::BTreeMap;
use std::ops::Range;

/// A section whose place and signature are right.
pub(super) struct Genuine {
    pub(super) index: u32,
    pub(super) last: bool,
    pub(super) body: Vec<u8>,
}

/// What [`Sections::next`] found.
pub(super) enum Next {
    Section(Genuine),
    /// The publisher has signed what cannot be.
    Malformed(ManifestError),
    /// These blocks do not make a genuine section, and are forgotten.
    Forged(Vec<u32>),
    /// Blocks are missing.
    Nothing,
}

pub(super) struct Sections {
    geometry: Geometry,
    publisher: PublicKey,
    chain: Chain,
    /// First block of the next section.
    next_block: u32,
    held: BTreeMap<u32, Box<[u8]>>,
    held_len: usize,
    /// One past the manifest's last block, once it is known.
    pub(super) end: u32,
    /// A thread is working through sections; it will see what others insert.
    pub(super) working: bool,
}

impl Sections {
    pub(super) fn new(geometry: Geometry, publisher: PublicKey, id: ManifestId) -> Self {
        Self {
            geometry,
            publisher,
            chain: Chain::new(id),
            next_block: 0,
            held: BTreeMap::new(),
            held_len: 0,
            end: u32::MAX,
            working: false,
        }
    }

    pub(super) fn digest(&self) -> crate::object::Digest {
        self.chain.digest()
    }

    /// Keeps a block. Returns whether there was room (or no need).
    pub(super) fn insert(&mut self, block: u32, data: &[u8]) -> bool {
        if block < self.next_block || self.held.contains_key(&block) {
            return true;
        }
        // Looked for only when there is no more room: that goes through all that is held.
        let lowest_missing = || (self.next_block..).find(|block| !self.held.contains_key(block));
        if self.held_len + data.len() > MANIFEST_HELD_MAX && lowest_missing() != Some(block) {
            return false;
        }
        self.held_len += data.len();
        self.held.insert(block, data.into());
        true
    }

    /// The next section, if it can be had.
    pub(super) fn next(&mut self) -> Next {
        let first = self.next_block;
        let Some(start) = self.held.get(&first) else {
            return Next::Nothing;
        };
        let Ok(len) = declared_len(start) else {
            return self.forge(first..first + 1);
        };
        let blocks = first..first.saturating_add(self.geometry.blocks(len as u64) as u32);
        if blocks.end > self.end {
            // It would wait for blocks that nobody has.
            return self.forge(first..first + 1);
        }
        if let Some(misfit) = self.misfit(&blocks, len as u64) {
            self.forget(misfit);
            let Next::Forged(mut forged) = self.forge(first..first + 1) else {
                return Next::Forged(vec![misfit]);
            };
            forged.push(misfit);
            forged.dedup();
            return Next::Forged(forged);
        }
        if self.held.range(blocks.clone()).count() < blocks.len() {
            return Next::Nothing;
        }
        let mut bytes = Vec::with_capacity(len);
        for block in self.held.range(blocks.clone()) {
            let rest = len - bytes.len();
            bytes.extend_from_slice(&block.1[..block.1.len().min(rest)]);
        }
        let opened = match self.chain.open(&bytes, &self.publisher) {
            Ok(opened) => {
                Genuine { index: opened.index, last: opened.last, body: opened.body.to_vec() }
            }
            Err(ManifestError::Forged(_)) => return self.forge(blocks),
            Err(error) => return Next::Malformed(error),
        };
        self.next_block = blocks.end;
        blocks.for_each(|block| self.forget(block));
        Next::Section(opened)
    }

    /// A held block whose length contradicts the section's.
    fn misfit(&self, blocks: &Range<u32>, len: u64) -> Option<u32> {
        self.held.range(blocks.clone()).find_map(|(block, data)| {
            let symbols = self.geometry.symbols_of(block - blocks.start, len);
            let expected = usize::from(symbols) * usize::from(self.geometry.symbol_len);
            (data.len() != expected).then_some(*block)
        })
    }

    fn forge(&mut self, blocks: Range<u32>) -> Next {
        let held: Vec<u32> = self.held.range(blocks).map(|(block, _)| *block).collect();
        held.iter().for_each(|block| self.forget(*block));
        Next::Forged(held)
    }

    fn forget(&mut self, block: u32) {
        if let Some(data) = self.held.remove(&block) {
            self.held_len -= data.len();
        }
    }
}
