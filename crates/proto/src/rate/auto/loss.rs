//! How much a path loses whatever the rate, and when it loses more than that.
//!
//! Mean and dispersion of the losses in quiet samples are learnt; a sample whose losses lie far above
//! them is overflow. Bursts are allowed for by the dispersion, which starts pessimistic: a session that
//! begins on a lossy radio link must not take its first burst for congestion.

/// More random loss than this is not believed.
const SHARE_MAX: f64 = 0.35;
/// Memory of the mean, in datagrams.
const HORIZON: f64 = 4000.0;
/// Loss that is thought possible before anything is known.
const PRIOR: f64 = 0.05;
/// Datagrams that the prior weighs.
const PRIOR_WEIGHT: f64 = 100.0;
/// Ratio of the variance of losses to that of independent losses: at the start, and its bounds.
const DISPERSION_START: f64 = 10.0;
const DISPERSION_MAX: f64 = 24.0;
/// The same when overflow is the first guess.
const LIKELY_SIGMAS: f64 = 2.0;
/// Overflow of more than this share is severe.
const MUCH: f64 = 0.1;
/// What each sample leaves of the sums under a standing queue.
const QUEUED_MEMORY: f64 = 0.98;
/// So many datagrams teach the random loss well enough.
const KNOWN: f64 = 300.0;
/// What is left of the memory when it is doubted.
const DOUBT: f64 = 500.0;
/// Standard deviations that are still chance.
const SIGMAS: f64 = 4.0;

/// Whether a queue overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    /// Not that it could be told from chance.
    No,
    /// A little: a shorter queue is answer enough.
    Mild,
    /// What was sent does not tell the capacity, what arrived does.
    Severe,
}

/// The random loss of one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomLoss {
    share: f64,
    seen: f64,
    dispersion: f64,
    /// What was sent and lost lately under a standing queue.
    queued_sent: f64,
    queued_lost: f64,
}

impl RandomLoss {
    pub(super) const fn new() -> Self {
        Self {
            share: 0.0,
            seen: 0.0,
            dispersion: DISPERSION_START,
            queued_sent: 0.0,
            queued_lost: 0.0,
        }
    }

    /// The share of datagrams that get lost by chance, 0 to 1.
    pub(super) const fn share(&self) -> f64 {
        self.share.min(SHARE_MAX)
    }

    /// Whether more is lost than is believed of chance.
    pub(super) fn is_beyond_belief(&self) -> bool {
        self.share > SHARE_MAX && self.is_known()
    }

    /// Whether `lost` of `sent` are more than chance explains.
    pub(super) fn is_excess(&self, sent: f64, lost: f64) -> bool {
        let share = self.expected();
        // Even a path that never lost anything may lose a little.
        let variance = sent * (share + 0.002) * self.dispersion;
        lost > sent * share + SIGMAS * libm::sqrt(variance) + 3.0
    }

    /// What losses under a standing queue mean. `likely` says that the queue is so long that overflow is
    /// the first guess, `mild` that what lasts is at least mild overflow as soon.
    pub(super) fn judge_queued(
        &mut self,
        sent: f64,
        lost: f64,
        likely: bool,
        mild: bool,
    ) -> Overflow {
        self.queued_sent = self.queued_sent * QUEUED_MEMORY + sent;
        self.queued_lost = self.queued_lost * QUEUED_MEMORY + lost;
        let share = self.expected();
        let above = |sent: f64, lost: f64, sigmas: f64| {
            let variance = sent * (share + 0.002) * self.dispersion;
            lost > sent * share + sigmas * libm::sqrt(variance) + 1.0
        };
        let now = likely && above(sent, lost, LIKELY_SIGMAS);
        let lately = |sigmas| above(self.queued_sent, self.queued_lost, sigmas);
        let (is_sure, is_likely) = (lately(SIGMAS), mild && lately(LIKELY_SIGMAS));
        let much = self.queued_lost > self.queued_sent * (share + MUCH);
        if is_sure || is_likely {
            (self.queued_sent, self.queued_lost) = (0.0, 0.0);
        }
        match () {
            () if now || is_sure && much => Overflow::Severe,
            () if is_sure || is_likely => Overflow::Mild,
            () => Overflow::No,
        }
    }

    /// Whether enough has been seen to tell chance from overflow.
    pub(super) fn is_known(&self) -> bool {
        self.seen >= KNOWN
    }

    /// Whether more has been seen than a burst or two.
    pub(super) fn is_half_known(&self) -> bool {
        self.seen >= 0.5 * KNOWN
    }

    /// Whether enough has been sent, also under a standing queue, that what has been learnt may be put to the test.
    pub(super) fn is_tried(&self) -> bool {
        self.seen + self.queued_sent >= KNOWN
    }

    /// The share that chance takes, or what must be thought possible.
    fn expected(&self) -> f64 {
        self.share().max(PRIOR * PRIOR_WEIGHT / (PRIOR_WEIGHT + self.seen))
    }

    /// What has been learnt may no longer hold: the next samples weigh more.
    pub(super) fn doubt(&mut self) {
        self.seen = self.seen.min(DOUBT);
    }

    /// Learns from a sample without overflow.
    pub(super) fn learn(&mut self, sent: f64, lost: f64) {
        if sent <= 0.0 {
            return;
        }
        self.seen = (self.seen + sent).min(HORIZON);
        let miss = lost - self.share * sent;
        let expected = sent * self.share * (1.0 - self.share);
        if expected > 0.5 {
            let ratio = (miss * miss / expected).min(DISPERSION_MAX * 2.0);
            let gain = 0.02_f64;
            self.dispersion += gain * (ratio - self.dispersion);
            self.dispersion = self.dispersion.clamp(4.0, DISPERSION_MAX);
        }
        self.share = (self.share + miss / self.seen.max(sent)).clamp(0.0, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::RandomLoss;

    #[test]
    fn the_first_burst_is_not_congestion() {
        let loss = RandomLoss::new();
        assert!(!loss.is_excess(20.0, 10.0));
        assert!(!loss.is_excess(100.0, 20.0));
        assert!(loss.is_excess(500.0, 200.0));
    }

    #[test]
    fn overflow_stands_out_of_learnt_loss() {
        let mut loss = RandomLoss::new();
        for n in 0..1000 {
            loss.learn(42.0, if n % 2 == 0 { 2.0 } else { 3.0 });
        }
        assert!((loss.share() - 2.5 / 42.0).abs() < 0.005, "{}", loss.share());
        assert!(!loss.is_excess(42.0, 8.0));
        assert!(loss.is_excess(42.0, 21.0));
        assert!(loss.is_excess(1000.0, 150.0));
    }
}
