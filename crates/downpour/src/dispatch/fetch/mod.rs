//! A file that several sites have, fetched from where it would be here first: `/v1/fetches`.
//!
//! 1. `holders` looks in this site's catalog and in its copies of others' who has the file.
//! 2. They are ranked by when the file would be here (`proto::transfer::rank`), and the ranking is kept to be shown.
//! 3. `gather` brings the bytes, from the best, or from all at once.
//! 4. The whole is compared with the digest of the catalog, placed, signed for and recorded, as what a batch brought. If it
//!    is not what it should be, each source is tried alone.
//!
//! 5. `journal` keeps what was asked for and what is here of it: a daemon that is started again goes on, patiently, for its
//!    sources may have gone down with it.
//!
//! Deliberately absent: telling the sources; they learn of the new replica as of any other.

mod gather;
mod holders;
mod journal;

use super::arriving::{Judge, Look, Taken};
use super::incoming::{Incoming, receipt};
use super::link::Wanted;
use super::load::Names;
use super::offer::OfferItem;
use super::pieces::Piece;
use super::{Dispatch, lock};
use crate::api::{Allow, Given, Problem, Routes};
use crate::object::open_in;
use crate::receipt::digest_of;
use crate::site::{Fault, Remote, Site};
use crate::spool::Rules;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use downpour_catalog::ErrorClass;
use downpour_proto::Rate;
use downpour_proto::transfer::{Source, rank};
use gather::{AT_ONCE_MIN, Gather, Holder, Seen, Target};
use holders::Found;
use journal::{Journal, Kept, Unreadable};
use rustix::fs::{Mode, OFlags, RenameFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use utoipa::{OpenApi, ToSchema};

/// Fetches that are known at once, ended ones included.
const KNOWN_MAX: usize = 64;
/// Where parts lie, below the receiving folder.
const PARTS: &str = ".downpour/fetch";
/// What a fetch brought from a site is expected of it for so long.
const PACE_LIFE: Duration = Duration::from_secs(3600);
/// A fetch that goes on after a restart is tried again after so long, then after twice as long, up to the last wait.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(256);

/// A file to be fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchWish {
    /// The site that it comes from first.
    pub site: String,
    /// Its name there.
    pub name: String,
    /// Its version there; the newest that is known unless it is said.
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
    /// What was changed on the way, and why.
    pub changes: Vec<String>,
}

#[derive(OpenApi)]
#[openapi(paths(fetch, fetches, fetched))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .post("/v1/fetches", Allow::Operator, fetch)
        .get("/v1/fetches", Allow::Viewer, fetches)
        .get("/v1/fetches/{id}", Allow::Viewer, fetched)
}

/// A fetch that was begun.
pub(super) struct Fetch {
    state: watch::Sender<FetchReport>,
    gather: Mutex<Option<Arc<Gather>>>,
}

impl Fetch {
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
            report.changes.push(what);
        });
    }

    fn end(&self, ended: Result<Option<String>, String>) {
        self.state.send_modify(|report| {
            report.done = true;
            match ended {
                Ok(path) => report.path = path,
                Err(what) => report.failure = Some(what),
            }
        });
    }
}

impl FetchReport {
    fn of(found: &Found, holders: &[Holder]) -> Self {
        Self {
            site: found.origin.clone(),
            name: found.name.clone(),
            version: found.version,
            size: found.size,
            sources: ranked(found.size, holders),
            ..Self::default()
        }
    }

    fn add(&mut self, seen: &Seen) {
        (self.at_once, self.arrived) = (seen.at_once, seen.arrived);
        for (name, brought, _) in &seen.brought {
            if let Some(source) = self.sources.iter_mut().find(|source| source.site == *name) {
                source.brought += brought;
            }
        }
        self.changes.extend(seen.told.iter().cloned());
    }
}

/// Fetch a file from where it would be here first
#[utoipa::path(post, path = "/v1/fetches", request_body = FetchWish,
    responses((status = 200, body = FetchReport), (status = 404, body = Problem)))]
