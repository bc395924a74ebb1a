//! One figure as a source gave it: of which pair, by which tool, when, in which unit, from where.
//!
//! [`Sample::checked`] is the only way to one. It refuses what no path can be: a figure out of all bounds (which mostly means
//! another unit than the label says), and a minimum above the average or a maximum below it. Of words it takes the beginning,
//! without control characters. "No data" makes no sample.

use super::lenient::clip;
use crate::output::one_line;
use downpour_catalog::Time;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// What no path carries less or more of, in bit/s.
const RATE_BPS: RangeInclusive<f64> = 1e3..=1e13;
/// What no round trip takes less or more of, in seconds.
const RTT_S: RangeInclusive<f64> = 1e-6..=5.0;
/// A minimum may be this much above the average: both are printed rounded.
const ROUNDING: f64 = 1e-4;

/// One end of a path, as a source names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    /// Its name, or its address.
    pub name: String,
    /// Its address, when that is known besides.
    pub addr: Option<IpAddr>,
}

impl Host {
    /// By its name or address alone.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { addr: address(&name), name }
    }
}

/// Whether two names or addresses say the same host. IPv6 has many ways to write one address.
pub fn same_host(one: &str, other: &str) -> bool {
    match (address(one), address(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.trim_end_matches('.').eq_ignore_ascii_case(other.trim_end_matches('.')),
    }
}

pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Who of the two ends started the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The source: who measures sends.
    Push,
    /// Another, mostly the destination.
    Pull,
}

/// Which IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Of an address.
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// From its number.
    pub fn numbered(number: f64) -> Option<Self> {
        [(4.0, Self::V4), (6.0, Self::V6)].iter().find(|(n, _)| *n == number).map(|(_, v)| *v)
    }
}

/// What a sample is of: samples with the same key belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where the data came from.
    pub source: Host,
    /// Where it went.
    pub destination: Host,
    /// Who measured; `None` when that is not said.
    pub direction: Option<Direction>,
    /// Over which IP; `None` when that is not said.
    pub ip: Option<IpVersion>,
    /// By which tool, with its number of streams when there were several.
    pub tool: String,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Bit/s that a test or a transfer carried.
    Throughput,
    /// Round trip of an idle path, in seconds.
    Rtt,
    /// Round trip while the path was loaded, in seconds: what queues add is in it.
    RttLoaded,
    /// Share of packets lost, 0 to 1.
    Loss,
}

impl Metric {
    /// The unit that samples have.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "bit/s",
            Self::Rtt | Self::RttLoaded => "s",
            Self::Loss => "fraction",
        }
    }

    /// What can be.
    fn bounds(self) -> RangeInclusive<f64> {
        match self {
            Self::Throughput => RATE_BPS,
            Self::Rtt | Self::RttLoaded => RTT_S,
            Self::Loss => 0.0..=1.0,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Throughput => "throughput",
            Self::Rtt => "round trip",
            Self::RttLoaded => "round trip under load",
            Self::Loss => "loss",
        })
    }
}

/// A figure, and what else is known of how it came about. In the metric's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The average.
    pub avg: f64,
    /// The least.
    pub min: Option<f64>,
    /// The most.
    pub max: Option<f64>,
}

impl Spread {
    /// An average alone.
    pub const fn of(avg: f64) -> Self {
        Self { avg, min: None, max: None }
    }

    /// The same in another unit.
    pub fn scale(self, factor: f64) -> Self {
        let scaled = |figure: Option<f64>| figure.map(|figure| figure * factor);
        Self { avg: self.avg * factor, min: scaled(self.min), max: scaled(self.max) }
    }
}

/// Where a sample comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the source, as the configuration has it.
    pub source: String,
    /// What was read: a URL, a file.
    pub place: String,
}

/// A figure that can be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Of which pair, how.
    pub key: Key,
    /// What.
    pub metric: Metric,
    /// How much; least <= average <= most.
    pub spread: Spread,
    /// When it was measured: microseconds since 1970.
    pub at: Time,
    /// The unit that the source gave or implied. What was taken is the metric's.
    pub unit_found: String,
    /// From where.
    pub origin: Origin,
}

