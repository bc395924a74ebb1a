//! One worker of the puller: a connection, the requests that are out on it, and its pauses.

use super::{Buffer, Pulled, REPORTS_MAX, Shared, bytes_of};
use crate::control::{Line, Pull, PullError, silent};
use downpour_proto::transfer::Ask;
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How often an idle connection looks whether it can help.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Room for bytes that nobody wants any more.
const WASTE_LEN: usize = 16 << 10;

pub(super) struct Worker {
    line: usize,
    shared: Arc<Shared>,
    results: mpsc::Sender<Pulled>,
    open: Open,
    /// When its last try failed.
    failed_at: Option<Instant>,
}

/// The connection with what it was asked for; also its account, when it ends.
struct Open {
    line: Option<Line>,
    shared: Arc<Shared>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(line) = self.line.take() else { return };
        let totals = &mut self.shared.lock().totals;
        if totals.connections.len() < REPORTS_MAX {
            totals.connections.push(line.report());
        }
    }
}

/// A request that is out.
struct Out {
    ask: Ask,
    pull: Pull,
    buffer: Buffer,
}

/// Why a connection is not used on.
enum Broken {
    /// It is not wanted any more, or it idled and was closed.
    InVain,
    Error(PullError),
    /// Nobody wants results any more.
    Over,
}

impl Worker {
    pub(super) fn new(line: usize, shared: Arc<Shared>, results: mpsc::Sender<Pulled>) -> Self {
        let open = Open { line: None, shared: shared.clone() };
        Self { line, shared, results, open, failed_at: None }
    }

    pub(super) async fn work(mut self) {
        let mut out = VecDeque::new();
        if self.shared.limits.ahead && self.shared.lock().ranges.is_active(self.line) {
            // If it fails, the first pull tries again and tells why.
            self.open.line = self.shared.client.line(&self.shared.tuning()).await.ok();
        }
        loop {
            let broken = self.serve(&mut out).await;
            let first = out.pop_front().map(|out: Out| out.ask.id);
            out.clear();
            drop(std::mem::replace(
                &mut self.open,
                Open { line: None, shared: self.shared.clone() },
            ));
            self.shared.broke(self.line);
            if self.shared.is_draining() {
                return;
            }
            match (broken, first) {
                (Broken::Over, _) => return,
                (Broken::Error(error), Some(id)) => {
                    if !self.fail(id, error).await {
                        return;
                    }
                }
                (Broken::InVain | Broken::Error(_), _) => {}
            }
        }
    }

    /// Asks and takes answers until the connection breaks. What was asked for and has not come is in `out` then.
    async fn serve(&mut self, out: &mut VecDeque<Out>) -> Broken {
        loop {
            match self.ask(out).await {
                Ok(()) => {}
                Err(broken) => return broken,
            }
            if let Err(broken) = self.take_answer(out).await {
                return broken;
            }
        }
    }

    /// Sends requests as far as there is room for them; waits until there is one at least.
    async fn ask(&mut self, out: &mut VecDeque<Out>) -> Result<(), Broken> {
        loop {
            let shared = self.shared.clone();
            let filled = shared.filled.notified();
            tokio::pin!(filled);
            filled.as_mut().enable();
            let before = out.len();
            while let Some((ask, pull, buffer)) = shared.next(self.line) {
                out.push_back(Out { ask, pull, buffer });
            }
            if out.len() > before {
                let line = self.connection().await?;
                if line.is_plain() && shared.client.plain_token().is_none() {
                    return Err(Broken::InVain);
                }
                let mut requests = Vec::new();
                let tuning = shared.tuning();
                for Out { ask, pull, .. } in out.iter().skip(before) {
                    let span = ask.span.clone();
                    let request = shared.client.pull_request(pull, span, &tuning, line.is_plain());
                    requests.extend(request.map_err(Broken::Error)?);
                }
                line.send(&requests).await.map_err(|fault| Broken::Error(fault.into()))?;
            }
            if !out.is_empty() {
                return Ok(());
            }
            if shared.is_draining() {
                return Err(Broken::Over);
            }
            if !shared.lock().ranges.is_active(self.line) {
                if self.open.line.is_some() {
                    return Err(Broken::InVain);
                }
                filled.await;
                continue;
            }
            // At the end another one may fall behind without a word.
            let helps = shared.lock().ranges.helps(self.line);
            let look = async {
                match helps {
                    true => sleep(LOOK_INTERVAL).await,
                    false => pending().await,
                }
            };
            let Some(line) = &mut self.open.line else {
                tokio::select! { () = filled => {}, () = look => {} }
                continue;
            };
            tokio::select! {
                () = filled => {}
                () = look => {}
                // Nothing was asked for: it has been closed.
                _ = line.head() => return Err(Broken::InVain),
            }
        }
    }

