//! What an experiment is: a small TOML file that says which programs run over which networks, how often, and
//! what is drawn.
//!
//! ```toml
//! title = "Eight receivers behind 100 Mbit/s"
//! programs = ["downpour", "downpour --rate 90mbit", "uftp"]
//! repeats = 3
//! keep_logs = true             # what the first repeat said, and drawings of it
//!
//! [cell]                       # holds everywhere; the fields of `Cell`
//! size = "64MiB"
//! receivers = 8
//! rate = "100mbit"
//!
//! [sweep]                      # every combination of these
//! loss = [0.0, 0.05]
//!
//! [[link]]                     # receivers whose link differs from the others' in this
//! receivers = [3]
//! rate = "10mbit"
//!
//! [[happening]]                # to some receivers, counted from the start of the sender
//! receivers = [5]
//! joins_at = "3s"              # or pauses_at = "2s", pauses_for = "5s"; or writes_take = "1s"
//!
//! [[change]]                   # the sender's link while it is in use, counted from the start of the sender
//! at = "10s"
//! rate = "20mbit"
//!
//! [[plot]]
//! x = "loss"
//! y = "wall_over_bound"
//! ```

mod check;

use crate::at;
use crate::emulator::pipe::Shape;
use crate::network::{Link, Spec};
use crate::units::{Rate, Size, Span};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;
use toml::{Table, Value};

/// Bytes of a full Ethernet frame on the wire's side, and of the UDP payload that it holds.
pub(crate) const FRAME_BYTES: f64 = 1514.0;
const PAYLOAD_BYTES: f64 = 1472.0;
/// Most receivers: each is some processes.
const RECEIVERS_MAX: usize = 500;
/// Most files at once: each is a session with ports of its own.
const TRANSFERS_MAX: u16 = 500;
/// TCP connections where the cell does not say.
const CONNECTIONS: u16 = 8;
/// Most runs of one experiment.
const RUNS_MAX: usize = 10_000;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Experiment {
    /// In a few words.
    pub(crate) title: String,
    /// What it is about, for the top of its page; Markdown.
    #[serde(default)]
    pub(crate) text: String,
    /// Which programs, by name; words after the name are arguments for the sender's program.
    pub(crate) programs: Vec<String>,
    /// Runs of each cell and program.
    #[serde(default = "three")]
    pub(crate) repeats: u32,
    /// A run is stopped after so many times its bound (and [`Experiment::GRACE`]).
    #[serde(default = "ten")]
    pub(crate) limit: f64,
    /// Whether what programs said in the first repeat is kept, and drawn.
    #[serde(default)]
    pub(crate) keep_logs: bool,
    /// What holds in all cells.
    #[serde(default)]
    cell: Table,
    /// What varies: every combination.
    #[serde(default)]
    sweep: Table,
    /// Receivers whose links differ from the others': `receivers`, and the fields of `Shape`.
    #[serde(default)]
    link: Vec<Table>,
    /// What befalls receivers.
    #[serde(default)]
    pub(crate) happening: Vec<Happening>,
    /// Rates that the sender's link takes on, in order of time.
    #[serde(default)]
    change: Vec<Change>,
    /// What is drawn.
    #[serde(default)]
    pub(crate) plot: Vec<Plot>,
}

