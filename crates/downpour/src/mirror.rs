//! The third site: follows the catalogs of other sites online, and keeps a whole copy of each.
//!
//! Each copy is a file of SQLite in the state folder, `mirror/NAME.db`, and a catalog like any other: `downpour catalog search` looks into
//! it, and `downpour catalog rebuild --from-mirror` makes a lost catalog of it.
//!
//! Event logs are numbered without gaps: a number that is missing is an alarm, and so is a site that has been silent for too long. An
//! alarm is told once, and once more when it is over.

use crate::api::{Allow, Asked, Problem, Routes};
use crate::notify::{Note, Notify, NotifySection};
use crate::section;
use crate::site::{Fault, Part, Remote, Running, Service, Side, Site, Status, Stop};
use crate::units::{Span, show_time};
use axum::Json;
use axum::extract::State;
use downpour_catalog::{ErrorClass, FOLLOW_MAX, Follower, LogId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Folder of the copies, in the state folder.
pub const FOLDER: &str = "mirror";

section! {
    /// Following other sites' catalogs, to have a copy when one is lost.
    [mirror]
    pub struct MirrorSection {
        /// The sites that are followed.
        of: Vec<String> = "[]",
        /// How often each is asked for what is new.
        every: Span = "\"5s\"",
        /// A site that has not answered for so long is an alarm.
        silent: Span = "\"15m\"",
    }
}

/// One log of a catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogEnd {
    /// Its number.
    pub log: i64,
    /// The daemon that writes it.
    pub name: String,
    /// The number of its last event.
    pub end: i64,
}

/// How far the copy of a site is.
#[derive(Clone, Debug, Default, PartialEq)]
struct Copied {
    /// When the site last answered.
    heard: Time,
    /// Events that are not in the copy yet.
    behind: i64,
    events: u64,
    alarm: Option<String>,
}

/// The service.
#[derive(Default)]
pub struct Mirror {
    copies: Mutex<BTreeMap<String, Copied>>,
}

/// The file of a site's copy.
pub fn copy_of(state: &Path, site: &str) -> PathBuf {
    state.join(FOLDER).join(format!("{site}.db"))
}

impl Service for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            loop {
                tokio::select! {
                    () = stop.now() => return Ok(()),
                    () = self.round(&site) => {}
                }
                let every = *site.config().mirror.every;
                tokio::select! {
                    () = stop.asked() => return Ok(()),
                    () = tokio::time::sleep(every) => {}
                }
            }
        })
    }

    fn status(&self) -> Status {
        let copies = self.copies();
        let line = copies.iter().map(|(name, copy)| match &copy.alarm {
            Some(alarm) => format!("{name}: {alarm}"),
            None => format!("{name}: {} events behind", copy.behind),
        });
        let line = line.collect::<Vec<_>>().join("; ");
        let alarms = copies.values().filter(|copy| copy.alarm.is_some()).count();
        let events: u64 = copies.values().map(|copy| copy.events).sum();
        Status::line(line)
            .with("sites", copies.len() as f64)
            .with("alarms", alarms as f64)
            .with("events_total", events as f64)
    }
}

