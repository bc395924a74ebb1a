//! Records beside the life cycle, and batches in which some changes are refused.

use crate::world::{Daemon, NOW, World, digest, receipt};
use downpour_catalog::{
    AdoptedFile, Change, Decision, Delivery, DeliveryState, Digest, DigestKind, ErrorClass,
    EventKind, FILE_BYTES_MAX, FileId, LinkSeen, NewFile, Next, RECEIPT_BYTES_MAX, Receipt,
    Refused, Replica, ReplicaState, RuleId, Session, SessionId, State, Transfer, TransferId,
    WHY_BYTES_MAX,
};
use downpour_proto::StreamId;

pub(crate) fn records_come_back_as_they_were(world: &World) {
    let daemon = world.daemon("a");
    let file = daemon.queued("x").file;
    let there = daemon.catalog.site("there").unwrap();
    let md5 = Digest::new(DigestKind::Md5, &[9; 16]).unwrap();
    let path = "/x/y z".to_owned();
    let replica = Replica { file, site: there, path, state: ReplicaState::Corrupt };
    let transfer = Transfer { id: TransferId(5), from: daemon.site, to: there, submitted: NOW };
    let session = Session {
        id: SessionId(9),
        stream: StreamId(u32::MAX),
        rule: daemon.rule,
        started: NOW,
        ended: None,
    };
    let delivery = |receiver: u8, state, error| {
        let receiver = vec![receiver; 32];
        Delivery { session: SessionId(9), file, receiver, state, error }
    };
    let failed = delivery(1, DeliveryState::Failed, Some(ErrorClass::DestinationFull));
    let second = Receipt { receiver: vec![4; 32], ..receipt(file) };
    let changes = [
        Change::Digest(file, md5.clone()),
        Change::Replica(Replica { state: ReplicaState::Present, ..replica.clone() }),
        Change::Replica(replica.clone()),
        Change::Receipt(receipt(file)),
        Change::Receipt(second.clone()),
        Change::Transfer(transfer),
        Change::Session(session.clone()),
        Change::Delivery(delivery(1, DeliveryState::Expected, None)),
        Change::Delivery(delivery(0, DeliveryState::Complete, None)),
        Change::Delivery(failed.clone()),
        Change::Session(Session { ended: Some(NOW.plus_s(1)), ..session }),
    ];
    // Twice: what is repeated changes nothing.
    for _ in 0..2 {
        let answers = daemon.catalog.apply(NOW, &changes).unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let mut reader = world.reader();
        assert_eq!(reader.digests(file).unwrap(), [digest("x"), md5.clone()]);
        assert_eq!(reader.replicas(file).unwrap(), std::slice::from_ref(&replica));
        assert_eq!(reader.receipts(file).unwrap(), [receipt(file), second.clone()]);
        let complete = delivery(0, DeliveryState::Complete, None);
        assert_eq!(reader.deliveries(SessionId(9)).unwrap(), [complete, failed.clone()]);
    }
    assert_eq!(world.reader().sites().unwrap()[1], (there, "there".to_owned()));
    assert_eq!(daemon.catalog.site("there").unwrap(), there);
}

/// A digest besides BLAKE3, a transfer, two sessions and two deliveries: six records.
pub(crate) fn plant_records(daemon: &Daemon, file: FileId) {
    let there = daemon.catalog.site("there").unwrap();
    let session = |id, stream, rule, ended| {
        let (id, stream) = (SessionId(id), StreamId(stream));
        Change::Session(Session { id, stream, rule, started: NOW, ended })
    };
    let delivery = |receiver: u8, state, error| {
        let receiver = vec![receiver; 32];
        Change::Delivery(Delivery { session: SessionId(9), file, receiver, state, error })
    };
    let (id, from, submitted) = (TransferId(5), daemon.site, NOW);
    let changes = [
        Change::Digest(file, Digest::new(DigestKind::Md5, &[9; 16]).unwrap()),
        Change::Transfer(Transfer { id, from, to: there, submitted }),
        session(8, 7, RuleId(0), None),
        session(9, u32::MAX, daemon.rule, Some(NOW)),
        delivery(1, DeliveryState::Complete, None),
        delivery(2, DeliveryState::Failed, Some(ErrorClass::DestinationFull)),
    ];
    assert!(daemon.catalog.apply(NOW, &changes).unwrap().iter().all(Result::is_ok));
}

