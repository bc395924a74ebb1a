//! Sites as child processes, on loopback, in a folder that goes with the test. Whatever a test leaves running is killed.
//!
//! ```text
//! let sites = Two::start();                       a and b, which trust each other
//! sites.a.post::<Value>("/v1/…", &json!({…}))     as its admin
//! sites.b.kill(); sites.b.start();                as a machine that loses power
//! ```

use crate::ports::port;
use downpour::site::{Access, Card, RemoteError, card, init, introduce};
use downpour_catalog::{CatalogUrl, Reader};
use downpour_transport::identity::Identity;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails instead of hanging. Not a measure of speed.
pub(crate) const HANG: Duration = Duration::from_secs(240);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is said of a connection that took too long.
const LATE: &str = "no answer in time";
/// Free room in memory that is enough for the tests that run at once.
const ROOM: u64 = 1 << 30;

/// Waits until `seen` gives something.
pub(crate) fn until<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + HANG;
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Asks again while the daemon of a busy machine is late to take the connection: nothing was asked by then.
fn unless_late<T>(is_late: impl Fn(&T) -> bool, mut ask: impl FnMut() -> T) -> T {
    let end = Instant::now() + HANG;
    loop {
        let answer = ask();
        if !is_late(&answer) || Instant::now() > end {
            return answer;
        }
    }
}

fn is_late<T>(answer: &Result<T, RemoteError>) -> bool {
    matches!(answer, Err(RemoteError::Unreachable(why)) if why.contains(LATE))
}

/// Sends a process a signal, by the shell's own `kill`: the program of that name is not everywhere.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(sent.expect("a shell").success());
}

/// Puts a file into a spool, whole at once: a part of one that is written there, on a busy machine, settles like a whole one.
pub(crate) fn drop_file(path: &Path, content: &[u8]) {
    let part = path.with_file_name(".part");
    fs::write(&part, content).expect("room");
    fs::rename(part, path).expect("the same folder");
}

/// A site in a folder of its own.
pub(crate) struct SiteProcess {
    pub(crate) card: Card,
    folder: PathBuf,
    catalog: CatalogUrl,
    child: Option<Child>,
    runtime: tokio::runtime::Runtime,
}

impl SiteProcess {
    /// Sets it up below `root`; it does not run yet.
    pub(crate) fn new(root: &Path, name: &str) -> Self {
        let folder = root.join(name);
        let setup = downpour::site::Setup {
            name: name.to_owned(),
            folder: folder.clone(),
            state: None,
            listen: Some((Ipv4Addr::LOCALHOST, port()).into()),
            address: None,
        };
        let card = init(&setup).expect("a site is set up");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let catalog = CatalogUrl::Sqlite(folder.join("state/catalog.db"));
        Self { card, folder, catalog, child: None, runtime }
    }

    /// Its catalog is to be this database.
    pub(crate) fn keep_book_in(&mut self, url: &str) {
        self.configure(&format!("[site]\ncatalog = \"{url}\""));
        self.catalog = url.parse().expect("a URL");
    }

    /// Where its catalog is.
    pub(crate) const fn catalog(&self) -> &CatalogUrl {
        &self.catalog
    }

    /// Its catalog, read beside the daemon.
    pub(crate) fn reader(&self) -> Reader {
        Reader::open(&self.catalog).expect("a catalog")
    }

