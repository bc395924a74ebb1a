//! The papers' protocols, as `downpour send --profile …` speaks them. What experiments add are the sender's options.

use super::downpour::PORT;
use super::{Program, text};
use crate::stage::{PAYLOAD, Proof, Stage};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

/// Share of the link's rate to which `fmtp` is shaped, as circuits are by the paper.
pub(super) const SHAPED: f64 = 0.95;
pub(super) const GROUP: &str = "239.192.7.7:28819";
/// What the foreign TCP transfer of table 1 carries, and how long it waits until the other is in its stride.
const FTP_BYTES: u64 = 7_000_000;
const STRIDE: Duration = Duration::from_secs(5);

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "downpour-bmtp",
        about: "profile bmtp: NAKs by chance, 1.05 × the slowest receiver's rate; starts at 200 packets/s unless told",
        run: |stage| bmtp(stage, &[]),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-bmtp-rejected",
        about: "the same with the status rule that the paper rejected",
        run: |stage| bmtp(stage, &["--rejected-rule"]),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-afdp",
        about: "profile afdp by multicast: an interval that requests make longer and time shorter; at least 10 ms",
        run: |stage| afdp(stage, &["--mode", "multicast", "--group", GROUP]),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-afdp-broadcast",
        about: "the same by broadcast",
        run: |stage| afdp(stage, &["--mode", "broadcast"]),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-afdp-unicast",
        about: "the same by unicast to each",
        run: |stage| afdp(stage, &["--mode", "unicast"]),
        ..Program::PLAIN
    },
    Program {
        name: "downpour-fmtp",
        about: "profile fmtp: shaped to 95 % of the rate, repair by TCP to each",
        run: fmtp,
        ..Program::PLAIN
    },
    beside("table1-idle", |stage| table_1(stage, None)),
    beside("table1-tcp", |stage| table_1(stage, Some(tcp_to_first))),
    beside("table1-afdp-broadcast", |stage| {
        table_1(stage, Some(|stage| publish(stage, &["--mode", "broadcast"])))
    }),
    beside("table1-afdp-unicast", |stage| {
        table_1(stage, Some(|stage| publish(stage, &["--mode", "unicast"])))
    }),
    beside("table1-afdp-multicast", |stage| {
        table_1(stage, Some(|stage| publish(stage, &["--mode", "multicast", "--group", GROUP])))
    }),
    beside("table1-auto", |stage| table_1(stage, Some(|stage| engine(stage, "auto")))),
    beside("table1-background", |stage| table_1(stage, Some(|stage| engine(stage, "background")))),
];

/// Cooperstock 1996, table 1: 7.0 MB by TCP to the last receiver while something else is sent to the others. The run
/// ends with the foreign transfer; its throughput is the figure.
const fn beside(name: &'static str, run: fn(&mut Stage<'_>) -> io::Result<()>) -> Program {
    Program {
        name,
        about: "7.0 MB by TCP to the last receiver beside what the name says to the others: Mbit/s of that TCP",
        tools: &["downpour", "lab"],
        receivers: (2, usize::MAX),
        run,
        ..Program::PLAIN
    }
}

/// What we read of the sender's report.
#[derive(Deserialize)]
struct Report {
    duration_s: f64,
    segments: u64,
    repair_segments: u64,
    requests_served: u64,
    status_packets: u64,
    group_estimate: Option<f64>,
}

fn bmtp(stage: &mut Stage<'_>, more: &[&str]) -> io::Result<()> {
    for i in 0..stage.cell.receivers {
        let (out, times) = (text(stage.folder(i)), text(stage.file(&format!("times{i}.csv"))));
        #[rustfmt::skip]
        let fixed = [
            "receive", "--profile", "bmtp", "--group", GROUP, "--interface", "eth0", "--out", &out,
            "--as", PAYLOAD, "--times", &times,
        ];
        stage.receiver(i, "downpour", &[&fixed[..], more].concat())?;
    }
    stage.settle();
    send(stage, &["--profile", "bmtp", "--interface", "eth0", "--group", GROUP])
}

fn afdp(stage: &mut Stage<'_>, mode: &[&str]) -> io::Result<()> {
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    for i in 0..stage.cell.receivers {
        let out = text(stage.folder(i));
        #[rustfmt::skip]
        stage.receiver(i, "downpour", &[
            "receive", "--profile", "afdp", "--sender", &listen, "--interface", "eth0", "--out", &out,
        ])?;
    }
    stage.settle();
    let receivers = stage.receivers_at_start().to_string();
    let fixed = ["--profile", "afdp", "--listen", &listen, "--receivers", &receivers];
    // By unicast the routes decide.
    let interface: &[&str] = if mode[1] == "unicast" { &[] } else { &["--interface", "eth0"] };
    send(stage, &[&fixed[..], mode, interface].concat())
}

fn fmtp(stage: &mut Stage<'_>) -> io::Result<()> {
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    let rate = format!("{}kbit", stage.told_kbit(SHAPED));
    for i in 0..stage.cell.receivers {
        let out = text(stage.folder(i));
        #[rustfmt::skip]
        stage.receiver(i, "downpour", &[
            "receive", "--profile", "fmtp", "--sender", &listen, "--group", GROUP, "--interface", "eth0",
            "--out", &out, "--link-rate", &rate,
        ])?;
    }
    stage.settle();
    let receivers = stage.receivers_at_start().to_string();
    #[rustfmt::skip]
    let options = [
        "--profile", "fmtp", "--listen", &listen, "--receivers", &receivers, "--group", GROUP,
        "--interface", "eth0", "--rate", &rate,
    ];
    send(stage, &options)
}