/// One network and one size. All receivers' links are alike, but for those that `[[link]]` names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Cell {
    /// Of the file.
    pub(crate) size: Size,
    /// How many.
    pub(crate) receivers: usize,
    /// Rate of the sender's link; unlimited when absent.
    pub(crate) rate: Option<Rate>,
    /// Longest wait in its queue. Where nothing needs the emulator the kernel's `tbf` adds what its bucket holds: 5 ms at the link's
    /// rate, and at least 16 kB; with a feed 0.5 ms, and at least three frames.
    pub(crate) queue: Span,
    /// Time on the way, each way, at the sender's link.
    pub(crate) delay: Span,
    /// Up to so much more, each way; where frames are dense most have nearly all of it, as none overtakes.
    pub(crate) jitter: Span,
    /// Share of frames that others overtake, each way: they are held back for a millisecond.
    pub(crate) reorder: f64,
    /// Share of what comes in that each receiver loses, independently of the others.
    pub(crate) loss: f64,
    /// Mean number of losses in a row.
    pub(crate) burst: f64,
    /// TCP connections of the programs that take several; eight when absent.
    pub(crate) connections: Option<u16>,
    /// Files that are sent at once, each of them to the first receiver, by programs that can.
    pub(crate) transfers: u16,
    /// Transfers are not waited for, but measured from this time on,
    pub(crate) measured_from: Option<Span>,
    /// for so long.
    pub(crate) measured_for: Span,
    /// Socket buffer of each, where the kernel shall not choose it.
    pub(crate) window: Option<Size>,
    /// Whether batches of datagrams travel as one, as network cards with offloads do.
    pub(crate) offloads: bool,
    /// Products instead of one file, by the name of their feed;
    pub(crate) feed: Option<String>,
    /// from this time of it on,
    pub(crate) feed_from: Span,
    /// for so long,
    pub(crate) feed_for: Span,
    /// so many times as fast as it was.
    pub(crate) feed_speed: f64,
}

/// What befalls some receivers, in time since the start of the sender.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Happening {
    pub(crate) receivers: Vec<usize>,
    /// Its program starts only then.
    pub(crate) joins_at: Option<Span>,
    /// Its program stands still from then on,
    pub(crate) pauses_at: Option<Span>,
    /// for so long.
    #[serde(default)]
    pub(crate) pauses_for: Span,
    /// Each of its writes to a place in a file takes so much longer: a slow disk.
    pub(crate) writes_take: Option<Span>,
}

/// From a time on the sender's link has another rate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    at: Span,
    rate: Rate,
}

/// One drawing: a line for each program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plot {
    /// A field of the cell.
    pub(crate) x: String,
    /// A figure of the run.
    pub(crate) y: String,
    /// Only cells with these values.
    #[serde(default)]
    pub(crate) only: serde_json::Map<String, serde_json::Value>,
    /// In a few words; made from the rest when absent.
    pub(crate) title: Option<String>,
    /// Whether it has bars instead of lines.
    #[serde(default)]
    pub(crate) bars: bool,
}

impl Plot {
    /// Whether it draws runs of this cell.
    pub(crate) fn shows(&self, cell: &Cell) -> bool {
        self.only.iter().all(|(name, value)| cell.field(name).as_ref() == Some(value))
    }
}

/// Fields as they stand in the file.
fn told(table: &Table) -> String {
    let fields: Vec<String> =
        table.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect();
    fields.join(", ")
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(shown).collect::<Vec<_>>().join(", "))
        }
        Value::Boolean(is_so) => is_so.to_string(),
        Value::Datetime(_) | Value::Table(_) => String::new(),
    }
}

fn three() -> u32 {
    3
}

fn ten() -> f64 {
    10.0
}

impl Default for Cell {
    fn default() -> Self {
        let Shape { queue, burst, .. } = Shape::default();
        let none = Span::default();
        Self {
            size: Size(64 << 20),
            receivers: 1,
            rate: None,
            queue,
            delay: none,
            jitter: none,
            reorder: 0.0,
            loss: 0.0,
            burst,
            connections: None,
            transfers: 1,
            measured_from: None,
            measured_for: Span(Duration::from_secs(20)),
            window: None,
            offloads: false,
            feed: None,
            feed_from: none,
            feed_for: Span(Duration::from_secs(60)),
            feed_speed: 1.0,
        }
    }
}

impl Experiment {
    /// Beyond the limit that follows from the bound: for starting, joining, ending.
    pub(crate) const GRACE: Duration = Duration::from_secs(30);

