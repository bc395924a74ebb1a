//! Random lives: whatever is done to files, in the end the catalog knows each of them, and what it says is true.

use crate::bench::{Bench, LONG};
use downpour_catalog::State;
use downpour_proto::Rng;
use std::collections::BTreeMap;
use std::fs;

const SEEDS: u64 = 6;
const STEPS: usize = 150;
const NAMES: u64 = 5;

#[test]
fn random_lives_end_accounted_for() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        walk(seed, "rescan = '20s'");
    }
    walk(99, "rescan = '3s'\nnetwork = true");
}

fn walk(seed: u64, lines: &str) {
    let mut bench = Bench::new(lines, "");
    let mut rng = Rng::new(seed);
    let mut roll = |sides: u64| rng.next_u64() % sides;
    for step in 0..STEPS {
        let name = |n: u64| if n.is_multiple_of(2) { format!("f{n}") } else { format!("d/f{n}") };
        let (one, two) = (name(roll(NAMES)), name(roll(NAMES)));
        fs::create_dir_all(bench.path("d")).unwrap();
        match roll(12) {
            0..=2 => bench.write(&one, &format!("{seed} {step}")),
            3 => {
                // Replaced as careful producers do it.
                bench.write(".new", &format!("{seed} {step} new"));
                fs::rename(bench.path(".new"), bench.path(&one)).unwrap();
            }
            4 => drop(fs::remove_file(bench.path(&one))),
            5 => drop(fs::rename(bench.path(&one), bench.path(&two))),
            6 => drop(fs::rename(bench.path("d"), bench.path("moved"))),
            7 => drop(fs::rename(bench.path("moved"), bench.path("d2"))),
            8 => bench.restart(),
            9 => drop(bench.send_all()),
            _ => bench.tick(roll(16) as f64 / 2.0),
        }
    }
    bench.tick(2.0 * LONG);
    bench.send_all();
    bench.tick(2.0 * LONG);
    check(&bench, seed);
}

/// Every file on the disk was received as it is; nothing else is open.
fn check(bench: &Bench, seed: u64) {
    let mut here = BTreeMap::new();
    for folder in ["", "d", "moved", "d2"] {
        for entry in fs::read_dir(bench.path(folder)).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_file() && !name.starts_with('.') {
                let rel = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                here.insert(rel, fs::read(entry.path()).unwrap());
            }
        }
    }
    for (rel, content) in &here {
        let file = bench.newest(rel);
        let digest = file.digest.map(|digest| digest.value().to_vec());
        let said = bench.said();
        assert_eq!(file.state, State::Receipted, "seed {seed} {rel} v{}: {said}", file.version);
        assert_eq!(digest.as_deref(), Some(&blake3::hash(content).as_bytes()[..]), "{seed} {rel}");
    }
    let mut reader = bench.catalog.reader().unwrap();
    for count in reader.counts().unwrap() {
        let ended = count.state.is_end() || count.state == State::Quarantined;
        assert!(ended, "seed {seed}: {count:?}: {}", bench.said());
    }
}
