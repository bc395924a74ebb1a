//! pScheduler, the part of perfSONAR that tests: `https://HOST/pscheduler`. What it has tested, and a test on demand.
//!
//! What was tested: its tasks between the two ends, the newest runs of each. On demand: a task is posted, its first run waited
//! for, and the task taken away again when that takes too long. Of the URLs that it gives only the ids are used: it knows itself
//! by a name that may not be ours.
//!
//! Units: `throughput-bits` in bit/s, compared with `throughput-bytes` when both are there; round trips as ISO 8601 durations.
//! Of latency tests their loss is taken alone.

use super::client::Client;
use super::lenient::{clip, items, moment, number, seconds, text, truth};
use super::opensearch::{loaded, loss};
use super::sample::{Direction, Host, IpVersion, Key, Metric, Origin, Refused, Sample, Spread};
use super::source::{Ask, Asking, End, Found, Pages, Source, SourceError};
use crate::units::{escape, show_time};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Tasks of a pair that are looked at, newest last.
const TASKS_MAX: usize = 8;
/// Runs of each.
const RUNS_MAX: usize = 3;
/// How long a run is waited for by one request.
const WAIT_S: u64 = 5;
/// What is kept of a test's time for taking it away.
const PARTING: Duration = Duration::from_secs(2);
/// How far bits and bytes may differ: they are rounded apart.
const ROUNDING: f64 = 0.01;

/// What pScheduler has tested.
pub(super) struct PScheduler {
    pub(super) name: String,
    pub(super) client: Client,
}

/// A test on demand.
pub(super) struct OnDemand {
    pub(super) name: String,
    pub(super) client: Client,
    /// Of all of it.
    pub(super) time_max: Duration,
    /// How long it sends.
    pub(super) duration: Duration,
}

impl Source for PScheduler {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let mut pages = Pages::default();
            let asked = self.tasks(ask, &mut pages).await;
            pages.end(asked)
        })
    }
}

impl PScheduler {
    async fn tasks(&self, ask: &Ask, pages: &mut Pages) -> Result<(), SourceError> {
        for kind in ["throughput", "rtt", "latency"] {
            let filter = escape(&json!({"test": {"type": kind}}).to_string());
            let tasks = self.client.get(&format!("tasks?expanded=true&json={filter}")).await;
            let tasks = tasks.and_then(|tasks| match tasks {
                Value::Array(tasks) => Ok(tasks),
                _ => Err(SourceError::Nonsense("no list of tasks".to_owned())),
            });
            let tasks = pages.keep(tasks)?.unwrap_or_default();
            let of_pair = tasks.iter().rev().filter(|task| is_asked(task, ask));
            for task in of_pair.take(TASKS_MAX) {
                self.task(task, ask, pages).await?;
            }
        }
        Ok(())
    }

    async fn task(&self, task: &Value, ask: &Ask, pages: &mut Pages) -> Result<(), SourceError> {
        let Some(id) = text(&task["href"]).and_then(id_of) else { return Ok(()) };
        let (since, until) = (escape(&show_time(ask.since().0)), escape(&show_time(ask.now.0)));
        let runs = self.client.get(&format!("tasks/{id}/runs?start={since}&end={until}")).await;
        let runs = pages.keep(runs)?.unwrap_or_default();
        let newest = items(&runs).iter().rev().filter_map(|url| id_of(text(url)?));
        for run in newest.take(RUNS_MAX) {
            let place = format!("tasks/{id}/runs/{run}");
            let Some(run) = pages.keep(self.client.get(&place).await)? else { continue };
            let origin = Origin { source: self.name.clone(), place: self.client.url(&place)? };
            pages.found.extend(read(&run, &Spec::of(task), &origin));
        }
        Ok(())
    }
}

impl Source for OnDemand {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_active(&self) -> bool {
        true
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            // Round trips first: a load would be in them.
            let mut found = Found::default();
            let until = Instant::now() + self.time_max.saturating_sub(PARTING);
            for test in [json!({"count": 5}), json!({"duration": pt(self.duration)})] {
                match self.test(ask, test, until).await {
                    Ok(more) => found.extend(more),
                    Err(error) if found.samples.is_empty() => return Err(error),
                    // What the first test found stays known.
                    Err(error) => found.refused.push(error.to_string()),
                }
            }
            Ok(found)
        })
    }
}

