//! How the blocks came over a long way: the path, the plan with its reasons, and what each connection did.

use downpour_proto::Rate;
use downpour_proto::transfer::Plan;
use downpour_proto::transfer::steer::Decision;
use downpour_transport::stream::ConnectionReport;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::time::Duration;
use utoipa::ToSchema;

/// Of a session that did not go by multicast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferReport {
    /// `tcp`, `udp` or `auto`.
    pub path: String,
    /// What was planned, each number with its reason; the receiver plans.
    pub plan: Vec<PlanLine>,
    /// Ranges that were asked for by TCP.
    pub ranges: u64,
    /// What was changed, or found to bind, while it ran.
    #[serde(default)]
    pub steered: Vec<SteeredLine>,
    /// What each TCP connection did that carried bulk, as this side's kernel tells it.
    pub connections: Vec<ConnectionReport>,
    /// Seconds in which any of them sent, and most of them at once; a sender's only.
    #[serde(default)]
    pub sent_for_s: f64,
    /// See `sent_for_s`.
    #[serde(default)]
    pub at_once: usize,
}

/// One decision of the closed loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeredLine {
    /// Seconds from the start.
    pub at_s: f64,
    /// Connections from then on.
    pub connections: u16,
    /// Most of all of them together, if they are paced.
    pub pacing_bps: Option<u64>,
    /// What held them back, in one word.
    pub binding: String,
    /// What they had brought until then.
    pub rate_bps: u64,
    /// The share of it that was sent again.
    pub sent_again: f64,
    /// Why.
    pub why: String,
}

impl SteeredLine {
    /// As the report has it.
    pub(crate) fn of((at, decision): &(Duration, Decision)) -> Self {
        Self {
            at_s: at.as_secs_f64(),
            connections: decision.setting.connections,
            pacing_bps: decision.setting.pacing.map(Rate::bps),
            binding: decision.binding.to_string(),
            rate_bps: decision.rate.bps(),
            sent_again: decision.loss,
            why: decision.why.clone(),
        }
    }
}

/// One number of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanLine {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Why.
    pub why: String,
}

impl PlanLine {
    fn new(name: &str, value: impl ToString, why: &str) -> Self {
        Self { name: name.to_owned(), value: value.to_string(), why: why.to_owned() }
    }

    /// A plan as text.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let Plan { path, connections, depth, ranges, congestion, pacing, expected, .. } = plan;
        let (sending, receiving) = (&plan.send_buffer, &plan.receive_buffer);
        let named = congestion.value.clone().unwrap_or_else(|| "default".to_owned());
        let buffer =
            |len: Option<u64>| len.map_or("autotuned".to_owned(), |len| format!("{len} B"));
        let brings = expected.value.map_or_else(|| "not known".to_owned(), |rate| rate.to_string());
        let paced = pacing.value.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
        vec![
            Self::new("path", path.value.name(), &path.why),
            Self::new("connections", connections.value, &connections.why),
            Self::new("requests_ahead", depth.value, &depth.why),
            Self::new("ranges_at_once", ranges.value, &ranges.why),
            Self::new("congestion", named, &congestion.why),
            Self::new("send_buffer", buffer(sending.value), &sending.why),
            Self::new("receive_buffer", buffer(receiving.value), &receiving.why),
            Self::new("pacing", paced, &pacing.why),
            Self::new("expected", brings, &expected.why),
        ]
    }
}

impl TransferReport {
    /// A line for people.
    pub(super) fn line(&self) -> String {
        let mut line = format!("path: {}", self.path);
        let all = &self.connections;
        if all.is_empty() {
            return line;
        }
        let sum = |part: fn(&ConnectionReport) -> u64| all.iter().map(part).sum::<u64>();
        let again = sum(|c| c.bytes_sent_again);
        let sent = sum(|c| c.bytes_acked).max(1);
        // Who receives sends requests only: what its own kernel does for those says nothing of the bytes.
        let sends = sent > sum(|c| c.bytes_received);
        let rtt = all.iter().map(|c| c.rtt_ms).sum::<f64>() / all.len() as f64;
        let by = if sends { format!(" ({})", all[0].congestion) } else { String::new() };
        // Writing to a String cannot fail.
        let _ = write!(line, ", {} connections{by}, round trip {rtt:.1} ms", all.len());
        if let Some(last) = self.steered.last() {
            let _ = write!(line, ", {} in the end: {}", last.connections, last.binding);
        }
        if sends && again > 0 {
            let _ = write!(line, ", {:.2} % sent again", 100.0 * again as f64 / sent as f64);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::TransferReport;
    use downpour_transport::stream::ConnectionReport;

    #[test]
    fn what_this_sides_kernel_does_is_told_by_who_sends_the_bytes() {
        let side = |acked, received| TransferReport {
            path: "tcp".to_owned(),
            connections: vec![ConnectionReport {
                congestion: "bbr".to_owned(),
                bytes_acked: acked,
                bytes_received: received,
                bytes_sent_again: 100,
                ..ConnectionReport::default()
            }],
            ..TransferReport::default()
        };
        let sender = side(10_000, 500).line();
        assert_eq!(sender, "path: tcp, 1 connections (bbr), round trip 0.0 ms, 1.00 % sent again");
        assert_eq!(side(500, 10_000).line(), "path: tcp, 1 connections, round trip 0.0 ms");
    }
}
