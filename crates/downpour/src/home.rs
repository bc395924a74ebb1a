//! Where Downpour keeps its own things: configuration and keys, and state.
//!
//! `$DOWNPOUR_HOME` holds both when it is set; else they follow the XDG base directories
//! (`$XDG_CONFIG_HOME/downpour`, …, each with its default below `$HOME`). Folders are created with mode
//! 0700 when first needed, because keys live there; one that other users may write to, or own, is refused.
//!
//! Deliberately absent: reading any file inside. Each owner of a file does that.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variable that moves everything below one folder.
pub const VARIABLE: &str = "DOWNPOUR_HOME";

/// The two folders. They need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    config: PathBuf,
    state: PathBuf,
}

/// Why a folder of our own cannot be used.
#[derive(Debug)]
pub enum HomeError {
    /// Neither `$DOWNPOUR_HOME` nor `$HOME` is set to an absolute path.
    NoHome,
    /// `$DOWNPOUR_HOME` would be another folder wherever a command is run.
    Relative(PathBuf),
    /// The folder could not be made.
    Create(PathBuf, io::Error),
    /// Other users may write to it, so keys in it cannot be trusted.
    OpenToOthers(PathBuf),
}

impl fmt::Display for HomeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHome => f.write_str(
                "no place for keys and state: neither $DOWNPOUR_HOME nor $HOME is an absolute path",
            ),
            Self::Relative(path) => {
                write!(f, "$DOWNPOUR_HOME is no absolute path: {}", path.display())
            }
            Self::Create(path, error) => write!(f, "cannot create {}: {error}", path.display()),
            Self::OpenToOthers(path) => {
                write!(f, "other users may write to {}", path.display())
            }
        }
    }
}

impl std::error::Error for HomeError {}

impl Home {
    /// From the process's environment.
    pub fn locate() -> Result<Self, HomeError> {
        Self::locate_in(|name| std::env::var_os(name))
    }

    /// From an environment given as a function. Relative paths count as not set, as XDG wants it of its own; ours is refused,
    /// as who sets it wants no other identity.
    pub fn locate_in(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, HomeError> {
        let path = |name| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
        if let Some(root) = variable(VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from) {
            if root.is_relative() {
                return Err(HomeError::Relative(root));
            }
            return Ok(Self { config: root.join("config"), state: root.join("state") });
        }
        let home = path("HOME");
        let below = |name, default: &str| {
            let base = path(name).or_else(|| home.as_ref().map(|home| home.join(default)));
            base.map(|base| base.join("downpour")).ok_or(HomeError::NoHome)
        };
        Ok(Self {
            config: below("XDG_CONFIG_HOME", ".config")?,
            state: below("XDG_STATE_HOME", ".local/state")?,
        })
    }

    /// Keys and what the user sets; created when missing.
    pub fn config(&self) -> Result<&Path, HomeError> {
        prepare(&self.config)
    }

    /// The user's defaults ([`crate::defaults`]). Neither the file nor its folder need be there.
    pub fn defaults(&self) -> PathBuf {
        self.config.join("defaults.toml")
    }

    /// What a later run needs of an earlier one; created when missing.
    pub fn state(&self) -> Result<&Path, HomeError> {
        prepare(&self.state)
    }
}

fn prepare(path: &Path) -> Result<&Path, HomeError> {
    let create = |error| HomeError::Create(path.to_owned(), error);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(create)?;
    let meta = fs::metadata(path).map_err(create)?;
    if is_open_to_others(meta.mode(), meta.uid(), rustix::process::geteuid().as_raw()) {
        return Err(HomeError::OpenToOthers(path.to_owned()));
    }
    Ok(path)
}

/// Whether somebody may write there who is neither we nor root. Root may use a user's folder, as `sudo` does that keeps `$HOME`.
const fn is_open_to_others(mode: u32, owner: u32, own: u32) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let is_anothers = owner != own && owner != 0 && own != 0;
    mode & WRITABLE_BY_OTHERS != 0 || is_anothers
}

#[cfg(test)]
mod tests {
    use super::{Home, HomeError, is_open_to_others};
    use std::ffi::OsString;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn environment(pairs: &[(&str, &str)]) -> Result<Home, HomeError> {
        let lookup = |name: &str| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Home::locate_in(lookup)
    }

    #[test]
    fn downpour_home_wins_over_xdg_over_home() {
        let own = environment(&[("DOWNPOUR_HOME", "/d"), ("HOME", "/h")]).unwrap();
        assert_eq!(own.config, Path::new("/d/config"));
        let xdg = environment(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]).unwrap();
        assert_eq!(xdg.state, Path::new("/s/downpour"));
        assert_eq!(xdg.config, Path::new("/h/.config/downpour"));
        let empty = [("DOWNPOUR_HOME", ""), ("XDG_STATE_HOME", "s"), ("HOME", "/h")];
        assert_eq!(environment(&empty).unwrap().state, Path::new("/h/.local/state/downpour"));
        let relative = environment(&[("DOWNPOUR_HOME", "d"), ("HOME", "/h")]).unwrap_err();
        assert_eq!(relative.to_string(), "$DOWNPOUR_HOME is no absolute path: d");
        let both = environment(&[("XDG_CONFIG_HOME", "/c"), ("XDG_STATE_HOME", "/s")]);
        assert_eq!(both.unwrap().config, Path::new("/c/downpour"), "nothing needs $HOME");
        assert!(matches!(environment(&[]), Err(HomeError::NoHome)));
    }

    #[test]
    fn only_we_and_root_may_own_or_write() {
        for (mode, owner, own, is_open) in [
            (0o700, 1000, 1000, false),
            (0o755, 0, 1000, false),
            (0o700, 1000, 0, false),
            (0o755, 1001, 1000, true),
            (0o770, 1000, 1000, true),
            (0o777, 0, 0, true),
        ] {
            assert_eq!(is_open_to_others(mode, owner, own), is_open, "{mode:o} {owner} {own}");
        }
    }

    #[test]
    fn folders_are_private_and_open_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("home");
        let home = environment(&[("DOWNPOUR_HOME", root.to_str().unwrap())]).unwrap();
        let config = home.config().unwrap().to_owned();
        assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&config, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(home.config(), Err(HomeError::OpenToOthers(_))));
    }
}
