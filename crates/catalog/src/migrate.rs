//! The schema's versions, and the way from each to the next.
//!
//! Migrations go forward only. Each is one text for all databases, with the names of types in braces; it is never
//! edited after it was released, later ones are added. Before a catalog that holds anything is migrated, it is copied
//! (SQLite: beside itself, whole or not at all, under its version), or the operator says that a dump exists. A catalog newer than
//! the program is refused.
//!
//! Each statement can be repeated: MySQL commits every one of them by itself, so a migration that was cut short runs
//! again from its start.

mod sets;

pub(crate) use sets::{fill_anew, fill_copy};

use crate::error::OpenError;
use crate::record::Time;
use crate::sql::{DbError, Dialect, Sql, one_int};
use crate::sqlite::{Access, Sqlite};
use crate::{copy, reader};
use std::path::{Path, PathBuf};

/// All migrations; number n stands at n − 1.
const MIGRATIONS: [&str; 5] = [
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
];
/// The version that has set digests.
const WITH_SETS: i64 = 2;

/// What this program reads and writes.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// What to do before a catalog is migrated that holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeforeMigration {
    /// Copy it to a file of this name with the catalog's version behind it, as in `catalog.before-3`; SQLite only. A copy that is there
    /// already, of a migration that was cut short, will do; one of another time stays, and the new one gets a second number.
    CopyTo(PathBuf),
    /// Nothing: a dump exists, or the operator does without.
    DumpExists,
    /// Do not migrate.
    Refuse,
}

/// The catalog's version; 0 when there is none yet.
pub(crate) fn version(sql: &mut dyn Sql) -> Result<i64, DbError> {
    let there = match sql.dialect() {
        Dialect::Sqlite => "SELECT COUNT(*) FROM sqlite_master WHERE name = 'schema_version'",
        Dialect::Postgres => {
            "SELECT COUNT(*) FROM information_schema.tables \
             WHERE table_schema = current_schema() AND table_name = 'schema_version'"
        }
        Dialect::Mysql => {
            "SELECT COUNT(*) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = 'schema_version'"
        }
    };
    if one_int(sql, there, &[])? == 0 {
        return Ok(0);
    }
    one_int(sql, "SELECT COALESCE(MAX(version), 0) FROM schema_version", &[])
}

/// Refuses a catalog that this program cannot read.
pub(crate) fn check(sql: &mut dyn Sql) -> Result<(), OpenError> {
    match check_can_be(sql)? {
        found if found < SCHEMA_VERSION => Err(OpenError::Older { found, known: SCHEMA_VERSION }),
        _ => Ok(()),
    }
}

/// Refuses what cannot be made a catalog of this program's version; says which it has.
pub(crate) fn check_can_be(sql: &mut dyn Sql) -> Result<i64, OpenError> {
    match version(sql)? {
        0 => Err(OpenError::Empty),
        found if found > SCHEMA_VERSION => Err(OpenError::Newer { found, known: SCHEMA_VERSION }),
        found => Ok(found),
    }
}

/// Brings the catalog to this program's version.
pub(crate) fn migrate(
    sql: &mut dyn Sql,
    now: Time,
    before: &BeforeMigration,
) -> Result<(), OpenError> {
    sql.migrates(true);
    let done = migrate_by(sql, now, before, &MIGRATIONS);
    sql.migrates(false);
    done
}

