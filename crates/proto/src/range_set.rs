//! A set of block numbers, kept as sorted disjoint ranges.
//!
//! Blocks complete nearly in order, so the set is nearly always one range; the vector grows only with
//! the gaps. Invariant: ranges are non-empty, sorted, and no two touch.

use alloc::vec::Vec;
use core::ops::Range;

/// Sorted, disjoint, non-touching ranges of `u32`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u32>>,
}

impl RangeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Index of the first range that ends after `value`.
    fn position(&self, value: u32) -> usize {
        self.ranges.partition_point(|r| r.end <= value)
    }

    /// Whether `value` is in the set.
    pub fn contains(&self, value: u32) -> bool {
        self.ranges.get(self.position(value)).is_some_and(|r| r.start <= value)
    }

    /// Adds `value`; false when it was there already.
    pub fn insert(&mut self, value: u32) -> bool {
        if self.contains(value) {
            return false;
        }
        self.insert_range(value..value + 1);
        true
    }

    /// Adds all of `new`; how many were not there.
    pub fn insert_range(&mut self, new: Range<u32>) -> u32 {
        if new.is_empty() {
            return 0;
        }
        let first = self.ranges.partition_point(|r| r.end < new.start);
        let last = self.ranges.partition_point(|r| r.start <= new.end);
        let merged = if first < last {
            self.ranges[first].start.min(new.start)..self.ranges[last - 1].end.max(new.end)
        } else {
            new
        };
        let len = merged.end - merged.start;
        let held: u32 = self.ranges.splice(first..last, [merged]).map(|r| r.end - r.start).sum();
        len - held
    }

    /// Adds all of `other`, in one pass over both: their ranges may be many, and lie between each other.
    pub fn extend(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        let ours = core::mem::take(&mut self.ranges);
        self.ranges.reserve(ours.len() + other.ranges.len());
        let (mut ours, mut theirs) = (ours.into_iter().peekable(), other.iter().peekable());
        loop {
            let ours_first = match (ours.peek(), theirs.peek()) {
                (Some(our), Some(their)) => our.start <= their.start,
                (our, _) => our.is_some(),
            };
            let Some(next) = (if ours_first { ours.next() } else { theirs.next() }) else { return };
            match self.ranges.last_mut().filter(|last| last.end >= next.start) {
                Some(last) => last.end = last.end.max(next.end),
                None => self.ranges.push(next),
            }
        }
    }

    /// How many ranges there are.
    pub const fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Removes `value`; false when it was not there.
    pub fn remove(&mut self, value: u32) -> bool {
        let at = self.position(value);
        let Some(range) = self.ranges.get(at).filter(|r| r.start <= value).cloned() else {
            return false;
        };
        let parts = [range.start..value, value + 1..range.end];
        self.ranges.splice(at..=at, parts.into_iter().filter(|r| !r.is_empty()));
        true
    }

    /// The least value in `within` that is not in the set.
    pub fn first_gap(&self, within: Range<u32>) -> Option<u32> {
        let start = match self.ranges.get(self.position(within.start)) {
            Some(r) if r.start <= within.start => r.end,
            _ => within.start,
        };
        (start < within.end).then_some(start)
    }

    /// How many values are in the set.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|r| u64::from(r.end - r.start)).sum()
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.ranges.iter().cloned()
    }
}

impl FromIterator<Range<u32>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u32>>>(iter: I) -> Self {
        let mut set = Self::new();
        for range in iter {
            set.insert_range(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn behaves_as_a_set_of_integers(
            ops in proptest::collection::vec((any::<bool>(), 0u32..64, 0u32..8), 0..80)
        ) {
            let (mut set, mut oracle) = (RangeSet::new(), BTreeSet::new());
            for (add, at, len) in ops {
                if add {
                    let new = (at..at + len).filter(|value| oracle.insert(*value)).count();
                    prop_assert_eq!(set.insert_range(at..at + len) as usize, new);
                } else {
                    prop_assert_eq!(set.remove(at), oracle.remove(&at));
                }
                let flat: Vec<u32> = set.iter().flatten().collect();
                prop_assert_eq!(&flat, &oracle.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.len(), oracle.len() as u64);
                let gap = (at..64).find(|v| !oracle.contains(v));
                prop_assert_eq!(set.first_gap(at..64), gap);
                let touching = set.iter().zip(set.iter().skip(1)).any(|(a, b)| a.end >= b.start);
                prop_assert_eq!(touching, false);
            }
        }

        #[test]
        fn extended_by_a_set_it_is_as_with_each_of_its_ranges(
            [ours, theirs] in [0, 1].map(|_| proptest::collection::vec((0u32..64, 0u32..8), 0..20))
        ) {
            let [mut set, other]: [RangeSet; 2] =
                [ours, theirs].map(|list| list.into_iter().map(|(at, len)| at..at + len).collect());
            let mut oracle = set.clone();
            for range in other.iter() {
                oracle.insert_range(range);
            }
            set.extend(&other);
            prop_assert_eq!(set.ranges(), oracle.iter().count());
            prop_assert_eq!(set, oracle);
        }

        #[test]
        fn insert_says_whether_it_was_new(values in proptest::collection::vec(0u32..40, 0..60).boxed()) {
            let (mut set, mut oracle) = (RangeSet::new(), BTreeSet::new());
            for value in values {
                prop_assert_eq!(set.insert(value), oracle.insert(value));
            }
        }
    }
}
