//! Other sites: whether they can be reached and trust us (`/v1/remotes`, for people), and what we answer them when they ask
//! the same (`/v1/site/hello`).

use super::{Allow, Routes};
use crate::site::{Remote, Side, Site};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use utoipa::{OpenApi, ToSchema};

/// Who we are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hello {
    /// The site's name.
    pub site: String,
    /// The program's version.
    pub version: String,
    /// The site's time, in microseconds since 1970.
    pub now: i64,
}

/// Another site, as it was just now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RemoteReport {
    /// Its name in the configuration.
    pub name: String,
    /// Its key.
    pub key: String,
    /// Where it is; left out when only it can connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether it answered and knows us.
    pub reached: bool,
    /// What it said of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello: Option<Hello>,
    /// Seconds that its clock is ahead of ours, half the time of the question aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ahead_s: Option<f64>,
    /// Error class and text, when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<crate::site::Why>,
}

/// All other sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Remotes {
    /// In the order of the configuration.
    pub remotes: Vec<RemoteReport>,
}

#[derive(OpenApi)]
#[openapi(paths(list, hello))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).get("/v1/remotes", Allow::Viewer, list).get(
        "/v1/site/hello",
        Allow::Site,
        hello,
    )
}

/// Asks all other sites who they are
#[utoipa::path(get, path = "/v1/remotes", responses((status = 200, body = Remotes)))]
async fn list(State(site): State<Arc<Site>>) -> Json<Remotes> {
    let asked = site.remotes().into_iter().map(|remote| ask(&site, remote));
    Json(Remotes { remotes: futures_util::future::join_all(asked).await })
}

async fn ask(site: &Site, remote: Arc<Remote>) -> RemoteReport {
    let begun = Instant::now();
    let answer = remote.hello().await;
    let half = begun.elapsed() / 2;
    let ahead = |hello: &Hello| (hello.now - site.clock.now().0) as f64 / 1e6 + half.as_secs_f64();
    let (hello, why) = match answer {
        Ok(hello) => (Some(hello), None),
        Err(error) => {
            let class = error.class(Side::Destination).to_string();
            (None, Some(crate::site::Why { class, what: error.to_string() }))
        }
    };
    RemoteReport {
        name: remote.name().to_owned(),
        key: remote.key().to_string(),
        address: remote.section.address.as_ref().map(ToString::to_string),
        reached: hello.is_some(),
        clock_ahead_s: hello.as_ref().map(ahead),
        hello,
        why,
    }
}

/// Who we are, for another site
#[utoipa::path(get, path = "/v1/site/hello", responses((status = 200, body = Hello)))]
async fn hello(State(site): State<Arc<Site>>) -> Json<Hello> {
    let (version, now) = (env!("CARGO_PKG_VERSION").to_owned(), site.clock.now().0);
    Json(Hello { site: site.name.clone(), version, now })
}
