//! What people may ask of links: how they do, what was changed on them, and what they may do.

use super::link::{Link, LinkReport, Wanted, seed};
use super::{Dispatch, SERVICE, lock, work};
use crate::api::{Allow, Asked, Named, Problem, Routes};
use crate::site::{Config, Fault, Remote, Site, blocking};
use crate::steering::Steered;
use crate::whole::{self, put};
use axum::extract::State;
use axum::{Extension, Json};
use downpour_catalog::ErrorClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// What operators want of links, kept over restarts.
const LINKS_FILE: &str = "links.json";
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

fn links_file(config: &Config) -> PathBuf {
    config.state().join(LINKS_FILE)
}

/// The links as operators left them. None are kept before the first was drained or banned.
pub(super) fn links_as_left(config: &Config) -> io::Result<BTreeMap<String, Link>> {
    let text = match whole::read(&links_file(config)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read?,
    };
    let left: BTreeMap<String, Wanted> = serde_json::from_slice(&text)?;
    Ok(left.into_iter().map(|(name, wanted)| (name, Link::new(seed(), wanted))).collect())
}

/// Whether it is known what operators want of links: without that none is opened. If not, what cannot be read, and why.
pub(crate) fn check_links(config: &Config) -> Result<(), (PathBuf, io::Error)> {
    links_as_left(config).map(drop).map_err(|error| (links_file(config), error))
}

impl Dispatch {
    /// Keeps what operators want of links; two at once one after the other.
    fn keep_links(&self, config: &Config) -> io::Result<()> {
        let _alone = lock(&self.keeps_links);
        let wanted: BTreeMap<String, Wanted> =
            lock(&self.links).iter().map(|(name, link)| (name.clone(), link.wanted)).collect();
        put(&links_file(config), &serde_json::to_vec(&wanted)?)
    }

    pub(super) fn link_reports(&self, site: &Site) -> Links {
        let standstill = site.supervisor().standstill(SERVICE);
        let mut links = lock(&self.links);
        let report = |remote: Arc<Remote>| {
            let name = remote.name().to_owned();
            let new = || Link::new(seed(), Wanted::Open);
            let link = links.entry(name).or_insert_with(new);
            let report = link.report(remote.name(), remote.section.active);
            let probe_at_us = report.probe_at_us.filter(|_| standstill.is_none());
            let standing = self.standing(|batch| batch.report().site == remote.name());
            let standing = standing.map(|what| format!("{}: {what}", ErrorClass::TimedOut));
            let trouble = standing.or(report.trouble);
            LinkReport { probe_at_us, trouble, standstill: standstill.clone(), ..report }
        };
        Links { links: site.remotes().into_iter().map(report).collect() }
    }
}

async fn set_link(
    site: Arc<Site>,
    dispatch: Arc<Dispatch>,
    name: String,
    wanted: Wanted,
) -> Result<Json<Links>, Problem> {
    if site.remote(&name).is_none() {
        return Err(Problem::not_found(format!("there is no [[remote]] `{name}`")));
    }
    dispatch.link_reports(&site);
    if let Some(link) = lock(&dispatch.links).get_mut(&name) {
        work::change_link(&site, &name, link, |link| link.set(wanted));
    }
    let (config, keeper) = (site.config(), dispatch.clone());
    let kept = blocking(move || {
        keeper.keep_links(&config).map_err(|error| {
            let what = format!("it would not outlive a restart: {error}");
            Fault::new(ErrorClass::OutOfResources, what)
        })
    });
    kept.await?;
    dispatch.wake.notify_one();
    Ok(Json(dispatch.link_reports(&site)))
}

/// Use a link again
#[utoipa::path(post, path = "/v1/links/{site}/open", params(("site" = String, Path)),
    responses((status = 200, body = Links), (status = 404, body = Problem)))]
async fn open_link(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(name): Named<String>,
) -> Result<Json<Links>, Problem> {
    set_link(site, dispatch, name, Wanted::Open).await
}

/// Finish what is under way on a link, and begin nothing
#[utoipa::path(post, path = "/v1/links/{site}/drain", params(("site" = String, Path)),
    responses((status = 200, body = Links), (status = 404, body = Problem)))]
async fn drain_link(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(name): Named<String>,
) -> Result<Json<Links>, Problem> {
    set_link(site, dispatch, name, Wanted::Drained).await
}

/// Begin nothing on a link, and refuse what its site offers
#[utoipa::path(post, path = "/v1/links/{site}/ban", params(("site" = String, Path)),
    responses((status = 200, body = Links), (status = 404, body = Problem)))]
async fn ban_link(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Named(name): Named<String>,
) -> Result<Json<Links>, Problem> {
    set_link(site, dispatch, name, Wanted::Banned).await
}

#[cfg(test)]
mod tests {
    use super::{links_file, set_link};
    use crate::dispatch::Dispatch;
    use crate::dispatch::link::Wanted;
    use crate::site::{Clock, Daemon, look};
    use std::fs;
    use std::sync::Arc;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn what_operators_want_of_links_outlives_the_daemon_or_it_does_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["b", "c", "d", "e"];
        let remotes = names.map(|name| {
            let key = format!("{}{}", name.to_uppercase(), "A".repeat(42));
            format!("[[remote]]\nname = '{name}'\nkey = '{key}'\n")
        });
        let site = Daemon::ended(folder.path(), "a", &remotes.concat()).await;
        let (file, config) = (folder.path().join("site.toml"), site.config());
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        let mut banned = JoinSet::new();
        for name in names {
            banned.spawn(set_link(site.clone(), dispatch.clone(), name.to_owned(), Wanted::Banned));
        }
        while let Some(done) = banned.join_next().await {
            assert!(done.unwrap().is_ok());
        }
        let after = Dispatch::new(&site, &Arc::default());
        let links = after.link_reports(&site).links;
        assert!(
            links.len() == names.len() && links.iter().all(|link| link.wanted == Wanted::Banned)
        );
        fs::write(links_file(&config), "{").unwrap();
        drop((site, dispatch, after));
        let refused = [Daemon::start(&file, Clock::system()).await.err(), look(&file).err()];
        assert!(refused.iter().flatten().all(|told| told.to_string().contains("links.json")));
        assert_eq!(refused.iter().flatten().count(), 2, "{refused:?}");
    }
}
