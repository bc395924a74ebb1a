//! Downpour to one receiver far away: by TCP, by UDP, and by whichever brings more. And iperf3 and GridFTP with as many
//! connections and the same socket buffers.

use super::{Program, downpour, iperf3, text};
use crate::stage::{Proof, Stage};
use serde_json::Value;
use std::io;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "downpour-tcp",
        about: "HTTPS connections, CUBIC; verified, nothing is kept",
        run: |stage| run(stage, "tcp", Some("cubic")),
        receivers: (1, 1),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-tcp-bbr",
        about: "HTTPS connections, BBR; verified, nothing is kept",
        run: |stage| run(stage, "tcp", Some("bbr")),
        receivers: (1, 1),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-udp",
        about: "the stream to one receiver's address; verified, nothing is kept",
        run: |stage| run(stage, "udp", None),
        receivers: (1, 1),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-wan-auto",
        about: "by UDP or TCP, not told which; verified, nothing is kept",
        run: |stage| run(stage, "auto", Some("cubic")),
        receivers: (1, 1),
        ..Program::PLAIN
    },
    Program {
        name: "iperf3-wan",
        about: "as many connections, CUBIC, memory to memory; nothing is stored or verified; what had not come at its end is added, at the rate of what had",
        tools: &["iperf3"],
        package: Some("iperf3"),
        run: |stage| iperf3_wan(stage, "cubic"),
        receivers: (1, 1),
        ..Program::PLAIN
    },
    Program {
        name: "iperf3-wan-bbr",
        about: "as many connections, BBR, memory to memory; nothing is stored or verified; what had not come at its end is added, at the rate of what had",
        tools: &["iperf3"],
        package: Some("iperf3"),
        run: |stage| iperf3_wan(stage, "bbr"),
        receivers: (1, 1),
        ..Program::PLAIN
    },
    Program {
        name: "gridftp",
        about: "globus-url-copy with as many connections, the kernel's congestion control; nothing is stored or verified",
        tools: &["globus-url-copy", "globus-gridftp-server"],
        package: Some("globus-gass-copy-progs"),
        run: gridftp,
        receivers: (1, 1),
        ..Program::PLAIN
    },
];

fn run(stage: &mut Stage<'_>, path: &str, congestion: Option<&str>) -> io::Result<()> {
    stage.net_admin = true;
    let report = text(stage.file("receiver.json"));
    let connections = stage.cell.connections().to_string();
    let window = window(stage).map(|bytes| format!("{bytes}B"));
    let mut receive = vec!["--connections", &connections, "--report", &report];
    receive.extend(congestion.iter().flat_map(|name| ["--congestion", name]));
    receive.extend(window.iter().flat_map(|bytes| ["--socket-buffer", bytes]));
    downpour::run_with(stage, false, &["--path", path], &receive)?;
    let told: Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    let connections = told["transfer"]["connections"].as_array().map_or(0, Vec::len);
    let ranges = told["transfer"]["ranges"].as_u64().unwrap_or_default();
    stage.remark.push_str(&format!(", {connections} connections, {ranges} ranges"));
    Ok(())
}

fn iperf3_wan(stage: &mut Stage<'_>, congestion: &str) -> io::Result<()> {
    stage.net_admin = true;
    // So many in all, over all connections.
    let (bytes, host) = (stage.cell.size.0.to_string(), stage.network.receivers[0].ipv4.clone());
    let (connections, window) = (stage.cell.connections().to_string(), window(stage));
    let fixed = ["--client", &host, "--bytes", &bytes, "--parallel", &connections];
    let mut options = [&fixed[..], &["--congestion", congestion]].concat();
    options.extend(window.iter().flat_map(|bytes| ["--window", bytes]));
    iperf3::measure(stage, &[options])
}

fn gridftp(stage: &mut Stage<'_>) -> io::Result<()> {
    stage.proof = Proof::Unproved;
    let host = stage.network.receivers[0].ipv4.clone();
    let anyone = ["-allow-anonymous", "-anonymous-user", "nobody", "-anonymous-group", "nogroup"];
    let place = ["-single", "-port", "2811", "-data-interface", &host];
    stage.receiver(0, "globus-gridftp-server", &[&anyone[..], &place].concat())?;
    stage.settle();
    let to = format!("ftp://{host}:2811/dev/null");
    let from = format!("file://{}", stage.payload.display());
    let (connections, window) = (stage.cell.connections().to_string(), window(stage));
    let mut options = vec!["-nodcau", "-parallel", &connections];
    options.extend(window.iter().flat_map(|bytes| ["-tcp-buffer-size", bytes]));
    options.extend([from.as_str(), &to]);
    stage.sender("globus-url-copy", &options)?;
    stage.wait_senders()?;
    stage.all_delivered();
    Ok(())
}

fn window(stage: &Stage<'_>) -> Option<String> {
    stage.cell.window.map(|window| window.0.to_string())
}
