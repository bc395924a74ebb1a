//! A file is given up while another thread is about to complete it; a sync fails; a place is on another file system.

use super::{Beneath, FolderOptions, FolderTarget, Mutex};
use crate::object::group::{GroupData, KnownGroup, group_digest};
use crate::object::journal::{Boot, Journal};
use crate::object::place::Obstacle;
use crate::object::scan::{Scan, ScanOptions};
use crate::object::store::StoreFailure;
use crate::object::store::target::{Fault, Target};
use crate::object::tree::{EntryId, Tree};
use crate::receipt::tests::Mounted;
use crate::skipped::{not_here, skipped};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, Uid};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::sync::Arc;
use std::thread;

fn scan(path: &Path) -> Arc<Tree> {
    Arc::new(Scan::new(&[path.to_owned()], &ScanOptions::default()).unwrap().into_parts().0)
}

/// The groups of a file of which this is the content, and no other file has any.
fn groups<'a>(
    tree: &'a Tree,
    id: EntryId,
    content: &'a [u8],
) -> impl Iterator<Item = (KnownGroup, GroupData<'a>)> {
    groups_of(tree, id, content, content.len() as u64)
}

/// The same of one with holes: what it has beside them, and its size.
fn groups_of<'a>(
    tree: &'a Tree,
    id: EntryId,
    content: &'a [u8],
    len: u64,
) -> impl Iterator<Item = (KnownGroup, GroupData<'a>)> {
    let layout = tree.layout();
    let before = layout.group(tree.groups_of(id).start).data.start;
    tree.groups_of(id).map(move |number| {
        let group = layout.group(number);
        let of_file = (group.data.start - before) as usize..(group.data.end - before) as usize;
        let bytes = &content[of_file];
        let digest = group_digest(layout, &group, len, bytes);
        (KnownGroup { number, group, file_len: len, digest }, GroupData::whole(bytes))
    })
}

#[test]
fn what_was_given_up_is_not_placed() {
    for in_place in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let content = vec![7; 1_500_000];
        fs::write(&a, &content).unwrap();
        fs::create_dir(&b).unwrap();
        if in_place {
            fs::copy(&a, b.join("a")).unwrap();
        }
        let tree = scan(&a);
        let (id, len) = (EntryId(0), content.len() as u64);
        let groups: Vec<_> = groups(&tree, id, &content).collect();
        assert_eq!(groups.len(), 2);

        let target = FolderTarget::open(FolderOptions::new(&b)).unwrap();
        target.start(&tree).unwrap();
        let all: Vec<_> = groups.iter().map(|(known, _)| known.clone()).collect();
        assert_eq!(target.held(&all).unwrap().groups.len(), if in_place { 2 } else { 0 });
        for (known, data) in groups.iter().filter(|_| !in_place) {
            target.write(known, *data).unwrap();
        }
        target.abandon(id);
        let (known, data) = &groups[0];
        assert!(matches!(target.complete(id, len), Err(Fault::Object(_))));
        assert!(matches!(target.write(known, *data), Err(Fault::Object(_))));
        assert_eq!(fs::read(b.join("a")).ok(), in_place.then_some(content));
        assert_eq!(fs::read_dir(b.join(".downpour/parts")).unwrap().count(), 0);
    }
}

/// Where a file system calls everything data they would be read for as long as they are.
#[test]
fn only_the_holes_of_a_part_that_was_there_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size, hole) = (dir.path().join("a"), 3 << 20, 1 << 20..2 << 20);
    let (file, content) = (fs::File::create(&a).unwrap(), vec![7; 2 << 20]);
    for at in [0, hole.end] {
        file.write_all_at(&content[..1 << 20], at).unwrap();
    }
    let (tree, id) = (scan(&a), EntryId(0));
    if tree.layout().data_len() != 2 << 20 {
        let name = "only_the_holes_of_a_part_that_was_there_are_looked_at";
        return not_here(name, "this file system has no holes");
    }
    let groups: Vec<_> = groups_of(&tree, id, &content, size).collect();
    let all: Vec<_> = groups.iter().map(|(known, _)| known.clone()).collect();
    for was_there in [false, true] {
        let b = dir.path().join(format!("b{was_there}"));
        let open = || {
            let target = FolderTarget::open(FolderOptions::new(&b)).unwrap();
            target.start(&tree).unwrap();
            let held = target.held(&all).unwrap().groups.len();
            (target, held)
        };
        let (mut target, mut held) = open();
        assert_eq!(held, 0);
        groups.iter().for_each(|(known, data)| target.write(known, *data).unwrap());
        if was_there {
            drop(target);
            (target, held) = open();
            assert_eq!(held, 2);
        }
        let part = fs::read_dir(b.join(".downpour/parts")).unwrap().next().unwrap().unwrap();
        let part = fs::File::options().write(true).open(part.path()).unwrap();
        part.write_all_at(b"x", hole.start).unwrap();
        target.complete(id, size).unwrap();
        assert_eq!(fs::read(b.join("a")).unwrap()[hole.start as usize] == 0, was_there);
    }
}