    /// Reads and checks the file.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path).map_err(at(path))?;
        Self::parse(&text).map_err(at(path))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let experiment: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        experiment.check()?;
        Ok(experiment)
    }

    /// Only these of its programs (all without any), and so many repeats.
    pub(crate) fn narrow(&mut self, only: &[String], repeats: Option<u32>) -> Result<(), String> {
        if let Some(unknown) = only.iter().find(|name| !self.programs.contains(name)) {
            let known = self.programs.join("`, `");
            return Err(format!("--only {unknown}: this experiment has `{known}`"));
        }
        self.programs.retain(|name| only.is_empty() || only.contains(name));
        self.repeats = repeats.unwrap_or(self.repeats);
        self.check_runs(self.cells()?.len())
    }

    /// Every combination of what varies; what is named last varies fastest.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>, String> {
        let mut tables = vec![self.cell.clone()];
        for (name, values) in &self.sweep {
            let Value::Array(values) = values else {
                return Err(format!("sweep.{name}: needs a list"));
            };
            if tables.len().saturating_mul(values.len()) > RUNS_MAX {
                return Err(format!("sweep: more than {RUNS_MAX} cells; give fewer values"));
            }
            let each = |table: Table| {
                values.iter().map(move |value| {
                    let mut table = table.clone();
                    table.insert(name.clone(), value.clone());
                    table
                })
            };
            tables = tables.into_iter().flat_map(each).collect();
        }
        tables.into_iter().map(|table| table.try_into().map_err(|e| format!("cell: {e}"))).collect()
    }

    /// Receivers whose links differ from this one, and how.
    fn odd_links(&self, plain: &Shape) -> Result<Vec<(Vec<usize>, Shape)>, String> {
        let plain = Table::try_from(plain).map_err(|e| format!("link: {e}"))?;
        let odd = |table: &Table| {
            let mut table = table.clone();
            let which = table.remove("receivers").ok_or("link: needs `receivers`")?;
            let which: Vec<usize> = which.try_into().map_err(|e| format!("link: {e}"))?;
            let mut shape = plain.clone();
            shape.extend(table);
            let shape = shape.try_into().map_err(|e| format!("link: {e}"))?;
            Ok((which, shape))
        };
        self.link.iter().map(odd).collect()
    }

    /// Receivers of a cell whose links are not like the others', or to which something happens.
    pub(crate) fn odd_receivers(&self, cell: &Cell) -> Vec<usize> {
        // Cannot fail: checked when the file was read.
        let links =
            self.odd_links(&Shape::default()).into_iter().flatten().flat_map(|(which, _)| which);
        let befallen = self.happening.iter().flat_map(|happening| happening.receivers.clone());
        links.chain(befallen).filter(|i| *i < cell.receivers).collect()
    }

    /// What varies, by name.
    pub(crate) fn varies(&self) -> impl Iterator<Item = &str> {
        self.sweep.keys().map(String::as_str)
    }

    /// What holds in all cells, and what befalls whom, for people.
    pub(crate) fn setting(&self) -> String {
        let mut parts = vec![told(&self.cell)];
        for table in &self.link {
            let mut table = table.clone();
            let which = table.remove("receivers").map(|which| shown(&which)).unwrap_or_default();
            parts.push(format!("links of receivers {which}: {}", told(&table)));
        }
        for happening in &self.happening {
            let Happening { receivers, joins_at, pauses_at, pauses_for, writes_take } = happening;
            let joins = joins_at.map(|at| format!("join at {at}"));
            let pauses = pauses_at.map(|at| format!("pause at {at} for {pauses_for}"));
            let writes = writes_take.map(|time| format!("need {time} longer for each write"));
            let what: Vec<String> = [joins, pauses, writes].into_iter().flatten().collect();
            parts.push(format!("receivers {receivers:?} {}", what.join(", ")));
        }
        for Change { at, rate } in &self.change {
            parts.push(format!("from {at} on the sender's link has {rate}"));
        }
        parts.retain(|part| !part.is_empty());
        let (limit, grace_s) = (self.limit, Self::GRACE.as_secs());
        format!(
            "In all cells: {}. A run is stopped after {limit} times its bound and {grace_s} s.",
            parts.join("; ")
        )
    }

    /// The shortest time that one copy of what is sent can take on the sender's link, in full UDP datagrams, when
    /// this share of them is lost; `None` without a rate, and of a feed, which comes when it comes.
    pub(crate) fn bound_s(&self, cell: &Cell) -> Option<f64> {
        let mut rate = cell.rate.filter(|_| cell.feed.is_none())?.0 as f64;
        let bits = cell.bytes() as f64 * (FRAME_BYTES / PAYLOAD_BYTES) * 8.0;
        let (mut left, mut time) = (bits / (1.0 - cell.loss), 0.0);
        for change in &self.change {
            let until = change.at.0.as_secs_f64();
            let sent = (until - time) * rate;
            if sent >= left {
                break;
            }
            (left, time, rate) = (left - sent, until, change.rate.0 as f64);
        }
        Some(time + left / rate)
    }

    /// The sender's link as it becomes while it is in use, and when; `both_ways` as in [`network`](Self::network).
    pub(crate) fn changes(&self, cell: &Cell, both_ways: bool) -> Vec<(Duration, Link)> {
        let link = |change: &Change| {
            let mut link = self.network(cell, both_ways, 0).sender;
            link.up.rate = Some(change.rate);
            link.down.rate = link.down.rate.map(|_| change.rate);
            (change.at.0, link)
        };
        self.change.iter().map(link).collect()
    }

    /// The network of a cell. With `both_ways` all links have the sender's rate, in both directions, for programs
    /// whose receivers send.
    pub(crate) fn network(&self, cell: &Cell, both_ways: bool, seed: u64) -> Spec {
        let Cell { rate, queue, delay, jitter, reorder, .. } = *cell;
        let plain = Shape::default();
        let down = Shape { delay, jitter, reorder, ..plain.clone() };
        // Only an emulated link can change. And tbf saves up while nothing is sent: what is shorter than its bucket, as
        // most products are, would leave as if there were no rate.
        let (emulated, sparing) = (!self.change.is_empty(), cell.feed.is_some());
        let shared = if both_ways { rate } else { None };
        let up = Shape { rate, queue, ..down.clone() };
        let sender = Link { up, down: Shape { rate: shared, queue, ..down }, emulated, sparing };
        let up = Shape { rate: shared, queue, ..plain };
        let down = Shape { loss: cell.loss, burst: cell.burst, ..up.clone() };
        let mut receivers =
            vec![Link { up, down: down.clone(), emulated: false, sparing }; cell.receivers];
        // Cannot fail: checked when the file was read.
        for (which, shape) in self.odd_links(&down).into_iter().flatten() {
            for i in which.iter().filter(|i| **i < cell.receivers) {
                let link = &mut receivers[*i];
                link.up = Shape { loss: 0.0, burst: 1.0, ..shape.clone() };
                link.down = shape.clone();
            }
        }
        Spec { sender, receivers, offloads: cell.offloads, seed }
    }
}

