//! The start: the rate doubles with each answer until a queue or its overflow shows what the link takes.

use super::{DELIVERED_MAX, Path};
use crate::rate::RatePhase;
use crate::rate::auto::queue::{PACKET, QUEUE_MIN};
use crate::rate::auto::span::Span;
use crate::time::Timestamp;

/// Growth of a round.
const GAIN: f64 = 2.0;
/// A longer queue is not waited for.
const QUEUE: f64 = 0.005;
/// A sample that takes so much longer to arrive than to leave fills a queue.
const STRETCH: f64 = 1.25;
/// Less than this arriving through a queue is overflow.
const LOSSY: f64 = 0.75;
/// The same in two samples: who joins a full link does not see its queue grow.
const LOSSY_TWICE: f64 = 0.95;
/// Of a pausing sender, less than so many bytes say nothing: that they were late may be the host.
const LEAST: f64 = 8.0 * PACKET;

impl Path {
    /// Takes a sample whose poll left at `rate` (bytes/s), or that is a mean over several rates (`mixed`).
    pub(super) fn startup(
        &mut self,
        now: Timestamp,
        mut span: Span,
        (rate, mixed): (f64, bool),
        app_limited: bool,
    ) {
        if app_limited && span.sent < LEAST {
            return;
        }
        let target = self.target().min(QUEUE);
        // Over several polls the rate has at most doubled since it was last too slow.
        let least = if mixed { 0.5 * rate } else { 0.0 };
        if let Some(capacity) = self.stretched_twice() {
            self.capacity = capacity.max(least);
            self.saturated = true;
            self.phase = RatePhase::Hold;
            self.emptied = now;
            return;
        }
        let stretched = span.receive / span.send;
        // Losses alone may be chance, a queue alone a late host; both together are overflow.
        let is_lossy = span.arrived < LOSSY * span.sent || self.lost_twice(0.5 * target);
        span.excess |= self.queue > 0.5 * target && is_lossy;
        // Faster than it was sent is only what had been queued before.
        let measured = span.shows(self.loss.share()).min(span.sent / span.send);
        let standing = self.queue > target && stretched > 1.05 || self.queue > 3.0 * target;
        let clear = span.excess || self.queue > 3.0 * target || stretched > STRETCH && standing;
        self.suspects = if standing { self.suspects + 1 } else { 0 };
        if clear || self.suspects >= 2 {
            if mixed {
                // A mean over several rates does not tell what it takes: who is followed answers the next poll too.
                self.allowed = measured.max(least);
                return;
            }
            self.capacity = measured.max(self.capacity * 0.5);
            self.saturated = self.queue > target;
            self.phase = RatePhase::Hold;
            self.emptied = now;
            return;
        }
        if measured > self.capacity {
            self.capacity = measured;
        }
        let is_slow = span.receive_raw > STRETCH * span.send;
        if self.suspects == 0 && !is_slow && !app_limited {
            let limit = DELIVERED_MAX * self.delivered_peak;
            let before = if self.allowed.is_finite() { self.allowed } else { 0.0 };
            // A sender that was late has caught up faster than the rate.
            let sent_at = self.capacity.min(rate);
            self.allowed = before.max((sent_at * GAIN).min(limit));
        }
    }

    /// Whether the last two samples lost something through more than this `queue`.
    fn lost_twice(&self, queue: f64) -> bool {
        let is_lossy = |s: &Span| s.queue_raw > queue && s.arrived < LOSSY_TWICE * s.sent;
        self.spans.len() > 1 && self.spans.iter().rev().take(2).all(is_lossy)
    }

    /// What the link takes, if the last two samples took longer to arrive than to leave: one may be a late host,
    /// and would be made good by the next.
    fn stretched_twice(&self) -> Option<f64> {
        let mut last = self.spans.iter().rev();
        let (b, a) = (last.next()?, last.next()?);
        let is_longer = |span: &Span| span.receive_raw > STRETCH * span.send;
        let is_queue = b.queue_raw > a.queue_raw && a.queue_raw > QUEUE_MIN;
        (is_longer(a) && is_longer(b) && is_queue)
            .then(|| (a.sent + b.sent) / (a.receive_raw + b.receive_raw))
    }
}
