//! The papers' profiles over real sockets, on the loopback.

#[path = "../../downpour/tests/site/ports.rs"]
mod ports;

use crate::ports::port;
use downpour_proto::profile::bmtp::StatusRule;
use downpour_proto::profile::{
    Mode, Offer, Product, ReceiverConfig, ReceiverProfile, SenderConfig, SenderProfile, Shared,
    afdp, bmtp, fmtp,
};
use downpour_proto::rate::AfdpLimits;
use downpour_proto::{Duration, Rate};
use downpour_transport::profile::{
    Hearing, ProductSink, ProductSource, ReceiveSetup, SendOutcome, SendSetup, StartWhen, prepare,
    receive,
};
use downpour_transport::{Group, Interface, UnicastSocket};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

const SECOND: Duration = Duration::from_secs(1);

/// Bytes that follow from their place.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

struct Pattern;

impl ProductSource for Pattern {
    fn read(&mut self, product: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let start = offset + u64::from(product);
        bytes.iter_mut().zip(start..).for_each(|(b, at)| *b = byte(at));
        Ok(())
    }
}

/// Products by number, in the order in which they were opened.
type Products = Vec<(u32, Vec<u8>)>;

/// Keeps what came; done after so many products.
struct Kept {
    bytes: Arc<Mutex<Products>>,
    wanted: usize,
    done: usize,
}

impl ProductSink for Kept {
    fn open(&mut self, number: u32, size: u64, _: &[u8], _: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().push((number, vec![0; size as usize]));
        Ok(())
    }

