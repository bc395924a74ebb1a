//! `/v1/files`: what the catalog knows of files, found by the conditions of a search, and all that it has of one.
//!
//! 1. A page takes a bounded time, whatever is asked: it may be short, or empty, and not the last. Its `next` says where to go on.
//! 2. Of one file each list is bounded, too; `catalog export` has all of them.
//!
//! Names stand for numbers, as in an export. Why a file does not move is told by `dispatch`, which also has the deeds.

use super::{Allow, Asked, Named, Problem, Routes};
use crate::site::Site;
use axum::Json;
use axum::extract::State;
use downpour_catalog::{
    Attempt, Cursor, Error, File, FileId, Names, PAGE_MAX, Query, Reader, Receipt, Replica, Time,
    hex,
};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Files on a page, unless it is said.
const PAGE_DEFAULT: usize = 100;
/// Attempts, replicas and receipts of one file, each. A receipt may be long: all of them have room in an answer.
const RECORDS_MAX: usize = 256;

#[derive(OpenApi)]
#[openapi(paths(search, show))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).get("/v1/files", Allow::Viewer, search).get(
        "/v1/files/{file}",
        Allow::Viewer,
        show,
    )
}

/// Which files; every condition that is given must hold.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// What the name begins with
    prefix: Option<String>,
    /// A pattern that the name matches: * ? [a-z]; * passes over /
    glob: Option<String>,
    /// Where the file stands
    state: Option<String>,
    /// The site that it comes from
    site: Option<String>,
    /// Taken in at this time or later, microseconds since 1970
    since_us: Option<i64>,
    /// Taken in before this time, microseconds since 1970
    until_us: Option<i64>,
    /// One of its digests, as KIND:HEX; without a kind BLAKE3
    digest: Option<String>,
    /// The error class for which it waits or is set apart
    error: Option<String>,
    /// Where an earlier page ended: its `next`
    after: Option<String>,
    /// At most so many, up to 1000; 100 unless given
    limit: Option<usize>,
}

/// A file as the catalog knows it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileReport {
    /// Its number.
    pub id: i64,
    /// The site that it comes from.
    pub site: String,
    /// Its name there.
    pub name: String,
    /// 1 for the first content of this name, and so on.
    pub version: i64,
    /// Its bytes.
    pub size: u64,
    /// The rule that took it in.
    pub rule: String,
    /// Where it stands.
    pub state: String,
    /// Since when, microseconds since 1970.
    pub since_us: i64,
    /// Why it does not move; none when it moves or has ended.
    pub reason: Option<String>,
    /// The error class behind that.
    pub error: Option<String>,
    /// When it is looked at again by itself, microseconds since 1970.
    pub next_try_us: Option<i64>,
    /// Attempts begun.
    pub tries: u32,
    /// Its BLAKE3, hexadecimal; none before it was read.
    pub blake3: Option<String>,
}

/// A part of what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilePage {
    /// Files, by number or by name.
    pub files: Vec<FileReport>,
    /// Where to go on, as `after`; none at the end. A page may be empty and not the last.
    pub next: Option<String>,
}

/// A copy of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaReport {
    /// At which site, or machine.
    pub site: String,
    /// Its path there.
    pub path: String,
    /// What is known of it: present, corrupt, lost, removed.
    pub state: String,
}

/// An attempt to move a file, ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptReport {
    /// 1 for the file's first.
    pub number: u32,
    /// For which transfer; none when a rule alone wanted it.
    pub transfer: Option<i64>,
    /// By which daemon.
    pub writer: String,
    /// When it began, microseconds since 1970.
    pub started_us: i64,
    /// When it ended.
    pub ended_us: i64,
    /// Bytes moved.
    pub bytes: u64,
    /// How it ended: verified, failed, cancelled, lapsed.
    pub outcome: String,
    /// The error class of what went wrong.
    pub error: Option<String>,
    /// The session that it was part of, as receipts name it.
    pub session: Option<String>,
}

