//! The life cycle, as each engine keeps it.

use crate::world::{LEASE_S, NOW, World, digest, receipt, waiting};
use downpour_catalog::{
    Change, ErrorClass, Holder, Move, Next, Outcome, Reason, Receipt, Refused, Replica,
    ReplicaState, Revision, Scope, State, TRANSITIONS, Takers, Time, WORD_BYTES_MAX, Work,
};

pub(crate) fn a_file_goes_from_found_to_receipted(world: &World) {
    let daemon = world.daemon("a");
    let queued = daemon.queued("run/1.root");
    let claimed = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 10);
    assert_eq!(claimed.len(), 1);
    let mut at = claimed[0].revision;
    assert_eq!(at, Revision(queued.revision.0 + 1));
    for next in [
        Next::Sent { bytes: 1000 },
        Next::Verified(daemon.site, "/in/1.root".to_owned()),
        Next::Receipted(receipt(queued.file)),
    ] {
        at = daemon.step_held(claimed[0], at, next).expect("the way to the receipt").revision;
    }
    let file = daemon.file(queued.file);
    assert_eq!((file.state, file.revision, file.tries), (State::Receipted, Revision(8), 1));
    assert_eq!((file.reason, file.next_try, file.error), (None, None, None));
    assert_eq!(file.digest, Some(digest("run/1.root")));
    let mut reader = world.reader();
    let attempts = reader.attempts(file.id).unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].outcome, attempts[0].bytes), (Outcome::Verified, 1000));
    assert_eq!(reader.replicas(file.id).unwrap()[0].path, "/in/1.root");
    assert_eq!(reader.receipts(file.id).unwrap(), [receipt(file.id)]);
    let told: Vec<_> =
        reader.events(daemon.catalog.log(), 0, 100).unwrap().into_iter().map(|e| e.to).collect();
    let way = [
        State::Found,
        State::Settled,
        State::Hashed,
        State::Queued,
        State::Sending,
        State::Sent,
        State::Verified,
        State::Receipted,
    ];
    assert_eq!(told, way.map(Some));
    // A replica was lost: the file is sent again.
    at = daemon.step(file.id, at, Next::Queued).expect("a repair").revision;
    let again = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 1);
    assert_eq!((again[0].file, again[0].revision), (file.id, Revision(at.0 + 1)));
}

pub(crate) fn what_the_table_does_not_allow_is_refused(world: &World) {
    let daemon = world.daemon("a");
    for (from, allowed) in TRANSITIONS {
        for to in State::ALL.iter().filter(|to| !allowed.contains(to)) {
            // Sending is reached by a claim alone, adopting is not a step.
            if matches!(to, State::Sending | State::Adopted) {
                continue;
            }
            let (file, at, held) = daemon.in_state(&format!("{from}-{to}"), from);
            let next = match to {
                State::Found => Next::Resumed,
                State::Settled => Next::Settled { size: 1000 },
                State::Hashed => Next::Hashed(vec![digest(&format!("{from}-{to}"))]),
                State::Queued => Next::Queued,
                State::Sent => Next::Sent { bytes: 1 },
                State::Verified => Next::Verified(daemon.site, "/x".to_owned()),
                State::Receipted => Next::Receipted(receipt(file)),
                State::Waiting => waiting(NOW),
                State::Quarantined => Next::Quarantined(ErrorClass::FileGone),
                State::Cancelled => Next::Cancelled,
                State::Sending | State::Adopted => unreachable!("left out above"),
            };
            let before = daemon.file(file);
            let fence = held.map(|held| held.fence);
            let answer = daemon.change(NOW, Change::Move(Move { file, at, fence, next }));
            let refused = matches!(answer, Err(Refused::NotAllowed { from: f, .. }) if f == from);
            assert!(refused, "{from} to {to}: {answer:?}");
            assert_eq!(daemon.file(file), before);
            if !from.is_end() {
                daemon.step(file, at, Next::Cancelled).expect("out of the way of the next");
            }
        }
    }
}

pub(crate) fn a_repeated_step_is_answered_as_the_first(world: &World) {
    let daemon = world.daemon("a");
    let first = daemon.take_in("x");
    let again = daemon.take_in("x");
    assert_eq!((again.file, again.repeated), (first.file, true));
    let settled = Next::Settled { size: 1000 };
    let done = daemon.step(first.file, first.revision, settled.clone()).unwrap();
    let again = daemon.step(first.file, first.revision, settled.clone()).unwrap();
    assert_eq!((again.revision, again.repeated), (done.revision, true));
    // Another step from the same revision is another's work.
    let stale = daemon.step(first.file, first.revision, Next::Cancelled);
    assert_eq!(stale, Err(Refused::Stale { revision: done.revision, state: State::Settled }));
    let early = daemon.step(first.file, Revision(99), settled);
    assert!(matches!(early, Err(Refused::Stale { .. })));
    let nobody = downpour_catalog::FileId(1);
    assert_eq!(daemon.step(nobody, Revision(1), Next::Cancelled), Err(Refused::NoSuchFile(nobody)));
    assert_eq!(world.reader().events(daemon.catalog.log(), 0, 10).unwrap().len(), 2);
}

