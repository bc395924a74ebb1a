//! The receiving machine alone, in situations that a network brings seldom.

use downpour_proto::rate::Load;
use downpour_proto::receiver::{Disposition, Event, Pull, Work, WorkDone};
use downpour_proto::wire::{Feedback, Header, Kind, OpenBlock, ParseError, Poll, Presence};
use downpour_proto::{
    BlockId, Code, Duration, Epoch, Geometry, PacketNumber, Rate, Receiver, ReceiverConfig,
    ReceiverId, Rng, Round, Rounds, StreamId, SymbolId, Timestamp,
};
use std::ops::Range;

const NOW: Timestamp = Timestamp::from_nanos(1_000_000);
const GEOMETRY: Geometry = Geometry { symbol_len: 2, block_symbols: 8, code: Code::Cauchy };

fn receiver() -> Receiver {
    receiver_of(false)
}

/// A receiver in a session of products, or of one manifest.
fn receiver_of(products: bool) -> Receiver {
    Receiver::new(ReceiverConfig { products, ..config() }, 1, Timestamp::ZERO)
}

fn config() -> ReceiverConfig {
    ReceiverConfig {
        geometry: GEOMETRY,
        stream: StreamId(1),
        me: ReceiverId(1),
        feedback: Box::new(Rounds),
        partial_blocks: 8,
        pulls: downpour_proto::receiver::PULLS_DEFAULT,
        resume: false,
        on_stream: true,
        greets: false,
        products: false,
    }
}

const fn header(kind: Kind) -> Header {
    Header { epoch: Epoch(0), stream: StreamId(1), packet_low: 0, kind }
}

fn symbol(receiver: &mut Receiver, number: u32, index: u16) -> Disposition {
    let block = BlockId::data(number).expect("small");
    let header = header(Kind::Symbol { block, k: 8, symbol: SymbolId::source(index) });
    receiver.handle_datagram(NOW, NOW, &header, &[0, 0]).expect("well formed")
}

fn hear(receiver: &mut Receiver, poll: &[u8]) {
    receiver.handle_datagram(NOW, NOW, &header(Kind::Poll), poll).expect("well formed");
}

fn poll(round: u32, data_end: u32, blocks: Vec<OpenBlock>) -> Vec<u8> {
    poll_limited_by(None, round, data_end, blocks)
}

fn poll_limited_by(
    clr: Option<ReceiverId>,
    round: u32,
    data_end: u32,
    blocks: Vec<OpenBlock>,
) -> Vec<u8> {
    let mut body = Vec::new();
    Poll { clr, ..poll_of(round, data_end, blocks) }.emit(&mut body);
    body
}

fn poll_of(round: u32, data_end: u32, blocks: Vec<OpenBlock>) -> Poll {
    Poll {
        round: Round(round),
        packet: PacketNumber(100),
        sent_at: Timestamp::ZERO,
        group_size: 1,
        grtt: Duration::from_millis(10),
        finished: true,
        clr: None,
        leaves: None,
        report_share: 0,
        data_end,
        manifest_end: 0,
        blocks,
    }
}

/// Listings of these data blocks, all of whose source was sent.
fn listed(numbers: Range<u32>) -> Vec<OpenBlock> {
    let block = |number| BlockId::data(number).expect("small");
    numbers.map(|n| OpenBlock { block: block(n), k: 8, sent: 8, planned: 8 }).collect()
}

#[test]
fn a_block_that_was_closed_before_any_poll_listed_it_is_pulled() {
    let mut receiver = receiver();
    let block = BlockId::data(0).expect("small");
    assert_eq!(symbol(&mut receiver, 0, 3), Disposition::Keep);
    assert_eq!(receiver.poll_work(), None, "the stream may still bring it");
    hear(&mut receiver, &poll(7, 1, Vec::new()));
    let pull = Pull::Repair { block, from: 0, until: 7 };
    assert_eq!(receiver.poll_work(), Some(Work::Pull(pull)));
}

