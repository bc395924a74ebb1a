//! Receivers and senders that die, come back, come late, are slow, or have no room: who is hurt, and who is
//! not.

use crate::lossy::{Session, full_size};
use crate::network::{Network, Spec};
use crate::payload;
use crate::program::{Running, Scratch};
use crate::skipped::skipped;
use downpour::report::ReceiverState;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Bytes of the file that is sent.
fn size() -> u64 {
    if full_size() { 256 << 20 } else { 24 << 20 }
}

fn setting(test: &str, receivers: usize) -> Option<(Network, Scratch)> {
    // With snooping: what the stream carries while a receiver is dead does not count as received.
    let rate = Some("100mbit".to_owned());
    let spec = Spec { receivers, rate, loss: 0.01, snooping: true, ..Spec::default() };
    let network = Network::build_or_skip(test, &spec)?;
    let scratch = Scratch::new();
    payload::file(&scratch.path("file"), size());
    Some((network, scratch))
}

/// For so many receivers. The small file goes at a rate at which what is done in the middle of it leaves seconds of it.
fn rule<'a>(receivers: &'a str, rate: &'a str) -> Vec<&'a str> {
    let all = ["--receivers", receivers, "--rate", rate];
    all[..if full_size() { 2 } else { 4 }].to_vec()
}

fn same(scratch: &Scratch, receiver: usize) {
    let copy = scratch.path(&format!("r{receiver}/file"));
    assert!(fs::read(scratch.path("file")).unwrap() == fs::read(copy).unwrap(), "r{receiver}");
}

#[test]
fn a_killed_receiver_resumes_and_gets_little_twice() {
    let test = "a_killed_receiver_resumes_and_gets_little_twice";
    // Of the small file so little that nothing could be lost of it, or so much that it may be there before the kill, shows nothing.
    let shares = if full_size() { &[0.05, 0.5, 0.95][..] } else { &[0.5, 0.7] };
    for &share in shares {
        let Some((network, scratch)) = setting(test, 2) else { return };
        let session = Session::new(&network, &scratch);
        let mut receivers = vec![session.receiver(0, &[]), session.receiver(1, &[])];
        let before = [0, 1].map(|index: usize| network.receivers[index].counters());
        let sender = session.sender(&[&scratch.path("file")], &rule("2", "32mbit"));
        receivers[1].until_written((size() as f64 * share) as u64);
        receivers[1].kill();
        receivers[1] = session.receiver(1, &[]);
        sender.wait().expect(0);
        receivers.into_iter().for_each(|receiver| {
            receiver.wait().expect(0);
        });
        (0..2).for_each(|index| same(&scratch, index));
        let received =
            |index: usize| network.receivers[index].counters().since(before[index]).rx_bytes;
        let again = received(1).saturating_sub(received(0)) as f64 / size() as f64;
        println!(
            "measured: receiver killed at {share}: received again {:.2} % of the file",
            again * 100.0
        );
        let report = scratch.report("sender");
        let its = report.receivers.iter().find(|r| r.name == "r1").unwrap();
        let kept = its.kept_bytes as f64 / size() as f64;
        // Groups of which a block was under way when it died are lost.
        assert!(kept > share - OPEN_BYTES / size() as f64, "killed at {share}: {its:?}");
        assert!(again < again_max(), "killed at {share}: {again} {its:?}");
    }
}

#[test]
fn a_killed_sender_is_started_again_and_goes_on() {
    let test = "a_killed_sender_is_started_again_and_goes_on";
    let mut received = Vec::new();
    for killed in [false, true] {
        let Some((network, scratch)) = setting(test, 2) else { return };
        let session = Session::new(&network, &scratch);
        let before = network.receivers[0].counters();
        let mut receivers = vec![session.receiver(0, &[]), session.receiver(1, &[])];
        let rule = rule("2", "48mbit");
        let mut sender = session.sender(&[&scratch.path("file")], &rule);
        if killed {
            receivers[0].until_written(size() / 2);
            sender.kill();
            sender = session.sender(&[&scratch.path("file")], &rule);
        }
        sender.wait().expect(0);
        for receiver in receivers {
            receiver.wait().expect(0);
        }
        (0..2).for_each(|index| same(&scratch, index));
        received.push(network.receivers[0].counters().since(before).rx_bytes as f64);
    }
    let again = (received[1] - received[0]) / size() as f64;
    println!("measured: sender killed at 0.5: received again {:.2} % of the file", again * 100.0);
    assert!(again < again_max(), "{again}");
}

