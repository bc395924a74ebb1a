//! Sets up a site: a commented `site.toml` made of the sections' own descriptions, the node's key, a token for the first
//! admin. And makes two sites known to each other, by their cards.
//!
//! A [`Card`] is what one site tells another of itself, in one word: `name@host:port#key`. It holds no secret.

use super::access::{TOKEN_FILE, address_of};
use super::config::{Config, RemoteSection, TABLES, is_name};
use super::replace::{lock, replace};
use super::section::Need;
use super::{Clock, Role, TokenError, Tokens};
use crate::units::HostPort;
use downpour_transport::identity::{Identity, IdentityError, PublicKey};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Name of the configuration in its folder.
pub const CONFIG_FILE: &str = "site.toml";
/// Its mode, until somebody changes it: it holds no secret unless one is written into it.
const CONFIG_MODE: u32 = 0o644;
/// Name of the first admin's token.
const ADMIN: &str = "admin";

/// How another site is found and known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Where its API is.
    pub address: HostPort,
    /// Its key.
    pub key: PublicKey,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}#{}", self.name, self.address, self.key)
    }
}

impl FromStr for Card {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is no card; it is written as name@host:port#key");
        let (name, rest) = text.split_once('@').ok_or_else(form)?;
        // It is written into a configuration as it stands: what ended a line there would say more than who and where.
        if !is_name(name) {
            return Err(form());
        }
        let (address, key) = rest.rsplit_once('#').ok_or_else(form)?;
        let address = address.parse().map_err(|error| format!("{}: {error}", form()))?;
        let key = key.parse().map_err(|error| format!("{}: {error}", form()))?;
        Ok(Self { name: name.to_owned(), address, key })
    }
}

/// What a new site is to be.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Where its configuration is to be.
    pub folder: PathBuf,
    /// Where its state is to be, and its inbox, if not in `state` and `inbox` of that folder.
    pub state: Option<PathBuf>,
    /// Where it is to listen.
    pub listen: Option<SocketAddr>,
    /// How others reach it.
    pub address: Option<HostPort>,
}

/// A site was not set up.
#[derive(Debug)]
pub enum InitError {
    /// There is a configuration already.
    Exists(PathBuf),
    /// A file or folder.
    File(PathBuf, io::Error),
    /// The node's key.
    Key(IdentityError),
    /// The token.
    Token(TokenError),
    /// The configuration would be wrong with it.
    Wrong(String),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(path) => write!(f, "there is a site in {} already", path.display()),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Key(error) => error.fmt(f),
            Self::Token(error) => error.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for InitError {}

/// Sets up a site and gives its card.
pub fn init(setup: &Setup) -> Result<Card, InitError> {
    let file = setup.folder.join(CONFIG_FILE);
    if file.exists() {
        return Err(InitError::Exists(file));
    }
    let quote = |text: &dyn fmt::Display| format!("\"{text}\"");
    let mut said = vec![("site", "name", quote(&setup.name))];
    if let Some(state) = &setup.state {
        said.push(("site", "state", format!("{state:?}")));
        // The configuration's folder is not to be written to.
        said.push(("transfer", "inbox", format!("{:?}", state.join("inbox"))));
    }
    said.extend(setup.listen.map(|listen| ("api", "listen", quote(&listen))));
    said.extend(setup.address.as_ref().map(|address| ("api", "address", quote(address))));
    let text = config_text(&said);
    let mut config = Config::parse(&text)
        .map_err(|flaws| InitError::Wrong(flaws.into_iter().map(|flaw| flaw.what).collect()))?;
    config.folder.clone_from(&setup.folder);
    let state = config.state();
    let was_there = setup.folder.exists();
    for folder in [&setup.folder, &state] {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(folder);
        made.map_err(|error| {
            if !was_there {
                let _ = fs::remove_dir(&setup.folder);
            }
            InitError::File(folder.clone(), error)
        })?;
    }
    let identity = Identity::load_or_create(&state).map_err(InitError::Key)?;
    let tokens = Tokens::open(&state).map_err(InitError::Token)?;
    let new = tokens.add(ADMIN, Role::Admin, None, Clock::system().now());
    let new = new.map_err(InitError::Token)?;
    write_new(&state.join(TOKEN_FILE), &format!("{}\n", new.token), 0o600)?;
    // Last: what is there is whole.
    write_new(&file, &text, CONFIG_MODE)?;
    Ok(card_of(&config, identity.public_key()))
}

/// The name of a site that was set up in a folder of this machine, and whether it has its key. Nothing is made.
pub fn known(folder: &Path) -> Result<(String, bool), InitError> {
    let config = config_in(folder)?;
    let key = Identity::load(&config.state()).map_err(InitError::Key)?;
    Ok((config.site.name, key.is_some()))
}

fn config_in(folder: &Path) -> Result<Config, InitError> {
    let config = Config::read(&folder.join(CONFIG_FILE));
    config.map_err(|bad| InitError::Wrong(bad.to_string()))
}

/// The card of a site that was set up in a folder of this machine. Its key is made if there is none.
pub fn card(folder: &Path) -> Result<Card, InitError> {
    let config = config_in(folder)?;
    let identity = Identity::load_or_create(&config.state()).map_err(InitError::Key)?;
    Ok(card_of(&config, identity.public_key()))
}

/// What came of making a site known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Introduced {
    /// It is known now.
    New,
    /// It was known already, as its card says.
    Known,
    /// It was known already, at another address or at none. That stays: somebody may have written it for a reason.
    Elsewhere(Option<HostPort>),
}

