//! Search: files by name, state, site, time, digest and error class, page by page.
//!
//! 1. The most selective condition chooses the index that is walked ([`Walk`]): digest, live queue, name, state, site, else ids. The
//!    few that are in a state of the live queue are walked by themselves, and not sought among all that are in it.
//! 2. Blocks of rows are read along it; the other conditions are checked here, so that all databases agree.
//! 3. A page ends when it is full, or when [`EXAMINED_MAX`] rows were looked at: a page takes a bounded time, whatever
//!    is asked. Its cursor says where to go on.
//!
//! A cursor is a place in the index, not a count of rows: files that come and go meanwhile make none of the others appear
//! twice or never.

use crate::class::ErrorClass;
use crate::error::Error;
use crate::glob::Glob;
use crate::life::State;
use crate::reader::{Reader, file_of, select};
use crate::record::{Digest, File, FileId, SiteId, Time, unhex};
use crate::sql::{Value, one_int};
use std::fmt;
use std::str::FromStr;

/// Rows that one page looks at, at most.
const EXAMINED_MAX: usize = 5_000;
/// Files on a page, at most.
pub const PAGE_MAX: usize = 1_000;

/// What is searched for. Every condition that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// What the name begins with.
    pub prefix: Option<String>,
    /// A pattern that the name matches.
    pub glob: Option<Glob>,
    /// Where the file stands.
    pub state: Option<State>,
    /// Where it comes from.
    pub site: Option<SiteId>,
    /// Taken in at this time or later.
    pub since: Option<Time>,
    /// Taken in before this time.
    pub until: Option<Time>,
    /// One of its digests.
    pub digest: Option<Digest>,
    /// The error for which it waits or is set apart.
    pub error: Option<ErrorClass>,
}

/// A place in a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// After this file, by id.
    Id(FileId),
    /// After this name, site and version.
    Name(String, SiteId, i64),
}

/// `i17`, or `n2.1.run/7`: version, site and name. Of the name only what means nothing to a terminal or a shell stands as it is.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "i{id}"),
            Self::Name(name, site, version) => {
                write!(f, "n{version}.{site}.")?;
                name.bytes().try_for_each(|byte| match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'/' | b'-' => {
                        write!(f, "{}", char::from(byte))
                    }
                    _ => write!(f, "%{byte:02x}"),
                })
            }
        }
    }
}

/// The text is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no cursor of a search")]
pub struct BadCursor(String);

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let parse = || {
            if let Some(id) = text.strip_prefix('i') {
                return Some(Self::Id(FileId(id.parse().ok()?)));
            }
            let mut parts = text.strip_prefix('n')?.splitn(3, '.');
            let (version, site) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            Some(Self::Name(unescaped(parts.next()?)?, SiteId(site), version))
        };
        parse().ok_or_else(|| BadCursor(text.to_owned()))
    }
}

/// The name that is shown so in a cursor.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut name = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = part.split_at_checked(2)?;
        name.extend(unhex(byte)?);
        name.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(name).ok().filter(|name| !name.contains('\0'))
}

/// A part of what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Files, by id or by name.
    pub files: Vec<File>,
    /// Where to go on; `None` at the end. A page may be empty and not the last.
    pub next: Option<Cursor>,
}

/// The index that a search goes along.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Walk {
    Digest(Digest),
    Live,
    /// Those of the live queue in a state in which few are.
    Few(State),
    Name {
        from: String,
        to: Option<String>,
    },
    EndState(State),
    Site(SiteId),
    Ids,
}

impl Query {
    fn walk(&self) -> Walk {
        if let Some(digest) = &self.digest {
            return Walk::Digest(digest.clone());
        }
        if self.error.is_some() || self.state.is_some_and(|state| !state.is_end()) {
            return Walk::Live;
        }
        let from = self.literal_prefix();
        if !from.is_empty() {
            return Walk::Name { to: after_prefix(&from), from };
        }
        match (self.state, self.site) {
            // Most files end there: their ids are as good an index, and may be bounded by time.
            (Some(State::Receipted) | None, None) => Walk::Ids,
            (Some(State::Receipted) | None, Some(site)) => Walk::Site(site),
            (Some(state), _) => Walk::EndState(state),
        }
    }

