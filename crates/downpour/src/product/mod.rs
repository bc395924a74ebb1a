//! Products: a session that stays open and carries what is inserted into it, in order
//! (`docs/protocol.md#PROD`).
//!
//! | file | does |
//! | --- | --- |
//! | `frame` | how a product stands in the data space, and what of it is signed |
//! | `list` | which products to insert, and when: files, or bytes made from a seed |
//! | `queue` | the sender's: products into blocks, and what of them is kept |
//! | `shelf`, `bookmark` | the receiver's: blocks in order, products out of them, verified and placed; how far it has got |
//! | `file`, `clerk` | files of a site as products: which they are, and the receipts for them |
//! | `folder`, `ours` | where products are placed, and what they may replace there |
//! | `log` | a line for each product: what became of it, and when |
//!
//! Deliberately absent: feeds with names, who subscribes to what, and what was missed while away, but for what the sender still keeps.

mod bookmark;
mod clerk;
mod file;
mod folder;
mod frame;
mod list;
mod log;
mod ours;
mod queue;
mod shelf;

pub use bookmark::Bookmark;
pub use clerk::{Clerk, Desk, Failure, Told, Verdict, Word};
pub use file::SiteFile;
pub use list::{Content, List, ListError, Listed, MadeBytes};
pub use log::{InsertedLine, ProductLog, ReceivedLine};
pub use ours::Ours;
pub use queue::{Inserted, Inserter, Queue, Stopped};
pub use shelf::{Shelf, ShelfConfig};

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970 by this machine's clock.
pub(crate) fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
