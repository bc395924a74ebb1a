//! The Downpour engine: wire format and every protocol state machine.
//!
//! Sans-IO: time, randomness and bytes are arguments. Nothing here opens a socket, reads a clock or
//! starts a thread; the driver is `downpour-transport`, the virtual-time driver `downpour-sim`.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ids;
mod pacer;
pub mod rate;
mod time;
mod units;

pub use ids::{
    BLOCK_SYMBOLS_MAX, BlockId, BlockKind, Epoch, Geometry, PacketNumber, REPAIR_SYMBOLS_MAX,
    ReceiverId, Round, StreamId, SymbolId,
};
pub use pacer::{BURST_PACKETS_MAX, BURST_TIME, Pacer};
pub use time::{Duration, Timestamp};
pub use units::Rate;
