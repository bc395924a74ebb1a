//! How a source is asked for a file: by the plan of its path, on a link that is steered and written down as those by which
//! batches come.
//!
//! What the source's kernel allows its connections it says by `/v1/site/limits`, a request that is made once in a while.

use super::PACE_LIFE;
use super::gather::{Asking, Begin};
use crate::dispatch::ledger::Link;
use crate::dispatch::{Dispatch, lock};
use crate::session::bounds;
use crate::site::Site;
use crate::tuner::plan::host;
use axum::Json;
use downpour_proto::transfer::Host;
use downpour_transport::pull::Course;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use utoipa::ToSchema;

/// Who does not say its limits within this time is planned without them.
const ASK_TIME: Duration = Duration::from_secs(2);

/// What the kernel of a site allows its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(super) struct KernelLimits {
    /// Words, as in the answer to JOIN.
    limits: String,
}

/// What this site's kernel allows its connections
#[utoipa::path(get, path = "/v1/site/limits", responses((status = 200, body = KernelLimits)))]
pub(super) async fn limits() -> Json<KernelLimits> {
    Json(KernelLimits { limits: host().to_string() })
}

impl Dispatch {
    /// What a site has said of its kernel's limits lately, if anything.
    pub(in crate::dispatch) fn limits_of(&self, name: &str) -> Host {
        let limits = lock(&self.limits);
        let said = limits.get(name).filter(|(_, at)| at.elapsed() < PACE_LIFE);
        said.map(|(limits, _)| limits.clone()).unwrap_or_default()
    }

    /// Asks those that have not said it lately, all at once.
    pub(super) async fn ask_limits(self: &Arc<Self>, site: &Site, names: &[String]) {
        let (mut asked, now) = (JoinSet::new(), site.clock.now());
        for name in names.iter().filter(|name| self.limits_of(name) == Host::default()) {
            let remote = site.remote(name);
            let Some(remote) = remote.filter(|r| self.barred(Some(r), name, now).is_none()) else {
                continue;
            };
            let (dispatch, name) = (self.clone(), name.clone());
            asked.spawn(async move {
                let said = remote.get::<KernelLimits>("/v1/site/limits");
                if let Ok(Ok(said)) = tokio::time::timeout(ASK_TIME, said).await {
                    let limits = Host::parse(&said.limits);
                    lock(&dispatch.limits).insert(name, (limits, Instant::now()));
                }
            });
        }
        asked.join_all().await;
    }

    /// How a site is asked whenever its turn comes.
    pub(super) async fn asking(self: &Arc<Self>, site: &Arc<Site>, name: &str) -> Begin {
        let link = self.book.link(name, &site.name).await;
        let link = link.inspect_err(|fault| tracing::warn!(%fault, "a link is not written down"));
        let (dispatch, site, name) = (self.clone(), site.clone(), name.to_owned());
        let link = link.ok();
        Box::new(move || {
            let (session, beside) = link.as_ref().map(Link::begin).unzip();
            let ends = [name.as_str(), &site.name];
            let (known, plan) = dispatch.planned(&site, ends, (beside.unwrap_or(0), None));
            let known_at = site.remote(&name).and_then(|remote| remote.known());
            let sender = known_at.map(|(addr, _)| addr.ip().to_string()).unwrap_or_default();
            let course = link.as_ref().and_then(|link| {
                Course::begin(&link.book().steering(&sender, bounds(&known.wishes, &plan)))
            });
            Asking { plan, course, session }
        })
    }
}
