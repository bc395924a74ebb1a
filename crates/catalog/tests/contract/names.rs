//! Names: never overwritten in silence, and kept byte by byte.

use crate::world::{NOW, World, digest};
use downpour_catalog::{
    AdoptedFile, Change, Digest, DigestKind, Error, NAME_BYTES_MAX, NewFile, Next, Origin,
    OtherContent, Refused, Same, State, TransferId, WORD_BYTES_MAX, Work,
};

pub(crate) fn a_name_is_never_overwritten(world: &World) {
    let daemon = world.daemon("a");
    let first = daemon.queued("x");
    let other = NewFile { stamp: 8, ..daemon.new_file("x") };
    let refused = daemon.change(NOW, Change::TakeIn(other.clone()));
    assert_eq!(refused, Err(Refused::NameTaken { version: 1 }));
    let other = NewFile { other_content: OtherContent::NewVersion, ..other };
    let second = daemon.change(NOW, Change::TakeIn(other.clone())).unwrap();
    assert_ne!(second.file, first.file);
    assert!(daemon.change(NOW, Change::TakeIn(other.clone())).unwrap().repeated);
    // A repeated one is known by its stamp alone; its length may have been corrected since.
    let again = NewFile { size: 1001, ..other.clone() };
    assert!(daemon.change(NOW, Change::TakeIn(again)).unwrap().repeated);
    let third = NewFile { stamp: 0, ..other };
    assert!(!daemon.change(NOW, Change::TakeIn(third)).unwrap().repeated);
    let versions = world.reader().versions(daemon.site, "x").unwrap();
    assert_eq!(versions.iter().map(|file| file.version).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(versions[0].id, first.file);
    // Another site's file of this name is another file.
    let there = daemon.catalog.site("there").unwrap();
    let elsewhere = NewFile { site: there, ..daemon.new_file("x") };
    assert!(!daemon.change(NOW, Change::TakeIn(elsewhere)).unwrap().repeated);
    // Two of one batch are judged one after the other.
    let twice = Change::TakeIn(daemon.new_file("y"));
    let answers = daemon.catalog.apply(NOW, &[twice.clone(), twice]).unwrap();
    let [one, two] = [answers[0].clone().unwrap(), answers[1].clone().unwrap()];
    assert_eq!((one.repeated, two.repeated, one.file), (false, true, two.file));
    // What was given up holds no name.
    daemon.step(one.file, one.revision, Next::Cancelled).unwrap();
    let other = Change::TakeIn(NewFile { stamp: 11, ..daemon.new_file("y") });
    let second = daemon.change(NOW, other).unwrap().file;
    assert_eq!((second != one.file, daemon.file(second).version), (true, 2));
}

pub(crate) fn one_content_goes_by_each_rule_that_asks_for_it(world: &World) {
    let daemon = world.daemon("a");
    let by = |rule, stamp| {
        let (other_content, same) = (OtherContent::NewVersion, Same::OfRule);
        let transfer = Some(TransferId(rule));
        let rule = daemon.catalog.rule(&format!("to:{rule}")).unwrap();
        let new = NewFile { rule, stamp, transfer, ..daemon.new_file("x") };
        daemon.change(NOW, Change::TakeIn(NewFile { other_content, same, ..new })).unwrap()
    };
    // Neither has been read yet, and each stays what it is.
    let (first, second) = (by(1, 7), by(2, 7));
    assert!(!second.repeated && first.file != second.file);
    let of_first = daemon.file(first.file).rule;
    for (rule, known) in [(1, first), (2, second)] {
        let again = by(rule, 7);
        assert!(again.repeated && again.file == known.file, "{rule}");
        assert_eq!(again.transfer, Some(TransferId(rule)));
    }
    // Written on, each is corrected by itself; the spool, that asks for any, has its own.
    assert_eq!(by(1, 8).file, first.file);
    let any = |stamp| {
        let new = NewFile { rule: of_first, stamp, ..daemon.new_file("x") };
        daemon.change(NOW, Change::TakeIn(new)).unwrap().file
    };
    assert_eq!((any(8), any(9)), (first.file, first.file));
    assert_eq!(by(2, 9).file, second.file);
    // What goes by somebody's transfer is never the file of another rule.
    let other =
        NewFile { stamp: 12, other_content: OtherContent::NewVersion, ..daemon.new_file("x") };
    let other = daemon.change(NOW, Change::TakeIn(other)).unwrap().file;
    assert!(other != first.file && other != second.file);
    // Of one file alone, and only while it is the newest and unread.
    let alone = |file, stamp| {
        let rule = daemon.catalog.rule("to:1").unwrap();
        let new = NewFile { rule, stamp, same: Same::Unread(file), ..daemon.new_file("x") };
        daemon.change(NOW, Change::TakeIn(new))
    };
    assert_eq!(alone(first.file, 10).map(|applied| applied.file), Ok(first.file));
    assert!(matches!(alone(second.file, 11), Err(Refused::Stale { .. })));
    // What was given up is taken in again when it is asked for, and only then.
    let second = daemon.file(second.file);
    daemon.step(second.id, second.revision, Next::Cancelled).unwrap();
    let third = by(2, 9);
    assert!(!third.repeated && third.file != second.id && by(2, 9).file == third.file);
    let versions = world.reader().versions(daemon.site, "x").unwrap();
    let found: Vec<_> = versions.iter().map(|file| (file.id, file.version)).collect();
    assert_eq!(found, [(first.file, 1), (second.id, 2), (other, 3), (third.file, 4)]);
}

pub(crate) fn a_file_that_is_still_written_stays_one_file(world: &World) {
    let daemon = world.daemon("a");
    let first = daemon.take_in("x");
    let seen = |stamp, size| Change::TakeIn(NewFile { stamp, size, ..daemon.new_file("x") });
    let longer = daemon.change(NOW, seen(8, 2000)).unwrap();
    assert_eq!((longer.file, longer.revision.0, longer.repeated), (first.file, 2, false));
    assert!(daemon.change(NOW, seen(8, 2000)).unwrap().repeated);
    // Twice in one batch, and before it is read though it had settled.
    let settled = daemon.step(first.file, longer.revision, Next::Settled { size: 2000 }).unwrap();
    let answers = daemon.catalog.apply(NOW, &[seen(9, 3000), seen(10, 4000)]).unwrap();
    let last = answers[1].clone().unwrap();
    assert_eq!((last.file, last.state), (first.file, Some(State::Settled)));
    assert_eq!(last.revision.0, settled.revision.0 + 2);
    let file = daemon.file(first.file);
    assert_eq!((file.size, file.version, file.revision), (4000, 1, last.revision));
    // Another process knows it by its last stamp.
    drop(daemon);
    let daemon = world.daemon("b");
    let seen = |stamp| Change::TakeIn(NewFile { stamp, size: 4000, ..daemon.new_file("x") });
    assert!(daemon.change(NOW, seen(10)).unwrap().repeated);
    let hashed = Next::Hashed(vec![digest("x")]);
    daemon.step(first.file, last.revision, hashed).unwrap();
    assert_eq!(daemon.change(NOW, seen(11)), Err(Refused::NameTaken { version: 1 }));
    let counts = world.reader().counts().unwrap();
    assert_eq!(counts.len(), 1);
    assert_eq!((counts[0].files, counts[0].bytes), (1, 4000));
}

pub(crate) fn adopting_moves_nothing_and_can_be_repeated(world: &World) {
    let daemon = world.daemon("a");
    let file = daemon.adopted_file("old/1");
    let adopted = daemon.change(NOW, Change::Adopt(file.clone())).unwrap();
    assert_eq!(adopted.state, Some(State::Adopted));
    let taken_in = daemon.take_in("new/1").file;
    let is_adopted = |file| world.reader().is_adopted(file).unwrap();
    assert!(is_adopted(adopted.file) && !is_adopted(taken_in));
    // The same at another site: one file, two replicas.
    let there = daemon.catalog.site("there").unwrap();
    let mut both = file.clone();
    both.replicas = vec![(there, "/far/1".to_owned())];
    let again = daemon.change(NOW, Change::Adopt(both)).unwrap();
    assert_eq!((again.file, again.repeated), (adopted.file, true));
    let paths: Vec<_> =
        world.reader().replicas(adopted.file).unwrap().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/data/old/1", "/far/1"]);
    let mut other = file.clone();
    other.digest = digest("something else");
    let refused = daemon.change(NOW, Change::Adopt(other));
    assert_eq!(refused, Err(Refused::NameTaken { version: 1 }));
    let mut weak = file;
    weak.digest = Digest::new(DigestKind::Md5, &[0; 16]).unwrap();
    assert!(matches!(daemon.change(NOW, Change::Adopt(weak)), Err(Refused::Malformed(_))));
    // Of other sites' words: what comes next is counted on from there.
    let origin = Some(Origin { version: i64::MAX, taken_in: NOW });
    let last = AdoptedFile { origin, ..daemon.adopted_file("old/2") };
    assert!(matches!(daemon.change(NOW, Change::Adopt(last)), Err(Refused::Malformed(_))));
    let work = || Work::QueuedOf(daemon.rule);
    assert_eq!(daemon.claim(NOW, work(), 10), []);
    // It can be sent like any other.
    let queued = daemon.step(adopted.file, adopted.revision, Next::Queued).unwrap();
    assert_eq!(queued.state, Some(State::Queued));
    assert_eq!(daemon.claim(NOW, work(), 10)[0].file, adopted.file);
}

pub(crate) fn odd_names_come_back_as_they_were(world: &World) {
    let daemon = world.daemon("a");
    let longest = "é".repeat(NAME_BYTES_MAX / 2);
    let names = [
        "a b", "A B", "it's", "\"", "\\", "%_*?[", "naïve", "日本", "x\ny", " x ", "x ", "0x41",
        "", &longest,
    ];
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        let file = daemon.take_in(name);
        assert!(!file.repeated, "{name:?} is no other's name");
        assert_eq!(daemon.file(file.file).name, name);
        let found = world.reader().versions(daemon.site, name).unwrap();
        assert_eq!(found.len(), 1, "{name:?}");
    }
    for name in ["", "a\0b", &format!("{longest}x")] {
        let refused = daemon.change(NOW, Change::TakeIn(daemon.new_file(name)));
        assert!(matches!(refused, Err(Refused::Malformed(_))), "{name:?}: {refused:?}");
    }
}

pub(crate) fn what_cannot_be_called_that_spoils_nothing(world: &World) {
    let daemon = world.daemon("a");
    let longest = "x".repeat(WORD_BYTES_MAX);
    let known = daemon.catalog.site(&longest).unwrap();
    for name in ["", "a\0b", &format!("{longest}x")] {
        assert_eq!(daemon.catalog.site(name), Err(Error::BadWord), "{name:?}");
        assert_eq!(daemon.catalog.rule(name), Err(Error::BadWord), "{name:?}");
    }
    assert_eq!(world.reader().site_called(&longest).unwrap(), Some(known));
    assert_eq!(world.reader().site_called("a\0b").unwrap(), None);
    let sites = [(daemon.site, "here".to_owned()), (known, longest)];
    assert_eq!(world.reader().sites().unwrap(), sites);
}
