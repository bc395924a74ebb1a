//! Random sessions: everything that a network and its machines may do, from one seed each.
//!
//! What must hold in every one of them: each receiver that lives ends with every block, each of K distinct
//! symbols, none stored twice (the world checks that); memory and feedback stay within their bounds; and
//! the session ends once the faults have, and the sender comes to rest (the world checks that, too).

use crate::hiccups::Hiccups;
use crate::link::LinkConfig;
use crate::loss::Loss;
use crate::network::{EdgeConfig, NodeId};
use crate::rng::Rng;
use crate::world::{Controller, Fate, Outcome, ReceiverConfig, World, WorldConfig};
use downpour_proto::{Code, Duration, Geometry, PULL_SHARE_DEFAULT, Rate, Timestamp};
use std::ops::Range;
use std::panic::catch_unwind;

/// All faults are over by then.
const FAULTS_END: Duration = Duration::from_secs(20);

/// A session has ended by then.
const END: Duration = Duration::from_secs(900);

/// The world of a seed.
pub fn world(seed: u64) -> WorldConfig {
    let mut rng = Rng::new(seed);
    let rate = pick(&mut rng, &[2, 5, 10, 20, 50, 100, 300]);
    let rtt_us = pick(&mut rng, &[100, 1_000, 10_000, 50_000, 200_000]);
    let edges = edges(&mut rng, Rate::from_mbps(rate), Duration::from_micros(rtt_us / 4));
    let count = pick(&mut rng, &[1, 2, 3, 5, 8, 16, 17, 40]);
    let receivers =
        (0..count).map(|_| receiver(&mut rng, edges.len(), Duration::from_micros(rtt_us / 4)));
    let mut receivers: Vec<ReceiverConfig> = receivers.collect();
    // Somebody is there from the start and stays.
    receivers[0].joins = Duration::ZERO;
    receivers[0].dies = None;
    let symbols = pick(&mut rng, &[4, 32, 256, 1024]);
    let fits_cauchy = symbols <= Code::Cauchy.block_symbols_max();
    let code = if fits_cauchy && seed.is_multiple_of(2) { Code::Cauchy } else { Code::ReedSolomon };
    // At most four seconds' worth and 300 blocks, so that a swarm takes minutes.
    let most = Rate::from_mbps(rate).bytes_in(Duration::from_secs(4));
    let most = most.min(300 * 1440 * u64::from(symbols));
    // Whoever has the narrowest link gets it in a minute.
    let narrowest = receivers.iter().map(|r| r.link.rate).min().unwrap_or(Rate::MAX);
    let most = most.min(narrowest.bytes_in(Duration::from_secs(60)));
    let loads = pick(&mut rng, &[0, 0, 500, 20_000]);
    let codes = pick(&mut rng, &[0, 0, 500, 20_000]);
    let mut world = WorldConfig {
        seed,
        edges,
        receivers,
        data_len: if rng.chance(0.05) { 0 } else { 1 + rng.below(most) },
        products: Vec::new(),
        manifest_len: 1 + rng.below(100_000),
        geometry: Geometry { symbol_len: 1440, block_symbols: symbols, code },
        controller: if rng.chance(0.15) {
            Controller::Fixed(Rate::from_mbps(rate).scale(0.5 + rng.unit()))
        } else {
            Controller::Auto
        },
        ceiling: rng.chance(0.1).then(|| Rate::from_mbps(rate).scale(0.3)),
        pull_share: PULL_SHARE_DEFAULT,
        // A window of a few symbols would be all that limits.
        window_blocks: pick(&mut rng, &[4, 16, 64, 128]).max(256 / usize::from(symbols)),
        partial_blocks: pick(&mut rng, &[8, 32, 256]),
        load_time: Duration::from_micros(loads),
        code_time: Duration::from_micros(codes),
        hiccups: Hiccups::NONE,
        feedback_loss: some_loss(&mut rng),
        poll_loss: some_loss(&mut rng),
        end: END,
        check: true,
        trace: false,
    };
    if rng.chance(0.2) {
        world.make_busy(Duration::from_millis(100));
    }
    world.pull_share = pick(&mut rng, &[PULL_SHARE_DEFAULT, PULL_SHARE_DEFAULT, 0.3, 0.6]);
    world
}

