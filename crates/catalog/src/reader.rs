//! Reading a catalog: on a connection of its own, beside the writer, from what is committed.
//!
//! Nothing here scans a table that grows: counts are sums of the writers' counters, everything else is found by a key and
//! has a limit.

use crate::class::ErrorClass;
use crate::error::{Error, OpenError};
use crate::life::{Reason, State};
use crate::lookup::Called;
use crate::migrate;
use crate::place::CatalogUrl;
use crate::record::{
    self, Attempt, Count, Delivery, DeliveryState, Digest, DigestKind, Event, EventKind, File,
    FileId, LogId, Outcome, Receipt, Replica, ReplicaState, Revision, RuleId, Session, SessionId,
    SiteId, Time, TransferId,
};
use crate::schema;
use crate::sql::{Columns, DbError, Row, Sql, Table, Value, one_int};
use crate::sqlite::Access;
use crate::words::{self, WordKind};
use downpour_proto::StreamId;

/// A catalog, open for reading.
pub struct Reader {
    pub(crate) sql: Box<dyn Sql>,
}

/// What a file's row is made of, history and live queue together.
pub(crate) const FILE_COLUMNS: &str = "f.id, f.site, f.name, f.version, f.size, f.rule, \
    COALESCE(l.state, f.state), COALESCE(l.revision, f.revision), COALESCE(l.since, f.since), \
    COALESCE(l.reason, 0), COALESCE(l.error, 0), COALESCE(l.tries, f.tries), \
    COALESCE(l.turn, 0), f.origin, d.value";

impl Reader {
    /// Opens a catalog that is there; nothing is made and nothing is migrated.
    pub fn open(url: &CatalogUrl) -> Result<Self, OpenError> {
        let mut sql = url.connect(Access::Read)?;
        migrate::check(&mut *sql)?;
        Ok(Self { sql })
    }

    /// One file.
    pub fn file(&mut self, id: FileId) -> Result<Option<File>, Error> {
        let rows = self.sql.query(&select("file f", "f.id = ?"), &[id.0.into()])?;
        Ok(rows.into_iter().next().map(file_of).transpose()?)
    }

    /// Whether a file was taken in as it lies: it has no stamp.
    pub fn is_adopted(&mut self, file: FileId) -> Result<bool, Error> {
        let text = "SELECT COUNT(*) FROM file WHERE id = ? AND stamp = 0";
        Ok(one_int(&mut *self.sql, text, &[file.0.into()])? != 0)
    }

    /// All versions of a name, oldest first.
    pub fn versions(&mut self, site: SiteId, name: &str) -> Result<Vec<File>, Error> {
        let text = select("file f", "f.name = ? AND f.site = ?") + " ORDER BY f.version";
        let rows = self.sql.query(&text, &[name.into(), site.0.into()])?;
        Ok(rows.into_iter().map(file_of).collect::<Result<_, _>>()?)
    }

    /// The file of this name and version.
    pub fn file_called(&mut self, called: Called<'_>) -> Result<Option<File>, Error> {
        let (site, name, version) = called;
        let text = select("file f", "f.name = ? AND f.site = ? AND f.version = ?");
        let rows = self.sql.query(&text, &[name.into(), site.0.into(), version.into()])?;
        Ok(rows.into_iter().next().map(file_of).transpose()?)
    }

    /// How many files stand where, without looking at one of them.
    pub fn counts(&mut self) -> Result<Vec<Count>, Error> {
        // PostgreSQL and MySQL sum integers into decimals, which are no type of ours.
        let [files, bytes] = ["files", "bytes"].map(|column| self.sql.dialect().sum(column));
        let text = format!(
            "SELECT site, rule, state, {files}, {bytes} FROM counter \
             GROUP BY site, rule, state ORDER BY site, rule, state"
        );
        let count = |row| -> Result<Count, DbError> {
            let mut row = Columns::of(row);
            Ok(Count {
                site: SiteId(row.int()?),
                rule: RuleId(row.int()?),
                state: row.code(State::from_code)?,
                files: row.int()?,
                bytes: row.int()?,
            })
        };
        let rows = self.sql.query(&text, &[])?;
        let counts = rows.into_iter().map(count).collect::<Result<Vec<_>, _>>()?;
        Ok(counts.into_iter().filter(|count| count.files != 0).collect())
    }