/// Makes another site known to the site in a folder.
pub fn introduce(folder: &Path, other: &Card) -> Result<Introduced, InitError> {
    let file = folder.join(CONFIG_FILE);
    let failed = |error| InitError::File(file.clone(), error);
    let config = config_in(folder)?;
    if let Some(known) = config.remote.iter().find(|remote| is_of(remote, other)) {
        return Ok(match &known.address {
            Some(address) if *address == other.address => Introduced::Known,
            address => Introduced::Elsewhere(address.clone()),
        });
    }
    let _lock = lock(folder).map_err(failed)?;
    let mut text = fs::read_to_string(&file).map_err(failed)?;
    add(&file, &mut text, other)?;
    replace(&file, text.as_bytes(), CONFIG_MODE).map_err(failed)?;
    Ok(Introduced::New)
}

/// Whether these could be made known to the site in a folder, one after another. Nothing is written.
pub fn try_introduce<'a>(
    folder: &Path,
    others: impl IntoIterator<Item = &'a Card>,
) -> Result<(), InitError> {
    let (file, mut config) = (folder.join(CONFIG_FILE), config_in(folder)?);
    let text = fs::read_to_string(&file);
    let mut text = text.map_err(|error| InitError::File(file.clone(), error))?;
    for other in others {
        if !config.remote.iter().any(|remote| is_of(remote, other)) {
            config = add(&file, &mut text, other)?;
        }
    }
    Ok(())
}

fn is_of(remote: &RemoteSection, card: &Card) -> bool {
    remote.key == card.key && remote.name == card.name
}

/// Adds another site to the text of a file, which must be good with it.
fn add(file: &Path, text: &mut String, other: &Card) -> Result<Config, InitError> {
    let Card { name, address, key } = other;
    *text +=
        &format!("\n[[remote]]\nname = \"{name}\"\nkey = \"{key}\"\naddress = \"{address}\"\n");
    Config::parse(text).map_err(|flaws| {
        let what: Vec<_> = flaws.into_iter().map(|flaw| flaw.what).collect();
        // That of the other site, perhaps.
        InitError::Wrong(format!("{}: {}", file.display(), what.join("; ")))
    })
}

fn card_of(config: &Config, key: PublicKey) -> Card {
    let mut address = address_of(config);
    if config.api.address.is_none() && config.api.listen.ip().is_unspecified() {
        // A name that others may know.
        if let Ok(name) = fs::read_to_string("/proc/sys/kernel/hostname") {
            address.host = name.trim().to_owned();
        }
    }
    Card { name: config.site.name.clone(), address, key }
}

