//! The ports that Downpour uses: one range, so that one firewall rule covers it.
//!
//! A sender takes the first free TCP port of the range for control and pull, and the first free UDP
//! port for feedback; the multicast data goes to the range's last port, in a group address of the
//! session's own. Receivers listen on no port of the range but that one. The range lies below Linux's
//! ephemeral ports (32768 and up), which any program may be given by chance.
//!
//! It is chosen by `--ports`, else by `$DOWNPOUR_PORTS`, else it is [`PortRange::DEFAULT`].

use crate::units::QuantityError;
use downpour_transport::session::MEETING_PORT;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A range of ports, TCP and UDP alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Twenty ports: that many senders may run on one machine at a time.
    pub const DEFAULT: Self = Self { first: 28_800, last: 28_819 };
    /// Environment variable that sets the range for all verbs.
    pub const VARIABLE: &str = "DOWNPOUR_PORTS";

    /// Where senders hear of each other by UDP, whatever the range.
    pub const MEETING: u16 = MEETING_PORT;

    /// The ports in the order in which they are tried.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// The port of the multicast data, unless `--group` names another.
    pub const fn multicast(self) -> u16 {
        self.last
    }

    /// One line per use: protocol, ports, who opens it, what for.
    pub fn uses(self) -> Vec<Use> {
        vec![
            Use {
                protocol: "TCP",
                ports: self.to_string(),
                at: "sender",
                what: "control and pull (HTTPS): receivers connect to the first that was free",
            },
            Use {
                protocol: "UDP",
                ports: self.to_string(),
                at: "sender",
                what: "feedback from receivers, to the first that was free",
            },
            Use {
                protocol: "UDP",
                ports: self.multicast().to_string(),
                at: "receivers",
                what: "multicast data, to the session's group address",
            },
            Use {
                protocol: "UDP",
                ports: Self::MEETING.to_string(),
                at: "both",
                what: "what other senders take, by multicast on a network; without it sessions divide a link less evenly",
            },
        ]
    }
}

/// All addresses of this machine with each of these ports. Last stand those that a kernel without IPv6 can bind.
pub(crate) fn everywhere(ports: impl Iterator<Item = u16> + Clone) -> Vec<SocketAddr> {
    let v6 = ports.clone().map(|port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    v6.chain(ports.map(|port| (Ipv4Addr::UNSPECIFIED, port).into())).collect()
}

/// One row of `downpour ports`.
#[derive(Debug)]
pub struct Use {
    /// TCP or UDP.
    pub protocol: &'static str,
    /// The ports, as text.
    pub ports: String,
    /// The role whose machine must let them in.
    pub at: &'static str,
    /// Purpose.
    pub what: &'static str,
}

impl FromStr for PortRange {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let advice = "write a range of at least two ports as 28800-28819";
        let parsed = text.split_once('-').and_then(|(first, last)| {
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        });
        match parsed {
            Some((first, last)) if 0 < first && first < last => Ok(Self { first, last }),
            _ => Err(QuantityError::new(format!("`{text}` is no range of ports: {advice}"))),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::PortRange;

    #[test]
    fn ranges_are_read_back() {
        assert_eq!("28800-28819".parse::<PortRange>().unwrap(), PortRange::DEFAULT);
        assert_eq!(PortRange::DEFAULT.to_string(), "28800-28819");
        for text in ["", "28800", "0-5", "9-5", "7-7", "5-70000", "a-b"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_multicast_port_is_one_of_the_range() {
        let range = PortRange::DEFAULT;
        assert!(range.ports().contains(&range.multicast()));
        assert!(*range.ports().end() < 32_768, "must stay clear of the ephemeral ports");
    }
}
