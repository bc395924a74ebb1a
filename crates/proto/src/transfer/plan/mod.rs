//! How a transfer is set up, from what is known: each number with the reason for it.
//!
//! A pure function: what was measured of the path, what the two kernels allow, and what the user wishes, to a [`Plan`].
//! One file for each decision. What is wished for holds, as far as the kernel grants it; what is not known is not made up:
//! without a figure a number stays at what is good for most paths, or with the kernel. Nothing is set that does not help.
//!
//! 1. `congestion`, and what loss leaves to one connection under it;
//! 2. `connections`, as few as fill the path in spite of loss and of the kernels' limits;
//! 3. `buffer` of both ends, `ahead` and `pacing`, for each connection's share;
//! 4. `path`, and what the whole is `expected` to bring.
//!
//! Deliberately absent: reading limits of a machine, and what is learnt while the transfer runs.

mod ahead;
mod buffer;
mod congestion;
mod connections;
mod expected;
mod formula;
mod host;
mod pacing;
mod path;
mod policy;

pub use connections::{CONNECTIONS_FAR, CONNECTIONS_MAX};
pub use formula::{bdp, loss_bound};
pub use host::{Host, Room, is_congestion, three};
pub use path::Carrier;
pub use policy::{NoPolicy, Policy};

use super::measured::{Figure, Measured};
use crate::time::Duration;
use crate::units::Rate;
use alloc::format;
use alloc::string::String;

/// What the plan follows from.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Of the path, in the direction of the bytes.
    pub measured: Measured,
    /// The sender's kernel.
    pub sender: Host,
    /// The receiver's kernel.
    pub receiver: Host,
    /// Other transfers that run on this path.
    pub beside: u16,
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
    /// Which path the blocks take.
    pub path: Option<Carrier>,
    /// How many connections.
    pub connections: Option<u16>,
    /// Congestion control, by the kernel's name for it.
    pub congestion: Option<String>,
    /// Bytes of each connection's send and receive buffer.
    pub buffer: Option<u64>,
    /// Most of all connections together.
    pub pacing: Option<Rate>,
    /// By which rule buffers are planned whose size is not said.
    pub policy: Policy,
}

/// A number, and why it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned<T> {
    /// The number.
    pub value: T,
    /// One sentence.
    pub why: String,
}

/// How a transfer is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which path the blocks take.
    pub path: Planned<Carrier>,
    /// How many connections.
    pub connections: Planned<u16>,
    /// Asks in each one's line, at least.
    pub depth: Planned<usize>,
    /// Ranges under way at once, over all of them.
    pub ranges: Planned<usize>,
    /// Congestion control; `None`: the kernel's default.
    pub congestion: Planned<Option<String>>,
    /// Bytes of each one's buffer at the sender; `None`: autotuned.
    pub send_buffer: Planned<Option<u64>>,
    /// Bytes of each one's buffer at the receiver; `None`: autotuned.
    pub receive_buffer: Planned<Option<u64>>,
    /// Most of each one; `None`: congestion control alone paces.
    pub pacing: Planned<Option<Rate>>,
    /// What all of it is expected to bring; `None`: nobody can say.
    pub expected: Planned<Option<Rate>>,
}

fn planned<T>(value: T, why: impl Into<String>) -> Planned<T> {
    Planned { value, why: why.into() }
}

fn per_cent(share: f64) -> String {
    format!("{} %", (share * 1e8 + 0.5) as u64 as f64 / 1e6)
}

/// What is known, as the decisions want it.
struct Facts<'a> {
    known: &'a Known,
    rtt: Option<Duration>,
    loss: Option<f64>,
    /// Of what the path carries, this transfer's part.
    share: Option<Rate>,
    /// Bytes under way that one connection's buffers can hold, as far as that is known.
    reach: Option<u64>,
}

impl<'a> Facts<'a> {
    fn of(known: &'a Known) -> Self {
        let Measured { throughput, rtt, loss } = &known.measured;
        let share = |figure: &Figure<Rate>| {
            let bps = figure.value.bps() / (u64::from(known.beside) + 1);
            (bps > 0).then(|| Rate::from_bps(bps))
        };
        let rooms = [known.sender.sending(), known.receiver.receiving()];
        let reach = |room: Room| match known.wishes.buffer {
            Some(len) => Some(room.set.map_or(len, |set| len.min(set))),
            None => room.most(),
        };
        Self {
            known,
            rtt: rtt.as_ref().map(|figure| figure.value),
            loss: loss.as_ref().map(|figure| figure.value).filter(|loss| (0.0..1.0).contains(loss)),
            share: throughput.as_ref().and_then(share),
            reach: rooms.into_iter().filter_map(reach).min(),
        }
    }

    /// The measured rate in words, and how it is shared.
    fn said_rate(&self) -> String {
        let Some(figure) = &self.known.measured.throughput else { return String::new() };
        let (rate, origin) = (figure.value, &figure.origin);
        match self.known.beside {
            0 => format!("{rate} ({origin})"),
            beside => format!("{rate} ({origin}), shared with {beside} others"),
        }
    }
}

impl Plan {
    /// What is best by what is known.
    pub fn new(known: &Known) -> Self {
        let facts = Facts::of(known);
        let congestion = congestion::congestion(&facts);
        let bound = connections::held_by_loss(&facts, congestion.value.as_deref());
        let connections = connections::connections(&facts, bound);
        let n = connections.value;
        let ranges = ahead::ranges(&facts, n);
        let (sends, receives) = (known.sender.sending(), known.receiver.receiving());
        let mut plan = Self {
            path: path::path(&facts, n, bound),
            depth: ahead::depth(&facts, n, ranges.value),
            ranges,
            congestion,
            send_buffer: buffer::buffer(&facts, ("sender", sends), n),
            receive_buffer: buffer::buffer(&facts, ("receiver", receives), n),
            pacing: pacing::pacing(&facts, n),
            connections,
            expected: planned(None, ""),
        };
        plan.expected = expected::expected(&facts, &plan, bound);
        plan
    }
}

#[cfg(test)]
mod tests;
