//! Where a catalog is: one URL.
//!
//! `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE` (MariaDB, too). What follows a server's
//! name is the driver's own: `?host=/run/postgresql`, `?sslmode=verify-full`, `?socket=/run/mysqld/mysqld.sock`.

use crate::error::OpenError;
use crate::mysql::Mysql;
use crate::postgres::Postgres;
use crate::sql::Sql;
use crate::sqlite::{Access, Sqlite};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A catalog's URL, read.
#[derive(Clone, PartialEq, Eq)]
pub enum CatalogUrl {
    /// A file of SQLite.
    Sqlite(PathBuf),
    /// A database of a PostgreSQL server.
    Postgres(String),
    /// A database of a MySQL or MariaDB server.
    Mysql(String),
}

/// The URL names no catalog.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no catalog's URL: sqlite:PATH, postgres://… or mysql://…")]
pub struct NoCatalogUrl(String);

impl FromStr for CatalogUrl {
    type Err = NoCatalogUrl;

    fn from_str(text: &str) -> Result<Self, NoCatalogUrl> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() && !path.starts_with("//") => {
                Ok(Self::Sqlite(PathBuf::from(path)))
            }
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Ok(Self::Postgres(text.to_owned()))
            }
            Some(("mysql" | "mariadb", rest)) if rest.starts_with("//") => {
                Ok(Self::Mysql(format!("mysql:{rest}")))
            }
            _ => Err(NoCatalogUrl(text.to_owned())),
        }
    }
}

impl fmt::Display for CatalogUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) | Self::Mysql(url) => f.write_str(url),
        }
    }
}

/// Without a password: this is what logs and messages show.
impl fmt::Debug for CatalogUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_string();
        let masked = text.split_once("://").and_then(|(scheme, rest)| {
            let (user, place) = rest.split_once('@')?;
            let (user, _password) = user.split_once(':')?;
            Some(format!("{scheme}://{user}:***@{place}"))
        });
        f.write_str(masked.as_deref().unwrap_or(&text))
    }
}

impl CatalogUrl {
    pub(crate) fn connect(&self, access: Access) -> Result<Box<dyn Sql>, OpenError> {
        match self {
            Self::Sqlite(path) => Ok(Box::new(Sqlite::open(path, access)?)),
            Self::Postgres(url) => Ok(Box::new(Postgres::open(url, access)?)),
            Self::Mysql(url) => Ok(Box::new(Mysql::open(url, access)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CatalogUrl;

    #[test]
    fn one_url_chooses_the_database() {
        for (text, shown) in [
            ("sqlite:/var/lib/x.db", "sqlite:/var/lib/x.db"),
            ("sqlite:x y.db", "sqlite:x y.db"),
            ("postgres://me@db/catalog", "postgres://me@db/catalog"),
            (
                "postgresql://me:pw@db:5433/c?sslmode=require",
                "postgresql://me:***@db:5433/c?sslmode=require",
            ),
            ("mariadb://me:pw@db/c", "mysql://me:***@db/c"),
        ] {
            assert_eq!(format!("{:?}", text.parse::<CatalogUrl>().unwrap()), shown);
        }
        for wrong in ["", "x.db", "sqlite:", "sqlite://x", "postgres:x", "oracle://x"] {
            assert!(wrong.parse::<CatalogUrl>().is_err(), "{wrong}");
        }
    }
}
