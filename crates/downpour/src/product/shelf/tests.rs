//! Blocks in any order, false ones, missing ones, and shelves that go on where others ended.

use super::super::clerk::{Clerk, Told};
use super::super::file::SiteFile;
use super::super::frame::{Head, SEAL_LEN};
use super::super::ours::Ours;
use super::super::queue::{Inserter, Queue};
use super::{Bookmark, Reading, Shelf, ShelfConfig};
use crate::object::{StoreEvent, StoreFailure};
use downpour_proto::{BlockId, Geometry};
use downpour_transport::control::ClockOffset;
use downpour_transport::identity::Identity;
use downpour_transport::{Accepted, BlockSink, BlockSource};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const GEOMETRY: Geometry = Geometry { symbol_len: 100, block_symbols: 10, ..Geometry::IPV4 };

/// Products of these sizes, in blocks of their own where the size is even, as blocks.
fn blocks(publisher: impl Into<Arc<Identity>>, sizes: &[usize]) -> Vec<Vec<u8>> {
    let sizes: Vec<_> = sizes.iter().map(|size| (*size, *size)).collect();
    blocks_of(publisher, &sizes)
}

/// The same of products that have fewer bytes by now than they had.
fn blocks_of(publisher: impl Into<Arc<Identity>>, sizes: &[(usize, usize)]) -> Vec<Vec<u8>> {
    blocks_with(publisher, sizes, |_| String::new())
}

/// The same of products with metadata.
fn blocks_with(
    publisher: impl Into<Arc<Identity>>,
    sizes: &[(usize, usize)],
    meta: impl Fn(usize) -> String,
) -> Vec<Vec<u8>> {
    let queue = Queue::new(GEOMETRY, [5; 16], 1 << 30);
    let mut inserter = Inserter::new(Arc::clone(&queue), publisher.into()).unwrap();
    let mut ks = Vec::new();
    let mut offer = |_, k: u16| ks.push(k);
    for (number, (size, there)) in sizes.iter().enumerate() {
        let (name, bytes) = (format!("p{number}"), vec![number as u8; *there]);
        let content = (*size as u64, &mut &bytes[..] as &mut dyn std::io::Read);
        inserter.insert((&name, &meta(number), 0), content, &mut offer).unwrap();
        if size % 2 == 0 {
            inserter.close(&mut offer).unwrap();
        }
    }
    inserter.close(&mut offer).unwrap();
    let read = |(number, k): (usize, &u16)| {
        let mut bytes = vec![0; usize::from(*k) * 100];
        queue.read(BlockId::data(number as u32).unwrap(), &mut bytes).unwrap();
        bytes
    };
    ks.iter().enumerate().map(read).collect()
}

struct World {
    shelf: Shelf,
    events: Arc<Mutex<Vec<StoreEvent>>>,
    /// The last event, when there is one.
    over: mpsc::Receiver<StoreEvent>,
}

impl World {
    fn new(publisher: &Identity, first: u32, folder: Option<&std::path::Path>) -> Self {
        Self::after(publisher, first, folder, None)
    }

    /// As the next attempt of who has got as far as `mark`.
    fn after(
        publisher: &Identity,
        first: u32,
        folder: Option<&std::path::Path>,
        mark: Option<Bookmark>,
    ) -> Self {
        Self::of(publisher, (first, mark), folder, (Arc::default(), None))
    }

    /// Of a receiver that has placed these files, and with who sees to those of sites.
    fn of(
        publisher: &Identity,
        (first, mark): (u32, Option<Bookmark>),
        folder: Option<&std::path::Path>,
        (ours, clerk): (Arc<Ours>, Option<Arc<Clerk>>),
    ) -> Self {
        let events: Arc<Mutex<Vec<StoreEvent>>> = Arc::default();
        let config = ShelfConfig {
            session: [5; 16],
            publisher: publisher.public_key(),
            first,
            mark,
            folder: folder.map(Into::into),
            ours,
            memory: 10_000,
            clock: ClockOffset { ahead_ns: 0, error: Duration::ZERO },
            log: None,
            clerk,
        };
        let (told, (tell, over)) = (Arc::clone(&events), mpsc::channel());
        let on_event = move |event: StoreEvent| {
            told.lock().unwrap().push(event.clone());
            if matches!(event, StoreEvent::Complete(_) | StoreEvent::Failed(_)) {
                let _ = tell.send(event);
            }
        };
        let shelf = Shelf::open(config, on_event).unwrap();
        Self { shelf, events, over }
    }

