//! What people may ask of files and transfers: submit, look, ask why, retry, cancel, release. Links are in `links`, a file's
//! bytes in `bytes`.
//!
//! What is asked of another site's files is passed on to it. Whatever goes over many files ends after some seconds, and says where to
//! go on; a deed on a file that moved on meanwhile is none.

use super::fetch::FetchReport;
use super::incoming::Incoming;
use super::offer::Arrived;
use super::submit::{Accepted, Submission, submit};
use super::turns::read_file;
use super::why::{Place, Why, WhyList};
use super::{Dispatch, lock, wants};
use crate::api::{Allow, Asked, Detail, Given, Named, Problem, Routes};
use crate::site::{Config, Fault, Site, SiteEvent};
use crate::spool::lies_aside;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use downpour_catalog::{
    Change, Error, ErrorClass, FileId, Move, Next, Query, Reader, Refused, SiteId, Time, Transfer,
    TransferId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Transfers on the list.
const LIST_MAX: usize = 1000;
/// Files that one deed may be done to.
const DEED_MAX: usize = 10_000;
/// What is done to a transfer is answered after so long: who asks waits for the answer for 30 s.
const DEED_TIME: Duration = Duration::from_secs(5);
/// For so long the files of transfers on a list are counted, of the newest ones first.
const COUNT_TIME: Duration = Duration::from_secs(5);

#[derive(OpenApi)]
#[openapi(paths(submit_files, transfers, transfer, why, why_file, retry, cancel, release))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .post("/v1/transfers", Allow::Operator, submit_files)
        .get("/v1/transfers", Allow::Viewer, transfers)
        .get("/v1/transfers/{id}", Allow::Viewer, transfer)
        .get("/v1/why", Allow::Viewer, why)
        .get("/v1/why/{file}", Allow::Viewer, why_file)
        .post("/v1/files/retry", Allow::Operator, retry)
        .post("/v1/files/cancel", Allow::Operator, cancel)
        .post("/v1/files/release", Allow::Operator, release)
}

/// What was submitted, and what became of it so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The site at which the files are queued.
    pub site: String,
    /// What it took.
    #[serde(flatten)]
    pub accepted: Accepted,
}

/// A batch that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchReport {
    /// Its number.
    pub id: String,
    /// Where to; or where from, when it arrives here.
    pub site: String,
    /// Whether it arrives here.
    pub arrives: bool,
    /// Its rule; empty when it arrives here.
    pub rule: String,
    /// Files in it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that have arrived.
    pub arrived: u64,
    /// Files that failed so far.
    pub failed: u64,
    /// Since when, microseconds since 1970.
    pub since_us: i64,
    /// For so many seconds nothing has arrived; absent while something does, and when it arrives here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_s: Option<u64>,
}

/// A transfer that was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransferReport {
    /// Its number.
    pub id: i64,
    /// Where from.
    pub from: String,
    /// Where to.
    pub to: String,
    /// When, microseconds since 1970.
    pub submitted_us: i64,
    /// Files by state; in a list only if it is asked for, and of the newest ones that are counted in some seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<String, u64>,
    /// Bytes of all of them; not there where they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// A file of it that waits or, where none does, is queued; not there while one is being sent, and in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<i64>,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Transfers {
    /// Batches now.
    pub batches: Vec<BatchReport>,
    /// Files that are fetched from who has them, now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetches: Vec<FetchReport>,
    /// Transfers with a file that has not ended, the newest first, at most 1000 or as many as are asked for.
    pub transfers: Vec<TransferReport>,
}

/// Files that something is to be done with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// By their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<i64>,
    /// All of a transfer; the fetch of this number, when it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<i64>,
    /// Of a transfer, where to go on: `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// Files that it was done to.
    pub done: u64,
    /// Files for which there is nothing to do, as they stand, with those set aside.
    pub passed: u64,
    /// Files that lie in a spool's quarantine: they are released there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aside: Vec<i64>,
    /// Files that were named and are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<i64>,
    /// The transfer has more: where to go on, after some seconds of work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

/// Submit files
#[utoipa::path(post, path = "/v1/transfers", request_body = Submission,
    responses((status = 200, body = Submitted), (status = 400, body = Problem)))]
