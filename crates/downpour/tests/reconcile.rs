//! Two catalogs with planted differences, compared and repaired, with transfers going on.
//!
//! `DOWNPOUR_RECONCILE_FILES=1000000` makes the first stories as large as a site; they print what was exchanged and how long it took.

#[path = "site/planting.rs"]
mod planting;

use downpour::reconcile::report::Approvals;
use downpour::reconcile::{
    Answer, Far, FarError, Finding, Kind, NAMES_MAX, Order, Question, Report, Side, Stored,
    Verdict, report, run,
    scrub::{Copies, read_back},
};
use downpour_catalog::{
    CatalogUrl, Change, Claimed, ErrorClass, FileId, Move, Next, Origin, Receipt, ReplicaState,
    RuleId, State, Time,
};
use downpour_transport::identity::{Identity, PublicKey};
use planting::{Book, files, fill, names, origin, plant_moving, plant_other, plant_stuck};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

const NOW: Time = Time(1_795_305_600_000_000);
const FILES: usize = 20_000;
const DAY_S: i64 = 86_400;

struct Site {
    name: &'static str,
    book: Book,
    folder: TempDir,
}

impl Deref for Site {
    type Target = Book;

    fn deref(&self) -> &Book {
        &self.book
    }
}

impl Site {
    fn new(name: &'static str, words: [&str; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("catalog.db"));
        // Numbers differ between catalogs.
        let book = Book::open(&url, NOW, &words, ["berlin", "geneva"], folder.path().to_owned());
        Self { name, book, folder }
    }

    fn state(&self, name: &str) -> State {
        self.known(self.sender, name).state
    }

    fn here(&self) -> (&str, &Path) {
        (self.name, self.folder.path())
    }
}

/// The other site, asked as over the network, but for the network.
struct There<'a> {
    site: &'a Site,
    bytes: u64,
    /// Done before each answer.
    meanwhile: Box<dyn FnMut() + 'a>,
    /// What it signs with.
    key: Option<PublicKey>,
    /// Whether it takes too long to read its copies.
    is_slow: bool,
    /// Steps until the run is to end.
    steps: Cell<u32>,
}

impl Far for There<'_> {
    fn ask(&mut self, questions: &[Question]) -> Result<Vec<Answer>, FarError> {
        (self.meanwhile)();
        let mut reader = self.site.catalog.reader().unwrap();
        let asked = serde_json::to_vec(questions).unwrap();
        let questions: Vec<Question> = serde_json::from_slice(&asked).unwrap();
        let side = Side::of(&mut reader).unwrap();
        let mut side = match self.key {
            Some(key) => side.signing(key),
            None => side,
        };
        let answers = side.answer_all(&questions).unwrap();
        let answered = serde_json::to_vec(&answers).unwrap();
        self.bytes += (asked.len() + answered.len()) as u64;
        Ok(serde_json::from_slice(&answered).unwrap())
    }

    fn read_back(
        &mut self,
        origin: &str,
        names: &[(String, i64)],
    ) -> Result<Vec<Stored>, FarError> {
        if self.is_slow {
            return Err(FarError("no answer within 30 s".into()));
        }
        let (here, copies) = (self.site.here(), Copies::default());
        let of = (origin, names);
        Ok(read_back(&self.site.catalog, here, &copies, of, || NOW, || true).unwrap())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn goes_on(&self) -> Result<(), FarError> {
        let left = self.steps.get().checked_sub(1);
        self.steps.set(left.ok_or_else(|| FarError("it is to end".into()))?);
        Ok(())
    }
}

fn order(repair_max: usize) -> Order {
    Order {
        near: "berlin".into(),
        far: "geneva".into(),
        far_key: None,
        repair_max,
        stuck_s: DAY_S,
        approved: Approvals::default(),
        // The catalog's only rule.
        sent: [RuleId(1)].into(),
        adopt_extra: false,
        base: "/".into(),
        copies: Copies::default(),
    }
}