    fn accept(&self, number: usize, bytes: &[u8]) -> Accepted {
        self.shelf.accept(BlockId::data(number as u32).unwrap(), bytes)
    }

    fn forgotten(&self) -> Vec<u32> {
        let events = self.events.lock().unwrap();
        let of = |event: &StoreEvent| match event {
            StoreEvent::Forgotten { block, .. } => Some(block.number()),
            _ => None,
        };
        events.iter().filter_map(of).collect()
    }
}

const SIZES: [usize; 7] = [133, 10, 5_001, 0, 2_500, 77, 990];

// docs/protocol.md#PROD-4
#[test]
fn blocks_in_any_order_give_products_in_order() {
    let publisher = Identity::generate();
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&publisher, 0, Some(folder.path()));
    let blocks = blocks(publisher, &SIZES);
    for (number, bytes) in blocks.iter().enumerate().rev() {
        assert_eq!(world.shelf.bytes(), 0);
        assert_eq!(world.accept(number, bytes), Accepted::Kept);
    }
    assert_eq!(world.shelf.bytes(), SIZES.iter().sum::<usize>() as u64);
    world.shelf.finished(blocks.len() as u32);
    for (number, size) in SIZES.iter().enumerate() {
        let placed = std::fs::read(folder.path().join(format!("p{number}"))).unwrap();
        assert_eq!(placed, vec![number as u8; *size], "product {number}");
    }
    let summary = world.shelf.summary();
    assert_eq!((summary.complete, summary.bytes_received), (7, SIZES.iter().sum::<usize>() as u64));
    assert_eq!(world.over.recv().unwrap(), StoreEvent::Complete(summary));
    drop(world);
    assert!(!folder.path().join(".downpour").exists());
}

#[test]
fn how_far_it_has_got_is_told_while_a_disk_is_waited_for() {
    let publisher = Identity::generate();
    let world = World::new(&publisher, 0, None);
    let blocks = blocks(publisher, &SIZES);
    assert_eq!(world.accept(0, &blocks[0]), Accepted::Kept);
    let (shelf, waiting) = (&world.shelf, world.shelf.lock());
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || tell.send((shelf.bytes(), shelf.needed_from())));
        let told = told.recv_timeout(Duration::from_secs(60));
        drop(waiting);
        assert_eq!(told, Ok((143, 1)));
    });
}

#[test]
fn what_cannot_be_synced_is_not_complete_and_stays_so_for_who_joins_again() {
    let publisher = Arc::new(Identity::generate());
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(&publisher, 0, Some(folder.path()));
    // The system syncs nothing by such a one.
    let unsynced = rustix::fs::open(folder.path(), OFlags::PATH, Mode::empty()).unwrap();
    world.shelf.to_sync = Some(Arc::new(unsynced));
    let blocks = blocks(Arc::clone(&publisher), &SIZES);
    for (number, bytes) in blocks.iter().enumerate() {
        assert_eq!(world.accept(number, bytes), Accepted::Kept);
    }
    // The next attempt may be told how far this one has got before the sync ends.
    let early = world.shelf.mark();
    world.shelf.finished(blocks.len() as u32);
    let over = world.over.recv().unwrap();
    let StoreEvent::Failed(StoreFailure::Target(why)) = over else { panic!("{over:?}") };
    assert!(why.starts_with("what has come may not be on the disk: "), "{why}");
    let late = world.shelf.mark();
    drop(world);
    for mark in [early, late] {
        let next = World::after(&publisher, mark.block, Some(folder.path()), Some(mark));
        next.shelf.finished(blocks.len() as u32);
        let over = next.over.recv().unwrap();
        let StoreEvent::Complete(summary) = over else { panic!("{over:?}") };
        assert_eq!(summary.failed, [("products".to_owned(), why.clone())]);
    }
}

