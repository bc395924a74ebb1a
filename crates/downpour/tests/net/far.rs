//! Sessions with one receiver by TCP and by unicast UDP: what arrives, what the reports say, what comes twice.

use crate::lossy::Session;
use crate::network::{Host, Network, Spec};
use crate::payload;
use crate::program::Scratch;
use crate::sessions::{OneFile, address, receiver, sender, sender_under, trace_lines};
use crate::skipped::skipped;
use downpour::report::ReceiverState;
use downpour_proto::transfer::UNSTORED;
use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

/// Bytes that may be on their way when a side is killed, of two connections with small buffers: two ranges each that are
/// not complete, what waits for the disk, and what the sender has read ahead.
const ON_THE_WAY: u64 = 16_000_000;
const TWO: [&str; 4] = ["--connections", "2", "--socket-buffer", "512KiB"];

const SIZE: u64 = 48 << 20;

#[test]
fn a_tree_arrives_by_each_path_and_the_reports_say_how() {
    for (path, encryption) in [("tcp", "all"), ("tcp", "control"), ("udp", "all"), ("auto", "all")]
    {
        let scratch = Scratch::new();
        let tree = scratch.path("tree");
        payload::tree(&tree, 60, 12_000_000);
        let address = address();
        let ticket = scratch.ticket(&address);
        let wishes = ["--connections", "3", "--congestion", "reno", "--pacing", "400mbit"];
        let receiver = receiver(&scratch, 0, &ticket, &wishes);
        // So that each connection has its time, and a machine with much to do hears a stream of that rate.
        let rule = ["--receivers", "1", "--path", path, "--rate", "60mbit"];
        let rule = [&rule[..], &["--encryption", encryption]].concat();
        sender(&scratch, &address, &ticket, &[&tree], &rule).wait().expect(0);
        receiver.wait().expect(0);
        payload::assert_same(&tree, &scratch.path("r0/tree"));
        let (sent, got) = (scratch.report("sender"), scratch.report("r0"));
        let (sent_by, got_by) = (sent.transfer.unwrap(), got.transfer.unwrap());
        assert_eq!((&*sent_by.path, &*got_by.path), (path, path));
        assert!(got_by.plan.iter().all(|line| !line.why.is_empty()), "{got_by:?}");
        let its = &sent.receivers[0];
        assert_eq!(its.state, ReceiverState::Complete, "{path}: {its:?}");
        if path == "tcp" {
            assert_eq!(its.stream_bytes, 0);
            assert!(got_by.ranges > 5 && got_by.connections.len() == 3, "{got_by:?}");
            let bulk = sent_by.connections.iter().filter(|c| c.bytes_acked > 100_000);
            assert!(bulk.clone().count() > 1 && bulk.clone().all(|c| c.congestion == "reno"));
        }
        // Which one `auto` takes is a matter of the time that it has.
        if path == "udp" {
            assert!(its.stream_bytes > 6_000_000, "{its:?}");
        }
    }
}

#[test]
fn what_the_stream_loses_on_its_way_to_one_receiver_is_repaired() {
    let session = OneFile::new(6_000_000);
    let receiver = session.receiver(0, &["--inject-loss", "5%"]);
    let rule = ["--receivers", "1", "--path", "udp", "--rate", "80mbit"];
    session.sender(&rule).wait().expect(0);
    receiver.wait().expect(0);
    assert!(session.arrived(0));
    let report = session.scratch.report("sender");
    // Who stands still for a while pulls what it missed.
    let its = &report.receivers[0];
    assert!(its.stream_bytes > 3_000_000 && its.repair_symbols > 50, "{its:?}");
}

#[test]
fn of_two_receivers_at_once_of_a_stream_for_one_the_other_pulls() {
    let session = OneFile::new(3_000_000);
    let receivers = [0, 1].map(|index| session.receiver(index, &[]));
    session.sender(&["--receivers", "2", "--path", "udp", "--rate", "80mbit"]).wait().expect(0);
    let said = receivers.map(|receiver| {
        let ended = receiver.wait();
        ended.expect(0);
        ended.err
    });
    assert!(session.arrived(0) && session.arrived(1));
    // The other text where it is not known yet to which.
    let told = ["the stream goes to one receiver", "another one greeted first"];
    let is_told = |err: &&String| told.iter().any(|text| err.contains(text));
    assert_eq!(said.iter().filter(is_told).count(), 1, "{said:?}");
}

