//! Set digests: what they say is what the replicas say, whoever wrote it and however it came about.

use crate::world::{Daemon, NOW, World, digest, waiting};
use downpour_catalog::{
    AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, FileId, FileKey, Next, OpenError,
    Origin, OtherContent, Reader, Replica, ReplicaState, SCHEMA_VERSION, SetDay, SetDigest,
    SetNode, SiteId, Work, entry_hash,
};
use std::collections::BTreeMap;

const DAY_S: i64 = 86_400;

/// What the rows of files, replicas and digests add up to, counted one by one.
fn counted(reader: &mut Reader, holder: SiteId, origin: SiteId) -> Vec<(SetDay, SetDigest)> {
    let site = reader.sites().unwrap().into_iter().find(|(id, _)| *id == origin).unwrap().1;
    let mut days: BTreeMap<SetDay, SetDigest> = BTreeMap::new();
    let replicas = reader.replicas_at(holder, FileId(0), 10_000).unwrap();
    for replica in replicas.iter().filter(|replica| replica.state == ReplicaState::Present) {
        let file = reader.file(replica.file).unwrap().unwrap();
        let (Some(digest), true) = (&file.digest, file.site == origin) else { continue };
        let day = SetDay::day_of(file.taken_in);
        let day = SetDay { holder, origin, rule: file.rule, day };
        let key = FileKey::of(&site, &file.name, file.version);
        let one = SetDigest { files: 1, sum: entry_hash(&key, digest.value()) };
        days.entry(day).or_default().add(&one);
    }
    days.into_iter().collect()
}

/// Days are what is counted, and each node is the sum of its children down to the files.
fn assert_right(reader: &mut Reader, holder: SiteId, origin: SiteId) -> Vec<(SetDay, SetDigest)> {
    let days = reader.set_days(holder, origin).unwrap();
    assert_eq!(days, counted(reader, holder, origin));
    for (day, digest) in &days {
        assert_node(reader, SetNode { day: *day, depth: 0, prefix: 0 }, digest);
    }
    days
}

fn assert_node(reader: &mut Reader, node: SetNode, expected: &SetDigest) {
    if node.depth == downpour_catalog::DEPTH_MAX {
        let mut sum = SetDigest::default();
        for entry in reader.set_entries(&node).unwrap() {
            sum.add(&SetDigest { files: 1, sum: entry.hash });
        }
        assert_eq!(sum, *expected, "{node:?}");
        return;
    }
    let children = reader.set_children(&node).unwrap();
    let mut sum = SetDigest::default();
    children.iter().for_each(|child| sum.add(child));
    assert_eq!(sum, *expected, "{node:?}");
    for (nibble, child) in (0..).zip(children).filter(|(_, child)| child.files != 0) {
        let (depth, prefix) = (node.depth + 1, node.prefix << 4 | nibble);
        assert_node(reader, SetNode { day: node.day, depth, prefix }, &child);
    }
}

pub(crate) fn set_digests_follow_what_is_held(world: &World) {
    let (a, b) = (world.daemon("a"), world.daemon("b"));
    let mut reader = world.reader();
    let (here, there) = (a.site, a.catalog.site("there").unwrap());
    // Whoever writes it, on whichever day; some files have no digest yet.
    for n in 0..40 {
        let daemon = if n % 2 == 0 { &a } else { &b };
        let now = NOW.plus_s(n % 3 * DAY_S);
        let name = format!("run/{n}");
        let file = if n % 5 == 0 {
            daemon.change(now, Change::TakeIn(daemon.new_file(&name))).unwrap().file
        } else {
            daemon.change(now, Change::Adopt(daemon.adopted_file(&name))).unwrap().file
        };
        let path = format!("/far/{n}");
        let state = ReplicaState::Present;
        for _ in 0..2 {
            let replica = Replica { file, site: there, path: path.clone(), state };
            daemon.change(now, Change::Replica(replica)).unwrap();
        }
        if n % 4 == 0 {
            // The other daemon takes out what this one put in.
            let other = if n % 2 == 0 { &b } else { &a };
            let lost = Replica { file, site: there, path, state: ReplicaState::Lost };
            other.change(now, Change::Replica(lost)).unwrap();
        }
    }
    let held = assert_right(&mut reader, there, here);
    assert_eq!(held.iter().map(|(_, digest)| digest.files).sum::<i64>(), 24);
    assert!(held.len() > 1, "{held:?}");
    assert_right(&mut reader, here, here);
    // A digest that comes later: what is present is held from then on.
    let late = a.catalog.reader().unwrap().versions(here, "run/5").unwrap().remove(0);
    a.change(NOW, Change::Digest(late.id, digest("run/5"))).unwrap();
    let held = assert_right(&mut reader, there, here);
    assert_eq!(held.iter().map(|(_, digest)| digest.files).sum::<i64>(), 25);
    // A file that is sent, all of its life, also after its daemon began anew.
    drop(a);
    let a = world.daemon("a");
    a.in_state("sent/1", downpour_catalog::State::Receipted);
    assert_right(&mut reader, here, here);
}

