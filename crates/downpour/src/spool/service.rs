//! The service `spool`: all spools of the site and the commands for what arrives, each on a thread of its own, and what can be
//! asked of them.
//!
//! The threads tick until the service is asked to end; there is nothing to finish, for whatever is half done is taken up again at the
//! next start. When the sections change, all begin again. A tick is not cut off with the service: whoever begins waits until the
//! threads of the last run have ended, so no two of them work in one folder.

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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use utoipa::{OpenApi, ToSchema};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(250);
/// File in the state folder with what commands are open.
const ARRIVALS: &str = "arrivals.json";

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
    /// Held by the threads at work, also after the service was cut off.
    at_work: Arc<tokio::sync::Mutex<()>>,
    spools: Mutex<Vec<SpoolStatus>>,
    failing: Mutex<Vec<Failing>>,
    commands: Mutex<u64>,
    /// The spools at work.
    asks: Mutex<Vec<mpsc::Sender<Ask>>>,
    /// Takes files whose command is to be tried again. It is not waited for: a command may run.
    retries: Mutex<Option<mpsc::Sender<i64>>>,
}

/// Tells the threads to end when nobody waits for them any more.
struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a thread works with.
struct Worker {
    service: Arc<SpoolService>,
    site: Arc<Site>,
    stop: Stop,
    ending: Arc<AtomicBool>,
    began: Instant,
    clock: Clock,
}

impl Worker {
    fn now(&self) -> Now {
        Now { steady: self.began.elapsed(), wall: self.clock.now() }
    }

    fn wish(&self) -> Wish {
        if self.ending.load(Ordering::Relaxed) { Wish::Stop } else { self.stop.wish() }
    }

    fn goes_on(&self) -> bool {
        self.wish() == Wish::Run
    }

