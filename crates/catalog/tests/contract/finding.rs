//! Search, export, backup and restore, and catalogs of other versions.

use crate::records::{decided, plant_records};
use crate::world::{Daemon, NOW, World, digest};
use downpour_catalog::{
    BeforeMigration, Catalog, CatalogUrl, Change, CopyError, Cursor, Digest, DigestKind,
    ErrorClass, FileId, Format, NewFile, Next, OpenError, Page, Query, Reader, SCHEMA_VERSION,
    Sheet, State, backup, export, restore,
};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Everything that a query finds, by pages of `limit`.
fn all(reader: &mut Reader, query: &Query, limit: usize) -> Vec<FileId> {
    let mut found = Vec::new();
    let all = reader.search_all(query, limit, |_, files| {
        found.extend(files.iter().map(|file| file.id));
        Ok(true)
    });
    all.map(|()| found).unwrap()
}

fn fill(daemon: &Daemon) -> Vec<FileId> {
    let there = daemon.catalog.site("there").unwrap();
    let mut files = Vec::new();
    for n in 0..60_i64 {
        let site = if n % 3 == 0 { there } else { daemon.site };
        let name = format!("run/{}/{n:02}.root", n % 2);
        let new = NewFile { site, ..daemon.new_file(&name) };
        // A second apart.
        let taken = daemon.change(NOW.plus_s(n), Change::TakeIn(new)).unwrap();
        files.push(taken.file);
        match n % 5 {
            0 => daemon.step(taken.file, taken.revision, Next::Cancelled).unwrap(),
            1 => {
                let class = ErrorClass::FileChanged;
                daemon.step(taken.file, taken.revision, Next::Quarantined(class)).unwrap()
            }
            _ => taken,
        };
    }
    files
}

pub(crate) fn each_condition_finds_what_it_says(world: &World) {
    let daemon = world.daemon("a");
    let files = fill(&daemon);
    let there = daemon.catalog.site("there").unwrap();
    let md5 = Digest::new(DigestKind::Md5, &[5; 16]).unwrap();
    daemon.change(NOW, Change::Digest(files[8], md5.clone())).unwrap();
    let mut reader = world.reader();
    let none = Query::default;
    type Holds = fn(i64) -> bool;
    let cases: [(Query, Holds); 15] = [
        (none(), |_| true),
        (Query { prefix: Some("run/1/".to_owned()), ..none() }, |n| n % 2 == 1),
        (Query { prefix: Some("run/\0".to_owned()), ..none() }, |_| false),
        (Query { glob: Some("\0*".parse().unwrap()), ..none() }, |_| false),
        (Query { glob: Some("run/?/*3.root".parse().unwrap()), ..none() }, |n| n % 10 == 3),
        (Query { glob: Some("*2*".parse().unwrap()), ..none() }, |n| n / 10 == 2 || n % 10 == 2),
        (Query { state: Some(State::Found), ..none() }, |n| n % 5 > 1),
        (Query { state: Some(State::Cancelled), ..none() }, |n| n % 5 == 0),
        (Query { state: Some(State::Receipted), ..none() }, |_| false),
        (Query { site: Some(there), ..none() }, |n| n % 3 == 0),
        (Query { error: Some(ErrorClass::FileChanged), ..none() }, |n| n % 5 == 1),
        (Query { error: Some(ErrorClass::TimedOut), ..none() }, |_| false),
        (Query { digest: Some(md5.clone()), ..none() }, |n| n == 8),
        (Query { since: Some(NOW.plus_s(10)), until: Some(NOW.plus_s(20)), ..none() }, |n| {
            (10..20).contains(&n)
        }),
        (
            Query {
                prefix: Some("run/0".to_owned()),
                state: Some(State::Cancelled),
                site: Some(there),
                since: Some(NOW.plus_s(1)),
                ..none()
            },
            |n| n > 0 && n % 30 == 0,
        ),
    ];
    for (query, holds) in cases {
        let expected: BTreeSet<_> =
            (0..).zip(&files).filter(|(n, _)| holds(*n)).map(|(_, file)| *file).collect();
        for limit in [1, 7, 1000] {
            let found = all(&mut reader, &query, limit);
            assert_eq!(found.len(), expected.len(), "{query:?} by {limit}");
            assert_eq!(
                found.into_iter().collect::<BTreeSet<_>>(),
                expected,
                "{query:?} by {limit}"
            );
        }
    }
}