async fn fetch(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(mut wish): Given<FetchWish>,
) -> Result<Json<FetchReport>, Problem> {
    let (found, holders) = dispatch.find(&site, &wish).await?;
    let mut report = FetchReport::of(&found, &holders);
    if found.is_here || wish.ask {
        report.done = true;
        return Ok(Json(report));
    }
    if let Some(running) = dispatch.fetching(&found.origin, &found.name, found.version) {
        return Ok(Json(running));
    }
    if let Err(failure) = some_can_be_asked(&holders) {
        (report.done, report.failure) = (true, Some(failure));
        return Ok(Json(report));
    }
    let (folder, taken) = taken(&site, &found).await?;
    report.id = site.clock.now().0;
    wish.version = Some(found.version);
    let one = wish.one;
    let (state, kept) = (site.config().state(), Kept { wish, report: report.clone() });
    kept.write(&state).map_err(|error| {
        let what = format!("the state folder: {error}");
        Problem::from(Fault::new(ErrorClass::DestinationWriteFailed, what))
    })?;
    let fetch = dispatch.keep(report.clone());
    tokio::spawn(async move {
        let task = Task { site, dispatch, fetch: fetch.clone(), folder, taken, one };
        let ended = task.run(holders).await;
        Kept::forget(&state, kept.report.id);
        fetch.end(ended.map(Some));
    });
    Ok(Json(report))
}

fn some_can_be_asked(holders: &[Holder]) -> Result<(), String> {
    let usable = holders.iter().any(|holder| holder.source.barred.is_none());
    usable.then_some(()).ok_or_else(|| "no site that has it can be asked".to_owned())
}

/// Goes on with what had not ended when the daemon did.
pub(super) fn resume(dispatch: &Arc<Dispatch>, site: &Arc<Site>) {
    let state = site.config().state();
    for kept in Kept::all(&state) {
        let Kept { wish, report } = match kept {
            Ok(kept) => kept,
            Err(unreadable) => {
                dispatch.cannot_go_on(unreadable);
                continue;
            }
        };
        let id = report.id;
        if dispatch.goes_on(id) {
            continue;
        }
        let fetch = dispatch.keep(report);
        let (dispatch, site, state) = (dispatch.clone(), site.clone(), state.clone());
        tokio::spawn(async move {
            fetch.tell("the daemon was started again".to_owned());
            let mut wait = FIRST_WAIT;
            let ended = loop {
                let failure = match dispatch.go_on(&site, &fetch, &wish).await {
                    Err(what) if wait <= LAST_WAIT => what,
                    ended => break ended,
                };
                fetch.tell(format!("again in {} s: {failure}", wait.as_secs()));
                tokio::time::sleep(wait).await;
                wait *= 2;
            };
            Kept::forget(&state, id);
            fetch.end(ended);
        });
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
    Path(id): Path<i64>,
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
    };
    ranked.map(source).collect()
}

/// Where the file goes here.
async fn taken(site: &Arc<Site>, found: &Found) -> Result<(PathBuf, Taken), Problem> {
    let config = site.config();
    let folder = config.path(&config.transfer.inbox);
    let template = crate::spool::Template::default();
    let facts = crate::spool::Facts {
        name: &found.name,
        version: found.version,
        site: &found.origin,
        rule: &found.rule,
        taken_in: found.taken_in,
        path: "",
    };
    let item = OfferItem {
        site: found.origin.clone(),
        name: found.name.clone(),
        version: found.version,
        taken_in_us: found.taken_in.0,
        rule: found.rule.clone(),
        size: found.size,
        blake3: found.blake3.clone(),
        into: template.path(&facts),
        digests: Vec::new(),
    };
    let (own, judged, inbox) = (site.name.clone(), site.clone(), folder.clone());
    let look = site.read(move |reader| {
        let names = Names::read(reader)?;
        let judge = Judge {
            site: &judged,
            own: names.site(&own).unwrap_or_default(),
            sites: names.sites.iter().map(|(id, name)| (name.clone(), *id)).collect(),
            rules: Rules::new(&own, &judged.config().rule),
            folder: inbox,
        };
        judge.look(reader, &item)
    });
    match look.await? {
        Ok(Look::Not(taken)) => Ok((folder, taken)),
        Ok(Look::Here(_)) => Err(Problem::bad_request("it is here", "nothing is to be done")),
        Err(trouble) => {
            let class = trouble.class();
            Err(Problem::bad_request(trouble.to_string(), "see docs/transfer.md").of_class(class))
        }
    }
}

impl Dispatch {
    /// The file, and who has it.
    async fn find(
        &self,
        site: &Arc<Site>,
        wish: &FetchWish,
    ) -> Result<(Found, Vec<Holder>), Problem> {
        let FetchWish { site: origin, name, .. } = wish;
        let found = holders::find(site, origin, name, wish.version).await?;
        let nobody = || {
            let what = format!("no catalog here knows {name} of {origin} with its digest");
            Problem::not_found(what).of_class(ErrorClass::FileGone)
        };
        let found = found.ok_or_else(nobody)?;
        let holders = self.holders(site, &found, &wish.from);
        Ok((found, holders))
    }

