//! `downpour tune history`: what was changed on links while files arrived by them, and why.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault, print_json};
use crate::dispatch::Steering;
use crate::home::Home;
use crate::steering::{Book, Steered};
use crate::units::{escape, show_time};
use clap::Args;
use downpour_proto::Rate;

/// What was changed on links while files arrived by them, and why: the receiving end decides
#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// The site that sends; without it all links
    #[arg(value_name = "SRC")]
    from: Option<String>,
    /// The one that receives: the site that is asked
    #[arg(value_name = "DST", requires = "from")]
    to: Option<String>,
    /// Newest decisions to show
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    /// Of your own `downpour receive`, by the sender's address, instead of a site's
    #[arg(long, conflicts_with = "to")]
    own: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl HistoryArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let list = if self.own { self.own()? } else { self.ask()? };
        if self.json {
            print_json(&list);
            return Ok(Exit::Complete);
        }
        if list.decisions.is_empty() {
            println!("nothing was changed yet");
        }
        list.decisions.iter().for_each(show);
        Ok(Exit::Complete)
    }

    fn own(&self) -> Result<Steering, Fault> {
        let home = Home::locate().map_err(|error| Fault::start(error.to_string(), "set HOME"))?;
        let state =
            home.state().map_err(|error| Fault::start(error.to_string(), "see its mode"))?;
        let decisions = Book::open(state).history(self.from.as_deref(), self.most);
        Ok(Steering { site: String::new(), decisions })
    }

    fn ask(self: &HistoryArgs) -> Result<Steering, Fault> {
        let mut path = format!("/v1/links/history?most={}", self.most);
        if let Some(from) = &self.from {
            path.push_str(&format!("&link={}", escape(from)));
        }
        let list = with_daemon(self.access.clone(), async |site| {
            // Of another site's links it may not even know the names.
            let none: Steering = site.get("/v1/links/history?most=0").await?;
            match self.to.as_ref().is_some_and(|to| *to != none.site) {
                true => Ok(none),
                false => site.get(&path).await,
            }
        })?;
        match &self.to {
            Some(to) if *to != list.site => {
                let what =
                    format!("this is {}, and what arrives at {to} is steered there", list.site);
                Err(Fault::start(what, format!("ask the daemon of {to}")))
            }
            _ => Ok(list),
        }
    }
}

fn show(line: &Steered) {
    let paced =
        line.pacing_bps.map_or(String::new(), |bps| format!(" paced to {}", Rate::from_bps(bps)));
    println!(
        "{} {:<12} {:>2} connections{paced}, {}: {}",
        show_time(line.at_us),
        line.link,
        line.connections,
        line.binding,
        line.why
    );
}
