//! Drivers: sockets, pacing, coding, sealing, and the HTTPS control and pull endpoints.

mod blocks;

pub use blocks::{Accepted, BlockSink, BlockSource, SourceError};
