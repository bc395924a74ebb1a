//! Drawings of what programs said: rates against time, and when each segment came (Ishihara 2002, fig. 5 to 10).
//!
//! A campaign that keeps logs leaves a folder for each program and cell: `sender.log`, `receiver.log`, `times.csv`, `rates.csv`.
//! The rates of a cell's programs stand on the same axes.

use crate::at;
use crate::curve::{Curve, Series};
use crate::experiment::{Cell, Experiment};
use crate::page;
use std::fs;
use std::io;
use std::path::Path;

/// Where logs are kept, below the campaign's folder.
pub(crate) const FOLDER: &str = "logs";
/// A segment that comes so much later than a later one was sent again, seconds.
const LATE_S: f64 = 0.5;
/// What a close-up shows at least on either side of the first of those, segments: few, so that the gap is seen that they fill.
const CLOSE: f64 = 60.0;
/// Where a `bmtp` sender starts that is told no other rate, packets/s.
const START: f64 = 200.0;

/// A run whose logs are kept.
pub(crate) struct Kept {
    /// As the experiment calls it.
    program: String,
    /// What tells its cell from the others; empty where there is one.
    cell: String,
    /// Where its logs lie, below [`FOLDER`].
    pub(crate) folder: String,
}

impl Kept {
    /// This program's in this cell.
    pub(crate) fn of(experiment: &Experiment, cell: &Cell, program: &str) -> Self {
        let varies = experiment.varies().filter(|name| *name != "receivers");
        let varies = varies.map(|name| format!("-{name}-{}", page::shown(cell, name)));
        let folder =
            file_name(&format!("{program}-{}{}", cell.receivers, varies.collect::<String>()));
        let told = experiment.varies().next().is_some();
        let told = told.then(|| page::heading(cell, experiment.varies()));
        Self { program: program.to_owned(), cell: told.unwrap_or_default(), folder }
    }
}

fn file_name(text: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '.';
    text.replace(" %", "").replace(", ", "-").replace(|c| !kept(c), "-")
}

/// Makes place for a campaign's logs.
pub(crate) fn begin(out: &Path) -> io::Result<()> {
    let folder = out.join(FOLDER);
    fs::create_dir(&folder).map_err(at(&folder))
}

/// Draws all that can be drawn of the logs, and adds it to the page.
pub(crate) fn draw(out: &Path, kept: &[Kept]) -> io::Result<()> {
    let mut rates: Vec<(&str, Vec<Series>)> = Vec::new();
    let mut curves = Vec::new();
    for Kept { program, cell, folder } in kept {
        let run = out.join(FOLDER).join(folder);
        // Those that are not there have nothing to say.
        let said = |file: &str| fs::read_to_string(run.join(file)).unwrap_or_default();
        let mut points = rate_points(&said("sender.log"), start_packets(program));
        points.extend(pairs(&said("rates.csv")));
        if !points.is_empty() {
            let series = Series { name: program.clone(), points, joined: true };
            match rates.iter_mut().find(|(known, _)| known == cell) {
                Some((_, beside)) => beside.push(series),
                None => rates.push((cell, vec![series])),
            }
        }
        let points = segment_points(&said("times.csv"));
        if !points.is_empty() {
            curves.extend(clouds((program, cell), folder, points));
        }
    }
    let rates: Vec<_> = rates.into_iter().map(rate_curve).collect();
    let page = out.join("README.md");
    let mut text = fs::read_to_string(&page)?;
    for (name, curve) in rates.into_iter().chain(curves) {
        fs::write(out.join(format!("{name}.svg")), curve.svg())?;
        text += &format!("![{}]({name}.svg)\n\n", curve.title);
    }
    fs::write(page, text)
}

/// The rates of a cell's programs, and the drawing's name.
fn rate_curve((cell, series): (&str, Vec<Series>)) -> (String, Curve) {
    let (name, title) = ("rates", "Packet rate against time, by the sender");
    let (name, title) = match cell {
        "" => (name.to_owned(), title.to_owned()),
        cell => (format!("{name}-{}", file_name(cell)), format!("{title}: {cell}")),
    };
    (name, Curve { title, x: "time, s".to_owned(), y: "packets/s".to_owned(), zero: true, series })
}

/// The rate at which a program's sender begins.
fn start_packets(program: &str) -> f64 {
    let told = program.split_once("--start-packets ");
    told.and_then(|(_, told)| told.split(' ').next()?.parse().ok()).unwrap_or(START)
}

