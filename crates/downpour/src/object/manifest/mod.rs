//! The manifest: a chain of signed sections that say what a session carries (`docs/protocol.md#MAN`).
//!
//! 1. The first sections hold the *tree*: every entry, with sizes and holes, without digests.
//! 2. Each further section holds the *digests* of a span of the data space (about 64 MiB), in order,
//!    and names the files that were withdrawn because they changed.
//! 3. The last section says so. For a stream it tells the length.
//!
//! Each section carries the hash of the one before, so that none can be left out or swapped, and the
//! publisher's signature, so that no member of the group can make another accept false bytes. The
//! signature covers nothing of the session except the manifest's id, which JOIN tells by TLS.
//!
//! A parsed section, emitted again, gives the same bytes: there is one way to say each thing
//! (`docs/protocol.md#MAN-5`).

mod digests;
#[cfg(fuzzing)]
pub mod fuzzing;
mod section;
#[cfg(test)]
mod tests;
mod tree_codec;

pub(crate) use digests::{DigestSection, Known, Withdrawal};
pub use section::ManifestId;
pub(crate) use section::{Chain, declared_len};
pub(crate) use tree_codec::{TreeDecoder, TreeEncoder};

use super::tree::{Tree, TreeError};
use super::wire::WireError;
use std::fmt;

/// First byte of a body.
const BODY_TREE: u8 = 1;
const BODY_DIGESTS: u8 = 2;

/// Why a section was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ManifestError {
    /// It is not framed as a section, or not signed by the publisher: false bytes, not the publisher's
    /// doing. They can be fetched again.
    Forged(&'static str),
    /// The publisher signed it, and it breaks a rule of the tree.
    Tree(TreeError),
    /// The publisher signed it, and it cannot be understood.
    Malformed {
        /// Number of the section.
        section: u32,
        /// What is wrong.
        what: &'static str,
    },
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forged(what) => write!(f, "a manifest section is not genuine: {what}"),
            Self::Tree(error) => write!(f, "the manifest is refused: {error}"),
            Self::Malformed { section, what } => {
                write!(f, "the manifest is refused: section {section}: {what}")
            }
        }
    }
}

impl std::error::Error for ManifestError {}

/// Why a body was refused, before the section's number is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    Tree(TreeError),
    Text(&'static str),
}

impl From<WireError> for BodyError {
    fn from(error: WireError) -> Self {
        Self::Text(error.text())
    }
}

impl From<TreeError> for BodyError {
    fn from(error: TreeError) -> Self {
        Self::Tree(error)
    }
}

impl BodyError {
    pub(crate) fn at(self, section: u32) -> ManifestError {
        match self {
            Self::Tree(error) => ManifestError::Tree(error),
            Self::Text(what) => ManifestError::Malformed { section, what },
        }
    }
}

/// Whether a body holds a part of the tree (else it holds digests).
pub(crate) fn is_tree_body(body: &[u8]) -> bool {
    body.first() == Some(&BODY_TREE)
}

/// The bodies of all tree sections of `tree`.
pub(crate) fn tree_bodies(tree: &Tree) -> Vec<Vec<u8>> {
    let mut encoder = TreeEncoder::new(tree);
    std::iter::from_fn(|| encoder.next_body()).collect()
}
