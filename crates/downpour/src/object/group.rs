//! The digest of one group, from its bytes in the data space (`docs/protocol.md#MAN-3`).

use super::digest::{Digest, GroupHasher, Output};
use super::layout::{Group, Layout, Piece};
use std::convert::Infallible;

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
