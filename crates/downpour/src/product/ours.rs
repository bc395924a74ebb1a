//! Which files of its folder a receiver has placed or verified: of all that is there a newer product replaces these alone,
//! unless the user wants everything replaced.
//!
//! A file is known by its name, inode, size and time of change: one that somebody else has put under that name or written to
//! since is not ours. What an earlier run has placed is not known until it has come again and been found equal.
//!
//! Where everything is replaced, too, no product replaces what another one has placed: a file system that does not tell case
//! apart has one file for both of their names.

use rustix::fs::Stat;
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

/// What tells a file from another of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    inode: u64,
    size: u64,
    /// When its content was changed last: seconds, and nanoseconds.
    changed: (i64, i64),
}

impl Mark {
    /// Of a file.
    pub(super) fn of(stat: &Stat) -> Self {
        let changed = (stat.st_mtime, stat.st_mtime_nsec as i64);
        Self { inode: stat.st_ino, size: stat.st_size as u64, changed }
    }
}

#[derive(Default)]
struct Known {
    /// By their names' hashes: when they were placed, and what they are.
    files: HashMap<u64, (u64, Mark)>,
    /// The names by when.
    ages: BTreeMap<u64, u64>,
    /// The names by their files' inodes.
    inodes: HashMap<u64, u64>,
    placed: u64,
}

impl Ours {
    /// Of a receiver that has placed nothing yet; with `overwrite` all there is may be replaced.
    pub fn new(overwrite: bool) -> Self {
        Self { overwrite, ..Self::default() }
    }

    /// Whether a newer product may replace what is there.
    pub(super) fn may_replace(&self, name: &str, there: Mark) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.overwrite || known.files.get(&hash(name)).is_some_and(|(_, of)| *of == there)
    }

    /// Whether another product of this run has placed what is there. Asked where all may be replaced.
    pub(super) fn is_anothers(&self, name: &str, there: Mark) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let placed = known.inodes.get(&there.inode).filter(|other| **other != hash(name));
        // A file that somebody has removed leaves its inode to another one.
        let still = placed.and_then(|other| known.files.get(other));
        self.overwrite && still.is_some_and(|(_, of)| *of == there)
    }

    /// It was placed, or found to be the product.
    pub(super) fn add(&self, name: &str, file: Mark) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).add(hash(name), file, KNOWN_MAX);
    }
}

impl Known {
    fn add(&mut self, name: u64, file: Mark, most: usize) {
        self.placed += 1;
        self.forget(name);
        self.files.insert(name, (self.placed, file));
        self.ages.insert(self.placed, name);
        self.inodes.insert(file.inode, name);
        if self.ages.len() > most
            && let Some((_, &oldest)) = self.ages.first_key_value()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, name: u64) {
        let Some((placed, file)) = self.files.remove(&name) else { return };
        self.ages.remove(&placed);
        if self.inodes.get(&file.inode) == Some(&name) {
            self.inodes.remove(&file.inode);
        }
    }
}

fn hash(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::{Known, Mark, Ours};

    #[test]
    fn a_file_is_known_by_name_inode_size_and_time() {
        let ours = Ours::new(false);
        let mark = |inode, size, ns| Mark { inode, size, changed: (1, ns) };
        ours.add("a", mark(7, 7, 7));
        assert!(ours.may_replace("a", mark(7, 7, 7)) && !ours.may_replace("b", mark(7, 7, 7)));
        for other in [mark(8, 7, 7), mark(7, 8, 7), mark(7, 7, 8)] {
            assert!(!ours.may_replace("a", other), "{other:?}");
        }
        ours.add("a", mark(8, 7, 7));
        assert!(ours.may_replace("a", mark(8, 7, 7)) && !ours.may_replace("a", mark(7, 7, 7)));
        let ours = Ours::new(true);
        assert!(ours.may_replace("b", mark(9, 9, 9)));
        ours.add("a", mark(7, 7, 7));
        assert!(ours.is_anothers("b", mark(7, 7, 7)) && !ours.is_anothers("a", mark(7, 7, 7)));
        assert!(!ours.is_anothers("b", mark(7, 8, 7)), "the inode is another file's by now");
    }

    #[test]
    fn the_one_placed_the_longest_ago_is_forgotten() {
        let mut known = Known::default();
        for name in [1, 2, 1, 1, 3, 2, 4] {
            known.add(name, Mark { inode: 10 * name, ..Mark::default() }, 3);
        }
        let mut names: Vec<u64> = known.files.keys().copied().collect();
        names.sort_unstable();
        assert_eq!((names, known.ages.len(), known.inodes.len()), (vec![2, 3, 4], 3, 3));
        // The inode of one that was removed has come to another, which keeps it.
        known.add(5, Mark { inode: 20, ..Mark::default() }, 4);
        known.add(2, Mark { inode: 60, ..Mark::default() }, 4);
        assert_eq!((known.inodes.get(&20), known.inodes.get(&60)), (Some(&5), Some(&2)));
    }
}
