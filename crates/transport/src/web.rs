//! Requests to web servers that are not ours, such as archives of measurements: bounded in every way.
//!
//! 1. The URL is taken apart; `http:` and `https:` are known, passwords in it are not.
//! 2. A TLS server is trusted as [`Trust`] says: by this machine's authorities, by those of a file, or by its key alone.
//! 3. A redirect is followed, at most [`REDIRECTS_MAX`] times and never from `https:` to `http:`. The trust holds there, too.
//! 4. The answer is read up to [`WebLimits::len_max`]; all of it together takes [`WebLimits::time_max`] at most.
//!
//! Each request has a connection of its own. Deliberately absent: cookies, compression, proxies, credentials.

use crate::identity::{PinnedServer, WrongServerKey, wrong_server_key};
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, LOCATION};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Redirects that are followed.
pub const REDIRECTS_MAX: usize = 3;

/// The SHA-256 of the key in a certificate (its SubjectPublicKeyInfo), as `curl --pinnedpubkey` has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyPin([u8; 32]);

/// A text is no [`KeyPin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a pin is written as sha256//BASE64, the digest of the key in the server's certificate")]
pub struct NoPin;

/// Which servers are believed to be who they say.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those with a certificate that this machine's authorities vouch for.
    Machine,
    /// Those with a certificate that one of these vouches for: PEM.
    Authorities(Vec<u8>),
    /// The one that holds this key, whatever its certificate says of names and dates.
    Key(KeyPin),
}

/// How much one request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebLimits {
    /// From the first look at the name to the last byte of the answer, redirects included.
    pub time_max: Duration,
    /// Bytes of the answer's body.
    pub len_max: usize,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: u16,
    /// Where it was found in the end.
    pub url: String,
    /// All of it.
    pub body: Vec<u8>,
}

/// There is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebError {
    /// The text is no URL that can be asked.
    #[error("`{0}` is no URL that can be asked: {1}")]
    NoUrl(String, &'static str),
    /// The authorities cannot be read.
    #[error("no authority can be read: {0}")]
    NoAuthority(String),
    /// Nobody listens there, or there is no way.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// Somebody else holds the certificate.
    #[error("the server's key is {seen}, not {expected}")]
    WrongKey {
        /// What was expected.
        expected: KeyPin,
        /// What the server showed.
        seen: KeyPin,
    },
    /// The certificate is not good, or TLS failed otherwise.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// It took too long.
    #[error("not answered within {0:?}")]
    TimedOut(Duration),
    /// It is too long.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// It points elsewhere too often.
    #[error("redirected more than {REDIRECTS_MAX} times, the last time to {0}")]
    TooManyRedirects(String),
    /// It points from a protected place to an open one.
    #[error("redirected from https to {0}, which is not followed")]
    Downgrade(String),
}

/// Asks web servers.
#[derive(Clone)]
pub struct Web {
    tls: Arc<ClientConfig>,
    limits: WebLimits,
}

