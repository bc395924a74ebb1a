//! Receiving: many datagrams per system call into buffers that are reused.

use super::send::Link;
use super::{Group, SendOptions, UdpError, at, bound, grow_recv_buffer, sys};
use crate::Interface;
use quinn_udp::RecvMeta;
use socket2::InterfaceIndexOrAddress;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

/// How to receive from a group.
#[derive(Clone, Copy, Debug)]
pub struct RecvOptions {
    /// Bytes that may wait in the socket. Default 16 MiB. With less than the kernel grants by itself, bursts
    /// are lost while the thread is not scheduled: 10 ms at 1 Gbit/s are 1.2 MB.
    pub buffer_len: usize,
}

impl Default for RecvOptions {
    fn default() -> Self {
        Self { buffer_len: 16 << 20 }
    }
}

/// The socket that a stream arrives by.
#[derive(Debug)]
pub struct MulticastReceiver {
    link: Link,
    group: Group,
    interface: Interface,
    buffer_len: usize,
    is_member: bool,
    /// Drops of the sockets that it had before this one.
    drops_before: u32,
}

impl MulticastReceiver {
    /// Binds the group's address and joins it on `interface`.
    pub fn join(
        group: &Group,
        interface: &Interface,
        options: &RecvOptions,
    ) -> Result<Self, UdpError> {
        let address = group.socket_addr(interface);
        let socket = bound(address, true)?;
        if address.is_ipv4() {
            socket.set_multicast_all_v4(false)
        } else {
            socket.set_multicast_all_v6(false)
        }
        .map_err(at("refuse other groups", address))?;
        let buffer_len = grow_recv_buffer(&socket, options.buffer_len)
            .map_err(at("size the receive buffer", address))?;
        let link = Link::new(socket, &SendOptions::default())?;
        let receiver = Self {
            link,
            group: *group,
            interface: interface.clone(),
            buffer_len,
            is_member: true,
            drops_before: 0,
        };
        receiver.set_membership(true).map_err(at("join the group", address))?;
        Ok(receiver)
    }

    /// Leaves the group; the socket stays, and hears nothing. That fails where nothing is left to leave: the interface
    /// has gone.
    pub fn leave(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_member) {
            self.set_membership(false)?;
        }
        Ok(())
    }

    /// Joins the group again, on the interface that has the name now: one that was deleted and made again is another one
    /// to the kernel, and needs another socket, as a group of link-local scope binds it to the one that there was.
    pub fn rejoin(&mut self) -> io::Result<()> {
        if self.is_member {
            return Ok(());
        }
        match Interface::named(&self.interface.name) {
            Ok(interface) if interface.index != self.interface.index => {
                let drops_before = self.drops().unwrap_or(self.drops_before);
                let options = RecvOptions { buffer_len: self.buffer_len };
                let joined = Self::join(&self.group, &interface, &options);
                *self = Self { drops_before, ..joined.map_err(io::Error::other)? };
            }
            _ => {
                self.set_membership(true)?;
                self.is_member = true;
            }
        }
        Ok(())
    }

    fn set_membership(&self, join: bool) -> io::Result<()> {
        let socket = &self.link.socket;
        let index = self.interface.index;
        let any = InterfaceIndexOrAddress::Index(index);
        match (self.group.address(), self.group.source(), join) {
            (group, Some(source), true) => sys::join_source(socket.as_fd(), group, source, index),
            (group, Some(source), false) => sys::leave_source(socket.as_fd(), group, source, index),
            (IpAddr::V4(group), None, true) => socket.join_multicast_v4_n(&group, &any),
            (IpAddr::V4(group), None, false) => socket.leave_multicast_v4_n(&group, &any),
            (IpAddr::V6(group), None, true) => socket.join_multicast_v6(&group, index),
            (IpAddr::V6(group), None, false) => socket.leave_multicast_v6(&group, index),
        }
    }

    /// Receives what is there into `batch`; how many messages came (each of one or more datagrams).
    pub fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.fill(|bufs, metas| self.link.recv(bufs, metas))
    }

    /// Datagrams lost since the start because the receive buffer was full; wraps at 2^32.
    pub fn drops(&self) -> io::Result<u32> {
        Ok(self.drops_before.wrapping_add(sys::drops(self.link.socket.as_fd())?))
    }

    /// Bytes of receive buffer that the kernel granted; fewer than asked for deserve a warning.
    pub fn buffer_len(&self) -> usize {
        self.buffer_len
    }
}

