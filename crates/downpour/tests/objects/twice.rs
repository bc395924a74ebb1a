//! A second run into the same place, and things that are in the way.

use crate::harness::{MIDDLE, Random, SMALL, Sender, assert_same, contents, look_at, pair, write};
use crate::roundtrip::sparse;
use crate::skipped::not_here;
use downpour::object::{Destination, FolderOptions, OpenError, Store, StoreEvent};
use rustix::fs::Uid;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::thread;

fn tree(a: &Path) {
    let mut random = Random(3);
    for i in 0..40 {
        write(a.join(format!("d/{i}")), &random.bytes(9_000));
    }
    write(a.join("big"), &random.bytes(5_000_000));
    write(a.join("empty"), b"");
    sparse(&a.join("holes"), 7 << 20, &[(1 << 20, 4096), (5 << 20, 70_000)]);
    symlink("big", a.join("link")).unwrap();
    fs::hard_link(a.join("big"), a.join("hard")).unwrap();
}

fn overwriting(out: &Path) -> Destination {
    Destination::Folder(FolderOptions { overwrite: true, ..FolderOptions::new(out) })
}

#[test]
fn identical_files_are_not_needed_and_get_their_metadata() {
    let (_dir, a, b) = pair();
    tree(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    let before = fs::metadata(b.join("big")).unwrap().ino();
    fs::set_permissions(b.join("big"), Permissions::from_mode(0o600)).unwrap();
    fs::File::open(b.join("d/7")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let mut again = sender.to_folder(&b);
    again.carry_needed(&sender);
    let data = sender.source.data_len().unwrap();
    let summary = again.summary();
    assert_eq!((summary.bytes_received, summary.bytes_held), (0, data));
    assert_eq!(again.not_needed.len() as u32, sender.data_blocks());
    assert_same(&a, &b);
    assert_eq!(fs::metadata(b.join("big")).unwrap().ino(), before, "not written again");
    let known = again.events().into_iter().find_map(|event| match event {
        StoreEvent::Tree(known) => Some(known),
        _ => None,
    });
    assert!(known.unwrap().candidates);
}

#[test]
fn what_differs_fails_alone_and_is_replaced_only_with_overwrite() {
    let (_dir, a, b) = pair();
    tree(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    write(b.join("d/1"), &[1; 9_000]);
    write(b.join("d/2"), b"another size");
    let mut big = fs::read(b.join("big")).unwrap();
    big[2_500_000] ^= 1;
    fs::remove_file(b.join("hard")).unwrap();
    write(b.join("big"), &big);
    write(b.join("link.new"), b"");
    fs::rename(b.join("link.new"), b.join("link")).unwrap();
    write(b.join("empty"), b"not empty");
    let kept = look_at(&b);

    let mut plain = sender.to_folder(&b);
    plain.carry_needed(&sender);
    let failures = plain.failures();
    let names: Vec<_> = failures.keys().map(String::as_str).collect();
    assert_eq!(names, ["big", "d/1", "d/2", "empty", "hard", "link"]);
    assert!(failures["d/1"].contains("--overwrite"), "{failures:?}");
    assert!(failures["hard"].contains("big"), "{failures:?}");
    for path in ["d/1", "d/2", "big", "link", "empty"] {
        assert_eq!(look_at(&b)[Path::new(path)], kept[Path::new(path)], "{path} is untouched");
    }

    let mut replacing = sender.receiver(overwriting(&b));
    replacing.carry_needed(&sender);
    assert_eq!(replacing.summary().failed, []);
    assert_same(&a, &b);
    let received = replacing.summary().bytes_received;
    assert!(received < 1_048_576 + 30_000, "only the groups that differ: {received}");
}

/// As where there can be no hard links.
#[test]
fn a_copy_in_the_place_of_a_link_is_identical_too() {
    let (_dir, a, b) = pair();
    tree(&a);
    fs::hard_link(a.join("holes"), a.join("zz")).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    for (from, to) in [("big", "hard"), ("holes", "zz")] {
        fs::remove_file(b.join(to)).unwrap();
        fs::copy(b.join(from), b.join(to)).unwrap();
        fs::set_permissions(b.join(to), Permissions::from_mode(0o600)).unwrap();
    }
    let mut again = sender.to_folder(&b);
    again.carry_needed(&sender);
    assert_eq!(again.summary().failed, []);
    for (path, seen) in look_at(&a) {
        let there = &look_at(&b)[&path];
        assert_eq!((there.mode, &there.content), (seen.mode, &seen.content), "{}", path.display());
    }
    fs::OpenOptions::new().write(true).open(b.join("zz")).unwrap().write_at(b"x", 3 << 20).unwrap();
    let mut differs = sender.to_folder(&b);
    differs.carry_needed(&sender);
    assert_eq!(differs.failures().into_keys().collect::<Vec<_>>(), ["zz"]);
}

#[test]
fn holes_that_are_not_empty_are_a_difference() {
    let (_dir, a, b) = pair();
    sparse(&a.join("holes"), 7 << 20, &[(1 << 20, 4096), (5 << 20, 70_000)]);
    let sender = Sender::new(&contents(&a), MIDDLE);
    if sender.source.data_len() == Some(7 << 20) {
        let name = "holes_that_are_not_empty_are_a_difference";
        return not_here(name, "this file system has no holes");
    }
    for at in [0, 3 << 20, (5 << 20) + 200_000, (7 << 20) - 1] {
        fs::create_dir_all(&b).unwrap();
        sparse(&b.join("holes"), 7 << 20, &[(1 << 20, 4096), (5 << 20, 70_000), (at, 1)]);
        let mut plain = sender.to_folder(&b);
        plain.carry_needed(&sender);
        assert_eq!(plain.failures().len(), 1, "{at}");
        let mut replacing = sender.receiver(overwriting(&b));
        replacing.carry_needed(&sender);
        assert_same(&a, &b);
    }
}

#[test]
fn one_changed_file_among_many_costs_one_block_of_which_most_is_seeded() {
    let (_dir, a, b) = pair();
    let mut random = Random(3);
    for i in 0..40 {
        write(a.join(format!("{i:02}")), &random.bytes(9_000));
    }
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    fs::remove_file(b.join("05")).unwrap();
    let mut receiver = sender.to_folder(&b);
    let manifest = (0..sender.sections.len() as u32)
        .map(|n| downpour_proto::BlockId::manifest(n).unwrap())
        .collect();
    receiver.carry(&sender, manifest);
    let block = downpour_proto::BlockId::data(0).unwrap();
    let genuine = sender.block(block);
    let mut buf = vec![0; genuine.len()];
    let ranges = downpour_transport::BlockSink::seed(&receiver.store, block, &mut buf);
    // File 5 is bytes 45,000 to 54,000: symbols 31 to 37 of 1440 bytes hold some of them.
    assert_eq!(ranges, [0..31, 38..250]);
    for range in ranges {
        let bytes = usize::from(range.start) * 1440..usize::from(range.end) * 1440;
        assert_eq!(buf[bytes.clone()], genuine[bytes]);
    }
    receiver.carry_needed(&sender);
    assert_same(&a, &b);
}

#[test]
fn the_last_symbol_is_seeded_with_its_padding() {
    let (_dir, a, b) = pair();
    write(a.join("x"), &Random(1).bytes(1_000));
    write(a.join("y"), &Random(2).bytes(1_000));
    let sender = Sender::new(&contents(&a), SMALL);
    sender.to_folder(&b).carry(&sender, sender.order());
    fs::remove_file(b.join("x")).unwrap();
    let receiver = sender.to_folder(&b);
    for n in 0..2 {
        let id = downpour_proto::BlockId::manifest(n).unwrap();
        downpour_transport::BlockSink::accept(&receiver.store, id, &sender.block(id));
    }
    let mut buf = vec![0; 8 * 256];
    let block = downpour_proto::BlockId::data(0).unwrap();
    let ranges = downpour_transport::BlockSink::seed(&receiver.store, block, &mut buf);
    assert_eq!(ranges, std::iter::once(4..8).collect::<Vec<_>>());
}

#[test]
fn things_in_the_way_fail_what_they_block_and_nothing_else() {
    let (dir, a, b) = pair();
    write(a.join("folder/x"), b"x");
    write(a.join("file"), b"f");
    write(a.join("links/x"), b"x");
    write(a.join("good"), b"g");
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    write(b.join("folder"), b"a file where a folder should be");
    fs::create_dir_all(b.join("file")).unwrap();
    symlink(&outside, b.join("links")).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.receiver(overwriting(&b));
    receiver.carry_needed(&sender);
    let failures = receiver.failures();
    let names: Vec<_> = failures.keys().map(String::as_str).collect();
    assert_eq!(names, ["file", "folder", "folder/x", "links", "links/x"]);
    assert!(failures["links"].contains("symbolic link"), "{failures:?}");
    assert_eq!(fs::read(b.join("good")).unwrap(), b"g");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "nothing goes through the link");
}

#[test]
fn a_read_only_folder_is_received_again() {
    let (_dir, a, b) = pair();
    write(a.join("d/old"), b"old");
    fs::set_permissions(a.join("d"), Permissions::from_mode(0o555)).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    fs::set_permissions(a.join("d"), Permissions::from_mode(0o755)).unwrap();
    write(a.join("d/new"), b"new");
    fs::set_permissions(a.join("d"), Permissions::from_mode(0o555)).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.carry_needed(&sender);
    assert_eq!(receiver.summary().failed, []);
    assert_same(&a, &b);
    for root in [&a, &b] {
        fs::set_permissions(root.join("d"), Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn contents_of_a_read_only_folder_are_received_again_by_who_is_not_root() {
    let (dir, a, b) = pair();
    let user = Uid::from_raw(65_534);
    let root = rustix::process::geteuid().is_root();
    if root {
        fs::create_dir(&b).unwrap();
        [dir.path(), &b].iter().for_each(|at| chown(at, Some(65_534), None).unwrap());
    }
    let mode = |at: &Path| fs::metadata(at).unwrap().permissions().mode() & 0o7777;
    let receive = |paths: &[PathBuf]| {
        let sender = Sender::new(paths, MIDDLE);
        let of_user = || {
            // Another user for this thread alone.
            if root {
                rustix::thread::set_thread_uid(user).unwrap();
            }
            let mut receiver = sender.to_folder(&b);
            assert_eq!(mode(&b) & 0o700, 0o700);
            receiver.carry_needed(&sender);
            assert_eq!(receiver.summary().failed, []);
        };
        thread::scope(|scope| scope.spawn(of_user).join().unwrap());
    };
    write(a.join("old"), b"old");
    for name in ["new", "newer"] {
        fs::set_permissions(&a, Permissions::from_mode(0o555)).unwrap();
        receive(&contents(&a));
        let there = fs::read_dir(&b).unwrap().count();
        assert_eq!((mode(&b), there), (0o555, fs::read_dir(&a).unwrap().count()));
        fs::set_permissions(&a, Permissions::from_mode(0o755)).unwrap();
        write(a.join(name), name.as_bytes());
    }
    // Its sender tells nothing of the target: it has its mode again.
    receive(&[a.join("newer")]);
    assert_eq!(fs::read(b.join("newer")).unwrap(), b"newer");
    assert_eq!((mode(&b), b.join(".downpour").exists()), (0o555, false));
    fs::set_permissions(&b, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_read_only_target_gets_the_mode_that_is_told_also_where_something_of_ours_stays() {
    let (dir, a, b) = pair();
    write(a.join("f"), b"f");
    fs::create_dir(&b).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        [dir.path(), &b].iter().for_each(|at| chown(at, Some(65_534), None).unwrap());
    }
    fs::set_permissions(&b, Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(&a, Permissions::from_mode(0o755)).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let of_user = || {
        // Another user for this thread alone.
        if root {
            rustix::thread::set_thread_uid(Uid::from_raw(65_534)).unwrap();
        }
        let mut receiver = sender.to_folder(&b);
        // Not one of its own: the folder of partial files is not removed.
        fs::create_dir(b.join(".downpour/parts/other")).unwrap();
        receiver.carry_needed(&sender);
        assert_eq!(receiver.summary().failed, []);
    };
    thread::scope(|scope| scope.spawn(of_user).join().unwrap());
    assert!(b.join(".downpour/parts/other").exists());
    assert_eq!(fs::metadata(&b).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn two_receivers_cannot_run_into_one_folder() {
    let (_dir, a, b) = pair();
    write(a.join("f"), b"f");
    let sender = Sender::new(&contents(&a), MIDDLE);
    let first = sender.to_folder(&b);
    let second = Store::open(sender.config(), Destination::Folder(FolderOptions::new(&b)), |_| {});
    let error = second.err().unwrap();
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    assert!(error.to_string().contains("another receiver"), "{error}");
    drop(first);
    sender.to_folder(&b).carry(&sender, sender.order());
    assert_same(&a, &b);
}

#[test]
fn a_target_that_cannot_be_written_says_so() {
    let (_dir, a, b) = pair();
    write(a.join("f"), b"f");
    let sender = Sender::new(&contents(&a), MIDDLE);
    write(&b, b"a file");
    let opened = Store::open(sender.config(), Destination::Folder(FolderOptions::new(&b)), |_| {});
    let text = opened.err().unwrap().to_string();
    assert!(text.starts_with("cannot write to "), "{text}");
}
