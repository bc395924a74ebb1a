//! What can be asked of a site over HTTPS, in JSON.
//!
//! A part of the site offers [`Routes`]: paths, who may ask, handlers, and their description. `guard` stands before all of
//! them: it knows who asks, bounds what is sent, records who did what, and counts. Handlers get a [`Who`] and say no with a
//! [`Problem`].
//!
//! Three kinds of visitors: anyone (`/healthz`, `/readyz`), people and their programs with a bearer token, and other sites,
//! known by their node key, below `/v1/site/`.

mod audit;
mod events;
mod files;
mod given;
mod guard;
mod health;
mod problem;
mod remotes;
mod routes;
mod services;
mod tokens;

pub use audit::AuditPage;
pub use files::{AttemptReport, FilePage, FileRecord, FileReport, ReceiptReport, ReplicaReport};
pub use given::{Asked, Given, Named};
pub use guard::{Detail, NOT_KNOWN, Who};
pub use problem::Problem;
pub use remotes::{Hello, RemoteReport, Remotes};
pub use routes::{Allow, Routes};
pub use services::Services;
pub use tokens::{TokenList, TokenWish};

use crate::site::{Part, Site};
use std::sync::Arc;

/// What the site answers by itself.
pub fn part(_site: &Arc<Site>) -> Part {
    let all = [
        health::routes(),
        services::routes(),
        remotes::routes(),
        tokens::routes(),
        audit::routes(),
        events::routes(),
        files::routes(),
    ];
    let routes = all.into_iter().fold(Routes::default(), Routes::merge);
    Part { services: Vec::new(), routes }
}
