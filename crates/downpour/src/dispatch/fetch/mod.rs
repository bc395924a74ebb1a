//! A file that several sites have, fetched from where it would be here first: `/v1/fetches`.
//!
//! 1. `holders` looks in this site's catalog and in its copies of others' who has the file.
//! 2. They are ranked by when the file would be here (`proto::transfer::rank`), and the ranking is kept to be shown.
//! 3. `gather` brings the bytes, from the best, or from all at once; `asking` plans how each is asked.
//! 4. The whole is compared with the digest of the catalog, placed, signed for and recorded, as what a batch brought. If it
//!    is not what it should be, each source is tried alone.
//!
//! `task` takes these steps, patiently where what fails may pass; `journal` and `part` keep what was asked for and what is
//! here of it: a daemon that is started again goes on. An operator gives a fetch up as other files, by `/v1/files/cancel`.
//!
//! Deliberately absent: telling the sources; they learn of the new replica as of any other.

mod asking;
mod gather;
mod holders;
mod journal;
mod part;
mod task;

pub(super) use gather::WRITE_LEN;
pub(crate) use journal::FOLDER;
pub(super) use part::sweep;

use super::incoming::Incoming;
use super::link::Wanted;
use super::{Dispatch, lock};
use crate::api::{Allow, Given, Named, Problem, Routes};
use crate::report::PlanLine;
use crate::site::{Fault, Remote, Site, Wish};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use downpour_catalog::{ErrorClass, Time};
use downpour_proto::Rate;
use downpour_proto::transfer::{Source, rank};
use gather::{Gather, Holder, Seen};
use holders::Found;
use journal::{Kept, Unreadable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use utoipa::{OpenApi, ToSchema};

/// Fetches under way at once.
const OPEN_MAX: usize = 64;
/// Fetches that are known, ended ones included: who asks how one ended finds it also where as many begin at that moment.
const KNOWN_MAX: usize = 2 * OPEN_MAX;
/// Changes that a report tells.
const CHANGES_MAX: usize = 100;
/// What a fetch brought from a site is expected of it for so long, and what it said of its kernel believed.
const PACE_LIFE: Duration = Duration::from_secs(3600);
/// Why a fetch has failed that an operator gave up.
const CANCELLED: &str = "cancelled";

/// A file to be fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchWish {
    /// The site that it comes from first.
    pub site: String,
    /// Its name there.
    pub name: String,
    /// Its version there; the newest that is known with its digest unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Only from these sites; empty: from any that has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// From one site at a time, whatever its size.
    #[serde(default)]
    pub one: bool,
    /// Only say from where it would come.
    #[serde(default)]
    pub ask: bool,
}

/// A place that has the file, in its rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FetchSource {
    /// The site.
    pub site: String,
    /// In how many seconds the file would be here; absent: nobody can say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_s: Option<f64>,
    /// Why it stands here.
    pub why: String,
    /// Bytes that it brought.
    pub brought: u64,
    /// The plan by which it was asked, each number with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlanLine>,
    /// What the kernel books for the receive buffer of each connection to it.
    #[serde(default)]
    pub receive_buffer_bytes: u64,
}

/// How far a fetch is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FetchReport {
    /// Its number; 0 where nothing was begun.
    pub id: i64,
    /// The file: its first site.
    pub site: String,
    /// Its name; empty where what was asked for is lost, and `changes` says why.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// Its bytes.
    pub size: u64,
    /// Its BLAKE3, hexadecimal.
    #[serde(default)]
    pub blake3: String,
    /// Bytes that are here by now.
    #[serde(default)]
    pub arrived: u64,
    /// It has ended.
    pub done: bool,
    /// Why it failed, or could not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Where it lies here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// From several sites at once.
    pub at_once: bool,
    /// The sites that have it, the best first.
    pub sources: Vec<FetchSource>,
    /// What was changed on the way, and why: the newest 100.
    pub changes: Vec<String>,
}

#[derive(OpenApi)]
#[openapi(paths(fetch, fetches, fetched, asking::limits))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .post("/v1/fetches", Allow::Operator, fetch)
        .get("/v1/fetches", Allow::Viewer, fetches)
        .get("/v1/fetches/{id}", Allow::Viewer, fetched)
        .get("/v1/site/limits", Allow::Site, asking::limits)
}

