//! To version 2: what sites hold already enters the set digests, once, as the rows of log number 0. So it does where a mirror's copy
//! becomes a catalog (follow.rs).
//!
//! Can be repeated: it first removes what an earlier try wrote.

use crate::digest_set::{Leaf, SetDay, SetDigest, entry_hash};
use crate::key::FileKey;
use crate::ledger::{Called, SetPlace, key_row};
use crate::record::{FileId, LogId, Replica, ReplicaState, RuleId, SiteId, Time, taken_in};
use crate::schema;
use crate::sql::{Columns, DbError, Dialect, Put, Row, Sql, Value, one_int};
use crate::words::{self, WordKind};
use std::collections::{BTreeMap, HashMap};

/// Replicas that are read at once.
const BLOCK: i64 = 2000;
/// Whose rows these are: writers are numbered from 1.
const BEFORE: LogId = LogId(0);

pub(crate) fn fill(sql: &mut dyn Sql) -> Result<(), DbError> {
    for table in ["set_day", "set_leaf"] {
        sql.run(&format!("DELETE FROM {table} WHERE log = ?"), &[BEFORE.0.into()])?;
    }
    let sites: HashMap<i64, String> = words::all(sql, WordKind::Site)?.into_iter().collect();
    let mut sums: BTreeMap<SetPlace, SetDigest> = BTreeMap::new();
    let mut last = (0, 0);
    loop {
        let text = "SELECT r.file, r.site, r.path, r.state, r.since, \
             f.site, f.name, f.version, f.rule, f.origin, d.value \
             FROM replica r JOIN file f ON f.id = r.file \
             LEFT JOIN digest d ON d.file = r.file AND d.kind = 1 \
             WHERE r.file >= ? AND (r.file > ? OR r.site > ?) ORDER BY r.file, r.site LIMIT ?";
        let args = [last.0, last.0, last.1, BLOCK].map(Value::Int);
        let rows = sql.query(text, &args)?;
        if rows.is_empty() {
            break;
        }
        let mut filled = Vec::with_capacity(rows.len());
        for row in rows {
            let (replica, since, called, digest) = held(row, &sites)?;
            last = (replica.file.0, replica.site.0);
            if let (ReplicaState::Present, Some(digest)) = (replica.state, digest) {
                let Called { site: origin, rule, day, key } = called;
                let day = SetDay { holder: replica.site, origin, rule, day };
                let one = SetDigest { files: 1, sum: entry_hash(&key, &digest) };
                for leaf in [None, Some(Leaf::of(&key))] {
                    sums.entry((day, leaf)).or_default().add(&one);
                }
            }
            filled.push(called.replica_row(&replica, since));
        }
        sql.put(&schema::REPLICA, Put::Upsert, &filled)?;
    }
    for (table, is_leaf) in [(&schema::SET_DAY, false), (&schema::SET_LEAF, true)] {
        let rows = sums.iter().filter(|((_, leaf), _)| leaf.is_some() == is_leaf);
        let rows: Vec<Row> = rows.map(|(place, digest)| sum_row(place, digest)).collect();
        for rows in rows.chunks(BLOCK as usize) {
            sql.put(table, Put::Insert, rows)?;
        }
    }
    Ok(())
}

/// Makes all sums anew, whatever there are.
pub(crate) fn fill_anew(sql: &mut dyn Sql) -> Result<(), DbError> {
    for table in ["set_day", "set_leaf"] {
        sql.run(&format!("DELETE FROM {table}"), &[])?;
    }
    fill(sql)
}

/// Makes the sums of a copy that is opened as a catalog for the first time: a follower writes none, any other catalog has had some since
/// it first held a file. To be called in a transaction, so that no other process writes sums meanwhile.
pub(crate) fn fill_copy(sql: &mut dyn Sql) -> Result<(), DbError> {
    // Copies are on SQLite.
    if sql.dialect() != Dialect::Sqlite
        || one_int(sql, "SELECT EXISTS (SELECT 1 FROM set_day)", &[])? != 0
    {
        return Ok(());
    }
    fill(sql)
}

fn sum_row(place: &SetPlace, digest: &SetDigest) -> Row {
    let mut row = key_row(place, BEFORE);
    row.extend([digest.files.into(), Value::Bytes(digest.sum.to_vec())]);
    row
}

type Held = (Replica, Time, Called, Option<Vec<u8>>);

fn held(mut row: Row, sites: &HashMap<i64, String>) -> Result<Held, DbError> {
    let digest = match row.pop() {
        Some(Value::Bytes(value)) => Some(value),
        _ => None,
    };
    let mut row = Columns::of(row);
    let (file, site, path) = (FileId(row.int()?), SiteId(row.int()?), row.text()?);
    let replica = Replica { file, site, path, state: row.code(ReplicaState::from_code)? };
    let since = Time(row.int()?);
    let (origin, name, version) = (SiteId(row.int()?), row.text()?, row.int()?);
    let (rule, day) = (RuleId(row.int()?), SetDay::day_of(taken_in(file, row.int()?)));
    let site_name = sites.get(&origin.0).map_or("", String::as_str);
    let key = FileKey::of(site_name, &name, version);
    Ok((replica, since, Called { site: origin, rule, day, key }, digest))
}
