//! One HTTP/1.1 connection to the sender, and how to get one.
//!
//! All addresses of a ticket are tried, each a moment after the one before, and then all again, until each has
//! given an answer: the first that shows the pinned key wins; later connections begin with that one. The further
//! turns are for lossy links: waiting for the kernel to repeat a lost SYN would cost a second.

use super::ClientLimits;
use super::error::{AttemptError, ConnectError, Fault, innermost};
use crate::Secret;
use crate::control::api::{FEEDBACK_LABEL, SessionId, Token};
use crate::control::error::ApiError;
use crate::control::{hasten, measured_rtt};
use crate::identity::{Identity, PublicKey, client_config, wrong_server_key};
use crate::stream::{ConnectionReport, Tuning};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Addresses of one ticket that are tried; further ones are not looked at.
pub(super) const ADDRS_MAX: usize = 16;
/// How often each address is tried: what a lost SYN, or a lost refusal, holds up for a second, the next turn does not. So
/// many fill that second.
const TURNS: usize = 6;
/// Between the starts of two attempts: at first, doubled each time, and at most. Where the round trip is known, not
/// before three of them: an attempt takes two.
const STAGGER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
/// Bytes of an answer that is not bulk.
pub(super) const REPLY_LEN_MAX: usize = 1024 * 1024;
/// Bytes that one read takes from the socket at most.
const READ_AHEAD: usize = 128 << 10;

/// Where the sender is and how to speak to it.
pub(super) struct Target {
    pub(super) addrs: Vec<String>,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) limits: ClientLimits,
    /// The address that led to the sender before, and its round trip.
    pub(super) known: Mutex<Option<(SocketAddr, Duration)>>,
}

pub(super) struct Connection {
    http: SendRequest<Full<Bytes>>,
    tls: SharedTls,
    pub(super) peer: SocketAddr,
    pub(super) local: IpAddr,
    pub(super) rtt: Duration,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A TLS stream to the sender. It reads ahead, because TLS by itself reads four kilobytes at a time.
pub(super) type Tls = TlsStream<BufReader<TcpStream>>;

/// A way to the sender, before anything was said.
pub(super) struct Reached {
    pub(super) tls: Tls,
    pub(super) peer: SocketAddr,
    pub(super) local: IpAddr,
    pub(super) rtt: Duration,
}

impl Target {
    /// Nothing is connected yet.
    pub(super) fn new(
        addrs: Vec<String>,
        (identity, server): (&Identity, PublicKey),
        limits: ClientLimits,
    ) -> Arc<Self> {
        let tls = client_config(identity, server);
        Arc::new(Self { addrs, tls, limits, known: Mutex::new(None) })
    }

    /// A new connection for requests.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let Reached { tls, peer, local, rtt } = self.reach(&Tuning::default()).await?;
        let tls = SharedTls(Arc::new(Mutex::new(tls)));
        let (http, driver) = handshake(TokioIo::new(tls.clone())).await.map_err(|error| {
            ConnectError { tried: vec![(peer.to_string(), AttemptError::Tls(innermost(&error)))] }
        })?;
        // Its errors come to light in the request that they break.
        let driver = tokio::spawn(async move { drop(driver.await) });
        Ok(Connection { http, tls, peer, local, rtt, driver })
    }

