//! Two large catalogs compared by two real daemons, over their API. `DOWNPOUR_RECONCILE_FILES=1000000` makes them as large
//! as a site's; the test prints what was exchanged and how long it took.

use super::harness::{SiteProcess, Two, until};
use downpour::reconcile::{Kind, Report};
use downpour_catalog::{
    AdoptedFile, Applied, BeforeMigration, Catalog, Change, Digest, ErrorClass, FileId, Move,
    NewFile, Next, Origin, OtherContent, Reason, Replica, ReplicaState, RuleId, SiteId, State,
    Time, Work,
};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// When most files were taken in.
const THEN: Time = Time(1_790_000_000_000_000);
const FILES: usize = 3000;
const BATCH: usize = 4000;
/// Planted: missing there (and really there to be sent again), extra, with another digest, stuck. 37 together.
const MISSING: usize = 15;
const EXTRA: usize = 10;
const OTHER: usize = 7;
const STUCK: usize = 5;
/// On their way meanwhile, half of them recorded by the holder.
const MOVING: usize = 1000;

/// A site's catalog, written before its daemon starts.
struct Book {
    catalog: Catalog,
    a: SiteId,
    b: SiteId,
    rule: RuleId,
    inbox: String,
}

impl Book {
    fn open(site: &SiteProcess, inbox: &str) -> Self {
        fs::create_dir_all(site.path("state")).expect("room");
        let before = BeforeMigration::Refuse;
        let catalog = Catalog::open(site.catalog(), "filler", THEN, &before).expect("a catalog");
        let (a, b) = (catalog.site("a").expect("a site"), catalog.site("b").expect("a site"));
        let rule = catalog.rule("raw").expect("a rule");
        Self { catalog, a, b, rule, inbox: inbox.to_owned() }
    }

    fn apply(&self, now: Time, changes: Vec<Change>) -> Vec<Applied> {
        let answers = changes.chunks(BATCH).map(|slice| self.catalog.apply(now, slice));
        let answers = answers.flat_map(|answers| answers.expect("the database works"));
        answers.map(|answer| answer.expect("allowed")).collect()
    }

    fn adopt(&self, name: &str, content: &[u8], at: &[SiteId], origin: Option<Origin>) -> Change {
        let path = |site: &SiteId| match *site == self.b {
            true => format!("{}/{name}", self.inbox),
            false => name.to_owned(),
        };
        Change::Adopt(AdoptedFile {
            site: self.a,
            name: name.to_owned(),
            size: content.len() as u64,
            rule: self.rule,
            digest: Digest::blake3(*blake3::hash(content).as_bytes()),
            replicas: at.iter().map(|site| (*site, path(site))).collect(),
            other_content: OtherContent::Refuse,
            origin,
            receipt: None,
        })
    }

    fn replica(&self, file: FileId, site: SiteId, path: String, state: ReplicaState) {
        self.apply(THEN, vec![Change::Replica(Replica { file, site, path, state })]);
    }

    /// Files that are being sent, by a daemon that is still at it.
    fn sending(&self, now: Time, names: &[String]) -> Vec<downpour_catalog::Claimed> {
        let new = |name: &String| {
            Change::TakeIn(NewFile {
                site: self.a,
                name: name.clone(),
                size: 7,
                stamp: 1,
                rule: self.rule,
                rank: 0,
                transfer: None,
                other_content: OtherContent::Refuse,
            })
        };
        let mut files = self.apply(now, names.iter().map(new).collect());
        for step in 0..3 {
            let moves = files.iter().zip(names).map(|(file, name)| {
                let digest = Digest::blake3(*blake3::hash(name.as_bytes()).as_bytes());
                let next = match step {
                    0 => Next::Settled { size: 7 },
                    1 => Next::Hashed(vec![digest]),
                    _ => Next::Queued,
                };
                Change::Move(Move { file: file.file, at: file.revision, fence: None, next })
            });
            files = self.apply(now, moves.collect());
        }
        let claim = self.catalog.claim(now, Work::Queued, names.len(), now.plus_s(86_400)).wait();
        claim.expect("the database works")
    }
}

fn origin(file: FileId) -> Option<Origin> {
    Some(Origin { version: 1, taken_in: file.time() })
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}/{n}")).collect()
}

