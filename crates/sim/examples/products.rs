//! A session that stays open, on a trace of products: `products FILE FROM_S TO_S SCALE RECEIVERS MBPS RTT_MS LOSS_PCT
//! [auto|fixed]`. FILE has a line for each product: its size, and when it was inserted (yyyymmddHHMMSS.mmm). SEED=N: other
//! losses; QUEUE_MS=N: another queue than 20 ms.

use downpour_proto::{Duration, Rate};
use downpour_sim::Loss;
use downpour_sim::world::{Controller, Product, World, WorldConfig, ideal_fifo};

/// What frames a product and a block.
const FRAME_LEN: u64 = 200;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<f64>().ok());
    let numbers: Vec<f64> = (1..8).filter_map(number).collect();
    let [from, to, scale, receivers, mbps, rtt_ms, loss_pct] = numbers[..] else {
        eprintln!(
            "usage: products FILE FROM_S TO_S SCALE RECEIVERS MBPS RTT_MS LOSS_PCT [auto|fixed]"
        );
        std::process::exit(2);
    };
    let trace = read(&args[0], from, to, scale);
    let rate = Rate::from_mbps(mbps as u64);
    let rtt = Duration::from_secs_f64(rtt_ms / 1e3);
    let loss = if loss_pct > 0.0 { Loss::Random(loss_pct / 100.0) } else { Loss::None };
    let mut config = WorldConfig::star(receivers as usize, rate, rtt, loss);
    if let Some(queue) = std::env::var("QUEUE_MS").ok().and_then(|v| v.parse().ok()) {
        let link =
            downpour_sim::LinkConfig::bottleneck(rate, Duration::from_millis(queue), rtt / 4);
        config.edges = vec![downpour_sim::EdgeConfig::from_sender(link)];
    }
    config.seed = std::env::var("SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(config.seed);
    config.manifest_len = 0;
    config.data_len = 0;
    config.check = false;
    config.load_time = Duration::from_micros(100);
    config.code_time = Duration::from_micros(300);
    config.window_blocks = 128;
    config.partial_blocks = 256;
    if args.get(8).is_some_and(|a| a == "fixed") {
        config.controller =
            Controller::Fixed(Rate::from_bps((mbps * 1e6 * 1472.0 / 1514.0 * 0.995) as u64));
    }
    config.trace = std::env::var_os("TRACE").is_some();
    config.products =
        trace.iter().map(|(at, len)| Product { at: *at, len: len + FRAME_LEN }).collect();
    let ideal: Vec<Product> =
        trace.iter().map(|(at, len)| Product { at: *at, len: *len }).collect();
    let ideal = ideal_fifo(&ideal, mbps * 125_000.0, rtt / 2).as_secs_f64();
    let size: u64 = trace.iter().map(|(_, len)| len).sum();
    let out = World::run(config);
    let latencies: Vec<f64> = out.receivers.iter().map(|r| r.latency.as_secs_f64()).collect();
    let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
    let worst = latencies.iter().copied().fold(0.0, f64::max);
    println!(
        "{} products {:.1} MB  ideal {:.2} Mbit/s  mean {:.3} x ideal  worst {:.3} x  symbols {:.4} x  proactive {} \
         repair {}  nacks {} reopened {} rounds {} pulls {} dropped {} stream {:.4} x ended {:.1}",
        trace.len(),
        size as f64 / 1e6,
        size as f64 * 8e-6 / ideal,
        mean / ideal,
        worst / ideal,
        (out.sender.source_symbols + out.sender.repair_symbols) as f64
            / out.sender.source_symbols as f64,
        out.sender.proactive_symbols,
        out.sender.repair_symbols,
        out.sender.nacks,
        out.sender.blocks_reopened,
        out.rounds,
        out.pull_bytes,
        out.dropped,
        out.stream_bytes as f64 / size as f64,
        out.ended.as_secs_f64(),
    );
}

/// The products from `from` to `to` seconds of the day: when, at `scale` times their speed, and bytes.
fn read(path: &str, from: f64, to: f64, scale: f64) -> Vec<(Duration, u64)> {
    let text = std::fs::read_to_string(path).expect("the trace can be read");
    let product = |line: &str| {
        let (len, time) = line.split_once(' ')?;
        let part = |from, to| time.get(from..to).and_then(|text: &str| text.parse::<f64>().ok());
        let at = part(8, 10)? * 3600.0 + part(10, 12)? * 60.0 + part(12, time.len())?;
        let here = (from..to).contains(&at);
        let at = Duration::from_secs_f64((at - from).max(0.0) / scale + 0.5);
        here.then_some((at, len.parse().ok()?))
    };
    text.lines().filter_map(product).collect()
}
