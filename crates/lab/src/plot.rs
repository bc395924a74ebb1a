//! Drawings as SVG: a line for each program, a mark for each median, hollow where runs failed, a stroke from the least to the
//! greatest. Or bars, side by side, one for each program. Which runs failed stands below a program's name.
//!
//! Knows nothing of experiments. The values of x stand at equal distances, as words; y starts at zero, or, as is said
//! beside it, near the least value where that is more than half of the greatest, or is logarithmic when they are far apart.

use std::fmt::Write as _;

pub(crate) const WIDTH: f64 = 940.0;
pub(crate) const HEIGHT: f64 = 440.0;
pub(crate) const LEFT: f64 = 70.0;
/// Holds the names: the longest have 43 letters.
pub(crate) const RIGHT: f64 = 320.0;
pub(crate) const TOP: f64 = 40.0;
pub(crate) const BOTTOM: f64 = 60.0;
/// From here on y is logarithmic.
const FAR_APART: f64 = 6.0;
/// Digits behind the point of a figure, where no more are needed.
const DECIMALS: i32 = 3;
/// Lines across.
const TICKS: f64 = 6.0;
/// Told apart also by those who see few colours, together with the marks.
pub(crate) const COLOURS: &[&str] = &[
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933",
    "#882255", "#44aa99",
];

/// One drawing.
pub(crate) struct Drawing {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Values of x, as they are to be shown.
    pub(crate) columns: Vec<String>,
    /// Name, and what it came to in each column.
    pub(crate) lines: Vec<(String, Vec<Point>)>,
    /// Bars instead of lines.
    pub(crate) bars: bool,
}

/// As many as have room beside a drawing.
const FAILED_SHOWN: usize = 3;

/// What a program came to in a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// The median, the least and the greatest; `None` where no run came to any.
    pub(crate) spread: Option<[f64; 3]>,
    /// So many runs failed,
    pub(crate) failed: usize,
    /// of so many.
    pub(crate) runs: usize,
}

