//! Streams, pipes, the void, and files written in place.

use crate::harness::{MIDDLE, Random, SMALL, Sender, contents, pair, write};
use crate::roundtrip::sparse;
use crate::skipped::not_here;
use downpour::object::{
    ContentSource, Destination, PipeOut, Store, StoreConfig, StoreEvent, StoreFailure,
};
use downpour_proto::{BlockId, Geometry};
use downpour_transport::{Accepted, BlockSink, BlockSource};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A pipe that gives `bytes`.
fn piped(bytes: Vec<u8>) -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::thread::spawn(move || writer.write_all(&bytes));
    reader.into()
}

fn streaming(input: OwnedFd, spool: &Path, geometry: Geometry) -> Sender {
    let source = ContentSource::stream(input, b"stdin", spool, geometry).unwrap();
    assert_eq!(source.data_len(), None);
    let mut sender = Sender::of(source, Arc::default());
    sender.hash();
    sender
}

const MIB: usize = 1 << 20;

#[test]
fn a_stream_arrives_whatever_its_length() {
    for len in [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB + 77] {
        let (dir, _, b) = pair();
        let bytes = Random(4).bytes(len);
        let sender = streaming(piped(bytes.clone()), dir.path(), MIDDLE);
        assert_eq!(sender.source.data_len(), Some(len as u64));
        let mut receiver = sender.to_folder(&b);
        let mut order = sender.order();
        Random(len as u64 + 1).shuffle(&mut order);
        receiver.carry(&sender, order);
        assert_eq!(receiver.summary().failed, []);
        assert!(fs::read(b.join("stdin")).unwrap() == bytes, "{len}");

        let out = Shared::default();
        let destination =
            Destination::Pipe { out: PipeOut::new(Box::new(out.clone())), window: 2 << 20 };
        let mut receiver = sender.receiver(destination);
        receiver.carry(&sender, sender.order());
        receiver.summary();
        assert!(*out.0.lock().unwrap() == bytes, "{len}");
    }
}

#[test]
fn a_long_stream_has_several_sections_and_resumes() {
    let (dir, _, b) = pair();
    let bytes = Random(4).bytes(130 * MIB + 5);
    let sender = streaming(piped(bytes.clone()), dir.path(), Geometry::IPV4);
    assert_eq!(sender.sections.len(), 7, "tree, 8, 8, 16, 32, 64 MiB, the rest");
    let mut first = sender.to_folder(&b);
    let order = sender.order();
    first.carry(&sender, order[..order.len() / 2].to_vec());
    drop(first);
    let mut second = sender.to_folder(&b);
    second.carry_needed(&sender);
    assert!(fs::read(b.join("stdin")).unwrap() == bytes);
    assert!(second.summary().bytes_held > 60 << 20);
}

#[test]
fn input_that_can_be_read_twice_is_not_spooled() {
    let (_dir, a, b) = pair();
    let bytes = Random(4).bytes(3 * MIB);
    write(a.join("input"), &bytes);
    let input = File::open(a.join("input")).unwrap();
    rustix::fs::seek(&input, rustix::fs::SeekFrom::Start(1000)).unwrap();
    // A spool folder that does not exist is not needed.
    let sender = streaming(input.into(), Path::new("/nowhere"), MIDDLE);
    sender.to_folder(&b).carry(&sender, sender.order());
    assert!(fs::read(b.join("stdin")).unwrap() == bytes[1000..]);
}

/// What sends a file of three groups, to the last of which was written until its time had moved; the file, and what was in it.
fn touched() -> (tempfile::TempDir, Sender, File, Vec<u8>) {
    let (dir, a, _) = pair();
    let path = a.join("input");
    let bytes = Random(4).bytes(3 * MIB);
    write(&path, &bytes);
    let sender =
        streaming(File::open(&path).unwrap().into(), Path::new("/nowhere"), Geometry::IPV4);
    sender.order().into_iter().for_each(|id| drop(sender.block(id)));
    let file = File::options().write(true).open(&path).unwrap();
    let changed = || fs::metadata(&path).map(|now| (now.ctime(), now.ctime_nsec())).unwrap();
    let opened = changed();
    while changed() == opened {
        file.write_all_at(&[!bytes[2 * MIB]], 2 * MIB as u64).unwrap();
    }
    (dir, sender, file, bytes)
}

