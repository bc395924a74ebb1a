//! The papers' profiles do what their papers say, in virtual time.

use downpour_proto::profile::bmtp::StatusRule;
use downpour_proto::profile::{Mode, ReceiverProfile, SenderProfile, To, afdp, bmtp, fmtp};
use downpour_proto::rate::AfdpLimits;
use downpour_proto::{Duration, Rate, ReceiverId, Timestamp};
use downpour_sim::profiles::{Listener, Outcome, Session};
use downpour_sim::{EdgeConfig, LinkConfig, Loss, NodeId};
use std::collections::BTreeSet;

const MS: Duration = Duration::from_millis(1);

/// A link from the sender, behind which each receiver has its own with this loss.
fn network(rate: Rate, receivers: usize, loss: f64) -> Vec<EdgeConfig> {
    let uplink = LinkConfig::bottleneck(rate, 20 * MS, MS / 20);
    let own = LinkConfig::wire(MS / 20);
    let loss = if loss > 0.0 { Loss::Random(loss) } else { Loss::None };
    let mut edges = vec![EdgeConfig::from_sender(uplink)];
    edges.extend((0..receivers).map(|_| EdgeConfig {
        parent: NodeId(1),
        loss,
        ..EdgeConfig::from_sender(own)
    }));
    edges
}

fn session(
    edges: Vec<EdgeConfig>,
    profile: SenderProfile,
    receiver: impl Fn() -> ReceiverProfile,
    size: u64,
) -> Session {
    let listeners = (2..=edges.len()).map(|node| {
        let profile = receiver();
        Listener { node: NodeId(node), starts: Duration::ZERO, profile }
    });
    let listeners = listeners.collect();
    let (mode, starts, end) = (Mode::Multicast, 10 * MS, Duration::from_secs(600));
    Session { edges, profile, mode, starts, listeners, products: vec![size], seed: 1, end }
}

fn bmtp_to(receivers: usize, loss: f64, size: u64, rate: f64) -> Session {
    let edges = network(Rate::from_mbps(20), receivers, loss);
    let listen = || bmtp::receiver(StatusRule::Kept);
    session(edges, bmtp::sender(rate, f64::INFINITY), listen, size)
}

fn all_complete(outcome: &Outcome) -> bool {
    outcome.heard.iter().all(|heard| heard.complete.len() == 1)
}

fn seconds(at: Timestamp) -> f64 {
    at.since(Timestamp::ZERO).as_secs_f64()
}

#[test]
fn bmtp_grows_by_four_and_a_half_percent_a_second() {
    let outcome = bmtp_to(1, 0.0, 20_000_000, 200.0).run();
    assert!(all_complete(&outcome));
    // Fig. 3: a new rate each second or so, 200.995 -> 211.04 -> 221.3 ...
    let rates: Vec<f64> = outcome.lines.iter().map(|(_, line)| line.rate).collect();
    assert!((rates[0] - 1.05 * 200.0).abs() < 1.0, "{}", rates[0]);
    let (first, later) = (&outcome.lines[0], &outcome.lines[50]);
    let growth = (later.1.rate / first.1.rate).powf(1.0 / (seconds(later.0) - seconds(first.0)));
    assert!((1.040..=1.050).contains(&growth), "{growth}");
    assert!(outcome.heard[0].intervals.iter().all(|i| i.missing > 0 || i.ratio == 1.0));
}

#[test]
fn bmtp_asks_for_a_segment_a_second_after_it_was_noticed_missing() {
    let outcome = bmtp_to(1, 0.002, 4_000_000, 500.0).run();
    assert!(all_complete(&outcome));
    let repairs: Vec<_> = outcome.sent.iter().filter(|s| s.2.is_some_and(|b| b.repair)).collect();
    assert!(repairs.len() > 3, "{}", repairs.len());
    let mut seen = BTreeSet::new();
    for (at, _, body) in repairs {
        let segment = body.unwrap().segment;
        let first = outcome.sent.iter().find(|s| s.2.is_some_and(|b| b.segment == segment));
        let waited = at.since(first.unwrap().0);
        // Noticed by the next packet, asked for with one that is drawn; again if the repair is lost.
        let seconds = if seen.insert(segment) { 1000..1100 } else { 2000..4000 };
        assert!(seconds.contains(&waited.as_millis()), "{segment}: {waited:?}");
    }
    // What an interval misses, the next one asks for.
    let intervals = &outcome.heard[0].intervals;
    let asked: u32 = intervals.iter().map(|i| i.naks).sum();
    let missed: u32 = intervals.iter().map(|i| i.missing).sum();
    assert!(asked > 0 && asked <= missed, "{asked} of {missed}");
}

