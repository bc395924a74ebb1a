//! What one run came to, as it stands in `runs.jsonl` and `runs.csv`.

use crate::experiment::Cell;
use crate::meter::Usage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What only some programs tell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Median of the delays above the least that receivers reported.
    pub(crate) queue_median_ms: Option<f64>,
    /// Until the receiver that gets least got 90 % of the rate.
    pub(crate) ramp_s: Option<f64>,
    /// What came to the first receiver in the time in which a cell is measured, headers included; or what a foreign transfer
    /// carried a second, without them.
    pub(crate) late_mbit: Option<f64>,
    /// What held the connections back in that time, or in the end, as the receiver said: one word, or several in turn.
    pub(crate) binds: Option<String>,
    /// Of the link, that the TCP flows beside got while they ran.
    pub(crate) tcp_share: Option<f64>,
    /// Of two sessions, what the larger one got of all that both got.
    pub(crate) larger_share: Option<f64>,
}

/// What became of products, of a feed's cell. Sums over all products of the mean receiver, if not said otherwise.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latencies {
    /// Products that all receivers have, and their bytes.
    pub(crate) products: Option<u64>,
    pub(crate) product_bytes: Option<u64>,
    /// Σ size / Σ latency: of the mean receiver, and of an ideal FIFO at the link's rate.
    pub(crate) throughput_mbit: Option<f64>,
    pub(crate) ideal_mbit: Option<f64>,
    /// Σ latency over the ideal's: of the mean receiver, and of the worst.
    pub(crate) latency_over_ideal: Option<f64>,
    pub(crate) worst_over_ideal: Option<f64>,
    /// The parts: before its first datagram left; until its last one of source did; until its last block was complete;
    /// until it had its turn, was verified and given on.
    pub(crate) buffer_s: Option<f64>,
    pub(crate) transmission_s: Option<f64>,
    pub(crate) arrival_s: Option<f64>,
    pub(crate) delivery_s: Option<f64>,
    /// The difference of the clocks, as measured, and by how much it may be wrong, at most, in microseconds. All of the lab's
    /// machines have one: it is in no figure above.
    pub(crate) clock_us: Option<f64>,
    pub(crate) clock_error_us: Option<f64>,
}

/// Figures that each run has, of what it did.
const COSTS: [&str; 4] =
    ["wire_over_size", "receivers_wire_over_size", "sender_cpu_s", "receivers_cpu_s"];

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// As the experiment calls it, arguments included.
    pub(crate) program: String,
    #[serde(flatten)]
    pub(crate) cell: Cell,
    /// From 1.
    pub(crate) repeat: u32,
    /// Of the page's commands the one that ran it, from 1.
    #[serde(default)]
    pub(crate) campaign: usize,
    #[serde(flatten)]
    pub(crate) latencies: Latencies,
    /// Receivers that have the file.
    pub(crate) complete: usize,
    /// From the start of the sender to the last delivery; absent unless all have it.
    pub(crate) wall_s: Option<f64>,
    /// From the start of the sender to the delivery at each receiver.
    pub(crate) delivered_s: Vec<Option<f64>>,
    /// The last delivery at a receiver like most, where some are not.
    pub(crate) others_s: Option<f64>,
    /// size · (1514/1472) · 8 / (rate · (1 − loss)).
    pub(crate) bound_s: Option<f64>,
    pub(crate) wall_over_bound: Option<f64>,
    /// What was sent over the wall time; or what came in the time in which it was measured.
    pub(crate) goodput_mbit: Option<f64>,
    /// Bytes of Ethernet frames from the sender, without those that the queue of its own link dropped, over bytes of the file.
    pub(crate) wire_over_size: f64,
    /// The same of all receivers together: feedback, or what they give to one another.
    pub(crate) receivers_wire_over_size: f64,
    #[serde(flatten)]
    pub(crate) usage: Usage,
    /// Packets that came to the machines, at each that it came to; not known of runs from before it was counted.
    pub(crate) rx_packets: Option<u64>,
    /// Packets lost on purpose.
    pub(crate) lost_asked: u64,
    /// Packets that found a full queue at a link.
    pub(crate) lost_queue: u64,
    /// Packets that the lab itself lost.
    pub(crate) lost_own: u64,
    /// Datagrams that found a full socket buffer at a receiver.
    pub(crate) lost_socket: u64,
    /// Frames that went through the emulator, and how late it was with them.
    pub(crate) emulated: Option<u64>,
    pub(crate) emulator_late_mean_us: Option<f64>,
    pub(crate) emulator_late_p99_us: Option<f64>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// What went wrong; empty otherwise.
    pub(crate) trouble: String,
    /// It was the lab that went wrong: the figures above are of nothing.
    #[serde(default)]
    pub(crate) lab_failed: bool,
    /// What else there is to say.
    pub(crate) remark: String,
}

