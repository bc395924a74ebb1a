//! A reply that somebody saved: what kind of document it is, and what it says.
//!
//! Documents that name their pair are believed: if it is another than the one that is asked about, that is said, and nothing
//! is taken. Of whom those speak that do not name it is said by who gives the file ([`Pair`]).

use super::check_line;
use super::file::{self, Kind};
use super::lenient;
use super::sample::{Host, Key, Metric, Origin, Sample};
use super::source::{Ask, Asking, Found, Source, SourceError};
use super::{dashboard, esmond, maddash, opensearch, pscheduler};
use downpour_catalog::Time;
use serde_json::Value;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// A file with such a reply.
pub(super) struct Saved {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) kind: Kind,
    pub(super) len_max: u64,
    /// Between whom, when the document does not say.
    pub(super) pair: Pair,
}

/// Of whom a document speaks that does not say it.
pub(super) enum Pair {
    /// Of those who are asked about.
    Asked,
    /// Of these.
    Said(Host, Host),
    /// Nobody knows.
    Unsaid,
}

impl Source for Saved {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let (body, written) = file::read(self.file.clone(), self.kind, self.len_max).await?;
            let written = written.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            // Another clock may have written it.
            let at = Time(i64::try_from(written).unwrap_or(i64::MAX)).min(ask.now);
            let pair = match &self.pair {
                Pair::Asked => {
                    Some((Host::new(&ask.source.name), Host::new(&ask.destination.name)))
                }
                Pair::Said(from, to) => Some((from.clone(), to.clone())),
                Pair::Unsaid => None,
            };
            let place = self.file.display().to_string();
            let origin = Origin { source: self.name.clone(), place };
            read(&body, pair, at, &origin)
        })
    }
}

/// What a document says; `pair` and `at`, when it was written, are for those that do not say between whom, and when.
fn read(
    body: &[u8],
    pair: Option<(Host, Host)>,
    at: Time,
    origin: &Origin,
) -> Result<Found, SourceError> {
    let unsaid = || {
        let what = "without the sites that it is of: write `from` and `to` of this source";
        SourceError::Nonsense(what.to_owned())
    };
    if body.trim_ascii_start().starts_with(check_line::NAME.as_bytes()) {
        return Ok(lines(body, pair.ok_or_else(unsaid)?, at, origin));
    }
    let document = lenient::json(body)?;
    let all = match &document {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let one = all.first().unwrap_or(&Value::Null);
    let has = |key: &str| !one[key].is_null();
    if document.as_array().is_some_and(Vec::is_empty) {
        return Ok(Found::default());
    }
    if dashboard::is_one(&document) {
        return Ok(dashboard::read(&document, origin));
    }
    if has("hits") || (has("meta") && has("result")) {
        return Ok(opensearch::read(&document, origin));
    }
    if maddash::is_one(&document) {
        return Ok(maddash::read(&document, origin));
    }
    if has("ts") && has("val") {
        let (source, destination) = pair.ok_or_else(unsaid)?;
        let series = esmond::Series::bare(source, destination);
        return Ok(esmond::read(&document, &series, origin));
    }
    if has("succeeded") || has("result-merged") || (has("result") && has("state")) {
        let mut found = Found::default();
        for run in all {
            found.extend(read_run(run.clone(), pair.as_ref(), at, origin));
        }
        return Ok(found);
    }
    let hint = if has("event-types") {
        "a list of series without values: save what one of its `base-uri` answers"
    } else if has("grid") || has("grids") {
        "a grid without figures: save the page of one check"
    } else {
        "of no kind that is known"
    };
    Err(SourceError::Nonsense(hint.to_owned()))
}

fn read_run(mut run: Value, pair: Option<&(Host, Host)>, at: Time, origin: &Origin) -> Found {
    let names_both = lenient::items(&run["participants"]).len() >= 2;
    let spec = match pair {
        Some((source, destination)) if !names_both => {
            pscheduler::Spec::between(source.clone(), destination.clone())
        }
        _ => pscheduler::Spec::default(),
    };
    let has_time = |key| lenient::moment(&run[key]).is_some();
    if run.is_object() && !["end-time", "start-time"].into_iter().any(has_time) {
        run["end-time"] = (at.0 / 1_000_000).into();
    }
    pscheduler::read(&run, &spec, origin)
}

fn lines(body: &[u8], (source, destination): (Host, Host), at: Time, origin: &Origin) -> Found {
    let text = String::from_utf8_lossy(body);
    let mut found = Found::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (source, destination) = (source.clone(), destination.clone());
        let key = Key { source, destination, direction: None, ip: None, tool: "check".to_owned() };
        found.take(check_line::read(line).and_then(|checked| {
            let (spread, unit) = (checked.spread, checked.unit);
            Sample::checked(key, Metric::Throughput, spread, at, unit, origin)
        }));
    }
    found
}
