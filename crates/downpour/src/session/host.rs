//! Who runs a session: somebody at a terminal, or a program that holds a handle.

use super::faults;
use super::signals::Requests;
use crate::cli::Fault;
use crate::descriptors;
use crate::progress::{Progress, Snapshot};
use crate::report::Report;
use crate::ticket::Ticket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// As much as the main thread has: the walk goes as deep as folders do.
const STACK_LEN: usize = 8 << 20;

/// What is at a disk still, for nobody, gets to end with once the session is over: the disk may not answer.
const DISK_TIME: Duration = Duration::from_secs(1);

/// Runs the session of a terminal on a runtime and a thread of its own. The system gives signals to the main thread as long
/// as that takes them, and one that a disk holds up takes none: so all that does is wait.
pub(super) fn beside_main<S>(session: impl FnOnce() -> S + Send) -> Result<Report, Fault>
where
    S: Future<Output = Result<Report, Fault>>,
{
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().map_err(faults::threads)?;
    let ended = thread::scope(|scope| {
        let thread = thread::Builder::new().name("downpour-session".to_owned());
        let run = || runtime.block_on(session());
        let running = thread.stack_size(STACK_LEN).spawn_scoped(scope, run);
        let ended = running.map_err(faults::threads)?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    runtime.shutdown_timeout(DISK_TIME);
    ended
}

/// Is shown how the session goes, and can end it.
pub(super) enum Host {
    /// Bars or lines on standard error; Ctrl-C ends, and so does SIGTERM: `kill`, `timeout`, a system that goes down.
    Terminal { progress: Progress, requests: Requests },
    /// The last snapshot; `stop` ends, and so does its sender's end.
    Program {
        seen: watch::Sender<Option<Snapshot>>,
        came: Arc<AtomicU64>,
        stop: watch::Receiver<bool>,
        ticket: Option<oneshot::Sender<Ticket>>,
        given_up: mpsc::UnboundedReceiver<usize>,
    },
}

impl Host {
    /// The terminal of this process. Called on a runtime.
    pub(super) fn terminal(quiet: bool) -> Result<Self, Fault> {
        descriptors::outlive_large_files();
        Ok(Self::Terminal { progress: Progress::new(quiet), requests: Requests::begin()? })
    }

    /// From here on the session answers a signal, by [`Self::stopped`]; called again, one more. Any other signal ends the
    /// process at once.
    pub(super) fn heed(&self) {
        if let Self::Terminal { requests, .. } = self {
            requests.heed();
        }
    }

    pub(super) fn show(&mut self, snapshot: &Snapshot) {
        match self {
            Self::Terminal { progress, .. } => progress.show(snapshot),
            Self::Program { seen, .. } => {
                seen.send_replace(Some(snapshot.clone()));
            }
        }
    }

    /// So many bytes came by pulls, also of blocks that are not whole.
    pub(super) fn came(&self, bytes: u64) {
        if let Self::Program { came, .. } = self {
            came.store(bytes, Ordering::Relaxed);
        }
    }

    /// For people.
    pub(super) fn say(&self, text: &str) {
        match self {
            Self::Terminal { progress, .. } => progress.say(text),
            Self::Program { .. } => tracing::info!("{text}"),
        }
    }

    /// For people, also those who want no progress.
    pub(super) fn warn(&self, text: &str) {
        match self {
            Self::Terminal { progress, .. } => progress.warn(text),
            Self::Program { .. } => self.say(text),
        }
    }

    /// Items that are not to be sent any more, by their places in the list.
    pub(super) fn given_up(&mut self) -> Vec<usize> {
        let mut items = Vec::new();
        if let Self::Program { given_up, .. } = self {
            while let Ok(item) = given_up.try_recv() {
                items.push(item);
            }
        }
        items
    }

    /// Nothing more is shown.
    pub(super) fn finish(&mut self) {
        if let Self::Terminal { progress, .. } = self {
            progress.finish();
        }
    }

    /// The session shall end. May be dropped and asked again: nothing is missed.
    pub(super) async fn stopped(&mut self) {
        match self {
            Self::Terminal { requests, .. } => requests.next().await,
            // Who dropped the handle does not want it any more.
            Self::Program { stop, .. } => drop(stop.wait_for(|stop| *stop).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::beside_main;
    use crate::cli::Fault;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_session_that_is_over_does_not_wait_for_a_disk_that_does_not_answer() {
        let (tell, told) = channel();
        let (_disk, answer) = channel::<()>();
        thread::spawn(move || {
            let session = async {
                tokio::task::spawn_blocking(move || answer.recv());
                Err(Fault::usage("over", ""))
            };
            let ended = beside_main(|| session);
            tell.send(ended.unwrap_err().what).unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).expect("it ends"), "over");
    }
}
