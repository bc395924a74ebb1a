//! What Downpour's own traces say, as the papers drew it: packets sent against time, and when each symbol came.
//!
//! Both are tables for [`crate::figures`]. A symbol of the data is what a segment is in the papers; repair symbols
//! stand for none of them and are left out.

use serde_json::Value;
use std::fmt::Write as _;

/// Over which the packet rate is taken, seconds: as often as the paper's sender speaks.
const BIN_S: f64 = 0.5;

/// Symbols sent (data and repair) in each [`BIN_S`]: seconds since the first, packets/s.
pub(crate) fn sent(trace: &str) -> String {
    let mut bins: Vec<u32> = Vec::new();
    let mut start = None;
    for line in symbols(trace, "out") {
        let t = line["t"].as_f64().unwrap_or_default();
        let bin = ((t - *start.get_or_insert(t)).max(0.0) / BIN_S) as usize;
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += 1;
    }
    let mut csv = "time_s,packets_per_s\n".to_owned();
    for (bin, packets) in bins.into_iter().enumerate() {
        writeln!(csv, "{:.1},{:.0}", (bin + 1) as f64 * BIN_S, f64::from(packets) / BIN_S)
            .expect("a String");
    }
    csv
}

/// Source symbols received: number in the data, milliseconds since the first.
pub(crate) fn received(trace: &str) -> String {
    let mut csv = "segment,ms\n".to_owned();
    // All blocks but the last are full.
    let (mut start, mut full) = (None, 0);
    for line in symbols(trace, "in") {
        let number = |name: &str| line[name].as_u64().unwrap_or_default();
        let (block, symbol, k) = (number("block"), number("symbol"), number("k"));
        full = full.max(k);
        if symbol < k {
            let t = line["t"].as_f64().unwrap_or_default();
            let ms = ((t - *start.get_or_insert(t)) * 1e3).max(1.0);
            writeln!(csv, "{},{ms:.0}", block * full + symbol).expect("a String");
        }
    }
    csv
}

/// The lines of data symbols that went this way.
fn symbols<'a>(trace: &'a str, way: &'a str) -> impl Iterator<Item = Value> + 'a {
    let lines = trace.lines().filter(|line| line.starts_with(r#"{"type":"data""#));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(move |line: &Value| line["way"] == way)
}

#[cfg(test)]
mod tests {
    use super::{received, sent};

    const TRACE: &str = r#"{"type":"trace","version":1}
{"type":"manifest","t":0.9,"way":"out","block":0,"symbol":0,"k":1}
{"type":"data","t":1.0,"way":"out","block":0,"symbol":0,"k":4}
{"type":"data","t":1.2,"way":"out","block":0,"symbol":1024,"k":4}
{"type":"data","t":1.6,"way":"out","block":1,"symbol":2,"k":3}
{"type":"data","t":2.0,"way":"in","block":0,"symbol":3,"k":4}
{"type":"data","t":2.5,"way":"in","block":1,"symbol":1024,"k":3}
{"type":"data","t":2.6,"way":"in","block":1,"symbol":2,"k":3}
"#;

    #[test]
    fn packets_are_counted_in_half_seconds() {
        assert_eq!(sent(TRACE), "time_s,packets_per_s\n0.5,4\n1.0,2\n");
    }

    #[test]
    fn symbols_are_numbered_through_the_data_and_repair_is_none_of_them() {
        assert_eq!(received(TRACE), "segment,ms\n3,1\n6,600\n");
    }
}
