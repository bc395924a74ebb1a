//! What the site's configuration says of spools and rules: `[[spool]]` and `[[rule]]`.
//!
//! A section is read as it is written ([`SpoolSection`], [`RuleSection`]), each value checked where it stands, so that the
//! parser's message has its line. [`check`] finds what only several sections together can have wrong.

use super::template::Template;
use crate::described;
use crate::object::{TreeError, check_item_name};
use crate::site::section::{Complaint, named_twice};
use crate::units::{parse_duration, parse_share, parse_size};
use downpour_catalog::{DigestKind, Glob, WORD_BYTES_MAX};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Time after which a file that does not change is taken for complete, unless the section says otherwise.
const SETTLE: Duration = Duration::from_secs(5);
/// Time between two looks at the whole folder.
const RESCAN: Duration = Duration::from_secs(60);
/// Time after which a command is ended.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(600);
/// Rank of a rule that says none: lower goes first.
const PRIORITY: i64 = 100;

described! {
    /// `[[spool]]`: a folder that is watched, and whose files the rules send.
    [[spool]]
    #[derive(Clone, Debug, PartialEq)]
    pub struct SpoolSection {
        /// The folder, absolute. It and what is below it is watched; links are not followed.
        #[serde(deserialize_with = "absolute")]
        folder: PathBuf => "\"/data/spool\"",
        /// When a file is complete: "settle:5s" (it did not change for that long), "done" (NAME.done lies beside it) or "rename" (the
        /// producer renames it to its name when it is complete; NAME.tmp, NAME.part and .NAME are never taken).
        #[serde(default)]
        complete: Complete = "\"settle:5s\"",
        /// What NAME.md5 or NAME.sha256 beside a file mean: true (compared when there is one), false, or "required" (the file waits
        /// for one).
        #[serde(default)]
        sums: Sums = "true",
        /// Time between two looks at the whole folder, besides what the kernel tells.
        #[serde(default = "rescan", deserialize_with = "duration")]
        rescan: Duration = "\"60s\"",
        /// true for a network file system, where the kernel does not tell of changes: every rescan looks, nothing else.
        #[serde(default)]
        network: bool = "false",
        /// Put before each file's name in the catalog. Of two spools of a site neither may begin with the other's.
        #[serde(default)]
        prefix: String = "\"\"",
        /// Room for files; the spool is full beyond. Without it: the file system's size.
        #[serde(default, deserialize_with = "maybe_size")]
        size_max: Option<u64> | "\"1TB\"",
        /// Share of the room at which the alarm is raised.
        #[serde(default = "alarm", deserialize_with = "share")]
        alarm: f64 = "\"80%\"",
        /// Share of the room at which producers are asked to stop, by the file `.spool-full`.
        #[serde(default = "full", deserialize_with = "share")]
        full: f64 = "\"95%\"",
    }
}

described! {
    /// `[[rule]]`: what happens to files whose name matches. The first that matches counts.
    [[rule]]
    #[derive(Clone, Debug, PartialEq)]
    pub struct RuleSection {
        /// Its name, in the catalog and in messages.
        name: String => "\"all\"",
        /// Patterns of names: * ? [a-z]; * passes over /.
        #[serde(deserialize_with = "globs")]
        matching as "match": Vec<Glob> => "\"*\"",
        /// Site that the files come from. Without it: this site's own spools.
        from: Option<String> | "\"there\"",
        /// Sites that are to have the files.
        #[serde(default, deserialize_with = "one_or_many")]
        to: Vec<String> = "[]",
        /// Named receivers of a standing multicast session, instead of sites.
        #[serde(default, deserialize_with = "one_or_many")]
        receivers: Vec<String> = "[]",
        /// How many of the receivers must have a file before it is verified: a number, or "all".
        #[serde(default)]
        required: Required = "\"all\"",
        /// Path at the destination: {name}, {dir}, {file}, {stem}, {ext}, {date}, {version}, {site}, {rule}. Without it: {name}; with
        /// `from` the path that the sender says.
        into: Option<Template> | "\"{name}\"",
        /// Lower goes first.
        #[serde(default = "priority")]
        priority: i64 = "100",
        /// Digests besides BLAKE3: md5, sha256, adler32.
        #[serde(default, deserialize_with = "digests")]
        digests: Vec<DigestKind> = "[]",
        /// What happens to a file in the spool after its receipt: "keep", "move:/FOLDER" or "delete".
        #[serde(default)]
        after: After = "\"keep\"",
        /// Command for each file that arrived here and was verified: program and arguments, with the words of `into` and {path}.
        #[serde(default)]
        command: Vec<String> = "[]",
        /// Time after which the command is ended.
        #[serde(default = "command_time_max", deserialize_with = "duration")]
        command_time_max: Duration = "\"10min\"",
        /// The same name with other content: "new" (the next version) or "refuse" (set apart).
        #[serde(default)]
        versions: Versions = "\"new\"",
        /// Time after which a file leaves quarantine by itself. Without it: by hand only.
        #[serde(default, deserialize_with = "maybe_duration")]
        release: Option<Duration> | "\"6h\"",
    }
}

