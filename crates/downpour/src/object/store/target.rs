//! What a store asks of a target: the face that folders, pipes, devices and the void share.

use super::StoreFailure;
use crate::object::digest::Digest;
use crate::object::group::fed_digest;
use crate::object::layout::Group;
use crate::object::place::{Notices, PlaceError, Why};
use crate::object::tree::{EntryId, Tree};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

/// All of a group's bytes in the data space, in order. Of a group that straddles blocks, what the last of
/// them brought is taken from where that block lies.
#[derive(Clone, Copy)]
pub(super) struct GroupData<'a>([&'a [u8]; 3]);

impl<'a> GroupData<'a> {
    pub(super) fn whole(data: &'a [u8]) -> Self {
        Self([data, &[], &[]])
    }

    /// `data`, but `part` from byte `at` on.
    pub(super) fn with(data: &'a [u8], at: usize, part: &'a [u8]) -> Self {
        Self([&data[..at], part, &data[at + part.len()..]])
    }

    pub(super) fn to_vec(self) -> Vec<u8> {
        self.0.concat()
    }

    /// The bytes of `range`, and where each slice of them begins.
    fn slices(self, range: Range<u64>) -> impl Iterator<Item = (u64, &'a [u8])> {
        let mut end = 0;
        self.0.into_iter().filter_map(move |slice| {
            let start = end;
            end += slice.len() as u64;
            let (from, to) = (range.start.max(start), range.end.min(end));
            (from < to).then(|| (from, &slice[(from - start) as usize..(to - start) as usize]))
        })
    }
}

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

    /// The ranges of its file that hold no data, with empty ones between pieces that touch.
    pub(super) fn holes<'a>(&self, tree: &'a Tree) -> impl Iterator<Item = Range<u64>> + 'a {
        let pieces = || tree.layout().pieces(self.group.data.clone());
        let (start, end) = (self.group.start(), self.group.start() + self.len());
        let ends = std::iter::once(start).chain(pieces().map(|piece| piece.start + piece.len()));
        ends.zip(pieces().map(|piece| piece.start).chain([end])).map(|(from, to)| from..to)
    }

    /// Whether `data` are genuine.
    pub(super) fn verify(&self, tree: &Tree, data: GroupData<'_>) -> bool {
        let start = self.group.data.start;
        let digest = fed_digest(tree.layout(), &self.group, self.file_len, |piece, hasher| {
            for (_, bytes) in data.slices(piece.data.start - start..piece.data.end - start) {
                hasher.update(bytes);
            }
            Ok::<_, Infallible>(())
        });
        digest == Ok(self.digest)
    }

    /// Cuts `data` into parts that are contiguous in the file, and tells where in it each begins.
    pub(super) fn parts<'a>(
        &self,
        tree: &'a Tree,
        data: GroupData<'a>,
    ) -> impl Iterator<Item = (u64, &'a [u8])> {
        let start = self.group.data.start;
        tree.layout().pieces(self.group.data.clone()).flat_map(move |piece| {
            let range = piece.data.start - start..piece.data.end - start;
            let first = range.start;
            data.slices(range).map(move |(at, bytes)| (piece.start + (at - first), bytes))
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
    pub(super) notices: Notices,
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
    fn finish(&self, failed: &dyn Fn(EntryId) -> bool) -> Result<Finished, StoreFailure>;
}