    /// What each name must begin with.
    fn literal_prefix(&self) -> String {
        let of_glob = self.glob.as_ref().map(Glob::literal_prefix).unwrap_or_default();
        let of_prefix = self.prefix.clone().unwrap_or_default();
        if of_glob.len() > of_prefix.len() { of_glob } else { of_prefix }
    }

    fn matches(&self, file: &File) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| file.name.starts_with(prefix))
            && self.glob.as_ref().is_none_or(|glob| glob.matches(&file.name))
            && self.state.is_none_or(|state| file.state == state)
            && self.site.is_none_or(|site| file.site == site)
            && self.since.is_none_or(|since| file.id >= FileId::first_at(since))
            && self.until.is_none_or(|until| file.id < FileId::first_at(until))
            && self.error.is_none_or(|error| file.error == Some(error))
    }
}

/// The least text that is greater than each that begins with `prefix`; `None` when there is none.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // Not every number is a character: the surrogates are not.
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

impl Reader {
    /// The files that a query finds, from a cursor on.
    pub fn search(
        &mut self,
        query: &Query,
        from: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut page = Page { files: Vec::new(), next: from.cloned() };
        if query.literal_prefix().contains('\0') {
            // No name has one, and PostgreSQL takes none in a text.
            page.next = None;
            return Ok(page);
        }
        let walk = match (query.walk(), query.state) {
            (Walk::Live, Some(state)) if self.are_few(state)? => Walk::Few(state),
            (walk, _) => walk,
        };
        let mut examined = 0;
        loop {
            // A block for the rest of the page, or more where few rows match.
            let block = (limit - page.files.len()).max(examined).min(EXAMINED_MAX - examined);
            let rows = self.block(query, &walk, page.next.as_ref(), block)?;
            let is_last = rows.len() < block;
            for file in rows {
                examined += 1;
                page.next = Some(walk.cursor(&file));
                if query.matches(&file) {
                    page.files.push(file);
                    if page.files.len() == limit {
                        return Ok(page);
                    }
                }
            }
            if is_last {
                page.next = None;
            }
            if is_last || examined >= EXAMINED_MAX {
                return Ok(page);
            }
        }
    }

