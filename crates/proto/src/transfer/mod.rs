//! A transfer between two sites: one receiver, over a long way (`docs/protocol.md#WAN`).
//!
//! It is a session like any other; only how the blocks come differs. What decides about that is here: `plan`, how many
//! connections and how they are set; `measured`, what is known of a path beforehand; `ranges`, which connection gets
//! which range next; `ahead`, how many may be under way; `choice`, whether the stream or TCP brings more; `steer`, what is changed
//! while it runs; `backoff`, when what failed is tried again; `breaker`, whether an endpoint is tried at all; `sources`, which of
//! several places a file comes from. Deliberately absent: sockets, and what is in the blocks.

mod ahead;
mod backoff;
mod breaker;
mod choice;
mod measured;
mod plan;
mod ranges;
mod sources;
pub mod steer;

pub use ahead::{Ahead, UNSTORED};
pub use backoff::Backoff;
pub use breaker::{Breaker, BreakerConfig, Permit};
pub use choice::{Choice, Path, Seen};
pub use measured::{Figure, Measured};
pub use plan::{
    CONNECTIONS_FAR, CONNECTIONS_MAX, Carrier, Host, Known, NoPolicy, Plan, Planned, Policy, Room,
    Wishes, bdp, is_congestion, loss_bound, three,
};
pub use ranges::{Ask, DEPTH_MAX, Ranges};
pub use sources::{Ranked, Source, Sources, rank};
