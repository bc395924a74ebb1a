//! Names of sites, rules and writers, as small numbers.

use crate::sql::{Columns, DbError, Sql, one_int};

/// What a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordKind {
    Site = 1,
    Rule = 2,
    Writer = 3,
}

/// The number of a name, if it has one.
pub(crate) fn find(sql: &mut dyn Sql, kind: WordKind, name: &str) -> Result<Option<i64>, DbError> {
    let select = "SELECT id FROM word WHERE kind = ? AND name = ?";
    let rows = sql.query(select, &[(kind as i64).into(), name.into()])?;
    rows.into_iter().next().map(|row| Columns::of(row).int()).transpose()
}

/// The number of a name, given now if it had none. Within a transaction: two who give the same number conflict,
/// and one of them starts again.
pub(crate) fn learn(sql: &mut dyn Sql, kind: WordKind, name: &str) -> Result<i64, DbError> {
    if let Some(id) = find(sql, kind, name)? {
        return Ok(id);
    }
    let last = "SELECT COALESCE(MAX(id), 0) FROM word WHERE kind = ?";
    let id = one_int(sql, last, &[(kind as i64).into()])? + 1;
    let insert = "INSERT INTO word (kind, id, name) VALUES (?, ?, ?)";
    sql.run(insert, &[(kind as i64).into(), id.into(), name.into()])?;
    Ok(id)
}

/// All names of a kind.
pub(crate) fn all(sql: &mut dyn Sql, kind: WordKind) -> Result<Vec<(i64, String)>, DbError> {
    let select = "SELECT id, name FROM word WHERE kind = ? ORDER BY id";
    let rows = sql.query(select, &[(kind as i64).into()])?;
    let pair = |row| {
        let mut row = Columns::of(row);
        Ok((row.int()?, row.text()?))
    };
    rows.into_iter().map(pair).collect()
}
