//! Network interfaces: which there are, and which one a group is reached by.
//!
//! A session never guesses a NIC: either the user names one ([`Interface::named`]), or the one with the
//! route to the group is taken ([`Interface::towards`]), or it fails with a list of those that exist.
//!
//! Not here: what changes while a session runs. Who sends and who receives a stream looks its interface up anew by name.

use crate::udp::interface_mtu;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;

/// One network interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As in `ip link`.
    pub name: String,
    /// The kernel's number of it.
    pub index: u32,
    /// IPv4 and IPv6, in the kernel's order.
    pub addresses: Vec<IpAddr>,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether the kernel sends and receives multicast on it. Loopback does without having the flag.
    pub has_multicast: bool,
    /// Whether it is the loopback.
    pub is_loopback: bool,
    /// Longest IP packet, bytes.
    pub mtu: u32,
}

/// Why no interface could be chosen. The text tells the user what to do.
#[derive(Debug)]
pub enum InterfaceError {
    /// Nothing here has this name or address.
    Unknown {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: Vec<Interface>,
    },
    /// No interface has a route to the group.
    NoRoute {
        /// The group.
        group: IpAddr,
        /// What there is.
        known: Vec<Interface>,
    },
    /// It is switched off.
    Down {
        /// Its name.
        name: String,
    },
    /// It does not do multicast.
    NoMulticast {
        /// Its name.
        name: String,
    },
    /// It has no address of the group's family.
    NoAddress {
        /// Its name.
        name: String,
        /// The group.
        group: IpAddr,
    },
    /// The kernel did not tell.
    System(io::Error),
}

impl fmt::Display for InterfaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { wanted, known } => {
                write!(f, "no interface \"{wanted}\" here; there are: {}", List(known))
            }
            Self::NoRoute { group, known } => write!(
                f,
                "no route to group {group}; name the interface to use (--interface); there are: {}",
                List(known)
            ),
            Self::Down { name } => {
                write!(f, "interface {name} is down (ip link set {name} up)")
            }
            Self::NoMulticast { name } => write!(
                f,
                "interface {name} has multicast switched off (ip link set {name} multicast on)"
            ),
            Self::NoAddress { name, group } => {
                let family = if group.is_ipv4() { "IPv4" } else { "IPv6" };
                write!(f, "interface {name} has no {family} address, which group {group} needs")
            }
            Self::System(error) => write!(f, "cannot list the network interfaces: {error}"),
        }
    }
}

impl std::error::Error for InterfaceError {}

struct List<'a>(&'a [Interface]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, interface) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{}", interface.name)?;
            match interface.addresses.first() {
                Some(address) if interface.is_up => write!(f, " ({address})")?,
                None if interface.is_up => write!(f, " (no address)")?,
                _ => write!(f, " (down)")?,
            }
        }
        Ok(())
    }
}

