//! The receiver's shelf: blocks in order, products out of them, each verified before it is given on.
//!
//! 1. Blocks come in any order; those that are early wait, within a limit. What goes for it comes again by pull in its turn.
//! 2. In order their frames are read on. A body goes to a file of its own in `.downpour`, and into the digest.
//! 3. When the seal proves digest and head to be the publisher's (`docs/protocol.md#PROD-4`), the file is renamed to its product's
//!    name (a newer product replaces an older one of that name that this receiver has placed or verified), and a line is logged. A
//!    file of a site goes to its path instead, where nothing is replaced, and the `clerk` is told. At a site the clerk says with
//!    its head where it goes; nothing is kept of what is refused there.
//! 4. When it does not, all blocks of that frame are forgotten and come again by pull (`docs/protocol.md#PROD-6`); also when it goes on
//!    where a block tells that the next one begins, or past the end, as nothing proves its size before its seal. So does
//!    the block in which the last frame has ended, when what comes does not follow it: a false one may end too early.
//! 5. When all has come the folder is synced, once, and then that is told: a receipt follows. At a site the clerk does that,
//!    for each word.
//!
//! Who joins late begins with the first frame that begins in a block that it gets. A block that the sender does not
//! keep any more leaves a gap: what lay in it is counted as missed, and the next frame is looked for (`docs/protocol.md#PROD-7`).
//!
//! A receiver that loses its sender keeps a [`Bookmark`]. The shelf of its next attempt goes on from there: nothing is
//! given on twice, what failed has failed, and what the sender did not keep meanwhile is such a gap.

use super::bookmark::Bookmark;
use super::clerk::{Clerk, Desk, Fate};
use super::folder::{Folder, Staged};
use super::frame::{HEAD_START, Head, SEAL_LEN, open_block, open_seal};
use super::log::{ProductLog, ReceivedLine};
use super::ours::Ours;
use super::unix_ns;
use crate::object::{
    EntryId, Obstacle, OpenError, StoreEvent, StoreFailure, Summary, Why, explain,
};
use downpour_proto::{BlockId, RangeSet};
use downpour_transport::control::ClockOffset;
use downpour_transport::identity::PublicKey;
use downpour_transport::{Accepted, BlockSink};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

mod placing;

/// Products that fail are named up to this many.
const FAILED_MAX: usize = 1_000;

/// What a shelf needs to know.
pub struct ShelfConfig {
    /// The session's id.
    pub session: [u8; 16],
    /// Who signs.
    pub publisher: PublicKey,
    /// The first block to come.
    pub first: u32,
    /// How far an attempt before has got in this session.
    pub mark: Option<Bookmark>,
    /// Where products are placed; `None`: nowhere.
    pub folder: Option<PathBuf>,
    /// What products may replace there.
    pub ours: Arc<Ours>,
    /// Bytes of blocks that may wait for those before them.
    pub memory: u64,
    /// The sender's clock.
    pub clock: ClockOffset,
    /// Where to log products.
    pub log: Option<Arc<ProductLog>>,
    /// Signs for the files of a site; without one they are products as any other.
    pub clerk: Option<Arc<Clerk>>,
}

type OnEvent = Arc<dyn Fn(StoreEvent) + Send + Sync>;

/// See the module's text.
pub struct Shelf {
    config: ShelfConfig,
    /// Locked while a disk is waited for.
    state: Arc<Mutex<State>>,
    progress: Progress,
    /// Goes after what is staged in it: from then on it may be another receiver's.
    folder: Option<Folder>,
    /// Synced at the end; opened before anything was written, as it tells only of errors since then.
    to_sync: Option<Arc<OwnedFd>>,
    unsynced: Arc<OnceLock<String>>,
    on_event: OnEvent,
}

/// How far the last block has led, for who does not wait for a disk.
struct Progress {
    bytes: AtomicU64,
    needed_from: AtomicU32,
}

/// A frame that is being read.
enum Reading {
    /// Between frames.
    Nothing,
    /// Its head, as far as it has come.
    Head(Vec<u8>),
    Body(Box<Body>),
    Seal(Box<Body>, Vec<u8>),
}

struct Body {
    head: Head,
    head_bytes: Vec<u8>,
    left: u64,
    hasher: blake3::Hasher,
    /// Its bytes so far; or why it gets no place, and they are read past.
    staged: Result<Option<Staged>, Why>,
    /// `None`: it is a product as any other.
    fate: Option<Fate>,
}

