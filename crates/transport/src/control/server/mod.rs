//! The sender's side of control and bulk: one server, one session.
//!
//! 1. `mod` accepts connections and shakes hands; `crowd` says who has to make room, `stall` gives up on
//!    who takes nothing.
//! 2. `routes` checks token, session and receiver, reads the body and calls the [`SessionHandler`].
//! 3. `bulk` streams byte ranges and repair symbols, a piece at a time, each with the budget's leave.
//! 4. `members` knows who has joined, and who listens for events (`body`).
//!
//! `endpoint` is another server on the same ground: it belongs to no session and answers what its owner wants.

mod body;
mod bulk;
mod crowd;
mod endpoint;
mod fill;
mod handler;
mod limits;
mod members;
mod routes;
mod stall;

pub use endpoint::{Connections, Endpoint, Visitor};
pub use handler::{Admitted, Conn, EventSender, Extent, Member, NotListening, SessionHandler};
pub use limits::{BODY_LEN_MAX, ServerLimits};
pub use stall::Uplink;

use crate::control::api::{FEEDBACK_LABEL, SessionId, Token};
use crate::control::budget::PullBudget;
use crate::control::error::{ApiError, ErrorCode};
use crate::control::{hasten, measured_rtt};
use crate::identity::{ClientKeys, Identity, PublicKey, node_key, server_config};
use crate::stream::{BulkReport, begin_unpaced};
use crate::{FirstReads, Secret};
use body::Outgoing;
use bytes::Bytes;
use crowd::{Crowd, Place};
use downpour_proto::BlockKind;
use fill::Fill;
use hyper::Response;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use limits::{HEAD_LEN_MAX, HEADERS_MAX};
use members::Members;
use socket2::{Domain, Protocol, Socket, Type};
use stall::{Account, Accounts, SentAgain, StallGuard, Use};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

type Answer = Response<Outgoing>;

/// After a failed accept: most likely no file descriptor was left, which passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that wait to be accepted, as the standard library has it.
const BACKLOG: i32 = 128;

/// What a server is made of, besides its session.
#[derive(Debug)]
pub struct ServerSetup {
    /// Whose key the ticket names.
    pub identity: Arc<Identity>,
    /// Which node keys may connect.
    pub clients: ClientKeys,
    /// This run of the sender.
    pub session: SessionId,
    /// What the ticket admits with.
    pub token: Token,
    /// With this token bulk is given without encryption too, on the same port (`docs/protocol.md#WAN-7`).
    pub plain: Option<Token>,
    /// When the ticket ends, seconds since 1970. Receivers that have joined before may stay.
    pub expires_unix_s: u64,
    /// What all pulls share.
    pub budget: Arc<PullBudget>,
    /// What all sessions share whose receivers are told of each other's.
    pub uplink: Arc<Uplink>,
    /// What is allowed.
    pub limits: ServerLimits,
}

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on TCP {addr}: {source}{}", advice(source))]
pub struct BindError {
    /// Where.
    pub addr: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

/// Listens; on `[::]` at all addresses of this machine, of both families, whatever `net.ipv6.bindv6only` says.
pub fn listener(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listens for connections on which nobody waits long for what is lost, and which may carry bulk. Called on a runtime.
fn listen(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError { addr, source };
    let listener = listener(addr).map_err(failed)?;
    hasten(&listener);
    begin_unpaced(&listener);
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    Ok((listener, local_addr))
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program has this port",
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has this address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need root",
        _ => "",
    }
}

/// A running server. Dropping it ends all connections at once.
#[derive(Debug)]
pub struct ControlServer {
    local_addr: SocketAddr,
    strangers: Arc<AtomicU64>,
    accounts: Accounts,
    stop: watch::Sender<bool>,
    task: AbortOnDrop,
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What all connections share.
struct Core<H> {
    handler: Arc<H>,
    clients: ClientKeys,
    session: SessionId,
    token: Token,
    plain: Option<Token>,
    expires_unix_s: u64,
    budget: Arc<PullBudget>,
    limits: ServerLimits,
    members: Arc<Members>,
    data: Places,
    /// Its own: it is in memory, and a disk that does not answer keeps nobody from it.
    manifest: Places,
    accounts: Accounts,
    first_reads: Arc<FirstReads>,
}

impl ControlServer {
    /// Listens on `addr` (port 0: any) and serves on the present runtime.
    pub async fn bind<H: SessionHandler>(
        addr: SocketAddr,
        setup: ServerSetup,
        handler: Arc<H>,
    ) -> Result<Self, BindError> {
        let (listener, local_addr) = listen(addr)?;
        let tls = TlsAcceptor::from(server_config(&setup.identity));
        let core = Arc::new(Core {
            first_reads: handler.first_reads(),
            handler,
            clients: setup.clients,
            session: setup.session,
            token: setup.token,
            plain: setup.plain,
            expires_unix_s: setup.expires_unix_s,
            budget: setup.budget,
            members: Arc::default(),
            data: Places::new(&setup.limits),
            manifest: Places::new(&setup.limits),
            limits: setup.limits,
            accounts: Account::beside(setup.uplink),
        });
        let accounts = core.accounts.clone();
        let (stop, stopped) = watch::channel(false);
        let limits = &core.limits;
        let strangers = Arc::default();
        let (most, per_peer) = (limits.connections_max, limits.connections_per_peer_max);
        let crowd = Crowd::new(most, per_peer, Arc::clone(&strangers));
        let task = AbortOnDrop(tokio::spawn(accept(listener, tls, core, crowd, stopped)));
        Ok(Self { local_addr, strangers, accounts, stop, task })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Connections that have ended without showing the token.
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }

