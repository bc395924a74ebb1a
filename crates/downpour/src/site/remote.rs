//! Another site, as we speak to it: HTTPS to its endpoint, its key pinned, ours shown.
//!
//! A failure is a [`RemoteError`], and its error class depends on what the other site was to us:
//! the same dead machine is an unreachable source or an unreachable destination.

use super::access::{Access, BytesLine};
use super::config::RemoteSection;
use crate::api::{Hello, Problem};
use downpour_catalog::ErrorClass;
use downpour_transport::control::{Answer, AttemptError, CallError, ConnectError};
use downpour_transport::identity::{Identity, PublicKey};
use downpour_transport::stream::Tuning;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Another site.
pub struct Remote {
    /// What is configured of it.
    pub section: RemoteSection,
    access: Option<Access>,
    /// It has another name, and the log says so.
    misnamed: AtomicBool,
}

/// What the other site was to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Files come from there.
    Source,
    /// Files go there.
    Destination,
}

/// What was asked was not done.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteError {
    /// No connection to it.
    Unreachable(String),
    /// Whoever answers is not that site, or it does not trust us.
    NotTrusted(String),
    /// It did not answer in time.
    TimedOut(String),
    /// The connection broke, or the answer made no sense.
    Lost(String),
    /// It refused.
    Refused(Box<Problem>),
}

impl Remote {
    /// Nothing is connected yet.
    pub fn new(section: RemoteSection, identity: &Arc<Identity>) -> Self {
        let open =
            |address| Access::open(address, section.key, identity.clone(), None, section.limits());
        let access = section.address.as_ref().map(open);
        Self { access, section, misnamed: AtomicBool::new(false) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.section.name
    }

    /// Its key.
    pub fn key(&self) -> PublicKey {
        self.section.key
    }

    /// Asks for something.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RemoteError> {
        self.access()?.get(path).await
    }

    /// What it says of itself. One that has another name than in our configuration, by which files and rules know it, is not the one
    /// that is meant.
    pub async fn hello(&self) -> Result<Hello, RemoteError> {
        let hello: Hello = self.get("/v1/site/hello").await?;
        if hello.site == self.name() {
            return Ok(hello);
        }
        let (name, called) = (self.name(), &hello.site);
        let what =
            format!("[[remote]] {name} calls itself {called}: give it that name in site.toml");
        if !self.misnamed.swap(true, Ordering::Relaxed) {
            tracing::warn!("{what}");
        }
        Err(RemoteError::NotTrusted(what))
    }

    /// Sends something and gives what it is answered.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RemoteError> {
        self.access()?.post(path, body).await
    }

    /// A connection that carries bytes from there, with its socket set so.
    pub async fn bulk(&self, tuning: &Tuning) -> Result<BytesLine, RemoteError> {
        self.access()?.bulk(tuning).await
    }

    /// Where it was reached, and the round trip of that handshake.
    pub fn known(&self) -> Option<(SocketAddr, Duration)> {
        self.access.as_ref()?.known()
    }

    /// Asks for something that is read as it comes; no is an error.
    pub(crate) async fn open(&self, path: &str) -> Result<Answer<'_>, RemoteError> {
        self.access()?.stream(path).await
    }

    fn access(&self) -> Result<&Access, RemoteError> {
        let none = || format!("[[remote]] {} has no address: it connects to us", self.name());
        self.access.as_ref().ok_or_else(|| RemoteError::Unreachable(none()))
    }
}

impl RemoteError {
    /// Whether it may be answered by and by with nobody doing anything: who is asked is away, or starts again.
    pub fn is_passing(&self) -> bool {
        use ErrorClass as E;
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) | Self::Lost(_) => true,
            Self::NotTrusted(_) => false,
            Self::Refused(problem) => matches!(
                problem.class(),
                Some(
                    E::SourceUnreachable | E::TimedOut | E::ConnectionLost | E::CatalogUnreachable
                )
            ),
        }
    }

    /// Its error class, by what the other site was to us.
    pub fn class(&self, side: Side) -> ErrorClass {
        match (self, side) {
            (Self::Refused(problem), _) if problem.class.is_some() => {
                problem.class().unwrap_or(ErrorClass::DestinationRefused)
            }
            (Self::Unreachable(_), Side::Source) => ErrorClass::SourceUnreachable,
            (Self::Unreachable(_), Side::Destination) => ErrorClass::DestinationUnreachable,
            (Self::Refused(_), Side::Source) => ErrorClass::SourceRefused,
            (Self::Refused(_), Side::Destination) => ErrorClass::DestinationRefused,
            (Self::NotTrusted(_), _) => ErrorClass::NotTrusted,
            (Self::TimedOut(_), _) => ErrorClass::TimedOut,
            (Self::Lost(_), _) => ErrorClass::ConnectionLost,
        }
    }
}

impl std::fmt::Display for RemoteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(what)
            | Self::NotTrusted(what)
            | Self::TimedOut(what)
            | Self::Lost(what) => f.write_str(what),
            Self::Refused(problem) => f.write_str(&problem.what),
        }
    }
}

impl std::error::Error for RemoteError {}

impl From<CallError> for RemoteError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable(error) => unreachable(&error),
            CallError::TimedOut(_) => Self::TimedOut(error.to_string()),
            CallError::Lost(_) | CallError::TooLong(_) | CallError::NoRequest(_) => {
                Self::Lost(error.to_string())
            }
        }
    }
}

fn unreachable(error: &ConnectError) -> RemoteError {
    if let Some(wrong) = error.wrong_key() {
        let (seen, expected) = (wrong.seen, wrong.expected);
        let what = format!("whoever answers has the key {seen}, not {expected}");
        return RemoteError::NotTrusted(what);
    }
    let tried: Vec<_> = error.tried.iter().map(|(at, error)| format!("{at}: {error}")).collect();
    let what = tried.join("; ");
    if error.tried.iter().any(|(_, error)| matches!(error, AttemptError::Tls(_))) {
        return RemoteError::NotTrusted(what);
    }
    RemoteError::Unreachable(what)
}
