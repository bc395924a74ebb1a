//! Drawings of what programs said: rates against time, and when each segment came (Ishihara 2002, fig. 5 to 10).
//!
//! A campaign that keeps logs leaves a folder for each program and cell: `sender.log`, `receiver.log`, `times.csv`, `rates.csv`.

use crate::at;
use crate::curve::{Curve, Series};
use std::fs;
use std::io;
use std::path::Path;

/// Where logs are kept, below the campaign's folder.
pub(crate) const FOLDER: &str = "logs";
/// A segment that comes so much later than a later one was sent again, seconds.
const LATE_S: f64 = 0.5;
/// What a close-up shows around the first of those, seconds.
const CLOSE_S: f64 = 0.15;

/// Makes place for a campaign's logs: none of another's stay.
pub(crate) fn begin(out: &Path) -> io::Result<()> {
    let folder = out.join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at(&folder))?;
    }
    fs::create_dir(&folder).map_err(at(&folder))
}

/// Draws all that can be drawn of the logs, and adds it to the page.
pub(crate) fn draw(out: &Path) -> io::Result<()> {
    let mut runs: Vec<_> = fs::read_dir(out.join(FOLDER))?.collect::<io::Result<_>>()?;
    runs.sort_by_key(fs::DirEntry::file_name);
    let (mut rates, mut curves) = (Vec::new(), Vec::new());
    for run in runs {
        let name = run.file_name().to_string_lossy().into_owned();
        // Those that are not there have nothing to say.
        let said = |file: &str| fs::read_to_string(run.path().join(file)).unwrap_or_default();
        let mut points = rate_points(&said("sender.log"));
        points.extend(pairs(&said("rates.csv")));
        if !points.is_empty() {
            rates.push(Series { name: name.clone(), points, joined: true });
        }
        let points = segment_points(&said("times.csv"));
        if !points.is_empty() {
            curves.extend(clouds(&name, points));
        }
    }
    if !rates.is_empty() {
        let curve = Curve {
            title: "Packet rate against time, by the sender".to_owned(),
            x: "time, s".to_owned(),
            y: "packets/s".to_owned(),
            series: rates,
        };
        curves.insert(0, ("rates".to_owned(), curve));
    }
    let page = out.join("README.md");
    let mut text = fs::read_to_string(&page)?;
    for (name, curve) in curves {
        fs::write(out.join(format!("{name}.svg")), curve.svg())?;
        text += &format!("![{}]({name}.svg)\n\n", curve.title);
    }
    fs::write(page, text)
}

/// Time in seconds and new rate, of a `bmtp` sender's lines.
fn rate_points(log: &str) -> Vec<(f64, f64)> {
    let number = |text: &str| text.split([',', ' ']).next()?.parse::<f64>().ok();
    let point = |line: &str| {
        let rate = number(line.split_once("new_send_rate: ")?.1)?;
        let ms = number(line.split_once("time: ")?.1)?;
        Some((ms / 1e3, rate))
    };
    log.lines().filter_map(point).collect()
}

/// Segment number and receive time in seconds.
fn segment_points(csv: &str) -> Vec<(f64, f64)> {
    pairs(csv).filter(|(_, ms)| *ms > 0.0).map(|(segment, ms)| (segment, ms / 1e3)).collect()
}

/// The lines of two numbers.
fn pairs(csv: &str) -> impl Iterator<Item = (f64, f64)> {
    let pair = |line: &str| {
        let (x, y) = line.split_once(',')?;
        Some((x.parse().ok()?, y.parse().ok()?))
    };
    csv.lines().filter_map(pair)
}

/// All segments, and a close-up of the first that were sent again.
fn clouds(name: &str, points: Vec<(f64, f64)>) -> Vec<(String, Curve)> {
    let curve = |title: String, points: Vec<(f64, f64)>| Curve {
        title,
        x: "segment".to_owned(),
        y: "receive time, s".to_owned(),
        series: vec![Series { name: name.to_owned(), points, joined: false }],
    };
    let mut curves = Vec::new();
    if let Some(at) = first_repair(&points) {
        let close = points.iter().filter(|(_, t)| (t - at).abs() <= CLOSE_S).copied().collect();
        let title = format!("{name}: receive time of each segment, close-up at {at:.1} s");
        curves.push((format!("{name}-close-up"), curve(title, close)));
    }
    let title = format!("{name}: receive time of each segment");
    curves.insert(0, (format!("{name}-segments"), curve(title, points)));
    curves
}

/// When the first segment came that others had overtaken.
fn first_repair(points: &[(f64, f64)]) -> Option<f64> {
    let mut earliest = f64::MAX;
    let mut first = None;
    for (_, time) in points.iter().rev() {
        if *time > earliest + LATE_S {
            first = Some(first.map_or(*time, |first: f64| first.min(*time)));
        }
        earliest = earliest.min(*time);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::{first_repair, rate_points, segment_points};

    #[test]
    fn lines_of_the_paper_are_read() {
        let log = "joined\nrec_rate: 200.995026 by 134.79.156.151, new_send_rate: 211.044769 time: 1016\n";
        assert_eq!(rate_points(log), [(1.016, 211.044_769)]);
        assert_eq!(segment_points("segment,ms\n0,5\n1,-7\n2,1200\n"), [(0.0, 0.005), (2.0, 1.2)]);
    }

    #[test]
    fn repairs_are_those_that_were_overtaken() {
        let points = [(0.0, 0.1), (1.0, 1.3), (2.0, 0.3), (3.0, 2.4), (4.0, 0.5)];
        assert_eq!(first_repair(&points), Some(1.3));
        assert_eq!(first_repair(&points[2..3]), None);
    }
}
