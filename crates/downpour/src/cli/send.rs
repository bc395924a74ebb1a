//! `downpour send`: its options, and the plan that they resolve to.
//!
//! The plan's paths exist and can be looked at; whether each file below them can be read is found by the
//! walk, which reports all that cannot at once. Paths are read as rsync reads them: `a/tree` arrives as
//! OUT/tree, `a/tree/` and `.` arrive as their contents.

use super::{EncryptionArg, Fault, NetworkArgs, NetworkPlan, OutputArgs, PathArg, ProfileSendArgs};
use crate::defaults::Defaults;
use crate::descriptors::{Unusable, unusable};
use crate::home::{Home, HomeError};
use crate::object::{Item, name_at_top};
use crate::units::{HostPort, parse_duration, parse_rate, parse_share, parse_size};
use clap::{Args, ValueEnum};
use downpour_proto::{Code, Rate};
use downpour_transport::control::DataPath;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names in a file given with `--expect`; more is surely another kind of file.
const EXPECTED_MAX: usize = 100_000;

/// Bytes of products that are kept.
pub(super) const PRODUCT_MEMORY_DEFAULT: u64 = 256_000_000;
/// A few full blocks, and what repair of the last second needs.
pub(crate) const KEEP_BYTES_MIN: u64 = 16_000_000;

/// Send files and trees to all receivers at once
#[derive(Clone, Debug, Args)]
pub struct SendArgs {
    /// Files and folders to send; `tree` arrives as OUT/tree, `tree/` as its contents, a link as a link,
    /// `-` is standard input
    #[arg(value_name = "PATH", required_unless_present = "products")]
    pub paths: Vec<PathBuf>,
    /// Name under which standard input arrives [default: stdin]
    #[arg(long, value_name = "NAME", conflicts_with = "products")]
    pub name: Option<String>,
    /// Send products as they come instead: a line for each in this file, or on standard input (-): a path, or JSON
    /// with `path` or `size`, `name` (without folders), `meta`, `at_s`. Until the rate is found, at --rate for a second or
    /// so, probes go out when there is nothing to send, at most 8000 of 1.5 kB, which count as control. Once it has started,
    /// Ctrl-C or SIGTERM ends it when what is there has been sent, a second one without that
    #[arg(long, value_name = "FILE", conflicts_with = "paths", help_heading = "Products")]
    pub products: Option<PathBuf>,
    /// Memory for products that were sent, for receivers that missed them
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MB")]
    #[arg(requires = "products", conflicts_with = "paths", help_heading = "Products")]
    pub product_memory: u64,
    /// Log each product in this file, a line of JSON each: when it was inserted and sent, or why it was withdrawn
    #[arg(long, value_name = "FILE", help_heading = "Products")]
    #[arg(requires = "products", conflicts_with = "paths")]
    pub product_log: Option<PathBuf>,
    /// Use the ticket in this file, made by `downpour ticket new`, instead of a new one
    #[arg(long, value_name = "FILE")]
    pub ticket: Option<PathBuf>,
    /// Where receivers reach this sender for control and pull [default: any address, the first free
    /// port of --ports]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<HostPort>,
    /// Tell ACLs, extended attributes and capabilities as well, for receivers with --xattrs; what has more than 1024, or
    /// than 256 KiB of them, cannot be sent so. Without it the mode of a file that has an ACL gives nobody more than that does
    #[arg(long, conflicts_with = "products")]
    pub xattrs: bool,
    /// Leave out what cannot be read, with --xattrs also if only its attributes cannot, and name it in the report, instead of
    /// sending nothing
    #[arg(long, conflicts_with = "products")]
    pub skip_unreadable: bool,

    /// Start as soon as this many receivers have joined; the exit status is 1 if fewer ever do
    #[arg(long, value_name = "N", help_heading = "Start")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub receivers: Option<u32>,
    /// Start when the machines named in this file, one a line, have joined; each must complete
    #[arg(long, value_name = "FILE", help_heading = "Start")]
    pub expect: Option<PathBuf>,
    /// Start after this time with whoever is there, such as 30s or 5min
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Start")]
    pub start_after: Option<Duration>,