impl Mirror {
    fn copies(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Copied>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is new at each site, and looks who has been silent.
    async fn round(&self, site: &Arc<Site>) {
        let config = site.config();
        let rounds = config.mirror.of.iter().map(|name| self.follow(site, name));
        futures_util::future::join_all(rounds).await;
    }

    async fn follow(&self, site: &Arc<Site>, name: &str) {
        let begun = Copied { heard: site.clock.now(), ..Copied::default() };
        self.copies().entry(name.to_owned()).or_insert(begun);
        let done = match site.remote(name) {
            Some(remote) => self.take_all(site, name, &remote).await,
            None => Err(Fault::new(ErrorClass::SourceUnreachable, "no [[remote]] of this name")),
        };
        let now = site.clock.now();
        let silent_us = i64::try_from(site.config().mirror.silent.as_micros()).unwrap_or(i64::MAX);
        let told = {
            let mut copies = self.copies();
            let copy = copies.entry(name.to_owned()).or_default();
            let alarm = match &done {
                Ok(()) => {
                    copy.heard = now;
                    None
                }
                // Damage is told at once, silence when it lasts.
                Err(fault) if fault.class == ErrorClass::Internal => Some(fault.what.clone()),
                Err(fault) if now.0.saturating_sub(copy.heard.0) > silent_us => {
                    Some(format!("silent since {}: {fault}", show_time(copy.heard.0)))
                }
                Err(_) => copy.alarm.clone(),
            };
            let changed = alarm.is_some() != copy.alarm.is_some();
            copy.alarm.clone_from(&alarm);
            changed.then_some(alarm)
        };
        if let Some(alarm) = told {
            self.tell(site, name, alarm).await;
        }
    }

    /// Takes pages until there is nothing new.
    async fn take_all(&self, site: &Site, name: &str, remote: &Remote) -> Result<(), Fault> {
        let failed = |e: crate::site::RemoteError| Fault::new(e.class(Side::Source), e.to_string());
        let path = copy_of(&site.config().state(), name);
        let now = site.clock.now();
        let opened = blocking(move || {
            std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(|e| e.to_string())?;
            Follower::open(&path, now).map_err(|error| error.to_string())
        });
        let mut follower = opened.await?;
        let logs: Vec<LogEnd> = remote.get("/v1/site/logs").await.map_err(failed)?;
        let mut behind = 0;
        for LogEnd { log, .. } in logs {
            loop {
                let (back, last) = blocking(move || {
                    let last = follower.last(LogId(log)).map_err(|error| error.to_string())?;
                    Ok((follower, last))
                })
                .await?;
                let path = format!("/v1/site/events?log={log}&after={last}");
                let page: serde_json::Value = remote.get(&path).await.map_err(failed)?;
                let taken = blocking(move || {
                    let mut follower = back;
                    let reached = follower.take(&page).map_err(|error| error.to_string())?;
                    Ok((follower, reached))
                });
                let (back, reached) = taken.await?;
                follower = back;
                let mut copies = self.copies();
                let copy = copies.entry(name.to_owned()).or_default();
                copy.events += u64::try_from(reached.last - last).unwrap_or(0);
                copy.behind = behind + reached.end - reached.last;
                if reached.last >= reached.end {
                    behind += reached.end - reached.last;
                    break;
                }
            }
        }
        Ok(())
    }

    async fn tell(&self, site: &Arc<Site>, name: &str, alarm: Option<String>) {
        let what = alarm.unwrap_or_else(|| "it answers again, the alarm is over".to_owned());
        tracing::warn!(remote = name, "{what}");
        let note = Note {
            about: "mirror",
            site: site.name.clone(),
            subject: format!("{name}: {what}"),
            text: format!("The copy of the catalog of {name}:\n{what}\n"),
            detail: serde_json::json!({ "remote": name, "alarm": what }),
        };
        let config = site.config();
        let told = tokio::task::spawn_blocking(move || {
            let section: &NotifySection = &config.notify;
            Notify::tell_by(section, &config.folder, &note)
        });
        for why in told.await.unwrap_or_default() {
            tracing::warn!(%why, "nobody was told");
        }
    }
}

/// What blocks, on a thread for that. What fails here is damage.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Fault> {
    let internal = |what: String| Fault::new(ErrorClass::Internal, what);
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| internal(error.to_string()))?.map_err(internal)
}

#[derive(OpenApi)]
#[openapi(paths(logs, events))]
struct Description;

/// The part.
pub fn part(_site: &Arc<Site>) -> Part {
    let routes = Routes::described(Description::openapi())
        .get("/v1/site/logs", Allow::Site, logs)
        .get("/v1/site/events", Allow::Site, events);
    Part { services: vec![Arc::new(Mirror::default())], routes }
}

/// Where this catalog's event logs end, for another site
#[utoipa::path(get, path = "/v1/site/logs", responses((status = 200, body = Vec<LogEnd>)))]
async fn logs(State(site): State<Arc<Site>>) -> Result<Json<Vec<LogEnd>>, Problem> {
    let logs = site.read(|reader| reader.logs()).await?;
    let end = |(log, name, end): (LogId, String, i64)| LogEnd { log: log.0, name, end };
    Ok(Json(logs.into_iter().map(end).collect()))
}

/// Which events.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct After {
    /// The log.
    log: i64,
    /// The last event that is known.
    #[serde(default)]
    after: i64,
}

/// Events of a log with the records that they are about, a page, for another site
#[utoipa::path(get, path = "/v1/site/events", params(After),
    responses((status = 200, description = "A page"), (status = 400, body = Problem)))]
async fn events(
    State(site): State<Arc<Site>>,
    Asked(After { log, after }): Asked<After>,
) -> Result<Json<serde_json::Value>, Problem> {
    let page = site.read(move |reader| reader.follow(LogId(log), after, FOLLOW_MAX));
    Ok(Json(page.await?))
}
