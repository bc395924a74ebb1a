//! `downpour tune`: what is known of paths, the plans that follow, and what this machine should be set to.

mod doctor;
mod said;

use super::tune_history::HistoryArgs;
use super::{ConnectionArgs, Exit, Fault};
use crate::output::plain;
use crate::site::{Clock, Config};
use crate::tuner::plan::{Link, Sheet, host, limits, sysctl};
use crate::tuner::{Combined, LeftOut, Means, Seen, from_file, measurements};
use crate::units::{parse_size, show_bytes, show_duration};
use clap::{Args, Subcommand, ValueEnum};
use doctor::DoctorArgs;
use downpour_catalog::{OpenError, Reader};
use downpour_proto::transfer::{Host, Known, Measured, Plan, Ranked, Source, rank};
use downpour_transport::control::DataPath;
use downpour_transport::identity::Identity;
use said::{FigureArgs, Limits, SiteArgs};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What a receiver takes for blocks under way unless it is told otherwise.
const MEMORY: u64 = 256_000_000;

/// Plan transfers from what was measured, and see what this machine's settings are worth
#[derive(Debug, Args)]
pub(super) struct TuneArgs {
    #[command(subcommand)]
    verb: TuneVerb,
}

#[derive(Debug, Subcommand)]
enum TuneVerb {
    Show(Box<ShowArgs>),
    Doctor(DoctorArgs),
    History(HistoryArgs),
}

/// The plan for a path, each number with its reason; also as options of other movers
#[derive(Debug, Args)]
struct ShowArgs {
    /// The site or machine that sends
    #[arg(value_name = "SRC")]
    from: String,
    /// The one that receives; before it there may be more that send: then it is said from which a file is there first
    #[arg(value_name = "DST", required = true, num_args = 1..)]
    to: Vec<String>,
    /// With several that send: how long the file is
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GB")]
    size: u64,
    /// How to print it; sysctl: what the two kernels should allow
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Other transfers that run on the path
    #[arg(long, value_name = "N", default_value_t = 0)]
    beside: u16,
    /// What the sender's kernel allows: `here`, `unknown`, or words such as wmem_max=212992 congestion=cubic,bbr
    #[arg(long, value_name = "LIMITS", default_value = "here")]
    sender: Limits,
    /// What the receiver's kernel allows, in the same way
    #[arg(long, value_name = "LIMITS", default_value = "here")]
    receiver: Limits,
    #[command(flatten)]
    site: SiteArgs,
    /// A saved reply of an archive instead: nobody is asked
    #[arg(long = "from", value_name = "FILE")]
    saved: Option<PathBuf>,
    #[command(flatten)]
    figures: FigureArgs,
    #[command(flatten)]
    connections: ConnectionArgs,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    GlobusUrlCopy,
    Bbcp,
    Sysctl,
}

impl TuneArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            TuneVerb::Show(args) => args.run(),
            TuneVerb::Doctor(args) => args.run(),
            TuneVerb::History(args) => args.run(),
        }
    }
}

/// Asks the sources of a site.
fn ask(config: &Config, from: &str, to: &str) -> Result<Combined, Fault> {
    // Without the node's key there is no probe, and all else works.
    let identity = Identity::load(&config.state()).ok().flatten().map(Arc::new);
    let (seen, trouble) = seen(config, from, to);
    let means = Means { now: Clock::system().now(), identity, seen, probed: Vec::new() };
    let mut found = wait(measurements(from, to, config, means))?;
    found.left_out.extend(trouble);
    Ok(found)
}

/// Waits for an answer, and not for a file that is still being read when its time is over.
fn wait<T>(answer: impl Future<Output = T>) -> Result<T, Fault> {
    let runtime = super::site::runtime()?;
    let answer = runtime.block_on(answer);
    runtime.shutdown_background();
    Ok(answer)
}

/// What was left out of what is known of a path, a line each, for standard error.
fn without(from: &str, to: &str, left_out: &[LeftOut]) -> String {
    let line = |LeftOut { source, what, times, .. }: &LeftOut| {
        let times = if *times > 1 { format!(", {times} times") } else { String::new() };
        format!("left out  {source}: {}{times} ({from} to {to})\n", plain(what))
    };
    left_out.iter().map(line).collect()
}