    /// Events of a log after number `after`, oldest first. A number that is missing is a gap, and means damage.
    pub fn events(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<Event>, Error> {
        let text = format!(
            "SELECT {} FROM event WHERE log = ? AND number > ? ORDER BY number LIMIT ?",
            schema::EVENT.list()
        );
        let args = [log.0.into(), after.into(), (limit as i64).into()];
        let rows = self.sql.query(&text, &args)?;
        Ok(rows.into_iter().map(event_of).collect::<Result<_, _>>()?)
    }

    /// The writers and where their logs end.
    pub fn logs(&mut self) -> Result<Vec<(LogId, String, i64)>, Error> {
        Ok(logs(&mut *self.sql)?)
    }

    /// Names of the sites.
    pub fn sites(&mut self) -> Result<Vec<(SiteId, String)>, Error> {
        let words = words::all(&mut *self.sql, WordKind::Site)?;
        Ok(words.into_iter().map(|(id, name)| (SiteId(id), name)).collect())
    }

    /// The site of this name.
    pub fn site_called(&mut self, name: &str) -> Result<Option<SiteId>, Error> {
        let site = self.sites()?.into_iter().find(|(_, known)| known == name);
        Ok(site.map(|(id, _)| id))
    }

    /// Names of the rules.
    pub fn rules(&mut self) -> Result<Vec<(RuleId, String)>, Error> {
        let words = words::all(&mut *self.sql, WordKind::Rule)?;
        Ok(words.into_iter().map(|(id, name)| (RuleId(id), name)).collect())
    }

    /// The attempts on a file that have ended, first one first.
    pub fn attempts(&mut self, file: FileId) -> Result<Vec<Attempt>, Error> {
        self.of_file(&schema::ATTEMPT, file, attempt_of)
    }

    /// The last so many of them, first one first.
    pub fn last_attempts(&mut self, file: FileId, most: usize) -> Result<Vec<Attempt>, Error> {
        let list = schema::ATTEMPT.list();
        let text =
            format!("SELECT {list} FROM attempt WHERE file = ? ORDER BY number DESC LIMIT ?");
        let rows = self.sql.query(&text, &[file.0.into(), (most as i64).into()])?;
        Ok(rows.into_iter().rev().map(attempt_of).collect::<Result<_, _>>()?)
    }

    /// A file's replicas.
    pub fn replicas(&mut self, file: FileId) -> Result<Vec<Replica>, Error> {
        self.of_file(&schema::REPLICA, file, replica_of)
    }

    /// A file's digests.
    pub fn digests(&mut self, file: FileId) -> Result<Vec<Digest>, Error> {
        self.of_file(&schema::DIGEST, file, |row| digest_of(row).map(|(_, digest)| digest))
    }

    /// The receipts for a file.
    pub fn receipts(&mut self, file: FileId) -> Result<Vec<Receipt>, Error> {
        self.of_file(&schema::RECEIPT, file, receipt_of)
    }

    /// How far each receiver of a session is with each file.
    pub fn deliveries(&mut self, session: SessionId) -> Result<Vec<Delivery>, Error> {
        let text = format!(
            "SELECT {} FROM delivery WHERE session = ? ORDER BY file, receiver",
            schema::DELIVERY.list()
        );
        let rows = self.sql.query(&text, &[session.0.into()])?;
        Ok(rows.into_iter().map(delivery_of).collect::<Result<_, _>>()?)
    }

    fn of_file<T>(
        &mut self,
        table: &Table,
        file: FileId,
        parse: fn(Row) -> Result<T, DbError>,
    ) -> Result<Vec<T>, Error> {
        let (list, name, second) = (table.list(), table.name, table.columns[1].0);
        let text = format!("SELECT {list} FROM {name} WHERE file = ? ORDER BY {second}");
        let rows = self.sql.query(&text, &[file.0.into()])?;
        Ok(rows.into_iter().map(parse).collect::<Result<_, _>>()?)
    }
}

/// The writers of a catalog of whatever version, and where their logs end.
pub(crate) fn logs(sql: &mut dyn Sql) -> Result<Vec<(LogId, String, i64)>, DbError> {
    let mut logs = Vec::new();
    for (id, name) in words::all(sql, WordKind::Writer)? {
        let last = "SELECT COALESCE(MAX(number), 0) FROM event WHERE log = ?";
        logs.push((LogId(id), name, one_int(sql, last, &[id.into()])?));
    }
    Ok(logs)
}

/// A SELECT of whole files; `from` gives the alias `f`.
pub(crate) fn select(from: &str, condition: &str) -> String {
    format!(
        "SELECT {FILE_COLUMNS} FROM {from} LEFT JOIN live l ON l.file = f.id \
         LEFT JOIN digest d ON d.file = f.id AND d.kind = 1 WHERE {condition}"
    )
}

/// From a row of [`select`].
pub(crate) fn file_of(mut row: Row) -> Result<File, DbError> {
    let digest = match row.pop() {
        Some(Value::Bytes(value)) => Digest::new(DigestKind::Blake3, &value),
        _ => None,
    };
    let mut row = Columns::of(row);
    let (id, site, name) = (FileId(row.int()?), SiteId(row.int()?), row.text()?);
    let (version, size, rule) = (row.int()?, row.size()?, RuleId(row.int()?));
    let (state, revision) = (row.code(State::from_code)?, Revision(row.int()?));
    let since = Time(row.int()?);
    let reason = row.maybe(Reason::from_code)?;
    let error = row.maybe(ErrorClass::from_code)?;
    let tries = u32::try_from(row.int()?).map_err(|e| DbError::damaged(e.to_string()))?;
    let turn = row.int()?;
    let taken_in = record::taken_in(id, row.int()?);
    let next_try = (state == State::Waiting).then_some(Time(turn));
    let file = File {
        id,
        site,
        name,
        version,
        taken_in,
        size,
        rule,
        state,
        revision,
        since,
        reason,
        next_try,
        error,
        tries,
        digest,
    };
    Ok(file)
}

pub(crate) fn digest_of(row: Row) -> Result<(FileId, Digest), DbError> {
    let mut row = Columns::of(row);
    let file = FileId(row.int()?);
    let (kind, value) = (row.code(DigestKind::from_code)?, row.bytes()?);
    let digest = Digest::new(kind, &value);
    Ok((file, digest.ok_or_else(|| DbError::damaged(format!("no {kind}")))?))
}

pub(crate) fn receipt_of(row: Row) -> Result<Receipt, DbError> {
    let mut row = Columns::of(row);
    let (file, receiver) = (FileId(row.int()?), row.bytes()?);
    Ok(Receipt { file, receiver, at: Time(row.int()?), signed: row.bytes()? })
}

pub(crate) fn attempt_of(row: Row) -> Result<Attempt, DbError> {
    let mut row = Columns::of(row);
    let file = FileId(row.int()?);
    let number = u32::try_from(row.int()?).map_err(|e| DbError::damaged(e.to_string()))?;
    Ok(Attempt {
        file,
        number,
        transfer: row.maybe(|id| Some(TransferId(id)))?,
        writer: LogId(row.int()?),
        started: Time(row.int()?),
        ended: Time(row.int()?),
        bytes: row.size()?,
        outcome: row.code(Outcome::from_code)?,
        error: row.maybe(ErrorClass::from_code)?,
        session: Some(row.text()?).filter(|session| !session.is_empty()),
    })
}

pub(crate) fn replica_of(row: Row) -> Result<Replica, DbError> {
    let mut row = Columns::of(row);
    let (file, site, path) = (FileId(row.int()?), SiteId(row.int()?), row.text()?);
    Ok(Replica { file, site, path, state: row.code(ReplicaState::from_code)? })
}

pub(crate) fn session_of(row: Row) -> Result<Session, DbError> {
    let mut row = Columns::of(row);
    let id = SessionId(row.int()?);
    let stream = u32::try_from(row.int()?).map_err(|e| DbError::damaged(e.to_string()))?;
    Ok(Session {
        id,
        stream: StreamId(stream),
        rule: RuleId(row.int()?),
        started: Time(row.int()?),
        ended: row.maybe(|time| Some(Time(time)))?,
    })
}

pub(crate) fn delivery_of(row: Row) -> Result<Delivery, DbError> {
    let mut row = Columns::of(row);
    let (session, file) = (SessionId(row.int()?), FileId(row.int()?));
    let (receiver, state) = (row.bytes()?, row.code(DeliveryState::from_code)?);
    Ok(Delivery { session, file, receiver, state, error: row.maybe(ErrorClass::from_code)? })
}

pub(crate) fn event_of(row: Row) -> Result<Event, DbError> {
    let mut row = Columns::of(row);
    Ok(Event {
        log: LogId(row.int()?),
        number: row.int()?,
        at: Time(row.int()?),
        kind: row.code(EventKind::from_code)?,
        subject: row.int()?,
        revision: Revision(row.int()?),
        from: row.maybe(State::from_code)?,
        to: row.maybe(State::from_code)?,
        error: row.maybe(ErrorClass::from_code)?,
    })
}