    /// One try of a fetch that was begun before the daemon was started.
    async fn go_on(
        self: &Arc<Self>,
        site: &Arc<Site>,
        fetch: &Arc<Fetch>,
        wish: &FetchWish,
    ) -> Result<Option<String>, String> {
        let (found, holders) = self.find(site, wish).await.map_err(|problem| problem.what)?;
        if found.is_here {
            return Ok(None);
        }
        some_can_be_asked(&holders)?;
        fetch.state.send_modify(|report| report.sources = ranked(found.size, &holders));
        let (folder, taken) = taken(site, &found).await.map_err(|problem| problem.what)?;
        let (site, dispatch, fetch) = (site.clone(), self.clone(), fetch.clone());
        let task = Task { site, dispatch, fetch, folder, taken, one: wish.one };
        task.run(holders).await.map(Some)
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
                barred: self.barred(remote.as_deref(), name),
            };
            Holder { remote, source, connections: plan.connections.value }
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
        let Some(found) = found.filter(|found| !found.is_here) else { return Ok(Vec::new()) };
        Ok(ranked(found.size, &self.holders(site, &found, &[])))
    }

    /// Fetches under way, the oldest first.
    pub(super) fn fetches_now(&self) -> Vec<FetchReport> {
        let reports = lock(&self.fetches).values().map(|fetch| fetch.report()).collect::<Vec<_>>();
        reports.into_iter().filter(|report| !report.done).collect()
    }

    /// The fetch of a file, while it is under way.
    pub(super) fn fetching(&self, site: &str, name: &str, version: i64) -> Option<FetchReport> {
        let is_it = |report: &FetchReport| {
            report.site == site && report.name == name && report.version == version
        };
        self.fetches_now().into_iter().find(is_it)
    }

    fn barred(&self, remote: Option<&Remote>, name: &str) -> Option<String> {
        let Some(remote) = remote else { return Some("it is no [[remote]] here".to_owned()) };
        if remote.section.address.is_none() {
            return Some("its [[remote]] has no address".to_owned());
        }
        let links = lock(&self.links);
        let link = links.get(name)?;
        match link.wanted {
            Wanted::Open => {}
            Wanted::Drained => return Some("an operator drained the link".to_owned()),
            Wanted::Banned => return Some("an operator banned the link".to_owned()),
        }
        link.probe_at()?;
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
        lock(&self.fetches).get(&id).is_some_and(|fetch| !fetch.state.borrow().name.is_empty())
    }

    /// A fetch was lost: it is shown, without its name.
    fn cannot_go_on(&self, Unreadable { id, what }: Unreadable) {
        tracing::error!("a fetch is lost: {what}");
        if let Some(id) = id {
            self.keep(FetchReport { id, changes: vec![what], ..FetchReport::default() });
        }
    }

    fn keep(&self, report: FetchReport) -> Arc<Fetch> {
        let id = report.id;
        let state = watch::channel(report).0;
        let fetch = Arc::new(Fetch { state, gather: Mutex::new(None) });
        let mut known = lock(&self.fetches);
        if known.len() >= KNOWN_MAX {
            let ended = known.iter().find(|(_, fetch)| fetch.state.borrow().done);
            let oldest = ended.map(|(id, _)| *id);
            oldest.and_then(|id| known.remove(&id));
        }
        known.insert(id, fetch.clone());
        fetch
    }
}

/// One fetch, as it goes.
struct Task {
    site: Arc<Site>,
    dispatch: Arc<Dispatch>,
    fetch: Arc<Fetch>,
    folder: PathBuf,
    taken: Taken,
    one: bool,
}

impl Task {
    /// Where it lies in the end.
    async fn run(&self, holders: Vec<Holder>) -> Result<String, String> {
        let _promise = self.dispatch.room.promise(&self.folder, self.taken.item.size);
        let part = self.folder.join(PARTS).join(format!("{}.part", self.taken.item.blake3));
        if !self.is_placed().await {
            self.bring(&part, holders).await?;
            self.place(part.clone()).await.map_err(|fault| fault.what)?;
        }
        Journal::of(&part).forget();
        self.record().await.map_err(|fault| fault.what)
    }

    /// A daemon that ended may have come so far.
    async fn is_placed(&self) -> bool {
        let there = self.folder.join(&self.taken.path);
        let size = self.taken.item.size;
        let same = |there: std::fs::Metadata| there.is_file() && there.len() == size;
        if !std::fs::symlink_metadata(&there).is_ok_and(same) {
            return false;
        }
        self.is_right(&there).await == Ok(true)
    }

