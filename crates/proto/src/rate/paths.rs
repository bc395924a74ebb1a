//! The receivers whose answers a controller follows, each with what the controller knows of its path.
//!
//! Invariant: at most [`RECEIVERS_MAX`]; for a new one the least recently heard goes, but never the limiting one.

use super::RECEIVERS_MAX;
use crate::ids::ReceiverId;
use crate::time::Timestamp;
use alloc::collections::BTreeMap;

/// What all paths have in common.
pub(super) trait Heard {
    /// When this receiver answered last.
    fn heard(&self) -> Timestamp;
}

/// Paths by receiver, and whom the rate follows.
#[derive(Debug)]
pub(super) struct Paths<P> {
    pub(super) by_id: BTreeMap<ReceiverId, P>,
    pub(super) limiting: Option<ReceiverId>,
}

impl<P: Heard> Paths<P> {
    pub(super) const fn new() -> Self {
        Self { by_id: BTreeMap::new(), limiting: None }
    }

    /// The receiver's path, made when it is new.
    pub(super) fn entry(&mut self, id: ReceiverId, new: impl FnOnce() -> P) -> &mut P {
        if !self.by_id.contains_key(&id) && self.by_id.len() >= RECEIVERS_MAX {
            let others = self.by_id.iter().filter(|(id, _)| Some(**id) != self.limiting);
            let oldest = others.min_by_key(|(_, path)| path.heard()).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.by_id.remove(&oldest);
            }
        }
        self.by_id.entry(id).or_insert_with(new)
    }

    pub(super) fn remove(&mut self, id: ReceiverId) {
        self.by_id.remove(&id);
        self.limiting = self.limiting.filter(|limiting| *limiting != id);
    }

    /// The path that the rate follows.
    pub(super) fn followed(&self) -> Option<&P> {
        self.limiting.and_then(|id| self.by_id.get(&id))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &P> {
        self.by_id.values()
    }
}
