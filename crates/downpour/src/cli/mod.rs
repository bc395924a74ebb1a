//! The command line: typed, then resolved, then used.
//!
//! 1. *Typed*: each verb's `…Args` is what clap understood; its doc comments are the help text.
//! 2. *Resolved*: `…Args::resolve` looks at the machine (paths, interfaces, files named by options) and
//!    gives a `…Plan` in which every default is filled in and nothing contradicts. All usage errors come
//!    from here or from clap, before anything is opened.
//! 3. *Used*: the session takes the plan and never sees an option.
//!
//! Exit status: 0 all receivers complete; 1 some receiver or file failed; 2 usage; 3 could not start.
//! A verb stands here when it works, not before.

mod adopt;
mod audit;
mod catalog;
mod demo;
mod events;
mod fault;
mod fetch;
mod network;
mod outputs;
mod ports;
mod profile;
mod rebuild;
mod receipt;
mod receive;
mod reconcile;
mod send;
mod service;
mod site;
mod spool;
mod ticket;
mod token;
mod top;
mod transfer;
mod tune;
mod tune_history;
mod wan;

pub use fault::{Exit, Fault};
pub use network::{Interface, NetworkArgs, NetworkPlan};
pub(crate) use network::{check_group, listen_addrs};
pub use profile::{
    ModeArg, ProfilePayload, ProfileReceiveArgs, ProfileReceivePlan, ProfileSendArgs,
    ProfileSendPlan, Protocol, ReceiveKind, SendKind,
};
pub use receive::{ReceiveArgs, ReceivePlan, Target, TicketText};
pub use send::{Controller, Payload, SendArgs, SendPlan, StartRule};
pub(crate) use send::{KEEP_BYTES_MIN, read_defaults};
pub use wan::{ConnectionArgs, EncryptionArg, PathArg};

use crate::report::Report;
use crate::{output, profile as papers, session, whole};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Sends files to many machines at once and proves that they arrived.
#[derive(Debug, Parser)]
#[command(name = "downpour", version, about, arg_required_else_help = true)]
#[command(after_help = "Exit status: 0 all receivers complete; 1 some receiver or file failed; \
                        2 usage; 3 could not start.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Send(Box<SendArgs>),
    Receive(Box<ReceiveArgs>),
    Demo(demo::DemoArgs),
    Ticket(ticket::TicketArgs),
    Ports(ports::PortsArgs),
    Catalog(Box<catalog::CatalogArgs>),
    Receipt(receipt::ReceiptArgs),
    Init(Box<site::InitArgs>),
    Check(site::CheckArgs),
    Serve(site::ServeArgs),
    Service(service::ServiceArgs),
    Spool(spool::SpoolArgs),
    Token(token::TokenArgs),
    Audit(audit::AuditArgs),
    Events(events::EventsArgs),
    Top(top::TopArgs),
    Transfer(transfer::TransferArgs),
    Tune(tune::TuneArgs),
}

/// What a verb prints besides its result. The same for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct OutputArgs {
    /// Write a report of the session to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
    /// Print the report to standard output, as JSON, instead of the summary
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Trace each datagram and each step of the rate to this file: lines of JSON, compressed by zstd
    #[arg(long, value_name = "FILE.zst", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Show no progress and no summary; errors still go to standard error
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

impl OutputArgs {
    /// Asked before the session: a report that cannot be written should not cost one.
    fn check(&self) -> Result<(), Fault> {
        let Some(path) = &self.report else { return Ok(()) };
        whole::check(path).map_err(|error| {
            let what = format!("the report {} could not be written: {error}", path.display());
            Fault::start(
                what,
                "give --report a file in a folder that is there and that you may write to",
            )
        })
    }

    /// Refuses files to write that are among those that are `sent` or `read`, or one file twice.
    fn check_files(
        &self,
        more: &[(&str, Option<&Path>)],
        sent: &[&Path],
        read: &[&Path],
    ) -> Result<(), Fault> {
        let ours = [("--report", self.report.as_deref()), ("--trace", self.trace.as_deref())];
        let is_no_file = |path: Option<&Path>| path == Some(Path::new("-"));
        if let Some((option, _)) = ours.iter().find(|(_, path)| is_no_file(*path)) {
            let what = format!("{option} is not written to standard output");
            return Err(Fault::usage(what, "give it a file; --json prints the report"));
        }
        outputs::check(&[&ours, more].concat(), sent, read)
    }

    /// Whether standard output is for the report alone, or for nothing.
    pub(crate) const fn is_silent(&self) -> bool {
        self.quiet || self.json
    }

    /// Prints and writes another kind of report.
    pub(crate) fn write_json(&self, report: &impl Serialize, exit: Exit) -> Result<Exit, Fault> {
        let json = serde_json::to_string_pretty(report).expect("a report has no odd keys");
        self.put(&(json + "\n")).map(|()| exit)
    }

    /// Prints and writes the report; the exit status follows from it.
    fn show(&self, report: &Report) -> Result<Exit, Fault> {
        if !self.is_silent() {
            eprint!("{}", report.summary());
        }
        let exit = if report.is_complete() { Exit::Complete } else { Exit::Incomplete };
        self.put(&report.to_json()).map(|()| exit)
    }

