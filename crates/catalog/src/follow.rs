//! A catalog followed from elsewhere: its event logs, page by page, with the records that the events speak of.
//!
//! 1. [`Reader::follow`] gives the events of one log after a number, and the rows that they are about *as they are now*, as JSON:
//!    no rules, counters, attempts and deliveries but theirs, for of these there is no end. All of a page is of one moment.
//! 2. [`Follower::take`] puts the page into a copy on SQLite, in one commit. A number that is missing is a [`NotTaken::Gap`]; a page
//!    of a catalog that was made anew under the same address is [`NotTaken::Another`].
//!
//! Taking a page again changes nothing. When a follower has come to the end of each log it holds what the catalog held: the same numbers
//! of files, the same events. It is a catalog like any other: it answers searches, and a lost one is made of it by `rebuild`, or
//! by `backup` and `restore`.
//!
//! Sums of what sites hold are not followed but made anew by [`Follower::settle`], or when the first daemon opens it as its catalog.

use crate::error::{Error, OpenError};
use crate::ledger::fade;
use crate::migrate::{self, BeforeMigration};
use crate::reader::Reader;
use crate::record::{EventKind, LogId, Time};
use crate::schema;
use crate::sql::{DbError, Hold, Kind, Put, Row, Sql, Table, Value, one_int};
use crate::sqlite::{Access, Sqlite};
use crate::words::WordKind;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// Events of one page at most.
pub const FOLLOW_MAX: usize = 400;
/// Bytes of a page of more than one event at most: half of what one site takes from another.
const PAGE_BYTES_MAX: usize = 8 << 20;

const WORD: Table = Table {
    name: "word",
    keys: 2,
    columns: &[("kind", Kind::Int), ("id", Kind::Int), ("name", Kind::Text)],
};
const LIVE_KEY: Table = Table { name: "live", keys: 1, columns: &[("file", Kind::Int)] };
const DIGESTS_KEY: Table = Table { name: "digest", keys: 1, columns: &[("file", Kind::Int)] };
/// What belongs to a file, and comes with each of its events.
const OF_FILE: [&Table; 4] = [&schema::LIVE, &schema::DIGEST, &schema::REPLICA, &schema::RECEIPT];
/// What fades; a page of an older program is without.
const OF_LINK: [(&Table, EventKind); 2] =
    [(&schema::LINK_SEEN, EventKind::LinkSeen), (&schema::DECISION, EventKind::Decision)];
/// All else that a page may hold.
const TABLES: [&Table; 12] = [
    &WORD,
    &schema::EVENT,
    &schema::FILE,
    &schema::LIVE,
    &schema::DIGEST,
    &schema::REPLICA,
    &schema::ATTEMPT,
    &schema::RECEIPT,
    &schema::TRANSFER,
    &schema::SESSION,
    &schema::DELIVERY,
    &schema::COUNTER,
];

impl Reader {
    /// Events of a log after number `after`, at most `limit` and no more than fit into a page, with the records that they are about.
    pub fn follow(&mut self, log: LogId, after: i64, limit: usize) -> Result<Json, Error> {
        let mut limit = limit.min(FOLLOW_MAX);
        loop {
            self.sql.begin_read()?;
            let page = self.page(log, after, limit);
            self.sql.rollback();
            let page = page?;
            if limit <= 1 || page.to_string().len() <= PAGE_BYTES_MAX {
                return Ok(page);
            }
            limit /= 2;
        }
    }

