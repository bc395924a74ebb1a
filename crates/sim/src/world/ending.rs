//! After the last receiver has everything, or has died: the sender learns of it, and comes to rest.

use super::World;
use downpour_proto::Duration;
use downpour_proto::sender::Delivery;

/// What is on its way arrives within this, what cuts hold up too, and deaths are noticed.
const SETTLES: Duration = Duration::from_secs(60);

/// What was planned is sent, and settles, within this, also at the slowest rate.
const DRAINS: Duration = Duration::from_secs(1_800);

/// Then it is watched for so long.
const WATCHED: Duration = Duration::from_secs(10);

/// Most polls meanwhile: while nothing is sent, a few follow one another closely, and then they are a quarter of a second apart.
const POLLS_MAX: u64 = 60;

impl World {
    /// The session comes to its end.
    pub(super) fn check_end(&mut self) {
        let settled = self.now + SETTLES;
        while self.step(settled) {}
        for host in &self.hosts {
            let delivery = self.sender.member(host.id).map(|member| member.delivery);
            let over = delivery.is_none_or(|delivery| delivery == Delivery::Ended);
            assert!(over, "receiver {} has ended, and counts as {delivery:?}", host.id);
        }
        let drained = settled + DRAINS;
        while self.sender.open_blocks() > 0 && self.step(drained) {}
        let open = self.sender.open_blocks();
        assert_eq!(open, 0, "open blocks that nobody follows are not closed");
        // What is offered when nobody follows the stream may stay.
        let done = self.stream_done || self.sender.backlog() > 0 || !self.offered_all;
        assert!(done, "nothing is left, and the stream is not done");
        let before = *self.sender.stats();
        let watched = self.now + WATCHED;
        while self.step(watched) {}
        let after = self.sender.stats();
        let symbols = after.source_symbols + after.repair_symbols;
        assert_eq!(symbols, before.source_symbols + before.repair_symbols, "it sends to nobody");
        let polls = after.messages - before.messages;
        assert!(polls <= POLLS_MAX, "{polls} messages to nobody in {WATCHED:?}");
    }
}
