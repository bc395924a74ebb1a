//! Sessions of the real program on this machine's loopback: no root needed.

use crate::between::Between;
use crate::payload;
use crate::ports::port;
use crate::program::{Running, Scratch};
use crate::skipped::skipped;
use downpour::report::ReceiverState;
use downpour::ticket::Ticket;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// An address of its own for each sender: tests run side by side.
pub(crate) fn address() -> String {
    format!("127.0.0.1:{}", port())
}

pub(crate) fn receiver(scratch: &Scratch, index: usize, ticket: &Path, more: &[&str]) -> Running {
    receiver_under(&[], scratch, index, ticket, more)
}

/// Run by another program, whose words come first.
fn receiver_under(
    under: &[&str],
    scratch: &Scratch,
    index: usize,
    ticket: &Path,
    more: &[&str],
) -> Running {
    let name = format!("r{index}");
    let (out, report) = (scratch.path(&name), scratch.path(&format!("{name}.json")));
    let ticket = format!("@{}", ticket.display());
    let arguments = ["receive", &ticket, "--interface", "lo", "--name", &name, "--report"];
    let target = ["--out", out.to_str().unwrap()];
    let target =
        if more.contains(&"--discard") || more.contains(&"--out") { &[][..] } else { &target };
    let arguments = [&arguments[..], &[report.to_str().unwrap()], target, more].concat();
    scratch.start_command(&name, scratch.program_under(under, None, &name, &arguments))
}

pub(crate) fn sender(
    scratch: &Scratch,
    address: &str,
    ticket: &Path,
    paths: &[&Path],
    more: &[&str],
) -> Running {
    sender_under(&[], scratch, address, ticket, paths, more)
}

/// Run by another program, whose words come first.
pub(crate) fn sender_under(
    under: &[&str],
    scratch: &Scratch,
    address: &str,
    ticket: &Path,
    paths: &[&Path],
    more: &[&str],
) -> Running {
    let report = scratch.path("sender.json");
    let (ticket, report) = (ticket.to_str().unwrap(), report.to_str().unwrap());
    let arguments =
        ["send", "--interface", "lo", "--listen", address, "--ticket", ticket, "--report", report];
    let paths: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let arguments = [&arguments[..], more, &paths].concat();
    scratch.start_command("sender", scratch.program_under(under, None, "sender", &arguments))
}

/// Sessions that send one file.
pub(crate) struct OneFile {
    pub(crate) scratch: Scratch,
    address: String,
    ticket: PathBuf,
}

impl OneFile {
    /// Of so many bytes.
    pub(crate) fn new(len: u64) -> Self {
        let scratch = Scratch::new();
        payload::file(&scratch.path("file"), len);
        let address = address();
        let ticket = scratch.ticket(&address);
        Self { scratch, address, ticket }
    }

    pub(crate) fn receiver(&self, index: usize, more: &[&str]) -> Running {
        receiver(&self.scratch, index, &self.ticket, more)
    }

    pub(crate) fn receiver_under(&self, under: &[&str], index: usize, more: &[&str]) -> Running {
        receiver_under(under, &self.scratch, index, &self.ticket, more)
    }

    pub(crate) fn sender(&self, more: &[&str]) -> Running {
        self.sender_under(&[], more)
    }

    /// Of what comes through a pipe instead.
    pub(crate) fn sender_of_pipe(&self, input: Stdio, more: &[&str]) -> Running {
        self.sender_of_pipe_under(&[], input, more)
    }

    /// The same, run by another program, whose words come first.
    pub(crate) fn sender_of_pipe_under(
        &self,
        under: &[&str],
        input: Stdio,
        more: &[&str],
    ) -> Running {
        let ticket = self.ticket.to_str().unwrap();
        let own = ["send", "-", "--interface", "lo", "--listen", &self.address, "--ticket", ticket];
        let words = [&own[..], more].concat();
        let mut program = self.scratch.program_under(under, None, "sender", &words);
        program.stdin(input);
        self.scratch.start_command("sender", program)
    }

    pub(crate) fn sender_under(&self, under: &[&str], more: &[&str]) -> Running {
        let file = self.scratch.path("file");
        sender_under(under, &self.scratch, &self.address, &self.ticket, &[&file], more)
    }

    /// Of something else instead.
    pub(crate) fn sender_of(&self, path: &Path, more: &[&str]) -> Running {
        sender(&self.scratch, &self.address, &self.ticket, &[path], more)
    }

