//! What a store knows of its groups and blocks: plain bookkeeping, under one lock, without any I/O.
//!
//! Blocks that are whole in what is covered are *decided*. Invariants: `objects_left` counts files with data that are
//! neither placed nor failed. A block in `busy` is in the hands of a thread.

use crate::object::bits::Bits;
use crate::object::covered::Covered;
use crate::object::group::KnownGroup;
use crate::object::manifest::DigestSection;
use crate::object::tree::{EntryId, Tree};
use downpour_proto::Geometry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// So often one of a file's groups may come false, and so many of them in all, before the file is given up. Forgers are left
/// before (`docs/protocol.md#KEY-4`), with whatever of theirs is on its way: it is the sender that has other bytes by now
/// than those it announced.
const FALSE_MAX: (u32, u32) = (16, 256);

/// A group that lies in several blocks, not all of which have come.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// All of the group's data, or nothing when they are spilled.
    pub(super) bytes: Vec<u8>,
    /// Which block brought which part, within the group.
    pub(super) parts: Vec<(u32, Range<u64>)>,
    pub(super) spilled: bool,
    /// Complete, and in the hands of a thread until it is verified or forgotten. Parts that come
    /// meanwhile are ignored: spilled ones would overwrite what that thread reads and writes.
    pub(super) taken: bool,
}

/// A pending group, and the memory that it is charged with. Locked in this order: the group, then
/// `Progress`.
struct Slot {
    pending: Arc<Mutex<Pending>>,
    charged: u64,
}

/// What to do with a block.
pub(super) enum Claim {
    /// Verify and write these groups.
    Work(Vec<KnownGroup>),
    /// Nothing: it holds nothing that is needed, or is kept until its digests come.
    Kept,
    /// It comes before its digests, and there is no more room to keep such blocks.
    Early,
    Refused,
    False,
}

pub(super) struct Progress {
    pub(super) covered: Covered,
    early_max: usize,
    tree: Option<Arc<Tree>>,
    verified: Bits,
    failed: Bits,
    /// Files with data that are placed.
    done: Bits,
    left: HashMap<u32, u32>,
    objects_left: u32,
    busy: HashSet<u32>,
    early: HashMap<u32, Box<[u8]>>,
    early_len: usize,
    pending: HashMap<u32, Slot>,
    pending_len: u64,
    /// How often each of the groups came false that did, and how many did of each file.
    false_groups: HashMap<u32, u32>,
    false_in_files: HashMap<u32, u32>,
    pub(super) failures: Vec<(u32, String)>,
    pub(super) bytes_received: u64,
    pub(super) bytes_held: u64,
    pub(super) finishing: bool,
}

impl Progress {
    pub(super) fn new(geometry: Geometry, early_max: usize) -> Self {
        Self {
            covered: Covered::new(geometry),
            early_max,
            tree: None,
            verified: Bits::default(),
            failed: Bits::default(),
            done: Bits::default(),
            left: HashMap::new(),
            objects_left: 0,
            busy: HashSet::new(),
            early: HashMap::new(),
            early_len: 0,
            pending: HashMap::new(),
            pending_len: 0,
            false_groups: HashMap::new(),
            false_in_files: HashMap::new(),
            failures: Vec::new(),
            bytes_received: 0,
            bytes_held: 0,
            finishing: false,
        }
    }

    /// The tree is known.
    pub(super) fn start(&mut self, tree: Arc<Tree>) {
        self.objects_left = tree.ids().filter(|id| !tree.extents(*id).is_empty()).count() as u32;
        self.tree = Some(tree);
    }

    pub(super) fn is_failed(&self, id: EntryId) -> bool {
        self.failed.has(id.0)
    }

    /// Length of a stream, once it is known.
    pub(super) fn len_of(&self, tree: &Tree, id: EntryId) -> u64 {
        tree.file_size(id).unwrap_or(self.covered.end())
    }

    /// Takes the digests of a section. Returns the blocks that are decided by it.
    pub(super) fn cover(&mut self, section: &DigestSection, last: bool) -> Range<u32> {
        let before = self.covered.blocks();
        self.covered.add(section);
        if last {
            self.covered.finish();
        }
        before..self.covered.blocks()
    }

