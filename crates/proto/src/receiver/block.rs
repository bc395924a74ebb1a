//! What a receiver knows of one block: which symbols it has, and what the sender has said is coming.

use crate::ids::{BLOCK_SYMBOLS_MAX, Round, SymbolId};
use crate::time::Timestamp;
use crate::wire::OpenBlock;
use core::ops::Range;

const WORDS: usize = SymbolId::END as usize / 64;

/// Where the block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Symbols are still lacking.
    Collecting,
    /// A pull for it is under way.
    Pulling,
    /// Any K symbols are there: the driver rebuilds and stores it.
    Completing,
}

/// One incomplete block.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    pub(super) k: u16,
    pub(super) stage: Stage,
    /// Bit i: symbol id i is here.
    symbols: [u64; WORDS],
    source: u16,
    repair: u16,
    /// Newest listing by the sender.
    pub(super) sent: u16,
    pub(super) planned: u16,
    /// Symbols that came since that listing: no longer on their way.
    since: u16,
    /// The poll that listed it last; `None` before the first.
    pub(super) listed: Option<Round>,
    pub(super) nacked_at: Option<Timestamp>,
    /// While it was being stored, it was said that it must come again.
    pub(super) in_vain: bool,
}

impl Partial {
    pub(super) const fn new(k: u16) -> Self {
        Self {
            k,
            stage: Stage::Collecting,
            symbols: [0; WORDS],
            source: 0,
            repair: 0,
            sent: 0,
            planned: 0,
            since: 0,
            listed: None,
            nacked_at: None,
            in_vain: false,
        }
    }

    pub(super) const fn has(&self, symbol: SymbolId) -> bool {
        let id = symbol.raw() as usize;
        self.symbols[id / 64] & (1 << (id % 64)) != 0
    }

    /// Notes a symbol; false when it was there.
    pub(super) fn insert(&mut self, symbol: SymbolId) -> bool {
        if self.has(symbol) {
            return false;
        }
        let id = symbol.raw() as usize;
        self.symbols[id / 64] |= 1 << (id % 64);
        self.since = self.since.saturating_add(1);
        match symbol.repair_index() {
            None => self.source += 1,
            Some(_) => self.repair += 1,
        }
        true
    }

    /// Notes source symbols that are held from before: none of them was on its way.
    pub(super) fn insert_source(&mut self, range: Range<u16>) {
        let since = self.since;
        for index in range.start.min(self.k)..range.end.min(self.k) {
            self.insert(SymbolId::source(index.min(BLOCK_SYMBOLS_MAX - 1)));
        }
        self.since = since;
    }

    /// Distinct symbols here.
    pub(super) const fn held(&self) -> u16 {
        self.source + self.repair
    }

    /// Symbols lacking; 0 when it can be rebuilt.
    pub(super) const fn lacks(&self) -> u16 {
        self.k.saturating_sub(self.held())
    }

    /// Some source symbols are lacking: it takes decoding.
    pub(super) const fn needs_decoding(&self) -> bool {
        self.source < self.k
    }

    /// Takes what a poll or advertisement says of it: so many symbols of full length have been sent since the listing before.
    pub(super) fn on_listing(&mut self, listing: &OpenBlock) -> u16 {
        // The last of the source may be short.
        let full = |sent: u16| sent - u16::from(sent >= self.k);
        let news = full(listing.sent).saturating_sub(full(self.sent));
        if listing.sent > self.sent {
            self.sent = listing.sent;
            self.since = 0;
        }
        self.planned = self.planned.max(listing.planned);
        news
    }

    /// Symbols lacking beyond those that are on their way, once the source is all sent; 0 if none.
    pub(super) const fn shortfall(&self) -> u16 {
        if self.sent < self.k {
            return 0;
        }
        let coming = (self.planned - self.sent).saturating_sub(self.since);
        self.lacks().saturating_sub(coming)
    }

    /// Repair indices below `max` that a pull may ask for: what the stream has not planned as far as we know, and what is
    /// not here (the stream may have gone on without our hearing of it). `None` when the block is not worth
    /// completing that way.
    pub(super) fn pull_repair(&self, max: u16) -> Option<Range<u16>> {
        let from = self.planned.saturating_sub(self.k).max(self.repair_end());
        let until = from + self.lacks();
        (self.held() > 0 && until <= max).then_some(from..until)
    }

    /// One past the highest repair index here.
    fn repair_end(&self) -> u16 {
        let words = self.symbols.iter().enumerate().rev();
        let highest = words
            .filter(|(_, word)| **word != 0)
            .map(|(at, word)| at as u16 * 64 + 63 - word.leading_zeros() as u16)
            .next();
        highest.and_then(|id| id.checked_sub(BLOCK_SYMBOLS_MAX)).map_or(0, |index| index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Partial;
    use crate::ids::{BlockId, SymbolId};
    use crate::wire::OpenBlock;

    #[test]
    fn shortfall_counts_what_is_on_its_way() {
        let mut partial = Partial::new(10);
        (0..7).for_each(|i| assert!(partial.insert(SymbolId::source(i))));
        assert!(!partial.insert(SymbolId::source(3)));
        let listing =
            |sent, planned| OpenBlock { block: BlockId::data(0).unwrap(), k: 10, sent, planned };
        partial.on_listing(&listing(8, 10));
        assert_eq!(partial.shortfall(), 0, "the source is still being sent");
        partial.on_listing(&listing(10, 12));
        assert_eq!(partial.shortfall(), 1);
        partial.insert(SymbolId::repair(0));
        assert_eq!(partial.shortfall(), 1, "one of the two that were on their way has come");
        partial.on_listing(&listing(12, 12));
        assert_eq!(partial.shortfall(), 2);
        assert_eq!(partial.pull_repair(4), Some(2..4), "ids that the stream will not send");
        assert_eq!(partial.pull_repair(3), None, "more than the code has");
        assert!(partial.needs_decoding());
    }

    #[test]
    fn what_was_held_before_has_not_come_of_what_is_on_its_way() {
        let mut partial = Partial::new(10);
        (0..5).for_each(|i| assert!(partial.insert(SymbolId::source(i))));
        let block = BlockId::data(0).unwrap();
        partial.on_listing(&OpenBlock { block, k: 10, sent: 10, planned: 12 });
        assert_eq!(partial.shortfall(), 3);
        partial.insert_source(4..7);
        assert_eq!((partial.held(), partial.shortfall()), (7, 1));
    }

    #[test]
    fn a_pull_asks_for_nothing_that_is_here() {
        let mut partial = Partial::new(4);
        [89, 90, 95].into_iter().for_each(|i| assert!(partial.insert(SymbolId::repair(i))));
        partial.on_listing(&OpenBlock {
            block: BlockId::data(0).unwrap(),
            k: 4,
            sent: 93,
            planned: 93,
        });
        assert_eq!(partial.pull_repair(1024), Some(96..97));
    }

    #[test]
    fn nothing_held_is_pulled_as_bytes() {
        assert_eq!(Partial::new(10).pull_repair(1024), None);
    }
}
