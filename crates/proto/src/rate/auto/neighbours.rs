//! Other senders on this network, and what of the link is to be left to them (`docs/protocol.md#RATE-7`).
//!
//! Two streams behind one link keep whatever division they have, for each measures only its own part. Who knows what
//! the other takes can yield: the larger one holds a shorter queue, the other fills what is left. Whether the two share a link at
//! all is told by the queue: who yields on a link of its own sees an empty one while the other tells of a long one.
//!
//! Nothing that is heard here is authentic. The worst that a liar can do is to have a shorter queue held than would be
//! best; no word of a neighbour ever raises the rate.

use crate::ids::StreamId;
use crate::rate::Load;
use crate::time::{Duration, Timestamp};
use alloc::vec::Vec;

/// Senders that are remembered.
const NEIGHBOURS_MAX: usize = 16;
/// Who has not been heard for so long is gone.
const PRESENT: Duration = Duration::from_secs(1);
/// How much one word weighs when all of the wished queue is yielded.
const GAIN: f64 = 0.1;
/// Whose queue is less like ours than this is behind another link.
const ALIKE: f64 = 0.7;
/// For so long such a neighbour is left out of account: at first, and at most.
const APART: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(60));
/// Who has seemed to be behind our link for so long is judged as at first.
const TOGETHER: Duration = Duration::from_secs(2);

/// What the followed path knows of its queue while it yields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The queue, in seconds, and what it would be without neighbours.
    pub(super) queue: f64,
    pub(super) wish: f64,
    /// Which share of that wish is given up, 0 to 1.
    pub(super) yielded: f64,
}

#[derive(Debug)]
struct Neighbour {
    who: StreamId,
    load: Load,
    heard: Timestamp,
    /// How far its queue goes with ours, 0 to 1.
    alike: f64,
    apart_until: Timestamp,
    apart_for: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Neighbours(Vec<Neighbour>);

impl Neighbours {
    /// `who` has told its load. `standing`: of the followed path, if its queue says anything now.
    pub(super) fn hear(
        &mut self,
        now: Timestamp,
        who: StreamId,
        load: Load,
        standing: Option<Standing>,
    ) {
        let known = match self.0.iter_mut().find(|n| n.who == who) {
            Some(known) => known,
            None => {
                self.0.retain(|n| n.is_present(now));
                if self.0.len() == NEIGHBOURS_MAX {
                    return;
                }
                let new = Neighbour {
                    who,
                    load,
                    heard: now,
                    alike: 1.0,
                    apart_until: now,
                    apart_for: APART.0,
                };
                self.0.push(new);
                return;
            }
        };
        (known.load, known.heard) = (load, now);
        if let Some(standing) = standing
            && now >= known.apart_until
        {
            known.compare(now, standing);
        }
    }

    /// How much more than an even share `own` (bytes/s) is, as a logarithm: 0 to 1.
    pub(super) fn surplus(&self, now: Timestamp, own: f64) -> f64 {
        let others = self.0.iter().filter(|n| n.is_present(now) && now >= n.apart_until);
        let rates = others.map(|n| n.load.rate.bps() as f64 / 8.0);
        let (count, sum) = rates.fold((1.0, own), |(count, sum), rate| (count + 1.0, sum + rate));
        if sum > 0.0 { libm::log(own * count / sum).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Neighbour {
    fn is_present(&self, now: Timestamp) -> bool {
        now.since(self.heard) < PRESENT
    }

    fn compare(&mut self, now: Timestamp, standing: Standing) {
        let longer = self.load.queue.as_secs_f64() - standing.queue;
        let alike = 1.0 - (longer / standing.wish).clamp(0.0, 1.0);
        self.alike += GAIN * standing.yielded * (alike - self.alike);
        if self.alike < ALIKE {
            self.alike = 1.0;
            self.apart_until = now + self.apart_for;
            self.apart_for = (self.apart_for * 2).min(APART.1);
        } else if now > self.apart_until + TOGETHER {
            self.apart_for = APART.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NEIGHBOURS_MAX, Neighbours, Standing};
    use crate::ids::StreamId;
    use crate::rate::Load;
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;

    fn load(mbps: u64, queue_ms: u64) -> Load {
        Load { rate: Rate::from_mbps(mbps), queue: Duration::from_millis(queue_ms) }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    const OWN: f64 = 80e6 / 8.0;

    #[test]
    fn only_the_larger_one_has_a_surplus_and_only_while_the_other_is_heard() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.surplus(at(0), OWN), 0.0);
        neighbours.hear(at(0), StreamId(1), load(20, 5), None);
        assert!((neighbours.surplus(at(500), OWN) - libm::log(1.6)).abs() < 1e-9);
        assert_eq!(neighbours.surplus(at(500), OWN / 8.0), 0.0);
        neighbours.hear(at(500), StreamId(2), load(140, 5), None);
        assert_eq!(neighbours.surplus(at(600), OWN), 0.0);
        assert_eq!(neighbours.surplus(at(1600), OWN), 0.0, "both are gone");
    }

    #[test]
    fn who_is_behind_another_link_is_found_out_and_asked_again_later() {
        let mut neighbours = Neighbours::default();
        let empty = Standing { queue: 0.0005, wish: 0.005, yielded: 0.85 };
        let mut yielding = 0;
        for n in 0..600 {
            neighbours.hear(at(n * 100), StreamId(1), load(1, 5), Some(empty));
            yielding += u32::from(neighbours.surplus(at(n * 100), OWN) > 0.0);
        }
        assert!((5..60).contains(&yielding), "{yielding} of 600");
        let full = Standing { queue: 0.0045, ..empty };
        let mut neighbours = Neighbours::default();
        for n in 0..600 {
            neighbours.hear(at(n * 100), StreamId(1), load(1, 5), Some(full));
            assert!(neighbours.surplus(at(n * 100), OWN) > 0.0);
        }
    }

    #[test]
    fn a_flood_of_names_is_not_remembered() {
        let mut neighbours = Neighbours::default();
        for n in 0..10_000 {
            neighbours.hear(at(n / 100), StreamId(n as u32), load(1, 5), None);
        }
        assert_eq!(neighbours.0.len(), NEIGHBOURS_MAX);
    }
}
