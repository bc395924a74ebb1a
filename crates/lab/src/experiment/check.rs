//! What of an experiment is refused before anything runs: what could not be done, would be without effect, or would make a false
//! figure.

use super::{Cell, Experiment, Happening, Plot, RUNS_MAX};
use crate::emulator::pipe::{HELD_BACK, RATE_MIN, Shape};
use crate::record::Record;
use crate::units::Rate;
use std::collections::BTreeSet;

impl Experiment {
    pub(super) fn check(&self) -> Result<(), String> {
        let cells = self.cells()?;
        self.check_runs(cells.len())?;
        if !(f64::MIN_POSITIVE..f64::INFINITY).contains(&self.limit) {
            return Err(format!("limit = {}: give a number above 0", self.limit));
        }
        cells.iter().try_for_each(Cell::check)?;
        self.check_twice(&cells)?;
        let most = cells.iter().map(|cell| cell.receivers).max().unwrap_or_default();
        let links = self.odd_links(&Shape::default())?;
        check_once("link", links.iter().flat_map(|(which, _)| which))?;
        links.iter().try_for_each(|(which, _)| check_receivers("link", which, most))?;
        // What they do not say they have from the cell.
        for cell in &cells {
            for (which, shape) in self.odd_links(&cell.shape())? {
                shape.check().map_err(|e| format!("link of receivers {which:?}: {e}"))?;
            }
        }
        check_once("happening", self.happening.iter().flat_map(|befalls| &befalls.receivers))?;
        self.happening.iter().try_for_each(|happening| happening.check(most))?;
        self.check_changes()?;
        self.plot.iter().try_for_each(|plot| self.check_plot(plot, &cells))
    }

    pub(super) fn check_runs(&self, cells: usize) -> Result<(), String> {
        let runs = cells * self.programs.len() * self.repeats as usize;
        match (1..=RUNS_MAX).contains(&runs) {
            true => Ok(()),
            false => {
                Err(format!("{runs} runs: there must be one at least, and {RUNS_MAX} at most"))
            }
        }
    }

    /// Runs of what stands twice would be counted as each other's.
    fn check_twice(&self, cells: &[Cell]) -> Result<(), String> {
        let twice = |(i, name): &(usize, &String)| self.programs[..*i].contains(name);
        if let Some((_, name)) = self.programs.iter().enumerate().find(twice) {
            return Err(format!("programs: `{name}` stands twice; more runs are more repeats"));
        }
        match cells.iter().enumerate().any(|(i, cell)| cells[..i].contains(cell)) {
            true => Err("sweep: a value stands twice, so that two cells are the same".to_owned()),
            false => Ok(()),
        }
    }

    fn check_changes(&self) -> Result<(), String> {
        if !self.change.is_sorted_by(|before, after| before.at < after.at) {
            return Err("change: each must be later than the one before".to_owned());
        }
        match self.change.iter().all(|change| change.rate >= RATE_MIN) {
            true => Ok(()),
            false => Err(format!("change: the least rate is {RATE_MIN}")),
        }
    }

    /// A drawing of nothing, or one that takes runs of different cells for repeats, says what is not so.
    fn check_plot(&self, plot: &Plot, cells: &[Cell]) -> Result<(), String> {
        let Plot { x, y, only, .. } = plot;
        if !Record::has(y) {
            return Err(format!("plot: there is no figure `{y}`"));
        }
        let unknown = |name: &&String| cells.first().is_some_and(|cell| cell.field(name).is_none());
        if let Some(name) = only.keys().chain([x]).find(unknown) {
            return Err(format!("plot of {y}: cells have no field `{name}`"));
        }
        if !cells.iter().any(|cell| plot.shows(cell)) {
            let shown = "values are written as on the page, 1MiB and not 1024KiB";
            return Err(format!("plot of {y}: no cell is as `only` says ({shown})"));
        }
        match self.varies().find(|name| name != x && !only.contains_key(*name)) {
            Some(name) => Err(format!("plot of {y}: {name} varies; say in `only` which to draw")),
            None => Ok(()),
        }
    }
}