/// A receiver's signed word for a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptReport {
    /// The node key of the one who signed, hexadecimal.
    pub receiver: String,
    /// When it came, microseconds since 1970.
    pub at_us: i64,
    /// The statement with its signature, hexadecimal.
    pub signed: String,
}

/// All that the catalog has of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileRecord {
    /// The file.
    #[serde(flatten)]
    pub file: FileReport,
    /// Its digests, each as KIND:HEX.
    pub digests: Vec<String>,
    /// Its copies.
    pub replicas: Vec<ReplicaReport>,
    /// The last attempts that have ended, first one first.
    pub attempts: Vec<AttemptReport>,
    /// The receipts for it.
    pub receipts: Vec<ReceiptReport>,
    /// Whether a list is cut: of each there are 256 at most.
    pub is_cut: bool,
}

impl FileReport {
    /// With these names.
    pub fn of(names: &Names, file: &File) -> Self {
        Self {
            id: file.id.0,
            site: names.site(file.site),
            name: file.name.clone(),
            version: file.version,
            size: file.size,
            rule: names.rule(file.rule),
            state: file.state.name().to_owned(),
            since_us: file.since.0,
            reason: file.reason.map(|reason| reason.name().to_owned()),
            error: file.error.map(|error| error.name().to_owned()),
            next_try_us: file.next_try.map(|next| next.0),
            tries: file.tries,
            blake3: file.digest.as_ref().map(downpour_catalog::Digest::hex),
        }
    }
}

impl FilePage {
    /// With these names.
    pub fn of(names: &Names, page: &downpour_catalog::Page) -> Self {
        let files = page.files.iter().map(|file| FileReport::of(names, file));
        Self { files: files.collect(), next: page.next.as_ref().map(ToString::to_string) }
    }
}

impl FileRecord {
    fn read(reader: &mut Reader, id: FileId) -> Result<Option<Self>, Error> {
        let Some(file) = reader.file(id)? else { return Ok(None) };
        let names = Names::of(reader)?;
        let mut attempts = reader.last_attempts(id, RECORDS_MAX + 1)?;
        let (mut replicas, mut receipts) = (reader.replicas(id)?, reader.receipts(id)?);
        let lens = [attempts.len(), replicas.len(), receipts.len()];
        attempts.drain(..attempts.len().saturating_sub(RECORDS_MAX));
        replicas.truncate(RECORDS_MAX);
        receipts.truncate(RECORDS_MAX);
        Ok(Some(Self {
            file: FileReport::of(&names, &file),
            digests: reader.digests(id)?.iter().map(|digest| format!("{digest:?}")).collect(),
            replicas: replicas.into_iter().map(|of| ReplicaReport::of(&names, of)).collect(),
            attempts: attempts.into_iter().map(|of| AttemptReport::of(&names, of)).collect(),
            receipts: receipts.iter().map(ReceiptReport::of).collect(),
            is_cut: lens.into_iter().any(|len| len > RECORDS_MAX),
        }))
    }
}

impl ReplicaReport {
    fn of(names: &Names, replica: Replica) -> Self {
        let Replica { site, path, state, .. } = replica;
        Self { site: names.site(site), path, state: state.name().to_owned() }
    }
}

impl AttemptReport {
    fn of(names: &Names, attempt: Attempt) -> Self {
        Self {
            number: attempt.number,
            transfer: attempt.transfer.map(|transfer| transfer.0),
            writer: names.log(attempt.writer),
            started_us: attempt.started.0,
            ended_us: attempt.ended.0,
            bytes: attempt.bytes,
            outcome: attempt.outcome.name().to_owned(),
            error: attempt.error.map(|error| error.name().to_owned()),
            session: attempt.session,
        }
    }
}

impl ReceiptReport {
    fn of(receipt: &Receipt) -> Self {
        Self { receiver: hex(&receipt.receiver), at_us: receipt.at.0, signed: hex(&receipt.signed) }
    }
}