impl AsFd for MulticastReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}

/// One received datagram, to be opened in place.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// Its bytes.
    pub bytes: &'a mut [u8],
    /// Who sent it, as the IP header claims.
    pub from: &'a SocketAddr,
    /// To which of our addresses; `None` where that is not known.
    pub to: Option<IpAddr>,
    /// How long it lay in the socket before this receive call took it; zero where that is not known.
    pub waited: Duration,
}

/// One message of a receive call: what the kernel hands over at once.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// How many datagrams it holds.
    pub datagrams: usize,
    /// How long it lay in the socket before the call; zero where that is not known.
    pub waited: Duration,
}

/// Room for the datagrams of one receive call.
pub struct RecvBatch {
    storage: Vec<u8>,
    metas: [RecvMeta; MESSAGES_MAX],
    filled: usize,
    /// The wall clock after the last call, which is what the kernel stamps datagrams by. None if it was set while
    /// they waited: by a clock put forward they would have come too early, which rate control remembers.
    received: Option<Duration>,
    began: Instant,
    /// By how much the wall clock was ahead of the time since `began` when a call last left nothing in the socket.
    ahead: Duration,
}

/// Messages per receive call. With receive offload each holds up to 64 datagrams.
const MESSAGES_MAX: usize = 16;
/// Two clocks that are read one after the other differ by less, unless the wall clock was set.
const SET_MIN: Duration = Duration::from_micros(200);
/// Longest message: all of a GRO list.
const MESSAGE_LEN_MAX: usize = 65_536;

const _: () = assert!(MESSAGES_MAX <= quinn_udp::BATCH_SIZE);

impl RecvBatch {
    /// Allocates 1 MiB.
    pub fn new() -> Self {
        Self {
            storage: vec![0; MESSAGES_MAX * MESSAGE_LEN_MAX],
            metas: [RecvMeta::default(); MESSAGES_MAX],
            filled: 0,
            received: None,
            began: Instant::now(),
            ahead: wall_clock(),
        }
    }

