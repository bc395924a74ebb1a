//! Digests of what operators submit: from `settled` to `queued`, a few hundred files in a commit.
//!
//! The session reads the files again, most often out of the page cache; the digest has to be known before, because both sides
//! agree on it.

use super::Dispatch;
use super::book::after_failure;
use super::link::seed;
use super::policy::source_class;
use super::route::is_submitted;
use crate::site::{Fault, Site};
use downpour_catalog::{
    Answer, Change, Digest, ErrorClass, File, Move, Next, Query, Revision, State,
};
use downpour_proto::Rng;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Files that share a commit.
const FILES_AT_ONCE: usize = 500;
/// Bytes of them, about: what comes later is not held up by what is large.
const BYTES_AT_ONCE: u64 = 1 << 30;
/// Between two looks when there is nothing to do.
const IDLE: Duration = Duration::from_millis(500);
/// A file that was not written to for so long is not being written.
const REST: Duration = Duration::from_secs(10);
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

/// Hashes some files; how many. Those that cannot be hashed now wait.
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
    let hashed = tokio::task::spawn_blocking(move || {
        let hash = |(file, path): (File, PathBuf)| {
            let digest = digest(&path, file.size);
            let size = if digest == Err(ErrorClass::FileChanged) { at_rest(&path) } else { None };
            (digest, size.filter(|size| *size != file.size), file)
        };
        files.into_iter().map(hash).collect::<Vec<_>>()
    });
    let died = |e: tokio::task::JoinError| Fault::new(ErrorClass::Internal, e.to_string());
    let (hashed, now) = (hashed.await.map_err(died)?, site.clock.now());
    let mut rng = Rng::new(seed());
    let first = hashed.iter().map(|(digest, _, file)| {
        let next = match digest {
            Ok(digest) => Next::Hashed(vec![digest.clone()]),
            Err(class) => after_failure(now, *class, (1, 1), None, &mut rng),
        };
        step(file, file.revision, next)
    });
    let answers = site.catalog.submit(now, first.collect()).done().await?;
    let mut count = 0;
    let further = |((_, size, file), answer): (&(_, Option<u64>, File), Answer)| {
        let applied = answer.ok()?;
        let next = match (applied.state?, *size) {
            (State::Hashed, _) => Next::Queued,
            // Nobody has read it: it is that file, written on since it was taken in.
            (State::Waiting, Some(size)) => Next::Settled { size },
            _ => return None,
        };
        count += usize::from(next == Next::Queued);
        Some(step(file, applied.revision, next))
    };
    let second = hashed.iter().zip(answers).filter_map(further).collect();
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
    let class = |error| source_class(&error);
    let mut file = std::fs::File::open(path).map_err(class)?;
    if file.metadata().map_err(class)?.len() != size {
        return Err(ErrorClass::FileChanged);
    }
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 18];
    let mut read = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                read += len as u64;
                hasher.update(&buffer[..len]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(class(error)),
        }
    }
    if read == size {
        Ok(Digest::blake3(*hasher.finalize().as_bytes()))
    } else {
        Err(ErrorClass::FileChanged)
    }
}

/// Size of a file that nobody has written to for a while.
fn at_rest(path: &Path) -> Option<u64> {
    let meta = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    let is_new = meta.modified().ok()?.elapsed().is_ok_and(|since| since < REST);
    (!is_new).then_some(meta.len())
}

#[cfg(test)]
mod tests {
    use super::{at_rest, digest};
    use downpour_catalog::{Digest, ErrorClass};

    #[test]
    fn a_file_that_is_not_what_was_taken_in_has_no_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(digest(&path, 0), Err(ErrorClass::FileGone));
        std::fs::write(&path, b"content").unwrap();
        assert_eq!(digest(&path, 7), Ok(Digest::blake3(*blake3::hash(b"content").as_bytes())));
        assert_eq!(digest(&path, 8), Err(ErrorClass::FileChanged));
        assert_eq!(at_rest(&path), None);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * super::REST).unwrap();
        assert_eq!(at_rest(&path), Some(7));
        // What says nothing of the file does not set it apart.
        let folder = folder.path().metadata().unwrap().len();
        assert_eq!(digest(path.parent().unwrap(), folder), Err(ErrorClass::SourceReadFailed));
    }
}
