//! A folder as target: partial files in the staging folder, journaled, placed when complete.
//!
//! A file is in one of these states, from the first of its groups on:
//! - *in place*: a file of the same size is there already, and all groups so far are identical;
//! - *part*: it grows in the staging folder. Groups come from the network, from an earlier attempt
//!   (journal), or from a differing file that is to be replaced.
//!
//! Files of one group are not journaled: they are placed at once, and found in place by the next run.
//!
//! In a lane all files keep their names in the staging folder until all are whole and on the disk:
//! no crash of the machine leaves one in its place that has not its content. There those of one group are journaled, too.

mod held;
mod part;
#[cfg(test)]
mod tests;

use super::target::{Fault, Finished, Held, Started, Target};
use super::{StoreFailure, lock};
use crate::object::disk::{is_zero, write_all_at, zero_range};
use crate::object::group::{GroupData, KnownGroup};
use crate::object::journal::{Boot, Journal, PartKey};
use crate::object::limits::GROUP_LEN;
use crate::object::place::{
    Beneath, Existing, MetaPolicy, Obstacle, OnNotice, OpenError, PlaceError, Placer, Staging, Why,
    differs,
};
use crate::object::scan::explain;
use crate::object::tree::{EntryId, Kind, Tree};
use crate::object::xattr::is_privileged;
use part::Part;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

/// Room that a file takes at least; file systems allocate in blocks of about this.
const DISK_BLOCK: u64 = 4096;

/// How objects are placed below a folder.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// The folder; made if need be.
    pub out: PathBuf,
    /// Replace files that differ. Default: no, such an object fails.
    pub overwrite: bool,
    /// Keep owner and group, if run as root. Default: yes.
    pub owner: bool,
    /// Keep setuid and setgid bits of files, if run as root. Default: no.
    pub setuid: bool,
    /// Make extended attributes and ACLs what the sender tells; as root also capabilities. Default: no.
    pub xattrs: bool,
    /// Give folders the sender's metadata. Default: yes. If not, one that is there stays as it is.
    pub folders: bool,
    /// Keep what is not finished in this folder below the staging folder, so that several sessions may run into one
    /// target. It stays afterwards, with partial files that are not this session's. No file gets its name before all are on
    /// the disk. Default: none.
    pub lane: Option<String>,
    /// Set as soon as all the room that a session needs is taken from the file system, which not every one can give.
    pub reserved: Arc<AtomicBool>,
}

impl FolderOptions {
    /// With the defaults.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        Self {
            out: out.into(),
            overwrite: false,
            owner: true,
            setuid: false,
            xattrs: false,
            folders: true,
            lane: None,
            reserved: Arc::default(),
        }
    }
}

pub(super) struct FolderTarget {
    options: FolderOptions,
    // Closed before the staging folder is let go of.
    journal: Mutex<Journal>,
    ready: OnceLock<Ready>,
    staging: Arc<Staging>,
}

/// What is known with the tree.
struct Ready {
    tree: Arc<Tree>,
    placer: Placer,
    /// Files are placed at the end, all at once.
    at_end: bool,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    states: HashMap<u32, State>,
    /// Open parts; emptied when full, and opened again by name.
    open: HashMap<u32, Arc<Part>>,
    /// Parts that are complete and wait for the end.
    whole: HashSet<EntryId>,
}

enum State {
    /// The groups that were identical so far.
    InPlace(Vec<KnownGroup>),
    /// See [`Part`].
    Part { is_new: bool },
    /// Another thread may still be at it: it makes nothing of it any more.
    GivenUp,
}

impl Ready {
    fn is_single(&self, id: EntryId) -> bool {
        self.tree.groups_of(id).len() <= 1 && !self.tree.is_stream()
    }

    /// Whether the next attempt finds its partial file.
    fn is_journaled(&self, id: EntryId) -> bool {
        self.at_end || !self.is_single(id)
    }

    fn key(&self, id: EntryId) -> PartKey {
        PartKey::new(&self.tree.path(id), self.tree.file_size(id))
    }

