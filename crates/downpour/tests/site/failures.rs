//! What goes wrong beside death: each found, classed, and recovered from without a hand. `docs/results/site-failures.md` has a
//! line for each.

use super::alone::{COUNTED_PORTS, Network, Place, alone};
use super::harness::{SiteProcess, Two, drop_file, until};
use downpour::dispatch::{Links, WhyList};
use downpour::reconcile::Report;
use downpour::site::{Clock, Daemon};
use downpour_catalog::{ErrorClass, FileId, Query, State, Time};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the network is away in `make test`; `DOWNPOUR_OUTAGE_S` makes it longer.
const OUTAGE_S: u64 = 8;

/// Two sites; what is put into `folder` at the first goes to the second.
fn sites(folder: &Path) -> Two {
    let spool = format!(
        "\n[[spool]]\nfolder = {folder:?}\ncomplete = \"settle:100ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\n[transfer]\nports = \"{COUNTED_PORTS}\""
    );
    Two::set_up([&spool, "[transfer]\nports = \"31600-31699\""])
}

fn content(name: &str, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut content);
    content
}

/// Puts files there; their names.
fn put(folder: &Path, prefix: &str, count: usize, len: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|number| format!("{prefix} {number}")).collect();
    for name in &names {
        drop_file(&folder.join(name), &content(name, len));
    }
    names
}

/// Waits until so many files are received, then reads these back.
fn arrived(sites: &Two, names: &[String], len: usize, in_all: usize) {
    until(&format!("all are received\n{}", sites.a.log()), || {
        let counts = sites.a.reader().counts().ok()?.into_iter();
        let received = counts.filter(|count| count.state == State::Receipted);
        (received.map(|count| count.files).sum::<i64>() == in_all as i64).then_some(())
    });
    let inbox = sites.b.path("inbox");
    for name in names {
        assert!(fs::read(inbox.join(name)).expect("it is there") == content(name, len), "{name}");
    }
}

/// Waits until a file does not move for this reason.
fn told(site: &SiteProcess, class: &str) {
    until(&format!("`why` says {class}\n{}", site.log()), || {
        let list: WhyList = site.get("/v1/why").ok()?;
        let is_it = |why: &downpour::dispatch::Why| why.class.as_deref() == Some(class);
        list.files.iter().any(is_it).then_some(())
    });
}

/// How many attempts failed for this reason.
fn attempts(site: &SiteProcess, class: ErrorClass) -> usize {
    let mut reader = site.reader();
    let page = reader.search(&Query::default(), None, 1000).expect("the database works");
    let ids = page.files.iter().map(|file| file.id).collect::<Vec<FileId>>();
    let failed = ids.into_iter().flat_map(|id| reader.attempts(id).expect("the database works"));
    failed.filter(|attempt| attempt.error == Some(class)).count()
}

/// What is to be read-only is busy while a session that has just ended closes its files.
fn mount(what: &str, at: &Path) {
    until(&format!("mount -o {what}"), || {
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", what, "none"]).arg(at).status();
        done.expect("mount runs").success().then_some(())
    });
}

/// A mount that goes away with it: the folder that it lies in could not be removed.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Also while programs have files open there.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_and_a_read_only_one_are_waited_for() {
    let Place::Own = alone("failures::a_full_disk_and_a_read_only_one_are_waited_for") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut sites = sites(folder.path());
    let inbox = sites.b.path("inbox");
    fs::create_dir_all(&inbox).expect("room");
    // 64 MiB are always left free, so that there is room for three files.
    mount("size=100m", &inbox);
    let _mounted = Mounted(&inbox);
    sites.a.start();
    sites.b.start();
    let len = 10_000_000;
    let names = put(folder.path(), "large", 6, len);
    told(&sites.a, "destination-full");
    mount("remount,size=300m", &inbox);
    arrived(&sites, &names, len, names.len());
    assert!(attempts(&sites.a, ErrorClass::DestinationFull) > 0);
    mount("remount,ro,size=300m", &inbox);
    let more = put(folder.path(), "small", 3, 1000);
    told(&sites.a, "destination-read-only");
    mount("remount,rw,size=300m", &inbox);
    arrived(&sites, &more, 1000, names.len() + more.len());
}

