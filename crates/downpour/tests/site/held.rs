//! A data rate, held: a producer drops files into the spool at a steady pace, and the site keeps up. Prints how far it was
//! behind and what CPU both daemons took.
//!
//! | variable | what |
//! | --- | --- |
//! | `DOWNPOUR_HELD_S` | for how long (3) |
//! | `DOWNPOUR_HELD_FILES`, `DOWNPOUR_HELD_BYTES` | files a second (50), and bytes of each (30,000) |

use super::harness::{SiteProcess, Two, until};
use downpour_catalog::State;
use std::fs;
use std::time::{Duration, Instant};

/// Files of one look.
const LOOKS_PER_S: u64 = 10;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// CPU that a daemon has taken, user and system, seconds.
fn cpu_s(site: &SiteProcess) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", site.pid())).expect("it runs");
    let after = stat.rsplit(") ").next().expect("a state");
    let ticks = after.split(' ').skip(11).take(2).map(|n| n.parse::<f64>().expect("a number"));
    ticks.sum::<f64>() / 100.0
}

fn received(site: &SiteProcess) -> u64 {
    let counts = site.reader().counts().expect("the database works").into_iter();
    let received = counts.filter(|count| count.state == State::Receipted);
    received.map(|count| count.files as u64).sum()
}

#[test]
fn a_rate_is_held() {
    let (seconds, rate) = (number("DOWNPOUR_HELD_S", 3), number("DOWNPOUR_HELD_FILES", 50));
    let len = number("DOWNPOUR_HELD_BYTES", 30_000) as usize;
    let folder = tempfile::tempdir().expect("a folder");
    let spool = format!(
        "\n[[spool]]\nfolder = {:?}\ncomplete = \"rename\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\nafter = \"delete\"\n\
         [transfer]\nports = \"31700-31799\"",
        folder.path()
    );
    let sites = Two::start([&spool, "[transfer]\nports = \"31800-31899\""]);
    let (begun, before) = (Instant::now(), [cpu_s(&sites.a), cpu_s(&sites.b)]);
    let (mut made, mut behind) = (0, 0);
    let mut content = vec![0; len];
    for look in 0..seconds * LOOKS_PER_S {
        while made < rate * (look + 1) / LOOKS_PER_S {
            blake3::Hasher::new().update(&made.to_le_bytes()).finalize_xof().fill(&mut content);
            let at = folder.path().join(format!("{made}.part"));
            fs::write(&at, &content).expect("room");
            fs::rename(&at, folder.path().join(made.to_string())).expect("room");
            made += 1;
        }
        if look % LOOKS_PER_S == 0 {
            behind = made.saturating_sub(received(&sites.a)).max(behind);
        }
        let next = Duration::from_millis((look + 1) * 1000 / LOOKS_PER_S);
        std::thread::sleep(next.saturating_sub(begun.elapsed()));
    }
    let made_in = begun.elapsed().as_secs_f64();
    until("all are received", || (received(&sites.a) == made).then_some(()));
    let took = begun.elapsed().as_secs_f64();
    let used = [cpu_s(&sites.a) - before[0], cpu_s(&sites.b) - before[1]];
    println!(
        "{made} files of {len} bytes made in {made_in:.1} s ({:.1} Mbit/s), the last received {:.1} s later; \
         at most {behind} files behind; CPU of a core: source {:.1} %, destination {:.1} %",
        (made as usize * len) as f64 * 8e-6 / made_in,
        took - made_in,
        100.0 * used[0] / took,
        100.0 * used[1] / took
    );
    let inbox = sites.b.path("inbox");
    let arrived = fs::read_dir(&inbox).expect("a folder").flatten();
    let arrived = arrived.filter(|entry| entry.file_name() != ".downpour").count();
    assert_eq!(arrived as u64, made);
}
