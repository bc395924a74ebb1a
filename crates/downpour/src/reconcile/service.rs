//! The service: compares with other sites every so often and when asked, keeps the reports, tells people; and its routes.
//!
//! A round is one run (`run`) with each site in turn, asked over that site's door; the routes of the same names answer other
//! sites. `site::parts` takes [`part`], in which the scrub's service (`scrubbing`) comes along. Not here: what is compared and
//! how, and what is done about it (`compare`, `repair`).

use super::ask::{Answer, NAMES_MAX, Question, Side, Stored};
use super::report::{self, Report, Verdict};
use super::run::{Far, FarError, Order, RunError, run};
use super::scrub::{Copies, read_back};
use super::scrubbing::{Mark, Scrub};
use crate::api::{Allow, Given, Named, Problem, Routes};
use crate::dispatch::is_sent_to;
use crate::notify::{NotTold, Note, Notify};
use crate::section;
use crate::site::{
    Config, Fault, Part, Remote, RemoteSection, Running, Service, Site, SiteEvent, Status, Stop,
    Wish, blocking,
};
use crate::spool::Rules;
use crate::units::{Amount, Span};
use axum::extract::State;
use axum::{Extension, Json};
use downpour_catalog::{ErrorClass, RuleId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use utoipa::{OpenApi, ToSchema};

/// Bytes of questions in one request; a site takes 1 MiB unless it is told otherwise.
const REQUEST_BYTES_MAX: usize = 600 << 10;
/// Reports that a list shows.
const LISTED_MAX: usize = 100;
/// The mark's file, beside the reports.
pub(super) const COMPARED: &str = "compare.mark";
/// Where a site is asked of its sets of files, and of its copies.
const DIGESTS: &str = "/v1/site/digests";
const READ_BACK: &str = "/v1/site/copies";
/// Why sites were not compared in a round that was cut short.
const CUT_SHORT: &str = "the service was stopped before";
/// Why none begins beside one that nobody waits for any more.
const HANGS: &str =
    "the comparison before this one still waits for a disk or the catalog: look for one that hangs";

section! {
    /// Comparison of this catalog with those of other sites.
    [reconcile]
    pub struct ReconcileSection {
        /// How often.
        every: Span = "\"1h\"",
        /// With which sites; left out: with all.
        with: Vec<String> | "[\"there\"]",
        /// More differences than this are not repaired before somebody approves.
        repair_max: usize = "1000",
        /// What the other site has from this one, and this catalog knows nothing of: `ask`, or `adopt` it by its receipt.
        extra: OnExtra = "\"ask\"",
        /// What has not moved for so long is told of, and tried again if it waits.
        stuck: Span = "\"24h\"",
        /// How often the files on the disk are read and compared with the catalog.
        scrub_every: Span = "\"168h\"",
        /// Bytes a second that such a reading takes of the disk.
        scrub_rate: Amount = "\"20MB\"",
        /// Files a second.
        scrub_files: u32 = "100",
        /// Folders in which every file must be in the catalog; others are told of. Left out: all folders into which files are
        /// received.
        scrub_folders: Vec<PathBuf> | "[\"inbox\"]",
    }
}

/// What is done about a file that only the other catalog knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExtra {
    /// It is told.
    #[default]
    Ask,
    /// It is taken into the catalog, if the other site has a receipt for it.
    Adopt,
}

impl ReconcileSection {
    /// Whether this catalog is to be compared with that of another site.
    fn wants(&self, remote: &RemoteSection) -> bool {
        self.with.as_ref().is_none_or(|with| with.contains(&remote.name))
    }
}

/// Copies that another site wants to be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadBack {
    /// The site that the files come from.
    origin: String,
    /// Name and version of each.
    names: Vec<(String, i64)>,
}

/// Another site's catalog, asked by its API.
struct There {
    remote: Arc<Remote>,
    runtime: Handle,
    stop: Stop,
    bytes: u64,
}