    /// Takes no more connections, ends the streams of events after what is queued, lets answers under
    /// way finish for at most `grace`, then ends all connections. What those of bulk did.
    pub async fn stop(mut self, grace: Duration) -> BulkReport {
        self.stop.send_replace(true);
        if timeout(grace, &mut self.task.0).await.is_err() {
            self.task.0.abort();
            // It ends at its next await.
            let _ = (&mut self.task.0).await;
        }
        let mut account = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut account.ended)
    }
}

async fn accept<H: SessionHandler>(
    listener: TcpListener,
    tls: TlsAcceptor,
    core: Arc<Core<H>>,
    crowd: Arc<Crowd>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) => {
                    if let Some(place) = crowd.enter(peer.ip()) {
                        let core = core.clone();
                        let tls = tls.clone();
                        connections.spawn(serve(tcp, peer, place, tls, core, stopped.clone()));
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = stopped.changed() => break,
        }
    }
    drop(listener);
    core.members.end_streams();
    while connections.join_next().await.is_some() {}
}

/// One connection from its first byte to its last.
async fn serve<H: SessionHandler>(
    tcp: TcpStream,
    peer: SocketAddr,
    place: Place,
    tls: TlsAcceptor,
    core: Arc<Core<H>>,
    mut stopped: watch::Receiver<bool>,
) {
    let place = Arc::new(place);
    // A listener on [::] sees IPv4 addresses in IPv6 clothes.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let limits = &core.limits;
    let first = async {
        match core.plain {
            Some(_) if !is_tls(&tcp).await => First::Plain(take(tcp, &core)),
            _ => shake_hands(tcp, peer, &tls, &core)
                .await
                .map_or(First::Nothing, |shaken| First::Tls(Box::new(shaken))),
        }
    };
    let first = tokio::select! {
        first = timeout(limits.handshake_time_max, first) => first.unwrap_or(First::Nothing),
        () = place.evicted() => return,
        _ = stopped.changed() => return,
    };
    match first {
        First::Nothing => {}
        First::Plain((io, used)) => {
            let proved = place.clone();
            let service = service_fn(|request| {
                let (core, used, place) = (core.clone(), used.clone(), proved.clone());
                async move { Ok(routes::answer_plain(core, &used, &place, request).await) }
            });
            serve_http(io, service, limits, &place, stopped).await;
        }
        First::Tls(shaken) => {
            let (io, conn, used) = *shaken;
            let context = Arc::new(Connection { conn, used, place: place.clone() });
            let service = service_fn(|request| {
                let (core, context) = (core.clone(), context.clone());
                async move {
                    let answer = routes::answer(core, context.clone(), request).await;
                    context.used.answered();
                    Ok(answer)
                }
            });
            serve_http(Fill::new(io), service, limits, &place, stopped).await;
        }
    }
}

