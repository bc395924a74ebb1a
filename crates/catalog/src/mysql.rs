//! MariaDB and MySQL, which several daemons may share.
//!
//! Statements travel as text with their values written out, for the server's prepared statements cannot take a list of any
//! length, and a round trip for each row costs more than reading the text. No value can end its literal: numbers
//! are written as digits, text and bytes as hexadecimal.
//!
//! What gives no rows is held until something is asked, or committed, and travels with that: a batch costs as many round trips as it has
//! questions, and one. An error of what was held is that of what it travelled with; either way the transaction is rolled back.

use crate::record::hex;
use crate::schema::LIVE;
use crate::server::{Waiter, no_copy};
use crate::sql::{DbError, Dialect, Hold, Put, Row, Sql, Table, Value};
use crate::sqlite::Access;
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, MySqlConnection, Row as _, TypeInfo as _,
    ValueRef as _,
};
use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr as _;

/// Bytes of one statement, about: far below the server's default `max_allowed_packet` of 16 MiB.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// What a session is told. Locks of ranges (the default isolation) would make daemons wait for each other. MariaDB makes a
/// join of a list of a thousand values, and reads the whole table for it. A transaction that a client left open, which is gone, holds its
/// rows no longer than a minute; MySQL has no such limit.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION' \
    /*M!100303 , SESSION in_predicate_conversion_threshold = 0, SESSION idle_transaction_timeout = 60 */";
/// What a reader's session is told besides.
const READER: &str = "SET SESSION TRANSACTION READ ONLY";

pub(crate) struct Mysql {
    options: MySqlConnectOptions,
    access: Access,
    waiter: Waiter,
    connection: MySqlConnection,
    /// Statements that were not sent yet.
    held: String,
}

impl Mysql {
    pub(crate) fn open(url: &str, access: Access) -> Result<Self, DbError> {
        let options = MySqlConnectOptions::from_str(url)?.disable_statement_logging();
        let waiter = Waiter::new()?;
        let connection = connect(&waiter, &options, access)?;
        Ok(Self { options, access, waiter, connection, held: String::new() })
    }

    fn rows(&mut self, text: &str) -> Result<Vec<Row>, DbError> {
        let text = self.with_held(text);
        let query =
            async { sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut self.connection).await };
        let rows = self.waiter.answer(query)?;
        rows.iter().map(row).collect()
    }

    fn execute(&mut self, text: &str) -> Result<(), DbError> {
        let text = self.with_held(text);
        let query =
            async { sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.connection).await };
        self.waiter.answer(query).map(drop)
    }

    /// Lets a statement travel with the next one.
    fn hold(&mut self, text: &str) -> Result<(), DbError> {
        if self.held.len() + text.len() > TEXT_BYTES_MAX {
            return self.execute(text);
        }
        self.held = self.with_held(text);
        Ok(())
    }

    fn with_held(&mut self, text: &str) -> String {
        let mut held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            held.push(';');
        }
        held + text
    }
}

fn connect(
    waiter: &Waiter,
    options: &MySqlConnectOptions,
    access: Access,
) -> Result<MySqlConnection, DbError> {
    let mut connection = waiter.connect(options.connect())?;
    waiter.answer(async { sqlx::raw_sql(SESSION).execute(&mut connection).await })?;
    if access == Access::Read {
        waiter.answer(async { sqlx::raw_sql(READER).execute(&mut connection).await })?;
    }
    Ok(connection)
}

fn row(row: &MySqlRow) -> Result<Row, DbError> {
    let mut values = Vec::with_capacity(row.len());
    for (index, column) in row.columns().iter().enumerate() {
        values.push(if row.try_get_raw(index)?.is_null() {
            Value::Null
        } else if column.type_info().name().contains("INT") {
            Value::Int(row.try_get(index)?)
        } else {
            Value::Bytes(row.try_get_unchecked(index)?)
        });
    }
    Ok(values)
}

fn literal(text: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = match value {
        Value::Null => write!(text, "NULL"),
        Value::Int(value) => write!(text, "{value}"),
        Value::Text(value) => write!(text, "X'{}'", hex(value.as_bytes())),
        Value::Bytes(value) => write!(text, "X'{}'", hex(value)),
    };
}

/// The statement with its arguments written out. Our statements hold no other question mark.
fn written(sql: &str, args: &[Value]) -> String {
    let mut text = String::with_capacity(sql.len() + 32 * args.len());
    let mut args = args.iter();
    for (index, part) in sql.split('?').enumerate() {
        if index > 0 {
            literal(&mut text, args.next().expect("an argument for each question mark"));
        }
        text += part;
    }
    text
}

/// `(1, 2)`
fn tuple(text: &mut String, values: &[Value]) {
    for (index, value) in values.iter().enumerate() {
        text.push_str(if index == 0 { "(" } else { "," });
        literal(text, value);
    }
    text.push(')');
}

fn update(text: &mut String, table: &Table, row: &[Value]) {
    let _ = write!(text, "UPDATE {} SET ", table.name);
    for (index, ((column, _), value)) in table.columns.iter().zip(row).enumerate().skip(table.keys)
    {
        let _ = write!(text, "{}{column}=", if index == table.keys { "" } else { "," });
        literal(text, value);
    }
    for (index, ((column, _), value)) in table.columns.iter().zip(row).enumerate().take(table.keys)
    {
        let _ = write!(text, "{}{column}=", if index == 0 { " WHERE " } else { " AND " });
        literal(text, value);
    }
}

