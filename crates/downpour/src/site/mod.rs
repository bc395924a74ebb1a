//! A site: one daemon that moves files by rules, keeps book, and answers for it.
//!
//! The site itself moves nothing. It is what its parts stand on: one configuration, one catalog, one key, one door, and a
//! supervisor that keeps [`Service`]s at work. What parts there are says one list, `parts`; the rest of this folder
//! knows none of them.
//!
//! | file | what |
//! | --- | --- |
//! | `section`, `config`, `check`, `init` | `site.toml`: declared, read, checked, written |
//! | `looks` | whether what it names on this machine can be used |
//! | `replace` | a file with new content |
//! | `held` | what no second daemon may have |
//! | `own` | what no other site may have |
//! | `inbox` | whether what is received into is what it was |
//! | `pulse` | whether a disk takes what is written |
//! | `service`, `supervisor` | what runs, and what keeps it running |
//! | `endpoint` | the door: TLS listener and the routes behind it |
//! | `remote` | other sites, as we speak to them |
//! | `tokens`, `audit`, `refused` | who may; who did, and who was not let |
//! | `events`, `metrics`, `log` | who watches |
//! | `daemon`, `systemd` | start, signals, end |
//!
//! Times come from one [`Clock`], so that a test may set it. The catalog is read on threads where blocking is allowed
//! ([`Site::read`]).

mod access;
mod audit;
mod check;
mod config;
mod daemon;
mod endpoint;
mod events;
mod held;
mod inbox;
mod init;
mod log;
mod looks;
mod metrics;
mod own;
mod parts;
mod pulse;
mod refused;
mod remote;
mod replace;
pub mod section;
mod service;
mod supervisor;
mod systemd;
mod tokens;

pub use access::{Access, AccessError, BytesLine, hand_over};
pub(crate) use audit::Deed;
pub use audit::{Audit, AuditEntry, Verified, Wanted};
pub use check::{BadConfig, Flaw};
pub use config::{ApiSection, Config, LogForm, LogLevel, RemoteSection, TABLES, empty, is_name};
pub use daemon::{Daemon, StartError};
pub(crate) use daemon::{look, owner_of};
pub use events::{EventId, Events, Listener, SiteEvent};
pub(crate) use inbox::{Inboxes, Strange, make_own};
pub use init::{
    CONFIG_FILE, Card, InitError, Introduced, Setup, card, init, introduce, known, try_introduce,
};
pub use metrics::Metrics;
pub(crate) use own::{exposes, is_own, real};
pub use parts::{Part, parts};
pub use remote::{Remote, RemoteError, Side};
pub(crate) use service::blocking;
pub use service::{Fault, Running, Service, Status, Stop, Wish};
pub use supervisor::{NotDone, ServiceReport, Stage, Supervisor, Verb, Why};
pub(crate) use tokens::Verdict;
pub use tokens::{NewToken, Role, Shown, TokenError, Tokens};

use downpour_catalog::{Catalog, Error, Reader, Time};
use downpour_transport::identity::{Identity, PublicKey};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};

/// Readers of the catalog that are open at once, and kept so: each is a connection to its server.
pub(crate) const READERS_MAX: usize = 16;
/// One that nobody used for so long is not used again: its server, or what is on the way there, may have closed it.
const READER_IDLE_MAX: Duration = Duration::from_secs(30);

/// What time it is.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

