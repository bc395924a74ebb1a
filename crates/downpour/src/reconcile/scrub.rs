//! The disk compared with the catalog, at a bounded rate: what is lost, what is corrupt, what nobody knows.
//!
//! 1. Each replica that the catalog says this site has, of a file that was taken in before the scrub began, is read and compared
//!    with its digest. One that is not there is *lost*, one with other content, or that is no file, *corrupt*; both are recorded,
//!    so that the next comparison of catalogs has those of other sites sent again; nobody sends a site its own. One that was lost
//!    and is there again is recorded, too.
//! 2. Each file below the folders that are named, older than the scrub's beginning, must be one of these; others are *dark*. They are told,
//!    never touched; so is a folder that cannot be looked into.
//!
//! A look takes its time, and things change meanwhile (a file leaves by its rule, or comes back): what was found is recorded, and
//! told, only of replicas that are still recorded as they were when they were looked at, and whose places look as they did. The
//! record alone does not tell: it may have been written anew with the same words. Others are for the next scrub.
//!
//! What was found is recorded every few minutes, so that a scrub that is cut short goes on where it was: [`ScrubOrder::after`]. More
//! lost and corrupt ones than the threshold look like a disk that is not mounted: nothing more is recorded then, the report asks.
//!
//! Of paths only hashes are kept, eight bytes for each replica. A scrub blocks its thread.

use super::ask::Stored;
use super::compare::CANDIDATES_MAX;
use super::report::{Finding, Kind};
use super::run::RunError;
use crate::dispatch::source_class;
use crate::object::{Fingerprint, open_file};
use downpour_catalog::{
    Catalog, Change, ErrorClass, File, FileId, Reader, Replica, ReplicaState, SiteId, Time,
};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};

/// How often what was found is recorded, microseconds.
const RECORD_EVERY_US: u64 = 180_000_000;
/// How long a reader may be idle while a file is read, microseconds: after that it is opened anew, for a database closes what nobody uses.
const IDLE_MAX_US: u64 = 60_000_000;
/// Replicas that are asked for at once.
const PAGE: usize = 500;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Copies of which it is remembered what they are: what two comparisons may find.
const COPIES_MAX: usize = 2 * CANDIDATES_MAX;
/// Findings that are listed.
const LISTED_MAX: usize = 10_000;
/// Depth of folders that is walked.
const DEPTH_MAX: usize = 64;
/// Folders whose real paths are remembered.
const FOLDERS_KEPT: usize = 4096;

/// What is to be scrubbed.
#[derive(Clone, Debug)]
pub struct ScrubOrder {
    /// This site.
    pub site: String,
    /// What relative paths are relative to.
    pub base: PathBuf,
    /// Folders in which every file must be known.
    pub folders: Vec<PathBuf>,
    /// More that became lost or corrupt are not recorded.
    pub repair_max: usize,
    /// When it began, if it was cut short the first time.
    pub started: Time,
    /// The newest file then: those that came later are for the next one.
    pub last: FileId,
    /// Files up to this one were looked at by an earlier scrub, which was cut short and found that so many had become lost or
    /// corrupt: of them it tells what is recorded.
    pub after: (FileId, usize),
}

/// Lets a scrub wait, and end early: told of each piece, it says whether to go on.
pub trait Pace {
    /// So many bytes were read, so many files begun.
    fn spent(&mut self, bytes: u64, files: u64) -> bool;
    /// Whether what was found may be true: disks may have gone meanwhile.
    fn may_record(&mut self) -> Result<(), String> {
        Ok(())
    }
    /// Files up to this one were looked at, and what was found of them is recorded: so many became lost or corrupt.
    fn reached(&mut self, file: FileId, changes: usize);
}

/// What was scrubbed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Replicas that were looked at.
    pub files: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Replicas whose state was recorded anew; of the scrub that it goes on from, those that became lost or corrupt.
    pub recorded: usize,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Whether there is more than is listed.
    pub is_cut: bool,
    /// Whether more is wrong than is recorded without being asked.
    pub asks: bool,
    /// Whether it came to its end.
    pub is_whole: bool,
}

