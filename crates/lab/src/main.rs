//! `lab`: Downpour and the programs that people use today, on one network, in one run.
//!
//! For those who work on Downpour; needs root. It knows `downpour` by its command line and its report only.
//!
//! - [`network`]: machines as namespaces on a bridge; [`emulator`]: links with delay.
//! - [`experiment`], [`mod@campaign`], [`stage`]: what is to be run, all runs, one run.
//! - [`feed`]: products over time, and what an ideal system makes of them.
//! - [`programs`]: how each program is run. [`meter`]: what it costs.
//! - [`record`], [`page`], [`plot`], [`figures`]: figures, tables, drawings.
//! - [`footprint`]: what that leaves on the machine, and how it is removed.

mod campaign;
mod curve;
mod emulator;
mod experiment;
mod feed;
mod figures;
mod footprint;
mod memory;
mod meter;
mod network;
mod page;
mod plot;
mod probe;
mod programs;
mod record;
mod shell;
mod sink;
#[cfg(test)]
#[path = "../../skipped.rs"]
mod skipped;
mod stage;
mod traced;
mod units;

use clap::{Parser, Subcommand};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
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
    /// Run an experiment and write its figures
    Run {
        /// The experiment, such as crates/lab/experiments/short.toml
        file: PathBuf,
        /// Where the figures go, where no others are; a folder named after the experiment, and its part, when absent
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Only these programs
        #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
        only: Vec<String>,
        /// This many repeats instead of the experiment's
        #[arg(long, value_name = "N")]
        repeats: Option<u32>,
        /// Only the cells of this part, such as 2/6: every sixth, from the second on. Parts may run side by side
        #[arg(long, value_name = "K/N", value_parser = part)]
        part: Option<(usize, usize)>,
    },
    /// Write the page of an experiment whose parts were run by themselves, without what was drawn of logs, and say which runs are missing
    Join {
        /// The experiment
        file: PathBuf,
        /// The folders of its parts, or of several campaigns: each run counts
        #[arg(required = true)]
        parts: Vec<PathBuf>,
        /// Where the figures go
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// List the programs, and which of them are here
    Programs,
    /// Remove what labs left that were killed together with their guard
    Clean,
    /// The link emulator
    #[command(subcommand)]
    Emulator(EmulatorVerb),
    /// Part of `lab`: waits for its end and removes what it left
    #[command(hide = true)]
    Guard { name: String },
    /// Part of the TCP programs
    #[command(subcommand, hide = true)]
    Tcp(TcpVerb),
    /// Part of the BitTorrent program
    #[command(hide = true)]
    Tracker,
    /// Part of programs that keep nothing: compares its input with the payload
    #[command(hide = true)]
    Sink { payload: PathBuf },
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

#[derive(Debug, Subcommand)]
enum TcpVerb {
    Send {
        #[arg(long)]
        file: PathBuf,
        #[arg(long)]
        congestion: String,
        /// To each host
        #[arg(long, default_value = "1")]
        connections: NonZeroU32,
        #[arg(long)]
        sequential: bool,
        hosts: Vec<Ipv4Addr>,
    },
    Receive {
        file: PathBuf,
        #[arg(long, default_value = "1")]
        connections: NonZeroU32,
        /// Compare what comes, over one connection, with the file instead of writing it
        #[arg(long)]
        compare: bool,
    },
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
        Verb::Run { file, out, only, repeats, part } => {
            return campaign(&file, out, &only, repeats, part);
        }
        Verb::Join { file, parts, out } => {
            campaign::join(&experiment::Experiment::read(&file)?, &parts, &out)?;
        }
        Verb::Programs => list(),
        Verb::Clean => footprint::clean()?,
        Verb::Emulator(EmulatorVerb::Check { quick, json }) => {
            can_build()?;
            let rows = emulator::check::check(quick)?;
            match json {
                true => say(serde_json::to_string_pretty(&rows)?),
                false => say(emulator::check::table(&rows).trim_end()),
            }
        }
        Verb::Emulator(EmulatorVerb::Serve) => emulator::serve::serve()?,
        Verb::Guard { name } => footprint::guard(&name)?,
        Verb::Tcp(TcpVerb::Send { file, congestion, connections, sequential, hosts }) => {
            programs::tcp::send(&file, &hosts, &congestion, connections, sequential)?;
        }
        Verb::Tcp(TcpVerb::Receive { file, connections, compare }) => {
            programs::tcp::receive(&file, connections, compare)?;
        }
        Verb::Sink { payload } => sink::compare(io::stdin().lock(), &payload)?,
        Verb::Tracker => programs::aria2::track()?,
        Verb::Probe(ProbeVerb::Send { to, count, bytes, interval_ns }) => {
            probe::send(&to, count, bytes, Duration::from_nanos(interval_ns))?;
        }
        Verb::Probe(ProbeVerb::Receive) => probe::receive()?,
    }
    Ok(())
}

fn can_build() -> io::Result<()> {
    network::missing().map_or(Ok(()), |why| Err(io::Error::other(why)))
}

fn campaign(
    file: &Path,
    out: Option<PathBuf>,
    only: &[String],
    repeats: Option<u32>,
    part: Option<(usize, usize)>,
) -> io::Result<()> {
    let mut experiment = experiment::Experiment::read(file)?;
    experiment.narrow(only, repeats).map_err(io::Error::other)?;
    can_build()?;
    let named = || {
        let mut name = file.file_stem().unwrap_or_default().to_owned();
        if let Some((k, n)) = part {
            name.push(format!("-{k}-of-{n}"));
        }
        Path::new("target/lab").join(name)
    };
    let out = out.unwrap_or_else(named);
    campaign::run(&experiment, part.unwrap_or((1, 1)), &out)?;
    say(out.join("README.md").display());
    Ok(())
}

/// Prints a line. Whoever reads may have gone: what is under way goes on.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Says of which file an error is.
fn at<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> io::Error {
    let path = path.display().to_string();
    move |why| io::Error::other(format!("{path}: {why}"))
}

/// `2/6`.
fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    numbers.filter(|(k, n)| (1..=*n).contains(k)).ok_or_else(|| "K/N, K of 1 to N".to_owned())
}

fn list() {
    for program in programs::all() {
        let state = match program.missing() {
            Some(tool) => format!("skipped: {tool} is not installed"),
            None => program.version(),
        };
        say(format!("{:18} {state}: {}", program.name, program.about));
    }
}
