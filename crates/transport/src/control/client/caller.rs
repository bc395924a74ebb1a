//! Requests to a server of which the key is known: the other half of [`crate::control::Endpoint`].
//!
//! A connection that an answer left whole is kept for the next request for a while. If it proves to be closed, the request
//! is made once more on a new one: what is asked of a daemon can be asked again.
//!
//! Bulk has connections of its own, with sockets as a plan sets them: [`Bulk`].

use super::ClientLimits;
use super::connection::{Connection, Target};
use super::error::{ConnectError, Fault, innermost};
use super::line::{Head, Line};
use crate::identity::{Identity, PublicKey};
use crate::stream::{ConnectionReport, TUNING_HEADER, Tuning};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Connections kept for the next request.
const IDLE_MAX: usize = 8;
/// How long they are kept: less than a server waits for the next request.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// How to reach a server, and as whom.
#[derive(Clone, Debug)]
pub struct CallerSetup {
    /// `host:port` each; all are tried.
    pub addrs: Vec<String>,
    /// The server's key.
    pub server: PublicKey,
    /// The key that is shown to it.
    pub identity: Arc<Identity>,
    /// A token that is shown besides.
    pub bearer: Option<String>,
    /// How long to wait for what.
    pub limits: ClientLimits,
}

/// A request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// Nothing came in this time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// The answer is longer than it may be.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
    /// The path or the token has letters that a request may not have.
    #[error("no such request can be made: {0}")]
    NoRequest(String),
}

/// Makes requests; any number at once, each on a connection of its own.
pub struct Caller {
    target: Arc<Target>,
    bearer: Option<String>,
    idle: Mutex<Vec<(Instant, Connection)>>,
}

/// An answer, of which the body is still to come.
pub struct Answer<'a> {
    /// HTTP status.
    pub status: u16,
    body: Incoming,
    connection: Connection,
    caller: &'a Caller,
}

impl Caller {
    /// Nothing is connected yet.
    pub fn new(setup: CallerSetup) -> Self {
        let target = Target::new(setup.addrs, (&setup.identity, setup.server), setup.limits);
        Self { target, bearer: setup.bearer, idle: Mutex::default() }
    }

    /// Sends a request, with a body of JSON unless it is empty.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Answer<'_>, CallError> {
        self.call_with(&[], method, path, body).await
    }

    /// The same, with more headers.
    pub async fn call_with(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Answer<'_>, CallError> {
        let mut request = self.request(method, path, body)?;
        for (name, value) in headers {
            let odd = |error: &dyn std::error::Error| CallError::NoRequest(error.to_string());
            let name: HeaderName = name.parse().map_err(|error| odd(&error))?;
            let value = HeaderValue::from_str(value).map_err(|error| odd(&error))?;
            request.headers_mut().insert(name, value);
        }
        if let Some(connection) = self.kept() {
            match self.call_on(connection, request.clone()).await {
                Err(CallError::Lost(_)) => {}
                answer => return answer,
            }
        }
        self.call_on(self.target.open().await?, request).await
    }

    /// A connection for bulk, with its socket set so.
    pub async fn bulk(&self, tuning: &Tuning) -> Result<Bulk, CallError> {
        Ok(Bulk(Line::new(self.target.reach(tuning).await?)))
    }

    /// Where the server was reached before, and the round trip of that handshake.
    pub fn known(&self) -> Option<(SocketAddr, Duration)> {
        *self.target.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call_on(
        &self,
        mut connection: Connection,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer<'_>, CallError> {
        let time_max = self.target.limits.reply_time_max;
        match timeout(time_max, connection.exchange(request)).await {
            Ok(Ok(answer)) => {
                let (status, body) = (answer.status().as_u16(), answer.into_body());
                Ok(Answer { status, body, connection, caller: self })
            }
            Ok(Err(error)) => Err(CallError::Lost(innermost(&error))),
            Err(_) => Err(CallError::TimedOut(time_max)),
        }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Request<Full<Bytes>>, CallError> {
        let odd = |error: &dyn std::error::Error| CallError::NoRequest(error.to_string());
        let method: Method = method.parse().map_err(|error| odd(&error))?;
        let mut request = Request::builder().method(method).uri(path).header(HOST, "downpour");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(bearer) = &self.bearer {
            let bearer = HeaderValue::from_str(&format!("Bearer {bearer}"));
            let mut bearer = bearer.map_err(|error| odd(&error))?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        request.body(Full::from(body.to_vec())).map_err(|error| odd(&error))
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, kept)| since.elapsed() < IDLE_TIME_MAX && !kept.is_closed());
        idle.pop().map(|(_, connection)| connection)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push((Instant::now(), connection));
        }
    }
}

/// A connection that carries bulk: requests may go out before the answers to those before are in. After an error nothing
/// of it is used any more.
pub struct Bulk(Line);

impl Bulk {
    /// Sends a request with a body of JSON, and what the sender's end of the connection is to be set to.
    pub async fn ask(&mut self, path: &str, json: &[u8], tuning: &Tuning) -> Result<(), CallError> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: downpour\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{TUNING_HEADER}: {tuning}\r\n\r\n",
            json.len()
        );
        Ok(self.0.send(&[head.as_bytes(), json].concat()).await?)
    }

    /// The beginning of the next answer. Waits without limit, as `some` does.
    pub async fn head(&mut self) -> Result<Head, CallError> {
        Ok(self.0.head().await?)
    }

    /// Some bytes of its body, at least one.
    pub async fn some(&mut self, room: &mut [u8]) -> Result<usize, CallError> {
        Ok(self.0.body(room).await?)
    }

    /// What our kernel tells of it.
    pub fn report(&self) -> ConnectionReport {
        self.0.report()
    }
}

impl From<Fault> for CallError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(error) => Self::Unreachable(error),
            Fault::Lost(reason) | Fault::BadReply(reason) => Self::Lost(reason),
            Fault::Refused(error) => Self::Lost(error.to_string()),
        }
    }
}

impl Answer<'_> {
    /// The whole body.
    pub async fn whole(self, len_max: usize) -> Result<Vec<u8>, CallError> {
        let time_max = self.caller.target.limits.reply_time_max;
        match timeout(time_max, Limited::new(self.body, len_max).collect()).await {
            Ok(Ok(body)) => {
                self.caller.keep(self.connection);
                Ok(body.to_bytes().into())
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(CallError::TooLong(len_max)),
            Ok(Err(error)) => Err(CallError::Lost(error.to_string())),
            Err(_) => Err(CallError::TimedOut(time_max)),
        }
    }

    /// What the kernel tells of its connection so far.
    pub fn connection(&self) -> ConnectionReport {
        self.connection.report()
    }

    /// The next bytes of a body that comes as it is made; `None` at its end. Waits without limit.
    pub async fn some(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(CallError::Lost(innermost(&error))),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes.into()));
                    }
                }
            }
        }
    }
}