/// Files are there with a mode that does not let their owner read them.
fn receive_over_unreadable(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    for (folder, mode) in [(&a, 0o644), (&b.join("a"), 0)] {
        fs::create_dir_all(folder).unwrap();
        for (name, content) in [("empty", ""), ("x", "content")] {
            fs::write(folder.join(name), content).unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
        }
    }
    let (tree, options) = (scan(&a), FolderOptions::new(&b));
    let x = id_of(&tree, "a/x");
    let known: Vec<_> = groups(&tree, x, b"content").map(|(known, _)| known).collect();
    let target = FolderTarget::open(options.clone()).unwrap();
    target.start(&tree).unwrap();
    let held = target.held(&known).unwrap();
    let failed = [held.failed, target.finish(&|id| id == x, &|_, _| {}).unwrap().failed].concat();
    for ((_, why), name) in failed.iter().zip(["a/x", "a/empty"]) {
        assert!(why.text.starts_with(&format!("opening {name}: ")), "{}", why.text);
    }
    assert_eq!(failed.len(), 2);
    drop(target);
    let options = FolderOptions { overwrite: true, ..options };
    assert_eq!(receive((&tree, b"content"), &options, true), (0, true));
    for (name, content) in [("empty", ""), ("x", "content")] {
        assert_eq!(fs::read_to_string(b.join("a").join(name)).unwrap(), content);
    }
}

#[test]
fn what_is_there_and_cannot_be_read_is_told_as_that_and_replaced_where_it_may_be() {
    let dir = tempfile::tempdir().unwrap();
    as_user(dir.path(), || receive_over_unreadable(dir.path()));
}

/// Receives `tree`, whose files are all of this content. Returns how many of its groups were held, and whether it
/// succeeded.
fn receive(
    (tree, content): (&Arc<Tree>, &[u8]),
    options: &FolderOptions,
    is_synced: bool,
) -> (usize, bool) {
    let mut target = FolderTarget::open(options.clone()).unwrap();
    target.start(tree).unwrap();
    let mut held_in_all = 0;
    let files = || tree.ids().filter(|id| !tree.groups_of(*id).is_empty());
    let is_there = |id| options.out.join(Path::new(OsStr::from_bytes(&tree.path(id)))).exists();
    let there: Vec<bool> = files().map(is_there).collect();
    for id in files() {
        let groups: Vec<_> = groups(tree, id, content).collect();
        let known: Vec<_> = groups.iter().map(|(known, _)| known.clone()).collect();
        let held = target.held(&known).unwrap().groups;
        held_in_all += held.len();
        for (known, data) in groups.iter().filter(|(known, _)| !held.contains(&known.number)) {
            target.write(known, *data).unwrap();
        }
        target.complete(id, content.len() as u64).unwrap();
    }
    if !is_synced {
        // The system syncs nothing by such a one.
        let out = rustix::fs::open(&options.out, OFlags::PATH, Mode::empty()).unwrap();
        let ready = target.ready.get_mut().unwrap();
        ready.placer.beneath = Beneath::new(Arc::new(out), tree.clone());
    }
    let is_done = target.finish(&|_| false, &|_, _| {}).is_ok();
    if is_done {
        let was_there: Vec<bool> = files().map(|id| !target.has_put(id)).collect();
        assert_eq!(was_there, there);
    }
    (held_in_all, is_done)
}

