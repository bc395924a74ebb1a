//! A session of products by the real program on loopback: no root needed.

use crate::between::Between;
use crate::endings::fifo;
use crate::program::{Ended, Running, Scratch};
use crate::sessions::{address, receiver, sender, sender_under};
use downpour::product::{InsertedLine, MadeBytes, ReceivedLine};
use downpour::report::ReceiverState;
use downpour::ticket::Ticket;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

const PRODUCTS: u64 = 60;

fn size(number: u64) -> u64 {
    [133, 0, 50_000, 2_000_000, 7][number as usize % 5]
}

/// A product as a list has it.
fn line(number: u64) -> String {
    let size = size(number);
    format!("{{\"size\":{size},\"seed\":{number},\"name\":\"p{number}\",\"meta\":\"feed\"}}\n")
}

/// One that is due in a day keeps the session open.
const TOMORROW: &str = "{\"at_s\":86400,\"size\":1,\"name\":\"tomorrow\"}\n";

/// Whether a receiver has a product, which must be what was made.
fn has(folder: &Path, number: u64) -> bool {
    let Ok(bytes) = fs::read(folder.join(format!("p{number}"))) else { return false };
    let mut made = Vec::new();
    MadeBytes::new(size(number), number).read_to_end(&mut made).unwrap();
    assert!(bytes == made, "product {number} in {}", folder.display());
    true
}

fn wait_for(running: &mut Running, folder: &Path, number: u64) {
    running.until(|_| has(folder, number).then_some(()));
}

