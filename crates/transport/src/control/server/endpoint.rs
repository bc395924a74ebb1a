//! A TLS server that belongs to no session: its owner answers the requests, as a daemon's API does.
//!
//! It listens, shakes hands, bounds and times connections as a session's server does, with the same crowd, stall guard
//! and limits. A client that shows a certificate is known by its node key; one that shows none may still
//! be let in by what it says. Who that is the owner decides, and tells with [`Visitor::prove`], so that the
//! connection does not have to make room for a stranger's.
//!
//! An answer may be bulk ([`Visitor::carry_bulk`]): the socket is set then as who asks wants it.
//!
//! Deliberately absent: routes, tokens, bodies.

use super::crowd::{Crowd, Place};
use super::fill::Fill;
use super::limits::ServerLimits;
use super::routes::carry_bulk;
use super::stall::{Accounts, SentAgain, StallGuard, Use};
use super::{ACCEPT_PAUSE, BindError, listen, serve_http};
use crate::control::budget::PullBudget;
use crate::identity::{Identity, PublicKey, node_key, open_server_config};
use downpour_proto::Rate;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Who asks. Each request carries it as an extension.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// The key of the node, when it showed one.
    pub node: Option<PublicKey>,
    /// Where it comes from.
    pub addr: SocketAddr,
    place: Arc<Place>,
    used: Arc<Use>,
}

impl Visitor {
    /// The answer is bulk: the connection is set as the request's headers ask, and the answer's tell how it does.
    pub fn carry_bulk(&self, asked: &HeaderMap, answer: &mut HeaderMap) {
        carry_bulk(&self.used, asked, answer);
    }

    /// So long a part of such an answer was read from the disk, with nothing else to be sent meanwhile.
    pub fn waited_for_disk(&self, time: Duration) {
        self.used.waited_for_disk(time);
    }

    /// This one is known: the connection stays when others come.
    pub fn prove(&self) {
        self.place.prove();
    }
}

/// What is connected, counted.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Crowd>);

impl Connections {
    /// Connections now.
    pub fn now(&self) -> usize {
        self.0.len()
    }

    /// Connections that have ended without being known.
    pub fn strangers(&self) -> u64 {
        self.0.strangers()
    }
}

/// A server that listens and does not serve yet.
pub struct Endpoint {
    listener: TcpListener,
    local_addr: SocketAddr,
    tls: TlsAcceptor,
    crowd: Arc<Crowd>,
    limits: Arc<ServerLimits>,
}