/// The same three times, as who owns all: a sync fails, then none does.
fn receive_again(dir: &Path, lane: Option<&str>, size: usize) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::create_dir(&a).unwrap();
    let content = vec![7; size];
    ["new", "old"].iter().for_each(|name| fs::write(a.join(name), &content).unwrap());
    fs::hard_link(a.join("new"), a.join("second")).unwrap();
    fs::create_dir_all(b.join("a")).unwrap();
    fs::copy(a.join("old"), b.join("a/old")).unwrap();
    let set_mode = |at: &Path, mode| fs::set_permissions(at, Permissions::from_mode(mode)).unwrap();
    // Its copy is that, too, before the last sync.
    set_mode(&a, 0o555);
    let options = FolderOptions { lane: lane.map(str::to_owned), ..FolderOptions::new(&b) };
    let (tree, of_one) = (scan(&a), size.div_ceil(1 << 20));
    let receive = |is_synced| receive((&tree, &content), &options, is_synced);
    let there = || {
        let there = ["new", "second", "old"].map(|name| fs::read(b.join("a").join(name)));
        there.map(|read| read.is_ok_and(|read| read == content))
    };
    assert_eq!(receive(false), (of_one, false), "one of two is there");
    assert_eq!(there(), [false, false, true], "what was there before stays");
    assert_eq!(receive(true), (of_one, true));
    assert_eq!(there(), [true; 3]);
    assert_eq!(receive(true), (2 * of_one, true));
    let mode = fs::metadata(b.join("a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o555);
    [&a, &b.join("a")].iter().for_each(|at| set_mode(at, 0o755));
}

#[test]
fn what_could_not_be_synced_comes_again_also_in_a_read_only_folder_of_who_is_not_root() {
    for lane in [None, Some("lane")] {
        for size in [10, 1_500_000] {
            let dir = tempfile::tempdir().unwrap();
            as_user(dir.path(), || receive_again(dir.path(), lane, size));
        }
    }
}

#[test]
fn what_cannot_be_taken_back_after_a_sync_failed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("x"), b"content").unwrap();
    let (tree, options) = (scan(&a), FolderOptions::new(&b));
    for (is_let_go, is_forgotten) in [(true, true), (true, false), (false, false)] {
        let mut target = FolderTarget::open(options.clone()).unwrap();
        target.start(&tree).unwrap();
        for (known, data) in groups(&tree, EntryId(1), b"content") {
            target.write(&known, data).unwrap();
        }
        target.complete(EntryId(1), 7).unwrap();
        // The system syncs nothing by such a one.
        let out = rustix::fs::open(&b, OFlags::PATH, Mode::empty()).unwrap();
        let ready = target.ready.get_mut().unwrap();
        ready.placer.beneath = Beneath::new(Arc::new(out), tree.clone());
        if !is_let_go {
            fs::remove_dir(b.join(".downpour/parts")).unwrap();
        }
        if !is_forgotten {
            let journal = rustix::fs::memfd_create("journal", MemfdFlags::ALLOW_SEALING).unwrap();
            let (of_journal, boot) = (journal.try_clone().unwrap(), Boot::here(&journal));
            target.journal = Mutex::new(Journal::open(of_journal, boot).unwrap());
            rustix::fs::fcntl_add_seals(&journal, SealFlags::SHRINK).unwrap();
        }
        let Err(StoreFailure::Target(told)) = target.finish(&|_| false, &|_, _| {}) else {
            panic!("it is synced");
        };
        let seen = ["comes again", "is a/x", "once .downpour/parts is", "remove .downpour/parts"];
        let seen = seen.map(|text| told.contains(text));
        let is_once = is_let_go && !is_forgotten;
        assert_eq!(seen, [is_let_go, !is_let_go, is_once, !is_let_go], "{told}");
    }
}

/// Does something in a folder as who is not root, and owns it.
fn as_user(dir: &Path, act: impl FnOnce() + Send) {
    let (root, user) = (rustix::process::geteuid().is_root(), 65_534);
    if root {
        chown(dir, Some(user), None).unwrap();
    }
    let of_user = || {
        // Another user for this thread alone.
        if root {
            rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
        }
        act();
    };
    thread::scope(|scope| scope.spawn(of_user).join().unwrap());
}

fn id_of(tree: &Tree, path: &str) -> EntryId {
    tree.ids().find(|id| tree.path(*id) == path.as_bytes()).unwrap()
}

