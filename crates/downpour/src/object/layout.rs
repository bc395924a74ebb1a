//! The data space: all data extents of all regular files, in manifest order, without holes (`docs/protocol.md#CODE-2`).
//!
//! Three ways to cut it, all computed from one list of extents:
//! - *extents*: a contiguous piece of one file;
//! - *groups*: what shares a digest, one per MiB of a file that holds any data. Group numbers count
//!   over the whole tree. The data of a group is contiguous in the data space, and the groups
//!   partition it;
//! - *blocks*: what the transport carries (not known here).
//!
//! Invariants: extents are in order of `data`, `entry` and `start`; none is empty; within a file they
//! do not overlap or touch; `data` is the sum of the lengths before.

use super::limits::GROUP_LEN;
use std::ops::Range;

/// A contiguous piece of a file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The file.
    pub(crate) entry: u32,
    /// Number of the group that holds the extent's first byte.
    pub(crate) group: u32,
    /// Offset in the file.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Offset in the data space.
    pub(crate) data: u64,
}

impl Extent {
    fn group_last(&self) -> u32 {
        self.group + ((self.start + self.len - 1) / GROUP_LEN - self.start / GROUP_LEN) as u32
    }
}

/// What shares one digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) entry: u32,
    /// Which MiB of the file it is.
    pub(crate) index: u64,
    /// Its bytes in the data space.
    pub(crate) data: Range<u64>,
}

impl Group {
    /// Offset of the group in its file.
    pub(crate) fn start(&self) -> u64 {
        self.index * GROUP_LEN
    }

    /// Bytes of the group, holes counted, in a file of `len` bytes.
    pub(crate) fn len_in(&self, len: u64) -> u64 {
        GROUP_LEN.min(len - self.start())
    }
}

/// A part of the data space that is contiguous in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) entry: u32,
    /// Offset in the file.
    pub(crate) start: u64,
    pub(crate) data: Range<u64>,
}

impl Piece {
    pub(crate) fn len(&self) -> u64 {
        self.data.end - self.data.start
    }
}

/// Where every byte of the data space belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    extents: Vec<Extent>,
    groups: u32,
    data_len: u64,
}

impl Layout {
    /// Appends an extent. It is after all others of its entry, and its entry is not before theirs.
    pub(crate) fn push(&mut self, entry: u32, start: u64, len: u64) {
        debug_assert!(len > 0);
        let shared = self.extents.last().is_some_and(|last| {
            debug_assert!(last.entry <= entry);
            debug_assert!(last.entry < entry || last.start + last.len < start);
            let last_index = (last.start + last.len - 1) / GROUP_LEN;
            last.entry == entry && last_index == start / GROUP_LEN
        });
        let group = if shared { self.groups - 1 } else { self.groups };
        let extent = Extent { entry, group, start, len, data: self.data_len };
        self.groups = extent.group_last() + 1;
        self.data_len += len;
        self.extents.push(extent);
    }

    pub(crate) fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> u32 {
        self.groups
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Group `number`, which is below [`Self::groups`].
    pub(crate) fn group(&self, number: u32) -> Group {
        debug_assert!(number < self.groups);
        let first = self.extents.partition_point(|extent| extent.group_last() < number);
        let extent = &self.extents[first];
        let index = extent.start / GROUP_LEN + u64::from(number - extent.group);
        let end =
            if number + 1 < self.groups { self.group_start(number + 1) } else { self.data_len };
        Group { entry: extent.entry, index, data: Self::start_in(extent, number)..end }
    }

    fn group_start(&self, number: u32) -> u64 {
        let first = self.extents.partition_point(|extent| extent.group_last() < number);
        Self::start_in(&self.extents[first], number)
    }

    /// Where group `number` starts in the data space, if `extent` is the first that touches it.
    fn start_in(extent: &Extent, number: u32) -> u64 {
        if extent.group == number {
            return extent.data;
        }
        let index = extent.start / GROUP_LEN + u64::from(number - extent.group);
        extent.data + index * GROUP_LEN - extent.start
    }

    /// The group that holds byte `data` of the data space.
    pub(crate) fn group_at(&self, data: u64) -> u32 {
        debug_assert!(data < self.data_len);
        let extent = &self.extents[self.extent_at(data)];
        let start = extent.start + (data - extent.data);
        extent.group + (start / GROUP_LEN - extent.start / GROUP_LEN) as u32
    }

    /// Groups that hold bytes of `data`.
    pub(crate) fn groups_in(&self, data: Range<u64>) -> Range<u32> {
        if data.is_empty() {
            return 0..0;
        }
        self.group_at(data.start)..self.group_at(data.end - 1) + 1
    }

    /// Groups of the file whose extents are `extents`.
    pub(crate) fn groups_of(&self, extents: Range<usize>) -> Range<u32> {
        match self.extents.get(extents) {
            None | Some([]) => 0..0,
            Some([first, .., last]) => first.group..last.group_last() + 1,
            Some([only]) => only.group..only.group_last() + 1,
        }
    }

    /// Cuts `data` at the borders of extents.
    pub(crate) fn pieces(&self, data: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        let first = if data.is_empty() { self.extents.len() } else { self.extent_at(data.start) };
        self.extents[first..].iter().take_while(move |extent| extent.data < data.end).map(
            move |extent| {
                let from = data.start.max(extent.data);
                let to = data.end.min(extent.data + extent.len);
                Piece {
                    entry: extent.entry,
                    start: extent.start + from - extent.data,
                    data: from..to,
                }
            },
        )
    }

    fn extent_at(&self, data: u64) -> usize {
        self.extents.partition_point(|extent| extent.data + extent.len <= data)
    }
}

#[cfg(test)]
mod tests {
    use super::{Group, Layout};
    use crate::object::limits::GROUP_LEN;
    use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

