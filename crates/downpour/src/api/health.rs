//! For those who watch: `/healthz`, `/readyz`, `/metrics`, and the description of everything.

use super::{Allow, Problem, Routes};
use crate::object::free_bytes;
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

/// How long what was seen of the catalog and of the state folder answers all who ask.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// With less room in the state folder nothing can be written down.
const ROOM_MIN: u64 = 1 << 20;

/// When the catalog and the state folder were looked at last, and what was amiss.
type Looked = Arc<Mutex<Option<(Instant, Amiss)>>>;
/// Why it cannot work, if it cannot.
type Amiss = Option<&'static str>;

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

/// Whether it works: state folder, catalog and inboxes are in place, their disks answer, the catalog can be read, no service has failed
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
    // A look would wait for that disk.
    if site.pulse.is_amiss() {
        let amiss = "the disk of the state folder does not answer, or takes nothing\n";
        return (StatusCode::SERVICE_UNAVAILABLE, amiss.to_owned());
    }
    match seen(looked, look(site)).await {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(amiss) => (StatusCode::SERVICE_UNAVAILABLE, format!("{amiss}\n")),
    }
}

async fn look(site: Arc<Site>) -> Amiss {
    if !site.has_its_state().await {
        return Some("the state folder was moved, unmounted or replaced");
    }
    if !site.inboxes.strange().is_empty() {
        return Some(
            "an inbox is not the folder that was received into before, does not answer, or takes nothing",
        );
    }
    let state = site.config().state();
    let full = move || rustix::fs::statvfs(&state).is_ok_and(|fs| is_full(&fs));
    if tokio::task::spawn_blocking(full).await.unwrap_or(false) {
        return Some("the disk of the state folder is full");
    }
    site.read(|reader| reader.sites()).await.err().map(|_| "the catalog cannot be read")
}

fn is_full(fs: &rustix::fs::StatVfs) -> bool {
    free_bytes(fs) < ROOM_MIN
}

/// What the last look showed, or this one. Anybody may ask, as often as he likes: there is one look at a time, which goes on
/// when who asked has left.
async fn seen(looked: Looked, look: impl Future<Output = Amiss> + Send + 'static) -> Amiss {
    let mut last = looked.lock_owned().await;
    match *last {
        Some((at, amiss)) if at.elapsed() < LOOK_EVERY => amiss,
        _ => {
            let look = tokio::spawn(async move {
                let amiss = look.await;
                *last = Some((Instant::now(), amiss));
                amiss
            });
            look.await.unwrap_or(Some("it could not be looked at"))
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
    use super::{Amiss, LOOK_EVERY, Looked, is_full, ready, seen};
    use crate::site::{Clock, Daemon};
    use axum::Extension;
    use axum::extract::State;
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
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
                None
            })
        };
        // Who asks first leaves while the database says nothing.
        let first = tokio::spawn(ask());
        tokio::task::yield_now().await;
        first.abort();
        let mut others: JoinSet<Amiss> = (0..100).map(|_| ask()).collect();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        gate.add_permits(1);
        while let Some(answer) = others.join_next().await {
            assert_eq!(answer.unwrap(), None);
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        tokio::time::advance(LOOK_EVERY).await;
        gate.add_permits(1);
        assert_eq!(ask().await, None);
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_disk_is_full_when_hardly_anything_can_be_written() {
        let mut fs = rustix::fs::statvfs("/").unwrap();
        (fs.f_blocks, fs.f_frsize) = (1000, 4096);
        let mut with = |blocks| {
            fs.f_bavail = blocks;
            is_full(&fs)
        };
        assert_eq!([with(0), with(255), with(256)], [true, true, false]);
    }

    #[tokio::test]
    async fn a_state_folder_that_is_taken_away_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let text = "[site]\nname = 'a'\ncatalog = 'sqlite:c.db'\n[api]\nlisten = '127.0.0.1:0'\n";
        fs::write(&file, text).unwrap();
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        // Its services write there as they begin.
        daemon.end(Duration::ZERO).await;
        let ask = async || ready(State(daemon.site.clone()), Extension(Looked::default())).await.0;
        assert_eq!(ask().await.as_u16(), 200);
        let [state, aside] = ["state", "aside"].map(|name| folder.path().join(name));
        fs::rename(&state, &aside).unwrap();
        assert_eq!(ask().await.as_u16(), 503, "moved");
        fs::create_dir(&state).unwrap();
        fs::write(state.join("daemon.lock"), "").unwrap();
        assert_eq!(ask().await.as_u16(), 503, "another");
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&aside, &state).unwrap();
        assert_eq!(ask().await.as_u16(), 200, "it is back");
    }
}
