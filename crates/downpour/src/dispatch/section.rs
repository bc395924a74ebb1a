//! What `site.toml` says of moving files: `[transfer]`, `[multicast]`, `[[receiver]]`. What it says of one link stands in its `[[remote]]`.

use crate::cli::{Interface, KEEP_BYTES_MIN, check_group};
use crate::ports::PortRange;
use crate::section;
use crate::site::section::{Complaint, named_twice};
use crate::site::{Config, RemoteSection, is_name};
use crate::ticket::{ALLOW_MAX, is_addr};
use crate::units::{Amount, HostPort, Span, Speed};
use downpour_transport::identity::PublicKey;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

section! {
    /// Moving files between sites.
    [transfer]
    pub struct TransferSection {
        /// Folders from which `transfer submit` and other sites' wants may take files, besides the spools.
        folders: Vec<PathBuf> = "[]",
        /// Where files from other sites go, unless their `[[remote]]` says otherwise.
        inbox: PathBuf = "\"inbox\"",
        /// Batches under way at once, over all links, in each direction.
        active: usize = "4",
        /// Files in one batch, 1000 at most.
        batch_files: usize = "1000",
        /// Bytes in one batch; a longer file goes by itself.
        batch_bytes: Amount = "\"4GB\"",
        /// How long work stays a daemon's own that does not say any more that it is alive.
        lease: Span = "\"60s\"",
        /// Host by which other sites reach this one's sessions, when that differs from its addresses.
        host: String | "\"site.example.org\"",
        /// First and last port for sessions, of TCP and UDP.
        ports: String = "\"28800-28819\"",
        /// Shares of a link among rules of one priority: a rule that is not named has 1.
        shares: BTreeMap<String, f64> = "{}",
        /// Whether each file that arrived is read back and compared before its receipt.
        read_back: bool = "true",
    }
}

section! {
    /// The standing multicast session that serves the rules with `receivers`.
    [multicast]
    pub struct MulticastSection {
        /// Where receivers join, by TCP. Feedback comes by UDP to one of the ports of `[transfer]`.
        port: u16 = "28820",
        /// Host by which receivers reach it, when that differs from its addresses.
        host: String | "\"site.example.org\"",
        /// Group of the stream, with its port. Without it each session chooses one.
        group: SocketAddr | "\"239.255.28.1:28821\"",
        /// Interface of the stream, and of those of other sites, by name or address. Without it: the one with the route
        /// to the group.
        interface: String | "\"eth0\"",
        /// It is never faster than this.
        rate: Speed | "\"400mbit\"",
        /// Memory for what was sent, for repair and for receivers that are behind.
        keep: Amount = "\"256MB\"",
    }
}

section! {
    /// A machine that takes part in the standing multicast session: `downpour receive @multicast.ticket --stay`.
    /// Or a site, with the name and the key of its `[[remote]]`, whose own one for this site says `multicast`.
    [[receiver]]
    pub struct ReceiverSection {
        /// Its name in rules and in the catalog.
        name: String => "\"node1\"",
        /// Its node key, as its `downpour ticket key` prints it.
        key: PublicKey => "\"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"",
    }
}