impl There {
    fn post<T: Serialize + DeserializeOwned>(
        &mut self,
        path: &str,
        questions: &impl Serialize,
    ) -> Result<T, FarError> {
        let asked = serde_json::to_vec(questions).map_or(0, |json| json.len());
        let answers: T = self.runtime.block_on(async {
            tokio::select! {
                answers = self.remote.post(path, questions) => {
                    answers.map_err(|error| FarError(error.to_string()))
                }
                () = self.stop.now() => Err(FarError(CUT_SHORT.to_owned())),
            }
        })?;
        let answered = serde_json::to_vec(&answers).map_or(0, |json| json.len());
        self.bytes += (asked + answered) as u64;
        Ok(answers)
    }
}

impl Far for There {
    fn ask(&mut self, questions: &[Question]) -> Result<Vec<Answer>, FarError> {
        let mut answers = Vec::with_capacity(questions.len());
        let (mut from, mut bytes) = (0, 0);
        for (index, question) in questions.iter().enumerate() {
            let len = serde_json::to_vec(question).map_or(0, |json| json.len());
            if index > from && bytes + len > REQUEST_BYTES_MAX {
                let mut answered: Vec<Answer> = self.post(DIGESTS, &&questions[from..index])?;
                answers.append(&mut answered);
                (from, bytes) = (index, 0);
            }
            bytes += len;
        }
        answers.append(&mut self.post(DIGESTS, &&questions[from..])?);
        Ok(answers)
    }

    fn read_back(
        &mut self,
        origin: &str,
        names: &[(String, i64)],
    ) -> Result<Vec<Stored>, FarError> {
        self.post(READ_BACK, &ReadBack { origin: origin.to_owned(), names: names.to_vec() })
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn goes_on(&self) -> Result<(), FarError> {
        match self.stop.wish() {
            Wish::Stop => Err(FarError(CUT_SHORT.to_owned())),
            Wish::Run | Wish::Drain => Ok(()),
        }
    }
}

/// Sites that are not compared in a round, or not yet, each with the reason.
type Unreached = BTreeMap<String, String>;

/// What the service did last.
#[derive(Clone, Debug, Default)]
struct Last {
    line: String,
    /// Rounds over all sites.
    rounds: Runs,
    /// Why sites could not be compared in the last of them that has ended.
    unreached: Vec<String>,
    runs: u64,
    failed: u64,
    repaired: u64,
}

impl Last {
    fn round_ended(&mut self, unreached: Unreached) {
        self.unreached = unreached.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        self.rounds.ended = self.rounds.begun;
    }
}

/// The service.
#[derive(Default)]
pub struct Reconcile {
    asked: tokio::sync::Notify,
    last: Mutex<Last>,
    copies: Copies,
    /// Held by a comparison until its thread is through, also when nobody waits for that any more.
    at_work: Arc<tokio::sync::Mutex<()>>,
}

impl Service for Reconcile {
    fn name(&self) -> &'static str {
        "reconcile"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            let mut changes = site.config_changes();
            let file = site.config().state().join(report::FOLDER).join(COMPARED);
            let mut mark = Mark::read(file.clone(), site.clock.now()).await?;
            loop {
                let every = *changes.borrow_and_update().reconcile.every;
                tokio::select! {
                    () = stop.asked() => return Ok(()),
                    () = tokio::time::sleep(mark.due(every, site.clock.now())) => {}
                    () = self.asked.notified() => {}
                    Ok(()) = changes.changed() => continue,
                }
                let mut unreached = Unreached::new();
                let is_cut = tokio::select! {
                    // In this order: it begins, whatever comes.
                    biased;
                    () = self.round(&site, &mut unreached) => false,
                    () = stop.now() => true,
                };
                // Of one that is cut, too: who waits for its end would do so for ever.
                self.last().round_ended(unreached);
                if is_cut {
                    // What was under way ends at its next step.
                    drop(self.at_work.lock().await);
                    return Ok(());
                }
                mark = Mark::ended(site.clock.now());
                let file = file.clone();
                if let Err(error) = blocking(move || Ok(mark.keep(&file))).await? {
                    tracing::warn!(%error, "after a restart the next comparison comes early");
                }
            }
        })
    }

    fn status(&self) -> Status {
        let last = self.last();
        Status::line(last.line.clone())
            .with("runs_total", last.runs as f64)
            .with("runs_failed_total", last.failed as f64)
            .with("repaired_total", last.repaired as f64)
    }
}

