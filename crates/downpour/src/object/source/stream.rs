//! The bytes of a pipe (`send -`).
//!
//! Any block may be asked for again: for repair, by a receiver that joins late, or by one that pulls.
//! So all that came through a pipe is kept in a spool file that has no name: it vanishes with the process.
//! Input that can be read again by itself, as in `send - < file` or `send - < /dev/sdb`, is not spooled.

use super::files::read_exact_at;
use super::{Content, ContentSource, SourceError, failed, lock};
use crate::object::disk::write_all_at;
use crate::object::limits::GROUP_LEN;
use crate::object::place::unnamed_in;
use crate::object::scan::{Fingerprint, Scan, explain};
use crate::object::tree::Mtime;
use downpour_proto::Geometry;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// So many who pull are known; the one whose read ended the longest ago is forgotten then.
const LOOKED_MAX: usize = 64;

/// Where the spool file has no room.
const REMEDY: &str = "all of the input is kept there while it is sent: set $DOWNPOUR_HOME to a folder with room for \
                      it, or give a file (send - < FILE)";

pub(super) struct Stream {
    input: OwnedFd,
    /// Where the bytes are read again, and the offset there of the stream's first byte.
    again: OwnedFd,
    base: u64,
    spool: Option<PathBuf>,
    /// How the input looked at first, if it is a file: a device shows no change.
    seen: Option<Fingerprint>,
    /// Where reads ended after which the groups around were found right: there the next ones go on.
    looked: Mutex<Vec<u64>>,
    /// Bytes taken from the input.
    taken: Mutex<u64>,
    /// Why not all of it can be had again.
    lost: OnceLock<String>,
}

impl ContentSource {
    /// The bytes of `input` as one file called `name`. They are spooled in `spool_folder` when `input`
    /// cannot be read twice.
    pub fn stream(
        input: OwnedFd,
        name: &[u8],
        spool_folder: &Path,
        geometry: Geometry,
    ) -> Result<Arc<Self>, SourceError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mtime = Mtime { secs: now.as_secs() as i64, nanos: now.subsec_nanos() };
        let tree = Scan::stream_tree(name, mtime).map_err(|error| failed(error.to_string()))?;
        let stat = rustix::fs::fstat(&input).map_err(|error| failed(explain(error)))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let twice = matches!(kind, FileType::RegularFile | FileType::BlockDevice);
        let seen = (kind == FileType::RegularFile).then(|| Fingerprint::of(&stat));
        let (again, base, spool) = if twice {
            let again = input.try_clone().map_err(|error| failed(error.to_string()))?;
            let base = rustix::fs::tell(&input).map_err(|error| failed(explain(error)))?;
            (again, base, None)
        } else {
            (spool_file(spool_folder)?, 0, Some(spool_folder.to_owned()))
        };
        let (looked, taken, lost) = (Mutex::default(), Mutex::new(0), OnceLock::new());
        let stream = Stream { input, again, base, spool, seen, looked, taken, lost };
        let content = Content::Stream(stream);
        Ok(Self::new(Arc::new(tree), geometry, content, Box::new(|_| {})))
    }
}

impl Stream {
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        read_exact_at(&self.again, buf, self.base + offset).map_err(|reason| self.lose(&reason))
    }

    /// Whether somebody may have written to what is read again. Only we write to the spool.
    pub(super) fn is_touched(&self) -> bool {
        let now = rustix::fs::fstat(&self.again).ok().map(|stat| Fingerprint::of(&stat));
        self.spool.is_none() && (self.seen.is_none() || self.seen != now)
    }

    /// Whether a read from here goes on where one has ended that was looked at; told once of each. So who pulls the same
    /// again and again comes to a look.
    pub(super) fn goes_on(&self, from: u64) -> bool {
        let mut looked = lock(&self.looked);
        let at = looked.iter().position(|end| *end == from);
        at.map(|at| looked.remove(at)).is_some()
    }

    /// A read that was looked at ends here.
    pub(super) fn looked(&self, until: u64) {
        let mut looked = lock(&self.looked);
        if looked.len() >= LOOKED_MAX {
            looked.remove(0);
        }
        looked.push(until);
    }

    /// Bytes that were promised cannot be had again.
    pub(super) fn lose(&self, why: &str) -> SourceError {
        failed(self.lost.get_or_init(|| format!("the input {why}")))
    }

    pub(super) fn lost(&self) -> Option<String> {
        self.lost.get().cloned()
    }

    /// Takes the next bytes of the input, up to a group; less only at its end.
    pub(super) fn take_group(&self) -> Result<Vec<u8>, SourceError> {
        let mut taken = lock(&self.taken);
        let mut group = vec![0; GROUP_LEN as usize];
        let mut len = 0;
        while len < group.len() {
            match rustix::io::read(&self.input, &mut group[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(format!("the input: {}", explain(error)))),
            }
        }
        group.truncate(len);
        if let Some(folder) = &self.spool {
            write_all_at(&self.again, &group, *taken).map_err(|error| {
                let (path, error) = (folder.display(), explain(error));
                failed(format!("keeping the input in {path}: {error}; {REMEDY}"))
            })?;
        }
        *taken += len as u64;
        Ok(group)
    }
}

/// A file without a name.
fn spool_file(folder: &Path) -> Result<OwnedFd, SourceError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = format!(".downpour-spool-{}", std::process::id());
    let opened = rustix::fs::open(folder, flags, Mode::empty());
    opened.and_then(|folder| unnamed_in(folder, name.as_bytes())).map_err(|error| {
        let (path, error) = (folder.display(), explain(error));
        failed(format!("the spool folder {path}: {error}; {REMEDY}"))
    })
}
