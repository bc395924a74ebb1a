//! The drivers: a machine of `downpour_proto`, its sockets, its clock and its workers.
//!
//! Each driver is one thread that owns the machine and the sockets and keeps time. Reading, coding, hashing
//! and writing are done by worker threads, so that a slow disk or decode never stalls a timer. The owner
//! (the product's session) talks to the driver by a handle; the driver talks back by a callback that must
//! not block.
//!
//! ```text
//!  owner --commands--> driver thread --jobs--> workers
//!        <--callback--               <--done--
//!        <--snapshot (shared)
//! ```
//!
//! A thread that panics ends the session: its driver stops, and says so by the callback ([`Broken`]).
//!
//! Deliberately absent: HTTPS. Pulls are ordered by the callback and their bytes come back as commands.

mod assembly;
mod batch;
mod gather;
mod jobs;
mod loaded;
mod neighbours;
mod outlet;
mod receive;
mod send;
mod sent;
mod workers;

use crate::UdpError;
use std::any::Any;
use std::fmt;
use std::io;

pub use neighbours::MEETING_PORT;
pub use receive::{ReceiveEvent, ReceiveHandle, ReceiveSetup, ReceiveSnapshot};
pub use send::{SendHandle, SendSetup, StreamOut};
pub use sent::{SendEvent, SendSnapshot};

/// A thread of the session has panicked, and the driver has ended: a bug, which must not leave anybody
/// waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which thread, and what it said.
    pub what: String,
}

impl Broken {
    fn new(thread: &str, panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self { what: format!("thread {thread} has failed: {}", said.unwrap_or("no reason given")) }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "internal error, {}", self.what)
    }
}

/// A driver could not be started.
#[derive(Debug)]
pub enum SessionError {
    /// A socket could not be made ready.
    Udp(UdpError),
    /// The system gives no more threads or descriptors.
    Threads(io::Error),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(error) => error.fmt(f),
            Self::Threads(error) => write!(f, "cannot start the session's threads: {error}"),
        }
    }
}

impl std::error::Error for SessionError {}

impl From<UdpError> for SessionError {
    fn from(error: UdpError) -> Self {
        Self::Udp(error)
    }
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        Self::Threads(error)
    }
}
