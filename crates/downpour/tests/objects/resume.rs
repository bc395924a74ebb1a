//! A receiver that is killed loses what was in memory, and no more.

use crate::harness::{
    MIDDLE, Random, Receiver, Sender, assert_same, contents, look_at, pair, write,
};
use crate::roundtrip::sparse;
use crate::skipped::not_here;
use downpour::object::{Destination, FolderOptions, StoreConfig, StoreEvent};
use downpour_proto::{BlockId, Geometry};
use downpour_transport::BlockSink;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

fn tree(a: &Path) {
    let mut random = Random(9);
    write(a.join("big"), &random.bytes(20_000_000));
    for i in 0..50 {
        write(a.join(format!("small/{i}")), &random.bytes(10_000));
    }
    sparse(&a.join("holes"), 30 << 20, &[(1 << 20, 3_000_000), (20 << 20, 2_000_000)]);
    write(a.join("zz"), &random.bytes(3_000_000));
}

/// Carries the first `count` blocks of those needed, then drops the store as a kill would.
fn attempt(sender: &Sender, out: &Path, count: usize, seed: Option<u64>) -> u64 {
    let mut receiver = sender.to_folder(out);
    let (manifest, mut data): (Vec<_>, Vec<_>) =
        sender.order().into_iter().partition(|id| id.raw() >= BlockId::NUMBER_END);
    receiver.carry(sender, manifest);
    if let Some(seed) = seed {
        Random(seed).shuffle(&mut data);
    }
    receiver.carry(sender, vec![]);
    let data: Vec<_> =
        data.into_iter().filter(|id| !receiver.not_needed.contains(&id.number())).collect();
    let carried = receiver.carried;
    receiver.carry(sender, data.into_iter().take(count).collect());
    receiver.carried - carried
}

#[test]
fn killed_anywhere_it_goes_on_from_there() {
    let (_dir, a, _) = pair();
    tree(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let (blocks, data) = (sender.data_blocks() as usize, sender.source.data_len().unwrap());
    for percent in [0, 5, 50, 95, 99] {
        let (_dir, _, b) = pair();
        let first = attempt(&sender, &b, blocks * percent / 100, Some(5));
        let mut second = sender.to_folder(&b);
        second.carry_needed(&sender);
        assert_same(&a, &b);
        let summary = second.summary();
        assert_eq!(summary.bytes_received + summary.bytes_held, data);
        // In random order, groups at the borders of what came are incomplete; they come again.
        let again = (first + summary.bytes_received).saturating_sub(data);
        println!("{percent} %: {} held, {again} again", summary.bytes_held);
        assert!(percent < 50 || summary.bytes_held > 0);
    }
}

#[test]
fn in_order_little_is_taken_again() {
    for percent in [5, 50, 95] {
        let (_dir, a, b) = pair();
        write(a.join("file"), &Random(3).bytes(64 << 20));
        let sender = Sender::new(&contents(&a), Geometry::IPV4);
        let order = sender.order();
        let data = sender.source.data_len().unwrap();
        let mut first = sender.to_folder(&b);
        first.carry(&sender, order[..order.len() * percent / 100].to_vec());
        let before = first.carried;
        drop(first);
        // The sender was started again, too: another session with another key.
        let sender = Sender::new(&contents(&a), Geometry::IPV4);
        let mut second = sender.to_folder(&b);
        second.carry_needed(&sender);
        assert_same(&a, &b);
        let again = (before + second.carried).saturating_sub(data);
        assert!(again < data / 20, "{percent} %: {again} of {data}");
    }
}

#[test]
fn killed_many_times_it_still_ends() {
    let (_dir, a, b) = pair();
    tree(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    for _ in 0..8 {
        attempt(&sender, &b, 8, None);
        attempt(&sender, &b, 3, Some(3));
    }
    let mut last = sender.to_folder(&b);
    last.carry_needed(&sender);
    assert_same(&a, &b);
    assert!(last.summary().bytes_held > 5_000_000);
}

#[test]
fn what_was_complete_but_not_renamed_is_not_taken_again() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(3).bytes(5_000_000));
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    // As if the rename had not happened: the file is a part, and its journal says all of it.
    let receiver = sender.to_folder(&b);
    drop(receiver);
    fs::rename(b.join("file"), b.join("elsewhere")).unwrap();
    let mut receiver = sender.to_folder(&b);
    let order = sender.order();
    receiver.carry(&sender, order[..order.len() - 1].to_vec());
    let last = *order.last().unwrap();
    drop(receiver);
    let mut receiver = sender.to_folder(&b);
    receiver.carry_needed(&sender);
    let summary = receiver.summary();
    assert!(summary.bytes_received <= (1 << 20) + sender.block(last).len() as u64);
    assert_eq!(fs::read(a.join("file")).unwrap(), fs::read(b.join("file")).unwrap());
}

