//! Who may: bearer tokens with a role and an end, kept as digests in `tokens.json` of the state folder.
//!
//! A token is 128 random bits and is shown once, when it is made. The file holds its BLAKE3 digest: random bits need no
//! slow hash. It is written whole under another name and renamed; commands may change it while the daemon runs,
//! which notices by the file's time and size. Who changes it has a lock on the state folder, from reading to renaming.
//! It stays its owner's: root's would be closed to the daemon.

use super::config::{NAME_BYTES_MAX, is_name};
use super::replace::{self, replace};
use crate::whole;
use downpour_catalog::Time;
use downpour_transport::control::Token;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use utoipa::ToSchema;

/// Name of the file in the state folder.
const FILE: &str = "tokens.json";
/// Tokens that a site has at most.
const TOKENS_MAX: usize = 1000;
/// What tokens begin with, so that they are recognised where they should not be.
const PREFIX: &str = "downpour-";

/// What somebody may do; each may do what the one before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// See everything.
    Viewer,
    /// Start, stop, retry, submit.
    Operator,
    /// Give and take tokens, see the audit record.
    Admin,
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    name: String,
    role: Role,
    /// Microseconds since 1970.
    made: i64,
    expires: Option<i64>,
    /// BLAKE3 of the token's text, in hex.
    digest: String,
}

/// A token as it is shown: without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Shown {
    /// Whose it is.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// When it was made, in seconds since 1970.
    pub made_unix_s: i64,
    /// When it ends; never, if it is not there.
    pub expires_unix_s: Option<i64>,
    /// Whether it has ended.
    pub expired: bool,
}

/// A token that was just made: the only time that its text is seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// The text that its owner shows.
    pub token: String,
    /// What is kept of it.
    pub about: Shown,
}

/// Tokens were not read or written.
#[derive(Debug)]
pub enum TokenError {
    /// The file.
    File(PathBuf, io::Error),
    /// No name for a token.
    BadName(String),
    /// It would end within a second.
    AtOnce,
    /// There is one of this name.
    Taken(String),
    /// There is none of this name.
    Unknown(String),
    /// It is the only admin's.
    LastAdmin(String),
    /// There are as many as may be.
    TooMany,
    /// The system gives no random numbers.
    NoRandomness,
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::BadName(name) => {
                write!(f, "`{name}` is no name: up to {NAME_BYTES_MAX} letters, digits, - _ .")
            }
            Self::AtOnce => write!(f, "a token that expires at once admits nobody"),
            Self::Taken(name) => write!(f, "there is a token `{name}` already"),
            Self::Unknown(name) => write!(f, "there is no token `{name}`"),
            Self::LastAdmin(name) => {
                write!(
                    f,
                    "`{name}` is the last admin's token: without it nobody could give another"
                )
            }
            Self::TooMany => write!(f, "there are {TOKENS_MAX} tokens already"),
            Self::NoRandomness => f.write_str("the system gives no random numbers"),
        }
    }
}

impl std::error::Error for TokenError {}

/// Whether a token admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This one, with this role.
    Known(String, Role),
    /// Its time is over.
    Expired(String),
    /// Nobody's.
    Unknown,
}

/// The tokens of a site.
pub struct Tokens {
    file: PathBuf,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    kept: Vec<Kept>,
    /// Of the file that was read: inode, size, time.
    seen: Option<(u64, u64, i64, i64)>,
    /// Whether there ever was one.
    was_there: bool,
}

impl Tokens {
    /// Those in a state folder; there need be none yet.
    pub fn open(state: &Path) -> Result<Self, TokenError> {
        let tokens = Self { file: state.join(FILE), read: Mutex::default() };
        drop(tokens.fresh()?);
        Ok(tokens)
    }

    /// Whose token this is.
    pub(crate) fn judge(&self, text: &str, now: Time) -> Result<Verdict, TokenError> {
        let digest = blake3::hash(text.as_bytes());
        let read = self.fresh()?;
        // Comparing BLAKE3 hashes takes the same time whatever they are.
        let is = |kept: &&Kept| blake3::Hash::from_hex(&kept.digest).is_ok_and(|d| d == digest);
        Ok(match read.kept.iter().find(is) {
            None => Verdict::Unknown,
            Some(kept) if kept.is_over(now) => Verdict::Expired(kept.name.clone()),
            Some(kept) => Verdict::Known(kept.name.clone(), kept.role),
        })
    }

