//! After the receipt: kept, moved or removed, and never newer content.

use crate::bench::{Bench, LONG};
use downpour_catalog::{ErrorClass, Move, Next, ReplicaState, State};
use std::fs;
use std::thread;
use std::time::Duration;

#[test]
fn each_rule_says_what_becomes_of_a_received_file() {
    for (after, stays, moved, state) in [
        ("keep", true, false, ReplicaState::Present),
        ("delete", false, false, ReplicaState::Removed),
        ("move:ARCHIVE", false, true, ReplicaState::Present),
    ] {
        let mut bench = Bench::new("", &format!("after = '{after}'"));
        bench.write("run/a", "1");
        bench.write("run/a.md5", "c4ca4238a0b923820dcc509a6f75849b");
        bench.tick(LONG);
        assert_eq!(bench.send_all(), 1, "{}", bench.said());
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
fn a_file_that_was_leaving_when_the_daemon_ended_leaves_at_the_next_start() {
    let mut bench = Bench::new("", "after = 'move:ARCHIVE'");
    bench.write("a", "one");
    bench.tick(LONG);
    bench.stop();
    bench.send_all();
    let id = bench.newest("a").id;
    fs::rename(bench.path("a"), bench.path(&format!(".downpour/leaving.{id}"))).unwrap();
    bench.begin();
    bench.tick(LONG);
    assert_eq!(fs::read(bench.archive("a")).unwrap(), b"one", "{}", bench.said());
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
    // Cut short after the catalog was told: done at the next start.
    let now = bench.now();
    bench.spool().release(now, "run/a").unwrap().unwrap();
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
