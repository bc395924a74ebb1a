//! The sending machine alone, in situations that a network brings seldom.

use downpour_proto::rate::Fixed;
use downpour_proto::sender::{Delivery, Work, WorkDone};
use downpour_proto::wire::{Feedback, Kind, Need};
use downpour_proto::{
    BlockId, Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, ReceiverId, Round,
    Sender, SenderConfig, StreamId, Timestamp,
};

const GEOMETRY: Geometry = Geometry { block_symbols: 256, ..Geometry::IPV4 };

/// One that has so many members on the stream, who say nothing by themselves.
fn sender(members: u32, initial_rtt: Duration, rate: Rate) -> Sender {
    let now = Timestamp::ZERO;
    let config = SenderConfig {
        geometry: GEOMETRY,
        stream: StreamId(1),
        epoch: Epoch(0),
        rate: Box::new(Fixed::new(rate)),
        recovery: Box::new(Parity::default()),
        initial_rtt,
        window_blocks: 64,
        pull_share: PULL_SHARE_DEFAULT,
    };
    let mut sender = Sender::new(config, now);
    (1..=members).for_each(|id| assert!(sender.join(now, ReceiverId(id), Delivery::Stream)));
    sender
}

/// Offers so many full blocks and starts.
fn start(sender: &mut Sender, now: Timestamp, blocks: u32) {
    let block = |number| BlockId::data(number).expect("small");
    (0..blocks).for_each(|n| sender.offer(now, block(n), GEOMETRY.block_symbols));
    sender.start(now);
}

/// Goes on until then; how many advertisements it sent.
fn run(sender: &mut Sender, from: Timestamp, until: Timestamp) -> usize {
    let (mut now, mut adverts, mut message) = (from, 0, Vec::new());
    loop {
        while let Some(transmit) = sender.poll_transmit(now, &mut message) {
            adverts += usize::from(transmit.header.kind == Kind::Advert);
        }
        while sender.poll_event().is_some() {}
        if let Some(work) = sender.poll_work() {
            let done = match work {
                Work::Load { block, .. } => WorkDone::Loaded { block, tail: GEOMETRY.symbol_len },
                Work::Encode { block, from, count } => {
                    WorkDone::Encoded { block, until: from + count }
                }
                Work::Release { .. } => continue,
            };
            sender.handle_work(now, done);
            continue;
        }
        let next = sender.poll_timeout().map_or(until, |deadline| deadline.at.max(now));
        if next >= until {
            return adverts;
        }
        now = next;
        sender.handle_timeout(now);
    }
}

/// Who joins and cannot hear the stream is probed for a while, and there may be many.
#[test]
fn what_was_probed_with_before_the_start_does_not_delay_the_data() {
    let mut sender = sender(1, Duration::from_millis(2), Rate::from_mbps(1));
    let (mut now, mut message) = (Timestamp::ZERO, Vec::new());
    for _ in 0..400 {
        now = now + Duration::from_millis(25);
        sender.probe(now);
        assert!(sender.poll_transmit(now, &mut message).is_some());
    }
    start(&mut sender, now, 1);
    run(&mut sender, now, now + Duration::from_secs(1));
    assert!(sender.stats().source_symbols > 60, "{:?}", sender.stats());
}

