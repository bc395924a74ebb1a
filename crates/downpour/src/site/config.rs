//! `site.toml`: everything that a site is told, in one file.
//!
//! [`Config`] composes the sections; each part of the site owns its own. To add one: declare it with
//! [`section!`](crate::section), give it a field here and a line in [`TABLES`], and in `complaints` a line if its values
//! have to agree with others.
//!
//! Paths are relative to the file's folder. How a file that is wrong is described is in [`super::check`].

use super::section::{Complaint, Table, named_twice};
use crate::cli::{Controller, EncryptionArg, PathArg};
use crate::defaults::Defaults;
use crate::dispatch::{MulticastSection, ReceiverSection, TransferSection};
use crate::mirror::MirrorSection;
use crate::notify::NotifySection;
use crate::reconcile::ReconcileSection;
use crate::section;
use crate::spool::{RuleSection, SpoolSection};
use crate::tuner::{self, TunerSection, TunerSource};
use crate::units::{Amount, HostPort, RATE_MIN, Span, Speed};
use downpour_catalog::CatalogUrl;
use downpour_proto::Rate;
use downpour_proto::transfer::CONNECTIONS_MAX;
use downpour_transport::control::{ClientLimits, ServerLimits};
use downpour_transport::identity::PublicKey;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Bytes of a name of a site, a remote or a token.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// A configuration that is longer is surely another file.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Name of the catalog's file in the state folder.
const CATALOG_FILE: &str = "catalog.db";

section! {
    /// This site: an administrative place, run by one daemon.
    [site]
    pub struct SiteSection {
        /// Name of the site, the same for ever: it is part of the identity of every file that begins here.
        name: String => "\"here\"",
        /// Folder for the node's key, tokens, the audit record and the catalog, unless `catalog` says otherwise.
        state: PathBuf = "\"state\"",
        /// The catalog: sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE.
        /// Without it, SQLite in the state folder.
        catalog: String | "\"postgres://downpour@localhost/downpour\"",
        /// How much is logged: error, warn, info, debug, trace.
        log: LogLevel = "\"info\"",
        /// How logs are written to standard error: text, or json with an object a line.
        log_form: LogForm = "\"text\"",
        /// How long services may finish what is under way when the daemon is asked to end.
        drain: Span = "\"30s\"",
    }
}

section! {
    /// The one door of the site: HTTPS for people, other sites and metrics.
    [api]
    pub struct ApiSection {
        /// Address and port to listen on.
        listen: SocketAddr = "\"0.0.0.0:28790\"",
        /// Host and port by which others reach it, when that differs; it is what `downpour` itself connects to.
        address: HostPort | "\"site.example.org:28790\"",
    }
}

section! {
    /// What one visitor may take of the door, so that others are served.
    [limits]
    pub struct LimitsSection {
        /// Connections at once; a stranger's oldest one makes room for the next.
        connections: usize = "1024",
        /// Connections at once from one address.
        connections_per_address: usize = "512",
        /// Bytes of a request's body; a longer one is refused unread.
        body: Amount = "\"1MiB\"",
        /// From the connection to the end of the TLS handshake.
        handshake: Span = "\"5s\"",
        /// How long a connection may idle before its next request.
        idle: Span = "\"30s\"",
        /// From the head of a request to the head of its answer, the request's body included; of what a person does to
        /// the end of the body, as what was begun is not cut off.
        request: Span = "\"60s\"",
        /// How long a visitor may take nothing of what is sent to it.
        stall: Span = "\"20s\"",
        /// Listeners to live events at once.
        listeners: usize = "64",
    }
}

section! {
    /// Another site that this one trusts, by its key. `downpour init --with` writes this.
    [[remote]]
    pub struct RemoteSection {
        /// Its name, as its own configuration has it.
        name: String => "\"there\"",
        /// Its node key, as its `downpour init` printed it.
        key: PublicKey => "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"",
        /// Host and port of its API; left out when only it can connect to us.
        address: HostPort | "\"there.example.org:28790\"",
        /// How long a connection to it may take.
        connect: Span = "\"5s\"",
        /// How long its answer may take.
        reply: Span = "\"30s\"",
        /// Batches to it at once.
        active: usize = "2",
        /// All batches to it, and what it fetches, are together never faster than this; without it the ceiling of defaults.toml.
        rate: Speed | "\"400mbit\"",
        /// Which path the bytes take: tcp, udp or auto.
        path: PathArg = "\"tcp\"",
        /// What of that which goes by TCP is encrypted: all or control.
        encryption: EncryptionArg = "\"all\"",
        /// TCP connections of each batch from it; without it 4, and 10 where the round trip is 5 ms or more.
        connections: u16 | "4",
        /// Where its files go; without it the inbox of `[transfer]`.
        folder: PathBuf | "\"inbox/there\"",
        /// Whether it may ask for files by their paths here.
        pull: bool = "false",
        /// Whether it may tell this site to fetch files from a third.
        orders: bool = "false",
        /// Ticket of its standing multicast session, a copy of its `multicast.ticket`: this site takes part in it.
        multicast: PathBuf | "\"there.ticket\"",
    }
}

