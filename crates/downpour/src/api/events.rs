//! `/v1/events`: what happens, live, as server-sent events.
//!
//! Entries of the audit record are for admins here, too. A listener that is too slow, or that comes back late with
//! `Last-Event-ID`, is told how many it missed by an event `missed`. A comment is sent now and then, so that a dead
//! connection is noticed on both sides.

use super::{Allow, Asked, Problem, Routes, Who};
use crate::site::{EventId, Listener, Role, Site, SiteEvent};
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
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
    Extension(who): Extension<Who>,
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
    let admin = matches!(who, Who::Person(_, Role::Admin));
    let (live, listener) = (listening.live.unwrap_or(true), site.events.listen(place));
    let greeting = Event::default().comment("listening");
    let first = (site, listener, Some(greeting));
    let events = stream::unfold(first, move |(site, mut listener, greeting)| async move {
        let event = match greeting {
            Some(greeting) => greeting,
            None if !live && !listener.is_behind() => return None,
            None => next(&site, &mut listener, admin).await?,
        };
        Some((Ok::<_, Infallible>(event), (site, listener, None)))
    });
    Ok(Sse::new(events))
}

async fn next(site: &Site, listener: &mut Listener, admin: bool) -> Option<Event> {
    loop {
        return Some(match timeout(PING_EVERY, listener.next(&site.events)).await {
            Err(_) => Event::default().comment("ping"),
            Ok(event) if event.kind == SiteEvent::END => return None,
            Ok(event) if event.kind == SiteEvent::AUDIT && !admin => continue,
            Ok(event) => {
                // Made of strings, numbers and JSON: nothing that JSON could refuse.
                let data = serde_json::to_string(&*event).expect("an event has a JSON form");
                Event::default().id(listener.id().to_string()).event(&event.kind).data(data)
            }
        });
    }
}
