//! Quantities as people write them, on the command line and in the other direction.
//!
//! A quantity always carries its unit, both ways: `100mbit`, `12MB/s`, `5min`, `256MiB`. A bare
//! number is refused with advice, because "100" has cost somebody a factor of eight or a thousand
//! before. In rates `b`/`bit` is bits and `B` is bytes, as everywhere; other letters may be written
//! in either case. Prefixes without `i` are decimal, with `i` binary.
//!
//! Deliberately absent: locales, thousands separators, negative numbers.

use downpour_proto::Rate;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

/// A quantity that cannot be understood, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError(String);

impl QuantityError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

fn refuse<T>(text: impl Into<String>) -> Result<T, QuantityError> {
    Err(QuantityError::new(text))
}

/// The least rate: at less, polls alone would take more than a fifth of it (`docs/protocol.md#FB-1`).
pub const RATE_MIN: Rate = Rate::from_bps(8_000);

/// Parses a rate: `100mbit`, `1.5gbit`, `1.5Gbit/s`, `12MB/s`, `10MiB/s`.
pub fn parse_rate(text: &str) -> Result<Rate, QuantityError> {
    let advice = "write it as 100mbit, 1.5gbit (bits per second) or 12MB/s (bytes per second)";
    let (number, unit) = split_number(text, advice)?;
    if unit.is_empty() {
        return refuse(format!("a rate needs a unit: {advice}"));
    }
    let (prefix, rest) = split_prefix(unit);
    let bits = match rest {
        "bit" | "bit/s" | "bits/s" | "b/s" | "bps" | "Bit" | "Bit/s" | "BIT" => 1.0,
        "B/s" | "Bps" => 8.0,
        _ => return refuse(format!("`{unit}` is no unit of a rate: {advice}")),
    };
    let bps = number * prefix * bits;
    if !(RATE_MIN.bps() as f64..1e15).contains(&bps) {
        return refuse(format!("a rate lies between 8 kbit/s and 1000 Tbit/s: {advice}"));
    }
    Ok(Rate::from_bps(bps.round() as u64))
}

