//! Deterministic network of many machines in virtual time.
//!
//! [`world`] runs whole sessions: the engine's own machines, on a tree network, without bytes. [`stream`]
//! runs bare streams against one bottleneck, for the rate controllers; [`profiles`] the machines of the papers' profiles. They are
//! made of the same links and loss processes. [`tuner`] has TCP connections as fluids. All of a run follows from one printed seed.

mod hiccups;
mod link;
mod loss;
mod network;
pub mod profiles;
mod rng;
pub mod scale;
pub mod stragglers;
pub mod stream;
pub mod swarm;
pub mod tuner;
pub mod world;

pub use hiccups::Hiccups;
pub use link::{FRAME_LEN, HEADERS_LEN, Link, LinkConfig};
pub use loss::{Loss, LossProcess};
pub use network::{EdgeConfig, Network, NodeId};
pub use rng::Rng;
