//! The way to all receivers is cut for a while: what none of them has got comes by the stream, once.

use downpour_proto::{Duration, Rate, Timestamp};
use downpour_sim::Loss;
use downpour_sim::world::{Outcome, World, WorldConfig};

const LEN: u64 = 100 << 20;

fn cut(receivers: usize, time: Duration) -> (Duration, Outcome) {
    let rate = Rate::from_mbps(60);
    let mut config = WorldConfig::star(receivers, rate, Duration::from_millis(1), Loss::None);
    (config.data_len, config.check) = (LEN, false);
    let from = Timestamp::ZERO + Duration::from_secs(5);
    config.edges[0].cuts = vec![from..from + time];
    let outcome = World::run(config);
    let completed = outcome.receivers.iter().map(|r| r.completed.unwrap_or(Duration::MAX));
    let (last, pulled) = (completed.max().unwrap(), outcome.pull_bytes);
    println!("{receivers} receivers, cut for {time:?}: {last:?}, {pulled} B by pull");
    (last, outcome)
}

#[test]
fn a_short_one_costs_its_time_and_one_repair_for_all() {
    for receivers in [1, 5, 20] {
        let (alone, _) = cut(receivers, Duration::ZERO);
        for ms in [300, 1_000, 2_000] {
            let time = Duration::from_millis(ms);
            let (last, outcome) = cut(receivers, time);
            let lost = last.saturating_sub(alone + time).as_secs_f64();
            assert!(lost < 1.0, "{receivers}, {ms} ms: {lost:.2} s more than its time");
            assert_eq!(outcome.pull_bytes, 0, "{receivers}, {ms} ms");
            let sent = outcome.stream_bytes as f64 / LEN as f64;
            assert!(sent < 1.25, "{receivers}, {ms} ms: {sent:.3} x the data");
        }
    }
}

/// They have given the stream up meanwhile, and pull what they know of until they hear it again.
#[test]
fn a_long_one_costs_little_more_than_its_time() {
    for receivers in [1, 5, 20] {
        let (alone, _) = cut(receivers, Duration::ZERO);
        for seconds in [4, 6, 15] {
            let time = Duration::from_secs(seconds);
            let (last, outcome) = cut(receivers, time);
            let lost = last.saturating_sub(alone + time).as_secs_f64();
            let most = 1.0 + receivers as f64 * 0.7;
            assert!(lost < most, "{receivers}, {seconds} s: {lost:.2} s more than its time");
            let pulled = outcome.pull_bytes as f64 / LEN as f64 / receivers as f64;
            assert!(pulled < 0.15, "{receivers}, {seconds} s: {pulled:.3} of the data by each");
        }
    }
}
