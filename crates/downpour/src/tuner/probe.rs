//! An active probe between our own sites: a short download over the API, bounded in bytes and in time.
//!
//! | who asks | what | gives |
//! | --- | --- | --- |
//! | the receiving end | `GET /v1/site/probe?bytes=N` | N bytes, and what the kernel tells of the connection |
//! | the sending end | `POST /v1/site/probe` | the other site does the above with us, and tells |
//!
//! The rate is that of the second half of the bytes: the first is TCP's start. The round trip is the connection's shortest. One
//! probe at a time is served by a site; another is told to come later.

use super::sample::{Direction, Host, Key, Metric, Origin, Sample, Spread};
use super::source::{Ask, Asking, Found, Source, SourceError};
use crate::api::{Allow, Asked, Given, Problem, Routes, Who};
use crate::site::{Part, Remote, RemoteError, Site};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Bytes of one probe.
pub(super) const BYTES_MAX: u64 = 64 << 20;
/// How long one may take.
const TIME_MAX: Duration = Duration::from_secs(15);
/// Less than this tells a round trip, but no rate.
const BYTES_MIN: u64 = 64 << 10;
/// Sums are noted this far apart.
const STEP: u64 = 4 << 10;
/// Bytes that are handed out at once. They are zeros: TLS makes them look like any others.
static BLOCK: [u8; 64 << 10] = [0; 64 << 10];

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeReport {
    /// Bytes that came.
    pub bytes: u64,
    /// Bit/s of their second half; left out when too few came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// The shortest round trip of the connection, in seconds, as the receiver's kernel has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_s: Option<f64>,
}

/// How much a probe may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ProbeWish {
    /// Bytes.
    pub bytes: u64,
    /// Milliseconds; the bytes that came until then count.
    #[serde(default)]
    pub time_ms: u64,
}

/// Probes between this site and others.
pub(super) struct Probe {
    pub(super) name: String,
    /// This site.
    pub(super) here: String,
    pub(super) remotes: Vec<Arc<Remote>>,
    pub(super) wish: ProbeWish,
}

impl Source for Probe {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_active(&self) -> bool {
        true
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let remote =
                |end: &super::End| self.remotes.iter().find(|remote| end.is_named(remote.name()));
            let (from, to) = (&ask.source, &ask.destination);
            let (place, report) = match (remote(from), remote(to)) {
                (Some(remote), _) if to.is_named(&self.here) => {
                    (format!("download from {}", remote.name()), fetch(remote, self.wish).await)
                }
                (_, Some(remote)) if from.is_named(&self.here) => {
                    let place = format!("download by {}", remote.name());
                    (place, remote.post("/v1/site/probe", &self.wish).await)
                }
                _ => {
                    let what = "a probe is between this site and a [[remote]]";
                    return Err(SourceError::Unusable(what.to_owned()));
                }
            };
            let report = report.map_err(|error| SourceError::Silent(error.to_string()))?;
            Ok(read(&report, ask, &Origin { source: self.name.clone(), place }))
        })
    }
}

fn read(report: &ProbeReport, ask: &Ask, origin: &Origin) -> Found {
    let (source, destination) = (Host::new(&ask.source.name), Host::new(&ask.destination.name));
    let (direction, tool) = (Some(Direction::Pull), "probe".to_owned());
    let key = Key { source, destination, direction, ip: None, tool };
    let mut found = Found::default();
    let figures = [
        (Metric::Throughput, report.rate_bps, "bytes and time"),
        (Metric::Rtt, report.rtt_s, "µs"),
    ];
    for (metric, figure, unit) in figures {
        if let Some(figure) = figure {
            let spread = Spread::of(figure);
            found.take(Sample::checked(key.clone(), metric, spread, ask.now, unit, origin));
        }
    }
    found
}

/// Downloads from another site.
async fn fetch(remote: &Remote, wish: ProbeWish) -> Result<ProbeReport, RemoteError> {
    let bytes = wish.bytes.min(BYTES_MAX);
    let end = Instant::now() + Duration::from_millis(wish.time_ms).min(TIME_MAX);
    let mut answer = remote.open(&format!("/v1/site/probe?bytes={bytes}")).await?;
    let mut came = Came(vec![(Instant::now(), 0)]);
    let mut sum = 0;
    // What came until the time is over counts; more is not waited for.
    while let Ok(some) = timeout(end.saturating_duration_since(Instant::now()), answer.some()).await
    {
        let Some(some) = some? else { break };
        sum += some.len() as u64;
        came.note(Instant::now(), sum);
        if sum >= bytes {
            break;
        }
    }
    let rtt_ms = answer.connection().min_rtt_ms;
    let rtt_s = (rtt_ms > 0.0).then_some(rtt_ms / 1e3);
    Ok(ProbeReport { bytes: sum, rate_bps: came.second_half(), rtt_s })
}

