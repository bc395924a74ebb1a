//! udpcast: one stream, acknowledged slice by slice; or one-way with parity for a loss known beforehand.

use super::{Program, text, tool};
use crate::stage::{Proof, Stage};
use std::io;

/// Its own headers are not in the rate that it is told.
const FEC_SHARE: f64 = 0.96;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "udpcast",
        about: "full duplex; finds the rate by acknowledgement",
        tools: &["udp-sender", "udp-receiver"],
        package: Some("udpcast"),
        shares_uplinks: false,
        run: |stage| run(stage, false),
    },
    Program {
        name: "udpcast-discard",
        about: "the same; receivers write to a pipe, where it is compared with the payload and not kept",
        tools: &["udp-sender", "udp-receiver", "lab", "sh"],
        package: Some("udpcast"),
        shares_uplinks: false,
        run: |stage| {
            stage.proof = Proof::Vouched;
            run(stage, false)
        },
    },
    Program {
        name: "udpcast-fec",
        about: "one-way; told 96 % of the rate, and the loss: 8, 12 or 26 parity slices per 128",
        tools: &["udp-sender", "udp-receiver"],
        package: Some("udpcast"),
        shares_uplinks: false,
        run: |stage| run(stage, true),
    },
];

fn run(stage: &mut Stage<'_>, fec: bool) -> io::Result<()> {
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
    let fixed = ["--file", &payload, "--interface", "eth0", "--nokbd", "--no-progress"];
    let (receivers, lossy) = (stage.cell.receivers.to_string(), stage.cell.loss > 0.0);
    let (rate, parity) = (format!("{}k", stage.told_kbit(FEC_SHARE)), parity(stage.cell.loss));
    let more: Vec<&str> = if fec {
        #[rustfmt::skip]
        let more = [
            "--async", "--fec", parity, "--max-bitrate", &rate, "--autostart", "2",
            "--rexmit-hello-interval", "100",
        ];
        more.to_vec()
    } else {
        #[rustfmt::skip]
        let more = [
            "--full-duplex", "--min-receivers", &receivers, "--max-wait", "60",
            "--start-timeout", "60", "--rexmit-hello-interval", "200",
        ];
        // Its join is not safe against loss: without this it starts before all are in.
        let wait: &[&str] = if lossy { &["--min-wait", "1"] } else { &[] };
        [&more[..], wait].concat()
    };
    stage.sender("udp-sender", &[&fixed[..], &more].concat())?;
    stage.wait_receivers()?;
    stage.wait_senders()
}

/// The least that was seen to carry the loss.
fn parity(loss: f64) -> &'static str {
    match loss {
        0.0 => "8x8/128",
        loss if loss <= 0.02 => "8x12/128",
        _ => "8x26/128",
    }
}
