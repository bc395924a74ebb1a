//! Digests of what operators submit: from `settled` to `queued`, a few hundred files in a commit.
//!
//! One folder is read at a time, by a thread. One whose disk does not answer is told of and left to its thread, and others are read
//! meanwhile; what that thread finds in the end is taken.
//!
//! The session reads the files again, most often out of the page cache; the digest has to be known before, because both sides
//! agree on it.

use super::book::after_failure;
use super::folders::OpenFolders;
use super::link::seed;
use super::policy::source_class;
use super::route::{PRIORITY, is_submitted};
use super::submit::stamp;
use super::{Dispatch, lock, now};
use crate::object::open_file;
use crate::site::{Config, Fault, Site, SiteEvent, Stop, Wish};
use downpour_catalog::{
    Answer, Change, Digest, ErrorClass, File, FileId, Move, NewFile, Next, OtherContent, Query,
    Revision, Same, Scope, State, Time,
};
use downpour_proto::Rng;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Files that share a commit.
const FILES_AT_ONCE: usize = 500;
/// Bytes of them, about: what comes later is not held up by what is large.
const BYTES_AT_ONCE: u64 = 1 << 30;
/// Between two looks when there is nothing to do.
const IDLE: Duration = Duration::from_millis(500);
/// A file that was not written to for so long is not being written.
const REST: Duration = Duration::from_secs(10);
/// After a failure of the catalog; and between two looks while a disk does not answer, as what lies there is passed over in each.
const PAUSE: Duration = Duration::from_secs(5);
/// A file of which nothing more was read for so long is told of, and holds up those of other folders no longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Folders that are read at once, a thread each: one, and those whose disks do not answer.
const FOLDERS_MAX: usize = 16;

/// Folders of which files are read, and how each gets on.
#[derive(Debug, Default)]
pub(super) struct Hashing(Mutex<BTreeMap<PathBuf, Reading>>);

/// The file of a folder that is read now.
#[derive(Debug)]
struct Reading {
    file: FileId,
    name: String,
    path: PathBuf,
    /// When something of it was read.
    grown: Instant,
    is_told: bool,
}

impl Reading {
    /// That nothing is read of it, if that lasts.
    fn standing(&self) -> Option<String> {
        let since = now().saturating_duration_since(self.grown);
        let what = "its folder's disk does not answer, and what was submitted of it waits; see to that disk";
        let path = self.path.display();
        let told = || format!("nothing was read of {path} for {} s: {what}", since.as_secs());
        (since >= PATIENCE).then(told)
    }
}

impl Hashing {
    /// What is told of disks that do not answer.
    pub(super) fn standing(&self) -> Vec<String> {
        lock(&self.0).values().filter_map(Reading::standing).collect()
    }

    /// What is told of the one that this lies on.
    pub(super) fn standing_of(&self, config: &Config, path: &Path) -> Option<String> {
        let folder = OpenFolders::with_inboxes(config).named(path);
        lock(&self.0).get(&folder).and_then(Reading::standing)
    }

    /// Whether none of the disks answers. Each is told of once.
    fn all_stand(&self, site: &Site) -> bool {
        let mut all = true;
        for reading in lock(&self.0).values_mut() {
            let what = reading.standing();
            all &= what.is_some();
            let Some(what) = what.filter(|_| !std::mem::replace(&mut reading.is_told, true)) else {
                continue;
            };
            tracing::warn!("{what}");
            let class = ErrorClass::SourceReadFailed.name();
            let about = serde_json::json!({
                "file": reading.file.0, "name": reading.name, "class": class, "what": what,
            });
            site.events.tell(SiteEvent::TROUBLE, &about);
        }
        all
    }
}

/// A folder is read; it ends with what was read of it, though nobody may wait for that any more.
struct Turn {
    of: Arc<Hashing>,
    folder: PathBuf,
}

impl Turn {
    /// Something of this file was read, or is now.
    fn came(&self, file: &File, path: &Path) {
        let (file, name, path) = (file.id, file.name.clone(), path.to_owned());
        let reading = Reading { file, name, path, grown: now(), is_told: false };
        lock(&self.of.0).insert(self.folder.clone(), reading);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.of.0).remove(&self.folder);
    }
}

/// What was found in a folder.
type Found = (Turn, Vec<(Content, File)>);

struct Hasher {
    dispatch: Arc<Dispatch>,
    site: Arc<Site>,
    own: Own,
    /// One at work, and those whose disks do not answer.
    reads: JoinSet<Found>,
    /// By its end they hear that nobody waits for them.
    _waits: watch::Sender<Wish>,
    stop: Stop,
}

