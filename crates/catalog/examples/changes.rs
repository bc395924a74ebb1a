//! How many changes a second the catalog makes durable, with searches going on beside.
//!
//!     cargo run --release -p downpour-catalog --example changes -- URL [writers=1] [flight=256] [seconds=10] [fill=0] [filled=fill]
//!
//! Each writer is a daemon of its own (name, connection, event log) that carries files through their whole life, `flight` of
//! them at a time: found, settled, hashed, queued, claimed, sent, verified, receipted, each step asked for when the one before
//! was answered, so: was durable. One thread searches twenty times a second. `fill` files are adopted first, and some that wait or
//! are set apart taken in. With no writers nothing else goes on, and it searches without a pause: 200 times of each kind.

use downpour_catalog::{
    AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Cursor, Digest, ErrorClass, FileId,
    Move, NewFile, Next, OtherContent, Query, Reason, Receipt, Revision, RuleId, Same, SiteId,
    State, Time, Work,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

/// Files adopted in one request, when filling.
const FILL_BATCH: u64 = 20_000;
/// Time between two files that are adopted, so that all of them fill days.
const FILL_US: u64 = 100_000;
/// Files that wait for an error, when filling.
const WAITING: u64 = 10_000;
/// Searches of each kind, when nothing else goes on.
const ROUNDS: u64 = 200;
/// Pause between searches: twenty a second.
const SEARCH_PAUSE: Duration = Duration::from_millis(50);
/// How long a lease lasts.
const LEASE_S: i64 = 600;

fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// Something that looks random and is not.
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn digest(n: u64) -> Digest {
    let mut value = [0; 32];
    for (index, bytes) in value.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&mixed(n + (index as u64) * 7919).to_le_bytes());
    }
    Digest::blake3(value)
}

fn name(n: u64) -> String {
    format!("run{:05}/{:016x}.root", n / 1000, mixed(n))
}

struct Daemon {
    catalog: Catalog,
    site: SiteId,
    rule: RuleId,
    changes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    next: AtomicU64,
    files: Semaphore,
}

impl Daemon {
    async fn step(&self, change: Change) -> (FileId, Revision) {
        let answers = self.catalog.submit(now(), vec![change]).done().await.expect("the database");
        let applied = answers.into_iter().next().expect("one answer").expect("allowed");
        self.changes.fetch_add(1, Ordering::Relaxed);
        (applied.file, applied.revision)
    }

    async fn take_in(self: Arc<Self>) {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let new = NewFile {
            site: self.site,
            name: name(n),
            size: 10_000,
            stamp: n as i64,
            rule: self.rule,
            rank: 0,
            transfer: None,
            other_content: OtherContent::NewVersion,
            same: Same::Any,
        };
        let (file, mut at) = self.step(Change::TakeIn(new)).await;
        let digests = vec![digest(n)];
        for next in [Next::Settled { size: 10_000 }, Next::Hashed(digests), Next::Queued] {
            (_, at) = self.step(Change::Move(Move { file, at, fence: None, next })).await;
        }
    }

    async fn send(self: Arc<Self>, claimed: downpour_catalog::Claimed) {
        let (file, mut at) = (claimed.file, claimed.revision);
        let receipt = Receipt { file, receiver: vec![7; 32], at: now(), signed: vec![9; 160] };
        for next in [
            Next::Sent { bytes: claimed.size },
            Next::Verified(self.site, format!("/data/{file}")),
            Next::Receipted(receipt),
        ] {
            let fence = Some(claimed.fence);
            (_, at) = self.step(Change::Move(Move { file, at, fence, next })).await;
        }
        self.files.add_permits(1);
    }

    /// Takes files in as long as there is room in flight.
    async fn intake(self: Arc<Self>) {
        while !self.stop.load(Ordering::Relaxed) {
            self.files.acquire().await.expect("never closed").forget();
            tokio::task::spawn_local(Arc::clone(&self).take_in());
        }
    }