#[test]
fn a_long_outage_costs_no_bytes_once_the_breaker_is_open() {
    let Place::Own = alone("failures::a_long_outage_costs_no_bytes_once_the_breaker_is_open")
    else {
        return;
    };
    let network = Network::own().expect("this is a process of its own");
    let folder = tempfile::tempdir().expect("a folder");
    let mut sites = sites(folder.path());
    sites.a.start();
    sites.b.start();
    let len = 200_000;
    let names = put(folder.path(), "before", 100, len);
    arrived(&sites, &names, len, names.len());
    let door = sites.b.card.address.to_string();
    let door = door.rsplit(':').next().expect("a port").to_owned();
    network.cut(&[&door, COUNTED_PORTS]);
    let more = put(folder.path(), "during", 100, len);
    let link = || sites.a.get::<Links>("/v1/links").ok()?.links.into_iter().next();
    until("the breaker opens", || link()?.probe_at_us);
    let (sent, begun) = (network.sent(), Instant::now());
    let outage = std::env::var("DOWNPOUR_OUTAGE_S").ok().and_then(|text| text.parse().ok());
    let outage = Duration::from_secs(outage.unwrap_or(OUTAGE_S));
    until("files wait for the link", || {
        let list: WhyList = sites.a.get("/v1/why").ok()?;
        (list.files.len() == more.len() && list.files.iter().all(|why| why.eta_us.is_some()))
            .then_some(())
    });
    std::thread::sleep(outage.saturating_sub(begun.elapsed()));
    let wasted = (network.sent() - sent).bytes;
    println!("{wasted} bytes from the source's sessions in {outage:?} with the breaker open");
    assert!(wasted < len as u64, "{wasted} bytes");
    network.heal();
    arrived(&sites, &more, len, names.len() + more.len());
}

#[test]
fn what_rots_on_the_disk_is_found_and_sent_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sites = sites(folder.path());
    sites.a.start();
    sites.b.start();
    let names = put(folder.path(), "file", 5, 50_000);
    arrived(&sites, &names, 50_000, 5);
    let path = sites.b.path("inbox").join(&names[2]);
    let mut rotten = fs::read(&path).expect("it is there");
    rotten[33_333] ^= 4;
    fs::write(&path, rotten).expect("room");
    let scrub = sites.b.run(&["catalog", "reconcile", "--scrub", "--json"]);
    let report: Report = serde_json::from_slice(&scrub.stdout).expect("a report");
    assert_eq!((report.findings.len(), report.repaired), (1, 1), "{}", report.text());
    let repaired = sites.a.done(&["catalog", "reconcile"]);
    assert!(repaired.contains("1 repaired"), "{repaired}");
    arrived(&sites, &names, 50_000, 5);
    let aside = fs::read_dir(sites.b.path("inbox/.downpour/corrupt")).expect("a folder");
    assert_eq!(aside.count(), 1, "the rotten one is kept");
}

#[test]
fn what_is_damaged_on_the_way_is_found_and_sent_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sites = sites(folder.path());
    let mut command = sites.a.command(&["serve"]);
    command.env("DOWNPOUR_FLIP", "0.03");
    sites.a.start_command(command);
    sites.b.start();
    let names = put(folder.path(), "file", 12, 3_000_000);
    arrived(&sites, &names, 3_000_000, 12);
    assert!(sites.a.log().contains("a bit was flipped"), "the hook did nothing");
}

