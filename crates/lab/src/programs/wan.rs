//! Downpour to one receiver far away: by TCP, by UDP, and by whichever brings more. And iperf3 with as many connections.

use super::{Program, downpour, text};
use crate::stage::{Proof, Stage};
use serde_json::Value;
use std::io;

/// Connections of the programs that take several.
const CONNECTIONS: &str = "8";

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "downpour-tcp",
        about: "eight HTTPS connections, CUBIC; verified, nothing is kept",
        tools: &["downpour"],
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "tcp", Some("cubic")),
    },
    Program {
        name: "downpour-tcp-bbr",
        about: "eight HTTPS connections, BBR; verified, nothing is kept",
        tools: &["downpour"],
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "tcp", Some("bbr")),
    },
    Program {
        name: "downpour-udp",
        about: "the stream to one receiver's address; verified, nothing is kept",
        tools: &["downpour"],
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "udp", None),
    },
    Program {
        name: "downpour-wan-auto",
        about: "by UDP or TCP, not told which; verified, nothing is kept",
        tools: &["downpour"],
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "auto", Some("cubic")),
    },
    Program {
        name: "iperf3-8",
        about: "eight connections, CUBIC, memory to memory; nothing is stored or verified",
        tools: &["iperf3"],
        package: Some("iperf3"),
        shares_uplinks: false,
        run: |stage| iperf3(stage, "cubic"),
    },
    Program {
        name: "iperf3-8-bbr",
        about: "eight connections, BBR, memory to memory; nothing is stored or verified",
        tools: &["iperf3"],
        package: Some("iperf3"),
        shares_uplinks: false,
        run: |stage| iperf3(stage, "bbr"),
    },
];

fn run(stage: &mut Stage<'_>, path: &str, congestion: Option<&str>) -> io::Result<()> {
    let report = text(stage.file("receiver.json"));
    let mut receive = vec!["--connections", CONNECTIONS, "--report", &report];
    receive.extend(congestion.iter().flat_map(|name| ["--congestion", name]));
    downpour::run_with(stage, false, &["--path", path], &receive)?;
    let told: Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    let connections = told["transfer"]["connections"].as_array().map_or(0, Vec::len);
    let ranges = told["transfer"]["ranges"].as_u64().unwrap_or_default();
    stage.remark.push_str(&format!(", {connections} connections, {ranges} ranges"));
    Ok(())
}

fn iperf3(stage: &mut Stage<'_>, congestion: &str) -> io::Result<()> {
    stage.proof = Proof::Unproved;
    stage.receiver(0, "iperf3", &["--server", "--one-off"])?;
    stage.settle();
    // So many in all, over all connections.
    let (bytes, host) = (stage.cell.size.0.to_string(), stage.network.receivers[0].ipv4.clone());
    let fixed = ["--client", &host, "--bytes", &bytes, "--parallel", CONNECTIONS];
    stage.sender("iperf3", &[&fixed[..], &["--congestion", congestion]].concat())?;
    stage.wait_senders()?;
    stage.all_delivered();
    Ok(())
}
