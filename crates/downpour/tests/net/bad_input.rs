//! What goes wrong before or at the start: each time a message that says what to do, and the right exit
//! status. No root needed, but for a disk that is full.

use crate::endings::stay;
use crate::hardship::SmallDisk;
use crate::network::{Network, Spec};
use crate::payload;
use crate::program::{Ended, Scratch};
use crate::sessions::{OneFile, address, receiver, sender};
use crate::skipped::skipped;
use downpour::report::{ReceiverState, Report};
use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

#[track_caller]
fn expect(ended: &Ended, code: i32, words: &[&str]) {
    ended.expect(code);
    for word in words {
        assert!(ended.err.contains(word), "no `{word}` in:\n{}", ended.err);
    }
    assert!(ended.err.contains("what to do:"), "{}", ended.err);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}

#[test]
fn what_cannot_start_says_why_and_what_to_do() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, 1000);
    let file = file.to_str().unwrap();
    let below = &format!("{file}/below");
    let address = address();
    let taken = TcpListener::bind(&address).unwrap();
    let send = ["send", "--receivers", "1", "--interface", "lo"];
    let damaged = "downpour1:eyJhZGRycyI6WyIxMjcuMC4wLjE6Mjk5MDEiXSwi.AAAAAA";
    let folder = scratch.path("folder");
    fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let cases: [(&[&str], i32, &[&str]); 19] = [
        (&["/no/such/path"], 3, &["/no/such/path"]),
        (&[file, "--interface", "eth77"], 2, &["eth77", "lo"]),
        (&[file, "--interface", "192.0.2.77"], 2, &["192.0.2.77", "lo"]),
        (&[file, "--group", "10.0.0.1:5000"], 2, &["10.0.0.1", "239."]),
        (&[file, "--listen", &address], 3, &[&address]),
        (&[file, "--ticket", "/no/such/ticket"], 3, &["/no/such/ticket"]),
        (&[file, "--ticket", file], 3, &[file, "not a ticket", "ticket new"]),
        (&[file, "--expect", "/no/such/list"], 2, &["/no/such/list", "one machine's name a line"]),
        (&[file, "--report", "/no/such/folder/r"], 3, &["/no/such/folder/r", "give --report"]),
        (&[file, "--report", folder], 3, &[folder, "give --report"]),
        (&["RECEIVE", damaged, "--discard", "--report", folder], 3, &[folder, "give --report"]),
        (&["RECEIVE", "downpour1:a", "--out", below], 3, &[below, "rights"]),
        (&[file, "--controller", "fixed"], 2, &["--rate"]),
        (&["--products", folder], 3, &[folder, "give --products"]),
        (&["RECEIVE", "downpour1:abc", "--discard"], 3, &["ticket"]),
        (&["RECEIVE", damaged, "--discard"], 3, &["ticket"]),
        (&["RECEIVE", "@/no/such/ticket", "--discard"], 3, &["/no/such/ticket"]),
        (&["RECEIVE", "what?", "--discard"], 3, &["downpour1:"]),
        (&["RECEIVE", "downpour1:a", "--out", file], 2, &["folder"]),
    ];
    for (case, code, words) in cases {
        let arguments = match case {
            ["RECEIVE", rest @ ..] => [&["receive"], rest].concat(),
            // The last of an option that is given twice would be an error of clap's.
            _ if case.contains(&"--interface") => [&send[..3], case].concat(),
            _ => [&send[..], case].concat(),
        };
        let ended = scratch.start(None, "it", &arguments).wait();
        assert_eq!(ended.code, Some(code), "{arguments:?}\n{}", ended.err);
        expect(&ended, code, words);
    }
    drop(taken);
}

