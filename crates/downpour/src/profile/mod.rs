//! The papers' protocols as commands: `send --profile bmtp|afdp|fmtp FILE`, `receive --profile …`.
//!
//! One plain file, or with `fmtp` a feed of products; no ticket, nothing encrypted and nobody known: for measurements beside the
//! engine. What they do stands in `docs/profiles.md`. Here: which file, which sockets, what is printed, the report.

mod feed;
mod file;
mod receive;
mod report;
mod send;

pub use receive::receive;
pub use send::send;

use crate::cli::Fault;
use crate::product::ProductLog;
use downpour_transport::profile::ProfileError;
use std::path::Path;

/// Said at the start of each session.
fn warn(name: &str) {
    eprintln!("profile {name}: as published: not encrypted, not authenticated; for measurements");
}

fn fault(error: &ProfileError, todo: &str) -> Fault {
    Fault::incomplete(error.to_string(), todo)
}

fn product_log(path: &Path) -> Result<ProductLog, Fault> {
    ProductLog::create(path).map_err(|error| {
        let what = format!("cannot write the log of products {}: {error}", path.display());
        Fault::start(what, "give --product-log a file in a folder that is there")
    })
}
