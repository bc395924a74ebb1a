//! All deadlines of a machine, in one named table, after quinn's `timer.rs`.
//!
//! The next wake-up is the earliest of them and says why. Each machine's `handle_timeout` is the index of
//! everything that happens by time alone.

use crate::time::Timestamp;

/// Why a machine wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The pacer lets the next burst go.
    Pace,
    /// The next poll is due.
    Poll,
    /// A member's repair advertisement may be sent again.
    Advert,
    /// An open block may have been settled.
    Settle,
    /// Members are looked over: stragglers, silence, return.
    Review,
    /// A NACK's back-off ends.
    Nack,
    /// Nothing has been heard of the stream for too long.
    Silence,
    /// A pull that failed may be tried again.
    Pull,
    /// The sender has to be shown again where we are.
    Greet,
}

impl Reason {
    const COUNT: usize = Self::Greet as usize + 1;
    const ALL: [Self; Self::COUNT] = [
        Self::Pace,
        Self::Poll,
        Self::Advert,
        Self::Settle,
        Self::Review,
        Self::Nack,
        Self::Silence,
        Self::Pull,
        Self::Greet,
    ];
}

/// When a machine wants to be woken, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Not before this.
    pub at: Timestamp,
    /// The earliest reason.
    pub reason: Reason,
}

/// The deadlines that are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimerTable([Option<Timestamp>; Reason::COUNT]);

impl TimerTable {
    pub(crate) const fn set(&mut self, reason: Reason, at: Timestamp) {
        self.0[reason as usize] = Some(at);
    }

    /// Sets it unless it is already due sooner.
    pub(crate) fn set_earlier(&mut self, reason: Reason, at: Timestamp) {
        let slot = &mut self.0[reason as usize];
        *slot = Some(slot.map_or(at, |old| old.min(at)));
    }

    pub(crate) const fn stop(&mut self, reason: Reason) {
        self.0[reason as usize] = None;
    }

    /// When it is due.
    pub(crate) const fn at(&self, reason: Reason) -> Option<Timestamp> {
        self.0[reason as usize]
    }

    pub(crate) const fn is_set(&self, reason: Reason) -> bool {
        self.0[reason as usize].is_some()
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Deadline> {
        Reason::ALL
            .into_iter()
            .filter_map(|reason| self.0[reason as usize].map(|at| Deadline { at, reason }))
            .min_by_key(|d| d.at)
    }

    /// Takes one reason that is due, or `None`.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Option<Reason> {
        let due = self.next().filter(|d| d.at <= now)?;
        self.stop(due.reason);
        Some(due.reason)
    }
}