/// Scrubs once.
pub fn scrub(
    catalog: &Catalog,
    order: &ScrubOrder,
    pace: &mut impl Pace,
    now: impl Fn() -> Time,
) -> Result<Scrubbed, RunError> {
    let mut reader = catalog.reader()?;
    let site = catalog.site(&order.site)?;
    let sites = reader.sites()?;
    let mut work = Work {
        catalog,
        order,
        site,
        sites,
        done: Scrubbed { recorded: order.after.1, ..Scrubbed::default() },
        known: HashSet::new(),
        real: Default::default(),
        changed: Vec::new(),
        changes: order.after.1,
        recorded: now(),
        now: &now,
    };
    let goes_on = work.replicas(&mut reader, pace)?;
    work.done.asks = work.is_too_much();
    work.done.is_whole = goes_on && order.folders.iter().all(|folder| work.dark(folder, 0, pace));
    Ok(work.done)
}

/// What copies that were read back are, by their looks. It is held by who reads, so that a site reads for one at a time, and whoever asks
/// again, because nobody has decided yet or the reading took too long, is told without another reading.
#[derive(Clone, Debug, Default)]
pub struct Copies(Arc<Mutex<HashMap<Fingerprint, [u8; 32]>>>);

/// Reads a site's copies of these files, of a site of origin by name and version, and compares them with what its catalog says; what
/// is lost or corrupt is recorded. `site` has its name and what relative paths are relative to. While a copy is read `goes_on` is asked
/// whether to: if not, nothing is recorded.
pub fn read_back(
    catalog: &Catalog,
    site: (&str, &Path),
    copies: &Copies,
    (origin, names): (&str, &[(String, i64)]),
    now: impl Fn() -> Time,
    mut goes_on: impl FnMut() -> bool,
) -> Result<Vec<Stored>, RunError> {
    let mut known = match copies.0.try_lock() {
        Ok(known) => known,
        Err(TryLockError::Poisoned(known)) => known.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(RunError::Machine("copies are being read already".to_owned()));
        }
    };
    let (mut reader, (site, base)) = (catalog.reader()?, site);
    let site = catalog.site(site)?;
    // Whoever asks may name what is no site: it has no file, and gets no number.
    let origin = reader.site_called(origin)?.unwrap_or(SiteId(0));
    let called: Vec<_> =
        names.iter().map(|(name, version)| (origin, name.as_str(), *version)).collect();
    let (mut stored, mut changed) = (Vec::with_capacity(names.len()), Vec::new());
    let files = reader.files_called(&called)?;
    let ids: Vec<FileId> = files.iter().flatten().map(|file| file.id).collect();
    let mut replicas = reader.replicas_of(&ids)?;
    replicas.retain(|r| r.site == site && r.state != ReplicaState::Removed);
    for file in files {
        let of = |file: &File| replicas.iter().find(|replica| replica.file == file.id).cloned();
        let replica = file.as_ref().and_then(of);
        let (Some(file), Some(replica)) = (file, replica) else {
            stored.push(Stored::Nothing);
            continue;
        };
        let path = base.join(&replica.path);
        let looks = Fingerprint::at(&path);
        let Some(found) = read_once(&path, &mut known, &mut goes_on).transpose() else {
            return Err(RunError::Machine("the reading of copies was stopped".to_owned()));
        };
        let state = state_of((&file, replica.state), found)?;
        stored.push(match state {
            ReplicaState::Present => Stored::AsRecorded,
            ReplicaState::Corrupt => Stored::Damaged,
            _ => Stored::Nothing,
        });
        if state != replica.state {
            changed.push((replica, looks, state));
        }
    }
    // The first one may have been idle for too long.
    let (changes, _) = of_same(&mut catalog.reader()?, base, changed)?;
    catalog.submit(now(), changes).wait()?;
    Ok(stored)
}

