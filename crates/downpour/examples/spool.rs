//! What a spool costs: many files at once, from the folder to the queue, and a look at all of them afterwards.
//!
//! `cargo run --release -p downpour --example spool -- FOLDER FILES BYTES` makes that many files in FOLDER, which must not exist, and a
//! catalog beside them, and prints times and CPU seconds.

use downpour::spool::{Now, RuleSection, Rules, Spool, SpoolSection};
use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, State, Time};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, files, bytes] = &words[..] else {
        return Err("usage: spool FOLDER FILES BYTES".into());
    };
    let (files, bytes): (usize, usize) = (files.parse()?, bytes.parse()?);
    let spool_folder = std::path::absolute(folder)?.join("spool");
    make(&spool_folder, files, bytes)?;
    let catalog = Path::new(folder).join("catalog.db");
    let wall = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    };
    let url = CatalogUrl::Sqlite(catalog);
    let catalog = Arc::new(Catalog::open(&url, "measure", wall(), &BeforeMigration::Refuse)?);
    let section = format!("folder = {spool_folder:?}\ncomplete = 'settle:1s'\nrescan = '1h'");
    let section: SpoolSection = toml::from_str(&section)?;
    let rule: RuleSection = toml::from_str("name = 'all'\nmatch = '*'\nto = 'there'")?;
    let rules = Arc::new(Rules::new("here", &[rule]));
    // Nobody says here why a file was set apart.
    let said = Box::new(|_, _| None);
    let mut spool = Spool::open(section, rules.clone(), catalog.clone(), Arc::default(), said)?;
    let began = Instant::now();
    let now = || Now { steady: began.elapsed(), wall: wall() };
    let (cpu, at) = (cpu_seconds()?, Instant::now());
    spool.tick(now())?;
    println!("found and taken in: {:.2} s", at.elapsed().as_secs_f64());
    let mut reader = catalog.reader()?;
    let mut queued = 0;
    while queued < files {
        spool.tick(now())?;
        std::thread::sleep(Duration::from_millis(20));
        let counts = reader.counts()?;
        let of = counts.iter().filter(|count| count.state == State::Queued);
        queued = of.map(|count| usize::try_from(count.files).unwrap_or(0)).sum();
    }
    let took = at.elapsed().as_secs_f64() - 1.0;
    let used = cpu_seconds()? - cpu;
    let rate = files as f64 / took;
    println!("queued, without the settle time: {took:.2} s, {rate:.0} files/s, CPU {used:.2} s");
    // Nothing changes any more: what a look at everything costs, and a tick without one.
    let cpu = cpu_seconds()?;
    spool.tick(Now { steady: began.elapsed() + Duration::from_secs(7200), wall: wall() })?;
    let used = cpu_seconds()? - cpu;
    println!("looked at all again: {} ms, CPU {used:.2} s", spool.status().scan_ms);
    let (cpu, at) = (cpu_seconds()?, Instant::now());
    for _ in 0..1000 {
        spool.tick(Now { steady: began.elapsed() + Duration::from_secs(7200), wall: wall() })?;
        drop(spool.status());
    }
    let each = at.elapsed().as_secs_f64();
    let used = cpu_seconds()? - cpu;
    println!("a tick with nothing to do, and its status: {each:.3} ms, CPU {used:.3} ms");
    Ok(())
}

fn make(folder: &Path, files: usize, bytes: usize) -> Result<(), Box<dyn Error>> {
    let mut content = vec![7; bytes];
    fs::create_dir_all(folder.parent().unwrap_or(folder))?;
    fs::create_dir(folder)?;
    for number in 0..files {
        let head = number.to_le_bytes();
        let len = head.len().min(bytes);
        content[..len].copy_from_slice(&head[..len]);
        fs::write(folder.join(format!("file-{number:06}.dat")), &content)?;
    }
    Ok(())
}

/// User and system time of this process.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let after = text.rsplit(") ").next().unwrap_or_default();
    let fields: Vec<&str> = after.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / 100.0)
}
