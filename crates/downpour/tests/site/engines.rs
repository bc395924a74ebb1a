//! Sites whose catalogs are in each of the databases: the same folder of real files, the database killed under the daemon,
//! and several daemons that share one.

use super::database::{Database, Engine, answer, numbers};
use super::harness::{SiteProcess, Two, drop_file, folder, until};
use super::planting::Book;
use downpour::reconcile::scrub::{Pace, ScrubOrder, scrub};
use downpour::site::Card;
use downpour_catalog::{CatalogUrl, FileId, Reader, State, Time};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// What every file is at last, by name.
type Listed = BTreeMap<String, blake3::Hash>;

/// Pieces of the file that is being written for long, and the time between two.
const PIECES: usize = 12;
const PIECE_PAUSE: Duration = Duration::from_millis(100);

fn spool(folder: &Path, more: &str) -> String {
    format!(
        "\n[[spool]]\nfolder = {folder:?}\ncomplete = \"settle:300ms\"\nrescan = \"1s\"\n{more}\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\n"
    )
}

fn put(root: &Path, name: &str, content: &[u8], listed: &mut Listed) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("room");
    fs::write(path, content).expect("room");
    listed.insert(name.to_owned(), blake3::hash(content));
}

/// Copies a folder of real files.
fn copy(from: &Path, root: &Path, below: &str, listed: &mut Listed) {
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = format!("{below}/{}", path.file_name().expect("a name").display());
        match path.is_dir() {
            true => copy(&path, root, &name, listed),
            false => put(root, &name, &fs::read(&path).expect("readable"), listed),
        }
    }
}

/// Drops a folder of real files, among them some that are written, renamed, replaced and removed meanwhile.
fn drop_files(root: &Path) -> Listed {
    let mut listed = Listed::new();
    put(root, "old name", b"renamed", &mut listed);
    put(root, "removed", b"gone", &mut listed);
    put(root, "replaced", b"first", &mut listed);
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), root, "src", &mut listed);
    let mut written = Vec::new();
    for piece in 0..PIECES {
        let content = vec![piece as u8; 50_000];
        let mut file = OpenOptions::new();
        let file = file.create(true).append(true).open(root.join("written"));
        file.expect("a file").write_all(&content).expect("room");
        written.extend(content);
        match piece {
            3 => {
                fs::rename(root.join("old name"), root.join("new name")).expect("it is there");
                let digest = listed.remove("old name").expect("listed");
                listed.insert("new name".to_owned(), digest);
            }
            5 => put(root, "replaced", b"second", &mut listed),
            7 => {
                fs::remove_file(root.join("removed")).expect("it is there");
                listed.remove("removed");
            }
            _ => {}
        }
        thread::sleep(PIECE_PAUSE);
    }
    listed.insert("written".to_owned(), blake3::hash(&written));
    listed
}

/// Waits until the newest version of each file is received, and reads it back at the other site.
fn arrived(a: &SiteProcess, b: &SiteProcess, listed: &Listed) {
    let of_a = |reader: &mut Reader| {
        let sites = reader.sites().ok()?.into_iter();
        sites.filter(|(_, name)| name == "a").map(|(id, _)| id).next()
    };
    for (name, digest) in listed {
        let newest = |site: &SiteProcess, wanted: State| {
            let mut reader = Reader::open(site.catalog()).ok()?;
            let origin = of_a(&mut reader)?;
            let file = reader.versions(origin, name).ok()?.pop()?;
            let known = file.digest.as_ref().is_some_and(|d| d.value() == digest.as_bytes());
            (file.state == wanted && known).then_some((file.id, reader))
        };
        until(&format!("{name} is received\n{}", a.log()), || newest(a, State::Receipted));
        let (file, mut reader) = newest(b, State::Adopted).expect("in the other catalog");
        let replicas = reader.replicas(file).expect("the database works");
        let read = |path: &String| blake3::hash(&fs::read(path).unwrap_or_default());
        assert!(replicas.iter().any(|replica| read(&replica.path) == *digest), "{name}");
    }
}

