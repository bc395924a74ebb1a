//! Drivers: sockets, pacing, coding, sealing, and the HTTPS control and pull endpoints.

#![deny(unsafe_code)]

pub mod control;
pub mod identity;
pub mod profile;
pub mod pull;
pub mod session;
pub mod stream;
pub mod trace;
pub mod web;

mod blocks;
mod codec;
mod disk;
mod interface;
mod pace;
mod prefetch;
mod roll;
mod seal;
#[cfg(test)]
#[path = "../../skipped.rs"]
mod skipped;
mod spare;
mod turns;
mod udp;

pub use blocks::{Accepted, BlockSink, BlockSource, SourceError};
pub use codec::{Codec, CodecError, SymbolSet};
pub use disk::{FirstReads, blocked};
pub use interface::{Interface, InterfaceError};
pub use pace::{Clock, Interest, Waker, Woken, wait};
pub use roll::Roll;
pub use seal::{
    HEADER_LEN, OVERHEAD, OpenKeys, Opened, Reject, RejectCounts, SealError, SealKeys, Secret,
    Suite, TAG_LEN,
};
pub use spare::{Lent, Part, Spare, take_small_pages};
pub use turns::{take_long_turns, take_short_turns, take_turns_between};
pub use udp::{
    Datagram, Group, GroupError, Message, MulticastReceiver, MulticastSender, RecvBatch,
    RecvOptions, SEGMENTS_MAX, SendOptions, UdpError, UnicastSocket,
};