impl Endpoint {
    /// Listens on `addr` (port 0: any).
    pub async fn bind(
        addr: SocketAddr,
        identity: &Identity,
        limits: ServerLimits,
    ) -> Result<Self, BindError> {
        let (listener, local_addr) = listen(addr)?;
        let tls = TlsAcceptor::from(open_server_config(identity));
        let (most, per_peer) = (limits.connections_max, limits.connections_per_peer_max);
        let crowd = Crowd::new(most, per_peer, Arc::default());
        Ok(Self { listener, local_addr, tls, crowd, limits: Arc::new(limits) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Counts what is connected, also later.
    pub fn connections(&self) -> Connections {
        Connections(self.crowd.clone())
    }

    /// Answers requests until `stop` is ready. Then no connection is taken any more, and answers under way may
    /// finish for at most `grace`. Dropping this ends all at once.
    pub async fn serve<F, A, B>(self, answer: F, stop: impl Future<Output = ()>, grace: Duration)
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut connections = JoinSet::new();
        let (stopping, stopped) = watch::channel(false);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((tcp, addr)) => {
                        if let Some(place) = self.crowd.enter(addr.ip()) {
                            let guest = Guest {
                                addr: SocketAddr::new(addr.ip().to_canonical(), addr.port()),
                                place: Arc::new(place),
                                limits: self.limits.clone(),
                                stopped: stopped.clone(),
                            };
                            connections.spawn(guest.serve(tcp, self.tls.clone(), answer.clone()));
                        }
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
                () = &mut stop => break,
            }
        }
        drop(self.listener);
        stopping.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        // Whoever is not done by then is cut off.
        let _ = timeout(grace, all).await;
    }
}

/// One connection.
struct Guest {
    addr: SocketAddr,
    place: Arc<Place>,
    limits: Arc<ServerLimits>,
    stopped: watch::Receiver<bool>,
}

impl Guest {
    /// From its first byte to its last.
    async fn serve<F, A, B>(self, tcp: TcpStream, tls: TlsAcceptor, answer: F)
    where
        F: Fn(Request<Incoming>) -> A + Clone,
        A: Future<Output = Response<B>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut stopped = self.stopped.clone();
        let shaken = tokio::select! {
            shaken = timeout(self.limits.handshake_time_max, self.shake_hands(tcp, &tls)) => shaken,
            () = self.place.evicted() => return,
            _ = stopped.changed() => return,
        };
        let Ok(Some((io, used))) = shaken else { return };
        let shown = io.get_ref().1.peer_certificates().and_then(|shown| node_key(shown.first()?));
        let visitor = Visitor { node: shown, addr: self.addr, place: self.place.clone(), used };
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(visitor.clone());
            let (answer, used) = (answer(request), visitor.used.clone());
            async move {
                let answer = answer.await;
                used.answered();
                Ok::<_, Infallible>(answer)
            }
        });
        serve_http(Fill::new(io), service, &self.limits, &self.place, stopped).await;
    }

    async fn shake_hands(
        &self,
        tcp: TcpStream,
        tls: &TlsAcceptor,
    ) -> Option<(TlsStream<StallGuard>, Arc<Use>)> {
        // Nothing is charged for and nothing accounted: who fetches does that.
        let again = SentAgain::new(PullBudget::new(Rate::MAX));
        let (accounts, reads) = (Accounts::default(), Arc::default());
        let (tcp, used) = StallGuard::new(tcp, &self.limits, again, accounts, reads);
        tls.accept(tcp).await.ok().map(|io| (io, used))
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, Visitor};
    use crate::control::{CallError, Caller, CallerSetup, ClientLimits, ServerLimits};
    use crate::identity::Identity;
    use crate::stream::Tuning;
    use bytes::Bytes;
    use downpour_proto::Rate;
    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Incoming;
    use hyper::{Request, Response};
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    /// Says who asks, and what for.
    async fn echo(request: Request<Incoming>) -> Response<Full<Bytes>> {
        let visitor = request.extensions().get::<Visitor>().expect("each request has one");
        visitor.prove();
        let node = visitor.node.map(|key| key.to_string()).unwrap_or_default();
        Response::new(Full::from(format!("{node} {}", request.uri())))
    }

    fn caller(server: &Identity, own: &Arc<Identity>, addr: SocketAddr) -> Caller {
        Caller::new(CallerSetup {
            addrs: vec![addr.to_string()],
            server: server.public_key(),
            identity: own.clone(),
            bearer: None,
            limits: ClientLimits::default(),
        })
    }

    async fn ask(caller: &Caller, path: &str) -> Result<String, CallError> {
        let body = caller.call("GET", path, &[]).await?.whole(1000).await?;
        Ok(String::from_utf8(body).unwrap())
    }

    #[tokio::test]
    async fn who_asks_is_known_and_strangers_make_room() {
        let (server, node) = (Identity::generate(), Arc::new(Identity::generate()));
        let limits = ServerLimits { connections_max: 4, ..ServerLimits::default() };
        let any = "127.0.0.1:0".parse().unwrap();
        let endpoint = Endpoint::bind(any, &server, limits).await.unwrap();
        let (addr, connections) = (endpoint.local_addr(), endpoint.connections());
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = async { drop(stopped.await) };
        let serving = tokio::spawn(endpoint.serve(echo, ended, Duration::from_secs(5)));
        let known = caller(&server, &node, addr);
        assert_eq!(ask(&known, "/a").await.unwrap(), format!("{} /a", node.public_key()));
        let mut strangers = Vec::new();
        for _ in 0..20 {
            strangers.push(TcpStream::connect(addr).await.unwrap());
        }
        // The oldest stranger had to go; the one who is known is still served, on the same connection.
        assert_eq!(strangers[0].read(&mut [0; 1]).await.unwrap_or(0), 0);
        assert_eq!(ask(&known, "/b").await.unwrap(), format!("{} /b", node.public_key()));
        assert!(connections.now() <= 4);
        let wrong = caller(&Identity::generate(), &node, addr);
        let refused = ask(&wrong, "/").await.unwrap_err();
        let CallError::Unreachable(error) = refused else { panic!("{refused}") };
        assert_eq!(error.wrong_key().unwrap().seen, server.public_key());
        stop.send(()).unwrap();
        serving.await.unwrap();
        assert!(matches!(ask(&known, "/c").await, Err(CallError::Unreachable(_))));
    }

    /// As many bytes as the request says.
    async fn bulk(request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let len = body.collect().await.unwrap().to_bytes();
        let len = std::str::from_utf8(&len).unwrap().parse().unwrap();
        let mut answer = Response::new(Full::from(vec![7; len]));
        let visitor = head.extensions.get::<Visitor>().expect("each request has one");
        visitor.carry_bulk(&head.headers, answer.headers_mut());
        answer
    }

    #[tokio::test]
    async fn bulk_is_asked_for_ahead_on_sockets_that_are_set_and_tell_of_themselves() {
        let (server, node) = (Identity::generate(), Arc::new(Identity::generate()));
        let any = "127.0.0.1:0".parse().unwrap();
        let endpoint = Endpoint::bind(any, &server, ServerLimits::default()).await.unwrap();
        let caller = caller(&server, &node, endpoint.local_addr());
        let serving = tokio::spawn(endpoint.serve(bulk, std::future::pending(), Duration::ZERO));
        assert_eq!(caller.known(), None);
        let tuning = Tuning {
            congestion: Some("none-such".to_owned()),
            send_buffer: Some(1 << 16),
            receive_buffer: Some(40_000),
            pacing: Some(Rate::from_mbps(400)),
        };
        let mut line = caller.bulk(&tuning).await.unwrap();
        assert!(caller.known().is_some());
        assert_eq!(line.report().receive_buffer_bytes, 80_000);
        let lens = [300_000, 100_000];
        for len in lens {
            line.ask("/", len.to_string().as_bytes(), &tuning).await.unwrap();
        }
        let mut sent = Vec::new();
        for len in lens {
            let head = line.head().await.unwrap();
            assert_eq!((head.status, head.len), (200, len));
            assert!(head.lacks.unwrap().contains("none-such"));
            sent.push(head.told.unwrap().sent);
            let mut left = vec![0; len as usize];
            let mut have = 0;
            while have < left.len() {
                have += line.some(&mut left[have..]).await.unwrap();
            }
        }
        assert!(sent[0] == 0 && sent[1] > 0, "{sent:?}");
        serving.abort();
    }

    #[tokio::test]
    async fn an_answer_is_bounded_by_who_asks_for_it() {
        let (server, node) = (Identity::generate(), Arc::new(Identity::generate()));
        let any = "127.0.0.1:0".parse().unwrap();
        let endpoint = Endpoint::bind(any, &server, ServerLimits::default()).await.unwrap();
        let addr = endpoint.local_addr();
        let serving = endpoint.serve(echo, std::future::pending(), Duration::ZERO);
        let serving = tokio::spawn(serving);
        let caller = caller(&server, &node, addr);
        let answer = caller.call("GET", "/", &[]).await.unwrap().whole(10).await;
        assert_eq!(answer, Err(CallError::TooLong(10)));
        assert!(matches!(ask(&caller, "/ /").await, Err(CallError::NoRequest(_))));
        serving.abort();
    }
}
