//! Real sites on this machine: the real program, started from folders that `downpour init` made.

mod again;
mod alone;
mod asked;
mod campaign;
mod compared;
mod cuts;
mod database;
mod door;
mod draining;
mod engines;
mod failures;
mod faults;
mod fetching;
mod harness;
mod held;
mod life;
mod limits;
mod links;
mod listening;
mod moving;
mod multicast;
mod planting;
mod ports;
mod records;
#[path = "../../../catalog/tests/contract/servers.rs"]
mod servers;
mod several;
mod siege;
#[path = "../../../skipped.rs"]
mod skipped;
mod spool;
mod watching;
