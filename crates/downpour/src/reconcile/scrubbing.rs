//! The service that scrubs: now and then, at the rate that the configuration gives.
//!
//! The state folder knows when the last scrub ended, and where one is that was cut short: a daemon that starts anew goes on there,
//! and waits only for what is left of the time between two.

use super::report::{self, Report, Verdict};
use super::scrub::{Pace, ScrubOrder, Scrubbed, scrub};
use super::service::{ReconcileSection, Runs, tell};
use crate::site::{Config, Fault, Running, Service, Site, Status, Stop, Wish, blocking};
use crate::units::show_bytes;
use crate::whole::put;
use downpour_catalog::{ErrorClass, FileId, Time};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep before it looks whether it is to end.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The mark's file, beside the reports.
pub(super) const MARK: &str = "scrub.mark";
/// Why none begins beside one that was cut off.
const HANGS: &str = "the scrub before this one still waits for a disk: look for one that hangs";

/// The service.
#[derive(Default)]
pub(super) struct Scrub {
    files: AtomicU64,
    bytes: AtomicU64,
    line: Mutex<String>,
    runs: Mutex<Runs>,
    asked: tokio::sync::Notify,
    /// Held by one until its thread is through, also when it was cut off.
    at_work: tokio::sync::Mutex<()>,
}

/// One has ended also when it is cut off, in a read that hangs: who waits for its end would do so for ever.
struct Ending<'a>(&'a Scrub);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.count(|runs| runs.ended = runs.begun);
    }
}

impl Service for Scrub {
    fn name(&self) -> &'static str {
        "scrub"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            let mut changes = site.config_changes();
            loop {
                let (config, now) = (changes.borrow_and_update().clone(), site.clock.now());
                let mark = Mark::read(mark_in(&config), now).await?;
                tokio::select! {
                    // One that is due and asked for is made once.
                    biased;
                    () = stop.asked() => return Ok(()),
                    () = self.asked.notified() => {}
                    () = tokio::time::sleep(mark.due(*config.reconcile.scrub_every, now)) => {}
                    Ok(()) = changes.changed() => continue,
                }
                let (this, site) = (self.clone(), site.clone());
                self.count(|runs| runs.begun += 1);
                let ending = Ending(&self);
                // Until it is to end, or this future is dropped.
                let (waits, its_stop) = Stop::new();
                let mut scrub = tokio::task::spawn_blocking(move || this.once(&site, its_stop));
                let done = tokio::select! {
                    done = &mut scrub => done,
                    () = stop.asked() => {
                        drop(waits);
                        scrub.await
                    }
                };
                drop(ending);
                // One that was asked for is tried again as one that is due.
                done?.inspect_err(|_| self.ask()).map_err(internal)?;
            }
        })
    }

    fn status(&self) -> Status {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Status::line(line)
            .with("files_total", self.files.load(Ordering::Relaxed) as f64)
            .with("bytes_total", self.bytes.load(Ordering::Relaxed) as f64)
    }
}

impl Scrub {
    /// Lets it begin now.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Those so far.
    pub(super) fn runs(&self) -> Runs {
        self.count(|_| {})
    }

    fn count(&self, change: impl FnOnce(&mut Runs)) -> Runs {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut runs);
        *runs
    }

    fn once(&self, site: &Site, stop: Stop) -> Result<(), String> {
        let Ok(_at_work) = self.at_work.try_lock() else { return Err(HANGS.to_owned()) };
        let (config, now) = (site.config(), site.clock.now());
        let (section, state) = (&config.reconcile, config.state());
        site.inboxes.look_at_all(&config).map_err(|strange| strange.to_string())?;
        let mut reader = site.catalog.reader().map_err(|e| e.to_string())?;
        let newest = reader.newest_file().map_err(|e| e.to_string())?;
        let file = mark_in(&config);
        let mark = Mark::of(&file, now).map_err(|e| e.to_string())?;
        let reached = reader.file(FileId(mark.after)).map_err(|e| e.to_string())?;
        let mark = mark.of_catalog(reached.is_some()).begun(now, newest);
        let started = Time(mark.started_us);
        let approved = report::approvals(&state, &site.name).map_err(|e| e.to_string())?;
        let repair_max = section.repair_max.max(approved.covered);
        let order = ScrubOrder {
            site: site.name.clone(),
            base: config.folder.clone(),
            folders: made(folders(&config), &config.inboxes()),
            repair_max,
            started,
            last: FileId(mark.last),
            after: (FileId(mark.after), mark.changes),
        };
        let mut pace = Paced { service: self, site, stop, file: &file, mark };
        let now = || site.clock.now();
        let done = scrub(&site.catalog, &order, &mut pace, now).map_err(|e| e.to_string())?;
        let line = format!(
            "{} files, {}: {} wrong",
            done.files,
            show_bytes(done.bytes),
            done.findings.len()
        );
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = line;
        if !done.is_whole {
            return Ok(());
        }
        let report = report_of(site, &config, done, started);
        let report = Report { approved: approved.ids.clone(), ..report };
        let ended = Mark::ended(Time(report.ended_us));
        report.keep(&state).map_err(|error| error.to_string())?;
        self.count(|runs| runs.told = runs.begun);
        let kept = report::end_approvals(&state, &approved.ids);
        kept.and_then(|()| ended.keep(&file)).map_err(|error| error.to_string())?;
        for why in tell(site, &report) {
            tracing::warn!(report = %report.id, %why, "nobody was told");
        }
        Ok(())
    }
}

