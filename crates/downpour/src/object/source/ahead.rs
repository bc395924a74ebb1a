//! Hashing ahead: the manifest's sections, each just before the data that it covers (`docs/protocol.md#MAN-2`).
//!
//! 1. Sections of the tree, which cost no reading.
//! 2. For each span, of 8 MiB at first and about 64 MiB later: its groups are hashed by a few threads, the section is signed and
//!    kept, and the data blocks that it completes may be offered. The reading also warms the page cache
//!    for the blocks that follow.
//!
//! Nothing is read twice before the session starts, and memory holds one group per thread.

use super::{Content, ContentSource, SourceError, failed, lock};
use crate::object::book::{DigestBook, Page, SIZE_LEAST};
use crate::object::covered::Covered;
use crate::object::digest::Digest;
use crate::object::group::group_digest;
use crate::object::layout::Group;
use crate::object::limits::{
    DATA_LEN_MAX, GROUP_LEN, REASON_LEN_MAX, SECTION_GROUPS_MAX, SECTION_SPAN, SECTION_SPAN_KEPT,
};
use crate::object::manifest::{Chain, DigestSection, ManifestId, Withdrawal, tree_bodies};
use crate::object::tree::{EntryId, Tree};
use downpour_proto::BlockId;
use downpour_transport::blocked;
use downpour_transport::identity::Identity;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, mpsc::TrySendError};
use std::time::SystemTime;

/// A section that was emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its number.
    pub index: u32,
    /// New manifest blocks. Offer them first, so that data can be verified as they arrive.
    pub manifest: Range<u32>,
    /// New data blocks that may be offered.
    pub data: Range<u32>,
    /// Whether it is the last.
    pub last: bool,
}

/// Emits a source's sections, in order.
pub struct Ahead {
    source: Arc<ContentSource>,
    publisher: Arc<Identity>,
    threads: usize,
    chain: Chain,
    tree_bodies: VecDeque<Vec<u8>>,
    offered: u32,
    /// The group of a stream that was read to see whether there is one.
    next_group: Option<Vec<u8>>,
    /// Files that earlier sections withdrew.
    told: std::collections::HashSet<u32>,
    /// What is known from before, and the pages of the files at hand.
    book: Option<DigestBook>,
    pages: BTreeMap<u32, Page>,
    ended: bool,
}

impl ContentSource {
    /// The sections of this source, signed by `publisher`. `threads` hash at the same time. Call once.
    pub fn ahead(
        self: &Arc<Self>,
        id: ManifestId,
        publisher: Arc<Identity>,
        threads: usize,
    ) -> Ahead {
        Ahead {
            source: self.clone(),
            publisher,
            threads: threads.max(1),
            chain: Chain::new(id),
            tree_bodies: tree_bodies(&self.tree).into(),
            offered: 0,
            next_group: None,
            told: std::collections::HashSet::new(),
            book: None,
            pages: BTreeMap::new(),
            ended: false,
        }
    }
}

impl Iterator for Ahead {
    type Item = Result<Section, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let section = self.step();
        self.ended = !matches!(&section, Ok(section) if !section.last);
        Some(section)
    }
}

impl Ahead {
    /// What `book` knows is not hashed again, and what is hashed is noted in it.
    pub fn with_book(self, book: Option<DigestBook>) -> Self {
        Self { book, ..self }
    }

    /// Runs on a thread of its own, at most `ahead` sections before what was taken from the channel.
    /// Dropping the channel ends the thread.
    pub fn spawn(self, ahead: usize) -> Receiver<Result<Section, SourceError>> {
        let (sender, receiver) = sync_channel(ahead);
        let started = std::thread::Builder::new().name("downpour-hash".into()).spawn({
            let sender = sender.clone();
            move || {
                // Where little is hashed ahead those who pull wait for it.
                match self.source.kept.most() {
                    0 => downpour_transport::take_long_turns(),
                    _ => downpour_transport::take_turns_between(),
                }
                for section in self {
                    if sender.send(section).is_err() {
                        return;
                    }
                }
            }
        });
        if let Err(error) = started {
            // The channel is empty, and open as long as `receiver` is: only its size can stop this.
            let error = Err(failed(format!("cannot start a thread: {error}")));
            if let Err(TrySendError::Full(_)) = sender.try_send(error) {
                debug_assert!(false, "a channel without room was asked for");
            }
        }
        receiver
    }

    fn step(&mut self) -> Result<Section, SourceError> {
        if let Some(body) = self.tree_bodies.pop_front() {
            let last = self.tree_bodies.is_empty() && self.source.tree.data_len() == Some(0);
            return Ok(self.emit(&body, None, last));
        }
        let (section, last) = match &self.source.content {
            Content::Files(_) => self.hash_files(),
            Content::Stream(_) => self.hash_stream()?,
        };
        Ok(self.emit(&section.emit(), Some(&section), last))
    }

