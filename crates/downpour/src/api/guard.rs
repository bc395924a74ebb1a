//! Stands before all routes: who asks, whether they may, how much they may send, what is recorded.
//!
//! 1. The route says who is allowed. What is not mounted is for viewers, who are told that it is not there.
//! 2. A token or a node key says who asks. Only then the connection counts as known, so that strangers make room.
//! 3. A body that says that it is too long is refused before a byte of it is read; others when they get there.
//! 4. What somebody did, or was not allowed to do, is in the audit record before the answer goes out. Of what is refused again
//!    and again the first in each minute is; the others are counted.
//! 5. What somebody does is done and recorded as one task: one who closes the connection meanwhile ends the waiting for it, nothing else.
//!    Once its body is here it has as long as it takes.
//!
//! A stranger's attempts are counted, not recorded: they could fill the disk. Nor is what is asked of no route.

use super::given::whole_body;
use super::problem::Problem;
use super::routes::Allow;
use crate::site::{Deed, Fault, Role, Site, Verdict};
use axum::body::HttpBody as _;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use downpour_transport::control::Visitor;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::time::timeout;

/// Code of the problem that nobody knows who asks.
pub const NOT_KNOWN: &str = "not-known";

/// A method and a path that something is mounted at.
type Mount = (Method, &'static str);

/// What the guard knows.
pub(crate) struct Guard {
    site: Arc<Site>,
    mounted: HashMap<Mount, Allow>,
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
    pub(crate) fn new(site: Arc<Site>, mounted: HashMap<Mount, Allow>) -> Self {
        Self { site, mounted }
    }

    async fn answer(
        self: &Arc<Self>,
        pattern: &str,
        mut request: Request,
        next: Next,
    ) -> Result<Response, Problem> {
        let method = request.method().clone();
        let asked = if method == Method::HEAD { Method::GET } else { method.clone() };
        let mut mounted = self.mounted.iter();
        let route = mounted.find(|((method, path), _)| *path == pattern && *method == asked);
        let allow = route.map_or(Allow::Viewer, |(_, allow)| *allow);
        let visitor = request.extensions().get::<Visitor>().cloned();
        let who = self.identify(allow, visitor.as_ref(), request.headers())?;
        if let Some(visitor) = visitor.as_ref().filter(|_| who != Who::Anyone) {
            visitor.prove();
        }
        let body_max = self.site.config().limits.body.0;
        let deed = Deed {
            who: who.name().to_owned(),
            from: visitor.map(|visitor| visitor.addr.to_string()).unwrap_or_default(),
            what: format!("{method} {}", request.uri()),
            result: String::new(),
            detail: String::new(),
        };
        let allowed = may(&who, allow).and_then(|()| bound(&mut request, body_max));
        request.extensions_mut().insert(who.clone());
        let is_deed = route.is_some() && !method.is_safe() && matches!(who, Who::Person(..));
        let mount =
            route.map_or_else(String::new, |((method, path), _)| format!("{method} {path}"));
        let guard = self.clone();
        let work = async move {
            let answer = match allowed {
                Err(problem) => problem.into_response(),
                Ok(()) => guard.run(request, next, is_deed).await,
            };
            let deed = ended(deed, &answer);
            // A reading that was allowed is no deed.
            if answer.status() == StatusCode::FORBIDDEN {
                guard.site.record_refused(deed, mount).await?;
            } else if is_deed {
                let recorded = guard.site.record(deed.clone()).await;
                recorded.map_err(|fault| not_recorded(&deed, answer.status(), &fault))?;
            }
            Ok(answer)
        };
        if !is_deed {
            return work.await;
        }
        match tokio::spawn(work).await {
            Ok(done) => done,
            Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            Err(_) => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ending",
                "the site ends",
                "ask again when it runs",
            )),
        }
    }

    /// The handler's answer, if it comes in time. Of a deed only the body has to: what was begun goes on, and nobody could say
    /// what came of it.
    async fn run(&self, request: Request, next: Next, is_deed: bool) -> Response {
        let time = *self.site.config().limits.request;
        let answer = if is_deed {
            match timeout(time, whole(request)).await {
                Ok(Ok(request)) => Ok(next.run(request).await),
                Ok(Err(problem)) => Ok(problem.into_response()),
                Err(late) => Err(late),
            }
        } else {
            timeout(time, next.run(request)).await
        };
        answer.unwrap_or_else(|_| {
            let what = format!("not done within {time:?}");
            let todo = "send the body faster, or ask for less at once";
            Problem::new(StatusCode::REQUEST_TIMEOUT, "timed-out", what, todo).into_response()
        })
    }

    fn identify(
        &self,
        allow: Allow,
        visitor: Option<&Visitor>,
        headers: &HeaderMap,
    ) -> Result<Who, Problem> {
        if allow == Allow::Anyone {
            return Ok(Who::Anyone);
        }
        let node = visitor.and_then(|visitor| visitor.node);
        if let Some(remote) = node.and_then(|key| self.site.remote_of_key(key)) {
            return Ok(Who::Site(remote.name().to_owned()));
        }
        let refuse = |what: &str, todo: &str| {
            Err(Problem::new(StatusCode::UNAUTHORIZED, NOT_KNOWN, what, todo))
        };
        if allow == Allow::Site {
            let shown = node.map_or("no key".to_owned(), |key| format!("the key {key}"));
            let what = format!("this is for configured sites; you show {shown}");
            return refuse(&what, "add a [[remote]] with your key to this site's configuration");
        }
        let Some(token) = bearer(headers) else {
            return refuse("no token", "send `Authorization: Bearer TOKEN`");
        };
        match self.site.tokens.judge(token, self.site.clock.now())? {
            Verdict::Known(name, role) => Ok(Who::Person(name, role)),
            Verdict::Expired(name) => {
                let what = format!("the token `{name}` has expired");
                refuse(&what, "ask an admin for a new one: downpour token new")
            }
            // Not for want of an admin: another token would be made where the daemon does not look, or beside what is lost.
            Verdict::Unknown if self.site.tokens.are_gone() => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "no-tokens",
                "there is no tokens.json in the daemon's state folder any more",
                "put that folder back where the daemon has it, or restore the file",
            )),
            Verdict::Unknown => refuse("nobody has this token", "ask an admin for a new one"),
        }
    }
}

