//! What the sender remembers of its polls, to make sense of the answers.
//!
//! A ring by round number: an answer to a round that has been overwritten says nothing any more.

use crate::ids::{PacketNumber, Round};
use crate::time::Timestamp;
use alloc::vec::Vec;

/// Rounds remembered: five seconds and more, since rounds are at least 5 ms apart.
const ROUNDS_KEPT: usize = 1024;

/// A poll that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRound {
    pub(super) round: Round,
    pub(super) packet: PacketNumber,
    pub(super) at: Timestamp,
    /// UDP payload bytes of the stream up to and with the poll.
    pub(super) bytes: u64,
    /// How often the sender had been unable to keep the rate.
    pub(super) limited: u64,
}

/// The ring.
#[derive(Debug, Default)]
pub(super) struct RoundLog(Vec<SentRound>);

impl RoundLog {
    pub(super) fn push(&mut self, sent: SentRound) {
        let slot = sent.round.0 as usize % ROUNDS_KEPT;
        if slot < self.0.len() {
            self.0[slot] = sent;
        } else {
            // Rounds count up from 1, so at first slot 0 is skipped: it is filled by the first round.
            self.0.resize(slot + 1, sent);
        }
    }

    pub(super) fn find(&self, round: Round) -> Option<&SentRound> {
        self.0.get(round.0 as usize % ROUNDS_KEPT).filter(|sent| sent.round == round)
    }
}
