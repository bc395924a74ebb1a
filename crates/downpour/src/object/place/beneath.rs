//! Opening below the target, never through a link.

use super::claim::PRIVATE_FILE;
use crate::object::limits::OPEN_FOLDERS_MAX;
use crate::object::lock;
use crate::object::tree::{EntryId, Tree};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Whether the kernel has openat2; looked at once it has said no.
static OPENAT2: AtomicBool = AtomicBool::new(true);

/// Opens `name`, which has no `/` in it, in `folder`. No link is followed.
pub(crate) fn open_in(
    folder: impl AsFd,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    debug_assert!(!name.contains(&b'/') && name != b"..");
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if OPENAT2.load(Ordering::Relaxed) {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(folder.as_fd(), name, flags, mode, resolve) {
            // Old kernels, and seccomp filters that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => {}
            other => return other,
        }
        let plain = rustix::fs::openat(folder.as_fd(), name, flags, mode)?;
        OPENAT2.store(false, Ordering::Relaxed);
        return Ok(plain);
    }
    rustix::fs::openat(folder.as_fd(), name, flags, mode)
}

/// Makes `name`, an empty file, in `folder`. One that is there goes: it may have a mode already with which it cannot be
/// opened.
pub(super) fn create_in(folder: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let create = || open_in(&folder, name, flags, PRIVATE_FILE);
    match create() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
            create()
        }
        done => done,
    }
}

/// A new file in `folder` without a name: nothing is left of it when nobody has it open. Where the file system has no such
/// files one is made under `name`, which is taken away.
pub(crate) fn unnamed_in(folder: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_in(&folder, b".", OFlags::RDWR | OFlags::TMPFILE, PRIVATE_FILE).or_else(|_| {
        let file = create_in(&folder, name)?;
        rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
        Ok(file)
    })
}

/// How folders are opened.
pub(super) const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The folders of a tree below a target, opened as needed.
pub(crate) struct Beneath {
    root: Arc<OwnedFd>,
    tree: Arc<Tree>,
    /// Emptied when full: entries are placed in order, so that the same few are asked for.
    open: Mutex<HashMap<u32, Arc<OwnedFd>>>,
}

impl Beneath {
    pub(crate) fn new(root: Arc<OwnedFd>, tree: Arc<Tree>) -> Self {
        Self { root, tree, open: Mutex::new(HashMap::new()) }
    }

    pub(crate) fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The folder that an entry is in.
    pub(crate) fn parent(&self, id: EntryId) -> Result<Arc<OwnedFd>, Errno> {
        match self.tree.entry(id).parent {
            None => Ok(self.root.clone()),
            Some(parent) => self.folder(parent),
        }
    }

    /// An entry that is a folder.
    pub(crate) fn folder(&self, id: EntryId) -> Result<Arc<OwnedFd>, Errno> {
        let mut closed = Vec::new();
        let mut at = Some(id);
        let mut fd = self.root.clone();
        {
            let open = lock(&self.open);
            while let Some(id) = at {
                if let Some(known) = open.get(&id.0) {
                    fd = known.clone();
                    break;
                }
                closed.push(id);
                at = self.tree.entry(id).parent;
            }
        }
        for id in closed.into_iter().rev() {
            fd = Arc::new(open_in(&fd, self.tree.entry(id).name, FOLDER_FLAGS, Mode::empty())?);
            let mut open = lock(&self.open);
            if open.len() >= OPEN_FOLDERS_MAX {
                open.clear();
            }
            open.insert(id.0, fd.clone());
        }
        Ok(fd)
    }
}