/// Where the scrub is; of comparisons, only when the last round ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// When the last one came to its end, microseconds since 1970; before the first one, when the daemon started first.
    ended_us: i64,
    /// When one began that was cut short.
    #[serde(default)]
    started_us: i64,
    /// The newest file then; 0: it was begun by a program that did not look.
    #[serde(default)]
    last: i64,
    /// The last file that it looked at; 0: none was.
    after: i64,
    /// How many had become lost or corrupt until then.
    changes: usize,
}

impl Mark {
    /// Of one that ends now.
    pub(super) fn ended(now: Time) -> Self {
        Self { ended_us: now.0, ..Self::default() }
    }

    /// As it is kept in this file; from now on, if it is not, or if a clock that was ahead wrote it.
    fn of(file: &Path, now: Time) -> io::Result<Self> {
        let kept: Option<Self> = match fs::read(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            kept => kept.ok().and_then(|kept| serde_json::from_slice(&kept).ok()),
        };
        let ended_us = kept.map_or(now.0, |mark| mark.ended_us.min(now.0));
        let mark = Self { ended_us, ..kept.unwrap_or_default() };
        if kept != Some(mark) {
            mark.keep(file)?;
        }
        Ok(mark)
    }

    /// The same, for who may not block.
    pub(super) async fn read(file: PathBuf, now: Time) -> Result<Self, Fault> {
        blocking(move || Self::of(&file, now).map_err(|error| internal(error.to_string()))).await
    }

    pub(super) fn keep(&self, file: &Path) -> io::Result<()> {
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        put(file, (serde_json::to_string(self)? + "\n").as_bytes())
    }

    /// For the catalog that is there. No file is deleted: one that does not know the file that was reached was made anew.
    fn of_catalog(self, knows_reached: bool) -> Self {
        if knows_reached { self } else { Self::ended(Time(self.ended_us)) }
    }

    /// Of the one that begins or goes on now.
    fn begun(self, now: Time, newest: FileId) -> Self {
        if self.after != 0 && self.last != 0 {
            return self;
        }
        Self { started_us: now.0, last: newest.0, ..self }
    }

    /// How long until the next one.
    pub(super) fn due(&self, every: Duration, now: Time) -> Duration {
        let since = u64::try_from(now.0 - self.ended_us).unwrap_or(0);
        match self.after {
            0 => every.saturating_sub(Duration::from_micros(since)),
            _ => Duration::ZERO,
        }
    }
}

fn internal(what: String) -> Fault {
    Fault::new(ErrorClass::Internal, what)
}

fn mark_in(config: &Config) -> PathBuf {
    config.state().join(report::FOLDER).join(MARK)
}

/// Folders in which every file must be known: those that are named, or else all into which files are received. A spool needs
/// none of this: it takes what it finds into the catalog by itself. One below another is not walked twice.
fn folders(config: &Config) -> Vec<PathBuf> {
    let named = config.reconcile.scrub_folders.as_ref();
    let named = named.map(|folders| folders.iter().map(|folder| config.path(folder)).collect());
    let mut folders = named.unwrap_or_else(|| config.inboxes());
    folders.sort_unstable();
    folders.dedup_by(|below, above| below.starts_with(&*above));
    folders
}

/// Without the inboxes, and what is below them, that are not there: they are made by and by.
fn made(mut folders: Vec<PathBuf>, inboxes: &[PathBuf]) -> Vec<PathBuf> {
    let is_inbox = |folder: &Path| inboxes.iter().any(|inbox| folder.starts_with(inbox));
    folders.retain(|folder| !is_inbox(folder) || folder.try_exists().unwrap_or(true));
    folders
}

