//! All cells of the rate matrix. Prints the cells that miss something and a summary.
//! `rate_matrix [all] [stranger | rich] [random COUNT [FIRST]]`: `all` prints every cell, `random` takes cells off the grid;
//! with `stranger` all hear a small session behind some other link (`Cell::STRANGER`), with `rich` a large one.

use downpour_sim::stream::{Cell, Verdict};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let all = args.iter().any(|a| a == "all");
    let mut cells = match args.iter().position(|a| a == "random") {
        Some(at) => {
            let number = |i: usize| args.get(at + i).and_then(|a| a.parse::<u64>().ok());
            let first = number(2).unwrap_or(1);
            (first..first + number(1).unwrap_or(500)).map(Cell::random).collect()
        }
        None => Cell::all(),
    };
    for (word, load) in [("stranger", Cell::STRANGER), ("rich", Cell::RICH)] {
        if args.iter().any(|a| a == word) {
            cells.iter_mut().for_each(|cell| cell.stranger = Some(load));
        }
    }
    let verdicts = run(&cells);
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

fn run(cells: &[Cell]) -> Vec<Verdict> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(index) else { break };
                    let verdict = cell.run(index as u64 + 1, false);
                    done.lock().unwrap().insert(index, verdict);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}