#[test]
fn a_changed_tree_uses_what_still_fits() {
    let (_dir, a, b) = pair();
    tree(&a);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let order = sender.order();
    let mut first = sender.to_folder(&b);
    first.carry(&sender, order[..order.len() / 2].to_vec());
    drop(first);
    write(a.join("a new one"), &Random(77).bytes(1_000_000));
    fs::remove_file(a.join("zz")).unwrap();
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut second = sender.to_folder(&b);
    second.carry_needed(&sender);
    assert_same(&a, &b);
    assert!(second.summary().bytes_held > 5_000_000, "{:?}", second.summary());
}

#[test]
fn a_partial_file_that_was_tampered_with_is_noticed() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(3).bytes(8_000_000));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let order = sender.order();
    let mut first = sender.to_folder(&b);
    first.carry(&sender, order[..order.len() - 3].to_vec());
    drop(first);
    let parts: Vec<_> = fs::read_dir(b.join(".downpour/parts")).unwrap().collect();
    let part = parts[0].as_ref().unwrap().path();
    fs::File::options().write(true).open(&part).unwrap().set_len(5).unwrap();
    let mut second = sender.to_folder(&b);
    second.carry_needed(&sender);
    assert_same(&a, &b);
}

#[test]
fn after_a_reboot_groups_are_hashed_before_they_count() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(3).bytes(8 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let order = sender.order();
    let mut first = sender.to_folder(&b);
    first.carry(&sender, order[..order.len() - 1].to_vec());
    drop(first);
    // The journal's first record tells the boot; this makes it another one.
    let path = b.join(".downpour/journal");
    let mut journal = fs::read(&path).unwrap();
    journal[2] ^= 1;
    let check = blake3::hash(&journal[..26]);
    journal[26..34].copy_from_slice(&check.as_bytes()[..8]);
    fs::write(&path, journal).unwrap();
    // And this is what a crash does: a group that was written never reached the disk.
    let part = fs::read_dir(b.join(".downpour/parts")).unwrap().next().unwrap().unwrap().path();
    let file = fs::File::options().write(true).open(part).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], 3 << 20).unwrap();
    let mut second = sender.to_folder(&b);
    second.carry_needed(&sender);
    assert_same(&a, &b);
    let summary = second.summary();
    assert!(summary.bytes_held >= 5 << 20, "{summary:?}");
    assert!(summary.bytes_received >= 1 << 20, "the damaged group is taken again: {summary:?}");
}

