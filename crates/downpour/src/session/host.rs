//! Who runs a session: somebody at a terminal, or a program that holds a handle.

use super::signals::Requests;
use crate::cli::Fault;
use crate::descriptors;
use crate::progress::{Progress, Snapshot};
use crate::ticket::Ticket;
use tokio::sync::{mpsc, oneshot, watch};

/// Is shown how the session goes, and can end it.
pub(super) enum Host {
    /// Bars or lines on standard error; Ctrl-C ends, and so does SIGTERM: `kill`, `timeout`, a system that goes down.
    Terminal { progress: Progress, requests: Requests },
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
