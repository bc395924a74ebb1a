//! UFTP: one stream at a rate that it is told, or found by TFMCC; what was lost is sent again.

use super::{Program, TOLD, text};
use crate::stage::{PAYLOAD, Stage};
use std::io;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "uftp",
        about: "told 96.7 % of the rate",
        tools: &["uftp", "uftpd"],
        package: Some("uftp"),
        run: |stage| {
            let rate = stage.told_kbit(TOLD).to_string();
            run(stage, &["-R", &rate])
        },
        ..Program::PLAIN
    },
    Program {
        name: "uftp-max",
        about: "as fast as the sender's own queue takes it",
        tools: &["uftp", "uftpd"],
        package: Some("uftp"),
        run: |stage| run(stage, &["-R", "-1"]),
        ..Program::PLAIN
    },
    Program {
        name: "uftp-tfmcc",
        about: "finds the rate by TFMCC, told 96.7 % of it as a ceiling",
        tools: &["uftp", "uftpd"],
        package: Some("uftp"),
        run: |stage| {
            let control = format!("tfmcc:max={}", stage.told_kbit(TOLD));
            run(stage, &["-C", &control])
        },
        ..Program::PLAIN
    },
];

fn run(stage: &mut Stage<'_>, rate: &[&str]) -> io::Result<()> {
    let id = |i: usize| format!("0x{:08X}", i + 1);
    for i in 0..stage.cell.receivers {
        let (out, own) = (text(stage.folder(i)), id(i));
        #[rustfmt::skip]
        stage.receiver(i, "uftpd", &[
            "-d", "-t", "-I", "eth0", "-U", &own, "-D", &out, "-B", "4194304", "-c", "4194304",
        ])?;
    }
    stage.settle();
    let ids = (0..stage.cell.receivers).map(id).collect::<Vec<_>>().join(",");
    let payload = text(stage.payload.to_owned());
    let fixed = ["-I", "eth0", "-b", "1400", "-B", "1048576", "-H", &ids, &payload];
    stage.sender("uftp", &[rate, &fixed].concat())?;
    stage.wait_files(PAYLOAD)?;
    stage.wait_senders()
}