fn compared(near: &Site, far: &Site, order: &Order, meanwhile: impl FnMut()) -> Report {
    let (meanwhile, key, steps) = (Box::new(meanwhile), order.far_key, Cell::new(u32::MAX));
    let mut there = There { site: far, bytes: 0, meanwhile, key, is_slow: false, steps };
    run(&near.catalog, &mut there, order, || NOW.plus_s(3 * DAY_S)).unwrap()
}

fn run_name(n: usize) -> String {
    format!("run{}/{n}", n % 97)
}

/// Files that both catalogs have alike: berlin's at geneva, taken in on so many days, today the last of them.
fn filled(files: usize, days: i64) -> (Site, Site) {
    let (near, far) = (Site::new("berlin", ["x", "geneva"]), Site::new("geneva", ["geneva", "y"]));
    let names: Vec<String> = (0..files).map(run_name).collect();
    let times: Vec<Time> = (1 - days..=0).map(|day| NOW.plus_s(day * DAY_S)).collect();
    fill(&near, &far, &names, &times);
    (near, far)
}

/// 37 differences: 10 missing there, 5 missing here, 7 extra, 5 unrecorded, 5 with another digest, 5 stuck.
fn plant(near: &Site, far: &Site, identity: &Identity, files: usize) {
    let missing = (0..10).map(|n| far.known(far.sender, &run_name(n * (files / 10))));
    far.replica(NOW, &missing.collect::<Vec<_>>(), far.holder, ReplicaState::Lost);
    for name in names("back", 5) {
        let at = [far.sender, far.holder];
        let there = far.one(NOW, far.adopt(far.holder, &name, b"back", &at, None));
        let copy = near.adopt(near.holder, &name, b"back", &[near.sender], origin(there.file));
        near.one(NOW, copy);
        let here = near.known(near.holder, &name);
        near.replica(NOW, &[here], near.sender, ReplicaState::Corrupt);
    }
    for (n, name) in names("extra", 7).into_iter().enumerate() {
        let origin = origin(FileId::first_at(NOW));
        let there = far.one(NOW, far.adopt(far.sender, &name, b"extra", &[far.holder], origin));
        if n > 0 {
            far.sign(NOW, there.file, "berlin", &name, b"extra", identity);
        }
    }
    for name in names("unrecorded", 5) {
        let here = near.one(NOW, near.adopt(near.sender, &name, name.as_bytes(), &[], None));
        let copy = far.adopt(far.sender, &name, name.as_bytes(), &[far.holder], origin(here.file));
        let there = far.one(NOW, copy);
        far.sign(NOW, there.file, "berlin", &name, name.as_bytes(), identity);
        // Another receiver's, which comes first.
        let (file, receiver, at, signed) = (there.file, vec![0], NOW, vec![1]);
        far.one(NOW, Change::Receipt(Receipt { file, receiver, at, signed }));
    }
    // Damaged there, damaged here, and whole on both sides.
    let lies =
        [["near", "fa?"], ["near", "fa?"], ["near", "fa?"], ["ne?r", "far"], ["near", "far"]];
    for (name, lies) in names("other", 5).iter().zip(lies) {
        plant_other(near, far, NOW, name, lies);
    }
    plant_stuck(near, NOW, NOW.plus_s(1 << 30), &names("stuck", 5));
}

fn count(report: &Report, kind: Kind) -> usize {
    report.counts().get(&kind).copied().unwrap_or_default()
}

#[test]
fn planted_differences_are_found_and_repaired_while_transfers_go_on() {
    find_and_repair(100);
}

#[test]
fn differences_of_one_day_are_found_and_repaired_while_transfers_go_on() {
    find_and_repair(1);
}