pub(crate) fn both_ends_sort_a_file_alike(world: &World) {
    let source = world.daemon("a");
    let folder = tempfile::tempdir().unwrap();
    let url = CatalogUrl::Sqlite(folder.path().join("far.db"));
    let far = Catalog::open(&url, "far", NOW, &BeforeMigration::Refuse).unwrap();
    // Numbers of sites and rules are others there.
    let [_, there, here] = ["elsewhere", "there", "here"].map(|name| far.site(name).unwrap());
    let [_, rule] = ["none", "all"].map(|name| far.rule(name).unwrap());
    let source_there = source.catalog.site("there").unwrap();
    for n in 0..20 {
        let (name, taken) = (format!("run/{}", n / 2), NOW.plus_s(n * DAY_S / 7));
        let content = digest(&format!("content {n}"));
        let mut new = source.adopted_file(&name);
        (new.digest, new.other_content) = (content.clone(), OtherContent::NewVersion);
        new.replicas = vec![(source_there, name.clone())];
        let id = source.change(taken, Change::Adopt(new)).unwrap().file;
        let file = source.file(id);
        assert_eq!((file.taken_in, file.version), (id.time(), n % 2 + 1));
        let copy = AdoptedFile {
            site: here,
            name: name.clone(),
            size: file.size,
            rule,
            digest: content,
            others: Vec::new(),
            replicas: vec![(there, name)],
            other_content: OtherContent::Refuse,
            origin: Some(Origin { version: file.version, taken_in: file.taken_in }),
            receipt: None,
        };
        // Days later, and twice.
        for repeated in [false, true] {
            let now = taken.plus_s(9 * DAY_S);
            let answer = far.apply(now, &[Change::Adopt(copy.clone())]).unwrap().remove(0);
            assert_eq!(answer.unwrap().repeated, repeated);
        }
        let mut other = copy.clone();
        other.digest = digest("something else");
        let refused = far.apply(NOW, &[Change::Adopt(other.clone())]).unwrap().remove(0);
        let version = file.version;
        assert_eq!(refused, Err(downpour_catalog::Refused::NameTaken { version }));
        if n > 2 {
            continue;
        }
        // What nobody has any more gives way to other content; and back.
        for content in [AdoptedFile { size: file.size + 1, ..other }, copy] {
            let id = far.reader().unwrap().versions(here, &file.name).unwrap()[n as usize % 2].id;
            let (site, path) = (there, file.name.clone());
            let lost = Replica { file: id, site, path, state: ReplicaState::Corrupt };
            far.apply(NOW, &[Change::Replica(lost)]).unwrap().remove(0).unwrap();
            let now = far.apply(NOW, &[Change::Adopt(content.clone())]).unwrap().remove(0).unwrap();
            assert_eq!((now.file, now.repeated), (id, false));
            let known = far.reader().unwrap().file(id).unwrap().unwrap();
            assert_eq!((known.digest, known.size), (Some(content.digest), content.size));
            assert_eq!(known.revision, now.revision);
            assert_right(&mut far.reader().unwrap(), there, here);
        }
    }
    let (mut near, mut far) = (world.reader(), far.reader().unwrap());
    let without_ids = |days: Vec<(SetDay, SetDigest)>| -> Vec<(i64, SetDigest)> {
        days.into_iter().map(|(day, digest)| (day.day, digest)).collect()
    };
    let sent = without_ids(assert_right(&mut near, source_there, source.site));
    assert_eq!(sent, without_ids(assert_right(&mut far, there, here)));
    assert!(sent.len() > 2, "{sent:?}");
}

