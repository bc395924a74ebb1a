//! Where a catalog is: one URL.
//!
//! `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE` (MariaDB, too). What follows a server's
//! name is the driver's own: `?host=/run/postgresql`, `?sslmode=verify-full`, `?socket=/run/mysqld/mysqld.sock`.

use crate::error::OpenError;
use crate::mysql::Mysql;
use crate::postgres::Postgres;
use crate::sql::Sql;
use crate::sqlite::{Access, Sqlite};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::path::{Path, PathBuf};
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
        f.write_str(&masked(&self.to_string()))
    }
}

/// A URL without its password, which may stand before the server's name or behind the `?`.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let mut shown = rest.to_owned();
    if let Some((place, query)) = rest.split_once('?') {
        let hide = |pair| match str::split_once(pair, '=') {
            Some(("password", _)) => "password=***",
            _ => pair,
        };
        let pairs: Vec<_> = query.split('&').map(hide).collect();
        shown = format!("{place}?{}", pairs.join("&"));
    }
    // It may hold an `@`, and by mistake what ends the server's name: rather too much is hidden.
    if let Some((before, place)) = shown.rsplit_once('@')
        && let Some((user, _password)) = before.split_once(':')
    {
        shown = format!("{user}:***@{place}");
    }
    format!("{scheme}://{shown}")
}

impl CatalogUrl {
    /// Whether the driver can make something of it. Nothing is connected.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Sqlite(path) if path == Path::new(":memory:") => {
                return Err("a catalog is a file, and this is none".to_owned());
            }
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(url) => PgConnectOptions::from_str(url).map(drop),
            Self::Mysql(url) => MySqlConnectOptions::from_str(url).map(drop),
        }
        .map_err(|error: sqlx::Error| error.to_string())
    }

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
    fn what_no_driver_can_read_is_found_before_anything_is_connected() {
        let check = |url: &str| url.parse::<CatalogUrl>().unwrap().check();
        for good in ["sqlite:c.db", "postgres://me@db:5433/c?sslmode=require", "mysql://me@db/c"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for wrong in ["postgres://me@db:99999/c", "mysql://me@db:99999/c", "sqlite::memory:"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

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
            ("postgres://me:p@w@db/c", "postgres://me:***@db/c"),
            ("postgres://me:p/?w@db/c", "postgres://me:***@db/c"),
            (
                "postgres:///c?host=/run/pg&password=p:w@w&user=me",
                "postgres:///c?host=/run/pg&password=***&user=me",
            ),
        ] {
            assert_eq!(format!("{:?}", text.parse::<CatalogUrl>().unwrap()), shown);
        }
        for wrong in ["", "x.db", "sqlite:", "sqlite://x", "postgres:x", "oracle://x"] {
            assert!(wrong.parse::<CatalogUrl>().is_err(), "{wrong}");
        }
    }
}