#[test]
fn symbols_that_the_session_cannot_have_are_refused() {
    let mut receiver = receiver();
    let block = BlockId::data(0).expect("small");
    let mut hear = |k, symbol| {
        let header = header(Kind::Symbol { block, k, symbol });
        receiver.handle_datagram(NOW, NOW, &header, &[0, 0])
    };
    assert_eq!(hear(9, SymbolId::source(8)), Err(ParseError::BadField), "k above K");
    let end = GEOMETRY.code.repair_max(8);
    assert_eq!(hear(8, SymbolId::repair(end)), Err(ParseError::BadField));
    assert_eq!(hear(8, SymbolId::repair(end - 1)), Ok(Disposition::Keep));
}

/// Only a block's last source symbol, only in a session of products, and not down to nothing
/// (`docs/protocol.md#PROD-13`).
#[test]
fn no_other_symbol_may_be_short() {
    let hear = |products, symbol, len| {
        let block = BlockId::data(0).expect("small");
        let header = header(Kind::Symbol { block, k: 3, symbol });
        receiver_of(products).handle_datagram(NOW, NOW, &header, &[1; 4][..len])
    };
    let (kept, refused) = (Ok(Disposition::Keep), Err(ParseError::Truncated));
    let last = SymbolId::source(2);
    assert_eq!([0, 1, 2, 3].map(|len| hear(true, last, len)), [refused, kept, kept, refused]);
    assert_eq!([0, 1, 2, 3].map(|len| hear(false, last, len)), [refused, refused, kept, refused]);
    for symbol in [SymbolId::source(1), SymbolId::repair(0), SymbolId::repair(2)] {
        assert_eq!([1, 2, 3].map(|len| hear(true, symbol, len)), [refused, kept, refused]);
    }
}

#[test]
fn a_block_that_opened_after_the_newest_poll_is_waited_for() {
    let mut receiver = receiver();
    hear(&mut receiver, &poll(7, 0, Vec::new()));
    assert_eq!(symbol(&mut receiver, 0, 3), Disposition::Keep);
    assert_eq!(receiver.poll_work(), None);
}

#[test]
fn a_block_that_had_to_go_is_not_begun_anew_by_late_symbols() {
    let mut receiver = receiver();
    (0..8).for_each(|number| assert_eq!(symbol(&mut receiver, number, 0), Disposition::Keep));
    hear(&mut receiver, &poll(7, 8, listed(0..8)));
    hear(&mut receiver, &poll(8, 9, Vec::new()));
    assert_eq!(symbol(&mut receiver, 8, 0), Disposition::Keep, "there is room: block 0 goes");
    assert_eq!(symbol(&mut receiver, 0, 1), Disposition::Drop);
    let work: Vec<Work> = std::iter::from_fn(|| receiver.poll_work()).collect();
    let block = BlockId::data(0).expect("small");
    assert!(work.contains(&Work::Forget { block }), "{work:?}");
    assert!(work.contains(&Work::Pull(Pull::Bytes { block })), "{work:?}");
}

/// What is being sent, or repaired, is not thrown away for what comes next. That waits for a place (`docs/protocol.md#PULL-1`),
/// but when it comes before there is one, it is left to a pull (`#PULL-3`), and the sender is told (`#FB-7`).
#[test]
fn when_all_room_is_taken_only_what_the_newest_poll_has_closed_goes() {
    let mut receiver = receiver();
    let block = |number| BlockId::data(number).expect("small");
    (0..8).for_each(|number| assert_eq!(symbol(&mut receiver, number, 0), Disposition::Keep));
    hear(&mut receiver, &poll(1, 8, listed(0..8)));
    hear(&mut receiver, &poll(2, 9, listed(0..9)));
    assert_eq!(receiver.poll_work(), None);
    assert!((0..8).all(|number| receiver.is_collecting(block(number))));
    (0..4).for_each(|index| assert_eq!(symbol(&mut receiver, 8, index), Disposition::Drop));
    assert_eq!(receiver.stats().no_room, 4);
    hear(&mut receiver, &poll(3, 10, listed(0..10)));
    hear(&mut receiver, &poll(4, 10, listed(1..10)));
    assert!((1..8).chain([9]).all(|number| receiver.is_collecting(block(number))));
    assert_eq!(symbol(&mut receiver, 8, 4), Disposition::Drop);
    let work: Vec<Work> = std::iter::from_fn(|| receiver.poll_work()).collect();
    let pull = |number| Work::Pull(Pull::Bytes { block: block(number) });
    assert_eq!(work, [Work::Forget { block: block(0) }, pull(0), pull(8)]);
}

