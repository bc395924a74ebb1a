//! What can go wrong with the catalog itself. What is wrong with a single change is a [`crate::Refused`].

use crate::change::WORD_BYTES_MAX;
use crate::sql::DbError;
use std::path::PathBuf;

/// Why a request was not done. Unless it says otherwise, it may be made again as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The database cannot be reached, or the connection broke. What was asked may or may not be done: ask again.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The database has no room to write.
    #[error("the database has no room to write ({0}): free space on its disk")]
    Full(String),
    /// What is stored is not what this program stores.
    #[error("the catalog is damaged: {0}")]
    Damaged(String),
    /// Another process writes under this writer's name.
    #[error(
        "another process writes to this catalog as `{0}`: end one of the two daemons, of which one may be a copy of this site"
    )]
    NotAlone(String),
    /// No site and no rule is called that; nor is it when it is asked again.
    #[error("a site or a rule is called by 1 to {max} bytes without a zero", max = WORD_BYTES_MAX)]
    BadWord,
    /// The database refused, in its own words.
    #[error("the database says: {0}")]
    Database(String),
    /// The writer has stopped.
    #[error("the catalog is closed")]
    Closed,
}

impl From<DbError> for Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Lost(text) => Self::Unreachable(text),
            DbError::Full(text) => Self::Full(text),
            DbError::Damaged(text) => Self::Damaged(text),
            DbError::Conflict(text) | DbError::Other(text) => Self::Database(text),
        }
    }
}

/// Why a catalog was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no such file.
    #[error("there is no file {}", .0.display())]
    NoFile(PathBuf),
    /// The database is there, and holds no catalog.
    #[error("the database holds no catalog")]
    Empty,
    /// A later program made it.
    #[error("the catalog has schema version {found}, this program knows {known}")]
    Newer {
        /// The catalog's version.
        found: i64,
        /// This program's.
        known: i64,
    },
    /// An earlier program made it, and it is not to be migrated now.
    #[error("the catalog has schema version {found}, this program needs {known}")]
    Older {
        /// The catalog's version.
        found: i64,
        /// This program's.
        known: i64,
    },
    /// The database did not do it.
    #[error(transparent)]
    Database(#[from] Error),
}

impl From<DbError> for OpenError {
    fn from(error: DbError) -> Self {
        Self::Database(error.into())
    }
}