/// How many of a rule's receivers must have a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Required {
    /// Each of them.
    #[default]
    All,
    /// So many.
    Some(usize),
}

impl Required {
    /// Of so many receivers.
    pub fn of(self, receivers: usize) -> usize {
        match self {
            Self::All => receivers,
            Self::Some(number) => number,
        }
    }
}

impl<'de> Deserialize<'de> for Required {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Said {
            Number(usize),
            Word(String),
        }
        match Said::deserialize(from)? {
            Said::Number(number) => Ok(Self::Some(number)),
            Said::Word(word) if word == "all" => Ok(Self::All),
            Said::Word(word) => {
                Err(D::Error::custom(format!("`{word}` is no number, nor \"all\"")))
            }
        }
    }
}

/// When a file is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// It did not change for so long.
    Settle(Duration),
    /// A companion `NAME.done` says so.
    Done,
    /// It has its name: its producer renames it when it is complete.
    Rename,
}

impl Default for Complete {
    fn default() -> Self {
        Self::Settle(SETTLE)
    }
}

impl FromStr for Complete {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "done" => Ok(Self::Done),
            None if text == "rename" => Ok(Self::Rename),
            Some(("settle", time)) => {
                let time = parse_duration(time).map_err(|e| format!("`complete`: {e}"))?;
                Ok(Self::Settle(time))
            }
            _ => Err(format!("`complete` cannot be `{text}`: write settle:5s, done or rename")),
        }
    }
}

/// What a producer's digest beside a file means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// Nothing: it is a file as any other.
    Off,
    /// It is compared when there is one.
    #[default]
    IfThere,
    /// A file waits for one.
    Required,
}

/// What happens to a file in the spool after its receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum After {
    /// It stays.
    #[default]
    Keep,
    /// It is moved to this folder, below it by its name.
    Move(PathBuf),
    /// It is removed.
    Delete,
}

impl FromStr for After {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "keep" => Ok(Self::Keep),
            None if text == "delete" => Ok(Self::Delete),
            Some(("move", folder)) if Path::new(folder).is_absolute() => {
                Ok(Self::Move(PathBuf::from(folder)))
            }
            Some(("move", folder)) => {
                Err(format!("`after` moves to `{folder}`: write a folder that begins with /"))
            }
            _ => Err(format!("`after` cannot be `{text}`: write keep, move:/FOLDER or delete")),
        }
    }
}

/// What happens to other content under a name that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// It becomes the next version.
    #[default]
    New,
    /// It is set apart.
    Refuse,
}

impl FromStr for Versions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "new" => Ok(Self::New),
            "refuse" => Ok(Self::Refuse),
            _ => Err(format!("`versions` cannot be `{text}`: write new or refuse")),
        }
    }
}

macro_rules! read_from_text {
    ($($name:ident),+) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(D::Error::custom)
            }
        }
    )+};
}

read_from_text!(Complete, After, Versions, Template);

