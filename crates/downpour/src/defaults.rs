//! A machine's defaults: how fast, and by which controller, a session sends whose command line does not say, nor the daemon's
//! configuration.
//!
//! Two files, each of which may be missing: the machine's (`/etc/downpour/defaults.toml`) and the user's
//! (`defaults.toml` beside the keys, see [`Home`]). The user's comes first, key by key; the command line comes
//! before both, for a daemon its `site.toml`. Only a ceiling that is *hard* stands above the command line: it can be lowered, not raised.
//!
//! ```toml
//! ceiling = "50mbit"            # of sessions without --rate
//! hard = true                   # --rate may be lower, not higher
//! controller = "background"     # auto, tfmcc, background, fixed
//! ```
//!
//! Deliberately absent: everything else that a session needs. That stands on its command line.

use crate::home::Home;
use crate::units::parse_rate;
use downpour_proto::Rate;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The machine's file.
const MACHINE: &str = "/etc/downpour/defaults.toml";

/// A file that is longer is surely another one.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A value and the file that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Told<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub file: PathBuf,
}

/// What the files say together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Of sessions without `--rate`.
    pub ceiling: Option<Told<Rate>>,
    /// The lowest of those that bind all sessions.
    pub hard: Option<Told<Rate>>,
    /// Name of the controller, as `--controller` has it.
    pub controller: Option<Told<String>>,
}

/// A file that cannot be meant as it stands.
#[derive(Debug)]
pub enum DefaultsError {
    /// It is there and cannot be read.
    Read(PathBuf, io::Error),
    /// A line is wrong.
    Line {
        /// Of which file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

impl fmt::Display for DefaultsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(file, error) => write!(f, "cannot read {}: {error}", file.display()),
            Self::Line { file, line, what } => {
                write!(f, "{} line {line}: {what}", file.display())
            }
        }
    }
}

impl std::error::Error for DefaultsError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ceiling: Option<Spanned<String>>,
    #[serde(default)]
    hard: bool,
    controller: Option<Spanned<String>>,
}

impl Defaults {
    /// What this machine and this user, who may have no home, have set. `controllers` are the names that exist.
    pub fn read(home: Option<&Home>, controllers: &[&str]) -> Result<Self, DefaultsError> {
        // A home that this user may not enter, as of root whose daemon gave its rights away, is none.
        let is_closed = |file: &PathBuf| {
            fs::metadata(file).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
        };
        let own = home.map(Home::defaults).filter(|file| !is_closed(file));
        let files: Vec<&Path> = own.as_deref().into_iter().chain([Path::new(MACHINE)]).collect();
        Self::read_from(&files, controllers)
    }

    /// From files of which the first comes first.
    fn read_from(files: &[&Path], controllers: &[&str]) -> Result<Self, DefaultsError> {
        let mut defaults = Self::default();
        for file in files {
            if let Some(text) = read(file)? {
                defaults.add(file, &text, controllers)?;
            }
        }
        Ok(defaults)
    }

    fn add(&mut self, file: &Path, text: &str, controllers: &[&str]) -> Result<(), DefaultsError> {
        let wrong = |at: Option<Range<usize>>, what: String| {
            let before = text.as_bytes().get(..at.map_or(0, |at| at.start)).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            DefaultsError::Line { file: file.to_owned(), line, what }
        };
        let said: File =
            toml::from_str(text).map_err(|e| wrong(e.span(), e.message().to_owned()))?;
        if let Some(ceiling) = &said.ceiling {
            let rate = parse_rate(ceiling.get_ref());
            let value = rate.map_err(|e| wrong(Some(ceiling.span()), e.to_string()))?;
            let found = Told { value, file: file.to_owned() };
            let lower = self.hard.as_ref().is_none_or(|hard| value < hard.value);
            if said.hard && lower {
                self.hard = Some(found.clone());
            }
            self.ceiling.get_or_insert(found);
        } else if said.hard {
            return Err(wrong(None, "`hard` needs a `ceiling` beside it".to_owned()));
        }
        if let Some(controller) = said.controller {
            if !controllers.contains(&controller.get_ref().as_str()) {
                let known = controllers.join(", ");
                let what = format!("`{}` is no controller: take {known}", controller.get_ref());
                return Err(wrong(Some(controller.span()), what));
            }
            let value = controller.into_inner();
            self.controller.get_or_insert(Told { value, file: file.to_owned() });
        }
        Ok(())
    }

    /// The ceiling of a session with or without `--rate`, and in words where it comes from.
    pub fn ceiling_for(&self, asked: Option<Rate>) -> (Option<Rate>, String) {
        let of = |from: &Told<Rate>| from.file.display().to_string();
        let (rate, origin) = match (asked, &self.ceiling) {
            (Some(rate), _) => (Some(rate), "--rate".to_owned()),
            (None, Some(ceiling)) => (Some(ceiling.value), of(ceiling)),
            (None, None) => (None, String::new()),
        };
        match &self.hard {
            Some(hard) => match rate {
                Some(rate) if rate < hard.value || asked == Some(hard.value) => {
                    (Some(rate), origin)
                }
                _ => (Some(hard.value), format!("hard in {}", of(hard))),
            },
            None => (rate, origin),
        }
    }
}