/// Files of `a` that `b` has, as both have recorded them, and the differences.
fn fill(a: &SiteProcess, b: &SiteProcess, files: usize) {
    let inbox = b.path("inbox").display().to_string();
    let (near, far) = (Book::open(a, &inbox), Book::open(b, &inbox));
    let all = names("run", files);
    for names in all.chunks(BATCH) {
        let adopt = |name: &String| near.adopt(name, name.as_bytes(), &[near.a, near.b], None);
        let here = near.apply(THEN, names.iter().map(adopt).collect());
        let there = here.iter().zip(names);
        let adopt = |(file, name): (&Applied, &String)| {
            far.adopt(name, name.as_bytes(), &[far.b], origin(file.file))
        };
        far.apply(THEN, there.map(adopt).collect());
    }
    for n in 0..MISSING {
        let (name, at) = (&all[n * (files / MISSING)], format!("missing {n}"));
        let there = far.catalog.reader().expect("a reader").versions(far.a, name);
        let there = there.expect("the database works")[0].id;
        far.replica(there, far.b, format!("{inbox}/{name}"), ReplicaState::Lost);
        let here = near.catalog.reader().expect("a reader").versions(near.a, name);
        let here = here.expect("the database works")[0].id;
        let path = a.path(&at);
        fs::write(&path, name).expect("room");
        near.replica(here, near.a, path.display().to_string(), ReplicaState::Present);
    }
    let extra = names("extra", EXTRA).into_iter();
    let taken_in = Some(Origin { version: 1, taken_in: THEN });
    far.apply(THEN, extra.map(|name| far.adopt(&name, b"x", &[far.b], taken_in)).collect());
    for name in names("other", OTHER) {
        let here = near.apply(THEN, vec![near.adopt(&name, b"one", &[near.a, near.b], None)]);
        far.apply(THEN, vec![far.adopt(&name, b"two", &[far.b], origin(here[0].file))]);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Time(since.as_micros() as i64);
    for claimed in near.sending(THEN, &names("stuck", STUCK)) {
        let (reason, error) = (Reason::BackOff, Some(ErrorClass::DestinationFull));
        let next = Next::Waiting { reason, error, next_try: now.plus_s(3000), bytes: 0 };
        let (file, at, fence) = (claimed.file, claimed.revision, Some(claimed.fence));
        near.apply(THEN, vec![Change::Move(Move { file, at, fence, next })]);
    }
    let moving = names("moving", MOVING);
    for (n, claimed) in near.sending(now, &moving).iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        let adopt = far.adopt(&moving[n], moving[n].as_bytes(), &[far.b], origin(claimed.file));
        far.apply(now, vec![adopt]);
    }
}

#[test]
fn planted_differences_are_found_over_the_api_and_repaired() {
    let files = std::env::var("DOWNPOUR_RECONCILE_FILES");
    let files: usize = files.map_or(FILES, |text| text.parse().expect("a number of files"));
    let rule = "\n[[rule]]\nname = \"raw\"\nmatch = \"*\"\nto = \"b\"\n";
    let mut sites = Two::set_up([rule, ""]);
    fill(&sites.a, &sites.b, files);
    sites.a.start();
    sites.b.start();
    let asked = sites.a.run(&["catalog", "reconcile", "--json"]);
    let report: Report = serde_json::from_slice(&asked.stdout).expect("a report");
    println!(
        "{files} files: {} bytes in {} round trips, {:.2} s, {} in flight",
        report.bytes_exchanged,
        report.rounds,
        (report.ended_us - report.started_us) as f64 / 1e6,
        report.in_flight
    );
    let counts = report.counts();
    let count = |kind| counts.get(&kind).copied().unwrap_or_default();
    let kinds = [Kind::MissingThere, Kind::Extra, Kind::WrongDigest, Kind::Stuck];
    assert_eq!(kinds.map(count), [MISSING, EXTRA, OTHER, STUCK], "{}", report.text());
    assert_eq!(report.findings.len(), MISSING + EXTRA + OTHER + STUCK, "{}", report.text());
    assert_eq!(report.repaired, MISSING + STUCK, "{}", report.text());
    assert!(report.bytes_exchanged < 1_000_000, "{}", report.bytes_exchanged);
    let all = names("run", files);
    for n in 0..MISSING {
        let name = &all[n * (files / MISSING)];
        until(&format!("{name} is sent again\n{}", sites.a.log()), || {
            let there = fs::read(sites.b.path("inbox").join(name)).ok()?;
            (there == name.as_bytes()).then_some(())
        });
    }
    until("they are received", || {
        let counts = sites.a.reader().counts().expect("the database works");
        let received = counts.iter().filter(|count| count.state == State::Receipted);
        (received.map(|count| count.files).sum::<i64>() == MISSING as i64).then_some(())
    });
}
