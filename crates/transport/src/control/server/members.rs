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
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

#[derive(Default)]
pub(super) struct Members {
    table: Mutex<BTreeMap<u32, Entry>>,
}

struct Entry {
    node: PublicKey,
    /// Number of the latest subscription.
    latest: u64,
    /// The only strong sender of the present stream of events; dropping it ends the stream.
    events: Option<mpsc::Sender<Event>>,
}

impl Members {
    /// Binds a receiver's number to a node; `false` when another node has it, or the table is full.
    pub(super) fn bind(&self, receiver: ReceiverId, node: PublicKey) -> bool {
        let mut table = self.lock();
        match table.get(&receiver.0) {
            Some(entry) => entry.node == node,
            None if table.len() >= MEMBERS_MAX => false,
            None => {
                table.insert(receiver.0, Entry { node, latest: 0, events: None });
                true
            }
        }
    }

    /// Whether `node` joined as `receiver`.
    pub(super) fn is_bound(&self, receiver: ReceiverId, node: PublicKey) -> bool {
        self.lock().get(&receiver.0).is_some_and(|entry| entry.node == node)
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
