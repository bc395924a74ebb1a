//! The line of perfSONAR's check program:
//! `PS_CHECK_THROUGHPUT OK - Average throughput is 9.066Gbps | Count=3;; Min=8.9;; Max=9.2;; Average=9.066;;`
//!
//! 1. The word after the name must be OK: what only warns is no success.
//! 2. The text before `|` carries a figure with its unit. That one is believed.
//! 3. The figures after `|` have no unit, or a label that is wrong elsewhere: they are taken in the unit in which their average
//!    is the text's.

use super::sample::{Refused, Spread};

/// How the line begins.
pub(super) const NAME: &str = "PS_CHECK_THROUGHPUT";
/// How far the two averages may differ: one is printed with fewer digits.
const ROUNDING: f64 = 0.01;
/// Units that are tried, and their bit/s.
const UNITS: [(&str, f64); 5] =
    [("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("Tbit/s", 1e12)];

/// Figures in bit/s, and the unit that they turned out to have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checked {
    pub(super) spread: Spread,
    pub(super) unit: &'static str,
}

/// What a whole line tells.
pub(super) fn read(line: &str) -> Result<Checked, Refused> {
    let (words, figures) = line.split_once('|').unwrap_or((line, ""));
    let rate = summary(words)?;
    let figure = |name: &str| {
        let mut pairs = figures.split(';').filter_map(|part| part.trim().split_once('='));
        pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse::<f64>().ok())
    };
    match figure("Average").filter(|average| average.is_finite()) {
        None => Ok(Checked { spread: Spread::of(rate), unit: "its text's" }),
        Some(avg) => {
            let [min, max] = ["Min", "Max"].map(figure);
            agree(Spread { avg, min, max }, rate)
        }
    }
}

/// The rate in the text of a check that says OK, in bit/s.
pub(super) fn summary(words: &str) -> Result<f64, Refused> {
    let refuse = |what: String| Err(Refused(what));
    let Some(rest) = words.trim().strip_prefix(NAME) else {
        return refuse(format!("a check's line that does not begin with {NAME}"));
    };
    let status = rest.split_whitespace().next().unwrap_or("nothing");
    if status != "OK" {
        return refuse(format!("a check that says {}", super::lenient::clip(status)));
    }
    let rate = rest.split_whitespace().find_map(rate);
    rate.map_or_else(|| refuse("a check without a rate in its text".to_owned()), Ok)
}

/// `9.066Gbps` in bit/s.
fn rate(word: &str) -> Option<f64> {
    let at = word.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = word[..at].parse().ok()?;
    let prefix = word[at..].trim_end_matches(['.', ',', ';']).strip_suffix("bps")?;
    let (_, factor) = UNITS.iter().find(|(unit, _)| {
        unit.strip_suffix("bit/s").is_some_and(|known| known.eq_ignore_ascii_case(prefix))
    })?;
    Some(number * factor)
}

/// Figures in the unit in which their average is `rate`.
pub(super) fn agree(spread: Spread, rate: f64) -> Result<Checked, Refused> {
    let near = |factor: f64| (spread.avg * factor - rate).abs() <= ROUNDING * rate;
    match UNITS.iter().find(|(_, factor)| rate > 0.0 && near(*factor)) {
        Some((unit, factor)) => Ok(Checked { spread: spread.scale(*factor), unit }),
        None => {
            let avg = spread.avg;
            Err(Refused(format!("an average of {avg} beside a text that says {rate} bit/s")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    const LINE: &str = "PS_CHECK_THROUGHPUT OK - Average throughput is 9.066Gbps | \
                        Count=3;; Min=8.9;; Max=9.2;; Average=9.066;; Standard_Deviation=0.1;;";

    #[test]
    fn the_line_is_read_in_its_unit() {
        let checked = read(LINE).unwrap();
        let spread = checked.spread;
        assert_eq!((spread.avg, checked.unit), (9.066e9, "Gbit/s"));
        assert_eq!(spread.max, Some(9.2e9));
        assert!((spread.min.unwrap() - 8.9e9).abs() < 1.0, "{spread:?}");
        // Without figures, and with figures in another unit.
        let bare = LINE.split('|').next().unwrap();
        assert_eq!(read(bare).unwrap().spread.avg, 9.066e9);
        let small = LINE.replace("9.066Gbps", "9.066Mbps");
        assert_eq!(
            (read(&small).unwrap().unit, read(&small).unwrap().spread.avg),
            ("Mbit/s", 9.066e6)
        );
    }

    #[test]
    fn only_what_is_ok_and_agrees_is_taken() {
        for (line, why) in [
            (LINE.replace("OK", "WARNING"), "says WARNING"),
            (LINE.replace("OK", "UNKNOWN"), "says UNKNOWN"),
            (LINE.replace("9.066Gbps", "8.0Gbps"), "beside a text"),
            (LINE.replace("9.066Gbps", "lost"), "without a rate"),
            (LINE.replace("PS_CHECK_THROUGHPUT", "PS_CHECK_OWDELAY"), "does not begin"),
            (String::new(), "does not begin"),
        ] {
            let told = read(&line).unwrap_err().0;
            assert!(told.contains(why), "{line}: {told}");
        }
    }
}
