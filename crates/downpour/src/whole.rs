//! Output files that a reader finds as they were or whole and new: written beside, then renamed.
//!
//! 1. A link is followed: what it leads to is replaced, not the link.
//! 2. A pipe, a terminal or a device is no file to replace, nor is one that is this program's own output: these are written
//!    to as they are.
//! 3. Nobody reads it who could not read the earlier file: it has the same owner, group and mode, as far as we may give it
//!    these. What cannot be kept fails nothing: it is made closed, and stays so. Access lists are not kept: where one is
//!    at the earlier file, or inherited, only the owner reads the new one. Those of NFSv4 are not seen.
//! 4. Until it is whole it has no name, so that nothing is left of it when we are killed; where a file system has no such
//!    files, one with our number is.

use rustix::fs::{AtFlags, CWD, OFlags, fgetxattr, getxattr, linkat};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Links that are followed, one after the other; the kernel has the same limit.
const LINKS_MAX: usize = 40;

const ACCESS_LIST: &str = "system.posix_acl_access";
const OPEN_FILES: &str = "/proc/self/fd";

/// Writes it all. A new file has this mode, less the umask; one that takes the place of another none beyond it.
pub(crate) fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    write_by(path, mode, |file| file.write_all(bytes))
}

/// Writes what is made piece by piece.
pub(crate) fn write_by<T, E: From<io::Error>>(
    path: &Path,
    mode: u32,
    make: impl FnOnce(&mut File) -> Result<T, E>,
) -> Result<T, E> {
    let Some(place) = place(path)? else {
        // With leave to create: in a folder for all the kernel then keeps us from a stranger's pipe.
        return make(&mut OpenOptions::new().append(true).create(true).open(path)?);
    };
    let part = part_of(&place)?;
    // Who may read what takes the place of another is settled at the end.
    let at_first = if place.exists() { mode & 0o600 } else { mode };
    let mut file = unnamed(&part, at_first).or_else(|_| create(&part, at_first))?;
    let written = make(&mut file).and_then(|made| {
        open_as_before(&file, &place, mode);
        file.sync_all()?;
        name(&file, &part)?;
        fs::rename(&part, &place)?;
        Ok(made)
    });
    written.inspect_err(|_| {
        // Best effort: what is reported is the first error.
        let _ = fs::remove_file(&part);
    })
}

/// Writes a file of this program's own state: where nobody has put a link, and one writes at a time. It outlives a power failure.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Opens a file to read it, if it is one: of a pipe that somebody put there neither this nor the reading would end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let open = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match open.metadata()?.is_file() {
        true => Ok(open),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Reads a whole one, of this program's own state.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
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

fn unnamed(part: &Path, mode: u32) -> io::Result<File> {
    // Without it there would be no way to name what is made.
    fs::metadata(OPEN_FILES)?;
    let folder = part.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::TMPFILE.bits() as i32;
    let folder = folder.unwrap_or(Path::new("."));
    OpenOptions::new().write(true).mode(mode).custom_flags(flags).open(folder)
}

fn name(file: &File, part: &Path) -> io::Result<()> {
    if file.metadata()?.nlink() > 0 {
        return Ok(());
    }
    remove(part)?;
    let open = format!("{OPEN_FILES}/{}", file.as_raw_fd());
    Ok(linkat(CWD, open, CWD, part, AtFlags::SYMLINK_FOLLOW)?)
}

/// Lets those read the file who may read what stands at its place.
fn open_as_before(file: &File, place: &Path, mode: u32) {
    let (Ok(old), Ok(new)) = (fs::metadata(place), file.metadata()) else { return };
    let is_for_all = |folder: fs::Metadata| folder.mode() & 0o1000 != 0;
    let folder = place.parent().map(fs::metadata);
    if old.uid() != new.uid() && folder.is_some_and(|at| at.is_ok_and(is_for_all)) {
        // A stranger may have put it there to have what we write.
        return;
    }
    // As far as we may: only root gives a file away.
    let (owner, group) = (Some(old.uid()), Some(old.gid()));
    let kept = fchown(file, owner, group).or_else(|_| fchown(file, None, group)).is_ok();
    let old_list = getxattr(place, ACCESS_LIST, &mut [0; 0][..]);
    let new_list = fgetxattr(file, ACCESS_LIST, &mut [0; 0][..]);
    let open_to = match kept {
        // A list may allow less than the mode says, and the mode opens what is in a list.
        _ if is_list(old_list) || is_list(new_list) => 0o700,
        true => 0o777,
        // Of those in another group no more is known than that they are some of all.
        false => 0o707 | (old.mode() & 0o007) << 3,
    };
    // Where a file system has no owners this fails, and all files there are open to the same.
    let _ = file.set_permissions(Permissions::from_mode(old.mode() & mode & open_to));
}

/// Whether there is one, or may be.
fn is_list(len: Result<usize, Errno>) -> bool {
    !matches!(len, Err(Errno::NODATA | Errno::NOTSUP))
}

#[cfg(test)]
mod tests {
    use super::{check, unnamed, write, write_by};
    use crate::skipped::{not_here, skipped};
    use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
    use std::fs::{self, File};
    use std::io::{self, Write as _};
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
    use std::os::unix::fs::{chown, symlink};
    use std::path::Path;
    use std::process::Command;
    use std::thread;

