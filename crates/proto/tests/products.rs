//! The sending machine in a session of products: what it sends of each symbol, and what its pauses are taken for.

use downpour_proto::rate::{Fixed, RateController, RatePhase, RateSample, RateSummary};
use downpour_proto::receiver::{self, PULLS_DEFAULT};
use downpour_proto::sender::{Delivery, Event, Work, WorkDone};
use downpour_proto::wire::{Feedback, Kind};
use downpour_proto::{
    BlockId, Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, Receiver, ReceiverConfig,
    ReceiverId, Rounds, Sender, SenderConfig, StreamId, Timestamp,
};
use std::sync::{Arc, Mutex};

const GEOMETRY: Geometry = Geometry { symbol_len: 1440, block_symbols: 16, ..Geometry::IPV4 };

/// Symbols of each block.
const K: u16 = 3;

fn config(rate: Box<dyn RateController>) -> SenderConfig {
    SenderConfig {
        geometry: GEOMETRY,
        stream: StreamId(1),
        epoch: Epoch(0),
        rate,
        recovery: Box::new(Parity::default()),
        initial_rtt: Duration::from_millis(1),
        window_blocks: 8,
        pull_share: PULL_SHARE_DEFAULT,
    }
}

/// Sends two blocks of [`K`] symbols, the last of which is zeros from `tail` on: the bodies' lengths. They must be what
/// the machine counts, and what the pacer takes time for.
fn bodies(open: bool, tail: u16) -> Vec<usize> {
    let rate = Rate::from_mbps(10);
    let mut now = Timestamp::ZERO;
    let mut sender = Sender::new(config(Box::new(Fixed::new(rate))), now);
    assert!(sender.join(now, ReceiverId(1), Delivery::Stream));
    if open {
        sender.stay_open(now);
    }
    sender.start(now);
    (0..2).for_each(|number| sender.offer(now, BlockId::data(number).expect("small"), K));
    let (mut message, mut lens, mut left) = (Vec::new(), Vec::new(), 2 * K);
    let (mut bytes, mut last_at) = (0, now);
    while left > 0 {
        while let Some(transmit) = sender.poll_transmit(now, &mut message) {
            bytes += transmit.datagram_len() as u64;
            if let Kind::Symbol { .. } = transmit.header.kind {
                lens.push(transmit.body_len);
                (left, last_at) = (left - 1, now);
            } else {
                assert_eq!(transmit.body_len, message.len());
            }
        }
        while let Some(work) = sender.poll_work() {
            if let Work::Load { block, .. } = work {
                sender.handle_work(now, WorkDone::Loaded { block, tail });
            }
        }
        while sender.poll_event().is_some() {}
        now = sender.poll_timeout().expect("there is more to come").at.max(now);
        sender.handle_timeout(now);
    }
    let stats = sender.stats();
    assert_eq!(stats.bytes, bytes);
    let full = usize::from(GEOMETRY.symbol_len) * lens.len();
    assert_eq!(stats.cut_bytes, (full - lens.iter().sum::<usize>()) as u64);
    // Bursts are of one datagram at this rate: all but the last have had their time.
    let sent = rate.bytes_in(last_at.since(Timestamp::ZERO));
    assert!(sent.abs_diff(bytes) <= 2 * 1472, "{sent} bytes' time for {bytes}");
    lens
}

/// `docs/protocol.md#PROD-13`.
#[test]
fn the_zeros_at_a_blocks_end_are_not_sent_in_a_session_of_products() {
    assert_eq!(bodies(true, 100), [1440, 1440, 100, 1440, 1440, 100]);
    assert_eq!(bodies(true, 1440), [1440; 6]);
    assert_eq!(bodies(true, 0), [1440, 1440, 1, 1440, 1440, 1], "a symbol of zeros is a symbol");
    assert_eq!(bodies(false, 100), [1440; 6], "WIRE-3");
}

/// A sender of a session of products with one member, who gets them like this.
fn opened(rate: Rate, delivery: Delivery) -> Sender {
    let now = Timestamp::ZERO;
    let mut sender = Sender::new(config(Box::new(Fixed::new(rate))), now);
    assert!(sender.join(now, ReceiverId(1), delivery));
    sender.stay_open(now);
    sender.start(now);
    sender
}

