//! The receiver's driver: one thread.
//!
//! `bmtp` hears a group and answers the address that the data come from; `fmtp` hears a group and has a connection;
//! `afdp` has a connection, and is told there what to hear. Where there is a connection, packets are taken only
//! from the address at its other end; where there is none, from the first that sent one that fits.

use super::connection::Connection;
use super::{ProductSink, ProfileError};
use crate::{
    Clock, Group, Interest, Interface, MulticastReceiver, RecvBatch, RecvOptions, UnicastSocket,
    take_short_turns, wait,
};
use downpour_proto::profile::{
    Interval, Mode, Placement, Product, Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats, Via,
};
use downpour_proto::{Duration, Rng, Timestamp};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// Receive calls in one turn.
const RECV_CALLS_MAX: usize = 8;
/// How long the sender may take to read the last message.
const LINGER: Duration = Duration::from_secs(2);
const BUFFER_LEN: usize = 4 << 20;

/// What is listened to.
#[derive(Debug)]
pub enum Hearing {
    /// A group.
    Group(MulticastReceiver),
    /// What the connection will tell; by this interface, or the one with the route there.
    Told(Option<String>),
}

impl Hearing {
    /// This group on this interface, from now on: before the sender is told that somebody is here, for it may begin then.
    pub fn group(group: &Group, interface: &Interface) -> Result<Self, ProfileError> {
        hear_group(group, interface).map(Self::Group)
    }
}

