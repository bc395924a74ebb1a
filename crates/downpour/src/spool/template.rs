//! Where a file goes: a path made of its name's parts.
//!
//! `{site}/{dir}/{stem}-v{version}.{ext}` and the like. What comes out is always a plain path below the target: parts that are
//! empty are left out, and a name's own parts can hold neither `..` nor `/` at its beginning.

use crate::object::{TreeError, check_item_name};
use crate::units::show_time;
use downpour_catalog::Time;
use std::fmt::Write as _;
use std::str::FromStr;

/// A path template, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Word(Word),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Name,
    Dir,
    File,
    Stem,
    Ext,
    Date,
    Version,
    Site,
    Rule,
    Path,
}

const WORDS: [(&str, Word); 9] = [
    ("name", Word::Name),
    ("dir", Word::Dir),
    ("file", Word::File),
    ("stem", Word::Stem),
    ("ext", Word::Ext),
    ("date", Word::Date),
    ("version", Word::Version),
    ("site", Word::Site),
    ("rule", Word::Rule),
];
/// Only a command is told where the file lies: `into` is what says so.
const PATH: (&str, Word) = ("path", Word::Path);

/// What a template may speak of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The file's name in the catalog.
    pub name: &'a str,
    /// Its version.
    pub version: i64,
    /// The site that it comes from.
    pub site: &'a str,
    /// The rule that takes it.
    pub rule: &'a str,
    /// When it was taken in.
    pub taken_in: Time,
    /// Where it lies; empty where that is not known yet.
    pub path: &'a str,
}

/// The name as it is.
impl Default for Template {
    fn default() -> Self {
        Self { parts: vec![Part::Word(Word::Name)] }
    }
}

impl FromStr for Template {
    type Err = String;

    /// A template for `into`: without {path}, and below the target whatever the name is.
    fn from_str(text: &str) -> Result<Self, String> {
        let template = Self::read(text, &WORDS).map_err(|what| format!("`into`: {what}"))?;
        if text.is_empty() || text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(format!("`into` is `{text}`: write a path below the target, without .."));
        }
        if !template.parts.iter().any(|part| matches!(part, Part::Word(w) if w.tells_files_apart()))
        {
            return Err(format!("`into` is `{text}`: all files would have one path; use {{name}}"));
        }
        // That of a file with a plain name.
        let facts =
            Facts { name: "x", version: 1, site: "x", rule: "x", taken_in: Time(0), path: "" };
        let path = template.path(&facts);
        if let Err(problem) = check_item_name(&path) {
            let wrong = TreeError { path, problem };
            return Err(format!("`into` is `{text}`, by which no file has a place: {wrong}"));
        }
        Ok(template)
    }
}

impl Word {
    const fn tells_files_apart(self) -> bool {
        matches!(self, Self::Name | Self::File | Self::Stem)
    }
}

impl Template {
    /// A word of a command: any text.
    pub fn of_text(text: &str) -> Result<Self, String> {
        Self::read(text, &[&WORDS[..], &[PATH]].concat())
    }

    /// Any text with these words in braces; `{{` and `}}` are braces themselves.
    fn read(text: &str, words: &[(&str, Word)]) -> Result<Self, String> {
        let mut parts: Vec<Part> = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            push(&mut parts, before);
            if from.starts_with("{{") || from.starts_with("}}") {
                push(&mut parts, &from[..1]);
                rest = &from[2..];
                continue;
            }
            let word = from.strip_prefix('{').and_then(|from| from.split_once('}'));
            let Some((word, after)) = word else {
                return Err(format!(
                    "`{text}` has a brace without its other one: write {{{{ for it"
                ));
            };
            let found = words.iter().find(|(name, _)| *name == word).ok_or_else(|| {
                let known: Vec<_> = words.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                format!("`{{{word}}}` is no word: take {}", known.join(" "))
            })?;
            parts.push(Part::Word(found.1));
            rest = after;
        }
        push(&mut parts, rest);
        Ok(Self { parts })
    }

    fn has(&self, word: Word) -> bool {
        self.parts.contains(&Part::Word(word))
    }

    /// The text for one file.
    pub fn fill(&self, facts: &Facts<'_>) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(own) => text.push_str(own),
                Part::Word(word) => word.write(facts, &mut text),
            }
        }
        text
    }

    /// A path below the target, for one file. Versions never meet: where the template does not tell them apart, `.v2` is added
    /// to the second, and so on.
    pub fn path(&self, facts: &Facts<'_>) -> String {
        let filled = self.fill(facts);
        let parts = filled.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
        let mut path = parts.collect::<Vec<_>>().join("/");
        if facts.version > 1 && !self.has(Word::Version) {
            let _ = write!(path, ".v{}", facts.version);
        }
        path
    }
}