pub(crate) fn files_are_looked_up_in_batches(world: &World) {
    let daemon = world.daemon("a");
    for n in 0..50 {
        match n % 3 {
            0 => drop(daemon.queued(&format!("run/{n}"))),
            1 => drop(daemon.change(NOW, Change::Adopt(daemon.adopted_file(&format!("run/{n}"))))),
            _ => {}
        }
    }
    let names: Vec<String> = (0..50).map(|n| format!("run/{n}")).collect();
    let mut reader = world.reader();
    let called: Vec<_> = names.iter().map(|name| (daemon.site, name.as_str(), 1)).collect();
    let found = reader.files_called(&called).unwrap();
    for (name, found) in names.iter().zip(&found) {
        let one = reader.versions(daemon.site, name).unwrap();
        assert_eq!(found.as_ref(), one.first(), "{name}");
        assert_eq!(reader.file_called((daemon.site, name, 1)).unwrap(), *found, "{name}");
    }
    assert_eq!(found.iter().flatten().count(), 34);
    let ids: Vec<_> = found.iter().flatten().map(|file| file.id).collect();
    assert_eq!(reader.replicas_of(&ids).unwrap().len(), 17);
    assert_eq!(reader.files_called(&[]).unwrap(), []);
    let other = [(daemon.site, "run/0", 2), (SiteId(99), "run/0", 1), (daemon.site, "run/0", 1)];
    let found = reader.files_called(&other).unwrap();
    assert_eq!(other.map(|called| reader.file_called(called).unwrap()), *found);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true]);
}

pub(crate) fn what_does_not_move_is_found(world: &World) {
    let daemon = world.daemon("a");
    let (old, moved) = (daemon.queued("old"), daemon.queued("moved"));
    daemon.in_state("ended", downpour_catalog::State::Adopted);
    let later = NOW.plus_s(DAY_S);
    daemon.change(later, Change::TakeIn(daemon.new_file("new"))).unwrap();
    let step = downpour_catalog::Move {
        file: moved.file,
        at: moved.revision,
        fence: None,
        next: Next::Quarantined(downpour_catalog::ErrorClass::FileChanged),
    };
    daemon.change(later, Change::Move(step)).unwrap();
    let mut reader = world.reader();
    let stuck = |reader: &mut Reader, stuck_s| -> Vec<String> {
        let files = reader.stuck(later, stuck_s, FileId(0), 10).unwrap();
        files.into_iter().map(|file| file.name).collect()
    };
    assert_eq!(stuck(&mut reader, DAY_S), Vec::<String>::new());
    assert_eq!(stuck(&mut reader, 0), ["old"]);
    assert_eq!(stuck(&mut reader, -1), ["old", "moved", "new"]);
    let after = reader.stuck(later, -1, old.file, 1).unwrap();
    assert_eq!(after[0].name, "moved");
}

pub(crate) fn a_clock_that_was_ahead_dates_no_later_file(world: &World) {
    let ahead = NOW.plus_s(4 * 365 * DAY_S);
    let take_in = |daemon: &Daemon, now, name: &str| {
        let file = daemon.change(now, Change::TakeIn(daemon.new_file(name))).unwrap().file;
        daemon.file(file)
    };
    let first = {
        let daemon = world.daemon("a");
        let first = take_in(&daemon, ahead, "ahead");
        let adopted = daemon.change(NOW, Change::Adopt(daemon.adopted_file("adopted"))).unwrap();
        assert_eq!(daemon.file(adopted.file).taken_in, NOW);
        let next = take_in(&daemon, NOW, "next");
        assert!((first.taken_in, next.taken_in) == (ahead, NOW) && next.id > first.id);
        next
    };
    // Nor after a start, or by another daemon.
    for (name, writer) in [("again", "a"), ("other", "b")] {
        let next = take_in(&world.daemon(writer), NOW, name);
        assert!(next.taken_in == NOW && next.id > first.id, "{name}");
    }
    let stuck = |stuck_s| -> Vec<String> {
        let stuck = world.reader().stuck(NOW.plus_s(2 * DAY_S), stuck_s, FileId(0), 10).unwrap();
        stuck.into_iter().map(|file| file.name).collect()
    };
    assert_eq!(stuck(DAY_S), ["ahead", "next", "again", "other"]);
    assert_eq!(stuck(3 * DAY_S), ["ahead"], "since when is not known");
}

