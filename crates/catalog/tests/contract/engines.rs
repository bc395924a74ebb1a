//! The databases that the contract is held against.

use crate::servers::Server;
use crate::world::World;
use downpour_catalog::CatalogUrl;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// How often a server is asked to make a database, or whether others are there, and how long between.
const ASKS_MAX: u32 = 600;
const ASK_PAUSE: Duration = Duration::from_millis(200);

/// How many others are connected to a database.
const OTHERS_POSTGRES: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
const OTHERS_MARIADB: &str = "SELECT count(*) FROM information_schema.processlist \
     WHERE db = database() AND id <> connection_id()";

/// A database that can make as many empty catalogs as there are stories.
pub(crate) enum Engine {
    Sqlite(TempDir),
    Postgres(Server),
    Mariadb(Server),
}

impl Engine {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a folder for temporary files"))
    }

    /// A PostgreSQL server, if its programs are here.
    pub(crate) fn postgres() -> Option<Self> {
        Server::postgres().map(Self::Postgres)
    }

    /// A MariaDB server, if its programs are here.
    pub(crate) fn mariadb() -> Option<Self> {
        Server::mariadb().map(Self::Mariadb)
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Mariadb(_) => "mariadb",
        }
    }

    /// The server, of an engine that has one.
    pub(crate) const fn server(&mut self) -> Option<&mut Server> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(server) | Self::Mariadb(server) => Some(server),
        }
    }

    /// An empty place for a catalog.
    pub(crate) fn world(&self, story: &str) -> World {
        // Names of databases are short.
        let database: String = story.chars().take(40).collect();
        let made = |server: &Server, first: &str| {
            create_database(server, &server.url(first), &database);
            server.url(&database).parse().expect("a URL")
        };
        World::at(match self {
            Self::Sqlite(folder) => CatalogUrl::Sqlite(folder.path().join(format!("{story}.db"))),
            Self::Postgres(server) => made(server, "postgres"),
            Self::Mariadb(server) => made(server, "mysql"),
        })
    }
}

/// Waits until the server is up, too.
fn create_database(server: &Server, url: &str, database: &str) {
    let mut asked = 0;
    while let Err(error) = run_sql(url, &format!("CREATE DATABASE {database}")) {
        asked += 1;
        assert!(asked < ASKS_MAX, "{error}\n{}", server.log());
        thread::sleep(ASK_PAUSE);
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// Waits until nobody else is connected to a database.
pub(crate) fn until_alone(url: &str) {
    let mut asked = 0;
    while others(url).expect("a server that answers") > 0 {
        asked += 1;
        assert!(asked < ASKS_MAX, "somebody stays connected");
        thread::sleep(ASK_PAUSE);
    }
}

fn others(url: &str) -> Result<i64, sqlx::Error> {
    use sqlx::{Connection as _, query_scalar};
    block_on(async {
        if url.starts_with("postgres") {
            let mut connection = sqlx::PgConnection::connect(url).await?;
            query_scalar(OTHERS_POSTGRES).fetch_one(&mut connection).await
        } else {
            let mut connection = sqlx::MySqlConnection::connect(url).await?;
            query_scalar(OTHERS_MARIADB).fetch_one(&mut connection).await
        }
    })
}

/// Runs a statement on a server.
pub(crate) fn run_sql(url: &str, text: &str) -> Result<(), sqlx::Error> {
    use sqlx::{Connection as _, Executor as _};
    let text = sqlx::AssertSqlSafe(text);
    block_on(async {
        if url.starts_with("postgres") {
            let mut connection = sqlx::PgConnection::connect(url).await?;
            connection.execute(sqlx::raw_sql(text)).await.map(drop)
        } else {
            let mut connection = sqlx::MySqlConnection::connect(url).await?;
            connection.execute(sqlx::raw_sql(text)).await.map(drop)
        }
    })
}
