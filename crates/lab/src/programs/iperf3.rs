//! iperf3: the same number of bytes to each receiver by TCP, from memory to nowhere. A ceiling, not a delivery.
//!
//! It is told how many bytes to send, ends when the sender's kernel has taken them, and throws away what still waits there then.
//! So the servers are asked what came, and the time that the rest would have taken is added.

use super::{Program, text};
use crate::stage::{Proof, Stage};
use serde_json::Value;
use std::io;
use std::time::Duration;

pub(super) const PROGRAMS: &[Program] = &[Program {
    name: "iperf3",
    about: "memory to memory, one connection to each receiver at once, CUBIC; nothing is stored or verified; what had not come at its end is added, at the rate of what had",
    tools: &["iperf3"],
    package: Some("iperf3"),
    run,
    ..Program::PLAIN
}];

/// What came at the servers, all together, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Came {
    bytes: u64,
    seconds: f64,
}

fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    stage.net_admin = true;
    let bytes = stage.cell.size.0.to_string();
    let hosts: Vec<_> = stage.network.receivers.iter().map(|host| host.ipv4.clone()).collect();
    let client = |host| vec!["--client", host, "--bytes", &bytes, "--congestion", "cubic"];
    let clients: Vec<_> = hosts.iter().map(|host| client(host.as_str())).collect();
    measure(stage, &clients)
}

/// Runs a client for each receiver, from the first on, and adds what is missing.
pub(super) fn measure(stage: &mut Stage<'_>, clients: &[Vec<&str>]) -> io::Result<()> {
    stage.proof = Proof::Unproved;
    let told: Vec<_> = (0..clients.len()).map(|i| stage.file(&format!("iperf3-{i}"))).collect();
    for (i, log) in told.iter().enumerate() {
        let log = text(log.clone());
        stage.receiver(i, "iperf3", &["--server", "--one-off", "--json", "--logfile", &log])?;
    }
    stage.settle();
    for client in clients {
        stage.sender("iperf3", client)?;
    }
    stage.wait_senders()?;
    stage.all_delivered();
    stage.wait_ends()?;
    let mut came = Came::default();
    for log in told {
        let Came { bytes, seconds } = Came::read(&std::fs::read_to_string(log)?)?;
        came = Came { bytes: came.bytes + bytes, seconds: came.seconds.max(seconds) };
    }
    let asked = stage.cell.size.0 * clients.len() as u64;
    stage.all_later(came.rest(asked), came.bytes as f64 / asked as f64);
    stage.remark = format!("{} of {asked} B had come when it ended", came.bytes);
    Ok(())
}

impl Came {
    /// From what a server says at its end.
    fn read(told: &str) -> io::Result<Self> {
        let told: Value = serde_json::from_str(told)?;
        let sum = &told["end"]["sum_received"];
        match (sum["bytes"].as_u64(), sum["seconds"].as_f64()) {
            (Some(bytes @ 1..), Some(seconds)) => Ok(Self { bytes, seconds }),
            _ => Err(io::Error::other("iperf3's server does not say that anything came")),
        }
    }

    /// How long what is missing of `asked` takes at the rate of what came.
    fn rest(self, asked: u64) -> Duration {
        let missing = asked.saturating_sub(self.bytes) as f64;
        Duration::from_secs_f64(self.seconds * missing / self.bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Came;
    use std::time::Duration;

    #[test]
    fn what_had_not_come_when_it_ended_takes_its_time() {
        // 4 MiB over 20 Mbit/s, as iperf 3.12 told it.
        let told = r#"{"end": {
            "sum_sent": {"seconds": 1.475273, "bytes": 0, "sender": false},
            "sum_received": {"seconds": 1.475273, "bytes": 3540360, "sender": false}
        }}"#;
        let came = Came::read(told).unwrap();
        assert_eq!(came, Came { bytes: 3_540_360, seconds: 1.475_273 });
        // 653,944 B at 19.198 Mbit/s.
        assert_eq!(came.rest(4 << 20).as_millis(), 272);
        assert_eq!(came.rest(3_000_000), Duration::ZERO);
        let nothing = r#"{"end": {"sum_received": {"seconds": 1.0, "bytes": 0}}}"#;
        assert!(Came::read(nothing).is_err() && Came::read("{}").is_err());
    }
}