/// `docs/protocol.md#CTL-2`: the owner asks for one each time that it hears of somebody, and every 25 ms.
#[test]
fn probes_keep_to_the_ceiling_and_two_come_while_a_receiver_listens_where_they_can() {
    let ms = Duration::from_millis;
    let probed = |ceiling: Option<Rate>, time: Duration| {
        let mut sender = sender(1, ms(2), Rate::from_mbps(100));
        ceiling.inspect(|ceiling| sender.set_ceiling(Timestamp::ZERO, *ceiling));
        let (mut now, mut message, mut bytes, mut probes) = (Timestamp::ZERO, Vec::new(), 0, 0);
        while now.since(Timestamp::ZERO) < time {
            sender.probe(now);
            if let Some(transmit) = sender.poll_transmit(now, &mut message) {
                (bytes, probes) = (bytes + transmit.datagram_len() as u64, probes + 1);
            }
            now = now + ms(25);
        }
        // The first has its time before it.
        (probes, Rate::of(bytes - bytes / probes, time))
    };
    assert_eq!(probed(None, ms(1_000)).0, 40);
    assert_eq!(probed(Some(Rate::from_mbps(1)), ms(1_000)).0, 40);
    for kbps in [8, 12, 17, 20, 32, 64, 80, 200] {
        let ceiling = Rate::from_bps(kbps * 1_000);
        let (probes, rate) = probed(Some(ceiling), ms(60_000));
        assert!(rate <= ceiling, "{probes} probes, {rate} of {ceiling}");
        assert!(kbps < 40 || rate <= ceiling.scale(0.51), "{probes} probes, {rate} of {ceiling}");
        let least = if kbps < 17 { 1 } else { 2 };
        let (heard, _) = probed(Some(ceiling), ms(1_500));
        assert!(heard >= least, "{heard} at {ceiling}");
    }
}

/// `docs/protocol.md#FB-6`: these may all ask at once, so nothing is won by a long round.
#[test]
fn who_need_not_back_off_begin_with_the_guess_and_more_with_what_their_joins_show() {
    let ms = Duration::from_millis;
    for (others, begins) in [(0, ms(20)), (15, ms(20)), (16, ms(200))] {
        let mut sender = sender(others, ms(20), Rate::from_mbps(10));
        sender.expect_round_trip(ms(200));
        assert_eq!(sender.grtt(), begins, "{others}");
    }
}

/// `docs/protocol.md#PULL-4`.
#[test]
fn stream_and_pulls_keep_to_the_ceiling_together() {
    let (now, ceiling) = (Timestamp::ZERO, Rate::from_mbps(100));
    let mut sender = sender(1, Duration::from_millis(2), Rate::from_mbps(200));
    start(&mut sender, now, 80);
    sender.set_ceiling(now, ceiling);
    assert_eq!(sender.shares().stream, ceiling, "nobody pulls");
    assert!(sender.join(now, ReceiverId(2), Delivery::Pull));
    let later = now + Duration::from_millis(100);
    run(&mut sender, now, later);
    let shares = sender.shares();
    assert_eq!(shares.stream, Rate::from_mbps(98));
    let both = shares.stream.bps() + shares.pulls.bps();
    assert!((ceiling.bps() - 1..=ceiling.bps()).contains(&both), "{shares:?}");
    sender.set_delivery(later, ReceiverId(2), Delivery::Ended);
    assert_eq!(sender.shares().stream, ceiling, "nobody pulls any more");
}

/// However close together the requests are (`docs/protocol.md#FB-4`).
#[test]
fn one_advertisement_leaves_in_a_quarter_of_a_round_trip() {
    let mut sender = sender(20, Duration::from_millis(40), Rate::from_mbps(100));
    start(&mut sender, Timestamp::ZERO, 80);
    let mut now = Timestamp::ZERO + Duration::from_millis(300);
    let mut adverts = run(&mut sender, Timestamp::ZERO, now);
    assert_eq!(adverts, 0, "nobody has asked");
    for n in 0..100 {
        // Each asks for one more than is planned. What is said of no round tells no round trip.
        let block = BlockId::data(n % 4).expect("small");
        let needs = vec![Need { block, planned: 256, count: n as u16 / 4 + 1 }];
        let mut body = Vec::new();
        Feedback { round: Round(0), needs, ..SAYS_NOTHING }.emit(&mut body);
        sender.handle_feedback(now, now, ReceiverId(n % 20 + 1), &body).expect("well formed");
        let next = now + Duration::from_millis(2);
        adverts += run(&mut sender, now, next);
        now = next;
        sender.handle_timeout(now);
    }
    assert_eq!(sender.stats().nacks_refused, 0);
    assert!((15..=21).contains(&adverts), "{adverts} in twenty quarters");
}