fn send(stage: &mut Stage<'_>, options: &[&str]) -> io::Result<()> {
    let (payload, report) = (text(stage.payload.to_owned()), text(stage.file("report.json")));
    let fixed = ["send", &payload, "--report", &report];
    stage.sender("downpour", &[&fixed[..], options].concat())?;
    stage.wait_receivers()?;
    stage.wait_senders()?;
    let report: Report = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    stage.remark = format!(
        "session {:.2} s, {} segments, {} again, {} requests, {} status packets, group estimate {:.1}",
        report.duration_s,
        report.segments,
        report.repair_segments,
        report.requests_served,
        report.status_packets,
        report.group_estimate.unwrap_or_default(),
    );
    Ok(())
}

/// Receivers but the last.
const fn subscribers(stage: &Stage<'_>) -> usize {
    stage.cell.receivers - 1
}

fn publish(stage: &mut Stage<'_>, mode: &[&str]) -> io::Result<()> {
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    for i in 0..subscribers(stage) {
        let out = text(stage.folder(i));
        #[rustfmt::skip]
        stage.receiver(i, "downpour", &[
            "receive", "--profile", "afdp", "--sender", &listen, "--interface", "eth0", "--out", &out,
        ])?;
    }
    let receivers = subscribers(stage).to_string();
    let payload = text(stage.payload.to_owned());
    #[rustfmt::skip]
    let fixed = [
        "send", &payload, "--profile", "afdp", "--listen", &listen, "--receivers", &receivers,
    ];
    let interface: &[&str] = if mode[1] == "unicast" { &[] } else { &["--interface", "eth0"] };
    stage.sender("downpour", &[&fixed[..], mode, interface].concat())
}

fn engine(stage: &mut Stage<'_>, controller: &str) -> io::Result<()> {
    let listen = format!("{}:{PORT}", stage.network.sender.ipv4);
    let ticket = text(stage.file("ticket"));
    stage.beforehand("downpour", &["ticket", "new", "--address", &listen, "--out", &ticket])?;
    stage.wait_senders()?;
    for i in 0..subscribers(stage) {
        let (at, name) = (format!("@{ticket}"), format!("r{i}"));
        let options = ["receive", &at, "--interface", "eth0", "--name", &name, "--discard"];
        stage.receiver(i, "downpour", &options)?;
    }
    let receivers = subscribers(stage).to_string();
    let payload = text(stage.payload.to_owned());
    #[rustfmt::skip]
    let options = [
        "send", "--interface", "eth0", "--listen", &listen, "--ticket", &ticket, "--receivers",
        &receivers, "--controller", controller, &payload,
    ];
    stage.sender("downpour", &options)
}

/// What rcp was in the paper: a TCP transfer to one host.
fn tcp_to_first(stage: &mut Stage<'_>) -> io::Result<()> {
    let (copy, payload) = (text(stage.copy(0)), text(stage.payload.to_owned()));
    stage.receiver(0, "lab", &["tcp", "receive", &copy])?;
    stage.wait_listening(0..1)?;
    let host = stage.network.receivers[0].ipv4.clone();
    stage.sender("lab", &["tcp", "send", "--congestion", "cubic", "--file", &payload, &host])
}

/// How a transfer is started, its sender last.
type Other = fn(&mut Stage<'_>) -> io::Result<()>;

/// Starts the other transfer, then measures the foreign one.
fn table_1(stage: &mut Stage<'_>, other: Option<Other>) -> io::Result<()> {
    (stage.proof, stage.net_admin) = (Proof::Unproved, true);
    let last = subscribers(stage);
    let (file, copy) = (stage.file("ftp"), text(stage.copy(last)));
    io::copy(&mut File::open(stage.payload)?.take(FTP_BYTES), &mut File::create(&file)?)?;
    stage.receiver(last, "lab", &["tcp", "receive", &copy])?;
    stage.wait_listening(last..last + 1)?;
    match other {
        Some(other) => {
            other(stage)?;
            stage.pass(STRIDE)?;
        }
        None => stage.start_clock(),
    }
    let host = &stage.network.receivers[last].ipv4;
    let begun = Instant::now();
    stage.aside("lab", &["tcp", "send", "--congestion", "cubic", "--file", &text(file), host])?;
    let to_its_end = stage.wait_aside()? || other.is_none();
    stage.figures.late_mbit = Some(foreign_mbit(begun.elapsed(), to_its_end)?);
    Ok(())
}

/// What the foreign transfer had. Alone for a part of its time, it tells nothing of how a link is divided.
fn foreign_mbit(took: Duration, to_its_end: bool) -> io::Result<f64> {
    let mbit = FTP_BYTES as f64 * 8.0 / 1e6 / took.as_secs_f64();
    if !to_its_end {
        return Err(io::Error::other(format!(
            "the other transfer ended before the foreign one ({mbit:.2} Mbit/s, alone in the end): give it a larger size"
        )));
    }
    Ok(mbit)
}

#[cfg(test)]
mod tests {
    use super::foreign_mbit;
    use std::time::Duration;

    #[test]
    fn a_foreign_transfer_that_was_alone_in_the_end_has_no_figure() {
        let took = Duration::from_secs(50);
        assert_eq!(foreign_mbit(took, true).unwrap(), 1.12);
        assert!(foreign_mbit(took, false).unwrap_err().to_string().contains("larger size"));
    }
}
