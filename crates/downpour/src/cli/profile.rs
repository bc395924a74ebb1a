//! `--profile`: the papers' protocols beside the engine. Options, and the plans that they resolve to.
//!
//! A profile carries one plain file, and `fmtp` a feed of products too. What it cannot do (tickets, trees, expected names) is a
//! usage error and not passed over.

use super::network::{check_group, listen_addrs, parse_group};
use super::receive::MEMORY_DEFAULT;
use super::send::{PRODUCT_MEMORY_DEFAULT, ceiling_words, read_defaults};
use super::{
    ConnectionArgs, EncryptionArg, Fault, Interface, OutputArgs, PathArg, ReceiveArgs, SendArgs,
};
use crate::defaults::Defaults;
use crate::object::limits::ENTRIES_DEFAULT;
use crate::units::{HostPort, parse_duration, parse_rate};
use clap::{Args, ValueEnum};
use downpour_proto::profile::bmtp::StatusRule;
use downpour_proto::profile::{METADATA_MAX, Mode, bmtp, fmtp};
use downpour_proto::rate::AfdpLimits;
use downpour_proto::{PULL_SHARE_DEFAULT, Rate};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which protocol a session speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Downpour's own
    #[default]
    Auto,
    /// Bulk Multicast Protocol as SLAC built it (Ishihara 2002)
    Bmtp,
    /// Adaptive File Distribution Protocol (Cooperstock 1996)
    Afdp,
    /// File Multicast Transport Protocol of LDM7 (Tan 2019)
    Fmtp,
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bmtp => "bmtp",
            Self::Afdp => "afdp",
            Self::Fmtp => "fmtp",
        }
    }
}

/// How `afdp` reaches its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// One packet to the group
    Multicast,
    /// One packet to everybody on the network
    Broadcast,
    /// A packet to each subscriber
    Unicast,
}

const HEADING: &str = "Papers' protocols (one file, with fmtp also products; not encrypted, not \
                       authenticated; for measurements)";

/// Options of the papers' protocols, sending.
#[derive(Clone, Debug, Default, Args)]
pub struct ProfileSendArgs {
    /// Speak a paper's protocol instead of Downpour's own
    #[arg(long = "profile", value_enum, default_value_t = Protocol::Auto, help_heading = HEADING)]
    pub protocol: Protocol,
    /// bmtp: start with this many packets per second [default: 200]
    #[arg(long, value_name = "N", help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub start_packets: Option<u32>,
    /// afdp: how subscribers are reached [default: multicast]
    #[arg(long, value_enum, help_heading = HEADING)]
    pub mode: Option<ModeArg>,
    /// afdp: least time between two packets [default: 10ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = HEADING)]
    pub tp_min: Option<Duration>,
    /// afdp: at most ten packets per second
    #[arg(long, conflicts_with_all = ["rabid", "tp_min"], help_heading = HEADING)]
    pub nice: bool,
    /// afdp: no least time between two packets
    #[arg(long, conflicts_with = "tp_min", help_heading = HEADING)]
    pub rabid: bool,
    /// fmtp: keep the file so long for who has not all of it [default: 10min]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = HEADING)]
    pub keep: Option<Duration>,
}

/// Options of the papers' protocols, receiving.
#[derive(Clone, Debug, Default, Args)]
pub struct ProfileReceiveArgs {
    /// Speak a paper's protocol instead of Downpour's own; without a ticket
    #[arg(long = "profile", value_enum, default_value_t = Protocol::Auto, help_heading = HEADING)]
    pub protocol: Protocol,
    /// bmtp, fmtp: the group that the sender was given
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_group, help_heading = HEADING)]
    pub group: Option<SocketAddr>,
    /// afdp, fmtp: the sender's control port
    #[arg(long, value_name = "HOST:PORT", help_heading = HEADING)]
    pub sender: Option<HostPort>,
    /// Name of the file here; bmtp does not carry one [default: the sender's]
    #[arg(long = "as", value_name = "NAME", help_heading = HEADING)]
    pub file_name: Option<String>,
    /// bmtp: the status rule that the paper rejected, max(m/s, a)/N
    #[arg(long, help_heading = HEADING)]
    pub rejected_rule: bool,
    /// fmtp: rate of the link, for the timers [default: 20mbit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = HEADING)]
    pub link_rate: Option<Rate>,
    /// Write when each segment came to this file, as CSV
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub times: Option<PathBuf>,
}

