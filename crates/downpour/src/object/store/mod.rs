//! The receiver's end: manifest and data blocks in any order become verified objects in their place.
//!
//! 1. Manifest blocks are put together to sections, whose chain and signatures are checked (`sections`).
//! 2. With the tree, the target gets ready: folders, space, what is there already. [`StoreEvent::Tree`].
//! 3. With each digest section, what is held of its span is found: identical files, and the journal's
//!    groups. [`StoreEvent::Section`] tells which blocks are still needed.
//! 4. A data block is cut into groups. A group that lies in it whole is verified and written straight
//!    from it; one that straddles blocks is put together first. A block whose digests are not known yet
//!    waits in memory, up to a limit.
//! 5. A file is placed when its last group is written; links, folders' metadata and the sync come at the
//!    end. [`StoreEvent::Complete`].
//!
//! A group that does not fit its digest is dropped, and the blocks it came from must come again. Nothing
//! false is ever placed (`docs/protocol.md#MAN-4`). Dropping the store at any time loses only what was in memory: the journal and
//! the partial files are there for the next.
//!
//! Locks: `sections` and `progress` are held for bookkeeping only, never during hashing, I/O or events.

mod agreed;
mod event;
mod folder;
mod intake;
mod progress;
mod raw;
mod sections;
mod sinks;
mod target;

pub use agreed::Agreed;
pub use event::{Placed, SectionKnown, StoreEvent, StoreFailure, Summary, TreeKnown};
pub use folder::FolderOptions;
pub use sinks::PipeOut;

use super::group::{GroupData, KnownGroup};
use super::limits::{ENTRIES_DEFAULT, NOTICES_MAX};
use super::lock;
use super::manifest::ManifestId;
use super::place::{Obstacle, OpenError, REMEDY, Why};
use super::tree::{EntryId, Tree};
use downpour_proto::{BlockId, BlockKind, Geometry};
use downpour_transport::identity::PublicKey;
use downpour_transport::{Accepted, BlockSink, Spare};
use intake::Intake;
use progress::{Claim, Progress};
use sections::Sections;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use target::{Fault, Target};

/// What a store must know beforehand.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The session's sizes, as told at JOIN.
    pub geometry: Geometry,
    /// Whose signature the manifest must have.
    pub publisher: PublicKey,
    /// Which manifest, as told at JOIN.
    pub manifest: ManifestId,
    /// Bytes of memory for blocks that come before their digests. Default 64 MiB. More are refused, and
    /// pulled later.
    pub early_bytes_max: usize,
    /// Bytes of memory for groups of which a part is missing, because they straddle blocks. Default
    /// 64 MiB. More are written to partial files, or refused where there are none.
    pub pending_bytes_max: u64,
    /// Entries of the tree that are taken. Default [`ENTRIES_DEFAULT`].
    pub entries_max: u32,
    /// The only files that are taken, and their content. Default: any.
    pub agreed: Option<Arc<Agreed>>,
}

impl StoreConfig {
    /// With the default limits.
    pub fn new(geometry: Geometry, publisher: PublicKey, manifest: ManifestId) -> Self {
        let (early_bytes_max, pending_bytes_max) = (64 << 20, 64 << 20);
        Self {
            geometry,
            publisher,
            manifest,
            early_bytes_max,
            pending_bytes_max,
            entries_max: ENTRIES_DEFAULT,
            agreed: None,
        }
    }
}

/// Where the objects go.
pub enum Destination {
    /// Below a folder (`--out DIR`).
    Folder(FolderOptions),
    /// Nowhere: everything is verified (`--discard`).
    Discard,
    /// One file or stream, in order (`--out -`). Out of order at most `window` bytes are held.
    Pipe {
        /// Where the bytes are written. What is written there already must be the beginning of the content.
        out: PipeOut,
        /// Bytes of memory, in whole MiB and at least 2; one block more may be held. A good value is 256 MiB.
        window: u64,
    },
    /// One file or stream, onto a block device that nothing uses or into an existing file. What is there is compared with the
    /// manifest first, and only what differs is taken.
    Raw(PathBuf),
}

