//! How commands reach a daemon: its address, its key and a token, from its configuration on this machine or from the command
//! line.

use super::config::Config;
use super::{BadConfig, RemoteError, exchange, read_answer};
use crate::units::HostPort;
use downpour_transport::control::{Caller, CallerSetup, ClientLimits};
use downpour_transport::identity::{Identity, IdentityError, KEY_FILE, PublicKey};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file with the first admin's token, in the state folder.
pub(super) const TOKEN_FILE: &str = "admin.token";
/// Bytes of an answer.
const ANSWER_LEN_MAX: usize = 64 << 20;
/// Bytes of one event.
const EVENT_LEN_MAX: usize = 1 << 20;

/// A way to a daemon.
pub struct Access {
    caller: Caller,
    /// Where it leads.
    pub address: String,
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
    /// To the daemon of a configuration on this machine. Without a token of one's own, with that of the first admin.
    pub fn of_config(file: &Path, token: Option<String>) -> Result<Self, AccessError> {
        let config = Config::read(file).map_err(AccessError::Config)?;
        let state = config.state();
        if !state.join(KEY_FILE).exists() {
            return Err(AccessError::NoSite(state));
        }
        let key = Identity::load_or_create(&state).map_err(AccessError::Key)?.public_key();
        let token = match token {
            Some(token) => token,
            None => {
                let file = state.join(TOKEN_FILE);
                let text = std::fs::read_to_string(&file);
                text.map_err(|error| AccessError::Token(file, error))?.trim().to_owned()
            }
        };
        Ok(Self::new(address_of(&config), key, token))
    }

    /// To a daemon anywhere.
    pub fn new(address: HostPort, key: PublicKey, token: String) -> Self {
        let address = address.to_string();
        let setup = CallerSetup {
            addrs: vec![address.clone()],
            server: key,
            // People are known by their tokens.
            identity: Arc::new(Identity::generate()),
            bearer: Some(token),
            limits: ClientLimits::default(),
        };
        Self { caller: Caller::new(setup), address }
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
        let body =
            serde_json::to_vec(body).map_err(|error| RemoteError::Lost(error.to_string()))?;
        self.ask("POST", path, &body).await
    }

    /// Takes something away.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, RemoteError> {
        self.ask("DELETE", path, &[]).await
    }

    /// Asks for something that is not JSON; the status and the text.
    pub async fn text(&self, path: &str) -> Result<(u16, String), RemoteError> {
        let (status, body) = exchange(&self.caller, "GET", path, &[], ANSWER_LEN_MAX).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Hears the site's events, the text of each, until it ends.
    pub async fn listen(&self, mut heard: impl FnMut(&str)) -> Result<(), RemoteError> {
        let mut answer = self.caller.call("GET", "/v1/events", &[]).await?;
        if answer.status != 200 {
            let status = answer.status;
            return read_answer(status, &answer.whole(ANSWER_LEN_MAX).await?);
        }
        let mut text = Vec::new();
        while let Some(some) = answer.some().await? {
            text.extend(some);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                if let Some(data) = String::from_utf8_lossy(&line).strip_prefix("data: ") {
                    heard(data.trim_end());
                }
            }
            if text.len() > EVENT_LEN_MAX {
                return Err(RemoteError::Lost("an endless event".to_owned()));
            }
        }
        Ok(())
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<T, RemoteError> {
        let (status, body) = exchange(&self.caller, method, path, body, ANSWER_LEN_MAX).await?;
        read_answer(status, &body)
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
