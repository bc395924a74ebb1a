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

use crate::experiment::Cell;
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
    /// The first of its tools that is not here.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        self.tools.iter().copied().find(|name| tool(name).is_none())
    }

    /// Why it does not do what this cell asks, or bear that something `befalls` receivers: what it takes no notice of would be
    /// counted all the same. Others' senders wait for a receiver that is to come later.
    pub(crate) fn refuses(&self, cell: &Cell, befalls: bool) -> Option<String> {
        let one_of = |list: &[Self]| list.iter().any(|program| program.name == self.name);
        let (several, windows) = (one_of(steered::PROGRAMS), one_of(wan::PROGRAMS));
        let why = match (one_of(products::PROGRAMS), cell) {
            _ if befalls && self.tools[0] != "downpour" => {
                "is not Downpour's: `happening` is for its programs"
            }
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

    /// Its version.
    pub(crate) fn version(&self) -> String {
        let asked = match self.package {
            Some(package) => run("dpkg-query", &["-W", "-f", "${Package} ${Version}", package]),
            None => tool(self.tools[0]).map_or_else(
                || Ok(String::new()),
                |path| run(&path.to_string_lossy(), &["--version"]),
            ),
        };
        // Where there is no dpkg it stays unknown.
        let text = asked.unwrap_or_default();
        text.lines().next().unwrap_or_default().trim().to_owned()
    }
}

/// Where a program is: the lab itself, beside it (our own, and what `make bench` builds), or installed.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    if name == "lab" {
        return Some(this);
    }
    let folder = this.parent()?;
    let built = ["", "../tools/bin"].map(|place| folder.join(place).join(name));
    built.into_iter().find(|path| path.is_file()).or_else(|| find(name))
}

/// Paths as arguments.
fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::experiment::Cell;
    use crate::units::{Size, Span};

    #[test]
    fn what_a_program_takes_no_notice_of_is_refused() {
        let refused = |name: &str, cell: &Cell| {
            let program = all().find(|program| program.name == name).unwrap();
            program.refuses(cell, false).is_some()
        };
        let plain = Cell::default();
        let feed = Cell { feed: Some("ngrid".to_owned()), ..plain.clone() };
        let several = Cell { transfers: 2, ..plain.clone() };
        let measured = Cell { measured_from: Some(Span::default()), ..plain.clone() };
        let window = Cell { window: Some(Size(4096)), ..plain.clone() };
        let connections = Cell { connections: Some(8), ..plain.clone() };
        let cells = [&plain, &feed, &several, &measured, &window, &connections];
        for (name, told) in [
            ("downpour", [false, true, true, true, true, true]),
            ("downpour-products", [true, false, true, true, true, true]),
            ("wan-loop", [false, true, false, false, true, false]),
            ("iperf3-wan", [false, true, true, true, false, false]),
            ("tcp-parallel", [false, true, true, true, true, true]),
        ] {
            assert_eq!(cells.map(|cell| refused(name, cell)), told, "{name}");
        }
        let befallen = all().filter(|program| program.refuses(&plain, true).is_none());
        let befallen: Vec<&str> = befallen.map(|program| program.name).collect();
        for (name, bears) in [("downpour", true), ("downpour-bmtp", true), ("udpcast", false)] {
            assert_eq!(befallen.contains(&name), bears, "{name}");
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
