//! `downpour ports`: what a firewall must let through.

use super::{Exit, Fault};
use crate::ports::PortRange;
use clap::Args;

/// List the ports that Downpour uses, for firewalls
#[derive(Debug, Args)]
pub(super) struct PortsArgs {
    /// Range to list, instead of the one in force
    #[arg(long, value_name = "FIRST-LAST", env = PortRange::VARIABLE)]
    #[arg(default_value_t = PortRange::DEFAULT)]
    ports: PortRange,
}

impl PortsArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        println!("{:<9} {:<12} {:<10} use", "protocol", "ports", "open at");
        for row in self.ports.uses() {
            println!("{:<9} {:<12} {:<10} {}", row.protocol, row.ports, row.at, row.what);
        }
        println!();
        println!("nftables: tcp dport {0} accept; udp dport {0} accept", self.ports);
        println!("Another range: --ports FIRST-LAST, or {}=FIRST-LAST.", PortRange::VARIABLE);
        Ok(Exit::Complete)
    }
}