    /// Sends whatever is queued.
    async fn dispatch(self: Arc<Self>, flight: usize) {
        while !self.stop.load(Ordering::Relaxed) {
            let until = now().plus_s(LEASE_S);
            let claim = self.catalog.claim(now(), Work::QueuedOf(self.rule), flight, until);
            let claimed = claim.done().await.expect("the database");
            self.changes.fetch_add(claimed.len() as u64, Ordering::Relaxed);
            if claimed.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for file in claimed {
                tokio::task::spawn_local(Arc::clone(&self).send(file));
            }
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let usage = "rate URL [writers=1] [flight=256] [seconds=10] [fill=0] [filled=fill]";
    let url: CatalogUrl = args.next().expect(usage).parse().expect(usage);
    let mut number = |default| args.next().map_or(default, |text| text.parse().expect(usage));
    let (writers, flight, seconds, fill) = (number(1), number(256), number(10), number(0));
    // Of how many that an earlier run filled in.
    let searched = number(fill);
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load().trim());
    adopt(&url, fill);
    let (changes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    if writers == 0 {
        return search(&url, searched, &AtomicBool::new(true), Duration::ZERO);
    }
    let first = now().0 as u64;
    // Nobody begins before all have opened the catalog.
    let ready = Arc::new(Barrier::new(writers as usize + 1));
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let (url, changes, stop) = (url.clone(), Arc::clone(&changes), Arc::clone(&stop));
            let ready = Arc::clone(&ready);
            thread::spawn(move || {
                write(&url, writer, flight as usize, first, changes, stop, &ready)
            })
        })
        .collect();
    ready.wait();
    let begun = Instant::now();
    let searcher = {
        let (url, stop) = (url.clone(), Arc::clone(&stop));
        thread::spawn(move || search(&url, searched, &stop, SEARCH_PAUSE))
    };
    thread::sleep(Duration::from_secs(seconds));
    let (done, took) = (changes.load(Ordering::Relaxed), begun.elapsed());
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a writer"));
    println!(
        "{writers} writers, {flight} in flight each: {done} changes in {:.1} s, {:.0} per second",
        took.as_secs_f64(),
        done as f64 / took.as_secs_f64()
    );
    searcher.join().expect("the searcher");
    println!("load after: {}", load().trim());
}

fn adopt(url: &CatalogUrl, fill: u64) {
    if fill == 0 {
        return;
    }
    let begun = Instant::now();
    let catalog = Catalog::open(url, "filler", now(), &BeforeMigration::Refuse).expect("a catalog");
    let (site, rule) =
        (catalog.site("here").expect("a site"), catalog.rule("all").expect("a rule"));
    let adopted = |n: u64| {
        Change::Adopt(AdoptedFile {
            site,
            name: name(n),
            size: 10_000,
            rule,
            digest: digest(n),
            others: Vec::new(),
            replicas: vec![(site, format!("/data/{}", name(n)))],
            other_content: OtherContent::Refuse,
            origin: None,
            receipt: None,
        })
    };
    let end = now();
    // The next batch is made while one is written.
    let mut before: Option<downpour_catalog::Pending<_>> = None;
    for first in (0..fill).step_by(FILL_BATCH as usize) {
        let at = Time(end.0 - ((fill - first) * FILL_US) as i64);
        let slice = (first..(first + FILL_BATCH).min(fill)).map(adopted).collect();
        let next = catalog.submit(at, slice);
        let done = before.replace(next).map(|before| before.wait().expect("the database"));
        assert!(done.into_iter().flatten().all(|answer| answer.is_ok()));
    }
    drop(before.map(|before| before.wait().expect("the database")));
    println!("filled: {fill} files in {:.1} s", begun.elapsed().as_secs_f64());
    let new = |n: u64| NewFile {
        site,
        name: format!("waiting/{n}"),
        size: 10_000,
        stamp: 1,
        rule,
        rank: 0,
        transfer: None,
        other_content: OtherContent::NewVersion,
        same: Same::Any,
    };
    let found = catalog.apply(end, &(0..WAITING).map(new).map(Change::TakeIn).collect::<Vec<_>>());
    let found = found.expect("the database").into_iter().map(|answer| answer.expect("allowed"));
    let classes = [ErrorClass::FileUnreadable, ErrorClass::SourceUnreachable];
    let moves = found.zip(0..).map(|(at, n): (_, usize)| {
        let (reason, error) = (Reason::BackOff, Some(classes[usize::from(n % 100 > 0)]));
        let next = Next::Waiting { reason, error, next_try: end.plus_s(86_400), bytes: 0 };
        Change::Move(Move { file: at.file, at: at.revision, fence: None, next })
    });
    let moved = catalog.apply(end, &moves.collect::<Vec<_>>()).expect("the database");
    assert!(moved.iter().all(Result::is_ok));
}

