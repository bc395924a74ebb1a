//! A folder as target: partial files in the staging folder, journaled, placed when complete.
//!
//! A file is in one of these states, from the first of its groups on:
//! - *in place*: a file of the same size is there already, and all groups so far are identical;
//! - *part*: it grows in the staging folder. Groups come from the network, from an earlier attempt
//!   (journal), or from a differing file that is to be replaced.
//!
//! Files of one group are not journaled: they are placed at once, and found in place by the next run.

use super::StoreFailure;
use super::target::{Fault, Finished, Held, KnownGroup, Started, Target};
use crate::object::journal::{Boot, Journal, PartKey};
use crate::object::limits::OPEN_FILES_MAX;
use crate::object::place::{
    Beneath, Durability, Existing, Finish, MetaPolicy, OpenError, PlaceError, Placer, Staging,
    write_all_at,
};
use crate::object::scan::explain;
use crate::object::tree::{EntryId, Kind, Tree};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

const DIFFERS: &str = "exists and differs: --overwrite replaces it";

/// Room that a file takes at least; file systems allocate in blocks of about this.
const DISK_BLOCK: u64 = 4096;

/// Files in more pieces than this are not allocated beforehand.
const ALLOCATED_EXTENTS_MAX: usize = 64;

/// How objects are placed below a folder.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// The folder; made if need be.
    pub out: PathBuf,
    /// Replace files that differ. Default: no, such an object fails.
    pub overwrite: bool,
    /// When data must be on the disk. Default: once, before the receipt.
    pub durability: Durability,
    /// Keep owner and group, if run as root. Default: yes.
    pub owner: bool,
    /// Keep setuid and setgid bits of files, if run as root. Default: no.
    pub setuid: bool,
    /// Apply extended attributes and ACLs; as root also capabilities. Default: no.
    pub xattrs: bool,
}

impl FolderOptions {
    /// With the defaults.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        Self {
            out: out.into(),
            overwrite: false,
            durability: Durability::default(),
            owner: true,
            setuid: false,
            xattrs: false,
        }
    }
}

pub(super) struct FolderTarget {
    options: FolderOptions,
    staging: Arc<Staging>,
    journal: Mutex<Journal>,
    ready: OnceLock<Ready>,
}

/// What is known with the tree.
struct Ready {
    tree: Arc<Tree>,
    placer: Placer,
    /// What was at each entry's place when the session started.
    existing: Vec<Existing>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    states: HashMap<u32, State>,
    /// Open parts; emptied when full, and opened again by name.
    open: HashMap<u32, Arc<OwnedFd>>,
}

enum State {
    /// The groups that were identical so far.
    InPlace(Vec<KnownGroup>),
    Part,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    super::lock(mutex)
}

impl Ready {
    fn is_single(&self, id: EntryId) -> bool {
        self.tree.groups_of(id).len() <= 1 && !self.tree.is_stream()
    }

    fn key(&self, id: EntryId) -> PartKey {
        PartKey::new(&self.tree.path(id), self.tree.file_size(id))
    }

    fn part_name(&self, id: EntryId) -> Vec<u8> {
        if self.is_single(id) {
            format!("s{}", id.0).into_bytes()
        } else {
            self.key(id).file_name()
        }
    }

    fn data_len(&self, id: EntryId) -> u64 {
        let data = self.tree.data_of(id);
        if self.tree.is_stream() { 0 } else { data.end - data.start }
    }

    fn existing(&self, id: EntryId) -> Existing {
        self.existing[id.0 as usize]
    }

    fn failure(&self, error: Errno, id: EntryId) -> Fault {
        PlaceError::of(error, &format!("writing {}", self.tree.path_text(id))).into()
    }
}

impl FolderTarget {
    pub(super) fn open(options: FolderOptions) -> Result<Self, OpenError> {
        let staging = Staging::open(&options.out)?;
        let fail = |reason| OpenError::Target { path: options.out.clone(), reason };
        let file = staging.journal().map_err(|error| fail(explain(error)))?;
        let journal = Journal::open(file, Boot::here(&**staging.out()))
            .map_err(|error| fail(error.to_string()))?;
        let (staging, journal) = (Arc::new(staging), Mutex::new(journal));
        Ok(Self { options, staging, journal, ready: OnceLock::new() })
    }

