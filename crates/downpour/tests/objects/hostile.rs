//! Manifests that a publisher signed, and that break the rules: refused, and nothing is written outside.
//! The rules themselves are tested where they are checked; here, that the store keeps to them.

use crate::harness::{SMALL, Sender, contents, pair, write};
use crate::skipped::skipped;
use crate::space::Tmpfs;
use downpour::object::{
    Destination, FolderOptions, ManifestId, Store, StoreConfig, StoreEvent, StoreFailure,
};
use downpour_proto::BlockId;
use downpour_transport::identity::Identity;
use downpour_transport::{Accepted, BlockSink};
use std::sync::{Arc, Mutex};

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// An entry as on the wire: kind, depth, name, content. Modes alternate, as none may be told twice.
fn entry(kind: u8, depth: u64, name: &[u8], mode: u64, content: &[u8]) -> Vec<u8> {
    let mut out = vec![kind | 16];
    out.extend(varint(depth));
    out.push(0);
    out.extend(varint(name.len() as u64));
    out.extend_from_slice(name);
    if kind != 3 {
        out.extend(varint(mode));
    }
    out.extend([0, 0]);
    out.extend_from_slice(content);
    out
}

/// A signed section with this body.
fn section(key: &Identity, body: &[u8], last: bool) -> Vec<u8> {
    let len = 58 + body.len() + 64;
    let mut out = (len as u32).to_be_bytes().to_vec();
    out.push(1);
    out.extend([5; 16]);
    out.extend([0; 4 + 32]);
    out.push(u8::from(last));
    out.extend_from_slice(body);
    let digest = blake3::hash(&out);
    let signature = key.sign("downpour manifest section 1", digest.as_bytes());
    out.extend_from_slice(signature.as_bytes());
    out
}

/// Offers a tree of these entries. Returns what the store says of it.
fn offer(entries: &[Vec<u8>]) -> String {
    offer_as(entries, false)
}

/// The same in a section that may be marked as the manifest's last.
fn offer_as(entries: &[Vec<u8>], last: bool) -> String {
    let (dir, _, out) = pair();
    let key = Identity::generate();
    let mut body = vec![1, 0];
    body.extend(varint(entries.len() as u64));
    body.extend(entries.concat());
    let mut block = section(&key, &body, last);
    let count = block.len().div_ceil(256);
    block.resize(count * 256, 0);
    let config = StoreConfig::new(SMALL, key.public_key(), ManifestId([5; 16]));
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = events.clone();
    let store = Store::open(config, Destination::Folder(FolderOptions::new(&out)), move |event| {
        told.lock().unwrap().push(event);
    })
    .unwrap();
    let mut accepted = Accepted::Kept;
    for (i, part) in block.chunks(SMALL.block_len() as usize).enumerate() {
        accepted = store.accept(BlockId::manifest(i as u32).unwrap(), part);
    }
    assert_eq!(accepted, Accepted::Failed);
    assert_eq!(store.accept(BlockId::data(0).unwrap(), &[0; 256]), Accepted::Failed);
    let events = events.lock().unwrap().clone();
    let [StoreEvent::Failed(StoreFailure::Manifest(error))] = &events[..] else {
        panic!("{events:?}");
    };
    drop(store);
    let outside = std::fs::read_dir(dir.path()).unwrap().count();
    let inside: Vec<_> = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!((outside, inside), (2, vec![".downpour".into()]), "nothing is written");
    error.to_string()
}

#[test]
fn names_that_lead_outside() {
    let file = varint(0);
    for name in
        [&b"../x"[..], b"/etc/passwd", b"..", b".", b"a/../../x", b"a/.", b"", b"a\0b", b"\0"]
    {
        let text = offer(&[entry(1, 0, b"A", 1, &file), entry(1, 0, name, 2, &file)]);
        assert!(text.contains(&downpour::object::printable(name)), "{text}");
        assert!(text.contains("the name is"), "{text}");
        // As a component in the middle of a path.
        let middle =
            [entry(0, 0, b"A", 1, &[]), entry(0, 1, name, 2, &[]), entry(1, 2, b"x", 3, &file)];
        assert!(offer(&middle).contains("the name is"), "{name:?}");
    }
    let text = offer(&[entry(0, 0, b".downpour", 1, &[])]);
    assert!(text.contains("the receiver's own folder"), "{text}");
}

