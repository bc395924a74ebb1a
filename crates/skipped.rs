//! Tests that cannot run here say so by name, and pass. All programs of tests have this file.
//!
//! They say it to standard error itself: what `println!` and `eprintln!` print is kept back of a test that passes.

// Few need both.
#![allow(dead_code)]

use std::io::Write as _;

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