/// A block that has come.
struct Came<B> {
    /// `None` when it is lost.
    bytes: Option<B>,
    came_ns: u64,
}

impl<B: Deref<Target = [u8]>> Came<B> {
    fn len(&self) -> u64 {
        self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)
    }
}

struct State {
    /// The block that comes next.
    next: u32,
    /// Early blocks.
    waiting: BTreeMap<u32, Came<Box<[u8]>>>,
    waiting_bytes: u64,
    /// Blocks that came and did not stay. All come again when the lowest is next: not sooner, or there were no room again.
    gone: RangeSet,
    /// The next frame begins where the last one has ended; otherwise at the first place that a block tells.
    in_step: bool,
    reading: Reading,
    /// Where the frame that is being read begins: block and place.
    began: (u32, usize),
    /// The frame at this place has been false before, in blocks below the second.
    doubted: Option<((u32, usize), u32)>,
    /// The block in which the last frame has ended, if the next one must follow it.
    ended: Option<u32>,
    /// The last block that came again because what followed it did not fit.
    suspected: Option<u32>,
    /// Number of the product that comes next, where it is known.
    expected: Option<u64>,
    /// Blocks have been missed since the last product.
    gap: bool,
    end: Option<u32>,
    over: bool,
    failed: bool,
    /// See [`Bookmark`].
    unattended: bool,
    summary: Summary,
}

/// What reading a block came to.
enum Step {
    Done,
    /// The frame that began there is false.
    False,
    Failed(StoreFailure),
}

