//! `downpour receive`: its options, and the plan that they resolve to.
//!
//! The ticket comes as the string itself, from a file (`@FILE`) or from standard input (`-`), so that a
//! secret need not stand in a process list. What it says is checked by `ticket`, not here.

use super::{ConnectionArgs, Fault, Interface, OutputArgs, ProfileReceiveArgs};
use crate::descriptors::unusable;
use crate::object::limits::{ENTRIES_DEFAULT, ENTRIES_MAX};
use crate::units::{parse_duration, parse_rate, parse_share, parse_size};
use clap::Args;
use downpour_proto::Rate;
use downpour_proto::transfer::{Figure, Measured, Wishes};
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A ticket is a few hundred bytes; more is another kind of file.
const TICKET_BYTES_MAX: u64 = 64 * 1024;
/// Bytes for blocks that are not yet complete.
pub(super) const MEMORY_DEFAULT: u64 = 256_000_000;
/// Longest name of a machine.
const NAME_BYTES_MAX: usize = 255;

/// Receive what a ticket's sender sends
#[derive(Clone, Debug, Args)]
pub struct ReceiveArgs {
    /// The ticket that the sender printed; @FILE reads it from a file, - from standard input
    #[arg(value_name = "TICKET", required_unless_present = "protocol")]
    pub ticket: Option<String>,
    /// Folder to place files in, a block device, or - for standard output
    #[arg(long, value_name = "DIR", required_unless_present = "discard")]
    pub out: Option<PathBuf>,
    /// Verify everything and keep nothing
    #[arg(long, conflicts_with = "out")]
    pub discard: bool,
    /// Replace files that are there and differ; a newer product replaces an older one that this run has placed or verified anyway
    #[arg(long)]
    pub overwrite: bool,
    /// As root: keep the setuid and setgid bits of files, which are taken off otherwise
    #[arg(long)]
    pub setuid: bool,
    /// Make ACLs, extended attributes and capabilities what they are at the sender, which needs --xattrs as well; what cannot
    /// be set is a notice here and no failure, and the mode of a file without its ACL gives nobody more than that did
    #[arg(long)]
    pub xattrs: bool,
    /// How long to wait for the sender, such as 30s or 24h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5min")]
    pub join_timeout: Duration,
    /// Stay when a session is over, and take part in the next one of this ticket, however long that takes: for named
    /// receivers of a site. Without --report: the summary at its end, or --json, is of one session, the last that failed
    /// or else the last
    #[arg(long, conflicts_with = "report")]
    pub stay: bool,
    /// Name of this machine in the sender's report [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Memory for blocks that are not yet complete; of eight at least, whatever is given (`--out -`: ten, or one for each
    /// connection)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MB")]
    pub memory: u64,
    /// Refuse trees of more entries (files, folders, links), of which each costs memory and an inode
    #[arg(long, value_name = "N", default_value_t = ENTRIES_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(ENTRIES_MAX)))]
    pub max_entries: u32,
    /// In a session of products (`send --products`): log each product in this file, a line of JSON each
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub product_log: Option<PathBuf>,
    /// Interface of the multicast data, by name or address [default: the one with the route to the
    /// group]
    #[arg(long, value_name = "IF", help_heading = "Network")]
    pub interface: Option<String>,
    /// Drop this share of the stream's datagrams as they arrive, to see recovery at work
    #[arg(long, value_name = "SHARE", value_parser = parse_share, help_heading = "Network")]
    pub inject_loss: Option<f64>,
    /// What the path from the sender is known to carry, such as 1gbit; without it, and in a session by multicast,
    /// socket buffers stay with the kernel
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = "Connections")]
    pub path_rate: Option<Rate>,
    /// The path's round trip when nothing else is sent, such as 12ms; in a session by multicast it does nothing
    /// [default: that of the TCP handshake]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Connections")]
    pub path_rtt: Option<Duration>,
    /// Connections for what is pulled.
    #[command(flatten)]
    pub connections: ConnectionArgs,
    /// Another protocol.
    #[command(flatten)]
    pub paper: ProfileReceiveArgs,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// [`ReceiveArgs`], resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivePlan {
    /// The ticket as text.
    pub ticket: TicketText,
    /// Where the bytes go.
    pub target: Target,
    /// Replace files that differ.
    pub overwrite: bool,
    /// With setuid and setgid bits of files.
    pub setuid: bool,
    /// With ACLs, extended attributes and capabilities.
    pub xattrs: bool,
    /// How long to wait for the sender.
    pub join_timeout: Duration,
    /// Take part in session after session.
    pub stay: bool,
    /// Name of this machine.
    pub name: String,
    /// Memory for open blocks, bytes.
    pub memory_bytes: u64,
    /// Entries of the tree at most.
    pub entries_max: u32,
    /// Where products are logged.
    pub product_log: Option<PathBuf>,
    /// `None`: the one with the route to the group.
    pub interface: Option<Interface>,
    /// Share of datagrams to drop on purpose.
    pub inject_loss: f64,
    /// How connections for what is pulled shall be set.
    pub wishes: Wishes,
    /// What is known of the path beforehand.
    pub measured: Measured,
    /// Other transfers on it.
    pub beside: u16,
    /// What to print.
    pub output: OutputArgs,
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder; made when it is missing.
    Tree(PathBuf),
    /// A block device, written in place.
    Device(PathBuf),
    /// Standard output, in order.
    Pipe,
    /// Verified and forgotten.
    Discard,
}

