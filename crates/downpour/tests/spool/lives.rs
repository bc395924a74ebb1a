//! From found to queued, and what happens to a file in between.

use crate::bench::{Bench, LONG};
use crate::skipped::{not_here, skipped};
use downpour_catalog::{Claimed, DigestKind, ErrorClass, Move, Next, Reason, ReplicaState, State};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

const QUEUED: (State, Option<ErrorClass>) = (State::Queued, None);
const CANCELLED: (State, Option<ErrorClass>) = (State::Cancelled, None);

#[test]
fn a_complete_file_is_queued_with_its_digests() {
    let mut bench = Bench::new("", "digests = ['md5', 'adler32']");
    bench.write("run/1.root", "abc");
    bench.tick(0.0);
    assert_eq!(bench.newest("run/1.root").reason, Some(Reason::Settling));
    bench.tick(4.5);
    assert_eq!(bench.newest("run/1.root").state, State::Found);
    bench.tick(0.5);
    let file = bench.newest("run/1.root");
    assert_eq!((file.state, file.size), (State::Queued, 3), "{}", bench.said());
    assert_eq!(file.digest.as_ref().unwrap().value(), blake3::hash(b"abc").as_bytes());
    let mut reader = bench.catalog.reader().unwrap();
    let digests = reader.digests(file.id).unwrap();
    let kinds: Vec<_> = digests.iter().map(|digest| digest.kind()).collect();
    assert_eq!(kinds, [DigestKind::Blake3, DigestKind::Md5, DigestKind::Adler32]);
    let replica = bench.replicas(&file).remove(0);
    assert_eq!(replica.path, bench.path("run/1.root").display().to_string());
}

#[test]
fn a_file_that_is_still_written_is_one_file_and_waits() {
    let mut bench = Bench::new("", "");
    bench.write("a", "");
    let mut file = OpenOptions::new().append(true).open(bench.path("a")).unwrap();
    for _ in 0..10 {
        bench.tick(3.0);
        file.write_all(b"more").unwrap();
    }
    assert_eq!(bench.stands("a"), [(State::Found, None)]);
    // Shorter again is a change, too.
    file.set_len(7).unwrap();
    bench.tick(4.5);
    assert_eq!(bench.newest("a").state, State::Found);
    bench.tick(LONG);
    assert_eq!((bench.stands("a"), bench.newest("a").size), (vec![QUEUED], 7));
}

#[test]
fn producers_say_that_a_file_is_complete() {
    let mut bench = Bench::new("complete = 'done'", "");
    bench.write("a", "1");
    bench.tick(1000.0);
    assert_eq!(bench.newest("a").state, State::Found);
    bench.write("a.done", "");
    bench.tick(0.5);
    assert_eq!(bench.stands("a"), [QUEUED]);
    assert!(bench.versions("a.done").is_empty());

    let mut bench = Bench::new("complete = 'rename'", "");
    bench.write("a.part", "1");
    bench.tick(1000.0);
    assert!(bench.versions("a.part").is_empty());
    fs::rename(bench.path("a.part"), bench.path("a")).unwrap();
    bench.tick(0.5);
    assert_eq!(bench.stands("a"), [QUEUED]);
}

#[test]
fn what_goes_before_it_was_read_is_cancelled() {
    let mut bench = Bench::new("", "");
    bench.write("removed", "1");
    bench.write("old", "2");
    bench.write("folder/a", "3");
    bench.tick(1.0);
    fs::remove_file(bench.path("removed")).unwrap();
    fs::rename(bench.path("old"), bench.path("new")).unwrap();
    fs::rename(bench.path("folder"), bench.path("other")).unwrap();
    bench.tick(LONG);
    assert_eq!(bench.stands("removed"), [CANCELLED], "{}", bench.said());
    assert_eq!((bench.stands("old"), bench.stands("new")), (vec![CANCELLED], vec![QUEUED]));
    assert_eq!(bench.stands("folder/a"), [CANCELLED]);
    assert_eq!(bench.stands("other/a"), [QUEUED]);
    // Back as it was: a file as any other.
    fs::rename(bench.path("new"), bench.path("old")).unwrap();
    bench.tick(LONG);
    assert_eq!(bench.stands("old").last(), Some(&QUEUED), "{:?}", bench.stands("old"));
    let before = bench.stands("old");
    bench.restart();
    bench.tick(LONG);
    assert_eq!(bench.stands("old"), before);
}

