//! The product: objects, sessions, command line.

#[macro_use] // First: its macros are everybody's below.
mod output;
#[cfg(test)]
#[path = "../../skipped.rs"]
mod skipped;
#[cfg(test)]
#[path = "../tests/site/ports.rs"]
mod test_ports;
mod whole;

pub mod api;
pub mod cli;
pub mod defaults;
pub mod demo;
pub mod descriptors;
pub mod dispatch;
pub mod home;
pub mod mirror;
pub mod notify;
pub mod object;
pub mod ports;
pub mod product;
pub mod profile;
pub mod progress;
pub mod rebuild;
pub mod receipt;
pub mod reconcile;
pub mod report;
pub mod session;
pub mod site;
pub mod spool;
pub mod steering;
pub mod ticket;
pub mod top;
pub mod tuner;
pub mod units;
