//! A target folder and its `.downpour`, claimed: of all receivers into a target, or into a lane of it, one at a time.
//!
//! 1. `OUT/.downpour` is made if need be, and in it the folder of a lane, for those who share a target.
//! 2. The file `lock` in it is locked for as long as the process lives, and no longer.
//! 3. Who only asks whether it is locked makes nothing. A target of ours that we may not write, as a read-only folder is whose
//!    contents come again, is made writable until the end; one that others share (lanes) is not.
//! 4. Who ends and leaves nothing removes lock and folders. So what was opened may be gone once it is locked: then it is
//!    opened again.

use super::beneath::{FOLDER_FLAGS, open_in};
use crate::object::scan::explain;
use crate::object::tree::STAGING_NAME;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const LOCK: &[u8] = b"lock";
/// What only this user may read.
pub(super) const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

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

impl OpenError {
    /// The system refuses something in the target at `path`.
    pub(crate) fn of(path: &Path, error: Errno) -> Self {
        Self::Target { path: path.to_owned(), reason: explain(error) }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => {
                write!(f, "another receiver is running into {}", path.display())
            }
            Self::Target { path, reason } => {
                write!(f, "cannot write to {}: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// A target that is ours until this is dropped.
pub(crate) struct Claim {
    out: Arc<OwnedFd>,
    folder: Arc<OwnedFd>,
    _lock: OwnedFd,
    lane: Option<String>,
    writable: Writable,
}

impl Claim {
    /// Makes the target folder if need be, and locks it. `lane` is a plain name.
    pub(crate) fn open(out: &Path, lane: Option<&str>) -> Result<Self, OpenError> {
        let target = |reason: String| OpenError::Target { path: out.to_owned(), reason };
        DirBuilder::new().recursive(true).create(out).map_err(|error| target(error.to_string()))?;
        let flags = FOLDER_FLAGS | OFlags::CLOEXEC;
        let fd = rustix::fs::open(out, flags, Mode::empty()).map_err(|e| OpenError::of(out, e))?;
        let fd = Arc::new(fd);
        let mut writable = Writable { folder: fd.clone(), mode: Mutex::default() };
        if lane.is_none() {
            writable.make().map_err(|error| OpenError::of(out, error))?;
        }
        match Self::lock(&fd, lane) {
            Ok((folder, lock)) => {
                let (folder, lane) = (Arc::new(folder), lane.map(str::to_owned));
                Ok(Self { out: fd, folder, _lock: lock, lane, writable })
            }
            Err(Errno::WOULDBLOCK) => Err(OpenError::Locked(out.to_owned())),
            Err(Errno::PERM) => Err(target(
                "others may write to its folder .downpour, or own it: remove that folder".into(),
            )),
            Err(error) => Err(OpenError::of(out, error)),
        }
    }

    /// Whether another receiver has it now.
    pub(crate) fn is_taken(out: &Path, lane: Option<&str>) -> bool {
        let folder = out.join(OsStr::from_bytes(STAGING_NAME)).join(lane.unwrap_or_default());
        is_locked(&folder.join(OsStr::from_bytes(LOCK)))
    }

    /// The staging folder and its lock.
    fn lock(out: &OwnedFd, lane: Option<&str>) -> Result<(OwnedFd, OwnedFd), Errno> {
        loop {
            make_folder(out, STAGING_NAME)?;
            match Self::lock_in(out, lane) {
                Err(Errno::NOENT) => {} // Another one's, which has ended meanwhile.
                Ok((_, lock)) if rustix::fs::fstat(&lock)?.st_nlink == 0 => {}
                done => return done,
            }
        }
    }

    /// The same where `.downpour` was a moment ago.
    fn lock_in(out: &OwnedFd, lane: Option<&str>) -> Result<(OwnedFd, OwnedFd), Errno> {
        let mut folder = open_in(out, STAGING_NAME, FOLDER_FLAGS, Mode::empty())?;
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
        let lock = open_in(&folder, LOCK, OFlags::RDWR | OFlags::CREATE, PRIVATE_FILE)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok((folder, lock))
    }

    /// The target.
    pub(crate) fn out(&self) -> &Arc<OwnedFd> {
        &self.out
    }

    /// Where what is not finished goes: `OUT/.downpour`, or the lane's folder in it.
    pub(crate) fn folder(&self) -> &Arc<OwnedFd> {
        &self.folder
    }

    pub(crate) const fn is_lane(&self) -> bool {
        self.lane.is_some()
    }

    /// Removes the lock, and the folders that hold nothing else. The last that is done with a claim: another receiver can
    /// have the target from then on.
    pub(crate) fn remove(&self) -> Result<(), Errno> {
        let removed = self.remove_all();
        self.writable.end();
        removed
    }

    fn remove_all(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.folder, LOCK, AtFlags::empty())?;
        if let Some(lane) = &self.lane {
            self.remove_empty(&[STAGING_NAME, lane.as_bytes()].join(&b'/'))?;
        }
        self.remove_empty(STAGING_NAME)
    }

    /// A folder that keeps something stays: receipts, others' lanes.
    fn remove_empty(&self, path: &[u8]) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&*self.out, path, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => Ok(()),
            done => done,
        }
    }
}

/// A folder of ours that we may write for a time.
struct Writable {
    folder: Arc<OwnedFd>,
    /// The one that it had, where that had to be changed.
    mode: Mutex<Option<Mode>>,
}

impl Writable {
    fn make(&mut self) -> Result<(), Errno> {
        let (stat, user) = (rustix::fs::fstat(&self.folder)?, rustix::process::geteuid());
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        let may = user.is_root() || mode.contains(Mode::WUSR | Mode::XUSR);
        if !may && stat.st_uid == user.as_raw() {
            rustix::fs::fchmod(&self.folder, mode | Mode::RWXU)?;
            self.mode = Mutex::new(Some(mode));
        }
        Ok(())
    }

    fn end(&self) {
        if let Some(mode) = self.mode.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = rustix::fs::fchmod(&self.folder, mode);
        }
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether another receiver has this file or device now. What cannot be opened shows when it is used.
pub(crate) fn is_locked(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    // Who asks at the same time has it not.
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    locked == Err(Errno::WOULDBLOCK)
}

/// Makes a folder that only this user may use, unless it is there.
pub(super) fn make_folder(at: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::mkdirat(at.as_fd(), name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}
