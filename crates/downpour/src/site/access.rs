//! The way to a site's API, for commands and for other sites alike: its address, its key pinned, and what we show: a token or our
//! own key. Answers are bounded.

use super::config::Config;
use super::replace::{lock, replace};
use super::{BadConfig, Clock, EventId, NewToken, RemoteError, Role, TokenError, Tokens, Verdict};
use crate::api::Problem;
use crate::units::HostPort;
use downpour_transport::control::{Answer, Bulk, Caller, CallerSetup, ClientLimits, Head};
use downpour_transport::identity::{Identity, IdentityError, PublicKey};
use downpour_transport::stream::{ConnectionReport, Tuning};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Name of the file with an admin's token, in the state folder: the first one's, at the beginning.
pub(super) const TOKEN_FILE: &str = "admin.token";
/// Bytes of an answer.
const ANSWER_LEN_MAX: usize = 16 << 20;
/// Bytes of one event.
const EVENT_LEN_MAX: usize = 1 << 20;
/// A site that says nothing for so long, not even that it lives, is gone.
const SILENCE_MAX: Duration = Duration::from_secs(35);

/// A way to a site.
pub struct Access {
    caller: Caller,
    /// Where it leads.
    pub address: String,
    /// Where the token was read that is shown, if it was not given.
    pub token_file: Option<PathBuf>,
    /// What is wrong with the configuration that says where it leads, beside that.
    pub flawed: Option<BadConfig>,
}

/// There is no way.
#[derive(Debug)]
pub enum AccessError {
    /// The configuration.
    Config(BadConfig),
    /// The node's key.
    Key(IdentityError),
    /// There is no key: the site was not set up here.
    NoSite(PathBuf),
    /// The token.
    Token(PathBuf, std::io::Error),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(bad) => bad.fmt(f),
            Self::Key(error) => error.fmt(f),
            Self::NoSite(state) => write!(f, "no site was set up in {}", state.display()),
            Self::Token(file, error) => write!(f, "{}: {error}", file.display()),
        }
    }
}

impl std::error::Error for AccessError {}

impl Access {
    /// To the daemon of a configuration on this machine. Without a token of one's own, with an admin's.
    pub fn of_config(file: &Path, token: Option<String>) -> Result<Self, AccessError> {
        let (config, flawed) = Config::read_way(file).map_err(AccessError::Config)?;
        let state = config.state();
        let Some(identity) = Identity::load(&state).map_err(AccessError::Key)? else {
            return Err(AccessError::NoSite(state));
        };
        let key = identity.public_key();
        let (token, token_file) = match token {
            Some(token) => (token, None),
            None => {
                let file = state.join(TOKEN_FILE);
                match std::fs::read_to_string(&file) {
                    Ok(text) => (text.trim().to_owned(), Some(file)),
                    Err(error) => return Err(AccessError::Token(file, error)),
                }
            }
        };
        Ok(Self { token_file, flawed, ..Self::new(address_of(&config), key, token) })
    }

    /// To a daemon anywhere.
    pub fn new(address: HostPort, key: PublicKey, token: String) -> Self {
        // People are known by their tokens.
        let nobody = Arc::new(Identity::generate());
        Self::open(&address, key, nobody, Some(token), ClientLimits::default())
    }

    /// Nothing is connected yet.
    pub(super) fn open(
        address: &HostPort,
        server: PublicKey,
        identity: Arc<Identity>,
        bearer: Option<String>,
        limits: ClientLimits,
    ) -> Self {
        let address = address.to_string();
        let addrs = vec![address.clone()];
        let caller = Caller::new(CallerSetup { addrs, server, identity, bearer, limits });
        Self { caller, address, token_file: None, flawed: None }
    }

