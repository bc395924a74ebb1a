//! The spool's folder as the spool sees it: what lies there, and moving it about.
//!
//! Every path is relative to the folder and opened step by step, so that no link is followed and nothing outside is touched. A
//! file is known by what one look at it tells ([`Seen`]); whoever acts on a file compares two looks first.

use crate::object::{open_in, rename_new};
use crate::site::{exposes, is_own, real};
use downpour_catalog::Time;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where the spool keeps what is its own; its presence says that the folder is the one that was watched before.
pub(super) const OWN: &str = ".downpour";
/// Folders below each other, at most.
const DEPTH_MAX: usize = 64;
/// What is this much later than now was written while the clock was ahead: it has been set since.
pub(super) const CLOCK_SLACK_S: i64 = 5;
/// Mode of folders that the spool makes.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// What one look at a file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its inode: the same under another name is a file that was renamed.
    pub(super) ino: u64,
    /// Its length.
    pub(super) size: u64,
    mtime_ns: i128,
    ctime_ns: i128,
}

impl Seen {
    fn of(stat: &Stat) -> Self {
        let ns = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self {
            ino: stat.st_ino,
            size: stat.st_size as u64,
            mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    /// Of an open file.
    pub(super) fn of_file(file: &File) -> Result<Self, Errno> {
        Ok(Self::of(&rustix::fs::fstat(file)?))
    }

    /// The catalog's stamp: the same as long as inode, length and modification time are. A rename keeps it. The salt tells apart
    /// what looks the same and is not.
    pub(super) fn stamp(&self, salt: u32) -> i64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.ino.to_le_bytes());
        hasher.update(&self.size.to_le_bytes());
        hasher.update(&self.mtime_ns.to_le_bytes());
        hasher.update(&salt.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        // 0 means "like no other".
        i64::from_le_bytes(first) | 1
    }

    /// Whether it is the same content as far as a look can tell, whatever name it has.
    pub(super) fn is_content_of(&self, other: &Self) -> bool {
        (self.ino, self.size, self.mtime_ns) == (other.ino, other.size, other.mtime_ns)
    }

    /// A look at a file that exists in tests only.
    #[cfg(test)]
    pub(super) fn made_up(ino: u64, size: u64, mtime: i64) -> Self {
        let ns = i128::from(mtime) * 1_000_000_000;
        Self { ino, size, mtime_ns: ns, ctime_ns: ns }
    }
}

/// Something that lies in the spool and is not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Odd {
    /// Its path, made fit to be shown.
    pub(super) path: String,
    /// Why.
    pub(super) why: String,
}

/// What lies in one folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Names of files and what a look told, sorted by nothing.
    pub(super) files: Vec<(String, Seen)>,
    /// Names of folders.
    pub(super) folders: Vec<String>,
    /// Those of them on which another file system is mounted.
    pub(super) mounts: Vec<String>,
    /// What is not taken.
    pub(super) odd: Vec<Odd>,
    /// Names that could not be looked at; they are odd, too.
    pub(super) unseen: Vec<String>,
}

/// A spool's folder, open.
pub(super) struct Root {
    path: PathBuf,
    fd: OwnedFd,
    own: (u64, u64),
    /// The state folder of the site: nothing goes there.
    state: Option<PathBuf>,
}

/// Why a folder cannot be watched.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRoot {
    /// It cannot be opened.
    Unreadable(Errno),
    /// It is there, and is not the folder that was watched before: something is not mounted.
    Another,
    /// What the daemon keeps in its state folder would be sent.
    OfState,
}

impl Root {
    /// Opens the folder, unless what a daemon keeps in this state folder can be reached by it. Nothing goes there, either.
    pub(super) fn open_apart(path: &Path, new: bool, state: Option<&Path>) -> Result<Self, NoRoot> {
        if state.is_some_and(|state| exposes(&real(state), &real(path))) {
            return Err(NoRoot::OfState);
        }
        Ok(Self { state: state.map(Path::to_owned), ..Self::open(path, new)? })
    }

    /// Whether files may go to a folder: what the daemon keeps is not there.
    pub(super) fn may_go_to(&self, folder: &Path) -> bool {
        self.state.as_ref().is_none_or(|state| !is_own(&real(state), &real(folder)))
    }

