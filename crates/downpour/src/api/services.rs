//! `/v1/services`: what runs, and its start, stop, drain and restart.

use super::{Allow, Named, Problem, Routes};
use crate::site::{ServiceReport, Site, Verb};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{OpenApi, ToSchema};

/// Services as they are.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Services {
    /// The site's name.
    pub site: String,
    /// The site's time, in microseconds since 1970.
    #[serde(default)]
    pub now_us: i64,
    /// All of them.
    pub services: Vec<ServiceReport>,
}

#[derive(OpenApi)]
#[openapi(paths(list, start, stop, drain, restart))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .get("/v1/services", Allow::Viewer, list)
        .post("/v1/services/{name}/start", Allow::Operator, start)
        .post("/v1/services/{name}/stop", Allow::Operator, stop)
        .post("/v1/services/{name}/drain", Allow::Operator, drain)
        .post("/v1/services/{name}/restart", Allow::Operator, restart)
}

/// What runs
#[utoipa::path(get, path = "/v1/services", responses((status = 200, body = Services)))]
async fn list(State(site): State<Arc<Site>>) -> Json<Services> {
    Json(Services::of(&site, site.supervisor().reports()))
}

impl Services {
    fn of(site: &Site, services: Vec<ServiceReport>) -> Self {
        Self { site: site.name.clone(), now_us: site.clock.now().0, services }
    }
}

fn ask(site: &Site, name: &str, verb: Verb) -> Result<Json<Services>, Problem> {
    Ok(Json(Services::of(site, site.supervisor().ask(name, verb)?)))
}

/// Let a service, or `all`, work
#[utoipa::path(post, path = "/v1/services/{name}/start", params(("name" = String, Path)),
    responses((status = 200, body = Services), (status = 404, body = Problem)))]
async fn start(
    State(site): State<Arc<Site>>,
    Named(name): Named<String>,
) -> Result<Json<Services>, Problem> {
    ask(&site, &name, Verb::Start)
}

/// End a service, or `all`, at once
#[utoipa::path(post, path = "/v1/services/{name}/stop", params(("name" = String, Path)),
    responses((status = 200, body = Services), (status = 404, body = Problem)))]
async fn stop(
    State(site): State<Arc<Site>>,
    Named(name): Named<String>,
) -> Result<Json<Services>, Problem> {
    ask(&site, &name, Verb::Stop)
}

/// Let a service, or `all`, finish what is under way and end
#[utoipa::path(post, path = "/v1/services/{name}/drain", params(("name" = String, Path)),
    responses((status = 200, body = Services), (status = 404, body = Problem)))]
async fn drain(
    State(site): State<Arc<Site>>,
    Named(name): Named<String>,
) -> Result<Json<Services>, Problem> {
    ask(&site, &name, Verb::Drain)
}

/// End a service, or `all`, and start it again
#[utoipa::path(post, path = "/v1/services/{name}/restart", params(("name" = String, Path)),
    responses((status = 200, body = Services), (status = 404, body = Problem)))]
async fn restart(
    State(site): State<Arc<Site>>,
    Named(name): Named<String>,
) -> Result<Json<Services>, Problem> {
    ask(&site, &name, Verb::Restart)
}
