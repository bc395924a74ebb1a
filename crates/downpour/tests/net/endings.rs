//! How the program ends when it is held up, or cannot say what it has to: on loopback, no root needed.

use crate::payload;
use crate::program::{HANG, Running, Scratch};
use crate::sessions::{OneFile, address, receiver, sender};
use crate::skipped::{not_here, skipped};
use downpour::report::{ReceiverState, Report};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a shell calls an end by Ctrl-C.
const BY_INTERRUPT: Option<i32> = Some(130);
/// The same of SIGTERM.
const BY_TERMINATION: Option<i32> = Some(143);

/// Always full.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

pub(crate) fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Both ends of one, so that nobody waits to open it; nor does a read wait.
fn open_fifo(path: &Path) -> File {
    fifo(path);
    let flags = OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// The receiver's thread is in a write to a pipe that nobody reads, and stays there.
#[test]
fn a_receiver_that_its_output_holds_up_lets_the_others_go_on_and_is_ended_by_signals() {
    let session = OneFile::new(3_000_000);
    let out = session.scratch.path("r0.out");
    let mut pipe = open_fifo(&out);
    let mut held = session.receiver(0, &["--out", "-"]);
    fs::remove_file(&out).unwrap();
    let other = session.receiver(1, &[]);
    let sender = session.sender(&["--receivers", "2", "--rate", "200mbit"]);
    // What comes at once is more than a pipe takes.
    held.until(|_| pipe.read_exact(&mut [0]).ok());
    held.interrupt();
    let sent = sender.wait();
    sent.expect(1);
    assert!(sent.err.contains("r0 failed: interrupted\n"), "{}", sent.err);
    other.wait().expect(0);
    assert!(session.arrived(1));
    let end = Instant::now() + HANG;
    while !held.is_over() {
        assert!(Instant::now() < end, "it hangs:\n{}", held.err());
        held.interrupt();
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = held.wait();
    assert_eq!(ended.code, BY_INTERRUPT, "{ended:?}");
}

/// A file system whose server answers nothing, as of a share of the network that is away.
struct Silent(PathBuf, Option<File>);

impl Silent {
    /// `None` where none may be mounted.
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0"]);
        mount.arg("downpour-test").arg(at).stdin(server.try_clone().unwrap());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(at.into(), Some(server)))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Whoever waits for it is told that it is gone.
        self.1 = None;
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_receiver_whose_target_does_not_answer_is_ended_by_signals() {
    let session = OneFile::new(1);
    let mut held = session.receiver(0, &[]);
    held.until(|held| held.err().contains("phase=waiting").then_some(()));
    let Some(_silent) = Silent::mount(&session.scratch.path("r0")) else {
        let test = "a_receiver_whose_target_does_not_answer_is_ended_by_signals";
        return not_here(test, "no file system of /dev/fuse may be mounted");
    };
    let _sender = session.sender(&["--receivers", "1"]);
    held.until(|held| held.waits_for_fuse("").then_some(()));
    let end = Instant::now() + HANG;
    while !held.is_over() {
        assert!(Instant::now() < end, "it hangs:\n{}", held.err());
        held.terminate();
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = held.wait();
    assert_eq!(ended.code, BY_TERMINATION, "{ended:?}");
    assert!(ended.err.contains("ended at once by a signal"), "{ended:?}");
}

#[test]
fn a_sender_whose_disk_does_not_answer_any_more_reports_when_the_session_is_over() {
    let session = OneFile::new(1);
    let folder = session.scratch.path("folder");
    fs::create_dir(&folder).unwrap();
    // Each is opened when it is read.
    (0..40).for_each(|n| payload::file(&folder.join(n.to_string()), 1_000_000));
    let mut receiver = session.receiver(0, &[]);
    let mut held = session.sender_of(&folder, &["--receivers", "1", "--rate", "20mbit"]);
    receiver.until_written(2_000_000);
    let Some(_silent) = Silent::mount(&folder) else {
        let test = "a_sender_whose_disk_does_not_answer_any_more_reports_when_the_session_is_over";
        return not_here(test, "no file system of /dev/fuse may be mounted");
    };
    held.until(|held| held.waits_for_fuse("downpour-read").then_some(()));
    receiver.interrupt();
    receiver.wait().expect(1);
    let ended = held.wait();
    ended.expect(1);
    assert!(ended.err.contains("r0 failed: interrupted"), "{ended:?}");
    assert!(!session.scratch.report("sender").is_complete());
}

/// The pipe stays open, and nobody writes to it.
#[test]
fn a_sender_whose_input_gives_nothing_is_ended_by_one_signal() {
    let session = OneFile::new(1);
    let (input, _writer) = std::io::pipe().unwrap();
    let mut sender = session.sender_of_pipe(input.into(), &["--receivers", "1"]);
    sender.until(|sender| sender.err().contains("phase=waiting").then_some(()));
    sender.interrupt();
    let ended = sender.wait();
    ended.expect(1);
    assert!(ended.err.contains("nobody joined"), "{ended:?}");
}

/// As the log of a program that copies it and cuts it.
#[test]
fn an_input_that_is_cut_while_it_is_sent_ends_both_sides_and_both_say_why() {
    let session = OneFile::new(30_000_000);
    let receiver = session.receiver(0, &[]);
    let file = session.scratch.path("file");
    let rule = ["--receivers", "1", "--rate", "8mbit"];
    let mut sender = session.sender_of_pipe(File::open(&file).unwrap().into(), &rule);
    sender.until(|s| s.err().contains("phase=streaming").then_some(()));
    File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    for ended in [sender.wait(), receiver.wait()] {
        ended.expect(1);
        assert!(ended.err.contains("the input changed while being sent"), "{}", ended.err);
    }
}

pub(crate) fn stay(session: &OneFile, name: &str) -> Running {
    let out = session.scratch.path(name);
    stay_with(&session.scratch, name, &["--out", out.to_str().unwrap()])
}

fn stay_with(scratch: &Scratch, name: &str, more: &[&str]) -> Running {
    let ticket = format!("@{}", scratch.path("ticket").display());
    let stays = ["receive", &ticket, "--interface", "lo", "--name", name, "--stay"];
    scratch.start(None, name, &[&stays[..], more].concat())
}

#[test]
fn who_stays_tells_what_failed_and_ends_as_its_sessions_did() {
    let session = OneFile::new(100_000);
    let (mut good, mut bad) = (stay(&session, "r0"), stay(&session, "r1"));
    session.sender(&["--receivers", "2"]).wait().expect(0);
    for running in [&mut good, &mut bad] {
        running.until(|r| r.err().contains("the session is over; waiting").then_some(()));
    }
    good.interrupt();
    good.wait().expect(0);
    fs::write(session.scratch.path("r1/file"), "another").unwrap();
    session.sender(&["--receivers", "1"]).wait().expect(1);
    bad.until(|r| r.err().contains("the session is over (1 failed); waiting").then_some(()));
    assert!(bad.err().contains("failed: file: exists and differs"), "{}", bad.err());
    bad.interrupt();
    bad.wait().expect(1);
}

#[test]
fn who_stays_tells_of_a_session_whose_sender_was_lost_and_did_not_come_back() {
    let session = OneFile::new(5_000_000);
    let mut stays = stay(&session, "r0");
    let mut lost = session.sender(&["--receivers", "1", "--rate", "1mbit"]);
    lost.until(|s| s.err().contains("phase=streaming").then_some(()));
    lost.kill();
    stays.until(|r| r.err().contains("the sender is lost").then_some(()));
    session.sender(&["--receivers", "1"]).wait().expect(0);
    stays.until(|r| r.err().contains("the session is over; waiting").then_some(()));
    assert!(
        stays.err().contains("it did not come back); another one has begun"),
        "{}",
        stays.err()
    );
    stays.interrupt();
    stays.wait().expect(1);
}

#[test]
fn who_stays_and_cannot_open_its_folder_any_more_comes_back_until_it_can() {
    let session = OneFile::new(100_000);
    let mut stays = stay(&session, "r0");
    session.sender(&["--receivers", "1"]).wait().expect(0);
    stays.until(|r| r.err().contains("the session is over; waiting").then_some(()));
    let out = session.scratch.path("r0");
    stays.until(|_| (!out.join(".downpour").exists()).then_some(()));
    fs::remove_dir_all(&out).unwrap();
    fs::write(&out, "in the way").unwrap();
    let sender = session.sender(&["--receivers", "1"]);
    stays.until(|r| r.err().contains("this receiver failed (cannot write to ").then_some(()));
    assert!(stays.err().contains("; joining again"), "{}", stays.err());
    fs::remove_file(&out).unwrap();
    sender.wait().expect(0);
    assert!(session.arrived(0));
    let is_over = |r: &Running| r.err().matches("the session is over; waiting").count() == 2;
    stays.until(|r| is_over(r).then_some(()));
    stays.interrupt();
    stays.wait().expect(0);
}

#[test]
fn who_stays_comes_back_until_another_receiver_has_left_its_folder() {
    let session = OneFile::new(100_000);
    let mut stays = stay(&session, "r0");
    session.sender(&["--receivers", "1"]).wait().expect(0);
    let ours = session.scratch.path("r0/.downpour");
    stays.until(|r| r.err().contains("the session is over; waiting").then_some(()));
    stays.until(|_| (!ours.exists()).then_some(()));
    let others = folder_in_use(&session);
    let sender = session.sender(&["--receivers", "1"]);
    stays.until(|r| r.err().contains("another receiver is running into ").then_some(()));
    assert!(!sender.err().contains("failed"), "it has not joined: {}", sender.err());
    others.unlock().unwrap();
    sender.wait().expect(0);
    let is_over = |r: &Running| r.err().matches("the session is over; waiting").count() == 2;
    stays.until(|r| is_over(r).then_some(()));
    stays.interrupt();
    stays.wait().expect(0);
}

#[test]
fn a_receiver_into_a_folder_that_another_one_has_leaves_that_one_alone() {
    // A session that lasts longer than this test.
    let session = OneFile::new(40_000_000);
    let mut first = session.receiver(0, &[]);
    let mut sender = session.sender(&["--receivers", "1", "--rate", "8mbit"]);
    sender.until(|s| s.err().contains("phase=streaming").then_some(()));
    let ticket = format!("@{}", session.scratch.path("ticket").display());
    let out = session.scratch.path("r0");
    let words = ["receive", &ticket, "--name", "r0", "--out", out.to_str().unwrap()];
    for more in [&[][..], &["--stay"]] {
        let second = session.scratch.run(None, "r0", &[&words, more].concat());
        second.expect(3);
        let said = second.err;
        assert!(said.contains("another receiver is running into "), "{said}");
        assert!(said.contains("wait for it") && !said.contains("your rights"), "{said}");
    }
    let had = first.written();
    first.until_written(had + 500_000);
    assert!(!first.err().contains("the sender is lost"), "{}", first.err());
    sender.interrupt();
    sender.wait().expect(1);
    first.wait().expect(1);
}

/// Another receiver has the folder of the first one until this is unlocked: were it closed alone, a program that another test
/// starts at that moment would hold it until it runs.
fn folder_in_use(session: &OneFile) -> File {
    let folder = session.scratch.path("r0/.downpour");
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    lock
}

#[test]
fn who_waits_for_its_sender_leaves_the_folder_to_others_meanwhile() {
    let session = OneFile::new(100_000);
    let others = folder_in_use(&session);
    let mut waits = session.receiver(0, &[]);
    waits.until(|r| r.err().contains("phase=waiting").then_some(()));
    others.unlock().unwrap();
    session.sender(&["--receivers", "1"]).wait().expect(0);
    waits.wait().expect(0);
}

#[test]
fn who_stays_and_has_waited_for_its_first_sender_waits_for_its_folder_too() {
    let session = OneFile::new(100_000);
    let others = folder_in_use(&session);
    let mut stays = stay(&session, "r0");
    stays.until(|r| r.err().contains("phase=waiting").then_some(()));
    let sender = session.sender(&["--receivers", "1"]);
    stays.until(|r| r.err().contains("; joining when it has left").then_some(()));
    others.unlock().unwrap();
    sender.wait().expect(0);
    stays.until(|r| r.err().contains("the session is over; waiting").then_some(()));
    stays.interrupt();
    stays.wait().expect(0);
}

#[test]
fn who_stays_and_fails_takes_part_once_in_a_session_that_goes_on() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    payload::tree(&tree, 3, 500_000);
    let address = address();
    let ticket = scratch.ticket(&address);
    let out = scratch.path("r0");
    let small = ["--max-entries", "1", "--out", out.to_str().unwrap()];
    let mut stays = stay_with(&scratch, "r0", &small);
    let other = receiver(&scratch, 1, &ticket, &[]);
    let rule = ["--receivers", "2", "--rate", "1mbit"];
    let sent = sender(&scratch, &address, &ticket, &[&tree], &rule).wait();
    sent.expect(1);
    other.wait().expect(0);
    stays.until(|r| r.err().contains("; waiting for the next one").then_some(()));
    stays.terminate();
    let ended = stays.wait();
    ended.expect(1);
    assert_eq!(sent.err.matches("r0 failed").count(), 1, "{}", sent.err);
    for said in ["; waiting for the end of the session", "the session is over ("] {
        assert_eq!(ended.err.matches(said).count(), 1, "{}", ended.err);
    }
    assert!(!ended.err.contains("sessions, of which"), "{}", ended.err);
}

#[test]
fn who_stays_ends_when_its_output_can_take_nothing_more() {
    let session = OneFile::new(3_000_000);
    let out = session.scratch.path("r0.out");
    let mut pipe = open_fifo(&out);
    let mut stays = stay_with(&session.scratch, "r0", &["--out", "-"]);
    fs::remove_file(&out).unwrap();
    let sender = session.sender(&["--receivers", "1", "--rate", "200mbit"]);
    stays.until(|_| pipe.read_exact(&mut [0]).ok());
    drop(pipe);
    let ended = stays.wait();
    ended.expect(1);
    assert!(ended.err.contains("writing to the output: Broken pipe"), "{}", ended.err);
    sender.wait().expect(1);
}

/// As while a large tree is walked: the trace waits for one who reads it.
#[test]
fn a_sender_that_is_not_open_yet_is_ended_by_one_signal() {
    let session = OneFile::new(1_000);
    let trace = session.scratch.path("trace");
    fifo(&trace);
    let trace = trace.to_str().unwrap();
    let signals: [(fn(&Running), _); 2] =
        [(Running::interrupt, BY_INTERRUPT), (Running::terminate, BY_TERMINATION)];
    for (signal, code) in signals {
        let mut sender = session.sender(&["--receivers", "1", "--trace", trace]);
        sender.until(|sender| sender.catches_signals().then_some(()));
        signal(&sender);
        let ended = sender.wait();
        assert_eq!(ended.code, code, "{ended:?}");
    }
}

/// A disk whose syncs fail: what came is taken back, both sides say so, and the next try has it all.
#[test]
fn a_receiver_that_cannot_sync_gives_no_receipt() {
    let test = "a_receiver_that_cannot_sync_gives_no_receipt";
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped(test, "needs strace (make test-setup installs it)");
    }
    let session = OneFile::new(3_000_000);
    let failing = ["trace=syncfs,fdatasync", "-e", "inject=syncfs,fdatasync:error=EIO"];
    // With -D the program is our own child.
    let strace = ["strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e"];
    let receiver = session.receiver_under(&[&strace[..], &failing].concat(), 0, &[]);
    let rule = ["--receivers", "1", "--rate", "200mbit"];
    let (sent, received) = (session.sender(&rule).wait(), receiver.wait());
    sent.expect(1);
    received.expect(1);
    assert!(received.err.contains("syncing the target"), "{}", received.err);
    let state = session.scratch.report("sender").receivers[0].state.clone();
    let is_told = |why: &str| why.contains("syncing the target");
    assert!(matches!(&state, ReceiverState::Failed { why } if is_told(why)), "{state:?}");
    assert!(!session.scratch.path("r0/file").exists());
    let again = session.receiver(0, &[]);
    session.sender(&rule).wait().expect(0);
    again.wait().expect(0);
    assert!(session.arrived(0));
}

/// Also where the tests themselves are deaf to hang-ups, as under nohup.
const HEARS_HANG_UPS: [&str; 2] = ["env", "--default-signal=HUP"];

#[test]
fn a_hang_up_ends_a_receiver_without_a_word() {
    let session = OneFile::new(10_000_000);
    let stays = session.receiver(0, &[]);
    let leaves = session.receiver_under(&HEARS_HANG_UPS, 1, &[]);
    let mut sender = session.sender(&["--receivers", "2", "--rate", "8mbit"]);
    sender.until(|s| s.err().contains("phase=streaming").then_some(()));
    leaves.hang_up();
    assert_eq!(leaves.wait().code, None);
    sender.wait().expect(1);
    stays.wait().expect(0);
    let report = session.scratch.report("sender");
    let its = report.receivers.iter().find(|r| r.name == "r1").unwrap();
    assert!(matches!(its.state, ReceiverState::Gone { .. }), "{its:?}");
}

#[test]
fn a_hang_up_ends_a_sender_without_a_word() {
    let session = OneFile::new(10_000_000);
    let receiver = session.receiver(0, &["--join-timeout", "10s"]);
    let rule = ["--receivers", "1", "--rate", "8mbit"];
    let mut sender = session.sender_under(&HEARS_HANG_UPS, &rule);
    sender.until(|s| s.err().contains("phase=streaming").then_some(()));
    sender.hang_up();
    assert_eq!(sender.wait().code, None);
    let ended = receiver.wait();
    ended.expect(1);
    assert!(ended.err.contains("the sender is lost"), "{}", ended.err);
    assert!(!ended.err.contains("interrupted"), "{}", ended.err);
}

/// What comes through a pipe is kept for those who need it again, where there is room.
#[test]
fn a_pipe_that_cannot_be_kept_ends_both_sides_and_both_say_why() {
    let session = OneFile::new(20_000_000);
    let receiver = session.receiver(0, &[]);
    let (input, mut writer) = std::io::pipe().unwrap();
    let limit = ["prlimit", "--fsize=12000000:12000000"];
    let rule = ["--receivers", "1", "--rate", "200mbit"];
    let mut sender = session.sender_of_pipe_under(&limit, input.into(), &rule);
    let bytes = fs::read(session.scratch.path("file")).unwrap();
    let (streams, streaming) = std::sync::mpsc::channel();
    let feeding = std::thread::spawn(move || {
        // As much as the stream begins with.
        let (first, rest) = bytes.split_at(9 << 20);
        writer.write_all(first).unwrap();
        let _ = streaming.recv();
        // Fails where nobody reads it any more.
        let _ = writer.write_all(rest);
    });
    sender.until(|s| s.err().contains("phase=streaming").then_some(()));
    streams.send(()).unwrap();
    for ended in [sender.wait(), receiver.wait()] {
        ended.expect(1);
        assert!(ended.err.contains("keeping the input in "), "{}", ended.err);
    }
    feeding.join().unwrap();
}

#[test]
fn a_transfer_goes_on_without_standard_error_and_a_lost_report_is_told() {
    let session = OneFile::new(1_000_000);
    let under = |redirected| ["sh", "-c", redirected, "sh"];
    let receiver =
        session.receiver_under(&under("exec \"$@\" >/dev/full"), 0, &["--json", "--quiet"]);
    let rule = ["--receivers", "1", "--rate", "200mbit"];
    session.sender_under(&under("exec \"$@\" 2>/dev/full"), &rule).wait().expect(0);
    let received = receiver.wait();
    received.expect(1);
    assert!(received.err.contains("standard output could not be written"), "{}", received.err);
    assert!(session.arrived(0));
    assert!(session.scratch.report("r0").is_complete(), "written all the same");
}

#[test]
fn the_report_is_alone_on_standard_output() {
    let session = OneFile::new(100_000);
    let receiver = session.receiver(0, &["--json"]);
    let sent = session.sender(&["--receivers", "1", "--json"]).wait();
    sent.expect(0);
    let received = receiver.wait();
    received.expect(0);
    for ended in [&sent, &received] {
        let report: Report = serde_json::from_str(&ended.out).expect("a report and nothing else");
        assert!(report.is_complete());
        assert!(!ended.err.contains(&report.summary()), "{}", ended.err);
    }
    assert!(sent.err.contains("downpour1:"), "the ticket: {}", sent.err);
}

/// A demo that sends, and the folder that it works in.
fn demo(scratch: &Scratch) -> (Running, PathBuf) {
    let (file, place) = (scratch.path("file"), scratch.path("place"));
    payload::file(&file, 20_000_000);
    fs::create_dir(&place).unwrap();
    let (file, at) = (file.to_str().unwrap(), place.to_str().unwrap());
    let words = ["demo", file, "--place", at, "--receivers", "2", "--rate", "1mbit"];
    let mut demo = scratch.start(None, "demo", &words);
    demo.until(|demo| demo.err().contains("phase=streaming").then_some(()));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    (demo, place)
}

#[test]
fn a_demo_that_is_terminated_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let (demo, place) = demo(&scratch);
    demo.terminate();
    let ended = demo.wait();
    ended.expect(1);
    assert!(ended.err.contains("nothing is left behind"), "{}", ended.err);
    assert_eq!(fs::read_dir(place).unwrap().count(), 0);
}

