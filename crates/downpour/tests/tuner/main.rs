//! Where figures come from: each kind of source, served by a real HTTP(S) server on loopback, with what archives really answer
//! and what they should not.
//!
//! `--nocapture` prints a row of `docs/results/tuner-sources.md` for each fixture.

mod archives;
mod between;
mod demand;
mod hardships;
mod offline;
#[path = "../site/ports.rs"]
mod ports;
mod server;
mod setup;