    /// Gap and length of each extent, in units that make borders of groups likely.
    fn files() -> impl Strategy<Value = Vec<Vec<(u64, u64)>>> {
        let len = prop::sample::select(vec![
            1,
            511,
            4096,
            GROUP_LEN / 2,
            GROUP_LEN - 1,
            GROUP_LEN,
            GROUP_LEN + 1,
            3 * GROUP_LEN + 7,
        ]);
        prop::collection::vec(prop::collection::vec((len.clone(), len), 0..6), 0..6)
    }

    /// The layout, and the place (file, offset) of each 500th byte of its data space.
    fn build(files: &[Vec<(u64, u64)>], holes_first: bool) -> (Layout, Vec<(u64, u32, u64)>) {
        let (mut layout, mut oracle) = (Layout::default(), Vec::new());
        for (entry, extents) in files.iter().enumerate() {
            let mut at = 0;
            for (i, (gap, len)) in extents.iter().enumerate() {
                at += if i == 0 && !holes_first { 0 } else { *gap };
                let data = layout.data_len();
                oracle.extend((0..*len).step_by(499).map(|o| (data + o, entry as u32, at + o)));
                layout.push(entry as u32, at, *len);
                at += len;
            }
        }
        (layout, oracle)
    }

    // docs/protocol.md#CODE-2
    proptest! {
        #[test]
        fn groups_partition_the_data_space(files in files(), holes_first in any::<bool>()) {
            let (layout, oracle) = build(&files, holes_first);
            let groups: Vec<Group> = (0..layout.groups()).map(|g| layout.group(g)).collect();
            let mut at = 0;
            for (i, group) in groups.iter().enumerate() {
                prop_assert_eq!(group.data.start, at);
                prop_assert!(group.data.end > at && group.data.end - at <= GROUP_LEN);
                prop_assert_eq!(layout.group_at(at), i as u32);
                prop_assert_eq!(layout.group_at(group.data.end - 1), i as u32);
                at = group.data.end;
            }
            prop_assert_eq!(at, layout.data_len());
            for pair in groups.windows(2) {
                prop_assert!((pair[0].entry, pair[0].index) < (pair[1].entry, pair[1].index));
            }
            for (data, entry, offset) in oracle {
                let group = &groups[layout.group_at(data) as usize];
                prop_assert_eq!((group.entry, group.index), (entry, offset / GROUP_LEN));
            }
        }

        #[test]
        fn pieces_cover_any_range(files in files(), a in any::<u64>(), b in any::<u64>()) {
            let (layout, oracle) = build(&files, true);
            let end = layout.data_len() + 1;
            let range = (a % end).min(b % end)..(a % end).max(b % end);
            let pieces: Vec<_> = layout.pieces(range.clone()).collect();
            let mut at = range.start;
            for piece in &pieces {
                prop_assert_eq!(piece.data.start, at);
                prop_assert!(piece.len() > 0);
                at = piece.data.end;
            }
            prop_assert_eq!(at, range.end);
            for (data, entry, offset) in oracle {
                if let Some(piece) = pieces.iter().find(|piece| piece.data.contains(&data)) {
                    prop_assert_eq!(piece.entry, entry);
                    prop_assert_eq!(piece.start + data - piece.data.start, offset);
                } else {
                    prop_assert!(!range.contains(&data));
                }
            }
        }
    }
}
