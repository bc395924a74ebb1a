//! A feed of products by `fmtp`: inserted at their times, held in memory until all receivers have them.
//!
//! 1. [`insert`] (a thread) reads the list, waits for each product's time and offers it. It waits when
//!    [`HELD_MAX`] bytes or [`OFFERED_MAX`] products are held.
//! 2. [`Feed`] is what the driver reads from, and notes when a product's segments left. A product is logged when it is released.
//! 3. [`FeedSink`] counts what came and keeps none of it: as published nothing is verified, so this is for
//!    measurements. A product is logged when it is complete, as LDM7 inserts it then, not in order of numbers.
//!
//! Deliberately absent: the backlog of what was missed altogether, and clocks compared: both logs are by the
//! machine's own.

use crate::cli::Fault;
use crate::product::{InsertedLine, List, Listed, ProductLog, ReceivedLine, unix_ns};
use downpour_proto::profile::{Body, METADATA_MAX, OFFERED_MAX, Offer, Product};
use downpour_transport::profile::{ProductSink, ProductSource, SendHandle};
use downpour_transport::take_short_turns;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Bytes of products that are held; the next waits.
const HELD_MAX: u64 = 256 << 20;

/// What was inserted and is not released.
#[derive(Default)]
pub(super) struct Feed {
    state: Mutex<State>,
    released: Condvar,
    pub(super) log: Option<ProductLog>,
}

#[derive(Default)]
struct State {
    held: BTreeMap<u32, (Vec<u8>, InsertedLine)>,
    bytes: u64,
    /// How many there were so far, and their bytes.
    inserted: (u64, u64),
    /// The driver has ended.
    over: bool,
}

impl State {
    /// The next product waits. The driver's machine would refuse one more than [`OFFERED_MAX`].
    fn is_full(&self) -> bool {
        !self.over && (self.bytes >= HELD_MAX || self.held.len() >= OFFERED_MAX)
    }
}

impl Feed {
    pub(super) fn new(log: Option<ProductLog>) -> Self {
        Self { log, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a product once there is room. False: nobody sends any more.
    fn hold(&self, number: u32, bytes: Vec<u8>, line: InsertedLine) -> bool {
        let waited = self.released.wait_while(self.lock(), |state| state.is_full());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.bytes += bytes.len() as u64;
        state.inserted = (state.inserted.0 + 1, state.inserted.1 + line.size);
        state.held.insert(number, (bytes, line));
        !state.over
    }

    /// A segment leaves.
    pub(super) fn sent(&self, body: &Body) {
        let mut state = self.lock();
        if let Some((_, line)) = state.held.get_mut(&body.product).filter(|_| !body.repair) {
            line.last_sent_ns = unix_ns();
            if body.segment == 0 {
                line.first_sent_ns = line.last_sent_ns;
            }
        }
    }

    /// Nobody will ask for it again.
    pub(super) fn release(&self, number: u32) {
        let mut state = self.lock();
        let Some((bytes, line)) = state.held.remove(&number) else { return };
        state.bytes -= bytes.len() as u64;
        drop(state);
        self.released.notify_all();
        self.add(&line);
    }

    /// Nothing is sent any more: whoever waits for room shall not. How many products there were, and their bytes.
    pub(super) fn end(&self) -> (u64, u64) {
        let mut state = self.lock();
        state.over = true;
        self.released.notify_all();
        state.held.values().for_each(|(_, line)| self.add(line));
        state.inserted
    }

    fn add(&self, line: &InsertedLine) {
        self.log.iter().for_each(|log| log.add(line));
    }
}

/// What the driver reads from.
pub(super) struct FeedSource(pub(super) Arc<Feed>);

impl ProductSource for FeedSource {
    fn read(&mut self, product: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock();
        let all = state.held.get(&product).map_or(&[][..], |(bytes, _)| bytes);
        let from = usize::try_from(offset).ok();
        let part = from.and_then(|from| all.get(from..)?.get(..bytes.len()));
        bytes.copy_from_slice(part.ok_or_else(|| io::Error::other("a product that is released"))?);
        Ok(())
    }
}

/// Offers what the list says, when it says so after `started`; then finishes.
pub(super) fn insert(
    list: &Path,
    feed: &Feed,
    handle: &SendHandle,
    started: &mpsc::Receiver<Instant>,
) -> Result<(), Fault> {
    take_short_turns();
    // Whatever goes wrong, the driver shall end.
    let done = offer_all(list, feed, handle, started);
    handle.finish();
    done
}

fn offer_all(
    list: &Path,
    feed: &Feed,
    handle: &SendHandle,
    started: &mpsc::Receiver<Instant>,
) -> Result<(), Fault> {
    let todo = "the products before it were sent";
    let input: Box<dyn BufRead> = match list.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(list).map_err(|error| {
            let what = format!("cannot read the list of products {}: {error}", list.display());
            Fault::start(what, "give --products a file with a line for each product, or -")
        })?)),
    };
    // The driver that does not start has its own error.
    let Ok(started) = started.recv() else { return Ok(()) };
    for (number, listed) in (0..).zip(List::new(input)) {
        let listed = listed.map_err(|error| Fault::incomplete(error.to_string(), todo))?;
        let (line, bytes) = take(number, &listed, started)
            .map_err(|why| Fault::incomplete(format!("product {}: {why}", listed.name), todo))?;
        let (size, offered_unix_ns) = (line.size, line.inserted_ns);
        if !feed.hold(number, bytes, line) {
            return Ok(());
        }
        let metadata = listed.name.into_bytes();
        handle.offer(Offer { product: number, size, offered_unix_ns, metadata });
    }
    Ok(())
}

