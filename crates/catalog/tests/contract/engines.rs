//! The databases that the contract is held against.
//!
//! A server runs in a folder of its own, on a socket there, as a user without rights when the test is root, and is ended by
//! its pid when the test ends; also when the test is killed (`setpriv --pdeathsig`). The stories ask about rules, not about
//! power cuts, so these servers do not sync: it spares minutes.

use crate::world::World;
use downpour_catalog::CatalogUrl;
use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Who runs a server when the test is root.
const USER: &str = "nobody";
/// How often a server is asked whether it is up, and how long between.
const ASKS_MAX: u32 = 600;
const ASK_PAUSE: Duration = Duration::from_millis(200);

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
        let Some(bin) = folder_of("initdb", "/usr/lib/postgresql") else {
            return skipped("postgres", "initdb is not installed");
        };
        let folder = server_folder();
        let data = folder.path().join("data");
        let made = as_user(&bin.join("initdb"))
            .args(["-A", "trust", "-U", "downpour", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .output();
        succeed("initdb", made);
        let mut command = as_user(&bin.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(folder.path());
        command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"]);
        Some(Self::Postgres(Server::start(folder, command)))
    }

    /// A MariaDB server, if its programs are here.
    pub(crate) fn mariadb() -> Option<Self> {
        let (Some(install), Some(server)) =
            (folder_of("mariadb-install-db", "/usr/bin"), folder_of("mariadbd", "/usr/sbin"))
        else {
            return skipped("mariadb", "mariadbd is not installed");
        };
        let folder = server_folder();
        let data = folder.path().join("data");
        let made = as_user(&install.join("mariadb-install-db"))
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .output();
        succeed("mariadb-install-db", made);
        let mut command = as_user(&server.join("mariadbd"));
        command.args(["--no-defaults", "--skip-networking", "--innodb-flush-log-at-trx-commit=0"]);
        command.arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", folder.path().join("socket").display()));
        command.arg(format!("--pid-file={}", folder.path().join("pid").display()));
        Some(Self::Mariadb(Server::start(folder, command)))
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Mariadb(_) => "mariadb",
        }
    }

    /// An empty place for a catalog.
    pub(crate) fn world(&self, story: &str) -> World {
        // Names of databases are short.
        let database: String = story.chars().take(40).collect();
        World::at(match self {
            Self::Sqlite(folder) => CatalogUrl::Sqlite(folder.path().join(format!("{story}.db"))),
            Self::Postgres(server) => {
                let url = |database: &str| {
                    let folder = server.folder.path().display();
                    format!("postgres://downpour@localhost/{database}?host={folder}")
                };
                server.create_database(&url("postgres"), &database);
                url(&database).parse().expect("a URL")
            }
            Self::Mariadb(server) => {
                let url = |database: &str| {
                    let folder = server.folder.path().display();
                    format!("mysql://root@localhost/{database}?socket={folder}/socket")
                };
                server.create_database(&url("mysql"), &database);
                url(&database).parse().expect("a URL")
            }
        })
    }
}

/// A server that runs as long as this value lives.
pub(crate) struct Server {
    folder: TempDir,
    process: Child,
}

impl Server {
    fn start(folder: TempDir, mut command: Command) -> Self {
        let log = fs::File::create(folder.path().join("log")).expect("our own folder");
        let errors = log.try_clone().expect("a descriptor");
        let command = command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let process = command.spawn().expect("the server's program is there");
        Self { folder, process }
    }

    /// Waits until the server is up, too.
    fn create_database(&self, url: &str, database: &str) {
        let mut asked = 0;
        loop {
            match run_sql(url, &format!("CREATE DATABASE {database}")) {
                Ok(()) => return,
                Err(error) => {
                    asked += 1;
                    assert!(asked < ASKS_MAX, "{error}\n{}", self.log());
                    thread::sleep(ASK_PAUSE);
                }
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL takes SIGINT for "now, and in order"; MariaDB takes SIGTERM so, and ignores SIGINT.
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process(pid, Signal::INT);
            let _ = kill_process(pid, Signal::TERM);
        }
        drop(self.process.wait());
    }
}

/// Runs a statement on a server.
pub(crate) fn run_sql(url: &str, text: &str) -> Result<(), sqlx::Error> {
    use sqlx::{Connection as _, Executor as _};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let text = sqlx::AssertSqlSafe(text);
    runtime.expect("a runtime").block_on(async {
        if url.starts_with("postgres") {
            let mut connection = sqlx::PgConnection::connect(url).await?;
            connection.execute(sqlx::raw_sql(text)).await.map(drop)
        } else {
            let mut connection = sqlx::MySqlConnection::connect(url).await?;
            connection.execute(sqlx::raw_sql(text)).await.map(drop)
        }
    })
}

/// Says so; in CI nothing is skipped.
fn skipped<T>(name: &str, why: &str) -> Option<T> {
    println!("skipped: {name}: {why}");
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "nothing is skipped in CI: {name}");
    None
}

/// The folder that holds a program: on the path, or below where Debian keeps those of PostgreSQL.
fn folder_of(program: &str, elsewhere: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let below = fs::read_dir(elsewhere).into_iter().flatten().flatten();
    let found = env::split_paths(&path)
        .chain([PathBuf::from(elsewhere)])
        .chain(below.map(|entry| entry.path().join("bin")))
        .find(|folder| folder.join(program).is_file())?;
    // PostgreSQL finds its other programs beside the real one.
    let real = fs::canonicalize(found.join(program)).ok()?;
    let is_same_name = real.file_name().is_some_and(|name| name == program);
    if is_same_name { real.parent().map(Path::to_owned) } else { Some(found) }
}

/// A folder that the server's user may enter and write.
fn server_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    if is_root() {
        let owned = Command::new("chown").arg(USER).arg(folder.path()).status();
        assert!(owned.expect("chown is everywhere").success());
    }
    folder
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that ends with this test, under a user without rights.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid", USER, "--regid", "nogroup", "--clear-groups"]);
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).current_dir("/");
    command
}

fn succeed(what: &str, output: std::io::Result<std::process::Output>) {
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&said));
}
