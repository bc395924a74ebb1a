//! What a store asks of a target: the face that folders, pipes, devices and the void share.

use super::StoreFailure;
use crate::object::digest::Digest;
use crate::object::group::group_digest;
use crate::object::layout::Group;
use crate::object::place::{PlaceError, Why};
use crate::object::tree::{EntryId, Tree};
use std::sync::Arc;

/// A group whose digest is known.
#[derive(Clone, Debug)]
pub(super) struct KnownGroup {
    pub(super) number: u32,
    /// For the last group of a stream, `data` ends where the stream does.
    pub(super) group: Group,
    /// Size of its file as far as it matters to the digest.
    pub(super) file_len: u64,
    pub(super) digest: Digest,
}

impl KnownGroup {
    pub(super) fn entry(&self) -> EntryId {
        EntryId(self.group.entry)
    }

    /// Bytes in the data space.
    pub(super) fn data_len(&self) -> u64 {
        self.group.data.end - self.group.data.start
    }

    /// Bytes in the file, holes counted.
    pub(super) fn len(&self) -> u64 {
        self.group.len_in(self.file_len)
    }

    pub(super) fn is_dense(&self) -> bool {
        self.data_len() == self.len()
    }

    /// Whether `data`, its bytes in the data space, are genuine.
    pub(super) fn verify(&self, tree: &Tree, data: &[u8]) -> bool {
        data.len() as u64 == self.data_len()
            && group_digest(tree.layout(), &self.group, self.file_len, data) == self.digest
    }

    /// Cuts `data`, its bytes in the data space, into parts that are contiguous in the file.
    pub(super) fn parts<'a>(
        &self,
        tree: &'a Tree,
        data: &'a [u8],
    ) -> impl Iterator<Item = (u64, &'a [u8])> {
        let start = self.group.data.start;
        tree.layout().pieces(self.group.data.clone()).map(move |piece| {
            let from = (piece.data.start - start) as usize;
            (piece.start, &data[from..from + piece.len() as usize])
        })
    }
}

/// Why a target did not take a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// This object fails; the rest goes on.
    Object(Why),
    /// Not now.
    NoRoom,
    /// Nothing can be written any more.
    Fatal(StoreFailure),
}

impl From<PlaceError> for Fault {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Object(reason) => Self::Object(reason),
            PlaceError::Full(doing) => {
                Self::Fatal(StoreFailure::DiskFull { needed: None, available: None, doing })
            }
            PlaceError::Target(reason) => Self::Fatal(StoreFailure::Target(reason)),
        }
    }
}

/// What a target found when it saw the tree.
#[derive(Debug, Default)]
pub(super) struct Started {
    /// Entries that cannot be placed.
    pub(super) failed: Vec<(u32, Why)>,
    pub(super) space_needed: u64,
    pub(super) candidates: bool,
}

/// What a target found of a section's groups.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) groups: Vec<u32>,
    pub(super) failed: Vec<(u32, Why)>,
}

/// What the last step found.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pub(super) failed: Vec<(u32, Why)>,
    pub(super) notices: Vec<(u32, String)>,
    /// About the target folder itself.
    pub(super) of_target: Vec<String>,
}

/// Where verified groups go. All methods may be called from several threads at once, but those of one
/// group only from one at a time, and `complete` of an entry after all its groups.
pub(super) trait Target: Send + Sync {
    /// The tree is known.
    fn start(&self, tree: &Arc<Tree>) -> Result<Started, StoreFailure>;

    /// Which of `groups`, in order and of objects that have not failed, are held already.
    fn held(&self, groups: &[KnownGroup]) -> Result<Held, Fault> {
        let _ = groups;
        Ok(Held::default())
    }

    /// Whether there is room for a group; if not, its block is refused before any work.
    fn admits(&self, group: u32) -> bool {
        let _ = group;
        true
    }

    /// Whether [`Self::admits`] limits the groups under way, so that those which straddle blocks need
    /// no further limit.
    fn bounds_pending(&self) -> bool {
        false
    }

    /// Takes a verified group.
    fn write(&self, group: &KnownGroup, data: &[u8]) -> Result<(), Fault>;

    /// Keeps bytes of a group that is not complete, from byte `at` of its data, out of memory. Returns
    /// whether it could.
    fn spill(&self, group: &KnownGroup, at: u64, data: &[u8]) -> Result<bool, Fault> {
        let _ = (group, at, data);
        Ok(false)
    }

    /// Reads the data of a group back: one that was verified or spilled. Returns whether it could.
    fn read(&self, group: &KnownGroup, data: &mut [u8]) -> bool {
        let _ = (group, data);
        false
    }

    /// All groups of an entry are taken; `len` is its size. Returns notices.
    fn complete(&self, entry: EntryId, len: u64) -> Result<Vec<String>, Fault>;

    /// An entry has failed: forget what there is of it.
    fn abandon(&self, entry: EntryId) {
        let _ = entry;
    }

    /// Everything else is done. `failed` tells which entries have failed.
    fn finish(&self, failed: &dyn Fn(EntryId) -> bool) -> Result<Finished, StoreFailure>;
}