/// A configuration with every section and every key, those that are said and must be, and all others as comments.
fn config_text(said: &[(&str, &str, String)]) -> String {
    let mut text = String::from(
        "# A site of Downpour. `downpour check` tells what is wrong here; docs/site.md explains.\n",
    );
    for table in TABLES {
        text += "\n";
        for line in table.about {
            text += &format!("# {}\n", line.trim());
        }
        // A section that may stand several times begins when it is wanted.
        let shown =
            |line: String| if table.many { format!("# {line}\n") } else { format!("{line}\n") };
        text += &shown(table.heading());
        for key in table.keys {
            for line in key.about {
                text += &format!("# {}\n", line.trim());
            }
            let given = said.iter().find(|(of, name, _)| (*of, *name) == (table.name, key.name));
            text += &match given {
                Some((_, name, value)) => format!("{name} = {value}\n"),
                None if key.need == Need::Required => {
                    shown(format!("{} = {}", key.name, key.value))
                }
                None => format!("# {} = {}\n", key.name, key.value),
            };
        }
    }
    text
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), InitError> {
    let failed = |error| InitError::File(path.to_owned(), error);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::config::TABLES;
    use super::{Card, Config, InitError, Introduced, Setup, card, init, introduce};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn setup(name: &str, folder: &Path) -> Setup {
        let listen = Some("127.0.0.1:28790".parse().unwrap());
        let (name, folder) = (name.to_owned(), folder.to_owned());
        Setup { name, folder, state: None, listen, address: None }
    }

    #[test]
    fn two_sites_are_set_up_and_introduced() {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (root.path().join("a"), root.path().join("b"));
        let first = init(&setup("a", &a)).unwrap();
        let second = init(&setup("b", &b)).unwrap();
        assert!(matches!(init(&setup("a", &a)), Err(InitError::Exists(_))));
        let of_a = a.join("site.toml");
        // Somebody wrote a password into it.
        fs::set_permissions(&of_a, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(introduce(&a, &second).unwrap(), Introduced::New);
        assert_eq!(introduce(&b, &first).unwrap(), Introduced::New);
        assert_eq!(introduce(&a, &second).unwrap(), Introduced::Known);
        let moved = Card { address: "elsewhere:1".parse().unwrap(), ..second.clone() };
        let there = Introduced::Elsewhere(Some(second.address.clone()));
        assert_eq!(introduce(&a, &moved).unwrap(), there);
        assert_eq!(fs::metadata(&of_a).unwrap().permissions().mode() & 0o777, 0o600);
        let config = Config::read(&of_a).unwrap();
        assert_eq!(config.remote[0].key, second.key);
        assert_eq!(card(&b).unwrap(), second);
        assert!(matches!(introduce(&a, &first), Err(InitError::Wrong(_))), "itself");
    }

    #[test]
    fn state_is_made_where_the_daemon_looks_for_it() {
        let root = tempfile::tempdir().unwrap();
        let (folder, state) = (root.path().join("etc"), root.path().join("var"));
        let made = Setup { state: Some(state.clone()), ..setup("a", &folder) };
        let made = init(&made).unwrap();
        let config = Config::read(&folder.join("site.toml")).unwrap();
        assert_eq!((config.state(), config.inboxes()), (state.clone(), vec![state.join("inbox")]));
        assert_eq!(card(&folder).unwrap(), made);
        assert!(state.join("admin.token").exists() && !folder.join("state").exists());
    }

    #[test]
    fn the_file_explains_every_key() {
        let text = super::config_text(&[("site", "name", "\"a\"".to_owned())]);
        for key in TABLES.iter().flat_map(|table| table.keys) {
            let stands = text
                .lines()
                .any(|line| line.trim_start_matches("# ").starts_with(&format!("{} = ", key.name)));
            assert!(stands, "{}", key.name);
        }
        Config::parse(&text).unwrap();
    }

    #[test]
    fn a_card_is_one_word() {
        let text = "lab@lab.example.org:28790#AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(text.parse::<Card>().unwrap().to_string(), text);
        for wrong in ["", "lab", "lab@host#key", "lab@host:1#short"] {
            assert!(wrong.parse::<Card>().unwrap_err().contains("name@host:port#key"), "{wrong}");
        }
        let (_, key) = text.split_once('#').unwrap();
        for wrong in ["", "a b", "a\"\npull = true\nfolder = \"/srv"] {
            let wrong = format!("{wrong}@host:1#{key}").parse::<Card>().unwrap_err();
            assert!(wrong.contains("is no card"), "{wrong}");
        }
        for host in ["a\"b", "a\\b", "a\u{1b}b"] {
            assert!(format!("a@{host}:1#{key}").parse::<Card>().is_err(), "{host:?}");
        }
    }
}
