//! The plan as a whole: paths as people have them, and what holds for all of them.

use super::connections::CONNECTIONS_NEAR;
use super::{
    CONNECTIONS_FAR, CONNECTIONS_MAX, Carrier, Figure, Host, Known, Measured, Plan, Policy, Wishes,
};
use crate::time::Duration;
use crate::units::Rate;
use alloc::string::{String, ToString};
use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// A kernel as distributions have it.
const COMMON: &str = "rmem_max=212992 wmem_max=212992 tcp_rmem=4096,131072,6291456 \
                      tcp_wmem=4096,16384,4194304 congestion=cubic,reno";
/// One made for long paths.
const TUNED: &str = "rmem_max=67108864 wmem_max=67108864 tcp_rmem=4096,87380,33554432 \
                     tcp_wmem=4096,65536,33554432 congestion=cubic,reno,bbr";
/// Sizes may be set that autotuning does not reach.
const GRANTS: &str = "rmem_max=67108864 wmem_max=67108864 tcp_rmem=4096,131072,6291456 \
                      tcp_wmem=4096,16384,4194304 congestion=cubic,reno";

fn figure<T>(value: T) -> Option<Figure<T>> {
    Some(Figure::fresh(value, "test"))
}

fn measured(mbps: u64, ms: u64, loss: f64) -> Measured {
    Measured {
        throughput: figure(Rate::from_mbps(mbps)),
        rtt: figure(Duration::from_millis(ms)),
        loss: figure(loss),
    }
}

fn known(measured: Measured, host: &str, wishes: Wishes) -> Known {
    let host = Host::parse(host);
    Known {
        measured,
        sender: host.clone(),
        receiver: host,
        beside: 0,
        range_len: 2 << 20,
        memory: 256 << 20,
        wishes,
    }
}

fn by(policy: Policy) -> Wishes {
    Wishes { connections: Some(1), policy, ..Wishes::default() }
}

#[test]
fn where_only_the_round_trip_is_known_the_kernel_keeps_the_rest() {
    let rtt = |ms| Measured { rtt: figure(Duration::from_millis(ms)), ..Measured::default() };
    let near = Plan::new(&known(rtt(0), COMMON, Wishes::default()));
    let far = Plan::new(&known(rtt(50), COMMON, Wishes::default()));
    assert_eq!(near.connections.value, CONNECTIONS_NEAR);
    assert_eq!(
        (far.connections.value, far.ranges.value, far.depth.value),
        (CONNECTIONS_FAR, 128, 2)
    );
    assert_eq!((far.send_buffer.value, far.receive_buffer.value), (None, None));
    assert_eq!((far.congestion.value, far.pacing.value, far.expected.value), (None, None, None));
    assert_eq!(far.path.value, Carrier::Try);
}

#[test]
fn what_was_asked_for_holds_within_the_limits() {
    let wishes = Wishes {
        path: Some(Carrier::Udp),
        connections: Some(5_000),
        congestion: Some("bbr".to_string()),
        buffer: Some(1 << 20),
        pacing: Some(Rate::from_mbps(640)),
        policy: Policy::Bdp(1),
    };
    let plan = Plan::new(&known(measured(100, 50, 0.0), TUNED, wishes.clone()));
    assert_eq!((plan.path.value, plan.path.why.as_str()), (Carrier::Udp, "as asked for"));
    assert_eq!(plan.connections.value, CONNECTIONS_MAX);
    assert_eq!(plan.congestion.value.as_deref(), Some("bbr"));
    assert_eq!((plan.send_buffer.value, plan.receive_buffer.value), (Some(1 << 20), Some(1 << 20)));
    assert_eq!(plan.pacing.value, Some(Rate::from_mbps(10)));
    let little = Plan::new(&known(measured(100, 50, 0.0), COMMON, wishes));
    assert_eq!(little.send_buffer.value, Some(212_992));
    assert!(little.send_buffer.why.contains("grants 212992"), "{}", little.send_buffer.why);
}

