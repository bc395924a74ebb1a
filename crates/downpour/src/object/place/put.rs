//! A file to its name: atomically, by rename, with its metadata already right.

use super::across::copy_across;
use super::beneath::{FOLDER_FLAGS, open_in};
use super::{Beneath, MetaPolicy, Obstacle, PlaceError, Staging, Why};
use crate::object::disk::same_content;
use crate::object::lock;
use crate::object::scan::explain;
use crate::object::tree::{EntryId, Kind};
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The reason of an object that would replace another.
const DIFFERS: &str = "exists and differs: --overwrite replaces it";
/// What such reasons end with, for who has options.
pub(crate) const REMEDY: &str = ": --overwrite replaces it";

pub(crate) fn differs() -> Why {
    Why::new(Obstacle::Taken, DIFFERS)
}

/// Something is there now that was not at the start: another name of the tree, or somebody else's.
fn has_come() -> Why {
    let text = "something else has come to its place since the start: start again; where this \
                file system does not tell its name from another one's, rename one at the sender";
    Why::new(Obstacle::Taken, text)
}

/// What is at an entry's place already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Nothing,
    /// A regular file of this size.
    File(u64),
    Folder,
    /// A link or a special file.
    Other,
}

impl Existing {
    pub(crate) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Self::File(stat.st_size as u64),
            FileType::Directory => Self::Folder,
            _ => Self::Other,
        }
    }

    /// Whether it may be replaced, and a reason if not.
    pub(crate) fn may_be_replaced(self, overwrite: bool) -> Result<(), Why> {
        let taken = |text: &str| Err(Why::new(Obstacle::Taken, text));
        match self {
            Self::Nothing => Ok(()),
            Self::Folder => taken("a folder is in the way, which is never replaced: move it away"),
            Self::File(_) | Self::Other if overwrite => Ok(()),
            Self::File(_) => taken(DIFFERS),
            Self::Other => taken("something else is in the way: --overwrite replaces it"),
        }
    }
}

/// Places entries of one tree below one target.
pub(crate) struct Placer {
    pub(crate) beneath: Beneath,
    pub(crate) staging: Arc<Staging>,
    pub(crate) meta: MetaPolicy,
    pub(crate) overwrite: bool,
    /// Folders get metadata.
    pub(crate) folders: bool,
    /// What was at each entry's place when the session started. What has come there since is never replaced: it may be
    /// another entry, whose name the file system does not tell from this one's.
    pub(crate) found: Vec<Existing>,
    /// The files that got their names here and wait for the sync, or did: device and inode.
    pub(crate) unsynced: Mutex<HashMap<EntryId, (u64, u64)>>,
}

impl Placer {
    fn doing(&self, what: &str, id: EntryId) -> String {
        format!("{what} {}", self.beneath.tree().path_text(id))
    }

