//! A real kernel network on one machine: a sender and N receivers, each a network namespace, on a bridge.
//!
//! ```text
//! P-s  eth0 ─[tbf]─┐                      ┌─ eth0 P-r0   nftables drops a random share of what comes in
//! 10.77.0.1        ├─ br0 (namespace P-w) ─┼─ eth0 P-r1   10.77.1.1, 10.77.1.2, …
//! fd77::1          │  IGMP/MLD snooping    └─[tbf]─ eth0 P-r2 (a slow link)
//! ```
//!
//! 1. Names start with a random prefix, so that several networks may stand at once.
//! 2. Segmentation offloads are off on every veth: what is lost is one datagram, not a batch of them.
//! 3. A guard process holds the other end of a pipe from the moment of creation. When this process ends,
//!    in whatever way, the pipe closes and the guard kills what runs in the namespaces and removes them.
//!
//! By hand: `cargo run -p downpour --example net -- --receivers 8 --rate 100mbit --loss 5%`.
//!
//! Needs root, iproute2, nftables and ethtool; [`Network::missing`] says what is not there. The root
//! namespace is never touched. There is no netem here, so delay is absent.

use crate::skipped::{may_make_namespaces, skipped};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One network at a time in this process: two cores cannot carry more and keep their rates.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What the guard runs. Its standard input is the pipe, its arguments the namespaces.
const GUARD: &str = r#"
echo ready
cat >/dev/null
for ns in "$@"; do
  for pid in $(ip netns pids "$ns" 2>/dev/null); do kill -9 "$pid"; done
done
for ns in "$@"; do ip netns del "$ns" 2>/dev/null; done
exit 0
"#;

/// What a network looks like.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Number of receivers.
    pub(crate) receivers: usize,
    /// Rate of the sender's link as tc writes it (`100mbit`); `None` leaves it unshaped.
    pub(crate) rate: Option<String>,
    /// Share of TCP and UDP packets that each receiver loses on arrival, independently.
    pub(crate) loss: f64,
    /// A receiver behind a slower link, and that link's rate.
    pub(crate) slow: Option<(usize, String)>,
    /// Whether the bridge forwards multicast only to those who joined (with a querier), or floods.
    pub(crate) snooping: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self { receivers: 2, rate: None, loss: 0.0, slow: None, snooping: false }
    }
}

/// A standing network. Removed when dropped.
pub(crate) struct Network {
    /// The sending machine.
    pub(crate) sender: Host,
    /// The receiving machines.
    pub(crate) receivers: Vec<Host>,
    switch: String,
    guard: Child,
    _turn: MutexGuard<'static, ()>,
}

/// One machine of the network.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The namespace.
    pub(crate) namespace: String,
    /// IPv4 address of its `eth0`.
    pub(crate) ipv4: String,
    /// IPv6 address of its `eth0`.
    pub(crate) ipv6: String,
}

/// What passed an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Bytes received, Ethernet headers included, before any are dropped on purpose.
    pub(crate) rx_bytes: u64,
    /// Bytes sent, Ethernet headers included.
    pub(crate) tx_bytes: u64,
    /// Packets received.
    pub(crate) rx_packets: u64,
    /// Packets sent.
    pub(crate) tx_packets: u64,
}