#[test]
fn the_partly_held_block_is_seeded() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(3).bytes(8 << 20));
    let sender = Sender::new(&contents(&a), Geometry::IPV4);
    let order = sender.order();
    let mut first = sender.to_folder(&b);
    // Tree, digests and data blocks 0, 1: groups 0 and 1 are whole, group 2 is not.
    first.carry(&sender, order[..4].to_vec());
    drop(first);
    let mut second = sender.to_folder(&b);
    second.carry(&sender, order[..2].to_vec());
    let block = BlockId::data(1).unwrap();
    let genuine = sender.block(block);
    let mut buf = vec![0; genuine.len()];
    let ranges = second.store.seed(block, &mut buf);
    // Block 1 starts at 1,482,752; group 1 ends at 2,097,152: 424 whole symbols.
    assert_eq!(ranges, std::iter::once(0..424).collect::<Vec<_>>());
    assert_eq!(buf[..424 * 1448], genuine[..424 * 1448]);
    let needed = second.events().into_iter().find_map(|event| match event {
        StoreEvent::Section(section) => Some((section.held, section.needed)),
        _ => None,
    });
    let one = |range| std::iter::once(range).collect::<Vec<_>>();
    assert_eq!(needed, Some((one(0..1), one(1..6))));
    second.carry_needed(&sender);
    assert_same(&a, &b);
}

#[test]
fn the_end_of_the_last_block_is_seeded_with_zeros_behind_it() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(4).bytes(8 << 20));
    let sender = Sender::new(&contents(&a), Geometry::IPV4);
    let order = sender.order();
    let mut first = sender.to_folder(&b);
    // Tree, digests and data blocks 4, 5: of the groups the last is whole.
    first.carry(&sender, [&order[..2], &order[6..]].concat());
    drop(first);
    let mut second = sender.to_folder(&b);
    second.carry(&sender, order[..2].to_vec());
    let block = BlockId::data(5).unwrap();
    let genuine = sender.block(block);
    let mut buf = vec![0xFF; genuine.len()];
    let ranges = second.store.seed(block, &mut buf);
    let symbols = (genuine.len() / 1448) as u16;
    assert_eq!(ranges, std::iter::once(0..symbols).collect::<Vec<_>>());
    assert!(buf == genuine, "the padding of the last symbol is not what was there before");
}