/// Who pulls needs the manifest alone, and has it before the start.
#[test]
fn a_receiver_that_needs_no_data_does_not_keep_a_session_by_tcp_from_its_start() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("one/two")).unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let rule = ["--receivers", "2", "--path", "tcp"];
    let sender = sender(&scratch, &address, &ticket, &[&tree], &rule);
    for index in 0..2 {
        receiver(&scratch, index, &ticket, &[]).wait().expect(0);
        assert!(scratch.path(&format!("r{index}/tree/one/two")).is_dir());
    }
    sender.wait().expect(0);
}

/// Two sites send to a third: the senders cannot hear each other, what one takes comes to the other by the receivers.
#[test]
fn senders_of_two_sites_are_told_of_each_other_by_their_receivers() {
    let test = "senders_of_two_sites_are_told_of_each_other_by_their_receivers";
    let spec = Spec { slow: Some((0, "20mbit".to_owned())), ..Spec::default() };
    let Some(network) = Network::build_or_skip(test, &spec) else { return };
    let (at, sites) = (&network.receivers[0], [&network.sender, &network.receivers[1]]);
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, 12_000_000);
    let of = |site: &Host, name: &str| scratch.path(&format!("{}-{name}", site.namespace));
    let mut senders = sites.map(|site| {
        site.withhold("239.192.28.0");
        let (ticket, trace) = (of(site, "ticket"), of(site, "trace"));
        let address = format!("{}:28800", site.ipv4);
        let home = format!("{}-sender", site.namespace);
        let make = ["ticket", "new", "--address", &address, "--out", ticket.to_str().unwrap()];
        scratch.run(Some(site), &home, &make).expect(0);
        #[rustfmt::skip]
        let words = [
            "send", "--path", "udp", "--listen", &address, "--ticket", ticket.to_str().unwrap(), "--receivers", "1",
            "--trace", trace.to_str().unwrap(), file.to_str().unwrap(),
        ];
        scratch.start(Some(site), &home, &words)
    });
    for sender in &mut senders {
        sender.until(|s| s.err().contains("the ticket is the line above").then_some(()));
    }
    // Both at once: only while the two sessions run there is something to be told.
    let receivers = sites.map(|site| {
        let (ticket, out) = (format!("@{}", of(site, "ticket").display()), of(site, "out"));
        let words = ["receive", &ticket, "--out", out.to_str().unwrap()];
        scratch.start(Some(at), &format!("{}-receiver", site.namespace), &words)
    });
    for running in senders.into_iter().chain(receivers) {
        running.wait().expect(0);
    }
    for site in sites {
        assert!(fs::read(of(site, "out").join("file")).unwrap() == fs::read(&file).unwrap());
        let lines = trace_lines(&of(site, "trace"));
        let told =
            |way| lines.iter().filter(|l| l["type"] == "presence" && l["way"] == way).count();
        assert!(told("out") > 0 && told("in") > 5, "{} out, {} in", told("out"), told("in"));
    }
}

fn same(scratch: &Scratch) {
    let file = fs::read(scratch.path("file")).unwrap();
    assert!(fs::read(scratch.path("r0/file")).unwrap() == file);
}

/// What is on its way and what is not stored would be lost with the receiver: no more than that is sent.
#[test]
fn a_receiver_whose_disk_stands_still_is_sent_little_more() {
    const SIZE: usize = 150_000_000;
    let scratch = Scratch::new();
    payload::file(&scratch.path("file"), SIZE as u64);
    let address = address();
    let ticket = format!("@{}", scratch.ticket(&address).display());
    let rule = ["--receivers", "1", "--path", "tcp"];
    let file = scratch.path("file");
    let mut sender = sender(&scratch, &address, &scratch.path("ticket"), &[&file], &rule);
    let words = ["receive", &ticket, "--interface", "lo", "--out", "-", "--quiet"];
    let mut receiver = scratch.program(None, "r0", &words).stdout(Stdio::piped()).spawn().unwrap();
    let (mut before, mut same) = (0, 0);
    let sent = sender.until(|sender| {
        let now = sender.written();
        // A few bytes are always written: threads wake each other so.
        if now < 10_000_000 || now > before + (1 << 20) {
            (before, same) = (now, 0);
        }
        same += 1;
        (same == 1_000).then_some(now)
    });
    println!("measured: {sent} bytes sent to a receiver that stores nothing");
    // On a busy machine a round trip of this one takes milliseconds, and gigabytes a second hold much in them.
    assert!(sent < UNSTORED + 40_000_000, "{sent}");
    let mut came = Vec::with_capacity(SIZE);
    receiver.stdout.take().expect("piped").read_to_end(&mut came).unwrap();
    assert!(came == fs::read(&file).unwrap());
    assert!(receiver.wait().unwrap().success());
    sender.wait().expect(0);
}

