//! Options that say through which interface, group and ports a session goes.
//!
//! An interface is checked against the machine here, so that a misspelt one is a usage error with the
//! right names in it, and never silently another card. Which interface is used when none is named is the
//! transport's decision (the one with the route to the group).

use super::Fault;
use crate::ports::{PortRange, everywhere};
use crate::units::HostPort;
use clap::Args;
use downpour_transport::InterfaceError;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;

/// Smallest MTU that IPv4 promises, and the largest that Ethernet cards carry.
const MTU_MIN: u16 = 576;
const MTU_MAX: u16 = 9216;

/// Network options of the sending side.
#[derive(Clone, Debug, Args)]
pub struct NetworkArgs {
    /// Interface of the multicast data, by name or address [default: the one with the route to the
    /// group]
    #[arg(long, value_name = "IF", help_heading = "Network")]
    pub interface: Option<String>,
    /// Multicast group and port, such as 239.192.7.1:28819 or `[ff15::7]:28819` [default: an address of
    /// the session's own in 239.192.0.0/14, or in ff15::/16 without IPv4, and the last of the ports]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_group, help_heading = "Network")]
    pub group: Option<SocketAddr>,
    /// Receivers join for this sender only (source-specific multicast)
    #[arg(long, help_heading = "Network")]
    pub source_specific: bool,
    /// Routers that the multicast data may cross, plus one
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Network")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..))]
    pub ttl: u8,
    /// Largest IP packet to send; proved by a full-size probe at each join [default: the interface's,
    /// at most 1500]
    #[arg(long, value_name = "BYTES", help_heading = "Network")]
    #[arg(value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..=i64::from(MTU_MAX)))]
    pub mtu: Option<u16>,
    /// Range of ports to use, as `downpour ports` lists them
    #[arg(long, value_name = "FIRST-LAST", env = PortRange::VARIABLE, help_heading = "Network")]
    #[arg(default_value_t = PortRange::DEFAULT)]
    pub ports: PortRange,
}

/// [`NetworkArgs`], checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPlan {
    /// `None`: the one with the route to the group.
    pub interface: Option<Interface>,
    /// `None`: the session chooses an address, and takes [`PortRange::multicast`].
    pub group: Option<SocketAddr>,
    /// Join by source.
    pub source_specific: bool,
    /// Of the multicast data.
    pub ttl: u8,
    /// `None`: the interface's, at most 1500.
    pub mtu: Option<u16>,
    /// Where to look for free ports.
    pub ports: PortRange,
}

/// An interface as the user named it; it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    /// By name.
    Name(String),
    /// By one of its addresses.
    Address(IpAddr),
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl NetworkArgs {
    /// Checks what can be checked before a socket is opened.
    pub fn resolve(self) -> Result<NetworkPlan, Fault> {
        if let Some(group) = self.group {
            check_group(group, self.source_specific)?;
        }
        Ok(NetworkPlan {
            interface: self.interface.as_deref().map(Interface::find).transpose()?,
            group: self.group,
            source_specific: self.source_specific,
            ttl: self.ttl,
            mtu: self.mtu,
            ports: self.ports,
        })
    }
}

/// A group and its port, as an option gives them.
pub(crate) fn parse_group(text: &str) -> Result<SocketAddr, String> {
    let advice = "write a group and its port, such as 239.192.7.1:28819 or [ff15::7]:28819";
    text.parse().map_err(|_| advice.to_owned())
}

/// Whether `group` is one that data may go to.
pub(crate) fn check_group(group: SocketAddr, source_specific: bool) -> Result<(), Fault> {
    let address = group.ip();
    let advice = "take one of 239.192.0.0/14 (this organisation), 239.255.0.0/16 (this site) or \
                  ff15::/16, and a port above 1023";
    if !address.is_multicast() {
        return Err(Fault::usage(format!("{address} is no multicast address"), advice));
    }
    if group.port() == 0 {
        return Err(Fault::usage(format!("the group {group} lacks a port"), advice));
    }
    let reserved = match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.octets()[1] & 0x0f <= 1,
    };
    if reserved {
        let what = format!("{address} is reserved for the network's own protocols");
        return Err(Fault::usage(what, advice));
    }
    let by_source = match address {
        IpAddr::V4(v4) => v4.octets()[0] == 232,
        IpAddr::V6(v6) => v6.octets()[1] & 0xf0 == 0x30,
    };
    if by_source && !source_specific {
        let what = format!("{address} is a source-specific group");
        return Err(Fault::usage(what, "add --source-specific, or take another group"));
    }
    Ok(())
}

