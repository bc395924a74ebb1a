//! A few threads that take jobs from one queue and post results for a driver.
//!
//! A job that panics has found a bug: its thread ends, and the driver is told in the place of the result, so
//! that the session ends with a reason instead of waiting for it.

use super::Broken;
use crate::{Waker, take_long_turns, take_short_turns};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Most worker threads of a session. Coding and hashing run near memory speed: more would only compete.
const WORKERS_MAX: usize = 4;

/// The queue's far end: jobs go in, results come out. Dropping it ends the threads and waits for them: what
/// their function holds (a store's lock) is free afterwards.
pub(super) struct Workers<Job, Done> {
    /// `None` only while it is being dropped.
    jobs: Option<Sender<Job>>,
    done: Receiver<Result<Done, Broken>>,
    threads: Vec<JoinHandle<()>>,
}

impl<Job: Send + 'static, Done: Send + 'static> Workers<Job, Done> {
    /// Starts the threads; `make` gives each its own function, so that it can keep working space.
    /// With `prompt` they get their turns as soon as the driver.
    pub(super) fn start<F>(
        name: &str,
        prompt: bool,
        waker: &Waker,
        make: impl Fn() -> F,
    ) -> io::Result<Self>
    where
        F: FnMut(Job) -> Done + Send + 'static,
    {
        // The machine asks for no more than the blocks that it has open need, and its pulls bring: both have their limits.
        let (jobs, queue) = channel::<Job>();
        let (results, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let count = thread::available_parallelism().map_or(2, usize::from).clamp(1, WORKERS_MAX);
        let mut threads = Vec::new();
        for _ in 0..count {
            let (queue, results, waker) = (Arc::clone(&queue), results.clone(), waker.clone());
            let mut work = make();
            let thread = thread::Builder::new().name(name.to_owned());
            threads.push(thread.spawn(move || {
                if prompt {
                    take_short_turns();
                } else {
                    take_long_turns();
                }
                loop {
                    // Held only while taking a job; a worker that panicked has lost its own job, no more.
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    // Nothing of a job that panicked is used again: its thread and its session end.
                    let done = catch_unwind(AssertUnwindSafe(|| work(job)))
                        .map_err(|panic| Broken::new(&thread_name(), &*panic));
                    let is_broken = done.is_err();
                    let is_unwanted = results.send(done).is_err();
                    waker.wake();
                    if is_broken || is_unwanted {
                        return;
                    }
                }
            })?);
        }
        Ok(Self { jobs: Some(jobs), done, threads })
    }

    pub(super) fn post(&self, job: Job) {
        // Fails only when all workers have panicked, which they have told.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    /// The next result, or word of a worker that panicked.
    pub(super) fn take(&self) -> Option<Result<Done, Broken>> {
        self.done.try_recv().ok()
    }
}

fn thread_name() -> String {
    thread::current().name().unwrap_or("a worker").to_owned()
}

impl<Job, Done> Drop for Workers<Job, Done> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}
