//! `downpour demo`: shows what the program does, on one machine, without root.
//!
//! 1. Picks a tree: the one given, or Rust's own sources and documentation.
//! 2. Starts the receivers as programs of their own, on loopback multicast, each dropping its own share of the
//!    datagrams; then the sender, whose progress is seen.
//! 3. Compares every receiver's tree with the source, byte by byte.
//! 4. Sends the same tree to one receiver after the other over plain TCP, at the same rate.
//! 5. Prints both, and removes all that it made.
//!
//! Everything is done by the program's own command line; what is here only starts, compares and prints.

mod stage;
pub mod tcp;
pub mod tree;

use crate::cli::{Exit, Fault};
use crate::report::Report;
use crate::units::{show_bytes, show_duration};
use downpour_proto::Rate;
use stage::Stage;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tree::{Amount, Picked};

/// What a tree that shows something has at least.
const LEAST: Amount = Amount { files: 2_000, bytes: 200_000_000 };
/// Folders of more than this are taken apart, so that the tree is not much larger than [`LEAST`].
const PART_BYTES: u64 = 20_000_000;
/// Paths that are named; the rest are counted.
const PATHS_SHOWN: usize = 5;
/// The receivers have their receipts when the sender ends; they only have to end.
const RECEIVERS_END: Duration = Duration::from_secs(30);

/// What to show.
#[derive(Clone, Debug)]
pub struct DemoPlan {
    /// The tree; `None` picks one.
    pub path: Option<PathBuf>,
    /// How many.
    pub receivers: usize,
    /// Share of datagrams that each drops.
    pub loss: f64,
    /// For multicast and TCP alike.
    pub rate: Rate,
    /// Folder to work in.
    pub place: Option<PathBuf>,
}

/// First of all: a program that a demo has started ends when that is killed.
pub fn end_with_demo() {
    stage::end_with_demo();
}

/// Runs the demo to its end.
pub fn run(plan: &DemoPlan) -> Result<Exit, Fault> {
    let picked = pick(plan)?;
    let Amount { files, bytes } = picked.amount;
    let place = place(plan, &picked)?;
    let program = std::env::current_exe().map_err(|error| broken("find this program", &error))?;
    let mut stage = Stage::set(&place, program).map_err(|error| {
        let what = format!("cannot make a folder in {}: {error}", place.display());
        Fault::start(what, "name another with --place")
    })?;
    println!("Sending {} in {files} files:", show_bytes(bytes));
    picked.paths.iter().take(PATHS_SHOWN).for_each(|path| println!("  {}", path.display()));
    if picked.paths.len() > PATHS_SHOWN {
        println!("  and {} more folders", picked.paths.len() - PATHS_SHOWN);
    }
    println!(
        "to {} receivers on loopback multicast, each losing {} % of the datagrams, at {} at most.\n",
        plan.receivers,
        plan.loss * 100.0,
        plan.rate
    );
    let report = by_multicast(plan, &picked, &mut stage)?;
    let verified = Instant::now();
    compare(plan, &picked, &stage)?;
    println!(
        "\nEvery tree compared with the source, byte by byte: {} identical ({}).\n",
        plan.receivers,
        show_duration(verified.elapsed())
    );
    let rate = held_to(plan, &report);
    println!("The same to one after the other over plain TCP, without loss, at {rate}:");
    let tcp = by_tcp(plan, rate, &picked, &stage)?;
    print!("{}", summary(plan, &report, bytes, tcp));
    Ok(Exit::Complete)
}

fn pick(plan: &DemoPlan) -> Result<Picked, Fault> {
    let Some(path) = &plan.path else {
        let picked =
            tree::pick(tree::rust_folders(|name| std::env::var_os(name)), LEAST, PART_BYTES);
        if picked.amount.files == 0 {
            let what = "no Rust sources or documentation were found on this machine";
            return Err(Fault::start(what, "name a folder to send: downpour demo PATH"));
        }
        return Ok(picked);
    };
    // Without its trailing slash: the folder itself arrives, under its own name.
    let path = path.canonicalize().map_err(|error| {
        Fault::start(format!("cannot send {}: {error}", path.display()), "check the path")
    })?;
    let amount = tree::measure(&path).map_err(|error| {
        let what = format!("cannot read all of {}: {error}", path.display());
        Fault::start(what, "name a folder whose files you may read")
    })?;
    if amount.bytes == 0 {
        let what = format!("{} has no files with anything in them", path.display());
        return Err(Fault::start(what, "name a folder to send: downpour demo PATH"));
    }
    Ok(Picked { paths: vec![path], amount })
}

