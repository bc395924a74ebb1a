//! A sender and receivers over real sockets: loopback multicast, sealed, with injected loss; every byte is
//! compared. No control plane: the test hands out the secrets and serves the pulls itself.

#[path = "../../downpour/tests/site/ports.rs"]
mod ports;

use crate::ports::port;
use downpour_proto::receiver::Pull;
use downpour_proto::sender::{Delivery, SenderStats};
use downpour_proto::wire::{Header, Kind};
use downpour_proto::{
    BlockId, Code, Epoch, Geometry, PULL_SHARE_DEFAULT, PacketNumber, Parity, Rate, ReceiverConfig,
    ReceiverId, Rounds, SenderConfig, StreamId, rate,
};
use downpour_transport::session::{
    Broken, ReceiveEvent, ReceiveHandle, ReceiveSetup, SendEvent, SendHandle, SendSetup, StreamOut,
};
use downpour_transport::{
    Accepted, BlockSink, BlockSource, Codec, Group, Interface, MulticastReceiver, RecvBatch,
    RecvOptions, SealKeys, Secret, SendOptions, SourceError, Spare, Suite, UnicastSocket,
};
use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After this long the session hangs: far more than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

struct Bytes {
    bytes: Vec<u8>,
    geometry: Geometry,
    /// It stands for a session of products, whose blocks end with zeros.
    products: bool,
}

impl Bytes {
    fn random(len: usize, geometry: Geometry) -> Self {
        let mut state = 1u64;
        let bytes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        Self { bytes: bytes.take(len).collect(), geometry, products: false }
    }

    /// As a session of products has it: each block ends with other zeros, up to more than a symbol of them.
    fn products(len: usize, geometry: Geometry) -> Self {
        let mut bytes = Self { products: true, ..Self::random(len, geometry) };
        for (number, block) in bytes.bytes.chunks_mut(geometry.block_len() as usize).enumerate() {
            let from = block.len() - (number * 97 % 2_000).min(block.len());
            block[from..].fill(0);
        }
        bytes
    }

    /// All blocks, and how many symbols each has.
    fn blocks(&self) -> Vec<(BlockId, u16)> {
        let len = self.bytes.len() as u64;
        let blocks = 0..self.geometry.blocks(len) as u32;
        blocks.map(|n| (BlockId::data(n).unwrap(), self.geometry.symbols_of(n, len))).collect()
    }

    fn block(&self, block: BlockId) -> Vec<u8> {
        let k = self.geometry.symbols_of(block.number(), self.bytes.len() as u64);
        let mut bytes = vec![0; usize::from(k) * usize::from(self.geometry.symbol_len)];
        self.read(block, &mut bytes).unwrap();
        bytes
    }
}

impl BlockSource for Bytes {
    fn read(&self, block: BlockId, buf: &mut [u8]) -> Result<usize, SourceError> {
        let start = block.number() as usize * self.geometry.block_len() as usize;
        let len = buf.len().min(self.bytes.len() - start);
        buf[..len].copy_from_slice(&self.bytes[start..start + len]);
        Ok(len)
    }
}

struct Sink {
    source: Arc<Bytes>,
    stored: AtomicU64,
    seen: Mutex<Vec<bool>>,
    done: Sender<()>,
}

impl BlockSink for Sink {
    fn seed(&self, _: BlockId, _: &mut [u8]) -> Vec<Range<u16>> {
        Vec::new()
    }

    fn accept(&self, block: BlockId, data: &[u8]) -> Accepted {
        assert!(self.source.block(block) == data, "{block} has wrong bytes");
        let mut seen = self.seen.lock().unwrap();
        assert!(!std::mem::replace(&mut seen[block.number() as usize], true), "{block} came twice");
        if self.stored.fetch_add(1, Ordering::Relaxed) + 1 == seen.len() as u64 {
            let _ = self.done.send(());
        }
        Accepted::Kept
    }
}

struct Net {
    source: Arc<Bytes>,
    group: Group,
    interface: Interface,
    secret: Secret,
}

