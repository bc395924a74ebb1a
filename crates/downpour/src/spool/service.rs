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
use super::read::lock;
use super::root::Now;
use super::rule::Rules;
use super::section::{RuleSection, SpoolSection};
use crate::api::{Allow, Given, Problem, Routes};
use crate::site::{Clock, Fault, Part, Running, Service, Site, Status, Stop, Wish};
use axum::{Extension, Json};
use downpour_catalog::ErrorClass;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use utoipa::{OpenApi, ToSchema};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(250);
/// Ticks that an earlier run may take to leave a place before that is trouble: it leaves its tick, and its spool.
const TICKS_USUAL: u32 = 4;
/// Ticks that it may take before that is logged.
const TICKS_MAX: u32 = 40;
/// File in the state folder with what commands are open.
const ARRIVALS: &str = "arrivals.json";

/// Why nothing is done in a place.
const STILL_THERE: &str =
    "the last run is still at work there: it copies a file, or the disk does not answer";

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
}

/// What is in quarantine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Quarantine {
    /// In all spools.
    pub files: Vec<InQuarantine>,
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
    /// Of the spool of this folder, the file that is meant.
    Release(String, String, oneshot::Sender<Result<(), String>>),
}

/// The service.
#[derive(Default)]
pub struct SpoolService {
    /// Where threads are at work, also those of a run that is over.
    at_work: Mutex<BTreeSet<PathBuf>>,
    /// Set, and made anew, when the service was stopped: copies break off then.
    stopped: Mutex<Arc<AtomicBool>>,
    spools: Mutex<Vec<SpoolStatus>>,
    failing: Mutex<Vec<Failing>>,
    commands: Mutex<u64>,
    /// The spools at work.
    asks: Mutex<Vec<mpsc::Sender<Ask>>>,
    /// Takes files whose command is to be tried again. It is not waited for: a command may run.
    retries: Mutex<Option<mpsc::Sender<i64>>>,
}

