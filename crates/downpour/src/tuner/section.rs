//! What `site.toml` says of the tuner: `[tuner]` and its sources, `[[tuner_source]]`.

use crate::section;
use crate::site::section::Complaint;
use crate::units::{Amount, Span, Speed};
use downpour_transport::web::KeyPin;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A test on demand needs this long at least: it waits for its turn, then sends for some seconds.
const TEST_TIME_MIN: Duration = Duration::from_secs(20);

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// The archive of perfSONAR 5.
    OpenSearch,
    /// What tests, in perfSONAR.
    PScheduler,
    /// The archive of perfSONAR 4.
    Esmond,
    /// Grids of checks.
    Maddash,
    /// The dashboard of 2013.
    Dashboard,
    /// A saved reply of any of these, or a check's line.
    File,
    /// Our own transfers.
    History,
    /// A short download from the other site, or by it.
    Probe,
    /// What this file says.
    Static,
}

section! {
    /// Where the tuner has figures on paths from, and how long they count. `docs/tuner.md` explains.
    [tuner]
    pub struct TunerSection {
        /// After this time a figure counts half.
        half_life: Span = "\"6h\"",
        /// What is older is not taken.
        age_max: Span = "\"7d\"",
        /// How often the sources are asked about each path to and from another site, in the background; after a transfer on it,
        /// after a tenth of this.
        every: Span = "\"10m\"",
        /// Only figures over this IP: 4 or 6.
        ip: u8 | "6",
        /// Names and addresses of the machines that measure for a site, this one or a remote, the best known first:
        /// { here = ["ps.example.org", "2001:db8::5"] }
        hosts: BTreeMap<String, Vec<String>> = "{}",
    }
}

section! {
    /// A source of figures. Their order here is the order of trust.
    [[tuner_source]]
    pub struct TunerSource {
        /// A name for it, which stands beside its figures.
        name: String => "\"said\"",
        /// What it is: opensearch, pscheduler, esmond, maddash, dashboard, file, history, probe or static.
        kind: SourceKind => "\"static\"",
        /// Where an archive is, such as https://HOST/opensearch, https://HOST/pscheduler, https://HOST/esmond/perfsonar/archive,
        /// https://HOST/maddash.
        url: String | "\"https://ps.example.org/opensearch\"",
        /// The key of its certificate: sha256//BASE64, as `curl --pinnedpubkey` has it. Its name and dates do not matter then.
        pin: String | "\"sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"",
        /// File with the certificates (PEM) of who vouches for it; without this and a pin, those that this machine trusts.
        ca: PathBuf | "\"/etc/downpour/ps-ca.pem\"",
        /// How long all of its answers together may take.
        timeout: Span = "\"10s\"",
        /// Bytes that one of its answers may have.
        bytes_max: Amount = "\"4MiB\"",
        /// For pscheduler: start a test when nothing recent is known, and send for so long.
        test: Span | "\"5s\"",
        /// For file: the file with the reply.
        file: PathBuf | "\"reply.json\"",
        /// For static, and for a file that does not say: the site at which the path begins.
        from: String | "\"here\"",
        /// The site at which it ends.
        to: String | "\"there\"",
        /// For static: what the path carries.
        throughput: Speed | "\"400mbit\"",
        /// For static: its round trip.
        rtt: Span | "\"12ms\"",
        /// For static: the share of packets that it loses, 0 to 1.
        loss: f64 | "0.0001",
        /// For probe: bytes that it downloads at most.
        probe_bytes: Amount = "\"16MiB\"",
    }
}

impl SourceKind {
    /// Whether it is asked over HTTP.
    pub(super) const fn is_archive(self) -> bool {
        matches!(
            self,
            Self::OpenSearch | Self::PScheduler | Self::Esmond | Self::Maddash | Self::Dashboard
        )
    }
}