#[test]
fn little_memory_shortens_the_lines_not_below_one_range_each() {
    let little = Known { memory: 1, ..known(measured(1000, 50, 0.0), COMMON, Wishes::default()) };
    let plan = Plan::new(&little);
    assert_eq!(plan.ranges.value, usize::from(plan.connections.value));
    assert_eq!(plan.depth.value, 1);
}

#[test]
fn the_papers_policies_multiply_bandwidth_and_round_trip() {
    // 1 Gbit/s over 12 ms: 1.5 MB.
    for (times, len) in [(1, 1_500_000), (2, 3_000_000), (3, 4_500_000)] {
        let plan = Plan::new(&known(measured(1000, 12, 0.0), TUNED, by(Policy::Bdp(times))));
        assert_eq!(plan.send_buffer.value, Some(len));
        assert_eq!(plan.receive_buffer.value, Some(len));
    }
    let ten = Wishes { connections: Some(10), ..by(Policy::Bdp(1)) };
    let plan = Plan::new(&known(measured(1000, 12, 0.0), TUNED, ten.clone()));
    assert_eq!(plan.send_buffer.value, Some(150_000), "ten connections share the path");
    let plan = Plan::new(&Known { beside: 2, ..known(measured(1000, 12, 0.0), TUNED, ten) });
    assert_eq!(plan.send_buffer.value, Some(50_000), "so do three transfers");
}

#[test]
fn a_policy_that_lacks_its_figures_sets_nothing() {
    let none = known(Measured::default(), TUNED, by(Policy::Bdp(2)));
    let plan = Plan::new(&none);
    assert_eq!((plan.send_buffer.value, plan.receive_buffer.value), (None, None));
    assert!(plan.send_buffer.why.contains("round trip, which is not known"));
}

#[test]
fn a_buffer_is_set_only_where_that_is_more_than_autotuning_reaches() {
    let one = |host| {
        let wishes = Wishes { connections: Some(1), ..Wishes::default() };
        let plan = Plan::new(&known(measured(1000, 100, 0.0), host, wishes));
        (plan.send_buffer, plan.receive_buffer)
    };
    // 12.5 MB: the tuned kernel reaches 16 MB by itself.
    let (send, receive) = one(TUNED);
    assert_eq!((send.value, receive.value), (None, None));
    // A set size would be less than what autotuning reaches.
    let (send, receive) = one(COMMON);
    assert_eq!((send.value, receive.value), (None, None));
    assert!(send.why.contains("a set size may not be more"), "{}", send.why);
    // Here it is more, with room for a queue.
    let (send, receive) = one(GRANTS);
    assert_eq!((send.value, receive.value), (Some(25_000_000), Some(25_000_000)));
}

#[test]
fn small_buffers_and_loss_are_made_good_by_connections() {
    let plan = Plan::new(&known(measured(1000, 200, 0.0), COMMON, Wishes::default()));
    // 25 MB under way, 2 MiB each.
    assert_eq!(plan.connections.value, 12);
    let fixed = Wishes { buffer: Some(64 << 10), ..Wishes::default() };
    let plan = Plan::new(&known(measured(100, 100, 0.0), TUNED, fixed));
    assert_eq!(plan.connections.value, 20, "the paper's rule: else 64 KB and many streams");
    // 0.1 % over 50 ms: 9 Mbit/s each.
    let plan = Plan::new(&known(measured(100, 50, 1e-3), COMMON, Wishes::default()));
    assert_eq!(plan.connections.value, 12, "{}", plan.connections.why);
    assert_eq!(plan.path.value, Carrier::Tcp);
    let plan = Plan::new(&known(measured(500, 50, 1e-2), COMMON, Wishes::default()));
    assert_eq!(plan.path.value, Carrier::Udp, "{}", plan.path.why);
    assert_eq!(plan.expected.value, Some(Rate::from_mbps(500)));
}