    /// Whether there was a file of them, and is none any more.
    pub(crate) fn are_gone(&self) -> bool {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.was_there && !self.file.exists()
    }

    /// All of them, by name.
    pub fn list(&self, now: Time) -> Result<Vec<Shown>, TokenError> {
        Ok(self.fresh()?.kept.iter().map(|kept| kept.shown(now)).collect())
    }

    /// Makes one, and gives its text.
    pub fn add(
        &self,
        name: &str,
        role: Role,
        expires: Option<Duration>,
        now: Time,
    ) -> Result<NewToken, TokenError> {
        if !is_name(name) {
            return Err(TokenError::BadName(name.to_owned()));
        }
        // Whole seconds count.
        if expires.is_some_and(|time| time.as_secs() == 0) {
            return Err(TokenError::AtOnce);
        }
        let _lock = self.lock()?;
        let mut all = self.fresh()?.kept.clone();
        if all.iter().any(|kept| kept.name == name) {
            return Err(TokenError::Taken(name.to_owned()));
        }
        if all.len() >= TOKENS_MAX {
            return Err(TokenError::TooMany);
        }
        let secret = Token::random().ok_or(TokenError::NoRandomness)?;
        let token = format!("{PREFIX}{}", secret.to_text());
        let after =
            |time: Duration| now.plus_s(i64::try_from(time.as_secs()).unwrap_or(i64::MAX)).0;
        let kept = Kept {
            name: name.to_owned(),
            role,
            made: now.0,
            expires: expires.map(after),
            digest: blake3::hash(token.as_bytes()).to_hex().to_string(),
        };
        let about = kept.shown(now);
        all.push(kept);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        self.write(&all)?;
        Ok(NewToken { token, about })
    }

    /// Ends one for good; not the last that lets somebody give others.
    pub fn revoke(&self, name: &str, now: Time) -> Result<(), TokenError> {
        let _lock = self.lock()?;
        let all = self.fresh()?.kept.clone();
        let is_it = |kept: &Kept| kept.name == name;
        let (gone, left): (Vec<_>, Vec<_>) = all.into_iter().partition(is_it);
        let is_admin = |kept: &Kept| kept.role == Role::Admin && !kept.is_over(now);
        if gone.is_empty() {
            return Err(TokenError::Unknown(name.to_owned()));
        }
        if gone.iter().any(is_admin) && !left.iter().any(is_admin) {
            return Err(TokenError::LastAdmin(name.to_owned()));
        }
        self.write(&left)
    }

    /// Nobody else changes the file until this is dropped.
    fn lock(&self) -> Result<File, TokenError> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        replace::lock(folder).map_err(|error| TokenError::File(folder.to_owned(), error))
    }

    /// What the file says now.
    fn fresh(&self) -> Result<MutexGuard<'_, Read>, TokenError> {
        let failed = |error| TokenError::File(self.file.clone(), error);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = match fs::metadata(&self.file) {
            Ok(meta) => Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if seen != read.seen {
            read.kept = match seen {
                None => Vec::new(),
                Some(_) => {
                    let text = whole::read(&self.file).map_err(failed)?;
                    serde_json::from_slice(&text).map_err(|error| failed(error.into()))?
                }
            };
            read.seen = seen;
            read.was_there |= seen.is_some();
        }
        Ok(read)
    }

    /// Who judges meanwhile does not wait for the disk.
    fn write(&self, kept: &[Kept]) -> Result<(), TokenError> {
        let text = serde_json::to_vec_pretty(kept).map_err(io::Error::from);
        text.and_then(|text| replace(&self.file, &text, 0o600))
            .map_err(|error| TokenError::File(self.file.clone(), error))?;
        // The next look reads it, whoever wrote last.
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        (read.seen, read.was_there) = (None, true);
        Ok(())
    }
}

impl Kept {
    fn is_over(&self, now: Time) -> bool {
        self.expires.is_some_and(|end| now.0 >= end)
    }