/// A sender's profile with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SendKind {
    /// `bmtp`.
    Bmtp {
        /// Packets per second at the start.
        rate_initial: f64,
    },
    /// `afdp`.
    Afdp {
        /// How short Tp may become.
        limits: AfdpLimits,
    },
    /// `fmtp`.
    Fmtp {
        /// The circuit's.
        rate: Rate,
        /// How long the file is kept.
        keep: Duration,
    },
}

/// A receiver's profile with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReceiveKind {
    /// `bmtp`.
    Bmtp {
        /// When it speaks.
        rule: StatusRule,
    },
    /// `afdp`.
    Afdp,
    /// `fmtp`.
    Fmtp {
        /// The link's rate.
        link: Rate,
    },
}

impl SendKind {
    /// As the command line calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bmtp { .. } => "bmtp",
            Self::Afdp { .. } => "afdp",
            Self::Fmtp { .. } => "fmtp",
        }
    }
}

impl ReceiveKind {
    /// As the command line calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bmtp { .. } => "bmtp",
            Self::Afdp => "afdp",
            Self::Fmtp { .. } => "fmtp",
        }
    }
}

/// What a paper's protocol carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfilePayload {
    /// One file.
    File {
        /// Where it is.
        path: PathBuf,
        /// Its name at the receivers.
        name: String,
        /// Its bytes.
        size: u64,
    },
    /// Products as they come (`fmtp`).
    Products {
        /// Their list; `-`: standard input.
        list: PathBuf,
        /// Where each is logged.
        log: Option<PathBuf>,
    },
}

/// A session of a paper's protocol, sending.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileSendPlan {
    /// Which, and its numbers.
    pub kind: SendKind,
    /// How receivers are reached.
    pub mode: Mode,
    /// Where packets go; `None` in unicast mode.
    pub group: Option<SocketAddr>,
    /// What is sent.
    pub payload: ProfilePayload,
    /// Never faster.
    pub rate: Option<Rate>,
    /// The same in words, with where it comes from.
    pub rate_line: String,
    /// Addresses to try for the control port.
    pub listen: Vec<SocketAddr>,
    /// Start with so many.
    pub receivers: usize,
    /// Or after this.
    pub start_after: Option<Duration>,
    /// `None`: the one with the route to the group.
    pub interface: Option<Interface>,
    /// Routers plus one.
    pub ttl: u8,
    /// What to print.
    pub output: OutputArgs,
}

/// A session of a paper's protocol, receiving.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileReceivePlan {
    /// Which, and its numbers.
    pub kind: ReceiveKind,
    /// The group to listen to; `None`: the sender tells.
    pub group: Option<SocketAddr>,
    /// The sender's control port.
    pub sender: Option<HostPort>,
    /// The folder; `None`: nothing is kept.
    pub out: Option<PathBuf>,
    /// Replace a file that is there.
    pub overwrite: bool,
    /// Instead of the sender's name.
    pub name: Option<String>,
    /// Where receive times go.
    pub times: Option<PathBuf>,
    /// A feed of products, of which nothing is kept, is logged there.
    pub product_log: Option<PathBuf>,
    /// How long to wait for the sender.
    pub join_timeout: Duration,
    /// Share of datagrams to drop on purpose.
    pub inject_loss: f64,
    /// `None`: the one with the route to the group.
    pub interface: Option<Interface>,
    /// What to print.
    pub output: OutputArgs,
}

/// Whether an option that was given belongs to this protocol.
fn check_options(protocol: Protocol, given: &[(bool, &str, &[Protocol])]) -> Result<(), Fault> {
    match given.iter().find(|(given, _, of)| *given && !of.contains(&protocol)) {
        None => Ok(()),
        Some((_, option, [])) => Err(Fault::usage(
            format!("{option} means nothing to profile {}", protocol.name()),
            "leave it out, or use Downpour's own protocol",
        )),
        Some((_, option, of)) => {
            let of: Vec<&str> = of.iter().map(|protocol| protocol.name()).collect();
            let what = format!("{option} is of profile {}", of.join(" and "));
            Err(Fault::usage(what, format!("leave it out, or give --profile {}", of[0])))
        }
    }
}

