//! Stories of one sender and a few receivers on a small network in virtual time: does the engine deliver,
//! with how much repair, and does it say the right things when receivers come and go? The large networks,
//! queues and random swarms are in `downpour-sim`.

mod net;

use downpour_proto::sender::{self, Delivery};
use downpour_proto::wire::{Kind, Need, Poll};
use downpour_proto::{
    BlockId, Code, Duration, Geometry, RangeSet, Rate, ReceiverId, Rng, Sender, SenderConfig,
    Timestamp,
};
use net::{GEOMETRY, Net, config};

#[test]
fn a_clean_network_gets_the_source_and_nothing_else() {
    let mut net = Net::new(&[0.0; 4], Duration::from_millis(1), 100);
    net.offer(2_000);
    net.run(Duration::from_secs(10));
    assert!(net.complete());
    assert_eq!(net.sender.stats().repair_symbols, 0);
    assert_eq!(net.sender.stats().source_symbols, 2_000);
    assert!(net.nodes.iter().all(|n| n.machine.stats().pulls == 0));
}

#[test]
fn five_percent_loss_costs_little_more_than_itself_and_no_pull() {
    let mut net = Net::new(&[0.05; 8], Duration::from_millis(1), 100);
    net.offer(256 * 80);
    net.run(Duration::from_secs(30));
    assert!(net.complete());
    // K = 256 here: 1.08 is what its repair costs eight receivers with exact feedback.
    assert!(net.ratio() < 1.10, "{}", net.ratio());
    assert!(net.nodes.iter().all(|n| n.machine.stats().pulls == 0));
    let losses: Vec<_> = net.nodes.iter().map(|n| n.machine.loss()).collect();
    assert!(losses.iter().all(|loss| (0.03..0.07).contains(loss)), "{losses:?}");
}

#[test]
fn a_long_path_is_served_by_a_wider_window() {
    let mut net = Net::new(&[0.05; 4], Duration::from_millis(100), 100);
    net.offer(256 * 80);
    net.run(Duration::from_secs(30));
    assert!(net.complete());
    assert!(net.ratio() < 1.12, "{}", net.ratio());
    // 20,480 datagrams of 1472 bytes at 100 Mbit/s take 2.4 s; five round trips more are allowed.
    assert!(net.now.as_nanos() < 3_700_000_000, "{:?}", net.now);
}

#[test]
fn one_small_file_costs_a_few_datagrams() {
    let mut net = Net::new(&[0.0; 2], Duration::from_millis(1), 100);
    net.offer(1);
    net.run(Duration::from_secs(10));
    assert!(net.complete());
    assert_eq!(net.sender.stats().source_symbols, 1);
    assert!(net.sender.stats().messages < 8, "{:?}", net.sender.stats());
}

#[test]
fn a_lost_tail_is_noticed_and_repaired() {
    for seed in 0..50 {
        let mut net = Net::new(&[0.3, 0.3], Duration::from_millis(1), 100);
        net.rng = Rng::new(seed);
        net.offer(3);
        net.run(Duration::from_secs(20));
        assert!(net.complete(), "seed {seed}");
    }
}

#[test]
fn a_late_joiner_pulls_what_it_missed_and_the_stream_is_not_held_up() {
    let mut net = Net::new(&[0.01; 3], Duration::from_millis(1), 100);
    net.offer(256 * 80);
    net.run(Duration::from_millis(1_200));
    net.join(0.01);
    net.run(Duration::from_secs(30));
    assert!(net.complete());
    assert!(net.ratio() < 1.06, "{}", net.ratio());
    assert!(net.nodes[3].machine.stats().pulls > 20);
    assert!(net.nodes[..3].iter().all(|n| n.machine.stats().pulls == 0));
}

#[test]
fn a_dead_receiver_does_not_stop_the_others() {
    let mut net = Net::new(&[0.02; 3], Duration::from_millis(1), 100);
    net.offer(256 * 40);
    net.run(Duration::from_millis(300));
    net.nodes[1].alive = false;
    net.run(Duration::from_secs(30));
    assert!(net.complete());
    assert!(net.ratio() < 1.08, "{}", net.ratio());
}

