//! What a part of the site that runs is to the rest: a [`Service`].
//!
//! The supervisor runs it, starts it again when it fails, and shows its [`Status`]. A service is one tree of tasks below
//! one future: when that ends, or is dropped, nothing of it is left. What blocks a thread has a [`Stop`] whose other half the future
//! holds: it hears when nobody waits for it any more, whatever comes then.

use super::Site;
use downpour_catalog::{ErrorClass, OpenError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinError;
use utoipa::ToSchema;

/// A service at work.
pub type Running = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send>>;

/// A part of the site that runs.
pub trait Service: Send + Sync + 'static {
    /// Its name in commands, metrics and logs.
    fn name(&self) -> &'static str;

    /// Works until `stop` asks it to end, which may be from the start: after a failure, to end what that left under way. An
    /// error is told, and the service is started again after a while. May be called again after it has ended, never twice at
    /// a time.
    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running;

    /// What it is doing, asked at any time, also while it does not run.
    fn status(&self) -> Status;

    /// Whether people may stop it. They may not shut the door through which they came.
    fn can_stop(&self) -> bool {
        true
    }
}

/// What a service says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// One line for people; may be empty.
    pub line: String,
    /// Figures by name, such as `files_open` or `bytes_total`; those that only grow end in `_total`. They are metrics, too.
    pub figures: BTreeMap<String, f64>,
}

impl Status {
    /// A line without figures.
    pub fn line(line: impl Into<String>) -> Self {
        Self { line: line.into(), figures: BTreeMap::new() }
    }

    /// With one figure more.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }
}

/// Why a service, or a step of it, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind of error.
    pub class: ErrorClass,
    /// What happened, with the name of the thing that it happened to.
    pub what: String,
}

impl Fault {
    /// A fault of this class.
    pub fn new(class: ErrorClass, what: impl Into<String>) -> Self {
        Self { class, what: what.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.class)
    }
}

impl std::error::Error for Fault {}

impl From<downpour_catalog::Error> for Fault {
    fn from(error: downpour_catalog::Error) -> Self {
        let class = match error {
            downpour_catalog::Error::Unreachable(_) => ErrorClass::CatalogUnreachable,
            downpour_catalog::Error::Full(_) => ErrorClass::OutOfResources,
            _ => ErrorClass::Internal,
        };
        Self::new(class, error.to_string())
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        Self::new(ErrorClass::CatalogUnreachable, error.to_string())
    }
}

/// What ran where that may block, or as a task of its own, panicked.
impl From<JoinError> for Fault {
    fn from(error: JoinError) -> Self {
        Self::new(ErrorClass::Internal, error.to_string())
    }
}

/// Does what may block on a thread for that. Who is no longer waited for ends his work all the same.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await?
}

/// What is wanted of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Work.
    Run,
    /// Finish what is under way, begin nothing, end.
    Drain,
    /// End now.
    Stop,
}

/// Tells a service when to end.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<Wish>);

impl Stop {
    /// The handle of whoever asks, and what the service is given.
    pub fn new() -> (watch::Sender<Wish>, Self) {
        let (wish, seen) = watch::channel(Wish::Run);
        (wish, Self(seen))
    }

    pub(super) fn of(seen: watch::Receiver<Wish>) -> Self {
        Self(seen)
    }

    /// What is wanted now: when nobody is left to ask, the end.
    pub fn wish(&self) -> Wish {
        if self.0.has_changed().is_err() { Wish::Stop } else { *self.0.borrow() }
    }

    /// Ready when nothing more is to be begun: at drain and at stop.
    pub async fn asked(&self) {
        self.reached(Wish::Drain).await;
    }

    /// Ready when it is to end now.
    pub async fn now(&self) {
        self.reached(Wish::Stop).await;
    }

    /// Ready when it is to work, maybe again.
    pub async fn lifted(&self) {
        if self.0.clone().wait_for(|wish| *wish == Wish::Run).await.is_err() {
            std::future::pending().await
        }
    }

    async fn reached(&self, at_least: Wish) {
        // When nobody is left to ask, it is time to end.
        let _ = self.0.clone().wait_for(|wish| *wish >= at_least).await;
    }
}
