//! One way of an emulated link: when does a frame come out, if at all.
//!
//! A frame that comes in at `now`
//!
//! 1. waits for those before it, if the queue has room, else it is dropped there;
//! 2. takes its time on the link (`rate`);
//! 3. may be lost, alone or in a burst (Gilbert–Elliott), having taken its time;
//! 4. travels for `delay` and up to `jitter` more, never overtaking another,
//! 5. except that a share of the frames (`reorder`) is held back by [`HELD_BACK`], so that those behind overtake that are nearer than
//!    that.
//!
//! Knows no clock and no socket; all chance comes from one seed.

use crate::units::{Rate, Span};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How far behind a reordered frame falls.
pub(crate) const HELD_BACK: Span = Span(Duration::from_millis(1));

/// Least rate of a link: tbf counts in whole bytes a second, and a bucket that a link fills in minutes limits nothing.
pub(crate) const RATE_MIN: Rate = Rate(1_000);
/// Least and most of what is lost: nftables draws of a million.
const LOSS_MIN: f64 = 0.000_001;
const LOSS_MAX: f64 = 0.999_999;
/// tbf's grain.
const QUEUE_MIN: Span = Span(Duration::from_micros(1));

/// Nanoseconds of the monotonic clock.
pub(crate) type Nanos = u64;

/// What one way of a link does to frames. The default does nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Shape {
    /// Rate; unlimited when absent.
    pub(crate) rate: Option<Rate>,
    /// Longest time that a frame waits for its turn, when there is a rate.
    pub(crate) queue: Span,
    /// Time on the way.
    pub(crate) delay: Span,
    /// Up to so much more, drawn for each frame. None overtakes, so that most of those that are near one another have nearly all of it.
    pub(crate) jitter: Span,
    /// Share of frames that are lost.
    pub(crate) loss: f64,
    /// Mean number of frames that are lost in a row; 1 makes losses independent.
    pub(crate) burst: f64,
    /// Share of frames that others overtake.
    pub(crate) reorder: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            rate: None,
            queue: Span(Duration::from_millis(20)),
            delay: Span::default(),
            jitter: Span::default(),
            loss: 0.0,
            burst: 1.0,
            reorder: 0.0,
        }
    }
}

impl Shape {
    /// Why no link is like that.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_share = self.loss <= 0.0 || self.loss >= LOSS_MIN;
        if !is_share
            || !(0.0..=LOSS_MAX).contains(&self.loss)
            || !(0.0..1.0).contains(&self.reorder)
        {
            return Err(format!(
                "loss is 0 or a share from {LOSS_MIN} to {LOSS_MAX}, reorder one below 1"
            ));
        }
        if !(1.0..f64::INFINITY).contains(&self.burst) {
            return Err("burst, the mean number of losses in a row, is 1 or more".to_owned());
        }
        // One frame at least comes through between two bursts.
        let most = self.burst / (1.0 + self.burst);
        if self.burst > 1.0 && self.loss > most {
            let Self { loss, burst, .. } = self;
            return Err(format!(
                "loss {loss}: in bursts of {burst} the most is {most:.6}; give less, or longer bursts"
            ));
        }
        match self.rate {
            Some(rate) if rate < RATE_MIN => Err(format!("rate {rate}: the least is {RATE_MIN}")),
            Some(_) if self.queue < QUEUE_MIN => {
                Err(format!("queue {}: with a rate the least is {QUEUE_MIN}", self.queue))
            }
            _ => Ok(()),
        }
    }

    /// Whether tbf and nftables cannot do this.
    pub(crate) fn needs_emulator(&self) -> bool {
        !self.delay.is_zero() || !self.jitter.is_zero() || self.reorder > 0.0 || self.burst > 1.0
    }
}

/// What happened to the frames of one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fates {
    /// Lost on purpose.
    pub(crate) lost: u64,
    /// Dropped because the queue was full, as the experiment asked.
    pub(crate) queue_drops: u64,
    /// Their bytes.
    pub(crate) queue_drop_bytes: u64,
    /// Most time that a frame waited for its turn, ns.
    pub(crate) queue_max_ns: u64,
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// TCP or UDP.
    Data,
    /// Anything else (ARP, IGMP), which is never lost on purpose, as on links without emulator.
    Upkeep,
}

/// One way of a link, at work.
#[derive(Debug)]
pub(crate) struct Pipe {
    shape: Shape,
    rng: fastrand::Rng,
    /// When the link has sent what it has.
    free_at: Nanos,
    /// When the last frame that keeps its place comes out.
    last_out: Nanos,
    /// Whether the last frame was lost (state of the burst model).
    losing: bool,
    fates: Fates,
}

