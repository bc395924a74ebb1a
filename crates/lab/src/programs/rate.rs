//! Downpour as a matter of rates: with a trace of its controller, beside TCP flows, and beside itself.
//!
//! - `downpour-traced`: what the trace says of the standing queue, and of the time to 90 % of the rate.
//! - `downpour-beside-4`, `downpour-beside-1`: so many CUBIC flows by iperf3 for [`BESIDE_S`] seconds before and while
//!   the session runs; what share of the link they got while it did. The file must last longer than that at the full rate.
//! - `downpour-two`: two sessions from one machine, each to every second receiver, the second [`SECOND_S`] later; what share the
//!   larger one got. Each file must last until the end of [`TOGETHER_S`], whatever the shares: who is alone before makes up for it.
//! - `downpour-two-in`: the same from two machines that do not hear each other to one, the sender of other experiments.

use super::{Program, downpour, text};
use crate::experiment::FRAME_BYTES;
use crate::record::median;
use crate::stage::{Proof, SENDER_TRACE, Stage};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the TCP flows run.
const BESIDE_S: u64 = 40;
/// When the second of two sessions begins, and from when until when they are compared, in seconds.
const SECOND_S: u64 = 5;
const TOGETHER_S: (u64, u64) = (15, 35);
/// What keeps senders of one network from hearing each other.
const APART: &str = "add table inet apart; add chain inet apart out { type filter hook output priority 0; }; \
                     add rule inet apart out ip daddr 239.192.28.0 drop";
/// Bins in which the rate that arrives is looked at, in seconds.
const BIN_S: f64 = 0.1;
/// Bytes of a frame's headers before UDP's payload.
const HEADER_BYTES: f64 = 42.0;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "downpour-traced",
        about: "not told the rate; traced; receivers verify and keep nothing",
        tools: &["downpour", "zstd"],
        needs_rate: true,
        run: traced,
        ..Program::PLAIN
    },
    Program {
        name: "downpour-beside-4",
        about: "not told the rate; beside four CUBIC flows of iperf3",
        tools: &["downpour", "iperf3"],
        run: |stage| beside(stage, 4),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-beside-1",
        about: "not told the rate; beside one CUBIC flow of iperf3",
        tools: &["downpour", "iperf3"],
        run: |stage| beside(stage, 1),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-two",
        about: "not told the rate; two sessions from one machine, the second five seconds later; all but the share is over one of the two files",
        tools: &["downpour", "zstd"],
        receivers: (2, usize::MAX),
        run: two,
        ..Program::PLAIN
    },
    Program {
        name: "downpour-two-in",
        about: "not told the rate; two sessions by UDP from two machines to one, the second five seconds later; wire and CPU of the sender are that one's, all but the share is over one of the two files",
        tools: &["downpour", "zstd", "nft"],
        shares_uplinks: true,
        receivers: (2, 2),
        run: two_in,
        ..Program::PLAIN
    },
];

fn traced(stage: &mut Stage<'_>) -> io::Result<()> {
    let trace = text(stage.file(SENDER_TRACE));
    let own = ["--trace", &trace];
    // Where logs are kept it is traced anyway.
    downpour::run(stage, false, if stage.traced { &[] } else { &own })?;
    let lines = stage.trace(SENDER_TRACE)?;
    let full = stage.cell.rate.map_or(0.0, |rate| rate.0 as f64) * (1.0 - stage.cell.loss);
    let read = Reading::of(&lines, full);
    stage.figures.queue_median_ms = read.queue_s.map(|s| s * 1e3);
    stage.figures.ramp_s = read.ramp_s;
    Ok(())
}