    /// Makes a folder, or takes the one that is there.
    pub(crate) fn make_folder(&self, id: EntryId) -> Result<(), PlaceError> {
        let fail = |error| self.failure(error, "making the folder", id);
        let parent = self.beneath.parent(id).map_err(fail)?;
        let name = self.beneath.tree().entry(id).name;
        let mode = match self.folders {
            true => Mode::RWXU,
            false => Mode::RWXU | Mode::RWXG | Mode::RWXO,
        };
        match rustix::fs::mkdirat(&*parent, name, mode) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(fail(error)),
        }
        match self.existing(id).map_err(fail)? {
            Existing::Folder => {}
            Existing::Other => return Err(fail(Errno::LOOP)),
            _ => {
                let text = self.doing("making the folder", id);
                let text =
                    format!("{text}: a file is in the way, which no folder replaces: move it away");
                return Err(PlaceError::Object(Why::new(Obstacle::Taken, text)));
            }
        }
        // A folder of ours that we may not write: as when a read-only tree is received again.
        let stat = self.stat(id).map_err(fail)?;
        let ours = self.folders && stat.st_uid == rustix::process::geteuid().as_raw();
        if ours && stat.st_mode & 0o700 != 0o700 && !self.meta.root {
            let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o700);
            // By descriptor, as the name may become a link; O_PATH, as it may be unreadable.
            let folder = open_in(&*parent, name, FOLDER_FLAGS | OFlags::PATH, Mode::empty());
            let folder = folder.map_err(fail)?;
            let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
            rustix::fs::chmod(path, mode).map_err(fail)?;
        }
        open_in(&*parent, name, FOLDER_FLAGS, Mode::empty()).map(drop).map_err(fail)
    }

    /// The same as [`Self::existing`], in full.
    pub(crate) fn stat(&self, id: EntryId) -> Result<Stat, Errno> {
        let name = self.beneath.tree().entry(id).name;
        let parent = self.beneath.parent(id)?;
        rustix::fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What is at the place of an entry.
    pub(crate) fn existing(&self, id: EntryId) -> Result<Existing, Errno> {
        match self.stat(id) {
            Err(Errno::NOENT) => Ok(Existing::Nothing),
            Err(error) => Err(error),
            Ok(stat) => Ok(Existing::of(&stat)),
        }
    }

    /// Opens the file at an entry's place for reading.
    pub(crate) fn open_existing(&self, id: EntryId) -> Result<OwnedFd, Errno> {
        let parent = self.beneath.parent(id)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        open_in(&*parent, self.beneath.tree().entry(id).name, flags, Mode::empty())
    }

    /// Gives metadata to a file that was there and is identical. Returns notices.
    pub(crate) fn adopt(&self, id: EntryId) -> Result<Vec<String>, PlaceError> {
        let fail = |error| self.failure(error, "opening", id);
        let fd = self.open_existing(id).map_err(fail)?;
        Ok(self.meta.apply(fd.as_fd(), &self.beneath.tree().entry(id)))
    }

    /// Gives a finished partial file its metadata and its name. One that replaces another is synced before; all others are
    /// at the end. Returns notices.
    pub(crate) fn put(
        &self,
        id: EntryId,
        part: &OwnedFd,
        part_name: &[u8],
        replaces: bool,
    ) -> Result<Vec<String>, PlaceError> {
        let fail = |error| self.failure(error, "placing", id);
        let entry = self.beneath.tree().entry(id);
        let notices = self.meta.apply(part.as_fd(), &entry);
        if replaces && let Err(error) = rustix::fs::fdatasync(part) {
            // It counts no more: another sync need not fail.
            self.staging.remove_part(part_name);
            return Err(fail(error));
        }
        let file = rustix::fs::fstat(part).map_err(fail)?;
        let parent = self.beneath.parent(id).map_err(fail)?;
        let from = (self.staging.parts(), part_name);
        match rename(from, (&*parent, entry.name), replaces) {
            Ok(()) => {
                if !replaces {
                    lock(&self.unsynced).insert(id, (file.st_dev, file.st_ino));
                }
                Ok(notices)
            }
            // Somebody was faster, perhaps with the same.
            Err(Errno::EXIST) if self.is_there(id, part) => {
                self.staging.remove_part(part_name);
                self.adopt(id)
            }
            Err(Errno::EXIST) => Err(PlaceError::Object(has_come())),
            Err(Errno::XDEV) => {
                let (notices, copy) = self.copy_across(id, id, part, &parent, replaces)?;
                lock(&self.unsynced).insert(id, (copy.st_dev, copy.st_ino));
                self.staging.remove_part(part_name);
                Ok(notices)
            }
            Err(error) => Err(fail(error)),
        }
    }

    /// Whether this session has put a file there, by a rename that waits for the sync or did.
    pub(crate) fn has_put(&self, id: EntryId) -> bool {
        lock(&self.unsynced).contains_key(&id)
    }

    /// An entry's place could not be synced: what this session has put there goes back to where it came from, under
    /// `part_name`. Of what was there before only the kernel's memory is dropped: who reads it next reads the disk. False: it is
    /// still in its place, or that cannot be looked at.
    pub(crate) fn take_back(&self, id: EntryId, part_name: &[u8]) -> bool {
        let entry = self.beneath.tree().entry(id);
        let file = match entry.kind {
            Kind::File { .. } | Kind::Stream => id,
            Kind::HardLink { to } => to,
            _ => return true,
        };
        let ours = lock(&self.unsynced).get(&file).copied();
        let to = (self.staging.parts(), part_name);
        let back = |parent: Arc<OwnedFd>| rename((&parent, entry.name), to, true);
        let is_ours = self.stat(id).map(|stat| ours == Some((stat.st_dev, stat.st_ino)));
        if is_ours == Ok(true) && self.beneath.parent(id).and_then(back).is_ok() {
            return true;
        }
        if let Ok(there) = self.open_existing(id) {
            let _ = rustix::fs::fadvise(there, 0, None, Advice::DontNeed);
        }
        match is_ours {
            Err(Errno::NOENT) => true,
            Err(_) => ours.is_none(),
            Ok(is_ours) => !is_ours,
        }
    }

    /// Whether an entry's place holds a file with the content of `part`.
    fn is_there(&self, id: EntryId, part: &OwnedFd) -> bool {
        let size = rustix::fs::fstat(part).map_or(0, |stat| stat.st_size as u64);
        self.existing(id) == Ok(Existing::File(size))
            && self.open_existing(id).is_ok_and(|there| same_content(part, &there, size))
    }

    /// To a place on another file system than that of `from`, which holds the content of entry `content`. Returns notices,
    /// and what the copy is.
    pub(super) fn copy_across(
        &self,
        id: EntryId,
        content: EntryId,
        from: &OwnedFd,
        parent: &OwnedFd,
        replaces: bool,
    ) -> Result<(Vec<String>, Stat), PlaceError> {
        let tree = self.beneath.tree();
        let like = tree.entry(content);
        // A stream's one extent ends where the file does.
        let extents = tree.layout().extents()[tree.extents(content)].iter();
        let data = extents.map(|extent| extent.start..extent.start + extent.len);
        copy_across((from.as_fd(), data), (parent, tree.entry(id).name), replaces, |copy| {
            // No crash leaves one in its place that has not its content.
            rustix::fs::fdatasync(copy)?;
            Ok((self.meta.apply(copy.as_fd(), &like), rustix::fs::fstat(copy)?))
        })
        .map_err(|error| match error {
            Errno::EXIST => PlaceError::Object(has_come()),
            error => self.failure(error, "placing", id),
        })
    }

    /// Whether what is at the place of an entry may be replaced, and a reason if not.
    pub(crate) fn may_replace(&self, existing: Existing) -> Result<(), Why> {
        existing.may_be_replaced(self.overwrite)
    }

    /// The same of what is there `now`.
    pub(super) fn may_replace_now(&self, id: EntryId, now: Existing) -> Result<(), Why> {
        match self.found[id.0 as usize] {
            Existing::Nothing if now != Existing::Nothing => Err(has_come()),
            _ => self.may_replace(now),
        }
    }

    pub(crate) fn failure(&self, error: Errno, what: &str, id: EntryId) -> PlaceError {
        PlaceError::of(error, &self.doing(what, id))
    }
}

