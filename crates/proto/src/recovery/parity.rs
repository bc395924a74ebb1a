//! Hybrid ARQ by parity (`docs/protocol.md#REP`).
//!
//! 1. A block gets proactive repair for the losses known, so that about one receiver is still short.
//! 2. The plan is steered: when blocks settle without anyone asking it shrinks, when someone asks it grows, so
//!    that a block draws a NACK in about [`ASK_TARGET`] of the cases. Bursts and wrong estimates are
//!    taken up by this.
//! 3. A NACK by count is answered with what it lacks and what of that is likely to be lost.
//!
//! Repair indices end at [`REPAIR_SYMBOLS_MAX`]: a receiver that needs more pulls.

use super::{LossTable, Recovery};
use crate::ids::{BLOCK_SYMBOLS_MAX, REPAIR_SYMBOLS_MAX};

/// Receivers that may still be short after proactive repair.
const SHORT_TARGET: f64 = 0.9;

/// The same where so little is left that an answer would be waited for: 99 % complete.
const SHORT_TARGET_LAST: f64 = 0.01;

/// Share of blocks that shall draw a NACK. Less would send parity that nobody needs, more costs rounds.
const ASK_TARGET: f64 = 0.6;

/// Steering step of a full block, in standard deviations of a block's losses: at first, and least. It halves at each
/// turn, so that a group whose receivers lose the same (behind shared edges) is not sent what a thousand independent
/// ones would need for long. A smaller block's is smaller in proportion: a block settles a time after its plan was
/// made, and the steps of all that are under way meanwhile must not add up to more than those of a few full ones.
const STEP_FIRST: f64 = 0.6;
const STEP: f64 = 0.15;

/// The steering moves the plan by at most this many standard deviations.
const OFFSET_MAX: f64 = 8.0;

/// The policy of profile `auto`.
#[derive(Clone, Debug)]
pub struct Parity {
    /// Added to the modelled repair, in standard deviations of a block's losses.
    offset: f64,
    step: f64,
    /// The last settled block had been asked for.
    asked: bool,
    /// Loss was seen when the last plan was made; without it there is nothing to steer.
    lossy: bool,
}

impl Default for Parity {
    fn default() -> Self {
        Self { offset: 0.0, step: STEP_FIRST, asked: false, lossy: false }
    }
}

impl Recovery for Parity {
    fn proactive(&mut self, k: u16, losses: &LossTable, last: bool) -> u16 {
        let receivers = losses.receivers();
        let target = if last { SHORT_TARGET_LAST } else { SHORT_TARGET.min(receivers * 0.5) };
        let modelled = losses.repair_for(k, target, REPAIR_SYMBOLS_MAX);
        self.lossy = modelled > 0;
        if !self.lossy {
            return 0;
        }
        let deviation = libm::sqrt(f64::from(modelled));
        let steered = f64::from(modelled) + self.offset * deviation;
        (libm::round(steered).max(0.0) as u16).min(REPAIR_SYMBOLS_MAX)
    }

    fn prompt(&mut self, k: u16, losses: &LossTable, round: f64) -> u16 {
        losses.repair_worth(k, round, REPAIR_SYMBOLS_MAX)
    }

    fn on_need(&mut self, planned: u16, count: u16, share: f64, last: bool) -> u16 {
        let count = f64::from(count);
        let share = share.min(0.9);
        let expected = count / (1.0 - share);
        // In the end game a further round costs more than a few symbols.
        let spare = if last { 1.0 + 2.3 * libm::sqrt(expected * share) } else { 0.0 };
        planned.saturating_add(libm::ceil(expected + spare) as u16)
    }