fn push(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Text(own)) => own.push_str(text),
        _ => parts.push(Part::Text(text.to_owned())),
    }
}

impl Word {
    fn write(self, facts: &Facts<'_>, out: &mut String) {
        let (dir, file) = facts.name.rsplit_once('/').unwrap_or(("", facts.name));
        let (stem, ext) = match file.rsplit_once('.') {
            Some((stem, ext)) if !stem.is_empty() => (stem, ext),
            _ => (file, ""),
        };
        match self {
            Self::Name => out.push_str(facts.name),
            Self::Dir => out.push_str(dir),
            Self::File => out.push_str(file),
            Self::Stem => out.push_str(stem),
            Self::Ext => out.push_str(ext),
            Self::Date => out.push_str(&day(facts.taken_in)),
            Self::Version => out.push_str(&facts.version.to_string()),
            Self::Site => out.push_str(facts.site),
            Self::Rule => out.push_str(facts.rule),
            Self::Path => out.push_str(facts.path),
        }
    }
}

/// The day of a time, in UTC, as `2026-11-22`.
fn day(time: Time) -> String {
    show_time(time.0).split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Facts, Template, day};
    use downpour_catalog::Time;

    const FACTS: Facts<'_> = Facts {
        name: "run/7/a.b.root",
        version: 2,
        site: "alpha",
        rule: "raw",
        taken_in: Time(1_795_305_600_000_000),
        path: "/data/x",
    };

    #[test]
    fn words_are_filled_and_versions_kept_apart() {
        for (template, path) in [
            ("{name}", "run/7/a.b.root.v2"),
            ("{site}/{date}/{stem}-{version}.{ext}", "alpha/2026-11-22/a.b-2.root"),
            ("in/{dir}/{rule}/{file}", "in/run/7/raw/a.b.root.v2"),
            ("{{{stem}}}{version}", "{a.b}2"),
        ] {
            assert_eq!(template.parse::<Template>().unwrap().path(&FACTS), path);
        }
        let plain = Facts { name: "x", version: 1, ..FACTS };
        let path = "{dir}/{dir}/{file}.{ext}".parse::<Template>().unwrap().path(&plain);
        assert_eq!(path, "x.");
        assert_eq!(Template::of_text("-f{path}").unwrap().fill(&FACTS), "-f/data/x");
    }

    #[test]
    fn no_template_leads_out_of_the_target_or_to_one_path() {
        for wrong in [
            "",
            "/{name}",
            "../{name}",
            "a/../{name}",
            "{site}",
            "x",
            "{nome}",
            "{name",
            ".downpour/{name}",
            "./.downpour/{name}",
        ] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
        for unknown in ["{nome}", "{path}"] {
            let known = unknown.parse::<Template>().unwrap_err();
            assert!(known.ends_with("{stem} {ext} {date} {version} {site} {rule}"), "{known}");
        }
        assert!(Template::of_text("{nome}").unwrap_err().ends_with("{rule} {path}"));
        let hostile = Facts { name: "../../etc/passwd", version: 1, ..FACTS };
        assert_eq!(Template::default().path(&hostile), "etc/passwd");
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
        ] {
            assert_eq!(day(Time(0).plus_s(seconds)), text);
        }
    }
}