#[test]
fn a_receiver_whose_address_changes_comes_back() {
    let test = "a_receiver_whose_address_changes_comes_back";
    let Some((network, scratch)) = setting(test, 1) else { return };
    let session = Session::new(&network, &scratch);
    let mut receiver = session.receiver(0, &[]);
    let sender = session.sender(&[&scratch.path("file")], &rule("1", "48mbit"));
    receiver.until_written(size() / 2);
    network.receivers[0].change_address("10.77.200.200");
    sender.wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch, 0);
}

/// What a firewall that is started anew does: the stream still comes, and neither end is told. The sender gives the receiver up
/// after 15 s, long before the end of the file.
#[test]
fn a_receiver_whose_connections_die_in_silence_comes_back() {
    let test = "a_receiver_whose_connections_die_in_silence_comes_back";
    let Some((network, scratch)) = setting(test, 1) else { return };
    let session = Session::new(&network, &scratch);
    let mut receiver = session.receiver(0, &[]);
    let rate = format!("{}kbit", size() * 8 / 1000 / 24);
    let sender = session.sender(&[&scratch.path("file")], &["--receivers", "1", "--rate", &rate]);
    receiver.until_written(size() / 9);
    network.receivers[0].forget_connections();
    sender.wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch, 0);
}

/// What is to be told to the sender then waits for its answer, and nothing else does. Times are those that receivers tell.
#[test]
fn who_hears_nothing_of_its_sender_any_more_says_so_soon_and_can_be_ended() {
    let test = "who_hears_nothing_of_its_sender_any_more_says_so_soon_and_can_be_ended";
    let Some((network, scratch)) = setting(test, 2) else { return };
    let session = Session::new(&network, &scratch);
    let patience = ["--join-timeout", "12h"];
    let [mut waits, mut ends] = [0, 1].map(|index| session.receiver(index, &patience));
    let _sender =
        session.sender(&[&scratch.path("file")], &["--receivers", "2", "--rate", "8mbit"]);
    waits.until_written(size() / 16);
    ends.until_written(size() / 16);
    let down = network.sender.command("ip").args(["link", "set", "eth0", "down"]).status();
    assert!(down.unwrap().success());
    let last = |text: &str, before: &str| {
        let numbers = text.split(before).skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
            rest[..end].parse::<f64>().ok()
        });
        numbers.reduce(f64::max)
    };
    // The stream counts as lost after 3 s, and then there is something to be told.
    sleep(Duration::from_secs(4));
    ends.interrupt();
    let ended = ends.wait();
    // A line of progress comes each 5 s.
    let before = last(&ended.err, " elapsed_s=").expect("progress");
    let lived = scratch.report("r1").session.duration_s;
    assert!(lived < before + 15.0, "it ended after {lived} s: {ended:?}");
    let silent = waits.until(|r| last(&r.err(), "the sender has been silent for "));
    assert!(silent < 15.0, "{}", waits.err());
    waits.interrupt();
    let told = waits.wait().err;
    assert!(told.contains("the sender is lost") && !told.contains("the sender answers"), "{told}");
}