/// A member may make up symbols of any block: nothing is kept of those.
#[test]
fn what_finds_no_room_is_left_to_a_pull_only_if_it_may_have_been_opened() {
    let mut receiver = receiver();
    (0..8).for_each(|number| assert_eq!(symbol(&mut receiver, number, 0), Disposition::Keep));
    hear(&mut receiver, &poll(1, 8, listed(0..8)));
    for made_up in [1000, 8] {
        assert_eq!(symbol(&mut receiver, made_up, 0), Disposition::Drop);
    }
    hear(&mut receiver, &poll(2, 1001, Vec::new()));
    assert_eq!(symbol(&mut receiver, 8, 1), Disposition::Drop, "it is pulled");
    assert_eq!(symbol(&mut receiver, 1000, 1), Disposition::Keep);
}

/// Ends far away cost no more than near ones: with a look at each block up to there this would take hours.
#[test]
fn ends_that_nothing_has_reached_are_not_searched_through() {
    let mut receiver = receiver();
    receiver.update_ends(NOW, BlockId::NUMBER_END, 0, true);
    for round in 1..2_000 {
        hear(&mut receiver, &poll(round, 1, Vec::new()));
        while let Some(work) = receiver.poll_work() {
            assert!(matches!(work, Work::Pull(Pull::Bytes { block }) if block.number() == 0));
        }
    }
}

/// What is held from before may be found when the block is on its way to the store, or there: too late.
#[test]
fn what_was_held_is_of_no_use_once_the_stream_has_brought_the_block() {
    let mut receiver = receiver();
    let block = BlockId::data(0).expect("small");
    assert!(!receiver.is_collecting(block), "nothing is begun");
    symbol(&mut receiver, 0, 0);
    assert!(receiver.is_collecting(block));
    (1..8).for_each(|index| {
        symbol(&mut receiver, 0, index);
    });
    assert!(
        std::iter::from_fn(|| receiver.poll_work()).any(|w| matches!(w, Work::Complete { .. }))
    );
    assert!(!receiver.is_collecting(block), "it is being completed");
    receiver.handle_work(NOW, WorkDone::Stored(block));
    assert!(!receiver.is_collecting(block) && receiver.partial_blocks() == 0);
    receiver.seeded(NOW, block, std::slice::from_ref(&(0..8)));
    assert_eq!(receiver.partial_blocks(), 0, "nothing begins anew");
    // All that the driver is told is to forget what it may have.
    let forget = |work| matches!(work, Work::Forget { block: b } if b == block);
    assert!(std::iter::from_fn(|| receiver.poll_work()).all(forget));
}

#[test]
fn a_block_that_must_come_again_is_not_held_because_it_was_just_stored() {
    for forgotten in [false, true] {
        let mut receiver = receiver();
        let block = BlockId::data(0).expect("small");
        assert!(receiver.pulled_bytes(NOW, block, 8), "it is stored now");
        if forgotten {
            receiver.forgotten(NOW, block);
        }
        receiver.handle_work(NOW, WorkDone::Stored(block));
        assert_eq!(receiver.holds(block), !forgotten);
    }
}

#[test]
fn what_is_not_stored_counts_as_under_way() {
    let mut receiver = receiver();
    receiver.set_on_stream(NOW, false);
    receiver.set_pulls(NOW, 3);
    receiver.update_ends(NOW, 100, 0, true);
    let asked = |receiver: &mut Receiver| {
        receiver.handle_timeout(NOW);
        let pull = |work| matches!(work, Work::Pull(_));
        std::iter::from_fn(|| receiver.poll_work()).filter(|work| pull(*work)).count()
    };
    assert_eq!(asked(&mut receiver), 3);
    let block = |number| BlockId::data(number).expect("small");
    (0..3).for_each(|number| assert!(receiver.pulled_bytes(NOW, block(number), 8)));
    assert_eq!(asked(&mut receiver), 0, "all are here, and none is stored");
    receiver.handle_work(NOW, WorkDone::Stored(block(1)));
    assert_eq!(asked(&mut receiver), 1);
    receiver.set_pulls(NOW, 5);
    assert_eq!(asked(&mut receiver), 2);
    receiver.set_pulls(NOW, 2);
    (2..5).for_each(|number| receiver.handle_work(NOW, WorkDone::Stored(block(number))));
    assert_eq!(asked(&mut receiver), 0);
    receiver.handle_work(NOW, WorkDone::Stored(block(0)));
    assert_eq!(asked(&mut receiver), 1);
}