    fn page(&mut self, log: LogId, after: i64, limit: usize) -> Result<Json, Error> {
        let sql = &mut *self.sql;
        let mut tables = Map::new();
        let events = format!(
            "SELECT {} FROM event WHERE log = ? AND number > ? ORDER BY number LIMIT ?",
            schema::EVENT.list()
        );
        let events = sql.query(&events, &[log.0, after, limit as i64].map(Value::Int))?;
        let before =
            sql.pick(&schema::EVENT, &["log", "number"], &[event_key(log, after)], Hold::Nothing)?;
        let subjects = |of: fn(i64) -> bool| -> Vec<Row> {
            let of = events.iter().filter(|row| of(row[3].as_int())).map(|row| row[4].as_int());
            let ids: BTreeSet<i64> = of.collect();
            ids.into_iter().map(|id| vec![Value::Int(id)]).collect()
        };
        let files = subjects(|code| !of_other(code));
        let transfers = subjects(|code| i64::from(EventKind::Transfer.code()) == code);
        let sessions = subjects(|code| i64::from(EventKind::Session.code()) == code);
        let whole = pick(sql, &schema::FILE, &["id"], &files)?;
        let served = pick(sql, &schema::SESSION, &["id"], &sessions)?;
        put_rows(&mut tables, &WORD, words(sql, &whole, &served)?);
        put_rows(&mut tables, &schema::COUNTER, counters(sql, log, &whole)?);
        put_rows(&mut tables, &schema::FILE, whole);
        put_rows(&mut tables, &schema::SESSION, served);
        for table in OF_FILE {
            put_rows(&mut tables, table, pick(sql, table, &["file"], &files)?);
        }
        let transfers = pick(sql, &schema::TRANSFER, &["id"], &transfers)?;
        put_rows(&mut tables, &schema::TRANSFER, transfers);
        // What a later event tells anew comes with that one.
        let mut attempts = pick(sql, &schema::ATTEMPT, &["file"], &files)?;
        let ends = told(&events, EventKind::Moved);
        attempts.retain(|row| ends.contains(&[row[0].clone(), row[5].clone()][..]));
        put_rows(&mut tables, &schema::ATTEMPT, attempts);
        let delivered: Vec<Row> = told(&events, EventKind::Delivery).into_iter().collect();
        let deliveries = pick(sql, &schema::DELIVERY, &["file", "at"], &delivered)?;
        put_rows(&mut tables, &schema::DELIVERY, deliveries);
        for (table, kind) in OF_LINK {
            let keys = subjects_at(&events, kind);
            let keys: Vec<Row> =
                keys.into_iter().map(|at| [log.0, at].map(Value::Int).to_vec()).collect();
            put_rows(&mut tables, table, pick(sql, table, &["log", "at"], &keys)?);
        }
        put_rows(&mut tables, &schema::EVENT, events);
        let files: Vec<i64> = files.iter().map(|row| row[0].as_int()).collect();
        let last = "SELECT COALESCE(MAX(number), 0) FROM event WHERE log = ?";
        let end = one_int(sql, last, &[log.0.into()])?;
        let before = json_of(&schema::EVENT, before);
        Ok(json!({
            "log": log.0, "after": after, "before": before, "end": end, "files": files, "tables": tables
        }))
    }
}

/// The writers and sites, which are few, and the rules of these files and sessions.
fn words(sql: &mut dyn Sql, files: &[Row], sessions: &[Row]) -> Result<Vec<Row>, DbError> {
    let few = [WordKind::Site, WordKind::Writer].map(|kind| vec![Value::Int(kind as i64)]);
    let mut words = pick(sql, &WORD, &["kind"], &few)?;
    let of_files = files.iter().map(|row| row[6].clone());
    let rules: BTreeSet<_> = of_files.chain(sessions.iter().map(|row| row[2].clone())).collect();
    let key = |rule| vec![Value::Int(WordKind::Rule as i64), rule];
    let rules: Vec<Row> = rules.into_iter().map(key).collect();
    words.extend(pick(sql, &WORD, &["kind", "id"], &rules)?);
    Ok(words)
}

/// How many files like these this log counts: that changes with their events alone.
fn counters(sql: &mut dyn Sql, log: LogId, files: &[Row]) -> Result<Vec<Row>, DbError> {
    let place = |row: &Row| vec![Value::Int(log.0), row[1].clone(), row[6].clone()];
    let places: BTreeSet<Row> = files.iter().map(place).collect();
    let places: Vec<Row> = places.into_iter().collect();
    pick(sql, &schema::COUNTER, &["log", "site", "rule"], &places)
}

/// What events of this kind are about, with their time.
fn told(events: &[Row], kind: EventKind) -> BTreeSet<Row> {
    let of_kind = events.iter().filter(|row| i64::from(kind.code()) == row[3].as_int());
    of_kind.map(|row| vec![row[4].clone(), row[2].clone()]).collect()
}

/// Whether an event of this kind is about something else than a file.
fn of_other(code: i64) -> bool {
    let others =
        [EventKind::Transfer, EventKind::Session, EventKind::LinkSeen, EventKind::Decision];
    others.iter().any(|kind| i64::from(kind.code()) == code)
}

/// What events of this kind are about.
fn subjects_at(events: &[Row], kind: EventKind) -> BTreeSet<i64> {
    let of_kind = events.iter().filter(|row| i64::from(kind.code()) == row[3].as_int());
    of_kind.map(|row| row[4].as_int()).collect()
}