    fn ready(&self) -> Result<&Ready, Fault> {
        // The store calls nothing else before `start`.
        self.ready.get().ok_or(Fault::NoRoom)
    }

    fn placer(&self, tree: &Arc<Tree>) -> Placer {
        let root = rustix::process::geteuid().is_root();
        let FolderOptions { owner, setuid, xattrs, durability, overwrite, .. } = self.options;
        Placer {
            beneath: Beneath::new(self.staging.out().clone(), tree.clone()),
            staging: self.staging.clone(),
            meta: MetaPolicy { root, owner, setuid, xattrs },
            durability,
            overwrite,
        }
    }

    /// Bytes of a partial file that an earlier attempt has allocated.
    fn resumable(&self, ready: &Ready, id: EntryId) -> Option<u64> {
        if ready.is_single(id) || lock(&self.journal).part(ready.key(id))?.groups.is_empty() {
            return None;
        }
        let part = self.staging.open_part(&ready.part_name(id)).ok()?;
        let stat = rustix::fs::fstat(&part).ok()?;
        let fits = ready.tree.file_size(id).is_none_or(|size| stat.st_size as u64 == size);
        fits.then_some(stat.st_blocks as u64 * 512)
    }

    /// Checks for room, and takes it.
    fn reserve(&self, ready: &Ready, needed: u64) -> Result<(), StoreFailure> {
        let available =
            |error: Errno| StoreFailure::Target(format!("free space: {}", explain(error)));
        let mut free = self.staging.available().map_err(available)?;
        if needed > free {
            // Partial files of other sessions go before this one fails.
            let ours: std::collections::HashSet<Vec<u8>> =
                ready.tree.ids().map(|id| ready.part_name(id)).collect();
            self.staging.remove_parts(|name| ours.contains(name)).map_err(available)?;
            free = self.staging.available().map_err(available)?;
        }
        let full =
            |doing| StoreFailure::DiskFull { needed: Some(needed), available: Some(free), doing };
        if needed > free {
            return Err(full("reserving space".into()));
        }
        match self.staging.reserve(needed) {
            Ok(()) => Ok(()),
            Err(PlaceError::Full(doing)) => Err(full(doing)),
            Err(PlaceError::Object(reason) | PlaceError::Target(reason)) => {
                Err(StoreFailure::Target(reason))
            }
        }
    }

    /// The open partial file of an entry, made if need be.
    fn part(&self, ready: &Ready, id: EntryId) -> Result<Arc<OwnedFd>, Fault> {
        let mut files = lock(&ready.files);
        if let Some(fd) = files.open.get(&id.0) {
            return Ok(fd.clone());
        }
        let fail = |error| ready.failure(error, id);
        let fd = match files.states.remove(&id.0) {
            Some(State::Part) => self.staging.open_part(&ready.part_name(id)).map_err(fail)?,
            Some(State::InPlace(groups)) => {
                let fd = self.create(ready, id)?;
                self.copy_identical(ready, id, &groups, &fd)?;
                fd
            }
            None => self.create(ready, id)?,
        };
        files.states.insert(id.0, State::Part);
        let fd = Arc::new(fd);
        if files.open.len() >= OPEN_FILES_MAX {
            files.open.clear();
        }
        files.open.insert(id.0, fd.clone());
        Ok(fd)
    }

