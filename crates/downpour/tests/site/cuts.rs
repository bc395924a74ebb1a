//! A batch that is cut in the middle: what it brought is not sent again, whoever cut it.
//!
//! What is sent is counted in a network of the test's own, so it needs root.

use super::alone::{COUNTED_PORTS, Network, Place, alone};
use super::harness::{Two, drop_file, until};
use downpour_catalog::State;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Small files, and some of more than one group; 15 MB in all, which take three seconds.
const SMALL: (usize, usize) = (450, 20_000);
const LARGE: (usize, usize) = (4, 1_500_000);
/// Of the link, on which two batches at a time have half of it each.
const RATE: &str = "80mbit";
/// What each cut and what the sessions cost by themselves: a block and a half on each of four connections, and handshakes; and
/// as much again for a session that a busy machine cuts, and for what comes twice at an end. Of the files half were there when
/// it was cut, which is more.
const COST_MAX: u64 = 5_000_000;
/// Long enough for both ends to give the session up; `DOWNPOUR_OUTAGE_S` makes it longer.
const AWAY_S: u64 = 12;
/// How long connections are reset.
const RESET_TIME: Duration = Duration::from_millis(500);
/// Bytes that leave the source's sessions from the moment on at which they are given up: the last of TCP's repetitions.
const AFTER_MAX: u64 = 400_000;
const GIVEN_UP_S: usize = 10;

fn fill(folder: &Path) -> (usize, u64) {
    let mut bytes = 0;
    for (kind, (count, len)) in [("small", SMALL), ("large", LARGE)] {
        for number in 0..count {
            let name = format!("{kind} {number}");
            let mut content = vec![0; len];
            blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut content);
            drop_file(&folder.join(name), &content);
            bytes += len as u64;
        }
    }
    (SMALL.0 + LARGE.0, bytes)
}

/// Sends files, cuts in when half of them was sent, and counts what was sent in all.
fn cut(test: &str, fault: impl FnOnce(&mut Two, &Network)) {
    let Place::Own = alone(&format!("cuts::{test}")) else { return };
    let network = Network::own().expect("this is a process of its own");
    let folder = tempfile::tempdir().expect("a folder");
    let spool = format!(
        "\n[[spool]]\nfolder = {:?}\ncomplete = \"settle:10ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\n[transfer]\nports = \"{COUNTED_PORTS}\"",
        folder.path()
    );
    let mut sites = Two::set_up([&spool, "[transfer]\nports = \"31600-31699\""]);
    let text = fs::read_to_string(sites.a.config()).expect("a configuration");
    let slow = format!("name = \"b\"\nrate = \"{RATE}\"\n");
    fs::write(sites.a.config(), text.replace("name = \"b\"\n", &slow)).expect("room");
    sites.b.start();
    sites.a.start();
    // All goes in one batch.
    sites.a.done(&["transfer", "drain", "b"]);
    let (files, bytes) = fill(folder.path());
    let stand = |sites: &Two, state| {
        let counts = sites.a.reader().counts().ok()?.into_iter();
        let there = counts.filter(|count| count.state == state).map(|count| count.files);
        (there.sum::<i64>() == files as i64).then_some(())
    };
    until("all are queued", || stand(&sites, State::Queued));
    sites.a.done(&["transfer", "open", "b"]);
    until("half is sent", || (network.sent().bytes > bytes / 2).then_some(()));
    fault(&mut sites, &network);
    until(&format!("all are received\n{}\n{}", sites.a.log(), sites.b.log()), || {
        stand(&sites, State::Receipted)
    });
    let sent = network.sent();
    let more = sent.bytes.saturating_sub(bytes);
    println!(
        "{test}: {bytes} bytes of files, {more} more sent by {} connections",
        sent.connections
    );
    assert!(more < COST_MAX, "{more}\n{}\n{}", sites.a.log(), sites.b.log());
}

#[test]
fn a_receiver_that_is_killed_gets_only_what_it_lacks() {
    cut("a_receiver_that_is_killed_gets_only_what_it_lacks", |sites, _| {
        sites.b.kill();
        sites.b.start();
    });
}

#[test]
fn a_sender_that_is_killed_sends_only_what_is_missing() {
    cut("a_sender_that_is_killed_sends_only_what_is_missing", |sites, _| {
        sites.a.kill();
        sites.a.start();
    });
}

#[test]
fn a_network_that_was_away_costs_what_was_on_its_way() {
    cut("a_network_that_was_away_costs_what_was_on_its_way", |_, network| {
        let away = std::env::var("DOWNPOUR_OUTAGE_S").ok().and_then(|text| text.parse().ok());
        network.cut(&[]);
        let mut left = vec![network.sent().bytes];
        for _ in 0..away.unwrap_or(AWAY_S) {
            std::thread::sleep(Duration::from_secs(1));
            left.push(network.sent().bytes);
        }
        network.heal();
        let each: Vec<_> = left.windows(2).map(|pair| pair[1] - pair[0]).collect();
        println!("bytes from the source's sessions in each second of the outage: {each:?}");
        let after: u64 = each.iter().skip(GIVEN_UP_S).sum();
        assert!(after < AFTER_MAX, "{after} bytes");
    });
}

/// A firewall that resets one end of each connection, for a moment.
fn reset(network: &Network, side: &str) {
    network.reset(side, COUNTED_PORTS);
    std::thread::sleep(RESET_TIME);
    network.heal();
}

#[test]
fn connections_that_were_reset_for_the_receiver_only_are_made_anew() {
    let test = "connections_that_were_reset_for_the_receiver_only_are_made_anew";
    cut(test, |_, network| reset(network, "dport"));
}

#[test]
fn connections_that_were_reset_for_the_sender_only_are_made_anew() {
    let test = "connections_that_were_reset_for_the_sender_only_are_made_anew";
    cut(test, |_, network| reset(network, "sport"));
}
