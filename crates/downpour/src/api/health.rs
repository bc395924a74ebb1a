//! For those who watch: `/healthz`, `/readyz`, `/metrics`, and the description of everything.

use super::{Allow, Problem, Routes};
use crate::site::{Metrics, Site, Stage};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use std::sync::Arc;
use utoipa::OpenApi;

/// As Prometheus asks for it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(OpenApi)]
#[openapi(paths(alive, ready, metrics, describe))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .get("/healthz", Allow::Anyone, alive)
        .get("/readyz", Allow::Anyone, ready)
        .get("/metrics", Allow::Viewer, metrics)
        .get("/v1/openapi.json", Allow::Viewer, describe)
}

/// Whether the daemon lives
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String)))]
async fn alive() -> &'static str {
    "alive\n"
}

/// Whether it works: the catalog is in its place and can be read, and no service has failed
#[utoipa::path(get, path = "/readyz", responses((status = 200, body = String), (status = 503, body = String)))]
async fn ready(State(site): State<Arc<Site>>) -> (StatusCode, String) {
    let reports = site.supervisor().reports();
    let failed: Vec<_> = reports.iter().filter(|report| report.stage == Stage::Failed).collect();
    if let Some(report) = failed.first() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{} has failed\n", report.name));
    }
    match site.read(|reader| reader.sites()).await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the catalog cannot be read\n".to_owned()),
    }
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
async fn metrics(State(site): State<Arc<Site>>) -> Result<impl IntoResponse, Problem> {
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], Metrics::show(&site).await?))
}

/// This description
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, body = Object)))]
async fn describe(
    Extension(description): Extension<Arc<utoipa::openapi::OpenApi>>,
) -> Json<utoipa::openapi::OpenApi> {
    Json((*description).clone())
}
