//! Tells systemd how the daemon is, where it asks for it: a datagram to the socket that `$NOTIFY_SOCKET` names.
//!
//! Not a crate: it is one datagram.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The way to systemd, if it asks.
pub(super) struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Systemd {
    /// What the environment says.
    pub(super) fn from_environment() -> Self {
        Self::from(|name| std::env::var(name).ok(), std::process::id())
    }

    fn from(variable: impl Fn(&str) -> Option<String>, pid: u32) -> Self {
        let socket = variable("NOTIFY_SOCKET").and_then(|name| {
            let addr = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(name),
            };
            Some((UnixDatagram::unbound().ok()?, addr.ok()?))
        });
        let ours = variable("WATCHDOG_PID").is_none_or(|other| other == pid.to_string());
        let micros = variable("WATCHDOG_USEC").filter(|_| ours).and_then(|text| text.parse().ok());
        Self { socket, watchdog: micros.map(Duration::from_micros) }
    }

    /// Says something; nobody listens at worst.
    pub(super) fn tell(&self, what: &str) {
        if let Some((socket, addr)) = &self.socket {
            let _ = socket.send_to_addr(what.as_bytes(), addr);
        }
    }

    /// How often it wants to hear that we live.
    pub(super) fn beat(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::Systemd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    #[test]
    fn it_is_told_by_the_socket_that_it_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let variable = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(path.to_str().unwrap().to_owned()),
            "WATCHDOG_USEC" => Some("20000000".to_owned()),
            "WATCHDOG_PID" => Some("7".to_owned()),
            _ => None,
        };
        let systemd = Systemd::from(variable, 7);
        assert_eq!(systemd.beat(), Some(Duration::from_secs(10)));
        assert_eq!(Systemd::from(variable, 8).beat(), None, "meant for another process");
        systemd.tell("READY=1");
        let mut text = [0; 64];
        let len = socket.recv(&mut text).unwrap();
        assert_eq!(&text[..len], b"READY=1");
        Systemd::from(|_| None, 7).tell("READY=1");
    }
}
