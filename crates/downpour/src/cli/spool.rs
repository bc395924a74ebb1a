//! `downpour spool`: what the spools of a running site hold, and what is in quarantine.

use super::site::{AccessArgs, shown, with_daemon};
use super::{Exit, Fault};
use crate::spool::{Failing, Meant, Quarantine, SpoolStatus, Spools};
use crate::units::{show_bytes, show_duration, show_time};
use clap::{Args, Subcommand};
use serde_json::json;
use std::time::Duration;

/// See the spools of a running site, and let files out of quarantine
#[derive(Debug, Args)]
pub(super) struct SpoolArgs {
    #[command(subcommand)]
    verb: SpoolVerb,
}

#[derive(Debug, Subcommand)]
enum SpoolVerb {
    /// What the spools hold, how full they are, and commands that failed
    Status(ShowArgs),
    /// What is in quarantine, and why
    Quarantine(ShowArgs),
    /// Let a file out of quarantine: it goes back to its place and starts again
    Release(FileArgs),
    /// Run a command on arrival again that failed for good
    Retry(RetryArgs),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Args)]
struct FileArgs {
    /// Its path in the spool, or its number in the catalog
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Args)]
struct RetryArgs {
    /// Number of the file, as `downpour spool status` prints it
    #[arg(value_name = "NUMBER")]
    file: String,
    #[command(flatten)]
    access: AccessArgs,
}

impl SpoolArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            SpoolVerb::Status(args) => {
                let seen: Spools =
                    with_daemon(args.access, async |site| site.get("/v1/spools").await)?;
                if args.json {
                    println!("{:#}", json!(seen));
                } else {
                    show(&seen);
                }
            }
            SpoolVerb::Quarantine(args) => {
                let path = "/v1/spools/quarantine";
                let seen: Quarantine = with_daemon(args.access, async |site| site.get(path).await)?;
                if args.json {
                    println!("{:#}", json!(seen));
                } else {
                    show_quarantine(&seen);
                }
            }
            SpoolVerb::Release(args) => {
                let meant = Meant { file: args.file };
                let path = "/v1/spools/release";
                let left: Quarantine =
                    with_daemon(args.access, async |site| site.post(path, &meant).await)?;
                println!("{}: released; {} left in quarantine", meant.file, left.files.len());
            }
            SpoolVerb::Retry(args) => {
                let meant = Meant { file: args.file };
                let _: Spools = with_daemon(args.access, async |site| {
                    site.post("/v1/spools/retry", &meant).await
                })?;
                println!("{}: its command runs again", meant.file);
            }
        }
        Ok(Exit::Complete)
    }
}

fn show(seen: &Spools) {
    if let Some(stopped) = &seen.stopped {
        println!("{}; what follows is as it was then", shown(stopped));
    }
    for spool in &seen.spools {
        show_one(spool);
    }
    if !seen.standstill.is_empty() {
        println!("no command on arrival runs: {}", shown(&seen.standstill));
    }
    for failing in &seen.failing {
        println!("{}", line_of(failing));
    }
}

/// One whose command is tried again by itself needs nobody yet.
fn line_of(failing: &Failing) -> String {
    let (name, text) = (shown(&failing.name), shown(&failing.text));
    let times = if failing.tries == 1 { "try" } else { "tries" };
    let (what, next) = match failing.next_try {
        Some(at) => ("command fails", format!(", next at {}", show_time(at))),
        None => ("command-failed", String::new()),
    };
    format!("{what} {} {name} ({} {times}{next}): {text}", failing.file, failing.tries)
}

fn show_one(spool: &SpoolStatus) {
    let room = &spool.occupancy;
    println!("{}", shown(&spool.folder));
    if !spool.trouble.is_empty() {
        println!("  {}", shown(&spool.trouble));
    }
    println!(
        "  {} settling, {} being read, {} booked, {} in quarantine, {} without a rule",
        spool.settling, spool.reading, spool.booked, spool.quarantined, spool.unmatched
    );
    let full = room.full_in_s.map_or_else(String::new, |seconds| {
        format!(", full in {}", show_duration(Duration::from_secs(seconds)))
    });
    println!(
        "  {} of files, {:.0} % full ({}); {}/s in, {}/s out{full}",
        show_bytes(room.bytes),
        room.share * 100.0,
        room.level.words(),
        show_bytes(room.in_bytes_per_s as u64),
        show_bytes(room.out_bytes_per_s as u64)
    );
    for text in &spool.odd {
        println!("  {}", shown(text));
    }
    // Beside what is so now it would be taken for that.
    if !spool.notices.is_empty() {
        println!("  what happened lately:");
    }
    for notice in &spool.notices {
        println!("    {} {}", show_time(notice.at_us), shown(&notice.text));
    }
}

fn show_quarantine(seen: &Quarantine) {
    for file in &seen.files {
        let reason = &file.reason;
        println!("{}  {}  {}", reason.file, shown(&reason.path), shown(&reason.words()));
    }
    for folder in &seen.unanswered {
        let folder = shown(folder);
        println!("{folder} gives no answer: it copies a file, or its disk hangs");
    }
}

#[cfg(test)]
mod tests {
    use super::line_of;
    use crate::spool::Failing;

    #[test]
    fn a_command_is_called_failed_once_it_is_not_tried_again_by_itself() {
        let (name, text) = ("a".to_owned(), "ingest: exit status: 3".to_owned());
        let mut failing = Failing { file: 7, name, tries: 1, next_try: Some(0), text };
        let line = line_of(&failing);
        assert!(line.starts_with("command fails 7 a (1 try, next at "), "{line}");
        (failing.tries, failing.next_try) = (5, None);
        assert_eq!(line_of(&failing), "command-failed 7 a (5 tries): ingest: exit status: 3");
    }
}
