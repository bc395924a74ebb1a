//! `/v1/tokens`: who may. For admins.

use super::{Allow, Detail, Given, Named, Problem, Routes};
use crate::site::{Fault, NewToken, Role, Shown, Site, TokenError};
use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::{OpenApi, ToSchema};

/// A token that is wanted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenWish {
    /// Whose it is.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// Seconds until it ends, at least 1; left out, it does not.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub expires_s: Option<u64>,
}

/// The tokens that there are.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// By name.
    pub tokens: Vec<Shown>,
}

#[derive(OpenApi)]
#[openapi(paths(list, new, revoke))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .get("/v1/tokens", Allow::Admin, list)
        .post("/v1/tokens", Allow::Admin, new)
        .delete("/v1/tokens/{name}", Allow::Admin, revoke)
}

/// The tokens file is read and written where that may block.
async fn with_tokens<T: Send + 'static>(
    site: Arc<Site>,
    work: impl FnOnce(&Site) -> Result<T, TokenError> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(move || work(&site)).await;
    Ok(done.map_err(Fault::from)??)
}

/// Who may
#[utoipa::path(get, path = "/v1/tokens", responses((status = 200, body = TokenList)))]
async fn list(State(site): State<Arc<Site>>) -> Result<Json<TokenList>, Problem> {
    let tokens = with_tokens(site, |site| site.tokens.list(site.clock.now())).await?;
    Ok(Json(TokenList { tokens }))
}

/// Make a token; its text is in this answer and nowhere else
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenWish,
    responses((status = 200, body = NewToken), (status = 409, body = Problem)))]
async fn new(
    State(site): State<Arc<Site>>,
    Given(wish): Given<TokenWish>,
) -> (Extension<Detail>, Result<Json<NewToken>, Problem>) {
    // As it is written everywhere else.
    let role = format!("{:?}", wish.role).to_lowercase();
    let detail = Detail(format!("{} as {role}", wish.name));
    let expires = wish.expires_s.map(Duration::from_secs);
    let made = move |site: &Site| site.tokens.add(&wish.name, wish.role, expires, site.clock.now());
    (Extension(detail), with_tokens(site, made).await.map(Json))
}

/// End a token for good
#[utoipa::path(delete, path = "/v1/tokens/{name}", params(("name" = String, Path)),
    responses((status = 200, body = TokenList), (status = 404, body = Problem),
        (status = 409, body = Problem)))]
async fn revoke(
    State(site): State<Arc<Site>>,
    Named(name): Named<String>,
) -> Result<Json<TokenList>, Problem> {
    let revoked = move |site: &Site| {
        let now = site.clock.now();
        site.tokens.revoke(&name, now)?;
        site.tokens.list(now)
    };
    Ok(Json(TokenList { tokens: with_tokens(site, revoked).await? }))
}
