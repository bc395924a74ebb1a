//! Files that were agreed on before the session: nothing else is taken, and no other content.
//!
//! The manifest is the sender's word. Where both sides have agreed on names and digests beforehand, the tree must hold
//! nothing else, and a file whose content is other than agreed gets no name here.

use super::{Placed, Store, lock};
use crate::object::digest::{Digest, merge_root};
use crate::object::group::zero_digest;
use crate::object::limits::GROUP_LEN;
use crate::object::place::{Obstacle, Why};
use crate::object::tree::{EntryId, Kind, Tree};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What was agreed on: paths below the target, sizes, content.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    files: HashMap<Vec<u8>, (u64, Digest)>,
    folders: HashSet<Vec<u8>>,
}

impl Agreed {
    /// Adds a file.
    pub fn insert(&mut self, path: &[u8], size: u64, digest: Digest) {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        self.folders.extend(ends.map(|(end, _)| path[..end].to_vec()));
        self.files.insert(path.to_vec(), (size, digest));
    }

    /// Whether a tree holds nothing else.
    pub(super) fn check(&self, tree: &Tree) -> Result<(), String> {
        for id in tree.ids() {
            let path = tree.path(id);
            let known = match tree.entry(id).kind {
                Kind::Folder => self.folders.contains(&path),
                Kind::File { size } => self.files.get(&path).is_some_and(|(s, _)| *s == size),
                Kind::Stream | Kind::Symlink { .. } | Kind::HardLink { .. } => false,
            };
            if !known {
                return Err(format!("the sender sends {}", tree.path_text(id)));
            }
        }
        Ok(())
    }
}

impl Store {
    /// Whether the content of a file, all of whose groups are known, is what was agreed.
    pub(super) fn check_agreed(&self, tree: &Tree, entry: EntryId) -> Result<(), Why> {
        let Some(agreed) = &self.config.agreed else { return Ok(()) };
        let wanted = agreed.files.get(&tree.path(entry)).map(|(_, digest)| *digest);
        if wanted.is_some() && wanted == self.digest_of(tree, entry) {
            return Ok(());
        }
        Err(Why::new(Obstacle::NotAgreed, "its content is other than what was announced"))
    }

    /// Files without data have no groups: they are looked at with the tree.
    pub(super) fn check_empty(&self, tree: &Tree) {
        let empty = |id: &EntryId| tree.file_size(*id).is_some() && tree.extents(*id).is_empty();
        for id in tree.ids().filter(empty) {
            if let Err(why) = self.check_agreed(tree, id) {
                self.fail_object(id, why);
            }
        }
    }

    /// BLAKE3 of a file whose groups are all known.
    fn digest_of(&self, tree: &Tree, entry: EntryId) -> Option<Digest> {
        let size = tree.file_size(entry)?;
        let known: HashMap<u64, Digest> = {
            let progress = lock(&self.progress);
            let groups = tree.groups_of(entry);
            let of = |number| Some((tree.layout().group(number).index, progress.digest(number)?));
            groups.filter_map(of).collect()
        };
        let digest = |index| known.get(&index).copied().unwrap_or_else(|| zero_digest(index, size));
        if size <= GROUP_LEN {
            return Some(digest(0));
        }
        let groups: Vec<Digest> = (0..size.div_ceil(GROUP_LEN)).map(digest).collect();
        Some(merge_root(&groups, size))
    }

    /// The files that are in their places. To be asked when the session is complete.
    pub fn placed(&self) -> Vec<Placed> {
        let Some(tree) = self.tree.get().map(Arc::clone) else { return Vec::new() };
        let placed = |id: EntryId| {
            let size = tree.file_size(id).filter(|_| !lock(&self.progress).is_failed(id))?;
            let (digest, brought) = (self.digest_of(&tree, id)?, self.target.has_put(id));
            Some(Placed { path: tree.path(id), size, digest, brought })
        };
        tree.ids().filter_map(placed).collect()
    }
}