    /// A sender and two receivers that have got the first of 16 seconds.
    fn under_way() -> (Self, Running, Vec<Running>) {
        let session = Self::new(40_000_000);
        let mut receivers = vec![session.receiver(0, &[]), session.receiver(1, &[])];
        let sender = session.sender(&["--receivers", "2", "--rate", "20mbit"]);
        receivers.iter_mut().for_each(|receiver| receiver.until_written(1_000_000));
        (session, sender, receivers)
    }

    /// Whether this receiver's file is the sender's.
    pub(crate) fn arrived(&self, index: usize) -> bool {
        let file = |path: &str| fs::read(self.scratch.path(path)).unwrap();
        file("file") == file(&format!("r{index}/file"))
    }
}

#[test]
fn a_tree_arrives_everywhere_as_it_was_through_loss() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    payload::tree(&tree, 300, 12_000_000);
    let address = address();
    let ticket = scratch.ticket(&address);
    let receivers: Vec<_> =
        (0..3).map(|i| receiver(&scratch, i, &ticket, &["--inject-loss", "3%"])).collect();
    let sender =
        sender(&scratch, &address, &ticket, &[&tree], &["--receivers", "3", "--rate", "20mbit"]);
    sender.wait().expect(0);
    for (index, receiver) in receivers.into_iter().enumerate() {
        receiver.wait().expect(0);
        payload::assert_same(&tree, &scratch.path(&format!("r{index}/tree")));
    }
    let report = scratch.report("sender");
    assert!(report.is_complete() && report.receivers.len() == 3);
    assert!(report.receivers.iter().all(|r| r.multicast && r.loss > 0.01), "{report:?}");
    // Who stood still for a while pulls what it missed, which costs more.
    let pulled = report.receivers.iter().any(|r| r.pull_bytes > 0);
    assert!(pulled || report.session.overhead < 0.25, "{report:?}");
}

#[test]
fn a_trace_tells_each_datagram_and_the_sites_ceiling_holds() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    payload::file(&file, 2_000_000);
    let config = scratch.path("sender.home/config");
    let address = address();
    // Makes the sender's home.
    let ticket = scratch.ticket(&address);
    fs::write(config.join("defaults.toml"), "ceiling = '40mbit'\nhard = true\n").unwrap();
    let (sent, got) = (scratch.path("sent.zst"), scratch.path("got.zst"));
    let receiver = receiver(&scratch, 0, &ticket, &["--trace", got.to_str().unwrap()]);
    let rule = ["--receivers", "1", "--rate", "900mbit", "--trace", sent.to_str().unwrap()];
    let ended = sender(&scratch, &address, &ticket, &[&file], &rule).wait();
    receiver.wait().expect(0);
    let line = ended.err.lines().find(|line| line.starts_with("rate: ")).unwrap_or_default();
    assert!(line.contains("auto, 40.0 Mbit/s at most (hard in "), "{}", ended.err);
    ended.expect(0);
    let report = scratch.report("sender");
    assert_eq!(report.session.rate_limit_bps, Some(40_000_000));
    assert!(report.notices.is_empty(), "{report:?}");
    let data = |path: &Path| {
        let lines = trace_lines(path);
        assert_eq!(lines[0]["type"], "trace");
        let end = lines.last().unwrap();
        assert_eq!((end["type"].as_str(), end["lost"].as_u64()), (Some("end"), Some(0)));
        let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
        (of("data"), of("sample"), of("rate"))
    };
    let (symbols, samples, rates) = data(&sent);
    assert!(symbols >= 2_000_000 / 1448 && samples > 0 && rates > samples, "{symbols} {samples}");
    let (arrived, ..) = data(&got);
    assert!(arrived > symbols / 2 && arrived <= symbols, "{arrived} of {symbols}");
}

pub(crate) fn trace_lines(path: &Path) -> Vec<serde_json::Value> {
    let mut text = String::new();
    let file = fs::File::open(path).unwrap();
    zstd::Decoder::new(file).unwrap().read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_second_run_sends_nothing_again_and_replaces_only_when_told() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    payload::tree(&tree, 40, 6_000_000);
    let address = address();
    let ticket = scratch.ticket(&address);
    let run = |more: &[&str]| {
        let receiver = receiver(&scratch, 0, &ticket, more);
        let rule = ["--receivers", "1", "--rate", "200mbit"];
        let sender = sender(&scratch, &address, &ticket, &[&tree], &rule);
        (sender.wait(), receiver.wait(), scratch.report("sender"))
    };
    let (sent, received, first) = run(&[]);
    sent.expect(0);
    received.expect(0);
    let (sent, received, second) = run(&[]);
    sent.expect(0);
    received.expect(0);
    let fresh = first.session.sent.total();
    assert!(fresh > 5_000_000, "{first:?}");
    assert!(second.session.sent.total() < fresh / 20, "{second:?}");

    let changed = scratch.path("r0/tree/odd/one");
    fs::remove_file(&changed).unwrap();
    fs::write(&changed, "another text, of the user's own").unwrap();
    let (sent, received, _) = run(&[]);
    sent.expect(1);
    received.expect(1);
    assert_eq!(fs::read_to_string(&changed).unwrap(), "another text, of the user's own");
    let (sent, received, _) = run(&["--overwrite"]);
    sent.expect(0);
    received.expect(0);
    payload::assert_same(&tree, &scratch.path("r0/tree"));
}

