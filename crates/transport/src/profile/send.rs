//! The sender's driver: one thread, which owns the machine and all sockets.
//!
//! Each turn: what came by datagram and by connection, commands, what is due by time; then all that may leave now; then
//! sleep until a socket, a command or a deadline. The connections that are open are watched by one epoll descriptor.

use super::connection::Connection;
use super::{ProductSource, ProfileError};
use crate::{Clock, Interest, RecvBatch, UnicastSocket, Waker, take_short_turns, wait};
use downpour_proto::profile::{
    Body, MEMBERS_MAX, MemberReport, Offer, Sender, SenderConfig, SenderEvent, SenderStats, To,
    Transmit,
};
use downpour_proto::rate::RateLine;
use downpour_proto::{Duration, Rate, ReceiverId, Timestamp};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::mpsc;

/// Packets in one turn, so that feedback is not kept waiting.
const TRANSMITS_MAX: usize = 256;
/// Receive calls in one turn.
const RECV_CALLS_MAX: usize = 8;
/// Connections looked at in one turn.
const READY_MAX: usize = 64;
/// How long receivers may take to read the rest after the end.
const LINGER: Duration = Duration::from_secs(5);

/// The session ends when for so long all that is sent to the group is refused, or, from the start on, all that is sent to each of
/// its members.
const OUTAGE_MAX: Duration = Duration::from_secs(3);

/// After one could not be taken nobody who connects is looked at for so long: the process may have no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is due by time waits so long at most while the socket's buffer is full.
const FULL_MAX: Duration = Duration::from_millis(20);

/// When the data starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartWhen {
    /// So many receivers have joined by a connection.
    pub receivers: usize,
    /// Or with whoever is there by then.
    pub after: Option<Duration>,
}

/// What a sender's driver needs.
pub struct SendSetup {
    /// The machine's configuration.
    pub machine: SenderConfig,
    /// What packets leave by, and status packets come by.
    pub socket: UnicastSocket,
    /// Where receivers connect.
    pub control: Option<TcpListener>,
    /// Where bytes come from.
    pub source: Box<dyn ProductSource>,
    /// When to start.
    pub start: StartWhen,
    /// Told what happens.
    pub on_event: Box<dyn FnMut(Timestamp, SendEvent) + Send>,
}

/// What the owner may want to tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SendEvent {
    /// The first packet leaves.
    Started,
    /// The rate was looked at; who reported the least.
    Rate(SocketAddr, RateLine),
    /// A receiver connected.
    Connected(SocketAddr),
    /// It has all of a product.
    Complete(SocketAddr, u32),
    /// Its connection is closed.
    Gone(SocketAddr),
    /// Nothing of the product will be read again.
    Released(u32),
    /// A segment left.
    Sent(Body),
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct SendOutcome {
    /// Counters.
    pub stats: SenderStats,
    /// The receivers with a connection.
    pub members: Vec<(SocketAddr, MemberReport)>,
    /// Receivers that the sender believed to have at the end.
    pub group_estimate: f64,
    /// The first packet's time.
    pub started: Timestamp,
    /// The last packet's.
    pub last_sent: Timestamp,
    /// The rate at the end.
    pub rate: Rate,
}

enum Command {
    Offer(Offer),
    Finish,
}

/// Offers products to a running sender, from any thread.
#[derive(Clone, Debug)]
pub struct SendHandle {
    commands: mpsc::Sender<Command>,
    waker: Waker,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Offer(_) => "Offer",
            Self::Finish => "Finish",
        })
    }
}

impl SendHandle {
    /// The next product.
    pub fn offer(&self, offer: Offer) {
        self.tell(Command::Offer(offer));
    }

    /// There will be no more.
    pub fn finish(&self) {
        self.tell(Command::Finish);
    }

