//! `downpour events`: what happens at a running site, live.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault};
use crate::output::{self, plain};
use crate::site::{EventId, SiteEvent};
use crate::units::show_time;
use clap::Args;

/// Show what happens at a running site, until it ends
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
    /// First the events of before that are still kept, about a thousand
    #[arg(long)]
    kept: bool,
    /// Only those
    #[arg(long)]
    past: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl EventsArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let show = |text: &str| match serde_json::from_str::<SiteEvent>(text) {
            Ok(event) if !self.json => {
                let (kind, about) = (plain(&event.kind), plain(&event.about.to_string()));
                println!("{} {kind:<8} {about}", show_time(event.at_us))
            }
            _ => println!("{text}"),
        };
        let mut place = (self.kept || self.past).then_some(EventId::FIRST);
        let live = !self.past;
        with_daemon(self.access, async |site| {
            tokio::select! {
                heard = site.listen(&mut place, live, show) => heard,
                () = output::broken() => Ok(()), // Nobody reads them any more.
            }
        })?;
        Ok(Exit::Complete)
    }
}
