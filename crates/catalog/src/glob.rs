//! Patterns of names, as shells have them: `*` any run of characters, `?` one, `[a-z]` and `[!a-z]` one of a set, `\` takes the
//! next character as it is. `*` passes over `/`, for a name in the catalog is one text.

use std::str::FromStr;

/// A pattern, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    Any,
    Run,
    Set { negated: bool, ranges: Vec<(char, char)> },
}

/// A pattern that ends in the middle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{0}` ends within a set or after a backslash")]
pub struct BadGlob(String);

impl FromStr for Glob {
    type Err = BadGlob;

    fn from_str(text: &str) -> Result<Self, BadGlob> {
        let bad = || BadGlob(text.to_owned());
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
        Ok(Self(parts))
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
            ']' if !ranges.is_empty() => return Some(Part::Set { negated, ranges }),
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

impl Glob {
    /// What each name that matches begins with.
    pub fn literal_prefix(&self) -> String {
        let char_of = |part: &Part| if let Part::Char(c) = part { Some(*c) } else { None };
        self.0.iter().map_while(char_of).collect()
    }

    /// Whether a name matches. Takes time in the product of the lengths at worst.
    pub fn matches(&self, name: &str) -> bool {
        let (parts, name) = (&self.0, name.chars().collect::<Vec<_>>());
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
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *negated
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Glob;

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
    }
}
