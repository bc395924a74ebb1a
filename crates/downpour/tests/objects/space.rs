//! Disks that are full.

use crate::harness::{MIDDLE, Random, Sender, assert_same, contents, pair, write};
use crate::skipped::skipped;
use downpour::object::{Destination, FolderOptions, StoreEvent, StoreFailure};
use downpour_transport::{Accepted, BlockSink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system, unmounted with the test.
pub(crate) struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    pub(crate) fn mount(at: &'a Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "downpour-test"])
            .arg(at)
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn too_little_space_is_said_before_the_start() {
    let (_dir, a, b) = pair();
    let Some(_mounted) = Tmpfs::mount(&b, "4m") else {
        return skipped("too_little_space_is_said_before_the_start", "needs root to mount a tmpfs");
    };
    write(a.join("file"), &Random(1).bytes(6 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let receiver = sender.to_folder(&b);
    let mut answers = Vec::new();
    for id in sender.order() {
        answers.push(receiver.store.accept(id, &sender.block(id)));
    }
    assert!(answers.iter().all(|answer| *answer == Accepted::Failed), "{answers:?}");
    let failure = receiver.store.failure().unwrap();
    let StoreFailure::DiskFull { needed: Some(needed), available: Some(available), .. } = failure
    else {
        panic!("{failure:?}");
    };
    assert!(needed > available);
    assert!(failure.to_string().contains("Make room"), "{failure}");
}

#[test]
fn a_disk_that_fills_on_the_way_fails_clearly_and_resumes() {
    let (_dir, a, b) = pair();
    let Some(_mounted) = Tmpfs::mount(&b, "16m") else {
        let name = "a_disk_that_fills_on_the_way_fails_clearly_and_resumes";
        return skipped(name, "needs root to mount a tmpfs");
    };
    write(a.join("file"), &Random(1).bytes(6 << 20));
    for i in 0..30 {
        write(a.join(format!("small{i}")), &Random(1).bytes(60_000));
    }
    let sender = Sender::new(&contents(&a), MIDDLE);
    let receiver = sender.to_folder(&b);
    let order = sender.order();
    for id in &order[..10] {
        assert_eq!(receiver.store.accept(*id, &sender.block(*id)), Accepted::Kept);
    }
    // Somebody else takes all the room that is left, reserve or not.
    let hog = std::fs::File::create(b.join("hog")).unwrap();
    let step = |at: u64| rustix::fs::fallocate(&hog, rustix::fs::FallocateFlags::empty(), at, 4096);
    let fill = |from: u64| (from..).find(|i| step(i * 4096).is_err()).unwrap();
    let mut filled = fill(0);
    let mut failed = false;
    for id in &order[10..] {
        failed |= receiver.store.accept(*id, &sender.block(*id)) == Accepted::Failed;
        filled = fill(filled);
    }
    assert!(failed);
    let events = receiver.events();
    let failures: Vec<_> = events.iter().filter(|e| matches!(e, StoreEvent::Failed(_))).collect();
    assert!(
        matches!(failures[..], [StoreEvent::Failed(StoreFailure::DiskFull { .. })]),
        "{failures:?}"
    );
    drop(receiver);
    std::fs::remove_file(b.join("hog")).unwrap();
    drop(hog);
    let mut again = sender.to_folder(&b);
    again.carry_needed(&sender);
    assert_same(&a, &b);
    assert!(again.summary().bytes_held > 1 << 20);
}

/// A file anywhere below, by its path and length.
fn find(folder: &Path, wanted: fn(&Path, u64) -> bool) -> Option<PathBuf> {
    std::fs::read_dir(folder).unwrap().flatten().find_map(|entry| match entry.metadata().ok()? {
        meta if meta.is_dir() => find(&entry.path(), wanted),
        meta => wanted(&entry.path(), meta.len()).then(|| entry.path()),
    })
}

/// Killed when its room was taken and nothing had arrived: the next attempt does not ask for as much again.
#[test]
fn room_that_an_empty_part_holds_does_not_lack() {
    let (_dir, a, b) = pair();
    let Some(_mounted) = Tmpfs::mount(&b, "10m") else {
        let name = "room_that_an_empty_part_holds_does_not_lack";
        return skipped(name, "needs root to mount a tmpfs");
    };
    write(a.join("file"), &Random(1).bytes(6 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let receiver = sender.to_folder(&b);
    let made = sender.order().into_iter().find_map(|id| {
        assert_eq!(receiver.store.accept(id, &sender.block(id)), Accepted::Kept);
        find(&b, |_, len| len == 6 << 20)
    });
    drop(receiver);
    // As a file system does that can allocate beforehand; and the journal knows nothing of it.
    let journal = find(&b, |path, _| path.ends_with("journal")).expect("a journal");
    std::fs::remove_file(journal).unwrap();
    let part = std::fs::File::options().write(true).open(made.expect("a part")).unwrap();
    rustix::fs::fallocate(&part, rustix::fs::FallocateFlags::empty(), 0, 6 << 20).unwrap();
    drop(part);
    let mut again = sender.to_folder(&b);
    again.carry_needed(&sender);
    assert_same(&a, &b);
    assert_eq!(again.summary().bytes_held, 0);
}

#[test]
fn a_mount_below_the_target_is_reached_by_copy() {
    let (_dir, a, b) = pair();
    let inner = b.join("inner");
    let Some(_mounted) = Tmpfs::mount(&inner, "40m") else {
        let name = "a_mount_below_the_target_is_reached_by_copy";
        return skipped(name, "needs root to mount a tmpfs");
    };
    write(a.join("inner/file"), &Random(1).bytes(3 << 20));
    write(a.join("inner/small"), b"small");
    crate::roundtrip::sparse(&a.join("inner/holes"), 5 << 20, &[(3 << 20, 9)]);
    std::fs::hard_link(a.join("inner/file"), a.join("inner/link")).unwrap();
    std::os::unix::fs::symlink("file", a.join("inner/sym")).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_eq!(receiver.summary().failed, []);
    assert_same(&a, &b);
    // Replacing goes across as well, links too.
    write(inner.join("small"), b"SMALL");
    std::fs::remove_file(inner.join("sym")).unwrap();
    std::os::unix::fs::symlink("elsewhere", inner.join("sym")).unwrap();
    let options = FolderOptions { overwrite: true, ..FolderOptions::new(&b) };
    let mut receiver = sender.receiver(Destination::Folder(options));
    receiver.carry_needed(&sender);
    assert_eq!(receiver.summary().failed, []);
    assert_same(&a, &b);
}

#[test]
fn a_read_only_target_says_so() {
    let (_dir, a, b) = pair();
    let Some(_mounted) = Tmpfs::mount(&b, "4m") else {
        return skipped("a_read_only_target_says_so", "needs root to mount a tmpfs");
    };
    write(a.join("file"), b"x");
    let sender = Sender::new(&contents(&a), MIDDLE);
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(&b).status();
    assert!(remount.unwrap().success());
    let opened = downpour::object::Store::open(
        sender.config(),
        Destination::Folder(FolderOptions::new(&b)),
        |_| {},
    );
    let text = opened.err().unwrap().to_string();
    assert!(text.contains("cannot write to"), "{text}");
}
