//! One group: its digest, from its bytes in the data space (`docs/protocol.md#MAN-3`), and what is known of it.

use super::digest::{Digest, GroupHasher, Output};
use super::disk::{is_zero, read_full_at};
use super::layout::{Group, Layout, Piece};
use super::limits::GROUP_LEN;
use super::tree::{EntryId, Tree};
use std::convert::Infallible;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Digest of `group` of a file of `file_len` bytes. `data` are the group's bytes in the data space, all
/// of them: what lies between them in the file are zeros.
pub(crate) fn group_digest(layout: &Layout, group: &Group, file_len: u64, data: &[u8]) -> Digest {
    if data.len() as u64 == group.len_in(file_len) {
        let mut hasher = GroupHasher::new(Output::of(group.index, file_len));
        hasher.update(data);
        return hasher.finish();
    }
    let start = group.data.start;
    let outcome = fed_digest(layout, group, file_len, |piece, hasher| {
        let (from, to) = (piece.data.start - start, piece.data.end - start);
        hasher.update(&data[from as usize..to as usize]);
        Ok::<_, Infallible>(())
    });
    let Ok(digest) = outcome;
    digest
}

/// The same, of bytes that `feed` gives: all of each piece.
pub(crate) fn fed_digest<E>(
    layout: &Layout,
    group: &Group,
    file_len: u64,
    mut feed: impl FnMut(&Piece, &mut GroupHasher) -> Result<(), E>,
) -> Result<Digest, E> {
    let mut hasher = GroupHasher::new(Output::of(group.index, file_len));
    let mut at = group.start();
    for piece in layout.pieces(group.data.clone()) {
        hasher.update_zeros(piece.start - at);
        feed(&piece, &mut hasher)?;
        at = piece.start + piece.len();
    }
    hasher.update_zeros(group.start() + group.len_in(file_len) - at);
    Ok(hasher.finish())
}

/// Digest of group `index` of a file of `file_len` bytes, if all of it is zeros.
pub(crate) fn zero_digest(index: u64, file_len: u64) -> Digest {
    let group = Group { entry: 0, index, data: 0..0 };
    let mut hasher = GroupHasher::new(Output::of(index, file_len));
    hasher.update_zeros(group.len_in(file_len));
    hasher.finish()
}

/// All of a group's bytes in the data space, in order. Of a group that straddles blocks, what the last of
/// them brought is taken from where that block lies.
#[derive(Clone, Copy)]
pub(crate) struct GroupData<'a>([&'a [u8]; 3]);

impl<'a> GroupData<'a> {
    pub(crate) fn whole(data: &'a [u8]) -> Self {
        Self([data, &[], &[]])
    }

    /// `data`, but `part` from byte `at` on.
    pub(crate) fn with(data: &'a [u8], at: usize, part: &'a [u8]) -> Self {
        Self([&data[..at], part, &data[at + part.len()..]])
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
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
pub(crate) struct KnownGroup {
    pub(crate) number: u32,
    /// For the last group of a stream, `data` ends where the stream does.
    pub(crate) group: Group,
    /// Size of its file as far as it matters to the digest.
    pub(crate) file_len: u64,
    pub(crate) digest: Digest,
}

impl KnownGroup {
    /// The group `number` with its digest, as told by a section that covers up to `end`, and is the `last`.
    pub(crate) fn of(tree: &Tree, number: u32, digest: Digest, end: u64, last: bool) -> Self {
        let mut group = tree.layout().group(number);
        let size = tree.file_size(EntryId(group.entry));
        group.data.end = group.data.end.min(end);
        // Of a stream that goes on, any length above one group gives the same digests.
        let file_len = size.unwrap_or(if last { end } else { end.max(GROUP_LEN + 1) });
        Self { number, group, file_len, digest }
    }

    pub(crate) fn entry(&self) -> EntryId {
        EntryId(self.group.entry)
    }

    /// Bytes in the data space.
    pub(crate) fn data_len(&self) -> u64 {
        self.group.data.end - self.group.data.start
    }

    /// Bytes in the file, holes counted.
    pub(crate) fn len(&self) -> u64 {
        self.group.len_in(self.file_len)
    }

    pub(crate) fn is_dense(&self) -> bool {
        self.data_len() == self.len()
    }

    /// The ranges of its file that hold no data, with empty ones between pieces that touch.
    pub(crate) fn holes<'a>(&self, tree: &'a Tree) -> impl Iterator<Item = Range<u64>> + 'a {
        let pieces = || tree.layout().pieces(self.group.data.clone());
        let (start, end) = (self.group.start(), self.group.start() + self.len());
        let ends = std::iter::once(start).chain(pieces().map(|piece| piece.start + piece.len()));
        ends.zip(pieces().map(|piece| piece.start).chain([end])).map(|(from, to)| from..to)
    }

