//! PostgreSQL, which several daemons may share.
//!
//! Many rows travel as one array for each column, so that a batch of any size is the same prepared statement. All statements
//! but the counts look rows up by keys or walk along an index; the planner is told so, for what it knows of a table in which
//! everything changes within a second is old, and plans made while a table was small must not outlive that.

use crate::server::{Waiter, no_copy};
use crate::sql::{DbError, Dialect, Hold, Kind, Put, Row, Sql, Table, Value};
use crate::sqlite::Access;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, PgConnection, Row as _, TypeInfo as _,
    ValueRef as _,
};
use std::path::Path;
use std::str::FromStr as _;

/// What each session is told of plans.
const PLANS: &str =
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
/// And of a client that is gone: a transaction that it left open holds its rows no longer than a minute. On a Unix socket the last four
/// mean nothing, and are taken.
const GONE: &str = "SET idle_in_transaction_session_timeout = 60000; SET tcp_user_timeout = 60000; \
    SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3";
/// What a writer's session is told besides.
const WRITER: &str = "SET plan_cache_mode = force_generic_plan; SET synchronous_commit = on";
/// What a reader's session is told besides: a page is the first rows of an index, not all that match, sorted.
const READER: &str = "SET enable_bitmapscan = off; SET default_transaction_read_only = on";

pub(crate) struct Postgres {
    options: PgConnectOptions,
    access: Access,
    waiter: Waiter,
    connection: PgConnection,
}

impl Postgres {
    pub(crate) fn open(url: &str, access: Access) -> Result<Self, DbError> {
        let options = PgConnectOptions::from_str(url)?.application_name("downpour");
        // Notices go nowhere: what matters comes as an error.
        let options = options.disable_statement_logging();
        let waiter = Waiter::new()?;
        let connection = connect(&waiter, &options, access)?;
        Ok(Self { options, access, waiter, connection })
    }

    fn rows(&mut self, query: Query<'_, sqlx::Postgres, PgArguments>) -> Result<Vec<Row>, DbError> {
        let rows = self.waiter.answer(query.fetch_all(&mut self.connection))?;
        rows.iter().map(row).collect()
    }

    fn raw(&mut self, text: &'static str) -> Result<(), DbError> {
        let raw = async { sqlx::raw_sql(text).execute(&mut self.connection).await };
        self.waiter.answer(raw).map(drop)
    }
}

fn connect(
    waiter: &Waiter,
    options: &PgConnectOptions,
    access: Access,
) -> Result<PgConnection, DbError> {
    let mut connection = waiter.connect(options.connect())?;
    let session = if access == Access::Write { WRITER } else { READER };
    for told in [PLANS, GONE, session] {
        waiter.answer(async { sqlx::raw_sql(told).execute(&mut connection).await })?;
    }
    Ok(connection)
}

fn row(row: &PgRow) -> Result<Row, DbError> {
    let mut values = Vec::with_capacity(row.len());
    for (index, column) in row.columns().iter().enumerate() {
        values.push(if row.try_get_raw(index)?.is_null() {
            Value::Null
        } else {
            match column.type_info().name() {
                "INT8" => Value::Int(row.try_get(index)?),
                "BYTEA" => Value::Bytes(row.try_get(index)?),
                _ => Value::Text(row.try_get(index)?),
            }
        });
    }
    Ok(values)
}

/// `?` as PostgreSQL numbers it. Our statements hold no other question mark.
fn numbered(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len() + 16);
    for (index, part) in sql.split('?').enumerate() {
        if index > 0 {
            text += &format!("${index}");
        }
        text += part;
    }
    text
}

fn bound<'q>(sql: String, args: &[Value]) -> Query<'q, sqlx::Postgres, PgArguments> {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for arg in args {
        query = match arg {
            Value::Null => query.bind(None::<i64>),
            Value::Int(value) => query.bind(*value),
            Value::Text(text) => query.bind(text.clone()),
            Value::Bytes(bytes) => query.bind(bytes.clone()),
        };
    }
    query
}

/// Binds each column of the rows as an array.
fn with_arrays<'q>(
    sql: String,
    kinds: &[Kind],
    rows: &[Row],
) -> Query<'q, sqlx::Postgres, PgArguments> {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for (index, kind) in kinds.iter().enumerate() {
        let column = rows.iter().map(|row| &row[index]);
        query = match kind {
            Kind::Int => query.bind(column.map(|v| v.as_int()).collect::<Vec<i64>>()),
            Kind::Text => query.bind(column.map(|v| v.as_text().to_owned()).collect::<Vec<_>>()),
            Kind::Bytes => query.bind(column.map(|v| v.as_bytes().to_vec()).collect::<Vec<_>>()),
        };
    }
    query
}

/// `unnest` of the arrays that are bound for these columns, as table `v`.
fn unnest(columns: &[(&str, Kind)]) -> String {
    let arrays: Vec<_> = (1..)
        .zip(columns)
        .map(|(number, (_, kind))| match kind {
            Kind::Int => format!("${number}::int8[]"),
            Kind::Text => format!("${number}::text[]"),
            Kind::Bytes => format!("${number}::bytea[]"),
        })
        .collect();
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    format!("unnest({}) AS v({})", arrays.join(", "), names.join(", "))
}