    /// Never send faster than this, such as 100mbit or 12MB/s, 8kbit at least [default: that of defaults.toml, or
    /// as fast as all can take it]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = "Rate")]
    pub rate: Option<Rate>,
    /// How the stream's rate is found; what goes by TCP keeps to the ceiling alone [default: that of
    /// defaults.toml, or auto]
    #[arg(long, value_enum, help_heading = "Rate")]
    pub controller: Option<Controller>,
    /// Share of the rate that pulls get together while the stream runs
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "2%")]
    #[arg(help_heading = "Rate")]
    pub pull_share: f64,

    /// How lost packets are made good; a receiver that does not know it is refused [default: rs; mixed for products]
    #[arg(long, value_enum, help_heading = "Repair")]
    pub code: Option<CodeArg>,

    /// Which path the blocks take
    #[arg(long, value_enum, default_value_t = PathArg::Multicast, help_heading = "Network")]
    pub path: PathArg,
    /// What is encrypted of that which goes by TCP; the stream always is
    #[arg(long, value_enum, default_value_t = EncryptionArg::All, help_heading = "Network")]
    pub encryption: EncryptionArg,
    /// Network options.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Another protocol.
    #[command(flatten)]
    pub paper: ProfileSendArgs,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Who decides the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Controller {
    #[default]
    /// Finds the rate that the network and all receivers can take
    Auto,
    /// Sends at --rate, whatever happens
    Fixed,
    /// Takes a share like one TCP connection's: loss of any kind slows it down
    Tfmcc,
    /// Uses what others leave
    Background,
}

/// Which erasure code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CodeArg {
    /// The least to send; about a quarter of a core for each Gbit/s where packets are lost
    Rs,
    /// The least work, for links above about 1 Gbit/s that lose packets; sends some percent more
    Cauchy,
    /// Small blocks as in cauchy, large ones as in rs: what products are sent in
    Mixed,
}

impl From<CodeArg> for Code {
    fn from(arg: CodeArg) -> Self {
        match arg {
            CodeArg::Rs => Self::ReedSolomon,
            CodeArg::Cauchy => Self::Cauchy,
            CodeArg::Mixed => Self::Mixed,
        }
    }
}

/// [`SendArgs`], resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct SendPlan {
    /// What to send.
    pub payload: Payload,
    /// Ticket made ahead; `None` makes a new one.
    pub ticket: Option<PathBuf>,
    /// Address of control and pull; `None` is any address and the first free port.
    pub listen: Option<HostPort>,
    /// With ACLs, extended attributes and capabilities.
    pub xattrs: bool,
    /// Without what cannot be read.
    pub skip_unreadable: bool,
    /// When to start.
    pub start: StartRule,
    /// Ceiling, or with [`Controller::Fixed`] the rate itself.
    pub rate: Option<Rate>,
    /// Both in words, and where they come from.
    pub rate_line: String,
    /// How the rate is found.
    pub controller: Controller,
    /// Share of the rate for all pulls together while the stream runs.
    pub pull_share: f64,
    /// Which path the blocks take.
    pub path: DataPath,
    /// What of that which goes by TCP is encrypted.
    pub encryption: EncryptionArg,
    /// Erasure code.
    pub code: Code,
    /// Interface, group, ports.
    pub network: NetworkPlan,
    /// What to print.
    pub output: OutputArgs,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Files and folders, as typed: a trailing slash has a meaning.
    Paths(Vec<PathBuf>),
    /// Files, each under a name of its own.
    Files(Vec<Item>),
    /// Standard input, under a name.
    Pipe {
        /// The file's name at the receivers.
        name: String,
    },
    /// Products, as they come.
    Products {
        /// The list of them; `-` is standard input.
        list: PathBuf,
        /// Memory for those that were sent.
        keep_bytes: u64,
        /// Where they are logged.
        log: Option<PathBuf>,
    },
}

/// When the data starts: when all of `receivers` and `expect` hold, or when `after` is over, or when the
/// user presses Enter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartRule {
    /// So many have joined. When fewer ever do the exit status is 1.
    pub receivers: Option<u32>,
    /// These have joined. A missing one makes the exit status 1.
    pub expect: BTreeSet<String>,
    /// With whoever is there by then.
    pub after: Option<Duration>,
    /// Enter on the terminal starts.
    pub enter: bool,
}

