//! perfSONAR 5: its archive, an OpenSearch behind `https://HOST/opensearch`.
//!
//! 1. One search each for throughput, round trips and latency, newest first, both ways of the pair.
//! 2. Each document tells its pair, tool, time and result; what did not succeed is left out.
//!
//! Units: throughput bit/s; round trips in seconds. The streams' `rtt` of iperf3 are microseconds, of a loaded path. A UDP test
//! carries what it was told to, so its throughput is none. Of the packets of a round trip nobody knows which way they were lost:
//! loss comes from latency tests, and nothing else.

use super::client::Client;
use super::lenient::{clip, items, moment, number, text, truth};
use super::sample::{
    Direction, Host, IpVersion, Key, Metric, Origin, Refused, Sample, Spread, address,
};
use super::source::{Ask, Asking, End, Found, Pages, Source, SourceError};
use crate::units::show_time;
use serde_json::{Value, json};

/// Documents of one search.
const HITS_MAX: usize = 100;
/// What is searched: the indices, by the kind of test.
const INDICES: [&str; 3] =
    ["pscheduler_throughput", "pscheduler_rtt", "pscheduler_latency,pscheduler_latencybg"];
/// What documents hold in bulk and nobody here reads.
const NOT_WANTED: [&str; 5] =
    ["result.intervals", "result.diags", "result.packets.json", "result.latency", "result.ttl"];

/// An archive of perfSONAR 5.
pub(super) struct OpenSearch {
    pub(super) name: String,
    pub(super) client: Client,
}

impl Source for OpenSearch {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let body = search(ask);
            let asked = INDICES.map(|index| self.search(index, &body));
            let (mut pages, mut ended) = (Pages::default(), Ok(()));
            for answer in futures_util::future::join_all(asked).await {
                match pages.keep(answer) {
                    Ok(found) => pages.found.extend(found.unwrap_or_default()),
                    Err(error) => ended = Err(error),
                }
            }
            pages.end(ended)
        })
    }
}

impl OpenSearch {
    async fn search(&self, index: &str, body: &Value) -> Result<Found, SourceError> {
        let place = format!("{index}/_search?ignore_unavailable=true");
        let answer = self.client.post(&place, body).await?;
        let origin = Origin { source: self.name.clone(), place: self.client.url(&place)? };
        if !answer["hits"]["hits"].is_array() {
            return Err(SourceError::Nonsense("without `hits`".to_owned()));
        }
        Ok(read(&answer, &origin))
    }
}

fn search(ask: &Ask) -> Value {
    let either = |side: &str| {
        let hosts: Vec<&String> = ask.source.hosts.iter().chain(&ask.destination.hosts).collect();
        let addrs: Vec<&&String> = hosts.iter().filter(|host| address(host).is_some()).collect();
        json!({"bool": {"minimum_should_match": 1, "should": [
            {"terms": {format!("meta.{side}.hostname.keyword"): hosts}},
            {"terms": {format!("meta.{side}.ip"): addrs}},
        ]}})
    };
    let since = show_time(ask.since().0);
    json!({
        "size": HITS_MAX,
        "sort": [{"pscheduler.start_time": {"order": "desc"}}],
        "_source": {"excludes": NOT_WANTED},
        "query": {"bool": {"filter": [
            {"range": {"pscheduler.start_time": {"gte": since}}},
            either("source"),
            either("destination"),
        ]}},
    })
}

/// All that a reply holds, or one document.
pub(super) fn read(answer: &Value, origin: &Origin) -> Found {
    let mut found = Found::default();
    match answer["hits"]["hits"].as_array() {
        Some(hits) => {
            for hit in hits {
                document(&hit["_source"], origin, &mut found);
            }
        }
        None => document(answer, origin, &mut found),
    }
    found
}

