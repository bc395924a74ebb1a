//! iperf3: the same number of bytes to each receiver by TCP, from memory to nowhere. A ceiling, not a delivery.

use super::Program;
use crate::stage::{Proof, Stage};
use std::io;

pub(super) const PROGRAMS: &[Program] = &[Program {
    name: "iperf3",
    about: "memory to memory, one connection to each receiver at once; nothing is stored or verified",
    tools: &["iperf3"],
    package: Some("iperf3"),
    shares_uplinks: false,
    run,
}];

fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    stage.proof = Proof::Unproved;
    for i in 0..stage.cell.receivers {
        stage.receiver(i, "iperf3", &["--server", "--one-off"])?;
    }
    stage.settle();
    let bytes = stage.cell.size.0.to_string();
    let hosts: Vec<_> = stage.network.receivers.iter().map(|host| host.ipv4.clone()).collect();
    for host in hosts {
        stage.sender("iperf3", &["--client", &host, "--bytes", &bytes])?;
    }
    stage.wait_senders()?;
    stage.all_delivered();
    Ok(())
}