impl Reconcile {
    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares with each site in turn.
    async fn round(&self, site: &Arc<Site>, unreached: &mut Unreached) {
        let (config, mut remotes) = (site.config(), site.remotes());
        let wants = |section: &RemoteSection| config.reconcile.wants(section);
        remotes.retain(|r| wants(&r.section) && r.section.address.is_some());
        unreached.extend(remotes.iter().map(|r| (r.name().to_owned(), CUT_SHORT.to_owned())));
        self.last().rounds.begun += 1;
        for remote in remotes {
            let name = remote.name().to_owned();
            let line = match self.with(site, remote).await {
                Ok(line) => {
                    unreached.remove(&name);
                    let mut last = self.last();
                    last.rounds.told = last.rounds.begun;
                    line
                }
                Err(error) => {
                    self.last().failed += 1;
                    tracing::warn!(remote = %name, %error, "reconcile failed");
                    let line = format!("{name}: {error}");
                    unreached.insert(name, error.to_string());
                    line
                }
            };
            let mut last = self.last();
            (last.line, last.runs) = (line, last.runs + 1);
        }
    }

    async fn with(&self, site: &Arc<Site>, remote: Arc<Remote>) -> Result<String, Fault> {
        let (site, config) = (site.clone(), site.config());
        let copies = self.copies.clone();
        let internal = |what: String| Fault::new(ErrorClass::Internal, what);
        let at_work = self.at_work.clone().try_lock_owned();
        let at_work = at_work.map_err(|_| internal(HANGS.to_owned()))?;
        // Until this future ends, or is dropped.
        let (_waits, stop) = Stop::new();
        let (runtime, bytes) = (Handle::current(), 0);
        let mut there = There { remote: remote.clone(), runtime, stop, bytes };
        let done = tokio::task::spawn_blocking(move || -> Result<(Report, Vec<NotTold>), Fault> {
            let _at_work = at_work;
            let state = config.state();
            let approved = report::approvals(&state, remote.name());
            let approved = approved.map_err(|error| internal(error.to_string()))?;
            let stuck_s = i64::try_from(config.reconcile.stuck.as_secs()).unwrap_or(i64::MAX >> 32);
            let order = Order {
                sent: sent(&site, &config, remote.name())?,
                near: site.name.clone(),
                far: remote.name().to_owned(),
                far_key: Some(remote.key()),
                repair_max: config.reconcile.repair_max,
                stuck_s,
                approved: approved.clone(),
                adopt_extra: config.reconcile.extra == OnExtra::Adopt,
                base: config.folder.clone(),
                copies,
            };
            let report = run(&site.catalog, &mut there, &order, || site.clock.now())?;
            let kept = report.keep(&state);
            let kept = kept.and_then(|()| report::end_approvals(&state, &approved.ids));
            kept.map_err(|error| internal(error.to_string()))?;
            let not_told = tell(&site, &report);
            Ok((report, not_told))
        });
        let (report, not_told) = done.await??;
        for why in &not_told {
            tracing::warn!(report = %report.id, %why, "nobody was told");
        }
        self.last().repaired += report.repaired as u64;
        tracing::info!(report = %report.id, "{}", report.headline());
        Ok(report.headline())
    }
}

