//! Backup and restore.
//!
//! SQLite: a backup is a consistent copy in one file, made while the daemon writes. Servers have tools of their own for it.

use crate::error::{Error, OpenError};
use crate::migrate;
use crate::place::CatalogUrl;
use crate::sql::{Columns, DbError, Sql};
use crate::sqlite::{Access, Sqlite};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Why there is no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The server's own tools do it.
    #[error("a server is copied and restored with its own tools: {0}")]
    Server(&'static str),
    /// Nothing is ever written over.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// What was to be restored is not whole.
    #[error("{} is damaged: {}", .0.display(), .1)]
    Damaged(PathBuf, String),
    /// The file system did not do it.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, String),
    /// The catalog could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database did not do it.
    #[error(transparent)]
    Database(#[from] Error),
}

impl CatalogUrl {
    /// The file of an SQLite catalog.
    fn file(&self) -> Result<&Path, CopyError> {
        match self {
            Self::Sqlite(path) => Ok(path),
            Self::Postgres(_) => Err(CopyError::Server("pg_dump and pg_restore")),
            Self::Mysql(_) => Err(CopyError::Server("mariadb-dump or mysqldump")),
        }
    }
}

/// All files of a catalog of SQLite: its own, and what SQLite keeps beside that. Left over from another one that would be read as
/// part of the one that comes to lie there.
pub fn files_of(file: &Path) -> [PathBuf; 4] {
    ["", "-wal", "-shm", "-journal"].map(|end| with_end(file, end))
}

/// Writes a copy of the catalog to `file`, as of now; it is on the disk when this returns.
pub fn backup(url: &CatalogUrl, file: &Path) -> Result<(), CopyError> {
    url.file()?;
    check_free(file)?;
    let mut sql = url.connect(Access::Read)?;
    // An older one is copied as it is.
    migrate::check_can_be(&mut *sql)?;
    let failed = |error: String| CopyError::File(file.to_owned(), error);
    by_part(file, |part| {
        sql.copy_to(part).map_err(|error| failed(error.to_string()))?;
        // Copying took its time.
        check_free(file)?;
        put_in_place(part, file).map_err(|error| failed(error.to_string()))
    })
}

/// Copies a catalog of SQLite to `file`, which is there whole or not at all, however this ends.
pub(crate) fn copy_whole(sql: &mut dyn Sql, file: &Path) -> Result<(), DbError> {
    by_part(file, |part| {
        sql.copy_to(part)?;
        put_in_place(part, file).map_err(|error| DbError::Other(error.to_string()))
    })
}

/// Makes a file of a part beside it. That has our number in its name: another one's stays, as that may be at it.
fn by_part<E>(file: &Path, make: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    let part = with_end(file, &format!(".{}.part", std::process::id()));
    // Left by one of this number that was killed.
    drop(fs::remove_file(&part));
    make(&part).inspect_err(|_| drop(fs::remove_file(&part)))
}

/// Makes a catalog of a backup, or of a catalog that somebody writes to, where none is yet, nor anything that was left of one. What
/// is copied is checked first, and stays; the copy is checked before it gets its name.
pub fn restore(file: &Path, url: &CatalogUrl) -> Result<(), CopyError> {
    let target = url.file()?;
    check_free(target)?;
    let mut source = open_whole(file)?;
    let failed = |error: String| CopyError::File(target.to_owned(), error);
    by_part(target, |part| {
        make_private(part).map_err(|error| failed(error.to_string()))?;
        // Not the file's bytes: the last commits of a catalog that is open lie beside it.
        source.copy_to(part).map_err(|error| failed(error.to_string()))?;
        open_whole(part)?;
        // Copying took its time.
        check_free(target)?;
        put_in_place(part, target).map_err(|error| failed(error.to_string()))
    })
}

/// Makes an empty file that only its owner may read and write.
fn make_private(file: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map(drop)
}

/// A file beside `file`, whose name goes on.
pub(crate) fn with_end(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Gives a whole file its name; durable when this returns.
fn put_in_place(part: &Path, target: &Path) -> io::Result<()> {
    fs::rename(part, target)?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Refuses a place where a catalog lies, or part of one.
fn check_free(file: &Path) -> Result<(), CopyError> {
    match files_of(file).into_iter().find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => Err(CopyError::Exists(path)),
        None => Ok(()),
    }
}

/// Opens a file that is wholly a catalog.
fn open_whole(file: &Path) -> Result<Sqlite, CopyError> {
    let mut sql = Sqlite::open(file, Access::Read)?;
    // An older one is migrated when it becomes a catalog.
    migrate::check_can_be(&mut sql)?;
    let damaged = |error: DbError| CopyError::Damaged(file.to_owned(), error.to_string());
    is_whole(&mut sql).map_err(damaged)?;
    Ok(sql)
}

/// Reads all of a catalog of SQLite: whether it is as it was written.
pub(crate) fn is_whole(sql: &mut dyn Sql) -> Result<(), DbError> {
    let found = sql.query("PRAGMA integrity_check", &[])?.into_iter().next();
    let found = found.ok_or_else(|| DbError::damaged("it cannot be checked"))?;
    match Columns::of(found).text()? {
        text if text == "ok" => Ok(()),
        text => Err(DbError::Damaged(text)),
    }
}