async fn submit_files(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(wish): Given<Submission>,
) -> Result<Response, Problem> {
    let known = |name: &str| name == site.name || site.remote(name).is_some();
    let from = wish.from.clone().unwrap_or_else(|| site.name.clone());
    for name in [&from, &wish.to] {
        if !known(name) {
            let todo = "add a [[remote]] of that name to this site's configuration";
            return Err(Problem::bad_request(format!("`{name}` is no known site"), todo));
        }
    }
    if from == wish.to {
        let what = "the files would go to where they are";
        return Err(Problem::bad_request(what, "name another site"));
    }
    if !wish.goes_on() {
        let what = "no answer to this submission said to go on after that";
        let todo = "give `next` of the answer before as `after`, with the same paths";
        return Err(Problem::bad_request(what, todo));
    }
    let detail = Detail(format!("{} paths from {from} to {}", wish.paths.len(), wish.to));
    let submitted = if from == site.name {
        let accepted = submit(&dispatch, &site, wish).await?;
        dispatch.wake.notify_one();
        Submitted { site: from, accepted }
    } else {
        elsewhere(&site, &from, wish).await?
    };
    let mut answer = Json(submitted).into_response();
    answer.extensions_mut().insert(detail);
    Ok(answer)
}

/// Files that lie at another site: it is asked to send them here, or the destination is asked to fetch them.
async fn elsewhere(site: &Arc<Site>, from: &str, wish: Submission) -> Result<Submitted, Problem> {
    let third = wish.to != site.name;
    let other = if third { wish.to.clone() } else { from.to_owned() };
    let wish = Submission { from: third.then(|| from.to_owned()), ..wish };
    let accepted = wants::fetch(site, &other, wish).await?;
    Ok(Submitted { site: from.to_owned(), accepted })
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct How {
    /// Whether to count the files of each transfer; those for which some seconds are too few come without
    #[serde(default)]
    states: bool,
    /// So many of the newest transfers; with 0 only what is under way now
    most: Option<usize>,
}

/// What is under way
#[utoipa::path(get, path = "/v1/transfers", params(How),
    responses((status = 200, body = Transfers)))]
async fn transfers(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Asked(How { states, most }): Asked<How>,
) -> Result<Json<Transfers>, Problem> {
    let until = Instant::now() + COUNT_TIME;
    let mut transfers = match most.unwrap_or(LIST_MAX).min(LIST_MAX) {
        0 => Vec::new(),
        most => site.read(move |reader| open_now(reader, most)).await?,
    };
    for report in transfers.iter_mut().filter(|_| states) {
        let id = TransferId(report.id);
        let counted = site.read(move |reader| reader.transfer_states(id));
        let Ok(counted) = timeout_at(until.into(), counted).await else { break };
        report.count(counted?);
    }
    let (batches, fetches) = (dispatch.batches(site.clock.now()), dispatch.fetches_now());
    Ok(Json(Transfers { transfers, batches, fetches }))
}

fn open_now(reader: &mut Reader, most: usize) -> Result<Vec<TransferReport>, Error> {
    let names = reader.sites()?.into_iter().collect();
    let open = reader.open_transfers(most)?;
    Ok(open.into_iter().map(|transfer| report_of(&names, transfer)).collect())
}

fn report_of(names: &BTreeMap<SiteId, String>, transfer: Transfer) -> TransferReport {
    let name = |site| names.get(&site).cloned().unwrap_or_default();
    TransferReport {
        id: transfer.id.0,
        from: name(transfer.from),
        to: name(transfer.to),
        submitted_us: transfer.submitted.0,
        states: BTreeMap::new(),
        bytes: None,
        stuck: None,
    }
}

impl TransferReport {
    fn count(&mut self, states: Vec<(downpour_catalog::State, u64, u64)>) {
        self.bytes = Some(states.iter().map(|(.., bytes)| bytes).sum());
        let named = states.into_iter().map(|(state, files, _)| (state.name().to_owned(), files));
        self.states = named.collect();
    }
}

