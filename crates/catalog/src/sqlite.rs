//! SQLite: one file, no server.
//!
//! WAL with `synchronous=FULL`: a commit is on the disk when it is answered, and readers see the last one without
//! waiting for the writer. Many rows are a loop over one prepared statement, which in-process is the fastest way.
//!
//! A file that was removed or replaced while it is open would be written to as before, and all of that be gone with the process: before
//! each transaction that writes its name must still lead to it.

use crate::error::OpenError;
use crate::sql::{DbError, Dialect, Hold, Put, Row, Sql, Table, Value};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one process waits for another's commit.
const BUSY_TIME: Duration = Duration::from_secs(30);
/// Pages that one connection keeps in memory, in KiB.
const CACHE_KIB: i64 = 64 << 10;
/// Pages of the log that are gathered before they are brought into the file, 64 MiB: a page that several commits change is then written
/// there once, and what many new files touch at random in order.
const CHECKPOINT_PAGES: i64 = 16 << 10;
/// How long the last checkpoint waits for who still reads.
const CHECKPOINT_TIME: Duration = Duration::from_secs(2);
/// Statements kept prepared.
const STATEMENTS: usize = 128;

pub(crate) struct Sqlite {
    opened: Opened,
    access: Access,
    connection: Connection,
}

/// A file that is open, by its name and by what it is.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    path: PathBuf,
    /// Device and inode.
    is: (u64, u64),
}

impl Opened {
    pub(crate) fn of(path: &Path) -> Result<Self, DbError> {
        let is =
            found(path).map_err(|error| DbError::Lost(format!("{}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned(), is })
    }

    /// Whether its name still leads to it.
    pub(crate) fn check(&self) -> Result<(), DbError> {
        if found(&self.path).is_ok_and(|is| is == self.is) {
            return Ok(());
        }
        let path = self.path.display();
        let what = "was removed, moved or replaced while it is open";
        Err(DbError::Lost(format!("{path} {what}: put it back, or stop the daemon and restore it")))
    }

    /// Brings what is in the log into the file, so that this alone has all: an error, while somebody reads what is older.
    pub(crate) fn checkpoint(&self) -> Result<(), DbError> {
        self.check()?;
        let connection = connect(&self.path, Access::Read)?;
        connection.busy_timeout(CHECKPOINT_TIME)?;
        // It does not fail for who reads, but says so.
        let is_read =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
        if is_read { Err(DbError::Other("somebody still reads it".to_owned())) } else { Ok(()) }
    }
}

fn found(path: &Path) -> std::io::Result<(u64, u64)> {
    path.metadata().map(|meta| (meta.dev(), meta.ino()))
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads; the file must be there.
    Read,
    /// Reads and writes; the file is made if it is not there.
    Write,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        if access == Access::Read && !path.exists() {
            return Err(OpenError::NoFile(path.to_owned()));
        }
        let connection = connect(path, access)?;
        Ok(Self { opened: Opened::of(path)?, access, connection })
    }
}

fn connect(path: &Path, access: Access) -> Result<Connection, DbError> {
    let flags = match access {
        // Not the read-only flag: the first reader of a WAL may have to make its index.
        Access::Read => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    };
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIME)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    match access {
        Access::Read => connection.pragma_update(None, "query_only", true)?,
        Access::Write => {
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        }
    }
    Ok(connection)
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{
            CannotOpen, ConstraintViolation, DatabaseBusy, DatabaseCorrupt, DiskFull, NotADatabase,
        };
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(ConstraintViolation | DatabaseBusy) => Self::Conflict(text),
            Some(DatabaseCorrupt | NotADatabase) => Self::Damaged(text),
            Some(CannotOpen) => Self::Lost(text),
            Some(DiskFull) => Self::Full(text),
            _ => Self::Other(text),
        }
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(value) => ValueRef::Integer(*value),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn row(row: &rusqlite::Row<'_>, columns: usize) -> Result<Row, DbError> {
    let mut values = Vec::with_capacity(columns);
    for column in 0..columns {
        values.push(match row.get_ref(column)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(value) => Value::Int(value),
            ValueRef::Text(text) => {
                let text = std::str::from_utf8(text);
                Value::Text(text.map_err(|e| DbError::damaged(e.to_string()))?.to_owned())
            }
            ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
            ValueRef::Real(_) => return Err(DbError::damaged("a fraction in a column")),
        });
    }
    Ok(values)
}

