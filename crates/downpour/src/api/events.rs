//! `/v1/events`: what happens, live, as server-sent events.
//!
//! Entries of the audit record are for admins here, too. A listener that is too slow, or that comes back late with
//! `Last-Event-ID`, is told how many it missed by an event `missed`. A comment is sent now and then, so that a dead
//! connection is noticed on both sides. With its token a listener's stream ends: before each event and each comment the token
//! is looked at again.

use super::guard::bearer;
use super::{Allow, Asked, Problem, Routes};
use crate::site::{EventId, Listener, Role, Site, SiteEvent, Verdict};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use utoipa::{IntoParams, OpenApi};

/// Between two comments.
const PING_EVERY: Duration = Duration::from_secs(10);

#[derive(OpenApi)]
#[openapi(paths(listen), components(schemas(SiteEvent)))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).get("/v1/events", Allow::Viewer, listen)
}

/// How long to listen.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Listening {
    /// false: end where what happened already ends; true unless given
    live: Option<bool>,
}

/// What happens, live: server-sent events, each with a `SiteEvent`
#[utoipa::path(get, path = "/v1/events",
    params(Listening, ("Last-Event-ID" = Option<String>, Header,
        description = "The `id` of the last event that was heard: those after it come first. 0-0: all that are kept")),
    responses((status = 200, content_type = "text/event-stream", body = SiteEvent),
        (status = 400, body = Problem), (status = 503, body = Problem)))]
async fn listen(
    State(site): State<Arc<Site>>,
    Asked(listening): Asked<Listening>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let most = site.config().limits.listeners;
    if site.events.listeners() >= most {
        let what = format!("{most} listen already");
        let todo = "try again later, or raise [limits] listeners";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", what, todo));
    }
    let place = match headers.get("last-event-id") {
        None => None,
        Some(text) => {
            Some(text.to_str().ok().and_then(|id| id.parse::<EventId>().ok()).ok_or_else(|| {
                Problem::bad_request("this Last-Event-ID is none of ours", "send an event's `id`")
            })?)
        }
    };
    // The guard has seen it.
    let token = bearer(&headers).unwrap_or_default().to_owned();
    let (live, listener) = (listening.live.unwrap_or(true), site.events.listen(place));
    let greeting = Event::default().comment("listening");
    let first = (Hearing { site, listener, token, live }, Some(greeting));
    let events = stream::unfold(first, |(mut hearing, greeting)| async move {
        let event = match greeting {
            Some(greeting) => greeting,
            None => hearing.next().await?,
        };
        Some((Ok::<_, Infallible>(event), (hearing, None)))
    });
    Ok(Sse::new(events))
}

/// One who listens.
struct Hearing {
    site: Arc<Site>,
    listener: Listener,
    token: String,
    live: bool,
}

impl Hearing {
    async fn next(&mut self) -> Option<Event> {
        let ping_at = Instant::now() + PING_EVERY;
        while self.live || self.listener.is_behind() {
            let heard = timeout_at(ping_at, self.listener.next(&self.site.events)).await;
            let verdict = self.site.tokens.judge(&self.token, self.site.clock.now());
            let Ok(Verdict::Known(_, role)) = verdict else { return None };
            return Some(match heard {
                Err(_) => Event::default().comment("ping"),
                Ok(event) if event.kind == SiteEvent::END => return None,
                Ok(event) if event.kind == SiteEvent::AUDIT && role < Role::Admin => continue,
                Ok(event) => {
                    // Made of strings, numbers and JSON: nothing that JSON could refuse.
                    let data = serde_json::to_string(&*event).expect("an event has a JSON form");
                    Event::default()
                        .id(self.listener.id().to_string())
                        .event(&event.kind)
                        .data(data)
                }
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::PING_EVERY;
    use crate::site::{Daemon, Role, Site, SiteEvent};
    use axum::body::{Body, BodyDataStream};
    use axum::http::Request;
    use futures_util::StreamExt as _;
    use std::sync::Arc;
    use tower::ServiceExt as _;

    /// A site of which nothing but its door's routes is left, and the token of one who may look.
    async fn site(folder: &std::path::Path) -> (Arc<Site>, String) {
        let site = Daemon::ended(folder, "a", "").await;
        let token = site.tokens.add("eye", Role::Viewer, None, site.clock.now()).unwrap().token;
        (site, token)
    }

    async fn listen(site: &Arc<Site>, token: &str, query: &str) -> BodyDataStream {
        let request = Request::get(format!("/v1/events{query}"));
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.body(Body::empty()).unwrap();
        let router = super::routes().into_router(site.clone());
        let mut stream = router.oneshot(request).await.unwrap().into_body().into_data_stream();
        assert!(said(&mut stream).await.unwrap().contains("listening"));
        stream
    }

    async fn said(stream: &mut BodyDataStream) -> Option<String> {
        let said = stream.next().await?.unwrap();
        Some(String::from_utf8(said.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn who_loses_the_token_hears_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let (site, token) = site(folder.path()).await;
        let mut stream = listen(&site, &token, "").await;
        site.events.tell("test", &"before");
        assert!(said(&mut stream).await.unwrap().contains("before"));
        site.tokens.revoke("eye", site.clock.now()).unwrap();
        site.events.tell("test", &"after");
        assert_eq!(said(&mut stream).await, None);
    }

    #[tokio::test]
    async fn what_is_passed_over_keeps_no_ping_and_no_end_away() {
        let folder = tempfile::tempdir().unwrap();
        let (site, token) = site(folder.path()).await;
        tokio::time::pause();
        let mut stream = listen(&site, &token, "").await;
        let telling = {
            let site = site.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(PING_EVERY / 3).await;
                    site.events.tell(SiteEvent::AUDIT, &"somebody did something");
                }
            })
        };
        let ping = tokio::time::timeout(PING_EVERY * 10, said(&mut stream)).await;
        assert_eq!(ping.expect("a ping comes").as_deref(), Some(": ping\n\n"));
        telling.abort();
        site.events.tell("test", &"seen");
        site.events.tell(SiteEvent::AUDIT, &"not seen");
        let mut past = listen(&site, &token, "?live=false").await;
        assert_eq!(said(&mut past).await, None, "no event, no ping");
    }
}