#[test]
fn a_receiver_that_loses_a_third_leaves_the_stream_and_pulls() {
    let mut net = Net::new(&[0.0, 0.0, 0.0, 0.0, 0.35], Duration::from_millis(1), 50);
    net.offer(256 * 160);
    net.run(Duration::from_secs(60));
    assert!(net.complete());
    assert_eq!(net.left.first(), Some(&ReceiverId(5)));
    assert!(net.left.iter().all(|id| *id == ReceiverId(5)));
}

/// Of three it loses a third.
fn with_one_that_was_told_to_leave() -> (Net, ReceiverId) {
    let late = ReceiverId(3);
    let mut net = Net::new(&[0.0, 0.0, 0.35], Duration::from_millis(1), 5);
    net.offer(256 * 160);
    net.run(Duration::from_secs(8));
    assert_eq!(net.left, [late]);
    (net, late)
}

/// It heard the stream again before the order to leave reached it (`docs/protocol.md#STRAG-5`).
#[test]
fn whose_word_has_crossed_the_order_to_leave_is_not_counted_on() {
    let (mut net, late) = with_one_that_was_told_to_leave();
    net.sender.set_delivery(net.now, late, Delivery::Stream);
    assert_eq!(net.sender.member(late).unwrap().delivery, Delivery::Pull);
    net.run(Duration::from_secs(8));
    assert_eq!(net.asked_back, [late], "as if it had said nothing");
}

/// Its uplink has a long queue (`docs/protocol.md#FB-6`).
#[test]
fn one_whose_answers_come_late_is_not_waited_for() {
    let late = ReceiverId(5);
    let mut net = Net::new(&[0.01; 5], Duration::from_millis(1), 20);
    net.nodes[4].alive = false;
    net.offer(256 * 160);
    let mut sent = Vec::new();
    for step in 0..1_000 {
        net.run(Duration::from_millis(10));
        sent.push((net.sender.round(), net.sender.packet().0));
        if let Some(at) = sent.len().checked_sub(400) {
            let (round, received) = sent[at];
            net.report(late, round, received, Vec::new());
        }
        assert!(net.sender.grtt() <= Duration::from_secs(1), "{step}: {:?}", net.sender.grtt());
    }
    assert_eq!(net.sender.member(late).unwrap().delivery, Delivery::Stream);
    assert!(net.sender.grtt() > Duration::from_millis(900), "{:?}", net.sender.grtt());
}

/// Its group cannot be joined at that moment: it says that it pulls (`docs/protocol.md#STRAG-3`).
#[test]
fn who_is_asked_back_and_cannot_come_is_asked_again() {
    let mut net = Net::new(&[0.0, 0.0, 0.35], Duration::from_millis(1), 5);
    net.none_rejoins = true;
    net.offer(256 * 160);
    net.run(Duration::from_secs(40));
    assert_eq!(net.left, [ReceiverId(3)]);
    assert_eq!(net.asked_back, [ReceiverId(3); 2]);
}

/// It has been switched off, or its word that it pulls was lost (`docs/protocol.md#STRAG-3`).
#[test]
fn who_is_asked_back_and_is_not_heard_is_not_counted_on() {
    let (mut net, late) = with_one_that_was_told_to_leave();
    net.nodes[2].alive = false;
    net.run(Duration::from_secs(12));
    assert_eq!(net.asked_back, [late]);
    assert_eq!(net.sender.member(late).unwrap().delivery, Delivery::Pull);
    // It comes after all, and does not know yet that it was given up.
    net.sender.set_delivery(net.now, late, Delivery::Stream);
    assert_eq!(net.sender.member(late).unwrap().delivery, Delivery::Pull);
    net.run(Duration::from_secs(20));
    assert_eq!(net.asked_back, [late; 2]);
}