pub(crate) fn an_older_catalog_gets_its_set_digests(world: &World) {
    let daemon = world.daemon("a");
    let there = daemon.catalog.site("there").unwrap();
    for n in 0..30 {
        fill_one(&daemon, there, n);
    }
    let mut reader = world.reader();
    let before = [there, daemon.site].map(|at| assert_right(&mut reader, at, daemon.site));
    let site = daemon.site;
    drop((daemon, reader));
    // As version 1 was.
    let index = match &world.url {
        CatalogUrl::Mysql(_) => "DROP INDEX replica_set ON replica",
        _ => "DROP INDEX replica_set",
    };
    world.run_sql(index);
    for column in ["origin", "rule", "day", "file_key"] {
        world.run_sql(&format!("ALTER TABLE replica DROP COLUMN {column}"));
    }
    for text in [
        "ALTER TABLE file DROP COLUMN origin",
        "DROP TABLE set_day",
        "DROP TABLE set_leaf",
        "ALTER TABLE live DROP COLUMN session",
        "ALTER TABLE attempt DROP COLUMN session",
        "DELETE FROM schema_version WHERE version >= 2",
    ] {
        world.run_sql(text);
    }
    drop(Catalog::open(&world.url, "a", NOW, &BeforeMigration::DumpExists).unwrap());
    let mut reader = world.reader();
    assert_eq!([there, site].map(|at| assert_right(&mut reader, at, site)), before);
    // And go on from there.
    let daemon = world.daemon("a");
    fill_one(&daemon, there, 30);
    let files = reader.versions(site, "run/0").unwrap();
    let path = "/far/0".to_owned();
    let lost = Replica { file: files[0].id, site: there, path, state: ReplicaState::Lost };
    daemon.change(NOW, Change::Replica(lost)).unwrap();
    assert_right(&mut reader, there, site);
}

pub(crate) fn an_older_catalog_takes_in_sessions(world: &World) {
    let daemon = world.daemon("a");
    let file = daemon.queued("x").file;
    let held = daemon.claim(NOW, Work::QueuedOf(daemon.rule), 1)[0];
    let other = daemon.queued("y").file;
    drop(daemon);
    // As version 2 was, with a file under way.
    for text in [
        "ALTER TABLE live DROP COLUMN session",
        "ALTER TABLE attempt DROP COLUMN session",
        "DELETE FROM schema_version WHERE version >= 3",
    ] {
        world.run_sql(text);
    }
    let refused = Catalog::open(&world.url, "a", NOW, &BeforeMigration::Refuse).err();
    assert_eq!(refused, Some(OpenError::Older { found: 2, known: SCHEMA_VERSION }));
    drop(Catalog::open(&world.url, "a", NOW, &BeforeMigration::DumpExists).unwrap());
    let daemon = world.daemon("a");
    let taken = daemon.claim(NOW, Work::Lapsed, 1)[0];
    assert!(taken.file == file && taken.fence > held.fence);
    let session = "one".to_owned();
    daemon.change(NOW, Change::InSession { file, fence: taken.fence, session }).unwrap();
    daemon.step_held(taken, taken.revision, waiting(NOW)).unwrap();
    let named = world.reader().attempts(file).unwrap().into_iter().map(|attempt| attempt.session);
    assert_eq!(named.collect::<Vec<_>>(), [None, Some("one".to_owned())]);
    assert_eq!(daemon.claim(NOW, Work::QueuedOf(daemon.rule), 1)[0].file, other);
}

fn fill_one(daemon: &Daemon, there: SiteId, n: i64) {
    let name = format!("run/{n}");
    let now = NOW.plus_s(n * DAY_S / 4);
    let file = daemon.change(now, Change::Adopt(daemon.adopted_file(&name))).unwrap().file;
    let state = if n % 7 == 3 { ReplicaState::Corrupt } else { ReplicaState::Present };
    let replica = Replica { file, site: there, path: format!("/far/{n}"), state };
    daemon.change(now, Change::Replica(replica)).unwrap();
}
