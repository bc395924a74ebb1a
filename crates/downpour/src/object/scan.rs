//! The sender's walk: paths on this machine become a tree, and a note of where each file lies.
//!
//! Paths are taken as rsync takes them: `a/big` becomes `big`, `a/tree` becomes `tree`; `a/tree/`, `.`
//! and `..` give the contents. The order does not depend on the disk: names are sorted by their bytes.
//! Every folder is opened relative to its parent and no link is followed, so that nobody can move the
//! walk elsewhere. Nothing is read here but names, metadata and the places of holes.
//!
//! When a folder's contents are sent, the target folder gets that folder's metadata, those of the first if
//! there are several, as `rsync -a` does.
//!
//! Deliberately absent: filters.

use super::limits::{FILE_EXTENTS_MAX, PATH_LEN_MAX, PROBLEMS_LISTED_MAX};
use super::tree::{
    EntryId, Extents, Meta, Mtime, NewEntry, NewKind, STAGING_NAME, Tree, TreeBuilder, TreeError,
    Xattr, printable,
};
use super::xattr;
use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod items;
pub use items::{Item, ItemScan, Skipped, check_item_name};

const OWN_FDS: &str = "/proc/self/fd";

/// What a walk should do.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Also take extended attributes, ACLs and capabilities; what has some that cannot be read, or that are too many or too
    /// long, cannot be read itself then. Default: no. Costs two more calls a file.
    pub xattrs: bool,
    /// Leave out what cannot be read, with a notice, instead of refusing to start. Default: no.
    pub skip_unreadable: bool,
}

/// Something that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Path on this machine.
    pub path: PathBuf,
    /// What it is, or what went wrong.
    pub reason: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", printable(self.path.as_os_str().as_bytes()), self.reason)
    }
}

/// Why there is nothing to send.
#[derive(Debug)]
#[non_exhaustive]
pub enum ScanError {
    /// Paths that are missing or cannot be read.
    Unreadable {
        /// The first of them.
        problems: Vec<Notice>,
        /// How many there are.
        count: usize,
    },
    /// Two paths would be placed at the same name.
    Duplicate {
        /// That name.
        name: String,
        /// Where they come from.
        paths: [PathBuf; 2],
    },
    /// A limit of the format.
    Tree(TreeError),
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { problems, count } => {
                write!(f, "{count} of the paths to send cannot be read:")?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))?;
                match count - problems.len() {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
            Self::Duplicate { name, paths } => write!(
                f,
                "{} and {} would both be placed at {name}",
                paths[0].display(),
                paths[1].display()
            ),
            Self::Tree(error) => write!(f, "cannot be sent: {error}"),
        }
    }
}

impl std::error::Error for ScanError {}

/// What a file looked like, to notice when it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) ctime: (i64, u32),
}

impl Fingerprint {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }

    /// That of a place, unless nothing is there.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        rustix::fs::lstat(path).ok().map(|stat| Self::of(&stat))
    }
}

/// A tree, and where its files lie.
#[derive(Debug)]
pub struct Scan {
    tree: Tree,
    notices: Vec<Notice>,
    pub(super) origin: Origin,
}

/// Where the entries of a tree lie on this machine.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// First entry of each path given, and the folder it lies in.
    roots: Vec<(u32, PathBuf)>,
    /// Of entries that lie elsewhere than their name below a root says.
    elsewhere: HashMap<u32, PathBuf>,
    /// One for each entry.
    pub(super) fingerprints: Vec<Fingerprint>,
}

impl Origin {
    /// Path of an entry on this machine.
    pub(super) fn path(&self, tree: &Tree, id: EntryId) -> PathBuf {
        if let Some(path) = self.elsewhere.get(&id.0) {
            return path.clone();
        }
        let root = self.roots.partition_point(|(first, _)| *first <= id.0);
        let folder = root.checked_sub(1).map(|i| self.roots[i].1.clone()).unwrap_or_default();
        folder.join(OsStr::from_bytes(&tree.path(id)))
    }
}

impl Scan {
    /// Walks `paths`.
    pub fn new(paths: &[PathBuf], options: &ScanOptions) -> Result<Self, ScanError> {
        let mut walk = Walk::new(options);
        let tops = walk.tops(paths)?;
        for top in tops {
            let first = walk.builder.tree().len();
            walk.origin.roots.push((first, top.folder.clone()));
            walk.entry(CWD, &top.at, &top.name, 0, &top.at)?;
        }
        walk.finish()
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// What was left out.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    pub(super) fn into_parts(self) -> (Tree, Origin) {
        (self.tree, self.origin)
    }