    fn shown(&self, now: Time) -> Shown {
        const MICROS: i64 = 1_000_000;
        Shown {
            name: self.name.clone(),
            role: self.role,
            made_unix_s: self.made / MICROS,
            expires_unix_s: self.expires.map(|end| end / MICROS),
            expired: self.is_over(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE, Role, TokenError, Tokens, Verdict};
    use downpour_catalog::Time;
    use std::os::unix::fs::MetadataExt as _;
    use std::time::Duration;

    #[test]
    fn a_token_admits_until_it_ends_or_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(folder.path()).unwrap();
        let minute = Some(Duration::from_secs(60));
        let short = tokens.add("short", Role::Operator, minute, Time(0)).unwrap();
        let long = tokens.add("long", Role::Viewer, None, Time(0)).unwrap();
        let known = |name: &str, role| Verdict::Known(name.to_owned(), role);
        let judge = |text: &str, at| tokens.judge(text, Time(0).plus_s(at)).unwrap();
        assert_eq!(judge(&short.token, 59), known("short", Role::Operator));
        assert_eq!(judge(&short.token, 60), Verdict::Expired("short".to_owned()));
        assert_eq!(judge(&long.token, 1 << 40), known("long", Role::Viewer));
        // A year in the wrong unit, and more than there are seconds.
        for (name, seconds) in [("micros", 31_536_000_000_000), ("most", u64::MAX)] {
            let time = Some(Duration::from_secs(seconds));
            let token = tokens.add(name, Role::Viewer, time, Time(1)).unwrap().token;
            assert_eq!(judge(&token, 1 << 40), known(name, Role::Viewer));
        }
        assert_eq!(judge("downpour-", 0), Verdict::Unknown);
        tokens.revoke("long", Time(0)).unwrap();
        assert_eq!(judge(&long.token, 0), Verdict::Unknown);
        assert!(matches!(tokens.revoke("long", Time(0)), Err(TokenError::Unknown(_))));
        let again = tokens.add("short", Role::Admin, None, Time(0));
        assert!(matches!(again, Err(TokenError::Taken(_))));
        let none = tokens.add("none", Role::Viewer, Some(Duration::from_millis(999)), Time(0));
        assert!(matches!(none, Err(TokenError::AtOnce)));
    }

    #[test]
    fn the_last_admin_that_counts_stays() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(folder.path()).unwrap();
        let minute = Some(Duration::from_secs(60));
        for (name, expires) in [("first", None), ("second", minute)] {
            tokens.add(name, Role::Admin, expires, Time(0)).unwrap();
        }
        let later = Time(0).plus_s(61);
        assert!(matches!(tokens.revoke("first", later), Err(TokenError::LastAdmin(_))));
        tokens.revoke("second", later).unwrap();
        tokens.add("third", Role::Admin, None, later).unwrap();
        tokens.revoke("first", later).unwrap();
    }

    #[test]
    fn the_file_holds_no_token_and_another_process_may_change_it() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(folder.path()).unwrap();
        let other = Tokens::open(folder.path()).unwrap();
        let root = rustix::process::geteuid().is_root();
        // The daemon's user; root makes a token.
        let owner = if root { 7 } else { rustix::process::geteuid().as_raw() };
        std::os::unix::fs::chown(folder.path(), Some(owner), None).unwrap();
        let new = other.add("night-shift", Role::Viewer, None, Time(5)).unwrap();
        assert_eq!(std::fs::metadata(folder.path().join(FILE)).unwrap().uid(), owner);
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let secret = new.token.strip_prefix(super::PREFIX).unwrap();
        assert!(text.contains("night-shift") && !text.contains(secret), "{text}");
        assert!(matches!(tokens.judge(&new.token, Time(6)).unwrap(), Verdict::Known(..)));
        other.revoke("night-shift", Time(6)).unwrap();
        assert_eq!(tokens.judge(&new.token, Time(7)).unwrap(), Verdict::Unknown);
    }

    #[test]
    fn what_two_write_at_once_is_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let each = |who: &str| {
            let tokens = Tokens::open(folder.path()).unwrap();
            for i in 0..20 {
                tokens.add(&format!("{who}-{i}"), Role::Viewer, None, Time(0)).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| each("one"));
            scope.spawn(|| each("other"));
        });
        let all = Tokens::open(folder.path()).unwrap().list(Time(0)).unwrap();
        assert_eq!(all.len(), 40);
    }
}
