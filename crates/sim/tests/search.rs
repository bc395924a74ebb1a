//! The rate is found by filling a queue until it overflows; later blocks get no repair for what that cost.

use downpour_proto::{Duration, Rate};
use downpour_sim::world::{Outcome, World, WorldConfig, bound};
use downpour_sim::{LinkConfig, Loss};

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
        assert!(repair <= outcome.dropped + 16, "{repair} for {}", outcome.dropped);
    }
}

/// The search ends in the second block, which lost much less than the first: by the first's share it got twice as much.
#[test]
fn a_block_that_the_search_only_began_is_given_what_it_lacks() {
    let rate = Rate::from_mbps(20);
    for receivers in [1, 8] {
        let rtt = Duration::from_millis(50);
        let mut config = WorldConfig::star(receivers, rate, rtt, Loss::None);
        config.data_len = 2 << 20;
        let link = &mut config.edges[0].link;
        *link = LinkConfig::bottleneck(rate, Duration::from_millis(5), link.delay);
        let outcome = World::run(config);
        assert!(outcome.dropped > 0, "the search lost nothing");
        let repair = outcome.sender.repair_symbols;
        assert!(repair <= outcome.dropped + 16, "{repair} for {}", outcome.dropped);
    }
}

/// A poll that leaves behind its burst is lost whenever the burst fills the queue: the sender, who hears nobody, goes on
/// too fast, and nearly stops then.
#[test]
fn polls_come_through_a_short_queue_that_overflows() {
    let rate = Rate::from_mbps(50);
    for rtt_ms in [2, 50, 200] {
        for receivers in [1, 4] {
            let rtt = Duration::from_millis(rtt_ms);
            let mut config = WorldConfig::star(receivers, rate, rtt, Loss::None);
            config.data_len = 64 << 20;
            let link = &mut config.edges[0].link;
            *link = LinkConfig::bottleneck(rate, Duration::from_millis(10), link.delay);
            let ideal = bound(config.data_len, rate, 0.0);
            let outcome = World::run(config);
            let ratio = outcome.wall().as_secs_f64() / ideal.as_secs_f64();
            assert!(ratio < 1.15, "{receivers} at {rtt_ms} ms: {ratio:.3} x bound");
            let share = outcome.dropped as f64 / outcome.sender.source_symbols as f64;
            assert!(share < 0.05, "{receivers} at {rtt_ms} ms: {share:.3} overflowed");
        }
    }
}

/// Of more than eight only some answer each poll. All of them had to show that more can be sent before more was: 30 took
/// 1.13 times as long as 4, and 16 took 1.08 times.
#[test]
fn a_larger_group_finds_the_rate_nearly_as_soon() {
    let wall = |receivers| {
        let (rate, rtt) = (Rate::from_mbps(100), Duration::from_millis(50));
        let mut config = WorldConfig::star(receivers, rate, rtt, Loss::None);
        config.data_len = 64 << 20;
        World::run(config).wall().as_secs_f64()
    };
    let four = wall(4);
    for receivers in [16, 30] {
        let ratio = wall(receivers) / four;
        assert!(ratio < 1.08, "{receivers}: {ratio:.3} times as long");
    }
}

/// At the first rates a round of 32 KiB takes 26 ms, and the rate only doubles in each: 4 MiB took 1.25 times the bound.
#[test]
fn a_small_file_is_not_over_before_the_rate_is_found() {
    for (mbps, mib, most) in [(100, 4, 1.15), (1000, 16, 1.4)] {
        let (rate, rtt) = (Rate::from_mbps(mbps), Duration::from_micros(200));
        let mut config = WorldConfig::star(4, rate, rtt, Loss::None);
        config.data_len = mib << 20;
        let ideal = bound(config.data_len, rate, 0.0);
        let ratio = World::run(config).wall().as_secs_f64() / ideal.as_secs_f64();
        assert!(ratio < most, "{mib} MiB at {mbps} Mbit/s: {ratio:.3} x bound");
    }
}
