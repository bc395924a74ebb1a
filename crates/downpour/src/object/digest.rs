//! Digests: BLAKE3, one value per group of a file (`docs/protocol.md#MAN-11`).
//!
//! A file longer than [`GROUP_LEN`] has a chaining value per group, and these merge into exactly
//! `blake3(file)`. A shorter file's only group carries that root itself. A digest is over the logical
//! content: holes count as zeros.

use super::limits::GROUP_LEN;
use blake3::hazmat::{
    HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use std::fmt;

/// A BLAKE3 output: a root or a chaining value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Stands where no digest is known: no content hashes to it.
    pub(crate) const NONE: Self = Self([0; 32]);

    /// BLAKE3 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Zeros to hash holes with, a piece at a time.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Which output a group gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The group is the whole file.
    Root,
    /// Group number `0..` of a longer file.
    ChainingValue(u64),
}

impl Output {
    /// Of group `index` of a file of `len` bytes.
    pub(crate) fn of(index: u64, len: u64) -> Self {
        if len <= GROUP_LEN { Self::Root } else { Self::ChainingValue(index) }
    }
}

/// Hashes one group, fed in order.
pub(crate) struct GroupHasher {
    hasher: blake3::Hasher,
    output: Output,
}

impl GroupHasher {
    pub(crate) fn new(output: Output) -> Self {
        let mut hasher = blake3::Hasher::new();
        if let Output::ChainingValue(index) = output {
            hasher.set_input_offset(index * GROUP_LEN);
        }
        Self { hasher, output }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(crate) fn update_zeros(&mut self, mut len: u64) {
        while len > 0 {
            let piece = len.min(ZEROS.len() as u64);
            self.hasher.update(&ZEROS[..piece as usize]);
            len -= piece;
        }
    }

    pub(crate) fn finish(&self) -> Digest {
        match self.output {
            Output::Root => Digest(*self.hasher.finalize().as_bytes()),
            Output::ChainingValue(_) => Digest(self.hasher.finalize_non_root()),
        }
    }
}

/// The file's own digest, from the chaining values of its groups. `len` is the file's size, more than
/// one group.
pub(crate) fn merge_root(groups: &[Digest], len: u64) -> Digest {
    debug_assert!(len > GROUP_LEN && groups.len() as u64 == len.div_ceil(GROUP_LEN));
    let left = left_subtree_len(len);
    let (a, b) = groups.split_at((left / GROUP_LEN) as usize);
    Digest(*merge_subtrees_root(&merge(a, left), &merge(b, len - left), Mode::Hash).as_bytes())
}

fn merge(groups: &[Digest], len: u64) -> [u8; 32] {
    if let [only] = groups {
        return only.0;
    }
    let left = left_subtree_len(len);
    let (a, b) = groups.split_at((left / GROUP_LEN) as usize);
    merge_subtrees_non_root(&merge(a, left), &merge(b, len - left), Mode::Hash)
}

#[cfg(test)]
mod tests {
    use super::{Digest, GroupHasher, Output, merge_root};
    use crate::object::limits::GROUP_LEN;

    fn bytes(len: u64) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    #[test]
    fn groups_merge_into_the_files_digest() {
        for len in [GROUP_LEN + 1, 2 * GROUP_LEN, 3 * GROUP_LEN + 5, 7 * GROUP_LEN - 1] {
            let content = bytes(len);
            let groups: Vec<Digest> = content
                .chunks(GROUP_LEN as usize)
                .enumerate()
                .map(|(i, group)| {
                    let mut hasher = GroupHasher::new(Output::of(i as u64, len));
                    hasher.update(group);
                    hasher.finish()
                })
                .collect();
            assert_eq!(merge_root(&groups, len), Digest::of(&content), "{len}");
        }
    }

    #[test]
    fn one_group_carries_the_root_and_zeros_are_bytes() {
        for len in [0, 1, GROUP_LEN] {
            let mut hasher = GroupHasher::new(Output::of(0, len));
            hasher.update_zeros(len);
            assert_eq!(hasher.finish(), Digest::of(&vec![0; len as usize]));
        }
    }
}