#[test]
fn what_has_no_place_fails_by_itself_and_the_next_ones_arrive() {
    let publisher = Identity::generate();
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&publisher, 0, Some(folder.path()));
    // A folder with its name is in the way of one of a byte and more, and of an empty one.
    for name in ["p2/full", "p3"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    // Its file cannot be made.
    std::fs::create_dir(folder.path().join(".downpour/product-5")).unwrap();
    let blocks = blocks(publisher, &SIZES);
    for (number, bytes) in blocks.iter().enumerate() {
        assert_eq!(world.accept(number, bytes), Accepted::Kept);
    }
    world.shelf.finished(blocks.len() as u32);
    let summary = world.shelf.summary();
    let failed: Vec<&str> = summary.failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((summary.complete, &failed[..]), (4, &["p2", "p3", "p5"][..]), "{summary:?}");
    for number in [0, 1, 4, 6] {
        let placed = std::fs::read(folder.path().join(format!("p{number}"))).unwrap();
        assert_eq!(placed, vec![number as u8; SIZES[number]], "product {number}");
    }
    assert_eq!(world.over.recv().unwrap(), StoreEvent::Complete(summary));
    drop(world);
    let left = std::fs::read_dir(folder.path().join(".downpour")).unwrap();
    assert_eq!(left.count(), 1, "only what we put there");
}

#[test]
fn a_product_replaces_only_what_this_receiver_has_placed_or_verified() {
    let publisher = Arc::new(Identity::generate());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let receive = |sizes: &[usize], ours: &Arc<Ours>| {
        let world = World::of(&publisher, (0, None), Some(folder.path()), (Arc::clone(ours), None));
        for (number, bytes) in blocks(Arc::clone(&publisher), sizes).iter().enumerate() {
            assert_eq!(world.accept(number, bytes), Accepted::Kept);
        }
        world.shelf.summary()
    };
    let failed = |summary: &crate::object::Summary| -> Vec<String> {
        summary.failed.iter().map(|(name, why)| format!("{name}: {why}")).collect()
    };
    std::fs::write(at("p0"), "precious").unwrap();
    std::os::unix::fs::symlink("../target", at("p1")).unwrap();
    std::fs::write(at("p2"), vec![2; 50]).unwrap();
    let ours = Arc::new(Ours::new(false));
    let summary = receive(&[8, 10, 50, 70, 90, 110], &ours);
    let [differs, link] = &failed(&summary)[..] else { panic!("{summary:?}") };
    assert_eq!(differs, "p0: exists and differs: --overwrite replaces it");
    assert!(link.starts_with("p1: ") && link.contains("--overwrite"), "{link}");
    assert_eq!(summary.complete, 4, "what is there with the same content is the product");
    assert_eq!(std::fs::read(at("p0")).unwrap(), b"precious");
    assert_eq!(std::fs::read_link(at("p1")).unwrap(), std::path::Path::new("../target"));
    // The next session of this receiver; two of its files are others by now, one of them in place.
    std::fs::write(at("p3"), "precious").unwrap();
    std::fs::write(at("new"), "precious, too").unwrap();
    std::fs::rename(at("new"), at("p4")).unwrap();
    let summary = receive(&[8, 10, 52, 72, 92, 112], &ours);
    let names: Vec<&str> = summary.failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["p0", "p1", "p3", "p4"], "{summary:?}");
    assert_eq!(std::fs::read(at("p2")).unwrap(), vec![2; 52], "it was verified");
    assert_eq!(std::fs::read(at("p5")).unwrap(), vec![5; 112], "it is its own");
    let summary = receive(&[8, 10, 52, 72, 92], &Arc::new(Ours::new(true)));
    assert_eq!((summary.complete, summary.failed.len()), (5, 0), "{summary:?}");
    assert_eq!(std::fs::read(at("p1")).unwrap(), vec![1; 10]);
    assert!(!at(".downpour").exists());
}

