//! Pieces of files that this site holds, for other sites: `/v1/site/pieces`.
//!
//! Who may: a site whose `[[remote]]` says `pull = true`. What: a file of the catalog with a replica here, by origin, name,
//! version and digest. Whether the bytes are the right ones is for the asker to find out: it knows the digest.

use super::load::{folder_of, open_folders};
use super::offer::Trouble;
use super::sites::asker;
use super::{Dispatch, Turns, lock};
use crate::api::{Allow, Given, Problem, Routes, Who};
use crate::object::open_file;
use crate::session::SendTurns;
use crate::site::{Config, Fault, Remote, Site, blocking};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use downpour_catalog::{ErrorClass, ReplicaState};
use downpour_proto::{BlockKind, Rate};
use downpour_transport::blocked;
use downpour_transport::control::{PullBudget, Visitor};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use utoipa::{OpenApi, ToSchema};

/// Bytes of one piece at most.
pub(super) const PIECE_LEN_MAX: u64 = 4 << 20;

/// Bytes that are read at a time of a file that somebody downloads.
const READ_LEN: usize = 1 << 18;

/// Files of a folder that are opened, or read, for others at once, a thread each.
const READS_MAX: usize = 8;

/// Offers to a folder, and submissions from one, that are looked at at once, a thread each at most.
const LOOKS_MAX: usize = 4;

/// Sessions that read in a folder at once, also those that hang there after their batch was given up. Each has threads of its own, and
/// four of tokio's at most.
const SENDS_MAX: usize = 64;

/// How long a batch waits for its turns, and keeps its place from others meanwhile.
const SEND_WAIT: Duration = Duration::from_secs(60);

/// Folders that have turns of their own; the others share some. With reads and looks these are three quarters of tokio's 512 threads for
/// what may block.
const FOLDERS_MAX: usize = 32;

/// Some bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Piece {
    /// The site that it comes from first.
    pub(super) site: String,
    /// Its name there.
    pub(super) name: String,
    /// Its version there.
    pub(super) version: i64,
    /// Its BLAKE3, hexadecimal.
    pub(super) blake3: String,
    /// The first byte.
    pub(super) start: u64,
    /// How many; 4 MiB at most.
    pub(super) len: u64,
}

#[derive(OpenApi)]
#[openapi(paths(piece))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).post("/v1/site/pieces", Allow::Site, piece)
}