#[test]
fn what_goes_and_comes_back_while_it_waits_for_a_reader_is_read() {
    let mut bench = Bench::new("", "");
    // Each reader has one of these to read first.
    for name in ["1", "2"] {
        let file = fs::File::create(bench.path(name)).unwrap();
        file.set_len(64 << 20).unwrap();
    }
    bench.write("back", "1");
    bench.write("gone", "1");
    bench.tick(4.5);
    bench.tick_once(0.5);
    fs::remove_file(bench.path("back")).unwrap();
    fs::remove_file(bench.path("gone")).unwrap();
    bench.tick(0.5);
    assert_eq!(bench.spool().reading(), 0);
    bench.write("back", "other");
    bench.tick(LONG);
    assert_eq!((bench.newest("back").state, bench.newest("back").size), (State::Queued, 5));
    assert_ne!(bench.newest("gone").state, State::Settled, "{}", bench.said());
}

#[test]
fn what_goes_after_it_was_read_is_told_and_may_come_back() {
    let mut bench = Bench::new("", "");
    bench.write("a", "1");
    bench.tick(LONG);
    let away = bench.archive("");
    fs::create_dir(&away).unwrap();
    fs::rename(bench.path("a"), away.join("a")).unwrap();
    bench.tick(LONG);
    let gone = (State::Quarantined, Some(ErrorClass::FileGone));
    assert_eq!(bench.stands("a"), [gone]);
    assert_eq!(bench.copy(&bench.newest("a")).0, ReplicaState::Removed);
    fs::rename(away.join("a"), bench.path("a")).unwrap();
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [QUEUED], "{}", bench.said());
    assert_eq!(bench.copy(&bench.newest("a")), (ReplicaState::Present, bench.path("a")));
    // While nobody looks.
    bench.stop();
    fs::remove_file(bench.path("a")).unwrap();
    bench.begin();
    assert_eq!(bench.stands("a"), [gone]);
}

#[test]
fn a_new_file_in_the_inode_of_a_removed_one_is_not_that_renamed() {
    use std::os::unix::fs::MetadataExt as _;
    let mut bench = Bench::new("", "");
    bench.write("a", "1");
    bench.tick(LONG);
    let inode = |name: &str| fs::metadata(bench.path(name)).unwrap().ino();
    let of_removed = inode("a");
    fs::remove_file(bench.path("a")).unwrap();
    bench.write("b", "other");
    if inode("b") != of_removed {
        let name = "a_new_file_in_the_inode_of_a_removed_one_is_not_that_renamed";
        return not_here(name, "inodes are not used again");
    }
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [(State::Quarantined, Some(ErrorClass::FileGone))]);
    assert_eq!(bench.stands("b"), [QUEUED], "{}", bench.said());
}

#[test]
fn what_is_replaced_is_a_new_version_or_refused() {
    let mut bench = Bench::new("", "");
    bench.write("a", "one");
    bench.tick(LONG);
    bench.write("a", "other");
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [CANCELLED, QUEUED], "{}", bench.said());
    let [old, new] = bench.versions("a").try_into().unwrap();
    assert_eq!(bench.copy(&old).0, ReplicaState::Removed);
    assert_eq!(bench.copy(&new), (ReplicaState::Present, bench.path("a")));

    let mut bench = Bench::new("", "versions = 'refuse'");
    bench.write("a", "one");
    bench.tick(LONG);
    bench.write("a", "other");
    bench.tick(LONG);
    let changed = (State::Quarantined, Some(ErrorClass::FileChanged));
    let conflict = (State::Quarantined, Some(ErrorClass::VersionConflict));
    assert_eq!(bench.stands("a"), [changed, conflict], "{}", bench.said());
    let [(place, reason)] = bench.spool().quarantine().try_into().unwrap();
    assert_eq!((place.as_str(), reason.path.as_str()), (".quarantine/a", "a"));
    assert_eq!(fs::read(bench.path(&place)).unwrap(), b"other");
    // An operator accepts it.
    let now = bench.now();
    bench.spool().release(now, "a").unwrap().unwrap();
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [changed, QUEUED], "{}", bench.said());
    assert!(bench.spool().quarantine().is_empty());
}

