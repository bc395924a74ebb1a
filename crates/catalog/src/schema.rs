//! The tables, as statements use them. How they are created is in `migrate`.
//!
//! `file` holds each file once, with its end; `live` holds what changes while it is not at its end, so that the queue stays
//! as small as the work in hand, whatever the history. `turn` orders the files of a state: queued ones by rank,
//! waiting ones by the time of the next try, leased ones by the lease's end.

use crate::sql::Kind::{Bytes, Int, Text};
use crate::sql::Table;

pub(crate) const FILE: Table = Table {
    name: "file",
    keys: 1,
    columns: &[
        ("id", Int),
        ("site", Int),
        ("name", Text),
        ("version", Int),
        ("stamp", Int),
        ("size", Int),
        ("rule", Int),
        ("priority", Int),
        ("state", Int),
        ("revision", Int),
        ("tries", Int),
        ("since", Int),
        ("origin", Int),
    ],
};

/// What a file is called, and since when.
pub(crate) const FILE_CALLED: Table = Table {
    name: "file",
    keys: 1,
    columns: &[
        ("id", Int),
        ("site", Int),
        ("name", Text),
        ("version", Int),
        ("rule", Int),
        ("origin", Int),
    ],
};

/// What changes in `file` when a file comes to its end, leaves it again, or gets its final size.
pub(crate) const FILE_END: Table = Table {
    name: "file",
    keys: 1,
    columns: &[
        ("id", Int),
        ("size", Int),
        ("state", Int),
        ("revision", Int),
        ("tries", Int),
        ("since", Int),
    ],
};

/// What changes in `file` when it is written on before it was read.
pub(crate) const FILE_STAMP: Table =
    Table { name: "file", keys: 1, columns: &[("id", Int), ("stamp", Int)] };

pub(crate) const LIVE: Table = Table {
    name: "live",
    keys: 1,
    columns: &[
        ("file", Int),
        ("site", Int),
        ("rule", Int),
        ("size", Int),
        ("priority", Int),
        ("transfer", Int),
        ("state", Int),
        ("revision", Int),
        ("turn", Int),
        ("resume", Int),
        ("reason", Int),
        ("error", Int),
        ("tries", Int),
        ("holder", Int),
        ("fence", Int),
        ("started", Int),
        ("bytes", Int),
        ("since", Int),
        ("session", Text),
    ],
};

pub(crate) const DIGEST: Table =
    Table { name: "digest", keys: 2, columns: &[("file", Int), ("kind", Int), ("value", Bytes)] };

pub(crate) const REPLICA: Table = Table {
    name: "replica",
    keys: 2,
    columns: &[
        ("file", Int),
        ("site", Int),
        ("path", Text),
        ("state", Int),
        ("since", Int),
        ("origin", Int),
        ("rule", Int),
        ("day", Int),
        ("file_key", Bytes),
    ],
};

pub(crate) const ATTEMPT: Table = Table {
    name: "attempt",
    keys: 2,
    columns: &[
        ("file", Int),
        ("number", Int),
        ("transfer", Int),
        ("writer", Int),
        ("started", Int),
        ("ended", Int),
        ("bytes", Int),
        ("outcome", Int),
        ("error", Int),
        ("session", Text),
    ],
};

pub(crate) const RECEIPT: Table = Table {
    name: "receipt",
    keys: 2,
    columns: &[("file", Int), ("receiver", Bytes), ("at", Int), ("signed_bytes", Bytes)],
};

pub(crate) const TRANSFER: Table = Table {
    name: "transfer",
    keys: 1,
    columns: &[("id", Int), ("origin", Int), ("destination", Int), ("submitted", Int)],
};

pub(crate) const SESSION: Table = Table {
    name: "session",
    keys: 1,
    columns: &[("id", Int), ("stream", Int), ("rule", Int), ("started", Int), ("ended", Int)],
};

pub(crate) const DELIVERY: Table = Table {
    name: "delivery",
    keys: 3,
    columns: &[
        ("session", Int),
        ("file", Int),
        ("receiver", Bytes),
        ("state", Int),
        ("error", Int),
        ("at", Int),
    ],
};

pub(crate) const EVENT: Table = Table {
    name: "event",
    keys: 2,
    columns: &[
        ("log", Int),
        ("number", Int),
        ("at", Int),
        ("kind", Int),
        ("subject", Int),
        ("revision", Int),
        ("state_from", Int),
        ("state_to", Int),
        ("error", Int),
    ],
};

/// What was seen on links.
pub(crate) const LINK_SEEN: Table = Table {
    name: "link_seen",
    keys: 4,
    columns: &[
        ("log", Int),
        ("at", Int),
        ("origin", Int),
        ("destination", Int),
        ("took", Int),
        ("bytes", Int),
        ("sent", Int),
        ("again", Int),
        ("rtt", Int),
        ("connections", Int),
        ("ip", Int),
    ],
};

/// What was decided on links.
pub(crate) const DECISION: Table = Table {
    name: "decision",
    keys: 4,
    columns: &[
        ("log", Int),
        ("at", Int),
        ("origin", Int),
        ("destination", Int),
        ("connections", Int),
        ("pacing", Int),
        ("rate", Int),
        ("lost", Int),
        ("binding", Text),
        ("why", Text),
    ],
};

/// How many files each writer brought into and took out of a state. Their sum over the writers is what there is.
pub(crate) const COUNTER: Table = Table {
    name: "counter",
    keys: 4,
    columns: &[
        ("log", Int),
        ("site", Int),
        ("rule", Int),
        ("state", Int),
        ("files", Int),
        ("bytes", Int),
    ],
};

/// Set digests of days: what each writer added to them and took out.
pub(crate) const SET_DAY: Table = Table {
    name: "set_day",
    keys: 5,
    columns: &[
        ("holder", Int),
        ("origin", Int),
        ("rule", Int),
        ("day", Int),
        ("log", Int),
        ("files", Int),
        ("hash", Bytes),
    ],
};

/// The same for the leaves below a day.
pub(crate) const SET_LEAF: Table = Table {
    name: "set_leaf",
    keys: 6,
    columns: &[
        ("holder", Int),
        ("origin", Int),
        ("rule", Int),
        ("day", Int),
        ("leaf", Int),
        ("log", Int),
        ("files", Int),
        ("hash", Bytes),
    ],
};