    /// Asks for something.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RemoteError> {
        self.ask("GET", path, &[]).await
    }

    /// Sends something and gives what it is answered.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RemoteError> {
        self.ask("POST", path, &json(body)?).await
    }

    /// A connection that carries bytes, with its socket set so.
    pub(super) async fn bulk(&self, tuning: &Tuning) -> Result<BytesLine, RemoteError> {
        Ok(BytesLine(self.caller.bulk(tuning).await?))
    }

    /// Where it was reached, and the round trip of that handshake.
    pub(super) fn known(&self) -> Option<(SocketAddr, Duration)> {
        self.caller.known()
    }

    /// Takes something away.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, RemoteError> {
        self.ask("DELETE", path, &[]).await
    }

    /// Asks for something that is not JSON; the status and the text.
    pub async fn text(&self, path: &str) -> Result<(u16, String), RemoteError> {
        let answer = self.caller.call("GET", path, &[]).await?;
        let (status, body) = (answer.status, answer.whole(ANSWER_LEN_MAX).await?);
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Hears the site's events: those after `place`, where there is one, and, if `live`, those to come until the site ends.
    /// `place` is then where to go on; `heard` gets the text of each.
    pub async fn listen(
        &self,
        place: &mut Option<EventId>,
        live: bool,
        mut heard: impl FnMut(&str),
    ) -> Result<(), RemoteError> {
        let last = place.map(|place| place.to_string());
        let headers: Vec<_> = last.iter().map(|id| ("last-event-id", id.as_str())).collect();
        let path = format!("/v1/events?live={live}");
        let mut answer = self.caller.call_with(&headers, "GET", &path, &[]).await?;
        if answer.status != 200 {
            let status = answer.status;
            return Err(refusal(status, &answer.whole(ANSWER_LEN_MAX).await?));
        }
        let (mut text, mut id) = (Vec::new(), None);
        let silent = |_| RemoteError::TimedOut(format!("nothing heard for {SILENCE_MAX:?}"));
        while let Some(some) = timeout(SILENCE_MAX, answer.some()).await.map_err(silent)?? {
            text.extend(some);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                match line.trim_end().split_once(": ") {
                    Some(("id", text)) => id = text.parse().ok(),
                    Some(("data", text)) => heard(text),
                    // The event is whole: from here it is not to come again.
                    None if id.is_some() => *place = id.take(),
                    _ => {}
                }
            }
            if text.len() > EVENT_LEN_MAX {
                return Err(RemoteError::Lost("an endless event".to_owned()));
            }
        }
        Ok(())
    }

    /// Asks for something that is read as it comes; no is an error.
    pub(super) async fn stream(&self, path: &str) -> Result<Answer<'_>, RemoteError> {
        let answer = self.caller.call("GET", path, &[]).await?;
        if (200..300).contains(&answer.status) {
            return Ok(answer);
        }
        let status = answer.status;
        Err(refusal(status, &answer.whole(ANSWER_LEN_MAX).await?))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<T, RemoteError> {
        let answer = self.caller.call(method, path, body).await?;
        read_answer(answer.status, &answer.whole(ANSWER_LEN_MAX).await?)
    }
}

/// Gives a new admin's token to the commands on this machine, where theirs is nobody's any more: the file that has it then.
pub fn hand_over(state: &Path, new: &NewToken) -> Result<Option<PathBuf>, TokenError> {
    let file = state.join(TOKEN_FILE);
    let _lock = lock(state).map_err(|error| TokenError::File(state.to_owned(), error))?;
    let shown = match std::fs::read_to_string(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(TokenError::File(file, error));
        }
        shown => shown.unwrap_or_default(),
    };
    let known = Tokens::open(state)?.judge(shown.trim(), Clock::system().now())?;
    if new.about.role != Role::Admin || matches!(known, Verdict::Known(..)) {
        return Ok(None);
    }
    match replace(&file, format!("{}\n", new.token).as_bytes(), 0o600) {
        Ok(()) => Ok(Some(file)),
        Err(error) => Err(TokenError::File(file, error)),
    }
}

/// A connection to a site that carries bytes. After an error nothing of it is used any more.
pub struct BytesLine(Bulk);

impl BytesLine {
    /// Asks for bytes; more may be asked for before they come.
    pub async fn ask(
        &mut self,
        path: &str,
        body: &impl Serialize,
        tuning: &Tuning,
    ) -> Result<(), RemoteError> {
        Ok(self.0.ask(path, &json(body)?, tuning).await?)
    }