#[test]
fn what_is_put_back_before_its_replacement_was_read_goes_on() {
    for is_received in [false, true] {
        let mut bench = Bench::new("", "");
        bench.write("a", "one");
        bench.tick(LONG);
        if is_received {
            bench.send_all();
        }
        fs::rename(bench.path("a"), bench.path(".kept")).unwrap();
        bench.write("a", "other");
        bench.tick(1.0);
        assert_eq!(bench.stands("a").last(), Some(&(State::Found, None)), "{}", bench.said());
        fs::rename(bench.path(".kept"), bench.path("a")).unwrap();
        bench.tick(LONG);
        let (stands, place) = (bench.stands("a"), (ReplicaState::Present, bench.path("a")));
        if is_received {
            assert_eq!(stands, [(State::Receipted, None), CANCELLED], "{}", bench.said());
            assert_eq!(bench.copy(&bench.versions("a")[0]), place);
        } else {
            assert_eq!(stands, [CANCELLED, CANCELLED, QUEUED], "{}", bench.said());
            assert_eq!(bench.copy(&bench.newest("a")), place);
        }
        assert!(bench.spool().quarantine().is_empty(), "{}", bench.said());
    }
}

#[test]
fn what_is_replaced_while_nobody_looks_is_a_new_version_or_refused() {
    let replaced = |rule| {
        let mut bench = Bench::new("", rule);
        bench.write("a", "one");
        bench.tick(LONG);
        bench.stop();
        bench.write("a", "other");
        bench.begin();
        bench.tick(LONG);
        bench
    };
    let bench = replaced("");
    assert_eq!(bench.stands("a"), [CANCELLED, QUEUED], "{}", bench.said());
    assert_eq!(bench.copy(&bench.versions("a")[0]).0, ReplicaState::Removed);
    let bench = replaced("versions = 'refuse'");
    let changed = (State::Quarantined, Some(ErrorClass::FileChanged));
    let conflict = (State::Quarantined, Some(ErrorClass::VersionConflict));
    assert_eq!(bench.stands("a"), [changed, conflict], "{}", bench.said());
}

#[test]
fn a_name_that_was_cancelled_is_free_again_whatever_the_rule_says_of_versions() {
    let mut bench = Bench::new("", "versions = 'refuse'");
    bench.write("a", "one");
    bench.tick(1.0);
    fs::remove_file(bench.path("a")).unwrap();
    bench.tick(LONG);
    bench.write("a", "other");
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [CANCELLED, QUEUED], "{}", bench.said());
}

#[test]
fn what_is_replaced_while_it_is_sent_is_left_to_the_mover() {
    let mut bench = Bench::new("", "");
    bench.write("a", "one");
    bench.tick(LONG);
    let held = bench.claim();
    bench.write("a", "other");
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [(State::Sending, None), QUEUED]);
    bench.receive(&held);
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [(State::Receipted, None), QUEUED]);
    assert_eq!(bench.copy(&bench.versions("a")[0]).0, ReplicaState::Removed);
}

#[test]
fn what_is_replaced_or_removed_while_it_is_sent_and_nobody_looks_does_not_come_again() {
    let mut bench = Bench::new("", "");
    bench.write("replaced", "one");
    bench.write("removed", "one");
    bench.tick(LONG);
    let held = bench.claim();
    bench.stop();
    bench.write("replaced", "other");
    fs::remove_file(bench.path("removed")).unwrap();
    bench.begin();
    bench.tick(LONG);
    let sending = (State::Sending, None);
    assert_eq!(bench.stands("replaced"), [sending, QUEUED], "{}", bench.said());
    assert_eq!(bench.stands("removed"), [sending], "{}", bench.said());
    for Claimed { file, revision: at, fence, .. } in held {
        let (reason, error) = (Reason::BackOff, Some(ErrorClass::FileChanged));
        let next = Next::Waiting { reason, error, next_try: bench.now().wall, bytes: 0 };
        bench.step(Move { file, at, fence: Some(fence), next });
    }
    bench.tick(1.0);
    assert_eq!(bench.stands("replaced"), [CANCELLED, QUEUED], "{}", bench.said());
    let gone = (State::Quarantined, Some(ErrorClass::FileGone));
    assert_eq!(bench.stands("removed"), [gone], "{}", bench.said());
}

