//! Reading what archives write: numbers as text, nulls, missing and repeated keys, times in several forms.
//!
//! A repeated key counts as it was said last. What cannot be read is `None`.

use super::source::SourceError;
use crate::output::one_line;
use crate::units::parse_day;
use downpour_catalog::Time;
use serde_json::Value;

/// Letters of a source's own text that are passed on.
const CLIP: usize = 160;

/// A document, if it is JSON.
pub(super) fn json(body: &[u8]) -> Result<Value, SourceError> {
    serde_json::from_slice(body).map_err(|error| {
        let begins = body.trim_ascii_start();
        SourceError::Nonsense(if begins.is_empty() {
            "nothing".to_owned()
        } else if begins.starts_with(b"<") {
            "HTML, not JSON".to_owned()
        } else if error.is_eof() {
            "JSON that breaks off".to_owned()
        } else {
            format!("no JSON: {error}")
        })
    })
}

/// A finite number, also one written as text.
pub(super) fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.filter(|number: &f64| number.is_finite())
}

/// A text that is not empty.
pub(super) fn text(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// Yes or no.
pub(super) fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => number(value).map(|number| number != 0.0),
    }
}

/// A list's items; none when it is no list.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The beginning of a source's own words, on one line.
pub(super) fn clip(text: &str) -> String {
    let line = one_line(text);
    let end = line.char_indices().nth(CLIP).map_or(line.len(), |(at, _)| at);
    line[..end].trim().to_owned()
}

/// A point in time: ISO 8601, or seconds since 1970. Without a zone it is UTC.
pub(super) fn moment(value: &Value) -> Option<Time> {
    if let Some(seconds) = number(value) {
        let plausible = (0.0..1e11).contains(&seconds);
        return plausible.then_some(Time((seconds * 1e6) as i64));
    }
    let text = text(value)?;
    let (date, rest) = (text.get(..10)?, text.get(10..)?);
    let day = parse_day(date)?;
    let clock = rest.trim_start_matches(['T', 't', ' ']);
    let zone_at = clock.find(['Z', 'z', '+', '-']).unwrap_or(clock.len());
    let (clock, zone) = clock.split_at(zone_at);
    let mut parts = clock.trim().splitn(3, ':').map(|part| part.parse::<f64>().ok());
    let (hour, minute) = (parts.next()??, parts.next().unwrap_or(Some(0.0))?);
    let second = parts.next().unwrap_or(Some(0.0))?;
    let inside = (0.0..24.0).contains(&hour)
        && (0.0..60.0).contains(&minute)
        && (0.0..61.0).contains(&second);
    let seconds = day as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second - offset(zone)?;
    inside.then_some(Time((seconds * 1e6) as i64))
}

/// Seconds by which a zone is ahead of UTC.
fn offset(zone: &str) -> Option<f64> {
    let sign = match zone.trim().chars().next() {
        None | Some('Z' | 'z') => return Some(0.0),
        Some('-') => -1.0,
        _ => 1.0,
    };
    let digits: String = zone.chars().filter(char::is_ascii_digit).collect();
    let hours: f64 = digits.get(..2)?.parse().ok()?;
    let minutes: f64 = digits.get(2..4).unwrap_or("0").parse().ok()?;
    Some(sign * (hours * 3600.0 + minutes * 60.0))
}

/// Seconds of an ISO 8601 duration such as `PT0.0345S`, or a bare number of seconds. Years, months and repeats are refused.
pub(super) fn seconds(value: &Value) -> Option<f64> {
    if let Some(number) = number(value) {
        return Some(number);
    }
    let rest = text(value)?.strip_prefix('P')?;
    let (days, clock) = rest.split_once('T').unwrap_or((rest, ""));
    let mut sum = 0.0;
    for (part, units) in [(days, "D"), (clock, "HMS")] {
        let mut part = part;
        while !part.is_empty() {
            let end = part.find(|c: char| c.is_ascii_alphabetic())?;
            let amount: f64 = part[..end].parse().ok()?;
            let unit = part[end..].chars().next()?;
            sum += amount
                * match unit {
                    _ if !units.contains(unit) => return None,
                    'D' => 86_400.0,
                    'H' => 3600.0,
                    'M' => 60.0,
                    _ => 1.0,
                };
            part = &part[end + 1..];
        }
    }
    Some(sum).filter(|sum| sum.is_finite())
}

#[cfg(test)]
mod tests {
    use super::{json, moment, number, seconds, truth};
    use crate::units::show_time;
    use downpour_catalog::Time;
    use serde_json::json;

    #[test]
    fn times_are_read_in_their_forms() {
        let noon = Time(1_373_973_137_000_000);
        for text in [
            "2013-07-16 11:12:17.0",
            "2013-07-16T11:12:17Z",
            "2013-07-16T13:12:17+02:00",
            "2013-07-16T06:42:17.000-0430",
        ] {
            assert_eq!(moment(&json!(text)), Some(noon), "{text}");
        }
        assert_eq!(moment(&json!(1_373_973_137)), Some(noon));
        assert_eq!(moment(&json!("1373973137")), Some(noon));
        for day in ["2000-02-29", "2024-02-29", "2023-03-01", "1999-12-31", "2026-01-01"] {
            let text = format!("{day}T23:59:59Z");
            assert_eq!(show_time(moment(&json!(text)).unwrap().0), text);
        }
        for wrong in ["", "yesterday", "2013-13-01T00:00:00Z", "2013-07-16", "2013-07-16T25:00"] {
            assert_eq!(moment(&json!(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn durations_are_those_of_the_measuring_program() {
        assert_eq!(seconds(&json!("PT0.0345S")), Some(0.0345));
        assert_eq!(seconds(&json!("P1DT1H1M1S")), Some(90_061.0));
        for wrong in ["P1Y", "P1M", "R5/PT1S", "PTxS", "PT1", "", "12ms"] {
            assert_eq!(seconds(&json!(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_may_be_text_and_keys_may_be_repeated() {
        let read = json(br#"{"a":"9.4e9","a":"9.5e9","b":null,"c":"yes"}"#).unwrap();
        assert_eq!(number(&read["a"]), Some(9.5e9), "the last one counts");
        assert_eq!(
            (number(&read["b"]), number(&read["c"]), number(&read["d"])),
            (None, None, None)
        );
        assert_eq!(number(&json!("inf")), None);
        assert_eq!((truth(&json!("True")), truth(&json!(0))), (Some(true), Some(false)));
    }

    #[test]
    fn what_is_no_document_is_named() {
        for (body, word) in
            [("<!DOCTYPE html>", "HTML"), ("{\"a\":[1,", "breaks off"), (" ", "nothing")]
        {
            let told = json(body.as_bytes()).unwrap_err().to_string();
            assert!(told.contains(word), "{told}");
        }
    }
}
