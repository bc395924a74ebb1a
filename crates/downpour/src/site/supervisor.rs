//! Keeps services at work: starts, drains and stops them as wished, starts again what failed, and says why.
//!
//! Each service has one task here that follows its wish. A service that fails waits longer each time, up to a minute (five
//! seconds for want of the catalog); one that has run for a minute begins anew. One that is told to end meanwhile runs once more
//! for that: it may have left something under way. A service that does not end when told to is cut off after a while.

use super::service::{Fault, Service, Status, Stop, Wish};
use super::{Site, SiteEvent};
use downpour_catalog::ErrorClass;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

/// The pause after the first failure, doubled by each further one, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The longest pause for want of the catalog: all that can be done meanwhile is to look whether it is back.
const CATALOG_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A service that has run this long has recovered.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);
/// How long a service may take to end at once.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// Between two looks whether services have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a service is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It works.
    Running,
    /// It finishes what is under way.
    Draining,
    /// It is told to end.
    Stopping,
    /// It was ended by somebody.
    Stopped,
    /// It failed and will be started again.
    Failed,
}

impl Stage {
    /// Its name in commands and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// Why a service of this name begins nothing, and what to do; `None` while it works.
    pub fn standstill(self, name: &str) -> Option<String> {
        match self {
            Self::Running => None,
            Self::Draining | Self::Stopping | Self::Stopped => Some(format!(
                "the service {name} is {}: downpour service start {name}",
                self.name()
            )),
            Self::Failed => Some(format!(
                "the service {name} failed, and is tried again: downpour service status says why"
            )),
        }
    }

    /// Whether the service has not ended yet.
    const fn is_at_work(self) -> bool {
        matches!(self, Self::Running | Self::Draining | Self::Stopping)
    }
}

/// A service, seen from outside.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub stage: Stage,
    /// Seconds since then.
    pub since_s: f64,
    /// How often it failed.
    pub failures: u64,
    /// Why it failed last: error class and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// Seconds since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_s: Option<f64>,
    /// Seconds until it is started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_s: Option<f64>,
    /// What it says of itself.
    pub status: Status,
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// Name of the error class.
    pub class: String,
    /// What happened.
    pub what: String,
}

/// What can be asked of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Work.
    Start,
    /// End now.
    Stop,
    /// Finish what is under way and end.
    Drain,
    /// End now and start again.
    Restart,
}

/// A verb was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// There is no service of this name.
    Unknown,
    /// This one may not be ended by people.
    Door,
}

/// All services of a site.
pub struct Supervisor {
    units: Vec<Arc<Unit>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Unit {
    service: Arc<dyn Service>,
    wish: watch::Sender<Wish>,
    /// To run again as soon as it has ended.
    again: Mutex<bool>,
    life: Mutex<Life>,
}

struct Life {
    stage: Stage,
    since: Instant,
    failures: u64,
    /// Why it failed last, and when.
    why: Option<(Fault, Instant)>,
    next_try: Option<Instant>,
}

impl Supervisor {
    /// None of them runs yet.
    pub fn new(services: Vec<Arc<dyn Service>>) -> Self {
        let unit = |service| {
            let life = Life {
                stage: Stage::Stopped,
                since: Instant::now(),
                failures: 0,
                why: None,
                next_try: None,
            };
            let (wish, again) = (watch::channel(Wish::Run).0, Mutex::new(false));
            Arc::new(Unit { service, wish, again, life: Mutex::new(life) })
        };
        Self { units: services.into_iter().map(unit).collect(), tasks: Mutex::default() }
    }

    /// Starts all of them.
    pub fn start(&self, site: &Arc<Site>) {
        let spawn = |unit: &Arc<Unit>| tokio::spawn(unit.clone().keep(site.clone()));
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.extend(self.units.iter().map(spawn));
    }

    /// All services as they are.
    pub fn reports(&self) -> Vec<ServiceReport> {
        self.units.iter().map(|unit| unit.report()).collect()
    }

    /// Why this service begins nothing, and what to do; `None` while it works.
    pub fn standstill(&self, name: &str) -> Option<String> {
        let unit = self.units.iter().find(|unit| unit.service.name() == name)?;
        unit.life().stage.standstill(name)
    }

