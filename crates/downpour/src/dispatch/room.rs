//! Room for what arrives: what is free, what is promised to batches, and what lies in the lanes of receiving folders.
//!
//! 1. A batch runs in a lane of its folder, in which partial files stay when it is cut. What is there of a file that is offered
//!    again is room that it has already: its lane is the one where most of its batch has arrived.
//! 2. Offers are judged one after the other, and beside none of them takes room what comes without one: by multicast, or fetched. What
//!    an offer takes is promised and its lane is its own from then on, and until the batch has taken it from the file system itself.
//! 3. What would not fit otherwise lets partial files go that no batch asks for, if it fits then. A lane in which a session runs,
//!    maybe of another daemon that shares the folder, is locked, and left alone.

use super::lock;
use super::offer::Trouble;
use crate::object::{free_bytes, open_file, part_name};
use crate::units::show_bytes;
use downpour_catalog::ErrorClass;
use rustix::fs::{FlockOperation, SeekFrom, flock, seek};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Part of the file system that is left free.
const SPARE: u64 = 64 << 20;
/// When to ask again for what found no room, seconds.
const NO_ROOM_S: u32 = 30;
/// Pieces of a partial file that are looked at, at most.
const PIECES_MAX: usize = 256;
/// Lanes of one receiving folder.
pub(super) const LANES_MAX: usize = 64;

/// Room that is promised, by file system, and lanes in use, by receiving folder.
#[derive(Debug, Default)]
pub(super) struct Room {
    promised: Mutex<HashMap<u64, u64>>,
    /// Held for no disk, which may not answer: what ends gives its lane back wherever it runs. More lanes come in use in turn only.
    lanes: Mutex<Used>,
    /// File systems on which somebody takes room or a lane, for as long as the disk takes: one at a time, and one that does not answer
    /// holds up no other.
    turns: Mutex<HashSet<u64>>,
    turn_over: Condvar,
}

/// Nobody else takes room or a lane on a file system.
struct Turn {
    room: Arc<Room>,
    device: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.room.turns).remove(&self.device);
        self.room.turn_over.notify_all();
    }
}

fn no_room(size: u64, free: u64) -> Trouble {
    let spare = show_bytes(SPARE);
    let what = format!(
        "{size} bytes are needed, {free} are free beside {spare} that stay free and what others were promised"
    );
    Trouble::new(ErrorClass::DestinationFull, what).after(NO_ROOM_S)
}

/// Which file system a folder is on; folders that are made later are on that of the nearest one above.
fn device(folder: &Path) -> Option<(PathBuf, u64)> {
    let there = |path: &&Path| path.metadata().is_ok();
    let above = folder.ancestors().find(there)?;
    Some((above.to_owned(), above.metadata().ok()?.dev()))
}

impl Room {
    /// Bytes that can still be promised below a folder; where nobody can tell, any number.
    fn free(&self, folder: &Path) -> u64 {
        let Some((above, device)) = device(folder) else { return u64::MAX };
        let Ok(fs) = rustix::fs::statvfs(&above) else { return u64::MAX };
        let free = free_bytes(&fs);
        let promised = lock(&self.promised).get(&device).copied().unwrap_or(0);
        free.saturating_sub(SPARE).saturating_sub(promised)
    }

    /// Promises room until the promise is dropped.
    pub(super) fn promise(self: &Arc<Self>, folder: &Path, bytes: u64) -> Promise {
        let device = device(folder).map_or(0, |(_, device)| device);
        self.more_promised(device, bytes);
        Promise { room: self.clone(), device, bytes: bytes.into() }
    }

    fn more_promised(&self, device: u64, bytes: u64) {
        let mut promised = lock(&self.promised);
        let promised = promised.entry(device).or_default();
        *promised = promised.saturating_add(bytes);
    }

