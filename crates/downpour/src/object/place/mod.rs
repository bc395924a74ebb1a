//! Placing: the only code that writes below the target folder.
//!
//! Every path is walked one name at a time from the descriptor of the folder above, with openat2 and
//! `RESOLVE_BENEATH | NO_SYMLINKS | NO_MAGICLINKS` (on kernels without it: `O_NOFOLLOW`, which is as
//! strict for a single name). Names come from a checked [`Tree`](super::Tree). So nothing is ever
//! written through a link, or outside of the target.
//!
//! | module | does |
//! | --- | --- |
//! | `beneath` | opens by name; the cache of folders |
//! | `claim` | `OUT/.downpour` and the lock on it |
//! | `staging` | what is in it: partial files, space reserve |
//! | `meta` | owner, mode, attributes, times, in the order that keeps them |
//! | `put` | a finished file to its name, atomically |
//! | `across` | the same where the place is on another file system |
//! | `single` | one file without a tree |
//! | `finish` | links, folders' metadata, sync |

mod across;
mod beneath;
mod claim;
mod finish;
mod meta;
mod put;
mod single;
mod staging;

pub(crate) use across::copy_across;
pub(crate) use beneath::{Beneath, open_in, unnamed_in};
pub use claim::OpenError;
pub(crate) use claim::{Claim, is_locked, make_folder, unlock};
pub(crate) use finish::OnNotice;
pub(crate) use meta::MetaPolicy;
pub(crate) use put::{Existing, Placer, REMEDY, differs, rename, rename_new};
pub(crate) use single::{SingleFile, SingleTarget};
pub(crate) use staging::Staging;

use super::scan::explain;
use rustix::fs::StatVfs;
use rustix::io::Errno;

/// Bytes that this user can still write to a file system; where it does not say how large it is, any number.
pub(crate) fn free_bytes(fs: &StatVfs) -> u64 {
    if fs.f_blocks == 0 { u64::MAX } else { fs.f_bavail.saturating_mul(fs.f_frsize) }
}

/// What kept an object from its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Something else has its name.
    Taken,
    /// The target cannot have an object of this name or size.
    Refused,
    /// The sender has given it up.
    Withdrawn,
    /// It is not what the sender had announced.
    NotAgreed,
    /// Reading or writing it failed.
    Failed,
}

/// An obstacle, in a code and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Why {
    pub(crate) obstacle: Obstacle,
    pub(crate) text: String,
}

impl Why {
    pub(crate) fn new(obstacle: Obstacle, text: impl Into<String>) -> Self {
        Self { obstacle, text: text.into() }
    }
}

/// Why something was not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlaceError {
    /// This object only.
    Object(Why),
    /// The disk is full, or the quota used up.
    Full(String),
    /// The target as a whole cannot be used any more.
    Target(String),
}

impl PlaceError {
    /// Sorts an error of the operating system. `doing` says what was tried, with the path.
    pub(crate) fn of(error: Errno, doing: &str) -> Self {
        let text = format!("{doing}: {}", explain(error));
        match error {
            Errno::NOSPC | Errno::DQUOT => Self::Full(text),
            Errno::IO | Errno::ROFS | Errno::NODEV | Errno::NXIO => Self::Target(text),
            // The server of a file system is gone.
            Errno::STALE | Errno::NOTCONN => Self::Target(text),
            Errno::LOOP => {
                let text = format!("{doing}: a symbolic link is in the way, not followed");
                Self::Object(Why::new(Obstacle::Taken, text))
            }
            Errno::FBIG => {
                let text = format!(
                    "{doing}: too large a file for this file system, or for this user (ulimit -f)"
                );
                Self::Object(Why::new(Obstacle::Refused, text))
            }
            Errno::NAMETOOLONG | Errno::INVAL | Errno::NOTDIR | Errno::ILSEQ => {
                Self::Object(Why::new(Obstacle::Refused, text))
            }
            _ => Self::Object(Why::new(Obstacle::Failed, text)),
        }
    }
}