/// A firewall at the sender lets nothing in by UDP (`docs/protocol.md#STRAG-3`).
#[test]
fn whose_answers_do_not_come_pulls() {
    for (losses, mute) in [(&[0.03][..], 0), (&[0.01, 0.03, 0.01][..], 1)] {
        let mut net = Net::new(losses, Duration::from_millis(1), 20);
        net.nodes[mute].mute = true;
        net.offer(256 * 160);
        net.run(Duration::from_secs(7));
        assert_eq!(net.left, [ReceiverId(mute as u32 + 1)]);
        net.run(Duration::from_secs(60));
        assert!(net.nodes.iter().all(|node| node.stored.len() == net.blocks.len()));
    }
}

/// It is switched on in mid-session. Who is silent for some seconds only goes on.
#[test]
fn whose_answers_cease_to_come_pulls() {
    for (losses, mute) in [(&[0.03][..], 0), (&[0.01, 0.03, 0.01][..], 1), (&[0.01; 12][..], 0)] {
        let mut net = Net::new(losses, Duration::from_millis(1), 20);
        net.offer(256 * 1_600);
        net.run(Duration::from_secs(3));
        let all = if losses.len() > 8 { losses.len() } else { 1 };
        let set = |net: &mut Net, is_mute| {
            net.nodes[mute..mute + all].iter_mut().for_each(|node| node.mute = is_mute);
        };
        set(&mut net, true);
        net.run(Duration::from_secs(15));
        assert_eq!(net.left, []);
        set(&mut net, false);
        net.run(Duration::from_secs(3));
        set(&mut net, true);
        net.run(Duration::from_secs(25));
        assert!(net.left.contains(&ReceiverId(mute as u32 + 1)), "{:?}", net.left);
        assert_eq!(net.left.len(), if all > 1 { all - 8 } else { 1 });
        net.run(Duration::from_secs(200));
        assert!(net.nodes.iter().all(|node| node.stored.len() == net.blocks.len()));
    }
}

/// The rate is not known while nobody is heard, and pulls have a small part of it.
#[test]
fn where_nobody_is_heard_one_is_asked_back_after_the_longest_wait() {
    let mut net = Net::new(&[0.01; 3], Duration::from_millis(1), 20);
    net.nodes.iter_mut().for_each(|node| node.mute = true);
    net.sender.start(net.now);
    for (left, asked_back) in [(3, 0), (4, 1)] {
        net.run(Duration::from_secs(150));
        assert_eq!((net.left.len(), net.asked_back.len()), (left, asked_back));
    }
}

/// That it pulled did not come here.
#[test]
fn who_says_again_that_it_hears_the_stream_is_not_taken_for_one_who_is_not_heard() {
    let mut net = Net::new(&[0.0], Duration::from_millis(100), 20);
    net.offer(256 * 160);
    net.run(Duration::from_secs(8));
    net.sender.set_delivery(net.now, ReceiverId(1), Delivery::Stream);
    net.run(Duration::from_secs(1));
    assert_eq!(net.left, []);
}

#[test]
fn a_ceiling_of_nothing_makes_the_stream_slow_and_no_deadline_impossible() {
    let mut net = Net::new(&[0.0], Duration::from_millis(1), 10);
    net.sender.start(net.now);
    let polls = |net: &mut Net, step: Duration| {
        net.now = net.now + step;
        net.sender.handle_timeout(net.now);
        let mut message = Vec::new();
        std::iter::from_fn(|| net.sender.poll_transmit(net.now, &mut message)).count()
    };
    // Polls that nobody answers become rarer, by powers of two.
    let before: usize = (0..2000).map(|_| polls(&mut net, Duration::from_millis(5))).sum();
    assert!(before > 12, "{before}");
    net.sender.set_ceiling(net.now, Rate::from_bps(0));
    let after: usize = (0..20).map(|_| polls(&mut net, Duration::from_secs(400 * 3600))).sum();
    assert!(after > 1, "{after}");
}

