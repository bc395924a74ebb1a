//! Room for what arrives: what is free, what is promised to batches, and what lies in the lanes of receiving folders.
//!
//! 1. A batch runs in a lane of its folder, in which partial files stay when it is cut. What is there of a file that is offered
//!    again is room that it has already: its lane is the one where most of its batch was begun.
//! 2. Room is promised when an offer is taken, and until the batch has taken it from the file system itself.
//! 3. What would not fit otherwise lets partial files go that no batch asks for, if it fits then.

use super::offer::Trouble;
use super::{Dispatch, lock};
use crate::object::part_name;
use crate::units::show_bytes;
use downpour_catalog::ErrorClass;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Part of the file system that is left free.
const SPARE: u64 = 64 << 20;
/// When to ask again for what found no room, seconds.
const NO_ROOM_S: u32 = 30;
/// Lanes of one receiving folder.
pub(super) const LANES_MAX: usize = 64;

/// Room that is promised, by file system, and lanes in use, by receiving folder.
#[derive(Debug, Default)]
pub(super) struct Room {
    promised: Mutex<HashMap<u64, u64>>,
    lanes: Mutex<HashSet<(PathBuf, String)>>,
}

pub(super) fn no_room(size: u64, free: u64) -> Trouble {
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
    pub(super) fn free(&self, folder: &Path) -> u64 {
        let Some((above, device)) = device(folder) else { return u64::MAX };
        let Ok(fs) = rustix::fs::statvfs(&above) else { return u64::MAX };
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        let promised = lock(&self.promised).get(&device).copied().unwrap_or(0);
        free.saturating_sub(SPARE).saturating_sub(promised)
    }

    /// Promises room until the promise is dropped.
    pub(super) fn promise(self: &Arc<Self>, folder: &Path, bytes: u64) -> Promise {
        let device = device(folder).map_or(0, |(_, device)| device);
        *lock(&self.promised).entry(device).or_default() += bytes;
        Promise { room: self.clone(), device, bytes: bytes.into() }
    }

    /// What there is for files whose partial files are called so.
    pub(super) fn space<'a>(
        &'a self,
        folder: &'a Path,
        parts: &HashSet<String>,
        awaited: impl Fn() -> HashSet<String> + 'a,
    ) -> Space<'a> {
        let own = best_lane(folder, &lock(&self.lanes), parts);
        let begun: HashMap<String, u64> = match &own {
            Some(lane) => parts_of(folder, lane).filter(|(name, _)| parts.contains(name)).collect(),
            None => HashMap::new(),
        };
        let kept = begun.keys().cloned().collect::<HashSet<_>>();
        let mut most = u64::MAX;
        let clear = move |missing| {
            if missing > most {
                return 0;
            }
            let awaited = awaited();
            let is_own =
                |lane: &str, name: &str| own.as_deref() == Some(lane) && kept.contains(name);
            let is_kept = |lane: &str, name: &str| awaited.contains(name) || is_own(lane, name);
            let cleared = clear(folder, &lock(&self.lanes), missing, is_kept);
            most = cleared.err().unwrap_or(0);
            cleared.unwrap_or(0)
        };
        Space { free: self.free(folder), begun, clear: Box::new(clear) }
    }

    /// A lane for a batch with these partial files; `None`: all are in use.
    pub(super) fn lane(self: &Arc<Self>, folder: &Path, parts: &HashSet<String>) -> Option<Lane> {
        let mut lanes = lock(&self.lanes);
        let key = (folder.to_owned(), best_lane(folder, &lanes, parts)?);
        lanes.insert(key.clone());
        Some(Lane { room: self.clone(), key })
    }
}

type Used = HashSet<(PathBuf, String)>;

fn free_lanes(folder: &Path, used: &Used) -> Vec<String> {
    let names = (0..LANES_MAX).map(|number| format!("lane-{number}"));
    names.filter(|lane| !used.contains(&(folder.to_owned(), lane.clone()))).collect()
}

