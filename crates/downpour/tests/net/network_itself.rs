//! The test network does what it says: shapes, loses, forwards only to members, and goes away.
//!
//! What runs inside the namespaces is this test program itself, asked through [`ROLE`] to be a probe.

use crate::network::{Counters, Host, Network, Spec};
use crate::program::HANG;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable that makes the test `probe` do something: `send ADDRESS COUNT PAUSE_MS` or `receive ADDRESS`.
const ROLE: &str = "DOWNPOUR_TEST_PROBE";
const GROUP: &str = "239.192.77.1:7777";
const PAYLOAD: usize = 1400;
/// Between two datagrams, so that none is lost but what is lost on purpose.
const PAUSE_MS: u64 = 1;
/// More than all that is sent to a probe takes there: one that is not read for long loses nothing.
const SOCKET_LEN: usize = 8 << 20;
/// What ends a probe's counting; sent several times, because the network loses on purpose.
const END: &[u8] = b"end";

fn probe_on(host: &Host, role: &str) -> Command {
    let exe = std::env::current_exe().expect("this program");
    let mut command = host.command(exe.to_str().expect("a path in UTF-8"));
    command.args(["--exact", "network_itself::probe", "--nocapture"]).env(ROLE, role);
    command
}

#[test]
fn probe() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    let address: SocketAddr = words[1].parse().expect("an address");
    match words[0] {
        "send" => {
            let pause = Duration::from_millis(words[3].parse().expect("milliseconds"));
            send(address, words[2].parse().expect("a count"), pause);
        }
        "receive" => receive(address),
        other => panic!("no role {other}"),
    }
}

fn send(to: SocketAddr, count: usize, pause: Duration) {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { "::".parse().unwrap() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    for _ in 0..count {
        socket.send_to(&[0; PAYLOAD], to).unwrap();
        std::thread::sleep(pause);
    }
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        socket.send_to(END, to).unwrap();
    }
}

fn receive(at: SocketAddr) {
    let socket = UdpSocket::bind(at).unwrap();
    set_socket_recv_buffer_size_force(&socket, SOCKET_LEN).unwrap();
    if let IpAddr::V4(group) = at.ip()
        && group.is_multicast()
    {
        socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).unwrap();
    }
    println!("\nready");
    let mut count = 0;
    let mut buffer = [0; 2000];
    loop {
        let len = socket.recv(&mut buffer).unwrap();
        if buffer[..len] == *END {
            break;
        }
        count += 1;
    }
    println!("\ncounted {count}");
}

struct Receiving(Child, Lines<BufReader<ChildStdout>>);