/// How often a thread with a block for which it is too early looks whether it still is.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);

/// Buffers of groups kept for reuse, of a group's length (1 MiB) at most.
const SPARE_MAX: usize = 8;

/// Withdrawals kept until the tree is known.
const EARLY_WITHDRAWN_MAX: usize = 1 << 16;

type OnEvent = Box<dyn Fn(StoreEvent) + Send + Sync>;

/// Takes blocks, verifies, places. See the module's text.
pub struct Store {
    config: StoreConfig,
    target: Box<dyn Target>,
    on_event: OnEvent,
    sections: Mutex<Sections>,
    intake: Mutex<Intake>,
    tree: OnceLock<Arc<Tree>>,
    /// Withdrawals that were told before the tree was known. At most [`EARLY_WITHDRAWN_MAX`].
    withdrawn_early: Mutex<Vec<(EntryId, Why)>>,
    /// So many are known of and not through yet.
    withdrawals: AtomicUsize,
    progress: Mutex<Progress>,
    spare: Spare,
    /// Notices so far, told or not.
    noticed: AtomicUsize,
    failure: OnceLock<StoreFailure>,
}

/// What became of a part of a group that straddles blocks.
enum Joined {
    Waiting,
    /// The group's bytes but for the part that came last.
    Complete(Vec<u8>),
    NoRoom,
}

/// What a block gave.
#[derive(Default)]
struct Outcome {
    verified: Vec<KnownGroup>,
    failed: Vec<(EntryId, Why)>,
    /// Other blocks that must come again, as they share a group that was not kept; and whether they
    /// are suspected to be false.
    again: Vec<(u32, bool)>,
    is_false: bool,
    refused: bool,
    fatal: Option<StoreFailure>,
}

impl Store {
    /// Opens the destination. A folder is made if need be, and locked.
    pub fn open(
        config: StoreConfig,
        destination: Destination,
        on_event: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let target: Box<dyn Target> = match destination {
            Destination::Folder(options) => Box::new(folder::FolderTarget::open(options)?),
            Destination::Discard => Box::new(sinks::Discard),
            Destination::Pipe { out, window } => Box::new(sinks::Pipe::new(out, window)),
            Destination::Raw(path) => Box::new(raw::RawTarget::open(path)?),
        };
        let sections = Sections::new(config.geometry, config.publisher, config.manifest);
        let progress = Progress::new(config.geometry, config.early_bytes_max);
        Ok(Self {
            config,
            target,
            on_event: Box::new(on_event),
            sections: Mutex::new(sections),
            intake: Mutex::new(Intake::default()),
            tree: OnceLock::new(),
            withdrawn_early: Mutex::default(),
            withdrawals: AtomicUsize::new(0),
            progress: Mutex::new(progress),
            spare: Spare::new(SPARE_MAX),
            noticed: AtomicUsize::new(0),
            failure: OnceLock::new(),
        })
    }

    /// The tree, once it is known.
    pub fn tree(&self) -> Option<&Arc<Tree>> {
        self.tree.get()
    }

