//! After the receipt: a file is moved or removed, and never a newer one in its place.
//!
//! What cannot be moved as things are is left alone. Otherwise the file first gets a private name, `.downpour/leaving.ID`.
//! Only if it is then still the content that was verified does it go on; else it gets its name back. So whatever a
//! producer does meanwhile to the name happens to the name alone.

use super::aside::leaving;
use super::digests::Digesting;
use super::root::{Root, Seen};
use super::section::After;
use crate::object::rename_new;
use downpour_catalog::{Digest, FileId};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, FileTimes};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a file did not leave.
#[derive(Debug)]
pub(super) enum Stays {
    /// It is not what was verified.
    Changed,
    /// It could not be moved or removed.
    Failed(String),
}

/// What lies beside a file for it, as it looked while the file had its name: what a producer writes there later is for the next one.
pub(super) struct Beside(Vec<(String, Seen)>);

impl Beside {
    /// Of these, what is there.
    pub(super) fn of(root: &Root, companions: Vec<String>) -> Self {
        let look = |rel: String| root.look(&rel).ok().flatten().map(|seen| (rel, seen));
        Self(companions.into_iter().filter_map(look).collect())
    }

    /// Removes it, as far as it looks the same.
    pub(super) fn remove(&self, root: &Root) {
        for (rel, seen) in &self.0 {
            if root.look(rel) == Ok(Some(*seen)) {
                let _ = root.remove(rel);
            }
        }
    }
}

/// Where a file goes: the folder, and the names that it may have there.
struct Place {
    parent: PathBuf,
    to: OwnedFd,
    names: [String; 2],
}

/// A file that may leave.
pub(super) struct Leaver<'a> {
    pub(super) root: &'a Root,
    pub(super) rel: &'a str,
    pub(super) file: FileId,
    /// What was verified.
    pub(super) seen: Seen,
    pub(super) digest: Option<Digest>,
    /// The service was stopped: a copy breaks off.
    pub(super) ending: &'a AtomicBool,
}