    /// The whole and right file, as a part.
    async fn bring(&self, part: &FilePath, holders: Vec<Holder>) -> Result<(), String> {
        self.gather(part, holders.clone(), !self.one).await?;
        if self.is_right(part).await? {
            return Ok(());
        }
        self.tell("the whole is not what the catalog says: each source is tried alone");
        for holder in holders {
            Journal::of(part).forget();
            let name = holder.source.name.clone();
            let brought = self.gather(part, vec![holder], false).await;
            if brought.is_ok() && self.is_right(part).await? {
                return Ok(());
            }
            self.tell(&format!("{name} does not bring it right"));
        }
        Journal::of(part).forget();
        Err("no site brings what the catalog says".to_owned())
    }

    fn tell(&self, what: &str) {
        self.fetch.tell(what.to_owned());
    }

    async fn gather(
        &self,
        part: &FilePath,
        holders: Vec<Holder>,
        at_once: bool,
    ) -> Result<(), String> {
        let item = &self.taken.item;
        let (path, size) = (part.to_owned(), item.size);
        let (target, here) = blocking(move || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
            file.set_len(size)?;
            let journal = Journal::of(&path);
            let here = journal.read(&file, size);
            Ok((Target { part: file, journal }, here))
        })
        .await
        .map_err(|error| format!("{}: {error}", part.display()))?;
        if !here.is_empty() {
            self.tell(&format!("{} pieces of it are here already", here.len()));
        }
        let piece = Piece {
            site: item.site.clone(),
            name: item.name.clone(),
            version: item.version,
            blake3: item.blake3.clone(),
            start: 0,
            len: 0,
        };
        let usable = holders.iter().filter(|holder| holder.source.barred.is_none()).count();
        let at_once = at_once && usable > 1 && size >= AT_ONCE_MIN;
        let gather = Arc::new(Gather::new(piece, (size, &here), holders, (target, at_once)));
        *lock(&self.fetch.gather) = Some(gather.clone());
        let done = gather.run().await;
        let seen = gather.seen();
        for (name, brought, asked) in seen.brought.iter().filter(|(_, brought, _)| *brought > 0) {
            let rate = Rate::of(*brought, *asked);
            lock(&self.dispatch.paces).insert(name.clone(), (rate, Instant::now()));
        }
        lock(&self.fetch.gather).take();
        self.fetch.state.send_modify(|report| report.add(&seen));
        done
    }

    async fn is_right(&self, part: &FilePath) -> Result<bool, String> {
        let (part, digest) = (part.to_owned(), self.taken.digest);
        let found = blocking(move || {
            let file = File::open(part)?;
            file.sync_data()?;
            digest_of(file)
        });
        let (_, found) = found.await.map_err(|error| error.to_string())?;
        Ok(found == digest)
    }

    /// Gives it its place.
    async fn place(&self, part: PathBuf) -> Result<(), Fault> {
        let (folder, path) = (self.folder.clone(), self.taken.path.clone());
        let placed = blocking(move || place(&folder, &part, &path)).await;
        placed.map_err(|error| {
            let class = match error.kind() {
                io::ErrorKind::AlreadyExists => ErrorClass::VersionConflict,
                _ => ErrorClass::DestinationWriteFailed,
            };
            Fault::new(class, format!("{}: {error}", self.taken.path))
        })
    }

    /// Signs for it and records it.
    async fn record(&self) -> Result<String, Fault> {
        let signed = receipt(&self.site, &self.taken, "fetch").sign(&self.site.identity);
        let signed = signed.map_err(|e| Fault::new(ErrorClass::NameRefused, e.to_string()))?;
        let answers = super::record::record(&self.site, &self.folder, vec![signed]).await?;
        match answers.into_iter().next() {
            Some(Err(refused)) => Err(Fault::new(ErrorClass::Internal, refused.to_string())),
            _ => Ok(self.folder.join(&self.taken.path).to_string_lossy().into_owned()),
        }
    }
}

/// Puts a part into its place below the folder. No link is followed, nothing is replaced.
fn place(folder: &FilePath, part: &FilePath, path: &str) -> io::Result<()> {
    let folders = OFlags::RDONLY | OFlags::DIRECTORY;
    let parts = OwnedFd::from(File::open(part.parent().unwrap_or(folder))?);
    let mut at = OwnedFd::from(File::open(folder)?);
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for step in above.split('/').filter(|step| !step.is_empty()) {
        match rustix::fs::mkdirat(&at, step, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = open_in(&at, step.as_bytes(), folders, Mode::empty())?;
    }
    let from = part.file_name().unwrap_or_default();
    rustix::fs::renameat_with(&parts, from, &at, name, RenameFlags::NOREPLACE)?;
    rustix::fs::fsync(&at)?;
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