#[test]
fn standard_streams_that_are_closed_or_folders_are_refused() {
    let scratch = Scratch::new();
    let send = ["send", "-", "--receivers", "1"];
    let list = ["send", "--products", "-", "--receivers", "1"];
    let receive = ["receive", "downpour1:abc", "--out", "-"];
    let cases: [(&str, &[&str], &str); 6] = [
        ("exec \"$@\" >&-", &receive, "standard output is closed"),
        ("exec \"$@\" 1<>/dev/null", &receive, "or /dev/null for both ways"),
        ("exec \"$@\" <&-", &send, "standard input is closed"),
        ("exec \"$@\" 0<>/dev/null", &send, "or /dev/null for both ways"),
        ("exec \"$@\" </", &send, "standard input is a folder"),
        ("exec \"$@\" </", &list, "standard input is a folder"),
    ];
    for (script, arguments, word) in cases {
        let program = scratch.program_under(&["sh", "-c", script, "sh"], None, "it", arguments);
        expect(&scratch.start_command("it", program).wait(), 3, &[word]);
    }
}

#[test]
fn usage_errors_have_status_two() {
    let scratch = Scratch::new();
    for arguments in [
        &["send"][..],
        &["send", "/etc/hosts", "--rate", "100"],
        &["send", "/etc/hosts", "--receivers", "0"],
        &["send", "/etc/hosts", "--group", "239.192.1.1"],
        &["receive", "downpour1:x"],
        &["sned"],
    ] {
        let ended = scratch.start(None, "it", arguments).wait();
        ended.expect(2);
        assert!(!ended.err.is_empty());
    }
    scratch.start(None, "it", &["--help"]).wait().expect(0);
}