#[test]
fn names_that_come_twice() {
    let (file, mut link) = (varint(0), varint(4));
    link.extend(b"/etc");
    // A name shares all it can with the one before: all of it.
    let again = |kind: u8, content: &[u8]| {
        let mut out = vec![kind | 16];
        out.extend([0, 4, 0]);
        if kind != 3 {
            out.extend(varint(7));
        }
        out.extend([0, 0]);
        out.extend_from_slice(content);
        out
    };
    let first = [
        entry(1, 0, b"same", 1, &file),
        entry(0, 0, b"same", 1, &[]),
        entry(3, 0, b"same", 1, &link),
    ];
    for one in first {
        for two in [again(1, &file), again(0, &[]), again(3, &link)] {
            let text = offer(&[one.clone(), two]);
            assert!(text.contains("same: the path comes twice"), "{text}");
        }
    }
}

#[test]
fn hard_links_to_anything_but_an_earlier_file() {
    let mut link = varint(11);
    link.extend(b"/etc/shadow");
    let hard = |back: u64| {
        let mut out = vec![4, 0, 0, 4];
        out.extend(b"hard");
        out.extend(varint(back));
        out
    };
    // One back is the link out of the target, two back a folder; none and three lie outside of the tree.
    for back in [0, 1, 2, 3, 4, u64::from(u32::MAX)] {
        let entries = [entry(0, 0, b"a", 1, &[]), entry(3, 0, b"b", 0, &link), hard(back)];
        let text = offer(&entries);
        assert!(text.contains("hard: it is a hard link to something"), "{back}: {text}");
    }
}

/// What the first session was allowed to place, the second may not use as a way out.
#[test]
fn a_folder_where_the_session_before_has_placed_a_link() {
    for overwrite in [false, true] {
        let (dir, a, out) = pair();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, a.join("way")).unwrap();
        let first = Sender::new(&contents(&a), SMALL);
        first.to_folder(&out).carry(&first, first.order());
        assert_eq!(std::fs::read_link(out.join("way")).unwrap(), outside);
        std::fs::remove_file(a.join("way")).unwrap();
        write(a.join("way/file"), &[1; 3000]);
        write(a.join("way/deeper/file"), b"small");
        let second = Sender::new(&contents(&a), SMALL);
        let options = FolderOptions { overwrite, ..FolderOptions::new(&out) };
        let mut receiver = second.receiver(Destination::Folder(options));
        receiver.carry(&second, second.order());
        let failures = receiver.failures();
        assert!(failures["way/file"].contains("folder"), "{failures:?}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{overwrite}");
    }
}

#[test]
fn over_long_names() {
    let text = offer(&[entry(1, 0, &[b'x'; 300], 1, &varint(0))]);
    assert!(text.contains("longer than 255"), "{text}");
    // Each name is fine, all of them together are not.
    let name = |depth: u64| [b'a' + (depth % 2) as u8; 250];
    let deep: Vec<_> = (0..17).map(|depth| entry(0, depth, &name(depth), depth + 1, &[])).collect();
    let text = offer(&deep);
    assert!(text.contains("longer than 4095"), "{text}");
}

#[test]
fn a_file_through_a_link() {
    let mut link = varint(9);
    link.extend(b"/tmp/evil");
    let text = offer(&[entry(3, 0, b"link", 0, &link), entry(1, 1, b"x", 1, &varint(0))]);
    assert!(text.contains("not a folder"), "{text}");
    // The same name as link, then as folder with the file in it.
    let mut again = vec![16];
    again.extend([0, 4, 0, 7, 0, 0]);
    let text = offer(&[entry(3, 0, b"link", 0, &link), again]);
    assert!(text.contains("comes twice"), "{text}");
}

#[test]
fn impossible_sizes() {
    let text = offer(&[entry(1, 0, b"huge", 1, &varint(1 << 60))]);
    assert!(text.starts_with("the manifest is refused: huge: the size"), "{text}");
    let overlapping: Vec<u8> = [100, 1, 0, 101].iter().flat_map(|v| varint(*v)).collect();
    let text = offer(&[entry(2, 0, b"over", 1, &overlapping)]);
    assert!(text.contains("over: its data"), "{text}");
}