// docs/protocol.md#PROD-1
#[test]
fn who_comes_late_begins_with_the_next_product() {
    let publisher = Identity::generate();
    let world = World::new(&publisher, 2, None);
    let blocks = blocks(publisher, &SIZES);
    for (number, bytes) in blocks.iter().enumerate().skip(2) {
        world.accept(number, bytes);
    }
    let summary = world.shelf.summary();
    assert!(summary.failed.is_empty());
    assert_eq!(summary.complete, 4, "product 2 had begun before");
}

#[test]
fn false_blocks_come_again_and_nothing_is_given_twice() {
    let publisher = Identity::generate();
    let world = World::new(&publisher, 0, None);
    let blocks = blocks(publisher, &SIZES);
    let mut forged = blocks.clone();
    forged[3][50] ^= 1;
    let mut answers: Vec<Accepted> = Vec::new();
    for (number, bytes) in forged.iter().enumerate() {
        answers.push(world.accept(number, bytes));
    }
    // The product of 5,001 bytes lies in blocks 1 to 6; its end shows that it is false.
    let again: Vec<usize> =
        (0..blocks.len()).filter(|at| answers[*at] == Accepted::False).collect();
    assert_eq!(again.len(), 1, "{answers:?}");
    let again: Vec<usize> =
        world.forgotten().into_iter().map(|number| number as usize).chain(again).collect();
    assert!(again.contains(&3), "{again:?}");
    for number in again {
        world.accept(number, &blocks[number]);
    }
    world.shelf.finished(blocks.len() as u32);
    let summary = world.shelf.summary();
    assert_eq!((summary.complete, summary.failed.len()), (7, 0));
}

/// Gives all of these, and what comes again as it is right.
fn give(world: &World, forged: &[Vec<u8>], from: usize, right: &[Vec<u8>]) {
    let mut again: Vec<usize> = (from..forged.len())
        .filter(|number| world.accept(*number, &forged[*number]) == Accepted::False)
        .collect();
    let (mut told, mut is_over) = (0, false);
    loop {
        let forgotten = world.forgotten();
        again.extend(forgotten[told..].iter().map(|number| *number as usize));
        told = forgotten.len();
        let now = std::mem::take(&mut again);
        if now.is_empty() && std::mem::replace(&mut is_over, true) {
            break;
        } else if now.is_empty() {
            world.shelf.finished(right.len() as u32);
        }
        again.extend(now.into_iter().filter(|n| world.accept(*n, &right[*n]) == Accepted::False));
    }
}

/// How many bytes of frames a block has, and where the first begins, as who has the group's key may tell them.
fn forge(block: &mut [u8], used: Option<usize>, first: Option<u32>) {
    if let Some(used) = used {
        block[..4].copy_from_slice(&(used as u32).to_be_bytes());
    }
    if let Some(first) = first {
        block[4..8].copy_from_slice(&first.to_be_bytes());
    }
}

/// A product's head, if it had this size.
fn head(number: usize, size: u64) -> Vec<u8> {
    let (name, meta) = (format!("p{number}"), String::new());
    Head { number: number as u64, inserted_ns: 0, size, name, meta }.emit()
}

fn frame_len(number: usize) -> usize {
    head(number, SIZES[number] as u64).len() + SIZES[number] + SEAL_LEN
}

// docs/protocol.md#PROD-6: who has the group's key may also say that a product is longer than all that comes.
#[test]
fn a_size_that_is_false_costs_no_product() {
    let publisher = Arc::new(Identity::generate());
    let blocks = blocks(Arc::clone(&publisher), &SIZES);
    let (end, last) = (blocks.len() as u32, blocks.len() - 2);
    // Where another one begins it shows, whenever the end comes.
    for (number, block, at, shows) in [(2, 1, 0, Some(6)), (6, last, frame_len(5), None)] {
        for size in [6_000, 1 << 50] {
            let (head, mut forged) = (head(number, size), blocks.clone());
            forged[block][8 + at..][..head.len()].copy_from_slice(&head);
            let (world, all) = (World::new(&publisher, 0, None), forged.iter().enumerate());
            let mut answers = all.map(|(number, bytes)| world.accept(number, bytes));
            assert_eq!(answers.position(|answer| answer == Accepted::False), shows);
            for ends_first in [false, true] {
                let world = World::new(&publisher, 0, None);
                if ends_first {
                    world.shelf.finished(end);
                }
                give(&world, &forged, 0, &blocks);
                let of = (number, size, ends_first);
                assert_eq!((world.shelf.summary().complete, failed(&world)), (7, vec![]), "{of:?}");
            }
        }
    }
    // The sender's own.
    let world = World::new(&publisher, 0, None);
    give(&world, &blocks[..=last], 0, &blocks[..=last]);
    assert_eq!((world.shelf.summary().complete, failed(&world).len()), (6, 1));
    assert!(matches!(world.over.recv().unwrap(), StoreEvent::Complete(_)));
}