    fn on_settled(&mut self, k: u16, asked: bool) {
        // Small blocks say little about the plan of full ones.
        if !self.lossy || k < 64 {
            return;
        }
        if asked != self.asked {
            self.step = (0.5 * self.step).max(STEP);
        }
        self.asked = asked;
        let turn = if asked { 1.0 - ASK_TARGET } else { -ASK_TARGET };
        let step = self.step * f64::from(k) / f64::from(BLOCK_SYMBOLS_MAX);
        self.offset = (self.offset + step * turn).clamp(-OFFSET_MAX, OFFSET_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::{ASK_TARGET, Parity};
    use crate::recovery::{LossTable, Recovery};
    use crate::rng::Rng;
    use alloc::collections::VecDeque;

    /// 300 × 1024 symbols to `receivers` with independent loss `p`, in blocks of `k` of which `open` are sent before
    /// the first has settled; returns (symbols / source, share asked).
    fn run(k: u16, open: usize, receivers: u32, p: [f64; 2], seed: u64) -> (f64, f64) {
        let (mut parity, mut rng) = (Parity::default(), Rng::new(seed));
        let [p, believed] = p;
        let mut table = LossTable::default();
        table.add(believed, f64::from(receivers));
        let (mut sent, mut asked) = (0u32, 0u32);
        let blocks = 300 * 1024 / u32::from(k);
        let mut settling = VecDeque::new();
        for _ in 0..blocks {
            let planned = k + parity.proactive(k, &table, false);
            let needed = (0..receivers)
                .map(|_| {
                    let (mut n, mut got) = (0u16, 0u16);
                    while got < k {
                        n += 1;
                        got += u16::from(rng.unit() >= p);
                    }
                    n
                })
                .max()
                .unwrap();
            sent += u32::from(needed.max(planned));
            asked += u32::from(needed > planned);
            settling.push_back(needed > planned);
            if settling.len() >= open {
                parity.on_settled(k, settling.pop_front().unwrap());
            }
        }
        (f64::from(sent) / f64::from(u32::from(k) * blocks), f64::from(asked) / f64::from(blocks))
    }

    #[test]
    fn sends_little_more_than_the_worst_receiver_needs() {
        // DESIGN 3.1: 1.052 (1 receiver), 1.063 (8), 1.066 (16) at 5 %, exact feedback.
        for (receivers, floor) in [(1, 1.0526), (8, 1.0635), (16, 1.0665)] {
            let (ratio, asked) = run(1024, 1, receivers, [0.05, 0.05], 3);
            assert!(ratio < floor + 0.004, "{receivers}: {ratio}");
            assert!((asked - ASK_TARGET).abs() < 0.12, "{receivers}: asked {asked}");
        }
    }

    #[test]
    fn a_wrong_estimate_is_steered_out() {
        let (ratio, asked) = run(1024, 1, 8, [0.05, 0.03], 5);
        assert!(ratio < 1.068, "{ratio}");
        assert!(asked < 0.8, "asked {asked}");
        let (ratio, _) = run(1024, 1, 8, [0.05, 0.07], 5);
        assert!(ratio < 1.075, "{ratio}");
    }

    #[test]
    fn small_blocks_under_way_by_the_hundred_do_not_make_the_plan_swing() {
        // The same bytes are under way in both. The floor, each receiver told exactly: 1.0633 and 1.0840.
        let (large, _) = run(1024, 14, 8, [0.05, 0.05], 7);
        let (small, asked) = run(128, 14 * 8, 8, [0.05, 0.05], 7);
        assert!(large < 1.0633 + 0.004, "{large}");
        assert!(small < 1.0840 + 0.005, "{small}");
        assert!((asked - ASK_TARGET).abs() < 0.12, "asked {asked}");
    }

    #[test]
    fn a_nack_is_answered_with_what_of_it_will_be_lost() {
        let mut parity = Parity::default();
        assert_eq!(parity.on_need(1087, 1, 0.05, false), 1089);
        assert_eq!(parity.on_need(1087, 10, 0.0, false), 1097);
        assert!(parity.on_need(1087, 10, 0.05, true) > 1098);
    }
}