pub(crate) fn what_is_adopted_comes_with_its_receipt(world: &World) {
    let daemon = world.daemon("a");
    let signed = |by: u8| Some(Receipt { receiver: vec![by; 32], ..receipt(FileId(0)) });
    let adopt = |name: &str, receipt| {
        let file = AdoptedFile { receipt, ..daemon.adopted_file(name) };
        daemon.change(NOW, Change::Adopt(file))
    };
    let file = adopt("x", signed(1)).unwrap().file;
    let receipts = |file| world.reader().receipts(file).unwrap();
    let by = |by: u8| Receipt { receiver: vec![by; 32], ..receipt(file) };
    assert_eq!(receipts(file), [by(1)]);
    // Again, and for a file that is known: it is told, as a receipt by itself is.
    let told = |last: usize| {
        let events = world.reader().events(daemon.catalog.log(), 0, 100).unwrap();
        events.iter().rev().take(last).map(|event| event.kind).collect::<Vec<_>>()
    };
    assert_eq!(adopt("x", signed(2)).unwrap().file, file);
    assert_eq!(receipts(file), [by(1), by(2)]);
    assert_eq!(told(2), [EventKind::Receipt, EventKind::Replica]);
    // So is what else is told of its content, once; another value is of other content.
    let md5 = |n: u8| vec![Digest::new(DigestKind::Md5, &[n; 16]).unwrap()];
    let with = |name: &str, n: u8| {
        let file = AdoptedFile { others: md5(n), ..daemon.adopted_file(name) };
        daemon.change(NOW, Change::Adopt(file))
    };
    assert_eq!(with("x", 1).unwrap().file, file);
    assert_eq!(told(2), [EventKind::Replica, EventKind::Digest]);
    assert!(with("x", 1).is_ok());
    assert_eq!(told(2), [EventKind::Replica, EventKind::Replica]);
    assert_eq!(with("x", 2), Err(Refused::DigestDiffers(DigestKind::Md5)));
    let new = with("z", 2).unwrap().file;
    assert_eq!(told(1), [EventKind::TakenIn]);
    let all = world.reader().digests_of(&[file, new]).unwrap();
    let of = |file| all.iter().filter(move |one| one.0 == file).map(|one| one.1.clone()).skip(1);
    assert_eq!((of(file).collect(), of(new).collect()), (md5(1), md5(2)));
    // One that cannot be recorded leaves no half.
    let long = Receipt { signed: vec![0; RECEIPT_BYTES_MAX + 1], ..receipt(FileId(0)) };
    assert!(matches!(adopt("y", Some(long)), Err(Refused::Malformed(_))));
    assert_eq!(world.reader().versions(daemon.site, "y").unwrap(), []);
}

/// The `n`th that was seen on the link from another site to this one.
pub(crate) fn seen(daemon: &Daemon, n: i64) -> Change {
    Change::LinkSeen(LinkSeen {
        from: daemon.catalog.site("there").unwrap(),
        to: daemon.site,
        at: NOW.plus_s(n),
        took_us: 2_000_000,
        bytes: 25_000_000 + n as u64,
        sent: u64::MAX,
        sent_again: 7,
        rtt_us: 12_000,
        connections: 8,
        ip: 6,
    })
}

/// The `n`th decision on it.
pub(crate) fn decided(daemon: &Daemon, n: i64) -> Change {
    Change::Decision(Decision {
        from: daemon.catalog.site("there").unwrap(),
        to: daemon.site,
        at: NOW.plus_s(n),
        connections: 16,
        pacing_bps: 0,
        rate_bps: 100_000_000,
        lost_ppb: 1_000_000,
        binding: "loss".to_owned(),
        why: format!("the {n}th, for “reasons”"),
    })
}