fn event_key(log: LogId, number: i64) -> Row {
    [log.0, number].map(Value::Int).to_vec()
}

fn pick(sql: &mut dyn Sql, table: &Table, by: &[&str], keys: &[Row]) -> Result<Vec<Row>, DbError> {
    if keys.is_empty() { Ok(Vec::new()) } else { sql.pick(table, by, keys, Hold::Nothing) }
}

fn put_rows(tables: &mut Map<String, Json>, table: &Table, rows: Vec<Row>) {
    tables.insert(table.name.to_owned(), json_of(table, rows));
}

fn json_of(table: &Table, rows: Vec<Row>) -> Json {
    let cell = |value: &Value, kind: Kind| match (value, kind) {
        (Value::Int(value), _) => Json::from(*value),
        (Value::Text(text), _) => Json::from(text.as_str()),
        // MySQL keeps names as bytes.
        (Value::Bytes(bytes), Kind::Text) => Json::from(String::from_utf8_lossy(bytes)),
        (Value::Bytes(bytes), _) => Json::from(crate::record::hex(bytes)),
        (Value::Null, _) => Json::Null,
    };
    let row = |row: Row| -> Json {
        row.iter().zip(table.columns).map(|(value, (_, kind))| cell(value, *kind)).collect()
    };
    rows.into_iter().map(row).collect()
}

/// Why a page was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// A number is missing: the log is damaged, or a page was lost.
    #[error("event {expected} of log {log} is missing; {found} follows")]
    Gap {
        /// Whose log.
        log: i64,
        /// The number that should have come.
        expected: i64,
        /// The number that came.
        found: i64,
    },
    /// It is of another catalog than the copy: one that was made anew, whose numbers mean something else.
    #[error("it is another catalog than the one that was copied ({0}): move the copy away")]
    Another(String),
    /// It is no page.
    #[error("this is no page of a catalog: {0}")]
    Nonsense(String),
    /// The copy.
    #[error(transparent)]
    Catalog(#[from] Error),
}

impl From<DbError> for NotTaken {
    fn from(error: DbError) -> Self {
        Self::Catalog(error.into())
    }
}

/// How far a follower is with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Whose log.
    pub log: LogId,
    /// The last event that is taken.
    pub last: i64,
    /// Where the log ended when the page was made.
    pub end: i64,
}

/// A copy of a catalog that follows it.
pub struct Follower {
    sql: Sqlite,
}

impl Follower {
    /// Opens the copy in this file, makes it if there is none.
    pub fn open(path: &Path, now: Time) -> Result<Self, OpenError> {
        let mut sql = Sqlite::open(path, Access::Write)?;
        migrate::migrate(&mut sql, now, &BeforeMigration::DumpExists)?;
        Ok(Self { sql })
    }

    /// The last event of a log that is taken.
    pub fn last(&mut self, log: LogId) -> Result<i64, Error> {
        let last = "SELECT COALESCE(MAX(number), 0) FROM event WHERE log = ?";
        Ok(one_int(&mut self.sql, last, &[log.0.into()])?)
    }

    /// Takes a page, whole or not at all.
    pub fn take(&mut self, page: &Json) -> Result<Reached, NotTaken> {
        let number = |name: &str| {
            page[name].as_i64().ok_or_else(|| NotTaken::Nonsense(format!("it has no {name}")))
        };
        let (log, end) = (number("log")?, number("end")?);
        self.compare_names(page)?;
        self.compare_before(LogId(log), page)?;
        let events = rows_of(page, &schema::EVENT)?;
        let before = self.last(LogId(log))?;
        let mut last = before;
        if end < last {
            let what = format!("its log {log} ends with event {end}, the copy's with {last}");
            return Err(NotTaken::Another(what));
        }
        for event in &events {
            let found = event[1].as_int();
            if event[0].as_int() != log || found > last + 1 {
                return Err(NotTaken::Gap { log, expected: last + 1, found });
            }
            last = last.max(found);
        }
        if last == before && end > last {
            return Err(NotTaken::Gap { log, expected: last + 1, found: end });
        }
        self.sql.begin()?;
        match self.write(page) {
            Ok(()) => {
                self.sql.commit()?;
                Ok(Reached { log: LogId(log), last, end })
            }
            Err(error) => {
                self.sql.rollback();
                Err(error)
            }
        }
    }