fn report_of(site: &Site, config: &Config, done: Scrubbed, started: Time) -> Report {
    let verdict = match (done.findings.is_empty(), done.asks) {
        (_, true) => Verdict::Asks,
        (true, false) => Verdict::Clean,
        (false, false) => Verdict::Found,
    };
    let report = Report {
        id: String::new(),
        site: site.name.clone(),
        far: site.name.clone(),
        started_us: started.0,
        ended_us: started.0,
        verdict,
        approved: Vec::new(),
        files_near: i64::try_from(done.files).unwrap_or(i64::MAX),
        files_far: 0,
        in_flight: 0,
        bytes_exchanged: 0,
        rounds: 0,
        repaired: done.recorded,
        repair_max: config.reconcile.repair_max,
        is_cut: done.is_cut,
        findings: done.findings,
    };
    report.ended(site.clock.now())
}

/// Sleeps so that neither bytes nor files go faster than they may, and keeps the mark.
struct Paced<'a> {
    service: &'a Scrub,
    site: &'a Site,
    stop: Stop,
    file: &'a Path,
    mark: Mark,
}

/// How long so much takes at the rate that may be gone now.
fn time_of(bytes: u64, files: u64, section: &ReconcileSection) -> Duration {
    let of_bytes = bytes as f64 / section.scrub_rate.0.max(1) as f64;
    Duration::from_secs_f64(of_bytes + files as f64 / f64::from(section.scrub_files.max(1)))
}