    /// A tree of one entry, called `name`, for the bytes of a pipe.
    pub(super) fn stream_tree(name: &[u8], mtime: Mtime) -> Result<Tree, TreeError> {
        let mut builder = TreeBuilder::new();
        let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime };
        let kind = NewKind::Stream;
        builder.push(NewEntry { depth: 0, name, kind, meta, xattrs: Vec::new() })?;
        Ok(builder.finish())
    }
}

/// What a path is called at the top of the tree; `None`: what is in it stands there.
pub(crate) fn name_at_top(path: &Path) -> Option<&[u8]> {
    let name = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next()?;
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}

/// A path that becomes an entry at the top of the tree.
struct Top {
    name: Vec<u8>,
    folder: PathBuf,
    at: PathBuf,
}

struct Walk<'a> {
    builder: TreeBuilder,
    origin: Origin,
    notices: Vec<Notice>,
    problems: Vec<Notice>,
    problem_count: usize,
    /// Files with more than one name: the entry of the first.
    links: HashMap<(u64, u64), u32>,
    /// Whether `/proc` leads to what a descriptor has open: in a chroot it may not be mounted.
    has_proc: bool,
    options: &'a ScanOptions,
}

impl<'a> Walk<'a> {
    fn new(options: &'a ScanOptions) -> Self {
        let mut builder = TreeBuilder::new();
        if options.xattrs {
            builder.set_has_xattrs();
        }
        Self {
            builder,
            origin: Origin::default(),
            notices: Vec::new(),
            problems: Vec::new(),
            problem_count: 0,
            links: HashMap::new(),
            has_proc: options.xattrs && Path::new(OWN_FDS).exists(),
            options,
        }
    }

    fn finish(self) -> Result<Scan, ScanError> {
        if self.problem_count > 0 {
            return Err(ScanError::Unreadable {
                problems: self.problems,
                count: self.problem_count,
            });
        }
        Ok(Scan { tree: self.builder.finish(), notices: self.notices, origin: self.origin })
    }

