//! The sender's bytes: blocks of the data space read from files, and the manifest's blocks.
//!
//! Life of a session's content:
//! 1. [`ContentSource::files`] takes a [`Scan`], or [`ContentSource::stream`] a pipe.
//! 2. [`ContentSource::ahead`] gives an iterator that hashes ahead and emits sections; each says which
//!    manifest blocks are new and which data blocks may now be offered.
//! 3. The transport reads blocks, in any order, from several threads, as often as it needs.
//!
//! A file that changes, shrinks or vanishes is *withdrawn*: its bytes read as zeros from then on, which
//! no receiver accepts, and everything else in the same blocks still arrives. A withdrawal known before
//! the file's digests are out travels in the manifest; a later one is told to `on_withdrawn`, and the
//! session must tell the receivers ([`super::Store::withdraw`]). A pipe's input has nothing beside it that
//! could still arrive: when it cannot be read again the session is over ([`ContentSource::lost`]).
//!
//! Every read of a file is followed by a look at size and times; those without data, of which nothing is read, are looked at
//! when the session asks for it ([`ContentSource::look_at_empty`]). When only the change time moved (a chmod, a
//! new hard link), and whenever a block is read again for repair, whole groups are compared with their
//! recorded digests. So are those of a pipe's input that is no spool, when bytes are pulled: unless it is a file
//! that nobody has touched, and once where pieces of a group are pulled one after the other.

mod ahead;
mod files;
mod kept;
mod record;
mod stream;

pub use ahead::{Ahead, Section};
pub(crate) use files::{CHANGED, NO_SIZE, REMOVED};

use super::group::{GroupData, KnownGroup};
use super::layout::Piece;
use super::lock;
use super::scan::Scan;
use super::tree::{EntryId, Tree};
use downpour_proto::{BlockId, BlockKind, Geometry, Rng};
use downpour_transport::{BlockSource, FirstReads, Part, SourceError};
use files::Files;
use kept::Kept;
use record::Record;
use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use stream::Stream;

/// A file that will not be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// The file.
    pub entry: EntryId,
    /// Its path below the target.
    pub path: String,
    /// Why: it changed, or could not be read.
    pub reason: String,
    /// Whether the manifest tells it. If not, receivers must be told by other means.
    pub in_manifest: bool,
}

type OnWithdrawn = Box<dyn Fn(&Withdrawn) + Send + Sync>;

/// Reads what a session sends. See the module's text.
pub struct ContentSource {
    tree: Arc<Tree>,
    geometry: Geometry,
    content: Content,
    record: Mutex<Record>,
    withdrawn: Mutex<HashMap<u32, Withdrawn>>,
    on_withdrawn: OnWithdrawn,
    kept: Kept,
    first_reads: Arc<FirstReads>,
    held: OnceLock<Arc<dyn Any + Send + Sync>>,
}

enum Content {
    Files(Files),
    Stream(Stream),
}

fn failed(reason: impl Into<String>) -> SourceError {
    SourceError { reason: reason.into() }
}

/// For tests of the whole: with `DOWNPOUR_FLIP=SHARE` so many of the pieces that are read to be sent have a wrong bit.
fn flips() -> Option<&'static (f64, Mutex<Rng>)> {
    static SHARE: OnceLock<Option<(f64, Mutex<Rng>)>> = OnceLock::new();
    let share = SHARE.get_or_init(|| {
        let share = std::env::var("DOWNPOUR_FLIP").ok()?.parse().ok()?;
        Some((share, Mutex::new(Rng::new(u64::from(std::process::id())))))
    });
    share.as_ref()
}

fn flip(buf: &mut [u8]) {
    let Some((share, rng)) = flips() else { return };
    let mut rng = lock(rng);
    if rng.unit() < *share {
        let at = (rng.next_u64() % buf.len() as u64) as usize;
        buf[at] ^= 1;
        tracing::warn!(at, "a bit was flipped");
    }
}

