//! What goes wrong before or at the start: each time a message that says what to do, and the right exit
//! status. No root needed, but for a disk that is full.

use crate::network::Network;
use crate::payload;
use crate::program::{Ended, Scratch};
use crate::sessions::address;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
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
    let address = address();
    let taken = TcpListener::bind(&address).unwrap();
    let send = ["send", "--receivers", "1", "--interface", "lo"];
    let damaged = "downpour1:eyJhZGRycyI6WyIxMjcuMC4wLjE6Mjk5MDEiXSwi.AAAAAA";
    let cases: [(&[&str], i32, &[&str]); 11] = [
        (&["/no/such/path"], 3, &["/no/such/path"]),
        (&[file, "--interface", "eth77"], 2, &["eth77", "lo"]),
        (&[file, "--group", "10.0.0.1:5000"], 2, &["10.0.0.1", "239."]),
        (&[file, "--listen", &address], 3, &[&address]),
        (&[file, "--ticket", "/no/such/ticket"], 3, &["/no/such/ticket"]),
        (&[file, "--profile", "fixed"], 2, &["--rate"]),
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
fn usage_errors_have_status_two() {
    let scratch = Scratch::new();
    for arguments in [
        &["send"][..],
        &["send", "/etc/hosts", "--rate", "100"],
        &["send", "/etc/hosts", "--receivers", "0"],
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
    let make = ["ticket", "new", "--address", "127.0.0.1:28999", "--out", file, "--expires"];
    assert!(scratch.run(None, "it", &[&make[..], &["500ms"]].concat()).status.success());
    std::thread::sleep(std::time::Duration::from_millis(1600));
    let old = format!("@{file}");
    let ended = scratch.start(None, "it", &["receive", &old, "--discard"]).wait();
    expect(&ended, 3, &["expired"]);

    assert!(scratch.run(None, "it", &[&make[..], &["1h"]].concat()).status.success());
    let arguments = ["receive", &old, "--discard", "--join-timeout", "1s"];
    let ended = scratch.start(None, "it", &arguments).wait();
    expect(&ended, 3, &["127.0.0.1:28999"]);
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_left_out_only_when_told() {
    let name = "a_file_that_cannot_be_read_is_named_and_left_out_only_when_told";
    let scratch = Scratch::new();
    let is_root = Network::missing().is_none();
    if is_root
        && !Command::new("setpriv").arg("--version").output().is_ok_and(|o| o.status.success())
    {
        println!("skipped: {name}: root can read everything, and there is no setpriv");
        return;
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
