//! What senders and receivers of the papers' profiles can say, whatever it looks like on the wire.
//!
//! A [`Wire`] says each of these its own way, or not at all. Messages go by datagram (the sender's stream, status
//! packets) or by a reliable connection between one receiver and the sender (all others).

use crate::wire::ParseError;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;

/// Longest metadata of a product: what fits the first packet of an FMTP product.
pub const METADATA_MAX: usize = 1430;

/// Most ranges in one request.
pub const REQUEST_RANGES_MAX: usize = 1024;

/// Longest message on a connection.
pub const STREAM_MESSAGE_MAX: usize = 16_384;

/// How one message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By datagram.
    Datagram,
    /// By the connection between one receiver and the sender.
    Stream,
}

/// How a sender reaches its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One packet to the group.
    Multicast,
    /// One packet to everybody on the network.
    Broadcast,
    /// A packet to each receiver.
    Unicast,
}

/// A product begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Its number.
    pub product: u32,
    /// Its bytes.
    pub size: u64,
    /// When it was offered, nanoseconds since 1970 by the sender's clock.
    pub offered_unix_ns: u64,
    /// What it is; a name, here.
    pub metadata: Vec<u8>,
    /// It was asked for.
    pub repair: bool,
}

/// What is said of a segment, before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Which product.
    pub product: u32,
    /// Which segment, from 0.
    pub segment: u32,
    /// Counts packets as they leave, where the wire does.
    pub packet: u32,
    /// It was asked for.
    pub repair: bool,
    /// Bytes of the product, where the wire says so in each packet.
    pub size: Option<u64>,
    /// How many receivers the sender believes it has.
    pub clients: u32,
}

/// What a receiver of `bmtp` reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Which product.
    pub product: u32,
    /// Packets per second that arrive.
    pub rate: f64,
    /// Packets missed in the interval that was measured.
    pub missing: u32,
    /// Packets got in it.
    pub received: u32,
    /// Segments wanted again.
    pub naks: Vec<u32>,
}

/// What a newcomer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The product that is published.
    pub begin: Begin,
    /// How it is sent.
    pub mode: Mode,
    /// Where to; `None` in unicast mode, where each receiver says.
    pub group: Option<SocketAddr>,
}

/// Anything that is said.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// To a newcomer.
    Welcome(Welcome),
    /// To all: a product begins.
    Begin(Begin),
    /// To all or one: a segment.
    Data(Data),
    /// To all or one: the whole product has been sent.
    End {
        /// Which.
        product: u32,
        /// It was asked for, or the product is about to be given up.
        repair: bool,
    },
    /// To one: the product asked for is not there any more, or too much waits for who asks.
    Rejected {
        /// Which.
        product: u32,
    },
    /// To the sender: takes part from now on.
    Join {
        /// Where its datagrams go in unicast mode.
        port: u16,
    },
    /// To the sender: how it goes.
    Status(Status),
    /// To the sender: segments wanted again.
    Request {
        /// Of which product.
        product: u32,
        /// Ascending, disjoint, not empty.
        segments: Vec<Range<u32>>,
    },
    /// To the sender: the product's begin was missed.
    BeginRequest {
        /// Which.
        product: u32,
    },
    /// To the sender: its end was missed.
    EndRequest {
        /// Which.
        product: u32,
    },
    /// To the sender: the whole product is here.
    Complete {
        /// Which.
        product: u32,
    },
}

/// A message, and the bytes of the segment if it is one.
pub type Parsed<'a> = (Message, &'a [u8]);

/// A wire format.
pub trait Wire: Send + fmt::Debug {
    /// Bytes of a full segment.
    fn segment_len(&self) -> u16;

    /// Bytes of a full packet with its header.
    fn packet_len(&self) -> u32;

    /// Appends a message, to be followed by `body_len` bytes of a segment. False: this wire does not say such
    /// things, and nothing was appended.
    fn emit(&self, message: &Message, body_len: u16, out: &mut Vec<u8>) -> bool;

    /// Reads one message, which must be all of `bytes`; what does not come that way is refused. Never panics.
    fn parse<'a>(&self, via: Via, bytes: &'a [u8]) -> Result<Parsed<'a>, ParseError>;

    /// Bytes of the connection's first message, when `head` is enough to tell.
    fn stream_len(&self, _head: &[u8]) -> Result<Option<usize>, ParseError> {
        Err(ParseError::UnknownType)
    }

    /// Whether it has a greeting; where it has none, receivers take part as soon as they come.
    fn greets(&self) -> bool {
        false
    }
}

/// Segments of a product of `size` bytes; `None` when they are too many.
pub(super) fn segments(size: u64, segment_len: u16) -> Option<u32> {
    let segments = size.div_ceil(u64::from(segment_len.max(1)));
    u32::try_from(segments).ok().filter(|n| *n <= super::SEGMENTS_MAX)
}

/// Bytes of one segment.
pub(super) fn segment_bytes(size: u64, segment_len: u16, segment: u32) -> u16 {
    let rest = size.saturating_sub(u64::from(segment) * u64::from(segment_len));
    u16::try_from(rest).unwrap_or(u16::MAX).min(segment_len)
}
