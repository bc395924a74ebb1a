//! What `auto` must do on a bare stream; the whole matrix: `cargo run --release -p downpour-sim --example
//! rate_matrix`.

use downpour_proto::rate::{Auto, Background, Fixed, RateController};
use downpour_proto::{Duration, Rate, Timestamp};
use downpour_sim::stream::{
    Answers, Bed, Cell, Kind, Noise, Outcome, ReceiverSetup, SessionSetup, Setup, Words, run,
};
use downpour_sim::{Hiccups, LinkConfig, Loss};

#[test]
fn sampled_cells_of_the_matrix_hold() {
    for (index, cell) in Cell::all().iter().enumerate().step_by(23) {
        let verdict = cell.run(index as u64 + 1, false);
        assert_eq!(verdict.misses(), None, "{}", verdict.line());
    }
}

/// The start overflows a short queue, which is empty again when the answer comes: what arrived meanwhile is not what
/// the link takes.
#[test]
fn an_overflow_that_ends_in_an_empty_queue_does_not_make_the_start_slow() {
    let receivers = 4;
    let (queue_ms, rtt_us, narrow, busy, stranger) = (5, 50_000, false, false, None);
    for (mbps, loss_pct, burst, seed) in
        [(20, 1.0, 0.0, 302), (20, 5.0, 0.0, 305), (20, 1.0, 10.0, 311), (100, 1.0, 10.0, 563)]
    {
        #[rustfmt::skip]
        let cell = Cell { mbps, queue_ms, rtt_us, loss_pct, burst, receivers, narrow, busy, stranger };
        let verdicts = (seed..seed + 12).map(|seed| cell.run(seed, false));
        let missed: Vec<_> = verdicts.filter(|v| v.misses().is_some()).map(|v| v.line()).collect();
        // In bursts of losses one start in sixty is slow by chance.
        assert!(missed.len() <= 2, "from SEED={seed} on: {missed:?}");
    }
}

/// Through a queue that is always full hardly any poll comes, since it follows at once on a datagram: one answer in
/// dozens of rounds must be enough to find out who takes less than the others.
#[test]
fn a_receiver_whose_full_queue_takes_its_polls_is_followed() {
    let (receivers, narrow, busy, stranger) = (8, true, false, None);
    for (mbps, queue_ms, rtt_us, loss_pct, burst, seed) in [
        (300, 50, 200_000, 0.1, 0.0, 909),
        (20, 50, 200_000, 5.0, 10.0, 420),
        (5, 5, 50_000, 5.0, 0.0, 54),
    ] {
        #[rustfmt::skip]
        let cell = Cell { mbps, queue_ms, rtt_us, loss_pct, burst, receivers, narrow, busy, stranger };
        let verdict = cell.run(seed, false);
        assert_eq!(verdict.misses(), None, "SEED={seed} {}", verdict.line());
    }
}

#[test]
fn busy_hosts_cost_five_percent_at_most_and_the_start_does_not_swing() {
    for (rtt_us, loss_pct) in [(500, 0.0), (500, 5.0), (20_000, 0.0), (20_000, 5.0)] {
        for seed in 1..=3 {
            let (mbps, queue_ms, burst, narrow) = (100, 20, 0.0, false);
            let receivers = 8;
            let (busy, stranger) = (true, None);
            #[rustfmt::skip]
            let cell = Cell { mbps, queue_ms, rtt_us, loss_pct, burst, receivers, narrow, busy, stranger };
            let verdict = cell.run(seed, false);
            let line = verdict.line();
            assert!(verdict.utilisation >= 0.95, "SEED={seed} {line}");
            assert!(verdict.rate_most <= 2.5, "SEED={seed} {line}");
        }
    }
}

#[test]
fn a_rate_that_changes_is_followed_within_two_seconds() {
    for rtt_us in [200, 50_000] {
        for receivers in [1, 8] {
            let bed = Bed { rtt_us, receivers, ..Bed::BASE };
            let (down, up) = bed.change(20);
            assert!(down >= 0.9 && up >= 0.9, "{bed:?}: {down:.3} {up:.3}");
        }
    }
}