/// Whether a fetch goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It waits, to be tried again, or has ended.
    #[default]
    Rests,
    /// It waits for the service, which does not run.
    Held,
    /// It is brought, and the service waits for it.
    Runs,
}

/// Whether a fetch may still be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Cancelled,
    /// It is too late: the file gets its place, or has it.
    Here,
}

/// A fetch that was begun.
pub(super) struct Fetch {
    state: watch::Sender<FetchReport>,
    phase: Mutex<Phase>,
    gather: Mutex<Option<Arc<Gather>>>,
    /// Pieces that have come whole, in all tries.
    pieces: AtomicU64,
    /// Sites that alone brought something else.
    wrong: Mutex<BTreeSet<String>>,
    fate: watch::Sender<Fate>,
    ended: OnceLock<Instant>,
}

impl Fetch {
    fn id(&self) -> i64 {
        self.state.borrow().id
    }

    fn report(&self) -> FetchReport {
        let mut report = self.state.borrow().clone();
        if let Some(gather) = &*lock(&self.gather) {
            report.add(&gather.seen());
        }
        report
    }

    fn tell(&self, what: String) {
        self.state.send_modify(|report| {
            tracing::info!(file = %report.name, "{what}");
            report.changed([what]);
        });
    }

    /// Tells once that it waits for the service, and that it goes on.
    fn set(&self, phase: Phase) {
        match (std::mem::replace(&mut *lock(&self.phase), phase), phase) {
            (Phase::Rests | Phase::Runs, Phase::Held) => {
                self.tell("it waits until the service `dispatch` is started".to_owned())
            }
            (Phase::Held, Phase::Runs) => {
                self.tell("the service `dispatch` was started".to_owned())
            }
            _ => {}
        }
    }

    /// What was asked for is not known any more, and nobody works on it.
    fn is_lost(&self) -> bool {
        self.state.borrow().name.is_empty()
    }

    fn is_cancelled(&self) -> bool {
        *self.fate.borrow() == Fate::Cancelled
    }

    async fn cancelled(&self) {
        // It fails when the sender is gone, which is here.
        let _ = self.fate.subscribe().wait_for(|fate| *fate == Fate::Cancelled).await;
    }

    /// From now on it cannot be given up. `false`: it was.
    fn is_here(&self) -> bool {
        self.fate.send_if_modified(|fate| {
            if *fate == Fate::Open {
                *fate = Fate::Here;
            }
            *fate == Fate::Here
        })
    }

    /// It did not get its place, and may be given up again.
    fn is_not_here(&self) {
        self.fate.send_replace(Fate::Open);
    }

    fn end(&self, ended: Result<Option<String>, String>) {
        self.state.send_modify(|report| {
            report.done = true;
            match ended {
                Ok(path) => report.path = path,
                Err(what) => report.failure = Some(what),
            }
        });
        // Once is enough: it cannot end again.
        let _ = self.ended.set(Instant::now());
    }
}

impl FetchReport {
    fn of(found: &Found, holders: &[Holder]) -> Self {
        Self {
            site: found.origin.clone(),
            name: found.name.clone(),
            version: found.version,
            size: found.size,
            blake3: found.blake3.clone(),
            path: found.here.clone(),
            sources: ranked(found.size, holders),
            ..Self::default()
        }
    }

    fn add(&mut self, seen: &Seen) {
        (self.at_once, self.arrived) = (seen.at_once, seen.arrived);
        for seen in &seen.sites {
            let source = self.sources.iter_mut().find(|source| source.site == seen.name);
            if let Some(source) = source.filter(|_| !seen.plan.is_empty()) {
                source.brought += seen.brought;
                source.plan.clone_from(&seen.plan);
                source.receive_buffer_bytes = seen.receive_buffer_bytes;
            }
        }
        self.changed(seen.told.iter().cloned());
    }

    fn changed(&mut self, what: impl IntoIterator<Item = String>) {
        self.changes.extend(what);
        keep_newest(&mut self.changes);
    }

