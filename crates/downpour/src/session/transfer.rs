//! A session over a long way, as its receiver sets it up: the plan, what follows from it, and the account of it.

use super::receive::Taker;
use crate::cli::ReceivePlan;
use crate::report::{PlanLine, SteeredLine, TransferReport};
use crate::tuner::plan::host;
use downpour_proto::receiver::{PULLS_DEFAULT, PULLS_MAX};
use downpour_proto::transfer::steer::Limits;
use downpour_proto::transfer::{
    Ahead, CONNECTIONS_MAX, Carrier, Figure, Host, Known, Plan, Wishes,
};
use downpour_proto::{Geometry, Rate, Timestamp};
use downpour_transport::Spare;
use downpour_transport::control::{DataPath, Joined};
use downpour_transport::pull::{PullLimits, PullTotals};
use downpour_transport::stream::Tuning;
use std::time::{Duration, Instant};

/// Buffers of blocks that wait to be used again.
const SPARE_MAX: usize = 16;

/// How the connections are set; `None` beside a multicast stream.
pub(super) fn planned(plan: &ReceivePlan, joined: &Joined) -> Option<Plan> {
    let mut measured = plan.measured.clone();
    measured.rtt.get_or_insert_with(|| Figure::fresh(joined.rtt, "TCP handshake"));
    let path = carrier(joined.reply.path)?;
    let known = Known {
        measured,
        sender: Host::parse(&joined.reply.limits),
        receiver: host(),
        beside: plan.beside,
        range_len: joined.reply.geometry.block_len(),
        memory: plan.memory_bytes,
        wishes: Wishes { path: Some(path), ..plan.wishes.clone() },
    };
    let mut plan = Plan::new(&known);
    "the sender chose it".clone_into(&mut plan.path.why);
    Some(plan)
}

/// The path as plans know it; `None`: multicast, which is not planned.
pub(crate) const fn carrier(path: DataPath) -> Option<Carrier> {
    match path {
        DataPath::Multicast => None,
        DataPath::Tcp => Some(Carrier::Tcp),
        DataPath::Udp => Some(Carrier::Udp),
        DataPath::Auto => Some(Carrier::Try),
    }
}

/// How many blocks may be under way; `None` beside a multicast stream.
fn ahead(planned: Option<&Plan>, joined: &Joined) -> Option<Ahead> {
    let planned = planned?;
    let (connections, most) = (planned.connections.value.into(), planned.ranges.value);
    let range_len = joined.reply.geometry.block_len();
    Some(Ahead::new(joined.rtt, range_len, connections, most.min(PULLS_MAX)))
}

/// Blocks that are pulled at once, at first.
pub(super) fn pulls(planned: Option<&Plan>, joined: &Joined) -> usize {
    ahead(planned, joined).map_or(PULLS_DEFAULT, |ahead| ahead.ranges())
}

/// How the puller works.
pub(super) fn limits(
    (plan, planned): (&ReceivePlan, Option<&Plan>),
    joined: &Joined,
    taker: &Taker,
) -> PullLimits {
    let default = PullLimits { spare: Spare::new(SPARE_MAX), ..PullLimits::default() };
    match planned {
        None => {
            let parallel = plan.wishes.connections.map_or(default.parallel, usize::from);
            // The manifest has one more.
            let tuning = beside_stream(&plan.wishes, parallel + 1);
            PullLimits { parallel, manifest_apart: true, tuning, ..default }
        }
        Some(planned) => PullLimits {
            parallel: usize::from(planned.connections.value),
            depth: planned.depth.value,
            ahead: joined.reply.path == DataPath::Tcp,
            rtt: joined.rtt,
            tuning: Tuning::from(planned),
            steering: taker.links.as_ref().map(|book| {
                let sender = joined.sender.ip().to_string();
                book.steering(&sender, bounds(&plan.wishes, planned))
            }),
            ..default
        },
    }
}

/// What is set on each of so many connections where nothing is planned: what was asked for, nothing else.
fn beside_stream(wishes: &Wishes, connections: usize) -> Tuning {
    let share = |all: Rate| Rate::from_bps((all.bps() / connections.max(1) as u64).max(1));
    Tuning {
        congestion: wishes.congestion.clone(),
        send_buffer: wishes.buffer,
        receive_buffer: wishes.buffer,
        pacing: wishes.pacing.map(share),
    }
}

/// What may be changed while the transfer runs: nothing of what was asked for.
pub(crate) fn bounds(wishes: &Wishes, planned: &Plan) -> Limits {
    let first = planned.connections.value;
    let (least, most) = match wishes.connections {
        Some(_) => (first, first),
        // Each one needs memory for a range or two.
        None => (1, (planned.ranges.value / 2).clamp(1, CONNECTIONS_MAX.into()) as u16),
    };
    Limits { first, least, most: most.max(first), ceiling: wishes.pacing }
}

