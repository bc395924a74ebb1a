//! A session over a long way, as its receiver sets it up: the plan, what follows from it, and the account of it.

use crate::cli::ReceivePlan;
use crate::report::{PlanLine, TransferReport};
use crate::tuner::plan::host;
use downpour_proto::receiver::{PULLS_DEFAULT, PULLS_MAX};
use downpour_proto::transfer::{Carrier, Figure, Host, Known, Plan, Planned};
use downpour_transport::control::{DataPath, Joined};
use downpour_transport::pull::{PullLimits, PullTotals};
use downpour_transport::stream::Tuning;

/// How the connections are set; `None` beside a multicast stream.
fn planned(plan: &ReceivePlan, joined: &Joined) -> Option<Plan> {
    let mut measured = plan.measured.clone();
    measured.rtt.get_or_insert_with(|| Figure::fresh(joined.rtt, "TCP handshake"));
    let known = Known {
        measured,
        sender: Host::parse(&joined.reply.limits),
        receiver: host(),
        beside: plan.beside,
        range_len: joined.reply.geometry.block_len(),
        memory: plan.memory_bytes,
        wishes: plan.wishes.clone(),
    };
    let value = match joined.reply.path {
        DataPath::Multicast => return None,
        DataPath::Tcp => Carrier::Tcp,
        DataPath::Udp => Carrier::Udp,
        DataPath::Auto => Carrier::Try,
    };
    let path = Planned { value, why: "the sender chose it".to_owned() };
    Some(Plan { path, ..Plan::new(&known) })
}

/// Blocks that are pulled at once.
pub(super) fn pulls(plan: &ReceivePlan, joined: &Joined) -> usize {
    planned(plan, joined).map_or(PULLS_DEFAULT, |planned| planned.ranges.value.min(PULLS_MAX))
}

/// How the puller works.
pub(super) fn limits(plan: &ReceivePlan, joined: &Joined) -> PullLimits {
    let default = PullLimits::default();
    match planned(plan, joined) {
        None => PullLimits {
            parallel: plan.wishes.connections.map_or(default.parallel, usize::from),
            ..default
        },
        Some(planned) => PullLimits {
            parallel: usize::from(planned.connections.value),
            depth: planned.depth.value,
            ahead: joined.reply.path == DataPath::Tcp,
            rtt: joined.rtt,
            tuning: Tuning::from(&planned),
            ..default
        },
    }
}

/// What came of it.
pub(super) fn report(
    plan: &ReceivePlan,
    joined: &Joined,
    totals: PullTotals,
) -> Option<TransferReport> {
    let planned = planned(plan, joined)?;
    Some(TransferReport {
        path: joined.reply.path.name()?.to_owned(),
        plan: PlanLine::all(&planned),
        ranges: totals.ranges,
        connections: totals.connections,
    })
}
