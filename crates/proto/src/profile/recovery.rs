//! Who gets again what was asked for: the policy of repair of a profile's sender.
//!
//! [`Shared`]: once, to all (`bmtp`, and `afdp` by multicast or broadcast). [`Each`]: to everyone who asked, one after
//! another in turn (`afdp` by unicast, `fmtp` by the asker's connection). What was asked for and not sent yet is
//! in sets of ranges: asking twice is asking once, and asking for all costs no more than asking for one.

use super::message::{REQUEST_RANGES_MAX, Via};
use crate::ids::ReceiverId;
use crate::range_set::RangeSet;
use crate::time::{Duration, Timestamp};
use alloc::collections::BTreeMap;
use core::fmt;
use core::ops::Range;

/// Ranges that wait, some 30 MB, divided among those who wait for some; but each may have a request's. So what one does
/// not take is no loss of another, and even [`MEMBERS_MAX`](super::MEMBERS_MAX) of them have less than six million.
const RANGES_MAX: usize = 1 << 18;

/// A segment to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// To whom; `None`: all.
    pub to: Option<(ReceiverId, Via)>,
    /// Of which product.
    pub product: u32,
    /// Which.
    pub segment: u32,
}

/// What is sent again, and how long a product is kept for that.
pub trait Recovery: Send + fmt::Debug {
    /// A receiver asks for segments that have been sent, one at least. How many of them were not waiting already;
    /// `None`: too much waits for it, these are not noted.
    fn on_request(&mut self, from: ReceiverId, product: u32, segments: Range<u32>) -> Option<u32>;

    /// The next to send; of receivers that `ready` says can take it.
    fn next(&mut self, ready: &dyn Fn(ReceiverId) -> bool) -> Option<Repair>;

    /// Whether there is such a one.
    fn has_next(&self, ready: &dyn Fn(ReceiverId) -> bool) -> bool;

    /// Nothing waits for this product.
    fn is_idle(&self, product: u32) -> bool;

    /// The product is released.
    fn forget_product(&mut self, product: u32);

    /// The receiver has gone.
    fn forget_receiver(&mut self, _receiver: ReceiverId) {}

    /// Until when a product is kept that somebody may still lack; `ended` is when all of it had been sent,
    /// `asked` when something of it was last sent or asked for, `packet` what a packet takes now.
    fn keep_until(&self, ended: Timestamp, asked: Timestamp, packet: Duration) -> Timestamp;

    /// Whether receivers say who they are and when they have all, so that a product can be released when all have.
    fn knows_receivers(&self) -> bool;
}

/// One copy for all.
#[derive(Debug)]
pub struct Shared {
    waiting: Waiting,
    quiet: Duration,
    quiet_packets: u32,
    knows_receivers: bool,
}

impl Shared {
    /// A product is kept for `quiet` after it was last asked for.
    pub const fn new(quiet: Duration, knows_receivers: bool) -> Self {
        let waiting = Waiting { products: BTreeMap::new(), ranges: 0 };
        Self { waiting, quiet, quiet_packets: 0, knows_receivers }
    }

    /// And for the time of so many packets more.
    #[must_use]
    pub fn with_packets(self, quiet_packets: u32) -> Self {
        Self { quiet_packets, ..self }
    }
}

/// The segments that wait, by product. Invariant: no set is empty, `ranges` is the sum of theirs.
#[derive(Debug, Default)]
struct Waiting {
    products: BTreeMap<u32, RangeSet>,
    ranges: usize,
}

impl Waiting {
    /// How many of them did not wait already; `None`: some did not, and `most` ranges wait.
    fn add(&mut self, product: u32, segments: Range<u32>, most: usize) -> Option<u32> {
        if self.ranges >= most {
            let waiting = self.products.get(&product);
            return waiting.filter(|set| set.first_gap(segments).is_none()).map(|_| 0);
        }
        let set = self.products.entry(product).or_default();
        let before = set.ranges();
        let new = set.insert_range(segments);
        self.ranges = self.ranges + set.ranges() - before;
        Some(new)
    }