impl ContentSource {
    /// The files of a scan. `on_withdrawn` is called, from any thread, for each file given up.
    pub fn files(
        scan: Scan,
        geometry: Geometry,
        on_withdrawn: impl Fn(&Withdrawn) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, SourceError> {
        let (tree, origin) = scan.into_parts();
        let tree = Arc::new(tree);
        if geometry.blocks(tree.layout().data_len()) > u64::from(BlockId::NUMBER_END) {
            return Err(failed("too much data for one session: send it in several"));
        }
        let content = Content::Files(Files::new(tree.clone(), origin));
        Ok(Self::new(tree, geometry, content, Box::new(on_withdrawn)))
    }

    fn new(
        tree: Arc<Tree>,
        geometry: Geometry,
        content: Content,
        on_withdrawn: OnWithdrawn,
    ) -> Arc<Self> {
        Arc::new(Self {
            tree,
            geometry,
            content,
            record: Mutex::new(Record::new(geometry)),
            withdrawn: Mutex::new(HashMap::new()),
            on_withdrawn,
            kept: Kept::default(),
            first_reads: Arc::default(),
            held: OnceLock::new(),
        })
    }

    /// Keeps something for as long as anybody may read from this.
    pub fn hold(&self, held: Arc<dyn Any + Send + Sync>) {
        // Called once.
        let _ = self.held.set(held);
    }

    /// What is sent.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The session's sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Length of the data space; `None` while a pipe has not ended.
    pub fn data_len(&self) -> Option<u64> {
        self.tree.data_len().or_else(|| lock(&self.record).final_len())
    }

    /// Source symbols of a block that may be offered; `None` for others.
    pub fn symbols(&self, block: BlockId) -> Option<u16> {
        let record = lock(&self.record);
        match block.kind() {
            BlockKind::Manifest => record.manifest_symbols(block.number()),
            BlockKind::Data => record.data_symbols(block.number()),
        }
    }

    /// Hash of the last section, which stands for the whole manifest; `None` before it is out.
    pub fn manifest_digest(&self) -> Option<super::Digest> {
        lock(&self.record).manifest_digest()
    }

    /// Bytes of files that were read and hashed so far; what was known from before is not among them.
    pub fn hashed_bytes(&self) -> u64 {
        match &self.content {
            Content::Files(files) => files.hashed(),
            Content::Stream(_) => 0,
        }
    }

    /// How long the files' disk was waited for when they were read to be hashed.
    pub fn first_reads(&self) -> Arc<FirstReads> {
        self.first_reads.clone()
    }

    /// Why a pipe's input cannot be read again, once that has shown.
    pub fn lost(&self) -> Option<String> {
        match &self.content {
            Content::Files(_) => None,
            Content::Stream(stream) => stream.lost(),
        }
    }

    /// Files given up so far.
    pub fn withdrawn(&self) -> Vec<Withdrawn> {
        let mut all: Vec<_> = lock(&self.withdrawn).values().cloned().collect();
        all.sort_by_key(|withdrawn| withdrawn.entry);
        all
    }

    /// From now on keeps up to so many bytes that were hashed until [`Self::kept`] has given them. Sections are short then.
    pub fn keep(&self, bytes: u64) {
        self.kept.set_most(bytes);
    }

    /// `range` of the data space, if all of it was kept; once.
    pub fn kept(&self, range: Range<u64>) -> Option<Vec<Part>> {
        let covered = range.end <= lock(&self.record).covered.end();
        let whole = covered && flips().is_none() && lock(&self.withdrawn).is_empty();
        whole.then(|| self.kept.take(range)).flatten()
    }

    /// Reads `buf.len()` bytes of the data space from `offset`, for a receiver that pulls bytes. What
    /// is not covered by an emitted section cannot be read.
    pub fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let end = offset.checked_add(buf.len() as u64);
        let covered = lock(&self.record).covered.end();
        match end {
            Some(end) if end <= covered => {
                self.fill(offset..end, buf)?;
                self.check_pulled(offset..end)?;
                flip(buf);
                Ok(())
            }
            _ => Err(failed("bytes were asked for that no manifest section covers yet")),
        }
    }

    fn read_data_block(&self, number: u32, buf: &mut [u8]) -> Result<usize, SourceError> {
        let (range, again) = {
            let mut record = lock(&self.record);
            let range = record.covered.block(number);
            (range, record.mark_read(number))
        };
        let len = (range.end - range.start) as usize;
        let Some(buf) = buf.get_mut(..len).filter(|_| len > 0) else {
            return Err(failed(format!("data block {number} was asked for before its time")));
        };
        self.fill(range.clone(), buf)?;
        if again {
            self.check_repair(range, buf)?;
        }
        flip(buf);
        Ok(len)
    }

    /// Gives a file up by its owner's wish: what of it was not sent reads as zeros from now on.
    pub fn give_up(&self, entry: EntryId, reason: &str) {
        if !self.is_withdrawn(entry.0) {
            self.withdraw(entry.0, reason.to_owned(), false);
        }
    }

    /// Whether there are files without data.
    pub fn has_empty(&self) -> bool {
        matches!(self.content, Content::Files(_)) && self.tree.empty_files().next().is_some()
    }

    /// Withdraws files without data that are not as they were, or, when they have `gone` to receivers, hold some: an open file and a
    /// call or two for each.
    pub fn look_at_empty(&self, gone: bool) {
        let Content::Files(files) = &self.content else { return };
        for EntryId(entry) in self.tree.empty_files() {
            if !self.is_withdrawn(entry)
                && let Err(reason) = files.look_at_empty(entry, gone)
            {
                self.withdraw(entry, reason, false);
            }
        }
    }