impl Receiving {
    fn start(host: &Host, at: &str) -> Self {
        let mut command = probe_on(host, &format!("receive {at}"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        Self(child, lines)
    }

    fn count(mut self) -> u32 {
        let count = self.1.find_map(|line| line.unwrap().strip_prefix("counted ")?.parse().ok());
        self.0.wait().unwrap();
        count.expect("a count")
    }
}

fn send_from(host: &Host, to: &str, count: u32, pause_ms: u64) {
    let mut probe = probe_on(host, &format!("send {to} {count} {pause_ms}"));
    assert!(probe.stdout(Stdio::null()).status().unwrap().success());
}

fn passed(network: &Network, work: impl FnOnce()) -> Vec<Counters> {
    let before: Vec<_> = network.hosts().map(Host::counters).collect();
    work();
    network.hosts().zip(before).map(|(host, before)| host.counters().since(before)).collect()
}

#[test]
fn datagrams_arrive_and_are_counted_on_both_families() {
    let name = "datagrams_arrive_and_are_counted_on_both_families";
    let Some(network) = Network::build_or_skip(name, &Spec::default()) else { return };
    let to = &network.receivers[1];
    for at in [format!("{}:7777", to.ipv4), format!("[{}]:7777", to.ipv6)] {
        let receiving = Receiving::start(to, &at);
        let passed = passed(&network, || send_from(&network.sender, &at, 100, PAUSE_MS));
        assert_eq!(receiving.count(), 100, "{at}");
        for bytes in [passed[0].tx_bytes, passed[2].rx_bytes] {
            let least = 100 * (PAYLOAD as u64 + 42);
            assert!((least..least + 20_000).contains(&bytes), "{at}: {bytes}");
        }
    }
}

#[test]
fn each_receiver_loses_its_own_share() {
    let spec = Spec { loss: 0.05, ..Spec::default() };
    let Some(network) = Network::build_or_skip("each_receiver_loses_its_own_share", &spec) else {
        return;
    };
    let receiving: Vec<_> =
        network.receivers.iter().map(|host| Receiving::start(host, GROUP)).collect();
    send_from(&network.sender, GROUP, 4000, PAUSE_MS);
    let counts: Vec<_> = receiving.into_iter().map(Receiving::count).collect();
    // Five standard deviations of 4000 draws are 69.
    assert!(counts.iter().all(|count| (3731..=3869).contains(count)), "{counts:?}");
}

#[test]
fn the_senders_link_has_its_rate() {
    let spec = Spec { rate: Some("4mbit".to_owned()), ..Spec::default() };
    let Some(network) = Network::build_or_skip("the_senders_link_has_its_rate", &spec) else {
        return;
    };
    let receiving = Receiving::start(&network.receivers[0], GROUP);
    let start = Instant::now();
    // At once: with pauses a slow machine would send no faster than the link is.
    send_from(&network.sender, GROUP, 1000, 0);
    let took = start.elapsed();
    let arrived = u64::from(receiving.count()) * (PAYLOAD as u64 + 42);
    // A shaper cannot be fast; the machine may be slow. 64 kB pass at once, as much and 20 ms more wait in
    // the queue when the sender is done.
    let at_most = 66_000 + 76_000 + (500_000.0 * took.as_secs_f64()) as u64;
    assert!(arrived <= at_most, "{arrived} bytes in {took:?}");
    assert!(arrived < 1_000_000, "something was dropped");
}

#[test]
fn with_snooping_only_members_get_the_stream() {
    let name = "with_snooping_only_members_get_the_stream";
    let spec = Spec { snooping: true, ..Spec::default() };
    let Some(network) = Network::build_or_skip(name, &spec) else { return };
    let receiving = Receiving::start(&network.receivers[0], GROUP);
    let joined = (0..1_500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        network.is_member(0, "239.192.77.1")
    });
    assert!(joined, "the bridge did not hear of the member");
    let passed = passed(&network, || send_from(&network.sender, GROUP, 500, PAUSE_MS));
    assert_eq!(receiving.count(), 500);
    assert!(passed[1].rx_packets >= 500 && passed[2].rx_packets < 50, "{passed:?}");
    assert!(!network.is_member(1, "239.192.77.1"));
}

#[test]
fn a_network_goes_away_also_when_its_owner_panics() {
    let name = "a_network_goes_away_also_when_its_owner_panics";
    let Some(network) = Network::build_or_skip(name, &Spec::default()) else { return };
    let path = |host: &Host| Path::new("/run/netns").join(&host.namespace);
    let paths: Vec<PathBuf> = network.hosts().map(path).collect();
    assert!(paths.iter().all(|path| path.exists()));
    let mut running = network.sender.command("sleep").arg("600").spawn().unwrap();
    // The guard sees only what is inside.
    let inside = ["netns", "pids", &network.sender.namespace];
    let end = Instant::now() + HANG;
    while Command::new("ip").args(inside).output().unwrap().stdout.is_empty() {
        assert!(Instant::now() < end, "it does not start");
    }
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _network = network;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(paths.iter().all(|path| !path.exists()));
    assert!(!running.wait().unwrap().success(), "what ran inside was killed");
}
