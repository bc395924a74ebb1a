//! UDP sockets: multicast out, multicast in, and unicast for feedback.
//!
//! All are non-blocking and for use by one thread that waits with [`crate::wait`]. Segmentation offload (one
//! system call and one trip through the stack for up to 64 datagrams, on both sides) is used where the
//! kernel has it; it is what makes more than about 0.3 Gbit/s to eight receivers possible. Without it
//! datagrams go one by one: sendmmsg was measured to gain nothing over sendto.
//!
//! Invariants:
//! - A multicast receiver is bound to the group's address and has IP_MULTICAST_ALL off, so that it never hears
//!   groups that some other process joined.
//! - Multicast leaves by the interface that the caller gave, never by one that the routes picked silently.
//! - Datagrams carry DF: one that does not fit the path is lost, not fragmented.
//! - Receiving allocates nothing.
//!
//! Not here: what is in a datagram (`seal`), when to send (`downpour_proto`).

mod recv;
mod send;
mod sys;

pub use recv::{Datagram, Message, MulticastReceiver, RecvBatch, RecvOptions};
pub use send::{MulticastSender, SendOptions, UnicastSocket};
pub(crate) use sys::{interface_mtu, set_pacing_max, set_tcp_patience, tcp_info};

use crate::Interface;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBufForce, SndBufForce};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Most datagrams that one send call takes, the kernel's limit on segments.
pub const SEGMENTS_MAX: usize = 64;
/// Most bytes that one send call takes: below the 65,507 of a UDP datagram, headers left out.
pub(crate) const SEND_LEN_MAX: usize = 65_000;

/// A multicast group: address, port, and for source-specific multicast the only sender listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    address: IpAddr,
    port: u16,
    source: Option<IpAddr>,
}

/// Why an address is no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// Not a multicast address.
    NotMulticast(IpAddr),
    /// Port 0.
    NoPort,
    /// The address is in the source-specific range, which needs a source.
    SourceMissing(IpAddr),
    /// The source is itself multicast or unspecified, or of the other family.
    BadSource(IpAddr),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMulticast(address) => write!(
                f,
                "{address} is not a multicast address (use 239.0.0.0 to 239.255.255.255, or ff15::/16)"
            ),
            Self::NoPort => f.write_str("a group needs a port other than 0"),
            Self::SourceMissing(address) => {
                write!(f, "{address} is for source-specific multicast; name the source")
            }
            Self::BadSource(source) => write!(f, "{source} cannot be the source of this group"),
        }
    }
}

impl std::error::Error for GroupError {}

impl Group {
    /// Checks the address, and the source when there is one.
    pub fn new(group: SocketAddr, source: Option<IpAddr>) -> Result<Self, GroupError> {
        let address = group.ip();
        if !address.is_multicast() {
            return Err(GroupError::NotMulticast(address));
        }
        if group.port() == 0 {
            return Err(GroupError::NoPort);
        }
        match source {
            None if is_source_specific(address) => return Err(GroupError::SourceMissing(address)),
            Some(source)
                if source.is_multicast()
                    || source.is_unspecified()
                    || source.is_ipv4() != address.is_ipv4() =>
            {
                return Err(GroupError::BadSource(source));
            }
            _ => {}
        }
        Ok(Self { address, port: group.port(), source })
    }

    /// The group's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The group's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The only sender listened to, for source-specific multicast.
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// Address and port, scoped to `interface` where the address needs it.
    pub fn socket_addr(&self, interface: &Interface) -> SocketAddr {
        interface.socket_addr(self.address, self.port)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = self.source {
            write!(f, "{source}@")?;
        }
        write!(f, "{}", SocketAddr::new(self.address, self.port))
    }
}

/// 232/8 (RFC 4607) and ff3x::/32.
fn is_source_specific(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] == 232,
        IpAddr::V6(v6) => v6.segments()[0] & 0xfff0 == 0xff30 && v6.segments()[1] == 0,
    }
}

/// A socket could not be made ready; says which step failed, and for which address.
#[derive(Debug)]
pub struct UdpError {
    step: &'static str,
    address: SocketAddr,
    source: io::Error,
}

impl UdpError {
    /// The kernel's reason.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for UdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} for UDP {}: {}", self.step, self.address, self.source)
    }
}

impl std::error::Error for UdpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Names the step and the address that an I/O error belongs to.
fn at(step: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> UdpError {
    move |source| UdpError { step, address, source }
}

/// A UDP socket bound to `address`; `shared` lets several programs of a host bind it.
fn bound(address: SocketAddr, shared: bool) -> Result<Socket, UdpError> {
    let open = at("open a socket", address);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(open)?;
    if address.is_ipv6() {
        // As for TCP, `[::]` is all addresses of this machine.
        let only_v6 = !address.ip().is_unspecified();
        socket.set_only_v6(only_v6).map_err(at("set IPV6_V6ONLY", address))?;
    }
    if shared {
        socket.set_reuse_address(true).map_err(at("share the address", address))?;
    }
    socket.bind(&address.into()).map_err(at("bind", address))?;
    Ok(socket)
}

/// Asks for `len` bytes of receive buffer, past the system's limit where we may; what was granted.
fn grow_recv_buffer(socket: &Socket, len: usize) -> io::Result<usize> {
    if setsockopt(socket, RcvBufForce, &len).is_err() {
        socket.set_recv_buffer_size(len)?;
    }
    // The kernel reports twice what it was asked for, to count its own overhead.
    Ok(socket.recv_buffer_size()? / 2)
}

/// Asks for `len` bytes of send buffer, past the system's limit where we may; what was granted.
fn grow_send_buffer(socket: &Socket, len: usize) -> io::Result<usize> {
    if setsockopt(socket, SndBufForce, &len).is_err() {
        socket.set_send_buffer_size(len)?;
    }
    Ok(socket.send_buffer_size()? / 2)
}

#[cfg(test)]
mod tests {
    use super::{Group, GroupError};

    #[test]
    fn groups_are_checked() {
        let new = |group: &str, source: Option<&str>| {
            Group::new(group.parse().unwrap(), source.map(|s| s.parse().unwrap()))
        };
        assert_eq!(new("239.1.2.3:7000", None).unwrap().to_string(), "239.1.2.3:7000");
        let ssm = new("232.1.2.3:7000", Some("10.0.0.1")).unwrap();
        assert_eq!(ssm.to_string(), "10.0.0.1@232.1.2.3:7000");
        assert!(new("[ff15::1]:7000", None).is_ok());
        assert!(new("[ff35::1]:7000", Some("fd00::1")).is_ok());
        assert!(matches!(new("10.0.0.1:7000", None), Err(GroupError::NotMulticast(_))));
        assert_eq!(new("239.1.2.3:0", None), Err(GroupError::NoPort));
        assert!(matches!(new("232.1.2.3:7000", None), Err(GroupError::SourceMissing(_))));
        assert!(matches!(new("[ff35::1]:7000", None), Err(GroupError::SourceMissing(_))));
        for source in ["0.0.0.0", "239.1.1.1", "fd00::1"] {
            assert!(matches!(new("232.1.2.3:7000", Some(source)), Err(GroupError::BadSource(_))));
        }
    }
}
