//! Rules of the house that the compiler cannot check: who may depend on whom, and how files look.
//!
//! - `layering`: the arrows between our crates, and what each of them is forbidden.
//! - `packaging`: the unit for systemd.
//! - `tidy`: header, size, names and leftovers of each source file.
//! - `sources`: finds and parses the files for both.

mod layering;
mod packaging;
mod sources;
mod tidy;