/// A replica as it was recorded when it was looked at, how its place looked then, and what was found.
type Looked = (Replica, Option<Fingerprint>, ReplicaState);

/// What is to be recorded, of the replicas that are still as they were; and the others.
fn of_same(
    reader: &mut Reader,
    base: &Path,
    looked: Vec<Looked>,
) -> Result<(Vec<Change>, Vec<Looked>), RunError> {
    let files: Vec<FileId> = looked.iter().map(|(replica, ..)| replica.file).collect();
    let recorded: HashSet<Replica> = reader.replicas_of(&files)?.into_iter().collect();
    let (same, others) = looked.into_iter().partition::<Vec<_>, _>(|(replica, looks, _)| {
        recorded.contains(replica) && Fingerprint::at(&base.join(&replica.path)) == *looks
    });
    let change = |(replica, _, state)| Change::Replica(Replica { state, ..replica });
    Ok((same.into_iter().map(change).collect(), others))
}

struct Work<'a> {
    catalog: &'a Catalog,
    order: &'a ScrubOrder,
    site: SiteId,
    sites: Vec<(SiteId, String)>,
    done: Scrubbed,
    /// Hashes of the paths that the catalog knows.
    known: HashSet<u64>,
    /// Folders of some of them, and their real paths.
    real: HashMap<PathBuf, PathBuf>,
    /// What is to be recorded.
    changed: Vec<Looked>,
    /// How many became lost or corrupt in all.
    changes: usize,
    /// When it was recorded last.
    recorded: Time,
    now: &'a dyn Fn() -> Time,
}

