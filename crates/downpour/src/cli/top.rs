//! `downpour top`: a running site on one page.

use super::site::{AccessArgs, runtime, with_daemon};
use super::{Exit, Fault};
use crate::site::{EventId, SiteEvent};
use crate::top::{self, State};
use clap::Args;
use std::io::IsTerminal as _;

/// Show a running site on one page: services, links, transfers, waiting files, events; and work on it by keys
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Print one page as plain text, and end
    #[arg(long)]
    once: bool,
    /// Columns of that page
    #[arg(long, value_name = "N", default_value_t = 120, requires = "once")]
    #[arg(value_parser = clap::value_parser!(u16).range(60..=1000))]
    width: u16,
    #[command(flatten)]
    access: AccessArgs,
}

impl TopArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        if self.once {
            return self.once();
        }
        if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
            let todo = "run it in a terminal, or with --once";
            return Err(Fault::usage("this is no terminal", todo));
        }
        let site = self.access.open()?;
        let shown = runtime()?.block_on(top::run(site));
        shown.map_err(|error| {
            Fault::start(format!("the terminal cannot be used: {error}"), "try --once")
        })?;
        Ok(Exit::Complete)
    }

    fn once(self) -> Result<Exit, Fault> {
        let mut state = State::new("");
        let state = with_daemon(self.access, async |site| {
            state.address.clone_from(&site.address);
            state.seen(top::look(site).await?);
            let heard = |text: &str| {
                if let Ok(event) = serde_json::from_str::<SiteEvent>(text) {
                    state.heard(event);
                }
            };
            site.listen(&mut Some(EventId::FIRST), false, heard).await?;
            Ok(state)
        })?;
        print!("{}", top::text(&state, self.width));
        Ok(Exit::Complete)
    }
}
