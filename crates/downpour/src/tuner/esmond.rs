//! esmond, the archive of perfSONAR 4, and what answers in its place since: `https://HOST/esmond/perfsonar/archive`.
//!
//! 1. The metadata of the pair, both ways and by all its names: which series are kept, and where. Each is read once.
//! 2. The series: throughput in bit/s, histograms of round trips in milliseconds, loss as a fraction. Each is a list of times
//!    and values. Loss of packets that went and came back says not which way, and is left out.

use super::client::Client;
use super::lenient::{items, moment, number, text};
use super::sample::{
    Direction, Host, IpVersion, Key, Metric, Origin, Refused, Sample, Spread, same_host,
};
use super::source::{Ask, Asking, End, Found, Pages, Source, SourceError};
use crate::units::escape;
use serde_json::Value;

/// Names or addresses of an end that are asked for.
const HOSTS_MAX: usize = 3;
/// Series of a pair that are read.
const SERIES_MAX: usize = 8;
/// Newest values of a series.
const VALUES_MAX: usize = 100;
/// Series that mean something here.
const EVENTS: [(&str, Metric); 3] = [
    ("throughput", Metric::Throughput),
    ("histogram-rtt", Metric::Rtt),
    ("packet-loss-rate", Metric::Loss),
];

/// An archive of perfSONAR 4.
pub(super) struct Esmond {
    pub(super) name: String,
    pub(super) client: Client,
}

impl Source for Esmond {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let mut pages = Pages::default();
            let asked = self.series(ask, &mut pages).await;
            pages.end(asked)
        })
    }
}

impl Esmond {
    async fn series(&self, ask: &Ask, pages: &mut Pages) -> Result<(), SourceError> {
        let mut series: Vec<Series> = Vec::new();
        for (from, to, way) in [
            (&ask.source, &ask.destination, &EVENTS[..]),
            // The way back tells the same round trip.
            (&ask.destination, &ask.source, &EVENTS[1..2]),
        ] {
            for (from, to) in pairs(from, to) {
                let all = pages.keep(self.metadata(ask, from, to).await)?.unwrap_or_default();
                for one in all.iter().flat_map(|one| Series::of(one, way)) {
                    add(one, &mut series);
                }
            }
        }
        for one in series {
            let seconds = ask.age_max.as_secs();
            let place = format!("{}?time-range={seconds}", one.place);
            let Some(values) = pages.keep(self.client.get(&place).await)? else { continue };
            let origin = Origin { source: self.name.clone(), place: self.client.url(&place)? };
            pages.found.extend(read(&values, &one, &origin));
        }
        Ok(())
    }

    async fn metadata(&self, ask: &Ask, from: &str, to: &str) -> Result<Vec<Value>, SourceError> {
        let seconds = ask.age_max.as_secs();
        let (from, to) = (escape(from), escape(to));
        let answer = self
            .client
            .get(&format!("?source={from}&destination={to}&time-range={seconds}&limit=50"))
            .await?;
        match answer {
            Value::Array(all) => Ok(all),
            _ => Err(SourceError::Nonsense("no list of metadata".to_owned())),
        }
    }
}

/// Adds a series that is not known yet, while there is room: an archive may list any number.
fn add(one: Series, series: &mut Vec<Series>) {
    if series.len() < SERIES_MAX && series.iter().all(|known| known.place != one.place) {
        series.push(one);
    }
}

/// The names to ask for: addresses go with addresses.
fn pairs<'a>(from: &'a End, to: &'a End) -> Vec<(&'a str, &'a str)> {
    let hosts = |end: &'a End| end.hosts.iter().take(HOSTS_MAX).map(String::as_str);
    let is_addr = |host: &str| super::sample::address(host).map(IpVersion::of);
    let all = hosts(from).flat_map(|from| hosts(to).map(move |to| (from, to)));
    all.filter(|(from, to)| is_addr(from) == is_addr(to)).collect()
}

/// One series of an archive.
pub(super) struct Series {
    metric: Metric,
    key: Key,
    place: String,
}

