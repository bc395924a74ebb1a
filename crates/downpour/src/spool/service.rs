//! The service `spool`: all spools of the site and the commands for what arrives, each on a thread of its own, and what can be
//! asked of them.
//!
//! The threads tick until the service is asked to end; there is nothing to finish, for whatever is half done is taken up again at the
//! next start. When the sections change, or one fails, all begin again. A tick is not cut off with that, and is not waited for, as its
//! disk may hang: who begins in a folder waits there until the last one has left it. Only a stop lets copies break off.

use super::arrivals::{Arrivals, Failing};
use super::aside::SetApart;
use super::book::SpoolError;
use super::engine::{Spool, SpoolStatus};
use super::occupancy::Level;
use super::read::lock;
use super::root::Now;
use super::rule::Rules;
use super::section::{RuleSection, SpoolSection};
use crate::api::{Allow, Given, Problem, Routes};
use crate::notify::{Note, Notify};
use crate::site::{Clock, Fault, Part, Running, Service, Site, SiteEvent, Status, Stop, Wish};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use downpour_catalog::{ErrorClass, FileId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout_at;
use utoipa::{OpenApi, ToSchema};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(250);
/// Ticks that an earlier run may take to leave a place before that is trouble: it leaves its tick, and its spool.
const TICKS_USUAL: u32 = 4;
/// Ticks that it may take before that is logged.
const TICKS_MAX: u32 = 40;
/// How long spools have for an answer: one that copies, or whose disk hangs, gives none for hours.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// File in the state folder with what commands are open.
const ARRIVALS: &str = "arrivals.json";

/// Why nothing is done in a place.
const STILL_THERE: &str =
    "the last run is still at work there: it copies a file, or the disk does not answer";

/// Why no new command on arrival begins.
const TOO_MANY: &str = "as many have failed as can be open, and are tried again first: mend what they \
                        complain of (`downpour spool status`)";

/// A file in quarantine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct InQuarantine {
    /// The spool's folder.
    pub spool: String,
    /// Where it lies, below that folder.
    pub place: String,
    /// Why.
    #[serde(flatten)]
    pub reason: SetApart,
}

/// The spools as they are.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Spools {
    /// All of them.
    pub spools: Vec<SpoolStatus>,
    /// Commands on arrival that failed.
    pub failing: Vec<Failing>,
    /// Why no command on arrival runs, if none does.
    #[serde(default)]
    pub standstill: String,
    /// Why nothing happens in any spool, and what to do; absent while the service works. All the rest is as it was then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

/// What is in quarantine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Quarantine {
    /// In all spools.
    pub files: Vec<InQuarantine>,
    /// Folders of spools that gave no answer: what is in their quarantine is not among that.
    #[serde(default)]
    pub unanswered: Vec<String>,
}

/// A file that is meant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Meant {
    /// Its path in the spool, or its number in the catalog.
    pub file: String,
}

/// What is asked of a spool.
enum Ask {
    Quarantine(oneshot::Sender<Vec<InQuarantine>>),
    /// The file that is meant.
    Release(String, oneshot::Sender<Result<(), String>>),
}

/// The service.
#[derive(Default)]
pub struct SpoolService {
    /// Where threads are at work, also those of a run that is over.
    at_work: Mutex<BTreeSet<PathBuf>>,
    /// Set, and made anew, when the service was stopped: copies break off then.
    stopped: Mutex<Arc<AtomicBool>>,
    spools: Mutex<Vec<SpoolStatus>>,
    /// How full each folder was said to be.
    levels: Mutex<BTreeMap<String, Level>>,
    failing: Mutex<Vec<Failing>>,
    /// Why no command runs, if none does.
    standstill: Mutex<String>,
    commands: Mutex<u64>,
    /// The spools at work.
    asks: Mutex<Vec<mpsc::Sender<Ask>>>,
    /// Takes files whose command is to be tried again. It is not waited for: a command may run.
    retries: Mutex<Option<mpsc::Sender<i64>>>,
}

/// A run: when it is over its threads end, each after its tick.
struct Run {
    service: Arc<SpoolService>,
    over: Arc<AtomicBool>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        lock(&self.service.asks).clear();
        *lock(&self.service.retries) = None;
    }
}

/// The service at work, or at its end after it failed: if that is because it was stopped, copies break off, whatever run began them.
struct Stopping(Arc<SpoolService>, Stop);

