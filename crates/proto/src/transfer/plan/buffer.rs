//! Socket buffers: left to the kernel's autotuning unless a size that is set does better.
//!
//! A size that is set turns autotuning off at that end, so it is set only when autotuning ends below what a connection's
//! share of the path holds, and a set size may be greater than where it ends; or when a policy says so.

use super::formula::bdp;
use super::host::Room;
use super::policy::Policy;
use super::{Facts, Planned, planned};
use alloc::format;
use alloc::string::String;

/// A buffer below this would stall on single records of TLS.
const LEN_MIN: u64 = 32 << 10;
/// A queue as long as the path itself may stand before a loss is seen.
const WITH_QUEUE: u64 = 2;

/// The size to set at this end; `None`: autotuned.
pub(super) fn buffer(
    facts: &Facts<'_>,
    (side, room): (&str, Room),
    connections: u16,
) -> Planned<Option<u64>> {
    if let Some(len) = facts.known.wishes.buffer {
        return within(len, room, side, "as asked for: the kernel does not tune it then");
    }
    let (Some(rtt), Some(rate)) = (facts.rtt, facts.share) else {
        return planned(None, unknown(facts));
    };
    let need = bdp(rate, rtt).div_ceil(connections.max(1).into());
    let ms = rtt.as_secs_f64() * 1e3;
    if let Policy::Bdp(times) = facts.known.wishes.policy {
        let why = format!("{times} × {rate} × {ms:.1} ms / {connections} connections");
        return within((need * u64::from(times)).max(LEN_MIN), room, side, &why);
    }
    let share = format!("each connection's share of {rate} × {ms:.1} ms is {need} bytes");
    match (room.tuned, room.set) {
        (None, _) => {
            planned(None, format!("{share}; how far the {side}'s autotuning goes is not known"))
        }
        (Some(tuned), _) if tuned >= need => {
            planned(None, format!("{share}, and the {side}'s autotuning goes to {tuned}"))
        }
        (Some(tuned), Some(set)) if set > tuned => {
            let why = format!("{share}, and the {side}'s autotuning ends at {tuned}");
            within(need.saturating_mul(WITH_QUEUE), room, side, &why)
        }
        (Some(tuned), _) => planned(
            None,
            format!(
                "{share}; the {side}'s autotuning ends at {tuned}, and a set size may not be more"
            ),
        ),
    }
}

/// As much of `len` as the kernel grants.
fn within(len: u64, room: Room, side: &str, why: &str) -> Planned<Option<u64>> {
    match room.set {
        Some(max) if len > max => {
            planned(Some(max), format!("{why}; {len} bytes, but the {side}'s kernel grants {max}"))
        }
        _ => planned(Some(len), why),
    }
}

fn unknown(facts: &Facts<'_>) -> String {
    let auto = "the kernel's autotuning follows the path, a size that is set does not";
    match facts.known.wishes.policy {
        Policy::Auto => auto.into(),
        policy => {
            let lacks = if facts.rtt.is_none() { "round trip" } else { "throughput" };
            format!("{policy} needs the path's {lacks}, which is not known: autotuned")
        }
    }
}