/// Nobody paces polls (`docs/protocol.md#FB-1`).
#[test]
fn polls_leave_most_of_a_low_rate_to_the_data() {
    let mut net = Net::new(&[0.0], Duration::from_millis(1), 10);
    net.sender.set_ceiling(net.now, Rate::from_bps(8_000));
    net.offer(1_000);
    net.run(Duration::from_secs(600));
    let stats = net.sender.stats();
    // 1464 bytes each: 409 would be the whole rate.
    assert!(stats.source_symbols > 320, "{stats:?}");
    assert!(stats.bytes < 603_000, "{stats:?}");
}

/// A poll that lists it with less planned than its source would be refused by everybody.
#[test]
fn a_block_that_cannot_be_read_is_not_opened_again_by_a_late_nack() {
    let mut net = Net::new(&[0.0], Duration::from_millis(1), 10);
    let block = BlockId::data(0).unwrap();
    net.sender.offer(net.now, block, 256);
    net.sender.start(net.now);
    let mut message = Vec::new();
    while net.sender.poll_transmit(net.now, &mut message).is_some() {}
    net.sender.handle_timeout(net.now);
    let work = net.sender.poll_work();
    assert_eq!(work, Some(sender::Work::Load { block, k: 256 }));
    net.sender.handle_work(net.now, sender::WorkDone::LoadFailed(block));
    net.ask(ReceiverId(1), vec![Need { block, planned: 0, count: 1 }]);
    assert_eq!(net.sender.open_blocks(), 0);
    net.now = net.now + Duration::from_secs(1);
    net.sender.handle_timeout(net.now);
    while let Some(transmit) = net.sender.poll_transmit(net.now, &mut message) {
        assert!(transmit.header.kind != Kind::Poll || Poll::parse(&message).is_ok());
    }
}

/// Whatever plan it claims to know of (`docs/protocol.md#REP-1`).
#[test]
fn one_who_asks_for_one_symbol_does_not_draw_all_repair_of_a_block() {
    let mut net = Net::new(&[0.0; 4], Duration::from_millis(1), 100);
    net.offer(256 * 80);
    net.run(Duration::from_millis(200));
    assert!(net.sender.open_blocks() > 0);
    let needs = (0..80).map(|n| Need { block: BlockId::data(n).unwrap(), planned: 2047, count: 1 });
    net.ask(ReceiverId(1), needs.take(64).collect());
    net.run(Duration::from_secs(10));
    assert!(net.complete());
    assert_eq!(net.sender.stats().repair_symbols, 0, "nobody can know of that plan");
}

/// Nor in many small requests (`docs/protocol.md#REP-1`, `#REP-6`).
#[test]
fn one_who_asks_again_and_again_does_not_draw_all_repair_of_a_block() {
    let mut net = Net::new(&[0.0; 8], Duration::from_millis(1), 100);
    net.offer(256 * 80);
    net.run(Duration::from_millis(200));
    let repair = |net: &mut Net| {
        net.settle();
        net.sender.stats().repair_symbols
    };
    let block = BlockId::data(2).unwrap();
    (0..40).for_each(|_| net.ask(ReceiverId(1), vec![Need { block, planned: 256, count: 32 }]));
    assert_eq!(repair(&mut net), 32, "the same request is one request");
    for n in 1..40 {
        net.ask(ReceiverId(1), vec![Need { block, planned: 256 + 32 * n, count: 32 }]);
        // Closed and opened again in between.
        repair(&mut net);
    }
    let given = repair(&mut net);
    assert!((128..140).contains(&given), "half of a block for one, and what may be lost: {given}");
    net.ask(ReceiverId(2), vec![Need { block, planned: 256 + given as u16, count: 1 }]);
    assert!(repair(&mut net) > given, "another one is served");
}

/// As when its word, or what is planned for it, is lost, and it asks again (`docs/protocol.md#REP-6`).
#[test]
fn what_was_planned_already_is_not_given_again_to_one_who_asks_for_it() {
    let mut net = Net::new(&[0.0; 8], Duration::from_millis(1), 100);
    net.offer(64);
    net.run(Duration::from_secs(1));
    let block = BlockId::data(0).unwrap();
    let mut ask = |from, planned, count| {
        net.ask(ReceiverId(from), vec![Need { block, planned, count }]);
        net.sender.stats().nacks_refused
    };
    assert_eq!(ask(2, 64, 11), 0, "12 are planned");
    assert_eq!(ask(1, 64, 12), 0, "one more");
    assert_eq!(ask(1, 77, 12), 0);
    assert_eq!(ask(1, 90, 12), 0, "no more than 32 in all");
    assert_eq!(ask(1, 103, 12), 1);
}

