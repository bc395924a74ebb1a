//! A file that several sites have, fetched from where it would be here first: `/v1/fetches`.
//!
//! 1. `holders` looks in this site's catalog and in its copies of others' who has the file.
//! 2. They are ranked by when the file would be here (`proto::transfer::rank`), and the ranking is kept to be shown.
//! 3. `gather` brings the bytes, from the best, or from all at once.
//! 4. The whole is compared with the digest of the catalog, placed, signed for and recorded, as what a batch brought. If it
//!    is not what it should be, each source is tried alone.
//!
//! Deliberately absent: resuming after a restart of the daemon, and telling the sources; they learn of the new replica as of
//! any other.

mod gather;
mod holders;

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
use gather::{AT_ONCE_MIN, Gather, Seen};
use holders::Found;
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
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// Its bytes.
    pub size: u64,
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
    key: (String, String, i64),
    state: watch::Sender<FetchReport>,
    gather: Mutex<Option<(Arc<Gather>, Vec<String>)>>,
}

impl Fetch {
    fn report(&self) -> FetchReport {
        let mut report = self.state.borrow().clone();
        if let Some((gather, names)) = &*lock(&self.gather) {
            fill(&mut report, &gather.seen(), names);
        }
        report
    }
}

fn fill(report: &mut FetchReport, seen: &Seen, names: &[String]) {
    report.at_once = seen.at_once;
    for (name, brought) in names.iter().zip(&seen.brought) {
        if let Some(source) = report.sources.iter_mut().find(|source| source.site == *name) {
            source.brought += brought;
        }
    }
    report.changes.extend(seen.told.iter().cloned());
}

/// Fetch a file from where it would be here first
#[utoipa::path(post, path = "/v1/fetches", request_body = FetchWish,
    responses((status = 200, body = FetchReport), (status = 404, body = Problem)))]
