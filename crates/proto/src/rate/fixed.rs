//! `fixed`: the rate that the user named, whatever happens.
//!
//! For links with a reserved rate, and for experiments. What each receiver could take is measured
//! nevertheless, so that a straggler is still recognised.

use super::{RECEIVERS_MAX, RateController, RatePhase, RateSample, RateSummary};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::collections::BTreeMap;

/// Weight of the newest sample in a receiver's averages.
const GAIN: f64 = 0.125;

/// Sends at one rate.
#[derive(Debug)]
pub struct Fixed {
    rate: Rate,
    ceiling: Rate,
    receivers: BTreeMap<ReceiverId, Delivered>,
}

/// What arrives at one receiver.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    bps: f64,
    loss: f64,
}

impl Fixed {
    /// Sends at `rate`, which must not be zero.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, ceiling: Rate::MAX, receivers: BTreeMap::new() }
    }
}

impl RateController for Fixed {
    fn on_sample(&mut self, _now: Timestamp, sample: &RateSample) {
        if sample.sent_packets == 0 || sample.receive_interval.is_zero() {
            return;
        }
        let share = sample.arrived_share();
        let bps = share * sample.sent_bytes as f64 * 8.0 / sample.receive_interval.as_secs_f64();
        if let Some(known) = self.receivers.get_mut(&sample.receiver) {
            known.bps += GAIN * (bps - known.bps);
            known.loss += GAIN * (1.0 - share - known.loss);
        } else if self.receivers.len() < RECEIVERS_MAX {
            self.receivers.insert(sample.receiver, Delivered { bps, loss: 1.0 - share });
        }
    }

    fn on_tick(&mut self, _now: Timestamp, _bytes_sent: u64) {}

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.receivers.remove(&receiver);
    }

    fn rate(&self) -> Rate {
        self.rate.min(self.ceiling)
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.ceiling = ceiling;
    }

    fn limiting(&self) -> Option<ReceiverId> {
        self.receivers.iter().min_by(|a, b| a.1.bps.total_cmp(&b.1.bps)).map(|(id, _)| *id)
    }

    fn summary(&self) -> RateSummary {
        let limiting = self.limiting();
        RateSummary {
            phase: RatePhase::Fixed,
            rate: self.rate(),
            bottleneck: None,
            random_loss: limiting.and_then(|id| self.receivers.get(&id)).map_or(0.0, |d| d.loss),
            queue_delay: Duration::ZERO,
            queue_borne: Duration::ZERO,
            limiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fixed, RateController};
    use crate::ids::ReceiverId;
    use crate::rate::RateSample;
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;

    #[test]
    fn loss_does_not_move_it_but_is_known() {
        let mut fixed = Fixed::new(Rate::from_mbps(80));
        for round in 1..100u64 {
            let sample = RateSample {
                receiver: ReceiverId(1),
                sent_packets: 100,
                sent_bytes: 100_000,
                send_interval: Duration::from_millis(10),
                received_packets: 50,
                receive_interval: Duration::from_millis(10),
                poll_sent: Timestamp::from_nanos(round * 10_000_000),
                bytes_since: 0,
                rtt: Duration::from_millis(1),
                queue_delay: Duration::ZERO,
                host_drops: 0,
                app_limited: false,
            };
            fixed.on_sample(Timestamp::from_nanos(round * 10_000_000), &sample);
        }
        assert_eq!(fixed.rate(), Rate::from_mbps(80));
        assert_eq!(fixed.limiting(), Some(ReceiverId(1)));
        fixed.set_ceiling(Rate::from_mbps(10));
        assert_eq!(fixed.rate(), Rate::from_mbps(10));
    }
}
