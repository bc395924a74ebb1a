//! The wire: datagram header and messages (`docs/protocol.md#WIRE`).
//!
//! Two steps, after smoltcp: a length check once, then a representation in which illegal states cannot be
//! written. `parse(emit(x)) == x` holds for each. All integers are big-endian. Nothing here panics on
//! any input: each parser has a fuzz target.
//!
//! Sealing is the transport's: what is parsed here as a body was authentic, which does not make it true.

mod feedback;
mod header;
mod poll;
mod presence;
pub(crate) mod reader;
mod short;

pub use feedback::{FEEDBACK_NEEDS_MAX, Feedback, Need};
pub use header::{HEADER_LEN, Header, Kind, TAG_LEN};
pub use poll::{Advert, OpenBlock, POLL_BLOCKS_MAX, Poll};
pub(crate) use poll::{ENTRY_LEN_MAX, fitting, list_len, list_len_max};
pub use presence::Presence;

pub use short::{Near, SHORT_LEN, Short, nearest};

use core::fmt;

/// Why a datagram is not one of ours, and is dropped (`docs/protocol.md#WIRE-8`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Shorter than its own fields say.
    Truncated,
    /// Longer than its own fields say.
    Trailing,
    /// A type that this version does not know.
    UnknownType,
    /// A field out of its range.
    BadField,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "shorter than its fields say",
            Self::Trailing => "longer than its fields say",
            Self::UnknownType => "unknown type",
            Self::BadField => "field out of range",
        })
    }
}

impl core::error::Error for ParseError {}