/// A ticket's text, trimmed. Not shown by `Debug`: it is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketText(String);

impl std::fmt::Debug for TicketText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketText(..)")
    }
}

impl TicketText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// From an argument: the string itself, `@FILE`, or `-`.
    pub fn read(argument: &str) -> Result<Self, Fault> {
        let advice = "give the line that `downpour send` printed, @FILE, or - for standard input";
        let cannot = |place: &str, error: io::Error| {
            Fault::start(format!("cannot read the ticket from {place}: {error}"), advice)
        };
        let text = match argument.strip_prefix('@') {
            Some(path) => {
                std::fs::File::open(path).and_then(read_short).map_err(|e| cannot(path, e))
            }
            None if argument == "-" => {
                read_short(io::stdin().lock()).map_err(|e| cannot("standard input", e))
            }
            None => Ok(argument.to_owned()),
        }?;
        let text = text.trim();
        if text.is_empty() {
            return Err(Fault::usage("the ticket is empty", advice));
        }
        if !text.contains(':') && Path::new(text).exists() {
            let what = format!("`{text}` is a file, not a ticket");
            return Err(Fault::usage(what, format!("to read the ticket in it, write @{text}")));
        }
        Ok(Self(text.to_owned()))
    }
}

fn read_short(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(TICKET_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl ReceiveArgs {
    /// Each file that is written is another one, and not the ticket's.
    pub(super) fn check_files(&self) -> Result<(), Fault> {
        let more = [
            ("--product-log", self.product_log.as_deref()),
            ("--times", self.paper.times.as_deref()),
        ];
        let ticket = self.ticket.as_deref();
        let ticket =
            ticket.and_then(|text| text.strip_prefix('@').or((text == "-").then_some(text)));
        let read: Vec<&Path> = ticket.into_iter().map(Path::new).collect();
        self.output.check_files(&more, &[], &read)
    }

    /// Looks at the machine and settles everything.
    pub fn resolve(self) -> Result<ReceivePlan, Fault> {
        self.check_paper_options()?;
        if self.output.json && self.out.as_deref() == Some(Path::new("-")) {
            let what = "standard output cannot take the data and the report of --json";
            return Err(Fault::usage(what, "give --report FILE instead of --json"));
        }
        self.check_files()?;
        // Absent only beside `--profile auto`; an empty one is refused with advice.
        Ok(ReceivePlan {
            ticket: TicketText::read(self.ticket.as_deref().unwrap_or_default())?,
            target: resolve_target(self.out, self.discard)?,
            overwrite: self.overwrite,
            setuid: self.setuid,
            xattrs: self.xattrs,
            join_timeout: self.join_timeout,
            stay: self.stay,
            name: resolve_name(self.name)?,
            memory_bytes: self.memory,
            entries_max: self.max_entries,
            product_log: self.product_log,
            interface: self.interface.as_deref().map(Interface::find).transpose()?,
            inject_loss: self.inject_loss.unwrap_or(0.0),
            measured: Measured {
                throughput: self.path_rate.map(|rate| Figure::fresh(rate, "--path-rate")),
                rtt: self.path_rtt.map(|rtt| Figure::fresh(rtt, "--path-rtt")),
                loss: None,
            },
            beside: 0,
            wishes: self.connections.resolve()?,
            output: self.output,
        })
    }
}

impl ReceivePlan {
    /// Where the data go to standard output, it must be there.
    pub(super) fn check_output(&self) -> Result<(), Fault> {
        if self.target != Target::Pipe || unusable(io::stdout()).is_none() {
            return Ok(());
        }
        let todo = "let it go to a program or a file, or give --discard to keep nothing";
        Err(Fault::start("standard output is closed, or /dev/null for both ways", todo))
    }
}

fn resolve_target(out: Option<PathBuf>, discard: bool) -> Result<Target, Fault> {
    let path = match out {
        _ if discard => return Ok(Target::Discard),
        Some(path) if path.as_os_str() == "-" => {
            if io::stdout().is_terminal() {
                let what = "standard output is a terminal";
                return Err(Fault::usage(what, "pipe it into a program, or give --out a folder"));
            }
            return Ok(Target::Pipe);
        }
        Some(path) => path,
        // Unreachable by clap's own rule; said again for callers of the library.
        None => return Err(Fault::usage("no target is given", "add --out DIR or --discard")),
    };
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Ok(Target::Tree(path)),
        Ok(meta) if meta.file_type().is_block_device() => Ok(Target::Device(path)),
        Ok(_) => Err(Fault::usage(
            format!("{} is neither a folder nor a block device", path.display()),
            "give --out a folder: files keep the names that the sender gave them",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            let what = format!("{} is a link to nothing", path.display());
            Err(Fault::usage(what, "make the folder that it leads to, or give --out another"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Target::Tree(path)),
        Err(error) => Err(Fault::start(
            format!("cannot use {} as the target: {error}", path.display()),
            "check the path and your rights on the folders above it",
        )),
    }
}

fn resolve_name(name: Option<String>) -> Result<String, Fault> {
    let name = match name {
        Some(name) => name,
        None => std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(),
    };
    let name = name.trim();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        let what = format!("`{}` is no name for a machine", name.escape_debug());
        return Err(Fault::usage(what, "give --name one printable line of at most 255 bytes"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{ReceiveArgs, ReceivePlan, Target};
    use crate::cli::{Exit, Fault};
    use clap::Parser;
    use std::path::PathBuf;
    use std::time::Duration;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReceiveArgs,
    }

    fn resolve(line: &[&str]) -> Result<ReceivePlan, Fault> {
        let line = Line::try_parse_from([&["receive"], line].concat()).unwrap();
        line.args.resolve()
    }

    #[test]
    fn defaults_are_filled_in() {
        let plan = resolve(&["downpour1:abc", "--out", "/tmp"]).unwrap();
        assert_eq!(plan.ticket.as_str(), "downpour1:abc");
        assert_eq!(plan.target, Target::Tree(PathBuf::from("/tmp")));
        assert_eq!(plan.join_timeout, Duration::from_secs(300));
        assert_eq!((plan.memory_bytes, plan.inject_loss), (256_000_000, 0.0));
        assert!(!plan.name.is_empty());
    }

    #[test]
    fn the_ticket_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t");
        std::fs::write(&file, "downpour1:abc").unwrap();
        let at = format!("@{}", file.display());
        let report = |ticket| resolve(&[ticket, "--discard", "--report", file.to_str().unwrap()]);
        let fault = report(&at).unwrap_err();
        assert!(fault.exit == Exit::Usage && fault.what.contains("is what is read"), "{fault}");
        assert!(report("downpour1:abc").is_ok());
    }

    #[test]
    fn targets_are_told_apart() {
        let target = |line: &[&str]| resolve(&[&["downpour1:abc"], line].concat());
        assert_eq!(target(&["--discard"]).unwrap().target, Target::Discard);
        let new = target(&["--out", "/tmp/downpour-not-there"]).unwrap().target;
        assert!(matches!(new, Target::Tree(_)));
        let file = target(&["--out", "/etc/hosts"]).unwrap_err();
        assert_eq!(file.exit, Exit::Usage);
        let below = target(&["--out", "/etc/hosts/x"]).unwrap_err();
        assert_eq!(below.exit, Exit::CouldNotStart);
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        let dangling = target(&["--out", link.to_str().unwrap()]).unwrap_err();
        assert!(dangling.what.contains("a link to nothing"), "{dangling}");
        assert!(Line::try_parse_from(["receive", "downpour1:abc"]).is_err(), "no target");
        let two = target(&["--out", "-", "--json"]).unwrap_err();
        assert!(two.exit == Exit::Usage && two.todo.contains("--report"), "{two}");
    }

    #[test]
    fn tickets_come_from_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ticket");
        std::fs::write(&path, "downpour1:abc\n").unwrap();
        let file = path.to_str().unwrap();
        let plan = resolve(&[&format!("@{file}"), "--discard"]).unwrap();
        assert_eq!(plan.ticket.as_str(), "downpour1:abc");
        assert!(!format!("{plan:?}").contains("abc"), "a ticket is a secret");
        let forgot = resolve(&[file, "--discard"]).unwrap_err();
        assert!(forgot.todo.contains(&format!("@{file}")), "{forgot}");
        std::fs::remove_file(&path).unwrap();
        let gone = resolve(&[&format!("@{file}"), "--discard"]).unwrap_err();
        assert_eq!(gone.exit, Exit::CouldNotStart);
        assert!(resolve(&[" ", "--discard"]).is_err());
    }

    #[test]
    fn machines_have_printable_names() {
        let plan = resolve(&["downpour1:abc", "--discard", "--name", "node7"]).unwrap();
        assert_eq!(plan.name, "node7");
        assert!(resolve(&["downpour1:abc", "--discard", "--name", "a\nb"]).is_err());
    }
}
