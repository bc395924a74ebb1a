//! After the receipt: kept, moved or removed, and never newer content.

use crate::bench::{Bench, LONG};
use crate::skipped::not_here;
use downpour_catalog::{
    AdoptedFile, Change, Digest, ErrorClass, Move, Next, OtherContent, Replica, ReplicaState, State,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// A folder of another file system than the spool's, as far as there is one.
fn elsewhere(test: &str) -> Option<tempfile::TempDir> {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        not_here(test, "there is no /dev/shm");
        return None;
    };
    let device = |path: &std::path::Path| fs::metadata(path).unwrap().dev();
    if device(folder.path()) == device(&std::env::temp_dir()) {
        not_here(test, "all is one file system");
        return None;
    }
    Some(folder)
}

#[test]
fn each_rule_says_what_becomes_of_a_received_file() {
    for (after, stays, moved, state) in [
        ("keep", true, false, ReplicaState::Present),
        ("delete", false, false, ReplicaState::Removed),
        ("move:ARCHIVE", false, true, ReplicaState::Present),
    ] {
        let mut bench = Bench::new("rescan = '1s'", &format!("after = '{after}'"));
        bench.write("run/a", "1");
        bench.write("run/a.md5", "c4ca4238a0b923820dcc509a6f75849b");
        bench.tick(LONG);
        assert_eq!(bench.send_all(), 1, "{}", bench.said());
        // Told and found in one tick.
        bench.tick_once(1.0);
        bench.tick(LONG);
        assert_eq!(bench.path("run/a").exists(), stays, "{after}: {}", bench.said());
        assert_eq!(bench.path("run/a.md5").exists(), stays, "{after}");
        assert_eq!(bench.archive("run/a").exists(), moved, "{after}");
        let file = bench.newest("run/a");
        assert_eq!(file.state, State::Receipted);
        let replica = bench.replicas(&file).into_iter().find(|r| r.site == file.site).unwrap();
        assert_eq!(replica.state, state, "{after}");
        if moved {
            assert_eq!(replica.path, bench.archive("run/a").display().to_string());
        }
    }
}

