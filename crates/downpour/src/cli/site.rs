//! What the verbs that set up, check and run a site share, and those verbs: `init`, `check`, `serve`.

use super::{Exit, Fault};
use crate::descriptors;
use crate::site::{
    Access, BadConfig, CONFIG_FILE, Card, Clock, Config, Daemon, InitError, Introduced, RemoteError,
    Setup, StartError, card, init, introduce,
};
use crate::units::HostPort;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Set up a site: its configuration, its key, the token of its first admin
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Name of the site, the same for ever [default: that of the folder's site, when it is set up already]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Folder for its configuration and state
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Address and port to listen on [default: 0.0.0.0:28790]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Host and port by which other sites reach it [default: this machine's name]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<HostPort>,
    /// Another site to trust: its card, or its folder on this machine, where this site is then made known, too; may
    /// be given several times
    #[arg(long, value_name = "CARD|DIR")]
    with: Vec<String>,
}

/// Say what is wrong with a site's configuration: file, line, remedy
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Its configuration
    #[arg(value_name = "FILE", default_value = CONFIG_FILE)]
    config: PathBuf,
}

/// Run a site until SIGTERM; SIGHUP reads the configuration again
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Its configuration
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE, env = "DOWNPOUR_SITE")]
    config: PathBuf,
}

/// Which daemon.
#[derive(Clone, Debug, Args)]
pub(super) struct AccessArgs {
    /// Configuration of a site on this machine
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE, env = "DOWNPOUR_SITE")]
    #[arg(help_heading = "Daemon")]
    config: PathBuf,
    /// A site elsewhere: its card; needs a token
    #[arg(long, value_name = "CARD", env = "DOWNPOUR_AT", requires = "token")]
    #[arg(help_heading = "Daemon")]
    at: Option<Card>,
    /// Token [default: that of the first admin, from the state folder]
    #[arg(
        long,
        value_name = "TOKEN",
        env = "DOWNPOUR_TOKEN",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    #[arg(help_heading = "Daemon")]
    token: Option<String>,
}

impl InitArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let setup_there = self.folder.join(CONFIG_FILE).exists();
        let mine = if setup_there {
            let mine = card(&self.folder).map_err(init_fault)?;
            if self.name.as_ref().is_some_and(|name| *name != mine.name) || self.with.is_empty() {
                return Err(init_fault(InitError::Exists(self.folder)));
            }
            mine
        } else {
            let Some(name) = self.name else {
                let todo = "give a name: downpour init NAME";
                return Err(Fault::usage("a new site needs a name", todo));
            };
            let (folder, listen) = (self.folder.clone(), self.listen);
            let mine = init(&Setup { name, folder, listen, address: self.address });
            mine.map_err(init_fault)?
        };
        for with in &self.with {
            let neighbour = Path::new(with);
            let other = if neighbour.join(CONFIG_FILE).exists() {
                let other = card(neighbour).map_err(init_fault)?;
                trust(neighbour, &mine)?;
                other
            } else {
                with.parse().map_err(|what: String| {
                    Fault::usage(what, "give a card, or the folder of a site on this machine")
                })?
            };
            if trust(&self.folder, &other)? {
                println!("trusts    {} at {}", other.name, other.address);
            }
        }
        let config = self.folder.join(CONFIG_FILE);
        println!("site      {}, configured in {}", mine.name, config.display());
        println!("card      {mine}");
        println!("run it    downpour serve --config {}", config.display());
        Ok(Exit::Complete)
    }
}

/// Makes a site known to the one in a folder; `false`, and what to do, where it is known at another address.
fn trust(folder: &Path, other: &Card) -> Result<bool, Fault> {
    let Introduced::Elsewhere(known) = introduce(folder, other).map_err(init_fault)? else {
        return Ok(true);
    };
    let (Card { name, address, .. }, config) = (other, folder.join(CONFIG_FILE));
    let known = known.map_or("no address".to_owned(), |known| known.to_string());
    println!("known     {name} at {known}, which stays; its card says {address}");
    println!("          to change it edit `address` of its [[remote]] in {}", config.display());
    Ok(false)
}

