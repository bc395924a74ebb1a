//! From the configuration to a running site, and to its end.
//!
//! 1. The state folder is taken, so that no second daemon works in it; where other sites or receivers are configured, its key must
//!    be there. Key, catalog, tokens and audit record are opened, the door listens, services start; systemd is told.
//! 2. SIGHUP reads the configuration again. One that is wrong, or that needs another process, is refused, and the one
//!    before stays.
//! 3. SIGTERM and SIGINT drain: services finish what is under way for the configured time; then everything ends. A second
//!    one does not wait.

use super::audit::{self, Deed};
use super::config::Config;
use super::endpoint::Door;
use super::held::{Held, Place};
use super::log::{self, LogHandle};
use super::pulse::touch;
use super::service::Service;
use super::systemd::Systemd;
use super::{
    Audit, BadConfig, CONFIG_FILE, Clock, Events, Fault, Metrics, READERS_MAX, Site, SiteEvent,
    Supervisor, TokenError, Tokens, blocking, parts,
};
use crate::api::Routes;
use crate::cli::read_defaults;
use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, Error, OpenError, Reader};
use downpour_transport::identity::{Identity, IdentityError};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};

/// A site at work.
pub struct Daemon {
    /// What its parts share.
    pub site: Arc<Site>,
    /// Where it listens.
    pub local_addr: SocketAddr,
    file: PathBuf,
    log: Option<LogHandle>,
    door: Arc<Door>,
    /// Keeps others out of the state folder and the catalog.
    _held: (Held, Option<Held>),
}

/// The daemon did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration.
    Config(BadConfig),
    /// Something that it names.
    Open {
        /// What happened.
        what: String,
        /// What to do.
        todo: String,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(bad) => bad.fmt(f),
            Self::Open { what, .. } => f.write_str(what),
        }
    }
}

impl std::error::Error for StartError {}

pub(super) fn cannot(what: impl Into<String>, todo: &str) -> StartError {
    StartError::Open { what: what.into(), todo: todo.to_owned() }
}

impl Daemon {
    /// Starts the site of a configuration file.
    pub async fn start(file: &Path, clock: Clock) -> Result<Self, StartError> {
        let config = read(file)?;
        let log = log::begin(config.site.log, config.site.log_form);
        let is_usual = is_usual(file);
        let opened = tokio::task::spawn_blocking(move || {
            // Where its state is not mounted nothing is made in its place.
            check_key(&config, is_usual)?;
            // First: opening the catalog takes it away from whoever has it.
            let has_run = has_run(&config.state());
            let held = Held::state(&config.state())?;
            // A copy of this site, started to try it, has a state folder of its own.
            let catalog = Held::catalog(&config.catalog())?;
            tell_of_new_catalog(&config.catalog(), has_run);
            Ok((open(config, clock, held.place.clone())?, (held, catalog)))
        });
        let ended = |_| cannot("the start broke off", "look at what was printed before");
        let (site, held) = opened.await.map_err(ended)??;
        let site = Arc::new(site);
        let (mut services, mut routes) = (Vec::<Arc<dyn Service>>::new(), Routes::default());
        for part in parts(&site) {
            services.extend(part.services);
            routes = routes.merge(part.routes);
        }
        let door = Door::open(&site, routes).await.map_err(|error| {
            cannot(error.to_string(), "choose another [api] listen in the configuration")
        })?;
        let local_addr = door.local_addr().expect("it was opened just now");
        let door = Arc::new(door);
        services.push(door.clone());
        // Nobody else sets it, and nobody can ask for it before.
        site.supervisor.get_or_init(|| Supervisor::new(services)).start(&site);
        tracing::info!(site = site.name, key = %site.identity.public_key(), "started");
        Ok(Self { site, local_addr, file: file.to_owned(), log, door, _held: held })
    }

