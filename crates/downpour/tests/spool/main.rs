//! The spool in a folder of its own with a real catalog, in virtual time: what each thing that can happen to a file comes to.

mod apart;
mod arriving;
mod bench;
mod leaving;
mod lives;
mod many;
#[path = "../../../skipped.rs"]
mod skipped;
mod walk;
