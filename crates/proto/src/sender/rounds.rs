//! What the sender remembers of its polls, to make sense of the answers.
//!
//! A ring by round number: an answer to a round that has been overwritten says nothing any more.

use crate::ids::{PacketNumber, Round};
use crate::time::Timestamp;
use alloc::vec::Vec;

/// Rounds remembered. Most are 5 ms apart and more; in a session of products there is one at the end of each burst, some
/// thousands a second, and an answer may take more than one.
const ROUNDS_KEPT: usize = 16_384;

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

#[cfg(test)]
mod tests {
    use super::{RoundLog, SentRound};
    use crate::ids::{PacketNumber, Round};
    use crate::time::{Duration, Timestamp};

    #[test]
    fn polls_at_the_end_of_each_product_are_remembered_for_a_long_way() {
        let (mut log, spacing) = (RoundLog::default(), Duration::from_micros(200));
        let at = |round: u32| Timestamp::ZERO + spacing * round;
        for round in 1..100_000 {
            let (packet, bytes) = (PacketNumber(u64::from(round)), 0);
            log.push(SentRound { round: Round(round), packet, at: at(round), bytes, limited: 0 });
            // What was sent 1.2 s ago.
            let answered = round.saturating_sub(6_000);
            let found = log.find(Round(answered)).map(|sent| sent.at);
            assert_eq!(found, (answered > 0).then(|| at(answered)));
        }
    }
}