pub(crate) fn what_fails_waits_and_starts_again_where_it_can(world: &World) {
    let daemon = world.daemon("a");
    for (from, starts) in [
        (State::Found, State::Found),
        (State::Settled, State::Settled),
        (State::Hashed, State::Hashed),
        (State::Queued, State::Queued),
        (State::Sending, State::Queued),
        (State::Sent, State::Queued),
        (State::Verified, State::Queued),
    ] {
        let (file, at, held) = daemon.in_state(&format!("{from}"), from);
        let step = |at, next| match held {
            Some(held) => daemon.step_held(held, at, next),
            None => daemon.step(file, at, next),
        };
        let later = NOW.plus_s(30);
        let at = step(at, waiting(later)).expect("any of them may wait").revision;
        let now = daemon.file(file);
        assert_eq!((now.state, now.next_try), (State::Waiting, Some(later)));
        assert_eq!((now.reason, now.error), (Some(Reason::BackOff), Some(ErrorClass::TimedOut)));
        // Not elsewhere, and not before its time by itself.
        if starts != State::Queued {
            let elsewhere = daemon.step(file, at, Next::Queued);
            assert!(matches!(elsewhere, Err(Refused::NotAllowed { .. })), "{from}: {elsewhere:?}");
        }
        assert_eq!(daemon.catalog.wake(NOW, later.plus_s(-1), 10).wait(), Ok(0));
        assert_eq!(daemon.catalog.wake(NOW, later, 10).wait(), Ok(1));
        let now = daemon.file(file);
        assert_eq!((now.state, now.error, now.next_try), (starts, None, None), "{from}");
        // As of when it was done, however far ahead those were that were to be woken.
        let log = daemon.catalog.log();
        let events = world.reader().events(log, 0, 1000).unwrap();
        assert_eq!((now.since, events.last().unwrap().at), (NOW, NOW), "{from}");
        let outcomes: Vec<_> =
            world.reader().attempts(file).unwrap().iter().map(|a| (a.outcome, a.error)).collect();
        match from {
            State::Sending | State::Sent => {
                assert_eq!(outcomes, [(Outcome::Failed, Some(ErrorClass::TimedOut))]);
            }
            State::Verified => assert_eq!(outcomes, [(Outcome::Verified, None)]),
            _ => assert_eq!(outcomes, []),
        }
        daemon.step(file, now.revision, Next::Cancelled).expect("out of the way of the next");
    }
}

pub(crate) fn only_the_files_own_fault_sets_it_apart(world: &World) {
    let daemon = world.daemon("a");
    for class in ErrorClass::ALL {
        let (file, at, held) = daemon.in_state(class.name(), State::Sending);
        let answer = daemon.step_held(held.unwrap(), at, Next::Quarantined(*class));
        if class.scope() == Scope::File {
            let at = answer.expect("its own fault").revision;
            let now = daemon.file(file);
            assert_eq!((now.reason, now.error), (Some(Reason::Quarantine), Some(*class)));
            // It stays until it is released.
            assert_eq!(daemon.catalog.wake(NOW, Time(i64::MAX / 2), 10).wait(), Ok(0));
            let released = daemon.step(file, at, Next::Resumed).expect("released by hand");
            assert_eq!(released.state, Some(State::Queued));
            daemon.step(file, released.revision, Next::Cancelled).unwrap();
        } else {
            assert_eq!(answer, Err(Refused::NotTheFilesFault(*class)));
            daemon.step(file, at, Next::Cancelled).unwrap();
        }
    }
}

pub(crate) fn each_file_that_does_not_move_has_one_reason(world: &World) {
    let daemon = world.daemon("a");
    for state in State::ALL {
        let (file, ..) = daemon.in_state(state.name(), *state);
        let now = daemon.file(file);
        assert_eq!(now.state, *state);
        let moves_or_ended = *state == State::Sending || state.is_end();
        assert_eq!(now.reason.is_none(), moves_or_ended, "{state}");
        assert_eq!(now.next_try.is_some(), *state == State::Waiting, "{state}");
        // A queued file would be claimed by the next one's way.
        if *state == State::Queued {
            daemon.step(file, now.revision, Next::Cancelled).unwrap();
        }
    }
}

