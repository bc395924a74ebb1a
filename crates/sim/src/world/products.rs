//! A session that stays open: products are inserted at their times, and each receiver has them in order.
//!
//! A product's blocks are its own; a receiver has it when it has these and all before them.

use super::config::WorldConfig;
use super::events::Index;
use downpour_proto::{BlockId, BlockKind, Duration, Geometry, Timestamp};

/// What is inserted, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Since the session's start.
    pub at: Duration,
    /// Its bytes, with what frames them.
    pub len: u64,
}

#[derive(Debug)]
pub(super) struct Products {
    all: Vec<Product>,
    inserted: usize,
    /// Source symbols of each block so far, and the bytes of the last of them.
    symbols: Vec<(u16, u16)>,
    /// One past the last block of each product so far.
    ends: Vec<usize>,
    /// When each receiver had each block.
    stored: Vec<Vec<Timestamp>>,
}

impl Products {
    pub(super) fn new(config: &WorldConfig) -> Self {
        Self {
            all: config.products.clone(),
            inserted: 0,
            symbols: Vec::new(),
            ends: Vec::new(),
            stored: vec![Vec::new(); config.receivers.len()],
        }
    }

    /// When the next product is to be inserted.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.all.get(self.inserted).map(|product| Timestamp::ZERO + product.at)
    }

    /// The blocks of the products whose time has come.
    pub(super) fn insert(&mut self, now: Timestamp, geometry: Geometry) -> Vec<(BlockId, u16)> {
        let first = self.symbols.len();
        while self.next_at().is_some_and(|at| at <= now) {
            let len = self.all[self.inserted].len;
            let blocks = 0..u32::try_from(geometry.blocks(len)).unwrap_or(u32::MAX);
            self.symbols.extend(blocks.map(|block| {
                let k = geometry.symbols_of(block, len);
                let before = u64::from(block) * geometry.block_len()
                    + u64::from(k - 1) * u64::from(geometry.symbol_len);
                (k, (len - before).min(u64::from(geometry.symbol_len)) as u16)
            }));
            self.ends.push(self.symbols.len());
            self.inserted += 1;
        }
        let new = self.symbols[first..].iter().enumerate();
        let block = |at| BlockId::data(u32::try_from(first + at).ok()?);
        new.filter_map(|(at, (k, _))| Some((block(at)?, *k))).collect()
    }

    pub(super) fn symbols(&self, block: BlockId) -> Option<u16> {
        self.lens(block).map(|(symbols, _)| symbols)
    }

    /// Bytes of a block's last source symbol.
    pub(super) fn tail(&self, block: BlockId) -> Option<u16> {
        self.lens(block).map(|(_, tail)| tail)
    }

    fn lens(&self, block: BlockId) -> Option<(u16, u16)> {
        let data = block.kind() == BlockKind::Data;
        self.symbols.get(block.number() as usize).copied().filter(|_| data)
    }

    pub(super) fn stored(&mut self, receiver: Index, block: BlockId, now: Timestamp) {
        if self.symbols(block).is_none() {
            return;
        }
        let (stored, at) = (&mut self.stored[receiver], block.number() as usize);
        stored.resize(stored.len().max(at + 1), Timestamp::MAX);
        stored[at] = now;
    }

    /// Σ latency of a receiver that has everything.
    pub(super) fn latency(&self, receiver: Index) -> Duration {
        let (mut had, mut from, mut sum) = (Timestamp::ZERO, 0, Duration::ZERO);
        for (product, end) in self.all.iter().zip(&self.ends) {
            let blocks = self.stored[receiver].get(from..*end).unwrap_or_default();
            had = blocks.iter().copied().fold(had, Timestamp::max);
            sum += had.since(Timestamp::ZERO + product.at);
            from = *end;
        }
        sum
    }
}

/// Σ latency of an ideal system: products go one after another at `bytes_per_s`, each arrives `delay` after its
/// last bit has left, and nothing is added to them.
pub fn ideal_fifo(products: &[Product], bytes_per_s: f64, delay: Duration) -> Duration {
    let (mut free, mut sum) = (0.0_f64, Duration::ZERO);
    for product in products {
        let at = product.at.as_secs_f64();
        free = free.max(at) + product.len as f64 / bytes_per_s;
        sum += Duration::from_secs_f64(free - at) + delay;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{Product, ideal_fifo};
    use downpour_proto::Duration;

    #[test]
    fn an_ideal_fifo_serves_one_after_another() {
        let ms = Duration::from_millis;
        let product = |at, len| Product { at: ms(at), len };
        // 100 ms each at 10,000 bytes/s: the second waits 40 ms for the first, the third for nobody.
        let products = [product(0, 1_000), product(60, 1_000), product(500, 1_000)];
        let sum = ideal_fifo(&products, 10_000.0, ms(7));
        let expected = ms(100) + ms(140) + ms(100) + ms(21);
        assert!(sum.as_secs_f64() - expected.as_secs_f64() < 1e-6, "{sum:?}");
        assert!(sum.as_secs_f64() - expected.as_secs_f64() > -1e-6, "{sum:?}");
    }
}
