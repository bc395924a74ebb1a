//! A campaign: files are made while both daemons, both databases and the network are killed and restored at random, and the
//! mover says now and then that a file is there when it is not. The judge stands outside: it lists the digests of what it
//! made, reads the files back from the other site's disk, and counts rows by the databases' own programs.
//!
//! | variable | what |
//! | --- | --- |
//! | `DOWNPOUR_CAMPAIGN=FILES` | how many (`make test-full`: 20,000) |
//! | `DOWNPOUR_CAMPAIGN_S=SECONDS` | no more are made after that |
//! | `DOWNPOUR_SEED=N` | what happens; printed |
//! | `DOWNPOUR_TEST_FOLDER`, `TMPDIR` | where sites, and spool and databases, have room: 30 kB a file; all may write there |
//! | `DOWNPOUR_TEST_PROGRAM` | another build of the program |

use super::alone::{COUNTED_PORTS, Place, alone};
use super::database::{Database, Engine, numbers};
use super::faults::{Chance, Faults};
use super::harness::{SiteProcess, Two, drop_file, until};
use downpour_proto::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files without being asked for more.
const FILES: usize = 400;
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Files that may be under way before the producer waits.
const UNDER_WAY_MAX: usize = 12_000;
/// One in so many, but no more than that, is made before anything fails, to see what a file costs on the network.
const CLEAN: usize = 10;
const CLEAN_MAX: usize = 2000;
/// Of these one in so many, but no more than that, goes alone.
const ALONE_PART: usize = 20;
const ALONE_MAX: usize = 20;
/// A long campaign says now and then how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Nothing new arrives for so long: what is missing is lost.
const STILL: Duration = Duration::from_secs(300);
/// From so many files on the bytes that were sent again are judged, too: below, one session is a large share.
const BYTES_JUDGED_FROM: usize = 20_000;

/// What was made, by name.
#[derive(Default)]
struct Made {
    files: BTreeMap<String, blake3::Hash>,
    bytes: u64,
}

impl Made {
    /// One more file: 98 of 100 log-uniform from 1 to 64 kB, the others up to 2 MB. Its digest is listed before the
    /// site can see it.
    fn one(&mut self, spool: &Path, chance: &mut Chance) {
        let number = self.files.len();
        let name = format!("{:02}/{:03}/file {number}", number % 7, number / 1000);
        let len = match chance.below(100) {
            0..98 => (10.0 + 6.0 * chance.below(1_000_000) as f64 / 1e6).exp2() as usize,
            _ => chance.below(2_000_000) as usize,
        };
        let mut content = vec![0; len];
        blake3::Hasher::new()
            .update(&chance.0.next_u64().to_le_bytes())
            .finalize_xof()
            .fill(&mut content);
        let path = spool.join(&name);
        self.files.insert(name, blake3::hash(&content));
        self.bytes += len as u64;
        fs::create_dir_all(path.parent().expect("a folder")).expect("room");
        drop_file(&path, &content);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// How many files the source's catalog says are received; `None` while it cannot say.
fn received(site: &SiteProcess) -> Option<usize> {
    let mut reader = downpour_catalog::Reader::open(site.catalog()).ok()?;
    let counts = reader.counts().ok()?.into_iter();
    let received = counts.filter(|count| count.state == downpour_catalog::State::Receipted);
    usize::try_from(received.map(|count| count.files).sum::<i64>()).ok()
}

/// Every file below a folder, but for the daemon's own.
fn below(folder: &Path, found: &mut Vec<String>, root: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path != root.join(".downpour") {
                below(&path, found, root);
            }
        } else {
            let name = path.strip_prefix(root).expect("below it");
            found.push(name.to_str().expect("text").to_owned());
        }
    }
}