/// Parses a duration: `500ms`, `30s`, `5min`, `24h`, `2d`, `1h30min`.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let advice = "write it as 30s, 5min, 24h, 2d or 1h30min";
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut seconds = 0.0;
    loop {
        let (number, after) = split_number(rest, advice)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = match after[..end].trim().to_ascii_lowercase().as_str() {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "" => return refuse(format!("a duration needs a unit: {advice}")),
            other => return refuse(format!("`{other}` is no unit of time: {advice}")),
        };
        seconds += number * unit;
        rest = &after[end..];
        if rest.is_empty() {
            break;
        }
    }
    if seconds > 1e9 {
        return refuse("a duration of more than 30 years is surely a mistake".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a size in bytes: `256MiB`, `100MB`, `64KiB`, `512B`.
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    let advice = "write it as 256MiB, 100MB or 512B";
    let (number, unit) = split_number(text, advice)?;
    if unit.is_empty() {
        return refuse(format!("a size needs a unit: {advice}"));
    }
    let (prefix, rest) = split_prefix(unit);
    if !matches!(rest, "B" | "b" | "") {
        return refuse(format!("`{unit}` is no unit of a size: {advice}"));
    }
    let bytes = number * prefix;
    if bytes >= 9e18 {
        return refuse(format!("that is more than 8 EiB: {advice}"));
    }
    Ok(bytes.round() as u64)
}

/// A duration in a configuration file, as [`parse_duration`] reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A size in a configuration file, as [`parse_size`] reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

/// A rate in a configuration file, as [`parse_rate`] reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed(pub Rate);

macro_rules! written {
    ($type:ident, $inner:ty, $parse:ident) => {
        impl FromStr for $type {
            type Err = QuantityError;

            fn from_str(text: &str) -> Result<Self, QuantityError> {
                $parse(text).map(Self)
            }
        }

        impl Deref for $type {
            type Target = $inner;

            fn deref(&self) -> &$inner {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

written!(Span, Duration, parse_duration);
written!(Amount, u64, parse_size);
written!(Speed, Rate, parse_rate);

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Parses a share between 0 and 1 written as a percentage: `2%`, `0.5%`.
pub fn parse_share(text: &str) -> Result<f64, QuantityError> {
    let advice = "write it as a percentage between 0% and 100%, such as 2% or 0.5%";
    let (number, unit) = split_number(text, advice)?;
    if unit != "%" || number > 100.0 {
        return refuse(format!("`{text}` is no share: {advice}"));
    }
    Ok(number / 100.0)
}

/// Where something listens: a host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP or UDP port, as the place says; 0 asks for any free one of the range.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let advice = "write it as host:4000, 192.0.2.7:4000 or [2001:db8::7]:4000";
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => match rest.split_once("]:") {
                Some(parts) => parts,
                None => return refuse(format!("`{text}` lacks a port: {advice}")),
            },
            None => match text.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return refuse(format!("an IPv6 address goes in brackets: {advice}"));
                }
                Some(parts) => parts,
                None => return refuse(format!("`{text}` lacks a port: {advice}")),
            },
        };
        // It is written between quotes in configurations.
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "/\"\\".contains(c);
        if host.is_empty() || host.contains(is_odd) {
            return refuse(format!("`{host}` is no host: {advice}"));
        }
        match port.parse() {
            Ok(port) => Ok(Self { host: host.to_owned(), port }),
            Err(_) => refuse(format!("`{port}` is no port (0 to 65535): {advice}")),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Bytes with a decimal unit, four significant places at most: `1.23 GB`.
pub fn show_bytes(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        1_000_000_000_000.. => format!("{:.2} TB", b / 1e12),
        1_000_000_000.. => format!("{:.2} GB", b / 1e9),
        1_000_000.. => format!("{:.1} MB", b / 1e6),
        1_000.. => format!("{:.1} kB", b / 1e3),
        _ => format!("{bytes} B"),
    }
}

/// A duration for people: `0.42 s`, `12.3 s`, `3 min 04 s`, `2 h 05 min`.
pub fn show_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=9 => format!("{:.2} s", time.as_secs_f64()),
        10..=59 => format!("{:.1} s", time.as_secs_f64()),
        60..=3599 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A moment in UTC, from microseconds since 1970: `2026-11-22T08:14:01Z`.
pub fn show_time(micros: i64) -> String {
    let seconds = micros.div_euclid(1_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Howard Hinnant's calendar: years begin in March, eras of 400 years are 146,097 days long.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let leap = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A day as `2026-11-22`, in days since 1970 (after Howard Hinnant's `days_from_civil`).
pub fn parse_day(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    // Of a day that its month does not have another comes back.
    let is_there =
        show_time(days * 86_400_000_000).starts_with(&format!("{year:04}-{month:02}-{day:02}T"));
    is_there.then_some(days)
}

/// A value in a URL's path or query, with all that could mean something there written as %XX.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The number at the start of `text` and what follows it, trimmed.
fn split_number<'a>(text: &'a str, advice: &str) -> Result<(f64, &'a str), QuantityError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    match text[..end].parse::<f64>() {
        Ok(number) if number.is_finite() => Ok((number, text[end..].trim())),
        _ => refuse(format!("`{text}` does not start with a number: {advice}")),
    }
}

/// The factor of the unit's prefix, and the unit without it.
fn split_prefix(unit: &str) -> (f64, &str) {
    let mut chars = unit.chars();
    let power = match chars.next().map(|c| c.to_ascii_lowercase()) {
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        _ => return (1.0, unit),
    };
    let rest = chars.as_str();
    match rest.strip_prefix('i') {
        Some(rest) => (1024f64.powi(power), rest),
        None => (1000f64.powi(power), rest),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        HostPort, escape, parse_day, parse_duration, parse_rate, parse_share, parse_size,
        show_bytes, show_duration, show_time,
    };
    use std::time::Duration;

    #[test]
    fn a_value_of_a_query_is_nothing_else() {
        assert_eq!(escape("2001:db8::1"), "2001%3Adb8%3A%3A1");
        assert_eq!(escape("run/a b&c=ä"), "run%2Fa%20b%26c%3D%C3%A4");
    }

    #[test]
    fn moments_are_shown_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_305_599, "2026-11-21T23:59:59Z"),
            (1_795_305_600, "2026-11-22T00:00:00Z"),
        ] {
            assert_eq!(show_time(seconds * 1_000_000), text);
        }
        assert_eq!(parse_day("1970-01-01"), Some(0));
        assert_eq!(parse_day("2000-02-29"), Some(951_782_400 / 86_400));
        assert_eq!(parse_day("2026-11-22"), Some(1_795_305_600 / 86_400));
        for none in ["2026-02-31", "2026-02-29", "2100-02-29", "2026-11-31", "2026-13-01", "2026-1"]
        {
            assert_eq!(parse_day(none), None, "{none}");
        }
    }

    #[test]
    fn rates_carry_their_unit() {
        for (text, bps) in [
            ("100mbit", 100_000_000),
            ("100Mbit/s", 100_000_000),
            ("1.5gbit", 1_500_000_000),
            ("12MB/s", 96_000_000),
            ("12 MB/s", 96_000_000),
            ("1MiB/s", 8 * 1024 * 1024),
            ("10Mb/s", 10_000_000),
            ("10Mbps", 10_000_000),
            ("64kbit", 64_000),
            ("8kbit", 8_000),
        ] {
            assert_eq!(parse_rate(text).unwrap().bps(), bps, "{text}");
        }
        for text in
            ["100", "", "fast", "12MB", "7kbit", "1e400bit", "-5mbit", "10 mbot", "1.2.3mbit"]
        {
            let error = parse_rate(text).unwrap_err().to_string();
            assert!(error.contains("100mbit") || error.contains("1000 Tbit"), "{text}: {error}");
        }
    }

    #[test]
    fn durations_carry_their_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5min", 300_000),
            ("24h", 86_400_000),
            ("2d", 172_800_000),
            ("1h30min", 5_400_000),
            ("1.5h", 5_400_000),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in ["5", "", "soon", "5 weeks", "99999999d", "1h30"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_shares() {
        assert_eq!(parse_size("256MiB").unwrap(), 256 << 20);
        assert_eq!(parse_size("100MB").unwrap(), 100_000_000);
        assert_eq!(parse_size("512B").unwrap(), 512);
        assert!(parse_size("100").is_err());
        assert!(parse_size("100000000TB").is_err());
        assert_eq!(parse_share("2%").unwrap(), 0.02);
        assert!(parse_share("0.02").is_err());
        assert!(parse_share("101%").is_err());
    }

    #[test]
    fn hosts_have_ports_and_ipv6_has_brackets() {
        for text in ["node7:4000", "192.0.2.7:4000", "[2001:db8::7]:4000", "[fe80::1%eth0]:0"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        for text in ["node7", "2001:db8::7:4000", "[::1]", ":4000", "a b:1", "node7:65536", "x:"] {
            let error = text.parse::<HostPort>().unwrap_err().to_string();
            assert!(error.contains("host:4000"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read() {
        assert_eq!(show_bytes(999), "999 B");
        assert_eq!(show_bytes(1_234_000_000), "1.23 GB");
        assert_eq!(show_duration(Duration::from_secs(184)), "3 min 04 s");
        assert_eq!(show_duration(Duration::from_secs(7500)), "2 h 05 min");
    }
}