    /// The first address where the holder of the pinned key answers.
    pub(super) async fn reach(self: &Arc<Self>, tuning: &Tuning) -> Result<Reached, ConnectError> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = known.map_or(Duration::ZERO, |(_, rtt)| 3 * rtt);
        let known = known.map(|(addr, _)| addr.to_string());
        let others = self.addrs.iter().take(ADDRS_MAX).filter(|addr| Some(*addr) != known.as_ref());
        let addrs: Vec<String> = known.iter().chain(others).cloned().collect();
        let mut attempts = JoinSet::new();
        let mut unanswered: BTreeSet<String> = addrs.iter().cloned().collect();
        let turns = std::iter::repeat_n(addrs, TURNS).flatten();
        let (mut start, mut stagger) = (Duration::ZERO, STAGGER.0.max(patience));
        for addr in turns {
            let (target, tuning) = (self.clone(), tuning.clone());
            attempts.spawn(async move {
                sleep(start).await;
                let result = target.attempt(&addr, &tuning).await;
                (addr, result)
            });
            start += stagger;
            stagger = (stagger * 2).min(STAGGER.1.max(patience));
        }
        let mut tried = Vec::new();
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok((_, Ok(reached))) => {
                    let known = Some((reached.peer, reached.rtt));
                    *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
                    return Ok(reached);
                }
                Ok((addr, Err(error))) => {
                    if error.is_answer() {
                        unanswered.remove(&addr);
                    }
                    if tried.iter().all(|(known, _)| *known != addr) {
                        tried.push((addr, error));
                    }
                }
                Err(_) => {}
            }
            if unanswered.is_empty() {
                break; // A further turn would hear the same.
            }
        }
        Err(ConnectError { tried })
    }

    /// A connection without encryption, to where the one with it led.
    pub(super) async fn reach_plain(
        &self,
        tuning: &Tuning,
    ) -> Result<(TcpStream, SocketAddr), ConnectError> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((addr, _)) = known else { return Err(ConnectError { tried: Vec::new() }) };
        match self.connect_tcp(addr).await {
            Ok(tcp) => {
                tuning.set_receiving(&tcp);
                Ok((tcp, addr))
            }
            Err(error) => Err(ConnectError { tried: vec![(addr.to_string(), error)] }),
        }
    }

    async fn attempt(&self, addr: &str, tuning: &Tuning) -> Result<Reached, AttemptError> {
        let resolve = tokio::net::lookup_host(addr);
        let resolved = timeout(self.limits.connect_time_max, resolve).await;
        let resolved = resolved.map_err(|_| AttemptError::TimedOut)?;
        let resolved = resolved.map_err(|error| AttemptError::Resolve(error.to_string()))?;
        let mut last = AttemptError::Resolve("no address".to_owned());
        for addr in resolved {
            match self.connect(addr, tuning).await {
                Ok(reached) => return Ok(reached),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_tcp(&self, addr: SocketAddr) -> Result<TcpStream, AttemptError> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.map_err(cannot_connect)?;
        hasten(&socket);
        let tcp = timeout(self.limits.connect_time_max, socket.connect(addr)).await;
        let tcp = tcp.map_err(|_| AttemptError::TimedOut)?.map_err(cannot_connect)?;
        // Where the kernel lacks it, a dead sender is noticed by the events' silence alone.
        let _ = SockRef::from(&tcp).set_tcp_user_timeout(Some(self.limits.reply_time_max));
        Ok(tcp)
    }

    async fn connect(&self, addr: SocketAddr, tuning: &Tuning) -> Result<Reached, AttemptError> {
        let begun = Instant::now();
        let tcp = self.connect_tcp(addr).await?;
        let rtt = measured_rtt(&tcp).unwrap_or_else(|| begun.elapsed());
        let local = tcp.local_addr().map_err(cannot_connect)?.ip();
        let name = ServerName::try_from("downpour").expect("a valid name");
        let tcp = BufReader::with_capacity(READ_AHEAD, tcp);
        let shake = TlsConnector::from(self.tls.clone()).connect(name, tcp);
        let tls = timeout(self.limits.handshake_time_max, shake).await;
        let tls = tls.map_err(|_| AttemptError::TimedOut)?.map_err(tls_failure)?;
        tuning.set_receiving(tls.get_ref().0.get_ref());
        Ok(Reached { tls, peer: addr, local, rtt })
    }
}

fn cannot_connect(error: io::Error) -> AttemptError {
    AttemptError::Connect(error.to_string())
}

fn tls_failure(error: io::Error) -> AttemptError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match (tls.and_then(wrong_server_key), tls) {
        (Some(wrong), _) => AttemptError::WrongKey(wrong),
        (None, Some(tls)) => AttemptError::Tls(tls.to_string()),
        (None, None) => AttemptError::Broken(error.to_string()),
    }
}

impl Connection {
    /// Whether the other side has closed it, or cannot reach this one any more.
    pub(super) fn is_closed(&self) -> bool {
        self.http.is_closed() || self.is_stranded()
    }

    /// Whether its address is no more this machine's: then nothing comes or goes, and the kernel waits for minutes.
    pub(super) fn is_stranded(&self) -> bool {
        let bound = UdpSocket::bind((self.local, 0));
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
    }

    /// What the kernel tells of it.
    pub(super) fn report(&self) -> ConnectionReport {
        ConnectionReport::of(self.tls.lock().get_ref().0.get_ref(), self.peer)
    }

    /// The secret that this connection and nothing else shares with the sender.
    pub(super) fn feedback(&self, session: &SessionId) -> Result<Secret, Fault> {
        let tls = self.tls.lock();
        tls.get_ref()
            .1
            .export_keying_material([0; 32], FEEDBACK_LABEL, Some(session.as_bytes()))
            .map(Secret::new)
            .map_err(|error| Fault::Lost(error.to_string()))
    }

    /// Sends a request as it is and gives the answer, whatever it says.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        self.http.ready().await?;
        self.http.send_request(request).await
    }

    /// Sends a request with the ticket's token. An answer that says no is an error.
    pub(super) async fn send(
        &mut self,
        token: &Token,
        mut request: Request<Full<Bytes>>,
        reply_time_max: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("downpour"));
        let bearer = format!("Bearer {}", token.to_text());
        // Base64url is made of letters that headers may have.
        let mut bearer = HeaderValue::from_str(&bearer).expect("letters");
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        let response = timeout(reply_time_max, self.exchange(request))
            .await
            .map_err(|_| Fault::Lost(format!("no answer within {reply_time_max:?}")))??;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = read_reply(response.into_body(), reply_time_max).await?;
        match serde_json::from_slice::<ApiError>(&bytes) {
            Ok(error) => Err(Fault::Refused(error)),
            Err(_) => Err(Fault::BadReply(format!("HTTP status {status} without a reason"))),
        }
    }

    /// The same for an answer that is short: the whole of it.
    pub(super) async fn ask(
        &mut self,
        token: &Token,
        request: Request<Full<Bytes>>,
        reply_time_max: Duration,
    ) -> Result<Bytes, Fault> {
        let answer = self.send(token, request, reply_time_max).await?;
        read_reply(answer.into_body(), reply_time_max).await
    }
}

/// The whole of a short answer.
async fn read_reply(body: Incoming, time_max: Duration) -> Result<Bytes, Fault> {
    match timeout(time_max, Limited::new(body, REPLY_LEN_MAX).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) => Err(Fault::Lost(error.to_string())),
        Err(_) => Err(Fault::Lost("the answer broke off".to_owned())),
    }
}

/// A TLS stream that hyper drives and from which keys can still be exported.
#[derive(Clone)]
struct SharedTls(Arc<Mutex<Tls>>);

impl SharedTls {
    fn lock(&self) -> MutexGuard<'_, Tls> {
        // After a panic inside rustls the connection fails by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for SharedTls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(cx, buf)
    }
}

impl AsyncWrite for SharedTls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(cx)
    }
}
