//! What a store asks of a target: the face that folders, pipes, devices and the void share.

use super::StoreFailure;
use crate::object::group::{GroupData, KnownGroup};
use crate::object::place::{OnNotice, PlaceError, Why};
use crate::object::tree::{EntryId, Tree};
use std::sync::Arc;

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
        match error.of_object(None) {
            Ok(why) => Self::Object(why),
            Err(failure) => Self::Fatal(failure),
        }
    }
}

/// What a target found when it saw the tree.
#[derive(Debug, Default)]
pub(super) struct Started {
    /// Entries that cannot be placed.
    pub(super) failed: Vec<(u32, Why)>,
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

    /// Whether there is room for the groups `first` to `last` of a block; if not, it is refused before any work. Waits for
    /// nothing.
    fn admits(&self, first: u32, last: u32) -> bool {
        let _ = (first, last);
        true
    }

    /// Whether [`Self::admits`] limits the groups under way, so that those which straddle blocks need
    /// no further limit.
    fn bounds_pending(&self) -> bool {
        false
    }

    /// Takes a verified group.
    fn write(&self, group: &KnownGroup, data: GroupData<'_>) -> Result<(), Fault>;

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

    /// Whether a file got its place from here, for certain.
    fn has_put(&self, entry: EntryId) -> bool {
        let _ = entry;
        false
    }

    /// An entry has failed, perhaps while another thread is at it: forget what there is of it, and place nothing any more.
    fn abandon(&self, entry: EntryId) {
        let _ = entry;
    }

    /// Everything else is done. `failed` tells which entries have failed.
    fn finish(
        &self,
        failed: &dyn Fn(EntryId) -> bool,
        notice: OnNotice<'_>,
    ) -> Result<Finished, StoreFailure>;
}
