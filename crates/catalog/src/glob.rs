//! Patterns of names, as shells have them: `*` any run of characters, `?` one, `[a-z]` and `[!a-z]` one of a set, `\` takes the
//! next character as it is. `*` passes over `/`, for a name in the catalog is one text.
//!
//! A viewer's pattern is matched against thousands of names in one page: it is no longer than a name, and of a set the ranges
//! are in order and apart, so that a character is looked up, not compared with each.

use crate::change::NAME_BYTES_MAX;
use std::fmt;
use std::str::FromStr;

/// A pattern, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    Any,
    Run,
    /// In order and apart.
    Set {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// It ends in the middle.
    #[error("the pattern `{0}` ends within a set or after a backslash")]
    Cut(String),
    /// It is longer than any name.
    #[error("the pattern has {0} bytes, and may have {NAME_BYTES_MAX} as a name")]
    Long(usize),
}

impl FromStr for Glob {
    type Err = BadGlob;

    fn from_str(text: &str) -> Result<Self, BadGlob> {
        if text.len() > NAME_BYTES_MAX {
            return Err(BadGlob::Long(text.len()));
        }
        let bad = || BadGlob::Cut(text.to_owned());
        let mut parts = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            parts.push(match c {
                // Two runs are one.
                '*' if parts.last() == Some(&Part::Run) => continue,
                '*' => Part::Run,
                '?' => Part::Any,
                '\\' => Part::Char(chars.next().ok_or_else(bad)?),
                '[' => set(&mut chars).ok_or_else(bad)?,
                c => Part::Char(c),
            });
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

/// As it was written.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What follows `[`. A `]` at the first place is one of the set.
fn set(chars: &mut std::str::Chars<'_>) -> Option<Part> {
    let mut ahead = chars.clone();
    let negated = matches!(ahead.next(), Some('!' | '^'));
    if negated {
        chars.next();
    }
    let mut ranges = Vec::new();
    loop {
        let first = match chars.next()? {
            ']' if !ranges.is_empty() => {
                return Some(Part::Set { negated, ranges: apart(ranges) });
            }
            '\\' => chars.next()?,
            c => c,
        };
        let mut ahead = chars.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *chars = ahead;
                last
            }
            _ => first,
        };
        ranges.push((first, last));
    }
}

/// The same characters, in order and none twice.
fn apart(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    ranges.retain(|(first, last)| first <= last);
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let meet = next.0 <= before.1;
        if meet {
            before.1 = before.1.max(next.1);
        }
        meet
    });
    ranges
}

impl Glob {
    /// What each name that matches begins with.
    pub fn literal_prefix(&self) -> String {
        let char_of = |part: &Part| if let Part::Char(c) = part { Some(*c) } else { None };
        self.parts.iter().map_while(char_of).collect()
    }

    /// Whether a name matches. Takes time in the product of the lengths at worst.
    pub fn matches(&self, name: &str) -> bool {
        let (parts, name) = (&self.parts, name.chars().collect::<Vec<_>>());
        let (mut part, mut at) = (0, 0);
        // Where to go back to: the last run, and what it has taken so far.
        let mut back: Option<(usize, usize)> = None;
        while at < name.len() {
            match parts.get(part) {
                Some(Part::Run) => {
                    back = Some((part, at));
                    part += 1;
                }
                Some(one) if one.takes(name[at]) => (part, at) = (part + 1, at + 1),
                _ => {
                    let Some((run, taken)) = &mut back else { return false };
                    *taken += 1;
                    (part, at) = (*run + 1, *taken);
                }
            }
        }
        parts[part..].iter().all(|part| *part == Part::Run)
    }
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Char(own) => *own == c,
            Self::Any => true,
            Self::Run => false,
            Self::Set { negated, ranges } => {
                let at = ranges.partition_point(|(_, last)| *last < c);
                ranges.get(at).is_some_and(|(first, _)| *first <= c) != *negated
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BadGlob, Glob, NAME_BYTES_MAX, Part};

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, yes, no) in [
            ("a*c", "ac", "acb"),
            ("a*c", "abcbc", "bac"),
            ("*.root", "run/1.root", "run/1.roots"),
            ("run/??.dat", "run/12.dat", "run/1.dat"),
            ("[a-c]x", "bx", "dx"),
            ("[!a-c]x", "dx", "bx"),
            ("[]a]", "]", "b"),
            ("[a-]", "-", "b"),
            ("[x-zb-da-bz]", "c", "w"),
            ("[z-ax]", "x", "b"),
            ("[!z-a]", "x", ""),
            ("\\*", "*", "x"),
            ("*é*", "aéb", "aeb"),
            ("*a*a*a*", "xaxaxa", "xaxax"),
            ("", "", "x"),
        ] {
            let glob: Glob = pattern.parse().unwrap();
            assert!(glob.matches(yes), "{pattern} {yes}");
            assert!(!glob.matches(no), "{pattern} {no}");
        }
        for bad in ["[a", "x\\", "[", "[!"] {
            assert!(bad.parse::<Glob>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_prefix_is_what_is_certain() {
        for (pattern, prefix) in [("run/1?", "run/1"), ("*", ""), ("a\\*b[c]", "a*b"), ("x", "x")] {
            assert_eq!(pattern.parse::<Glob>().unwrap().literal_prefix(), prefix);
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_ages() {
        let glob: Glob = "*a".repeat(40).parse().unwrap();
        assert!(!glob.matches(&("a".repeat(30) + &"b".repeat(900))));
        let glob: Glob = format!("[{}a-cb-e]", "z".repeat(1000)).parse().unwrap();
        let Part::Set { ranges, .. } = &glob.parts[0] else { panic!("{glob:?}") };
        assert_eq!(ranges, &[('a', 'e'), ('z', 'z')]);
        let long = "?".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(long.parse::<Glob>(), Err(BadGlob::Long(NAME_BYTES_MAX + 1)));
        assert!(long[1..].parse::<Glob>().is_ok());
    }
}
