//! What handlers take from a request; what cannot be read is answered with a [`Problem`].

use super::Problem;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The body, JSON.
#[derive(Clone, Copy, Debug)]
pub struct Given<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Given<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = whole_body(request, state).await?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let todo = "send JSON as /v1/openapi.json describes it";
            Problem::bad_request(format!("the body: {error}"), todo)
        })
    }
}

/// All of a body.
pub(super) async fn whole_body<S: Send + Sync>(
    request: Request,
    state: &S,
) -> Result<Bytes, Problem> {
    Bytes::from_request(request, state).await.map_err(|error| {
        // The guard bounds bodies: either it is too long, or the connection broke.
        Problem::new(error.status(), "body", error.body_text(), "send a smaller body")
    })
}

/// The query after the `?`.
#[derive(Clone, Copy, Debug)]
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        Query::try_from_uri(&parts.uri).map(|Query(asked)| Self(asked)).map_err(|error| {
            let todo = "write the query as /v1/openapi.json describes it";
            Problem::bad_request(error.body_text(), todo)
        })
    }
}

/// What stands in the path where the route has a name in braces.
#[derive(Clone, Copy, Debug)]
pub struct Named<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named = Path::from_request_parts(parts, state).await;
        named.map(|Path(named)| Self(named)).map_err(|error| {
            let todo = "write the path as /v1/openapi.json describes it";
            Problem::bad_request(error.body_text(), todo)
        })
    }
}