pub(crate) fn what_few_are_is_found_behind_many(world: &World) {
    let daemon = world.daemon("a");
    // More than one page looks at.
    let new = |n| Change::TakeIn(daemon.new_file(&format!("many/{n}")));
    daemon.catalog.submit(NOW, (0..5_500).map(new).collect()).wait().unwrap();
    let apart = ["x/1", "x/2", "y"].map(|name| daemon.in_state(name, State::Quarantined).0);
    let page = |state, prefix: Option<&str>, from: Option<&Cursor>, limit| {
        let query =
            Query { state: Some(state), prefix: prefix.map(str::to_owned), ..Query::default() };
        let page = world.reader().search(&query, from, limit).unwrap();
        (page.files.iter().map(|file| file.id).collect::<Vec<_>>(), page.next)
    };
    assert_eq!(page(State::Quarantined, None, None, 10), (apart.to_vec(), None));
    assert_eq!(page(State::Quarantined, Some("x/"), None, 10), (apart[..2].to_vec(), None));
    let (first, next) = page(State::Quarantined, None, None, 2);
    assert_eq!(first, apart[..2]);
    assert_eq!(page(State::Quarantined, None, next.as_ref(), 2), (vec![apart[2]], None));
    assert_eq!(page(State::Waiting, None, None, 10), (Vec::new(), None));
    assert_eq!(page(State::Found, None, None, 10).0.len(), 10);
}

pub(crate) fn pages_are_stable_while_files_are_added(world: &World) {
    let daemon = world.daemon("a");
    let before: BTreeSet<_> = fill(&daemon).into_iter().collect();
    for query in [Query::default(), Query { prefix: Some("run/".to_owned()), ..Query::default() }] {
        let (mut found, mut cursor) = (Vec::new(), None::<Cursor>);
        for round in 0.. {
            // A cursor survives being written down.
            let from = cursor.map(|cursor| cursor.to_string().parse().unwrap());
            let page = world.reader().search(&query, from.as_ref(), 10).unwrap();
            found.extend(page.files.iter().map(|file| file.id));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
            // Before and after where the search stands.
            for place in ["run/0/0", "run/1/99"] {
                daemon.take_in(&format!("{place}-{}-{round}", query.prefix.is_some()));
            }
        }
        let end = Cursor::Id(FileId(i64::MAX));
        let beyond = world.reader().search(&Query::default(), Some(&end), 10).unwrap();
        assert_eq!(beyond, Page { files: Vec::new(), next: None });
        let unique: BTreeSet<_> = found.iter().copied().collect();
        assert_eq!(unique.len(), found.len(), "none twice");
        assert!(unique.is_superset(&before), "none lost");
    }
}

pub(crate) fn exports_hold_every_row(world: &World) {
    let daemon = world.daemon("a");
    let odd = daemon.take_in("a \"b\", c\nd").file;
    daemon.in_state("done", State::Receipted);
    // More rows than one block of an export.
    daemon.queue_many(1200);
    let decisions: Vec<_> = (0..1200).map(|n| decided(&daemon, n)).collect();
    assert!(daemon.catalog.apply(NOW.plus_s(1200), &decisions).unwrap().iter().all(Result::is_ok));
    plant_records(&daemon, odd);
    let write = |sheet, query: &Query, format| {
        let mut out = Vec::new();
        let rows = export(&mut world.reader(), sheet, query, format, &mut out).unwrap();
        (rows, String::from_utf8(out).unwrap())
    };
    let (rows, text) = write(Sheet::Files, &Query::default(), Format::Ndjson);
    assert_eq!((rows, text.lines().count()), (1202, 1202));
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["id"], odd.0);
    assert_eq!(first["name"], "a \"b\", c\nd");
    assert_eq!((&first["state"], &first["site"]), (&"found".into(), &"here".into()));
    let query = Query { prefix: Some("a ".to_owned()), ..Query::default() };
    let (rows, text) = write(Sheet::Files, &query, Format::Csv);
    assert_eq!(rows, 1);
    let start =
        "id,site,name,version,size,rule,state,since_us,reason,error,next_try_us,tries,blake3\n";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains(",here,\"a \"\"b\"\", c\nd\",1,1000,all,found,"), "{text}");
    let none = Query::default();
    for (sheet, expected) in [
        (Sheet::Attempts, 1),
        (Sheet::Digests, 1201 + 1),
        (Sheet::Transfers, 1),
        (Sheet::Replicas, 1),
        (Sheet::Receipts, 1),
        (Sheet::Sessions, 2),
        (Sheet::Deliveries, 2),
        (Sheet::Events, 1 + 8 + 4 * 1200 + 1200 + 6),
        (Sheet::Decisions, 1200),
    ] {
        let (rows, text) = write(sheet, &none, Format::Csv);
        assert_eq!((rows, text.lines().count() as u64), (expected, expected + 1), "{sheet:?}");
    }
    let (rows, text) = write(Sheet::Links, &none, Format::Csv);
    assert!(rows == 0 && text.starts_with("log,at_us,from,to,") && text.lines().count() == 1);
    assert_eq!(write(Sheet::Links, &none, Format::Ndjson), (0, String::new()));
    let (us, odd) = (NOW.0, odd.0);
    let (a, b) = ("01".repeat(32), "02".repeat(32));
    let md5 = format!("\n{odd},md5,{}\n", "09".repeat(16));
    for (sheet, rows) in [
        (Sheet::Digests, md5),
        (Sheet::Transfers, format!("id,from,to,submitted_us\n5,here,there,{us}\n")),
        (
            Sheet::Sessions,
            format!("id,stream,rule,started_us,ended_us\n8,7,,{us},\n9,4294967295,all,{us},{us}\n"),
        ),
        (
            Sheet::Deliveries,
            format!(
                "session,file,receiver,state,error,at_us\n\
                 9,{odd},{a},complete,,{us}\n9,{odd},{b},failed,destination-full,{us}\n"
            ),
        ),
    ] {
        let (_, text) = write(sheet, &none, Format::Csv);
        assert!(text.contains(&rows), "{sheet:?}: {text}");
    }
}

