//! A catalog followed page by page: the copy says what the catalog says, and a lost page is noticed.

use crate::records::{decided, seen};
use crate::world::{Ends, NOW, World, digest, receipt, waiting};
use downpour_catalog::{
    AdoptedFile, Catalog, CatalogUrl, Change, Delivery, DeliveryState, Digest, DigestKind,
    FOLLOW_MAX, Follower, Format, LogId, Move, Next, NotTaken, Origin, Query, RECEIPT_BYTES_MAX,
    Reader, Receipt, Replica, ReplicaState, Session, SessionId, Sheet, State, Transfer, TransferId,
    Work, backup, export, restore,
};
use downpour_proto::StreamId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SHEETS: [Sheet; 7] = [
    Sheet::Files,
    Sheet::Attempts,
    Sheet::Replicas,
    Sheet::Receipts,
    Sheet::Events,
    Sheet::Links,
    Sheet::Decisions,
];

fn follow_all(source: &mut Reader, follower: &mut Follower, page: usize) {
    for (log, _, _) in source.logs().unwrap() {
        loop {
            let after = follower.last(log).unwrap();
            let text = source.follow(log, after, page).unwrap().to_string();
            let reached = follower.take(&serde_json::from_str(&text).unwrap()).unwrap();
            if reached.last == reached.end {
                break;
            }
        }
    }
}

/// Every sheet, every count, every sum.
fn all(reader: &mut Reader) -> Vec<String> {
    let mut all = Vec::new();
    for sheet in SHEETS {
        let mut out = Vec::new();
        export(reader, sheet, &Query::default(), Format::Ndjson, &mut out).unwrap();
        let mut lines: Vec<_> = std::str::from_utf8(&out).unwrap().lines().collect();
        lines.sort_unstable();
        all.push(lines.join("\n"));
    }
    all.push(format!("{:?}", reader.counts().unwrap()));
    all.push(format!("{:?}", reader.deliveries(SessionId(9)).unwrap()));
    for (holder, _) in reader.sites().unwrap() {
        for (origin, _) in reader.sites().unwrap() {
            all.push(format!("{:?}", reader.set_days(holder, origin).unwrap()));
        }
    }
    all
}