/// Who comes second finds the queue half full and takes that for the path's delay, overflows it for seconds without seeing
/// it, and keeps more of the link: 66:34, 70:30 and 70:30 without what RATE-7 does on long ways.
/// What is believed of the queue grows while it is never full; once it grew without end, and 32 minutes were the end.
#[test]
fn an_hour_alone_is_like_a_minute() {
    let bed = Bed { mbps: 2, queue_ms: 100, receivers: 1, ..Bed::BASE };
    let (alone, slower) = bed.lasting(3600);
    assert!(alone > 0.98 && slower > 0.95, "{alone:.3} {slower:.3}");
}

#[test]
fn who_joins_a_full_link_does_not_keep_more_of_it() {
    for (rtt_us, seed) in [(50_000, 60), (100_000, 14), (100_000, 46)] {
        let bed = Bed { mbps: 50, queue_ms: 5, rtt_us, receivers: 1, seed, ..Bed::BASE };
        let (larger, used) = bed.two();
        assert!(larger < 0.6 && used > 0.98, "{bed:?}: {larger:.3} {used:.3}");
    }
}

/// Who begins on a full link sees a queue that does not grow, and losses that might be chance: two such samples end the
/// start. When it went on by doubling, the first came down to 0.18 of what both had, in the mean.
#[test]
fn who_begins_on_a_full_link_leaves_the_first_its_share() {
    let bed = Bed { mbps: 50, queue_ms: 10, rtt_us: 100_000, receivers: 1, ..Bed::BASE };
    let least: Vec<_> = (1..=6).map(|seed| Bed { seed, ..bed }.joined().least).collect();
    assert!(least.iter().sum::<f64>() >= 6.0 * 0.4, "{least:?}");
}

/// Who comes second has never seen the queue empty, and is told by the other that there is one: the shares are even after 4 s
/// in the mean, and after 11 s when it does not look for what is hidden (RATE-8).
#[test]
fn a_queue_that_another_tells_of_is_looked_for() {
    let bed = Bed { mbps: 100, queue_ms: 20, rtt_us: 200, receivers: 2, ..Bed::BASE };
    let after: Vec<_> = (1..=6).map(|seed| Bed { seed, ..bed }.even_after()).collect();
    assert!(after.iter().sum::<u64>() <= 6 * 7, "seconds: {after:?}");
}

/// Who comes second hides most of a short queue from itself, and what it loses there looks like chance: the first came down to
/// 0.15 of the link, in the mean of 40 runs, while the hidden part was looked for a second later, and not again within four.
#[test]
fn a_hidden_queue_is_looked_for_before_its_losses_are_taken_for_chance() {
    let bed = Bed { mbps: 50, queue_ms: 10, rtt_us: 10_200, receivers: 1, ..Bed::BASE };
    let joined: Vec<_> = (1..=8).map(|seed| Bed { seed, ..bed }.joined()).collect();
    assert!(joined.iter().map(|j| j.least).sum::<f64>() >= 8.0 * 0.25, "{joined:?}");
    assert!(joined.iter().all(|j| j.back.as_secs_f64() < 6.0), "{joined:?}");
}

/// TCP keeps these queues full before the session begins: their delay looks like the path's, their losses like chance.
/// Links on which two that do not hear one another come to 72:28, 70:30 and 73:27.
#[test]
fn sessions_that_hear_one_another_divide_a_link_evenly() {
    for seed in [9014, 9020, 9028] {
        for words in [Words::Heard, Words::PassedOn] {
            let bed = Bed { words, ..Bed::random(seed) };
            let (larger, used) = bed.two();
            assert!(larger <= 0.6 && used > 0.98, "{bed:?}: {larger:.3} {used:.3}");
        }
    }
}

