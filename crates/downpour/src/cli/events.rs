//! `downpour events`: what happens at a running site, live.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault};
use crate::site::SiteEvent;
use clap::Args;

/// Show what happens at a running site, until it ends
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl EventsArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let show = |text: &str| match serde_json::from_str::<SiteEvent>(text) {
            Ok(event) if !self.json => println!("{:<10} {}", event.kind, event.about),
            _ => println!("{text}"),
        };
        with_daemon(self.access, async |site| site.listen(show).await)?;
        Ok(Exit::Complete)
    }
}
