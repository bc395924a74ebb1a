//! Other senders on this network, and what of the link is to be left to them (`docs/protocol.md#RATE-7`, `#RATE-8`).
//!
//! Two streams behind one link keep whatever division they have, for each measures only its own part. Who knows what
//! the other takes can yield: the larger one holds a shorter queue, the other fills what is left. Whether the two share a link at
//! all is told by the queue: who yields on a link of its own sees an empty one while the other tells of a long one.
//!
//! Who joins a full link has never seen it empty, and takes what stands there for the path's delay; then it overflows a
//! queue that it thinks short. It too is told by the other's longer queue: so much more is let run empty.
//!
//! Nothing that is heard here is authentic. The worst that a liar can do is to have a shorter queue held than would be
//! best, and let run empty a little longer and up to about once a second, and on long ways a tenth less sent; no word of a
//! neighbour raises the rate while a queue stands.

use crate::ids::StreamId;
use crate::rate::Load;
use crate::time::{Duration, Timestamp};
use alloc::vec::Vec;

/// Senders that are remembered.
const NEIGHBOURS_MAX: usize = 16;
/// Who has not been heard for so long is gone.
const PRESENT: Duration = Duration::from_secs(1);
/// How often one is heard that knows of us.
const TOLD_EVERY: Duration = Duration::from_millis(100);
/// How much one word weighs when all of the wished queue is yielded.
const GAIN: f64 = 0.15;
/// Whose queue is less like ours than this is behind another link.
const ALIKE: f64 = 0.7;
/// How much one word weighs in how much longer a neighbour's queue is than ours; what is less than this share of the wished
/// queue is not longer.
const LONGER_GAIN: f64 = 0.25;
const LONGER_LEAST: f64 = 0.1;
/// Who takes more than its share lets its rate fall by so much of the surplus in each time in which it sets its queue
/// right; but the queue that it holds stays above this share of the wished one.
const YIELD: f64 = 1.0;
const YIELD_LEAST: f64 = 0.15;
/// On long ways so little queue moves a share too slowly: there what is held falls below it, below empty as well, until
/// shares move by so much of the link in a second, or so much less is sent; but only when this has gone on for [`PROVED`].
const YIELD_SPEED: f64 = 0.4;
const YIELD_MOST: f64 = 0.1;
/// A neighbour is surely behind our link when it has seemed so for this long while all was yielded, in seconds.
const PROVED: f64 = 1.0;
/// Who has so much less than its share, as a logarithm, climbs from no less than this growth of a round on.
const DEFICIT: f64 = 0.2;
const CLIMB_LEAST: f64 = 0.1;
/// For so long such a neighbour is left out of account: at first, and at most.
const APART: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(60));
/// For so long a hidden queue is not looked for again, at first and at most: the first look may uncover a part of it.
const LOOK: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Who has seemed to be behind our link for so long is judged as at first.
const TOGETHER: Duration = Duration::from_secs(2);

/// What the followed path knows of its queue while it yields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The queue, in seconds, and what it would be without neighbours.
    pub(super) queue: f64,
    pub(super) wish: f64,
    /// The longest queue of the time that a word may be old.
    pub(super) lately: f64,
    /// Which share of that wish is given up, 0 to 1.
    pub(super) yielded: f64,
}

/// What is to be reckoned with of neighbours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    /// How much more than an even share we have, as a logarithm: 0 to 1.
    pub(super) surplus: f64,
    /// How much less, likewise.
    pub(super) deficit: f64,
    /// By how much the queue that one of them tells of is longer than ours, in seconds.
    pub(super) longer: f64,
    /// The same of those with whom it has not been looked for lately: if it is our queue, so much of it has been there for
    /// as long as we know.
    pub(super) hidden: f64,
    /// Whether one of them seems to be on this link.
    pub(super) is_shared: bool,
    /// Whether one of them has seemed to be for some time.
    pub(super) is_proved: bool,
}

