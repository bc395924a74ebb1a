//! Products that are sent, and kept for those who lack some of them.
//!
//! A product is released when nobody lacks it any more and nothing of it is on its way, or when it has been kept for long
//! enough. Thousands may be held for one receiver that says nothing: none of them is looked at because of another. So each
//! stands in a list by the time before which it cannot be over, and who is not waited for any more, in another.

use super::{Event, Message, Open, Sender};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// So long after the last product of a session its end is told once more, to each that has not said it has all: who lost
/// the whole of it has no later product to tell of it. Ours.
const LAST_TOLD_AFTER: Duration = Duration::from_secs(1);

/// The products that are held.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) open: BTreeMap<u32, Open>,
    /// When each is to be looked at.
    due: BTreeSet<(Timestamp, u32)>,
    /// Nobody waited for these when that was last seen to change; some may be on their way all the same.
    pub(super) unneeded: BTreeSet<u32>,
}

impl Held {
    /// All of it has been sent; it is kept until then for those it waits for.
    pub(super) fn insert(&mut self, product: u32, mut open: Open, keep: Timestamp) {
        if open.waiting.is_empty() {
            self.unneeded.insert(product);
        }
        open.due = keep;
        self.due.insert((keep, product));
        self.open.insert(product, open);
    }

    /// The receiver has gone.
    pub(super) fn forget_receiver(&mut self, id: ReceiverId) {
        for (product, open) in &mut self.open {
            if open.waiting.remove(&id) && open.waiting.is_empty() {
                self.unneeded.insert(*product);
            }
        }
    }

    /// What was over later may be over sooner: packets take less time.
    pub(super) fn look_at_all(&mut self, now: Timestamp) {
        self.open.values_mut().for_each(|open| open.due = now);
        self.due = self.open.keys().map(|product| (now, *product)).collect();
    }
}

impl Sender {
    /// Releases what nobody lacks, and what has been kept long enough.
    pub(super) fn release(&mut self) {
        let (now, packet) = (self.now, self.packet_time());
        let (recovery, Held { open: held, due, unneeded }) =
            (&self.config.profile.recovery, &mut self.held);
        let mut over = Vec::new();
        while let Some((_, product)) = due.first().copied().filter(|(at, _)| *at <= now) {
            due.pop_first();
            let Some(open) = held.get_mut(&product) else { continue };
            open.due = recovery.keep_until(open.ended.unwrap_or(now), open.asked, packet);
            if open.due <= now {
                over.push(product);
            } else {
                due.insert((open.due, product));
            }
        }
        unneeded.retain(|product| {
            let open = held.get(product).filter(|open| open.waiting.is_empty());
            let is_over = open.is_some() && recovery.knows_receivers();
            let is_idle = recovery.is_idle(*product);
            if is_over && is_idle {
                over.push(*product);
            }
            is_over && !is_idle
        });
        for product in over {
            self.config.profile.recovery.forget_product(product);
            let Some(open) = self.held.open.remove(&product) else { continue };
            self.held.due.remove(&(open.due, product));
            for id in open.waiting {
                if let Some(member) = self.members.get_mut(&id) {
                    member.report.given_up += 1;
                }
                self.reply(id, Message::End { product, repair: true });
                // What it has asked for does not come any more, and it does not ask again.
                self.reply(id, Message::Rejected { product });
            }
            self.events.push_back(Event::Released(product));
        }
        let next = self.held.due.first().map_or(Timestamp::MAX, |(at, _)| *at);
        self.keep_until = next.min(self.tell_last());
        if self.finished && self.queue.is_empty() && self.held.open.is_empty() && !self.done {
            self.done = true;
            self.events.push_back(Event::Done);
        }
    }