/// All tables that there are.
pub const TABLES: &[Table] = &[
    SiteSection::TABLE,
    ApiSection::TABLE,
    LimitsSection::TABLE,
    RemoteSection::TABLE,
    SpoolSection::TABLE,
    RuleSection::TABLE,
    TransferSection::TABLE,
    MulticastSection::TABLE,
    ReceiverSection::TABLE,
    ReconcileSection::TABLE,
    MirrorSection::TABLE,
    NotifySection::TABLE,
    TunerSection::TABLE,
    TunerSource::TABLE,
];

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed for good.
    Error,
    /// And what will be tried again.
    Warn,
    /// And what began and ended.
    Info,
    /// And each step.
    Debug,
    /// And everything.
    Trace,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// A configuration that can be used as it stands.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Folder of the file; paths are relative to it.
    #[serde(skip)]
    pub folder: PathBuf,
    /// Who decides the rate of its streams: the machine's defaults say it.
    #[serde(skip)]
    pub controller: Controller,
    /// `[site]`
    pub site: SiteSection,
    /// `[api]`
    #[serde(default = "empty")]
    pub api: ApiSection,
    /// `[limits]`
    #[serde(default = "empty")]
    pub limits: LimitsSection,
    /// `[[remote]]`
    #[serde(default)]
    pub remote: Vec<RemoteSection>,
    /// `[transfer]`
    #[serde(default = "empty")]
    pub transfer: TransferSection,
    /// `[multicast]`
    #[serde(default = "empty")]
    pub multicast: MulticastSection,
    /// `[[receiver]]`
    #[serde(default)]
    pub receiver: Vec<ReceiverSection>,
    /// `[[spool]]`
    #[serde(default)]
    pub spool: Vec<SpoolSection>,
    /// `[[rule]]`
    #[serde(default)]
    pub rule: Vec<RuleSection>,
    /// `[reconcile]`
    #[serde(default = "empty")]
    pub reconcile: ReconcileSection,
    /// `[mirror]`
    #[serde(default = "empty")]
    pub mirror: MirrorSection,
    /// `[notify]`
    #[serde(default = "empty")]
    pub notify: NotifySection,
    /// `[tuner]`
    #[serde(default = "empty")]
    pub tuner: TunerSection,
    /// `[[tuner_source]]`
    #[serde(default)]
    pub tuner_source: Vec<TunerSource>,
}

/// A section that says nothing, of which every key has a default.
///
/// # Panics
/// If one has none. A test reads a file with `[site] name` alone.
pub fn empty<T: serde::de::DeserializeOwned>() -> T {
    toml::from_str("").expect("every key of this section has a default")
}

impl Config {
    /// What is wrong with the values together.
    pub(super) fn complaints(&self) -> Vec<Complaint> {
        let mut found = Vec::new();
        check_name("site.name", &self.site.name, &mut found);
        let checked = self.site.catalog.as_ref().map(|url| match url.parse::<CatalogUrl>() {
            Ok(url) => url.check(),
            Err(error) => Err(error.to_string()),
        });
        if let Some(Err(what)) = checked {
            let todo = "write it as sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE";
            found.push(Complaint::new("site.catalog", what, todo));
        }
        if self.limits.body.0 < 1024 {
            let what = "no request of use fits into less than 1 KiB";
            found.push(Complaint::new("limits.body", what, "give it 64KiB or more"));
        }
        self.check_zeros(&mut found);
        self.check_remotes(&mut found);
        let sites: Vec<_> = self.remote.iter().map(|remote| remote.name.as_str()).collect();
        found.extend(crate::spool::check(&self.site.name, &sites, &self.spool, &self.rule));
        self.transfer.complaints(&mut found);
        self.notify.complaints(&mut found);
        crate::dispatch::check_receivers(self, &mut found);
        let mut all = sites.clone();
        all.push(&self.site.name);
        tuner::complaints(&self.tuner, &self.tuner_source, &all, &mut found);
        let with = self.reconcile.with.iter().flatten().map(|name| ("reconcile.with", name));
        for (at, name) in with.chain(self.mirror.of.iter().map(|name| ("mirror.of", name))) {
            if !self.remote.iter().any(|remote| remote.name == *name) {
                let what = format!("no [[remote]] is called `{name}`");
                found.push(Complaint::new(at, what, "write it as a [[remote]] has it, or add one"));
            }
        }
        for (at, names) in [
            ("reconcile.with", self.reconcile.with.as_deref().unwrap_or_default()),
            ("mirror.of", &self.mirror.of),
        ] {
            if let Some(name) = named_twice(names) {
                let what = format!("`{name}` is named twice");
                found.push(Complaint::new(at, what, "name each site once"));
            }
        }
        found
    }