    fn pop_first(&mut self) -> Option<(u32, u32)> {
        let mut first = self.products.first_entry()?;
        let before = first.get().ranges();
        let segment = first.get().iter().next()?.start;
        first.get_mut().remove(segment);
        self.ranges = self.ranges + first.get().ranges() - before;
        let product = *first.key();
        if first.get().is_empty() {
            first.remove();
        }
        Some((product, segment))
    }

    fn forget(&mut self, product: u32) {
        self.ranges -= self.products.remove(&product).map_or(0, |set| set.ranges());
    }
}

impl Recovery for Shared {
    fn on_request(&mut self, _from: ReceiverId, product: u32, segments: Range<u32>) -> Option<u32> {
        self.waiting.add(product, segments, RANGES_MAX)
    }

    fn next(&mut self, _ready: &dyn Fn(ReceiverId) -> bool) -> Option<Repair> {
        let (product, segment) = self.waiting.pop_first()?;
        Some(Repair { to: None, product, segment })
    }

    fn has_next(&self, _ready: &dyn Fn(ReceiverId) -> bool) -> bool {
        !self.waiting.products.is_empty()
    }

    fn is_idle(&self, product: u32) -> bool {
        !self.waiting.products.contains_key(&product)
    }

    fn forget_product(&mut self, product: u32) {
        self.waiting.forget(product);
    }

    fn keep_until(&self, _ended: Timestamp, asked: Timestamp, packet: Duration) -> Timestamp {
        asked + self.quiet + packet.saturating_mul(self.quiet_packets)
    }

    fn knows_receivers(&self) -> bool {
        self.knows_receivers
    }
}

/// How long [`Each`] keeps a product.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// So long after its end.
    AfterEnd(Duration),
    /// So long after it was last asked for.
    Quiet(Duration),
}

/// A copy for everyone who asks.
#[derive(Debug)]
pub struct Each {
    waiting: BTreeMap<ReceiverId, Waiting>,
    via: Via,
    keep: Keep,
    /// Whose turn was last.
    last: ReceiverId,
}

impl Each {
    /// Repairs go `via` there.
    pub const fn new(via: Via, keep: Keep) -> Self {
        Self { waiting: BTreeMap::new(), via, keep, last: ReceiverId(0) }
    }
}

impl Recovery for Each {
    fn on_request(&mut self, from: ReceiverId, product: u32, segments: Range<u32>) -> Option<u32> {
        let share = RANGES_MAX / self.waiting.len().max(1);
        let wanted = self.waiting.entry(from).or_default();
        wanted.add(product, segments, share.max(REQUEST_RANGES_MAX))
    }

    fn next(&mut self, ready: &dyn Fn(ReceiverId) -> bool) -> Option<Repair> {
        let after = (core::ops::Bound::Excluded(self.last), core::ops::Bound::Unbounded);
        let turn = self.waiting.range(after).chain(self.waiting.range(..=self.last));
        let id = turn.map(|(id, _)| *id).find(|id| ready(*id))?;
        self.last = id;
        let wanted = self.waiting.get_mut(&id)?;
        let first = wanted.pop_first();
        if wanted.products.is_empty() {
            self.waiting.remove(&id);
        }
        let (product, segment) = first?;
        Some(Repair { to: Some((id, self.via)), product, segment })
    }

    fn has_next(&self, ready: &dyn Fn(ReceiverId) -> bool) -> bool {
        self.waiting.keys().any(|id| ready(*id))
    }

    fn is_idle(&self, product: u32) -> bool {
        self.waiting.values().all(|wanted| !wanted.products.contains_key(&product))
    }

    fn forget_product(&mut self, product: u32) {
        self.waiting.retain(|_, wanted| {
            wanted.forget(product);
            !wanted.products.is_empty()
        });
    }

    fn forget_receiver(&mut self, receiver: ReceiverId) {
        self.waiting.remove(&receiver);
    }

    fn keep_until(&self, ended: Timestamp, asked: Timestamp, _packet: Duration) -> Timestamp {
        match self.keep {
            Keep::AfterEnd(time) => ended + time,
            Keep::Quiet(time) => asked + time,
        }
    }

    fn knows_receivers(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Each, Keep, RANGES_MAX, REQUEST_RANGES_MAX, Recovery, Repair, Shared, Via};
    use crate::ids::ReceiverId;
    use crate::time::Duration;
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    const A: ReceiverId = ReceiverId(1);
    const B: ReceiverId = ReceiverId(2);