fn find_and_repair(days: i64) {
    let files = files(FILES);
    let (near, far) = filled(files, days);
    let identity = Identity::generate();
    plant(&near, &far, &identity, files);
    // A thousand on their way, half of them there already.
    plant_moving(&near, &far, NOW, &names("moving", 1000));
    let key = Some(identity.public_key());
    let order = Order { far_key: key, stuck_s: 5 * DAY_S, ..order(100) };
    // Those on their way are not yet stuck.
    let begun = Instant::now();
    let first = compared(&near, &far, &order, || {});
    println!(
        "{files} files of {days} days: {} bytes in {} round trips, {:.2} s, {} repaired",
        first.bytes_exchanged,
        first.rounds,
        begun.elapsed().as_secs_f64(),
        first.repaired
    );
    assert_eq!(first.in_flight, 500);
    assert_eq!(count(&first, Kind::Stuck), 0);
    let kinds = [
        (Kind::MissingThere, 10),
        (Kind::MissingHere, 5),
        (Kind::Extra, 7),
        (Kind::Unrecorded, 5),
        (Kind::WrongDigest, 5),
    ];
    for (kind, expected) in kinds {
        assert_eq!(count(&first, kind), expected, "{}", first.text());
    }
    assert_eq!((first.verdict, first.repaired), (Verdict::Found, 18), "{}", first.text());
    assert!(first.bytes_exchanged < 1_000_000, "{}", first.bytes_exchanged);
    for n in 0..10 {
        assert_eq!(near.state(&run_name(n * (files / 10))), State::Queued);
    }
    let notes = first.findings.iter().filter(|f| f.kind == Kind::WrongDigest).map(|f| &*f.note);
    let whole = "left: both copies are what their side recorded; say which one is meant";
    let ours = "left: our copy is damaged, theirs is what they recorded";
    assert_eq!(notes.collect::<Vec<_>>(), ["", "", "", ours, whole]);
    assert_mended(&near, &far);
    // What was repaired is on its way or right; what only they know is taken in where that is wanted, if they can prove it.
    let adopts = Order { adopt_extra: true, ..order.clone() };
    let second = compared(&near, &far, &adopts, || {});
    let left = [Kind::MissingHere, Kind::Extra, Kind::WrongDigest];
    assert_eq!(second.counts().keys().copied().collect::<Vec<_>>(), left, "{}", second.text());
    assert_eq!((second.findings.len(), second.repaired), (14, 6), "{}", second.text());
    let third = compared(&near, &far, &adopts, || {});
    assert_eq!(left.map(|kind| count(&third, kind)), [5, 1, 2], "{}", third.text());
    assert_eq!(third.repaired, 0);
    // The same from the other side: it sees what it has to send again.
    let turned = Order { near: "geneva".into(), far: "berlin".into(), ..order.clone() };
    let turned = compared(&far, &near, &turned, || {});
    assert_eq!(count(&turned, Kind::MissingThere), 5, "{}", turned.text());
    assert_eq!(turned.repaired, 5);
    // Files that wait for too long are woken; those that are being sent are told of.
    let order = Order { stuck_s: DAY_S, repair_max: 2000, ..order };
    let stuck = compared(&near, &far, &order, || {});
    assert_eq!((count(&stuck, Kind::Stuck), stuck.is_cut), (1000, true), "{}", stuck.text());
    let counts = near.catalog.reader().unwrap().counts().unwrap();
    assert!(counts.iter().all(|count| count.state != State::Waiting));
}

/// The copies that were damaged there are known to be, and give way to what is sent again; what is not understood stays.
fn assert_mended(near: &Site, far: &Site) {
    let states = [State::Queued, State::Queued, State::Queued, State::Adopted, State::Adopted];
    for (name, state) in names("other", 5).iter().zip(states) {
        assert_eq!(near.state(name), state, "{name}");
        let (here, there) = (near.known(near.sender, name), far.known(far.sender, name));
        let copy = far.catalog.reader().unwrap().replicas(there.id).unwrap().remove(0);
        let arrived = far.adopt(far.sender, name, b"near", &[far.holder], origin(here.id));
        let arrived = far.catalog.apply(NOW, &[arrived]).unwrap().remove(0);
        assert_eq!(copy.state == ReplicaState::Corrupt, state == State::Queued, "{name}");
        assert_eq!(arrived.is_ok(), state == State::Queued, "{name}");
        assert_eq!(far.known(far.sender, name).digest == here.digest, arrived.is_ok(), "{name}");
    }
}

