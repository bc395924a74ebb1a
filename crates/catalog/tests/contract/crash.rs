//! Kill -9 of a process that writes: what it was told is durable is there, and nothing by halves.
//!
//! The test starts itself as that process. The child takes files in, several threads at once, each file with three changes in
//! a request of their own, and prints a line for each answer. The parent kills it at a random moment, several
//! times on the same catalog, then reads what was printed and what is there. Then the same with the server killed, and the
//! writers left alive.

use crate::engines::Engine;
use crate::world::{Daemon, Ends, NOW, World, digest};
use downpour_catalog::{Applied, Change, Error, FileId, Move, Next, Revision, State};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KILLS: u64 = 3;
const THREADS: u64 = 8;
/// Answers to wait for before the kill, at most; the moment is random within.
const ANSWERS_MAX: u64 = 150;
/// How long a server may be gone before the test fails instead of going on.
const HANG: Duration = Duration::from_secs(240);
const URL: &str = "DOWNPOUR_TEST_CATALOG";

/// Ends the child, however the test ends.
struct Doomed(Child);

impl Drop for Doomed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) fn what_was_acknowledged_is_there_after_kill(world: &World) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = u64::from(clock.subsec_nanos());
    println!("kill seed {seed}");
    let mut acknowledged = BTreeMap::new();
    for round in 0..KILLS {
        let wait = (seed ^ (round * 7919)).wrapping_mul(6_364_136_223_846_793_005) >> 33;
        let answers = 1 + wait % ANSWERS_MAX;
        for (name, revision) in run_and_kill(world, answers, Duration::from_micros(wait % 3000)) {
            let known = acknowledged.entry(name).or_insert(0);
            *known = revision.max(*known);
        }
        world.until_alone();
    }
    assert!(acknowledged.len() as u64 > KILLS, "the child did some work");
    let daemon = world.daemon("judge");
    let mut reader = world.reader();
    for (name, revision) in &acknowledged {
        let versions = reader.versions(daemon.site, name).unwrap();
        assert_eq!(versions.len(), 1, "{name}");
        let file = &versions[0];
        assert!(file.revision.0 >= *revision, "{name}: {} was told", revision);
        // No half change: the state is that of its revision, and digests came with theirs.
        let states = [State::Found, State::Settled, State::Hashed];
        assert_eq!(file.state, states[file.revision.0 as usize - 1], "{name}");
        assert_eq!(file.digest, (file.state == State::Hashed).then(|| digest(name)), "{name}");
    }
    logs_tell_what_is_there(world);
}

/// Each file has as many events as revisions, and the counters count the files.
fn logs_tell_what_is_there(world: &World) {
    let mut reader = world.reader();
    let mut revisions: BTreeMap<i64, i64> = BTreeMap::new();
    for (log, _, last) in reader.logs().unwrap() {
        let mut after = 0;
        loop {
            let events = reader.events(log, after, 1000).unwrap();
            for event in &events {
                after += 1;
                assert_eq!(event.number, after, "log {log}");
                *revisions.entry(event.subject).or_default() += 1;
            }
            if events.is_empty() {
                break;
            }
        }
        assert_eq!(after, last);
    }
    let mut states: BTreeMap<State, i64> = BTreeMap::new();
    for (id, events) in &revisions {
        let file = reader.file(FileId(*id)).unwrap().expect("what the log tells of");
        assert_eq!(file.revision.0, *events, "{}", file.name);
        *states.entry(file.state).or_default() += 1;
    }
    let counts = reader.counts().unwrap();
    assert_eq!(counts.iter().map(|c| (c.state, c.files)).collect::<BTreeMap<_, _>>(), states);
}

