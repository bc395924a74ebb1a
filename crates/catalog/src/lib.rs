//! The catalog: book-keeping of what was moved, how, and with what result.
//!
//! It is the only durable state of a site beside the data. One URL chooses the database: SQLite in the process,
//! PostgreSQL or MySQL/MariaDB, which several daemons share.
//!
//! - [`Catalog`] writes: slices of [`Change`], each atomic, each answered by itself after the commit that made it durable;
//!   work is claimed under leases. [`Reader`] reads beside it.
//! - Whatever is asked can be asked again after a crash: it is known by its key, and answered as before.
//! - The life cycle is a table (`life`), errors have stable codes (`class`).
//!
//! Code map: `record`, `life`, `class`, `change` the words; `ledger` the rules, the same for all databases; `writer` the thread with
//! group commit; `reader`, `lookup` and `link`, the reading; `digest_set` what sites hold, in few numbers; `sql` what the databases
//! have in common, `sqlite` and its siblings the rest; `schema`, `migrate` the tables.
//!
//! Not here: what is inside the files, policy (who goes first, how long to wait), clocks (time is an argument).

#![forbid(unsafe_code)]

mod catalog;
mod change;
mod class;
mod code;
mod copy;
mod digest_set;
mod error;
mod export;
mod follow;
mod glob;
mod key;
mod ledger;
mod life;
mod link;
mod lookup;
mod migrate;
mod mysql;
mod place;
mod postgres;
mod reader;
mod record;
mod schema;
mod search;
mod server;
mod sql;
mod sqlite;
mod transfers;
mod words;
mod writer;

pub use catalog::{Catalog, Pending};
pub use change::{
    AdoptedFile, Answer, Applied, Change, Claimed, FILE_BYTES_MAX, Holder, KEY_BYTES_MAX, Move,
    NAME_BYTES_MAX, NewFile, Next, Origin, OtherContent, PATH_BYTES_MAX, RECEIPT_BYTES_MAX,
    Refused, Same, Takers, WHY_BYTES_MAX, WORD_BYTES_MAX, Work,
};
pub use class::{ErrorClass, Scope};
pub use code::UnknownName;
pub use copy::{CopyError, backup, files_of, restore};
pub use digest_set::{
    DEPTH_MAX, NODE_FILES_MAX, SUM_BYTES, SetDay, SetDigest, SetEntry, SetNode, entry_hash,
};
pub use error::{Error, OpenError};
pub use export::{ExportError, Format, Names, Sheet, export};
pub use follow::{FOLLOW_MAX, Follower, NotTaken, Reached};
pub use glob::{BadGlob, Glob};
pub use key::{FileKey, NoFileKey};
pub use life::{Reason, State, TRANSITIONS};
pub use link::{Decision, LinkSeen};
pub use lookup::Called;
pub use migrate::{BeforeMigration, SCHEMA_VERSION};
pub use place::{CatalogUrl, NoCatalogUrl};
pub use reader::Reader;
pub use record::{
    Attempt, Count, Delivery, DeliveryState, Digest, DigestKind, Event, EventKind, Fence, File,
    FileId, LogId, Outcome, Receipt, Replica, ReplicaState, Revision, RuleId, Session, SessionId,
    SiteId, Time, Transfer, TransferId, hex,
};
pub use search::{BadCursor, Cursor, PAGE_MAX, Page, Query};