impl Clock {
    /// The machine's.
    pub fn system() -> Self {
        Self::of(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
        })
    }

    /// Another one.
    pub fn of(now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Now.
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

/// What all parts of a running site share.
pub struct Site {
    /// The site's name.
    pub name: String,
    /// This node's key.
    pub identity: Arc<Identity>,
    /// The catalog, for writing.
    pub catalog: Arc<Catalog>,
    /// What time it is.
    pub clock: Clock,
    /// What happens, for listeners.
    pub events: Events,
    /// Who may.
    pub tokens: Tokens,
    /// Who did.
    pub audit: Audit,
    /// What is measured.
    pub metrics: Metrics,
    /// Which folders were received into.
    pub(crate) inboxes: Arc<Inboxes>,
    /// The disk of the state folder.
    pub(crate) pulse: Arc<pulse::Pulse>,
    held: held::Place,
    refused: refused::Refused,
    config: watch::Sender<Arc<Config>>,
    remotes: RwLock<Vec<Arc<Remote>>>,
    /// Since when nobody uses each.
    readers: Mutex<Vec<(Reader, Instant)>>,
    reads: Arc<Semaphore>,
    supervisor: OnceLock<Supervisor>,
}

impl Site {
    /// The configuration as it is now.
    pub fn config(&self) -> Arc<Config> {
        self.config.borrow().clone()
    }

    /// The configuration, also as it will be after each reload.
    pub fn config_changes(&self) -> watch::Receiver<Arc<Config>> {
        self.config.subscribe()
    }

    /// Another site, by its name.
    pub fn remote(&self, name: &str) -> Option<Arc<Remote>> {
        self.remotes().into_iter().find(|remote| remote.name() == name)
    }

    /// Another site, by its key.
    pub fn remote_of_key(&self, key: PublicKey) -> Option<Arc<Remote>> {
        self.remotes().into_iter().find(|remote| remote.key() == key)
    }

    /// All other sites that are configured.
    pub fn remotes(&self) -> Vec<Arc<Remote>> {
        self.remotes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The services.
    ///
    /// # Panics
    /// Before the daemon has started them; routes and services come after that.
    pub fn supervisor(&self) -> &Supervisor {
        self.supervisor.get().expect("services start before anybody can ask")
    }

    /// Reads the catalog, on a thread where that may block; where many do, once it is its turn. Turns are few: what reads waits
    /// for the database alone, for no folder.
    pub async fn read<T, R>(self: &Arc<Self>, read: R) -> Result<T, Fault>
    where
        T: Send + 'static,
        R: FnOnce(&mut Reader) -> Result<T, Error> + Send + 'static,
    {
        let site = self.clone();
        let turn = self.reads.clone().acquire_owned().await.expect("it is never closed");
        blocking(move || {
            // It reads on, though who asked may wait no longer.
            let _turn = turn;
            site.read_blocking(read)
        })
        .await
    }

    /// Reads the catalog on this thread, whoever else does: for one who has a thread of his own.
    pub(crate) fn read_blocking<T>(
        &self,
        read: impl FnOnce(&mut Reader) -> Result<T, Error>,
    ) -> Result<T, Fault> {
        self.catalog.check()?;
        let mut reader = match self.kept_reader() {
            Some(reader) => reader,
            None => self.catalog.reader()?,
        };
        // One that failed is not used again: its connection may be broken. If it is, so are the others'.
        let result = read(&mut reader).inspect_err(|error| {
            if matches!(error, Error::Unreachable(_)) {
                self.readers().clear();
            }
        })?;
        let mut readers = self.readers();
        if readers.len() < READERS_MAX {
            readers.push((reader, Instant::now()));
        }
        Ok(result)
    }

    fn kept_reader(&self) -> Option<Reader> {
        let mut readers = self.readers();
        readers.retain(|(_, since)| since.elapsed() < READER_IDLE_MAX);
        readers.pop().map(|(reader, _)| reader)
    }

    fn readers(&self) -> std::sync::MutexGuard<'_, Vec<(Reader, Instant)>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new configuration. Other sites of which nothing has changed keep their connections.
    fn replace_config(&self, config: Config) {
        let mut remotes = self.remotes.write().unwrap_or_else(PoisonError::into_inner);
        let new = config.remote.iter().map(|section| {
            let same = remotes.iter().find(|remote| remote.section == *section).cloned();
            same.unwrap_or_else(|| Arc::new(Remote::new(section.clone(), &self.identity)))
        });
        *remotes = new.collect();
        drop(remotes);
        self.config.send_replace(Arc::new(config));
    }
}