impl Series {
    /// Those of one element of the metadata that mean something.
    fn of(metadata: &Value, wanted: &[(&str, Metric)]) -> Vec<Self> {
        let host = |address: &str, name: &str| {
            let addr = text(&metadata[address]).and_then(super::sample::address);
            let name = text(&metadata[name]).or_else(|| text(&metadata[address]))?;
            Some(Host { name: name.to_owned(), addr })
        };
        let source = host("source", "input-source");
        let destination = host("destination", "input-destination");
        let (Some(source), Some(destination)) = (source, destination) else { return Vec::new() };
        let by = text(&metadata["measurement-agent"]).map(|agent| {
            let own = text(&metadata["source"]).unwrap_or_default();
            let is_source = same_host(agent, own) || same_host(agent, &source.name);
            if is_source { Direction::Push } else { Direction::Pull }
        });
        let ip = source.addr.or(destination.addr).map(IpVersion::of);
        let tool = text(&metadata["tool-name"]).unwrap_or("unknown");
        let tool = tool.rsplit('/').next().unwrap_or(tool).to_owned();
        let key = Key { source, destination, direction: by, ip, tool };
        let udp = text(&metadata["ip-transport-protocol"]) == Some("udp");
        let events = items(&metadata["event-types"]);
        let kinds = events.iter().filter_map(|event| text(&event["event-type"]));
        let both_ways = kinds.clone().any(|kind| kind == "histogram-rtt");
        let events = events.iter().filter_map(|event| {
            let kind = text(&event["event-type"])?;
            let (_, metric) = wanted.iter().find(|(name, _)| *name == kind)?;
            // A UDP test carries what it was told to.
            let means_nothing = match metric {
                Metric::Throughput => udp,
                Metric::Loss => both_ways,
                _ => false,
            };
            if means_nothing {
                return None;
            }
            let place = text(&event["base-uri"])?.to_owned();
            Some(Self { metric: *metric, key: key.clone(), place })
        });
        events.collect()
    }

    /// A series whose document says nothing but times and values.
    pub(super) fn bare(source: Host, destination: Host) -> Self {
        let (direction, ip, tool) = (None, None, "esmond".to_owned());
        let key = Key { source, destination, direction, ip, tool };
        Self { metric: Metric::Throughput, key, place: String::new() }
    }
}

/// The values of a series.
pub(super) fn read(values: &Value, series: &Series, origin: &Origin) -> Found {
    let mut found = Found::default();
    for value in items(values).iter().rev().take(VALUES_MAX) {
        let Some(at) = moment(&value["ts"]) else {
            found.refused.push("a value that does not say when".to_owned());
            continue;
        };
        let value = &value["val"];
        let (metric, spread, unit) = match series.metric {
            _ if value.is_object() => {
                let spread = histogram(value).map(|spread| spread.scale(1e-3));
                (Metric::Rtt, spread, "ms")
            }
            metric => (metric, number(value).map(Spread::of), metric.unit()),
        };
        found.take(match spread {
            Some(spread) => Sample::checked(series.key.clone(), metric, spread, at, unit, origin),
            None => Err(Refused(format!("a {metric} without a figure"))),
        });
    }
    found
}

/// Of a histogram `{"34.4": 506}`.
fn histogram(value: &Value) -> Option<Spread> {
    let counts = value.as_object()?.iter().filter_map(|(at, count)| {
        let at: f64 = at.trim().parse().ok().filter(|at: &f64| at.is_finite())?;
        number(count).filter(|count| *count > 0.0).map(|count| (at, count))
    });
    let counts: Vec<(f64, f64)> = counts.collect();
    let all: f64 = counts.iter().map(|(_, count)| count).sum();
    let avg = counts.iter().map(|(at, count)| at * count).sum::<f64>() / all;
    let values = counts.iter().map(|(at, _)| *at);
    Some(Spread {
        avg: Some(avg).filter(|avg| avg.is_finite())?,
        min: values.clone().reduce(f64::min),
        max: values.reduce(f64::max),
    })
}

#[cfg(test)]
mod tests {
    use super::{Host, SERIES_MAX, Series, add};

    #[test]
    fn of_what_an_archive_lists_no_more_is_kept_than_is_read() {
        let mut series = Vec::new();
        for place in ["1", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"] {
            let place = place.to_owned();
            add(Series { place, ..Series::bare(Host::new("a"), Host::new("b")) }, &mut series);
        }
        let places: Vec<_> = series.iter().map(|one| one.place.as_str()).collect();
        assert_eq!((places.len(), &places[..3]), (SERIES_MAX, &["1", "2", "3"][..]));
    }
}
