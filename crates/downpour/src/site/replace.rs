//! A file with new content: whole or as it was, on the disk, and still its owner's, whoever writes it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// The group's part of a mode.
const GROUP: u32 = 0o070;

/// Writes `content` under another name and renames it. The file keeps its mode and its owner; one that is new gets `mode`
/// and the owner of its folder. Links are followed.
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
        // A group that may do nothing need not be the same.
        if let Err(error) = given
            && (made.uid() != like.uid() || mode & GROUP != 0)
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
            return println!("skipped: a file stays its owner's: only root can write as another");
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
}
