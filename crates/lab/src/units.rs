//! Quantities as experiments write them: `100mbit`, `64MiB`, `20ms`.
//!
//! Rates count in thousands and bits, as tc does; sizes in either; times in seconds with a prefix.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rate(pub(crate) u64);

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// A time span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

const RATES: &[(&str, f64)] = &[("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
const SIZES: &[(&str, f64)] = &[
    ("GiB", (1u64 << 30) as f64),
    ("MiB", (1u64 << 20) as f64),
    ("KiB", 1024.0),
    ("GB", 1e9),
    ("MB", 1e6),
    ("kB", 1e3),
    ("B", 1.0),
];
const SPANS: &[(&str, f64)] = &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

impl Rate {
    /// How long `bytes` take.
    pub(crate) fn time_of(self, bytes: usize) -> Duration {
        Duration::from_nanos((bytes as u64 * 8).saturating_mul(1_000_000_000) / self.0.max(1))
    }

    /// This share of it, in kbit/s, as programs want to be told.
    pub(crate) fn kbit(self, share: f64) -> u64 {
        (self.0 as f64 * share / 1e3) as u64
    }
}

impl Span {
    pub(crate) fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    pub(crate) fn ms(self) -> f64 {
        self.0.as_secs_f64() * 1e3
    }
}

/// The number in front of one of `units`, in the smallest.
fn parse(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let names = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let (_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("`{text}`: needs one of {}", names()))?;
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is not a quantity"))?;
    if !(0.0..1e12).contains(&number) {
        return Err(format!("`{text}` is out of range"));
    }
    Ok(number * factor)
}

/// The number in the largest unit in which it is at least one and has three decimals at most.
fn show(f: &mut fmt::Formatter<'_>, value: f64, units: &[(&str, f64)]) -> fmt::Result {
    let whole = |factor: f64| (value / factor * 1e3).fract() == 0.0;
    let fits = units.iter().find(|(_, factor)| value >= *factor && whole(*factor));
    let near = units.iter().find(|(_, factor)| value >= *factor);
    let (name, factor) = fits.or(near).unwrap_or(&units[units.len() - 1]);
    let number = format!("{:.3}", value / factor);
    write!(f, "{}{name}", number.trim_end_matches('0').trim_end_matches('.'))
}

macro_rules! quantity {
    ($type:ident, $units:ident, $from:expr, $to:expr) => {
        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let from: fn(f64) -> $type = $from;
                parse(text, $units).map(from)
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let to: fn(&$type) -> f64 = $to;
                show(f, to(self), $units)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

quantity!(Rate, RATES, |bits| Rate(bits.round() as u64), |rate| rate.0 as f64);
quantity!(Size, SIZES, |bytes| Size(bytes.round() as u64), |size| size.0 as f64);

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self::default());
        }
        parse(text, SPANS).map(|s| Self(Duration::from_nanos((s * 1e9).round() as u64)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        let nanos = [("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)];
        show(f, self.0.as_nanos() as f64, &nanos)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{Rate, Size, Span};
    use std::time::Duration;

    #[test]
    fn quantities_are_read_and_shown_as_written() {
        for text in ["100mbit", "1gbit", "1.5mbit", "20kbit"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in ["64MiB", "1GiB", "7MB", "100B", "1.5kB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["20ms", "2s", "0", "1.5ms", "200us"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("100mbit".parse::<Rate>().unwrap(), Rate(100_000_000));
        assert_eq!("64MiB".parse::<Size>().unwrap(), Size(64 << 20));
        assert_eq!("20ms".parse::<Span>().unwrap().0, Duration::from_millis(20));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "fast", "100", "100 parsec", "-1mbit", "nanmbit", "1e30mbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_knows_how_long_bytes_take() {
        assert_eq!(Rate(100_000_000).time_of(1514), Duration::from_nanos(121_120));
        assert_eq!(Rate(20_000_000).kbit(0.95), 19_000);
    }
}