/// The way to it may have been lost, which only its own messages open again (`docs/protocol.md#WAN-5`).
#[test]
fn who_greets_goes_on_when_the_stream_is_lost_until_it_is_told_to_leave() {
    let mut receiver =
        Receiver::new(ReceiverConfig { greets: true, ..config() }, 1, Timestamp::ZERO);
    hear(&mut receiver, &poll(7, 0, Vec::new()));
    let mut now = NOW;
    let mut message = Vec::new();
    let mut greetings = |receiver: &mut Receiver, ms: u32| {
        let mut count = 0;
        for _ in 0..ms / 10 {
            now = now + Duration::from_millis(10);
            receiver.handle_timeout(now);
            while receiver.poll_transmit(now, &mut message).is_some() {
                count += u32::from(Feedback::parse(&message).unwrap().round == Round(0));
            }
        }
        count
    };
    greetings(&mut receiver, 2500);
    // One datagram that came through is not the stream.
    let (at, block) = (NOW + Duration::from_millis(2500), BlockId::data(0).expect("small"));
    let symbol = header(Kind::Symbol { block, k: 8, symbol: SymbolId::source(0) });
    receiver.handle_datagram(at, at, &symbol, &[0, 0]).expect("well formed");
    greetings(&mut receiver, 1500);
    let lost = std::iter::from_fn(|| receiver.poll_event()).any(|e| e == Event::StreamLost);
    assert!(lost);
    assert!((18..=21).contains(&greetings(&mut receiver, 2000)));
    receiver.set_on_stream(NOW + Duration::from_secs(6), false);
    assert_eq!(greetings(&mut receiver, 2000), 0);
    receiver.set_on_stream(NOW + Duration::from_secs(8), true);
    greetings(&mut receiver, 4000);
    assert!(greetings(&mut receiver, 1000) > 8);
    let at = NOW + Duration::from_secs(13);
    let poll = poll(8, 0, Vec::new());
    receiver.handle_datagram(at, at, &header(Kind::Poll), &poll).expect("well formed");
    assert!(std::iter::from_fn(|| receiver.poll_event()).any(|e| e == Event::StreamHeard));
    assert_eq!(greetings(&mut receiver, 500), 0);
}

/// A poll that comes through names who leaves (`docs/protocol.md#STRAG-5`): that is no way back to the stream.
#[test]
fn who_has_lost_the_stream_leaves_it_too_when_a_poll_says_so() {
    let mut receiver = receiver();
    hear(&mut receiver, &poll(7, 0, Vec::new()));
    let mut now = NOW;
    let mut events = |receiver: &mut Receiver, poll: Poll| {
        (0..500).for_each(|_| {
            now = now + Duration::from_millis(10);
            receiver.handle_timeout(now);
        });
        let mut body = Vec::new();
        poll.emit(&mut body);
        let lost: Vec<Event> = std::iter::from_fn(|| receiver.poll_event()).collect();
        receiver.handle_datagram(now, now, &header(Kind::Poll), &body).expect("well formed");
        let heard: Vec<Event> = std::iter::from_fn(|| receiver.poll_event()).collect();
        (lost, heard)
    };
    let lost = vec![Event::StreamQuiet, Event::StreamLost];
    let heard = events(&mut receiver, poll_of(8, 0, Vec::new()));
    assert_eq!(heard, (lost.clone(), vec![Event::StreamHeard]));
    let leaves = |round| Poll { leaves: Some(ReceiverId(1)), ..poll_of(round, 0, Vec::new()) };
    assert_eq!(events(&mut receiver, leaves(9)), (lost, vec![Event::LeaveStream]));
    for (round, says) in [(10, leaves(10)), (11, poll_of(11, 0, Vec::new()))] {
        assert_eq!(events(&mut receiver, says), (vec![], vec![]), "round {round}");
    }
}

