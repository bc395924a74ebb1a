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

/// For each group and each cut: how much more than its time it costs, and what was sent in all and pulled by each, over the data.
fn for_all(cuts_ms: &[u64], check: impl Fn(usize, u64, f64, f64, f64)) {
    for receivers in [1, 5, 20] {
        let (alone, _) = cut(receivers, Duration::ZERO);
        for ms in cuts_ms {
            let time = Duration::from_millis(*ms);
            let (last, outcome) = cut(receivers, time);
            let lost = last.saturating_sub(alone + time).as_secs_f64();
            let [sent, pulled] =
                [outcome.stream_bytes, outcome.pull_bytes].map(|bytes| bytes as f64 / LEN as f64);
            check(receivers, *ms, lost, sent, pulled / receivers as f64);
        }
    }
}

#[test]
fn a_short_one_costs_its_time_and_one_repair_for_all() {
    for_all(&[300, 1_000, 2_000], |receivers, ms, lost, sent, pulled| {
        let of = (receivers, ms, lost, sent, pulled);
        assert!(lost < 1.0 && sent < 1.25 && pulled == 0.0, "{of:?}");
    });
}

/// They have given the stream up meanwhile, and pull what they know of until they hear it again.
#[test]
fn a_long_one_costs_little_more_than_its_time() {
    for_all(&[4_000, 6_000, 15_000], |receivers, ms, lost, sent, pulled| {
        let of = (receivers, ms, lost, sent, pulled);
        assert!(lost < 1.0 + receivers as f64 * 0.7 && pulled < 0.15, "{of:?}");
    });
}