#[test]
fn a_mass_deletion_is_asked_about_and_repaired_when_approved() {
    let files = files(4000);
    let (near, far) = filled(files, 3);
    let removed: Vec<_> =
        (0..files).step_by(20).map(|n| far.known(far.sender, &run_name(n))).collect();
    far.replica(NOW, &removed, far.holder, ReplicaState::Removed);
    let state = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let asks = compared(&near, &far, &order(100), || {});
    println!(
        "{} of {files} files removed: {} bytes, {:.2} s, {} found, {} repaired",
        removed.len(),
        asks.bytes_exchanged,
        begun.elapsed().as_secs_f64(),
        asks.findings.len(),
        asks.repaired
    );
    assert_eq!((asks.verdict, asks.repaired), (Verdict::Asks, 0));
    assert_eq!(count(&asks, Kind::MissingThere) == removed.len(), !asks.is_cut);
    assert_eq!(near.state("run0/0"), State::Adopted);
    asks.keep(state.path()).unwrap();
    report::approve(state.path(), &asks.id).unwrap();
    let approved = report::approvals(state.path(), "geneva").unwrap();
    assert_eq!(approved.ids, [asks.id]);
    let ids = approved.ids.clone();
    // Of more than it found it asks again.
    let fewer = Approvals { ids: ids.clone(), covered: removed.len() - 1 };
    let again = compared(&near, &far, &Order { approved: fewer, ..order(100) }, || {});
    assert_eq!((again.verdict, again.repaired), (Verdict::Asks, 0));
    let done = compared(&near, &far, &Order { approved, ..order(100) }, || {});
    assert_eq!(near.state("run0/0"), State::Queued);
    assert_eq!((done.verdict, done.repaired), (Verdict::Repaired, removed.len()));
    assert_eq!(done.approved, ids);
}

#[test]
fn equal_content_under_other_days_is_no_difference() {
    let (near, far) = filled(100, 1);
    // Each side took it in by itself: it lies under another day of each.
    let names = names("both", 50);
    for (n, name) in names.iter().enumerate() {
        let there = origin(FileId::first_at(NOW.plus_s(-DAY_S * (1 + n as i64))));
        near.one(NOW, near.adopt(near.sender, name, name.as_bytes(), &[near.holder], there));
        far.one(NOW, far.adopt(far.sender, name, name.as_bytes(), &[far.holder], None));
    }
    far.one(NOW, far.adopt(far.sender, "extra", b"extra", &[far.holder], None));
    let report = compared(&near, &far, &order(100), || {});
    assert_eq!((report.findings.len(), report.in_flight), (1, 0), "{}", report.text());
    assert_eq!(count(&report, Kind::Extra), 1);
}

#[test]
fn what_cannot_be_sent_or_read_is_noted_and_the_rest_goes_on() {
    let (near, far) = filled(100, 1);
    // Gone here by its rule, and there.
    let all: Vec<_> = (0..2).map(run_name).collect();
    let at = |site: &Site, name| site.known(site.sender, name);
    near.replica(NOW, &[at(&near, &all[0])], near.sender, ReplicaState::Removed);
    let lost: Vec<_> = all.iter().map(|name| at(&far, name)).collect();
    far.replica(NOW, &lost, far.holder, ReplicaState::Lost);
    plant_other(&near, &far, NOW, "other", ["near", "fa?"]);
    let (meanwhile, steps) = (Box::new(|| {}), Cell::new(u32::MAX));
    let mut there = There { site: &far, bytes: 0, meanwhile, key: None, is_slow: true, steps };
    let report = run(&near.catalog, &mut there, &order(100), || NOW).unwrap();
    let note = |name: &str| {
        let of = report.findings.iter().find(|finding| finding.name == name);
        &*of.expect("a finding").note
    };
    assert_eq!(note(&all[0]), "left: we have no whole copy any more");
    assert!(note("other").starts_with("left: the copies were not read in time"));
    assert_eq!([note(&all[1]), report.repaired.to_string().as_str()], ["", "1"]);
    assert_eq!([&all[0], &all[1]].map(|name| near.state(name)), [State::Adopted, State::Queued]);
}

