//! `downpour service`: what runs at a site, and its start and stop.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault};
use crate::api::Services;
use crate::output::plain;
use crate::site::{Access, RemoteError, ServiceReport, Stage};
use crate::units::{escape, show_duration};
use clap::{Args, Subcommand};
use serde_json::json;
use std::time::Duration;

/// Between two looks at services that are ending.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See, start, stop, drain and restart the services of a running site
#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    #[command(subcommand)]
    verb: ServiceVerb,
}

#[derive(Debug, Subcommand)]
enum ServiceVerb {
    Status(StatusArgs),
    /// Start a service, or all
    Start(OneArgs),
    /// End a service at once, or all
    Stop(OneArgs),
    /// Let a service finish what is under way and end, or all
    Drain(OneArgs),
    /// End a service and start it again, or all
    Restart(OneArgs),
}

/// What runs, and why not
#[derive(Debug, Args)]
struct StatusArgs {
    /// One service, or all of them
    #[arg(value_name = "NAME", default_value = "all")]
    name: String,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

// What is shown of it is said at each verb.
#[derive(Debug, Args)]
struct OneArgs {
    /// The service, or `all`
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl ServiceArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            ServiceVerb::Status(args) => args.run(),
            ServiceVerb::Start(args) => args.run("start"),
            ServiceVerb::Stop(args) => args.run("stop"),
            ServiceVerb::Drain(args) => args.run("drain"),
            ServiceVerb::Restart(args) => args.run("restart"),
        }
    }
}

impl StatusArgs {
    fn run(self) -> Result<Exit, Fault> {
        let mut seen: Services =
            with_daemon(self.access, async |site| site.get("/v1/services").await)?;
        seen.services.retain(|service| self.name == "all" || service.name == self.name);
        if seen.services.is_empty() && self.name != "all" {
            let what = format!("there is no service `{}`", self.name);
            return Err(Fault::usage(what, "`downpour service status` lists them"));
        }
        if self.json {
            println!("{:#}", json!(seen));
        } else {
            show(&seen.services);
        }
        let failed = seen.services.iter().any(|service| service.stage == Stage::Failed);
        Ok(if failed { Exit::Incomplete } else { Exit::Complete })
    }
}

impl OneArgs {
    fn run(self, verb: &str) -> Result<Exit, Fault> {
        let path = format!("/v1/services/{}/{verb}", escape(&self.name));
        let services = with_daemon(self.access, async |site| {
            let asked: Services = site.post(&path, &json!({})).await?;
            if self.no_wait { Ok(asked.services) } else { settled(site, asked).await }
        })?;
        show(&services);
        Ok(Exit::Complete)
    }
}

/// Waits until none of those that were asked is ending.
async fn settled(site: &Access, asked: Services) -> Result<Vec<ServiceReport>, RemoteError> {
    loop {
        let mut now: Services = site.get("/v1/services").await?;
        now.services.retain(|one| asked.services.iter().any(|other| other.name == one.name));
        let ends = |one: &ServiceReport| matches!(one.stage, Stage::Draining | Stage::Stopping);
        if !now.services.iter().any(ends) {
            return Ok(now.services);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn show(services: &[ServiceReport]) {
    services.iter().for_each(|service| print!("{}", text(service)));
}

/// Its lines. Some of their words may be another site's.
fn text(service: &ServiceReport) -> String {
    let since = show_duration(Duration::from_secs_f64(service.since_s));
    let (name, stage, line) = (&service.name, service.stage.name(), plain(&service.status.line));
    let mut text = format!("{name:<12} {stage:<9} {since:<12} {line}\n");
    if let Some(why) = &service.why {
        let ago = |s| format!(" {} ago", show_duration(Duration::from_secs_f64(s)));
        let ago = service.failed_s.map(ago).unwrap_or_default();
        let (failures, what, class) = (service.failures, plain(&why.what), &why.class);
        text += &format!("{:<12} failed {failures} times, last{ago}: {what} ({class})\n", "");
    }
    if let Some(next) = service.next_try_s {
        let next = show_duration(Duration::from_secs_f64(next));
        text += &format!("{:<12} next try in {next}\n", "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn what_another_site_says_writes_no_lines_of_its_own() {
        let report = r#"{"name": "mirror", "stage": "failed", "since_s": 1, "failures": 2,
            "why": {"class": "x", "what": "no\u001b[2K\nall is well"},
            "status": {"line": "west: no\u001b]0;x\u0007\u202e", "figures": {}}}"#;
        let text = text(&serde_json::from_str(report).unwrap());
        let odd: String = text.chars().filter(|c| c.is_control() || *c == '\u{202e}').collect();
        assert_eq!(odd, "\n\n", "{text:?}");
    }
}
