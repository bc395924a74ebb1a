//! What one receiver in trouble costs the others: `stragglers [SEEDS [RECEIVERS MBPS RTT_MS MIB LOSS_PCT
//! [SHARE QUEUE_MS SLOW]]]`, the last three of those with a share of the rate; with TRACE=trouble (none, rate, loss,
//! stop, cut, late) one run of that, a line for each report. `stragglers table [SEEDS]`: one or two with a share of the rate, over
//! shares, rates, round trips, groups and queues; ten seconds of data each.

use downpour_proto::Duration;
use downpour_sim::stragglers::{Scene, TROUBLES, Trouble};

fn main() {
    if std::env::args().nth(1).is_some_and(|first| first == "table") {
        return table(std::env::args().nth(2).and_then(|seeds| seeds.parse().ok()).unwrap_or(3));
    }
    let args: Vec<f64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let at = |i: usize, default: f64| args.get(i).copied().unwrap_or(default);
    let scene = Scene {
        receivers: at(1, 16.0) as usize,
        mbps: at(2, 20.0) as u64,
        rtt: Duration::from_secs_f64(at(3, 0.2) / 1e3),
        mib: at(4, 64.0) as u64,
        loss: at(5, 0.0) / 100.0,
        share: at(6, Scene::USUAL.share),
        queue: Duration::from_secs_f64(at(7, 50.0) / 1e3),
        troubled: at(8, 1.0) as usize,
        ..Scene::USUAL
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

/// A line for each cell, and the worst of all.
fn table(seeds: u64) {
    println!(
        "receivers slow share Mbit/s RTT_ms queue_ms: the others without, with: mean, worst s; left by how many"
    );
    let (mut cells, mut costly) = (0, 0);
    for (receivers, troubled) in [(4, 1), (16, 1), (16, 2), (64, 1)] {
        for share in [0.05, 0.1, 0.2, 0.4, 0.6] {
            for mbps in [20, 100, 300] {
                for (rtt_us, queue_ms) in [(200, 5), (200, 50), (20_000, 50), (100_000, 200)] {
                    let (rtt, queue) =
                        (Duration::from_micros(rtt_us), Duration::from_millis(queue_ms));
                    let mib = (mbps * 10_000_000 / 8) >> 20;
                    let scene =
                        Scene { receivers, troubled, share, mbps, rtt, queue, mib, ..Scene::USUAL };
                    let (line, is_costly) = cell(scene, seeds);
                    println!("{line}");
                    cells += 1;
                    costly += u32::from(is_costly);
                }
            }
        }
    }
    println!("{cells} cells, {costly} costly");
}

/// The cell's line, and whether the others lost more than half a second and 3 %, or one that has more than half of the
/// rate was left behind.
fn cell(scene: Scene, seeds: u64) -> (String, bool) {
    let mut alone = 0.0;
    let (mut sum, mut worst, mut left) = (0.0, 0.0_f64, 0);
    for seed in 1..=seeds {
        alone += Scene { seed, ..scene }.run().others.as_secs_f64() / seeds as f64;
        let fates = Scene { seed, trouble: Trouble::Rate, ..scene }.run();
        let took = fates.others.as_secs_f64();
        (sum, worst) = (sum + took, worst.max(took));
        left += u32::from(fates.outcome.pull_bytes > 0);
    }
    let mean = sum / seeds as f64;
    let is_costly = if scene.share < 0.5 {
        mean > 1.03 * alone + 0.5
    } else {
        left > 0 || mean > 1.1 * alone / scene.share
    };
    let mark = if is_costly { " costly" } else { "" };
    let Scene { receivers, troubled, share, mbps, rtt, queue, .. } = scene;
    let (rtt, queue) = (rtt.as_secs_f64() * 1e3, queue.as_secs_f64() * 1e3);
    let line = format!(
        "{receivers:3} {troubled} {share:4} {mbps:3} {rtt:5} {queue:3}: {alone:.2}, {mean:.2}, {worst:.2}; {left}{mark}"
    );
    (line, is_costly)
}