/// What a condition says, if it is given.
fn said<T: FromStr<Err: Display>>(text: Option<&str>) -> Result<Option<T>, Problem> {
    let bad = |error: T::Err| {
        Problem::bad_request(error.to_string(), "see /v1/openapi.json for what is meant")
    };
    text.map(|text| text.parse().map_err(bad)).transpose()
}

/// Files that the catalog knows, by the conditions of a search
#[utoipa::path(get, path = "/v1/files", params(Which),
    responses((status = 200, body = FilePage), (status = 400, body = Problem)))]
async fn search(
    State(site): State<Arc<Site>>,
    Asked(which): Asked<Which>,
) -> Result<Json<FilePage>, Problem> {
    let query = Query {
        glob: said(which.glob.as_deref())?,
        state: said(which.state.as_deref())?,
        digest: said(which.digest.as_deref())?,
        error: said(which.error.as_deref())?,
        since: which.since_us.map(Time),
        until: which.until_us.map(Time),
        prefix: which.prefix,
        site: None,
    };
    let after: Option<Cursor> = said(which.after.as_deref())?;
    if which.limit == Some(0) {
        let todo = "ask for 1 to 1000, or leave it out for 100";
        return Err(Problem::bad_request("`limit=0` asks for no file", todo));
    }
    let (limit, of) = (which.limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX), which.site);
    let found = site.read(move |reader| {
        let mut query = query;
        if let Some(of) = of {
            query.site = reader.site_called(&of)?;
            if query.site.is_none() {
                return Ok(Err(of));
            }
        }
        let page = reader.search(&query, after.as_ref(), limit)?;
        Ok(Ok(FilePage::of(&Names::of(reader)?, &page)))
    });
    found.await?.map(Json).map_err(|of| {
        let todo = "name this site, or one that files came from";
        Problem::bad_request(format!("the catalog knows no site `{of}`"), todo)
    })
}

/// All that the catalog has of one file: digests, copies, attempts, receipts
#[utoipa::path(get, path = "/v1/files/{file}", params(("file" = i64, Path)),
    responses((status = 200, body = FileRecord), (status = 400, body = Problem),
        (status = 404, body = Problem)))]
async fn show(
    State(site): State<Arc<Site>>,
    Named(file): Named<i64>,
) -> Result<Json<FileRecord>, Problem> {
    let found = site.read(move |reader| FileRecord::read(reader, FileId(file))).await?;
    found.map(Json).ok_or_else(|| Problem::not_found(format!("there is no file {file}")))
}

#[cfg(test)]
mod tests {
    use super::{AttemptReport, FilePage, FileRecord};
    use crate::site::{Daemon, Role};
    use axum::body::Body;
    use axum::http::Request;
    use downpour_catalog::{
        Catalog, Change, Digest, DigestKind, Format, NewFile, OtherContent, Query, Reader, Replica,
        ReplicaState, Same, Sheet, Time, export,
    };
    use serde::de::DeserializeOwned;
    use serde_json::json;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;
    use tower::ServiceExt as _;

    /// A daemon whose catalog has the files `run/0` to `run/4`, and the token of one who may look.
    async fn daemon(folder: &Path) -> (Daemon, String) {
        let daemon = Daemon::example(folder, "a", "").await;
        let now = daemon.site.clock.now();
        let catalog = daemon.site.catalog.clone();
        tokio::task::spawn_blocking(move || (0..5).for_each(|n| take_in(&catalog, now, n)))
            .await
            .unwrap();
        let token = daemon.site.tokens.add("eye", Role::Viewer, None, now).unwrap().token;
        (daemon, token)
    }