    pub(super) fn fill(
        &mut self,
        recv: impl FnOnce(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.filled = 0;
        let mut rooms = self.storage.chunks_exact_mut(MESSAGE_LEN_MAX);
        let mut bufs: [IoSliceMut<'_>; MESSAGES_MAX] =
            std::array::from_fn(|_| IoSliceMut::new(rooms.next().unwrap_or_default()));
        self.filled = recv(&mut bufs, &mut self.metas)?;
        let received = wall_clock();
        let ahead = received.saturating_sub(self.began.elapsed());
        self.received = (ahead.abs_diff(self.ahead) < SET_MIN).then_some(received);
        if !self.is_full() {
            self.ahead = ahead;
        }
        Ok(self.filled)
    }

    /// The messages of the last call, in the order of their arrival.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        self.metas[..self.filled].iter().map(|meta| Message {
            datagrams: meta.len.div_ceil(meta.stride.max(1)),
            waited: waited(self.received, meta),
        })
    }

    /// The datagrams of the last call, in the order of their arrival.
    pub fn datagrams(&mut self) -> impl Iterator<Item = Datagram<'_>> {
        let received = self.received;
        let messages = self.storage.chunks_exact_mut(MESSAGE_LEN_MAX).zip(&self.metas);
        messages.take(self.filled).flat_map(move |(room, meta)| {
            let len = meta.len.min(MESSAGE_LEN_MAX);
            let waited = waited(received, meta);
            // An empty datagram has stride 0.
            room[..len].chunks_mut(meta.stride.max(1)).map(move |bytes| Datagram {
                bytes,
                from: &meta.addr,
                to: meta.dst_ip,
                waited,
            })
        })
    }

    /// Whether the last call filled all room, so that more is likely waiting.
    pub fn is_full(&self) -> bool {
        self.filled == MESSAGES_MAX
    }
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn waited(received: Option<Duration>, meta: &RecvMeta) -> Duration {
    let known = received.zip(meta.timestamp);
    known.map_or(Duration::ZERO, |(received, stamp)| received.saturating_sub(stamp))
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{MulticastReceiver, RecvBatch, RecvOptions};
    use crate::{
        Clock, Group, Interest, Interface, MulticastSender, SendOptions, UnicastSocket, Woken, wait,
    };
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::Duration;

    /// Each test has a group of its own, for tests run at the same time.
    fn group(last: u8) -> Group {
        Group::new(SocketAddr::from(([239, 255, 71, last], 17_071)), None).unwrap()
    }

    fn lo() -> Interface {
        Interface::named("lo").unwrap()
    }

    fn join(group: &Group) -> MulticastReceiver {
        MulticastReceiver::join(group, &lo(), &RecvOptions::default()).unwrap()
    }

    /// Whether anything comes: at once, and on a busy machine within half a minute.
    fn is_ready(fd: BorrowedFd<'_>) -> bool {
        let clock = Clock::start();
        let deadline = clock.now() + Duration::from_secs(30);
        wait(&clock, deadline, &[Interest::Read(fd)]).unwrap() == Woken::Ready
    }

    /// Receives until `count` datagrams came, or nothing more comes.
    fn collect(receiver: &MulticastReceiver, count: usize) -> Vec<Vec<u8>> {
        let mut batch = RecvBatch::new();
        let mut all = Vec::new();
        while all.len() < count && is_ready(receiver.as_fd()) {
            receiver.recv(&mut batch).unwrap();
            all.extend(batch.datagrams().map(|datagram| datagram.bytes.to_vec()));
        }
        all
    }

    fn round_trip(last: u8, offload: bool) {
        let group = group(last);
        let receivers = [join(&group), join(&group)];
        let options = SendOptions { offload, ..SendOptions::default() };
        let sender = MulticastSender::open(&group, &lo(), &options).unwrap();
        // 200 datagrams of 1472 and one of 100 bytes. 80 at once are several calls even with offload, and fit into what a user
        // gets of a kernel with its own limits: 416 KiB, of which each takes 2304 bytes.
        let bytes: Vec<u8> = (0..200 * 1472 + 100).map(|i| (i / 1472 + i % 7) as u8).collect();
        for part in bytes.chunks(80 * 1472) {
            assert_eq!(sender.send(part, 1472).unwrap(), part.len());
            for receiver in &receivers {
                let count = part.len().div_ceil(1472);
                let got = collect(receiver, count);
                assert_eq!(got.len(), count);
                assert_eq!(got[count - 1].len(), part.len() - (count - 1) * 1472);
                assert!(got.concat() == part);
                assert_eq!(receiver.drops().unwrap(), 0);
            }
        }
    }

    #[test]
    fn datagrams_reach_all_members_with_offload() {
        round_trip(1, true);
    }

    #[test]
    fn datagrams_reach_all_members_one_by_one() {
        round_trip(2, false);
    }

    #[test]
    fn who_left_hears_nothing_until_it_joins_again() {
        let group = group(3);
        let (mut left, stayed) = (join(&group), join(&group));
        let sender = MulticastSender::open(&group, &lo(), &SendOptions::default()).unwrap();
        left.leave().unwrap();
        left.leave().unwrap();
        sender.send(b"one", 3).unwrap();
        assert_eq!(collect(&stayed, 1), [b"one"]);
        left.rejoin().unwrap();
        sender.send(b"two", 3).unwrap();
        assert_eq!(collect(&left, 1), [b"two"], "the first that it hears");
    }

    #[test]
    fn another_group_on_the_same_port_is_not_heard() {
        let (mine, other) = (group(4), group(5));
        let receiver = join(&mine);
        let neighbour = join(&other);
        let sender = MulticastSender::open(&other, &lo(), &SendOptions::default()).unwrap();
        sender.send(b"other", 5).unwrap();
        assert_eq!(collect(&neighbour, 1), [b"other"]);
        let sender = MulticastSender::open(&mine, &lo(), &SendOptions::default()).unwrap();
        sender.send(b"mine", 4).unwrap();
        assert_eq!(collect(&receiver, 1), [b"mine"], "the first that it hears");
    }

    #[test]
    fn a_full_buffer_is_counted() {
        let group = group(6);
        let options = RecvOptions { buffer_len: 1 };
        let receiver = MulticastReceiver::join(&group, &lo(), &options).unwrap();
        assert!(receiver.buffer_len() > 0);
        let sender = MulticastSender::open(&group, &lo(), &SendOptions::default()).unwrap();
        let sent = 3000;
        for _ in 0..sent {
            sender.send(&[1; 1400], 1400).unwrap();
        }
        let (mut got, drops) = (0, || receiver.drops().unwrap() as usize);
        while got + drops() < sent {
            let came = collect(&receiver, 1).len();
            assert!(came > 0, "got {got}, {} are counted", drops());
            got += came;
        }
        assert!(got > 0 && got < sent, "got {got}");
        assert_eq!(drops(), sent - got);
    }

    #[test]
    fn the_granted_buffer_is_told() {
        let options = RecvOptions { buffer_len: 1 << 18 };
        let receiver = MulticastReceiver::join(&group(7), &lo(), &options).unwrap();
        assert!(receiver.buffer_len() >= 100_000 && receiver.buffer_len() <= 1 << 18);
    }

    /// A sender's socket, a receiver's towards it, and where that is.
    fn unicast() -> (UnicastSocket, UnicastSocket, SocketAddr) {
        let home = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let sender = UnicastSocket::bind(home, 1 << 20).unwrap();
        let to = sender.local_addr().unwrap();
        let receiver = UnicastSocket::towards(to, 1 << 16).unwrap();
        (sender, receiver, to)
    }

    #[test]
    fn feedback_travels_by_unicast() {
        let (sender, receiver, to) = unicast();
        assert!(receiver.send(b"nack", to).unwrap());
        assert!(is_ready(sender.as_fd()));
        let mut batch = RecvBatch::new();
        assert_eq!(sender.recv(&mut batch).unwrap(), 1);
        let got: Vec<_> = batch.datagrams().map(|d| (d.bytes.to_vec(), d.from.port())).collect();
        assert_eq!(got, [(b"nack".to_vec(), receiver.local_addr().unwrap().port())]);
        assert_eq!(sender.recv(&mut batch).unwrap(), 0);
        assert_eq!(batch.datagrams().count(), 0);
    }

    /// By a clock that was put forward by 15 ms it would have come so much too early.
    #[test]
    fn what_waited_while_the_wall_clock_was_set_has_not_waited() {
        let (sender, receiver, to) = unicast();
        let mut batch = RecvBatch::new();
        let mut waited = |set| {
            assert!(receiver.send(b"nack", to).unwrap());
            assert!(is_ready(sender.as_fd()));
            batch.ahead -= set;
            assert_eq!(sender.recv(&mut batch).unwrap(), 1);
            batch.datagrams().next().unwrap().waited
        };
        // A host that halts between two looks at the clocks sees them differ.
        let is_known = |waited: Duration| !waited.is_zero();
        assert!((0..10).any(|_| is_known(waited(Duration::ZERO))));
        assert_eq!(waited(Duration::from_millis(15)), Duration::ZERO);
        assert!((0..10).any(|_| is_known(waited(Duration::ZERO))));
    }

    #[test]
    fn one_socket_hears_both_families_and_answers_them() {
        let Ok(sender) = UnicastSocket::bind((Ipv6Addr::UNSPECIFIED, 0).into(), 1 << 20) else {
            let name = "one_socket_hears_both_families_and_answers_them";
            return crate::skipped::not_here(name, "no IPv6 here");
        };
        let port = sender.local_addr().unwrap().port();
        let mut batch = RecvBatch::new();
        for home in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let to = SocketAddr::new(home, port);
            let receiver = UnicastSocket::towards(to, 1 << 16).unwrap();
            receiver.send(b"nack", to).unwrap();
            assert!(is_ready(sender.as_fd()), "{home}");
            sender.recv(&mut batch).unwrap();
            let from = *batch.datagrams().next().unwrap().from;
            assert_eq!(from.ip().to_canonical(), home);
            assert_eq!(sender.send_segments(b"onetwo", 3, from, None).unwrap(), 6);
            assert!(is_ready(receiver.as_fd()), "{home}");
            receiver.recv(&mut batch).unwrap();
            assert_eq!(batch.datagrams().next().unwrap().bytes, b"one");
        }
    }

    #[test]
    fn a_taken_port_is_named() {
        let home = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = UnicastSocket::bind(home, 1 << 16).unwrap();
        let taken = first.local_addr().unwrap();
        let error = UnicastSocket::bind(taken, 1 << 16).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&taken.to_string()), "{error}");
    }
}