/// What a receiver has logged.
fn received(log: &Path) -> Vec<ReceivedLine> {
    let lines = fs::read_to_string(log).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn products_arrive_in_order_through_loss_and_who_comes_late_gets_those_that_follow() {
    let scratch = Scratch::new();
    let list_file = scratch.path("list");
    fifo(&list_file);
    let address = address();
    let ticket = scratch.ticket(&address);
    let log = |name: &str| scratch.path(&format!("{name}.log")).to_str().unwrap().to_owned();
    let start = |index: usize| {
        let log = log(&format!("r{index}"));
        receiver(&scratch, index, &ticket, &["--inject-loss", "5%", "--product-log", &log])
    };
    let out = |index: usize| scratch.path(&format!("r{index}"));
    let (mut first, mut second) = (start(0), start(1));
    let sent = log("sender");
    #[rustfmt::skip]
    let sender = sender(&scratch, &address, &ticket, &[], &[
        "--products", list_file.to_str().unwrap(), "--receivers", "2", "--rate", "100mbit",
        "--product-log", &sent,
    ]);
    // One after the other, and no more before the late one has joined.
    let mut list = File::options().write(true).open(&list_file).unwrap();
    let mut insert = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            list.write_all(line(number).as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    insert(0..20);
    wait_for(&mut first, &out(0), 19);
    let mut late = start(2);
    late.until(|r| r.err().contains("phase=streaming").then_some(()));
    insert(20..PRODUCTS);
    list.write_all(TOMORROW.as_bytes()).unwrap();
    drop(list);
    for (running, index) in [(&mut first, 0), (&mut second, 1), (&mut late, 2)] {
        wait_for(running, &out(index), PRODUCTS - 1);
    }
    sender.interrupt();
    sender.wait().expect(1);
    let mut lacks = Vec::new();
    for (index, running) in [first, second, late].into_iter().enumerate() {
        running.wait().expect(0);
        let lines = received(log(&format!("r{index}")).as_ref());
        let numbers: Vec<u64> = lines.iter().map(|line| line.product).collect();
        let from = numbers[0];
        assert_eq!(numbers, (from..PRODUCTS).collect::<Vec<_>>(), "receiver {index}");
        assert_eq!(from > 0, index == 2, "receiver {index} begins with {from}");
        lacks.push(from);
        assert!((from..PRODUCTS).all(|number| has(&out(index), number)));
        assert!(lines.iter().all(|line| line.meta == "feed" && line.clock_error_ns < 1 << 30));
        assert!(!out(index).join(".downpour").exists(), "nothing is left");
    }
    let lines = fs::read_to_string(&sent).unwrap();
    let lines: Vec<InsertedLine> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len() as u64, PRODUCTS);
    assert!(lines.iter().all(|line| line.first_sent_ns <= line.last_sent_ns));
    let report = scratch.report("sender");
    assert_eq!(report.session.objects, PRODUCTS);
    let state = |name: &str| &report.receivers.iter().find(|r| r.name == name).unwrap().state;
    assert!(state("r0").is_complete() && state("r1").is_complete(), "{report:?}");
    let why = format!("joined late, and has only the products from number {} on", lacks[2]);
    assert_eq!(*state("r2"), ReceiverState::Failed { why });
    assert_eq!(report.receivers.len(), 3, "{report:?}");
}

#[test]
fn a_session_whose_list_is_a_pipe_is_open_before_somebody_writes_there() {
    let scratch = Scratch::new();
    let list = scratch.path("list");
    fifo(&list);
    let address = address();
    let ticket = scratch.ticket(&address);
    let rule = ["--products", list.to_str().unwrap(), "--receivers", "1", "--rate", "100mbit"];
    let mut sender = sender(&scratch, &address, &ticket, &[], &rule);
    sender.until(|s| s.err().contains("the ticket is the line above").then_some(()));
    let receiver = receiver(&scratch, 0, &ticket, &[]);
    let mut list = File::options().write(true).open(&list).unwrap();
    list.write_all(b"{\"size\":133,\"seed\":0,\"name\":\"p0\"}\n").unwrap();
    drop(list);
    sender.wait().expect(0);
    receiver.wait().expect(0);
    assert!(has(&scratch.path("r0"), 0));
}

/// The sender's log may have 32 blocks of a file system; the receiver's has no room at all.
#[test]
fn a_log_of_products_that_could_not_be_written_has_whole_lines_and_both_say_what_is_wrong() {
    let scratch = Scratch::new();
    let (list, log) = (scratch.path("list"), scratch.path("sent.log"));
    let lines = (0..1_000).map(|n| format!("{{\"size\":1,\"name\":\"p{n}\"}}\n"));
    fs::write(&list, lines.collect::<String>()).unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let receiver = receiver(&scratch, 0, &ticket, &["--product-log", "/dev/full"]);
    let small = ["sh", "-c", "ulimit -f 32; exec \"$@\"", "sh"];
    #[rustfmt::skip]
    let words = [
        "--products", list.to_str().unwrap(), "--receivers", "1",
        "--product-log", log.to_str().unwrap(),
    ];
    sender_under(&small, &scratch, &address, &ticket, &[], &words).wait().expect(0);
    receiver.wait().expect(0);
    for name in ["sender", "r0"] {
        let notices = scratch.report(name).notices;
        let told = |notice: &String| notice.starts_with("the log of products is not whole: ");
        assert_eq!(notices.iter().filter(|notice| told(notice)).count(), 1, "{name}: {notices:?}");
    }
    let text = fs::read_to_string(&log).unwrap();
    let sent: Vec<InsertedLine> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(text.ends_with('\n') && sent.len() < 1_000, "{} lines", sent.len());
}

/// What came of [`lost_for_a_while`].
struct Lost {
    /// How the receiver, another one and the sender ended.
    codes: [Option<i32>; 3],
    /// Which of eleven products the receiver has.
    has: Vec<u64>,
    /// Which it has logged.
    logged: Vec<u64>,
    /// What it says has failed.
    failed: Vec<String>,
    /// Bytes that it got, as it says, and as the sender does.
    bytes: [u64; 2],
}

/// Of two receivers one loses its sender for as long as it takes to send five products of `size` bytes. If told so, it has a
/// file whose name a product has before that, and another one after.
fn lost_for_a_while(size: u64, has_taken: bool) -> Lost {
    let scratch = Scratch::new();
    if has_taken {
        fs::create_dir(scratch.path("r0")).unwrap();
        fs::write(scratch.path("r0/taken"), "precious").unwrap();
    }
    let (address, way) = (address(), address());
    let between = Between::new(&way, &address);
    let file = scratch.ticket(&address);
    let detour = scratch.path("detour");
    let direct = Ticket::read_file(&file).unwrap();
    Ticket { addrs: vec![way], ..direct }.write_file(&detour).unwrap();
    let log = scratch.path("r0.log");
    let mut one = receiver(&scratch, 0, &detour, &["--product-log", log.to_str().unwrap()]);
    let mut other = receiver(&scratch, 1, &file, &[]);
    let (input, mut list) = std::io::pipe().unwrap();
    let told = scratch.path("sender.json");
    #[rustfmt::skip]
    let words = [
        "send", "--interface", "lo", "--listen", &address, "--ticket", file.to_str().unwrap(),
        "--report", told.to_str().unwrap(), "--products", "-", "--product-memory", "16MB", "--receivers", "2", "--rate", "100mbit",
    ];
    let mut command = scratch.program(None, "sender", &words);
    command.stdin(input);
    let sender = scratch.start_command("sender", command);
    let mut insert = |numbers: std::ops::Range<u64>, size: u64, and_taken: bool| {
        if and_taken {
            writeln!(list, "{{\"size\":1,\"name\":\"taken\"}}").unwrap();
        }
        for n in numbers {
            writeln!(list, "{{\"size\":{size},\"seed\":{n},\"name\":\"p{n}\"}}").unwrap();
        }
    };
    let has = |index: usize, n: u64| scratch.path(&format!("r{index}/p{n}")).exists();
    insert(0..5, 1_000, has_taken);
    one.until(|_| has(0, 4).then_some(()));
    between.cut();
    one.until(|one| one.err().contains("waiting for it to come back").then_some(()));
    insert(5..10, size, false);
    other.until(|_| has(1, 9).then_some(()));
    between.mend();
    // It takes part again when it has what comes now; and what came before is in its place by then, or missed.
    insert(10..11, 1_000, has_taken);
    one.until(|_| has(0, 10).then_some(()));
    drop(list);
    let codes = [one, other, sender].map(|running| running.wait().code);
    let report = scratch.report("r0");
    let told = scratch.report("sender");
    let told = told.receivers.iter().find(|receiver| receiver.name == "r0").unwrap();
    Lost {
        codes,
        has: (0..11).filter(|n| has(0, *n)).collect(),
        logged: received(&log).iter().map(|line| line.product).collect(),
        failed: report.failed.into_iter().map(|failed| failed.name).collect(),
        bytes: [report.session.data_bytes, told.stream_bytes + told.pull_bytes],
    }
}

#[test]
fn who_loses_the_sender_for_a_while_gets_what_is_kept_of_what_came_meanwhile() {
    let lost = lost_for_a_while(50_000, false);
    assert_eq!((lost.codes, &lost.failed[..]), ([Some(0); 3], &[][..]));
    assert_eq!(lost.has, (0..11).collect::<Vec<_>>());
    assert_eq!(lost.logged, lost.has, "also what came before");
    assert_eq!(lost.bytes, [6 * 1_000 + 5 * 50_000; 2], "of all, not of what came at last");
}

#[test]
fn what_was_not_kept_for_who_has_lost_the_sender_is_missed_and_both_say_so() {
    let lost = lost_for_a_while(8_000_000, false);
    assert_eq!(lost.codes, [Some(1), Some(0), Some(1)], "{:?}", lost.failed);
    let [missed] = &lost.failed[..] else { panic!("{:?}", lost.failed) };
    assert!(missed.starts_with("products 5 to "), "{missed}");
    assert!(!lost.has.contains(&5) && lost.has.contains(&10), "{:?}", lost.has);
}

#[test]
fn two_products_of_one_name_that_fail_before_the_sender_is_lost_and_after_are_two_failures() {
    let lost = lost_for_a_while(50_000, true);
    assert_eq!(lost.codes, [Some(1), Some(0), Some(1)]);
    assert_eq!(lost.failed, ["taken"; 2]);
}

#[test]
fn who_joins_another_session_than_the_one_whose_sender_was_lost_says_that_this_one_is_not_whole() {
    let scratch = Scratch::new();
    let address = address();
    let ticket = scratch.ticket(&address);
    let send = |list: &str| {
        let file = scratch.path("list");
        fs::write(&file, list).unwrap();
        let words = ["--products", file.to_str().unwrap(), "--receivers", "1"];
        sender(&scratch, &address, &ticket, &[], &words)
    };
    let product =
        |name: &str, at_s: u32| format!("{{\"at_s\":{at_s},\"size\":9,\"name\":\"{name}\"}}\n");
    let mut one = receiver(&scratch, 0, &ticket, &[]);
    let mut lost = send(&[product("first", 0), product("tomorrow", 86_400)].concat());
    one.until(|_| scratch.path("r0/first").exists().then_some(()));
    lost.kill();
    one.until(|one| one.err().contains("waiting for it to come back").then_some(()));
    send(&product("second", 0)).wait().expect(0);
    let ended = one.wait();
    ended.expect(1);
    assert!(ended.err.contains("it did not come back); another one has begun"), "{}", ended.err);
    assert!(scratch.path("r0/second").exists());
    let report = scratch.report("r0");
    assert!(matches!(report.receivers[0].state, ReceiverState::Failed { .. }), "{report:?}");
    let advice = "ask its sender for what is missing".to_owned();
    assert!(report.notices.contains(&advice), "{report:?}");
}

#[test]
fn what_cannot_be_sent_or_placed_is_told_at_once_and_the_rest_arrives() {
    let scratch = Scratch::new();
    let list = scratch.path("list");
    let [missing, changes] = ["missing", "changes"].map(|n| scratch.path(n).display().to_string());
    fs::write(&changes, vec![7; 40_000_000]).unwrap();
    let lines = [
        missing.as_str(),
        "{\"size\":1,\"name\":\"a/b\"}",
        "{\"size\":99999999999999,\"name\":\"huge\"}",
        "{\"size\":10,\"name\":\"there\"}",
        "{\"size\":133,\"seed\":0,\"name\":\"p0\"}",
        &changes,
        "{\"at_s\":86400,\"size\":1,\"name\":\"tomorrow\"}",
    ];
    fs::write(&list, lines.join("\n")).unwrap();
    fs::create_dir(scratch.path("r0")).unwrap();
    fs::write(scratch.path("r0/there"), "precious").unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let receiver = receiver(&scratch, 0, &ticket, &[]);
    let log = scratch.path("sent.log");
    // What of the file has no room in memory is not read before some of it has been sent.
    #[rustfmt::skip]
    let words = [
        "--products", list.to_str().unwrap(), "--receivers", "1", "--rate", "60mbit",
        "--product-memory", "16MB", "--product-log", log.to_str().unwrap(),
    ];
    let mut sender = sender(&scratch, &address, &ticket, &[], &words);
    sender.until(|sender| {
        File::options().write(true).open(&changes).unwrap().write_all(b"new").unwrap();
        sender.err().contains("changes is not sent: changed while being sent").then_some(())
    });
    sender.until(|s| s.err().contains("huge is not sent: too large: at most ").then_some(()));
    wait_for(&mut sender, &scratch.path("r0"), 0);
    sender.interrupt();
    sender.wait().expect(1);
    receiver.wait().expect(1);
    let failed = |name: &str| -> Vec<String> {
        scratch.report(name).failed.into_iter().map(|failed| failed.name).collect()
    };
    assert_eq!(failed("sender"), ["missing", "line 2 of the list of products", "huge", "changes"]);
    assert_eq!(failed("r0"), ["there", "changes"]);
    assert!(!scratch.path("r0/changes").exists());
    let sent = fs::read_to_string(&log).unwrap();
    let sent = sent.lines().map(|line| serde_json::from_str(line).unwrap());
    let withdrawn: Vec<InsertedLine> =
        sent.filter(|line: &InsertedLine| line.withdrawn.is_some()).collect();
    assert!(matches!(&withdrawn[..], [line] if line.name == "changes"), "{withdrawn:?}");
    assert_eq!(fs::read(scratch.path("r0/there")).unwrap(), b"precious");
}

#[test]
fn a_session_of_products_needs_a_folder() {
    let scratch = Scratch::new();
    let list_file = scratch.path("list");
    fs::write(&list_file, TOMORROW).unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let piped = receiver(&scratch, 0, &ticket, &["--out", "-"]);
    let products = ["--products", list_file.to_str().unwrap(), "--receivers", "1"];
    let sender = sender(&scratch, &address, &ticket, &[], &products);
    let ended = piped.wait();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.contains("--out a folder"), "{ended:?}");
    drop(sender);
}

