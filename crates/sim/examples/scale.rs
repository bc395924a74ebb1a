//! Groups of growing size, and loss on shared edges: `scale [RECEIVERS [MIB [SEEDS]]]`. Without arguments, the
//! table of `docs/results/simulation.md` (10,000 receivers take half a minute each).

use downpour_sim::scale::Row;

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let mib = args.get(1).copied().unwrap_or(64);
    let seeds = args.get(2).copied().unwrap_or(3);
    let base =
        Row { receivers: 1, mbps: 100, rtt_ms: 20, loss_pct: 5.0, shared_by: 0, mib, seed: 1 };
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
