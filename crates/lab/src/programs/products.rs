//! Downpour with a feed: products inserted at their times into a session that stays open.

use super::downpour::{PORT, Receiver};
use super::papers::{GROUP, SHAPED};
use super::{Program, TOLD, text};
use crate::feed::ideal_fifo;
use crate::record::Latencies;
use crate::stage::{Proof, Stage};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// How long `fmtp` keeps what somebody lacks: one that lost all of the last product would be waited for.
const KEEP: &str = "20s";

/// The first product comes so long after the session's start: feeds do not begin with it.
const LEAD_S: f64 = 2.0;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "downpour-products",
        about: "products in a session that stays open; not told the rate",
        run: |stage| run(stage, false),
        needs_rate: true,
        ..Program::PLAIN
    },
    Program {
        name: "downpour-products-fixed",
        about: "the same, told the link's rate (controller fixed)",
        run: |stage| run(stage, true),
        needs_rate: true,
        ..Program::PLAIN
    },
    Program {
        name: "downpour-fmtp-products",
        about: "profile fmtp: shaped to 95 % of the rate, repair by TCP to each; given on when complete, nothing verified",
        run: fmtp,
        needs_rate: true,
        ..Program::PLAIN
    },
];

/// What we read of the sender's log.
#[derive(Deserialize)]
struct Inserted {
    product: u64,
    inserted_ns: u64,
    first_sent_ns: u64,
    last_sent_ns: u64,
}

/// What we read of a receiver's log.
#[derive(Deserialize)]
struct Received {
    product: u64,
    size: u64,
    arrived_ns: u64,
    delivered_ns: u64,
    clock_ahead_ns: i64,
    clock_error_ns: u64,
}

/// What we read of the sender's report.
#[derive(Deserialize)]
struct Report {
    session: Session,
    receivers: Vec<Receiver>,
}

#[derive(Deserialize)]
struct Session {
    source_symbols: u64,
    proactive_repair_symbols: u64,
    repair_symbols: u64,
    rounds: u64,
}

fn run(stage: &mut Stage<'_>, told: bool) -> io::Result<()> {
    if stage.products.is_empty() {
        return Err(io::Error::other("the cell has no feed"));
    }
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    let name = |stage: &Stage<'_>, name: &str| text(stage.file(name));
    let (ticket, report) = (name(stage, "ticket"), name(stage, "report.json"));
    let (list, sent) = (name(stage, "list"), name(stage, "sent"));
    std::fs::write(&list, lines(stage))?;
    stage.beforehand("downpour", &["ticket", "new", "--address", &listen, "--out", &ticket])?;
    stage.wait_senders()?;
    for i in 0..stage.cell.receivers {
        let (at, name, log) = (format!("@{ticket}"), format!("r{i}"), received(stage, i));
        #[rustfmt::skip]
        stage.receiver(i, "downpour", &[
            "receive", &at, "--interface", "eth0", "--name", &name, "--discard",
            "--product-log", &log,
        ])?;
    }
    stage.settle();
    stage.proof = Proof::Vouched;
    let receivers = stage.receivers_at_start().to_string();
    let rate = format!("{}kbit", stage.told_kbit(TOLD));
    let told = if told { &["--controller", "fixed", "--rate", &rate][..] } else { &[] };
    #[rustfmt::skip]
    let args = [
        "send", "--interface", "eth0", "--listen", &listen, "--ticket", &ticket,
        "--receivers", &receivers, "--report", &report, "--products", &list,
        "--product-log", &sent,
    ];
    stage.sender("downpour", &[&args[..], told].concat())?;
    stage.wait_receivers()?;
    stage.wait_senders()?;
    stage.latencies = measure(stage, Path::new(&sent), true)?;
    let report: Report = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    let Session { source_symbols, proactive_repair_symbols, repair_symbols, rounds } =
        report.session;
    let pulled: u64 = report.receivers.iter().map(|receiver| receiver.pull_bytes).sum();
    let left = report.receivers.iter().filter(|receiver| receiver.state != "complete").count();
    stage.remark = format!(
        "{source_symbols} source symbols, {proactive_repair_symbols} and {repair_symbols} of repair, \
         {rounds} rounds, {pulled} B pulled, {left} left the stream"
    );
    Ok(())
}

fn fmtp(stage: &mut Stage<'_>) -> io::Result<()> {
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    let rate = format!("{}kbit", stage.told_kbit(SHAPED));
    let [list, sent] = ["list", "sent"].map(|name| text(stage.file(name)));
    std::fs::write(&list, lines(stage))?;
    for i in 0..stage.cell.receivers {
        let log = received(stage, i);
        #[rustfmt::skip]
        stage.receiver(i, "downpour", &[
            "receive", "--profile", "fmtp", "--sender", &listen, "--group", GROUP, "--interface", "eth0",
            "--link-rate", &rate, "--discard", "--product-log", &log,
        ])?;
    }
    stage.settle();
    stage.proof = Proof::Vouched;
    let receivers = stage.receivers_at_start().to_string();
    #[rustfmt::skip]
    stage.sender("downpour", &[
        "send", "--profile", "fmtp", "--listen", &listen, "--receivers", &receivers, "--group", GROUP,
        "--interface", "eth0", "--rate", &rate, "--keep", KEEP, "--products", &list, "--product-log", &sent,
    ])?;
    stage.wait_receivers()?;
    stage.wait_senders()?;
    stage.latencies = measure(stage, Path::new(&sent), false)?;
    Ok(())
}

