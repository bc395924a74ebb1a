//! Digests of what operators submit: from `settled` to `queued`, a few hundred files in a commit.
//!
//! The session reads the files again, most often out of the page cache; the digest has to be known before, because both sides
//! agree on it.

use super::Dispatch;
use super::book::after_failure;
use super::link::seed;
use super::policy::source_class;
use super::route::{PRIORITY, is_submitted};
use super::submit::stamp;
use crate::object::open_file;
use crate::site::{Fault, Site};
use downpour_catalog::{
    Answer, Change, Digest, ErrorClass, File, FileId, Move, NewFile, Next, OtherContent, Query,
    Revision, Same, Scope, State, Time,
};
use downpour_proto::Rng;
use std::collections::HashMap;
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
    let mut own = HashMap::new();
    loop {
        match round(&site, &mut own).await {
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
async fn round(site: &Arc<Site>, own: &mut Own) -> Result<usize, Fault> {
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
    let config = site.config();
    let read = tokio::task::spawn_blocking(move || {
        let read = |(file, path): (File, PathBuf)| match config.is_own(&path) {
            true => (Content::Not(ErrorClass::FileUnreadable), file),
            false => (read(&file, &path), file),
        };
        files.into_iter().map(read).collect::<Vec<_>>()
    });
    let (read, now) = (read.await?, site.clock.now());
    let mut rng = Rng::new(seed());
    let first = read.iter().map(|(content, file)| match content {
        Content::Whole(digest) => step(file, file.revision, Next::Hashed(vec![digest.clone()])),
        Content::Grown { size, stamp } => written_on(file, *size, *stamp),
        Content::Not(class) => step(file, file.revision, failed(now, file, *class, own, &mut rng)),
        Content::Written => step(file, file.revision, grows(now, file, &mut rng)),
    });
    let answers = site.catalog.submit(now, first.collect()).done().await?;
    let mut count = 0;
    let further = |((content, file), answer): (&(Content, File), Answer)| match (content, answer) {
        (Content::Whole(_), Ok(applied)) => {
            count += 1;
            own.remove(&file.id);
            Some(step(file, applied.revision, Next::Queued))
        }
        // What is there is a later version.
        (Content::Grown { .. }, answer) if answer.as_ref().map(|a| a.file) != Ok(file.id) => {
            let next = failed(now, file, ErrorClass::FileChanged, own, &mut rng);
            Some(step(file, file.revision, next))
        }
        _ => None,
    };
    let second = read.iter().zip(answers).filter_map(further).collect();
    site.catalog.submit(site.clock.now(), second).done().await?;
    Ok(count)
}

/// How often each file has failed by itself since this daemon began, or since it was set apart.
type Own = HashMap<FileId, u32>;

/// What became of a file that cannot be read: it waits longer each time, or is set apart.
fn failed(now: Time, file: &File, class: ErrorClass, own: &mut Own, rng: &mut Rng) -> Next {
    let times = own.entry(file.id).or_default();
    *times += u32::from(class.scope() == Scope::File);
    let next = after_failure(now, class, (times_waited(file), (*times).max(1)), None, rng);
    if matches!(next, Next::Quarantined(_)) {
        own.remove(&file.id);
    }
    next
}

/// One that is being written is no failure of its own.
fn grows(now: Time, file: &File, rng: &mut Rng) -> Next {
    after_failure(now, ErrorClass::FileChanged, (times_waited(file), 1), None, rng)
}

/// How often a file has waited here, with this time: it settled at its second revision, and each wait takes two, as it settles again.
fn times_waited(file: &File) -> u32 {
    u32::try_from(file.revision.0 / 2).unwrap_or(u32::MAX)
}

/// Nobody has read it: it is that file, written on since it was taken in.
fn written_on(file: &File, size: u64, stamp: i64) -> Change {
    Change::TakeIn(NewFile {
        site: file.site,
        name: file.name.clone(),
        size,
        stamp,
        rule: file.rule,
        rank: PRIORITY,
        transfer: None,
        other_content: OtherContent::Refuse,
        same: Same::Unread(file.id),
    })
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

/// What is found where a file lies.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// What was taken in.
    Whole(Digest),
    /// More or less than that, and nobody has written to it for a while.
    Grown { size: u64, stamp: i64 },
    /// More or less than that, for now.
    Written,
    /// Nothing that can be taken.
    Not(ErrorClass),
}

fn read(file: &File, path: &Path) -> Content {
    match digest(path, file.size) {
        Ok(digest) => Content::Whole(digest),
        Err(ErrorClass::FileChanged) => changed(path, file.size),
        Err(class) => Content::Not(class),
    }
}

/// What is in the place of a file that had this size.
fn changed(path: &Path, size: u64) -> Content {
    let meta = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file);
    match meta {
        Some(meta) if is_new(&meta) => Content::Written,
        Some(meta) if meta.len() != size => {
            Content::Grown { size: meta.len(), stamp: stamp(&meta) }
        }
        _ => Content::Not(ErrorClass::FileChanged),
    }
}

/// BLAKE3 of a file that has this size.
fn digest(path: &Path, size: u64) -> Result<Digest, ErrorClass> {
    let class = |error| source_class(&error);
    let file = open_file(path).map_err(class)?.ok_or(ErrorClass::FileChanged)?;
    if file.metadata().map_err(class)?.len() != size {
        return Err(ErrorClass::FileChanged);
    }
    // One that grows as fast as it is read has an end, too.
    let mut file = file.take(size.saturating_add(1));
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

/// Whether somebody wrote to it a short while ago.
fn is_new(meta: &std::fs::Metadata) -> bool {
    let written = meta.modified().ok();
    written.is_some_and(|at| at.elapsed().is_ok_and(|since| since < REST))
}

#[cfg(test)]
mod tests {
    use super::{Content, changed, digest, failed, grows};
    use crate::dispatch::book::Held;
    use downpour_catalog::{Digest, ErrorClass, Next, Revision, Time};
    use downpour_proto::Rng;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::collections::HashMap;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_file_that_is_not_what_was_taken_in_has_no_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(digest(&path, 0), Err(ErrorClass::FileGone));
        std::fs::write(&path, b"content").unwrap();
        assert_eq!(digest(&path, 7), Ok(Digest::blake3(*blake3::hash(b"content").as_bytes())));
        assert_eq!(digest(&path, 8), Err(ErrorClass::FileChanged));
        assert_eq!(changed(&path, 8), Content::Written);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * super::REST).unwrap();
        assert!(matches!(changed(&path, 8), Content::Grown { size: 7, .. }));
        // It says that it is as long as it was, and is not.
        assert_eq!(changed(&path, 7), Content::Not(ErrorClass::FileChanged));
        // What says nothing of the file does not set it apart.
        let too_long = folder.path().join("a".repeat(256));
        assert_eq!(digest(&too_long, 0), Err(ErrorClass::SourceReadFailed));
    }

    #[test]
    fn what_is_no_file_any_more_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        std::fs::write(at("a"), b"content").unwrap();
        symlink("a", at("link")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for (name, size) in [("fifo", 0), ("endless", 0), ("link", 7), ("socket", 0)] {
            assert_eq!(digest(&at(name), size), Err(ErrorClass::FileChanged), "{name}");
        }
        let size = at("folder").metadata().unwrap().len();
        assert_eq!(digest(&at("folder"), size), Err(ErrorClass::FileChanged));
    }

    #[test]
    fn what_cannot_be_read_waits_longer_each_time_and_is_set_apart() {
        let (mut file, mut rng, mut own) = (Held::example("a").file, Rng::new(1), HashMap::new());
        let mut fail = |revision, class| {
            file.revision = Revision(revision);
            let next = match class {
                Some(class) => failed(Time(0), &file, class, &mut own, &mut rng),
                None => grows(Time(0), &file, &mut rng),
            };
            match next {
                Next::Waiting { next_try, .. } => Some(next_try.0 / 1_000_000),
                Next::Quarantined(ErrorClass::FileUnreadable) => None,
                other => panic!("{other:?}"),
            }
        };
        // What the disk does is not its fault.
        for times in 1..=4 {
            assert!(fail(2 * times, Some(ErrorClass::SourceReadFailed)).is_some());
        }
        let waits: Vec<_> =
            (1..=5).map(|times| fail(2 * times, Some(ErrorClass::FileUnreadable))).collect();
        assert!(matches!(waits[..], [Some(5..=10), _, _, Some(40..=80), None]), "{waits:?}");
        assert!(fail(12, Some(ErrorClass::FileUnreadable)).is_some(), "it was released");
        // One that is being written has all the time.
        let written = fail(20, None);
        assert!(written.is_some_and(|wait| wait >= 300), "{written:?}");
    }
}