#[test]
fn a_ticket_that_has_expired_or_nobody_behind_it_is_told_apart() {
    let scratch = Scratch::new();
    let file = scratch.path("old.ticket");
    let file = file.to_str().unwrap();
    let nobody = address();
    let make = ["ticket", "new", "--address", &nobody, "--out", file, "--expires"];
    scratch.run(None, "it", &[&make[..], &["500ms"]].concat()).expect(0);
    std::thread::sleep(std::time::Duration::from_millis(1600));
    let old = format!("@{file}");
    let ended = scratch.start(None, "it", &["receive", &old, "--discard"]).wait();
    expect(&ended, 3, &["expired"]);

    scratch.run(None, "it", &[&make[..], &["1h"]].concat()).expect(0);
    let arguments = ["receive", &old, "--discard", "--join-timeout", "1s"];
    let ended = scratch.start(None, "it", &arguments).wait();
    expect(&ended, 3, &[&nobody]);
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_left_out_only_when_told() {
    let name = "a_file_that_cannot_be_read_is_named_and_left_out_only_when_told";
    let scratch = Scratch::new();
    let is_root = rustix::process::geteuid().is_root();
    if is_root
        && !Command::new("setpriv").arg("--version").output().is_ok_and(|o| o.status.success())
    {
        return skipped(name, "root can read everything, and there is no setpriv");
    }
    let tree = scratch.path("tree");
    fs::create_dir(&tree).unwrap();
    payload::file(&tree.join("good"), 100_000);
    payload::file(&tree.join("secret"), 100_000);
    fs::set_permissions(tree.join("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let (file, out) = (ticket.to_str().unwrap(), scratch.path("out"));
    let report = scratch.path("sender.json");
    let send = |more: &[&str]| {
        let arguments = ["send", "--interface", "lo", "--listen", &address, "--ticket", file];
        let rule = ["--receivers", "1", "--rate", "100mbit", tree.to_str().unwrap(), "--report"];
        let arguments = [&arguments[..], &rule, &[report.to_str().unwrap()], more].concat();
        let mut command = scratch.program(None, "sender", &arguments);
        if is_root {
            // Root without the power to read everything is an owner like any other.
            let mut limited = Command::new("setpriv");
            limited.arg("--bounding-set=-dac_override,-dac_read_search");
            limited.arg(command.get_program()).args(command.get_args());
            limited.env("DOWNPOUR_HOME", scratch.path("sender.home"));
            command = limited;
        }
        scratch.start_command("sender", command)
    };
    expect(&send(&[]).wait(), 3, &["tree/secret", "permission", "--skip-unreadable"]);

    let at = format!("@{file}");
    let target = ["--interface", "lo", "--out", out.to_str().unwrap()];
    let receiver = scratch.start(None, "r0", &[&["receive", &at], &target[..]].concat());
    send(&["--skip-unreadable"]).wait().expect(0);
    receiver.wait().expect(0);
    assert!(fs::read(out.join("tree/good")).unwrap() == fs::read(tree.join("good")).unwrap());
    let skipped = scratch.report("sender").skipped;
    assert!(skipped.len() == 1 && skipped[0].name.contains("secret"), "{skipped:?}");
}

/// What is done to a file while it is sent, and whether it can still arrive as it was.
type Change = (&'static str, fn(&Path), bool);

const CHANGES: [Change; 4] = [
    ("truncated", |path| open(path).set_len(100_000).unwrap(), false),
    ("grown", |path| append(path, SeekFrom::End(0)), false),
    ("overwritten in the middle", |path| append(path, SeekFrom::Start(20_000_000)), false),
    // What is open can be read to its end.
    ("deleted", |path| fs::remove_file(path).unwrap(), true),
];

fn open(path: &Path) -> fs::File {
    fs::File::options().write(true).open(path).unwrap()
}

fn append(path: &Path, at: SeekFrom) {
    let mut file = open(path);
    file.seek(at).unwrap();
    file.write_all(b"something else").unwrap();
}

#[test]
fn a_file_that_changes_while_it_is_sent_fails_alone_and_is_named() {
    for (what, change, may_arrive) in CHANGES {
        let scratch = Scratch::new();
        let (tree, out) = (scratch.path("tree"), scratch.path("r0"));
        fs::create_dir(&tree).unwrap();
        payload::file(&tree.join("before"), 100_000);
        payload::file(&tree.join("victim"), 24_000_000);
        payload::file(&tree.join("whole"), 200_000);
        let was = fs::read(tree.join("victim")).unwrap();
        let address = address();
        let ticket = scratch.ticket(&address);
        let mut receiver = receiver(&scratch, 0, &ticket, &[]);
        // Where all is sent in any case there is no need to be slow.
        let rate = if may_arrive { "60mbit" } else { "20mbit" };
        let rule = ["--receivers", "1", "--rate", rate];
        let sender = sender(&scratch, &address, &ticket, &[&tree], &rule);
        // Its first bytes are here, its last ones have not been read.
        let parts = out.join(".downpour/parts");
        receiver.until(|_| {
            fs::read_dir(&parts)
                .ok()?
                .find_map(|part| part.ok()?.metadata().ok().filter(|meta| meta.len() > 0))
        });
        change(&tree.join("victim"));
        let (sent, received) = (sender.wait(), receiver.wait());
        for name in ["before", "whole"] {
            assert!(
                fs::read(tree.join(name)).unwrap()
                    == fs::read(out.join("tree").join(name)).unwrap()
            );
        }
        if let Ok(arrived) = fs::read(out.join("tree/victim")) {
            assert!(may_arrive && arrived == was, "{what}");
            sent.expect(0);
            received.expect(0);
            continue;
        }
        for ended in [sent, received] {
            ended.expect(1);
            let named = ended.err.contains("failed: tree/victim: ");
            let why = if may_arrive { "removed" } else { "changed" };
            let why = format!("{why} while being sent");
            assert!(named && ended.err.contains(&why), "{what}: {}", ended.err);
        }
        let failed = scratch.report("sender").failed;
        assert!(failed.len() == 1 && failed[0].name == "tree/victim", "{what}: {failed:?}");
    }
}

/// The sender is told why, and the next receiver finds it waiting.
#[test]
fn a_target_that_cannot_be_written_or_is_too_small_is_told_on_both_sides() {
    let test = "a_target_that_cannot_be_written_or_is_too_small_is_told_on_both_sides";
    if let Some(why) = Network::missing() {
        return skipped(test, &why);
    }
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, 9_000_000);
    let address = address();
    let ticket = scratch.ticket(&address);
    let rule = ["--receivers", "1", "--rate", "200mbit"];
    let mut waiting = sender(&scratch, &address, &ticket, &[&file], &rule);
    // A folder that nobody can make, not even root.
    let nowhere = "/proc/downpour-test";
    let ended = receiver(&scratch, 7, &ticket, &["--out", nowhere]).wait();
    expect(&ended, 3, &["cannot write to /proc/downpour-test", "--out"]);
    waiting.until(|sender| {
        let text = sender.err();
        text.contains("r7 failed: cannot write to /proc/downpour-test").then_some(())
    });
    let small = scratch.path("r0");
    let full = SmallDisk::mount(&small, 4 << 20);
    let received = receiver(&scratch, 0, &ticket, &[]).wait();
    let (sent, left) = (waiting.wait(), fs::read_dir(&small).unwrap().count());
    drop(full);
    received.expect(1);
    sent.expect(1);
    assert_eq!(left, 1, "only what the next attempt goes on from");
    for ended in [received, sent] {
        assert!(
            ended.err.contains("not enough space") && ended.err.contains("are free"),
            "{}",
            ended.err
        );
        assert!(ended.err.contains("Make room and start again"), "{}", ended.err);
    }
    // Once there is room.
    let again = receiver(&scratch, 0, &ticket, &[]);
    sender(&scratch, &address, &ticket, &[&file], &rule).wait().expect(0);
    again.wait().expect(0);
}

/// All is pulled, and what a tree needs is known before the start: who stays is back when the other one is ready.
#[test]
fn who_stays_and_had_no_room_before_the_start_is_waited_for() {
    let test = "who_stays_and_had_no_room_before_the_start_is_waited_for";
    if let Some(why) = Network::missing() {
        return skipped(test, &why);
    }
    let session = OneFile::new(9_000_000);
    let small = session.scratch.path("r0");
    let _full = SmallDisk::mount(&small, 4 << 20);
    let mut stays = stay(&session, "r0");
    let mut sender = session.sender(&["--receivers", "2", "--path", "tcp"]);
    sender.until(|s| s.err().contains("r0 failed: not enough space").then_some(()));
    let more = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&small).status();
    assert!(more.unwrap().success());
    let other = session.receiver(1, &[]);
    let (sent, received) = (sender.wait(), other.wait());
    stays.until(|r| r.err().contains("the session is over; waiting").then_some(()));
    stays.terminate();
    for ended in [sent, received, stays.wait()] {
        ended.expect(0);
    }
    assert!(session.arrived(0));
}

#[test]
fn a_file_beyond_the_limit_on_sizes_fails_with_a_word() {
    let session = OneFile::new(6_000_000);
    let receiver = session.receiver_under(&["prlimit", "--fsize=4000000:4000000"], 0, &[]);
    let sent = session.sender(&["--receivers", "1", "--rate", "200mbit"]).wait();
    for ended in [sent, receiver.wait()] {
        ended.expect(1);
        assert!(ended.err.contains("ulimit -f"), "{}", ended.err);
    }
}

#[test]
fn a_receiver_whose_port_another_program_has_pulls() {
    let session = OneFile::new(3_000_000);
    // Its owner does not share it.
    let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let group = format!("239.255.72.9:{port}");
    let receiver = session.receiver(0, &[]);
    let rule = ["--receivers", "1", "--rate", "200mbit", "--group", &group];
    session.sender(&rule).wait().expect(0);
    let ended = receiver.wait();
    ended.expect(0);
    let told = format!("another program has UDP port {port}");
    assert!(session.arrived(0) && ended.err.contains(&told), "{}", ended.err);
    let report = session.scratch.report("sender");
    assert_eq!(report.receivers[0].stream_bytes, 0, "{report:?}");
}

fn limited(
    scratch: &Scratch,
    name: &str,
    files: u32,
    arguments: &[&str],
) -> crate::program::Running {
    let limit = format!("--nofile={files}:{files}");
    let program = scratch.program_under(&["prlimit", &limit], None, name, arguments);
    scratch.start_command(name, program)
}

#[test]
fn few_open_files_suffice_for_sixteen_receivers_and_too_few_are_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, 3_000_000);
    let address = address();
    let ticket = scratch.ticket(&address);
    let (ticket, file) = (ticket.to_str().unwrap(), file.to_str().unwrap());
    let send = ["send", file, "--ticket", ticket, "--listen", &address, "--interface", "lo"];
    let send = [&send[..], &["--receivers", "16", "--rate", "100mbit"]].concat();
    expect(&limited(&scratch, "sender", 50, &send).wait(), 3, &["only 50 files", "ulimit -n"]);

    let from = format!("@{ticket}");
    let receivers: Vec<_> = (0..16)
        .map(|index| {
            let name = format!("r{index}");
            let receive = ["receive", &from, "--interface", "lo", "--discard", "--name", &name];
            limited(&scratch, &name, 64, &receive)
        })
        .collect();
    let ended = limited(&scratch, "sender", 128, &send).wait();
    ended.expect(0);
    assert!(ended.err.contains("only 128 files, which suffice for about 10"), "{}", ended.err);
    for receiver in receivers {
        receiver.wait().expect(0);
    }
}

