//! What the verbs that set up, check and run a site share, and those verbs: `init`, `check`, `serve`.

use super::{Exit, Fault};
use crate::api::NOT_KNOWN;
use crate::descriptors;
use crate::object::printable;
use crate::output::plain;
use crate::site::{
    Access, AccessError, BadConfig, CONFIG_FILE, Card, Clock, Daemon, InitError, Introduced,
    RemoteError, Setup, StartError, card, init, introduce, known, look, try_introduce,
};
use crate::units::HostPort;
use clap::Args;
use downpour_transport::identity::IdentityError;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that is away is asked again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What to do when the state folder has no token that counts.
const GET_A_TOKEN: &str = "give --token, or make one as the daemon's user: downpour token new NAME --role admin --offline";

/// Set up a site: its configuration, its key, the token of its first admin
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Name of the site, the same for ever [default: that of the folder's site, when it is set up already]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Folder for its configuration
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Folder for its state: key, tokens, catalog, and for its inbox [default: the folder of the configuration has state and
    /// inbox]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
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
    #[arg(value_name = "FILE", default_value = CONFIG_FILE, conflicts_with = "config")]
    file: PathBuf,
    /// The same, as the other verbs take it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Run a site until SIGTERM; SIGHUP reads the configuration again
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Its configuration
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE, env = "DOWNPOUR_SITE", hide_env_values = true)]
    config: PathBuf,
}

/// Which daemon. What the environment says is read here, as it counts only for what the command line leaves open.
#[derive(Clone, Debug, Args)]
pub(super) struct AccessArgs {
    /// Configuration of a site on this machine [env: DOWNPOUR_SITE] [default: site.toml]
    #[arg(long, value_name = "FILE", help_heading = "Daemon")]
    config: Option<PathBuf>,
    /// A site elsewhere: its card; needs a token [env: DOWNPOUR_AT]
    #[arg(long, value_name = "CARD", conflicts_with = "config", help_heading = "Daemon")]
    at: Option<Card>,
    /// Token [env: DOWNPOUR_TOKEN] [default: an admin's, from the state folder]
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true, help_heading = "Daemon")]
    token: Option<String>,
}

/// The way to a daemon.
#[derive(Debug, PartialEq)]
enum Way {
    /// On this machine.
    Here(PathBuf, Option<String>),
    /// Elsewhere.
    There(Card, String),
}

impl InitArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        // What cannot be trusted leaves no half of a site behind.
        let others =
            self.with.iter().map(|with| Other::read(with)).collect::<Result<Vec<_>, _>>()?;
        let setup_there = self.folder.join(CONFIG_FILE).exists();
        let mine = if setup_there {
            let (name, has_key) = known(&self.folder).map_err(init_fault)?;
            if !has_key && !self.with.is_empty() {
                return Err(no_key(&name, &self.folder));
            }
            let nothing_to_do = has_key && self.with.is_empty();
            if self.name.is_some_and(|given| given != name) || nothing_to_do {
                return Err(init_fault(InitError::Exists(self.folder)));
            }
            if self.state.is_some() || self.listen.is_some() || self.address.is_some() {
                let what =
                    "--state, --listen and --address are for a new site, and this one is there";
                let todo = format!("leave them out, and edit {CONFIG_FILE} in its folder");
                return Err(Fault::usage(what, todo));
            }
            let mine = card(&self.folder).map_err(init_fault)?;
            if !has_key {
                println!(
                    "key       made anew: others know {name} by the one before; give them this card"
                );
            }
            mine
        } else {
            let Some(name) = self.name else {
                let todo = "give a name: downpour init NAME";
                return Err(Fault::usage("a new site needs a name", todo));
            };
            let (folder, listen, address) = (self.folder.clone(), self.listen, self.address);
            // The configuration's paths are from its own folder.
            let state = self.state.map(|state| std::path::absolute(&state).unwrap_or(state));
            let mine = init(&Setup { name, folder, state, listen, address });
            mine.map_err(init_fault)?
        };
        // What one of them refuses changes none of the others.
        try_introduce(&self.folder, others.iter().map(|other| &other.card)).map_err(init_fault)?;
        for neighbour in others.iter().filter_map(|other| other.folder) {
            try_introduce(neighbour, [&mine]).map_err(init_fault)?;
        }
        for Other { card: other, folder } in others {
            if let Some(neighbour) = folder {
                trust(neighbour, &mine)?;
            }
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

/// What `--with` names.
#[derive(Debug)]
struct Other<'a> {
    card: Card,
    /// It is on this machine.
    folder: Option<&'a Path>,
}

