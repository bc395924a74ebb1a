//! A target folder and its `.downpour`, claimed: of all receivers into a target, or into a lane of it, one at a time.
//!
//! 1. `OUT/.downpour` is made if need be, and in it the folder of a lane, for those who share a target.
//! 2. The file `lock` in it is locked for as long as the process lives, and no longer.
//! 3. Who only asks whether it is locked makes nothing. A target of ours that we may not write, as a read-only folder is whose
//!    contents come again, is made writable until the end; one that others share (lanes) is not. Its own mode is kept in the
//!    file `mode`, so that whoever has the lock sets it back: also after one that was killed, or that came at the same time.
//!    Who comes in the moment in which another one ends may find it read-only, and has to come again.
//! 4. Whoever has the lock removes products that were not delivered: nobody goes on with them.
//! 5. Who ends and leaves nothing removes lock and folders. So what was opened may be gone once it is locked: then it is
//!    opened again. On file systems whose server keeps what is open under another name (FUSE, NFS) the folders are empty only once
//!    all is closed: so they are removed once more at the very end.

use super::beneath::{FOLDER_FLAGS, open_in};
use crate::object::disk::write_all_at;
use crate::object::scan::explain;
use crate::object::tree::STAGING_NAME;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK: &[u8] = b"lock";
const MODE: &[u8] = b"mode";
/// What is compared of modes: of the rest the system takes some away by itself.
const PERMISSIONS: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);
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
    /// There is no room in it.
    Full {
        /// The target.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

impl OpenError {
    /// The system refuses something in the target at `path`.
    pub(crate) fn of(path: &Path, error: Errno) -> Self {
        let (path, reason) = (path.to_owned(), explain(error));
        match error {
            Errno::NOSPC | Errno::DQUOT => Self::Full { path, reason },
            _ => Self::Target { path, reason },
        }
    }

    /// The same, in the error's own words where there are no better ones.
    pub(crate) fn of_io(path: &Path, error: &std::io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::ROFS)) => Self::of(path, errno),
            _ => Self::Target { path: path.to_owned(), reason: error.to_string() },
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => {
                write!(f, "another receiver is running into {}", path.display())
            }
            Self::Target { path, reason } | Self::Full { path, reason } => {
                write!(f, "cannot write to {}: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// A target that is ours until this is dropped.
pub(crate) struct Claim {
    folder: Arc<OwnedFd>,
    lock: OwnedFd,
    // Goes when the lock is closed.
    folders: Folders,
}

/// The folders that a claim has made.
struct Folders {
    out: Arc<OwnedFd>,
    lane: Option<String>,
}

impl Folders {
    fn remove(&self) -> Result<(), Errno> {
        if let Some(lane) = &self.lane {
            self.remove_empty(&[STAGING_NAME, lane.as_bytes()].join(&b'/'))?;
        }
        self.remove_empty(STAGING_NAME)
    }

    /// A folder that keeps something stays: receipts, others' lanes, or the lock of a claim that was not removed.
    fn remove_empty(&self, path: &[u8]) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&*self.out, path, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => Ok(()),
            done => done,
        }
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

impl Claim {
    /// How the files of products that are not finished begin.
    pub(crate) const STAGED: &str = "product-";

    /// Makes the target folder if need be, and locks it. `lane` is a plain name.
    pub(crate) fn open(out: &Path, lane: Option<&str>) -> Result<Self, OpenError> {
        let target = |reason: String| OpenError::Target { path: out.to_owned(), reason };
        let made = DirBuilder::new().recursive(true).create(out);
        made.map_err(|error| OpenError::of_io(out, &error))?;
        let flags = FOLDER_FLAGS | OFlags::CLOEXEC;
        let fd = rustix::fs::open(out, flags, Mode::empty()).map_err(|e| OpenError::of(out, e))?;
        let fd = Arc::new(fd);
        let mode = match lane {
            None => make_writable(&fd).map_err(|error| OpenError::of(out, error))?,
            Some(_) => None,
        };
        let error = match Self::lock(&fd, lane, mode) {
            Ok((folder, lock)) => {
                let folders = Folders { out: fd, lane: lane.map(str::to_owned) };
                let claim = Self { folder: Arc::new(folder), lock, folders };
                claim.sweep().map_err(|error| OpenError::of(out, error))?;
                return Ok(claim);
            }
            // Who has it may need it writable, and sets it back.
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked(out.to_owned())),
            Err(error) => error,
        };
        if !Self::is_taken(out, lane) {
            set_mode(&fd, mode);
        }
        Err(match error {
            Errno::PERM => target(
                "others may write to its folder .downpour, or own it: give it to the user who receives, \
                 with mode 0700; a file system that gives everybody all rights is to be mounted without (umask=077)"
                    .into(),
            ),
            error => OpenError::of(out, error),
        })
    }

    /// Whether another receiver has it now.
    pub(crate) fn is_taken(out: &Path, lane: Option<&str>) -> bool {
        let folder = out.join(OsStr::from_bytes(STAGING_NAME)).join(lane.unwrap_or_default());
        is_locked(&folder.join(OsStr::from_bytes(LOCK)))
    }

    /// The staging folder and its lock. `mode` is the target's own, if that was changed.
    fn lock(
        out: &OwnedFd,
        lane: Option<&str>,
        mode: Option<Mode>,
    ) -> Result<(OwnedFd, OwnedFd), Errno> {
        loop {
            make_folder(out, STAGING_NAME)?;
            match Self::lock_in(out, lane, mode) {
                Err(Errno::NOENT) => {} // Another one's, which has ended meanwhile.
                Ok((_, lock)) if rustix::fs::fstat(&lock)?.st_nlink == 0 => {}
                done => return done,
            }
        }
    }

    /// The same where `.downpour` was a moment ago.
    fn lock_in(
        out: &OwnedFd,
        lane: Option<&str>,
        mode: Option<Mode>,
    ) -> Result<(OwnedFd, OwnedFd), Errno> {
        let mut folder = open_own(out, STAGING_NAME)?;
        if let Some(lane) = lane {
            make_folder(&folder, lane.as_bytes())?;
            folder = open_own(&folder, lane.as_bytes())?;
        }
        keep_mode(&folder, mode)?;
        let lock = open_in(&folder, LOCK, OFlags::RDWR | OFlags::CREATE, PRIVATE_FILE)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        if lane.is_none() {
            // Who had it may have set it back since we looked.
            keep_mode(&folder, make_writable(out)?)?;
        }
        Ok((folder, lock))
    }

    /// The target.
    pub(crate) fn out(&self) -> &Arc<OwnedFd> {
        &self.folders.out
    }

    /// Where what is not finished goes: `OUT/.downpour`, or the lane's folder in it.
    pub(crate) fn folder(&self) -> &Arc<OwnedFd> {
        &self.folder
    }

    /// Whether a name in a target leads to `.downpour`: others do where the file system does not tell case apart.
    pub(crate) fn is_own(out: &OwnedFd, name: &[u8]) -> bool {
        let at = |name: &[u8]| {
            let stat = rustix::fs::statat(out, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.map(|stat| (stat.st_dev, stat.st_ino))
        };
        at(STAGING_NAME).is_ok_and(|own| at(name) == Ok(own))
    }

    /// Removes products that were not delivered.
    pub(crate) fn sweep(&self) -> Result<(), Errno> {
        for left in Dir::read_from(&self.folder)?.flatten() {
            if left.file_name().to_bytes().starts_with(Self::STAGED.as_bytes()) {
                let _ = rustix::fs::unlinkat(&self.folder, left.file_name(), AtFlags::empty());
            }
        }
        Ok(())
    }

    pub(crate) const fn is_lane(&self) -> bool {
        self.folders.lane.is_some()
    }

    /// Removes the lock, and the folders that hold nothing else. The last that is done with a claim: another receiver can
    /// have the target from then on.
    pub(crate) fn remove(&self) -> Result<(), Errno> {
        let mode = self.take_mode();
        let removed = self.remove_all();
        set_mode(self.out(), mode);
        removed
    }

    /// A target that was made writable gets its own mode back.
    pub(crate) fn set_back(&self) {
        set_mode(self.out(), self.take_mode());
    }

    /// The target's own mode, if it was made writable and nobody has given it another one since.
    fn take_mode(&self) -> Option<Mode> {
        if rustix::fs::fstat(&self.lock).ok()?.st_nlink == 0 {
            return None; // It was removed: that may be another one's by now.
        }
        let mut text = String::new();
        let kept = open_in(&self.folder, MODE, OFlags::RDONLY, Mode::empty()).ok()?;
        File::from(kept).take(16).read_to_string(&mut text).ok()?;
        rustix::fs::unlinkat(&self.folder, MODE, AtFlags::empty()).ok()?;
        let mode = Mode::from_raw_mode(u32::from_str_radix(&text, 8).ok()?);
        let now = Mode::from_raw_mode(rustix::fs::fstat(self.out()).ok()?.st_mode);
        ((mode | Mode::RWXU) & PERMISSIONS == now & PERMISSIONS).then_some(mode)
    }

    fn remove_all(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.folder, LOCK, AtFlags::empty())?;
        self.folders.remove()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.set_back();
        unlock(&self.lock);
    }
}

/// Lets go of a lock now. By closing it alone a program that was started meanwhile would hold it until it runs.
pub(crate) fn unlock(file: &OwnedFd) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Makes a folder of ours one that we may write. Returns the mode that it had, where that had to be changed.
fn make_writable(folder: &OwnedFd) -> Result<Option<Mode>, Errno> {
    let (stat, user) = (rustix::fs::fstat(folder)?, rustix::process::geteuid());
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let may = user.is_root() || mode.contains(Mode::WUSR | Mode::XUSR);
    if may || stat.st_uid != user.as_raw() {
        return Ok(None);
    }
    rustix::fs::fchmod(folder, mode | Mode::RWXU)?;
    Ok(Some(mode))
}

/// Writes down a target's own mode, if that was changed.
fn keep_mode(folder: &OwnedFd, mode: Option<Mode>) -> Result<(), Errno> {
    let Some(mode) = mode else { return Ok(()) };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
    let kept = open_in(folder, MODE, flags, PRIVATE_FILE)?;
    write_all_at(&kept, format!("{:o}", mode.as_raw_mode()).as_bytes(), 0)
}

fn set_mode(folder: &OwnedFd, mode: Option<Mode>) {
    if let Some(mode) = mode {
        let _ = rustix::fs::fchmod(folder, mode);
    }
}

/// Whether another receiver has this file or device now. What cannot be opened shows when it is used.
pub(crate) fn is_locked(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    // Who asks at the same time has it not.
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    unlock(&file);
    locked == Err(Errno::WOULDBLOCK)
}

/// Makes a folder that only this user may use, unless it is there.
pub(crate) fn make_folder(at: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::mkdirat(at.as_fd(), name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Opens such a folder. Who else can write there could swap what has been verified for what has not.
fn open_own(at: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let folder = open_in(at, name, FOLDER_FLAGS, Mode::empty())?;
    let stat = rustix::fs::fstat(&folder)?;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if is_ours && stat.st_mode & 0o022 == 0 { Ok(folder) } else { Err(Errno::PERM) }
}

#[cfg(test)]
mod tests {
    use super::{Claim, OpenError};
    use rustix::fs::{FlockOperation, Uid};
    use rustix::io::Errno;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::thread;

    #[test]
    fn a_target_is_free_at_once_though_a_program_that_was_just_started_has_its_lock_open() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::open(dir.path(), None).unwrap();
        let _of_child = claim.lock.try_clone().unwrap();
        drop(claim);
        assert!(!Claim::is_taken(dir.path(), None));
        assert!(Claim::open(dir.path(), None).is_ok());
    }

    #[test]
    fn what_keeps_a_name_for_as_long_as_it_is_open_leaves_no_folder_behind() {
        for lane in [None, Some("lane-0")] {
            let dir = tempfile::tempdir().unwrap();
            let own = dir.path().join(".downpour");
            let claim = Claim::open(dir.path(), lane).unwrap();
            let hidden = own.join(lane.unwrap_or_default()).join(".fuse_hidden01");
            fs::write(&hidden, "").unwrap();
            claim.remove().unwrap();
            assert!(own.exists());
            fs::remove_file(&hidden).unwrap();
            drop(claim);
            assert!(!own.exists());
            // Of a claim that failed all is kept.
            drop(Claim::open(dir.path(), lane).unwrap());
            assert!(own.join(lane.unwrap_or_default()).join("lock").exists());
        }
    }

    #[test]
    fn a_target_without_room_is_told_from_one_without_rights() {
        let of = |error| OpenError::of(std::path::Path::new("out"), error);
        for full in [Errno::NOSPC, Errno::DQUOT] {
            assert!(matches!(of(full), OpenError::Full { .. }));
        }
        let text = of(Errno::DQUOT).to_string();
        assert!(text.starts_with("cannot write to out: ") && text.contains("quota"), "{text}");
        assert!(matches!(of(Errno::ACCESS), OpenError::Target { .. }));
    }

    #[test]
    fn where_others_may_write_to_our_folder_no_lane_is_made_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".downpour");
        fs::create_dir(&own).unwrap();
        let open = |mode| {
            fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
            Claim::open(dir.path(), Some("lane-0")).map(drop).map_err(|error| error.to_string())
        };
        for mode in [0o777, 0o770] {
            assert!(open(mode).unwrap_err().contains("others may write to its folder .downpour"));
        }
        assert!(!own.join("lane-0").exists());
        assert_eq!(open(0o700), Ok(()));
    }

    #[test]
    fn a_read_only_target_gets_its_mode_back_whoever_was_killed_or_came_at_the_same_time() {
        let (root, user) = (rustix::process::geteuid().is_root(), 65_534);
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        if root {
            chown(out, Some(user), None).unwrap();
        }
        let set = |mode| fs::set_permissions(out, Permissions::from_mode(mode)).unwrap();
        let mode = || fs::metadata(out).unwrap().permissions().mode() & 0o7777;
        let of_user = || {
            // Another user for this thread alone.
            if root {
                rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
            }
            set(0o555);
            let first = Claim::open(out, None).unwrap();
            // The second one looked before the first one had changed it.
            set(0o555);
            assert!(matches!(Claim::open(out, None), Err(OpenError::Locked(_))));
            assert_eq!(mode(), 0o755, "the first one is at work");
            // It is killed.
            rustix::fs::flock(&first.lock, FlockOperation::Unlock).unwrap();
            std::mem::forget(first);
            let next = Claim::open(out, None).unwrap();
            assert_eq!(mode(), 0o755);
            next.remove().unwrap();
            assert_eq!((mode(), out.join(".downpour").exists()), (0o555, false));
            // Of who has come since then nothing is set back.
            let before = Claim::open(out, None).unwrap();
            fs::write(out.join(".downpour/receipts"), "kept").unwrap();
            before.remove().unwrap();
            let last = Claim::open(out, None).unwrap();
            drop(before);
            assert_eq!(mode(), 0o755);
            drop(last);
            assert_eq!(mode(), 0o555);
            // Whatever else it gets meanwhile stays.
            let last = Claim::open(out, None).unwrap();
            set(0o750);
            drop(last);
            assert_eq!(mode(), 0o750);
        };
        thread::scope(|scope| scope.spawn(of_user).join().unwrap());
        set(0o755);
    }
}
