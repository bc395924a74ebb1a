//! Stands before all routes: who asks, whether they may, how much they may send, what is recorded.
//!
//! 1. The route says who is allowed. What is not mounted is for viewers, who are told that it is not there.
//! 2. A token or a node key says who asks. Only then the connection counts as known, so that strangers make room.
//! 3. A body that says that it is too long is refused before a byte of it is read; others when they get there.
//! 4. What somebody did, or was not allowed to do, is in the audit record before the answer goes out.
//!
//! A stranger's attempts are counted, not recorded: they could fill the disk.

use super::problem::Problem;
use super::routes::Allow;
use crate::site::{Role, Site, Verdict};
use axum::body::HttpBody as _;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use downpour_transport::control::Peer;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What the guard knows.
pub(crate) struct Guard {
    pub(crate) site: Arc<Site>,
    pub(crate) mounted: HashMap<(Method, &'static str), Allow>,
}

/// Who asks; handlers get it as an `Extension`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Not known, and need not be.
    Anyone,
    /// Somebody with a token of this name.
    Person(String, Role),
    /// Another site, of this name.
    Site(String),
}

impl Who {
    /// The name that stands in records.
    pub fn name(&self) -> &str {
        match self {
            Self::Anyone => "anyone",
            Self::Person(name, _) | Self::Site(name) => name,
        }
    }
}

/// More about what was done, for the audit record: a handler puts it into its answer's extensions.
#[derive(Clone, Debug)]
pub struct Detail(pub String);

/// The way to a handler.
pub(crate) async fn stand(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let pattern = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let pattern = pattern.unwrap_or_else(|| "none".to_owned());
    let answer = guard.answer(&pattern, request, next).await;
    let answer = answer.unwrap_or_else(IntoResponse::into_response);
    guard.site.metrics.on_request(&pattern, answer.status().as_u16(), begun.elapsed());
    answer
}

impl Guard {
    async fn answer(
        &self,
        pattern: &str,
        mut request: Request,
        next: Next,
    ) -> Result<Response, Problem> {
        let method = request.method().clone();
        let asked = if method == Method::HEAD { Method::GET } else { method.clone() };
        let mut mounted = self.mounted.iter();
        let route = mounted.find(|((method, path), _)| *path == pattern && *method == asked);
        let allow = route.map_or(Allow::Viewer, |(_, allow)| *allow);
        let peer = request.extensions().get::<Peer>().cloned();
        let who = self.identify(allow, peer.as_ref(), request.headers())?;
        if let Some(peer) = peer.as_ref().filter(|_| who != Who::Anyone) {
            peer.prove();
        }
        let limits = self.site.config().limits.clone();
        let mut deed = crate::site::Deed {
            who: who.name().to_owned(),
            from: peer.map(|peer| peer.addr.to_string()).unwrap_or_default(),
            what: format!("{method} {}", request.uri()),
            result: String::new(),
            detail: String::new(),
        };
        let allowed = may(&who, allow).and_then(|()| bound(&mut request, limits.body.0));
        request.extensions_mut().insert(who.clone());
        let answer = match allowed {
            Err(problem) => problem.into_response(),
            Ok(()) => match tokio::time::timeout(*limits.request, next.run(request)).await {
                Ok(answer) => answer,
                Err(_) => {
                    let what = format!("not done within {:?}", *limits.request);
                    let todo = "send the body faster, or ask for less at once";
                    Problem::new(StatusCode::REQUEST_TIMEOUT, "timed-out", what, todo)
                        .into_response()
                }
            },
        };
        let detail = answer.extensions().get::<Detail>().map(|Detail(text)| text.clone());
        deed.detail = detail.unwrap_or_default();
        self.record(&method, &who, deed, answer.status()).await?;
        Ok(answer)
    }

    fn identify(
        &self,
        allow: Allow,
        peer: Option<&Peer>,
        headers: &HeaderMap,
    ) -> Result<Who, Problem> {
        if allow == Allow::Anyone {
            return Ok(Who::Anyone);
        }
        let node = peer.and_then(|peer| peer.node);
        if let Some(remote) = node.and_then(|key| self.site.remote_of_key(key)) {
            return Ok(Who::Site(remote.name().to_owned()));
        }
        let refuse = |what: &str, todo: &str| {
            Err(Problem::new(StatusCode::UNAUTHORIZED, "not-known", what, todo))
        };
        if allow == Allow::Site {
            let shown = node.map_or("no key".to_owned(), |key| format!("the key {key}"));
            let what = format!("this is for configured sites; you show {shown}");
            return refuse(&what, "add a [[remote]] with your key to this site's configuration");
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = bearer.and_then(|text| text.strip_prefix("Bearer ")) else {
            return refuse("no token", "send `Authorization: Bearer TOKEN`");
        };
        match self.site.tokens.judge(token.trim(), self.site.clock.now())? {
            Verdict::Known(name, role) => Ok(Who::Person(name, role)),
            Verdict::Expired(name) => {
                let what = format!("the token `{name}` has expired");
                refuse(&what, "ask an admin for a new one: downpour token new")
            }
            Verdict::Unknown => refuse("nobody has this token", "ask an admin for a new one"),
        }
    }

    /// Nothing is done that is not recorded; a reading that was allowed is no deed.
    async fn record(
        &self,
        method: &Method,
        who: &Who,
        mut deed: crate::site::Deed,
        status: StatusCode,
    ) -> Result<(), Problem> {
        let refused = status == StatusCode::FORBIDDEN;
        let person = matches!(who, Who::Person(..));
        if !refused && (method.is_safe() || !person) {
            return Ok(());
        }
        deed.result = status.as_u16().to_string();
        self.site.record(deed).await.map_err(Problem::from)
    }
}

fn may(who: &Who, allow: Allow) -> Result<(), Problem> {
    let needed = match (allow, who) {
        (Allow::Anyone, _) | (Allow::Site, Who::Site(_)) => return Ok(()),
        (Allow::Site, _) => "a configured site",
        (Allow::Viewer, Who::Person(..)) => return Ok(()),
        (Allow::Operator, Who::Person(_, role)) if *role >= Role::Operator => return Ok(()),
        (Allow::Admin, Who::Person(_, role)) if *role >= Role::Admin => return Ok(()),
        (Allow::Viewer, _) => "the token of a viewer",
        (Allow::Operator, _) => "the token of an operator",
        (Allow::Admin, _) => "the token of an admin",
    };
    let what = format!("this needs {needed}; you are {}", who.name());
    Err(Problem::new(StatusCode::FORBIDDEN, "not-allowed", what, "ask somebody who may"))
}

/// Refuses a body that says that it is too long, and ends one that turns out to be.
fn bound(request: &mut Request, body_max: u64) -> Result<(), Problem> {
    let said = request.body().size_hint().lower();
    if said > body_max {
        let what = format!("a body of {said} bytes; {body_max} are allowed");
        let todo = "ask for less at once, or raise [limits] body";
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-long", what, todo));
    }
    DefaultBodyLimit::max(usize::try_from(body_max).unwrap_or(usize::MAX)).apply(request);
    Ok(())
}

pub(super) async fn no_such_path() -> Problem {
    let todo = "see /v1/openapi.json for what there is";
    Problem::new(StatusCode::NOT_FOUND, "no-such-path", "nothing is here", todo)
}

pub(super) async fn no_such_method() -> Problem {
    let todo = "see /v1/openapi.json for what there is";
    let status = StatusCode::METHOD_NOT_ALLOWED;
    Problem::new(status, "no-such-method", "this path is not for that method", todo)
}
