//! Archives over HTTP: one place for addresses, bounds and what answers mean.

use super::lenient;
use super::source::SourceError;
use downpour_transport::web::{Page, Web, WebError};
use serde_json::Value;

/// One archive.
#[derive(Clone)]
pub(super) struct Client {
    web: Web,
    /// Without a slash at its end.
    base: String,
}

impl Client {
    pub(super) fn new(web: Web, base: &str) -> Self {
        Self { web, base: base.trim_end_matches('/').to_owned() }
    }

    /// The URL of something below the archive's own; a path from the root stands at the archive's host.
    ///
    /// What an archive names by a whole URL is taken only when it is on that host: an archive sends us nowhere else.
    pub(super) fn url(&self, place: &str) -> Result<String, SourceError> {
        let origin = self.origin();
        if place.contains("://") {
            let inside = place.strip_prefix(origin).is_some_and(|rest| rest.starts_with('/'));
            let what = || format!("a link to another host: {}", lenient::clip(place));
            return inside.then(|| place.to_owned()).ok_or_else(|| SourceError::Nonsense(what()));
        }
        Ok(match place.strip_prefix('/') {
            Some(path) => format!("{origin}/{path}"),
            None if place.is_empty() => self.base.clone(),
            None => format!("{}/{place}", self.base),
        })
    }

    fn origin(&self) -> &str {
        let host = self.base.find("://").map_or(0, |at| at + 3);
        let end = self.base[host..].find(['/', '?']).map_or(self.base.len(), |at| host + at);
        &self.base[..end]
    }

    /// Gets JSON.
    pub(super) async fn get(&self, place: &str) -> Result<Value, SourceError> {
        read(self.web.get(&self.url(place)?).await)
    }

    /// Sends JSON and gets JSON.
    pub(super) async fn post(&self, place: &str, body: &Value) -> Result<Value, SourceError> {
        read(self.web.post(&self.url(place)?, body.to_string().as_bytes()).await)
    }

    /// Takes something away there; whether that worked is not waited for by anybody.
    pub(super) async fn delete(&self, place: &str) -> Result<(), SourceError> {
        self.web.delete(&self.url(place)?).await.map(drop).map_err(silent)
    }
}

fn silent(error: WebError) -> SourceError {
    SourceError::Silent(error.to_string())
}

fn read(page: Result<Page, WebError>) -> Result<Value, SourceError> {
    let page = page.map_err(silent)?;
    if !(200..300).contains(&page.status) {
        return Err(SourceError::Refuses(page.status));
    }
    lenient::json(&page.body)
}

#[cfg(test)]
mod tests {
    use super::Client;
    use downpour_transport::web::{KeyPin, Trust, Web, WebLimits};
    use std::time::Duration;

    #[test]
    fn an_archive_sends_us_nowhere_else() {
        let limits = WebLimits { time_max: Duration::from_secs(1), len_max: 1 };
        let web = Web::new(&Trust::Key(KeyPin::of_key(b"").unwrap()), limits).unwrap();
        let client = Client::new(web, "https://ps.example:8443/esmond/");
        assert_eq!(client.url("/a?b").unwrap(), "https://ps.example:8443/a?b");
        assert_eq!(client.url("a").unwrap(), "https://ps.example:8443/esmond/a");
        assert_eq!(client.url("").unwrap(), "https://ps.example:8443/esmond");
        let own = "https://ps.example:8443/x";
        assert_eq!(client.url(own).unwrap(), own);
        for other in
            ["http://ps.example:8443/x", "https://ps.example:8443.evil/x", "https://10.0.0.1/"]
        {
            assert!(client.url(other).is_err(), "{other}");
        }
    }
}
