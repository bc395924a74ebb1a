//! Who runs a session: somebody at a terminal, or a program that holds a handle.

use super::faults;
use crate::cli::Fault;
use crate::descriptors;
use crate::progress::{Progress, Snapshot};
use crate::ticket::Ticket;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

/// Is shown how the session goes, and can end it.
pub(super) enum Host {
    /// Bars or lines on standard error; Ctrl-C ends, and so does SIGTERM: `kill`, `timeout`, a system that goes down.
    Terminal { progress: Progress, interrupts: Signal, terminations: Signal },
    /// The last snapshot; `stop` ends, and so does its sender's end.
    Program {
        seen: watch::Sender<Option<Snapshot>>,
        stop: watch::Receiver<bool>,
        ticket: Option<oneshot::Sender<Ticket>>,
        given_up: mpsc::UnboundedReceiver<usize>,
    },
}

impl Host {
    /// The terminal of this process. Called on a runtime.
    pub(super) fn terminal(quiet: bool) -> Result<Self, Fault> {
        descriptors::outlive_large_files();
        let of = |kind| signal(kind).map_err(faults::threads);
        let (interrupts, terminations) =
            (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
        Ok(Self::Terminal { progress: Progress::new(quiet), interrupts, terminations })
    }

    pub(super) fn show(&mut self, snapshot: &Snapshot) {
        match self {
            Self::Terminal { progress, .. } => progress.show(snapshot),
            Self::Program { seen, .. } => {
                seen.send_replace(Some(snapshot.clone()));
            }
        }
    }

    /// For people.
    pub(super) fn say(&self, text: &str) {
        match self {
            Self::Terminal { progress, .. } => progress.say(text),
            Self::Program { .. } => tracing::info!("{text}"),
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
            Self::Terminal { interrupts, terminations, .. } => {
                tokio::select! {
                    _ = interrupts.recv() => {}
                    _ = terminations.recv() => {}
                }
            }
            // Who dropped the handle does not want it any more.
            Self::Program { stop, .. } => drop(stop.wait_for(|stop| *stop).await),
        }
    }
}