impl From<RunError> for Fault {
    fn from(error: RunError) -> Self {
        let class = match error {
            RunError::Near(_) => ErrorClass::CatalogUnreachable,
            RunError::Far(_) => ErrorClass::DestinationUnreachable,
            RunError::Machine(_) => ErrorClass::OutOfResources,
        };
        Self::new(class, error.to_string())
    }
}

/// Rules of the catalog whose files are sent to this site.
fn sent(site: &Site, config: &Config, far: &str) -> Result<BTreeSet<RuleId>, Fault> {
    let rules = Rules::new(&site.name, &config.rule);
    let mut known = site.catalog.reader()?.rules()?;
    known.retain(|(_, rule)| is_sent_to(config, &rules, rule, far));
    Ok(known.into_iter().map(|(id, _)| id).collect())
}

/// Tells who listens, and people, of what was found.
pub(super) fn tell(site: &Site, report: &Report) -> Vec<NotTold> {
    let (config, findings) = (site.config(), report.findings.len());
    let about = serde_json::json!({
        "report": report.id, "remote": report.far, "verdict": report.verdict,
        "findings": findings, "repaired": report.repaired, "what": report.headline(),
    });
    site.events.tell(SiteEvent::RECONCILE, &about);
    let section = &config.notify;
    if report.verdict == Verdict::Clean && !section.always {
        return Vec::new();
    }
    let note = Note {
        about: "reconcile",
        site: report.site.clone(),
        subject: report.headline(),
        text: report.text(),
        detail: serde_json::to_value(report).unwrap_or_default(),
    };
    Notify::tell_by(section, &config.folder, &note)
}

/// What is to be done now.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileWish {
    /// The report whose repair is approved.
    #[serde(default)]
    pub approve: Option<String>,
    /// Compare the disk with the catalog, not the catalog with others.
    #[serde(default)]
    pub scrub: bool,
}

/// Runs since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Runs {
    /// That have begun.
    pub begun: u64,
    /// The last of them that has ended.
    pub ended: u64,
    /// The last of them that left a report.
    #[serde(default)]
    pub told: u64,
}

/// The newest of the reports that are kept.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReportList {
    /// Their ids, newest first.
    pub reports: Vec<String>,
    /// Rounds of comparisons with all sites.
    #[serde(flatten)]
    pub rounds: Runs,
    /// Comparisons of the disk with the catalog.
    #[serde(default)]
    pub scrubs: Runs,
    /// Sites that could not be compared in the last round that has ended, each with the reason.
    #[serde(default)]
    pub failed: Vec<String>,
    /// Sites to compare with that have no `address` here: they compare with this one.
    #[serde(default)]
    pub left_out: Vec<String>,
}

#[derive(OpenApi)]
#[openapi(paths(list, show, start, digests, copies))]
struct Description;

/// The part.
pub fn part(_site: &Arc<Site>) -> Part {
    let (service, scrub) = (Arc::new(Reconcile::default()), Arc::new(Scrub::default()));
    let routes = Routes::described(Description::openapi())
        .get("/v1/reconcile", Allow::Viewer, list)
        .get("/v1/reconcile/{id}", Allow::Viewer, show)
        .post("/v1/reconcile", Allow::Operator, start)
        .post(DIGESTS, Allow::Site, digests)
        .post(READ_BACK, Allow::Site, copies)
        .share(service.clone())
        .share(scrub.clone());
    Part { services: vec![service, scrub], routes }
}

fn odd(error: &std::io::Error) -> Problem {
    match error.kind() {
        std::io::ErrorKind::NotFound => Problem::not_found("there is no such report"),
        _ => Problem::bad_request(
            error.to_string(),
            "`downpour catalog reconcile --list` lists them",
        ),
    }
}