    async fn connection(&mut self) -> Result<&mut Line, Broken> {
        let line = match self.open.line.take() {
            Some(line) => line,
            None => {
                let opened = self.shared.client.line(&self.shared.tuning()).await;
                opened.map_err(Broken::Error)?
            }
        };
        Ok(self.open.line.insert(line))
    }

    /// Takes the answer to the oldest request, and hands on the pull that is complete by it.
    async fn take_answer(&mut self, out: &mut VecDeque<Out>) -> Result<(), Broken> {
        let (Some(first), Some(line)) = (out.front(), &mut self.open.line) else { return Ok(()) };
        let shared = self.shared.clone();
        let limit = shared.client.pull_time_max();
        let (id, span) = (first.ask.id, first.ask.span.clone());
        let answer = async {
            let head = line.head().await?;
            line.check(&head, &first.pull, &span).await?;
            if head.told.is_some() {
                shared.lock().sight.told(self.line, head.told);
            }
            if let Some(lacks) = &head.lacks {
                shared.lock().totals.lacks.get_or_insert_with(|| lacks.clone());
            }
            if head.len < span.end - span.start {
                return Err(PullError::NotYet);
            }
            Ok(())
        };
        within(limit, answer).await?;
        let mut at = span.start as usize;
        while (at as u64) < span.end {
            let end = span.end as usize;
            let some = poll_fn(|cx| {
                let mut bytes = bytes_of(&first.buffer);
                match bytes.get_mut(at..end) {
                    Some(room) => line.poll_body(cx, room),
                    // Others were first: the bytes are with the caller.
                    None => line.poll_body(cx, &mut [0; WASTE_LEN][..(end - at).min(WASTE_LEN)]),
                }
            });
            let some = async {
                match some.await {
                    Ok(0) => Err(PullError::Lost("closed".to_owned())),
                    Ok(len) => Ok(len),
                    Err(error) => Err(PullError::Lost(error.to_string())),
                }
            };
            let len = within(limit, some).await?;
            at += len;
            if let Some(pulled) = shared.came(self.line, id, len) {
                self.results.send(pulled).await.map_err(|_| Broken::Over)?;
            }
        }
        out.pop_front();
        Ok(())
    }

    /// Notes a failed try, and pauses. False when nobody wants results any more.
    async fn fail(&mut self, id: u64, error: PullError) -> bool {
        let (failures, result) = self.shared.failed(id, error, self.failed_at);
        self.failed_at = Some(Instant::now());
        if let Some(result) = result {
            return self.results.send(result).await.is_ok();
        }
        sleep(self.pause(failures)).await;
        true
    }

    /// After the `failures`th failure in a row, from 1: doubled each time, and between half and all of it.
    fn pause(&self, failures: u32) -> Duration {
        let limits = &self.shared.limits;
        let doubled = 2u32.saturating_pow(failures - 1);
        let pause = limits.pause_first.saturating_mul(doubled).min(limits.pause_max);
        // A hasher of the standard library is seeded at random; no secret depends on it.
        let random = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        pause.mul_f64(0.5 + random / 2.0)
    }
}

/// Waits for `what`, but not for longer than `limit`.
async fn within<T>(
    limit: Duration,
    what: impl Future<Output = Result<T, PullError>>,
) -> Result<T, Broken> {
    tokio::pin!(what);
    // Most of the time it is there already: no timer then.
    let at_once = poll_fn(|cx| Poll::Ready(what.as_mut().poll(cx))).await;
    if let Poll::Ready(done) = at_once {
        return done.map_err(Broken::Error);
    }
    let done = timeout(limit, what).await;
    done.unwrap_or_else(|_| Err(silent(limit).into())).map_err(Broken::Error)
}