#[test]
fn what_an_operator_cancels_is_sent_only_when_an_operator_releases_it() {
    let mut bench = Bench::new("rescan = '10s'", "release = '1h'");
    for name in ["a", "b", "c"] {
        bench.write(name, name);
    }
    bench.tick(LONG);
    bench.cancel("a");
    // Something is in the way.
    fs::create_dir_all(bench.path(".quarantine/c.reason.json.new")).unwrap();
    bench.cancel("c");
    bench.tick(1.0);
    assert!(bench.path("c").exists());
    fs::remove_dir(bench.path(".quarantine/c.reason.json.new")).unwrap();
    bench.stop();
    bench.cancel("b");
    bench.begin();
    bench.tick(LONG);
    // Its rule releases what is set apart.
    bench.tick_once(4000.0);
    bench.tick(LONG);
    let names = ["a", "b", "c"];
    let cancelled = names.map(|_| vec![CANCELLED]);
    assert_eq!(names.map(|name| bench.stands(name)), cancelled, "{}", bench.said());
    for name in names {
        let aside = (ReplicaState::Present, bench.path(&format!(".quarantine/{name}")));
        assert!(bench.copy(&bench.newest(name)) == aside && aside.1.exists(), "{name}");
    }
    let now = bench.now();
    bench.spool().release(now, "b").unwrap().unwrap();
    bench.tick(LONG);
    assert_eq!(bench.stands("b"), [CANCELLED, QUEUED], "{}", bench.said());
    assert_eq!(bench.copy(&bench.versions("b")[0]).0, ReplicaState::Removed);
}

#[test]
fn a_producers_digest_is_compared() {
    let mut bench = Bench::new("sums = true", "");
    bench.write("good", "abc");
    bench.write("good.md5", "900150983cd24fb0d6963f7d28e17f72  good\n");
    // Its digest file would have a name that none can have.
    let long = "n".repeat(255);
    bench.write(&long, "abc");
    bench.write("bad", "abd");
    bench.write("bad.md5", "900150983cd24fb0d6963f7d28e17f72  bad\n");
    bench.tick(LONG);
    for name in ["good", &long] {
        assert_eq!(bench.stands(name), [QUEUED], "{}", bench.said());
    }
    assert_eq!(bench.stands("bad"), [(State::Quarantined, Some(ErrorClass::DigestDiffers))]);
    let (_, reason) = bench.spool().quarantine().remove(0);
    assert!(reason.text.contains("900150983cd24fb0d6963f7d28e17f72"), "{reason:?}");
    assert!(bench.path(".quarantine/bad.reason.json").exists());
    assert!(bench.versions("good.md5").is_empty());
    // The producer mends it, an operator releases it.
    fs::write(bench.path(".quarantine/bad"), "abc").unwrap();
    let now = bench.now();
    bench.spool().release(now, "bad").unwrap().unwrap();
    bench.tick(LONG);
    assert_eq!(bench.stands("bad"), [QUEUED], "{}", bench.said());
    assert!(bench.spool().release(now, "bad").unwrap().is_err());
}

#[test]
fn a_file_waits_for_a_digest_that_is_being_made() {
    let mut bench = Bench::new("", "");
    bench.write("a", "abc");
    // As `md5sum a > a.md5` has it until the digest is known.
    bench.write("a.md5", "");
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [(State::Found, None)], "{}", bench.said());
    bench.write("a.md5", "900150983cd24fb0d6963f7d28e17f72  a\n");
    bench.tick(4.5);
    assert_eq!(bench.newest("a").state, State::Found);
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [QUEUED], "{}", bench.said());
}

#[test]
fn a_file_waits_for_the_digest_that_is_required() {
    let mut bench = Bench::new("sums = 'required'", "");
    bench.write("a", "abc");
    bench.tick(LONG);
    assert_eq!(bench.newest("a").state, State::Found);
    bench.write("a.sha256", &format!("{}\n", "00".repeat(32)));
    bench.tick(LONG);
    assert_eq!(bench.newest("a").error, Some(ErrorClass::DigestDiffers), "{}", bench.said());
}

#[test]
fn a_rule_may_release_by_itself() {
    let mut bench = Bench::new("rescan = '10s'", "release = '1h'");
    bench.write("a", "abc");
    bench.write("a.md5", "zz");
    bench.tick(LONG);
    assert_eq!(bench.newest("a").state, State::Quarantined);
    fs::remove_file(bench.path("a.md5")).unwrap();
    bench.tick(1800.0);
    assert_eq!(bench.newest("a").state, State::Quarantined);
    bench.tick(1900.0);
    assert_eq!(bench.stands("a"), [QUEUED], "{}", bench.said());
}