impl Cell {
    /// What is to be sent, once each.
    pub(crate) fn bytes(&self) -> u64 {
        self.size.0.saturating_mul(u64::from(self.transfers))
    }

    /// TCP connections, for the programs that take several.
    pub(crate) fn connections(&self) -> u16 {
        self.connections.unwrap_or(CONNECTIONS)
    }

    /// All that it asks of links, in one.
    fn shape(&self) -> Shape {
        let Self { rate, queue, delay, jitter, loss, burst, reorder, .. } = *self;
        Shape { rate, queue, delay, jitter, loss, burst, reorder }
    }

    /// A field by its name in the file; `None` when there is no such field.
    pub(crate) fn field(&self, name: &str) -> Option<serde_json::Value> {
        serde_json::to_value(self).ok()?.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Change, Experiment};
    use crate::programs;
    use crate::units::{Rate, Size};

    const TEXT: &str = r#"
        title = "a"
        programs = ["downpour", "uftp"]
        [cell]
        rate = "100mbit"
        [sweep]
        size = ["64MiB", "256MiB"]
        receivers = [1, 8]
        loss = [0.0, 0.01, 0.05]
        [[link]]
        receivers = [3, 7]
        rate = "10mbit"
        loss = 0.3
        [[happening]]
        receivers = [5]
        joins_at = "3s"
        [[plot]]
        x = "loss"
        y = "wall_over_bound"
        only = { receivers = 8, size = "64MiB" }
    "#;