impl BatchReport {
    pub(super) fn incoming(id: &str, incoming: &Incoming, now: Time) -> Self {
        let state = incoming.state.borrow();
        let has_failed = |item: &&Arrived| matches!(item, Arrived::Failed(_));
        let age_us = i64::try_from(incoming.made.elapsed().as_micros()).unwrap_or(now.0);
        Self {
            id: id.to_owned(),
            site: incoming.from.clone(),
            arrives: true,
            rule: String::new(),
            files: incoming.taken.len() as u64,
            bytes: incoming.taken.iter().map(|taken| taken.item.size).sum(),
            arrived: state.bytes,
            failed: state.items.iter().filter(has_failed).count() as u64,
            since_us: now.0 - age_us,
            stands_s: None,
        }
    }

    /// Tells who listens that it has ended; `trouble` is why it broke.
    pub(super) fn tell(&self, site: &Site, trouble: Option<(ErrorClass, &str)>) {
        let mut about = serde_json::json!(self);
        if let Some((class, what)) = trouble {
            (about["class"], about["what"]) = (class.name().into(), what.into());
        }
        site.events.tell(SiteEvent::BATCH, &about);
    }
}

impl Dispatch {
    fn batches(&self, now: Time) -> Vec<BatchReport> {
        let mut batches: Vec<_> = lock(&self.outgoing).values().map(|of| of.report()).collect();
        let incoming = lock(&self.incoming);
        for (id, incoming) in incoming.iter().filter(|(_, incoming)| incoming.is_under_way()) {
            batches.push(BatchReport::incoming(id, incoming, now));
        }
        batches
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Where {
    /// The site at which it was queued; this one unless given
    at: Option<String>,
}

/// One transfer
#[utoipa::path(get, path = "/v1/transfers/{id}", params(("id" = i64, Path), Where),
    responses((status = 200, body = TransferReport), (status = 404, body = Problem),
        (status = 503, body = Problem)))]
async fn transfer(
    State(site): State<Arc<Site>>,
    Named(id): Named<i64>,
    Asked(Where { at }): Asked<Where>,
) -> Result<Json<TransferReport>, Problem> {
    let Some(at) = at.filter(|at| *at != site.name) else { return transfer_here(&site, id).await };
    let none = || Problem {
        todo: format!("name {} or one of its [[remote]]s", site.name),
        ..Problem::not_found(format!("no site `{at}`"))
    };
    let told = site.remote(&at).ok_or_else(none)?.get(&format!("/v1/site/transfers/{id}")).await;
    Ok(Json(told.map_err(|error| Problem::of_source(&at, error))?))
}

/// How a transfer stands that was queued here.
pub(super) async fn transfer_here(
    site: &Arc<Site>,
    id: i64,
) -> Result<Json<TransferReport>, Problem> {
    let found = site.read(move |reader| {
        let Some(transfer) = reader.transfer(TransferId(id))? else { return Ok(None) };
        let mut report = report_of(&reader.sites()?.into_iter().collect(), transfer);
        report.count(reader.transfer_states(TransferId(id))?);
        report.stuck = stuck(reader, TransferId(id), &report.states)?;
        Ok(Some(report))
    });
    found.await?.map(Json).ok_or_else(|| no_transfer(site, id))
}

/// A file of a transfer that says why nothing of it moves.
fn stuck(
    reader: &mut Reader,
    id: TransferId,
    states: &BTreeMap<String, u64>,
) -> Result<Option<i64>, Error> {
    use downpour_catalog::State as S;
    let has = |state: &S| states.get(state.name()).is_some_and(|files| *files > 0);
    let moves = [S::Sending, S::Sent, S::Verified].iter().any(has);
    match [S::Waiting, S::Queued].into_iter().find(has).filter(|_| !moves) {
        Some(state) => {
            let first = reader.transfer_live(id, &[state], FileId(0), 1)?;
            Ok(first.first().map(|file| file.0))
        }
        None => Ok(None),
    }
}

fn no_transfer(site: &Site, id: i64) -> Problem {
    Problem::not_found(format!("there is no transfer {id} queued at {}", site.name))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// What the name begins with.
    prefix: Option<String>,
    /// Only files in this state.
    state: Option<String>,
    /// Only files that are shown with this error class.
    class: Option<String>,
    /// Where an earlier page ended.
    after: Option<String>,
}

