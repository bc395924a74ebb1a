//! The life cycle of a file: states, allowed transitions, reasons for not moving.
//!
//! ```text
//! found ─▶ settled ─▶ hashed ─▶ queued ─▶ sending ─▶ sent ─▶ verified ─▶ receipted
//!                                  ▲         adopted (lies where it should) ──▶ queued
//!                                  └──── receipted, when a replica was lost and is sent again
//! any of the first seven ─▶ waiting (reason, next try) ─▶ found, settled, hashed or queued
//!                        ─▶ quarantined ─▶ the same;     ─▶ cancelled
//! ```
//!
//! The life cycle is data: [`TRANSITIONS`] is the one table, and whoever changes a state asks it. It is
//! drawn for operators in `docs/catalog.md`; a test compares the two.
//!
//! Invariants: a file waits where it can start again ([`State::resume`]); each file that is neither moving
//! nor ended has exactly one [`Reason`].

use crate::code::coded;

coded! {
    /// Where a file stands. The numbers are stored: they are never given another meaning.
    pub enum State: "state" {
        /// Seen in the spool; it may still be written.
        Found = 1 "found",
        /// Complete at its source.
        Settled = 2 "settled",
        /// Its digests are known.
        Hashed = 3 "hashed",
        /// Ready to be sent.
        Queued = 4 "queued",
        /// A daemon holds the lease and moves it.
        Sending = 5 "sending",
        /// All bytes are said to be at the destination.
        Sent = 6 "sent",
        /// The destination has read the bytes back and found the digest.
        Verified = 7 "verified",
        /// The destination's signed receipt is in the catalog. An end.
        Receipted = 8 "receipted",
        /// Tried again later.
        Waiting = 9 "waiting",
        /// Set apart, because the fault is the file's own; released by hand or by rule.
        Quarantined = 10 "quarantined",
        /// Given up, by an operator or because what it was is gone. An end.
        Cancelled = 11 "cancelled",
        /// Taken in as it lies, nothing to move. An end, until it is queued.
        Adopted = 12 "adopted",
    }
}

coded! {
    /// Why a file does not move.
    pub enum Reason: "reason" {
        /// It may still be written.
        Settling = 1 "settling",
        /// Its digests are to be computed.
        ToHash = 2 "to-hash",
        /// No rule has queued it yet.
        ToQueue = 3 "to-queue",
        /// Others are before it.
        Turn = 4 "turn",
        /// The destination is to verify it.
        ToVerify = 5 "to-verify",
        /// The receipt is on its way.
        ToReceipt = 6 "to-receipt",
        /// The last attempt failed; the error class says how.
        BackOff = 7 "back-off",
        /// The link's circuit breaker is open. Not recorded: told of what is queued.
        Breaker = 8 "breaker",
        /// The destination has no room.
        NoSpace = 9 "no-space",
        /// An operator closed its link. Not recorded: told of what is queued.
        Paused = 10 "paused",
        /// Set apart for its error class.
        Quarantine = 11 "quarantine",
    }
}

use State::{
    Adopted, Cancelled, Found, Hashed, Quarantined, Queued, Receipted, Sending, Sent, Settled,
    Verified, Waiting,
};

/// From each state, where it may go. Nothing else is ever written.
pub const TRANSITIONS: [(State, &[State]); 12] = [
    (Found, &[Settled, Waiting, Quarantined, Cancelled]),
    (Settled, &[Hashed, Waiting, Quarantined, Cancelled]),
    (Hashed, &[Queued, Waiting, Quarantined, Cancelled]),
    (Queued, &[Sending, Waiting, Quarantined, Cancelled]),
    (Sending, &[Sent, Waiting, Quarantined, Cancelled]),
    (Sent, &[Verified, Waiting, Quarantined, Cancelled]),
    (Verified, &[Receipted, Waiting, Quarantined, Cancelled]),
    (Receipted, &[Queued]),
    (Waiting, &[Found, Settled, Hashed, Queued, Quarantined, Cancelled]),
    (Quarantined, &[Found, Settled, Hashed, Queued, Cancelled]),
    (Cancelled, &[]),
    (Adopted, &[Queued]),
];

impl State {
    /// Whether a file may go from here to `to`.
    pub fn allows(self, to: Self) -> bool {
        TRANSITIONS[self as usize - 1].1.contains(&to)
    }

    /// Where a file that fails in this state starts again. For one that waits already: where it stands.
    pub const fn resume(self) -> Self {
        match self {
            Found | Settled | Hashed => self,
            _ => Queued,
        }
    }

    /// Whether nothing more is to be done: the file is in the history, not in the live queue.
    pub const fn is_end(self) -> bool {
        matches!(self, Receipted | Cancelled | Adopted)
    }

    /// Whether a daemon holds a lease on a file in this state.
    pub const fn is_leased(self) -> bool {
        matches!(self, Sending | Sent | Verified)
    }

    /// Why a file in this state does not move, unless something more special is known. `None` while it
    /// moves, at an end, and for `waiting`, which must say.
    pub const fn reason(self) -> Option<Reason> {
        Some(match self {
            Found => Reason::Settling,
            Settled => Reason::ToHash,
            Hashed => Reason::ToQueue,
            Queued => Reason::Turn,
            Sent => Reason::ToVerify,
            Verified => Reason::ToReceipt,
            Quarantined => Reason::Quarantine,
            Sending | Waiting | Receipted | Cancelled | Adopted => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{State, TRANSITIONS};
    use std::fmt::Write as _;

    #[test]
    fn the_table_has_each_state_at_its_place() {
        assert_eq!(TRANSITIONS.len(), State::ALL.len());
        for (index, (state, next)) in TRANSITIONS.iter().enumerate() {
            assert_eq!(*state as usize, index + 1);
            assert!(!next.contains(state), "{state} to itself");
            assert!(state.reason().is_none() || !state.is_end());
        }
    }

    #[test]
    fn whatever_waits_can_go_where_it_resumes() {
        for (state, next) in TRANSITIONS {
            if next.contains(&State::Waiting) && state != State::Waiting {
                assert!(State::Waiting.allows(state.resume()), "{state}");
                assert!(State::Quarantined.allows(state.resume()), "{state}");
            }
        }
    }

    #[test]
    fn every_state_but_the_cancelled_reaches_a_receipt() {
        for (from, _) in TRANSITIONS.iter().filter(|(state, _)| *state != State::Cancelled) {
            let mut reached = vec![*from];
            let mut at = 0;
            while at < reached.len() {
                for next in TRANSITIONS[reached[at] as usize - 1].1 {
                    if !reached.contains(next) {
                        reached.push(*next);
                    }
                }
                at += 1;
            }
            assert!(reached.contains(&State::Receipted), "{from}");
        }
    }

    /// The operators' page shows this very table.
    #[test]
    fn the_page_draws_the_table() {
        let mut drawn = String::from("| from | to |\n| --- | --- |\n");
        for (from, next) in TRANSITIONS {
            let next: Vec<_> = next.iter().map(|state| state.name()).collect();
            let next = if next.is_empty() { "(end)".to_owned() } else { next.join(", ") };
            writeln!(drawn, "| {from} | {next} |").unwrap();
        }
        let page = include_str!("../../../docs/catalog.md");
        assert!(page.contains(&drawn), "docs/catalog.md should hold:\n{drawn}");
    }
}
