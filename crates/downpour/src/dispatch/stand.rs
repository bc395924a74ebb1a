//! Whether anything arrives of a batch: when it is told that nothing does, and when the batch gives its place up to others.
//!
//! It counts from when the destination has joined the session, or has not come to it, until that has said that it has all: what it
//! reads back and records after that does not grow. A session that ends before that does not end the batch: a destination whose disk
//! hangs is given up by its sender, and does not know it. What is pulled is counted as it comes; what comes by a stream, and what a
//! destination of an earlier build tells of, in whole blocks, so that a slow rate has more time. Of a batch that is given up
//! nothing is lost: what has come is kept for the next.
//!
//! The standing multicast session is judged in the same way by the reads that it begins: that one lasts is all that counts there.
//!
//! It has no clock: time is an argument.

use downpour_proto::Rate;
use std::time::{Duration, Instant};

/// Nothing has arrived for so long: that is told.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many times as long, and the batch is given up.
const GIVE_UP: u32 = 10;
/// More than one block, or group, which are counted whole.
const BLOCK_LEN: u64 = 2 << 20;
/// How long a batch of which all was cancelled may take to end.
const END_TIME: Duration = Duration::from_secs(10);

/// One batch.
#[derive(Debug)]
pub(super) struct Stand {
    bytes: u64,
    /// When more had arrived, while more is to arrive.
    grown: Option<Instant>,
    is_told: bool,
    /// Since when nobody wants any of it.
    unwanted: Option<Instant>,
    patience: Duration,
}

/// What follows from an answer of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoesOn,
    /// It stands, which was not told yet.
    Tell,
    /// It has stood for too long.
    GiveUp,
    /// All of it was cancelled, and it does not end.
    Unwanted,
}

impl Stand {
    /// Of a batch that has this rate, if it is bounded.
    pub(super) fn new(rate: Option<Rate>) -> Self {
        let block = rate.map_or(Duration::ZERO, |rate| rate.time_for(BLOCK_LEN));
        let patience = PATIENCE + block;
        Self { bytes: 0, grown: None, is_told: false, unwanted: None, patience }
    }

    /// For tests: one of so little patience.
    #[cfg(test)]
    pub(super) const fn within(patience: Duration) -> Self {
        Self { bytes: 0, grown: None, is_told: false, unwanted: None, patience }
    }

    /// So many bytes have arrived of a batch that has not ended, and it lacks others: a number that another one follows where anything
    /// comes.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        bytes: u64,
        (lacks, is_wanted): (bool, bool),
    ) -> Verdict {
        if bytes != self.bytes || self.grown.is_none() || !lacks {
            (self.bytes, self.is_told) = (bytes, false);
            self.grown = lacks.then_some(now);
        }
        match is_wanted {
            true => self.unwanted = None,
            false if now - *self.unwanted.get_or_insert(now) >= END_TIME => {
                return Verdict::Unwanted;
            }
            false => {}
        }
        match self.since(now) {
            Some(since) if since >= self.patience * GIVE_UP => Verdict::GiveUp,
            Some(_) if !std::mem::replace(&mut self.is_told, true) => Verdict::Tell,
            _ => Verdict::GoesOn,
        }
    }

    /// For how long nothing has arrived, if that is long.
    pub(super) fn since(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.grown?)).filter(|since| *since >= self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::{Stand, Verdict};
    use downpour_proto::Rate;
    use std::time::{Duration, Instant};

    const WANTED: (bool, bool) = (true, true);

    #[test]
    fn a_batch_in_which_nothing_arrives_is_told_of_once_and_then_given_up() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut stand = Stand::new(None);
        let mut answered = |second, bytes| {
            let verdict = stand.answered(at(second), bytes, WANTED);
            (verdict, stand.since(at(second)).map(|since| since.as_secs()))
        };
        assert_eq!(answered(0, 0), (Verdict::GoesOn, None));
        assert_eq!(answered(59, 5), (Verdict::GoesOn, None));
        assert_eq!(answered(118, 5), (Verdict::GoesOn, None));
        assert_eq!(answered(119, 5), (Verdict::Tell, Some(60)));
        assert_eq!(answered(300, 5), (Verdict::GoesOn, Some(241)));
        assert_eq!(answered(301, 6), (Verdict::GoesOn, None), "it goes on");
        assert_eq!(answered(361, 6), (Verdict::Tell, Some(60)));
        assert_eq!(answered(901, 6), (Verdict::GiveUp, Some(600)));
    }

    #[test]
    fn a_slow_rate_and_what_is_read_back_are_no_standstill() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut slow = Stand::new(Some(Rate::from_bps(8000)));
        assert_eq!(slow.answered(at(0), 0, WANTED), Verdict::GoesOn);
        assert_eq!(slow.answered(at(2000), 0, WANTED), Verdict::GoesOn);
        let mut over = Stand::new(None);
        for second in [0, 1000, 2000] {
            assert_eq!(over.answered(at(second), 5, (false, true)), Verdict::GoesOn);
        }
    }

    #[test]
    fn a_batch_whose_session_ended_without_all_of_it_is_told_of_and_given_up() {
        let begun = Instant::now();
        let mut stand = Stand::new(None);
        let mut answered =
            |second, lacks| stand.answered(begun + Duration::from_secs(second), 0, (lacks, true));
        // Nobody joined for so long, and then the session was over.
        assert_eq!(answered(0, false), Verdict::GoesOn);
        assert_eq!(answered(60, true), Verdict::GoesOn);
        assert_eq!(answered(119, true), Verdict::GoesOn);
        assert_eq!(answered(120, true), Verdict::Tell);
        assert_eq!(answered(660, true), Verdict::GiveUp);
    }

    #[test]
    fn a_batch_that_nobody_wants_keeps_no_place() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut stand = Stand::new(None);
        assert_eq!(stand.answered(at(0), 5, (true, false)), Verdict::GoesOn);
        assert_eq!(stand.answered(at(9), 6, (true, true)), Verdict::GoesOn);
        assert_eq!(stand.answered(at(10), 6, (true, false)), Verdict::GoesOn);
        assert_eq!(stand.answered(at(20), 7, (true, false)), Verdict::Unwanted);
    }
}
