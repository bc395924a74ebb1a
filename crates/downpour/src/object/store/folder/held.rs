//! What is held already: identical files in place, groups of earlier attempts, and groups of files that
//! are to be replaced.

use super::{FolderTarget, Ready, State, lock};
use crate::object::group::{GroupData, KnownGroup};
use crate::object::place::{Existing, Obstacle, PlaceError, Why, differs};
use crate::object::scan::explain;
use crate::object::store::target::{Fault, Held};
use crate::object::tree::EntryId;
use std::os::fd::OwnedFd;

impl FolderTarget {
    /// Finds what is held of one file's groups, which are all of one section.
    pub(super) fn held_of(
        &self,
        ready: &Ready,
        id: EntryId,
        groups: &[KnownGroup],
        held: &mut Held,
    ) -> Result<(), Fault> {
        let there = ready.existing(id);
        let known_here = lock(&ready.files).states.contains_key(&id.0);
        if there == Existing::Nothing && !known_here && self.resumable(ready, id).is_none() {
            return Ok(());
        }
        if !known_here {
            self.first_state(ready, id, groups);
        }
        let existing = match there {
            Existing::File(_) => self.open_existing(ready, id)?,
            _ => None,
        };
        let mut data = Vec::new();
        for known in groups {
            if self.is_journaled(ready, known, &mut data) {
                held.groups.push(known.number);
                continue;
            }
            let same = existing.as_ref().is_some_and(|fd| known.is_in(&ready.tree, fd, &mut data));
            let in_place = match lock(&ready.files).states.get_mut(&id.0) {
                Some(State::InPlace(so_far)) => {
                    if same {
                        so_far.push(known.clone());
                    }
                    true
                }
                _ => false,
            };
            match (in_place, same) {
                (true, true) => held.groups.push(known.number),
                (true, false) if !self.options.overwrite => {
                    held.failed.push((id.0, differs()));
                    return Ok(());
                }
                // Becomes a part, when the first group for it comes.
                (true, false) => {}
                (false, true) => {
                    let part = self.part(ready, id)?;
                    self.write_to(ready, known, GroupData::whole(&data), &part)?;
                    held.groups.push(known.number);
                }
                (false, false) => {}
            }
            if in_place && !same {
                self.leave_place(ready, id)?;
            }
        }
        Ok(())
    }

    /// The file at an entry's place, to be compared; `None` if it cannot be read and may be replaced.
    pub(super) fn open_existing(
        &self,
        ready: &Ready,
        id: EntryId,
    ) -> Result<Option<OwnedFd>, PlaceError> {
        match ready.placer.open_existing(id) {
            // Whatever keeps this one from being read says nothing of the target.
            Err(error) if !self.options.overwrite => {
                let text = format!("opening {}: {}", ready.tree.path_text(id), explain(error));
                Err(PlaceError::Object(Why::new(Obstacle::Failed, text)))
            }
            opened => Ok(opened.ok()),
        }
    }

    /// A file in place differs: from now on it is a part.
    fn leave_place(&self, ready: &Ready, id: EntryId) -> Result<(), Fault> {
        {
            let mut files = lock(&ready.files);
            if matches!(files.states.get(&id.0), Some(State::InPlace(groups)) if groups.is_empty())
            {
                files.states.remove(&id.0);
                return Ok(());
            }
        }
        self.part(ready, id).map(drop)
    }

    /// The state of a file when the first of its groups are known.
    fn first_state(&self, ready: &Ready, id: EntryId, groups: &[KnownGroup]) {
        let len = groups.first().map(|known| known.file_len);
        let same_size = matches!(ready.existing(id), Existing::File(size) if Some(size) == len);
        let resumable = self.resumable(ready, id);
        let state = match resumable {
            Some(allocated) if !same_size || self.options.overwrite => {
                self.staging.release(ready.data_len(id).saturating_sub(allocated));
                State::Part { is_new: false }
            }
            _ if same_size && !ready.tree.is_stream() => State::InPlace(Vec::new()),
            _ => return,
        };
        lock(&ready.files).states.entry(id.0).or_insert(state);
    }

    /// Whether an earlier attempt has written a group, as the journal or the partial file itself tells.
    fn is_journaled(&self, ready: &Ready, known: &KnownGroup, data: &mut Vec<u8>) -> bool {
        let id = known.entry();
        let is_part = matches!(lock(&ready.files).states.get(&id.0), Some(State::Part { .. }));
        if !is_part || !ready.is_journaled(id) {
            return false;
        }
        let recorded = {
            let journal = lock(&self.journal);
            journal
                .part(ready.key(id))
                .and_then(|part| part.groups.get(&known.group.index).copied())
        };
        match recorded {
            Some((digest, true)) => digest == known.digest,
            // Of another boot: the data may not have reached the disk.
            Some((digest, false)) if digest == known.digest => {
                let genuine = self
                    .part(ready, id)
                    .is_ok_and(|part| known.is_in(&ready.tree, &part.file, data));
                let journal = || {
                    let (key, index) = (ready.key(id), known.group.index);
                    lock(&self.journal).verified(key, index, digest)
                };
                genuine && journal().is_ok()
            }
            _ => false,
        }
    }
}