/// Who has not heard what was planned asks for what was sent already: it must learn so (`docs/protocol.md#REP-7`).
#[test]
fn a_closed_block_is_reopened_for_who_does_not_know_its_plan() {
    let (mut net, block) = with_a_closed_block();
    net.ask(ReceiverId(1), vec![Need { block, planned: 200, count: 32 }]);
    assert_eq!(net.sender.poll_work(), Some(sender::Work::Load { block, k: 256 }));
    assert_eq!((net.sender.open_blocks(), net.sender.stats().blocks_reopened), (1, 1));
}

/// However long the rounds are.
#[test]
fn what_is_reopened_to_be_told_is_told() {
    for delay in [1, 50, 300] {
        let (mut net, block) = with_a_closed_block_at(Duration::from_millis(delay));
        net.ask(ReceiverId(1), vec![Need { block, planned: 200, count: 32 }]);
        let (mut message, mut told) = (Vec::new(), 0);
        while net.sender.open_blocks() > 0 {
            net.now = net.sender.poll_timeout().unwrap().at.max(net.now);
            net.sender.handle_timeout(net.now);
            while net.sender.poll_work().is_some() {}
            while let Some(transmit) = net.sender.poll_transmit(net.now, &mut message) {
                let poll = (transmit.header.kind == Kind::Poll).then(|| Poll::parse(&message));
                let blocks = poll.map(|poll| poll.unwrap().blocks).unwrap_or_default();
                told += usize::from(blocks.iter().any(|open| open.block == block));
            }
        }
        assert!(told > 1, "{delay} ms: {told}, of which one may be lost");
    }
}

/// Its bytes would be read again, and no symbol be sent.
#[test]
fn a_closed_block_of_which_all_was_sent_is_reopened_only_for_who_does_not_know_so() {
    let (mut net, block) = with_a_closed_block();
    let all = 256 + GEOMETRY.code.repair_max(256);
    let asks = (0..32).map(|n| Need { block, planned: 256 + 32 * n, count: 32 });
    asks.for_each(|need| net.ask(ReceiverId(1), vec![need]));
    net.settle();
    assert_eq!(net.sender.stats().repair_symbols, u64::from(all - 256));
    net.ask(ReceiverId(1), vec![Need { block, planned: all, count: 32 }]);
    assert_eq!((net.sender.poll_work(), net.sender.stats().nacks_refused), (None, 1));
    net.ask(ReceiverId(2), vec![Need { block, planned: all - 1, count: 32 }]);
    assert_eq!(net.sender.poll_work(), Some(sender::Work::Load { block, k: 256 }));
}

/// One block of 256 symbols, sent and settled.
fn with_a_closed_block() -> (Net, BlockId) {
    with_a_closed_block_at(Duration::from_millis(1))
}

fn with_a_closed_block_at(delay: Duration) -> (Net, BlockId) {
    let mut net = Net::new(&[0.0; 2], delay, 100);
    net.offer(256);
    net.run(Duration::from_secs(1));
    net.settle();
    (net, BlockId::data(0).unwrap())
}

