//! Two catalogs with planted differences, compared and repaired, with transfers going on.
//!
//! `DOWNPOUR_RECONCILE_FILES=1000000` makes the first stories as large as a site; they print what was exchanged and how long it took.

use downpour::object::Digest as Blake3;
use downpour::receipt::FileReceipt;
use downpour::reconcile::{
    Answer, Far, FarError, Kind, Order, Question, Report, Side, Verdict, report, run,
};
use downpour_catalog::{
    AdoptedFile, Applied, BeforeMigration, Catalog, CatalogUrl, Change, Digest, ErrorClass, FileId,
    Move, NewFile, Next, Origin, OtherContent, Reason, Receipt, Replica, ReplicaState, RuleId,
    SiteId, State, Time, Work,
};
use downpour_transport::identity::Identity;
use std::time::Instant;
use tempfile::TempDir;

const NOW: Time = Time(1_795_305_600_000_000);
const FILES: usize = 20_000;
const BATCH: usize = 4000;

struct Site {
    catalog: Catalog,
    berlin: SiteId,
    geneva: SiteId,
    rule: RuleId,
    _folder: TempDir,
}

impl Site {
    fn new(words: [&str; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("catalog.db"));
        let catalog = Catalog::open(&url, "daemon", NOW, &BeforeMigration::Refuse).unwrap();
        // Numbers differ between catalogs.
        for word in words {
            catalog.site(word).unwrap();
        }
        let (berlin, geneva) = (catalog.site("berlin").unwrap(), catalog.site("geneva").unwrap());
        let rule = catalog.rule("raw").unwrap();
        Self { catalog, berlin, geneva, rule, _folder: folder }
    }

    fn apply(&self, now: Time, changes: Vec<Change>) -> Vec<Applied> {
        let mut applied = Vec::with_capacity(changes.len());
        for slice in changes.chunks(BATCH) {
            let answers = self.catalog.apply(now, slice).unwrap();
            applied.extend(answers.into_iter().map(Result::unwrap));
        }
        applied
    }

    fn one(&self, change: Change) -> Applied {
        self.apply(NOW, vec![change])[0]
    }

    fn adopt(&self, site: SiteId, name: &str, at: &[SiteId], origin: Option<Origin>) -> Change {
        Change::Adopt(AdoptedFile {
            site,
            name: name.to_owned(),
            size: 7,
            rule: self.rule,
            digest: digest(name),
            replicas: at.iter().map(|site| (*site, name.to_owned())).collect(),
            other_content: OtherContent::Refuse,
            origin,
            receipt: None,
        })
    }

    fn replica(&self, file: FileId, site: SiteId, name: &str, state: ReplicaState) {
        self.one(Change::Replica(Replica { file, site, path: name.to_owned(), state }));
    }

    fn state(&self, site: SiteId, name: &str) -> State {
        self.catalog.reader().unwrap().versions(site, name).unwrap()[0].state
    }

    /// A file on its way; returned as it is sent.
    fn sending(&self, names: &[String]) -> Vec<downpour_catalog::Claimed> {
        let new = |name: &String| {
            Change::TakeIn(NewFile {
                site: self.berlin,
                name: name.clone(),
                size: 7,
                stamp: 1,
                rule: self.rule,
                rank: 0,
                transfer: None,
                other_content: OtherContent::Refuse,
            })
        };
        let mut files = self.apply(NOW, names.iter().map(new).collect());
        for step in 0..3 {
            let next = |name: &String| match step {
                0 => Next::Settled { size: 7 },
                1 => Next::Hashed(vec![digest(name)]),
                _ => Next::Queued,
            };
            let moves = files.iter().zip(names).map(|(file, name)| {
                let (at, next) = (file.revision, next(name));
                Change::Move(Move { file: file.file, at, fence: None, next })
            });
            files = self.apply(NOW, moves.collect());
        }
        let until = NOW.plus_s(600);
        let claim = self.catalog.claim(NOW, Work::Queued, names.len(), until).wait().unwrap();
        assert_eq!(claim.len(), names.len());
        claim
    }
}

fn digest(name: &str) -> Digest {
    Digest::blake3(Blake3::of(name.as_bytes()).0)
}

/// The other site, asked as over the network, but for the network.
struct There<'a> {
    site: &'a Site,
    bytes: u64,
    /// Done before each answer.
    meanwhile: Box<dyn FnMut() + 'a>,
}

