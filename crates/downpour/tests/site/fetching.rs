//! A file that several sites have: from where it comes, when that is left, and what comes of lies.

use crate::harness::{SiteProcess, signal, until};
use crate::links::{ends, seen};
use downpour::dispatch::{FetchReport, Transfers, WhyList};
use downpour_catalog::{
    AdoptedFile, BeforeMigration, Catalog, Change, Decision, Digest, OtherContent, Replica,
    ReplicaState, Time,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A way to a site that is as fast as it is told to be.
struct Way {
    addr: SocketAddr,
    flow: Arc<Flow>,
}

/// What comes one way.
struct Flow {
    /// Bytes a second of each connection.
    rate: AtomicU64,
    /// Bytes that came.
    passed: AtomicU64,
    /// From so many on it is [`SLOW`].
    slow_from: AtomicU64,
}

/// Bytes a second of each connection of a way that has turned slow.
const SLOW: u64 = 4 << 10;

impl Way {
    fn to(site: &SiteProcess) -> Self {
        let target = site.card.address.to_string();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("its address");
        let flow = Arc::new(Flow::free());
        let way = Self { addr, flow: flow.clone() };
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let flow = flow.clone();
                let (up, down) = (near.try_clone(), far.try_clone());
                let (Ok(up), Ok(down)) = (up, down) else { continue };
                std::thread::spawn(move || pass(up, far, &Flow::free()));
                std::thread::spawn(move || pass(down, near, &flow));
            }
        });
        way
    }

    fn set(&self, rate: u64) {
        self.flow.rate.store(rate, Ordering::Relaxed);
    }

    /// However long the test itself has to wait for a processor meanwhile.
    fn slow_from(&self, bytes: u64) {
        self.flow.slow_from.store(bytes, Ordering::Relaxed);
    }

    fn passed(&self) -> u64 {
        self.flow.passed.load(Ordering::Relaxed)
    }
}

impl Flow {
    fn free() -> Self {
        let [rate, slow_from] = [u64::MAX; 2].map(AtomicU64::new);
        Self { rate, passed: AtomicU64::new(0), slow_from }
    }

