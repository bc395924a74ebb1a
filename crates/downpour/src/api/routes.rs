//! Paths, who may ask for them, who answers, and their description, side by side.

use super::guard::{self, Guard};
use crate::site::Site;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use axum::{Extension, Router, middleware};
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::openapi::{Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, ResponseBuilder};

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Everybody, known or not.
    Anyone,
    /// A token of a viewer or better.
    Viewer,
    /// A token of an operator or better.
    Operator,
    /// A token of an admin.
    Admin,
    /// Another site that is configured, by its node key.
    Site,
}

/// What can be asked.
#[derive(Clone)]
pub struct Routes {
    router: Router<Arc<Site>>,
    mounted: HashMap<(Method, &'static str), Allow>,
    description: OpenApi,
}

impl Default for Routes {
    fn default() -> Self {
        let mut info = InfoBuilder::new().title("Downpour").version(env!("CARGO_PKG_VERSION"));
        info = info.description(Some("A site's API; see docs/site.md."));
        let description = OpenApiBuilder::new().info(info).build();
        Self { router: Router::new(), mounted: HashMap::new(), description }
    }
}

impl Routes {
    /// None yet; `description` is of those to come: each route has a `#[utoipa::path]` in it, or a test fails.
    pub fn described(mut description: OpenApi) -> Self {
        // Handlers have the same names here and there; operations may not.
        for (path, item) in &mut description.paths.paths {
            let words: Vec<_> = path.split(|c: char| !c.is_ascii_alphanumeric()).collect();
            for (method, operation) in
                [("get", &mut item.get), ("post", &mut item.post), ("delete", &mut item.delete)]
            {
                let Some(operation) = operation else { continue };
                operation.operation_id = Some(format!("{method}{}", words.join("_")));
            }
        }
        let mut routes = Self::default();
        routes.description.merge(description);
        routes
    }

    /// One more that only tells.
    pub fn get<H, T>(self, path: &'static str, allow: Allow, handler: H) -> Self
    where
        H: Handler<T, Arc<Site>>,
        T: 'static,
    {
        self.on(Method::GET, MethodFilter::GET, path, allow, handler)
    }

    /// One more that does something.
    pub fn post<H, T>(self, path: &'static str, allow: Allow, handler: H) -> Self
    where
        H: Handler<T, Arc<Site>>,
        T: 'static,
    {
        self.on(Method::POST, MethodFilter::POST, path, allow, handler)
    }

    /// One more that takes something away.
    pub fn delete<H, T>(self, path: &'static str, allow: Allow, handler: H) -> Self
    where
        H: Handler<T, Arc<Site>>,
        T: 'static,
    {
        self.on(Method::DELETE, MethodFilter::DELETE, path, allow, handler)
    }

    /// Gives all handlers so far an `Extension` with this value.
    pub fn share<V: Clone + Send + Sync + 'static>(mut self, value: V) -> Self {
        self.router = self.router.layer(Extension(value));
        self
    }

    /// Both.
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.mounted.extend(other.mounted);
        self.description.merge(other.description);
        self
    }

    fn on<H, T>(
        mut self,
        method: Method,
        filter: MethodFilter,
        path: &'static str,
        allow: Allow,
        handler: H,
    ) -> Self
    where
        H: Handler<T, Arc<Site>>,
        T: 'static,
    {
        self.describe_refusals(&method, path, allow);
        self.router = self.router.route(path, on(filter, handler));
        self.mounted.insert((method, path), allow);
        self
    }

    /// What stands before all handlers refuses is described here, once for all of them: what cannot be read, and who may
    /// not ask.
    fn describe_refusals(&mut self, method: &Method, path: &str, allow: Allow) {
        let Some(item) = self.description.paths.paths.get_mut(path) else { return };
        let operation = match *method {
            Method::GET => &mut item.get,
            Method::POST => &mut item.post,
            _ => &mut item.delete,
        };
        let Some(operation) = operation else { return };
        let is_read = operation.parameters.is_some() || operation.request_body.is_some();
        let refusals = [
            ("400", is_read, "What was sent cannot be read"),
            ("401", allow != Allow::Anyone, "Nobody knows who asks"),
            ("403", allow != Allow::Anyone, "Who asks may not"),
        ];
        for (status, _, what) in refusals.into_iter().filter(|(_, is_given, _)| *is_given) {
            let content = Content::new(Some(Ref::from_schema_name("Problem")));
            let response = ResponseBuilder::new().description(what);
            let response = response.content("application/json", content).build();
            let responses = &mut operation.responses.responses;
            responses.entry(status.to_owned()).or_insert_with(|| response.into());
        }
    }

    /// What is mounted, and for whom.
    pub fn mounted(&self) -> impl Iterator<Item = (&Method, &'static str, Allow)> {
        self.mounted.iter().map(|((method, path), allow)| (method, *path, *allow))
    }

    /// The description of all of them.
    pub fn description(&self) -> &OpenApi {
        &self.description
    }

    /// What answers, with the guard before it.
    pub(crate) fn into_router(self, site: Arc<Site>) -> Router {
        let description = Arc::new(self.description);
        let guard = Arc::new(Guard::new(site.clone(), self.mounted));
        self.router
            .fallback(guard::no_such_path)
            .method_not_allowed_fallback(guard::no_such_method)
            .layer(Extension(description))
            .layer(middleware::from_fn_with_state(guard, guard::stand))
            .with_state(site)
    }
}

#[cfg(test)]
mod tests {
    use super::Allow;
    use crate::site::{Daemon, parts};
    use axum::http::Method;
    use std::collections::BTreeSet;
    use utoipa::openapi::path::ParameterIn;

    /// What is mounted and what is described are the same, for all parts of the site.
    #[tokio::test]
    async fn each_route_is_described_and_each_description_is_a_route() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::example(folder.path(), "a", "").await;
        let (mut mounted, mut described) = (BTreeSet::new(), BTreeSet::new());
        let mut ids = BTreeSet::new();
        for part in parts(&daemon.site) {
            let of_part = part.routes.mounted();
            mounted.extend(of_part.map(|(method, path, _)| (method.to_string(), path.to_owned())));
            let open = part.routes.mounted().filter(|(.., allow)| *allow == Allow::Anyone);
            let open: BTreeSet<_> = open.map(|(_, path, _)| path).collect();
            for (path, item) in &part.routes.description().paths.paths {
                let methods = [
                    (Method::GET, &item.get),
                    (Method::POST, &item.post),
                    (Method::DELETE, &item.delete),
                ];
                for (method, operation) in methods {
                    let Some(operation) = operation else { continue };
                    described.insert((method.to_string(), path.clone()));
                    assert!(ids.insert(operation.operation_id.clone()), "{method} {path}");
                    let of_path = operation.parameters.iter().flatten();
                    let of_path = of_path.filter(|one| one.parameter_in == ParameterIn::Path);
                    let of_path: BTreeSet<_> = of_path.map(|one| one.name.as_str()).collect();
                    let named = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
                    assert_eq!(of_path, named.collect(), "{method} {path}");
                    let refuses = |status: &str| operation.responses.responses.contains_key(status);
                    let reads = operation.parameters.is_some() || operation.request_body.is_some();
                    assert!(refuses("400") || !reads, "{method} {path}");
                    let is_open = open.contains(path.as_str());
                    assert_eq!(["401", "403"].map(refuses), [!is_open; 2], "{method} {path}");
                }
            }
        }
        assert!(mounted.len() >= 10, "{mounted:?}");
        assert_eq!(mounted, described);
    }
}
