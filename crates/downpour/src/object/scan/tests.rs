//! Walks over real folders.

use super::{Found, Scan, ScanError, ScanOptions, Walk};
use crate::object::tree::{Extents, Kind, NewKind, Tree};
use crate::skipped::not_here;
use rustix::fs::{Mode, OFlags, Uid, XattrFlags, setxattr};
use std::ffi::OsStr;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn paths(tree: &Tree) -> Vec<Vec<u8>> {
    tree.ids().map(|id| tree.path(id)).collect()
}

fn scan(paths: &[PathBuf]) -> Scan {
    Scan::new(paths, &ScanOptions::default()).unwrap()
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("tree/sub/empty")).unwrap();
    fs::write(at("tree/b"), b"bee").unwrap();
    fs::write(at("tree/sub/a"), b"").unwrap();
    fs::hard_link(at("tree/b"), at("tree/sub/link")).unwrap();
    symlink("../b", at("tree/sub/sym")).unwrap();
    fs::write(dir.path().join("tree").join(OsStr::from_bytes(b"\xff\nname")), b"x").unwrap();
    dir
}

#[test]
fn a_folder_is_sent_by_its_name_and_its_contents_with_a_slash() {
    let dir = folder();
    let by_name = scan(&[dir.path().join("tree")]);
    let expected: Vec<&[u8]> = vec![
        b"tree",
        b"tree/b",
        b"tree/sub",
        b"tree/sub/a",
        b"tree/sub/empty",
        b"tree/sub/link",
        b"tree/sub/sym",
        b"tree/\xff\nname",
    ];
    assert_eq!(paths(by_name.tree()), expected);
    for contents in ["tree/", "tree/.", "tree/sub/.."] {
        let scan = scan(&[dir.path().join(contents)]);
        let inner: Vec<_> = expected[1..].iter().map(|path| path[5..].to_vec()).collect();
        assert_eq!(paths(scan.tree()), inner, "{contents}");
        let id = scan.tree().ids().last().unwrap();
        let path = scan.origin.path(scan.tree(), id);
        assert_eq!(fs::read(path).unwrap(), b"x", "entries are found again on disk");
    }
}

#[test]
fn kinds_and_metadata_are_those_of_the_disk() {
    let dir = folder();
    let scan = scan(&[dir.path().join("tree"), dir.path().join("tree/b")]);
    let tree = scan.tree();
    assert_eq!(tree.path(crate::object::EntryId(0)), b"b", "sorted over all paths");
    for id in tree.ids() {
        let (entry, path) = (tree.entry(id), scan.origin.path(tree, id));
        let meta = fs::symlink_metadata(&path).unwrap();
        match entry.kind {
            Kind::HardLink { to } => {
                let target = fs::metadata(scan.origin.path(tree, to)).unwrap();
                assert_eq!(target.ino(), meta.ino());
            }
            Kind::Symlink { text } => assert_eq!(text, b"../b"),
            Kind::File { size } => assert_eq!(size, meta.len()),
            _ => assert!(meta.is_dir()),
        }
        if !matches!(entry.kind, Kind::HardLink { .. }) {
            assert_eq!(
                (entry.meta.mtime.secs, meta.mtime_nsec()),
                (meta.mtime(), entry.meta.mtime.nanos.into())
            );
        }
    }
    assert_eq!(tree.files(), 3, "b and its two other names are one file");
}

#[test]
fn holes_stay_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let mut file = fs::File::create(&path).unwrap();
    file.seek(SeekFrom::Start(1 << 20)).unwrap();
    file.write_all(&[7; 4096]).unwrap();
    file.set_len(1 << 33).unwrap();
    let scan = scan(&[path]);
    let tree = scan.tree();
    assert_eq!(tree.size(), 1 << 33);
    let data = tree.data_len().unwrap();
    if data == 1 << 33 {
        return not_here("holes_stay_holes", "this file system has no holes");
    }
    assert!(data < 1 << 17, "{data}");
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = folder();
    let missing = dir.path().join("missing");
    let error = Scan::new(std::slice::from_ref(&missing), &ScanOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with("missing: no such file or folder"), "{text}");
    let options = ScanOptions { skip_unreadable: true, ..ScanOptions::default() };
    let scan = Scan::new(&[missing, dir.path().join("tree")], &options).unwrap();
    assert_eq!(scan.notices().len(), 1);
}

#[test]
fn a_folder_that_cannot_be_read_is_named() {
    let of_user = || {
        if rustix::process::geteuid().is_root() {
            // Root reads everything; another user for this thread alone.
            rustix::thread::set_thread_uid(Uid::from_raw(65_534)).unwrap();
        }
        let dir = folder();
        let set = |mode| {
            let closed = fs::Permissions::from_mode(mode);
            fs::set_permissions(dir.path().join("tree/sub"), closed).unwrap();
        };
        set(0o000);
        let scanned = Scan::new(&[dir.path().join("tree")], &ScanOptions::default());
        set(0o700);
        scanned.unwrap_err().to_string()
    };
    let error = std::thread::spawn(of_user).join().unwrap();
    assert!(error.contains("tree/sub: permission denied"), "{error}");
}