/// Files that do not move, each with its one reason
#[utoipa::path(get, path = "/v1/why", params(Which),
    responses((status = 200, body = WhyList), (status = 400, body = Problem)))]
async fn why(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Asked(which): Asked<Which>,
) -> Result<Json<WhyList>, Problem> {
    let bad = |what: String| Problem::bad_request(what, "give one of those");
    let state = which.state.map(|text| text.parse()).transpose();
    let error = which.class.map(|text| text.parse()).transpose();
    let after = which.after.map(|text| text.parse::<Place>()).transpose();
    let query = Query {
        prefix: which.prefix,
        state: state.map_err(|e: downpour_catalog::UnknownName| bad(e.to_string()))?,
        error: error.map_err(|e: downpour_catalog::UnknownName| bad(e.to_string()))?,
        ..Query::default()
    };
    let todo = "give `next` of the page before";
    let after = after.map_err(|e| Problem::bad_request(e.to_string(), todo))?;
    let (any, first) = (query.state.is_none() && query.error.is_none(), after.is_none());
    let prefix = query.prefix.clone().unwrap_or_default();
    let mut list = dispatch.why(&site, query, after.unwrap_or_default()).await?;
    if any && first {
        list.fetches = dispatch.fetches_now();
        list.fetches.retain(|fetch| fetch.name.starts_with(&prefix));
    }
    Ok(Json(list))
}

/// Why one file does not move
#[utoipa::path(get, path = "/v1/why/{file}", params(("file" = i64, Path)),
    responses((status = 200, body = Why), (status = 400, body = Problem),
        (status = 404, body = Problem)))]
async fn why_file(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(file): Named<i64>,
) -> Result<Json<Why>, Problem> {
    let found = dispatch.why_of(&site, FileId(file)).await?;
    found.map(Json).ok_or_else(|| Problem::not_found(format!("there is no file {file}")))
}

/// Try waiting files at once
#[utoipa::path(post, path = "/v1/files/retry", request_body = Files,
    responses((status = 200, body = Done), (status = 400, body = Problem),
        (status = 404, body = Problem)))]
async fn retry(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(files): Given<Files>,
) -> Result<Json<Done>, Problem> {
    use downpour_catalog::State::Waiting;
    step(&site, &dispatch, files, &[Waiting], Next::Resumed).await
}

/// Give files up, or a fetch by the number of its transfer
#[utoipa::path(post, path = "/v1/files/cancel", request_body = Files,
    responses((status = 200, body = Done), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn cancel(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(files): Given<Files>,
) -> Result<Json<Done>, Problem> {
    use downpour_catalog::State as S;
    if let Some(id) = files.transfer
        && dispatch.cancel_fetch(&site, id)?
    {
        return Ok(Json(Done { done: 1, ..Done::default() }));
    }
    let open: Vec<S> = S::ALL.iter().copied().filter(|state| !state.is_end()).collect();
    step(&site, &dispatch, files, &open, Next::Cancelled).await
}

/// Let files out of quarantine; those that lie in a spool's are passed over, for they are released there
#[utoipa::path(post, path = "/v1/files/release", request_body = Files,
    responses((status = 200, body = Done), (status = 400, body = Problem),
        (status = 404, body = Problem)))]
async fn release(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(files): Given<Files>,
) -> Result<Json<Done>, Problem> {
    use downpour_catalog::State::Quarantined;
    check(&files)?;
    let named = files.files.clone();
    let quarantined = site.read(move |reader| {
        let mut found = Vec::new();
        for id in named {
            let file = reader.file(FileId(id))?.filter(|file| file.state == Quarantined);
            found.extend(file.map(|file| (file.id, file.name)));
        }
        Ok(found)
    });
    let quarantined = quarantined.await?;
    let aside = dispatch.aside(&site.config(), &quarantined).await?;
    let aside = quarantined.into_iter().filter(|(file, _)| aside.contains(file));
    let aside: BTreeMap<i64, String> = aside.map(|(file, name)| (file.0, name)).collect();
    let rest = files.files.into_iter().filter(|id| !aside.contains_key(id)).collect();
    let rest = Files { files: rest, ..files };
    match aside.first_key_value() {
        // In the catalog alone it would go on, and not be where it goes from.
        Some((id, name)) if rest.files.is_empty() && rest.transfer.is_none() => {
            let todo = format!("downpour spool release {id}");
            let what = format!("{name} lies in its spool's quarantine, and is let out by `{todo}`");
            Err(Problem::bad_request(what, todo))
        }
        _ => {
            let Json(done) = step(&site, &dispatch, rest, &[Quarantined], Next::Resumed).await?;
            let passed = done.passed + aside.len() as u64;
            Ok(Json(Done { passed, aside: aside.into_keys().collect(), ..done }))
        }
    }
}