/// A run: when it is over its threads end, each after its tick.
struct Run {
    service: Arc<SpoolService>,
    stop: Stop,
    over: Arc<AtomicBool>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        lock(&self.service.asks).clear();
        *lock(&self.service.retries) = None;
        if self.stop.wish() != Wish::Run {
            std::mem::take(&mut *lock(&self.service.stopped)).store(true, Ordering::Relaxed);
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
    /// this run is over before.
    fn enter<'a>(&'a self, place: &'a Path, pause: impl Fn(u32)) -> Option<AtWork<'a>> {
        let mut pauses = 0;
        while !lock(&self.service.at_work).insert(place.to_owned()) {
            pause(pauses);
            pauses += 1;
            if self.is_over() {
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
        let mut spool = Spool::open(section, rules, catalog, stopped)?;
        while self.goes_on() {
            spool.tick(self.now())?;
            let status = spool.status();
            for notice in spool.take_notices() {
                tracing::info!(target: "spool", folder = %status.folder, "{notice}");
            }
            self.show(index, |shown| *shown = status);
            let until = Instant::now() + TICK;
            while let Ok(ask) = asked.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                self.answer(&mut spool, ask)?;
            }
        }
        Ok(())
    }

    fn answer(&self, spool: &mut Spool, ask: Ask) -> Result<(), SpoolError> {
        match ask {
            Ask::Quarantine(reply) => {
                let folder = spool.status().folder;
                let of = |(place, reason)| InQuarantine { spool: folder.clone(), place, reason };
                let _ = reply.send(spool.quarantine().into_iter().map(of).collect());
            }
            Ask::Release(folder, meant, reply) if folder == spool.status().folder => {
                let _ = reply.send(spool.release(self.now(), &meant)?);
            }
            Ask::Release(_, _, reply) => drop(reply),
        }
        Ok(())
    }

    fn arrivals(&self, rules: Arc<Rules>, asked: &mpsc::Receiver<i64>) -> Result<(), SpoolError> {
        let place = self.site.config().state().join(ARRIVALS);
        let Some(_alone) = self.enter(&place, |_| thread::sleep(TICK)) else { return Ok(()) };
        let mut arrivals = Arrivals::open(self.site.catalog.clone(), rules, &place)?;
        while self.goes_on() {
            let more = arrivals.tick(self.now(), &|| self.wish())?;
            lock(&self.service.failing).clear();
            lock(&self.service.failing).extend_from_slice(arrivals.failing());
            *lock(&self.service.commands) = arrivals.done();
            let until = Instant::now() + if more { Duration::ZERO } else { TICK };
            while let Ok(file) = asked.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                arrivals.retry(self.now(), file);
            }
        }
        Ok(())
    }
}

impl SpoolService {
    /// Runs all spools once; ends when asked to, when one fails, or when the sections are no longer these.
    async fn work(self: &Arc<Self>, site: &Arc<Site>, stop: &Stop) -> Result<(), Fault> {
        let mut changes = site.config_changes();
        let now = sections(site);
        let (spools, rules) = &now;
        let rules = Arc::new(Rules::new(&site.name, rules));
        let run = Run { service: self.clone(), stop: stop.clone(), over: Arc::default() };
        let (began, stopped) = (Instant::now(), lock(&self.stopped).clone());
        let worker = || {
            let (service, site, stop) = (self.clone(), site.clone(), stop.clone());
            let (over, stopped, clock) = (run.over.clone(), stopped.clone(), site.clock.clone());
            Worker { service, site, stop, over, stopped, began, clock }
        };
        *lock(&self.spools) = spools.iter().map(SpoolStatus::of).collect();
        let (mut asks, mut jobs) = (Vec::new(), JoinSet::new());
        for (index, section) in spools.iter().enumerate() {
            let (worker, of) = (worker(), (section.clone(), rules.clone()));
            let (ask, asked) = mpsc::channel();
            asks.push(ask);
            jobs.spawn_blocking(move || worker.spool(index, of, &asked));
        }
        let (worker, (retry, asked)) = (worker(), mpsc::channel());
        jobs.spawn_blocking(move || worker.arrivals(rules, &asked));
        *lock(&self.asks) = asks;
        *lock(&self.retries) = Some(retry);
        loop {
            tokio::select! {
                done = jobs.join_next() => match done {
                    Some(done) => done?.map_err(|error| {
                        Fault::new(ErrorClass::CatalogUnreachable, error.to_string())
                    })?,
                    None => return Ok(()),
                },
                changed = changes.changed() => {
                    if changed.is_ok() && sections(site) != now {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Asks all spools; the answers of those that are at work.
    async fn ask<T>(&self, make: impl Fn(oneshot::Sender<T>) -> Ask) -> Vec<T> {
        let asks = lock(&self.asks).clone();
        let mut answers = Vec::new();
        for ask in asks {
            let (reply, answer) = oneshot::channel();
            if ask.send(make(reply)).is_ok()
                && let Ok(answer) = answer.await
            {
                answers.push(answer);
            }
        }
        answers
    }

    /// Releases the file that is meant from the one quarantine in which it lies.
    async fn release(&self, meant: &str) -> Result<(), Problem> {
        let answers = self.ask(Ask::Quarantine).await;
        let (answered, files) = (answers.len(), answers.concat());
        let lies = files.into_iter().filter(|file| file.reason.is_meant(&file.place, meant));
        let folders: Vec<String> =
            lies.map(|file| file.spool).collect::<BTreeSet<_>>().into_iter().collect();
        let folder = match &folders[..] {
            [folder] => folder,
            [] => return Err(Problem::not_found(self.no_such_file(meant, answered))),
            [a, b, ..] => {
                let what = format!("`{meant}` lies in the quarantines of {a} and of {b}");
                let todo = "give its number, as `downpour spool quarantine` shows it";
                return Err(Problem::bad_request(what, todo));
            }
        };
        let release = |reply| Ask::Release(folder.clone(), meant.to_owned(), reply);
        let answer = self.ask(release).await.into_iter().next();
        let gone = || Err(format!("the spool {folder} is not at work"));
        answer.unwrap_or_else(gone).map_err(Problem::not_found)
    }

    fn no_such_file(&self, meant: &str, answered: usize) -> String {
        let spools = lock(&self.spools);
        let of = if answered < spools.len() { " of a spool that answers" } else { "" };
        let away = spools.iter().filter(|spool| !spool.trouble.is_empty());
        let away: Vec<_> = away.map(|s| format!("; {}: {}", s.folder, s.trouble)).collect();
        format!("no file `{meant}` is in quarantine{of}{}", away.concat())
    }
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
            ("files_taken_in_total", sum(|s| s.taken_in as f64)),
            ("bytes_read_total", sum(|s| s.bytes_read as f64)),
            ("overflows_total", sum(|s| s.overflows as f64)),
            ("full_share", spools.iter().map(|s| s.occupancy.share).fold(0.0, f64::max)),
            ("commands_total", *lock(&self.commands) as f64),
            ("commands_failing", lock(&self.failing).len() as f64),
        ] {
            figures.insert(name.to_owned(), value);
        }
        let trouble = spools.iter().filter(|spool| !spool.trouble.is_empty());
        let trouble: Vec<_> = trouble.map(|s| format!("; {}: {}", s.folder, s.trouble)).collect();
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
async fn list(Extension(service): Shared) -> Json<Spools> {
    let (spools, failing) = (lock(&service.spools).clone(), lock(&service.failing).clone());
    Json(Spools { spools, failing })
}

/// What is in quarantine, and why
#[utoipa::path(get, path = "/v1/spools/quarantine", responses((status = 200, body = Quarantine)))]
async fn quarantine(Extension(service): Shared) -> Json<Quarantine> {
    let files = service.ask(Ask::Quarantine).await.concat();
    Json(Quarantine { files })
}

/// Let a file out of quarantine: it goes back to its place and starts again
#[utoipa::path(post, path = "/v1/spools/release", request_body = Meant,
    responses((status = 200, body = Quarantine), (status = 404, body = Problem)))]
async fn release(
    Extension(service): Shared,
    Given(meant): Given<Meant>,
) -> Result<Json<Quarantine>, Problem> {
    service.release(&meant.file).await?;
    Ok(quarantine(Extension(service)).await)
}

/// Run a command on arrival again that failed for good
#[utoipa::path(post, path = "/v1/spools/retry", request_body = Meant,
    responses((status = 200, body = Spools), (status = 404, body = Problem)))]
async fn retry(
    Extension(service): Shared,
    Given(meant): Given<Meant>,
) -> Result<Json<Spools>, Problem> {
    let todo = "give its number, as `downpour spool status` shows it";
    let wrong = |_| Problem::bad_request(format!("`{}` is no number of a file", meant.file), todo);
    let file = meant.file.parse().map_err(wrong)?;
    let is_open = lock(&service.failing).iter().any(|failing| failing.file == file);
    let send = |retries: &mpsc::Sender<i64>| retries.send(file).is_ok();
    if is_open && lock(&service.retries).as_ref().is_some_and(send) {
        return Ok(list(Extension(service)).await);
    }
    Err(Problem::not_found(format!("no command for file {file} is open")))
}

#[cfg(test)]
mod tests {
    use super::{
        Ask, InQuarantine, Instant, Ordering, Rules, STILL_THERE, SetApart, SpoolSection,
        SpoolService, SpoolStatus, TICKS_USUAL, Worker, lock,
    };
    use crate::site::{Clock, Daemon, Service, Stop, Wish};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;
    use std::{fs, thread};
    use tokio::sync::oneshot::{
        self,
        error::TryRecvError::{Closed, Empty},
    };
    use tokio::time::{sleep, timeout};