    fn part_name(&self, id: EntryId) -> Vec<u8> {
        if self.is_journaled(id) {
            self.key(id).file_name()
        } else {
            format!("s{}", id.0).into_bytes()
        }
    }

    fn data_len(&self, id: EntryId) -> u64 {
        let data = self.tree.data_of(id);
        if self.tree.is_stream() { 0 } else { data.end - data.start }
    }

    fn existing(&self, id: EntryId) -> Existing {
        self.placer.found[id.0 as usize]
    }

    /// The ranges of a file of `len` bytes that hold no data.
    fn holes(&self, id: EntryId, len: u64) -> impl Iterator<Item = Range<u64>> {
        let extents = &self.tree.layout().extents()[self.tree.extents(id)];
        let ends = extents.iter().map(|extent| extent.start + extent.len);
        let starts = extents.iter().map(|extent| extent.start).chain([len]);
        std::iter::once(0).chain(ends).zip(starts).map(|(from, to)| from..to)
    }

    /// What of the attributes that were asked for cannot be had, if there is such.
    fn xattrs_left(&self, asked: bool) -> Option<String> {
        if !asked || self.tree.is_stream() {
            return None;
        }
        if !self.tree.has_xattrs() {
            let text = "the sender tells no extended attributes: give --xattrs there, too";
            return Some(text.to_owned());
        }
        let all = self.tree.ids().map(|id| self.tree.entry(id)).chain(self.tree.root());
        let left = all.flat_map(|entry| entry.xattrs).filter(|x| is_privileged(&x.name)).count();
        (left > 0 && !self.placer.meta.root)
            .then(|| format!("{left} attributes not set (trusted.*, capabilities): only root may"))
    }

    fn failure(&self, error: Errno, id: EntryId) -> Fault {
        PlaceError::of(error, &format!("writing {}", self.tree.path_text(id))).into()
    }
}

impl FolderTarget {
    pub(super) fn open(options: FolderOptions) -> Result<Self, OpenError> {
        let staging = Staging::open(&options.out, options.lane.as_deref())?;
        let boot = Boot::here(&**staging.out());
        let refused = |error| OpenError::of(&options.out, error);
        let fail = |error: std::io::Error| OpenError::of_io(&options.out, &error);
        let read = |file| Journal::open(file, boot).map_err(fail);
        let mut journal = read(staging.journal().map_err(refused)?)?;
        // Where it cannot be written anew, the long one is as good.
        let live = journal.live(&staging.names().map_err(refused)?);
        if let Some(file) = live.and_then(|bytes| staging.replace_journal(&bytes).ok()) {
            journal = read(file)?;
        }
        let (staging, journal) = (Arc::new(staging), Mutex::new(journal));
        Ok(Self { options, staging, journal, ready: OnceLock::new() })
    }

    fn ready(&self) -> Result<&Ready, Fault> {
        // The store calls nothing else before `start`.
        self.ready.get().ok_or(Fault::NoRoom)
    }

    fn placer(&self, tree: &Arc<Tree>) -> Placer {
        let root = rustix::process::geteuid().is_root();
        let trusted_told = tree.tells_trusted();
        let FolderOptions { owner, setuid, xattrs, overwrite, folders, .. } = self.options;
        Placer {
            beneath: Beneath::new(self.staging.out().clone(), tree.clone()),
            staging: self.staging.clone(),
            meta: MetaPolicy {
                root,
                owner,
                setuid,
                xattrs: xattrs && tree.has_xattrs(),
                trusted_told,
            },
            overwrite,
            folders,
            found: Vec::with_capacity(tree.len() as usize),
            unsynced: Mutex::default(),
        }
    }