/// Time in seconds and rate, of a `bmtp` sender's lines: it keeps one until it tells another.
fn rate_points(log: &str, start: f64) -> Vec<(f64, f64)> {
    let number = |text: &str| text.split([',', ' ']).next()?.parse::<f64>().ok();
    let point = |line: &str| {
        let rate = number(line.split_once("new_send_rate: ")?.1)?;
        let ms = number(line.split_once("time: ")?.1)?;
        Some((ms / 1e3, rate))
    };
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut before = start;
    for (time, rate) in log.lines().filter_map(point) {
        if points.is_empty() {
            points.push((0.0, start));
        }
        points.extend([(time, before), (time, rate)]);
        before = rate;
    }
    points
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
fn clouds(
    (program, cell): (&str, &str),
    folder: &str,
    points: Vec<(f64, f64)>,
) -> Vec<(String, Curve)> {
    let told = if cell.is_empty() { String::new() } else { format!("; {cell}") };
    let curve = |title: String, points: Vec<(f64, f64)>| Curve {
        title,
        x: "segment".to_owned(),
        y: "receive time, s".to_owned(),
        zero: false,
        series: vec![Series { name: program.to_owned(), points, joined: false }],
    };
    let mut curves = Vec::new();
    if let Some(([first, last], at)) = first_repairs(&points) {
        // As much beside it as was sent again: who came late missed thousands in a row.
        let margin = CLOSE.max(last - first);
        let window = first - margin..=last + margin;
        let close = points.iter().filter(|(s, _)| window.contains(s)).copied().collect();
        let title = format!("Receive time of each segment, close-up at {at:.1} s{told}");
        curves.push((format!("{folder}-close-up"), curve(title, close)));
    }
    let title = format!("Receive time of each segment{told}");
    curves.insert(0, (format!("{folder}-segments"), curve(title, points)));
    curves
}

/// The segments in a row, first and last, that others had overtaken, of those whose first came first; and when it came.
fn first_repairs(points: &[(f64, f64)]) -> Option<([f64; 2], f64)> {
    let mut earliest = f64::MAX;
    let mut end: Option<f64> = None;
    let mut found: Option<([f64; 2], f64)> = None;
    for (segment, time) in points.iter().rev() {
        if *time > earliest + LATE_S {
            let last = *end.get_or_insert(*segment);
            if found.is_none_or(|(_, at)| *time <= at) {
                found = Some(([*segment, last], *time));
            }
        } else {
            end = None;
        }
        earliest = earliest.min(*time);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{
        FOLDER, Kept, START, clouds, draw, first_repairs, rate_points, segment_points,
        start_packets,
    };
    use std::fs;

    #[test]
    fn lines_of_the_paper_are_read() {
        let log = "joined\nrec_rate: 200.995026 by 134.79.156.151, new_send_rate: 211.044769 time: 1016\n";
        assert_eq!(rate_points(log, 200.0), [(0.0, 200.0), (1.016, 200.0), (1.016, 211.044_769)]);
        assert!(rate_points("joined\n", 200.0).is_empty());
        assert_eq!(start_packets("downpour-bmtp --start-packets 2000"), 2000.0);
        assert_eq!(start_packets("downpour-bmtp"), START);
        assert_eq!(segment_points("segment,ms\n0,5\n1,-7\n2,1200\n"), [(0.0, 0.005), (2.0, 1.2)]);
    }

    #[test]
    fn programs_stand_together_cell_by_cell() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let kept = |program: &str, cell: &str| Kept {
            program: program.to_owned(),
            cell: cell.to_owned(),
            folder: format!("{program}-{cell}"),
        };
        let (few, much) = ("receivers 8, loss 2 %", "receivers 8, loss 8 %");
        let all = [kept("downpour-bmtp", few), kept("downpour", few), kept("downpour", much)];
        for run in &all {
            let logs = folder.join(FOLDER).join(&run.folder);
            fs::create_dir_all(&logs).unwrap();
            fs::write(logs.join("rates.csv"), "time_s,packets_per_s\n0.5,4\n1.0,2\n").unwrap();
        }
        fs::write(folder.join("README.md"), "").unwrap();
        draw(folder, &all).unwrap();
        let svg = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let (first, second) =
            (svg("rates-receivers-8-loss-2.svg"), svg("rates-receivers-8-loss-8.svg"));
        assert!(first.contains(">downpour-bmtp</text>") && first.contains(">downpour</text>"));
        assert!(second.contains(">downpour</text>") && !second.contains("bmtp"));
        assert!(first.contains(few) && second.contains(much));
        let page = svg("README.md");
        assert!(page.find("loss-2.svg") < page.find("loss-8.svg"), "{page}");
    }

    #[test]
    fn repairs_are_those_that_were_overtaken() {
        let points = [(0.0, 0.1), (1.0, 1.3), (2.0, 0.3), (3.0, 2.4), (4.0, 0.5)];
        assert_eq!(first_repairs(&points), Some(([1.0, 1.0], 1.3)));
        assert_eq!(first_repairs(&points[2..3]), None);
        let points = [(0.0, 1.2), (1.0, 1.3), (2.0, 0.3), (3.0, 1.1), (4.0, 1.1), (5.0, 0.4)];
        assert_eq!(first_repairs(&points), Some(([3.0, 4.0], 1.1)));
    }

    #[test]
    fn a_close_up_shows_the_gap_and_what_came_before_it_was_filled() {
        let close = |points: Vec<(f64, f64)>| {
            let curves = clouds(("downpour-bmtp", ""), "late", points);
            assert_eq!(curves[1].0, "late-close-up");
            let shown = &curves[1].1.series[0].points;
            (shown[0].0, shown[shown.len() - 1].0)
        };
        // Began with segment 1000; what was missed came a second later.
        let point = |s: u32| {
            let s = f64::from(s);
            if s < 1000.0 { (s, 1.0 + s / 1e3) } else { (s, (s - 1000.0) / 1e3) }
        };
        assert_eq!(close((0..4000).map(point).collect()), (0.0, 1998.0));
        // One in a stream was lost.
        let point = |s: u32| (f64::from(s), if s == 300 { 2.0 } else { f64::from(s) / 1e3 });
        assert_eq!(close((0..4000).map(point).collect()), (240.0, 360.0));
    }
}
