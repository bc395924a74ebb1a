//! The face that the three databases have in common, so that everything above is written once.
//!
//! [`Sql`] has two halves. `query` and `run` take plain SQL that all three understand, with `?` for each
//! argument. `pick` and `put` move many rows of one table at once; each database does that in its own
//! fastest way (a loop over a prepared statement, arrays, one long literal statement).
//!
//! Values are integers, text and bytes only: what all three store and compare alike. Codes, flags and times
//! are integers; "none" is 0.

use std::fmt;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Text,
    Bytes,
}

/// A table, or the part of its columns that one kind of statement touches. The first `keys` columns are its key.
#[derive(Debug)]
pub(crate) struct Table {
    pub name: &'static str,
    pub keys: usize,
    pub columns: &'static [(&'static str, Kind)],
}

impl Table {
    /// The columns' names, with commas.
    pub(crate) fn list(&self) -> String {
        self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// The columns that are no key.
    pub(crate) fn rest(&self) -> &'static [(&'static str, Kind)] {
        &self.columns[self.keys..]
    }

    pub(crate) fn kind(&self, column: &str) -> Kind {
        let found = self.columns.iter().find(|(name, _)| *name == column);
        found.expect("our own statements name our own columns").1
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    /// Only read, where a join found nothing.
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// For our own rows, whose kinds are those of the table.
impl Value {
    pub(crate) fn as_int(&self) -> i64 {
        if let Self::Int(value) = self { *value } else { unreachable!("{self:?} is no number") }
    }

    pub(crate) fn as_text(&self) -> &str {
        if let Self::Text(text) = self { text } else { unreachable!("{self:?} is no text") }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        if let Self::Bytes(bytes) = self { bytes } else { unreachable!("{self:?} is not bytes") }
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

pub(crate) type Row = Vec<Value>;

/// Takes a row apart, column by column. A value of the wrong kind or an unknown code is damage.
pub(crate) struct Columns(std::vec::IntoIter<Value>);

impl Columns {
    pub(crate) fn of(row: Row) -> Self {
        Self(row.into_iter())
    }

    pub(crate) fn int(&mut self) -> Result<i64, DbError> {
        match self.0.next() {
            Some(Value::Int(value)) => Ok(value),
            other => Err(DbError::damaged(format!("a number was expected, not {other:?}"))),
        }
    }

    /// A count or length, which is never negative.
    pub(crate) fn size(&mut self) -> Result<u64, DbError> {
        let value = self.int()?;
        u64::try_from(value).map_err(|_| DbError::damaged(format!("{value} is no size")))
    }

    pub(crate) fn code<T>(&mut self, parse: fn(i64) -> Option<T>) -> Result<T, DbError> {
        let code = self.int()?;
        parse(code).ok_or_else(|| {
            let what = std::any::type_name::<T>().rsplit("::").next().unwrap_or_default();
            DbError::damaged(format!("{code} is no code of {what}"))
        })
    }

    /// A code, or none for 0.
    pub(crate) fn maybe<T>(&mut self, parse: fn(i64) -> Option<T>) -> Result<Option<T>, DbError> {
        if let Some(Value::Int(0)) = self.0.as_slice().first() {
            self.0.next();
            return Ok(None);
        }
        self.code(parse).map(Some)
    }

    pub(crate) fn text(&mut self) -> Result<String, DbError> {
        match self.0.next() {
            Some(Value::Text(text)) => Ok(text),
            // MySQL keeps text that is compared byte by byte as bytes.
            Some(Value::Bytes(bytes)) => {
                String::from_utf8(bytes).map_err(|e| DbError::damaged(e.to_string()))
            }
            other => Err(DbError::damaged(format!("text was expected, not {other:?}"))),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, DbError> {
        match self.0.next() {
            Some(Value::Bytes(bytes)) => Ok(bytes),
            other => Err(DbError::damaged(format!("bytes were expected, not {other:?}"))),
        }
    }
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// New rows; a key that is there is a conflict.
    Insert,
    /// New rows, or new values for the keys that are there.
    Upsert,
    /// New values for keys that are there.
    Update,
    /// Removes the keys; the rows hold keys alone.
    Delete,
}

/// Which rows `pick` is to hold until the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// None: they are only read.
    Nothing,
    /// These, so that no other writer changes them meanwhile.
    Rows,
}

/// Why the database did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DbError {
    /// Another writer was first; from the start again, it goes otherwise.
    Conflict(String),
    /// The connection is gone.
    Lost(String),
    /// It has no room to write.
    Full(String),
    /// What is stored is not what we store.
    Damaged(String),
    /// Anything else, in the database's words.
    Other(String),
}

impl DbError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict(text)
            | Self::Lost(text)
            | Self::Full(text)
            | Self::Damaged(text)
            | Self::Other(text) => f.write_str(text),
        }
    }
}

/// Which database, for the few words in which they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

impl Dialect {
    /// Sum of a column, as an integer.
    pub(crate) fn sum(self, column: &str) -> String {
        match self {
            Self::Sqlite => format!("SUM({column})"),
            Self::Postgres => format!("CAST(SUM({column}) AS BIGINT)"),
            Self::Mysql => format!("CAST(SUM({column}) AS SIGNED)"),
        }
    }

    /// What follows a query for work, so that several daemons do not wait for each other.
    pub(crate) const fn skip_locked(self) -> &'static str {
        match self {
            // One writer at a time anyhow.
            Self::Sqlite => "",
            Self::Postgres | Self::Mysql => " FOR UPDATE SKIP LOCKED",
        }
    }
}

/// One connection.
pub(crate) trait Sql: Send {
    fn dialect(&self) -> Dialect;

    /// Opens a transaction that will write.
    fn begin(&mut self) -> Result<(), DbError>;
    /// Opens one that only reads: all that it sees is of one moment. It ends by [`Sql::rollback`].
    fn begin_read(&mut self) -> Result<(), DbError>;
    /// Makes it durable.
    fn commit(&mut self) -> Result<(), DbError>;
    /// Forgets it. A connection that cannot do even that is lost, and says so at its next use.
    fn rollback(&mut self);

    /// Rows of a SELECT.
    fn query(&mut self, sql: &str, args: &[Value]) -> Result<Vec<Row>, DbError>;
    /// A statement without rows.
    fn run(&mut self, sql: &str, args: &[Value]) -> Result<(), DbError>;

    /// All columns of the rows whose `by` columns are among `keys`.
    fn pick(
        &mut self,
        table: &Table,
        by: &[&str],
        keys: &[Row],
        hold: Hold,
    ) -> Result<Vec<Row>, DbError>;
    /// Writes many rows.
    fn put(&mut self, table: &Table, how: Put, rows: &[Row]) -> Result<(), DbError>;

    /// Says that the statements which follow are a migration's, and take their time; or no longer.
    fn migrates(&mut self, migrates: bool);
    /// Writes all of a consistent copy to a file that is not there or empty, where the database can do that from here.
    fn copy_to(&mut self, file: &std::path::Path) -> Result<(), DbError>;
    /// Opens the connection again after it was lost.
    fn reopen(&mut self) -> Result<(), DbError>;
}

/// Whole `query` result as one integer.
pub(crate) fn one_int(sql: &mut dyn Sql, text: &str, args: &[Value]) -> Result<i64, DbError> {
    let rows = sql.query(text, args)?;
    let row = rows.into_iter().next().ok_or_else(|| DbError::damaged(format!("no row: {text}")))?;
    Columns::of(row).int()
}
