//! rsync to each receiver's daemon over plain TCP, with the machine's own congestion control.

use super::{Program, text};
use crate::stage::Stage;
use std::{fs, io};

const PORT: &str = "8730";

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "rsync-parallel",
        about: "whole file to the daemon on each receiver, all at once, with the machine's congestion control",
        tools: &["rsync"],
        package: Some("rsync"),
        run: |stage| run(stage, false),
        ..Program::PLAIN
    },
    Program {
        name: "rsync-sequential",
        about: "whole file to the daemon on each receiver, one after another, with the machine's congestion control",
        tools: &["rsync"],
        package: Some("rsync"),
        run: |stage| run(stage, true),
        ..Program::PLAIN
    },
];

fn run(stage: &mut Stage<'_>, sequential: bool) -> io::Result<()> {
    for i in 0..stage.cell.receivers {
        let configuration = stage.file(&format!("rsyncd{i}.conf"));
        let folder = text(stage.folder(i));
        fs::write(
            &configuration,
            format!("use chroot = no\nuid = 0\ngid = 0\n[out]\npath = {folder}\nread only = no\n"),
        )?;
        let file = format!("--config={}", text(configuration));
        let port = format!("--port={PORT}");
        stage.receiver(i, "rsync", &["--daemon", "--no-detach", &file, &port])?;
    }
    stage.settle();
    let payload = text(stage.payload.to_owned());
    let hosts: Vec<_> = stage.network.receivers.iter().map(|host| host.ipv4.clone()).collect();
    for host in hosts {
        let to = format!("rsync://{host}:{PORT}/out/");
        stage.sender("rsync", &["--whole-file", &payload, &to])?;
        if sequential {
            stage.wait_senders()?;
        }
    }
    stage.wait_senders()?;
    stage.all_delivered();
    Ok(())
}
