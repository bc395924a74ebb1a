//! The disk compared with the catalog, at a bounded rate: what is lost, what is corrupt, what nobody knows.
//!
//! 1. Each replica that the catalog says this site has is read and compared with its digest. One that is not there is *lost*, one with
//!    other content *corrupt*; both are recorded, so that the next comparison of catalogs has them sent again. One that was
//!    lost and is there again is recorded, too.
//! 2. Each file below the folders that are named, older than the scrub's beginning, must be one of these; others are *dark*. They are told,
//!    never touched.
//!
//! More than the threshold at once looks like a disk that is not mounted: nothing is recorded then, the report asks.
//!
//! Of paths only hashes are kept, eight bytes for each replica. A scrub blocks its thread.

use super::ask::Stored;
use super::report::{Finding, Kind};
use super::run::RunError;
use downpour_catalog::{
    Catalog, Change, File, FileId, Reader, Replica, ReplicaState, SiteId, Time,
};
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Replicas that are asked for at once.
const PAGE: usize = 500;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
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
    /// More changes than this are not recorded.
    pub repair_max: usize,
    /// When it began.
    pub started: Time,
}

/// Lets a scrub wait, and end early: told of each piece, it says whether to go on.
pub trait Pace {
    /// So many bytes were read, so many files begun.
    fn spent(&mut self, bytes: u64, files: u64) -> bool;
}

/// What was scrubbed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Replicas that were looked at.
    pub files: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Replicas whose state was recorded anew.
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
    let mut work = Work { order, sites, done: Scrubbed::default(), known: HashSet::new() };
    let mut changes = Vec::new();
    let goes_on = work.replicas(&mut reader, site, pace, &mut changes)?;
    work.done.asks = changes.len() > order.repair_max;
    if !work.done.asks && !changes.is_empty() {
        let answers = catalog.submit(now(), changes).wait()?;
        work.done.recorded = answers.iter().filter(|answer| answer.is_ok()).count();
    }
    work.done.is_whole = goes_on && order.folders.iter().all(|folder| work.dark(folder, 0, pace));
    Ok(work.done)
}

/// Reads a site's copies of these files of `origin` (name and version) and compares them with what its catalog says; what is lost or
/// corrupt is recorded. `site` has its name and what relative paths are relative to.
pub fn read_back(
    catalog: &Catalog,
    site: (&str, &Path),
    origin: &str,
    names: &[(String, i64)],
    now: impl Fn() -> Time,
) -> Result<Vec<Stored>, RunError> {
    let (mut reader, (site, base)) = (catalog.reader()?, site);
    let (site, origin) = (catalog.site(site)?, catalog.site(origin)?);
    let called: Vec<_> =
        names.iter().map(|(name, version)| (origin, name.as_str(), *version)).collect();
    let (mut stored, mut changes) = (Vec::with_capacity(names.len()), Vec::new());
    for file in reader.files_called(&called)? {
        let replicas = file.as_ref().map(|file| reader.replicas(file.id)).transpose()?;
        let replica = replicas.into_iter().flatten().find(|replica| replica.site == site);
        let (Some(file), Some(replica)) = (file, replica) else {
            stored.push(Stored::Nothing);
            continue;
        };
        let state = state_of(&base.join(&replica.path), &file, |_| true);
        stored.push(match state {
            ReplicaState::Present => Stored::AsRecorded,
            ReplicaState::Corrupt => Stored::Damaged,
            _ => Stored::Nothing,
        });
        if state != replica.state && replica.state != ReplicaState::Removed {
            changes.push(Change::Replica(Replica { state, ..replica }));
        }
    }
    catalog.submit(now(), changes).wait()?;
    Ok(stored)
}

struct Work<'a> {
    order: &'a ScrubOrder,
    sites: Vec<(SiteId, String)>,
    done: Scrubbed,
    /// Hashes of the paths that the catalog knows.
    known: HashSet<u64>,
}

