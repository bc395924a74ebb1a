//! The pull engine against a real server.

use crate::world::{HANG, Setup, World, until};
use downpour_proto::transfer::steer::{Binding, Decision, Limits, Memory};
use downpour_proto::{BlockId, BlockKind, Rate};
use downpour_transport::control::{ControlClient, Pull, PullError, Uplink};
use downpour_transport::pull::{
    PULL_LEN_MAX, PULL_QUEUE_MAX, PullLimits, PullRefused, Pulled, Puller, Steering,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) fn data(from: u64, to: u64) -> Pull {
    Pull::Bytes(BlockKind::Data, from..to)
}

async fn puller(world: &mut World, limits: PullLimits) -> (Puller, mpsc::Receiver<Pulled>) {
    let (client, _) = world.member().await;
    Puller::start(client, limits)
}

pub(crate) fn quick() -> PullLimits {
    let pause = Duration::from_millis(10);
    PullLimits { pause_first: pause, pause_max: 2 * pause, ..PullLimits::default() }
}

#[tokio::test]
async fn all_kinds_of_pulls_are_answered() {
    let mut world = World::new(Setup::default()).await;
    let (puller, mut results) = puller(&mut world, quick()).await;
    for at in 0..100 {
        puller.request(at, data(at * 20_000, (at + 1) * 20_000)).unwrap();
    }
    puller.request(100, Pull::Bytes(BlockKind::Manifest, 0..1000)).unwrap();
    puller.request(101, Pull::Repair(BlockId::data(0).unwrap(), 5..6)).unwrap();
    let mut pulled = BTreeMap::new();
    for _ in 0..102 {
        let result = results.recv().await.unwrap();
        pulled.insert(result.id, result.outcome.unwrap());
    }
    for at in 0..100 {
        let from = at as usize * 20_000;
        assert!(pulled[&at] == world.session.data[from..from + 20_000], "{at}");
    }
    assert_eq!(pulled[&100].len(), 1000);
    assert_eq!(pulled[&101], vec![5; 1448]);
    assert_eq!(puller.totals().came, 100 * 20_000 + 1000 + 1448);
    let given = world.session.given.load(Ordering::Relaxed);
    assert_eq!(given, 100 * 20_000 + 1448, "the manifest is no data");
}

#[tokio::test]
async fn only_so_many_run_at_once() {
    let mut world = World::new(Setup::default()).await;
    let (puller, mut results) = puller(&mut world, PullLimits { parallel: 3, ..quick() }).await;
    world.budget.set_rate(Rate::from_bps(0));
    for at in 0..10 {
        puller.request(at, data(at, at + 1000)).unwrap();
    }
    until(|| world.budget.active() == 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.budget.active(), 3);
    world.budget.set_rate(Rate::MAX);
    for _ in 0..10 {
        results.recv().await.unwrap().outcome.unwrap();
    }
}

#[tokio::test]
async fn the_manifest_is_there_while_data_take_all_that_pulls_may_have() {
    let mut world = World::new(Setup { data_len: 12_000_000, ..Setup::default() }).await;
    // A minute for each ask of data.
    world.budget.set_rate(Rate::from_bps(800_000));
    let limits = PullLimits { manifest_apart: true, ..quick() };
    let (puller, mut results) = puller(&mut world, limits).await;
    for at in 0..8 {
        puller.request(at, data(at * 1_500_000, (at + 1) * 1_500_000)).unwrap();
    }
    until(|| world.budget.active() == 4).await;
    puller.request(8, Pull::Bytes(BlockKind::Manifest, 0..1_000)).unwrap();
    let first = results.recv().await.unwrap();
    assert_eq!((first.id, first.outcome.map(|bytes| bytes.len())), (8, Ok(1_000)));
    assert!(world.budget.granted() < 1_000_000, "{}", world.budget.granted());
}

#[tokio::test]
async fn a_pull_that_breaks_off_goes_on_where_it_was() {
    const LEN: u64 = 12_000_000;
    let mut world = World::new(Setup { data_len: LEN as usize, ..Setup::default() }).await;
    let (puller, mut results) = puller(&mut world, quick()).await;
    world.session.busy.store(3, Ordering::Relaxed);
    puller.request(1, data(0, LEN)).unwrap();
    let bytes = results.recv().await.unwrap().outcome.unwrap();
    assert!(bytes == world.session.data);
    assert_eq!(world.session.busy.load(Ordering::Relaxed), 0, "it did break off");
    // What was in the queue to the socket is read again; what had arrived is not.
    let again = world.session.read.load(Ordering::Relaxed) - LEN;
    assert!(again < 2_000_000, "{again} bytes were read twice");
}

