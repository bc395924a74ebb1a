//! The sender's side: files that change, repairs, and what receivers are told.

use crate::harness::{MIDDLE, Random, SMALL, Sender, assert_same, contents, pair, write};
use crate::roundtrip::sparse;
use downpour::object::{Destination, EntryId, FolderOptions, ScanOptions, StoreEvent};
use downpour_proto::{BlockId, BlockKind, Geometry};
use downpour_transport::{Accepted, BlockSink, BlockSource};
use std::fs::{self, FileTimes, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::Path;

fn change_in_secret(path: &Path, bytes: &[u8]) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    fs::write(path, bytes).unwrap();
    let times = FileTimes::new().set_modified(modified);
    fs::File::open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn a_file_that_changed_before_it_was_hashed_is_withdrawn_in_the_manifest() {
    let (_dir, a, b) = pair();
    write(a.join("bad"), &[1; 3_000_000]);
    write(a.join("gone"), b"gone");
    write(a.join("good"), &Random(1).bytes(2_000_000));
    write(a.join("short"), &[2; 2_000_000]);
    let mut sender = Sender::scanned(&contents(&a), MIDDLE, &ScanOptions::default());
    write(a.join("bad"), &[3; 3_000_000]);
    fs::remove_file(a.join("gone")).unwrap();
    fs::File::options().write(true).open(a.join("short")).unwrap().set_len(5).unwrap();
    sender.hash();
    let told: Vec<_> =
        sender.withdrawn.lock().unwrap().iter().map(|w| (w.path.clone(), w.in_manifest)).collect();
    assert_eq!(told, [("bad".into(), true), ("gone".into(), true), ("short".into(), true)]);
    let mut receiver = sender.to_folder(&b);
    receiver.carry_needed(&sender);
    let failures = receiver.failures();
    let names: Vec<_> = failures.keys().map(String::as_str).collect();
    assert_eq!(names, ["bad", "gone", "short"]);
    assert!(failures["bad"].contains("changed while being sent"), "{failures:?}");
    assert!(failures["gone"].contains("removed while being sent"), "{failures:?}");
    assert_eq!(fs::read(b.join("good")).unwrap(), fs::read(a.join("good")).unwrap());
    assert_eq!(fs::read_dir(&b).unwrap().count(), 1);
}

#[test]
fn a_file_that_changes_after_its_digests_are_out_fails_alone() {
    for in_secret in [false, true] {
        let (_dir, a, b) = pair();
        write(a.join("bad"), &Random(1).bytes(3_000_000));
        for i in 0..20 {
            write(a.join(format!("small{i}")), &Random(i + 2).bytes(20_000));
        }
        let sender = Sender::new(&contents(&a), MIDDLE);
        let receiver = sender.to_folder(&b);
        let order = sender.order();
        for id in &order[..4] {
            assert_eq!(receiver.store.accept(*id, &sender.block(*id)), Accepted::Kept);
        }
        let other = Random(99).bytes(3_000_000);
        if in_secret {
            change_in_secret(&a.join("bad"), &other);
        } else {
            write(a.join("bad"), &other);
        }
        let mut again = Vec::new();
        for id in &order[4..] {
            if receiver.store.accept(*id, &sender.block(*id)) == Accepted::False {
                again.push(*id);
            }
        }
        let withdrawn = sender.source.withdrawn();
        assert_eq!(withdrawn.len(), 1, "the sender knows");
        assert_eq!((withdrawn[0].path.as_str(), withdrawn[0].in_manifest), ("bad", false));
        assert!(!again.is_empty(), "the receiver believes nothing false");
        receiver.store.withdraw(withdrawn[0].entry, &withdrawn[0].reason);
        for event in receiver.events() {
            if let StoreEvent::Forgotten { block, .. } = event {
                again.push(block);
            }
        }
        for id in again {
            assert_eq!(receiver.store.accept(id, &sender.block(id)), Accepted::Kept);
        }
        let failures = receiver.failures();
        assert_eq!(failures.keys().collect::<Vec<_>>(), ["bad"]);
        fs::remove_file(a.join("bad")).unwrap();
        let modified = fs::metadata(&a).unwrap().modified().unwrap();
        assert!(modified.elapsed().is_ok());
        assert_same(&a, &b);
    }
}

/// By another way than the manifest, and faster.
#[test]
fn a_withdrawal_that_comes_before_the_manifest_is_remembered() {
    let (_dir, a, b) = pair();
    write(a.join("bad"), &Random(1).bytes(3_000));
    write(a.join("good"), &Random(2).bytes(300_000));
    let sender = Sender::new(&contents(&a), MIDDLE);
    write(a.join("bad"), &Random(3).bytes(3_000));
    let mut receiver = sender.to_folder(&b);
    receiver.suspicious = true;
    // Read, and thereby noticed and told, before the receiver has a block of the manifest.
    sender.block(BlockId::data(0).unwrap());
    let withdrawn = sender.source.withdrawn();
    assert_eq!(withdrawn.len(), 1);
    receiver.store.withdraw(withdrawn[0].entry, &withdrawn[0].reason);
    receiver.carry(&sender, sender.order());
    assert_eq!(receiver.failures().keys().collect::<Vec<_>>(), ["bad"]);
    fs::remove_file(a.join("bad")).unwrap();
    assert_same(&a, &b);
}

/// What tells it to the store may be late for a disk, or for a machine that is busy.
#[test]
fn nothing_is_finished_before_a_withdrawal_that_follows() {
    let (_dir, a, b) = pair();
    ["empty", "still"].iter().for_each(|name| write(a.join(name), &[]));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.to_folder(&b);
    receiver.store.withdrawal_follows();
    receiver.carry(&sender, sender.order());
    assert!(!b.join("still").exists());
    receiver.store.withdraw(EntryId(0), "changed");
    assert_eq!(receiver.failures().keys().collect::<Vec<_>>(), ["empty"]);
    assert!(!b.join("empty").exists() && b.join("still").exists());
}

/// Nothing of it is read, so that nothing else would show it.
#[test]
fn a_file_without_data_that_has_some_by_now_is_withdrawn_and_replaces_nothing() {
    let (_dir, a, b) = pair();
    let holes = ["hole", "image", "image2", "image3", "swept"];
    let names = [&["empty", "gone", "good"][..], &holes, &["late", "lock", "still"]].concat();
    for name in &names {
        write(a.join(name), b"");
    }
    write(a.join("good"), b"good");
    holes.iter().for_each(|hole| sparse(&a.join(hole), 3 << 20, &[]));
    write(b.join("hole"), b"what came before");
    let mut paths = contents(&a);
    paths.push("/proc/self/status".into());
    let sender = Sender::new(&paths, MIDDLE);
    assert!(sender.source.has_empty());
    write(a.join("empty"), b"a,b,c");
    fs::remove_file(a.join("gone")).unwrap();
    fs::File::options().write(true).open(a.join("hole")).unwrap().write_at(&[1], 7).unwrap();
    fs::set_permissions(a.join("still"), Permissions::from_mode(0o600)).unwrap();
    sender.source.look_at_empty(false);
    sender.source.look_at_empty(false);
    let told = sender.withdrawn.lock().unwrap().clone();
    let all: Vec<_> = told.iter().map(|w| w.path.as_str()).collect();
    assert_eq!(all, ["empty", "gone", "hole", "status"], "once each");
    let whys = ["changed", "removed", "changed"].map(|what| format!("{what} while being sent"));
    assert!(told.iter().zip(&whys).all(|(w, why)| w.reason.contains(why)), "{told:?}");
    assert!(told[3].reason.contains("send - <"), "{told:?}");
    let mut options = FolderOptions::new(&b);
    options.overwrite = true;
    let mut receiver = sender.receiver(Destination::Folder(options));
    told.iter().for_each(|w| receiver.store.withdraw(w.entry, &w.reason));
    receiver.carry(&sender, sender.order());
    assert_eq!(receiver.failures().into_keys().collect::<Vec<_>>(), all);
    assert_eq!(fs::read(b.join("hole")).unwrap(), b"what came before");
    assert!(names.iter().all(|name| b.join(name).exists() != ["empty", "gone"].contains(name)));
    // What holds data by now is told; that one is gone, another one, or was touched costs nobody anything.
    let open = |name| fs::File::options().write(true).open(a.join(name)).unwrap();
    write(a.join("late"), b"a,b,c");
    open("image").write_at(&[1], 2 << 20).unwrap();
    open("image2").set_len(4 << 20).unwrap();
    fs::remove_file(a.join("lock")).unwrap();
    write(a.join("new"), b"of a new one");
    fs::rename(a.join("new"), a.join("image3")).unwrap();
    for touched in ["still", "swept"] {
        let time = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        open(touched).set_modified(time).unwrap();
    }
    sender.source.look_at_empty(true);
    let more = sender.withdrawn.lock().unwrap().split_off(told.len());
    let more: Vec<_> = more.iter().map(|w| w.path.as_str()).collect();
    assert_eq!(more, ["image", "image2", "late"]);
}

#[test]
fn more_early_withdrawals_than_can_be_kept_are_an_error_and_no_endless_wait() {
    let (_dir, a, b) = pair();
    write(a.join("good"), b"good");
    let sender = Sender::new(&contents(&a), MIDDLE);
    let receiver = sender.to_folder(&b);
    for entry in 0..=1 << 16 {
        assert!(receiver.store.failure().is_none(), "{entry}");
        receiver.store.withdraw(EntryId(entry), "changed");
    }
    let text = receiver.store.failure().unwrap().to_string();
    assert!(text.contains("65536 files have changed at the sender"), "{text}");
}

#[test]
fn a_repair_is_checked_against_what_was_promised() {
    let (_dir, a, _) = pair();
    write(a.join("bad"), &Random(1).bytes(300_000));
    write(a.join("other"), &Random(2).bytes(10_000));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let block = BlockId::data(0).unwrap();
    let first = sender.block(block);
    assert_eq!(sender.block(block), first);
    change_in_secret(&a.join("bad"), &Random(3).bytes(300_000));
    let repair = sender.block(block);
    assert_eq!(sender.source.withdrawn().len(), 1);
    assert_eq!(repair[..300_000], vec![0; 300_000], "nothing of it is sent any more");
    assert_eq!(repair[300_000..], first[300_000..], "the rest of the block is");
}

#[test]
fn a_new_mode_or_link_is_no_change() {
    let (_dir, a, b) = pair();
    write(a.join("f"), &Random(1).bytes(3_000_000));
    let sender = Sender::new(&contents(&a), MIDDLE);
    fs::set_permissions(a.join("f"), Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(a.join("f"), a.join("new link")).unwrap();
    let mut receiver = sender.to_folder(&b);
    receiver.carry(&sender, sender.order());
    assert_eq!(receiver.summary().failed, []);
    assert_eq!(sender.source.withdrawn(), []);
}

#[test]
fn what_no_section_covers_cannot_be_read() {
    let (_dir, a, _) = pair();
    write(a.join("f"), &Random(1).bytes(100_000));
    let sender = Sender::scanned(&contents(&a), SMALL, &ScanOptions::default());
    let mut buf = vec![0; SMALL.block_len() as usize];
    for id in [BlockId::data(0), BlockId::manifest(0), BlockId::data(99)] {
        assert!(sender.source.read(id.unwrap(), &mut buf).is_err());
        assert_eq!(sender.source.symbols(id.unwrap()), None);
    }
    assert!(sender.source.read_data(0, &mut buf).is_err());
}

// docs/protocol.md#CODE-2
#[test]
fn blocks_hold_the_data_of_all_files_in_order_and_no_holes() {
    let (_dir, a, _) = pair();
    write(a.join("1"), &[1; 10_000]);
    sparse(&a.join("2"), 3 << 20, &[(1 << 20, 8_192)]);
    write(a.join("3"), &[3; 20_000]);
    let sender = Sender::new(&contents(&a), SMALL);
    let of_data = |id: &BlockId| id.kind() == BlockKind::Data;
    let blocks: Vec<_> = sender.order().into_iter().filter(of_data).collect();
    let data = [vec![1; 10_000], vec![0xAB; 8_192], vec![3; 20_000]].concat();
    // The last one has as many symbols of 256 bytes as it needs, and zeros to the end of the last of them.
    let lens: Vec<_> = blocks.iter().map(|id| sender.block(*id).len()).collect();
    assert_eq!(lens, [16_384, 16_384, 5_632]);
    let sent: Vec<u8> = blocks.iter().flat_map(|id| sender.block(*id)).collect();
    assert!(sent[..data.len()] == data && sent[data.len()..].iter().all(|byte| *byte == 0));
}

// docs/protocol.md#MAN-1, #MAN-2
#[test]
fn sections_say_what_may_be_offered() {
    let (_dir, a, _) = pair();
    write(a.join("f"), &Random(1).bytes(150 << 20));
    let sender = Sender::new(&contents(&a), Geometry::IPV4);
    let data: Vec<_> = sender.sections.iter().map(|section| section.data.clone()).collect();
    let whole = |mib: u64| ((mib << 20) / Geometry::IPV4.block_len()) as u32;
    let all = Geometry::IPV4.blocks(150 << 20) as u32;
    let ends = [0, 0, whole(8), whole(16), whole(32), whole(64), whole(128), all];
    let spans: Vec<_> = ends.windows(2).map(|ends| ends[0]..ends[1]).collect();
    assert_eq!(data, spans);
    let manifest: Vec<_> = sender.sections.iter().map(|section| section.manifest.clone()).collect();
    assert_eq!(manifest, (0..7).map(|i| i..i + 1).collect::<Vec<_>>());
    let mut bytes = vec![0; 5_000];
    sender.source.read_data(100 << 20, &mut bytes).unwrap();
    assert_eq!(bytes, fs::read(a.join("f")).unwrap()[100 << 20..][..5_000]);
}

#[test]
fn hashing_runs_ahead_on_its_own_thread() {
    let (_dir, a, b) = pair();
    write(a.join("f"), &Random(1).bytes(3_000_000));
    let mut sender = Sender::scanned(&contents(&a), MIDDLE, &ScanOptions::default());
    let ahead = sender.source.ahead(sender.id, sender.publisher.clone(), 2);
    let sections = ahead.spawn(1);
    let mut receiver = sender.to_folder(&b);
    while let Ok(section) = sections.recv() {
        sender.sections.push(section.unwrap());
        let order = sender.order();
        receiver.carry(&sender, order);
    }
    assert_same(&a, &b);
}
