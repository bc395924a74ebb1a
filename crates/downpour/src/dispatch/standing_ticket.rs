//! The ticket of the standing multicast session: one file, which stays the same as long as what it says does.
//!
//! All receivers have a copy. Its token is made when there is no file, and never again: a file that cannot be read is left
//! as it is, and none is written that could not be.

use super::no_random;
use crate::session::own_addrs_of;
use crate::site::Fault;
use crate::ticket::{ADDRS_MAX, Ticket, TicketFileError};
use crate::units::HostPort;
use downpour_catalog::ErrorClass;
use downpour_transport::control::Token;
use downpour_transport::identity::PublicKey;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// How long it admits; it is made anew, with the same token, when half of that is over.
const TICKET_LIFE: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What it says.
pub(super) struct Said<'a> {
    pub(super) host: Option<&'a str>,
    pub(super) port: u16,
    pub(super) key: PublicKey,
    pub(super) allow: Vec<PublicKey>,
}

/// Sees to the file: the one that is there, if it still says the same.
pub(super) fn keep_ticket(path: &Path, said: Said<'_>, now: u64) -> Result<(), Fault> {
    let failed = |what: String| Fault::new(ErrorClass::Internal, what);
    let old = match Ticket::read_file(path) {
        Ok(old) => Some(old),
        Err(TicketFileError::Io(_, error)) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            let todo = "if it is lost, remove it, and give the new one to all receivers";
            return Err(failed(format!("{error}; {todo}")));
        }
    };
    let token = match &old {
        Some(old) => old.token,
        None => Token::random().ok_or_else(no_random)?,
    };
    let fresh = |old: &&Ticket| old.expires_unix_s > now + TICKET_LIFE.as_secs() / 2;
    let expires = old.as_ref().filter(fresh).map(|old| old.expires_unix_s);
    let port = said.port;
    let named = said.host.map(|host| HostPort { host: host.to_owned(), port }.to_string());
    let ticket = Ticket {
        addrs: named.into_iter().chain(own_addrs_of(port)).take(ADDRS_MAX).collect(),
        key: said.key,
        token,
        expires_unix_s: expires.unwrap_or(now + TICKET_LIFE.as_secs()),
        group: None,
        allow: Some(said.allow),
    };
    if old.as_ref().is_some_and(|old| old.addrs != ticket.addrs) {
        let path = path.display();
        tracing::warn!(
            "this site's address or port is another: copy {path} to its receivers again"
        );
    }
    if old.as_ref() != Some(&ticket) {
        ticket.check().map_err(|error| failed(error.to_string()))?;
        ticket.write_file(path).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Said, keep_ticket};
    use crate::ticket::Ticket;
    use downpour_transport::identity::PublicKey;
    use std::fs;

    #[test]
    fn a_ticket_keeps_its_token_whatever_is_said_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("multicast.ticket");
        let keep = |host: &str| {
            let key = PublicKey::from_bytes([0; 32]);
            keep_ticket(&path, Said { host: Some(host), port: 28820, key, allow: vec![key] }, 1)
        };
        keep("site").unwrap();
        let (first, text) = (Ticket::read_file(&path).unwrap(), fs::read(&path).unwrap());
        keep("site:28820").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), text);
        keep("2001:db8::5").unwrap();
        let next = Ticket::read_file(&path).unwrap();
        assert_eq!((next.token, &*next.addrs[0]), (first.token, "[2001:db8::5]:28820"));
        fs::write(&path, "damaged").unwrap();
        assert!(keep("site").unwrap_err().what.contains("not a ticket"));
        assert_eq!(fs::read(&path).unwrap(), b"damaged");
    }
}
