//! Reads `site.toml`, and says what is wrong with it: the line, what is wrong, what to do.
//!
//! 1. Tables and keys are compared with the sections' descriptions: an unknown one is named with the known one that
//!    is nearest, a missing one with its sample.
//! 2. Values are read; a value that cannot be read is answered with its key's comment.
//! 3. Each section says what its values mean together.
//!
//! Each step tells all that it finds; the next comes when the one before found nothing.

use super::config::{Config, FILE_BYTES_MAX, TABLES};
use super::section::{Complaint, Key, Need, Table};
use crate::whole;
use serde::Deserialize as _;
use std::fmt;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// How far a word may be from another to be taken for a slip of the pen: a similarity between 0 and 1.
const NEAR_ENOUGH: f64 = 0.6;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Where; `None` when it is the file as such.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub todo: String,
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadConfig {
    /// Which file.
    pub file: PathBuf,
    /// What is wrong with it, by line; at least one.
    pub flaws: Vec<Flaw>,
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, flaw) in self.flaws.iter().enumerate() {
            let before = if index == 0 { "" } else { "\n" };
            write!(f, "{before}{}", self.file.display())?;
            if let Some(line) = flaw.line {
                write!(f, " line {line}")?;
            }
            write!(f, ": {}\n  what to do: {}", flaw.what, flaw.todo)?;
        }
        Ok(())
    }
}

impl std::error::Error for BadConfig {}

impl Config {
    /// Reads a file and checks it.
    pub fn read(file: &Path) -> Result<Self, BadConfig> {
        let wrong = |flaws| BadConfig { file: file.to_owned(), flaws };
        let text = read_text(file).map_err(|flaw| wrong(vec![flaw]))?;
        Ok(Self::parse(&text).map_err(wrong)?.of_file(file))
    }

    /// The same, to reach its daemon, which may run on with what the file said before: of one with flaws what needs be known for that,
    /// and the flaws.
    pub(super) fn read_way(file: &Path) -> Result<(Self, Option<BadConfig>), BadConfig> {
        let bad = match Self::read(file) {
            Ok(config) => return Ok((config, None)),
            Err(bad) => bad,
        };
        match read_text(file).ok().and_then(|text| Self::parse_way(&text)) {
            Some(config) => Ok((config.of_file(file), Some(bad))),
            None => Err(bad),
        }
    }

    fn of_file(self, file: &Path) -> Self {
        // The file, not its folder: that of a bare name is "", of which nothing absolute can be made.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Self { folder: file.parent().unwrap_or(Path::new("/")).to_owned(), ..self }
    }

    /// The same, and looks at what it names on this machine and a daemon would wait for.
    pub fn read_and_look(file: &Path) -> Result<Self, BadConfig> {
        let config = Self::read(file)?;
        let wrong = config.amiss_here();
        config.unless(file, wrong)
    }

    /// The configuration of a file, unless this is wrong with it.
    pub(super) fn unless(self, file: &Path, wrong: Vec<Complaint>) -> Result<Self, BadConfig> {
        let text = read_text(file).unwrap_or_default();
        match DeTable::parse(&text) {
            Ok(root) if !wrong.is_empty() => {
                let placed = |complaint| place(&text, root.get_ref(), complaint);
                let flaws = wrong.into_iter().map(placed).collect();
                Err(BadConfig { file: file.to_owned(), flaws })
            }
            _ => Ok(self),
        }
    }

    /// Reads a text and checks it.
    pub fn parse(text: &str) -> Result<Self, Vec<Flaw>> {
        let parsed = DeTable::parse(text).map_err(|error| {
            let todo = "write it as TOML: key = \"value\" below a [section]";
            vec![Flaw::at(text, error.span(), error.message().to_owned(), todo)]
        })?;
        let root = parsed.get_ref();
        let mut flaws = unknown_and_missing(text, root);
        if flaws.is_empty() {
            let config = toml::Deserializer::parse(text).and_then(Self::deserialize);
            match config {
                Ok(config) => {
                    let placed = config.complaints().into_iter();
                    flaws.extend(placed.map(|complaint| place(text, root, complaint)));
                    if flaws.is_empty() {
                        return Ok(config);
                    }
                }
                Err(error) => flaws.push(unreadable(text, root, &error)),
            }
        }
        flaws.sort_by_key(|flaw| flaw.line);
        Err(flaws)
    }