pub(crate) fn a_backup_is_a_whole_catalog(world: &World) {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db");
    let daemon = world.daemon("a");
    let file = daemon.queued("x").file;
    let CatalogUrl::Sqlite(_) = &world.url else {
        assert!(matches!(backup(&world.url, &copy), Err(CopyError::Server(_))));
        assert!(matches!(restore(&copy, &world.url), Err(CopyError::Server(_))));
        return;
    };
    // Another backup may be at this one, or it is somebody's own file.
    let theirs = folder.path().join("copy.db.part");
    std::fs::write(&theirs, "theirs").unwrap();
    backup(&world.url, &copy).unwrap();
    assert_eq!(backup(&world.url, &copy), Err(CopyError::Exists(copy.clone())));
    assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
    daemon.take_in("later");
    let target = folder.path().join("new.db");
    let url = CatalogUrl::Sqlite(target.clone());
    let theirs = folder.path().join("new.db.part");
    std::fs::write(&theirs, "theirs").unwrap();
    std::fs::set_permissions(&copy, Permissions::from_mode(0o444)).unwrap();
    restore(&copy, &url).unwrap();
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(restore(&copy, &url), Err(CopyError::Exists(target)));
    assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
    let restored = World::at(url);
    let again = restored.daemon("a");
    assert_eq!(again.file(file), daemon.file(file));
    assert_eq!(again.file(file).digest, Some(digest("x")));
    assert_eq!(restored.reader().versions(again.site, "later").unwrap(), []);
    // It goes on where the copy was made.
    assert!(!again.take_in("later").repeated);
    a_left_over_is_part_of_no_other(&copy, &world.url);
    a_catalog_that_is_open_is_restored_whole(world, &folder.path().join("of-open.db"));
    // What is cut off is not restored.
    let whole = std::fs::read(&copy).unwrap();
    let cut = folder.path().join("cut.db");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let refused = restore(&cut, &CatalogUrl::Sqlite(folder.path().join("no.db")));
    assert!(matches!(refused, Err(CopyError::Damaged(..) | CopyError::Open(_))), "{refused:?}");
    assert!(!folder.path().join("no.db").exists());
}

/// What a process that was killed left of a catalog would be read as part of the restored one.
fn a_left_over_is_part_of_no_other(copy: &Path, source: &CatalogUrl) {
    let CatalogUrl::Sqlite(live) = source else { unreachable!("it is SQLite's") };
    let folder = copy.parent().unwrap();
    let target = folder.join("lost.db");
    let url = CatalogUrl::Sqlite(target.clone());
    for end in ["-wal", "-shm", "-journal"] {
        let left = folder.join(format!("lost.db{end}"));
        match end {
            "-wal" => drop(std::fs::copy(format!("{}-wal", live.display()), &left).unwrap()),
            _ => std::fs::write(&left, "").unwrap(),
        }
        let there = || Err(CopyError::Exists(left.clone()));
        assert_eq!((restore(copy, &url), backup(source, &target)), (there(), there()));
        assert!(!target.exists() && left.exists());
        std::fs::remove_file(left).unwrap();
    }
    restore(copy, &url).unwrap();
    drop(Reader::open(&url).unwrap());
}

/// Its last commits are not in its file yet.
fn a_catalog_that_is_open_is_restored_whole(world: &World, target: &Path) {
    let CatalogUrl::Sqlite(live) = &world.url else { unreachable!("it is SQLite's") };
    let daemon = world.daemon("a");
    let file = daemon.queued("last").file;
    let url = CatalogUrl::Sqlite(target.to_owned());
    restore(live, &url).unwrap();
    assert_eq!(World::at(url).daemon("a").file(file), daemon.file(file));
}

pub(crate) fn a_newer_catalog_is_refused(world: &World) {
    let read = |world: &World| Reader::open(&world.url).map(drop);
    match &world.url {
        CatalogUrl::Sqlite(path) => {
            assert_eq!(read(world), Err(OpenError::NoFile(path.clone())));
        }
        _ => assert_eq!(read(world), Err(OpenError::Empty)),
    }
    drop(world.daemon("a"));
    world.run_sql(&format!(
        "INSERT INTO schema_version (version, applied) VALUES ({}, 0)",
        SCHEMA_VERSION + 1
    ));
    let newer = OpenError::Newer { found: SCHEMA_VERSION + 1, known: SCHEMA_VERSION };
    assert_eq!(read(world), Err(newer.clone()));
    let write = Catalog::open(&world.url, "a", NOW, &BeforeMigration::DumpExists);
    assert_eq!(write.err(), Some(newer));
}