    /// A number that was given to a name is never given to another one.
    fn compare_names(&mut self, page: &Json) -> Result<(), NotTaken> {
        let names = format!("SELECT {} FROM word", WORD.list());
        let known = self.sql.query(&names, &[])?;
        let known: HashMap<_, _> =
            known.into_iter().map(|row| ((row[0].as_int(), row[1].as_int()), row)).collect();
        for row in rows_of(page, &WORD)? {
            let before = known.get(&(row[0].as_int(), row[1].as_int()));
            if let Some(before) = before.filter(|before| **before != row) {
                let [before, now] = [before, &row].map(|row| row[2].as_text());
                return Err(NotTaken::Another(format!(
                    "the number of `{before}` is that of `{now}`"
                )));
            }
        }
        Ok(())
    }

    /// What precedes the page is what is here; a page of an older program is without.
    fn compare_before(&mut self, log: LogId, page: &Json) -> Result<(), NotTaken> {
        let Some(before) = page["before"].as_array() else { return Ok(()) };
        for there in parsed(before, &schema::EVENT)? {
            let key = event_key(log, there[1].as_int());
            let here = self.sql.pick(&schema::EVENT, &["log", "number"], &[key], Hold::Nothing)?;
            if here.first().is_some_and(|here| *here != there) {
                let number = there[1].as_int();
                return Err(NotTaken::Another(format!(
                    "event {number} of its log {} is not the copy's, as if it was set back and went on",
                    log.0
                )));
            }
        }
        Ok(())
    }

    fn write(&mut self, page: &Json) -> Result<(), NotTaken> {
        let files = page["files"].as_array().map_or(&[][..], Vec::as_slice);
        let gone: Vec<Row> =
            files.iter().filter_map(Json::as_i64).map(|id| vec![id.into()]).collect();
        self.sql.put(&LIVE_KEY, Put::Delete, &gone)?;
        // Other content has other digests, and not of all kinds that were there.
        self.sql.put(&DIGESTS_KEY, Put::Delete, &gone)?;
        for table in TABLES {
            let rows = rows_of(page, table)?;
            self.sql.put(table, Put::Upsert, &rows)?;
        }
        for (table, kind) in
            OF_LINK.iter().filter(|(table, _)| page["tables"][table.name].is_array())
        {
            let rows = rows_of(page, table)?;
            self.sql.put(table, Put::Upsert, &rows)?;
            let link = |row: &Row| [0, 2, 3].map(|column: usize| row[column].as_int());
            for [log, from, to] in rows.iter().map(link).collect::<BTreeSet<_>>() {
                // The clock there when such a row was last written: only then they fade.
                let last =
                    "SELECT at FROM event WHERE log = ? AND kind = ? ORDER BY number DESC LIMIT 1";
                let of = [log, i64::from(kind.code())].map(Value::Int);
                let now = Time(one_int(&mut self.sql, last, &of)?);
                fade(&mut self.sql, LogId(log), (table.name, from, to), now)?;
            }
        }
        Ok(())
    }

    /// Makes the sums of what sites hold anew; before the copy takes a lost catalog's place.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.sql.begin()?;
        match migrate::fill_anew(&mut self.sql) {
            Ok(()) => Ok(self.sql.commit()?),
            Err(error) => {
                self.sql.rollback();
                Err(error.into())
            }
        }
    }
}

/// A table's rows of a page.
fn rows_of(page: &Json, table: &Table) -> Result<Vec<Row>, NotTaken> {
    let rows = page["tables"][table.name].as_array();
    parsed(rows.ok_or_else(|| no_rows(table))?, table)
}

fn no_rows(table: &Table) -> NotTaken {
    NotTaken::Nonsense(format!("rows of {}", table.name))
}

fn parsed(rows: &[Json], table: &Table) -> Result<Vec<Row>, NotTaken> {
    let cell = |value: &Json, kind: Kind| match kind {
        Kind::Int => value.as_i64().map(Value::Int),
        Kind::Text => value.as_str().map(Value::from),
        Kind::Bytes => value.as_str().and_then(crate::record::unhex).map(Value::Bytes),
    };
    let row = |row: &Json| -> Option<Row> {
        let cells = row.as_array().filter(|cells| cells.len() == table.columns.len())?;
        cells.iter().zip(table.columns).map(|(value, (_, kind))| cell(value, *kind)).collect()
    };
    rows.iter().map(row).collect::<Option<Vec<Row>>>().ok_or_else(|| no_rows(table))
}
