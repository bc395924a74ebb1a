//! The receiver's pulls: a queue, a few connections, retries.
//!
//! 1. [`Puller::request`] queues a pull under a number of the caller's choice; any thread may call it.
//! 2. Each of N workers has a connection of its own, and takes from [`Ranges`] what to ask it for next, before the answers to
//!    earlier requests are in. What comes goes straight to its place in the pull's buffer.
//! 3. When a connection breaks off, or an answer says no, its worker pauses (twice as long each time, with jitter);
//!    what has come is kept, and the rest is asked for anew.
//! 4. The result goes to the channel that [`Puller::start`] gave. A worker whose result is not taken does not
//!    go on, so that memory is bounded: N results, and for each connection what it was asked for.
//!
//! Dropping the [`Puller`] ends all pulls. Whether the bytes are the right ones is not known here: the sink verifies them.
//!
//! With [`Steering`] the number of connections and their pacing change while it works: `helm`.

mod helm;
mod worker;

pub use helm::{Course, Helm, Sight, Steered, Steering, Turn};

use crate::Spare;
use crate::control::{ControlClient, Pull, PullError};
use crate::stream::{ConnectionReport, Tuning};
use downpour_proto::transfer::steer::Decision;
use downpour_proto::transfer::{Ask, DEPTH_MAX, Ranges};
use downpour_proto::{BlockKind, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use worker::Worker;

/// Bytes of one pull. A full block has 1.5 MB.
pub const PULL_LEN_MAX: u64 = 16 * 1024 * 1024;
/// Pulls that wait for a worker.
pub const PULL_QUEUE_MAX: usize = 4096;

/// Connections of the past of which an account is kept.
const REPORTS_MAX: usize = 256;

/// How a [`Puller`] works. Each field's default is what its comment says.
#[derive(Clone, Debug)]
pub struct PullLimits {
    /// TCP connections: 4.
    pub parallel: usize,
    /// Requests on one connection before the first answer is in, at least: 1. With more than one there are as many as a
    /// round trip takes.
    pub depth: usize,
    /// Whether connections are opened before there is a pull: no.
    pub ahead: bool,
    /// Whether the manifest, which the others wait for, has a connection of its own, as where the sender gives pulls little of
    /// its rate: no.
    pub manifest_apart: bool,
    /// Round trip of the path: not known.
    pub rtt: Duration,
    /// What is set on each connection: nothing.
    pub tuning: Tuning,
    /// Tries in a row that bring no byte, before a pull is given up: 8. What fails on several connections at once is one.
    pub tries_max: u32,
    /// After the first failed try: 200 ms.
    pub pause_first: Duration,
    /// After many failed tries: 5 s.
    pub pause_max: Duration,
    /// What changes `parallel` and the pacing meanwhile: nothing.
    pub steering: Option<Steering>,
    /// Where buffers come from; who takes a result gives its buffer back there. New ones.
    pub spare: Spare,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            parallel: 4,
            depth: 1,
            ahead: false,
            manifest_apart: false,
            rtt: Duration::ZERO,
            tuning: Tuning::default(),
            tries_max: 8,
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(5),
            steering: None,
            spare: Spare::new(0),
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
    /// More than [`PULL_LEN_MAX`] bytes, or none.
    #[error("a pull has 1 to {PULL_LEN_MAX} bytes")]
    TooLong,
    /// A pull with this number waits or runs.
    #[error("pull {0} is under way already")]
    Duplicate(u64),
}

/// What the pulls came to so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PullTotals {
    /// Bytes of pulls that came, once each.
    pub bytes: u64,
    /// Bytes that came at all, of those that are not complete as well.
    pub came: u64,
    /// Requests.
    pub ranges: u64,
    /// Connections that have ended, and what they did.
    pub connections: Vec<ConnectionReport>,
    /// What the sender could not set of what was asked for.
    pub lacks: Option<String>,
    /// What was decided meanwhile, and when, counted from the start.
    pub decisions: Vec<(Duration, Decision)>,
}