pub(crate) fn an_operator_cancels_a_file_that_is_held(world: &World) {
    let daemon = world.daemon("a");
    let (file, at, held) = daemon.in_state("x", State::Sending);
    assert_eq!(daemon.step(file, at, Next::Sent { bytes: 1 }), Err(Refused::NoLease));
    daemon.step(file, at, Next::Cancelled).expect("operators may");
    let late = daemon.step_held(held.unwrap(), at, Next::Sent { bytes: 1000 });
    assert!(matches!(late, Err(Refused::Stale { state: State::Cancelled, .. })), "{late:?}");
    let renewed = daemon.change(
        NOW,
        Change::Renew { file, fence: held.unwrap().fence, until: NOW.plus_s(2 * LEASE_S) },
    );
    assert_eq!(renewed, Err(Refused::NoLease));
    assert_eq!(world.reader().attempts(file).unwrap()[0].outcome, Outcome::Cancelled);
}

pub(crate) fn a_claim_may_be_of_one_rule(world: &World) {
    let mut daemon = world.daemon("a");
    let (first, all) = (daemon.queued("run/1"), daemon.rule);
    daemon.rule = daemon.catalog.rule("other").expect("a rule");
    let second = daemon.queued("run/2");
    let third = daemon.queued("run/3");
    let of_other = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 1);
    assert_eq!(of_other.iter().map(|c| c.file).collect::<Vec<_>>(), [second.file]);
    let of_other = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 10);
    assert_eq!(of_other.iter().map(|c| c.file).collect::<Vec<_>>(), [third.file]);
    assert_eq!(of_other[0].state, State::Sending);
    assert_eq!(daemon.claim(NOW, Work::QueuedOf(all), 10)[0].file, first.file);
}

pub(crate) fn a_claim_may_be_of_what_one_of_several_sites_lacks(world: &World) {
    let daemon = world.daemon("a");
    let files = daemon.queue_many(4);
    let holder = |name: &str, key: u8| {
        let site = daemon.catalog.site(name).expect("a site");
        Holder { site, receiver: vec![key; 32] }
    };
    let (b, c, unknown) = (holder("b", 2), holder("c", 3), Holder::default());
    let replica = |file, of: &Holder, state| {
        let (site, path) = (of.site, "x".to_owned());
        daemon.change(NOW, Change::Replica(Replica { file, site, path, state })).unwrap();
    };
    let has = |file, of: &Holder| {
        replica(file, of, ReplicaState::Present);
        let receipt = Receipt { receiver: of.receiver.clone(), ..receipt(file) };
        daemon.change(NOW, Change::Receipt(receipt)).unwrap();
    };
    // The first has the first two, of the third it has lost its copy, for the fourth there is no receipt.
    files[..3].iter().for_each(|file| has(*file, &b));
    replica(files[2], &b, ReplicaState::Lost);
    replica(files[3], &b, ReplicaState::Present);
    let given_of = |asking: &[&Holder], others: &[&Holder], required| {
        let [asking, others] = [asking, others].map(|of| of.iter().copied().cloned().collect());
        let work = Work::QueuedFor(daemon.rule, Takers { asking, others, required });
        let claimed = daemon.claim(NOW, work, 10);
        for claimed in &claimed {
            let (reason, error, next_try) = (Reason::Turn, None, NOW);
            let back = Next::Waiting { reason, error, next_try, bytes: 0 };
            daemon.step_held(*claimed, claimed.revision, back).unwrap();
        }
        daemon.catalog.wake(NOW, NOW, 10).wait().expect("the database works");
        claimed.into_iter().map(|claimed| claimed.file).collect::<Vec<_>>()
    };
    let given = |one: &Holder, others: &[&Holder]| given_of(&[one], others, 1 + others.len());
    assert_eq!(given(&b, &[&c]), files[2..]);
    assert_eq!(given(&c, &[&b]), files);
    assert_eq!(given(&unknown, &[&b, &c]), files);
    has(files[0], &c);
    assert_eq!(given(&b, &[&c, &unknown]), files[2..]);
    assert_eq!(given(&c, &[&b, &unknown]), files[1..]);
    // One that all have is to come to its end.
    assert_eq!(given(&b, &[&c]), [files[0], files[2], files[3]]);
    assert_eq!(given(&c, &[&b]), files);
    // Several may ask, and not all need have it.
    assert_eq!(given_of(&[&b, &c], &[&unknown], 3), files[1..]);
    assert_eq!(given_of(&[&b, &c], &[&unknown], 2), files);
    assert_eq!(given_of(&[&b], &[&c, &unknown], 1), files);
    assert_eq!(given_of(&[], &[&b, &c], 2), files[..1]);
    assert_eq!(given_of(&[&b], &vec![&unknown; 1500], 1501), files[2..]);
    for file in files {
        daemon.step(file, daemon.file(file).revision, Next::Cancelled).unwrap();
    }
}