    /// Why the store has failed for good, if it has.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.failure.get()
    }

    /// The sender has given an object up, and [`withdraw`](Self::withdraw) follows, which may have to wait for its turn: until then
    /// nothing is finished. Waits for nothing itself.
    pub fn withdrawal_follows(&self) {
        self.withdrawals.fetch_add(1, Ordering::SeqCst);
    }

    /// The sender has given an object up, as it told outside of the manifest: perhaps before the manifest
    /// itself is here.
    pub fn withdraw(&self, entry: EntryId, reason: &str) {
        let reason = Why::new(Obstacle::Withdrawn, format!("withdrawn by the sender: {reason}"));
        let mut early = lock(&self.withdrawn_early);
        match self.tree.get() {
            None if early.len() < EARLY_WITHDRAWN_MAX => early.push((entry, reason)),
            None => {
                let what =
                    format!("more than {EARLY_WITHDRAWN_MAX} files have changed at the sender");
                self.fail(StoreFailure::Target(what));
            }
            Some(tree) if entry.0 < tree.len() => {
                drop(early);
                self.fail_object(entry, reason);
            }
            Some(_) => drop(early),
        }
        let done = |follow: usize| follow.checked_sub(1);
        let _ = self.withdrawals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, done);
        self.finish_if_done();
    }

    /// The tree has become known: what was withdrawn before can be looked up.
    fn withdraw_early(&self, tree: &Tree) {
        let early = std::mem::take(&mut *lock(&self.withdrawn_early));
        for (entry, reason) in early.into_iter().filter(|(entry, _)| entry.0 < tree.len()) {
            self.fail_object(entry, reason);
        }
    }

    fn event(&self, event: StoreEvent) {
        (self.on_event)(event);
    }

    fn fail(&self, failure: StoreFailure) {
        if self.failure.set(failure.clone()).is_ok() {
            self.event(StoreEvent::Failed(failure));
        }
    }

    fn fail_object(&self, entry: EntryId, mut why: Why) {
        // What was agreed on is received by no command: there are no options to be told of.
        if self.config.agreed.is_some()
            && let Some(text) = why.text.strip_suffix(REMEDY)
        {
            why.text = text.to_owned();
        }
        let Some(tree) = self.tree.get() else { return };
        let Some(not_needed) = lock(&self.progress).fail(entry, &why.text) else { return };
        self.target.abandon(entry);
        let Why { obstacle, text: reason } = why;
        let path = tree.path_text(entry);
        self.event(StoreEvent::ObjectFailed { entry, path, obstacle, reason });
        if !not_needed.is_empty() {
            self.event(StoreEvent::NotNeeded(not_needed));
        }
    }

    fn notice(&self, entry: EntryId, text: String) {
        if self.noticed.fetch_add(1, Ordering::Relaxed) < NOTICES_MAX {
            let path = self.tree.get().map(|tree| tree.path_text(entry)).unwrap_or_default();
            self.event(StoreEvent::Notice { path, text });
        }
    }

    fn accept_data(&self, block: u32, data: &[u8]) -> Accepted {
        loop {
            let deciding = self.is_deciding();
            let admits = |first, last| self.target.admits(first, last);
            let claim = lock(&self.progress).claim(block, data, admits);
            return match (claim, self.tree.get()) {
                (Claim::Work(work), Some(tree)) => self.work(block, data, &work, tree),
                (Claim::Kept | Claim::Work(_), _) => Accepted::Kept,
                // Another thread is at work on the manifest, which may decide the block: it does not wait for us.
                (Claim::Early, _) if deciding => {
                    std::thread::sleep(LOOK_INTERVAL);
                    continue;
                }
                (Claim::Early | Claim::Refused, _) => Accepted::Refused,
                (Claim::False, _) => Accepted::False,
            };
        }
    }

    /// Verifies and writes the groups of a claimed block.
    fn work(&self, block: u32, data: &[u8], work: &[KnownGroup], tree: &Tree) -> Accepted {
        let start = u64::from(block) * self.config.geometry.block_len();
        let mut outcome = Outcome::default();
        for known in work {
            let range = known.group.data.clone();
            let from = range.start.max(start);
            let to = range.end.min(start + data.len() as u64);
            let part = &data[(from - start) as usize..(to - start) as usize];
            let at = from - range.start;
            if part.len() as u64 == known.data_len() {
                let whole = GroupData::whole(part);
                self.verify_and_write(block, known, whole, tree, &mut outcome);
            } else {
                match self.join(block, known, at, part) {
                    Ok(Joined::Waiting) => {}
                    Ok(Joined::Complete(others)) => {
                        let whole = GroupData::with(&others, at as usize, part);
                        self.verify_and_write(block, known, whole, tree, &mut outcome);
                        self.spare.give(others);
                    }
                    Ok(Joined::NoRoom) => outcome.refused = true,
                    Err(fault) => outcome.fault(known, fault),
                }
            }
            if outcome.fatal.is_some() {
                break;
            }
        }
        self.settle(block, outcome)
    }

    fn verify_and_write(
        &self,
        block: u32,
        known: &KnownGroup,
        bytes: GroupData<'_>,
        tree: &Tree,
        outcome: &mut Outcome,
    ) {
        let genuine = known.verify(tree, bytes);
        match genuine.then(|| self.target.write(known, bytes)) {
            Some(Ok(())) => return outcome.verified.push(known.clone()),
            Some(Err(fault @ (Fault::Object(_) | Fault::Fatal(_)))) => {
                return outcome.fault(known, fault);
            }
            Some(Err(Fault::NoRoom)) => outcome.refused = true,
            None => {
                outcome.is_false = true;
                if lock(&self.progress).came_false(known) {
                    let text = "what comes of it is not what was announced, however often it is asked for: \
                                it changes at the sender; send it again when it does not";
                    outcome.failed.push((known.entry(), Why::new(Obstacle::NotAgreed, text)));
                }
            }
        }
        // The group begins anew, so all blocks that it lies in must come again.
        lock(&self.progress).forget_pending(known.number);
        let len = self.config.geometry.block_len();
        let (start, end) = (known.group.data.start, known.group.data.end);
        let others =
            ((start / len) as u32..end.div_ceil(len) as u32).filter(|other| *other != block);
        outcome.again.extend(others.map(|other| (other, !genuine)));
    }

    /// Books what a block gave, and does what follows from it.
    fn settle(&self, block: u32, outcome: Outcome) -> Accepted {
        let (is_false, refused) = (outcome.is_false, outcome.refused);
        if is_false {
            // What else the block has brought is as doubtful.
            let all_pending = lock(&self.progress).all_pending();
            for pending in all_pending {
                lock(&pending).parts.retain(|(from, _)| *from != block);
            }
        }
        let mut complete = Vec::new();
        {
            let mut progress = lock(&self.progress);
            progress.unclaim(block);
            for known in &outcome.verified {
                progress.bytes_received += known.data_len();
                complete.extend(progress.mark(known.number));
            }
        }
        for entry in complete {
            self.complete(entry);
        }
        for (other, suspected) in outcome.again {
            self.forgotten(BlockId::data(other), suspected);
        }
        // What is given up is not asked for any more, so this has the last word.
        for (entry, reason) in outcome.failed {
            self.fail_object(entry, reason);
        }
        if let Some(failure) = outcome.fatal {
            self.fail(failure);
            return Accepted::Failed;
        }
        self.finish_if_done();
        match (is_false, refused) {
            _ if self.failure.get().is_some() => Accepted::Failed,
            (true, _) => Accepted::False,
            (false, true) => Accepted::Refused,
            (false, false) => Accepted::Kept,
        }
    }

    fn forgotten(&self, block: Option<BlockId>, poisoned: bool) {
        if let Some(block) = block {
            self.event(StoreEvent::Forgotten { block, poisoned });
        }
    }

    /// Adds a part to a group that straddles blocks; the last one stays where it is.
    fn join(&self, block: u32, known: &KnownGroup, at: u64, part: &[u8]) -> Result<Joined, Fault> {
        let (number, len) = (known.number, known.data_len());
        let max = match self.target.bounds_pending() {
            true => u64::MAX,
            false => self.config.pending_bytes_max,
        };
        let Some(pending) = lock(&self.progress).pending(number) else {
            return Ok(Joined::Waiting);
        };
        let mut pending = lock(&pending);
        if pending.spilled
            && pending.parts.is_empty()
            && !pending.taken
            && lock(&self.progress).charge(number, len, max)
        {
            // It is new, or there was no room when it was begun.
            pending.spilled = false;
            pending.bytes = self.spare.take(len as usize);
        }
        if pending.taken {
            return Ok(Joined::Waiting);
        }
        pending.parts.retain(|(from, _)| *from != block);
        let others: u64 = pending.parts.iter().map(|(_, range)| range.end - range.start).sum();
        let range = at..at + part.len() as u64;
        if others + (range.end - range.start) < len {
            if !pending.spilled {
                pending.bytes[at as usize..range.end as usize].copy_from_slice(part);
            } else if !self.target.spill(known, at, part)? {
                return Ok(Joined::NoRoom);
            }
            pending.parts.push((block, range));
            return Ok(Joined::Waiting);
        }
        pending.taken = true;
        let mut bytes = std::mem::take(&mut pending.bytes);
        let spilled = pending.spilled;
        drop(pending);
        if spilled {
            bytes = vec![0; len as usize];
            // What cannot be read is the same as what came false: it does not verify.
            self.target.read(known, &mut bytes);
        }
        Ok(Joined::Complete(bytes))
    }

    /// All groups of an entry are there.
    fn complete(&self, entry: EntryId) {
        let Some(tree) = self.tree.get() else { return };
        let len = lock(&self.progress).len_of(tree, entry);
        if let Err(why) = self.check_agreed(tree, entry) {
            return self.fail_object(entry, why);
        }
        match self.target.complete(entry, len) {
            Ok(notices) => {
                notices.into_iter().for_each(|text| self.notice(entry, text));
                lock(&self.progress).done(entry);
            }
            Err(Fault::Fatal(failure)) => self.fail(failure),
            Err(Fault::Object(reason)) => self.fail_object(entry, reason),
            Err(Fault::NoRoom) => {
                self.fail_object(entry, Why::new(Obstacle::Failed, "there was no room"));
            }
        }
    }

    fn finish_if_done(&self) {
        let follows = self.withdrawals.load(Ordering::SeqCst) > 0;
        if follows || self.failure.get().is_some() || !lock(&self.progress).may_finish() {
            return;
        }
        let failed = |entry: EntryId| lock(&self.progress).is_failed(entry);
        match self.target.finish(&failed, &|entry, text| self.notice(entry, text)) {
            Err(failure) => self.fail(failure),
            Ok(finished) => {
                let more = self.noticed.load(Ordering::Relaxed).saturating_sub(NOTICES_MAX);
                let more = (more > 0).then(|| format!("{more} more notices are not told"));
                for text in more.into_iter().chain(finished.of_target) {
                    self.event(StoreEvent::Notice { path: ".".to_owned(), text });
                }
                for (entry, reason) in finished.failed {
                    lock(&self.progress).not_done(EntryId(entry));
                    self.fail_object(EntryId(entry), reason);
                }
                let summary = self.summary();
                self.event(StoreEvent::Complete(summary));
            }
        }
    }

    /// How it stands, or ended.
    pub fn summary(&self) -> Summary {
        let manifest = lock(&self.sections).digest();
        let progress = lock(&self.progress);
        let (mut failed, mut complete) = (Vec::new(), 0);
        if let Some(tree) = self.tree.get() {
            for (entry, reason) in &progress.failures {
                failed.push((tree.path_text(EntryId(*entry)), reason.clone()));
            }
            complete = tree.len() - failed.len() as u32;
        }
        Summary {
            complete: if progress.finishing { complete } else { 0 },
            failed,
            bytes_received: progress.bytes_received,
            bytes_held: progress.bytes_held,
            manifest: progress.finishing.then_some(manifest),
        }
    }

    fn seed_data(&self, block: u32, buf: &mut [u8], tree: &Tree) -> Vec<Range<u16>> {
        let (groups, range) = {
            let progress = lock(&self.progress);
            (progress.verified_in(block), progress.covered.block(block))
        };
        // A block that no section covers yet has no bytes that could be held.
        if range.is_empty() {
            return Vec::new();
        }
        let (mut spans, mut scratch): (Vec<Range<u64>>, Vec<u8>) = (Vec::new(), Vec::new());
        for known in groups {
            scratch.resize(known.data_len() as usize, 0);
            if !self.target.read(&known, &mut scratch)
                || !known.verify(tree, GroupData::whole(&scratch))
            {
                continue;
            }
            let data = known.group.data;
            let (from, to) = (data.start.max(range.start), data.end.min(range.end));
            let Some(into) =
                buf.get_mut((from - range.start) as usize..(to - range.start) as usize)
            else {
                continue;
            };
            into.copy_from_slice(
                &scratch[(from - data.start) as usize..(to - data.start) as usize],
            );
            match spans.last_mut() {
                Some(last) if last.end == from - range.start => last.end = to - range.start,
                _ => spans.push(from - range.start..to - range.start),
            }
        }
        let (len, symbol) = (range.end - range.start, u64::from(self.config.geometry.symbol_len));
        // The padding after the end of the data.
        if let Some(padding) = buf.get_mut(len as usize..) {
            padding.fill(0);
        }
        let whole = spans.into_iter().filter_map(|span| {
            let end = if span.end == len { len.div_ceil(symbol) } else { span.end / symbol };
            let symbols = span.start.div_ceil(symbol) as u16..end as u16;
            (!symbols.is_empty()).then_some(symbols)
        });
        whole.collect()
    }
}

