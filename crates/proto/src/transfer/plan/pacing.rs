//! Whether each connection has a ceiling.

use super::{Facts, Planned, planned};
use crate::units::Rate;
use alloc::format;

/// The ceiling of each; `None`: congestion control alone paces.
pub(super) fn pacing(facts: &Facts<'_>, connections: u16) -> Planned<Option<Rate>> {
    match facts.known.wishes.pacing {
        Some(all) => {
            let each = Rate::from_bps((all.bps() / u64::from(connections)).max(1));
            planned(Some(each), format!("an even share of {all}"))
        }
        None if facts.share.is_some() => {
            planned(None, "what was measured is what the path carried then, not its limit")
        }
        None => planned(None, "congestion control paces by itself"),
    }
}
