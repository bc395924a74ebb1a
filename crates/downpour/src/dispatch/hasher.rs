//! Digests of what operators submit: from `settled` to `queued`, a few hundred files in a commit.
//!
//! The session reads the files again, most often out of the page cache; the digest has to be known before, because both sides
//! agree on it.

use super::Dispatch;
use super::route::is_submitted;
use crate::site::{Fault, Site};
use downpour_catalog::{
    Answer, Change, Digest, ErrorClass, File, Move, Next, Query, Revision, State,
};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Files that share a commit.
const FILES_AT_ONCE: usize = 500;
/// Bytes of them, about: what comes later is not held up by what is large.
const BYTES_AT_ONCE: u64 = 1 << 30;
/// Between two looks when there is nothing to do.
const IDLE: Duration = Duration::from_millis(500);
/// After a failure of the catalog.
const PAUSE: Duration = Duration::from_secs(5);

/// Works until it is ended.
pub(super) async fn hash_submitted(dispatch: Arc<Dispatch>, site: Arc<Site>) {
    loop {
        match round(&site).await {
            Ok(0) => tokio::time::sleep(IDLE).await,
            Ok(_) => dispatch.wake.notify_one(),
            Err(fault) => {
                tracing::warn!(%fault, "digests wait");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Hashes some files; how many.
async fn round(site: &Arc<Site>) -> Result<usize, Fault> {
    let step = |file: &File, at: Revision, next: Next| {
        Change::Move(Move { file: file.id, at, fence: None, next })
    };
    // Those of a daemon that died between the two commits.
    let left = due(site, State::Hashed).await?;
    if !left.is_empty() {
        let queue = left.iter().map(|(file, _)| step(file, file.revision, Next::Queued));
        site.catalog.submit(site.clock.now(), queue.collect()).done().await?;
    }
    let files = due(site, State::Settled).await?;
    if files.is_empty() {
        return Ok(0);
    }
    let count = files.len();
    let hashed = tokio::task::spawn_blocking(move || {
        files.into_iter().map(|(file, path)| (digest(&path, file.size), file)).collect::<Vec<_>>()
    });
    let died = |e: tokio::task::JoinError| Fault::new(ErrorClass::Internal, e.to_string());
    let hashed = hashed.await.map_err(died)?;
    let first = hashed.iter().map(|(digest, file)| match digest {
        Ok(digest) => step(file, file.revision, Next::Hashed(vec![digest.clone()])),
        Err(class) => step(file, file.revision, Next::Quarantined(*class)),
    });
    let answers = site.catalog.submit(site.clock.now(), first.collect()).done().await?;
    let queue = |((_, file), answer): (&(_, File), Answer)| {
        let applied = answer.ok().filter(|applied| applied.state == Some(State::Hashed))?;
        Some(step(file, applied.revision, Next::Queued))
    };
    let second = hashed.iter().zip(answers).filter_map(queue).collect();
    site.catalog.submit(site.clock.now(), second).done().await?;
    Ok(count)
}

/// Submitted files that stand there, and where they lie.
async fn due(site: &Arc<Site>, state: State) -> Result<Vec<(File, PathBuf)>, Fault> {
    let own = site.name.clone();
    site.read(move |reader| {
        let names = super::load::Names::read(reader)?;
        let Some(own) = names.site(&own) else { return Ok(Vec::new()) };
        let is_ours = |rule| is_submitted(names.rule(rule));
        let stands = |c: &downpour_catalog::Count| c.state == state && is_ours(c.rule);
        let (mut due, mut bytes) = (Vec::new(), 0);
        if !reader.counts()?.iter().any(stands) {
            return Ok(due);
        }
        let query = Query { state: Some(state), site: Some(own), ..Query::default() };
        let mut from = None;
        while due.len() < FILES_AT_ONCE && bytes < BYTES_AT_ONCE {
            let page = reader.search(&query, from.as_ref(), FILES_AT_ONCE)?;
            for file in page.files.into_iter().filter(|file| is_ours(file.rule)) {
                let replicas = reader.replicas(file.id)?;
                let Some(mine) = replicas.into_iter().find(|r| r.site == own) else { continue };
                bytes += file.size;
                due.push((file, PathBuf::from(mine.path)));
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        Ok(due)
    })
    .await
}

/// BLAKE3 of a file that has this size.
fn digest(path: &Path, size: u64) -> Result<Digest, ErrorClass> {
    let class = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => ErrorClass::FileGone,
        _ => ErrorClass::FileUnreadable,
    };
    let mut file = std::fs::File::open(path).map_err(class)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 18];
    let mut read = 0;
    loop {
        match file.read(&mut buffer).map_err(class)? {
            0 => break,
            len => {
                read += len as u64;
                hasher.update(&buffer[..len]);
            }
        }
    }
    if read == size {
        Ok(Digest::blake3(*hasher.finalize().as_bytes()))
    } else {
        Err(ErrorClass::FileChanged)
    }
}

#[cfg(test)]
mod tests {
    use super::digest;
    use downpour_catalog::{Digest, ErrorClass};

    #[test]
    fn a_file_that_is_not_what_was_taken_in_has_no_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(digest(&path, 0), Err(ErrorClass::FileGone));
        std::fs::write(&path, b"content").unwrap();
        assert_eq!(digest(&path, 7), Ok(Digest::blake3(*blake3::hash(b"content").as_bytes())));
        assert_eq!(digest(&path, 8), Err(ErrorClass::FileChanged));
    }
}
