//! The real program, on loopback and on a real kernel network in namespaces. The latter needs root;
//! without, each such test says `skipped: <name>: <why>`, and fails with `CI=true`.

mod bad_input;
mod between;
mod endings;
mod far;
mod hardship;
mod hostile;
mod hostile_hands;
mod lossy;
mod network;
mod network_itself;
mod payload;
#[path = "../site/ports.rs"]
mod ports;
mod products;
mod program;
mod sessions;
#[path = "../../../skipped.rs"]
mod skipped;
