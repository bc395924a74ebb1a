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
    /// Print the report as JSON
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
        let report: Report = with_daemon(self.access, async |site| {
            let id = match shown {
                Some(id) => id,
                None => {
                    let wish = ReconcileWish { approve, scrub };
                    let before: ReportList = site.post("/v1/reconcile", &wish).await?;
                    next(site, &before).await?
                }
            };
            site.get(&format!("/v1/reconcile/{id}")).await
        })?;
        if self.json {
            let json = serde_json::to_string_pretty(&report).expect("a report has no odd keys");
            println!("{json}");
        } else {
            print!("{}", report.text());
        }
        let good = matches!(report.verdict, Verdict::Clean | Verdict::Repaired);
        Ok(if good { Exit::Complete } else { Exit::Incomplete })
    }
}

/// The first report that was not there before.
async fn next(site: &Access, before: &ReportList) -> Result<String, RemoteError> {
    for _ in 0..LOOKS_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
        let now: ReportList = site.get("/v1/reconcile").await?;
        if let Some(id) = now.reports.into_iter().find(|id| !before.reports.contains(id)) {
            return Ok(id);
        }
    }
    let what = "no report came; `downpour service status reconcile` says why";
    Err(RemoteError::TimedOut(what.to_owned()))
}
