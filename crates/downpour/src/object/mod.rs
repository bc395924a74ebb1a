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
//! | `covered`, `bits` | what the sections cover so far; a set of numbers |
//! | `disk` | bytes of open files: read, written, zeros |
//! | `manifest` | signed sections, emitted and parsed |
//! | `scan` | the disk -> a tree |
//! | `source` | a tree -> blocks and sections |
//! | `store` | blocks and sections -> verified groups -> a target |
//! | `place` | the only code that writes below the target folder |
//! | `journal` | what survives a killed receiver |
//! | `book` | digests that survive the sender |
//! | `xattr` | extended attributes, and what of the mode an ACL leaves |
//!
//! Both sides, with a loop in the place of the transport:
//!
//! ```
//! use downpour::object::*;
//! use downpour_proto::{BlockId, Geometry};
//! use downpour_transport::{Accepted, BlockSink, BlockSource, identity::Identity};
//! use std::sync::Arc;
//! # let dir = tempfile::tempdir()?;
//! # let (from, to) = (dir.path().join("from"), dir.path().join("to"));
//! # std::fs::create_dir(&from)?;
//! # std::fs::write(from.join("file"), b"content")?;
//!
//! // The sender: scan, then hash ahead on a thread of its own.
//! let scan = Scan::new(&[from], &ScanOptions::default())?;
//! scan.notices().iter().for_each(|notice| eprintln!("{notice}"));
//! let tell_receivers = |withdrawn: &Withdrawn| eprintln!("{}: {}", withdrawn.path, withdrawn.reason);
//! let source = ContentSource::files(scan, Geometry::IPV4, tell_receivers)?;
//! let (publisher, id) = (Arc::new(Identity::generate()), ManifestId([7; 16]));
//! let sections = source.ahead(id, publisher.clone(), 2).spawn(1);
//!
//! // The receiver: JOIN has told geometry, publisher and id.
//! let config = StoreConfig::new(Geometry::IPV4, publisher.public_key(), id);
//! let out = Destination::Folder(FolderOptions::new(&to));
//! let store = Store::open(config, out, |event| match event {
//!     StoreEvent::Section(section) => println!("have {:?}, need {:?}", section.held, section.needed),
//!     StoreEvent::Forgotten { block, poisoned } => println!("pull {block} again ({poisoned})"),
//!     StoreEvent::NotNeeded(blocks) => println!("no need of {blocks:?}"),
//!     StoreEvent::ObjectFailed { path, reason, .. } => println!("{path}: {reason}"),
//!     StoreEvent::Failed(failure) => println!("{failure}"),
//!     StoreEvent::Complete(summary) => println!("send the receipt: {summary:?}"),
//!     _ => {}
//! })?;
//!
//! // The transport: each section's manifest blocks, then the data blocks that it completes.
//! for section in sections {
//!     let section = section?;
//!     let manifest = section.manifest.filter_map(BlockId::manifest);
//!     for block in manifest.chain(section.data.filter_map(BlockId::data)) {
//!         let symbols = source.symbols(block).expect("offered by this section");
//!         let mut bytes = vec![0; usize::from(symbols) * usize::from(Geometry::IPV4.symbol_len)];
//!         source.read(block, &mut bytes)?;
//!         assert_eq!(store.accept(block, &bytes), Accepted::Kept);
//!     }
//! }
//! assert_eq!(store.summary().manifest, source.manifest_digest());
//! # assert_eq!(std::fs::read(to.join("from/file"))?, b"content");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: symbols, datagrams, sessions (the transport's), and any trust in what a
//! manifest says.

mod bits;
mod book;
mod covered;
mod digest;
mod disk;
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
pub(crate) mod wire;
mod xattr;

pub use book::DigestBook;
pub use digest::Digest;
pub(crate) use journal::part_name;
#[cfg(fuzzing)]
pub use manifest::fuzzing;
pub use manifest::{ManifestError, ManifestId};
pub(crate) use place::{
    Claim, Existing, PlaceError, SingleFile, SingleTarget, Why, copy_across, free_bytes, is_locked,
    make_folder, open_in, rename, rename_new,
};
pub use place::{Obstacle, OpenError};
pub(crate) use scan::{Fingerprint, explain, name_at_top, open_file};
pub use scan::{Item, ItemScan, Notice, Scan, ScanError, ScanOptions, Skipped, check_item_name};
pub use source::{Ahead, ContentSource, Section, Withdrawn};
pub(crate) use source::{CHANGED, NO_SIZE, REMOVED};
pub use store::{
    Agreed, Destination, FolderOptions, PipeOut, Placed, SectionKnown, Store, StoreConfig,
    StoreEvent, StoreFailure, Summary, TreeKnown,
};
pub(crate) use tree::is_plain_name;
pub use tree::{
    Entry, EntryId, Kind, Meta, Mtime, STAGING_NAME, Tree, TreeError, TreeProblem, Xattr, printable,
};
pub(crate) use xattr::closed_mode_of;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state behind a mutex. A thread that panicked while it held one has left whole values: each change is a single
/// assignment or insertion, or nothing can panic between its parts.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
