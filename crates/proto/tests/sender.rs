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

const SAYS_NOTHING: Feedback = Feedback {
    round: Round(0),
    hold: Duration::ZERO,
    queue: Duration::ZERO,
    polled_at: Timestamp::ZERO,
    received: 0,
    host_drops: 0,
    ce_marks: 0,
    data_held: 0,
    needs: Vec::new(),
};
