//! For those who watch: `/healthz`, `/readyz`, `/metrics`, and the description of everything.

use super::{Allow, Problem, Routes};
use crate::site::{Metrics, Site, Stage};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa::OpenApi;

/// How long what was seen of the catalog answers all who ask.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// When the catalog was looked at last, and whether it could be read.
type Looked = Arc<Mutex<Option<(Instant, bool)>>>;

/// As Prometheus asks for it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(OpenApi)]
#[openapi(paths(alive, ready, metrics, describe))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .get("/healthz", Allow::Anyone, alive)
        .get("/readyz", Allow::Anyone, ready)
        .share(Looked::default())
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
async fn ready(
    State(site): State<Arc<Site>>,
    Extension(looked): Extension<Looked>,
) -> (StatusCode, String) {
    let reports = site.supervisor().reports();
    let failed: Vec<_> = reports.iter().filter(|report| report.stage == Stage::Failed).collect();
    if let Some(report) = failed.first() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{} has failed\n", report.name));
    }
    let look = async move { site.read(|reader| reader.sites()).await.is_ok() };
    match seen(looked, look).await {
        true => (StatusCode::OK, "ready\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the catalog cannot be read\n".to_owned()),
    }
}

/// What the last look showed, or this one. Anybody may ask, as often as he likes: there is one look at a time, which goes on
/// when who asked has left.
async fn seen(looked: Looked, look: impl Future<Output = bool> + Send + 'static) -> bool {
    let mut last = looked.lock_owned().await;
    match *last {
        Some((at, is_read)) if at.elapsed() < LOOK_EVERY => is_read,
        _ => {
            let look = tokio::spawn(async move {
                let is_read = look.await;
                *last = Some((Instant::now(), is_read));
                is_read
            });
            look.await.unwrap_or(false)
        }
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

#[cfg(test)]
mod tests {
    use super::{LOOK_EVERY, Looked, seen};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;

    #[tokio::test(start_paused = true)]
    async fn one_look_at_a_time_answers_all_who_ask() {
        let (looked, begun) = (Looked::default(), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        let ask = || {
            let (begun, gate) = (begun.clone(), gate.clone());
            seen(looked.clone(), async move {
                begun.fetch_add(1, Ordering::Relaxed);
                gate.acquire().await.expect("it stays").forget();
                true
            })
        };
        // Who asks first leaves while the database says nothing.
        let first = tokio::spawn(ask());
        tokio::task::yield_now().await;
        first.abort();
        let mut others: JoinSet<bool> = (0..100).map(|_| ask()).collect();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        gate.add_permits(1);
        while let Some(answer) = others.join_next().await {
            assert!(answer.unwrap());
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        tokio::time::advance(LOOK_EVERY).await;
        gate.add_permits(1);
        assert!(ask().await);
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }
}