impl Far for There<'_> {
    fn ask(&mut self, questions: &[Question]) -> Result<Vec<Answer>, FarError> {
        (self.meanwhile)();
        let mut reader = self.site.catalog.reader().unwrap();
        let asked = serde_json::to_vec(questions).unwrap();
        let questions: Vec<Question> = serde_json::from_slice(&asked).unwrap();
        let answers = Side::of(&mut reader).unwrap().answer_all(&questions).unwrap();
        let answered = serde_json::to_vec(&answers).unwrap();
        self.bytes += (asked.len() + answered.len()) as u64;
        Ok(serde_json::from_slice(&answered).unwrap())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn order(repair_max: usize) -> Order {
    Order {
        near: "berlin".into(),
        far: "geneva".into(),
        far_key: None,
        repair_max,
        stuck_s: 86_400,
        approved: None,
    }
}

fn compared(near: &Site, far: &Site, order: &Order, meanwhile: impl FnMut()) -> Report {
    let mut there = There { site: far, bytes: 0, meanwhile: Box::new(meanwhile) };
    run(&near.catalog, &mut there, order, || NOW.plus_s(3 * 86_400)).unwrap()
}

/// Files that both catalogs have alike: berlin's at geneva, taken in on so many days, today the last of them.
fn filled(files: usize, days: usize) -> (Site, Site) {
    let (near, far) = (Site::new(["x", "geneva"]), Site::new(["geneva", "y"]));
    let names: Vec<String> = (0..files).map(|n| format!("run{}/{n}", n % 97)).collect();
    let slices = names.len().div_ceil(BATCH);
    for (slice, names) in names.chunks(BATCH).enumerate() {
        let day = (slice + 1) * days / slices;
        let now = NOW.plus_s(-86_400 * (days - day.max(1)) as i64);
        let at = [near.berlin, near.geneva];
        let adopted = names.iter().map(|name| near.adopt(near.berlin, name, &at, None)).collect();
        let copies = near.apply(now, adopted).into_iter().zip(names).map(|(applied, name)| {
            let origin = Origin { version: 1, taken_in: applied.file.time() };
            far.adopt(far.berlin, name, &[far.geneva], Some(origin))
        });
        let copies = copies.collect();
        far.apply(now, copies);
    }
    (near, far)
}

fn held(site: &Site, n: usize) -> (FileId, String) {
    let name = format!("run{}/{n}", n % 97);
    (site.catalog.reader().unwrap().versions(site.berlin, &name).unwrap()[0].id, name)
}

/// 37 differences: 10 missing there, 5 missing here, 7 extra, 5 unrecorded, 5 with another digest, 5 stuck.
fn plant(near: &Site, far: &Site, identity: &Identity, files: usize) {
    let origin = Some(Origin { version: 1, taken_in: NOW });
    for n in 0..10 {
        let (file, name) = held(far, n * (files / 10));
        far.replica(file, far.geneva, &name, ReplicaState::Lost);
    }
    for n in 0..5 {
        let name = format!("back/{n}");
        let at = [far.berlin, far.geneva];
        let taken_in = far.one(far.adopt(far.geneva, &name, &at, None)).file.time();
        let origin = Some(Origin { version: 1, taken_in });
        let here = near.one(near.adopt(near.geneva, &name, &[near.berlin], origin));
        near.replica(here.file, near.berlin, &name, ReplicaState::Corrupt);
    }
    for n in 0..7 {
        far.one(far.adopt(far.berlin, &format!("extra/{n}"), &[far.geneva], origin));
    }
    for n in 0..5 {
        let name = format!("unrecorded/{n}");
        let taken_in = near.one(near.adopt(near.berlin, &name, &[], None)).file.time();
        let origin = Some(Origin { version: 1, taken_in });
        let there = far.one(far.adopt(far.berlin, &name, &[far.geneva], origin)).file;
        let receipt = FileReceipt {
            site: "berlin".into(),
            path: name.clone(),
            blake3: Blake3::of(name.as_bytes()),
            name,
            version: 1,
            taken_in,
            rule: "raw".into(),
            size: 7,
            session: "s".into(),
            at: NOW,
            receiver: identity.public_key(),
        };
        let (signed, at) = (receipt.sign(identity).unwrap().to_bytes(), NOW);
        let receiver = identity.public_key().as_bytes().to_vec();
        far.one(Change::Receipt(Receipt { file: there, receiver, at, signed }));
    }
    for n in 0..5 {
        let name = format!("other/{n}");
        let at = [near.geneva];
        let taken_in = near.one(near.adopt(near.berlin, &name, &at, None)).file.time();
        let origin = Some(Origin { version: 1, taken_in });
        let Change::Adopt(mut other) = far.adopt(far.berlin, &name, &[far.geneva], origin) else {
            unreachable!("an adoption")
        };
        other.digest = digest("something else");
        far.one(Change::Adopt(other));
    }
    let names: Vec<String> = (0..5).map(|n| format!("stuck/{n}")).collect();
    for claimed in near.sending(&names) {
        let (reason, error) = (Reason::BackOff, Some(ErrorClass::DestinationFull));
        let next = Next::Waiting { reason, error, next_try: NOW.plus_s(1 << 30), bytes: 0 };
        let (file, at, fence) = (claimed.file, claimed.revision, Some(claimed.fence));
        near.one(Change::Move(Move { file, at, fence, next }));
    }
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

fn find_and_repair(days: usize) {
    let files = std::env::var("DOWNPOUR_RECONCILE_FILES");
    let files: usize = files.map_or(FILES, |text| text.parse().expect("a number of files"));
    let (near, far) = filled(files, days);
    let identity = Identity::generate();
    plant(&near, &far, &identity, files);
    // A thousand on their way, half of them there already.
    let names: Vec<String> = (0..1000).map(|n| format!("moving/{n}")).collect();
    for (n, claimed) in near.sending(&names).into_iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        let origin = Origin { version: 1, taken_in: claimed.file.time() };
        far.one(far.adopt(far.berlin, &names[n], &[far.geneva], Some(origin)));
    }
    let order = Order { far_key: Some(identity.public_key()), stuck_s: 5 * 86_400, ..order(100) };
    // Those on their way are not yet stuck.
    let begun = Instant::now();
    let first = compared(&near, &far, &order, || {});
    println!(
        "{files} files of {days} days: {} bytes in {} round trips, {:.2} s",
        first.bytes_exchanged,
        first.rounds,
        begun.elapsed().as_secs_f64()
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
    assert_eq!(first.verdict, Verdict::Found);
    assert!(first.bytes_exchanged < 1_000_000, "{}", first.bytes_exchanged);
    for n in 0..10 {
        assert_eq!(near.state(near.berlin, &held(&near, n * (files / 10)).1), State::Queued);
    }
    // What was repaired is on its way or right; what is not ours is found again.
    let second = compared(&near, &far, &order, || {});
    let left = [Kind::MissingHere, Kind::Extra, Kind::WrongDigest];
    assert_eq!(second.counts().keys().copied().collect::<Vec<_>>(), left);
    assert_eq!((second.findings.len(), second.repaired), (17, 0));
    // The same from the other side: it sees what it has to send again.
    let turned = Order { near: "geneva".into(), far: "berlin".into(), ..order.clone() };
    let turned = compared(&far, &near, &turned, || {});
    assert_eq!(count(&turned, Kind::MissingThere), 5, "{}", turned.text());
    assert_eq!(turned.repaired, 5);
    // Files that wait for too long are woken; those that are being sent are told of.
    let order = Order { stuck_s: 86_400, repair_max: 2000, ..order };
    let stuck = compared(&near, &far, &order, || {});
    assert_eq!(count(&stuck, Kind::Stuck), 1000);
    assert!(
        near.catalog
            .reader()
            .unwrap()
            .counts()
            .unwrap()
            .iter()
            .all(|count| { count.state != State::Waiting })
    );
}

#[test]
fn a_mass_deletion_is_asked_about_and_repaired_when_approved() {
    let (near, far) = filled(4000, 3);
    for n in (0..4000).step_by(20) {
        let (file, name) = held(&far, n);
        far.replica(file, far.geneva, &name, ReplicaState::Removed);
    }
    let state = tempfile::tempdir().unwrap();
    let asks = compared(&near, &far, &order(100), || {});
    assert_eq!((asks.verdict, asks.repaired), (Verdict::Asks, 0));
    assert_eq!(count(&asks, Kind::MissingThere), 200);
    assert_eq!(near.state(near.berlin, "run0/0"), State::Adopted);
    asks.keep(state.path()).unwrap();
    report::approve(state.path(), &asks.id).unwrap();
    let approved = report::take_approval(state.path(), "geneva").unwrap();
    assert_eq!(approved, Some(asks.id));
    let done = compared(&near, &far, &Order { approved, ..order(100) }, || {});
    assert_eq!(near.state(near.berlin, "run0/0"), State::Queued);
    assert_eq!((done.verdict, done.repaired), (Verdict::Repaired, 200));
}

#[test]
fn no_transfer_in_flight_is_taken_for_a_difference() {
    let (near, far) = filled(200, 1);
    let names: Vec<String> = (0..400).map(|n| format!("moving/{n}")).collect();
    let mut moving = near.sending(&names).into_iter().zip(&names).collect::<Vec<_>>();
    // Between any two questions some files arrive: the holder records first, then the sender.
    let mut arrived: Vec<(downpour_catalog::Claimed, &String)> = Vec::new();
    let mut arrive = || {
        let late = arrived.len().saturating_sub(30);
        for (claimed, name) in arrived.drain(..late) {
            let (file, fence) = (claimed.file, Some(claimed.fence));
            let (receiver, at, signed) = (vec![1], NOW, vec![1]);
            let mut revision = claimed.revision;
            for next in [
                Next::Sent { bytes: 7 },
                Next::Verified(near.geneva, String::clone(name)),
                Next::Receipted(Receipt { file, receiver, at, signed }),
            ] {
                let step = Move { file, at: revision, fence, next };
                revision = near.one(Change::Move(step)).revision;
            }
        }
        for _ in 0..3 {
            let Some((claimed, name)) = moving.pop() else { return };
            let origin = Origin { version: 1, taken_in: claimed.file.time() };
            far.one(far.adopt(far.berlin, name, &[far.geneva], Some(origin)));
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