/// Memory when there is room: the demo shows the network, not the disk. Not in what is sent: that would change meanwhile.
fn place(plan: &DemoPlan, picked: &Picked) -> Result<PathBuf, Fault> {
    // Blocks and folders take more than the bytes in them.
    let needed = picked.amount.bytes / 2 * 3 * plan.receivers as u64;
    let is_sent = |place: &PathBuf| {
        let place = place.canonicalize();
        place.is_ok_and(|place| picked.paths.iter().any(|path| place.starts_with(path)))
    };
    let choices = match &plan.place {
        Some(place) if is_sent(place) => {
            let what = format!("{} is in the folder that is sent", place.display());
            return Err(Fault::usage(what, "name a place outside of it with --place"));
        }
        Some(place) => vec![place.clone()],
        None => vec![PathBuf::from("/dev/shm"), std::env::temp_dir()],
    };
    let room = |place: &PathBuf| match rustix::fs::statvfs(place.as_path()) {
        Ok(stat) => stat.f_bavail * stat.f_frsize > needed,
        // Why it cannot be used is said when a folder is made there.
        Err(_) => plan.place.is_some(),
    };
    choices.into_iter().find(|place| !is_sent(place) && room(place)).ok_or_else(|| {
        Fault::start(
            format!("the receivers' folders need {} of room", show_bytes(needed)),
            "name a place with --place, a smaller tree, or fewer --receivers",
        )
    })
}

fn by_multicast(plan: &DemoPlan, picked: &Picked, stage: &mut Stage) -> Result<Report, Fault> {
    let ticket = stage.path("ticket");
    let address = free_address().map_err(|error| broken("find a free port", &error))?;
    let mut make = stage.command(["ticket", "new", "--address", &address, "--expires", "1h"]);
    make.arg("--out").arg(&ticket);
    let made = make.output().map_err(|error| broken("make a ticket", &error))?;
    if !made.status.success() {
        let what = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(Fault::start(what, "try `downpour ticket new` by hand"));
    }
    for index in 0..plan.receivers {
        start_receiver(plan, stage, index, &ticket)
            .map_err(|error| broken("start a receiver", &error))?;
    }
    let report = stage.path("report.json");
    let mut send = stage.command(["send", "--interface", "lo", "--listen", &address]);
    send.arg("--receivers").arg(plan.receivers.to_string());
    send.arg("--rate").arg(format!("{}bit", plan.rate.bps()));
    send.arg("--ticket").arg(&ticket).arg("--report").arg(&report).args(&picked.paths);
    // The ticket, which is in a file already.
    send.stdout(Stdio::null());
    let status = stage.run("send", send).map_err(|error| broken("run the sender", &error))?;
    if let Some(status) = status.filter(|status| !status.success()) {
        return Err(sender_failed(stage, status));
    }
    let ended = stage.wait_for_all(RECEIVERS_END);
    let failed = ended.map_err(|error| broken("wait for the receivers", &error))?;
    if status.is_none() || !failed.is_empty() {
        return Err(ended_early(stage, &failed));
    }
    let text = fs::read_to_string(&report).map_err(|error| broken("read the report", &error))?;
    serde_json::from_str(&text).map_err(|error| broken("read the report", &error.into()))
}

fn start_receiver(
    plan: &DemoPlan,
    stage: &mut Stage,
    index: usize,
    ticket: &Path,
) -> io::Result<()> {
    let name = receiver_name(index);
    let out = stage.path(&name);
    fs::create_dir(&out)?;
    let mut argument = OsString::from("@");
    argument.push(ticket);
    let mut receive = stage.command(["receive", "--interface", "lo", "--quiet", "--name", &name]);
    // All is compared, modes too.
    receive.arg("--setuid");
    receive.arg("--inject-loss").arg(format!("{}%", plan.loss * 100.0));
    receive.arg("--out").arg(out).arg(argument);
    // Each is a node of its own, as on eight machines.
    receive.env(crate::home::VARIABLE, stage.path(&format!("{name}.home")));
    stage.start(&name, receive)
}

fn receiver_name(index: usize) -> String {
    format!("receiver-{}", index + 1)
}

