//! `lab emulator check`: links of each kind, asked for and measured.
//!
//! Two machines; numbered datagrams from one to the other, small and few except where load is the question.
//! The probes run at real-time priority, below the emulator's.

use super::pipe::Shape;
use crate::footprint::Footprint;
use crate::network::{Host, Link, Losses, Network, Spec};
use crate::probe::Arrivals;
use crate::shell::prioritised;
use crate::units::{Rate, Span};
use serde::Serialize;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

/// Bytes of headers of one datagram in an Ethernet frame.
const HEADERS: usize = 42;
/// Below the emulator's.
const PRIORITY: &str = "40";
const DELAYS_MS: &[u64] = &[0, 1, 5, 10, 20, 50, 100, 200];

/// What is asked of one link, and what is sent over it.
struct Case {
    what: String,
    link: Link,
    count: u64,
    bytes: usize,
    rate: Rate,
}

/// What one link did.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    what: String,
    asked: Shape,
    sent: u64,
    #[serde(flatten)]
    arrivals: Arrivals,
    /// Lost on purpose, for want of room in the queue, and by the lab itself.
    lost: [u64; 3],
    /// Mean time from due to delivery in the emulator, us.
    late_mean_us: Option<f64>,
}

/// Measures all; `quick` sends a tenth.
pub(crate) fn check(quick: bool) -> io::Result<Vec<Row>> {
    let footprint = Footprint::new()?;
    cases(if quick { 10 } else { 1 }).into_iter().map(|case| measure(&footprint, case)).collect()
}

/// As a table for people.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| link | sent | arrived | lost: asked, queue, own | in a row | overtaken | rate Mbit/s | delay error us: min, median, p99, max |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let asked_us = row.asked.delay.ms() * 1e3;
        let [min, median, p99, max] = row.arrivals.delay_us.map(|us| us - asked_us);
        let [asked, queue, own] = row.lost;
        let in_a_row = (row.sent - row.arrivals.received) as f64 / row.arrivals.gaps.max(1) as f64;
        let rate = row.arrivals.rate_bps / 1e6;
        text += &format!(
            "| {} | {} | {} | {asked}, {queue}, {own} | {in_a_row:.1} | {} | {rate:.2} | {min:.0}, {median:.0}, {p99:.0}, {max:.0} |\n",
            row.what, row.sent, row.arrivals.received, row.arrivals.overtaken,
        );
    }
    text
}

fn cases(divisor: u64) -> Vec<Case> {
    let case = |what: &str, emulated, down: Shape, count: u64, bytes, rate: &str| Case {
        what: what.to_owned(),
        link: Link { up: Shape::default(), down, emulated, sparing: false },
        count: count / divisor,
        bytes,
        rate: rate.parse().expect("a rate"),
    };
    let ms = |ms| Span(Duration::from_millis(ms));
    let delay = |delay| Shape { delay, ..Shape::default() };
    let limited = |rate: &str| Shape { rate: rate.parse().ok(), queue: ms(50), ..Shape::default() };
    let losing = |burst| Shape { loss: 0.05, burst, ..Shape::default() };
    let mut cases: Vec<_> = DELAYS_MS
        .iter()
        .map(|d| case(&format!("delay {d} ms"), true, delay(ms(*d)), 5_000, 100, "2mbit"))
        .collect();
    let jitter = Shape { jitter: ms(5), ..delay(ms(10)) };
    let reorder = Shape { reorder: 0.01, ..delay(ms(10)) };
    cases.extend([
        case("delay 10 ms, jitter 5 ms", true, jitter, 5_000, 100, "2mbit"),
        case("delay 10 ms, 1 % overtaken", true, reorder, 20_000, 100, "4mbit"),
        case("delay 10 ms at 500 Mbit/s", true, delay(ms(10)), 400_000, 1472, "500mbit"),
        case("losses of 5 %, emulator", true, losing(1.0), 50_000, 100, "4mbit"),
        case("losses of 5 %, ten in a row", true, losing(10.0), 50_000, 100, "4mbit"),
        case("losses of 5 %, nftables", false, losing(1.0), 50_000, 100, "4mbit"),
        case("20 Mbit/s offered 30, emulator", true, limited("20mbit"), 10_000, 1472, "30mbit"),
        case("20 Mbit/s offered 30, tbf", false, limited("20mbit"), 10_000, 1472, "30mbit"),
    ]);
    cases
}

fn measure(footprint: &Footprint, case: Case) -> io::Result<Row> {
    let Case { what, link, count, bytes, rate } = case;
    let asked = link.down.clone();
    let spec = Spec { receivers: vec![link], seed: 1, ..Spec::default() };
    let mut network = Network::build(footprint, &spec)?;
    let interval = rate.time_of(bytes + HEADERS);
    let arrivals = probe(&network.sender, &network.receivers[0], count, bytes, interval)?;
    let Losses { asked: lost, queue, own, emulator, .. } = network.losses()?;
    let late_mean_us = emulator.map(|account| account.late_mean_us);
    Ok(Row { what, asked, sent: count, arrivals, lost: [lost, queue, own], late_mean_us })
}

fn probe(
    from: &Host,
    to: &Host,
    count: u64,
    bytes: usize,
    interval: Duration,
) -> io::Result<Arrivals> {
    let this = std::env::current_exe()?;
    let this = this.to_string_lossy();
    let call = prioritised(PRIORITY, &this);
    let probe = |host: &Host| {
        let mut command = host.command(None, call[0]);
        command.args(&call[1..]).arg("probe");
        command
    };
    let mut receiver = probe(to).arg("receive").stdout(Stdio::piped()).spawn()?;
    let mut answers = BufReader::new(receiver.stdout.take().expect("piped"));
    answers.read_line(&mut String::new())?;
    let numbers = [count, bytes as u64, interval.as_nanos() as u64].map(|n| n.to_string());
    let sent = probe(from).args(["send", &to.ipv4]).args(numbers).status()?;
    let mut text = String::new();
    answers.read_to_string(&mut text)?;
    if !(receiver.wait()?.success() && sent.success()) {
        return Err(io::Error::other("a probe failed"));
    }
    Ok(serde_json::from_str(&text)?)
}
