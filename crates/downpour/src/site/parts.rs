//! What the site is made of: one list. Nothing else here knows what a part does.
//!
//! A part is made once, when the daemon starts, with the site that it may use. What its services and its routes share, it
//! keeps itself.

use super::Site;
use super::service::Service;
use crate::api::{self, Routes};
use crate::{dispatch, mirror, reconcile, spool, tuner};
use std::sync::Arc;

/// What a part brings.
pub struct Part {
    /// What runs.
    pub services: Vec<Arc<dyn Service>>,
    /// What can be asked.
    pub routes: Routes,
}

/// All parts of a site. The door itself is none of them.
pub fn parts(site: &Arc<Site>) -> Vec<Part> {
    let makers: &[fn(&Arc<Site>) -> Part] =
        &[api::part, spool::part, dispatch::part, reconcile::part, mirror::part, tuner::part];
    makers.iter().map(|make| make(site)).collect()
}