impl Network {
    /// Why no network can be built here; `None` when one can.
    pub(crate) fn missing() -> Option<String> {
        // The effective user owns what it creates; no call for it in std, but the kernel says it here.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        if uid.and_then(|ids| ids.split_whitespace().nth(1)) != Some("0") {
            return Some("needs root".to_owned());
        }
        if !may_make_namespaces() {
            return Some("needs namespaces (in a container: --privileged)".to_owned());
        }
        for (tool, flag) in
            [("ip", "-V"), ("tc", "-V"), ("nft", "--version"), ("ethtool", "--version")]
        {
            let found = Command::new(tool).arg(flag).output();
            if !found.is_ok_and(|output| output.status.success()) {
                return Some(format!("needs {tool} (make test-setup installs it)"));
            }
        }
        None
    }

    /// Builds a network, or says `skipped: test: why` and gives `None`.
    pub(crate) fn build_or_skip(test: &str, spec: &Spec) -> Option<Self> {
        if let Some(why) = Self::missing() {
            skipped(test, &why);
            return None;
        }
        Some(Self::build(spec))
    }

    /// Builds a network.
    ///
    /// # Panics
    /// If the kernel refuses a step; nothing is left behind.
    pub(crate) fn build(spec: &Spec) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let prefix = format!("dp{:06x}", random() & 0xff_ffff);
        let switch = format!("{prefix}-w");
        let sender = Host {
            namespace: format!("{prefix}-s"),
            ipv4: "10.77.0.1".to_owned(),
            ipv6: "fd77::1".to_owned(),
        };
        let receivers: Vec<_> = (0..spec.receivers)
            .map(|i| Host {
                namespace: format!("{prefix}-r{i}"),
                ipv4: format!("10.77.{}.{}", 1 + i / 250, 1 + i % 250),
                ipv6: format!("fd77::1:{:x}", i + 1),
            })
            .collect();
        let machines = receivers.iter().map(|host| host.namespace.as_str());
        let names: Vec<&str> = [&*switch, &*sender.namespace].into_iter().chain(machines).collect();
        let guard = start_guard(&names);
        // From here on a panic leaves nothing behind: the guard sees its pipe close.
        names.iter().for_each(|name| run("ip", &["netns", "add", name]));
        let network = Self { sender, receivers, switch, guard, _turn: turn };
        network.lay_bridge(spec.snooping);
        for (port, host) in (0..).zip(network.hosts()) {
            network.attach(host, port);
        }
        network.shape(spec);
        network
    }

    /// The sender, then the receivers.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.sender).chain(&self.receivers)
    }

    fn lay_bridge(&self, snooping: bool) {
        let flag = if snooping { "1" } else { "0" };
        // Short timers, in hundredths of a second: the querier speaks a tenth of a second after it is made,
        // and a group is pruned a fifth of a second after the last has left. It takes the first from
        // what is in force at that moment, so it is switched on in a step of its own.
        #[rustfmt::skip]
        let options = [
            "link", "add", "br0", "type", "bridge", "mcast_snooping", flag,
            "mcast_query_response_interval", "10", "mcast_last_member_interval", "10",
            "mcast_igmp_version", "3", "mcast_mld_version", "2",
        ];
        run("ip", &[&["-n", &self.switch], &options[..]].concat());
        let querier = ["link", "set", "br0", "type", "bridge", "mcast_querier", flag];
        run("ip", &[&["-n", &self.switch], &querier[..]].concat());
        run("ip", &["-n", &self.switch, "link", "set", "br0", "up"]);
    }

    /// Gives `host` its `eth0` and plugs it into the bridge as `p<port>`.
    fn attach(&self, host: &Host, port: usize) {
        let (namespace, port) = (host.namespace.as_str(), format!("p{port}"));
        #[rustfmt::skip]
        run("ip", &[
            "link", "add", "eth0", "netns", namespace, "type", "veth",
            "peer", "name", &port, "netns", &self.switch,
        ]);
        let offloads = ["gso", "off", "tso", "off", "gro", "off", "tx-udp-segmentation", "off"];
        run_in(namespace, "ethtool", &[&["-K", "eth0"], &offloads[..]].concat());
        run_in(&self.switch, "ethtool", &[&["-K", &port], &offloads[..]].concat());
        let batch = format!(
            "addr add {}/16 dev eth0\n\
             addr add {}/64 dev eth0 nodad\n\
             link set lo up\n\
             link set eth0 up\n\
             route add 224.0.0.0/4 dev eth0\n",
            host.ipv4, host.ipv6
        );
        feed("ip", &["-n", namespace, "-batch", "-"], &batch);
        let batch = format!("link set {port} master br0\nlink set {port} up\n");
        feed("ip", &["-n", &self.switch, "-batch", "-"], &batch);
    }

    fn shape(&self, spec: &Spec) {
        if let Some(rate) = &spec.rate {
            limit(&self.sender.namespace, "eth0", rate);
        }
        if let Some((receiver, rate)) = &spec.slow {
            limit(&self.switch, &format!("p{}", receiver + 1), rate);
        }
        if spec.loss > 0.0 {
            for host in &self.receivers {
                host.lose(spec.loss);
            }
        }
        if spec.snooping {
            // Until its first query is answered, a bridge floods.
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Whether the bridge has a member of multicast group `group` at this receiver's port.
    pub(crate) fn is_member(&self, receiver: usize, group: &str) -> bool {
        let table = output("bridge", &["-n", &self.switch, "mdb", "show"]);
        let port = format!("port p{} ", receiver + 1);
        table.lines().any(|line| line.contains(&port) && line.contains(&format!("grp {group} ")))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // The guard cannot be waited for only if it is gone, and then it has done its work.
        let _ = self.guard.wait();
    }
}

impl Host {
    /// A command that will run `program` on this machine.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Gives `eth0` another IPv4 address instead of the one that it has.
    pub(crate) fn change_address(&self, to: &str) {
        let keep = "echo 1 > /proc/sys/net/ipv4/conf/eth0/promote_secondaries";
        run_in(&self.namespace, "sh", &["-c", keep]);
        let batch = format!("addr add {to}/16 dev eth0\naddr del {}/16 dev eth0\n", self.ipv4);
        feed("ip", &["-n", &self.namespace, "-batch", "-"], &batch);
    }

    /// Drops this share of the TCP and UDP packets that arrive. Replaces an earlier share.
    pub(crate) fn lose(&self, share: f64) {
        let parts = (share * 1e6).round() as u32;
        let rules = format!(
            "table netdev loss\n\
             delete table netdev loss\n\
             table netdev loss {{\n\
               chain in {{\n\
                 type filter hook ingress device \"eth0\" priority 0; policy accept;\n\
                 meta l4proto {{ tcp, udp }} numgen random mod 1000000 < {parts} drop\n\
               }}\n\
             }}\n"
        );
        feed("ip", &["netns", "exec", &self.namespace, "nft", "-f", "-"], &rules);
    }

    /// Nothing that it sends to this address leaves, as if a router did not let it through.
    pub(crate) fn withhold(&self, address: &str) {
        let rules = format!(
            "table inet withhold {{\n\
               chain out {{ type filter hook output priority 0; policy accept; ip daddr {address} drop; }}\n\
             }}\n"
        );
        feed("ip", &["netns", "exec", &self.namespace, "nft", "-f", "-"], &rules);
    }

    /// No UDP gets in, as where a firewall opens ports for TCP alone.
    pub(crate) fn shut_out_udp(&self) {
        let rules = "table inet shut {\n\
               chain in { type filter hook input priority 0; policy accept; meta l4proto udp drop; }\n\
             }\n";
        feed("ip", &["netns", "exec", &self.namespace, "nft", "-f", "-"], rules);
    }

    /// Full datagrams of a stream do not get through to it, short ones do, and TCP.
    pub(crate) fn lose_long_datagrams(&self) {
        let rules = "table inet long {\n\
               chain in { type filter hook input priority 0; policy accept; udp length > 1000 drop; }\n\
             }\n";
        feed("ip", &["netns", "exec", &self.namespace, "nft", "-f", "-"], rules);
    }

    /// Drops in silence what comes and goes by the TCP connections that stand.
    pub(crate) fn forget_connections(&self) {
        let listed = ["netns", "exec", &self.namespace, "ss", "-tnH", "state", "established"];
        let listed = output("ip", &listed);
        let local =
            |line: &str| line.split_whitespace().nth(2)?.rsplit(':').next().map(String::from);
        let ports = listed.lines().filter_map(local).collect::<Vec<_>>().join(", ");
        let rules = format!(
            "table inet forgotten {{\n\
               chain in {{ type filter hook input priority 0; policy accept; tcp dport {{ {ports} }} drop; }}\n\
               chain out {{ type filter hook output priority 0; policy accept; tcp sport {{ {ports} }} drop; }}\n\
             }}\n"
        );
        feed("ip", &["netns", "exec", &self.namespace, "nft", "-f", "-"], &rules);
    }

    /// What passed `eth0` so far.
    pub(crate) fn counters(&self) -> Counters {
        let text = output("ip", &["-n", &self.namespace, "-s", "-j", "link", "show", "eth0"]);
        let json: Value = serde_json::from_str(&text).expect("ip prints JSON");
        let number = |way: &str, what: &str| json[0]["stats64"][way][what].as_u64().expect(what);
        Counters {
            rx_bytes: number("rx", "bytes"),
            tx_bytes: number("tx", "bytes"),
            rx_packets: number("rx", "packets"),
            tx_packets: number("tx", "packets"),
        }
    }
}

impl Counters {
    /// What passed since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            rx_bytes: self.rx_bytes - earlier.rx_bytes,
            tx_bytes: self.tx_bytes - earlier.tx_bytes,
            rx_packets: self.rx_packets - earlier.rx_packets,
            tx_packets: self.tx_packets - earlier.tx_packets,
        }
    }
}