/// Each read of the source takes longer. What was hashed is sent from memory, so nothing else reads it.
#[test]
fn a_disk_that_is_slow_when_the_source_is_read_for_the_first_time_is_named() {
    let test = "a_disk_that_is_slow_when_the_source_is_read_for_the_first_time_is_named";
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped(test, "needs strace (make test-setup installs it)");
    }
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, SIZE);
    let address = address();
    let ticket = scratch.ticket(&address);
    let receiver = receiver(&scratch, 0, &ticket, &[]);
    let strace = ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"];
    let slow = ["-e", "trace=pread64", "-e", "inject=pread64:delay_enter=300ms"];
    let rule = ["--receivers", "1", "--path", "tcp"];
    let under = [&strace[..], &slow].concat();
    sender_under(&under, &scratch, &address, &ticket, &[&file], &rule).wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch);
    let steered = scratch.report("r0").transfer.unwrap().steered;
    assert!(steered.iter().any(|line| line.binding == "source-disk"), "{steered:#?}");
}

fn far(test: &str) -> Option<(Network, Scratch)> {
    // What is left at the kill takes two seconds.
    let spec = Spec { receivers: 1, rate: Some("60mbit".to_owned()), ..Spec::default() };
    let network = Network::build_or_skip(test, &spec)?;
    let scratch = Scratch::new();
    payload::file(&scratch.path("file"), SIZE);
    Some((network, scratch))
}

/// What the receiver has stored when a side is killed.
const STORED: u64 = SIZE / 3 * 2;

#[test]
fn a_transfer_by_tcp_goes_on_where_its_receiver_was_killed() {
    let test = "a_transfer_by_tcp_goes_on_where_its_receiver_was_killed";
    let Some((network, scratch)) = far(test) else { return };
    let session = Session::new(&network, &scratch);
    let mut receiver = session.receiver(0, &TWO);
    let rule = ["--receivers", "1", "--path", "tcp"];
    let sender = session.sender(&[&scratch.path("file")], &rule);
    receiver.until_written(STORED);
    receiver.kill();
    let receiver = session.receiver(0, &TWO);
    sender.wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch);
    let report = scratch.report("sender");
    let again = report.session.sent.pull_bytes.saturating_sub(SIZE);
    let kept = report.receivers[0].kept_bytes;
    println!("measured: receiver killed at two thirds: {again} bytes sent again, {kept} kept");
    assert!(again < ON_THE_WAY && kept + ON_THE_WAY > STORED, "{again} {kept}");
}

#[test]
fn a_transfer_by_tcp_goes_on_where_its_sender_was_killed() {
    let test = "a_transfer_by_tcp_goes_on_where_its_sender_was_killed";
    let Some((network, scratch)) = far(test) else { return };
    let session = Session::new(&network, &scratch);
    let mut receiver = session.receiver(0, &TWO);
    let rule = ["--receivers", "1", "--path", "tcp"];
    let mut sender = session.sender(&[&scratch.path("file")], &rule);
    receiver.until_written(STORED);
    sender.kill();
    let sender = session.sender(&[&scratch.path("file")], &rule);
    sender.wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch);
    // The second sender's part.
    let sent = scratch.report("sender").session.sent.pull_bytes;
    println!("measured: sender killed at two thirds: {sent} bytes sent by the next");
    assert!(sent < SIZE - STORED + ON_THE_WAY, "{sent}");
}
