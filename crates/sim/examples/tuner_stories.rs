//! FTS3's tuner, written from its description, and the closed loop, in the fourteen places where the former is weak.

fn main() {
    let figure = |value: f64| match value {
        v if v.abs() >= 100.0 || v.fract() == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    };
    println!("| # | weakness | measured | FTS3's | ours |\n| --- | --- | --- | --- | --- |");
    for story in downpour_sim::tuner::stories::all() {
        let (theirs, ours) = (figure(story.theirs), figure(story.ours));
        let missed = if story.holds() { "" } else { " (not better)" };
        let (number, weakness, measure) = (story.number, story.weakness, story.measure);
        println!("| {number} | {weakness} | {measure} | {theirs} | {ours}{missed} |");
    }
}