/// What is in its place and not in the folder's own log is not answered for, and in no catalog: it could not be made again.
#[test]
fn what_cannot_be_logged_is_neither_recorded_nor_answered_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sites = sites(folder.path());
    let (inbox, log) = (sites.b.path("inbox"), sites.b.path("inbox/.downpour/receipts.ndjson"));
    // Nobody can write to it, not even root.
    fs::create_dir_all(&log).expect("room");
    sites.a.start();
    sites.b.start();
    let names = put(folder.path(), "file", 3, 1000);
    told(&sites.a, "destination-write-failed");
    assert!(names.iter().any(|name| inbox.join(name).exists()), "{}", sites.b.log());
    let counts = sites.b.reader().counts().expect("the database works");
    assert!(counts.iter().all(|count| count.state != State::Adopted), "{counts:?}");
    fs::remove_dir(&log).expect("it is empty");
    arrived(&sites, &names, 1000, names.len());
    let logged = fs::read_to_string(&log).expect("a log");
    assert_eq!(logged.lines().count(), names.len(), "{logged}");
}

/// Sites know each other by keys alone, whose certificates have no dates that count: none can expire. Another key is found.
#[test]
fn another_key_is_not_trusted_until_the_right_one_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sites = sites(folder.path());
    sites.a.start();
    sites.b.start();
    let names = put(folder.path(), "file", 3, 1000);
    arrived(&sites, &names, 1000, 3);
    sites.b.kill();
    let (key, aside) = (sites.b.path("state/node.key"), sites.b.path("state/aside"));
    fs::rename(&key, &aside).expect("it is there");
    sites.b.start_as_another();
    let more = put(folder.path(), "more", 3, 1000);
    told(&sites.a, "not-trusted");
    sites.b.kill();
    fs::rename(&aside, &key).expect("it is there");
    sites.b.start_as_another();
    arrived(&sites, &more, 1000, 6);
}

/// Sites in this process, whose clocks the test turns.
struct Turned {
    daemon: Daemon,
    ahead_s: Arc<AtomicI64>,
}

impl Turned {
    async fn start(file: PathBuf) -> Self {
        let ahead_s = Arc::new(AtomicI64::new(0));
        let ahead = ahead_s.clone();
        let clock = Clock::of(move || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Time(since.as_micros() as i64).plus_s(ahead.load(Ordering::Relaxed))
        });
        let daemon = Daemon::start(&file, clock).await.expect("a site starts");
        Self { daemon, ahead_s }
    }

    fn turn(&self, hours: i64) {
        self.ahead_s.fetch_add(hours * 3600, Ordering::Relaxed);
    }
}

#[test]
fn clocks_that_jump_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let sites = sites(folder.path());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let start = |site: &SiteProcess| runtime.block_on(Turned::start(site.config()));
    let (a, b) = (start(&sites.a), start(&sites.b));
    let mut names = Vec::new();
    for (round, (hours_a, hours_b)) in
        [(3, 0), (0, 5), (-3, 0), (-2, -5), (30, -1)].into_iter().enumerate()
    {
        names.extend(put(folder.path(), &format!("round {round}"), 30, 20_000));
        std::thread::sleep(Duration::from_millis(600));
        a.turn(hours_a);
        b.turn(hours_b);
        names.extend(put(folder.path(), &format!("after {round}"), 30, 20_000));
        arrived(&sites, &names, 20_000, names.len());
    }
    // What waits does not wait for as long as the clock is set back.
    runtime.block_on(b.daemon.end(Duration::ZERO));
    drop(b);
    a.turn(40);
    names.extend(put(folder.path(), "waiting", 5, 1000));
    // Each by itself, or in the queue for the link, which waits by the same clock.
    let waits = |site: &SiteProcess| {
        let counts = site.reader().counts().ok()?;
        let of = |state| counts.iter().filter(|c| c.state == state).map(|c| c.files).sum::<i64>();
        let waiting = of(State::Waiting);
        (waiting > 0 && waiting + of(State::Queued) == 5).then_some(())
    };
    until("they wait", || waits(&sites.a));
    a.turn(-40);
    let b = start(&sites.b);
    arrived(&sites, &names[..names.len() - 5], 20_000, names.len());
    for site in [a, b] {
        runtime.block_on(site.daemon.end(Duration::ZERO));
    }
}
