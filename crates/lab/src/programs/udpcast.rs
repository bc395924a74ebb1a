//! udpcast: one stream, acknowledged slice by slice; or one-way with parity for a loss known beforehand.
//!
//! Its receivers linger half a second after they have all: what counts is when they had it.

use super::{Program, text, tool};
use crate::experiment::Cell;
use crate::sink;
use crate::stage::{Proof, Stage};
use std::io;

/// Of the link: the rate, where it has one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Rate,
    RateAndLoss,
}

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "udpcast",
        about: "full duplex, paced by acknowledgement; told what takes 99.5 % of the rate where there is one; with loss it waits up to 1 s for who joins",
        tools: &["udp-sender", "udp-receiver"],
        package: Some("udpcast"),
        run: |stage| run(stage, Told::Rate),
        ..Program::PLAIN
    },
    Program {
        name: "udpcast-untold",
        about: "the same, told no rate: acknowledgements and a full socket buffer hold it back",
        tools: &["udp-sender", "udp-receiver"],
        package: Some("udpcast"),
        run: |stage| run(stage, Told::Nothing),
        ..Program::PLAIN
    },
    Program {
        name: "udpcast-discard",
        about: "the same; receivers write to a pipe, where it is compared with the payload and not kept",
        tools: &["udp-sender", "udp-receiver", "lab", "sh"],
        package: Some("udpcast"),
        run: |stage| {
            stage.proof = Proof::Vouched;
            run(stage, Told::Rate)
        },
        ..Program::PLAIN
    },
    Program {
        name: "udpcast-fec",
        about: "one-way; told what takes 99.5 % of the rate, and the loss: 8, 12 or 26 parity slices per 128",
        tools: &["udp-sender", "udp-receiver"],
        package: Some("udpcast"),
        run: |stage| run(stage, Told::RateAndLoss),
        ..Program::PLAIN
    },
];

fn run(stage: &mut Stage<'_>, told: Told) -> io::Result<()> {
    let payload = text(stage.payload.to_owned());
    for i in 0..stage.cell.receivers {
        #[rustfmt::skip]
        let fixed = [
            "--interface", "eth0", "--nokbd", "--no-progress", "--nosync",
            "--rcvbuf", "4m", "--start-timeout", "60", "--receive-timeout", "30",
        ];
        if stage.proof == Proof::Compared {
            let copy = text(stage.copy(i));
            stage.receiver(i, "udp-receiver", &[&["--file", &copy], &fixed[..]].concat())?;
        } else {
            let lab = text(tool("lab").unwrap_or_default());
            let script =
                "lab=$1; payload=$2; shift 2; udp-receiver \"$@\" | \"$lab\" sink \"$payload\"";
            let shell = ["-c", script, "sh", &lab, &payload];
            stage.receiver(i, "sh", &[&shell[..], &fixed].concat())?;
        }
    }
    stage.settle();
    let share = stage.cell.rate.map_or(1.0, |rate| share(rate.0 as f64));
    let rate = format!("{}k", stage.told_kbit(share));
    let args = sending((stage.cell, stage.network.loss), &payload, &rate, told);
    stage.sender("udp-sender", &args.iter().map(String::as_str).collect::<Vec<_>>())?;
    stage.wait_whole(sink::WHOLE)?;
    stage.wait_senders()
}

/// Share of the link's rate that it must be told to take all but half a percent of it. Its governor (rate-limit.c) counts IP's and
/// UDP's headers, and rounds down by how much it moves its clock on: in effect each datagram has a microsecond more than has passed.
fn share(rate: f64) -> f64 {
    let datagram_s = 1514.0 * 8.0 / (0.995 * rate);
    1500.0 * 8.0 / (datagram_s + 1e-6) / rate
}

/// What the sender is told, where a receiver loses so much at most.
fn sending((cell, loss): (&Cell, f64), payload: &str, rate: &str, told: Told) -> Vec<String> {
    let fec = told == Told::RateAndLoss;
    let receivers = cell.receivers.to_string();
    let fixed = ["--file", payload, "--interface", "eth0", "--nokbd", "--no-progress"];
    // Without acknowledgements it must be told one.
    let paced = fec || told == Told::Rate && cell.rate.is_some();
    let pace: &[&str] = if paced { &["--max-bitrate", rate] } else { &[] };
    #[rustfmt::skip]
    let more: &[&str] = if fec {
        &[
            "--async", "--fec", parity(loss), "--autostart", "2", "--rexmit-hello-interval", "100",
        ]
    } else {
        &[
            "--full-duplex", "--min-receivers", &receivers, "--max-wait", "60",
            "--start-timeout", "60", "--rexmit-hello-interval", "200",
        ]
    };
    // Its join is not safe against loss: without this it starts before all are in.
    let wait: &[&str] = if !fec && loss > 0.0 { &["--min-wait", "1"] } else { &[] };
    [&fixed[..], pace, more, wait].concat().into_iter().map(str::to_owned).collect()
}

/// The least that was seen to carry the loss.
fn parity(loss: f64) -> &'static str {
    match loss {
        0.0 => "8x8/128",
        loss if loss <= 0.02 => "8x12/128",
        _ => "8x26/128",
    }
}

#[cfg(test)]
mod tests {
    use super::{Told, sending, share};
    use crate::experiment::Cell;
    use crate::units::Rate;

    #[test]
    fn it_is_told_less_of_a_faster_link() {
        // Told 96.7 of 100 Mbit/s it sent frames of 98.4.
        let shares = [20e6, 100e6, 250e6].map(|rate| (share(rate) * 1000.0).round());
        assert_eq!(shares, [984.0, 978.0, 966.0]);
    }

    #[test]
    fn it_is_told_the_loss_of_the_worst_link() {
        let cell = Cell { rate: Some(Rate(100_000_000)), receivers: 8, ..Cell::default() };
        let args = |loss, told| sending((&cell, loss), "file", "96000k", told).join(" ");
        assert!(args(0.1, Told::Rate).contains("--min-wait 1"));
        assert!(!args(0.0, Told::Rate).contains("--min-wait"));
        assert!(args(0.1, Told::RateAndLoss).contains("--fec 8x26/128"));
        assert!(args(0.0, Told::RateAndLoss).contains("--fec 8x8/128"));
    }

    #[test]
    fn it_is_told_the_rate_of_a_link_that_has_one() {
        let cell = Cell { rate: Some(Rate(100_000_000)), receivers: 8, ..Cell::default() };
        for told in [Told::Rate, Told::RateAndLoss] {
            let args = sending((&cell, 0.0), "file", "96000k", told);
            assert!(args.windows(2).any(|pair| pair == ["--max-bitrate", "96000k"]), "{args:?}");
        }
        let unlimited = Cell { rate: None, ..cell.clone() };
        for (cell, told) in [(&cell, Told::Nothing), (&unlimited, Told::Rate)] {
            let args = sending((cell, 0.0), "file", "9600000k", told);
            assert!(!args.iter().any(|arg| arg == "--max-bitrate"), "{args:?}");
        }
    }
}
