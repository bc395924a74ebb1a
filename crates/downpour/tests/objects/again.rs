//! A sender that is started again does not hash again what it has hashed, unless the file has changed.

use crate::harness::{Random, Sender, assert_same, contents, pair, write};
use downpour::object::{DigestBook, EntryId, ScanOptions};
use downpour_proto::Geometry;
use std::fs::{self, FileTimes};
use std::path::Path;
use std::time::Duration;

const SIZE: u64 = 40 << 20;

/// Of a file that has just changed nothing is noted.
fn let_settle() {
    std::thread::sleep(Duration::from_millis(3_200));
}

/// Hashes the first `sections` sections, as a sender that is killed then; how many bytes it hashed.
fn hash(a: &Path, book: &DigestBook, sections: usize) -> (Sender, u64) {
    let mut sender = Sender::scanned(&contents(a), Geometry::IPV4, &ScanOptions::default());
    let ahead = sender.source.ahead(sender.id, sender.publisher.clone(), 2);
    let ahead = ahead.with_book(Some(book.clone()));
    sender.sections = ahead.take(sections).collect::<Result<_, _>>().unwrap();
    let hashed = sender.source.hashed_bytes();
    (sender, hashed)
}

#[test]
fn what_was_hashed_by_a_sender_that_was_killed_is_not_hashed_again() {
    let (_dir, a, b) = pair();
    let state = tempfile::tempdir().unwrap();
    let book = DigestBook::open(state.path().join("digests")).unwrap();
    write(a.join("long"), &Random(1).bytes(SIZE as usize));
    write(a.join("short"), &Random(2).bytes(5_000_000));
    let_settle();
    // The tree, 8 MiB, 8 MiB.
    assert_eq!(hash(&a, &book, 3).1, 16 << 20);
    let book = DigestBook::open(state.path().join("digests")).unwrap();
    let (second, hashed) = hash(&a, &book, usize::MAX);
    assert_eq!(hashed, SIZE - (16 << 20) + 5_000_000);
    second.to_folder(&b).carry(&second, second.order());
    assert_same(&a, &b);
    assert_eq!(hash(&a, &book, usize::MAX).1, 5_000_000, "short files are hashed each time");
    // Other content of the same length, and mtime is set back.
    let path = a.join("long");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, Random(3).bytes(SIZE as usize)).unwrap();
    let file = fs::File::open(&path).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
    let (changed, hashed) = hash(&a, &book, usize::MAX);
    assert_eq!(hashed, SIZE + 5_000_000);
    let (_dir, _, b) = pair();
    changed.to_folder(&b).carry(&changed, changed.order());
    assert_same(&a, &b);
}

/// Its sections are shorter for that (`docs/protocol.md#MAN-2`).
#[test]
fn what_was_hashed_is_given_from_memory_once() {
    let (_dir, a, _) = pair();
    let bytes = Random(1).bytes(SIZE as usize);
    write(a.join("f"), &bytes);
    let mut sender = Sender::scanned(&contents(&a), Geometry::IPV4, &ScanOptions::default());
    sender.source.keep(30 << 20);
    sender.hash();
    let spans: Vec<_> = sender.sections.iter().map(|s| s.data.end).collect();
    let whole = |mib: u64| ((mib << 20) / Geometry::IPV4.block_len()) as u32;
    assert_eq!(spans[..5], [0, whole(8), whole(16), whole(32), Geometry::IPV4.blocks(SIZE) as u32]);
    let range = 1_000_000..3_500_000;
    let parts = sender.source.kept(range.clone()).unwrap();
    let given: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
    assert!(given == bytes[range.start as usize..range.end as usize]);
    assert!(sender.source.kept(1 << 20..2 << 20).is_none(), "this group was given");
    assert!(sender.source.kept(SIZE - 100..SIZE).is_none(), "there was no room for it");
    fs::remove_file(a.join("f")).unwrap();
    assert!(sender.source.kept(4 << 20..5 << 20).is_some());
}

#[test]
fn what_is_given_up_is_not_read_to_its_end() {
    let (_dir, a, b) = pair();
    write(a.join("given up"), &[1; 20 << 20]);
    write(a.join("other"), &[2; 9 << 20]);
    let mut sender = Sender::scanned(&contents(&a), Geometry::IPV4, &ScanOptions::default());
    let mut ahead = sender.source.ahead(sender.id, sender.publisher.clone(), 2);
    // The tree, 8 MiB.
    sender.sections.extend(ahead.by_ref().take(2).map(Result::unwrap));
    sender.source.give_up(EntryId(0), "no longer wanted");
    sender.sections.extend(ahead.map(Result::unwrap));
    assert_eq!(sender.source.hashed_bytes(), (8 + 9) << 20);
    let mut receiver = sender.to_folder(&b);
    receiver.carry_needed(&sender);
    assert_eq!(receiver.failures().into_keys().collect::<Vec<_>>(), ["given up"]);
    assert!(fs::read(b.join("other")).unwrap() == [2; 9 << 20]);
}