#[test]
fn what_was_submitted_as_well_stays_until_that_is_received_too() {
    let mut bench = Bench::new("", "after = 'delete'");
    bench.write("a", "one");
    bench.tick(LONG);
    let by_rule = bench.claim();
    let submitted = bench.submit("a");
    bench.queue(&submitted, "one");
    bench.receive(&by_rule);
    bench.tick(LONG);
    assert!(bench.path("a").exists(), "{}", bench.said());
    assert_eq!(bench.copy(&bench.versions("a")[0]), (ReplicaState::Present, bench.path("a")));
    assert_eq!(bench.send_all(), 1);
    bench.tick(2.0 * LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
}

#[test]
fn what_was_submitted_before_it_was_seen_goes_by_its_rule_as_well() {
    let mut bench = Bench::new("", "after = 'delete'");
    bench.write("a", "one");
    let submitted = bench.submit("a");
    bench.tick(LONG);
    let stands = [(State::Settled, None), (State::Queued, None)];
    assert_eq!(bench.stands("a"), stands, "{}", bench.said());
    let rules = bench.versions("a").into_iter().map(|file| file.rule).collect::<Vec<_>>();
    assert_eq!(rules, [submitted.rule, bench.catalog.rule("all").unwrap()]);
    bench.queue(&submitted, "one");
    assert_eq!(bench.send_all(), 2);
    bench.tick(LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
}

#[test]
fn what_another_rule_sent_stays_until_all_have_it_to_whom_its_rule_sends() {
    let mut bench = Bench::new("rescan = '10s'", "");
    bench.write("a", "one");
    bench.tick(LONG);
    bench.send_all();
    bench.tick(LONG);
    bench.ask_first("name = 'big'\nmatch = '*'\nto = ['there', 'archive']\nafter = 'delete'");
    bench.restart();
    bench.tick(200.0);
    assert!(bench.path("a").exists(), "{}", bench.said());
    let said = bench.spool().take_notices();
    assert_eq!(said.iter().filter(|text| text.contains("not by archive, ")).count(), 1, "{said:?}");
    let file = bench.newest("a");
    let (site, path) = (bench.catalog.site("archive").unwrap(), "/archive".to_owned());
    let there = Replica { file: file.id, site, path, state: ReplicaState::Present };
    bench.catalog.apply(bench.now().wall, &[Change::Replica(there)]).unwrap()[0].clone().unwrap();
    let (at, next) = (bench.newest("a").revision, Next::Queued);
    bench.step(Move { file: file.id, at, fence: None, next });
    assert_eq!(bench.send_all(), 1);
    bench.tick(LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
}

#[test]
fn what_left_and_is_sent_again_is_not_given_up_at_a_start() {
    let mut bench = Bench::new("", "after = 'move:ARCHIVE'");
    bench.write("a", "one");
    bench.tick(LONG);
    bench.send_all();
    bench.tick(LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
    let file = bench.newest("a");
    let next = Next::Queued;
    bench.step(Move { file: file.id, at: file.revision, fence: None, next });
    // Its disk is mounted after the daemon's start.
    let (archive, away) = (bench.archive(""), bench.path("../away"));
    fs::rename(&archive, &away).unwrap();
    bench.restart();
    bench.tick(LONG);
    let _ = fs::remove_dir(&archive);
    fs::rename(&away, &archive).unwrap();
    assert_eq!(bench.stands("a"), [(State::Queued, None)], "{}", bench.said());
    assert_eq!(bench.copy(&file), (ReplicaState::Present, bench.archive("a")));
}

#[test]
fn what_was_adopted_elsewhere_and_is_sent_again_is_not_given_up_at_a_start() {
    let mut bench = Bench::new("", "");
    let (site, rule) = (bench.site(), bench.catalog.rule("all").unwrap());
    let adopted = Change::Adopt(AdoptedFile {
        site,
        name: "a".to_owned(),
        size: 1,
        rule,
        digest: Digest::blake3([1; 32]),
        others: Vec::new(),
        replicas: vec![(site, bench.archive("a").display().to_string())],
        other_content: OtherContent::Refuse,
        origin: None,
        receipt: None,
    });
    bench.catalog.apply(bench.now().wall, &[adopted]).unwrap()[0].as_ref().unwrap();
    let file = bench.newest("a");
    let next = Next::Queued;
    bench.step(Move { file: file.id, at: file.revision, fence: None, next });
    bench.restart();
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [(State::Queued, None)], "{}", bench.said());
}

#[test]
fn newer_content_does_not_leave_with_an_older_receipt() {
    let mut bench = Bench::new("", "after = 'delete'");
    bench.write("a", "one");
    bench.write("b", "one");
    bench.tick(LONG);
    bench.send_all();
    bench.write("a", "newer");
    bench.tick(0.5);
    assert_eq!(fs::read(bench.path("a")).unwrap(), b"newer");
    assert!(!bench.path("b").exists());
    bench.tick(LONG);
    assert_eq!(bench.newest("a").state, State::Queued);
    bench.send_all();
    bench.tick(LONG);
    assert!(!bench.path("a").exists());
}

#[test]
fn a_later_process_reads_again_before_it_removes() {
    let mut bench = Bench::new("", "after = 'delete'");
    bench.write("same", "one");
    bench.write("other", "one");
    bench.tick(LONG);
    bench.send_all();
    bench.stop();
    // Other content that looks the same: length, inode and time.
    let seen = fs::metadata(bench.path("other")).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(bench.path("other")).unwrap();
    std::io::Write::write_all(&mut &file, b"two").unwrap();
    file.set_modified(seen).unwrap();
    bench.begin();
    bench.tick(LONG);
    assert!(!bench.path("same").exists(), "{}", bench.said());
    assert_eq!(fs::read(bench.path("other")).unwrap(), b"two", "{}", bench.said());
}

#[test]
fn what_takes_the_name_while_it_is_read_again_is_a_new_version() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut bench = Bench::new("", "after = 'delete'");
    bench.write("a", "one");
    bench.tick(LONG);
    bench.send_all();
    // Touched: it is read again before it leaves.
    fs::set_permissions(bench.path("a"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = bench.spool().status().bytes_read;
    bench.tick_once(0.5);
    while bench.spool().status().bytes_read == before {
        thread::yield_now();
    }
    // Its bytes are read; that reader has a look at it yet.
    thread::sleep(Duration::from_millis(50));
    bench.write(".new", "never sent");
    fs::rename(bench.path(".new"), bench.path("a")).unwrap();
    bench.tick_once(0.0);
    assert!(bench.path("a").exists(), "{}", bench.said());
    bench.tick(LONG);
    assert_eq!(fs::read(bench.path("a")).unwrap(), b"never sent", "{}", bench.said());
    assert_eq!(bench.stands("a"), [(State::Receipted, None), (State::Queued, None)]);
    bench.send_all();
    bench.tick(LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
}

#[test]
fn what_takes_the_name_of_a_file_that_waits_to_be_read_again_is_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut bench = Bench::new("", "after = 'delete'");
    bench.write("a", "one");
    bench.tick(LONG);
    // Each reader has one of these to read first.
    for name in ["1", "2"] {
        fs::File::create(bench.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    bench.tick(4.5);
    bench.send_all();
    fs::set_permissions(bench.path("a"), fs::Permissions::from_mode(0o600)).unwrap();
    bench.tick_once(0.5);
    assert_eq!(bench.spool().reading(), 3, "{}", bench.said());
    fs::remove_file(bench.path("a")).unwrap();
    bench.tick_once(0.5);
    bench.tick_once(2.5);
    bench.write("a", "other");
    bench.tick_once(0.0);
    bench.tick_once(6.0);
    bench.tick(LONG);
    let stands = [(State::Receipted, None), (State::Queued, None)];
    assert_eq!(bench.stands("a"), stands, "{}", bench.said());
}

#[test]
fn a_file_that_was_leaving_when_the_daemon_ended_leaves_at_the_next_start() {
    let mut bench = Bench::new("", "after = 'move:ARCHIVE'");
    bench.write("run/a", "one");
    bench.tick(LONG);
    bench.stop();
    bench.send_all();
    let id = bench.newest("run/a").id;
    fs::rename(bench.path("run/a"), bench.path(&format!(".downpour/leaving.{id}"))).unwrap();
    // Its folder is empty, and somebody tidies up.
    fs::remove_dir(bench.path("run")).unwrap();
    bench.begin();
    bench.tick(LONG);
    assert_eq!(fs::read(bench.archive("run/a")).unwrap(), b"one", "{}", bench.said());
}

#[test]
fn a_name_that_is_taken_in_the_archive_is_not_overwritten() {
    let mut bench = Bench::new("", "after = 'move:ARCHIVE'");
    for content in ["one", "two"] {
        bench.write("a", content);
        bench.tick(LONG);
        bench.send_all();
        bench.tick(LONG);
    }
    assert_eq!(fs::read(bench.archive("a")).unwrap(), b"one");
    let newest = bench.newest("a");
    let replica = bench.replicas(&newest).into_iter().find(|r| r.site == newest.site).unwrap();
    assert_eq!(fs::read(&replica.path).unwrap(), b"two");
}

#[test]
fn what_cannot_leave_is_tried_again_less_and_less_often() {
    let mut bench = Bench::new("", "after = 'move:ARCHIVE'");
    let archive = bench.path("").with_file_name("archive");
    fs::write(&archive, "no folder").unwrap();
    bench.write("a", "one");
    bench.tick(LONG);
    bench.send_all();
    let before = bench.events();
    bench.tick(200.0);
    // It is not read again for that, nor told of.
    assert_eq!((bench.spool().status().bytes_read, bench.events()), (3, before));
    let tries = |bench: &mut Bench| {
        let said = bench.spool().take_notices();
        said.iter().filter(|text| text.contains("it is received, but stays")).count()
    };
    // After 0, 10, 30, 70, 130 and 190 seconds.
    let seen = tries(&mut bench);
    assert!((3..=7).contains(&seen), "{seen}: {}", bench.said());
    fs::remove_file(&archive).unwrap();
    bench.tick(61.0);
    assert_eq!(fs::read(bench.archive("a")).unwrap(), b"one", "{}", bench.said());
}

#[test]
fn on_another_file_system_it_is_a_copy_with_mode_and_time_and_leaves_no_half() {
    use std::os::unix::fs::PermissionsExt as _;
    let test = "on_another_file_system_it_is_a_copy_with_mode_and_time_and_leaves_no_half";
    let Some(archive) = elsewhere(test) else { return };
    let after = format!("after = \"move:{}\"", archive.path().display());
    let mut bench = Bench::new("rescan = '10s'", &after);
    let then = std::time::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    bench.write("a", "one");
    fs::set_permissions(bench.path("a"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::File::options().write(true).open(bench.path("a")).unwrap().set_modified(then).unwrap();
    bench.tick(LONG);
    let in_archive = |name: &str| archive.path().join(name);
    let second = format!("a.{}", bench.newest("a").id);
    for taken in ["a", &second] {
        fs::write(in_archive(taken), "mine").unwrap();
    }
    let long = "n".repeat(255);
    bench.write(&long, "four");
    bench.tick(LONG);
    bench.send_all();
    bench.tick(LONG);
    assert!(bench.path("a").exists() && !bench.path(&long).exists(), "{}", bench.said());
    assert_eq!(fs::read(in_archive(&long)).unwrap(), b"four");
    assert_eq!(fs::read_dir(archive.path()).unwrap().count(), 3, "half a copy is left");
    assert_eq!(bench.spool().status().bytes_read, 7, "{}", bench.said());
    fs::remove_file(in_archive(&second)).unwrap();
    bench.tick(LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
    let moved = fs::metadata(in_archive(&second)).unwrap();
    assert_eq!((moved.mode() & 0o777, moved.modified().unwrap()), (0o640, then));
    assert_eq!(fs::read(in_archive(&second)).unwrap(), b"one");
    assert_eq!(fs::read(in_archive("a")).unwrap(), b"mine");
}

#[test]
fn what_a_producer_writes_for_the_next_file_while_the_last_one_is_copied_away_stays() {
    let test = "what_a_producer_writes_for_the_next_file_while_the_last_one_is_copied_away_stays";
    let Some(archive) = elsewhere(test) else { return };
    let after = format!("after = \"move:{}\"", archive.path().display());
    let mut bench = Bench::new("complete = 'done'", &after);
    bench.write("a", "");
    fs::File::options().write(true).open(bench.path("a")).unwrap().set_len(64 << 20).unwrap();
    bench.write("a.done", "");
    bench.tick(LONG);
    assert_eq!(bench.send_all(), 1, "{}", bench.said());
    let (name, done) = (bench.path("a"), bench.path("a.done"));
    thread::scope(|scope| {
        scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(60);
            while name.exists() && Instant::now() < until {
                thread::yield_now();
            }
            fs::write(&name, "next").unwrap();
            fs::write(&done, "").unwrap();
        });
        bench.tick(LONG);
    });
    bench.tick(LONG);
    assert_eq!(fs::metadata(archive.path().join("a")).unwrap().len(), 64 << 20);
    let stands = [(State::Receipted, None), (State::Queued, None)];
    assert_eq!(bench.stands("a"), stands, "{}", bench.said());
}

/// The first file of a tick is copied into a pipe, so that the copy goes on when it is read, and fails then.
#[test]
fn the_catalog_says_where_a_file_lies_while_another_one_is_copied() {
    let test = "the_catalog_says_where_a_file_lies_while_another_one_is_copied";
    for (size, leave_together) in [(1 << 20, true), (64 << 20, false)] {
        let Some(archive) = elsewhere(test) else { return };
        let after = format!("after = \"move:{}\"", archive.path().display());
        let mut bench = Bench::new("rescan = '10s'", &after);
        fs::File::create(bench.path("a")).unwrap().set_len(size).unwrap();
        bench.write("b", "one");
        bench.tick(LONG);
        assert_eq!(bench.send_all(), 2, "{}", bench.said());
        let (id, b) = (bench.newest("a").id, bench.newest("b"));
        let pipe = archive.path().join(format!(".{id}.part"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (catalog, now) = (bench.catalog.clone(), bench.now().wall);
        let recorded = thread::scope(|scope| {
            let meanwhile = scope.spawn(|| {
                let mut copy = fs::File::open(&pipe).unwrap();
                let replicas = catalog.reader().unwrap().replicas(b.id).unwrap();
                let own = replicas.into_iter().find(|replica| replica.site == b.site).unwrap();
                // As a scrub does that looks for it now.
                let lost = Replica { state: ReplicaState::Lost, ..own.clone() };
                catalog.apply(now, &[Change::Replica(lost)]).unwrap()[0].clone().unwrap();
                std::io::copy(&mut copy, &mut std::io::sink()).unwrap();
                PathBuf::from(own.path)
            });
            bench.tick_once(0.5);
            meanwhile.join().unwrap()
        });
        let place = archive.path().join("b");
        assert_eq!(recorded, if leave_together { place.clone() } else { bench.path("b") });
        assert_eq!(bench.copy(&b), (ReplicaState::Present, place), "{}", bench.said());
        assert!(bench.path("a").exists(), "{}", bench.said());
    }
}

#[test]
fn what_the_mover_sets_apart_goes_to_quarantine() {
    let mut bench = Bench::new("", "");
    bench.write("run/a", "one");
    bench.tick(LONG);
    let file = bench.newest("run/a");
    let next = Next::Quarantined(ErrorClass::NameRefused);
    bench.step(Move { file: file.id, at: file.revision, fence: None, next });
    bench.tick(0.5);
    assert!(!bench.path("run/a").exists(), "{}", bench.said());
    let (place, reason) = bench.spool().quarantine().remove(0);
    assert_eq!((place.as_str(), reason.class.as_str()), (".quarantine/run/a", "name-refused"));
    assert_eq!(bench.copy(&file), (ReplicaState::Present, bench.path(&place)));
    // Cut short after the catalog was told: done at the next start.
    let now = bench.now();
    bench.spool().release(now, "run/a").unwrap().unwrap();
    assert_eq!(bench.copy(&file), (ReplicaState::Present, bench.path("run/a")));
    bench.tick(LONG);
    assert_eq!(bench.newest("run/a").state, State::Queued, "{}", bench.said());
    bench.stop();
    let file = bench.newest("run/a");
    let next = Next::Quarantined(ErrorClass::NameRefused);
    bench.step(Move { file: file.id, at: file.revision, fence: None, next });
    bench.begin();
    bench.tick(1.0);
    assert!(bench.path(".quarantine/run/a").exists(), "{}", bench.said());
}