impl Pipe {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let fates = Fates::default();
        Self { shape, rng, free_at: 0, last_out: 0, losing: false, fates }
    }

    /// From now on.
    pub(crate) fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    pub(crate) fn fates(&self) -> Fates {
        self.fates
    }

    /// When a frame of `bytes` that comes in at `now` comes out; `None` when it does not.
    pub(crate) fn admit(&mut self, now: Nanos, bytes: usize, carries: Carries) -> Option<Nanos> {
        let sent = self.queue(now, bytes)?;
        if carries == Carries::Data && self.loses() {
            self.fates.lost += 1;
            return None;
        }
        let jitter = nanos(self.shape.jitter);
        let jitter = if jitter == 0 { 0 } else { self.rng.u64(0..=jitter) };
        let out = sent + nanos(self.shape.delay) + jitter;
        if self.shape.reorder > 0.0 && self.rng.f64() < self.shape.reorder {
            return Some(out.max(self.last_out) + nanos(HELD_BACK));
        }
        self.last_out = self.last_out.max(out);
        Some(self.last_out)
    }

    /// When the link has sent the frame; `None` when the queue is full.
    fn queue(&mut self, now: Nanos, bytes: usize) -> Option<Nanos> {
        let Some(rate) = self.shape.rate else { return Some(now) };
        let turn = self.free_at.max(now);
        if turn - now > nanos(self.shape.queue) {
            self.fates.queue_drops += 1;
            self.fates.queue_drop_bytes += bytes as u64;
            return None;
        }
        self.fates.queue_max_ns = self.fates.queue_max_ns.max(turn - now);
        self.free_at = turn + rate.time_of(bytes).as_nanos() as u64;
        Some(self.free_at)
    }

    /// Gilbert–Elliott with a good state that loses nothing and a bad one that loses all: the bad one lasts
    /// `burst` frames in the mean, and its share of all frames is `loss`.
    fn loses(&mut self) -> bool {
        let Shape { loss, burst, .. } = self.shape;
        if loss <= 0.0 {
            return false;
        }
        let lose = if burst <= 1.0 {
            loss
        } else if self.losing {
            1.0 - 1.0 / burst
        } else {
            loss / (1.0 - loss) / burst
        };
        self.losing = self.rng.f64() < lose;
        self.losing
    }
}

fn nanos(span: Span) -> Nanos {
    span.0.as_nanos() as Nanos
}

#[cfg(test)]
mod tests {
    use super::{Carries, Pipe, Shape};
    use crate::units::Span;
    use std::time::Duration;

    const FRAME: usize = 1514;

    fn ms(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    #[test]
    fn a_frame_waits_its_turn_and_then_travels() {
        let rate = "100mbit".parse().ok();
        let shape = Shape { rate, delay: ms(10), ..Shape::default() };
        let mut pipe = Pipe::new(shape, 1);
        assert_eq!(pipe.admit(1_000, FRAME, Carries::Data), Some(1_000 + 121_120 + 10_000_000));
        assert_eq!(pipe.admit(1_000, FRAME, Carries::Data), Some(1_000 + 2 * 121_120 + 10_000_000));
        // A pause, and the link is free again.
        assert_eq!(
            pipe.admit(9_000_000, FRAME, Carries::Data),
            Some(9_000_000 + 121_120 + 10_000_000)
        );
    }

    #[test]
    fn a_full_queue_drops_and_says_so() {
        let rate = "100mbit".parse().ok();
        let mut pipe = Pipe::new(Shape { rate, queue: ms(20), ..Shape::default() }, 1);
        let through = (0..1000).filter_map(|_| pipe.admit(0, FRAME, Carries::Data)).count();
        // 20 ms hold 165 frames, and one is under way.
        assert_eq!(through, 166);
        assert_eq!(pipe.fates().queue_drops, 1000 - 166);
        assert_eq!(pipe.fates().queue_drop_bytes, (1000 - 166) * FRAME as u64);
        assert!(pipe.fates().queue_max_ns <= 20_000_000);
    }

    #[test]
    fn losses_come_in_the_share_and_bursts_that_were_asked() {
        for burst in [1.0, 4.0, 10.0] {
            let mut pipe = Pipe::new(Shape { loss: 0.05, burst, ..Shape::default() }, 7);
            let lost: Vec<bool> =
                (0..400_000).map(|_| pipe.admit(0, FRAME, Carries::Data).is_none()).collect();
            let count = lost.iter().filter(|lost| **lost).count();
            let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
            let share = count as f64 / lost.len() as f64;
            assert!((0.045..0.055).contains(&share), "{burst}: {share}");
            // Independent losses at 5 % follow one another now and then: 1 / 0.95.
            let mean = count as f64 / bursts as f64;
            assert!((0.9..1.12).contains(&(mean / burst)), "{burst}: {mean}");
        }
    }

    #[test]
    fn what_keeps_the_network_up_is_not_lost() {
        let mut pipe = Pipe::new(Shape { loss: 1.0, ..Shape::default() }, 1);
        assert_eq!(pipe.admit(0, FRAME, Carries::Data), None);
        assert_eq!(pipe.admit(0, FRAME, Carries::Upkeep), Some(0));
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_does_not() {
        let run = |reorder| {
            let shape = Shape { delay: ms(5), jitter: ms(5), reorder, ..Shape::default() };
            let mut pipe = Pipe::new(shape, 3);
            let out: Vec<_> =
                (0..10_000).filter_map(|i| pipe.admit(i * 10_000, FRAME, Carries::Data)).collect();
            assert!(out.iter().zip(0..).all(|(out, i)| *out >= i * 10_000 + 5_000_000));
            out.windows(2).filter(|pair| pair[1] < pair[0]).count()
        };
        assert_eq!(run(0.0), 0);
        let overtaken = run(0.1);
        assert!((800..1200).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let run = |seed| {
            let shape = Shape { loss: 0.2, burst: 2.0, jitter: ms(3), ..Shape::default() };
            let mut pipe = Pipe::new(shape, seed);
            (0..1000).map(|i| pipe.admit(i, FRAME, Carries::Data)).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