    /// Serves until a signal ends it.
    pub async fn run(self) -> std::io::Result<()> {
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let systemd = Systemd::from_environment();
        systemd.tell("READY=1");
        let beat = async {
            let Some(beat) = systemd.beat() else { return std::future::pending().await };
            loop {
                tokio::time::sleep(beat).await;
                systemd.tell("WATCHDOG=1");
            }
        };
        tokio::pin!(beat);
        let watch = self.site.watch_state();
        tokio::pin!(watch);
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    systemd.tell("RELOADING=1");
                    self.reload().await;
                    systemd.tell("READY=1");
                }
                () = &mut beat => {}
                () = &mut watch => {}
            }
        }
        systemd.tell("STOPPING=1");
        let grace = *self.site.config().site.drain;
        tracing::info!(seconds = grace.as_secs_f64(), "draining");
        tokio::select! {
            () = self.end(grace) => {}
            _ = again(&mut term, &mut interrupt) => self.end(Duration::ZERO).await,
        }
        tracing::info!("ended");
        Ok(())
    }

    /// Ends all services: what is under way may finish for `grace`.
    pub async fn end(&self, grace: Duration) {
        self.site.supervisor().end(grace).await;
        self.site.events.end();
        self.site.supervisor().close().await;
        self.site.end_all_refused().await;
        // Connections may outlive this, in tasks that are cut off with the process: the file is not closed by itself.
        let site = self.site.clone();
        if let Err(error) = blocking(move || Ok(site.catalog.checkpoint()?)).await {
            tracing::warn!(%error, "what was recorded last is in the catalog's -wal alone: keep it beside the file");
        }
    }

    /// Reads the configuration again. When it cannot be used, the one before stays.
    pub async fn reload(&self) -> bool {
        let refusal = self.take_config().await.err();
        match &refusal {
            None => tracing::info!("configuration reloaded"),
            Some(why) => tracing::error!(why, "configuration refused; the one before stays"),
        }
        let done = refusal.is_none();
        let deed = Deed {
            who: "signal".to_owned(),
            from: String::new(),
            what: "reload".to_owned(),
            result: if done { "done" } else { "refused" }.to_owned(),
            detail: refusal.unwrap_or_default(),
        };
        if let Err(error) = self.site.record(deed).await {
            tracing::error!(%error, "the audit record cannot be written");
        }
        done
    }

    /// Takes the file's configuration, or says why not.
    async fn take_config(&self) -> Result<(), String> {
        let new = read(&self.file).map_err(|error| error.to_string())?;
        if let Some(key) = self.site.config().needs_restart(&new) {
            return Err(format!("{key} has changed: restart the daemon for that"));
        }
        self.door.prepare(&self.site, &new).await.map_err(|error| {
            format!(
                "[api] listen: {error}; for another address with the same port restart the daemon"
            )
        })?;
        if let Some(log) = &self.log {
            log.change(new.site.log);
        }
        self.site.replace_config(new);
        Ok(())
    }
}

/// The configuration, under the machine's defaults.
fn read(file: &Path) -> Result<Config, StartError> {
    under_defaults(file, Config::read(file).map_err(StartError::Config)?)
}

fn under_defaults(file: &Path, mut config: Config) -> Result<Config, StartError> {
    let defaults = read_defaults().map_err(|fault| cannot(fault.what, &fault.todo))?;
    let mut wrong = config.heed(&defaults);
    wrong.extend(config.folders_over_own(Path::to_owned));
    config.unless(file, wrong).map_err(StartError::Config)
}

/// The same, for who asks whether a daemon would start with it, and wait for nothing. Nothing is made.
pub(crate) fn look(file: &Path) -> Result<Config, StartError> {
    let config = Config::read_and_look(file).map_err(StartError::Config)?;
    let config = under_defaults(file, config)?;
    check_key(&config, is_usual(file))?;
    Tokens::open(&config.state()).map_err(|error| no_tokens(&error))?;
    check_links(&config)?;
    Ok(config)
}

/// Without what operators want of links none is opened.
fn check_links(config: &Config) -> Result<(), StartError> {
    crate::dispatch::check_links(config).map_err(|(file, error)| {
        let file = file.display();
        let what = format!("it is not known which links are drained or banned: {file}: {error}");
        cannot(what, "restore it; if that cannot be, remove it, start, and drain and ban anew")
    })
}

fn is_usual(file: &Path) -> bool {
    file.ends_with(CONFIG_FILE)
}