impl Net {
    fn receiver(
        &self,
        id: u32,
        loss: f64,
        feedback: SocketAddr,
        done: Sender<()>,
    ) -> (ReceiveHandle, Receiver<Pull>) {
        let (orders, ordered) = channel();
        let blocks = self.source.blocks().len();
        let sink = Sink {
            source: Arc::clone(&self.source),
            stored: AtomicU64::new(0),
            seen: Mutex::new(vec![false; blocks]),
            done,
        };
        let setup = self.receive_setup(id, loss, feedback, Arc::new(sink));
        let on_event = Box::new(move |event| {
            if let ReceiveEvent::Pull(pull) = event {
                let _ = orders.send(pull);
            }
        });
        (ReceiveHandle::spawn(ReceiveSetup { on_event, ..setup }).unwrap(), ordered)
    }

    fn receive_setup(
        &self,
        id: u32,
        loss: f64,
        feedback: SocketAddr,
        sink: Arc<dyn BlockSink>,
    ) -> ReceiveSetup {
        let options = RecvOptions::default();
        let stream = MulticastReceiver::join(&self.group, &self.interface, &options).unwrap();
        ReceiveSetup {
            machine: ReceiverConfig {
                geometry: self.source.geometry,
                stream: StreamId(7),
                me: ReceiverId(id),
                feedback: Box::new(Rounds),
                partial_blocks: 64,
                pulls: downpour_proto::receiver::PULLS_DEFAULT,
                resume: false,
                on_stream: true,
                greets: false,
                products: self.source.products,
            },
            seed: u64::from(id),
            stream: Some(stream),
            unicast: false,
            feedback,
            suite: Suite::preferred(),
            open: self.source.products,
            epoch: Epoch(0),
            secret: self.secret.clone(),
            packet: PacketNumber(0),
            feedback_secret: Secret::new([id as u8; 32]),
            sink,
            inject_loss: loss,
            spare: Spare::new(0),
            trace: None,
            on_event: Box::new(|_| {}),
        }
    }

    fn send_setup(&self, rate: Rate, feedback: UnicastSocket) -> SendSetup {
        let (group, interface) = (self.group, self.interface.clone());
        SendSetup {
            machine: SenderConfig {
                geometry: self.source.geometry,
                stream: StreamId(7),
                epoch: Epoch(0),
                rate: Box::new(rate::Fixed::new(rate)),
                recovery: Box::new(Parity::default()),
                initial_rtt: Duration::from_millis(1),
                window_blocks: 64,
                pull_share: PULL_SHARE_DEFAULT,
            },
            stream: Some(StreamOut { group, interface, options: SendOptions::default() }),
            unicast: false,
            feedback,
            suite: Suite::preferred(),
            open: self.source.products,
            secret: self.secret.clone(),
            source: Arc::clone(&self.source) as Arc<dyn BlockSource>,
            trace: None,
            on_event: Box::new(|event| assert!(!matches!(event, SendEvent::SourceFailed { .. }))),
        }
    }

    fn serve(&self, handle: &ReceiveHandle, order: Pull) {
        match order {
            Pull::Bytes { block } => handle.pulled_bytes(block, self.source.block(block)),
            Pull::Repair { block, from, until } => {
                let Geometry { symbol_len, code, .. } = self.source.geometry;
                let symbol_len = usize::from(symbol_len);
                let mut symbols = vec![0; usize::from(until - from) * symbol_len];
                let bytes = self.source.block(block);
                let mut codec = Codec::new(code);
                codec.encode(&bytes, symbol_len, from..until, &mut symbols).unwrap();
                handle.pulled_repair(block, from..until, symbols);
            }
        }
    }
}

/// Delivers `bytes` to `receivers`; what was sent.
fn deliver(bytes: Bytes, receivers: u32, loss: f64, rate: Rate, port: u16) -> SenderStats {
    let len = bytes.bytes.len();
    let net = Net { source: Arc::new(bytes), ..net(0, port) };
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let feedback_to = feedback.local_addr().unwrap();
    let (done, finished) = channel();
    let handles: Vec<_> =
        (1..=receivers).map(|id| net.receiver(id, loss, feedback_to, done.clone())).collect();
    let sender = SendHandle::spawn(net.send_setup(rate, feedback)).unwrap();
    for id in 1..=receivers {
        sender.join(ReceiverId(id), Delivery::Stream, Secret::new([id as u8; 32]));
    }
    sender.offer(net.source.blocks());
    sender.finish();
    sender.start();
    let begun = Instant::now();
    let mut complete = 0;
    while complete < receivers {
        assert!(begun.elapsed() < PATIENCE, "{complete} of {receivers} are complete");
        complete += u32::from(finished.recv_timeout(Duration::from_millis(5)).is_ok());
        for (handle, ordered) in &handles {
            ordered.try_iter().for_each(|order| net.serve(handle, order));
        }
    }
    let stats = sender.stop().stats;
    eprintln!("{len} bytes to {receivers} in {:?}: {stats:?}", begun.elapsed());
    stats
}

