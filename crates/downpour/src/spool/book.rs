//! The spool's side of the catalog: what it writes, in batches that share commits, and what it learns of its files.

use super::rule::Rules;
use crate::dispatch::is_submitted;
use downpour_catalog::{
    Answer, Attempt, Catalog, Change, Cursor, Error, Event, EventKind, File, FileId, LogId, Move,
    NewFile, Next, OpenError, OtherContent, Outcome, Query, Reader, Replica, ReplicaState,
    Revision, RuleId, Same, SiteId, State, Time,
};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

/// Changes that are asked for together; even, so that pairs share a commit.
const CHANGES_MAX: usize = 1000;
/// Events that are read at a time.
const EVENTS_MAX: usize = 1000;

/// The catalog, or what is written down beside it, cannot be used; nothing is lost by beginning again.
#[derive(Debug)]
pub enum SpoolError {
    /// It cannot be opened for reading.
    Open(OpenError),
    /// It does not answer.
    Catalog(Error),
    /// What commands on arrival are open cannot be read from this file.
    Notes(PathBuf, io::Error),
    /// The state folder in which this file lies is another one than was opened.
    OtherState(PathBuf),
}

impl fmt::Display for SpoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => write!(f, "the catalog cannot be read: {error}"),
            Self::Catalog(error) => write!(f, "the catalog: {error}"),
            Self::Notes(place, error) => {
                write!(
                    f,
                    "what commands on arrival are open cannot be read from {}: {error}; make it \
                     readable, or move it away: then only what arrives from now on gets a command",
                    place.display()
                )
            }
            Self::OtherState(place) => write!(
                f,
                "what commands on arrival are open is not known: the state folder of {} is not \
                 the one that was opened; put that one back, or end the daemon and restore it",
                place.display()
            ),
        }
    }
}

impl std::error::Error for SpoolError {}

impl From<Error> for SpoolError {
    fn from(error: Error) -> Self {
        Self::Catalog(error)
    }
}

/// Where a file stands in the catalog, as far as the spool knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) file: FileId,
    pub(super) revision: Revision,
    pub(super) state: State,
}

impl Record {
    /// A step from here; the spool holds no lease.
    pub(super) fn step(self, next: Next) -> Change {
        Change::Move(Move { file: self.file, at: self.revision, fence: None, next })
    }
}

/// Whether a file is on its way.
fn is_live(state: State) -> bool {
    !state.is_end() && state != State::Quarantined
}

pub(super) struct Book {
    catalog: Arc<Catalog>,
    reader: Reader,
    pub(super) site: SiteId,
    rules: Vec<RuleId>,
    ranks: Vec<i64>,
    prefix: String,
    /// Where each log has been read to.
    logs: HashMap<LogId, i64>,
    /// Names of the sites, as far as they were asked for.
    sites: HashMap<SiteId, String>,
}

impl Book {
    pub(super) fn open(
        catalog: Arc<Catalog>,
        rules: &Rules,
        prefix: &str,
    ) -> Result<Self, SpoolError> {
        let mut reader = catalog.reader().map_err(SpoolError::Open)?;
        let site = catalog.site(rules.own())?;
        let numbers = rules.iter().map(|(_, rule)| catalog.rule(&rule.name));
        let ids = numbers.collect::<Result<_, _>>()?;
        let ranks = rules.iter().map(|(_, rule)| rule.priority).collect();
        let logs = reader.logs()?.into_iter().map(|(log, _, last)| (log, last)).collect();
        let (prefix, sites) = (prefix.to_owned(), HashMap::new());
        Ok(Self { catalog, reader, site, rules: ids, ranks, prefix, logs, sites })
    }

    /// A file's name in the catalog.
    pub(super) fn name(&self, rel: &str) -> String {
        format!("{}{rel}", self.prefix)
    }

    /// A new file, as the catalog takes it in.
    pub(super) fn new_file(
        &self,
        rel: &str,
        rule: usize,
        (size, stamp): (u64, i64),
        other_content: OtherContent,
    ) -> NewFile {
        NewFile {
            site: self.site,
            name: self.name(rel),
            size,
            stamp,
            rule: self.rules[rule],
            rank: self.ranks[rule],
            transfer: None,
            other_content,
            same: Same::Any,
        }
    }