#[test]
fn a_block_that_ends_too_early_comes_again_though_all_that_it_holds_is_right() {
    let publisher = Arc::new(Identity::generate());
    let blocks = blocks(Arc::clone(&publisher), &SIZES);
    // The second product lies in the first block. The last one begins in the last block but one, after the one before.
    let last = blocks.len() - 2;
    let forgeries = [
        (0, Some(frame_len(0)), None),
        (0, None, Some(frame_len(0) as u32)),
        (last, Some(frame_len(5)), None),
        (last, None, Some(frame_len(5) as u32)),
        (last, None, Some(1)),
        (3, None, Some(7)),
    ];
    for (number, used, first) in forgeries {
        let mut forged = blocks.clone();
        forge(&mut forged[number], used, first);
        assert_ne!(forged, blocks);
        let world = World::new(&publisher, 0, None);
        give(&world, &forged, 0, &blocks);
        let summary = world.shelf.summary();
        let of = (number, used, first);
        assert_eq!((summary.complete, failed(&world)), (7, Vec::new()), "{of:?}");
    }
    // Two of one product.
    let mut forged = blocks.clone();
    for number in [2, 4] {
        forge(&mut forged[number], None, Some(7));
    }
    let world = World::new(&publisher, 0, None);
    give(&world, &forged, 0, &blocks);
    assert_eq!((world.shelf.summary().complete, failed(&world)), (7, Vec::new()));
    let mut forged = blocks.clone();
    forge(&mut forged[6], None, Some(3));
    let late = World::new(&publisher, 2, None);
    give(&late, &forged, 2, &blocks);
    assert_eq!((late.shelf.summary().complete, failed(&late)), (4, Vec::new()));
}

// docs/protocol.md#PROD-4: the digest.
#[test]
fn of_what_is_withdrawn_or_false_nothing_stays() {
    let publisher = Identity::generate();
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&publisher, 0, Some(folder.path()));
    let mut blocks = blocks_of(publisher, &[(2_500, 1_000), (2_500, 2_500), (10, 10)]);
    blocks[4][50] ^= 1;
    let staged =
        || std::fs::read_dir(folder.path().join(".downpour")).unwrap().flatten().count() - 1;
    let mut most = 0;
    for number in [0, 1, 2, 3, 4, 5, 3, 4, 5, 6] {
        world.accept(number, &blocks[number]);
        most = most.max(staged());
    }
    let summary = world.shelf.summary();
    assert_eq!((summary.complete, summary.failed.len()), (1, 3), "{summary:?}");
    assert_eq!((most, staged()), (1, 0));
}

// docs/protocol.md#PROD-4: the signature.
#[test]
fn what_the_sender_itself_has_wrong_is_given_up() {
    let (publisher, other) = (Identity::generate(), Identity::generate());
    let world = World::new(&publisher, 0, None);
    let (right, wrong) = (blocks(publisher, &SIZES), blocks(other, &SIZES));
    assert_eq!(world.accept(0, &wrong[0]), Accepted::False);
    assert_eq!(world.accept(0, &wrong[0]), Accepted::Kept, "it has come as the sender has it");
    for (number, bytes) in right.iter().enumerate().skip(1) {
        world.accept(number, bytes);
    }
    let summary = world.shelf.summary();
    assert!(!summary.failed.is_empty());
    assert_eq!(summary.complete, 5, "two lay in that block");
}

