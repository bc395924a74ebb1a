//! Files on the sender's disk: read at the places the tree says, and watched for change.

use crate::object::book::Looks;
use crate::object::digest::Digest;
use crate::object::disk::read_full_at;
use crate::object::group::fed_digest;
use crate::object::layout::{Group, Piece};
use crate::object::limits::OPEN_FILES_MAX;
use crate::object::scan::{Fingerprint, Origin, explain, file_flags, mtime};
use crate::object::tree::{EntryId, Tree};
use rustix::fs::{Advice, CWD, Mode, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The reason that receivers and the report show.
pub(crate) const CHANGED: &str = "changed while being sent: send it again when it is at rest";

/// The same of a file that is not there any more.
pub(crate) const REMOVED: &str = "removed while being sent";

/// The same of a file whose size was told as 0.
pub(crate) const NO_SIZE: &str =
    "its file system tells no size of it: send what comes out of it by `send - <`";

/// Read and hashed at a time, while it is in the processor's cache.
const STEP: usize = 128 << 10;

pub(super) struct Files {
    tree: Arc<Tree>,
    origin: Origin,
    /// Open files of more than one group; emptied when full, as reading is mostly in order.
    open: Mutex<HashMap<u32, Arc<OwnedFd>>>,
    hashed: AtomicU64,
}

impl Files {
    pub(super) fn new(tree: Arc<Tree>, origin: Origin) -> Self {
        Self { tree, origin, open: Mutex::new(HashMap::new()), hashed: AtomicU64::new(0) }
    }

    /// Reads `run`, pieces of one file that are contiguous in the data space. Returns whether the
    /// change time has moved since the scan; an error is a reason to withdraw the file.
    pub(super) fn read(&self, run: &[Piece], buf: &mut [u8]) -> Result<bool, String> {
        let entry = run[0].entry;
        let fd = self.open(entry)?;
        let mut rest = buf;
        for piece in run {
            let (part, after) = rest.split_at_mut(piece.len() as usize);
            read_exact_at(&fd, part, piece.start)?;
            rest = after;
        }
        self.look(entry, &fd)
    }

    /// Digest of one group, read anew.
    pub(super) fn digest(&self, number: u32) -> Result<Digest, String> {
        self.digest_into(&self.tree.layout().group(number), None)
    }

    /// The same; `whole`, if given, is as long as the group in the data space, and holds its bytes afterwards.
    pub(super) fn digest_into(
        &self,
        group: &Group,
        mut whole: Option<&mut [u8]>,
    ) -> Result<Digest, String> {
        let fd = self.open(group.entry)?;
        let len = self.tree.file_size(EntryId(group.entry)).unwrap_or(0);
        if group.data.end - group.data.start > STEP as u64 {
            // Steps are short, and several threads read one file: the kernel would not see what comes next.
            let all = NonZeroU64::new(group.len_in(len));
            let _ = rustix::fs::fadvise(&fd, group.start(), all, Advice::WillNeed);
        }
        let mut step = if whole.is_some() { Vec::new() } else { vec![0; STEP] };
        let digest = fed_digest(self.tree.layout(), group, len, |piece, hasher| {
            let mut rest = piece.data.clone();
            while !rest.is_empty() {
                let len = (rest.end - rest.start).min(STEP as u64) as usize;
                let buf = match &mut whole {
                    Some(whole) => &mut whole[(rest.start - group.data.start) as usize..][..len],
                    None => &mut step[..len],
                };
                read_exact_at(&fd, buf, piece.start + rest.start - piece.data.start)?;
                hasher.update(buf);
                rest.start += len as u64;
            }
            Ok::<_, String>(())
        })?;
        self.look(group.entry, &fd)?;
        self.hashed.fetch_add(group.data.end - group.data.start, Ordering::Relaxed);
        Ok(digest)
    }

    /// Bytes of groups that were hashed.
    pub(super) fn hashed(&self) -> u64 {
        self.hashed.load(Ordering::Relaxed)
    }

    /// How a file looked when it was scanned.
    pub(super) fn looks(&self, entry: u32) -> Looks {
        let id = EntryId(entry);
        let fingerprint = self.origin.fingerprints[entry as usize];
        let size = self.tree.file_size(id).unwrap_or(0);
        Looks { fingerprint, size, mtime: self.tree.entry(id).meta.mtime }
    }

    /// Whether a file still looks so. An error is a reason to withdraw it.
    pub(super) fn looks_the_same(&self, entry: u32) -> Result<bool, String> {
        let fd = self.open(entry)?;
        self.look(entry, &fd).map(|touched| !touched)
    }

    /// Whether a file that held no data is still as it was; when it `has_gone` to receivers, whether it holds none still, if it is
    /// there. An error is a reason to withdraw it.
    pub(super) fn look_at_empty(&self, entry: u32, has_gone: bool) -> Result<(), String> {
        if has_gone {
            return match self.holds_data(entry) {
                Ok(true) => Err(CHANGED.into()),
                Ok(false) | Err(_) => Ok(()),
            };
        }
        let fd = self.open(entry)?;
        self.look(entry, &fd)?;
        // A hole that is written to has another modification time.
        let is_hole = self.tree.file_size(EntryId(entry)) != Some(0);
        match if is_hole { Ok(0) } else { rustix::io::pread(&fd, &mut [0; 1], 0) } {
            Ok(0) => Ok(()),
            Ok(_) => Err(NO_SIZE.into()),
            Err(error) => Err(format!("cannot be read: {}", explain(error))),
        }
    }

    /// Whether a file without data has some by now, or another size. One that has taken its name is not that file.
    fn holds_data(&self, entry: u32) -> Result<bool, String> {
        let fd = self.open(entry)?;
        let stat = rustix::fs::fstat(&fd).map_err(explain)?;
        let (seen, known) = (Fingerprint::of(&stat), self.origin.fingerprints[entry as usize]);
        let has_grown = Some(stat.st_size as u64) != self.tree.file_size(EntryId(entry));
        let has_data = has_grown || rustix::fs::seek(&fd, SeekFrom::Data(0)).is_ok();
        Ok((seen.dev, seen.ino) == (known.dev, known.ino) && has_data)
    }

    fn open(&self, entry: u32) -> Result<Arc<OwnedFd>, String> {
        if let Some(fd) = super::lock(&self.open).get(&entry) {
            return Ok(fd.clone());
        }
        let path = self.origin.path(&self.tree, EntryId(entry));
        let fd =
            rustix::fs::openat(CWD, &path, file_flags(), Mode::empty()).map_err(
                |error| match error {
                    Errno::NOENT => REMOVED.into(),
                    Errno::LOOP | Errno::NOTDIR => CHANGED.into(),
                    other => format!("cannot be read: {}", explain(other)),
                },
            )?;
        let fd = Arc::new(fd);
        if self.tree.groups_of(EntryId(entry)).len() > 1 {
            let mut open = super::lock(&self.open);
            if open.len() >= OPEN_FILES_MAX {
                open.clear();
            }
            open.insert(entry, fd.clone());
        }
        Ok(fd)
    }

    /// Whether the file is still the one that was scanned.
    fn look(&self, entry: u32, fd: &OwnedFd) -> Result<bool, String> {
        let id = EntryId(entry);
        let stat = rustix::fs::fstat(fd).map_err(explain)?;
        let (seen, known) = (Fingerprint::of(&stat), self.origin.fingerprints[entry as usize]);
        let same = (seen.dev, seen.ino) == (known.dev, known.ino)
            && Some(stat.st_size as u64) == self.tree.file_size(id)
            && mtime(&stat) == self.tree.entry(id).meta.mtime;
        if same { Ok(seen.ctime != known.ctime) } else { Err(CHANGED.into()) }
    }
}

/// Fills `buf` from `offset`; the file's end comes too early when it was cut.
pub(super) fn read_exact_at(fd: &OwnedFd, buf: &mut [u8], at: u64) -> Result<(), String> {
    match read_full_at(fd, buf, at) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CHANGED.into()),
        Err(error) => Err(format!("cannot be read: {}", explain(error))),
    }
}
