//! What comes after all data: links, then metadata of folders, deepest first, then the sync.

use super::across::make_beside;
use super::put::note;
use super::{Existing, Obstacle, PlaceError, Placer, Why};
use crate::object::disk::same_content;
use crate::object::tree::{EntryId, Kind};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Takes what could not be done of an entry that does not fail by it.
pub(crate) type OnNotice<'a> = &'a dyn Fn(EntryId, String);

impl Placer {
    /// Makes links and finishes folders. `failed` tells which entries have failed before; `lost` gets those that fail now.
    /// Returns what is to be synced then: a folder of each file system.
    pub(crate) fn finish(
        &self,
        failed: &dyn Fn(EntryId) -> bool,
        lost: &mut Vec<(u32, Why)>,
        notice: OnNotice<'_>,
    ) -> Result<Vec<Arc<OwnedFd>>, PlaceError> {
        let tree = self.beneath.tree().clone();
        for id in tree.ids() {
            let outcome = match tree.entry(id).kind {
                _ if failed(id) => continue,
                Kind::Symlink { text } => self.symlink(id, text, notice),
                Kind::HardLink { to } if failed(to) => {
                    let reason =
                        format!("{}, of which it is another name, failed", tree.path_text(to));
                    Err(PlaceError::Object(Why::new(Obstacle::Failed, reason)))
                }
                Kind::HardLink { to } => self.hard_link(id, to, notice),
                _ => continue,
            };
            match outcome {
                Ok(()) => {}
                Err(PlaceError::Object(reason)) => lost.push((id.0, reason)),
                Err(other) => return Err(other),
            }
        }
        Ok(self.finish_folders(failed, notice)?.into_values().collect())
    }

    /// Metadata of folders. Returns a folder of each file system, by device: others may be mounted below the target.
    fn finish_folders(
        &self,
        failed: &dyn Fn(EntryId) -> bool,
        notice: OnNotice<'_>,
    ) -> Result<BTreeMap<u64, Arc<OwnedFd>>, PlaceError> {
        let tree = self.beneath.tree();
        let device = |folder: &OwnedFd| rustix::fs::fstat(folder).map_or(0, |stat| stat.st_dev);
        let root = self.beneath.root();
        let mut reached = BTreeMap::from([(device(root), root.clone())]);
        for id in tree.ids().rev() {
            let entry = tree.entry(id);
            if entry.kind != Kind::Folder || failed(id) {
                continue;
            }
            let fd = match self.beneath.folder(id) {
                Ok(fd) => fd,
                Err(error) if self.folders => {
                    notice(id, note(error, "metadata not set"));
                    continue;
                }
                // There is nothing of ours in it.
                Err(_) => continue,
            };
            reached.entry(device(&fd)).or_insert_with(|| fd.clone());
            if self.folders {
                self.meta.apply(fd.as_fd(), &entry).into_iter().for_each(|text| notice(id, text));
            }
        }
        Ok(reached)
    }

    /// Everything so far that is on the file systems of these folders is on the disk then.
    pub(crate) fn sync(&self, folders: &[Arc<OwnedFd>]) -> Result<(), Errno> {
        folders.iter().try_for_each(|folder| rustix::fs::syncfs(&**folder))
    }

    /// The target folder's own metadata, where the tree tells them and folders get theirs.
    pub(crate) fn finish_target(&self) -> Vec<String> {
        let target = self.beneath.root();
        let root = self.beneath.tree().root().filter(|_| self.folders);
        root.map_or_else(Vec::new, |root| self.meta.apply(target.as_fd(), &root))
    }

    fn symlink(&self, id: EntryId, text: &[u8], notice: OnNotice<'_>) -> Result<(), PlaceError> {
        let fail = |error| self.failure(error, "making the link", id);
        let (parent, entry) =
            (self.beneath.parent(id).map_err(fail)?, self.beneath.tree().entry(id));
        let existing = self.existing(id).map_err(fail)?;
        let same = existing == Existing::Other
            && rustix::fs::readlinkat(&*parent, entry.name, Vec::new())
                .is_ok_and(|now| now.as_bytes() == text);
        if !same {
            self.may_replace_now(id, existing).map_err(PlaceError::Object)?;
            let link = |name: &[u8]| rustix::fs::symlinkat(text, &*parent, name);
            let made = match existing {
                Existing::Nothing => link(entry.name),
                _ => replace(&parent, entry.name, link),
            };
            made.map_err(fail)?;
        }
        let link_notices = self.meta.apply_to_link(&*parent, entry.name, &entry);
        link_notices.into_iter().for_each(|text| notice(id, text));
        Ok(())
    }