impl Leaver<'_> {
    /// Where it will lie if it leaves as things are, unless it is removed; or why it cannot.
    pub(super) fn check(&self, after: &After) -> Result<Option<PathBuf>, String> {
        let After::Move(folder) = after else { return Ok(None) };
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
        let Place { parent, to, names } = self.place(folder).map_err(|error| failed(&error))?;
        let shown = parent.display();
        let stat = |name: &String| rustix::fs::statat(&to, name, AtFlags::SYMLINK_NOFOLLOW).err();
        let free = match names.iter().find_map(|name| Some((name, stat(name)?))) {
            Some((name, Errno::NOENT)) => parent.join(name),
            Some((_, error)) => return Err(failed(&error)),
            None => {
                return Err(format!("{shown} has files {}: move one away", names.join(" and ")));
            }
        };
        let room = self.root.room_for_copy(&to).map_err(|error| failed(&error))?;
        match room.filter(|room| *room < self.seen.size) {
            Some(_) => Err(format!("{shown} has no room for it")),
            None => Ok(Some(free)),
        }
    }

    /// Moves or removes it. Returns where it lies now, unless it was removed.
    pub(super) fn leave(&self, after: &After) -> Result<Option<PathBuf>, Stays> {
        let (root, private) = (self.root, leaving(self.file.0));
        root.rename(self.rel, &private).map_err(|error| match error {
            Errno::NOENT => Stays::Changed,
            other => Stays::Failed(other.to_string()),
        })?;
        let done = match root.look(&private) {
            Ok(Some(seen)) if seen.is_content_of(&self.seen) => self.finish(&private, after),
            Ok(_) => Err(Stays::Changed),
            Err(error) => Err(Stays::Failed(error.to_string())),
        };
        if done.is_err() {
            // A newer file may have taken the name: then the private one stays, and is told of at the next start.
            let _ = root.rename_back(&private, self.rel);
        }
        done
    }

    fn finish(&self, private: &str, after: &After) -> Result<Option<PathBuf>, Stays> {
        let failed = |error: &dyn std::fmt::Display| Stays::Failed(error.to_string());
        match after {
            After::Keep => Err(Stays::Changed),
            After::Delete => {
                self.root.remove(private).map_err(|error| failed(&error))?;
                Ok(None)
            }
            After::Move(folder) => {
                let place = self.move_to(private, folder);
                place.map(Some).map_err(|e| failed(&format!("{}: {e}", folder.display())))
            }
        }
    }

    fn place(&self, folder: &Path) -> io::Result<Place> {
        let wanted = folder.join(self.rel);
        let parent = wanted.parent().unwrap_or(folder);
        if !self.root.may_go_to(parent) {
            let what = "the daemon keeps its state there: name another folder in `after`";
            return Err(io::Error::other(what));
        }
        fs::create_dir_all(parent)?;
        let name = wanted.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let to = rustix::fs::open(parent, flags, Mode::empty())?;
        // Another file has the name there: this one's number tells them apart.
        let names = [name.to_owned(), format!("{name}.{}", self.file)];
        Ok(Place { parent: parent.to_owned(), to, names })
    }

    fn move_to(&self, private: &str, folder: &Path) -> io::Result<PathBuf> {
        let Place { parent, to, names } = self.place(folder)?;
        for name in names {
            let moved = match self.root.rename_out(private, &to, &name) {
                Err(Errno::XDEV) => self.copy_to(private, &to, &name),
                moved => moved.map_err(io::Error::from),
            };
            match moved {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(parent.join(name)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// To another file system: read and written, what was read compared with the digest, and only then renamed and the original
    /// removed.
    fn copy_to(&self, private: &str, to: &OwnedFd, name: &str) -> io::Result<()> {
        let part = format!(".{}.part", self.file);
        let copied = self.write_part(private, to, &part).and_then(|()| {
            rename_new((to, &part), (to, name))?;
            Ok(rustix::fs::fsync(to)?)
        });
        if copied.is_err() {
            let _ = rustix::fs::unlinkat(to, &*part, AtFlags::empty());
        }
        copied?;
        Ok(self.root.remove(private)?)
    }

    /// Writes the copy, with the mode and the time of the original. It is on the disk when this returns.
    fn write_part(&self, private: &str, to: &OwnedFd, part: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let out =
            rustix::fs::openat(to, part, flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?;
        let mut copy = Copying { from: self.root.open_file(private)?, to: File::from(out) };
        let go_on = |_| !self.ending.load(Ordering::Relaxed);
        let (_, digests) = Digesting::new(&[]).read(&mut copy, go_on)?;
        if self.digest.as_ref() != digests.first() {
            return Err(io::Error::other("what was read for the copy has another digest"));
        }
        let original = copy.from.metadata()?;
        copy.to.set_permissions(original.permissions())?;
        let times = FileTimes::new().set_modified(original.modified()?);
        copy.to.set_times(times)?;
        copy.to.sync_all()
    }
}

/// Writes what is read from it.
struct Copying {
    from: File,
    to: File,
}

impl io::Read for &mut Copying {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(piece)?;
        self.to.write_all(&piece[..count])?;
        Ok(count)
    }
}

/// Gives their names back to files that were leaving when the daemon ended; they leave again when they are next looked at.
/// Returns those that cannot have it, with what they are called and why.
pub(super) fn put_back_all(
    root: &Root,
    mut rel_of: impl FnMut(FileId) -> Option<String>,
) -> Vec<String> {
    let mut left = Vec::new();
    let Ok(listing) = root.list(super::root::OWN) else { return left };
    for (name, _) in listing.files {
        let id = name.strip_prefix("leaving.").and_then(|id| id.parse().ok());
        let Some(rel) = id.and_then(|id| rel_of(FileId(id))) else { continue };
        let private = format!("{}/{name}", super::root::OWN);
        match root.rename_back(&private, &rel) {
            Ok(()) => {}
            Err(Errno::EXIST) => left
                .push(format!("{private}: it was to leave as {rel}, which is another file by now")),
            Err(error) => left.push(format!(
                "{private}: it was to leave as {rel}, and cannot be put back there: {error}; \
                 that is tried again at the next start"
            )),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::{After, AtomicBool, Beside, FileId, Leaver, Mode, OFlags, Root, Seen, Stays};

    static GOES_ON: AtomicBool = AtomicBool::new(false);

    fn leaver<'a>(root: &'a Root, seen: Seen, ending: &'a AtomicBool) -> Leaver<'a> {
        Leaver { root, rel: "a", file: FileId(7), seen, digest: None, ending }
    }

    #[test]
    fn a_copy_that_nobody_waits_for_breaks_off_and_leaves_no_half() {
        let (spool, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(spool.path().join("a"), "x").unwrap();
        let root = Root::open(spool.path(), true).unwrap();
        let (seen, ending) = (root.look("a").unwrap().unwrap(), AtomicBool::new(true));
        let to = rustix::fs::open(other.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let copied = leaver(&root, seen, &ending).copy_to("a", &to, "a");
        assert_eq!(copied.unwrap_err().kind(), std::io::ErrorKind::Interrupted);
        assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0);
        assert_eq!(root.look("a"), Ok(Some(seen)));
    }

    #[test]
    fn what_cannot_be_moved_names_the_folder_that_does_not_take_it() {
        let (spool, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in [spool.path().join("a"), other.path().join("a"), other.path().join("a.7")] {
            std::fs::write(file, "x").unwrap();
        }
        let root = Root::open(spool.path(), true).unwrap();
        let seen = root.look("a").unwrap().unwrap();
        let leaver = leaver(&root, seen, &GOES_ON);
        let after = After::Move(other.path().to_owned());
        assert!(leaver.check(&after).is_err());
        let stays = leaver.leave(&after);
        let Err(Stays::Failed(why)) = stays else { panic!("it has left") };
        assert!(why.starts_with(&other.path().display().to_string()), "{why}");
        assert_eq!(root.look("a").unwrap().map(|seen| seen.size), Some(1), "it is back");
    }

    #[test]
    fn what_gets_no_name_back_says_why() {
        let spool = tempfile::tempdir().unwrap();
        let root = Root::open(spool.path(), true).unwrap();
        for file in ["taken", "file", ".downpour/leaving.1", ".downpour/leaving.2"] {
            std::fs::write(spool.path().join(file), "x").unwrap();
        }
        let rel_of = |FileId(id)| Some(if id == 1 { "taken" } else { "file/below" }.to_owned());
        let mut left = super::put_back_all(&root, rel_of);
        left.sort_unstable();
        let [taken, below] = &left[..] else { panic!("{left:?}") };
        assert!(taken.contains("leaving.1") && taken.contains("another file"), "{taken}");
        assert!(below.contains("leaving.2") && below.contains("Not a directory"), "{below}");
    }

    #[test]
    fn nothing_moves_to_where_the_daemon_keeps_its_state() {
        let (spool, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(spool.path().join("a"), "x").unwrap();
        let state = other.path().join("state");
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::symlink("state", other.path().join("link")).unwrap();
        let root = Root::open_apart(spool.path(), true, Some(&state)).unwrap();
        let leaver = leaver(&root, root.look("a").unwrap().unwrap(), &GOES_ON);
        for (folder, may) in [("state", false), ("link", false), ("state/done", true), ("", true)] {
            let checked = leaver.check(&After::Move(other.path().join(folder)));
            assert_eq!(checked.is_ok(), may, "{folder}: {checked:?}");
        }
        let over = Root::open_apart(other.path(), true, Some(&state));
        assert!(matches!(over, Err(super::super::root::NoRoot::OfState)));
    }

    #[test]
    fn where_a_file_will_lie_is_known_before_it_leaves() {
        let (spool, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(spool.path().join("a"), "x").unwrap();
        let root = Root::open(spool.path(), true).unwrap();
        let seen = root.look("a").unwrap().unwrap();
        let leaver = leaver(&root, seen, &GOES_ON);
        let after = After::Move(other.path().to_owned());
        assert_eq!(leaver.check(&After::Delete), Ok(None));
        assert_eq!(leaver.check(&after), Ok(Some(other.path().join("a"))));
        std::fs::write(other.path().join("a"), "of somebody else").unwrap();
        assert_eq!(leaver.check(&after), Ok(Some(other.path().join("a.7"))));
        assert_eq!(leaver.leave(&after).unwrap(), Some(other.path().join("a.7")));
    }

    #[test]
    fn what_was_written_anew_beside_a_file_that_left_is_not_removed_with_it() {
        let spool = tempfile::tempdir().unwrap();
        let at = |name: &str| spool.path().join(name);
        for name in ["a.done", "a.md5"] {
            std::fs::write(at(name), "").unwrap();
        }
        let root = Root::open(spool.path(), true).unwrap();
        let names = ["a.done", "a.md5", "a.sha256"].map(str::to_owned).to_vec();
        let beside = Beside::of(&root, names);
        std::fs::write(at("new"), "").unwrap();
        std::fs::rename(at("new"), at("a.done")).unwrap();
        std::fs::write(at("a.sha256"), "").unwrap();
        beside.remove(&root);
        let left = ["a.done", "a.md5", "a.sha256"].map(|name| at(name).exists());
        assert_eq!(left, [true, false, true]);
    }
}