    fn write(&mut self, number: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.bytes.lock().unwrap();
        let product = all.iter_mut().find(|(n, _)| *n == number).expect("opened before");
        product.1[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn complete(&mut self, _: u32, product: &Product) -> io::Result<bool> {
        assert!(product.is_complete());
        self.done += 1;
        Ok(self.done == self.wanted)
    }

    fn reject(&mut self, number: u32) -> io::Result<bool> {
        panic!("product {number} was given up");
    }
}

struct Scene {
    sender: SenderProfile,
    receiver: fn() -> ReceiverProfile,
    mode: Mode,
    group: Option<SocketAddr>,
    connects: bool,
    sizes: Vec<u64>,
    receivers: usize,
    loss: f64,
}

/// Where receivers connect, everywhere and by one socket for both families where there are two; and what data leave by.
fn sockets(scene: &Scene, lo: &Interface) -> (Option<TcpListener>, UnicastSocket) {
    let control = scene
        .connects
        .then(|| TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap());
    let socket = match &control {
        Some(control) if scene.mode == Mode::Unicast => {
            UnicastSocket::towards(control.local_addr().unwrap(), 1 << 20).unwrap()
        }
        _ => {
            let home = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let socket = UnicastSocket::bind(home, 1 << 20).unwrap();
            socket.speak_to_groups(lo, 1).unwrap();
            socket
        }
    };
    (control, socket)
}

fn run(scene: Scene) -> SendOutcome {
    let lo = Interface::named("lo").unwrap();
    let (control, socket) = sockets(&scene, &lo);
    let port = control.as_ref().map(|control| control.local_addr().unwrap().port());
    let address = port.map(|port| (Ipv4Addr::LOCALHOST, port));
    let told = scene.mode != Mode::Multicast || scene.sender.wire.greets();
    let hearing = || match scene.group.filter(|_| !told) {
        Some(group) => Hearing::group(&Group::new(group, None).unwrap(), &lo).unwrap(),
        None => Hearing::Told(Some("lo".to_owned())),
    };
    let receivers = (0..scene.receivers).map(|i| {
        let (hearing, profile) = (hearing(), (scene.receiver)());
        let bytes = Arc::new(Mutex::new(Products::new()));
        let (kept, wanted) = (Arc::clone(&bytes), scene.sizes.len());
        let loss = scene.loss;
        let thread = thread::spawn(move || {
            let setup = ReceiveSetup {
                machine: ReceiverConfig {
                    profile,
                    size_max: 1 << 30,
                    products_max: 64,
                    seed: i as u64,
                },
                hearing,
                control: address.map(|address| TcpStream::connect(address).unwrap()),
                sink: Box::new(Kept { bytes: kept, wanted, done: 0 }),
                inject_loss: loss,
                patience: [240 * SECOND, 240 * SECOND],
                on_event: Box::new(|_, _| {}),
            };
            receive(setup).1.unwrap();
        });
        (thread, bytes)
    });
    let receivers: Vec<_> = receivers.collect();
    let start = match scene.connects {
        true => StartWhen { receivers: scene.receivers, after: None },
        // Nobody says that it listens.
        false => StartWhen { receivers: usize::MAX, after: Some(SECOND / 2) },
    };
    let (sending, handle) = prepare(SendSetup {
        machine: SenderConfig { profile: scene.sender, mode: scene.mode, group: scene.group },
        socket,
        control,
        source: Box::new(Pattern),
        start,
        on_event: Box::new(|_, _| {}),
    })
    .unwrap();
    for (product, &size) in (0..).zip(&scene.sizes) {
        handle.offer(Offer { product, size, offered_unix_ns: 7, metadata: b"name".to_vec() });
    }
    handle.finish();
    let outcome = sending.run().unwrap();
    for (thread, bytes) in receivers {
        thread.join().unwrap();
        let mut products = Arc::try_unwrap(bytes).unwrap().into_inner().unwrap();
        products.sort_unstable_by_key(|(number, _)| *number);
        assert_eq!(products.len(), scene.sizes.len());
        for (number, bytes) in products {
            assert_eq!(bytes.len() as u64, scene.sizes[number as usize]);
            let start = u64::from(number);
            assert!(bytes.iter().zip(start..).all(|(b, at)| *b == byte(at)), "product {number}");
        }
    }
    outcome
}

fn group(last: u8) -> Option<SocketAddr> {
    Some(SocketAddr::from(([239, 192, 77, last], port())))
}

#[test]
fn bmtp_brings_a_file_to_three_that_lose_some() {
    // The paper's five seconds are too few for a receiver that a busy machine keeps waiting: it would be left behind.
    let recovery = Box::new(Shared::new(12 * SECOND, false).with_packets(20));
    let outcome = run(Scene {
        sender: SenderProfile { recovery, ..bmtp::sender(2000.0, f64::INFINITY) },
        receiver: || bmtp::receiver(StatusRule::Kept),
        mode: Mode::Multicast,
        group: group(1),
        connects: false,
        sizes: vec![2_000_001],
        receivers: 3,
        loss: 0.01,
    });
    assert_eq!(outcome.stats.segments, 1429);
    assert!(outcome.stats.repairs > 0 && outcome.stats.statuses > 0);
}

fn afdp_brings_a_file(mode: Mode, group: Option<SocketAddr>) {
    let outcome = run(Scene {
        sender: afdp::sender(mode, AfdpLimits::Rabid),
        receiver: afdp::receiver,
        mode,
        group,
        connects: true,
        sizes: vec![1_000_000],
        receivers: 2,
        loss: 0.01,
    });
    assert!(outcome.members.iter().all(|(_, member)| member.completed.is_some()));
    assert!(outcome.stats.requests > 0);
}

#[test]
fn afdp_brings_a_file_by_multicast() {
    afdp_brings_a_file(Mode::Multicast, group(2));
}

#[test]
fn afdp_brings_a_file_by_unicast() {
    afdp_brings_a_file(Mode::Unicast, None);
}

#[test]
fn fmtp_brings_a_series_of_products_to_three_that_lose_some() {
    let outcome = run(Scene {
        sender: fmtp::sender(Rate::from_mbps(50), fmtp::KEEP),
        receiver: || fmtp::receiver(fmtp::LINK_RATE),
        mode: Mode::Multicast,
        group: group(3),
        connects: true,
        // The first is long enough not to be missed altogether.
        sizes: (0..30).map(|n| if n == 0 { 500_000 } else { 1 + 7_777 * (n % 5) }).collect(),
        receivers: 3,
        loss: 0.05,
    });
    assert!(outcome.members.iter().all(|(_, member)| member.products == 30));
    assert!(outcome.stats.repairs > 0 && outcome.stats.statuses == 0);
}
