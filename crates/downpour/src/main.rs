//! The `downpour` program. Everything is in the library; this is its door.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Buffers come and go with each record of TLS: the C library gives their memory back, and the kernel clears it anew.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    downpour_transport::take_small_pages();
    downpour::cli::main()
}
