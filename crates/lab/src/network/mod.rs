//! A real kernel network on one machine: a sender and N receivers, each a network namespace, on a bridge.
//!
//! ```text
//! lab7-s  eth0 ──link──┐                       ┌──link── eth0 lab7-r0
//! 10.77.0.1            ├─ br0 (namespace lab7-w)┼──link── eth0 lab7-r1    10.77.1.1, 10.77.1.2, …
//! ```
//!
//! A link is a veth pair, with tbf for its rate and nftables for its independent losses; one with delay,
//! jitter, losses in bursts or reordering, and one that changes is a pair of TAP devices joined by the
//! [emulator](crate::emulator).
//!
//! 1. The bridge floods multicast: no snooping, so no querier is needed and nothing is pruned in mid-run.
//! 2. Segmentation offloads are off on every veth unless the experiment wants them: what is lost is one
//!    datagram, not a batch of them. TAP devices have none.
//! 3. The emulator's chance has a seed; that of nftables has none.
//! 4. Only TCP and UDP are lost on purpose, so that a lost ARP does not stop a machine for a second.
//!
//! Needs root, iproute2, nftables, ethtool and util-linux; [`missing`] says what is not there. The root namespace is never
//! touched.

mod emulated;
mod machine;

pub(crate) use machine::{Counters, Host};

use crate::emulator::pipe::Shape;
use crate::emulator::{Account, Wire};
use crate::footprint::Footprint;
use crate::shell::{self, feed, run};
use crate::units::Rate;
use emulated::Emulated;
use std::io;
use std::path::Path;
use std::time::Duration;

/// tbf lets pass at once what the link carries in this time, and this many bytes at least.
const TBF_BURST: (u64, u64) = (5_000, 16_000);
/// The same of a link that saves up little: more than its timers are late, and three frames.
const TBF_BURST_SMALL: (u64, u64) = (500, 3 * 1514);
/// What builds a network, and starts programs in it.
const TOOLS: &[&str] = &["ip", "tc", "nft", "ethtool", "chrt", "setsid", "setpriv"];

/// The link of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Link {
    /// From the machine.
    pub(crate) up: Shape,
    /// To the machine.
    pub(crate) down: Shape,
    /// Emulated even if the kernel could do it.
    pub(crate) emulated: bool,
    /// Saves up little while nothing is sent: for what comes now and then.
    pub(crate) sparing: bool,
}

impl Link {
    fn is_emulated(&self) -> bool {
        self.emulated || self.up.needs_emulator() || self.down.needs_emulator()
    }

    /// Bytes that leave it at once, at this rate.
    fn bucket(&self, rate: Rate) -> u64 {
        let (time_us, least) = if self.sparing { TBF_BURST_SMALL } else { TBF_BURST };
        (rate.0 / 8 * time_us / 1_000_000).max(least)
    }

    /// For how long it sends at once after a pause.
    fn saved(&self) -> Duration {
        let rate = self.up.rate.filter(|_| !self.is_emulated());
        rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(self.bucket(rate) as f64 * 8.0 / rate.0 as f64)
        })
    }
}

/// What a network looks like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    /// The sender's link.
    pub(crate) sender: Link,
    /// Each receiver's link.
    pub(crate) receivers: Vec<Link>,
    /// Whether batches of datagrams may travel as one, as network cards with offloads do.
    pub(crate) offloads: bool,
    /// Of the emulator's chance.
    pub(crate) seed: u64,
}

/// A standing network. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) sender: Host,
    pub(crate) receivers: Vec<Host>,
    /// For how long the sender's link sends at once after a pause.
    pub(crate) saved: Duration,
    /// The greatest share of what comes in that a receiver loses.
    pub(crate) loss: f64,
    switch: String,
    emulated: Option<Emulated>,
}

/// What the network lost, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    /// On purpose.
    pub(crate) asked: u64,
    /// Where a link's queue was full.
    pub(crate) queue: u64,
    /// By the lab itself: anything else.
    pub(crate) own: u64,
    /// Bytes that each machine's interface counts as sent and its own link's queue dropped, the sender's first. A tbf stands before
    /// the interface's counter, the emulator's queue behind it.
    pub(crate) unsent: Vec<u64>,
    /// What the emulator has to say, when there is one.
    pub(crate) emulator: Option<Account>,
}

/// Why no network can be built here; `None` when one can.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("needs /dev/net/tun".to_owned());
    }
    if shell::run("unshare", &["--net", "--mount", "true"]).is_err() {
        return Some("needs namespaces (in a container: --privileged)".to_owned());
    }
    let tool = TOOLS.iter().find(|tool| shell::find(tool).is_none())?;
    Some(format!("needs {tool} (make test-setup installs it)"))
}

