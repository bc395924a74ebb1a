//! What the owner of a sender's driver hears of it, and sees.

use super::Broken;
use crate::RejectCounts;
use downpour_proto::rate::RateSummary;
use downpour_proto::sender::{MemberStats, SenderStats};
use downpour_proto::{BlockId, Duration, PacketNumber, ReceiverId, Shares};
use std::collections::BTreeMap;

/// What the owner should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendEvent {
    /// Tell the receiver to leave the multicast group.
    LeaveStream(ReceiverId),
    /// The same, since no answer of it comes by UDP.
    Unheard(ReceiverId),
    /// Tell the receiver that it may come back to the multicast group.
    ReturnToStream(ReceiverId),
    /// All source symbols of a block of an open session have just been sent.
    SourceSent {
        /// Which block.
        block: BlockId,
        /// How long ago its first one was.
        took: Duration,
    },
    /// Not all source symbols of a block of an open session will be sent.
    SourcePassed {
        /// Which block.
        block: BlockId,
    },
    /// For those who pull: the snapshot tells of further blocks.
    Passed,
    /// Everything offered was sent and settled.
    StreamDone,
    /// A block's bytes could not be had.
    SourceFailed {
        /// Which block.
        block: BlockId,
        /// Why.
        reason: String,
    },
    /// The kernel refuses to send to the group; told once.
    SendFailed {
        /// Why.
        reason: String,
    },
    /// The kernel has refused everything, or all of full length, for some seconds. The group's interface may be gone: the driver looks for another
    /// one of its name.
    NothingLeaves {
        /// Why.
        reason: String,
    },
    /// It does no more.
    LeavesAgain,
    /// The driver has ended, because it or a worker panicked. The last event.
    Broken(Broken),
}

/// What the driver shows of itself, renewed every 100 ms; `backlog` is always right.
#[derive(Clone, Debug, Default)]
pub struct SendSnapshot {
    /// Counters.
    pub stats: SenderStats,
    /// What the rate controller believes.
    pub rate: Option<RateSummary>,
    /// What stream and pulls may use.
    pub shares: Option<Shares>,
    /// One past the highest data and manifest blocks opened, and whether that is final.
    pub ends: (u32, u32, bool),
    /// The group's round trip.
    pub grtt: Duration,
    /// Rounds so far.
    pub rounds: u32,
    /// The highest packet number sent.
    pub packet: Option<PacketNumber>,
    /// Each member.
    pub members: BTreeMap<ReceiverId, MemberStats>,
    /// Feedback that was dropped, by reason.
    pub rejects: RejectCounts,
    /// How often the kernel refused datagrams.
    pub send_errors: u64,
    /// Their bytes, which `stats` counts as sent.
    pub refused_bytes: u64,
    /// Blocks offered and not yet opened.
    pub backlog: usize,
}

impl SendSnapshot {
    /// Bytes of the stream that have left.
    pub const fn left_bytes(&self) -> u64 {
        self.stats.bytes.saturating_sub(self.refused_bytes)
    }
}