/// What a site's catalog has of its own transfers. A site that never ran has none.
fn seen(config: &Config, from: &str, to: &str) -> (Vec<Seen>, Option<LeftOut>) {
    let read = match Reader::open(&config.catalog()) {
        Ok(mut reader) => Seen::read(&mut reader, from, to).map_err(|error| error.to_string()),
        Err(OpenError::NoFile(_) | OpenError::Empty) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(seen) => (seen, None),
        Err(what) => {
            let what = format!("the catalog cannot be read: {what}");
            let source = "history".to_owned();
            (Vec::new(), Some(LeftOut { source, what, times: 1, silent: true }))
        }
    }
}

impl ShowArgs {
    fn run(self) -> Result<Exit, Fault> {
        let here = host();
        let mut known = Vec::new();
        for from in self.sources() {
            let Combined { measured, left_out, .. } = self.found(from)?;
            eprint!("{}", without(from, self.to(), &left_out));
            known.push(self.known(&here, self.figures.over(measured))?);
        }
        let text = match &known[..] {
            [known] => self.print(known),
            several => self.rank(several)?,
        };
        print!("{text}");
        Ok(Exit::Complete)
    }

    /// Who sends.
    fn sources(&self) -> impl Iterator<Item = &str> {
        let more = &self.to[..self.to.len().saturating_sub(1)];
        std::iter::once(self.from.as_str()).chain(more.iter().map(String::as_str))
    }

    /// Who receives.
    fn to(&self) -> &str {
        self.to.last().map_or("", String::as_str)
    }

    /// From which of them a file would be there first, and the plan of each.
    fn rank(&self, known: &[Known]) -> Result<String, Fault> {
        let planned = self.sources().zip(known).map(|(from, known)| {
            let plan = Plan::new(known);
            let source = Source {
                name: from.to_owned(),
                expected: plan.expected.value,
                by: plan.expected.why.clone(),
                rtt: known.measured.rtt.as_ref().map(|rtt| rtt.value),
                ..Source::default()
            };
            (source, Sheet::new(from, self.to(), known, &plan))
        });
        let (sources, mut sheets): (Vec<_>, Vec<_>) =
            planned.map(|(source, sheet)| (source, Some(sheet))).unzip();
        let row = |ranked: Ranked| Row {
            from: ranked.name,
            takes_s: ranked.takes.map(|takes| takes.as_secs_f64()),
            why: ranked.why,
            sheet: sheets[ranked.index].take(),
        };
        let ranking: Vec<Row> = rank(self.size, &sources).into_iter().map(row).collect();
        let ranking = Ranking { to: self.to().to_owned(), size: self.size, ranking };
        match self.format {
            Format::Text => Ok(ranking.text()),
            Format::Json => Ok(json(&ranking)),
            _ => Err(Fault::usage(
                "options of other movers are those of one path",
                "name one site that sends, or leave --format out",
            )),
        }
    }

    /// What sources say.
    fn found(&self, from: &str) -> Result<Combined, Fault> {
        match (&self.saved, self.site.read()?) {
            (Some(file), config) => {
                // Nothing else is asked: without it there is no plan of what was seen. It is opened once: it may be a pipe.
                if let Err(error) = rustix::fs::access(file, rustix::fs::Access::READ_OK) {
                    let what = format!("{}: {error}", file.display());
                    return Err(Fault::usage(what, "give --from a file with a reply"));
                }
                wait(from_file(file, from, self.to(), config.as_ref(), Clock::system().now()))
            }
            (None, Some(config)) => ask(&config, from, self.to()),
            (None, None) => Ok(Combined::default()),
        }
    }

    fn known(&self, here: &Host, measured: Measured) -> Result<Known, Fault> {
        Ok(Known {
            measured,
            sender: self.sender.of(here),
            receiver: self.receiver.of(here),
            beside: self.beside,
            range_len: crate::session::range_len(DataPath::Tcp, self.size),
            memory: MEMORY,
            wishes: self.connections.clone().resolve()?,
        })
    }