/// So long nothing comes of what is pulled, before that is said: a share for pulls that is small among many takes its time.
const STALL_TIME: Duration = Duration::from_secs(30);

/// What is said then. The connection of events lives, else the sender were lost.
const STALLED: &str = "the sender answers, but nothing of what is pulled from it has come for 30 s: are large \
                                  packets dropped on the way (see the MTU of its interfaces), does its disk not answer, or is its \
                                  share for pulls small (--pull-share)?";

/// A time in which nothing comes of what is pulled.
#[derive(Default)]
pub(super) struct Stall {
    came: u64,
    since: Option<Instant>,
    told: bool,
}

impl Stall {
    /// Whether pulls are `under_way` from a sender that answers, and how many bytes came so far: what is to be said of it, once
    /// in each stall.
    pub(super) fn look(
        &mut self,
        now: Instant,
        under_way: bool,
        came: u64,
    ) -> Option<&'static str> {
        if !under_way || came != self.came {
            *self = Self { came, since: None, told: false };
        }
        let since = *self.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since) >= STALL_TIME;
        (lasts && !std::mem::replace(&mut self.told, lasts)).then_some(STALLED)
    }
}

/// What came and is not stored yet: how much that may be, and whether it waits for the disk.
pub(super) struct Stored {
    begun: Instant,
    ahead: Option<Ahead>,
    /// Blocks that may be under way.
    pulls: usize,
    /// Data blocks that were here when the attempt began, and that were pulled since.
    before: u64,
    pub(super) pulled: u64,
}

impl Stored {
    pub(super) fn new(planned: Option<&Plan>, joined: &Joined, before: u64) -> Self {
        let (begun, ahead) = (Instant::now(), ahead(planned, joined));
        let pulls = ahead.as_ref().map_or(PULLS_DEFAULT, Ahead::ranges);
        Self { begun, ahead, pulls, before, pulled: 0 }
    }

    /// `bytes` were pulled so far: how many blocks may be under way now, when that has changed.
    pub(super) fn look(&mut self, bytes: u64) -> Option<usize> {
        let ahead = self.ahead.as_mut()?;
        ahead.look(Timestamp::ZERO + self.begun.elapsed(), bytes);
        let pulls = ahead.ranges();
        (std::mem::replace(&mut self.pulls, pulls) != pulls).then_some(pulls)
    }

    /// So many data blocks are stored: half of all that may be under way is here and is not.
    pub(super) fn waits(&self, stored: u64) -> bool {
        let since = stored.saturating_sub(self.before);
        self.pulled.saturating_sub(since) >= (self.pulls as u64 / 2).max(2)
    }
}

/// What came of it.
pub(super) fn report(
    planned: Option<&Plan>,
    joined: &Joined,
    totals: PullTotals,
) -> Option<TransferReport> {
    Some(TransferReport {
        path: joined.reply.path.name()?.to_owned(),
        plan: PlanLine::all(planned?),
        ranges: totals.ranges,
        steered: totals.decisions.iter().map(SteeredLine::of).collect(),
        connections: totals.connections,
        ..TransferReport::default()
    })
}

/// The last symbol of the data space's last block is filled up with zeros.
pub(super) fn pad(bytes: &mut Vec<u8>, geometry: Geometry) {
    let whole = bytes.len().next_multiple_of(usize::from(geometry.symbol_len));
    bytes.resize(whole, 0);
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, Rate, STALL_TIME, Stall, Tuning, Wishes, beside_stream};

    #[test]
    fn pulls_of_which_nothing_comes_are_told_once_until_something_does() {
        let (mut stall, begun) = (Stall::default(), Instant::now());
        let mut look = |s, under_way, came| {
            stall.look(begun + Duration::from_secs(s), under_way, came).is_some()
        };
        let long = STALL_TIME.as_secs();
        assert!(!look(0, false, 0) && !look(long, false, 0), "nothing is pulled");
        assert!(!look(2 * long - 1, true, 0) && look(2 * long, true, 0));
        assert!(!look(9 * long, true, 0), "once");
        assert!(!look(10 * long, true, 5) && !look(11 * long - 1, true, 5), "something came");
        assert!(look(11 * long, true, 5));
    }

    #[test]
    fn pulls_beside_a_stream_keep_to_what_was_asked_for() {
        let wishes = Wishes {
            congestion: Some("bbr".to_owned()),
            buffer: Some(1 << 20),
            pacing: Some(Rate::from_mbps(20)),
            ..Wishes::default()
        };
        let tuning = beside_stream(&wishes, 4);
        assert_eq!(tuning.pacing, Some(Rate::from_mbps(5)), "together they have the ceiling");
        assert_eq!(tuning.congestion.as_deref(), Some("bbr"));
        assert_eq!((tuning.send_buffer, tuning.receive_buffer), (Some(1 << 20), Some(1 << 20)));
        assert_eq!(beside_stream(&Wishes::default(), 4), Tuning::default());
    }
}