impl Drop for Stopping {
    fn drop(&mut self) {
        if self.1.wish() == Wish::Stop {
            self.0.break_off();
        }
    }
}

/// A thread is at work there.
struct AtWork<'a>(&'a SpoolService, &'a Path);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        lock(&self.0.at_work).remove(self.1);
    }
}

/// What a thread works with.
struct Worker {
    service: Arc<SpoolService>,
    site: Arc<Site>,
    stop: Stop,
    over: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    began: Instant,
    clock: Clock,
}

impl Worker {
    fn now(&self) -> Now {
        Now { steady: self.began.elapsed(), wall: self.clock.now() }
    }

    fn wish(&self) -> Wish {
        if self.is_over() { Wish::Stop } else { self.stop.wish() }
    }

    fn goes_on(&self) -> bool {
        self.wish() == Wish::Run
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits, a pause after the other, until no other thread is at work in this place: two would take each other's files. None when
    /// this run is to end before.
    fn enter<'a>(&'a self, place: &'a Path, pause: impl Fn(u32)) -> Option<AtWork<'a>> {
        let mut pauses = 0;
        while !lock(&self.service.at_work).insert(place.to_owned()) {
            pause(pauses);
            pauses += 1;
            if !self.goes_on() {
                return None;
            }
            if pauses == TICKS_MAX {
                tracing::warn!(target: "spool", place = %place.display(), "{STILL_THERE}");
            }
        }
        Some(AtWork(&self.service, place))
    }

    /// A pause before a place of a spool that is not free, after so many. What is asked stands until it is, if that is soon.
    fn pause(&self, index: usize, pauses: u32, asked: &mpsc::Receiver<Ask>) {
        if pauses < TICKS_USUAL {
            return thread::sleep(TICK);
        }
        // Whoever asks is not let wait.
        let _ = asked.recv_timeout(TICK);
        self.show(index, |status| STILL_THERE.clone_into(&mut status.trouble));
    }

    /// What is to be seen of a spool. Of a run that is over nothing is: the next one has others.
    fn show(&self, index: usize, change: impl FnOnce(&mut SpoolStatus)) {
        let mut shown = lock(&self.service.spools);
        if !self.is_over() {
            change(&mut shown[index]);
        }
    }

    /// Ticks until it is time to end; answers in between.
    fn spool(
        &self,
        index: usize,
        (section, rules): (SpoolSection, Arc<Rules>),
        asked: &mpsc::Receiver<Ask>,
    ) -> Result<(), SpoolError> {
        let folder = section.folder.clone();
        let pause = |pauses| self.pause(index, pauses, asked);
        let Some(_alone) = self.enter(&folder, pause) else { return Ok(()) };
        self.show(index, |status| status.trouble.clear());
        let (catalog, stopped) = (self.site.catalog.clone(), self.stopped.clone());
        let site = self.site.clone();
        let said = move |file: FileId, class: ErrorClass| {
            site.events.last_of(SiteEvent::TROUBLE, file.0, class.name())
        };
        let spool = Spool::open(section, rules, catalog, stopped, Box::new(said))?;
        let mut spool = spool.apart_from(self.site.config().state());
        while self.goes_on() {
            spool.tick(self.now())?;
            let status = spool.status();
            for notice in spool.take_notices() {
                tracing::info!(target: "spool", folder = %status.folder, "{notice}");
                let about = serde_json::json!({ "spool": status.folder, "what": notice });
                self.site.events.tell(SiteEvent::SPOOL, &about);
            }
            if self.service.is_fuller(&status) {
                self.tell_fuller(&status);
            }
            self.show(index, |shown| *shown = status);
            self.listen(Instant::now() + TICK, &mut spool, asked)?;
        }
        Ok(())
    }

    /// Answers what is asked until then. For what is left over there is time after the next tick, which nobody holds up who asks.
    fn listen(
        &self,
        until: Instant,
        spool: &mut Spool,
        asked: &mpsc::Receiver<Ask>,
    ) -> Result<(), SpoolError> {
        let left = || until.saturating_duration_since(Instant::now());
        while !left().is_zero()
            && let Ok(ask) = asked.recv_timeout(left())
        {
            self.answer(spool, ask)?;
        }
        Ok(())
    }

    /// Tells people, in the log and as the configuration says. A mail server that does not answer does not hold up the spool.
    fn tell_fuller(&self, status: &SpoolStatus) {
        let (folder, room) = (&status.folder, &status.occupancy);
        let what = format!("{folder}: {:.0} % full: {}", room.share * 100.0, room.level.words());
        tracing::warn!(target: "spool", "{what}");
        let about = serde_json::json!({ "spool": folder, "what": room.level.words() });
        self.site.events.tell(SiteEvent::SPOOL, &about);
        let note = Note {
            about: "spool",
            site: self.site.name.clone(),
            text: format!("The spool {what}\n"),
            detail: serde_json::json!({ "folder": folder, "occupancy": room }),
            subject: what,
        };
        let config = self.site.config();
        thread::spawn(move || {
            for why in Notify::tell_by(&config.notify, &config.folder, &note) {
                tracing::warn!(target: "spool", %why, "could not be told");
            }
        });
    }

    fn answer(&self, spool: &mut Spool, ask: Ask) -> Result<(), SpoolError> {
        match ask {
            // Who asked was told by now that there is no answer.
            Ask::Quarantine(reply) if reply.is_closed() => {}
            Ask::Release(_, reply) if reply.is_closed() => {}
            Ask::Quarantine(reply) => {
                let folder = spool.status().folder;
                let of = |(place, reason)| InQuarantine { spool: folder.clone(), place, reason };
                let _ = reply.send(spool.quarantine().into_iter().map(of).collect());
            }
            Ask::Release(meant, reply) => {
                let _ = reply.send(spool.release(self.now(), &meant)?);
            }
        }
        Ok(())
    }

    fn arrivals(&self, rules: Arc<Rules>, asked: &mpsc::Receiver<i64>) -> Result<(), SpoolError> {
        let place = self.site.config().state().join(ARRIVALS);
        let Some(_alone) = self.enter(&place, |_| thread::sleep(TICK)) else { return Ok(()) };
        let Some(mut arrivals) = self.open_arrivals(&rules, &place)? else { return Ok(()) };
        while self.goes_on() {
            let more = arrivals.tick(self.now(), &|| self.wish())?;
            lock(&self.service.failing).clear();
            lock(&self.service.failing).extend_from_slice(arrivals.failing());
            *lock(&self.service.commands) = arrivals.done();
            self.stands_still(if arrivals.is_full() { TOO_MANY.to_owned() } else { String::new() });
            let until = Instant::now() + if more { Duration::ZERO } else { TICK };
            while let Ok(file) = asked.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                arrivals.retry(self.now(), file);
            }
        }
        Ok(())
    }