    fn create(&self, ready: &Ready, id: EntryId) -> Result<OwnedFd, Fault> {
        let fail = |error| ready.failure(error, id);
        self.staging.release(ready.data_len(id).next_multiple_of(DISK_BLOCK));
        let fd = self.staging.create_part(&ready.part_name(id)).map_err(fail)?;
        if let Some(size) = ready.tree.file_size(id) {
            let extents = &ready.tree.layout().extents()[ready.tree.extents(id)];
            if !ready.is_single(id) && extents.len() <= ALLOCATED_EXTENTS_MAX {
                for extent in extents {
                    let flags = FallocateFlags::KEEP_SIZE;
                    let outcome = rustix::fs::fallocate(&fd, flags, extent.start, extent.len);
                    // Where it is not supported only speed is lost.
                    if let Err(error @ (Errno::NOSPC | Errno::DQUOT)) = outcome {
                        return Err(fail(error));
                    }
                }
            }
            let end = extents.last().map_or(0, |last| last.start + last.len);
            if !ready.is_single(id) || end < size {
                rustix::fs::ftruncate(&fd, size).map_err(fail)?;
            }
        }
        if !ready.is_single(id) {
            lock(&self.journal).begin(ready.key(id)).map_err(fail)?;
        }
        Ok(fd)
    }

    /// Copies groups that were identical in a file which then proved to differ.
    fn copy_identical(
        &self,
        ready: &Ready,
        id: EntryId,
        groups: &[KnownGroup],
        part: &OwnedFd,
    ) -> Result<(), Fault> {
        let existing = ready.placer.open_existing(id).map_err(|error| ready.failure(error, id))?;
        let mut data = Vec::new();
        for known in groups {
            if !read_group(&ready.tree, known, &existing, &mut data) {
                return Err(Fault::Object("it changes while it is being received".into()));
            }
            self.write_to(ready, known, &data, part)?;
        }
        Ok(())
    }

    fn write_to(
        &self,
        ready: &Ready,
        known: &KnownGroup,
        data: &[u8],
        part: &OwnedFd,
    ) -> Result<(), Fault> {
        let id = known.entry();
        let fail = |error| ready.failure(error, id);
        for (at, bytes) in known.parts(&ready.tree, data) {
            write_all_at(part, bytes, at).map_err(fail)?;
        }
        if !ready.is_single(id) {
            let (key, index) = (ready.key(id), known.group.index);
            lock(&self.journal).verified(key, index, known.digest).map_err(fail)?;
        }
        Ok(())
    }

    /// Finds what is held of one file's groups, which are all of one section.
    fn held_of(
        &self,
        ready: &Ready,
        id: EntryId,
        groups: &[KnownGroup],
        held: &mut Held,
    ) -> Result<(), Fault> {
        let there = ready.existing(id);
        let known_here = lock(&ready.files).states.contains_key(&id.0);
        if there == Existing::Nothing && !known_here && self.resumable(ready, id).is_none() {
            return Ok(());
        }
        if !known_here {
            self.first_state(ready, id, groups);
        }
        let existing = match there {
            Existing::File(_) => ready.placer.open_existing(id).ok(),
            _ => None,
        };
        let mut data = Vec::new();
        for known in groups {
            if self.is_journaled(ready, known, &mut data) {
                held.groups.push(known.number);
                continue;
            }
            let same =
                existing.as_ref().is_some_and(|fd| read_group(&ready.tree, known, fd, &mut data));
            let in_place = match lock(&ready.files).states.get_mut(&id.0) {
                Some(State::InPlace(so_far)) => {
                    if same {
                        so_far.push(known.clone());
                    }
                    true
                }
                _ => false,
            };
            match (in_place, same) {
                (true, true) => held.groups.push(known.number),
                (true, false) if !self.options.overwrite => {
                    held.failed.push((id.0, DIFFERS.into()));
                    return Ok(());
                }
                // Becomes a part, when the first group for it comes.
                (true, false) => {}
                (false, true) => {
                    let part = self.part(ready, id)?;
                    self.write_to(ready, known, &data, &part)?;
                    held.groups.push(known.number);
                }
                (false, false) => {}
            }
            if in_place && !same {
                self.leave_place(ready, id)?;
            }
        }
        Ok(())
    }

    /// A file in place differs: from now on it is a part.
    fn leave_place(&self, ready: &Ready, id: EntryId) -> Result<(), Fault> {
        {
            let mut files = lock(&ready.files);
            if matches!(files.states.get(&id.0), Some(State::InPlace(groups)) if groups.is_empty())
            {
                files.states.remove(&id.0);
                return Ok(());
            }
        }
        self.part(ready, id).map(drop)
    }

