//! The sender's pull endpoint: it serves in turns, a piece at a time, within the pulls' share of the budget.

use downpour_proto::receiver::Pull;
use downpour_proto::{BlockId, Duration, Rate, Timestamp};
use std::collections::VecDeque;

/// Bytes that are sent at once.
pub(super) const PIECE_LEN: u64 = 4 * TCP_PAYLOAD_LEN;

/// Payload of a full TCP packet.
pub(super) const TCP_PAYLOAD_LEN: u64 = 1448;

/// A request whose way is cut fails after this.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Request {
    pub(super) receiver: usize,
    pub(super) pull: Pull,
    pub(super) left: u64,
    /// The piece before is at the receiver from here on.
    pub(super) ready_at: Timestamp,
    pub(super) asked_at: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct PullServer {
    pub(super) requests: VecDeque<Request>,
    /// The budget allows the next piece at this time.
    pub(super) free_at: Timestamp,
    pub(super) scheduled: bool,
    pub(super) bytes: u64,
}

pub(super) const fn block_of(pull: &Pull) -> BlockId {
    match pull {
        Pull::Repair { block, .. } | Pull::Bytes { block } => *block,
    }
}

impl PullServer {
    /// The next request that can be served at `now`, if the budget allows; else when to look again.
    pub(super) fn next(&mut self, now: Timestamp) -> Result<Request, Option<Timestamp>> {
        let Some(earliest) = self.requests.iter().map(|r| r.ready_at).min() else {
            return Err(None);
        };
        let due = earliest.max(self.free_at);
        if due > now {
            return Err(Some(due));
        }
        let at = self.requests.iter().position(|r| r.ready_at <= now);
        at.and_then(|at| self.requests.remove(at)).ok_or(None)
    }

    /// `bytes` were sent of a budget of `rate`.
    pub(super) fn spend(&mut self, now: Timestamp, bytes: u64, rate: Rate) {
        self.bytes += bytes;
        self.free_at = self.free_at.max(now) + rate.time_for(bytes).min(Duration::from_secs(1));
    }
}
