//! `downpour transfer fetch`: a file from the site from which it would be here first.

use super::site::{AccessArgs, insist, shown, with_daemon};
use super::{Exit, Fault, print_json};
use crate::dispatch::{FetchReport, FetchSource, FetchWish};
use crate::site::{Access, RemoteError};
use crate::units::{show_bytes, show_duration};
use axum::http::StatusCode;
use clap::Args;
use std::time::Duration;

/// Between two looks at a fetch that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Fetch a file that other sites have, from where it would be here first; shows them in that order
#[derive(Debug, Args)]
pub(super) struct FetchArgs {
    /// The site that the file comes from first
    #[arg(value_name = "SITE")]
    site: String,
    /// Its name there, as `catalog search` shows it
    #[arg(value_name = "NAME")]
    name: String,
    /// Its version [default: the newest that is known with its digest]
    #[arg(long, value_name = "N")]
    version: Option<i64>,
    /// Only from this site; may be given several times [default: from all that have it]
    #[arg(long, value_name = "SITE")]
    from: Vec<String>,
    /// From one site at a time, also when it is long
    #[arg(long)]
    one: bool,
    /// Only show from where it would come
    #[arg(long)]
    ask: bool,
    /// Wait until it is here
    #[arg(long)]
    wait: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl FetchArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let wish = FetchWish {
            site: self.site,
            name: self.name,
            version: self.version,
            from: self.from,
            one: self.one,
            ask: self.ask,
        };
        let (wait, as_json) = (self.wait, self.json);
        let report = with_daemon(self.access, async |site| {
            let mut report: FetchReport = site.post("/v1/fetches", &wish).await?;
            if wait && !report.done && !as_json {
                show_under_way(&report);
            }
            while wait && !report.done {
                tokio::time::sleep(LOOK_EVERY).await;
                report = look(site, &report, &wish).await?;
            }
            Ok(report)
        })?;
        if self.json {
            print_json(&report);
        } else {
            show(&report);
        }
        Ok(if report.failure.is_some() { Exit::Incomplete } else { Exit::Complete })
    }
}

/// How far a fetch is. One that is not known any more has ended, maybe with a daemon before this one: what it was to bring is here then.
async fn look(
    site: &Access,
    report: &FetchReport,
    wish: &FetchWish,
) -> Result<FetchReport, RemoteError> {
    match insist(site, &format!("/v1/fetches/{}", report.id)).await {
        Err(RemoteError::Refused(problem)) if problem.status == StatusCode::NOT_FOUND => {
            let ask = FetchWish { version: Some(report.version), ask: true, ..wish.clone() };
            match site.post::<FetchReport>("/v1/fetches", &ask).await {
                // It ends just now, or begins: who asks again learns more.
                Err(error) if error.is_passing() => Ok(report.clone()),
                Err(error) => Err(error),
                Ok(now) if now.path.is_none() => Err(RemoteError::Refused(problem)),
                Ok(now) => Ok(FetchReport { id: report.id, ..now }),
            }
        }
        seen => seen,
    }
}

/// One that is under way, in a line.
pub(super) fn show_under_way(report: &FetchReport) {
    let FetchReport { id, name, site, size, arrived, .. } = report;
    let (size, arrived) = (show_bytes(*size), show_bytes(*arrived));
    let (name, site) = (shown(name), shown(site));
    let last = report.changes.last().map(|last| shown(last));
    match (name.as_str(), last) {
        ("", Some(why)) => println!("fetch {id}: {why}"),
        (_, Some(last)) => {
            println!("fetch {id} {name} of {site}: {arrived} of {size} here; {last}")
        }
        (_, None) => println!("fetch {id} {name} of {site}: {arrived} of {size} here"),
    }
}

fn show(report: &FetchReport) {
    let FetchReport { name, version, site, size, .. } = report;
    let (name, site) = (shown(name), shown(site));
    println!("{name} version {version} of {site}, {}", show_bytes(*size));
    show_sources(&report.sources);
    report.changes.iter().for_each(|change| println!("  {}", shown(change)));
    match (&report.failure, &report.path, report.done) {
        (Some(failure), _, _) => println!("failed: {}", shown(failure)),
        (None, Some(path), _) => println!("here: {}", shown(path)),
        (None, None, true) => {}
        (None, None, false) => println!("this is fetch {}", report.id),
    }
}

/// Places that have a file, in their rank.
pub(super) fn show_sources(sources: &[FetchSource]) {
    for source in sources {
        let takes = source.takes_s.map_or("not known".to_owned(), |takes| {
            show_duration(Duration::try_from_secs_f64(takes).unwrap_or(Duration::MAX))
        });
        let brought = show_bytes(source.brought);
        let (site, why) = (shown(&source.site), shown(&source.why));
        println!("  {site:<16} {takes:>12}  {brought:>10} brought  {why}");
    }
}