impl CheckArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match Config::read_and_look(&self.config) {
            Ok(config) => {
                let remotes = config.remote.len();
                println!("{}: good; {remotes} other sites are trusted", self.config.display());
                Ok(Exit::Complete)
            }
            Err(bad) => {
                println!("{bad}");
                Ok(Exit::Incomplete)
            }
        }
    }
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        descriptors::raise();
        let runtime = runtime()?;
        let ended = runtime.block_on(async {
            descriptors::outlive_large_files();
            let daemon = Daemon::start(&self.config, Clock::system()).await.map_err(start_fault)?;
            daemon.run().await.map_err(|error| {
                Fault::start(format!("signals cannot be had: {error}"), "see the system's log")
            })
        });
        // What still blocks in a thread after the end is cut off.
        runtime.shutdown_background();
        ended.map(|()| Exit::Complete)
    }
}

impl AccessArgs {
    /// The configuration of the site on this machine.
    pub(super) fn config(&self) -> &Path {
        &self.config
    }

    /// The way to the daemon.
    pub(super) fn open(self) -> Result<Access, Fault> {
        if let (Some(Card { address, key, .. }), Some(token)) = (self.at, self.token.clone()) {
            return Ok(Access::new(address, key, token));
        }
        Access::of_config(&self.config, self.token).map_err(|error| {
            let todo = "give --config FILE of a site on this machine, or --at CARD and a token";
            Fault::usage(error.to_string(), todo)
        })
    }
}

/// Does what a verb asks of a daemon.
pub(super) fn with_daemon<T>(
    access: AccessArgs,
    ask: impl AsyncFnOnce(&Access) -> Result<T, RemoteError>,
) -> Result<T, Fault> {
    let access = access.open()?;
    runtime()?.block_on(ask(&access)).map_err(|error| daemon_fault(&access.address, error))
}

fn daemon_fault(address: &str, error: RemoteError) -> Fault {
    match error {
        RemoteError::Refused(problem) => Fault::incomplete(problem.what, problem.todo),
        RemoteError::Unreachable(what) => Fault::start(
            format!("no daemon answers at {address}: {what}"),
            "start it with `downpour serve`, or see to [api] listen and address",
        ),
        RemoteError::NotTrusted(what) => {
            let todo = "another program listens there, or the card is an old one";
            Fault::start(format!("{address} is not that site: {what}"), todo)
        }
        RemoteError::TimedOut(what) | RemoteError::Lost(what) => {
            Fault::incomplete(format!("{address}: {what}"), "try again; see the daemon's log")
        }
    }
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Fault> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built
        .map_err(|error| Fault::start(format!("no threads can be had: {error}"), "raise ulimit -u"))
}

fn init_fault(error: InitError) -> Fault {
    let todo = match &error {
        InitError::Exists(_) => "choose another --folder; --with CARD alone adds a site to trust",
        InitError::File(..) | InitError::Key(_) => "choose a --folder that you may write to",
        InitError::Token(_) => "remove the state folder if the site was never used",
        InitError::Wrong(_) => "correct the options, or the configuration",
    };
    Fault::usage(error.to_string(), todo)
}

fn start_fault(error: StartError) -> Fault {
    match error {
        StartError::Config(bad) => config_fault(&bad),
        StartError::Open { what, todo } => Fault::start(what, todo),
    }
}

/// The first flaw; `check` tells all.
pub(super) fn config_fault(bad: &BadConfig) -> Fault {
    let first = BadConfig { file: bad.file.clone(), flaws: bad.flaws[..1].to_vec() };
    let text = first.to_string();
    let (what, todo) = text.split_once("\n  what to do: ").unwrap_or((&text, ""));
    Fault::usage(what, todo)
}