#[tokio::test]
async fn what_fails_on_all_connections_at_once_is_one_try() {
    let mut world = World::new(Setup::default()).await;
    let limits = PullLimits { tries_max: 4, ..PullLimits::default() };
    let (puller, mut results) = puller(&mut world, limits).await;
    world.session.busy.store(4, Ordering::Relaxed);
    world.budget.set_rate(Rate::from_bps(0));
    puller.request(1, data(1_500_000, 3_000_000)).unwrap();
    until(|| world.budget.active() == 4).await;
    world.budget.set_rate(Rate::MAX);
    let bytes = results.recv().await.unwrap().outcome.unwrap();
    assert!(bytes == world.session.data[1_500_000..]);
    assert_eq!(world.session.busy.load(Ordering::Relaxed), 0, "each was put off");
}

#[tokio::test]
async fn errors_that_do_not_pass_are_told_at_once() {
    let mut world = World::new(Setup::default()).await;
    let limits = PullLimits { pause_first: Duration::from_secs(3600), ..PullLimits::default() };
    let (puller, mut results) = puller(&mut world, limits).await;
    world.session.broken_from.store(0, Ordering::Relaxed);
    puller.request(1, data(0, 10)).unwrap();
    let failed = PullError::SourceFailed("a.txt has changed".into());
    let expected = Pulled { id: 1, pull: data(0, 10), outcome: Err(failed) };
    assert_eq!(results.recv().await.unwrap(), expected);
}