fn received(stage: &Stage<'_>, receiver: usize) -> String {
    text(stage.file(&format!("received{receiver}")))
}

fn lines(stage: &Stage<'_>) -> String {
    let mut lines = String::new();
    for (number, product) in stage.products.iter().enumerate() {
        let (at_s, size) = (product.at_s + LEAD_S, product.size);
        writeln!(
            lines,
            "{{\"at_s\":{at_s:.6},\"size\":{size},\"seed\":{number},\"name\":\"p{number}\"}}"
        )
        .expect("a String takes all");
    }
    lines
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let text = std::fs::read_to_string(path)?;
    text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
}

/// The parts of a product's latency at a receiver. The lab's machines have one clock: by how much the receiver
/// believes the sender's to be ahead is in none of them.
fn spans_s(sent: &Inserted, received: &Received) -> [f64; 4] {
    let times = [
        sent.inserted_ns,
        sent.first_sent_ns,
        sent.last_sent_ns,
        received.arrived_ns,
        received.delivered_ns,
    ];
    std::array::from_fn(|part| (times[part + 1] as i64 - times[part] as i64) as f64 / 1e9)
}

/// From the logs, which must tell of every product at every receiver; `ordered`: receivers' in order.
fn measure(stage: &Stage<'_>, sent: &Path, ordered: bool) -> io::Result<Latencies> {
    let mut sent: Vec<Inserted> = read(sent)?;
    sent.sort_by_key(|line| line.product);
    let (receivers, products) = (stage.cell.receivers, stage.products);
    let Some(rate) = stage.cell.rate else {
        return Err(io::Error::other("without a rate there is no ideal"));
    };
    let ideal = ideal_fifo(products, rate, (stage.cell.delay.0, stage.network.saved));
    let (mut sums, mut worst, mut clock) = ([0.0; 4], 0.0_f64, (0.0_f64, 0.0_f64));
    for i in 0..receivers {
        let mut lines: Vec<Received> = read(Path::new(&received(stage, i)))?;
        if !ordered {
            lines.sort_by_key(|line| line.product);
        }
        let in_order = lines.iter().zip(0..).all(|(line, number)| line.product == number);
        let whole = lines.len() == products.len() && sent.len() == products.len();
        if !in_order || !whole {
            let (got, sent, all) = (lines.len(), sent.len(), products.len());
            return Err(io::Error::other(format!(
                "receiver {i} logged {got} of {all} products, the sender {sent}, in order: {in_order}"
            )));
        }
        if lines.iter().zip(products).any(|(line, product)| line.size != product.size) {
            return Err(io::Error::other(format!("receiver {i} has products of other sizes")));
        }
        if sent.iter().any(|line| line.first_sent_ns == 0 || line.last_sent_ns == 0) {
            return Err(io::Error::other(
                "the stream passed some product over: nobody followed it",
            ));
        }
        let mut parts = [0.0; 4];
        for (line, sent) in lines.iter().zip(&sent) {
            parts.iter_mut().zip(spans_s(sent, line)).for_each(|(sum, span)| *sum += span);
            clock.0 = if line.clock_ahead_ns.abs() as f64 > clock.0.abs() {
                line.clock_ahead_ns as f64
            } else {
                clock.0
            };
            clock.1 = clock.1.max(line.clock_error_ns as f64);
        }
        worst = worst.max(parts.iter().sum());
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part / receivers as f64);
    }
    let bytes: u64 = products.iter().map(|product| product.size).sum();
    let latency: f64 = sums.iter().sum();
    let mbit = |latency: f64| Some(bytes as f64 * 8e-6 / latency);
    Ok(Latencies {
        products: Some(products.len() as u64),
        product_bytes: Some(bytes),
        throughput_mbit: mbit(latency),
        ideal_mbit: mbit(ideal),
        latency_over_ideal: Some(latency / ideal),
        worst_over_ideal: Some(worst / ideal),
        buffer_s: Some(sums[0]),
        transmission_s: Some(sums[1]),
        arrival_s: Some(sums[2]),
        delivery_s: Some(sums[3]),
        // No measurement is exact: without an error there was none.
        clock_us: (clock.1 > 0.0).then_some(clock.0 / 1e3),
        clock_error_us: (clock.1 > 0.0).then_some(clock.1 / 1e3),
    })
}

#[cfg(test)]
mod tests {
    use super::{Inserted, Received, spans_s};

    #[test]
    fn what_a_receiver_believes_of_the_senders_clock_is_in_no_latency() {
        let sent = Inserted {
            product: 0,
            inserted_ns: 1_000_000_000,
            first_sent_ns: 1_001_000_000,
            last_sent_ns: 1_003_000_000,
        };
        let received = |clock_ahead_ns| Received {
            product: 0,
            size: 1,
            arrived_ns: 1_003_500_000,
            delivered_ns: 1_003_750_000,
            clock_ahead_ns,
            clock_error_ns: 500_000,
        };
        assert_eq!(spans_s(&sent, &received(418_000)), [0.001, 0.002, 0.0005, 0.00025]);
        assert_eq!(spans_s(&sent, &received(0)), spans_s(&sent, &received(-90_000)));
    }
}