/// Works until it is ended.
pub(super) async fn hash_submitted(dispatch: Arc<Dispatch>, site: Arc<Site>) {
    let mut hasher = Hasher::new(&dispatch, &site);
    loop {
        match hasher.round().await {
            Ok(0) if lock(&dispatch.hashing.0).is_empty() => tokio::time::sleep(IDLE).await,
            Ok(0) => tokio::time::sleep(PAUSE).await,
            Ok(_) => dispatch.wake.notify_one(),
            Err(fault) => {
                tracing::warn!(%fault, "digests wait");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Hasher {
    fn new(dispatch: &Arc<Dispatch>, site: &Arc<Site>) -> Self {
        let (dispatch, site, (_waits, stop)) = (dispatch.clone(), site.clone(), Stop::new());
        Self { dispatch, site, own: Own::new(), reads: JoinSet::new(), _waits, stop }
    }

    /// Hashes some files; how many. Those that cannot be hashed now wait.
    async fn round(&mut self) -> Result<usize, Fault> {
        // Those of a daemon that died between the two commits.
        let left = due(&self.site, State::Hashed, |_| true).await?;
        if !left.is_empty() {
            let queue = left.iter().map(|(file, _)| step(file, file.revision, Next::Queued));
            self.site.catalog.submit(self.site.clock.now(), queue.collect()).done().await?;
        }
        self.begin().await?;
        match self.read().await? {
            Some(found) => self.record(found).await,
            None => Ok(0),
        }
    }

    /// Begins to read what is due of a folder of which nothing is read yet.
    async fn begin(&mut self) -> Result<(), Fault> {
        let (config, hashing) = (self.site.config(), self.dispatch.hashing.clone());
        let busy: HashSet<PathBuf> = lock(&hashing.0).keys().cloned().collect();
        if busy.len() >= FOLDERS_MAX {
            return Ok(());
        }
        let folders = Arc::new(OpenFolders::with_inboxes(&config));
        let all = folders.clone();
        let is_free = move |path: &Path| !busy.contains(&all.named(path));
        let mut files = due(&self.site, State::Settled, is_free).await?;
        let Some((file, path)) = files.first() else { return Ok(()) };
        let folder = folders.named(path);
        let turn = Turn { of: hashing, folder };
        turn.came(file, path);
        files.retain(|(_, path)| folders.named(path) == turn.folder);
        let stop = self.stop.clone();
        self.reads.spawn_blocking(move || {
            let goes_on = |file: &File, path: &Path| {
                turn.came(file, path);
                stop.wish() == Wish::Run
            };
            let read = |(file, path): (File, PathBuf)| match config.is_own(&path) {
                true => (Content::Not(ErrorClass::FileUnreadable), file),
                false => (read(&file, &path, &|| goes_on(&file, &path)), file),
            };
            let files = files.into_iter().take_while(|(file, path)| goes_on(file, path));
            let found = files.map(read).collect();
            (turn, found)
        });
        Ok(())
    }

    /// What was found next; nothing where nothing is read, or none of the disks answers.
    async fn read(&mut self) -> Result<Option<Found>, Fault> {
        loop {
            tokio::select! {
                found = self.reads.join_next() => return Ok(found.transpose()?),
                () = tokio::time::sleep(IDLE) => {}
            }
            if self.dispatch.hashing.all_stand(&self.site) {
                return Ok(None);
            }
        }
    }

    /// The steps of those that were read; how many have a digest. The folder may be read again when they are written down.
    async fn record(&mut self, (_turn, read): Found) -> Result<usize, Fault> {
        let (site, own, now) = (&self.site, &mut self.own, self.site.clock.now());
        let mut rng = Rng::new(seed());
        let first = read.iter().map(|(content, file)| match content {
            Content::Whole(digest) => step(file, file.revision, Next::Hashed(vec![digest.clone()])),
            Content::Grown { size, stamp } => written_on(file, *size, *stamp),
            Content::Not(class) => {
                step(file, file.revision, failed(now, file, *class, own, &mut rng))
            }
            Content::Written => step(file, file.revision, grows(now, file, &mut rng)),
        });
        let answers = site.catalog.submit(now, first.collect()).done().await?;
        let mut count = 0;
        let further =
            |((content, file), answer): (&(Content, File), Answer)| match (content, answer) {
                (Content::Whole(_), Ok(applied)) => {
                    count += 1;
                    own.remove(&file.id);
                    Some(step(file, applied.revision, Next::Queued))
                }
                // What is there is a later version.
                (Content::Grown { .. }, answer)
                    if answer.as_ref().map(|a| a.file) != Ok(file.id) =>
                {
                    let next = failed(now, file, ErrorClass::FileChanged, own, &mut rng);
                    Some(step(file, file.revision, next))
                }
                _ => None,
            };
        let second = read.iter().zip(answers).filter_map(further).collect();
        site.catalog.submit(site.clock.now(), second).done().await?;
        Ok(count)
    }
}

fn step(file: &File, at: Revision, next: Next) -> Change {
    Change::Move(Move { file: file.id, at, fence: None, next })
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

/// Submitted files that stand there, and where they lie: in such a place.
async fn due(
    site: &Arc<Site>,
    state: State,
    is_it: impl Fn(&Path) -> bool + Send + 'static,
) -> Result<Vec<(File, PathBuf)>, Fault> {
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
        reader.search_all(&query, FILES_AT_ONCE, |reader, files| {
            let ids: Vec<FileId> = files.iter().map(|file| file.id).collect();
            let mine = reader.replicas_of(&ids)?.into_iter().filter(|r| r.site == own);
            let mut paths: HashMap<_, _> = mine.map(|r| (r.file, PathBuf::from(r.path))).collect();
            for file in files.into_iter().filter(|file| is_ours(file.rule)) {
                let Some(path) = paths.remove(&file.id).filter(|path| is_it(path)) else {
                    continue;
                };
                bytes += file.size;
                due.push((file, path));
            }
            Ok(due.len() < FILES_AT_ONCE && bytes < BYTES_AT_ONCE)
        })?;
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

/// `goes_on`: whether somebody waits for it still; asked with all that is read.
fn read(file: &File, path: &Path, goes_on: &dyn Fn() -> bool) -> Content {
    match digest(path, file.size, goes_on) {
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
fn digest(path: &Path, size: u64, goes_on: &dyn Fn() -> bool) -> Result<Digest, ErrorClass> {
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
        if !goes_on() {
            return Err(ErrorClass::Interrupted);
        }
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
    use super::{Content, Hasher, PATIENCE, Turn, changed, due, failed, grows};
    use crate::dispatch::Dispatch;
    use crate::dispatch::book::Held;
    use crate::dispatch::fixture::told;
    use crate::dispatch::submit::{Submission, submit};
    use crate::site::{Daemon, Service as _, SiteEvent};
    use downpour_catalog::{Digest, ErrorClass, Next, Revision, State, Time};
    use downpour_proto::Rng;
    use downpour_transport::identity::Identity;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::SystemTime;

    fn digest(path: &Path, size: u64) -> Result<Digest, ErrorClass> {
        super::digest(path, size, &|| true)
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_holds_up_no_file_of_another_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap();
        let [hung, well] = ["hung", "well"].map(|name| at.join(name));
        for place in [&hung, &well] {
            fs::create_dir(place).unwrap();
            fs::write(place.join(place.file_name().unwrap()), "content").unwrap();
        }
        let key = Identity::generate().public_key();
        let remote = format!("[[remote]]\nname = 'b'\nkey = '{key}'\n");
        let more = format!("[transfer]\nfolders = [{hung:?}, {well:?}]\n{remote}");
        let site = Daemon::ended(&at, "a", &more).await;
        let paths = [&hung, &well].map(|place| place.to_str().unwrap().to_owned()).to_vec();
        let wish = Submission { paths, to: "b".to_owned(), ..Submission::default() };
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        submit(&dispatch, &site, wish.clone()).await.unwrap();
        let mut hasher = Hasher::new(&dispatch, &site);
        let files = due(&site, State::Settled, |_| true).await.unwrap();
        let (file, path) = files.iter().find(|(_, path)| path.starts_with(&hung)).unwrap();
        let turn = Turn { of: dispatch.hashing.clone(), folder: hung.clone() };
        turn.came(file, path);
        let (answer, answered) = std::sync::mpsc::channel::<()>();
        hasher.reads.spawn_blocking(move || {
            let _ = answered.recv();
            (turn, Vec::new())
        });
        assert_eq!(hasher.round().await, Ok(1), "the other");
        tokio::time::pause();
        let read = tokio::spawn(async move {
            let came = hasher.read().await.unwrap().is_some();
            (hasher, came)
        });
        tokio::task::yield_now().await;
        tokio::time::advance(PATIENCE).await;
        let (mut hasher, came) = read.await.unwrap();
        tokio::time::resume();
        assert!(!came && dispatch.status().line.contains("/hung/hung for "), "it is told of");
        let why = dispatch.why_of(&site, file.id).await.unwrap().unwrap().text;
        assert!(why.contains("nothing was read of"), "{why}");
        fs::write(well.join("later"), "content").unwrap();
        submit(&dispatch, &site, wish).await.unwrap();
        let (later, _) = due(&site, State::Settled, |_| true).await.unwrap().pop().unwrap();
        let why = dispatch.why_of(&site, later.id).await.unwrap().unwrap();
        assert!(later.name == "later" && !why.text.contains("nothing was read"), "{}", why.text);
        assert_eq!(hasher.round().await, Ok(1), "that one");
        told(&site, SiteEvent::TROUBLE).await;
        drop(answer);
        let mut hashed = 0;
        while hashed == 0 {
            hashed = hasher.round().await.unwrap();
        }
        assert_eq!((hashed, dispatch.hashing.standing().len()), (1, 0));
    }

    #[test]
    fn a_file_that_is_not_what_was_taken_in_has_no_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(digest(&path, 0), Err(ErrorClass::FileGone));
        fs::write(&path, b"content").unwrap();
        assert_eq!(digest(&path, 7), Ok(Digest::blake3(*blake3::hash(b"content").as_bytes())));
        assert_eq!(digest(&path, 8), Err(ErrorClass::FileChanged));
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now()).unwrap();
        assert_eq!(changed(&path, 8), Content::Written);
        file.set_modified(SystemTime::now() - 2 * super::REST).unwrap();
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
        fs::write(at("a"), b"content").unwrap();
        symlink("a", at("link")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
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
