//! False bytes are never placed, and what they spoil comes again.

use crate::harness::{MIDDLE, Random, Receiver, SMALL, Sender, assert_same, contents, pair, write};
use downpour::object::{Destination, FolderOptions, Obstacle, StoreEvent};
use downpour_proto::{BlockId, BlockKind, Geometry, RangeSet};
use downpour_transport::{Accepted, BlockSink};
use std::collections::VecDeque;

/// Carries all blocks, each poisoned with probability 1 in `rate` on its first few tries.
fn poisoned(geometry: Geometry, seed: u64, rate: u64, shuffled: bool) {
    let (_dir, a, b) = pair();
    let mut random = Random(seed);
    write(a.join("big"), &random.bytes(6_000_000));
    for i in 0..60 {
        let len = random.below(40_000) as usize;
        write(a.join(format!("{i}")), &random.bytes(len));
    }
    let sender = Sender::new(&contents(&a), geometry);
    let receiver = sender.to_folder(&b);
    let mut order = sender.order();
    if shuffled {
        random.shuffle(&mut order);
    }
    let mut queue: VecDeque<(BlockId, u32)> = order.into_iter().map(|id| (id, 0)).collect();
    let (mut told, mut seen, mut poisonings) = (0, 0, 0);
    while let Some((id, tries)) = queue.pop_front() {
        let mut block = sender.block(id);
        let poison = tries < 2 && random.below(rate) == 0;
        if poison {
            let at = random.below(block.len() as u64) as usize;
            block[at] ^= 1 << random.below(8);
            poisonings += 1;
        }
        match receiver.store.accept(id, &block) {
            Accepted::Kept => {}
            Accepted::Refused => queue.push_back((id, tries)),
            Accepted::False => {
                told += 1;
                queue.push_back((id, tries + 1));
            }
            Accepted::Failed => panic!("{:?}", receiver.store.failure()),
        }
        let events = receiver.events();
        for event in &events[seen..] {
            if let StoreEvent::Forgotten { block, poisoned } = event {
                told += u32::from(*poisoned);
                queue.push_back((*block, 2));
            }
        }
        seen = events.len();
    }
    assert_same(&a, &b);
    assert!(poisonings > 0 && told > 0, "{poisonings} poisonings, {told} found");
}

#[test]
fn poisoned_blocks_come_again() {
    for seed in 1..4 {
        poisoned(MIDDLE, seed, 4, false);
        poisoned(MIDDLE, seed, 4, true);
    }
    poisoned(Geometry::IPV4, 9, 3, true);
    poisoned(SMALL, 10, 20, true);
}

/// Threads that bring random blocks, some of them false, some twice, with and without memory for groups
/// that straddle blocks: whatever is placed is genuine (`docs/protocol.md#MAN-4`).
#[test]
fn nothing_false_is_placed_whoever_comes_when() {
    for (seed, pending_bytes_max) in [(1, 0), (2, 1 << 20), (3, u64::MAX), (4, 0)] {
        let (_dir, a, b) = pair();
        write(a.join("big"), &Random(seed).bytes(3_000_000));
        write(a.join("small"), &Random(seed + 9).bytes(50_000));
        let sender = Sender::new(&contents(&a), SMALL);
        let mut config = sender.config();
        config.pending_bytes_max = pending_bytes_max;
        let folder = Destination::Folder(FolderOptions::new(&b));
        let receiver = Receiver::new(config, folder);
        let blocks: Vec<_> = sender.order().into_iter().map(|id| (id, sender.block(id))).collect();
        let is_complete = || {
            let events = receiver.events.lock().unwrap();
            events.iter().any(|event| matches!(event, StoreEvent::Complete(_)))
        };
        std::thread::scope(|scope| {
            for thread in 1..5 {
                let (blocks, store) = (&blocks, &receiver.store);
                scope.spawn(move || {
                    let mut random = Random(seed * 1000 + thread);
                    while !is_complete() {
                        let (id, block) = &blocks[random.below(blocks.len() as u64) as usize];
                        let mut block = block.clone();
                        if random.below(200) == 0 {
                            let at = random.below(block.len() as u64) as usize;
                            block[at] ^= 1;
                        }
                        store.accept(*id, &block);
                    }
                });
            }
        });
        assert_same(&a, &b);
        assert_eq!(receiver.summary().failed, []);
    }
}

// docs/protocol.md#MAN-12: false bytes come again.
#[test]
fn every_false_manifest_byte_is_noticed() {
    let (_dir, a, _) = pair();
    write(a.join("f"), b"some bytes");
    let sender = Sender::new(&contents(&a), SMALL);
    let id = BlockId::manifest(0).unwrap();
    let genuine = sender.block(id);
    let len = sender.section_len(&sender.sections[0]);
    for at in 0..len {
        let (_dir, _, b) = pair();
        let receiver = sender.to_folder(&b);
        let mut block = genuine.clone();
        block[at] ^= 0x10;
        assert_eq!(receiver.store.accept(id, &block), Accepted::False, "{at}");
        assert_eq!(receiver.store.accept(id, &genuine), Accepted::Kept);
        assert!(receiver.store.tree().is_some());
    }
}