/// A switch may be gone for longer, or an interface (`docs/protocol.md#STRAG-4`).
#[test]
fn who_has_lost_the_stream_joins_anew_until_it_is_heard_or_told_to_leave() {
    let mut receiver = receiver();
    hear(&mut receiver, &poll(7, 0, Vec::new()));
    let mut now = NOW;
    let mut events = |receiver: &mut Receiver, secs: u32| {
        (0..secs * 10).for_each(|_| {
            now = now + Duration::from_millis(100);
            receiver.handle_timeout(now);
        });
        std::iter::from_fn(|| receiver.poll_event()).collect::<Vec<Event>>()
    };
    assert_eq!(events(&mut receiver, 5), [Event::StreamQuiet, Event::StreamLost]);
    assert_eq!(events(&mut receiver, 40), [Event::StreamQuiet; 4]);
    let (at, poll) = (NOW + Duration::from_secs(45), poll(8, 0, Vec::new()));
    receiver.handle_datagram(at, at, &header(Kind::Poll), &poll).unwrap();
    let after = [Event::StreamHeard, Event::StreamQuiet, Event::StreamLost, Event::StreamQuiet];
    assert_eq!(events(&mut receiver, 14), after);
    receiver.set_on_stream(NOW + Duration::from_secs(59), false);
    assert_eq!(events(&mut receiver, 40), []);
}

/// A stream of full blocks, poll by poll.
struct Stream {
    now: Timestamp,
    round: u32,
    sent: u32,
}

impl Stream {
    /// Polls, each a tenth of a second after so many symbols; `comes` says of each datagram what of it comes.
    fn run(
        &mut self,
        receiver: &mut Receiver,
        (polls, symbols): (u32, u32),
        mut comes: impl FnMut(Kind) -> Option<usize>,
    ) -> Vec<Event> {
        for _ in 0..polls {
            for _ in 0..symbols {
                let block = BlockId::data(self.sent / 8).expect("small");
                let symbol = SymbolId::source((self.sent % 8) as u16);
                self.sent += 1;
                let kind = Kind::Symbol { block, k: 8, symbol };
                if let Some(len) = comes(kind) {
                    let body = &[1; 2][..len];
                    receiver.handle_datagram(self.now, self.now, &header(kind), body).unwrap();
                }
            }
            self.now = self.now + Duration::from_millis(100);
            self.round += 1;
            receiver.handle_timeout(self.now);
            if comes(Kind::Poll).is_some() {
                let newest = self.sent / 8;
                let mut blocks = listed(newest.saturating_sub(6)..newest);
                let (block, sent) = (BlockId::data(newest).unwrap(), (self.sent % 8) as u16);
                blocks.push(OpenBlock { block, k: 8, sent, planned: 8 });
                let mut body = Vec::new();
                let packet = PacketNumber((self.sent + self.round).into());
                Poll { packet, ..poll_of(self.round, newest + 1, blocks) }.emit(&mut body);
                receiver.handle_datagram(self.now, self.now, &header(Kind::Poll), &body).unwrap();
            }
            while let Some(work) = receiver.poll_work() {
                if let Work::Complete { block, .. } = work {
                    receiver.handle_work(self.now, WorkDone::Stored(block));
                }
            }
        }
        std::iter::from_fn(|| receiver.poll_event()).collect()
    }
}