    /// A service whose spools have these files in quarantine (folder, path, number); and what is released.
    fn service(
        spools: Vec<(&'static str, Vec<(&'static str, i64)>)>,
    ) -> (SpoolService, Arc<Mutex<Vec<&'static str>>>) {
        let (service, released) = (SpoolService::default(), Arc::new(Mutex::new(Vec::new())));
        for (own, files) in spools {
            let (ask, asked) = mpsc::channel();
            lock(&service.asks).push(ask);
            let released = released.clone();
            let lying = move |(path, file): &(&str, i64)| {
                let (class, text) = ("digest-differs".to_owned(), String::new());
                let path = (*path).to_owned();
                let place = format!(".quarantine/{path}");
                let reason = SetApart { path, file: *file, class, text, since: 0 };
                InQuarantine { spool: own.to_owned(), place, reason }
            };
            thread::spawn(move || {
                for ask in asked {
                    match ask {
                        Ask::Quarantine(reply) => {
                            let _ = reply.send(files.iter().map(lying).collect());
                        }
                        Ask::Release(folder, _, reply) if folder == own => {
                            lock(&released).push(own);
                            let _ = reply.send(Err("another file is called so by now".to_owned()));
                        }
                        _ => {}
                    }
                }
            });
        }
        (service, released)
    }