// docs/protocol.md#PROD-7
#[test]
fn a_gap_is_told_and_passed() {
    let publisher = Identity::generate();
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&publisher, 0, Some(folder.path()));
    let blocks = blocks(publisher, &SIZES);
    let staged = folder.path().join(".downpour/product-2");
    for (number, bytes) in blocks.iter().enumerate() {
        match number {
            4 => {
                assert!(staged.exists());
                world.shelf.lost(BlockId::data(4).unwrap());
                assert!(!staged.exists(), "of what is missed nothing stays");
            }
            _ => drop(world.accept(number, bytes)),
        }
    }
    world.shelf.finished(blocks.len() as u32);
    let summary = world.shelf.summary();
    assert_eq!(summary.failed[0].0, "products 2 to 2");
    assert_eq!(summary.complete, 6);
}

fn failed(world: &World) -> Vec<String> {
    world.shelf.summary().failed.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn another_shelf_goes_on_where_the_sender_was_lost() {
    let publisher = Arc::new(Identity::generate());
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&publisher, 0, Some(folder.path()));
    let blocks = blocks(publisher.clone(), &SIZES);
    for (number, bytes) in blocks.iter().enumerate().take(4) {
        world.accept(number, bytes);
    }
    let mark = world.shelf.mark();
    assert_eq!((mark.number, mark.complete), (Some(2), 2));
    assert_eq!(mark.block, world.shelf.needed_from());
    assert!((1..4).contains(&mark.block), "the third is not whole: {mark:?}");
    drop(world);
    std::fs::remove_file(folder.path().join("p1")).unwrap();
    let world = World::after(&publisher, mark.block, Some(folder.path()), Some(mark.clone()));
    for (number, bytes) in blocks.iter().enumerate().skip(mark.block as usize) {
        world.accept(number, bytes);
    }
    world.shelf.finished(blocks.len() as u32);
    assert_eq!((world.shelf.summary().complete, failed(&world)), (7, Vec::new()));
    assert_eq!(world.shelf.bytes(), SIZES.iter().sum::<usize>() as u64);
    assert!(!folder.path().join("p1").exists(), "it is not given on again");
    assert_eq!(world.shelf.needed_from(), blocks.len() as u32);
}

#[test]
fn what_the_folder_could_not_take_comes_again_to_the_next_shelf() {
    let publisher = Arc::new(Identity::generate());
    // One has its head in block 0 and its body in the next; the other is empty, and its file is made when it is placed.
    for (sizes, taken) in [([875, 5_001], 1), ([133, 0], 0)] {
        let folder = tempfile::tempdir().unwrap();
        let blocks = blocks(publisher.clone(), &sizes);
        let world = World::new(&publisher, 0, Some(folder.path()));
        // As on a disk that fails: who opens a socket is told that there is no such device.
        let _socket = UnixListener::bind(folder.path().join(".downpour/product-1")).unwrap();
        let answers: Vec<Accepted> =
            blocks.iter().enumerate().map(|(number, bytes)| world.accept(number, bytes)).collect();
        let failed_at = answers.iter().position(|answer| *answer == Accepted::Failed);
        assert_eq!(failed_at, Some(taken), "{answers:?}");
        let mark = world.shelf.mark();
        assert_eq!((mark.block, mark.number, mark.complete), (0, Some(1), 1));
        drop(world);
        let world = World::after(&publisher, 0, Some(folder.path()), Some(mark));
        for (number, bytes) in blocks.iter().enumerate() {
            assert_eq!(world.accept(number, bytes), Accepted::Kept);
        }
        world.shelf.finished(blocks.len() as u32);
        assert_eq!((world.shelf.summary().complete, failed(&world)), (2, Vec::new()));
        assert_eq!(std::fs::read(folder.path().join("p1")).unwrap(), vec![1; sizes[1]]);
    }
}