    /// Takes what the machine's defaults say where the file says nothing, and keeps its rates below a hard ceiling. Says what is wrong
    /// then.
    pub(super) fn heed(&mut self, defaults: &Defaults) -> Vec<Complaint> {
        let rates = self.remote.iter_mut().map(|remote| &mut remote.rate);
        for rate in rates.chain([&mut self.multicast.rate]) {
            *rate = defaults.ceiling_for(rate.map(|rate| *rate)).0.map(Speed);
        }
        let is_known = self.remote.iter().all(|remote| remote.rate.is_some());
        let is_known = is_known && self.multicast.rate.is_some();
        self.controller = match Controller::of(defaults) {
            // At no rate nothing can be fixed.
            Controller::Fixed if !is_known => Controller::Auto,
            controller => controller,
        };
        let mut found = Vec::new();
        self.check_rates(" of the ceiling in defaults.toml", &mut found);
        found
    }

    fn check_remotes(&self, found: &mut Vec<Complaint>) {
        let mut names = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for (index, remote) in self.remote.iter().enumerate() {
            let at = |key: &str| format!("remote.{index}.{key}");
            check_name(&at("name"), &remote.name, found);
            if remote.name == self.site.name {
                let what = format!("`{}` is this site itself", remote.name);
                found.push(Complaint::new(at("name"), what, "give the other site's own name"));
            }
            if names.insert(&remote.name, index).is_some() {
                let what = format!("there is another [[remote]] `{}`", remote.name);
                found.push(Complaint::new(at("name"), what, "keep one of the two"));
            }
            if keys.insert(remote.key, index).is_some() {
                let what = "another [[remote]] has the same key";
                let todo = "give each site the key that its own `downpour init` printed";
                found.push(Complaint::new(at("key"), what, todo));
            }
            if remote.address.as_ref().is_some_and(|address| address.port == 0) {
                let what = "nobody can connect to port 0";
                found.push(Complaint::new(at("address"), what, "give the port that it listens on"));
            }
            if remote.active == 0 {
                let todo = "give it 1 or more; `downpour transfer drain` sends nothing to a site";
                found.push(Complaint::new(at("active"), "nothing could go there", todo));
            }
            for (key, time) in [("connect", remote.connect), ("reply", remote.reply)] {
                if time.is_zero() {
                    let what = "it could not answer in no time";
                    found.push(Complaint::new(at(key), what, "give it more, such as 5s"));
                }
            }
            if remote.connections.is_some_and(|many| !(1..=CONNECTIONS_MAX).contains(&many)) {
                let what = format!("a batch has 1 to {CONNECTIONS_MAX} connections");
                found.push(Complaint::new(at("connections"), what, "give it so many, such as 4"));
            }
        }
        self.check_rates("", found);
    }

    /// Zeros by which nobody comes in, nothing is done, or one thing is done without end.
    fn check_zeros(&self, found: &mut Vec<Complaint>) {
        let (limits, reconcile, mirror) = (&self.limits, &self.reconcile, &self.mirror);
        let none = |time: Span| time.is_zero();
        let nobody = "nobody would be let in, this site's own commands neither";
        let zeros = [
            ("limits.connections", limits.connections == 0, nobody, "1024"),
            ("limits.connections_per_address", limits.connections_per_address == 0, nobody, "512"),
            ("limits.handshake", none(limits.handshake), nobody, "5s"),
            ("limits.idle", none(limits.idle), nobody, "30s"),
            ("limits.request", none(limits.request), nobody, "60s"),
            ("limits.stall", none(limits.stall), nobody, "20s"),
            ("transfer.lease", none(self.transfer.lease), "no work would be kept", "60s"),
            ("reconcile.every", none(reconcile.every), "it would compare without end", "1h"),
            ("reconcile.stuck", none(reconcile.stuck), "all that moves would be told of", "24h"),
            ("reconcile.scrub_every", none(reconcile.scrub_every), "it would read on and on", "7d"),
            ("reconcile.scrub_rate", reconcile.scrub_rate.0 == 0, "nothing would be read", "20MB"),
            ("reconcile.scrub_files", reconcile.scrub_files == 0, "nothing would be read", "100"),
            ("mirror.every", none(mirror.every), "sites would be asked without end", "5s"),
            ("mirror.silent", none(mirror.silent), "each site would be an alarm", "15m"),
        ];
        for (at, _, what, sample) in zeros.into_iter().filter(|(_, is_zero, ..)| *is_zero) {
            found.push(Complaint::new(at, what, format!("give it more, such as {sample}")));
        }
    }

