//! The share of the stream's datagrams that one receiver loses.
//!
//! Fed with (sent, received) of the spans between its reports; it starts as a plain average, so that the first report
//! already counts.

/// Datagrams after which an old sample weighs 1/e.
const MEMORY_DATAGRAMS: f64 = 4_000.0;

/// Datagrams that the group's mean loss counts for in a receiver's estimate. In a large group most receivers
/// have reported little, and repair is planned for the unluckiest estimate.
const PRIOR_DATAGRAMS: f64 = 1_000.0;

/// So many may have come early, and be missing later. What is more is not true, and must not hide the losses of others.
const EARLY_MAX: f64 = 64.0;

/// What is expected before there is a report weighs as much as a report of so many.
const EXPECTED_DATAGRAMS: f64 = 1.0;

/// A receiver's loss estimate.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    sent: f64,
    lost: f64,
}

impl Loss {
    /// This `share` is likely; what is reported overrules it.
    pub(crate) const fn expected(share: f64) -> Self {
        Self { sent: EXPECTED_DATAGRAMS, lost: share * EXPECTED_DATAGRAMS }
    }

    /// Of `sent` datagrams in a span, `received` came. More than were sent (reordering at the span's edge)
    /// counts as none lost.
    pub fn on_span(&mut self, sent: u64, received: u64) {
        let keep = libm::exp(-(sent as f64) / MEMORY_DATAGRAMS);
        self.sent = self.sent * keep + sent as f64;
        self.lost = (self.lost * keep + sent as f64 - received as f64).max(-EARLY_MAX);
    }

    /// (lost, sent) that the estimate stands on.
    pub(crate) const fn counts(&self) -> (f64, f64) {
        (self.lost, self.sent)
    }

    /// The estimate when `mean` is expected of such receivers: few datagrams say little about one.
    pub(crate) fn share_among(&self, mean: f64) -> f64 {
        let weighed = self.lost + mean * PRIOR_DATAGRAMS;
        (weighed / (self.sent + PRIOR_DATAGRAMS)).clamp(0.0, 1.0)
    }

    /// The estimate in 0 ..= 1; `None` before the first report.
    pub fn share(&self) -> Option<f64> {
        (self.sent > 0.0).then(|| (self.lost / self.sent).clamp(0.0, 1.0))
    }

    /// The same; `None` also while it is merely expected.
    pub(crate) fn told(&self) -> Option<f64> {
        self.share().filter(|_| self.sent > EXPECTED_DATAGRAMS)
    }
}

/// Of `sent` datagrams `received` came: what was lost, in 0 ..= 1, none before any was sent.
pub(crate) fn lost_share(sent: u64, received: u64) -> f64 {
    sent.saturating_sub(received) as f64 / sent.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::Loss;

    #[test]
    fn the_first_report_counts_and_old_ones_fade() {
        let mut loss = Loss::default();
        assert_eq!(loss.share(), None);
        loss.on_span(100, 90);
        assert!((loss.share().unwrap() - 0.1).abs() < 1e-9);
        for _ in 0..400 {
            loss.on_span(100, 100);
        }
        assert!(loss.share().unwrap() < 0.001);
    }

    #[test]
    fn reordering_at_a_spans_edge_is_not_negative_loss() {
        let mut loss = Loss::default();
        loss.on_span(10, 12);
        assert_eq!(loss.share(), Some(0.0));
        loss.on_span(10, 8);
        assert!(loss.share().unwrap() < 0.001, "what came early is missing later");
    }
}