fn rows(
    statement: &mut rusqlite::CachedStatement<'_>,
    args: &[Value],
    found: &mut Vec<Row>,
) -> Result<(), DbError> {
    let columns = statement.column_count();
    let mut cursor = statement.query(rusqlite::params_from_iter(args))?;
    while let Some(next) = cursor.next()? {
        found.push(row(next, columns)?);
    }
    Ok(())
}

impl Sql for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn begin(&mut self) -> Result<(), DbError> {
        self.opened.check()?;
        // Immediate: the lock is taken here, never in the middle.
        Ok(self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)?)
    }

    fn begin_read(&mut self) -> Result<(), DbError> {
        Ok(self.connection.prepare_cached("BEGIN")?.execute([]).map(drop)?)
    }

    fn commit(&mut self) -> Result<(), DbError> {
        Ok(self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)?)
    }

    fn rollback(&mut self) {
        // Fails when SQLite has rolled back by itself: the same in the end.
        drop(self.connection.execute_batch("ROLLBACK"));
    }

    fn query(&mut self, sql: &str, args: &[Value]) -> Result<Vec<Row>, DbError> {
        let mut found = Vec::new();
        rows(&mut self.connection.prepare_cached(sql)?, args, &mut found)?;
        Ok(found)
    }

    fn run(&mut self, sql: &str, args: &[Value]) -> Result<(), DbError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        Ok(statement.execute(rusqlite::params_from_iter(args)).map(drop)?)
    }

    fn pick(
        &mut self,
        table: &Table,
        by: &[&str],
        keys: &[Row],
        _hold: Hold,
    ) -> Result<Vec<Row>, DbError> {
        let by = equals(by.iter().copied(), " AND ");
        let sql = format!("SELECT {} FROM {} WHERE {by}", table.list(), table.name);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut found = Vec::new();
        for key in keys {
            rows(&mut statement, key, &mut found)?;
        }
        Ok(found)
    }

    fn put(&mut self, table: &Table, how: Put, rows: &[Row]) -> Result<(), DbError> {
        let mut statement = self.connection.prepare_cached(&put_text(table, how))?;
        for row in rows {
            let (key, rest) = row.split_at(table.keys);
            let done = match how {
                // As the text has it: the new values come before the key.
                Put::Update => {
                    statement.execute(rusqlite::params_from_iter(rest.iter().chain(key)))
                }
                _ => statement.execute(rusqlite::params_from_iter(row)),
            };
            done?;
        }
        Ok(())
    }

    fn migrates(&mut self, _migrates: bool) {}

    fn copy_to(&mut self, file: &Path) -> Result<(), DbError> {
        let name = Value::Text(file.to_string_lossy().into_owned());
        // It writes, if only to the copy.
        self.connection.pragma_update(None, "query_only", false)?;
        let copied = self.run("VACUUM INTO ?", &[name]);
        self.connection.pragma_update(None, "query_only", self.access == Access::Read)?;
        copied?;
        // VACUUM does not sync what it wrote.
        let synced = std::fs::File::open(file).and_then(|file| file.sync_all());
        synced.map_err(|error| DbError::Other(error.to_string()))
    }

    fn reopen(&mut self) -> Result<(), DbError> {
        // Another one is not made of it.
        self.opened.check()?;
        self.connection = connect(&self.opened.path, self.access)?;
        Ok(())
    }
}

fn put_text(table: &Table, how: Put) -> String {
    let (name, list) = (table.name, table.list());
    let marks = vec!["?"; table.columns.len()].join(", ");
    let keys = table.columns[..table.keys].iter().map(|(name, _)| *name);
    let rest = table.rest().iter().map(|(name, _)| *name);
    match how {
        Put::Insert => format!("INSERT INTO {name} ({list}) VALUES ({marks})"),
        Put::Upsert => {
            let set: Vec<_> = rest.map(|column| format!("{column} = excluded.{column}")).collect();
            let keys: Vec<_> = keys.collect();
            format!(
                "INSERT INTO {name} ({list}) VALUES ({marks}) ON CONFLICT ({}) DO UPDATE SET {}",
                keys.join(", "),
                set.join(", ")
            )
        }
        Put::Update => {
            format!("UPDATE {name} SET {} WHERE {}", equals(rest, ", "), equals(keys, " AND "))
        }
        Put::Delete => format!("DELETE FROM {name} WHERE {}", equals(keys, " AND ")),
    }
}

fn equals<'a>(columns: impl Iterator<Item = &'a str>, between: &str) -> String {
    columns.map(|column| format!("{column} = ?")).collect::<Vec<_>>().join(between)
}