/// Makes files, lets things fail until most have arrived, and waits for the others.
fn play(
    sites: &mut Two,
    databases: &mut [Database; 2],
    spool: &Path,
    mut files: usize,
    seed: u64,
) -> (Made, Option<f64>) {
    let (mut chance, mut made) = (Chance(Rng::new(seed)), Made::default());
    let every = Duration::from_secs_f64((files as f64 / 400.0).clamp(2.5, 120.0));
    // Making them takes long enough for everything to fail several times, however long a look takes here.
    let a_second = files as f64 / (6.0 * every.as_secs_f64());
    let (mut faults, begun) = (Faults::new(seed ^ 1, every, databases), Instant::now());
    // They have not been started yet.
    faults.look_after(sites);
    let clean = (files / CLEAN).min(CLEAN_MAX);
    let cost = Cost::seen(sites, &faults, clean, |files| {
        (0..files).for_each(|_| made.one(spool, &mut chance));
        (made.files.len(), made.bytes)
    });
    let (clean, paced) = (made.files.len(), Instant::now());
    let mut last = (Instant::now(), clean);
    let (mut failing, mut told) = (true, Instant::now());
    let end = number("DOWNPOUR_CAMPAIGN_S").map_or(Duration::MAX, Duration::from_secs);
    while last.1 < files {
        let due = clean + (a_second * paced.elapsed().as_secs_f64()).ceil() as usize;
        while made.files.len() < due.min(files).min(last.1 + UNDER_WAY_MAX) {
            made.one(spool, &mut chance);
        }
        if begun.elapsed() > end {
            files = made.files.len();
        }
        // A short campaign has to wait until all have failed, a long one goes on to its end.
        let near_end = files < BYTES_JUDGED_FROM || last.1 * 10 >= files * 9;
        if failing && near_end && made.files.len() == files && faults.all_failed() {
            faults.end(sites, databases);
            failing = false;
        }
        match failing {
            true => faults.tick(sites, databases),
            false => faults.look_after(sites),
        }
        std::thread::sleep(LOOK_EVERY);
        if told.elapsed() > TOLD_EVERY {
            told = Instant::now();
            eprintln!("{:.0} s: {} received", begun.elapsed().as_secs_f64(), last.1);
        }
        match received(&sites.a) {
            Some(now) if now > last.1 => last = (Instant::now(), now),
            // With few files all may be there before all has failed.
            _ => {
                let silent = last.0.elapsed() > STILL;
                assert!(!silent, "{}\n{}\n{}", last.1, sites.a.log(), sites.b.log());
            }
        }
    }
    if failing {
        faults.end(sites, databases);
        faults.look_after(sites);
    }
    println!("{:.0} s; {}", begun.elapsed().as_secs_f64(), faults.summary());
    let again = bytes_again(&made, &faults, cost);
    (made, again)
}

/// What sending costs beside the bytes of files: handshakes and greetings of each connection; names, digests and headers
/// of each file.
struct Cost {
    connection: f64,
    file: f64,
}

impl Cost {
    /// Seen before anything fails: some files alone, each in a session of its own, then the others at once. `make` makes
    /// files; how many there are now, and their bytes.
    fn seen(
        sites: &Two,
        faults: &Faults,
        files: usize,
        mut make: impl FnMut(usize) -> (usize, u64),
    ) -> Option<Self> {
        let mut last = (faults.sent(), 0, 0);
        let mut step = |more: usize| {
            let (made, bytes) = make(more);
            until("the first files are received", || {
                (received(&sites.a) == Some(made)).then_some(())
            });
            let before = std::mem::replace(&mut last, (faults.sent(), made, bytes));
            let sent = last.0? - before.0?;
            let beside = sent.bytes as f64 - (bytes - before.2) as f64;
            Some([sent.connections as f64, (made - before.1) as f64, beside])
        };
        let one_by_one = (files / ALONE_PART).clamp(2, ALONE_MAX);
        let alone: Vec<_> = (0..one_by_one).map(|_| step(1)).collect();
        let many = step(files - one_by_one)?;
        let sum = |all: [f64; 3], one: Option<[f64; 3]>| {
            one.map(|one| [all[0] + one[0], all[1] + one[1], all[2] + one[2]])
        };
        let alone = alone.into_iter().try_fold([0.0; 3], sum)?;
        let det = alone[0] * many[1] - many[0] * alone[1];
        Some(Self {
            connection: (alone[2] * many[1] - many[2] * alone[1]) / det,
            file: (alone[0] * many[2] - many[0] * alone[2]) / det,
        })
    }
}