use Protocol::{Afdp, Auto, Bmtp, Fmtp};

impl ProfileSendArgs {
    fn send_kind(&self, rate: Option<Rate>) -> Result<SendKind, Fault> {
        Ok(match self.protocol {
            Fmtp => SendKind::Fmtp {
                rate: rate.ok_or_else(|| {
                    let what = "profile fmtp is shaped to the circuit's rate";
                    Fault::usage(what, "add --rate, such as --rate 20mbit")
                })?,
                keep: self.keep.unwrap_or(fmtp::KEEP),
            },
            Afdp => SendKind::Afdp {
                limits: match (self.nice, self.rabid, self.tp_min) {
                    (true, ..) => AfdpLimits::Nice,
                    (_, true, _) => AfdpLimits::Rabid,
                    (.., Some(min)) => AfdpLimits::Min(min),
                    (.., None) => AfdpLimits::DEFAULT,
                },
            },
            Bmtp | Auto => SendKind::Bmtp {
                rate_initial: self.start_packets.map_or(bmtp::RATE_INITIAL, f64::from),
            },
        })
    }
}

impl SendArgs {
    /// Whether this is no session of the engine.
    pub fn is_of_paper(&self) -> bool {
        self.paper.protocol != Auto
    }

    /// Options that only a paper's protocol has.
    pub(super) fn check_paper_options(&self) -> Result<(), Fault> {
        let paper = &self.paper;
        check_options(
            paper.protocol,
            &[
                (paper.start_packets.is_some(), "--start-packets", &[Bmtp]),
                (paper.mode.is_some(), "--mode", &[Afdp]),
                (paper.tp_min.is_some(), "--tp-min", &[Afdp]),
                (paper.nice, "--nice", &[Afdp]),
                (paper.rabid, "--rabid", &[Afdp]),
                (paper.keep.is_some(), "--keep", &[Fmtp]),
            ],
        )
    }

    /// Settles everything for a paper's protocol.
    pub fn resolve_paper(self) -> Result<ProfileSendPlan, Fault> {
        self.check_paper_options().and_then(|()| self.check_files())?;
        let protocol = self.paper.protocol;
        check_options(
            protocol,
            &[
                (self.products.is_some(), "--products", &[Fmtp]),
                (self.ticket.is_some(), "--ticket", &[]),
                (self.name.is_some(), "--name", &[]),
                (self.expect.is_some(), "--expect", &[]),
                (self.code.is_some(), "--code", &[]),
                (self.xattrs, "--xattrs", &[]),
                (self.skip_unreadable, "--skip-unreadable", &[]),
                (self.receivers.is_some(), "--receivers", &[Afdp, Fmtp]),
                (self.rate.is_some(), "--rate", &[Bmtp, Fmtp]),
                (self.listen.is_some(), "--listen", &[Afdp, Fmtp]),
                (self.controller.is_some(), "--controller", &[]),
                (self.pull_share != PULL_SHARE_DEFAULT, "--pull-share", &[]),
                (self.path != PathArg::default(), "--path", &[]),
                (self.encryption != EncryptionArg::default(), "--encryption", &[]),
                (self.network.source_specific, "--source-specific", &[]),
                (self.network.mtu.is_some(), "--mtu", &[]),
                (self.product_memory != PRODUCT_MEMORY_DEFAULT, "--product-memory", &[]),
                (self.output.trace.is_some(), "--trace", &[]),
            ],
        )?;
        let (rate, origin) = bounded(protocol, self.rate, &read_defaults()?)?;
        let payload = match &self.products {
            None => one_file(&self.paths, protocol)?,
            Some(list) => ProfilePayload::Products { list: list.clone(), log: self.product_log },
        };
        let paper = &self.paper;
        let mode = match paper.mode {
            None | Some(ModeArg::Multicast) => Mode::Multicast,
            Some(ModeArg::Broadcast) => Mode::Broadcast,
            Some(ModeArg::Unicast) => Mode::Unicast,
        };
        let group = resolve_group(mode, self.network.group, self.network.ports.multicast())?;
        let kind = self.paper.send_kind(rate)?;
        let connects = protocol != Bmtp;
        if connects && self.receivers.is_none() && self.start_after.is_none() {
            let what = "nothing says when to start";
            return Err(Fault::usage(what, "add --receivers N or --start-after TIME"));
        }
        // With a time alone, whoever is there by then counts.
        let receivers = match (self.receivers, self.start_after) {
            (Some(receivers), _) => receivers as usize,
            (None, Some(_)) => usize::MAX,
            (None, None) => 0,
        };
        let listen = listen_addrs(self.listen.as_ref(), self.network.ports)?;
        Ok(ProfileSendPlan {
            kind,
            mode,
            group,
            payload,
            rate,
            rate_line: ceiling_words(rate, &origin),
            listen,
            receivers,
            start_after: self.start_after,
            interface: self.network.interface.as_deref().map(Interface::find).transpose()?,
            ttl: self.network.ttl,
            output: self.output,
        })
    }
}

