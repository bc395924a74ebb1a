//! `downpour catalog reconcile`: compare now, look at reports, approve what one asks for.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault};
use crate::reconcile::{ReconcileWish, Report, ReportList, Verdict};
use crate::site::{Access, RemoteError};
use clap::Args;
use std::time::Duration;

/// Between two looks for a new report.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Looks before it gives up: ten minutes.
const LOOKS_MAX: u32 = 2000;

/// Compare this site's catalog with those of other sites now, or approve the repair that a report asks for
#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// Repair all that this report found
    #[arg(long, value_name = "ID")]
    approve: Option<String>,
    /// Read the files on the disk and compare them with the catalog, instead of the catalog with other sites
    #[arg(long, conflicts_with_all = ["approve", "show", "list"])]
    scrub: bool,
    /// List the reports, newest first
    #[arg(long, conflicts_with_all = ["approve", "show"])]
    list: bool,
    /// Show this report
    #[arg(long, value_name = "ID", conflicts_with = "approve")]
    show: Option<String>,
    /// Print reports as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl ReconcileArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        if self.list {
            let found: ReportList =
                with_daemon(self.access, async |site| site.get("/v1/reconcile").await)?;
            found.reports.iter().for_each(|id| println!("{id}"));
            return Ok(Exit::Complete);
        }
        let (shown, approve, scrub) = (self.show, self.approve, self.scrub);
        let reports: Vec<Report> = with_daemon(self.access, async |site| {
            let ids = match shown {
                Some(id) => vec![id],
                None => {
                    let one = approve.is_some() || scrub;
                    let wish = ReconcileWish { approve, scrub };
                    let before: ReportList = site.post("/v1/reconcile", &wish).await?;
                    next(site, &before, one).await?
                }
            };
            let mut reports = Vec::with_capacity(ids.len());
            for id in ids {
                reports.push(site.get(&format!("/v1/reconcile/{id}")).await?);
            }
            Ok(reports)
        })?;
        for report in &reports {
            if self.json {
                let json = serde_json::to_string_pretty(report).expect("a report has no odd keys");
                println!("{json}");
            } else {
                print!("{}", report.text());
            }
        }
        let good = |report: &Report| matches!(report.verdict, Verdict::Clean | Verdict::Repaired);
        Ok(if reports.iter().all(good) { Exit::Complete } else { Exit::Incomplete })
    }
}

/// The reports that were not there before, oldest first: the first one, or those of the next round over all sites.
async fn next(site: &Access, before: &ReportList, one: bool) -> Result<Vec<String>, RemoteError> {
    for _ in 0..LOOKS_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
        let now: ReportList = site.get("/v1/reconcile").await?;
        let over = now.ended > before.begun;
        let is_new = |id: &String| !before.reports.contains(id);
        let new: Vec<String> = now.reports.into_iter().rev().filter(is_new).collect();
        match (one, new.is_empty()) {
            (true, false) => return Ok(new.into_iter().take(1).collect()),
            (false, false) if over => return Ok(new),
            (false, true) if over => break,
            _ => {}
        }
    }
    let what = "no report came; `downpour service status reconcile` says why";
    Err(RemoteError::TimedOut(what.to_owned()))
}
