//! What the sender believes of the queue that a receiver sees on its path (`docs/protocol.md#FB-7`).
//!
//! A receiver knows it by the difference of two clocks ([`BaseDelay`](crate::BaseDelay)). Where one of them stood still, as
//! in a virtual machine that is paused, all polls seem late from then on, until the least delay is forgotten. By the sender's
//! clock alone the round trip has the way of the same poll in it: while a queue stands, it is longer than the shortest by
//! at least that queue.
//!
//! 1. The shortest is that of the first answer, less the queue that it tells; later the shortest that was measured.
//! 2. Believed is no more than the round trip exceeds it, and a little. So of a queue that is there nothing is taken away.

use crate::time::Duration;

/// What clocks that drift by 100 ppm add to a queue in the ten seconds of a receiver's memory.
const DRIFT: Duration = Duration::from_millis(1);

/// The check of one receiver's queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathQueue {
    shortest: Option<Duration>,
}

impl PathQueue {
    /// Nothing is measured yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { shortest: None }
    }

    /// An answer of this round trip tells of this queue: what of it is believed.
    pub fn believed(&mut self, told: Duration, round_trip: Duration) -> Duration {
        let before = self.shortest.unwrap_or(round_trip.saturating_sub(told));
        let shortest = before.min(round_trip);
        self.shortest = Some(shortest);
        told.min(round_trip - shortest + DRIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::{DRIFT, PathQueue};
    use crate::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_queue_is_believed_also_by_who_is_first_heard_while_it_stands() {
        let mut path = PathQueue::new();
        for queue in [ms(80), ms(60), ms(100), ms(0), ms(90)] {
            assert_eq!(path.believed(queue, ms(20) + queue), queue);
        }
    }

    #[test]
    fn of_a_queue_that_is_not_in_the_round_trip_nothing_is_believed() {
        let mut path = PathQueue::new();
        assert_eq!(path.believed(ms(5), ms(25)), ms(5));
        for queue in [ms(0), ms(5)] {
            assert_eq!(path.believed(ms(100) + queue, ms(20) + queue), queue + DRIFT);
        }
    }
}