/// The text of an error that only makes a notice.
pub(super) fn note(error: Errno, what: &str) -> String {
    format!("{what}: {}", explain(error))
}

/// Renames; fails with EXIST when something is there that must not be replaced.
pub(crate) fn rename(
    from: (&OwnedFd, &[u8]),
    to: (&OwnedFd, &[u8]),
    replaces: bool,
) -> Result<(), Errno> {
    match replaces {
        true => rustix::fs::renameat(from.0, from.1, to.0, to.1),
        false => rename_new(from, to),
    }
}

/// Renames, never over anything: EXIST then.
pub(crate) fn rename_new<F: Arg + Copy, T: Arg + Copy>(
    from: (&OwnedFd, F),
    to: (&OwnedFd, T),
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        // This file system (NFS is one) or kernel cannot promise it.
        Err(Errno::INVAL | Errno::NOSYS) => look_and_rename(from, to),
        done => done,
    }
}

fn look_and_rename<F: Arg, T: Arg + Copy>(
    from: (&OwnedFd, F),
    to: (&OwnedFd, T),
) -> Result<(), Errno> {
    match rustix::fs::statat(to.0, to.1, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => rustix::fs::renameat(from.0, from.1, to.0, to.1),
        Err(error) => Err(error),
        Ok(_) => Err(Errno::EXIST),
    }
}

#[cfg(test)]
mod tests {
    use super::{look_and_rename, rename_new};
    use rustix::io::Errno;
    use std::fs::{self, File};
    use std::os::fd::OwnedFd;

    #[test]
    fn nothing_is_replaced_whatever_the_file_system_can() {
        let folder = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(File::open(folder.path()).unwrap());
        let path = |name: &str| folder.path().join(name);
        for rename in [rename_new::<&str, &str>, look_and_rename::<&str, &str>] {
            fs::write(path("new"), "new").unwrap();
            std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
            assert_eq!(rename((&fd, "new"), (&fd, "link")), Err(Errno::EXIST));
            assert_eq!(rename((&fd, "new"), (&fd, "place")), Ok(()));
            assert_eq!(fs::read(path("place")).unwrap(), b"new");
            ["link", "place"].iter().for_each(|name| fs::remove_file(path(name)).unwrap());
        }
    }
}
