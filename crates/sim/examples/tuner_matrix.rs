//! The closed loop beside the best setting that stays, in simulation: all cells, or with arguments
//! `MBPS RTT_MS LOSS_PCT none|source|sink [SEED]` one of them with its decisions.

mod each;

use downpour_sim::tuner::matrix::{Cell, Disk, Outcome};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(cell) = one(&args) {
        let seed = args.get(4).and_then(|seed| seed.parse().ok()).unwrap_or(1);
        for (at, decision) in cell.decisions(seed) {
            println!("{at:>6.1} s  {} ({})", decision.why, decision.binding);
        }
        println!("{}", cell.run(seed).line());
        return;
    }
    let cells = Cell::all();
    let outcomes = each::each(cells.len(), |index| cells[index].run(index as u64 + 1));
    for outcome in &outcomes {
        println!("{}", outcome.line());
    }
    let good = outcomes.iter().filter(|outcome| outcome.ratio() >= 0.9).count();
    let right = outcomes.iter().filter(|outcome| outcome.is_right()).count();
    let worst = outcomes.iter().map(Outcome::ratio).fold(f64::MAX, f64::min);
    let all = outcomes.len();
    println!(
        "{all} cells: {good} within 10 % of the best that stays (worst {worst:.2}), {right} verdicts right"
    );
}

fn one(args: &[String]) -> Option<Cell> {
    let disk = match args.get(3)?.as_str() {
        "source" => Disk::Source,
        "sink" => Disk::Sink,
        _ => Disk::None,
    };
    let (mbps, rtt_ms) = (args.first()?.parse().ok()?, args.get(1)?.parse().ok()?);
    Some(Cell { mbps, rtt_ms, loss_pct: args.get(2)?.parse().ok()?, disk })
}