pub(crate) fn links_keep_their_newest(world: &World) {
    let (a, b) = (world.daemon("a"), world.daemon("b"));
    let there = a.catalog.site("there").unwrap();
    let changes: Vec<Change> = (0..300).flat_map(|n| [seen(&a, n), decided(&a, n)]).collect();
    // Twice, and in parts: what is repeated is there once.
    for part in changes.chunks(70).chain([&changes[500..]]) {
        let answers = a.catalog.apply(NOW, part).unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    b.change(NOW, seen(&b, 5)).unwrap();
    let mut reader = world.reader();
    let Change::LinkSeen(newest) = seen(&a, 299) else { unreachable!() };
    let found = reader.link_seen(there, a.site, 1000).unwrap();
    // What is more than a number of the databases can be is as much as it can be.
    assert_eq!(found[0], LinkSeen { sent: i64::MAX as u64, ..newest });
    // 256 of one writer, and one of the other.
    assert_eq!((found.len(), found[255].at, found[256].at), (257, NOW.plus_s(44), NOW.plus_s(5)));
    assert_eq!(reader.link_seen(there, a.site, 10).unwrap(), found[..10]);
    assert_eq!(reader.link_seen(a.site, there, 10).unwrap(), [], "the way back is another link");
    let Change::Decision(last) = decided(&a, 299) else { unreachable!() };
    let all = reader.decisions(None, 1000).unwrap();
    assert_eq!((all.len(), &all[0]), (300, &last));
    assert_eq!(reader.decisions(Some((there, a.site)), 2).unwrap(), all[..2]);
    assert_eq!(reader.decisions(Some((a.site, there)), 2).unwrap(), []);
    let long = Decision { why: "x".repeat(WHY_BYTES_MAX + 1), ..last };
    assert!(matches!(a.change(NOW, Change::Decision(long)), Err(Refused::Malformed(_))));
}

pub(crate) fn what_a_clock_that_was_ahead_wrote_of_links_goes(world: &World) {
    let a = world.daemon("a");
    let there = a.catalog.site("there").unwrap();
    let year = 365 * 86_400;
    for n in 0..300 {
        a.change(NOW.plus_s(year), seen(&a, year + n)).unwrap();
    }
    a.change(NOW.plus_s(year), decided(&a, year)).unwrap();
    // The clock is right again.
    a.catalog.apply(NOW, &[seen(&a, 1), seen(&a, 2), decided(&a, 2)]).unwrap();
    let at: Vec<_> =
        world.reader().link_seen(there, a.site, 1000).unwrap().iter().map(|seen| seen.at).collect();
    assert_eq!(at, [NOW.plus_s(2), NOW.plus_s(1)]);
    let decided = world.reader().decisions(None, 1000).unwrap();
    assert_eq!(decided.iter().map(|one| one.at).collect::<Vec<_>>(), [NOW.plus_s(2)]);
}

pub(crate) fn a_refused_change_spoils_no_other(world: &World) {
    let daemon = world.daemon("a");
    let good = daemon.take_in("good");
    let before = world.reader().events(daemon.catalog.log(), 0, 100).unwrap();
    let step = |next| {
        let (file, at) = (good.file, good.revision);
        Change::Move(downpour_catalog::Move { file, at, fence: None, next })
    };
    let other = Digest::blake3([1; 32]);
    let changes = [
        step(Next::Queued),
        Change::Digest(FileId(1), other.clone()),
        step(Next::Settled { size: 2000 }),
        step(Next::Quarantined(ErrorClass::TimedOut)),
        Change::Digest(good.file, other.clone()),
        Change::Digest(good.file, digest("good")),
        Change::Digest(good.file, other),
        step(Next::Settled { size: u64::MAX }),
    ];
    let answers = daemon.catalog.apply(NOW, &changes).unwrap();
    let accepted: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [false, false, true, false, true, false, true, true], "{answers:?}");
    assert_eq!(answers[5], Err(Refused::DigestDiffers(DigestKind::Blake3)));
    // The last two repeat what was done, and are not told again.
    let after = world.reader().events(daemon.catalog.log(), 0, 100).unwrap();
    assert_eq!(after.len(), before.len() + 2);
    assert_eq!(daemon.file(good.file).size, 2000);
}

