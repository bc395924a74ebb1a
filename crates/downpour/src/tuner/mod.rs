//! The tuner: what is known of a path before a transfer, where from, and the plan that follows.
//!
//! ```text
//! sources ─▶ samples ─▶ registry ─▶ Measured ─▶ `plan` (`downpour_proto::transfer`)
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `source` | the trait that all sources share |
//! | `sample` | one figure: key, metric, time, unit, origin; what none can be is refused there |
//! | `registry` | asks them all, lets old figures fade, names what is dead |
//! | `section` | `[tuner]` and `[[tuner_source]]` of `site.toml` |
//! | `opensearch`, `pscheduler`, `esmond` | perfSONAR: archive of today, what tests, archive of before |
//! | `maddash`, `dashboard`, `check_line` | grids, the dashboard of 2013, the line of a check |
//! | `history`, `probe`, `fixed`, `saved` | our own transfers, a short download, the configuration's word, a saved reply |
//! | `client`, `lenient`, `file` | HTTP with its bounds; JSON as archives write it; files, read beside |
//! | `plan` | what follows, for sockets and for people |
//!
//! **Invariant:** no figure is assumed. What is not known is `None`, and each figure tells its origin and age.
//! For operators: `docs/tuner.md`.

mod check_line;
mod client;
mod dashboard;
mod esmond;
mod file;
mod fixed;
mod history;
mod lenient;
mod maddash;
mod opensearch;
pub mod plan;
mod probe;
mod pscheduler;
mod registry;
mod sample;
mod saved;
mod section;
mod source;

pub use history::Seen;
pub use probe::{ProbeReport, ProbeWish, part};
pub use registry::{Combined, LeftOut, Registry};
pub use sample::{
    Direction, Host, IpVersion, Key, Metric, Origin, Refused, Sample, Spread, same_host,
};
pub use section::{SourceKind, TunerSection, TunerSource, complaints};
pub use source::{Ask, Asking, End, Found, Source, SourceError};

use crate::site::{Config, Remote};
use client::Client;
use downpour_catalog::Time;
use downpour_transport::identity::Identity;
use downpour_transport::web::{Trust, Web, WebLimits};
use file::Kind;
use registry::{Entry, in_time};
use saved::Pair;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a file of authorities.
const PEM_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a saved reply that a person gives.
const SAVED_BYTES_MAX: u64 = 64 << 20;
/// After this a source is given up that does not keep to its own time.
const GRACE: Duration = Duration::from_secs(1);

/// What the configuration alone does not give.
#[derive(Clone)]
pub struct Means {
    /// What time it is.
    pub now: Time,
    /// This node's key; without it there is no probe.
    pub identity: Option<Arc<Identity>>,
    /// What is remembered of our own transfers on the path. A `history` that is not configured is the last source.
    pub seen: Vec<Seen>,
    /// What was found before by loading the path ([`Combined::probed`]).
    pub probed: Vec<Sample>,
}

/// What is known of the path from one site or host to another, from all sources that are configured.
pub async fn measurements(
    source: &str,
    destination: &str,
    config: &Config,
    means: Means,
) -> Combined {
    let ask = Ask {
        source: end(source, config),
        destination: end(destination, config),
        ip: config.tuner.ip.and_then(|ip| IpVersion::numbered(f64::from(ip))),
        now: means.now,
        age_max: *config.tuner.age_max,
    };
    Registry::of(config, &means).await.ask(&ask).await
}

/// What a saved reply of any kind says of a path, however old it is. A site's configuration, when there is one, tells by which
/// names its machines measure.
pub async fn from_file(
    file: &Path,
    source: &str,
    destination: &str,
    config: Option<&Config>,
    now: Time,
) -> Combined {
    let of = |name: &str| config.map_or_else(|| End::new(name), |config| end(name, config));
    let ask = Ask {
        source: of(source),
        destination: of(destination),
        ip: None,
        now,
        age_max: Duration::MAX,
    };
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    let (file, kind, len_max) = (file.to_owned(), Kind::Any, SAVED_BYTES_MAX);
    let saved = saved::Saved { name, file, kind, len_max, pair: Pair::Asked };
    let entry = Entry { source: Box::new(saved), time_max: Duration::MAX };
    let half_life = config.map_or(Duration::from_secs(6 * 3600), |config| *config.tuner.half_life);
    let (probed, unusable) = (Vec::new(), Vec::new());
    Registry { entries: vec![entry], half_life, probed, unusable }.ask(&ask).await
}

/// A site or host by all its names: those by which it measures, its own, and that of its door.
pub fn end(name: &str, config: &Config) -> End {
    let mut hosts = config.tuner.hosts.get(name).cloned().unwrap_or_default();
    hosts.push(name.to_owned());
    let remote = config.remote.iter().find(|remote| remote.name == name);
    let door = match remote {
        Some(remote) => remote.address.as_ref(),
        None if name == config.site.name => config.api.address.as_ref(),
        None => None,
    };
    hosts.extend(door.map(|door| door.host.clone()));
    End { name: name.to_owned(), hosts }
}

