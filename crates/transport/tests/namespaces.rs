//! Multicast between two machines: network namespaces joined by a veth pair, which each test makes and
//! removes. Covers what loopback cannot: IPv6, source-specific groups, and a path with an MTU.
//!
//! Needs root and the `ip` tool; without them each test says so by name and passes.

#[path = "../../skipped.rs"]
mod skipped;

use downpour_proto::{
    BlockId, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, SenderConfig, StreamId, rate,
};
use downpour_transport::control::listener;
use downpour_transport::session::{SendHandle, SendSetup, StreamOut};
use downpour_transport::{
    BlockSource, Clock, Group, Interest, Interface, MulticastReceiver, MulticastSender, RecvBatch,
    RecvOptions, Secret, SendOptions, SourceError, Suite, UnicastSocket, Woken, wait,
};
use nix::sched::{CloneFlags, setns};
use skipped::{may_make_namespaces, skipped};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Two namespaces, `left` and `right`, each with one end, `wire`, of a veth pair. 10.77.0.1 and fd77::1 are
/// left (and 10.77.0.3, fd77::3), 10.77.0.2 and fd77::2 right.
struct Pair {
    left: String,
    right: String,
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn ip_says(arguments: &str) -> String {
    let said = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

impl Pair {
    /// `None`, after saying why, when this process may not make namespaces.
    fn new(test: &str, mtu: u32) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skipped(test, "needs root to make network namespaces");
            return None;
        }
        if !may_make_namespaces() {
            skipped(test, "needs namespaces (in a container: --privileged)");
            return None;
        }
        if Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
            skipped(test, "needs the ip tool (iproute2)");
            return None;
        }
        let name = |side| format!("dp-{}-{test}-{side}", std::process::id());
        let pair = Self { left: name("l"), right: name("r") };
        for side in [&pair.left, &pair.right] {
            ip(&format!("netns add {side}"));
            // Else an IPv6 address cannot be used for a second or two after the link is up.
            let off = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad";
            let status = Command::new("ip").args(["netns", "exec", side, "sh", "-c", off]).status();
            assert!(status.unwrap().success(), "{off}");
        }
        pair.connect(mtu);
        Some(pair)
    }

    fn connect(&self, mtu: u32) {
        let (left, right) = (&self.left, &self.right);
        ip(&format!("-n {left} link add wire type veth peer name wire netns {right}"));
        let addresses = [
            (left, "10.77.0.1/24"),
            (left, "10.77.0.3/24"),
            (left, "fd77::1/64"),
            (left, "fd77::3/64"),
            (right, "10.77.0.2/24"),
            (right, "fd77::2/64"),
        ];
        for (side, address) in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            ip(&format!("-n {side} addr add {address} dev wire {nodad}"));
        }
        for side in [left, right] {
            ip(&format!("-n {side} link set wire mtu {mtu} up"));
        }
    }

    /// Runs `work` in a thread that lives in the namespace; what it opens stays there.
    fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{namespace}")).unwrap();
        thread::scope(|scope| {
            let entered = scope.spawn(move || {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            entered.join().unwrap()
        })
    }

    fn receiver(&self, group: &Group) -> MulticastReceiver {
        Self::inside(&self.right, || {
            let wire = Interface::choose(Some("wire"), group.address()).unwrap();
            MulticastReceiver::join(group, &wire, &RecvOptions::default()).unwrap()
        })
    }

    fn sender(&self, group: &Group, prefer: Option<&str>) -> MulticastSender {
        Self::inside(&self.left, || {
            let mut wire = Interface::named("wire").unwrap();
            if let Some(only) = prefer {
                wire.addresses = vec![only.parse().unwrap()];
            }
            MulticastSender::open(group, &wire, &SendOptions::default()).unwrap()
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for side in [&self.left, &self.right] {
            let _ = Command::new("ip").args(["netns", "delete", side]).status();
        }
    }
}

fn group(address: &str, source: Option<&str>) -> Group {
    let address: SocketAddr = address.parse().unwrap();
    Group::new(address, source.map(|s| s.parse().unwrap())).unwrap()
}

/// Far more than it takes until something arrives, also on a busy machine.
const HANG: Duration = Duration::from_secs(60);
/// What does not arrive within this time does not arrive.
const QUIET: Duration = Duration::from_millis(300);

fn comes(receiver: &MulticastReceiver, within: Duration) -> bool {
    let clock = Clock::start();
    let interests = [Interest::Read(receiver.as_fd())];
    wait(&clock, clock.now() + within, &interests).unwrap() == Woken::Ready
}

/// Datagrams that come until there are `count`, or until nothing came for `quiet`; without greetings, which may be late.
fn collect(
    receiver: &MulticastReceiver,
    count: usize,
    quiet: Duration,
) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut batch = RecvBatch::new();
    let mut all = Vec::new();
    while all.len() < count && comes(receiver, quiet) {
        receiver.recv(&mut batch).unwrap();
        let others = batch.datagrams().filter(|d| d.bytes != GREETING);
        all.extend(others.map(|d| (*d.from, d.bytes.to_vec())));
    }
    all
}

const GREETING: &[u8] = b"hello";

/// Sends greetings until one arrives: a link carries nothing for a moment after it was set up.
fn until_heard(receiver: &MulticastReceiver, sender: &MulticastSender) {
    let mut batch = RecvBatch::new();
    // Those of before say nothing.
    while receiver.recv(&mut batch).is_ok_and(|came| came > 0) {}
    let begun = Instant::now();
    while !comes(receiver, Duration::from_millis(50)) {
        assert!(begun.elapsed() < HANG, "nothing arrives");
        let _ = sender.send(GREETING, GREETING.len());
    }
}

fn delivers(pair: &Pair, group: &Group, segment_len: usize) {
    let receiver = pair.receiver(group);
    let sender = pair.sender(group, None);
    until_heard(&receiver, &sender);
    let bytes: Vec<u8> = (0..100 * segment_len).map(|i| (i / segment_len) as u8).collect();
    assert_eq!(sender.send(&bytes, segment_len).unwrap(), bytes.len());
    let got = collect(&receiver, 100, HANG).into_iter().map(|(_, bytes)| bytes);
    let got: Vec<Vec<u8>> = got.collect();
    assert_eq!(got.len(), 100);
    assert!(got.concat() == bytes);
}

#[test]
fn ipv4_any_source() {
    let Some(pair) = Pair::new("v4", 1500) else { return };
    delivers(&pair, &group("239.255.77.1:17077", None), 1472);
}

#[test]
fn ipv6_any_source_wide_and_link_local() {
    let Some(pair) = Pair::new("v6", 1500) else { return };
    delivers(&pair, &group("[ff15::7777]:17077", None), 1452);
    delivers(&pair, &group("[ff12::7777]:17078", None), 1452);
}

/// The right sender is heard, another sender to the same group is not.
fn source_specific(pair: &Pair, address: &str, source: &str, other: &str) {
    let group = group(address, Some(source));
    let mut receiver = pair.receiver(&group);
    let (wanted, unwanted) = (pair.sender(&group, Some(source)), pair.sender(&group, Some(other)));
    until_heard(&receiver, &wanted);
    unwanted.send(b"unwanted", 8).unwrap();
    wanted.send(b"wanted", 6).unwrap();
    let got = collect(&receiver, 1, HANG);
    assert_eq!(got, [(wanted.local_addr().unwrap(), b"wanted".to_vec())]);
    receiver.leave().unwrap();
    wanted.send(b"wanted", 6).unwrap();
    assert!(collect(&receiver, 1, QUIET).is_empty());
    receiver.rejoin().unwrap();
    wanted.send(b"again", 5).unwrap();
    assert_eq!(collect(&receiver, 1, HANG).len(), 1);
}

#[test]
fn ipv4_source_specific() {
    let Some(pair) = Pair::new("ssm4", 1500) else { return };
    source_specific(&pair, "232.77.0.1:17077", "10.77.0.1", "10.77.0.3");
}

#[test]
fn ipv6_source_specific() {
    let Some(pair) = Pair::new("ssm6", 1500) else { return };
    source_specific(&pair, "[ff35::7777]:17077", "fd77::1", "fd77::3");
}

#[test]
fn a_datagram_longer_than_the_mtu_is_refused_not_fragmented() {
    let Some(pair) = Pair::new("mtu", 1400) else { return };
    let group = group("239.255.77.2:17077", None);
    let wire = Pair::inside(&pair.left, || Interface::named("wire").unwrap());
    assert_eq!(wire.mtu, 1400);
    let receiver = pair.receiver(&group);
    let sender = pair.sender(&group, None);
    until_heard(&receiver, &sender);
    assert!(sender.send(&[0; 1373], 1373).is_err());
    assert!(sender.send(&[0; 2 * 1373], 1373).is_err());
    sender.send(&[0; 1372], 1372).unwrap();
    let lens: Vec<usize> = collect(&receiver, 1, HANG).iter().map(|(_, d)| d.len()).collect();
    assert_eq!(lens, [1372], "nothing was sent before");
}

struct Nothing;

impl BlockSource for Nothing {
    fn read(&self, _: BlockId, _: &mut [u8]) -> Result<usize, SourceError> {
        Err(SourceError { reason: "there is nothing".to_owned() })
    }
}

/// A sender's driver on the left.
fn driver(pair: &Pair, group: Group) -> SendHandle {
    Pair::inside(&pair.left, || {
        let interface = Interface::named("wire").unwrap();
        let setup = SendSetup {
            machine: SenderConfig {
                geometry: Geometry::IPV4,
                stream: StreamId(7),
                epoch: Epoch(0),
                rate: Box::new(rate::Fixed::new(Rate::from_mbps(10))),
                recovery: Box::new(Parity::default()),
                initial_rtt: Duration::from_millis(1),
                window_blocks: 64,
                pull_share: PULL_SHARE_DEFAULT,
            },
            stream: Some(StreamOut { group, interface, options: SendOptions::default() }),
            unicast: false,
            feedback: UnicastSocket::bind("0.0.0.0:0".parse().unwrap(), 1 << 20).unwrap(),
            suite: Suite::preferred(),
            open: false,
            secret: Secret::random().unwrap(),
            source: Arc::new(Nothing),
            trace: None,
            on_event: Box::new(|_| {}),
        };
        SendHandle::spawn(setup).unwrap()
    })
}

#[test]
fn a_stream_leaves_and_its_neighbours_are_heard_by_an_interface_that_was_deleted_and_made_again() {
    let Some(pair) = Pair::new("anew", 1500) else { return };
    let group = group("239.255.77.4:17077", None);
    let sender = driver(&pair, group);
    let probes_arrive = || {
        let receiver = pair.receiver(&group);
        // A minute is far more than it takes.
        assert!(
            (0..600).any(|_| {
                sender.probe();
                comes(&receiver, Duration::from_millis(100))
            }),
            "nothing arrives"
        );
        let joined = ip_says(&format!("-n {} maddr show dev wire", pair.left));
        assert!(joined.contains("239.192.28.0"), "where senders meet (RATE-6): {joined}");
    };
    probes_arrive();
    ip(&format!("-n {} link del wire", pair.left));
    pair.connect(1500);
    probes_arrive();
    sender.stop();
}

#[test]
fn a_receiver_joins_on_an_interface_that_was_deleted_and_made_again() {
    let Some(pair) = Pair::new("again", 1500) else { return };
    for (address, source) in [
        ("239.255.77.5:17077", None),
        ("232.255.77.5:17077", Some("10.77.0.1")),
        ("[ff15::77:5]:17077", None),
        ("[ff12::77:5]:17077", None),
    ] {
        let group = group(address, source);
        let mut receiver = pair.receiver(&group);
        until_heard(&receiver, &pair.sender(&group, source));
        make_again(&pair, &mut receiver);
        until_heard(&receiver, &pair.sender(&group, source));
    }
}

/// The receiver's interface is another one from then on.
fn make_again(pair: &Pair, receiver: &mut MulticastReceiver) {
    ip(&format!("-n {} link del wire", pair.right));
    pair.connect(1500);
    Pair::inside(&pair.right, || {
        let _ = receiver.leave();
        receiver.rejoin().unwrap();
    });
}

#[test]
fn drops_are_counted_on_when_the_interface_is_another_one() {
    let Some(pair) = Pair::new("drops", 1500) else { return };
    let group = group("239.255.77.6:17077", None);
    let mut receiver = Pair::inside(&pair.right, || {
        let wire = Interface::named("wire").unwrap();
        MulticastReceiver::join(&group, &wire, &RecvOptions { buffer_len: 1 }).unwrap()
    });
    for _ in 0..2 {
        let sender = pair.sender(&group, None);
        let before = receiver.drops().unwrap();
        let is_full = (0..1_000_000).any(|_| {
            let _ = sender.send(&[1; 1400], 1400);
            receiver.drops().unwrap() > before
        });
        assert!(is_full, "nothing arrives");
        let drops = receiver.drops().unwrap();
        make_again(&pair, &mut receiver);
        assert!(receiver.drops().unwrap() >= drops);
    }
}

#[test]
fn no_route_names_the_interfaces() {
    let Some(pair) = Pair::new("route", 1500) else { return };
    let error = Pair::inside(&pair.left, || {
        Interface::choose(None, "239.255.77.3".parse().unwrap()).unwrap_err().to_string()
    });
    assert!(error.contains("no route") && error.contains("wire (10.77.0.1)"), "{error}");
    ip(&format!("-n {} route add 239.0.0.0/8 dev wire", pair.left));
    let found = Pair::inside(&pair.left, || {
        Interface::choose(None, "239.255.77.3".parse().unwrap()).unwrap()
    });
    assert_eq!(found.name, "wire");
}

#[test]
fn who_listens_on_all_addresses_is_reached_by_ipv4_where_sockets_of_ipv6_are_for_that_alone() {
    let Some(pair) = Pair::new("only6", 1500) else { return };
    ip(&format!("-n {} link set lo up", pair.left));
    let on = "echo 1 > /proc/sys/net/ipv6/bindv6only";
    let status = Command::new("ip").args(["netns", "exec", &pair.left, "sh", "-c", on]).status();
    assert!(status.unwrap().success(), "{on}");
    Pair::inside(&pair.left, || {
        let all = listener((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = all.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    });
}
