//! Deterministic network of many machines in virtual time.

mod link;
mod loss;
mod rng;
pub mod stream;

pub use link::{FRAME_LEN, HEADERS_LEN, Link, LinkConfig};
pub use loss::{Loss, LossProcess};
pub use rng::Rng;
