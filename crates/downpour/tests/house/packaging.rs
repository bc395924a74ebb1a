//! What packages ship beside the program, where the program relies on it.

use super::sources::root;

#[test]
fn a_start_that_brings_a_large_catalog_forward_is_waited_for() {
    let unit = std::fs::read_to_string(root().join("packaging/downpour.service")).unwrap();
    let says = |line: &str| unit.lines().any(|said| said == line);
    assert!(says("Type=notify") && says("TimeoutStartSec=infinity"));
}