    fn hard_link(&self, id: EntryId, to: EntryId, notice: OnNotice<'_>) -> Result<(), PlaceError> {
        let fail = |error| self.failure(error, "making the hard link", id);
        let tree = self.beneath.tree();
        let (parent, name) = (self.beneath.parent(id).map_err(fail)?, tree.entry(id).name);
        let (target_parent, target) = (self.beneath.parent(to).map_err(fail)?, tree.entry(to).name);
        let stat =
            |folder: &OwnedFd, name| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let target_stat = stat(&target_parent, target).map_err(fail)?;
        let existing = self.existing(id).map_err(fail)?;
        if existing != Existing::Nothing {
            let now = stat(&parent, name).map_err(fail)?;
            if (now.st_dev, now.st_ino) == (target_stat.st_dev, target_stat.st_ino) {
                return Ok(());
            }
            if let Err(why) = self.may_replace_now(id, existing) {
                let size = target_stat.st_size as u64;
                let copy = (existing == Existing::File(size)).then(|| self.copy_at(id, to, size));
                let Some(copy) = copy.flatten() else { return Err(PlaceError::Object(why)) };
                let of_meta = self.meta.apply(copy.as_fd(), &tree.entry(to));
                of_meta.into_iter().for_each(|text| notice(id, text));
                notice(id, "the copy that is there stays instead of a link".to_owned());
                return Ok(());
            }
        }
        let link = |name: &[u8]| {
            rustix::fs::linkat(&*target_parent, target, &*parent, name, AtFlags::empty())
        };
        let linked = match existing {
            Existing::Nothing => link(name),
            _ => replace(&parent, name, link),
        };
        match linked {
            // Another file system, or one without hard links: a copy has the same content.
            Err(error @ (Errno::XDEV | Errno::PERM | Errno::NOTSUP | Errno::MLINK)) => {
                let replaces = existing != Existing::Nothing;
                self.copy_of(id, to, replaces)?;
                notice(id, note(error, "copied instead of linked"));
                Ok(())
            }
            other => other.map_err(fail),
        }
    }

    /// The file at an entry's place, if it has the content of the one at that of entry `to`.
    fn copy_at(&self, id: EntryId, to: EntryId, size: u64) -> Option<OwnedFd> {
        let (copy, original) = (self.open_existing(id).ok()?, self.open_existing(to).ok()?);
        same_content(&copy, &original, size).then_some(copy)
    }

    fn copy_of(&self, id: EntryId, to: EntryId, replaces: bool) -> Result<(), PlaceError> {
        let fail = |error| self.failure(error, "copying", id);
        let from = self.open_existing(to).map_err(fail)?;
        let parent = self.beneath.parent(id).map_err(fail)?;
        self.copy_across(id, to, &from, &parent, replaces).map(drop)
    }
}

/// Makes something under a temporary name beside its place, and renames it over what is there.
fn replace(
    parent: &OwnedFd,
    name: &[u8],
    make: impl Fn(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (beside, ()) = make_beside(make)?;
    let renamed = rustix::fs::renameat(parent, &*beside, parent, name);
    // Gone after a rename, except where both were names of one file already.
    let _ = rustix::fs::unlinkat(parent, &*beside, AtFlags::empty());
    renamed
}

#[cfg(test)]
mod tests {
    use super::Placer;
    use crate::object::place::{Beneath, MetaPolicy, Staging};
    use crate::object::scan::{Scan, ScanOptions};
    use crate::receipt::tests::Mounted;
    use crate::skipped::skipped;
    use std::fs;
    use std::sync::{Arc, Mutex};

    #[test]
    fn what_is_mounted_below_the_target_is_synced_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, out) = (dir.path().join("a/inner"), dir.path().join("out"));
        let place = out.join("inner");
        for folder in [&inner.join("one"), &inner.join("two"), &place] {
            fs::create_dir_all(folder).unwrap();
        }
        let Some(_mounted) = Mounted::tmpfs(&place) else {
            let name = "what_is_mounted_below_the_target_is_synced_as_well";
            return skipped(name, "needs root to mount a tmpfs");
        };
        let tree = Arc::new(Scan::new(&[inner], &ScanOptions::default()).unwrap().into_parts().0);
        let staging = Arc::new(Staging::open(&out, None).unwrap());
        for folders in [false, true] {
            let placer = Placer {
                beneath: Beneath::new(staging.out().clone(), tree.clone()),
                staging: staging.clone(),
                meta: MetaPolicy {
                    root: false,
                    owner: false,
                    setuid: false,
                    xattrs: false,
                    trusted_told: false,
                },
                overwrite: false,
                folders,
                found: Vec::new(),
                unsynced: Mutex::default(),
            };
            tree.ids().for_each(|id| placer.make_folder(id).unwrap());
            let reached = placer.finish_folders(&|_| false, &|_, text| panic!("{text}")).unwrap();
            assert_eq!(reached.len(), 2);
        }
    }
}
