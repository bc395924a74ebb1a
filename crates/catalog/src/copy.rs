//! Backup and restore.
//!
//! SQLite: a backup is a consistent copy in one file, made while the daemon writes. Servers have tools of their own for it.

use crate::error::{Error, OpenError};
use crate::place::CatalogUrl;
use crate::reader::Reader;
use crate::sql::{Columns, DbError};
use std::fs::{self, File};
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

/// Writes a copy of the catalog to `file`, as of now; it is on the disk when this returns.
pub fn backup(url: &CatalogUrl, file: &Path) -> Result<(), CopyError> {
    url.file()?;
    if file.exists() {
        return Err(CopyError::Exists(file.to_owned()));
    }
    let mut reader = Reader::open(url)?;
    reader.sql.copy_to(file).map_err(|error| {
        // Half a copy is worse than none.
        drop(fs::remove_file(file));
        CopyError::File(file.to_owned(), error.to_string())
    })
}

/// Makes a catalog of a backup, where none is yet. The backup is checked first, and stays.
pub fn restore(file: &Path, url: &CatalogUrl) -> Result<(), CopyError> {
    let target = url.file()?;
    if target.exists() {
        return Err(CopyError::Exists(target.to_owned()));
    }
    check_whole(file)?;
    let mut part = target.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let copied = fs::copy(file, &part)
        .and_then(|_| File::open(&part)?.sync_all())
        .and_then(|()| fs::rename(&part, target))
        .and_then(|()| match target.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => File::open(folder)?.sync_all(),
            None => File::open(".")?.sync_all(),
        });
    copied.map_err(|error| {
        drop(fs::remove_file(&part));
        CopyError::File(target.to_owned(), error.to_string())
    })
}

fn check_whole(file: &Path) -> Result<(), CopyError> {
    let damaged = |what: DbError| CopyError::Damaged(file.to_owned(), what.to_string());
    let mut reader = Reader::open(&CatalogUrl::Sqlite(file.to_owned()))?;
    let found = reader.sql.query("PRAGMA integrity_check", &[]).map_err(damaged)?;
    let first = found.into_iter().next().map(|row| Columns::of(row).text());
    match first {
        Some(Ok(text)) if text == "ok" => Ok(()),
        Some(Ok(text)) => Err(CopyError::Damaged(file.to_owned(), text)),
        _ => Err(CopyError::Damaged(file.to_owned(), "it cannot be checked".to_owned())),
    }
}
