//! What an answer consists of: nothing or a little at once, pieces as they may go, or events as they come.

use super::members::Subscription;
use crate::Part;
use crate::control::api::Event;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio::time::Interval;

/// The bytes cannot be had after all. The connection ends in the middle of the body, so that the client
/// sees it; its next request for the rest is told why.
#[derive(Debug, thiserror::Error)]
#[error("the rest of the body cannot be read")]
pub(super) struct BrokenOff;

pub(super) enum Outgoing {
    Whole(Option<Bytes>),
    Pieces {
        queue: mpsc::Receiver<Result<Bytes, BrokenOff>>,
        left: u64,
    },
    /// It is in memory already.
    Kept {
        parts: VecDeque<Part>,
        left: u64,
    },
    Events(EventBody),
}

impl Outgoing {
    pub(super) fn empty() -> Self {
        Self::Whole(None)
    }
}

/// Lines of JSON: the queue's events, and a ping each second. When the connection goes, hyper drops this, and
/// with it the subscription.
pub(super) struct EventBody {
    pub(super) queue: mpsc::Receiver<Event>,
    pub(super) overflowed: Arc<AtomicBool>,
    pub(super) ping: Interval,
    pub(super) _subscription: Subscription,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces { queue, left } => {
                let piece = ready!(queue.poll_recv(cx));
                if let Some(Ok(bytes)) = &piece {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
            }
            Self::Kept { parts, left } => {
                let part = parts.pop_front();
                *left -= part.as_ref().map_or(0, |part| part.len() as u64);
                Poll::Ready(part.map(|part| Ok(Frame::data(part.0))))
            }
            Self::Events(events) => events.poll_line(cx).map(|line| line.map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Pieces { left, .. } | Self::Kept { left, .. } => *left == 0,
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Pieces { left, .. } | Self::Kept { left, .. } => SizeHint::with_exact(*left),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

impl EventBody {
    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.overflowed.load(Ordering::Relaxed) {
            return Poll::Ready(None);
        }
        let event = match self.queue.poll_recv(cx) {
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                ready!(self.ping.poll_tick(cx));
                Event::Ping
            }
        };
        // An enum of strings: nothing that JSON could refuse.
        let mut line = serde_json::to_vec(&event).expect("an event has a JSON form");
        line.push(b'\n');
        Poll::Ready(Some(line.into()))
    }
}
