//! What a large group costs, in small; at full size: `cargo run --release -p downpour-sim --example scale`.

use downpour_sim::scale::Row;
use std::fmt::Write as _;

const BASE: Row =
    Row { receivers: 1, mbps: 100, rtt_ms: 20, loss_pct: 5.0, shared_by: 0, mib: 32, seed: 1 };

#[test]
fn a_thousand_receivers_cost_little_more_than_one() {
    let thousand = Row { receivers: 1_000, mib: 64, ..BASE }.run();
    let line = thousand.line();
    assert!(thousand.outcome.overhead() <= 1.10, "{line}");
    assert!(thousand.outcome.feedback_share() <= 0.01, "{line}");
    assert!(thousand.outcome.feedback_per_round() <= 12.0, "{line}");
}

#[test]
fn feedback_does_not_grow_with_the_group() {
    // The mean of a few seeds: single sessions differ by a tenth.
    let rate = |receivers: usize| -> f64 {
        let runs = (1..=4).map(|seed| Row { receivers, mib: 8, seed, ..BASE }.run());
        runs.map(|run| run.outcome.feedback_rate()).sum::<f64>() / 4.0
    };
    let (thousand, more) = (rate(1_000), rate(4_000));
    assert!(more <= 1.1 * thousand, "{thousand:.0}/s of 1,000, {more:.0}/s of 4,000");
}

#[test]
fn what_a_shared_edge_loses_is_paid_once() {
    // The mean of a few seeds: single sessions differ by a hundredth.
    let sent = |receivers: usize, shared_by: usize| -> f64 {
        let row = Row { receivers, shared_by, mib: 64, ..BASE };
        (1..=3).map(|seed| Row { seed, ..row }.run().outcome.overhead()).sum::<f64>() / 3.0
    };
    let (one, behind) = (sent(1, 0), sent(100, 100));
    assert!(behind <= one + 0.01, "{one:.4} to one, {behind:.4} to 100");
}

/// Receivers x loss x delay, as checked in. After a change that is meant to move it:
/// `UPDATE_SNAPSHOT=1 cargo test -p downpour-sim --test scale`.
#[test]
fn the_matrix_is_as_checked_in() {
    let mut table = String::new();
    for receivers in [1, 8, 100, 1_000] {
        for loss_pct in [0.0, 1.0, 5.0] {
            for rtt_ms in [1, 20, 200] {
                let row = Row { receivers, loss_pct, rtt_ms, mbps: 20, mib: 8, ..BASE };
                writeln!(table, "{}", row.run().line()).unwrap();
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/matrix.txt");
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(table, known, "{path} is no longer so");
}