#[test]
fn input_that_is_pulled_piece_by_piece_is_looked_at_once_a_group_and_where_a_piece_comes_again() {
    let (here, beyond) = (99, MIB + 99);
    for (first, change, next, last) in
        [(0, here, 9, 9), (MIB - 18, beyond, MIB - 9, MIB), (MIB - 20, beyond, MIB - 11, MIB - 2)]
    {
        let (_dir, sender, file, bytes) = touched();
        let pull = |at: usize| sender.source.read_data(at as u64, &mut [0; 9]);
        pull(first).unwrap();
        file.write_all_at(&[!bytes[change]], change as u64).unwrap();
        pull(next).expect("the group around was right at the piece before");
        assert_eq!(sender.source.lost(), None);
        pull(last).unwrap_err();
        assert!(sender.source.lost().is_some());
    }
}

#[test]
fn input_that_cannot_be_read_again_is_lost_and_says_so() {
    for (cut, pulled) in [(true, false), (true, true), (false, false), (false, true)] {
        let (_dir, sender, file, bytes) = touched();
        // The bytes that a receiver pulls are fewer than have a digest.
        let pull = |buf: &mut [u8]| sender.source.read_data(MIB as u64 / 2, buf);
        pull(&mut [0; 9]).unwrap();
        assert_eq!(sender.source.lost(), None);
        match cut {
            true => file.set_len(5).unwrap(),
            false => file.write_all_at(&[!bytes[0]], 0).unwrap(),
        }
        let again = match pulled {
            true => pull(&mut [0; 9]),
            false => {
                let mut buf = vec![0; 16 * MIB];
                sender.source.read(BlockId::data(0).unwrap(), &mut buf).map(drop)
            }
        };
        let why = again.unwrap_err().reason;
        assert!(why.starts_with("the input changed while being sent: send it again"), "{why}");
        assert_eq!(sender.source.lost(), Some(why));
    }
}

#[test]
fn a_spool_folder_that_is_missing_is_named() {
    let error = ContentSource::stream(piped(vec![1]), b"stdin", Path::new("/nowhere"), MIDDLE);
    let text = error.err().unwrap().to_string();
    assert!(text.contains("/nowhere") && text.contains("a folder with room"), "{text}");
}

#[test]
fn a_pipe_gets_one_file_in_order_with_zeros_for_holes() {
    let (_dir, a, _) = pair();
    sparse(&a.join("f"), 9 << 20, &[(2 << 20, 700_000), (5 << 20, 3)]);
    for (geometry, window, seed) in [(MIDDLE, 4 << 20, 1), (SMALL, 2 << 20, 2)] {
        let sender = Sender::new(&contents(&a), geometry);
        let out = Shared::default();
        let destination = Destination::Pipe { out: PipeOut::new(Box::new(out.clone())), window };
        let mut receiver = sender.receiver(destination);
        let mut order = sender.order();
        Random(seed).shuffle(&mut order);
        receiver.carry(&sender, order);
        receiver.summary();
        assert!(*out.0.lock().unwrap() == fs::read(a.join("f")).unwrap());
    }
}

#[test]
fn a_pipe_takes_blocks_of_more_groups_than_its_window() {
    let (_dir, a, _) = pair();
    write(a.join("dense"), &Random(4).bytes(10 * MIB));
    let pieces: Vec<_> = (0..20).map(|i| (i << 20, 9)).collect();
    sparse(&a.join("pieces"), 20 << 20, &pieces);
    for (file, seed) in [("dense", 0), ("dense", 1), ("pieces", 0)] {
        let sender = Sender::new(&[a.join(file)], Geometry::IPV4);
        let out = Shared::default();
        let destination =
            Destination::Pipe { out: PipeOut::new(Box::new(out.clone())), window: 2 << 20 };
        let mut receiver = sender.receiver(destination);
        let mut order = sender.order();
        if seed > 0 {
            Random(seed).shuffle(&mut order);
        }
        receiver.carry(&sender, order);
        receiver.summary();
        assert!(*out.0.lock().unwrap() == fs::read(a.join(file)).unwrap());
    }
}