#[test]
fn work_that_is_done_after_its_block_was_closed_changes_nothing() {
    let (mut net, block) = with_a_closed_block();
    let loaded = sender::WorkDone::Loaded { block, tail: GEOMETRY.symbol_len };
    net.sender.handle_work(net.now, loaded);
    let release = Some(sender::Work::Release { block });
    assert_eq!(net.sender.poll_work(), release, "nobody wants the bytes");
    net.ask(ReceiverId(1), vec![Need { block, planned: 256, count: 32 }]);
    assert_eq!(net.sender.poll_work(), Some(sender::Work::Load { block, k: 256 }));
    net.sender.handle_work(net.now, loaded);
    let Some(sender::Work::Encode { from: 0, count, .. }) = net.sender.poll_work() else {
        panic!("no repair is asked for")
    };
    // Of its first time, when more was asked for; then what was asked for now.
    net.sender.handle_work(net.now, sender::WorkDone::Encoded { block, until: count + 128 });
    net.sender.handle_work(net.now, sender::WorkDone::Encoded { block, until: count });
    let asks = (1..).map(|n| Need { block, planned: 256 + 32 * n, count: 32 });
    let next = asks.take(8).find_map(|need| {
        net.ask(ReceiverId(1), vec![need]);
        net.sender.poll_work()
    });
    assert!(matches!(next, Some(sender::Work::Encode { from, .. }) if from == count), "{next:?}");
}

#[test]
fn blocks_that_everybody_has_are_not_sent() {
    let mut net = Net::new(&[0.0; 2], Duration::from_millis(1), 100);
    let held: RangeSet = std::iter::once(0..39).collect();
    for id in 1..=2 {
        net.sender.have(net.now, ReceiverId(id), held.clone(), RangeSet::new());
        let kind = downpour_proto::BlockKind::Data;
        net.nodes[id as usize - 1].machine.have(net.now, kind, 0..39);
    }
    net.offer(256 * 40);
    net.run(Duration::from_secs(10));
    assert!(net.complete());
    assert_eq!(net.sender.stats().source_symbols, 256);
}

/// All fall silent at once when the sender's machine stands still: they come back to the stream as soon as they hear it,
/// and it has kept for them what they lack.
#[test]
fn a_stream_that_everybody_has_left_waits_for_them_for_a_while() {
    for back in [true, false] {
        let mut net = Net::new(&[0.0; 2], Duration::from_millis(1), 100);
        net.offer(256 * 160);
        net.run(Duration::from_millis(500));
        let deliver = |net: &mut Net, delivery| {
            for id in 1..=2 {
                net.sender.set_delivery(net.now, ReceiverId(id), delivery);
            }
        };
        deliver(&mut net, Delivery::Pull);
        net.run(Duration::from_secs(1));
        assert!(!net.sender.ends().2, "nothing is given up within a second");
        if back {
            deliver(&mut net, Delivery::Stream);
        }
        net.run(Duration::from_secs(30));
        assert!(net.complete());
        let pulls: u64 = net.nodes.iter().map(|n| n.machine.stats().pulls).sum();
        assert_eq!(pulls < 10, back, "{pulls} pulls");
    }
}

/// An MTU before all has fallen, and rises again (`docs/protocol.md#STRAG-4`).
#[test]
fn all_who_got_only_what_is_short_come_back_when_what_is_long_comes_again() {
    let mut net = Net::new(&[0.0; 3], Duration::from_millis(1), 100);
    let offer = |net: &mut Net, blocks: std::ops::Range<u32>| {
        for block in blocks.map(|number| BlockId::data(number).unwrap()) {
            net.blocks.insert(block, 256);
            net.sender.offer(net.now, block, 256);
        }
    };
    let all_are = |net: &Net, delivery| {
        let member = |id| net.sender.member(ReceiverId(id)).unwrap();
        (1..=3).all(|id| member(id).delivery == delivery)
    };
    let pulls = |net: &Net| net.nodes.iter().map(|n| n.machine.stats().pulls).sum::<u64>();
    net.sender.start(net.now);
    offer(&mut net, 0..160);
    net.run(Duration::from_secs(1));
    net.nodes.iter_mut().for_each(|node| node.only_short = true);
    net.run(Duration::from_secs(30));
    assert!(all_are(&net, Delivery::Pull), "none of the probes has come");
    net.nodes.iter_mut().for_each(|node| node.only_short = false);
    net.run(Duration::from_secs(11));
    assert!(all_are(&net, Delivery::Stream));
    let before = pulls(&net);
    offer(&mut net, 160..200);
    net.sender.finish(net.now);
    net.run(Duration::from_secs(10));
    assert!(net.complete());
    assert_eq!(pulls(&net), before);
}