async fn fetch(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Given(wish): Given<FetchWish>,
) -> Result<Json<FetchReport>, Problem> {
    let found = holders::find(&site, &wish.site, &wish.name, wish.version).await?;
    let nobody = || {
        let what = format!("no catalog here knows {} of {} with its digest", wish.name, wish.site);
        Problem::not_found(what).of_class(ErrorClass::FileGone)
    };
    let found = found.ok_or_else(nobody)?;
    let remotes = dispatch.sources_of(&site, &found, &wish);
    let (remotes, sources): (Vec<_>, Vec<_>) = remotes.into_iter().unzip();
    let mut report = FetchReport {
        site: found.origin.clone(),
        name: found.name.clone(),
        version: found.version,
        size: found.size,
        sources: ranked(found.size, &sources),
        ..FetchReport::default()
    };
    if found.is_here || wish.ask {
        report.done = true;
        return Ok(Json(report));
    }
    let key = (found.origin.clone(), found.name.clone(), found.version);
    let running = {
        let known = lock(&dispatch.fetches);
        let running = |fetch: &&Arc<Fetch>| fetch.key == key && !fetch.state.borrow().done;
        known.values().find(running).cloned()
    };
    if let Some(running) = running {
        return Ok(Json(running.report()));
    }
    if !sources.iter().any(|source| source.barred.is_none()) {
        report.done = true;
        report.failure = Some("no site that has it can be asked".to_owned());
        return Ok(Json(report));
    }
    let (folder, taken) = taken(&site, &found).await?;
    report.id = site.clock.now().0;
    let fetch =
        Arc::new(Fetch { key, state: watch::channel(report.clone()).0, gather: Mutex::new(None) });
    dispatch.keep(report.id, &fetch);
    let (site, dispatch) = (site.clone(), dispatch.clone());
    tokio::spawn(async move {
        let usable = |(remote, source): (Option<Arc<Remote>>, Source)| Some((remote?, source));
        let sources = remotes.into_iter().zip(sources).filter_map(usable).collect();
        let task = Task { site, dispatch, fetch: fetch.clone(), folder, taken, one: wish.one };
        let ended = task.run(sources).await;
        fetch.state.send_modify(|report| {
            if let Some((gather, names)) = lock(&fetch.gather).take() {
                fill(report, &gather.seen(), &names);
            }
            report.done = true;
            match ended {
                Ok(path) => report.path = Some(path),
                Err(what) => report.failure = Some(what),
            }
        });
    });
    Ok(Json(report))
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

fn ranked(size: u64, sources: &[Source]) -> Vec<FetchSource> {
    let ranked = rank(size, sources).into_iter();
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
    /// Each holder as a source; with the reason when it cannot be asked.
    fn sources_of(
        &self,
        site: &Site,
        found: &Found,
        wish: &FetchWish,
    ) -> Vec<(Option<Arc<Remote>>, Source)> {
        let wanted = |name: &&String| wish.from.is_empty() || wish.from.contains(name);
        let source = |name: &String| {
            let remote = site.remote(name);
            let (known, plan) = self.planned(site, [name, &site.name], 0);
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
            (remote, source)
        };
        found.holders.iter().filter(wanted).map(source).collect()
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
        let sources = self.sources_of(site, &found, &FetchWish::default());
        let sources: Vec<Source> = sources.into_iter().map(|(_, source)| source).collect();
        Ok(ranked(found.size, &sources))
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

    fn keep(&self, id: i64, fetch: &Arc<Fetch>) {
        let mut known = lock(&self.fetches);
        if known.len() >= KNOWN_MAX {
            let ended = known.iter().find(|(_, fetch)| fetch.state.borrow().done);
            let oldest = ended.map(|(id, _)| *id);
            oldest.and_then(|id| known.remove(&id));
        }
        known.insert(id, fetch.clone());
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
    async fn run(&self, sources: Vec<(Arc<Remote>, Source)>) -> Result<String, String> {
        let _promise = self.dispatch.room.promise(&self.folder, self.taken.item.size);
        let part = self.folder.join(PARTS).join(format!("{}.part", self.taken.item.blake3));
        self.gather(&part, sources.clone(), !self.one).await?;
        if !self.is_right(&part).await? {
            self.tell("the whole is not what the catalog says: each source is tried alone");
            let mut right = false;
            for source in sources {
                let name = source.1.name.clone();
                let brought = self.gather(&part, vec![source], false).await;
                right = brought.is_ok() && self.is_right(&part).await?;
                if right {
                    break;
                }
                self.tell(&format!("{name} does not bring it right"));
            }
            if !right {
                return Err("no site brings what the catalog says".to_owned());
            }
        }
        self.record(part).await.map_err(|fault| fault.what)
    }

    fn tell(&self, what: &str) {
        tracing::warn!(file = %self.taken.item.name, what);
        self.fetch.state.send_modify(|report| report.changes.push(what.to_owned()));
    }

    async fn gather(
        &self,
        part: &FilePath,
        sources: Vec<(Arc<Remote>, Source)>,
        at_once: bool,
    ) -> Result<(), String> {
        let item = &self.taken.item;
        let (path, size) = (part.to_owned(), item.size);
        let file = blocking(move || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
            file.set_len(size).map(|()| file)
        });
        let file = file.await.map_err(|error| format!("{}: {error}", part.display()))?;
        let piece = Piece {
            site: item.site.clone(),
            name: item.name.clone(),
            version: item.version,
            blake3: item.blake3.clone(),
            start: 0,
            len: 0,
        };
        let (remotes, sources): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
        let names: Vec<String> = remotes.iter().map(|remote| remote.name().to_owned()).collect();
        let usable = sources.iter().filter(|source| source.barred.is_none()).count();
        let at_once = at_once && usable > 1 && size >= AT_ONCE_MIN;
        let gather = Arc::new(Gather::new(piece, size, remotes, sources, (file, at_once)));
        *lock(&self.fetch.gather) = Some((gather.clone(), names.clone()));
        let done = gather.run().await;
        let seen = gather.seen();
        let each = names.iter().zip(seen.brought.iter().zip(&seen.asked));
        for (name, (brought, asked)) in each.filter(|(_, (brought, _))| **brought > 0) {
            let rate = Rate::of(*brought, *asked);
            lock(&self.dispatch.paces).insert(name.clone(), (rate, Instant::now()));
        }
        lock(&self.fetch.gather).take();
        self.fetch.state.send_modify(|report| fill(report, &seen, &names));
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

    /// Gives it its place, signs for it and records it.
    async fn record(&self, part: PathBuf) -> Result<String, Fault> {
        let (folder, path) = (self.folder.clone(), self.taken.path.clone());
        let placed = blocking(move || place(&folder, &part, &path)).await;
        placed.map_err(|error| {
            let class = match error.kind() {
                io::ErrorKind::AlreadyExists => ErrorClass::VersionConflict,
                _ => ErrorClass::DestinationWriteFailed,
            };
            Fault::new(class, format!("{}: {error}", self.taken.path))
        })?;
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