impl<'de> Deserialize<'de> for Sums {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match BoolOrText::deserialize(from)? {
            BoolOrText::Bool(false) => Ok(Self::Off),
            BoolOrText::Bool(true) => Ok(Self::IfThere),
            BoolOrText::Text(text) if text == "required" => Ok(Self::Required),
            BoolOrText::Text(text) => Err(D::Error::custom(format!(
                "`sums` cannot be `{text}`: write true, false or \"required\""
            ))),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum BoolOrText {
    Bool(bool),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(match OneOrMany::deserialize(from)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

fn globs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Glob>, D::Error> {
    let texts = one_or_many(from)?;
    if texts.is_empty() {
        return Err(D::Error::custom("`match` is empty: write \"*\" for all files"));
    }
    let glob = |text: &String| text.parse().map_err(|e| D::Error::custom(format!("`match`: {e}")));
    texts.iter().map(glob).collect()
}

fn digests<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<DigestKind>, D::Error> {
    let kind = |text: &String| match text.parse() {
        Ok(DigestKind::Blake3) => Ok(None),
        Ok(kind) => Ok(Some(kind)),
        Err(error) => Err(D::Error::custom(format!("`digests`: {error}"))),
    };
    // BLAKE3 is always computed: saying so is no fault.
    one_or_many(from)?.iter().filter_map(|text| kind(text).transpose()).collect()
}

fn absolute<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(from)?;
    if path.is_absolute() && path.parent().is_some() {
        return Ok(path);
    }
    let text = format!("`folder` is `{}`: write a folder below /, from / on", path.display());
    Err(D::Error::custom(text))
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let time = parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)?;
    if time.is_zero() { Err(D::Error::custom("it must be longer than 0")) } else { Ok(time) }
}

fn maybe_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

fn maybe_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    parse_size(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn share<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    parse_share(&String::deserialize(from)?).map_err(D::Error::custom)
}

const fn rescan() -> Duration {
    RESCAN
}

const fn command_time_max() -> Duration {
    COMMAND_TIME_MAX
}

const fn priority() -> i64 {
    PRIORITY
}

const fn alarm() -> f64 {
    0.8
}

const fn full() -> f64 {
    0.95
}

/// What is wrong with all sections together. `own` is this site, `sites` are those that it knows.
pub fn check(
    own: &str,
    sites: &[&str],
    spools: &[SpoolSection],
    rules: &[RuleSection],
) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    for index in 0..spools.len() {
        check_spool(spools, index, &mut wrong);
    }
    let mut names = HashSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let mut say = |key: &str, what: &str, todo: &str| {
            wrong.push(Complaint::new(format!("rule.{index}.{key}"), what, todo));
        };
        if rule.name.is_empty() || !names.insert(rule.name.as_str()) {
            say("name", "it is empty or taken", "give each rule a name of its own");
        }
        // The catalog refuses it, and no spool could be opened.
        if rule.name.len() > WORD_BYTES_MAX || rule.name.contains('\0') {
            let todo = format!("give it one of at most {WORD_BYTES_MAX} bytes, none of them zero");
            say("name", "the catalog takes no such name", &todo);
        }
        check_sites(own, sites, rule, &mut say);
        check_rule(own, spools, rule, &mut say);
        if rule.from.as_ref().is_some_and(|from| from != own) {
            check_arrivals(rule, &mut say);
        }
    }
    let takes = |rule: &RuleSection| rule.from.as_deref().is_none_or(|from| from == own);
    if !spools.is_empty() && !rules.iter().any(takes) {
        let what = "no rule takes files from this site's spools";
        wrong.push(Complaint::new("spool.0.folder", what, "add a [[rule]] without `from`"));
    }
    wrong
}

