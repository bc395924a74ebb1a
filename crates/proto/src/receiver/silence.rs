//! How long the stream may be silent (`docs/protocol.md#STRAG-4`): first it is *quiet*, then it is *lost*, and from time to
//! time quiet again: what has cut the way off may last, and have forgotten who was in the group.
//!
//! Each poll sets the timer anew; here is what its end means. But the way may take polls and no symbols, which are longer: the
//! stream is lost, too, when polls tell of many and none comes, and until one does.

use super::{Event, Receiver};
use crate::time::{Duration, Timestamp};
use crate::timer::Reason;

/// The stream counts as lost when nothing of it came for this long, or for [`LOST_GRTTS`].
const LOST_AFTER: Duration = Duration::from_secs(3);
const LOST_GRTTS: u32 = 10;

/// It is quiet after this part of that.
const QUIET_PART: u32 = 3;

/// While it is lost the group is joined anew so often.
const JOIN_EVERY: Duration = Duration::from_secs(10);

/// So many symbols that do not come in that time are no chance, whatever the way loses.
const IN_VAIN_MIN: u32 = 50;

/// What the end of a wait means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Wait so much longer.
    Quiet(Duration),
    Lost,
}

#[derive(Debug, Default)]
pub(super) struct Silence {
    last: Option<Verdict>,
    /// What has been told as sent since the newest poll.
    told: u32,
    /// So many symbols were sent since a poll and none came, and when that was first heard; `None` where one has come since the
    /// newest poll: what that one tells may have come before.
    in_vain: Option<(u32, Timestamp)>,
}

impl Silence {
    /// How long to wait from now, when something has just been heard or the group was just joined.
    pub(super) fn wait(grtt: Duration) -> Duration {
        LOST_AFTER.max(grtt * LOST_GRTTS) / QUIET_PART
    }

    fn on_timeout(&mut self, grtt: Duration) -> Verdict {
        let verdict = match self.last {
            None => Verdict::Quiet(Self::wait(grtt) * (QUIET_PART - 1)),
            Some(_) => Verdict::Lost,
        };
        self.last = Some(verdict);
        verdict
    }

    pub(super) fn is_lost(&self) -> bool {
        self.last == Some(Verdict::Lost)
    }

    /// The stream was heard: whether the stream had been lost.
    pub(super) fn end(&mut self) -> bool {
        self.last.take() == Some(Verdict::Lost)
    }

    /// A poll or an advertisement tells that so many symbols of full length have left.
    pub(super) fn on_sent(&mut self, symbols: u16) {
        self.told = self.told.saturating_add(symbols.into());
    }

    /// A datagram came that is as long as they get.
    pub(super) const fn on_full(&mut self) {
        self.in_vain = None;
    }

    /// A poll came: whether, by all that were told of, symbols do not come.
    fn is_hollow(&mut self, now: Timestamp, grtt: Duration) -> bool {
        let told = core::mem::take(&mut self.told);
        let (count, since) = match self.in_vain {
            None => (0, now),
            Some((0, _)) => (told, now),
            Some((count, since)) => (count.saturating_add(told), since),
        };
        self.in_vain = Some((count, since));
        // Sooner than the sender tells it to leave for such losses: it would be named a slow one.
        let lasts = told > 0 && now.since(since) >= Self::wait(grtt);
        count >= IN_VAIN_MIN && (lasts || self.is_lost())
    }
}

impl Receiver {
    /// A poll came: the stream was heard, unless that is all that comes of it.
    pub(super) fn on_polled(&mut self) {
        if !self.silence.is_hollow(self.now, self.grtt()) {
            self.heard();
        } else if self.config.on_stream {
            self.silence.last = Some(Verdict::Lost);
            self.follow(false);
            self.timers.set(Reason::Silence, self.now + JOIN_EVERY);
            self.events.push_back(Event::SymbolsLost);
        }
    }

    fn heard(&mut self) {
        if self.silence.end() {
            self.set_on_stream(self.now, true);
            self.events.push_back(Event::StreamHeard);
        }
        if self.config.on_stream {
            self.timers.set(Reason::Silence, self.now + Silence::wait(self.grtt()));
        }
    }

    pub(super) fn on_silence(&mut self) {
        self.greet_anew();
        if !self.silence.is_lost() {
            // Neither do polls come: what they tell later was sent meanwhile.
            self.silence.in_vain = None;
        }
        let (event, wait) = match self.silence.on_timeout(self.grtt()) {
            Verdict::Quiet(rest) => (Event::StreamQuiet, rest),
            Verdict::Lost if self.config.on_stream => {
                self.follow(false);
                (Event::StreamLost, JOIN_EVERY)
            }
            Verdict::Lost => (Event::StreamQuiet, JOIN_EVERY),
        };
        self.timers.set(Reason::Silence, self.now + wait);
        self.events.push_back(event);
    }

    fn grtt(&self) -> Duration {
        self.last_poll.as_ref().map_or(Duration::ZERO, |l| l.poll.grtt)
    }
}

#[cfg(test)]
mod tests {
    use super::{LOST_AFTER, Silence, Verdict};
    use crate::time::Duration;

    #[test]
    fn quiet_comes_before_lost_and_hearing_ends_both() {
        let grtt = Duration::from_millis(20);
        let mut silence = Silence::default();
        let Verdict::Quiet(rest) = silence.on_timeout(grtt) else { panic!("lost at once") };
        assert_eq!(Silence::wait(grtt) + rest, LOST_AFTER);
        assert!(!silence.end());
        assert!(matches!(silence.on_timeout(grtt), Verdict::Quiet(_)));
        assert_eq!(silence.on_timeout(grtt), Verdict::Lost);
        assert!(silence.end());
        assert!(!silence.end());
        let far = Duration::from_millis(600);
        assert!(Silence::wait(far) * 3 >= far * 10);
    }
}