fn limit(namespace: &str, interface: &str, rate: &str) {
    let tbf = ["tbf", "rate", rate, "burst", "64k", "latency", "20ms"];
    let add = ["-n", namespace, "qdisc", "add", "dev", interface, "root"];
    run("tc", &[&add[..], &tbf[..]].concat());
}

fn start_guard(names: &[&str]) -> Child {
    // In a session of its own: Ctrl-C at the terminal does not reach it.
    let mut guard = Command::new("setsid")
        .args(["sh", "-c", GUARD, "guard"])
        .args(names)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("setsid runs");
    let mut ready = [0; 6];
    let stdout = guard.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut ready).expect("the guard stands");
    guard
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    let mut file = std::fs::File::open("/dev/urandom").expect("/dev/urandom");
    file.read_exact(&mut bytes).expect("/dev/urandom");
    u32::from_ne_bytes(bytes)
}

fn run(program: &str, arguments: &[&str]) {
    output(program, arguments);
}

fn run_in(namespace: &str, program: &str, arguments: &[&str]) {
    run("ip", &[&["netns", "exec", namespace, program], arguments].concat());
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {error}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn feed(program: &str, arguments: &[&str], input: &str) {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect(program);
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect(program);
    let output = child.wait_with_output().expect(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {error}\n{input}", arguments.join(" "));
}