    fn drain(recovery: &mut dyn Recovery) -> Vec<(Option<ReceiverId>, u32, u32)> {
        let take = || recovery.next(&|_| true);
        let repairs = core::iter::from_fn(take);
        repairs.map(|Repair { to, product, segment }| (to.map(|t| t.0), product, segment)).collect()
    }

    #[test]
    fn shared_repair_goes_once_for_all_who_asked() {
        let mut shared = Shared::new(Duration::from_secs(5), false);
        assert_eq!(shared.on_request(A, 7, 3..6), Some(3));
        assert_eq!(shared.on_request(B, 7, 5..7), Some(1));
        assert!(!shared.is_idle(7) && shared.is_idle(8));
        assert_eq!(drain(&mut shared), [(None, 7, 3), (None, 7, 4), (None, 7, 5), (None, 7, 6)]);
        shared.on_request(A, 7, 0..2);
        shared.forget_product(7);
        assert_eq!(drain(&mut shared), []);
    }

    #[test]
    fn each_asker_gets_its_own_in_turn() {
        let mut each = Each::new(Via::Stream, Keep::AfterEnd(Duration::from_secs(600)));
        assert_eq!(each.on_request(A, 7, 3..5), Some(2));
        assert_eq!(each.on_request(B, 7, 3..6), Some(3));
        let a = |segment| (Some(A), 7, segment);
        let b = |segment| (Some(B), 7, segment);
        assert_eq!(each.next(&|id| id == B).unwrap().to, Some((B, Via::Stream)));
        assert_eq!(drain(&mut each), [a(3), b(4), a(4), b(5)]);
        each.on_request(A, 7, 0..9);
        each.on_request(A, 8, 0..1);
        each.forget_product(7);
        assert!(each.is_idle(7) && !each.is_idle(8));
        each.forget_receiver(A);
        assert!(each.is_idle(8));
    }

    /// How many single segments, every other one of a product, are noted before one is refused.
    fn fill(recovery: &mut dyn Recovery, from: ReceiverId, product: u32) -> usize {
        let mut cut = (0..).step_by(2).map(|first| first..first + 1);
        cut.position(|range| recovery.on_request(from, product, range).is_none()).unwrap()
    }

    #[test]
    fn all_of_a_product_is_one_range_and_ranges_have_a_limit() {
        let each = Each::new(Via::Stream, Keep::AfterEnd(Duration::from_secs(600)));
        let shared = Shared::new(Duration::from_secs(5), false);
        for mut recovery in [Box::new(each) as Box<dyn Recovery>, Box::new(shared)] {
            assert_eq!(recovery.on_request(A, 7, 0..u32::MAX), Some(u32::MAX));
            assert_eq!(recovery.on_request(A, 7, 5..u32::MAX), Some(0));
            assert_eq!(fill(&mut *recovery, A, 8), RANGES_MAX - 1);
            assert_eq!(recovery.on_request(A, 9, 0..1), None);
            assert_eq!(recovery.on_request(A, 8, 2..3), Some(0), "it waits already");
            // Each that is sent, and each product that is released, makes room.
            recovery.forget_product(7);
            assert_eq!(fill(&mut *recovery, A, 9), 1);
            recovery.next(&|_| true);
            assert_eq!(recovery.on_request(A, 9, 2..3), Some(1));
            recovery.forget_product(8);
            assert_eq!(drain(&mut *recovery).len(), 2);
            assert_eq!(fill(&mut *recovery, A, 7), RANGES_MAX);
        }
    }

    #[test]
    fn who_asks_for_much_leaves_each_other_its_share() {
        let mut each = Each::new(Via::Stream, Keep::AfterEnd(Duration::from_secs(600)));
        assert_eq!(fill(&mut each, A, 7), RANGES_MAX);
        each.on_request(B, 7, 0..1);
        assert_eq!(fill(&mut each, B, 7), RANGES_MAX / 2);
        for id in 3..1000 {
            assert_eq!(each.on_request(ReceiverId(id), 7, 0..1), Some(1));
        }
        assert_eq!(fill(&mut each, ReceiverId(3), 7), REQUEST_RANGES_MAX);
        assert_eq!(each.on_request(A, 7, 1..2), None);
    }
}