/// Rows of both catalogs, counted by their databases' own programs: each file received once, and nothing left half way.
fn check_rows(a: &SiteProcess, b: &SiteProcess) {
    let at_a = "SELECT (SELECT count(*) FROM file WHERE state = 8), (SELECT count(*) FROM receipt)";
    let at_b =
        "SELECT (SELECT count(*) FROM file WHERE state = 12), (SELECT count(*) FROM receipt)";
    let left = "SELECT count(*) FROM live WHERE state <> 10";
    let both = || Some((numbers(a.catalog(), at_a)?, numbers(b.catalog(), at_b)?));
    if both().is_none() {
        return;
    }
    // What was replaced or removed meanwhile may still be on its way.
    until("each file is received once", || {
        both().filter(|(here, there)| here == there && here[0] == here[1])
    });
    // What was renamed or removed is given up at the next rescan.
    until("nothing is left half way", || (numbers(a.catalog(), left)? == [0]).then_some(()));
}

/// The whole story, with both catalogs in databases of this kind.
fn tell(engine: Engine) {
    let databases = [Database::new(engine), Database::new(engine)];
    let [Some(mut at_a), Some(mut at_b)] = databases else { return };
    let dropped = tempfile::tempdir().expect("a folder");
    let mut sites = Two::set_up([&spool(dropped.path(), ""), ""]);
    for (site, database) in [(&mut sites.a, &at_a), (&mut sites.b, &at_b)] {
        if let Some(url) = database.url() {
            site.keep_book_in(&url);
        }
        site.start();
    }
    let mut listed = drop_files(dropped.path());
    arrived(&sites.a, &sites.b, &listed);
    check_rows(&sites.a, &sites.b);
    let (Some(a), Some(b)) = (at_a.server(), at_b.server()) else { return };
    // Both databases die under the daemons, while files are dropped.
    let half = |listed: &mut Listed, of: u64| {
        for number in 0..40 {
            let content = blake3::hash(&[of as u8, number]).as_bytes().repeat(1000);
            put(dropped.path(), &format!("later {of}/{number}"), &content, listed);
        }
    };
    half(&mut listed, 1);
    a.kill();
    b.kill();
    for site in [&sites.a, &sites.b] {
        let ready = until("it says so", || site.text("/readyz").ok().filter(|r| r.0 != 200));
        assert_eq!(ready.0, 503, "{ready:?}");
        assert_eq!(site.text("/healthz").expect("it lives").0, 200);
    }
    half(&mut listed, 2);
    a.start();
    b.start();
    for site in [&mut sites.a, &mut sites.b] {
        until("it works again", || site.text("/readyz").ok().filter(|r| r.0 == 200));
        assert!(site.runs(), "{} has ended\n{}", site.card.name, site.log());
    }
    arrived(&sites.a, &sites.b, &listed);
    check_rows(&sites.a, &sites.b);
    if engine == Engine::Mariadb {
        // Only the scrub's connections are to be closed.
        sites.a.kill();
        scrub_slowly(sites.a.catalog());
    }
}

/// Lets the server close all connections since this one while a file is read.
struct Closing<'a>(&'a CatalogUrl, u64);

impl Pace for Closing<'_> {
    fn spent(&mut self, bytes: u64, files: u64) -> bool {
        if (bytes, files) == (0, 0) {
            return true;
        }
        let open = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()";
        let open = format!("{open} AND id > {}", self.1);
        for id in numbers(self.0, &open).into_iter().flatten() {
            // It may be gone by now.
            let _ = answer(self.0, &format!("KILL {id}"));
        }
        true
    }

    fn reached(&mut self, _file: FileId, _changes: usize) {}
}