#[test]
fn setuid_arrives_only_when_asked_for() {
    if !rustix::process::geteuid().is_root() {
        return skipped("setuid_arrives_only_when_asked_for", "needs root");
    }
    let session = OneFile::new(1000);
    let mode = |name: &str| fs::metadata(session.scratch.path(name)).unwrap().mode() & 0o7777;
    fs::set_permissions(session.scratch.path("file"), Permissions::from_mode(0o6755)).unwrap();
    let receivers = [session.receiver(0, &[]), session.receiver(1, &["--setuid"])];
    session.sender(&["--receivers", "2"]).wait().expect(0);
    for receiver in receivers {
        receiver.wait().expect(0);
    }
    assert_eq!((mode("r0/file"), mode("r1/file")), (0o755, 0o6755));
}

#[test]
fn paths_arrive_as_with_rsync() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    payload::tree(&tree, 5, 50_000);
    payload::file(&scratch.path("big"), 300_000);
    let address = address();
    let ticket = scratch.ticket(&address);
    let contents = format!("{}/", tree.display());
    let receiver = receiver(&scratch, 0, &ticket, &[]);
    let paths = [Path::new(&contents), &scratch.path("big")];
    let rule = ["--receivers", "1", "--rate", "200mbit"];
    sender(&scratch, &address, &ticket, &paths, &rule).wait().expect(0);
    receiver.wait().expect(0);
    let same = |name: &str| fs::read(scratch.path(name)).unwrap();
    assert_eq!(same("big"), same("r0/big"));
    assert!(scratch.path("r0/odd/empty folder").is_dir() && !scratch.path("r0/tree").exists());
}

#[test]
fn a_pipe_comes_out_of_a_pipe_in_order() {
    let scratch = Scratch::new();
    payload::file(&scratch.path("data"), 9_000_001);
    let address = address();
    let ticket = scratch.ticket(&address);
    let receiver =
        receiver(&scratch, 0, &ticket, &["--out", "-", "--inject-loss", "2%", "--quiet"]);
    let file = ticket.to_str().unwrap();
    let arguments = ["send", "-", "--interface", "lo", "--listen", &address, "--ticket", file];
    let rule = ["--receivers", "1", "--rate", "100mbit"];
    let mut command = scratch.program(None, "sender", &[&arguments[..], &rule].concat());
    let (input, mut writer) = std::io::pipe().unwrap();
    command.stdin(input);
    let sender = scratch.start_command("sender", command);
    let data = fs::read(scratch.path("data")).unwrap();
    writer.write_all(&data).unwrap();
    drop(writer);
    sender.wait().expect(0);
    receiver.wait().expect(0);
    assert!(fs::read(scratch.path("r0.out")).unwrap() == data);
}

#[test]
fn an_expected_machine_that_never_comes_is_named() {
    let session = OneFile::new(500_000);
    let expected = session.scratch.path("expected");
    fs::write(&expected, "r0\nnode-of-fred\n").unwrap();
    let mut receiver = session.receiver(0, &["--discard"]);
    receiver.until(|r| r.err().contains("waiting").then_some(()));
    // Longer than a stream may be silent.
    let rule =
        ["--expect", expected.to_str().unwrap(), "--start-after", "10s", "--rate", "100mbit"];
    let ended = session.sender(&rule).wait();
    ended.expect(1);
    assert!(ended.err.contains("node-of-fred"), "{}", ended.err);
    receiver.wait().expect(0);
    let report = session.scratch.report("sender");
    let absent = report.receivers.iter().find(|r| r.name == "node-of-fred").unwrap();
    assert_eq!(absent.state, ReceiverState::Absent);
    let waited = report.receivers.iter().find(|r| r.name == "r0").unwrap();
    assert_eq!(waited.state, ReceiverState::Complete, "it gets the stream");
}