#[test]
fn a_false_length_does_not_wait_for_ever() {
    let (_dir, a, b) = pair();
    let mut random = Random(1);
    for i in 0..3000 {
        write(a.join(format!("file with a long name {:016x} {i}", random.next())), b"");
    }
    write(a.join("x"), b"x");
    let sender = Sender::new(&contents(&a), SMALL);
    let blocks = sender.sections[0].manifest.clone();
    assert!(blocks.len() > 2);
    let mut receiver = sender.to_folder(&b);
    let first = BlockId::manifest(0).unwrap();
    let mut block = sender.block(first);
    block[..4].copy_from_slice(&(1u32 << 23).to_be_bytes());
    assert_eq!(receiver.store.accept(first, &block), Accepted::Kept, "nobody can know yet");
    receiver.suspicious = true;
    receiver.carry(&sender, sender.order());
    // The real end of the section contradicts the length; the first block came again, as told.
    assert_same(&a, &b);
}

// docs/protocol.md#MAN-12
#[test]
fn a_length_past_the_end_of_the_manifest_is_false() {
    let (_dir, a, b) = pair();
    write(a.join("x"), b"x");
    let sender = Sender::new(&contents(&a), SMALL);
    let mut receiver = sender.to_folder(&b);
    let end = sender.sections.last().unwrap().manifest.end;
    let blocks: Vec<_> = (0..end).map(|n| BlockId::manifest(n).unwrap()).collect();
    // Forged with full blocks of symbols, as a member of the group could: none contradicts another.
    let mut block = vec![0; SMALL.block_len() as usize];
    block[..4].copy_from_slice(&(1u32 << 23).to_be_bytes());
    for id in &blocks {
        assert_eq!(receiver.store.accept(*id, &block), Accepted::Kept, "nobody can know yet");
    }
    receiver.store.finished(end);
    let told = [StoreEvent::Forgotten { block: blocks[0], poisoned: true }];
    assert_eq!(receiver.events(), told);
    assert_eq!(receiver.store.accept(blocks[0], &block), Accepted::False, "and now it is known");
    receiver.carry(&sender, sender.order());
    assert_same(&a, &b);
}

#[test]
fn blocks_of_wrong_length_or_past_the_end_are_false() {
    let (_dir, a, b) = pair();
    write(a.join("x"), &[1; 100_000]);
    let sender = Sender::new(&contents(&a), SMALL);
    let mut receiver = sender.to_folder(&b);
    let manifest =
        sender.order().into_iter().filter(|id| id.kind() == BlockKind::Manifest).collect();
    receiver.carry(&sender, manifest);
    let block = |n| BlockId::data(n).unwrap();
    assert_eq!(receiver.store.accept(block(0), &[1; 256]), Accepted::False);
    assert_eq!(receiver.store.accept(block(7), &[1; 16384]), Accepted::False);
    receiver.carry(&sender, sender.order());
    assert_same(&a, &b);
}

/// As of a file that is written to through a map: its time of change tells nothing.
#[test]
fn a_file_that_never_comes_true_is_given_up_and_the_rest_arrives() {
    let (_dir, a, b) = pair();
    write(a.join("a"), &Random(1).bytes(3_000_000));
    write(a.join("b"), &Random(2).bytes(3_000_000));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let receiver = sender.to_folder(&b);
    let mut queue: VecDeque<BlockId> = sender.order().into();
    let (mut seen, mut carried, mut not_needed) = (0, 0, RangeSet::new());
    while let Some(id) = queue.pop_front() {
        let mut block = sender.block(id);
        if BlockId::data(0) == Some(id) {
            block[100] ^= 1;
        }
        carried += 1;
        assert!(carried < 200, "it goes on without end");
        match receiver.store.accept(id, &block) {
            Accepted::Kept => {}
            Accepted::Refused | Accepted::False => queue.push_back(id),
            Accepted::Failed => panic!("{:?}", receiver.store.failure()),
        }
        let events = receiver.events();
        for event in &events[seen..] {
            match event {
                StoreEvent::Forgotten { block, .. } => {
                    assert!(!not_needed.contains(block.number()), "{block} was called off");
                    queue.push_back(*block);
                }
                StoreEvent::NotNeeded(ranges) => {
                    for range in ranges {
                        not_needed.insert_range(range.clone());
                    }
                }
                _ => {}
            }
        }
        seen = events.len();
    }
    assert!(not_needed.contains(0));
    let failed = receiver.store.summary().failed;
    assert!(
        failed.len() == 1 && failed[0].0 == "a" && failed[0].1.contains("changes at the sender"),
        "{failed:?}"
    );
    let why = receiver.events().into_iter().find_map(|event| match event {
        StoreEvent::ObjectFailed { obstacle, .. } => Some(obstacle),
        _ => None,
    });
    assert_eq!(why, Some(Obstacle::NotAgreed), "it is the source's to mend");
    assert_eq!(std::fs::read(a.join("b")).unwrap(), std::fs::read(b.join("b")).unwrap());
}