impl Dispatch {
    /// Which of these files lie in the quarantine of a spool. One that does not answer has few threads, however often it is asked, and is
    /// waited for with no turn to read the catalog.
    pub(super) async fn aside(
        &self,
        config: &Config,
        files: &[(FileId, String)],
    ) -> Result<HashSet<FileId>, Fault> {
        let mut aside = HashSet::new();
        for spool in &config.spool {
            let mut files = files.to_vec();
            files.retain(|(_, name)| name.starts_with(&spool.prefix));
            if files.is_empty() {
                continue;
            }
            let (turns, spool) = (self.turns.reads(config, &spool.folder), [spool.clone()]);
            let look = move || {
                files.retain(|(file, name)| lies_aside(&spool, name, file.0));
                files
            };
            aside.extend(read_file(&turns, look).await?.into_iter().map(|(file, _)| file));
        }
        Ok(aside)
    }
}

/// A deed is done to so many files at most.
fn check(which: &Files) -> Result<(), Problem> {
    match which.files.len() {
        0..=DEED_MAX => Ok(()),
        len => Err(Problem::bad_request(format!("{len} files at once"), "name fewer at a time")),
    }
}

/// A deed on all of a transfer needs one, or a fetch: who mistypes its number learns of it.
async fn check_transfer(site: &Arc<Site>, dispatch: &Dispatch, id: i64) -> Result<(), Problem> {
    let is_fetch = lock(&dispatch.fetches).contains_key(&id);
    if is_fetch || site.read(move |reader| reader.transfer(TransferId(id))).await?.is_some() {
        return Ok(());
    }
    Err(no_transfer(site, id))
}

async fn step(
    site: &Arc<Site>,
    dispatch: &Dispatch,
    which: Files,
    from: &[downpour_catalog::State],
    next: Next,
) -> Result<Json<Done>, Problem> {
    check(&which)?;
    if let Some(id) = which.transfer {
        check_transfer(site, dispatch, id).await?;
    }
    let named = which.files.into_iter().map(FileId).collect();
    let mut all = Done::default();
    step_some(site, named, from, &next, &mut all).await?;
    if let Some(transfer) = which.transfer.map(TransferId) {
        let (begun, mut after) = (Instant::now(), FileId(which.after.unwrap_or(0)));
        loop {
            let states = from.to_vec();
            let found =
                move |reader: &mut Reader| reader.transfer_live(transfer, &states, after, DEED_MAX);
            let files = site.read(found).await?;
            let last = files.last().copied().filter(|_| files.len() == DEED_MAX);
            step_some(site, files, from, &next, &mut all).await?;
            let Some(last) = last else { break };
            after = last;
            if begun.elapsed() > DEED_TIME {
                all.next = Some(after.0);
                break;
            }
        }
    }
    // What was cancelled while it was sent is given up.
    dispatch.look.notify_waiters();
    dispatch.wake.notify_one();
    Ok(Json(all))
}