#[test]
fn bbr_is_taken_where_loss_holds_the_default_and_the_sender_has_it() {
    let lossy = measured(500, 50, 1e-3);
    let plan = Plan::new(&known(lossy.clone(), TUNED, Wishes::default()));
    assert_eq!(plan.congestion.value.as_deref(), Some("bbr"));
    assert_eq!(plan.connections.value, CONNECTIONS_FAR);
    assert_eq!(plan.path.value, Carrier::Tcp);
    assert_eq!(Plan::new(&known(lossy, COMMON, Wishes::default())).congestion.value, None);
    let clean = Plan::new(&known(measured(500, 50, 0.0), TUNED, Wishes::default()));
    assert_eq!(clean.congestion.value, None);
}

#[test]
fn over_a_way_shorter_than_a_host_takes_to_wake_bbr_gives_way_to_cubic() {
    let wakes_to = |measured: Measured, has: &str| {
        let host = ["congestion=", has].concat();
        Plan::new(&known(measured, &host, Wishes::default())).congestion.value
    };
    let rtt = |us| Measured { rtt: figure(Duration::from_micros(us)), ..Measured::default() };
    assert_eq!(wakes_to(rtt(50), "bbr,reno,cubic").as_deref(), Some("cubic"));
    // It has no other, the way is longer, or the default is not BBR.
    assert_eq!(wakes_to(rtt(50), "bbr,reno"), None);
    assert_eq!(wakes_to(rtt(1_000), "bbr,cubic"), None);
    assert_eq!(wakes_to(rtt(50), "cubic,bbr"), None);
    // One datagram in ten is lost: of 10 Gbit/s CUBIC would keep a part.
    let lossy = Measured { loss: figure(0.1), ..rtt(100) };
    let lossy = Measured { throughput: figure(Rate::from_mbps(10_000)), ..lossy };
    assert_eq!(wakes_to(lossy, "bbr,cubic"), None);
}

#[test]
fn each_number_has_its_sentence() {
    for measured in [Measured::default(), measured(1000, 50, 1e-3), measured(10, 1, 0.0)] {
        let plan = Plan::new(&known(measured, COMMON, Wishes::default()));
        let whys: [&String; 9] = [
            &plan.path.why,
            &plan.connections.why,
            &plan.depth.why,
            &plan.ranges.why,
            &plan.congestion.why,
            &plan.send_buffer.why,
            &plan.receive_buffer.why,
            &plan.pacing.why,
            &plan.expected.why,
        ];
        assert!(whys.iter().all(|why| why.len() > 10 && !why.contains('\n')), "{whys:?}");
    }
}

fn any_host() -> impl Strategy<Value = Host> {
    let size = || proptest::option::of(4096u64..1 << 30);
    let names =
        prop_oneof![Just("cubic,reno"), Just("cubic,reno,bbr"), Just("bbr,cubic"), Just("")];
    (size(), size(), size(), size(), names).prop_map(|(r, w, tr, tw, names)| {
        let most = |most: Option<u64>| most.map(|most| [4096, 16384, most]);
        let congestion = names.split(',').filter(|n| !n.is_empty()).map(String::from).collect();
        Host { rmem_max: r, wmem_max: w, tcp_rmem: most(tr), tcp_wmem: most(tw), congestion }
    })
}

fn any_wishes() -> impl Strategy<Value = Wishes> {
    let policy = prop_oneof![Just(Policy::Auto), (1u8..=3).prop_map(Policy::Bdp)];
    let buffer = proptest::option::weighted(0.2, 1u64..1 << 40);
    (proptest::option::weighted(0.3, 1u16..100), buffer, policy).prop_map(
        |(connections, buffer, policy)| Wishes { connections, buffer, policy, ..Wishes::default() },
    )
}

