//! `downpour ports`: what a firewall must let through.

use super::{Exit, Fault};
use crate::dispatch::MulticastSection;
use crate::ports::{PortRange, Use};
use crate::site::{ApiSection, empty};
use clap::Args;

/// List the ports that Downpour uses, for firewalls
#[derive(Debug, Args)]
pub(super) struct PortsArgs {
    /// Range to list, instead of the one in force
    #[arg(long, value_name = "FIRST-LAST", env = PortRange::VARIABLE)]
    #[arg(default_value_t = PortRange::DEFAULT)]
    ports: PortRange,
}

impl PortsArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        print!("{}", self.text());
        Ok(Exit::Complete)
    }

    fn text(&self) -> String {
        let row = |protocol: &str, ports: &str, at: &str, what: &str| {
            format!("{protocol:<9} {ports:<12} {at:<10} {what}\n")
        };
        let of_site = of_site();
        let mut text = row("protocol", "ports", "open at", "use");
        for Use { protocol, ports, at, what } in self.ports.uses().iter().chain(&of_site) {
            text.push_str(&row(protocol, ports, at, what));
        }
        let [api, multicast] = of_site.map(|row| row.ports);
        let udp = match self.ports.ports().contains(&PortRange::MEETING) {
            true => self.ports.to_string(),
            false => format!("{{ {}, {} }}", self.ports, PortRange::MEETING),
        };
        text + &format!(
            "\nnftables: tcp dport {0} accept; udp dport {udp} accept\n\
             nftables, at a site besides: tcp dport {{ {api}, {multicast} }} accept\n\
             Another range: --ports FIRST-LAST, or {1}=FIRST-LAST.\n",
            self.ports,
            PortRange::VARIABLE
        )
    }
}

/// What the daemon of a site listens on besides, as long as its configuration does not say otherwise.
fn of_site() -> [Use; 2] {
    let (api, multicast): (ApiSection, MulticastSection) = (empty(), empty());
    let row = |port: u16, what| Use { protocol: "TCP", ports: port.to_string(), at: "site", what };
    [
        row(
            api.listen.port(),
            "a site's API (HTTPS), for people and other sites: `[api] listen` of site.toml",
        ),
        row(
            multicast.port,
            "where receivers join a site's standing multicast session: `[multicast] port`",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::PortsArgs;
    use crate::ports::PortRange;

    #[test]
    fn what_a_site_listens_on_is_listed() {
        let text = PortsArgs { ports: PortRange::DEFAULT }.text();
        for port in ["28790", "28820"] {
            let line = text.lines().find(|line| line.starts_with(&format!("TCP       {port} ")));
            assert!(line.is_some_and(|line| line.contains(" site ")), "{port}: {text}");
        }
        assert!(text.contains("tcp dport { 28790, 28820 } accept"), "{text}");
        let rule = "tcp dport 28800-28819 accept; udp dport 28800-28819 accept\n";
        assert!(text.contains(rule), "{text}");
        let text = PortsArgs { ports: "30000-30009".parse().unwrap() }.text();
        let rule = "tcp dport 30000-30009 accept; udp dport { 30000-30009, 28819 } accept\n";
        assert!(text.contains(rule), "{text}");
    }
}
