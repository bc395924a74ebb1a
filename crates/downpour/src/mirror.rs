//! The third site: follows the catalogs of other sites online, and keeps a whole copy of each.
//!
//! Each copy is a file of SQLite in the state folder, `mirror/NAME.db`, and a catalog like any other: `downpour catalog search` looks into
//! it, and `downpour catalog rebuild --from-mirror` makes a lost catalog of it.
//!
//! Each site is followed by a loop of its own: a first copy that takes long holds up no other.
//!
//! Event logs are numbered without gaps: a number that is missing is an alarm, and so is a site that has been silent for too long. An
//! alarm of each kind is told once, and once more when it is over; what nobody could be told is tried again.

use crate::api::{Allow, Asked, Problem, Routes};
use crate::notify::Note;
use crate::section;
use crate::site::{
    Fault, Part, Remote, RemoteError, Running, Service, Side, Site, SiteEvent, Status, Stop,
};
use crate::units::{Span, show_time};
use axum::Json;
use axum::extract::State;
use downpour_catalog::{ErrorClass, FOLLOW_MAX, Follower, LogId, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Folder of the copies, in the state folder.
pub const FOLDER: &str = "mirror";
/// How long after nobody could be told it is tried again.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

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

/// What kind of alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Silent,
    Damaged,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Alarm {
    kind: Kind,
    what: String,
}

/// How far the copy of a site is.
#[derive(Clone, Debug)]
struct Copied {
    /// When the site last answered: for people, and what silence is judged by, for a clock may be set.
    heard: (Time, Instant),
    /// Events that are not in the copy yet.
    behind: i64,
    events: u64,
    alarm: Option<Alarm>,
    /// What people believe.
    told: Option<Kind>,
    /// Nobody could be told; not tried again before.
    tell_after: Option<Instant>,
}

impl Copied {
    /// Of a site that is followed from now on.
    fn new(now: (Time, Instant)) -> Self {
        Self { heard: now, behind: 0, events: 0, alarm: None, told: None, tell_after: None }
    }

    /// Takes what came of a round.
    fn judge(&mut self, done: &Result<(), Fault>, now: (Time, Instant), silent: Duration) {
        let alarm = |kind, what| Some(Alarm { kind, what });
        match done {
            Ok(()) => (self.heard, self.alarm) = (now, None),
            // Damage is told at once, silence when it lasts.
            Err(fault) if fault.class == ErrorClass::Internal => {
                (self.heard, self.alarm) = (now, alarm(Kind::Damaged, fault.what.clone()));
            }
            Err(fault) if now.1.saturating_duration_since(self.heard.1) > silent => {
                let what = format!("silent since {}: {fault}", show_time(self.heard.0.0));
                self.alarm = alarm(Kind::Silent, what);
            }
            Err(_) => {}
        }
    }

    /// What people are to be told now: an alarm, or that it is over.
    fn untold(&self) -> Option<Option<Alarm>> {
        let is_news = self.told != self.alarm.as_ref().map(|alarm| alarm.kind);
        let is_time = self.tell_after.is_none_or(|after| Instant::now() >= after);
        (is_news && is_time).then(|| self.alarm.clone())
    }
}

/// The service.
#[derive(Default)]
pub struct Mirror {
    copies: Mutex<BTreeMap<String, Copied>>,
}

fn now(site: &Site) -> (Time, Instant) {
    (site.clock.now(), Instant::now())
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
            let mut changes = site.config_changes();
            let mut loops = JoinSet::new();
            let mut followed = BTreeMap::new();
            loop {
                let of = changes.borrow_and_update().mirror.of.clone();
                self.change(&of, &mut followed, now(&site), |name| {
                    loops.spawn(self.clone().follow(site.clone(), name, stop.clone()))
                });
                tokio::select! {
                    () = stop.asked() => break,
                    Ok(()) = changes.changed() => {}
                    Some(Err(error)) = loops.join_next() => {
                        if error.is_panic() {
                            return Err(Fault::new(ErrorClass::Internal, error.to_string()));
                        }
                    }
                }
            }
            while loops.join_next().await.is_some() {}
            Ok(())
        })
    }

    fn status(&self) -> Status {
        let copies = self.copies();
        let line = copies.iter().map(|(name, copy)| match &copy.alarm {
            Some(alarm) => format!("{name}: {}", alarm.what),
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

    /// Begins to follow those that are new, and ends with those that are to be followed no longer.
    fn change(
        &self,
        of: &[String],
        followed: &mut BTreeMap<String, AbortHandle>,
        now: (Time, Instant),
        mut follow: impl FnMut(String) -> AbortHandle,
    ) {
        followed.retain(|name, task| {
            let stays = of.contains(name);
            if !stays {
                task.abort();
            }
            stays
        });
        let mut copies = self.copies();
        copies.retain(|name, _| of.contains(name));
        for name in of {
            copies.entry(name.clone()).or_insert_with(|| Copied::new(now));
            followed.entry(name.clone()).or_insert_with(|| follow(name.clone()));
        }
    }

    /// Follows one site until the end.
    async fn follow(self: Arc<Self>, site: Arc<Site>, name: String, stop: Stop) {
        loop {
            tokio::select! {
                () = stop.now() => return,
                () = self.round(&site, &name) => {}
            }
            let every = *site.config().mirror.every;
            tokio::select! {
                () = stop.asked() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    /// Takes what is new at a site, and looks whether it has been silent.
    async fn round(self: &Arc<Self>, site: &Arc<Site>, name: &str) {
        let done = match site.remote(name) {
            Some(remote) => self.take_all(site, name, remote).await,
            None => Err(Fault::new(ErrorClass::SourceUnreachable, "no [[remote]] of this name")),
        };
        let mut untold = None;
        self.note(name, |copy| {
            copy.judge(&done, now(site), *site.config().mirror.silent);
            untold = copy.untold();
        });
        let Some(alarm) = untold else { return };
        let kind = alarm.as_ref().map(|alarm| alarm.kind);
        let is_told = self.tell(site, name, alarm).await;
        self.note(name, |copy| {
            if is_told {
                (copy.told, copy.tell_after) = (kind, None);
            } else {
                copy.tell_after = Some(Instant::now() + TELL_AGAIN_AFTER);
            }
        });
    }

    /// Notes something of a copy, if its site is still followed.
    fn note(&self, name: &str, what: impl FnOnce(&mut Copied)) {
        if let Some(copy) = self.copies().get_mut(name) {
            what(copy);
        }
    }

    /// Takes pages until there is nothing new, on a thread that may block: so does closing the copy, which brings all that is new into
    /// its file.
    async fn take_all(
        self: &Arc<Self>,
        site: &Site,
        name: &str,
        remote: Arc<Remote>,
    ) -> Result<(), Fault> {
        // Until this future ends, or is dropped.
        let (_waits, stop) = Stop::new();
        let there = There { remote, runtime: Handle::current(), stop };
        let (mirror, name, now) = (self.clone(), name.to_owned(), site.clock.now());
        let path = copy_of(&site.config().state(), &name);
        tokio::task::spawn_blocking(move || mirror.take_from(&there, &name, &path, now)).await?
    }

    fn take_from(&self, there: &There, name: &str, path: &Path, now: Time) -> Result<(), Fault> {
        std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(|e| damage(&e))?;
        let mut follower = Follower::open(path, now).map_err(|error| damage(&error))?;
        let logs: Vec<LogEnd> = there.get("/v1/site/logs")?;
        for LogEnd { log, .. } in logs {
            loop {
                let last = follower.last(LogId(log)).map_err(|error| damage(&error))?;
                let page = there.get(&format!("/v1/site/events?log={log}&after={last}"))?;
                let reached = follower.take(&page).map_err(|error| damage(&error))?;
                self.note(name, |copy| {
                    copy.events += u64::try_from(reached.last - last).unwrap_or(0);
                    copy.behind = (reached.end - reached.last).max(0);
                });
                if reached.last >= reached.end {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Tells people, as the configuration says; whether anybody was told, or nobody is to be.
    async fn tell(&self, site: &Arc<Site>, name: &str, alarm: Option<Alarm>) -> bool {
        let alarm = alarm.map(|alarm| alarm.what);
        let what = alarm.as_deref().unwrap_or("it answers again, the alarm is over");
        tracing::warn!(remote = name, "{what}");
        let about = serde_json::json!({ "remote": name, "alarm": alarm.is_some(), "what": what });
        site.events.tell(SiteEvent::MIRROR, &about);
        let note = Note {
            about: "mirror",
            site: site.name.clone(),
            subject: format!("{name}: {what}"),
            text: format!("The copy of the catalog of {name}:\n{what}\n"),
            detail: serde_json::json!({ "remote": name, "alarm": what }),
        };
        let config = site.config();
        let told = tokio::task::spawn_blocking(move || {
            let notify = config.notify.resolve(&config.folder);
            (notify.ways(), notify.tell(&note))
        });
        let (ways, not_told) = told.await.unwrap_or_default();
        for why in &not_told {
            tracing::warn!(%why, "could not be told");
        }
        ways == 0 || not_told.len() < ways
    }
}

/// What the other site says of itself, such as that its database failed, is no damage of the copy: it did not answer.
fn no_answer(error: RemoteError) -> Fault {
    let class = match error.class(Side::Source) {
        ErrorClass::Internal => ErrorClass::SourceRefused,
        class => class,
    };
    Fault::new(class, error.to_string())
}

/// What fails at the copy.
fn damage(error: &dyn std::error::Error) -> Fault {
    Fault::new(ErrorClass::Internal, error.to_string())
}

/// A site that is followed, asked from a thread that may block.
struct There {
    remote: Arc<Remote>,
    runtime: Handle,
    stop: Stop,
}

impl There {
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Fault> {
        self.runtime.block_on(async {
            tokio::select! {
                answer = self.remote.get(path) => answer.map_err(no_answer),
                () = self.stop.now() => Err(Fault::new(ErrorClass::Interrupted, "it was stopped")),
            }
        })
    }
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
#[into_params(parameter_in = Query)]
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

#[cfg(test)]
mod tests {
    use super::{Copied, Kind, no_answer};
    use crate::api::Problem;
    use crate::site::{Clock, Daemon, Fault, RemoteError};
    use downpour_catalog::{ErrorClass, Time};
    use downpour_transport::identity::Identity;
    use std::net::TcpListener;
    use std::time::Duration;
    use tokio::time::{Instant, timeout};

    #[test]
    fn each_kind_of_alarm_is_told_until_somebody_was() {
        let begun = Instant::now();
        let mut copy = Copied::new((Time(0), begun));
        let gone = Err(Fault::new(ErrorClass::SourceUnreachable, "gone"));
        let damaged = Err(Fault::new(ErrorClass::Internal, "a gap"));
        let mut untold = |done: &Result<(), Fault>, at_s: u64, is_told: bool| {
            // The clock stands still, as one that is set back again and again.
            let now = (Time(0), begun + Duration::from_secs(at_s));
            copy.judge(done, now, Duration::from_secs(10));
            let news = copy.untold().map(|alarm| alarm.map(|alarm| alarm.kind));
            if let Some(kind) = news.filter(|_| is_told) {
                copy.told = kind;
            }
            news
        };
        assert_eq!(untold(&gone, 10, true), None);
        assert_eq!(untold(&gone, 11, false), Some(Some(Kind::Silent)));
        assert_eq!(untold(&gone, 12, true), Some(Some(Kind::Silent)), "nobody knew");
        assert_eq!(untold(&gone, 13, true), None);
        assert_eq!(untold(&damaged, 14, true), Some(Some(Kind::Damaged)));
        // It answered, only not with what follows.
        assert_eq!(untold(&gone, 15, true), None);
        assert_eq!(untold(&Ok(()), 16, false), Some(None));
        assert_eq!(untold(&Ok(()), 17, true), Some(None));
        assert_eq!(untold(&Ok(()), 18, true), None);
    }

    #[test]
    fn trouble_that_the_other_site_has_is_no_damage_of_the_copy() {
        let of_database = Fault::new(ErrorClass::Internal, "the database failed");
        let refused = RemoteError::Refused(Box::new(Problem::from(of_database)));
        let begun = Instant::now();
        let mut copy = Copied::new((Time(0), begun));
        let mut kind = |at_s: u64| {
            let now = (Time(0), begun + Duration::from_secs(at_s));
            copy.judge(&Err(no_answer(refused.clone())), now, Duration::from_secs(10));
            copy.alarm.as_ref().map(|alarm| alarm.kind)
        };
        assert_eq!((kind(10), kind(11)), (None, Some(Kind::Silent)));
    }

    #[tokio::test]
    async fn who_is_slow_holds_up_no_other_and_who_is_followed_no_longer_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        // Takes connections, and says nothing.
        let slow = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("address = '{}'\nconnect = '5m'", slow.local_addr().unwrap());
        let keys = [(); 2].map(|()| Identity::generate().public_key());
        let configure = |of: &str| {
            let mut text = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n".to_owned();
            text += &format!("[mirror]\nof = {of}\nevery = '10ms'\nsilent = '1ms'\n");
            for (name, key, more) in [("slow", keys[0], address.as_str()), ("gone", keys[1], "")] {
                text += &format!("[[remote]]\nname = '{name}'\nkey = '{key}'\n{more}\n");
            }
            std::fs::write(&file, text).unwrap();
        };
        configure("['slow', 'gone']");
        crate::site::card(folder.path()).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        let line = || {
            let reports = daemon.site.supervisor().reports();
            let mirror = reports.into_iter().find(|report| report.name == "mirror").unwrap();
            mirror.status.line
        };
        let until = async |what: &str, is: &dyn Fn(&str) -> bool| {
            let seen = async {
                while !is(&line()) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let seen = timeout(Duration::from_secs(60), seen).await;
            assert!(seen.is_ok(), "never: {what}: {}", line());
        };
        until("the alarm", &|line| line.contains("gone: silent")).await;
        configure("['slow']");
        assert!(daemon.reload().await);
        until("shown no longer", &|line| line == "slow: 0 events behind").await;
        daemon.end(Duration::ZERO).await;
    }
}