/// So little queue moves a share too slowly there: what was 90:10 at the start was 75:25 in the mean of 45 s.
#[test]
fn sessions_on_long_ways_come_to_even_shares_within_seconds() {
    for words in [Words::Heard, Words::PassedOn] {
        for (mbps, queue_ms, rtt_us) in [(100, 20, 200_000), (300, 50, 200_000), (100, 5, 100_000)]
        {
            let bed = Bed { mbps, queue_ms, rtt_us, words, ..Bed::BASE };
            let (larger, used) = bed.two();
            assert!(larger <= 0.6 && used > 0.98, "{bed:?}: {larger:.3} {used:.3}");
        }
    }
}

/// Whoever is heard and is behind some other link has no share of this one.
#[test]
fn a_session_heard_from_another_link_costs_nothing() {
    for (index, cell) in Cell::all().into_iter().enumerate().step_by(31) {
        let verdict = Cell { stranger: Some(Cell::STRANGER), ..cell }.run(index as u64 + 1, false);
        assert_eq!(verdict.misses(), None, "{}", verdict.line());
    }
}

#[test]
fn a_queue_that_has_always_been_full_is_noticed_and_shared() {
    for (mbps, rtt_us, queue_ms) in
        [(20, 200, 20), (20, 10_000, 5), (300, 200, 5), (38, 27_860, 24), (30, 100_000, 5)]
    {
        let bed = Bed { mbps, rtt_us, queue_ms, ..Bed::BASE };
        let beside = bed.beside_tcp(4);
        assert!(beside.tcp_of_all >= 0.25 && beside.used > 0.95, "{bed:?}: {beside:?}");
    }
}

/// A queue of ten datagrams, or a tenth of the round trip: TCP had 14, 19 and 24 % while most of such a queue was held, and
/// of one that is shorter still 12 to 19 % while 0.4 of it was, or while it was not known where it overflows.
#[test]
fn tcp_finds_room_in_a_queue_that_is_short_beside_the_round_trip() {
    for (mbps, rtt_us, queue_ms) in [
        (20, 50_000, 5),
        (30, 100_000, 7),
        (50, 100_000, 5),
        (50, 200_000, 7),
        (100, 200_000, 7),
        (10, 200_000, 10),
    ] {
        let bed = Bed { mbps, rtt_us, queue_ms, ..Bed::BASE };
        let beside = bed.beside_tcp(4);
        assert!(beside.tcp_of_all >= 0.25 && beside.used > 0.95, "{bed:?}: {beside:?}");
    }
}

#[test]
fn tfmcc_takes_a_share_like_one_tcps() {
    // Queues of seventeen datagrams and more, and of ten.
    for (mbps, rtt_us, queue_ms) in
        [(20, 200, 20), (20, 10_000, 20), (10, 4_720, 6), (15, 1_350, 7), (11, 300, 7)]
    {
        let bed = Bed { mbps, rtt_us, queue_ms, controller: Kind::Tfmcc, ..Bed::BASE };
        for flows in [1, 4] {
            let beside = bed.beside_tcp(flows);
            let share = (1.0 - beside.tcp_of_all) / (beside.tcp_of_all / flows as f64);
            let holds = (0.5..=2.0).contains(&share) && beside.used > 0.94;
            assert!(holds, "{bed:?} beside {flows}: {share:.2} {beside:?}");
        }
    }
}

/// Its polls are a round trip apart: nothing is heard for longer than half a second in each.
#[test]
fn background_finds_its_rate_over_a_way_of_more_than_half_a_second() {
    for (rtt_us, receivers) in [(600_000, 1), (600_000, 4), (900_000, 2)] {
        let (mbps, queue_ms, controller) = (10, 50, Kind::Background);
        let bed = Bed { mbps, rtt_us, queue_ms, receivers, controller, ..Bed::BASE };
        let used = bed.beside_tcp(0).used;
        assert!(used >= 0.5, "{bed:?}: {used:.3}");
    }
}

