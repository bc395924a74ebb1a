//! The modules of `downpour` that have fuzz targets, and what these use, from their own files, without the rest of the
//! program: with sanitizers that takes half an hour to build, and 6 GB. They may use nothing else of their crate.

// The rest of the program uses it.
#![allow(dead_code, unused_imports)]

#[path = "../../../crates/downpour/src/object/mod.rs"]
pub mod object;
#[path = "../../../crates/downpour/src/ticket.rs"]
pub mod ticket;
#[path = "../../../crates/downpour/src/units.rs"]
mod units;
#[path = "../../../crates/downpour/src/whole.rs"]
mod whole;