fn put_text(table: &Table, how: Put) -> String {
    let (name, list) = (table.name, table.list());
    let keys: Vec<_> = table.columns[..table.keys].iter().map(|(name, _)| *name).collect();
    let same: Vec<_> = keys.iter().map(|key| format!("t.{key} = v.{key}")).collect();
    let same = same.join(" AND ");
    let set = |new: &str| {
        let set = table.rest().iter().map(|(column, _)| format!("{column} = {new}.{column}"));
        set.collect::<Vec<_>>().join(", ")
    };
    match how {
        Put::Insert => {
            format!("INSERT INTO {name} ({list}) SELECT * FROM {}", unnest(table.columns))
        }
        Put::Upsert => format!(
            "INSERT INTO {name} ({list}) SELECT * FROM {} ON CONFLICT ({}) DO UPDATE SET {}",
            unnest(table.columns),
            keys.join(", "),
            set("excluded")
        ),
        Put::Update => format!(
            "UPDATE {name} AS t SET {} FROM {} WHERE {same}",
            set("v"),
            unnest(table.columns)
        ),
        Put::Delete => format!(
            "DELETE FROM {name} AS t USING {} WHERE {same}",
            unnest(&table.columns[..table.keys])
        ),
    }
}

impl Sql for Postgres {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn begin(&mut self) -> Result<(), DbError> {
        self.raw("BEGIN")
    }

    fn begin_read(&mut self) -> Result<(), DbError> {
        self.raw("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    }

    fn commit(&mut self) -> Result<(), DbError> {
        self.raw("COMMIT")
    }

    fn rollback(&mut self) {
        drop(self.raw("ROLLBACK"));
    }

    fn query(&mut self, sql: &str, args: &[Value]) -> Result<Vec<Row>, DbError> {
        self.rows(bound(numbered(sql), args))
    }

    fn run(&mut self, sql: &str, args: &[Value]) -> Result<(), DbError> {
        let query = bound(numbered(sql), args);
        self.waiter.answer(query.execute(&mut self.connection)).map(drop)
    }

    fn pick(
        &mut self,
        table: &Table,
        by: &[&str],
        keys: &[Row],
        hold: Hold,
    ) -> Result<Vec<Row>, DbError> {
        let columns: Vec<_> = by.iter().map(|name| (*name, table.kind(name))).collect();
        let list: Vec<_> = table.columns.iter().map(|(name, _)| format!("t.{name}")).collect();
        let same: Vec<_> = by.iter().map(|name| format!("t.{name} = v.{name}")).collect();
        let order: Vec<_> = by.iter().map(|name| format!("t.{name}")).collect();
        let text = format!(
            "SELECT {} FROM {} JOIN {} AS t ON {} ORDER BY {}{}",
            list.join(", "),
            unnest(&columns),
            table.name,
            same.join(" AND "),
            order.join(", "),
            if hold == Hold::Rows { " FOR UPDATE OF t" } else { "" }
        );
        let kinds: Vec<_> = columns.iter().map(|(_, kind)| *kind).collect();
        self.rows(with_arrays(text, &kinds, keys))
    }

    fn put(&mut self, table: &Table, how: Put, rows: &[Row]) -> Result<(), DbError> {
        let columns = if how == Put::Delete { table.keys } else { table.columns.len() };
        let kinds: Vec<_> = table.columns[..columns].iter().map(|(_, kind)| *kind).collect();
        let query = with_arrays(put_text(table, how), &kinds, rows);
        self.waiter.answer(query.execute(&mut self.connection)).map(drop)
    }

    fn migrates(&mut self, migrates: bool) {
        self.waiter.migrates(migrates);
    }

    fn copy_to(&mut self, _file: &Path) -> Result<(), DbError> {
        Err(no_copy("pg_dump"))
    }

    fn reopen(&mut self) -> Result<(), DbError> {
        let waiter = Waiter::new()?;
        self.connection = connect(&waiter, &self.options, self.access)?;
        self.waiter = waiter;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{numbered, put_text};
    use crate::schema::{DIGEST, FILE_END};
    use crate::sql::Put;

    #[test]
    fn statements_are_those_of_postgres() {
        assert_eq!(numbered("a = ? AND b = ?"), "a = $1 AND b = $2");
        assert_eq!(
            put_text(&DIGEST, Put::Upsert),
            "INSERT INTO digest (file, kind, value) \
             SELECT * FROM unnest($1::int8[], $2::int8[], $3::bytea[]) AS v(file, kind, value) \
             ON CONFLICT (file, kind) DO UPDATE SET value = excluded.value"
        );
        assert_eq!(
            put_text(&FILE_END, Put::Delete),
            "DELETE FROM file AS t USING unnest($1::int8[]) AS v(id) WHERE t.id = v.id"
        );
    }
}
