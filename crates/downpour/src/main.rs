//! The `downpour` program. Everything is in the library; this is its door.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    downpour::cli::main()
}
