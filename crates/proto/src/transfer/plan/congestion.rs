//! Which congestion control the sender's kernel uses, and what loss leaves to a connection under it.

use super::connections::base;
use super::formula::loss_bound;
use super::{Facts, Planned, per_cent, planned};
use crate::time::Duration;
use alloc::format;
use alloc::string::{String, ToString};

/// The one that does not take each loss for a full queue.
const BBR: &str = "bbr";
/// The one that keeps more under way than a round trip holds.
const CUBIC: &str = "cubic";
/// A round trip as short as hosts take at times to wake a thread: what BBR has under way, two round trips' worth, is
/// out before the other end runs (measured: docs/results/wan.md, loopback).
const NEAR: Duration = Duration::from_millis(1);

/// The name to set; `None`: the kernel's default.
pub(super) fn congestion(facts: &Facts<'_>) -> Planned<Option<String>> {
    let sender = &facts.known.sender;
    if let Some(name) = &facts.known.wishes.congestion {
        return planned(Some(name.clone()), "as asked for");
    }
    let default = sender.congestion_default().unwrap_or("");
    if default.starts_with(BBR) {
        if facts.rtt.is_some_and(|rtt| rtt < NEAR)
            && !held(facts)
            && sender.has(CUBIC) == Some(true)
        {
            let why = format!(
                "the sender's default, {default}, has two round trips' worth under way at most: less than hosts take to wake"
            );
            return planned(Some(CUBIC.to_string()), why);
        }
        let why =
            format!("the sender's default, {default}, does not take each loss for a full queue");
        return planned(None, why);
    }
    let (Some(rtt), Some(rate), Some(loss)) = (facts.rtt, facts.share, facts.loss) else {
        return planned(None, "the kernel's default: which is best depends on who shares the path");
    };
    let Some(bound) = loss_bound(rtt, loss) else {
        return planned(None, "the kernel's default: too little is lost to hold it");
    };
    let few = base(facts);
    let together = bound.scale(f64::from(few));
    let lost = per_cent(loss);
    if together >= rate {
        let why = format!("the kernel's default: at {lost} lost {few} of it reach {together}");
        return planned(None, why);
    }
    if sender.has(BBR) == Some(true) {
        let why = format!(
            "at {lost} lost {few} of the default reach {together} of {rate}; this one does not take each loss for a full queue"
        );
        return planned(Some(BBR.to_string()), why);
    }
    let why = format!(
        "at {lost} lost {few} of the default reach {together} of {rate}, and the sender is not known to have bbr"
    );
    planned(None, why)
}

/// Whether so much is lost that few connections of the usual kind do not bring what was measured.
fn held(facts: &Facts<'_>) -> bool {
    let bound = facts.rtt.zip(facts.loss).and_then(|(rtt, loss)| loss_bound(rtt, loss));
    let together = bound.map(|bound| bound.scale(f64::from(base(facts))));
    together.zip(facts.share).is_some_and(|(together, rate)| together < rate)
}