fn beside(stage: &mut Stage<'_>, flows: u64) -> io::Result<()> {
    stage.net_admin = true;
    let (host, log) = (stage.network.receivers[0].ipv4.clone(), text(stage.file("iperf3.json")));
    stage.receiver(0, "iperf3", &["--server", "--one-off", "--json"])?;
    stage.settle();
    let (time, flows) = (BESIDE_S.to_string(), flows.to_string());
    let what = ["--congestion", "cubic", "--parallel", &flows, "--time", &time];
    let how = ["--client", &host, "--json", "--get-server-output", "--logfile", &log];
    stage.aside("iperf3", &[&how[..], &what].concat())?;
    let begun = Instant::now();
    downpour::run(stage, false, &[])?;
    let until = begun.elapsed();
    let from = stage.clock_began().map_or(until, |at| at - begun);
    let told = std::fs::read_to_string(Path::new(&log))?;
    if told.is_empty() {
        let why = "the session ended before the TCP flows: give it a larger size";
        return Err(io::Error::other(why));
    }
    let told: Value = serde_json::from_str(&told)?;
    let bits = received(&told["server_output_json"], from.as_secs_f64(), until.as_secs_f64());
    let full = stage.cell.rate.map(|rate| rate.0 as f64 * (FRAME_BYTES - 66.0) / FRAME_BYTES);
    stage.figures.tcp_share = bits.zip(full).map(|(bits, full)| bits / full);
    Ok(())
}

/// Bits per second that iperf3's server got in its intervals that lie between two times.
fn received(told: &Value, from: f64, until: f64) -> Option<f64> {
    let number = |interval: &Value, name: &str| interval["sum"][name].as_f64();
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for interval in told["intervals"].as_array()? {
        if number(interval, "start")? >= from && number(interval, "end")? <= until {
            bytes += number(interval, "bytes")?;
            seconds += number(interval, "seconds")?;
        }
    }
    (seconds > 0.0).then(|| bytes * 8.0 / seconds)
}

fn two(stage: &mut Stage<'_>) -> io::Result<()> {
    stage.proof = Proof::Vouched;
    let (payload, receivers) = (text(stage.payload.to_owned()), stage.cell.receivers);
    let sessions = two_sessions(stage, |n| {
        format!("{}:{}", stage.network.sender.ipv4, usize::from(downpour::PORT) + n)
    });
    for (listen, ticket, _) in &sessions {
        stage.beforehand("downpour", &["ticket", "new", "--address", listen, "--out", ticket])?;
    }
    stage.wait_senders()?;
    for i in 0..receivers {
        let (at, name) = (format!("@{}", sessions[i % 2].1), format!("r{i}"));
        let options = ["receive", &at, "--interface", "eth0", "--name", &name, "--discard"];
        stage.receiver(i, "downpour", &options)?;
    }
    stage.settle();
    for (n, (listen, ticket, trace)) in sessions.iter().enumerate() {
        let receivers = ((receivers + 1 - n) / 2).to_string();
        #[rustfmt::skip]
        stage.sender("downpour", &[
            "send", "--interface", "eth0", "--listen", listen, "--ticket", ticket, "--receivers", &receivers,
            "--trace", trace, &payload,
        ])?;
        if n == 0 {
            stage.pass(Duration::from_secs(SECOND_S))?;
        }
    }
    stage.wait_receivers()?;
    stage.wait_senders()?;
    compare_two(stage)
}

fn two_in(stage: &mut Stage<'_>) -> io::Result<()> {
    stage.proof = Proof::Vouched;
    let payload = text(stage.payload.to_owned());
    let sessions =
        two_sessions(stage, |n| format!("{}:{}", stage.network.receivers[n].ipv4, downpour::PORT));
    for (n, (listen, ticket, _)) in sessions.iter().enumerate() {
        stage.receiver(n, "downpour", &["ticket", "new", "--address", listen, "--out", ticket])?;
        // As if routers were between them.
        stage.net_admin = true;
        stage.receiver(n, "nft", &[APART])?;
        stage.net_admin = false;
    }
    stage.wait_receivers()?;
    for (n, (_, ticket, _)) in sessions.iter().enumerate() {
        let (at, name) = (format!("@{ticket}"), format!("in{n}"));
        let options = ["receive", &at, "--interface", "eth0", "--name", &name, "--discard"];
        stage.beforehand("downpour", &options)?;
    }
    stage.settle();
    stage.start_clock();
    for (n, (listen, ticket, trace)) in sessions.iter().enumerate() {
        #[rustfmt::skip]
        stage.receiver(n, "downpour", &[
            "send", "--path", "udp", "--listen", listen, "--ticket", ticket, "--receivers", "1", "--trace", trace, &payload,
        ])?;
        if n == 0 {
            stage.pass(Duration::from_secs(SECOND_S))?;
        }
    }
    stage.wait_receivers()?;
    stage.wait_senders()?;
    compare_two(stage)
}

