//! Objects: what the user has, and how it becomes blocks and is placed again.
//!
//! On the sender's side a [`Scan`] of the disk gives a [`Tree`]; a [`ContentSource`] reads blocks of it,
//! and its hash-ahead emits the signed manifest. On the receiver's side a [`Store`] takes manifest and
//! blocks in any order, verifies each group, and places files below the target.
//!
//! | module | does |
//! | --- | --- |
//! | `limits` | every limit, named |
//! | `tree`, `layout` | entries; extents, groups and the data space |
//! | `digest`, `group`, `wire` | BLAKE3 of groups; varints |
//! | `manifest` | signed sections, emitted and parsed |
//! | `scan` | the disk -> a tree |
//! | `source` | a tree -> blocks and sections |
//! | `store` | blocks and sections -> verified groups -> a target |
//! | `place` | the only code that writes below the target folder |
//! | `journal` | what survives a killed receiver |
//!
//! Deliberately absent: symbols, datagrams, sessions (the transport's), and any trust in what a
//! manifest says.

mod digest;
mod group;
mod journal;
mod layout;
pub mod limits;
mod manifest;
mod place;
mod scan;
mod source;
mod store;
mod tree;
mod wire;
mod xattr;

pub use digest::Digest;
pub use manifest::{ManifestError, ManifestId};
pub use place::{Durability, OpenError};
pub use scan::{Notice, Scan, ScanError, ScanOptions};
pub use source::{Ahead, ContentSource, Section, Withdrawn};
pub use store::{
    Destination, FolderOptions, RawOptions, SectionKnown, Store, StoreConfig, StoreEvent,
    StoreFailure, Summary, TreeKnown,
};
pub use tree::{
    Entry, EntryId, Kind, Meta, Mtime, STAGING_NAME, Tree, TreeError, TreeProblem, Xattr, printable,
};