impl Record {
    fn fields(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        }
    }

    /// Whether runs have a figure of this name: a number, or what may become one, of what they came to.
    pub(crate) fn has(name: &str) -> bool {
        let known =
            matches!(Self::default().fields().get(name), Some(Value::Number(_) | Value::Null));
        known && Cell::default().field(name).is_none()
    }

    /// Packets that came to the machines, or would have had the lab itself not lost them.
    pub(crate) fn carried(&self) -> Option<u64> {
        Some(self.rx_packets? + self.lost_own)
    }

    /// Whether what it cost is that of a delivery: of one that did not come about, or was not waited for, it is of no payload.
    pub(crate) fn has_delivered(&self) -> bool {
        !self.lab_failed && self.wall_s.or(self.others_s).is_some()
    }

    /// A figure by its name, if the run has come to it.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        let counts = !self.lab_failed && (!COSTS.contains(&name) || self.has_delivered());
        if counts { self.fields().get(name)?.as_f64() } else { None }
    }
}

/// The median, and the least and the greatest; `None` of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<[f64; 3]> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (least, greatest) = (*values.first()?, *values.last()?);
    let (a, b) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    Some([f64::midpoint(a, b), least, greatest])
}

/// All records as a table for spreadsheets.
pub(crate) fn csv(records: &[Record]) -> String {
    let rows: Vec<Map<String, Value>> = records.iter().map(Record::fields).collect();
    let Some(first) = rows.first() else { return String::new() };
    let names: Vec<&String> = first.keys().collect();
    let mut text = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",") + "\n";
    for row in &rows {
        let values = names.iter().map(|name| match row.get(*name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => quoted(text),
            Some(value) => quoted(&value.to_string()),
        });
        text += &(values.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, Record, median, quoted};

    #[test]
    fn what_a_vain_run_cost_is_no_figure() {
        let whole = Record { wall_s: Some(7.0), wire_over_size: 1.2, ..Record::default() };
        assert_eq!(whole.figure("wire_over_size"), Some(1.2));
        let vain =
            Record { wire_over_size: 0.001, trouble: "timed out".to_owned(), ..whole.clone() };
        let vain = Record { wall_s: None, ..vain };
        assert_eq!(vain.figure("wire_over_size"), None);
        let one_lacks_it = Record { others_s: Some(7.0), ..vain };
        assert_eq!(one_lacks_it.figure("wire_over_size"), Some(0.001));
        let figures = Figures { late_mbit: Some(1.1), ..Figures::default() };
        let measured = Record { wall_s: None, figures, ..whole };
        assert_eq!(measured.figure("wire_over_size"), None);
        assert_eq!(measured.figure("late_mbit"), Some(1.1));
    }

    #[test]
    fn a_median_has_its_spread() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some([2.0, 1.0, 3.0]));
        assert_eq!(median([4.0, 1.0]), Some([2.5, 1.0, 4.0]));
        assert_eq!(median([]), None);
    }

    #[test]
    fn text_with_commas_stays_one_field() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
    }
}