/// What is wrong with `[multicast]`, `[[receiver]]` and the rules that name receivers.
pub fn check_receivers(config: &Config, found: &mut Vec<Complaint>) {
    config.multicast.complaints(found);
    let mut say = |at: String, what: String, todo: &str| found.push(Complaint::new(at, what, todo));
    if config.receiver.len() > ALLOW_MAX {
        let what = format!(
            "{} receivers, and a session admits {ALLOW_MAX} by their keys",
            config.receiver.len()
        );
        say(format!("receiver.{ALLOW_MAX}.name"), what, "serve them from two sites");
    }
    for (index, receiver) in config.receiver.iter().enumerate() {
        let at = |key: &str| format!("receiver.{index}.{key}");
        let before = &config.receiver[..index];
        if !is_name(&receiver.name) {
            let todo = "take up to 64 letters, digits, - _ and ., beginning with a letter or digit";
            say(at("name"), format!("`{}` cannot be a name", receiver.name), todo);
        }
        let mut taken = before.iter().map(|other| &other.name).chain([&config.site.name]);
        if taken.any(|name| *name == receiver.name) {
            let what = format!("another receiver, or this site, is called `{}`", receiver.name);
            say(at("name"), what, "give each a name of its own");
        }
        // A site that takes part is that site: what it has is its replica.
        let mut sites = config.remote.iter();
        let half =
            |site: &&RemoteSection| (site.name == receiver.name) != (site.key == receiver.key);
        if let Some(site) = sites.find(half) {
            let what = format!("[[remote]] {} has this name or this key, not both", site.name);
            let todo = "give a site that takes part the name and the key of its [[remote]], and a machine its own";
            say(at("key"), what, todo);
        }
        if before.iter().any(|other| other.key == receiver.key) {
            let todo = "give each receiver the key that its own `downpour ticket key` prints";
            say(at("key"), "another [[receiver]] has the same key".to_owned(), todo);
        }
    }
    if config.rule.iter().any(|rule| !rule.receivers.is_empty()) {
        let port = config.multicast.port;
        if port == config.api.listen.port() {
            let what = format!("[api] listens on {port} already");
            say("multicast.port".to_owned(), what, "give each a port of its own");
        }
        let sessions = config.transfer.ports.parse::<PortRange>();
        if let Some(ports) = sessions.ok().filter(|ports| ports.ports().contains(&port)) {
            let what = format!("{port} is one of `ports` of [transfer], {ports}");
            say("multicast.port".to_owned(), what, "take one that is not");
        }
    }
    for (index, rule) in config.rule.iter().enumerate() {
        let unknown = |name: &&String| !config.receiver.iter().any(|known| known.name == **name);
        if let Some(name) = rule.receivers.iter().find(unknown) {
            let what = format!("no [[receiver]] is called `{name}`");
            say(format!("rule.{index}.receivers"), what, "add it, with its key");
        }
        if let Some(name) = named_twice(&rule.receivers) {
            let what = format!("`{name}` is named twice, and can have a file but once");
            say(format!("rule.{index}.receivers"), what, "name each receiver once");
        }
    }
}

/// What is wrong with the interface of streams, where there are any. One that is away may come back: a daemon waits for it.
pub fn check_interface(config: &Config) -> Option<Complaint> {
    let sends = config.rule.iter().any(|rule| !rule.receivers.is_empty());
    let takes = config.remote.iter().any(|remote| remote.multicast.is_some());
    let named = config.multicast.interface.as_deref().filter(|_| sends || takes)?;
    let fault = Interface::find(named).err()?;
    Some(Complaint::new("multicast.interface", fault.what, fault.todo))
}

/// A part of a whole; no number is none.
fn is_share(share: f64) -> bool {
    share > 0.0 && share.is_finite()
}

/// A host goes into tickets, with a port.
fn check_host(at: &str, host: Option<&str>, found: &mut Vec<Complaint>) {
    let Some(host) = host else { return };
    if !is_addr(&HostPort { host: host.to_owned(), port: u16::MAX }.to_string()) {
        let todo = "write a name or an address, without port and brackets";
        found.push(Complaint::new(at, format!("`{host}` is no host"), todo));
    }
}

impl MulticastSection {
    fn complaints(&self, found: &mut Vec<Complaint>) {
        check_host("multicast.host", self.host.as_deref(), found);
        if let Some(Err(fault)) = self.group.map(|group| check_group(group, false)) {
            let todo = "take one of 239.255.0.0/16 or ff15::/16, and a port above 1023";
            found.push(Complaint::new("multicast.group", fault.what, todo));
        }
        if self.keep.0 < KEEP_BYTES_MIN {
            let what = "less than 16 MB cannot keep what is on its way";
            found.push(Complaint::new("multicast.keep", what, "give it at least 16MB"));
        }
    }
}

impl TransferSection {
    /// What is wrong with the values.
    pub fn complaints(&self, found: &mut Vec<Complaint>) {
        if !(1..=super::offer::OFFER_FILES_MAX).contains(&self.batch_files) {
            let what = format!("a batch of {} files", self.batch_files);
            found.push(Complaint::new("transfer.batch_files", what, "give it 1 to 1000"));
        }
        if self.active == 0 {
            let todo = "give it 1 or more; `downpour service stop dispatch` moves nothing";
            found.push(Complaint::new("transfer.active", "nothing could move", todo));
        }
        if let Err(error) = self.ports.parse::<PortRange>() {
            let todo = "write FIRST-LAST, such as 28800-28819";
            found.push(Complaint::new("transfer.ports", error.to_string(), todo));
        }
        check_host("transfer.host", self.host.as_deref(), found);
        if let Some((rule, share)) = self.shares.iter().find(|(_, share)| !is_share(**share)) {
            let what = format!("the share of {rule} is {share}");
            found.push(Complaint::new("transfer.shares", what, "give it more than 0"));
        }
    }

    /// What a rule gets of a link, beside others of its priority.
    pub fn share(&self, rule: &str) -> f64 {
        self.shares.get(rule).copied().unwrap_or(1.0)
    }
}