#[test]
fn bmtp_serves_who_starts_later() {
    let mut session = bmtp_to(2, 0.0, 4_000_000, 1000.0);
    session.listeners[1].starts = Duration::from_millis(1500);
    let outcome = session.run();
    assert!(all_complete(&outcome));
    // Fig. 9: the beginning comes as repair, a second after it was noticed.
    let table = outcome.heard[1].complete[0].2.times_ms();
    assert!(table[0] >= 1000 && table[2000] < 1000, "{} {}", table[0], table[2000]);
}

#[test]
fn bmtp_finds_the_size_of_its_group_or_a_tenth_of_it() {
    let outcome = bmtp_to(37, 0.0, 8_000_000, 1000.0).run();
    assert!(all_complete(&outcome));
    let clients = *outcome.clients.last().unwrap();
    assert!((30..=45).contains(&clients), "{clients}");
    let mut session = bmtp_to(37, 0.0, 8_000_000, 1000.0);
    for listener in &mut session.listeners {
        listener.profile = bmtp::receiver(StatusRule::Rejected);
    }
    let outcome = session.run();
    let clients = *outcome.clients.last().unwrap();
    assert!((2..=6).contains(&clients), "{clients}");
}

/// Nobody else lacks the end: in silence it must not wait for its turn among all.
#[test]
fn bmtp_waits_for_who_alone_of_a_large_group_lacks_the_end() {
    for seed in 1..=4 {
        let mut session = bmtp_to(200, 0.0, 1_400_000, 200.0);
        session.seed = seed;
        session.edges[1].cuts = vec![Timestamp::ZERO + 4000 * MS..Timestamp::ZERO + 5500 * MS];
        let outcome = session.run();
        assert!(outcome.done.is_some() && all_complete(&outcome), "SEED={seed}");
    }
}

/// Three packets a second: that nothing comes any more is noticed after seven seconds.
#[test]
fn a_slow_bmtp_sender_waits_until_its_silence_is_noticed() {
    for rate in [1.0, 3.0] {
        let size = 30 * 1400;
        let mut session = bmtp_to(1, 0.0, size, rate);
        session.profile = bmtp::sender(rate, rate);
        let all = Duration::from_secs_f64(30.0 / rate);
        let cut = all.mul_f64(0.9)..all.mul_f64(1.1);
        session.edges[1].cuts = vec![Timestamp::ZERO + cut.start..Timestamp::ZERO + cut.end];
        let outcome = session.run();
        assert!(outcome.done.is_some() && all_complete(&outcome), "{rate} packets/s");
    }
}

/// Nor does a receiver take longer to notice it because much was lost before.
#[test]
fn a_slow_bmtp_sender_with_loss_waits_until_its_silence_is_noticed() {
    for seed in 1..=20 {
        let mut session = bmtp_to(1, 0.3, 60 * 1400, 3.0);
        (session.seed, session.profile) = (seed, bmtp::sender(3.0, 3.0));
        let outcome = session.run();
        assert!(outcome.done.is_some() && all_complete(&outcome), "SEED={seed}");
    }
}

#[test]
fn bmtp_stalls_above_one_in_twenty_one() {
    // 1.05 (1 - p) < 1 from p = 4.76 % on.
    let rate_after = |loss: f64, receivers: usize| {
        let mut session = bmtp_to(receivers, loss, 4_000_000_000, 1000.0);
        session.end = Duration::from_secs(40);
        session.run().lines.last().unwrap().1.rate
    };
    let (below, above, far_above) =
        (rate_after(0.02, 1), rate_after(0.08, 1), rate_after(0.08, 16));
    assert!(below > 1500.0, "{below}");
    assert!(above < 600.0, "{above}");
    assert!(far_above < above, "{far_above} {above}");
}

fn afdp_session(mode: Mode, limits: AfdpLimits, receivers: usize, loss: f64, size: u64) -> Outcome {
    let edges = network(Rate::from_mbps(100), receivers, loss);
    let mut session = session(edges, afdp::sender(mode, limits), afdp::receiver, size);
    session.mode = mode;
    session.run()
}

