//! What the user of a terminal asks by SIGINT and SIGTERM, counted.
//!
//! 1. Once somebody listens to them neither ends the process by itself any more. But a session listens only where it
//!    waits: not while a tree is walked, nor while a thread is joined that writes to a pipe which nobody reads.
//! 2. So a thread counts them that waits for nothing else, until the process is over.
//! 3. As many as a session heeds it answers itself: it tells the other side, and ends. One more ends the process at once,
//!    with the status that shells give to a program that the signal ended.

use super::faults;
use crate::cli::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Signals this close together are one: `timeout` sends its own to the program and to its group, a terminal sends Ctrl-C
/// to a program and to the one that passes it on.
const ONE: Duration = Duration::from_millis(200);

/// The requests to end.
pub(super) struct Requests {
    count: watch::Receiver<u32>,
    /// As many are answered by the session.
    heeded: Arc<AtomicU32>,
}

impl Requests {
    /// Counts them from now on. None is heeded yet.
    pub(super) fn begin() -> Result<Self, Fault> {
        let runtime = Builder::new_current_thread().enable_io().build().map_err(faults::threads)?;
        let of = |kind| signal(kind).map_err(faults::threads);
        let signals = {
            let _inside = runtime.enter();
            [of(SignalKind::interrupt())?, of(SignalKind::terminate())?]
        };
        let (tell, count) = watch::channel(0);
        let heeded: Arc<AtomicU32> = Arc::default();
        let counting = count_up(signals, tell, Arc::clone(&heeded));
        let thread = thread::Builder::new().name("downpour-signals".to_owned());
        thread.spawn(move || runtime.block_on(counting)).map_err(faults::threads)?;
        Ok(Self { count, heeded })
    }

    /// One more is answered by the session.
    pub(super) fn heed(&self) {
        self.heeded.fetch_add(1, Ordering::Relaxed);
    }

    /// The next one. May be dropped and asked again: nothing is missed.
    pub(super) async fn next(&mut self) {
        // Its sender lives as long as the process does.
        let _ = self.count.changed().await;
    }
}

async fn count_up(
    [mut interrupts, mut terminations]: [Signal; 2],
    tell: watch::Sender<u32>,
    heeded: Arc<AtomicU32>,
) {
    let mut last: Option<Instant> = None;
    loop {
        let kind = tokio::select! {
            Some(()) = interrupts.recv() => SignalKind::interrupt(),
            Some(()) = terminations.recv() => SignalKind::terminate(),
            else => return,
        };
        if last.is_some_and(|last| last.elapsed() < ONE) {
            continue;
        }
        last = Some(Instant::now());
        tell.send_modify(|count| *count += 1);
        if *tell.borrow() > heeded.load(Ordering::Relaxed) {
            eprintln!("downpour: ended at once by a signal");
            std::process::exit(128 + kind.as_raw_value());
        }
    }
}
