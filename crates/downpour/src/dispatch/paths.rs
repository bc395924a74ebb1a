//! What is known of the paths to and from other sites, by all sources that are configured: service `tuner`.
//!
//! 1. One path after the other is asked about, each again after `[tuner] every`.
//! 2. What was found is kept with its time. Who plans takes it as it is, and waits for nobody.
//!
//! A source that is dead or slow costs its own time here, and no transfer's.

use super::lock;
use crate::site::{Config, Running, Service, Site, Status, Stop};
use crate::tuner::{Combined, LeftOut, Means, Sample, Seen, measurements};
use downpour_proto::transfer::{Figure, Measured};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Between two looks at what is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A path that something came by is asked about so many times as often.
const USED: u32 = 10;

/// Source and destination.
type Way = (String, String);

/// All paths.
#[derive(Debug, Default)]
pub(super) struct Paths {
    known: Mutex<BTreeMap<Way, Known>>,
    /// The path that is asked about now.
    asking: Mutex<Option<Way>>,
}

#[derive(Debug)]
struct Known {
    measured: Measured,
    /// What the path was loaded for.
    probed: Vec<Sample>,
    /// Sources that gave no answer.
    silent: Vec<LeftOut>,
    at: Instant,
    /// Something came by it since.
    used: bool,
}

impl Paths {
    /// Something came by a path: it is asked about sooner.
    pub(super) fn used(&self, from: &str, to: &str) {
        if let Some(known) = lock(&self.known).get_mut(&(from.to_owned(), to.to_owned())) {
            known.used = true;
        }
    }

    /// What is known of a path by now, with its age.
    pub(super) fn measured(&self, from: &str, to: &str) -> Measured {
        let known = lock(&self.known);
        let Some(known) = known.get(&(from.to_owned(), to.to_owned())) else {
            return Measured::default();
        };
        let since = known.at.elapsed();
        fn older<T: Clone>(figure: &Option<Figure<T>>, since: Duration) -> Option<Figure<T>> {
            let figure = figure.as_ref()?;
            Some(Figure { age: figure.age + since, ..figure.clone() })
        }
        let Measured { throughput, rtt, loss } = &known.measured;
        Measured {
            throughput: older(throughput, since),
            rtt: older(rtt, since),
            loss: older(loss, since),
        }
    }

    /// The path that is due, the latest first.
    fn due(&self, config: &Config) -> Option<Way> {
        let (own, every) = (&config.site.name, *config.tuner.every);
        let ways = config.remote.iter().flat_map(|remote| {
            [(remote.name.clone(), own.clone()), (own.clone(), remote.name.clone())]
        });
        let known = lock(&self.known);
        let late = |way: &Way| match known.get(way) {
            None => Some(Duration::MAX),
            Some(known) => {
                let every = if known.used { every / USED } else { every };
                known.at.elapsed().checked_sub(every)
            }
        };
        let due = ways.filter_map(|way| late(&way).map(|late| (late, way)));
        due.max().map(|(_, way)| way)
    }

    async fn ask(&self, site: &Arc<Site>, config: &Config, way: Way) {
        *lock(&self.asking) = Some(way.clone());
        let ends = way.clone();
        let seen = site.read(move |reader| Seen::read(reader, &ends.0, &ends.1)).await;
        let seen = seen.unwrap_or_else(|fault| {
            tracing::warn!(%fault, "the history of a path cannot be read");
            Vec::new()
        });
        let identity = Some(site.identity.clone());
        let probed = lock(&self.known).get(&way).map(|known| known.probed.clone());
        let probed = probed.unwrap_or_default();
        let means = Means { now: site.clock.now(), identity, seen, probed };
        let Combined { measured, probed, mut left_out, .. } =
            measurements(&way.0, &way.1, config, means).await;
        left_out.retain(|left| left.silent);
        let (silent, at) = (left_out, Instant::now());
        lock(&self.known).insert(way, Known { measured, probed, silent, at, used: false });
        lock(&self.asking).take();
    }

    async fn work(self: Arc<Self>, site: Arc<Site>, stop: Stop) {
        lock(&self.asking).take();
        loop {
            let config = site.config();
            // Who is no remote any more is forgotten.
            let is_there = |name: &String| {
                *name == site.name || config.remote.iter().any(|remote| remote.name == *name)
            };
            lock(&self.known).retain(|(from, to), _| is_there(from) && is_there(to));
            let step = async {
                match self.due(&config) {
                    Some(way) => self.ask(&site, &config, way).await,
                    None => tokio::time::sleep(LOOK_EVERY).await,
                }
            };
            tokio::select! {
                () = step => {}
                () = stop.asked() => return,
            }
        }
    }
}

impl Service for Paths {
    fn name(&self) -> &'static str {
        "tuner"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            self.work(site, stop).await;
            Ok(())
        })
    }

    fn status(&self) -> Status {
        let known = lock(&self.known);
        let is_known = |known: &&Known| known.measured != Measured::default();
        let figures = known.values().filter(is_known).count();
        let left: BTreeMap<&str, &str> = known
            .values()
            .flat_map(|known| &known.silent)
            .map(|left| (left.source.as_str(), left.what.as_str()))
            .collect();
        let mut line = format!("{figures} of {} paths known", known.len());
        if let Some((from, to)) = &*lock(&self.asking) {
            line.push_str(&format!(", asking for {from} to {to}"));
        }
        for (source, what) in &left {
            line.push_str(&format!(", {source}: {what}"));
        }
        Status::line(line)
            .with("paths_known", figures as f64)
            .with("sources_silent", left.len() as f64)
    }
}
