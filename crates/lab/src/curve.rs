//! Curves and clouds of points as SVG: numbers on both axes.
//!
//! A cloud of a hundred thousand points is drawn as the places on paper that it covers.

use crate::plot::{
    BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, escaped, figure, paper, step_of, words,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Of the paper, in its units: points nearer than this are one.
const GRAIN: f64 = 0.7;
/// Widths of a line, and of a point, on paper.
const LINE: f64 = 1.4;
const DOT: f64 = 2.0;
const TICKS: f64 = 7.0;

/// Points under one name.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether the points are joined.
    pub(crate) joined: bool,
}

/// One drawing.
pub(crate) struct Curve {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Whether y begins at zero however far off the least value is.
    pub(crate) zero: bool,
    pub(crate) series: Vec<Series>,
}

/// Values between two ends, and where they stand on paper.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, zero: bool, (from, to): (f64, f64)) -> Self {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        // From zero, unless that would hide what there is to see.
        if low > 0.0 && (zero || low < 0.5 * high) {
            low = 0.0;
        }
        if high <= low {
            high = low + 1.0;
        }
        // What is at the top stands off the edge.
        high += 0.05 * (high - low);
        Self { low, high, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let step = step_of((self.high - self.low) / TICKS);
        let first = (self.low / step).ceil() as i64;
        let values = (first..).map(|i| i as f64 * step);
        values.take_while(|value| *value <= self.high).collect()
    }
}

impl Curve {
    /// As the text of an SVG file.
    pub(crate) fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("writing to a String cannot fail");
        svg
    }

    fn draw(&self, svg: &mut String) -> std::fmt::Result {
        paper(svg, &self.title)?;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x = Axis::of(points().map(|p| p.0), false, (LEFT, right));
        let y = Axis::of(points().map(|p| p.1), self.zero, (bottom, TOP));
        for value in y.ticks() {
            let at = y.place(value);
            writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\" fill=\"none\"/>")?;
            words(svg, LEFT - 8.0, at + 4.0, "end", &figure(value))?;
        }
        for value in x.ticks() {
            words(svg, x.place(value), bottom + 20.0, "middle", &figure(value))?;
        }
        writeln!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" stroke=\"#444\" fill=\"none\"/>"
        )?;
        words(svg, f64::midpoint(LEFT, right), HEIGHT - 14.0, "middle", &escaped(&self.x))?;
        writeln!(
            svg,
            "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(TOP, bottom),
            escaped(&self.y)
        )?;
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let path = series.path(&x, &y)?;
            writeln!(
                svg,
                "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"{}\" fill=\"none\"/>",
                if series.joined { LINE } else { DOT }
            )?;
            let (at, line) = (WIDTH - RIGHT + 12.0, TOP + 10.0 + 20.0 * number as f64);
            writeln!(svg, "<path d=\"M{at} {line}h14\" stroke=\"{colour}\" stroke-width=\"4\"/>")?;
            words(svg, at + 20.0, line + 4.0, "start", &escaped(&series.name))?;
        }
        writeln!(svg, "</svg>")
    }
}

impl Series {
    fn path(&self, x: &Axis, y: &Axis) -> Result<String, std::fmt::Error> {
        let mut path = String::new();
        let places = self.points.iter().map(|(px, py)| (x.place(*px), y.place(*py)));
        if self.joined {
            for (number, (px, py)) in places.enumerate() {
                let pen = if number == 0 { 'M' } else { 'L' };
                write!(path, "{pen}{px:.1} {py:.1}")?;
            }
            return Ok(path);
        }
        let cells = places.map(|(px, py)| ((px / GRAIN) as i64, (py / GRAIN) as i64));
        for (column, row) in cells.collect::<BTreeSet<_>>() {
            write!(path, "M{:.1} {:.1}h{DOT}", column as f64 * GRAIN, row as f64 * GRAIN)?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Curve, Series};
    use crate::plot::{BOTTOM, HEIGHT, TOP};

    #[test]
    fn points_that_fall_together_are_drawn_once() {
        let points = |n: u32| (0..n).map(|i| (f64::from(i) / f64::from(n), 2.0)).collect();
        let series =
            |name: &str, joined, n| Series { name: name.to_owned(), points: points(n), joined };
        let curve = Curve {
            title: "a < b".to_owned(),
            x: "s".to_owned(),
            y: "packets/s".to_owned(),
            zero: false,
            series: vec![series("cloud", false, 100_000), series("line", true, 10)],
        };
        let svg = curve.svg();
        assert!(svg.len() < 40_000, "{}", svg.len());
        assert!(svg.contains("a &lt; b") && svg.contains(">line</text>"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let empty = Curve { series: Vec::new(), ..curve };
        assert!(!empty.svg().contains("NaN"));
    }
    #[test]
    fn rates_begin_at_zero_and_stay_below_the_edge() {
        let axis = |zero| Axis::of([436.0, 456.0].into_iter(), zero, (HEIGHT - BOTTOM, TOP));
        assert_eq!(axis(true).ticks()[0], 0.0);
        assert!(axis(true).place(456.0) > TOP + 10.0);
        // What is not a rate is seen from near.
        assert!(axis(false).ticks()[0] > 430.0);
    }
}
