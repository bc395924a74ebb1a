//! The sender's queue of products: frames into blocks, and blocks kept for repair and pulls.
//!
//! 1. An [`Inserter`] (one thread) writes each product's frame into the block that is open, and closes it when it is
//!    full. When a product ends, its owner decides whether the block is closed or the next product may share it.
//! 2. A closed block is kept in memory and offered. It is read when it is sent, and again when it is repaired or
//!    pulled.
//! 3. The oldest blocks go when more than the limit is kept (`docs/protocol.md#PROD-7`); what has not been opened for
//!    sending stays, and then inserting waits.
//! 4. Blocks have numbers below [`BlockId::NUMBER_END`]. A product for which there may not be enough of them left has no
//!    room any more, and the session is at its end.

use super::frame::{BLOCK_HEAD_LEN, FRAME_REST_MAX, Head, SEAL_LEN, close_block, seal};
use downpour_proto::{BlockId, BlockKind, Geometry};
use downpour_transport::identity::Identity;
use downpour_transport::{BlockSource, Part, Roll, SourceError};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of content read at once.
const READ_LEN: usize = 64 << 10;

/// Memory is taken for so many blocks at once.
const ROOM_BLOCKS: usize = 2;

/// How long inserting waits before it looks whether it shall stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Blocks that are kept. See the module's text.
pub struct Queue {
    geometry: Geometry,
    session: [u8; 16],
    /// Bytes kept at most, but for what has not been sent.
    keep: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Closed blocks from number `first` on, without padding.
    blocks: VecDeque<Part>,
    first: u32,
    kept: u64,
    /// One past the last block that was opened for sending.
    opened: u32,
    products: u64,
    /// Bytes of their content, and of the product that is being inserted so far.
    bytes: u64,
    /// The same, when the last block was closed.
    closed: u64,
    stopped: bool,
}

/// Inserting was called off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// A product that was inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub size: u64,
    /// Its blocks; the first and the last may be shared.
    pub blocks: Range<u32>,
    /// Why its bytes could not be read to the end, or not as they were: receivers are told that it is withdrawn.
    pub withdrawn: Option<String>,
}