impl Happening {
    fn check(&self, most: usize) -> Result<(), String> {
        check_receivers("happening", &self.receivers, most)?;
        if self.pauses_at.is_some() == self.pauses_for.is_zero() {
            return Err("happening: pauses_at and pauses_for need each other".to_owned());
        }
        let at = self.joins_at.or(self.pauses_at).or(self.writes_take);
        at.map(drop).ok_or_else(|| {
            "happening: needs joins_at, pauses_at and pauses_for, or writes_take".to_owned()
        })
    }
}

/// Receivers of the cell with most; others have fewer, and pass those over.
fn check_receivers(what: &str, which: &[usize], most: usize) -> Result<(), String> {
    if which.is_empty() {
        return Err(format!("{what}: names no receivers"));
    }
    match which.iter().find(|i| **i >= most) {
        Some(i) => Err(format!("{what}: no cell has receiver {i}; they count from 0")),
        None => Ok(()),
    }
}

/// A receiver has one link, and one thing befalls it.
fn check_once<'a>(what: &str, mut which: impl Iterator<Item = &'a usize>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match which.find(|i| !seen.insert(**i)) {
        Some(i) => Err(format!("{what}: receiver {i} stands twice; name it once")),
        None => Ok(()),
    }
}

impl Cell {
    fn check(&self) -> Result<(), String> {
        if !(1..=super::RECEIVERS_MAX).contains(&self.receivers) {
            let most = super::RECEIVERS_MAX;
            return Err(format!("{} receivers, of 1 to {most}", self.receivers));
        }
        self.shape().check()?;
        let speed = f64::MIN_POSITIVE..f64::INFINITY;
        if self.feed_for.is_zero() || !speed.contains(&self.feed_speed) {
            return Err("a feed has a length and a speed above 0".to_owned());
        }
        if self.connections == Some(0) {
            return Err("connections = 0: give one at least".to_owned());
        }
        if self.transfers > super::TRANSFERS_MAX {
            let most = super::TRANSFERS_MAX;
            return Err(format!("{} transfers, of {most} at most", self.transfers));
        }
        let frame = |rate: Rate| rate.time_of(super::FRAME_BYTES as usize);
        if self.reorder > 0.0 && self.rate.is_some_and(|rate| frame(rate) >= HELD_BACK.0) {
            return Err(format!("reorder: no frame overtakes one that is {HELD_BACK} late here"));
        }
        match self.bytes() {
            0 => Err("nothing can be sent: size and transfers are above 0".to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Experiment;

    const TEXT: &str = r#"
        title = "a"
        programs = ["downpour", "uftp"]
        limit = 6.0
        [cell]
        rate = "100mbit"
        queue = "20ms"
        connections = 4
        feed_speed = 2.0
        burst = 1.0
        [sweep]
        size = ["64MiB", "256MiB"]
        receivers = [1, 8]
        loss = [0.0, 0.01, 0.05]
        [[link]]
        receivers = [3, 7]
        rate = "10mbit"
        loss = 0.3
        [[happening]]
        receivers = [5]
        pauses_at = "3s"
        pauses_for = "2s"
        [[change]]
        at = "2s"
        rate = "20mbit"
        [[change]]
        at = "7s"
        rate = "80mbit"
        [[plot]]
        x = "loss"
        y = "wall_over_bound"
        only = { receivers = 8, size = "64MiB" }
    "#;

    #[test]
    fn what_cannot_be_done_or_has_no_effect_is_refused() {
        Experiment::parse(TEXT).unwrap();
        for (old, new, why) in [
            ("\"downpour\", \"uftp\"", "\"uftp\", \"uftp\"", "`uftp` stands twice"),
            ("limit = 6.0", "limit = -100.0", "limit"),
            ("limit = 6.0", "limit = nan", "limit"),
            ("limit = 6.0", "limit = inf", "limit"),
            ("feed_speed = 2.0", "feed_speed = nan", "speed"),
            ("burst = 1.0", "burst = nan", "burst"),
            ("connections = 4", "connections = 0", "connections"),
            ("queue = \"20ms\"", "queue = \"0s\"", "queue"),
            ("rate = \"100mbit\"", "rate = \"1bit\"", "rate"),
            ("0.01, 0.05]", "0.01, 0.9999999]", "loss"),
            ("0.01, 0.05]", "0.01, 0.0000004]", "loss"),
            ("burst = 1.0", "transfers = 501", "501 transfers"),
            ("\"100mbit\"", "\"12mbit\"\nreorder = 0.1", "no frame overtakes"),
            ("0.01, 0.05]", "0.01, 0.01]", "stands twice"),
            ("\"256MiB\"", "\"65536KiB\"", "stands twice"),
            ("loss = 0.3", "loss = 2.0", "link of receivers [3, 7]: loss"),
            ("rate = \"10mbit\"", "rate = \"0bit\"", "link of receivers [3, 7]: rate"),
            ("receivers = [3, 7]", "receivers = [3, 8]", "link: no cell has receiver 8"),
            ("receivers = [3, 7]", "receivers = [3, 3]", "link: receiver 3 stands twice"),
            ("receivers = [5]", "receivers = [5, 5]", "happening: receiver 5 stands twice"),
            ("receivers = [5]", "receivers = [9]", "happening: no cell has receiver 9"),
            ("receivers = [5]", "receivers = []", "happening: names no receivers"),
            ("pauses_for = \"2s\"", "", "pauses_for"),
            ("pauses_at = \"3s\"", "", "pauses_for"),
            ("at = \"7s\"", "at = \"1s\"", "later than the one before"),
            ("rate = \"80mbit\"", "rate = \"0bit\"", "least rate"),
            ("x = \"loss\"", "x = \"loose\"", "no field `loose`"),
            ("x = \"loss\"", "x = \"program\"", "no field `program`"),
            ("x = \"loss\"", "x = \"queue\"", "loss varies"),
            ("wall_over_bound", "delivered_s", "no figure"),
            ("wall_over_bound", "program", "no figure"),
            ("wall_over_bound", "loss", "no figure"),
            ("only = { receivers = 8", "only = { receivers = 9", "no cell is as"),
            ("8, size = \"64MiB\"", "8, size = \"65536KiB\"", "no cell is as"),
            ("receivers = 8, size", "size", "receivers varies"),
        ] {
            let told = Experiment::parse(&TEXT.replacen(old, new, 1)).unwrap_err();
            assert!(told.contains(why), "{new}: {told}");
        }
        let befalls = "pauses_at = \"3s\"\n        pauses_for = \"2s\"";
        let nothing = Experiment::parse(&TEXT.replacen(befalls, "", 1)).unwrap_err();
        assert!(nothing.contains("needs joins_at"), "{nothing}");
    }

    #[test]
    fn a_loss_that_its_bursts_cannot_come_to_is_refused() {
        for burst in ["1.0", "1.5"] {
            let text = TEXT.replacen("burst = 1.0", &format!("burst = {burst}"), 1);
            Experiment::parse(&text.replacen("0.05]", "0.6]", 1)).unwrap();
            for (loss, more, whose) in [("0.05]", "0.61]", ""), ("= 0.3", "= 0.61", "link")] {
                let told = Experiment::parse(&text.replacen(loss, more, 1)).err();
                let told = told.unwrap_or_default();
                assert_eq!(burst != "1.0", told.contains("in bursts of 1.5"), "{told}");
                assert!(told.starts_with(whose) || told.is_empty(), "{told}");
            }
        }
    }
}
