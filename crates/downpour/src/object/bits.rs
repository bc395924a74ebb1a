//! A set of small numbers.

/// One bit for each number; grows as needed.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Returns whether it was not set.
    pub(crate) fn set(&mut self, i: u32) -> bool {
        let (word, bit) = (i as usize / 64, 1 << (i % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    pub(crate) fn clear(&mut self, i: u32) {
        if let Some(word) = self.0.get_mut(i as usize / 64) {
            *word &= !(1 << (i % 64));
        }
    }

    pub(crate) fn has(&self, i: u32) -> bool {
        self.0.get(i as usize / 64).is_some_and(|word| word & (1 << (i % 64)) != 0)
    }
}