#[test]
fn an_interrupt_before_the_start_ends_a_session_of_products() {
    let scratch = Scratch::new();
    let list_file = scratch.path("list");
    fs::write(&list_file, TOMORROW).unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let products = ["--products", list_file.to_str().unwrap(), "--receivers", "1"];
    let mut sender = sender(&scratch, &address, &ticket, &[], &products);
    sender.until(|s| s.err().contains("phase=waiting").then_some(()));
    sender.interrupt();
    let ended = sender.wait();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("nobody joined"), "{ended:?}");
}

#[test]
fn a_second_interrupt_ends_a_session_of_products_that_still_sends_and_its_receivers_are_told() {
    let scratch = Scratch::new();
    let list = scratch.path("list");
    fs::write(&list, "{\"size\":50000000,\"name\":\"long\"}\n").unwrap();
    let address = address();
    let ticket = scratch.ticket(&address);
    let receiver = receiver(&scratch, 0, &ticket, &[]);
    let products = ["--products", list.to_str().unwrap(), "--receivers", "1", "--rate", "1mbit"];
    let mut sender = sender(&scratch, &address, &ticket, &[], &products);
    // Sooner there may be no product yet that is still to be sent.
    sender.until(|s| s.err().contains("data_bytes=50000000").then_some(()));
    sender.interrupt();
    sender.until(|s| s.err().contains("(again: end the session)").then_some(()));
    // Sooner they would be one.
    std::thread::sleep(Duration::from_millis(250));
    sender.interrupt();
    let ended = sender.wait();
    ended.expect(1);
    assert!(ended.err.contains("interrupted before everybody was complete"), "{}", ended.err);
    let left = receiver.wait();
    left.expect(1);
    assert!(left.err.contains("the sender was interrupted"), "{}", left.err);
}