impl Web {
    /// Nothing is connected yet.
    pub fn new(trust: &Trust, limits: WebLimits) -> Result<Self, WebError> {
        let provider = crate::identity::crypto_provider();
        let verifier = verifier(trust, &provider)?;
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites of both versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self { tls: Arc::new(tls), limits })
    }

    /// Gets what is there.
    pub async fn get(&self, url: &str) -> Result<Page, WebError> {
        self.ask(Method::GET, url, &[]).await
    }

    /// Sends JSON and gets what it is answered.
    pub async fn post(&self, url: &str, json: &[u8]) -> Result<Page, WebError> {
        self.ask(Method::POST, url, json).await
    }

    /// Takes away what is there.
    pub async fn delete(&self, url: &str) -> Result<Page, WebError> {
        self.ask(Method::DELETE, url, &[]).await
    }

    async fn ask(&self, method: Method, url: &str, body: &[u8]) -> Result<Page, WebError> {
        let asked = timeout(self.limits.time_max, self.follow(method, url, body)).await;
        asked.map_err(|_| WebError::TimedOut(self.limits.time_max))?
    }

    async fn follow(&self, mut method: Method, url: &str, body: &[u8]) -> Result<Page, WebError> {
        let mut place = Place::parse(url)?;
        for _ in 0..=REDIRECTS_MAX {
            let (driver, answer) = self.exchange(&method, &place, body).await?;
            let _driver = Ends(driver);
            let status = answer.status();
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            if let (true, Some(location)) = (status.is_redirection(), location) {
                let next = place.join(location)?;
                if place.tls && !next.tls {
                    return Err(WebError::Downgrade(next.url()));
                }
                if status == hyper::StatusCode::SEE_OTHER {
                    method = Method::GET;
                }
                place = next;
                continue;
            }
            let body = read(answer.into_body(), self.limits.len_max).await?;
            return Ok(Page { status: status.as_u16(), url: place.url(), body });
        }
        Err(WebError::TooManyRedirects(place.url()))
    }

    async fn exchange(
        &self,
        method: &Method,
        place: &Place,
        body: &[u8],
    ) -> Result<(JoinHandle<()>, Response<Incoming>), WebError> {
        let body = if *method == Method::POST { body } else { &[] };
        let mut request = Request::builder()
            .method(method)
            .uri(&place.path)
            .header(HOST, &place.authority)
            .header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::from(body.to_vec()))
            .map_err(|_| WebError::NoUrl(place.url(), "a request cannot hold it"))?;
        let tcp = TcpStream::connect((place.host.as_str(), place.port)).await;
        let tcp = tcp.map_err(|error| WebError::Unreachable(error.to_string()))?;
        if !place.tls {
            return send(tcp, request).await;
        }
        let name = ServerName::try_from(place.host.clone())
            .map_err(|_| WebError::NoUrl(place.url(), "no certificate can have this name"))?;
        let tls = TlsConnector::from(self.tls.clone()).connect(name, tcp).await;
        send(tls.map_err(tls_failure)?, request).await
    }
}

async fn send<T>(
    io: T,
    request: Request<Full<Bytes>>,
) -> Result<(JoinHandle<()>, Response<Incoming>), WebError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let lost = |error: hyper::Error| WebError::Lost(error.to_string());
    let (mut http, connection) = handshake(TokioIo::new(io)).await.map_err(lost)?;
    // Its errors come to light in the request that they break.
    let driver = tokio::spawn(async move { drop(connection.await) });
    match http.send_request(request).await {
        Ok(answer) => Ok((driver, answer)),
        Err(error) => {
            driver.abort();
            Err(lost(error))
        }
    }
}

async fn read(body: Incoming, len_max: usize) -> Result<Vec<u8>, WebError> {
    match Limited::new(body, len_max).collect().await {
        Ok(body) => Ok(body.to_bytes().into()),
        Err(error) if error.is::<LengthLimitError>() => Err(WebError::TooLong(len_max)),
        Err(error) => Err(WebError::Lost(error.to_string())),
    }
}

/// A connection ends with what it was opened for.
struct Ends(JoinHandle<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    tls: bool,
    authority: String,
    host: String,
    port: u16,
    /// With its query.
    path: String,
}

impl Place {
    fn parse(url: &str) -> Result<Self, WebError> {
        let wrong = |why| WebError::NoUrl(url.to_owned(), why);
        let uri: Uri = url.parse().map_err(|_| wrong("write it as https://HOST/PATH"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("write it as https://HOST/PATH")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it must hold no user and no password"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { tls, authority: authority.to_string(), host, port, path })
    }

    /// Where `location` leads from here.
    fn join(&self, location: &str) -> Result<Self, WebError> {
        let scheme = if self.tls { "https" } else { "http" };
        let authority = &self.authority;
        let path = self.path.split('?').next().unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_of_scheme = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
        let is_scheme = |text: &str| text.bytes().all(is_of_scheme);
        Self::parse(&match location {
            _ if location.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme)) => {
                location.to_owned()
            }
            _ if location.starts_with("//") => format!("{scheme}:{location}"),
            _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
            _ if location.starts_with('?') => format!("{scheme}://{authority}{path}{location}"),
            _ => format!("{scheme}://{authority}{folder}/{location}"),
        })
    }

    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

impl KeyPin {
    /// Of the key in a certificate.
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        Self::of_key(&parsed.subject_public_key_info())
    }

