//! Drivers of the papers' profiles ([`downpour_proto::profile`]): UDP sockets, a TCP connection to each receiver where the
//! profile has them, one thread.
//!
//! Deliberately absent: sealing, TLS, tickets. The papers' protocols have none, and here they are for measurements.

mod connection;
mod receive;
mod send;

pub use receive::{Hearing, ReceiveEvent, ReceiveOutcome, ReceiveSetup, receive};
pub use send::{SendEvent, SendHandle, SendOutcome, SendSetup, Sending, StartWhen, prepare};

use downpour_proto::profile::Product;
use std::fmt;
use std::io;

/// What a sender's products are made of.
pub trait ProductSource: Send {
    /// Fills `bytes` from this place of a product.
    fn read(&mut self, product: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}

/// Where a receiver's products go. Numbers, sizes and metadata are what a stranger sent.
pub trait ProductSink: Send {
    /// A product is expected.
    fn open(
        &mut self,
        number: u32,
        size: u64,
        metadata: &[u8],
        offered_unix_ns: u64,
    ) -> io::Result<()>;

    /// Bytes of an open product; each comes once.
    fn write(&mut self, number: u32, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// All of it was written. True: nothing more is wanted.
    fn complete(&mut self, number: u32, product: &Product) -> io::Result<bool>;

    /// It will never be complete. True: nothing more is wanted.
    fn reject(&mut self, number: u32) -> io::Result<bool>;

    /// The sender has closed its connection. True: that is a feed's end, and nothing that was opened is lacking.
    fn closed(&mut self) -> bool {
        false
    }
}

/// Why a session ended before its time.
#[derive(Debug)]
pub enum ProfileError {
    /// A socket failed.
    Network(io::Error),
    /// Bytes could not be read or written.
    Data(io::Error),
    /// The other side closed its connection before everything was there.
    Closed,
    /// Nothing was heard for too long.
    Silent,
    /// The other side does not keep to the profile.
    Foreign(String),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(error) => write!(f, "the network failed: {error}"),
            Self::Data(error) => write!(f, "the data: {error}"),
            Self::Closed => f.write_str("the sender closed the connection before all was here"),
            Self::Silent => f.write_str("nothing was heard for too long"),
            Self::Foreign(why) => write!(f, "the other side speaks something else: {why}"),
        }
    }
}

impl std::error::Error for ProfileError {}