/// Runs a seed; what went wrong, if anything did.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let config = world(seed);
    let receivers = config.receivers.len();
    let partial = config.partial_blocks;
    let outcome = catch_unwind(|| World::run(config)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_else(|| "panicked".to_owned())
    })?;
    for receiver in &outcome.receivers {
        if receiver.fate == Fate::Unfinished {
            return Err(format!("{receiver:?} is not complete after {:?}", outcome.ended));
        }
        // One more may be on its way into the store.
        if receiver.most_partial > partial + downpour_proto::receiver::PULLS_DEFAULT {
            return Err(format!("{receiver:?} kept more than {partial} blocks"));
        }
    }
    let allowed = 1.5 * receivers.clamp(4, 16) as f64;
    if outcome.feedback_per_round() > allowed {
        return Err(format!("{:.1} feedback messages a round", outcome.feedback_per_round()));
    }
    Ok(outcome)
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

/// Mostly none, sometimes a tenth or more.
fn some_loss(rng: &mut Rng) -> f64 {
    pick(rng, &[0.0, 0.0, 0.01, 0.1, 0.25])
}

fn loss(rng: &mut Rng) -> Loss {
    match rng.below(6) {
        0..=2 => Loss::None,
        3 => Loss::Random(0.001),
        4 => Loss::Random(0.08 * rng.unit()),
        _ => Loss::Burst { share: 0.05 * rng.unit() + 0.001, burst: 1.0 + 20.0 * rng.unit() },
    }
}

fn cuts(rng: &mut Rng, chance: f64) -> Vec<Range<Timestamp>> {
    let mut cuts = Vec::new();
    while rng.chance(chance) {
        let from = FAULTS_END.mul_f64(rng.unit() * 0.3);
        let lasts = pick(rng, &[0.05, 0.5, 3.0, 10.0]);
        let until = (from + Duration::from_secs_f64(lasts)).min(FAULTS_END);
        cuts.push(Timestamp::ZERO + from..Timestamp::ZERO + until);
    }
    cuts
}

/// A shared bottleneck, and up to three branches behind it.
fn edges(rng: &mut Rng, rate: Rate, delay: Duration) -> Vec<EdgeConfig> {
    let queue = Duration::from_millis(pick(rng, &[5, 20, 50, 200]));
    let mut edges =
        vec![EdgeConfig::from_sender(LinkConfig::bottleneck(rate, queue, delay.mul_f64(0.5)))];
    edges[0].loss = if rng.chance(0.2) { loss(rng) } else { Loss::None };
    edges[0].cuts = cuts(rng, 0.05);
    for _ in 0..rng.below(4) {
        let parent = NodeId(1 + rng.below(edges.len() as u64) as usize);
        let link = LinkConfig::wire(delay.mul_f64(rng.unit() * 0.5));
        edges.push(EdgeConfig { parent, link, loss: loss(rng), cuts: cuts(rng, 0.1) });
    }
    edges
}

fn receiver(rng: &mut Rng, nodes: usize, delay: Duration) -> ReceiverConfig {
    let node = NodeId(1 + rng.below(nodes as u64) as usize);
    let mut receiver = ReceiverConfig::at(node, delay.mul_f64(rng.unit())).losing(loss(rng));
    if rng.chance(0.15) {
        let rate = Rate::from_mbps(pick(rng, &[1, 5, 20, 100]));
        let queue = Duration::from_millis(pick(rng, &[5, 50]));
        receiver.link = LinkConfig::bottleneck(rate, queue, receiver.link.delay);
    }
    if rng.chance(0.2) {
        receiver.jitter = Duration::from_micros(pick(rng, &[50, 500, 5_000]));
    }
    if rng.chance(0.1) {
        receiver.duplicates = 0.05;
    }
    if rng.chance(0.15) {
        receiver.joins = FAULTS_END.mul_f64(rng.unit() * 0.3);
    }
    if rng.chance(0.1) {
        receiver.dies = Some(FAULTS_END.mul_f64(rng.unit() * 0.3));
    }
    receiver.cuts = cuts(rng, 0.08);
    receiver.pull_only = rng.chance(0.05);
    receiver
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn random_sessions_hold() {
        // Many more: `cargo run --release -p downpour-sim --example swarm`.
        for seed in 1..=40 {
            if let Err(why) = run(seed) {
                panic!("SEED={seed}: {why}");
            }
        }
    }
}