    /// What came before, of whom, stays.
    fn rank(&mut self, size: u64, holders: &[Holder]) {
        let before = std::mem::replace(&mut self.sources, ranked(size, holders));
        for source in &mut self.sources {
            let known = before.iter().find(|known| known.site == source.site);
            source.brought = known.map_or(0, |known| known.brought);
        }
    }

    fn is_of(&self, site: &str, name: &str, version: i64) -> bool {
        (self.site.as_str(), self.name.as_str(), self.version) == (site, name, version)
    }
}

/// Fetch a file from where it would be here first
#[utoipa::path(post, path = "/v1/fetches", request_body = FetchWish,
    responses((status = 200, body = FetchReport), (status = 400, body = Problem),
        (status = 404, body = Problem)))]
async fn fetch(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(mut wish): Given<FetchWish>,
) -> Result<Json<FetchReport>, Problem> {
    if let Some(name) = wish.from.iter().find(|name| site.remote(name).is_none()) {
        let todo = "add a [[remote]] of that name to this site's configuration";
        return Err(Problem::bad_request(format!("`{name}` is no known site"), todo));
    }
    let (found, holders) = dispatch.find(&site, &wish).await?;
    let mut report = FetchReport::of(&found, &holders);
    if found.here.is_some() || wish.ask {
        report.done = true;
        return Ok(Json(report));
    }
    if let Some(running) = dispatch.fetching(&found.origin, &found.name, found.version) {
        return Ok(Json(running));
    }
    // A link that is broken may be whole again while the fetch waits.
    let refused =
        |Holder { remote, source, .. }: &Holder| dispatch.refused(remote.as_deref(), &source.name);
    if holders.iter().all(|holder| refused(holder).is_some()) {
        (report.done, report.failure) = (true, some_can_be_asked(&holders).err());
        return Ok(Json(report));
    }
    let ready = task::ready(&dispatch, &site, &found, holders).await?;
    wish.version = Some(found.version);
    let fetch = match dispatch.begin(report, site.clock.now())? {
        Begun::Now(fetch) => fetch,
        Begun::Before(running) => return Ok(Json(running)),
    };
    if dispatch.arrivals.wish() != Wish::Run {
        fetch.set(Phase::Held);
    }
    let report = fetch.report();
    let kept = Kept { wish: wish.clone(), report: report.clone() };
    if let Err(error) = kept.write(&site.config().state()) {
        let what = format!("the state folder: {error}");
        fetch.end(Err(what.clone()));
        return Err(Fault::new(ErrorClass::DestinationWriteFailed, what).into());
    }
    task::spawn(&dispatch, &site, fetch, wish, Some(ready));
    Ok(Json(report))
}

/// Of what was told, no more than a report tells.
fn keep_newest(told: &mut Vec<String>) {
    told.drain(..told.len().saturating_sub(CHANGES_MAX));
}

fn some_can_be_asked(holders: &[Holder]) -> Result<(), String> {
    let usable = holders.iter().any(|holder| holder.source.barred.is_none());
    usable.then_some(()).ok_or_else(|| "no site that has it can be asked".to_owned())
}

/// Which failure of two sources is that of the fetch: the later, unless only the earlier may pass, so that it is tried again.
fn decisive(before: Fault, fault: Fault) -> Fault {
    if fault.class.is_retried() || !before.class.is_retried() { fault } else { before }
}

/// Goes on with what had not ended when the daemon did.
pub(super) fn resume(dispatch: &Arc<Dispatch>, site: &Arc<Site>) {
    for kept in Kept::all(&site.config().state()) {
        match kept {
            Err(unreadable) => dispatch.cannot_go_on(unreadable),
            Ok(kept) if dispatch.goes_on(kept.report.id) => {}
            Ok(Kept { wish, report }) => {
                let fetch = keep(&mut lock(&dispatch.fetches), report);
                fetch.tell("the daemon was started again".to_owned());
                task::spawn(dispatch, site, fetch, wish, None);
            }
        }
    }
}

/// Fetches that are known
#[utoipa::path(get, path = "/v1/fetches", responses((status = 200, body = [FetchReport])))]
async fn fetches(Extension(dispatch): Extension<Arc<Dispatch>>) -> Json<Vec<FetchReport>> {
    Json(lock(&dispatch.fetches).values().map(|fetch| fetch.report()).collect())
}