impl OnDemand {
    async fn test(&self, ask: &Ask, more: Value, until: Instant) -> Result<Found, SourceError> {
        let (from, to) = (measurer(&ask.source), measurer(&ask.destination));
        let mut spec = json!({"schema": 1, "source": from, "dest": to});
        let kind = if more["count"].is_null() { "throughput" } else { "rtt" };
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        if let Some(ip) = ask.ip {
            spec["ip-version"] = json!(if ip == IpVersion::V4 { 4 } else { 6 });
        }
        let task = json!({"schema": 1, "test": {"type": kind, "spec": spec}, "schedule": {}});
        let late = |_| SourceError::Silent(format!("the {kind} test was not taken on in time"));
        let posted = timeout_at(until, self.client.post("tasks", &task)).await.map_err(late)??;
        let Some(id) = text(&posted).and_then(id_of) else {
            return Err(SourceError::Nonsense("no task's URL".to_owned()));
        };
        let place = format!("tasks/{id}/runs/first");
        match timeout_at(until, self.ended(&place)).await {
            Ok(run) => {
                let origin = Origin { source: self.name.clone(), place: self.client.url(&place)? };
                Ok(read(&run?, &Spec::of(&task), &origin))
            }
            Err(_) => {
                // If even that fails it ends by itself: it has one run.
                let _ = timeout(PARTING, self.client.delete(&format!("tasks/{id}"))).await;
                let what = format!("the {kind} test had not ended in time and was taken away");
                Err(SourceError::Silent(what))
            }
        }
    }

