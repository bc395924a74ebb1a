//! Several daemons on one catalog, and several threads in one daemon.

use crate::world::{LEASE_S, NOW, World, receipt};
use downpour_catalog::{
    Change, Count, ErrorClass, EventKind, FileId, Next, Outcome, Refused, State, Work,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::thread;

pub(crate) fn a_lease_that_was_lost_cannot_write(world: &World) {
    let (one, two) = (world.daemon("one"), world.daemon("two"));
    let file = one.queued("x").file;
    let held = one.claim(NOW, Work::QueuedOf(one.rule), 1)[0];
    assert_eq!(two.claim(NOW, Work::QueuedOf(two.rule), 1), []);
    assert_eq!(two.claim(NOW.plus_s(LEASE_S - 1), Work::Lapsed, 1), []);
    // Kept: it does not lapse.
    let until = NOW.plus_s(2 * LEASE_S);
    one.change(NOW, Change::Renew { file, fence: held.fence, until }).expect("still held");
    assert_eq!(two.claim(NOW.plus_s(LEASE_S), Work::Lapsed, 1), []);
    // Not kept: another has it.
    let taken = two.claim(until, Work::Lapsed, 1)[0];
    assert_eq!((taken.file, taken.state), (file, State::Sending));
    assert!(taken.fence > held.fence);
    let late = one.step_held(held, held.revision, Next::Sent { bytes: 1000 });
    assert!(matches!(late, Err(Refused::Stale { .. })), "{late:?}");
    // Not even one who has looked the revision up.
    let late = one.step_held(held, taken.revision, Next::Sent { bytes: 1000 });
    assert_eq!(late, Err(Refused::NoLease));
    let late = one.change(until, Change::Renew { file, fence: held.fence, until });
    assert_eq!(late, Err(Refused::NoLease));
    two.step_held(taken, taken.revision, Next::Sent { bytes: 1000 }).expect("the holder may");
    let attempts = world.reader().attempts(file).unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(
        (attempts[0].outcome, attempts[0].error),
        (Outcome::Lapsed, Some(ErrorClass::Interrupted))
    );
}

pub(crate) fn daemons_claim_apart(world: &World) {
    const FILES: usize = 600;
    const DAEMONS: usize = 3;
    let daemons: Vec<_> = (0..DAEMONS).map(|n| world.daemon(&format!("d{n}"))).collect();
    let wanted: BTreeSet<FileId> = daemons[0].queue_many(FILES).into_iter().collect();
    let barrier = Barrier::new(DAEMONS);
    let claimed: Vec<Vec<FileId>> = thread::scope(|scope| {
        let threads: Vec<_> = daemons
            .iter()
            .map(|daemon| {
                scope.spawn(|| {
                    barrier.wait();
                    let mut all = Vec::new();
                    loop {
                        let some = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 7);
                        if some.is_empty() {
                            return all;
                        }
                        all.extend(some.iter().map(|claimed| claimed.file));
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let all: Vec<FileId> = claimed.concat();
    assert_eq!(all.len(), wanted.len(), "each once");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), wanted);
}

pub(crate) fn a_daemon_that_comes_back_finds_its_work(world: &World) {
    let daemon = world.daemon("one");
    let (sending, ..) = daemon.in_state("a", State::Sending);
    let (verified, at, held) = daemon.in_state("b", State::Verified);
    drop(daemon);
    // Its name is back: its leases are free at once, another's would not be.
    let daemon = world.daemon("one");
    let found = daemon.claim(NOW, Work::Lapsed, 10);
    let states: Vec<_> = found.iter().map(|claimed| (claimed.file, claimed.state)).collect();
    assert_eq!(states, [(sending, State::Sending), (verified, State::Verified)]);
    let late = daemon.step_held(held.unwrap(), at, Next::Receipted(receipt(verified)));
    assert!(matches!(late, Err(Refused::Stale { .. })), "{late:?}");
    let now = found[1].revision;
    daemon.step_held(found[1], now, Next::Receipted(receipt(verified))).expect("the new lease");
}

pub(crate) fn logs_have_no_gaps_and_counts_are_right(world: &World) {
    const ROUNDS: usize = 40;
    let daemons = [world.daemon("one"), world.daemon("two")];
    thread::scope(|scope| {
        for (number, daemon) in daemons.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // The same names from both: each is one file, whoever is first.
                    let mut new = daemon.new_file(&format!("n{round}"));
                    new.size = round as u64;
                    let file = daemon.change(NOW, Change::TakeIn(new)).expect("a file").file;
                    let at = downpour_catalog::Revision(1);
                    let size = (round * 2) as u64;
                    // Whoever is second finds it done, or the file gone on.
                    let settled = daemon.step(file, at, Next::Settled { size });
                    let gone_on = matches!(settled, Err(Refused::Stale { .. }));
                    assert!(settled.is_ok() || gone_on, "{settled:?}");
                    if number == 0 && round % 2 == 0 {
                        let at = downpour_catalog::Revision(2);
                        daemon.step(file, at, Next::Cancelled).ok();
                    }
                }
            });
        }
    });
    let mut reader = world.reader();
    let (mut entered, mut told) = (BTreeSet::new(), BTreeMap::new());
    for (log, _, last) in reader.logs().unwrap() {
        let events = reader.events(log, 0, 10_000).unwrap();
        let numbers: Vec<_> = events.iter().map(|event| event.number).collect();
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "log {log}");
        for event in events {
            if event.kind == EventKind::TakenIn {
                assert!(entered.insert(event.subject), "taken in twice");
            }
            assert!(told.insert((event.subject, event.revision), event).is_none());
        }
    }
    assert_eq!(entered.len(), ROUNDS);
    let mut expected: BTreeMap<State, (i64, i64)> = BTreeMap::new();
    for id in entered {
        let file = daemons[0].file(FileId(id));
        let count = expected.entry(file.state).or_default();
        *count = (count.0 + 1, count.1 + file.size as i64);
    }
    let counted = reader.counts().unwrap();
    let sum = |c: Count| (c.state, (c.files, c.bytes));
    assert_eq!(counted.into_iter().map(sum).collect::<BTreeMap<_, _>>(), expected);
}

pub(crate) fn many_threads_share_commits(world: &World) {
    let daemon = world.daemon("a");
    thread::scope(|scope| {
        for thread in 0..16 {
            let daemon = &daemon;
            scope.spawn(move || {
                for file in 0..20 {
                    let name = format!("{thread}/{file}");
                    let taken = daemon.take_in(&name);
                    // What is answered is durable, and readers see it.
                    assert_eq!(daemon.file(taken.file).name, name);
                }
            });
        }
    });
    let counts = world.reader().counts().unwrap();
    assert_eq!(counts.iter().map(|count| count.files).sum::<i64>(), 320);
}
