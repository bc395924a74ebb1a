//! `downpour catalog reconcile`: compare now, look at reports, approve what one asks for.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault, print_json};
use crate::api::{Problem, Services};
use crate::output::plain;
use crate::reconcile::report::is_id;
use crate::reconcile::{ReconcileWish, Report, ReportList, Runs, Verdict};
use crate::site::{Access, RemoteError, ServiceReport, Stage};
use axum::http::StatusCode;
use clap::Args;
use std::collections::BTreeSet;
use std::time::Duration;

/// Between two looks for a new report.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Looks at a daemon that is not at it before it gives up: ten minutes.
const IDLE_LOOKS_MAX: u32 = 2000;

/// Compare this site's catalog with those of other sites now, or approve the repair that a report asks for
#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// Repair all that this report found, once; a run that finds more asks again
    #[arg(long, value_name = "ID", value_parser = report_id)]
    approve: Option<String>,
    /// Read the files on the disk and compare them with the catalog, instead of the catalog with other sites
    #[arg(long, conflicts_with_all = ["approve", "show", "list"])]
    scrub: bool,
    /// List the newest hundred reports, newest first
    #[arg(long, conflicts_with_all = ["approve", "show"])]
    list: bool,
    /// Show this report
    #[arg(long, value_name = "ID", value_parser = report_id, conflicts_with = "approve")]
    show: Option<String>,
    /// Print reports, or the list of them, as JSON
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
            if self.json {
                print_json(&found);
            } else {
                found.reports.iter().for_each(|id| println!("{id}"));
            }
            return Ok(Exit::Complete);
        }
        let (shown, wish) = (self.show, ReconcileWish { approve: self.approve, scrub: self.scrub });
        let done = with_daemon(self.access, async |site| match shown {
            Some(id) => Ok(Outcome::of(vec![report(site, &id).await?])),
            None => ask(site, &wish).await,
        })?;
        let Outcome { reports, failed, left_out } = done;
        for report in &reports {
            if self.json {
                print_json(report);
            } else {
                print!("{}", report.text());
            }
        }
        failed.iter().for_each(|why| eprintln!("not compared: {}", plain(why)));
        for name in &left_out {
            eprintln!("left out: {name} has no `address` here; it compares with this site");
        }
        if reports.is_empty() && failed.is_empty() {
            eprintln!("nothing was compared: no other site to compare with has an `address` here");
            return Ok(Exit::Incomplete);
        }
        let good = |report: &Report| matches!(report.verdict, Verdict::Clean | Verdict::Repaired);
        Ok(if failed.is_empty() && reports.iter().all(good) {
            Exit::Complete
        } else {
            Exit::Incomplete
        })
    }
}

/// What may be an id: the path that is asked for is made of it.
fn report_id(text: &str) -> Result<String, String> {
    let id = is_id(text).then(|| text.to_owned());
    id.ok_or_else(|| "that is no id of a report: `--list` lists them".to_owned())
}

async fn report(site: &Access, id: &str) -> Result<Report, RemoteError> {
    site.get(&format!("/v1/reconcile/{id}")).await
}

/// What was asked for, of the disk or not.
fn is_asked_for(report: &Report, wish: &ReconcileWish, of_disk: bool) -> bool {
    match &wish.approve {
        Some(id) => report.approved.contains(id),
        None => report.is_of_disk() == of_disk,
    }
}

/// Whether a report is of a run that began after so many had: earlier ones may have left some meanwhile.
const fn has_told(so_far: Runs, begun: u64) -> bool {
    so_far.told > begun
}

/// Those of the run that was asked for, of all that came since, oldest first. One that was under way then may have left some meanwhile,
/// and has not seen what is there now: of each site the last one counts, and none where this run could not compare it.
fn of_last(found: Vec<Report>, failed: &[String]) -> Vec<Report> {
    let has_failed = |report: &Report| failed.iter().any(|why| is_about(why, &report.far));
    let mut last: Vec<Report> = Vec::new();
    for report in found {
        last.retain(|other| other.far != report.far);
        last.push(report);
    }
    last.retain(|report| !has_failed(report));
    last
}

/// Whether this says of a site why it was not compared.
fn is_about(why: &str, far: &str) -> bool {
    why.split_once(": ").is_some_and(|(name, _)| name == far)
}

/// Why there is no report about a site, though a round has ended.
fn why_none(far: &str, list: ReportList) -> String {
    let ReportList { mut failed, left_out, .. } = list;
    failed.retain(|why| is_about(why, far));
    let why = match left_out.iter().any(|name| name == far) {
        true => "it has no `address` here",
        false => "it is none of the remotes, or not in `[reconcile] with`",
    };
    failed.pop().unwrap_or_else(|| format!("{far}: {why}"))
}

/// What came of a run.
struct Outcome {
    /// Oldest first.
    reports: Vec<Report>,
    /// Why other sites have none.
    failed: Vec<String>,
    /// Sites that only compare with this one.
    left_out: Vec<String>,
}

impl Outcome {
    fn of(reports: Vec<Report>) -> Self {
        Self { reports, failed: Vec::new(), left_out: Vec::new() }
    }
}

/// A service that somebody has stopped begins no run: that may be for long.
fn is_begun(services: &[ServiceReport], name: &str) -> Result<(), RemoteError> {
    if !services.iter().any(|service| service.name == name && service.stage == Stage::Stopped) {
        return Ok(());
    }
    let what = format!("the service `{name}` is stopped: what was asked for begins with its start");
    let todo = format!("downpour service start {name}");
    let stopped = Problem::new(StatusCode::CONFLICT, "stopped", what, todo);
    Err(RemoteError::Refused(Box::new(stopped)))
}

