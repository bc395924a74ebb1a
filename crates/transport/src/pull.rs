//! The receiver's pulls: a queue, a few workers, retries.
//!
//! 1. [`Puller::request`] queues a pull under a number of the caller's choice; any thread may call it.
//! 2. Each of N workers takes the oldest one and pulls it over a connection of its own. When that breaks
//!    off it pauses (twice as long each time, with jitter) and asks for the rest; what has come is kept.
//! 3. The result goes to the channel that [`Puller::start`] gave. A worker whose result is not taken does not
//!    go on, so that memory is bounded by 2·N results, [`PULL_LEN_MAX`] each.
//!
//! A pull that was cancelled gives no result. Dropping the [`Puller`] cancels all. Whether the bytes are the
//! right ones is not known here: the sink verifies them.

use crate::control::{ControlClient, Pull, PullError};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Bytes of one pull. A full block has 1.5 MB.
pub const PULL_LEN_MAX: u64 = 16 * 1024 * 1024;
/// Pulls that wait for a worker.
pub const PULL_QUEUE_MAX: usize = 4096;

/// How a [`Puller`] works. Each field's default is what its comment says.
#[derive(Clone, Debug)]
pub struct PullLimits {
    /// Pulls at once, a TCP connection each: 4.
    pub parallel: usize,
    /// Tries in a row that bring no byte, before a pull is given up: 8.
    pub tries_max: u32,
    /// After the first failed try: 200 ms.
    pub pause_first: Duration,
    /// After many failed tries: 5 s.
    pub pause_max: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            parallel: 4,
            tries_max: 8,
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(5),
        }
    }
}

/// A pull that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The caller's number.
    pub id: u64,
    /// What was asked for.
    pub pull: Pull,
    /// All of it, or why not: an error that does not pass, or one that did not pass for too long.
    pub outcome: Result<Vec<u8>, PullError>,
}

/// A pull was not taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullRefused {
    /// [`PULL_QUEUE_MAX`] wait already. Ask again when results have come.
    #[error("{PULL_QUEUE_MAX} pulls wait already")]
    QueueFull,
    /// More than [`PULL_LEN_MAX`] bytes.
    #[error("a pull has at most {PULL_LEN_MAX} bytes")]
    TooLong,
    /// A pull with this number waits or runs.
    #[error("pull {0} is under way already")]
    Duplicate(u64),
}

/// The queue and its workers.
#[derive(Debug)]
pub struct Puller {
    queue: Arc<Queue>,
    _workers: JoinSet<()>,
}

impl Puller {
    /// Starts the workers on the present runtime.
    pub fn start(client: Arc<ControlClient>, limits: PullLimits) -> (Self, mpsc::Receiver<Pulled>) {
        let parallel = limits.parallel.max(1);
        let (results, receiver) = mpsc::channel(parallel);
        let queue = Arc::new(Queue::default());
        let mut workers = JoinSet::new();
        for _ in 0..parallel {
            let worker = Worker {
                client: client.clone(),
                limits: limits.clone(),
                queue: queue.clone(),
                results: results.clone(),
            };
            workers.spawn(worker.work());
        }
        (Self { queue, _workers: workers }, receiver)
    }

    /// Queues a pull. The result will carry `id`.
    pub fn request(&self, id: u64, pull: Pull) -> Result<(), PullRefused> {
        if let Pull::Bytes(_, range) = &pull
            && range.end.saturating_sub(range.start) > PULL_LEN_MAX
        {
            return Err(PullRefused::TooLong);
        }
        let mut state = self.queue.lock();
        if state.waiting.len() >= PULL_QUEUE_MAX {
            return Err(PullRefused::QueueFull);
        }
        if state.running.contains_key(&id) || state.waiting.iter().any(|(other, _)| *other == id) {
            return Err(PullRefused::Duplicate(id));
        }
        state.waiting.push_back((id, pull));
        drop(state);
        self.queue.filled.notify_one();
        Ok(())
    }

    /// Cancels a pull. `true`: no result will come of it. `false`: one has come or is about to.
    pub fn cancel(&self, id: u64) -> bool {
        let mut state = self.queue.lock();
        if let Some(cancelled) = state.running.remove(&id) {
            cancelled.notify_one();
            return true;
        }
        let before = state.waiting.len();
        state.waiting.retain(|(other, _)| *other != id);
        state.waiting.len() < before
    }

    /// Cancels all pulls.
    pub fn cancel_all(&self) {
        let mut state = self.queue.lock();
        state.waiting.clear();
        for cancelled in std::mem::take(&mut state.running).into_values() {
            cancelled.notify_one();
        }
    }

    /// Pulls that wait or run.
    pub fn under_way(&self) -> usize {
        let state = self.queue.lock();
        state.waiting.len() + state.running.len()
    }
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(u64, Pull)>,
    /// By number; who takes an entry out decides what becomes of that pull.
    running: BTreeMap<u64, Arc<Notify>>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is a push, a pop or a removal: a panic in between leaves the rest whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn next(&self) -> (u64, Pull, Arc<Notify>) {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self) -> Option<(u64, Pull, Arc<Notify>)> {
        let mut state = self.lock();
        let (id, pull) = state.waiting.pop_front()?;
        let cancelled = Arc::new(Notify::new());
        state.running.insert(id, cancelled.clone());
        if !state.waiting.is_empty() {
            // Two requests in a row may have left one wake-up only.
            self.filled.notify_one();
        }
        Some((id, pull, cancelled))
    }
}

struct Worker {
    client: Arc<ControlClient>,
    limits: PullLimits,
    queue: Arc<Queue>,
    results: mpsc::Sender<Pulled>,
}

impl Worker {
    async fn work(self) {
        loop {
            let (id, pull, cancelled) = self.queue.next().await;
            let outcome = tokio::select! {
                outcome = self.pull(&pull) => outcome,
                () = cancelled.notified() => continue,
            };
            let finished = self.queue.lock().running.remove(&id).is_some();
            if finished && self.results.send(Pulled { id, pull, outcome }).await.is_err() {
                // Nobody wants results any more.
                return;
            }
        }
    }

    async fn pull(&self, pull: &Pull) -> Result<Vec<u8>, PullError> {
        let mut bytes = Vec::new();
        let mut failures = 0;
        loop {
            let before = bytes.len();
            let error = match self.client.pull(pull, &mut bytes).await {
                Ok(()) => return Ok(bytes),
                Err(error) => error,
            };
            failures = if bytes.len() > before { 1 } else { failures + 1 };
            if !error.is_passing() || failures >= self.limits.tries_max {
                return Err(error);
            }
            tokio::time::sleep(self.pause(failures)).await;
        }
    }

    /// After the `failures`th failure in a row, from 1: doubled each time, and between half and all of it.
    fn pause(&self, failures: u32) -> Duration {
        let doubled = 2u32.saturating_pow(failures - 1);
        let pause = self.limits.pause_first.saturating_mul(doubled).min(self.limits.pause_max);
        // A hasher of the standard library is seeded at random; no secret depends on it.
        let random = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        pause.mul_f64(0.5 + random / 2.0)
    }
}