    fn problem(&mut self, path: &Path, reason: impl Into<String>) {
        let notice = Notice { path: path.to_owned(), reason: reason.into() };
        if self.options.skip_unreadable {
            return self.notices.push(notice);
        }
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(notice);
        }
    }

    /// All entries at the top, sorted, none twice.
    fn tops(&mut self, paths: &[PathBuf]) -> Result<Vec<Top>, ScanError> {
        let mut tops: Vec<Top> = Vec::new();
        for path in paths {
            if let Some(name) = name_at_top(path) {
                if let Some(what) = special_at(path) {
                    self.problem(path, format!("{what}: send what comes out of it by `send - <`"));
                    continue;
                }
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                tops.push(Top { name: name.to_vec(), folder, at: path.clone() });
                continue;
            }
            let listed = open_folder(CWD, path, OFlags::empty())
                .and_then(|fd| Ok((rustix::fs::fstat(&fd)?, names_in(&fd)?, fd)));
            let listed = listed.map_err(explain).and_then(|(stat, names, fd)| {
                Ok((stat, names, self.xattrs(fd.as_fd(), Path::new("."), path)?))
            });
            match listed {
                Err(reason) => self.problem(path, reason),
                Ok((stat, names, xattrs)) => {
                    if self.builder.tree().root().is_none() {
                        let meta = self.meta(path, &stat, false);
                        self.builder.set_root(meta, &xattrs).map_err(ScanError::Tree)?;
                    }
                    tops.extend(names.into_iter().map(|name| {
                        let at = path.join(OsStr::from_bytes(&name));
                        Top { name, folder: path.clone(), at }
                    }));
                }
            }
        }
        tops.sort_by(|a, b| a.name.cmp(&b.name));
        tops.retain(|top| {
            let ours = top.name == STAGING_NAME;
            if ours {
                let reason = "Downpour's own folder, left out".into();
                self.notices.push(Notice { path: top.at.clone(), reason });
            }
            !ours
        });
        if let Some(pair) = tops.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let paths = [pair[0].at.clone(), pair[1].at.clone()];
            return Err(ScanError::Duplicate { name: printable(&pair[0].name), paths });
        }
        Ok(tops)
    }

    /// Adds one entry, and all below. `at` is relative to `folder`; `path` is for messages.
    fn entry(
        &mut self,
        folder: BorrowedFd<'_>,
        at: &Path,
        name: &[u8],
        depth: u32,
        path: &Path,
    ) -> Result<(), ScanError> {
        let stat = match rustix::fs::statat(folder, at, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => {
                self.problem(path, explain(error));
                return Ok(());
            }
        };
        let found = Found { folder, at, name, depth, path, stat };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.folder(&found),
            FileType::RegularFile => self.file(&found),
            FileType::Symlink => self.symlink(&found),
            other => {
                let what = special(other).unwrap_or("of an unknown kind");
                let reason = format!("{what}, left out");
                self.notices.push(Notice { path: path.to_owned(), reason });
                Ok(())
            }
        }
    }

    fn folder(&mut self, found: &Found<'_>) -> Result<(), ScanError> {
        let opened = open_folder(found.folder, found.at, OFlags::NOFOLLOW)
            .and_then(|fd| names_in(&fd).map(|names| (fd, names)));
        let (fd, names) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.problem(found.path, explain(error));
                return Ok(());
            }
        };
        if !self.push(found, NewKind::Folder)? {
            return Ok(());
        }
        for name in names {
            let at = Path::new(OsStr::from_bytes(&name));
            self.entry(fd.as_fd(), at, &name, found.depth + 1, &found.path.join(at))?;
        }
        Ok(())
    }

    fn file(&mut self, found: &Found<'_>) -> Result<(), ScanError> {
        let key = (found.stat.st_dev, found.stat.st_ino);
        let first = self.links.get(&key).filter(|_| found.stat.st_nlink > 1);
        if let Some(to) = first {
            return self.push(found, NewKind::HardLink { to: *to }).map(drop);
        }
        if let Err(error) = readable(found.folder, found.at) {
            self.problem(found.path, explain(error));
            return Ok(());
        }
        // Later it is opened by its whole path.
        if found.path.as_os_str().len() > PATH_LEN_MAX {
            let reason =
                "its path is too long from here: go into one of its folders, and send from there";
            self.problem(found.path, reason);
            return Ok(());
        }
        let id = self.builder.tree().len();
        self.plain_file(found)?;
        if found.stat.st_nlink > 1 && self.builder.tree().len() > id {
            self.links.insert(key, id);
        }
        Ok(())
    }

    /// A file by itself, whatever other names it has.
    fn plain_file(&mut self, found: &Found<'_>) -> Result<(), ScanError> {
        let size = found.stat.st_size as u64;
        let mut extents = None;
        if (found.stat.st_blocks as u64).saturating_mul(512) < size {
            match rustix::fs::openat(found.folder, found.at, file_flags(), Mode::empty()) {
                Ok(fd) => extents = data_extents(&fd, size),
                Err(error) => {
                    self.problem(found.path, explain(error));
                    return Ok(());
                }
            }
        }
        let extents = extents.as_deref().map_or(Extents::Dense, Extents::Sparse);
        self.push(found, NewKind::File { size, extents }).map(drop)
    }

    fn symlink(&mut self, found: &Found<'_>) -> Result<(), ScanError> {
        match rustix::fs::readlinkat(found.folder, found.at, Vec::new()) {
            Ok(text) => self.push(found, NewKind::Symlink { text: text.as_bytes() }).map(drop),
            Err(error) => {
                self.problem(found.path, explain(error));
                Ok(())
            }
        }
    }

    /// Tells whether it did: it is a problem when the attributes cannot be read, as an entry without any has none, and its
    /// receivers take away theirs.
    fn push(&mut self, found: &Found<'_>, kind: NewKind<'_>) -> Result<bool, ScanError> {
        let hard = matches!(kind, NewKind::HardLink { .. });
        let link = hard || matches!(kind, NewKind::Symlink { .. });
        let meta = match hard {
            true => Meta::default(),
            false => self.meta(found.path, &found.stat, link),
        };
        let xattrs = match hard {
            true => Vec::new(),
            false => match self.xattrs(found.folder, found.at, found.path) {
                Ok(xattrs) => xattrs,
                Err(reason) => {
                    self.problem(found.path, reason);
                    return Ok(false);
                }
            },
        };
        let entry = NewEntry { depth: found.depth, name: found.name, kind, meta, xattrs };
        self.builder.push(entry).map_err(ScanError::Tree)?;
        self.origin.fingerprints.push(Fingerprint::of(&found.stat));
        Ok(true)
    }

    /// With the mode as it is without an ACL, where those are not told.
    fn meta(&self, path: &Path, stat: &Stat, link: bool) -> Meta {
        let mode = (stat.st_mode & 0o7777) as u16;
        let mode = match link {
            true => 0,
            false if self.options.xattrs => mode,
            false => xattr::closed_mode_of(path, mode),
        };
        Meta { mode, uid: stat.st_uid, gid: stat.st_gid, mtime: mtime(stat) }
    }

    /// Of `at` in `folder`, which is `path` from here.
    fn xattrs(&self, folder: BorrowedFd<'_>, at: &Path, path: &Path) -> Result<Vec<Xattr>, String> {
        if !self.options.xattrs {
            return Ok(Vec::new());
        }
        let mut path = path.to_owned();
        if self.has_proc && folder.as_raw_fd() != CWD.as_raw_fd() {
            // No call takes a folder that is open. This leads into it, wherever it is by now.
            path = Path::new(OWN_FDS).join(folder.as_raw_fd().to_string()).join(at);
        }
        xattr::read(&path).map_err(|error| format!("extended attributes: {error}"))
    }
}