/// As where the file system does not tell case apart.
#[test]
fn two_names_of_one_file_do_not_replace_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for folder in [&a, &b.join("a")] {
        fs::create_dir_all(folder.join("one")).unwrap();
        fs::create_dir(folder.join("two")).unwrap();
    }
    let Some(_mounted) = Mounted::bind(&b.join("a/one"), &b.join("a/two")) else {
        let name = "two_names_of_one_file_do_not_replace_each_other";
        return skipped(name, "needs root to mount");
    };
    for name in ["one", "two"] {
        fs::write(a.join(name).join("x"), name).unwrap();
        std::os::unix::fs::symlink(name, a.join(name).join("y")).unwrap();
    }
    let tree = scan(&a);
    let failed = |overwrite| {
        let options = FolderOptions { overwrite, ..FolderOptions::new(&b) };
        let failed = FolderTarget::open(options).unwrap().start(&tree).unwrap().failed;
        failed.into_iter().map(|(id, why)| (EntryId(id), why.text)).collect::<Vec<_>>()
    };
    assert_eq!(failed(true), [], "nothing is there");
    fs::write(b.join("a/one/x"), "one").unwrap();
    fs::write(b.join("a/one/y"), "in the way").unwrap();
    let told = failed(true);
    let ids: Vec<_> = told.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["a/two/x", "a/two/y"].map(|path| id_of(&tree, path)));
    assert!(told[0].1.contains("its name from that of a/one/x: rename"), "{told:?}");
    assert_eq!(failed(false), [], "nothing is replaced");
    for name in ["x", "y"] {
        fs::hard_link(b.join("a/one").join(name), b.join("a/one").join(name.repeat(2))).unwrap();
    }
    assert_eq!(failed(true), [], "hard links are files of their own");
}

#[test]
fn the_receivers_own_folder_is_no_folder_of_the_tree_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("lock"), "x").unwrap();
    let target = FolderTarget::open(FolderOptions::new(&b)).unwrap();
    fs::create_dir(b.join("a")).unwrap();
    let Some(_mounted) = Mounted::bind(&b.join(".downpour"), &b.join("a")) else {
        let name = "the_receivers_own_folder_is_no_folder_of_the_tree_whatever_its_name";
        return skipped(name, "needs root to mount");
    };
    let failed = target.start(&scan(&a)).unwrap().failed;
    assert_eq!(failed.len(), 2, "the folder, and what is in it: {failed:?}");
    assert_eq!(failed[0].1.obstacle, Obstacle::Refused);
}

#[test]
fn what_has_come_to_the_place_of_a_link_since_the_start_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("file"), b"content").unwrap();
    fs::hard_link(a.join("file"), a.join("hard")).unwrap();
    std::os::unix::fs::symlink("file", a.join("sym")).unwrap();
    let tree = scan(&a);
    let options = FolderOptions { overwrite: true, ..FolderOptions::new(&b) };
    let target = FolderTarget::open(options).unwrap();
    target.start(&tree).unwrap();
    let file = id_of(&tree, "a/file");
    for (known, data) in groups(&tree, file, b"content") {
        target.write(&known, data).unwrap();
    }
    target.complete(file, 7).unwrap();
    ["hard", "sym"].iter().for_each(|name| fs::write(b.join("a").join(name), b"other").unwrap());
    let failed = target.finish(&|_| false, &|_, _| {}).unwrap().failed;
    let ids: Vec<_> = failed.iter().map(|(id, _)| EntryId(*id)).collect();
    assert_eq!(ids, ["a/hard", "a/sym"].map(|path| id_of(&tree, path)));
    assert!(failed.iter().all(|(_, why)| why.text.contains("since the start")), "{failed:?}");
    for (name, content) in [("file", "content"), ("hard", "other"), ("sym", "other")] {
        assert_eq!(fs::read_to_string(b.join("a").join(name)).unwrap(), content);
    }
}

#[test]
fn partial_files_of_others_stay_where_their_room_would_not_do() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&a, b"content").unwrap();
    let target = FolderTarget::open(FolderOptions::new(&b)).unwrap();
    target.start(&scan(&a)).unwrap();
    let others = b.join(".downpour/parts/others");
    fs::write(&others, b"what has arrived").unwrap();
    let reserved = target.reserve(target.ready.get().unwrap(), 1 << 62);
    assert!(matches!(reserved, Err(StoreFailure::DiskFull { .. })), "{reserved:?}");
    assert!(others.exists());
}

#[test]
fn what_was_put_on_another_file_system_is_told_from_what_was_there() {
    for lane in [None, Some("lane")] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let place = b.join("a");
        [&a, &place].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let Some(_mounted) = Mounted::tmpfs(&place) else {
            let name = "what_was_put_on_another_file_system_is_told_from_what_was_there";
            return skipped(name, "needs root to mount a tmpfs");
        };
        fs::write(a.join("x"), b"content").unwrap();
        let options = FolderOptions { lane: lane.map(str::to_owned), ..FolderOptions::new(&b) };
        let tree = scan(&a);
        for held in [0, 1] {
            assert_eq!(receive((&tree, b"content"), &options, true), (held, true));
            assert_eq!(fs::read(place.join("x")).unwrap(), b"content");
        }
    }
}