    /// The plan of one path.
    fn print(&self, known: &Known) -> String {
        let (from, to) = (self.from.as_str(), self.to());
        let sheet = Sheet::new(from, to, known, &Plan::new(known));
        match self.format {
            Format::Text => sheet.text(),
            Format::Json => json(&sheet),
            Format::GlobusUrlCopy => sheet.globus_url_copy(),
            Format::Bbcp => sheet.bbcp(),
            Format::Sysctl => {
                let at = |host: &Host, other: &str, names: &[&str]| {
                    let link = Link::alike(other, &known.measured);
                    let mut found = limits(host, &[link]);
                    found.retain(|setting| names.iter().any(|name| setting.name.ends_with(name)));
                    sysctl(&found)
                };
                let sending = ["tcp_wmem", "wmem_max", "tcp_congestion_control"];
                format!(
                    "# at the sender, {from}\n{}# at the receiver, {to}\n{}",
                    at(&known.sender, to, &sending),
                    at(&known.receiver, from, &["tcp_rmem", "rmem_max"])
                )
            }
        }
    }
}

/// Places that send, in the order in which a file would be there.
#[derive(Serialize)]
struct Ranking {
    to: String,
    /// Bytes of the file.
    size: u64,
    ranking: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// The sheet has it, too.
    #[serde(skip)]
    from: String,
    /// In how many seconds the file would be there; absent: nobody can say.
    #[serde(skip_serializing_if = "Option::is_none")]
    takes_s: Option<f64>,
    why: String,
    /// What is known of the path, and the plan.
    #[serde(flatten)]
    sheet: Option<Sheet>,
}

impl Ranking {
    fn text(&self) -> String {
        let mut text = format!("{} to {}\n", show_bytes(self.size), self.to);
        let wide = self.ranking.iter().map(|row| row.from.chars().count()).max().unwrap_or(0);
        for Row { from, takes_s, why, .. } in &self.ranking {
            let takes = takes_s.map_or("not known".to_owned(), |takes| {
                show_duration(Duration::try_from_secs_f64(takes).unwrap_or(Duration::MAX))
            });
            text.push_str(&format!("  {from:wide$}  {takes:>12}  {why}\n"));
        }
        for sheet in self.ranking.iter().filter_map(|row| row.sheet.as_ref()) {
            text.push_str(&format!("\n{}", sheet.text()));
        }
        text
    }
}

fn json(what: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(what).expect("numbers and words") + "\n"
}