/// Where each of two sessions listens, its ticket and its trace.
fn two_sessions(
    stage: &Stage<'_>,
    address: impl Fn(usize) -> String,
) -> [(String, String, String); 2] {
    let file = |name: String| text(stage.file(&name));
    [0, 1].map(|n| (address(n), file(format!("ticket{n}")), file(format!("trace{n}"))))
}

fn compare_two(stage: &mut Stage<'_>) -> io::Result<()> {
    let (from, until) = TOGETHER_S;
    let came = |n: u64| -> io::Result<f64> {
        let begun = n * SECOND_S;
        let arrivals = Arrivals::of(&stage.trace(&format!("trace{n}"))?);
        arrivals.between(from - begun, until - begun).ok_or_else(|| {
            let which = ["first", "second"][n as usize];
            let why = format!("the {which} session ended before {until} s: give it a larger size");
            io::Error::other(why)
        })
    };
    let (first, second) = (came(0)?, came(1)?);
    stage.figures.larger_share = Some(first.max(second) / (first + second));
    Ok(())
}

/// What a sender's trace says of what came, by receiver, from the first symbol on.
#[derive(Debug, Default)]
struct Arrivals {
    queues: Vec<f64>,
    bins: Vec<Vec<Bin>>,
}

/// What a sender's trace says.
#[derive(Debug, Default, PartialEq)]
struct Reading {
    /// Median of the delays above the least that all receivers report.
    queue_s: Option<f64>,
    /// From the first symbol until the receiver that gets least got 90 % of the rate, in [`BIN_S`]. Of one on trial
    /// there are no samples.
    ramp_s: Option<f64>,
}

/// What a receiver got in a bin, and how much of the bin is known.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    /// Of frames.
    bytes: f64,
    known_s: f64,
}

impl Reading {
    fn of(lines: &str, full_bps: f64) -> Self {
        let Arrivals { queues, bins } = Arrivals::of(lines);
        let need = 0.9 * full_bps / 8.0;
        let reached = (0..bins.iter().map(Vec::len).max().unwrap_or(0)).position(|at| {
            let bins = bins.iter().filter_map(|bins| bins.get(at));
            let mut known = bins.filter(|bin| bin.known_s > 0.5 * BIN_S).peekable();
            known.peek().is_some() && known.all(|bin| bin.bytes >= need * bin.known_s)
        });
        Self {
            queue_s: median(queues).map(|[middle, ..]| middle),
            ramp_s: reached.map(|at| (at + 1) as f64 * BIN_S),
        }
    }
}

impl Arrivals {
    fn of(lines: &str) -> Self {
        let (mut queues, mut start) = (Vec::new(), None);
        let mut bins: Vec<Vec<Bin>> = Vec::new();
        for line in lines.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let number = |name: &str| line[name].as_f64().unwrap_or_default();
            match line["type"].as_str() {
                Some("data") if start.is_none() => start = Some(number("t")),
                Some("sample") if number("receive_s") > 0.0 => {
                    queues.push(number("queue_s"));
                    // Spread evenly over the time in which it was sent.
                    let end = number("t") - number("rtt_s") - start.unwrap_or_default();
                    // As long as those that were sent: a poll is a short one.
                    let each =
                        number("sent_bytes") / number("sent_packets").max(1.0) + HEADER_BYTES;
                    let rate = number("received_packets") * each / number("send_s").max(1e-9);
                    let receiver = number("receiver") as usize;
                    bins.resize(bins.len().max(receiver + 1), Vec::new());
                    spread(&mut bins[receiver], end - number("send_s"), end, rate);
                }
                _ => {}
            }
        }
        Self { queues, bins }
    }

    /// Bytes of frames that came to the receiver that got most, between two seconds; `None` where nothing came until the end of them.
    fn between(&self, from: u64, until: u64) -> Option<f64> {
        let [from, until] = [from, until].map(|s| (s as f64 / BIN_S).round() as usize);
        let bins = self.bins.iter().filter_map(|bins| bins.get(from..until));
        bins.map(|bins| bins.iter().map(|bin| bin.bytes).sum::<f64>()).reduce(f64::max)
    }
}

