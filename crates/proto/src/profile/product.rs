//! What a receiver has of each product: the paper's receive-time counter array.
//!
//! One entry for each segment, milliseconds since the receiver's start: 0 not yet, positive received then, negative noticed
//! missing then (Ishihara 2002, fig. 2). Invariants: `have` counts the positive entries; all segments below `first` are
//! received; the tables of all open products together are bounded.

use super::message::{Begin, segment_bytes, segments};
use crate::range_set::RangeSet;
use crate::time::{Duration, Timestamp};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Most segments of one product: just under 4 GiB in `bmtp`'s segments take 3,067,834.
pub const SEGMENTS_MAX: u32 = 1 << 22;

/// Most products open at once at a receiver.
pub const PRODUCTS_MAX: usize = 1024;

/// Segments of all open products together: 32 MiB of entries.
const SEGMENTS_OPEN_MAX: u64 = 1 << 23;

/// Gaps in the numbers of products that are over; the oldest are forgotten beyond.
const OVER_RANGES_MAX: usize = 4096;

/// One open product.
#[derive(Clone, Debug)]
pub struct Product {
    /// Bytes.
    pub size: u64,
    /// What the sender said of it; empty where the wire does not.
    pub metadata: Vec<u8>,
    /// When it was offered by the sender's clock; 0 where the wire does not say.
    pub offered_unix_ns: u64,
    /// When it was opened here.
    pub opened: Timestamp,
    times: Vec<i32>,
    have: u32,
    first: u32,
    /// One past the highest segment received or known to have been sent.
    heard: u32,
}

impl Product {
    /// How many segments it has.
    pub const fn segments(&self) -> u32 {
        self.times.len() as u32
    }

    /// Whether all of it is here.
    pub const fn is_complete(&self) -> bool {
        self.have == self.segments()
    }

    /// Segments received.
    pub const fn have(&self) -> u32 {
        self.have
    }

    /// One past the highest segment heard of.
    pub const fn heard(&self) -> u32 {
        self.heard
    }

    /// The table (see the top of this file).
    pub fn times_ms(&self) -> &[i32] {
        &self.times
    }

    /// Whether this segment is here.
    pub fn has(&self, segment: u32) -> bool {
        self.times.get(segment as usize).is_some_and(|t| *t > 0)
    }

    /// Takes a segment; false when it was here already, or is none.
    pub(super) fn receive(&mut self, segment: u32, at: Duration) -> bool {
        let Some(time) = self.times.get_mut(segment as usize) else { return false };
        if *time > 0 {
            return false;
        }
        *time = ms(at);
        self.have += 1;
        self.heard = self.heard.max(segment + 1);
        while self.times.get(self.first as usize).is_some_and(|t| *t > 0) {
            self.first += 1;
        }
        true
    }

    /// Segments up to `end` have been sent.
    pub(super) fn hear(&mut self, end: u32) {
        self.heard = self.heard.max(end.min(self.segments()));
    }

    /// Notes those of `range` that nobody has heard of as missing since `at`; which they were.
    pub(super) fn notice(&mut self, range: Range<u32>, at: Duration) -> Vec<Range<u32>> {
        let end = range.end.min(self.segments());
        let mut noticed: Vec<Range<u32>> = Vec::new();
        for segment in range.start.max(self.first)..end {
            if self.times[segment as usize] == 0 {
                self.times[segment as usize] = -ms(at);
                extend(&mut noticed, segment);
            }
        }
        noticed
    }

    /// What of `range` is not here, in at most `max` ranges.
    pub fn missing(&self, range: Range<u32>, max: usize) -> Vec<Range<u32>> {
        let mut found: Vec<Range<u32>> = Vec::new();
        for segment in range.start.max(self.first)..range.end.min(self.segments()) {
            if self.times[segment as usize] > 0 {
                continue;
            }
            let extends = found.last().is_some_and(|r| r.end == segment);
            if !extends && found.len() == max {
                break;
            }
            extend(&mut found, segment);
        }
        found
    }
}

/// Entries start at 1 ms, so that 0 stays what it means.
fn ms(at: Duration) -> i32 {
    i32::try_from(at.as_millis()).unwrap_or(i32::MAX).max(1)
}

fn extend(ranges: &mut Vec<Range<u32>>, segment: u32) {
    match ranges.last_mut() {
        Some(last) if last.end == segment => last.end += 1,
        _ => ranges.push(segment..segment + 1),
    }
}

/// All products that a receiver knows of.
#[derive(Debug)]
pub struct Products {
    open: BTreeMap<u32, Product>,
    /// Complete, or given up by the sender.
    over: RangeSet,
    segment_len: u16,
    size_max: u64,
    open_max: usize,
    segments: u64,
}

impl Products {
    pub(super) fn new(segment_len: u16, size_max: u64, open_max: usize) -> Self {
        let open_max = open_max.min(PRODUCTS_MAX);
        let open = BTreeMap::new();
        Self { open, over: RangeSet::new(), segment_len, size_max, open_max, segments: 0 }
    }