/// A signed section with a tree of so many files of one byte each.
fn many(key: &Identity, entries: u32) -> Vec<u8> {
    let mut body = vec![1, 0];
    body.extend(varint(u64::from(entries)));
    let mut previous = String::new();
    for number in 0..entries {
        // Told as briefly as it can be, as it must: what is shared with the name before is left out.
        let name = format!("{number:06}");
        let shared = previous.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        body.extend([25, 0, shared as u8, (name.len() - shared) as u8]);
        body.extend_from_slice(&name.as_bytes()[shared..]);
        // One byte in each: the data has yet to come.
        body.extend([0, 0, 1]);
        previous = name;
    }
    let mut block = section(key, &body, false);
    block.resize(block.len().next_multiple_of(256), 0);
    block
}

/// A publisher may not cost a receiver that was not asked a million inodes.
#[test]
fn a_million_entries_are_refused_unless_they_are_wanted() {
    const ENTRIES: u32 = 1_000_000;
    let key = Identity::generate();
    let block = many(&key, ENTRIES);
    let config = StoreConfig::new(SMALL, key.public_key(), ManifestId([5; 16]));
    assert!(config.entries_max < ENTRIES);

    let (_dir, _, out) = pair();
    let folder = || Destination::Folder(FolderOptions::new(&out));
    let store = Store::open(config.clone(), folder(), |_| {}).unwrap();
    let parts = || block.chunks(SMALL.block_len() as usize).enumerate();
    let last =
        parts().map(|(i, part)| store.accept(BlockId::manifest(i as u32).unwrap(), part)).last();
    assert_eq!(last, Some(Accepted::Failed));
    let why = store.failure().unwrap().to_string();
    assert!(
        why.contains("524288: there are more entries than the 524288")
            && why.contains("--max-entries"),
        "{why}"
    );
    assert!(store.tree().is_none());
    drop(store);

    // Wanted: known, and nothing is made of them before their data come. A million files take a block
    // of the file system each, 4 GB: more than a test may ask of a disk.
    let Some(_mounted) = Tmpfs::mount(&out, "8g") else {
        let name = "a_million_entries_are_refused_unless_they_are_wanted";
        return skipped(name, "needs root to mount a tmpfs");
    };
    let store =
        Store::open(StoreConfig { entries_max: ENTRIES, ..config }, folder(), |_| {}).unwrap();
    for (i, part) in block.chunks(SMALL.block_len() as usize).enumerate() {
        let answer = store.accept(BlockId::manifest(i as u32).unwrap(), part);
        assert_eq!(answer, Accepted::Kept, "{:?}", store.failure());
    }
    assert_eq!(store.tree().unwrap().len(), ENTRIES);
    let made = std::fs::read_dir(&out).unwrap().filter(|e| e.as_ref().unwrap().path().is_file());
    assert_eq!(made.count(), 0);
}

#[test]
fn more_entries_than_the_limit() {
    // 4,194,305 empty folders, in names of three bytes and more, would be 40 MB in one section: the
    // count alone is refused for lack of bytes, and memory stays small.
    let mut body = varint(u64::from(u32::MAX));
    body.extend(entry(0, 0, b"a", 1, &[]));
    let (_dir, _, out) = pair();
    let key = Identity::generate();
    let block = section(&key, &[&[1, 0][..], &body].concat(), false);
    let mut block = block.clone();
    block.resize(block.len().next_multiple_of(256), 0);
    let config = StoreConfig::new(SMALL, key.public_key(), ManifestId([5; 16]));
    let store = Store::open(config, Destination::Folder(FolderOptions::new(&out)), |_| {}).unwrap();
    assert_eq!(store.accept(BlockId::manifest(0).unwrap(), &block), Accepted::Failed);
    assert!(store.failure().unwrap().to_string().contains("ends too early"));
}

// docs/protocol.md#MAN-12
#[test]
fn a_tree_is_the_last_section_exactly_when_no_data_follows() {
    let folder = entry(0, 0, b"d", 1, &[]);
    let text = offer_as(std::slice::from_ref(&folder), false);
    assert!(text.contains("digests are missing"), "{text}");
    let text = offer_as(&[folder, entry(1, 0, b"f", 2, &varint(9))], true);
    assert!(text.contains("digests are missing"), "{text}");
}

#[test]
fn another_manifest_of_the_same_publisher() {
    let (_dir, _, out) = pair();
    let key = Identity::generate();
    let mut block = section(&key, &[1, 0, 0], false);
    block.resize(256, 0);
    let config = StoreConfig::new(SMALL, key.public_key(), ManifestId([6; 16]));
    let store = Store::open(config, Destination::Folder(FolderOptions::new(&out)), |_| {}).unwrap();
    assert_eq!(store.accept(BlockId::manifest(0).unwrap(), &block), Accepted::False);
}