#[test]
fn what_was_not_kept_while_the_sender_was_lost_is_missed() {
    let publisher = Arc::new(Identity::generate());
    let blocks = blocks(publisher.clone(), &SIZES);
    let end = blocks.len() as u32;
    let mark = |number| Bookmark {
        block: 1,
        number,
        complete: 2,
        bytes: 143,
        failed: vec![("p1".to_owned(), "no place".to_owned())],
        ..Bookmark::default()
    };
    // The last two products begin in the last block but one.
    let last = World::after(&publisher, end - 2, None, Some(mark(Some(2))));
    for (number, bytes) in blocks.iter().enumerate().skip(end as usize - 2) {
        last.accept(number, bytes);
    }
    last.shelf.finished(end);
    let [before, missed] = &failed(&last)[..] else { panic!("{:?}", failed(&last)) };
    assert_eq!((before.as_str(), missed.as_str()), ("p1", "products 2 to 4"));
    let none = World::after(&publisher, end, None, Some(mark(Some(2))));
    none.shelf.finished(end);
    assert_eq!(failed(&none), ["p1", "products from 2 on"]);
    let nothing = World::after(&publisher, end, None, Some(mark(None)));
    nothing.shelf.finished(end);
    assert_eq!(failed(&nothing), ["p1", "products"]);
}

#[test]
fn a_block_that_came_and_was_said_to_be_lost_is_there() {
    let publisher = Identity::generate();
    let world = World::new(&publisher, 0, None);
    let blocks = blocks(publisher, &SIZES);
    let lost = |number: u32| world.shelf.lost(BlockId::data(number).unwrap());
    world.accept(2, &blocks[2]);
    lost(2);
    lost(3);
    world.accept(3, &blocks[3]);
    world.accept(3, &blocks[3]);
    for number in [0, 1, 4].into_iter().chain(5..blocks.len()) {
        assert_eq!(world.accept(number, &blocks[number]), Accepted::Kept);
    }
    assert_eq!(world.shelf.lock().waiting_bytes, 0);
    assert_eq!((world.shelf.summary().complete, failed(&world)), (7, Vec::new()));
}

#[test]
fn what_waits_is_bounded_and_what_went_for_it_comes_again_once_in_its_turn() {
    let publisher = Identity::generate();
    let world = World::new(&publisher, 0, None);
    let blocks = blocks(publisher, &[5_000; 5]);
    // The stream brings what is far ahead; then what was missed comes by pull, not quite in order.
    for number in (8..blocks.len()).chain((0..8).rev()) {
        assert!(world.forgotten().is_empty());
        assert_eq!(world.accept(number, &blocks[number]), Accepted::Kept);
        let state = world.shelf.lock();
        assert!(state.waiting_bytes <= 10_000);
        assert!((0..8).all(|near| !state.gone.contains(near)), "{number}");
    }
    let again = world.forgotten();
    assert_eq!(again.first(), Some(&world.shelf.lock().next));
    for number in again.iter().map(|number| *number as usize) {
        assert_eq!(world.accept(number, &blocks[number]), Accepted::Kept);
    }
    assert_eq!(world.forgotten(), again);
    assert_eq!((world.shelf.summary().complete, failed(&world)), (5, Vec::new()));
}

/// The metadata of a product that is a file of a site.
fn meta_of_file(number: usize, size: usize) -> String {
    let content = vec![number as u8; size];
    let file = SiteFile {
        site: "a".to_owned(),
        name: format!("p{number}"),
        version: 1,
        taken_in_us: 0,
        rule: "all".to_owned(),
        size: size as u64,
        blake3: blake3::hash(&content).to_hex().to_string(),
        digests: Vec::new(),
        path: format!("p{number}"),
    };
    file.to_meta().unwrap()
}