pub(crate) fn a_follower_holds_what_the_catalog_holds(world: &World) {
    let (a, b) = (world.daemon("a"), world.daemon("b"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.db");
    let mut follower = Follower::open(&path, NOW).unwrap();
    let mut source = world.reader();
    for n in 0..300 {
        a.change(NOW, seen(&a, n)).unwrap();
        a.change(NOW, decided(&a, n)).unwrap();
    }
    // One that waits in the queue would be claimed in another's place.
    let states = State::ALL.iter().copied().filter(|state| *state != State::Queued);
    for (n, state) in states.enumerate() {
        let daemon = if n % 2 == 0 { &a } else { &b };
        let (file, ..) = daemon.in_state(&format!("run/é {n}"), state);
        let md5 = Digest::new(DigestKind::Md5, &[n as u8; 16]).unwrap();
        daemon.change(NOW, Change::Digest(file, md5)).unwrap();
        daemon.change(NOW, Change::Receipt(receipt(file))).unwrap();
        if n % 3 == 0 {
            follow_all(&mut source, &mut follower, 7);
        }
    }
    let there = a.catalog.site("there").unwrap();
    let transfer = Transfer { id: TransferId(5), from: a.site, to: there, submitted: NOW };
    let (id, stream, rule) = (SessionId(9), StreamId(7), a.rule);
    let session = Session { id, stream, rule, started: NOW, ended: None };
    let (file, ..) = a.in_state("session/1", State::Queued);
    let (receiver, state) = (vec![1; 32], DeliveryState::Complete);
    let delivery = Delivery { session: id, file, receiver, state, error: None };
    for change in [Change::Transfer(transfer), Change::Session(session), Change::Delivery(delivery)]
    {
        b.change(NOW, change).unwrap();
    }
    follow_all(&mut source, &mut follower, 1000);
    // A page taken again changes nothing.
    let again = source.follow(a.catalog.log(), 0, 5).unwrap();
    follower.take(&again).unwrap();
    follower.settle().unwrap();
    let url = CatalogUrl::Sqlite(path.clone());
    let copied = all(&mut Reader::open(&url).unwrap());
    assert_eq!(copied, all(&mut source));
    // The lost catalog's daemon goes on with the copy: numbers of events have no gap.
    drop(follower);
    let before = downpour_catalog::BeforeMigration::Refuse;
    let catalog = Catalog::open(&url, "a", NOW, &before).unwrap();
    let last = catalog.reader().unwrap().logs().unwrap()[0].2;
    catalog.apply(NOW, &[Change::Adopt(a.adopted_file("after"))]).unwrap()[0].clone().unwrap();
    let next = catalog.reader().unwrap().events(catalog.log(), last, 10).unwrap();
    assert_eq!(next.iter().map(|event| event.number).collect::<Vec<_>>(), [last + 1]);
    let found = catalog.reader().unwrap().versions(a.site, "after").unwrap();
    assert_eq!(found[0].digest, Some(digest("after")));
}

pub(crate) fn other_content_has_its_own_digests_alone(world: &World) {
    let daemon = world.daemon("a");
    let site = daemon.catalog.site("there").unwrap();
    let origin = Some(Origin { version: 1, taken_in: NOW });
    let adopted =
        |name: &str| Change::Adopt(AdoptedFile { site, origin, ..daemon.adopted_file(name) });
    let other = |name: &str| {
        let digest = digest("other");
        Change::Adopt(AdoptedFile { site, origin, digest, ..daemon.adopted_file(name) })
    };
    let md5 = |of: u8| Digest::new(DigestKind::Md5, &[of; 16]).unwrap();
    let [x, y] = ["x", "y"].map(|name| daemon.change(NOW, adopted(name)).unwrap().file);
    for file in [x, y] {
        daemon.change(NOW, Change::Digest(file, md5(1))).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.db");
    let (mut source, mut follower) = (world.reader(), Follower::open(&path, NOW).unwrap());
    follow_all(&mut source, &mut follower, FOLLOW_MAX);
    let lost = |file| {
        let (site, state) = (daemon.site, ReplicaState::Lost);
        Change::Replica(Replica { file, site, path: String::new(), state })
    };
    // One is recorded in the commit in which it is no longer true.
    let adler = Digest::new(DigestKind::Adler32, &[3; 4]).unwrap();
    let changes = [
        lost(x),
        lost(y),
        Change::Digest(y, adler),
        other("x"),
        Change::Digest(x, md5(2)),
        other("y"),
    ];
    let answers = daemon.catalog.apply(NOW, &changes).unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    follow_all(&mut source, &mut follower, FOLLOW_MAX);
    for mut reader in [source, Reader::open(&CatalogUrl::Sqlite(path)).unwrap()] {
        assert_eq!(reader.digests(x).unwrap(), [digest("other"), md5(2)]);
        assert_eq!(reader.digests(y).unwrap(), [digest("other")]);
    }
}

pub(crate) fn a_copy_that_is_restored_has_its_sums(world: &World) {
    let daemon = world.daemon("a");
    for n in 0..20 {
        daemon.change(NOW, Change::Adopt(daemon.adopted_file(&format!("run/{n}")))).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let [copy, kept, made] =
        ["mirror.db", "backup.db", "made.db"].map(|name| folder.path().join(name));
    let mut source = world.reader();
    follow_all(&mut source, &mut Follower::open(&copy, NOW).unwrap(), FOLLOW_MAX);
    backup(&CatalogUrl::Sqlite(copy), &kept).unwrap();
    let url = CatalogUrl::Sqlite(made);
    restore(&kept, &url).unwrap();
    let restored = World::at(url);
    let days = |reader: &mut Reader| reader.set_days(daemon.site, daemon.site).unwrap();
    // Once: not again at the second start, with sums of its own beside them.
    for name in ["first", "second"] {
        let again = restored.daemon("a");
        assert_eq!(days(&mut restored.reader()), days(&mut source));
        for of in [&daemon, &again] {
            of.change(NOW, Change::Adopt(of.adopted_file(name))).unwrap();
        }
    }
    let sums = days(&mut source);
    assert!(days(&mut restored.reader()) == sums && sums[0].1.files == 22, "{sums:?}");
    // Nor are those counted twice that it has, however it is made.
    let CatalogUrl::Sqlite(file) = &restored.url else { unreachable!("it is SQLite's") };
    Follower::open(file, NOW).unwrap().settle().unwrap();
    assert_eq!(days(&mut restored.reader()), sums);
}

pub(crate) fn a_copy_drops_what_a_wrong_clock_wrote_of_links(world: &World) {
    let daemon = world.daemon("a");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.db");
    let (mut source, mut follower) = (world.reader(), Follower::open(&path, NOW).unwrap());
    let mut copy = Reader::open(&CatalogUrl::Sqlite(path)).unwrap();
    let year = 365 * 86_400;
    for n in 0..256 {
        daemon.change(NOW.plus_s(year), seen(&daemon, year + n)).unwrap();
    }
    daemon.change(NOW.plus_s(year), decided(&daemon, year)).unwrap();
    follow_all(&mut source, &mut follower, FOLLOW_MAX);
    assert_eq!(all(&mut copy), all(&mut source), "who follows cannot know better");
    // The clock is right again.
    for change in [seen(&daemon, 1), decided(&daemon, 1)] {
        daemon.change(NOW, change).unwrap();
    }
    follow_all(&mut source, &mut follower, FOLLOW_MAX);
    let there = daemon.catalog.site("there").unwrap();
    assert_eq!(copy.link_seen(there, daemon.site, 1000).unwrap().len(), 1);
    assert_eq!(copy.decisions(None, 1000).unwrap().len(), 1);
    // It is years behind when a file comes.
    daemon.change(NOW, seen(&daemon, 2)).unwrap();
    daemon.change(NOW.plus_s(-year), Change::Adopt(daemon.adopted_file("after"))).unwrap();
    follow_all(&mut source, &mut follower, FOLLOW_MAX);
    follower.settle().unwrap();
    assert_eq!(copy.link_seen(there, daemon.site, 1000).unwrap().len(), 2);
    assert_eq!(all(&mut copy), all(&mut source));
}

pub(crate) fn a_lost_page_is_noticed(world: &World) {
    let daemon = world.daemon("a");
    daemon.queue_many(10);
    let folder = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(&folder.path().join("mirror.db"), NOW).unwrap();
    let mut source = world.reader();
    let log = daemon.catalog.log();
    follower.take(&source.follow(log, 0, 5).unwrap()).unwrap();
    let gap = NotTaken::Gap { log: log.0, expected: 6, found: 8 };
    assert_eq!(follower.take(&source.follow(log, 7, 5).unwrap()), Err(gap));
    assert_eq!(follower.last(log), Ok(5));
    // What is known does not follow, however often it comes.
    let known = follower.take(&source.follow(log, 0, 5).unwrap());
    assert!(matches!(known, Err(NotTaken::Gap { expected: 6, .. })));
    // A log that ends beyond what it holds has lost its middle.
    let mut empty = source.follow(log, 5, 5).unwrap();
    empty["tables"]["event"] = serde_json::json!([]);
    assert!(matches!(follower.take(&empty), Err(NotTaken::Gap { expected: 6, .. })));
    // One that was made anew: its log is shorter than the copy's, or its numbers stand for other names.
    let mut shorter = source.follow(log, 5, 5).unwrap();
    shorter["end"] = serde_json::json!(4);
    shorter["tables"]["event"] = serde_json::json!([]);
    assert!(matches!(follower.take(&shorter), Err(NotTaken::Another(_))));
    let mut renamed = source.follow(log, 5, 5).unwrap();
    renamed["tables"]["word"][0][2] = serde_json::json!("another");
    assert!(matches!(follower.take(&renamed), Err(NotTaken::Another(_))));
    for nonsense in ["{}", "[]", r#"{"log":1,"end":3,"files":[],"tables":{"event":[[1]]}}"#] {
        let nonsense = serde_json::from_str(nonsense).unwrap();
        assert!(matches!(follower.take(&nonsense), Err(NotTaken::Nonsense(_))));
    }
    let mut damaged = source.follow(log, 5, 5).unwrap();
    damaged["tables"]["file"][0][2] = serde_json::json!(7);
    assert!(matches!(follower.take(&damaged), Err(NotTaken::Nonsense(_))));
    assert_eq!(follower.last(LogId(log.0)), Ok(5));
}

pub(crate) fn a_page_holds_what_its_events_tell(world: &World) {
    let daemon = world.daemon("a");
    let (mut source, log) = (world.reader(), daemon.catalog.log());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.db");
    let mut follower = Follower::open(&path, NOW).unwrap();
    let (id, stream, rule) = (SessionId(9), StreamId(7), daemon.rule);
    let mut session = Session { id, stream, rule, started: NOW, ended: None };
    daemon.change(NOW, Change::Session(session.clone())).unwrap();
    let file = daemon.queued("x").file;
    let told = |receiver: u8, state, s| {
        let receiver = vec![receiver; 32];
        let delivery = Delivery { session: id, file, receiver, state, error: None };
        daemon.change(NOW.plus_s(s), Change::Delivery(delivery)).unwrap();
    };
    for receiver in 0..9 {
        told(receiver, DeliveryState::Expected, 1);
    }
    told(3, DeliveryState::Complete, 2);
    session.ended = Some(NOW.plus_s(3));
    daemon.change(NOW.plus_s(3), Change::Session(session)).unwrap();
    let end = source.logs().unwrap()[0].2;
    let deliveries =
        |page: &serde_json::Value| page["tables"]["delivery"].as_array().unwrap().len();
    let [of_end, of_last] = [end - 1, end - 2].map(|after| source.follow(log, after, 1).unwrap());
    assert_eq!([&of_end, &of_last].map(deliveries), [0, 1]);
    follow_all(&mut source, &mut follower, 4);
    let mut copy = Reader::open(&CatalogUrl::Sqlite(path)).unwrap();
    assert_eq!(copy.deliveries(id).unwrap(), source.deliveries(id).unwrap());

    // What is too long for a page comes with several.
    let files: Vec<_> = (0..30).map(|n| daemon.queued(&format!("long/{n}")).file).collect();
    let end = source.logs().unwrap()[0].2;
    for (file, n) in files.into_iter().flat_map(|file| (0..12).map(move |n| (file, n))) {
        let (receiver, signed) = (vec![n; 32], vec![7; RECEIPT_BYTES_MAX]);
        let receipt = Receipt { receiver, signed, ..receipt(file) };
        daemon.change(NOW, Change::Receipt(receipt)).unwrap();
    }
    let page = source.follow(log, end, FOLLOW_MAX).unwrap();
    let events = page["tables"]["event"].as_array().unwrap().len();
    assert!(page.to_string().len() <= 8 << 20 && (100..360).contains(&events));
    follow_all(&mut source, &mut follower, FOLLOW_MAX);
    assert_eq!(follower.last(log).unwrap(), source.logs().unwrap()[0].2);
}

pub(crate) fn a_page_does_not_grow_with_what_was_before(world: &World) {
    let daemon = world.daemon("a");
    let (mut source, log) = (world.reader(), daemon.catalog.log());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.db");
    let mut follower = Follower::open(&path, NOW).unwrap();
    // Rules, counters and attempts in the page of the last event, or of none.
    let in_page = |source: &mut Reader, events: i64| {
        let after = source.logs().unwrap()[0].2 - events;
        let page = source.follow(log, after, FOLLOW_MAX).unwrap();
        let rows = |table: &str| page["tables"][table].as_array().unwrap().clone();
        let words = rows("word").into_iter().filter(|word| word[0] == 2);
        let rules: serde_json::Value = words.map(|word| word[2].clone()).collect();
        (rules, rows("counter").len(), rows("attempt").len())
    };
    for n in 0..9 {
        let name = format!("into/{n}");
        let rule = daemon.catalog.rule(&name).unwrap();
        let file = AdoptedFile { rule, ..daemon.adopted_file(&name) };
        daemon.change(NOW, Change::Adopt(file)).unwrap();
        assert_eq!(in_page(&mut source, 1), (serde_json::json!([name]), 1, 0));
        assert_eq!(in_page(&mut source, 0), (serde_json::json!([]), 0, 0));
    }
    let file = daemon.queued("again").file;
    for n in 1..=9 {
        let now = NOW.plus_s(n);
        let held = daemon.claim(now, Work::QueuedOf(daemon.rule), 1)[0];
        let step = |at, fence, next| Change::Move(Move { file, at, fence, next });
        let waits = step(held.revision, Some(held.fence), waiting(now));
        let at = daemon.change(now, waits).unwrap().revision;
        assert_eq!(in_page(&mut source, 1).2, 1);
        daemon.change(now, step(at, None, Next::Resumed)).unwrap();
    }
    follow_all(&mut source, &mut follower, 3);
    follower.settle().unwrap();
    let mut copy = Reader::open(&CatalogUrl::Sqlite(path)).unwrap();
    assert_eq!(copy.attempts(file).unwrap().len(), 9);
    assert_eq!(copy.rules().unwrap(), source.rules().unwrap());
    assert_eq!(all(&mut copy), all(&mut source));
}

pub(crate) fn each_page_is_of_one_moment(world: &World) {
    let daemon = world.daemon("a");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.db");
    let mut follower = Follower::open(&path, NOW).unwrap();
    let (mut source, log) = (world.reader(), daemon.catalog.log());
    let copy = rusqlite::Connection::open(&path).unwrap();
    // In no state; with an attempt that is open and ended.
    let torn = "SELECT (SELECT COUNT(*) FROM file WHERE state = 0 AND id NOT IN (SELECT file FROM live)) \
         + (SELECT COUNT(*) FROM live l JOIN attempt a ON a.file = l.file AND a.number >= l.tries \
         WHERE l.started <> 0)";
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&is_done);
            for n in 0..60 {
                daemon.in_state(&n.to_string(), State::Receipted);
                let (_, at, held) = daemon.in_state(&format!("again {n}"), State::Sending);
                daemon.step_held(held.unwrap(), at, waiting(NOW)).unwrap();
            }
        });
        while !is_done.load(Ordering::Relaxed) {
            let after = follower.last(log).unwrap();
            let page = source.follow(log, after, FOLLOW_MAX).unwrap();
            follower.take(&page).expect("no event is missing");
            let torn: i64 = copy.query_row(torn, [], |row| row.get(0)).unwrap();
            assert_eq!(torn, 0, "after event {after}");
        }
    });
}

pub(crate) fn a_catalog_that_was_set_back_and_went_on_is_noticed(world: &World) {
    let daemon = world.daemon("a");
    daemon.queue_many(10);
    let folder = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(&folder.path().join("mirror.db"), NOW).unwrap();
    let (mut source, log) = (world.reader(), daemon.catalog.log());
    follower.take(&source.follow(log, 0, 5).unwrap()).unwrap();
    world.run_sql("UPDATE event SET at = at + 1 WHERE number = 5");
    let other = follower.take(&source.follow(log, 5, 5).unwrap());
    assert!(
        matches!(&other, Err(NotTaken::Another(what)) if what.contains("event 5")),
        "{other:?}"
    );
    assert_eq!(follower.last(log), Ok(5));
}