    /// Asks one service, or `all` that people may stop; what they are then.
    pub fn ask(&self, name: &str, verb: Verb) -> Result<Vec<ServiceReport>, NotDone> {
        let all = name == "all";
        let mut asked = Vec::new();
        for unit in self.units.iter().filter(|unit| all || unit.service.name() == name) {
            let ends = matches!(verb, Verb::Stop | Verb::Drain);
            if ends && !unit.service.can_stop() {
                if all {
                    continue;
                }
                return Err(NotDone::Door);
            }
            unit.ask(verb);
            asked.push(unit.report());
        }
        if asked.is_empty() && !all { Err(NotDone::Unknown) } else { Ok(asked) }
    }

    /// Ends all but the door: what is under way may finish for `grace`, then all at once.
    pub async fn end(&self, grace: Duration) {
        let parts: Vec<_> = self.units.iter().filter(|unit| unit.service.can_stop()).collect();
        parts.iter().for_each(|unit| unit.ask(Verb::Drain));
        if timeout(grace, ended(&parts)).await.is_err() {
            parts.iter().for_each(|unit| unit.ask(Verb::Stop));
            ended(&parts).await;
        }
    }

    /// Ends what is left, the door, and lets go of everything.
    pub async fn close(&self) {
        let all: Vec<_> = self.units.iter().collect();
        all.iter().for_each(|unit| unit.ask(Verb::Stop));
        ended(&all).await;
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

async fn ended(units: &[&Arc<Unit>]) {
    for unit in units {
        while unit.life().stage != Stage::Stopped {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Unit {
    fn ask(&self, verb: Verb) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let (wish, stage) = (*self.wish.borrow(), self.life().stage);
        let (wish, then) = match verb {
            // What was told to end does: it may have begun to.
            Verb::Start if wish != Wish::Run && stage.is_at_work() => (wish, true),
            Verb::Start => (Wish::Run, false),
            Verb::Stop => (Wish::Stop, false),
            Verb::Drain => (Wish::Drain, false),
            Verb::Restart if stage == Stage::Stopped => (Wish::Run, false),
            Verb::Restart => (Wish::Stop, true),
        };
        *again = then;
        self.wish.send_replace(wish);
        let mut life = self.life();
        match (wish, life.stage) {
            (Wish::Drain, Stage::Running) => life.enter(Stage::Draining),
            (Wish::Stop, Stage::Running | Stage::Draining) => life.enter(Stage::Stopping),
            _ => {}
        }
    }

    /// Follows the wish for as long as the daemon lives.
    async fn keep(self: Arc<Self>, site: Arc<Site>) {
        let mut seen = self.wish.subscribe();
        let (mut pause, mut has_failed) = (PAUSE.0, false);
        loop {
            // What failed may have left something under way: also to end it runs once more.
            if !has_failed {
                self.go_again();
                if seen.wait_for(|wish| *wish == Wish::Run).await.is_err() {
                    return;
                }
            }
            let stage = match *seen.borrow() {
                Wish::Run => Stage::Running,
                Wish::Drain => Stage::Draining,
                Wish::Stop => Stage::Stopping,
            };
            self.enter(&site, stage, None);
            let begun = Instant::now();
            let ended = self.run(&site).await;
            if begun.elapsed() >= RECOVERED_AFTER {
                pause = PAUSE.0;
            }
            has_failed = ended.is_err() && *seen.borrow() == Wish::Run;
            match ended {
                Err(fault) if has_failed => {
                    tracing::warn!(service = self.service.name(), %fault, "failed");
                    if fault.class == ErrorClass::CatalogUnreachable {
                        pause = pause.min(CATALOG_PAUSE_MAX);
                    }
                    self.enter(&site, Stage::Failed, Some((fault, Instant::now() + pause)));
                    // Whoever asks for something need not wait.
                    let _ = timeout(pause, seen.changed()).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                ended => {
                    if let Err(fault) = ended {
                        tracing::warn!(service = self.service.name(), %fault, "failed while ending");
                    } else if *seen.borrow() == Wish::Run {
                        self.wish.send_replace(Wish::Stop);
                    }
                    pause = PAUSE.0;
                    self.enter(&site, Stage::Stopped, None);
                }
            }
        }
    }

    /// Runs it once; its panics are faults, and if it does not end in time it is cut off.
    async fn run(&self, site: &Arc<Site>) -> Result<(), Fault> {
        let stop = Stop::of(self.wish.subscribe());
        let mut task = tokio::spawn(self.service.clone().run(site.clone(), stop.clone()));
        let ended = tokio::select! {
            ended = &mut task => Some(ended),
            () = stop.now() => timeout(STOP_TIME_MAX, &mut task).await.ok(),
        };
        match ended {
            Some(Ok(result)) => result,
            Some(Err(panic)) => Err(Fault::new(ErrorClass::Internal, panic.to_string())),
            None => {
                task.abort();
                // It ends at its next await.
                let _ = task.await;
                Err(Fault::new(ErrorClass::Internal, "did not end in time and was cut off"))
            }
        }
    }

    fn enter(&self, site: &Site, stage: Stage, failed: Option<(Fault, Instant)>) {
        let mut life = self.life();
        if life.stage == stage && failed.is_none() {
            return;
        }
        life.enter(stage);
        if let Some((fault, next_try)) = failed {
            life.failures += 1;
            life.why = Some((fault, Instant::now()));
            life.next_try = Some(next_try);
        }
        drop(life);
        tracing::info!(service = self.service.name(), stage = stage.name(), "service");
        site.events.tell(SiteEvent::SERVICE, &self.report());
    }

    /// Has ended; wishes what was asked for after that.
    fn go_again(&self) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *again) {
            self.wish.send_replace(Wish::Run);
        }
    }

    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self) -> ServiceReport {
        let status = self.service.status();
        let life = self.life();
        let why = |fault: &Fault| Why { class: fault.class.to_string(), what: fault.what.clone() };
        let until = |at: Instant| at.saturating_duration_since(Instant::now()).as_secs_f64();
        ServiceReport {
            name: self.service.name().to_owned(),
            stage: life.stage,
            since_s: life.since.elapsed().as_secs_f64(),
            failures: life.failures,
            why: life.why.as_ref().map(|(fault, _)| why(fault)),
            failed_s: life.why.as_ref().map(|(_, at)| at.elapsed().as_secs_f64()),
            next_try_s: life.next_try.map(until),
            status,
        }
    }
}

impl Life {
    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.since = Instant::now();
        self.next_try = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Daemon, Fault, Running, Service, Site, Status, Stop};
    use super::{ServiceReport, Stage, Supervisor, Verb};
    use downpour_catalog::ErrorClass;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    /// Fails, then panics, then works and listens to its stop or not.
    struct Frail {
        obeys: bool,
        runs: AtomicUsize,
    }

    impl Service for Frail {
        fn name(&self) -> &'static str {
            "frail"
        }

        fn run(self: Arc<Self>, _site: Arc<Site>, stop: Stop) -> Running {
            let run = self.runs.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                match run {
                    0 => Err(Fault::new(ErrorClass::CatalogUnreachable, "no database")),
                    1 => panic!("a bug"),
                    _ if self.obeys => {
                        stop.asked().await;
                        // The end takes its time.
                        sleep(Duration::from_millis(100)).await;
                        Ok(())
                    }
                    _ => std::future::pending().await,
                }
            })
        }

