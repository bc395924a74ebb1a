//! The dashboard of 2013 (`/exda/results?action=getServices&source=…&destination=…`): an array of checks.
//!
//! Each has a summary, which is the check's line without its figures, and parameters with labels. The labels say Mb/s where the
//! figures are Gbit/s, so the unit is the one in which the average is the summary's. Who measures is its `monitor`: the source
//! itself pushes, any other pulls. It says when in UTC, or in a zone that it does not name.

use super::check_line;
use super::client::Client;
use super::lenient::{items, moment, number, text};
use super::sample::{
    Direction, Host, IpVersion, Key, Metric, Origin, Refused, Sample, Spread, same_host,
};
use super::source::{Ask, Asking, Found, Source, SourceError};
use crate::units::escape;
use serde_json::Value;

/// Checks of an answer that are read.
const CHECKS_MAX: usize = 1000;

/// A dashboard of 2013, or what is left of one.
pub(super) struct Dashboard {
    pub(super) name: String,
    pub(super) client: Client,
}

impl Source for Dashboard {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let first =
                |hosts: &[String]| hosts.first().map_or_else(String::new, |host| escape(host));
            let (from, to) = (first(&ask.source.hosts), first(&ask.destination.hosts));
            let place = format!("results?action=getServices&source={from}&destination={to}");
            let answer = self.client.get(&place).await?;
            if !is_one(&answer) && !answer.as_array().is_some_and(Vec::is_empty) {
                return Err(SourceError::Nonsense("no list of checks".to_owned()));
            }
            let origin = Origin { source: self.name.clone(), place: self.client.url(&place)? };
            Ok(read(&answer, &origin))
        })
    }
}

/// Whether a document looks like one of these.
pub(super) fn is_one(document: &Value) -> bool {
    let check = checks(document).first();
    check.is_some_and(|check| check["summary"].is_string() && check["parameters"].is_object())
}

fn checks(document: &Value) -> &[Value] {
    match document {
        Value::Array(all) => all,
        Value::Object(object) if object.contains_key("root") => items(&document["root"]),
        one => std::slice::from_ref(one),
    }
}

/// All checks of a document.
pub(super) fn read(document: &Value, origin: &Origin) -> Found {
    let mut found = Found::default();
    for check in checks(document).iter().take(CHECKS_MAX) {
        found.take(one(check, origin));
    }
    found
}

fn one(check: &Value, origin: &Origin) -> Result<Sample, Refused> {
    let lacks = |what: &str| Refused(format!("a check that does not say {what}"));
    let rate = check_line::summary(text(&check["summary"]).unwrap_or_default())?;
    if number(&check["status"]).is_some_and(|status| status != 0.0) {
        let status = number(&check["status"]).unwrap_or_default();
        return Err(Refused(format!("a check that says OK and has the status {status}")));
    }
    let source = text(&check["source"]).ok_or_else(|| lacks("its source"))?;
    let destination = text(&check["destination"]).ok_or_else(|| lacks("its destination"))?;
    let at = moment(&check["lastCheckTime"]).ok_or_else(|| lacks("when"))?;
    let parameters = &check["parameters"];
    let figure = |name: &str| number(&parameters[name]["value"]);
    let avg = figure("Throughput Avg").ok_or_else(|| lacks("its average"))?;
    let [min, max] = ["Throughput Min", "Throughput Max"].map(figure);
    let checked = check_line::agree(Spread { avg, min, max }, rate)?;
    let label = text(&parameters["Throughput Avg"]["unit"]).unwrap_or("none");
    let found = if label == checked.unit {
        label.to_owned()
    } else {
        format!("{} (labelled {})", checked.unit, super::lenient::clip(label))
    };
    let direction = text(&check["monitor"])
        .map(|monitor| if same_host(monitor, source) { Direction::Push } else { Direction::Pull });
    let (source, destination) = (Host::new(source), Host::new(destination));
    let ip = source.addr.or(destination.addr).map(IpVersion::of);
    let key = Key { source, destination, direction, ip, tool: "check".to_owned() };
    Sample::checked(key, Metric::Throughput, checked.spread, at, found, origin)
}