fn document(document: &Value, origin: &Origin, found: &mut Found) {
    let result = &document["result"];
    let kind = clip(text(&document["test"]["type"]).unwrap_or("test"));
    if truth(&result["succeeded"]) != Some(true) {
        let why = text(&result["error"]).map_or(String::new(), |why| format!(": {}", clip(why)));
        found.refused.push(format!("a {kind} that did not succeed{why}"));
        return;
    }
    let (pair, times) = (&document["meta"], &document["pscheduler"]);
    let (Some(source), Some(destination)) = (host(&pair["source"]), host(&pair["destination"]))
    else {
        found.refused.push(format!("a {kind} that does not name its pair"));
        return;
    };
    let at = ["end_time", "start_time"].iter().find_map(|key| moment(&times[*key]));
    let Some(at) = at.or_else(|| moment(&document["@timestamp"])) else {
        found.refused.push(format!("a {kind} that does not say when"));
        return;
    };
    let by = host(&pair["observer"]).map(|observer| {
        let end = End { name: String::new(), hosts: names(&source) };
        if end.is(&observer) { Direction::Push } else { Direction::Pull }
    });
    let ip = number(&pair["ip_version"]).and_then(IpVersion::numbered);
    let ip = ip.or_else(|| source.addr.or(destination.addr).map(IpVersion::of));
    let tool = text(&times["tool"]).unwrap_or("unknown").to_owned();
    let key = Key { source, destination, direction: by, ip, tool };
    let taken = |metric, spread, unit: &str, key: &Key| {
        Sample::checked(key.clone(), metric, spread, at, unit, origin)
    };
    match kind.as_str() {
        "throughput" => {
            for sample in throughput(document, &key) {
                found.take(
                    sample
                        .and_then(|(metric, spread, unit, key)| taken(metric, spread, unit, &key)),
                );
            }
        }
        "rtt" => match spread(&result["rtt"]) {
            Some(spread) => found.take(taken(Metric::Rtt, spread, "s", &key)),
            None => found.refused.push("an rtt without a figure".to_owned()),
        },
        "latency" | "latencybg" => {
            if let Some(loss) = loss(&result["packets"], "sent", "lost", "loss") {
                let taken = |loss| taken(Metric::Loss, Spread::of(loss), "fraction", &key);
                found.take(loss.and_then(taken));
            }
        }
        other => found.refused.push(format!("a test of kind {other}")),
    }
}

type Read = Result<(Metric, Spread, &'static str, Key), Refused>;

fn throughput(document: &Value, key: &Key) -> Vec<Read> {
    let (result, spec) = (&document["result"], &document["test"]["spec"]);
    if truth(&spec["udp"]) == Some(true) {
        let why = "a UDP test's throughput: it is what the test was told to send";
        return vec![Err(Refused(why.to_owned()))];
    }
    let streams = match &result["streams"] {
        Value::Object(object) => object.get("json").map_or(&[][..], items),
        other => items(other),
    };
    let many = number(&spec["parallel"]).map_or(streams.len(), |n| n as usize).max(1);
    let mut key = key.clone();
    let rtts = (key.tool == "iperf3").then(|| loaded(streams)).flatten();
    if many > 1 {
        key.tool = format!("{}, {many} streams", key.tool);
    }
    let carried = match number(&result["throughput"]) {
        Some(bps) => Ok((Metric::Throughput, Spread::of(bps), "bit/s", key.clone())),
        None => Err(Refused("a throughput without a figure".to_owned())),
    };
    let rtts = rtts.map(|spread| Ok((Metric::RttLoaded, spread.scale(1e-6), "µs", key)));
    std::iter::once(carried).chain(rtts).collect()
}

/// Round trips that iperf3's streams tell, in microseconds.
pub(super) fn loaded(streams: &[Value]) -> Option<Spread> {
    let rtts = streams.iter().filter_map(|stream| number(&stream["rtt"]));
    let rtts: Vec<f64> = rtts.filter(|rtt| *rtt > 0.0).collect();
    let (first, count) = (*rtts.first()?, rtts.len() as f64);
    Some(Spread {
        avg: rtts.iter().sum::<f64>() / count,
        min: Some(rtts.iter().copied().fold(first, f64::min)),
        max: Some(rtts.iter().copied().fold(first, f64::max)),
    })
}

/// `mean`, `min` and `max`, as numbers.
fn spread(value: &Value) -> Option<Spread> {
    let [avg, min, max] = ["mean", "min", "max"].map(|key| number(&value[key]));
    Some(Spread { avg: avg?, min, max })
}

/// The share of packets lost; `None` when none is said or none were sent.
pub(super) fn loss(
    packets: &Value,
    sent: &str,
    lost: &str,
    share: &str,
) -> Option<Result<f64, Refused>> {
    let [sent, lost, share] = [sent, lost, share].map(|key| number(&packets[key]));
    let counted = sent.filter(|sent| *sent > 0.0).zip(lost).map(|(sent, lost)| lost / sent);
    match (counted, share.filter(|_| sent != Some(0.0))) {
        (Some(counted), Some(share)) if (counted - share).abs() > 1e-3 => {
            let what = format!("a loss said to be {share} and counted as {counted}");
            Some(Err(Refused(what)))
        }
        (Some(loss), _) | (None, Some(loss)) => Some(Ok(loss)),
        (None, None) => None,
    }
}

fn host(value: &Value) -> Option<Host> {
    let addr = text(&value["ip"]).and_then(address);
    match text(&value["hostname"]) {
        Some(name) => Some(Host { name: name.to_owned(), addr: addr.or_else(|| address(name)) }),
        None => addr.map(|addr| Host::new(addr.to_string())),
    }
}

fn names(host: &Host) -> Vec<String> {
    let addr = host.addr.map(|addr| addr.to_string());
    std::iter::once(host.name.clone()).chain(addr).collect()
}