#[test]
fn what_was_under_way_when_a_sync_failed_comes_again_to_the_next_shelf() {
    let (publisher, identity) = (Arc::new(Identity::generate()), Arc::new(Identity::generate()));
    // One of them may be a product as any other, which comes not again.
    for other in [None, Some(1)] {
        let folder = tempfile::tempdir().unwrap();
        let clerk = Arc::new(Clerk::new(folder.path().to_owned(), Arc::clone(&identity), None));
        clerk.begin("s".to_owned());
        let sizes = [(90, 90), (10, 10), (5_000, 5_000)];
        let meta = |number| match Some(number) == other {
            true => String::new(),
            false => meta_of_file(number, sizes[number].0),
        };
        let blocks = blocks_with(publisher.clone(), &sizes, meta);
        let shelf = |begun| {
            let seen_to = (Arc::default(), Some(Arc::clone(&clerk)));
            World::of(&publisher, begun, Some(folder.path()), seen_to)
        };
        let told = || {
            let word = clerk.next_word().unwrap();
            clerk.told(&word);
            let of = |told: &Told| match told {
                Told::Placed { receipt } => receipt.receipt.name.clone(),
                Told::Failed { what, .. } => what.clone(),
            };
            word.files.iter().map(of).collect::<Vec<_>>()
        };
        let world = shelf((0, None));
        let last = blocks.len() - 1;
        for (number, bytes) in blocks.iter().enumerate().take(last) {
            assert_eq!(world.accept(number, bytes), Accepted::Kept);
        }
        let attended = ["p0", "p1"].into_iter().take(if other.is_some() { 1 } else { 2 });
        assert_eq!(told(), attended.collect::<Vec<_>>());
        clerk.unsynced(&[], Errno::IO);
        assert_eq!(world.accept(last, &blocks[last]), Accepted::Failed);
        let over = world.over.recv().unwrap();
        assert!(matches!(over, StoreEvent::Failed(StoreFailure::Target(_))), "{over:?}");
        assert!(!folder.path().join("p2").exists());
        let mark = world.shelf.mark();
        assert_eq!((mark.number, mark.complete), (Some(2), 2));
        drop(world);
        let world = shelf((mark.block, Some(mark.clone())));
        for (number, bytes) in blocks.iter().enumerate().skip(mark.block as usize) {
            assert_eq!(world.accept(number, bytes), Accepted::Kept);
        }
        assert_eq!((told(), world.shelf.summary().complete), (vec!["p2".to_owned()], 3));
        world.shelf.finished(blocks.len() as u32);
        let over = world.over.recv().unwrap();
        let StoreEvent::Complete(summary) = over else { panic!("{over:?}") };
        assert_eq!(summary.failed.len(), usize::from(other.is_some()), "{:?}", summary.failed);
    }
}

#[test]
fn a_file_of_a_site_that_finds_no_room_is_told_as_such_and_the_next_one_arrives() {
    let (publisher, identity) = (Arc::new(Identity::generate()), Arc::new(Identity::generate()));
    let folder = tempfile::tempdir().unwrap();
    let clerk = Arc::new(Clerk::new(folder.path().to_owned(), identity, None));
    clerk.begin("s".to_owned());
    let sizes = [(5_000, 5_000), (90, 90)];
    let meta = |number: usize| meta_of_file(number, sizes[number].0);
    let (told, out) = (Arc::clone(&clerk), Some(folder.path()));
    let world = World::of(&publisher, (0, None), out, (Arc::default(), Some(clerk)));
    let blocks = blocks_with(Arc::clone(&publisher), &sizes, meta);
    for (number, bytes) in blocks.iter().enumerate() {
        if number == 2 {
            let mut state = world.shelf.lock();
            let Reading::Body(body) = &mut state.reading else { panic!("it is not under way") };
            body.staged.as_mut().unwrap().as_mut().unwrap().fill();
        }
        assert_eq!(world.accept(number, bytes), Accepted::Kept, "block {number}");
    }
    let word = told.next_word().unwrap();
    let [Told::Failed { class, what, .. }, Told::Placed { .. }] = &word.files[..] else {
        panic!("{word:?}")
    };
    assert_eq!((class.as_str(), what.contains("No space")), ("destination-full", true), "{what}");
    assert!(!folder.path().join("p0").exists() && folder.path().join("p1").exists());
    // The clerk outlives it, and keeps nothing of the folder open.
    drop(world);
    let of_folder = std::fs::canonicalize(folder.path()).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    assert_eq!(open.filter(|path| path.starts_with(&of_folder)).count(), 0);
}
