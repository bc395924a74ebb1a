//! What one receiver in trouble costs the others: `stragglers [SEEDS [RECEIVERS MBPS RTT_MS MIB LOSS_PCT]]`; with
//! TRACE=trouble (none, rate, loss, stop, cut, late) one run of that, a line for each report.

use downpour_proto::Duration;
use downpour_sim::stragglers::{Scene, TROUBLES, Trouble};

fn main() {
    let args: Vec<f64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let at = |i: usize, default: f64| args.get(i).copied().unwrap_or(default);
    let scene = Scene {
        receivers: at(1, 16.0) as usize,
        mbps: at(2, 20.0) as u64,
        rtt: Duration::from_secs_f64(at(3, 0.2) / 1e3),
        mib: at(4, 64.0) as u64,
        loss: at(5, 0.0) / 100.0,
        trouble: Trouble::None,
        seed: 1,
        trace: false,
    };
    if let Ok(wanted) = std::env::var("TRACE") {
        let named = |trouble: &&Trouble| format!("{trouble:?}").eq_ignore_ascii_case(&wanted);
        let trouble = *TROUBLES.iter().find(named).expect("one of the troubles");
        let seed = at(0, 1.0) as u64;
        println!("{}", Scene { trouble, seed, trace: true, ..scene }.run());
        return;
    }
    for trouble in TROUBLES {
        for seed in 1..=at(0, 3.0) as u64 {
            let fates = Scene { trouble, seed, ..scene }.run();
            println!("{:<5} seed {seed}: {fates}", format!("{trouble:?}").to_lowercase());
        }
    }
}