#[tokio::test]
async fn a_dead_sender_is_given_up_in_the_end() {
    let mut world = World::new(Setup::default()).await;
    let limits = PullLimits { tries_max: 3, ..quick() };
    let (puller, mut results) = puller(&mut world, limits).await;
    drop(world);
    puller.request(1, data(0, 10)).unwrap();
    let error = results.recv().await.unwrap().outcome.unwrap_err();
    assert!(matches!(error, PullError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn who_is_dropped_asks_for_nothing_more() {
    let mut world = World::new(Setup::default()).await;
    let (puller, mut results) = puller(&mut world, PullLimits { parallel: 1, ..quick() }).await;
    world.budget.set_rate(Rate::from_bps(0));
    for id in 1..=2 {
        puller.request(id, data(0, 5)).unwrap();
    }
    until(|| world.budget.active() == 1).await;
    drop(puller);
    until(|| world.budget.active() == 0).await;
    assert_eq!(results.recv().await, None);
}

#[tokio::test]
async fn the_queue_has_an_end() {
    let mut world = World::new(Setup::default()).await;
    let (puller, mut results) = puller(&mut world, PullLimits { parallel: 1, ..quick() }).await;
    world.budget.set_rate(Rate::from_bps(0));
    assert_eq!(puller.request(0, data(0, PULL_LEN_MAX + 1)), Err(PullRefused::TooLong));
    puller.request(0, data(0, 1)).unwrap();
    until(|| world.budget.active() == 1).await;
    assert_eq!(puller.request(0, data(0, 1)), Err(PullRefused::Duplicate(0)));
    for id in 1..=PULL_QUEUE_MAX as u64 {
        puller.request(id, data(0, 1)).unwrap();
    }
    assert_eq!(puller.request(9999, data(0, 1)), Err(PullRefused::QueueFull));
    world.budget.set_rate(Rate::MAX);
    assert_eq!(results.recv().await.unwrap().id, 0);
    until(|| puller.request(9999, data(0, 1)) != Err(PullRefused::QueueFull)).await;
}

/// Pulls that wait or run while something is waited for.
const UNDER_WAY: u64 = 16;

/// How long each read of a slow disk takes: far longer than all else of a small pull, also on a busy machine.
pub(crate) const SLOW_MS: u64 = 100;

/// Pulls until something is decided: little at a time, for the sender tells of its disk at the beginning of each answer.
pub(crate) async fn until_decided(
    puller: &Puller,
    results: &mut mpsc::Receiver<Pulled>,
) -> Decision {
    let pulling = async {
        for id in 0.. {
            if let Some((_, decision)) = puller.totals().decisions.last() {
                return decision.clone();
            }
            puller.request(id, data(0, 100_000)).unwrap();
            if id >= UNDER_WAY {
                results.recv().await.unwrap().outcome.unwrap();
            }
        }
        unreachable!()
    };
    timeout(HANG, pulling).await.expect("something is decided")
}

fn steering(limits: Limits, memory: Option<Memory>) -> Steering {
    Steering {
        helm: Arc::default(),
        limits,
        memory,
        on_decision: Arc::new(|_, _| {}),
        on_seen: Arc::new(|_| {}),
    }
}

/// With two connections to begin with.
pub(crate) fn steered() -> PullLimits {
    let limits = Limits { first: 2, least: 1, most: 8, ceiling: None };
    PullLimits { steering: Some(steering(limits, None)), depth: 2, ..quick() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_at_the_source_is_named_and_no_connection_is_added() {
    let mut world = World::new(Setup::default()).await;
    world.session.slow_ms.store(SLOW_MS, Ordering::Relaxed);
    let (mut puller, mut results) = puller(&mut world, steered()).await;
    let decision = until_decided(&puller, &mut results).await;
    assert_eq!(decision.binding, Binding::SourceDisk, "{decision:?}");
    assert_eq!(decision.setting.connections, 2);
    assert_eq!(puller.stop().await.connections.len(), 2);
}

/// What is decided where each part can be asked for only after a while, in which the disk was waited for so long.
async fn decided_after(waited: Duration) -> Decision {
    const PART: u64 = 20_000;
    let mut world = World::new(Setup { data_len: 40_000_000, ..Setup::default() }).await;
    let (puller, mut results) = puller(&mut world, steered()).await;
    for id in (0..).step_by(2) {
        if let Some((_, decision)) = puller.totals().decisions.last() {
            return decision.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.session.first_reads.waited(waited, 1);
        world.session.first_reads.offer((id + 2) * PART);
        for id in [id, id + 1] {
            puller.request(id, data(id * PART, (id + 1) * PART)).unwrap();
        }
        for _ in 0..2 {
            results.recv().await.unwrap().outcome.unwrap();
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_waited_for_before_anything_can_be_asked_for_is_named() {
    let decision = decided_after(Duration::from_millis(45)).await;
    assert_eq!(decision.binding, Binding::SourceDisk, "{decision:?}");
    // A read may wait for something else on a busy machine, now and then.
    for left in (0..3).rev() {
        let decision = decided_after(Duration::ZERO).await;
        if decision.binding == Binding::Application {
            break;
        }
        assert!(left > 0, "{decision:?}");
    }
}

/// Something is decided of a transfer that its sender has told of others: of a later one, where its answer was late.
pub(crate) async fn decided_beside_others(world: &mut World) {
    world.session.slow_ms.store(SLOW_MS, Ordering::Relaxed);
    for left in (0..5).rev() {
        let (mut puller, mut results) = puller(world, steered()).await;
        let decision = until_decided(&puller, &mut results).await;
        puller.stop().await;
        if decision.why.contains(" of others") {
            return;
        }
        assert!(left > 0, "{decision:?}");
    }
}

/// Pulls all the time, but no more than a busy machine can bring beside all else.
pub(crate) fn pull_on(world: &World, client: Arc<ControlClient>) {
    world.budget.set_rate(Rate::from_mbps(100));
    let (busy, mut taken) = Puller::start(client, quick());
    tokio::spawn(async move {
        let mut id = 0;
        while busy.request(id, data(0, 1_000_000)).is_ok() && taken.recv().await.is_some() {
            id += 1;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_sender_sends_to_others_is_told_and_decided_with() {
    let uplink: Arc<Uplink> = Arc::default();
    let setup = || Setup { uplink: uplink.clone(), ..Setup::default() };
    let (mut world, mut other) = (World::new(setup()).await, World::new(setup()).await);
    let (client, _) = other.member().await;
    pull_on(&other, client);
    until(|| other.session.read.load(Ordering::Relaxed) > 0).await;
    decided_beside_others(&mut world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_begins_with_as_many_connections_as_are_remembered() {
    let mut world = World::new(Setup::default()).await;
    world.session.slow_ms.store(SLOW_MS, Ordering::Relaxed);
    let memory = Memory {
        connections: 5,
        pacing: None,
        rate: Rate::from_mbps(10),
        rtt_min: Duration::from_millis(1),
        binding: Binding::Loss,
        ended: true,
    };
    let limits = Limits { first: 2, least: 1, most: 8, ceiling: Some(Rate::from_mbps(400)) };
    let steering = steering(limits, Some(memory));
    let limits = PullLimits { steering: Some(steering), depth: 2, ..quick() };
    let (mut puller, mut results) = puller(&mut world, limits).await;
    let decision = until_decided(&puller, &mut results).await;
    assert_eq!(decision.setting.connections, 5);
    assert_eq!(decision.setting.pacing, Some(Rate::from_mbps(400)));
    assert_eq!(puller.stop().await.connections.len(), 5);
}