    /// `[site]` and `[api]` of a text, if these have no flaw; nothing else of it.
    fn parse_way(text: &str) -> Option<Self> {
        let mut root = DeTable::parse(text).ok()?;
        let names = root.get_ref().keys().map(|name| name.get_ref().to_string());
        let others: Vec<String> = names.filter(|name| name != "site" && name != "api").collect();
        for name in &others {
            root.get_mut().remove(name.as_str());
        }
        if !unknown_and_missing(text, root.get_ref()).is_empty() {
            return None;
        }
        let config = Self::deserialize(toml::Deserializer::from(root)).ok()?;
        config.complaints().is_empty().then_some(config)
    }
}

impl Flaw {
    fn at(text: &str, span: Option<Range<usize>>, what: String, todo: impl Into<String>) -> Self {
        Self { line: span.map(|span| line_of(text, span.start)), what, todo: todo.into() }
    }
}

fn read_text(file: &Path) -> Result<String, Flaw> {
    let flaw = |what: String, todo: &str| Flaw { line: None, what, todo: todo.to_owned() };
    let open = whole::open(file).map_err(|error| {
        let todo = match error.kind() {
            io::ErrorKind::NotFound => {
                "give the file of a site, as by --config; `downpour init` makes one"
            }
            io::ErrorKind::PermissionDenied => {
                "make it and the folders above readable for this user, or run this as the daemon's"
            }
            _ => "give the file of a site, as by --config",
        };
        flaw(error.to_string(), todo)
    })?;
    let mut text = String::new();
    let read = open.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| flaw(error.to_string(), "give a text file"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(flaw("it is too long for a configuration".to_owned(), "give another file"));
    }
    Ok(text)
}

/// Counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn unknown_and_missing(text: &str, root: &DeTable<'_>) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    for (name, value) in root {
        let Some(table) = TABLES.iter().find(|table| table.name == name.get_ref().as_ref()) else {
            let known = TABLES.iter().map(|table| table.name);
            let what = format!("there is no section [{}]", name.get_ref());
            let todo = nearest(name.get_ref(), known, "section");
            flaws.push(Flaw::at(text, Some(name.span()), what, todo));
            continue;
        };
        match (value.get_ref(), table.many) {
            (DeValue::Table(entries), false) => {
                check_table(text, table, entries, &name.span(), &mut flaws);
            }
            (DeValue::Array(all), true) => {
                for one in all {
                    if let DeValue::Table(entries) = one.get_ref() {
                        check_table(text, table, entries, &one.span(), &mut flaws);
                    }
                }
            }
            _ => {
                let what = format!("`{}` is a section", table.name);
                let todo = format!("write it as {}", table.heading());
                flaws.push(Flaw::at(text, Some(name.span()), what, todo));
            }
        }
    }
    for table in TABLES.iter().filter(|table| !table.many && !root.contains_key(table.name)) {
        if let Some(key) = table.keys.iter().find(|key| key.need == Need::Required) {
            let what = format!("there is no section [{}]", table.name);
            let todo = format!("add [{}] with {} = {}", table.name, key.name, key.value);
            flaws.push(Flaw { line: None, what, todo });
        }
    }
    flaws
}