fn write(
    url: &CatalogUrl,
    writer: u64,
    flight: usize,
    first: u64,
    changes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    ready: &Barrier,
) {
    let name = format!("rate{writer}");
    let catalog = Catalog::open(url, &name, now(), &BeforeMigration::Refuse).expect("a catalog");
    let (site, rule) =
        (catalog.site("here").expect("a site"), catalog.rule("all").expect("a rule"));
    let next = AtomicU64::new(first + writer * 1_000_000_000);
    let files = Semaphore::new(flight);
    let daemon = Arc::new(Daemon { catalog, site, rule, changes, stop, next, files });
    ready.wait();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        tokio::task::spawn_local(Arc::clone(&daemon).intake());
        daemon.dispatch(flight).await;
    });
}

/// What is searched for, one for each number.
type Ask = fn(&Filled, u64) -> (Query, Option<Cursor>);

/// What the searches know of what was filled in.
struct Filled {
    fill: u64,
    end: Time,
    site: SiteId,
}

impl Filled {
    /// When a file was adopted, about.
    fn at(&self, n: u64) -> Time {
        Time(self.end.0 - ((self.fill - n) * FILL_US) as i64)
    }

    fn glob(text: &str) -> Option<downpour_catalog::Glob> {
        Some(text.parse().expect("a pattern"))
    }
}

const KINDS: [(&str, Ask); 13] = [
    ("prefix", |_, n| (Query { prefix: Some(name(n)[..9].to_owned()), ..Query::default() }, None)),
    ("pattern with a beginning", |_, n| {
        let glob = Filled::glob(&format!("run{:05}/*a?.root", n / 1000));
        (Query { glob, ..Query::default() }, None)
    }),
    ("pattern that begins with *, first page", |_, n| {
        let glob = Filled::glob(&format!("*/{:02x}*.root", n % 256));
        (Query { glob, ..Query::default() }, None)
    }),
    ("pattern that finds nothing, page inside", |filled, n| {
        let glob = Filled::glob("*.raw");
        (Query { glob, ..Query::default() }, Some(Cursor::Id(FileId::first_at(filled.at(n)))))
    }),
    ("state: sending", |_, _| (Query { state: Some(State::Sending), ..Query::default() }, None)),
    ("state: adopted", |_, _| (Query { state: Some(State::Adopted), ..Query::default() }, None)),
    ("site", |filled, _| (Query { site: Some(filled.site), ..Query::default() }, None)),
    ("since", |filled, n| (Query { since: Some(filled.at(n)), ..Query::default() }, None)),
    ("site, since, until", |filled, n| {
        let (since, until) = (Some(filled.at(n)), Some(filled.at(n).plus_s(60)));
        (Query { site: Some(filled.site), since, until, ..Query::default() }, None)
    }),
    ("digest", |_, n| (Query { digest: Some(digest(n)), ..Query::default() }, None)),
    ("error class", |_, _| {
        (Query { error: Some(ErrorClass::FileUnreadable), ..Query::default() }, None)
    }),
    ("all, page deep inside", |filled, n| {
        (Query::default(), Some(Cursor::Id(FileId::first_at(filled.at(n)))))
    }),
    ("prefix, page deep inside", |filled, n| {
        let query = Query { prefix: Some("run".to_owned()), ..Query::default() };
        (query, Some(Cursor::Name(name(n), filled.site, 1)))
    }),
];

/// Searches of each kind in turn until the end, then says how long they took.
fn search(url: &CatalogUrl, fill: u64, stop: &AtomicBool, pause: Duration) {
    let mut reader = downpour_catalog::Reader::open(url).expect("a catalog");
    let sites = reader.sites().expect("the database");
    let site = sites.iter().find(|(_, name)| name == "here").expect("it is there").0;
    let filled = Filled { fill: fill.max(1), end: now(), site };
    let mut times = vec![Vec::new(); KINDS.len()];
    let mut found = 0;
    let least = if pause.is_zero() { ROUNDS } else { 2 };
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) && round >= least {
            break;
        }
        for ((_, ask), times) in KINDS.iter().zip(&mut times) {
            let (query, from) = ask(&filled, mixed(round) % filled.fill);
            let begun = Instant::now();
            let page = reader.search(&query, from.as_ref(), 100).expect("the database");
            found += page.files.len();
            times.push(begun.elapsed());
            thread::sleep(pause);
        }
    }
    for ((kind, _), times) in KINDS.iter().zip(&mut times) {
        tell(kind, times);
    }
    let mut all = times.concat();
    tell("all searches", &mut all);
    println!("{found} files found");
}

fn tell(kind: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{kind:<40} {:>5} median {:>7.1} ms, p95 {:>7.1} ms, worst {:>7.1} ms",
        times.len(),
        at(0.5),
        at(0.95),
        at(1.0)
    );
}