impl SendArgs {
    /// Looks at the machine and settles everything.
    pub fn resolve(self) -> Result<SendPlan, Fault> {
        self.check_paper_options()?;
        self.check_stream_options()?;
        self.check_files()?;
        let payload = match self.products {
            Some(list) => resolve_products(list, self.product_memory, self.product_log)?,
            None => resolve_payload(self.paths, self.name)?,
        };
        // Standard input cannot be the data and the Enter key at once.
        let enter = !payload.takes_stdin() && io::stdin().is_terminal();
        let expect = self.expect.as_deref().map(read_expected).transpose()?.unwrap_or_default();
        let start = StartRule { receivers: self.receivers, expect, after: self.start_after, enter };
        start.check()?;
        let defaults = read_defaults()?;
        let (controller, rate, rate_line) = match self.path {
            PathArg::Tcp => settle_ceiling(self.controller, self.rate, &defaults)?,
            _ => settle_rate(self.controller, self.rate, &defaults),
        };
        // A file that says `fixed` may say the rate, too. Who asks for it now is to say how fast.
        let is_said = if self.controller.is_some() { self.rate.is_some() } else { rate.is_some() };
        if controller == Controller::Fixed && !is_said {
            let said = match self.controller {
                Some(_) => "--controller fixed",
                None => "`controller = \"fixed\"` in defaults.toml",
            };
            return Err(Fault::usage(
                format!("{said} needs the rate to send at"),
                "add --rate, such as --rate 100mbit",
            ));
        }
        let code = match (self.code, &payload) {
            (Some(code), _) => code,
            (None, Payload::Products { .. }) => CodeArg::Mixed,
            (None, _) => CodeArg::Rs,
        };
        Ok(SendPlan {
            payload,
            ticket: self.ticket,
            listen: self.listen,
            xattrs: self.xattrs,
            skip_unreadable: self.skip_unreadable,
            start,
            rate,
            rate_line,
            controller,
            pull_share: self.pull_share,
            path: self.path.path(),
            encryption: self.encryption,
            code: code.into(),
            network: self.network.resolve()?,
            output: self.output,
        })
    }

    /// Nothing that is read is written to.
    pub(super) fn check_files(&self) -> Result<(), Fault> {
        let named = [&self.products, &self.ticket, &self.expect].into_iter().flatten();
        let mut read: Vec<&Path> = named.map(PathBuf::as_path).collect();
        let mut sent: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        // A paper's protocol knows no links: it sends what they lead to.
        if self.is_of_paper() {
            read.append(&mut sent);
        }
        self.output.check_files(&[("--product-log", self.product_log.as_deref())], &sent, &read)
    }

    /// What is for multicast alone goes with nothing else.
    fn check_stream_options(&self) -> Result<(), Fault> {
        if self.path == PathArg::Tcp && self.code.is_some() {
            let what = "--code is for a stream, and --path tcp has none";
            return Err(Fault::usage(what, "leave one of the two out"));
        }
        let network = &self.network;
        let given = [
            (network.group.is_some(), "--group"),
            (network.source_specific, "--source-specific"),
            (network.ttl != 1, "--ttl"),
        ];
        match given.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) if self.path != PathArg::Multicast => Err(Fault::usage(
                format!("{option} is for a multicast stream, and the --path given has none"),
                "leave one of the two out",
            )),
            _ => Ok(()),
        }
    }
}

impl SendPlan {
    /// Where standard input is what is sent, it must be there.
    pub(super) fn check_input(&self) -> Result<(), Fault> {
        let unusable = unusable(io::stdin()).filter(|_| self.payload.takes_stdin());
        let what = match unusable {
            None => return Ok(()),
            Some(Unusable::Closed) => "standard input is closed, or /dev/null for both ways",
            Some(Unusable::Folder) => "standard input is a folder",
        };
        let todo = "pipe the data or the list into it, or give its path instead of -";
        Err(Fault::start(what, todo))
    }
}