    /// What there is for an offer of files whose partial files are called so; others wait until it is dropped.
    pub(super) fn space<'a>(
        self: &'a Arc<Self>,
        folder: &'a Path,
        parts: &HashSet<String>,
    ) -> Space<'a> {
        let turn = self.turn(folder);
        let lane = self.lane_in_turn(folder, parts);
        let begun: HashMap<String, u64> = match &lane {
            Some(lane) => {
                let there = parts_of(folder, lane.name());
                there.filter(|(name, _)| parts.contains(name)).collect()
            }
            None => HashMap::new(),
        };
        self.space_in_turn(turn, folder, (lane, begun))
    }

    fn space_in_turn<'a>(
        self: &'a Arc<Self>,
        turn: Turn,
        folder: &'a Path,
        (lane, begun): (Option<Lane>, HashMap<String, u64>),
    ) -> Space<'a> {
        let (free, promise) = (self.free(folder), self.promise(folder, 0));
        let reserved = Reserved { promise, lane };
        Space { room: self, folder, reserved, free, begun, most: u64::MAX, _turn: turn }
    }

    /// Takes room for what comes without an offer, and in no lane.
    pub(super) fn take(self: &Arc<Self>, folder: &Path, size: u64) -> Result<Promise, Trouble> {
        let mut space = self.space_in_turn(self.turn(folder), folder, (None, HashMap::new()));
        space.take_bytes(size)?;
        Ok(space.reserved.promise)
    }

    /// A lane for a batch with these partial files; `None`: all are in use.
    pub(super) fn lane(self: &Arc<Self>, folder: &Path, parts: &HashSet<String>) -> Option<Lane> {
        let _turn = self.turn(folder);
        self.lane_in_turn(folder, parts)
    }

    fn lane_in_turn(self: &Arc<Self>, folder: &Path, parts: &HashSet<String>) -> Option<Lane> {
        let used = self.used();
        let key = (folder.to_owned(), best_lane(folder, &used, parts)?);
        lock(&self.lanes).insert(key.clone());
        Some(Lane { room: self.clone(), key })
    }

    /// Waits until it is somebody's turn on the file system of a folder.
    fn turn(self: &Arc<Self>, folder: &Path) -> Turn {
        let device = device(folder).map_or(0, |(_, device)| device);
        let mut turns = lock(&self.turns);
        while !turns.insert(device) {
            turns = self.turn_over.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        drop(turns);
        Turn { room: self.clone(), device }
    }

    fn used(&self) -> Used {
        lock(&self.lanes).clone()
    }
}

type Used = HashSet<(PathBuf, String)>;

/// A lane in which no session runs, and none begins meanwhile.
struct FreeLane {
    name: String,
    lock: Option<File>,
}

impl FreeLane {
    fn of(folder: &Path, name: String) -> Option<Self> {
        let path = folder.join(".downpour").join(&name).join("lock");
        // Where there is none, nobody has run in it.
        let lock = File::options().read(true).write(true).open(path).ok();
        let is_locked = lock.as_ref().is_some_and(|lock| {
            flock(lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        });
        (!is_locked).then_some(Self { name, lock })
    }
}

impl Drop for FreeLane {
    fn drop(&mut self) {
        // By closing it alone a program that was started meanwhile would hold it until it runs.
        let _ = self.lock.as_ref().map(File::unlock);
    }
}

fn free_lanes(folder: &Path, used: &Used) -> Vec<FreeLane> {
    let names = (0..LANES_MAX).map(|number| format!("lane-{number}"));
    let free = names.filter(|lane| !used.contains(&(folder.to_owned(), lane.clone())));
    free.filter_map(|lane| FreeLane::of(folder, lane)).collect()
}

/// The free lane in which most of the bytes of these have arrived; of several such, the one that has most of the files.
fn best_lane(folder: &Path, used: &Used, parts: &HashSet<String>) -> Option<String> {
    let begun = |lane: &str| {
        let at = parts_folder(folder, lane);
        let there = parts_of(folder, lane).filter(|(name, _)| parts.contains(name));
        there.fold((0, 0), |(sum, count), (name, bytes)| {
            (sum + arrived(&at.join(name)).unwrap_or(bytes), count + 1)
        })
    };
    let free = free_lanes(folder, used).into_iter().enumerate();
    let best = free.max_by_key(|(index, lane)| (begun(&lane.name), usize::MAX - index));
    best.map(|(_, lane)| lane.name.clone())
}

/// Bytes of a partial file that were written: it is allocated whole beforehand. `None`: nobody can tell.
fn arrived(part: &Path) -> Option<u64> {
    let file = open_file(part).ok()??;
    let (mut at, mut bytes) = (0, 0);
    for _ in 0..PIECES_MAX {
        let start = match seek(&file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            start => start.ok()?,
        };
        at = seek(&file, SeekFrom::Hole(start)).ok()?;
        bytes += at.saturating_sub(start);
    }
    Some(bytes)
}

fn parts_folder(folder: &Path, lane: &str) -> PathBuf {
    folder.join(".downpour").join(lane).join("parts")
}

/// The partial files in a lane, with the bytes that they take.
fn parts_of(folder: &Path, lane: &str) -> impl Iterator<Item = (String, u64)> {
    let entries = std::fs::read_dir(parts_folder(folder, lane)).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let blocks = entry.metadata().ok()?.blocks();
        Some((entry.file_name().into_string().ok()?, blocks * 512))
    })
}