/// What leaves now is done with, and what is to be loaded or encoded is; `fails`: it cannot be. How many symbols left.
fn drain(sender: &mut Sender, now: Timestamp, fails: bool) -> u16 {
    let (mut message, mut symbols) = (Vec::new(), 0);
    loop {
        while let Some(transmit) = sender.poll_transmit(now, &mut message) {
            symbols += u16::from(matches!(transmit.header.kind, Kind::Symbol { .. }));
        }
        let Some(work) = sender.poll_work() else { return symbols };
        if let Work::Load { block, .. } = work {
            let tail = GEOMETRY.symbol_len;
            let loaded = WorkDone::Loaded { block, tail };
            sender.handle_work(now, if fails { WorkDone::LoadFailed(block) } else { loaded });
        } else if let Work::Encode { block, from, count } = work {
            sender.handle_work(now, WorkDone::Encoded { block, until: from + count });
        }
    }
}

/// An answer to the last poll that says that so many datagrams have come.
fn report(sender: &mut Sender, now: Timestamp, from: ReceiverId, received: u64) {
    let mut body = Vec::new();
    let feedback = Feedback {
        round: sender.round(),
        hold: Duration::ZERO,
        queue: Duration::ZERO,
        path_queue: Duration::ZERO,
        polled_at: now,
        received,
        host_drops: 0,
        data_held: 0,
        needs: Vec::new(),
    };
    feedback.emit(&mut body);
    sender.handle_feedback(now, now, from, &body).expect("well formed");
    assert!(sender.member(from).expect("it has joined").rtt.is_some(), "the round is known");
}

/// Polls go on in a rest, and nothing lets the pacer count them.
#[test]
fn what_left_in_a_rest_does_not_delay_what_comes_after_it() {
    let mut now = Timestamp::ZERO;
    let mut sender = opened(Rate::from_mbps(10), Delivery::Stream);
    // Of so many no single one is expected to answer, but one: of a group that is not heard at all each pulls.
    for number in 2..=9 {
        assert!(sender.join(now, ReceiverId(number), Delivery::Stream));
    }
    drain(&mut sender, now, false);
    let rested = now + Duration::from_secs(3600);
    let (mut left, mut offered_at) = (GEOMETRY.block_symbols, None);
    while left > 0 {
        if now >= rested && offered_at.is_none() {
            sender.offer(now, BlockId::data(0).unwrap(), GEOMETRY.block_symbols);
            offered_at = Some(now);
        }
        left -= drain(&mut sender, now, false);
        report(&mut sender, now, ReceiverId(1), 0);
        if left > 0 {
            now = sender.poll_timeout().expect("polls go on").at.max(now);
            sender.handle_timeout(now);
        }
    }
    let took = now.since(offered_at.expect("nothing leaves before"));
    assert!(took < Duration::from_millis(50), "{took:?}");
}

/// Who logs when blocks are sent waits for each in order.
#[test]
fn a_block_that_is_not_sent_is_told_too() {
    let (now, block) = (Timestamp::ZERO, BlockId::data(0).unwrap());
    let last = Timestamp::ZERO + Duration::from_millis(1);
    for (delivery, fails) in [(Delivery::Pull, false), (Delivery::Stream, true)] {
        let mut sender = opened(Rate::from_mbps(10), delivery);
        sender.offer(now, block, K);
        sender.handle_timeout(now);
        assert_eq!(drain(&mut sender, now, fails), 0);
        sender.handle_timeout(last);
        assert_eq!(drain(&mut sender, last, fails), 0);
        assert_eq!(sender.poll_event(), Some(Event::SourcePassed { block }), "{delivery:?}");
        assert_eq!(sender.poll_event(), None, "{delivery:?}");
    }
}

/// All fall silent at once when the sender's machine stands still. What is offered then is theirs when they are back: as
/// much as is kept for pulls would be passed over in a moment, and could not be pulled before newer products drive it out.
#[test]
fn what_waits_is_kept_for_those_who_fall_silent_for_a_moment() {
    const BLOCKS: u32 = 40;
    for back in [true, false] {
        let stood = Timestamp::ZERO + Duration::from_secs(5);
        let mut sender = opened(Rate::from_mbps(10), Delivery::Stream);
        for number in 0..BLOCKS {
            sender.offer(stood, BlockId::data(number).unwrap(), K);
        }
        let (mut passed, mut sent) = (0, 0);
        let mut run = |sender: &mut Sender, from: Timestamp, until: Timestamp| {
            let mut now = from;
            while now < until {
                drain(sender, now, false);
                report(sender, now, ReceiverId(1), 0);
                while let Some(event) = sender.poll_event() {
                    passed += u32::from(matches!(event, Event::SourcePassed { .. }));
                    sent += u32::from(matches!(event, Event::SourceSent { .. }));
                }
                now = sender.poll_timeout().expect("polls go on").at.max(now);
                sender.handle_timeout(now);
            }
            (passed, sent, now)
        };
        sender.set_delivery(stood, ReceiverId(1), Delivery::Pull);
        let (passed, _, now) = run(&mut sender, stood, stood + Duration::from_secs(1));
        assert_eq!(passed, 0, "nothing is given up within a second");
        if back {
            sender.set_delivery(now, ReceiverId(1), Delivery::Stream);
        }
        let (passed, sent, _) = run(&mut sender, now, now + Duration::from_secs(2));
        assert_eq!((passed, sent), if back { (0, BLOCKS) } else { (BLOCKS, 0) });
    }
}

