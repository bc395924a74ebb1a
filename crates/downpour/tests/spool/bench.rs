//! A spool, its folder and its catalog, and what a story needs to speak with them briefly.

use downpour::spool::{Now, RuleSection, Rules, Spool, SpoolSection};
use downpour_catalog::{
    BeforeMigration, Catalog, CatalogUrl, Change, Claimed, Digest, ErrorClass, File, FileId, Move,
    NewFile, Next, OtherContent, Reason, Receipt, Replica, ReplicaState, Revision, Same, SiteId,
    State, Time, TransferId, Work,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// When stories begin.
const BEGIN: Time = Time(1_790_000_000_000_000);
/// Longer than anything takes in which files settle.
pub(crate) const LONG: f64 = 30.0;

/// What the mover says of each name that is refused.
pub(crate) const REFUSED: &str = "the name is kept for the receiver's own folder";

pub(crate) struct Bench {
    folder: tempfile::TempDir,
    /// What the spool's folder is called.
    place: String,
    spool_text: String,
    rule_texts: Vec<String>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) spool: Option<Spool>,
    steady: Duration,
}

impl Bench {
    /// A spool with these lines in its section and its rule.
    pub(crate) fn new(spool_lines: &str, rule_lines: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(path("spool")).expect("a folder");
        let spool_text = format!("folder = \"{}\"\n{spool_lines}", path("spool"));
        let rule_lines = rule_lines.replace("ARCHIVE", &path("archive"));
        let rule = format!("name = \"all\"\nmatch = \"*\"\nto = \"there\"\n{rule_lines}");
        let rule_texts = vec![rule];
        let catalog = open_catalog(folder.path());
        let steady = Duration::ZERO;
        let place = "spool".to_owned();
        let mut bench =
            Self { folder, place, spool_text, rule_texts, catalog, spool: None, steady };
        bench.start();
        bench
    }

    fn start(&mut self) {
        let section: SpoolSection = toml::from_str(&self.spool_text).expect("a section");
        let rule = |text: &String| toml::from_str::<RuleSection>(text).expect("a rule");
        let rules: Vec<_> = self.rule_texts.iter().map(rule).collect();
        let rules = Arc::new(Rules::new("here", &rules));
        let said = |_: FileId, class| match class {
            ErrorClass::NameRefused => Some(REFUSED.to_owned()),
            _ => None,
        };
        let said = Box::new(said);
        let spool = Spool::open(section, rules, self.catalog.clone(), Arc::default(), said);
        self.spool = Some(spool.expect("the catalog works"));
    }