/// Statements that write these rows, each within the length that servers take.
fn put_texts(table: &Table, how: Put, rows: &[Row]) -> Vec<String> {
    let (name, list) = (table.name, table.list());
    let keys: Vec<_> = table.columns[..table.keys].iter().map(|(name, _)| *name).collect();
    // A row of the live queue is there whenever it is written, and written whole: one statement for all is less to read than one for each.
    let how = if table.name == LIVE.name && how == Put::Update { Put::Upsert } else { how };
    let (head, between, tail) = match how {
        Put::Insert => (format!("INSERT INTO {name} ({list}) VALUES "), ",", String::new()),
        Put::Upsert => {
            let set: Vec<_> = table
                .rest()
                .iter()
                .map(|(column, _)| format!("{column}=VALUES({column})"))
                .collect();
            let tail = format!(" ON DUPLICATE KEY UPDATE {}", set.join(","));
            (format!("INSERT INTO {name} ({list}) VALUES "), ",", tail)
        }
        Put::Update => (String::new(), ";", String::new()),
        Put::Delete => {
            (format!("DELETE FROM {name} WHERE ({}) IN (", keys.join(",")), ",", ")".to_owned())
        }
    };
    let mut texts = Vec::new();
    let mut text = head.clone();
    for row in rows {
        if text.len() > TEXT_BYTES_MAX {
            texts.push(std::mem::replace(&mut text, head.clone()) + &tail);
        }
        if text.len() > head.len() {
            text += between;
        }
        match how {
            Put::Update => update(&mut text, table, row),
            _ => tuple(&mut text, row),
        }
    }
    texts.push(text + &tail);
    texts
}

impl Sql for Mysql {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn begin(&mut self) -> Result<(), DbError> {
        self.hold("START TRANSACTION")
    }

    fn begin_read(&mut self) -> Result<(), DbError> {
        // The level is that of the next transaction alone.
        self.hold(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;\
             START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        )
    }

    fn commit(&mut self) -> Result<(), DbError> {
        self.execute("COMMIT")
    }

    fn rollback(&mut self) {
        self.held.clear();
        drop(self.execute("ROLLBACK"));
    }

    fn query(&mut self, sql: &str, args: &[Value]) -> Result<Vec<Row>, DbError> {
        self.rows(&written(sql, args))
    }

    fn run(&mut self, sql: &str, args: &[Value]) -> Result<(), DbError> {
        self.execute(&written(sql, args))
    }

    fn pick(
        &mut self,
        table: &Table,
        by: &[&str],
        keys: &[Row],
        hold: Hold,
    ) -> Result<Vec<Row>, DbError> {
        let mut found = Vec::new();
        let head =
            format!("SELECT {} FROM {} WHERE ({}) IN (", table.list(), table.name, by.join(","));
        let order = by.join(",");
        let tail =
            format!(") ORDER BY {order}{}", if hold == Hold::Rows { " FOR UPDATE" } else { "" });
        let mut text = head.clone();
        for key in keys {
            if text.len() > TEXT_BYTES_MAX {
                let whole = std::mem::replace(&mut text, head.clone()) + &tail;
                found.append(&mut self.rows(&whole)?);
            }
            if text.len() > head.len() {
                text.push(',');
            }
            tuple(&mut text, key);
        }
        found.append(&mut self.rows(&(text + &tail))?);
        Ok(found)
    }

    fn put(&mut self, table: &Table, how: Put, rows: &[Row]) -> Result<(), DbError> {
        put_texts(table, how, rows).into_iter().try_for_each(|text| self.hold(&text))
    }

    fn migrates(&mut self, migrates: bool) {
        self.waiter.migrates(migrates);
    }

    fn copy_to(&mut self, _file: &Path) -> Result<(), DbError> {
        Err(no_copy("mariadb-dump or mysqldump"))
    }

    fn reopen(&mut self) -> Result<(), DbError> {
        self.held.clear();
        let waiter = Waiter::new()?;
        self.connection = connect(&waiter, &self.options, self.access)?;
        self.waiter = waiter;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{put_texts, written};
    use crate::schema::{DELIVERY, DIGEST};
    use crate::sql::{Put, Value};

    #[test]
    fn no_value_ends_its_literal() {
        let odd = "x'; DROP TABLE file; --";
        let text =
            written("SELECT id FROM word WHERE kind = ? AND name = ?", &[1.into(), odd.into()]);
        assert!(
            text.starts_with("SELECT id FROM word WHERE kind = 1 AND name = X'78273b"),
            "{text}"
        );
        assert!(!text.contains("DROP"));
        let row = vec![1.into(), 2.into(), Value::Bytes(vec![39])];
        let texts = put_texts(&DIGEST, Put::Insert, &[row.clone(), row.clone()]);
        assert_eq!(
            texts,
            ["INSERT INTO digest (file, kind, value) VALUES (1,2,X'27'),(1,2,X'27')"]
        );
        let texts = put_texts(&DELIVERY, Put::Delete, &[row]);
        assert_eq!(texts, ["DELETE FROM delivery WHERE (session,file,receiver) IN ((1,2,X'27'))"]);
    }

    #[test]
    fn a_long_list_is_several_statements() {
        let row = |n: i64| vec![n.into(), 1.into(), Value::Bytes(vec![7; 1 << 20])];
        let rows: Vec<_> = (0..5).map(row).collect();
        let texts = put_texts(&DIGEST, Put::Upsert, &rows);
        assert_eq!(texts.len(), 3);
        for text in texts {
            assert!(text.ends_with("') ON DUPLICATE KEY UPDATE value=VALUES(value)"));
            assert!(text.starts_with("INSERT INTO digest (file, kind, value) VALUES ("));
        }
        let update = put_texts(&DIGEST, Put::Update, &[vec![1.into(), 2.into(), 3.into()]]);
        assert_eq!(update, ["UPDATE digest SET value=3 WHERE file=1 AND kind=2"]);
    }
}