    /// Waits until what is open can be read: meanwhile no command runs, and spools need none. None when it is time to end.
    fn open_arrivals(
        &self,
        rules: &Arc<Rules>,
        place: &Path,
    ) -> Result<Option<Arrivals>, SpoolError> {
        while self.goes_on() {
            // Nothing is known of what is open in another one, and may be when it is back.
            let opened = match self.site.is_state_here() {
                true => Arrivals::open(self.site.catalog.clone(), rules.clone(), place),
                false => Err(SpoolError::OtherState(place.to_owned())),
            };
            let why = match opened {
                Err(why @ (SpoolError::Notes(..) | SpoolError::OtherState(_))) => why.to_string(),
                opened => {
                    self.stands_still(String::new());
                    return opened.map(Some);
                }
            };
            self.stands_still(why);
            thread::sleep(TICK);
        }
        Ok(None)
    }

    /// Why no command runs; nothing: they do.
    fn stands_still(&self, why: String) {
        let mut shown = lock(&self.service.standstill);
        if !self.is_over() && *shown != why {
            if !why.is_empty() {
                tracing::warn!(target: "spool", "{why}");
                let about = serde_json::json!({ "spool": "commands on arrival", "what": why });
                self.site.events.tell(SiteEvent::SPOOL, &about);
            }
            *shown = why;
        }
    }
}

impl From<SpoolError> for Fault {
    fn from(error: SpoolError) -> Self {
        let class = match error {
            SpoolError::Catalog(downpour_catalog::Error::Full(_)) => ErrorClass::OutOfResources,
            SpoolError::Open(_) | SpoolError::Catalog(_) => ErrorClass::CatalogUnreachable,
            SpoolError::Notes(..) | SpoolError::OtherState(_) => ErrorClass::OutOfResources,
        };
        Self::new(class, error.to_string())
    }
}