    #[test]
    fn what_is_not_written_whole_leaves_what_was_there() {
        let tmp = tempfile::tempdir().unwrap();
        let out = tmp.path().join("out");
        write(&out, 0o644, b"yesterday's").unwrap();
        let half = |file: &mut File| file.write_all(b"half").and(Err(io::Error::other("no row")));
        assert!(write_by::<(), _>(&out, 0o644, half).is_err());
        assert_eq!(fs::read(&out).unwrap(), b"yesterday's");
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn what_takes_the_place_of_another_is_read_by_nobody_else() {
        let tmp = tempfile::tempdir().unwrap();
        let out = &tmp.path().join("out");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        let known =
            || fs::metadata(out).map(|at| (at.uid(), at.gid(), at.mode() & 0o7777)).unwrap();
        write(out, 0o666, b"").unwrap();
        let (uid, gid, _) = known();
        for (old, mode, new) in [
            (0o600, 0o666, 0o600),
            (0o664, 0o666, 0o664),
            (0o755, 0o666, 0o644),
            (0o644, 0o600, 0o600),
        ] {
            set(out, old).unwrap();
            let half = |file: &mut File| {
                assert_eq!(file.metadata()?.mode() & 0o077, 0, "it is not said yet who may read");
                file.write_all(b"new")
            };
            write_by(out, mode, half).unwrap();
            assert_eq!(known(), (uid, gid, new), "{old:o} {mode:o}");
        }
        let (other, group) = (uid + 1, gid + 1);
        if chown(out, Some(other), Some(group)).is_err() {
            return skipped("what takes the place of another user's file", "needs root");
        }
        set(out, 0o640).unwrap();
        write(out, 0o666, b"new").unwrap();
        assert_eq!(known(), (other, group, 0o640));
        set(tmp.path(), 0o1777).unwrap();
        set(out, 0o666).unwrap();
        write(out, 0o666, b"new").unwrap();
        assert_eq!(known(), (uid, gid, 0o600), "a stranger's in a folder for all");
    }

    #[test]
    fn what_an_access_list_closes_or_names_is_not_opened() {
        const NAME: &str = "what_an_access_list_closes_or_names_is_not_opened";
        let tmp = tempfile::tempdir().unwrap();
        let out = &tmp.path().join("out");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        let mode = || fs::metadata(out).unwrap().mode() & 0o777;
        // Owner, user 1, group, mask, all others: user 1 reads, the group does not.
        let entries = [(1, 6, u32::MAX), (2, 4, 1), (4, 0, u32::MAX), (16, 4, u32::MAX)];
        let mut list = vec![2, 0, 0, 0];
        for (tag, may, who) in entries.into_iter().chain([(32, 4, u32::MAX)]) {
            list.extend([tag, 0, may, 0]);
            list.extend(u32::to_le_bytes(who));
        }
        let listed = |path: &Path, name: &str| setxattr(path, name, &list, XattrFlags::empty());
        write(out, 0o666, b"old").unwrap();
        if listed(out, "system.posix_acl_access").is_err() {
            return not_here(NAME, "no access lists here");
        }
        assert_eq!(mode(), 0o644, "the mask stands where the group does");
        write(out, 0o666, b"new").unwrap();
        assert_eq!(mode(), 0o600);

        set(out, 0o644).unwrap();
        listed(tmp.path(), "system.posix_acl_default").unwrap();
        write(out, 0o666, b"new").unwrap();
        assert_eq!(mode(), 0o600, "user 1 is in the list that it inherits");
    }

    #[test]
    fn what_cannot_be_kept_fails_nothing() {
        const NAME: &str = "what_cannot_be_kept_fails_nothing";
        if !rustix::process::geteuid().is_root() {
            return skipped(NAME, "needs root");
        }
        let tmp = tempfile::tempdir().unwrap();
        let out = &tmp.path().join("out");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set(tmp.path(), 0o777).unwrap();
        write(out, 0o666, b"old").unwrap();
        // As on a mount whose files are all another's, and open to all: what we made is not ours.
        let make = |file: &mut File| {
            file.set_permissions(fs::Permissions::from_mode(0o666))?;
            // Another user for this thread alone.
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534))?;
            file.write_all(b"new")
        };
        thread::scope(|scope| scope.spawn(|| write_by(out, 0o666, make)).join().unwrap()).unwrap();
        assert_eq!(fs::read(out).unwrap(), b"new");
    }

    #[test]
    fn without_proc_it_is_written_as_well() {
        const NAME: &str = "without_proc_it_is_written_as_well";
        let hide = "mount -t tmpfs -o size=1m downpour-test /proc || exit 77; exec \"$@\"";
        let story = "whole::tests::what_is_not_written_whole_leaves_what_was_there";
        let hidden = Command::new("unshare")
            .args(["--mount", "--", "sh", "-c", hide, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", story])
            .output();
        match hidden {
            // A test that fails ends with 101.
            Ok(ran) if matches!(ran.status.code(), Some(0 | 101)) => {
                let said = String::from_utf8_lossy(&ran.stdout);
                assert!(ran.status.success() && said.contains("running 1 test\n"), "{said}");
            }
            _ => skipped(NAME, "needs root to mount a tmpfs"),
        }
    }

    #[test]
    fn who_is_killed_while_writing_leaves_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let out = tmp.path().join("out");
        if unnamed(&out, 0o600).is_err() {
            let name = "who_is_killed_while_writing_leaves_nothing";
            return not_here(name, "no unnamed files here");
        }
        for _ in 0..2 {
            let before = fs::read_dir(tmp.path()).unwrap().count();
            write_by(&out, 0o600, |file| {
                assert_eq!(fs::read_dir(tmp.path())?.count(), before);
                file.write_all(b"new")
            })
            .unwrap();
            assert_eq!(fs::read(&out).unwrap(), b"new");
        }
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 1);
    }

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