/// Removes the partial files in these lanes that nobody wants, if they make up what is missing. Says how many bytes it removed; or
/// how many there are.
fn clear(
    folder: &Path,
    lanes: &[FreeLane],
    missing: u64,
    is_kept: impl Fn(&str, &str) -> bool,
) -> Result<u64, u64> {
    let mut idle = Vec::new();
    for lane in lanes {
        let parts = parts_of(folder, &lane.name).filter(|(name, _)| !is_kept(&lane.name, name));
        let at = parts_folder(folder, &lane.name);
        idle.extend(parts.map(|(name, bytes)| (at.join(name), bytes)));
    }
    let there = idle.iter().map(|(_, bytes)| bytes).sum();
    if there < missing {
        return Err(there);
    }
    tracing::info!(files = idle.len(), folder = %folder.display(), "partial files make room");
    let removed = idle.iter().filter(|(part, _)| std::fs::remove_file(part).is_ok());
    Ok(removed.map(|(_, bytes)| bytes).sum())
}

/// Room for the files of an offer, as they are judged one after the other.
pub(super) struct Space<'a> {
    room: &'a Room,
    folder: &'a Path,
    reserved: Reserved,
    free: u64,
    /// What their partial files take.
    begun: HashMap<String, u64>,
    /// No more than this can be made free.
    most: u64,
    _turn: Turn,
}

impl Space<'_> {
    /// Takes room for a file. Says how much it needs beside what it has.
    pub(super) fn take(&mut self, path: &str, size: u64) -> Result<u64, Trouble> {
        let begun = self.begun.get(&part_name(path.as_bytes(), size)).copied().unwrap_or(0);
        let needed = size.saturating_sub(begun);
        self.take_bytes(needed)?;
        Ok(needed)
    }

    fn take_bytes(&mut self, needed: u64) -> Result<(), Trouble> {
        if needed > self.free {
            self.free += self.clear(needed - self.free);
        }
        self.free = self.free.checked_sub(needed).ok_or_else(|| no_room(needed, self.free))?;
        self.reserved.promise.add(needed);
        Ok(())
    }

    /// What was taken is held from now on.
    pub(super) fn reserve(self) -> Reserved {
        self.reserved
    }

    /// Makes room for so much more, if it can; says how much it made.
    fn clear(&mut self, missing: u64) -> u64 {
        if missing > self.most {
            return 0;
        }
        let used = self.room.used();
        let own = self.reserved.lane.as_ref().map(Lane::name);
        let mut lanes = free_lanes(self.folder, &used);
        lanes.extend(own.and_then(|own| FreeLane::of(self.folder, own.to_owned())));
        let is_kept = |lane: &str, name: &str| own == Some(lane) && self.begun.contains_key(name);
        let cleared = clear(self.folder, &lanes, missing, is_kept);
        self.most = cleared.err().unwrap_or(0);
        cleared.unwrap_or(0)
    }
}

/// What a batch holds from its offer on.
pub(super) struct Reserved {
    /// Room for what it lacks.
    pub(super) promise: Promise,
    /// Its lane, until it begins; `None` where all were in use.
    pub(super) lane: Option<Lane>,
}

/// Room that is held.
#[derive(Debug)]
pub(super) struct Promise {
    room: Arc<Room>,
    device: u64,
    bytes: AtomicU64,
}