/// Adds what came at `rate` bytes a second from `from` to `to` to the bins.
fn spread(bins: &mut Vec<Bin>, from: f64, to: f64, rate: f64) {
    let mut at = from.max(0.0);
    while at < to {
        let bin = (at / BIN_S + 1e-9) as usize;
        let until = to.min((bin + 1) as f64 * BIN_S);
        bins.resize(bins.len().max(bin + 1), Bin::default());
        let known_s = (until - at).max(0.0);
        bins[bin].bytes += rate * known_s;
        bins[bin].known_s += known_s;
        at = until.max(at + 1e-6);
    }
}

#[cfg(test)]
mod tests {
    use super::Reading;
    use std::fmt::Write as _;

    #[test]
    fn tcp_counts_while_the_session_runs() {
        let interval = |s: u32, bytes: u32| {
            let (start, end, seconds) = (f64::from(s), f64::from(s + 1), 1.0);
            serde_json::json!({"sum": {"start": start, "end": end, "seconds": seconds, "bytes": bytes}})
        };
        // All of the link until the session begins, and after its end.
        let bytes = [1000, 1000, 900, 250, 250, 250, 800];
        let intervals: Vec<_> = (0..).zip(bytes).map(|(s, bytes)| interval(s, bytes)).collect();
        let told = serde_json::json!({ "intervals": intervals });
        assert_eq!(super::received(&told, 2.5, 6.2), Some(2000.0));
        assert_eq!(super::received(&told, 7.0, 9.0), None);
        assert_eq!(super::received(&serde_json::Value::Null, 0.0, 9.0), None);
    }

    /// A trace in which datagrams have so many bytes.
    fn trace(bytes: u32) -> String {
        let mut lines = String::from("{\"type\":\"trace\"}\n{\"type\":\"data\",\"t\":1.0}\n");
        // 100 packets in each 100 ms, from 0.5 s on 1000; two receivers, one of them later.
        for step in 0..10u32 {
            for (receiver, from) in [(1, 5), (2, 7)] {
                let packets = if step >= from { 1000 } else { 100 };
                let t = 1.0 + 0.1 * f64::from(step + 1) + 0.02;
                writeln!(
                    lines,
                    "{{\"type\":\"sample\",\"t\":{t:.3},\"receiver\":{receiver},\"sent_packets\":{packets},\
                     \"received_packets\":{packets},\"sent_bytes\":{},\"send_s\":0.1,\"receive_s\":0.1,\"rtt_s\":0.02,\"queue_s\":0.00{receiver}}}",
                    packets * bytes
                )
                .unwrap();
            }
        }
        lines
    }

    #[test]
    fn a_trace_tells_queue_and_ramp() {
        let lines = trace(1472);
        let full = 1000.0 * 1514.0 * 8.0 / 0.1;
        let read = Reading::of(&lines, full);
        assert_eq!(read.queue_s, Some(0.0015));
        assert!((read.ramp_s.unwrap() - 0.8).abs() < 1e-6, "{read:?}");
        assert_eq!(Reading::of(&lines, 2.0 * full).ramp_s, None);
        // Five steps of 100 packets and five of 1000.
        let arrivals = super::Arrivals::of(&lines);
        let came = arrivals.between(0, 1).unwrap();
        assert!((came - 5500.0 * 1514.0).abs() < 1e-3, "{came}");
        // Who ended before was not compared to the end.
        assert_eq!(arrivals.between(0, 2), None);
        // As many datagrams, of which some are polls, are not 90 % of the rate.
        assert_eq!(Reading::of(&trace(1200), full).ramp_s, None);
        // The later one is on trial when the other has its rate: nothing is known of it.
        let tried = |line: &&str| !line.contains("\"receiver\":2") || line.contains("\"t\":2.0");
        let lines: Vec<&str> = lines.lines().filter(tried).collect();
        let read = Reading::of(&lines.join("\n"), full);
        assert!((read.ramp_s.unwrap() - 0.6).abs() < 1e-6, "{read:?}");
    }
}
