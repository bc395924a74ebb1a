//! MaDDash: grids of checks, `https://HOST/maddash`.
//!
//! 1. The list of grids, then each grid, until one has a row and a column of the pair.
//! 2. The page of each check of throughput in that cell that is OK: its newest result, as text and as figures.
//!
//! A cell's checks stand in the order of the grid's `checkNames`. `Throughput` is from row to column, `Throughput Reverse` back.
//! The figures are texts without a unit: they are taken in the unit in which their average is the message's, as in a check's line.

use super::check_line;
use super::client::Client;
use super::lenient::{items, moment, number, text};
use super::sample::{Host, IpVersion, Key, Metric, Origin, Refused, Sample, Spread};
use super::source::{Ask, Asking, End, Found, Pages, Source, SourceError};
use crate::units::escape;
use serde_json::Value;

/// Grids that are looked through.
const GRIDS_MAX: usize = 16;
/// Checks of a pair that are read.
const CHECKS_MAX: usize = 8;

/// How the names of checks begin whose figures are throughput.
const THROUGHPUT: &str = "Throughput";

/// A MaDDash.
pub(super) struct Maddash {
    pub(super) name: String,
    pub(super) client: Client,
}

impl Source for Maddash {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let mut pages = Pages::default();
            let asked = self.grids(ask, &mut pages).await;
            pages.end(asked)
        })
    }
}

impl Maddash {
    async fn grids(&self, ask: &Ask, pages: &mut Pages) -> Result<(), SourceError> {
        let list = self.client.get("grids").await?;
        if !list["grids"].is_array() {
            return Err(SourceError::Nonsense("without `grids`".to_owned()));
        }
        let mut checks = Vec::new();
        for grid in items(&list["grids"]).iter().take(GRIDS_MAX) {
            let Some(name) = text(&grid["name"]) else { continue };
            let place =
                text(&grid["uri"]).map_or_else(|| format!("grids/{}", escape(name)), str::to_owned);
            let Some(grid) = pages.keep(self.client.get(&place).await)? else { continue };
            checks.extend(cells(&grid, ask, &mut pages.found));
        }
        for place in checks.into_iter().take(CHECKS_MAX) {
            let Some(page) = pages.keep(self.client.get(&place).await)? else { continue };
            let origin = Origin { source: self.name.clone(), place: self.client.url(&place)? };
            pages.found.extend(read(&page, &origin));
        }
        Ok(())
    }
}

/// Pages of the checks of throughput that a grid has for the pair; what is not OK is noted.
fn cells(grid: &Value, ask: &Ask, found: &mut Found) -> Vec<String> {
    let names = items(&grid["columnNames"]);
    let is_wanted = |at: usize| match items(&grid["checkNames"]).get(at).and_then(text) {
        Some(name) => name.starts_with(THROUGHPUT),
        // Its page says what it is.
        None => true,
    };
    let mut pages = Vec::new();
    for (row, cells) in items(&grid["rows"]).iter().zip(items(&grid["grid"])) {
        for (column, cell) in names.iter().zip(items(cells)) {
            let (Some(row), Some(column)) = (text(&row["name"]), text(column)) else { continue };
            let is = |from: &End, to: &End| from.is_named(row) && to.is_named(column);
            if !is(&ask.source, &ask.destination) && !is(&ask.destination, &ask.source) {
                continue;
            }
            let checks = items(cell).iter().enumerate().filter(|(at, _)| is_wanted(*at));
            for (_, check) in checks.filter(|(_, check)| !check.is_null()) {
                match (number(&check["status"]), text(&check["uri"])) {
                    (Some(0.0), Some(uri)) => pages.push(uri.to_owned()),
                    (status, _) => {
                        let status = status.map_or("none".to_owned(), |n| n.to_string());
                        let what = format!("a check from {row} to {column} with status {status}");
                        found.refused.push(super::lenient::clip(&what));
                    }
                }
            }
        }
    }
    pages
}

/// Whether a document is a check's page.
pub(super) fn is_one(document: &Value) -> bool {
    document["checkName"].is_string() && document["rowName"].is_string()
}

/// A check's page.
pub(super) fn read(page: &Value, origin: &Origin) -> Found {
    let mut found = Found::default();
    let name = text(&page["checkName"]).unwrap_or_default();
    if name.starts_with(THROUGHPUT) {
        found.take(one(page, name.ends_with("Reverse"), origin));
    } else {
        found.refused.push(format!("a check of {}", super::lenient::clip(name)));
    }
    found
}

fn one(page: &Value, reverse: bool, origin: &Origin) -> Result<Sample, Refused> {
    let lacks = |what: &str| Refused(format!("a check that does not say {what}"));
    let row = text(&page["rowName"]).ok_or_else(|| lacks("its row"))?;
    let column = text(&page["colName"]).ok_or_else(|| lacks("its column"))?;
    let newest =
        items(&page["history"]).iter().filter_map(|one| Some((moment(&one["time"])?, one)));
    let (at, newest) = newest.max_by_key(|(at, _)| *at).ok_or_else(|| lacks("when"))?;
    let status = number(&newest["status"]).or_else(|| number(&newest["returnCode"]));
    if status != Some(0.0) {
        let status = status.map_or("none".to_owned(), |status| status.to_string());
        return Err(Refused(format!("a check whose newest result has the status {status}")));
    }
    let message = text(&newest["message"]).unwrap_or_default();
    // The page leaves out the name that the line begins with, or it does not.
    let line = match message.starts_with(check_line::NAME) {
        true => message.to_owned(),
        false => format!("{} OK - {message}", check_line::NAME),
    };
    let rate = check_line::summary(line.split('|').next().unwrap_or_default())?;
    let figure = |name: &str| number(&newest["returnParams"][name]);
    let checked = match figure("Average") {
        Some(avg) => {
            let [min, max] = ["Min", "Max"].map(figure);
            check_line::agree(Spread { avg, min, max }, rate)?
        }
        None => check_line::read(&line)?,
    };
    let (from, to) = if reverse { (column, row) } else { (row, column) };
    let (source, destination) = (Host::new(from), Host::new(to));
    let ip = source.addr.or(destination.addr).map(IpVersion::of);
    let key = Key { source, destination, direction: None, ip, tool: "maddash".to_owned() };
    Sample::checked(key, Metric::Throughput, checked.spread, at, checked.unit, origin)
}
