//! A configuration with two sites, what is known between them, and that in one line.

use downpour::site::Config;
use downpour::tuner::{Combined, Direction, IpVersion, Means, Metric, measurements};
use downpour_catalog::Time;
use std::path::Path;

/// 2026-11-22 12:00 UTC: the fixtures' times lie before it.
pub(crate) const NOW: Time = Time(1_795_348_800_000_000);

/// The two sites, and how their machines measure.
const SITES: &str = "
[site]
name = 'here'
[[remote]]
name = 'there'
key = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
[tuner]
hosts.here = ['psa.example.org', '192.0.2.10', '2001:db8:a::10']
hosts.there = ['psb.example.org', '198.51.100.20', '2001:db8:b::20']
";

/// A configuration with further sections.
pub(crate) fn config(more: &str, folder: &Path) -> Config {
    let text = format!("{SITES}{more}");
    let mut config = Config::parse(&text).unwrap_or_else(|flaws| panic!("{flaws:?}\n{text}"));
    config.folder = folder.to_owned();
    config
}

/// An archive in a configuration.
pub(crate) fn archive(kind: &str, scheme: &str, port: u16, more: &str) -> String {
    let path = match kind {
        "esmond" => "esmond/perfsonar/archive",
        "dashboard" => "exda",
        other => other,
    };
    format!(
        "[[tuner_source]]\nname = 'archive'\nkind = '{kind}'\n\
         url = '{scheme}://127.0.0.1:{port}/{path}/'\n{more}\n"
    )
}

/// What is known from here to there.
pub(crate) fn known(config: &Config) -> Combined {
    let means = Means { now: NOW, identity: None, seen: Vec::new(), probed: Vec::new() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measurements("here", "there", config, means))
}

/// In one line: figures with their age, what the newest sample says of itself, and what was left out.
pub(crate) fn told(combined: &Combined) -> String {
    let mut parts = Vec::new();
    let age = |age: std::time::Duration| format!("{:.1} h old", age.as_secs_f64() / 3600.0);
    let measured = &combined.measured;
    let newest = |metric| combined.samples.iter().find(|sample| sample.metric == metric);
    if let Some(figure) = &measured.throughput {
        let mut words = vec![figure.value.to_string(), age(figure.age)];
        if let Some(sample) = newest(Metric::Throughput) {
            words.extend(sample.key.direction.map(|by| match by {
                Direction::Push => "push".to_owned(),
                Direction::Pull => "pull".to_owned(),
            }));
            words.extend(sample.key.ip.map(|ip| match ip {
                IpVersion::V4 => "IPv4".to_owned(),
                IpVersion::V6 => "IPv6".to_owned(),
            }));
            words.push(format!("by {} in {}", sample.key.tool, sample.unit_found));
        }
        parts.push(words.join(", "));
    }
    if let Some(figure) = &measured.rtt {
        let ms = figure.value.as_secs_f64() * 1e3;
        let loaded = if figure.origin.contains("under load") { " under load" } else { "" };
        parts.push(format!("RTT {ms:.2} ms{loaded}, {}", age(figure.age)));
    }
    if let Some(figure) = &measured.loss {
        parts.push(format!("loss {:.3} %, {}", figure.value * 100.0, age(figure.age)));
    }
    if parts.is_empty() {
        parts.push("no data".to_owned());
    }
    parts.extend(combined.left_out.iter().map(|left| {
        let times = if left.times > 1 { format!(" ({} times)", left.times) } else { String::new() };
        format!("left out: {}{times}", left.what)
    }));
    parts.join("; ")
}