/// Reports of comparisons
#[utoipa::path(get, path = "/v1/reconcile", responses((status = 200, body = ReportList)))]
async fn list(
    State(site): State<Arc<Site>>,
    Extension(service): Extension<Arc<Reconcile>>,
    Extension(scrub): Extension<Arc<Scrub>>,
) -> Result<Json<ReportList>, Problem> {
    // Before the reports, which are kept when a run ends.
    let scrubs = scrub.runs();
    let (rounds, failed) = {
        let last = service.last();
        (last.rounds, last.unreached.clone())
    };
    let config = site.config();
    let (state, now) = (config.state(), site.clock.now());
    let reports = blocking(move || Ok(report::ids(&state, now))).await?;
    let mut reports = reports.map_err(|error| odd(&error))?;
    reports.reverse();
    reports.truncate(LISTED_MAX);
    let is_left_out =
        |remote: &&RemoteSection| config.reconcile.wants(remote) && remote.address.is_none();
    let left_out = config.remote.iter().filter(is_left_out).map(|remote| remote.name.clone());
    Ok(Json(ReportList { reports, rounds, scrubs, failed, left_out: left_out.collect() }))
}

/// One report
#[utoipa::path(get, path = "/v1/reconcile/{id}", params(("id" = String, Path)),
    responses((status = 200, description = "The report"), (status = 404, body = Problem)))]
async fn show(
    State(site): State<Arc<Site>>,
    Named(id): Named<String>,
) -> Result<Json<Report>, Problem> {
    let state = site.config().state();
    let report = blocking(move || Ok(report::load(&state, &id))).await?;
    report.map(Json).map_err(|error| odd(&error))
}

/// Compare now; repair what a report asks for
#[utoipa::path(post, path = "/v1/reconcile", request_body = ReconcileWish,
    responses((status = 200, body = ReportList), (status = 404, body = Problem)))]
async fn start(
    State(site): State<Arc<Site>>,
    Extension(service): Extension<Arc<Reconcile>>,
    Extension(scrub): Extension<Arc<Scrub>>,
    Given(wish): Given<ReconcileWish>,
) -> Result<Json<ReportList>, Problem> {
    let mut of_disk = wish.scrub;
    if let Some(id) = wish.approve {
        let state = site.config().state();
        let approved = tokio::task::spawn_blocking(move || report::approve(&state, &id)).await;
        of_disk |= approved.map_err(Fault::from)?.map_err(|error| odd(&error))?.is_of_disk();
    }
    let (shared, disk) = (Extension(service.clone()), Extension(scrub.clone()));
    let reports = list(State(site), shared, disk).await?;
    if of_disk {
        scrub.ask()
    } else {
        service.asked.notify_one()
    }
    Ok(reports)
}

/// What this catalog says of sets of files, for another site
#[utoipa::path(post, path = "/v1/site/digests",
    responses((status = 200, description = "An answer for each question"), (status = 400, body = Problem)))]
async fn digests(
    State(site): State<Arc<Site>>,
    Given(questions): Given<Vec<Question>>,
) -> Result<Json<Vec<Answer>>, Problem> {
    let key = site.identity.public_key();
    let answers = site.read(move |reader| Side::of(reader)?.signing(key).answer_all(&questions));
    Ok(Json(answers.await?))
}

/// Read copies of files that another site doubts; what is damaged is recorded here
#[utoipa::path(post, path = "/v1/site/copies",
    responses((status = 200, body = [Stored]), (status = 400, body = Problem)))]
