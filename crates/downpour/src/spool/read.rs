//! Reading files for their digests, on threads of their own: one pass for all digests, compared with the producer's.
//!
//! A file is looked at before and after, by its descriptor. If it is not what was to be read, or changed meanwhile, no digest
//! comes out, whatever was read. Nor is anything held against a file that a producer's digest says while that is written.

use super::digests::{Digesting, read_sum};
use super::root::{Root, Seen};
use super::section::Sums;
use super::settle::{Policy, SUMS};
use crate::dispatch::source_class;
use downpour_catalog::{Digest, DigestKind, ErrorClass, FileId};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Threads that read: one file is on the disk while another is being digested.
const READERS: usize = 2;

/// A file to be read.
pub(super) struct Job {
    pub(super) rel: Arc<str>,
    /// Whose content it is to be.
    pub(super) file: FileId,
    /// What it must be.
    pub(super) seen: Seen,
    /// Digests besides BLAKE3.
    pub(super) kinds: Vec<DigestKind>,
    /// Whether the digest decides if the file may be removed, and the producer's digests are not asked again.
    pub(super) again: bool,
}

/// How reading went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its digests.
    Digests(Vec<Digest>),
    /// It is not what it was, or the producer's digest is still being written.
    Changed,
    /// It is not there.
    Gone,
    /// It may not be read, or cannot be; the class tells whose fault that is.
    Unreadable(ErrorClass, String),
    /// The producer's digest is another, or is none.
    Differs(String),
}

/// Jobs that wait for a reader: what is to be sent comes before what was received.
#[derive(Default)]
struct Waiting {
    first: VecDeque<Job>,
    again: VecDeque<Job>,
}

impl Waiting {
    fn add(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            let queue = if job.again { &mut self.again } else { &mut self.first };
            queue.push_back(job);
        }
    }

    fn next(&mut self) -> Option<Job> {
        self.first.pop_front().or_else(|| self.again.pop_front())
    }
}

struct Work {
    jobs: Mutex<Waiting>,
    ready: Condvar,
    ending: AtomicBool,
    done: Mutex<Vec<(Job, Outcome)>>,
    bytes: AtomicU64,
}

/// The threads.
pub(super) struct Readers {
    work: Arc<Work>,
    threads: Vec<thread::JoinHandle<()>>,
    open: usize,
}

