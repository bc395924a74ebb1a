//! The Downpour engine: wire format and every protocol state machine.
//!
//! Sans-IO: time, randomness and bytes are arguments. Nothing here opens a socket, reads a clock or
//! starts a thread; the driver is `downpour-transport`, the virtual-time driver `downpour-sim`.
//!
//! A session has one [`Sender`] and a [`Receiver`] on each machine. Both work on symbol *numbers*: the
//! bytes and the erasure code meet them in the driver, which does what `poll_work` asks.
//!
//! Code map: `ids`, `units`, `time` the words; `wire` the datagrams; `sender`, `receiver` the machines, which
//! route; `rate`, `recovery`, `feedback` the three policies, each behind a trait; `profile` the protocols of the
//! papers, with machines of their own; the other files one mechanism each. Rules carry numbers of `docs/protocol.md`.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod base_delay;
mod budget;
mod code;
mod feedback;
mod grtt;
mod ids;
mod loss;
mod pacer;
mod path_queue;
pub mod profile;
mod range_set;
pub mod rate;
pub mod receiver;
mod recovery;
mod rng;
pub mod sender;
mod time;
mod timer;
pub mod transfer;
mod units;
pub mod wire;

pub use base_delay::BaseDelay;
pub use budget::{Budget, PULL_SHARE_DEFAULT, Shares};
pub use code::Code;
pub use feedback::{FeedbackPolicy, GROUP_WITHOUT_BACKOFF, Rounds};
pub use grtt::{GRTT_MAX, GRTT_MIN, Grtt};
pub use ids::{
    BLOCK_SYMBOLS_MAX, BlockId, BlockKind, Epoch, Geometry, PacketNumber, REPAIR_SYMBOLS_MAX,
    ReceiverId, Round, StreamId, SymbolId,
};
pub use loss::Loss;
pub use pacer::{BURST_PACKETS_MAX, BURST_TIME, BURST_TIME_MAX, Pacer};
pub use path_queue::PathQueue;
pub use range_set::RangeSet;
pub use receiver::{Receiver, ReceiverConfig};
pub use recovery::{LossTable, Parity, Recovery};
pub use rng::Rng;
pub use sender::{Sender, SenderConfig};
pub use time::{Duration, Timestamp};
pub use timer::{Deadline, Reason};
pub use units::Rate;
