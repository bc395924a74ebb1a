//! Groups of growing size, and loss on shared edges: `scale [RECEIVERS [MIB [SEEDS]]]`. Without arguments, the
//! table of `docs/results/simulation.md` (10,000 receivers take half a minute each). `scale sizes [MOST [RTT_MS]]`:
//! 16 MiB at 10 Mbit/s to 1, 10, … MOST (100,000) receivers, with the time and memory that the simulation took.

use downpour_sim::scale::Row;
use std::time::Instant;

const BASE: Row =
    Row { receivers: 1, mbps: 100, rtt_ms: 20, loss_pct: 5.0, shared_by: 0, mib: 64, seed: 1 };

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<u64> = words.iter().filter_map(|a| a.parse().ok()).collect();
    if words.first().is_some_and(|word| word == "sizes") {
        return sizes(args.first().copied().unwrap_or(100_000), args.get(1).copied().unwrap_or(20));
    }
    let mib = args.get(1).copied().unwrap_or(64);
    let seeds = args.get(2).copied().unwrap_or(3);
    let base = Row { mib, ..BASE };
    let sizes = args.first().map_or(vec![1, 10, 100, 1_000, 10_000], |n| vec![*n as usize]);
    let mut rows: Vec<Row> = sizes.into_iter().map(|receivers| Row { receivers, ..base }).collect();
    if args.is_empty() {
        rows.push(Row { receivers: 100, shared_by: 100, ..base });
        rows.push(Row { receivers: 1_000, shared_by: 100, ..base });
    }
    for row in rows {
        for seed in 1..=seeds {
            println!("{}", Row { seed, ..row }.run().line());
        }
    }
}

fn sizes(most: u64, rtt_ms: u64) {
    let mut receivers = 1;
    while receivers <= most as usize {
        for loss_pct in [1.0, 5.0] {
            // Each of a hundred thousand receivers takes a minute or more.
            for seed in 1..=3 {
                let row = Row { receivers, loss_pct, mbps: 10, mib: 16, rtt_ms, seed, ..BASE };
                let begun = Instant::now();
                let run = row.run();
                println!(
                    "{}  NACKs {:.2} a round, at most {} messages  simulated in {:.1} s, {} MB at most so far",
                    run.line(),
                    run.outcome.sender.nacks as f64 / f64::from(run.outcome.rounds.max(1)),
                    run.outcome.feedback_peak,
                    begun.elapsed().as_secs_f64(),
                    memory_kb() / 1000,
                );
            }
        }
        receivers *= 10;
    }
}

/// The most memory that this process has had.
fn memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
