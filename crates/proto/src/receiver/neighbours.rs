//! Senders that do not hear each other are told of one another by their receivers, if these share a network
//! (`docs/protocol.md#RATE-6`): one of each session, the one that limits it.

use super::Receiver;
use crate::time::Timestamp;
use crate::wire::{Header, Kind, Presence};
use alloc::vec::Vec;

/// Of so many other senders one message each may wait.
const PASSING_MAX: usize = 8;

impl Receiver {
    /// Our sender goes by what we take.
    pub(super) fn is_limiting(&self) -> bool {
        self.last_poll.as_ref().is_some_and(|last| last.poll.clr == Some(self.config.me))
    }

    /// Another sender's presence was heard, from a receiver of its session on this network. It is not authentic.
    pub fn on_neighbour(&mut self, now: Timestamp, presence: Presence) {
        self.advance(now);
        if presence.stream == self.config.stream || !self.is_limiting() {
            return;
        }
        self.passing.retain(|waiting| waiting.stream != presence.stream);
        if self.passing.len() < PASSING_MAX {
            self.passing.push(presence);
        }
    }

    pub(super) fn pass_on(&mut self, message: &mut Vec<u8>) -> Option<(Header, u64)> {
        let presence = self.passing.pop()?;
        message.clear();
        presence.emit(message);
        Some(self.header_of(Kind::Presence { receiver: Some(self.config.me) }))
    }
}