impl Interface {
    /// All interfaces of this machine.
    pub fn all() -> Result<Vec<Self>, InterfaceError> {
        let any_socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .or_else(|_| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))
            .map_err(InterfaceError::System)?;
        let entries = getifaddrs().map_err(|errno| InterfaceError::System(errno.into()))?;
        let mut all: Vec<Self> = Vec::new();
        for entry in entries {
            let address = entry.address.as_ref().and_then(|address| {
                let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
            });
            if let Some(known) = all.iter_mut().find(|i| i.name == entry.interface_name) {
                known.addresses.extend(address);
                continue;
            }
            // One that vanishes meanwhile is left out.
            let name = entry.interface_name;
            let Ok(index) = if_nametoindex(name.as_str()) else { continue };
            let Ok(mtu) = interface_mtu(any_socket.as_fd(), &name) else { continue };
            all.push(Self {
                name,
                index,
                addresses: address.into_iter().collect(),
                is_up: entry.flags.contains(InterfaceFlags::IFF_UP),
                has_multicast: entry.flags.contains(InterfaceFlags::IFF_MULTICAST),
                is_loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                mtu,
            });
        }
        Ok(all)
    }

    /// The interface with this name or address.
    pub fn named(wanted: &str) -> Result<Self, InterfaceError> {
        let known = Self::all()?;
        let address: Option<IpAddr> = wanted.parse().ok();
        let matches = |interface: &&Self| {
            interface.name == wanted || address.is_some_and(|a| interface.addresses.contains(&a))
        };
        match known.iter().find(matches) {
            Some(found) => Ok(found.clone()),
            None => Err(InterfaceError::Unknown { wanted: wanted.to_owned(), known }),
        }
    }

    /// The interface that the kernel would send to `group` by.
    pub fn towards(group: IpAddr) -> Result<Self, InterfaceError> {
        let known = Self::all()?;
        match route(group).and_then(|local| known.iter().find(|i| i.holds(&local)).cloned()) {
            Some(found) => Ok(found),
            None => Err(InterfaceError::NoRoute { group, known }),
        }
    }

    /// The one named by the user, else the one with the route to `group`; checked to be usable for it.
    pub fn choose(wanted: Option<&str>, group: IpAddr) -> Result<Self, InterfaceError> {
        let interface = match wanted {
            Some(wanted) => Self::named(wanted)?,
            None => Self::towards(group)?,
        };
        interface.check(group)?;
        Ok(interface)
    }

    /// Whether `group` can be used on it.
    pub fn check(&self, group: IpAddr) -> Result<(), InterfaceError> {
        if !self.is_up {
            return Err(InterfaceError::Down { name: self.name.clone() });
        }
        if !self.has_multicast && !self.is_loopback {
            return Err(InterfaceError::NoMulticast { name: self.name.clone() });
        }
        match self.address_for(group) {
            Some(_) => Ok(()),
            None => Err(InterfaceError::NoAddress { name: self.name.clone(), group }),
        }
    }

    /// The address to send to `group` from. For IPv6 link-local to link-local groups, wider ones to
    /// wider groups where there is one.
    pub fn address_for(&self, group: IpAddr) -> Option<IpAddr> {
        let family: Vec<IpAddr> =
            self.addresses.iter().copied().filter(|a| a.is_ipv4() == group.is_ipv4()).collect();
        let fits = |address: &&IpAddr| is_link_local(address) == is_link_local_group(group);
        family.iter().find(fits).or(family.first()).copied()
    }

    /// `address` and `port` as a socket address; link-local ones get this interface as their scope.
    pub fn socket_addr(&self, address: IpAddr, port: u16) -> SocketAddr {
        match address {
            IpAddr::V6(v6) if is_link_local(&address) || is_link_local_group(address) => {
                SocketAddrV6::new(v6, port, 0, self.index).into()
            }
            _ => SocketAddr::new(address, port),
        }
    }

    fn holds(&self, local: &SocketAddr) -> bool {
        match local {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => v6.scope_id() == self.index,
            _ => self.addresses.contains(&local.ip()),
        }
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Interface-local and link-local scope, RFC 7346.
fn is_link_local_group(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(v6) if v6.is_multicast() && v6.segments()[0] & 0xf <= 2)
}

/// The local address that the kernel's routes give for `group`. Connecting a UDP socket sends nothing.
fn route(group: IpAddr) -> Option<SocketAddr> {
    const ANY_PORT: u16 = 9;
    let unspecified: IpAddr = match group {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    socket.connect((group, ANY_PORT)).ok()?;
    socket.local_addr().ok()
}

#[cfg(test)]
mod tests {
    use super::{Interface, InterfaceError, is_link_local_group};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    fn lo() -> Interface {
        Interface::named("lo").unwrap()
    }

    #[test]
    fn loopback_is_found_by_name_and_by_address() {
        let lo = lo();
        assert!(lo.is_up && lo.is_loopback && lo.mtu >= 1500 && lo.index > 0);
        assert_eq!(Interface::named("127.0.0.1").unwrap(), lo);
        let group = Ipv4Addr::new(239, 1, 1, 1).into();
        assert!(lo.check(group).is_ok());
        assert_eq!(lo.address_for(group), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(Interface::choose(Some("lo"), group).unwrap(), lo);
    }

    #[test]
    fn an_unknown_interface_lists_those_that_exist() {
        let error = Interface::named("nosuch0").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"nosuch0\"") && text.contains("lo (127.0.0.1)"), "{text}");
    }

    #[test]
    fn what_makes_an_interface_unusable_is_said() {
        let group = Ipv4Addr::new(239, 1, 1, 1).into();
        let down = Interface { is_up: false, ..lo() };
        assert!(matches!(down.check(group), Err(InterfaceError::Down { .. })));
        let deaf = Interface { is_loopback: false, has_multicast: false, ..lo() };
        assert!(matches!(deaf.check(group), Err(InterfaceError::NoMulticast { .. })));
        let bare = Interface { addresses: vec!["fe80::1".parse().unwrap()], ..lo() };
        let error = bare.check(group).unwrap_err().to_string();
        assert!(error.contains("no IPv4 address"), "{error}");
    }

    #[test]
    fn link_local_groups_take_link_local_addresses() {
        let addresses = ["fd00::5", "fe80::1"].map(|a| a.parse().unwrap()).to_vec();
        let interface = Interface { addresses: addresses.clone(), index: 7, ..lo() };
        let near: IpAddr = "ff02::99".parse().unwrap();
        let wide: IpAddr = "ff15::99".parse().unwrap();
        assert!(is_link_local_group(near) && !is_link_local_group(wide));
        assert_eq!(interface.address_for(near), Some(addresses[1]));
        assert_eq!(interface.address_for(wide), Some(addresses[0]));
        let SocketAddr::V6(scoped) = interface.socket_addr(near, 5) else { panic!("family") };
        assert_eq!(scoped.scope_id(), 7);
    }
}