/// How much was sent that had been sent before, as a part of all. A connection that was cut counts as one, what it carried
/// does not.
fn bytes_again(made: &Made, faults: &Faults, cost: Option<Cost>) -> Option<f64> {
    let (sent, Cost { connection, file }) = (faults.sent()?, cost?);
    let (files, bytes) = (made.files.len(), made.bytes as f64);
    let beside = connection * sent.connections as f64 + file * files as f64;
    let again = (sent.bytes as f64 - beside) / bytes - 1.0;
    println!(
        "{files} files of {bytes} bytes; {} sent by {} connections; a connection alone costs \
         {connection:.0}, a file {file:.0} more than its bytes; again: {:.2} %",
        sent.bytes,
        sent.connections,
        again * 100.0
    );
    Some(again)
}

/// What lies at the other site, and what stands in both databases.
fn judge(sites: &Two, made: &Made) {
    let inbox = sites.b.path("inbox");
    let mut arrived = Vec::new();
    below(&inbox, &mut arrived, &inbox);
    arrived.sort_unstable();
    assert!(arrived.iter().eq(made.files.keys()), "lost, or stored twice: {} files", arrived.len());
    for (name, digest) in &made.files {
        let content = fs::read(inbox.join(name)).expect("it is there");
        assert_eq!(blake3::hash(&content), *digest, "{name} is corrupt");
    }
    let files = made.files.len() as u64;
    let count = |site: &SiteProcess, what: &str| {
        numbers(site.catalog(), &format!("SELECT count(*) FROM {what}")).map(|found| found[0])
    };
    for (site, state) in [(&sites.a, 8), (&sites.b, 12)] {
        for (what, wanted) in [
            ("file".to_owned(), files),
            (format!("file WHERE state = {state}"), files),
            ("(SELECT DISTINCT name FROM file) AS names".to_owned(), files),
            ("receipt".to_owned(), files),
            ("live".to_owned(), 0),
        ] {
            let Some(found) = count(site, &what) else { continue };
            assert_eq!(found, wanted, "{}: {what}", site.card.name);
        }
    }
    let lies = count(&sites.a, "attempt WHERE error = 502");
    let attempts = count(&sites.a, "attempt");
    println!(
        "{files} files there, whole and once; attempts {attempts:?}, false successes found {lies:?}"
    );
}

fn campaign(test: &str, engines: [Engine; 2]) {
    if matches!(alone(test), Place::Done) {
        return;
    }
    let asked = number("DOWNPOUR_CAMPAIGN");
    let [Some(at_a), Some(at_b)] = engines.map(Database::new) else { return };
    let seed = number("DOWNPOUR_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let files = asked.map_or(FILES, |files| files as usize);
    println!("{test}: DOWNPOUR_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let transfer = |ports: &str| format!("[transfer]\nports = \"{ports}\"");
    let spool = format!(
        "\n[[spool]]\nfolder = {:?}\ncomplete = \"settle:300ms\"\nrescan = \"2s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\nafter = \"delete\"\n{}",
        folder.path(),
        transfer(COUNTED_PORTS)
    );
    let mut sites = Two::set_up([&spool, &transfer("31600-31699")]);
    let mut databases = [at_a, at_b];
    for (site, database) in [&mut sites.a, &mut sites.b].into_iter().zip(&databases) {
        if let Some(url) = database.url() {
            site.keep_book_in(&url);
        }
    }
    let (made, again) = play(&mut sites, &mut databases, folder.path(), files, seed);
    judge(&sites, &made);
    let few = made.files.len() < BYTES_JUDGED_FROM || again.is_none_or(|again| again < 0.01);
    assert!(few, "{again:?} of the bytes were sent again");
}

#[test]
fn nothing_is_lost_and_nothing_twice_with_sqlite() {
    let test = "campaign::nothing_is_lost_and_nothing_twice_with_sqlite";
    campaign(test, [Engine::Sqlite; 2]);
}

#[test]
fn nothing_is_lost_and_nothing_twice_with_postgresql_and_mariadb() {
    let test = "campaign::nothing_is_lost_and_nothing_twice_with_postgresql_and_mariadb";
    campaign(test, [Engine::Postgres, Engine::Mariadb]);
}