#[test]
fn one_small_object_is_one_symbol() {
    let bytes = Bytes::random(133, Geometry::IPV4);
    assert_eq!(deliver(bytes, 2, 0.0, Rate::from_mbps(50), port()).source_symbols, 1);
}

#[test]
fn every_byte_arrives_through_loss() {
    for code in [Code::ReedSolomon, Code::Cauchy] {
        let bytes = Bytes::random(64 << 20, Geometry::full(1440, code));
        let stats = deliver(bytes, 4, 0.05, Rate::from_mbps(400), port());
        let (source, repair) = (stats.source_symbols, stats.repair_symbols);
        assert_eq!(source, (64u64 << 20).div_ceil(1440));
        assert_eq!(stats.cut_bytes, 0);
        assert!(repair > source / 20, "{code:?}: {repair} repair symbols cannot have sufficed");
    }
}

/// Who is on the group without the session's secret hears how much is sent, and no content.
#[test]
fn what_a_stranger_hears_on_the_group_shows_no_content() {
    /// Too long for two random pieces to be the same.
    const PIECE: usize = 16;
    let bytes = Bytes::random(100_000, Geometry::IPV4);
    let pieces: HashSet<_> = bytes.bytes.chunks_exact(PIECE).map(<[u8]>::to_vec).collect();
    let port = port();
    let Net { group, interface, .. } = net(0, port);
    // All of it finds room in a socket.
    let stranger = MulticastReceiver::join(&group, &interface, &RecvOptions::default()).unwrap();
    let symbols = deliver(bytes, 1, 0.0, Rate::from_mbps(50), port).source_symbols;
    let (mut batch, mut heard) = (RecvBatch::new(), 0);
    while stranger.recv(&mut batch).is_ok_and(|messages| messages > 0) {
        for datagram in batch.datagrams() {
            heard += 1;
            let shown = datagram.bytes.windows(PIECE).find(|window| pieces.contains(*window));
            assert_eq!(shown, None, "in datagram {heard}");
        }
    }
    assert!(heard >= symbols, "{heard} datagrams of {symbols} symbols");
}

/// What is not sent of a block's zeros is there all the same, also where symbols were lost (`docs/protocol.md#PROD-13`).
#[test]
fn blocks_whose_last_symbol_is_cut_arrive_whole_through_loss() {
    let geometry = Geometry { block_symbols: 16, ..Geometry::full(1440, Code::Mixed) };
    let stats = deliver(Bytes::products(8 << 20, geometry), 3, 0.05, Rate::from_mbps(200), port());
    let blocks = (8u64 << 20).div_ceil(geometry.block_len());
    let mean = stats.cut_bytes / blocks;
    assert!((500..1_400).contains(&mean), "{mean} bytes were cut of each block");
}

/// A disk driver with a bug in it.
struct Faulty;

impl BlockSource for Faulty {
    fn read(&self, block: BlockId, _: &mut [u8]) -> Result<usize, SourceError> {
        panic!("no reading of {block}");
    }
}

impl BlockSink for Faulty {
    fn seed(&self, _: BlockId, _: &mut [u8]) -> Vec<Range<u16>> {
        Vec::new()
    }

    fn accept(&self, block: BlockId, _: &[u8]) -> Accepted {
        panic!("no storing of {block}");
    }
}

fn net(len: usize, port: u16) -> Net {
    Net {
        source: Arc::new(Bytes::random(len, Geometry::IPV4)),
        group: Group::new(SocketAddr::from(([239, 77, 3, 1], port)), None).unwrap(),
        interface: Interface::named("lo").unwrap(),
        secret: Secret::random().unwrap(),
    }
}

