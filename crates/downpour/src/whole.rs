//! Output files that a reader finds as they were or whole and new: written beside, then renamed.
//!
//! 1. A link is followed: what it leads to is replaced, not the link.
//! 2. A pipe, a terminal or a device is no file to replace, nor is one that is this program's own output: these are written
//!    to as they are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Links that are followed, one after the other; the kernel has the same limit.
const LINKS_MAX: usize = 40;

/// Writes it all. A new file has this mode, less the umask.
pub(crate) fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let Some(place) = place(path)? else {
        // With leave to create: in a folder for all the kernel then keeps us from a stranger's pipe.
        return OpenOptions::new().append(true).create(true).open(path)?.write_all(bytes);
    };
    let part = part_of(&place)?;
    let written = create(&part, mode).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&part, &place)).inspect_err(|_| {
        // Best effort: what is reported is the first error.
        let _ = fs::remove_file(&part);
    })
}

/// Writes a file of this program's own state: where nobody has put a link, and one writes at a time.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)
}

/// Removes a file that may have gone by itself.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether [`write()`] could do it now.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let Some(place) = place(path)? else {
        // To open a pipe would wait for its reader, and to close it again tell him that all has come.
        return Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?);
    };
    let part = part_of(&place)?;
    create(&part, 0o600)?;
    fs::remove_file(&part)
}

/// The file to replace; `None` where there is something else to write to.
fn place(path: &Path) -> io::Result<Option<PathBuf>> {
    let meta = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(new_at(path))),
        // Above all of a stranger's link, which the kernel does not let us follow.
        known => known?,
    };
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() || is_own_output(&meta) {
        return Ok(None);
    }
    path.canonicalize().map(Some)
}

/// Where a file is made: links may lead to one that is not there yet.
pub(crate) fn new_at(path: &Path) -> PathBuf {
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(to) = fs::read_link(&place) else { break };
        place = place.parent().unwrap_or(Path::new("")).join(to);
    }
    place
}

fn is_own_output(meta: &fs::Metadata) -> bool {
    let same = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino) == (meta.dev(), meta.ino());
    let outputs = [rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())];
    outputs.into_iter().flatten().any(same)
}

/// Where it is written before it gets its name.
fn part_of(place: &Path) -> io::Result<PathBuf> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "this names no file");
    let mut name = place.file_name().ok_or_else(no_name)?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    Ok(place.with_file_name(name))
}

fn create(part: &Path, mode: u32) -> io::Result<File> {
    // Left by one of this number that was killed.
    let _ = fs::remove_file(part);
    OpenOptions::new().write(true).create_new(true).mode(mode).open(part)
}

#[cfg(test)]
mod tests {
    use super::{check, write};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;
    use std::os::unix::fs::{FileTypeExt as _, symlink};
    use std::thread;

    #[test]
    fn what_is_no_file_is_written_to_and_a_link_is_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        check(&at("pipe")).unwrap();
        let pipe = at("pipe");
        let reader = thread::spawn(move || fs::read(pipe).unwrap());
        write(&at("pipe"), 0o644, b"new").unwrap();
        assert_eq!(reader.join().unwrap(), b"new");
        assert!(fs::metadata(at("pipe")).unwrap().file_type().is_fifo());

        fs::create_dir(at("runs")).unwrap();
        symlink("current", at("latest")).unwrap();
        symlink("runs/7.json", at("current")).unwrap();
        for text in [b"first", b"again"] {
            check(&at("latest")).unwrap();
            write(&at("latest"), 0o644, text).unwrap();
            assert!(at("latest").is_symlink() && at("current").is_symlink(), "it was replaced");
            assert_eq!(fs::read(at("runs/7.json")).unwrap(), text);
        }
        assert_eq!(fs::read_dir(at("runs")).unwrap().count(), 1, "nothing is left over");
        assert!(check(tmp.path()).is_err() && check(&at("none/file")).is_err());
        // What cannot be looked at is not taken for a link to what is not there.
        symlink("loop", at("loop")).unwrap();
        assert!(check(&at("loop")).is_err() && write(&at("loop"), 0o644, b"").is_err());
        assert!(at("loop").is_symlink());
    }
}