fn any_known() -> impl Strategy<Value = Known> {
    let rate = proptest::option::of(1u64..1 << 40);
    let rtt = proptest::option::of(0u64..2_000_000);
    let loss = proptest::option::of(prop_oneof![Just(0.0), 1e-9f64..1.0]);
    (any_host(), any_host(), any_wishes(), (rate, rtt, loss), 0u16..20).prop_map(
        |(sender, receiver, wishes, (rate, rtt, loss), beside)| Known {
            measured: Measured {
                throughput: rate.and_then(|bps| figure(Rate::from_bps(bps))),
                rtt: rtt.and_then(|us| figure(Duration::from_micros(us))),
                loss: loss.and_then(figure),
            },
            sender,
            receiver,
            beside,
            range_len: 2 << 20,
            memory: 256 << 20,
            wishes,
        },
    )
}

/// Bytes under way that one end's buffer comes to: what is set, or where autotuning ends.
fn comes_to(set: Option<u64>, tuned: Option<u64>) -> u64 {
    set.or(tuned).unwrap_or(0)
}

proptest! {
    #[test]
    fn nothing_is_above_what_the_kernels_grant(known in any_known()) {
        let plan = Plan::new(&known);
        if let (Some(len), Some(max)) = (plan.send_buffer.value, known.sender.wmem_max) {
            prop_assert!(len <= max);
        }
        if let (Some(len), Some(max)) = (plan.receive_buffer.value, known.receiver.rmem_max) {
            prop_assert!(len <= max);
        }
        prop_assert!((1..=CONNECTIONS_MAX).contains(&plan.connections.value));
        if let Some(name) = &plan.congestion.value {
            prop_assert_eq!(known.sender.has(name), Some(true));
        }
        let all = plan.connections.value as usize;
        prop_assert!(plan.depth.value >= 1 && plan.depth.value * all <= plan.ranges.value.max(all));
    }

    #[test]
    fn no_data_never_becomes_a_number(mut known in any_known()) {
        known.wishes.buffer = None;
        known.measured.throughput = None;
        let plan = Plan::new(&known);
        prop_assert_eq!((plan.send_buffer.value, plan.receive_buffer.value), (None, None));
        prop_assert_eq!((plan.expected.value, plan.pacing.value), (None, None));
        known.measured.rtt = None;
        let plan = Plan::new(&known);
        let n = known.wishes.connections.map_or(CONNECTIONS_NEAR, |n| n.min(CONNECTIONS_MAX));
        prop_assert_eq!((plan.connections.value, plan.depth.value), (n, 2));
    }

    #[test]
    fn a_longer_way_never_takes_less(mut known in any_known(), shorter in 0u64..2_000_000) {
        let Some(rtt) = known.measured.rtt.clone() else { return Ok(()) };
        let long = Plan::new(&known);
        let shorter = Duration::from_micros(shorter).min(rtt.value);
        known.measured.rtt = figure(shorter);
        let short = Plan::new(&known);
        // Where loss makes bbr the better choice on the longer way, it needs no further connections.
        if long.congestion.value == short.congestion.value {
            prop_assert!(short.connections.value <= long.connections.value);
        }
        known.wishes.connections = Some(long.connections.value);
        let short = Plan::new(&known);
        let (sending, receiving) = (known.sender.sending().tuned, known.receiver.receiving().tuned);
        prop_assert!(
            comes_to(short.send_buffer.value, sending) <= comes_to(long.send_buffer.value, sending)
        );
        prop_assert!(
            comes_to(short.receive_buffer.value, receiving)
                <= comes_to(long.receive_buffer.value, receiving)
        );
        prop_assert!(short.depth.value <= long.depth.value);
    }

    #[test]
    fn what_is_expected_is_at_most_what_there_is(known in any_known()) {
        let plan = Plan::new(&known);
        if let (Some(rate), Some(figure)) = (plan.expected.value, &known.measured.throughput) {
            prop_assert!(rate <= figure.value);
        }
    }
}