#[derive(Debug)]
struct Neighbour {
    who: StreamId,
    load: Load,
    heard: Timestamp,
    /// How far its queue goes with ours, 0 to 1.
    alike: f64,
    /// For how long that has been so while we yielded, in seconds.
    proved: f64,
    /// How much longer its queue is than ours, in seconds.
    longer: f64,
    /// Not before that is a hidden queue looked for, and next time so much later.
    look_at: Timestamp,
    look_wait: Duration,
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
                    proved: 0.0,
                    longer: 0.0,
                    look_at: now,
                    look_wait: LOOK.0,
                    apart_until: now,
                    apart_for: APART.0,
                };
                self.0.push(new);
                return;
            }
        };
        let weight = (now.since(known.heard).as_secs_f64() / TOLD_EVERY.as_secs_f64()).min(1.0);
        (known.load, known.heard) = (load, now);
        if let Some(standing) = standing {
            known.compare(now, standing, weight);
        }
    }

    /// What is to be reckoned with now by who takes `own` (bytes/s).
    pub(super) fn others(&self, now: Timestamp, own: f64) -> Others {
        let (mut count, mut sum, mut others) = (1.0, own, Others::default());
        for neighbour in self.0.iter().filter(|n| n.is_present(now)) {
            others.longer = others.longer.max(neighbour.longer);
            if now >= neighbour.look_at {
                others.hidden = others.hidden.max(neighbour.longer);
            }
            if now >= neighbour.apart_until {
                others.is_proved |= neighbour.proved >= PROVED;
                count += 1.0;
                sum += neighbour.load.rate.bps() as f64 / 8.0;
            }
        }
        others.is_shared = count > 1.0;
        if own > 0.0 {
            let more = libm::log(own * count / sum);
            (others.surplus, others.deficit) = (more.clamp(0.0, 1.0), (-more).clamp(0.0, 1.0));
        }
        others
    }

    /// The queue is let run empty, and what is hidden of it as well: if it still is then, it is not ours, for a while.
    pub(super) fn look(&mut self, now: Timestamp) {
        for neighbour in self.0.iter_mut().filter(|n| n.longer > 0.0 && now >= n.look_at) {
            neighbour.look_at = now + neighbour.look_wait;
            neighbour.look_wait = (neighbour.look_wait * 2).min(LOOK.1);
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Others {
    /// The growth of the first round of a climb, for one that would begin with this: who has too little takes up sooner
    /// what the others have left.
    pub(super) fn climbed(&self, gentle: f64) -> f64 {
        if self.deficit > DEFICIT { gentle.max(CLIMB_LEAST) } else { gentle }
    }

    /// What to hold instead of this queue by who sets it right in `time_constant`, all in seconds. Below zero the link
    /// is not used up.
    pub(super) fn held(&self, wish: f64, time_constant: f64) -> f64 {
        let deep = (YIELD_SPEED * time_constant).min(YIELD_MOST) * time_constant;
        let least = YIELD_LEAST * wish;
        let least = if self.is_proved { least.min(wish - deep) } else { least };
        (wish - YIELD * self.surplus * time_constant).max(least)
    }
}

impl Neighbour {
    fn is_present(&self, now: Timestamp) -> bool {
        now.since(self.heard) < PRESENT
    }

    /// A word weighs less when the one before is newer than usual: who is heard on two ways counts as once.
    fn compare(&mut self, now: Timestamp, standing: Standing, weight: f64) {
        let longer = self.load.queue.as_secs_f64() - standing.queue;
        self.longer += weight * LONGER_GAIN * (longer - self.longer);
        if now >= self.look_at && self.longer < LONGER_LEAST * standing.wish {
            self.look_wait = LOOK.0;
        }
        if now < self.apart_until {
            return;
        }
        let unlike = (self.load.queue.as_secs_f64() - standing.lately) / standing.wish;
        let alike = 1.0 - unlike.clamp(0.0, 1.0);
        self.proved += weight * standing.yielded * TOLD_EVERY.as_secs_f64();
        self.alike += weight * GAIN * standing.yielded * (alike - self.alike);
        if self.alike < ALIKE {
            (self.alike, self.proved) = (1.0, 0.0);
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

    fn surplus(neighbours: &Neighbours, now: Timestamp, own: f64) -> f64 {
        neighbours.others(now, own).surplus
    }

    #[test]
    fn only_the_larger_one_has_a_surplus_and_only_while_the_other_is_heard() {
        let mut neighbours = Neighbours::default();
        assert_eq!(surplus(&neighbours, at(0), OWN), 0.0);
        neighbours.hear(at(0), StreamId(1), load(20, 5), None);
        assert!((surplus(&neighbours, at(500), OWN) - libm::log(1.6)).abs() < 1e-9);
        assert_eq!(surplus(&neighbours, at(500), OWN / 8.0), 0.0);
        neighbours.hear(at(500), StreamId(2), load(140, 5), None);
        assert_eq!(surplus(&neighbours, at(600), OWN), 0.0);
        assert_eq!(surplus(&neighbours, at(1600), OWN), 0.0, "both are gone");
    }

    #[test]
    fn who_is_behind_another_link_is_found_out_and_asked_again_later() {
        let mut neighbours = Neighbours::default();
        let empty = Standing { queue: 0.0005, lately: 0.0005, wish: 0.005, yielded: 0.85 };
        let mut yielding = 0;
        for n in 0..600 {
            neighbours.hear(at(n * 100), StreamId(1), load(1, 5), Some(empty));
            yielding += u32::from(surplus(&neighbours, at(n * 100), OWN) > 0.0);
        }
        assert!((5..60).contains(&yielding), "{yielding} of 600");
        let full = Standing { queue: 0.0045, lately: 0.0045, ..empty };
        let mut neighbours = Neighbours::default();
        for n in 0..600 {
            neighbours.hear(at(n * 100), StreamId(1), load(1, 5), Some(full));
            assert!(surplus(&neighbours, at(n * 100), OWN) > 0.0);
        }
    }

    #[test]
    fn on_a_long_way_less_than_nothing_is_held_for_who_is_surely_on_the_link() {
        const WISH: f64 = 0.007;
        let standing = Standing { queue: 0.0, lately: 0.004, wish: WISH, yielded: 1.0 };
        let mut neighbours = Neighbours::default();
        let mut held = |n: u64, queue_ms, time_constant| {
            neighbours.hear(at(n * 100), StreamId(1), load(1, queue_ms), Some(standing));
            neighbours.others(at(n * 100), OWN).held(WISH, time_constant)
        };
        for n in 0..9 {
            assert!(held(n, 4, 0.25) > 0.0, "{n}");
        }
        (9..20).for_each(|n| _ = held(n, 4, 0.25));
        let deep = held(20, 4, 0.25);
        assert!((-0.1 * 0.25..0.0).contains(&deep), "{deep}");
        assert!(held(21, 4, 1.0) >= -0.1, "no more than a tenth");
        assert!(held(22, 4, 0.05) > 0.0, "a short way");
        // Its queue is another's: what was given up is taken back at once, and it has to show itself anew.
        (23..30).for_each(|n| _ = held(n, 20, 0.25));
        assert_eq!(held(30, 20, 0.25), WISH);
        assert!(held(75, 4, 0.25) > 0.0);
    }

    #[test]
    fn a_queue_that_is_hidden_is_looked_for_and_less_often_when_in_vain() {
        let short = Standing { queue: 0.001, lately: 0.001, wish: 0.005, yielded: 0.0 };
        let mut neighbours = Neighbours::default();
        let mut looks = 0;
        for n in 0..1200 {
            neighbours.hear(at(n * 100), StreamId(1), load(80, 5), Some(short));
            if neighbours.others(at(n * 100), OWN).hidden > 0.002 {
                looks += 1;
                neighbours.look(at(n * 100));
            }
        }
        assert!((5..11).contains(&looks), "{looks} in two minutes");
        // Now it is seen: from here on both tell of the same.
        let all = Standing { queue: 0.005, lately: 0.005, ..short };
        for n in 1200..2400 {
            neighbours.hear(at(n * 100), StreamId(1), load(80, 5), Some(all));
        }
        assert!(neighbours.others(at(240_000), OWN).longer < 1e-6);
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
