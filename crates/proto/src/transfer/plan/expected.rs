//! What a transfer by the plan is expected to bring.

use super::formula::bdp;
use super::path::Carrier;
use super::{Facts, Plan, Planned, planned};
use crate::units::Rate;
use alloc::format;

/// The least of what the path carries, what loss leaves, what the buffers hold and what is allowed; `None` when what the
/// path carries is not known: a bound is no expectation.
pub(super) fn expected(
    facts: &Facts<'_>,
    plan: &Plan,
    bound: Option<Rate>,
) -> Planned<Option<Rate>> {
    let Some(share) = facts.share else {
        return planned(None, "what the path carries is not known");
    };
    let is_tcp = plan.path.value != Carrier::Udp;
    let together = |each: Rate| each.scale(f64::from(plan.connections.value));
    let known = facts.known;
    let sending = plan.send_buffer.value.or(known.sender.sending().tuned);
    let receiving = plan.receive_buffer.value.or(known.receiver.receiving().tuned);
    let held = facts.rtt.zip(sending.into_iter().chain(receiving).min());
    let bounds = [
        (bound.filter(|_| is_tcp).map(together), "what loss leaves to the connections"),
        (
            held.filter(|_| is_tcp).map(|(rtt, len)| together(Rate::of(len, rtt))),
            "what the socket buffers hold",
        ),
        (known.wishes.pacing, "the ceiling"),
    ];
    let least = bounds.into_iter().filter_map(|(rate, what)| Some((rate?, what)));
    match least.min_by_key(|(rate, _)| *rate) {
        Some((rate, what)) if rate < share => {
            planned(Some(rate), format!("{what}, where {share} are there"))
        }
        _ => {
            let why = facts.rtt.map_or_else(
                || format!("what there is of {}", facts.said_rate()),
                |rtt| {
                    format!(
                        "what there is of {}; {} bytes of it are under way at once",
                        facts.said_rate(),
                        bdp(share, rtt)
                    )
                },
            );
            planned(Some(share), why)
        }
    }
}