impl Queue {
    /// An empty one, which keeps about `keep` bytes of what was sent.
    pub fn new(geometry: Geometry, session: [u8; 16], keep: u64) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { geometry, session, keep, state, changed })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Products inserted, and bytes of them and of the one that is being inserted.
    pub fn inserted(&self) -> (u64, u64) {
        let state = self.lock();
        (state.products, state.bytes)
    }

    /// Bytes of products that stand in so many blocks, about.
    pub fn bytes_of(&self, blocks: u32) -> u64 {
        let state = self.lock();
        let all = u64::from(state.first) + state.blocks.len() as u64;
        let share = f64::from(blocks) / all.max(1) as f64;
        (state.closed as f64 * share.min(1.0)) as u64
    }

    /// Source symbols of the blocks from `from` on, as far as they are kept, and the number of the first of them.
    pub fn symbols_from(&self, from: u32) -> (u32, Vec<u16>) {
        let state = self.lock();
        let first = from.max(state.first);
        let blocks = state.blocks.iter().skip((first - state.first) as usize);
        (first, blocks.map(|block| self.symbols_of(block.len())).collect())
    }

    /// The first block that is kept.
    pub fn first(&self) -> u32 {
        self.lock().first
    }

    /// Blocks below `end` have been opened for sending. Whether some of them had not before.
    pub fn opened(&self, end: u32) -> bool {
        let mut state = self.lock();
        let is_news = end > state.opened;
        if is_news {
            state.opened = end;
            self.changed.notify_all();
        }
        is_news
    }

    /// Calls off inserting.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Keeps no block any more, once it is stopped: who inserts has it for as long as a read lasts.
    pub fn clear(&self) {
        self.lock().blocks.clear();
    }

    /// Source symbols of a block that is kept.
    pub fn symbols(&self, block: BlockId) -> Option<u16> {
        self.block(block).map(|bytes| self.symbols_of(bytes.len()))
    }

    /// Fills `buf` from `offset` of the data space, in which blocks lie K·T apart.
    pub fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let block_len = self.geometry.block_len();
        let mut at = 0;
        while at < buf.len() {
            let from = offset + at as u64;
            let number = u32::try_from(from / block_len).ok();
            let block = number.and_then(BlockId::data).and_then(|block| self.block(block));
            let block = block.ok_or_else(given_up)?;
            let within = (from % block_len) as usize;
            let len = (block_len as usize - within).min(buf.len() - at);
            let rest = block.get(within..).unwrap_or_default();
            let (copied, zeros) = buf[at..at + len].split_at_mut(len.min(rest.len()));
            copied.copy_from_slice(&rest[..copied.len()]);
            zeros.fill(0);
            at += len;
        }
        Ok(())
    }

    fn symbols_of(&self, len: usize) -> u16 {
        len.div_ceil(usize::from(self.geometry.symbol_len)) as u16
    }

    fn block(&self, block: BlockId) -> Option<Part> {
        let state = self.lock();
        let at = block.number().checked_sub(state.first)? as usize;
        state.blocks.get(at).filter(|_| block.kind() == BlockKind::Data).cloned()
    }

    /// Keeps a closed block once there is room; its number.
    fn push(&self, block: Part) -> Result<u32, Stopped> {
        let mut state = self.lock();
        let len = block.len() as u64;
        while state.kept + len > self.keep && !state.stopped {
            if state.first < state.opened {
                let gone = state.blocks.pop_front();
                state.first += 1;
                state.kept -= gone.map_or(0, |block| block.len() as u64);
                continue;
            }
            let waited = self.changed.wait_timeout(state, LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.stopped {
            return Err(Stopped);
        }
        let number = state.first + state.blocks.len() as u32;
        state.blocks.push_back(block);
        state.kept += len;
        state.closed = state.bytes;
        Ok(number)
    }
}

fn given_up() -> SourceError {
    SourceError { reason: "products as old as that are not kept any more".to_owned() }
}

impl BlockSource for Queue {
    fn read(&self, block: BlockId, buf: &mut [u8]) -> Result<usize, SourceError> {
        let bytes = self.block(block).ok_or_else(given_up)?;
        let room = buf.get_mut(..bytes.len()).ok_or_else(given_up)?;
        room.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn at_hand(&self, block: BlockId) -> Option<Part> {
        self.block(block)
    }
}

/// Writes products into blocks. One thread has it.
pub struct Inserter {
    queue: Arc<Queue>,
    publisher: Arc<Identity>,
    /// The open block.
    roll: Roll,
    /// Where the first frame begins among the open block's frames.
    first: Option<usize>,
    /// The open block's number.
    next: u32,
    number: u64,
    /// What is read of a product at once.
    buf: Vec<u8>,
    /// One past the last number that a block can have.
    end: u32,
}

impl Inserter {
    /// Of a queue that is empty; for as many blocks as there are numbers for.
    pub fn new(queue: Arc<Queue>, publisher: Arc<Identity>) -> io::Result<Self> {
        Self::for_blocks(queue, publisher, BlockId::NUMBER_END)
    }

    /// The same for fewer blocks.
    pub fn for_blocks(queue: Arc<Queue>, publisher: Arc<Identity>, end: u32) -> io::Result<Self> {
        let mut roll = Roll::new(ROOM_BLOCKS * queue.geometry.block_len() as usize)?;
        roll.append(&[0; BLOCK_HEAD_LEN]);
        let buf = Vec::new();
        let end = end.min(BlockId::NUMBER_END);
        Ok(Self { queue, publisher, roll, first: None, next: 0, number: 0, buf, end })
    }

    /// Whether there are numbers left for the blocks of a product of `size` bytes.
    pub fn has_room(&self, size: u64) -> bool {
        self.size_max_from(self.next).is_some_and(|most| size <= most)
    }

    /// The largest product for which there was room at the beginning.
    pub fn size_max(&self) -> u64 {
        self.size_max_from(0).unwrap_or(0)
    }

    /// `None`: not even for an empty one.
    fn size_max_from(&self, next: u32) -> Option<u64> {
        let block = self.queue.geometry.block_len() - BLOCK_HEAD_LEN as u64;
        // Besides the one that is open.
        let blocks = u64::from(self.end.checked_sub(next)?.checked_sub(1)?);
        (blocks * block).checked_sub(FRAME_REST_MAX as u64)
    }

    /// Something stands in the block that is open.
    pub fn is_open(&self) -> bool {
        self.roll.open().len() > BLOCK_HEAD_LEN
    }

    /// Source symbols of the open block, if it were closed now.
    pub fn open_symbols(&self) -> u16 {
        if self.is_open() { self.queue.symbols_of(self.roll.open().len()) } else { 0 }
    }

    /// Inserts a product of `size` bytes, which `content` gives; `offer` is told each block that it fills.
    pub fn insert(
        &mut self,
        (name, meta, inserted_ns): (&str, &str, u64),
        (size, content): (u64, &mut dyn Read),
        offer: &mut dyn FnMut(u32, u16),
    ) -> Result<Inserted, Stopped> {
        let head = Head {
            number: self.number,
            inserted_ns,
            size,
            name: name.to_owned(),
            meta: meta.to_owned(),
        };
        let head = head.emit();
        let begins = self.next;
        self.first.get_or_insert(self.roll.open().len() - BLOCK_HEAD_LEN);
        self.append(&head, offer)?;
        let mut hasher = blake3::Hasher::new();
        let (mut buf, mut left, mut withdrawn) = (std::mem::take(&mut self.buf), size, None);
        buf.resize(READ_LEN, 0);
        while left > 0 {
            let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let mut len = want;
            if withdrawn.is_none() {
                match content.read(&mut buf[..want]) {
                    Ok(0) => withdrawn = Some("it is shorter than it was".to_owned()),
                    Ok(read) => len = read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => withdrawn = Some(error.to_string()),
                }
                if withdrawn.is_some() {
                    buf.fill(0);
                }
            }
            hasher.update(&buf[..len]);
            self.queue.lock().bytes += len as u64;
            self.append(&buf[..len], offer)?;
            left -= len as u64;
        }
        self.buf = buf;
        // protocol.md#PROD-5: a digest of zeros withdraws.
        let digest = if withdrawn.is_none() { *hasher.finalize().as_bytes() } else { [0; 32] };
        let seal = seal(&self.publisher, &self.queue.session, &head, &digest);
        debug_assert_eq!(seal.len(), SEAL_LEN);
        self.append(&seal, offer)?;
        let ends = if self.is_open() { self.next + 1 } else { self.next };
        let number = self.number;
        self.number += 1;
        self.queue.lock().products += 1;
        Ok(Inserted { number, size, blocks: begins..ends, withdrawn })
    }

    /// Closes the open block as it is.
    pub fn close(&mut self, offer: &mut dyn FnMut(u32, u16)) -> Result<(), Stopped> {
        if !self.is_open() {
            return Ok(());
        }
        close_block(self.roll.open_mut(), self.first.take());
        let block = self.roll.cut();
        self.roll.append(&[0; BLOCK_HEAD_LEN]);
        let symbols = self.queue.symbols_of(block.len());
        let number = self.queue.push(block)?;
        debug_assert_eq!(number, self.next);
        self.next += 1;
        offer(number, symbols);
        Ok(())
    }

    fn append(&mut self, mut bytes: &[u8], offer: &mut dyn FnMut(u32, u16)) -> Result<(), Stopped> {
        let block_len = self.queue.geometry.block_len() as usize;
        while !bytes.is_empty() {
            let room = block_len - self.roll.open().len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.roll.append(now);
            bytes = later;
            if now.len() == room {
                self.close(offer)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Inserter, Queue, Stopped};
    use downpour_proto::{BlockId, Geometry};
    use downpour_transport::BlockSource;
    use downpour_transport::identity::{Identity, Signature};
    use std::sync::Arc;

    const GEOMETRY: Geometry = Geometry { symbol_len: 100, block_symbols: 10, ..Geometry::IPV4 };

    fn insert(
        inserter: &mut Inserter,
        len: usize,
    ) -> (Vec<(u32, u16)>, Result<super::Inserted, Stopped>) {
        let mut offered = Vec::new();
        let mut offer = |number, symbols| offered.push((number, symbols));
        let bytes = vec![7; len];
        let product = ("p", "", 0);
        let done = inserter.insert(product, (len as u64, &mut &bytes[..]), &mut offer);
        (offered, done)
    }

    #[test]
    fn products_share_a_block_until_it_is_closed() {
        let queue = Queue::new(GEOMETRY, [0; 16], 1 << 20);
        let mut inserter =
            Inserter::new(Arc::clone(&queue), Arc::new(Identity::generate())).unwrap();
        let (offered, first) = insert(&mut inserter, 10);
        let (more, second) = insert(&mut inserter, 10);
        assert!(offered.is_empty() && more.is_empty());
        assert!(inserter.is_open() && inserter.open_symbols() == 3);
        assert_eq!((first.unwrap().blocks, second.unwrap().blocks), (0..1, 0..1));
        let mut closed = Vec::new();
        inserter.close(&mut |number, symbols| closed.push((number, symbols))).unwrap();
        assert_eq!(closed, [(0, 3)], "250 bytes");
        assert_eq!(inserter.open_symbols(), 0);
        assert_eq!(queue.bytes_of(1), 20, "of products, not of frames");
        let (offered, third) = insert(&mut inserter, 2_000);
        assert_eq!(offered, [(1, 10), (2, 10)]);
        assert_eq!(third.unwrap().blocks, 1..4);
        assert_eq!(queue.inserted(), (3, 2_020));
        assert_eq!((queue.bytes_of(0), queue.bytes_of(3)), (0, 2_020));
        let mut buf = vec![0; 1_000];
        queue.read(BlockId::data(1).unwrap(), &mut buf).unwrap();
        let mut same = vec![0; 500];
        queue.read_data(1_250, &mut same).unwrap();
        assert_eq!(same, buf[250..750]);
    }

    /// Byte for byte, but for the signature, whose words are checked (`docs/protocol.md#PROD-2`, `#PROD-3`).
    #[test]
    fn a_product_is_framed_as_the_protocols_document_says() {
        let queue = Queue::new(GEOMETRY, [5; 16], 1 << 20);
        let publisher = Arc::new(Identity::generate());
        let mut inserter = Inserter::new(Arc::clone(&queue), Arc::clone(&publisher)).unwrap();
        let product = ("name", "meta", 300);
        inserter.insert(product, (3, &mut &b"abc"[..]), &mut |_, _| {}).unwrap();
        inserter.close(&mut |_, _| {}).unwrap();
        let mut block = vec![0; 200];
        queue.read(BlockId::data(0).unwrap(), &mut block).unwrap();
        // Length of the rest, kind, number, 300 as a varint, size; then the name and the metadata, each after its length.
        let head = [&[0, 15, 1, 0, 0xac, 2, 3, 4][..], b"name", &[4], b"meta"].concat();
        let digest = *blake3::hash(b"abc").as_bytes();
        let frame = [&head[..], b"abc", &digest].concat();
        let (start, seal) = block[..8 + frame.len() + 64].split_last_chunk::<64>().unwrap();
        let used = (frame.len() + 64) as u32;
        assert_eq!(start, [&used.to_be_bytes()[..], &[0; 4], &frame].concat());
        let signed = [&[5; 16][..], blake3::hash(&head).as_bytes(), &digest].concat();
        let signature = Signature::from_bytes(*seal);
        publisher.public_key().verify("downpour product 1", &signed, &signature).unwrap();
    }

    // docs/protocol.md#PROD-7
    #[test]
    fn what_was_sent_goes_and_what_was_not_is_waited_for() {
        let queue = Queue::new(GEOMETRY, [0; 16], 2_500);
        let mut inserter =
            Inserter::new(Arc::clone(&queue), Arc::new(Identity::generate())).unwrap();
        insert(&mut inserter, 2_100).1.unwrap();
        queue.opened(1);
        insert(&mut inserter, 1_000).1.unwrap();
        assert!(queue.symbols(BlockId::data(0).unwrap()).is_none(), "it was sent");
        assert_eq!(queue.symbols(BlockId::data(1).unwrap()), Some(10));
        assert_eq!(queue.symbols_from(0), (1, vec![10, 10]));
        queue.stop();
        assert_eq!(insert(&mut inserter, 1_000).1, Err(Stopped), "no room, and nothing was sent");
        queue.clear();
        assert_eq!(insert(&mut inserter, 1_000).1, Err(Stopped), "nothing is sent any more");
        assert!(queue.symbols_from(0).1.is_empty());
    }

    #[test]
    fn what_has_room_has_numbers_for_all_its_blocks() {
        let queue = Queue::new(GEOMETRY, [0; 16], 1 << 30);
        let publisher = Arc::new(Identity::generate());
        let mut inserter = Inserter::for_blocks(queue, publisher, 64).unwrap();
        assert!(!inserter.has_room(64_000) && !inserter.has_room(u64::MAX));
        let most = inserter.size_max();
        assert!(inserter.has_room(most) && !inserter.has_room(most + 1));
        let mut last = 0;
        while inserter.has_room(2_100) {
            let (offered, inserted) = insert(&mut inserter, 2_100);
            inserted.unwrap();
            last = offered.iter().map(|(number, _)| *number).fold(last, u32::max);
        }
        inserter.close(&mut |number, _| last = number).unwrap();
        assert!((50..64).contains(&last), "{last}");
        while inserter.has_room(0) && last < 64 {
            insert(&mut inserter, 0).1.unwrap();
            inserter.close(&mut |number, _| last = number).unwrap();
        }
        assert!(last < 64, "{last}");
        assert_eq!(inserter.size_max(), most, "it does not change with what there is");
    }

    #[test]
    fn a_file_that_shrinks_is_withdrawn() {
        let queue = Queue::new(GEOMETRY, [0; 16], 1 << 20);
        let mut inserter = Inserter::new(queue, Arc::new(Identity::generate())).unwrap();
        let bytes = [1; 50];
        let short = inserter.insert(("p", "", 0), (60, &mut &bytes[..]), &mut |_, _| {}).unwrap();
        assert!(short.withdrawn.unwrap().contains("shorter"));
    }
}