pub(crate) fn a_transfer_knows_how_its_files_stand(world: &World) {
    let daemon = world.daemon("a");
    let there = daemon.catalog.site("there").unwrap();
    let transfer =
        |id| Transfer { id: TransferId(id), from: daemon.site, to: there, submitted: NOW };
    for id in [5, 9] {
        daemon.change(NOW, Change::Transfer(transfer(id))).unwrap();
    }
    let mut files = Vec::new();
    for name in ["x", "y"] {
        let new =
            downpour_catalog::NewFile { transfer: Some(TransferId(5)), ..daemon.new_file(name) };
        files.push(daemon.change(NOW, Change::TakeIn(new)).unwrap());
    }
    let [none, ended] = ["of no transfer", "ended"];
    daemon.in_state(ended, State::Receipted);
    daemon.queued(none);
    let mut reader = world.reader();
    // The other has no file yet.
    assert_eq!(reader.open_transfers(10).unwrap(), [transfer(5)]);
    assert_eq!(reader.transfer(TransferId(5)).unwrap(), Some(transfer(5)));
    assert_eq!(reader.transfer(TransferId(6)).unwrap(), None);
    let ids: Vec<FileId> = files.iter().map(|file| file.file).collect();
    let mut live = |states: &[State], after: i64, limit| {
        reader.transfer_live(TransferId(5), states, FileId(after), limit).unwrap()
    };
    assert_eq!(live(&[State::Queued, State::Found], 0, 10), ids);
    assert_eq!(live(&[State::Found], 0, 1), ids[..1]);
    assert_eq!(live(&[State::Found], ids[0].0, 10), ids[1..]);
    assert_eq!(live(&[State::Queued], 0, 10), []);
    let states = reader.transfer_states(TransferId(5)).unwrap();
    assert_eq!(states, [(downpour_catalog::State::Found, 2, 2000)]);
    assert_eq!(reader.transfer_states(TransferId(9)).unwrap(), []);
    // What goes by none, and is still to arrive, goes by the next that asks for it.
    let asks = |id, name| {
        let new =
            downpour_catalog::NewFile { transfer: Some(TransferId(id)), ..daemon.new_file(name) };
        daemon.change(NOW, Change::TakeIn(new)).unwrap().transfer
    };
    assert_eq!(asks(9, none), Some(TransferId(9)));
    assert_eq!((asks(5, none), asks(9, ended)), (Some(TransferId(9)), None));
    let states = reader.transfer_states(TransferId(9)).unwrap();
    assert_eq!(states, [(State::Queued, 1, 1000)]);
    assert_eq!(reader.open_transfers(10).unwrap(), [transfer(9), transfer(5)]);
    assert_eq!(reader.open_transfers(1).unwrap(), [transfer(9)]);
}

pub(crate) fn lengths_can_be_summed_up(world: &World) {
    let daemon = world.daemon("a");
    let new = |name: &str, size| {
        let transfer = Some(TransferId(5));
        daemon.change(NOW, Change::TakeIn(NewFile { size, transfer, ..daemon.new_file(name) }))
    };
    let (longest, size) = (FILE_BYTES_MAX, FILE_BYTES_MAX + 1);
    let files = ["x", "y"].map(|name| new(name, longest).unwrap());
    let adopted = Change::Adopt(AdoptedFile { size, ..daemon.adopted_file("z") });
    let refused = [
        new("z", size),
        daemon.change(NOW, adopted),
        daemon.step(files[0].file, files[0].revision, Next::Settled { size }),
    ];
    assert!(refused.iter().all(|r| matches!(r, Err(Refused::Malformed(_)))), "{refused:?}");
    let states = world.reader().transfer_states(TransferId(5)).unwrap();
    assert_eq!(states, [(State::Found, 2, 2 * longest)]);
    let counts = world.reader().counts().unwrap();
    assert_eq!((counts[0].files, counts[0].bytes), (2, 2 * longest as i64));
}