impl<'a> Other<'a> {
    fn read(with: &'a str) -> Result<Self, Fault> {
        let folder = Path::new(with);
        let no_site =
            |what| Fault::usage(what, "give a card, or the folder of a site on this machine");
        match folder.join(CONFIG_FILE).try_exists() {
            Ok(true) => {
                let (name, has_key) = known(folder).map_err(init_fault)?;
                if !has_key {
                    return Err(no_key(&name, folder));
                }
                Ok(Self { card: card(folder).map_err(init_fault)?, folder: Some(folder) })
            }
            // A card may be too long for a path.
            Err(error) if !with.contains('@') => Err(no_site(format!("{with}: {error}"))),
            Ok(false) | Err(_) => Ok(Self { card: with.parse().map_err(no_site)?, folder: None }),
        }
    }
}

/// A site that was set up is not to get another key by the way.
fn no_key(name: &str, folder: &Path) -> Fault {
    let folder = folder.display();
    let what = format!("{name}, in {folder}, has no node's key");
    Fault::usage(
        what,
        format!(
            "mount its state folder; for a new key, as the daemon's user: downpour init --folder {folder}"
        ),
    )
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
        let file = self.config.unwrap_or(self.file);
        match look(&file) {
            Ok(config) => {
                let trusted = match config.remote.len() {
                    1 => "1 other site is trusted".to_owned(),
                    remotes => format!("{remotes} other sites are trusted"),
                };
                println!("{}: good; {trusted}", file.display());
                Ok(Exit::Complete)
            }
            Err(StartError::Config(bad)) => {
                println!("{bad}");
                Ok(Exit::Incomplete)
            }
            Err(StartError::Open { what, todo }) => Err(Fault::incomplete(what, todo)),
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
    /// Whether the command line says anything of it.
    pub(super) const fn is_given(&self) -> bool {
        self.config.is_some() || self.at.is_some() || self.token.is_some()
    }

    /// The configuration of the site on this machine.
    pub(super) fn config(&self) -> PathBuf {
        self.config_or(std::env::var_os("DOWNPOUR_SITE"))
    }

    fn config_or(&self, of_env: Option<OsString>) -> PathBuf {
        let of_env = of_env.filter(|file| !file.is_empty()).map(PathBuf::from);
        self.config.clone().or(of_env).unwrap_or_else(|| CONFIG_FILE.into())
    }

    /// The way to the daemon.
    pub(super) fn open(self) -> Result<Access, Fault> {
        match self.way(|name| std::env::var_os(name))? {
            Way::There(Card { address, key, .. }, token) => Ok(Access::new(address, key, token)),
            Way::Here(config, token) => {
                let access = Access::of_config(&config, token).map_err(access_fault)?;
                if let Some(bad) = &access.flawed {
                    let what = config_fault(bad).what;
                    eprintln!(
                        "{what}: `downpour check` says more; a daemon that runs is asked all the same"
                    );
                }
                Ok(access)
            }
        }
    }

    fn way(self, env: impl Fn(&str) -> Option<OsString>) -> Result<Way, Fault> {
        let text = |name| env(name)?.into_string().ok().filter(|text| !text.is_empty());
        let at_of_env = text("DOWNPOUR_AT").map(|card| card.parse::<Card>());
        // A token of the environment belongs to the site there, at whatever address: no other site is to see it.
        let is_other = at_of_env.as_ref().is_some_and(|of_env| match &self.at {
            Some(at) => !of_env.as_ref().is_ok_and(|of_env| of_env.key == at.key),
            None => self.config.is_some(),
        });
        let token = self.token.clone().or_else(|| text("DOWNPOUR_TOKEN").filter(|_| !is_other));
        let at = match (self.at.clone(), at_of_env) {
            (None, Some(card)) if !is_other => {
                let wrong = |what| Fault::usage(format!("DOWNPOUR_AT: {what}"), "correct it");
                Some(card.map_err(wrong)?)
            }
            (at, _) => at,
        };
        match (at, token) {
            (Some(at), Some(token)) => Ok(Way::There(at, token)),
            (Some(_), None) => {
                let todo = match is_other {
                    true => "give --token: that of the environment is for the site of DOWNPOUR_AT",
                    false => "give --token, or DOWNPOUR_TOKEN in the environment",
                };
                Err(Fault::usage("a site elsewhere needs a token", todo))
            }
            (None, token) => Ok(Way::Here(self.config_or(env("DOWNPOUR_SITE")), token)),
        }
    }
}

/// Does what a verb asks of a daemon.
pub(super) fn with_daemon<T>(
    access: AccessArgs,
    ask: impl AsyncFnOnce(&Access) -> Result<T, RemoteError>,
) -> Result<T, Fault> {
    let access = access.open()?;
    runtime()?.block_on(ask(&access)).map_err(|error| daemon_fault(&access, error))
}

/// What others wrote, for a terminal.
pub(super) fn shown(text: &str) -> String {
    printable(text.as_bytes())
}

/// Asks until it is answered: what is waited for goes on also while its daemon is started again.
pub(super) async fn insist<T: DeserializeOwned>(
    site: &Access,
    path: &str,
) -> Result<T, RemoteError> {
    let mut told = false;
    loop {
        match site.get(path).await {
            Err(error) if error.is_passing() => {
                if !std::mem::replace(&mut told, true) {
                    let error = plain(&error.to_string());
                    eprintln!("the daemon is asked again until it answers: {error}");
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

fn daemon_fault(access: &Access, error: RemoteError) -> Fault {
    let address = &access.address;
    match error {
        RemoteError::Refused(problem) => match &access.token_file {
            Some(file) if problem.code == NOT_KNOWN => {
                let what = format!("{}: {}", file.display(), problem.what);
                Fault::incomplete(what, GET_A_TOKEN)
            }
            _ => Fault::incomplete(problem.what, problem.todo),
        },
        RemoteError::Unreachable(what) => Fault::start(
            format!("no daemon answers at {address}: {what}"),
            "start it with `downpour serve`, or see to [api] listen and address",
        ),
        RemoteError::NotTrusted(what) => {
            let todo = "another program listens there, or the card is an old one";
            Fault::start(format!("{address} is not that site: {what}"), todo)
        }
        RemoteError::TimedOut(what) | RemoteError::Lost(what) => {
            let todo = "if it was to change something, that may have been done: look before you try again; see the daemon's log";
            Fault::incomplete(format!("{address}: {what}"), todo)
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
        InitError::File(..) => "choose a --folder, and a --state, that you may write to",
        InitError::Key(IdentityError::NotAKey { .. }) => {
            "restore it; for a new key, by which other sites do not know this one yet, move it away"
        }
        InitError::Key(_) => "choose a --folder, and a --state, that you may write to",
        InitError::Token(_) => "remove the state folder if the site was never used",
        InitError::Wrong(_) => "correct the options, or the configuration",
    };
    Fault::usage(error.to_string(), todo)
}

fn access_fault(error: AccessError) -> Fault {
    let todo = match &error {
        AccessError::Config(bad) => return config_fault(bad),
        AccessError::Token(..) => GET_A_TOKEN,
        _ => "give --config FILE of a site on this machine, or --at CARD and a token",
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

#[cfg(test)]
mod tests {
    use super::{AccessArgs, CONFIG_FILE, CheckArgs, InitArgs, Way};
    use crate::cli::Exit;
    use clap::Parser as _;
    use std::path::PathBuf;

    #[derive(clap::Parser)]
    struct Asking {
        #[command(flatten)]
        access: AccessArgs,
    }

    #[derive(clap::Parser)]
    struct Initing {
        #[command(flatten)]
        init: InitArgs,
    }

    #[test]
    fn what_cannot_be_trusted_leaves_no_site_behind_and_says_why() {
        let root = tempfile::tempdir().unwrap();
        let (file, mine) = (root.path().join("file"), root.path().join("mine"));
        std::fs::write(&file, "").unwrap();
        let init = |with: &str| {
            let folder = ["init", "q", "--folder", mine.to_str().unwrap()];
            let words = folder.into_iter().chain(["--with", with]);
            Initing::try_parse_from(words).unwrap().init.run()
        };
        let away = root.path().join("away");
        let error = init(away.to_str().unwrap()).unwrap_err();
        assert!(error.what.contains("is no card"), "{error}");
        let closed = init(file.to_str().unwrap()).unwrap_err();
        assert!(closed.what.ends_with("Not a directory (os error 20)"), "{closed}");
        assert!(!mine.exists());
        init(WEST).unwrap();
    }

    #[test]
    fn what_is_for_a_new_site_is_refused_where_one_is() {
        let root = tempfile::tempdir().unwrap();
        let init = |more: &[&str]| {
            let folder = ["init", "q", "--folder", root.path().to_str().unwrap(), "--with", WEST];
            Initing::try_parse_from(folder.iter().chain(more)).unwrap().init.run()
        };
        init(&["--address", "old:1"]).unwrap();
        let card = || super::card(root.path()).unwrap();
        let (before, key) = (card(), root.path().join("state/node.key"));
        let check = || CheckArgs { file: root.path().join(CONFIG_FILE), config: None }.run();
        assert!(check().unwrap() == Exit::Complete);
        std::fs::remove_file(&key).unwrap();
        let unmade = check().unwrap_err();
        assert!(unmade.exit == Exit::Incomplete && unmade.todo.contains("init"), "{unmade}");
        let (other, with) = (root.path().join("other"), root.path().to_str().unwrap());
        let other = ["init", "r", "--folder", other.to_str().unwrap(), "--with", with];
        let refused = [
            init(&["--address", "new:1"]).unwrap_err(),
            init(&[]).unwrap_err(),
            Initing::try_parse_from(other).unwrap().init.run().unwrap_err(),
        ];
        assert!(!key.exists(), "what is refused makes none: {refused:?}");
        let again = ["init", "--folder", root.path().to_str().unwrap()];
        let again = || Initing::try_parse_from(again).unwrap().init.run();
        again().unwrap();
        assert!(key.exists() && card().key != before.key, "for a lost key it makes another");
        assert!(again().unwrap_err().what.contains("already"));
        let fault = init(&["--address", "new:1"]).unwrap_err();
        assert!(fault.exit == Exit::Usage && fault.what.contains("--address"), "{fault}");
        init(&[]).unwrap();
    }

    #[test]
    fn an_init_that_is_refused_leaves_the_other_sites_as_they_were() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
        let init = |words: &[&str]| {
            let words = ["init"].iter().chain(words);
            Initing::try_parse_from(words).unwrap().init.run()
        };
        for name in ["q", "s"] {
            init(&[name, "--folder", &folder(name)]).unwrap();
        }
        let card = super::card(&root.path().join("q")).unwrap().to_string();
        let misnamed = card.replacen('q', "qq", 1);
        init(&["r", "--folder", &folder("r"), "--with", &misnamed]).unwrap();
        let text = |name: &str| std::fs::read_to_string(folder(name) + "/site.toml").unwrap();
        let before = ["q", "r", "s"].map(text);
        let again = ["--folder", &folder("r"), "--with", &folder("s"), "--with", &folder("q")];
        let fault = init(&again).unwrap_err();
        assert!(fault.what.contains("the same key"), "{fault}");
        assert_eq!(["q", "r", "s"].map(text), before);
        init(&again[..4]).unwrap();
        assert!(text("s").contains("name = \"r\"") && text("r").contains("name = \"s\""));
    }

    #[test]
    fn a_state_folder_that_cannot_be_made_leaves_no_folder_behind() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("s");
        let words = ["init", "s", "--folder", folder.to_str().unwrap(), "--state", "/proc/none"];
        let fault = Initing::try_parse_from(words).unwrap().init.run().unwrap_err();
        assert!(fault.todo.contains("--state") && !folder.exists(), "{fault}");
    }

    const EAST: &str = "east@east:1#AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const WEST: &str = "west@west:1#AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    #[test]
    fn what_the_command_line_says_counts_before_the_environment() {
        let way = |said: &[&str], of_env: &[(&str, &str)]| {
            let words = ["downpour"].iter().chain(said);
            let access = Asking::try_parse_from(words).expect("a command line").access;
            access.way(|name| Some(of_env.iter().find(|(of, _)| *of == name)?.1.into()))
        };
        let here = |file: &str, token: Option<&str>| {
            Ok(Way::Here(PathBuf::from(file), token.map(str::to_owned)))
        };
        let there = |card: &str, token: &str| Ok(Way::There(card.parse().unwrap(), token.into()));
        let (at, token, site) =
            (("DOWNPOUR_AT", EAST), ("DOWNPOUR_TOKEN", "of-east"), ("DOWNPOUR_SITE", "here.toml"));
        let all = [at, token, site];
        let config = ["--config", "west.toml"];
        assert_eq!(way(&[], &[]), here("site.toml", None));
        assert_eq!(way(&[], &[token, site]), here("here.toml", Some("of-east")));
        assert_eq!(way(&[], &all), there(EAST, "of-east"));
        assert_eq!(way(&config, &all), here("west.toml", None));
        assert_eq!(way(&config, &[at]), here("west.toml", None));
        assert_eq!(way(&config, &[token]), here("west.toml", Some("of-east")));
        assert_eq!(way(&["--at", WEST, "--token", "t"], &all), there(WEST, "t"));
        let moved = EAST.replace("@east", "@new.east");
        assert_eq!(way(&["--at", &moved], &all), there(&moved, "of-east"));
        for of_env in [EAST, "unreadable"] {
            let fault = way(&["--at", WEST], &[("DOWNPOUR_AT", of_env), token]).unwrap_err();
            assert!(fault.todo.contains("--token"), "{fault}");
        }
        assert_eq!(way(&["--at", WEST], &[token]), there(WEST, "of-east"));
        assert!(way(&[], &[at]).unwrap_err().todo.contains("--token"));
        assert!(way(&[], &[("DOWNPOUR_AT", "east"), token]).unwrap_err().what.contains("no card"));
        let both = [config.as_slice(), &["--at", WEST]].concat();
        assert!(Asking::try_parse_from(["downpour"].iter().chain(&both)).is_err());
    }
}
