//! Source to store without a network: what is sent arrives identical, whatever happens in between.

mod again;
mod harness;
mod hostile;
mod poison;
mod resume;
mod roundtrip;
mod sending;
#[path = "../../../skipped.rs"]
mod skipped;
mod space;
mod targets;
mod twice;
