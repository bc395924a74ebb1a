//! How a receiver's connections are set, from what is known: each number with the reason for it.
//!
//! A pure function: what the user wished for holds, the rest follows from the round trip. Socket buffers and congestion
//! control are left to the kernel unless the user says otherwise: its autotuning grows a buffer with the path, and
//! a size that is set turns it off.

use super::ranges::DEPTH_MAX;
use crate::time::Duration;
use crate::units::Rate;
use alloc::format;
use alloc::string::{String, ToString};

/// Most connections of one transfer.
pub const CONNECTIONS_MAX: u16 = 64;

/// Connections over a short way, and what is not short.
const CONNECTIONS_NEAR: u16 = 4;
/// Connections over a long way.
pub const CONNECTIONS_FAR: u16 = 8;
const FAR: Duration = Duration::from_millis(5);

/// Asks in a connection's line before it has brought anything.
const DEPTH: usize = 2;

/// What the plan follows from.
#[derive(Clone, Debug)]
pub struct Known {
    /// Round trip of the TCP handshake.
    pub rtt: Duration,
    /// Bytes of one range.
    pub range_len: u64,
    /// Bytes that ranges under way may take.
    pub memory: u64,
    /// What the user said.
    pub wishes: Wishes,
}

/// What the user may say; `None` leaves it to the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// How many connections.
    pub connections: Option<u16>,
    /// Congestion control, by the kernel's name for it.
    pub congestion: Option<String>,
    /// Bytes of each connection's send and receive buffer.
    pub buffer: Option<u64>,
    /// Most of all connections together.
    pub pacing: Option<Rate>,
}

/// A number, and why it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned<T> {
    /// The number.
    pub value: T,
    /// One sentence.
    pub why: String,
}

/// How a transfer's connections are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How many.
    pub connections: Planned<u16>,
    /// Asks in each one's line, at least.
    pub depth: Planned<usize>,
    /// Ranges under way at once, over all of them.
    pub ranges: Planned<usize>,
    /// Congestion control; `None`: the kernel's default.
    pub congestion: Planned<Option<String>>,
    /// Bytes of each one's socket buffers; `None`: autotuned.
    pub buffer: Planned<Option<u64>>,
    /// Most of each one; `None`: congestion control alone paces.
    pub pacing: Planned<Option<Rate>>,
}

fn planned<T>(value: T, why: impl Into<String>) -> Planned<T> {
    Planned { value, why: why.into() }
}

impl Plan {
    /// What is best by what is known.
    pub fn new(known: &Known) -> Self {
        let Known { rtt, wishes, .. } = known;
        let ms = rtt.as_secs_f64() * 1e3;
        let connections = match wishes.connections {
            Some(n) => planned(n.clamp(1, CONNECTIONS_MAX), "as asked for"),
            None if *rtt < FAR => planned(
                CONNECTIONS_NEAR,
                format!(
                    "the round trip of {ms:.1} ms is short: more would only share the processor"
                ),
            ),
            None => planned(
                CONNECTIONS_FAR,
                format!("over {ms:.1} ms a loss shall halve one of several windows only"),
            ),
        };
        let room = usize::try_from(known.memory / known.range_len.max(1)).unwrap_or(usize::MAX);
        let least = usize::from(connections.value);
        let most = usize::from(connections.value) * DEPTH_MAX;
        let ranges = planned(
            room.clamp(least, most.max(least)),
            format!("ranges of {} bytes in {} bytes of memory", known.range_len, known.memory),
        );
        let depth = DEPTH.min(ranges.value / least).max(1);
        let pacing = wishes.pacing.map(|rate| {
            Rate::from_bps(rate.bps() / u64::from(connections.value)).max(Rate::from_bps(1))
        });
        Self {
            depth: planned(
                depth,
                "an answer begins when the one before it ends; more once a round trip holds more",
            ),
            congestion: match &wishes.congestion {
                Some(name) => planned(Some(name.clone()), "as asked for"),
                None => planned(
                    None,
                    "the kernel's default: which is best depends on who shares the path",
                ),
            },
            buffer: match wishes.buffer {
                Some(len) => planned(Some(len), "as asked for: the kernel does not tune it then"),
                None => planned(
                    None,
                    "the kernel's autotuning follows the path, a size that is set does not",
                ),
            },
            pacing: match pacing {
                Some(_) => planned(
                    pacing,
                    format!(
                        "an even share of {}",
                        wishes.pacing.map_or_else(String::new, |rate| rate.to_string())
                    ),
                ),
                None => planned(None, "congestion control paces by itself"),
            },
            connections,
            ranges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONNECTIONS_FAR, CONNECTIONS_MAX, CONNECTIONS_NEAR, Known, Plan, Wishes};
    use crate::time::Duration;
    use crate::units::Rate;
    use alloc::string::ToString;

    fn plan(ms: u64, memory: u64, wishes: Wishes) -> Plan {
        let rtt = Duration::from_millis(ms);
        Plan::new(&Known { rtt, range_len: 2 << 20, memory, wishes })
    }

    #[test]
    fn a_long_way_takes_more_connections() {
        let near = plan(0, 256 << 20, Wishes::default());
        let far = plan(50, 256 << 20, Wishes::default());
        assert_eq!(near.connections.value, CONNECTIONS_NEAR);
        assert_eq!(far.connections.value, CONNECTIONS_FAR);
        assert_eq!(far.ranges.value, 128);
        assert_eq!((far.buffer.value, far.congestion.value, far.pacing.value), (None, None, None));
    }

    #[test]
    fn what_was_asked_for_holds_within_the_limits() {
        let wishes = Wishes {
            connections: Some(5_000),
            congestion: Some("bbr".to_string()),
            buffer: Some(1 << 20),
            pacing: Some(Rate::from_mbps(640)),
        };
        let plan = plan(50, 256 << 20, wishes);
        assert_eq!(plan.connections.value, CONNECTIONS_MAX);
        assert_eq!(plan.congestion.value.as_deref(), Some("bbr"));
        assert_eq!(plan.buffer.value, Some(1 << 20));
        assert_eq!(plan.pacing.value, Some(Rate::from_mbps(10)));
    }

    #[test]
    fn little_memory_shortens_the_lines_not_below_one_range_each() {
        let plan = plan(50, 1, Wishes::default());
        assert_eq!(plan.ranges.value, usize::from(CONNECTIONS_FAR));
        assert_eq!(plan.depth.value, 1);
    }
}