#[test]
fn background_leaves_nearly_all_to_tcp_and_uses_what_is_free() {
    for (mbps, rtt_us, queue_ms) in
        [(20, 200, 20), (20, 10_000, 20), (20, 50_000, 50), (100, 200, 5), (300, 50_000, 5)]
    {
        let bed = Bed { mbps, rtt_us, queue_ms, controller: Kind::Background, ..Bed::BASE };
        for flows in [1, 4] {
            let kept = bed.beside_tcp(flows).tcp / bed.tcp_alone(flows);
            assert!(kept >= 0.95, "{bed:?} beside {flows}: {kept:.3}");
        }
        let alone = bed.beside_tcp(0).used;
        assert!(alone >= 0.6, "{bed:?} alone: {alone:.3}");
    }
}

/// A session alone on a link of 100 Mbit/s, for ten seconds or until so many datagrams have come to all.
fn alone(
    controller: Box<dyn RateController>,
    receivers: Vec<ReceiverSetup>,
    packets: u64,
) -> Outcome {
    let (rate, queue) = (Rate::from_mbps(100), Duration::from_millis(20));
    let session = SessionSetup {
        start: Duration::ZERO,
        controller,
        receivers,
        packets,
        answers: Answers::default(),
        hiccups: Hiccups::NONE,
        fed_from: Duration::ZERO,
        trace: false,
    };
    let report = run(Setup {
        seed: 1,
        shared: LinkConfig::bottleneck(rate, queue, Duration::ZERO),
        changes: Vec::new(),
        sessions: vec![session],
        cubic_rtts: Vec::new(),
        words: Words::None,
        stranger: None,
        counted_from: Duration::ZERO,
        end: Duration::from_secs(10),
    });
    report.sessions.into_iter().next().unwrap()
}

const fn receiver(rtt: Duration) -> ReceiverSetup {
    let (own, loss, drift_ppm, step) = (None, Loss::None, 0.0, None);
    ReceiverSetup { rtt, own, loss, drift_ppm, step, noise: Noise::NONE, hiccups: Hiccups::NONE }
}

#[test]
fn what_is_on_its_way_has_not_arrived() {
    let rtt = Duration::from_millis(300);
    let fixed = Box::new(Fixed::new(Rate::from_mbps(90)));
    let outcome = alone(fixed, vec![receiver(rtt / 3), receiver(rtt)], 10);
    // Half a round trip to the farther one.
    let wall = outcome.wall.unwrap();
    assert!(wall > rtt / 2 && wall < rtt / 2 + Duration::from_millis(10), "{wall:?}");
    assert_eq!(outcome.bins[0], 0);
    assert!(outcome.bins[1] >= 10, "{:?}", outcome.bins);
}

/// A virtual machine that is paused for a snapshot has a clock that is behind from then on: to all receivers it looks like a
/// queue, until they forget what was before (`docs/protocol.md#FB-7`). The rate came down to less than 1 Mbit/s.
#[test]
fn a_sender_whose_clock_has_stood_still_sees_no_queue() {
    let seconds = Duration::from_secs;
    for (rtt_us, step_ms) in [(300, 300), (20_000, 30), (20_000, 100), (100_000, 300)] {
        let controllers: [Box<dyn RateController>; 2] =
            [Box::new(Auto::new(Timestamp::ZERO)), Box::new(Background::new(Timestamp::ZERO))];
        for controller in controllers {
            let rtt = Duration::from_micros(rtt_us);
            let step = Some((seconds(5), Duration::from_millis(step_ms)));
            let receivers = vec![ReceiverSetup { step, ..receiver(rtt) }; 2];
            let outcome = alone(controller, receivers, u64::MAX);
            let before = outcome.rate_between(seconds(3), seconds(5));
            let after = outcome.rate_between(seconds(6), seconds(10));
            assert!(after > before.scale(0.9), "{rtt:?} {step_ms} ms: {before}, {after}");
        }
    }
}
