//! One contract for all databases: each story of the suite runs against each engine.
//!
//! SQLite needs nothing. For PostgreSQL and MariaDB the test starts a server of its own, in a folder of its own; where the
//! programs are missing it says `skipped: NAME`, which in CI (`CI=true`) is a failure.

mod crash;
mod engines;
mod finding;
mod follow;
mod life;
mod model;
mod names;
mod records;
mod servers;
mod sets;
mod several;
#[path = "../../../skipped.rs"]
mod skipped;
mod world;

use engines::Engine;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

type Story = (&'static str, fn(&World));

/// Names each story after its function.
macro_rules! stories {
    ($($module:ident :: $story:ident),+ $(,)?) => {
        const STORIES: &[Story] = &[$((stringify!($story), $module::$story)),+];
    };
}

stories![
    life::a_file_goes_from_found_to_receipted,
    life::what_the_table_does_not_allow_is_refused,
    life::a_repeated_step_is_answered_as_the_first,
    life::what_fails_waits_and_starts_again_where_it_can,
    life::only_the_files_own_fault_sets_it_apart,
    life::each_file_that_does_not_move_has_one_reason,
    life::an_operator_cancels_a_file_that_is_held,
    life::a_claim_may_be_of_one_rule,
    life::a_claim_may_be_of_what_one_of_several_sites_lacks,
    life::what_waits_too_long_by_a_clock_that_was_ahead_starts_again,
    life::what_went_nowhere_was_no_attempt,
    life::an_attempt_names_its_session,
    names::a_name_is_never_overwritten,
    names::one_content_goes_by_each_rule_that_asks_for_it,
    names::a_file_that_is_still_written_stays_one_file,
    names::adopting_moves_nothing_and_can_be_repeated,
    names::odd_names_come_back_as_they_were,
    names::what_cannot_be_called_that_spoils_nothing,
    records::records_come_back_as_they_were,
    records::what_is_adopted_comes_with_its_receipt,
    records::a_transfer_knows_how_its_files_stand,
    records::lengths_can_be_summed_up,
    records::links_keep_their_newest,
    records::what_a_clock_that_was_ahead_wrote_of_links_goes,
    records::a_refused_change_spoils_no_other,
    sets::set_digests_follow_what_is_held,
    sets::both_ends_sort_a_file_alike,
    sets::files_are_looked_up_in_batches,
    sets::what_does_not_move_is_found,
    sets::a_clock_that_was_ahead_dates_no_later_file,
    sets::an_older_catalog_gets_its_set_digests,
    sets::an_older_catalog_takes_in_sessions,
    several::a_lease_that_was_lost_cannot_write,
    several::daemons_claim_apart,
    several::a_daemon_that_comes_back_finds_its_work,
    several::logs_have_no_gaps_and_counts_are_right,
    several::many_threads_share_commits,
    follow::a_follower_holds_what_the_catalog_holds,
    follow::other_content_has_its_own_digests_alone,
    follow::a_copy_that_is_restored_has_its_sums,
    follow::a_copy_drops_what_a_wrong_clock_wrote_of_links,
    follow::a_lost_page_is_noticed,
    follow::a_page_holds_what_its_events_tell,
    follow::a_page_does_not_grow_with_what_was_before,
    follow::each_page_is_of_one_moment,
    follow::a_catalog_that_was_set_back_and_went_on_is_noticed,
    finding::each_condition_finds_what_it_says,
    finding::what_few_are_is_found_behind_many,
    finding::pages_are_stable_while_files_are_added,
    finding::exports_hold_every_row,
    finding::a_backup_is_a_whole_catalog,
    finding::a_newer_catalog_is_refused,
    model::random_walks_agree_with_a_simple_model,
    crash::what_was_acknowledged_is_there_after_kill,
];

fn hold_contract(engine: &Engine) {
    let mut failed = Vec::new();
    for (name, story) in STORIES {
        let world = engine.world(name);
        println!("{} {name}", engine.name());
        if catch_unwind(AssertUnwindSafe(|| story(&world))).is_err() {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "{}: {failed:?}", engine.name());
}

#[test]
fn sqlite_holds_the_contract() {
    hold_contract(&Engine::sqlite());
}

/// Not a test of its own: the process that `crash` starts and kills.
#[test]
fn writes_until_killed() {
    crash::write_until_killed();
}

#[test]
fn postgres_holds_the_contract() {
    if let Some(mut engine) = Engine::postgres() {
        hold_contract(&engine);
        crash::a_server_that_dies_delays_and_loses_nothing(&mut engine);
    }
}

#[test]
fn mariadb_holds_the_contract() {
    if let Some(mut engine) = Engine::mariadb() {
        hold_contract(&engine);
        crash::a_server_that_dies_delays_and_loses_nothing(&mut engine);
    }
}