    /// A file of its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Its configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.path("site.toml")
    }

    /// Adds to its configuration: keys to the sections that are there, and new ones.
    pub(crate) fn configure(&self, more: &str) {
        let mut text = fs::read_to_string(self.config()).expect("a configuration");
        let mut at = text.len();
        for line in more.lines() {
            let line = format!("{line}\n");
            if line.starts_with('[') && !line.starts_with("[[") {
                let heading = text.find(&format!("\n{line}"));
                at = heading.map_or(text.len(), |start| start + 1);
                if heading.is_some() {
                    at += line.len();
                    continue;
                }
            } else if line.starts_with("[[") {
                at = text.len();
            }
            text.insert_str(at, &line);
            at += line.len();
        }
        fs::write(self.config(), text).expect("room");
    }

    /// Trusts another one.
    pub(crate) fn trust(&self, other: &Card) {
        introduce(&self.folder, other).expect("a site to trust");
    }

    /// A command of the program for it, such as `service status`.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        // Another build of the program, for long campaigns.
        let program = std::env::var_os("DOWNPOUR_TEST_PROGRAM");
        let mut command =
            Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_downpour").into()));
        command.args(arguments).env("DOWNPOUR_SITE", self.config());
        command.env("DOWNPOUR_HOME", self.path("home")).stdin(Stdio::null());
        for variable in
            ["DOWNPOUR_TOKEN", "DOWNPOUR_AT", "DOWNPOUR_CATALOG", "DOWNPOUR_PORTS", "NOTIFY_SOCKET"]
        {
            command.env_remove(variable);
        }
        command
    }

    /// Runs such a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let is_late = |output: &Output| {
            let err = String::from_utf8_lossy(&output.stderr);
            output.status.code() == Some(3) && err.contains(LATE)
        };
        unless_late(is_late, || self.command(arguments).output().expect("the program runs"))
    }

    /// The same; it must succeed. What it printed.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {err}\n{}", self.log());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Starts it and waits until it is ready.
    pub(crate) fn start(&mut self) {
        let command = self.command(&["serve"]);
        self.start_command(command);
    }

    /// The same with the key that it has now, which may be another.
    pub(crate) fn start_as_another(&mut self) {
        Identity::load_or_create(&self.path("state")).expect("a key");
        self.card = card(&self.folder).expect("a site");
        self.start();
    }

    /// The same by a command that was changed.
    pub(crate) fn start_command(&mut self, command: Command) {
        self.spawn(command);
        until("the site is ready", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("our child"));
            assert!(ended.is_none(), "{} ended: {ended:?}\n{}", self.card.name, self.log());
            self.text("/readyz").ok().filter(|(status, _)| *status == 200)
        });
    }

    /// The same, and nobody waits for it.
    pub(crate) fn spawn(&mut self, mut command: Command) {
        let mut options = OpenOptions::new();
        let log = options.create(true).append(true).open(self.path("log")).expect("a file");
        command.stdout(File::create(self.path("out")).expect("a file")).stderr(log);
        self.child = Some(command.spawn().expect("the program starts"));
    }

    /// Whether it was started and has not ended by itself.
    pub(crate) fn runs(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| child.try_wait().expect("our child").is_none())
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// As a machine that loses power.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Sends it a signal, such as HUP.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for its end; its exit status.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        until("the site ends", || child.try_wait().expect("our child")).code()
    }

    /// A way to it, as its admin or with another token. It does not depend on the configuration.
    pub(crate) fn access(&self, token: Option<&str>) -> Access {
        let admin = || fs::read_to_string(self.path("state/admin.token")).expect("a token");
        let token = token.map_or_else(admin, str::to_owned).trim().to_owned();
        Access::new(self.card.address.clone(), self.card.key, token)
    }

    /// Asks it for something, as its admin.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RemoteError> {
        unless_late(is_late, || self.runtime.block_on(self.access(None).get(path)))
    }

    /// Sends it something, as its admin.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RemoteError> {
        unless_late(is_late, || self.runtime.block_on(self.access(None).post(path, body)))
    }

    /// Asks it for something that is not JSON: status and text.
    pub(crate) fn text(&self, path: &str) -> Result<(u16, String), RemoteError> {
        unless_late(is_late, || self.runtime.block_on(self.access(None).text(path)))
    }

    /// Does something asynchronous in the test.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

impl Drop for SiteProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A site alone, at work.
pub(crate) struct One {
    pub(crate) site: SiteProcess,
    _folder: tempfile::TempDir,
}

impl One {
    /// Set up with `more` in its configuration, and started.
    pub(crate) fn start(more: &str) -> Self {
        let folder = folder();
        let mut site = SiteProcess::new(folder.path(), "a");
        site.configure(more);
        site.start();
        Self { site, _folder: folder }
    }
}

/// Two sites that trust each other, at work.
pub(crate) struct Two {
    pub(crate) a: SiteProcess,
    pub(crate) b: SiteProcess,
    _folder: tempfile::TempDir,
}

impl Two {
    /// With `more` in the configuration of each.
    pub(crate) fn start(more: [&str; 2]) -> Self {
        let mut sites = Self::set_up(more);
        sites.a.start();
        sites.b.start();
        sites
    }

    /// The same, but they do not run yet.
    pub(crate) fn set_up(more: [&str; 2]) -> Self {
        let folder = folder();
        let a = SiteProcess::new(folder.path(), "a");
        let b = SiteProcess::new(folder.path(), "b");
        a.trust(&b.card);
        b.trust(&a.card);
        a.configure(more[0]);
        b.configure(more[1]);
        Self { a, b, _folder: folder }
    }
}

/// A folder in memory, where that has room, unless `DOWNPOUR_TEST_FOLDER` names a place with more.
pub(crate) fn folder() -> tempfile::TempDir {
    let named = std::env::var("DOWNPOUR_TEST_FOLDER").ok();
    let memory = rustix::fs::statvfs("/dev/shm");
    let has_room = memory.is_ok_and(|memory| memory.f_bavail * memory.f_frsize >= ROOM);
    let place = named.as_deref().unwrap_or(if has_room { "/dev/shm" } else { "/tmp" });
    tempfile::Builder::new().prefix("downpour-site-").tempdir_in(place).expect("a folder")
}