/// Waits until `what` holds.
fn until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE, "it does not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn only_block(sender: &SendHandle) {
    sender.join(ReceiverId(1), Delivery::Stream, Secret::new([1; 32]));
    sender.offer(vec![(BlockId::data(0).unwrap(), 1)]);
    sender.finish();
    sender.start();
}

#[test]
fn a_source_that_panics_ends_the_sender_with_its_words() {
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let (told, broken) = channel();
    let on_event = Box::new(move |event| {
        if let SendEvent::Broken(broken) = event {
            let _ = told.send(broken);
        }
    });
    let setup = net(100, port()).send_setup(Rate::from_mbps(10), feedback);
    let sender =
        SendHandle::spawn(SendSetup { source: Arc::new(Faulty), on_event, ..setup }).unwrap();
    only_block(&sender);
    let Broken { what } = broken.recv_timeout(PATIENCE).expect("told in time");
    assert!(what.contains("no reading of") && what.contains("downpour-read"), "{what}");
    sender.stop();
}

#[test]
fn a_callback_that_panics_ends_the_sender_too() {
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let (told, broken) = channel();
    let on_event = Box::new(move |event| match event {
        SendEvent::Broken(broken) => told.send(broken).unwrap(),
        event => panic!("no handling of {event:?}"),
    });
    let setup = net(100, port()).send_setup(Rate::from_mbps(10), feedback);
    let sender = SendHandle::spawn(SendSetup { on_event, ..setup }).unwrap();
    // Nobody is there: all is done at once, and that is told.
    sender.finish();
    sender.start();
    let Broken { what } = broken.recv_timeout(PATIENCE).expect("told in time");
    assert!(what.contains("no handling of") && what.contains("downpour-send"), "{what}");
    sender.stop();
}

#[test]
fn a_receiver_that_is_forgotten_is_in_no_account() {
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let sender = SendHandle::spawn(net(100, port()).send_setup(Rate::from_mbps(10), feedback));
    let sender = sender.unwrap();
    for id in 1..=2 {
        sender.join(ReceiverId(id), Delivery::Stream, Secret::new([id as u8; 32]));
    }
    sender.forget(ReceiverId(1));
    let members: Vec<_> = sender.stop().members.into_keys().collect();
    assert_eq!(members, [ReceiverId(2)]);
}

#[test]
fn a_sink_that_panics_ends_the_receiver_with_its_words() {
    let net = net(100, port());
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let feedback_to = feedback.local_addr().unwrap();
    let (told, broken) = channel();
    let on_event = Box::new(move |event| {
        if let ReceiveEvent::Broken(broken) = event {
            let _ = told.send(broken);
        }
    });
    let sink = Arc::new(Faulty);
    let setup = net.receive_setup(1, 0.0, feedback_to, sink);
    let receiver = ReceiveHandle::spawn(ReceiveSetup { on_event, ..setup }).unwrap();
    let sender = SendHandle::spawn(net.send_setup(Rate::from_mbps(10), feedback)).unwrap();
    only_block(&sender);
    let Broken { what } = broken.recv_timeout(PATIENCE).expect("told in time");
    assert!(what.contains("no storing of") && what.contains("downpour-store"), "{what}");
    receiver.stop();
    sender.stop();
}

/// Where full datagrams do not get through, polls may (`docs/protocol.md#WIRE-7`).
/// A probe does (`docs/protocol.md#CTL-2`).
#[test]
fn a_poll_does_not_show_that_the_stream_can_be_taken() {
    let net = net(100, port());
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let (told, events) = channel();
    let on_event = Box::new(move |event| drop(told.send(event)));
    let setup = net.receive_setup(1, 0.0, feedback.local_addr().unwrap(), Arc::new(Faulty));
    let receiver = ReceiveHandle::spawn(ReceiveSetup { on_event, ..setup }).unwrap();
    let sender = SendHandle::spawn(net.send_setup(Rate::from_mbps(10), feedback)).unwrap();
    sender.start();
    // What the first of them showed would be known by the tenth.
    until(|| receiver.snapshot().stats.received >= 10);
    assert!(events.try_recv().is_err(), "a poll");
    // A session that runs probes too, as long as anybody joins.
    sender.probe();
    assert_eq!(events.recv_timeout(PATIENCE), Ok(ReceiveEvent::Heard));
    sender.stop();
    receiver.stop();
}