/// A fixed rate that writes down what each sample is over: from when to when, and whether it counts as limited by what
/// there was to send. It says that it seeks the rate until there are so many, and takes no loss for
/// chance.
#[derive(Debug)]
struct Watch(Fixed, Arc<Mutex<Vec<(Timestamp, Timestamp, bool)>>>, usize);

impl RateController for Watch {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        let (from, until) = (sample.poll_sent - sample.send_interval, sample.poll_sent);
        self.1.lock().unwrap().push((from, until, sample.app_limited));
        self.0.on_sample(now, sample);
    }

    fn on_tick(&mut self, now: Timestamp, bytes_sent: u64) {
        self.0.on_tick(now, bytes_sent);
    }

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.0.on_receiver_gone(receiver);
    }

    fn rate(&self) -> Rate {
        self.0.rate()
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.0.set_ceiling(ceiling);
    }

    fn summary(&self) -> RateSummary {
        let (found, seeks) = (self.0.summary(), self.1.lock().unwrap().len() < self.2);
        let phase = if seeks { RatePhase::Startup } else { found.phase };
        RateSummary { phase, random_loss: 0.0, ..found }
    }
}

/// What was lost in the search is not asked for first, as a small group does of a file (`docs/protocol.md#PROD-11`).
#[test]
fn a_product_that_began_in_the_search_gets_the_repair_for_what_that_lost() {
    let (mut now, me) = (Timestamp::ZERO, ReceiverId(1));
    let watch = Watch(Fixed::new(Rate::from_mbps(10)), Arc::default(), 3);
    let mut sender = Sender::new(config(Box::new(watch)), now);
    assert!(sender.join(now, me, Delivery::Stream));
    sender.stay_open(now);
    sender.start(now);
    let mut run = |sender: &mut Sender, millis| {
        let (until, mut symbols) = (now + Duration::from_millis(millis), 0);
        while now < until {
            symbols += drain(sender, now, false);
            while sender.poll_event().is_some() {}
            now = sender.poll_timeout().expect("polls go on").at.max(now);
            sender.handle_timeout(now);
        }
        (now, symbols)
    };
    let (mut received, blocks) = (0, 0..4);
    for samples in 1..=3 {
        let (at, symbols) = run(&mut sender, 60);
        assert!(if samples < 3 { symbols == 0 } else { (1..64).contains(&symbols) }, "{symbols}");
        let sent = sender.packet().0;
        // Only what is told when the rate is found tells of losses: of a quarter of all.
        received = if samples < 3 { sent } else { received.midpoint(sent) };
        report(&mut sender, at, me, received);
        if samples == 2 {
            blocks.clone().for_each(|n| sender.offer(at, BlockId::data(n).unwrap(), 16));
        }
    }
    assert_eq!(sender.stats().proactive_symbols, 0);
    run(&mut sender, 100);
    let stats = sender.stats();
    assert!(stats.proactive_symbols >= 4, "{stats:?}");
}

