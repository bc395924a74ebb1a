//! Feedback in rounds (`docs/protocol.md#FB`): a poll asks a share of the group for a report, and whoever
//! lacks more than is on its way NACKs after a back-off that grows with the group.

use super::FeedbackPolicy;
use super::backoff::truncated_exponential;
use crate::ids::ReceiverId;
use crate::rng::Rng;
use crate::time::Duration;
use crate::wire::Poll;

/// Up to this many receivers nobody waits: all of them may speak at once.
pub const GROUP_WITHOUT_BACKOFF: u32 = 16;

/// Most receivers that shall report in a round though they need nothing, besides the limiting one: a group of so many
/// reports as a whole (`docs/protocol.md#FB-2`).
pub(crate) const REPORTS_MAX: u32 = 8;

/// Back-off in GRTT at 100 receivers, and how much more it is for each factor of ten above: by RFC 5401's
/// estimate no more of a larger group speak before they are silenced.
const BACKOFF_GRTT_100: f64 = 4.0;
const BACKOFF_GRTT_DECADE: f64 = 3.0;

/// Longest back-off for a group, in units of GRTT: 0 up to 16 receivers, 4 at 100, 7 at 1,000, 10 at 10,000,
/// linear in the logarithm between (`docs/protocol.md#FB-3`).
pub(crate) fn backoff_grtt(group_size: u32) -> f64 {
    if group_size <= GROUP_WITHOUT_BACKOFF {
        return 0.0;
    }
    let decades = libm::log10(f64::from(group_size)) - 2.0;
    let slope = if decades < 0.0 {
        BACKOFF_GRTT_100 / (2.0 - libm::log10(f64::from(GROUP_WITHOUT_BACKOFF)))
    } else {
        BACKOFF_GRTT_DECADE
    };
    BACKOFF_GRTT_100 + slope * decades
}

/// The policy of profile `auto`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rounds;

impl FeedbackPolicy for Rounds {
    fn reports(&mut self, me: ReceiverId, poll: &Poll, rng: &mut Rng) -> bool {
        // protocol.md#FB-2: the limiting receiver always, of the others the share that the poll names.
        poll.clr == Some(me) || rng.next_u64() % u64::from(u32::MAX) < u64::from(poll.report_share)
    }

    fn backoff(&mut self, me: ReceiverId, poll: &Poll, rng: &mut Rng) -> Duration {
        if poll.clr == Some(me) {
            return Duration::ZERO;
        }
        let max = poll.grtt.mul_f64(backoff_grtt(poll.group_size));
        truncated_exponential(max, poll.group_size, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::backoff_grtt;

    #[test]
    fn backoff_grows_with_the_logarithm_of_the_group() {
        assert!(backoff_grtt(16) < f64::EPSILON);
        assert!(backoff_grtt(17) < 0.2);
        assert!((backoff_grtt(100) - 4.0).abs() < 1e-9);
        assert!((backoff_grtt(1_000) - 7.0).abs() < 1e-9);
        assert!((backoff_grtt(100_000) - 13.0).abs() < 1e-9);
    }
}