    /// What is at an entry's place, if the entry can have that place; a folder has it then. `seen` are the files that were
    /// found before.
    fn look(
        &self,
        ready: &Ready,
        id: EntryId,
        seen: &mut HashMap<(u64, u64), EntryId>,
    ) -> Result<Existing, PlaceError> {
        let (tree, placer) = (&ready.tree, &ready.placer);
        let (name, kind) = (tree.entry(id).name, tree.entry(id).kind);
        if tree.entry(id).parent.is_none() && self.staging.is_own(name) {
            let text = "this file system does not tell its name from .downpour, which is the \
                        receiver's own: rename it at the sender";
            return Err(PlaceError::Object(Why::new(Obstacle::Refused, text)));
        }
        if kind == Kind::Folder {
            return placer.make_folder(id).map(|()| Existing::Nothing);
        }
        let stat = match placer.stat(id) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Existing::Nothing),
            Err(error) => return Err(PlaceError::of(error, "looking at its place")),
        };
        let found = Existing::of(&stat);
        // One file with two names of the tree, as where case is not told apart: one would replace the other. Hard links are
        // two places.
        if self.options.overwrite && stat.st_nlink == 1 {
            let first = *seen.entry((stat.st_dev, stat.st_ino)).or_insert(id);
            if first != id {
                let first = tree.path_text(first);
                let text = format!(
                    "this file system does not tell its name from that of {first}: rename one of \
                     them at the sender"
                );
                return Err(PlaceError::Object(Why::new(Obstacle::Taken, text)));
            }
        }
        match kind {
            // Such are looked at once more when all files are there.
            Kind::Symlink { .. } | Kind::HardLink { .. } => Ok(found),
            // A file of the same size may be the same file.
            _ if tree.file_size(id).is_some_and(|size| found == Existing::File(size)) => Ok(found),
            _ => placer.may_replace(found).map(|()| found).map_err(PlaceError::Object),
        }
    }

    /// Files without data: empty ones, and those that are one hole.
    fn place_empty(&self, ready: &Ready, id: EntryId, size: u64) -> Result<Vec<String>, Fault> {
        let existing = ready.existing(id);
        if existing == Existing::File(size)
            && let Some(fd) = self.open_existing(ready, id)?
            && is_zero(&fd, 0, size)
        {
            return Ok(ready.placer.adopt(id)?);
        }
        ready.placer.may_replace(existing).map_err(Fault::Object)?;
        let fail = |error| ready.failure(error, id);
        let name = ready.part_name(id);
        if ready.is_journaled(id) {
            // Of another content of this name and size.
            lock(&self.journal).begin(ready.key(id)).map_err(fail)?;
        }
        let fd = self.staging.create_part(&name).map_err(fail)?;
        if size > 0 {
            rustix::fs::ftruncate(&fd, size).map_err(fail)?;
        }
        Ok(ready.placer.put(id, &fd, &name, existing != Existing::Nothing)?)
    }

    /// A part that is complete.
    fn place(&self, ready: &Ready, id: EntryId) -> Result<Vec<String>, Fault> {
        let part = self.part(ready, id)?;
        let replaces = ready.existing(id) != Existing::Nothing;
        let notices = ready.placer.put(id, &part.file, &ready.part_name(id), replaces)?;
        let mut files = lock(&ready.files);
        files.states.remove(&id.0);
        files.open.remove(&id.0);
        Ok(notices)
    }

    /// Whether the holes of a file in place hold nothing but zeros.
    fn holes_are_zero(&self, ready: &Ready, id: EntryId, len: u64) -> bool {
        let existing = ready.placer.open_existing(id);
        existing.is_ok_and(|fd| ready.holes(id, len).all(|hole| is_zero(&fd, hole.start, hole.end)))
    }

    /// An earlier attempt may have had data where this file has holes: they become zeros, and
    /// what it recorded of them void.
    fn clear_holes(&self, ready: &Ready, id: EntryId, part: &Part, len: u64) -> Result<(), Errno> {
        part.full(ready.holes(id, len)).try_for_each(|hole| {
            let groups = hole.start / GROUP_LEN..hole.end.div_ceil(GROUP_LEN);
            lock(&self.journal).void(ready.key(id), groups)?;
            zero_range(&part.file, hole.start, hole.end)
        })
    }
}