/// How y becomes a height.
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Drawing {
    /// As the text of an SVG file.
    pub(crate) fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("writing to a String cannot fail");
        svg
    }

    fn draw(&self, svg: &mut String) -> std::fmt::Result {
        paper(svg, &self.title)?;
        let points = self.lines.iter().flat_map(|(_, points)| points);
        let mut scale = Scale::of(points.filter_map(|point| point.spread.as_ref()));
        if self.bars {
            // The length of a bar is its value.
            scale = Scale { low: 0.0, is_log: false, ..scale };
        }
        self.axes(svg, &scale)?;
        for (number, line) in self.lines.iter().enumerate() {
            match self.bars {
                true => self.bars(svg, &scale, number, &line.1)?,
                false => self.line(svg, &scale, number, &line.1)?,
            }
            self.legend(svg, number, line)?;
        }
        writeln!(svg, "</svg>")
    }

    fn axes(&self, svg: &mut String, scale: &Scale) -> std::fmt::Result {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let ticks = scale.ticks();
        // As many digits as tell one from the next.
        let step = ticks.windows(2).map(|pair| pair[1] - pair[0]).reduce(f64::min);
        let digits = step.map_or(DECIMALS, |step| DECIMALS.max(-step.log10().floor() as i32));
        for value in ticks {
            let y = scale.height(value);
            writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\" fill=\"none\"/>")?;
            words(svg, LEFT - 8.0, y + 4.0, "end", &rounded(value, digits))?;
        }
        for (column, name) in self.columns.iter().enumerate() {
            words(svg, self.place(column), bottom + 20.0, "middle", &escaped(name))?;
        }
        writeln!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" stroke=\"#444\" fill=\"none\"/>"
        )?;
        words(svg, f64::midpoint(LEFT, right), HEIGHT - 14.0, "middle", &escaped(&self.x))?;
        let middle = f64::midpoint(TOP, bottom);
        writeln!(
            svg,
            "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(&self.y) + scale.remark()
        )
    }

    fn line(
        &self,
        svg: &mut String,
        scale: &Scale,
        number: usize,
        points: &[Point],
    ) -> std::fmt::Result {
        let colour = COLOURS[number % COLOURS.len()];
        // Lines that would hide one another stand a little apart.
        let apart = (number as f64 - self.lines.len() as f64 / 2.0) * 3.0;
        let (mut path, mut marks) = (String::new(), String::new());
        let mut pen = 'M';
        for (column, point) in points.iter().enumerate() {
            let Some([median, least, greatest]) = point.spread else {
                pen = 'M';
                continue;
            };
            let (x, y) = (self.place(column) + apart, scale.height(median));
            let (low, high) = (scale.height(least), scale.height(greatest));
            write!(path, "{pen}{x:.1} {y:.1}")?;
            pen = 'L';
            writeln!(svg, "<path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\"/>")?;
            let fill = if point.failed > 0 { "white" } else { colour };
            mark(&mut marks, number, (x, y), (colour, fill))?;
        }
        write!(
            svg,
            "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"1.6\" fill=\"none\"/>\n{marks}"
        )
    }

    /// A program's name, and which of its runs failed.
    fn legend(
        &self,
        svg: &mut String,
        number: usize,
        (name, points): &(String, Vec<Point>),
    ) -> std::fmt::Result {
        let (x, y) = (WIDTH - RIGHT + 20.0, TOP + 10.0 + 20.0 * number as f64);
        let colour = COLOURS[number % COLOURS.len()];
        // A bar's is a square.
        mark(svg, if self.bars { 1 } else { number }, (x, y), (colour, colour))?;
        words(svg, x + 12.0, y + 4.0, "start", &escaped(name))?;
        let failed = self.columns.iter().zip(points).filter(|(_, point)| point.failed > 0);
        let failed = failed
            .map(|(column, Point { failed, runs, .. })| format!("{failed} of {runs} at {column}"));
        let mut failed: Vec<String> = failed.collect();
        if failed.is_empty() {
            return Ok(());
        }
        if failed.len() > FAILED_SHOWN {
            let more = format!("in {} more", failed.len() - FAILED_SHOWN);
            failed.splice(FAILED_SHOWN.., [more]);
        }
        let failed = escaped(&failed.join(", "));
        let small = format!("<tspan font-size=\"9\">failed: {failed}</tspan>");
        words(svg, x + 12.0, y + 13.0, "start", &small)
    }

    fn bars(
        &self,
        svg: &mut String,
        scale: &Scale,
        number: usize,
        points: &[Point],
    ) -> std::fmt::Result {
        let colour = COLOURS[number % COLOURS.len()];
        let group = (WIDTH - RIGHT - LEFT) / self.columns.len().max(1) as f64;
        let width = group * 0.8 / self.lines.len() as f64;
        for (column, point) in points.iter().enumerate() {
            let Some([median, least, greatest]) = point.spread else { continue };
            let x = self.place(column) - group * 0.4 + width * number as f64;
            let (top, bottom, middle) = (scale.height(median), HEIGHT - BOTTOM, x + width / 2.0);
            let (low, high) = (scale.height(least), scale.height(greatest));
            writeln!(
                svg,
                "<path d=\"M{x:.1} {bottom:.1}V{top:.1}h{width:.1}V{bottom:.1}z\" fill=\"{colour}\"/>\n\
                 <path d=\"M{middle:.1} {low:.1}V{high:.1}\" stroke=\"#444\"/>"
            )?;
        }
        Ok(())
    }

    fn place(&self, column: usize) -> f64 {
        let width = (WIDTH - RIGHT - LEFT) / self.columns.len().max(1) as f64;
        LEFT + (column as f64 + 0.5) * width
    }
}

impl Scale {
    fn of<'a>(values: impl Iterator<Item = &'a [f64; 3]>) -> Self {
        let (mut low, mut high) = (f64::MAX, 0.0_f64);
        for [_, least, greatest] in values {
            low = low.min(*least);
            high = high.max(*greatest);
        }
        if high <= 0.0 {
            return Self { low: 0.0, high: 1.0, is_log: false };
        }
        if low > 0.0 && high / low > FAR_APART {
            return Self { low: low / 1.2, high: high * 1.2, is_log: true };
        }
        // Far from zero, the distances that there are to see would be lost in the one that is not.
        let low =
            if low > 0.5 * high { (low - 0.08 * (high - low)).max(0.0) } else { low.min(0.0) };
        // Also where all are alike.
        let room = ((high - low) * 0.08).max(high * 1e-3);
        Self { low, high: high + room, is_log: false }
    }

    /// What is not as one would take it to be.
    fn remark(&self) -> &'static str {
        match () {
            () if self.is_log => " (logarithmic)",
            () if self.low > 0.0 => " (not from 0)",
            () => "",
        }
    }

    fn height(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(d)));
            return all.filter(|v| (self.low..=self.high).contains(v)).collect();
        }
        let step = step_of((self.high - self.low) / TICKS);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.high).collect()
    }
}

/// A round number that is not less.
pub(crate) fn step_of(rough: f64) -> f64 {
    let decade = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

fn mark(
    svg: &mut String,
    number: usize,
    (x, y): (f64, f64),
    (stroke, fill): (&str, &str),
) -> std::fmt::Result {
    let shape = match number % 3 {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
        1 => "m-4 -4h8v8h-8z",
        _ => "m0 -5l5 9h-10z",
    };
    writeln!(svg, "<path d=\"M{x:.1} {y:.1}{shape}\" stroke=\"{stroke}\" fill=\"{fill}\"/>")
}

/// An empty sheet with its title.
pub(crate) fn paper(svg: &mut String, title: &str) -> std::fmt::Result {
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
    )?;
    let title = format!("<tspan font-size=\"15\">{}</tspan>", escaped(title));
    words(svg, LEFT, TOP - 16.0, "start", &title)
}