/// Asks for a run, and waits for what comes of it.
async fn ask(site: &Access, wish: &ReconcileWish) -> Result<Outcome, RemoteError> {
    let approved = match &wish.approve {
        Some(id) => Some(report(site, id).await?),
        None => None,
    };
    let of_disk = approved.as_ref().map_or(wish.scrub, Report::is_of_disk);
    let before: ReportList = site.post("/v1/reconcile", wish).await?;
    let runs = |list: &ReportList| if of_disk { list.scrubs } else { list.rounds };
    let begun = runs(&before).begun;
    let mut known: BTreeSet<String> = before.reports.into_iter().collect();
    let (mut found, mut idle) = (Vec::new(), 0);
    while idle < IDLE_LOOKS_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
        let now: ReportList = site.get("/v1/reconcile").await?;
        for id in now.reports.iter().rev() {
            if known.insert(id.clone()) {
                let report = report(site, id).await?;
                found.extend(is_asked_for(&report, wish, of_disk).then_some(report));
            }
        }
        if approved.is_some() && !found.is_empty() {
            return Ok(Outcome::of(found));
        }
        let so_far = runs(&now);
        if so_far.ended > begun {
            if of_disk && (found.is_empty() || !has_told(so_far, begun)) {
                break;
            }
            if of_disk {
                return Ok(Outcome::of(of_last(found, &[])));
            }
            if let Some(Report { far, .. }) = approved {
                let failed = vec![why_none(&far, now)];
                return Ok(Outcome { failed, ..Outcome::of(Vec::new()) });
            }
            let ReportList { failed, left_out, .. } = now;
            return Ok(Outcome { reports: of_last(found, &failed), failed, left_out });
        }
        if so_far.begun == so_far.ended {
            idle += 1;
            let Services { services, .. } = site.get("/v1/services").await?;
            is_begun(&services, if of_disk { "scrub" } else { "reconcile" })?;
        }
    }
    let what = "no report came; `downpour service status` says why";
    Err(RemoteError::TimedOut(what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{has_told, is_asked_for, is_begun, of_last, report_id, why_none};
    use crate::reconcile::{ReconcileWish, Report, Runs};
    use crate::site::ServiceReport;
    use serde_json::json;

    fn report(far: &str, approved: &[&str]) -> Report {
        let report = json!({
            "id": "x", "site": "a", "far": far, "started_us": 0, "ended_us": 0,
            "verdict": "clean", "approved": approved, "files_near": 0, "files_far": 0,
            "in_flight": 0, "bytes_exchanged": 0, "rounds": 0, "repaired": 0,
            "repair_max": 0, "is_cut": false, "findings": [],
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn the_report_that_is_shown_is_the_one_that_was_asked_for() {
        let wish = |approve: Option<&str>| ReconcileWish {
            approve: approve.map(str::to_owned),
            scrub: false,
        };
        let approval = wish(Some("y"));
        assert!(is_asked_for(&report("b", &["y"]), &approval, false));
        assert!(is_asked_for(&report("b", &["y", "z"]), &approval, false), "another, too");
        assert!(!is_asked_for(&report("c", &[]), &approval, false), "another site's");
        assert!(is_asked_for(&report("b", &[]), &wish(None), false));
        assert!(!is_asked_for(&report("a", &[]), &wish(None), false), "of the disk");
        assert!(is_asked_for(&report("a", &[]), &wish(None), true));
    }

    #[test]
    fn what_a_run_before_found_is_not_told_as_what_is_there_now() {
        let of = |far: &str, id: &str| Report { id: id.to_owned(), ..report(far, &[]) };
        // c cannot be reached any more, and the run was stopped before it came to d.
        let found = vec![of("b", "1"), of("c", "2"), of("b", "3"), of("d", "4")];
        let failed = ["c: no connection".to_owned(), "d: stopped".to_owned()];
        let last = of_last(found, &failed);
        assert_eq!(last.iter().map(|report| &*report.id).collect::<Vec<_>>(), ["3"]);
    }

    #[test]
    fn an_approval_that_waits_is_told_why_its_site_was_not_compared() {
        let list = json!({
            "reports": [], "begun": 1, "ended": 1,
            "failed": ["bb: x", "b: no connection: refused"], "left_out": ["c"],
        });
        let why = |far| why_none(far, serde_json::from_value(list.clone()).unwrap());
        assert_eq!(why("b"), "b: no connection: refused");
        assert_eq!(why("c"), "c: it has no `address` here");
        assert!(why("d").starts_with("d: it is none of the remotes"));
    }

    #[test]
    fn the_report_of_a_scrub_before_is_none_of_the_one_that_failed() {
        let runs = |begun, ended, told| Runs { begun, ended, told };
        assert!(!has_told(runs(2, 2, 1), 1), "it left a report while this one waited");
        assert!(has_told(runs(2, 2, 2), 1));
    }

    #[test]
    fn what_cannot_be_an_id_is_not_asked_for() {
        for wrong in ["", "a/b", "..", "?"] {
            assert!(report_id(wrong).is_err(), "{wrong}");
        }
        assert!(report_id("20261122T000001Z-geneva_x-0").is_ok());
    }

    #[test]
    fn what_a_stopped_service_was_asked_for_is_not_waited_for() {
        let status = json!({ "line": "", "figures": {} });
        let service = |(name, stage)| -> ServiceReport {
            let service = json!({ "name": name, "stage": stage, "since_s": 1.0, "failures": 0, "status": status });
            serde_json::from_value(service).unwrap()
        };
        let services = [("reconcile", "stopped"), ("scrub", "failed")].map(service);
        let stopped = is_begun(&services, "reconcile").unwrap_err().to_string();
        assert!(stopped.contains("`reconcile` is stopped"), "{stopped}");
        assert!(is_begun(&services, "scrub").is_ok(), "it is started again by itself");
    }
}