impl ReceiveArgs {
    /// Whether this is no session of the engine.
    pub fn is_of_paper(&self) -> bool {
        self.paper.protocol != Auto
    }

    /// Options that only a paper's protocol has.
    pub(super) fn check_paper_options(&self) -> Result<(), Fault> {
        let paper = &self.paper;
        check_options(
            paper.protocol,
            &[
                (paper.group.is_some(), "--group", &[Bmtp, Fmtp]),
                (paper.sender.is_some(), "--sender", &[Afdp, Fmtp]),
                (paper.file_name.is_some(), "--as", &[Bmtp, Afdp, Fmtp]),
                (paper.rejected_rule, "--rejected-rule", &[Bmtp]),
                (paper.link_rate.is_some(), "--link-rate", &[Fmtp]),
                (paper.times.is_some(), "--times", &[Bmtp, Afdp, Fmtp]),
            ],
        )
    }

    /// Settles everything for a paper's protocol.
    pub fn resolve_paper(self) -> Result<ProfileReceivePlan, Fault> {
        self.check_paper_options().and_then(|()| self.check_files())?;
        let protocol = self.paper.protocol;
        check_options(
            protocol,
            &[
                (self.ticket.is_some(), "a ticket", &[]),
                (self.setuid, "--setuid", &[]),
                (self.xattrs, "--xattrs", &[]),
                (self.product_log.is_some(), "--product-log", &[Fmtp]),
                (self.stay, "--stay", &[]),
                (self.name.is_some(), "--name", &[]),
                (self.memory != MEMORY_DEFAULT, "--memory", &[]),
                (self.max_entries != ENTRIES_DEFAULT, "--max-entries", &[]),
                (self.path_rate.is_some(), "--path-rate", &[]),
                (self.path_rtt.is_some(), "--path-rtt", &[]),
                (self.connections != ConnectionArgs::default(), "an option of connections", &[]),
                (self.output.trace.is_some(), "--trace", &[]),
            ],
        )?;
        if self.product_log.is_some() && (!self.discard || self.paper.times.is_some()) {
            let what = "a paper's protocol keeps none of a feed's products";
            return Err(Fault::usage(what, "with --product-log give --discard, and no --times"));
        }
        let paper = &self.paper;
        let lacks = |option: &str, like: &str| {
            let what = format!("profile {} needs {option}", protocol.name());
            Fault::usage(what, format!("add it, such as {option} {like}"))
        };
        match paper.group {
            Some(group) => check_group(group, false)?,
            None if protocol != Afdp => return Err(lacks("--group", "239.192.7.1:28819")),
            None => {}
        }
        if paper.sender.is_none() && protocol != Bmtp {
            return Err(lacks("--sender", "sender.example:28800"));
        }
        if let Some(name) = &paper.file_name
            && !crate::object::is_plain_name(name.as_bytes())
        {
            let what = format!("`{}` is no name for a file", name.escape_debug());
            return Err(Fault::usage(what, "give --as a plain file name"));
        }
        if self.out.as_deref().is_some_and(|out| out == Path::new("-") || out.is_file()) {
            return Err(Fault::usage("a paper's protocol places a file", "give --out a folder"));
        }
        let kind = match protocol {
            Afdp => ReceiveKind::Afdp,
            Fmtp => ReceiveKind::Fmtp { link: paper.link_rate.unwrap_or(fmtp::LINK_RATE) },
            Bmtp | Auto => {
                let kept = !paper.rejected_rule;
                let rule = if kept { StatusRule::Kept } else { StatusRule::Rejected };
                ReceiveKind::Bmtp { rule }
            }
        };
        Ok(ProfileReceivePlan {
            kind,
            group: paper.group,
            sender: self.paper.sender,
            out: self.out.filter(|_| !self.discard),
            overwrite: self.overwrite,
            name: self.paper.file_name,
            times: self.paper.times,
            product_log: self.product_log,
            join_timeout: self.join_timeout,
            inject_loss: self.inject_loss.unwrap_or(0.0),
            interface: self.interface.as_deref().map(Interface::find).transpose()?,
            output: self.output,
        })
    }
}