/// The walk gets there by folders, which the reading does not.
#[test]
fn what_lies_too_far_from_here_to_be_read_is_told_before_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("near"), b"x").unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
    let name = "n".repeat(250);
    for _ in 0..17 {
        rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, name.as_str(), flags, Mode::empty()).unwrap();
    }
    let far = OFlags::WRONLY | OFlags::CREATE;
    drop(rustix::fs::openat(&at, "far", far, Mode::RUSR).unwrap());
    // Short enough for a receiver, who counts from its own folder.
    let top = dir.path().join(&name).join(&name);
    let error = Scan::new(std::slice::from_ref(&top), &ScanOptions::default()).unwrap_err();
    assert!(error.to_string().contains("send from there"), "{error}");
    let skips = ScanOptions { skip_unreadable: true, ..ScanOptions::default() };
    let scan = Scan::new(&[top, dir.path().join("near")], &skips).unwrap();
    assert_eq!((scan.notices().len(), scan.tree().files()), (1, 1));
}

#[test]
fn the_same_name_twice_is_refused() {
    let dir = folder();
    let twice = [dir.path().join("tree/b"), dir.path().join("tree/sub/../b")];
    let error = Scan::new(&twice, &ScanOptions::default()).unwrap_err();
    assert!(matches!(error, ScanError::Duplicate { .. }), "{error}");
}

#[test]
fn sockets_fifos_and_our_own_folder_are_left_out_by_name() {
    let dir = folder();
    let fifo = dir.path().join("tree/fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("tree/sock")).unwrap();
    fs::create_dir_all(dir.path().join("tree/.downpour/x")).unwrap();
    fs::create_dir_all(dir.path().join("tree/sub/.downpour")).unwrap();
    let scan = scan(&[dir.path().join("tree/")]);
    let notices: Vec<String> = scan.notices().iter().map(ToString::to_string).collect();
    assert_eq!(notices.len(), 3);
    for what in ["fifo: a fifo", "sock: a socket", ".downpour: Downpour's own"] {
        assert!(notices.iter().any(|notice| notice.contains(what)), "{what}: {notices:?}");
    }
    assert!(paths(scan.tree()).contains(&b"sub/.downpour".to_vec()), "only the top one is ours");
}

#[test]
fn what_is_named_and_cannot_be_sent_as_it_lies_is_refused() {
    let dir = folder();
    let fifo = dir.path().join("tree/fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    for (path, what) in [(fifo.as_path(), "a fifo"), (Path::new("/dev/null"), "a character device")]
    {
        let error = Scan::new(&[path.to_owned()], &ScanOptions::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(what) && text.contains("send - <"), "{text}");
    }
}

#[test]
fn extended_attributes_are_taken_when_asked() {
    let dir = folder();
    let path = dir.path().join("tree/b");
    let set = setxattr(&path, "user.note", b"hi", XattrFlags::empty());
    if set.is_err() {
        return not_here("extended_attributes_are_taken_when_asked", "this file system has none");
    }
    let take = |xattrs| {
        let options = ScanOptions { xattrs, ..ScanOptions::default() };
        let scan = Scan::new(&[Path::new(&path).to_owned()], &options).unwrap();
        scan.tree().entry(crate::object::EntryId(0)).xattrs.to_vec()
    };
    assert_eq!(take(false), []);
    assert_eq!(take(true)[0].value, b"hi");
}

#[test]
fn data_that_touch_are_one_extent() {
    let mut extents = Vec::new();
    for (start, end) in [(4096, 8192), (8192, 12_288), (20_480, 24_576), (24_576, 24_580)] {
        super::add_extent(&mut extents, start, end);
    }
    assert_eq!(extents, [(4096, 8192), (20_480, 4100)]);
}

/// As who owns the folder of a tree can do meanwhile.
#[test]
fn attributes_are_those_of_what_was_found_wherever_its_folder_is_by_now() {
    let dir = folder();
    let [tree, other] = ["tree", "other"].map(|name| dir.path().join(name));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b"), b"").unwrap();
    for (path, value) in [(tree.join("b"), b"its"), (other.join("b"), b"not")] {
        if setxattr(&path, "user.note", value, XattrFlags::empty()).is_err() {
            let name = "attributes_are_those_of_what_was_found_wherever_its_folder_is_by_now";
            return not_here(name, "this file system has none");
        }
    }
    let options = ScanOptions { xattrs: true, ..ScanOptions::default() };
    let (folder, mut walk) = (fs::File::open(&tree).unwrap(), Walk::new(&options));
    fs::rename(&tree, dir.path().join("moved")).unwrap();
    symlink(&other, &tree).unwrap();
    let value = |walk: &Walk| {
        walk.xattrs(folder.as_fd(), Path::new("b"), &tree.join("b")).unwrap()[0].value.clone()
    };
    assert_eq!(value(&walk), b"its");
    // Without `/proc` there is only the path.
    walk.has_proc = false;
    assert_eq!(value(&walk), b"not");
}

#[test]
fn what_has_attributes_that_cannot_be_read_is_a_problem_and_not_told_as_without() {
    let dir = folder();
    let path = dir.path().join("tree/b");
    let folder = fs::File::open(dir.path().join("tree")).unwrap();
    let stat = rustix::fs::lstat(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let scan = |skip_unreadable| {
        let options = ScanOptions { xattrs: true, skip_unreadable };
        let mut walk = Walk::new(&options);
        let (folder, at) = (folder.as_fd(), Path::new("b"));
        let found = Found { folder, at, name: b"b", depth: 0, path: &path, stat };
        let kind = NewKind::File { size: 3, extents: Extents::Dense };
        assert!(!walk.push(&found, kind).unwrap());
        walk.finish()
    };
    let refused = scan(false).unwrap_err().to_string();
    assert!(refused.contains("/b: extended attributes: "), "{refused}");
    let skipped = scan(true).unwrap();
    assert_eq!((skipped.tree().len(), skipped.notices().len()), (0, 1));
}