    /// Whether each batch has enough of its remote's rate, which is that `of` something else or its own.
    fn check_rates(&self, of: &str, found: &mut Vec<Complaint>) {
        for (index, remote) in self.remote.iter().enumerate() {
            if remote.rate_each().is_some_and(|rate| rate < RATE_MIN) {
                let parts = remote.parts();
                let what = format!("each of its {parts} parts{of} is less than {RATE_MIN}");
                let least = Rate::from_bps(RATE_MIN.bps().saturating_mul(parts));
                let todo = format!("give at least {least}, or fewer batches at once as `active`");
                found.push(Complaint::new(format!("remote.{index}.rate"), what, todo));
            }
        }
    }

    /// A path of the configuration, from where the daemon stands.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.path(&self.site.state)
    }

    /// Where what another site sends goes.
    pub fn inbox_of(&self, remote: &RemoteSection) -> PathBuf {
        self.path(remote.folder.as_ref().unwrap_or(&self.transfer.inbox))
    }

    /// Folders into which files of other sites are received.
    pub fn inboxes(&self) -> Vec<PathBuf> {
        let own = self.remote.iter().filter_map(|remote| remote.folder.as_ref());
        own.chain([&self.transfer.inbox]).map(|folder| self.path(folder)).collect()
    }

    /// Where the catalog is.
    pub fn catalog(&self) -> CatalogUrl {
        let named = self.site.catalog.as_ref().and_then(|url| url.parse().ok());
        match named {
            Some(CatalogUrl::Sqlite(path)) => CatalogUrl::Sqlite(self.path(&path)),
            Some(url) => url,
            None => CatalogUrl::Sqlite(self.state().join(CATALOG_FILE)),
        }
    }

    /// What the endpoint allows.
    pub fn server_limits(&self) -> ServerLimits {
        let said = &self.limits;
        ServerLimits {
            connections_max: said.connections,
            connections_per_peer_max: said.connections_per_address,
            handshake_time_max: *said.handshake,
            head_time_max: *said.idle,
            stall_time_max: *said.stall,
            silence_time_max: *said.stall,
            ..ServerLimits::default()
        }
    }

    /// Whether going from `self` to `new` needs another process, and for which key.
    pub fn needs_restart(&self, new: &Self) -> Option<&'static str> {
        let differ = [
            ("site.name", self.site.name != new.site.name),
            ("site.state", self.state() != new.state()),
            ("site.catalog", self.catalog() != new.catalog()),
            ("site.log_form", self.site.log_form != new.site.log_form),
        ];
        differ.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
    }
}

impl RemoteSection {
    /// What a request to it may take.
    pub fn limits(&self) -> ClientLimits {
        ClientLimits {
            connect_time_max: *self.connect,
            handshake_time_max: *self.connect,
            reply_time_max: *self.reply,
            ..ClientLimits::default()
        }
    }

    /// Into how many its rate is divided: what it fetches takes as much as a batch, at least.
    fn parts(&self) -> u64 {
        let active = u64::try_from(self.active).unwrap_or(1).max(1);
        active.saturating_add(u64::from(self.pull))
    }

    /// What one of its batches may take of its rate.
    pub fn rate_each(&self) -> Option<Rate> {
        self.rate.map(|rate| Rate::from_bps((rate.bps() / self.parts()).max(1)))
    }

    /// What it may fetch of its rate beside so many batches.
    pub fn rate_of_fetches(&self, batches: usize) -> Option<Rate> {
        let each = self.rate_each()?.bps();
        let taken = each.saturating_mul(u64::try_from(batches).unwrap_or(u64::MAX));
        self.rate.map(|rate| Rate::from_bps(rate.bps().saturating_sub(taken).max(each)))
    }
}

/// Names stand in paths, URLs and metrics.
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(fits)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn check_name(at: &str, name: &str, found: &mut Vec<Complaint>) {
    if !is_name(name) {
        let what = format!("`{name}` cannot be a name");
        let todo = "take up to 64 letters, digits, - _ and ., beginning with a letter or digit";
        found.push(Complaint::new(at, what, todo));
    }
}