/// How far a fetch is
#[utoipa::path(get, path = "/v1/fetches/{id}", params(("id" = i64, Path)),
    responses((status = 200, body = FetchReport), (status = 404, body = Problem)))]
async fn fetched(
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(id): Named<i64>,
) -> Result<Json<FetchReport>, Problem> {
    let fetch = lock(&dispatch.fetches).get(&id).cloned();
    let fetch =
        fetch.ok_or_else(|| Problem::not_found("this fetch is not known, or not any more"))?;
    Ok(Json(fetch.report()))
}

fn ranked(size: u64, holders: &[Holder]) -> Vec<FetchSource> {
    let sources: Vec<Source> = holders.iter().map(|holder| holder.source.clone()).collect();
    let ranked = rank(size, &sources).into_iter();
    let source = |ranked: downpour_proto::transfer::Ranked| FetchSource {
        site: ranked.name,
        takes_s: ranked.takes.map(|takes| takes.as_secs_f64()),
        why: ranked.why,
        brought: 0,
        plan: Vec::new(),
        receive_buffer_bytes: 0,
    };
    ranked.map(source).collect()
}

impl Dispatch {
    /// The file, and who has it.
    async fn find(
        self: &Arc<Self>,
        site: &Arc<Site>,
        wish: &FetchWish,
    ) -> Result<(Found, Vec<Holder>), Problem> {
        let FetchWish { site: origin, name, .. } = wish;
        let found = holders::find(site, origin, name, wish.version).await?;
        let nobody = || {
            let mut what = format!("no catalog here knows {name} of {origin} with its digest");
            if *origin != site.name && site.remote(origin).is_none() {
                what.push_str(&format!("; `{origin}` is no [[remote]] here"));
            }
            let todo = "name it as `downpour catalog search` does; \
                what other sites have is known of those in `[mirror] of`";
            Problem { todo: todo.to_owned(), ..Problem::not_found(what) }
                .of_class(ErrorClass::FileGone)
        };
        let found = found.ok_or_else(nobody)?;
        self.ask_limits(site, &found.holders).await;
        let holders = self.holders(site, &found, &wish.from);
        Ok((found, holders))
    }

    /// Each that has the file and is wanted (none: all are), as a source.
    fn holders(&self, site: &Site, found: &Found, from: &[String]) -> Vec<Holder> {
        let wanted = |name: &&String| from.is_empty() || from.contains(name);
        let holder = |name: &String| {
            let remote = site.remote(name);
            let (known, plan) = self.planned(site, [name, &site.name], (0, None));
            let (expected, by) = match self.pace_from(name) {
                Some(rate) => (Some(rate), "as the last fetch from there".to_owned()),
                None => (plan.expected.value, plan.expected.why),
            };
            let source = Source {
                name: name.clone(),
                expected,
                by,
                rtt: known.measured.rtt.map(|rtt| rtt.value),
                queued: self.queued_from(name),
                barred: self.barred(remote.as_deref(), name, site.clock.now()),
            };
            Holder { remote, source, depth: plan.depth.value }
        };
        found.holders.iter().filter(wanted).map(holder).collect()
    }

    /// Other sites that have a file which is not here, the best first.
    pub(super) async fn sources_elsewhere(
        &self,
        site: &Arc<Site>,
        origin: &str,
        file: &downpour_catalog::File,
    ) -> Result<Vec<FetchSource>, Fault> {
        let found = holders::find(site, origin, &file.name, Some(file.version)).await?;
        let Some(found) = found.filter(|found| found.here.is_none()) else { return Ok(Vec::new()) };
        Ok(ranked(found.size, &self.holders(site, &found, &[])))
    }

    /// Fetches under way, the oldest first.
    pub(super) fn fetches_now(&self) -> Vec<FetchReport> {
        let reports = lock(&self.fetches).values().map(|fetch| fetch.report()).collect::<Vec<_>>();
        reports.into_iter().filter(|report| !report.done).collect()
    }

    /// Fetches that are brought at this moment.
    pub(super) fn fetches_that_run(&self) -> usize {
        let runs = |fetch: &&Arc<Fetch>| *lock(&fetch.phase) == Phase::Runs;
        lock(&self.fetches).values().filter(runs).count()
    }