    /// Tells those who may have lost the whole of the last product; when that is due, if it is still to come.
    fn tell_last(&mut self) -> Timestamp {
        let last = self.last.filter(|_| self.finished && self.queue.is_empty());
        let last = last.and_then(|product| Some((product, self.held.open.get(&product)?)));
        let Some((product, open)) = last else { return Timestamp::MAX };
        let due = open.ended.unwrap_or(self.now) + LAST_TOLD_AFTER;
        if due > self.now {
            return due;
        }
        self.last = None;
        let waiting = open.waiting.clone();
        for id in waiting {
            self.reply(id, Message::End { product, repair: true });
        }
        Timestamp::MAX
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::ReceiverId;
    use crate::profile::{
        Message, Mode, Offer, Receiver, ReceiverConfig, ReceiverEvent, Recovery, Repair, Sender,
        SenderConfig, SenderEvent, To, fmtp,
    };
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::ops::Range;
    use core::sync::atomic::{AtomicU32, Ordering};

    /// A policy that counts how often products are looked at.
    #[derive(Debug)]
    struct Counted(Box<dyn Recovery>, Arc<AtomicU32>);

    impl Recovery for Counted {
        fn on_request(
            &mut self,
            from: ReceiverId,
            product: u32,
            segments: Range<u32>,
        ) -> Option<u32> {
            self.0.on_request(from, product, segments)
        }

        fn next(&mut self, ready: &dyn Fn(ReceiverId) -> bool) -> Option<Repair> {
            self.0.next(ready)
        }

        fn has_next(&self, ready: &dyn Fn(ReceiverId) -> bool) -> bool {
            self.0.has_next(ready)
        }

        fn is_idle(&self, product: u32) -> bool {
            self.0.is_idle(product)
        }

        fn forget_product(&mut self, product: u32) {
            self.0.forget_product(product);
        }

        fn forget_receiver(&mut self, receiver: ReceiverId) {
            self.0.forget_receiver(receiver);
        }

        fn keep_until(&self, ended: Timestamp, asked: Timestamp, packet: Duration) -> Timestamp {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.keep_until(ended, asked, packet)
        }

        fn knows_receivers(&self) -> bool {
            self.0.knows_receivers()
        }
    }

    const KEEP: Duration = Duration::from_secs(600);

    /// A feed of so many products, each of which the first of two receivers has at once and the second never has.
    fn feed(count: u32, looks: &Arc<AtomicU32>) -> (Sender, Timestamp) {
        let mut now = Timestamp::ZERO;
        let mut profile = fmtp::sender(Rate::from_mbps(100), KEEP);
        profile.recovery = Box::new(Counted(profile.recovery, Arc::clone(looks)));
        let config = SenderConfig { profile, mode: Mode::Multicast, group: None };
        let mut sender = Sender::new(config, now);
        assert!(sender.connect(now, ReceiverId(1)) && sender.connect(now, ReceiverId(2)));
        sender.start(now);
        let (mut out, mut all) = (Vec::new(), Vec::new());
        for product in 0..count {
            let offer = Offer { product, size: 5, offered_unix_ns: 0, metadata: Vec::new() };
            assert!(sender.offer(now, offer));
            while !sender.held.open.contains_key(&product) {
                while sender.poll_transmit(now, &mut out).is_some() {}
                now = sender.poll_timeout().expect("there is more").max(now);
                sender.handle_timeout(now);
            }
            assert!(sender.wire().emit(&Message::Complete { product }, 0, &mut all));
            sender.handle_stream(now, ReceiverId(1), &all).unwrap();
            all.clear();
        }
        while sender.poll_event().is_some() {}
        (sender, now)
    }

    fn released(sender: &mut Sender) -> usize {
        let events = core::iter::from_fn(|| sender.poll_event());
        events.filter(|event| matches!(event, SenderEvent::Released(_))).count()
    }

    #[test]
    fn what_is_held_for_one_is_not_looked_at_when_another_has_all() {
        let looks = Arc::default();
        let (mut sender, now) = feed(300, &looks);
        assert_eq!(sender.held.open.len(), 300);
        let looks = looks.load(Ordering::Relaxed);
        assert!(looks < 5 * 300, "{looks} looks at 300 products");
        sender.disconnect(now, ReceiverId(2));
        assert_eq!((released(&mut sender), sender.held.open.len()), (300, 0));
        assert!(sender.held.due.is_empty() && sender.held.unneeded.is_empty());
    }

    #[test]
    fn what_is_held_is_released_when_its_time_is_over() {
        let (mut sender, now) = feed(3, &Arc::default());
        sender.handle_timeout(now + KEEP / 2);
        assert_eq!(released(&mut sender), 0);
        sender.handle_timeout(now + KEEP);
        assert_eq!((released(&mut sender), sender.held.due.len()), (3, 0));
        let reports = sender.members().map(|(_, report)| (report.products, report.given_up));
        assert_eq!(reports.collect::<Vec<_>>(), [(3, 0), (0, 3)]);
    }

    /// Its connection takes nothing from when it asks until the product is given up.
    #[test]
    fn who_waits_for_repair_is_told_that_none_comes() {
        let (mut now, id) = (Timestamp::ZERO, ReceiverId(1));
        let profile = fmtp::sender(Rate::from_mbps(100), KEEP);
        let config = SenderConfig { profile, mode: Mode::Multicast, group: None };
        let mut sender = Sender::new(config, now);
        let profile = fmtp::receiver(fmtp::LINK_RATE);
        let config = ReceiverConfig { profile, size_max: u64::MAX, products_max: 9, seed: 1 };
        let mut receiver = Receiver::new(config, now);
        assert!(sender.connect(now, id));
        sender.set_ready(now, id, false);
        sender.start(now);
        let size = 3 * u64::from(fmtp::SEGMENT_LEN);
        let offer = Offer { product: 7, size, offered_unix_ns: 0, metadata: Vec::new() };
        assert!(sender.offer(now, offer));
        let mut out = Vec::new();
        while !sender.held.open.contains_key(&7) {
            while let Some(transmit) = sender.poll_transmit(now, &mut out) {
                let body = transmit.body;
                out.resize(out.len() + body.map_or(0, |body| usize::from(body.len)), 0);
                if body.is_none_or(|body| body.segment != 1) {
                    receiver.handle_datagram(now, &out).unwrap();
                }
            }
            now = sender.poll_timeout().expect("there is more").max(now);
            sender.handle_timeout(now);
        }
        while let Some((_, request)) = receiver.poll_transmit() {
            sender.handle_stream(now, id, &request).unwrap();
        }
        assert_eq!(sender.stats().requests, 1);
        now = now + KEEP;
        sender.handle_timeout(now);
        assert_eq!(released(&mut sender), 1);
        sender.set_ready(now, id, true);
        while let Some(transmit) = sender.poll_transmit(now, &mut out) {
            assert_eq!((transmit.to, transmit.body), (To::Stream(id), None));
            receiver.handle_stream(now, &out).unwrap();
        }
        let mut events = core::iter::from_fn(|| receiver.poll_event());
        assert!(events.any(|event| matches!(event, ReceiverEvent::Rejected(7))));
        assert!(receiver.products().find(7).is_none());
        assert_eq!(receiver.stats().rejected, 1);
    }
}