/// The rate under what the machine's defaults allow, and where it comes from.
fn bounded(
    protocol: Protocol,
    asked: Option<Rate>,
    defaults: &Defaults,
) -> Result<(Option<Rate>, String), Fault> {
    match (protocol, &defaults.hard) {
        (Afdp, Some(hard)) => Err(Fault::usage(
            format!(
                "profile afdp keeps to no rate, and {} allows {}",
                hard.file.display(),
                hard.value
            ),
            "send by another protocol",
        )),
        (Afdp, None) => Ok((None, String::new())),
        // The circuit's rate is no default's to know.
        (Fmtp, _) if asked.is_none() => Ok((None, String::new())),
        _ => Ok(defaults.ceiling_for(asked)),
    }
}

fn one_file(paths: &[PathBuf], protocol: Protocol) -> Result<ProfilePayload, Fault> {
    let one = "a paper's protocol carries one plain file";
    let todo = "name one file, or pack a tree into one";
    let [path] = paths else { return Err(Fault::usage(one, todo)) };
    let meta = std::fs::metadata(path).map_err(|error| {
        let what = format!("cannot send {}: {error}", path.display());
        Fault::start(what, "check the path and your rights")
    })?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !meta.is_file() || name.is_empty() || name.len() > METADATA_MAX {
        return Err(Fault::usage(format!("{}: {one}", path.display()), todo));
    }
    if meta.len() > u64::from(u32::MAX) {
        let what = format!("{} is longer than the 4 GiB that the headers can say", path.display());
        return Err(Fault::usage(what, "split it, or use Downpour's own protocol"));
    }
    let why = match protocol {
        Bmtp => Some("bmtp sends nothing of an empty file, so nobody would know of it"),
        Afdp => Some("a receiver of afdp leaves before it has joined when the file is empty"),
        Fmtp | Auto => None,
    };
    if let Some(what) = why.filter(|_| meta.len() == 0) {
        return Err(Fault::usage(what, "send it by another protocol"));
    }
    Ok(ProfilePayload::File { path: path.clone(), name: name.to_owned(), size: meta.len() })
}

