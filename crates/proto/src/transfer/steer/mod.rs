//! The closed loop: what is changed on a link's connections while a transfer runs, and why.
//!
//! A [`Steer`] has the links of one endpoint. Each time that something was seen of a link ([`Seen`]: what came, and what
//! TCP told), [`Steer::look`] answers with a [`Decision`] when there is one: what binds ([`Binding`]), how many
//! connections, how they are paced, and one sentence why. Contract: spans of one link follow one another; a decision
//! holds from when it is given; `now` never goes back.
//!
//! | file | does |
//! | --- | --- |
//! | `seen` | what was seen, and what binds |
//! | `climb` | one link's search: trials that are kept or taken back |
//! | `memory` | what outlives a transfer |
//! | `uplink` | what a sender tells each receiver of the others |
//!
//! Links of one endpoint are decided jointly: one of them tries at a time, and what the others lost meanwhile counts
//! against it. Who is not looked at for [`TURN_TIME`] does not keep the others from trying, and takes back what it tried.
//! Nothing has to be known, or guessed from correlations, of who shares which path: what is taken from a sibling is no
//! gain, whatever the reason. What the sender tells of the links that it has to others ([`Steer::told`]) counts as one
//! more sibling, which tries when the turn is another's.
//!
//! Deliberately absent: files and failures. What a disk, a quota or a proxy refuses is the dispatcher's affair, and does
//! not change what a link can carry.

mod climb;
mod memory;
mod seen;
mod uplink;

pub use memory::Memory;
pub use seen::{Binding, Held, Seen};
pub use uplink::{Beside, TURN_MAX, TURN_TIME, Uplink};

use crate::time::Timestamp;
use crate::units::Rate;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use climb::{Climb, May, Others};

/// Links that are steered at once; more are left as they were planned.
pub const LINKS_MAX: usize = 256;

/// What may be chosen for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections to begin with, when nothing is remembered.
    pub first: u16,
    /// Fewest, and most. Where they are the same nothing is changed.
    pub least: u16,
    /// See `least`.
    pub most: u16,
    /// Never more than this, of all connections together.
    pub ceiling: Option<Rate>,
}

impl Limits {
    /// The number of connections was decided by somebody else.
    pub const fn is_fixed(&self) -> bool {
        self.least == self.most
    }
}

/// What is in force on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Connections.
    pub connections: u16,
    /// Most of all of them together; `None`: congestion control alone.
    pub pacing: Option<Rate>,
}

impl Setting {
    /// What is set first on the way from here to `to`: connections end an eighth at a time, so that the others have taken
    /// over what those carried before the next ones end.
    pub fn step(self, to: Self) -> Self {
        let fewest = self.connections - (self.connections / 8).max(1).min(self.connections);
        Self { connections: to.connections.max(fewest), ..to }
    }

    fn show(self) -> String {
        let Self { connections, pacing } = self;
        let s = if connections == 1 { "" } else { "s" };
        match pacing {
            Some(rate) => format!("{connections} connection{s} paced to {rate}"),
            None => format!("{connections} connection{s}"),
        }
    }
}

/// A link of a [`Steer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Of which link.
    pub link: LinkId,
    /// What is in force from now on.
    pub setting: Setting,
    /// What binds.
    pub binding: Binding,
    /// What the setting before brought.
    pub rate: Rate,
    /// The share of it that was sent again.
    pub loss: f64,
    /// One sentence.
    pub why: String,
}

#[derive(Debug)]
struct Link {
    climb: Climb,
    /// When it was last looked at.
    looked: Timestamp,
    bytes: u64,
    beside: Option<Beside>,
}

/// The links of an endpoint.
#[derive(Debug, Default)]
pub struct Steer {
    links: BTreeMap<LinkId, Link>,
    last: u64,
    generation: u64,
}

impl Steer {
    /// A transfer over a link begins. What is to be in force at first; `None`: there are too many.
    pub fn begin(&mut self, limits: Limits, memory: Option<&Memory>) -> Option<(LinkId, Setting)> {
        if self.links.len() >= LINKS_MAX {
            return None;
        }
        self.last += 1;
        self.generation += 1;
        let climb = Climb::new(limits, memory);
        let setting = climb.setting();
        let looked = Timestamp::ZERO;
        self.links.insert(LinkId(self.last), Link { climb, looked, bytes: 0, beside: None });
        Some((LinkId(self.last), setting))
    }

    /// It ended. What is to be remembered of the link.
    pub fn end(&mut self, link: LinkId) -> Option<Memory> {
        self.generation += 1;
        self.links.remove(&link)?.climb.memory()
    }

    /// What would be remembered of a link now.
    pub fn memory(&self, link: LinkId) -> Option<Memory> {
        self.links.get(&link)?.climb.memory()
    }

    /// What is in force on a link.
    pub fn setting(&self, link: LinkId) -> Option<Setting> {
        Some(self.links.get(&link)?.climb.setting())
    }

    /// Whether something is being tried on a link, or would be if it might: the sender is asked for the turn.
    pub fn wants(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.climb.wants())
    }

    /// What the sender of `link` tells of its others, when it was asked just now with [`Self::wants`]; `None`: nothing.
    pub fn told(&mut self, link: LinkId, beside: Option<Beside>) {
        if let Some(link) = self.links.get_mut(&link) {
            link.beside = beside;
        }
    }

    /// This was seen of `link` since the last time. What is to change, and why.
    pub fn look(&mut self, now: Timestamp, link: LinkId, seen: &Seen) -> Option<Decision> {
        let theirs = |(id, _): &(&LinkId, &Link)| **id != link;
        let bytes = self.links.iter().filter(theirs).map(|(_, other)| other.bytes).sum();
        let is_idle = |link: &Link| now.since(link.looked) >= TURN_TIME;
        let tries = |link: &Link| link.climb.is_trying() && !is_idle(link);
        let tries = self.links.iter().filter(theirs).any(|(_, other)| tries(other));
        let mut others = Others { bytes, generation: self.generation, told: 0 };
        let own = self.links.get_mut(&link)?;
        own.bytes += seen.bytes;
        let was_idle = is_idle(own);
        own.looked = now;
        if let Some(beside) = own.beside {
            // What is told may be any number. Told or not told: not the same others.
            others.bytes = others.bytes.saturating_add(beside.bytes);
            others.told = beside.others;
            others.generation = others.generation.wrapping_add(beside.changes).wrapping_add(1);
        }
        let may = match own.beside.filter(|beside| beside.others > 0) {
            _ if tries => May::Wait,
            Some(beside) if !beside.turn => May::Wait,
            Some(_) if own.climb.is_trying() || !own.climb.wants() => May::Ask,
            _ => May::Try,
        };
        let back = if was_idle { own.climb.give_up() } else { None };
        let turn = back.or_else(|| own.climb.look(now, seen, others, may))?;
        Some(Decision {
            link,
            setting: own.climb.setting(),
            binding: turn.binding,
            rate: Rate::from_bps((turn.rate * 8.0) as u64),
            loss: turn.loss,
            why: turn.why,
        })
    }
}

#[cfg(test)]
mod tests;
