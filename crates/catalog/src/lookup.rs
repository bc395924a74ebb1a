//! Look-ups of many files at once, by what they are called and by id, in a few statements each.

use crate::error::Error;
use crate::life::State;
use crate::reader::{self, Reader};
use crate::record::{
    AHEAD_MAX_S, Digest, DigestKind, File, FileId, Receipt, Replica, SiteId, Time,
};
use crate::schema;
use crate::sql::{DbError, Hold, Row, Table, Value, one_int};
use std::collections::HashMap;

/// A file by what it is called: site of origin, name, version.
pub type Called<'a> = (SiteId, &'a str, i64);

impl Reader {
    /// The files of these names and versions, each in its place; `None` for one that is not known.
    pub fn files_called(&mut self, called: &[Called<'_>]) -> Result<Vec<Option<File>>, Error> {
        let key = |(site, name, version): &Called<'_>| -> Row {
            vec![(*name).into(), site.0.into(), (*version).into()]
        };
        let keys: Vec<Row> = called.iter().map(key).collect();
        let rows = self.pick(&schema::FILE, &["name", "site", "version"], keys)?;
        let ids: Vec<FileId> = rows.iter().map(|row| FileId(row[0].as_int())).collect();
        let mut live: HashMap<i64, Row> = HashMap::new();
        for row in self.pick(&schema::LIVE, &["file"], id_keys(&ids))? {
            live.insert(row[0].as_int(), row);
        }
        let mut digests: HashMap<i64, Value> = HashMap::new();
        for mut row in self.pick(&schema::DIGEST, &["file"], id_keys(&ids))? {
            if row[1].as_int() == i64::from(DigestKind::Blake3.code()) {
                digests.insert(row[0].as_int(), row.remove(2));
            }
        }
        let mut found = HashMap::new();
        for row in rows {
            let id = row[0].as_int();
            let file = match whole(row, live.get(&id), digests.remove(&id)) {
                Some(row) => Some(reader::file_of(row)?),
                // It came to its end between two of the statements.
                None => self.file(FileId(id))?,
            };
            found.extend(file.map(|file| ((file.site, file.name.clone(), file.version), file)));
        }
        let of = |(site, name, version): &Called<'_>| {
            found.get(&(*site, (*name).to_owned(), *version)).cloned()
        };
        Ok(called.iter().map(of).collect())
    }

    /// All digests of these files.
    pub fn digests_of(&mut self, files: &[FileId]) -> Result<Vec<(FileId, Digest)>, Error> {
        self.of_files(&schema::DIGEST, files, reader::digest_of)
    }

    /// All replicas of these files.
    pub fn replicas_of(&mut self, files: &[FileId]) -> Result<Vec<Replica>, Error> {
        self.of_files(&schema::REPLICA, files, reader::replica_of)
    }

    /// All receipts for these files.
    pub fn receipts_of(&mut self, files: &[FileId]) -> Result<Vec<Receipt>, Error> {
        self.of_files(&schema::RECEIPT, files, reader::receipt_of)
    }

    /// Files after `after` that are not at their end and have not moved for so many seconds; or that moved last by a clock that was
    /// ahead, so that nobody knows for how long.
    pub fn stuck(
        &mut self,
        now: Time,
        stuck_s: i64,
        after: FileId,
        limit: usize,
    ) -> Result<Vec<File>, Error> {
        // Not by the id: where the clock had been ahead it holds a time that is still to come.
        let condition = "q.file > ? AND (q.since < ? OR q.since > ?)";
        let text = reader::select("live q JOIN file f ON f.id = q.file", condition)
            + " ORDER BY q.file LIMIT ?";
        let [before, ahead] = [-stuck_s, AHEAD_MAX_S].map(|s| now.plus_s(s).0);
        let args = [after.0, before, ahead, limit as i64].map(Value::Int);
        let rows = self.sql.query(&text, &args)?;
        Ok(rows.into_iter().map(reader::file_of).collect::<Result<_, _>>()?)
    }

    /// Replicas at a site, by file, after `after`.
    pub fn replicas_at(
        &mut self,
        site: SiteId,
        after: FileId,
        limit: usize,
    ) -> Result<Vec<Replica>, Error> {
        let rows = self.sql.query(&at_site(), &[after.0, site.0, limit as i64].map(Value::Int))?;
        Ok(rows.into_iter().map(reader::replica_of).collect::<Result<_, _>>()?)
    }

    /// The newest file, whoever took it in; number 0 if there is none.
    pub fn newest_file(&mut self) -> Result<FileId, Error> {
        Ok(FileId(one_int(&mut *self.sql, "SELECT COALESCE(MAX(id), 0) FROM file", &[])?))
    }

    fn of_files<T>(
        &mut self,
        table: &Table,
        files: &[FileId],
        parse: fn(Row) -> Result<T, DbError>,
    ) -> Result<Vec<T>, Error> {
        let rows = self.pick(table, &["file"], id_keys(files))?;
        Ok(rows.into_iter().map(parse).collect::<Result<_, _>>()?)
    }

    fn pick(&mut self, table: &Table, by: &[&str], mut keys: Vec<Row>) -> Result<Vec<Row>, Error> {
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.sql.pick(table, by, &keys, Hold::Nothing)?)
    }
}

