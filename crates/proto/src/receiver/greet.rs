//! Greetings: a receiver to which the stream comes by unicast shows the sender where it is (`docs/protocol.md#WAN-5`).
//!
//! A greeting is feedback that answers no poll (round 0). It is repeated until the first datagram of the stream is here;
//! the answers to polls, one a round, keep the way open from then on. When the stream falls silent, greeting begins anew,
//! and goes on while it counts as lost; not after an order to leave.

use super::Receiver;
use crate::ids::Round;
use crate::time::{Duration, Timestamp};
use crate::timer::Reason;
use crate::wire::{Feedback, Header};
use alloc::vec::Vec;

/// Between two greetings.
const INTERVAL: Duration = Duration::from_millis(100);

impl Receiver {
    /// A greeting is due, unless the stream has been heard meanwhile.
    pub(super) fn greet(&mut self) {
        if self.stats.received == self.greeted_at_count {
            self.feedback_due = true;
            self.timers.set(Reason::Greet, self.now + INTERVAL);
        }
    }

    /// The stream has fallen silent: the way to us may have been lost.
    pub(super) fn greet_anew(&mut self) {
        if self.config.greets {
            self.greeted_at_count = self.stats.received;
            self.timers.set(Reason::Greet, self.now);
        }
    }

    /// Before the first poll there is nothing to answer, and no poll comes where the stream is lost.
    pub(super) fn is_greeting(&self) -> bool {
        let is_new = self.config.on_stream && self.last_poll.is_none();
        self.config.greets && (is_new || self.silence.is_lost())
    }

    /// An answer to no poll.
    pub(super) fn greeting(&mut self, message: &mut Vec<u8>) -> (Header, u64) {
        self.stats.feedback += 1;
        message.clear();
        Feedback {
            round: Round(0),
            hold: Duration::ZERO,
            queue: Duration::ZERO,
            path_queue: Duration::ZERO,
            polled_at: Timestamp::ZERO,
            received: 0,
            host_drops: 0,
            data_held: 0,
            needs: Vec::new(),
        }
        .emit(message);
        self.feedback_header()
    }
}