impl Outcome {
    fn fault(&mut self, known: &KnownGroup, fault: Fault) {
        match fault {
            Fault::Object(reason) => self.failed.push((known.entry(), reason)),
            Fault::NoRoom => self.refused = true,
            Fault::Fatal(failure) => self.fatal = Some(failure),
        }
    }
}

impl BlockSink for Store {
    fn seed(&self, block: BlockId, buf: &mut [u8]) -> Vec<Range<u16>> {
        match (block.kind(), self.tree.get()) {
            (BlockKind::Data, Some(tree)) => self.seed_data(block.number(), buf, tree),
            _ => Vec::new(),
        }
    }

    fn accept(&self, block: BlockId, data: &[u8]) -> Accepted {
        if self.failure.get().is_some() {
            return Accepted::Failed;
        }
        match block.kind() {
            BlockKind::Data => self.accept_data(block.number(), data),
            BlockKind::Manifest => self.accept_manifest(block.number(), data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Destination, FolderOptions, Store, StoreConfig, StoreEvent, lock};
    use crate::object::limits::NOTICES_MAX;
    use crate::object::manifest::ManifestId;
    use crate::object::tree::{Extents, Meta, NewEntry, NewKind, TreeBuilder, Xattr};
    use downpour_proto::Geometry;
    use downpour_transport::identity::Identity;
    use std::sync::{Arc, Mutex};

    #[test]
    fn each_entry_gives_one_notice_of_attributes_and_the_first_thousand_are_told() {
        // Of a kind that nobody takes.
        let xattr = |name: &[u8]| Xattr { name: name.to_vec(), value: Vec::new() };
        let mut builder = TreeBuilder::new();
        builder.set_has_xattrs();
        for number in 0..NOTICES_MAX + 2 {
            let name = format!("{number:05}");
            let entry = NewEntry {
                depth: 0,
                name: name.as_bytes(),
                kind: NewKind::File { size: 0, extents: Extents::Dense },
                meta: Meta { mode: 0o644, ..Meta::default() },
                xattrs: vec![xattr(b"x.1"), xattr(b"x.2"), xattr(b"x.3")],
            };
            builder.push(entry).unwrap();
        }
        let tree = Arc::new(builder.finish());
        let folder = tempfile::tempdir().unwrap();
        let options = FolderOptions { xattrs: true, ..FolderOptions::new(folder.path()) };
        let publisher = Identity::generate().public_key();
        let config = StoreConfig::new(Geometry::IPV4, publisher, ManifestId([5; 16]));
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let telling = Arc::clone(&told);
        let on_event = move |event| {
            if let StoreEvent::Notice { path, text } = event {
                lock(&telling).push(format!("{path}: {text}"));
            }
        };
        let store = Store::open(config, Destination::Folder(options), on_event).unwrap();
        store.target.start(&tree).unwrap();
        lock(&store.progress).start(tree.clone());
        let _ = store.tree.set(tree);
        lock(&store.progress).covered.finish();
        store.finish_if_done();
        let told = lock(&told);
        assert_eq!(told.len(), NOTICES_MAX + 1);
        assert!(told[0].starts_with("00000: attribute x.1 not set: "), "{}", told[0]);
        assert!(told[0].ends_with(" (and 2 more attributes)"), "{}", told[0]);
        assert_eq!(told.last().unwrap(), ".: 2 more notices are not told");
    }
}