/// All is pulled instead, no faster than the sender may send, and both sides say why.
#[test]
fn without_a_route_to_the_group_all_is_pulled() {
    let test = "without_a_route_to_the_group_all_is_pulled";
    let spec = Spec { receivers: 1, ..Spec::default() };
    let Some(network) = Network::build_or_skip(test, &spec) else { return };
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, 8_000_000);
    let forget = |host: &crate::network::Host| {
        let done = host.command("ip").args(["route", "del", "224.0.0.0/4"]).status().unwrap();
        assert!(done.success());
    };
    let ticket = scratch.ticket(&format!("{}:28800", network.sender.ipv4));
    let from = format!("@{}", ticket.display());
    let run = |send: &[&str], receive: &[&str]| {
        let (out, report) = (scratch.path("out"), scratch.path("sender.json"));
        let _ = fs::remove_dir_all(&out);
        let receive = [&["receive", &from, "--out", out.to_str().unwrap()], receive].concat();
        let receiver = scratch.start(Some(&network.receivers[0]), "r0", &receive);
        let ticket = ["--ticket", ticket.to_str().unwrap(), "--report", report.to_str().unwrap()];
        let rule = ["--receivers", "1", "--rate", "50mbit", file.to_str().unwrap()];
        let send = [&["send"], &ticket[..], &rule, send].concat();
        let sender = scratch.start(Some(&network.sender), "sender", &send);
        let ended = (sender.wait(), receiver.wait());
        ended.0.expect(0);
        ended.1.expect(0);
        assert!(fs::read(&file).unwrap() == fs::read(out.join("file")).unwrap());
        let report = scratch.report("sender");
        let state = report.receivers[0].state.clone();
        // A slow machine only makes it slower.
        assert!(report.session.goodput_bps < 60_000_000, "{report:?}");
        (ended, state)
    };
    // The receiver joins on the interface that leads to the sender: no route is needed.
    forget(&network.receivers[0]);
    let (_, state) = run(&["--interface", "eth0"], &[]);
    assert!(matches!(state, ReceiverState::Complete), "{state:?}");
    // One that leads elsewhere hears nothing.
    let (ended, state) = run(&["--interface", "eth0"], &["--interface", "lo"]);
    assert!(matches!(state, ReceiverState::Pulled { .. }), "{state:?}");
    assert!(ended.1.err.contains("multicast does not reach this machine"), "{}", ended.1.err);
    // The sender has none, and was not told an interface.
    forget(&network.sender);
    let (ended, state) = run(&[], &[]);
    assert!(matches!(state, ReceiverState::Pulled { .. }), "{state:?}");
    assert!(ended.0.err.contains("no route to group") && ended.0.err.contains("--interface"));
}

