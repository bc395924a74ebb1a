//! How many connections: as few as fill the path.

use super::formula::{bdp, loss_bound};
use super::{Facts, Planned, planned};
use crate::time::Duration;
use crate::units::Rate;
use alloc::format;
use alloc::string::String;

/// Most connections of one transfer.
pub const CONNECTIONS_MAX: u16 = 64;
/// Over a short way, and beside other transfers.
pub(super) const CONNECTIONS_NEAR: u16 = 4;
/// Over a long way.
pub const CONNECTIONS_FAR: u16 = 10;
/// Most that are planned for loss or small buffers: beyond, each takes from the others and from who shares the path.
pub(super) const CONNECTIONS_PLANNED_MAX: u16 = 32;
/// A long way.
const FAR: Duration = Duration::from_millis(5);

/// Without loss, and with buffers that suffice.
pub(super) fn base(facts: &Facts<'_>) -> u16 {
    match facts.rtt {
        Some(rtt) if rtt >= FAR && facts.known.beside == 0 => CONNECTIONS_FAR,
        _ => CONNECTIONS_NEAR,
    }
}

/// The number; `bound` is what loss leaves to each of them, if it holds them.
pub(super) fn connections(facts: &Facts<'_>, bound: Option<Rate>) -> Planned<u16> {
    if let Some(n) = facts.known.wishes.connections {
        return planned(n.clamp(1, CONNECTIONS_MAX), "as asked for");
    }
    let least = base(facts);
    let (Some(rtt), Some(rate)) = (facts.rtt, facts.share) else {
        return planned(least, unmeasured(facts));
    };
    let by_loss = bound.map_or(1, |bound| parts(rate.bps(), bound.bps()));
    let by_room = facts.reach.map_or(1, |reach| parts(bdp(rate, rtt), reach));
    let n = least.max(by_loss).max(by_room);
    let why = match (bound, facts.reach) {
        (Some(bound), _) if n > least && by_loss >= by_room => {
            format!("loss leaves {bound} of {rate} to each")
        }
        (_, Some(reach)) if n > least => {
            let hold = bdp(rate, rtt);
            format!("{rate} hold {hold} bytes under way, a connection's buffers reach {reach}")
        }
        _ => unmeasured(facts),
    };
    planned(n, why)
}

/// What one connection may reach, given the default congestion control or the one that was chosen.
pub(super) fn held_by_loss(facts: &Facts<'_>, congestion: Option<&str>) -> Option<Rate> {
    let control = congestion.or(facts.known.sender.congestion_default()).unwrap_or("");
    if control.starts_with("bbr") {
        return None;
    }
    loss_bound(facts.rtt?, facts.loss?)
}

fn parts(whole: u64, part: u64) -> u16 {
    let parts = whole.div_ceil(part.max(1)).min(CONNECTIONS_PLANNED_MAX.into());
    u16::try_from(parts).unwrap_or(CONNECTIONS_PLANNED_MAX)
}

fn unmeasured(facts: &Facts<'_>) -> String {
    match (facts.rtt, facts.known.beside) {
        (None, _) => "the round trip is not known".into(),
        (Some(rtt), _) if rtt < FAR => {
            let ms = rtt.as_secs_f64() * 1e3;
            format!("the round trip of {ms:.1} ms is short: more would only share the processor")
        }
        (_, 0) => {
            let ms = facts.rtt.unwrap_or_default().as_secs_f64() * 1e3;
            format!("over {ms:.1} ms a loss shall halve one of several windows only")
        }
        (_, beside) => format!("{beside} other transfers on the path bring their own"),
    }
}