        fn status(&self) -> Status {
            Status::line("frail").with("runs_total", self.runs.load(Ordering::Relaxed) as f64)
        }
    }

    async fn site(folder: &std::path::Path) -> Arc<Site> {
        // Its own services would hold up a clock that the test turns.
        Daemon::ended(folder, "a", "").await
    }

    fn started(site: &Arc<Site>, service: Arc<Frail>) -> Supervisor {
        let supervisor = Supervisor::new(vec![service]);
        supervisor.start(site);
        supervisor
    }

    fn report(supervisor: &Supervisor) -> ServiceReport {
        supervisor.reports().remove(0)
    }

    async fn reaches(supervisor: &Supervisor, stage: Stage, failures: u64) -> ServiceReport {
        loop {
            let report = report(supervisor);
            if report.stage == stage && report.failures == failures {
                return report;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn what_fails_is_started_again_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let site = site(folder.path()).await;
        tokio::time::pause();
        let frail = Arc::new(Frail { obeys: true, runs: AtomicUsize::new(0) });
        let supervisor = started(&site, frail);
        let first = reaches(&supervisor, Stage::Failed, 1).await;
        assert_eq!(first.why.unwrap().class, "catalog-unreachable");
        assert!(first.next_try_s.unwrap() <= 1.0);
        let second = reaches(&supervisor, Stage::Failed, 2).await;
        assert!(second.why.unwrap().what.contains("panic"));
        let third = reaches(&supervisor, Stage::Running, 2).await;
        assert_eq!(third.status.figures["runs_total"], 3.0);
        supervisor.ask("frail", Verb::Drain).unwrap();
        reaches(&supervisor, Stage::Stopped, 2).await;
        supervisor.ask("all", Verb::Start).unwrap();
        reaches(&supervisor, Stage::Running, 2).await;
        supervisor.ask("frail", Verb::Restart).unwrap();
        while report(&supervisor).status.figures["runs_total"] < 5.0 {
            sleep(Duration::from_millis(1)).await;
        }
        supervisor.end(Duration::from_secs(1)).await;
        assert_eq!(report(&supervisor).stage, Stage::Stopped);
    }

    #[tokio::test]
    async fn what_is_told_to_end_after_it_failed_runs_once_more_for_that() {
        let folder = tempfile::tempdir().unwrap();
        let site = site(folder.path()).await;
        tokio::time::pause();
        for (verb, runs) in [(Verb::Drain, 3.0), (Verb::Stop, 3.0), (Verb::Restart, 4.0)] {
            let frail = Arc::new(Frail { obeys: true, runs: AtomicUsize::new(0) });
            let supervisor = started(&site, frail);
            reaches(&supervisor, Stage::Failed, 2).await;
            supervisor.ask("frail", verb).unwrap();
            let then = if verb == Verb::Restart { Stage::Running } else { Stage::Stopped };
            reaches(&supervisor, then, 2).await;
            // Longer than the longest pause.
            sleep(Duration::from_secs(100)).await;
            let report = report(&supervisor);
            assert_eq!((report.stage, report.status.figures["runs_total"]), (then, runs));
        }
    }

    #[tokio::test]
    async fn what_is_started_while_it_ends_runs_again() {
        let folder = tempfile::tempdir().unwrap();
        let site = site(folder.path()).await;
        tokio::time::pause();
        let frail = Arc::new(Frail { obeys: true, runs: AtomicUsize::new(2) });
        let supervisor = started(&site, frail.clone());
        reaches(&supervisor, Stage::Running, 0).await;
        // Before the service has looked, and when it has begun to end.
        for (verb, looked_ms) in
            [(Verb::Drain, 0), (Verb::Drain, 50), (Verb::Stop, 0), (Verb::Stop, 50)]
        {
            let runs = frail.runs.load(Ordering::Relaxed);
            supervisor.ask("frail", verb).unwrap();
            if looked_ms > 0 {
                sleep(Duration::from_millis(looked_ms)).await;
            }
            supervisor.ask("frail", Verb::Start).unwrap();
            assert_ne!(report(&supervisor).stage, Stage::Running);
            let runs_again = async {
                while frail.runs.load(Ordering::Relaxed) == runs {
                    sleep(Duration::from_millis(1)).await;
                }
                reaches(&supervisor, Stage::Running, 0).await
            };
            let again = timeout(Duration::from_secs(60), runs_again).await;
            again.unwrap_or_else(|_| panic!("{verb:?} after {looked_ms} ms"));
        }
        // The last word counts.
        supervisor.ask("frail", Verb::Restart).unwrap();
        supervisor.ask("frail", Verb::Drain).unwrap();
        reaches(&supervisor, Stage::Stopped, 0).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(report(&supervisor).stage, Stage::Stopped);
    }

    #[tokio::test]
    async fn what_does_not_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let site = site(folder.path()).await;
        tokio::time::pause();
        let deaf = Arc::new(Frail { obeys: false, runs: AtomicUsize::new(2) });
        let supervisor = started(&site, deaf);
        reaches(&supervisor, Stage::Running, 0).await;
        supervisor.ask("frail", Verb::Drain).unwrap();
        assert_eq!(report(&supervisor).stage, Stage::Draining);
        supervisor.end(Duration::from_secs(1)).await;
        assert_eq!(report(&supervisor).stage, Stage::Stopped);
    }
}