/// What a sender reports whose receiver joined at `address`.
fn joined_at(address: &str, network: &Network, more: &[&str]) -> Report {
    let scratch = Scratch::new();
    let (file, out) = (scratch.path("file"), scratch.path("out"));
    payload::file(&file, 4_000_000);
    let ticket = scratch.ticket(address);
    let from = format!("@{}", ticket.display());
    let receive = ["receive", &from, "--out", out.to_str().unwrap()];
    let receiver = scratch.start(Some(&network.receivers[0]), "r0", &receive);
    let report = scratch.path("sender.json");
    let send = ["send", "--ticket", ticket.to_str().unwrap(), "--receivers", "1"];
    let rest = ["--report", report.to_str().unwrap(), file.to_str().unwrap()];
    let sender = scratch.start(Some(&network.sender), "sender", &[&send[..], more, &rest].concat());
    sender.wait().expect(0);
    receiver.wait().expect(0);
    assert!(fs::read(&file).unwrap() == fs::read(out.join("file")).unwrap());
    let report = scratch.report("sender");
    assert!(report.receivers[0].state.is_complete(), "{report:?}");
    report
}

#[test]
fn a_receiver_joins_by_ipv4_or_ipv6_whichever_the_group_is_of() {
    let test = "a_receiver_joins_by_ipv4_or_ipv6_whichever_the_group_is_of";
    let spec = Spec { receivers: 1, ..Spec::default() };
    let Some(network) = Network::build_or_skip(test, &spec) else { return };
    let v4 = format!("{}:28800", network.sender.ipv4);
    let v6 = format!("[{}]:28800", network.sender.ipv6);
    for (address, more) in
        [(&v6, &[][..]), (&v4, &["--group", "[ff15::7]:28819"]), (&v6, &["--path", "udp"])]
    {
        let report = joined_at(address, &network, more);
        assert!(report.session.feedback_messages > 0, "{address} {more:?}");
    }
    // Without IPv4 the stream takes a group of IPv6.
    for host in [&network.sender, &network.receivers[0]] {
        let flush = ["-4", "address", "flush", "dev", "eth0"];
        assert!(host.command("ip").args(flush).status().unwrap().success());
    }
    let report = joined_at(&v6, &network, &[]);
    assert!(report.session.group.is_some_and(|group| group.starts_with("[ff15:")));
}

