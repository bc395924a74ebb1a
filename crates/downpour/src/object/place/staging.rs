//! `OUT/.downpour`: where a receiver keeps what is not finished.
//!
//! ```text
//! lock       held while a receiver runs into this target
//! journal    which groups of which partial files are verified (see `journal`)
//! parts/     partial files
//! ```
//!
//! Space is reserved by one file without a name that is as large as what is still to come. It shrinks
//! as partial files grow, and vanishes with the process whatever happens to it. A file system in memory allocates by
//! clearing every page, which costs as much as writing it: there nothing is reserved, and a full one shows when it is.
//!
//! All of it is removed after success, and kept for the next attempt otherwise.

use super::PlaceError;
use super::beneath::{FOLDER_FLAGS, open_in};
use crate::object::scan::explain;
use crate::object::tree::STAGING_NAME;
use rustix::fs::{AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const LOCK: &[u8] = b"lock";
const JOURNAL: &[u8] = b"journal";
const PARTS: &[u8] = b"parts";
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// File systems in memory: tmpfs and ramfs, as `statfs` numbers them.
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// The reserve shrinks by at least this at a time, so that small files do not each cost a call.
const RELEASE_STEP: u64 = 32 << 20;

/// Why a target cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Another receiver runs into it.
    Locked(PathBuf),
    /// It cannot be made, opened or written.
    Target {
        /// The target.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => write!(
                f,
                "another receiver is running into {}: wait for it, or choose another --out",
                path.display()
            ),
            Self::Target { path, reason } => {
                write!(f, "cannot write to {}: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// An open, locked staging folder.
pub(crate) struct Staging {
    out: Arc<OwnedFd>,
    folder: OwnedFd,
    parts: OwnedFd,
    _lock: OwnedFd,
    reserve: Mutex<Reserve>,
    in_memory: bool,
    is_lane: bool,
}

#[derive(Default)]
struct Reserve {
    file: Option<OwnedFd>,
    /// Bytes that the file holds.
    left: u64,
    /// Bytes given back by the file and not yet used.
    free: u64,
}

impl Staging {
    /// Makes the target folder if need be, and locks it.
    pub(crate) fn open(out: &Path, lane: Option<&str>) -> Result<Self, OpenError> {
        let target = |reason: String| OpenError::Target { path: out.to_owned(), reason };
        DirBuilder::new().recursive(true).create(out).map_err(|error| target(error.to_string()))?;
        let flags = FOLDER_FLAGS | OFlags::CLOEXEC;
        let fd = rustix::fs::open(out, flags, Mode::empty()).map_err(|e| target(explain(e)))?;
        match Self::lock(&fd, lane) {
            Ok((folder, lock)) => {
                Self::with(fd, folder, lock, lane.is_some()).map_err(|e| target(explain(e)))
            }
            Err(Errno::WOULDBLOCK) => Err(OpenError::Locked(out.to_owned())),
            Err(Errno::PERM) => Err(target(
                "others may write to its folder .downpour, or own it: remove that folder".into(),
            )),
            Err(error) => Err(target(explain(error))),
        }
    }

    fn with(out: OwnedFd, folder: OwnedFd, lock: OwnedFd, is_lane: bool) -> Result<Self, Errno> {
        make_folder(&folder, PARTS)?;
        let parts = open_in(&folder, PARTS, FOLDER_FLAGS, Mode::empty())?;
        let reserve = Mutex::new(Reserve::default());
        let in_memory = IN_MEMORY.contains(&rustix::fs::fstatfs(&folder)?.f_type);
        Ok(Self { out: Arc::new(out), folder, parts, _lock: lock, reserve, in_memory, is_lane })
    }

    /// The staging folder and its lock.
    fn lock(out: &OwnedFd, lane: Option<&str>) -> Result<(OwnedFd, OwnedFd), Errno> {
        // A receiver that ends removes folder and lock: what we opened may be gone once we hold it.
        loop {
            make_folder(out, STAGING_NAME)?;
            let mut folder = match open_in(out, STAGING_NAME, FOLDER_FLAGS, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            if let Some(lane) = lane {
                make_folder(&folder, lane.as_bytes())?;
                folder = open_in(&folder, lane.as_bytes(), FOLDER_FLAGS, Mode::empty())?;
            }
            // Who can write there could swap what has been verified for what has not.
            let stat = rustix::fs::fstat(&folder)?;
            let ours = stat.st_uid == rustix::process::geteuid().as_raw();
            if !ours || stat.st_mode & 0o022 != 0 {
                return Err(Errno::PERM);
            }
            let flags = OFlags::RDWR | OFlags::CREATE;
            let lock = match open_in(&folder, LOCK, flags, PRIVATE_FILE) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            if rustix::fs::fstat(&lock)?.st_nlink > 0 {
                return Ok((folder, lock));
            }
        }
    }

    pub(crate) fn out(&self) -> &Arc<OwnedFd> {
        &self.out
    }

    pub(crate) fn parts(&self) -> &OwnedFd {
        &self.parts
    }

    /// The journal's file, made if need be.
    pub(crate) fn journal(&self) -> Result<OwnedFd, Errno> {
        open_in(&self.folder, JOURNAL, OFlags::RDWR | OFlags::CREATE, PRIVATE_FILE)
    }

    /// A partial file, opened if it is there.
    pub(crate) fn open_part(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        open_in(&self.parts, name, OFlags::RDWR, Mode::empty())
    }

    /// A new, empty partial file.
    pub(crate) fn create_part(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        open_in(&self.parts, name, flags, PRIVATE_FILE)
    }

    pub(crate) fn remove_part(&self, name: &[u8]) {
        // What stays is removed with the folder, or used by the next attempt.
        let _ = rustix::fs::unlinkat(&self.parts, name, AtFlags::empty());
    }

    /// Removes partial files that `keep` does not want.
    pub(crate) fn remove_parts(&self, keep: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
        for name in names(&self.parts)? {
            if !keep(&name) {
                rustix::fs::unlinkat(&self.parts, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Bytes that this user can still write to the target's file system.
    pub(crate) fn available(&self) -> Result<u64, Errno> {
        let fs = rustix::fs::fstatvfs(&*self.out)?;
        Ok(fs.f_bavail.saturating_mul(fs.f_frsize))
    }

    /// Allocates room for a file's bytes, where that costs less than writing them.
    pub(crate) fn allocate(&self, file: &OwnedFd, at: u64, len: u64) -> Result<(), Errno> {
        if self.in_memory {
            return Ok(());
        }
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len) {
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(error),
            // Where it is not supported only speed is lost.
            _ => Ok(()),
        }
    }

    /// Takes `len` bytes from the file system for what is to come.
    pub(crate) fn reserve(&self, len: u64) -> Result<(), PlaceError> {
        if len == 0 || self.in_memory {
            return Ok(());
        }
        let unnamed = rustix::fs::openat(
            &self.folder,
            ".",
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            PRIVATE_FILE,
        );
        let file = match unnamed {
            Ok(file) => file,
            Err(_) => {
                // No unnamed files here: make one, and take its name away.
                let named = self
                    .create_part(b"reserve")
                    .map_err(|error| PlaceError::of(error, "reserving space"))?;
                self.remove_part(b"reserve");
                named
            }
        };
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => {
                let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
                *reserve = Reserve { file: Some(file), left: len, free: 0 };
                Ok(())
            }
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                Err(PlaceError::of(error, "reserving space"))
            }
            // This file system cannot reserve: a full disk shows later, as clearly.
            Err(_) => Ok(()),
        }
    }

    /// Gives back `len` bytes of the reserve, just before they are written.
    pub(crate) fn release(&self, len: u64) {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.free < len {
            let step = (len - reserve.free).max(RELEASE_STEP).min(reserve.left);
            reserve.left -= step;
            reserve.free += step;
            if let Some(file) = &reserve.file {
                // If it cannot shrink, the write that follows tells what is wrong.
                let _ = rustix::fs::ftruncate(file, reserve.left);
            }
        }
        reserve.free = reserve.free.saturating_sub(len);
    }

    /// Gives all of the reserve back.
    pub(crate) fn release_all(&self) {
        *self.reserve.lock().unwrap_or_else(PoisonError::into_inner) = Reserve::default();
    }

    /// Removes everything: the session has succeeded. Of a lane only what is `ours`, and the journal when nothing is left
    /// that it speaks of.
    pub(crate) fn remove(&self, ours: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
        self.release_all();
        if self.is_lane {
            self.remove_parts(|name| !ours(name))?;
            if !names(&self.parts)?.is_empty() {
                return Ok(());
            }
            return match rustix::fs::unlinkat(&self.folder, JOURNAL, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                done => done,
            };
        }
        self.remove_parts(|_| false)?;
        rustix::fs::unlinkat(&self.folder, PARTS, AtFlags::REMOVEDIR)?;
        rustix::fs::unlinkat(&self.folder, JOURNAL, AtFlags::empty())
            .or_else(|error| if error == Errno::NOENT { Ok(()) } else { Err(error) })?;
        rustix::fs::unlinkat(&self.folder, LOCK, AtFlags::empty())?;
        // A folder that keeps its receipts keeps this one, too.
        rustix::fs::unlinkat(&*self.out, STAGING_NAME, AtFlags::REMOVEDIR)
            .or_else(|error| if error == Errno::NOTEMPTY { Ok(()) } else { Err(error) })
    }
}

fn make_folder(at: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::mkdirat(at.as_fd(), name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn names(folder: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