    /// Ticks until it is time to end; answers in between.
    fn spool(
        &self,
        index: usize,
        mut spool: Spool,
        asked: &mpsc::Receiver<Ask>,
    ) -> Result<(), SpoolError> {
        while self.goes_on() {
            spool.tick(self.now())?;
            let status = spool.status();
            let mut said = lock(&self.service.spools);
            for notice in spool.take_notices() {
                tracing::info!(target: "spool", folder = %status.folder, "{notice}");
            }
            said[index] = status;
            drop(said);
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

    fn arrivals(
        &self,
        mut arrivals: Arrivals,
        asked: &mpsc::Receiver<i64>,
    ) -> Result<(), SpoolError> {
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
    /// Runs all spools once; ends when asked to, or when the sections are no longer these.
    fn work(
        self: &Arc<Self>,
        site: &Arc<Site>,
        stop: &Stop,
        ending: &Arc<AtomicBool>,
        sections: &(Vec<SpoolSection>, Vec<RuleSection>),
    ) -> Result<(), Fault> {
        let (spools, rules) = sections;
        let rules = Arc::new(Rules::new(&site.name, rules));
        let began = Instant::now();
        let mut asks = Vec::new();
        let worker = || {
            let (service, site, stop) = (self.clone(), site.clone(), stop.clone());
            let (ending, clock) = (ending.clone(), site.clock.clone());
            Worker { service, site, stop, ending, began, clock }
        };
        type Job = Box<dyn FnOnce() -> Result<(), SpoolError> + Send>;
        let mut jobs: Vec<Job> = Vec::new();
        for (index, section) in spools.iter().enumerate() {
            let (worker, section, rules) = (worker(), section.clone(), rules.clone());
            let (ask, asked) = mpsc::channel();
            asks.push(ask);
            jobs.push(Box::new(move || {
                let (catalog, ending) = (worker.site.catalog.clone(), worker.ending.clone());
                worker.spool(index, Spool::open(section, rules, catalog, ending)?, &asked)
            }));
        }
        let (worker, (retry, asked)) = (worker(), mpsc::channel());
        let place = site.config().state().join(ARRIVALS);
        jobs.push(Box::new(move || {
            let catalog = worker.site.catalog.clone();
            worker.arrivals(Arrivals::open(catalog, rules, &place)?, &asked)
        }));
        *lock(&self.spools) = spools.iter().map(SpoolStatus::of).collect();
        *lock(&self.asks) = asks;
        *lock(&self.retries) = Some(retry);
        let ending: &AtomicBool = ending;
        let ended = thread::scope(|scope| {
            let run = |job: Job| {
                scope.spawn(move || {
                    let done = job();
                    // One that fails ends all; all begin again.
                    if done.is_err() {
                        ending.store(true, Ordering::Relaxed);
                    }
                    done
                })
            };
            let threads: Vec<_> = jobs.into_iter().map(run).collect();
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        lock(&self.asks).clear();
        *lock(&self.retries) = None;
        for done in ended {
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    return Err(Fault::new(ErrorClass::CatalogUnreachable, error.to_string()));
                }
                Err(_) => return Err(Fault::new(ErrorClass::Internal, "a thread of it failed")),
            }
        }
        Ok(())
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
        let files = self.ask(Ask::Quarantine).await.concat();
        let lies = files.into_iter().filter(|file| file.reason.is_meant(&file.place, meant));
        let folders: Vec<String> =
            lies.map(|file| file.spool).collect::<BTreeSet<_>>().into_iter().collect();
        let folder = match &folders[..] {
            [folder] => folder,
            [] => return Err(Problem::not_found(self.no_such_file(meant))),
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

    fn no_such_file(&self, meant: &str) -> String {
        let spools = lock(&self.spools);
        let away = spools.iter().filter(|spool| !spool.trouble.is_empty());
        let away: Vec<_> = away.map(|s| format!("; {}: {}", s.folder, s.trouble)).collect();
        format!("no file `{meant}` is in quarantine{}", away.concat())
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
            let mut changes = site.config_changes();
            while stop.wish() == Wish::Run {
                let alone = tokio::select! {
                    alone = self.at_work.clone().lock_owned() => alone,
                    () = stop.asked() => break,
                };
                let ending = Arc::new(AtomicBool::new(false));
                let _ending = Ending(ending.clone());
                let now = sections(&site);
                let (service, of, asked, same) =
                    (self.clone(), site.clone(), stop.clone(), now.clone());
                let flag = ending.clone();
                let work = tokio::task::spawn_blocking(move || {
                    let _alone = alone;
                    service.work(&of, &asked, &flag, &same)
                });
                tokio::pin!(work);
                loop {
                    tokio::select! {
                        done = &mut work => {
                            done??;
                            break;
                        }
                        changed = changes.changed() => {
                            if changed.is_ok() && sections(&site) != now {
                                ending.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                }
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
    use super::{Ask, InQuarantine, SetApart, SpoolService, lock};
    use crate::site::{Clock, Daemon, Service, Stop};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;
    use std::{fs, thread};
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
    }

    /// A thread of the first run stands where it opens a pipe.
    #[tokio::test]
    async fn a_run_that_was_cut_off_ends_before_the_next_one_begins() {
        let folder = tempfile::tempdir().unwrap();
        let (file, spool) = (folder.path().join("site.toml"), folder.path().join("spool"));
        fs::create_dir(&spool).unwrap();
        let text = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n";
        fs::write(&file, text).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        let text = format!(
            "{text}[[spool]]\nfolder = {spool:?}\n[[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\n\
             [[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n"
        );
        fs::write(&file, text).unwrap();
        assert!(daemon.reload().await);
        daemon.end(Duration::ZERO).await;
        let (service, (_wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
        let pipe = daemon.site.config().state().join(super::ARRIVALS);
        let _ = fs::remove_file(&pipe);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let run = || tokio::spawn(service.clone().run(daemon.site.clone(), stop.clone()));
        let answers = async |count| {
            while service.ask(Ask::Quarantine).await.len() != count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let first = run();
        timeout(Duration::from_secs(60), answers(1)).await.unwrap();
        first.abort();
        let _ = first.await;
        // The others of it have ended.
        timeout(Duration::from_secs(60), answers(0)).await.unwrap();
        let is_held = service.at_work.try_lock().is_err();
        let second = run();
        fs::write(&pipe, "").unwrap();
        assert!(is_held);
        timeout(Duration::from_secs(60), answers(1)).await.unwrap();
        second.abort();
    }
}
