//! `submit --wait`: waits for a transfer, and says why it does not move while it does not.

use super::{is_still, transfers_of};
use crate::api::Services;
use crate::cli::site::{insist, shown};
use crate::dispatch::{Submitted, TransferReport, Why};
use crate::site::{Access, RemoteError};
use crate::units::{escape, show_time};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks at a transfer that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// What has not moved for so long is told, with why; and between two looks whether that is another reason.
const STILL: Duration = Duration::from_secs(5);

/// Waits until nothing of a transfer moves; how it stands then, and whether all of its files have arrived.
pub(super) async fn until_ended(
    site: &Access,
    (at, transfer): (&str, i64),
    mut files: u64,
    still: &mut Standstill,
) -> Result<(TransferReport, bool), RemoteError> {
    let path = format!("/v1/transfers/{transfer}?at={}", escape(at));
    loop {
        let now: TransferReport = insist(site, &path).await?;
        // Files that are given up before their first attempt are not counted any more, and have not arrived.
        files = files.max(now.states.values().sum());
        if now.states.iter().all(|(state, files)| *files == 0 || is_still(state)) {
            let arrived = now.states.get("receipted").is_some_and(|count| *count >= files);
            return Ok((now, arrived || files == 0));
        }
        still.look(site, at, &now).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What is told while what is waited for does not move: why, once, and again when that is another reason.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// The site that is asked: it knows the reasons of its own files.
    here: String,
    /// How the transfer stood, and since when, or when it was last asked about.
    seen: Option<(BTreeMap<String, u64>, Instant)>,
    /// What was told last, without what changes by itself.
    told: Option<String>,
}

impl Standstill {
    /// Says what keeps what was submitted from moving at all, where it is queued at the site that is asked.
    pub(super) async fn begin(site: &Access, submitted: &[Submitted]) -> Result<Self, RemoteError> {
        let seen: Services = insist(site, "/v1/services").await?;
        let is_here =
            |one: &Submitted| one.site == seen.site && !transfers_of(&one.accepted).is_empty();
        let dispatch = seen.services.iter().find(|service| service.name == "dispatch");
        let standstill = dispatch.and_then(|service| service.stage.standstill(&service.name));
        let told = standstill.filter(|_| submitted.iter().any(is_here));
        if let Some(why) = &told {
            eprintln!("nothing moves for now: {why}");
        }
        Ok(Self { here: seen.site, seen: None, told })
    }

    async fn look(&mut self, site: &Access, at: &str, now: &TransferReport) {
        match &self.seen {
            Some((states, since)) if *states == now.states => {
                if since.elapsed() < STILL {
                    return;
                }
            }
            _ => {
                self.seen = Some((now.states.clone(), Instant::now()));
                return;
            }
        }
        self.seen = Some((now.states.clone(), Instant::now()));
        let Some(file) = now.stuck else { return };
        let (reason, text) = if at == self.here {
            // Who does not answer now is asked again.
            let Ok(why) = site.get::<Why>(&format!("/v1/why/{file}")).await else { return };
            if why.reason.is_none() {
                return; // It moves by now.
            }
            (reason_of(&why), standstill_of(&why))
        } else {
            let text = format!("`downpour transfer why` at {} says why", shown(at));
            (text.clone(), text)
        };
        if self.told.as_ref() != Some(&reason) {
            eprintln!("nothing moves for now: {text}");
            self.told = Some(reason);
        }
    }
}

/// Of two looks at a file that does not move, whether there is news.
fn reason_of(why: &Why) -> String {
    match (why.reason.as_deref(), why.class.as_deref()) {
        (Some("paused"), None) => why.text.clone(),
        (reason, class) => format!("{} {}", reason.unwrap_or("-"), class.unwrap_or("-")),
    }
}

fn standstill_of(why: &Why) -> String {
    let next = why.eta_us.map_or_else(String::new, |at| format!("; next at {}", show_time(at)));
    let reason = shown(why.reason.as_deref().unwrap_or(&why.state));
    format!("{}: {reason}: {}{next}", shown(&why.name), shown(&why.text))
}

#[cfg(test)]
mod tests {
    use super::{Why, reason_of, standstill_of};

    #[test]
    fn a_reason_is_news_when_it_is_another_one() {
        let why = |reason: &str, class: &str, tries: u32| {
            let text = format!(
                r#"{{"file": 7, "name": "a", "version": 1, "state": "waiting", "reason": "{reason}",
                "class": {class}, "tries": {tries}, "since_us": 0, "text": "attempt {tries}"}}"#
            );
            serde_json::from_str::<Why>(&text).unwrap()
        };
        let full = why("no-space", r#""destination-full""#, 1);
        assert_eq!(standstill_of(&full), "a: no-space: attempt 1");
        assert_eq!(reason_of(&full), reason_of(&why("no-space", r#""destination-full""#, 2)));
        assert_ne!(reason_of(&full), reason_of(&why("back-off", r#""timed-out""#, 2)));
        // As it was told when it began: the service, or a link, and what to do.
        assert_eq!(reason_of(&why("paused", "null", 3)), "attempt 3");
    }
}