impl FolderTarget {
    /// A sync has failed: what was to be on the disk may not be, whatever is read of it now, and another sync need not
    /// fail. So nothing of it counts as held any more. Returns what has become of it: a file system that has turned
    /// read-only lets nothing go.
    fn take_back(&self, ready: &Ready) -> String {
        let forgotten = lock(&self.journal).forget();
        let mut left = Vec::new();
        for id in ready.tree.ids() {
            match ready.tree.entry(id).kind {
                // By now it may have the mode of one that lets nothing go.
                Kind::Folder => drop(ready.placer.make_folder(id)),
                _ if ready.placer.take_back(id, &ready.part_name(id)) => {}
                _ => left.push(id),
            }
        }
        let lane = self.options.lane.iter().map(|lane| format!("{lane}/")).collect::<String>();
        // The next attempt would go on with what the journal says of them.
        let parts = forgotten.err().map(|_| format!(".downpour/{lane}parts"));
        match (left.first(), parts) {
            (None, None) => {
                "what was not synced before is out of its place, and comes again".into()
            }
            (None, Some(parts)) => format!(
                "what was not synced before is out of its place, and comes again once {parts} is \
                 removed"
            ),
            (Some(first), parts) => format!(
                "files that came and could not be taken out of their places, and may not be on the \
                 disk: {}, the first is {}: compare or remove them before the next try{}",
                left.len(),
                ready.tree.path_text(*first),
                parts.map(|parts| format!("; remove {parts}, too")).unwrap_or_default()
            ),
        }
    }
}