pub(crate) fn words(
    svg: &mut String,
    x: f64,
    y: f64,
    anchor: &str,
    text: &str,
) -> std::fmt::Result {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>")
}

/// A figure without digits that say nothing.
pub(crate) fn figure(value: f64) -> String {
    rounded(value, DECIMALS)
}

fn rounded(value: f64, digits: i32) -> String {
    let text = format!("{value:.*}", digits as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{BOTTOM, Drawing, HEIGHT, Point, Scale};

    /// A program of which no run failed where it came to something.
    fn line(name: &str, spreads: &[Option<[f64; 3]>]) -> (String, Vec<Point>) {
        let point = |spread: &Option<[f64; 3]>| Point {
            spread: *spread,
            failed: if spread.is_some() { 0 } else { 3 },
            runs: 3,
        };
        (name.to_owned(), spreads.iter().map(point).collect())
    }

    #[test]
    fn bars_begin_at_zero_and_stand_side_by_side() {
        let drawing = Drawing {
            title: "t".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            columns: vec!["3".to_owned(), "4".to_owned()],
            lines: vec![
                line("one", &[Some([1.0, 0.9, 1.2]), Some([20.0, 19.0, 22.0])]),
                line("two", &[None, Some([1.5, 1.5, 1.5])]),
            ],
            bars: true,
        };
        let svg = drawing.svg();
        let bottom = format!("V{:.1}z", HEIGHT - BOTTOM);
        assert_eq!(svg.matches(&bottom).count(), 3);
        assert!(!svg.contains("logarithmic") && svg.contains(">two</text>"));
    }

    #[test]
    fn a_drawing_has_its_lines_names_and_no_open_ends() {
        let mut drawing = Drawing {
            title: "wall < bound & more".to_owned(),
            x: "loss".to_owned(),
            y: "wall".to_owned(),
            columns: vec!["0".to_owned(), "0.05".to_owned()],
            lines: vec![
                line("one", &[Some([1.0, 0.9, 1.2]), Some([2.0, 1.9, 2.2])]),
                line("two", &[None, Some([1.5, 1.5, 1.5])]),
            ],
            bars: false,
        };
        let svg = drawing.svg();
        assert!(svg.contains("wall &lt; bound &amp; more") && svg.contains(">two</text>"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // What failed in one run of three is no median of three.
        let hollow = |svg: &str| svg.matches("z\" stroke=\"#d55e00\" fill=\"white\"").count();
        assert!(svg.contains("failed: 3 of 3 at 0<") && hollow(&svg) == 0);
        drawing.lines[1].1[1].failed = 1;
        let svg = drawing.svg();
        assert!(svg.contains("failed: 3 of 3 at 0, 1 of 3 at 0.05<") && hollow(&svg) == 1);
    }

    #[test]
    fn ticks_that_are_near_one_another_are_told_apart() {
        let drawing = Drawing {
            title: "t".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            columns: vec!["3".to_owned()],
            lines: vec![line("one", &[Some([0.23305, 0.23301, 0.23309])])],
            bars: false,
        };
        let svg = drawing.svg();
        let ticks = svg.lines().filter_map(|line| line.split_once("\"end\">"));
        let ticks: Vec<&str> = ticks.map(|(_, tick)| tick.split('<').next().unwrap()).collect();
        let mut once = ticks.clone();
        once.dedup();
        assert!(ticks.len() > 2 && once == ticks, "{ticks:?}");
    }

    #[test]
    fn y_grows_upwards_and_is_logarithmic_only_when_it_must() {
        let near = Scale::of([[1.0, 1.0, 2.0], [5.0, 4.0, 6.0]].iter());
        assert!(!near.is_log && near.height(0.0) > near.height(6.0));
        assert_eq!(near.ticks(), [0.0, 2.0, 4.0, 6.0]);
        let far = Scale::of([[1.0, 1.0, 2.0], [50.0, 40.0, 60.0]].iter());
        assert!(far.is_log && far.height(1.0) > far.height(60.0));
        assert_eq!(far.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        let alike = Scale::of([[1.02, 1.02, 1.04], [1.1, 1.08, 1.1]].iter());
        assert!(!alike.is_log && alike.height(1.02) - alike.height(1.1) > 250.0);
        assert!(alike.ticks().len() > 3 && alike.ticks()[0] > 1.0);
        let same = Scale::of([[7.0, 7.0, 7.0]].iter());
        assert!(same.height(7.0).is_finite() && !same.ticks().is_empty());
        let none = Scale::of([].iter());
        assert!(none.height(0.5).is_finite());
    }
}
