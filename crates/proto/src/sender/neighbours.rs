//! Other senders: what is told to them, and what is heard of them (`docs/protocol.md#RATE-6`).

use super::Sender;
use crate::ids::ReceiverId;
use crate::time::Timestamp;
use crate::wire::{ParseError, Presence};

impl Sender {
    /// Another sender has said that it is there. What it says is not authentic.
    pub fn on_neighbour(&mut self, now: Timestamp, neighbour: Presence) {
        if neighbour.stream != self.config.stream {
            self.advance(now);
            self.config.rate.on_neighbour(now, neighbour.stream, neighbour.load);
            self.apply_rate();
        }
    }

    /// A member has passed on what another sender says: whether it is listened to. Only who limits the rate is, for
    /// its way is the one that may be shared.
    pub fn handle_presence(
        &mut self,
        now: Timestamp,
        from: ReceiverId,
        body: &[u8],
    ) -> Result<bool, ParseError> {
        let neighbour = Presence::parse(body)?;
        let is_heard = self.config.rate.limiting() == Some(from);
        if is_heard {
            self.on_neighbour(now, neighbour);
        }
        Ok(is_heard)
    }

    /// What to tell the other senders now and then; the receivers are told it with the next poll, for those that only
    /// they can reach.
    pub fn tell(&mut self) -> Option<Presence> {
        let presence = self.presence();
        self.tell_due = presence.is_some();
        presence
    }

    pub(super) fn presence(&self) -> Option<Presence> {
        let stream = self.config.stream;
        self.config.rate.load().map(|load| Presence { stream, load })
    }
}
