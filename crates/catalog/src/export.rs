//! Export: what the catalog holds, as CSV (RFC 4180) or as lines of JSON, with names instead of numbers.
//!
//! Rows are read in blocks by their keys, so an export of any size takes little memory and holds up nobody.

use crate::class::ErrorClass;
use crate::error::Error;
use crate::link::{decision_of, seen_of};
use crate::reader::{
    Reader, attempt_of, delivery_of, digest_of, event_of, receipt_of, replica_of, session_of,
};
use crate::record::{File, FileId, LogId, RuleId, SiteId, hex};
use crate::schema;
use crate::search::{PAGE_MAX, Query};
use crate::sql::{DbError, Row, Table, Value};
use crate::transfers::transfer_of;
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use std::io::{self, Write};

/// Rows read at once.
const BLOCK: usize = 1000;

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sheet {
    /// Files as they stand, those that the query finds.
    Files,
    /// All digests of files.
    Digests,
    /// All transfers.
    Transfers,
    /// All attempts that have ended.
    Attempts,
    /// All replicas.
    Replicas,
    /// All receipts, with their signed bytes in hexadecimal.
    Receipts,
    /// All multicast sessions.
    Sessions,
    /// How far their receivers are with each file.
    Deliveries,
    /// All events, log by log.
    Events,
    /// What was seen on links.
    Links,
    /// What was decided on links.
    Decisions,
}

