//! NORM (RFC 5740): one stream at a rate that it is told, repaired by parity. Its file program is an example in the
//! sources of Debian's package, which `make bench` builds.

use super::{Program, TOLD, text};
use crate::stage::Stage;
use std::io;

pub(super) const PROGRAMS: &[Program] = &[Program {
    name: "norm",
    about: "told 96.7 % of the rate, 10 Gbit/s where there is none; blocks of 64 with 16 parity segments",
    tools: &["normCast"],
    package: Some("libnorm-dev"),
    run,
    ..Program::PLAIN
}];

fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    let rate = (stage.told_kbit(TOLD) * 1000).to_string();
    let id = |i: usize| (i + 2).to_string();
    let group = ["addr", "239.77.77.1/6003", "interface", "eth0", "buffer", "8000000"];
    for i in 0..stage.cell.receivers {
        let (own, out) = (id(i), format!("{}/", text(stage.folder(i))));
        let recv = ["rxsockbuffer", "4000000", "recv", &out];
        stage.receiver(i, "normCast", &[&["id", &own], &group[..], &recv].concat())?;
    }
    stage.settle();
    let ids = (0..stage.cell.receivers).map(id).collect::<Vec<_>>().join(",");
    let payload = text(stage.payload.to_owned());
    let fixed = ["ack", &ids, "segment", "1440", "block", "64", "parity", "16"];
    let send = ["rate", &rate, "send", &payload];
    stage.sender("normCast", &[&["id", "1"], &group[..], &fixed, &send].concat())?;
    // Its receivers never end; they say in their log that they are done.
    stage.wait_words("completed reception")?;
    Ok(())
}