/// A block that came too early waits for who is at work on the manifest, and not for ever when that fails.
#[test]
fn who_waits_for_the_manifest_ends_with_it() {
    let (_dir, a, _) = pair();
    let out = PipeOut::new(Box::new(Shared::default()));
    let destination = || Destination::Pipe { out: out.clone(), window: 0 };
    write(a.join("f"), &Random(1).bytes(3 * MIB));
    let other = Sender::new(&contents(&a), MIDDLE);
    other.receiver(destination()).carry(&other, other.order());
    write(a.join("f"), &Random(2).bytes(3 * MIB));
    let sender = Sender::new(&contents(&a), MIDDLE);
    let (at_tree, is_at_tree) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let config = StoreConfig { early_bytes_max: 0, ..sender.config() };
    let on_event = move |event| {
        if matches!(event, StoreEvent::Tree(_)) {
            at_tree.send(()).unwrap();
            let _ = may_go_on.lock().unwrap().recv();
        }
    };
    let store = Arc::new(Store::open(config, destination(), on_event).unwrap());
    let (answer, answers) = mpsc::channel();
    let accept = |id: BlockId| {
        let (store, block, answer) = (store.clone(), sender.block(id), answer.clone());
        std::thread::spawn(move || answer.send(store.accept(id, &block)));
    };
    let manifest = |number| BlockId::manifest(number).unwrap();
    assert_eq!(store.accept(manifest(1), &sender.block(manifest(1))), Accepted::Kept);
    accept(manifest(0));
    is_at_tree.recv().unwrap();
    accept(BlockId::data(0).unwrap());
    let waiting = answers.recv_timeout(Duration::from_millis(50));
    assert!(waiting.is_err(), "it waits");
    drop(go_on);
    let ended = || answers.recv_timeout(Duration::from_secs(60)).expect("it ends");
    assert!([ended(), ended()].contains(&Accepted::Failed));
    assert!(store.failure().unwrap().to_string().contains("something else"));
}

#[test]
fn a_pipe_takes_no_tree() {
    let (_dir, a, _) = pair();
    write(a.join("x"), b"x");
    write(a.join("y"), b"y");
    let sender = Sender::new(&contents(&a), MIDDLE);
    let out = PipeOut::new(Box::new(Shared::default()));
    let receiver = sender.receiver(Destination::Pipe { out: out.clone(), window: 0 });
    let id = BlockId::manifest(0).unwrap();
    assert_eq!(receiver.store.accept(id, &sender.block(id)), Accepted::Failed);
    let text = receiver.store.failure().unwrap().to_string();
    assert!(text.contains("takes one file"), "{text}");
    assert!(!out.is_spent(), "the next session may suit");
}

#[test]
fn a_broken_pipe_is_the_end() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (_dir, a, _) = pair();
    write(a.join("x"), &[1; 100_000]);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let out = PipeOut::new(Box::new(Broken));
    let receiver = sender.receiver(Destination::Pipe { out: out.clone(), window: 0 });
    let answers: Vec<_> =
        sender.order().into_iter().map(|id| receiver.store.accept(id, &sender.block(id))).collect();
    assert_eq!(answers, [Accepted::Kept, Accepted::Kept, Accepted::Failed]);
    assert!(receiver.store.failure().unwrap().to_string().contains("output"));
    assert!(out.is_spent(), "for any other session, too");
}

#[test]
fn nothing_is_kept_of_what_is_discarded_but_all_is_verified() {
    let (_dir, a, _) = pair();
    write(a.join("x"), &Random(1).bytes(5 * MIB));
    write(a.join("y"), b"y");
    let sender = Sender::new(&contents(&a), MIDDLE);
    let mut receiver = sender.receiver(Destination::Discard);
    receiver.carry(&sender, sender.order());
    assert_eq!(Some(receiver.summary().bytes_received), sender.source.data_len());
    let receiver = sender.receiver(Destination::Discard);
    let mut answers = Vec::new();
    for id in sender.order() {
        let mut block = sender.block(id);
        block[7] ^= u8::from(id == BlockId::data(2).unwrap());
        answers.push(receiver.store.accept(id, &block));
    }
    let forgotten =
        receiver.events().into_iter().any(|e| matches!(e, StoreEvent::Forgotten { .. }));
    assert!(answers.contains(&Accepted::False) || forgotten);
}

#[test]
fn a_file_is_written_in_place_and_what_is_there_already_is_not_taken_again() {
    let (dir, a, _) = pair();
    sparse(&a.join("image"), 9 << 20, &[(0, 3 << 20), (5 << 20, 700_000), (6 << 20, 1 << 20)]);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let path = dir.path().join("target");
    write(&path, &Random(8).bytes(12 << 20));
    let raw = || Destination::Raw(path.clone());
    let mut receiver = sender.receiver(raw());
    let mut order = sender.order();
    Random(6).shuffle(&mut order);
    receiver.carry(&sender, order);
    receiver.summary();
    assert!(fs::read(&path).unwrap() == fs::read(a.join("image")).unwrap(), "holes are zeros");
    drop(receiver);

    let mut bytes = fs::read(&path).unwrap();
    bytes[2 << 20] ^= 1;
    write(&path, &bytes);
    let mut receiver = sender.receiver(raw());
    receiver.carry_needed(&sender);
    assert_eq!(receiver.summary().bytes_received, 1 << 20);
    assert!(fs::read(&path).unwrap() == fs::read(a.join("image")).unwrap());
}

