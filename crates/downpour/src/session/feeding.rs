//! Products out of their list, blocks into the driver.
//!
//! One thread reads the list (it may be a pipe that nobody writes to for hours); another inserts each product when it
//! is due. A block is closed when it is full, or at a product's end when it has some symbols or little waits to be
//! sent: nothing is gained by waiting then. While much waits, small products share a block, for up to 50 ms.
//!
//! A session has numbers for so many blocks. When they are used up it ends in order: what was inserted is sent, receivers
//! say their last, and the report names the first product that had no room. One that no session could take is passed over.

use super::endpoint::Shared;
use super::standing::Heard;
use crate::product::{
    InsertedLine, Inserter, ListError, Listed, ProductLog, Queue, Stopped, unix_ns,
};
use crate::units::show_bytes;
use downpour_proto::BlockId;
use downpour_transport::control::{Event, MANIFEST_SYMBOLS_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// With so many blocks offered and not opened, products wait for company.
const BACKLOG_BLOCKS: usize = 16;

/// A block of so many symbols is worth its polls: products in it would wait for more.
const SHARED_SYMBOLS: u16 = 16;

/// For so long at most.
const SHARE_TIME: Duration = Duration::from_millis(50);

/// How often the thread looks whether it shall stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Lines of the list read ahead.
const LINES_AHEAD: usize = 64;

/// Products that were inserted and of which not all has been sent, at most, for the log.
const LOGGED_MAX: usize = 100_000;

/// The products of a session.
pub(super) struct Feed {
    pub(super) queue: Arc<Queue>,
    times: Option<Times>,
}

/// When blocks were sent, and products that wait for theirs.
struct Times {
    log: Arc<ProductLog>,
    state: Mutex<Unlogged>,
}

#[derive(Default)]
struct Unlogged {
    /// When each block's first and last source datagram left; zeros: the stream has passed it over.
    past: BTreeMap<u32, (u64, u64)>,
    /// Products and their blocks.
    waiting: VecDeque<(InsertedLine, Range<u32>)>,
    /// Products for which there was no room among them.
    left_out: u64,
}

impl Feed {
    pub(super) fn new(queue: Arc<Queue>, log: Option<Arc<ProductLog>>) -> Self {
        let times = log.map(|log| Times { log, state: Mutex::default() });
        Self { queue, times }
    }

    /// All source of a block has just been sent, which took so long, or will not be.
    pub(super) fn past(&self, block: BlockId, took: Option<Duration>) {
        let Some(times) = &self.times else { return };
        let now = unix_ns();
        let mut state = times.state();
        let sent = took.map(|took| (now.saturating_sub(took.as_nanos() as u64), now));
        state.past.insert(block.number(), sent.unwrap_or_default());
        times.tell(&mut state);
    }

    fn inserted(&self, line: InsertedLine, blocks: Range<u32>) {
        let Some(times) = &self.times else { return };
        let mut state = times.state();
        match state.waiting.len() {
            ..LOGGED_MAX => state.waiting.push_back((line, blocks)),
            _ => state.left_out += 1,
        }
        times.tell(&mut state);
    }

    /// What the log lacks.
    pub(super) fn log_lacks(&self) -> Vec<String> {
        let Some(times) = &self.times else { return Vec::new() };
        let lacks = match times.state().left_out {
            0 => None,
            left_out => {
                let all = self.queue.inserted().0;
                let why = "too many waited to be sent at a time";
                Some(format!("the log of products lacks {left_out} of {all} lines: {why}"))
            }
        };
        lacks.into_iter().chain(times.log.failure()).collect()
    }

    /// Lengths of the blocks from `from` on, as far as they are kept, and one past the last of them.
    pub(super) fn news(&self, from: u32) -> (Vec<Event>, u32) {
        let (first, symbols) = self.queue.symbols_from(from);
        let list = |(index, symbols): (usize, &[u16])| Event::Blocks {
            first: first + (index * MANIFEST_SYMBOLS_MAX) as u32,
            symbols: symbols.to_vec(),
        };
        let lists = symbols.chunks(MANIFEST_SYMBOLS_MAX).enumerate().map(list).collect();
        (lists, first + symbols.len() as u32)
    }
}

impl Times {
    fn state(&self) -> MutexGuard<'_, Unlogged> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the products all of whose blocks have been sent or passed over.
    fn tell(&self, Unlogged { past, waiting, .. }: &mut Unlogged) {
        while let Some((_, blocks)) = waiting.front() {
            let (Some(first), Some(last)) = (past.get(&blocks.start), past.get(&(blocks.end - 1)))
            else {
                return;
            };
            let (first_sent_ns, last_sent_ns) = (first.0, last.1);
            // The next product may share the last of these blocks.
            *past = past.split_off(&(blocks.end - 1));
            if let Some((line, _)) = waiting.pop_front() {
                self.log.add(&InsertedLine { first_sent_ns, last_sent_ns, ..line });
            }
        }
    }
}

/// The list, read on a thread of its own.
pub(super) type Lines = Receiver<Result<Listed, ListError>>;

/// Starts to read.
pub(super) fn read_ahead(
    list: impl Iterator<Item = Result<Listed, ListError>> + Send + 'static,
) -> std::io::Result<Lines> {
    let (sender, lines) = sync_channel(LINES_AHEAD);
    // Ends with the process: a read from a pipe cannot be called off.
    thread::Builder::new().name("downpour-list".to_owned()).spawn(move || {
        for line in list {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Inserts until the list has ended or `stop` is set; what was inserted is sent all the same.
pub(super) fn feed(
    shared: &Arc<Shared>,
    mut inserter: Inserter,
    lines: &Lines,
    stop: &AtomicBool,
) -> Result<(), ListError> {
    downpour_transport::take_short_turns();
    let Some(feed) = &shared.feed else { return Ok(()) };
    let stopped = || stop.load(Ordering::Relaxed);
    while !stopped() && !shared.stand().started {
        thread::sleep(Duration::from_millis(1));
    }
    let mut feeder =
        Feeder { shared, feed, begun: (Instant::now(), unix_ns()), shares_until: None };
    let listed = loop {
        let wait = if inserter.is_open() { Duration::from_millis(1) } else { LOOK_INTERVAL };
        match lines.recv_timeout(wait) {
            _ if stopped() => break Ok(()),
            Ok(Ok(listed)) => match feeder.insert(&mut inserter, &listed, &stopped) {
                Ok(()) => {}
                Err(Halt::Stopped) => break Ok(()),
                Err(Halt::Full) => {
                    shared.stand().end_full(listed.name, shared.owner.is_some());
                    break Ok(());
                }
            },
            Ok(Err(ListError::Line { line, reason })) => {
                let name = format!("line {line} of the list of products");
                shared.stand().unsent.add(name, reason);
            }
            Ok(Err(error)) => break Err(error),
            Err(RecvTimeoutError::Timeout) => {
                if feeder.close_when_due(&mut inserter).is_err() {
                    break Ok(());
                }
            }
            Err(RecvTimeoutError::Disconnected) => break Ok(()),
        }
    };
    // Fails only when nothing is sent any more.
    let _ = inserter.close(&mut |number, symbols| feeder.offer(number, symbols));
    shared.stand().offered_all = true;
    shared.driver.finish();
    shared.changed.notify_one();
    listed
}

/// A product's bytes; that they are read is known to who owns the session.
struct Watched<'a> {
    bytes: Box<dyn Read>,
    name: &'a str,
    shared: &'a Shared,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.shared.reads(self.name, || self.bytes.read(buf))
    }
}

/// Why nothing more is inserted.
enum Halt {
    Stopped,
    /// All numbers of blocks are used up.
    Full,
}

impl From<Stopped> for Halt {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

struct Feeder<'a> {
    shared: &'a Shared,
    feed: &'a Feed,
    /// When the session started, by both clocks.
    begun: (Instant, u64),
    /// Until when the open block waits for more.
    shares_until: Option<Instant>,
}

impl Feeder<'_> {
    fn insert(
        &mut self,
        inserter: &mut Inserter,
        listed: &Listed,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), Halt> {
        let due = listed.at_s.map(Duration::from_secs_f64);
        while let Some(left) = due.and_then(|due| due.checked_sub(self.begun.0.elapsed()))
            && !left.is_zero()
        {
            if stopped() {
                return Err(Halt::Stopped);
            }
            self.close_when_due(inserter)?;
            let most = if inserter.is_open() { Duration::from_millis(1) } else { LOOK_INTERVAL };
            thread::sleep(left.min(most));
        }
        let inserted_ns = due.map_or_else(unix_ns, |due| self.begun.1 + due.as_nanos() as u64);
        let Listed { name, meta, content, .. } = listed;
        let shared = self.shared;
        let (size, mut bytes) = match shared.reads(name, || content.open()) {
            Ok((size, bytes)) => (size, Watched { bytes, name, shared }),
            Err(error) => {
                self.unsent(name, error.to_string());
                return Ok(());
            }
        };
        let most = inserter.size_max();
        if size > most {
            self.unsent(name, format!("too large: at most {}", show_bytes(most)));
            return Ok(());
        }
        // Its owner hears nothing of it: it goes with the next session.
        if !inserter.has_room(size) {
            return Err(Halt::Full);
        }
        let mut offer = |number, symbols| self.offer(number, symbols);
        let product = (name.as_str(), meta.as_str(), inserted_ns);
        let inserted = inserter.insert(product, (size, &mut bytes), &mut offer)?;
        match &inserted.withdrawn {
            Some(why) => self.unsent(name, why.clone()),
            None => self.tell(name, Ok((inserted.number, inserted.blocks.clone()))),
        }
        let line = InsertedLine {
            product: inserted.number,
            name: name.clone(),
            size,
            inserted_ns,
            first_sent_ns: 0,
            last_sent_ns: 0,
            withdrawn: inserted.withdrawn,
        };
        let closed = self.close_when_due(inserter);
        self.feed.inserted(line, inserted.blocks);
        Ok(closed?)
    }

    /// Closes the open block if that is due.
    fn close_when_due(&mut self, inserter: &mut Inserter) -> Result<(), Stopped> {
        if !inserter.is_open() {
            self.shares_until = None;
            return Ok(());
        }
        let now = Instant::now();
        let until = *self.shares_until.get_or_insert(now + SHARE_TIME);
        let is_busy = !self.shared.driver.wait_backlog(BACKLOG_BLOCKS, Duration::ZERO);
        if !is_shared(inserter.open_symbols(), is_busy, until.saturating_duration_since(now)) {
            self.shares_until = None;
            inserter.close(&mut |number, symbols| self.offer(number, symbols))?;
        }
        Ok(())
    }

    fn tell(&self, name: &str, outcome: Result<(u64, Range<u32>), String>) {
        self.shared.tell_owner(Heard::Inserted { name: name.to_owned(), outcome });
    }

    fn offer(&self, number: u32, symbols: u16) {
        self.shared.stand().data_end = number + 1;
        let block = BlockId::data(number).map(|block| (block, symbols));
        self.shared.driver.offer(block.into_iter().collect());
    }

    fn unsent(&self, name: &str, why: String) {
        self.tell(name, Err(why.clone()));
        self.shared.stand().unsent.add(name.to_owned(), why);
    }
}

/// Whether the open block, of so many symbols, waits for other products (`docs/protocol.md#PROD-8`): it is small, much waits
/// to be sent before it, and it has some time left.
fn is_shared(symbols: u16, is_busy: bool, left: Duration) -> bool {
    symbols < SHARED_SYMBOLS && is_busy && !left.is_zero()
}

#[cfg(test)]
mod tests {
    use super::{Feed, LOGGED_MAX, SHARE_TIME, is_shared};
    use crate::product::{InsertedLine, ProductLog, Queue};
    use downpour_proto::{BlockId, Geometry};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    fn feed(log: &Path) -> Feed {
        let log = Arc::new(ProductLog::create(log).unwrap());
        Feed::new(Queue::new(Geometry::IPV4, [0; 16], 0), Some(log))
    }

    fn line(product: u64) -> InsertedLine {
        let (name, size, inserted_ns) = (format!("p{product}"), 1, 1);
        let (first_sent_ns, last_sent_ns, withdrawn) = (0, 0, None);
        InsertedLine { product, name, size, inserted_ns, first_sent_ns, last_sent_ns, withdrawn }
    }

    // docs/protocol.md#PROD-8
    #[test]
    fn a_block_is_shared_while_it_is_small_and_much_waits_and_not_for_long() {
        assert_eq!(SHARE_TIME, Duration::from_millis(50));
        assert!(is_shared(15, true, SHARE_TIME));
        assert!(!is_shared(16, true, SHARE_TIME), "it has enough");
        assert!(!is_shared(15, false, SHARE_TIME), "it would wait for nothing");
        assert!(!is_shared(15, true, Duration::ZERO), "it has waited for long enough");
    }

    #[test]
    fn products_that_the_log_has_no_room_for_are_counted() {
        let feed = feed(Path::new("/dev/null"));
        (0..LOGGED_MAX as u64).for_each(|product| feed.inserted(line(product), 0..1));
        assert!(feed.log_lacks().is_empty());
        (0..2).for_each(|product| feed.inserted(line(product), 0..1));
        let [lacks] = &feed.log_lacks()[..] else { panic!("it is not told") };
        assert!(lacks.starts_with("the log of products lacks 2 of "), "{lacks}");
    }

    #[test]
    fn a_product_that_nobody_followed_holds_up_no_line_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let feed = feed(&path);
        for (product, blocks) in [(0, 0..1), (1, 1..3), (2, 2..4)] {
            feed.inserted(line(product), blocks);
        }
        let took = Some(Duration::from_millis(1));
        for (number, took) in [(0, took), (1, None), (2, None), (3, took)] {
            feed.past(BlockId::data(number).unwrap(), took);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let sent = lines.map(|line: InsertedLine| (line.first_sent_ns > 0, line.last_sent_ns > 0));
        assert_eq!(sent.collect::<Vec<_>>(), [(true, true), (false, false), (false, true)]);
    }
}
