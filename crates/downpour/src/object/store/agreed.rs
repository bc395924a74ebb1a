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
        if tree.root().is_some() {
            return Err("the sender tells the target folder's own metadata".to_owned());
        }
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
        for id in tree.empty_files() {
            if let Err(why) = self.check_agreed(tree, id) {
                self.fail_object(id, why);
            }
        }
    }

    /// BLAKE3 of a file; none as long as the digest of one of its groups is not known.
    fn digest_of(&self, tree: &Tree, entry: EntryId) -> Option<Digest> {
        let size = tree.file_size(entry)?;
        let known: HashMap<u64, Digest> = {
            let progress = lock(&self.progress);
            let groups = tree.groups_of(entry);
            let of = |number| {
                Some((tree.layout().group(number).index, progress.covered.digest(number)?))
            };
            groups.map(of).collect::<Option<_>>()?
        };
        let digest = |index| known.get(&index).copied().unwrap_or_else(|| zero_digest(index, size));
        if size <= GROUP_LEN {
            return Some(digest(0));
        }
        let groups: Vec<Digest> = (0..size.div_ceil(GROUP_LEN)).map(digest).collect();
        Some(merge_root(&groups, size))
    }

    /// The files that are in their places, of those that were agreed on. To be asked when the session is complete: then each
    /// has been compared with its digest.
    pub fn placed(&self) -> Vec<Placed> {
        let (Some(agreed), Some(tree)) = (&self.config.agreed, self.tree.get()) else {
            return Vec::new();
        };
        let placed = |id: EntryId| {
            let size = tree.file_size(id).filter(|_| !lock(&self.progress).is_failed(id))?;
            let path = tree.path(id);
            let (_, digest) = *agreed.files.get(&path)?;
            Some(Placed { path, size, digest, brought: self.target.has_put(id) })
        };
        tree.ids().filter_map(placed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Agreed, Digest, EntryId, Tree, lock};
    use crate::object::group::group_digest;
    use crate::object::manifest::{DigestSection, ManifestId};
    use crate::object::scan::{Scan, ScanOptions};
    use crate::object::store::{Destination, Store, StoreConfig};
    use downpour_proto::Geometry;
    use downpour_transport::identity::Identity;
    use std::fs;
    use std::ops::Range;
    use std::sync::Arc;

    const MIB: usize = 1 << 20;

    /// A section of these groups of one file.
    fn section(tree: &Tree, content: &[u8], groups: Range<u32>) -> DigestSection {
        let digest = |number| {
            let group = tree.layout().group(number);
            let bytes = &content[group.data.start as usize..group.data.end as usize];
            group_digest(tree.layout(), &group, content.len() as u64, bytes)
        };
        let data_end = u64::from(groups.end) * MIB as u64;
        let digests = groups.clone().map(digest).collect();
        DigestSection { groups, data_end, withdrawn: Vec::new(), digests }
    }

    #[test]
    fn of_the_target_folder_itself_nothing_is_agreed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("f"), "x").unwrap();
        let mut agreed = Agreed::default();
        agreed.insert(b"f", 1, Digest::of(b"x"));
        let check = |path: &str| {
            let paths = [folder.path().join(path)];
            agreed.check(&Scan::new(&paths, &ScanOptions::default()).unwrap().into_parts().0)
        };
        assert_eq!(check("f"), Ok(()));
        assert!(check("").unwrap_err().contains("the target folder"));
    }

    #[test]
    fn what_never_came_is_not_taken_for_zeros_and_what_was_agreed_is_not_hashed_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, content) = (folder.path().join("f"), vec![7; 3 * MIB]);
        fs::write(&path, &content).unwrap();
        let scan = Scan::new(&[path], &ScanOptions::default()).unwrap();
        let (tree, file) = (Arc::new(scan.into_parts().0), EntryId(0));
        let digest = Digest(*blake3::hash(&content).as_bytes());
        let store = |agreed| {
            let publisher = Identity::generate().public_key();
            let config = StoreConfig::new(Geometry::IPV4, publisher, ManifestId([5; 16]));
            let config = StoreConfig { agreed, ..config };
            let store = Store::open(config, Destination::Discard, |_| {}).unwrap();
            lock(&store.progress).start(tree.clone());
            let _ = store.tree.set(tree.clone());
            store
        };

        let lost = store(None);
        lock(&lost.progress).cover(&section(&tree, &content, 0..2), false);
        assert_eq!(lost.digest_of(&tree, file), None);
        assert_eq!(lost.placed(), []);
        lock(&lost.progress).cover(&section(&tree, &content, 2..3), true);
        assert_eq!(lost.digest_of(&tree, file), Some(digest));

        let mut agreed = Agreed::default();
        agreed.insert(b"f", content.len() as u64, digest);
        let batch = store(Some(Arc::new(agreed)));
        let placed: Vec<_> = batch.placed().into_iter().map(|p| (p.path, p.digest)).collect();
        assert_eq!(placed, [(b"f".to_vec(), digest)]);
    }
}
