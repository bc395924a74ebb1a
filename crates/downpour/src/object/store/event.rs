//! What a store tells its owner.

use crate::object::digest::Digest;
use crate::object::manifest::ManifestError;
use crate::object::place::{Obstacle, PlaceError, Why};
use crate::object::tree::EntryId;
use downpour_proto::BlockId;
use std::fmt;
use std::ops::Range;

/// Something that happened. Events come from the thread that called the store, which holds no lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StoreEvent {
    /// The tree is known, and the target is ready for it.
    Tree(TreeKnown),
    /// Digests of a further span are known.
    Section(SectionKnown),
    /// A block that was accepted must come again, whole.
    Forgotten {
        /// The block.
        block: BlockId,
        /// Whether it is suspected to hold false bytes (pull it over TLS).
        poisoned: bool,
    },
    /// These data blocks need not come any more: what they hold belongs to objects that have failed.
    NotNeeded(Vec<Range<u32>>),
    /// Something of an object could not be done, which does not make it fail.
    Notice {
        /// The object's path.
        path: String,
        /// What.
        text: String,
    },
    /// An object has failed for good; the rest goes on.
    ObjectFailed {
        /// The object.
        entry: EntryId,
        /// Its path.
        path: String,
        /// What kind of failure.
        obstacle: Obstacle,
        /// Why, and what to do.
        reason: String,
    },
    /// The store has failed for good. Everything offered from now on is answered with `Failed`.
    Failed(StoreFailure),
    /// All objects are placed or have failed, and what is placed is on the disk.
    Complete(Summary),
}

/// Said when the tree is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeKnown {
    /// Entries of all kinds.
    pub entries: u32,
    /// Length of the data space; `None` for a stream.
    pub data_len: Option<u64>,
    /// Whether files are there already that may prove identical, or partial files to be resumed: the
    /// sender does well to wait for what is held of each section.
    pub candidates: bool,
}

/// Said when digests of a span are known, and what is held of it has been found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionKnown {
    /// Number of the manifest's section.
    pub index: u32,
    /// Data blocks of which nothing is needed any more.
    pub held: Vec<Range<u32>>,
    /// Data blocks that must come.
    pub needed: Vec<Range<u32>>,
    /// Whether it was the last section.
    pub last: bool,
    /// Length of the data space covered so far; the whole of it with the last section.
    pub data_end: u64,
}

/// How a session ended for this receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries in their place.
    pub complete: u32,
    /// Entries that failed: path and reason.
    pub failed: Vec<(String, String)>,
    /// Bytes of data (holes not counted) that came with blocks and were verified.
    pub bytes_received: u64,
    /// Bytes of data that were held: identical files and earlier attempts.
    pub bytes_held: u64,
    /// Stands for the whole manifest: its last section's hash.
    pub manifest: Option<Digest>,
}

/// Why a store cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFailure {
    /// There is not enough room.
    DiskFull {
        /// Bytes that are needed, when known beforehand.
        needed: Option<u64>,
        /// Bytes that are there.
        available: Option<u64>,
        /// What was being done.
        doing: String,
        /// In a session of products: the first one that is not here.
        product: Option<u64>,
    },
    /// The device holds less than what is sent.
    TooSmall {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that it holds.
        available: u64,
    },
    /// The publisher's manifest breaks a rule.
    Manifest(ManifestError),
    /// The target cannot take what the manifest holds, or cannot be written any more.
    Target(String),
    /// The sender sends what was not agreed on.
    NotAgreed(String),
}

impl PlaceError {
    /// Why its object has no place, when that is all; or why nothing can be placed any more. A product has a number.
    pub(crate) fn of_object(self, product: Option<u64>) -> Result<Why, StoreFailure> {
        match self {
            Self::Object(why) => Ok(why),
            Self::Full(doing) => {
                Err(StoreFailure::DiskFull { needed: None, available: None, doing, product })
            }
            Self::Target(reason) => Err(StoreFailure::Target(reason)),
        }
    }
}

/// A file that is in its place, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its path below the target.
    pub path: Vec<u8>,
    /// Its size, holes counted.
    pub size: u64,
    /// Of its content.
    pub digest: Digest,
    /// This session has put it there, for certain; else it may have been there before.
    pub brought: bool,
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiskFull { needed: Some(needed), available: Some(available), .. } => write!(
                f,
                "not enough space: {needed} bytes are needed and {available} are free. \
                 Make room and start again: what has arrived is kept"
            ),
            Self::DiskFull { doing, product: Some(number), .. } => write!(
                f,
                "{doing}. Make room (df, and df -i for inodes): products from number {number} on are \
                 not here, and who starts again gets those to come"
            ),
            Self::DiskFull { doing, .. } => {
                write!(
                    f,
                    "{doing}. Make room (df, and df -i for inodes) and start again: what has arrived is kept"
                )
            }
            Self::TooSmall { needed, available } => write!(
                f,
                "the device is too small: {needed} bytes are sent, and it holds {available}. Give --out a larger one"
            ),
            Self::Manifest(error) => write!(f, "{error}"),
            Self::Target(reason) => write!(f, "{reason}"),
            Self::NotAgreed(what) => write!(f, "{what}: that was not agreed"),
        }
    }
}

impl std::error::Error for StoreFailure {}

#[cfg(test)]
mod tests {
    use crate::object::PlaceError;
    use rustix::io::Errno;

    #[test]
    fn of_products_nothing_is_said_to_be_kept() {
        let told = |product| {
            let error = PlaceError::of(Errno::NOSPC, "writing");
            error.of_object(product).unwrap_err().to_string()
        };
        assert!(told(None).ends_with("start again: what has arrived is kept"));
        let of_product = told(Some(2));
        assert!(of_product.contains("products from number 2 on are not here"), "{of_product}");
        assert!(!of_product.contains("kept"), "{of_product}");
    }
}