/// A loop device, detached when this is dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// On this file; `None` where there can be none.
    fn attach(backing: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(backing).output().ok()?;
        let path = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| Self(path.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_written_in_place() {
    let (dir, a, _) = pair();
    let backing = dir.path().join("backing");
    write(&backing, &Random(8).bytes(12 << 20));
    let Some(device) = LoopDevice::attach(&backing) else {
        let name = "a_block_device_is_written_in_place";
        return not_here(name, "no loop device can be attached");
    };
    let path = device.0.as_path();
    sparse(&a.join("image"), 9 << 20, &[(0, 3 << 20), (5 << 20, 700_000)]);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let raw = || Destination::Raw(path.to_owned());
    let mut receiver = sender.receiver(raw());
    receiver.carry(&sender, sender.order());
    receiver.summary();
    assert!(fs::read(path).unwrap()[..9 << 20] == fs::read(a.join("image")).unwrap());
    sparse(&a.join("image"), 13 << 20, &[(0, 3 << 20)]);
    drop(receiver);
    let too_large = Sender::new(&contents(&a), MIDDLE);
    let receiver = too_large.receiver(raw());
    let id = BlockId::manifest(0).unwrap();
    let answer = receiver.store.accept(id, &too_large.block(id));
    let events = receiver.events();
    assert_eq!(answer, Accepted::Failed);
    let small = |event: &StoreEvent| {
        matches!(event, StoreEvent::Failed(StoreFailure::TooSmall { needed, available })
            if (*needed, *available) == (13 << 20, 12 << 20))
    };
    assert!(events.iter().any(small), "{events:?}");
    drop(receiver);
    // Of a stream it shows only when the device is full.
    let bytes = Random(9).bytes(13 << 20);
    let long = streaming(piped(bytes), dir.path(), MIDDLE);
    let receiver = long.receiver(raw());
    let kept = |id: &BlockId| receiver.store.accept(*id, &long.block(*id)) == Accepted::Kept;
    assert!(!long.order().iter().all(kept));
    let text = receiver.store.failure().unwrap().to_string();
    assert!(text.contains("the device is too small") && text.contains("12582912"), "{text}");
}

#[test]
fn a_pipe_goes_on_where_the_attempt_before_was() {
    let (_dir, a, _) = pair();
    sparse(&a.join("f"), 9 << 20, &[(0, 1 << 20), (2 << 20, 3 << 20), (8 << 20, 5)]);
    let sender = Sender::new(&contents(&a), MIDDLE);
    let written = Shared::default();
    let out = PipeOut::new(Box::new(written.clone()));
    let attempt =
        |sender: &Sender| sender.receiver(Destination::Pipe { out: out.clone(), window: 2 << 20 });
    let order = sender.order();
    for blocks in [2, 6, 9] {
        attempt(&sender).carry(&sender, order[..blocks].to_vec());
    }
    let before = written.0.lock().unwrap().len();
    assert!((1..9 << 20).contains(&before), "{before}");
    let mut last = attempt(&sender);
    last.carry_needed(&sender);
    assert!(last.summary().bytes_held > 0);
    assert!(*written.0.lock().unwrap() == fs::read(a.join("f")).unwrap());
    // All is written, and only its receipt was lost.
    attempt(&sender).carry_needed(&sender);
    assert_eq!(written.0.lock().unwrap().len(), 9 << 20);

    assert!(!out.is_spent());

    // What is sent now is something else.
    sparse(&a.join("f"), 9 << 20, &[(2 << 20, 2 << 20)]);
    let other = Sender::new(&contents(&a), MIDDLE);
    let receiver = attempt(&other);
    let manifest: Vec<_> = other.order().into_iter().take(2).collect();
    let answers: Vec<_> =
        manifest.iter().map(|id| receiver.store.accept(*id, &other.block(*id))).collect();
    assert!(answers.contains(&Accepted::Failed), "{answers:?}");
    let text = receiver.store.failure().unwrap().to_string();
    assert!(text.contains("something else") && out.is_spent(), "{text}");
    // Unless it comes behind.
    out.end();
    attempt(&other).carry_needed(&other);
    assert_eq!(written.0.lock().unwrap().len(), 18 << 20);
}
