//! `downpour audit`: who did what at a site.

use super::catalog::{Moment, parse_moment};
use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault};
use crate::api::AuditPage;
use crate::output::plain;
use crate::site::{Access, AuditEntry, Clock, RemoteError, Verified};
use crate::units::{escape, show_time};
use clap::Args;
use serde_json::json;

/// Entries in one answer.
const PAGE: usize = 1000;

/// Show who did what at a running site, oldest first; for admins
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Only what was done since: a time ago (2h, 7d) or a day, in UTC (2026-11-22)
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<Moment>,
    /// Only what was done with this token, by this site, or by a `signal`
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Print each entry as a line of JSON
    #[arg(long)]
    json: bool,
    /// Only say whether the record is whole: no line changed, none taken out
    #[arg(long, conflicts_with_all = ["since", "who"])]
    verify: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl AuditArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        if self.verify {
            return self.verify();
        }
        let since = self.since.map_or(0, |moment| moment.resolve(Clock::system().now()).0);
        let who = self.who.map_or(String::new(), |who| format!("&who={}", escape(&who)));
        let query = format!("/v1/audit?limit={PAGE}&since_us={since}{who}");
        let broken = with_daemon(self.access, async |site| show(site, &query, self.json).await)?;
        // Not among lines of JSON.
        if let Some(broken) = &broken {
            eprintln!("BROKEN: {broken}; all else is told; --verify says up to where it is whole");
        }
        Ok(if broken.is_none() { Exit::Complete } else { Exit::Incomplete })
    }

    fn verify(self) -> Result<Exit, Fault> {
        let seen: Verified =
            with_daemon(self.access, async |site| site.get("/v1/audit/verify").await)?;
        if self.json {
            println!("{}", json!(seen));
        } else {
            let Verified { first, last, digest, .. } = &seen;
            println!("{first} to {last} follow each other; the last one has digest {digest}");
            seen.broken.iter().for_each(|broken| println!("BROKEN: {broken}"));
        }
        Ok(if seen.broken.is_none() { Exit::Complete } else { Exit::Incomplete })
    }
}

/// Shows all pages; a line that they are without.
async fn show(site: &Access, query: &str, as_json: bool) -> Result<Option<String>, RemoteError> {
    let (mut after, mut broken) = (0, None);
    loop {
        let page: AuditPage = site.get(&format!("{query}&after={after}")).await?;
        for entry in &page.entries {
            if as_json {
                println!("{}", json!(entry));
                continue;
            }
            println!("{}", line(entry));
        }
        broken = broken.or(page.broken);
        match page.entries.last() {
            Some(last) if page.entries.len() >= PAGE => after = last.number,
            _ => return Ok(broken),
        }
    }
}

/// An entry on one line: it may tell what somebody asked for who was refused.
fn line(entry: &AuditEntry) -> String {
    let (number, at, who) = (entry.number, show_time(entry.at), plain(&entry.who));
    let (what, result, detail) = (plain(&entry.what), &entry.result, plain(&entry.detail));
    format!("{number:>6} {at} {who:<12} {what} -> {result} {detail}")
}

#[cfg(test)]
mod tests {
    use super::{AuditEntry, line};

    #[test]
    fn what_was_refused_cannot_write_lines_of_its_own() {
        let entry = AuditEntry {
            number: 56,
            at: 0,
            who: "night-shift".to_owned(),
            from: "192.0.2.7".to_owned(),
            what: "POST /v1/tokens".to_owned(),
            result: "400".to_owned(),
            detail: "x\n    57 nobody\u{1b}[2K as Viewer".to_owned(),
            before: String::new(),
        };
        let line = line(&entry);
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.contains("POST /v1/tokens -> 400 x?    57 nobody"), "{line}");
    }
}