/// The way takes what is short, polls and a product's last symbol, and nothing that is longer
/// (`docs/protocol.md#STRAG-4`).
#[test]
fn who_is_told_of_many_symbols_and_gets_none_has_lost_the_stream_until_one_comes() {
    let mut receiver = receiver_of(true);
    let mut stream = Stream { now: NOW, round: 0, sent: 0 };
    let all = |kind| Some(if kind == Kind::Poll { 0 } else { 2 });
    let short = |kind| match kind {
        Kind::Poll => Some(0),
        Kind::Symbol { k, symbol, .. } => (symbol == SymbolId::source(k - 1)).then_some(1),
        _ => None,
    };
    assert_eq!(stream.run(&mut receiver, (50, 4), all), []);
    assert_eq!(stream.run(&mut receiver, (10, 8), short), [], "for 1 s");
    assert_eq!(stream.run(&mut receiver, (2, 8), short), [Event::SymbolsLost]);
    let lost = receiver.loss_ever();
    assert_eq!(stream.run(&mut receiver, (50, 4), short), [], "polls are not the stream");
    let lost_more = receiver.loss_ever() - lost;
    assert!(lost_more.abs() < 1e-9, "{lost_more}: it does not follow");
    assert_eq!(stream.run(&mut receiver, (60, 0), short), [Event::StreamQuiet], "joined anew");
    assert_eq!(stream.run(&mut receiver, (2, 4), all), [Event::StreamHeard]);
    assert_eq!(stream.run(&mut receiver, (20, 4), short), []);
    assert_eq!(stream.run(&mut receiver, (900, 0), short), [], "nothing is sent for long");
}

#[test]
fn a_way_that_loses_much_has_not_lost_the_stream() {
    for seed in 0..100 {
        let mut receiver = receiver();
        let mut stream = Stream { now: NOW, round: 0, sent: 0 };
        let mut rng = Rng::new(seed);
        for _ in 0..40 {
            let (polls, symbols) = ((rng.next_u64() % 60) as u32, (rng.next_u64() % 12) as u32);
            let lossy = |kind| match kind {
                _ if rng.unit() < 0.4 => None,
                Kind::Poll => Some(0),
                _ => Some(2),
            };
            let events = stream.run(&mut receiver, (polls, symbols), lossy);
            assert!(!events.contains(&Event::SymbolsLost), "seed {seed}: {events:?}");
        }
    }
}

#[test]
fn only_who_limits_the_session_passes_on_what_senders_say() {
    let mut receiver = receiver();
    let presence = |stream| {
        let load = Load { rate: Rate::from_mbps(40), queue: Duration::from_millis(3) };
        Presence { stream: StreamId(stream), load }
    };
    let mut own = Vec::new();
    presence(1).emit(&mut own);
    let hear_own = |receiver: &mut Receiver, by| {
        let header = header(Kind::Presence { receiver: by });
        let heard = receiver.handle_datagram(NOW, NOW, &header, &own);
        heard.map(|_| receiver.poll_event())
    };
    let passed_on = |receiver: &mut Receiver| {
        let mut message = Vec::new();
        let mut passed = Vec::new();
        while let Some((header, _)) = receiver.poll_transmit(NOW, &mut message) {
            if let Kind::Presence { receiver } = header.kind {
                assert_eq!(receiver, Some(ReceiverId(1)));
                passed.push(Presence::parse(&message).expect("well formed"));
            }
        }
        passed
    };
    for (round, limiting) in [(1, None), (2, Some(ReceiverId(2)))] {
        hear(&mut receiver, &poll_limited_by(limiting, round, 0, Vec::new()));
        assert_eq!(hear_own(&mut receiver, None), Ok(None));
        receiver.on_neighbour(NOW, presence(2));
        assert_eq!(passed_on(&mut receiver), []);
    }
    hear(&mut receiver, &poll_limited_by(Some(ReceiverId(1)), 3, 0, Vec::new()));
    assert_eq!(hear_own(&mut receiver, None), Ok(Some(Event::Neighbour(presence(1)))));
    assert_eq!(hear_own(&mut receiver, Some(ReceiverId(2))), Err(ParseError::UnknownType));
    receiver.on_neighbour(NOW, presence(2));
    receiver.on_neighbour(NOW, presence(1));
    receiver.on_neighbour(NOW, presence(2));
    assert_eq!(passed_on(&mut receiver), [presence(2)], "once, and not its own sender's");
    (0..1000).for_each(|stream| receiver.on_neighbour(NOW, presence(2 + stream)));
    assert!(passed_on(&mut receiver).len() < 20, "a flood stays here");
}