fn check_table(
    text: &str,
    table: &Table,
    entries: &DeTable<'_>,
    head: &Range<usize>,
    flaws: &mut Vec<Flaw>,
) {
    for name in entries.keys() {
        if !table.keys.iter().any(|key| key.name == name.get_ref().as_ref()) {
            let what = format!("[{}] has no key `{}`", table.name, name.get_ref());
            let todo = nearest(name.get_ref(), table.keys.iter().map(|key| key.name), "key");
            flaws.push(Flaw::at(text, Some(name.span()), what, todo));
        }
    }
    for key in table.keys.iter().filter(|key| key.need == Need::Required) {
        if !entries.contains_key(key.name) {
            let what = format!("[{}] lacks `{}`", table.name, key.name);
            flaws.push(Flaw::at(text, Some(head.clone()), what, explain(key)));
        }
    }
}

/// What may have been meant.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone, what: &str) -> String {
    let near = known.clone().map(|name| (strsim::jaro_winkler(word, name), name));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((similarity, name)) if similarity >= NEAR_ENOUGH => {
            format!("write `{name}`, the nearest {what}, or remove the line")
        }
        _ => format!("remove it; known are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// A key's comment as advice.
fn explain(key: &Key) -> String {
    let about: Vec<_> = key.about.iter().map(|line| line.trim()).collect();
    format!("write {} = {}. {}", key.name, key.value, about.join(" "))
}

/// The same for one that was given: what it may be, not what it would be if nobody said anything.
fn mend(key: &Key) -> String {
    let about: Vec<_> = key.about.iter().map(|line| line.trim()).collect();
    format!("see what it may be: {} Such as {} = {}", about.join(" "), key.name, key.value)
}

fn unreadable(text: &str, root: &DeTable<'_>, error: &toml::de::Error) -> Flaw {
    let span = error.span();
    let key = span.clone().and_then(|span| key_at(root, &span));
    let todo = key.map_or_else(|| "correct it as its comment says".to_owned(), mend);
    let what = match key {
        Some(key) => format!("`{}`: {}", key.name, error.message()),
        None => error.message().to_owned(),
    };
    Flaw::at(text, span, what, todo)
}

/// The key in whose value `span` lies.
fn key_at(root: &DeTable<'_>, span: &Range<usize>) -> Option<&'static Key> {
    let holds = |value: &Spanned<DeValue<'_>>| {
        let (value, at) = (value.span(), span.start);
        value.start <= at && at < value.end.max(value.start + 1)
    };
    for (name, value) in root {
        let table = TABLES.iter().find(|table| table.name == name.get_ref().as_ref())?;
        let entries: Vec<&DeTable<'_>> = match value.get_ref() {
            DeValue::Table(entries) => vec![entries],
            DeValue::Array(all) => all.iter().filter_map(|one| one.get_ref().as_table()).collect(),
            _ => Vec::new(),
        };
        let found = entries.into_iter().flatten().find(|(_, value)| holds(value));
        if let Some((name, _)) = found {
            return table.keys.iter().find(|key| key.name == name.get_ref().as_ref());
        }
    }
    None
}

/// Finds the line of a complaint: that of its value, else of its section.
fn place(text: &str, root: &DeTable<'_>, complaint: Complaint) -> Flaw {
    let mut steps = complaint.at.split('.');
    let mut value = steps.next().and_then(|name| root.get(name));
    let mut span = value.map(Spanned::span);
    for step in steps {
        value = value.and_then(|value| match (value.get_ref(), step.parse::<usize>()) {
            (DeValue::Array(all), Ok(index)) => all.get(index),
            (DeValue::Table(entries), _) => entries.get(step),
            _ => None,
        });
        span = value.map(Spanned::span).or(span);
    }
    let what = format!("{}: {}", complaint.at, complaint.what);
    Flaw::at(text, span, what, complaint.todo)
}

#[cfg(test)]
mod tests {
    use super::super::config::{Config, TABLES};
    use super::super::section::Need;
    use super::Flaw;
    use crate::cli::Controller;
    use crate::defaults::{Defaults, Told};
    use downpour_proto::Rate;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::net::Ipv4Addr;
    use std::path::Path;
    use std::time::Duration;

    fn only_flaw(text: &str) -> Flaw {
        let mut flaws = Config::parse(text).unwrap_err();
        assert_eq!(flaws.len(), 1, "{flaws:?}");
        flaws.remove(0)
    }

