//! Trees of every kind of entry arrive identical, in any order of blocks.

use crate::harness::{MIDDLE, Random, SMALL, Sender, assert_same, contents, look_at, pair, write};
use crate::skipped::{not_here, skipped};
use downpour::object::{Destination, FolderOptions, ScanOptions, StoreEvent};
use downpour_proto::Geometry;
use downpour_transport::{Accepted, BlockSink};
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn set_mtime(path: &Path, secs: u64, nanos: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(secs, nanos);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// One of everything that a file system can hold.
fn everything(a: &Path) {
    let mut random = Random(7);
    for i in 0..60 {
        let len = random.below(30_000) as usize;
        write(a.join(format!("many/{}/{i}", i % 7)), &random.bytes(len));
    }
    write(a.join("empty"), b"");
    fs::create_dir_all(a.join("folders/deep/deeper/deepest")).unwrap();
    write(a.join("exact"), &random.bytes(2 << 20));
    write(a.join("ragged"), &random.bytes((3 << 20) + 12345));
    write(a.join("group"), &random.bytes(1 << 20));
    write(a.join("group+1"), &random.bytes((1 << 20) + 1));
    write(a.join(OsStr::from_bytes(b"new\nline \xff\xfe")), b"not UTF-8");
    write(a.join(OsStr::from_bytes(&[b'n'; 255])), b"long name");
    fs::hard_link(a.join("ragged"), a.join("a hard link")).unwrap();
    fs::hard_link(a.join("ragged"), a.join("zz hard link")).unwrap();
    symlink("../outside", a.join("link out")).unwrap();
    symlink("ragged", a.join("link")).unwrap();
    symlink("/nowhere", a.join("broken")).unwrap();
    sparse(&a.join("holes"), 20 << 20, &[(1 << 20, 5000), (7 << 20, 1 << 20), (15 << 20, 9)]);
    sparse(&a.join("trailing hole"), 9 << 20, &[(0, 100_000)]);
    sparse(&a.join("one hole"), 3 << 20, &[]);
    sparse(&a.join("small hole"), 100_000, &[(50_000, 10)]);
    write(a.join("locked/inner/file"), b"read only");
    fs::set_permissions(a.join("locked/inner/file"), Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(a.join("exact"), Permissions::from_mode(0o751)).unwrap();
    set_mtime(&a.join("ragged"), 1_234_567_890, 123_456_789);
    set_mtime(&a.join("folders/deep"), 1, 1);
    for folder in ["locked/inner", "locked"] {
        set_mtime(&a.join(folder), 1_000_000_000, 999_999_999);
        fs::set_permissions(a.join(folder), Permissions::from_mode(0o555)).unwrap();
    }
}

pub(crate) fn sparse(path: &Path, len: u64, data: &[(u64, u64)]) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    for (at, len) in data {
        file.write_all_at(&vec![0xAB; *len as usize], *at).unwrap();
    }
}

/// So that the temporary folder can be removed by those who are not root.
fn unlock(root: &Path) {
    for folder in ["locked", "locked/inner"] {
        let _ = fs::set_permissions(root.join(folder), Permissions::from_mode(0o755));
    }
}

fn arrives(geometry: Geometry, seed: Option<u64>) {
    let (_dir, a, b) = pair();
    everything(&a);
    let sender = Sender::new(&contents(&a), geometry);
    let mut receiver = sender.to_folder(&b);
    let mut order = sender.order();
    if let Some(seed) = seed {
        Random(seed).shuffle(&mut order);
    }
    receiver.carry(&sender, order);
    let summary = receiver.summary();
    assert_eq!(summary.failed, []);
    assert_eq!(summary.complete, sender.source.tree().len());
    assert_eq!(Some(summary.bytes_received), sender.source.data_len());
    assert_eq!(summary.manifest, sender.source.manifest_digest());
    assert_same(&a, &b);
    for name in ["holes", "trailing hole", "one hole"] {
        let (sent, got) =
            (fs::metadata(a.join(name)).unwrap(), fs::metadata(b.join(name)).unwrap());
        assert!(got.blocks() <= sent.blocks() + 16, "{name}: holes stay holes");
    }
    unlock(&a);
    unlock(&b);
}

/// Sends `paths` to a folder, made before by the receiver if `exists`; what it looks like then.
fn target_after(paths: &[PathBuf], options: FolderOptions, exists: bool) -> (u32, i64, i64) {
    let out = options.out.clone();
    if exists {
        fs::create_dir(&out).unwrap();
        fs::set_permissions(&out, Permissions::from_mode(0o700)).unwrap();
    }
    let sender = Sender::new(paths, SMALL);
    let mut receiver = sender.receiver(Destination::Folder(options));
    receiver.carry(&sender, sender.order());
    assert_eq!(receiver.summary().failed, []);
    let meta = fs::metadata(out).unwrap();
    (meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec())
}

/// As with `rsync -a`, whether the target is there or not: contents bring their folder's mode and time, those
/// of the first folder if there are several; a folder sent by its name brings none. Who keeps folders as they are keeps that one.
#[test]
fn the_target_becomes_as_the_folder_whose_contents_are_sent() {
    let (dir, a, _) = pair();
    let other = dir.path().join("other");
    write(a.join("sub/file"), b"in it");
    write(other.join("another"), b"in the other");
    for (folder, mode, secs) in [(&a, 0o750, 981_173_106), (&other, 0o711, 1_012_694_400)] {
        fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
        set_mtime(folder, secs, 123_456_789);
    }
    let (of_a, of_other) = ((0o750, 981_173_106, 123_456_789), (0o711, 1_012_694_400, 123_456_789));
    let slash = |folder: &Path| folder.join("");
    let cases = [
        (vec![slash(&a)], of_a),
        (vec![a.join(".")], of_a),
        (vec![a.join("sub/..")], of_a),
        (vec![slash(&a), slash(&other)], of_a),
        (vec![slash(&other), slash(&a)], of_other),
        (vec![other.join("another"), slash(&a)], of_a),
    ];
    for (number, (paths, expected)) in cases.iter().enumerate() {
        for exists in [false, true] {
            let out = FolderOptions::new(dir.path().join(format!("out{number}{exists}")));
            assert_eq!(target_after(paths, out, exists), *expected, "{paths:?} {exists}");
        }
    }
    let out = |name: &str| FolderOptions::new(dir.path().join(name));
    let named = target_after(std::slice::from_ref(&a), out("named"), true);
    let kept = FolderOptions { folders: false, ..out("kept") };
    let kept = target_after(&[slash(&a)], kept, true);
    for (mode, secs, _) in [named, kept] {
        assert_eq!(mode, 0o700);
        assert_ne!(secs, of_a.1);
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    set_mtime(&dir.path().join("empty"), 5, 6);
    let empty = target_after(&[slash(&dir.path().join("empty"))], out("none"), false);
    assert_eq!((empty.1, empty.2), (5, 6), "also without entries");
}

#[test]
fn everything_arrives_in_order() {
    arrives(Geometry::IPV4, None);
    arrives(MIDDLE, None);
}

#[test]
fn everything_arrives_in_any_order() {
    for seed in 1..4 {
        arrives(MIDDLE, Some(seed));
    }
    arrives(SMALL, Some(4));
    arrives(Geometry::IPV6, Some(5));
}

#[test]
fn blocks_that_come_twice_do_no_harm() {
    let (_dir, a, b) = pair();
    everything(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    let mut order = sender.order();
    order.extend(sender.order());
    Random(11).shuffle(&mut order);
    receiver.carry(&sender, order);
    assert_same(&a, &b);
    assert_eq!(Some(receiver.summary().bytes_received), sender.source.data_len());
    unlock(&a);
    unlock(&b);
}

#[test]
fn several_threads_may_bring_blocks() {
    let (_dir, a, b) = pair();
    everything(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let receiver = sender.to_folder(&b);
    let mut order = sender.order();
    Random(12).shuffle(&mut order);
    std::thread::scope(|scope| {
        for part in order.chunks(order.len().div_ceil(4)) {
            let (sender, store) = (&sender, &receiver.store);
            scope.spawn(move || {
                for id in part {
                    while store.accept(*id, &sender.block(*id)) == Accepted::Refused {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_same(&a, &b);
    assert_eq!(receiver.summary().failed, []);
    unlock(&a);
    unlock(&b);
}

#[test]
fn little_memory_is_enough() {
    let (_dir, a, b) = pair();
    write(a.join("big"), &Random(1).bytes(12_345_678));
    write(a.join("small"), &Random(2).bytes(300_000));
    sparse(&a.join("holes"), 9 << 20, &[(100, 3 << 20), (7 << 20, 1 << 20)]);
    let sender = Sender::new(&contents(&a), SMALL);
    let mut config = sender.config();
    config.early_bytes_max = 40_000;
    config.pending_bytes_max = 2 << 20;
    for discard in [false, true] {
        let destination = match discard {
            false => Destination::Folder(FolderOptions::new(&b)),
            true => Destination::Discard,
        };
        let mut receiver = crate::harness::Receiver::new(config.clone(), destination);
        let mut order = sender.order();
        if !discard {
            Random(3).shuffle(&mut order);
        }
        receiver.carry(&sender, order);
        assert_eq!(receiver.summary().failed, []);
    }
    assert_same(&a, &b);
}

#[test]
fn a_file_above_four_gib_keeps_its_holes() {
    let (_dir, a, b) = pair();
    let len = (5 << 30) + 77;
    sparse(&a.join("huge"), len, &[(4096, 9000), ((4 << 30) + 5, 3 << 20), (len - 5, 5)]);
    let sender = Sender::new(&contents(&a), Geometry::IPV4);
    if sender.source.data_len() == Some(len) {
        let name = "a_file_above_four_gib_keeps_its_holes";
        return not_here(name, "this file system has no holes");
    }
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_same(&a, &b);
    assert!(fs::metadata(b.join("huge")).unwrap().blocks() * 512 < 8 << 20);
}

#[test]
fn a_tiny_session_is_three_small_blocks() {
    let (_dir, a, b) = pair();
    write(a.join("tiny"), &[1; 133]);
    let sender = Sender::new(&[a.join("tiny")], Geometry::IPV4);
    let order = sender.order();
    let symbols: Vec<_> = order.iter().map(|id| sender.source.symbols(*id)).collect();
    assert_eq!(symbols, [Some(1); 3]);
    sender.to_folder(&b).carry(&sender, order);
    assert_same(&a, &b);
}

#[test]
fn nothing_at_all_is_a_session_too() {
    let (_dir, a, b) = pair();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_eq!(receiver.summary().complete, 0);
    assert_same(&a, &b);
    write(a.join("x/empty"), b"");
    let sender = Sender::new(&[a.join("x")], MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_same(&a, &b);
}

#[test]
fn the_manifest_is_small() {
    let (_dir, a, _) = pair();
    write(a.join("f"), &Random(5).bytes(40 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let len: usize = sender.sections.iter().map(|section| sender.section_len(section)).sum();
    assert!(len < 40 * 32 + 1000, "32 KB for each GiB: {len}");
}

#[test]
fn setuid_needs_root_and_a_word() {
    let (_dir, a, b) = pair();
    write(a.join("tool"), b"#!");
    fs::set_permissions(a.join("tool"), Permissions::from_mode(0o6755)).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_eq!(fs::metadata(b.join("tool")).unwrap().mode() & 0o7777, 0o755);
    if !rustix::process::geteuid().is_root() {
        return skipped("setuid_needs_root_and_a_word", "needs root");
    }
    let options = FolderOptions { setuid: true, ..FolderOptions::new(&b) };
    let mut receiver = sender.receiver(Destination::Folder(options));
    receiver.carry(&sender, sender.order());
    assert_eq!(fs::metadata(b.join("tool")).unwrap().mode() & 0o7777, 0o6755);
}

#[test]
fn owners_arrive_as_root() {
    if !rustix::process::geteuid().is_root() {
        return skipped("owners_arrive_as_root", "needs root");
    }
    let (_dir, a, b) = pair();
    write(a.join("d/f"), b"x");
    symlink("f", a.join("d/l")).unwrap();
    for path in ["d", "d/f", "d/l"] {
        std::os::unix::fs::lchown(a.join(path), Some(1234), Some(4321)).unwrap();
    }
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    assert_same(&a, &b);
}

/// An ACL as the kernel has it, with these rights of owner, user 1234, group, mask and others.
fn acl([owner, user, group, mask, others]: [u8; 5]) -> Vec<u8> {
    let [all, one] = [[255; 4], [210, 4, 0, 0]];
    let entry = |tag: u8, rights: u8, whose: [u8; 4]| [&[tag, 0, rights, 0][..], &whose].concat();
    let entries = [
        entry(1, owner, all),
        entry(2, user, one),
        entry(4, group, all),
        entry(16, mask, all),
        entry(32, others, all),
    ];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

#[test]
fn attributes_arrive_when_asked() {
    let (_dir, a, b) = pair();
    write(a.join("f"), b"x");
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(a.join("f"), name, value, rustix::fs::XattrFlags::empty())
    };
    if set("user.note", b"hello").is_err() {
        return not_here("attributes_arrive_when_asked", "no attributes here");
    }
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let capable = set("security.capability", &capability).is_ok();
    let listed = set("system.posix_acl_access", &acl([6, 4, 4, 4, 0])).is_ok();
    let options = ScanOptions { xattrs: true, ..ScanOptions::default() };
    let mut sender = Sender::scanned(&contents(&a), MIDDLE, &options);
    sender.hash();
    let mut plain = sender.to_folder(&b);
    plain.carry(&sender, sender.order());
    let read = |name: &str| {
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(b.join("f"), name, &mut value[..]).ok()?;
        Some(value[..len].to_vec())
    };
    assert_eq!(read("user.note"), None);
    let options = FolderOptions { xattrs: true, ..FolderOptions::new(&b) };
    let mut receiver = sender.receiver(Destination::Folder(options));
    receiver.carry(&sender, sender.order());
    let notice = |e: &StoreEvent| matches!(e, StoreEvent::Notice { .. });
    assert!(!receiver.events().iter().any(notice), "{:?}", receiver.events());
    assert_eq!(read("user.note").as_deref(), Some(&b"hello"[..]));
    assert_eq!(read("security.capability").is_some(), capable);
    assert_eq!(read("system.posix_acl_access").is_some(), listed);
    assert_same(&a, &b);
}

#[test]
fn a_file_without_its_acl_is_open_to_no_more_people() {
    let acl = acl([6, 6, 0, 6, 0]);
    for (told, set) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_dir, a, b) = pair();
        write(a.join("d/f"), b"x");
        for path in ["", "d", "d/f"] {
            let (path, flags) = (a.join(path), rustix::fs::XattrFlags::empty());
            if rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, flags).is_err() {
                let name = "a_file_without_its_acl_is_open_to_no_more_people";
                return not_here(name, "no ACLs here");
            }
            fs::set_permissions(path, Permissions::from_mode(0o770)).unwrap();
        }
        let options = ScanOptions { xattrs: told, ..ScanOptions::default() };
        let mut sender = Sender::scanned(&contents(&a), MIDDLE, &options);
        sender.hash();
        // Again with what is there then.
        for time in ["once", "twice"] {
            let options = FolderOptions { xattrs: set, ..FolderOptions::new(&b) };
            sender.receiver(Destination::Folder(options)).carry(&sender, sender.order());
            for path in ["", "d", "d/f"] {
                let mode = fs::metadata(b.join(path)).unwrap().mode() & 0o7777;
                let is_equal = told && set;
                assert_eq!(
                    mode,
                    if is_equal { 0o770 } else { 0o700 },
                    "{told} {set} {path} {time}"
                );
            }
        }
    }
}

#[test]
fn attributes_and_acls_are_taken_away_again() {
    const NAME: &str = "attributes_and_acls_are_taken_away_again";
    let (_dir, a, b) = pair();
    write(a.join("d/f"), b"x");
    symlink("f", a.join("d/l")).unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let names = |path: &str| {
        let mut list = [0; 1024];
        let len = rustix::fs::llistxattr(b.join(path), &mut list[..]).unwrap();
        let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    let acl = acl([7, 7, 5, 7, 0]);
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    // What lies at the receiver inherits from the target, and has attributes of its own.
    write(b.join("d/f"), b"x");
    let can = set(&b, default, &acl)
        && ["d", "d/f"].iter().all(|path| set(&b.join(path), access, &acl))
        && set(&b.join("d"), default, &acl)
        && set(&b.join("d/f"), "user.old", b"1");
    if !can {
        return not_here(NAME, "no attributes or ACLs here");
    }
    write(a.join("d/new/g"), b"y");
    assert!(set(&a.join("d/new/g"), "user.kept", b"2"));
    let root = rustix::process::geteuid().is_root();
    if root {
        assert!(set(&b.join("d/f"), "trusted.old", b"4"));
    }
    let receive = |told: bool| {
        let options = ScanOptions { xattrs: told, ..ScanOptions::default() };
        let mut sender = Sender::scanned(&[a.join("d")], MIDDLE, &options);
        sender.hash();
        let options = FolderOptions { xattrs: true, ..FolderOptions::new(&b) };
        let mut receiver = sender.receiver(Destination::Folder(options));
        receiver.carry(&sender, sender.order());
        let notice = |e: &StoreEvent| matches!(e, StoreEvent::Notice { .. });
        assert_eq!(!receiver.events().iter().any(notice), told, "{:?}", receiver.events());
    };
    // A sender that tells none says nothing of them.
    receive(false);
    assert!(names("d/f").contains(&"user.old".to_owned()), "{:?}", names("d/f"));
    receive(true);
    if root {
        // A sender that tells none of these may not see them.
        assert_eq!(names("d/f"), ["trusted.old"]);
        assert!(set(&a.join("d/l"), "trusted.of_link", b"3"));
        receive(true);
    }
    for path in ["d", "d/f", "d/new"] {
        assert_eq!(names(path), [""; 0], "{path}");
    }
    assert_eq!(names("d/new/g"), ["user.kept"]);
    assert_eq!(names("d/l"), if root { &["trusted.of_link"][..] } else { &[] });
    assert_eq!(names(""), [default], "the target is not told of");
    assert_same(&a.join("d"), &b.join("d"));
}

#[test]
fn staging_leaves_no_trace() {
    let (_dir, a, b) = pair();
    write(a.join("f"), &Random(5).bytes(3 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_eq!(look_at(&b).len(), 1);
}