impl Network {
    /// Builds it. When the kernel refuses a step, the footprint removes what is there.
    pub(crate) fn build(footprint: &Footprint, spec: &Spec) -> io::Result<Self> {
        let prefix = footprint.name();
        let switch = format!("{prefix}-w");
        let sender = Host::new(format!("{prefix}-s"), "10.77.0.1".to_owned());
        let address = |i: usize| format!("10.77.{}.{}", 1 + i / 250, 1 + i % 250);
        let receivers = (0..spec.receivers.len())
            .map(|i| Host::new(format!("{prefix}-r{i}"), address(i)))
            .collect();
        let saved = spec.sender.saved();
        let losses = spec.receivers.iter().map(|link| link.down.loss);
        let loss = losses.fold(0.0, f64::max);
        let mut network = Self { sender, receivers, saved, loss, switch, emulated: None };
        run("ip", &["netns", "add", &network.switch])?;
        let bridge = ["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"];
        run("ip", &[&["-n", &network.switch], &bridge[..]].concat())?;
        run("ip", &["-n", &network.switch, "link", "set", "br0", "up"])?;
        let links: Vec<&Link> = std::iter::once(&spec.sender).chain(&spec.receivers).collect();
        network.emulated = network.emulate(footprint, &links, spec.seed)?;
        for (number, (host, link)) in network.hosts().zip(&links).enumerate() {
            network.attach(host, number, link, spec.offloads)?;
        }
        Ok(network)
    }

    /// None, for tests that reach no machine.
    #[cfg(test)]
    pub(crate) fn of_a_test() -> Self {
        let switch = "downpour-lab-test".to_owned();
        let sender = Host::new(switch.clone(), String::new());
        let saved = Duration::ZERO;
        Self { sender, receivers: vec![], saved, loss: 0.0, switch, emulated: None }
    }

    /// The sender, then the receivers.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.sender).chain(&self.receivers)
    }

    fn emulate(
        &self,
        footprint: &Footprint,
        links: &[&Link],
        seed: u64,
    ) -> io::Result<Option<Emulated>> {
        let wires = links.iter().enumerate().filter(|(_, link)| link.is_emulated());
        let wires = wires.map(|(number, link)| Wire {
            near: format!("m{number}"),
            far: port(number),
            up: link.up.clone(),
            down: link.down.clone(),
        });
        let wires: Vec<Wire> = wires.collect();
        if wires.is_empty() {
            return Ok(None);
        }
        Emulated::start(footprint, &self.switch, wires, seed).map(Some)
    }

    /// Gives `host` its `eth0` and plugs it into the bridge.
    fn attach(&self, host: &Host, number: usize, link: &Link, offloads: bool) -> io::Result<()> {
        let (namespace, port) = (host.namespace.as_str(), port(number));
        run("ip", &["netns", "add", namespace])?;
        if link.is_emulated() {
            let near = format!("m{number}");
            let moved = ["link", "set", &near, "netns", namespace, "name", "eth0"];
            run("ip", &[&["-n", &self.switch], &moved[..]].concat())?;
        } else {
            let veth = ["link", "add", "eth0", "netns", namespace, "type", "veth"];
            let peer = ["peer", "name", &port, "netns", &self.switch];
            run("ip", &[&veth[..], &peer[..]].concat())?;
            if !offloads {
                let off = ["gso", "off", "tso", "off", "gro", "off", "tx-udp-segmentation", "off"];
                host.run("ethtool", &[&["-K", "eth0"], &off[..]].concat())?;
                let at_port = ["netns", "exec", &self.switch, "ethtool", "-K", &port];
                run("ip", &[&at_port[..], &off[..]].concat())?;
            }
            limit(namespace, "eth0", link, &link.up)?;
            limit(&self.switch, &port, link, &link.down)?;
            lose(&self.switch, &port, &link.up)?;
            lose(namespace, "eth0", &link.down)?;
        }
        let batch = format!("link set {port} master br0\nlink set {port} up\n");
        feed("ip", &["-n", &self.switch, "-batch", "-"], &batch)?;
        let batch = format!(
            "addr add {}/16 brd + dev eth0\n\
             link set lo up\n\
             link set eth0 up\n\
             route add 224.0.0.0/4 dev eth0\n",
            host.ipv4
        );
        feed("ip", &["-n", namespace, "-batch", "-"], &batch).map(drop)
    }

    /// Changes the sender's link while it carries traffic.
    ///
    /// # Panics
    /// When it is not an emulated one.
    pub(crate) fn reshape_sender(&self, link: &Link) -> io::Result<()> {
        let emulated = self.emulated.as_ref().expect("only emulated links change");
        emulated.reshape(&port(0), link)
    }

    /// Whether what makes its links is still at work.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match self.emulated.as_mut().map(Emulated::has_ended).transpose()? {
            Some(true) => Err(io::Error::other("the emulator ended in the midst of the run")),
            _ => Ok(()),
        }
    }

    /// What has been lost so far. Ends the emulator, so only once and last.
    pub(crate) fn losses(&mut self) -> io::Result<Losses> {
        let switch = Host::new(self.switch.clone(), String::new());
        let ports = self.receivers.len() + 1;
        let mut losses = Losses { unsent: vec![0; ports], ..Losses::default() };
        let machines: Vec<Host> = self.hosts().cloned().collect();
        let near = machines.iter().map(|host| (host, "eth0".to_owned()));
        let far = (0..ports).map(|number| (&switch, port(number)));
        for (host, device) in near.chain(far) {
            let queue = host.shaper_drops(&device)?;
            losses.queue += queue;
            losses.own += host.counters(&device)?.tx_dropped;
            losses.asked += host.dropped_on_purpose(&device)?.0;
        }
        if let Some(emulated) = self.emulated.take() {
            let wires: Vec<_> = (0..ports).map(|number| emulated.wire(&port(number))).collect();
            let account = emulated.stop()?;
            for (unsent, wire) in losses.unsent.iter_mut().zip(wires) {
                *unsent = wire.map_or(0, |wire| account.wires[wire].0.queue_drop_bytes);
            }
            for fates in account.wires.iter().flat_map(|(up, down)| [up, down]) {
                losses.asked += fates.lost;
                losses.queue += fates.queue_drops;
            }
            losses.own += account.own_drops;
            losses.emulator = Some(account);
        }
        Ok(losses)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.emulated = None;
        // What cannot be removed here is removed with the footprint.
        for namespace in self.hosts().map(|host| &host.namespace).chain([&self.switch]) {
            let _ = run("ip", &["netns", "del", namespace]);
        }
    }
}