    /// The fetch of a file, while it is under way.
    pub(super) fn fetching(&self, site: &str, name: &str, version: i64) -> Option<FetchReport> {
        self.fetches_now().into_iter().find(|report| report.is_of(site, name, version))
    }

    /// Why a source is not asked until somebody changes that.
    fn refused(&self, remote: Option<&Remote>, name: &str) -> Option<String> {
        let Some(remote) = remote else { return Some("it is no [[remote]] here".to_owned()) };
        if remote.section.address.is_none() {
            return Some("its [[remote]] has no address".to_owned());
        }
        match lock(&self.links).get(name)?.wanted {
            Wanted::Open => None,
            Wanted::Drained => Some("an operator drained the link".to_owned()),
            Wanted::Banned => Some("an operator banned the link".to_owned()),
        }
    }

    /// The same, or why it is not asked now.
    fn barred(&self, remote: Option<&Remote>, name: &str, now: Time) -> Option<String> {
        if let Some(refused) = self.refused(remote, name) {
            return Some(refused);
        }
        let links = lock(&self.links);
        let link = links.get(name).filter(|link| link.is_left_alone(now))?;
        let trouble = link.trouble().map(|(class, what)| format!(": {class}: {what}"));
        Some(format!("its link is broken{}", trouble.unwrap_or_default()))
    }

    /// Bytes that come from a site already.
    fn queued_from(&self, name: &str) -> u64 {
        let batches = lock(&self.incoming);
        let batches =
            batches.values().filter(|batch| batch.from == name && batch.ended.get().is_none());
        let left = |batch: &Arc<Incoming>| {
            let all: u64 = batch.taken.iter().map(|taken| taken.item.size).sum();
            all.saturating_sub(batch.state.borrow().bytes)
        };
        batches.map(left).sum()
    }

    /// What the last fetch brought from there.
    fn pace_from(&self, name: &str) -> Option<Rate> {
        let paces = lock(&self.paces);
        paces.get(name).filter(|(_, at)| at.elapsed() < PACE_LIFE).map(|(rate, _)| *rate)
    }

    /// Whether a fetch is known that was not lost.
    fn goes_on(&self, id: i64) -> bool {
        lock(&self.fetches).get(&id).is_some_and(|fetch| !fetch.is_lost())
    }

    /// A fetch was lost: it is shown, without its name.
    fn cannot_go_on(&self, Unreadable { id, what }: Unreadable) {
        tracing::error!("a fetch is lost: {what}");
        if let Some(id) = id {
            let report = FetchReport { id, changes: vec![what], ..FetchReport::default() };
            keep(&mut lock(&self.fetches), report);
        }
    }

    /// Begins a fetch, if it is not under way already.
    fn begin(&self, mut report: FetchReport, now: Time) -> Result<Begun, Problem> {
        let mut known = lock(&self.fetches);
        let open = || known.values().map(|fetch| fetch.report()).filter(|report| !report.done);
        let FetchReport { site, name, version, .. } = &report;
        if let Some(running) = open().find(|open| open.is_of(site, name, *version)) {
            return Ok(Begun::Before(running));
        }
        if open().count() >= OPEN_MAX {
            let what = format!("{OPEN_MAX} files are being fetched");
            return Err(Problem::busy(what, "ask later"));
        }
        report.id = now.0;
        while known.contains_key(&report.id) {
            report.id += 1;
        }
        Ok(Begun::Now(keep(&mut known, report)))
    }

    /// Gives a fetch up, for good. `false`: there is none of this number that has not ended.
    pub(super) fn cancel_fetch(&self, site: &Site, id: i64) -> Result<bool, Problem> {
        let fetch = lock(&self.fetches).get(&id).cloned();
        let Some(fetch) = fetch.filter(|fetch| !fetch.state.borrow().done) else {
            return Ok(false);
        };
        let mut given_up = Ok(());
        fetch.fate.send_if_modified(|fate| {
            given_up = match fate {
                Fate::Here => Err(too_late()),
                _ => Kept::forget(&site.config().state(), id).map_err(|error| {
                    let what = format!("it would begin again with the daemon: {error}");
                    Fault::new(ErrorClass::OutOfResources, what).into()
                }),
            };
            if given_up.is_ok() {
                *fate = Fate::Cancelled;
            }
            given_up.is_ok()
        });
        given_up?;
        if fetch.is_lost() {
            fetch.end(Err(CANCELLED.to_owned()));
        }
        Ok(true)
    }
}