    fn tell(&self, command: Command) {
        // A sender that has ended takes no more.
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

/// A sender that is ready to run.
pub struct Sending {
    machine: Sender,
    setup: Rest,
    commands: mpsc::Receiver<Command>,
    waker: Waker,
    epoll: Epoll,
    clock: Clock,
    /// Those with a connection.
    connections: BTreeMap<ReceiverId, Connection>,
    peers: BTreeMap<ReceiverId, SocketAddr>,
    /// Those known by their datagrams only.
    strangers: BTreeMap<SocketAddr, ReceiverId>,
    next_id: u32,
    /// Before it nobody who connects is looked at.
    accept_from: Timestamp,
    packet: Vec<u8>,
    /// The socket did not take it.
    pending: Option<To>,
    outage: Outage,
    started: Option<Timestamp>,
    last_sent: Timestamp,
    done: bool,
}

struct Rest {
    socket: UnicastSocket,
    control: Option<TcpListener>,
    group: Option<SocketAddr>,
    source: Box<dyn ProductSource>,
    start: StartWhen,
    on_event: Box<dyn FnMut(Timestamp, SendEvent) + Send>,
}

/// What becomes of what is sent to the group, or to each of its members.
#[derive(Debug, Default)]
struct Outage {
    /// Something has left.
    left: bool,
    /// Since when all is refused, and why.
    refused: Option<(Timestamp, io::Error)>,
}

impl Outage {
    /// What is refused is lost like any packet, until that lasts.
    fn judge(&mut self, now: Timestamp, sent: io::Result<bool>) -> io::Result<bool> {
        let error = match sent {
            Ok(sent) => {
                *self = Self { left: true, refused: None };
                return Ok(sent);
            }
            Err(error) => error,
        };
        let since = self.refused.as_ref().map_or(now, |(since, _)| *since);
        if now.since(since) >= OUTAGE_MAX {
            return Err(error);
        }
        self.refused = Some((since, error));
        Ok(true)
    }

    /// It was too short for that; but a session of which nothing has left has failed.
    fn end(self) -> io::Result<()> {
        match self.refused {
            Some((_, error)) if !self.left => Err(error),
            _ => Ok(()),
        }
    }
}

/// A sender, and the handle that gives it products.
pub fn prepare(setup: SendSetup) -> io::Result<(Sending, SendHandle)> {
    let clock = Clock::start();
    let (sender, commands) = mpsc::channel();
    let waker = Waker::new()?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    if let Some(control) = &setup.control {
        control.set_nonblocking(true)?;
    }
    let SendSetup { machine, socket, control, source, start, on_event } = setup;
    let group = machine.group;
    let sending = Sending {
        machine: Sender::new(machine, clock.now()),
        setup: Rest { socket, control, group, source, start, on_event },
        commands,
        waker: waker.clone(),
        epoll,
        clock,
        connections: BTreeMap::new(),
        peers: BTreeMap::new(),
        strangers: BTreeMap::new(),
        next_id: 1,
        accept_from: Timestamp::ZERO,
        packet: Vec::new(),
        pending: None,
        outage: Outage::default(),
        started: None,
        last_sent: Timestamp::ZERO,
        done: false,
    };
    Ok((sending, SendHandle { commands: sender, waker }))
}

/// Addresses remembered, also of those who have gone and of whom the machine knows no more.
const PEERS_MAX: usize = 3 * MEMBERS_MAX;

impl Sending {
    /// Runs until everything offered is released.
    pub fn run(mut self) -> Result<SendOutcome, ProfileError> {
        take_short_turns();
        let mut batch = RecvBatch::new();
        while !self.done {
            self.take_commands();
            self.hear(&mut batch)?;
            let now = self.clock.now();
            self.begin(now);
            self.machine.handle_timeout(now);
            let more = self.transmit()?;
            self.settle();
            if !more && !self.done {
                self.sleep()?;
            }
        }
        self.end()?;
        self.outage.end().map_err(ProfileError::Network)?;
        let started = self.started.unwrap_or_default();
        let members = self.machine.members().map(|(id, report)| (self.peers[&id], *report));
        Ok(SendOutcome {
            stats: *self.machine.stats(),
            members: members.collect(),
            group_estimate: self.machine.group().estimate(),
            started,
            last_sent: self.last_sent,
            rate: self.machine.rate(),
        })
    }

    fn begin(&mut self, now: Timestamp) {
        let StartWhen { receivers, after } = self.setup.start;
        let late = after.is_some_and(|after| now.since(Timestamp::ZERO) >= after);
        if self.started.is_none() && (self.machine.joined() >= receivers || late) {
            self.started = Some(now);
            self.last_sent = now;
            self.machine.start(now);
            (self.setup.on_event)(now, SendEvent::Started);
        }
    }

    fn take_commands(&mut self) {
        self.waker.clear();
        while let Ok(command) = self.commands.try_recv() {
            let now = self.clock.now();
            match command {
                // One that is refused is never released: the owner has checked its size, and how many wait.
                Command::Offer(offer) => drop(self.machine.offer(now, offer)),
                Command::Finish => self.machine.finish(now),
            }
        }
    }

    /// What came by datagram and by connection.
    fn hear(&mut self, batch: &mut RecvBatch) -> Result<(), ProfileError> {
        for _ in 0..RECV_CALLS_MAX {
            if self.setup.socket.recv(batch).map_err(ProfileError::Network)? == 0 {
                break;
            }
            let now = self.clock.now();
            for datagram in batch.datagrams() {
                let known = self.strangers.get(datagram.from).copied();
                let Some(id) = known.or_else(|| {
                    let id = ReceiverId(self.next_id);
                    let room = self.strangers.len() < MEMBERS_MAX;
                    room.then(|| {
                        self.next_id += 1;
                        self.strangers.insert(*datagram.from, id);
                        self.peers.insert(id, *datagram.from);
                        id
                    })
                }) else {
                    continue;
                };
                // What is not understood is counted by the machine.
                let _ = self.machine.handle_datagram(now, id, datagram.bytes);
            }
        }
        let mut ready = [EpollEvent::empty(); READY_MAX];
        let count = match self.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(errno) => return Err(ProfileError::Network(errno.into())),
        };
        for event in &ready[..count] {
            self.read(ReceiverId(event.data() as u32));
        }
        self.accept();
        Ok(())
    }

    fn accept(&mut self) {
        let Some(control) = &self.setup.control else { return };
        while self.clock.now() >= self.accept_from {
            let (socket, peer) = match control.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // It ended before it was taken.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    self.accept_from = self.clock.now() + ACCEPT_PAUSE;
                    break;
                }
            };
            let Ok(connection) = Connection::new(socket) else { continue };
            let id = ReceiverId(self.next_id);
            let now = self.clock.now();
            if !self.machine.connect(now, id) {
                continue;
            }
            self.next_id += 1;
            self.peers.insert(id, peer);
            let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(id.0));
            if self.epoll.add(&connection, event).is_err() {
                self.machine.disconnect(now, id);
                continue;
            }
            self.connections.insert(id, connection);
            (self.setup.on_event)(now, SendEvent::Connected(peer));
        }
        if self.peers.len() > PEERS_MAX {
            let members = self.machine.members().map(|(id, _)| id);
            let known: BTreeSet<_> = members.chain(self.strangers.values().copied()).collect();
            self.peers.retain(|id, _| known.contains(id));
        }
    }

    fn read(&mut self, id: ReceiverId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.read();
        let now = self.clock.now();
        while let Some(message) = connection.next(self.machine.wire()) {
            // Counted by the machine.
            let _ = self.machine.handle_stream(now, id, message);
        }
    }

    /// Sends what may leave now. True: there may be more.
    fn transmit(&mut self) -> Result<bool, ProfileError> {
        if let Some(to) = self.pending {
            if !self.send(to)? {
                return Ok(false);
            }
            self.pending = None;
        }
        for _ in 0..TRANSMITS_MAX {
            let now = self.clock.now();
            let Some(Transmit { to, body }) = self.machine.poll_transmit(now, &mut self.packet)
            else {
                return Ok(false);
            };
            if let Some(body) = body {
                let header = self.packet.len();
                self.packet.resize(header + usize::from(body.len), 0);
                let bytes = &mut self.packet[header..];
                let read = self.setup.source.read(body.product, body.offset, bytes);
                read.map_err(ProfileError::Data)?;
                (self.setup.on_event)(now, SendEvent::Sent(body));
            }
            self.last_sent = now;
            if !self.send(to)? {
                self.pending = Some(to);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// False: the socket's buffer is full. What is refused is lost like any packet: who misses it asks again.
    fn send(&mut self, to: To) -> Result<bool, ProfileError> {
        let send = |address| self.setup.socket.send(&self.packet, address);
        match to {
            To::Group => {
                let Some(group) = self.setup.group else { return Ok(true) };
                let sent = send(group);
                self.outage.judge(self.clock.now(), sent).map_err(ProfileError::Network)
            }
            To::Each => {
                let all = self.machine.joined_ids().filter_map(|id| self.address(id));
                // What one of them takes is not refused, and what finds the buffer full is lost like any.
                if let Some(sent) = all.map(send).reduce(Result::or) {
                    self.judge_members(sent)?;
                }
                Ok(true)
            }
            To::Datagram(id) => {
                let Some(address) = self.address(id) else { return Ok(true) };
                let sent = send(address);
                self.judge_members(sent)
            }
            To::Stream(id) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.outbox().extend_from_slice(&self.packet);
                    connection.write();
                    self.machine.set_ready(self.clock.now(), id, connection.is_ready());
                }
                Ok(true)
            }
        }
    }

    /// What became of a packet to members. Who cannot be sent to once something has left is gone, and the others' report stands.
    fn judge_members(&mut self, sent: io::Result<bool>) -> Result<bool, ProfileError> {
        match self.outage.left {
            true => Ok(sent.unwrap_or(true)),
            false => self.outage.judge(self.clock.now(), sent).map_err(ProfileError::Network),
        }
    }

    /// Where datagrams for one member go.
    fn address(&self, id: ReceiverId) -> Option<SocketAddr> {
        let port = self.machine.member(id)?.port?;
        let mut address = *self.peers.get(&id)?;
        address.set_port(port);
        Some(address)
    }

    /// Tells the owner, and closes what is closed.
    fn settle(&mut self) {
        let now = self.clock.now();
        let mut closed = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.is_waiting() {
                connection.write();
            }
            self.machine.set_ready(now, *id, connection.is_ready());
            if connection.is_closed() {
                closed.push(*id);
            }
        }
        for id in closed {
            // Its descriptor leaves the epoll set with it.
            self.connections.remove(&id);
            self.machine.disconnect(now, id);
            (self.setup.on_event)(now, SendEvent::Gone(self.peers[&id]));
        }
        while let Some(event) = self.machine.poll_event() {
            let event = match event {
                SenderEvent::Rate(line) => SendEvent::Rate(self.peers[&line.from], line),
                SenderEvent::Complete(id, product) => SendEvent::Complete(self.peers[&id], product),
                SenderEvent::Released(product) => SendEvent::Released(product),
                SenderEvent::Done => {
                    self.done = true;
                    continue;
                }
            };
            (self.setup.on_event)(now, event);
        }
    }

    /// When to look again, whatever comes.
    fn deadline(&self) -> Timestamp {
        let mut deadline = match self.pending {
            // Its turn has come already, and nothing leaves before it: room in the socket's buffer ends the wait.
            Some(_) => self.clock.now() + FULL_MAX,
            None => self.machine.poll_timeout().unwrap_or(Timestamp::MAX),
        };
        if self.started.is_none()
            && let Some(after) = self.setup.start.after
        {
            deadline = deadline.min(Timestamp::ZERO + after);
        }
        // A connection that was full is looked at soon; epoll tells only of what comes.
        if self.connections.values().any(Connection::is_waiting) {
            deadline = deadline.min(self.clock.now() + Duration::from_millis(2));
        }
        deadline
    }

    fn sleep(&self) -> Result<(), ProfileError> {
        let socket = match self.pending {
            Some(_) => Interest::ReadWrite(self.setup.socket.as_fd()),
            None => Interest::Read(self.setup.socket.as_fd()),
        };
        let [epoll, waker] = [self.epoll.0.as_fd(), self.waker.as_fd()].map(Interest::Read);
        let (mut interests, mut deadline) = (vec![socket, epoll, waker], self.deadline());
        match &self.setup.control {
            Some(_) if self.clock.now() < self.accept_from => {
                deadline = deadline.min(self.accept_from);
            }
            Some(control) => interests.push(Interest::Read(control.as_fd())),
            None => {}
        }
        wait(&self.clock, deadline, &interests).map_err(ProfileError::Network)?;
        Ok(())
    }

    /// Sends what still waits on connections, and lets receivers close them.
    fn end(&mut self) -> Result<(), ProfileError> {
        let until = self.clock.now() + LINGER;
        loop {
            while self.transmit()? {}
            let now = self.clock.now();
            if self.connections.is_empty() || now >= until {
                return Ok(());
            }
            for (id, connection) in &mut self.connections {
                // One that was full may not have been given all that is for it.
                let has_all = connection.is_ready();
                connection.write();
                self.machine.set_ready(now, *id, connection.is_ready());
                if has_all && !connection.is_waiting() {
                    connection.finish();
                }
                connection.read();
                while connection.next(self.machine.wire()).is_some() {}
            }
            self.connections.retain(|_, connection| !connection.is_closed());
            let soon = (self.clock.now() + Duration::from_millis(2)).min(until);
            wait(&self.clock, soon, &[]).map_err(ProfileError::Network)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ACCEPT_PAUSE, OUTAGE_MAX, Outage, ProductSource, RECV_CALLS_MAX, SendSetup, Sending,
        StartWhen, prepare,
    };
    use crate::{Interest, RecvBatch, UnicastSocket, Woken, wait};
    use downpour_proto::profile::{Mode, Offer, SenderConfig, SenderProfile, To, afdp, fmtp};
    use downpour_proto::rate::AfdpLimits;
    use downpour_proto::{Duration, Rate, ReceiverId, Timestamp};
    use socket2::{Domain, Socket, Type};
    use std::io;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::fd::AsFd;

    struct Zeros;

    impl ProductSource for Zeros {
        fn read(&mut self, _product: u32, _offset: u64, _bytes: &mut [u8]) -> io::Result<()> {
            Ok(())
        }
    }

    fn sending(profile: SenderProfile, mode: Mode) -> Sending {
        let home = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let setup = SendSetup {
            machine: SenderConfig { profile, mode, group: None },
            socket: UnicastSocket::bind(home, 1 << 20).unwrap(),
            control: None,
            source: Box::new(Zeros),
            start: StartWhen::default(),
            on_event: Box::new(|_, _| {}),
        };
        prepare(setup).unwrap().0
    }

    #[test]
    fn who_cannot_be_sent_to_ends_the_session_for_nobody() {
        let mut sending = sending(afdp::sender(Mode::Unicast, AfdpLimits::Rabid), Mode::Unicast);
        let (now, id) = (sending.clock.now(), ReceiverId(1));
        assert!(sending.machine.connect(now, id));
        sending.peers.insert(id, SocketAddr::from((Ipv4Addr::LOCALHOST, 9)));
        // JOIN with port 0, to which nothing can be sent.
        sending.machine.handle_stream(now, id, &[0, 5, 2, 0, 0]).unwrap();
        let address = sending.address(id).unwrap();
        sending.packet = vec![7; 100];
        assert!(sending.setup.socket.send(&sending.packet, address).is_err());
        for to in [To::Each, To::Datagram(id)] {
            assert!(sending.send(to).unwrap());
            let alone = std::mem::take(&mut sending.outage);
            assert!(alone.end().is_err(), "{to:?}: nothing has left");
        }
        // Another one can be sent to.
        let (other, home) = (ReceiverId(2), sending.setup.socket.local_addr().unwrap());
        assert!(sending.machine.connect(now, other));
        sending.peers.insert(other, home);
        let [high, low] = home.port().to_be_bytes();
        sending.machine.handle_stream(now, other, &[0, 5, 2, high, low]).unwrap();
        for to in [To::Each, To::Each, To::Datagram(id)] {
            assert!(sending.send(to).unwrap());
            assert!(sending.outage.left && sending.outage.refused.is_none());
        }
    }

    #[test]
    fn a_flood_of_datagrams_does_not_hold_a_turn() {
        let mut sending = sending(fmtp::sender(Rate::from_mbps(1), fmtp::KEEP), Mode::Multicast);
        let to = sending.setup.socket.local_addr().unwrap();
        let stranger = UnicastSocket::towards(to, 1 << 16).unwrap();
        // More than as many calls take.
        for _ in 0..64 * RECV_CALLS_MAX {
            while !stranger.send(b"noise", to).unwrap() {
                std::thread::yield_now();
            }
        }
        sending.hear(&mut RecvBatch::new()).unwrap();
        let left = [Interest::Read(sending.setup.socket.as_fd())];
        let soon = sending.clock.now() + Duration::from_secs(10);
        assert_eq!(wait(&sending.clock, soon, &left).unwrap(), Woken::Ready);
    }

    #[test]
    fn who_cannot_be_taken_ends_no_sleep() {
        let mut sending = sending(fmtp::sender(Rate::from_mbps(1), fmtp::KEEP), Mode::Multicast);
        // It does not listen: to accept fails, and it is always ready, as a listener is without descriptors.
        let deaf = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        sending.setup.control = Some(deaf.into());
        sending.hear(&mut RecvBatch::new()).unwrap();
        let paused_until = sending.accept_from;
        assert!(paused_until >= Timestamp::ZERO + ACCEPT_PAUSE);
        sending.sleep().unwrap();
        assert!(sending.clock.now() >= paused_until);
    }

    #[test]
    fn only_an_outage_that_lasts_or_from_the_beginning_ends_the_session() {
        let refused = || Err(io::ErrorKind::NetworkUnreachable.into());
        let (begun, ms) = (Timestamp::ZERO, Duration::from_millis(1));
        let mut outage = Outage::default();
        assert!(outage.judge(begun, refused()).unwrap());
        assert!(outage.judge(begun + OUTAGE_MAX - ms, refused()).unwrap());
        assert!(!outage.judge(begun + OUTAGE_MAX, Ok(false)).unwrap());
        assert!(outage.judge(begun + OUTAGE_MAX, refused()).unwrap(), "another one");
        assert!(outage.judge(begun + 2 * OUTAGE_MAX, refused()).is_err());
        assert!(outage.end().is_ok());
        let mut outage = Outage::default();
        assert!(outage.judge(begun, refused()).unwrap());
        assert!(outage.end().is_err(), "nothing has left");
        assert!(Outage::default().end().is_ok(), "there was nothing to send");
    }

    #[test]
    fn who_waits_for_room_in_the_socket_does_not_wait_for_what_is_due() {
        let profile = fmtp::sender(Rate::from_mbps(1000), fmtp::KEEP);
        let mut sending = sending(profile, Mode::Multicast);
        let now = sending.clock.now();
        assert!(sending.machine.connect(now, ReceiverId(1)));
        sending.machine.start(now);
        let offer = Offer { product: 1, size: 1 << 20, offered_unix_ns: 0, metadata: Vec::new() };
        assert!(sending.machine.offer(now, offer));
        // The first packet of a burst: the others are due.
        let transmit = sending.machine.poll_transmit(now, &mut sending.packet).unwrap();
        assert_eq!(transmit.to, To::Group);
        assert!(sending.deadline() <= sending.clock.now());
        sending.pending = Some(transmit.to);
        let now = sending.clock.now();
        assert!(sending.deadline() > now);
    }
}
