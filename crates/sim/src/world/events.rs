//! What will happen, in order of time and, within an instant, of insertion.

use downpour_proto::receiver::{Pull, WorkDone as ReceiverDone};
use downpour_proto::sender::{Delivery, WorkDone as SenderDone};
use downpour_proto::{ReceiverId, Timestamp};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Index into the world's receivers.
pub(super) type Index = usize;

/// Whose process notices an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Host {
    Sender,
    Receiver(Index),
    /// The network's, or the control plane's own.
    None,
}

impl Event {
    pub(super) const fn host(&self) -> Host {
        match self {
            Self::SenderTimer
            | Self::SenderWork(_)
            | Self::Feedback(..)
            | Self::ToSender(..)
            | Self::Insert => Host::Sender,
            Self::Message(index)
            | Self::ReceiverTimer(index)
            | Self::ReceiverWork(index, _)
            | Self::ToReceiver(index, _) => Host::Receiver(*index),
            Self::GroupMessage(_) | Self::Join(_) | Self::Death(_) | Self::Serve | Self::Ends => {
                Host::None
            }
        }
    }
}

#[derive(Debug)]
pub(super) enum Event {
    SenderTimer,
    SenderWork(SenderDone),
    /// A message of the stream is at the group's receivers.
    GroupMessage(usize),
    /// One is at this receiver.
    Message(Index),
    ReceiverTimer(Index),
    ReceiverWork(Index, ReceiverDone),
    /// It came at this time to the sender's host.
    Feedback(ReceiverId, Timestamp, Vec<u8>),
    /// A product's time has come.
    Insert,
    Join(Index),
    Death(Index),
    ToSender(ReceiverId, ToSender),
    ToReceiver(Index, ToReceiver),
    /// The pull server may send again.
    Serve,
    /// The control plane tells those who do not hear the stream how far it is.
    Ends,
}

/// Control messages, over TLS.
#[derive(Debug)]
pub(super) enum ToSender {
    Delivery(Delivery),
    Pull(Pull),
    /// It has everything.
    Receipt,
}

#[derive(Debug)]
pub(super) enum ToReceiver {
    OnStream(bool),
    Ends(u32, u32, bool),
    Pulled(Pull),
    PullFailed(Pull),
}

#[derive(Debug)]
struct Entry {
    at: Timestamp,
    inserted: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.inserted).cmp(&(other.at, other.inserted))
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    inserted: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Timestamp, event: Event) {
        self.inserted += 1;
        self.heap.push(Reverse(Entry { at, inserted: self.inserted, event }));
    }

    pub(super) fn pop(&mut self) -> Option<(Timestamp, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}