    #[tokio::test]
    async fn a_file_is_released_where_it_lies_and_that_spools_answer_is_told() {
        let spools = vec![("/a", vec![("x", 1), ("both", 2)]), ("/b", vec![("y", 3), ("both", 4)])];
        let (service, released) = service(spools);
        for (meant, said, by) in [
            ("y", "another file", vec!["/b"]),
            ("both", "of /a and of /b", vec![]),
            ("4", "another file", vec!["/b"]),
            ("z", "no file `z`", vec![]),
        ] {
            let problem = service.release(meant).await.unwrap_err();
            assert!(problem.what.contains(said), "{meant}: {}", problem.what);
            assert_eq!(std::mem::take(&mut *lock(&released)), by, "{meant}");
        }
        // A third one gave no answer.
        *lock(&service.spools) = vec![SpoolStatus::default(); 3];
        let problem = service.release("z").await.unwrap_err();
        assert!(problem.what.contains("of a spool that answers"), "{}", problem.what);
    }

    #[tokio::test]
    async fn what_is_asked_stands_until_the_last_run_has_left_if_that_is_soon() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        fs::write(&file, "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n").unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        daemon.end(Duration::ZERO).await;
        let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
        let section: SpoolSection = toml::from_str("folder = '/data/in'").unwrap();
        lock(&service.spools).push(SpoolStatus::of(&section));
        let (over, stopped) = Default::default();
        let (site, began, clock) = (daemon.site.clone(), Instant::now(), Clock::system());
        let worker = Worker { service, site, stop, over, stopped, began, clock };
        let ((ask, asked), (reply, mut answer)) = (mpsc::channel(), oneshot::channel());
        ask.send(Ask::Quarantine(reply)).unwrap();
        let trouble = || lock(&worker.service.spools)[0].trouble.clone();
        worker.pause(0, TICKS_USUAL - 1, &asked);
        assert_eq!((answer.try_recv().unwrap_err(), trouble().as_str()), (Empty, ""));
        worker.pause(0, TICKS_USUAL, &asked);
        assert_eq!((answer.try_recv().unwrap_err(), trouble().as_str()), (Closed, STILL_THERE));
        // It has left: that is no trouble any more, before all is looked at.
        wish.send_replace(Wish::Stop);
        let (worker, of) = (&worker, (section, Arc::new(Rules::new("a", &[]))));
        let spool = move || worker.spool(0, of, &asked).unwrap();
        thread::scope(|threads| threads.spawn(spool).join()).unwrap();
        assert_eq!(trouble(), "");
    }

    /// Of a site with one spool; a second one comes with a reload, and what is open is a pipe at which the first run stands.
    #[tokio::test]
    async fn a_thread_that_hangs_holds_its_own_place_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let mut text = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n".to_owned();
        fs::write(&file, &text).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        text += "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
                 [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\n";
        let mut add = |name: &str| {
            let spool = folder.path().join(name);
            fs::create_dir(&spool).unwrap();
            text += &format!("[[spool]]\nfolder = {spool:?}\nprefix = '{name}/'\n");
            fs::write(&file, &text).unwrap();
            spool
        };
        let one = add("one");
        assert!(daemon.reload().await);
        daemon.end(Duration::ZERO).await;
        let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
        let pipe = daemon.site.config().state().join(super::ARRIVALS);
        let _ = fs::remove_file(&pipe);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let run = || tokio::spawn(service.clone().run(daemon.site.clone(), stop.clone()));
        let answer = async |count| {
            let answers = async {
                while service.ask(Ask::Quarantine).await.len() != count {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(60), answers).await.expect("answers");
        };
        let until = async |is: &dyn Fn() -> bool| {
            let waits = async {
                while !is() {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(60), waits).await.expect("it comes");
        };
        let stopped = lock(&service.stopped).clone();
        let first = run();
        answer(1).await;
        add("two");
        assert!(daemon.reload().await);
        answer(2).await;
        first.abort();
        let _ = first.await;
        assert!(!stopped.load(Ordering::Relaxed), "a copy goes on");
        // Somebody is still at work in one of them.
        until(&|| lock(&service.at_work).insert(one.clone())).await;
        let second = run();
        answer(1).await;
        until(&|| !lock(&service.spools)[0].trouble.is_empty()).await;
        assert_eq!(service.ask(Ask::Quarantine).await.len(), 1);
        lock(&service.at_work).remove(&one);
        answer(2).await;
        wish.send_replace(Wish::Stop);
        second.abort();
        let _ = second.await;
        assert!(stopped.load(Ordering::Relaxed), "a copy breaks off");
        fs::write(&pipe, "").unwrap();
    }
}