async fn again(term: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Set by an operator who has dumped the server's database: an older catalog in it is brought forward.
const DUMPED: &str = "DOWNPOUR_CATALOG_DUMPED";

/// What to do about a key that is there and cannot be had.
const MEND_KEY: &str =
    "mend the node's key, or restore it; the daemon's user must be able to read it";

fn no_key(error: &IdentityError, config: &Config) -> StartError {
    let mut todo = MEND_KEY.to_owned();
    if matches!(error, IdentityError::NotAKey { .. }) {
        let folder = config.folder.display();
        todo +=
            &format!("; for a new key move that file away, then: downpour init --folder {folder}");
    }
    StartError::Open { what: error.to_string(), todo }
}

/// How often the state folder is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Other sites know this one by its key: with a new one it would be a stranger to them, and with an empty catalog call version 1 what is
/// none. `init` makes one where the configuration has its usual name.
fn check_key(config: &Config, is_usual: bool) -> Result<(), StartError> {
    let state = config.state();
    let key = Identity::load(&state).map_err(|error| no_key(&error, config))?;
    let is_alone = config.remote.is_empty() && config.receiver.is_empty();
    if is_alone || key.is_some() {
        return Ok(());
    }
    let what = format!(
        "no node's key in {}, and other sites or receivers are configured",
        state.display()
    );
    if !is_usual {
        tracing::warn!("{what}: a new one is made, by which these do not know this site");
        return Ok(());
    }
    let todo = format!(
        "mount that folder, or restore it; for a new key, as the daemon's user: downpour init --folder {}",
        config.folder.display()
    );
    Err(StartError::Open { what, todo })
}

/// Whether a daemon has run with this state folder: one that cannot open its catalog leaves no audit record.
fn has_run(state: &Path) -> bool {
    state.join(audit::FILE).exists()
}

/// Says so where a daemon has run and its catalog is no longer there: an empty one is made.
fn tell_of_new_catalog(url: &CatalogUrl, has_run: bool) {
    let CatalogUrl::Sqlite(path) = url else { return };
    if has_run && path.metadata().map_or(0, |meta| meta.len()) == 0 {
        let path = path.display();
        tracing::warn!(%path, "no catalog here, though a daemon has run: it is made anew, and empty; docs/reconcile.md, A lost catalog");
    }
}

fn no_tokens(error: &TokenError) -> StartError {
    let todo = match error {
        TokenError::File(_, error) if error.kind() == ErrorKind::PermissionDenied => {
            "make it readable for the daemon's user"
        }
        _ => {
            "restore the file; or move it away, and make new tokens with `downpour token new --offline`"
        }
    };
    cannot(error.to_string(), todo)
}

fn no_audit(state: &Path, error: &io::Error) -> StartError {
    let file = state.join(audit::FILE);
    let todo = match error.kind() {
        ErrorKind::PermissionDenied => "make it readable and writable for the daemon's user",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space there",
        ErrorKind::NotFound => "it is a link that leads nowhere: mend it, or remove it",
        _ => "if it is damaged, move it aside and keep it",
    };
    cannot(format!("the audit record {}: {error}", file.display()), todo)
}

/// Whose catalog it is, if it is another site's: files are known by the name of the site where they begin, so that none ever changes it.
/// Daemons write in a catalog as SITE/KEY. In the database of a server there may be several, so that it is the key that counts; a file
/// has one at a time. It may have had both names before.
fn whose<'a>(
    writers: impl Iterator<Item = &'a str> + Clone,
    own: (&str, &str),
    is_shared: bool,
) -> Option<&'a str> {
    let mut daemons = writers.filter_map(|name| name.rsplit_once('/'));
    if daemons.clone().any(|(site, _)| site == own.0) {
        return None;
    }
    daemons.find(|(_, key)| !is_shared || *key == own.1).map(|(site, _)| site)
}

/// The site whose catalog it is, if that is another one. Of one that cannot be read nobody knows. Blocks.
pub(crate) fn owner_of(url: &CatalogUrl, site: &str, key: &str) -> Option<String> {
    let logs = Reader::open(url).ok()?.logs().ok()?;
    let writers = logs.iter().map(|(_, name, _)| name.as_str());
    let is_shared = !matches!(url, CatalogUrl::Sqlite(_));
    whose(writers, (site, key), is_shared).map(str::to_owned)
}

/// Looks whether a catalog is this site's. One that cannot be read is told of when it is opened. Blocks.
fn check_whose(url: &CatalogUrl, site: &str, key: &str) -> Result<(), StartError> {
    let Some(other) = owner_of(url, site, key) else { return Ok(()) };
    let what = format!("{url:?} is the catalog of site {other}, and this is {site}");
    let todo = format!(
        "a site never changes its name: write name = \"{other}\" again, or give this site a [site] catalog of its own"
    );
    Err(StartError::Open { what, todo })
}