    /// The state of a file when the first of its groups are known.
    fn first_state(&self, ready: &Ready, id: EntryId, groups: &[KnownGroup]) {
        let len = groups.first().map(|known| known.file_len);
        let same_size = matches!(ready.existing(id), Existing::File(size) if Some(size) == len);
        let resumable = self.resumable(ready, id);
        let state = match resumable {
            Some(allocated) if !same_size || self.options.overwrite => {
                self.staging.release(ready.data_len(id).saturating_sub(allocated));
                State::Part
            }
            _ if same_size && !ready.tree.is_stream() => State::InPlace(Vec::new()),
            _ => return,
        };
        lock(&ready.files).states.insert(id.0, state);
    }

    /// Whether an earlier attempt has written a group, as the journal or the partial file itself tells.
    fn is_journaled(&self, ready: &Ready, known: &KnownGroup, data: &mut Vec<u8>) -> bool {
        let id = known.entry();
        if !matches!(lock(&ready.files).states.get(&id.0), Some(State::Part)) || ready.is_single(id)
        {
            return false;
        }
        let recorded = {
            let journal = lock(&self.journal);
            journal
                .part(ready.key(id))
                .and_then(|part| part.groups.get(&known.group.index).copied())
        };
        match recorded {
            Some((digest, true)) => digest == known.digest,
            // Of another boot: the data may not have reached the disk.
            Some((digest, false)) if digest == known.digest => {
                let genuine = self
                    .part(ready, id)
                    .is_ok_and(|part| read_group(&ready.tree, known, &part, data));
                let journal = || {
                    let (key, index) = (ready.key(id), known.group.index);
                    lock(&self.journal).verified(key, index, digest)
                };
                genuine && journal().is_ok()
            }
            _ => false,
        }
    }

    /// Files without data: empty ones, and those that are one hole.
    fn place_empty(&self, ready: &Ready, id: EntryId, size: u64) -> Result<Vec<String>, Fault> {
        let existing = ready.existing(id);
        if existing == Existing::File(size) {
            let fd = ready.placer.open_existing(id).map_err(|error| ready.failure(error, id))?;
            if is_zero(&fd, 0, size) {
                return Ok(ready.placer.adopt(id)?);
            }
        }
        ready.placer.may_replace(existing).map_err(Fault::Object)?;
        let fail = |error| ready.failure(error, id);
        let name = ready.part_name(id);
        let fd = self.staging.create_part(&name).map_err(fail)?;
        if size > 0 {
            rustix::fs::ftruncate(&fd, size).map_err(fail)?;
        }
        Ok(ready.placer.put(id, &fd, &name, existing != Existing::Nothing)?)
    }

    /// Whether the holes of a file in place hold nothing but zeros.
    fn holes_are_zero(&self, ready: &Ready, id: EntryId, len: u64) -> bool {
        let Ok(fd) = ready.placer.open_existing(id) else {
            return false;
        };
        let mut at = 0;
        for extent in &ready.tree.layout().extents()[ready.tree.extents(id)] {
            if !is_zero(&fd, at, extent.start) {
                return false;
            }
            at = extent.start + extent.len;
        }
        is_zero(&fd, at, len)
    }
}