impl Sheet {
    /// The columns, as their line of CSV.
    const fn headings(self) -> &'static str {
        match self {
            Self::Files => {
                "id,site,name,version,size,rule,state,since_us,reason,error,next_try_us,tries,blake3"
            }
            Self::Digests => "file,kind,digest",
            Self::Transfers => "id,from,to,submitted_us",
            Self::Attempts => {
                "file,number,transfer,writer,started_us,ended_us,bytes,outcome,error,session"
            }
            Self::Replicas => "file,site,path,state",
            Self::Receipts => "file,receiver,at_us,signed",
            Self::Sessions => "id,stream,rule,started_us,ended_us",
            Self::Deliveries => "session,file,receiver,state,error,at_us",
            Self::Events => "log,number,at_us,event,subject,revision,from,to,error",
            Self::Links => "log,at_us,from,to,took_us,bytes,sent,sent_again,rtt_us,connections,ip",
            Self::Decisions => {
                "log,at_us,from,to,connections,pacing_bps,rate_bps,lost_ppb,binding,why"
            }
        }
    }
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line of headings, then a line for each row.
    Csv,
    /// An object for each row, one on a line.
    Ndjson,
}

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The catalog could not be read.
    #[error(transparent)]
    Catalog(#[from] Error),
    /// What was read could not be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

impl From<DbError> for ExportError {
    fn from(error: DbError) -> Self {
        Self::Catalog(error.into())
    }
}

/// One row: headings and values, in order.
type Cells = Vec<(&'static str, Json)>;

/// Writes a sheet; says how many rows. `query` chooses among files.
pub fn export(
    reader: &mut Reader,
    sheet: Sheet,
    query: &Query,
    format: Format,
    out: &mut dyn Write,
) -> Result<u64, ExportError> {
    let names = Names::of(reader)?;
    let mut sink = Sink { format, headings: sheet.headings(), out, rows: 0 };
    if format == Format::Csv {
        // Also where no row follows: whoever reads it wants its columns.
        writeln!(sink.out, "{}", sink.headings)?;
    }
    match sheet {
        Sheet::Files => {
            let mut cursor = None;
            loop {
                let page = reader.search(query, cursor.as_ref(), PAGE_MAX)?;
                for file in &page.files {
                    sink.row(names.file(file))?;
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Sheet::Digests => walk(reader, &schema::DIGEST, |row| Ok(sink.row(digest(row)?)?))?,
        Sheet::Transfers => {
            walk(reader, &schema::TRANSFER, |row| Ok(sink.row(names.transfer(row)?)?))?;
        }
        Sheet::Attempts => {
            walk(reader, &schema::ATTEMPT, |row| Ok(sink.row(names.attempt(row)?)?))?;
        }
        Sheet::Replicas => {
            walk(reader, &schema::REPLICA, |row| Ok(sink.row(names.replica(row)?)?))?;
        }
        Sheet::Receipts => {
            walk(reader, &schema::RECEIPT, |row| Ok(sink.row(receipt(row)?)?))?;
        }
        Sheet::Sessions => {
            walk(reader, &schema::SESSION, |row| Ok(sink.row(names.session(row)?)?))?;
        }
        Sheet::Deliveries => {
            walk(reader, &schema::DELIVERY, |row| Ok(sink.row(delivery(row)?)?))?;
        }
        Sheet::Events => walk(reader, &schema::EVENT, |row| Ok(sink.row(names.event(row)?)?))?,
        Sheet::Links => walk(reader, &schema::LINK_SEEN, |row| Ok(sink.row(names.seen(row)?)?))?,
        Sheet::Decisions => {
            walk(reader, &schema::DECISION, |row| Ok(sink.row(names.decision(row)?)?))?;
        }
    }
    sink.out.flush()?;
    Ok(sink.rows)
}

/// All rows of a table, in its key's order.
fn walk(
    reader: &mut Reader,
    table: &Table,
    mut each: impl FnMut(Row) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let limit = Value::Int(BLOCK as i64);
    let mut rows = reader.sql.query(&block(table, None), std::slice::from_ref(&limit))?;
    while let Some(last) = rows.last() {
        let last = last[..table.keys].to_vec();
        for row in rows {
            each(row)?;
        }
        rows = Vec::new();
        // First what has all of the key but its last column in common with the last row, then less and less.
        for common in (0..table.keys).rev() {
            let mut at = last[..=common].to_vec();
            at.push(limit.clone());
            rows = reader.sql.query(&block(table, Some(common)), &at)?;
            if !rows.is_empty() {
                break;
            }
        }
    }
    Ok(())
}

/// Asks for a table's first rows; or for those after another one that have so many of the key's columns in common with it: one range of
/// the key, wherever it begins.
fn block(table: &Table, common: Option<usize>) -> String {
    let key: Vec<&str> = table.columns[..table.keys].iter().map(|(name, _)| *name).collect();
    let beyond = common.map_or_else(String::new, |common| {
        let same: String =
            key[..common].iter().map(|column| format!("{column} = ? AND ")).collect();
        format!("WHERE {same}{} > ? ", key[common])
    });
    let (list, name) = (table.list(), table.name);
    format!("SELECT {list} FROM {name} {beyond}ORDER BY {} LIMIT ?", key.join(", "))
}

struct Sink<'a> {
    format: Format,
    headings: &'static str,
    out: &'a mut dyn Write,
    rows: u64,
}

impl Sink<'_> {
    fn row(&mut self, cells: Cells) -> io::Result<()> {
        match self.format {
            Format::Csv => {
                debug_assert!(cells.iter().map(|(name, _)| *name).eq(self.headings.split(',')));
                let values: Vec<_> = cells.iter().map(|(_, value)| csv(value)).collect();
                writeln!(self.out, "{}", values.join(","))?;
            }
            Format::Ndjson => {
                let object: Map<_, _> =
                    cells.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                writeln!(self.out, "{}", Json::Object(object))?;
            }
        }
        self.rows += 1;
        Ok(())
    }
}

fn csv(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) if text.contains(['"', ',', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What sites, rules and writers are called.
pub struct Names {
    sites: HashMap<i64, String>,
    rules: HashMap<i64, String>,
    logs: HashMap<i64, String>,
}

impl Names {
    /// As they are now.
    pub fn of(reader: &mut Reader) -> Result<Self, Error> {
        Ok(Self {
            sites: reader.sites()?.into_iter().map(|(id, name)| (id.0, name)).collect(),
            rules: reader.rules()?.into_iter().map(|(id, name)| (id.0, name)).collect(),
            logs: reader.logs()?.into_iter().map(|(id, name, _)| (id.0, name)).collect(),
        })
    }

    /// A site's name.
    pub fn site(&self, id: SiteId) -> String {
        self.sites.get(&id.0).cloned().unwrap_or_else(|| id.to_string())
    }

    /// A rule's name.
    pub fn rule(&self, id: RuleId) -> String {
        self.rules.get(&id.0).cloned().unwrap_or_else(|| id.to_string())
    }

    /// The name of the daemon that writes a log.
    pub fn log(&self, id: LogId) -> String {
        self.logs.get(&id.0).cloned().unwrap_or_else(|| id.to_string())
    }

    fn file(&self, file: &File) -> Cells {
        vec![
            ("id", file.id.0.into()),
            ("site", self.site(file.site).into()),
            ("name", file.name.as_str().into()),
            ("version", file.version.into()),
            ("size", file.size.into()),
            ("rule", self.rule(file.rule).into()),
            ("state", file.state.name().into()),
            ("since_us", file.since.0.into()),
            ("reason", file.reason.map(|reason| reason.name()).into()),
            ("error", error(file.error)),
            ("next_try_us", file.next_try.map(|time| time.0).into()),
            ("tries", file.tries.into()),
            ("blake3", file.digest.as_ref().map(crate::record::Digest::hex).into()),
        ]
    }

    fn transfer(&self, row: Row) -> Result<Cells, DbError> {
        let transfer = transfer_of(row)?;
        Ok(vec![
            ("id", transfer.id.0.into()),
            ("from", self.site(transfer.from).into()),
            ("to", self.site(transfer.to).into()),
            ("submitted_us", transfer.submitted.0.into()),
        ])
    }

    fn session(&self, row: Row) -> Result<Cells, DbError> {
        let session = session_of(row)?;
        let rule = Some(session.rule).filter(|rule| *rule != RuleId(0));
        Ok(vec![
            ("id", session.id.0.into()),
            ("stream", session.stream.0.into()),
            ("rule", rule.map(|rule| self.rule(rule)).into()),
            ("started_us", session.started.0.into()),
            ("ended_us", session.ended.map(|time| time.0).into()),
        ])
    }

    fn attempt(&self, row: Row) -> Result<Cells, DbError> {
        let attempt = attempt_of(row)?;
        Ok(vec![
            ("file", attempt.file.0.into()),
            ("number", attempt.number.into()),
            ("transfer", attempt.transfer.map(|transfer| transfer.0).into()),
            ("writer", self.log(attempt.writer).into()),
            ("started_us", attempt.started.0.into()),
            ("ended_us", attempt.ended.0.into()),
            ("bytes", attempt.bytes.into()),
            ("outcome", attempt.outcome.name().into()),
            ("error", error(attempt.error)),
            ("session", attempt.session.into()),
        ])
    }

    fn replica(&self, row: Row) -> Result<Cells, DbError> {
        let replica = replica_of(row)?;
        Ok(vec![
            ("file", replica.file.0.into()),
            ("site", self.site(replica.site).into()),
            ("path", replica.path.into()),
            ("state", replica.state.name().into()),
        ])
    }

    fn seen(&self, row: Row) -> Result<Cells, DbError> {
        let log = LogId(row[0].as_int());
        let seen = seen_of(row)?;
        Ok(vec![
            ("log", self.log(log).into()),
            ("at_us", seen.at.0.into()),
            ("from", self.site(seen.from).into()),
            ("to", self.site(seen.to).into()),
            ("took_us", seen.took_us.into()),
            ("bytes", seen.bytes.into()),
            ("sent", seen.sent.into()),
            ("sent_again", seen.sent_again.into()),
            ("rtt_us", seen.rtt_us.into()),
            ("connections", seen.connections.into()),
            ("ip", seen.ip.into()),
        ])
    }

    fn decision(&self, row: Row) -> Result<Cells, DbError> {
        let log = LogId(row[0].as_int());
        let decision = decision_of(row)?;
        Ok(vec![
            ("log", self.log(log).into()),
            ("at_us", decision.at.0.into()),
            ("from", self.site(decision.from).into()),
            ("to", self.site(decision.to).into()),
            ("connections", decision.connections.into()),
            ("pacing_bps", decision.pacing_bps.into()),
            ("rate_bps", decision.rate_bps.into()),
            ("lost_ppb", decision.lost_ppb.into()),
            ("binding", decision.binding.into()),
            ("why", decision.why.into()),
        ])
    }

    fn event(&self, row: Row) -> Result<Cells, DbError> {
        let event = event_of(row)?;
        Ok(vec![
            ("log", self.log(event.log).into()),
            ("number", event.number.into()),
            ("at_us", event.at.0.into()),
            ("event", event.kind.name().into()),
            ("subject", event.subject.into()),
            ("revision", event.revision.0.into()),
            ("from", event.from.map(|state| state.name()).into()),
            ("to", event.to.map(|state| state.name()).into()),
            ("error", error(event.error)),
        ])
    }
}

fn digest(row: Row) -> Result<Cells, DbError> {
    let (FileId(file), digest) = digest_of(row)?;
    Ok(vec![
        ("file", file.into()),
        ("kind", digest.kind().name().into()),
        ("digest", digest.hex().into()),
    ])
}

fn delivery(row: Row) -> Result<Cells, DbError> {
    let at = row[5].as_int();
    let delivery = delivery_of(row)?;
    Ok(vec![
        ("session", delivery.session.0.into()),
        ("file", delivery.file.0.into()),
        ("receiver", hex(&delivery.receiver).into()),
        ("state", delivery.state.name().into()),
        ("error", error(delivery.error)),
        ("at_us", at.into()),
    ])
}

fn receipt(row: Row) -> Result<Cells, DbError> {
    let receipt = receipt_of(row)?;
    let FileId(file) = receipt.file;
    Ok(vec![
        ("file", file.into()),
        ("receiver", hex(&receipt.receiver).into()),
        ("at_us", receipt.at.0.into()),
        ("signed", hex(&receipt.signed).into()),
    ])
}

fn error(class: Option<ErrorClass>) -> Json {
    class.map(|class| class.name()).into()
}

#[cfg(test)]
mod tests {
    use super::block;
    use crate::migrate::{BeforeMigration, migrate};
    use crate::record::Time;
    use crate::schema;
    use crate::sql::{Sql as _, Value};
    use crate::sqlite::{Access, Sqlite};

    #[test]
    fn each_block_is_one_range_of_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let mut sql = Sqlite::open(&folder.path().join("c.db"), Access::Write).unwrap();
        migrate(&mut sql, Time(1), &BeforeMigration::Refuse).unwrap();
        for (table, common, range) in [
            (&schema::EVENT, 0, "(log>?)"),
            (&schema::EVENT, 1, "(log=? AND number>?)"),
            (&schema::LINK_SEEN, 2, "(log=? AND at=? AND origin>?)"),
        ] {
            let text = format!("EXPLAIN QUERY PLAN {}", block(table, Some(common)));
            let plan = sql.query(&text, &vec![Value::Int(1); common + 2]).unwrap();
            let [only] = &plan[..] else { panic!("{plan:?}") };
            assert!(only[3].as_text().ends_with(range), "{plan:?}");
        }
    }
}