/// What a connection begins with.
enum First {
    Tls(Box<(TlsStream<StallGuard>, Conn, Arc<Use>)>),
    Plain((StallGuard, Arc<Use>)),
    Nothing,
}

/// Whether a client begins a TLS handshake: the type of its first record.
async fn is_tls(tcp: &TcpStream) -> bool {
    const HANDSHAKE: u8 = 0x16;
    let mut first = [0];
    // A connection that ends here ends in the handshake.
    !matches!(tcp.peek(&mut first).await, Ok(1)) || first[0] == HANDSHAKE
}

/// Answers requests until the connection ends.
async fn serve_http<S>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    service: S,
    limits: &ServerLimits,
    place: &Place,
    mut stopped: watch::Receiver<bool>,
) where
    S: HttpService<Incoming, Error = Infallible>,
    S::ResBody: Body + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .max_buf_size(HEAD_LEN_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut http = pin!(http);
    tokio::select! {
        _ = http.as_mut() => return,
        () = place.evicted() => return,
        _ = stopped.changed() => {}
    }
    http.as_mut().graceful_shutdown();
    // What went wrong on a connection is the client's to see.
    let _ = http.await;
}

/// What the requests of one connection share.
struct Connection {
    conn: Conn,
    used: Arc<Use>,
    place: Arc<Place>,
}

fn take<H>(tcp: TcpStream, core: &Core<H>) -> (StallGuard, Arc<Use>) {
    let again = SentAgain::new(core.budget.clone());
    StallGuard::new(tcp, &core.limits, again, core.accounts.clone(), core.first_reads.clone())
}

async fn shake_hands<H: SessionHandler>(
    tcp: TcpStream,
    peer: SocketAddr,
    tls: &TlsAcceptor,
    core: &Core<H>,
) -> Option<(TlsStream<StallGuard>, Conn, Arc<Use>)> {
    let rtt = measured_rtt(&tcp);
    let (tcp, used) = take(tcp, core);
    let begun = Instant::now();
    let stream = tls.accept(tcp).await.ok()?;
    let handshake = begun.elapsed();
    let (_, tls) = stream.get_ref();
    let node: PublicKey = node_key(tls.peer_certificates()?.first()?)?;
    let session = core.session.as_bytes();
    let secret = tls.export_keying_material([0; 32], FEEDBACK_LABEL, Some(session)).ok()?;
    let conn = Conn { node, peer, feedback: Secret::new(secret), handshake, rtt };
    Some((stream, conn, used))
}

/// How many requests for bytes are served at once.
struct Places {
    reads: Arc<Semaphore>,
    repairs: Arc<Semaphore>,
}

impl Places {
    fn new(limits: &ServerLimits) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { reads: places(limits.reads_max), repairs: places(limits.repairs_max) }
    }
}

impl<H: SessionHandler> Core<H> {
    fn places(&self, kind: BlockKind) -> &Places {
        match kind {
            BlockKind::Data => &self.data,
            BlockKind::Manifest => &self.manifest,
        }
    }

    /// Runs `work` where it may block, a few at once of what it is about. It keeps its place until it has ended, though
    /// nobody may wait for it any more: a source that does not answer holds so few threads, however often it is asked.
    async fn blocking<T, W>(&self, kind: BlockKind, work: W) -> Result<T, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(&H) -> Result<T, ApiError> + Send + 'static,
    {
        let over = || ApiError::new(ErrorCode::SessionOver, "the session has ended");
        let permit = self.places(kind).reads.clone().acquire_owned().await.map_err(|_| over())?;
        let handler = self.handler.clone();
        let work = move || {
            let _permit = permit;
            work(&handler)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) if error.is_cancelled() => Err(over()),
            Err(_) => Err(ApiError::new(ErrorCode::Internal, "the sender failed; see its log")),
        }
    }
}

/// The answer that says no.
fn refusal(error: &ApiError) -> Answer {
    let mut answer = json(error);
    *answer.status_mut() = error.code.status();
    answer
}

fn json<T: serde::Serialize>(value: &T) -> Answer {
    // Types of this crate made of strings, numbers and lists: nothing that JSON could refuse.
    let bytes = serde_json::to_vec(value).expect("a body has a JSON form");
    let mut answer = Response::new(Outgoing::Whole(Some(Bytes::from(bytes))));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