/// Get some bytes of a file
#[utoipa::path(post, path = "/v1/site/pieces", request_body = Piece,
    responses((status = 200, content_type = "application/octet-stream"),
              (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn piece(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Extension(who): Extension<Who>,
    Extension(visitor): Extension<Visitor>,
    asked: HeaderMap,
    Given(piece): Given<Piece>,
) -> Result<Response, Problem> {
    let remote = asker(&site, &who)?;
    if !remote.section.pull {
        let what = format!("{} may not fetch from this site", remote.name());
        let todo = format!("that is `pull = true` in its [[remote]] {}", remote.name());
        let refused = Problem::new(StatusCode::FORBIDDEN, "forbidden", what, todo);
        return Err(refused.of_class(ErrorClass::SourceRefused));
    }
    if piece.len == 0 || piece.len > PIECE_LEN_MAX {
        let what = format!("a piece of {} bytes", piece.len);
        return Err(Problem::bad_request(what, format!("ask for 1 to {PIECE_LEN_MAX}")));
    }
    let gone = || {
        let what =
            format!("{} version {} of {} is not here", piece.name, piece.version, piece.site);
        Problem::not_found(what).of_class(ErrorClass::FileGone)
    };
    let (own, config, wanted) = (site.name.clone(), site.config(), piece.clone());
    let found = site.read(move |reader| {
        let sites = reader.sites()?;
        let number = |name: &str| sites.iter().find(|(_, n)| n == name).map(|(id, _)| *id);
        let (Some(origin), Some(own)) = (number(&wanted.site), number(&own)) else {
            return Ok(None);
        };
        let versions = reader.versions(origin, &wanted.name)?.into_iter();
        let same = |digest: &downpour_catalog::Digest| digest.hex() == wanted.blake3;
        let mut file = versions.filter(|file| {
            file.version == wanted.version && file.digest.as_ref().is_some_and(same)
        });
        let Some(file) = file.next() else { return Ok(None) };
        let replicas = reader.replicas(file.id)?.into_iter();
        let mut mine = replicas.filter(|r| r.site == own && r.state == ReplicaState::Present);
        Ok(mine.next().map(|replica| (config.path(replica.path.as_ref()), file.size)))
    });
    let (path, size) = found.await?.ok_or_else(gone)?;
    if piece.start.checked_add(piece.len).is_none_or(|end| end > size) {
        return Err(Problem::bad_request("the file ends before", "ask for bytes within it"));
    }
    let turns = dispatch.turns(&site.config(), &path);
    let config = site.config();
    let open = move || if config.is_own(&path) { Ok(None) } else { open_file(&path) };
    let file = read_file(&turns, open).await?.ok().flatten().ok_or_else(gone)?;
    let from = Holding { file, turns, dispatch, remote, visitor: visitor.clone() };
    let mut answer = Response::new(Body::from_stream(bytes(from, piece.start, piece.len)));
    let head = answer.headers_mut();
    visitor.carry_bulk(&asked, head);
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(header::CONTENT_LENGTH, HeaderValue::from(piece.len));
    Ok(answer)
}

/// A file that is asked for, by whom.
struct Holding {
    file: File,
    turns: Arc<Semaphore>,
    dispatch: Arc<Dispatch>,
    remote: Arc<Remote>,
    visitor: Visitor,
}

/// Opens or reads a file for others, where that may block, once it is its turn. The turn ends with the work, though who asked
/// may wait no longer: a disk that does not answer holds so few threads, however often it is asked.
pub(super) async fn read_file<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let turn = turns.clone().acquire_owned().await.expect("it is never closed");
    blocking(move || {
        let _turn = turn;
        Ok(read())
    })
    .await
}

impl Dispatch {
    /// The turns to read what lies in the same configured folder.
    pub(super) fn turns(&self, config: &Config, path: &Path) -> Arc<Semaphore> {
        turns_in(&self.reads, READS_MAX, config, path)
    }

    /// The turns to look at what is offered to a folder, or submitted from it: who reads what lies there does not wait for them.
    pub(super) fn looks(&self, config: &Config, folder: &Path) -> Arc<Semaphore> {
        turns_in(&self.looks, LOOKS_MAX, config, folder)
    }

    /// The turns to send what lies at these paths, one for each configured folder: who reads it for others does not wait for them.
    pub(super) fn sends<'a>(
        &self,
        config: &Config,
        paths: impl Iterator<Item = &'a Path>,
    ) -> Vec<Arc<Semaphore>> {
        let mut all: Vec<Arc<Semaphore>> = Vec::new();
        for turns in paths.map(|path| turns_in(&self.sends, SENDS_MAX, config, path)) {
            if !all.iter().any(|known| Arc::ptr_eq(known, &turns)) {
                all.push(turns);
            }
        }
        all
    }

    /// What a site may fetch from here now.
    fn budget(&self, remote: &Remote) -> Arc<PullBudget> {
        let batches = lock(&self.links).get(remote.name()).map_or(0, |link| link.active);
        let rate = remote.section.rate_of_fetches(batches).unwrap_or(Rate::MAX);
        let mut budgets = lock(&self.budgets);
        let budget = budgets.entry(remote.name().to_owned());
        let budget = budget.or_insert_with(|| PullBudget::new(rate)).clone();
        if budget.rate() != rate {
            budget.set_rate(rate);
        }
        budget
    }
}

