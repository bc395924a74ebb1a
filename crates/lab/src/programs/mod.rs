//! The programs under test, each an adapter of one file: how it is started, what it is told, when it has
//! delivered.
//!
//! A program that is not installed is skipped, and the page says so by name.

pub(crate) mod aria2;
mod downpour;
mod iperf3;
mod norm;
mod papers;
mod products;
mod rate;
mod rsync;
mod steered;
pub(crate) mod tcp;
mod udpcast;
mod uftp;
mod wan;

use crate::experiment::{Cell, Happening};
use crate::shell::{find, run};
use crate::stage::Stage;
use std::io;
use std::path::PathBuf;

/// Share of the link's rate that programs are told which must be told one, and count the payload of UDP alone: the rest is
/// headers (1472 bytes in frames of 1514), and half a percent that nobody takes.
const TOLD: f64 = 1472.0 / 1514.0 * 0.995;

/// One way of running one program.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    /// As experiments call it.
    pub(crate) name: &'static str,
    /// What is to be known about it.
    pub(crate) about: &'static str,
    /// What it calls.
    pub(crate) tools: &'static [&'static str],
    /// Debian's package that it is from, which knows its version; our own are asked themselves.
    package: Option<&'static str>,
    /// Whether its receivers send to one another, so that their links need the rate too.
    pub(crate) shares_uplinks: bool,
    /// How many receivers it has, at least and at most.
    receivers: (usize, usize),
    /// Whether it can do, or tell, nothing where the sender's link has no rate.
    needs_rate: bool,
    /// Runs it.
    pub(crate) run: fn(&mut Stage<'_>) -> io::Result<()>,
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Program> {
    let lists = [
        downpour::PROGRAMS,
        papers::PROGRAMS,
        rate::PROGRAMS,
        products::PROGRAMS,
        wan::PROGRAMS,
        steered::PROGRAMS,
        udpcast::PROGRAMS,
        uftp::PROGRAMS,
        norm::PROGRAMS,
        tcp::PROGRAMS,
        rsync::PROGRAMS,
        aria2::PROGRAMS,
        iperf3::PROGRAMS,
    ];
    lists.into_iter().flatten()
}

impl Program {
    /// What most of them are: Downpour, to any number of receivers.
    const PLAIN: Self = Self {
        name: "",
        about: "",
        tools: &["downpour"],
        package: None,
        shares_uplinks: false,
        receivers: (1, usize::MAX),
        needs_rate: false,
        run: |_| Ok(()),
    };

    /// The first of its tools that is not here.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        self.tools.iter().copied().find(|name| tool(name).is_none())
    }

    /// Why it does not do what this cell asks, or bear what befalls receivers: what it takes no notice of would be counted all the same.
    /// Others' senders wait for a receiver that is to come later, and so do those of ours that are not for any number.
    pub(crate) fn refuses(&self, cell: &Cell, befalls: &[Happening]) -> Option<String> {
        let (least, most) = self.receivers;
        let late = befalls.iter().any(|happening| happening.joins_at.is_some());
        let one_of = |list: &[Self]| list.iter().any(|program| program.name == self.name);
        let (several, windows) = (one_of(steered::PROGRAMS), one_of(wan::PROGRAMS));
        let why = match (one_of(products::PROGRAMS), cell) {
            _ if !befalls.is_empty() && self.tools[0] != "downpour" => {
                "is not Downpour's: `happening` is for its programs"
            }
            _ if late && self.receivers != Self::PLAIN.receivers => {
                "needs its receivers from the start: `joins_at` is not for it"
            }
            (_, Cell { receivers, .. }) if !(least..=most).contains(receivers) => match most {
                1 => "is for one receiver",
                2 => "is for two receivers",
                _ => "is for two receivers or more",
            },
            (_, Cell { rate: None, .. }) if self.needs_rate => "needs a `rate`",
            (true, Cell { feed: None, .. }) => "sends products: the cell needs `feed`",
            (false, Cell { feed: Some(_), .. }) => "sends one file: `feed` is for *-products*",
            (_, Cell { transfers: 2.., .. }) if !several => {
                "sends one file: `transfers` is for wan-*"
            }
            (_, Cell { measured_from: Some(_), .. }) if !several => {
                "is measured to its end: `measured_from` is for wan-*"
            }
            (_, Cell { window: Some(_), .. }) if !windows => {
                "sets no socket buffers: `window` is for downpour-tcp and others far away"
            }
            (_, Cell { connections: Some(_), .. }) if !several && !windows => {
                "takes no number of connections: `connections` is for wan-*, downpour-tcp and others far away"
            }
            _ => return None,
        };
        Some(format!("`{}` {why}", self.name))
    }

    /// Its version; of our own, whose builds have all the same, also when its file was last changed.
    pub(crate) fn version(&self) -> String {
        // Where there is no dpkg it stays unknown.
        let first = |program: &str, arguments: &[&str]| {
            let text = run(program, arguments).unwrap_or_default();
            text.lines().next().unwrap_or_default().trim().to_owned()
        };
        let own = |path: PathBuf| {
            let path = text(path);
            let changed = first("date", &["-u", "-r", &path, "+%Y-%m-%d %H:%M:%S UTC"]);
            format!("{} of {changed}", first(&path, &["--version"]))
        };
        match self.package {
            Some(package) => first("dpkg-query", &["-W", "-f", "${Package} ${Version}", package]),
            None => tool(self.tools[0]).map(own).unwrap_or_default(),
        }
    }
}