impl Shelf {
    /// Opens the folder, which no other receiver may use.
    pub fn open(
        mut config: ShelfConfig,
        on_event: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let lane = config.clerk.as_deref().and_then(Clerk::desk).map(Desk::lane);
        let open = |path| Folder::open(path, lane, Arc::clone(&config.ours));
        let folder = config.folder.as_deref().map(open).transpose()?;
        let at = config.folder.as_deref().zip(folder.as_ref());
        if let (Some(clerk), Some((path, folder))) = (&config.clerk, at) {
            clerk.opened(folder.out()).map_err(|error| OpenError::of(path, error))?;
        }
        // A site takes nothing but files, and its clerk has synced those.
        let to_sync = folder.as_ref().filter(|_| lane.is_none()).map(|folder| folder.out().clone());
        let mark = config.mark.take().unwrap_or_else(|| Bookmark::new(config.first));
        let (gap, unsynced) = (config.first > mark.block, mark.unsynced);
        let state = State {
            next: config.first,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            gone: RangeSet::new(),
            in_step: false,
            reading: Reading::Nothing,
            began: (config.first, 0),
            doubted: None,
            // The product that is expected is told of in the first block, unless blocks before it are missed.
            ended: mark.number.filter(|_| !gap).map(|_| config.first),
            suspected: None,
            expected: mark.number,
            gap,
            end: None,
            over: false,
            failed: false,
            unattended: mark.unattended,
            summary: Summary {
                complete: mark.complete,
                bytes_received: mark.bytes,
                failed: mark.failed,
                ..Summary::default()
            },
        };
        let progress = Progress {
            bytes: AtomicU64::new(state.bytes()),
            needed_from: AtomicU32::new(state.needed_from()),
        };
        let (state, on_event) = (Arc::new(Mutex::new(state)), Arc::new(on_event));
        Ok(Self { config, state, progress, folder, to_sync, unsynced, on_event })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Nothing comes at or after block `end`.
    pub fn finished(&self, end: u32) {
        let mut events = Vec::new();
        {
            let mut state = self.lock();
            state.end = Some(end);
            let again = state.complete(&mut events);
            events.extend(forgotten(again, None));
        }
        self.tell(events);
    }

    /// The sender does not keep the block any more.
    pub fn lost(&self, block: BlockId) {
        self.take(block.number(), None);
    }

    /// What has come so far.
    pub fn summary(&self) -> Summary {
        self.lock().summary.clone()
    }

    /// Bytes of the products that have come, and of the one that is being read. Waits for no disk.
    pub fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Relaxed)
    }

    /// No block below is needed any more. Waits for no disk.
    pub fn needed_from(&self) -> u32 {
        self.progress.needed_from.load(Ordering::Relaxed)
    }

    /// Where another shelf goes on.
    pub fn mark(&self) -> Bookmark {
        let state = self.lock();
        let Summary { complete, failed, bytes_received, .. } = &state.summary;
        Bookmark {
            block: state.needed_from(),
            number: state.expected,
            complete: *complete,
            bytes: *bytes_received,
            failed: failed.clone(),
            unattended: state.unattended,
            unsynced: Arc::clone(&self.unsynced),
        }
    }

    fn tell(&self, events: Vec<StoreEvent>) {
        for event in events {
            match (event, &self.to_sync) {
                (StoreEvent::Complete(_), Some(folder)) => self.sync(folder),
                (event, _) => (self.on_event)(event),
            }
        }
    }

    /// All has come: tells so when it is on the disk for good. By a thread of its own, as that may last, and who brings
    /// blocks or words of the sender must not wait for it.
    fn sync(&self, folder: &Arc<OwnedFd>) {
        let (folder, state) = (Arc::clone(folder), Arc::clone(&self.state));
        let (unsynced, on_event) = (Arc::clone(&self.unsynced), Arc::clone(&self.on_event));
        let syncing = move || {
            let error = rustix::fs::syncfs(&*folder).err().map(|error| {
                let why = format!("what has come may not be on the disk: {}", explain(error));
                // Also for who joins again: all is here then, and another sync does not fail.
                unsynced.get_or_init(|| why.clone());
                StoreEvent::Failed(StoreFailure::Target(why))
            });
            let (mut events, mut state) = (Vec::new(), lock(&state));
            if let Some(why) = unsynced.get() {
                let all = ("products".to_owned(), why.clone());
                // The attempt before may have told.
                if !state.summary.failed.contains(&all) {
                    state.fail(all.0, all.1, &mut events);
                }
            }
            events.push(error.unwrap_or_else(|| StoreEvent::Complete(state.summary.clone())));
            drop(state);
            events.into_iter().for_each(&*on_event);
        };
        let thread = thread::Builder::new().name("downpour-sync".to_owned());
        if let Err(error) = thread.spawn(syncing) {
            let why = format!("what has come cannot be synced: {error}");
            (self.on_event)(StoreEvent::Failed(StoreFailure::Target(why)));
        }
    }

    fn take(&self, number: u32, bytes: Option<&[u8]>) -> Accepted {
        let came = Came { bytes, came_ns: unix_ns() };
        let mut events = Vec::new();
        let accepted = {
            let mut state = self.lock();
            if state.failed {
                return Accepted::Failed;
            }
            if number < state.next {
                return Accepted::Kept;
            }
            let mut doubted = if number == state.next {
                self.read_on(&mut state, came, &mut events)
            } else {
                state.keep(number, came, self.config.memory);
                0..0
            };
            if state.gone.contains(state.next) {
                let gone = std::mem::take(&mut state.gone);
                let blocks = gone.iter().flatten().filter_map(BlockId::data);
                events.extend(blocks.map(|block| StoreEvent::Forgotten { block, poisoned: false }));
            }
            if doubted.is_empty() {
                doubted = state.complete(&mut events);
            }
            self.progress.bytes.store(state.bytes(), Ordering::Relaxed);
            self.progress.needed_from.store(state.needed_from(), Ordering::Relaxed);
            events.extend(forgotten(doubted.clone(), Some(number)));
            match state.failed {
                true => Accepted::Failed,
                false if doubted.contains(&number) && bytes.is_some() => Accepted::False,
                false => Accepted::Kept,
            }
        };
        self.tell(events);
        accepted
    }

    /// Reads the block that is next in turn, and all that waited for it. Returns those that must come again.
    fn read_on(
        &self,
        state: &mut State,
        came: Came<&[u8]>,
        events: &mut Vec<StoreEvent>,
    ) -> Range<u32> {
        let mut again = self.read_next(state, &came, events);
        while again.is_empty()
            && !state.failed
            && let Some(waited) = state.waiting.remove(&state.next)
        {
            state.waiting_bytes -= waited.len();
            again = self.read_next(state, &waited, events);
        }
        again
    }

    /// The same of one.
    fn read_next<B: Deref<Target = [u8]>>(
        &self,
        state: &mut State,
        came: &Came<B>,
        events: &mut Vec<StoreEvent>,
    ) -> Range<u32> {
        let Some(bytes) = &came.bytes else {
            // A gap: whatever was being read has lost its rest.
            (state.reading, state.in_step, state.gap) = (Reading::Nothing, false, true);
            (state.next, state.ended) = (state.next + 1, None);
            return 0..0;
        };
        match self.read_block(state, bytes, came.came_ns, events) {
            Step::Done => state.next += 1,
            Step::Failed(failure) => {
                state.failed = true;
                events.push(StoreEvent::Failed(failure));
            }
            Step::False => return state.doubt(state.next + 1, events),
        }
        0..0
    }

    fn read_block(
        &self,
        state: &mut State,
        block: &[u8],
        came_ns: u64,
        events: &mut Vec<StoreEvent>,
    ) -> Step {
        let is_between = matches!(state.reading, Reading::Nothing);
        if is_between {
            state.began = (state.next, 0);
        }
        let Some((frames, first)) = open_block(block) else { return Step::False };
        let (mut at, mut has_begun) = (0, false);
        if !state.in_step {
            let Some(first) = first else { return Step::Done };
            (at, state.in_step) = (first, true);
        } else if is_between && first != Some(0) && !frames.is_empty() {
            // It goes on with a frame of which the block before has told nothing. Or it is false itself.
            state.suspect();
            return Step::False;
        }
        while at < frames.len() {
            if matches!(state.reading, Reading::Nothing) {
                state.began = (state.next, at);
                if !has_begun && first != Some(at) {
                    return Step::False;
                }
                (state.reading, has_begun) = (Reading::Head(Vec::new()), true);
            }
            let rest = &frames[at..];
            let taken = match std::mem::replace(&mut state.reading, Reading::Nothing) {
                Reading::Nothing => 0,
                Reading::Head(head) => self.read_head(state, head, rest),
                Reading::Body(body) => match self.read_body(state, body, rest) {
                    Ok(taken) => taken,
                    Err(failure) => return Step::Failed(failure),
                },
                Reading::Seal(body, seal) => match self.read_seal(state, body, seal, rest) {
                    Sealed::More(taken) => taken,
                    Sealed::False => return Step::False,
                    Sealed::Whole(taken, body, digest) => {
                        if !state.has_had(body.head.number) {
                            state.ended = Some(state.next);
                        }
                        if let Err(failure) = self.deliver(state, *body, digest, came_ns, events) {
                            return Step::Failed(failure);
                        }
                        taken
                    }
                },
            };
            if taken == 0 {
                return Step::False;
            }
            at += taken;
        }
        // What goes on through a block in which another frame begins is longer than it was sent, or the block is false.
        if has_begun == first.is_some() { Step::Done } else { Step::False }
    }

    /// Returns what was taken of `rest`; 0 when it cannot be a head.
    fn read_head(&self, state: &mut State, mut head: Vec<u8>, rest: &[u8]) -> usize {
        let whole = |head: &[u8]| match head.first_chunk::<HEAD_START>() {
            None => Some(HEAD_START),
            Some(start) => Head::rest_len(*start).map(|len| HEAD_START + len),
        };
        let mut taken = 0;
        loop {
            let Some(wanted) = whole(&head) else { return 0 };
            if head.len() == wanted {
                break;
            }
            let more = (wanted - head.len()).min(rest.len() - taken);
            if more == 0 {
                state.reading = Reading::Head(head);
                return taken;
            }
            head.extend_from_slice(&rest[taken..taken + more]);
            taken += more;
        }
        let Ok(parsed) = Head::parse(&head[HEAD_START..]) else { return 0 };
        if state.expected.is_some_and(|expected| parsed.number > expected) && state.suspect() {
            return 0;
        }
        let (left, hasher) = (parsed.size, blake3::Hasher::new());
        let clerk = self.config.clerk.as_ref();
        let fate = clerk.and_then(|clerk| clerk.fate(&parsed.meta, parsed.size));
        let body = Body { head: parsed, head_bytes: head, left, hasher, staged: Ok(None), fate };
        let body = Box::new(body);
        state.reading = match left {
            0 => Reading::Seal(body, Vec::new()),
            _ => Reading::Body(body),
        };
        taken
    }

    fn read_body(
        &self,
        state: &mut State,
        mut body: Box<Body>,
        rest: &[u8],
    ) -> Result<usize, StoreFailure> {
        let len = rest.len().min(usize::try_from(body.left).unwrap_or(usize::MAX));
        let bytes = &rest[..len];
        body.hasher.update(bytes);
        if !state.has_had(body.head.number) {
            self.write(&mut body, bytes)?;
        }
        body.left -= len as u64;
        state.reading =
            if body.left == 0 { Reading::Seal(body, Vec::new()) } else { Reading::Body(body) };
        Ok(len)
    }

    fn read_seal(
        &self,
        state: &mut State,
        body: Box<Body>,
        mut seal: Vec<u8>,
        rest: &[u8],
    ) -> Sealed {
        let len = rest.len().min(SEAL_LEN - seal.len());
        seal.extend_from_slice(&rest[..len]);
        let Ok(whole) = <&[u8; SEAL_LEN]>::try_from(&seal[..]) else {
            state.reading = Reading::Seal(body, seal);
            return Sealed::More(len);
        };
        let ShelfConfig { publisher, session, .. } = &self.config;
        let (digest, signed) = open_seal(publisher, session, &body.head_bytes, whole);
        let withdrawn = digest == [0; 32];
        let is_right = signed.is_ok() && (withdrawn || body.hasher.finalize() == digest);
        if is_right { Sealed::Whole(len, body, digest) } else { Sealed::False }
    }

    /// The product is verified: it gets its place.
    fn deliver(
        &self,
        state: &mut State,
        body: Body,
        digest: [u8; 32],
        arrived_ns: u64,
        events: &mut Vec<StoreEvent>,
    ) -> Result<(), StoreFailure> {
        let Head { number, inserted_ns, size, name, meta } = body.head;
        if state.has_had(number) {
            return Ok(()); // Given on before a frame after it was read again.
        }
        state.count_missed(Some(number), events);
        state.expected = Some(number.saturating_add(1));
        let clerk = self.config.clerk.as_ref();
        if digest == [0; 32] {
            let reason =
                "the sender could not read it to its end, or it changed meanwhile".to_owned();
            state.fail(name, reason, events);
            clerk.into_iter().for_each(|clerk| clerk.passed(number));
            return Ok(());
        }
        match clerk.zip(body.fate) {
            Some((clerk, fate)) => {
                let kept = self.keep((clerk, state), (number, &name), fate, (digest, body.staged));
                let kept = kept.inspect_err(|_| state.expected = Some(number))?;
                clerk.passed(number);
                if let Some((path, why)) = kept {
                    state.fail(path, why, events);
                    return Ok(());
                }
            }
            None => {
                let placed = self.place(number, (&name, digest), body.staged);
                // Who goes on after a folder that failed has not had it.
                let placed = placed.inspect_err(|_| state.expected = Some(number));
                if let Some(why) = placed? {
                    state.fail(name, why.text, events);
                    return Ok(());
                }
                state.unattended = true;
            }
        }
        state.summary.complete = state.summary.complete.saturating_add(1);
        state.summary.bytes_received += size;
        if let Some(log) = &self.config.log {
            log.add(&ReceivedLine {
                product: number,
                name,
                meta,
                size,
                digest: blake3::Hash::from(digest).to_hex().to_string(),
                inserted_ns,
                arrived_ns,
                delivered_ns: unix_ns(),
                clock_ahead_ns: self.config.clock.ahead_ns,
                clock_error_ns: self.config.clock.error.as_nanos() as u64,
            });
        }
        Ok(())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // What a thread that panicked has left is not used again: its session ends.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What reading a seal came to.
enum Sealed {
    More(usize),
    Whole(usize, Box<Body>, [u8; 32]),
    False,
}

impl State {
    /// Keeps a block that is early. For want of room the highest go: those that come next always have room.
    fn keep(&mut self, number: u32, came: Came<&[u8]>, memory: u64) {
        // What has come is not lost any more, nor kept twice.
        if self.waiting.get(&number).is_some_and(|early| early.bytes.is_some()) {
            return;
        }
        self.waiting_bytes += came.len();
        let early = Came { bytes: came.bytes.map(Into::into), came_ns: came.came_ns };
        self.waiting.insert(number, early);
        while self.waiting_bytes > memory
            && let Some((number, early)) = self.waiting.pop_last()
        {
            self.waiting_bytes -= early.len();
            self.gone.insert(number);
        }
    }

    /// The frame that is being read is false: its blocks, below `end`, are to come again, as the sender has them. If they have,
    /// and it is false still, it is given up. Returns the blocks.
    fn doubt(&mut self, end: u32, events: &mut Vec<StoreEvent>) -> Range<u32> {
        self.reading = Reading::Nothing;
        if self.doubted.is_some_and(|(began, until)| began == self.began && end <= until) {
            let path = format!("a product in block {}", self.began.0);
            let reason = "its bytes are not what the publisher signed".to_owned();
            self.fail(path, reason, events);
            (self.in_step, self.doubted, self.ended) = (false, None, None);
            self.next = end;
            return 0..0;
        }
        self.doubted = Some((self.began, end));
        // Where it begins was told by blocks that may be false: it is looked for anew, past what was given on.
        (self.next, self.in_step) = (self.began.0, false);
        self.next..end
    }

    /// What comes now does not follow the last frame: the block in which that has ended may be false, though all that was
    /// read of it was right. Once: what does not follow then is the sender's. Returns whether that is what is doubted.
    fn suspect(&mut self) -> bool {
        let is_new = |block: &u32| {
            self.suspected < Some(*block)
                && self.doubted.is_none_or(|((from, _), _)| from != *block)
        };
        let Some(block) = self.ended.filter(is_new) else { return false };
        (self.suspected, self.began) = (Some(block), (block, 0));
        true
    }

    fn fail(&mut self, path: String, reason: String, events: &mut Vec<StoreEvent>) {
        if self.summary.failed.len() < FAILED_MAX {
            self.summary.failed.push((path.clone(), reason.clone()));
            let (entry, obstacle) = (EntryId(0), Obstacle::Failed);
            events.push(StoreEvent::ObjectFailed { entry, path, obstacle, reason });
        }
    }

    fn has_had(&self, number: u64) -> bool {
        self.expected.is_some_and(|expected| number < expected)
    }

    /// See [`Shelf::bytes`].
    fn bytes(&self) -> u64 {
        let read = match &self.reading {
            Reading::Body(body) | Reading::Seal(body, _) if !self.has_had(body.head.number) => {
                body.head.size - body.left
            }
            _ => 0,
        };
        self.summary.bytes_received + read
    }

    fn needed_from(&self) -> u32 {
        match self.reading {
            Reading::Nothing if !self.failed => self.next,
            // Also of the frame that the folder could not take.
            _ => self.began.0,
        }
    }

    /// Counts what is missing before this product, or before the end: numbers, and blocks that told none.
    fn count_missed(&mut self, next: Option<u64>, events: &mut Vec<StoreEvent>) {
        let gap = std::mem::take(&mut self.gap);
        let missed = match (self.expected, next) {
            (Some(expected), Some(next)) if next > expected => {
                format!("products {expected} to {}", next - 1)
            }
            (None, Some(next)) if gap => format!("products before {next}"),
            (Some(expected), None) if gap => format!("products from {expected} on"),
            (None, None) if gap => "products".to_owned(),
            _ => return,
        };
        let reason = "missed: the sender did not keep them any more".to_owned();
        self.fail(missed, reason, events);
    }

    /// Says so once, when all has come. Returns the blocks of a frame that goes on past the end.
    fn complete(&mut self, events: &mut Vec<StoreEvent>) -> Range<u32> {
        let mut again = 0..0;
        if self.failed || self.over || self.end.is_none_or(|end| self.next < end) {
            return again;
        }
        if !matches!(self.reading, Reading::Nothing) {
            again = self.doubt(self.next, events);
        }
        if again.is_empty() {
            self.over = true;
            self.count_missed(None, events);
            events.push(StoreEvent::Complete(self.summary.clone()));
        }
        again
    }
}

/// That these blocks are to come again, but for the one that has just `come`.
fn forgotten(again: Range<u32>, come: Option<u32>) -> impl Iterator<Item = StoreEvent> {
    let others = again.clone().filter(move |other| Some(*other) != come);
    others.filter_map(BlockId::data).map(move |block| {
        // Which of them is false cannot be told: one counts.
        let one_counts = come.is_some_and(|come| again.contains(&come));
        let poisoned = !one_counts && block.number() + 1 == again.end;
        StoreEvent::Forgotten { block, poisoned }
    })
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // Before another shelf can have the folder.
        self.config.clerk.iter().for_each(|clerk| clerk.closed());
    }
}

impl BlockSink for Shelf {
    fn seed(&self, _block: BlockId, _buf: &mut [u8]) -> Vec<Range<u16>> {
        Vec::new()
    }

    fn accept(&self, block: BlockId, data: &[u8]) -> Accepted {
        self.take(block.number(), Some(data))
    }
}

#[cfg(test)]
mod tests;
