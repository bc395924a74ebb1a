//! What the control endpoint answers when it does not do what was asked: a stable code for programs and
//! a sentence for people (`docs/protocol.md#CTL-15`). The HTTP status follows from the code.

use super::api::clip;
use hyper::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Why a request was refused. The text forms are stable: programs match them, old ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is not understood, or a value in it is out of range.
    BadRequest,
    /// No token, or not this session's.
    WrongToken,
    /// The token is right, but its time is over.
    TicketExpired,
    /// The session does not take this node.
    NotAllowed,
    /// The request names a receiver that has not joined, or that another node is.
    NotMember,
    /// The request names another session: the sender was restarted. Join again.
    UnknownSession,
    /// There is no such path.
    NotFound,
    /// There is such a path, but not with this method.
    WrongMethod,
    /// The body did not come in time.
    Timeout,
    /// The two sides speak different versions of the protocol.
    WrongVersion,
    /// The session has ended.
    SessionOver,
    /// The body is larger than the limit.
    TooLarge,
    /// Nothing of the byte range is there, or not yet.
    RangeNotSatisfiable,
    /// The receipt is not signed by the node that sends it, or is about another session.
    BadReceipt,
    /// Bytes cannot be read any more, or have changed since they were hashed.
    SourceFailed,
    /// The session is full, or busy. Try again later.
    Busy,
    /// A bug, or the sender's machine failed.
    Internal,
    /// A code that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The HTTP status that goes with it.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::WrongToken => StatusCode::UNAUTHORIZED,
            Self::TicketExpired | Self::NotAllowed | Self::NotMember => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownSession | Self::WrongVersion => StatusCode::CONFLICT,
            Self::SessionOver => StatusCode::GONE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::BadReceipt => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::SourceFailed | Self::Internal | Self::Unknown => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// Whether the same request may succeed later without anybody changing anything.
    pub const fn is_passing(self) -> bool {
        match self {
            Self::Timeout | Self::RangeNotSatisfiable | Self::Busy => true,
            Self::BadRequest
            | Self::WrongToken
            | Self::TicketExpired
            | Self::NotAllowed
            | Self::NotMember
            | Self::UnknownSession
            | Self::NotFound
            | Self::WrongMethod
            | Self::WrongVersion
            | Self::SessionOver
            | Self::TooLarge
            | Self::BadReceipt
            | Self::SourceFailed
            | Self::Internal
            | Self::Unknown => false,
        }
    }
}

/// The JSON body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what is wrong and, where there is something, what to do.
    #[serde(deserialize_with = "harmless")]
    pub message: String,
}

impl ApiError {
    /// An answer with `code`.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// What another machine says: cut short, and without what a terminal obeys.
fn harmless<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    Ok(clip(&text).chars().filter(|c| !c.is_control() && !turns_text(*c)).collect())
}

/// Whether it turns the direction of text, so that people read another one.
#[must_use]
pub const fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::{ApiError, ErrorCode};
    use crate::control::api::REASON_LEN_MAX;

    #[test]
    fn codes_keep_their_text_and_new_ones_do_not_break_old_programs() {
        let error = ApiError::new(ErrorCode::RangeNotSatisfiable, "m");
        let text = r#"{"code":"range_not_satisfiable","message":"m"}"#;
        assert_eq!(serde_json::to_string(&error).unwrap(), text);
        let newer = r#"{"code":"on_fire","message":"m","since":1}"#;
        let error: ApiError = serde_json::from_str(newer).unwrap();
        assert_eq!(error.code, ErrorCode::Unknown);
    }

    #[test]
    fn what_a_sender_says_cannot_speak_to_a_terminal() {
        let said = "no\u{1b}]0;title\u{7}\n\u{9b}2J \u{202e}w\u{f6}rter".to_owned();
        let error = ApiError::new(ErrorCode::NotAllowed, said + &"x".repeat(REASON_LEN_MAX));
        let read: ApiError = serde_json::from_slice(&serde_json::to_vec(&error).unwrap()).unwrap();
        assert!(read.message.starts_with("no]0;title2J w\u{f6}rterxxx"), "{:?}", read.message);
        assert!(read.message.len() <= REASON_LEN_MAX);
    }
}
