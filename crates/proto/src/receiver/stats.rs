//! What a receiver counts, for progress and reports, and what it loses: each poll says how many datagrams were sent before
//! it, and those that came are counted. The sender reckons the same from reports, and decides by that alone.

use crate::ids::PacketNumber;
use crate::loss::{Loss, lost_share};

/// Counters for progress and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Authentic datagrams of the stream.
    pub received: u64,
    /// Symbols among them that were not wanted: duplicates, or repair that others needed.
    pub unneeded: u64,
    /// Repair symbols kept.
    pub repair_kept: u64,
    /// Symbols for which there was no room.
    pub no_room: u64,
    /// Feedback messages sent.
    pub feedback: u64,
    /// NACKs (block and count) in them.
    pub nacks: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Pulls begun.
    pub pulls: u64,
    /// Blocks whose bytes were false.
    pub false_blocks: u64,
}

/// What is lost of the stream while it is followed.
#[derive(Debug, Default)]
pub(super) struct Losses {
    loss: Loss,
    /// Of all so far.
    sent: u64,
    received: u64,
    /// By the newest poll: its number, and the datagrams that had come with it. None since the stream was joined or left.
    last: Option<(PacketNumber, u64)>,
}

impl Losses {
    pub(super) fn on_poll(&mut self, packet: PacketNumber, received: u64) {
        if let Some((before, had)) = self.last.replace((packet, received)) {
            let (sent, received) = (packet.0.saturating_sub(before.0), received - had);
            self.loss.on_span(sent, received);
            self.sent = self.sent.saturating_add(sent);
            self.received = self.received.saturating_add(received);
        }
    }

    /// The stream was joined or left: what was sent meanwhile is not lost.
    pub(super) const fn interrupt(&mut self) {
        self.last = None;
    }

    /// In 0 ..= 1, of late; 0 before the second poll.
    pub(super) fn share(&self) -> f64 {
        self.loss.share().unwrap_or(0.0)
    }

    /// In 0 ..= 1, of all that was sent while the stream was followed.
    pub(super) fn share_ever(&self) -> f64 {
        lost_share(self.sent, self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::{Losses, PacketNumber};

    #[test]
    fn what_is_sent_to_others_is_not_lost() {
        let mut losses = Losses::default();
        losses.on_poll(PacketNumber(5_000), 3);
        assert!(losses.share() == 0.0, "joined late");
        losses.on_poll(PacketNumber(6_000), 903);
        assert!((losses.share() - 0.1).abs() < 1e-9);
        losses.interrupt();
        losses.on_poll(PacketNumber(90_000), 910);
        assert!((losses.share() - 0.1).abs() < 1e-9, "{}", losses.share());
    }

    #[test]
    fn all_that_was_lost_is_told_at_the_end() {
        let (mut losses, mut received) = (Losses::default(), 0);
        for poll in 0..=200 {
            losses.on_poll(PacketNumber(poll * 1_000), received);
            received += if poll < 100 { 900 } else { 1_000 };
        }
        assert!(losses.share() < 1e-9, "of late nothing was");
        assert!((losses.share_ever() - 0.05).abs() < 1e-9, "{}", losses.share_ever());
    }
}
