//! What a store knows of its groups and blocks: plain bookkeeping, under one lock, without any I/O.
//!
//! Invariants: groups below `digests.len()` are *covered*; blocks below `decided` lie in covered data
//! only. `objects_left` counts files with data that are neither placed nor failed. A block in `busy` is
//! in the hands of a thread.

use super::target::KnownGroup;
use crate::object::digest::Digest;
use crate::object::limits::GROUP_LEN;
use crate::object::manifest::DigestSection;
use crate::object::tree::{EntryId, Tree};
use downpour_proto::Geometry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Group buffers kept for reuse, of a group's length (1 MiB) at most.
const SPARE_MAX: usize = 8;

/// So often one of a file's groups may come false, and so many of them in all, before the file is given up. Forgers are left
/// before (`docs/protocol.md#KEY-4`), with whatever of theirs is on its way: it is the sender that has other bytes by now
/// than those it announced.
const FALSE_MAX: (u32, u32) = (16, 256);

/// One bit for each group or entry; grows as needed.
#[derive(Debug, Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn set(&mut self, i: u32) -> bool {
        let (word, bit) = (i as usize / 64, 1 << (i % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    fn clear(&mut self, i: u32) {
        if let Some(word) = self.0.get_mut(i as usize / 64) {
            *word &= !(1 << (i % 64));
        }
    }

    pub(super) fn has(&self, i: u32) -> bool {
        self.0.get(i as usize / 64).is_some_and(|word| word & (1 << (i % 64)) != 0)
    }
}

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
    geometry: Geometry,
    early_max: usize,
    tree: Option<Arc<Tree>>,
    digests: Vec<Digest>,
    covered: u64,
    decided: u32,
    last: bool,
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
    /// Buffers of groups that are done: fresh memory costs a page fault for every four kilobytes.
    spare: Vec<Vec<u8>>,
    pub(super) failures: Vec<(u32, String)>,
    pub(super) bytes_received: u64,
    pub(super) bytes_held: u64,
    pub(super) finishing: bool,
}

