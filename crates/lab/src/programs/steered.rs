//! Downpour's transfers by TCP as they may be set: by hand, by the kernel, by a plan, by the closed loop. As many files at
//! once as the cell says, each a session of its own between the same two machines.

use super::downpour::PORT;
use super::{Program, text};
use crate::stage::{Proof, Stage};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

const fn program(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage<'_>) -> io::Result<()>,
) -> Program {
    Program { name, about, receivers: (1, 1), run, ..Program::PLAIN }
}

/// One whose plan is told the rate.
const fn by_plan(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage<'_>) -> io::Result<()>,
) -> Program {
    Program { needs_rate: true, ..program(name, about, run) }
}

pub(super) const PROGRAMS: &[Program] = &[
    program("wan-64k", "so many connections, socket buffers of 64 KiB", |stage| {
        let connections = stage.cell.connections().to_string();
        run(stage, &["--connections", &connections, "--socket-buffer", "64KiB"])
    }),
    program("wan-kernel", "so many connections, buffers tuned by the kernel", |stage| {
        let connections = stage.cell.connections().to_string();
        run(stage, &["--connections", &connections])
    }),
    by_plan("wan-bdp-1", "so many connections, buffers of 1 x rate x round trip in all", |stage| {
        planned(stage, "bdp-1")
    }),
    by_plan("wan-bdp-2", "so many connections, buffers of 2 x rate x round trip in all", |stage| {
        planned(stage, "bdp-2")
    }),
    by_plan("wan-bdp-3", "so many connections, buffers of 3 x rate x round trip in all", |stage| {
        planned(stage, "bdp-3")
    }),
    program("wan-loop", "connections and pacing by the closed loop, told nothing", |stage| {
        run(stage, &[])
    }),
    program("wan-loop-planned", "the same, and the plan chooses the congestion control", |stage| {
        carry(stage, &[])
    }),
    program("wan-1", "one connection", |stage| run(stage, &["--connections", "1"])),
    program("wan-8", "eight connections", |stage| run(stage, &["--connections", "8"])),
    program("wan-16", "sixteen connections", |stage| run(stage, &["--connections", "16"])),
    program("wan-32", "32 connections", |stage| run(stage, &["--connections", "32"])),
    program("wan-64", "64 connections", |stage| run(stage, &["--connections", "64"])),
];

/// By the plan, which is told what the link is, but not who else uses it.
fn planned(stage: &mut Stage<'_>, policy: &str) -> io::Result<()> {
    let connections = stage.cell.connections().to_string();
    let rate = stage.cell.rate.map_or(0, |rate| rate.0).to_string() + "bit";
    let rtt = format!("{}ms", 2.0 * stage.cell.delay.ms());
    let set = ["--policy", policy, "--path-rate", &rate, "--path-rtt", &rtt];
    run(stage, &[&["--connections", &connections], &set[..]].concat())
}

/// With CUBIC, so that programs differ in nothing but what is set.
fn run(stage: &mut Stage<'_>, set: &[&str]) -> io::Result<()> {
    carry(stage, &[&["--congestion", "cubic"], set].concat())
}

fn carry(stage: &mut Stage<'_>, set: &[&str]) -> io::Result<()> {
    stage.net_admin = true;
    let all: Vec<_> = (0..stage.cell.transfers)
        .map(|number| {
            let listen = format!("{}:{}", stage.network.sender.ipv4, PORT + 10 * number);
            let file = |name: &str| text(stage.file(&format!("{name}{number}")));
            (listen, file("ticket"), file("receiver.json"), file("out"))
        })
        .collect();
    for (listen, ticket, ..) in &all {
        stage.beforehand("downpour", &["ticket", "new", "--address", listen, "--out", ticket])?;
        stage.wait_senders()?;
    }
    // A disk can bind only where something is stored.
    let keeps = stage.happenings.iter().any(|happening| happening.writes_take.is_some());
    stage.proof = if keeps { Proof::Unproved } else { Proof::Vouched };
    for (_, ticket, report, out) in &all {
        let at = format!("@{ticket}");
        let fixed = ["receive", &at, "--interface", "eth0"];
        let target = if keeps { &["--out", out][..] } else { &["--discard"] };
        stage.receiver(0, "downpour", &[&fixed, target, &["--report", report], set].concat())?;
    }
    stage.settle();
    let payload = text(stage.payload.to_owned());
    for (listen, ticket, ..) in &all {
        #[rustfmt::skip]
        let fixed = [
            "send", "--interface", "eth0", "--listen", listen, "--ticket", ticket, "--receivers", "1",
            "--path", "tcp", &payload,
        ];
        stage.sender("downpour", &fixed)?;
    }
    if let Some(from) = stage.cell.measured_from {
        let rate = stage.measure(from.0, stage.cell.measured_for.0)?;
        stage.figures.late_mbit = Some(rate / 1e6);
        stage.figures.binds = Some(bound(stage)?);
        return Ok(());
    }
    stage.wait_receivers()?;
    stage.wait_senders()?;
    let mut words = BTreeSet::new();
    for (.., report, _) in &all {
        let told: Value = serde_json::from_str(&std::fs::read_to_string(report)?)?;
        let opened = told["transfer"]["connections"].as_array().map_or(0, Vec::len);
        let last = told["transfer"]["steered"].as_array().and_then(|all| all.last());
        stage.remark += &format!("{opened} connections");
        if let Some(last) = last {
            stage.remark += &format!(", in the end {}", last["connections"]);
            words.insert(word(last));
        }
        stage.remark += "; ";
    }
    stage.figures.binds = Some(words.into_iter().collect::<Vec<_>>().join(", "));
    Ok(())
}

/// What held the connections back while the cell was measured, which has just ended: each word once, in turn, by what the
/// receiver wrote of its decisions.
fn bound(stage: &Stage<'_>) -> io::Result<String> {
    let begun = SystemTime::now() - stage.cell.measured_for.0;
    let begun_us = begun.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    let history = stage.file("r0.home/state/links/history.ndjson");
    // It is not there when nothing was decided.
    let history = std::fs::read_to_string(history).unwrap_or_default();
    let mut words: Vec<String> = Vec::new();
    for line in history.lines() {
        let decision: Value = serde_json::from_str(line)?;
        if decision["at_us"].as_u64().is_some_and(|at_us| at_us < begun_us) {
            words.clear();
        }
        if !words.contains(&word(&decision)) {
            words.push(word(&decision));
        }
    }
    Ok(words.join(", "))
}

/// What binds, of a decision.
fn word(decision: &Value) -> String {
    decision["binding"].as_str().unwrap_or_default().to_owned()
}