#[test]
fn what_is_no_file_is_not_taken() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut bench = Bench::new("", "");
    bench.write("target", "1");
    symlink(bench.path("target"), bench.path("link")).unwrap();
    symlink("/etc", bench.path("etc")).unwrap();
    let fifo = bench.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.path("socket")).unwrap();
    bench.write(".hidden", "1");
    fs::write(bench.path("").join(std::ffi::OsStr::from_bytes(b"caf\xe9")), "1").unwrap();
    bench.tick(70.0);
    let status = bench.spool().status();
    let odd = status.odd.join("\n");
    for word in ["link", "etc", "fifo", "socket", "caf\\xe9: its name is not UTF-8"] {
        assert!(odd.contains(word), "{word}: {odd}");
    }
    assert_eq!(status.taken_in, 1);
    assert_eq!(bench.stands("target"), [QUEUED]);
}

#[test]
fn each_start_goes_on_where_the_last_one_ended() {
    let mut bench = Bench::new("", "");
    bench.write("a", "1");
    for _ in 0..8 {
        bench.tick(1.0);
        bench.restart();
        assert_eq!(bench.versions("a").len(), 1);
    }
    bench.write("a", "22");
    bench.restart();
    bench.tick(LONG);
    assert_eq!((bench.stands("a"), bench.newest("a").size), (vec![QUEUED], 2));
    bench.restart();
    bench.tick(LONG);
    assert_eq!(bench.stands("a"), [QUEUED]);
}

#[test]
fn a_folder_that_is_not_mounted_loses_nothing() {
    let mut bench = Bench::new("rescan = '10s'", "");
    bench.write("a", "1");
    bench.tick(LONG);
    let (here, away) = (bench.path(""), bench.archive(""));
    fs::rename(&here, &away).unwrap();
    fs::create_dir(&here).unwrap();
    bench.tick(LONG);
    assert!(bench.spool().status().trouble.contains("mounted"), "{}", bench.said());
    assert_eq!(bench.stands("a"), [QUEUED]);
    bench.restart();
    bench.tick(LONG);
    assert!(bench.spool().status().trouble.contains("mounted"), "{}", bench.said());
    assert_eq!(bench.stands("a"), [QUEUED]);
    fs::remove_dir(&here).unwrap();
    fs::rename(&away, &here).unwrap();
    bench.write("b", "2");
    bench.tick(LONG);
    assert_eq!(bench.spool().status().trouble, "");
    assert_eq!((bench.stands("a"), bench.stands("b")), (vec![QUEUED], vec![QUEUED]));
}

/// Another file system, unmounted with the test.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        let words = ["-t", "tmpfs", "-o", "size=1m", "downpour-test"];
        let mounted = Command::new("mount").args(words).arg(at).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_folder_on_which_another_file_system_is_mounted_is_told_of() {
    let mut bench = Bench::new("", "");
    let folder = bench.path("d");
    fs::create_dir(&folder).unwrap();
    let Some(_mounted) = Tmpfs::mount(&folder) else {
        return skipped(
            "a_folder_on_which_another_file_system_is_mounted_is_told_of",
            "needs root to mount a tmpfs",
        );
    };
    bench.write("d/b", "1");
    bench.tick(LONG);
    let odd = bench.spool().status().odd;
    assert!(odd.iter().any(|text| text.starts_with("d: another file system")), "{odd:?}");
    assert_eq!(bench.stands("d/b"), [QUEUED]);
}

#[test]
fn a_folder_from_which_all_has_arrived_is_known_as_well() {
    let mut bench = Bench::new("rescan = '10s'", "after = 'delete'");
    bench.write("a", "1");
    bench.tick(LONG);
    bench.send_all();
    bench.tick(LONG);
    assert!(!bench.path("a").exists(), "{}", bench.said());
    bench.stop();
    fs::rename(bench.path(""), bench.archive("")).unwrap();
    fs::create_dir(bench.path("")).unwrap();
    bench.begin();
    assert!(bench.spool().status().trouble.contains("mounted"), "{}", bench.said());
    assert!(!bench.path(".downpour").exists());
    // It is meant to be empty.
    fs::create_dir(bench.path(".downpour")).unwrap();
    bench.tick(LONG);
    assert_eq!(bench.spool().status().trouble, "");
}

