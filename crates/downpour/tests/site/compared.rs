//! Two large catalogs compared by two real daemons, over their API; the test prints what was exchanged and how long it took.

use super::harness::{SiteProcess, Two, until};
use super::planting::{Book, files, fill, names, origin, plant_moving, plant_other, plant_stuck};
use downpour::reconcile::{Kind, Report, Verdict};
use downpour_catalog::{FileId, ReplicaState, State, Time};
use downpour_transport::identity::Identity;
use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// When most files were taken in.
const THEN: Time = Time(1_790_000_000_000_000);
const FILES: usize = 3000;
/// Planted: missing there (and really there to be sent again), extra, with another digest, stuck. 37 together.
const MISSING: usize = 15;
const EXTRA: usize = 10;
const OTHER: usize = 7;
const STUCK: usize = 5;
/// Of those with another digest, damaged at `b`.
const DAMAGED: usize = 5;
/// On their way meanwhile, half of them recorded by the holder.
const MOVING: usize = 1000;

fn open(site: &SiteProcess, folder: &str) -> Book {
    fs::create_dir_all(site.path("state")).expect("room");
    Book::open(site.catalog(), THEN, &[], ["a", "b"], site.path(folder))
}

/// Files of `a` that `b` has, as both have recorded them, and the differences.
fn plant(a: &SiteProcess, b: &SiteProcess, all: &[String]) {
    let (near, far) = (open(a, "data"), open(b, "inbox"));
    fill(&near, &far, all, &[THEN]);
    let missing = missing(all).map(|name| far.known(far.sender, name)).collect::<Vec<_>>();
    far.replica(THEN, &missing, far.holder, ReplicaState::Lost);
    missing.iter().for_each(|file| near.put(&file.name, file.name.as_bytes()));
    let identity = Identity::load_or_create(&b.path("state")).expect("a key");
    for name in names("extra", EXTRA) {
        let origin = origin(FileId::first_at(THEN));
        let there = far.one(THEN, far.adopt(far.sender, &name, b"x", &[far.holder], origin));
        far.sign(THEN, there.file, "a", &name, b"x", &identity);
    }
    for (n, name) in names("other", OTHER).iter().enumerate() {
        let lies = if n < DAMAGED { ["near", "fa?"] } else { ["near", "far"] };
        plant_other(&near, &far, THEN, name, lies);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Time(since.as_micros() as i64);
    plant_stuck(&near, THEN, now.plus_s(3000), &names("stuck", STUCK));
    plant_moving(&near, &far, now, &names("moving", MOVING));
}

fn missing(all: &[String]) -> impl Iterator<Item = &String> {
    all.iter().step_by(all.len() / MISSING).take(MISSING)
}

fn compare(site: &SiteProcess) -> Report {
    let asked = site.run(&["catalog", "reconcile", "--json"]);
    serde_json::from_slice(&asked.stdout).expect("a report")
}

#[test]
fn planted_differences_are_found_over_the_api_and_repaired() {
    let rule = "\n[[rule]]\nname = \"raw\"\nmatch = \"*\"\nto = \"b\"\n\
                [reconcile]\nextra = \"adopt\"\n";
    let mut sites = Two::set_up([rule, ""]);
    let all = names("run", files(FILES));
    let begun = Instant::now();
    plant(&sites.a, &sites.b, &all);
    println!("filled in {:.1} s", begun.elapsed().as_secs_f64());
    sites.a.start();
    sites.b.start();
    let report = compare(&sites.a);
    println!(
        "{} files: {} bytes in {} round trips, {:.2} s, {} in flight, {} repaired",
        all.len(),
        report.bytes_exchanged,
        report.rounds,
        (report.ended_us - report.started_us) as f64 / 1e6,
        report.in_flight,
        report.repaired
    );
    let counts = report.counts();
    let count = |kind| counts.get(&kind).copied().unwrap_or_default();
    let kinds = [Kind::MissingThere, Kind::Extra, Kind::WrongDigest, Kind::Stuck];
    assert_eq!(kinds.map(count), [MISSING, EXTRA, OTHER, STUCK], "{}", report.text());
    assert_eq!(report.findings.len(), MISSING + EXTRA + OTHER + STUCK, "{}", report.text());
    assert_eq!(report.repaired, MISSING + EXTRA + DAMAGED + STUCK, "{}", report.text());
    assert!(report.bytes_exchanged < 1_000_000, "{}", report.bytes_exchanged);
    let damaged = names("other", DAMAGED);
    let again = missing(&all).map(|name| (name, name.as_str()));
    for (name, content) in again.chain(damaged.iter().map(|name| (name, "near"))) {
        until(&format!("{name} is sent again\n{}", sites.a.log()), || {
            let there = fs::read(sites.b.path("inbox").join(name)).ok()?;
            (there == content.as_bytes()).then_some(())
        });
    }
    until("they are received", || {
        let counts = sites.a.reader().counts().expect("the database works");
        let received = counts.iter().filter(|count| count.state == State::Receipted);
        let received = received.map(|count| count.files).sum::<i64>();
        (received == (MISSING + DAMAGED) as i64).then_some(())
    });
    // What was damaged lies aside; what both have whole is left for people, and nothing else is.
    let aside = fs::read_dir(sites.b.path("inbox/.downpour/corrupt")).expect("a folder").flatten();
    let aside: Vec<_> = aside.map(|entry| fs::read(entry.path()).expect("a file")).collect();
    assert_eq!(aside, [b"fa?"; DAMAGED]);
    let second = compare(&sites.a);
    assert_eq!(second.verdict, Verdict::Found);
    let left = second.findings.iter().map(|finding| (finding.kind, &finding.name));
    let whole = names("other", OTHER);
    let whole = whole[DAMAGED..].iter().map(|name| (Kind::WrongDigest, name));
    assert!(left.eq(whole), "{}", second.text());
    for name in &names("other", OTHER)[DAMAGED..] {
        assert_eq!(fs::read(sites.b.path("inbox").join(name)).expect("a file"), b"far");
    }
}