#[test]
fn a_run_that_is_to_end_takes_no_further_step() {
    let (near, far) = filled(1000, 1);
    let lost = (0..=NAMES_MAX).map(|n| far.known(far.sender, &run_name(n)));
    far.replica(NOW, &lost.collect::<Vec<_>>(), far.holder, ReplicaState::Lost);
    let mut queued = BTreeSet::new();
    for steps in 0.. {
        let (meanwhile, steps) = (Box::new(|| {}), Cell::new(steps));
        let mut there = There { site: &far, bytes: 0, meanwhile, key: None, is_slow: false, steps };
        let ended = run(&near.catalog, &mut there, &order(1000), || NOW);
        let counts = near.catalog.reader().unwrap().counts().unwrap();
        let in_queue = counts.iter().filter(|count| count.state == State::Queued);
        queued.insert(in_queue.map(|count| count.files as usize).sum::<usize>());
        if ended.is_ok() {
            break;
        }
    }
    // Nothing, then what is asked of the catalog at once, then all.
    assert_eq!(queued.into_iter().collect::<Vec<_>>(), [0, NAMES_MAX, NAMES_MAX + 1]);
}

#[test]
fn what_no_rule_sends_there_is_left_and_told_each_time() {
    let (near, far) = filled(100, 1);
    let name = run_name(0);
    far.replica(NOW, &[far.known(far.sender, &name)], far.holder, ReplicaState::Lost);
    plant_other(&near, &far, NOW, "other", ["near", "fa?"]);
    let order = Order { sent: [].into(), ..order(100) };
    for damaged in [Kind::WrongDigest, Kind::MissingThere] {
        let report = compared(&near, &far, &order, || {});
        assert_eq!((report.verdict, report.repaired), (Verdict::Found, 0), "{}", report.text());
        let mut found: Vec<_> = report.findings.iter().map(|f| (&*f.name, f.kind)).collect();
        found.sort_unstable();
        assert_eq!(found, [("other", damaged), (&*name, Kind::MissingThere)]);
        let left = |f: &Finding| f.note == "left: its rule does not send it there";
        assert!(report.findings.iter().all(left), "{}", report.text());
        assert_eq!(near.state(&name), State::Adopted);
    }
}

#[test]
fn what_no_rule_sends_there_is_not_asked_about() {
    let (near, far) = filled(100, 1);
    let name = run_name(0);
    far.replica(NOW, &[far.known(far.sender, &name)], far.holder, ReplicaState::Lost);
    let rule = near.catalog.rule("former").unwrap();
    // Missing there, and there with other content.
    for (n, old) in names("old", 202).into_iter().enumerate() {
        let at = [near.sender, near.holder];
        let mut change = near.adopt(near.sender, &old, b"old", &at, None);
        let Change::Adopt(file) = &mut change else { unreachable!("it adopts") };
        file.rule = rule;
        let here = near.one(NOW, change);
        if n % 2 == 1 {
            let there = far.adopt(far.sender, &old, b"far", &[far.holder], origin(here.file));
            far.one(NOW, there);
        }
    }
    for repaired in [1, 0] {
        let report = compared(&near, &far, &order(100), || {});
        assert_eq!(
            (report.verdict, report.findings.len(), report.repaired),
            (Verdict::Found, 202 + repaired, repaired),
            "{}",
            report.text()
        );
        assert_eq!(count(&report, Kind::WrongDigest), 101, "{}", report.text());
    }
    assert_eq!(near.state(&name), State::Queued);
}

#[test]
fn what_is_not_here_any_more_is_not_asked_about() {
    let (near, far) = filled(100, 1);
    let lost: Vec<String> = (0..4).map(run_name).collect();
    let there: Vec<_> = lost.iter().map(|name| far.known(far.sender, name)).collect();
    far.replica(NOW, &there, far.holder, ReplicaState::Lost);
    // Gone here by their rule; of one we have a copy.
    let gone: Vec<_> = lost[1..].iter().map(|name| near.known(near.sender, name)).collect();
    near.replica(NOW, &gone, near.sender, ReplicaState::Removed);
    for repaired in [1, 0] {
        let report = compared(&near, &far, &order(2), || {});
        assert_eq!(
            (report.verdict, report.findings.len(), report.repaired),
            (Verdict::Found, 3 + repaired, repaired),
            "{}",
            report.text()
        );
        let left = |f: &&Finding| f.note == "left: we have no whole copy any more";
        assert_eq!(report.findings.iter().filter(left).count(), 3, "{}", report.text());
    }
    assert_eq!(near.state(&lost[0]), State::Queued);
}