    fn take_in(catalog: &Catalog, now: Time, n: u8) {
        let (site, rule) = (catalog.site("a").unwrap(), catalog.rule("all").unwrap());
        let new = NewFile {
            site,
            name: format!("run/{n}"),
            size: 1000,
            stamp: 1,
            rule,
            rank: 100,
            transfer: None,
            other_content: OtherContent::Refuse,
            same: Same::Any,
        };
        let answers = catalog.apply(now, &[Change::TakeIn(new)]).unwrap();
        let file = answers[0].as_ref().unwrap().file;
        let md5 = Digest::new(DigestKind::Md5, &[n; 16]).unwrap();
        let (path, state) = (format!("/data/{n}"), ReplicaState::Present);
        let replica = Change::Replica(Replica { file, site, path, state });
        let answers = catalog.apply(now, &[Change::Digest(file, md5), replica]).unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    #[tokio::test]
    async fn files_and_attempts_have_what_an_export_has_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = daemon(folder.path()).await;
        let columns = async |sheet| {
            let export = move |reader: &mut Reader| {
                let mut out = Vec::new();
                export(reader, sheet, &Query::default(), Format::Csv, &mut out).unwrap();
                Ok(String::from_utf8(out).unwrap())
            };
            let text = daemon.0.site.read(export).await.unwrap();
            let heads = text.lines().next().unwrap().split(',');
            heads.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let keys = |of: serde_json::Value| {
            of.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>()
        };
        let (_, page): (u16, FilePage) = ask(&daemon, "/v1/files?limit=1").await;
        assert_eq!(columns(Sheet::Files).await, keys(json!(page.files[0])));
        let mut attempt = keys(json!(AttemptReport {
            number: 1,
            transfer: None,
            writer: String::new(),
            started_us: 0,
            ended_us: 0,
            bytes: 0,
            outcome: String::new(),
            error: None,
            session: None,
        }));
        // All are of one file there.
        attempt.insert("file".to_owned());
        assert_eq!(columns(Sheet::Attempts).await, attempt);
        daemon.0.end(Duration::ZERO).await;
    }

    async fn ask<T: DeserializeOwned>(of: &(Daemon, String), path: &str) -> (u16, T) {
        let (site, bearer) = (&of.0.site, format!("Bearer {}", of.1));
        let request = Request::get(path).header("authorization", bearer);
        let request = request.body(Body::empty()).unwrap();
        let answer = super::routes().into_router(site.clone()).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 100_000).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn files_are_found_page_by_page_and_each_told_whole() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = daemon(folder.path()).await;
        let (mut names, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/files?prefix=run%2F&site=a&limit=2{after}");
            let (status, page): (u16, FilePage) = ask(&daemon, &path).await;
            assert!(status == 200 && page.files.len() <= 2);
            names.extend(page.files.into_iter().map(|file| file.name));
            let Some(next) = page.next else { break };
            after = format!("&after={}", crate::units::escape(&next));
        }
        assert_eq!(names, ["run/0", "run/1", "run/2", "run/3", "run/4"]);
        let digest = format!("/v1/files?digest=md5:{}", "03".repeat(16));
        let (_, page): (u16, FilePage) = ask(&daemon, &digest).await;
        let [found] = &page.files[..] else { panic!("{page:?}") };
        let (_, record): (u16, FileRecord) = ask(&daemon, &format!("/v1/files/{}", found.id)).await;
        assert_eq!((record.file.name.as_str(), &record.file), ("run/3", found));
        assert_eq!(record.digests, [format!("md5:{}", "03".repeat(16))]);
        assert_eq!((record.replicas[0].site.as_str(), &*record.replicas[0].path), ("a", "/data/3"));
        for (path, wanted) in [
            ("/v1/files/1", 404),
            ("/v1/files?state=lost", 400),
            ("/v1/files?site=nowhere", 400),
            ("/v1/files?after=17", 400),
            ("/v1/files?limit=0", 400),
            ("/v1/files?colour=red", 400),
        ] {
            let (status, problem): (u16, crate::api::Problem) = ask(&daemon, path).await;
            assert_eq!(status, wanted, "{path}: {problem:?}");
        }
        daemon.0.end(Duration::ZERO).await;
    }
}