/// When sums of bytes were reached, each [`STEP`] at most, however small the pieces are.
struct Came(Vec<(Instant, u64)>);

impl Came {
    fn note(&mut self, now: Instant, sum: u64) {
        // The last one moves on until it is a step further than the one before it.
        if let [.., (_, before), last] = &mut self.0[..]
            && last.1 - *before < STEP
        {
            *last = (now, sum);
        } else {
            self.0.push((now, sum));
        }
    }

    /// Bit/s of the second half of what came.
    fn second_half(&self) -> Option<f64> {
        let (last, all) = *self.0.last()?;
        let (middle, half) = *self.0.iter().find(|(_, sum)| *sum >= all / 2)?;
        let time = last.duration_since(middle).as_secs_f64();
        (all >= BYTES_MIN && time > 0.0).then(|| (all - half) as f64 * 8.0 / time)
    }
}

#[derive(OpenApi)]
#[openapi(paths(give, take), components(schemas(ProbeReport, ProbeWish)))]
struct Description;

/// Serves one probe at a time.
#[derive(Clone)]
struct Turn(Arc<Semaphore>);

impl Turn {
    fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.0.clone().try_acquire_owned().map_err(|_| {
            let what = "a probe is under way here";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", what, "probe later")
        })
    }
}

/// This part of the site.
pub fn part(_: &Arc<Site>) -> Part {
    let routes = Routes::described(Description::openapi())
        .get("/v1/site/probe", Allow::Site, give)
        .post("/v1/site/probe", Allow::Site, take)
        .share(Turn(Arc::new(Semaphore::new(1))));
    Part { services: Vec::new(), routes }
}

/// Bytes, to see how fast they come
#[utoipa::path(get, path = "/v1/site/probe", params(ProbeWish), responses(
    (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
    (status = 503, body = Problem)))]
async fn give(
    Extension(turn): Extension<Turn>,
    Asked(wish): Asked<ProbeWish>,
) -> Result<Body, Problem> {
    let permit = turn.take()?;
    let left = (wish.bytes.min(BYTES_MAX), Instant::now() + TIME_MAX, permit);
    // It ends early for whoever takes it too slowly.
    let blocks = stream::unfold(left, |(left, end, permit)| async move {
        let len = left.min(BLOCK.len() as u64) as usize;
        let over = len == 0 || Instant::now() >= end;
        let block = Bytes::from_static(&BLOCK).slice(..len);
        (!over).then(|| (Ok::<_, Infallible>(block), (left - len as u64, end, permit)))
    });
    Ok(Body::from_stream(blocks))
}

/// Download from the site that asks, and tell it how that went
#[utoipa::path(post, path = "/v1/site/probe", request_body = ProbeWish,
    responses((status = 200, body = ProbeReport), (status = 503, body = Problem)))]
async fn take(
    State(site): State<Arc<Site>>,
    Extension(turn): Extension<Turn>,
    Extension(who): Extension<Who>,
    Given(wish): Given<ProbeWish>,
) -> Result<Json<ProbeReport>, Problem> {
    let _permit = turn.take()?;
    let remote = site.remote(who.name());
    let remote = remote.ok_or_else(|| Problem::not_found("this site does not know you"))?;
    let report = fetch(&remote, wish).await.map_err(|error| {
        let todo = "give this site's [[remote]] of yours an address that it can reach";
        Problem::new(StatusCode::BAD_GATEWAY, "not-probed", error.to_string(), todo)
    })?;
    Ok(Json(report))
}

#[cfg(test)]
mod tests {
    use super::{Came, STEP};
    use std::time::{Duration, Instant};

    #[test]
    fn the_start_of_a_connection_does_not_count() {
        let begun = Instant::now();
        let at = |ms, sum| (begun + Duration::from_millis(ms), sum);
        // The first half in 900 ms, the second in 100.
        let came = [at(0, 0), at(900, 1_000_000), at(950, 1_500_000), at(1000, 2_000_000)];
        let rate = |came: &[(Instant, u64)]| Came(came.to_vec()).second_half();
        assert_eq!(rate(&came).map(f64::round), Some(80e6));
        assert_eq!(rate(&[at(0, 0), at(5, 1000)]), None, "too little");
        assert_eq!(rate(&[at(0, 0)]), None);
        assert_eq!(rate(&[at(0, 0), at(0, 1_000_000)]), None, "no time");
    }

    #[test]
    fn pieces_of_one_byte_take_no_more_room_and_give_the_same_rate() {
        let begun = Instant::now();
        let mut came = Came(vec![(begun, 0)]);
        // A byte each microsecond.
        for sum in 1..=100 * STEP {
            came.note(begun + Duration::from_micros(sum), sum);
        }
        assert_eq!(came.0.len(), 101);
        assert_eq!(came.second_half().map(f64::round), Some(8e6));
    }
}
