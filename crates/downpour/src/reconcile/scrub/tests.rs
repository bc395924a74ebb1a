//! Scrubs of a real folder with ten files.

use super::{Copies, DEPTH_MAX, Finding, Pace, ScrubOrder, Scrubbed, read_back, scrub, state_by};
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
    assert_eq!((&*replicas[1].path, replicas[1].state), (&*lies("moved"), ReplicaState::Present));
    assert_eq!((&*replicas[4].path, replicas[4].state), ("", ReplicaState::Removed));
    // Of what was removed there is no copy to read back.
    let (here, names) = (("here", ten.folder.path()), [("deep/4".to_owned(), 1)]);
    let of = ("here", &names[..]);
    let stored = read_back(&ten.catalog, here, &Copies::default(), of, || NOW, || true).unwrap();
    assert_eq!(stored, [Stored::Nothing]);
}

#[test]
fn whoever_asks_for_copies_of_no_site_adds_none() {
    let ten = Ten::new();
    let (here, names) = (("here", ten.folder.path()), [("deep/4".to_owned(), 1)]);
    for origin in ["elsewhere", "", "\0"] {
        let (copies, of) = (Copies::default(), (origin, &names[..]));
        let stored = read_back(&ten.catalog, here, &copies, of, || NOW, || true);
        assert_eq!(stored.unwrap(), [Stored::Nothing]);
    }
    assert_eq!(ten.catalog.reader().unwrap().sites().unwrap(), [(ten.site, "here".to_owned())]);
}

#[test]
fn files_are_known_by_whatever_way_their_folder_is_reached() {
    let ten = Ten::new();
    let moved = ten.folder.path().join("moved");
    fs::rename(ten.data(), &moved).unwrap();
    symlink(&moved, ten.data()).unwrap();
    for folder in [moved.clone(), moved.join("./deep")] {
        let order = ScrubOrder { folders: vec![folder], ..ten.order(9) };
        let done = scrub(&ten.catalog, &order, &mut Counted(0, 100), || NOW).unwrap();
        assert_eq!((done.findings, done.files), (Vec::new(), 10));
    }
}

#[test]
fn folders_that_cannot_be_looked_into_are_told() {
    let ten = Ten::new();
    let (data, away) = (ten.data(), ten.folder.path().join("away"));
    let deep = data.join("d/".repeat(DEPTH_MAX + 1));
    fs::create_dir_all(&deep).unwrap();
    let file = data.join("deep/1");
    let order = ScrubOrder { folders: vec![data, file.clone(), away.clone()], ..ten.order(9) };
    let done = scrub(&ten.catalog, &order, &mut Counted(0, 1000), || NOW).unwrap();
    let found = |folder: PathBuf, why: &str| {
        let name = folder.to_string_lossy();
        let name = name.trim_end_matches('/');
        let is = |f: &&Finding| f.kind == Kind::Dark && f.name == name && f.note.ends_with(why);
        done.findings.iter().filter(is).count()
    };
    let each = [found(deep, "too deep"), found(file, "(os error 20)"), found(away, "(os error 2)")];
    assert_eq!((each, done.findings.len()), ([1; 3], 3), "{:?}", done.findings);
}

#[test]
fn a_copy_that_did_not_change_is_read_back_once_and_for_one_at_a_time() {
    let (ten, copies) = (Ten::new(), Copies::default());
    let names = [("deep/4".to_owned(), 1)];
    let stored = || {
        let (here, of) = (("here", ten.folder.path()), ("here", &names[..]));
        read_back(&ten.catalog, here, &copies, of, || NOW, || true)
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
fn a_reading_that_is_stopped_tells_nothing() {
    let (ten, copies) = (Ten::new(), Copies::default());
    fs::remove_file(ten.data().join("deep/1")).unwrap();
    let (names, here) = ([1, 4].map(|n| (format!("deep/{n}"), 1)), ("here", ten.folder.path()));
    let stored = |goes_on: bool| {
        read_back(&ten.catalog, here, &copies, ("here", &names[..]), || NOW, || goes_on)
    };
    assert!(stored(false).unwrap_err().to_string().contains("was stopped"));
    assert_eq!(ten.states(), [ReplicaState::Present; 10]);
    assert_eq!(stored(true).unwrap(), [Stored::Nothing, Stored::AsRecorded]);
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
