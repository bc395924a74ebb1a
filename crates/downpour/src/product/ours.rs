//! Which files of its folder a receiver has placed: of all that is there a newer product replaces these alone, unless the
//! user wants everything replaced.
//!
//! A file is known by its name and its inode: one that somebody else has put under that name since is not ours. What an
//! earlier run has placed is not known.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// So many are known; the one that was placed the longest ago is forgotten then, and stays as any other file does.
const KNOWN_MAX: usize = 1 << 18;

/// See the module's text. For all sessions of a receiver.
#[derive(Default)]
pub struct Ours {
    overwrite: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By their names' hashes: when they were placed, and their inodes.
    files: HashMap<u64, (u64, u64)>,
    /// The names by when.
    ages: BTreeMap<u64, u64>,
    placed: u64,
}

impl Ours {
    /// Of a receiver that has placed nothing yet; with `overwrite` all there is may be replaced.
    pub fn new(overwrite: bool) -> Self {
        Self { overwrite, ..Self::default() }
    }

    /// Whether a newer product may replace what is there.
    pub(super) fn may_replace(&self, name: &str, inode: u64) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.overwrite || known.files.get(&hash(name)).is_some_and(|(_, of)| *of == inode)
    }

    /// It was placed.
    pub(super) fn add(&self, name: &str, inode: u64) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).add(hash(name), inode, KNOWN_MAX);
    }
}

impl Known {
    fn add(&mut self, name: u64, inode: u64, most: usize) {
        self.placed += 1;
        if let Some((before, _)) = self.files.insert(name, (self.placed, inode)) {
            self.ages.remove(&before);
        }
        self.ages.insert(self.placed, name);
        if self.ages.len() > most
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.files.remove(&oldest);
        }
    }
}

fn hash(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::{Known, Ours};

    #[test]
    fn a_file_is_known_by_name_and_inode() {
        let ours = Ours::new(false);
        ours.add("a", 7);
        assert!(ours.may_replace("a", 7));
        assert!(!ours.may_replace("a", 8) && !ours.may_replace("b", 7));
        ours.add("a", 8);
        assert!(ours.may_replace("a", 8) && !ours.may_replace("a", 7));
        assert!(Ours::new(true).may_replace("b", 9));
    }

    #[test]
    fn the_one_placed_the_longest_ago_is_forgotten() {
        let mut known = Known::default();
        for name in [1, 2, 1, 1, 3, 2, 4] {
            known.add(name, 0, 3);
        }
        let mut names: Vec<u64> = known.files.keys().copied().collect();
        names.sort_unstable();
        assert_eq!((names, known.ages.len()), (vec![2, 3, 4], 3));
    }
}