pub(crate) fn what_waits_too_long_by_a_clock_that_was_ahead_starts_again(world: &World) {
    let daemon = world.daemon("a");
    let [far, near, held] = ["far", "near", "held"].map(|name| daemon.queued(name));
    let (month, hour) = (NOW.plus_s(30 * 86_400), NOW.plus_s(3600));
    daemon.step(far.file, far.revision, waiting(month)).unwrap();
    daemon.step(near.file, near.revision, waiting(hour)).unwrap();
    let claimed = daemon.catalog.claim(NOW, Work::QueuedOf(daemon.rule), 1, month).wait().unwrap();
    assert_eq!(claimed[0].file, held.file);
    assert_eq!(daemon.catalog.rouse(NOW, hour, 10).wait(), Ok(1));
    assert_eq!(daemon.catalog.rouse(NOW, hour, 10).wait(), Ok(0));
    let state = |of: downpour_catalog::Applied| daemon.file(of.file).state;
    assert_eq!([far, near, held].map(state), [State::Queued, State::Waiting, State::Sending]);
    assert_eq!(daemon.claim(NOW.plus_s(3599), Work::Lapsed, 10), []);
    assert_eq!(daemon.claim(hour, Work::Lapsed, 10)[0].file, held.file);
    for of in [far, near, held] {
        daemon.step(of.file, daemon.file(of.file).revision, Next::Cancelled).unwrap();
    }
}

pub(crate) fn what_went_nowhere_was_no_attempt(world: &World) {
    let daemon = world.daemon("a");
    let file = daemon.queued("x").file;
    let back = |reason, error| Next::Waiting { reason, error, next_try: NOW, bytes: 0 };
    let stands = || {
        let (tries, attempts) = (daemon.file(file).tries, world.reader().attempts(file).unwrap());
        (tries, attempts.into_iter().map(|attempt| attempt.number).collect::<Vec<_>>())
    };
    let next = || {
        daemon.catalog.wake(NOW, NOW, 10).wait().expect("the database works");
        daemon.claim(NOW, Work::QueuedOf(daemon.rule), 1)[0]
    };
    for _ in 0..3 {
        let held = next();
        daemon.step_held(held, held.revision, back(Reason::Turn, None)).unwrap();
        assert_eq!(stands(), (0, vec![]));
    }
    let held = next();
    let lost = Some(ErrorClass::ConnectionLost);
    daemon.step_held(held, held.revision, back(Reason::BackOff, lost)).unwrap();
    assert_eq!(stands(), (1, vec![1]));
    // One that goes by a session was sent: to one of several sites.
    let held = next();
    let (fence, session) = (held.fence, "one".to_owned());
    daemon.change(NOW, Change::InSession { file, fence, session }).unwrap();
    daemon.step_held(held, held.revision, back(Reason::Turn, None)).unwrap();
    assert_eq!(stands(), (2, vec![1, 2]));
    let last = world.reader().last_attempts(file, 1).unwrap();
    assert_eq!(last, world.reader().attempts(file).unwrap()[1..]);
    daemon.step(file, daemon.file(file).revision, Next::Cancelled).unwrap();
}

pub(crate) fn an_attempt_names_its_session(world: &World) {
    let daemon = world.daemon("a");
    let file = daemon.queued("x").file;
    let goes_by = |fence, session: &str| {
        let session = session.to_owned();
        daemon.change(NOW, Change::InSession { file, fence, session })
    };
    let named = || {
        let attempts = world.reader().attempts(file).unwrap();
        attempts.into_iter().map(|attempt| attempt.session).collect::<Vec<_>>()
    };
    let first = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 1)[0];
    goes_by(first.fence, "one").expect("it is held");
    let stands = daemon.file(file).revision;
    assert_eq!(stands, first.revision, "it is no step");
    // Taken up by another, after the lease: the attempt that lapsed names its session, the next one has none yet.
    let late = NOW.plus_s(LEASE_S);
    let second = daemon.claim(late, Work::Lapsed, 1)[0];
    assert_eq!(goes_by(first.fence, "one"), Err(Refused::NoLease));
    let waits = daemon.step_held(second, second.revision, waiting(late)).unwrap();
    assert_eq!(named(), [Some("one".to_owned()), None]);
    daemon.step(file, waits.revision, Next::Resumed).unwrap();
    let third = daemon.claim(late, Work::QueuedOf(daemon.rule), 1)[0];
    goes_by(third.fence, "three").expect("it is held");
    let sent = daemon.step_held(third, third.revision, Next::Sent { bytes: 1000 }).unwrap();
    let there = Next::Verified(daemon.site, "/x".to_owned());
    daemon.step_held(third, sent.revision, there).unwrap();
    assert_eq!(named(), [Some("one".to_owned()), None, Some("three".to_owned())]);
    let long = "x".repeat(WORD_BYTES_MAX + 1);
    assert!(matches!(goes_by(third.fence, &long), Err(Refused::Malformed(_))));
}