/// The token that is shown. The scheme's name may be written in any case: RFC 9110 section 11.1.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = shown.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A deed with what came of it.
fn ended(mut deed: Deed, answer: &Response) -> Deed {
    let detail = answer.extensions().get::<Detail>().map(|Detail(text)| text.clone());
    deed.detail = detail.unwrap_or_default();
    deed.result = answer.status().as_u16().to_string();
    deed
}

/// A deed is not undone because it could not be recorded: who asked must know what came of it.
fn not_recorded(deed: &Deed, status: StatusCode, fault: &Fault) -> Problem {
    let Deed { who, from, what, detail, .. } = deed;
    tracing::error!(%who, %from, %status, %detail, "not recorded: {what}: {fault}");
    let end = if status.is_success() { "was done" } else { "ended" };
    let what = format!("{what} {end} ({status}), but cannot be recorded: {}", fault.what);
    let todo = "see to the state folder; look what is there before you ask again";
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    Problem::new(status, "not-recorded", what, todo).of_class(fault.class)
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

/// The request with its body here.
async fn whole(request: Request) -> Result<Request, Problem> {
    let (head, body) = request.into_parts();
    let bytes = whole_body(Request::from_parts(head.clone(), body), &()).await?;
    Ok(Request::from_parts(head, bytes.into()))
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

#[cfg(test)]
mod tests {
    use super::bearer;
    use crate::api::{Allow, Given, Problem, Routes};
    use crate::site::{Clock, Daemon, Wanted};
    use axum::body::Body;
    use axum::http::{HeaderMap, Request};
    use std::path::Path;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;
    use tower::ServiceExt as _;

    /// What would go on for ever ends.
    const HANG: Duration = Duration::from_secs(60);

    /// A daemon, and a request of an operator for a deed.
    async fn asked_for_a_deed(folder: &Path) -> (Daemon, Request<Body>) {
        let daemon = Daemon::example(folder, "t", "").await;
        let site = &daemon.site;
        let token = site.tokens.add("shift", super::Role::Operator, None, site.clock.now());
        let bearer = format!("Bearer {}", token.unwrap().token);
        let request = Request::post("/v1/deed").header("authorization", bearer);
        (daemon, request.body(Body::empty()).unwrap())
    }

    #[test]
    fn a_token_is_found_however_its_scheme_is_written() {
        for (shown, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc", Some("abc")),
            ("BEARER abc", Some("abc")),
            ("Bearerabc", None),
            ("Basic abc", None),
        ] {
            let headers =
                HeaderMap::from_iter([("authorization".parse().unwrap(), shown.parse().unwrap())]);
            assert_eq!(bearer(&headers), token, "{shown}");
        }
    }

    #[tokio::test]
    async fn a_deed_that_cannot_be_recorded_is_not_said_to_be_undone() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, request) = asked_for_a_deed(folder.path()).await;
        daemon.site.audit.fill_disk();
        let router = Routes::default().post("/v1/deed", Allow::Operator, async || "done");
        let answer = router.into_router(daemon.site.clone()).oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
        let problem: Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!((problem.status, problem.code.as_str()), (500, "not-recorded"));
        assert!(problem.what.starts_with("POST /v1/deed was done (200 OK), but"), "{problem:?}");
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn who_shows_a_token_is_told_to_make_one_but_where_the_file_of_them_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, request) = asked_for_a_deed(folder.path()).await;
        let refused = async |daemon: &Daemon, request| {
            let router = Routes::default().post("/v1/deed", Allow::Operator, async || "done");
            let answer = router.into_router(daemon.site.clone()).oneshot(request).await.unwrap();
            let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
            let problem: Problem = serde_json::from_slice(&body).unwrap();
            (problem.status, problem.code)
        };
        std::fs::rename(folder.path().join("state"), folder.path().join("aside")).unwrap();
        let (gone, _) = request.into_parts();
        let request = || Request::from_parts(gone.clone(), Body::empty());
        assert_eq!(refused(&daemon, request()).await, (401, "no-tokens".to_owned()));
        daemon.end(Duration::ZERO).await;
        // Where none was ever made.
        let file = folder.path().join("site.toml");
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        assert_eq!(refused(&daemon, request()).await, (401, super::NOT_KNOWN.to_owned()));
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_deed_that_takes_long_is_told_and_recorded_as_done_but_its_body_has_to_come() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, request) = asked_for_a_deed(folder.path()).await;
        let site = daemon.site.clone();
        // Its services would hold up a clock that the test turns.
        daemon.end(Duration::ZERO).await;
        tokio::time::pause();
        let limit = *site.config().limits.request;
        let deed = move |Given(how_often): Given<u32>| async move {
            tokio::time::sleep(limit * how_often).await;
        };
        let router = Routes::default().post("/v1/deed", Allow::Operator, deed);
        let router = router.into_router(site.clone());
        let (head, _) = request.into_parts();
        let never = futures_util::stream::pending::<Result<&str, std::io::Error>>();
        for (body, status) in [(Body::from("3"), 200), (Body::from_stream(never), 408)] {
            let request = Request::from_parts(head.clone(), body);
            let answer = router.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status);
        }
        let (deeds, _) = site.audit.list(&Wanted::default(), 10).unwrap();
        assert_eq!(deeds.iter().map(|deed| &deed.result).collect::<Vec<_>>(), ["200", "408"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_done_for_one_who_went_away_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, request) = asked_for_a_deed(folder.path()).await;
        let site = daemon.site.clone();
        // A deed that goes on by itself, as those do that block.
        let (begun, goes_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let of_deed = (begun.clone(), goes_on.clone());
        let deed = move || async move {
            let done = tokio::task::spawn_blocking(move || {
                of_deed.0.wait();
                of_deed.1.wait();
            });
            done.await.unwrap();
        };
        let router = Routes::default().post("/v1/deed", Allow::Operator, deed);
        let asked = tokio::spawn(router.into_router(site.clone()).oneshot(request));
        let wait = |barrier: Arc<Barrier>| tokio::task::spawn_blocking(move || barrier.wait());
        wait(begun).await.unwrap();
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        wait(goes_on).await.unwrap();
        let recorded = async {
            loop {
                let deeds = site.audit.list(&Wanted::default(), 10).unwrap().0;
                if !deeds.is_empty() {
                    break deeds;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let deeds = tokio::time::timeout(HANG, recorded).await.expect("it is recorded");
        let told: Vec<_> = deeds.iter().map(|d| [&d.who, &d.what, &d.result]).collect();
        assert_eq!(told, [["shift", "POST /v1/deed", "200"]]);
        daemon.end(Duration::ZERO).await;
    }
}
