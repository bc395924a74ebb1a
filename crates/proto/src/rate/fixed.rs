//! `fixed`: the rate that the user named, whatever happens.
//!
//! For links with a reserved rate, and for experiments. What arrives at each receiver is measured nevertheless: the one
//! that gets least is named, and answers each poll. It is no straggler by that, as it holds no rate down, but by its
//! losses alone (`docs/protocol.md#STRAG-2`).

use super::paths::{Heard, Paths};
use super::{RateController, RatePhase, RateSample, RateSummary};
use crate::ids::ReceiverId;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;

/// Weight of the newest sample in a receiver's averages.
const GAIN: f64 = 0.125;

/// Sends at one rate.
#[derive(Debug)]
pub struct Fixed {
    rate: Rate,
    ceiling: Rate,
    paths: Paths<Delivered>,
}

/// What arrives at one receiver.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    bps: f64,
    loss: f64,
    heard: Timestamp,
}

impl Heard for Delivered {
    fn heard(&self) -> Timestamp {
        self.heard
    }
}

impl Fixed {
    /// Sends at `rate`, which must not be zero.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, ceiling: Rate::MAX, paths: Paths::new() }
    }
}

impl RateController for Fixed {
    fn on_sample(&mut self, now: Timestamp, sample: &RateSample) {
        if sample.sent_packets == 0 || sample.receive_interval.is_zero() {
            return;
        }
        let share = sample.arrived_share();
        let bps = share * sample.sent_bytes as f64 * 8.0 / sample.receive_interval.as_secs_f64();
        let loss = 1.0 - share;
        let path = self.paths.entry(sample.receiver, || Delivered { bps, loss, heard: now });
        path.bps += GAIN * (bps - path.bps);
        path.loss += GAIN * (loss - path.loss);
        path.heard = now;
        let least = self.paths.by_id.iter().min_by(|a, b| a.1.bps.total_cmp(&b.1.bps));
        self.paths.limiting = least.map(|(id, _)| *id);
    }

    fn on_tick(&mut self, _now: Timestamp, _bytes_sent: u64) {}

    fn on_receiver_gone(&mut self, receiver: ReceiverId) {
        self.paths.remove(receiver);
    }

    fn rate(&self) -> Rate {
        self.rate.min(self.ceiling)
    }

    fn set_ceiling(&mut self, ceiling: Rate) {
        self.ceiling = ceiling;
    }

    fn summary(&self) -> RateSummary {
        RateSummary {
            phase: RatePhase::Fixed,
            rate: self.rate(),
            bottleneck: None,
            random_loss: self.paths.followed().map_or(0.0, |path| path.loss),
            queue_delay: Duration::ZERO,
            queue_borne: Duration::ZERO,
            limiting: self.paths.limiting,
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

    /// Of 100 datagrams of 10 ms `received_packets` came.
    fn hear(fixed: &mut Fixed, round: u64, receiver: ReceiverId, received_packets: u64) {
        let poll_sent = Timestamp::from_nanos(round * 10_000_000);
        let sample = RateSample {
            receiver,
            sent_packets: 100,
            sent_bytes: 100_000,
            send_interval: Duration::from_millis(10),
            received_packets,
            receive_interval: Duration::from_millis(10),
            poll_sent,
            bytes_since: 0,
            rtt: Duration::from_millis(1),
            queue_delay: Duration::ZERO,
            host_drops: 0,
            app_limited: false,
        };
        fixed.on_sample(poll_sent, &sample);
    }

    #[test]
    fn who_comes_to_a_large_group_can_be_the_one_that_gets_least() {
        let mut fixed = Fixed::new(Rate::from_mbps(80));
        (1..=100).for_each(|id| hear(&mut fixed, id, ReceiverId(id as u32), 90));
        hear(&mut fixed, 101, ReceiverId(101), 50);
        assert_eq!(fixed.limiting(), Some(ReceiverId(101)));
    }

    #[test]
    fn loss_does_not_move_it_but_is_known() {
        let mut fixed = Fixed::new(Rate::from_mbps(80));
        (1..100).for_each(|round| hear(&mut fixed, round, ReceiverId(1), 50));
        assert_eq!(fixed.rate(), Rate::from_mbps(80));
        assert_eq!(fixed.limiting(), Some(ReceiverId(1)));
        fixed.set_ceiling(Rate::from_mbps(10));
        assert_eq!(fixed.rate(), Rate::from_mbps(10));
    }
}
