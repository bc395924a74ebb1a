//! A campaign: files are made while both daemons are killed at random, again and again. The judge stands outside: it knows
//! the digests of what it made, reads the files back, and counts what both catalogs say.
//!
//! `DOWNPOUR_CAMPAIGN=FILES` sets how many (`make test-full`: 20,000), `DOWNPOUR_SEED` what happens; the seed is printed.

use super::harness::{SiteProcess, Two};
use downpour_catalog::{CatalogUrl, Reader, State};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files without being asked for more.
const FILES: usize = 400;
/// Files made between two looks.
const MADE_AT_ONCE: usize = 60;
/// Nothing new arrives for so long: what is missing is lost.
const STILL: Duration = Duration::from_secs(90);

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// 98 of 100 log-uniform from 1 to 64 kB, the others up to 2 MB.
    fn len(&mut self) -> usize {
        if self.below(100) < 98 {
            let power = 10.0 + 6.0 * self.below(1_000_000) as f64 / 1e6;
            return power.exp2() as usize;
        }
        self.below(2_000_000) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Kills one of the two now and then while files are made; what was made.
fn make(
    sites: &mut Two,
    spool: &Path,
    files: usize,
    chance: &mut Chance,
) -> BTreeMap<String, blake3::Hash> {
    let mut made = BTreeMap::new();
    let mut kills = 0;
    while made.len() < files || kills < 6 {
        for _ in 0..MADE_AT_ONCE.min(files - made.len()) {
            let name = format!("{}/file {}", made.len() % 7, made.len());
            let (path, len) = (spool.join(&name), chance.len());
            let content = chance.bytes(len);
            fs::create_dir_all(path.parent().expect("a folder")).expect("room");
            fs::write(&path, &content).expect("room");
            made.insert(name, blake3::hash(&content));
        }
        std::thread::sleep(Duration::from_millis(300 + chance.below(700)));
        if chance.below(3) == 0 {
            let site = if chance.below(2) == 0 { &mut sites.a } else { &mut sites.b };
            site.kill();
            std::thread::sleep(Duration::from_millis(chance.below(1500)));
            site.start();
            kills += 1;
        }
    }
    println!("{} files made, {kills} kills", made.len());
    made
}

/// How many files a site's catalog has in each state.
fn states(site: &SiteProcess) -> BTreeMap<State, i64> {
    let url = CatalogUrl::Sqlite(site.path("state/catalog.db"));
    let mut reader = Reader::open(&url).expect("a catalog");
    let mut states = BTreeMap::new();
    for count in reader.counts().expect("the database works") {
        *states.entry(count.state).or_default() += count.files;
    }
    states.retain(|_, files| *files > 0);
    states
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
            found.push(
                path.strip_prefix(root).expect("below it").to_str().expect("text").to_owned(),
            );
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_twice_whoever_dies_when() {
    let seed = number("DOWNPOUR_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let files = number("DOWNPOUR_CAMPAIGN").map_or(FILES, |files| files as usize);
    println!("DOWNPOUR_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let spool = format!(
        "\n[[spool]]\nfolder = {:?}\ncomplete = \"settle:300ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\n",
        folder.path()
    );
    let mut sites = Two::start([&spool, ""]);
    let made = make(&mut sites, folder.path(), files, &mut Chance(seed));
    let all = BTreeMap::from([(State::Receipted, made.len() as i64)]);
    let mut last = (Instant::now(), states(&sites.a));
    while last.1 != all {
        std::thread::sleep(Duration::from_millis(200));
        let now = states(&sites.a);
        if now != last.1 {
            last = (Instant::now(), now);
        }
        assert!(last.0.elapsed() < STILL, "{:?}\n{}\n{}", last.1, sites.a.log(), sites.b.log());
    }
    assert_eq!(states(&sites.b).values().sum::<i64>(), made.len() as i64);
    let inbox = sites.b.path("inbox");
    let mut arrived = Vec::new();
    below(&inbox, &mut arrived, &inbox);
    arrived.sort_unstable();
    assert_eq!(arrived, made.keys().cloned().collect::<Vec<_>>(), "lost, or stored twice");
    for (name, digest) in &made {
        let content = fs::read(inbox.join(name)).expect("it is there");
        assert_eq!(blake3::hash(&content), *digest, "{name} is corrupt");
    }
}
