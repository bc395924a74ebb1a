//! Quarantine: whatever goes wrong on the way there, what lies in it is listed, counted and released.

use crate::bench::{Bench, LONG, REFUSED};
use crate::skipped::not_here;
use downpour::spool::lies_aside;
use downpour_catalog::{ErrorClass, Move, Next, ReplicaState, State};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;

/// Longer than what a reason's file adds to a name leaves room for, and with room for `.md5`.
const LONG_NAME: usize = 242;

/// A file whose producer says another digest.
fn write_bad(bench: &Bench, name: &str) {
    bench.write(name, "abd");
    bench.write(&format!("{name}.md5"), "900150983cd24fb0d6963f7d28e17f72");
}

/// Sets a queued file apart, as the mover does it.
fn refuse(bench: &Bench, name: &str) {
    let file = bench.newest(name);
    let next = Next::Quarantined(ErrorClass::NameRefused);
    bench.step(Move { file: file.id, at: file.revision, fence: None, next });
}

#[test]
fn a_long_name_has_its_reason_too() {
    let mut bench = Bench::new("", "");
    let long = "n".repeat(LONG_NAME);
    let name = format!("run/{long}");
    write_bad(&bench, &name);
    bench.tick(LONG);
    let file = bench.newest(&name);
    assert_eq!(file.error, Some(ErrorClass::DigestDiffers), "{}", bench.said());
    let [(place, reason)] = bench.spool().quarantine().try_into().unwrap();
    assert_eq!((reason.path.as_str(), reason.file), (name.as_str(), file.id.0));
    assert!(bench.path(&place).exists() && !bench.path(&name).exists());
    let section = toml::from_str(&format!("folder = {:?}", bench.path(""))).unwrap();
    assert!(lies_aside(&[section], &name, file.id.0));
    fs::remove_file(bench.path(&format!("{name}.md5"))).unwrap();
    let now = bench.now();
    bench.spool().release(now, &name).unwrap().unwrap();
    bench.tick(LONG);
    assert_eq!(bench.newest(&name).state, State::Queued, "{}", bench.said());
    assert!(bench.spool().quarantine().is_empty());
}

#[test]
fn what_was_read_and_is_mended_in_quarantine_replaces_what_it_was() {
    let mut bench = Bench::new("", "");
    bench.write("a", "abc");
    bench.tick(LONG);
    refuse(&bench, "a");
    bench.tick(0.5);
    fs::write(bench.path(".quarantine/a"), "mended").unwrap();
    let now = bench.now();
    bench.spool().release(now, "a").unwrap().unwrap();
    bench.tick(LONG);
    let stands = [(State::Cancelled, None), (State::Queued, None)];
    assert_eq!(bench.stands("a"), stands, "{}", bench.said());
    assert_eq!(bench.copy(&bench.versions("a")[0]).0, ReplicaState::Removed);
}

#[test]
fn what_replaced_a_file_before_that_is_set_apart_or_cancelled_is_the_next_version() {
    for is_cancelled in [false, true] {
        // Changes are seen by rescans only.
        let mut bench = Bench::new("network = true", "");
        bench.write("a", "one");
        bench.tick(LONG);
        bench.write(".new", "other");
        fs::rename(bench.path(".new"), bench.path("a")).unwrap();
        let first = match is_cancelled {
            true => (State::Cancelled, None),
            false => (State::Quarantined, Some(ErrorClass::NameRefused)),
        };
        if is_cancelled {
            bench.cancel("a")
        } else {
            refuse(&bench, "a")
        }
        bench.tick(10.0);
        assert!(bench.spool().quarantine().is_empty(), "{}", bench.said());
        assert_eq!(bench.stands("a"), [first, (State::Queued, None)], "{}", bench.said());
        assert_eq!(bench.copy(&bench.versions("a")[0]).0, ReplicaState::Removed);
    }
}

#[test]
fn why_a_file_was_set_apart_while_it_was_moved_is_what_the_mover_said() {
    let mut bench = Bench::new("", "");
    bench.write("a", "abc");
    bench.write("b", "abd");
    bench.tick(LONG);
    refuse(&bench, "a");
    let file = bench.newest("b");
    let next = Next::Quarantined(ErrorClass::VersionConflict);
    bench.step(Move { file: file.id, at: file.revision, fence: None, next });
    bench.tick(LONG);
    let words = bench.spool().quarantine().into_iter().map(|(_, reason)| reason.words());
    let refused = format!("name-refused: {REFUSED}");
    // Of the other one nobody has said anything.
    assert_eq!(words.collect::<Vec<_>>(), [refused.as_str(), "version-conflict"]);
    assert!(bench.said().contains(&format!("in quarantine as .quarantine/a: {refused}")));
}

#[test]
fn what_happened_keeps_its_time_and_is_not_among_what_is_so_now() {
    let mut bench = Bench::new("", "");
    write_bad(&bench, "a");
    let before = bench.now().wall.0;
    bench.tick(LONG);
    let after = bench.now().wall.0;
    bench.tick(LONG);
    let status = bench.spool().status();
    let [notice] = &status.notices[..] else { panic!("{:?}", status.notices) };
    assert!(notice.text.contains("in quarantine"), "{notice:?}");
    assert!((before..after).contains(&notice.at_us), "{before} {notice:?} {after}");
    assert!(status.odd.is_empty(), "{:?}", status.odd);
}