fn migrate_by(
    sql: &mut dyn Sql,
    now: Time,
    before: &BeforeMigration,
    migrations: &[&str],
) -> Result<(), OpenError> {
    let known = migrations.len() as i64;
    let found = version(sql)?;
    if found > known {
        return Err(OpenError::Newer { found, known });
    }
    if found == known {
        return Ok(());
    }
    if found > 0 {
        match before {
            BeforeMigration::CopyTo(name) => keep_copy(sql, found, name)?,
            BeforeMigration::DumpExists => {}
            BeforeMigration::Refuse => return Err(OpenError::Older { found, known }),
        }
    }
    for (number, text) in (1..).zip(migrations).skip(found as usize) {
        sql.begin()?;
        let done = apply(sql, number, text, now);
        match done {
            Ok(()) => sql.commit()?,
            Err(error) => {
                sql.rollback();
                // Another daemon may have done it at the same time.
                if version(sql)? < number {
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

/// Sees to a whole copy of the catalog as it is.
fn keep_copy(sql: &mut dyn Sql, version: i64, name: &Path) -> Result<(), DbError> {
    let mut end = format!("-{version}");
    for number in 2.. {
        let file = copy::with_end(name, &end);
        if file.symlink_metadata().is_err() {
            return copy::copy_whole(sql, &file);
        }
        if is_copy(sql, version, &file) {
            break;
        }
        end = format!("-{version}-{number}");
    }
    Ok(())
}

/// Whether the file is a whole copy of the catalog as it is. What cannot be read is none.
fn is_copy(sql: &mut dyn Sql, version: i64, file: &Path) -> bool {
    let Ok(mut there) = Sqlite::open(file, Access::Read) else { return false };
    let there: &mut dyn Sql = &mut there;
    self::version(there) == Ok(version)
        && reader::logs(sql).is_ok_and(|logs| reader::logs(there) == Ok(logs))
        && copy::is_whole(there).is_ok()
}

fn apply(sql: &mut dyn Sql, number: i64, text: &str, now: Time) -> Result<(), DbError> {
    for statement in statements(sql.dialect(), text) {
        match sql.run(&statement, &[]) {
            // MySQL has no words for "if there is none" here; a migration that was cut short finds its own.
            Err(DbError::Other(text))
                if text.contains("Duplicate key name")
                    || text.contains("Duplicate column name") => {}
            done => done?,
        }
    }
    if number == WITH_SETS {
        sets::fill(sql)?;
    }
    sql.run(
        "INSERT INTO schema_version (version, applied) VALUES (?, ?)",
        &[number.into(), now.0.into()],
    )
}

/// The statements of a migration in one database's words.
fn statements(dialect: Dialect, text: &str) -> Vec<String> {
    let [name, short, path, key, bytes, row_id, by_key] = match dialect {
        Dialect::Sqlite => {
            ["TEXT", "TEXT", "TEXT", "BLOB", "BLOB", "INTEGER PRIMARY KEY", " WITHOUT ROWID"]
        }
        Dialect::Postgres => {
            const TEXT: &str = "TEXT COLLATE \"C\"";
            [TEXT, TEXT, TEXT, "BYTEA", "BYTEA", "BIGINT PRIMARY KEY", ""]
        }
        // Bytes, so that names compare byte by byte; lengths are those of `change`.
        Dialect::Mysql => [
            "VARBINARY(1024)",
            "VARBINARY(255)",
            "VARBINARY(4096)",
            "VARBINARY(64)",
            "VARBINARY(16384)",
            "BIGINT PRIMARY KEY",
            " ENGINE=InnoDB",
        ],
    };
    let words = [
        ("{name}", name),
        ("{word}", short),
        ("{path}", path),
        ("{key}", key),
        ("{bytes}", bytes),
        ("{row id}", row_id),
        ("{by key}", by_key),
    ];
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut statements = Vec::new();
    for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let mut statement = statement.to_owned();
        if dialect == Dialect::Mysql {
            statement = statement.replace("CREATE INDEX IF NOT EXISTS", "CREATE INDEX");
        }
        for (word, means) in words {
            statement = statement.replace(word, means);
        }
        statements.push(statement);
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::{BeforeMigration, MIGRATIONS, SCHEMA_VERSION, migrate, migrate_by, version};
    use crate::copy::{CopyError, backup, restore};
    use crate::error::OpenError;
    use crate::follow::Follower;
    use crate::place::CatalogUrl;
    use crate::record::Time;
    use crate::sql::{Sql as _, one_int};
    use crate::sqlite::{Access, Sqlite};
    use std::fs;
    use std::path::{Path, PathBuf};

    const FIRST: [&str; 2] = [MIGRATIONS[0], MIGRATIONS[1]];
    const NEXT: [&str; 3] = [MIGRATIONS[0], MIGRATIONS[1], "CREATE TABLE later (id {row id})"];

    #[test]
    fn an_older_catalog_is_copied_then_migrated() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("c.db"), folder.path().join("copy.db"));
        let mut sql = Sqlite::open(&path, Access::Write).unwrap();
        migrate_by(&mut sql, Time(5), &BeforeMigration::Refuse, &FIRST).unwrap();
        let old = OpenError::Older { found: 2, known: 3 };
        assert_eq!(migrate_by(&mut sql, Time(6), &BeforeMigration::Refuse, &NEXT), Err(old));
        assert_eq!(version(&mut sql), Ok(2));
        let before = BeforeMigration::CopyTo(copy);
        migrate_by(&mut sql, Time(6), &before, &NEXT).unwrap();
        assert_eq!(one_int(&mut sql, "SELECT COUNT(*) FROM later", &[]), Ok(0));
        assert_eq!(version(&mut sql), Ok(3));
        assert_eq!(copied(folder.path()), ["copy.db-2 is of version 2"]);
        // Done already: nothing is copied again.
        migrate_by(&mut sql, Time(7), &before, &NEXT).unwrap();
    }

    /// All that lies there under the name of copies.
    fn copied(folder: &Path) -> Vec<String> {
        let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut copies: Vec<_> = all.filter(|path| name(path).starts_with("copy")).collect();
        copies.sort_unstable();
        let of = |path: &Path| version(&mut Sqlite::open(path, Access::Read).ok()?).ok();
        let shown = |path: &PathBuf| match of(path) {
            Some(version) => format!("{} is of version {version}", name(path)),
            None => format!("{} is none", name(path)),
        };
        copies.iter().map(shown).collect()
    }

    #[test]
    fn a_migration_that_was_cut_short_goes_on_at_the_next_start() {
        const BROKEN: [&str; 3] = [MIGRATIONS[0], MIGRATIONS[1], "CREATE NONSENSE"];
        const LATER: [&str; 4] = [NEXT[0], NEXT[1], NEXT[2], "CREATE TABLE last (id {row id})"];
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("c.db"), folder.path().join("copy.db"));
        let before = BeforeMigration::CopyTo(copy);
        let mut sql = Sqlite::open(&path, Access::Write).unwrap();
        migrate_by(&mut sql, Time(5), &before, &FIRST).unwrap();
        // Cut off while it copied, then while it changed the tables, twice.
        let part = format!("copy.db-2.{}.part", std::process::id());
        fs::write(folder.path().join(part), "half").unwrap();
        for _ in 0..2 {
            assert!(migrate_by(&mut sql, Time(6), &before, &BROKEN).is_err());
            assert_eq!(copied(folder.path()), ["copy.db-2 is of version 2"]);
        }
        migrate_by(&mut sql, Time(7), &before, &NEXT).unwrap();
        // The next version.
        migrate_by(&mut sql, Time(8), &before, &LATER).unwrap();
        let both = ["copy.db-2 is of version 2", "copy.db-3 is of version 3"];
        assert_eq!(copied(folder.path()), both);
    }

    #[test]
    fn a_copy_of_another_time_stays_beside_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("c.db"), folder.path().join("copy.db"));
        let mut sql = Sqlite::open(&path, Access::Write).unwrap();
        migrate_by(&mut sql, Time(5), &BeforeMigration::Refuse, &FIRST).unwrap();
        sql.copy_to(&folder.path().join("copy.db-2")).unwrap();
        fs::write(folder.path().join("copy.db-2-2"), "none at all").unwrap();
        // What was written after the copy was made.
        sql.run("INSERT INTO word (kind, id, name) VALUES (3, 1, 'a')", &[]).unwrap();
        migrate_by(&mut sql, Time(6), &BeforeMigration::CopyTo(copy), &NEXT).unwrap();
        let all =
            ["copy.db-2 is of version 2", "copy.db-2-2 is none", "copy.db-2-3 is of version 2"];
        assert_eq!(copied(folder.path()), all);
    }

    #[test]
    fn a_catalog_of_an_older_program_is_backed_up_and_restored() {
        let folder = tempfile::tempdir().unwrap();
        let [path, kept, again] = ["c.db", "backup.db", "again.db"].map(|f| folder.path().join(f));
        let mut sql = Sqlite::open(&path, Access::Write).unwrap();
        let url = CatalogUrl::Sqlite(again.clone());
        migrate_by(&mut sql, Time(5), &BeforeMigration::Refuse, &FIRST).unwrap();
        backup(&CatalogUrl::Sqlite(path.clone()), &kept).unwrap();
        restore(&kept, &url).unwrap();
        let mut restored = Sqlite::open(&again, Access::Write).unwrap();
        assert_eq!(version(&mut restored), Ok(2));
        migrate(&mut restored, Time(6), &BeforeMigration::DumpExists).unwrap();
        assert_eq!(version(&mut restored), Ok(SCHEMA_VERSION));
        // A mirror's becomes a catalog by the same copy.
        Follower::open(&kept, Time(6)).unwrap().settle().unwrap();
        assert_eq!(version(&mut Sqlite::open(&kept, Access::Read).unwrap()), Ok(SCHEMA_VERSION));
        // What is no catalog is none.
        fs::write(&path, "").unwrap();
        let other = CatalogUrl::Sqlite(folder.path().join("other.db"));
        assert_eq!(restore(&path, &other), Err(CopyError::Open(OpenError::Empty)));
    }

    #[test]
    fn a_migration_that_fails_leaves_the_old_version() {
        let folder = tempfile::tempdir().unwrap();
        let mut sql = Sqlite::open(&folder.path().join("c.db"), Access::Write).unwrap();
        let broken = [MIGRATIONS[0], "CREATE TABLE half (id {row id}); CREATE NONSENSE"];
        assert!(migrate_by(&mut sql, Time(5), &BeforeMigration::DumpExists, &broken).is_err());
        assert_eq!(version(&mut sql), Ok(1));
        assert!(sql.query("SELECT id FROM half", &[]).is_err());
    }
}