    /// Of a key, as DER SubjectPublicKeyInfo.
    pub fn of_key(spki: &[u8]) -> Option<Self> {
        digest(&SHA256, spki).as_ref().try_into().ok().map(Self)
    }
}

impl FromStr for KeyPin {
    type Err = NoPin;

    fn from_str(text: &str) -> Result<Self, NoPin> {
        use base64::Engine as _;
        let text = text.trim().strip_prefix("sha256//").ok_or(NoPin)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| NoPin)?;
        bytes.try_into().map(Self).map_err(|_| NoPin)
    }
}

impl fmt::Display for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use base64::Engine as _;
        write!(f, "sha256//{}", base64::engine::general_purpose::STANDARD.encode(self.0))
    }
}

impl fmt::Debug for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn verifier(
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, WebError> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Key(expected) => {
            let algorithms = provider.signature_verification_algorithms;
            return Ok(Arc::new(PinnedServer {
                expected: *expected,
                key_of: KeyPin::of,
                schemes: algorithms.supported_schemes(),
                algorithms,
            }));
        }
        Trust::Machine => {
            let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Trust::Authorities(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate =
                    certificate.map_err(|error| WebError::NoAuthority(error.to_string()))?;
                roots.add(certificate).map_err(|error| WebError::NoAuthority(error.to_string()))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(WebError::NoAuthority("there is none".to_owned()));
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().map_err(|error| WebError::NoAuthority(error.to_string()))?;
    Ok(verifier)
}

fn tls_failure(error: std::io::Error) -> WebError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if let Some(WrongServerKey { expected, seen }) = tls.and_then(wrong_server_key) {
        return WebError::WrongKey { expected, seen };
    }
    WebError::Tls(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{KeyPin, Place, WebError};

    #[test]
    fn a_url_is_taken_apart_and_put_together() {
        for (url, tls, host, port, path) in [
            ("https://ps.example.org/archive?x=1", true, "ps.example.org", 443, "/archive?x=1"),
            ("http://[2001:db8::1]:9200", false, "2001:db8::1", 9200, "/"),
        ] {
            let place = Place::parse(url).unwrap();
            let parts = (place.tls, place.host.as_str(), place.port, place.path.as_str());
            assert_eq!(parts, (tls, host, port, path), "{url}");
            assert_eq!(Place::parse(&place.url()), Ok(place));
        }
        for wrong in ["", "ps.example.org", "ftp://a/", "https://u:p@a/", "file:///etc/passwd"] {
            assert!(matches!(Place::parse(wrong), Err(WebError::NoUrl(..))), "{wrong}");
        }
    }

    #[test]
    fn a_location_is_found_from_where_it_was_said() {
        let from = Place::parse("https://a.example:8443/x/y?q").unwrap();
        for (location, to) in [
            ("/z?1", "https://a.example:8443/z?1"),
            ("z", "https://a.example:8443/x/z"),
            ("?r", "https://a.example:8443/x/y?r"),
            ("/z?u=http://b.example/", "https://a.example:8443/z?u=http://b.example/"),
            ("z?u=http://b.example/", "https://a.example:8443/x/z?u=http://b.example/"),
            ("//b.example/", "https://b.example/"),
            ("http://a.example/", "http://a.example/"),
        ] {
            assert_eq!(from.join(location).unwrap().url(), to);
        }
    }

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let pin = KeyPin::of_key(b"key").unwrap();
        assert_eq!(pin.to_string().parse(), Ok(pin));
        for wrong in ["", "sha256//", "sha256//AAAA", "md5//AAAA"] {
            assert!(wrong.parse::<KeyPin>().is_err(), "{wrong}");
        }
    }
}