#[test]
fn a_file_whose_reason_cannot_be_written_stays_where_it_is() {
    let mut bench = Bench::new("rescan = '10s'", "");
    fs::create_dir_all(bench.path(".quarantine/a.reason.json.new")).unwrap();
    write_bad(&bench, "a");
    bench.tick(LONG);
    assert_eq!(bench.newest("a").state, State::Quarantined);
    assert!(bench.path("a").exists() && bench.spool().quarantine().is_empty(), "{}", bench.said());
    fs::remove_dir(bench.path(".quarantine/a.reason.json.new")).unwrap();
    bench.tick(LONG);
    assert_eq!(bench.spool().quarantine()[0].1.path, "a", "{}", bench.said());
    assert!(!bench.path("a").exists());
}

#[test]
fn what_lies_in_the_place_of_a_reason_before_it_is_written_goes() {
    let mut bench = Bench::new("", "");
    fs::create_dir(bench.path(".quarantine")).unwrap();
    let (pipe, linked) = (bench.path(".quarantine/a.reason.json.new"), bench.path(".own"));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::write(&linked, "somebody's own").unwrap();
    fs::hard_link(&linked, bench.path(".quarantine/b.reason.json.new")).unwrap();
    for name in ["a", "b"] {
        write_bad(&bench, name);
    }
    bench.tick(LONG);
    let classes = bench.spool().quarantine().into_iter().map(|(_, reason)| reason.class);
    assert_eq!(classes.collect::<Vec<_>>(), ["digest-differs"; 2], "{}", bench.said());
    assert_eq!(fs::read(&linked).unwrap(), b"somebody's own");
}

#[test]
fn a_file_in_the_deepest_folder_that_is_taken_is_set_apart_and_released() {
    let mut bench = Bench::new("", "");
    let deepest = "d/".repeat(64);
    let (name, deeper) = (format!("{deepest}a"), format!("{deepest}d/a"));
    write_bad(&bench, &name);
    bench.write(&deeper, "abc");
    bench.tick(LONG);
    assert!(bench.versions(&deeper).is_empty());
    let places = bench.spool().quarantine().into_iter().map(|(place, _)| place);
    assert_eq!(places.collect::<Vec<_>>(), [format!(".quarantine/{name}")], "{}", bench.said());
    fs::remove_file(bench.path(&format!("{name}.md5"))).unwrap();
    let now = bench.now();
    bench.spool().release(now, &name).unwrap().unwrap();
    bench.tick(LONG);
    assert_eq!(bench.newest(&name).state, State::Queued, "{}", bench.said());
}

#[test]
fn a_file_without_a_reason_is_listed_and_a_reason_without_a_file_is_not() {
    let mut bench = Bench::new("", "release = '1s'");
    write_bad(&bench, "a");
    bench.write("b.reason.json", "somebody's own");
    bench.write("b", "other");
    bench.tick(LONG);
    for name in ["b.reason.json", "b"] {
        refuse(&bench, name);
        bench.tick(0.5);
    }
    let of = |bench: &mut Bench| -> Vec<_> {
        let listed = bench.spool().quarantine();
        listed.into_iter().map(|(_, reason)| (reason.path, reason.class)).collect()
    };
    let refused = |name: &str| (name.to_owned(), "name-refused".to_owned());
    let differs = ("a".to_owned(), "digest-differs".to_owned());
    let all = of(&mut bench);
    assert_eq!(all.len(), 3, "{all:?}");
    for one in [refused("b"), refused("b.reason.json"), differs] {
        assert!(all.contains(&one), "{all:?}");
    }
    assert_eq!(fs::read(bench.path(".quarantine/b.reason.json")).unwrap(), b"somebody's own");
    fs::rename(bench.path(".quarantine/a.reason.json"), bench.path(".quarantine/c.reason.json"))
        .unwrap();
    let all = of(&mut bench);
    assert!(all.len() == 3 && all.contains(&("a".to_owned(), "unknown".to_owned())), "{all:?}");
    fs::remove_file(bench.path("a.md5")).unwrap();
    let now = bench.now();
    bench.spool().release(now, "a").unwrap().unwrap();
    bench.tick(LONG);
    assert_eq!(bench.newest("a").state, State::Queued, "{}", bench.said());
}

/// Reads that this thread has asked for.
fn reads() -> Option<u64> {
    let io = fs::read_to_string("/proc/thread-self/io").ok()?;
    let line = io.lines().find_map(|line| line.strip_prefix("syscr:"))?;
    line.trim().parse().ok()
}

#[test]
fn what_each_file_costs_that_is_set_apart_does_not_grow_with_their_number() {
    const MANY: usize = 200;
    let mut bench = Bench::new("rescan = '10h'", "release = '100h'");
    let mut costs = Vec::new();
    for batch in 0..2 {
        let names: Vec<_> = (0..MANY).map(|n| format!("{batch}/{n}")).collect();
        for name in &names {
            bench.write(name, "four");
        }
        bench.tick(LONG);
        let before = reads();
        for name in &names {
            refuse(&bench, name);
        }
        bench.tick(0.5);
        costs.push(reads().zip(before).map(|(after, before)| after - before));
        let status = bench.spool().status();
        assert_eq!(status.quarantined, (batch + 1) * MANY, "it is counted at once");
        assert_eq!(status.occupancy.bytes, status.quarantined as u64 * 4);
    }
    match costs[..] {
        [Some(first), Some(second)] => assert!(second < 2 * first, "{first} reads, then {second}"),
        _ => not_here("what_each_file_costs_that_is_set_apart", "reads are not counted here"),
    }
    let now = bench.now();
    bench.spool().release(now, "0/7").unwrap().unwrap();
    bench.tick(0.5);
    assert_eq!(bench.spool().status().quarantined, 2 * MANY - 1);
}
