//! All cells of the rate matrix. Prints the cells that miss something and a summary.
//!
//! `rate_matrix [all] [stranger | rich] [random COUNT [FIRST]] [seeds COUNT]`:
//!
//! - `all` prints every cell; `random` takes cells off the grid;
//! - `seeds` runs each cell so many times and takes medians;
//! - with `stranger` all hear a small session behind some other link (`Cell::STRANGER`), with `rich` a large one.

mod each;

use downpour_sim::stream::{Cell, Verdict};
use std::collections::BTreeMap;

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
    let seeds = number("seeds", 1).unwrap_or(1).max(1);
    let verdicts = each::each(cells.len(), |index| {
        let seed = |run: u64| index as u64 + 1 + run * SEED_STEP;
        let runs: Vec<_> = (0..seeds).map(|run| cells[index].run(seed(run), false)).collect();
        Verdict::median(&runs)
    });
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
