//! `lab`: Downpour and the programs that people use today, on one network, in one run.
//!
//! For those who work on Downpour; needs root. It knows `downpour` by its command line and its report only.
//!
//! - [`network`]: machines as namespaces on a bridge; [`emulator`]: links with delay.
//! - [`footprint`]: what that leaves on the machine, and how it is removed.

mod emulator;
mod footprint;
mod network;
mod probe;
mod shell;
mod units;

use clap::{Parser, Subcommand};
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// Networks of namespaces with rate, loss and delay; programs on them; figures.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Remove what labs left that were killed together with their guard
    Clean,
    /// The link emulator
    #[command(subcommand)]
    Emulator(EmulatorVerb),
    /// Part of `lab`: waits for its end and removes what it left
    #[command(hide = true)]
    Guard { name: String },
    /// Part of `emulator check`
    #[command(subcommand, hide = true)]
    Probe(ProbeVerb),
}

#[derive(Debug, Subcommand)]
enum EmulatorVerb {
    /// Measure links of each kind against what was asked
    Check {
        /// Send a tenth as much
        #[arg(long)]
        quick: bool,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Part of `lab`: carries frames between TAP devices
    #[command(hide = true)]
    Serve,
}

#[derive(Debug, Subcommand)]
enum ProbeVerb {
    Send { to: String, count: u64, bytes: usize, interval_ns: u64 },
    Receive,
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lab: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> io::Result<()> {
    match verb {
        Verb::Clean => footprint::clean().iter().for_each(|name| println!("removed {name}")),
        Verb::Emulator(EmulatorVerb::Check { quick, json }) => {
            if let Some(why) = network::missing() {
                return Err(io::Error::other(why));
            }
            let rows = emulator::check::check(quick)?;
            match json {
                true => println!("{}", serde_json::to_string_pretty(&rows)?),
                false => print!("{}", emulator::check::table(&rows)),
            }
        }
        Verb::Emulator(EmulatorVerb::Serve) => emulator::serve::serve()?,
        Verb::Guard { name } => footprint::guard(&name)?,
        Verb::Probe(ProbeVerb::Send { to, count, bytes, interval_ns }) => {
            probe::send(&to, count, bytes, Duration::from_nanos(interval_ns))?;
        }
        Verb::Probe(ProbeVerb::Receive) => probe::receive()?,
    }
    Ok(())
}