    /// Opens a product unless it is open or over. False when it is beyond a limit.
    pub(super) fn open(&mut self, now: Timestamp, begin: &Begin) -> bool {
        if self.open.contains_key(&begin.product) || self.over.contains(begin.product) {
            return true;
        }
        let Some(segments) = segments(begin.size, self.segment_len) else { return false };
        let total = self.segments + u64::from(segments);
        if begin.size > self.size_max
            || total > SEGMENTS_OPEN_MAX
            || self.open.len() >= self.open_max
        {
            return false;
        }
        self.segments = total;
        let product = Product {
            size: begin.size,
            metadata: begin.metadata.clone(),
            offered_unix_ns: begin.offered_unix_ns,
            opened: now,
            times: vec![0; segments as usize],
            have: 0,
            first: 0,
            heard: 0,
        };
        self.open.insert(begin.product, product);
        true
    }

    /// The product is complete, or will never be.
    pub(super) fn close(&mut self, number: u32) -> Option<Product> {
        let closed = self.open.remove(&number);
        self.segments -= closed.as_ref().map_or(0, |p| u64::from(p.segments()));
        if number < u32::MAX {
            self.over.insert(number);
        }
        if self.over.iter().count() > OVER_RANGES_MAX {
            self.over = self.over.iter().skip(OVER_RANGES_MAX / 2).collect();
        }
        closed
    }

    /// How many more may be open.
    pub(super) fn room(&self) -> usize {
        self.open_max.saturating_sub(self.open.len())
    }

    /// Bytes of a full segment.
    pub const fn segment_len(&self) -> u16 {
        self.segment_len
    }

    /// Bytes that a segment of an open product has.
    pub(super) fn bytes_of(&self, number: u32, segment: u32) -> u16 {
        self.open.get(&number).map_or(0, |p| segment_bytes(p.size, self.segment_len, segment))
    }

    /// An open product.
    pub fn find(&self, number: u32) -> Option<&Product> {
        self.open.get(&number)
    }

    pub(super) fn find_mut(&mut self, number: u32) -> Option<&mut Product> {
        self.open.get_mut(&number)
    }

    /// Whether it is complete or given up.
    pub fn is_over(&self, number: u32) -> bool {
        self.over.contains(number)
    }

    /// The open products.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Product)> {
        self.open.iter().map(|(number, product)| (*number, product))
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are meant")]
mod tests {
    use super::{OVER_RANGES_MAX, PRODUCTS_MAX, Products};
    use crate::profile::Begin;
    use crate::time::{Duration, Timestamp};
    use alloc::vec::Vec;

    fn begin(product: u32, size: u64) -> Begin {
        Begin { product, size, offered_unix_ns: 0, metadata: Vec::new(), repair: false }
    }

    #[test]
    fn the_papers_file_has_its_segments() {
        let mut products = Products::new(1400, u64::MAX, 1);
        assert!(products.open(Timestamp::ZERO, &begin(1, 100_000_000)));
        let product = products.find(1).unwrap();
        // 71,428 segments and 800 bytes.
        assert_eq!(product.segments(), 71_429);
        assert_eq!((products.bytes_of(1, 71_427), products.bytes_of(1, 71_428)), (1400, 800));
    }

    #[test]
    fn entries_tell_received_and_missing() {
        let mut products = Products::new(10, u64::MAX, 1);
        products.open(Timestamp::ZERO, &begin(1, 100));
        let product = products.find_mut(1).unwrap();
        let at = Duration::from_millis;
        assert!(product.receive(0, at(5)) && product.receive(4, at(7)));
        assert_eq!(product.notice(0..4, at(7)), [1..4]);
        assert_eq!(product.notice(0..5, at(9)), [], "noticed once");
        assert!(product.receive(2, at(20)) && !product.receive(2, at(21)));
        assert!(!product.receive(10, at(21)));
        assert_eq!(product.times_ms(), [5, -7, 20, -7, 7, 0, 0, 0, 0, 0]);
        assert_eq!(product.missing(0..10, 2), [1..2, 3..4]);
        assert_eq!(product.missing(0..10, 9), [1..2, 3..4, 5..10]);
        assert_eq!((product.have(), product.heard()), (3, 5));
        for segment in [1, 3, 5, 6, 7, 8, 9] {
            assert!(!product.is_complete() && product.receive(segment, at(30)));
        }
        assert!(product.is_complete());
    }

    #[test]
    fn what_hostile_senders_claim_is_bounded() {
        let mut one = Products::new(1400, 1_000_000, 1);
        assert!(!one.open(Timestamp::ZERO, &begin(1, 1_000_001)), "too long");
        assert!(one.open(Timestamp::ZERO, &begin(1, 1_000_000)));
        assert!(!one.open(Timestamp::ZERO, &begin(2, 1)), "one product only");
        let mut many = Products::new(1, u64::MAX, usize::MAX);
        assert!(!many.open(Timestamp::ZERO, &begin(0, u64::MAX)));
        assert!(many.open(Timestamp::ZERO, &begin(0, 1 << 22)));
        assert!(many.open(Timestamp::ZERO, &begin(1, 1 << 22)));
        assert!(!many.open(Timestamp::ZERO, &begin(2, 1)), "all tables together");
        let mut many = Products::new(1, u64::MAX, usize::MAX);
        let opened = (0..2000).filter(|n| many.open(Timestamp::ZERO, &begin(*n, 1))).count();
        assert_eq!(opened, PRODUCTS_MAX);
        (0..100_000).for_each(|n| drop(many.close(2 * n)));
        assert!(many.over.iter().count() <= OVER_RANGES_MAX);
        assert!(many.is_over(199_998));
        many.close(u32::MAX);
    }
}
