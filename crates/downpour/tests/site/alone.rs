//! A test in a process of its own, with a network and mounts of its own: what it cuts and mounts concerns nobody else.
//!
//! The network is loopback alone. It is cut by rules of nftables, which drop packets without a word or answer for one end, and
//! the same counts what is sent from some ports. It needs root; where it cannot be had, that is said by name.

use crate::skipped::{may_make_namespaces, skipped};
use std::process::{Command, Stdio};

/// Set in the process that has its own network.
const ALONE: &str = "DOWNPOUR_TEST_ALONE";
/// Ports of sessions whose bytes are counted.
pub(crate) const COUNTED_PORTS: &str = "31500-31599";

/// Where a test runs.
pub(crate) enum Place {
    /// Here, and this is a process of its own.
    Own,
    /// Here, among everything else.
    Open,
    /// It ran elsewhere and has succeeded.
    Done,
}

/// Runs the named test again in a process of its own, unless this is that process, or there can be none.
///
/// # Panics
/// When it failed there.
pub(crate) fn alone(test: &str) -> Place {
    if std::env::var_os(ALONE).is_some() {
        return Place::Own;
    }
    let nft = Command::new("nft").arg("--version").stdout(Stdio::null()).status();
    if !may_make_namespaces() || nft.is_err() {
        skipped(test, "a network of its own needs root, namespaces and nft");
        return Place::Open;
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--mount", "--", "sh", "-c"]);
    command.args(["ip link set lo mtu 1500 up && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().expect("this test")).args(["--exact", test, "--nocapture"]);
    let output = command.env(ALONE, "1").stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(output.status.success(), "{test} failed in a process of its own");
    assert!(said.contains("running 1 test\n"), "no test is called {test}");
    Place::Done
}

/// The network of this process.
pub(crate) struct Network;

impl Network {
    /// Its own; `None` where it is everybody's.
    pub(crate) fn own() -> Option<Self> {
        std::env::var_os(ALONE)?;
        for rule in [
            "add table inet alone",
            "add counter inet alone sent",
            "add counter inet alone opened",
            "add chain inet alone outward { type filter hook output priority 0; }",
            "add chain inet alone inward { type filter hook input priority 0; }",
            &format!("add rule inet alone outward tcp sport {COUNTED_PORTS} counter name sent"),
            &format!(
                "add rule inet alone outward tcp sport {COUNTED_PORTS} \
                 tcp flags & (syn | ack) == syn | ack counter name opened"
            ),
        ] {
            nft(rule);
        }
        Some(Self)
    }

    /// Drops every packet to or from these ports; all of them without any.
    pub(crate) fn cut(&self, ports: &[&str]) {
        if ports.is_empty() {
            nft("add rule inet alone inward drop");
        }
        for port in ports {
            nft(&format!("add rule inet alone inward tcp dport {port} drop"));
            nft(&format!("add rule inet alone inward tcp sport {port} drop"));
        }
    }

    /// Answers each packet that comes to (`dport`) or from (`sport`) this port by a reset, as a firewall does: one end of a
    /// connection is told, the other hears nothing more.
    pub(crate) fn reset(&self, side: &str, port: &str) {
        nft(&format!("add rule inet alone inward tcp {side} {port} reject with tcp reset"));
    }

    /// Drops nothing any more.
    pub(crate) fn heal(&self) {
        nft("flush chain inet alone inward");
    }

    /// What was sent from [`COUNTED_PORTS`].
    pub(crate) fn sent(&self) -> Sent {
        Sent { bytes: counter("sent", "bytes "), connections: counter("opened", "packets ") }
    }
}

/// What left some ports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Bytes of all packets.
    pub(crate) bytes: u64,
    /// Connections that were taken.
    pub(crate) connections: u64,
}

impl std::ops::Sub for Sent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let connections = self.connections - before.connections;
        Self { bytes: self.bytes - before.bytes, connections }
    }
}

fn counter(name: &str, what: &str) -> u64 {
    let listed = Command::new("nft").args(["list", "counter", "inet", "alone", name]).output();
    let text = String::from_utf8(listed.expect("nft runs").stdout).expect("text");
    let value = text.split(what).nth(1).and_then(|rest| rest.split_whitespace().next());
    value.and_then(|value| value.parse().ok()).expect("a counter")
}

fn nft(rules: &str) {
    let done = Command::new("nft").arg(rules).status().expect("nft runs");
    assert!(done.success(), "nft: {rules}");
}