    /// All files that a query finds, by pages of `limit`, until `take`, which gets each of them, wants no more.
    pub fn search_all(
        &mut self,
        query: &Query,
        limit: usize,
        mut take: impl FnMut(&mut Self, Vec<File>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut from = None;
        loop {
            let page = self.search(query, from.as_ref(), limit)?;
            from = page.next;
            if !take(self, page.files)? || from.is_none() {
                return Ok(());
            }
        }
    }

    /// Whether one page may look at all that are in this state of the live queue.
    fn are_few(&mut self, state: State) -> Result<bool, Error> {
        let text = "SELECT COUNT(*) FROM (SELECT file FROM live WHERE state = ? LIMIT ?) few";
        let args = [i64::from(state.code()).into(), (EXAMINED_MAX as i64 + 1).into()];
        Ok(one_int(&mut *self.sql, text, &args)? <= EXAMINED_MAX as i64)
    }

    fn block(
        &mut self,
        query: &Query,
        walk: &Walk,
        from: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<File>, Error> {
        let after = if let Some(Cursor::Id(id)) = from { id.0.saturating_add(1) } else { 0 };
        let since = query.since.map_or(0, |since| FileId::first_at(since).0);
        let until = query.until.map_or(i64::MAX, |until| FileId::first_at(until).0);
        // One lower bound: of two, SQLite begins at the first.
        let ids = [after.max(since).into(), until.into()];
        let by_id = |from: &str, id: &str, condition: &str| {
            select(from, &format!("{condition}{id} >= ? AND {id} < ? ORDER BY {id}"))
        };
        let (text, mut args): (String, Vec<Value>) = match walk {
            Walk::Digest(digest) => {
                let from = "digest x JOIN file f ON f.id = x.file";
                let key =
                    [Value::Bytes(digest.value().to_vec()), i64::from(digest.kind().code()).into()];
                let text = by_id(from, "x.file", "x.value = ? AND x.kind = ? AND ");
                (text, key.into_iter().chain(ids).collect())
            }
            Walk::Live => {
                (by_id("live q JOIN file f ON f.id = q.file", "q.file", ""), ids.to_vec())
            }
            Walk::Few(state) => {
                let state = [i64::from(state.code()).into()];
                // A sum is in no index: by the ids the whole queue would be looked through for them.
                let text =
                    by_id("live q JOIN file f ON f.id = q.file", "q.file + 0", "q.state = ? AND ");
                (text, state.into_iter().chain(ids).collect())
            }
            Walk::EndState(state) => {
                let state = [i64::from(state.code()).into()];
                let text = by_id("file f", "f.id", "f.state = ? AND ");
                (text, state.into_iter().chain(ids).collect())
            }
            Walk::Site(site) => {
                let site = [site.0.into()];
                (by_id("file f", "f.id", "f.site = ? AND "), site.into_iter().chain(ids).collect())
            }
            Walk::Ids => (by_id("file f", "f.id", ""), ids.to_vec()),
            Walk::Name { from: first, to } => by_name(first, to.as_deref(), from),
        };
        args.push((limit as i64).into());
        let rows = self.sql.query(&(text + " LIMIT ?"), &args)?;
        Ok(rows.into_iter().map(file_of).collect::<Result<_, _>>()?)
    }
}

fn by_name(first: &str, to: Option<&str>, from: Option<&Cursor>) -> (String, Vec<Value>) {
    let (mut condition, mut args) = ("f.name >= ?".to_owned(), Vec::new());
    match from {
        Some(Cursor::Name(name, site, version)) => {
            condition += " AND (f.name > ? OR f.site > ? OR (f.site = ? AND f.version > ?))";
            args.extend([name.as_str().into(), name.as_str().into()]);
            args.extend([site.0.into(), site.0.into(), (*version).into()]);
        }
        _ => args.push(first.into()),
    }
    if let Some(to) = to {
        condition += " AND f.name < ?";
        args.push(to.into());
    }
    (select("file f", &condition) + " ORDER BY f.name, f.site, f.version", args)
}

impl Walk {
    fn cursor(&self, file: &File) -> Cursor {
        match self {
            Self::Name { .. } => Cursor::Name(file.name.clone(), file.site, file.version),
            _ => Cursor::Id(file.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, Query, Walk, after_prefix};
    use crate::record::{FileId, SiteId};

    #[test]
    fn prefixes_end_where_the_next_text_begins() {
        assert_eq!(after_prefix("ab").as_deref(), Some("ac"));
        assert_eq!(after_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(after_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_prefix("\u{10ffff}"), None);
    }

    #[test]
    fn cursors_parse_as_they_are_shown() {
        let of = |name: &str| Cursor::Name(name.to_owned(), SiteId(3), 2);
        let (plain, odd) = ("a.b/c-d_E9", "it's-\x1b]0;x\x07 100%41 \n\u{9b}\u{fc}\\");
        for cursor in [Cursor::Id(FileId(17)), of(plain), of(odd)] {
            let text = cursor.to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\''), "{text:?}");
            assert_eq!(text.parse(), Ok(cursor));
        }
        assert_eq!(of(plain).to_string(), format!("n2.3.{plain}"));
        let bad = ["", "17", "ix", "n1.x", "n1.2", "n1.2.%", "n1.2.%4", "n1.2.%zz", "n1.2.%ff"];
        for bad in bad.into_iter().chain(["n1.2.%00", "n1.2.a\0"]) {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_most_certain_prefix_is_walked() {
        let query = Query {
            prefix: Some("run/".to_owned()),
            glob: Some("run/1*".parse().unwrap()),
            ..Query::default()
        };
        let to = Some("run/2".to_owned());
        assert_eq!(query.walk(), Walk::Name { from: "run/1".to_owned(), to });
    }
}
