//! `/v1/events`: what happens, live, as server-sent events.
//!
//! Entries of the audit record are for admins here, too. A listener that is too slow misses events and is told how many by an event `missed`. A comment is sent now and then, so
//! that a dead connection is noticed on both sides.

use super::{Allow, Problem, Routes, Who};
use crate::site::{Role, Site, SiteEvent};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::stream;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;
use utoipa::OpenApi;

/// Between two comments.
const PING_EVERY: Duration = Duration::from_secs(10);

#[derive(OpenApi)]
#[openapi(paths(listen), components(schemas(SiteEvent)))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).get("/v1/events", Allow::Viewer, listen)
}

/// What happens, live: server-sent events, each with a `SiteEvent`
#[utoipa::path(get, path = "/v1/events", responses(
    (status = 200, content_type = "text/event-stream", body = SiteEvent),
    (status = 503, body = Problem)))]
async fn listen(
    State(site): State<Arc<Site>>,
    Extension(who): Extension<Who>,
) -> Result<impl IntoResponse, Problem> {
    let most = site.config().limits.listeners;
    if site.events.listeners() >= most {
        let what = format!("{most} listen already");
        let todo = "try again later, or raise [limits] listeners";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", what, todo));
    }
    let admin = matches!(who, Who::Person(_, Role::Admin));
    let events = site.events.listen();
    let greeting = Event::default().comment("listening");
    let events =
        stream::unfold((events, Some(greeting)), move |(mut events, greeting)| async move {
            let event = match greeting {
                Some(greeting) => greeting,
                None => next(&mut events, admin).await?,
            };
            Some((Ok::<_, Infallible>(event), (events, None)))
        });
    Ok(Sse::new(events))
}

async fn next(events: &mut Receiver<Arc<SiteEvent>>, admin: bool) -> Option<Event> {
    loop {
        return Some(match timeout(PING_EVERY, events.recv()).await {
            Err(_) => Event::default().comment("ping"),
            Ok(Err(RecvError::Closed)) => return None,
            Ok(Ok(event)) if event.kind == SiteEvent::END => return None,
            Ok(Ok(event)) if event.kind == SiteEvent::AUDIT && !admin => continue,
            Ok(Err(RecvError::Lagged(count))) => {
                let missed = json!({ "number": 0, "kind": "missed", "about": { "events": count } });
                Event::default().event("missed").data(missed.to_string())
            }
            Ok(Ok(event)) => {
                // Made of strings, numbers and JSON: nothing that JSON could refuse.
                let data = serde_json::to_string(&*event).expect("an event has a JSON form");
                Event::default().id(event.number.to_string()).event(&event.kind).data(data)
            }
        });
    }
}