#[test]
fn what_is_in_quarantine_is_not_on_its_way() {
    let (near, far) = filled(100, 1);
    // The catalog here was set back to a backup: what comes under the name now is not what the other site has.
    let set_apart = near.sending(NOW, &names("new", 1)).remove(0);
    let (file, at, fence) = (set_apart.file, set_apart.revision, Some(set_apart.fence));
    let next = Next::Quarantined(ErrorClass::VersionConflict);
    near.one(NOW, Change::Move(Move { file, at, fence, next }));
    far.one(NOW, far.adopt(far.sender, "new/0", b"before", &[far.holder], origin(file)));
    let report = compared(&near, &far, &Order { stuck_s: 1 << 30, ..order(100) }, || {});
    assert_eq!((report.verdict, report.in_flight), (Verdict::Found, 0), "{}", report.text());
    assert_eq!((report.findings.len(), count(&report, Kind::Unrecorded)), (1, 1));
}

#[test]
fn a_version_that_leaves_no_room_for_the_next_is_not_taken_in() {
    let (near, far) = filled(100, 1);
    let identity = Identity::generate();
    for (name, version) in [("few", 7), ("many", 1 << 53)] {
        let origin = Some(Origin { version, taken_in: NOW });
        let there = far.one(NOW, far.adopt(far.sender, name, b"x", &[far.holder], origin));
        far.sign(NOW, there.file, "berlin", name, b"x", &identity);
    }
    let far_key = Some(identity.public_key());
    let adopts = Order { adopt_extra: true, far_key, ..order(100) };
    let report = compared(&near, &far, &adopts, || {});
    assert_eq!((report.findings.len(), report.repaired), (2, 1), "{}", report.text());
    let left = report.findings.iter().find(|finding| finding.name == "many").unwrap();
    assert_eq!(left.note, "left: no file has as many versions");
}

#[test]
fn no_transfer_in_flight_is_taken_for_a_difference() {
    let (near, far) = filled(200, 1);
    let names = names("moving", 400);
    let mut moving = near.sending(NOW, &names).into_iter().zip(&names).collect::<Vec<_>>();
    // Between any two questions some files arrive: the holder records first, then the sender.
    let mut arrived: Vec<(Claimed, &String)> = Vec::new();
    let mut arrive = || {
        let late = arrived.len().saturating_sub(30);
        for (claimed, name) in arrived.drain(..late) {
            let (file, fence) = (claimed.file, Some(claimed.fence));
            let (receiver, at, signed) = (vec![1], NOW, vec![1]);
            let mut revision = claimed.revision;
            for next in [
                Next::Sent { bytes: 7 },
                Next::Verified(near.holder, String::clone(name)),
                Next::Receipted(Receipt { file, receiver, at, signed }),
            ] {
                let step = Move { file, at: revision, fence, next };
                revision = near.one(NOW, Change::Move(step)).revision;
            }
        }
        for _ in 0..3 {
            let Some((claimed, name)) = moving.pop() else { return };
            let (at, origin) = ([far.holder], origin(claimed.file));
            far.one(NOW, far.adopt(far.sender, name, name.as_bytes(), &at, origin));
            arrived.push((claimed, name));
        }
    };
    let mut in_flight = 0;
    let order = Order { stuck_s: 1 << 30, ..order(0) };
    for _ in 0..8 {
        let report = compared(&near, &far, &order, &mut arrive);
        assert_eq!(report.findings, [], "{}", report.text());
        in_flight += report.in_flight;
    }
    assert!(in_flight > 0, "nothing was in flight: the test shows nothing");
}