/// The queue and its workers.
pub struct Puller {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

impl Puller {
    /// Starts the workers on the present runtime.
    pub fn start(client: Arc<ControlClient>, limits: PullLimits) -> (Self, mpsc::Receiver<Pulled>) {
        let course = limits.steering.as_ref().and_then(Course::begin);
        let first = course.as_ref().map_or(limits.parallel.max(1), Course::connections);
        let parallel = course.as_ref().map_or(first, Course::most);
        let (results, receiver) = mpsc::channel(parallel);
        let mut ranges = Ranges::new(parallel, limits.rtt, limits.depth.min(DEPTH_MAX));
        ranges.set_active(first);
        let apart = limits.manifest_apart.then(|| ranges.keep_line());
        let state = State {
            ranges,
            pulls: BTreeMap::new(),
            totals: PullTotals::default(),
            tuning: limits.tuning.clone(),
            sight: Sight::new(parallel + apart.iter().len()),
            sink_waits: false,
            draining: false,
        };
        let shared = Arc::new(Shared {
            client,
            limits,
            begun: Instant::now(),
            state: Mutex::new(state),
            filled: Notify::new(),
        });
        let mut workers = JoinSet::new();
        for line in (0..parallel).chain(apart) {
            workers.spawn(Worker::new(line, shared.clone(), results.clone()).work());
        }
        if let Some(course) = course {
            workers.spawn(course.hold(shared.clone()));
        }
        (Self { shared, workers }, receiver)
    }

    /// Queues a pull. The result will carry `id`, which no other pull has or had: parts of one that failed may come late.
    pub fn request(&self, id: u64, pull: Pull) -> Result<(), PullRefused> {
        // Before JOIN nothing can be asked for but bytes: an error that comes to light with the request.
        let (len, step) = self.shared.client.measure(&pull).unwrap_or((1, 1));
        if !(1..=PULL_LEN_MAX).contains(&len) {
            return Err(PullRefused::TooLong);
        }
        let mut state = self.shared.lock();
        if state.ranges.waiting() >= PULL_QUEUE_MAX {
            return Err(PullRefused::QueueFull);
        }
        if state.pulls.contains_key(&id) {
            return Err(PullRefused::Duplicate(id));
        }
        match pull.kind() {
            BlockKind::Manifest => state.ranges.want_first(id, len, step),
            BlockKind::Data => state.ranges.want(id, len, step),
        }
        state.pulls.insert(id, Running { pull, len, failures: 0, failed_at: None, buffer: None });
        drop(state);
        self.shared.filled.notify_waiters();
        Ok(())
    }

    /// Nothing more will be requested: idle connections help the others with what is left.
    pub fn set_ending(&self) {
        self.shared.lock().ranges.set_ending(true);
        self.shared.filled.notify_waiters();
    }

    /// The sender is gone: nothing more is asked for, and what is here already is read. When a connection has nothing more
    /// its worker ends; results end with the last.
    pub fn drain(&self) {
        self.shared.lock().draining = true;
        self.shared.filled.notify_waiters();
    }

    /// Whether what came waits to be stored: then connections that idle wait for the disk.
    pub fn set_sink_waits(&self, waits: bool) {
        self.shared.lock().sink_waits = waits;
    }

    /// What came so far.
    pub fn totals(&self) -> PullTotals {
        self.shared.lock().totals.clone()
    }

    /// [`PullTotals::bytes`] by now.
    pub fn bytes(&self) -> u64 {
        self.shared.lock().totals.bytes
    }

    /// [`PullTotals::came`] by now.
    pub fn came(&self) -> u64 {
        self.shared.lock().totals.came
    }