/// Opens what a site keeps. Blocks.
fn open(config: Config, clock: Clock, held: Place) -> Result<Site, StartError> {
    let state = config.state();
    let identity = Identity::load_or_create(&state).map_err(|error| no_key(&error, &config))?;
    let url = config.catalog();
    let before = match &url {
        CatalogUrl::Sqlite(path) => BeforeMigration::CopyTo(path.with_extension("before")),
        _ if std::env::var_os(DUMPED).is_some() => BeforeMigration::DumpExists,
        _ => BeforeMigration::Refuse,
    };
    let node = identity.public_key().to_string();
    check_whose(&url, &config.site.name, &node[..8])?;
    let name = format!("{}/{}", config.site.name, &node[..8]);
    let catalog = Catalog::open(&url, &name, clock.now(), &before).map_err(|error| {
        let todo = match error {
            OpenError::Older { .. } => {
                "dump the database, then start once with DOWNPOUR_CATALOG_DUMPED=1"
            }
            OpenError::Database(Error::Unreachable(_)) => {
                "see that the server runs, that its database is there, and that host, port, user and password in [site] catalog are right"
            }
            _ => "see docs/catalog.md; [site] catalog names it",
        };
        cannot(format!("cannot open the catalog {url:?}: {error}"), todo)
    })?;
    let tokens = Tokens::open(&state).map_err(|error| no_tokens(&error))?;
    let audit = Audit::open(&state).map_err(|error| no_audit(&state, &error))?;
    check_links(&config)?;
    let site = Site {
        name: config.site.name.clone(),
        identity: Arc::new(identity),
        catalog: Arc::new(catalog),
        events: Events::new(clock.clone()),
        clock,
        inboxes: Default::default(),
        pulse: Default::default(),
        held,
        tokens,
        audit,
        metrics: Metrics::default(),
        refused: Default::default(),
        config: watch::channel(Arc::new(config.clone())).0,
        remotes: Default::default(),
        readers: Default::default(),
        reads: Arc::new(Semaphore::new(READERS_MAX)),
        supervisor: Default::default(),
    };
    site.replace_config(config);
    Ok(site)
}

impl Site {
    /// Tells when the state folder is no longer the one that was opened, and when it is again: what is made meanwhile is made
    /// elsewhere. And when its disk takes nothing.
    async fn watch_state(self: &Arc<Self>) {
        let was_here = Arc::new(AtomicBool::new(true));
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (site, was_here) = (self.clone(), was_here.clone());
            self.pulse.watch(Instant::now(), move || {
                let is_here = site.is_state_here();
                match (was_here.swap(is_here, Ordering::Relaxed), is_here) {
                    (true, false) => tracing::error!(
                        "the state folder is not the one that was opened: it was moved, unmounted or replaced; put it back, \
                         or end the daemon and restore it"
                    ),
                    (false, true) => tracing::info!("the state folder is back"),
                    _ => {}
                }
                // What is in its place is left as it is.
                if is_here { touch(&site.config().state()) } else { Ok(()) }
            });
        }
    }

    /// Whether the state folder is still the one that was opened.
    pub(crate) async fn has_its_state(self: &Arc<Self>) -> bool {
        let site = self.clone();
        blocking(move || Ok(site.is_state_here())).await.unwrap_or(false)
    }

    /// The same. Blocks.
    pub(crate) fn is_state_here(&self) -> bool {
        self.held.is_here()
    }

    /// Adds to the audit record, and tells listeners.
    pub(crate) async fn record(self: &Arc<Self>, deed: Deed) -> Result<(), Fault> {
        let site = self.clone();
        let written =
            tokio::task::spawn_blocking(move || site.audit.record(deed, site.clock.now()));
        let failed = |what: String| Fault::new(downpour_catalog::ErrorClass::OutOfResources, what);
        let entry = written.await.map_err(|error| failed(error.to_string()))?;
        let entry = entry.map_err(|error| failed(format!("the audit record: {error}")))?;
        self.events.tell(SiteEvent::AUDIT, &entry);
        Ok(())
    }
}

#[cfg(test)]
impl Daemon {
    /// For tests: a site of this name, with a key, and with `more` in its configuration.
    pub(crate) async fn example(folder: &Path, name: &str, more: &str) -> Self {
        let file = folder.join(CONFIG_FILE);
        let text = format!("[site]\nname = '{name}'\n[api]\nlisten = '127.0.0.1:0'\n{more}");
        std::fs::write(&file, text).unwrap();
        // It makes the key, without which no site starts that knows others.
        super::card(folder).unwrap();
        Self::start(&file, Clock::system()).await.unwrap()
    }