    /// Prints and writes a report, as is asked for. A file has the old one or the whole new one.
    fn put(&self, json: &str) -> Result<(), Fault> {
        if self.json {
            print!("{json}");
        }
        let Some(path) = &self.report else { return Ok(()) };
        whole::write(path, 0o666, json.as_bytes()).map_err(|error| {
            let what = format!("cannot write the report {}: {error}", path.display());
            if self.json {
                return Fault::incomplete(
                    what,
                    "take it from standard output, where it is as well",
                );
            }
            // Standard output may be for the data.
            eprint!("{json}");
            Fault::incomplete(what, "take it from standard error, where it has gone instead")
        })
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    crate::demo::end_with_demo();
    // Clap prints help to standard output with status 0, and usage errors with status 2.
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Send(args) if args.is_of_paper() => args.resolve_paper().and_then(|plan| {
            plan.output.check()?;
            papers::send(&plan)
        }),
        Verb::Receive(args) if args.is_of_paper() => args.resolve_paper().and_then(|plan| {
            plan.output.check()?;
            papers::receive(&plan)
        }),
        Verb::Send(args) => args.resolve().and_then(|plan| {
            let output = plan.output.clone();
            output.check()?;
            plan.check_input()?;
            output.show(&session::send(plan)?)
        }),
        Verb::Receive(args) => args.resolve().and_then(|plan| {
            let output = plan.output.clone();
            output.check()?;
            plan.check_output()?;
            output.show(&session::receive(plan)?)
        }),
        Verb::Demo(args) => args.run(),
        Verb::Ticket(args) => args.run(),
        Verb::Ports(args) => args.run(),
        Verb::Catalog(args) => args.run(),
        Verb::Receipt(args) => args.run(),
        Verb::Init(args) => args.run(),
        Verb::Check(args) => args.run(),
        Verb::Serve(args) => args.run(),
        Verb::Service(args) => args.run(),
        Verb::Spool(args) => args.run(),
        Verb::Token(args) => args.run(),
        Verb::Audit(args) => args.run(),
        Verb::Events(args) => args.run(),
        Verb::Top(args) => args.run(),
        Verb::Transfer(args) => args.run(),
        Verb::Tune(args) => args.run(),
    };
    let exit = done.unwrap_or_else(|fault| {
        eprintln!("{fault}");
        fault.exit
    });
    ExitCode::from(end(exit) as u8)
}

/// The same status; not that of success when what was printed is not where it should be.
fn end(exit: Exit) -> Exit {
    let Some(error) = output::lost() else { return exit };
    let what = format!("standard output could not be written: {error}");
    let fault = Fault::incomplete(
        what,
        "make room where it goes, or send it elsewhere; all else was done as asked",
    );
    eprintln!("{fault}");
    if exit == Exit::Complete { fault.exit } else { exit }
}

fn print_json(value: &impl Serialize) {
    println!("{}", serde_json::to_string_pretty(value).expect("no answer has odd keys"));
}

#[cfg(test)]
mod tests {
    use super::{Cli, Exit, OutputArgs};
    use clap::CommandFactory;
    use std::collections::BTreeMap;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_report_that_cannot_be_written_is_where_its_fault_says() {
        let report = crate::report::tests::report(Vec::new());
        for (json, place) in [(true, "standard output"), (false, "standard error")] {
            let away = Some("/dev/null/report.json".into());
            let args = OutputArgs { report: away, json, quiet: true, trace: None };
            for shown in [args.show(&report), args.write_json(&report, Exit::Complete)] {
                let fault = shown.unwrap_err();
                assert!(fault.todo.contains(place) && fault.exit == Exit::Incomplete, "{fault}");
            }
        }
    }

    #[test]
    fn a_report_takes_the_place_of_another_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let [path, yesterday] = ["report", "yesterday"].map(|name| folder.path().join(name));
        std::fs::write(&path, "yesterday's").unwrap();
        std::fs::hard_link(&path, &yesterday).unwrap();
        let report = crate::report::tests::report(Vec::new());
        let args = OutputArgs { report: Some(path.clone()), quiet: true, ..OutputArgs::default() };
        args.show(&report).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), report.to_json());
        args.write_json(&"a paper's", Exit::Complete).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\"a paper's\"\n");
        assert_eq!(std::fs::read_to_string(&yesterday).unwrap(), "yesterday's");
    }

    #[test]
    fn every_verb_and_option_has_help_of_its_own() {
        let mut open = vec![Cli::command()];
        while let Some(above) = open.pop() {
            let mut told = BTreeMap::new();
            for verb in above.get_subcommands() {
                let about = verb.get_about().map(ToString::to_string);
                let about = about.unwrap_or_else(|| panic!("{} has no help", verb.get_name()));
                let other = told.insert(about, verb.get_name());
                assert_eq!(other, None, "says the same as {}", verb.get_name());
                for option in verb.get_arguments() {
                    assert!(option.get_help().is_some(), "{} {}", verb.get_name(), option.get_id());
                }
                open.push(verb.clone());
            }
        }
    }
}