/// Bytes of a file's partial file.
fn only_part(b: &Path) -> std::path::PathBuf {
    fs::read_dir(b.join(".downpour/parts")).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn a_part_that_is_made_anew_has_nothing_of_the_one_before() {
    let (_dir, a, b) = pair();
    write(a.join("a"), &Random(3).bytes(4 << 20));
    write(a.join("b"), &Random(4).bytes(4 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let order = sender.order();
    let mut first = sender.to_folder(&b);
    first.carry(&sender, order[..6].to_vec());
    let part = only_part(&b);
    first.carry(&sender, order[6..order.len() - 2].to_vec());
    drop(first);
    fs::remove_file(b.join("a")).unwrap();
    // Here it cannot be made: as if the disk were full, or the receiver killed just then.
    fs::create_dir(&part).unwrap();
    let second = sender.to_folder(&b);
    for id in &order[..6] {
        second.store.accept(*id, &sender.block(*id));
    }
    drop(second);
    fs::remove_dir(&part).unwrap();
    // And this is what a death right after making it leaves: its length, and no byte.
    fs::write(&part, vec![0; 4 << 20]).unwrap();
    sender.to_folder(&b).carry_needed(&sender);
    assert_same(&a, &b);
}

/// An attempt that brings all of `a` but its last block to `b`.
fn all_but_the_last(a: &Path, b: &Path) {
    let sender = Sender::new(&contents(a), MIDDLE);
    let order = sender.order();
    sender.to_folder(b).carry(&sender, order[..order.len() - 1].to_vec());
}

#[test]
fn what_overwrites_a_group_makes_its_record_void() {
    let (_dir, a, b) = pair();
    let one = Random(3).bytes(4 << 20);
    write(a.join("file"), &one);
    all_but_the_last(&a, &b);
    // Another version of the same length, in a receiver without memory: parts of groups go to the file.
    write(a.join("file"), &Random(4).bytes(4 << 20));
    let other = Sender::new(&contents(&a), MIDDLE);
    let config = StoreConfig { pending_bytes_max: 0, ..other.config() };
    let mut second = Receiver::new(config, Destination::Folder(FolderOptions::new(&b)));
    second.carry(&other, other.order()[..3].to_vec());
    drop(second);
    assert!(fs::read(only_part(&b)).unwrap()[..4096] != one[..4096]);
    write(a.join("file"), &one);
    let again = Sender::new(&contents(&a), MIDDLE);
    let mut third = again.to_folder(&b);
    third.carry_needed(&again);
    assert_same(&a, &b);
    assert!(third.summary().bytes_held > 0);
}

#[test]
fn where_there_is_a_hole_now_nothing_of_before_remains() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(3).bytes(6 << 20));
    all_but_the_last(&a, &b);
    fs::remove_file(a.join("file")).unwrap();
    sparse(&a.join("file"), 6 << 20, &[(0, 1 << 20), (3 << 20, 1000)]);
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry_needed(&sender);
    assert_same(&a, &b);
}

/// Its holes of before are data now, of the same content: what is said of a group is said of its holes, too.
#[test]
fn holes_that_are_recorded_are_zeros() {
    let (_dir, a, b) = pair();
    write(a.join("file"), &Random(3).bytes(6 << 20));
    all_but_the_last(&a, &b);
    fs::remove_file(a.join("file")).unwrap();
    sparse(&a.join("file"), 6 << 20, &[(0, 1 << 20), (3 << 20, 1000), (5 << 20, 400_000)]);
    all_but_the_last(&a, &b);
    let content = fs::read(a.join("file")).unwrap();
    write(a.join("file"), &content);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut third = sender.to_folder(&b);
    third.carry_needed(&sender);
    assert_same(&a, &b);
    assert!(third.summary().bytes_held >= 2 << 20);
}

#[test]
fn what_becomes_a_hole_makes_its_record_void() {
    let (_dir, a, b) = pair();
    let dense = Random(3).bytes(6 << 20);
    write(a.join("file"), &dense);
    write(a.join("zz"), &Random(4).bytes(1 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order()[..14].to_vec());
    let part = only_part(&b);
    fs::remove_file(a.join("file")).unwrap();
    sparse(&a.join("file"), 6 << 20, &[(0, 1 << 20), (3 << 20, 1000)]);
    all_but_the_last(&a, &b);
    // As if it had been killed before the file got its name.
    fs::rename(b.join("file"), part).unwrap();
    write(a.join("file"), &dense);
    let sender = Sender::new(&contents(&a), MIDDLE);
    sender.to_folder(&b).carry_needed(&sender);
    assert_same(&a, &b);
}

fn to_lane(sender: &Sender, out: &Path) -> Receiver {
    let options = FolderOptions { lane: Some("lane".into()), ..FolderOptions::new(out) };
    sender.receiver(Destination::Folder(options))
}

#[test]
fn what_was_given_up_in_a_lane_does_not_make_its_journal_grow() {
    let (_dir, a, b) = pair();
    let lane = b.join(".downpour/lane");
    write(a.join("given up"), &Random(3).bytes(3 << 20));
    let given_up = Sender::new(&contents(&a), MIDDLE);
    let order = given_up.order();
    to_lane(&given_up, &b).carry(&given_up, order[..order.len() - 1].to_vec());
    // What is about to get its name has the mtime of its source.
    let part = fs::read_dir(lane.join("parts")).unwrap().next().unwrap().unwrap().path();
    fs::File::open(part).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let mut lens = Vec::new();
    for i in 0..4 {
        // As of one that was killed while it wrote a small file.
        write(lane.join("parts/s9999"), b"x");
        let (_dir, a, _) = pair();
        write(a.join(format!("file {i}")), &Random(i + 1).bytes(8 << 20));
        let sender = Sender::new(&contents(&a), MIDDLE);
        let mut receiver = to_lane(&sender, &b);
        receiver.carry(&sender, sender.order());
        assert_eq!(receiver.summary().failed, []);
        assert_eq!(fs::read_dir(lane.join("parts")).unwrap().count(), 1);
        lens.push(fs::metadata(lane.join("journal")).unwrap().len());
    }
    assert_eq!(lens, [lens[0]; 4]);
    let mut last = to_lane(&given_up, &b);
    last.carry_needed(&given_up);
    assert!(last.summary().bytes_held >= 2 << 20);
    assert!(!lane.join("journal").exists());
}

/// A crash of the machine leaves none in its place that has not its content.
#[test]
fn in_a_lane_files_get_their_names_together() {
    let (_dir, a, b) = pair();
    write(a.join("large"), &Random(3).bytes(3 << 20));
    for i in 0..9 {
        write(a.join(format!("small {i}")), &Random(i + 10).bytes(60_000));
    }
    sparse(&a.join("sparse"), 500_000, &[(100_000, 9)]);
    write(a.join("zz"), &Random(4).bytes(1 << 20));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let order = sender.order();
    to_lane(&sender, &b).carry(&sender, order[..order.len() - 1].to_vec());
    let names = |at: &Path| fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names(&b).collect::<Vec<_>>(), [".downpour"]);
    // The next finds all that was whole. Meanwhile somebody has taken one of the places.
    let mut second = to_lane(&sender, &b);
    second.carry(&sender, order[..1].to_vec());
    write(b.join("small 3"), b"somebody's own");
    fs::copy(a.join("small 4"), b.join("small 4")).unwrap();
    second.carry_needed(&sender);
    let summary = second.summary();
    assert!(summary.bytes_held >= (3 << 20) + 8 * 60_000, "{summary:?}");
    assert_eq!(second.failures().into_keys().collect::<Vec<_>>(), ["small 3"]);
    assert_eq!(fs::read(b.join("small 3")).unwrap(), b"somebody's own");
    fs::remove_dir_all(b.join(".downpour")).unwrap();
    fs::copy(a.join("small 3"), b.join("small 3")).unwrap();
    for path in look_at(&a).into_keys() {
        assert!(fs::read(a.join(&path)).unwrap() == fs::read(b.join(&path)).unwrap());
    }
}

/// A file has its mode before it has its name: one that was killed in between leaves what its owner cannot open.
#[test]
fn what_was_killed_between_mode_and_name_is_gone_on_with() {
    let (dir, a, b) = pair();
    write(a.join("0 small"), &Random(3).bytes(10_000));
    write(a.join("big"), &Random(4).bytes(3 << 20));
    let root = geteuid().is_root();
    for path in [dir.path(), &a, &a.join("0 small"), &a.join("big")].into_iter().filter(|_| root) {
        match chown(path, Some(7), Some(8)) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                let name = "what_was_killed_between_mode_and_name_is_gone_on_with";
                return not_here(name, "there is no user 7 here");
            }
            done => done.unwrap(),
        }
    }
    let work = || {
        if root {
            // Of this thread alone: root can open everything.
            set_thread_groups(&[]).unwrap();
            set_thread_gid(Gid::from_raw(8)).unwrap();
            set_thread_uid(Uid::from_raw(7)).unwrap();
        }
        all_but_the_last(&a, &b);
        // The first of another tree.
        fs::rename(b.join("0 small"), b.join(".downpour/parts/s0")).unwrap();
        for part in fs::read_dir(b.join(".downpour/parts")).unwrap() {
            fs::set_permissions(part.unwrap().path(), Permissions::from_mode(0o444)).unwrap();
        }
        let sender = Sender::new(&contents(&a), MIDDLE);
        let mut second = sender.to_folder(&b);
        second.carry_needed(&sender);
        assert_eq!(second.summary().failed, []);
        assert!(second.summary().bytes_held >= 2 << 20);
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
    for name in ["0 small", "big"] {
        assert!(fs::read(a.join(name)).unwrap() == fs::read(b.join(name)).unwrap());
    }
}