/// Times between packets of the message, repairs included.
fn gaps(outcome: &Outcome) -> Vec<f64> {
    let data: Vec<f64> =
        outcome.sent.iter().filter(|s| s.2.is_some()).map(|s| seconds(s.0)).collect();
    data.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn afdp_keeps_its_minimum_and_nice_100_ms() {
    let outcome = afdp_session(Mode::Multicast, AfdpLimits::DEFAULT, 3, 0.0, 700_000);
    assert!(all_complete(&outcome) && outcome.stats.requests == 0);
    assert!(gaps(&outcome).iter().all(|gap| (gap - 0.010).abs() < 1e-6));
    let outcome = afdp_session(Mode::Multicast, AfdpLimits::Nice, 1, 0.0, 140_000);
    assert!(gaps(&outcome).iter().all(|gap| (gap - 0.100).abs() < 1e-6));
}

#[test]
fn afdp_rabid_speeds_up_until_somebody_misses_something() {
    let outcome = afdp_session(Mode::Multicast, AfdpLimits::Rabid, 3, 0.0, 40_000_000);
    assert!(all_complete(&outcome));
    let gaps = gaps(&outcome);
    let fastest = gaps.iter().copied().fold(1.0, f64::min);
    assert!(fastest < 0.000_12, "{fastest}");
    assert!(outcome.stats.requests > 0, "the link's rate was found by exceeding it");
    // Near the link's rate: 40 MB in 1458-byte frames take 3.3 s, and the start from 10 ms nine more.
    let last = outcome.heard.iter().map(|h| seconds(h.complete[0].0)).fold(0.0, f64::max);
    assert!(last < 25.0, "{last}");
}

#[test]
fn afdp_raises_tp_before_it_serves_and_serves_before_it_goes_on() {
    let outcome = afdp_session(Mode::Multicast, AfdpLimits::DEFAULT, 1, 0.02, 1_400_000);
    assert!(all_complete(&outcome));
    assert_eq!(outcome.stats.segments, 1000);
    let data: Vec<_> = outcome.sent.iter().filter_map(|s| s.2.map(|body| (s.0, body))).collect();
    let at = data.iter().position(|(_, body)| body.repair).unwrap();
    let gap = |i: usize| seconds(data[i].0) - seconds(data[i - 1].0);
    assert!((gap(at - 2) - 0.010).abs() < 1e-6, "{}", gap(at - 2));
    assert!(gap(at + 1) > 0.0135 && gap(at + 1) < 0.0151, "{}", gap(at + 1));
    // No new segment between two repairs of one request.
    let newest = data[at - 1].1.segment;
    let missing_then = data[at..].iter().take_while(|(_, body)| body.repair).count();
    assert!(missing_then >= 1 && data[at + missing_then].1.segment == newest + 1);
}

#[test]
fn afdp_by_unicast_sends_each_its_own_within_one_tp() {
    let outcome = afdp_session(Mode::Unicast, AfdpLimits::DEFAULT, 3, 0.02, 700_000);
    assert!(all_complete(&outcome));
    let each = outcome.sent.iter().filter(|s| s.1 == To::Each).count();
    assert_eq!(each, 500);
    let repairs = outcome.sent.iter().filter(|s| matches!(s.1, To::Datagram(_)));
    assert!(repairs.count() > 10);
    assert!(outcome.wire_bytes > 3 * 700_000);
    assert!(outcome.members.iter().all(|member| member.completed.is_some()));
}

fn fmtp_session(receivers: usize, loss: f64, products: Vec<u64>) -> Session {
    let edges = network(Rate::from_mbps(100), receivers, loss);
    let profile = fmtp::sender(Rate::from_mbps(20), fmtp::KEEP);
    let mut session = session(edges, profile, || fmtp::receiver(fmtp::LINK_RATE), 0);
    session.products = products;
    session
}

#[test]
fn fmtp_sends_1_84_times_the_file_at_16_receivers_and_5_percent() {
    let size = 20_000_000;
    let outcome = fmtp_session(16, 0.05, vec![size]).run();
    assert!(all_complete(&outcome));
    let stats = outcome.stats;
    // 1 + 16 · 0.05 / 0.95 with what TCP sends again.
    let sent = outcome.wire_bytes as f64 / size as f64;
    let headers = 1514.0 / 1448.0;
    assert!((1.80..=1.90).contains(&(sent / headers)), "{}", sent / headers);
    let repairs = stats.repairs as f64 / stats.segments as f64;
    assert!((repairs - 0.8).abs() < 0.02, "{repairs}");
    assert!(outcome.done.is_some());
}

#[test]
fn fmtp_brings_products_in_order_and_all_of_them() {
    let sizes: Vec<u64> = (0..200).map(|n| [0, 217, 39_000, 400_000][n % 4] + n as u64).collect();
    for loss in [0.0, 0.05] {
        let outcome = fmtp_session(4, loss, sizes.clone()).run();
        let mut order = outcome.sent.iter().filter_map(|s| s.2).filter(|body| !body.repair);
        let mut last = (0, 0);
        assert!(order.all(|body| {
            let ascends = (body.product, body.offset) >= last;
            last = (body.product, body.offset);
            ascends
        }));
        for heard in &outcome.heard {
            let got: BTreeSet<u32> = heard.complete.iter().map(|(_, number, _)| *number).collect();
            // Those whose every packet was lost before anything of the session was heard are the backlog's.
            let first = *got.first().unwrap();
            assert!(first < 4 && got.len() == 200 - first as usize, "{} of 200", got.len());
            assert_eq!(heard.rejected, []);
            assert!(
                heard.complete.iter().all(|(_, n, product)| product.size == sizes[*n as usize])
            );
        }
    }
}

#[test]
fn fmtp_repairs_of_one_gap_come_one_behind_the_other() {
    let mut session = fmtp_session(1, 0.0, vec![400_000]);
    session.edges[1].link = LinkConfig::wire(25 * MS);
    // A hundred of 277 segments; each takes 0.6 ms.
    session.edges[1].cuts = vec![Timestamp::ZERO + 60 * MS..Timestamp::ZERO + 120 * MS];
    let outcome = session.run();
    let lost = outcome.stats.repairs;
    assert!((90..110).contains(&lost), "{lost}");
    // All of it and the repairs take 220 ms; a request and a repair that is lost itself would take 50 each.
    let complete = seconds(outcome.heard[0].complete[0].0);
    assert!(complete < 0.4, "{complete}");
}

#[test]
fn fmtp_gives_a_product_up_after_its_time() {
    let mut session = fmtp_session(2, 0.0, vec![200_000, 200_000]);
    session.profile = fmtp::sender(Rate::from_mbps(20), Duration::from_secs(20));
    // One receiver hears nothing by multicast while the first product passes.
    session.edges[1].cuts = vec![Timestamp::ZERO..Timestamp::ZERO + 100 * MS];
    let outcome = session.run();
    assert_eq!(outcome.heard[1].complete.len(), 2);
    // Nothing was heard of the first, so nothing of it is asked for, and the sender keeps it for its time.
    assert_eq!(outcome.heard[0].complete.len(), 1);
    let done = seconds(outcome.done.unwrap());
    assert!((20.0..21.0).contains(&done), "{done}");
}

#[test]
fn fmtp_tells_of_a_last_product_that_was_lost_whole() {
    for sizes in [vec![200_000, 200_000], vec![200_000, 0], vec![200_000]] {
        let count = sizes.len();
        let mut session = fmtp_session(2, 0.0, sizes);
        // 200,000 bytes take 80 ms: from the middle of the first, or the start, one hears nothing until all is sent.
        let from = if count == 1 { 0 } else { 40 };
        session.edges[1].cuts = vec![Timestamp::ZERO + from * MS..Timestamp::ZERO + 190 * MS];
        let outcome = session.run();
        assert!(outcome.heard.iter().all(|heard| heard.complete.len() == count), "{count}");
        let done = seconds(outcome.done.unwrap());
        assert!(done < 3.0, "{done}");
    }
}

#[test]
fn a_receiver_that_only_asks_draws_nothing_that_was_not_sent() {
    let config = downpour_proto::profile::SenderConfig {
        profile: afdp::sender(Mode::Multicast, AfdpLimits::DEFAULT),
        mode: Mode::Multicast,
        group: None,
    };
    let mut sender = downpour_proto::profile::Sender::new(config, Timestamp::ZERO);
    let offer = downpour_proto::profile::Offer {
        product: 7,
        size: 14_000,
        offered_unix_ns: 0,
        metadata: Vec::new(),
    };
    let (member, stranger) = (ReceiverId(1), ReceiverId(2));
    // Before there is anything to tell it: it is told, and has not joined.
    sender.connect(Timestamp::ZERO, member);
    let mut out = Vec::new();
    assert_eq!(sender.poll_transmit(Timestamp::ZERO, &mut out), None);
    assert!(sender.offer(Timestamp::ZERO, offer));
    let welcome = sender.poll_transmit(Timestamp::ZERO, &mut out).unwrap();
    assert_eq!((welcome.to, out[2], sender.joined()), (To::Stream(member), 1, 0));
    sender.handle_stream(Timestamp::ZERO, member, &[0, 5, 2, 0, 9]).unwrap();
    sender.start(Timestamp::ZERO);
    while sender.poll_transmit(Timestamp::ZERO, &mut out).is_some() {}
    // RESEND_REQUEST for all ten: only the first has been sent.
    let mut request = vec![0, 17, 3, 0, 0, 0, 7, 0, 1];
    request.extend([0, 0, 0, 0, 0, 0, 0, 10]);
    sender.handle_stream(Timestamp::ZERO, stranger, &request).unwrap();
    assert_eq!((sender.stats().requests, sender.stats().requests_idle), (0, 1));
    sender.handle_stream(Timestamp::ZERO, member, &request).unwrap();
    assert_eq!((sender.stats().requests, sender.stats().requests_idle), (1, 1));
    let later = Timestamp::ZERO + 20 * MS;
    let sent = std::iter::from_fn(|| sender.poll_transmit(later, &mut out)).next().unwrap();
    assert_eq!(sent.body.map(|body| (body.segment, body.repair)), Some((0, true)));
}