impl SpoolService {
    /// Whether a spool is at a higher level than it was said to be.
    fn is_fuller(&self, status: &SpoolStatus) -> bool {
        let level = status.occupancy.level;
        // A folder that is not there is not measured.
        status.trouble.is_empty()
            && lock(&self.levels).insert(status.folder.clone(), level).unwrap_or_default() < level
    }

    /// Copies break off, whatever run began them; those of a run to come do not.
    fn break_off(&self) {
        std::mem::take(&mut *lock(&self.stopped)).store(true, Ordering::Relaxed);
    }

    /// Runs all spools once; ends when asked to, when one fails, or when the sections are no longer these.
    async fn work(self: &Arc<Self>, site: &Arc<Site>, stop: &Stop) -> Result<(), Fault> {
        let mut changes = site.config_changes();
        let now = sections(site);
        let (spools, rules) = &now;
        let rules = Arc::new(Rules::new(&site.name, rules));
        let run = Run { service: self.clone(), over: Arc::default() };
        let (began, stopped) = (Instant::now(), lock(&self.stopped).clone());
        let worker = || {
            let (service, site, stop) = (self.clone(), site.clone(), stop.clone());
            let (over, stopped, clock) = (run.over.clone(), stopped.clone(), site.clock.clone());
            Worker { service, site, stop, over, stopped, began, clock }
        };
        *lock(&self.spools) = spools.iter().map(SpoolStatus::of).collect();
        lock(&self.standstill).clear();
        let (mut asks, mut jobs) = (Vec::new(), JoinSet::new());
        for (index, section) in spools.iter().enumerate() {
            let (worker, of) = (worker(), (section.clone(), rules.clone()));
            // Who asks waits for the answer.
            let (ask, asked) = mpsc::channel();
            asks.push(ask);
            jobs.spawn_blocking(move || worker.spool(index, of, &asked));
        }
        // Numbers of files, as an operator gives them.
        let (worker, (retry, asked)) = (worker(), mpsc::channel());
        jobs.spawn_blocking(move || worker.arrivals(rules, &asked));
        *lock(&self.asks) = asks;
        *lock(&self.retries) = Some(retry);
        // While it drains neither a failure nor a change cuts short what is under way.
        let mut failed = Ok(());
        loop {
            tokio::select! {
                done = jobs.join_next() => {
                    let Some(done) = done else { return failed };
                    failed = failed.and(done.map_err(Fault::from).and_then(|done| Ok(done?)));
                    if stop.wish() != Wish::Run {
                        // A command may still end, but no spool is at work any more.
                        lock(&self.asks).clear();
                    }
                    if failed.is_err() && stop.wish() != Wish::Drain {
                        return failed;
                    }
                }
                // No copy is waited for; what has begun of a tick ends by itself.
                () = stop.now(), if !stopped.load(Ordering::Relaxed) => self.break_off(),
                changed = changes.changed() => {
                    if changed.is_ok() && stop.wish() == Wish::Run && sections(site) != now {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// What is in quarantine, spool by spool; none of one that gives no answer.
    async fn quarantines(&self, asks: &[mpsc::Sender<Ask>]) -> Vec<Option<Vec<InQuarantine>>> {
        let until = tokio::time::Instant::now() + ANSWER_TIME_MAX;
        // All are asked before the first is waited for.
        let asked: Vec<_> = asks.iter().map(|ask| send(ask, Ask::Quarantine)).collect();
        let mut answers = Vec::new();
        for answer in asked {
            answers.push(answer_until(until, answer).await);
        }
        answers
    }

    /// How the spools are asked, where the service is at work.
    fn asks(&self) -> Result<Vec<mpsc::Sender<Ask>>, Problem> {
        let asks = lock(&self.asks).clone();
        if asks.is_empty() && !lock(&self.spools).is_empty() {
            return Err(not_at_work());
        }
        Ok(asks)
    }

    /// What is in quarantine, and of which spools that is not known.
    async fn quarantine(&self) -> Result<Quarantine, Problem> {
        let asks = self.asks()?;
        let mut answers = self.quarantines(&asks).await.into_iter();
        let (mut files, mut unanswered) = (Vec::new(), Vec::new());
        for spool in &*lock(&self.spools) {
            match answers.next().flatten() {
                Some(answer) => files.extend(answer),
                None => unanswered.push(spool.folder.clone()),
            }
        }
        Ok(Quarantine { files, unanswered })
    }

    /// Releases the file that is meant from the one quarantine in which it lies.
    async fn release(&self, meant: &str) -> Result<(), Problem> {
        let asks = self.asks()?;
        let answers = self.quarantines(&asks).await;
        let answered = answers.iter().flatten().count();
        let lies = |(index, files): (usize, Option<Vec<InQuarantine>>)| {
            let mut files = files?.into_iter();
            Some((index, files.find(|file| file.reason.is_meant(&file.place, meant))?.spool))
        };
        let places: Vec<_> = answers.into_iter().enumerate().filter_map(lies).collect();
        let (index, folder) = match &places[..] {
            [(index, folder)] => (*index, folder),
            [] => return Err(Problem::not_found(self.no_such_file(meant, answered))),
            [(_, a), (_, b), ..] => {
                let what = format!("`{meant}` lies in the quarantines of {a} and of {b}");
                let todo = "give its number, as `downpour spool quarantine` shows it";
                return Err(Problem::bad_request(what, todo));
            }
        };
        let answer = send(&asks[index], |reply| Ask::Release(meant.to_owned(), reply));
        let until = tokio::time::Instant::now() + ANSWER_TIME_MAX;
        let silent = || Err(format!("the spool {folder} gives no answer"));
        answer_until(until, answer).await.unwrap_or_else(silent).map_err(Problem::not_found)
    }

    /// Runs a command again that failed for good: that of a file, by its number.
    fn retry(&self, meant: &str) -> Result<(), Problem> {
        let todo = "give its number, as `downpour spool status` shows it";
        let wrong = |_| Problem::bad_request(format!("`{meant}` is no number of a file"), todo);
        let file: i64 = meant.parse().map_err(wrong)?;
        let send = |retries: &mpsc::Sender<i64>| retries.send(file).is_ok();
        if !lock(&self.failing).iter().any(|failing| failing.file == file) {
            return Err(Problem::not_found(format!("no command for file {file} is open")));
        }
        match lock(&self.retries).as_ref().is_some_and(send) {
            true => Ok(()),
            false => Err(not_at_work()),
        }
    }

    fn no_such_file(&self, meant: &str, answered: usize) -> String {
        let spools = lock(&self.spools);
        let of = if answered < spools.len() { " of a spool that answers" } else { "" };
        let away = spools.iter().filter(|spool| !spool.trouble.is_empty());
        let away: Vec<_> = away.map(|s| format!("; {}: {}", s.folder, s.trouble)).collect();
        format!("no file `{meant}` is in quarantine{of}{}", away.concat())
    }
}

/// It was stopped, drained or has failed: nobody is there to be asked.
fn not_at_work() -> Problem {
    let todo = "see `downpour service status`; `downpour service start spool` begins it";
    let (what, status) = ("the service `spool` is not at work", StatusCode::SERVICE_UNAVAILABLE);
    Problem::new(status, "not-at-work", what, todo)
}

/// Asks one spool. Where it is not at work the reply is dropped with what is asked.
fn send<T>(
    ask: &mpsc::Sender<Ask>,
    make: impl FnOnce(oneshot::Sender<T>) -> Ask,
) -> oneshot::Receiver<T> {
    let (reply, answer) = oneshot::channel();
    let _ = ask.send(make(reply));
    answer
}

/// Its answer, if there is one by then.
async fn answer_until<T>(until: tokio::time::Instant, answer: oneshot::Receiver<T>) -> Option<T> {
    timeout_at(until, answer).await.ok()?.ok()
}

fn sections(site: &Site) -> (Vec<SpoolSection>, Vec<RuleSection>) {
    let config = site.config();
    (config.spool.clone(), config.rule.clone())
}

impl Service for SpoolService {
    fn name(&self) -> &'static str {
        "spool"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            let _stopping = Stopping(self.clone(), stop.clone());
            while stop.wish() == Wish::Run {
                self.work(&site, &stop).await?;
            }
            Ok(())
        })
    }

    fn status(&self) -> Status {
        let spools = lock(&self.spools);
        // A sum of nothing would be -0.
        let sum = |of: fn(&SpoolStatus) -> f64| spools.iter().map(of).fold(0.0, |a, b| a + b);
        let mut figures = BTreeMap::new();
        for (name, value) in [
            ("files_settling", sum(|s| s.settling as f64)),
            ("files_reading", sum(|s| s.reading as f64)),
            ("files_booked", sum(|s| s.booked as f64)),
            ("files_quarantined", sum(|s| s.quarantined as f64)),
            ("files_unmatched", sum(|s| s.unmatched as f64)),
            ("bytes", sum(|s| s.occupancy.bytes as f64)),
            ("in_bytes_per_s", sum(|s| s.occupancy.in_bytes_per_s)),
            ("out_bytes_per_s", sum(|s| s.occupancy.out_bytes_per_s)),
            ("files_taken_in_total", sum(|s| s.taken_in as f64)),
            ("bytes_read_total", sum(|s| s.bytes_read as f64)),
            ("overflows_total", sum(|s| s.overflows as f64)),
            ("full_share", spools.iter().map(|s| s.occupancy.share).fold(0.0, f64::max)),
            ("commands_total", *lock(&self.commands) as f64),
            ("commands_failing", lock(&self.failing).len() as f64),
        ] {
            figures.insert(name.to_owned(), value);
        }
        if let Some(seconds) = spools.iter().filter_map(|s| s.occupancy.full_in_s).min() {
            figures.insert("full_in_s".to_owned(), seconds as f64);
        }
        let trouble = spools.iter().filter(|spool| !spool.trouble.is_empty());
        let mut trouble: Vec<_> =
            trouble.map(|s| format!("; {}: {}", s.folder, s.trouble)).collect();
        let standstill = lock(&self.standstill).clone();
        trouble.extend((!standstill.is_empty()).then(|| format!("; {standstill}")));
        let full = spools.iter().map(|spool| spool.occupancy.level).max().unwrap_or_default();
        let line = format!(
            "{} spools: {} files settling, {} being read, {} booked, {} in quarantine; {}{}",
            spools.len(),
            figures["files_settling"],
            figures["files_reading"],
            figures["files_booked"],
            figures["files_quarantined"],
            full.words(),
            trouble.concat(),
        );
        Status { line, figures }
    }
}

/// The service and its routes.
pub fn part(_site: &Arc<Site>) -> Part {
    let service = Arc::new(SpoolService::default());
    let routes = Routes::described(Description::openapi())
        .get("/v1/spools", Allow::Viewer, list)
        .get("/v1/spools/quarantine", Allow::Viewer, quarantine)
        .post("/v1/spools/release", Allow::Operator, release)
        .post("/v1/spools/retry", Allow::Operator, retry)
        .share(service.clone());
    Part { services: vec![service], routes }
}

#[derive(OpenApi)]
#[openapi(paths(list, quarantine, release, retry))]
struct Description;

type Shared = Extension<Arc<SpoolService>>;

/// The spools: what they hold, how full they are
#[utoipa::path(get, path = "/v1/spools", responses((status = 200, body = Spools)))]
async fn list(State(site): State<Arc<Site>>, Extension(service): Shared) -> Json<Spools> {
    let stopped = site.supervisor().standstill(service.name());
    let (spools, failing) = (lock(&service.spools).clone(), lock(&service.failing).clone());
    let standstill = lock(&service.standstill).clone();
    Json(Spools { spools, failing, standstill, stopped })
}

/// What is in quarantine, and why
#[utoipa::path(get, path = "/v1/spools/quarantine",
    responses((status = 200, body = Quarantine), (status = 503, body = Problem)))]
async fn quarantine(Extension(service): Shared) -> Result<Json<Quarantine>, Problem> {
    service.quarantine().await.map(Json)
}

/// Let a file out of quarantine: it goes back to its place and starts again
#[utoipa::path(post, path = "/v1/spools/release", request_body = Meant,
    responses((status = 200, body = Quarantine), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn release(
    Extension(service): Shared,
    Given(meant): Given<Meant>,
) -> Result<Json<Quarantine>, Problem> {
    service.release(&meant.file).await?;
    service.quarantine().await.map(Json)
}

/// Run a command on arrival again that failed for good
#[utoipa::path(post, path = "/v1/spools/retry", request_body = Meant,
    responses((status = 200, body = Spools), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn retry(
    State(site): State<Arc<Site>>,
    Extension(service): Shared,
    Given(meant): Given<Meant>,
) -> Result<Json<Spools>, Problem> {
    service.retry(&meant.file)?;
    Ok(list(State(site), Extension(service)).await)
}

#[cfg(test)]
mod tests;
