//! The few system calls for which no crate has a safe face. All `unsafe` of this crate is listed in `codec/kernel`.
//!
//! Each function passes the kernel one value of a type that libc declares, with its exact size, on a
//! descriptor that is borrowed for the call; nothing is kept. Linux only, like the whole `udp` module.
//!
//! Not here: anything that socket2, nix or quinn-udp can do.

#![allow(unsafe_code)]

use socket2::SockAddr;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Words that `SO_MEMINFO` gives; the last is the count of drops.
const MEMINFO_WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;

/// Datagrams that the kernel dropped because this socket's receive buffer was full (and, rarely, for a
/// bad checksum). Wraps at 2^32.
pub(super) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut words = [0u32; MEMINFO_WORDS];
    let mut len = size_of::<[u32; MEMINFO_WORDS]>() as libc::socklen_t;
    // SAFETY: `words` is valid for `len` bytes, and any bytes are a valid u32.
    let status = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &mut len,
        )
    };
    check(status)?;
    Ok(words[libc::SK_MEMINFO_DROPS as usize])
}

/// Joins `group` on the interface with this index, for datagrams from `source` only (RFC 3678).
pub(super) fn join_source(
    fd: BorrowedFd<'_>,
    group: IpAddr,
    source: IpAddr,
    interface: u32,
) -> io::Result<()> {
    source_membership(fd, libc::MCAST_JOIN_SOURCE_GROUP, group, source, interface)
}

/// Takes back what [`join_source`] did.
pub(super) fn leave_source(
    fd: BorrowedFd<'_>,
    group: IpAddr,
    source: IpAddr,
    interface: u32,
) -> io::Result<()> {
    source_membership(fd, libc::MCAST_LEAVE_SOURCE_GROUP, group, source, interface)
}

fn source_membership(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    group: IpAddr,
    source: IpAddr,
    interface: u32,
) -> io::Result<()> {
    let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let request = libc::group_source_req {
        gsr_interface: interface,
        gsr_group: storage(group),
        gsr_source: storage(source),
    };
    set(fd, level, option, &request)
}

fn storage(address: IpAddr) -> libc::sockaddr_storage {
    let address = SockAddr::from(SocketAddr::new(address, 0));
    // SAFETY: socket2 keeps a whole, initialised `sockaddr_storage`; on Linux it is libc's.
    unsafe { address.as_ptr().cast::<libc::sockaddr_storage>().read() }
}

/// Sends IPv4 multicast from the interface with this index. socket2 takes an address only, which two
/// interfaces may share.
pub(super) fn set_multicast_interface_v4(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: libc::c_int::try_from(index).map_err(io::Error::other)?,
    };
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
}

/// Sets a socket option to a plain C value.
fn set<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes for the length of the call.
    let status = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len)
    };
    check(status)
}

/// How long TCP holds an acknowledgement back at most, and what it waits at least for one before it sends again
/// (Linux 6.15). By itself it holds them for up to 40 ms, and waits for a fifth of a second.
pub(crate) fn set_tcp_patience(
    fd: BorrowedFd<'_>,
    hold_max: Duration,
    wait_min: Duration,
) -> io::Result<()> {
    /// `TCP_RTO_MIN_US` and `TCP_DELACK_MAX_US` of linux/tcp.h.
    const WAIT_MIN: libc::c_int = 45;
    const HOLD_MAX: libc::c_int = 46;
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    set(fd, libc::IPPROTO_TCP, HOLD_MAX, &micros(hold_max))?;
    set(fd, libc::IPPROTO_TCP, WAIT_MIN, &micros(wait_min))
}

/// What the kernel tells of a TCP connection. What an older kernel does not fill in is zero.
pub(crate) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is valid for `len` bytes; it is plain integers, of which all zeros are valid, and older
    // kernels fill only its beginning.
    let (status, info) = unsafe {
        let status = libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        );
        (status, info.assume_init())
    };
    check(status).map(|()| info)
}

/// Most bytes a second that TCP lets go on this connection.
pub(crate) fn set_pacing_max(fd: BorrowedFd<'_>, bytes_per_s: u64) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes_per_s)
}

/// The MTU of an interface. `fd` is any socket; it names the network namespace.
pub(crate) fn interface_mtu(fd: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    // SAFETY: all zeros is a valid `ifreq`; the name has room for its terminating zero; the kernel writes
    // within the structure, and after success the field of the union that it filled is `ifru_mtu`.
    let (status, mtu) = unsafe {
        let request = request.assume_init_mut();
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let status =
            libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, std::ptr::from_mut(request));
        (status, request.ifr_ifru.ifru_mtu)
    };
    check(status)?;
    u32::try_from(mtu).map_err(io::Error::other)
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
