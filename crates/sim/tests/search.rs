//! The rate is found by filling a queue until it overflows; later blocks get no repair for what that cost.

use downpour_proto::{Duration, Rate};
use downpour_sim::Loss;
use downpour_sim::world::{Outcome, World, WorldConfig};

/// 64 MiB at 100 Mbit/s and 20 ms.
fn session(receivers: usize, loss: Loss) -> Outcome {
    let (rate, rtt) = (Rate::from_mbps(100), Duration::from_millis(20));
    let mut config = WorldConfig::star(receivers, rate, rtt, loss);
    config.data_len = 64 << 20;
    World::run(config)
}

#[test]
fn what_overflowed_in_the_search_is_repaired_once() {
    for receivers in [1, 8] {
        let outcome = session(receivers, Loss::None);
        assert!(outcome.dropped > 100, "the search lost {}", outcome.dropped);
        let repair = outcome.sender.repair_symbols;
        assert!(repair <= outcome.dropped + 8, "{repair} for {}", outcome.dropped);
    }
}