fn compare(plan: &DemoPlan, picked: &Picked, stage: &Stage) -> Result<(), Fault> {
    for index in 0..plan.receivers {
        let out = stage.path(&receiver_name(index));
        for path in &picked.paths {
            let copy = out.join(path.file_name().unwrap_or_default());
            let found = tree::differences(path, &copy)
                .map_err(|error| broken("compare the trees", &error))?;
            if let Some(first) = found.first() {
                let what = format!("{} differences, the first: {first}", found.len());
                return Err(Fault::incomplete(what, "this is a fault of downpour: report it"));
            }
        }
        if stage.is_stopped() {
            return Err(ended_early(stage, &[]));
        }
        // The TCP run needs the room.
        stage::remove(&out).map_err(|error| broken("remove a compared tree", &error))?;
    }
    Ok(())
}

/// What the session was held to: under a hard ceiling of this machine less than was asked for.
fn held_to(plan: &DemoPlan, report: &Report) -> Rate {
    report.session.rate_limit_bps.map_or(plan.rate, Rate::from_bps)
}

/// How long that takes, what is removed again in between aside, and what it sends.
fn by_tcp(
    plan: &DemoPlan,
    rate: Rate,
    picked: &Picked,
    stage: &Stage,
) -> Result<(Duration, u64), Fault> {
    let (mut took, mut sent) = (Duration::ZERO, 0);
    for index in 0..plan.receivers {
        let out = stage.path(&receiver_name(index));
        let begun = Instant::now();
        let done = fs::create_dir(&out)
            .and_then(|()| tcp::send_once(&picked.paths, &out, rate, |_| !stage.is_stopped()));
        match done {
            Ok(bytes) => (took, sent) = (took + begun.elapsed(), sent + bytes),
            Err(_) if stage.is_stopped() => return Err(ended_early(stage, &[])),
            Err(error) => return Err(broken("send over TCP", &error)),
        }
        println!("  {}: {}", receiver_name(index), show_duration(begun.elapsed()));
        stage::remove(&out).map_err(|error| broken("remove a tree", &error))?;
    }
    Ok((took, sent))
}

/// What both did, with files of so many `bytes`.
fn summary(
    plan: &DemoPlan,
    report: &Report,
    bytes: u64,
    (tcp_time, tcp_bytes): (Duration, u64),
) -> String {
    let session = &report.session;
    let time = Duration::from_secs_f64(session.duration_s.max(0.0));
    let n = plan.receivers as u64;
    let row = |name: &str, time: Duration, bytes: u64, how: &str| {
        let together = Rate::of(session.data_bytes * n, time).to_string();
        let (time, bytes) = (show_duration(time), show_bytes(bytes));
        format!("  {name:<9} {time:>13} {bytes:>12} {together:>16}   {how}\n")
    };
    let head = format!("\n  {:<9} {:>13} {:>12} {:>16}\n", "", "time", "sent", "to all together");
    let ours = row("downpour", time, session.sent.total(), "once, to all at the same time");
    let theirs = row("TCP", tcp_time, tcp_bytes, "once for each receiver, one after the other");
    let percent = session.overhead_percent();
    let overhead = percent.map(|it| format!("its overhead over a single copy is {it:.1} %, "));
    let spared = bytes.saturating_sub(session.data_bytes);
    let more = match spared {
        0 => String::new(),
        _ => format!(
            "Of what TCP sent to each, {} were holes, and files that it sent again by another name.\n",
            show_bytes(spared)
        ),
    };
    format!(
        "{head}{ours}{theirs}\nBoth held to {}. downpour took {} time and sent {} bytes;\n\
         {}at {} % loss.\n{more}",
        held_to(plan, report),
        beside(time.as_secs_f64().max(0.001), tcp_time.as_secs_f64().max(0.001), "less"),
        beside(session.sent.total().max(1) as f64, tcp_bytes.max(1) as f64, "fewer"),
        overhead.unwrap_or_default(),
        plan.loss * 100.0,
    )
}

/// How many times `less` it is than the other, or more.
fn beside(ours: f64, theirs: f64, less: &str) -> String {
    match theirs < ours {
        true => format!("{:.1} times more", ours / theirs),
        false => format!("{:.1} times {less}", theirs / ours),
    }
}

fn ended_early(stage: &Stage, failed: &[String]) -> Fault {
    if stage.is_stopped() {
        return Fault::incomplete("stopped", "nothing is left behind; run it again when you like");
    }
    let first = failed.first().map_or("", String::as_str);
    let what = format!("the demo failed ({} receivers, {first})", failed.len());
    Fault::incomplete(what, "check that loopback carries multicast: ip link show lo")
}