fn check_spool(spools: &[SpoolSection], index: usize, wrong: &mut Vec<Complaint>) {
    let spool = &spools[index];
    let mut say = |key: &str, what: String, todo: &str| {
        wrong.push(Complaint::new(format!("spool.{index}.{key}"), what, todo));
    };
    let prefix = &spool.prefix;
    let path = format!("{prefix}x");
    if let Err(problem) = check_item_name(&path) {
        let todo = "write a relative path, such as \"raw/\"";
        say("prefix", format!("no file could have it: {}", TreeError { path, problem }), todo);
    }
    for other in &spools[..index] {
        let (a, b) = (&spool.folder, &other.folder);
        if a.starts_with(b) || b.starts_with(a) {
            let what = format!("it and {} hold the same files", b.display());
            say("folder", what, "keep the folders of spools apart");
        } else if spool.prefix.starts_with(&other.prefix) || other.prefix.starts_with(&spool.prefix)
        {
            let (own, its) = (&spool.prefix, &other.prefix);
            let of = b.display();
            let what =
                format!("\"{own}\" and \"{its}\" of {of} begin alike, so that names can meet");
            say("prefix", what, "give each spool one that no other begins with, such as \"raw/\"");
        }
    }
    if spool.alarm > spool.full || spool.full <= 0.0 {
        say("alarm", "it is above `full`".to_owned(), "raise the alarm before the spool is full");
    }
}

fn check_sites(
    own: &str,
    sites: &[&str],
    rule: &RuleSection,
    say: &mut impl FnMut(&str, &str, &str),
) {
    let to = rule.to.iter().map(|site| ("to", site));
    for (key, site) in to.chain(rule.from.iter().map(|site| ("from", site))) {
        if site != own && !sites.contains(&site.as_str()) {
            let todo = match sites {
                [] => "add its [[remote]]; `downpour init --with CARD` does".to_owned(),
                known => format!("name one of the sites in [[remote]]: {}", known.join(", ")),
            };
            say(key, &format!("`{site}` is no known site"), &todo);
        }
    }
    if let Some(site) = named_twice(&rule.to) {
        say("to", &format!("`{site}` is named twice"), "name each site once");
    }
    if rule.to.iter().any(|site| site == own) {
        say("to", "it names this site itself", "name the other site");
    }
}

fn check_rule(
    own: &str,
    spools: &[SpoolSection],
    rule: &RuleSection,
    say: &mut impl FnMut(&str, &str, &str),
) {
    let is_local = rule.from.as_deref().is_none_or(|from| from == own);
    if is_local && rule.to.is_empty() == rule.receivers.is_empty() {
        let (at, what, todo) = match rule.from {
            Some(_) if rule.to.is_empty() => (
                "from",
                "it is this site itself, whose files need one of `to` and `receivers`",
                "name the site that they come from, or say where they go",
            ),
            _ => (
                "to",
                "it needs one of `to` and `receivers`",
                "write `to` (sites) or `receivers` (of one multicast session)",
            ),
        };
        say(at, what, todo);
    }
    if let Required::Some(number) = rule.required
        && !(1..=rule.receivers.len()).contains(&number)
    {
        let todo = "give it 1 to the number of `receivers`, or \"all\"";
        say("required", &format!("{number} of {} receivers", rule.receivers.len()), todo);
    }
    if is_local && !rule.command.is_empty() {
        let todo = "write it at the site where the files arrive, in a rule with `from`";
        say("command", "it is for files that arrive", todo);
    }
    if !rule.command.is_empty() && !Path::new(&rule.command[0]).is_absolute() {
        say("command", "its program has no path", "write it from / on");
    }
    if let Some(wrong) = rule.command.iter().find_map(|word| Template::of_text(word).err()) {
        say("command", &wrong, "mend that word, or write {{ for a brace");
    }
    if let After::Move(folder) = &rule.after
        && spools.iter().any(|spool| folder.starts_with(&spool.folder))
    {
        say("after", "it moves into a spool", "name a folder outside of the spools");
    }
}

/// A rule for what arrives sends nothing on, and has no hand in what the sender does.
fn check_arrivals(rule: &RuleSection, say: &mut impl FnMut(&str, &str, &str)) {
    for (key, is_said) in [
        ("to", !rule.to.is_empty()),
        ("receivers", !rule.receivers.is_empty()),
        ("after", rule.after != After::Keep),
        ("digests", !rule.digests.is_empty()),
        ("release", rule.release.is_some()),
        ("priority", rule.priority != PRIORITY),
    ] {
        if is_said {
            let todo = "remove it, or `from`; nothing that arrived is sent on by a rule";
            say(key, "it does nothing for files that arrive", todo);
        }
    }
}