/// TCP addresses to try to listen on: the one asked for, or all ports of the range.
pub(crate) fn listen_addrs(
    listen: Option<&HostPort>,
    ports: PortRange,
) -> Result<Vec<SocketAddr>, Fault> {
    let Some(listen) = listen else { return Ok(everywhere(ports.ports())) };
    let found = (listen.host.as_str(), listen.port).to_socket_addrs().map_err(|error| {
        let what = format!("cannot listen on {listen}: {error}");
        Fault::usage(what, "give --listen one of this machine's addresses and a port")
    })?;
    let found: Vec<_> = found.collect();
    let all = found.contains(&(Ipv6Addr::UNSPECIFIED, listen.port).into());
    Ok(if all { everywhere(std::iter::once(listen.port)) } else { found })
}

impl Interface {
    /// The interface that `text` names on this machine.
    pub fn find(text: &str) -> Result<Self, Fault> {
        Self::find_in(text, Path::new("/sys/class/net"))
    }

    fn find_in(text: &str, sys: &Path) -> Result<Self, Fault> {
        if let Ok(address) = text.parse() {
            return match downpour_transport::Interface::named(text) {
                Err(error @ InterfaceError::Unknown { .. }) => {
                    let todo = "name one of these, or one of their addresses";
                    Err(Fault::usage(error.to_string(), todo))
                }
                // What cannot be found out now is when the stream is opened.
                _ => Ok(Self::Address(address)),
            };
        }
        let mut names: Vec<String> = std::fs::read_dir(sys)
            .map(|dir| {
                dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
            })
            .unwrap_or_default();
        names.sort();
        if names.iter().any(|name| name == text) {
            return Ok(Self::Name(text.to_owned()));
        }
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Fault::usage(
            format!("no interface is named `{text}`"),
            format!("name one of this machine's ({known}), or one of their addresses"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{Interface, check_group, listen_addrs};
    use crate::ports::PortRange;
    use std::net::SocketAddr;

    #[test]
    fn a_kernel_without_ipv6_has_addresses_to_listen_on() {
        let ports: PortRange = "28800-28801".parse().unwrap();
        let addrs = |listen: Option<&str>| {
            let listen = listen.map(|listen| listen.parse().unwrap());
            let addrs = listen_addrs(listen.as_ref(), ports).unwrap();
            addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        // Of both families where there are both: IPv4 alone comes after all that.
        assert_eq!(addrs(None), ["[::]:28800", "[::]:28801", "0.0.0.0:28800", "0.0.0.0:28801"]);
        assert_eq!(addrs(Some("[::]:28900")), ["[::]:28900", "0.0.0.0:28900"]);
        assert_eq!(addrs(Some("127.0.0.1:28900")), ["127.0.0.1:28900"]);
    }

    #[test]
    fn a_misspelt_interface_is_told_the_right_names() {
        let fault = Interface::find("eth-none").unwrap_err();
        assert!(fault.what.contains("eth-none") && fault.todo.contains("lo"), "{fault}");
        assert_eq!(Interface::find("lo").unwrap(), Interface::Name("lo".to_owned()));
        assert!(matches!(Interface::find("127.0.0.1").unwrap(), Interface::Address(_)));
        let fault = Interface::find("192.0.2.77").unwrap_err();
        assert!(fault.what.contains("192.0.2.77") && fault.what.contains("lo"), "{fault}");
    }

    #[test]
    fn groups_that_cannot_carry_data_are_refused() {
        for (group, source_specific, ok) in [
            ("239.192.7.1:28819", false, true),
            ("[ff15::7]:28819", false, true),
            ("232.1.2.3:28819", true, true),
            ("[ff35::7]:28819", true, true),
            ("232.1.2.3:28819", false, false),
            ("192.0.2.7:28819", false, false),
            ("224.0.0.1:28819", false, false),
            ("[ff01::1]:28819", false, false),
            ("239.192.7.1:0", false, false),
        ] {
            let checked = check_group(group.parse().unwrap(), source_specific);
            assert_eq!(checked.is_ok(), ok, "{group}: {checked:?}");
        }
    }
}