impl Work<'_> {
    /// Looks at all replicas; `false` when the scrub is to end.
    fn replicas(&mut self, reader: &mut Reader, pace: &mut impl Pace) -> Result<bool, RunError> {
        let (mut after, mut reached, mut goes_on) = (FileId(0), self.order.after.0, true);
        while goes_on {
            let page = reader.replicas_at(self.site, after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.file;
            goes_on = pace.spent(0, 0);
            if !goes_on {
                break;
            }
            for replica in page {
                goes_on = self.replica(reader, &replica, pace)?;
                if !goes_on {
                    break;
                }
                reached = reached.max(replica.file);
                if (self.now)().0.abs_diff(self.recorded.0) >= RECORD_EVERY_US {
                    self.record(reader, reached, pace)?;
                }
            }
        }
        self.record(reader, reached, pace)?;
        Ok(goes_on)
    }

    /// Looks at one, if that was not done; `false` when the scrub is to end.
    fn replica(
        &mut self,
        reader: &mut Reader,
        replica: &Replica,
        pace: &mut impl Pace,
    ) -> Result<bool, RunError> {
        let path = self.order.base.join(&replica.path);
        let hash = self.hash_of(&path);
        self.known.insert(hash);
        let is_later = replica.file > self.order.last;
        let was_looked_at = replica.file <= self.order.after.0;
        let recorded = replica.state;
        let is_right = was_looked_at && recorded == ReplicaState::Present;
        if is_later || recorded == ReplicaState::Removed || is_right {
            return Ok(true);
        }
        let Some(file) = reader.file(replica.file)? else { return Ok(true) };
        let looks = Fingerprint::at(&path);
        let state = match was_looked_at {
            true => recorded,
            false => {
                let begun = (self.now)();
                let Some(state) = self.look(&path, (&file, recorded), pace)? else {
                    return Ok(false);
                };
                if (self.now)().0.abs_diff(begun.0) >= IDLE_MAX_US {
                    *reader = self.catalog.reader()?;
                }
                state
            }
        };
        if state != ReplicaState::Present || state != recorded {
            self.judge(reader, &file, (replica.clone(), looks, state))?;
        }
        Ok(true)
    }

    const fn is_too_much(&self) -> bool {
        self.changes > self.order.repair_max
    }

    /// Records what was found up to this file, unless it is too much.
    fn record(
        &mut self,
        reader: &mut Reader,
        reached: FileId,
        pace: &mut impl Pace,
    ) -> Result<(), RunError> {
        self.recorded = (self.now)();
        if self.is_too_much() {
            return Ok(());
        }
        if !self.changed.is_empty() {
            pace.may_record().map_err(RunError::Machine)?;
        }
        let changed = std::mem::take(&mut self.changed);
        let (changes, others) = of_same(reader, &self.order.base, changed)?;
        for (replica, _, state) in others {
            self.changes -= usize::from(state != ReplicaState::Present);
            self.done.findings.retain(|finding| finding.note != replica.path);
        }
        let answers = self.catalog.submit(self.recorded, changes).wait()?;
        self.done.recorded += answers.iter().filter(|answer| answer.is_ok()).count();
        pace.reached(reached, self.changes);
        Ok(())
    }

    /// What is on the disk; `None` when the scrub is to end.
    fn look(
        &mut self,
        path: &Path,
        of: (&File, ReplicaState),
        pace: &mut impl Pace,
    ) -> Result<Option<ReplicaState>, RunError> {
        self.done.files += 1;
        if !pace.spent(0, 1) {
            return Ok(None);
        }
        let found = open(path).and_then(|mut file| {
            read(&mut file, |bytes| {
                self.done.bytes += bytes;
                pace.spent(bytes, 0)
            })
        });
        found.transpose().map(|found| state_of(of, found)).transpose()
    }

    /// Of what is wrong, or is no longer.
    fn judge(&mut self, reader: &mut Reader, file: &File, looked: Looked) -> Result<(), RunError> {
        let (replica, _, state) = &looked;
        if !reader.replicas(file.id)?.contains(replica) {
            return Ok(());
        }
        let kind = match state {
            ReplicaState::Lost => Some(Kind::Lost),
            ReplicaState::Corrupt => Some(Kind::Corrupt),
            _ => None,
        };
        if let Some(kind) = kind {
            let origin = self.sites.iter().find(|(id, _)| *id == file.site);
            let origin = origin.map_or_else(String::new, |(_, name)| name.clone());
            let (name, version) = (file.name.clone(), file.version);
            self.find(kind, origin, name, version, file.size, &replica.path);
        }
        if *state != replica.state {
            // What is there again is no sign of a disk that is not mounted.
            self.changes += usize::from(*state != ReplicaState::Present);
            self.changed.push(looked);
        }
        if self.is_too_much() {
            self.changed.clear();
        }
        Ok(())
    }

    fn find(
        &mut self,
        kind: Kind,
        origin: String,
        name: String,
        version: i64,
        size: u64,
        note: &str,
    ) {
        if self.done.findings.len() == LISTED_MAX {
            self.done.is_cut = true;
            return;
        }
        let (holder, note) = (self.order.site.clone(), note.to_owned());
        self.done.findings.push(Finding { kind, holder, origin, name, version, size, note });
    }

    /// Files below a folder that the catalog does not know, and folders that are not looked into; `false` when the scrub is to end.
    fn dark(&mut self, folder: &Path, depth: usize, pace: &mut impl Pace) -> bool {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            // It went meanwhile, or is the file system's own.
            Err(error)
                if depth > 0 && error.kind() == io::ErrorKind::NotFound
                    || folder.ends_with("lost+found") =>
            {
                return true;
            }
            Err(error) => {
                self.not_seen(folder, &error.to_string());
                return true;
            }
        };
        for entry in entries {
            if !pace.spent(0, 1) {
                return false;
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.not_seen(folder, &error.to_string());
                    continue;
                }
            };
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() {
                let ours = entry.file_name().as_encoded_bytes() == crate::object::STAGING_NAME;
                if !ours && depth == DEPTH_MAX {
                    self.not_seen(&path, "it lies too deep");
                } else if !ours && !self.dark(&path, depth + 1, pace) {
                    return false;
                }
                continue;
            }
            let Ok(meta) = entry.metadata() else { continue };
            // What came meanwhile may be recorded only now.
            let changed_us = meta.ctime().saturating_mul(1_000_000);
            if kind.is_file()
                && changed_us + 2_000_000 < self.order.started.0
                && !self.is_known(&path)
            {
                let name = path.to_string_lossy().into_owned();
                self.find(Kind::Dark, String::new(), name, 0, meta.len(), "");
            }
        }
        true
    }

    fn is_known(&mut self, path: &Path) -> bool {
        let hash = self.hash_of(path);
        self.known.contains(&hash)
    }

    /// Of the real path of the folder, and the name: a folder may be reached by a link, or be spelled otherwise.
    fn hash_of(&mut self, path: &Path) -> u64 {
        let folder = path.parent().unwrap_or(path);
        if !self.real.contains_key(folder) {
            if self.real.len() >= FOLDERS_KEPT {
                self.real.clear();
            }
            // Of one that is not there nothing is met.
            let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
            self.real.insert(folder.to_owned(), real);
        }
        let real = self.real[folder].join(path.file_name().unwrap_or_default());
        super::ask::short(blake3::hash(real.as_os_str().as_encoded_bytes()).as_bytes())
    }

    /// What lies in this folder may be dark.
    fn not_seen(&mut self, folder: &Path, why: &str) {
        let (name, note) =
            (folder.to_string_lossy().into_owned(), format!("not looked into: {why}"));
        self.find(Kind::Dark, String::new(), name, 0, 0, &note);
    }
}