impl Target for FolderTarget {
    fn start(&self, tree: &Arc<Tree>) -> Result<Started, StoreFailure> {
        let mut ready = Ready {
            tree: tree.clone(),
            placer: self.placer(tree),
            existing: Vec::with_capacity(tree.len() as usize),
            files: Mutex::new(Files::default()),
        };
        let mut started = Started::default();
        let mut bad = vec![false; tree.len() as usize];
        for id in tree.ids() {
            let entry = tree.entry(id);
            let mut existing = Existing::Nothing;
            let outcome = match entry.kind {
                _ if entry.parent.is_some_and(|parent| bad[parent.0 as usize]) => {
                    Err(PlaceError::Object("its folder cannot be used".into()))
                }
                Kind::Folder => ready.placer.make_folder(id),
                Kind::Symlink { .. } | Kind::HardLink { .. } => Ok(()),
                Kind::File { .. } | Kind::Stream => match ready.placer.existing(id) {
                    Err(error) => Err(PlaceError::of(error, "looking at its place")),
                    Ok(found) => {
                        existing = found;
                        // A file of the same size may be the same file.
                        let same_size = matches!((found, tree.file_size(id)),
                            (Existing::File(a), Some(b)) if a == b);
                        let allowed = ready.placer.may_replace(found);
                        if same_size { Ok(()) } else { allowed.map_err(PlaceError::Object) }
                    }
                },
            };
            ready.existing.push(existing);
            match outcome {
                Ok(()) => {}
                Err(PlaceError::Object(reason)) => {
                    bad[id.0 as usize] = true;
                    started.failed.push((id.0, reason));
                    continue;
                }
                Err(other) => match other.into() {
                    Fault::Fatal(failure) => return Err(failure),
                    _ => continue,
                },
            }
            if matches!(existing, Existing::File(size) if Some(size) == tree.file_size(id)) {
                started.candidates = true;
                continue;
            }
            let resumable = self.resumable(&ready, id);
            started.candidates |= resumable.is_some() || matches!(existing, Existing::File(_));
            let needed = ready.data_len(id).next_multiple_of(DISK_BLOCK);
            started.space_needed += needed.saturating_sub(resumable.unwrap_or(0));
        }
        self.reserve(&ready, started.space_needed)?;
        // Called once: nothing is there yet.
        let _ = self.ready.set(ready);
        Ok(started)
    }

    fn held(&self, groups: &[KnownGroup]) -> Result<Held, Fault> {
        let ready = self.ready()?;
        let mut held = Held::default();
        for of_file in groups.chunk_by(|a, b| a.group.entry == b.group.entry) {
            let id = of_file[0].entry();
            match self.held_of(ready, id, of_file, &mut held) {
                Ok(()) => {}
                Err(Fault::Object(reason)) => held.failed.push((id.0, reason)),
                Err(other) => return Err(other),
            }
        }
        Ok(held)
    }

    fn write(&self, known: &KnownGroup, data: &[u8]) -> Result<(), Fault> {
        let ready = self.ready()?;
        let part = self.part(ready, known.entry())?;
        self.write_to(ready, known, data, &part)
    }

    fn spill(&self, known: &KnownGroup, at: u64, data: &[u8]) -> Result<bool, Fault> {
        let ready = self.ready()?;
        let part = self.part(ready, known.entry())?;
        let start = known.group.data.start + at;
        for piece in ready.tree.layout().pieces(start..start + data.len() as u64) {
            let from = (piece.data.start - start) as usize;
            let bytes = &data[from..from + piece.len() as usize];
            write_all_at(&part, bytes, piece.start)
                .map_err(|error| ready.failure(error, known.entry()))?;
        }
        Ok(true)
    }

    fn read(&self, known: &KnownGroup, data: &mut [u8]) -> bool {
        let Ok(ready) = self.ready() else {
            return false;
        };
        let id = known.entry();
        let is_part = matches!(lock(&ready.files).states.get(&id.0), Some(State::Part));
        let fd = if is_part {
            self.part(ready, id).ok()
        } else {
            ready.placer.open_existing(id).ok().map(Arc::new)
        };
        fd.is_some_and(|fd| read_data(&ready.tree, known, &fd, data))
    }

    fn complete(&self, id: EntryId, len: u64) -> Result<Vec<String>, Fault> {
        let ready = self.ready()?;
        let in_place = matches!(lock(&ready.files).states.get(&id.0), Some(State::InPlace(_)));
        if in_place {
            if self.holes_are_zero(ready, id, len) {
                lock(&ready.files).states.remove(&id.0);
                return Ok(ready.placer.adopt(id)?);
            }
            if !self.options.overwrite {
                return Err(Fault::Object(DIFFERS.into()));
            }
        }
        let part = self.part(ready, id)?;
        if ready.tree.is_stream() {
            rustix::fs::ftruncate(&*part, len).map_err(|error| ready.failure(error, id))?;
        }
        let replaces = ready.existing(id) != Existing::Nothing;
        let notices = ready.placer.put(id, &part, &ready.part_name(id), replaces)?;
        let mut files = lock(&ready.files);
        files.states.remove(&id.0);
        files.open.remove(&id.0);
        Ok(notices)
    }

