//! One machine of the network: what runs there, and what passed its interfaces.

use crate::shell::{self, run};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::process::Command;

/// Of an Ethernet frame's header.
const ETHERNET_BYTES: u64 = 14;

/// A network namespace and its address.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The namespace.
    pub(crate) namespace: String,
    /// Address of its `eth0`.
    pub(crate) ipv4: String,
}

/// What passed an interface. Bytes are those of Ethernet frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_packets: u64,
    /// What the interface could not take to send.
    pub(crate) tx_dropped: u64,
}

impl Host {
    pub(super) fn new(namespace: String, ipv4: String) -> Self {
        Self { namespace, ipv4 }
    }

    /// A command that will run `program` on this machine and count in this control group.
    pub(crate) fn command(&self, group: Option<&Path>, program: &str) -> Command {
        let mut command = in_group(group, "ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Runs a tool on this machine to its end.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        run("ip", &[&["netns", "exec", &self.namespace, program], arguments].concat())
    }

    /// What passed a device so far.
    pub(crate) fn counters(&self, device: &str) -> io::Result<Counters> {
        let show = ["-n", &self.namespace, "-s", "-j", "link", "show", device];
        let json = shell::json("ip", &show)?;
        let number = |way: &str, what: &str| json[0]["stats64"][way][what].as_u64().unwrap_or(0);
        Ok(Counters {
            rx_bytes: number("rx", "bytes"),
            tx_bytes: number("tx", "bytes"),
            rx_packets: number("rx", "packets"),
            tx_dropped: number("tx", "dropped"),
        })
    }

    /// Packets that the shaper at a device had no room for.
    pub(super) fn shaper_drops(&self, device: &str) -> io::Result<u64> {
        let show = ["-n", &self.namespace, "-s", "-j", "qdisc", "show", "dev", device];
        let json = shell::json("tc", &show)?;
        let disciplines = json.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(disciplines.iter().filter_map(|one| one["drops"].as_u64()).sum())
    }

    /// Bytes that came in at a device and were not dropped there on purpose: its own counter has those too.
    pub(crate) fn arrived_bytes(&self, device: &str) -> io::Result<u64> {
        let came = self.counters(device)?.rx_bytes;
        let (_, dropped) = self.dropped_on_purpose(device)?;
        Ok(came.saturating_sub(dropped))
    }

    /// Packets that nftables dropped at a device because it was asked to, and the bytes of their frames.
    pub(super) fn dropped_on_purpose(&self, device: &str) -> io::Result<(u64, u64)> {
        let table = format!("loss_{device}");
        let tables = self.run("nft", &["-j", "list", "tables"])?;
        if !tables.contains(&format!("\"{table}\"")) {
            return Ok((0, 0));
        }
        let text = self.run("nft", &["-j", "list", "table", "netdev", &table])?;
        let json: Value = serde_json::from_str(&text)?;
        let entries = json["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let expressions = entries.iter().filter_map(|entry| entry["rule"]["expr"].as_array());
        let counters: Vec<&Value> = expressions.flatten().map(|e| &e["counter"]).collect();
        let sum = |what: &str| counters.iter().filter_map(|one| one[what].as_u64()).sum::<u64>();
        let packets = sum("packets");
        // It sees them without the header of Ethernet.
        Ok((packets, sum("bytes") + packets * ETHERNET_BYTES))
    }

    /// Datagrams that arrived and found a full socket buffer.
    pub(crate) fn buffer_errors(&self) -> io::Result<u64> {
        let text = self.run("cat", &["/proc/net/snmp"])?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        let value = pairs.find(|(name, _)| *name == "RcvbufErrors").map(|(_, value)| value);
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
    }
}

/// A command that runs `program` in a control group, so that all that it starts is counted and killed with it.
pub(crate) fn in_group(group: Option<&Path>, program: &str) -> Command {
    let Some(group) = group else { return shell::command(program) };
    let mut command = shell::command("sh");
    command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
    command.arg(group.join("cgroup.procs")).arg(program);
    command
}
