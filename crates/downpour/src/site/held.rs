//! Files that a daemon has locked, so that no second one works in the same place: one in the state folder, one beside a catalog of
//! SQLite, wherever that is.
//!
//! A lock ends with its process. It stays with its folder when that is moved or unmounted: what its name leads to then is not
//! what the daemon opened, which [`Place::is_here`] tells.

use super::daemon::{StartError, cannot};
use downpour_catalog::CatalogUrl;
use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Name of the file in the state folder.
const LOCK_FILE: &str = "daemon.lock";
/// What the one beside a catalog ends in.
const BESIDE: &str = ".lock";

/// A locked file, for as long as this is there.
pub(super) struct Held {
    file: File,
    /// Which one.
    pub place: Place,
}

/// A file that is held, by its name and by what it is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and inode.
    is: (u64, u64),
}

impl Place {
    /// Whether its name still leads to it. Blocks.
    pub(super) fn is_here(&self) -> bool {
        self.path.metadata().is_ok_and(|meta| which(&meta) == self.is)
    }
}

fn which(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl Held {
    /// Takes the state folder, which is made if it is not there.
    pub(super) fn state(state: &Path) -> Result<Self, StartError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(state).map_err(|error| {
            let what = format!("cannot create {}: {error}", state.display());
            cannot(what, "name a folder in [site] state that this user may write to")
        })?;
        let unlocked =
            "run it as the user who owns that folder, on a disk where files can be locked";
        let taken = "end that one first, or give this one a [site] state of its own";
        lock(state.join(LOCK_FILE), unlocked, taken)
    }

    /// Takes a catalog of SQLite. Whoever only reads it, or adds to it under another name, does not ask.
    pub(super) fn catalog(url: &CatalogUrl) -> Result<Option<Self>, StartError> {
        let CatalogUrl::Sqlite(path) = url else { return Ok(None) };
        let mut name = fs::canonicalize(path).unwrap_or_else(|_| path.clone()).into_os_string();
        name.push(BESIDE);
        let unlocked = "name a file in [site] catalog whose folder is there, on a disk where this user may write and lock files";
        let taken = "end that one first, or give this one a [site] catalog of its own";
        lock(name.into(), unlocked, taken).map(Some)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // By closing it alone a program that was started meanwhile would hold it until it runs.
        let _ = self.file.unlock();
    }
}

fn lock(path: PathBuf, unlocked: &str, taken: &str) -> Result<Held, StartError> {
    let failed =
        |error: io::Error| cannot(format!("cannot lock {}: {error}", path.display()), unlocked);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    // A pipe that somebody put there has no reader.
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(&path).map_err(failed)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => failed(error),
        TryLockError::WouldBlock => {
            cannot(format!("a daemon runs here already: it holds {}", path.display()), taken)
        }
    })?;
    let is = which(&file.metadata().map_err(failed)?);
    Ok(Held { file, place: Place { path, is } })
}
