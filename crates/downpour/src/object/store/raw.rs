//! One file or stream onto a block device, or into an existing file.
//!
//! Groups are written at their places as they come; there is no staging and no journal. To resume, what
//! is on the device is compared with the manifest, which reads all of it.

use super::sinks::only_file;
use super::target::{Fault, Finished, Held, Started, Target};
use super::{StoreFailure, lock};
use crate::object::disk::{write_all_at, zero_range};
use crate::object::group::{GroupData, KnownGroup};
use crate::object::limits::GROUP_LEN;
use crate::object::place::{OnNotice, OpenError, PlaceError, unlock};
use crate::object::scan::explain;
use crate::object::tree::{EntryId, Tree};
use rustix::fs::{Advice, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

pub(super) struct RawTarget {
    path: PathBuf,
    fd: OwnedFd,
    is_device: bool,
    tree: OnceLock<Arc<Tree>>,
    complete: Mutex<bool>,
}

impl RawTarget {
    pub(super) fn open(path: PathBuf) -> Result<Self, OpenError> {
        let fail = |reason: String| OpenError::Target { path: path.clone(), reason };
        let stat = rustix::fs::stat(&path).map_err(|error| fail(explain(error)))?;
        let is_device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => return Err(fail("it is neither a block device nor a file".into())),
        };
        // On a device, O_EXCL fails while anything is mounted from it.
        let exclusive = if is_device { OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | exclusive;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| {
            fail(match error {
                Errno::BUSY => "it is in use: unmount what is on it".into(),
                Errno::ROFS if is_device => "the device is write-protected".into(),
                other => explain(other),
            })
        })?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked(path)),
            other => other.map_err(|error| fail(explain(error)))?,
        }
        Ok(Self { path, fd, is_device, tree: OnceLock::new(), complete: Mutex::new(false) })
    }

    /// 0, where it does not tell.
    fn device_len(&self) -> u64 {
        rustix::fs::seek(&self.fd, SeekFrom::End(0)).unwrap_or(0)
    }

    /// Writing failed of what reaches to `end`.
    fn fault(&self, error: Errno, end: u64) -> Fault {
        let doing = format!("writing {}", self.path.display());
        Fault::Fatal(match error {
            // Of a stream it was not known before.
            Errno::NOSPC if self.is_device && end > self.device_len() => {
                StoreFailure::TooSmall { needed: end, available: self.device_len() }
            }
            Errno::PERM if self.is_device => {
                StoreFailure::Target(format!("{doing}: the device is read-only (blockdev --setrw)"))
            }
            error => return PlaceError::of(error, &doing).into(),
        })
    }

    /// Writes zeros where whole groups hold no data: what was on the device must not shine through.
    fn zero_holes(&self, tree: &Tree, len: u64) -> Result<(), Errno> {
        let mut at = 0;
        for number in tree.groups_of(EntryId(0)) {
            let group = tree.layout().group(number);
            if group.start() >= len {
                break;
            }
            zero_range(&self.fd, at, group.start())?;
            at = (group.start() + GROUP_LEN).min(len);
        }
        zero_range(&self.fd, at, len)
    }
}

impl Drop for RawTarget {
    fn drop(&mut self) {
        unlock(&self.fd);
    }
}

impl Target for RawTarget {
    fn start(&self, tree: &Arc<Tree>) -> Result<Started, StoreFailure> {
        let id = only_file(tree, "a device")?;
        if let (true, Some(needed)) = (self.is_device, tree.file_size(id)) {
            let end = rustix::fs::seek(&self.fd, SeekFrom::End(0));
            let available = end.map_err(|error| StoreFailure::Target(explain(error)))?;
            if needed > available {
                return Err(StoreFailure::TooSmall { needed, available });
            }
        }
        // Called once: nothing is there yet.
        let _ = self.tree.set(tree.clone());
        Ok(Started { candidates: true, ..Started::default() })
    }

    fn held(&self, groups: &[KnownGroup]) -> Result<Held, Fault> {
        let Some(tree) = self.tree.get() else { return Err(Fault::NoRoom) };
        let (mut held, mut data) = (Held::default(), Vec::new());
        let is_held = |known: &&KnownGroup| known.is_in(tree, &self.fd, &mut data);
        held.groups.extend(groups.iter().filter(is_held).map(|known| known.number));
        Ok(held)
    }

    fn write(&self, known: &KnownGroup, data: GroupData<'_>) -> Result<(), Fault> {
        let Some(tree) = self.tree.get() else { return Err(Fault::NoRoom) };
        let (start, end) = (known.group.start(), known.group.start() + known.len());
        let mut parts = known.parts(tree, data);
        if known.is_dense() {
            let written = parts.try_for_each(|(at, bytes)| write_all_at(&self.fd, bytes, at));
            return written.map_err(|error| self.fault(error, end));
        }
        let mut content = vec![0; known.len() as usize];
        for (at, bytes) in parts {
            let from = (at - start) as usize;
            content[from..from + bytes.len()].copy_from_slice(bytes);
        }
        write_all_at(&self.fd, &content, start).map_err(|error| self.fault(error, end))
    }

    fn read(&self, known: &KnownGroup, data: &mut [u8]) -> bool {
        self.tree.get().is_some_and(|tree| known.read_from(tree, &self.fd, data))
    }

    fn complete(&self, _: EntryId, len: u64) -> Result<Vec<String>, Fault> {
        let Some(tree) = self.tree.get() else { return Err(Fault::NoRoom) };
        self.zero_holes(tree, len).map_err(|error| self.fault(error, len))?;
        if !self.is_device {
            rustix::fs::ftruncate(&self.fd, len).map_err(|error| self.fault(error, len))?;
        }
        *lock(&self.complete) = true;
        Ok(Vec::new())
    }

    fn finish(
        &self,
        failed: &dyn Fn(EntryId) -> bool,
        _: OnNotice<'_>,
    ) -> Result<Finished, StoreFailure> {
        let size = self.tree.get().and_then(|tree| tree.file_size(EntryId(0)));
        let without_data = !*lock(&self.complete) && !failed(EntryId(0));
        if let Some(size) = size.filter(|_| without_data) {
            self.complete(EntryId(0), size).map_err(|_| {
                StoreFailure::Target(format!("cannot write {}", self.path.display()))
            })?;
        }
        rustix::fs::fdatasync(&self.fd).map_err(|error| {
            // Another sync need not fail: who compares next compares with what is on the disk.
            let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::DontNeed);
            StoreFailure::Target(format!("syncing: {}", explain(error)))
        })?;
        Ok(Finished::default())
    }
}