#[test]
fn a_demo_that_is_interrupted_alone_tells_its_programs() {
    let scratch = Scratch::new();
    let (demo, place) = demo(&scratch);
    demo.interrupt();
    let ended = demo.wait();
    ended.expect(1);
    // The sender had the time to say what came of it.
    assert!(ended.err.contains("interrupted"), "{}", ended.err);
    assert_eq!(fs::read_dir(place).unwrap().count(), 0);
}

#[test]
fn what_a_demo_has_started_ends_when_that_is_killed() {
    let scratch = Scratch::new();
    let (mut demo, place) = demo(&scratch);
    let place = place.to_str().unwrap();
    let is_of_demo = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(place)
    };
    let running = || fs::read_dir("/proc").unwrap().flatten().filter(is_of_demo).count();
    assert_eq!(running(), 4, "demo, sender, receivers");
    demo.kill();
    let end = Instant::now() + HANG;
    while running() > 0 {
        assert!(Instant::now() < end, "still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn output_that_nobody_reads_is_no_failure_and_output_that_is_lost_is_one() {
    let scratch = Scratch::new();
    let run = |words: &[&str], out: Stdio, err: Stdio| {
        let mut program = scratch.program(None, "here", words);
        let ended = program.stdout(out).stderr(err).spawn().unwrap().wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let (code, said) = run(&["ports"], closed.into(), Stdio::piped());
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let (code, said) = run(&["ports"], full(), Stdio::piped());
    assert_eq!((code, said.lines().count()), (Some(1), 2), "{said}");
    let nonsense = ["ticket", "show", "nonsense"];
    let (told, _) = run(&nonsense, Stdio::null(), Stdio::null());
    assert!(matches!(told, Some(1..=3)), "{told:?}");
    assert_eq!(run(&nonsense, Stdio::null(), full()).0, told);
}
