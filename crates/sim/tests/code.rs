//! A fast link that loses packets, in either erasure code: all arrives without pulls, and small blocks cost little more.

use downpour_proto::{Code, Duration, Geometry, Rate};
use downpour_sim::Loss;
use downpour_sim::world::{Fate, Outcome, World, WorldConfig};

/// 128 MiB to eight at 1 Gbit/s that lose 5 %, each.
fn session(code: Code, rtt: Duration) -> Outcome {
    let mut config = WorldConfig::star(8, Rate::from_mbps(1000), rtt, Loss::Random(0.05));
    config.geometry = Geometry::full(1440, code);
    config.window_blocks = code.window_blocks();
    config.partial_blocks = 2 * code.window_blocks();
    config.data_len = 128 << 20;
    World::run(config)
}

#[test]
fn either_code_brings_all_at_a_gigabit_with_loss() {
    let costs = Code::ALL.map(|code| {
        let outcome = session(code, Duration::from_millis(1));
        assert!(outcome.receivers.iter().all(|receiver| receiver.fate == Fate::Complete));
        assert_eq!(outcome.pull_bytes, 0, "{code:?}: the stream was given up too early");
        println!("{code:?}: {:.4} x source, {:?}", outcome.overhead(), outcome.wall());
        outcome.overhead()
    });
    assert!(costs[1] < costs[0] + 0.04, "{costs:?}");
}

#[test]
fn the_window_of_small_blocks_covers_a_long_round() {
    // 2.2 rounds of 20 ms at 1 Gbit/s are 5.5 MB; the blocks that settle meanwhile, five times as much.
    let walls = Code::ALL.map(|code| session(code, Duration::from_millis(20)).wall());
    let (rs, cauchy) = (walls[0].as_secs_f64(), walls[1].as_secs_f64());
    assert!(cauchy < 1.07 * rs, "{walls:?}");
}