/// More withdrawals than a receiver's queue of events holds, told before and while it reads the manifest.
#[test]
fn thousands_of_files_that_change_are_all_named() {
    const FILES: usize = 9_500;
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    fs::create_dir(&tree).unwrap();
    payload::file(&tree.join("whole"), 300_000);
    let name = |number: usize| tree.join(format!("f{number:05}"));
    (0..FILES).for_each(|number| fs::write(name(number), number.to_string().repeat(50)).unwrap());
    let address = address();
    let ticket = scratch.ticket(&address);
    let rule = ["--receivers", "1", "--rate", "100mbit"];
    let mut sender = sender(&scratch, &address, &ticket, &[&tree], &rule);
    sender.until(|sender| sender.err().contains("sending tree").then_some(()));
    // So that most have been hashed: then it is not the manifest that tells. All fail in any case.
    std::thread::sleep(std::time::Duration::from_secs(2));
    (0..FILES).for_each(|number| append(&name(number), SeekFrom::Start(0)));
    let received = receiver(&scratch, 0, &ticket, &[]).wait();
    sender.wait().expect(1);
    received.expect(1);
    let out = scratch.path("r0/tree");
    assert!(fs::read(tree.join("whole")).unwrap() == fs::read(out.join("whole")).unwrap());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    for side in ["sender", "r0"] {
        assert_eq!(scratch.report(side).failed.len(), FILES, "{side}");
    }
}