    #[test]
    fn the_example_can_be_copied() {
        let lines =
            include_str!("experiment.rs").lines().map_while(|line| line.strip_prefix("//!"));
        let example = lines.skip_while(|line| *line != " ```toml").skip(1);
        let example: Vec<&str> = example.take_while(|line| *line != " ```").collect();
        assert!(Experiment::parse(&example.join("\n")).unwrap().keep_logs);
    }

    #[test]
    fn more_combinations_than_may_run_are_not_made() {
        let values = (1..=60).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
        let fields = ["burst", "connections", "receivers", "transfers", "feed_speed"];
        let sweep = fields.map(|field| format!("{field} = [{values}]\n")).concat();
        let text = format!("title = \"a\"\nprograms = [\"downpour\"]\n[sweep]\n{sweep}");
        let told = Experiment::parse(&text).unwrap_err();
        assert_eq!(told, "sweep: more than 10000 cells; give fewer values");
    }

    #[test]
    fn every_combination_becomes_a_cell() {
        let experiment = Experiment::parse(TEXT).unwrap();
        let cells = experiment.cells().unwrap();
        assert_eq!(cells.len(), 12);
        assert!(cells.iter().all(|cell| cell.rate == Some(Rate(100_000_000))));
        let wanted = Cell {
            size: Size(256 << 20),
            receivers: 8,
            rate: Some(Rate(100_000_000)),
            loss: 0.05,
            ..Cell::default()
        };
        assert!(cells.contains(&wanted));
    }

    #[test]
    fn an_experiment_says_what_its_cells_have_in_common() {
        let change = "[[change]]\nat = \"10s\"\nrate = \"20mbit\"\n[[plot]]";
        let experiment = Experiment::parse(&TEXT.replacen("[[plot]]", change, 1)).unwrap();
        assert_eq!(
            experiment.setting(),
            "In all cells: rate 100mbit; links of receivers [3, 7]: loss 0.3, rate 10mbit; receivers [5] join at 3s; \
             from 10s on the sender's link has 20mbit. A run is stopped after 10 times its bound and 30 s."
        );
    }

    #[test]
    fn a_part_of_an_experiment_has_runs() {
        let mut experiment = Experiment::parse(TEXT).unwrap();
        let refused = experiment.narrow(&["uftp".to_owned(), "foo".to_owned()], None);
        assert_eq!(refused.unwrap_err(), "--only foo: this experiment has `downpour`, `uftp`");
        assert!(experiment.narrow(&[], Some(0)).unwrap_err().starts_with("0 runs"));
        experiment.narrow(&["uftp".to_owned()], Some(2)).unwrap();
        assert_eq!(
            (experiment.programs.as_slice(), experiment.repeats),
            (&["uftp".to_owned()][..], 2)
        );
    }

    #[test]
    fn a_receiver_may_have_a_link_of_its_own() {
        let experiment = Experiment::parse(TEXT).unwrap();
        let cell = Cell { receivers: 8, loss: 0.05, ..Cell::default() };
        let spec = experiment.network(&cell, false, 1);
        assert_eq!(spec.receivers[2].down.loss, 0.05);
        assert_eq!(spec.receivers[3].down.loss, 0.3);
        assert_eq!(spec.receivers[3].up.loss, 0.0);
        assert_eq!(spec.receivers[3].up.rate, Some(Rate(10_000_000)));
        // What its table does not name is as at the others.
        let other = |table: &str| {
            let text = TEXT.replacen("rate = \"10mbit\"\n        loss = 0.3", table, 1);
            let cell = Cell { rate: Some(Rate(20_000_000)), ..cell.clone() };
            Experiment::parse(&text).unwrap().network(&cell, true, 1).receivers[3].clone()
        };
        assert_eq!(other("rate = \"10mbit\"").down.loss, 0.05);
        let lossy = other("loss = 0.3");
        assert_eq!((lossy.up.rate, lossy.down.rate), (Some(Rate(20_000_000)), lossy.up.rate));
        assert_eq!(experiment.odd_receivers(&cell), [3, 7, 5]);
        // What a smaller cell lacks is passed over there.
        let small = Cell { receivers: 4, ..cell };
        assert_eq!(experiment.network(&small, false, 1).receivers.len(), 4);
        assert_eq!(experiment.odd_receivers(&small), [3]);
    }