fn resolve_group(
    mode: Mode,
    asked: Option<SocketAddr>,
    port: u16,
) -> Result<Option<SocketAddr>, Fault> {
    match (mode, asked) {
        (Mode::Multicast, None) => Err(Fault::usage(
            "the receivers must be given the same group",
            "add --group, such as --group 239.192.7.1:28819",
        )),
        (Mode::Multicast, Some(group)) => check_group(group, false).map(|()| Some(group)),
        (Mode::Broadcast, None) => Ok(Some((Ipv4Addr::BROADCAST, port).into())),
        (Mode::Broadcast, Some(to)) => Ok(Some(to)),
        (Mode::Unicast, None) => Ok(None),
        (Mode::Unicast, Some(_)) => {
            Err(Fault::usage("--group means nothing to --mode unicast", "leave one of them out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Protocol::{Afdp, Bmtp, Fmtp};
    use super::{
        ProfilePayload, ProfileReceivePlan, ProfileSendPlan, ReceiveKind, SendKind, bounded,
    };
    use crate::cli::{Exit, Fault, ReceiveArgs, SendArgs};
    use crate::defaults::{Defaults, Told};
    use clap::Parser;
    use downpour_proto::Rate;
    use downpour_proto::profile::Mode;
    use downpour_proto::profile::bmtp::StatusRule;
    use downpour_proto::rate::AfdpLimits;
    use std::time::Duration;

    #[derive(Parser)]
    struct Sending {
        #[command(flatten)]
        args: SendArgs,
    }

    #[derive(Parser)]
    struct Receiving {
        #[command(flatten)]
        args: ReceiveArgs,
    }

    fn send(line: &str) -> Result<ProfileSendPlan, Fault> {
        let words = ["send"].into_iter().chain(line.split(' '));
        let args = Sending::try_parse_from(words).unwrap().args;
        assert!(args.is_of_paper());
        args.resolve_paper()
    }

    fn receive(line: &str) -> Result<ProfileReceivePlan, Fault> {
        let words = ["receive"].into_iter().chain(line.split(' '));
        Receiving::try_parse_from(words).unwrap().args.resolve_paper()
    }

    #[test]
    fn each_protocol_has_its_papers_numbers() {
        let plan = send("/etc/hosts --profile bmtp --group 239.1.2.3:7000").unwrap();
        assert_eq!(plan.kind, SendKind::Bmtp { rate_initial: 200.0 });
        let ProfilePayload::File { name, .. } = &plan.payload else { panic!("{plan:?}") };
        assert_eq!((name.as_str(), plan.mode), ("hosts", Mode::Multicast));
        let plan = send("/etc/hosts --profile afdp --mode unicast --receivers 3 --nice").unwrap();
        assert_eq!(plan.kind, SendKind::Afdp { limits: AfdpLimits::Nice });
        assert_eq!((plan.group, plan.receivers), (None, 3));
        let plan = send("/etc/hosts --profile afdp --mode broadcast --start-after 1s").unwrap();
        assert_eq!(plan.kind, SendKind::Afdp { limits: AfdpLimits::DEFAULT });
        assert_eq!(plan.group, "255.255.255.255:28819".parse().ok());
        let line = "/etc/hosts --profile fmtp --rate 20mbit --receivers 1 --group 239.1.2.3:7000";
        let plan = send(line).unwrap();
        let SendKind::Fmtp { keep, .. } = plan.kind else { panic!("{line}") };
        assert_eq!(keep, Duration::from_secs(600));
        assert_eq!(plan.rate_line, "20.0 Mbit/s at most (--rate)");
        let line = "--products - --product-log l --profile fmtp --rate 1mbit --receivers 1 --group 239.1.2.3:7000";
        let (list, log) = ("-".into(), Some("l".into()));
        assert_eq!(send(line).unwrap().payload, ProfilePayload::Products { list, log });
        let plan =
            receive("--profile bmtp --group 239.1.2.3:7000 --discard --rejected-rule").unwrap();
        assert_eq!(plan.kind, ReceiveKind::Bmtp { rule: StatusRule::Rejected });
        assert_eq!(plan.out, None);
        let plan = receive("--profile afdp --sender here:28800 --out /tmp --as x").unwrap();
        assert_eq!((plan.kind, plan.name.as_deref()), (ReceiveKind::Afdp, Some("x")));
    }

    #[test]
    fn what_a_protocol_cannot_do_is_a_usage_error() {
        let group = "--group 239.1.2.3:7000";
        for line in [
            format!("/etc --profile bmtp {group}"),
            format!("/etc/hosts /etc/passwd --profile bmtp {group}"),
            format!("/etc/hosts --profile bmtp {group} --nice"),
            format!("/etc/hosts --profile bmtp {group} --receivers 3"),
            format!("/etc/hosts --profile bmtp {group} --ticket t"),
            format!("/etc/hosts --profile bmtp {group} --trace t.zst"),
            format!("/etc/hosts --profile bmtp {group} --controller background"),
            format!("/etc/hosts --profile bmtp {group} --pull-share 3%"),
            format!("/etc/hosts --profile bmtp {group} --path tcp"),
            format!("/etc/hosts --profile bmtp {group} --encryption control"),
            format!("/etc/hosts --profile bmtp {group} --source-specific"),
            format!("/etc/hosts --profile bmtp {group} --mtu 1400"),
            format!(
                "--products - --product-memory 1GB --profile fmtp --rate 1mbit --receivers 1 {group}"
            ),
            "/etc/hosts --profile bmtp".to_owned(),
            "/etc/hosts --profile bmtp --group 10.0.0.1:7000".to_owned(),
            format!("/etc/hosts --profile afdp {group}"),
            format!("/etc/hosts --profile fmtp {group} --receivers 1"),
            "--products - --profile afdp --mode unicast --receivers 1".to_owned(),
            "/dev/null --profile afdp --mode unicast --receivers 1".to_owned(),
            // A plain file of no bytes, as far as its length says.
            format!("/proc/version --profile bmtp {group}"),
            "/proc/version --profile afdp --mode unicast --receivers 1".to_owned(),
        ] {
            assert_eq!(send(&line).unwrap_err().exit, Exit::Usage, "{line}");
        }
        for line in [
            "--profile bmtp --discard",
            "--profile bmtp --discard --group 239.1.2.3:7000 --sender here:1",
            "--profile afdp --discard",
            "--profile afdp --discard --sender here:1 --product-log l",
            "--profile fmtp --out /tmp --sender here:1 --group 239.1.2.3:7000 --product-log l",
            "--profile fmtp --discard --sender here:1",
            "--profile afdp --discard --sender here:1 --as ../x",
            "--profile afdp --out - --sender here:1",
            "--profile afdp --discard --sender here:1 --stay",
            "--profile afdp --discard --sender here:1 --name me",
            "--profile afdp --discard --sender here:1 --memory 1GB",
            "--profile afdp --discard --sender here:1 --max-entries 7",
            "--profile afdp --discard --sender here:1 --path-rate 1gbit",
            "--profile afdp --discard --sender here:1 --path-rtt 9ms",
            "--profile afdp --discard --sender here:1 --connections 3",
            "--profile afdp --discard --sender here:1 --trace t.zst",
            "downpour1:abc --profile afdp --discard --sender here:1",
        ] {
            assert_eq!(receive(line).unwrap_err().exit, Exit::Usage, "{line}");
        }
    }

    #[test]
    fn a_hard_ceiling_binds_them_too() {
        let rate = |mbps| Some(Rate::from_mbps(mbps));
        let told = Told { value: Rate::from_mbps(20), file: "/etc/defaults.toml".into() };
        let hard =
            Defaults { ceiling: Some(told.clone()), hard: Some(told), ..Defaults::default() };
        for (protocol, asked, kept) in [
            (Bmtp, None, (rate(20), "hard in /etc/defaults.toml")),
            (Bmtp, rate(900), (rate(20), "hard in /etc/defaults.toml")),
            (Fmtp, rate(900), (rate(20), "hard in /etc/defaults.toml")),
            (Fmtp, rate(5), (rate(5), "--rate")),
            (Fmtp, None, (None, "")),
        ] {
            let (rate, origin) = bounded(protocol, asked, &hard).unwrap();
            assert_eq!((rate, origin.as_str()), kept, "{protocol:?}");
        }
        let refused = bounded(Afdp, None, &hard).unwrap_err();
        assert!(refused.what.contains("/etc/defaults.toml"), "{refused}");
        assert_eq!(bounded(Afdp, None, &Defaults::default()).unwrap().0, None);
    }

    #[test]
    fn their_options_need_them() {
        let args =
            Sending::try_parse_from(["send", "/", "--receivers", "1", "--nice"]).unwrap().args;
        assert_eq!(args.resolve().unwrap_err().exit, Exit::Usage);
        let line = ["receive", "downpour1:abc", "--discard", "--group", "239.1.2.3:7000"];
        let args = Receiving::try_parse_from(line).unwrap().args;
        assert_eq!(args.resolve().unwrap_err().exit, Exit::Usage);
    }
}
