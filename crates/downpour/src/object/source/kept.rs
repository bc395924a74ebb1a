//! What was hashed stays in memory until it is sent, so that nothing is read twice.
//!
//! Bounded: of what nobody has asked for, the newest is not kept when there is no room; what lies well before the newest
//! that was asked for goes first. What is not here is read from its file.

use super::lock;
use downpour_transport::{Part, Spare};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

/// Groups below this are not worth it: small files are read once more, many at a time.
const LEAST: usize = 64 << 10;

/// What is asked for may come this far out of order.
const DISORDER: u64 = 64 << 20;

/// Buffers that wait to be used again: all that are kept at once.
const SPARE_MAX: usize = 96;

/// Bytes of groups, by their place in the data space.
pub(super) struct Kept {
    spare: Spare,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    most: u64,
    groups: BTreeMap<u64, Group>,
    bytes: u64,
    /// One past the last byte that was asked for.
    asked_end: u64,
}

struct Group {
    bytes: Part,
    /// Of it, so much was sent.
    sent: u64,
}

impl Default for Kept {
    fn default() -> Self {
        Self { spare: Spare::new(SPARE_MAX), state: Mutex::default() }
    }
}

impl Kept {
    /// Keeps up to so many bytes.
    pub(super) fn set_most(&self, most: u64) {
        lock(&self.state).most = most;
    }

    pub(super) fn most(&self) -> u64 {
        lock(&self.state).most
    }

    /// A buffer for a group that will be kept; `None` when it is not worth it.
    pub(super) fn buffer(&self, len: usize) -> Option<downpour_transport::Lent> {
        (len >= LEAST && self.most() > 0).then(|| self.spare.lend(len))
    }

    /// Keeps a group, if there is room.
    pub(super) fn keep(&self, start: u64, bytes: Part) {
        let mut state = lock(&self.state);
        let old = state.asked_end.saturating_sub(DISORDER);
        while let Some(first) = state.groups.first_entry() {
            if first.key() + first.get().bytes.len() as u64 > old {
                break;
            }
            let len = first.remove().bytes.len() as u64;
            state.bytes -= len;
        }
        let len = bytes.len() as u64;
        if state.bytes + len <= state.most {
            state.bytes += len;
            state.groups.insert(start, Group { bytes, sent: 0 });
        }
    }

    /// All of `range`, if it is here. What was given once is not kept.
    pub(super) fn take(&self, range: Range<u64>) -> Option<Vec<Part>> {
        let mut state = lock(&self.state);
        state.asked_end = state.asked_end.max(range.end);
        let (first, _) = state.groups.range(..=range.start).next_back()?;
        let (mut at, mut parts, mut starts) = (range.start, Vec::new(), Vec::new());
        for (start, group) in state.groups.range(first..&range.end) {
            let end = start + group.bytes.len() as u64;
            if *start > at || end <= at {
                return None;
            }
            let until = end.min(range.end);
            parts.push(group.bytes.part((at - start) as usize..(until - start) as usize));
            starts.push(*start);
            at = until;
        }
        if at < range.end {
            return None;
        }
        for (start, part) in starts.into_iter().zip(&parts) {
            let Some(group) = state.groups.get_mut(&start) else { continue };
            group.sent += part.len() as u64;
            let len = group.bytes.len() as u64;
            if group.sent >= len {
                state.groups.remove(&start);
                state.bytes -= len;
            }
        }
        Some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::{DISORDER, Kept, LEAST};

    const LEN: u64 = 1 << 20;

    fn kept(groups: u64) -> Kept {
        let kept = Kept::default();
        kept.set_most(4 * LEN);
        (0..groups).for_each(|group| keep(&kept, group * LEN, group as u8));
        kept
    }

    fn keep(kept: &Kept, start: u64, byte: u8) {
        let mut buffer = kept.buffer(LEN as usize).unwrap();
        buffer.fill(byte);
        kept.keep(start, buffer.share());
    }

    #[test]
    fn what_was_kept_is_given_once_across_groups() {
        let kept = kept(3);
        let parts = kept.take(LEN - 10..LEN + 20).unwrap();
        let lens: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!((lens, parts[0][0], parts[1][19]), (vec![10, 20], 0, 1));
        assert!(kept.take(0..LEN - 10).is_some());
        assert!(kept.take(0..1).is_none(), "all of it was given");
        assert!(kept.take(LEN + 20..3 * LEN).is_some());
        assert!(kept.take(3 * LEN..4 * LEN).is_none(), "it was never here");
        assert_eq!(super::lock(&kept.state).bytes, 0);
    }

    #[test]
    fn a_range_with_a_gap_is_not_given() {
        let kept = kept(1);
        keep(&kept, 2 * LEN, 2);
        assert!(kept.take(0..3 * LEN).is_none());
        assert!(kept.take(0..LEN).is_some() && kept.take(2 * LEN..3 * LEN).is_some());
    }

    #[test]
    fn there_is_a_bound_and_what_was_passed_over_makes_room() {
        let kept = kept(6);
        assert_eq!(super::lock(&kept.state).bytes, 4 * LEN);
        assert!(kept.take(5 * LEN..6 * LEN).is_none(), "there was no room for it");
        let far = 2 * LEN + DISORDER;
        assert!(kept.take(far - LEN..far).is_none());
        keep(&kept, far, 9);
        assert!(kept.take(far..far + LEN).is_some(), "two were dropped for it");
        assert!(kept.take(0..LEN).is_none() && kept.take(3 * LEN..4 * LEN).is_some());
        assert!(kept.buffer(LEAST - 1).is_none());
    }
}