/// The sender is reached by another interface than the one that is named for the stream.
#[test]
fn who_stays_pulls_when_its_interface_is_down_at_a_later_session() {
    let test = "who_stays_pulls_when_its_interface_is_down_at_a_later_session";
    let Some((network, scratch)) = setting(test, 1) else { return };
    let session = Session::new(&network, &scratch);
    let host = &network.receivers[0];
    let ip = |words: &str| {
        let done = host.command("ip").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "ip {words}");
    };
    ip("link add d0 type veth peer name d1");
    ip("addr add 10.78.0.1/24 dev d0");
    ip("link set d1 up");
    ip("link set d0 up");
    let (ticket, out) = (format!("@{}", scratch.path("ticket").display()), scratch.path("r0"));
    let words = ["receive", &ticket, "--interface", "d0", "--name", "r0", "--stay", "--out"];
    let words = [&words[..], &[out.to_str().unwrap()]].concat();
    let mut stays = scratch.start(Some(host), "r0", &words);
    for times in 1..=2 {
        let sender = session.sender(&[&scratch.path("file")], &["--receivers", "1"]);
        let over = |r: &Running| r.err().matches("the session is over; waiting").count();
        stays.until(|r| (over(r) == times).then_some(()));
        sender.wait().expect(0);
        same(&scratch, 0);
        fs::remove_file(out.join("file")).unwrap();
        ip("link set d0 down");
    }
    stays.interrupt();
    let ended = stays.wait();
    ended.expect(0);
    assert!(ended.err.contains("no multicast here, everything is pulled: "), "{}", ended.err);
}

/// Killed when all has come and is on the disk, by the call that would give it its name, which the kernel then does not make.
#[test]
fn killed_before_the_rename_it_takes_nothing_again() {
    let test = "killed_before_the_rename_it_takes_nothing_again";
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped(test, "needs strace (make test-setup installs it)");
    }
    let Some((network, scratch)) = setting(test, 1) else { return };
    let session = Session::new(&network, &scratch);
    let before = network.receivers[0].counters();
    // What replaces a file is another call. Not with --seccomp-bpf: the kernel would lose the signal.
    let kill = ["-e", "trace=renameat2", "-e", "inject=renameat2:signal=KILL", "-o", "/dev/null"];
    // With -D the program is our own child.
    let strace = [&["strace", "-D", "-f"], &kill[..]].concat();
    let receiver = session.receiver_under(&strace, 0, &[]);
    let sender = session.sender(&[&scratch.path("file")], &["--receivers", "1"]);
    let killed = receiver.wait();
    let came = network.receivers[0].counters().since(before).rx_bytes;
    assert!(killed.code.is_none() && came > size(), "{came} bytes came: {killed:?}");
    assert!(!scratch.path("r0/file").exists(), "it was renamed before it was killed");
    let receiver = session.receiver(0, &[]);
    sender.wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch, 0);
    let again = network.receivers[0].counters().since(before).rx_bytes - came;
    println!("measured: receiver killed before the rename: received again {again} bytes");
    assert!(again < size() / 100, "{again}");
}

/// Bytes of blocks that a receiver may have in memory, and loses when it is killed.
const OPEN_BYTES: f64 = 9e6;

/// Share of the file that may come twice: what was in memory, and stream and pull overlapping once at the
/// return. It does not grow with the file.
fn again_max() -> f64 {
    if full_size() { 0.05 } else { OPEN_BYTES / size() as f64 }
}

#[test]
fn a_late_receiver_completes() {
    // Without it nothing is asserted, only measured.
    let runs = if full_size() { &[false, true][..] } else { &[true] };
    let mut others = Vec::new();
    for &late in runs {
        let Some((network, scratch)) = setting("a_late_receiver_completes", 3) else { return };
        let session = Session::new(&network, &scratch);
        let mut receivers = vec![session.receiver(0, &[]), session.receiver(1, &[])];
        let sender = session.sender(&[&scratch.path("file")], &rule("2", "40mbit"));
        if late {
            // More than is asked for below has gone by then.
            receivers[0].until_written(size() / if full_size() { 2 } else { 4 });
            receivers.push(session.receiver(2, &[]));
        }
        sender.wait().expect(0);
        let count = receivers.len();
        receivers.into_iter().for_each(|receiver| {
            receiver.wait().expect(0);
        });
        (0..count).for_each(|index| same(&scratch, index));
        let report = scratch.report("sender");
        let of = |name: &str| report.receivers.iter().find(|r| r.name == name).unwrap();
        others.push(of("r0").ended_s.max(of("r1").ended_s));
        if late {
            let it = of("r2");
            assert!(it.pull_bytes > size() / 4 && it.joined_s > 0.0, "{it:?}");
            println!("measured: late joiner at 0.5: completes after {:.2} s", it.ended_s);
        }
    }
    if let [without, with] = others[..] {
        let longer = with / without;
        println!(
            "measured: two others without a late joiner {without:.2} s, with it {longer:.3} times as long"
        );
    }
}