/// A turn of each of these, to be kept until nothing is read any more. Where they do not come in time others have the place.
pub(super) async fn had(turns: Vec<Arc<Semaphore>>) -> Result<SendTurns, Trouble> {
    let all = try_join_all(turns.into_iter().map(Semaphore::acquire_owned));
    let Ok(all) = tokio::time::timeout(SEND_WAIT, all).await else {
        let what = format!(
            "{SENDS_MAX} sessions read below its folder: see to the disk there if it hangs, or lower `active` of [transfer]"
        );
        return Err(Trouble::new(ErrorClass::OutOfResources, what));
    };
    Ok(Arc::new(all.expect("none is ever closed")))
}

/// The turns in the configured folder where this lies. A disk that does not answer holds up its own folder.
fn turns_in(turns: &Turns, most: usize, config: &Config, path: &Path) -> Arc<Semaphore> {
    let mut folder = folder_of(&open_folders(config), path);
    let mut turns = lock(turns);
    if turns.len() >= FOLDERS_MAX && !turns.contains_key(&folder) {
        folder = PathBuf::new();
    }
    turns.entry(folder).or_insert_with(|| Arc::new(Semaphore::new(most))).clone()
}

/// Read with the leave of who shares the link.
fn bytes(
    from: Holding,
    start: u64,
    len: u64,
) -> impl futures_util::Stream<Item = io::Result<Vec<u8>>> {
    futures_util::stream::unfold(Some((from, start, len)), |left| async {
        let (from, at, left) = left.filter(|(_, _, left)| *left > 0)?;
        let budget = from.dispatch.budget(&from.remote);
        let len = budget.piece_len().min(usize::try_from(left).unwrap_or(usize::MAX));
        budget.acquire(BlockKind::Data, len).await;
        let turns = from.turns.clone();
        let read = read_file(&turns, move || {
            let mut some = vec![0; len];
            let (read, slept) = blocked(|| from.file.read_exact_at(&mut some, at));
            from.visitor.waited_for_disk(slept);
            (from, read.map(|()| some))
        });
        match read.await {
            Ok((from, Ok(some))) => {
                let len = some.len() as u64;
                Some((Ok(some), Some((from, at + len, left - len))))
            }
            Ok((_, Err(error))) => Some((Err(error), None)),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

/// A file's bytes, read where that may block.
pub(super) fn whole(
    turns: Arc<Semaphore>,
    file: File,
) -> impl futures_util::Stream<Item = io::Result<Vec<u8>>> {
    futures_util::stream::unfold(Some((turns, file)), |left| async {
        let (turns, mut file) = left?;
        let read = read_file(&turns, move || {
            let mut piece = vec![0; READ_LEN];
            let read = file.read(&mut piece).map(|len| piece.truncate(len));
            (file, read.map(|()| piece))
        });
        match read.await {
            Ok((_, Ok(piece))) if piece.is_empty() => None,
            Ok((file, Ok(piece))) => Some((Ok(piece), Some((turns, file)))),
            Ok((_, Err(error))) => Some((Err(error), None)),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{FOLDERS_MAX, READS_MAX, SEND_WAIT, SENDS_MAX, had, read_file};
    use crate::dispatch::{Dispatch, lock, now};
    use crate::site::{Clock, Config, Daemon, RemoteSection};
    use downpour_catalog::ErrorClass;
    use downpour_proto::Rate;
    use std::path::Path;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;
    use tokio::task::JoinSet;

    /// What a site that gives files of these folders out has for them, and its configuration.
    async fn giving_out(folders: &str) -> (Dispatch, Arc<Config>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let text = format!(
            "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n[transfer]\nfolders = [{folders}]"
        );
        std::fs::write(&file, text).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        daemon.end(Duration::ZERO).await;
        (Dispatch::new(&daemon.site, &Arc::default()), daemon.site.config())
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_has_few_threads_and_holds_up_no_other_folder() {
        let (dispatch, config) = giving_out("'/hung', '/well'").await;
        let [hung, well] = ["/hung/a", "/well/a"].map(|a| dispatch.turns(&config, a.as_ref()));
        assert!(!Arc::ptr_eq(&hung, &well), "or it would be waited for without end");
        let disk = Arc::new(Barrier::new(READS_MAX + 1));
        let mut reads = JoinSet::new();
        for _ in 0..2 * READS_MAX {
            let (hung, disk) = (hung.clone(), disk.clone());
            reads.spawn(async move { read_file(&hung, move || disk.wait()).await });
        }
        while hung.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        reads.shutdown().await;
        assert_eq!(hung.available_permits(), 0, "each is at the disk still");
        read_file(&well, || ()).await.unwrap();
        tokio::task::spawn_blocking(move || disk.wait()).await.unwrap();
        read_file(&hung, || ()).await.unwrap();
    }

    #[tokio::test]
    async fn each_configured_folder_has_turns_of_its_own_and_what_lies_elsewhere_shares_some() {
        let named: Vec<String> = (0..FOLDERS_MAX).map(|n| format!("'/data/{n}'")).collect();
        let (dispatch, config) = giving_out(&format!("'/data', {}", named.join(", "))).await;
        let turns = |path: &str| dispatch.turns(&config, path.as_ref());
        let is_one = |a: &str, b: &str| Arc::ptr_eq(&turns(a), &turns(b));
        assert!(is_one("/data/0/a", "/data/0/b/c") && is_one("/x", "/y"));
        assert!(!is_one("/data/0/a", "/data/1/a") && !is_one("/data/0/a", "/data/a"));
        assert!(!is_one("/data/1/a", "/data/12/a") && !is_one("/data/a", "/x"));
        for n in 0..FOLDERS_MAX {
            turns(&format!("/data/{n}/a"));
        }
        assert_eq!(lock(&dispatch.reads).len(), FOLDERS_MAX);
        assert!(is_one(&format!("/data/{}/a", FOLDERS_MAX - 1), "/x"), "there is room for no more");
    }

    #[tokio::test]
    async fn a_batch_has_a_turn_in_each_folder_that_its_files_lie_in() {
        let (dispatch, config) = giving_out("'/hung', '/well'").await;
        let sends = |paths: &[&str]| dispatch.sends(&config, paths.iter().map(Path::new));
        let both = sends(&["/hung/a", "/hung/b", "/well/a"]);
        let hung = sends(&["/hung/c"]);
        assert!(both.len() == 2 && Arc::ptr_eq(&both[0], &hung[0]) && hung.len() == 1);
        assert_eq!(hung[0].available_permits(), SENDS_MAX);
        assert!(!Arc::ptr_eq(&hung[0], &dispatch.turns(&config, "/hung/c".as_ref())));
        let all = hung[0].clone().acquire_many_owned(SENDS_MAX as u32).await.unwrap();
        tokio::time::pause();
        let begun = now();
        let trouble = had(both.clone()).await.unwrap_err();
        assert_eq!(trouble.class(), ErrorClass::OutOfResources);
        assert_eq!((now() - begun).as_secs(), SEND_WAIT.as_secs());
        assert_eq!(both[1].available_permits(), SENDS_MAX, "it keeps none from others");
        drop(all);
        assert_eq!(had(both).await.unwrap().len(), 2);
    }

    #[test]
    fn batches_and_what_is_fetched_share_a_rate() {
        let section = |pull: bool| -> RemoteSection {
            let key = "A".repeat(43);
            let text =
                format!("name = 'b'\nkey = '{key}'\nactive = 2\nrate = '12mbit'\npull = {pull}");
            toml::from_str(&text).unwrap()
        };
        let mbit = |n| Some(Rate::from_mbps(n));
        assert_eq!(section(false).rate_each(), mbit(6));
        let section = section(true);
        assert_eq!(section.rate_each(), mbit(4));
        // Never less than one of the batches.
        assert_eq!([0, 1, 2, 9].map(|n| section.rate_of_fetches(n)), [12, 8, 4, 4].map(mbit));
    }
}