    /// Ends all connections, and tells what came of them.
    pub async fn stop(&mut self) -> PullTotals {
        self.workers.shutdown().await;
        self.totals()
    }
}

/// What the workers share.
struct Shared {
    client: Arc<ControlClient>,
    limits: PullLimits,
    begun: Instant,
    state: Mutex<State>,
    /// There may be something to ask for.
    filled: Notify,
}

struct State {
    ranges: Ranges,
    pulls: BTreeMap<u64, Running>,
    totals: PullTotals,
    /// What is set on each connection now.
    tuning: Tuning,
    /// What was seen since the helm looked last.
    sight: Sight,
    sink_waits: bool,
    draining: bool,
}

/// The bytes of a pull. Two connections may bring parts of it.
type Buffer = Arc<Mutex<Vec<u8>>>;

struct Running {
    pull: Pull,
    len: u64,
    /// Tries in a row that brought no byte, and when the last of them ended.
    failures: u32,
    failed_at: Option<Instant>,
    /// From the first request on.
    buffer: Option<Buffer>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The parts are changed one after the other, and nothing in between panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_draining(&self) -> bool {
        self.lock().draining
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.begun.elapsed()
    }

    /// What to ask connection `line` for next, of which pull, and where its bytes go.
    fn next(&self, line: usize) -> Option<(Ask, Pull, Buffer)> {
        let now = self.now();
        let mut state = self.lock();
        let State { ranges, pulls, totals, draining, .. } = &mut *state;
        if *draining {
            return None;
        }
        let ask = ranges.next(now, line)?;
        totals.ranges += 1;
        // A range is wanted as long as its pull is there.
        let running = pulls.get_mut(&ask.id)?;
        let len = running.len as usize;
        let buffer = running.buffer.get_or_insert_with(|| {
            // A pull is complete when each of its bytes has come: what is in the buffer now is never seen.
            Arc::new(Mutex::new(self.limits.spare.take(len)))
        });
        Some((ask, running.pull.clone(), buffer.clone()))
    }

    /// Bytes came; the pull that is complete by them.
    fn came(&self, line: usize, id: u64, len: usize) -> Option<Pulled> {
        let now = self.now();
        let mut state = self.lock();
        if let Some(running) = state.pulls.get_mut(&id) {
            (running.failures, running.failed_at) = (0, None);
        }
        state.sight.came(len as u64);
        state.totals.came += len as u64;
        let id = state.ranges.came(now, line, len as u64)?;
        let running = state.pulls.remove(&id)?;
        state.totals.bytes += running.len;
        let buffer = running.buffer.map(|buffer| std::mem::take(&mut *bytes_of(&buffer)));
        Some(Pulled { id, pull: running.pull, outcome: Ok(buffer.unwrap_or_default()) })
    }

    /// A connection ended: what it has not brought is for others.
    fn broke(&self, line: usize) {
        let mut state = self.lock();
        state.sight.told(line, None);
        state.ranges.broke(line);
        drop(state);
        self.filled.notify_waiters();
    }

    /// What is set on connections now.
    fn tuning(&self) -> Tuning {
        self.lock().tuning.clone()
    }

    /// A try failed of a connection whose last one failed then: of those that fail together one counts. How often in a row by
    /// now, and the result when that was too often.
    fn failed(&self, id: u64, error: PullError, before: Option<Instant>) -> (u32, Option<Pulled>) {
        let mut state = self.lock();
        let Some(running) = state.pulls.get_mut(&id) else { return (1, None) };
        if running.failed_at <= before {
            running.failures += 1;
            running.failed_at = Some(Instant::now());
        }
        let failures = running.failures;
        if error.is_passing() && failures < self.limits.tries_max {
            return (failures, None);
        }
        state.ranges.forget(id);
        let running = state.pulls.remove(&id);
        (failures, running.map(|r| Pulled { id, pull: r.pull, outcome: Err(error) }))
    }
}

fn bytes_of(buffer: &Buffer) -> MutexGuard<'_, Vec<u8>> {
    // Plain bytes, each written by itself.
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}