    /// So many bytes more have passed; how fast more may.
    fn pass(&self, len: usize) -> u64 {
        let passed = self.passed.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
        match passed < self.slow_from.load(Ordering::Relaxed) {
            true => self.rate.load(Ordering::Relaxed),
            false => SLOW,
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, flow: &Flow) {
    let mut some = vec![0; 16 << 10];
    while let Ok(len) = from.read(&mut some) {
        if len == 0 || to.write_all(&some[..len]).is_err() {
            break;
        }
        let rate = flow.pass(len);
        if rate < u64::MAX {
            std::thread::sleep(Duration::from_secs_f64(len as f64 / rate as f64));
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// a, b and c have the files; d knows of them by its copies of a's and c's catalogs.
struct Sites {
    a: SiteProcess,
    b: SiteProcess,
    c: SiteProcess,
    d: SiteProcess,
    ways: [Way; 3],
    _folder: tempfile::TempDir,
}

const LONG: usize = 80 << 20;
const SHORT: usize = 24 << 20;

/// The first bytes of what has no end, made fast also where this program is not optimised.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut content);
    content
}

impl Sites {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("downpour-fetch-").tempdir().expect("room");
        let site = |name: &str| SiteProcess::new(folder.path(), name);
        let (mut a, mut b, mut c, mut d) = (site("a"), site("b"), site("c"), site("d"));
        for (one, other) in [(&a, &b), (&b, &a), (&c, &a), (&c, &b)] {
            one.trust(&other.card);
        }
        for one in [&a, &b, &c] {
            one.configure("[transfer]\nfolders = [\"data\"]\nports = \"31200-31399\"");
        }
        c.configure("[mirror]\nof = [\"a\"]\nevery = \"200ms\"");
        for (one, other) in [(&a, &c), (&b, &c), (&a, &d), (&b, &d), (&c, &d)] {
            one.trust(&other.card);
            one.configure("pull = true");
        }
        let ways = [Way::to(&a), Way::to(&b), Way::to(&c)];
        for (way, one) in ways.iter().zip([&a, &b, &c]) {
            let mut card = one.card.clone();
            card.address = way.addr.to_string().parse().expect("an address");
            d.trust(&card);
        }
        d.configure("[mirror]\nof = [\"a\", \"c\"]\nevery = \"200ms\"");
        fs::create_dir_all(a.path("data")).expect("room");
        for (name, len) in [("long", LONG), ("short", SHORT)] {
            fs::write(a.path("data").join(name), content(len)).expect("room");
        }
        [&mut a, &mut b, &mut c, &mut d].into_iter().for_each(SiteProcess::start);
        let data = a.path("data").to_str().expect("text").to_owned();
        a.done(&["transfer", "submit", &data, "b", "--wait"]);
        for name in ["long", "short"] {
            let fetched =
                until("c knows of it", || fetch(&c, &json!({ "site": "a", "name": name })));
            assert_eq!(ended(&c, fetched).failure, None, "{}", c.log());
        }
        Self { a, b, c, d, ways, _folder: folder }
    }

    /// What d says of a file, once it knows of all that have it.
    fn begin(&self, wish: &Value) -> FetchReport {
        let mut ask = wish.clone();
        ask["ask"] = true.into();
        until("d knows of three", || fetch(&self.d, &ask).filter(|r| r.sources.len() == 3));
        fetch(&self.d, wish).expect("an answer")
    }
}

pub(crate) fn fetch(site: &SiteProcess, wish: &Value) -> Option<FetchReport> {
    site.post("/v1/fetches", wish).ok()
}

pub(crate) fn ended(site: &SiteProcess, report: FetchReport) -> FetchReport {
    if report.done {
        return report;
    }
    until("the fetch ends", || {
        let now: FetchReport = site.get(&format!("/v1/fetches/{}", report.id)).ok()?;
        now.done.then_some(now)
    })
}

fn brought(report: &FetchReport, site: &str) -> u64 {
    report.sources.iter().find(|source| source.site == site).expect("it has it").brought
}

/// One brought all of it and the other nothing. How much of the end came twice is up to the machine: a connection that has to
/// wait for a processor is taken over from.
fn is_from(report: &FetchReport, site: &str, other: &str) -> bool {
    let (size, came) = (report.size, brought(report, site));
    (size..2 * size).contains(&came) && brought(report, other) == 0
}

#[test]
fn a_source_that_turns_slow_is_left_and_a_long_file_comes_from_all() {
    let sites = Sites::start();
    // Of none anything is known: the first by name. Four connections, 4 MB/s together.
    sites.ways.iter().for_each(|way| way.set(1 << 20));
    sites.ways[0].slow_from(12 << 20);
    let begun = sites.begin(&json!({ "site": "a", "name": "short", "one": true }));
    let names: Vec<&str> = begun.sources.iter().map(|source| source.site.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(begun.sources.iter().all(|source| source.takes_s.is_none()), "{begun:?}");
    let report = ended(&sites.d, begun);
    assert_eq!(report.failure, None, "{report:?}");
    assert!(
        report.changes.iter().any(|change| change.contains("now from b: a brings")),
        "{report:?}"
    );
    assert!(brought(&report, "a") > 4 << 20 && brought(&report, "b") > 1 << 20, "{report:?}");
    assert_eq!((brought(&report, "c"), report.at_once), (0, false));
    // What a brought was not brought again, but for what was on its way: four pieces.
    assert!(sites.ways[1].passed() < SHORT as u64, "{report:?}");
    assert_eq!(fs::read(sites.d.path("inbox/short")).expect("it is here"), content(SHORT));
    // Now something is known of a and b, and it tells. It takes long enough for each to bring a part.
    sites.ways[0].slow_from(u64::MAX);
    let report = ended(&sites.d, sites.begin(&json!({ "site": "a", "name": "long" })));
    assert_eq!(report.failure, None, "{report:?}");
    assert_eq!(report.sources[0].site, "b", "{report:?}");
    assert!(report.at_once && report.sources.iter().all(|source| source.brought > 0), "{report:?}");
    assert_eq!(fs::read(sites.d.path("inbox/long")).expect("it is here"), content(LONG));
    let again = fetch(&sites.d, &json!({ "site": "a", "name": "long" })).expect("an answer");
    assert_eq!((again.id, again.done), (0, true), "it is here");
}

#[test]
fn who_lies_or_dies_costs_time_alone() {
    let mut sites = Sites::start();
    sites.begin(&json!({ "site": "a", "name": "long", "ask": true }));
    // b's copy is another now, and c is gone.
    let mut wrong = content(LONG);
    wrong[LONG / 2] ^= 1;
    fs::write(sites.b.path("inbox/long"), &wrong).expect("room");
    fs::write(sites.b.path("inbox/short"), &wrong[LONG - SHORT..]).expect("room");
    sites.c.kill();
    // Who does not answer may be back soon; who lied is not asked again.
    let short = json!({ "site": "a", "name": "short", "from": ["b", "c"] });
    let begun = fetch(&sites.d, &short).expect("an answer");
    let waits = until("c is waited for", || {
        let now: FetchReport = sites.d.get(&format!("/v1/fetches/{}", begun.id)).ok()?;
        now.changes.iter().any(|change| change.starts_with("again in 2 s: c: ")).then_some(now)
    });
    let told = |what: &str| waits.changes.iter().filter(|c| c.as_str() == what).count();
    assert_eq!(told("b does not bring it right"), 1, "{waits:?}");
    assert!(waits.changes.iter().any(|change| change.starts_with("c: ")), "{waits:?}");
    assert!(brought(&waits, "b") < 3 * SHORT as u64, "{waits:?}");
    sites.d.done(&["transfer", "cancel", "--transfer", &begun.id.to_string()]);
    assert_eq!(ended(&sites.d, begun).failure.as_deref(), Some("cancelled"));
    let report = ended(
        &sites.d,
        fetch(&sites.d, &json!({ "site": "a", "name": "long" })).expect("an answer"),
    );
    assert_eq!(report.failure, None, "{report:?}\n{}", sites.d.log());
    assert_eq!(brought(&report, "c"), 0, "{report:?}");
    assert_eq!(fs::read(sites.d.path("inbox/long")).expect("it is here"), content(LONG));
}

/// All machines lose power; the one that fetched is back first.
#[test]
fn a_fetch_outlives_its_daemon() {
    let mut sites = Sites::start();
    // Twenty seconds, in which its service is stopped and started.
    sites.ways.iter().for_each(|way| way.set(1 << 20));
    let begun = sites.begin(&json!({ "site": "a", "name": "long", "one": true }));
    assert!(!begun.done && begun.id > 0, "{begun:?}");
    let parts = sites.d.path("inbox/.downpour/fetch");
    let noted = || -> u64 {
        let files = fs::read_dir(&parts).into_iter().flatten().flatten().map(|entry| entry.path());
        let notes = files.filter(|path| path.extension().is_some_and(|end| end == "done"));
        let lines = |text: String| text.lines().filter(|line| !line.is_empty()).count() as u64;
        notes.filter_map(|path| fs::read_to_string(path).ok()).map(lines).sum()
    };
    until("some pieces are here", || (noted() >= 4).then_some(()));
    stops_and_goes_on(&sites.d, begun.id, &noted);
    for site in [&mut sites.d, &mut sites.a, &mut sites.b, &mut sites.c] {
        site.kill();
    }
    // The last line may have been cut off.
    let kept = (noted() - 1) * (4 << 20);
    sites.ways.iter().for_each(|way| way.set(u64::MAX));
    sites.d.start();
    let ask = |sites: &Sites| -> FetchReport {
        sites.d.get(&format!("/v1/fetches/{}", begun.id)).expect("it is known")
    };
    let waits = until("it goes on, and nobody answers", || {
        let now = ask(&sites);
        now.changes.iter().any(|change| change.contains("again in 1 s: ")).then_some(now)
    });
    assert!(!waits.done && waits.arrived >= kept, "{waits:?}");
    let list: Transfers = sites.d.get("/v1/transfers").expect("a list");
    assert_eq!(list.fetches.len(), 1, "{list:?}");
    assert_eq!((list.fetches[0].id, list.fetches[0].done), (begun.id, false));
    let why: WhyList = sites.d.get("/v1/why?prefix=lon").expect("a list");
    assert_eq!(why.fetches.len(), 1, "{why:?}");
    let why: WhyList = sites.d.get("/v1/why?prefix=x").expect("a list");
    assert!(why.fetches.is_empty(), "{why:?}");
    let line = format!("fetch {} long of a: ", begun.id);
    for verb in ["list", "why"] {
        until("it is shown, and that it waits", || {
            let text = sites.d.done(&["transfer", verb]);
            (text.contains(&line) && text.contains("again in")).then_some(())
        });
    }
    [&mut sites.a, &mut sites.b, &mut sites.c].into_iter().for_each(SiteProcess::start);
    let report = ended(&sites.d, ask(&sites));
    assert_eq!(report.failure, None, "{report:?}\n{}", sites.d.log());
    // What was here is not brought again; some of the end may come twice.
    let came: u64 = report.sources.iter().map(|source| source.brought).sum();
    assert!(came < LONG as u64 - kept / 2 && report.arrived == LONG as u64, "{report:?}");
    assert!(fs::read(report.path.expect("a place")).is_ok_and(|whole| whole == content(LONG)));
    // Nothing is left of it.
    let is_empty = |folder| fs::read_dir(folder).is_ok_and(|mut left| left.next().is_none());
    assert!(is_empty(parts.clone()) && is_empty(sites.d.path("state/fetches")), "{parts:?}");
    let list: Transfers = sites.d.get("/v1/transfers").expect("a list");
    assert!(list.fetches.is_empty(), "{list:?}");
}

/// A fetch brings nothing while the service is stopped, and goes on with it.
fn stops_and_goes_on(d: &SiteProcess, id: i64, noted: &dyn Fn() -> u64) {
    until("it is counted", || {
        d.done(&["service", "status", "dispatch"]).contains(", 1 fetches").then_some(())
    });
    d.done(&["service", "stop", "dispatch"]);
    let before = noted();
    let now = until("it waits for the start", || {
        let now: FetchReport = d.get(&format!("/v1/fetches/{id}")).expect("it is known");
        now.changes.iter().any(|change| change.contains("is started")).then_some(now)
    });
    assert!(!now.done && noted() == before, "{now:?}");
    d.done(&["service", "start", "dispatch"]);
    until("it goes on", || (noted() > before).then_some(()));
    let now: FetchReport = d.get(&format!("/v1/fetches/{id}")).expect("it is known");
    assert!(now.changes.iter().any(|change| change.contains("was started")), "{now:?}");
}

/// Who asks for a file of a's that is here already is told where it is.
fn tells_where(site: &SiteProcess, name: &str, path: &str) {
    for how in ["--wait", "--ask"] {
        let text = site.done(&["transfer", "fetch", "a", name, how]);
        assert!(text.ends_with(&format!("\nhere: {path}\n")), "{text}");
    }
}

/// The catalog of d, which is not running, knows its copy of a file of a's to be damaged.
fn is_damaged(d: &SiteProcess, name: &str) {
    let before = BeforeMigration::Refuse;
    let catalog = Catalog::open(d.catalog(), "test", Time(1), &before).expect("a catalog");
    let [a, own] = ["a", "d"].map(|name| catalog.site(name).expect("a number"));
    let file = d.reader().versions(a, name).expect("rows").pop().expect("it is known");
    let replicas = d.reader().replicas(file.id).expect("rows");
    let replica = replicas.into_iter().find(|replica| replica.site == own).expect("it is here");
    let replica = Replica { state: ReplicaState::Corrupt, ..replica };
    let answers = catalog.apply(Time(1), &[Change::Replica(replica)]).expect("room");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// The catalog of d, which is not running, has a file of a site in a folder of d.
fn is_known(d: &SiteProcess, site: &str, name: &str, content: &[u8], folder: &str) {
    let before = BeforeMigration::Refuse;
    let catalog = Catalog::open(d.catalog(), "test", Time(1), &before).expect("a catalog");
    let path = d.path(folder).join(name).to_str().expect("text").to_owned();
    let adopted = AdoptedFile {
        site: catalog.site(site).expect("a number"),
        name: name.to_owned(),
        size: content.len() as u64,
        rule: catalog.rule("all").expect("a number"),
        digest: Digest::blake3(downpour::object::Digest::of(content).0),
        others: Vec::new(),
        replicas: vec![(catalog.site("d").expect("a number"), path)],
        other_content: OtherContent::Refuse,
        origin: None,
        receipt: None,
    };
    let answers = catalog.apply(Time(1), &[Change::Adopt(adopted)]).expect("room");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// `first`; `fourth` in another folder; `fifth`, which had left before a file of b came to its place.
fn some_are_damaged(d: &SiteProcess) {
    is_damaged(d, "first");
    for (name, place) in [("fourth", "elsewhere"), ("fifth", "inbox")] {
        is_known(d, "a", name, &content(SHORT / 4), place);
        is_damaged(d, name);
    }
    is_known(d, "b", "fifth", b"mine", "inbox");
}

/// a has a file first, b a replica of it; d fetches it.
#[test]
fn a_replica_is_a_source_beside_the_origin() {
    let folder = crate::harness::folder();
    let site = |name: &str| SiteProcess::new(folder.path(), name);
    let (mut a, mut b, mut d) = (site("a"), site("b"), site("d"));
    for (one, other) in [(&a, &b), (&b, &a), (&a, &d), (&b, &d), (&d, &a), (&d, &b)] {
        one.trust(&other.card);
        if other.card.name == "d" {
            one.configure("pull = true");
        }
    }
    for one in [&a, &b] {
        one.configure("[transfer]\nfolders = [\"data\"]\nports = \"31200-31399\"");
    }
    fs::create_dir_all(a.path("data")).expect("room");
    for name in ["first", "second", "third", "fourth", "fifth"] {
        fs::write(a.path("data").join(name), content(SHORT / 4)).expect("room");
    }
    a.start();
    b.start();
    let data = a.path("data").to_str().expect("text").to_owned();
    a.done(&["transfer", "submit", &data, "b", "--wait"]);
    // The origin is away, and d never knew its catalog: the replica is known by that of its holder.
    a.kill();
    d.configure("[mirror]\nof = [\"b\"]\nevery = \"200ms\"");
    d.start();
    let begun = until("d knows of it", || fetch(&d, &json!({ "site": "a", "name": "first" })));
    let report = ended(&d, begun);
    let holders = |report: &FetchReport| -> Vec<String> {
        report.sources.iter().map(|source| source.site.clone()).collect()
    };
    assert_eq!((holders(&report), report.failure.as_ref()), (vec!["b".to_owned()], None));
    assert_eq!(fs::read(d.path("inbox/first")).expect("it is here"), content(SHORT / 4));
    let first = report.path.expect("a place");
    tells_where(&d, "first", &first);
    // Both are there, and the replica is predicted to be faster.
    a.start();
    d.kill();
    some_are_damaged(&d);
    let text = fs::read_to_string(d.config()).expect("a configuration");
    let both = text.replace("of = [\"b\"]", "of = [\"a\", \"b\"]");
    fs::write(d.config(), both).expect("room");
    d.configure("[tuner]\nevery = \"200ms\"");
    for (from, rate) in [("a", "8mbit"), ("b", "800mbit")] {
        d.configure(&format!(
            "[[tuner_source]]\nname = \"of {from}\"\nkind = \"static\"\nfrom = \"{from}\"\n\
             to = \"d\"\nthroughput = \"{rate}\"\nrtt = \"2ms\""
        ));
    }
    d.start();
    let ask = json!({ "site": "a", "name": "second", "ask": true });
    let ranked = until("both are known", || {
        let report = fetch(&d, &ask)?;
        let known = report.sources.iter().filter(|source| source.takes_s.is_some()).count();
        (known == 2).then_some(report)
    });
    assert_eq!(holders(&ranked), ["b", "a"], "{ranked:?}");
    assert!(ranked.sources[1].why.starts_with("8.0 Mbit/s"), "{ranked:?}");
    let report = fetched(&d, "second");
    assert_eq!((report.failure.as_ref(), holders(&report)[0].as_str()), (None, "b"), "{report:?}");
    assert!(is_from(&report, "b", "a"), "{report:?}");
    assert_eq!(fs::read(d.path("inbox/second")).expect("it is here"), content(SHORT / 4));
    nothing_is_brought_in_vain(&d, &first);
    is_told_by_the_next_daemon(&mut d, "fourth");
    // The better one is away: the other one brings it.
    b.kill();
    let report = fetched(&d, "third");
    assert_eq!(report.failure, None, "{report:?}\n{}", d.log());
    assert!(is_from(&report, "a", "b"), "{report:?}");
    assert_eq!(fs::read(d.path("inbox/third")).expect("it is here"), content(SHORT / 4));
}

fn fetched(d: &SiteProcess, name: &str) -> FetchReport {
    let begun = fetch(d, &json!({ "site": "a", "name": name })).expect("an answer");
    ended(d, begun)
}

/// `first` is known to be damaged, and is whole; so is `fourth`, in another folder, and `fifth`, whose place another file got.
fn nothing_is_brought_in_vain(d: &SiteProcess, first: &str) {
    let came = |report: &FetchReport| brought(report, "a") + brought(report, "b");
    // It came right, as when a daemon ended before it could record it.
    let report = fetched(d, "first");
    assert_eq!((report.failure.as_ref(), came(&report)), (None, 0), "{report:?}");
    tells_where(d, "first", first);
    // Something else is in their places.
    for name in ["third", "fourth", "fifth"] {
        let place = d.path("inbox").join(name);
        fs::write(&place, "mine").expect("room");
        let report = fetched(d, name);
        let failure = report.failure.clone().unwrap_or_default();
        let what = format!("inbox/{name} is something else: move it away");
        assert!(failure.contains(&what), "{report:?}");
        assert_eq!(came(&report), 0, "{report:?}");
        assert_eq!(fs::read(&place).expect("it stays"), b"mine");
        fs::remove_file(&place).expect("room");
    }
    assert!(!d.path("inbox/.downpour/corrupt").exists());
}

/// Who waits for a fetch learns that the file is here also where it came before the daemon was started again.
fn is_told_by_the_next_daemon(d: &mut SiteProcess, name: &str) {
    let mut fetch = d.command(&["transfer", "fetch", "a", name, "--wait"]);
    let mut waits = Ends(fetch.stdout(Stdio::piped()).spawn().expect("the program runs"));
    let mut said = BufReader::new(waits.0.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    signal(waits.0.id(), "STOP");
    let id = line.split_whitespace().nth(1).expect("a number");
    until("it is here", || {
        d.get(&format!("/v1/fetches/{id}")).ok().filter(|now: &FetchReport| now.done)
    });
    d.kill();
    d.start();
    signal(waits.0.id(), "CONT");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert!(waits.0.wait().expect("our child").success(), "{rest}\n{}", d.log());
    let here = format!("here: {}\n", d.path("inbox").join(name).display());
    assert!(rest.ends_with(&here), "{rest}");
}

/// A command that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that a has, of which b knows. At a's rate it takes 16 s: what is to be decided is decided by then.
const PACED: usize = 16 << 20;

/// What b's fetch of it came to, and which decisions b's catalog has of the link by then, the newest first.
fn paced(a: &SiteProcess, b: &SiteProcess, name: &str) -> (FetchReport, Vec<Decision>) {
    fs::create_dir_all(a.path("data")).expect("room");
    let path = a.path("data").join(name);
    fs::write(&path, content(PACED)).expect("room");
    a.done(&["transfer", "submit", path.to_str().expect("text"), "c"]);
    let ask = json!({ "site": "a", "name": name, "ask": true });
    until("b knows of it, and of the path", || {
        fetch(b, &ask).filter(|report| report.sources[0].takes_s.is_some())
    });
    let begun = fetch(b, &json!({ "site": "a", "name": name })).expect("an answer");
    let report = ended(b, begun);
    assert_eq!(report.failure, None, "{report:?}\n{}", b.log());
    assert_eq!(fs::read(b.path("inbox").join(name)).expect("it is here"), content(PACED));
    let decided = until("a decision is in the catalog", || {
        let found = b.reader().decisions(Some(ends(b, "a", "b")?), 100).expect("rows");
        (!found.is_empty()).then_some(found)
    });
    (report, decided)
}

#[test]
fn a_fetch_is_planned_steered_and_held_to_the_ceiling() {
    let folder = crate::harness::folder();
    let site = |name: &str| SiteProcess::new(folder.path(), name);
    let (mut a, mut b, c) = (site("a"), site("b"), site("c"));
    a.configure("[transfer]\nfolders = [\"data\"]\nports = \"31200-31399\"");
    // Files become known at a, and c, to which they are to go, is away.
    a.trust(&c.card);
    a.trust(&b.card);
    a.configure("pull = true\nrate = \"8mbit\"");
    b.trust(&a.card);
    b.configure("[mirror]\nof = [\"a\"]\nevery = \"200ms\"\n[tuner]\nevery = \"200ms\"");
    b.configure(
        "[[tuner_source]]\nname = \"said\"\nkind = \"static\"\nfrom = \"a\"\nto = \"b\"\n\
         throughput = \"1gbit\"\nrtt = \"2ms\"",
    );
    // A link that was full has a verdict as soon as it is measured: full still, or held by a host.
    fs::create_dir_all(b.path("state/links")).expect("room");
    let memory = "connections=5 rate=8000000 rtt_us=100 binding=saturation ended=1\n";
    fs::write(b.path("state/links/a.link"), memory).expect("room");
    a.start();
    b.start();
    let (report, decided) = paced(&a, &b, "first");
    let [source] = &report.sources[..] else { panic!("{report:?}") };
    let line = |name: &str| {
        let line = source.plan.iter().find(|line| line.name == name).expect("a line");
        format!("{} {}", line.value, line.why)
    };
    // a said what its kernel allows.
    assert!(line("send_buffer").contains("and the sender's autotuning goes to"), "{report:?}");
    assert!(source.receive_buffer_bytes > 0, "{report:?}");
    // It began where the link's memory had ended, and what was decided is kept, told and remembered.
    let first = &decided[decided.len() - 1];
    assert!(first.binding != "opening" && first.why.contains("5 connections"), "{first:?}");
    assert!(report.changes.contains(&format!("a: {}", first.why)), "{report:?}");
    let text = b.done(&["tune", "history", "a"]);
    assert!(text.contains(&format!("{}: {}", first.binding, first.why)), "{first:?}: {text}");
    let remembered = fs::read_to_string(b.path("state/links/a.link")).expect("a memory");
    assert_ne!(remembered, memory);
    // What was seen of the path is for the next transfer; it is not faster than a's `rate` for b.
    let seen = &seen(&b, "a", "b")[0];
    assert!((PACED as u64..2 * PACED as u64).contains(&seen.bytes), "{seen:?}");
    assert!(seen.bytes as f64 * 8e6 / (seen.took_us as f64) < 9e6, "{seen:?}");
    assert!(seen.rtt_us > 0 && seen.sent > 0 && seen.ip == 4, "as a's kernel told: {seen:?}");
    // Where the number of connections is said, nothing is changed, and what binds is told.
    b.kill();
    let text = fs::read_to_string(b.config()).expect("a configuration");
    let text = text.replace("name = \"a\"", "name = \"a\"\nconnections = 3");
    fs::write(b.config(), text).expect("room");
    let decisions = |b: &SiteProcess| b.reader().decisions(ends(b, "a", "b"), 100).expect("rows");
    let before = decisions(&b).len();
    b.start();
    paced(&a, &b, "second");
    let decided = until("a decision of three connections", || {
        let mut found = decisions(&b);
        found.truncate(found.len() - before);
        found.iter().any(|decision| decision.connections == 3).then_some(found)
    });
    let is_told = |decision: &Decision| decision.why.ends_with("left as it is");
    assert!(decided.iter().all(is_told), "{decided:?}");
}

/// What there is in a folder that may not be there.
fn files_in(folder: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn a_fetch_is_given_up_for_good() {
    let mut sites = Sites::start();
    let wish = json!({ "site": "a", "name": "long", "one": true });
    let left = |d: &SiteProcess| {
        let parts = files_in(d.path("inbox/.downpour/fetch"));
        (parts.len(), files_in(d.path("state/fetches")).len())
    };
    let cancel = |d: &SiteProcess, id: i64| {
        let output = d.run(&["transfer", "cancel", "--transfer", &id.to_string()]);
        (output.status.success(), String::from_utf8(output.stdout).expect("text"))
    };
    let given_up = |d: &SiteProcess, begun: FetchReport| {
        assert!(cancel(d, begun.id).1.starts_with("cancel: 1 files"), "{}", d.log());
        let report = ended(d, begun);
        assert_eq!(report.failure.as_deref(), Some("cancelled"), "{report:?}");
        assert_eq!((report.path.as_ref(), left(d)), (None, (0, 0)), "{report:?}");
        assert!(!cancel(d, report.id).0, "it has ended");
    };
    // While it comes.
    sites.ways.iter().for_each(|way| way.set(1 << 20));
    let begun = sites.begin(&wish);
    until("some of it is here", || (left(&sites.d) == (3, 1)).then_some(()));
    given_up(&sites.d, begun);
    sites.d.kill();
    sites.d.start();
    let known: Vec<FetchReport> = sites.d.get("/v1/fetches").expect("a list");
    assert!(known.is_empty() && left(&sites.d) == (0, 0), "{known:?}");
    // While it waits for its sources.
    let begun = sites.begin(&wish);
    until("some of it is here", || (left(&sites.d) == (3, 1)).then_some(()));
    for site in [&mut sites.d, &mut sites.a, &mut sites.b, &mut sites.c] {
        site.kill();
    }
    sites.d.start();
    let path = format!("/v1/fetches/{}", begun.id);
    let waits = until("nobody answers", || {
        let now: FetchReport = sites.d.get(&path).ok()?;
        now.changes.iter().any(|change| change.contains("again in 4 s: ")).then_some(now)
    });
    given_up(&sites.d, waits);
    // It may be asked for anew; meanwhile the file comes to its place by another way, as in a batch.
    [&mut sites.a, &mut sites.b, &mut sites.c].into_iter().for_each(SiteProcess::start);
    let begun = sites.begin(&wish);
    until("some of it is here", || (left(&sites.d) == (3, 1)).then_some(()));
    let beside = sites.d.path("inbox/.long");
    fs::write(&beside, content(LONG)).expect("room");
    fs::rename(&beside, sites.d.path("inbox/long")).expect("the same folder");
    sites.ways.iter().for_each(|way| way.set(u64::MAX));
    let report = ended(&sites.d, begun);
    assert_eq!(
        (report.failure.as_ref(), left(&sites.d)),
        (None, (0, 0)),
        "{report:?}\n{}",
        sites.d.log()
    );
    assert!(fs::read(report.path.expect("a place")).is_ok_and(|whole| whole == content(LONG)));
}

/// The disk lost what was asked for.
#[test]
fn a_fetch_that_is_lost_is_told() {
    let folder = crate::harness::folder();
    let mut site = SiteProcess::new(folder.path(), "a");
    fs::create_dir_all(site.path("state/fetches")).expect("room");
    fs::write(site.path("state/fetches/77.json"), "").expect("room");
    let parts = site.path("inbox/.downpour/fetch");
    fs::create_dir_all(&parts).expect("room");
    let part = format!("{}.part", "0a".repeat(32));
    for name in [&part, "notes"] {
        fs::write(parts.join(name), "x").expect("room");
    }
    site.start();
    let lost = "fetches/77.json cannot be read: ";
    let text = until("it is shown", || {
        let text = site.done(&["transfer", "list"]);
        text.contains("fetch 77: ").then_some(text)
    });
    assert!(text.contains(lost) && site.log().contains(lost), "{text}\n{}", site.log());
    // It may be the one that the part is of.
    assert_eq!(files_in(parts.clone()), [part.as_str(), "notes"]);
    site.done(&["transfer", "cancel", "--transfer", "77"]);
    assert!(files_in(site.path("state/fetches")).is_empty());
    assert!(!site.done(&["transfer", "list"]).contains("fetch 77"));
    site.kill();
    site.start();
    assert_eq!(files_in(parts), ["notes"]);
}