/// Waits for its time and reads it.
fn take(number: u32, listed: &Listed, started: Instant) -> Result<(InsertedLine, Vec<u8>), String> {
    if listed.name.len() > METADATA_MAX {
        return Err(format!("its name is longer than {METADATA_MAX} bytes"));
    }
    let due = listed.at_s.map(|at| started + Duration::from_secs_f64(at));
    let left = due.map(|due| due.saturating_duration_since(Instant::now()));
    std::thread::sleep(left.unwrap_or_default());
    let late = due.map_or(Duration::ZERO, |due| due.elapsed());
    let inserted_ns = unix_ns() - u64::try_from(late.as_nanos()).unwrap_or_default();
    let (size, mut content) = listed.content.open().map_err(|error| error.to_string())?;
    if size >= HELD_MAX {
        return Err(format!("it has {size} bytes, and fmtp's feed holds {HELD_MAX} in memory"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    content.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let size = bytes.len() as u64;
    let (first_sent_ns, last_sent_ns) = (inserted_ns, inserted_ns);
    let (product, name, withdrawn) = (u64::from(number), listed.name.clone(), None);
    let line =
        InsertedLine { product, name, size, inserted_ns, first_sent_ns, last_sent_ns, withdrawn };
    Ok((line, bytes))
}

/// Counts what comes.
pub(super) struct FeedSink {
    open: BTreeMap<u32, ReceivedLine>,
    log: ProductLog,
}

impl FeedSink {
    pub(super) const fn new(log: ProductLog) -> Self {
        Self { open: BTreeMap::new(), log }
    }
}

impl ProductSink for FeedSink {
    fn open(
        &mut self,
        number: u32,
        size: u64,
        metadata: &[u8],
        offered_unix_ns: u64,
    ) -> io::Result<()> {
        let line = ReceivedLine {
            product: u64::from(number),
            name: String::from_utf8_lossy(metadata).into_owned(),
            meta: String::new(),
            size,
            digest: String::new(),
            inserted_ns: offered_unix_ns,
            arrived_ns: 0,
            delivered_ns: 0,
            clock_ahead_ns: 0,
            clock_error_ns: 0,
        };
        self.open.insert(number, line);
        Ok(())
    }

    fn write(&mut self, _number: u32, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn complete(&mut self, number: u32, _product: &Product) -> io::Result<bool> {
        if let Some(mut line) = self.open.remove(&number) {
            line.arrived_ns = unix_ns();
            line.delivered_ns = line.arrived_ns;
            self.log.add(&line);
        }
        self.log.failure().map_or(Ok(false), |failure| Err(io::Error::other(failure)))
    }

    fn reject(&mut self, number: u32) -> io::Result<bool> {
        // Of one whose begin was never heard the size is not known.
        let size = self.open.remove(&number).map(|line| format!(" ({} bytes)", line.size));
        let size = size.unwrap_or_default();
        eprintln!("product {number}{size} will not be complete: the sender has given it up");
        Ok(false)
    }

    fn closed(&mut self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{Feed, FeedSource, HELD_MAX};
    use crate::product::{InsertedLine, ProductLog};
    use downpour_proto::profile::{Body, OFFERED_MAX};
    use downpour_transport::profile::ProductSource as _;
    use std::sync::Arc;

    fn line(product: u64, size: u64) -> InsertedLine {
        let name = format!("p{product}");
        let (inserted_ns, first_sent_ns, last_sent_ns, withdrawn) = (1, 1, 1, None);
        InsertedLine { product, name, size, inserted_ns, first_sent_ns, last_sent_ns, withdrawn }
    }

    #[test]
    fn what_is_held_can_be_read_until_it_is_released() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let feed = Arc::new(Feed::new(Some(ProductLog::create(log.path()).unwrap())));
        assert!(feed.hold(0, vec![1, 2, 3, 4], line(0, 4)));
        assert!(feed.hold(1, vec![5], line(1, 1)));
        let (mut source, mut bytes) = (FeedSource(Arc::clone(&feed)), [0; 2]);
        source.read(0, 2, &mut bytes).unwrap();
        assert_eq!(bytes, [3, 4]);
        assert!(source.read(0, 3, &mut bytes).is_err(), "beyond its end");
        let body = |segment, repair| Body { product: 0, offset: 0, len: 2, segment, repair };
        feed.sent(&body(0, false));
        feed.sent(&body(1, false));
        let first_pass = feed.lock().held[&0].1.clone();
        assert!(
            first_pass.first_sent_ns > 1 && first_pass.last_sent_ns >= first_pass.first_sent_ns
        );
        feed.sent(&body(0, true));
        assert_eq!(feed.lock().held[&0].1, first_pass, "repair is not the first pass");
        let logged = || {
            let text = std::fs::read_to_string(log.path()).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            lines.collect::<Vec<InsertedLine>>()
        };
        assert_eq!(logged(), []);
        feed.release(0);
        assert!(source.read(0, 0, &mut bytes).is_err());
        assert_eq!(
            logged(),
            std::slice::from_ref(&first_pass),
            "also of a session that is killed later"
        );
        assert_eq!(feed.end(), (2, 5));
        assert_eq!(logged(), [first_pass, line(1, 1)]);
        assert!(!feed.hold(2, Vec::new(), line(2, 0)), "nobody sends any more");
    }
    #[test]
    fn no_more_are_held_than_the_sender_takes_offers_of() {
        let feed = Feed::default();
        let is_full = || feed.lock().is_full();
        for number in 0..OFFERED_MAX as u32 {
            assert!(!is_full());
            assert!(feed.hold(number, Vec::new(), line(u64::from(number), 0)));
        }
        assert!(is_full());
        feed.release(7);
        assert!(!is_full());
        feed.lock().bytes = HELD_MAX;
        assert!(is_full());
        feed.end();
        assert!(!is_full(), "nobody waits any more");
    }
}