#[test]
fn profile_fmtp_carries_a_feed_and_ends_with_it() {
    let scratch = Scratch::new();
    let list = scratch.path("list");
    // The empty one not last: of two datagrams that are both lost, only what follows would tell.
    let sizes = [100_000, 133, 0, 2_000_000];
    let lines: String = (0..).zip(sizes).fold(String::new(), |list, (number, size): (u32, u64)| {
        let at_s = 0.2 * f64::from(number);
        list + &format!("{{\"at_s\":{at_s},\"size\":{size},\"name\":\"p{number}\"}}\n")
    });
    fs::write(&list, lines).unwrap();
    let address = address();
    let (_, port) = address.rsplit_once(':').unwrap();
    let group = format!("239.192.9.9:{port}");
    let log = |name: &str| scratch.path(&format!("{name}.log")).to_str().unwrap().to_owned();
    let common = ["--profile", "fmtp", "--group", &group, "--interface", "lo"];
    let receivers: Vec<Running> = ["r0", "r1"]
        .iter()
        .map(|name| {
            let log = log(name);
            #[rustfmt::skip]
            let own = [
                "--sender", &address, "--discard", "--product-log", &log, "--inject-loss", "5%",
            ];
            scratch.start(None, name, &[&["receive"], &common[..], &own].concat())
        })
        .collect();
    let sent = log("sender");
    #[rustfmt::skip]
    let own = [
        "--listen", &address, "--receivers", "2", "--rate", "50mbit",
        "--products", list.to_str().unwrap(), "--product-log", &sent,
    ];
    scratch.start(None, "sender", &[&["send"], &common[..], &own].concat()).wait().expect(0);
    for running in receivers {
        running.wait().expect(0);
    }
    for name in ["r0", "r1"] {
        let lines = received(log(name).as_ref());
        let mut got: Vec<_> = lines.iter().map(|line| (line.product, line.size)).collect();
        got.sort_unstable();
        assert_eq!(got, (0..).zip(sizes).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(fs::read_to_string(&sent).unwrap().lines().count(), sizes.len());
}

/// What becomes of a receiver whose sender says nothing but this on the connection, and closes it.
fn feed_that_ends_with(message: &[u8]) -> (Ended, Option<serde_json::Value>) {
    let scratch = Scratch::new();
    let sender = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = sender.local_addr().unwrap();
    let group = format!("239.192.9.10:{}", address.port());
    let [log, report] = ["log", "report"].map(|name| scratch.path(name));
    #[rustfmt::skip]
    let mut receiver = scratch.start(None, "r0", &[
        "receive", "--profile", "fmtp", "--group", &group, "--interface", "lo", "--discard",
        "--sender", &address.to_string(), "--product-log", log.to_str().unwrap(),
        "--report", report.to_str().unwrap(),
    ]);
    sender.set_nonblocking(true).unwrap();
    let (mut connection, _) = receiver.until(|_| sender.accept().ok());
    connection.write_all(message).unwrap();
    drop(connection);
    let ended = receiver.wait();
    let report = fs::read(report).ok().map(|report| serde_json::from_slice(&report).unwrap());
    (ended, report)
}

#[test]
fn profile_fmtp_says_that_a_feed_was_not_complete() {
    // Product index 7, offset, length, flags.
    let message = |flags: u16| [&[0, 0, 0, 7, 0, 0, 0, 0, 0, 0], &flags.to_be_bytes()[..]].concat();
    let (ended, report) = feed_that_ends_with(&[]);
    ended.expect(0);
    assert_eq!(report.unwrap()["complete"], true);
    // RETX_REJ: the sender has given it up.
    let (ended, report) = feed_that_ends_with(&message(0x0010));
    ended.expect(1);
    let report = report.unwrap();
    assert_eq!((&report["complete"], &report["rejected"]), (&false.into(), &1.into()));
    // RETX_EOP: there was such a product, and its begin does not come any more.
    let (ended, report) = feed_that_ends_with(&message(0x0400));
    ended.expect(1);
    assert_eq!(report.unwrap()["complete"], false);
    assert!(ended.err.contains("before all was here"), "{}", ended.err);
}