    /// The daemon ends and begins again; everything but the disk is forgotten.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.begin();
    }

    pub(crate) fn stop(&mut self) {
        self.spool = None;
    }

    pub(crate) fn begin(&mut self) {
        self.start();
        self.tick(0.0);
    }

    pub(crate) fn now(&self) -> Now {
        let wall = Time(BEGIN.0 + self.steady.as_micros() as i64);
        Now { steady: self.steady, wall }
    }

    /// Lets so many seconds pass, half a second at a time, with all reading done in each.
    pub(crate) fn tick(&mut self, seconds: f64) {
        let end = self.steady + Duration::from_secs_f64(seconds);
        loop {
            self.settle_reads();
            if self.steady >= end {
                return;
            }
            self.steady += Duration::from_millis(500);
        }
    }

    /// Lets so many seconds pass and ticks once; what is being read may still be.
    pub(crate) fn tick_once(&mut self, seconds: f64) {
        self.steady += Duration::from_secs_f64(seconds);
        let now = self.now();
        self.spool().tick(now).expect("the catalog works");
    }

    fn settle_reads(&mut self) {
        let now = self.now();
        let spool = self.spool.as_mut().expect("it runs");
        spool.tick(now).expect("the catalog works");
        while spool.reading() > 0 {
            thread::yield_now();
            spool.tick(now).expect("the catalog works");
        }
        // What the last answers led to.
        spool.tick(now).expect("the catalog works");
    }

    pub(crate) fn spool(&mut self) -> &mut Spool {
        self.spool.as_mut().expect("it runs")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(&self.place).join(name)
    }

    /// From the next start on the spool's folder is called so.
    pub(crate) fn call_folder(&mut self, place: &str) {
        let old = self.path("").display().to_string();
        place.clone_into(&mut self.place);
        let new = self.path("").display().to_string();
        self.spool_text =
            self.spool_text.replace(old.trim_end_matches('/'), new.trim_end_matches('/'));
    }

    /// From the next start on this rule is asked before the others.
    pub(crate) fn ask_first(&mut self, rule: &str) {
        self.rule_texts.insert(0, rule.to_owned());
    }

    pub(crate) fn archive(&self, name: &str) -> PathBuf {
        self.folder.path().join("archive").join(name)
    }

    /// Writes a file, over what was there.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below the spool")).expect("a folder");
        fs::write(path, content).expect("it can be written");
    }

    pub(crate) fn site(&self) -> SiteId {
        self.catalog.site("here").expect("the catalog works")
    }

    /// How many events there are.
    pub(crate) fn events(&self) -> i64 {
        let logs = self.catalog.reader().expect("a reader").logs().expect("the database works");
        logs.into_iter().map(|(_, _, last)| last).sum()
    }

    /// All versions of a name.
    pub(crate) fn versions(&self, name: &str) -> Vec<File> {
        let mut reader = self.catalog.reader().expect("a reader");
        reader.versions(self.site(), name).expect("the database works")
    }

    /// Where each version of a name stands, and for which error.
    pub(crate) fn stands(&self, name: &str) -> Vec<(State, Option<ErrorClass>)> {
        self.versions(name).into_iter().map(|file| (file.state, file.error)).collect()
    }

    /// The newest version.
    pub(crate) fn newest(&self, name: &str) -> File {
        self.versions(name).pop().expect("it is in the catalog")
    }

    pub(crate) fn replicas(&self, file: &File) -> Vec<Replica> {
        let mut reader = self.catalog.reader().expect("a reader");
        reader.replicas(file.id).expect("the database works")
    }

    /// Whether the spool's own copy is there, and where.
    pub(crate) fn copy(&self, file: &File) -> (ReplicaState, PathBuf) {
        let own = self.replicas(file).into_iter().find(|replica| replica.site == file.site);
        let own = own.expect("it was read");
        (own.state, PathBuf::from(own.path))
    }

    /// An operator gives it up.
    pub(crate) fn cancel(&self, name: &str) {
        let file = self.newest(name);
        let next = Next::Cancelled;
        self.step(Move { file: file.id, at: file.revision, fence: None, next });
    }

    /// An operator submits a file to another site. It is complete, and nobody has read it yet.
    pub(crate) fn submit(&self, name: &str) -> File {
        let path = self.path(name).canonicalize().expect("it is there");
        let (site, size) = (self.site(), fs::metadata(&path).expect("it is there").len());
        let new = Change::TakeIn(NewFile {
            site,
            name: name.to_owned(),
            size,
            stamp: 1,
            rule: self.catalog.rule("to:elsewhere").expect("the catalog works"),
            rank: 100,
            transfer: Some(TransferId(1)),
            other_content: OtherContent::NewVersion,
            same: Same::OfRule,
        });
        let apply = |change| {
            let answers = self.catalog.apply(self.now().wall, &[change]);
            answers.expect("the database works").remove(0).expect("it is allowed")
        };
        let file = apply(new).file;
        let (path, state) = (path.display().to_string(), ReplicaState::Present);
        apply(Change::Replica(Replica { file, site, path, state }));
        let at = self.newest(name).revision;
        self.step(Move { file, at, fence: None, next: Next::Settled { size } });
        self.newest(name)
    }

    /// A submitted file is read, and goes to the queue.
    pub(crate) fn queue(&self, file: &File, content: &str) {
        let digest = Digest::blake3(*blake3::hash(content.as_bytes()).as_bytes());
        let mut at = file.revision;
        for next in [Next::Hashed(vec![digest]), Next::Queued] {
            at = self.step(Move { file: file.id, at, fence: None, next });
        }
    }

    pub(crate) fn claim(&self) -> Vec<Claimed> {
        let (now, until) = (self.now().wall, self.now().wall.plus_s(3600));
        let rules = self.catalog.reader().expect("the catalog is there").rules();
        let claim = |(rule, _)| {
            let claim = self.catalog.claim(now, Work::QueuedOf(rule), 100_000, until);
            claim.wait().expect("the database works")
        };
        rules.expect("the database works").into_iter().flat_map(claim).collect()
    }

    /// Sends everything that is queued: claimed, sent, verified and received.
    pub(crate) fn send_all(&self) -> usize {
        let claimed = self.claim();
        self.receive(&claimed);
        claimed.len()
    }

    pub(crate) fn receive(&self, held: &[Claimed]) {
        let now = self.now().wall;
        let site = self.catalog.site("there").expect("the catalog works");
        let receipt = |file| Receipt { file, receiver: vec![3; 32], at: now, signed: vec![1, 2] };
        let step = |number: i64, held: &Claimed| {
            let (file, fence) = (held.file, Some(held.fence));
            let next = match number {
                0 => Next::Sent { bytes: held.size },
                1 => Next::Verified(site, "/there".to_owned()),
                _ => Next::Receipted(receipt(file)),
            };
            let at = Revision(held.revision.0 + number);
            Change::Move(Move { file, at, fence, next })
        };
        for number in 0..3 {
            let steps: Vec<_> = held.iter().map(|held| step(number, held)).collect();
            let answers = self.catalog.apply(now, &steps).expect("the database works");
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        }
    }

    /// The first of several destinations has it; it waits in the queue for the others.
    pub(crate) fn receive_at_one(&self, name: &str) {
        let now = self.now().wall;
        let site = self.catalog.site("there").expect("the catalog works");
        let held = self.claim().remove(0);
        let (file, fence) = (held.file, Some(held.fence));
        assert_eq!(file, self.newest(name).id);
        let next = Next::Sent { bytes: held.size };
        let at = self.step(Move { file, at: held.revision, fence, next });
        let (path, state) = ("/there".to_owned(), ReplicaState::Present);
        let receipt = Receipt { file, receiver: vec![3; 32], at: now, signed: vec![1, 2] };
        let replica = Change::Replica(Replica { file, site, path, state });
        let answers = self.catalog.apply(now, &[replica, Change::Receipt(receipt)]);
        assert!(answers.expect("the database works").iter().all(Result::is_ok));
        let (reason, error, next_try) = (Reason::Turn, None, now);
        let next = Next::Waiting { reason, error, next_try, bytes: 0 };
        self.step(Move { file, at, fence, next });
        let woken = self.catalog.wake(now, now, 1).wait().expect("the database works");
        assert_eq!(woken, 1);
    }

    pub(crate) fn step(&self, step: Move) -> Revision {
        let answers = self.catalog.apply(self.now().wall, &[Change::Move(step)]);
        answers.expect("the database works")[0].clone().expect("it is allowed").revision
    }

    /// What was said, for messages of failed assertions.
    pub(crate) fn said(&self) -> String {
        format!("{:#?}", self.spool.as_ref().map(Spool::status))
    }
}

pub(crate) fn open_catalog(folder: &Path) -> Arc<Catalog> {
    let url = CatalogUrl::Sqlite(folder.join("catalog.db"));
    Arc::new(Catalog::open(&url, "daemon", BEGIN, &BeforeMigration::Refuse).expect("a catalog"))
}