/// What is on the disk, beside what is recorded. Other content in the place of a lost one may be another file's.
fn state_of(
    (file, recorded): (&File, ReplicaState),
    found: io::Result<[u8; 32]>,
) -> Result<ReplicaState, RunError> {
    let digest = file.digest.as_ref().map(downpour_catalog::Digest::value);
    match found {
        Ok(found) if digest.is_none_or(|digest| digest == found) => Ok(ReplicaState::Present),
        Ok(_) if recorded == ReplicaState::Lost => Ok(recorded),
        Ok(_) => Ok(ReplicaState::Corrupt),
        Err(error) => state_by(&error).ok_or_else(|| RunError::Machine(error.to_string())),
    }
}

/// What an error in reading says of a copy; `None` when it is this machine that lacks something.
pub(crate) fn state_by(error: &io::Error) -> Option<ReplicaState> {
    match source_class(error) {
        ErrorClass::OutOfResources => None,
        ErrorClass::FileGone => Some(ReplicaState::Lost),
        // A disk that does not read is no proof of anything but that the file is not to be had.
        _ => Some(ReplicaState::Corrupt),
    }
}

/// Opens what must be a regular file.
fn open(path: &Path) -> io::Result<fs::File> {
    open_file(path)?.ok_or_else(|| io::Error::other("no regular file"))
}

/// A file's BLAKE3; `goes_on` is told of each piece, and says whether it is to be read to its end: `None` if not.
fn read(file: &mut fs::File, mut goes_on: impl FnMut(u64) -> bool) -> io::Result<Option<[u8; 32]>> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    loop {
        let len = file.read(&mut piece)?;
        if len == 0 {
            return Ok(Some(*hasher.finalize().as_bytes()));
        }
        if !goes_on(len as u64) {
            return Ok(None);
        }
        hasher.update(&piece[..len]);
    }
}

/// A file's BLAKE3, as it was read before if it has not changed since.
fn read_once(
    path: &Path,
    known: &mut HashMap<Fingerprint, [u8; 32]>,
    goes_on: &mut impl FnMut() -> bool,
) -> io::Result<Option<[u8; 32]>> {
    let mut file = open(path)?;
    let looks = Fingerprint::of(&rustix::fs::fstat(&file)?);
    if let Some(digest) = known.get(&looks) {
        return Ok(Some(*digest));
    }
    let Some(digest) = read(&mut file, |_| goes_on())? else { return Ok(None) };
    if Fingerprint::of(&rustix::fs::fstat(&file)?) == looks {
        if known.len() == COPIES_MAX {
            known.clear();
        }
        known.insert(looks, digest);
    }
    Ok(Some(digest))
}

#[cfg(test)]
mod tests;