#[test]
fn who_cannot_join_again_says_that_it_has_no_stream() {
    let net = net(100, port());
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let (told, events) = channel();
    let on_event = Box::new(move |event| drop(told.send(event)));
    let setup = net.receive_setup(1, 0.0, feedback.local_addr().unwrap(), Arc::new(Faulty));
    let inlet = setup.stream.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap();
    let inlet = UdpSocket::from(inlet);
    let receiver = ReceiveHandle::spawn(ReceiveSetup { on_event, ..setup }).unwrap();
    receiver.set_on_stream(false);
    // Behind the driver's back the socket becomes a member, as soon as it is none: its own attempt is refused.
    let (group, lo) = ([239, 77, 3, 1].into(), [127, 0, 0, 1].into());
    until(|| inlet.join_multicast_v4(&group, &lo).is_ok());
    receiver.set_on_stream(true);
    assert_eq!(events.recv_timeout(PATIENCE), Ok(ReceiveEvent::StreamLost));
    receiver.stop();
}

/// Where full datagrams do not reach the one that greeted first (`docs/protocol.md#WAN-5`).
#[test]
fn who_greets_after_one_that_hears_nothing_and_pulls_gets_the_stream() {
    let net = net(100, port());
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let feedback_to = feedback.local_addr().unwrap();
    let setup = net.send_setup(Rate::from_mbps(10), feedback);
    let sender = SendHandle::spawn(SendSetup { stream: None, unicast: true, ..setup }).unwrap();
    let (told, events) = channel();
    let receiver = |id: u32, loss| {
        sender.join(ReceiverId(id), Delivery::Ended, Secret::new([id as u8; 32]));
        let told = told.clone();
        let on_event = Box::new(move |event| drop(told.send((id, event))));
        let mut setup = net.receive_setup(id, loss, feedback_to, Arc::new(Faulty));
        setup.machine.greets = true;
        let setup = ReceiveSetup { stream: None, unicast: true, on_event, ..setup };
        ReceiveHandle::spawn(setup).unwrap()
    };
    let deaf = receiver(1, 1.0);
    until(|| sender.snapshot().members.get(&ReceiverId(1)).is_some_and(|m| m.feedback > 0));
    deaf.set_on_stream(false);
    sender.set_delivery(ReceiverId(1), Delivery::Pull);
    let other = receiver(2, 0.0);
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "the place is not taken");
        sender.probe();
        if let Ok(event) = events.recv_timeout(Duration::from_millis(50)) {
            assert_eq!(event, (2, ReceiveEvent::Heard));
            break;
        }
    }
    for receiver in [deaf, other] {
        receiver.stop();
    }
    sender.stop();
}

/// What is late has left from where the receiver was before (`docs/protocol.md#WAN-5`).
#[test]
fn a_stream_goes_to_where_the_newest_feedback_came_from() {
    let net = net(100, port());
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let to = feedback.local_addr().unwrap();
    let setup = net.send_setup(Rate::from_mbps(10), feedback);
    let sender = SendHandle::spawn(SendSetup { stream: None, unicast: true, ..setup }).unwrap();
    let (me, secret) = (ReceiverId(1), Secret::new([1; 32]));
    sender.join(me, Delivery::Stream, secret.clone());
    until(|| sender.snapshot().members.contains_key(&me));
    let sealed = |number: u32| {
        let mut keys = SealKeys::feedback(Suite::preferred(), &secret, StreamId(7), me);
        let kind = Kind::Feedback { receiver: me };
        let header = Header { epoch: Epoch(0), stream: StreamId(7), packet_low: number, kind };
        let mut datagram = Vec::new();
        keys.append(PacketNumber(number.into()), &header, &[], &mut datagram).unwrap();
        datagram
    };
    let [before, after] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    after.send_to(&sealed(2), to).unwrap();
    before.send_to(&sealed(1), to).unwrap();
    // Nobody takes it, and then those have been read.
    before.send_to(&sealed(1), to).unwrap();
    until(|| sender.snapshot().rejects.replayed == 1);
    let hears = |socket: &UdpSocket| {
        socket.set_nonblocking(true).unwrap();
        socket.peek_from(&mut [0]).is_ok()
    };
    until(|| {
        sender.probe();
        hears(&before) || hears(&after)
    });
    assert!(hears(&after) && !hears(&before));
    sender.stop();
}