/// Each time the one in the middle is heard when no other is, and all others are when it is not. Where these lose as much, it
/// is no more in trouble than they (`docs/protocol.md#STRAG-2`).
#[test]
fn one_that_loses_far_more_leaves_also_where_it_is_never_heard_together_with_another() {
    let ms = Duration::from_millis;
    for (others_get, stays) in [(10, Delivery::Pull), (6, Delivery::Stream)] {
        let mut sender = sender(3, ms(400), Rate::from_mbps(10));
        start(&mut sender, Timestamp::ZERO, 80);
        let (mut now, others, lossy) = (Timestamp::ZERO, [1, 3].map(ReceiverId), ReceiverId(2));
        let mut after = |sender: &mut Sender, wait| {
            let next = now + wait;
            run(sender, now, next);
            now = next;
            sender.handle_timeout(now);
            now
        };
        for _ in 0..10 {
            let at = after(&mut sender, ms(250));
            let (round, sent) = (sender.round(), sender.packet().0);
            for id in others {
                report(&mut sender, at, id, (round, sent * others_get / 10));
            }
            let at = after(&mut sender, ms(250));
            report(&mut sender, at, lossy, (round, sent * 6 / 10));
        }
        let delivery = |id| sender.member(id).expect("it has joined").delivery;
        assert_eq!(delivery(lossy), stays);
        let ever = sender.member(lossy).expect("it has joined").loss_ever;
        assert!((ever - 0.4).abs() < 0.03, "{ever}");
        assert_eq!(others.map(delivery), [Delivery::Stream; 2]);
    }
}

/// A firewall at the sender lets nothing in by UDP; of a large group few are asked each time (`docs/protocol.md#STRAG-3`).
#[test]
fn a_large_group_of_which_nobody_is_heard_pulls() {
    let all = 40;
    // The answer of one is enough, whoever else is silent for long; but not one to no poll that is known, or to one of long ago.
    type Answer = fn(&Sender) -> Option<Round>;
    let cases: [(Answer, u32); 4] = [
        (|_| None, 0),
        (|sender| Some(sender.round()), all),
        (|_| Some(Round(0)), 0),
        // The last eight are asked one by one from then on.
        (|_| Some(Round(9)), 8),
    ];
    for (answer, stay) in cases {
        let mut sender = sender(all, Duration::from_millis(2), Rate::from_mbps(10));
        let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
        start(&mut sender, at(0), 80);
        run(&mut sender, at(0), at(4));
        for secs in 4..30 {
            if let Some(round) = answer(&sender) {
                report(&mut sender, at(secs), ReceiverId(all), (round, 9));
            }
            run(&mut sender, at(secs), at(secs + 1));
        }
        let member = |id| sender.member(ReceiverId(id)).expect("it has joined");
        let stayed = (1..=all).filter(|id| member(*id).delivery == Delivery::Stream).count();
        assert_eq!(stayed, stay as usize);
    }
}

/// It may be slow to answer, or not have been asked yet.
#[test]
fn who_comes_to_a_large_group_has_its_time_to_be_heard() {
    let mut sender = sender(20, Duration::from_millis(2), Rate::from_mbps(10));
    let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
    start(&mut sender, at(0), 80);
    run(&mut sender, at(0), at(4));
    (21..=40).for_each(|id| assert!(sender.join(at(4), ReceiverId(id), Delivery::Stream)));
    run(&mut sender, at(4), at(9));
    let member = |id| sender.member(ReceiverId(id)).expect("it has joined");
    assert!((1..=40).all(|id| member(id).delivery == Delivery::Stream));
}

fn report(sender: &mut Sender, now: Timestamp, from: ReceiverId, (round, received): (Round, u64)) {
    let mut body = Vec::new();
    Feedback { round, received, polled_at: now, ..SAYS_NOTHING }.emit(&mut body);
    sender.handle_feedback(now, now, from, &body).expect("well formed");
}

const SAYS_NOTHING: Feedback = Feedback {
    round: Round(0),
    hold: Duration::ZERO,
    queue: Duration::ZERO,
    path_queue: Duration::ZERO,
    polled_at: Timestamp::ZERO,
    received: 0,
    host_drops: 0,
    data_held: 0,
    needs: Vec::new(),
};
