//! What a receiver keeps of its shelf when it loses its sender, so that the next one goes on from there.

use std::sync::{Arc, OnceLock};

/// How far a receiver has got in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bookmark {
    /// The first block of which not everything has been given on.
    pub block: u32,
    /// Number of the product that comes next, where it is known.
    pub number: Option<u64>,
    /// How many have come.
    pub complete: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Which have failed, and why.
    pub failed: Vec<(String, String)>,
    /// Some have come that no clerk sees to.
    pub unattended: bool,
    /// Why what has come may not be on the disk: also what is known only after the mark was made, by a sync that lasts.
    pub unsynced: Arc<OnceLock<String>>,
}

impl Bookmark {
    /// Of who has just come: the first product of all comes next, or it is not known which.
    pub(super) fn new(first: u32) -> Self {
        Self { block: first, number: (first == 0).then_some(0), ..Self::default() }
    }
}
