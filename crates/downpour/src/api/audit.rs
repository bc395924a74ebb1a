//! `/v1/audit`: who did what. For admins.

use super::{Allow, Asked, Problem, Routes};
use crate::site::{Audit, AuditEntry, Fault, Site, Verified, Wanted, blocking};
use axum::Json;
use axum::extract::State;
use downpour_catalog::{ErrorClass, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Entries of one answer at most.
const PAGE_MAX: usize = 1000;

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    /// After the entry of this number; 0 unless given
    #[serde(default)]
    after: u64,
    /// Not from before this time, microseconds since 1970
    #[serde(default)]
    since_us: i64,
    /// Only what this one did
    who: Option<String>,
    /// At most so many; 100 unless given
    limit: Option<usize>,
}

/// A page of the record.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// Oldest first.
    pub entries: Vec<AuditEntry>,
    /// Number of the last entry that there is.
    pub last: u64,
    /// A line that cannot be read; the page is without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

#[derive(OpenApi)]
#[openapi(paths(list, verify))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi()).get("/v1/audit", Allow::Admin, list).get(
        "/v1/audit/verify",
        Allow::Admin,
        verify,
    )
}

/// The record is read where that may block.
async fn with_record<T: Send + 'static>(
    site: Arc<Site>,
    read: impl FnOnce(&Audit) -> std::io::Result<T> + Send + 'static,
) -> Result<Json<T>, Problem> {
    let failed = |error| Fault::new(ErrorClass::Internal, format!("the audit record: {error}"));
    Ok(Json(blocking(move || read(&site.audit).map_err(failed)).await?))
}

/// Who did what
#[utoipa::path(get, path = "/v1/audit", params(AuditQuery), responses((status = 200, body = AuditPage)))]
async fn list(
    State(site): State<Arc<Site>>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Json<AuditPage>, Problem> {
    let limit = query.limit.unwrap_or(100).min(PAGE_MAX);
    let wanted = Wanted { after: query.after, since: Time(query.since_us), who: query.who };
    with_record(site, move |audit| {
        let (entries, broken) = audit.list(&wanted, limit)?;
        Ok(AuditPage { entries, last: audit.last(), broken })
    })
    .await
}

/// Whether the record is whole: each line names the digest of the one before it
#[utoipa::path(get, path = "/v1/audit/verify", responses((status = 200, body = Verified)))]
async fn verify(State(site): State<Arc<Site>>) -> Result<Json<Verified>, Problem> {
    with_record(site, Audit::verify).await
}