/// Those that it leaves behind would look for it: they are not waited for.
fn sender_failed(stage: &Stage, status: ExitStatus) -> Fault {
    match (stage.is_stopped(), status.code()) {
        (true, _) => ended_early(stage, &[]),
        // What it gets from here is right: the rest is from the environment.
        (false, Some(code)) if code == i32::from(Exit::Usage as u8) => {
            let todo = "check what is set by DOWNPOUR_ variables, and in defaults.toml";
            Fault::usage("the demo's sender refuses its options, as it says above", todo)
        }
        (false, Some(_)) => {
            let todo = "do as it says; if nothing came, check that loopback carries multicast: ip link show lo";
            Fault::incomplete("the demo failed: the sender said why above", todo)
        }
        (false, None) => Fault::incomplete(
            format!("the demo failed: its sender was ended ({status})"),
            "free memory, and run it again",
        ),
    }
}

/// Something that does not fail on a sound machine.
fn broken(doing: &str, error: &io::Error) -> Fault {
    Fault::incomplete(format!("cannot {doing}: {error}"), "free memory or disk space and try again")
}

/// A port that was free a moment ago. Another program may take it; the demo then says so.
fn free_address() -> io::Result<String> {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::{DemoPlan, held_to, pick, place, summary};
    use crate::cli::Exit;
    use crate::report::{Report, Role, SCHEMA, SessionReport};
    use downpour_proto::Rate;
    use std::time::Duration;

    #[test]
    fn both_are_held_to_what_the_session_was_held_to() {
        let rate = Rate::from_mbps(200);
        let plan = DemoPlan { path: None, receivers: 2, loss: 0.0, rate, place: None };
        let mut report = Report {
            schema: SCHEMA,
            downpour: String::new(),
            role: Role::Sender,
            session: SessionReport::default(),
            transfer: None,
            receivers: Vec::new(),
            failed: Vec::new(),
            skipped: Vec::new(),
            notices: Vec::new(),
        };
        assert_eq!(held_to(&plan, &report), rate);
        report.session.rate_limit_bps = Some(50_000_000);
        assert_eq!(held_to(&plan, &report), Rate::from_mbps(50));
        report.session.data_bytes = 45_000_000;
        let text = |bytes| summary(&plan, &report, bytes, (Duration::from_secs(1), 1));
        let plain = text(45_000_000);
        assert!(plain.contains("Both held to 50.0 Mbit/s"), "{plain}");
        assert!(!plain.contains("holes"), "{plain}");
        let more = text(128_900_000);
        assert!(more.contains("holes") && more.contains("83.9 MB were"), "{more}");
        report.session.duration_s = 10.0;
        report.session.sent.source_bytes = 5;
        let slower = summary(&plan, &report, 45_000_000, (Duration::from_secs(1), 10));
        assert!(slower.contains("took 10.0 times more time and sent 2.0 times fewer"), "{slower}");
    }

    #[test]
    fn a_folder_without_a_byte_shows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let rate = Rate::from_mbps(200);
        let path = Some(folder.path().to_owned());
        let plan = DemoPlan { path, receivers: 2, loss: 0.0, rate, place: None };
        std::fs::write(folder.path().join("empty"), "").unwrap();
        assert!(pick(&plan).unwrap_err().what.contains("no files with anything in them"));
        std::fs::write(folder.path().join("file"), "x").unwrap();
        assert_eq!(pick(&plan).unwrap().amount.bytes, 1);
    }

    #[test]
    fn no_place_is_taken_in_what_is_sent_and_one_that_is_not_there_is_not_full() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, inside) = (folder.path().join("tree"), folder.path().join("tree/inside"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(tree.join("file"), "x").unwrap();
        let plan = |place| DemoPlan {
            path: Some(tree.clone()),
            receivers: 2,
            loss: 0.0,
            rate: Rate::from_mbps(200),
            place: Some(place),
        };
        let picked = pick(&plan(inside.clone())).unwrap();
        for within in [&tree, &inside] {
            let refused = place(&plan(within.clone()), &picked).unwrap_err();
            assert_eq!(refused.exit, Exit::Usage, "{refused}");
        }
        for other in [folder.path().to_owned(), folder.path().join("none")] {
            assert_eq!(place(&plan(other.clone()), &picked).unwrap(), other);
        }
    }
}
