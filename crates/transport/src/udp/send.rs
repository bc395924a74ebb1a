//! Sending: datagrams of one size in one buffer, in as few system calls as the kernel allows.

use super::{Group, SEGMENTS_MAX, SEND_LEN_MAX, UdpError, at, bound, grow_send_buffer, sys};
use crate::Interface;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::Socket;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// How to send to a group.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// How many routers multicast may cross, plus one. Default 1: the local network.
    pub hops: u8,
    /// Bytes that may wait in the socket. Default 1 MiB. More hides congestion of the own link for longer.
    pub buffer_len: usize,
    /// Whether to use segmentation offload where the kernel has it. Default yes.
    pub offload: bool,
    /// Whether this machine hears what it sends to a group. Default yes.
    pub looped: bool,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self { hops: 1, buffer_len: 1 << 20, offload: true, looped: true }
    }
}

/// The socket that a stream leaves by.
#[derive(Debug)]
pub struct MulticastSender {
    link: Link,
    group: SocketAddr,
}

impl MulticastSender {
    /// Opens it on `interface`, at an address of its own and a port that the kernel picks.
    pub fn open(
        group: &Group,
        interface: &Interface,
        options: &SendOptions,
    ) -> Result<Self, UdpError> {
        let to = group.socket_addr(interface);
        let no_address = || at("find an own address", to)(io::ErrorKind::AddrNotAvailable.into());
        let from = interface.address_for(group.address()).ok_or_else(no_address)?;
        let socket = bound(interface.socket_addr(from, 0), false)?;
        let hops = u32::from(options.hops);
        if to.is_ipv4() {
            sys::set_multicast_interface_v4(socket.as_fd(), interface.index)
                .and_then(|()| socket.set_multicast_ttl_v4(hops))
                .and_then(|()| socket.set_multicast_loop_v4(options.looped))
        } else {
            socket
                .set_multicast_if_v6(interface.index)
                .and_then(|()| socket.set_multicast_hops_v6(hops))
                .and_then(|()| socket.set_multicast_loop_v6(options.looped))
        }
        .map_err(at("set up multicast sending", to))?;
        Ok(Self { link: Link::new(socket, options)?, group: to })
    }

    /// Sends `bytes`, datagrams of `segment_len` bytes each (the last may be shorter), to the group.
    /// Returns how many bytes the kernel took: whole datagrams, fewer than all when its buffer is full.
    pub fn send(&self, bytes: &[u8], segment_len: usize) -> io::Result<usize> {
        self.link.send(bytes, segment_len, self.group, None)
    }

    /// The address that receivers see.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.link.local_addr()
    }
}

impl AsFd for MulticastSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}

/// A socket for feedback: receivers send by it, the sender receives by it.
#[derive(Debug)]
pub struct UnicastSocket {
    link: Link,
}

impl UnicastSocket {
    /// Binds `address`; port 0 lets the kernel pick. `buffer_len` is asked for in both directions.
    pub fn bind(address: SocketAddr, buffer_len: usize) -> Result<Self, UdpError> {
        let socket = bound(address, false)?;
        super::grow_recv_buffer(&socket, buffer_len).map_err(at("size the buffer", address))?;
        let options = SendOptions { buffer_len, ..SendOptions::default() };
        Ok(Self { link: Link::new(socket, &options)? })
    }

    /// Binds a port that the kernel picks, for sending to `peer`.
    pub fn towards(peer: SocketAddr, buffer_len: usize) -> Result<Self, UdpError> {
        let any = match peer {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        Self::bind(any, buffer_len)
    }

    /// Lets it send to groups and broadcast addresses on `interface`, over at most `hops` − 1 routers.
    pub fn speak_to_groups(&self, interface: &Interface, hops: u8) -> io::Result<()> {
        let socket = &self.link.socket;
        if self.local_addr()?.is_ipv4() {
            sys::set_multicast_interface_v4(socket.as_fd(), interface.index)?;
            socket.set_multicast_ttl_v4(u32::from(hops))?;
            socket.set_multicast_loop_v4(true)?;
            socket.set_broadcast(true)
        } else {
            socket.set_multicast_if_v6(interface.index)?;
            socket.set_multicast_hops_v6(u32::from(hops))?;
            socket.set_multicast_loop_v6(true)
        }
    }

    /// Sends one datagram. `false` when the kernel's buffer is full: it is lost, like any datagram may be.
    pub fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<bool> {
        Ok(self.link.send(datagram, datagram.len().max(1), to, None)? == datagram.len())
    }

    /// Sends datagrams of `segment_len` bytes each (the last may be shorter), `from` this address of ours or from that which
    /// the routes prefer. How many bytes the kernel took: whole datagrams, fewer than all when its buffer is full.
    pub fn send_segments(
        &self,
        bytes: &[u8],
        segment_len: usize,
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> io::Result<usize> {
        self.link.send(bytes, segment_len, to, from)
    }

    /// Asks for `len` bytes of receive buffer; what was granted.
    pub fn grow_recv_buffer(&self, len: usize) -> io::Result<usize> {
        super::grow_recv_buffer(&self.link.socket, len)
    }

    /// Datagrams lost since the start because the receive buffer was full; wraps at 2^32.
    pub fn drops(&self) -> io::Result<u32> {
        sys::drops(self.link.socket.as_fd())
    }

    /// Receives what is there into `batch`; how many messages came (each of one or more datagrams).
    pub fn recv(&self, batch: &mut super::RecvBatch) -> io::Result<usize> {
        batch.fill(|bufs, metas| self.link.recv(bufs, metas))
    }

    /// The address to be told to others; its IP is unspecified when bound so.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.link.local_addr()
    }
}

impl AsFd for UnicastSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}

/// A socket with what quinn-udp knows about it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: Socket,
    state: UdpSocketState,
    offload: bool,
}

impl Link {
    pub(super) fn new(socket: Socket, options: &SendOptions) -> Result<Self, UdpError> {
        let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let address = socket.local_addr().ok().and_then(|a| a.as_socket()).unwrap_or(unknown);
        grow_send_buffer(&socket, options.buffer_len).map_err(at("size the buffer", address))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket));
        let state = state.map_err(at("set up offload", address))?;
        Ok(Self { socket, state, offload: options.offload })
    }

    fn segments_max(&self) -> usize {
        if self.offload { self.state.max_gso_segments().min(SEGMENTS_MAX) } else { 1 }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn send(
        &self,
        bytes: &[u8],
        segment_len: usize,
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> io::Result<usize> {
        if segment_len == 0 || segment_len > SEND_LEN_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut sent = 0;
        while sent < bytes.len() {
            let segments = self.segments_max().min(SEND_LEN_MAX / segment_len).max(1);
            let rest = &bytes[sent..];
            let contents = &rest[..rest.len().min(segments * segment_len)];
            let segment_size = (contents.len() > segment_len).then_some(segment_len);
            let transmit =
                Transmit { destination: to, ecn: None, contents, segment_size, src_ip: from };
            match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
                Ok(()) => sent += contents.len(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // quinn-udp has just found that there is no offload: once more, one by one.
                Err(_) if segments > 1 && self.segments_max() == 1 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    pub(super) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        match self.state.recv(UdpSockRef::from(&self.socket), bufs, metas) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }
}
