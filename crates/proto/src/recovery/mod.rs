//! What the sender sends beyond the source: the policy of repair.
//!
//! `parity` is ours: counts of repair symbols that serve every receiver. The papers' are in
//! `profile::recovery`.

mod parity;
mod short;

pub use parity::Parity;
pub use short::LossTable;

use core::fmt;

/// How much repair a block gets.
pub trait Recovery: fmt::Debug + Send {
    /// Repair symbols to plan with a block of `k` source symbols, before anyone has asked.
    /// `last`: so little is left of the session that an answer would be waited for.
    fn proactive(&mut self, k: u16, losses: &LossTable, last: bool) -> u16;

    /// The same where the block shall be there soon: a further round costs who waits for it as much as `round` symbols in
    /// vain would.
    fn prompt(&mut self, k: u16, losses: &LossTable, round: f64) -> u16;

    /// Symbols to send in all, so that a receiver which will lack `count` when the `planned` ones have come is
    /// served, at its loss `share`.
    fn on_need(&mut self, planned: u16, count: u16, share: f64, last: bool) -> u16;

    /// A block of `k` is settled: whether anyone asked for more than was planned.
    fn on_settled(&mut self, k: u16, asked: bool);
}