/// The defaults that are in force here.
pub(crate) fn read_defaults() -> Result<Defaults, Fault> {
    let names: Vec<String> = Controller::value_variants().iter().map(|p| p.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let home = match Home::locate() {
        Err(error @ HomeError::Relative(_)) => {
            let todo = "give it in full: with another one this machine has another key";
            return Err(Fault::start(error.to_string(), todo));
        }
        home => home.ok(),
    };
    Defaults::read(home.as_ref(), &names).map_err(|error| {
        Fault::usage(
            error.to_string(),
            "correct the file: it may hold ceiling = \"RATE\", hard = true and controller = \"NAME\"",
        )
    })
}

/// Controller, rate, and both in words with where they come from.
fn settle_rate(
    controller: Option<Controller>,
    asked: Option<Rate>,
    defaults: &Defaults,
) -> (Controller, Option<Rate>, String) {
    let told = defaults.controller.as_ref().filter(|_| controller.is_none());
    let controller = controller.unwrap_or_else(|| Controller::of(defaults));
    let file = told.map_or_else(String::new, |told| format!(" ({})", told.file.display()));
    let (rate, origin) = defaults.ceiling_for(asked);
    (controller, rate, format!("{}{file}, {}", controller.name(), ceiling_words(rate, &origin)))
}

/// As [`settle_rate`] where there is no stream: TCP finds the rate, below a ceiling.
fn settle_ceiling(
    controller: Option<Controller>,
    asked: Option<Rate>,
    defaults: &Defaults,
) -> Result<(Controller, Option<Rate>, String), Fault> {
    if let Some(controller) = controller.filter(|controller| *controller != Controller::Auto) {
        return Err(Fault::usage(
            format!("--controller {} is for a stream, and --path tcp has none", controller.name()),
            "give --rate for a ceiling instead, or another --path",
        ));
    }
    let (rate, origin) = defaults.ceiling_for(asked);
    let line = format!("by TCP's own control, {}", ceiling_words(rate, &origin));
    Ok((Controller::Auto, rate, line))
}

/// A ceiling with where it comes from.
pub(super) fn ceiling_words(rate: Option<Rate>, origin: &str) -> String {
    match rate {
        Some(rate) => format!("{rate} at most ({origin})"),
        None => "no ceiling".to_owned(),
    }
}

impl Controller {
    /// Where nothing else is said.
    pub(crate) fn of(defaults: &Defaults) -> Self {
        let told = defaults.controller.as_ref();
        // The name was checked when the file was read.
        told.and_then(|told| Self::from_str(&told.value, false).ok()).unwrap_or_default()
    }

    /// As the command line has it.
    pub fn name(self) -> String {
        // No variant is hidden.
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Payload {
    fn takes_stdin(&self) -> bool {
        match self {
            Self::Paths(_) | Self::Files(_) => false,
            Self::Pipe { .. } => true,
            Self::Products { list, .. } => list.as_os_str() == "-",
        }
    }
}

fn resolve_products(
    list: PathBuf,
    keep_bytes: u64,
    log: Option<PathBuf>,
) -> Result<Payload, Fault> {
    if keep_bytes < KEEP_BYTES_MIN {
        return Err(Fault::usage(
            "less than 16 MB cannot keep what is on its way",
            "give --product-memory at least 16MB",
        ));
    }
    // A pipe is opened once: who writes there would lose its reader.
    let check = |list: &Path| match std::fs::metadata(list)? {
        meta if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        meta if meta.is_file() => std::fs::File::open(list).map(drop),
        _ => Ok(()),
    };
    if list.as_os_str() != "-"
        && let Err(error) = check(&list)
    {
        return Err(Fault::start(
            format!("cannot read the list of products {}: {error}", list.display()),
            "give --products a file with a line for each product, or -",
        ));
    }
    Ok(Payload::Products { list, keep_bytes, log })
}

impl StartRule {
    fn check(&self) -> Result<(), Fault> {
        let never = self.receivers.is_none() && self.expect.is_empty() && self.after.is_none();
        if never && !self.enter {
            return Err(Fault::usage(
                "nothing says when to start, and there is no terminal to press Enter on",
                "add --receivers N, --expect FILE or --start-after TIME",
            ));
        }
        Ok(())
    }
}

fn resolve_payload(paths: Vec<PathBuf>, name: Option<String>) -> Result<Payload, Fault> {
    if paths.iter().any(|path| path.as_os_str() == "-") {
        if paths.len() > 1 {
            return Err(Fault::usage(
                "standard input (-) cannot be sent together with files",
                "send it in a session of its own, or save it to a file first",
            ));
        }
        let name = name.unwrap_or_else(|| "stdin".to_owned());
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(Fault::usage(
                format!("`{name}` is no name for a file"),
                "give --name a plain file name, such as --name disk.img",
            ));
        }
        return Ok(Payload::Pipe { name });
    }
    if name.is_some() {
        let what = "--name is for standard input, and files have names";
        return Err(Fault::usage(what, "leave it out, or send standard input (-)"));
    }
    for path in &paths {
        // A dangling symlink is an object like any other, so the link itself must be there.
        if let Err(error) = std::fs::symlink_metadata(path) {
            return Err(Fault::start(
                format!("cannot send {}: {error}", path.display()),
                "check the path (it is taken relative to the folder you are in) and your rights",
            ));
        }
    }
    check_arrival_names(&paths)?;
    Ok(Payload::Paths(paths))
}

/// Two paths may not arrive under one name. Contents of folders are compared by the walk.
fn check_arrival_names(paths: &[PathBuf]) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for name in paths.iter().filter_map(|path| name_at_top(path)) {
        if !seen.insert(name) {
            return Err(Fault::usage(
                format!("two of the paths would arrive as OUT/{}", String::from_utf8_lossy(name)),
                "rename one, or send the folder that holds both",
            ));
        }
    }
    Ok(())
}

fn read_expected(path: &Path) -> Result<BTreeSet<String>, Fault> {
    let advice = "write one machine's name a line, as it calls itself (`receive --name`); # starts a \
                  comment";
    let text = std::fs::read_to_string(path).map_err(|error| {
        Fault::usage(
            format!("cannot read the expected names in {}: {error}", path.display()),
            advice,
        )
    })?;
    let mut names = BTreeSet::new();
    for line in text.lines() {
        // Editors of Windows begin a file with a byte order mark.
        let is_blank = |c: char| c.is_whitespace() || c == '\u{feff}';
        let name = line.split('#').next().unwrap_or_default().trim_matches(is_blank);
        if name.contains(char::is_control) {
            let what =
                format!("{}: `{}` is no machine's name", path.display(), name.escape_debug());
            return Err(Fault::usage(what, advice));
        }
        if !name.is_empty() && !names.insert(name.to_owned()) {
            let what = format!("{} names {name} twice", path.display());
            return Err(Fault::usage(what, "give each machine a name of its own"));
        }
    }
    if names.is_empty() || names.len() > EXPECTED_MAX {
        let what = format!("{} holds {} names", path.display(), names.len());
        return Err(Fault::usage(what, advice));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::{Controller, Payload, SendArgs, SendPlan, settle_ceiling, settle_rate};
    use crate::cli::{Exit, Fault};
    use crate::defaults::{Defaults, Told};
    use clap::Parser;
    use downpour_proto::Rate;
    use std::time::Duration;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SendArgs,
    }

    fn resolve(line: &[&str]) -> Result<SendPlan, Fault> {
        let line = Line::try_parse_from([&["send"], line].concat()).unwrap();
        line.args.resolve()
    }

    #[test]
    fn defaults_are_filled_in() {
        let plan = resolve(&["/", "--receivers", "8"]).unwrap();
        assert_eq!(plan.start.receivers, Some(8));
        assert_eq!((plan.controller, plan.rate), (Controller::Auto, None));
        assert_eq!((plan.network.ttl, plan.pull_share), (1, 0.02));
        assert_eq!(plan.network.ports, crate::ports::PortRange::DEFAULT);
    }

    #[test]
    fn a_sites_defaults_apply_where_the_command_line_is_silent() {
        let told = |value: &str| Told { value: value.to_owned(), file: "/etc/d.toml".into() };
        let ceiling = Told { value: Rate::from_mbps(50), file: "/etc/d.toml".into() };
        let defaults = Defaults {
            ceiling: Some(ceiling.clone()),
            hard: Some(ceiling),
            controller: Some(told("background")),
        };
        let (controller, rate, line) = settle_rate(None, None, &defaults);
        assert_eq!((controller, rate), (Controller::Background, Some(Rate::from_mbps(50))));
        assert_eq!(line, "background (/etc/d.toml), 50.0 Mbit/s at most (hard in /etc/d.toml)");
        let (controller, rate, line) =
            settle_rate(Some(Controller::Auto), Some(Rate::from_mbps(20)), &defaults);
        assert_eq!((controller, rate), (Controller::Auto, Some(Rate::from_mbps(20))));
        assert_eq!(line, "auto, 20.0 Mbit/s at most (--rate)");
        assert_eq!(settle_rate(None, None, &Defaults::default()).2, "auto, no ceiling");
        let (controller, _, line) = settle_ceiling(None, None, &defaults).unwrap();
        assert_eq!(controller, Controller::Auto, "what controls nothing is not named");
        assert_eq!(line, "by TCP's own control, 50.0 Mbit/s at most (hard in /etc/d.toml)");
    }

    #[test]
    fn a_controller_needs_a_stream() {
        let by_tcp = |controller: &str| {
            resolve(&["/", "--path", "tcp", "--controller", controller, "--receivers", "1"])
        };
        assert!(by_tcp("auto").is_ok());
        let fault = by_tcp("background").unwrap_err();
        assert_eq!(fault.exit, Exit::Usage);
        assert!(fault.what.contains("--controller background"), "{fault}");
        let coded = resolve(&["/", "--path", "tcp", "--code", "cauchy", "--receivers", "1"]);
        assert_eq!(coded.unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn quantities_have_units() {
        let plan = resolve(&["/", "--rate", "12MB/s", "--start-after", "5min"]).unwrap();
        assert_eq!(plan.rate.unwrap().bps(), 96_000_000);
        assert_eq!(plan.start.after, Some(Duration::from_secs(300)));
        let error = Line::try_parse_from(["send", "/", "--rate", "100"]).err().unwrap();
        assert!(error.to_string().contains("100mbit"), "{error}");
        assert_eq!(error.exit_code(), Exit::Usage as i32);
    }

    #[test]
    fn what_cannot_be_sent_is_said_before_anything_starts() {
        let missing = resolve(&["/no/such/path", "--receivers", "1"]).unwrap_err();
        assert_eq!(missing.exit, Exit::CouldNotStart);
        assert!(missing.what.contains("/no/such/path"), "{missing}");
        let twice = resolve(&["/etc/hosts", "/usr/../etc/hosts", "--receivers", "1"]).unwrap_err();
        assert!(twice.what.contains("OUT/hosts"), "{twice}");
        // Contents do not collide by the folder's own name.
        assert!(resolve(&["/etc/", "/etc", "--receivers", "1"]).is_ok());
        let mixed = resolve(&["-", "/etc", "--receivers", "1"]).unwrap_err();
        assert_eq!(mixed.exit, Exit::Usage);
    }

    #[test]
    fn standard_input_has_a_plain_name() {
        let plan = resolve(&["-", "--name", "disk.img", "--receivers", "1"]).unwrap();
        assert_eq!(plan.payload, Payload::Pipe { name: "disk.img".to_owned() });
        assert!(!plan.start.enter, "the Enter key is not free");
        assert!(resolve(&["-", "--name", "../x", "--receivers", "1"]).is_err());
    }

    #[test]
    fn options_that_would_do_nothing_are_refused() {
        for line in [
            &["/", "--name", "x"][..],
            &["/", "--path", "tcp", "--group", "239.192.7.1:28819"],
            &["/", "--path", "udp", "--source-specific"],
            &["/", "--path", "auto", "--ttl", "2"],
            &["/", "--report", "-"],
            &["/", "--trace", "-"],
        ] {
            let fault = resolve(&[line, &["--receivers", "1"]].concat()).unwrap_err();
            assert_eq!(fault.exit, Exit::Usage, "{line:?}: {fault}");
        }
        for option in [&["--name", "x"][..], &["--xattrs"], &["--skip-unreadable"]] {
            let line = [&["send", "--products", "-"], option].concat();
            assert!(Line::try_parse_from(&line).is_err(), "{line:?}");
        }
        for option in [["--product-log", "log"], ["--product-memory", "64MB"]] {
            for what in ["/", "-"] {
                let line = [&["send", what, "--receivers", "1"][..], &option].concat();
                assert!(Line::try_parse_from(&line).is_err(), "{line:?}");
            }
            let line = [&["send", "--products", "-"][..], &option].concat();
            assert!(Line::try_parse_from(&line).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn a_pipe_with_a_list_is_not_opened_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("list");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (done, resolved) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let line = ["--products", pipe.to_str().unwrap(), "--receivers", "1"];
            done.send(resolve(&line).map(|plan| plan.payload)).unwrap();
        });
        // Nobody writes there: who opens it waits.
        let payload = resolved.recv_timeout(Duration::from_secs(60)).expect("it does not wait");
        assert!(matches!(payload, Ok(Payload::Products { .. })), "{payload:?}");
        let missing = resolve(&["--products", "/no/such/list", "--receivers", "1"]).unwrap_err();
        assert_eq!(missing.exit, Exit::CouldNotStart);
        let folder = resolve(&["--products", "/", "--receivers", "1"]).unwrap_err();
        assert_eq!(folder.exit, Exit::CouldNotStart);
        assert!(folder.what.contains("directory"), "{folder}");
    }

    #[test]
    fn a_session_that_would_never_start_is_refused() {
        // Standard input is the data, so nobody can press Enter.
        let fault = resolve(&["-"]).unwrap_err();
        assert!(fault.todo.contains("--receivers"), "{fault}");
        assert!(resolve(&["/", "--controller", "fixed", "--receivers", "1"]).is_err());
    }

    #[test]
    fn what_is_sent_or_read_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "node1\n").unwrap();
        let link = folder.path().join("l");
        std::os::unix::fs::symlink("f", &link).unwrap();
        let (file, link) = (file.to_str().unwrap(), link.to_str().unwrap());
        let folder = folder.path().to_str().unwrap();
        for line in [
            &[file, "--trace", file][..],
            &["/dev/null", "--expect", link, "--report", link],
            &["/dev/null", "--ticket", link, "--report", file],
            &["--products", link, "--product-log", file],
            &[link, "--profile", "bmtp", "--report", file],
            &[folder, "--report", file],
            &["/dev/null", "--expect", file, "--report", file],
            &["--products", file, "--product-log", file],
            &[file, "--profile", "bmtp", "--report", file],
        ] {
            let line =
                Line::try_parse_from([&["send", "--receivers", "1"], line].concat()).unwrap();
            let fault = match line.args.is_of_paper() {
                true => line.args.resolve_paper().unwrap_err(),
                false => line.args.resolve().unwrap_err(),
            };
            assert!(fault.exit == Exit::Usage && fault.what.contains("is what is read"), "{fault}");
        }
        assert_eq!(std::fs::read(file).unwrap(), b"node1\n");
    }

    #[test]
    fn expected_names_come_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names");
        let file = path.to_str().unwrap();
        std::fs::write(&path, "# rack 1\nnode1\n node2 # spare\n\n").unwrap();
        let plan = resolve(&["/", "--expect", file]).unwrap();
        assert_eq!(plan.start.expect.iter().collect::<Vec<_>>(), ["node1", "node2"]);
        std::fs::write(&path, "\u{feff}node1\r\nnode2\r\n").unwrap();
        let plan = resolve(&["/", "--expect", file]).unwrap();
        assert_eq!(plan.start.expect.iter().collect::<Vec<_>>(), ["node1", "node2"]);
        std::fs::write(&path, "node\u{0}1\n").unwrap();
        assert!(resolve(&["/", "--expect", file]).unwrap_err().what.contains("no machine's name"));
        std::fs::write(&path, "node1\nnode1\n").unwrap();
        assert!(resolve(&["/", "--expect", file]).unwrap_err().what.contains("twice"));
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(resolve(&["/", "--expect", file]).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(resolve(&["/", "--expect", file]).unwrap_err().what.contains("cannot read"));
    }
}