fn too_late() -> Problem {
    let what = "all of it is here: it is too late to give it up";
    Problem::new(StatusCode::CONFLICT, "too-late", what, "wait for its end")
}

/// A fetch that was asked for is under way,
enum Begun {
    /// since now,
    Now(Arc<Fetch>),
    /// or since it was asked for before.
    Before(FetchReport),
}

/// Remembers a fetch; the one that ended first is forgotten for it.
fn keep(known: &mut BTreeMap<i64, Arc<Fetch>>, report: FetchReport) -> Arc<Fetch> {
    if known.len() >= KNOWN_MAX {
        let ended = known.iter().filter_map(|(id, fetch)| Some((*fetch.ended.get()?, *id)));
        let first = ended.min();
        first.and_then(|(_, id)| known.remove(&id));
    }
    let id = report.id;
    let (state, fate) = (watch::channel(report).0, watch::channel(Fate::Open).0);
    let fetch = Arc::new(Fetch {
        state,
        phase: Mutex::default(),
        gather: Mutex::new(None),
        pieces: AtomicU64::new(0),
        wrong: Mutex::default(),
        fate,
        ended: OnceLock::new(),
    });
    known.insert(id, fetch.clone());
    fetch
}

#[cfg(test)]
mod tests {
    use super::{
        Fault, Fetch, FetchReport, FetchWish, KNOWN_MAX, Kept, Phase, decisive, fetch, keep,
    };
    use crate::api::Given;
    use crate::dispatch::link::{Link, Wanted};
    use crate::dispatch::{Dispatch, lock};
    use crate::site::Daemon;
    use axum::Extension;
    use axum::extract::State;
    use downpour_catalog::{AdoptedFile, Change, Digest, ErrorClass, OtherContent, Reader};
    use downpour_transport::identity::Identity;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    /// A site without parts, and a dispatcher that has asked for a file of `b`, to which the link is broken.
    async fn asked(at: &Path) -> (Daemon, Arc<Dispatch>, FetchReport) {
        let key = Identity::generate().public_key();
        let remote = format!("[[remote]]\nname = 'b'\naddress = '127.0.0.1:9'\nkey = '{key}'\n");
        let daemon = Daemon::example(at, "a", &remote).await;
        let (site, now) = (daemon.site.clone(), daemon.site.clock.now());
        let catalog = site.catalog.clone();
        let known = move |_: &mut Reader| Ok((catalog.site("b")?, catalog.rule("r")?));
        let (b, rule) = site.read(known).await.unwrap();
        let adopted = AdoptedFile {
            site: b,
            name: "x".to_owned(),
            size: 3,
            rule,
            digest: Digest::blake3([7; 32]),
            others: Vec::new(),
            replicas: vec![(b, "/x".to_owned())],
            other_content: OtherContent::Refuse,
            origin: None,
            receipt: None,
        };
        let answers = site.catalog.submit(now, vec![Change::Adopt(adopted)]).done().await;
        answers.unwrap().remove(0).unwrap();
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        let mut link = Link::new(1, Wanted::Open);
        (0..3).for_each(|_| link.fail(now, ErrorClass::TimedOut, "no answer"));
        assert!(link.is_left_alone(now));
        lock(&dispatch.links).insert("b".to_owned(), link);
        let report = ask(&daemon, &dispatch).await;
        (daemon, dispatch, report)
    }

    async fn ask(daemon: &Daemon, dispatch: &Arc<Dispatch>) -> FetchReport {
        let (site, name) = ("b".to_owned(), "x".to_owned());
        let wish = FetchWish { site, name, ..FetchWish::default() };
        let asked = fetch(State(daemon.site.clone()), Extension(dispatch.clone()), Given(wish));
        asked.await.unwrap().0
    }