fn port(number: usize) -> String {
    format!("p{number}")
}

fn limit(namespace: &str, device: &str, link: &Link, shape: &Shape) -> io::Result<()> {
    let Some(rate) = shape.rate else { return Ok(()) };
    let (rate, burst) = (format!("{}bit", rate.0), link.bucket(rate).to_string());
    let latency = format!("{}us", shape.queue.0.as_micros());
    let tbf = ["tbf", "rate", &rate, "burst", &burst, "latency", &latency];
    let add = ["-n", namespace, "qdisc", "add", "dev", device, "root"];
    run("tc", &[&add[..], &tbf[..]].concat()).map(drop)
}

/// Drops this share of the TCP and UDP packets that come in.
fn lose(namespace: &str, device: &str, shape: &Shape) -> io::Result<()> {
    if shape.loss <= 0.0 {
        return Ok(());
    }
    let parts = (shape.loss * 1e6).round() as u32;
    let rules = format!(
        "table netdev loss_{device} {{\n\
           chain in {{\n\
             type filter hook ingress device \"{device}\" priority 0; policy accept;\n\
             meta l4proto {{ tcp, udp }} numgen random mod 1000000 < {parts} counter drop\n\
           }}\n\
         }}\n"
    );
    feed("ip", &["netns", "exec", namespace, "nft", "-f", "-"], &rules).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{Link, Network, Spec, missing};
    use crate::emulator::pipe::Shape;
    use crate::footprint::Footprint;

    #[test]
    fn what_is_lost_at_a_machine_did_not_arrive_there() {
        if let Some(why) = missing() {
            let name = "what_is_lost_at_a_machine_did_not_arrive_there";
            return crate::skipped::skipped(name, &why);
        }
        let down = Shape { loss: 0.5, ..Shape::default() };
        let spec = Spec { receivers: vec![Link { down, ..Link::default() }], ..Spec::default() };
        let network = Network::build(&Footprint::of_a_test(), &spec).unwrap();
        // By multicast, so that nobody answers that nobody listens.
        let send = "dd if=/dev/zero bs=1400 count=500 >/dev/udp/239.1.2.3/9";
        let receiver = &network.receivers[0];
        let packets = || receiver.counters("eth0").unwrap().rx_packets;
        // A link carries nothing for a moment after it was set up.
        let comes = (0..600).any(|_| {
            network.sender.run("bash", &["-c", send]).unwrap();
            packets() >= 500
        });
        assert!(comes, "nothing arrives");
        let seen = || {
            let came = receiver.counters("eth0").unwrap();
            let (lost, _) = receiver.dropped_on_purpose("eth0").unwrap();
            (came.rx_packets, came.rx_bytes, receiver.arrived_bytes("eth0").unwrap(), lost)
        };
        // What is on its way comes within a moment.
        let (mut last, mut now) = (seen(), seen());
        while now != last {
            (last, now) = (now, seen());
        }
        let (packets, came, arrived, lost) = now;
        assert!((0.3..0.7).contains(&(lost as f64 / packets as f64)), "{lost} of {packets}");
        // The kernel's own few bytes (neighbours, groups) may have come between the two.
        let frame = 14 + 20 + 8 + 1400;
        let rest = came as i64 - arrived as i64 - lost as i64 * frame;
        assert!((0..frame).contains(&rest), "{came} {arrived} {lost}");
    }
}
