//! All cells of the rate matrix. Prints the cells that miss something and a summary.
//!
//! `rate_matrix [all] [stranger | rich] [random COUNT [FIRST]] [seeds COUNT]`:
//!
//! - `all` prints every cell; `random` takes cells off the grid;
//! - `seeds` runs each cell so many times and takes medians;
//! - with `stranger` all hear a small session behind some other link (`Cell::STRANGER`), with `rich` a large one.

use downpour_sim::stream::{Cell, Verdict};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Between the seeds of a cell's runs: more than there are cells.
const SEED_STEP: u64 = 10_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let all = args.iter().any(|a| a == "all");
    let number = |word: &str, i: usize| {
        let at = args.iter().position(|a| a == word)?;
        args.get(at + i)?.parse::<u64>().ok()
    };
    let mut cells = if args.iter().any(|a| a == "random") {
        let first = number("random", 2).unwrap_or(1);
        (first..first + number("random", 1).unwrap_or(500)).map(Cell::random).collect()
    } else {
        Cell::all()
    };
    for (word, load) in [("stranger", Cell::STRANGER), ("rich", Cell::RICH)] {
        if args.iter().any(|a| a == word) {
            cells.iter_mut().for_each(|cell| cell.stranger = Some(load));
        }
    }
    let verdicts = run(&cells, number("seeds", 1).unwrap_or(1).max(1));
    let mut missed = BTreeMap::new();
    for verdict in &verdicts {
        if let Some(what) = verdict.misses() {
            *missed.entry(what).or_insert(0) += 1;
        }
        if all || verdict.misses().is_some() {
            println!("{}", verdict.line());
        }
    }
    let mean = |f: fn(&Verdict) -> f64| verdicts.iter().map(f).sum::<f64>() / verdicts.len() as f64;
    println!(
        "{} cells, {} hold, mean utilisation {:.4}, mean dropped {:.4} %, missed {missed:?}",
        verdicts.len(),
        verdicts.iter().filter(|v| v.misses().is_none()).count(),
        mean(|v| v.utilisation),
        mean(|v| v.dropped) * 100.0
    );
}

fn run(cells: &[Cell], seeds: u64) -> Vec<Verdict> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(index) else { break };
                    let seed = |run: u64| index as u64 + 1 + run * SEED_STEP;
                    let runs: Vec<_> = (0..seeds).map(|run| cell.run(seed(run), false)).collect();
                    done.lock().unwrap().insert(index, Verdict::median(&runs));
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}
