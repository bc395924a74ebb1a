//! What people may ask of links: how they do, what was changed on them, and what they may do.

use super::link::{Link, LinkReport, Wanted, seed};
use super::{Dispatch, SERVICE, lock, work};
use crate::api::{Allow, Asked, Named, Problem, Routes};
use crate::site::{Fault, Remote, Site};
use crate::steering::Steered;
use axum::extract::State;
use axum::{Extension, Json};
use downpour_catalog::ErrorClass;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Decisions on links in one answer.
const STEERED_DEFAULT: usize = 100;
const STEERED_MAX: usize = 10_000;

#[derive(OpenApi)]
#[openapi(paths(links, history, open_link, drain_link, ban_link))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .get("/v1/links", Allow::Viewer, links)
        .get("/v1/links/history", Allow::Viewer, history)
        .post("/v1/links/{site}/open", Allow::Operator, open_link)
        .post("/v1/links/{site}/drain", Allow::Operator, drain_link)
        .post("/v1/links/{site}/ban", Allow::Operator, ban_link)
}

/// All links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Links {
    /// By the other site's name.
    pub links: Vec<LinkReport>,
}

/// Which decisions to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Of {
    /// On the link from this site; without it on all.
    link: Option<String>,
    /// So many of the newest.
    most: Option<usize>,
}

/// What was changed on links to this site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Steering {
    /// This site.
    pub site: String,
    /// The oldest first.
    pub decisions: Vec<Steered>,
}

/// The links to other sites
#[utoipa::path(get, path = "/v1/links", responses((status = 200, body = Links)))]
async fn links(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
) -> Json<Links> {
    Json(dispatch.link_reports(&site))
}

/// What was changed on a link, or on all, while something arrived by it
#[utoipa::path(get, path = "/v1/links/history", params(Of),
    responses((status = 200, body = Steering), (status = 404, body = Problem)))]
async fn history(
    State(site): State<Arc<Site>>,
    Asked(of): Asked<Of>,
) -> Result<Json<Steering>, Problem> {
    let most = of.most.unwrap_or(STEERED_DEFAULT).min(STEERED_MAX);
    // Of one that is configured no longer there may still be some.
    let unknown = of.link.clone().filter(|link| site.remote(link).is_none());
    let decisions = super::ledger::history(&site, of.link, most).await?;
    if let Some(link) = unknown.filter(|_| decisions.is_empty()) {
        return Err(Problem::not_found(format!("there is no [[remote]] `{link}`")));
    }
    Ok(Json(Steering { site: site.name.clone(), decisions }))
}

impl Dispatch {
    pub(super) fn link_reports(&self, site: &Site) -> Links {
        let standstill = site.supervisor().standstill(SERVICE);
        let mut links = lock(&self.links);
        let report = |remote: Arc<Remote>| {
            let name = remote.name().to_owned();
            let new = || Link::new(seed(), Wanted::Open);
            let link = links.entry(name).or_insert_with(new);
            let report = link.report(remote.name(), remote.section.active);
            let probe_at_us = report.probe_at_us.filter(|_| standstill.is_none());
            LinkReport { probe_at_us, standstill: standstill.clone(), ..report }
        };
        Links { links: site.remotes().into_iter().map(report).collect() }
    }
}

fn set_link(
    site: &Site,
    dispatch: &Dispatch,
    name: &str,
    wanted: Wanted,
) -> Result<Json<Links>, Problem> {
    if site.remote(name).is_none() {
        return Err(Problem::not_found(format!("there is no [[remote]] `{name}`")));
    }
    dispatch.link_reports(site);
    if let Some(link) = lock(&dispatch.links).get_mut(name) {
        work::change_link(site, name, link, |link| link.set(wanted));
    }
    work::keep_links(dispatch, &site.config()).map_err(|error| {
        let what = format!("it would not outlive a restart: {error}");
        Problem::from(Fault::new(ErrorClass::OutOfResources, what))
    })?;
    dispatch.wake.notify_one();
    Ok(Json(dispatch.link_reports(site)))
}

/// Use a link again
#[utoipa::path(post, path = "/v1/links/{site}/open", params(("site" = String, Path)),
    responses((status = 200, body = Links), (status = 404, body = Problem)))]
async fn open_link(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(name): Named<String>,
) -> Result<Json<Links>, Problem> {
    set_link(&site, &dispatch, &name, Wanted::Open)
}

/// Finish what is under way on a link, and begin nothing
#[utoipa::path(post, path = "/v1/links/{site}/drain", params(("site" = String, Path)),
    responses((status = 200, body = Links), (status = 404, body = Problem)))]
async fn drain_link(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(name): Named<String>,
) -> Result<Json<Links>, Problem> {
    set_link(&site, &dispatch, &name, Wanted::Drained)
}

/// Begin nothing on a link, and refuse what its site offers
#[utoipa::path(post, path = "/v1/links/{site}/ban", params(("site" = String, Path)),
    responses((status = 200, body = Links), (status = 404, body = Problem)))]
async fn ban_link(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(name): Named<String>,
) -> Result<Json<Links>, Problem> {
    set_link(&site, &dispatch, &name, Wanted::Banned)
}