    /// The name in the spool of a file in the catalog.
    pub(super) fn rel<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_prefix(&self.prefix)
    }

    /// Where this site's copy lies.
    pub(super) fn present(&self, file: FileId, path: String) -> Change {
        let state = ReplicaState::Present;
        Change::Replica(Replica { file, site: self.site, path, state })
    }

    /// This site's copy is gone, or is another file's by now.
    pub(super) fn removed(&self, file: FileId) -> Change {
        let (path, state) = (String::new(), ReplicaState::Removed);
        Change::Replica(Replica { file, site: self.site, path, state })
    }

    /// Whether that was said of it.
    pub(super) fn is_removed(&mut self, file: FileId) -> Result<bool, SpoolError> {
        let own = self.copies(&[file])?;
        Ok(own.iter().any(|replica| replica.state == ReplicaState::Removed))
    }

    /// This site's copies of these files, as they are recorded.
    pub(super) fn copies(&mut self, files: &[FileId]) -> Result<Vec<Replica>, SpoolError> {
        let mut own = self.reader.replicas_of(files)?;
        own.retain(|replica| replica.site == self.site);
        Ok(own)
    }

    /// Names of the sites that have a file, or had it once.
    pub(super) fn holders(&mut self, file: FileId) -> Result<HashSet<String>, SpoolError> {
        let replicas = self.reader.replicas(file)?;
        if replicas.iter().any(|replica| !self.sites.contains_key(&replica.site)) {
            self.sites = self.reader.sites()?.into_iter().collect();
        }
        Ok(replicas.iter().filter_map(|replica| self.sites.get(&replica.site).cloned()).collect())
    }

    /// Makes these changes; each is answered in its place.
    pub(super) fn apply(&self, now: Time, changes: Vec<Change>) -> Result<Vec<Answer>, SpoolError> {
        let mut waiting = Vec::new();
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let part = changes.by_ref().take(CHANGES_MAX).collect();
            waiting.push(self.catalog.submit(now, part));
        }
        let mut answers = Vec::new();
        for pending in waiting {
            answers.extend(pending.wait()?);
        }
        Ok(answers)
    }

    /// One file.
    pub(super) fn file(&mut self, id: FileId) -> Result<Option<File>, SpoolError> {
        Ok(self.reader.file(id)?)
    }

    /// The newest version of a file in the spool.
    pub(super) fn newest(&mut self, rel: &str) -> Result<Option<File>, SpoolError> {
        let name = self.name(rel);
        Ok(self.reader.versions(self.site, &name)?.pop())
    }

    /// A version of a name that was submitted from this very place, and is still to arrive.
    pub(super) fn submitted_from(
        &mut self,
        rel: &str,
        place: &Path,
    ) -> Result<Option<i64>, SpoolError> {
        let mut versions = self.reader.versions(self.site, &self.name(rel))?;
        versions.retain(|file| is_live(file.state));
        if versions.is_empty() {
            return Ok(None);
        }
        let rules: HashMap<_, _> = self.reader.rules()?.into_iter().collect();
        versions.retain(|file| rules.get(&file.rule).is_some_and(|name| is_submitted(name)));
        // Who submits a file records it by its real path.
        let Ok(place) = place.canonicalize() else { return Ok(None) };
        let files: Vec<_> = versions.iter().map(|file| file.id).collect();
        let mut here = self.copies(&files)?;
        here.retain(|replica| Path::new(&replica.path) == place);
        let lies = |file: &&File| here.iter().any(|replica| replica.file == file.id);
        Ok(versions.iter().find(lies).map(|file| file.version))
    }

    /// Whether it was received and left, or was never here: this site's copy is recorded in another place. Who sends it again sees
    /// whether it can be read there: its disk may not be mounted yet.
    pub(super) fn has_left(&mut self, file: FileId, place: &Path) -> Result<bool, SpoolError> {
        let is_elsewhere =
            |own: &Replica| own.state == ReplicaState::Present && Path::new(&own.path) != place;
        // The other place of what was taken in and never received is that of the folder before it got another path. A receipt
        // alone may be that of one of several destinations; the attempt that reached the last of them is verified.
        let is_whole = |attempt: &Attempt| attempt.outcome == Outcome::Verified;
        Ok(self.copies(&[file])?.iter().any(is_elsewhere)
            && (self.reader.attempts(file)?.iter().any(is_whole)
                || self.reader.is_adopted(file)?))
    }

    /// Files that this daemon took in from this spool and that have not arrived, with their paths.
    pub(super) fn live(&mut self) -> Result<Vec<(String, File)>, SpoolError> {
        let mut live = Vec::new();
        for state in State::ALL.iter().copied().filter(|state| is_live(*state)) {
            let mut from = None;
            loop {
                for file in self.ours(Some(state), &mut from)? {
                    let rel = file.name[self.prefix.len()..].to_owned();
                    live.push((rel, file));
                }
                if from.is_none() {
                    break;
                }
            }
        }
        Ok(live)
    }

    /// Whether this daemon ever took a file in from this spool.
    pub(super) fn is_used(&mut self) -> Result<bool, SpoolError> {
        let mut from = None;
        loop {
            let is_used = !self.ours(None, &mut from)?.is_empty();
            if is_used || from.is_none() {
                return Ok(is_used);
            }
        }
    }

    /// Of the next files that the catalog has in this state, or in any, those that this daemon took in from this spool.
    fn ours(
        &mut self,
        state: Option<State>,
        from: &mut Option<Cursor>,
    ) -> Result<Vec<File>, SpoolError> {
        let query = Query {
            state,
            site: Some(self.site),
            prefix: (!self.prefix.is_empty()).then(|| self.prefix.clone()),
            ..Query::default()
        };
        let page = self.reader.search(&query, from.as_ref(), downpour_catalog::PAGE_MAX)?;
        *from = page.next;
        let (rules, log) = (&self.rules, self.catalog.log());
        let is_ours = |file: &File| rules.contains(&file.rule) && file.id.log() == log;
        Ok(page.files.into_iter().filter(is_ours).collect())
    }

    /// The next of the steps of files that were taken since the last call, by whomever; none when that were all.
    pub(super) fn follow(&mut self) -> Result<Option<Vec<Event>>, SpoolError> {
        for (log, _, last) in self.reader.logs()? {
            let after = self.logs.get(&log).copied().unwrap_or(0);
            if after >= last {
                continue;
            }
            let mut events = self.reader.events(log, after, EVENTS_MAX)?;
            let Some(newest) = events.last() else { continue };
            self.logs.insert(log, newest.number);
            events.retain(|event| event.kind == EventKind::Moved);
            return Ok(Some(events));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Book, Catalog, Change, EVENTS_MAX, Next, OtherContent, Record, State, Time};
    use crate::spool::Rules;
    use downpour_catalog::{Answer, BeforeMigration, CatalogUrl};

    #[test]
    fn steps_are_told_in_parts_and_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let (url, now) = (CatalogUrl::Sqlite(folder.path().join("catalog.db")), Time(1 << 50));
        let catalog = Catalog::open(&url, "daemon", now, &BeforeMigration::Refuse).unwrap();
        let rule = toml::from_str("name = 'all'\nmatch = '*'\nto = 'there'").unwrap();
        let rules = Rules::new("here", &[rule]);
        let mut book = Book::open(Arc::new(catalog), &rules, "").unwrap();
        let new = |number: usize| {
            let name = number.to_string();
            Change::TakeIn(book.new_file(&name, 0, (1, 1), OtherContent::NewVersion))
        };
        let taken_in = book.apply(now, (0..EVENTS_MAX).map(new).collect()).unwrap();
        let settle = |answer: Answer| {
            let applied = answer.unwrap();
            let (file, revision, state) = (applied.file, applied.revision, State::Found);
            Record { file, revision, state }.step(Next::Settled { size: 1 })
        };
        book.apply(now, taken_in.into_iter().map(settle).collect()).unwrap();
        let (mut parts, mut steps) = (0, 0);
        while let Some(part) = book.follow().unwrap() {
            (parts, steps) = (parts + 1, steps + part.len());
        }
        assert_eq!((parts, steps), (2, EVENTS_MAX));
    }
}
