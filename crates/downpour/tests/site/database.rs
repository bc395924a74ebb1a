//! Databases that sites keep their books in, and what stands in them, asked of the databases' own programs.

use super::servers::Server;
use crate::skipped::skipped;
use downpour_catalog::CatalogUrl;
use std::process::{Command, Output};

/// A kind of database for a site's catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
    Mariadb,
}

/// A database for a catalog; with a server it can be killed.
pub(crate) enum Database {
    /// In the site's own folder.
    Sqlite,
    Server(Box<Server>, &'static str),
}

impl Database {
    /// An empty one; `None` if the server's programs are missing, which is said by name.
    pub(crate) fn new(engine: Engine) -> Option<Self> {
        Some(match engine {
            Engine::Sqlite => Self::Sqlite,
            Engine::Postgres => Self::Server(Box::new(Server::postgres()?), "postgres"),
            Engine::Mariadb => Self::Server(Box::new(Server::mariadb()?), "test"),
        })
    }

    /// What a site's configuration calls it; nothing for its own.
    pub(crate) fn url(&self) -> Option<String> {
        match self {
            Self::Sqlite => None,
            Self::Server(server, database) => Some(server.url(database)),
        }
    }

    pub(crate) const fn server(&mut self) -> Option<&mut Server> {
        match self {
            Self::Sqlite => None,
            Self::Server(server, _) => Some(server),
        }
    }
}

/// What a database's own program answers to a query; `None` if that is missing.
pub(crate) fn answer(catalog: &CatalogUrl, query: &str) -> Option<Output> {
    let mut command = match catalog {
        CatalogUrl::Sqlite(path) => {
            let mut command = Command::new("sqlite3");
            command.arg("-readonly").arg(path).arg(query);
            command
        }
        CatalogUrl::Postgres(url) => {
            let mut command = Command::new("psql");
            command.args(["-X", "-A", "-t", "-c", query, url]);
            command
        }
        CatalogUrl::Mysql(url) => {
            let (rest, socket) = url.split_once("?socket=").expect("on a socket");
            let mut command = Command::new("mariadb");
            command.args(["--no-defaults", "-u", "root", "-N", "-B", "-S", socket, "-e", query]);
            command.arg(rest.rsplit('/').next().expect("a database"));
            command
        }
    };
    let Ok(output) = command.output() else {
        skipped("rows counted", &format!("needs {}", command.get_program().display()));
        return None;
    };
    Some(output)
}

/// The numbers in the one row that a query gives, by the database's own program; `None` if that is missing.
pub(crate) fn numbers(catalog: &CatalogUrl, query: &str) -> Option<Vec<u64>> {
    let output = answer(catalog, query)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{query}: {wrong}");
    let numbers = said.split(['|', '\t', '\n']).filter(|text| !text.is_empty());
    Some(numbers.map(|text| text.trim().parse().expect("a number")).collect())
}