/// What it is, if it is nothing that can be sent as it lies.
fn special(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::Fifo => Some("a fifo"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice => Some("a character device"),
        FileType::BlockDevice => Some("a block device"),
        _ => None,
    }
}

/// The same of a path that somebody named: in a folder it is left out, but who names it means it.
fn special_at(path: &Path) -> Option<&'static str> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    special(FileType::from_raw_mode(stat.st_mode))
}

struct Found<'a> {
    folder: BorrowedFd<'a>,
    /// Relative to `folder`.
    at: &'a Path,
    name: &'a [u8],
    depth: u32,
    /// For messages.
    path: &'a Path,
    stat: Stat,
}

/// Time of last modification.
pub(crate) fn mtime(stat: &Stat) -> Mtime {
    Mtime { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
}

/// Whether a file may be read.
fn readable(folder: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    rustix::fs::accessat(folder, path, Access::READ_OK, AtFlags::EACCESS)
}

/// How a file is opened for reading: never through a link, never waiting for a fifo's other end.
pub(crate) fn file_flags() -> OFlags {
    OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC
}

/// Opens a file for reading; `None`: something else lies there.
pub(crate) fn open_file(path: &Path) -> io::Result<Option<File>> {
    let file = match rustix::fs::open(path, file_flags(), Mode::empty()) {
        Ok(fd) => File::from(fd),
        // A link, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

fn open_folder(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// The names in a folder, sorted.
pub(super) fn names_in(fd: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Where a file holds data; `None` when it has no holes or the file system cannot tell. Past
/// [`FILE_EXTENTS_MAX`] pieces the rest counts as data.
fn data_extents(fd: &OwnedFd, size: u64) -> Option<Vec<(u64, u64)>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let mut end = rustix::fs::seek(fd, SeekFrom::Hole(start)).ok()?.min(size);
        if extents.len() + 1 == FILE_EXTENTS_MAX {
            end = size;
        }
        if end <= start {
            return None; // it shrank under us: reading will notice
        }
        add_extent(&mut extents, start, end);
        at = end;
    }
    if extents == [(0, size)] { None } else { Some(extents) }
}

/// Adds data from `start` up to `end`. What was a hole when its start was asked for may be data by now: then they are one extent.
fn add_extent(extents: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match extents.last_mut() {
        Some((from, len)) if *from + *len == start => *len = end - *from,
        _ => extents.push((start, end - start)),
    }
}

/// An error of the operating system, with what to do where that is not plain.
pub(crate) fn explain(error: Errno) -> String {
    match error {
        Errno::NOENT => "no such file or folder".into(),
        Errno::ACCESS | Errno::PERM => "permission denied".into(),
        Errno::MFILE => "too many open files: raise the limit (ulimit -n)".into(),
        Errno::ROFS => {
            "read-only file system: mount it for writing (dmesg may tell why it is not)".into()
        }
        Errno::NOTDIR => "not a folder (without the closing '/' it can be sent as a file)".into(),
        other => std::io::Error::from(other).to_string(),
    }
}

#[cfg(test)]
mod tests;