    /// The same when its services have ended: the test has the only ones.
    pub(crate) async fn ended(folder: &Path, name: &str, more: &str) -> Arc<Site> {
        let daemon = Self::example(folder, name, more).await;
        daemon.end(Duration::ZERO).await;
        daemon.site
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clock, Daemon, READER_IDLE_MAX, READERS_MAX, StartError, card};
    use super::{audit, has_run, whose};
    use downpour_catalog::{ErrorClass, Reader};
    use downpour_transport::identity::Identity;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Barrier};
    use std::time::Duration;
    use tokio::task::JoinSet;
    use tokio::time::{sleep, timeout};

    fn configured(folder: &Path, listen: &str) -> PathBuf {
        let file = folder.join("site.toml");
        let text = format!("[site]\nname = 'a'\n[api]\nlisten = '{listen}'\n");
        fs::write(&file, text).unwrap();
        file
    }

    #[tokio::test]
    async fn when_it_has_ended_the_catalogs_file_is_whole_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        daemon.end(Duration::ZERO).await;
        // Somebody still has it open.
        let log = daemon.site.config().state().join("catalog.db-wal");
        assert_eq!(log.metadata().map_or(0, |log| log.len()), 0);
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_had_leaves_the_door_open() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        let taken = TcpListener::bind(("127.0.0.1", crate::test_ports::port())).unwrap();
        let elsewhere = taken.local_addr().unwrap();
        configured(folder.path(), &elsewhere.to_string());
        assert!(!daemon.reload().await);
        assert_eq!(daemon.site.config().api.listen.port(), 0);
        assert!(TcpStream::connect(daemon.local_addr).is_ok());
        drop(taken);
        // A program that another test started just now may hold it until it runs.
        let had = async {
            while !daemon.reload().await {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), had).await.expect("it can be had");
        assert!(TcpStream::connect(elsewhere).is_ok());
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_site_that_others_know_makes_itself_no_key_and_nothing_where_its_state_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let (site, state) = (fs::read_to_string(&file).unwrap(), folder.path().join("state"));
        let key = Identity::generate().public_key();
        for one in ["receiver", "remote"] {
            fs::write(&file, format!("{site}[[{one}]]\nname = 'b'\nkey = '{key}'\n")).unwrap();
            let Err(StartError::Open { what, todo }) = Daemon::start(&file, Clock::system()).await
            else {
                panic!("a new site");
            };
            assert!(what.contains("no node's key") && todo.contains("downpour init"), "{what}");
            assert!(!state.exists());
        }
        let other = folder.path().join("other.toml");
        fs::copy(&file, &other).unwrap();
        Daemon::start(&other, Clock::system()).await.unwrap().end(Duration::ZERO).await;
        fs::remove_dir_all(state).unwrap();
        let key = card(folder.path()).unwrap().key;
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        assert_eq!(daemon.site.identity.public_key(), key);
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_pipe_in_the_place_of_a_file_of_the_state_is_told_of_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        Daemon::start(&file, Clock::system()).await.unwrap().end(Duration::ZERO).await;
        let state = folder.path().join("state");
        for name in ["node.key", "tokens.json", "daemon.lock", audit::FILE] {
            let (path, aside) = (state.join(name), state.join("aside"));
            let was_there = fs::rename(&path, &aside).is_ok();
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            let started = Daemon::start(&file, Clock::system());
            let started = timeout(Duration::from_secs(60), started).await.expect("it answers");
            let told = started.err().expect("it does not start").to_string();
            assert!(told.contains(name), "{told}");
            fs::remove_file(&path).unwrap();
            if was_there {
                fs::rename(&aside, &path).unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_start_that_cannot_open_its_catalog_is_no_run() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let site = fs::read_to_string(&file).unwrap();
        let [state, of_catalog] = ["state", "db"].map(|name| folder.path().join(name));
        let catalog = format!("catalog = 'sqlite:{}/c.db'\n[api]", of_catalog.display());
        fs::write(&file, site.replace("[api]", &catalog)).unwrap();
        assert!(Daemon::start(&file, Clock::system()).await.is_err());
        assert!(state.exists() && !has_run(&state));
        fs::create_dir(of_catalog).unwrap();
        Daemon::start(&file, Clock::system()).await.unwrap().end(Duration::ZERO).await;
        assert!(has_run(&state));
    }

    #[test]
    fn a_catalog_is_that_of_the_sites_that_write_to_it() {
        let whose = |writers: &[&'static str], is_shared| {
            whose(writers.iter().copied(), ("d", "KEY"), is_shared)
        };
        for (writers, file, server) in [
            (&[][..], None, None),
            (&["rebuild"], None, None),
            (&["rebuild", "d/OLD"], None, None),
            (&["e/KEY"], Some("e"), Some("e")),
            (&["rebuild", "e/OTHER"], Some("e"), None),
            (&["e/KEY", "d/KEY"], None, None),
        ] {
            assert_eq!(
                (whose(writers, false), whose(writers, true)),
                (file, server),
                "{writers:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_site_that_is_called_otherwise_does_not_get_its_catalog() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let text = fs::read_to_string(&file).unwrap();
        Daemon::start(&file, Clock::system()).await.unwrap().end(Duration::ZERO).await;
        fs::write(&file, text.replace("'a'", "'b'")).unwrap();
        for _ in 0..2 {
            let Err(StartError::Open { what, todo }) = Daemon::start(&file, Clock::system()).await
            else {
                panic!("the same files under another name");
            };
            assert!(what.contains("of site a") && todo.contains("name = \"a\""), "{what}: {todo}");
        }
        fs::write(&file, text).unwrap();
        Daemon::start(&file, Clock::system()).await.unwrap().end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_catalog_that_is_taken_away_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        let is_read = || daemon.site.read(|reader| reader.sites());
        assert!(is_read().await.is_ok());
        let [catalog, aside] = ["catalog.db", "aside"].map(|n| folder.path().join("state").join(n));
        fs::rename(&catalog, &aside).unwrap();
        let fault = is_read().await.unwrap_err();
        assert_eq!(fault.class, ErrorClass::CatalogUnreachable, "{fault}");
        fs::rename(&aside, &catalog).unwrap();
        assert!(is_read().await.is_ok());
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_copy_of_a_site_does_not_get_its_catalog() {
        let folder = tempfile::tempdir().unwrap();
        let [own, copy] = ["own", "copy"].map(|name| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder).unwrap();
            let file = configured(&folder, "127.0.0.1:0");
            let text = fs::read_to_string(&file).unwrap();
            let catalog = "catalog = 'sqlite:../own/state/catalog.db'\n[api]";
            fs::write(&file, text.replace("[api]", catalog)).unwrap();
            file
        });
        let daemon = Daemon::start(&own, Clock::system()).await.unwrap();
        let Err(StartError::Open { what, todo }) = Daemon::start(&copy, Clock::system()).await
        else {
            panic!("two daemons");
        };
        assert!(what.contains("catalog.db.lock") && todo.contains("[site] catalog"), "{what}");
        let now = daemon.site.clock.now();
        assert!(daemon.site.catalog.submit(now, Vec::new()).done().await.is_ok());
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn so_many_read_the_catalog_at_once_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        daemon.end(Duration::ZERO).await;
        // Each waits until it is one of so many.
        let all = Arc::new(Barrier::new(READERS_MAX));
        let [inside, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let mut reads = JoinSet::new();
        for _ in 0..4 * READERS_MAX {
            let (site, all) = (daemon.site.clone(), all.clone());
            let (inside, most) = (inside.clone(), most.clone());
            let read = move |_: &mut Reader| {
                most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                all.wait();
                inside.fetch_sub(1, SeqCst);
                Ok(())
            };
            reads.spawn(async move { site.read(read).await });
        }
        reads.join_all().await.into_iter().for_each(Result::unwrap);
        assert_eq!(most.load(SeqCst), READERS_MAX);
    }

    #[tokio::test]
    async fn a_reader_that_nobody_used_for_long_is_not_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
        daemon.end(Duration::ZERO).await;
        let site = &daemon.site;
        let once = || site.read_blocking(|_| Ok(site.readers().len())).unwrap();
        let twice = || site.read_blocking(|_| Ok(once())).unwrap();
        // One is in use, the other in use by who asks meanwhile.
        site.readers().clear();
        assert_eq!((twice(), once()), (0, 1));
        for (_, since) in site.readers().iter_mut() {
            *since -= READER_IDLE_MAX;
        }
        assert_eq!(once(), 0);
    }

    #[tokio::test]
    async fn a_second_daemon_leaves_the_first_ones_things_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = configured(folder.path(), "127.0.0.1:0");
        let first = Daemon::start(&file, Clock::system()).await.unwrap();
        let Err(StartError::Open { what, todo }) = Daemon::start(&file, Clock::system()).await
        else {
            panic!("two daemons");
        };
        assert!(what.contains("runs here already") && todo.contains("end that one"), "{what}");
        first.end(Duration::ZERO).await;
        drop(first);
        let again = Daemon::start(&file, Clock::system()).await.unwrap();
        again.end(Duration::ZERO).await;
    }
}
