//! Pieces of files that this site holds, for other sites: `/v1/site/pieces`.
//!
//! Who may: a site whose `[[remote]]` says `pull = true`. What: a file of the catalog with a replica here, by origin, name,
//! version and digest, in whatever folder, the state folder aside: as by a batch, what was taken in may go also when its folder is
//! not open any more. Whether the bytes are the right ones is for the asker to find out: it knows the digest.

use super::load::place_here;
use super::sites::asker;
use super::turns::read_file;
use super::{Dispatch, lock};
use crate::api::{Allow, Given, Problem, Routes, Who};
use crate::object::open_file;
use crate::site::{Remote, Site};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use downpour_catalog::ErrorClass;
use downpour_proto::{BlockKind, Rate};
use downpour_transport::blocked;
use downpour_transport::control::{PullBudget, Visitor};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use tokio::sync::Semaphore;
use utoipa::{OpenApi, ToSchema};

/// Bytes of one piece at most.
pub(super) const PIECE_LEN_MAX: u64 = 4 << 20;

/// Bytes that are read at a time of a file that somebody downloads.
const READ_LEN: usize = 1 << 18;

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
    let (config, wanted) = (site.config(), piece.clone());
    let configured = config.clone();
    let found = site.read(move |reader| {
        let Some(origin) = reader.site_called(&wanted.site)? else { return Ok(None) };
        let file = reader.file_called((origin, &wanted.name, wanted.version))?;
        let same = |digest: &downpour_catalog::Digest| digest.hex() == wanted.blake3;
        let file = file.filter(|file| file.digest.as_ref().is_some_and(same));
        let Some(file) = file else { return Ok(None) };
        Ok(place_here(reader, file.id, &configured)?.map(|path| (path, file.size)))
    });
    let (path, size) = found.await?.ok_or_else(gone)?;
    if piece.start.checked_add(piece.len).is_none_or(|end| end > size) {
        return Err(Problem::bad_request("the file ends before", "ask for bytes within it"));
    }
    let turns = dispatch.turns.reads(&config, &path);
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

impl Dispatch {
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
    use crate::site::RemoteSection;
    use downpour_proto::Rate;

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
