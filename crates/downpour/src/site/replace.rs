//! A file with new content: whole or as it was, on the disk, and still its owner's, whoever writes it.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// Nobody else replaces files of a folder until this is dropped. Of the folder, as a file is replaced and need not be there.
pub(super) fn lock(folder: &Path) -> io::Result<File> {
    let open = File::open(folder)?;
    flock(&open, FlockOperation::LockExclusive)?;
    Ok(open)
}

/// Writes `content` under another name and renames it. The file keeps its mode and its owner; one that is new gets `mode`
/// and, from who may give it away, the owner of its folder. Links are followed. The caller has the lock on the folder.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let (like, mode) = match fs::metadata(path) {
        Ok(old) => {
            let mode = old.mode() & 0o7777;
            (old, mode)
        }
        Err(_) => (fs::metadata(folder)?, mode),
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name);
    // Left by one that was cut short, perhaps another's.
    let _ = fs::remove_file(new);
    let written = write(new, content, &like, mode).and_then(|()| fs::rename(new, path));
    if written.is_err() {
        let _ = fs::remove_file(new);
    }
    written?;
    File::open(folder)?.sync_all()
}

fn write(new: &Path, content: &[u8], like: &Metadata, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (like.uid(), like.gid()) {
        let given = fchown(&file, Some(like.uid()), Some(like.gid()));
        // A group that may do what all others may need not be the same.
        let group_counts = mode >> 3 & 0o7 != mode & 0o7;
        if let Err(error) = given
            && !like.is_dir()
            && (made.uid() != like.uid() || group_counts)
        {
            let whose = format!("it is of user {}, group {}: {error}", like.uid(), like.gid());
            return Err(io::Error::new(error.kind(), whose));
        }
    }
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::replace;
    use crate::skipped::skipped;
    use rustix::process::{Gid, Uid};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    #[test]
    fn a_file_keeps_its_mode_and_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        replace(&file, b"one", 0o640).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        fs::set_permissions(&file, Permissions::from_mode(0o604)).unwrap();
        symlink("file", &link).unwrap();
        // Of one that was cut short.
        fs::write(folder.path().join("file.new"), "half").unwrap();
        replace(&link, b"two", 0o640).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o604);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_stays_its_owners() {
        if !rustix::process::geteuid().is_root() {
            return skipped("a_file_stays_its_owners", "needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        chown(folder.path(), Some(7), Some(8)).unwrap();
        let owner = || {
            let meta = fs::metadata(&file).unwrap();
            (meta.uid(), meta.gid())
        };
        replace(&file, b"of the folder's", 0o600).unwrap();
        assert_eq!(owner(), (7, 8));
        chown(&file, Some(9), Some(10)).unwrap();
        replace(&file, b"of its own", 0o600).unwrap();
        assert_eq!(owner(), (9, 10));
    }

    /// As a user without rights, in a folder that only its group lets it write to.
    #[test]
    fn who_may_not_give_a_file_away_writes_it_all_the_same() {
        if !rustix::process::geteuid().is_root() {
            return skipped("who_may_not_give_a_file_away_writes_it_all_the_same", "needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        chown(folder.path(), None, Some(8)).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o2775)).unwrap();
        fs::write(&old, "one").unwrap();
        chown(&old, Some(7), Some(10)).unwrap();
        let work = || {
            use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
            // Of this thread alone.
            set_thread_groups(&[]).unwrap();
            set_thread_gid(Gid::from_raw(8)).unwrap();
            set_thread_uid(Uid::from_raw(7)).unwrap();
            replace(&new, b"two", 0o600).unwrap();
            fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
            replace(&old, b"two", 0o600).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
        let meta = [new, old].map(|file| fs::metadata(file).unwrap());
        assert_eq!(
            meta.map(|meta| (meta.uid(), meta.gid(), meta.mode() & 0o777)),
            [(7, 8, 0o600), (7, 8, 0o644)]
        );
    }
}