/// What a receiver's driver needs.
pub struct ReceiveSetup {
    /// The machine's configuration.
    pub machine: ReceiverConfig,
    /// What is listened to.
    pub hearing: Hearing,
    /// The connection to the sender.
    pub control: Option<TcpStream>,
    /// Where products go.
    pub sink: Box<dyn ProductSink>,
    /// Share of the datagrams to drop unseen, 0 ..= 1.
    pub inject_loss: f64,
    /// Longest wait for the first packet, and then for the next.
    pub patience: [Duration; 2],
    /// Told what happens.
    pub on_event: Box<dyn FnMut(Timestamp, ReceiveEvent<'_>) + Send>,
}

/// What the owner may want to tell.
#[derive(Clone, Copy, Debug)]
pub enum ReceiveEvent<'a> {
    /// A product is expected: number, bytes, metadata.
    Opened(u32, u64, &'a [u8]),
    /// About a second is over.
    Interval(&'a Interval),
    /// All of it is here.
    Complete(u32, &'a Product),
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveOutcome {
    /// Counters.
    pub stats: ReceiverStats,
    /// Datagrams that the socket's buffer had no room for.
    pub dropped: u32,
    /// Datagrams from elsewhere.
    pub foreign: u64,
    /// When the first packet came.
    pub first: Timestamp,
    /// When the last did.
    pub last: Timestamp,
}

enum Ear {
    None,
    Group(MulticastReceiver),
    Own(UnicastSocket),
}

impl Ear {
    fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        match self {
            Self::None => Ok(0),
            Self::Group(socket) => socket.recv(batch),
            Self::Own(socket) => socket.recv(batch),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::None => None,
            Self::Group(socket) => Some(socket.as_fd()),
            Self::Own(socket) => Some(socket.as_fd()),
        }
    }

    /// Datagrams that the socket's buffer had no room for.
    fn drops(&self) -> io::Result<u32> {
        match self {
            Self::None => Ok(0),
            Self::Group(socket) => socket.drops(),
            Self::Own(socket) => socket.drops(),
        }
    }
}

struct Receiving {
    machine: Receiver,
    ear: Ear,
    interface: Option<String>,
    voice: Option<UnicastSocket>,
    connection: Option<Connection>,
    sink: Box<dyn ProductSink>,
    on_event: Box<dyn FnMut(Timestamp, ReceiveEvent<'_>) + Send>,
    clock: Clock,
    rng: Rng,
    inject_loss: f64,
    source: Option<SocketAddr>,
    heard: bool,
    over: bool,
    outcome: ReceiveOutcome,
}

/// Receives until the sink wants no more, or it cannot go on; what came until then is told in both cases.
pub fn receive(setup: ReceiveSetup) -> (ReceiveOutcome, Result<(), ProfileError>) {
    let ReceiveSetup { machine, hearing, control, sink, inject_loss, patience, on_event } = setup;
    let clock = Clock::start();
    let rng = Rng::new(!machine.seed);
    let (ear, interface) = match hearing {
        Hearing::Group(socket) => (Ear::Group(socket), None),
        Hearing::Told(interface) => (Ear::None, interface),
    };
    let connection = match control.map(Connection::new).transpose() {
        Ok(connection) => connection,
        Err(error) => return (ReceiveOutcome::default(), Err(ProfileError::Network(error))),
    };
    let mut receiving = Receiving {
        machine: Receiver::new(machine, clock.now()),
        ear,
        interface,
        voice: None,
        connection,
        sink,
        on_event,
        clock,
        rng,
        inject_loss,
        source: None,
        heard: false,
        over: false,
        outcome: ReceiveOutcome::default(),
    };
    let ended = receiving.run(patience);
    receiving.take_stock(ended)
}

fn hear_group(group: &Group, interface: &Interface) -> Result<MulticastReceiver, ProfileError> {
    let joined = MulticastReceiver::join(group, interface, &RecvOptions::default());
    joined.map_err(|error| ProfileError::Network(io::Error::other(error)))
}

fn own_socket(address: SocketAddr) -> Result<UnicastSocket, ProfileError> {
    UnicastSocket::bind(address, BUFFER_LEN)
        .map_err(|error| ProfileError::Network(io::Error::other(error)))
}

const fn any(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

impl Receiving {
    fn run(&mut self, patience: [Duration; 2]) -> Result<(), ProfileError> {
        take_short_turns();
        let mut batch = RecvBatch::new();
        let mut silent_since = self.clock.now();
        while !self.over {
            let before = self.outcome.last;
            self.hear(&mut batch)?;
            self.read()?;
            self.machine.handle_timeout(self.clock.now());
            self.settle()?;
            self.speak()?;
            if self.over {
                break;
            }
            if self.outcome.last != before {
                silent_since = self.outcome.last;
            }
            let silent_until = silent_since + patience[usize::from(self.heard)];
            if self.clock.now() >= silent_until {
                return Err(ProfileError::Silent);
            }
            if self.connection.as_ref().is_some_and(Connection::is_closed) {
                if self.sink.closed() && !self.machine.waits_for_begin() {
                    break;
                }
                return Err(ProfileError::Closed);
            }
            self.sleep(silent_until)?;
        }
        self.end()
    }

    /// However it ended.
    fn take_stock(
        mut self,
        ended: Result<(), ProfileError>,
    ) -> (ReceiveOutcome, Result<(), ProfileError>) {
        self.outcome.stats = *self.machine.stats();
        match self.ear.drops() {
            Ok(dropped) => (ReceiveOutcome { dropped, ..self.outcome }, ended),
            Err(error) => (self.outcome, ended.and(Err(ProfileError::Network(error)))),
        }
    }

    /// Whether packets from there are the sender's.
    fn is_source(&self, from: SocketAddr) -> bool {
        match (&self.connection, self.source) {
            (Some(connection), _) => {
                connection.peer().ip().to_canonical() == from.ip().to_canonical()
            }
            (None, Some(source)) => source == from,
            (None, None) => true,
        }
    }

    fn hear(&mut self, batch: &mut RecvBatch) -> Result<(), ProfileError> {
        for _ in 0..RECV_CALLS_MAX {
            if self.ear.recv(batch).map_err(ProfileError::Network)? == 0 {
                break;
            }
            let now = self.clock.now();
            for datagram in batch.datagrams() {
                if !self.is_source(*datagram.from) {
                    self.outcome.foreign += 1;
                    continue;
                }
                if self.inject_loss > 0.0 && self.rng.unit() < self.inject_loss {
                    continue;
                }
                // What is not understood is counted by the machine.
                let Ok(placement) = self.machine.handle_datagram(now, datagram.bytes) else {
                    continue;
                };
                self.source.get_or_insert(*datagram.from);
                if !self.heard {
                    self.heard = true;
                    self.outcome.first = now;
                }
                self.outcome.last = now;
                if let Some(placement) = placement {
                    self.open_new(now)?;
                    self.place(&placement, &datagram.bytes[placement.bytes.clone()])?;
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), ProfileError> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        connection.read();
        let now = self.clock.now();
        while let Some(message) = connection.next(self.machine.wire()) {
            let placement = self.machine.handle_stream(now, message);
            self.outcome.last = now;
            if let Ok(Some(placement)) = placement {
                let bytes = &message[placement.bytes.clone()];
                self.open_new(now)?;
                self.place(&placement, bytes)?;
            }
        }
        connection.write();
        self.connection = Some(connection);
        Ok(())
    }

    fn place(&mut self, placement: &Placement, bytes: &[u8]) -> Result<(), ProfileError> {
        let written = self.sink.write(placement.product, placement.offset, bytes);
        written.map_err(ProfileError::Data)
    }

    /// A product's first segment may have opened it.
    fn open_new(&mut self, now: Timestamp) -> Result<(), ProfileError> {
        while let Some(event) = self.machine.poll_opened() {
            self.tell(now, event)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), ProfileError> {
        let now = self.clock.now();
        while let Some(event) = self.machine.poll_event() {
            self.tell(now, event)?;
        }
        Ok(())
    }

    fn tell(&mut self, now: Timestamp, event: ReceiverEvent) -> Result<(), ProfileError> {
        match event {
            ReceiverEvent::Welcome { mode, group } => self.welcome(now, mode, group)?,
            ReceiverEvent::Opened { product, size, metadata, offered_unix_ns } => {
                let opened = self.sink.open(product, size, &metadata, offered_unix_ns);
                opened.map_err(ProfileError::Data)?;
                (self.on_event)(now, ReceiveEvent::Opened(product, size, &metadata));
            }
            ReceiverEvent::Complete(number, product) => {
                self.over |= self.sink.complete(number, &product).map_err(ProfileError::Data)?;
                (self.on_event)(now, ReceiveEvent::Complete(number, &product));
            }
            ReceiverEvent::Rejected(number) => {
                self.over |= self.sink.reject(number).map_err(ProfileError::Data)?;
            }
            ReceiverEvent::Interval(interval) => {
                (self.on_event)(now, ReceiveEvent::Interval(&interval));
            }
        }
        Ok(())
    }

    /// Opens what the sender says it will send to.
    fn welcome(
        &mut self,
        now: Timestamp,
        mode: Mode,
        group: Option<SocketAddr>,
    ) -> Result<(), ProfileError> {
        let foreign = |why: &str| ProfileError::Foreign(why.to_owned());
        let peer = self.connection.as_ref().map_or(SocketAddr::from(([0; 4], 0)), |c| c.peer());
        let mut port = 0;
        self.ear = match (mode, group) {
            (Mode::Multicast, Some(group)) => {
                let interface = Interface::choose(self.interface.as_deref(), group.ip());
                let interface =
                    interface.map_err(|error| ProfileError::Network(io::Error::other(error)))?;
                let group = Group::new(group, None).map_err(|error| foreign(&error.to_string()))?;
                Ear::Group(hear_group(&group, &interface)?)
            }
            (Mode::Broadcast, Some(group)) => {
                Ear::Own(own_socket((any(group), group.port()).into())?)
            }
            (Mode::Unicast, _) => {
                let like = SocketAddr::new(peer.ip().to_canonical(), 0);
                let socket = own_socket((any(like), 0).into())?;
                port = socket.local_addr().map_err(ProfileError::Network)?.port();
                Ear::Own(socket)
            }
            _ => return Err(foreign("a mode without a group")),
        };
        self.machine.join(now, port);
        Ok(())
    }

    fn speak(&mut self) -> Result<(), ProfileError> {
        while let Some((via, message)) = self.machine.poll_transmit() {
            match via {
                Via::Stream => {
                    if let Some(connection) = &mut self.connection {
                        connection.outbox().extend_from_slice(&message);
                    }
                }
                Via::Datagram => {
                    let Some(source) = self.source else { continue };
                    if self.voice.is_none() {
                        let voice = UnicastSocket::towards(source, BUFFER_LEN);
                        self.voice =
                            Some(voice.map_err(|e| ProfileError::Network(io::Error::other(e)))?);
                    }
                    if let Some(voice) = &self.voice {
                        // One that is lost, or that nobody listens to any more, is followed by others.
                        let _ = voice.send(&message, source);
                    }
                }
            }
        }
        if let Some(connection) = &mut self.connection {
            connection.write();
        }
        Ok(())
    }

    fn sleep(&self, silent_until: Timestamp) -> Result<(), ProfileError> {
        let deadline = self.machine.poll_timeout().unwrap_or(Timestamp::MAX).min(silent_until);
        let ear = self.ear.fd().map(Interest::Read);
        let connection = self.connection.as_ref().map(|connection| match connection.is_waiting() {
            true => Interest::ReadWrite(connection.as_fd()),
            false => Interest::Read(connection.as_fd()),
        });
        let interests: Vec<Interest<'_>> = ear.into_iter().chain(connection).collect();
        wait(&self.clock, deadline, &interests).map_err(ProfileError::Network)?;
        Ok(())
    }

    /// Sends the last message, and waits until the sender has it.
    fn end(&mut self) -> Result<(), ProfileError> {
        self.speak()?;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let until = self.clock.now() + LINGER;
        let mut finished = false;
        while !connection.is_closed() && self.clock.now() < until {
            connection.write();
            if !connection.is_waiting() && !finished {
                finished = true;
                connection.finish();
            }
            connection.read();
            while connection.next(self.machine.wire()).is_some() {}
            if !connection.is_closed() {
                let interests = [match connection.is_waiting() {
                    true => Interest::ReadWrite(connection.as_fd()),
                    false => Interest::Read(connection.as_fd()),
                }];
                wait(&self.clock, until, &interests).map_err(ProfileError::Network)?;
            }
        }
        Ok(())
    }
}
