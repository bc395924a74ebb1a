//! Sessions among strangers and traitors: everything arrives, memory stays bounded, and the report says what
//! was dropped and why.

use crate::hostile_hands::{FLOOD, LISTENING, TRAITOR, play};
use crate::lossy::Session;
use crate::network::{Network, Spec};
use crate::payload;
use crate::program::{Ended, Running, Scratch};
use downpour::report::{ReceiverState, Report};
use std::fs;
use std::thread;

const GROUP: &str = "239.77.9.9:28819";
/// Memory that a flood may cost more than a clean run: buffers of the kernel are not among it.
const MEMORY_MORE_MAX: u64 = 24 << 20;

/// A sender, two receivers, and a third machine that is not asked to take part.
fn setting(test: &str, size: u64) -> Option<(Network, Scratch)> {
    let spec = Spec { receivers: 3, rate: Some("100mbit".to_owned()), ..Spec::default() };
    let network = Network::build_or_skip(test, &spec)?;
    let scratch = Scratch::new();
    payload::file(&scratch.path("file"), size);
    Some((network, scratch))
}

/// At a rate that leaves strangers and traitors their time.
fn send(session: &Session, receivers: &str, rate: &str) -> Running {
    let file = session.scratch.path("file");
    session.sender(&[&file], &["--receivers", receivers, "--group", GROUP, "--rate", rate])
}

fn same(scratch: &Scratch, receiver: &str) {
    let copy = scratch.path(receiver).join("file");
    assert!(fs::read(scratch.path("file")).unwrap() == fs::read(copy).unwrap(), "{receiver}");
}

/// One run, with or without a flood: how sender and first receiver ended, and both reports.
fn run(network: &Network, flood: bool) -> ((Ended, Ended), (Report, Report)) {
    let scratch = Scratch::new();
    payload::file(&scratch.path("file"), 8 << 20);
    let session = Session::new(network, &scratch);
    let stranger = flood.then(|| {
        let arguments = [FLOOD, GROUP, &network.sender.ipv4];
        let stranger = play(&network.receivers[2], &arguments);
        let mut stranger = scratch.start_command("stranger", stranger);
        stranger.until(|s| s.out().contains(LISTENING).then_some(()));
        stranger
    });
    let receivers = [0, 1].map(|index| session.receiver(index, &[]));
    // Each is watched from the start: the memory of a program that is over cannot be read.
    let receivers = receivers.map(|receiver| thread::spawn(move || receiver.wait()));
    let before = network.receivers[2].counters();
    let sender = send(&session, "2", "20mbit").wait();
    let flooded = network.receivers[2].counters().since(before);
    sender.expect(0);
    let [first, second] = receivers.map(|receiver| receiver.join().unwrap());
    first.expect(0);
    second.expect(0);
    same(&scratch, "r0");
    same(&scratch, "r1");
    if let Some(mut stranger) = stranger {
        assert!(!stranger.is_over(), "{}{}", stranger.out(), stranger.err());
        stranger.kill();
        let report = scratch.report("sender").session;
        let mbit = |bytes: u64| bytes as f64 * 8e-6 / report.duration_s;
        println!(
            "measured: {:.1} s; the stranger sent {:.0} Mbit/s, the session {:.0} Mbit/s of data",
            report.duration_s,
            mbit(flooded.tx_bytes),
            mbit(report.data_bytes)
        );
        // As much as is carried, at least: a flood, whatever the machine is busy with.
        assert!(flooded.tx_bytes > report.data_bytes, "{flooded:?}");
    }
    ((sender, first), (scratch.report("sender"), scratch.report("r0")))
}

#[test]
fn a_flood_of_false_packets_is_dropped_counted_and_costs_no_memory() {
    let test = "a_flood_of_false_packets_is_dropped_counted_and_costs_no_memory";
    let Some((network, _)) = setting(test, 0) else { return };
    let (clean, _) = run(&network, false);
    let (flooded, (sent, received)) = run(&network, true);
    let (sent, received) = (sent.session.rejected, received.session.rejected);
    println!("measured: dropped by the sender {sent:?}, by a receiver {received:?}");
    for (what, clean, flooded) in
        [("sender", &clean.0, &flooded.0), ("receiver", &clean.1, &flooded.1)]
    {
        println!("measured: {what}: {} bytes clean, {} flooded", clean.memory, flooded.memory);
        assert!(clean.memory > 0);
        assert!(flooded.memory < clean.memory + MEMORY_MORE_MAX, "{what}");
    }
    for count in [received.forged, received.replayed, received.truncated, received.malformed] {
        assert!(count > 10, "{received:?}");
    }
    assert!(received.wrong_stream > 10 && received.wrong_epoch > 10, "{received:?}");
    assert!(sent.forged > 10 && sent.truncated > 10 && sent.malformed > 10, "{sent:?}");
    assert!(sent.wrong_stream > 10 && sent.strangers > 2, "{sent:?}");
    assert!(flooded.1.err.contains("dropped: "), "{}", flooded.1.err);
}

#[test]
fn a_member_that_forges_symbols_is_found_out_and_nothing_false_is_kept() {
    let test = "a_member_that_forges_symbols_is_found_out_and_nothing_false_is_kept";
    let Some((network, scratch)) = setting(test, 8 << 20) else { return };
    let session = Session::new(&network, &scratch);
    let receivers = [0, 1].map(|index| session.receiver(index, &[]));
    let ticket = scratch.path("ticket");
    let arguments = [TRAITOR, ticket.to_str().unwrap()];
    let mut traitor = scratch.start_command("traitor", play(&network.receivers[2], &arguments));
    // The traitor spoils the block after the one that it hears, which is a second away.
    let sender = send(&session, "3", "12mbit");
    let ended = receivers.map(Running::wait);
    traitor.kill();
    // The traitor has no receipt to give.
    sender.wait().expect(1);
    let sent = scratch.report("sender");
    for (index, ended) in ended.iter().enumerate() {
        let name = format!("r{index}");
        ended.expect(0);
        same(&scratch, &name);
        let report = scratch.report(&name);
        let notices = report.notices.join("\n");
        println!("measured: {name}: {:?}, {notices}", report.receivers[0].state);
        assert!(notices.contains("somebody in the group forges symbols"), "{notices}");
        let its = sent.receivers.iter().find(|receiver| receiver.name == name).unwrap();
        assert!(its.state.is_complete(), "{its:?}");
    }
    let traitor = sent.receivers.iter().find(|receiver| receiver.name == "traitor").unwrap();
    assert!(matches!(traitor.state, ReceiverState::Gone { .. }), "{traitor:?}");
}