    #[test]
    fn a_name_is_enough() {
        let config = Config::parse("[site]\nname = 'lab'\n").unwrap();
        assert_eq!(config.api.listen.ip(), Ipv4Addr::UNSPECIFIED);
        assert_eq!(*config.limits.request, Duration::from_secs(60));
        assert!(config.remote.is_empty());
    }

    /// Each default and sample is what the section would read; a wrong one panics or is refused here.
    #[test]
    fn all_defaults_and_samples_can_be_read() {
        let mut text = String::new();
        for table in TABLES {
            text += &format!("{}\n", table.heading());
            // With `from` a rule is for arrivals, and the spool beside it would have none.
            for key in table.keys.iter().filter(|key| (table.name, key.name) != ("rule", "from")) {
                assert!(!key.about.is_empty() && !key.value.is_empty(), "{}", key.name);
                // A rule sends, and a mail goes, to somebody, whom no default can name.
                let value = match (table.name, key.name) {
                    ("rule", "to") => "\"there\"",
                    ("notify", "to") => "[\"a@example.org\"]",
                    _ => key.value,
                };
                text += &format!("{} = {value}\n", key.name);
            }
        }
        let all = Config::parse(&text).unwrap_or_else(|flaws| panic!("{flaws:?}\n{text}"));
        let defaults = TABLES.iter().flat_map(|table| table.keys);
        assert!(defaults.clone().any(|key| key.need == Need::Optional));
        assert_eq!(all.site.name, "here");
    }

    #[test]
    fn each_flaw_names_line_and_remedy() {
        for (text, line, what, todo) in [
            ("[site]\nnmae = 'lab'\nname = 'x'\n", Some(2), "no key `nmae`", "write `name`"),
            ("[site]\nname = 'x'\n[limit]\n", Some(3), "no section [limit]", "write `limits`"),
            ("[site]\nname = 'x'\n[zzz]\n", Some(3), "no section [zzz]", "known are site, api"),
            ("[api]\n", None, "no section [site]", "name = \"here\""),
            ("\n[site]\n", Some(2), "lacks `name`", "Name of the site"),
            ("[site]\nname = 'a b'\n", Some(2), "`a b` cannot be a name", "letters"),
            ("[site]\nname = 'x'\ndrain = '30'\n", Some(3), "unit", "How long services may"),
            (
                "[site]\nname = 'x'\n[api]\nlisten = 28790\n",
                Some(4),
                "`listen`",
                "Address and port",
            ),
            ("[site]\nname = 'x'\n[remote]\nname = 'y'\n", Some(3), "is a section", "[[remote]]"),
            ("[site]\nname = \n", Some(2), "", "TOML"),
            (
                "[site]\nname = 'x'\n[[rule]]\nname = 'r'\nmatch = '*'\nto = 'y'\n",
                Some(6),
                "`y` is no known site",
                "add its [[remote]]; `downpour init --with CARD` does",
            ),
            ("[site]\nname = 'x'\ncatalog = 'oracle:x'\n", Some(3), "no catalog's URL", "sqlite"),
        ] {
            let flaw = only_flaw(text);
            assert_eq!(flaw.line, line, "{text:?}: {flaw:?}");
            assert!(flaw.what.contains(what), "{text:?}: {flaw:?}");
            assert!(flaw.todo.contains(todo), "{text:?}: {flaw:?}");
        }
    }

    const REMOTE_AND_MIRROR: &str = "[[remote]]\nname = 'b'\n\
        key = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n[mirror]";
    const REMOTE: &str =
        "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n";

