//! What another site asks for: files of ours by their paths, or files of a third site that we shall fetch.

use super::Dispatch;
use super::submit::{Accepted, Submission, submit};
use crate::api::Problem;
use crate::site::{Remote, Site};
use axum::http::StatusCode;
use downpour_catalog::ErrorClass;
use std::sync::Arc;

/// Sends what `asker` wants, or fetches it.
pub(super) async fn want(
    dispatch: &Dispatch,
    site: &Arc<Site>,
    asker: &Remote,
    wish: Submission,
) -> Result<Accepted, Problem> {
    if let Some(from) = wish.from.clone() {
        if !asker.section.orders {
            let what = format!("{} may not tell this site what to fetch", asker.name());
            return Err(not_let(
                what,
                format!("set `orders = true` in [[remote]] {}", asker.name()),
            ));
        }
        return fetch(site, &from, Submission { from: None, ..wish }).await;
    }
    if !asker.section.pull {
        let what = format!("{} may not ask this site for paths", asker.name());
        return Err(not_let(what, format!("set `pull = true` in [[remote]] {}", asker.name())));
    }
    // Who asks gets them, whatever it says.
    let wish = Submission { to: asker.name().to_owned(), ..wish };
    let accepted = submit(dispatch, site, wish).await?;
    dispatch.wake.notify_one();
    Ok(accepted)
}

/// What this site's configuration does not let another one do.
fn not_let(what: String, todo: String) -> Problem {
    let class = ErrorClass::SourceRefused;
    Problem::new(StatusCode::FORBIDDEN, class.name(), what, todo).of_class(class)
}

/// Asks another site for files, for this one.
pub(super) async fn fetch(
    site: &Arc<Site>,
    from: &str,
    wish: Submission,
) -> Result<Accepted, Problem> {
    let Some(remote) = site.remote(from) else {
        let what = format!("`{from}` is no [[remote]] of {}", site.name);
        return Err(not_let(what, format!("add a [[remote]] {from} to its configuration")));
    };
    let asked = remote.post("/v1/site/wants", &wish).await;
    asked.map_err(|error| Problem::of_source(from, error))
}