#[cfg(test)]
mod tests {
    use super::TuneArgs;
    use super::{Host, TuneVerb};
    use clap::Parser;
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: TuneArgs,
    }

    const COMMON: &str = "rmem_max=212992 wmem_max=212992 tcp_rmem=4096,131072,6291456 \
                          tcp_wmem=4096,16384,4194304 congestion=cubic,reno";

    /// The plan that a line asks for, as it is printed.
    fn printed(line: &str) -> String {
        let words = ["tune", "show", "cern", "asgc"].into_iter().chain(line.split_whitespace());
        let TuneVerb::Show(args) = Line::try_parse_from(words).unwrap().args.verb else {
            panic!("another verb")
        };
        let measured = args.figures.measured();
        args.print(&args.known(&Host::parse(COMMON), measured).unwrap())
    }

    /// Compares it with the file of this name; `UPDATE_SNAPSHOT=1` writes the file.
    fn prints(name: &str, line: &str) {
        let text = printed(line);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/tune").join(name);
        if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(text, expected, "{}; UPDATE_SNAPSHOT=1 writes it anew", file.display());
    }

    #[test]
    fn plans_are_printed_as_they_were() {
        prints("nothing-known.txt", "");
        prints("gigabit-12ms.txt", "--rate 1gbit --rtt 12ms --loss 0%");
        prints("gigabit-200ms-lossy.txt", "--rate 1gbit --rtt 200ms --loss 0.01%");
        prints(
            "bdp-1.json",
            "--rate 1gbit --rtt 12ms --connections 10 --policy bdp-1 --format json",
        );
        let bdp = "--rate 1gbit --rtt 12ms --connections 10 --policy bdp-1 --receiver unknown";
        prints("globus-url-copy.txt", &format!("{bdp} --format globus-url-copy"));
        prints("bbcp.txt", &format!("{bdp} --format bbcp --pacing 400mbit"));
        prints("sysctl.txt", "--rate 1gbit --rtt 100ms --loss 0.1% --format sysctl");
    }

    #[test]
    fn bbcp_is_told_the_whole_ceiling_in_bytes_as_far_as_it_takes_them() {
        let bbcp = |pacing: &str| printed(&format!("--format bbcp --pacing {pacing}"));
        for (pacing, bytes) in [("400mbit", "50000000"), ("70kbit", "8750")] {
            let text = bbcp(pacing);
            assert!(text.contains(&format!(" -x {bytes} cern asgc\n")), "{text}");
            assert!(!text.contains("bbcp takes"), "{text}");
        }
        for (pacing, bytes) in [("8kbit", "1024"), ("20gbit", "1073741824")] {
            let text = bbcp(pacing);
            assert!(text.contains(&format!(" -x {bytes} cern asgc\n")), "{text}");
            assert!(text.contains(&format!("# -x {bytes}, not ")), "{text}");
        }
    }

    /// The paper's sample document, of which the labels say a thousandth of what it means.
    #[test]
    fn a_saved_reply_is_planned_with() {
        let reply =
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tuner/fixtures/dashboard/paper.json");
        let line = format!(
            "tune show lhcmn.bnl.gov psmsu02.aglt2.org --config none --from {reply} --rtt 12ms"
        );
        let TuneVerb::Show(args) = Line::try_parse_from(line.split(' ')).unwrap().args.verb else {
            panic!("another verb")
        };
        let measured = args.figures.over(args.found(&args.from).unwrap().measured);
        let throughput = measured.throughput.as_ref().unwrap();
        assert_eq!(throughput.value.bps(), 308_642_000);
        assert!(throughput.origin.starts_with("paper.json: 1 sample by check"), "{throughput:?}");
        assert_eq!(measured.rtt.as_ref().unwrap().origin, "--rtt");
        let text = args.print(&args.known(&Host::parse(COMMON), measured).unwrap());
        assert!(text.contains("paper.json"), "{text}");
    }

    #[test]
    fn without_the_saved_reply_there_is_no_plan() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reply.json");
        let line = format!("tune show a b --config none --from {}", file.display());
        let TuneVerb::Show(args) = Line::try_parse_from(line.split(' ')).unwrap().args.verb else {
            panic!("another verb")
        };
        assert!(args.found("a").unwrap_err().to_string().contains("reply.json"));
        std::fs::write(&file, "[]").unwrap();
        assert!(args.found("a").is_ok());
    }

    #[test]
    fn what_is_written_to_a_pipe_is_planned_with() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        let line = format!("tune show a b --config none --from {}", pipe.display());
        let TuneVerb::Show(args) = Line::try_parse_from(line.split(' ')).unwrap().args.verb else {
            panic!("another verb")
        };
        let writer = thread::spawn(move || {
            std::fs::write(pipe, "PS_CHECK_THROUGHPUT OK - Average throughput is 200Mbps")
        });
        let (told, found) = mpsc::channel();
        thread::spawn(move || told.send(args.found("a").unwrap().measured.throughput));
        // Far more than it takes.
        let found = found.recv_timeout(Duration::from_secs(60)).expect("it ends");
        assert_eq!(found.unwrap().value.bps(), 200_000_000);
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn of_several_that_send_the_first_is_from_where_a_file_is_there_first() {
        let words = "tune show near unknown far there --size 1GB --config none";
        let TuneVerb::Show(args) = Line::try_parse_from(words.split(' ')).unwrap().args.verb else {
            panic!("another verb")
        };
        assert_eq!(args.sources().collect::<Vec<_>>(), ["near", "unknown", "far"]);
        let figures = |line: &str| {
            let line = format!("tune show a b {line}");
            let TuneVerb::Show(args) = Line::try_parse_from(line.split(' ')).unwrap().args.verb
            else {
                panic!("another verb")
            };
            args.known(&Host::parse(COMMON), args.figures.measured()).unwrap()
        };
        let known = [
            figures("--rate 100mbit --rtt 1ms"),
            figures("--rtt 1ms"),
            figures("--rate 400mbit --rtt 50ms"),
        ];
        let text = args.rank(&known).unwrap();
        let names: Vec<_> = text
            .lines()
            .skip(1)
            .take(3)
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(names, ["far", "near", "unknown"], "{text}");
        assert!(text.starts_with("1.00 GB to there\n  far ") && text.contains("20.2 s"), "{text}");
        let plans = text.lines().filter(|line| line.starts_with("from ")).count();
        assert_eq!(plans, 3, "{text}");
    }
}
