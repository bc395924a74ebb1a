//! The receiver's side of control and bulk.
//!
//! One connection for requests, one for words, whose answers wait for the session's owner, one on which it asks for its turn, each
//! opened anew when the sender has closed it; one for the stream of events, opened while the receiver joins. Connections for pulls are
//! opened for a [`Puller`](crate::pull::Puller), which keeps them. The feedback secret is that of the connection on which the receiver joined, also when that is gone.

mod caller;
mod connection;
mod error;
mod events;
mod line;

pub use caller::{Answer, Bulk, CallError, Caller, CallerSetup};
pub use error::{AttemptError, ConnectError, EventsEnd, JoinError, PullError, RequestError};
pub use events::EventStream;
pub use line::Head;
pub(crate) use line::Line;

use crate::Secret;
use crate::control::api::{
    ClockReply, HaveRequest, JoinReply, JoinRequest, LeaveRequest, RECEIVER_HEADER, ReadyRequest,
    SESSION_HEADER, SignedReceipt, Token, ToldCode, TurnReply, TurnRequest, Word, clip,
};
use crate::identity::{Identity, PublicKey};
use crate::stream::{TUNING_HEADER, Tuning};
use bytes::Bytes;
use connection::{Connection, Target};
use downpour_proto::transfer::steer::Beside;
use downpour_proto::{BlockId, BlockKind};
use error::Fault;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// How often the sender's clock is asked for.
const CLOCK_TRIES: usize = 8;

/// The difference of the two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The sender's time less ours, in nanoseconds.
    pub ahead_ns: i64,
    /// By so much it may be wrong: half the time that the answer took.
    pub error: Duration,
}

/// What one client waits for. Each field's default is what its comment says.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Resolving a name, and a TCP connection: 5 s each.
    pub connect_time_max: Duration,
    /// A TLS handshake: 5 s.
    pub handshake_time_max: Duration,
    /// The answer to a request: 30 s.
    pub reply_time_max: Duration,
    /// The next bytes of a pull: 60 s, because pulls wait in the sender's budget.
    pub pull_time_max: Duration,
    /// The sender's next ping, or another sign of it ([`EventStream::heard_elsewhere`]): 5 s.
    pub silence_time_max: Duration,
    /// The next ping while only such other signs come: 8 s. A sender gives up a connection that takes nothing for 15 s, or
    /// that a NAT which has forgotten it resets, and the end here is not told, nor do pulls end by it; it waits for ten seconds then.
    pub deafness_time_max: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connect_time_max: Duration::from_secs(5),
            handshake_time_max: Duration::from_secs(5),
            reply_time_max: Duration::from_secs(30),
            pull_time_max: Duration::from_secs(60),
            silence_time_max: Duration::from_secs(5),
            deafness_time_max: Duration::from_secs(8),
        }
    }
}

/// How to reach a sender: what a ticket says, and who asks.
#[derive(Clone, Debug)]
pub struct ClientSetup {
    /// `host:port` each; tried in this order, with a short head start each.
    pub addrs: Vec<String>,
    /// The sender's key.
    pub server: PublicKey,
    /// What admits.
    pub token: Token,
    /// The receiver's own key.
    pub identity: Arc<Identity>,
    /// How long to wait for what.
    pub limits: ClientLimits,
}

/// What joining gave.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The sender's answer.
    pub reply: JoinReply,
    /// Seals this receiver's feedback.
    pub feedback: Secret,
    /// One round trip to the sender, by the TCP handshake.
    pub rtt: Duration,
    /// The address that led to the sender.
    pub sender: SocketAddr,
    /// This machine's address towards the sender.
    pub local: IpAddr,
}

/// Bytes to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// Of the data space or the manifest.
    Bytes(BlockKind, Range<u64>),
    /// Repair symbols of a block.
    Repair(BlockId, Range<u16>),
}

impl Pull {
    /// Of which blocks it is.
    pub const fn kind(&self) -> BlockKind {
        match self {
            Self::Bytes(kind, _) => *kind,
            Self::Repair(block, _) => block.kind(),
        }
    }
}