async fn copies(
    State(site): State<Arc<Site>>,
    Extension(service): Extension<Arc<Reconcile>>,
    Given(wish): Given<ReadBack>,
) -> Result<Json<Vec<Stored>>, Problem> {
    if wish.names.len() > NAMES_MAX {
        let todo = "ask for fewer";
        return Err(Problem::bad_request(format!("more than {NAMES_MAX} files"), todo));
    }
    let stored = blocking(move || {
        let (config, now) = (site.config(), || site.clock.now());
        let here = (&*site.name, &*config.folder);
        let known = site.inboxes.look_at_all(&config);
        known.map_err(|strange| RunError::Machine(strange.to_string()))?;
        let of = (&*wish.origin, &*wish.names);
        Ok(read_back(&site.catalog, here, &service.copies, of, now, || true)?)
    });
    Ok(Json(stored.await?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::scrubbing::MARK;
    use super::{
        COMPARED, CUT_SHORT, Extension, Json, Reconcile, Runs, Scrub, State, list, report,
    };
    use crate::site::{Clock, Daemon, Service as _, Stop, Wish};
    use downpour_transport::identity::Identity;
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    /// A daemon whose configuration says this more.
    pub(in crate::reconcile) async fn started(folder: &Path, more: &str) -> Daemon {
        let file = folder.join("site.toml");
        let site = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n";
        std::fs::write(&file, format!("{site}{more}")).unwrap();
        crate::site::card(folder).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        // They write to the same files as those of a test.
        let marks = daemon.site.config().state().join(report::FOLDER);
        until("its own services wait", || [COMPARED, MARK].iter().all(|m| marks.join(m).exists()))
            .await;
        daemon
    }

    pub(in crate::reconcile) async fn until(what: &str, is: impl Fn() -> bool) {
        let seen = async {
            while !is() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
        assert!(seen.is_ok(), "never: {what}");
    }

    #[tokio::test]
    async fn sites_that_cannot_be_connected_to_are_said_to_be_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let remote = |name: &str, address: &str| {
            let key = Identity::generate().public_key();
            format!("[[remote]]\nname = '{name}'\nkey = '{key}'\n{address}\n")
        };
        let remotes = [("b", ""), ("c", "address = '127.0.0.1:1'"), ("d", "")];
        let remotes = remotes.map(|(name, address)| remote(name, address)).concat();
        let only = "[reconcile]\nwith = ['b', 'c']\n";
        let daemon = started(folder.path(), &format!("{only}{remotes}")).await;
        let (service, scrub) = (Arc::new(Reconcile::default()), Arc::new(Scrub::default()));
        let (site, service, scrub) =
            (State(daemon.site.clone()), Extension(service), Extension(scrub));
        let Ok(Json(list)) = list(site, service, scrub).await else { panic!("no list") };
        assert_eq!(list.left_out, ["b"]);
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_round_that_is_cut_short_has_ended_and_says_which_sites_it_has_not_compared() {
        let folder = tempfile::tempdir().unwrap();
        // It is connected to, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (nobody, address) = ("127.0.0.1:1".parse().unwrap(), silent.local_addr().unwrap());
        let remotes = [("b", nobody), ("c", address), ("d", address)].map(|(name, address)| {
            let key = Identity::generate().public_key();
            let remote = format!("name = '{name}'\nkey = '{key}'\naddress = '{address}'\n");
            format!("[[remote]]\n{remote}connect = '1h'\n")
        });
        let daemon = started(folder.path(), &remotes.concat()).await;
        let ((wish, stop), service) = (Stop::new(), Arc::new(Reconcile::default()));
        service.asked.notify_one();
        let run = tokio::spawn(service.clone().run(daemon.site.clone(), stop));
        let fails = async {
            while service.last().failed == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), fails).await.expect("nobody is there");
        wish.send_replace(Wish::Stop);
        run.await.unwrap().unwrap();
        let last = service.last().clone();
        assert_eq!(last.rounds, Runs { begun: 1, ended: 1, told: 0 });
        let [b, rest @ ..] = &last.unreached[..] else { panic!("{last:?}") };
        assert!(b.starts_with("b: ") && !b.contains(CUT_SHORT), "{b}");
        assert_eq!(rest, ["c", "d"].map(|name| format!("{name}: {CUT_SHORT}")));
        assert!(service.at_work.try_lock().is_ok(), "it goes on where nobody sees it");
        drop(silent);
        daemon.end(Duration::ZERO).await;
    }
}