/// Along the key, file by file: by the index of sites all replicas of the site would be sorted for each page. A sum is in no index.
fn at_site() -> String {
    let list = schema::REPLICA.list();
    format!("SELECT {list} FROM replica WHERE file > ? AND site + 0 = ? ORDER BY file LIMIT ?")
}

fn id_keys(ids: &[FileId]) -> Vec<Row> {
    ids.iter().map(|id| vec![id.0.into()]).collect()
}

/// A row of `file` with what `live` and `digest` say, in the columns of [`reader::FILE_COLUMNS`]; `None` when the file is at its end
/// by now, and the row of `file` is older.
fn whole(file: Row, live: Option<&Row>, digest: Option<Value>) -> Option<Row> {
    let of_file = |name: &str| file[column(&schema::FILE, name)].clone();
    let of_live = |name: &str| live.map(|row| row[column(&schema::LIVE, name)].clone());
    let either = |name: &str| of_live(name).unwrap_or_else(|| of_file(name));
    let state = either("state");
    State::from_code(state.as_int())?;
    let mut row: Row = ["id", "site", "name", "version", "size", "rule"].map(of_file).to_vec();
    row.extend([state, either("revision"), either("since")]);
    row.extend(["reason", "error"].map(|name| of_live(name).unwrap_or(Value::Int(0))));
    row.extend([either("tries"), of_live("turn").unwrap_or(Value::Int(0)), of_file("origin")]);
    row.push(digest.unwrap_or(Value::Null));
    Some(row)
}

fn column(table: &Table, name: &str) -> usize {
    let found = table.columns.iter().position(|(column, _)| *column == name);
    found.expect("our own statements name our own columns")
}

#[cfg(test)]
mod tests {
    use super::at_site;
    use crate::migrate::{BeforeMigration, migrate};
    use crate::record::Time;
    use crate::sql::{Sql as _, Value};
    use crate::sqlite::{Access, Sqlite};

    #[test]
    fn replicas_of_a_site_are_not_sorted() {
        let folder = tempfile::tempdir().unwrap();
        let mut sql = Sqlite::open(&folder.path().join("c.db"), Access::Write).unwrap();
        migrate(&mut sql, Time(1), &BeforeMigration::Refuse).unwrap();
        let text = format!("EXPLAIN QUERY PLAN {}", at_site());
        let plan = sql.query(&text, &vec![Value::Int(1); 3]).unwrap();
        let [only] = &plan[..] else { panic!("{plan:?}") };
        assert!(only[3].as_text().ends_with("USING PRIMARY KEY (file>?)"), "{plan:?}");
    }
}
