//! One cell of the rate matrix: `rate MBPS QUEUE_MS RTT_MS LOSS_PCT BURST RECEIVERS [SEED [narrow] [busy] [stranger] [trace]]`.

use downpour_sim::stream::Cell;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|s| s.parse::<f64>().ok()).unwrap_or(0.0);
    let cell = Cell {
        mbps: number(0) as u64,
        queue_ms: number(1) as u64,
        rtt_us: (number(2) * 1000.0) as u64,
        loss_pct: number(3),
        burst: number(4),
        receivers: number(5) as usize,
        narrow: args.iter().any(|a| a == "narrow"),
        busy: args.iter().any(|a| a == "busy"),
        stranger: args.iter().any(|a| a == "stranger").then_some(Cell::STRANGER),
    };
    if cell.mbps == 0 || cell.receivers == 0 {
        eprintln!(
            "usage: rate MBPS QUEUE_MS RTT_MS LOSS_PCT BURST RECEIVERS [SEED [narrow] [busy] [stranger] [trace]]"
        );
        std::process::exit(2);
    }
    println!("{}", cell.run(number(6).max(1.0) as u64, args.iter().any(|a| a == "trace")).line());
}