/// While nobody follows the stream it passes by little more than is pulled (`docs/protocol.md#STRAG-7`).
#[test]
fn what_passes_while_only_what_is_short_comes_is_sent_when_all_are_back() {
    let mut net = Net::new(&[0.0; 3], Duration::from_millis(1), 100);
    // Eight at once, each with a third of what the link takes.
    net.pull_time = Duration::from_millis(700);
    net.offer(256 * 400);
    net.run(Duration::from_secs(2));
    net.nodes.iter_mut().for_each(|node| node.only_short = true);
    net.run(Duration::from_secs(6));
    assert!(net.sender.backlog() > 200, "{}", net.sender.backlog());
    net.nodes.iter_mut().for_each(|node| node.only_short = false);
    net.run(Duration::from_secs(30));
    assert!(net.complete());
    let pulls = net.nodes.iter().map(|n| n.machine.stats().pulls);
    assert!(
        pulls.clone().all(|pulls| (1..100).contains(&pulls)),
        "{:?}",
        pulls.collect::<Vec<_>>()
    );
}

/// They left by their own word for a moment, and one is back before the other (`docs/protocol.md#STRAG-7`, `#REP-5`).
#[test]
fn what_was_open_when_all_left_is_open_until_they_are_back_and_have_asked() {
    let mut net = Net::new(&[0.0; 2], Duration::from_millis(1), 100);
    net.pull_time = Duration::from_secs(20);
    net.offer(256 * 160);
    net.run(Duration::from_millis(500));
    net.is_cut = true;
    net.run(Duration::from_millis(300));
    let deliver = |net: &mut Net, id, delivery| {
        net.sender.set_delivery(net.now, ReceiverId(id), delivery);
    };
    (1..=2).for_each(|id| deliver(&mut net, id, Delivery::Pull));
    net.run(Duration::from_secs(1));
    net.is_cut = false;
    deliver(&mut net, 1, Delivery::Stream);
    deliver(&mut net, 2, Delivery::Stream);
    net.run(Duration::from_secs(15));
    let pulls: Vec<u64> = net.nodes.iter().map(|n| n.machine.stats().pulls).collect();
    assert!(net.complete() && pulls == [0, 0], "{pulls:?} pulls");
}

/// While all who pull still pull what they missed, however long that takes (`docs/protocol.md#STRAG-7`).
#[test]
fn what_was_missed_by_many_does_not_leave_the_rest_to_pulls() {
    let mut net = Net::new(&[0.0; 6], Duration::from_millis(1), 400);
    net.pull_time = Duration::from_millis(1_500);
    net.offer(256 * 1_000);
    net.run(Duration::from_millis(500));
    net.nodes.iter_mut().for_each(|node| node.only_short = true);
    net.run(Duration::from_secs(20));
    assert!(net.sender.backlog() > 500, "{}", net.sender.backlog());
}

/// One who was there before the start has gone; all who are there pull (`docs/protocol.md#STRAG-7`).
#[test]
fn where_nobody_comes_back_all_is_left_to_pulls_at_once() {
    let mut net = Net::new(&[0.0; 2], Duration::from_millis(1), 100);
    net.sender.set_delivery(net.now, ReceiverId(1), Delivery::Ended);
    net.nodes[0].alive = false;
    net.sender.move_to_pull(net.now, ReceiverId(2));
    net.nodes[1].machine.set_on_stream(net.now, false);
    net.now = net.now + Duration::from_secs(3);
    net.offer(256 * 100);
    net.run(Duration::from_millis(100));
    assert!(net.sender.ends().2);
    net.run(Duration::from_secs(10));
    assert!(net.complete());
}

/// Who is never heard is no sign of a way that is cut (`docs/protocol.md#REP-5`).
#[test]
fn a_large_group_of_which_no_answer_comes_is_sent_all_as_before() {
    let mut net = Net::new(&[0.0; 30], Duration::from_millis(1), 100);
    net.nodes.iter_mut().for_each(|node| node.mute = true);
    net.offer(256 * 300);
    net.run(Duration::from_secs(12));
    assert_eq!(net.sender.stats().source_symbols, 256 * 300);
}

