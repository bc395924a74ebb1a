//! Servers of databases that tests start themselves: PostgreSQL and MariaDB, each in a folder of its own, on a socket there,
//! as a user without rights when the test is root, ended by its pid when the test ends; also when the test is killed
//! (`setpriv --pdeathsig`).
//!
//! They do not sync: tests kill processes and never the machine, and it spares minutes. What they said is committed was
//! written to the system, so that `kill -9` loses none of it.

use crate::skipped::skipped;
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

/// A server that runs as long as this value lives.
pub(crate) struct Server {
    folder: TempDir,
    /// Where it listens, below the folder.
    socket: &'static str,
    command: Command,
    process: Option<Child>,
}

impl Server {
    /// A PostgreSQL server, if its programs are here. It has a database `postgres`.
    pub(crate) fn postgres() -> Option<Self> {
        let Some(bin) = folder_of("initdb", "/usr/lib/postgresql") else {
            skipped("postgres", "initdb is not installed");
            return None;
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
        Some(Self::of(folder, ".s.PGSQL.5432", command))
    }

    /// A MariaDB server, if its programs are here. It has a database `test`.
    pub(crate) fn mariadb() -> Option<Self> {
        let (Some(install), Some(server)) =
            (folder_of("mariadb-install-db", "/usr/bin"), folder_of("mariadbd", "/usr/sbin"))
        else {
            skipped("mariadb", "mariadbd is not installed");
            return None;
        };
        let folder = server_folder();
        let data = folder.path().join("data");
        let made = as_user(&install.join("mariadb-install-db"))
            .args(["--no-defaults", "--auth-root-authentication-method=normal"])
            .arg(format!("--datadir={}", data.display()))
            .output();
        succeed("mariadb-install-db", made);
        let mut command = as_user(&server.join("mariadbd"));
        command.args(["--no-defaults", "--skip-networking", "--innodb-flush-log-at-trx-commit=2"]);
        command.arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", folder.path().join("socket").display()));
        command.arg(format!("--pid-file={}", folder.path().join("pid").display()));
        Some(Self::of(folder, "socket", command))
    }

    fn of(folder: TempDir, socket: &'static str, mut command: Command) -> Self {
        let log = fs::File::create(folder.path().join("log")).expect("our own folder");
        let errors = log.try_clone().expect("a descriptor");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let mut server = Self { folder, socket, command, process: None };
        server.start();
        server
    }

    /// Starts it and waits until it lets people in, which is a little after it listens.
    pub(crate) fn start(&mut self) {
        let before = self.times_ready();
        for _ in 0..ASKS_MAX {
            let ended = match &mut self.process {
                Some(process) => process.try_wait().expect("our child").is_some(),
                None => true,
            };
            // One that was killed may have left processes that hold what it needs: it ends at once, and is started again.
            if ended {
                self.process = Some(self.command.spawn().expect("the server's program is there"));
            }
            thread::sleep(ASK_PAUSE);
            if self.times_ready() > before {
                return;
            }
        }
        panic!("a server does not start:\n{}", self.log());
    }

    /// As by `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }

    /// A database of it.
    pub(crate) fn url(&self, database: &str) -> String {
        let folder = self.folder.path().display();
        match self.socket {
            "socket" => format!("mysql://root@localhost/{database}?socket={folder}/socket"),
            _ => format!("postgres://downpour@localhost/{database}?host={folder}"),
        }
    }

    /// How often it has said that it lets people in.
    fn times_ready(&self) -> usize {
        // PostgreSQL, MariaDB.
        let words = ["ready to accept connections", "ready for connections"];
        let log = self.log();
        words.iter().map(|words| log.matches(words).count()).sum()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // PostgreSQL takes SIGINT for "now, and in order"; MariaDB takes SIGTERM so, and ignores SIGINT.
        if let Some(pid) = Pid::from_raw(process.id().cast_signed()) {
            let _ = kill_process(pid, Signal::INT);
            let _ = kill_process(pid, Signal::TERM);
        }
        drop(process.wait());
    }
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
