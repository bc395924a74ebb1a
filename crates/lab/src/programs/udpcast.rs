//! udpcast: one stream, acknowledged slice by slice; or one-way with parity for a loss known beforehand.

use super::{Program, text};
use crate::stage::Stage;
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
        name: "udpcast-fec",
        about: "one-way; told 96 % of the rate, and the loss: 8, 12 or 26 parity slices per 128",
        tools: &["udp-sender", "udp-receiver"],
        package: Some("udpcast"),
        shares_uplinks: false,
        run: |stage| run(stage, true),
    },
];

fn run(stage: &mut Stage<'_>, fec: bool) -> io::Result<()> {
    for i in 0..stage.cell.receivers {
        let copy = text(stage.copy(i));
        #[rustfmt::skip]
        stage.receiver(i, "udp-receiver", &[
            "--file", &copy, "--interface", "eth0", "--nokbd", "--no-progress", "--nosync",
            "--rcvbuf", "4m", "--start-timeout", "60", "--receive-timeout", "30",
        ])?;
    }
    stage.settle();
    let payload = text(stage.payload.to_owned());
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
