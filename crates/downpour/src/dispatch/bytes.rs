//! A file's bytes, for people: read from its place here, with the digests that they want as a header.

use super::Dispatch;
use super::folders::OpenFolders;
use super::load::place_here;
use super::pieces::whole;
use super::turns::read_file;
use crate::api::{Allow, Named, Problem, Routes};
use crate::object::open_file;
use crate::site::{Config, Site};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use downpour_catalog::{DigestKind, FileId};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(paths(content))]
struct Description;

pub(super) fn routes() -> Routes {
    let described = Routes::described(Description::openapi());
    described.get("/v1/files/{file}/content", Allow::Viewer, content)
}

/// A file's bytes; with `Want-Digest` its digest as a header, as the catalog has it
#[utoipa::path(get, path = "/v1/files/{file}/content",
    params(("file" = i64, Path), ("Want-Digest" = Option<String>, Header,
        description = "The kinds that are wanted: blake3, md5, sha-256, adler32, after commas")),
    responses((status = 200, content_type = "application/octet-stream",
            headers(("Digest" = String, description = "Those of them that the catalog has"))),
        (status = 400, body = Problem), (status = 404, body = Problem)))]
async fn content(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(id): Named<i64>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let config = site.config();
    let configured = config.clone();
    let found = site.read(move |reader| {
        let Some(file) = reader.file(FileId(id))? else { return Ok(None) };
        let path = place_here(reader, file.id, &configured)?;
        Ok(path.map(|path| (path, file.size)).zip(Some(reader.digests(file.id)?)))
    });
    let gone = || Problem::not_found(format!("file {id} is not here"));
    let ((path, size), digests) = found.await?.ok_or_else(gone)?;
    let turns = dispatch.turns.reads(&config, &path);
    let file = read_file(&turns, move || open_ours(&config, &path)).await?.ok_or_else(gone)?;
    let mut answer = Response::new(Body::from_stream(whole(turns, file)));
    let answered = answer.headers_mut();
    answered.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    answered.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
    answered.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    if let Some(wanted) = headers.get("want-digest").and_then(|value| value.to_str().ok())
        && let Some(digest) = digest_header(wanted, &digests)
        && let Ok(value) = HeaderValue::from_str(&digest)
    {
        answered.insert("digest", value);
    }
    Ok(answer)
}

/// Opens a file, if its path is one from which this site gives files out, which its state folder is not. The folders that are looked
/// at may not answer.
fn open_ours(config: &Config, path: &Path) -> Option<File> {
    let place = path.canonicalize().ok()?;
    OpenFolders::with_inboxes(config).above((path, &place), Path::canonicalize)?;
    if config.is_own(path) { None } else { open_file(path).ok().flatten() }
}

/// The digests that are wanted and recorded, as RFC 3230 writes them.
fn digest_header(wanted: &str, digests: &[downpour_catalog::Digest]) -> Option<String> {
    let mut written = Vec::new();
    for word in wanted.split(',') {
        let name = word.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let kind = match name.as_str() {
            "md5" => DigestKind::Md5,
            "sha-256" | "sha256" => DigestKind::Sha256,
            "adler32" => DigestKind::Adler32,
            "blake3" => DigestKind::Blake3,
            _ => continue,
        };
        if let Some(digest) = digests.iter().find(|digest| digest.kind() == kind) {
            let value = match kind {
                DigestKind::Adler32 | DigestKind::Blake3 => digest.hex(),
                DigestKind::Md5 | DigestKind::Sha256 => base64(digest.value()),
            };
            written.push(format!("{name}={value}"));
        }
    }
    (!written.is_empty()).then(|| written.join(","))
}

/// As RFC 3230 wants it: with padding, and not the alphabet of URLs.
fn base64(bytes: &[u8]) -> String {
    let url = downpour_transport::control::encode_base64url(bytes);
    let mut text = url.replace('-', "+").replace('_', "/");
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{digest_header, open_ours};
    use downpour_catalog::{Digest, DigestKind};
    use std::fs;

    #[test]
    fn what_the_daemon_keeps_is_given_to_nobody_whatever_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("state/inbox")).unwrap();
        for file in ["a", "state/node.key", "state/inbox/b"] {
            fs::write(root.join(file), "content").unwrap();
        }
        std::os::unix::fs::symlink("state", root.join("link")).unwrap();
        let text = format!(
            "[site]\nname = 'a'\nstate = '{0}/link'\n[transfer]\nfolders = ['{0}']",
            root.display()
        );
        let config = toml::from_str(&text).unwrap();
        for (name, is_given) in [
            ("a", true),
            ("state/inbox/b", true),
            ("state/node.key", false),
            ("link/node.key", false),
        ] {
            assert_eq!(open_ours(&config, &root.join(name)).is_some(), is_given, "{name}");
        }
    }

    #[test]
    fn digests_are_written_as_the_wanted_names_have_them() {
        let digests = [
            Digest::blake3([0xab; 32]),
            Digest::new(DigestKind::Md5, &[0xff; 16]).unwrap(),
            Digest::new(DigestKind::Adler32, &[1, 2, 3, 4]).unwrap(),
        ];
        let header = |wanted: &str| digest_header(wanted, &digests);
        assert_eq!(
            header("MD5;q=0.5, adler32").unwrap(),
            "md5=/////////////////////w==,adler32=01020304"
        );
        assert_eq!(header("blake3").unwrap(), format!("blake3={}", "ab".repeat(32)));
        assert_eq!(header("sha-256"), None);
    }
}