    /// Opens the folder. Only a folder that is `new` to the catalog may lack our own folder in it.
    pub(super) fn open(path: &Path, new: bool) -> Result<Self, NoRoot> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(NoRoot::Unreadable)?;
        match rustix::fs::statat(&fd, OWN, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if new => {
                rustix::fs::mkdirat(&fd, OWN, FOLDER_MODE).map_err(NoRoot::Unreadable)?;
            }
            Err(Errno::NOENT) => return Err(NoRoot::Another),
            Err(error) => return Err(NoRoot::Unreadable(error)),
            Ok(_) => {}
        }
        let stat = rustix::fs::statat(&fd, OWN, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(NoRoot::Unreadable)?;
        Ok(Self { path: path.to_owned(), fd, own: (stat.st_dev, stat.st_ino), state: None })
    }

    /// Opens a folder that is not ours to write to.
    pub(super) fn borrow(path: &Path) -> Result<Self, NoRoot> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(NoRoot::Unreadable)?;
        Ok(Self { path: path.to_owned(), fd, own: (0, 0), state: None })
    }

    /// Whether the path still leads here.
    pub(super) fn is_there(&self) -> bool {
        rustix::fs::statat(rustix::fs::CWD, self.path.join(OWN), AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.own)
    }

    /// The whole path of something in it.
    pub(super) fn full(&self, rel: &str) -> PathBuf {
        self.path.join(rel)
    }

    /// Opens a folder in it; the empty path is itself.
    pub(super) fn folder(&self, rel: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut fd = open_in(&self.fd, b".", flags, Mode::empty())?;
        for (depth, part) in rel.split('/').filter(|part| !part.is_empty()).enumerate() {
            if part == ".." || depth >= depth_max(rel) {
                return Err(Errno::INVAL);
            }
            fd = open_in(&fd, part.as_bytes(), flags, Mode::empty())?;
        }
        Ok(fd)
    }

    /// The folder that holds a path, and the path's last part.
    fn parent<'r>(&self, rel: &'r str) -> Result<(OwnedFd, &'r str), Errno> {
        let (parent, name) = rel.rsplit_once('/').unwrap_or(("", rel));
        Ok((self.folder(parent)?, name))
    }

    /// A look at one path: `None` when no regular file is there.
    pub(super) fn look(&self, rel: &str) -> Result<Option<Seen>, Errno> {
        let (folder, name) = match self.parent(rel) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            found => found?,
        };
        match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Some(Seen::of(&stat)))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a path is a folder, no link, as far as can be told: one that cannot be opened may be one.
    pub(super) fn is_folder(&self, rel: &str) -> bool {
        !matches!(self.folder(rel), Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL))
    }

    /// Opens a file for reading. A fifo that took its place meanwhile does not hold us up.
    pub(super) fn open_file(&self, rel: &str) -> Result<File, Errno> {
        let (folder, name) = self.parent(rel)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        Ok(File::from(open_in(&folder, name.as_bytes(), flags, Mode::empty())?))
    }

    /// Lists a folder: all names first, then a look at each, so that whoever finds a companion also sees the file that it was
    /// written after.
    pub(super) fn list(&self, rel: &str) -> Result<Listing, Errno> {
        let folder = self.folder(rel)?;
        let device = rustix::fs::fstat(&folder)?.st_dev;
        let mut names = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name.to_owned());
            }
        }
        let deep = rel.split('/').count() >= depth_max(rel);
        let mut listing = Listing::default();
        for name in names {
            let Ok(text) = name.to_str() else {
                let why = "its name is not UTF-8: rename it".to_owned();
                let path = join(rel, &name.to_bytes().escape_ascii().to_string());
                listing.odd.push(Odd { path, why });
                continue;
            };
            let stat = match rustix::fs::statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => {
                    listing.odd.push(Odd { path: join(rel, text), why: error.to_string() });
                    listing.unseen.push(text.to_owned());
                    continue;
                }
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => listing.files.push((text.to_owned(), Seen::of(&stat))),
                FileType::Directory if deep => {
                    let why = format!("it is more than {DEPTH_MAX} folders deep");
                    listing.odd.push(Odd { path: join(rel, text), why });
                }
                FileType::Directory => {
                    if stat.st_dev != device {
                        listing.mounts.push(text.to_owned());
                    }
                    listing.folders.push(text.to_owned());
                }
                kind => {
                    let why = format!("it is no file: {}", kind_name(kind));
                    listing.odd.push(Odd { path: join(rel, text), why });
                }
            }
        }
        Ok(listing)
    }

    /// Makes a folder and those above it.
    pub(super) fn make_folder(&self, rel: &str) -> Result<(), Errno> {
        let mut made = String::new();
        for part in rel.split('/').filter(|part| !part.is_empty()) {
            let folder = self.folder(&made)?;
            match rustix::fs::mkdirat(&folder, part, FOLDER_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            made = join(&made, part);
        }
        Ok(())
    }

    /// Renames within the spool; never over anything.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let (to_folder, to_name) = self.parent(to)?;
        self.rename_out(from, &to_folder, to_name)
    }

    /// The same, to where it was before: its folder may be gone meanwhile.
    pub(super) fn rename_back(&self, from: &str, to: &str) -> Result<(), Errno> {
        if let Some((parent, _)) = to.rsplit_once('/') {
            self.make_folder(parent)?;
        }
        self.rename(from, to)
    }

    /// Renames into another folder of the same file system; never over anything.
    pub(super) fn rename_out(&self, from: &str, to: &OwnedFd, name: &str) -> Result<(), Errno> {
        let (from_folder, from_name) = self.parent(from)?;
        rename_new((&from_folder, from_name), (to, name))
    }

    /// Bytes that a copy may take in a folder of another file system; `None` when no copy is needed there, or nobody can tell.
    pub(super) fn room_for_copy(&self, to: &OwnedFd) -> Result<Option<u64>, Errno> {
        if rustix::fs::fstat(to)?.st_dev == rustix::fs::fstat(&self.fd)?.st_dev {
            return Ok(None);
        }
        let stat = rustix::fs::fstatvfs(to)?;
        // Root may take what is kept for it.
        let blocks =
            if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
        // Some file systems cannot tell.
        Ok((stat.f_blocks > 0).then(|| blocks.saturating_mul(stat.f_frsize)))
    }

    /// Removes a file.
    pub(super) fn remove(&self, rel: &str) -> Result<(), Errno> {
        let (folder, name) = self.parent(rel)?;
        rustix::fs::unlinkat(&folder, name, AtFlags::empty())
    }

    /// Writes a small file whole, over an older one.
    pub(super) fn write(&self, rel: &str, bytes: &[u8]) -> Result<(), Errno> {
        let (folder, name) = self.parent(rel)?;
        let new = format!("{name}.new");
        // What a producer has put there goes: a fifo would hold us up, and another's file that is linked there would be emptied.
        match rustix::fs::unlinkat(&folder, new.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = open_in(&folder, new.as_bytes(), flags, Mode::from_raw_mode(0o644))?;
        let written = write_all(&file, bytes)
            .and_then(|()| rustix::fs::renameat(&folder, new.as_str(), &folder, name));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&folder, new.as_str(), AtFlags::empty());
        }
        written
    }

    /// Bytes of the file system that we may use, and those of them that are free.
    pub(super) fn room(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::fstatvfs(&self.fd)?;
        let used = stat.f_blocks - stat.f_bfree;
        Ok(((used + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize))
    }
}

/// Writes it all; it is on the disk when this returns.
fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::write(file, bytes)?;
        bytes = &bytes[written..];
    }
    rustix::fs::fsync(file)
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a link is not followed",
        FileType::Fifo => "a fifo",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of no known kind",
    }
}

/// Folders that a path may have: in `.quarantine` one more than in the spool.
fn depth_max(rel: &str) -> usize {
    DEPTH_MAX + usize::from(rel.starts_with('.'))
}

/// A path below another; the empty one is the spool itself.
pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// What time it is: steadily, for what takes so long, and by the calendar, for the book.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since the spool began; never steps.
    pub steady: std::time::Duration,
    /// UTC.
    pub wall: Time,
}