impl Pace for Paced<'_> {
    fn spent(&mut self, bytes: u64, files: u64) -> bool {
        self.service.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.service.files.fetch_add(files, Ordering::Relaxed);
        let begun = Instant::now();
        loop {
            if self.stop.wish() != Wish::Run {
                return false;
            }
            let time = time_of(bytes, files, &self.site.config().reconcile);
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(SLEEP_MAX));
        }
    }

    fn may_record(&mut self) -> Result<(), String> {
        let known = self.site.inboxes.look_at_all(&self.site.config());
        known.map_err(|strange| strange.to_string())
    }

    fn reached(&mut self, FileId(after): FileId, changes: usize) {
        (self.mark.after, self.mark.changes) = (after, changes);
        if let Err(error) = self.mark.keep(self.file) {
            tracing::warn!(%error, "a scrub that is cut short now begins anew");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HANGS, MARK, Mark, Pace as _, Paced, Runs, Scrub};
    use crate::reconcile::report::FOLDER;
    use crate::reconcile::service::COMPARED;
    use crate::reconcile::service::tests::{started, until};
    use crate::site::{Clock, Daemon, Service as _, Stop};
    use downpour_catalog::{AdoptedFile, Change, Digest, FileId, OtherContent, Time};
    use downpour_transport::identity::Identity;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    #[test]
    fn the_time_between_two_goes_on_over_a_restart() {
        const DAY: Duration = Duration::from_secs(86_400);
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join(FOLDER).join(MARK);
        let (begun, later) =
            (Time(1_790_000_000_000_000), Time(1_790_000_000_000_000).plus_s(3600));
        let due = |now| Mark::of(&file, now).unwrap().due(DAY, now);
        assert_eq!(due(begun), DAY);
        assert_eq!(due(later), DAY - Duration::from_secs(3600));
        assert_eq!(due(begun.plus_s(90_000)), Duration::ZERO);
        // A clock that was ahead began later than now.
        assert_eq!(due(begun.plus_s(-90_000)), DAY);
        assert_eq!(due(begun.plus_s(-86_400)), DAY - Duration::from_secs(3600));
        // One that was cut short goes on at once.
        let begun = Mark::of(&file, later).unwrap().begun(later, FileId(9));
        let mark = Mark { after: 7, ..begun };
        mark.keep(&file).unwrap();
        assert_eq!(Mark::of(&file, later).unwrap(), mark);
        assert_eq!((mark.begun(later.plus_s(9), FileId(10)), mark.started_us), (mark, later.0));
        assert_eq!(due(later), Duration::ZERO);
        // So does one of a program before this.
        let old = format!("{{\"ended_us\":{},\"after\":7,\"changes\":3}}", mark.ended_us);
        std::fs::write(&file, old).unwrap();
        let old = Mark::of(&file, later).unwrap().begun(later, FileId(9));
        assert_eq!(old, Mark { changes: 3, ..mark });
        assert!(crate::reconcile::report::ids(state.path(), Time(0)).unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_reload_counts_for_who_waits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let key = Identity::generate().public_key();
        // Nobody is there: that is seen at once.
        let there = format!("[[remote]]\nname = 'b'\nkey = '{key}'\naddress = '127.0.0.1:1'\n");
        let configure = |every: &str, files: u32| {
            let section =
                format!("every = '{every}'\nscrub_every = '{every}'\nscrub_files = {files}");
            let site = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n[reconcile]\n";
            std::fs::write(&file, format!("{site}{section}\n{there}")).unwrap();
        };
        configure("100h", 1);
        crate::site::card(folder.path()).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        let state = daemon.site.config().state();
        until("the service waits", || state.join("reconcile/scrub.mark").exists()).await;
        let (site, file_of_mark) = (daemon.site.clone(), state.join(FOLDER).join(MARK));
        let spends = std::thread::spawn(move || {
            let ((_wish, stop), service) = (Stop::new(), Scrub::default());
            let (service, site, mark) = (&service, &site, Mark::default());
            Paced { service, site, stop, file: &file_of_mark, mark }.spent(0, 360_000)
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        configure("50ms", u32::MAX);
        assert!(daemon.reload().await);
        let status = |name: &str| {
            let reports = daemon.site.supervisor().reports();
            reports.into_iter().find(|report| report.name == name).unwrap().status
        };
        until("a pause that was long", || spends.is_finished()).await;
        assert!(spends.join().unwrap());
        until("a comparison", || status("reconcile").figures["runs_total"] > 0.0).await;
        until("a scrub", || status("scrub").line == "0 files, 0 B: 0 wrong").await;
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_comparison_that_is_due_is_made_when_the_daemon_starts() {
        let folder = tempfile::tempdir().unwrap();
        let key = Identity::generate().public_key();
        let there = format!("[[remote]]\nname = 'b'\nkey = '{key}'\naddress = '127.0.0.1:1'\n");
        let mark = folder.path().join("state").join(FOLDER).join(COMPARED);
        let ended = Clock::system().now().plus_s(-86_400);
        Mark::ended(ended).keep(&mark).unwrap();
        let more = format!("[reconcile]\nevery = '24h'\n{there}");
        let daemon = started(folder.path(), &more).await;
        let now = || Clock::system().now();
        until("a comparison", || Mark::of(&mark, now()).unwrap().ended_us > ended.0).await;
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn one_that_was_asked_for_and_failed_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = started(folder.path(), "").await;
        let mark = daemon.site.config().state().join(FOLDER).join(MARK);
        // Its end cannot be kept.
        std::fs::create_dir(mark.with_extension("part")).unwrap();
        let ((_wish, stop), service) = (Stop::new(), Arc::new(Scrub::default()));
        service.ask();
        assert!(service.clone().run(daemon.site.clone(), stop).await.is_err());
        assert_eq!(service.runs(), Runs { begun: 1, ended: 1, told: 1 });
        let asked = tokio::time::timeout(Duration::ZERO, service.asked.notified()).await;
        assert!(asked.is_ok(), "it is forgotten");
        // Another one comes to no report.
        std::fs::remove_file(&mark).unwrap();
        std::fs::create_dir(&mark).unwrap();
        let (again, site, (_wish, stop)) = (service.clone(), daemon.site.clone(), Stop::new());
        again.count(|runs| runs.begun += 1);
        let done = tokio::task::spawn_blocking(move || again.once(&site, stop)).await.unwrap();
        assert!(done.is_err());
        assert_eq!(service.runs(), Runs { begun: 2, ended: 1, told: 1 });
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn none_begins_while_an_inbox_is_not_the_one_that_was_received_into() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = started(folder.path(), "").await;
        daemon.end(Duration::ZERO).await;
        let (site, inbox) = (daemon.site, folder.path().join("inbox"));
        site.inboxes.look(&site.config(), &inbox, true).unwrap();
        let once = std::thread::spawn(move || {
            let once = || {
                let (_wish, stop) = Stop::new();
                Scrub::default().once(&site, stop)
            };
            let before = once();
            std::fs::rename(&inbox, folder.path().join("away")).unwrap();
            (before, once())
        });
        let (before, away) = tokio::task::spawn_blocking(|| once.join().unwrap()).await.unwrap();
        assert_eq!(before, Ok(()));
        assert!(away.unwrap_err().contains("is it mounted?"));
    }

    #[tokio::test]
    async fn one_that_is_cut_off_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = folder.path().join("inbox");
        std::fs::create_dir(&inbox).unwrap();
        std::fs::write(inbox.join("x"), "").unwrap();
        let daemon = started(folder.path(), "").await;
        let ((_wish, stop), service) = (Stop::new(), Arc::new(Scrub::default()));
        // It does not get beyond this line.
        let (holder, (release, held)) = (service.clone(), std::sync::mpsc::channel::<()>());
        let holds = std::thread::spawn(move || {
            let _line = holder.line.lock().unwrap();
            let _ = held.recv();
        });
        until("its line is held", || service.line.try_lock().is_err()).await;
        service.ask();
        let run = tokio::spawn(service.clone().run(daemon.site.clone(), stop));
        until("it is at work", || service.files.load(Ordering::Relaxed) > 0).await;
        assert_eq!(service.runs().ended, 0);
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        assert_eq!(service.runs(), Runs { begun: 1, ended: 1, told: 0 });
        // Its thread is not through: none begins beside it.
        let (again, site, (_wish, stop)) = (service.clone(), daemon.site.clone(), Stop::new());
        let beside = tokio::task::spawn_blocking(move || again.once(&site, stop));
        let beside = tokio::time::timeout(Duration::from_secs(60), beside).await;
        assert_eq!(beside.expect("it is refused").unwrap(), Err(HANGS.to_owned()));
        drop(release);
        holds.join().unwrap();
        until("its thread is through", || Arc::strong_count(&service) == 1).await;
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn one_that_is_cut_off_ends_though_the_service_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = folder.path().join("inbox");
        std::fs::create_dir(&inbox).unwrap();
        // They would take it longer than the test waits.
        (0..100).for_each(|n| std::fs::write(inbox.join(n.to_string()), "").unwrap());
        let daemon = started(folder.path(), "[reconcile]\nscrub_files = 1\n").await;
        let ((_wish, stop), service) = (Stop::new(), Arc::new(Scrub::default()));
        service.ask();
        let run = tokio::spawn(service.clone().run(daemon.site.clone(), stop));
        until("it is at work", || service.files.load(Ordering::Relaxed) > 0).await;
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        until("its thread is through", || service.at_work.try_lock().is_ok()).await;
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_mark_of_another_catalog_hides_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = started(folder.path(), "").await;
        let site = daemon.site.clone();
        let lines = std::thread::spawn(move || {
            let (own, rule) = (site.catalog.site("a").unwrap(), site.catalog.rule("r").unwrap());
            let adopted = Change::Adopt(AdoptedFile {
                site: own,
                name: "x".to_owned(),
                size: 1,
                rule,
                digest: Digest::blake3([7; 32]),
                others: Vec::new(),
                replicas: vec![(own, "x".to_owned())],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
            });
            let now = site.clock.now();
            let answers = site.catalog.apply(now, &[adopted]).unwrap();
            let FileId(known) = answers[0].as_ref().unwrap().file;
            // Of an unknown file in whatever place, and of one that it knows.
            [known - 1, known + 1, known].map(|after| {
                let mark =
                    Mark { ended_us: now.0, started_us: now.0, last: after, after, changes: 0 };
                mark.keep(&super::mark_in(&site.config())).unwrap();
                let ((_wish, stop), service) = (Stop::new(), Scrub::default());
                service.once(&site, stop).unwrap();
                service.status().line
            })
        });
        let lines = tokio::task::spawn_blocking(|| lines.join().unwrap()).await.unwrap();
        let files = |line: &String| line.split_once(' ').unwrap().0.to_owned();
        assert_eq!(lines.each_ref().map(files), ["1", "1", "0"], "{lines:?}");
        daemon.end(Duration::ZERO).await;
    }

    #[test]
    fn what_is_received_is_scrubbed_unless_other_folders_are_named() {
        let folders = |more: &str| {
            let key = "key = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'";
            let remote = |name: &str, folder: &str| {
                format!("[[remote]]\nname = '{name}'\n{key}\nfolder = '{folder}'\n")
            };
            let remotes = remote("b", "/data/b") + &remote("c", "inbox/c");
            let text = format!("[site]\nname = 'a'\n{more}\n{remotes}");
            let mut config: crate::site::Config = toml::from_str(&text).unwrap();
            config.folder = Path::new("/site").to_owned();
            super::folders(&config)
        };
        assert_eq!(folders(""), [PathBuf::from("/data/b"), "/site/inbox".into()]);
        let named = folders("[reconcile]\nscrub_folders = ['x', '/y']");
        assert_eq!(named, [PathBuf::from("/site/x"), "/y".into()]);
        assert!(folders("[reconcile]\nscrub_folders = []").is_empty());
    }
}