/// Its polls come, and tell what to pull before it has said that it hears no stream (`docs/protocol.md#CTL-2`).
#[test]
fn a_late_receiver_to_whom_only_short_datagrams_come_pulls() {
    let test = "a_late_receiver_to_whom_only_short_datagrams_come_pulls";
    let Some((network, scratch)) = setting(test, 2) else { return };
    network.receivers[1].lose_long_datagrams();
    let session = Session::new(&network, &scratch);
    let mut first = session.receiver(0, &[]);
    let sender = session.sender(&[&scratch.path("file")], &rule("1", "50mbit"));
    first.until_written(size() / 8);
    let late = session.receiver(1, &[]);
    sender.wait().expect(0);
    first.wait().expect(0);
    late.wait().expect(0);
    same(&scratch, 1);
    let report = scratch.report("sender");
    let its = report.receivers.iter().find(|r| r.name == "r1").unwrap();
    assert!(!its.multicast && its.pull_bytes >= size(), "{its:?}");
}

/// A tunnel that comes up anew on the way, or a VLAN put on top (`docs/protocol.md#STRAG-4`).
#[test]
fn who_gets_only_short_datagrams_from_then_on_pulls_and_says_so() {
    let test = "who_gets_only_short_datagrams_from_then_on_pulls_and_says_so";
    let Some((network, scratch)) = setting(test, 1) else { return };
    let session = Session::new(&network, &scratch);
    let mut receiver = session.receiver(0, &[]);
    let rate = ["--receivers", "1", "--rate", "32mbit"];
    let sender = session.sender(&[&scratch.path("file")], &rate);
    receiver.until_written(size() / 8);
    network.receivers[0].lose_long_datagrams();
    sender.wait().expect(0);
    receiver.wait().expect(0);
    same(&scratch, 0);
    let state = &scratch.report("r0").receivers[0].state;
    assert!(matches!(state, ReceiverState::Pulled { why } if why.contains("MTU")), "{state:?}");
}

/// They hear the stream, and what they lack would be told to nobody.
#[test]
fn receivers_whose_answers_a_firewall_at_the_sender_drops_pull_and_it_says_so() {
    let test = "receivers_whose_answers_a_firewall_at_the_sender_drops_pull_and_it_says_so";
    let Some((network, scratch)) = setting(test, 2) else { return };
    network.sender.shut_out_udp();
    let session = Session::new(&network, &scratch);
    let receivers = [0, 1].map(|index| session.receiver(index, &[]));
    let sender = session.sender(&[&scratch.path("file")], &["--receivers", "2"]);
    let ended = sender.wait();
    ended.expect(0);
    assert!(ended.err.contains("r1 pulls: no answer of it comes"), "{}", ended.err);
    for receiver in receivers {
        receiver.wait().expect(0);
    }
    (0..2).for_each(|index| same(&scratch, index));
    for name in ["sender", "r0"] {
        let state = &scratch.report(name).receivers[0].state;
        assert!(
            matches!(state, ReceiverState::Pulled { why } if why.contains("firewall")),
            "{name}: {state:?}"
        );
    }
}

