//! `downpour demo`: its options.

use super::{Exit, Fault};
use crate::demo::{self, DemoPlan};
use crate::units::{parse_rate, parse_share};
use clap::Args;
use downpour_proto::Rate;
use std::path::PathBuf;

/// Show it all on this machine: one sender, eight receivers, real files, lost datagrams; no root needed
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Folder to send [default: Rust's sources and documentation on this machine]
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Number of receivers
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    receivers: u16,
    /// Share of the datagrams that each receiver loses, each its own
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "2%")]
    loss: f64,
    /// Rate that multicast and TCP are both held to
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "200mbit")]
    rate: Rate,
    /// Where to make the receivers' folders; everything there is removed again [default: /dev/shm if
    /// there is room, else the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    place: Option<PathBuf>,
}

impl DemoArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        demo::run(&DemoPlan {
            path: self.path,
            receivers: usize::from(self.receivers),
            loss: self.loss,
            rate: self.rate,
            place: self.place,
        })
    }
}
