//! Partial files: room for them, making and resuming them, writing to them.

use super::{DISK_BLOCK, FolderTarget, Ready, State, lock};
use crate::object::disk::{is_zero, write_all_at, zero_range};
use crate::object::group::{GroupData, KnownGroup};
use crate::object::limits::OPEN_FILES_MAX;
use crate::object::place::{Obstacle, Why};
use crate::object::scan::explain;
use crate::object::store::StoreFailure;
use crate::object::store::target::Fault;
use crate::object::tree::EntryId;
use rustix::io::Errno;
use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files in more pieces than this are not allocated beforehand.
const ALLOCATED_EXTENTS_MAX: usize = 64;

/// A partial file, open.
pub(super) struct Part {
    pub(super) file: OwnedFd,
    /// It was made in this session: there is nothing in its holes. Where a file system cannot tell holes from data, reading
    /// them could last for ever.
    is_new: bool,
}

impl Part {
    /// Those of `holes` that hold something else than zeros.
    pub(super) fn full(
        &self,
        holes: impl Iterator<Item = Range<u64>>,
    ) -> impl Iterator<Item = Range<u64>> {
        holes.filter(move |hole| !self.is_new && !is_zero(&self.file, hole.start, hole.end))
    }
}

impl FolderTarget {
    /// Bytes of a partial file that an earlier attempt has allocated.
    pub(super) fn resumable(&self, ready: &Ready, id: EntryId) -> Option<u64> {
        if !ready.is_journaled(id) || lock(&self.journal).part(ready.key(id))?.groups.is_empty() {
            return None;
        }
        let part = self.staging.open_part(&ready.part_name(id)).ok()?;
        let stat = rustix::fs::fstat(&part).ok()?;
        let fits = ready.tree.file_size(id).is_none_or(|size| stat.st_size as u64 == size);
        fits.then_some(stat.st_blocks as u64 * 512)
    }

    /// Checks for room, and takes it.
    pub(super) fn reserve(&self, ready: &Ready, needed: u64) -> Result<(), StoreFailure> {
        let available =
            |error: Errno| StoreFailure::Target(format!("free space: {}", explain(error)));
        let mut free = self.staging.available().map_err(available)?;
        if needed > free {
            // Partial files of other sessions go before this one fails, if that is of use, and those of its own in which
            // nothing has arrived: they hold room that is asked for again.
            let kept = |id: &EntryId| self.resumable(ready, *id).is_some();
            let ours: HashSet<Vec<u8>> =
                ready.tree.ids().filter(kept).map(|id| ready.part_name(id)).collect();
            let keep = |name: &[u8]| ours.contains(name);
            let removable = self.staging.removable(keep).map_err(available)?;
            if needed <= free.saturating_add(removable) {
                self.staging.remove_parts(keep).map_err(available)?;
                free = self.staging.available().map_err(available)?;
            }
        }
        if needed > free {
            let (needed, available, doing) = (Some(needed), Some(free), "reserving space".into());
            return Err(StoreFailure::DiskFull { needed, available, doing, product: None });
        }
        match self.staging.reserve(needed) {
            Ok(taken) => {
                self.options.reserved.store(taken, Ordering::Relaxed);
                Ok(())
            }
            // A quota, perhaps: what the file system tells to be free is not for us.
            Err(error) => Err(match error.of_object(None) {
                Ok(why) => StoreFailure::Target(why.text),
                Err(failure) => failure,
            }),
        }
    }

    /// The open partial file of an entry, made if need be; never of one that was given up.
    pub(super) fn part(&self, ready: &Ready, id: EntryId) -> Result<Arc<Part>, Fault> {
        let mut files = lock(&ready.files);
        if let Some(part) = files.open.get(&id.0) {
            return Ok(part.clone());
        }
        let fail = |error| ready.failure(error, id);
        let part = match files.states.get(&id.0) {
            Some(State::Part { is_new }) => {
                let file = self.staging.open_part(&ready.part_name(id)).map_err(fail)?;
                Part { file, is_new: *is_new }
            }
            Some(State::InPlace(groups)) => {
                let part = self.create(ready, id)?;
                self.copy_identical(ready, id, groups, &part)?;
                part
            }
            Some(State::GivenUp) => {
                return Err(Fault::Object(Why::new(Obstacle::Failed, "it was given up")));
            }
            None => self.create(ready, id)?,
        };
        files.states.insert(id.0, State::Part { is_new: part.is_new });
        let part = Arc::new(part);
        if files.open.len() >= OPEN_FILES_MAX {
            files.open.clear();
        }
        files.open.insert(id.0, part.clone());
        Ok(part)
    }

    fn create(&self, ready: &Ready, id: EntryId) -> Result<Part, Fault> {
        let fail = |error| ready.failure(error, id);
        self.staging.release(ready.data_len(id).next_multiple_of(DISK_BLOCK));
        if ready.is_journaled(id) {
            lock(&self.journal).begin(ready.key(id)).map_err(fail)?;
        }
        let file = self.staging.create_part(&ready.part_name(id)).map_err(fail)?;
        if let Some(size) = ready.tree.file_size(id) {
            let extents = &ready.tree.layout().extents()[ready.tree.extents(id)];
            if !ready.is_single(id) && extents.len() <= ALLOCATED_EXTENTS_MAX {
                for extent in extents {
                    self.staging.allocate(&file, extent.start, extent.len).map_err(fail)?;
                }
            }
            let end = extents.last().map_or(0, |last| last.start + last.len);
            if !ready.is_single(id) || end < size {
                rustix::fs::ftruncate(&file, size).map_err(fail)?;
            }
        }
        Ok(Part { file, is_new: true })
    }

    /// Copies groups that were identical in a file which then proved to differ.
    fn copy_identical(
        &self,
        ready: &Ready,
        id: EntryId,
        groups: &[KnownGroup],
        part: &Part,
    ) -> Result<(), Fault> {
        let existing = ready.placer.open_existing(id).map_err(|error| ready.failure(error, id))?;
        let mut data = Vec::new();
        for known in groups {
            if !known.is_in(&ready.tree, &existing, &mut data) {
                let text = "it changes while it is being received";
                return Err(Fault::Object(Why::new(Obstacle::Taken, text)));
            }
            self.write_to(ready, known, GroupData::whole(&data), part)?;
        }
        Ok(())
    }

    pub(super) fn write_to(
        &self,
        ready: &Ready,
        known: &KnownGroup,
        data: GroupData<'_>,
        part: &Part,
    ) -> Result<(), Fault> {
        let id = known.entry();
        let fail = |error| ready.failure(error, id);
        self.replace(ready, known)?;
        for (at, bytes) in known.parts(&ready.tree, data) {
            write_all_at(&part.file, bytes, at).map_err(fail)?;
        }
        if ready.is_journaled(id) {
            for hole in part.full(known.holes(&ready.tree)) {
                zero_range(&part.file, hole.start, hole.end).map_err(fail)?;
            }
            let (key, index) = (ready.key(id), known.group.index);
            lock(&self.journal).verified(key, index, known.digest).map_err(fail)?;
        }
        Ok(())
    }

    /// What an earlier attempt wrote of a group will be overwritten.
    pub(super) fn replace(&self, ready: &Ready, known: &KnownGroup) -> Result<(), Fault> {
        if !ready.is_journaled(known.entry()) {
            return Ok(());
        }
        let (key, index) = (ready.key(known.entry()), known.group.index);
        let void = lock(&self.journal).void(key, index..index + 1);
        void.map_err(|error| ready.failure(error, known.entry()))
    }
}