/// Where a program is: the lab itself, beside it (our own, and what `make bench` builds), or installed; but another `downpour` than the one
/// beside it is of another build.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    if name == "lab" {
        return Some(this);
    }
    let folder = this.parent()?;
    let built = ["", "../tools/bin"].map(|place| folder.join(place).join(name));
    let installed = || if name == "downpour" { None } else { find(name) };
    built.into_iter().find(|path| path.is_file()).or_else(installed)
}

/// Paths as arguments.
fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::experiment::{Cell, Happening};
    use crate::units::{Rate, Size, Span};

    #[test]
    fn what_a_program_takes_no_notice_of_is_refused() {
        let program = |name: &str| all().find(|program| program.name == name).unwrap();
        let refused = |name: &str, cell: &Cell| program(name).refuses(cell, &[]).is_some();
        let plain = Cell { receivers: 2, rate: Some(Rate(1_000_000)), ..Cell::default() };
        let feed = Cell { feed: Some("ngrid".to_owned()), ..plain.clone() };
        let several = Cell { transfers: 2, ..plain.clone() };
        let measured = Cell { measured_from: Some(Span::default()), ..plain.clone() };
        let window = Cell { window: Some(Size(4096)), ..plain.clone() };
        let connections = Cell { connections: Some(8), ..plain.clone() };
        let cells = [&plain, &feed, &several, &measured, &window, &connections];
        for (name, told, receivers) in [
            ("downpour", [false, true, true, true, true, true], [false; 3]),
            ("downpour-products", [true, false, true, true, true, true], [true; 3]),
            ("wan-loop", [false, true, false, false, true, false], [false, true, true]),
            ("iperf3-wan", [false, true, true, true, false, false], [false, true, true]),
            ("tcp-parallel", [false, true, true, true, true, true], [false; 3]),
            ("downpour-two", [false, true, true, true, true, true], [true, false, false]),
            ("downpour-two-in", [false, true, true, true, true, true], [true, false, true]),
        ] {
            let to = |receivers, cell: &Cell| refused(name, &Cell { receivers, ..cell.clone() });
            let least = program(name).receivers.0;
            assert_eq!(cells.map(|cell| to(least, cell)), told, "{name}");
            assert_eq!([1, 2, 3].map(|n| to(n, &plain)), receivers, "{name}");
        }
        for name in ["wan-bdp-1", "downpour-products", "downpour-traced"] {
            let with = if name == "downpour-products" { &feed } else { &plain };
            let cell = |rate| Cell { rate, receivers: 1, ..with.clone() };
            assert_eq!([plain.rate, None].map(|rate| refused(name, &cell(rate))), [false, true]);
        }
        let pauses = Happening { pauses_at: Some(Span::default()), ..Happening::default() };
        let joins = Happening { joins_at: Some(Span::default()), ..Happening::default() };
        for (name, bears) in [
            ("downpour", [true, true]),
            ("downpour-bmtp", [true, true]),
            ("downpour-two", [true, false]),
            ("udpcast", [false, false]),
        ] {
            let bear = |befalls: &Happening| {
                program(name).refuses(&plain, std::slice::from_ref(befalls)).is_none()
            };
            assert_eq!([&pauses, &joins].map(bear), bears, "{name}");
        }
    }

    /// Ours, and what each Debian has.
    const HERE: [&str; 5] = ["downpour", "lab", "sh", "split", "sha1sum"];

    #[test]
    fn what_programs_call_is_installed_for_the_bench() {
        let makefile = include_str!("../../../../Makefile");
        let words: Vec<&str> = makefile.split_whitespace().collect();
        // With a package come all tools of the program that is from it.
        let comes_with = |package: &str| {
            words.iter().any(|word| word.split_once(':').is_some_and(|(_, of)| of == package))
        };
        for program in all().filter(|program| !program.package.is_some_and(comes_with)) {
            for tool in program.tools.iter().filter(|tool| !HERE.contains(tool)) {
                let listed = words.iter().any(|word| {
                    word.split_once(':').is_some_and(|(name, _)| name == *tool)
                        || word.rsplit_once('/').is_some_and(|(_, name)| name == *tool)
                });
                assert!(listed, "{}: {tool} is in none of the Makefile's lists", program.name);
            }
        }
    }
}
