//! How the API says no: a stable code, what happened, what to do.

use crate::site::{Fault, NotDone, RemoteError, Side, TokenError};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use downpour_catalog::ErrorClass;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Code of the problem that what was asked for is not there.
const NOT_FOUND: &str = "not-found";

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// Stable name of the problem, for programs.
    pub code: String,
    /// Name of its error class, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What happened.
    pub what: String,
    /// What to do about it.
    pub todo: String,
}

impl Problem {
    /// One without a class.
    pub fn new(
        status: StatusCode,
        code: &str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        let (what, todo) = (what.into(), todo.into());
        Self { status: status.as_u16(), code: code.to_owned(), class: None, what, todo }
    }

    /// With an error class: what the other site makes of it.
    pub fn of_class(mut self, class: ErrorClass) -> Self {
        self.class = Some(class.to_string());
        self
    }

    /// Its error class, if it has one that this program knows.
    pub fn class(&self) -> Option<ErrorClass> {
        self.class.as_ref()?.parse().ok()
    }

    /// What was asked for is not there.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, NOT_FOUND, what, "look at the list for what there is")
    }

    /// What was sent cannot be meant.
    pub fn bad_request(what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", what, todo)
    }

    /// There is no room for it now.
    pub fn busy(what: impl Into<String>, todo: impl Into<String>) -> Self {
        let busy = Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", what, todo);
        busy.of_class(ErrorClass::OutOfResources)
    }

    /// Another site, of this name, was asked for files and did not do it; what to do about a refusal it knows best.
    pub fn of_source(site: &str, error: RemoteError) -> Self {
        let (class, what) = (error.class(Side::Source), format!("{site}: {error}"));
        let RemoteError::Refused(said) = error else { return Fault::new(class, what).into() };
        // That there is no such thing is an answer, and no other comes by asking again.
        let passed = match said.code == NOT_FOUND {
            true => Self::not_found(what),
            false => Fault::new(class, what).into(),
        };
        Self { todo: format!("at {site}: {}", said.todo), ..passed }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self)).into_response()
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        tracing::warn!(class = fault.class.name(), "not done: {}", fault.what);
        let todo = "try again; the daemon's log says more";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, fault.class.name(), fault.what, todo).of_class(fault.class)
    }
}

impl From<NotDone> for Problem {
    fn from(not: NotDone) -> Self {
        match not {
            NotDone::Unknown => Self::not_found("there is no service of this name"),
            NotDone::Door => Self::new(
                StatusCode::CONFLICT,
                "door",
                "this service is the door through which you came; nobody could open it again",
                "stop the daemon, or restart this service",
            ),
        }
    }
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        let what = error.to_string();
        match error {
            TokenError::BadName(_) => Self::bad_request(what, "choose another name"),
            TokenError::AtOnce => {
                Self::bad_request(what, "leave `expires_s` out, or give a second at least")
            }
            TokenError::Taken(_) => {
                let todo = "choose another name, or revoke that one first";
                Self::new(StatusCode::CONFLICT, "taken", what, todo)
            }
            TokenError::Unknown(_) => Self::not_found(what),
            TokenError::LastAdmin(_) => {
                let todo = "make another first: downpour token new NAME --role admin";
                Self::new(StatusCode::CONFLICT, "last-admin", what, todo)
            }
            TokenError::TooMany => {
                Self::new(StatusCode::CONFLICT, "too-many", what, "revoke some first")
            }
            TokenError::File(..) | TokenError::NoRandomness => {
                let todo = "see to the state folder on the daemon's machine";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", what, todo)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Problem;
    use crate::site::{Fault, RemoteError};
    use axum::http::StatusCode;
    use downpour_catalog::ErrorClass;
    use std::io::{Read as _, Seek as _};
    use std::sync::Arc;

    #[test]
    fn the_log_has_what_the_answer_says_that_it_has() {
        let log = Arc::new(tempfile::tempfile().unwrap());
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
        let fault = Fault::new(ErrorClass::OutOfResources, "the audit record: no space");
        let problem = tracing::subscriber::with_default(subscriber, || Problem::from(fault));
        let (mut text, mut log) = (String::new(), &*log);
        log.rewind().unwrap();
        log.read_to_string(&mut text).unwrap();
        assert!(problem.todo.contains("log") && text.contains(&problem.what), "{text}");
    }

    #[test]
    fn what_another_site_refuses_comes_with_its_remedy() {
        let said = Problem::new(StatusCode::FORBIDDEN, "x", "no paths", "set `pull = true`");
        let said = Box::new(said.of_class(ErrorClass::SourceRefused));
        let passed = Problem::of_source("west", RemoteError::Refused(said));
        assert_eq!(
            (&*passed.what, &*passed.todo),
            ("west: no paths", "at west: set `pull = true`")
        );
        assert_eq!((passed.status, passed.class()), (503, Some(ErrorClass::SourceRefused)));
    }

    #[test]
    fn what_another_site_does_not_have_is_not_there_and_no_failure() {
        let said = Box::new(Problem::not_found("there is no transfer 1 queued at west"));
        let passed = Problem::of_source("west", RemoteError::Refused(said));
        assert_eq!((passed.status, passed.code.as_str(), passed.class()), (404, "not-found", None));
        assert_eq!(passed.what, "west: there is no transfer 1 queued at west");
        assert_eq!(passed.todo, "at west: look at the list for what there is");
    }
}
