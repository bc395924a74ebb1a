//! `OUT/.downpour`: where a receiver keeps what is not finished.
//!
//! ```text
//! lock       held while a receiver runs into this target (see `claim`)
//! journal    which groups of which partial files are verified (see `journal`)
//! parts/     partial files
//! mode       that of a target which is made writable for a time (see `claim`)
//! ```
//!
//! Space is reserved by one file without a name that is as large as what is still to come. It shrinks
//! as partial files grow, and vanishes with the process whatever happens to it. A file system in memory allocates by
//! clearing every page, which costs as much as writing it: there nothing is reserved, and a full one shows when it is.
//!
//! All of it is removed after success, and kept for the next attempt otherwise.

use super::beneath::{FOLDER_FLAGS, create_in, open_in, unnamed_in};
use super::claim::{Claim, OpenError, PRIVATE_FILE, make_folder};
use super::{PlaceError, free_bytes};
use crate::object::disk::write_all_at;
use crate::object::lock;
use crate::object::scan::names_in;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const JOURNAL: &[u8] = b"journal";
const PARTS: &[u8] = b"parts";

/// A partial file in a lane that nobody has gone on with for so long is removed.
const PART_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// File systems in memory: tmpfs and ramfs, as `statfs` numbers them.
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// The reserve shrinks by at least this at a time, so that small files do not each cost a call.
const RELEASE_STEP: u64 = 32 << 20;

/// An open, locked staging folder.
pub(crate) struct Staging {
    claim: Claim,
    parts: OwnedFd,
    reserve: Mutex<Reserve>,
    in_memory: bool,
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
        Self::with(Claim::open(out, lane)?).map_err(|error| OpenError::of(out, error))
    }

    fn with(claim: Claim) -> Result<Self, Errno> {
        make_folder(claim.folder(), PARTS)?;
        let parts = open_in(claim.folder(), PARTS, FOLDER_FLAGS, Mode::empty())?;
        let reserve = Mutex::new(Reserve::default());
        let in_memory = IN_MEMORY.contains(&rustix::fs::fstatfs(claim.folder())?.f_type);
        Ok(Self { claim, parts, reserve, in_memory })
    }

    pub(crate) fn out(&self) -> &Arc<OwnedFd> {
        self.claim.out()
    }

    /// See [`Claim::is_own`].
    pub(crate) fn is_own(&self, name: &[u8]) -> bool {
        Claim::is_own(self.out(), name)
    }

    pub(crate) fn parts(&self) -> &OwnedFd {
        &self.parts
    }

    /// The journal's file, made if need be.
    pub(crate) fn journal(&self) -> Result<OwnedFd, Errno> {
        open_in(self.claim.folder(), JOURNAL, OFlags::RDWR | OFlags::CREATE, PRIVATE_FILE)
    }

    /// Puts another journal in the place of the one that is there.
    pub(crate) fn replace_journal(&self, bytes: &[u8]) -> Result<OwnedFd, Errno> {
        let file = self.create_part(JOURNAL)?;
        let done =
            write_all_at(&file, bytes, 0).and_then(|()| rustix::fs::fdatasync(&file)).and_then(
                |()| rustix::fs::renameat(&self.parts, JOURNAL, self.claim.folder(), JOURNAL),
            );
        if done.is_err() {
            self.remove_part(JOURNAL);
        }
        done.map(|()| file)
    }

    /// The names of all partial files.
    pub(crate) fn names(&self) -> Result<HashSet<Vec<u8>>, Errno> {
        Ok(names_in(&self.parts)?.into_iter().collect())
    }

    /// A partial file, opened if it is there.
    pub(crate) fn open_part(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let open = || open_in(&self.parts, name, OFlags::RDWR, Mode::empty());
        match open() {
            // It has the mode of its place already: whoever was to put it there was killed just then.
            Err(Errno::ACCESS) => {
                rustix::fs::chmodat(&self.parts, name, PRIVATE_FILE, AtFlags::empty())?;
                open()
            }
            done => done,
        }
    }

    /// A new, empty partial file.
    pub(crate) fn create_part(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        create_in(&self.parts, name)
    }

    pub(crate) fn remove_part(&self, name: &[u8]) {
        // What stays is removed with the folder, or used by the next attempt.
        let _ = rustix::fs::unlinkat(&self.parts, name, AtFlags::empty());
    }

    /// Removes partial files that `keep` does not want.
    pub(crate) fn remove_parts(&self, keep: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
        for name in self.names()? {
            if !keep(&name) {
                rustix::fs::unlinkat(&self.parts, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Bytes that removing those would free.
    pub(crate) fn removable(&self, keep: impl Fn(&[u8]) -> bool) -> Result<u64, Errno> {
        let mut bytes = 0;
        for name in self.names()?.iter().filter(|name| !keep(name)) {
            let stat = rustix::fs::statat(&self.parts, name, AtFlags::SYMLINK_NOFOLLOW)?;
            bytes += stat.st_blocks as u64 * 512;
        }
        Ok(bytes)
    }

    /// Bytes that this user can still write to the target's file system.
    pub(crate) fn available(&self) -> Result<u64, Errno> {
        let fs = rustix::fs::fstatvfs(&**self.claim.out())?;
        Ok(free_bytes(&fs))
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

    /// Takes `len` bytes from the file system for what is to come. `false`: it cannot give them beforehand.
    pub(crate) fn reserve(&self, len: u64) -> Result<bool, PlaceError> {
        if len == 0 || self.in_memory {
            return Ok(len == 0);
        }
        let refused = |error| PlaceError::of(error, &format!("reserving {len} bytes"));
        let file = unnamed_in(&self.parts, b"reserve").map_err(refused)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => {
                *lock(&self.reserve) = Reserve { file: Some(file), left: len, free: 0 };
                Ok(true)
            }
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(refused(error)),
            // This file system cannot reserve: a full disk shows later, as clearly.
            Err(_) => Ok(false),
        }
    }

    /// Gives back `len` bytes of the reserve, just before they are written.
    pub(crate) fn release(&self, len: u64) {
        let mut reserve = lock(&self.reserve);
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
        *lock(&self.reserve) = Reserve::default();
    }

    /// Whether somebody was at a partial file lately: what was given up is not kept for ever. Its mtime may be that of its
    /// source already.
    pub(crate) fn is_recent(&self, name: &[u8]) -> bool {
        let stat = rustix::fs::statat(&self.parts, name, AtFlags::SYMLINK_NOFOLLOW);
        let changed = stat.map_or(0, |stat| u64::try_from(stat.st_ctime).unwrap_or(0));
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        since < Duration::from_secs(changed) + PART_LIFE
    }

    /// See [`Claim::set_back`].
    pub(crate) fn set_back(&self) {
        self.claim.set_back();
    }

    /// Removes everything: the session has succeeded. A lane keeps the partial files that are `kept`, and the journal if
    /// there are any.
    pub(crate) fn remove(&self, kept: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
        self.release_all();
        let remove_journal =
            || match rustix::fs::unlinkat(self.claim.folder(), JOURNAL, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                done => done,
            };
        if self.claim.is_lane() {
            self.remove_parts(kept)?;
            return if self.names()?.is_empty() { remove_journal() } else { Ok(()) };
        }
        self.remove_parts(|_| false)?;
        rustix::fs::unlinkat(self.claim.folder(), PARTS, AtFlags::REMOVEDIR)?;
        remove_journal()?;
        self.claim.remove()
    }
}