    /// The beginning of the answer that is next, and yes. Waits without limit, as `some` does.
    pub async fn head(&mut self) -> Result<Head, RemoteError> {
        let head = self.0.head().await?;
        if (200..300).contains(&head.status) {
            return Ok(head);
        }
        let mut text = vec![0; usize::try_from(head.len).map_or(0, |len| len.min(ANSWER_LEN_MAX))];
        let mut have = 0;
        while have < text.len() {
            have += self.0.some(&mut text[have..]).await?;
        }
        Err(refusal(head.status, &text))
    }

    /// Some of its bytes, at least one.
    pub async fn some(&mut self, room: &mut [u8]) -> Result<usize, RemoteError> {
        Ok(self.0.some(room).await?)
    }

    /// What our kernel tells of it.
    pub fn report(&self) -> ConnectionReport {
        self.0.report()
    }
}

fn json(body: &impl Serialize) -> Result<Vec<u8>, RemoteError> {
    serde_json::to_vec(body).map_err(|error| RemoteError::Lost(error.to_string()))
}

/// What an answer says; no is an error.
fn read_answer<T: DeserializeOwned>(status: u16, body: &[u8]) -> Result<T, RemoteError> {
    if !(200..300).contains(&status) {
        return Err(refusal(status, body));
    }
    serde_json::from_slice(body).map_err(|error| RemoteError::Lost(format!("the answer: {error}")))
}

/// What an answer says that is no.
fn refusal(status: u16, body: &[u8]) -> RemoteError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => RemoteError::Refused(Box::new(problem)),
        Err(_) => RemoteError::Lost(format!("HTTP status {status} without a reason")),
    }
}

/// Where the daemon is reached from this machine.
pub(super) fn address_of(config: &Config) -> HostPort {
    let listen = config.api.listen;
    let here = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let local = || HostPort { host: here.to_string(), port: listen.port() };
    config.api.address.clone().unwrap_or_else(local)
}

#[cfg(test)]
mod tests {
    use super::{Access, TOKEN_FILE, hand_over};
    use crate::site::{CONFIG_FILE, Clock, Role, Setup, Tokens, init};
    use std::fs;

    #[test]
    fn commands_get_an_admins_token_when_theirs_is_nobodys() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join(TOKEN_FILE);
        let tokens = Tokens::open(state.path()).unwrap();
        let new = |name, role| tokens.add(name, role, None, Clock::system().now()).unwrap();
        let shown = || fs::read_to_string(&file).unwrap_or_default().trim().to_owned();
        assert_eq!(hand_over(state.path(), &new("a", Role::Operator)).unwrap(), None);
        let first = new("b", Role::Admin);
        assert_eq!(hand_over(state.path(), &first).unwrap(), Some(file.clone()));
        let second = new("c", Role::Admin);
        assert_eq!(hand_over(state.path(), &second).unwrap(), None);
        assert_eq!(shown(), first.token);
        tokens.revoke("b", Clock::system().now()).unwrap();
        assert_eq!(hand_over(state.path(), &second).unwrap(), Some(file.clone()));
        assert_eq!(shown(), second.token);
    }

    #[test]
    fn a_daemon_is_reached_by_a_configuration_with_a_flaw_that_does_not_matter_for_it() {
        let root = tempfile::tempdir().unwrap();
        let (folder, listen) = (root.path().join("a"), "127.0.0.1:7".parse().ok());
        let setup = Setup { name: "a".to_owned(), folder, state: None, listen, address: None };
        init(&setup).unwrap();
        let file = setup.folder.join(CONFIG_FILE);
        let text = fs::read_to_string(&file).unwrap();
        let reached = |more: &str| {
            fs::write(&file, format!("{text}\n{more}\n")).unwrap();
            Access::of_config(&file, None)
        };
        let good = reached("").unwrap();
        assert!(good.flawed.is_none());
        let to_nowhere = "[[rule]]\nname = 'r'\nmatch = '*'\nto = ['nowhere']";
        for flaw in [to_nowhere, "[sprool]"] {
            let access = reached(flaw).unwrap();
            assert_eq!(access.address, good.address);
            assert!(access.flawed.is_some(), "{flaw}");
        }
        assert!(reached("[limits").is_err(), "it cannot be read at all");
        fs::write(&file, text.replace("[site]", "[site]\nstat = 'x'")).unwrap();
        assert!(Access::of_config(&file, None).is_err());
    }
}