impl Work<'_> {
    fn replicas(
        &mut self,
        reader: &mut Reader,
        site: SiteId,
        pace: &mut impl Pace,
        changes: &mut Vec<Change>,
    ) -> Result<bool, RunError> {
        let mut after = FileId(0);
        loop {
            let page = reader.replicas_at(site, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(true) };
            after = last.file;
            for replica in page {
                let path = self.order.base.join(&replica.path);
                self.known.insert(hash_of(&path));
                if replica.state == ReplicaState::Removed {
                    continue;
                }
                let Some(file) = reader.file(replica.file)? else { continue };
                let Some(state) = self.look(&path, &file, pace) else { return Ok(false) };
                self.judge(&replica, &file, state, changes);
            }
        }
    }

    /// What is on the disk; `None` when the scrub is to end.
    fn look(&mut self, path: &Path, file: &File, pace: &mut impl Pace) -> Option<ReplicaState> {
        self.done.files += 1;
        if !pace.spent(0, 1) {
            return None;
        }
        let mut goes_on = true;
        let state = state_of(path, file, |bytes| {
            self.done.bytes += bytes;
            goes_on = goes_on && pace.spent(bytes, 0);
            goes_on
        });
        goes_on.then_some(state)
    }

    fn judge(
        &mut self,
        replica: &Replica,
        file: &File,
        state: ReplicaState,
        out: &mut Vec<Change>,
    ) {
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
        if state != replica.state {
            out.push(Change::Replica(Replica { state, ..replica.clone() }));
        }
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

/// What is on the disk, beside what is recorded.
fn state_of(path: &Path, file: &File, goes_on: impl FnMut(u64) -> bool) -> ReplicaState {
    let digest = file.digest.as_ref().map(downpour_catalog::Digest::value);
    match read(path, goes_on) {
        Ok(found) if digest.is_none_or(|digest| digest == found) => ReplicaState::Present,
        Ok(_) => ReplicaState::Corrupt,
        Err(error) if is_absent(&error) => ReplicaState::Lost,
        // A disk that does not read is no proof of anything but that the file is not to be had.
        Err(_) => ReplicaState::Corrupt,
    }
}

/// Whether there is no such file, rather than one that does not read.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// A file's BLAKE3; `goes_on` is told of each piece.
fn read(path: &Path, mut goes_on: impl FnMut(u64) -> bool) -> io::Result<[u8; 32]> {
    let mut file = fs::File::open(path)?;
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

fn hash_of(path: &Path) -> u64 {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    super::ask::short(hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{Pace, ScrubOrder, scrub};
    use crate::object::Digest as Blake3;
    use crate::reconcile::Kind;
    use downpour_catalog::{
        AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, FileId, OtherContent,
        ReplicaState, Time,
    };
    use std::fs;

    const NOW: Time = Time(i64::MAX / 2);

    /// Counts, and ends after so many files.
    struct Counted(u64, u64);

    impl Pace for Counted {
        fn spent(&mut self, bytes: u64, files: u64) -> bool {
            self.0 += bytes;
            self.1 = self.1.saturating_sub(files);
            self.1 > 0
        }
    }

    #[test]
    fn lost_corrupt_and_dark_files_are_found_and_recorded_below_the_threshold() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir_all(data.join("deep/.downpour")).unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("c.db"));
        let catalog = Catalog::open(&url, "daemon", NOW, &BeforeMigration::Refuse).unwrap();
        let (site, rule) = (catalog.site("here").unwrap(), catalog.rule("all").unwrap());
        for n in 0..10 {
            let (name, content) = (format!("deep/{n}"), format!("content {n}"));
            fs::write(data.join(&name), &content).unwrap();
            let adopted = AdoptedFile {
                site,
                size: content.len() as u64,
                rule,
                digest: Digest::blake3(Blake3::of(content.as_bytes()).0),
                replicas: vec![(site, data.join(&name).to_string_lossy().into_owned())],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
                name,
            };
            catalog.apply(NOW, &[Change::Adopt(adopted)]).unwrap()[0].clone().unwrap();
        }
        fs::write(data.join("deep/.downpour/receipts.ndjson"), "").unwrap();
        let order = |repair_max| ScrubOrder {
            site: "here".into(),
            base: folder.path().into(),
            folders: vec![data.clone()],
            repair_max,
            started: NOW,
        };
        let run = |repair_max, files| {
            let mut pace = Counted(0, files);
            let done = scrub(&catalog, &order(repair_max), &mut pace, || NOW).unwrap();
            assert_eq!(pace.0, done.bytes);
            done
        };
        let states = || -> Vec<ReplicaState> {
            let replicas = catalog.reader().unwrap().replicas_at(site, FileId(0), 100).unwrap();
            replicas.into_iter().map(|replica| replica.state).collect()
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
        // Told again while it lasts; recorded once. What is there again is present again.
        fs::write(data.join("deep/2"), "content 2").unwrap();
        let again = run(2, 1000);
        assert_eq!((again.findings.len(), again.recorded), (2, 1));
        assert_eq!(states()[1..3], [ReplicaState::Lost, ReplicaState::Present]);
        // One that is stopped is not whole, and says nothing of what it did not see.
        let stopped = run(2, 1);
        assert!(!stopped.is_whole && stopped.findings.is_empty());
    }
}