impl Registry {
    /// All sources of a configuration.
    pub async fn of(config: &Config, means: &Means) -> Self {
        let half_life = *config.tuner.half_life;
        let (probed, unusable) = (means.probed.clone(), Vec::new());
        let mut registry = Self { entries: Vec::new(), half_life, probed, unusable };
        for section in &config.tuner_source {
            let time_max = section.timeout.saturating_add(GRACE);
            match in_time(time_max, sources_of(section, config, means)).await {
                Ok(sources) => {
                    let entries = sources.into_iter().map(|source| Entry { source, time_max });
                    registry.entries.extend(entries);
                }
                Err(error) => registry.unusable.push(LeftOut {
                    source: section.name.clone(),
                    what: error.to_string(),
                    times: 1,
                    silent: true,
                }),
            }
        }
        let named = config.tuner_source.iter().any(|section| section.kind == SourceKind::History);
        if !named && !means.seen.is_empty() {
            let source =
                Box::new(history::History { name: "history".to_owned(), seen: means.seen.clone() });
            registry.entries.push(Entry { source, time_max: GRACE });
        }
        registry
    }
}

async fn sources_of(
    section: &TunerSource,
    config: &Config,
    means: &Means,
) -> Result<Vec<Box<dyn Source>>, SourceError> {
    let name = section.name.clone();
    if section.kind.is_archive() {
        return archive(section, client(section, config).await?);
    }
    Ok(vec![match section.kind {
        SourceKind::File => {
            let file = config.path(section.file.as_deref().unwrap_or(Path::new("")));
            let pair = match (&section.from, &section.to) {
                (Some(from), Some(to)) => Pair::Said(Host::new(from), Host::new(to)),
                _ => Pair::Unsaid,
            };
            let (kind, len_max) = (Kind::Regular, *section.bytes_max);
            Box::new(saved::Saved { name, file, kind, len_max, pair })
        }
        SourceKind::History => Box::new(history::History { name, seen: means.seen.clone() }),
        SourceKind::Probe => {
            let Some(identity) = &means.identity else {
                return Err(SourceError::Unusable("a probe needs the node's key".to_owned()));
            };
            let remotes = config.remote.iter();
            let remotes = remotes.map(|remote| Arc::new(Remote::new(remote.clone(), identity)));
            let time_ms = u64::try_from(section.timeout.as_millis()).unwrap_or(u64::MAX);
            let wish = ProbeWish { bytes: *section.probe_bytes, time_ms };
            let here = config.site.name.clone();
            Box::new(probe::Probe { name, here, remotes: remotes.collect(), wish })
        }
        _ => Box::new(fixed::Fixed { section: section.clone() }),
    }])
}

fn archive(section: &TunerSource, client: Client) -> Result<Vec<Box<dyn Source>>, SourceError> {
    let name = section.name.clone();
    Ok(match section.kind {
        SourceKind::OpenSearch => vec![Box::new(opensearch::OpenSearch { name, client })],
        SourceKind::Esmond => vec![Box::new(esmond::Esmond { name, client })],
        SourceKind::Maddash => vec![Box::new(maddash::Maddash { name, client })],
        SourceKind::Dashboard => vec![Box::new(dashboard::Dashboard { name, client })],
        _ => {
            let on_demand = section.test.map(|test| pscheduler::OnDemand {
                name: name.clone(),
                client: client.clone(),
                time_max: *section.timeout,
                duration: *test,
            });
            let mut both: Vec<Box<dyn Source>> =
                vec![Box::new(pscheduler::PScheduler { name, client })];
            both.extend(on_demand.map(|test| Box::new(test) as Box<dyn Source>));
            both
        }
    })
}

async fn client(section: &TunerSource, config: &Config) -> Result<Client, SourceError> {
    let unusable = |what: String| SourceError::Unusable(what);
    let trust = match (&section.pin, &section.ca) {
        (Some(pin), _) => Trust::Key(pin.parse().map_err(|error| unusable(format!("{error}")))?),
        (None, Some(file)) => {
            let (pem, _) = file::read(config.path(file), Kind::Regular, PEM_BYTES_MAX).await?;
            Trust::Authorities(pem)
        }
        (None, None) => Trust::Machine,
    };
    let len_max = usize::try_from(*section.bytes_max).unwrap_or(usize::MAX);
    let limits = WebLimits { time_max: *section.timeout, len_max };
    let web = Web::new(&trust, limits).map_err(|error| unusable(error.to_string()))?;
    Ok(Client::new(web, section.url.as_deref().unwrap_or_default()))
}