    #[tokio::test]
    async fn what_is_here_is_not_given_up_and_what_is_given_up_gets_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, dispatch, begun) = asked(folder.path()).await;
        let (fetch, site) = (known(&dispatch, &begun), &daemon.site);
        let kept = || Kept::all(&site.config().state()).len();
        assert!(fetch.is_here());
        let late = dispatch.cancel_fetch(site, begun.id).unwrap_err();
        assert_eq!((late.status, fetch.is_cancelled(), kept()), (409, false, 1), "{late:?}");
        fetch.is_not_here();
        assert!(dispatch.cancel_fetch(site, begun.id).unwrap());
        assert_eq!((fetch.is_here(), fetch.is_cancelled(), kept()), (false, true, 0));
        fetch.state.subscribe().wait_for(|report| report.done).await.unwrap();
        daemon.end(Duration::ZERO).await;
    }

    fn known(dispatch: &Dispatch, report: &FetchReport) -> Arc<Fetch> {
        lock(&dispatch.fetches).get(&report.id).unwrap().clone()
    }

    #[tokio::test]
    async fn a_source_whose_link_is_broken_just_now_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, dispatch, begun) = asked(folder.path()).await;
        assert_eq!((begun.done, begun.failure.as_ref()), (false, None), "{begun:?}");
        let fetch = known(&dispatch, &begun);
        let mut state = fetch.state.subscribe();
        let waits = |report: &FetchReport| report.changes.iter().any(|c| c.starts_with("again in"));
        state.wait_for(waits).await.unwrap();
        assert!(dispatch.cancel_fetch(&daemon.site, begun.id).unwrap());
        state.wait_for(|report| report.done).await.unwrap();
        // What an operator wants does not pass by itself.
        lock(&dispatch.links).get_mut("b").unwrap().set(Wanted::Drained);
        let refused = ask(&daemon, &dispatch).await;
        let what = "no site that has it can be asked";
        assert_eq!((refused.id, refused.failure.as_deref()), (0, Some(what)), "{refused:?}");
        daemon.end(Duration::ZERO).await;
    }

    #[test]
    fn a_source_that_may_come_back_is_waited_for_whatever_its_name() {
        use ErrorClass::{DigestDiffers, FileGone, SourceUnreachable};
        let of_all = |classes: [ErrorClass; 2]| {
            let wrong = Fault::new(DigestDiffers, "no site brings it");
            classes.map(|class| Fault::new(class, "of one")).into_iter().fold(wrong, decisive).class
        };
        assert_eq!(of_all([SourceUnreachable, FileGone]), SourceUnreachable);
        assert_eq!(of_all([FileGone, SourceUnreachable]), SourceUnreachable);
        assert_eq!(of_all([FileGone, FileGone]), FileGone);
    }

    #[test]
    fn that_a_fetch_waits_for_its_service_is_told_once_and_not_when_it_goes_on() {
        let fetch = keep(&mut BTreeMap::new(), FetchReport::default());
        let changes = || fetch.report().changes;
        fetch.set(Phase::Runs);
        assert!(changes().is_empty());
        // By who asked for it, and by the fetch itself.
        for _ in 0..2 {
            fetch.set(Phase::Held);
            assert_eq!(changes(), ["it waits until the service `dispatch` is started"]);
        }
        fetch.set(Phase::Runs);
        assert_eq!(changes().last().unwrap(), "the service `dispatch` was started");
        fetch.set(Phase::Rests);
        fetch.set(Phase::Runs);
        assert_eq!(changes().len(), 2);
    }

    /// Whoever waits for it looks again before many others have begun.
    #[test]
    fn a_long_fetch_that_has_just_ended_is_not_the_next_to_be_forgotten() {
        let mut known = BTreeMap::new();
        let mut begin = |id| keep(&mut known, FetchReport { id, ..FetchReport::default() });
        let long = begin(1);
        let last = KNOWN_MAX as i64;
        for id in 2..=last {
            begin(id).end(Ok(None));
        }
        long.end(Ok(None));
        begin(last + 1);
        assert_eq!((known.len(), known.contains_key(&1)), (KNOWN_MAX, true));
        assert!(!known.contains_key(&2));
    }
}