    /// Whether `data` are genuine.
    pub(crate) fn verify(&self, tree: &Tree, data: GroupData<'_>) -> bool {
        let start = self.group.data.start;
        let digest = fed_digest(tree.layout(), &self.group, self.file_len, |piece, hasher| {
            for (_, bytes) in data.slices(piece.data.start - start..piece.data.end - start) {
                hasher.update(bytes);
            }
            Ok::<_, Infallible>(())
        });
        digest == Ok(self.digest)
    }

    /// Reads its data from a file that has them at their places. Returns whether it could.
    pub(crate) fn read_from(&self, tree: &Tree, fd: &OwnedFd, data: &mut [u8]) -> bool {
        let start = self.group.data.start;
        tree.layout().pieces(self.group.data.clone()).all(|piece| {
            let from = (piece.data.start - start) as usize;
            read_full_at(fd, &mut data[from..from + piece.len() as usize], piece.start) == Ok(true)
        })
    }

    /// Reads it into `data`, and tells whether the file holds it. Its inner holes must be zeros, too.
    pub(crate) fn is_in(&self, tree: &Tree, fd: &OwnedFd, data: &mut Vec<u8>) -> bool {
        data.resize(self.data_len() as usize, 0);
        self.read_from(tree, fd, data)
            && self.verify(tree, GroupData::whole(data))
            && self.holes(tree).all(|hole| is_zero(fd, hole.start, hole.end))
    }

    /// Cuts `data` into parts that are contiguous in the file, and tells where in it each begins.
    pub(crate) fn parts<'a>(
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

#[cfg(test)]
mod tests {
    use super::{group_digest, zero_digest};
    use crate::object::digest::{Digest, merge_root};
    use crate::object::layout::Layout;
    use crate::object::limits::GROUP_LEN;
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use std::collections::HashMap;

    proptest! {
        /// The groups' digests of any sparse file merge into BLAKE3 of the file with zeros in its holes
        /// (`docs/protocol.md#MAN-3`).
        #[test]
        fn holes_are_zeros(gaps in proptest::collection::vec((1u64..900_000, 1u64..900_000), 1..6),
                           tail in 0u64..2_500_000, byte in any::<u8>()) {
            let (mut layout, mut content, mut data) = (Layout::default(), Vec::new(), Vec::new());
            for (gap, len) in gaps {
                content.resize(content.len() + gap as usize, 0);
                layout.push(0, content.len() as u64, len);
                let piece = vec![byte; len as usize];
                content.extend_from_slice(&piece);
                data.extend_from_slice(&piece);
            }
            content.resize(content.len() + tail as usize, 0);
            let len = content.len() as u64;
            let held: HashMap<u64, Digest> = (0..layout.groups()).map(|number| {
                let group = layout.group(number);
                let bytes = &data[group.data.start as usize..group.data.end as usize];
                (group.index, group_digest(&layout, &group, len, bytes))
            }).collect();
            let all: Vec<Digest> = (0..len.div_ceil(GROUP_LEN))
                .map(|i| held.get(&i).copied().unwrap_or_else(|| zero_digest(i, len)))
                .collect();
            let root = if len > GROUP_LEN { merge_root(&all, len) } else { all[0] };
            prop_assert_eq!(root, Digest::of(&content));
        }
    }
}