    #[test]
    fn what_comes_now_and_then_is_sent_over_a_link_that_saves_little_up() {
        let experiment = Experiment::parse(TEXT).unwrap();
        let file = experiment.network(&Cell::default(), false, 1);
        assert!(!file.sender.sparing);
        let cell = Cell { feed: Some("ngrid".to_owned()), receivers: 8, ..Cell::default() };
        let spec = experiment.network(&cell, false, 1);
        assert!(spec.sender.sparing && !spec.sender.emulated);
    }

    #[test]
    fn the_experiments_that_are_here_can_be_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let experiment = Experiment::read(&path).unwrap_or_else(|e| panic!("{e}"));
            let cells = experiment.cells().unwrap();
            for call in &experiment.programs {
                let program = programs::all().find(|p| call.split(' ').next() == Some(p.name));
                let program = program.unwrap_or_else(|| panic!("{}: {call}", path.display()));
                let refused = |cell| program.refuses(cell, &experiment.happening);
                let refused = cells.iter().find_map(refused);
                assert_eq!(refused, None, "{}: {call}", path.display());
            }
            assert!(!experiment.text.is_empty(), "{}: says nothing of itself", path.display());
        }
    }

    #[test]
    fn mistakes_are_refused() {
        for (old, new) in [
            ("loss = [0.0, 0.01, 0.05]", "los = [0.0]"),
            ("loss = [0.0, 0.01, 0.05]", "loss = 0.05"),
            ("loss = [0.0, 0.01, 0.05]", "loss = []"),
            ("rate = \"100mbit\"", "rate = 100"),
            ("title = \"a\"", ""),
            ("y = ", "z = "),
            ("wall_over_bound", "wall_over_bond"),
            ("receivers = [1, 8]", "receivers = [0]"),
            ("0.01, 0.05]", "0.01, 5.0]"),
            ("loss = 0.3", "los = 0.3"),
        ] {
            assert!(Experiment::parse(&TEXT.replacen(old, new, 1)).is_err(), "{new}");
        }
    }

    #[test]
    fn the_bound_is_that_of_full_datagrams() {
        let mut experiment = Experiment::parse(TEXT).unwrap();
        let rate = Some(Rate(100_000_000));
        let cell = Cell { rate, loss: 0.05, ..Cell::default() };
        assert!((experiment.bound_s(&cell).unwrap() - 5.812).abs() < 0.001);
        assert_eq!(experiment.bound_s(&Cell { rate: None, ..cell.clone() }), None);
        let feed = Some("ngrid".to_owned());
        assert_eq!(experiment.bound_s(&Cell { feed, ..cell.clone() }), None);
        let change =
            |at: &str, rate: &str| Change { at: at.parse().unwrap(), rate: rate.parse().unwrap() };
        // Five seconds at a fifth of the rate cost four.
        experiment.change = vec![change("2s", "20mbit"), change("7s", "100mbit")];
        assert!((experiment.bound_s(&cell).unwrap() - 9.812).abs() < 0.001);
        let link = |both_ways| experiment.changes(&cell, both_ways)[0].1.clone();
        let changed = Some(Rate(20_000_000));
        assert_eq!((link(false).up.rate, link(false).down.rate), (changed, None));
        assert_eq!((link(true).up.rate, link(true).down.rate), (changed, changed));
    }
}