    fn emit(&mut self, body: &[u8], digests: Option<&DigestSection>, last: bool) -> Section {
        let bytes = self.chain.seal(body, last, &self.publisher);
        let mut record = lock(&self.source.record);
        let index = record.sections();
        let manifest = record.push(bytes);
        if let Some(section) = digests {
            record.covered.add(section);
            self.source.first_reads.offer(section.data_end);
        }
        if last {
            record.end(self.chain.digest());
        }
        let data = self.offered..record.covered.blocks();
        self.offered = data.end;
        Section { index, manifest, data, last }
    }

    fn hash_files(&mut self) -> (DigestSection, bool) {
        let tree = self.source.tree.clone();
        let layout = tree.layout();
        let groups = {
            let record = lock(&self.source.record);
            let longest = match self.source.kept.most() {
                0 => SECTION_SPAN.1,
                _ => SECTION_SPAN_KEPT,
            };
            next_span(&self.source.tree, &record.covered, longest)
        };
        let mut given_up = self.to_tell(&groups, SECTION_GROUPS_MAX as usize);
        let read_at = SystemTime::now();
        let mut digests = vec![Digest::NONE; groups.len()];
        self.look_up(groups.clone(), &mut digests);
        let hashed = self.hash_groups(groups.clone(), &digests, &given_up);
        self.note(groups.clone(), &hashed, read_at);
        for (number, outcome) in hashed {
            match outcome {
                Ok(digest) => digests[(number - groups.start) as usize] = digest,
                Err(reason) => {
                    given_up.entry(layout.group(number).entry).or_insert(reason);
                }
            }
        }
        for number in groups.clone() {
            if given_up.contains_key(&layout.group(number).entry) {
                digests[(number - groups.start) as usize] = Digest::NONE;
            }
        }
        let mut withdrawn = Vec::new();
        for (entry, reason) in given_up {
            if self.told.insert(entry) {
                self.source.withdraw(entry, reason.clone(), true);
                withdrawn.push(Withdrawal { entry, reason: cut(reason) });
            }
        }
        let data_end = layout.group(groups.end - 1).data.end;
        let last = groups.end == layout.groups();
        (DigestSection { groups, data_end, withdrawn, digests }, last)
    }

    /// What was given up of files whose digests are not all out: of those in these groups all, of others as long as it is not too much.
    fn to_tell(&self, groups: &Range<u32>, most: usize) -> BTreeMap<u32, String> {
        let mut room = most - groups.len();
        let mut given_up = BTreeMap::new();
        for withdrawn in self.source.withdrawn() {
            let (entry, its) = (withdrawn.entry.0, self.source.tree.groups_of(withdrawn.entry));
            if its.end <= groups.start {
                continue;
            }
            let is_here = its.start < groups.end;
            if !is_here && !self.told.contains(&entry) {
                if room == 0 {
                    continue;
                }
                room -= 1;
            }
            given_up.insert(entry, withdrawn.reason);
        }
        given_up
    }

    /// Digests of `groups` that are known from before.
    fn look_up(&mut self, groups: Range<u32>, digests: &mut [Digest]) {
        let Content::Files(files) = &self.source.content else { return };
        let Some(book) = &self.book else { return };
        let tree = &self.source.tree;
        let mut unchanged = BTreeMap::new();
        for (number, digest) in groups.zip(digests) {
            let group = tree.layout().group(number);
            let entry = group.entry;
            if tree.file_size(EntryId(entry)).is_none_or(|size| size < SIZE_LEAST) {
                continue;
            }
            if let Entry::Vacant(place) = self.pages.entry(entry)
                && let Some(page) = book.page(&files.looks(entry))
            {
                place.insert(page);
            }
            let known = self.pages.get(&entry).and_then(|page| page.get(group.index));
            if let Some(known) = known
                && *unchanged
                    .entry(entry)
                    .or_insert_with(|| files.looks_the_same(entry) == Ok(true))
            {
                *digest = known;
            }
        }
    }

    /// Notes what was hashed for a later run.
    fn note(
        &mut self,
        groups: Range<u32>,
        hashed: &[(u32, Result<Digest, String>)],
        read_at: SystemTime,
    ) {
        let tree = &self.source.tree;
        let mut news: BTreeMap<u32, Vec<(u64, Digest)>> = BTreeMap::new();
        for (number, outcome) in hashed {
            let group = tree.layout().group(*number);
            if let Ok(digest) = outcome {
                news.entry(group.entry).or_default().push((group.index, *digest));
            }
        }
        for (entry, page) in &mut self.pages {
            page.note(news.get(entry).map_or(&[], Vec::as_slice), read_at);
        }
        self.pages.retain(|entry, _| tree.groups_of(EntryId(*entry)).end > groups.end);
    }