    /// Reads a range of the data space, withdrawing files that cannot be read as promised.
    fn fill(&self, range: Range<u64>, buf: &mut [u8]) -> Result<(), SourceError> {
        let files = match &self.content {
            Content::Stream(stream) => return stream.read(range.start, buf),
            Content::Files(files) => files,
        };
        let mut pieces = self.tree.layout().pieces(range.clone()).peekable();
        let mut run: Vec<Piece> = Vec::new();
        while let Some(piece) = pieces.next() {
            let entry = piece.entry;
            run.push(piece);
            if pieces.peek().is_some_and(|next| next.entry == entry) {
                continue;
            }
            let from = (run[0].data.start - range.start) as usize;
            let to = (run[run.len() - 1].data.end - range.start) as usize;
            let part = &mut buf[from..to];
            if !self.is_withdrawn(entry) {
                let outcome = files.read(&run, part).and_then(|touched| match touched {
                    true => self.check_touched(files, &run),
                    false => Ok(()),
                });
                if let Err(reason) = outcome {
                    self.withdraw(entry, reason, false);
                }
            }
            if self.is_withdrawn(entry) {
                part.fill(0);
            }
            run.clear();
        }
        Ok(())
    }

    /// The change time moved, but neither size nor modification time: compares the groups read.
    fn check_touched(&self, files: &Files, run: &[Piece]) -> Result<(), String> {
        let data = run[0].data.start..run[run.len() - 1].data.end;
        for group in self.tree.layout().groups_in(data) {
            let recorded = lock(&self.record).covered.digest(group);
            if recorded.is_some_and(|known| Ok(known) != files.digest(group)) {
                return Err(files::CHANGED.into());
            }
        }
        Ok(())
    }

    /// Who got false bytes pulls them again and again: if a pipe's input was written to, that has to show here. Of a group
    /// that is pulled in pieces, one after the other, it shows at the first.
    fn check_pulled(&self, range: Range<u64>) -> Result<(), SourceError> {
        let Content::Stream(stream) = &self.content else { return Ok(()) };
        if !stream.is_touched() {
            return Ok(());
        }
        let goes_on = stream.goes_on(range.start);
        for number in self.tree.layout().groups_in(range.clone()) {
            let Some(known) = self.known(number) else { continue };
            let start = known.group.data.start;
            if goes_on && start < range.start {
                continue;
            }
            let mut whole = vec![0; known.data_len() as usize];
            stream.read(start, &mut whole)?;
            if !known.verify(&self.tree, GroupData::whole(&whole)) {
                return Err(stream.lose(files::CHANGED));
            }
        }
        stream.looked(range.end);
        Ok(())
    }

    /// A block read again must be the block that was sent: compares each group that lies in it whole.
    fn check_repair(&self, range: Range<u64>, buf: &mut [u8]) -> Result<(), SourceError> {
        for number in self.tree.layout().groups_in(range.clone()) {
            let Some(known) = self.known(number) else { continue };
            let (entry, data) = (known.group.entry, known.group.data.clone());
            let inside = range.start <= data.start && data.end <= range.end;
            if !inside || self.is_withdrawn(entry) {
                continue;
            }
            let (from, to) = (data.start - range.start, data.end - range.start);
            let part = &mut buf[from as usize..to as usize];
            if known.verify(&self.tree, GroupData::whole(part)) {
                continue;
            }
            if let Content::Stream(stream) = &self.content {
                return Err(stream.lose(files::CHANGED));
            }
            self.withdraw(entry, files::CHANGED.into(), false);
            part.fill(0);
        }
        Ok(())
    }

    /// What is promised of a group, unless its file was withdrawn before.
    fn known(&self, number: u32) -> Option<KnownGroup> {
        lock(&self.record).covered.known(&self.tree, number)
    }

    fn is_withdrawn(&self, entry: u32) -> bool {
        lock(&self.withdrawn).contains_key(&entry)
    }

    fn withdraw(&self, entry: u32, reason: String, in_manifest: bool) {
        let path = self.tree.path_text(EntryId(entry));
        let withdrawn = Withdrawn { entry: EntryId(entry), path, reason, in_manifest };
        let known = lock(&self.withdrawn).insert(entry, withdrawn.clone());
        // Told once, and again when it has become part of the manifest.
        if known.is_none_or(|known| known.in_manifest != in_manifest) {
            (self.on_withdrawn)(&withdrawn);
        }
    }
}

impl BlockSource for ContentSource {
    fn read(&self, block: BlockId, buf: &mut [u8]) -> Result<usize, SourceError> {
        match block.kind() {
            BlockKind::Data => self.read_data_block(block.number(), buf),
            BlockKind::Manifest => lock(&self.record)
                .read_manifest(block.number(), buf)
                .ok_or_else(|| failed(format!("manifest block {block} does not exist"))),
        }
    }
}