/// A scrub of one more site in this catalog records what it read for so long that its connection was closed.
fn scrub_slowly(url: &CatalogUrl) {
    const THEN: Time = Time(1_790_000_000_000_000);
    let Some(before) = numbers(url, "SELECT CONNECTION_ID()") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let book = Book::open(url, THEN, &[], ["c", "d"], folder.path().to_owned());
    book.one(THEN, book.adopt(book.sender, "lost", b"x", &[book.holder], None));
    let order = ScrubOrder {
        site: "d".to_owned(),
        base: folder.path().to_owned(),
        folders: Vec::new(),
        repair_max: 9,
        started: THEN,
        last: FileId(i64::MAX),
        after: (FileId(0), 0),
    };
    let clock = Cell::new(0);
    let now = || THEN.plus_s(100 * clock.replace(clock.get() + 1));
    let done = scrub(&book.catalog, &order, &mut Closing(url, before[0]), now);
    let done = done.expect("it goes on");
    assert_eq!((done.recorded, done.is_whole), (1, true));
}

#[test]
fn with_sqlite_everything_arrives() {
    tell(Engine::Sqlite);
}

#[test]
fn with_postgresql_everything_arrives_and_a_dead_server_only_delays() {
    tell(Engine::Postgres);
}

#[test]
fn with_mariadb_everything_arrives_and_a_dead_server_only_delays() {
    tell(Engine::Mariadb);
}

/// Two daemons of one site with one catalog: each file is sent by one of them, and what one leaves the other takes up.
#[test]
fn daemons_that_share_a_catalog_claim_apart() {
    let Some(database) = Database::new(Engine::Postgres) else { return };
    let url = database.url().expect("a server");
    let root = folder();
    let mut b = SiteProcess::new(root.path(), "b");
    b.configure("[transfer]\nports = \"31400-31499\"");
    let dropped = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let mut daemons = ["first", "second"].map(|place| {
        let mut daemon = SiteProcess::new(&root.path().join(place), "a");
        let at = &dropped[usize::from(place == "second")];
        daemon.trust(&b.card);
        daemon.configure(&spool(at.path(), &format!("prefix = \"{place}/\"")));
        let few =
            "[transfer]\nbatch_files = 10\nactive = 1\nlease = \"3s\"\nports = \"31000-31199\"";
        daemon.configure(few);
        daemon.keep_book_in(&url);
        b.trust(&Card { name: place.to_owned(), ..daemon.card.clone() });
        daemon
    });
    b.start();
    daemons.iter_mut().for_each(SiteProcess::start);
    let mut listed = Listed::new();
    let mut fill = |round: u8| {
        for (at, place) in dropped.iter().zip(["first", "second"]) {
            for number in 0..100 {
                let name = format!("{round}/{number}");
                let content = blake3::hash(format!("{place}/{name}").as_bytes());
                let path = at.path().join(&name);
                fs::create_dir_all(path.parent().expect("a folder")).expect("room");
                drop_file(&path, content.as_bytes());
                listed.insert(format!("{place}/{name}"), blake3::hash(content.as_bytes()));
            }
        }
        listed.clone()
    };
    arrived(&daemons[0], &b, &fill(1));
    let catalog = daemons[0].catalog().clone();
    // Into `sending` once each, but for what failed or whose lease ended; by two writers.
    let claims = "SELECT count(*) - (SELECT count(*) FROM attempt WHERE outcome <> 1), \
                  count(DISTINCT subject), count(DISTINCT log) FROM event \
                  WHERE kind = 2 AND state_from = 4 AND state_to = 5";
    let Some(claims) = numbers(&catalog, claims) else { return };
    assert_eq!(claims, [200, 200, 2]);
    let all = fill(2);
    let under_way = "SELECT (SELECT count(*) FROM live WHERE state IN (5, 6, 7)), \
                     (SELECT count(*) FROM file WHERE state = 8)";
    until("some are under way, or all are there already", || {
        numbers(&catalog, under_way).filter(|n| n[0] > 0 || n[1] >= 400)
    });
    daemons[0].kill();
    let queued = "SELECT count(*) FROM live WHERE state BETWEEN 4 AND 9";
    until("the other one takes up what is left", || {
        numbers(&catalog, queued).filter(|n| n[0] == 0)
    });
    daemons[0].start();
    arrived(&daemons[0], &b, &all);
    check_rows(&daemons[0], &b);
}