/// What is wrong with the values; `sites` are this site and all remotes.
pub fn complaints(
    tuner: &TunerSection,
    sources: &[TunerSource],
    sites: &[&str],
    found: &mut Vec<Complaint>,
) {
    let known = |name: &str| sites.contains(&name);
    let no_site = |name: &str| format!("neither this site nor a [[remote]] is called `{name}`");
    for name in tuner.hosts.keys().filter(|name| !known(name)) {
        let todo = "write the site's name, as its [[remote]] has it";
        found.push(Complaint::new("tuner.hosts", no_site(name), todo));
    }
    if tuner.ip.is_some_and(|ip| ip != 4 && ip != 6) {
        found.push(Complaint::new("tuner.ip", "there is IP 4 and IP 6", "write 4 or 6"));
    }
    if tuner.every.is_zero() {
        let todo = "write a time, such as 10m";
        found.push(Complaint::new("tuner.every", "sources would be asked without end", todo));
    }
    if tuner.half_life.is_zero() {
        let todo = "write how long a figure counts, such as 6h";
        found.push(Complaint::new("tuner.half_life", "nothing would count", todo));
    }
    for (index, source) in sources.iter().enumerate() {
        let mut tell = |key: &str, what: String, todo: &str| {
            found.push(Complaint::new(format!("tuner_source.{index}.{key}"), what, todo));
        };
        if sources[..index].iter().any(|other| other.name == source.name) {
            let what = format!("there is another source `{}`", source.name);
            tell("name", what, "give it another name");
        }
        source.complain(&mut tell);
        for (key, name) in [("from", &source.from), ("to", &source.to)] {
            if let Some(name) = name.as_ref().filter(|name| !known(name)) {
                tell(key, no_site(name), "write the site's name, as its [[remote]] has it");
            }
        }
    }
}

impl TunerSource {
    fn complain(&self, tell: &mut impl FnMut(&str, String, &str)) {
        let plain = self.url.as_deref().map(|url| url.starts_with("http://"));
        let secure = self.url.as_deref().is_some_and(|url| url.starts_with("https://"));
        let trusts = self.pin.is_some() || self.ca.is_some();
        if self.kind.is_archive() {
            match plain {
                None => tell("kind", "it needs a `url`".to_owned(), "write url = \"https://…\""),
                Some(true) if trusts => {
                    let what = "a pin or ca means nothing without TLS".to_owned();
                    tell("url", what, "write https://, or remove pin and ca");
                }
                Some(false) if !secure => {
                    let what = "it is no URL of the web".to_owned();
                    tell("url", what, "write it as https://HOST/PATH");
                }
                Some(_) => {}
            }
            if self.pin.is_some() && self.ca.is_some() {
                let what = "a pin and a ca: only one can decide".to_owned();
                tell("pin", what, "keep one of the two");
            }
            if self.kind == SourceKind::PScheduler
                && self.test.is_some_and(|test| *self.timeout < TEST_TIME_MIN + *test)
            {
                let what = "a test does not end in this time".to_owned();
                tell("timeout", what, "give it 20s and the time of `test` at least");
            }
        }
        if let Some(Err(error)) = self.pin.as_ref().map(|pin| pin.parse::<KeyPin>()) {
            tell("pin", error.to_string(), "copy what the error of a wrong pin shows");
        }
        if self.kind == SourceKind::File && self.file.is_none() {
            tell("kind", "it needs a `file`".to_owned(), "write file = \"reply.json\"");
        }
        if self.kind == SourceKind::File && self.from.is_some() != self.to.is_some() {
            let what = "it says one end of the path alone".to_owned();
            tell("kind", what, "write both from and to, or neither");
        }
        if self.kind == SourceKind::Static {
            if self.from.is_none() || self.to.is_none() {
                let what = "it does not say between whom".to_owned();
                tell("kind", what, "write from = and to =, names of sites");
            }
            if self.throughput.is_none() && self.rtt.is_none() && self.loss.is_none() {
                let what = "it says nothing of the path".to_owned();
                tell("kind", what, "write throughput, rtt or loss");
            }
        }
        if self.loss.is_some_and(|loss| !(0.0..=1.0).contains(&loss)) {
            tell("loss", "a share lies between 0 and 1".to_owned(), "write 0.001 for 0.1 %");
        }
        if self.kind == SourceKind::Probe
            && !(1..=super::probe::BYTES_MAX).contains(&*self.probe_bytes)
        {
            let what = format!("a probe of {} bytes", *self.probe_bytes);
            tell("probe_bytes", what, "give it 1 B to 64MiB");
        }
    }
}