/// A figure that is not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl Sample {
    /// Takes a figure if it can be one.
    pub fn checked(
        mut key: Key,
        metric: Metric,
        spread: Spread,
        at: Time,
        unit_found: impl Into<String>,
        origin: &Origin,
    ) -> Result<Self, Refused> {
        let spread = sound(metric, spread)?;
        for word in [&mut key.source.name, &mut key.destination.name, &mut key.tool] {
            *word = clip(word);
        }
        let (source, place) = (origin.source.clone(), one_line(&origin.place));
        let (unit_found, origin) = (clip(&unit_found.into()), Origin { source, place });
        Ok(Self { key, metric, spread, at, unit_found, origin })
    }
}

fn sound(metric: Metric, spread: Spread) -> Result<Spread, Refused> {
    let Spread { avg, min, max } = spread;
    let refuse = |what: String| Err(Refused(format!("{metric} {what}")));
    if !metric.bounds().contains(&avg) {
        return refuse(format!("of {avg} {}: no path has that; another unit?", metric.unit()));
    }
    let slack = avg.abs() * ROUNDING;
    if let Some(min) = min.filter(|min| !(0.0..=avg + slack).contains(min)) {
        return refuse(format!("with a minimum of {min} and an average of {avg}"));
    }
    if let Some(max) = max.filter(|max| !(avg - slack..f64::INFINITY).contains(max)) {
        return refuse(format!("with a maximum of {max} and an average of {avg}"));
    }
    Ok(Spread { avg, min: min.map(|min| min.min(avg)), max: max.map(|max| max.max(avg)) })
}

#[cfg(test)]
mod tests {
    use super::{Host, Key, Metric, Origin, Sample, Spread, same_host};
    use downpour_catalog::Time;
    use proptest::prelude::{Strategy, any, prop_assert, prop_oneof, proptest};

    fn key() -> Key {
        let (source, destination) = (Host::new("a"), Host::new("b"));
        Key { source, destination, direction: None, ip: None, tool: "test".to_owned() }
    }

    fn sample(metric: Metric, spread: Spread) -> Option<Sample> {
        let origin = Origin { source: "t".to_owned(), place: "t".to_owned() };
        Sample::checked(key(), metric, spread, Time(0), "bit/s", &origin).ok()
    }

    fn figure() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>(), 1e2..1e14f64, 0.0..10f64, proptest::strategy::Just(-1.0)]
    }

    proptest! {
        #[test]
        fn each_sample_lies_between_its_least_and_its_most(
            avg in figure(),
            min in proptest::option::of(figure()),
            max in proptest::option::of(figure()),
            near in 0.999..1.001f64,
        ) {
            for (min, max) in [(min, max), (Some(avg * near), Some(avg / near))] {
                for metric in [Metric::Throughput, Metric::Rtt, Metric::Loss] {
                    let spread = Spread { avg, min, max };
                    if let Some(sample) = sample(metric, spread) {
                        let spread = sample.spread;
                        prop_assert!(spread.avg.is_finite() && spread.avg >= 0.0);
                        prop_assert!(spread.min.is_none_or(|min| min >= 0.0 && min <= spread.avg));
                        prop_assert!(spread.max.is_none_or(|max| max >= spread.avg));
                    }
                }
            }
        }
    }

    #[test]
    fn what_no_path_has_is_refused() {
        for (metric, avg) in [
            (Metric::Throughput, -1.0),
            (Metric::Throughput, 0.0),
            (Metric::Throughput, 9.4),
            (Metric::Throughput, f64::NAN),
            (Metric::Rtt, 0.0),
            (Metric::Rtt, 34.5),
            (Metric::Loss, 1.5),
            (Metric::Loss, -0.1),
        ] {
            assert_eq!(sample(metric, Spread::of(avg)), None, "{metric} {avg}");
        }
        assert!(sample(Metric::Loss, Spread::of(0.0)).is_some());
    }

    #[test]
    fn a_host_is_known_however_it_is_written() {
        assert!(same_host("PS.example.org.", "ps.example.org"));
        assert!(same_host("2001:db8:0:0::1", "2001:DB8::1"));
        assert!(same_host("[2001:db8::1]", "2001:db8::1"));
        assert!(!same_host("192.0.2.1", "192.0.2.10"));
    }
}
