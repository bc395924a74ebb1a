//! What the session does for the endpoint: the seam between HTTP and the session.

use crate::control::api::{
    Event, HaveRequest, JoinReply, JoinRequest, LeaveRequest, ReadyRequest, Receipt, SignedReceipt,
    Word,
};
use crate::control::error::{ApiError, ErrorCode};
use crate::identity::PublicKey;
use crate::{FirstReads, Part, Secret};
use downpour_proto::{BlockId, BlockKind, Code, ReceiverId};
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A connection, as its TLS handshake proved it.
#[derive(Clone, Debug)]
pub struct Conn {
    /// The client's node key.
    pub node: PublicKey,
    /// The client's address.
    pub peer: SocketAddr,
    /// Exported from this connection with the session's id: seals the feedback of the receiver that
    /// joins on it.
    pub feedback: Secret,
    /// How long the handshake took: one round trip and a little arithmetic.
    pub handshake: Duration,
    /// Its round trip as the kernel had measured it before that, if it had.
    pub rtt: Option<Duration>,
}

/// A receiver that was taken in.
#[derive(Debug)]
pub struct Admitted {
    /// What it is told.
    pub reply: JoinReply,
    /// Its former self, whose number is nobody's from now on.
    pub replaced: Option<ReceiverId>,
}

/// A receiver that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub receiver: ReceiverId,
    /// Its node key: the one that joined, checked at each request.
    pub node: PublicKey,
    /// Where this request came from.
    pub peer: SocketAddr,
}

/// How much of a sequence of bytes there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes that can be read now: `0 .. len`.
    pub len: u64,
    /// Whether that is all there will be.
    pub complete: bool,
}

/// The session, as the server sees it.
///
/// The first six answer one request each; they run on the runtime and must not block. What they refuse
/// goes to the client as it is.
pub trait SessionHandler: Send + Sync + 'static {
    /// What the session's blocks are coded in.
    fn code(&self) -> Code;

    /// A receiver asks to be taken in; it knows the code. The reply's receiver number is bound to `from.node` henceforth.
    fn join(
        &self,
        from: &Conn,
        request: JoinRequest,
    ) -> impl Future<Output = Result<Admitted, ApiError>> + Send;

    /// A receiver has heard the join probe, or not.
    fn ready(
        &self,
        member: &Member,
        request: ReadyRequest,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// A receiver holds these blocks. The ranges ascend and do not overlap.
    fn have(
        &self,
        member: &Member,
        request: HaveRequest,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// A receipt. Signature, session and receiver have been checked; `proof` is for keeping.
    fn receipt(
        &self,
        member: &Member,
        receipt: Receipt,
        proof: SignedReceipt,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// A receiver goes.
    fn leave(
        &self,
        member: &Member,
        request: LeaveRequest,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// A receiver tells the session's owner something. A session whose owner does not listen has no such path.
    fn word(
        &self,
        member: &Member,
        word: Word,
    ) -> impl Future<Output = Result<(), ApiError>> + Send {
        let _ = (member, word);
        std::future::ready(Err(ApiError::new(ErrorCode::NotFound, "nobody here listens to words")))
    }

    /// A receiver listens for events: it lives. Must return at once, and must not call the server. An
    /// earlier subscription of the same receiver has ended by this.
    fn subscribed(&self, member: &Member, events: EventSender);

    /// The receiver's last subscription has ended: it died, or left. Must return at once, and must not
    /// call the server.
    fn unsubscribed(&self, member: &Member);

    /// How long the data space or the manifest is by now. Must return at once.
    fn extent(&self, kind: BlockKind) -> Extent;

    /// Data of so many bytes are on their way to who says that it is `receiver`; where they go without encryption nobody has
    /// proved it. Must return at once.
    fn given(&self, receiver: ReceiverId, bytes: u64) {
        let _ = (receiver, bytes);
    }

    /// What is read before it can be asked for: always the same.
    fn first_reads(&self) -> Arc<FirstReads> {
        Arc::default()
    }

    /// `range` of the data space, if all of it is in memory. Must return at once.
    fn kept(&self, range: Range<u64>) -> Option<Vec<Part>> {
        let _ = range;
        None
    }

    /// Reads `range` of the data space or the manifest: within [`Self::extent`], at most
    /// [`crate::control::PIECE_LEN_MAX`] bytes. Runs on a thread of its own and may block; the manifest waits for no disk.
    fn read(&self, kind: BlockKind, range: Range<u64>) -> Result<Vec<u8>, ApiError>;

    /// Makes the repair symbols `symbols` of `block`, one after the other. The range is within those that the
    /// code has; whether the block exists is not known. Runs on a thread of its own and may block.
    fn repair(&self, block: BlockId, symbols: Range<u16>) -> Result<Vec<u8>, ApiError>;
}

/// The way to one receiver's stream of events.
#[derive(Clone, Debug)]
pub struct EventSender {
    /// Weak, because the server decides when a stream ends.
    pub(super) queue: mpsc::WeakSender<Event>,
    pub(super) receiver: ReceiverId,
    /// An event found no room: the stream has to end, because one is missing.
    pub(super) overflowed: Arc<AtomicBool>,
}

/// The receiver does not listen any more. The handler is told by [`SessionHandler::unsubscribed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("receiver {receiver} does not listen any more")]
pub struct NotListening {
    /// Which one.
    pub receiver: ReceiverId,
}

impl EventSender {
    /// Queues an event. Never blocks; callable from any thread. An event that finds no room ends the stream,
    /// so that a receiver never misses one without noticing. Reasons are cut to their limit.
    pub fn send(&self, event: Event) -> Result<(), NotListening> {
        let gone = NotListening { receiver: self.receiver };
        let queue = self.queue.upgrade().ok_or(gone)?;
        queue.try_send(event.clipped()).map_err(|_| {
            self.overflowed.store(true, Ordering::Relaxed);
            gone
        })
    }

    /// How many more events its queue has room for; 0 when nobody listens.
    pub fn room(&self) -> usize {
        self.queue.upgrade().map_or(0, |queue| queue.capacity())
    }
}
