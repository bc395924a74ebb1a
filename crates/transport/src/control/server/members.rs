//! Who has joined, and who listens for events.
//!
//! A receiver's number is bound to the node key that joined with it. Of its subscriptions the latest counts:
//! when a receiver reconnects before the old connection is found dead, the handler hears nothing of the old
//! one's end. The handler is called with the table locked, so that it hears of these things in their
//! order.

use super::handler::{EventSender, Member, SessionHandler};
use super::limits::{EVENT_QUEUE_MAX, MEMBERS_MAX};
use crate::control::api::Event;
use crate::identity::PublicKey;
use downpour_proto::ReceiverId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

#[derive(Default)]
pub(super) struct Members {
    table: Mutex<BTreeMap<u32, Entry>>,
    /// Places for those who are about to join.
    promised: AtomicUsize,
}

/// A place for who joins. Free again when dropped without.
pub(super) struct Room<'a>(&'a Members);

impl Room<'_> {
    /// Binds a receiver's number to a node.
    pub(super) fn bind(self, receiver: ReceiverId, node: PublicKey) {
        self.0.lock().insert(receiver.0, Entry { node, latest: 0, events: None });
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.promised.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Entry {
    node: PublicKey,
    /// Number of the latest subscription.
    latest: u64,
    /// The only strong sender of the present stream of events; dropping it ends the stream.
    events: Option<mpsc::Sender<Event>>,
}

impl Members {
    /// A place for one more; `None` when the table is full.
    pub(super) fn room(&self) -> Option<Room<'_>> {
        let table = self.lock();
        let taken = table.len() + self.promised.load(Ordering::Relaxed);
        (taken < MEMBERS_MAX).then(|| {
            self.promised.fetch_add(1, Ordering::Relaxed);
            Room(self)
        })
    }

    /// The receiver's number is nobody's any more. Its stream of events ends, and the handler hears nothing of that.
    pub(super) fn forget(&self, receiver: ReceiverId) {
        self.lock().remove(&receiver.0);
    }

    /// Whether `node` joined as `receiver`.
    pub(super) fn is_bound(&self, receiver: ReceiverId, node: PublicKey) -> bool {
        self.lock().get(&receiver.0).is_some_and(|entry| entry.node == node)
    }

    /// Whether `node` has joined.
    pub(super) fn knows(&self, node: PublicKey) -> bool {
        self.lock().values().any(|entry| entry.node == node)
    }

    /// Opens the stream of events of `member` and tells the handler. Ends the one before.
    pub(super) fn subscribe<H: SessionHandler>(
        self: &Arc<Self>,
        member: Member,
        handler: &Arc<H>,
    ) -> Option<Subscribed> {
        let (sender, queue) = mpsc::channel(EVENT_QUEUE_MAX);
        let receiver = member.receiver;
        let overflowed = Arc::<AtomicBool>::default();
        let events =
            EventSender { queue: sender.downgrade(), receiver, overflowed: overflowed.clone() };
        let mut table = self.lock();
        let entry = table.get_mut(&receiver.0)?;
        entry.events = Some(sender);
        entry.latest += 1;
        let number = entry.latest;
        handler.subscribed(&member, events);
        drop(table);
        let (members, handler) = (self.clone(), handler.clone());
        let ended = move || members.unsubscribe(&member, number, &*handler);
        let subscription = Subscription { ended: Some(Box::new(ended)) };
        Some(Subscribed { queue, overflowed, subscription })
    }

    fn unsubscribe<H: SessionHandler>(&self, member: &Member, number: u64, handler: &H) {
        let mut table = self.lock();
        if let Some(entry) = table.get_mut(&member.receiver.0)
            && entry.latest == number
        {
            entry.events = None;
            handler.unsubscribed(member);
        }
    }

    /// Ends every stream of events, once what is queued has been sent.
    pub(super) fn end_streams(&self) {
        self.lock().values_mut().for_each(|entry| entry.events = None);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Entry>> {
        // Each change of the table is one assignment: a panic in between leaves it whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a new stream of events is fed by.
pub(super) struct Subscribed {
    pub(super) queue: mpsc::Receiver<Event>,
    pub(super) overflowed: Arc<AtomicBool>,
    pub(super) subscription: Subscription,
}

/// One stream of events. Tells of its end when dropped.
pub(super) struct Subscription {
    ended: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MEMBERS_MAX, Members};
    use crate::identity::Identity;
    use downpour_proto::ReceiverId;

    #[test]
    fn a_full_table_has_room_again_when_one_is_forgotten() {
        let (members, node) = (Members::default(), Identity::generate().public_key());
        let most = MEMBERS_MAX as u32;
        for number in 1..most {
            members.room().unwrap().bind(ReceiverId(number), node);
        }
        let last = members.room().unwrap();
        assert!(members.room().is_none(), "it is promised");
        drop(last);
        members.room().unwrap().bind(ReceiverId(most), node);
        assert!(members.room().is_none());
        members.forget(ReceiverId(7));
        assert!(!members.is_bound(ReceiverId(7), node) && members.is_bound(ReceiverId(8), node));
        assert!(members.room().is_some());
    }
}
