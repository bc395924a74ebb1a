//! One session: `one RECEIVERS MBPS RTT_MS LOSS_PCT BURST MIB`. In the environment: SEED, QUEUE_MS (20), BUSY_MS, CAUCHY
//! (that code), TRACE.

use downpour_proto::{Code, Duration, Geometry, Rate};
use downpour_sim::world::{World, WorldConfig, bound};
use downpour_sim::{LinkConfig, Loss};

fn main() {
    let args: Vec<f64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [receivers, mbps, rtt_ms, loss, burst, mib] = args[..] else {
        eprintln!("usage: one RECEIVERS MBPS RTT_MS LOSS_PCT BURST MIB");
        std::process::exit(2);
    };
    let share = loss / 100.0;
    let loss = match burst {
        _ if share <= 0.0 => Loss::None,
        b if b <= 1.0 => Loss::Random(share),
        burst => Loss::Burst { share, burst },
    };
    let rate = Rate::from_mbps(mbps as u64);
    let mut config =
        WorldConfig::star(receivers as usize, rate, Duration::from_secs_f64(rtt_ms / 1e3), loss);
    config.data_len = (mib * 1048576.0) as u64;
    if let Some(queue) = std::env::var("QUEUE_MS").ok().and_then(|v| v.parse().ok()) {
        let link = &mut config.edges[0].link;
        *link = LinkConfig::bottleneck(rate, Duration::from_millis(queue), link.delay);
    }
    if let Some(seed) = std::env::var("SEED").ok().and_then(|v| v.parse().ok()) {
        config.seed = seed;
    }
    if std::env::var_os("CAUCHY").is_some() {
        config.geometry = Geometry::full(1440, Code::Cauchy);
    }
    config.window_blocks = config.geometry.code.window_blocks();
    config.partial_blocks = 2 * config.window_blocks;
    config.check = receivers < 100.0;
    config.trace = std::env::var_os("TRACE").is_some();
    if let Some(every) = std::env::var("BUSY_MS").ok().and_then(|v| v.parse().ok()) {
        config.make_busy(Duration::from_millis(every));
    }
    let len = config.data_len;
    let begun = std::time::Instant::now();
    let out = World::run(config);
    let floor = bound(len, rate, share);
    println!(
        "wall {:.3} s = {:.3} x bound   symbols {:.4} x source   feedback {:.3} % of bytes, {:.1} a round (most {}), \
         {:.0}/s   rounds {}   pulls {} bytes   dropped {}   most partial {}   closed {} reopened {} refused {}  nacks {}   took {:.2} s",
        out.wall().as_secs_f64(),
        out.wall().as_secs_f64() / floor.as_secs_f64(),
        out.overhead(),
        out.feedback_share() * 100.0,
        out.feedback_per_round(),
        out.feedback_peak,
        out.feedback_rate(),
        out.rounds,
        out.pull_bytes,
        out.dropped,
        out.receivers.iter().map(|r| r.most_partial).max().unwrap_or(0),
        out.sender.blocks_closed,
        out.sender.blocks_reopened,
        out.sender.nacks_refused,
        out.sender.nacks,
        begun.elapsed().as_secs_f64(),
    );
}
