//! The disk compared with the catalog, at a bounded rate: what is lost, what is corrupt, what nobody knows.
//!
//! 1. Each replica that the catalog says this site has, of a file that was taken in before the scrub began, is read and compared
//!    with its digest. One that is not there is *lost*, one with other content, or that is no file, *corrupt*; both are recorded,
//!    so that the next comparison of catalogs has those of other sites sent again; nobody sends a site its own. One that was lost
//!    and is there again is recorded, too.
//! 2. Each file below the folders that are named, older than the scrub's beginning, must be one of these; others are *dark*. They are told,
//!    never touched.
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

/// Reads a site's copies of these files of `origin` (name and version) and compares them with what its catalog says; what is lost or
/// corrupt is recorded. `site` has its name and what relative paths are relative to.
pub fn read_back(
    catalog: &Catalog,
    site: (&str, &Path),
    copies: &Copies,
    origin: &str,
    names: &[(String, i64)],
    now: impl Fn() -> Time,
) -> Result<Vec<Stored>, RunError> {
    let mut known = match copies.0.try_lock() {
        Ok(known) => known,
        Err(TryLockError::Poisoned(known)) => known.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(RunError::Machine("copies are being read already".to_owned()));
        }
    };
    let (mut reader, (site, base)) = (catalog.reader()?, site);
    let (site, origin) = (catalog.site(site)?, catalog.site(origin)?);
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
        let state = state_of((&file, replica.state), read_once(&path, &mut known))?;
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
        self.known.insert(hash_of(&path));
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
        let mut goes_on = true;
        let found = open(path).and_then(|mut file| {
            read(&mut file, |bytes| {
                self.done.bytes += bytes;
                goes_on = goes_on && pace.spent(bytes, 0);
                goes_on
            })
        });
        let state = state_of(of, found)?;
        Ok(goes_on.then_some(state))
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

    /// Files below a folder that the catalog does not know; `false` when the scrub is to end.
    fn dark(&mut self, folder: &Path, depth: usize, pace: &mut impl Pace) -> bool {
        let Ok(entries) = fs::read_dir(folder) else { return true };
        for entry in entries.flatten() {
            if !pace.spent(0, 1) {
                return false;
            }
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() {
                let ours = entry.file_name().as_encoded_bytes() == crate::object::STAGING_NAME;
                if !ours && depth < DEPTH_MAX && !self.dark(&path, depth + 1, pace) {
                    return false;
                }
                continue;
            }
            let Ok(meta) = entry.metadata() else { continue };
            // What came meanwhile may be recorded only now.
            let changed_us = meta.ctime().saturating_mul(1_000_000);
            if kind.is_file()
                && changed_us + 2_000_000 < self.order.started.0
                && !self.known.contains(&hash_of(&path))
            {
                let name = path.to_string_lossy().into_owned();
                self.find(Kind::Dark, String::new(), name, 0, meta.len(), "");
            }
        }
        true
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
fn state_by(error: &io::Error) -> Option<ReplicaState> {
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

/// A file's BLAKE3; `goes_on` is told of each piece.
fn read(file: &mut fs::File, mut goes_on: impl FnMut(u64) -> bool) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    loop {
        let len = file.read(&mut piece)?;
        if len == 0 || !goes_on(len as u64) {
            return Ok(*hasher.finalize().as_bytes());
        }
        hasher.update(&piece[..len]);
    }
}

/// A file's BLAKE3, as it was read before if it has not changed since.
fn read_once(path: &Path, known: &mut HashMap<Fingerprint, [u8; 32]>) -> io::Result<[u8; 32]> {
    let mut file = open(path)?;
    let looks = Fingerprint::of(&rustix::fs::fstat(&file)?);
    if let Some(digest) = known.get(&looks) {
        return Ok(*digest);
    }
    let digest = read(&mut file, |_| true)?;
    if Fingerprint::of(&rustix::fs::fstat(&file)?) == looks {
        if known.len() == COPIES_MAX {
            known.clear();
        }
        known.insert(looks, digest);
    }
    Ok(digest)
}

fn hash_of(path: &Path) -> u64 {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    super::ask::short(hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{Copies, Pace, ScrubOrder, Scrubbed, read_back, scrub, state_by};
    use crate::object::Digest as Blake3;
    use crate::reconcile::Kind;
    use crate::reconcile::Stored;
    use downpour_catalog::{
        AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, FileId, OtherContent,
        Replica, ReplicaState, RuleId, SiteId, Time,
    };
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::io::Errno;
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use tempfile::TempDir;

    /// In 2096, so that no file on the disk is younger.
    const NOW: Time = Time(4_000_000_000_000_000);

    /// Counts, and ends after so many files.
    struct Counted(u64, u64);

    impl Pace for Counted {
        fn spent(&mut self, bytes: u64, files: u64) -> bool {
            self.0 += bytes;
            self.1 = self.1.saturating_sub(files);
            self.1 > 0
        }

        fn reached(&mut self, _file: FileId, _changes: usize) {}
    }

    /// Does something before each file, and ends before this one; knows how far it came.
    struct Meanwhile<'a>(&'a dyn Fn(u64), u64, (FileId, usize));

    const BEGINNING: (FileId, usize) = (FileId(0), 0);

    impl Pace for Meanwhile<'_> {
        fn spent(&mut self, _bytes: u64, files: u64) -> bool {
            self.1 = self.1.saturating_sub(files);
            if files > 0 {
                self.0(self.1);
            }
            self.1 > 0
        }

        fn reached(&mut self, file: FileId, changes: usize) {
            self.2 = (file, changes);
        }
    }

    /// A site with ten files.
    struct Ten {
        folder: TempDir,
        catalog: Catalog,
        site: SiteId,
        rule: RuleId,
        files: Vec<FileId>,
    }

    impl Ten {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let data = folder.path().join("data");
            fs::create_dir_all(data.join("deep/.downpour")).unwrap();
            let url = CatalogUrl::Sqlite(folder.path().join("c.db"));
            let catalog = Catalog::open(&url, "daemon", NOW, &BeforeMigration::Refuse).unwrap();
            let (site, rule) = (catalog.site("here").unwrap(), catalog.rule("all").unwrap());
            let ten = Self { folder, catalog, site, rule, files: Vec::new() };
            Self { files: (0..10).map(|n| ten.adopt(n, NOW)).collect(), ..ten }
        }

        fn adopt(&self, n: u64, now: Time) -> FileId {
            let (name, content) = (format!("deep/{n}"), format!("content {n}"));
            let path = self.data().join(&name);
            fs::write(&path, &content).unwrap();
            let adopted = AdoptedFile {
                site: self.site,
                size: content.len() as u64,
                rule: self.rule,
                digest: Digest::blake3(Blake3::of(content.as_bytes()).0),
                others: Vec::new(),
                replicas: vec![(self.site, path.to_string_lossy().into_owned())],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
                name,
            };
            self.catalog.apply(now, &[Change::Adopt(adopted)]).unwrap()[0].clone().unwrap().file
        }

        fn data(&self) -> PathBuf {
            self.folder.path().join("data")
        }

        fn order(&self, repair_max: usize) -> ScrubOrder {
            ScrubOrder {
                site: "here".into(),
                base: self.folder.path().into(),
                folders: vec![self.data()],
                repair_max,
                started: NOW.plus_s(1),
                last: self.catalog.reader().unwrap().newest_file().unwrap(),
                after: BEGINNING,
            }
        }

        fn replicas(&self) -> Vec<Replica> {
            self.catalog.reader().unwrap().replicas_at(self.site, FileId(0), 100).unwrap()
        }

        fn states(&self) -> Vec<ReplicaState> {
            self.replicas().into_iter().map(|replica| replica.state).collect()
        }

        fn record(&self, n: usize, path: String, state: ReplicaState) {
            let replica = Replica { file: self.files[n], site: self.site, path, state };
            self.catalog.apply(NOW, &[Change::Replica(replica)]).unwrap()[0].clone().unwrap();
        }
    }

    #[test]
    fn what_left_by_its_rule_or_came_meanwhile_is_not_lost() {
        let ten = Ten::new();
        let lies = |name: &str| ten.data().join(name).to_string_lossy().into_owned();
        fs::remove_file(lies("deep/1")).unwrap();
        fs::rename(lies("deep/2"), lies("deep/20")).unwrap();
        fs::copy(lies("deep/3"), lies("deep/30")).unwrap();
        fs::write(lies("deep/3"), "c0ntent 3").unwrap();
        let meanwhile = |left: u64| match left {
            // Removed when its turn has come; moved when its turn is over.
            95 => {
                ten.record(4, String::new(), ReplicaState::Removed);
                fs::remove_file(lies("deep/4")).unwrap();
            }
            92 => ten.record(1, lies("moved"), ReplicaState::Present),
            // On their way when they were looked at, and recorded in the same places again.
            91 => {
                for n in [2, 3] {
                    let place = lies(&format!("deep/{n}"));
                    fs::rename(lies(&format!("deep/{n}0")), &place).unwrap();
                    ten.record(n, place, ReplicaState::Present);
                }
            }
            _ => {}
        };
        let mut pace = Meanwhile(&meanwhile, 100, BEGINNING);
        let done = scrub(&ten.catalog, &ten.order(9), &mut pace, || NOW).unwrap();
        assert_eq!((done.findings, done.recorded, pace.2.1), (Vec::new(), 0, 0));
        let replicas = ten.replicas();
        assert_eq!(ten.states()[2..4], [ReplicaState::Present; 2]);
        assert_eq!(
            (&*replicas[1].path, replicas[1].state),
            (&*lies("moved"), ReplicaState::Present)
        );
        assert_eq!((&*replicas[4].path, replicas[4].state), ("", ReplicaState::Removed));
        // Of what was removed there is no copy to read back.
        let (here, names) = (("here", ten.folder.path()), [("deep/4".to_owned(), 1)]);
        let stored =
            read_back(&ten.catalog, here, &Copies::default(), "here", &names, || NOW).unwrap();
        assert_eq!(stored, [Stored::Nothing]);
    }

    #[test]
    fn a_copy_that_did_not_change_is_read_back_once_and_for_one_at_a_time() {
        let (ten, copies) = (Ten::new(), Copies::default());
        let names = [("deep/4".to_owned(), 1)];
        let stored = || {
            let here = ("here", ten.folder.path());
            read_back(&ten.catalog, here, &copies, "here", &names, || NOW)
        };
        assert_eq!(stored().unwrap(), [Stored::AsRecorded]);
        // It goes by what it remembers.
        copies.0.lock().unwrap().values_mut().for_each(|digest| *digest = [0; 32]);
        assert_eq!(stored().unwrap(), [Stored::Damaged]);
        let path = ten.data().join("deep/4");
        fs::rename(&path, path.with_extension("old")).unwrap();
        assert_eq!(stored().unwrap(), [Stored::Nothing]);
        fs::write(&path, "content 4").unwrap();
        assert_eq!(stored().unwrap(), [Stored::AsRecorded]);
        let reading = copies.0.lock().unwrap();
        assert!(stored().unwrap_err().to_string().contains("being read already"));
        drop(reading);
    }

    #[test]
    fn a_clock_that_was_ahead_hides_no_file() {
        let ten = Ten::new();
        ten.adopt(10, NOW.plus_s(31_536_000));
        ten.adopt(11, NOW);
        fs::remove_file(ten.data().join("deep/11")).unwrap();
        let done = scrub(&ten.catalog, &ten.order(9), &mut Counted(0, 1000), || NOW).unwrap();
        let found: Vec<_> = done.findings.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!((done.files, found), (12, vec!["deep/11"]));
    }

    #[test]
    fn what_comes_meanwhile_is_for_the_next_one() {
        let ten = Ten::new();
        // One more before each look.
        let meanwhile = |left: u64| {
            if left >= 990 {
                ten.adopt(left, NOW.plus_s(2));
            }
        };
        let mut pace = Meanwhile(&meanwhile, 1000, BEGINNING);
        let done = scrub(&ten.catalog, &ten.order(9), &mut pace, || NOW).unwrap();
        assert!(done.is_whole && ten.replicas().len() == 20);
        assert_eq!((done.files, done.findings), (10, Vec::new()));
    }

    #[test]
    fn what_is_no_file_is_corrupt_and_nothing_waits_for_it() {
        let ten = Ten::new();
        let lies = |n: usize| ten.data().join(format!("deep/{n}"));
        fs::remove_file(lies(3)).unwrap();
        mknodat(CWD, lies(3), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::rename(lies(4), lies(10)).unwrap();
        symlink("10", lies(4)).unwrap();
        let done = scrub(&ten.catalog, &ten.order(9), &mut Counted(0, 1000), || NOW).unwrap();
        let found = |kind| {
            let of = done.findings.iter().filter(move |finding| finding.kind == kind);
            of.map(|finding| finding.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(found(Kind::Corrupt), ["deep/3", "deep/4"]);
        assert_eq!(found(Kind::Dark).len(), 1, "where the link leads");
    }

    #[test]
    fn a_machine_without_room_says_nothing_of_a_copy() {
        for (errno, state) in [
            (Errno::NOENT, Some(ReplicaState::Lost)),
            (Errno::NOTDIR, Some(ReplicaState::Lost)),
            (Errno::IO, Some(ReplicaState::Corrupt)),
            (Errno::ACCESS, Some(ReplicaState::Corrupt)),
            (Errno::MFILE, None),
            (Errno::NFILE, None),
            (Errno::NOMEM, None),
        ] {
            assert_eq!(state_by(&errno.into()), state, "{errno}");
        }
    }

    #[test]
    fn one_that_is_cut_short_goes_on_where_it_was() {
        let ten = Ten::new();
        let clock = Cell::new(0);
        let now = || {
            clock.set(clock.get() + 40);
            NOW.plus_s(clock.get() - 1_000_000)
        };
        for n in [1, 7] {
            fs::remove_file(ten.data().join(format!("deep/{n}"))).unwrap();
        }
        let run = |repair_max, files, after| -> (Scrubbed, (FileId, usize)) {
            let order = ScrubOrder { after, ..ten.order(repair_max) };
            let mut pace = Meanwhile(&|_| {}, files, after);
            let done = scrub(&ten.catalog, &order, &mut pace, now).unwrap();
            (done, pace.2)
        };
        let (first, reached) = run(9, 5, BEGINNING);
        assert_eq!((first.is_whole, first.recorded, reached), (false, 1, (ten.files[3], 1)));
        assert_eq!(ten.states()[1], ReplicaState::Lost);
        let (second, reached) = run(9, 1000, reached);
        assert_eq!((second.is_whole, second.files, second.recorded), (true, 6, 2));
        assert_eq!(reached, (ten.files[9], 2));
        // It tells of all, and takes nothing for dark.
        let names: Vec<_> = second.findings.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!(names, ["deep/1", "deep/7"]);
        // One that asks goes no further on than what is recorded.
        for n in [0, 8, 9] {
            fs::remove_file(ten.data().join(format!("deep/{n}"))).unwrap();
        }
        let (asks, reached) = run(2, 1000, BEGINNING);
        assert_eq!((asks.asks, asks.recorded, reached), (true, 1, (ten.files[7], 1)));
        assert_eq!(ten.states()[8..], [ReplicaState::Present; 2]);
        // So says the one that goes on from there.
        let (asks, _) = run(1, 1000, reached);
        assert_eq!((asks.asks, asks.recorded), (true, 1));
    }

    #[test]
    fn lost_corrupt_and_dark_files_are_found_and_recorded_below_the_threshold() {
        let ten = Ten::new();
        let (data, states) = (ten.data(), || ten.states());
        fs::write(data.join("deep/.downpour/receipts.ndjson"), "").unwrap();
        let run = |repair_max, files| {
            let mut pace = Counted(0, files);
            let done = scrub(&ten.catalog, &ten.order(repair_max), &mut pace, || NOW).unwrap();
            assert_eq!(pace.0, done.bytes);
            done
        };
        let clean = run(2, 1000);
        assert_eq!((clean.findings.len(), clean.files, clean.bytes), (0, 10, 90));
        assert!(clean.is_whole);
        fs::remove_file(data.join("deep/1")).unwrap();
        fs::write(data.join("deep/2"), "c0ntent 2").unwrap();
        fs::write(data.join("dark"), "nobody knows me").unwrap();
        let asks = run(1, 1000);
        assert_eq!((asks.asks, asks.recorded), (true, 0));
        assert_eq!(states(), [ReplicaState::Present; 10]);
        let found = run(2, 1000);
        let kinds: Vec<_> = found.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::Lost, Kind::Corrupt, Kind::Dark]);
        assert_eq!((found.asks, found.recorded), (false, 2));
        assert_eq!(states()[1..3], [ReplicaState::Lost, ReplicaState::Corrupt]);
        // Told again while it lasts, also when its place is another's; recorded once. What is there again is present again.
        fs::write(data.join("deep/1"), "another's").unwrap();
        fs::write(data.join("deep/2"), "content 2").unwrap();
        let again = run(2, 1000);
        assert_eq!((again.findings.len(), again.recorded), (2, 1));
        assert_eq!(states()[1..3], [ReplicaState::Lost, ReplicaState::Present]);
        // However many are there again: that is never too much.
        for n in 3..8 {
            fs::remove_file(data.join(format!("deep/{n}"))).unwrap();
        }
        assert_eq!(run(9, 1000).recorded, 5);
        for n in 3..8 {
            fs::write(data.join(format!("deep/{n}")), format!("content {n}")).unwrap();
        }
        let back = run(2, 1000);
        assert_eq!((back.asks, back.recorded), (false, 5));
        assert_eq!(states()[3..], [ReplicaState::Present; 7]);
        // One that is stopped is not whole, and says nothing of what it did not see.
        let stopped = run(2, 1);
        assert!(!stopped.is_whole && stopped.findings.is_empty());
    }
}