    #[test]
    fn ports_and_interface_of_a_stream_that_cannot_work_are_found() {
        let rule = "[[rule]]\nname = 'r'\nmatch = '*'\nreceivers = ['m']\n[[receiver]]\nname = 'm'\n\
                    key = 'AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n";
        let ports =
            "[site]\nname = 'a'\n[api]\nlisten = '0.0.0.0:28801'\n[multicast]\nport = 28801\n";
        let flaws = Config::parse(&format!("{ports}{rule}")).unwrap_err();
        let found: Vec<_> = flaws.iter().map(|flaw| (flaw.line, flaw.what.as_str())).collect();
        let [(Some(6), first), (Some(6), second)] = found[..] else { panic!("{found:?}") };
        assert!(first.contains("[api] listens on 28801"), "{first}");
        assert!(second.contains("`ports` of [transfer], 28800-28819"), "{second}");
        assert!(Config::parse(ports).is_ok(), "no rule has receivers");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let text = format!("[site]\nname = 'a'\n[multicast]\ninterface = 'nope'\n{rule}");
        std::fs::write(&file, text).unwrap();
        let bad = Config::read_and_look(&file).unwrap_err().to_string();
        assert!(bad.contains("line 4") && bad.contains("no interface is named `nope`"), "{bad}");
    }

    #[test]
    fn a_receiver_that_is_named_twice_is_found() {
        let flaw = only_flaw(
            "[site]\nname = 'a'\n[[rule]]\nname = 'r'\nmatch = '*'\nreceivers = ['m', 'm']\n\
             [[receiver]]\nname = 'm'\nkey = 'AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n",
        );
        assert!(flaw.line == Some(6) && flaw.what.contains("`m` is named twice"), "{flaw:?}");
    }

    #[test]
    fn a_host_that_makes_no_address_is_found() {
        for section in ["transfer", "multicast"] {
            let said = |host: &str| format!("[site]\nname = 'a'\n[{section}]\nhost = '{host}'\n");
            for good in ["a_b.example.org", "192.0.2.7", "2001:db8::5"] {
                Config::parse(&said(good)).unwrap();
            }
            for wrong in ["", "a:1", "[2001:db8::5]", "a b", "https://a"] {
                let flaw = only_flaw(&said(wrong));
                assert!(flaw.line == Some(4) && flaw.what.contains("is no host"), "{flaw:?}");
            }
        }
    }

    #[test]
    fn what_lets_nothing_go_is_found() {
        for (section, line) in [
            ("[transfer]", "active = 0"),
            (REMOTE.trim(), "active = 0"),
            (REMOTE.trim(), "rate = '15kbit'"),
            ("[limits]", "connections = 0"),
            ("[limits]", "connections_per_address = 0"),
            ("[limits]", "handshake = '0s'"),
            ("[limits]", "idle = '0s'"),
            ("[limits]", "request = '0s'"),
            ("[limits]", "stall = '0s'"),
            (REMOTE.trim(), "connect = '0s'"),
            (REMOTE.trim(), "reply = '0s'"),
            (REMOTE.trim(), "connections = 0"),
            (REMOTE.trim(), "connections = 65"),
            (REMOTE.trim(), "path = 'multicast'"),
            ("[transfer]", "shares = { raw = nan }"),
            ("[transfer]", "shares = { raw = inf }"),
            ("[notify]", "webhook = 'ftp://x'"),
            (REMOTE_AND_MIRROR, "of = ['b', 'b']"),
            ("[transfer]", "lease = '0s'"),
            ("[reconcile]", "every = '0s'"),
            ("[reconcile]", "stuck = '0s'"),
            ("[reconcile]", "scrub_every = '0s'"),
            ("[reconcile]", "scrub_rate = '0B'"),
            ("[reconcile]", "scrub_files = 0"),
            ("[mirror]", "every = '0s'"),
            ("[mirror]", "silent = '0s'"),
            ("[multicast]", "rate = '7kbit'"),
            ("[multicast]", "keep = '15MB'"),
            ("[multicast]", "group = '192.0.2.1:28821'"),
            ("[multicast]", "group = '239.255.28.1:0'"),
            ("[multicast]", "group = '224.0.0.1:28821'"),
            ("[multicast]", "group = '232.1.1.1:28821'"),
        ] {
            let text = format!("[site]\nname = 'a'\n{section}\n{line}\n");
            assert_eq!(only_flaw(&text).line, Some(text.lines().count()), "{text}");
        }
    }