/// What was on its way when all were cut off stays open until they can ask for it (`docs/protocol.md#REP-5`).
#[test]
fn what_all_have_missed_the_stream_brings() {
    for receivers in [1, 3, 30] {
        let mut net = Net::new(&vec![0.0; receivers], Duration::from_millis(1), 100);
        net.offer(256 * 160);
        net.run(Duration::from_millis(500));
        let sent = |net: &Net| net.sender.stats().source_symbols;
        let before = sent(&net);
        net.is_cut = true;
        net.run(Duration::from_secs(2));
        let in_vain = sent(&net) - before;
        assert!(in_vain < 12_000, "it ends after little more than a second: {in_vain} symbols");
        net.is_cut = false;
        net.run(Duration::from_secs(30));
        assert!(net.complete());
        let pulls: u64 = net.nodes.iter().map(|n| n.machine.stats().pulls).sum();
        assert_eq!(pulls, 0, "{receivers}");
        let again = net.sender.stats().repair_symbols;
        assert!(again < in_vain * 3 / 2 + 600, "{receivers}: {again} for {in_vain}");
    }
}

/// It says why: otherwise the sender would call it too slow for the others (`docs/protocol.md#STRAG-2`).
#[test]
fn one_who_gets_only_what_is_short_leaves_before_it_is_told_to() {
    for mbps in [5, 40, 400] {
        let mut net = Net::new(&[0.002; 3], Duration::from_millis(2), mbps);
        net.offer(256 * 5 * mbps as u32);
        net.run(Duration::from_millis(500));
        net.nodes[2].only_short = true;
        net.run(Duration::from_secs(4));
        assert_eq!(net.left, [], "{mbps} Mbit/s");
        assert_eq!(net.sender.member(ReceiverId(3)).unwrap().delivery, Delivery::Pull);
    }
}

#[test]
fn who_is_moved_to_pull_is_not_waited_for() {
    let mut net = Net::new(&[0.0], Duration::from_millis(1), 100);
    net.offer(256 * 160);
    net.run(Duration::from_millis(500));
    net.sender.move_to_pull(net.now, ReceiverId(1));
    net.run(Duration::from_secs(1));
    assert!(net.sender.ends().2, "all is its to pull");
}

/// Receivers drop what is longer, and a network that takes symbols may not take it (`docs/protocol.md#WIRE-4`).
#[test]
fn however_many_blocks_are_open_no_datagram_is_longer_than_a_symbols() {
    let geometry = Geometry { symbol_len: 524, block_symbols: 128, code: Code::Cauchy };
    let blocks = sender::WINDOW_BLOCKS_MAX as u32;
    let mut now = Timestamp::ZERO;
    let config = SenderConfig {
        geometry,
        initial_rtt: Duration::from_millis(400),
        window_blocks: sender::WINDOW_BLOCKS_MAX,
        ..config(Duration::ZERO, 1_000)
    };
    let mut sender = Sender::new(config, now);
    sender.join(now, ReceiverId(1), Delivery::Stream);
    (0..blocks).for_each(|number| sender.offer(now, BlockId::data(number).unwrap(), 128));
    sender.start(now);
    let (mut message, mut listed) = (Vec::new(), 0);
    while now < Timestamp::ZERO + Duration::from_millis(500) {
        while let Some(work) = sender.poll_work() {
            if let sender::Work::Load { block, .. } = work {
                sender.handle_work(now, sender::WorkDone::Loaded { block, tail: 524 });
            }
        }
        while let Some(transmit) = sender.poll_transmit(now, &mut message) {
            assert!(transmit.datagram_len() <= geometry.datagram_len());
            if transmit.header.kind == Kind::Poll {
                listed = listed.max(Poll::parse(&message).unwrap().blocks.len());
            }
        }
        now = sender.poll_timeout().unwrap().at.max(now);
        sender.handle_timeout(now);
    }
    assert!((100..200).contains(&listed), "{listed}");
}
