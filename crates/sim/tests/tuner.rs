//! The closed loop of transfers: all fourteen stories beside FTS3's tuner, and sampled cells of the matrix. The whole
//! matrix: `cargo run --release -p downpour-sim --example tuner_matrix`.

use downpour_sim::tuner::{matrix::Cell, stories};

#[test]
fn what_is_weak_in_fts3s_tuner_is_not_in_ours() {
    for story in stories::all() {
        assert!(story.holds(), "{story:?}");
    }
}

#[test]
fn sampled_cells_of_the_matrix_hold() {
    for (index, cell) in Cell::all().iter().enumerate().step_by(13) {
        let outcome = cell.run(index as u64 + 1);
        assert_eq!(outcome.misses(), None, "{}", outcome.line());
    }
}
