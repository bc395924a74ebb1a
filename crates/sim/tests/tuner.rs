//! The closed loop of transfers: all fourteen stories beside FTS3's tuner, and sampled cells of the matrix. The whole
//! matrix: `cargo run --release -p downpour-sim --example tuner_matrix`.

use downpour_proto::transfer::steer::{Limits, Uplink};
use downpour_proto::{Duration, Rate};
use downpour_sim::tuner::{GroupConfig, Path, matrix::Cell, run, steered, stories};

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

/// Two receivers of one sender behind its uplink of 100 Mbit/s, each with a loop and a way of its own: round trip in ms and
/// loss. All connections in the last minutes of ten, their mean, and what each receiver gets, Mbit/s.
fn behind_one_uplink(ways: [(u64, f64); 2], seed: u64, told: bool) -> (f64, [f64; 2]) {
    let rate = Rate::from_mbps(100);
    let mut path = Path::new(rate, rate.bytes_in(Duration::from_millis(20)), seed);
    let limits = Limits { first: 10, least: 1, most: 64, ceiling: None };
    let mut receivers = ways.map(|(ms, loss)| {
        let group = path.add(GroupConfig::of(Duration::from_millis(ms), loss));
        steered(&mut path, &[(group, limits)])
    });
    let mut uplink = Uplink::default();
    let (mut before, mut connections) = ([0; 2], 0.0);
    for second in 0..600u32 {
        run(&mut path, &mut receivers, told.then_some(&mut uplink), Duration::from_secs(1));
        if second < 300 {
            before = [0, 1].map(|number: usize| receivers[number].bytes(0));
        } else {
            let all: u16 = receivers.iter().map(|one| one.setting(0).connections).sum();
            connections += f64::from(all) / 300.0;
        }
    }
    let got = |number: usize| (receivers[number].bytes(0) - before[number]) as f64 * 8e-6 / 300.0;
    (connections, [got(0), got(1)])
}

#[test]
fn receivers_of_one_sender_do_not_outbid_each_other_for_its_uplink() {
    // How many connections both need together to fill it, at most.
    for (ways, needed) in [
        ([(50, 0.001), (100, 0.001)], 24.0),
        ([(20, 0.0), (80, 0.0)], 24.0),
        ([(50, 0.01), (50, 0.01)], 44.0),
    ] {
        for seed in [1, 3] {
            let (race, _) = behind_one_uplink(ways, seed, false);
            let (with, shares) = behind_one_uplink(ways, seed, true);
            let text = format!("{ways:?}, {seed}: {with:.0} instead of {race:.0}, {shares:.1?}");
            assert!(race > 1.5 * needed, "nobody is told, and all is well: {text}");
            assert!(with <= needed && shares[0] + shares[1] > 90.0, "{text}");
            assert!(shares[0].min(shares[1]) > 0.35 * shares[0].max(shares[1]), "{text}");
        }
    }
}
