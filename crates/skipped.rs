//! Tests that cannot run here say so by name, and pass. All programs of tests have this file.
//!
//! They say it to standard error itself: what `println!` and `eprintln!` print is kept back of a test that passes.

// Few need all of it.
#![allow(dead_code)]

use std::io::Write as _;
use std::process::Command;

/// For want of rights, or of a program that `make test` installs as root: with `CI=true` that is a failure.
pub(crate) fn skipped(test: &str, why: &str) {
    not_here(test, why);
    let is_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    let advice = "with CI=true nothing is: run as root, where `make test-setup` could install all";
    assert!(!is_ci, "{test} is skipped: {why}: {advice}");
}

/// For want of what no set-up gives: something of the kernel or of a file system, or chance.
pub(crate) fn not_here(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Whether this may have networks and mounts of its own; in a container root may not, unless it is told so.
pub(crate) fn may_make_namespaces() -> bool {
    let made = Command::new("unshare").args(["--net", "--mount", "true"]).output();
    made.is_ok_and(|output| output.status.success())
}