/// Does it to these files, in one commit.
async fn step_some(
    site: &Arc<Site>,
    ids: Vec<FileId>,
    from: &[downpour_catalog::State],
    next: &Next,
    all: &mut Done,
) -> Result<(), Fault> {
    let read = |reader: &mut Reader| {
        ids.into_iter().map(|id| Ok((id, reader.file(id)?))).collect::<Result<Vec<_>, _>>()
    };
    let mut changes = Vec::new();
    for (id, file) in site.read(read).await? {
        match file {
            None => all.unknown.push(id.0),
            Some(file) if from.contains(&file.state) => {
                let (file, at, next) = (file.id, file.revision, next.clone());
                changes.push(Change::Move(Move { file, at, fence: None, next }));
            }
            Some(_) => all.passed += 1,
        }
    }
    let answers = site.catalog.submit(site.clock.now(), changes).done().await?;
    // What moved on meanwhile is not ours to judge.
    let refused = |answer: &Result<_, Refused>| answer.is_err();
    all.passed += answers.iter().filter(|answer| refused(answer)).count() as u64;
    all.done += answers.iter().filter(|answer| !refused(answer)).count() as u64;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::api::Problem;
    use crate::dispatch::arriving::Taken;
    use crate::dispatch::incoming::Incoming;
    use crate::dispatch::{Dispatch, lock};
    use crate::site::{Clock, Config, Daemon, Role, Service as _, parts};
    use axum::body::Body;
    use axum::http::{Request, header};
    use downpour_catalog::FileId;
    use futures_util::FutureExt as _;
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use tower::ServiceExt as _;

    #[tokio::test]
    async fn a_batch_that_was_only_offered_or_has_ended_does_not_arrive() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        std::fs::write(&file, "[site]\nname = 'b'\n[api]\nlisten = '127.0.0.1:0'\n").unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        daemon.end(Duration::ZERO).await;
        let dispatch = Dispatch::new(&daemon.site, &Arc::default());
        let (inbox, taken) = (folder.path().to_owned(), vec![Taken::example("x", 1)]);
        let reserved = dispatch.room.space(&inbox, &HashSet::new()).reserve();
        let book = dispatch.book.clone();
        let incoming = Arc::new(Incoming::new("a", inbox, taken, reserved, book));
        lock(&dispatch.incoming).insert("1".to_owned(), incoming.clone());
        let arrives = |count: usize| {
            assert_eq!(dispatch.batches(daemon.site.clock.now()).len(), count);
            let line = dispatch.status().line;
            assert!(line.starts_with(&format!("0 batches out, {count} in")), "{line}");
        };
        arrives(0);
        incoming.begun.store(true, Ordering::SeqCst);
        arrives(1);
        incoming.state.send_modify(|state| state.done = true);
        arrives(0);
    }

    #[tokio::test]
    async fn a_spool_that_does_not_answer_is_asked_by_few_and_only_for_files_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let hung = folder.path().join("hung");
        let spool = format!("[[spool]]\nfolder = '{}'\nprefix = 'hung/'\n", hung.display());
        let config: Config = toml::from_str(&format!("[site]\nname = 'a'\n{spool}")).unwrap();
        let site = Daemon::ended(folder.path(), "a", "").await;
        let dispatch = Dispatch::new(&site, &Arc::default());
        let turns = dispatch.turns.reads(&config, &hung);
        let all = u32::try_from(turns.available_permits()).unwrap();
        let _held = turns.acquire_many_owned(all).await.unwrap();
        let [own, other] = ["hung/x", "well/x"].map(|name| [(FileId(1), name.to_owned())]);
        assert!(dispatch.aside(&config, &own).now_or_never().is_none());
        assert!(dispatch.aside(&config, &other).now_or_never().unwrap().unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_is_asked_of_a_transfer_that_is_not_there_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::example(folder.path(), "a", "").await;
        let token = daemon.site.tokens.add("x", Role::Operator, None, daemon.site.clock.now());
        let bearer = format!("Bearer {}", token.unwrap().token);
        let mut part = parts(&daemon.site).into_iter();
        let is_ours = |part: &crate::site::Part| {
            part.routes.mounted().any(|(_, path, _)| path == "/v1/files/retry")
        };
        let routes = part.find(is_ours).unwrap().routes;
        for deed in ["retry", "cancel", "release"] {
            let request = Request::post(format!("/v1/files/{deed}"));
            let request = request.header(header::AUTHORIZATION, &bearer);
            let request = request.body(Body::from(r#"{"transfer": 7}"#)).unwrap();
            let router = routes.clone().into_router(daemon.site.clone());
            let answer = router.oneshot(request).await.unwrap();
            let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
            let problem: Problem = serde_json::from_slice(&body).unwrap();
            let expected = (404, "there is no transfer 7 queued at a");
            assert_eq!((problem.status, &*problem.what), expected, "{deed}");
        }
        daemon.end(Duration::ZERO).await;
    }
}