fn read(file: &Path) -> Result<Option<String>, DefaultsError> {
    // A pipe that nobody writes to would hold up the start.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(file, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) if file.ancestors().any(leads_nowhere) => {
            Err(io::Error::other("it is, or lies below, a link that leads nowhere"))
        }
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        opened => opened.map_err(io::Error::from),
    };
    let read = opened.map(fs::File::from).and_then(|opened| {
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut text = String::new();
        opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        match text.len() as u64 {
            0..=FILE_BYTES_MAX => Ok(text),
            _ => Err(io::Error::other("it is too long for a file of defaults")),
        }
    });
    read.map(Some).map_err(|error| DefaultsError::Read(file.to_owned(), error))
}

/// Whether a link is there, but not what it leads to: somebody has meant the file to be there.
fn leads_nowhere(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) && fs::metadata(path).is_err()
}

#[cfg(test)]
mod tests {
    use super::{Defaults, DefaultsError, FILE_BYTES_MAX};
    use downpour_proto::Rate;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::path::Path;

    const CONTROLLERS: &[&str] = &["auto", "background"];

    fn of(user: &str, machine: &str) -> Result<Defaults, DefaultsError> {
        let mut defaults = Defaults::default();
        defaults.add(Path::new("/home/u/defaults.toml"), user, CONTROLLERS)?;
        defaults.add(Path::new("/etc/downpour/defaults.toml"), machine, CONTROLLERS)?;
        Ok(defaults)
    }

    #[test]
    fn the_command_line_comes_before_the_user_before_the_machine() {
        let defaults = of("ceiling = '20mbit'", "ceiling = '50mbit'\ncontroller = 'background'");
        let defaults = defaults.unwrap();
        let (rate, origin) = defaults.ceiling_for(None);
        assert_eq!((rate, origin.as_str()), (Some(Rate::from_mbps(20)), "/home/u/defaults.toml"));
        let (rate, origin) = defaults.ceiling_for(Some(Rate::from_mbps(900)));
        assert_eq!((rate, origin.as_str()), (Some(Rate::from_mbps(900)), "--rate"));
        assert_eq!(defaults.controller.unwrap().value, "background");
        assert_eq!(Defaults::default().ceiling_for(None).0, None);
    }

    #[test]
    fn a_hard_ceiling_can_be_lowered_by_anybody_and_raised_by_nobody() {
        let defaults = of("ceiling = '80mbit'", "ceiling = '50mbit'\nhard = true").unwrap();
        for asked in [None, Some(Rate::from_mbps(900))] {
            let (rate, origin) = defaults.ceiling_for(asked);
            assert_eq!(rate, Some(Rate::from_mbps(50)));
            assert_eq!(origin, "hard in /etc/downpour/defaults.toml");
        }
        let low = Some(Rate::from_mbps(5));
        assert_eq!(defaults.ceiling_for(low), (low, "--rate".to_owned()));
        // A user may bind himself, not free himself.
        let two = of("ceiling = '80mbit'\nhard = true", "ceiling = '50mbit'\nhard = true").unwrap();
        assert_eq!(two.hard.unwrap().value, Rate::from_mbps(50));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line, word) in [
            ("# site\nceiling = '50'\n", 2, "unit"),
            ("ceiling = '7kbit'\n", 1, "8 kbit/s"),
            ("\n\ncieling = '50mbit'\n", 3, "cieling"),
            ("ceiling = '5mbit'\ncontroller = 'fast'\n", 2, "background"),
            ("ceiling = \n", 1, ""),
            ("hard = true\n", 1, "ceiling"),
        ] {
            let error = of("", text).unwrap_err();
            let DefaultsError::Line { line: found, what, .. } = &error else { panic!("{error}") };
            assert_eq!(*found, line, "{text:?}: {error}");
            assert!(what.contains(word), "{text:?}: {error}");
        }
    }

    #[test]
    fn files_that_are_not_there_say_nothing() {
        for missing in ["/no/such/defaults.toml", "/dev/null/.config/downpour/defaults.toml"] {
            let read = Defaults::read_from(&[Path::new(missing)], CONTROLLERS);
            assert_eq!(read.unwrap(), Defaults::default(), "{missing}");
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_not_as_if_nobody_had_said_anything() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("unmounted/defaults.toml", at("defaults.toml")).unwrap();
        std::os::unix::fs::symlink("unmounted", at("downpour")).unwrap();
        for file in [at("defaults.toml"), at("downpour/defaults.toml")] {
            let read = Defaults::read_from(&[&file], CONTROLLERS);
            assert!(matches!(read, Err(DefaultsError::Read(..))), "{}: {read:?}", file.display());
        }
    }

    #[test]
    fn what_is_no_file_of_text_is_refused_and_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, long) = (folder.path().join("pipe"), folder.path().join("long"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::write(&long, "#".repeat(FILE_BYTES_MAX as usize + 1)).unwrap();
        for (file, why) in [
            (Path::new("/"), "regular"),
            (Path::new("/dev/zero"), "regular"),
            (pipe.as_path(), "regular"),
            (long.as_path(), "too long"),
        ] {
            let error = Defaults::read_from(&[file], CONTROLLERS).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
