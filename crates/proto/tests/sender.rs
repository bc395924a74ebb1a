//! The sending machine alone, in situations that a network brings seldom.

use downpour_proto::rate::Fixed;
use downpour_proto::sender::{Delivery, Work, WorkDone};
use downpour_proto::{
    BlockId, Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, ReceiverId, Sender,
    SenderConfig, StreamId, Timestamp,
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

/// Goes on until then.
fn run(sender: &mut Sender, from: Timestamp, until: Timestamp) {
    let (mut now, mut message) = (from, Vec::new());
    loop {
        while sender.poll_transmit(now, &mut message).is_some() {}
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
            return;
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