    #[test]
    fn folders_that_cannot_be_used_are_found_and_those_that_can_are_left_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (file, root) = (folder.path().join("site.toml"), folder.path().display());
        let look = |inbox: &str, spool: &str| {
            let text = format!(
                "[site]\nname = 'a'\n[transfer]\ninbox = '{inbox}'\n{REMOTE}\
                 [[spool]]\nfolder = '{root}/{spool}'\n\
                 [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\n"
            );
            std::fs::write(&file, text).unwrap();
            Config::read_and_look(&file).map_err(|bad| bad.flaws)
        };
        std::fs::create_dir(folder.path().join("spool")).unwrap();
        look("new/inbox", "spool").unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names(), 2, "nothing was made");
        let flaws = look("/proc/in", "away").unwrap_err();
        let lines: Vec<_> = flaws.iter().map(|flaw| flaw.line).collect();
        assert_eq!(lines, [Some(4), Some(9)], "{flaws:?}");
        assert!(flaws[0].what.contains("/proc/in cannot be written to"), "{flaws:?}");
        assert!(look("site.toml/in", "spool").is_err(), "a file is no folder");
    }

    #[test]
    fn what_a_daemon_could_not_open_or_run_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (file, root) = (folder.path().join("site.toml"), folder.path().display());
        std::fs::write(folder.path().join("plain"), "").unwrap();
        std::fs::create_dir(folder.path().join("spool")).unwrap();
        let look = |catalog: &str, folders: &str, after: &str, command: &str| {
            let text = format!(
                "[site]\nname = 'a'\ncatalog = '{catalog}'\n[transfer]\nfolders = ['{folders}']\n\
                 {REMOTE}[[spool]]\nfolder = '{root}/spool'\n\
                 [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\nafter = 'move:{after}'\n\
                 [[rule]]\nname = 's'\nmatch = '*'\nfrom = 'b'\ncommand = ['{command}']\n"
            );
            std::fs::write(&file, text).unwrap();
            Config::read_and_look(&file).map_err(|bad| bad.flaws)
        };
        let done = format!("{root}/done");
        look("sqlite:c.db", "spool", &done, "/bin/sh").unwrap();
        let flaws = look("sqlite:plain.db", ".", &done, "/bin/sh").unwrap_err();
        assert!(flaws.len() == 1 && flaws[0].what.contains("node's key"), "{flaws:?}");
        let plain = format!("{root}/plain");
        let flaws = look("sqlite:away/c.db", "away", "/proc/x", &plain).unwrap_err();
        let found: Vec<_> = flaws.iter().map(|flaw| flaw.what.split(':').next().unwrap()).collect();
        assert_eq!(
            found,
            ["transfer.folders.0", "rule.0.after", "site.catalog", "rule.1.command"],
            "{flaws:?}"
        );
        assert!(look("postgres://u@h:99999/d", "spool", &done, "/bin/sh").is_err());
        std::fs::write(folder.path().join("c.db"), "no database").unwrap();
        let flaws = look("sqlite:c.db", "spool", &done, "/bin/sh").unwrap_err();
        assert!(flaws[0].what.contains("c.db is no catalog"), "{flaws:?}");
    }

    #[test]
    fn pipes_in_the_places_of_its_own_files_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let text = format!("[site]\nname = 'a'\n{REMOTE}");
        std::fs::write(&file, &text).unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let pipe =
            |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for name in ["catalog.db", "inboxes.json"] {
            pipe(&state.join(name));
            let said = Config::read_and_look(&file).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains("no regular file"), "{said}");
            std::fs::remove_file(state.join(name)).unwrap();
        }
        std::fs::remove_file(&file).unwrap();
        pipe(&file);
        let said = Config::read(&file).unwrap_err().to_string();
        assert!(said.contains("no regular file"), "{said}");
    }

    #[test]
    fn files_that_are_read_by_and_by_have_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let text = "[site]\nname = 'a'\nstate = '/proc/state'\n\
                    [reconcile]\nscrub_folders = ['inbox', 'away']\n\
                    [notify]\nsmtp_user = 'u'\nsmtp_password_file = 'away'\n\
                    [[tuner_source]]\nname = 's'\nkind = 'file'\nfile = 'away'\nfrom = 'a'\nto = 'a'\n";
        std::fs::write(&file, text).unwrap();
        let lines = || {
            let flaws = Config::read_and_look(&file).unwrap_err().flaws;
            flaws.iter().filter_map(|flaw| flaw.line).collect::<Vec<_>>()
        };
        assert_eq!(lines(), [3, 8, 12, 5]);
        // A pipe is neither file nor folder, and nobody waits for its writer.
        let away = folder.path().join("away");
        mknodat(CWD, &away, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(lines(), [3, 8, 12, 5]);
        std::fs::remove_file(&away).unwrap();
        std::fs::create_dir(&away).unwrap();
        assert_eq!(lines(), [3, 8, 12]);
        std::fs::remove_dir(&away).unwrap();
        std::fs::write(&away, "x").unwrap();
        assert_eq!(lines(), [3, 5]);
    }

    #[test]
    fn the_machines_defaults_bind_a_site() {
        let text = "[site]\nname = 'a'\n[[remote]]\nname = 'b'\nkey = \
                    'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\nactive = 1\nrate = '1gbit'\n";
        let told = |mbps| Some(Told { value: Rate::from_mbps(mbps), file: "/etc/d.toml".into() });
        let rates = |defaults: Defaults| {
            let mut config = Config::parse(text).unwrap();
            assert_eq!(config.heed(&defaults), []);
            let of_products = config.multicast.rate.map(|rate| rate.bps());
            (config.remote[0].rate_each().map(Rate::bps), of_products, config.controller)
        };
        let soft = Defaults { ceiling: told(50), ..Defaults::default() };
        assert_eq!(rates(soft), (Some(1_000_000_000), Some(50_000_000), Controller::Auto));
        let controller = Some(Told { value: "background".into(), file: "/etc/d.toml".into() });
        let hard = Defaults { ceiling: told(50), hard: told(50), controller };
        assert_eq!(rates(hard), (Some(50_000_000), Some(50_000_000), Controller::Background));
        let fixed = || Some(Told { value: "fixed".into(), file: "/etc/d.toml".into() });
        let unknown = Defaults { controller: fixed(), ..Defaults::default() };
        assert_eq!(rates(unknown), (Some(1_000_000_000), None, Controller::Auto));
        let known = Defaults { ceiling: told(50), controller: fixed(), ..Defaults::default() };
        assert_eq!(rates(known), (Some(1_000_000_000), Some(50_000_000), Controller::Fixed));
        // Divided among batches it is too little.
        let least = Told { value: Rate::from_bps(16_000), file: "/etc/d.toml".into() };
        let hard =
            Defaults { ceiling: Some(least.clone()), hard: Some(least), ..Defaults::default() };
        let heeded =
            |active: &str| Config::parse(&text.replace("active = 1", active)).unwrap().heed(&hard);
        assert_eq!(heeded("active = 2"), []);
        let [complaint] = &heeded("active = 4")[..] else { panic!("it is heeded") };
        assert!(complaint.what.contains("defaults.toml"), "{complaint:?}");
        assert!(complaint.todo.contains("32.0 kbit/s") && complaint.todo.contains("`active`"));
    }

    #[test]
    fn remotes_that_cannot_be_told_apart_are_found_at_their_lines() {
        let key = "key = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'";
        let text = format!(
            "[site]\nname = 'x'\n[[remote]]\nname = 'y'\n{key}\n[[remote]]\nname = 'y'\n{key}\n"
        );
        let flaws = Config::parse(&text).unwrap_err();
        assert_eq!(flaws.iter().map(|flaw| flaw.line).collect::<Vec<_>>(), [Some(7), Some(8)]);
    }
}