    /// Digests of `groups` that are not in `known`, nor of a file that is given up, in no order.
    fn hash_groups(
        &self,
        groups: Range<u32>,
        known: &[Digest],
        given_up: &BTreeMap<u32, String>,
    ) -> Vec<(u32, Result<Digest, String>)> {
        let Content::Files(files) = &self.source.content else { return Vec::new() };
        let threads = self.threads.min(groups.len());
        let batch = (groups.len() / (self.threads * 8)).clamp(1, 64) as u32;
        let next = AtomicU32::new(groups.start);
        let work = || {
            let mut out = Vec::new();
            loop {
                let first = next.fetch_add(batch, Ordering::Relaxed);
                if first >= groups.end {
                    return out;
                }
                for number in first..groups.end.min(first + batch) {
                    let group = self.source.tree.layout().group(number);
                    if known[(number - groups.start) as usize] != Digest::NONE
                        || given_up.contains_key(&group.entry)
                    {
                        continue;
                    }
                    let len = (group.data.end - group.data.start) as usize;
                    let mut kept = self.source.kept.buffer(len);
                    let (digest, waited) =
                        blocked(|| files.digest_into(&group, kept.as_deref_mut()));
                    self.source.first_reads.waited(waited, threads);
                    if let (Some(buffer), Ok(_)) = (kept, &digest) {
                        self.source.kept.keep(group.data.start, buffer.share());
                    }
                    out.push((number, digest));
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut out = work();
            for thread in threads {
                match thread.join() {
                    Ok(part) => out.extend(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            out
        })
    }

    fn hash_stream(&mut self) -> Result<(DigestSection, bool), SourceError> {
        let Content::Stream(stream) = &self.source.content else {
            return Err(failed("not a stream"));
        };
        let (first, start) = {
            let record = lock(&self.source.record);
            (record.covered.groups(), record.covered.end())
        };
        let limit =
            DATA_LEN_MAX.min(u64::from(BlockId::NUMBER_END) * self.source.geometry.block_len());
        let mut group = match self.next_group.take() {
            Some(group) => group,
            None => stream.take_group()?,
        };
        let (mut end, mut digests, mut last) = (start, Vec::new(), false);
        while !last && digests.len() as u64 * GROUP_LEN < span_len(start) {
            let next = if group.len() as u64 == GROUP_LEN { stream.take_group()? } else { vec![] };
            last = next.is_empty();
            let here =
                Group { entry: 0, index: end / GROUP_LEN, data: end..end + group.len() as u64 };
            // As long as more follows, any length above one group gives the same digest.
            let len = if last { here.data.end } else { here.data.end.max(GROUP_LEN + 1) };
            if !group.is_empty() {
                digests.push(group_digest(self.source.tree.layout(), &here, len, &group));
            }
            end = here.data.end;
            if end > limit {
                return Err(failed("the input is too long for one session"));
            }
            group = next;
        }
        self.next_group = Some(group);
        let groups = first..first + digests.len() as u32;
        let section = DigestSection { groups, data_end: end, withdrawn: Vec::new(), digests };
        Ok((section, last))
    }
}

/// The groups of the next section.
fn next_span(tree: &Tree, covered: &Covered, longest: u64) -> Range<u32> {
    let (layout, first, start) = (tree.layout(), covered.groups(), covered.end());
    let end = layout.data_len().min(start + span_len(start).min(longest));
    first..(layout.group_at(end - 1) + 1).min(first + SECTION_GROUPS_MAX)
}

/// How much the section covers that begins here.
fn span_len(start: u64) -> u64 {
    start.clamp(SECTION_SPAN.0, SECTION_SPAN.1)
}

fn cut(mut reason: String) -> String {
    let mut len = reason.len().min(REASON_LEN_MAX);
    while !reason.is_char_boundary(len) {
        len -= 1;
    }
    reason.truncate(len);
    reason
}

#[cfg(test)]
mod tests {
    use crate::object::{ContentSource, EntryId, ManifestId, Scan, ScanOptions};
    use downpour_proto::Geometry;
    use downpour_transport::identity::Identity;
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn a_section_tells_no_more_than_it_has_room_for_of_what_is_still_to_come() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..5 {
            fs::write(folder.path().join(n.to_string()), "content").unwrap();
        }
        let paths: Vec<_> = (0..5).map(|n| folder.path().join(n.to_string())).collect();
        let scan = Scan::new(&paths, &ScanOptions::default()).unwrap();
        let source = ContentSource::files(scan, Geometry::IPV4, |_| {}).unwrap();
        (0..5).for_each(|entry| source.give_up(EntryId(entry), "not wanted"));
        let ahead = source.ahead(ManifestId([1; 16]), Arc::new(Identity::generate()), 1);
        let told = |groups| ahead.to_tell(&groups, 3).into_keys().collect::<Vec<_>>();
        assert_eq!((told(0..1), told(1..4), told(4..5)), (vec![0, 1, 2], vec![1, 2, 3], vec![4]));
    }
}