    fn is_wanted(&self, tree: &Tree, number: u32) -> bool {
        !self.verified.has(number) && !self.failed.has(tree.layout().group(number).entry)
    }

    /// Groups of a decided block that are needed.
    fn wanted_in(&self, tree: &Tree, block: u32) -> Vec<u32> {
        let groups = tree.layout().groups_in(self.covered.block(block));
        groups.filter(|number| self.is_wanted(tree, *number)).collect()
    }

    /// Decides what to do with a block that came.
    pub(super) fn claim(
        &mut self,
        block: u32,
        data: &[u8],
        admits: impl Fn(u32, u32) -> bool,
    ) -> Claim {
        if self.busy.contains(&block) {
            return Claim::Refused;
        }
        let tree = match &self.tree {
            Some(tree) if block < self.covered.blocks() => tree.clone(),
            _ if self.covered.is_finished() => return Claim::False,
            _ => return self.keep_early(block, data),
        };
        let range = self.covered.block(block);
        if (data.len() as u64) < range.end - range.start {
            return Claim::False;
        }
        let wanted = self.wanted_in(&tree, block);
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
            return Claim::Kept;
        };
        if !admits(*first, *last) {
            return Claim::Refused;
        }
        self.busy.insert(block);
        let known = |number| self.covered.known(&tree, number);
        Claim::Work(wanted.into_iter().filter_map(known).collect())
    }

    fn keep_early(&mut self, block: u32, data: &[u8]) -> Claim {
        if self.early.contains_key(&block) {
            return Claim::Kept;
        }
        if self.early_len + data.len() > self.early_max {
            return Claim::Early;
        }
        self.early_len += data.len();
        self.early.insert(block, data.into());
        Claim::Kept
    }

    /// Blocks that came before their digests and can be verified now.
    pub(super) fn take_early(&mut self) -> Vec<(u32, Box<[u8]>)> {
        let end = if self.covered.is_finished() { u32::MAX } else { self.covered.blocks() };
        let mut ready: Vec<u32> = self.early.keys().copied().filter(|block| *block < end).collect();
        ready.sort_unstable();
        let take = |block| Some((block, self.early.remove(&block)?));
        let taken: Vec<_> = ready.into_iter().filter_map(take).collect();
        self.early_len -= taken.iter().map(|(_, data)| data.len()).sum::<usize>();
        taken
    }

    /// A thread is done with a block.
    pub(super) fn unclaim(&mut self, block: u32) {
        self.busy.remove(&block);
    }

    /// A group is verified and written, or was held. Returns its entry when that was its last group.
    pub(super) fn mark(&mut self, number: u32) -> Option<EntryId> {
        let tree = self.tree.clone()?;
        self.forget_pending(number);
        if !self.verified.set(number) {
            return None;
        }
        let entry = EntryId(tree.layout().group(number).entry);
        self.count_down(&tree, entry)
    }

    /// One group of an entry less. The length of a stream is not known before its last section.
    fn count_down(&mut self, tree: &Tree, entry: EntryId) -> Option<EntryId> {
        if tree.is_stream() {
            return self.stream_complete();
        }
        let all = tree.groups_of(entry).len() as u32;
        let left = self.left.entry(entry.0).or_insert(all);
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.left.remove(&entry.0);
        (!self.is_failed(entry)).then_some(entry)
    }

    /// The stream, if its last section is known and all its groups are verified. Asked again when the
    /// last section comes; says so once.
    pub(super) fn stream_complete(&mut self) -> Option<EntryId> {
        let complete = self.covered.is_finished()
            && !self.left.contains_key(&0)
            && (0..self.covered.groups()).all(|number| self.verified.has(number));
        if !complete {
            return None;
        }
        self.left.insert(0, 0);
        (!self.is_failed(EntryId(0))).then_some(EntryId(0))
    }

    /// The pending group `number`, begun if need be, without memory. `None` when it is verified: nothing may touch it any
    /// more, wherever it is kept.
    pub(super) fn pending(&mut self, number: u32) -> Option<Arc<Mutex<Pending>>> {
        if self.verified.has(number) {
            return None;
        }
        let slot = self.pending.entry(number).or_insert_with(|| {
            let pending = Pending { spilled: true, ..Pending::default() };
            Slot { pending: Arc::new(Mutex::new(pending)), charged: 0 }
        });
        Some(slot.pending.clone())
    }

    /// A group came false. Returns whether its file is to be given up.
    pub(super) fn came_false(&mut self, known: &KnownGroup) -> bool {
        let times = self.false_groups.entry(known.number).or_default();
        let in_all = self.false_in_files.entry(known.group.entry).or_default();
        (*times, *in_all) = (*times + 1, *in_all + 1);
        *times >= FALSE_MAX.0 || *in_all >= FALSE_MAX.1
    }

    /// Charges a pending group with memory, if there is room. Returns whether there was.
    pub(super) fn charge(&mut self, number: u32, len: u64, max: u64) -> bool {
        let room = self.pending_len.saturating_add(len) <= max;
        match self.pending.get_mut(&number) {
            Some(slot) if room => {
                slot.charged = len;
                self.pending_len += len;
                true
            }
            _ => false,
        }
    }

    pub(super) fn forget_pending(&mut self, number: u32) {
        if let Some(slot) = self.pending.remove(&number) {
            self.pending_len -= slot.charged;
        }
    }

    /// All pending groups, to look through them without holding this lock.
    pub(super) fn all_pending(&self) -> Vec<Arc<Mutex<Pending>>> {
        self.pending.values().map(|slot| slot.pending.clone()).collect()
    }

    /// A file is placed.
    pub(super) fn done(&mut self, id: EntryId) {
        if !self.failed.has(id.0) && self.done.set(id.0) {
            self.objects_left -= 1;
        }
    }

    /// A file that was taken for placed could not be, at the end.
    pub(super) fn not_done(&mut self, id: EntryId) {
        self.done.clear(id.0);
    }

    /// An entry has failed. Returns `None` when it was known to have, else the decided blocks that need
    /// not come any more.
    pub(super) fn fail(&mut self, id: EntryId, reason: &str) -> Option<Vec<Range<u32>>> {
        if self.done.has(id.0) || !self.failed.set(id.0) {
            return None;
        }
        self.failures.push((id.0, reason.to_owned()));
        let tree = self.tree.clone()?;
        if tree.extents(id).is_empty() {
            return Some(Vec::new());
        }
        self.objects_left = self.objects_left.saturating_sub(1);
        let groups = tree.groups_of(id);
        self.pending.retain(|number, _| !groups.contains(number));
        self.pending_len = self.pending.values().map(|slot| slot.charged).sum();
        let data = tree.data_of(id);
        let len = self.covered.geometry().block_len();
        let end = data.end.min(self.covered.end()).div_ceil(len) as u32;
        let blocks = (data.start / len) as u32..end.min(self.covered.blocks());
        Some(self.split(&tree, blocks).0)
    }

    /// Splits decided blocks into those of which nothing is needed, and the others.
    pub(super) fn split(
        &self,
        tree: &Tree,
        blocks: Range<u32>,
    ) -> (Vec<Range<u32>>, Vec<Range<u32>>) {
        let (mut held, mut needed) = (Vec::new(), Vec::new());
        for block in blocks {
            let groups = tree.layout().groups_in(self.covered.block(block));
            let wanted = groups.into_iter().any(|number| self.is_wanted(tree, number));
            append(if wanted { &mut needed } else { &mut held }, block);
        }
        (held, needed)
    }

    /// Verified groups of a block.
    pub(super) fn verified_in(&self, block: u32) -> Vec<KnownGroup> {
        let Some(tree) = self.tree.as_ref().filter(|_| block < self.covered.blocks()) else {
            return Vec::new();
        };
        let groups = tree.layout().groups_in(self.covered.block(block));
        groups
            .filter(|number| self.verified.has(*number))
            .filter_map(|number| self.covered.known(tree, number))
            .collect()
    }

    /// Whether only the last step is left. Says so once.
    pub(super) fn may_finish(&mut self) -> bool {
        let ready = self.covered.is_finished() && self.objects_left == 0 && !self.finishing;
        self.finishing |= ready;
        ready
    }
}

/// Appends a number to ranges that end before it.
fn append(ranges: &mut Vec<Range<u32>>, number: u32) {
    match ranges.last_mut() {
        Some(last) if last.end == number => last.end += 1,
        _ => ranges.push(number..number + 1),
    }
}
