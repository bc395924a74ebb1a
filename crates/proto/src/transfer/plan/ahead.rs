//! How much is asked for ahead: requests in a connection's line, and ranges under way.

use super::formula::bdp;
use super::{Facts, Planned, planned};
use crate::transfer::ranges::DEPTH_MAX;
use alloc::format;

/// Asks in a connection's line before it has brought anything.
const DEPTH: usize = 2;

/// Ranges under way at once, over all connections.
pub(super) fn ranges(facts: &Facts<'_>, connections: u16) -> Planned<usize> {
    let (len, memory) = (facts.known.range_len.max(1), facts.known.memory);
    let room = usize::try_from(memory / len).unwrap_or(usize::MAX);
    let least = usize::from(connections);
    let value = room.clamp(least, least * DEPTH_MAX);
    planned(value, format!("ranges of {len} bytes in {memory} bytes of memory"))
}

/// Asks in each connection's line, at least.
pub(super) fn depth(facts: &Facts<'_>, connections: u16, ranges: usize) -> Planned<usize> {
    let most = (ranges / usize::from(connections).max(1)).max(1);
    let under_way = facts.rtt.zip(facts.share).map(|(rtt, rate)| bdp(rate, rtt));
    let each = under_way.map(|bytes| bytes / u64::from(connections.max(1)));
    let asks = each.map(|bytes| bytes.div_ceil(facts.known.range_len.max(1)).saturating_add(1));
    match asks.map(|asks| usize::try_from(asks).unwrap_or(DEPTH_MAX).min(DEPTH_MAX)) {
        Some(asks) if asks > DEPTH => {
            let why = format!("a round trip holds {} bytes of each connection", each.unwrap_or(0));
            planned(asks.min(most), why)
        }
        _ => {
            let why =
                "an answer begins when the one before it ends; more once a round trip holds more";
            planned(DEPTH.min(most), why)
        }
    }
}