impl Target for FolderTarget {
    fn start(&self, tree: &Arc<Tree>) -> Result<Started, StoreFailure> {
        let mut ready = Ready {
            tree: tree.clone(),
            placer: self.placer(tree),
            at_end: self.options.lane.is_some(),
            files: Mutex::new(Files::default()),
        };
        let (mut started, mut space_needed) = (Started::default(), 0);
        let (mut bad, mut seen) = (vec![false; tree.len() as usize], HashMap::new());
        for id in tree.ids() {
            let entry = tree.entry(id);
            let outcome = match entry.parent.is_some_and(|parent| bad[parent.0 as usize]) {
                true => {
                    let text = "its folder cannot be used";
                    Err(PlaceError::Object(Why::new(Obstacle::Failed, text)))
                }
                false => self.look(&ready, id, &mut seen),
            };
            ready.placer.found.push(*outcome.as_ref().unwrap_or(&Existing::Nothing));
            let existing = match outcome {
                Ok(_) if matches!(entry.kind, Kind::Symlink { .. } | Kind::HardLink { .. }) => {
                    continue;
                }
                Ok(existing) => existing,
                Err(PlaceError::Object(reason)) => {
                    bad[id.0 as usize] = true;
                    started.failed.push((id.0, reason));
                    continue;
                }
                Err(other) => match other.into() {
                    Fault::Fatal(failure) => return Err(failure),
                    _ => continue,
                },
            };
            if matches!(existing, Existing::File(size) if Some(size) == tree.file_size(id)) {
                started.candidates = true;
                continue;
            }
            let resumable = self.resumable(&ready, id);
            started.candidates |= resumable.is_some() || matches!(existing, Existing::File(_));
            let needed = ready.data_len(id).next_multiple_of(DISK_BLOCK);
            space_needed += needed.saturating_sub(resumable.unwrap_or(0));
        }
        self.reserve(&ready, space_needed)?;
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

    fn write(&self, known: &KnownGroup, data: GroupData<'_>) -> Result<(), Fault> {
        let ready = self.ready()?;
        let part = self.part(ready, known.entry())?;
        self.write_to(ready, known, data, &part)
    }

    fn spill(&self, known: &KnownGroup, at: u64, data: &[u8]) -> Result<bool, Fault> {
        let ready = self.ready()?;
        let part = self.part(ready, known.entry())?;
        self.replace(ready, known)?;
        let start = known.group.data.start + at;
        for piece in ready.tree.layout().pieces(start..start + data.len() as u64) {
            let from = (piece.data.start - start) as usize;
            let bytes = &data[from..from + piece.len() as usize];
            write_all_at(&part.file, bytes, piece.start)
                .map_err(|error| ready.failure(error, known.entry()))?;
        }
        Ok(true)
    }

    fn read(&self, known: &KnownGroup, data: &mut [u8]) -> bool {
        let Ok(ready) = self.ready() else {
            return false;
        };
        let id = known.entry();
        let is_part = matches!(lock(&ready.files).states.get(&id.0), Some(State::Part { .. }));
        let mut read = |fd: &OwnedFd| known.read_from(&ready.tree, fd, data);
        match is_part {
            true => self.part(ready, id).is_ok_and(|part| read(&part.file)),
            false => ready.placer.open_existing(id).is_ok_and(|fd| read(&fd)),
        }
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
                return Err(Fault::Object(differs()));
            }
        }
        let part = self.part(ready, id)?;
        if ready.tree.is_stream() {
            rustix::fs::ftruncate(&part.file, len).map_err(|error| ready.failure(error, id))?;
        }
        let cleared = self.clear_holes(ready, id, &part, len);
        cleared.map_err(|error| ready.failure(error, id))?;
        if ready.at_end {
            lock(&ready.files).whole.insert(id);
            return Ok(Vec::new());
        }
        self.place(ready, id)
    }

    fn has_put(&self, id: EntryId) -> bool {
        self.ready().is_ok_and(|ready| ready.placer.has_put(id))
    }

    fn abandon(&self, id: EntryId) {
        let Ok(ready) = self.ready() else { return };
        let state = {
            let mut files = lock(&ready.files);
            files.open.remove(&id.0);
            files.states.insert(id.0, State::GivenUp)
        };
        if matches!(state, Some(State::Part { .. })) {
            self.staging.remove_part(&ready.part_name(id));
        }
    }

    fn finish(
        &self,
        failed: &dyn Fn(EntryId) -> bool,
        notice: OnNotice<'_>,
    ) -> Result<Finished, StoreFailure> {
        let fatal = |fault: Fault| match fault {
            Fault::Fatal(failure) => failure,
            Fault::Object(why) => StoreFailure::Target(why.text),
            Fault::NoRoom => StoreFailure::Target("the session has no tree".into()),
        };
        let ready = self.ready().map_err(fatal)?;
        let whole = std::mem::take(&mut lock(&ready.files).whole);
        let unsynced = |error: Errno| {
            let doing = format!("syncing the target ({})", self.take_back(ready));
            fatal(PlaceError::of(error, &doing).into())
        };
        if !whole.is_empty() {
            let target = std::slice::from_ref(ready.placer.beneath.root());
            ready.placer.sync(target).map_err(unsynced)?;
        }
        let mut lost = Vec::new();
        let mut failed_here = HashSet::new();
        for id in ready.tree.ids() {
            let size = ready.tree.file_size(id).filter(|_| ready.tree.extents(id).is_empty());
            let outcome = match size {
                _ if failed(id) => continue,
                Some(size) => self.place_empty(ready, id, size),
                None if whole.contains(&id) => self.place(ready, id),
                None => continue,
            };
            match outcome {
                Ok(notices) => notices.into_iter().for_each(|text| notice(id, text)),
                Err(Fault::Object(reason)) => {
                    failed_here.insert(id);
                    lost.push((id.0, reason));
                }
                Err(other) => return Err(fatal(other)),
            }
        }
        let failed = |id: EntryId| failed(id) || failed_here.contains(&id);
        let reached = ready.placer.finish(&failed, &mut lost, notice);
        ready.placer.sync(&reached.map_err(|error| fatal(error.into()))?).map_err(unsynced)?;
        let mut of_target = Vec::new();
        // In this lane others' next attempt can use what the journal knows.
        let mut kept = lock(&self.journal).names();
        for id in ready.tree.ids() {
            kept.remove(&ready.part_name(id));
        }
        if let Err(error) =
            self.staging.remove(|name| kept.contains(name) && self.staging.is_recent(name))
        {
            of_target.push(format!("the staging folder stays: {}", explain(error)));
        }
        of_target.extend(ready.xattrs_left(self.options.xattrs));
        // Whatever stays: the one that the tree tells comes last.
        self.staging.set_back();
        // After the last change of what is in it.
        of_target.extend(ready.placer.finish_target());
        Ok(Finished { failed: lost, of_target })
    }
}