/// `docs/protocol.md#PROD-9`: all that may be sent arrives, and the controller goes on seeking what it cannot find.
#[test]
fn a_ceiling_that_the_link_bears_is_not_filled_with_probes_for_more_than_a_second() {
    // Kilobytes beside the products in each second, of a sender that could do 4 Mbit/s. After the third one more comes.
    let beside = |ceiling: u64| {
        let mut now = Timestamp::ZERO;
        let watch = Watch(Fixed::new(Rate::from_mbps(4)), Arc::default(), usize::MAX);
        let mut sender = Sender::new(config(Box::new(watch)), now);
        sender.set_ceiling(now, Rate::from_mbps(ceiling));
        sender.stay_open(now);
        sender.start(now);
        let (mut second, mut before) = (1, 0);
        [1, 1, 1, 2, 2].map(|members| {
            if sender.member(ReceiverId(members)).is_none() {
                assert!(sender.join(now, ReceiverId(members), Delivery::Stream));
            }
            while now < Timestamp::ZERO + Duration::from_secs(second) {
                drain(&mut sender, now, false);
                let sent = sender.packet().0;
                (1..=members).for_each(|id| report(&mut sender, now, ReceiverId(id), sent));
                while sender.poll_event().is_some() {}
                now = sender.poll_timeout().expect("polls go on").at.max(now);
                sender.handle_timeout(now);
            }
            second += 1;
            let bytes = sender.stats().message_bytes;
            (bytes - std::mem::replace(&mut before, bytes)) / 1_000
        })
    };
    let [first, second, third, joined, last] = beside(2);
    assert!(first > 200 && joined > 200, "{first} {joined}");
    assert!(second < 60 && third < 10 && last < 60, "{second} {third} {last}");
    let above = beside(8);
    assert!(
        above.iter().all(|kilobytes| *kilobytes > 400),
        "what it takes is not known: {above:?}"
    );
}

/// The link was idle for a part of it: how long the rest took to arrive says nothing of what it can take.
#[test]
fn a_sample_that_began_in_a_pause_is_limited_by_what_there_was_to_send() {
    let samples = Arc::default();
    let (mut now, me) = (Timestamp::ZERO, ReceiverId(1));
    let rate = Box::new(Watch(Fixed::new(Rate::from_mbps(2)), Arc::clone(&samples), 0));
    let mut sender = Sender::new(config(rate), now);
    assert!(sender.join(now, me, Delivery::Stream));
    sender.stay_open(now);
    sender.start(now);
    let mut receiver = Receiver::new(
        ReceiverConfig {
            geometry: GEOMETRY,
            stream: StreamId(1),
            me,
            feedback: Box::new(Rounds),
            partial_blocks: 16,
            pulls: PULLS_DEFAULT,
            resume: false,
            on_stream: true,
            greets: false,
            products: true,
        },
        1,
        now,
    );
    let (resumed, end) = (Timestamp::from_nanos(930_000_000), Duration::from_secs(2));
    let (mut message, mut answer) = (Vec::new(), Vec::new());
    let mut is_offered = false;
    while now.since(Timestamp::ZERO) < end {
        if now >= resumed && !is_offered {
            // Most of a second of symbols, after nearly a second of nothing.
            (0..8).for_each(|number| sender.offer(now, BlockId::data(number).unwrap(), 16));
            is_offered = true;
        }
        while let Some(work) = sender.poll_work() {
            if let Work::Load { block, .. } = work {
                let tail = GEOMETRY.symbol_len;
                sender.handle_work(now, WorkDone::Loaded { block, tail });
            }
        }
        while let Some(transmit) = sender.poll_transmit(now, &mut message) {
            if let Kind::Symbol { .. } = transmit.header.kind {
                message.resize(transmit.body_len, 0);
            }
            receiver.handle_datagram(now, now, &transmit.header, &message).unwrap();
            while let Some(work) = receiver.poll_work() {
                if let receiver::Work::Complete { block, .. } = work {
                    receiver.handle_work(now, receiver::WorkDone::Stored(block));
                }
            }
            if receiver.poll_transmit(now, &mut answer).is_some() {
                sender.handle_feedback(now, now, me, &answer).unwrap();
            }
        }
        while sender.poll_event().is_some() {}
        while receiver.poll_event().is_some() {}
        let next = sender.poll_timeout().map(|due| due.at).into_iter();
        let next = next.chain(receiver.poll_timeout().map(|due| due.at));
        now = next.chain((!is_offered).then_some(resumed)).min().expect("polls go on").max(now);
        sender.handle_timeout(now);
        receiver.handle_timeout(now);
    }
    let samples = samples.lock().unwrap();
    let began_in_pause: Vec<_> =
        samples.iter().filter(|(from, until, _)| *from < resumed && *until > resumed).collect();
    assert!(!began_in_pause.is_empty(), "{samples:?}");
    assert!(began_in_pause.iter().all(|(.., limited)| *limited), "{began_in_pause:?}");
    let busy = |(from, _, limited): &&(Timestamp, Timestamp, bool)| *from > resumed && !limited;
    assert!(samples.iter().any(|sample| busy(&sample)), "{samples:?}");
}