/// A receiver's way to its sender. All methods may be called at once.
pub struct ControlClient {
    target: Arc<Target>,
    token: Token,
    control: tokio::sync::Mutex<Option<Connection>>,
    words: tokio::sync::Mutex<Option<Connection>>,
    turns: tokio::sync::Mutex<Option<Connection>>,
    /// Opened ahead, for the events.
    ahead: Mutex<Option<JoinHandle<Result<Connection, ConnectError>>>>,
    joined: Mutex<Option<JoinReply>>,
    encrypts_all: AtomicBool,
}

impl ControlClient {
    /// Connects to the first address where the holder of the pinned key answers.
    pub async fn connect(setup: ClientSetup) -> Result<Self, ConnectError> {
        let target = Target::new(setup.addrs, (&setup.identity, setup.server), setup.limits);
        let token = setup.token;
        let control = tokio::sync::Mutex::new(Some(target.open().await?));
        let (ahead, joined) = (Mutex::default(), Mutex::default());
        Ok(Self {
            target,
            token,
            control,
            words: tokio::sync::Mutex::default(),
            turns: tokio::sync::Mutex::default(),
            ahead,
            joined,
            encrypts_all: AtomicBool::new(false),
        })
    }

    /// Asks to be taken in. On an error that passes, connect anew.
    pub async fn join(&self, request: &JoinRequest) -> Result<Joined, JoinError> {
        let mut control = self.control.lock().await;
        let mut connection = match control.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.target.open().await?,
        };
        let target = self.target.clone();
        *self.lock_ahead() = Some(tokio::spawn(async move { target.open().await }));
        let limit = self.target.limits.reply_time_max;
        let request = post("/v1/join", request, None);
        let bytes = connection.ask(&self.token, request, limit).await?;
        let nonsense = |reason: String| JoinError::Lost(format!("the answer has {reason}"));
        if let Ok(told) = serde_json::from_slice::<ToldCode>(&bytes)
            && let Some(number) = told.unknown()
        {
            return Err(unknown_code(number));
        }
        let reply: JoinReply =
            serde_json::from_slice(&bytes).map_err(|error| nonsense(error.to_string()))?;
        reply.check().map_err(|reason| nonsense(reason.to_owned()))?;
        let joined = Joined {
            feedback: connection.feedback(&reply.session)?,
            rtt: connection.rtt,
            sender: connection.peer,
            local: connection.local,
            reply: reply.clone(),
        };
        *self.lock_joined() = Some(reply);
        *control = Some(connection);
        Ok(joined)
    }

    /// Says how the join probe was heard.
    pub async fn ready(&self, request: ReadyRequest) -> Result<(), RequestError> {
        self.tell("/v1/ready", &request).await
    }

    /// Says which blocks need not come. A long list goes in several requests.
    pub async fn have(&self, request: HaveRequest) -> Result<(), RequestError> {
        for piece in request.into_pieces() {
            self.tell("/v1/have", &piece).await?;
        }
        Ok(())
    }

    /// Hands in a receipt.
    pub async fn receipt(&self, receipt: &SignedReceipt) -> Result<(), RequestError> {
        self.tell("/v1/receipt", receipt).await
    }

    /// Tells the session's owner something, which answers when it has done with it. On a connection of its own: nothing else
    /// that is to be said waits for that.
    pub async fn word(&self, text: String) -> Result<(), RequestError> {
        Ok(self.ask(&self.words, "/v1/word", &Word { text }).await.map(drop)?)
    }

    /// Says goodbye.
    pub async fn leave(&self, reason: &str, error: bool) -> Result<(), RequestError> {
        self.tell("/v1/leave", &LeaveRequest { reason: clip(reason).to_owned(), error }).await
    }

    /// Asks for the turn to try another setting, and how others are sent to meanwhile (`docs/protocol.md#WAN-9`). On a
    /// connection of its own: nobody waits for it, and it may be given up at any time.
    pub(crate) async fn turn(&self, wants: bool) -> Result<Beside, RequestError> {
        let bytes = self.ask(&self.turns, "/v1/turn", &TurnRequest { wants }).await?;
        let reply = serde_json::from_slice::<TurnReply>(&bytes);
        reply.map(|told| told.0).map_err(|error| RequestError::Lost(error.to_string()))
    }

    /// Listens for the sender's events, on a connection of its own.
    pub async fn events(&self) -> Result<EventStream, RequestError> {
        let ahead = self.lock_ahead().take();
        let mut connection = match ahead {
            // It ends by a panic only.
            Some(ahead) => ahead.await.map_err(|_| Fault::Lost("internal error".to_owned()))??,
            None => self.target.open().await?,
        };
        let limits = &self.target.limits;
        let request = get("/v1/events", self.lock_joined().as_ref());
        let response = connection.send(&self.token, request, limits.reply_time_max).await?;
        Ok(EventStream::new(connection, response.into_body(), limits))
    }

    /// A connection for bulk, with its socket set so.
    pub(crate) async fn line(&self, tuning: &Tuning) -> Result<Line, PullError> {
        if self.plain_token().is_some() {
            let reached = self.target.reach_plain(tuning).await;
            return reached.map(Line::plain).map_err(|error| Fault::from(error).into());
        }
        let reached = self.target.reach(tuning).await;
        reached.map(Line::new).map_err(|error| Fault::from(error).into())
    }

    /// What admits to bulk without encryption, if the sender gives it and nothing was found to be false.
    pub(crate) fn plain_token(&self) -> Option<Token> {
        let allowed = !self.encrypts_all.load(Ordering::Relaxed);
        self.lock_joined().as_ref().and_then(|reply| reply.plain_token).filter(|_| allowed)
    }

    /// From now on bulk comes encrypted, whatever the sender allows: somebody changes it on the way.
    pub fn encrypt_all(&self) {
        self.encrypts_all.store(true, Ordering::Relaxed);
    }

    /// How many bytes a pull gives, and at multiples of what number of them a part of it may begin.
    pub(crate) fn measure(&self, pull: &Pull) -> Result<(u64, u64), PullError> {
        match pull {
            Pull::Bytes(_, range) => Ok((range.end.saturating_sub(range.start), 1)),
            Pull::Repair(_, symbols) => {
                let joined = self.lock_joined();
                let symbol_len = joined.as_ref().ok_or(PullError::Rejoin)?.geometry.symbol_len;
                let symbol_len = u64::from(symbol_len);
                Ok((symbol_len * symbols.len() as u64, symbol_len))
            }
        }
    }

    /// The request for the bytes `span` of what `pull` gives.
    pub(crate) fn pull_request(
        &self,
        pull: &Pull,
        span: Range<u64>,
        tuning: &Tuning,
        is_plain: bool,
    ) -> Result<Vec<u8>, PullError> {
        let (path, range) = match pull {
            Pull::Bytes(kind, range) => {
                let path = match kind {
                    BlockKind::Data => "/v1/data",
                    BlockKind::Manifest => "/v1/manifest",
                };
                let (first, last) = (range.start + span.start, range.start + span.end - 1);
                (path.to_owned(), format!("range: bytes={first}-{last}\r\n"))
            }
            Pull::Repair(block, symbols) => {
                let (_, step) = self.measure(pull)?;
                let from = u64::from(symbols.start) + span.start / step;
                let count = (span.end - span.start) / step;
                (format!("/v1/repair/{block}?from={from}&count={count}"), String::new())
            }
        };
        let token = if is_plain { self.plain_token() } else { Some(self.token) };
        let token = token.ok_or(PullError::Rejoin)?.to_text();
        let mut text = format!(
            "GET {path} HTTP/1.1\r\nhost: downpour\r\nauthorization: Bearer {token}\r\n{range}"
        );
        if let Some(reply) = self.lock_joined().as_ref() {
            let (session, receiver) = (reply.session.to_text(), reply.receiver);
            text.push_str(&format!(
                "{SESSION_HEADER}: {session}\r\n{RECEIVER_HEADER}: {receiver}\r\n"
            ));
        }
        if *tuning != Tuning::default() {
            text.push_str(&format!("{TUNING_HEADER}: {tuning}\r\n"));
        }
        text.push_str("\r\n");
        Ok(text.into_bytes())
    }

    /// How long to wait for the next bytes of a pull.
    pub(crate) fn pull_time_max(&self) -> Duration {
        self.target.limits.pull_time_max
    }

    /// How far the sender's clock is before ours, by the answer that came back soonest of a few.
    pub async fn clock(&self) -> Result<ClockOffset, RequestError> {
        let limit = self.target.limits.reply_time_max;
        let mut connection = self.target.open().await?;
        let mut best: Option<ClockOffset> = None;
        for _ in 0..CLOCK_TRIES {
            let request = get("/v1/clock", self.lock_joined().as_ref());
            let (asked, begun) = (SystemTime::now(), Instant::now());
            let bytes = connection.ask(&self.token, request, limit).await?;
            let took = begun.elapsed();
            let Ok(reply) = serde_json::from_slice::<ClockReply>(&bytes) else { break };
            let asked = asked.duration_since(UNIX_EPOCH).unwrap_or_default();
            let ours = (asked + took / 2).as_nanos() as i64;
            let theirs = i64::try_from(reply.unix_ns).unwrap_or(i64::MAX);
            let offset = ClockOffset { ahead_ns: theirs.saturating_sub(ours), error: took / 2 };
            if best.is_none_or(|best| offset.error < best.error) {
                best = Some(offset);
            }
        }
        best.ok_or_else(|| RequestError::Lost("the sender does not tell its time".to_owned()))
    }

    /// A message whose answer is nothing.
    async fn tell<T: Serialize>(&self, path: &str, body: &T) -> Result<(), RequestError> {
        Ok(self.ask(&self.control, path, body).await.map(drop)?)
    }

    /// Sends a message and gives its answer, on the connection that is kept or on a new one. All of them can be sent twice.
    async fn ask<T: Serialize>(
        &self,
        kept: &tokio::sync::Mutex<Option<Connection>>,
        path: &str,
        body: &T,
    ) -> Result<Bytes, Fault> {
        let limit = self.target.limits.reply_time_max;
        let request = post(path, body, self.lock_joined().as_ref());
        let mut kept = kept.lock().await;
        let mut before = kept.take().filter(|connection| !connection.is_closed());
        loop {
            let is_new = before.is_none();
            let mut connection = match before.take() {
                Some(connection) => connection,
                None => self.target.open().await?,
            };
            match connection.ask(&self.token, request.clone(), limit).await {
                Err(Fault::Lost(why)) if is_new => return Err(Fault::Lost(why)),
                Err(Fault::Lost(_)) => {}
                answer => {
                    *kept = Some(connection);
                    return answer;
                }
            }
        }
    }

    fn lock_ahead(&self) -> MutexGuard<'_, Option<JoinHandle<Result<Connection, ConnectError>>>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_joined(&self) -> MutexGuard<'_, Option<JoinReply>> {
        // All of these are changed by one assignment: a panic in between leaves them whole.
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of a session that is sent in a code of a later version (`docs/protocol.md#CODE-3`).
fn unknown_code(number: u64) -> JoinError {
    JoinError::WrongVersion(format!(
        "the session is sent with erasure code {number}, which this downpour does not know: install the \
         sender's version here, or have it sent without --code"
    ))
}

pub(crate) fn silent(limit: Duration) -> Fault {
    Fault::Lost(format!("nothing came for {limit:?}"))
}

fn get(path: &str, joined: Option<&JoinReply>) -> Request<Full<Bytes>> {
    request(Method::GET, path, Bytes::new(), joined)
}

fn post<T: Serialize>(path: &str, body: &T, joined: Option<&JoinReply>) -> Request<Full<Bytes>> {
    // Types of this crate made of strings, numbers and lists: nothing that JSON could refuse.
    let body = serde_json::to_vec(body).expect("a body has a JSON form");
    let mut request = request(Method::POST, path, body.into(), joined);
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    request
}

fn request(
    method: Method,
    path: &str,
    body: Bytes,
    joined: Option<&JoinReply>,
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    // Made here of constants and digits.
    *request.uri_mut() = path.parse().expect("constants and digits");
    if let Some(reply) = joined {
        let headers = request.headers_mut();
        headers.insert(SESSION_HEADER, ascii(&reply.session.to_text()));
        headers.insert(RECEIVER_HEADER, ascii(&reply.receiver.to_string()));
    }
    request
}

fn ascii(text: &str) -> HeaderValue {
    // Digits, base64url and constants: letters that headers may have.
    HeaderValue::from_str(text).expect("letters that headers may have")
}