    async fn ended(&self, place: &str) -> Result<Value, SourceError> {
        loop {
            let run = self.client.get(&format!("{place}?wait-merged=true&wait={WAIT_S}")).await;
            match run {
                // It has not been put on the schedule yet.
                Err(SourceError::Refuses(404)) => {}
                Ok(run) => match text(&run["state"]) {
                    Some("scheduling" | "pending" | "on-deck" | "running" | "cleanup") => {}
                    _ => return Ok(run),
                },
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The name by which an end measures: the first that was given for it.
fn measurer(end: &End) -> &str {
    end.hosts.first().unwrap_or(&end.name)
}

fn pt(duration: Duration) -> String {
    format!("PT{}S", duration.as_secs().max(1))
}

/// The last step of a path, if it is an id.
fn id_of(url: &str) -> Option<&str> {
    let id = url.trim_end_matches('/').rsplit('/').next()?;
    let fits = |c: char| c.is_ascii_hexdigit() || c == '-';
    (!id.is_empty() && id.len() <= 64 && id.chars().all(fits)).then_some(id)
}

fn is_asked(task: &Value, ask: &Ask) -> bool {
    let spec = Spec::of(task);
    let (Some(source), Some(destination)) = (&spec.source, &spec.destination) else { return false };
    let is = |from: &End, to: &End| from.is(source) && to.is(destination);
    is(&ask.source, &ask.destination) || is(&ask.destination, &ask.source)
}

/// What a run's result does not say itself: between whom, by what.
#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    kind: Option<String>,
    source: Option<Host>,
    destination: Option<Host>,
    ip: Option<IpVersion>,
    parallel: usize,
    udp: bool,
    tool: Option<String>,
}

impl Spec {
    pub(super) fn of(task: &Value) -> Self {
        let spec = &task["test"]["spec"];
        let lead = || items(&task["detail"]["participants"]).first().and_then(text);
        let host = |name: &str| Host::new(name.to_owned());
        Self {
            kind: text(&task["test"]["type"]).map(str::to_owned),
            source: text(&spec["source"]).or_else(lead).map(host),
            destination: text(&spec["dest"]).map(host),
            ip: number(&spec["ip-version"]).and_then(IpVersion::numbered),
            parallel: number(&spec["parallel"]).map_or(1, |n| n as usize),
            udp: truth(&spec["udp"]) == Some(true),
            tool: text(&task["tool"]).map(str::to_owned),
        }
    }

    /// Of a pair that is only known from elsewhere.
    pub(super) fn between(source: Host, destination: Host) -> Self {
        let (source, destination) = (Some(source), Some(destination));
        Self { source, destination, parallel: 1, ..Self::default() }
    }
}

/// What a run tells; or a result alone, when the time of it is in it as `end-time`.
pub(super) fn read(run: &Value, spec: &Spec, origin: &Origin) -> Found {
    let mut found = Found::default();
    let state = text(&run["state"]).unwrap_or("finished");
    let results = [&run["result-merged"], &run["result"], run];
    let Some(result) = results.into_iter().find(|value| !value["succeeded"].is_null()) else {
        found.refused.push(format!("a run without a result, {}", clip(state)));
        return found;
    };
    if state != "finished" || truth(&result["succeeded"]) != Some(true) {
        let why = text(&result["error"]).or_else(|| text(&run["errors"])).unwrap_or(state);
        found.refused.push(format!("a run that did not succeed: {}", clip(why)));
        return found;
    }
    let named = |at: usize| items(&run["participants"]).get(at).and_then(text).map(Host::new);
    let source = spec.source.clone().or_else(|| named(0));
    let destination = spec.destination.clone().or_else(|| named(1));
    let (Some(source), Some(destination)) = (source, destination) else {
        found.refused.push("a run that does not name its pair".to_owned());
        return found;
    };
    let at = ["end-time", "start-time"].iter().find_map(|key| moment(&run[*key]));
    let Some(at) = at else {
        found.refused.push("a run that does not say when".to_owned());
        return found;
    };
    let ip = spec.ip.or_else(|| source.addr.or(destination.addr).map(IpVersion::of));
    // The lead, who measures, is the first participant. A name and an address cannot be compared.
    let lead = named(0).filter(|lead| lead.addr.is_some() == source.addr.is_some());
    let by = lead.map(|lead| {
        let is_source = End::new(source.name.clone()).is(&lead);
        if is_source { Direction::Push } else { Direction::Pull }
    });
    let tool = spec.tool.clone().or_else(|| text(&run["tool"]).map(str::to_owned));
    let tool = tool.unwrap_or_else(|| "pscheduler".to_owned());
    let key = Key { source, destination, direction: by, ip, tool };
    for read in figures(result, spec, &key) {
        found.take(read.and_then(|(metric, spread, unit, key)| {
            Sample::checked(key, metric, spread, at, unit, origin)
        }));
    }
    found
}

type Read = Result<(Metric, Spread, &'static str, Key), Refused>;

fn figures(result: &Value, spec: &Spec, key: &Key) -> Vec<Read> {
    let kind = spec.kind.as_deref().unwrap_or_else(|| match result {
        _ if !result["roundtrips"].is_null() || !result["mean"].is_null() => "rtt",
        _ if !result["histogram-latency"].is_null() => "latency",
        _ if !result["summary"].is_null() => "throughput",
        _ => "unknown",
    });
    match kind {
        "throughput" if spec.udp => {
            let why = "a UDP test's throughput: it is what the test was told to send";
            vec![Err(Refused(why.to_owned()))]
        }
        "throughput" => throughput(result, spec, key),
        "rtt" => vec![rtt(result).map(|spread| (Metric::Rtt, spread, "ISO 8601", key.clone()))],
        "latency" | "latencybg" => {
            let loss = loss(result, "packets-sent", "packets-lost", "packets-loss");
            let loss = loss.map(|loss| {
                loss.map(|loss| (Metric::Loss, Spread::of(loss), "fraction", key.clone()))
            });
            loss.into_iter().collect()
        }
        other => vec![Err(Refused(format!("a result of kind {}", clip(other))))],
    }
}

fn throughput(result: &Value, spec: &Spec, key: &Key) -> Vec<Read> {
    let summary = &result["summary"];
    let streams = items(&summary["streams"]);
    let mut key = key.clone();
    let rtts = (key.tool == "iperf3").then(|| loaded(streams)).flatten();
    let many = spec.parallel.max(streams.len());
    if many > 1 {
        key.tool = format!("{}, {many} streams", key.tool);
    }
    let carried = bits(&summary["summary"]).map(|avg| {
        let intervals = items(&result["intervals"]).iter().map(|interval| &interval["summary"]);
        let counted = intervals.filter(|interval| truth(&interval["omitted"]) != Some(true));
        let rates: Vec<f64> = counted.filter_map(|interval| bits(interval).ok()).collect();
        let min = rates.iter().copied().reduce(f64::min);
        let max = rates.iter().copied().reduce(f64::max);
        let spread = Spread { avg, min, max };
        (Metric::Throughput, spread, "bit/s", key.clone())
    });
    let rtts = rtts.map(|spread| Ok((Metric::RttLoaded, spread.scale(1e-6), "µs", key)));
    std::iter::once(carried).chain(rtts).collect()
}

/// Bits of one summary, if they are the bytes' eightfold.
fn bits(summary: &Value) -> Result<f64, Refused> {
    let [bits, bytes] = ["throughput-bits", "throughput-bytes"].map(|key| number(&summary[key]));
    match (bits, bytes) {
        (Some(bits), Some(bytes)) if (bits - bytes * 8.0).abs() > ROUNDING * bits.abs() => {
            let what = format!("a throughput said to be {bits} bit/s and {bytes} bytes/s");
            Err(Refused(what))
        }
        (Some(bits), _) => Ok(bits),
        (None, Some(bytes)) => Ok(bytes * 8.0),
        (None, None) => Err(Refused("a throughput without a figure".to_owned())),
    }
}

fn rtt(result: &Value) -> Result<Spread, Refused> {
    let [avg, min, max] = ["mean", "min", "max"].map(|key| seconds(&result[key]));
    match avg {
        Some(avg) => Ok(Spread { avg, min, max }),
        None => Err(Refused("a round trip without a figure".to_owned())),
    }
}