/// The state behind a mutex: each change is whole, so one that a panic left behind is good.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readers {
    pub(super) fn start(root: &Arc<Root>, policy: Policy) -> Self {
        let work = Arc::new(Work {
            jobs: Mutex::default(),
            ready: Condvar::new(),
            ending: AtomicBool::new(false),
            done: Mutex::new(Vec::new()),
            bytes: AtomicU64::new(0),
        });
        let spawn = |_| {
            let (work, root) = (work.clone(), root.clone());
            thread::spawn(move || work.read_all(&root, policy))
        };
        let threads = (0..READERS).map(spawn).collect();
        Self { work, threads, open: 0 }
    }

    pub(super) fn add(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        self.open += jobs.len();
        lock(&self.work.jobs).add(jobs);
        self.work.ready.notify_all();
    }

    /// Those that are done.
    pub(super) fn take(&mut self) -> Vec<(Job, Outcome)> {
        let done = std::mem::take(&mut *lock(&self.work.done));
        self.open -= done.len();
        done
    }

    /// Files that are being read, or wait for it.
    pub(super) const fn open(&self) -> usize {
        self.open
    }

    /// Bytes read.
    pub(super) fn bytes(&self) -> u64 {
        self.work.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.work.ending.store(true, Ordering::Relaxed);
        drop(lock(&self.work.jobs));
        self.work.ready.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A producer's digest file.
struct Sum {
    kind: DigestKind,
    file: File,
    /// What it was before its file was read.
    seen: Seen,
}

/// Opens the digest files beside a file.
fn open_sums(root: &Root, rel: &str) -> Result<Vec<Sum>, Outcome> {
    let mut sums = Vec::new();
    for (kind, ending) in SUMS {
        let opened = match root.open_file(&format!("{rel}{ending}")) {
            Err(Errno::NOENT | Errno::NAMETOOLONG) => continue,
            opened => opened.and_then(|file| Ok((Seen::of_file(&file)?, file))),
        };
        match opened {
            // A fifo or a folder, opened without waiting.
            Ok((_, file)) if !file.metadata().is_ok_and(|meta| meta.is_file()) => {
                let text = format!("its {kind} file is no file");
                return Err(Outcome::Unreadable(ErrorClass::FileUnreadable, text));
            }
            Ok((seen, _)) if seen.size == 0 => return Err(Outcome::Changed),
            Ok((seen, file)) => sums.push(Sum { kind, file, seen }),
            Err(error) => {
                let class = source_class(&error.into());
                return Err(Outcome::Unreadable(class, format!("its {kind} file: {error}")));
            }
        }
    }
    Ok(sums)
}

impl Work {
    fn read_all(&self, root: &Root, policy: Policy) {
        loop {
            let mut jobs = lock(&self.jobs);
            let job = loop {
                if self.ending.load(Ordering::Relaxed) {
                    return;
                }
                match jobs.next() {
                    Some(job) => break job,
                    None => jobs = self.ready.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(jobs);
            let outcome = self.read(root, policy, &job);
            lock(&self.done).push((job, outcome));
        }
    }

    fn read(&self, root: &Root, policy: Policy, job: &Job) -> Outcome {
        let asks = policy.sums != Sums::Off && !job.again;
        let sums = match asks.then(|| open_sums(root, &job.rel)).transpose() {
            Ok(sums) => sums.unwrap_or_default(),
            Err(outcome) => return outcome,
        };
        let mut kinds = job.kinds.clone();
        kinds.extend(sums.iter().map(|sum| sum.kind));
        let digests = match self.digests(root, job, &kinds) {
            Ok(digests) => digests,
            Err(outcome) => return outcome,
        };
        let name = job.rel.rsplit('/').next().unwrap_or_default();
        for Sum { kind, file, seen } in sums {
            let own = digests.iter().find(|digest| digest.kind() == kind);
            let text = match read_sum(&file, kind, name) {
                Ok(said) if Some(&said) == own => continue,
                Ok(said) => {
                    let own = own.map(Digest::hex).unwrap_or_default();
                    format!("its producer says {kind} {}, it has {own}", said.hex())
                }
                Err(text) => text,
            };
            let is_done = Seen::of_file(&file) == Ok(seen);
            return if is_done { Outcome::Differs(text) } else { Outcome::Changed };
        }
        Outcome::Digests(digests)
    }

    fn digests(
        &self,
        root: &Root,
        job: &Job,
        kinds: &[DigestKind],
    ) -> Result<Vec<Digest>, Outcome> {
        let unreadable =
            |error: io::Error| Outcome::Unreadable(source_class(&error), error.to_string());
        let file = root.open_file(&job.rel).map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => Outcome::Gone,
            Errno::LOOP => Outcome::Changed,
            other => unreadable(other.into()),
        })?;
        let is_as_seen = || match Seen::of_file(&file) {
            Ok(seen) if seen == job.seen => Ok(()),
            Ok(_) => Err(Outcome::Changed),
            Err(error) => Err(unreadable(error.into())),
        };
        is_as_seen()?;
        let go_on = |count: usize| {
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
            !self.ending.load(Ordering::Relaxed)
        };
        let (len, digests) = Digesting::new(kinds).read(&file, go_on).map_err(unreadable)?;
        is_as_seen()?;
        if len == job.seen.size { Ok(digests) } else { Err(Outcome::Changed) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Outcome, Readers, Waiting, open_sums};
    use crate::spool::root::{Root, Seen};
    use crate::spool::section::{Complete, Sums};
    use crate::spool::settle::Policy;
    use downpour_catalog::{ErrorClass, FileId};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::sync::Arc;
    use std::{fs, thread};

    #[test]
    fn a_digest_file_that_is_still_empty_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open(folder.path(), true).unwrap());
        let policy = Policy { complete: Complete::Rename, sums: Sums::IfThere };
        let mut readers = Readers::start(&root, policy);
        fs::write(folder.path().join("a"), "abc").unwrap();
        let mut read = |sum: &str| {
            fs::write(folder.path().join("a.md5"), sum).unwrap();
            let seen = root.look("a").unwrap().unwrap();
            let (rel, file) = ("a".into(), FileId(1));
            readers.add(vec![Job { rel, file, seen, kinds: Vec::new(), again: false }]);
            loop {
                match readers.take().pop() {
                    Some((_, outcome)) => break (outcome, readers.bytes()),
                    None => thread::yield_now(),
                }
            }
        };
        assert_eq!(read(""), (Outcome::Changed, 0));
        assert!(matches!(read("zz"), (Outcome::Differs(_), 3)));
    }

    #[test]
    fn a_digest_file_that_is_no_file_is_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), true).unwrap();
        fs::create_dir(folder.path().join("a.md5")).unwrap();
        mknodat(CWD, folder.path().join("b.md5"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for rel in ["a", "b"] {
            let Err(outcome) = open_sums(&root, rel) else { panic!("{rel}.md5 is no file") };
            let text = "its md5 file is no file".to_owned();
            assert_eq!(outcome, Outcome::Unreadable(ErrorClass::FileUnreadable, text));
        }
        assert!(open_sums(&root, "c").is_ok_and(|sums| sums.is_empty()));
    }

    #[test]
    fn what_was_received_is_read_again_after_what_is_to_be_sent() {
        let mut waiting = Waiting::default();
        let job = |rel: &str, again| {
            let seen = Seen::made_up(1, 1, 1);
            Job { rel: rel.into(), file: FileId(1), seen, kinds: Vec::new(), again }
        };
        waiting.add(vec![job("received", true), job("new", false)]);
        waiting.add(vec![job("newer", false)]);
        let order: Vec<_> = std::iter::from_fn(|| waiting.next()).map(|job| job.rel).collect();
        assert_eq!(order, ["new", "newer", "received"].map(Into::into));
    }
}
