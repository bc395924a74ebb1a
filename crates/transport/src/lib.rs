//! Drivers: sockets, pacing, coding, sealing, and the HTTPS control and pull endpoints.

pub mod identity;

mod blocks;
mod codec;
mod seal;

pub use blocks::{Accepted, BlockSink, BlockSource, SourceError};
pub use codec::{CodecError, Decoder, Encoder, SymbolSet};
pub use seal::{
    DATAGRAM_LEN_MAX, HEADER_LEN, OVERHEAD, OpenKeys, Opened, Reject, RejectCounts, SealError,
    SealKeys, Secret, Suite, TAG_LEN,
};
