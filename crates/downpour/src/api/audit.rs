//! `/v1/audit`: who did what. For admins.

use super::{Allow, Asked, Problem, Routes};
use crate::site::{AuditEntry, Fault, Site};
use axum::Json;
use axum::extract::State;
use downpour_catalog::ErrorClass;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Entries of one answer at most.
const PAGE_MAX: usize = 1000;

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    /// After the entry of this number; 0 unless given
    #[serde(default)]
    after: u64,
    /// At most so many; 100 unless given
    limit: Option<usize>,
}

/// A page of the record.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct AuditPage {
    /// Oldest first.
    entries: Vec<AuditEntry>,
    /// Number of the last entry that there is.
    last: u64,
}

#[derive(OpenApi)]
#[openapi(paths(list))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).get("/v1/audit", Allow::Admin, list)
}

/// Who did what
#[utoipa::path(get, path = "/v1/audit", params(AuditQuery), responses((status = 200, body = AuditPage)))]
async fn list(
    State(site): State<Arc<Site>>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Json<AuditPage>, Problem> {
    let limit = query.limit.unwrap_or(100).min(PAGE_MAX);
    let read = move || Ok((site.audit.list(query.after, limit)?, site.audit.last()));
    let failed = |what: String| Fault::new(ErrorClass::Internal, what);
    let read = tokio::task::spawn_blocking(read).await;
    let read: std::io::Result<_> = read.map_err(|error| failed(error.to_string()))?;
    let (entries, last) = read.map_err(|error| failed(format!("the audit record: {error}")))?;
    Ok(Json(AuditPage { entries, last }))
}