#[test]
fn fewer_than_were_wanted_is_not_complete() {
    let session = OneFile::new(1000);
    let mut receiver = session.receiver(0, &["--discard"]);
    receiver.until(|r| r.err().contains("waiting").then_some(()));
    let ended = session.sender(&["--receivers", "2", "--start-after", "10s"]).wait();
    ended.expect(1);
    assert!(ended.err.contains("receivers that joined: 1, fewer than the 2"), "{}", ended.err);
    receiver.wait().expect(0);
}

#[test]
fn who_stays_takes_part_once_in_each_session() {
    /// At 1 Mbit/s far longer than from one line of progress to the next.
    const LEN: u64 = 1_500_000;
    let session = OneFile::new(LEN);
    let (way, detour) = (address(), session.scratch.path("detour"));
    let between = Between::new(&way, &session.address);
    let direct = Ticket::read_file(&session.ticket).unwrap();
    Ticket { addrs: vec![way], ..direct }.write_file(&detour).unwrap();
    let ticket = format!("@{}", detour.display());
    let out = session.scratch.path("r0");
    let stays = ["receive", &ticket, "--interface", "lo", "--name", "r0", "--stay", "--out"];
    let stays = [&stays[..], &[out.to_str().unwrap()]].concat();
    let stays = session.scratch.start(None, "r0", &stays);
    session.sender(&["--receivers", "1"]).wait().expect(0);
    // It holds all of it by now, and gives its receipt long before the other.
    let late = session.receiver(1, &[]);
    let mut sender = session.sender(&["--receivers", "2", "--rate", "1mbit"]);
    sender.until(|s| s.err().contains(" complete=1").then_some(()));
    between.cut();
    between.mend();
    sender.wait().expect(0);
    late.wait().expect(0);
    let report = session.scratch.report("sender");
    let its = report.receivers.iter().find(|r| r.name == "r0").unwrap();
    assert!(its.joined_s == 0.0 && its.kept_bytes == LEN, "{its:?}");
    assert!(!stays.err().contains("lost"), "{}", stays.err());
}

#[test]
fn who_has_begun_and_loses_its_sender_for_good_reports_what_has_come() {
    let session = OneFile::new(40_000_000);
    let trace = session.scratch.path("got.zst");
    let mut sender = session.sender(&["--receivers", "1", "--rate", "20mbit"]);
    sender.until(|s| s.err().contains("the ticket is the line above").then_some(()));
    // It may not take long to join, either.
    let more = ["--join-timeout", "1s", "--trace", trace.to_str().unwrap()];
    let mut receiver = session.receiver(0, &more);
    receiver.until_written(5_000_000);
    sender.kill();
    let ended = receiver.wait();
    ended.expect(1);
    assert!(ended.err.contains("the sender is lost"), "{}", ended.err);
    let report = session.scratch.report("r0");
    let ReceiverState::Failed { why } = &report.receivers[0].state else { panic!("{report:?}") };
    assert!(why.contains("did not answer within 1.00 s"), "{why}");
    assert!(report.receivers[0].stream_bytes > 0, "{report:?}");
    assert_eq!(trace_lines(&trace).last().unwrap()["type"], "end");
}

/// A signal ends a receiver, then the sender: each says so to the others, and in its report.
fn ends_both_sides_cleanly(signal: fn(&Running)) {
    let (session, mut sender, mut receivers) = OneFile::under_way();
    signal(&receivers[1]);
    let left = receivers.pop().unwrap().wait();
    left.expect(1);
    assert!(left.err.contains("interrupted; what has arrived is kept"), "{}", left.err);
    sender.until(|s| s.err().contains("r1 failed: interrupted").then_some(()));
    signal(&sender);
    let ended = sender.wait();
    ended.expect(1);
    assert!(ended.err.contains("interrupted before everybody was complete"), "{}", ended.err);
    let left = receivers.pop().unwrap().wait();
    left.expect(1);
    assert!(left.err.contains("the sender was interrupted"), "{}", left.err);
    let report = session.scratch.report("sender");
    let why = |name| match &report.receivers.iter().find(|r| r.name == name).unwrap().state {
        ReceiverState::Failed { why } => why.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(why("r0"), "the sender was interrupted");
    assert!(why("r1").starts_with("interrupted"), "{}", why("r1"));
}

#[test]
fn who_is_interrupted_tells_the_others_and_writes_its_report() {
    ends_both_sides_cleanly(Running::interrupt);
}

#[test]
fn who_is_terminated_tells_the_others_and_writes_its_report() {
    ends_both_sides_cleanly(Running::terminate);
}

#[test]
fn nobody_who_joined_is_told() {
    let ended = OneFile::new(1000).sender(&["--start-after", "0s"]).wait();
    ended.expect(1);
    assert!(ended.err.contains("nobody joined"), "{}", ended.err);
}