/// One run with five healthy receivers; with trouble also a full disk, a slow link, and one killed for good.
fn five_and_trouble(trouble: bool) -> Option<f64> {
    let test = "trouble_at_three_does_not_hurt_five";
    // So slow that this is seen also where so many programs do not take much of the others' rate; the smaller file takes 17 s then.
    let slow = if full_size() { "10mbit" } else { "5mbit" };
    let spec = Spec {
        receivers: 8,
        rate: Some("100mbit".to_owned()),
        slow: Some((5, slow.to_owned())),
        snooping: true,
        ..Spec::default()
    };
    let size = if full_size() { size() } else { 10 << 20 };
    let network = Network::build_or_skip(test, &spec)?;
    let scratch = Scratch::new();
    payload::file(&scratch.path("file"), size);
    let session = Session::new(&network, &scratch);
    let n = if trouble { 8 } else { 5 };
    let mut receivers: Vec<_> = (0..5).map(|index| session.receiver(index, &[])).collect();
    let _full = trouble.then(|| SmallDisk::mount(&scratch.path("r6"), size / 2));
    if trouble {
        receivers.extend((5..8).map(|index| session.receiver(index, &[])));
    }
    let sender = session.sender(&[&scratch.path("file")], &["--receivers", &n.to_string()]);
    if trouble {
        receivers[7].until_written(size / 8);
        receivers[7].kill();
    }
    let ended = sender.wait();
    ended.expect(if trouble { 1 } else { 0 });
    let done = if trouble { 6 } else { 5 };
    let states: Vec<_> = receivers.into_iter().map(Running::wait).collect();
    states.iter().take(done).for_each(|state| {
        state.expect(0);
    });
    (0..done).for_each(|index| same(&scratch, index));
    let report = scratch.report("sender");
    let of =
        |index: usize| report.receivers.iter().find(|r| r.name == format!("r{index}")).unwrap();
    // Also one that stood still for a while, and pulled: that it is not hurt is asked for below.
    (0..5).for_each(|index| assert!(of(index).state.is_complete(), "{:?}", of(index)));
    let last = (0..5).map(|index| of(index).ended_s).fold(0.0, f64::max);
    if trouble {
        assert!(matches!(of(5).state, ReceiverState::Pulled { .. }), "{:?}", of(5));
        assert!(
            matches!(&of(6).state, ReceiverState::Failed { why } if why.contains("space")),
            "{:?}",
            of(6)
        );
        assert!(matches!(of(7).state, ReceiverState::Gone { .. }), "{:?}", of(7));
        // What it told before it was killed: perhaps of nothing yet.
        assert!(of(7).stream_bytes < size, "{:?}", of(7));
        assert!(ended.err.contains("space") && ended.err.contains("gone"), "{}", ended.err);
        // Nobody waited for the slow one, nor for the one that is gone.
        assert!(last < of(5).ended_s, "{last:.2} s, the slow one {:.2} s", of(5).ended_s);
    }
    println!("measured: five healthy receivers, trouble {trouble}: {last:.2} s");
    for receiver in &report.receivers {
        let (streamed, pulled) = (receiver.stream_bytes, receiver.pull_bytes);
        let (name, state, ended) = (&receiver.name, &receiver.state, receiver.ended_s);
        println!("  {name} {state:?}: {ended:.2} s, {streamed} B by stream, {pulled} B by pull");
    }
    Some(last)
}

#[test]
fn trouble_at_three_does_not_hurt_five() {
    let without = full_size().then(|| five_and_trouble(false)).flatten();
    let with = five_and_trouble(true);
    if let (Some(without), Some(with)) = (without, with) {
        println!("measured: the healthy take {:.3} times as long with the trouble", with / without);
    }
}

/// A small file system, unmounted when this is dropped: the folder that it lies in could not be removed.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Of so many bytes.
    pub(crate) fn mount(at: &Path, bytes: u64) -> Self {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        let arguments = ["-t", "tmpfs", "-o", &size, "downpour-test", at.to_str().unwrap()];
        assert!(Command::new("mount").args(arguments).status().unwrap().success());
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Also while programs have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