impl Promise {
    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.room.more_promised(self.device, bytes);
    }

    /// No more than so many bytes are still to be taken from the file system.
    pub(super) fn keep(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::Relaxed);
        if let Some(promised) = lock(&self.room.promised).get_mut(&self.device) {
            *promised = promised.saturating_sub(before.saturating_sub(bytes));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// A lane in use.
pub(super) struct Lane {
    room: Arc<Room>,
    key: (PathBuf, String),
}

impl Lane {
    pub(super) fn name(&self) -> &str {
        &self.key.1
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        lock(&self.room.lanes).remove(&self.key);
    }
}

#[cfg(test)]
impl Room {
    /// All that is promised.
    pub(super) fn promised(&self) -> u64 {
        lock(&self.promised).values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{Room, Turn, lock, parts_folder};
    use crate::object::{free_bytes, part_name};
    use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::Arc;

    const SIZE: u64 = 8 << 20;

    /// A partial file of a file with this path.
    fn begun(folder: &Path, lane: &str, path: &str) -> String {
        begun_of(folder, lane, path, SIZE)
    }

    fn begun_of(folder: &Path, lane: &str, path: &str, size: u64) -> String {
        let name = part_name(path.as_bytes(), size);
        let parts = parts_folder(folder, lane);
        std::fs::create_dir_all(&parts).unwrap();
        std::fs::write(parts.join(&name), vec![1; size as usize]).unwrap();
        name
    }

    #[test]
    fn where_nobody_can_tell_there_is_room() {
        let mut fs = rustix::fs::statvfs("/").unwrap();
        (fs.f_blocks, fs.f_bavail, fs.f_frsize) = (9, 7, 512);
        assert_eq!(free_bytes(&fs), 7 * 512);
        (fs.f_blocks, fs.f_bavail) = (0, 0);
        assert_eq!(free_bytes(&fs), u64::MAX);
        let (folder, room) = (tempfile::tempdir().unwrap(), Arc::new(Room::default()));
        let _all = [(); 2].map(|()| room.promise(folder.path(), u64::MAX));
        assert_eq!(room.promised(), u64::MAX);
    }

    #[test]
    fn room_that_is_promised_is_not_promised_again() {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::default());
        let inbox = folder.path().join("not/yet/there");
        let free = room.free(&inbox);
        let promise = room.promise(&inbox, free);
        // What others write meanwhile only lessens it.
        assert!(room.free(folder.path()) < free / 2 || free == 0);
        promise.keep(1000);
        promise.keep(2000);
        assert_eq!(room.promised(), free.min(1000), "what is on the disk is not promised as well");
        drop(promise);
        assert_eq!(room.promised(), 0);
    }

    #[test]
    fn a_file_that_was_begun_needs_what_it_lacks_and_its_lane_is_the_one_where_most_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let room = Arc::new(Room::default());
        let mut parts: HashSet<String> =
            [begun(at, "lane-2", "one"), begun(at, "lane-2", "two"), begun(at, "lane-1", "three")]
                .into();
        let small = ["four", "five", "six"].map(|path| begun_of(at, "lane-3", path, 1));
        parts.extend(small);
        {
            let mut space = room.space(at, &parts);
            space.free = 1000;
            assert_eq!(space.take("one", SIZE).unwrap(), 0);
            assert_eq!(space.take("small", 600).unwrap(), 600);
            assert_eq!(space.free, 400);
            // That of the other lane is of no use: it makes room.
            assert_eq!(space.take("three", SIZE).unwrap(), SIZE);
            assert!(!parts_folder(at, "lane-1").join(part_name(b"three", SIZE)).exists());
            assert!(space.take("other", SIZE).is_err(), "two is kept");
        }
        let lane = room.lane(at, &parts).unwrap();
        assert_eq!(lane.name(), "lane-2");
        assert_ne!(room.lane(at, &parts).unwrap().name(), "lane-2", "it is in use");
    }

    #[test]
    fn what_was_only_allocated_has_not_arrived_and_empty_files_count_where_nothing_has() {
        let folder = tempfile::tempdir().unwrap();
        let (at, room) = (folder.path(), Arc::new(Room::default()));
        let large = begun_of(at, "lane-3", "large", 0);
        let file = std::fs::File::create(parts_folder(at, "lane-3").join(&large)).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, SIZE).unwrap();
        file.set_len(SIZE).unwrap();
        let small = ["a", "b"].map(|path| begun_of(at, "lane-2", path, 5000));
        let [one, two] = small.clone();
        let lane = room.lane(at, &[large, one, two].into()).unwrap();
        assert_eq!(lane.name(), "lane-2");
        let empty = ["c", "d"].map(|path| begun_of(at, "lane-1", path, 0));
        assert_eq!(room.lane(at, &empty.into()).unwrap().name(), "lane-1");
    }

    #[test]
    fn what_a_batch_waits_for_or_would_not_be_enough_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let room = Arc::new(Room::default());
        let used = begun(at, "lane-0", "used");
        let (kept, beside, idle, elsewhere) = (
            begun(at, "lane-1", "kept"),
            begun(at, "lane-1", "beside"),
            begun(at, "lane-2", "idle"),
            begun(at, "lane-3", "elsewhere"),
        );
        let is_there = |lane: &str, name: &String| parts_folder(at, lane).join(name).exists();
        // One runs, one was taken and has not begun, one runs by another daemon.
        let in_use = room.lane(at, &HashSet::from([used])).unwrap();
        let offered = HashSet::from([kept.clone()]);
        let offered = room.space(at, &offered).reserve();
        assert_eq!(offered.lane.as_ref().unwrap().name(), "lane-1");
        let lock = std::fs::File::create(at.join(".downpour/lane-3/lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let none = HashSet::new();
        {
            let mut space = room.space(at, &none);
            space.free = 0;
            assert!(space.take("large", 2 * SIZE).is_err() && is_there("lane-2", &idle));
            assert_eq!(space.take("right", SIZE).unwrap(), SIZE);
        }
        assert!(is_there("lane-1", &kept) && is_there("lane-1", &beside));
        assert!(is_there("lane-3", &elsewhere) && !is_there("lane-2", &idle));
        assert!(parts_folder(at, in_use.name()).read_dir().unwrap().next().is_some());
        let again = HashSet::from([elsewhere]);
        assert_ne!(room.lane(at, &again).unwrap().name(), "lane-3", "it is in use");
        // When its batch has ended what nobody asks for goes, in its own lane, too.
        lock.unlock().unwrap();
        drop(offered);
        let parts = HashSet::from([kept.clone()]);
        let mut space = room.space(at, &parts);
        space.free = 0;
        assert_eq!(space.take("right", 2 * SIZE).unwrap(), 2 * SIZE);
        assert!(is_there("lane-1", &kept) && !is_there("lane-1", &beside));
    }

    #[test]
    fn what_comes_without_an_offer_has_the_room_of_partial_files_that_nobody_wants() {
        let folder = tempfile::tempdir().unwrap();
        let (at, room) = (folder.path(), Arc::new(Room::default()));
        let (used, idle) = (begun(at, "lane-1", "used"), begun(at, "lane-2", "idle"));
        let of_used = HashSet::from([used.clone()]);
        let _lane = room.lane(at, &of_used).unwrap();
        let is_there = |lane: &str, name: &String| parts_folder(at, lane).join(name).exists();
        let full = room.promise(at, u64::MAX / 2);
        assert!(room.take(at, 2 * SIZE).is_err() && is_there("lane-2", &idle));
        let taken = room.take(at, SIZE).unwrap();
        assert!(is_there("lane-1", &used) && !is_there("lane-2", &idle));
        assert_eq!(room.promised(), u64::MAX / 2 + SIZE);
        drop((full, taken));
        assert_eq!(room.promised(), 0);
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_up_what_goes_to_no_other() {
        let (folder, none) = (tempfile::tempdir().unwrap(), HashSet::new());
        let (at, room) = (folder.path(), Arc::new(Room::default()));
        let _hung = Turn { room: room.clone(), device: u64::MAX };
        lock(&room.turns).insert(u64::MAX);
        let space = room.space(at, &none);
        let (of, inbox) = (room.clone(), at.to_owned());
        let next = std::thread::spawn(move || of.lane(&inbox, &HashSet::new()).unwrap());
        assert_eq!(lock(&room.turns).len(), 2, "one at a time");
        drop(space);
        assert_eq!(next.join().unwrap().name(), "lane-0");
        assert_eq!(lock(&room.turns).len(), 1);
    }

    #[test]
    fn what_one_offer_took_is_not_there_for_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (room, none) = (Arc::new(Room::default()), HashSet::new());
        let mut space = room.space(folder.path(), &none);
        assert_eq!(space.take("one", 1000).unwrap() + space.take("two", 500).unwrap(), 1500);
        let first = space.reserve();
        assert_eq!(room.promised(), 1500);
        let second = room.space(folder.path(), &none).reserve();
        let lanes = [&first, &second].map(|held| held.lane.as_ref().unwrap().name());
        assert_eq!(lanes, ["lane-0", "lane-1"]);
        drop(first);
        assert_eq!(room.promised(), 0);
    }
}