#[test]
fn a_folder_that_is_made_after_the_start_is_watched_from_then_on() {
    let mut bench = Bench::new("rescan = '10s'", "");
    fs::remove_dir(bench.path("")).unwrap();
    bench.tick(1.0);
    assert!(bench.spool().status().trouble.contains("cannot be opened"), "{}", bench.said());
    bench.write("a", "1");
    bench.tick(LONG);
    assert_eq!(bench.spool().status().trouble, "");
    assert_eq!(bench.stands("a"), [QUEUED]);
}

#[test]
fn a_folder_that_gets_another_path_has_the_same_files() {
    for (copied, one_has_it) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bench = Bench::new("", "");
        bench.write("a", "1");
        bench.tick(LONG);
        if one_has_it {
            bench.receive_at_one("a");
        }
        bench.stop();
        let old = bench.path("");
        bench.call_folder("other");
        if copied {
            fs::create_dir_all(bench.path(".downpour")).unwrap();
            fs::copy(old.join("a"), bench.path("a")).unwrap();
        } else {
            fs::rename(&old, bench.path("")).unwrap();
        }
        bench.begin();
        bench.tick(LONG);
        let before = copied.then_some((State::Cancelled, None));
        let stands: Vec<_> = before.into_iter().chain([QUEUED]).collect();
        assert_eq!(bench.stands("a"), stands, "{}", bench.said());
        assert_eq!(bench.copy(&bench.newest("a")), (ReplicaState::Present, bench.path("a")));
    }
}

#[test]
fn what_is_said_to_be_gone_and_lies_there_goes_on() {
    let mut bench = Bench::new("", "");
    bench.write("a", "1");
    bench.tick(LONG);
    let held = bench.claim().remove(0);
    let next = Next::Quarantined(ErrorClass::FileGone);
    let (file, at, fence) = (held.file, held.revision, Some(held.fence));
    bench.step(Move { file, at, fence, next });
    bench.tick(1.0);
    assert_eq!(bench.stands("a"), [QUEUED], "{}", bench.said());
}

/// Tells the story as a user who owns all that is in it: root may look at everything.
fn as_user(story: fn()) {
    let told = thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            // Of this thread alone, and of those that it starts.
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534)).unwrap();
        }
        story();
    });
    told.join().unwrap();
}

#[test]
fn what_cannot_be_looked_at_is_not_taken_for_gone() {
    as_user(|| {
        let mut bench = Bench::new("rescan = '10s'", "");
        for name in ["d/a", "d/gone", "d/e/c"] {
            bench.write(name, "1");
        }
        bench.tick(LONG);
        bench.write("d/b", "2");
        bench.tick(1.0);
        let mode = |bench: &Bench, mode| {
            fs::set_permissions(bench.path("d"), fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&bench, 0o000);
        assert!(fs::read_dir(bench.path("d")).is_err());
        let found = (State::Found, None);
        let all = |bench: &Bench| ["d/a", "d/e/c", "d/b"].map(|name| bench.stands(name)).concat();
        bench.restart();
        bench.tick(10.0);
        assert_eq!(all(&bench), [QUEUED, QUEUED, found], "{}", bench.said());
        // Names, and no more.
        for start in [false, true] {
            mode(&bench, 0o700);
            bench.tick(15.0);
            assert_eq!(all(&bench), [QUEUED; 3], "{}", bench.said());
            mode(&bench, 0o444);
            if start {
                bench.restart();
            }
            bench.tick(15.0);
            assert_eq!(all(&bench), [QUEUED; 3], "{}", bench.said());
        }
        // What went meanwhile is told once it can be seen.
        mode(&bench, 0o700);
        fs::remove_file(bench.path("d/gone")).unwrap();
        bench.tick(15.0);
        assert_eq!(all(&bench), [QUEUED; 3], "{}", bench.said());
        assert_eq!(bench.stands("d/gone"), [(State::Quarantined, Some(ErrorClass::FileGone))]);
    });
}

#[test]
fn a_file_that_cannot_be_read_is_tried_and_then_set_apart() {
    as_user(|| {
        let mut bench = Bench::new("", "");
        bench.write("a", "1");
        fs::set_permissions(bench.path("a"), fs::Permissions::from_mode(0o0)).unwrap();
        assert!(fs::read(bench.path("a")).is_err());
        bench.tick(LONG);
        assert_eq!(bench.stands("a"), [(State::Waiting, Some(ErrorClass::FileUnreadable))]);
        bench.tick(1000.0);
        assert_eq!(bench.stands("a"), [(State::Quarantined, Some(ErrorClass::FileUnreadable))]);
    });
}
