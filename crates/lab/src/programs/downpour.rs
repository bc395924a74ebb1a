//! Downpour: never told the rate. The ticket is made beforehand, as for any order of starting.

use super::{Program, text};
use crate::stage::{Proof, RECEIVER_TRACE, SENDER_TRACE, Stage};
use serde::Deserialize;
use std::io;

pub(super) const PORT: u16 = 28_800;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "downpour",
        about: "not told the rate; encrypted, every MiB verified, signed receipts",
        run: |stage| run(stage, true, &[]),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-discard",
        about: "the same; receivers verify and keep nothing",
        run: |stage| run(stage, false, &[]),
        ..Program::PLAIN
    },
];

/// What we read of the sender's report.
#[derive(Deserialize)]
struct Report {
    session: Session,
    receivers: Vec<Receiver>,
}

#[derive(Deserialize)]
struct Session {
    duration_s: f64,
    rounds: u64,
    feedback_messages: u64,
}

#[derive(Deserialize)]
pub(super) struct Receiver {
    pub(super) state: String,
    pub(super) pull_bytes: u64,
}

/// A session; `extra` are arguments for the sender.
pub(super) fn run(stage: &mut Stage<'_>, keep: bool, extra: &[&str]) -> io::Result<()> {
    run_with(stage, keep, extra, &[])
}

/// A session, with further arguments for the sender and for each receiver.
pub(super) fn run_with(
    stage: &mut Stage<'_>,
    keep: bool,
    extra: &[&str],
    to_receive: &[&str],
) -> io::Result<()> {
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    let (ticket, report) = (text(stage.file("ticket")), text(stage.file("report.json")));
    stage.beforehand("downpour", &["ticket", "new", "--address", &listen, "--out", &ticket])?;
    stage.wait_senders()?;
    let traces = [SENDER_TRACE, RECEIVER_TRACE].map(|name| text(stage.file(name)));
    for i in 0..stage.cell.receivers {
        let (at, out, name) = (format!("@{ticket}"), text(stage.folder(i)), format!("r{i}"));
        let target = if keep { &["--out", &out][..] } else { &["--discard"] };
        let fixed = ["receive", &at, "--interface", "eth0", "--name", &name];
        let trace = if stage.traced && i == 0 { &["--trace", &traces[1]][..] } else { &[] };
        stage.receiver(i, "downpour", &[&fixed[..], target, trace, to_receive].concat())?;
    }
    stage.settle();
    if !keep {
        stage.proof = Proof::Vouched;
    }
    let (receivers, payload) = (stage.receivers_at_start().to_string(), stage.payload.to_owned());
    let payload = text(payload);
    #[rustfmt::skip]
    let fixed = [
        "send", "--interface", "eth0", "--listen", &listen, "--ticket", &ticket,
        "--receivers", &receivers, "--report", &report, &payload,
    ];
    let trace = if stage.traced { &["--trace", &traces[0]][..] } else { &[] };
    stage.sender("downpour", &[&fixed[..], trace, extra].concat())?;
    stage.wait_receivers()?;
    stage.wait_senders()?;
    let report: Report = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    let Session { duration_s, rounds, feedback_messages } = report.session;
    let pulled: u64 = report.receivers.iter().map(|receiver| receiver.pull_bytes).sum();
    let left = report.receivers.iter().filter(|receiver| receiver.state != "complete").count();
    stage.remark = format!(
        "session {duration_s:.2} s, {rounds} rounds, {feedback_messages} feedback messages, \
         {pulled} B pulled, {left} left the stream"
    );
    Ok(())
}
