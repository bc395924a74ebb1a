//! A link that takes less than the least rate that controllers go down to: what is sent above it is lost for as long as the
//! session lasts, and only a ceiling helps.

use downpour_proto::rate::{RATE_MIN, RatePhase};
use downpour_proto::{Rate, ReceiverId};
use downpour_transport::session::SendSnapshot;
use std::time::{Duration, Instant};

/// Of so much loss, for so long, it is told, once. What the search for the rate loses is over sooner.
const LOSS: f64 = 1.0 / 3.0;
const LASTS: Duration = Duration::from_secs(5);

/// The rate stands at the least although it is up to so many times as much: it is tried whether the link takes more.
const TRIED: f64 = 2.0;

#[derive(Debug, Default)]
pub(super) struct Narrow {
    since: Option<Instant>,
    told: bool,
}

impl Narrow {
    /// Whose link is to be told of, and the rate at which it loses so much.
    pub(super) fn look(
        &mut self,
        now: Instant,
        snapshot: &SendSnapshot,
    ) -> Option<(ReceiverId, Rate)> {
        let seeks = |phase| !matches!(phase, RatePhase::Fixed | RatePhase::Silent);
        let lost = |id| snapshot.members.get(&id).and_then(|member| member.loss).unwrap_or(0.0);
        let least = snapshot.rate.filter(|s| seeks(s.phase) && s.rate <= RATE_MIN.scale(TRIED));
        let found = least.and_then(|s| Some((s.limiting.filter(|id| lost(*id) > LOSS)?, s.rate)));
        if found.is_none() {
            self.since = None;
            return None;
        }
        let lasts = now.duration_since(*self.since.get_or_insert(now)) >= LASTS;
        found.filter(|_| lasts && !std::mem::replace(&mut self.told, true))
    }
}

/// What is told of it.
pub(super) fn notice(name: &str, rate: Rate) -> String {
    let least = rate.min(RATE_MIN);
    format!(
        "{name} loses more than a third at {rate}, and the rate does not go below {least}: if its link \
         takes less, end this, and send with --rate and what it takes"
    )
}

#[cfg(test)]
mod tests {
    use super::{LASTS, Narrow, notice};
    use downpour_proto::rate::{RatePhase, RateSummary};
    use downpour_proto::sender::{Delivery, MemberStats};
    use downpour_proto::{Duration, Rate, ReceiverId};
    use downpour_transport::session::SendSnapshot;
    use std::time::Instant;

    fn snapshot(phase: RatePhase, kbps: u64, loss: f64) -> SendSnapshot {
        let id = ReceiverId(1);
        let rate = RateSummary {
            phase,
            rate: Rate::from_bps(kbps * 1_000),
            bottleneck: None,
            random_loss: 0.0,
            queue_delay: Duration::ZERO,
            queue_borne: Duration::ZERO,
            limiting: Some(id),
        };
        let member = MemberStats {
            delivery: Delivery::Stream,
            loss: Some(loss),
            loss_ever: loss,
            rtt: None,
            data_held: 0,
            feedback: 1,
            nacks: 0,
            received: 1,
            host_drops: 0,
        };
        SendSnapshot { rate: Some(rate), members: [(id, member)].into(), ..Default::default() }
    }

    #[test]
    fn a_link_below_the_least_rate_is_told_of_once_when_its_loss_does_not_end() {
        let (mut narrow, start) = (Narrow::default(), Instant::now());
        let mut look =
            |at: Duration, phase, kbps, loss| narrow.look(start + at, &snapshot(phase, kbps, loss));
        let (hold, ms) = (RatePhase::Hold, Duration::from_millis);
        assert_eq!(look(ms(0), hold, 128, 0.6), None);
        assert_eq!(look(ms(100), hold, 128, 0.1), None, "it begins anew");
        assert_eq!(look(ms(200), hold, 206, 0.6), None);
        assert_eq!(look(ms(100) + LASTS, hold, 128, 0.6), None);
        let told = look(ms(200) + LASTS, hold, 128, 0.6);
        assert_eq!(told, Some((ReceiverId(1), Rate::from_bps(128_000))));
        assert_eq!(look(ms(300) + LASTS, hold, 128, 0.6), None, "once");
    }

    #[test]
    fn neither_a_rate_that_was_set_nor_a_way_that_is_cut_is_taken_for_a_narrow_link() {
        let (hold, start) = (RatePhase::Hold, Instant::now());
        for (phase, kbps, loss) in [
            (RatePhase::Fixed, 64, 0.6),
            (RatePhase::Silent, 128, 0.6),
            (hold, 1_000, 0.6),
            (hold, 128, 0.2),
        ] {
            let mut narrow = Narrow::default();
            for at in [start, start + LASTS * 2] {
                assert_eq!(narrow.look(at, &snapshot(phase, kbps, loss)), None, "{phase:?}");
            }
        }
    }

    #[test]
    fn under_a_low_ceiling_the_least_rate_is_the_ceiling() {
        let at = |kbps: u64| notice("n1", Rate::from_bps(kbps * 1_000));
        assert!(at(206).contains("at 206.0 kbit/s, and the rate does not go below 128.0 kbit/s"));
        assert!(at(64).contains("does not go below 64.0 kbit/s"));
    }
}