/// Names and revisions that the child was answered before it died.
fn run_and_kill(world: &World, answers: u64, linger: Duration) -> Vec<(String, i64)> {
    let program = std::env::current_exe().expect("this test");
    let mut child = Command::new(program)
        .args(["--exact", "writes_until_killed", "--nocapture", "--test-threads=1"])
        .env(URL, world.url.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map(Doomed)
        .expect("this test starts again");
    let lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    let mut told = Vec::new();
    for line in lines {
        let line = line.expect("text");
        let Some(rest) = line.strip_prefix("acknowledged ") else { continue };
        let (name, revision) = rest.split_once(' ').expect("name and revision");
        told.push((name.to_owned(), revision.parse().expect("a number")));
        if told.len() as u64 == answers {
            // Somewhere in a later commit; what is printed until then is read to the end.
            thread::sleep(linger);
            child.0.kill().expect("it runs until it is killed");
        }
    }
    assert!(told.len() as u64 >= answers, "the child ended by itself");
    told
}

/// The server is killed under writers that go on: each asks again for what was not answered, and nothing is lost or there twice.
pub(crate) fn a_server_that_dies_delays_and_loses_nothing(engine: &mut Engine) {
    let world = engine.world("a_server_dies");
    let server = engine.server().expect("an engine with a server");
    let (daemon, stop, next) =
        (&world.daemon("doomed"), &AtomicBool::new(false), &AtomicU64::new(0));
    let done = &AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || {
                let _ends = Ends(stop);
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("f{}", next.fetch_add(1, Ordering::Relaxed));
                    let taken = insisted(daemon, Change::TakeIn(daemon.new_file(&name)));
                    let steps = [Next::Settled { size: 1000 }, Next::Hashed(vec![digest(&name)])];
                    for (at, next) in (1..).zip(steps) {
                        let (file, at) = (taken.file, Revision(at));
                        insisted(daemon, Change::Move(Move { file, at, fence: None, next }));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..KILLS {
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < before + 2 * THREADS
                && !stop.load(Ordering::Relaxed)
            {
                thread::sleep(Duration::from_millis(1));
            }
            server.kill();
            thread::sleep(Duration::from_millis(100));
            server.start();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut reader = world.reader();
    for n in 0..next.load(Ordering::Relaxed) {
        let versions = reader.versions(daemon.site, &format!("f{n}")).unwrap();
        let seen: Vec<_> = versions.iter().map(|file| (file.revision, file.state)).collect();
        assert_eq!(seen, [(Revision(3), State::Hashed)], "f{n}");
    }
    logs_tell_what_is_there(&world);
}

/// A change, asked for as it was until it is answered.
fn insisted(daemon: &Daemon, change: Change) -> Applied {
    let begun = Instant::now();
    loop {
        match daemon.catalog.apply(NOW, from_ref(&change)) {
            Ok(mut answers) => return answers.remove(0).expect("allowed"),
            Err(Error::Unreachable(_)) if begun.elapsed() < HANG => {
                thread::sleep(Duration::from_millis(20))
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The child's side.
pub(crate) fn write_until_killed() {
    let Ok(url) = std::env::var(URL) else { return };
    let world = World::at(url.parse().expect("the parent gave a URL"));
    let daemon = &world.daemon("doomed");
    let first = u64::from(std::process::id()) << 32;
    let next = &AtomicU64::new(first);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || {
                loop {
                    let name = format!("f{}", next.fetch_add(1, Ordering::Relaxed));
                    let taken = daemon.take_in(&name);
                    tell(&name, taken.revision);
                    let steps = [Next::Settled { size: 1000 }, Next::Hashed(vec![digest(&name)])];
                    for (at, next) in (1..).zip(steps) {
                        let (file, at) = (taken.file, Revision(at));
                        let change = Change::Move(Move { file, at, fence: None, next });
                        tell(&name, daemon.change(NOW, change).expect("allowed").revision);
                    }
                }
            });
        }
    });
}

fn tell(name: &str, revision: Revision) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "acknowledged {name} {revision}").expect("the parent reads");
    out.flush().expect("the parent reads");
}
