//! How many receivers there are, where they do not say who they are.
//!
//! Each answers a packet with probability 1/N, N being what packets say: so N ← N × status packets / packets in each
//! period, half smoothed. The paper gives no rule; this is ours.

/// The estimate N.
#[derive(Clone, Copy, Debug)]
pub struct GroupEstimate {
    estimate: f64,
    statuses: u32,
    packets: u32,
}

impl Default for GroupEstimate {
    fn default() -> Self {
        Self { estimate: 1.0, statuses: 0, packets: 0 }
    }
}

impl GroupEstimate {
    /// What packets carry.
    pub fn clients(&self) -> u32 {
        libm::round(self.estimate.clamp(1.0, 1e9)) as u32
    }

    /// As it is, before rounding.
    pub const fn estimate(&self) -> f64 {
        self.estimate
    }

    /// A packet has left.
    pub(super) const fn on_packet(&mut self) {
        self.packets = self.packets.saturating_add(1);
    }

    /// A status packet has come.
    pub(super) const fn on_status(&mut self) {
        self.statuses = self.statuses.saturating_add(1);
    }

    /// A period is over.
    pub(super) fn on_period(&mut self) {
        if self.packets > 0 {
            let answered = f64::from(self.statuses) / f64::from(self.packets);
            self.estimate += 0.5 * (f64::from(self.clients()) * answered - self.estimate);
        }
        (self.statuses, self.packets) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::GroupEstimate;

    /// Periods of 1000 packets, each of which `receivers` answer with probability `ratio` / N.
    fn settled(receivers: f64, ratio: f64) -> GroupEstimate {
        let mut group = GroupEstimate::default();
        for _ in 0..40 {
            let answers = 1000.0 * receivers * ratio / f64::from(group.clients());
            (0..1000).for_each(|_| group.on_packet());
            (0..answers as u32).for_each(|_| group.on_status());
            group.on_period();
        }
        group
    }

    #[test]
    fn it_finds_the_group_with_the_kept_rule_and_a_tenth_of_it_with_the_rejected() {
        assert_eq!(settled(1.0, 1.0).clients(), 1);
        assert_eq!(settled(37.0, 1.0).clients(), 37);
        // With a = 0.1 the flawless answer a tenth as often.
        assert_eq!(settled(37.0, 0.1).clients(), 4);
        assert!((settled(1.0, 0.1).estimate() - 0.1).abs() < 0.01);
        let mut quiet = settled(37.0, 1.0);
        quiet.on_period();
        assert_eq!(quiet.clients(), 37, "no packets, nothing learnt");
    }
}