/// The free lane in which most of these were begun.
fn best_lane(folder: &Path, used: &Used, parts: &HashSet<String>) -> Option<String> {
    let begun =
        |lane: &String| parts_of(folder, lane).filter(|(name, _)| parts.contains(name)).count();
    let free = free_lanes(folder, used);
    let best =
        free.iter().enumerate().max_by_key(|(index, lane)| (begun(lane), usize::MAX - index));
    best.map(|(_, lane)| lane.clone())
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

/// Removes the partial files in free lanes that nobody wants, if they make up what is missing. Says how many bytes it removed; or
/// how many there are.
fn clear(
    folder: &Path,
    used: &Used,
    missing: u64,
    is_kept: impl Fn(&str, &str) -> bool,
) -> Result<u64, u64> {
    let mut idle = Vec::new();
    for lane in free_lanes(folder, used) {
        let parts = parts_of(folder, &lane).filter(|(name, _)| !is_kept(&lane, name));
        let at = parts_folder(folder, &lane);
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
    free: u64,
    /// What their partial files take.
    begun: HashMap<String, u64>,
    /// Makes room for so much more, if it can; says how much it made.
    clear: Box<dyn FnMut(u64) -> u64 + 'a>,
}

impl Space<'_> {
    /// Takes room for a file. Says how much it needs beside what it has.
    pub(super) fn take(&mut self, path: &str, size: u64) -> Result<u64, Trouble> {
        let begun = self.begun.get(&part_name(path.as_bytes(), size)).copied().unwrap_or(0);
        let needed = size.saturating_sub(begun);
        if needed > self.free {
            self.free += (self.clear)(needed - self.free);
        }
        self.free = self.free.checked_sub(needed).ok_or_else(|| no_room(needed, self.free))?;
        Ok(needed)
    }
}

/// Room that is held.
#[derive(Debug)]
pub(super) struct Promise {
    room: Arc<Room>,
    device: u64,
    bytes: AtomicU64,
}

impl Promise {
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

impl Dispatch {
    /// The partial files with which batches that have not ended may go on.
    pub(super) fn awaited(&self) -> HashSet<String> {
        let open: Vec<_> = lock(&self.incoming)
            .values()
            .filter(|incoming| incoming.ended.get().is_none())
            .cloned()
            .collect();
        open.iter().flat_map(|incoming| incoming.parts()).collect()
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
    use super::{Room, parts_folder};
    use crate::object::part_name;
    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::Arc;

    const SIZE: u64 = 8 << 20;

    /// A partial file of a file with this path.
    fn begun(folder: &Path, lane: &str, path: &str) -> String {
        let name = part_name(path.as_bytes(), SIZE);
        let parts = parts_folder(folder, lane);
        std::fs::create_dir_all(&parts).unwrap();
        std::fs::write(parts.join(&name), vec![1; SIZE as usize]).unwrap();
        name
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
        let parts: HashSet<String> =
            [begun(at, "lane-2", "one"), begun(at, "lane-2", "two"), begun(at, "lane-1", "three")]
                .into();
        {
            let mut space = room.space(at, &parts, HashSet::new);
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
    fn what_a_batch_waits_for_or_would_not_be_enough_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let room = Arc::new(Room::default());
        let (kept, idle, used) =
            (begun(at, "lane-1", "kept"), begun(at, "lane-1", "idle"), begun(at, "lane-0", "used"));
        let in_use = room.lane(at, &HashSet::from([used])).unwrap();
        let is_there = |name: &String| parts_folder(at, "lane-1").join(name).exists();
        let none = HashSet::new();
        let mut space = room.space(at, &none, || HashSet::from([kept.clone()]));
        space.free = 0;
        assert!(space.take("large", 2 * SIZE).is_err() && is_there(&idle));
        assert_eq!(space.take("right", SIZE).unwrap(), SIZE);
        assert!(is_there(&kept) && !is_there(&idle));
        assert!(parts_folder(at, in_use.name()).read_dir().unwrap().next().is_some());
    }
}
