//! Stands a test network up for trying things by hand, until Enter, end of input or Ctrl-C.
//!
//! It is the network of the tests: see `tests/net/network.rs` for what it looks like. Needs root.

#[path = "../tests/net/network.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod network;
#[path = "../../skipped.rs"]
mod skipped;

use clap::Parser;
use downpour::units::parse_share;
use network::{Network, Spec};
use std::process::ExitCode;

/// Stand up a sender and receivers as network namespaces, until Enter or Ctrl-C
#[derive(Parser)]
struct Arguments {
    /// Number of receivers
    #[arg(long, default_value_t = 8)]
    receivers: usize,
    /// Rate of the sender's link, as tc writes it: 100mbit
    #[arg(long)]
    rate: Option<String>,
    /// Share of packets that each receiver loses, such as 5%
    #[arg(long, value_parser = parse_share, default_value = "0%")]
    loss: f64,
    /// Rate of the first receiver's link, as tc writes it
    #[arg(long)]
    slow: Option<String>,
    /// Forward multicast only to those who joined
    #[arg(long)]
    snooping: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(why) = Network::missing() {
        eprintln!("cannot build a network: {why}");
        return ExitCode::from(3);
    }
    let network = Network::build(&Spec {
        receivers: arguments.receivers,
        rate: arguments.rate,
        loss: arguments.loss,
        slow: arguments.slow.map(|rate| (0, rate)),
        snooping: arguments.snooping,
    });
    for host in network.hosts() {
        println!("{:<14} {:<12} {}", host.namespace, host.ipv4, host.ipv6);
    }
    println!("ip netns exec {} bash        Enter removes it all", network.sender.namespace);
    // An error here is an end of input like any other.
    let _ = std::io::stdin().read_line(&mut String::new());
    ExitCode::SUCCESS
}