    fn abandon(&self, id: EntryId) {
        let Ok(ready) = self.ready() else { return };
        let state = {
            let mut files = lock(&ready.files);
            files.open.remove(&id.0);
            files.states.remove(&id.0)
        };
        if matches!(state, Some(State::Part)) {
            self.staging.remove_part(&ready.part_name(id));
        }
    }

    fn finish(&self, failed: &dyn Fn(EntryId) -> bool) -> Result<Finished, StoreFailure> {
        let fatal = |fault: Fault| match fault {
            Fault::Fatal(failure) => failure,
            Fault::Object(reason) => StoreFailure::Target(reason),
            Fault::NoRoom => StoreFailure::Target("the session has no tree".into()),
        };
        let ready = self.ready().map_err(fatal)?;
        let mut report = Finish::default();
        let mut failed_here = std::collections::HashSet::new();
        for id in ready.tree.ids() {
            let Some(size) = ready.tree.file_size(id) else { continue };
            if failed(id) || !ready.tree.extents(id).is_empty() {
                continue;
            }
            match self.place_empty(ready, id, size) {
                Ok(notices) => report.notices.extend(notices.into_iter().map(|text| (id.0, text))),
                Err(Fault::Object(reason)) => {
                    failed_here.insert(id);
                    report.failed.push((id.0, reason));
                }
                Err(other) => return Err(fatal(other)),
            }
        }
        let failed = |id: EntryId| failed(id) || failed_here.contains(&id);
        ready.placer.finish(&failed, &mut report).map_err(|error| fatal(error.into()))?;
        if let Err(error) = self.staging.remove() {
            report.notices.push((0, format!("the staging folder stays: {}", explain(error))));
        }
        Ok(Finished { failed: report.failed, notices: report.notices })
    }
}

/// Reads the data of a group from a file that has them at their places.
fn read_data(tree: &Tree, known: &KnownGroup, fd: &OwnedFd, data: &mut [u8]) -> bool {
    let start = known.group.data.start;
    tree.layout().pieces(known.group.data.clone()).all(|piece| {
        let from = (piece.data.start - start) as usize;
        read_full_at(fd, &mut data[from..from + piece.len() as usize], piece.start)
    })
}

/// Reads a group into `data`, and tells whether it is genuine. Its inner holes must be zeros, too.
fn read_group(tree: &Tree, known: &KnownGroup, fd: &OwnedFd, data: &mut Vec<u8>) -> bool {
    data.resize(known.data_len() as usize, 0);
    if !read_data(tree, known, fd, data) || !known.verify(tree, data) {
        return false;
    }
    let (mut at, end) = (known.group.start(), known.group.start() + known.len());
    known.is_dense()
        || tree.layout().pieces(known.group.data.clone()).all(|piece| {
            let before = at..piece.start;
            at = piece.start + piece.len();
            is_zero(fd, before.start, before.end)
        }) && is_zero(fd, at, end)
}

pub(super) fn read_full_at(fd: &OwnedFd, mut buf: &mut [u8], mut at: u64) -> bool {
    while !buf.is_empty() {
        match rustix::io::pread(fd, &mut *buf, at) {
            Ok(0) => return false,
            Ok(len) => {
                buf = &mut buf[len..];
                at += len as u64;
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Whether a range of a file holds nothing but zeros. Its holes are not read.
fn is_zero(fd: &OwnedFd, mut at: u64, end: u64) -> bool {
    let mut buf = Vec::new();
    while at < end {
        match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => return true,
            // This file system cannot tell: read all of it.
            Err(_) => {}
        }
        let len = end.saturating_sub(at).min(1 << 16);
        buf.resize(len as usize, 0);
        if !read_full_at(fd, &mut buf, at) || buf.iter().any(|byte| *byte != 0) {
            return len == 0;
        }
        at += len;
    }
    true
}
