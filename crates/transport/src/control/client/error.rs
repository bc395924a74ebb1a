//! What can go wrong for a receiver, one enum for each operation, worded for the person who has to act.

use crate::control::error::{ApiError, ErrorCode};
use crate::identity::WrongServerKey;
use std::fmt;
use std::io;
use std::time::Duration;

/// No connection to the sender, by any of the ticket's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError {
    /// Each address that was tried, and what came of it.
    pub tried: Vec<(String, AttemptError)>,
}

/// One address that did not lead to the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttemptError {
    /// The host name is not known, or the text is no address.
    #[error("cannot resolve it: {0}")]
    Resolve(String),
    /// Nobody listens there, or there is no way.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// No answer in time.
    #[error("no answer in time; is a firewall in between?")]
    TimedOut,
    /// Somebody else is there.
    #[error(transparent)]
    WrongKey(#[from] WrongServerKey),
    /// The connection broke in the handshake, which says nothing of who is there.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The handshake failed otherwise.
    #[error("TLS failed: {0}")]
    Tls(String),
}

impl AttemptError {
    /// Whether the address, or the way to it, has said no: nothing was lost.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Resolve(_) | Self::Connect(_) | Self::WrongKey(_))
    }
}

impl ConnectError {
    /// A wrong key that was seen, if all addresses led to one: trying again will not help, the ticket is for another
    /// sender or somebody is in between. An address may be another machine's here, while the sender's are silent.
    pub fn wrong_key(&self) -> Option<WrongServerKey> {
        let wrong = self.tried.iter().map(|(_, error)| match error {
            AttemptError::WrongKey(wrong) => Some(*wrong),
            _ => None,
        });
        wrong.reduce(|one, other| other.and(one)).flatten()
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot reach the sender")?;
        for (index, (addr, error)) in self.tried.iter().enumerate() {
            let before = if index == 0 { ": " } else { "; " };
            write!(f, "{before}{addr}: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConnectError {}

/// The receiver was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The token is another session's.
    #[error("the sender does not know this ticket; use the one that it printed last")]
    WrongToken,
    /// The ticket's time is over.
    #[error("{0}")]
    Expired(String),
    /// The sender has a list of nodes, and this one is not on it.
    #[error("{0}")]
    NotAllowed(String),
    /// The two sides do not speak the same version.
    #[error("{0}")]
    WrongVersion(String),
    /// The session has ended.
    #[error("the session is over: {0}")]
    Over(String),
    /// Refused for another reason.
    #[error("the sender refuses: {0}")]
    Refused(ApiError),
    /// No connection.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// The connection broke, or the answer made no sense.
    #[error("the connection to the sender broke: {0}")]
    Lost(String),
}

impl JoinError {
    /// Whether to try again: connecting anew, until the user's time for joining is over.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Unreachable(error) => error.wrong_key().is_none(),
            Self::Refused(error) => error.code.is_passing(),
            Self::WrongToken
            | Self::Expired(_)
            | Self::NotAllowed(_)
            | Self::WrongVersion(_)
            | Self::Over(_) => false,
        }
    }
}

/// A message to the sender did not arrive, or was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The sender was restarted, or does not know this receiver any more.
    #[error("the sender does not know this receiver any more: join again")]
    Rejoin,
    /// Refused for another reason.
    #[error("the sender refuses: {0}")]
    Refused(ApiError),
    /// No connection.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// The connection broke, or the answer made no sense.
    #[error("the connection to the sender broke: {0}")]
    Lost(String),
}

impl RequestError {
    /// Whether sending the same again may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Unreachable(error) => error.wrong_key().is_none(),
            Self::Refused(error) => error.code.is_passing(),
            Self::Rejoin => false,
        }
    }
}

/// The stream of events has ended: the sender is gone, or the way to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventsEnd {
    /// The sender ended it in order.
    #[error("the sender has closed the session")]
    Closed,
    /// Nothing was heard for this long, not even a ping.
    #[error("the sender has been silent for {0:.1?}")]
    Silent(Duration),
    /// The connection broke: the sender died, or the way to it.
    #[error("the connection to the sender broke: {0}")]
    Lost(String),
}

/// Bytes could not be pulled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The sender was restarted, or does not know this receiver any more.
    #[error("the sender does not know this receiver any more: join again")]
    Rejoin,
    /// These bytes are not there yet.
    #[error("the sender does not have these bytes yet")]
    NotYet,
    /// The sender cannot read them any more, or they have changed.
    #[error("the sender cannot read its files: {0}")]
    SourceFailed(String),
    /// Refused for another reason.
    #[error("the sender refuses: {0}")]
    Refused(ApiError),
    /// No connection.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// The connection broke.
    #[error("the connection to the sender broke: {0}")]
    Lost(String),
    /// The answer made no sense.
    #[error("the sender's answer makes no sense: {0}")]
    BadReply(String),
}

impl PullError {
    /// Whether to try again after a while.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Lost(_) | Self::NotYet => true,
            Self::Unreachable(error) => error.wrong_key().is_none(),
            Self::Refused(error) => error.code.is_passing(),
            Self::Rejoin | Self::SourceFailed(_) | Self::BadReply(_) => false,
        }
    }
}

/// What a request can come to, before the operation gives it its own meaning.
#[derive(Debug)]
pub(crate) enum Fault {
    Unreachable(ConnectError),
    Refused(ApiError),
    Lost(String),
    BadReply(String),
}

impl From<ConnectError> for Fault {
    fn from(error: ConnectError) -> Self {
        Self::Unreachable(error)
    }
}

impl From<hyper::Error> for Fault {
    fn from(error: hyper::Error) -> Self {
        Self::Lost(innermost(&error))
    }
}

impl From<Fault> for JoinError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(error) => Self::Unreachable(error),
            Fault::Lost(reason) | Fault::BadReply(reason) => Self::Lost(reason),
            Fault::Refused(error) => match error.code {
                ErrorCode::WrongToken => Self::WrongToken,
                ErrorCode::TicketExpired => Self::Expired(error.message),
                ErrorCode::NotAllowed => Self::NotAllowed(error.message),
                ErrorCode::WrongVersion => Self::WrongVersion(error.message),
                ErrorCode::SessionOver => Self::Over(error.message),
                _ => Self::Refused(error),
            },
        }
    }
}

impl From<Fault> for RequestError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(error) => Self::Unreachable(error),
            Fault::Lost(reason) | Fault::BadReply(reason) => Self::Lost(reason),
            Fault::Refused(error) => match error.code {
                ErrorCode::UnknownSession | ErrorCode::NotMember | ErrorCode::WrongToken => {
                    Self::Rejoin
                }
                _ => Self::Refused(error),
            },
        }
    }
}

impl From<Fault> for PullError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(error) => Self::Unreachable(error),
            Fault::Lost(reason) => Self::Lost(reason),
            Fault::BadReply(reason) => Self::BadReply(reason),
            Fault::Refused(error) => match error.code {
                ErrorCode::UnknownSession | ErrorCode::NotMember | ErrorCode::WrongToken => {
                    Self::Rejoin
                }
                ErrorCode::RangeNotSatisfiable => Self::NotYet,
                ErrorCode::SourceFailed => Self::SourceFailed(error.message),
                _ => Self::Refused(error),
            },
        }
    }
}

/// The last cause, which says more than the ones around it.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    match error.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => "closed".to_owned(),
        _ => error.to_string(),
    }
}
