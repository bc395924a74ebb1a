//! How many changes a second the catalog makes durable, with searches going on beside.
//!
//!     cargo run --release -p downpour-catalog --example rate -- URL [writers=1] [flight=256] [seconds=10] [fill=0]
//!
//! Each writer is a daemon of its own (name, connection, event log) that carries files through their whole life, `flight` of
//! them at a time: found, settled, hashed, queued, claimed, sent, verified, receipted, each step asked for when the one before
//! was answered, so: was durable. One thread searches twenty times a second. `fill` files are adopted first.

use downpour_catalog::{
    AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, FileId, Move, NewFile, Next,
    OtherContent, Query, Receipt, Revision, RuleId, SiteId, State, Time, Work,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

/// Files adopted in one request, when filling.
const FILL_BATCH: u64 = 2000;
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
            let claim = self.catalog.claim(now(), Work::Queued, flight, until);
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
    let usage = "rate URL [writers=1] [flight=256] [seconds=10] [fill=0]";
    let url: CatalogUrl = args.next().expect(usage).parse().expect(usage);
    let mut number = |default| args.next().map_or(default, |text| text.parse().expect(usage));
    let (writers, flight, seconds, fill) = (number(1), number(256), number(10), number(0));
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load().trim());
    adopt(&url, fill);
    let (changes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
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
        thread::spawn(move || search(&url, fill, &stop))
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
    let begun = Instant::now();
    let catalog = Catalog::open(url, "filler", now(), &BeforeMigration::Refuse).expect("a catalog");
    let (site, rule) =
        (catalog.site("here").expect("a site"), catalog.rule("all").expect("a rule"));
    for first in (0..fill).step_by(FILL_BATCH as usize) {
        let adopted = (first..(first + FILL_BATCH).min(fill)).map(|n| {
            Change::Adopt(AdoptedFile {
                site,
                name: name(n),
                size: 10_000,
                rule,
                digest: digest(n),
                replicas: vec![(site, format!("/data/{}", name(n)))],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
            })
        });
        let answers = catalog.submit(now(), adopted.collect()).wait().expect("the database");
        assert!(answers.iter().all(Result::is_ok));
    }
    if fill > 0 {
        println!("filled: {fill} files in {:.1} s", begun.elapsed().as_secs_f64());
    }
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

/// Searches of each kind in turn until the end, then says how long they took.
fn search(url: &CatalogUrl, fill: u64, stop: &AtomicBool) {
    thread::sleep(Duration::from_millis(500));
    let mut reader = downpour_catalog::Reader::open(url).expect("a catalog");
    let mut times = Vec::new();
    let mut found = 0;
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) && round >= 200 {
            break;
        }
        let n = mixed(round) % fill.max(1);
        let query = match round % 5 {
            0 => Query { prefix: Some(name(n)[..9].to_owned()), ..Query::default() },
            1 => Query { digest: Some(digest(n)), ..Query::default() },
            2 => Query { state: Some(State::Sending), ..Query::default() },
            3 => {
                let glob = format!("run{:05}/*a?.root", n / 1000);
                Query { glob: Some(glob.parse().expect("a pattern")), ..Query::default() }
            }
            _ => Query { since: Some(now().plus_s(-1)), ..Query::default() },
        };
        let begun = Instant::now();
        found += reader.search(&query, None, 100).expect("the database").files.len();
        times.push(begun.elapsed());
        thread::sleep(SEARCH_PAUSE);
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{} searches, {found} files found: median {:.1} ms, p95 {:.1} ms, worst {:.1} ms",
        times.len(),
        at(0.5),
        at(0.95),
        at(1.0)
    );
}