impl Progress {
    pub(super) fn new(geometry: Geometry, early_max: usize) -> Self {
        Self {
            geometry,
            early_max,
            tree: None,
            digests: Vec::new(),
            covered: 0,
            decided: 0,
            last: false,
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
            spare: Vec::new(),
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

    /// Digest of a group, once its section is known.
    pub(super) fn digest(&self, group: u32) -> Option<Digest> {
        self.digests.get(group as usize).copied()
    }

    /// Groups covered so far.
    pub(super) fn covered_groups(&self) -> u32 {
        self.digests.len() as u32
    }

    /// Length of a stream, once it is known.
    pub(super) fn len_of(&self, tree: &Tree, id: EntryId) -> u64 {
        tree.file_size(id).unwrap_or(self.covered)
    }

    /// Takes the digests of a section. Returns the blocks that are decided by it.
    pub(super) fn cover(&mut self, section: &DigestSection, last: bool) -> Range<u32> {
        self.digests.extend_from_slice(&section.digests);
        self.covered = section.data_end;
        self.end_of_section(last)
    }

    /// The last section of the tree may be the last of all.
    pub(super) fn end_of_section(&mut self, last: bool) -> Range<u32> {
        self.last = last;
        let before = self.decided;
        self.decided = match last {
            true => self.geometry.blocks(self.covered) as u32,
            false => (self.covered / self.geometry.block_len()) as u32,
        };
        before..self.decided
    }

    /// The group `number` with its digest, as told by a section that covers up to `end`.
    pub(super) fn known(
        tree: &Tree,
        number: u32,
        digest: Digest,
        end: u64,
        last: bool,
    ) -> KnownGroup {
        let mut group = tree.layout().group(number);
        let size = tree.file_size(EntryId(group.entry));
        group.data.end = group.data.end.min(end);
        // Of a stream that goes on, any length above one group gives the same digests.
        let file_len = size.unwrap_or(if last { end } else { end.max(GROUP_LEN + 1) });
        KnownGroup { number, group, file_len, digest }
    }

    fn known_group(&self, tree: &Tree, number: u32) -> KnownGroup {
        let digest = self.digests[number as usize];
        Self::known(tree, number, digest, self.covered, self.last)
    }

    fn is_wanted(&self, tree: &Tree, number: u32) -> bool {
        !self.verified.has(number) && !self.failed.has(tree.layout().group(number).entry)
    }

    /// Bytes of a decided block in the data space.
    pub(super) fn range_of(&self, block: u32) -> Range<u64> {
        let start = u64::from(block) * self.geometry.block_len();
        start..self.covered.min(start + self.geometry.block_len())
    }

    /// Groups of a decided block that are needed.
    fn wanted_in(&self, tree: &Tree, block: u32) -> Vec<u32> {
        let groups = tree.layout().groups_in(self.range_of(block));
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
            Some(tree) if block < self.decided => tree.clone(),
            _ if self.last => return Claim::False,
            _ => return self.keep_early(block, data),
        };
        let range = self.range_of(block);
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
        Claim::Work(wanted.into_iter().map(|number| self.known_group(&tree, number)).collect())
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
    pub(super) fn take_early(&mut self, decided: Range<u32>) -> Vec<(u32, Box<[u8]>)> {
        let end = if self.last { u32::MAX } else { decided.end };
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
        let complete = self.last
            && !self.left.contains_key(&0)
            && (0..self.covered_groups()).all(|number| self.verified.has(number));
        if !complete {
            return None;
        }
        self.left.insert(0, 0);
        (!self.is_failed(EntryId(0))).then_some(EntryId(0))
    }

    /// The pending group `number`, begun if need be, in memory if there is room below `max`. `None`
    /// when it is verified: nothing may touch it any more, wherever it is kept.
    pub(super) fn pending(
        &mut self,
        number: u32,
        len: u64,
        max: u64,
    ) -> Option<Arc<Mutex<Pending>>> {
        if self.verified.has(number) {
            return None;
        }
        if let Some(slot) = self.pending.get(&number) {
            return Some(slot.pending.clone());
        }
        let pending = Arc::new(Mutex::new(Pending { spilled: true, ..Pending::default() }));
        self.pending.insert(number, Slot { pending: pending.clone(), charged: 0 });
        if self.charge(number, len, max) {
            // Nobody else has seen it yet.
            let mut pending = super::lock(&pending);
            pending.spilled = false;
            pending.bytes = self.spare.pop().unwrap_or_default();
            pending.bytes.resize(len as usize, 0);
        }
        Some(pending)
    }

    /// A group came false. Returns whether its file is to be given up.
    pub(super) fn came_false(&mut self, known: &KnownGroup) -> bool {
        let times = self.false_groups.entry(known.number).or_default();
        let in_all = self.false_in_files.entry(known.group.entry).or_default();
        (*times, *in_all) = (*times + 1, *in_all + 1);
        *times >= FALSE_MAX.0 || *in_all >= FALSE_MAX.1
    }

    /// Keeps a group's buffer for another one.
    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(bytes);
        }
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
        let len = self.geometry.block_len();
        let blocks = (data.start / len) as u32..(data.end.min(self.covered).div_ceil(len)) as u32;
        let blocks = blocks.start..blocks.end.min(self.decided);
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
            let groups = tree.layout().groups_in(self.range_of(block));
            let wanted = groups.into_iter().any(|number| self.is_wanted(tree, number));
            append(if wanted { &mut needed } else { &mut held }, block);
        }
        (held, needed)
    }

    /// Verified groups of a block.
    pub(super) fn verified_in(&self, block: u32) -> Vec<KnownGroup> {
        let Some(tree) = self.tree.as_ref().filter(|_| block < self.decided) else {
            return Vec::new();
        };
        let groups = tree.layout().groups_in(self.range_of(block));
        groups
            .filter(|number| self.verified.has(*number))
            .map(|number| self.known_group(tree, number))
            .collect()
    }

    /// Whether only the last step is left. Says so once.
    pub(super) fn may_finish(&mut self) -> bool {
        let ready = self.last && self.objects_left == 0 && !self.finishing;
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
