//! Shows how a session goes: bars on a terminal, plain lines elsewhere, nothing with `--quiet`.
//!
//! The session gives a [`Snapshot`] as often as it likes; the display decides what is worth drawing.
//! Up to [`ROWS_MAX`] receivers have a bar each; above that there is one bar for all and rows for the
//! [`WORST_ROWS`] that are furthest behind. Everything goes to standard error: standard output may be
//! the data (`receive --out -`) or the report (`--json`).
//!
//! A row fits into 80 columns; where the terminal is narrower its end is cut off, so what matters most comes first.
//!
//! Plain lines are `key=value` pairs, one line per [`LINE_INTERVAL`] at most, so that a log stays short; and none while there is
//! nothing to do and nothing changes, as between the sessions of a receiver that stays.

use crate::output::plain;
use crate::units::{show_bytes, show_duration};
use downpour_proto::Rate;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

/// Most receivers that have a bar each.
pub const ROWS_MAX: usize = 16;
/// Rows for single receivers when there are more than [`ROWS_MAX`].
pub const WORST_ROWS: usize = 5;
/// Shortest time between two plain lines.
pub const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// What a session is doing at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Since the session was opened.
    pub elapsed: Duration,
    /// What is going on.
    pub phase: Phase,
    /// Bytes of data in all; `None` while a pipe has not ended.
    pub data_bytes: Option<u64>,
    /// The rate at which the stream is sent or received now.
    pub rate: Rate,
    /// Repair over source symbols, so far.
    pub repair: f64,
    /// The receivers; at a receiver its own entry alone.
    pub receivers: Vec<Row>,
}

/// What is going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for receivers (at the sender) or for the sender (at a receiver).
    Waiting {
        /// What is waited for, for people: `3 of 8 receivers joined`.
        what: String,
    },
    /// Data flows.
    Streaming,
    /// All data was sent once; repair, pulls and receipts are left.
    Finishing,
}

impl Phase {
    const fn word(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waiting",
            Self::Streaming => "streaming",
            Self::Finishing => "finishing",
        }
    }
}

/// One receiver.
#[derive(Clone, Debug)]
pub struct Row {
    /// As it named itself.
    pub name: String,
    /// Where it stands, in one word: `stream`, `pull`, `complete`, `failed`, `gone`.
    pub state: &'static str,
    /// Verified bytes that it holds.
    pub done_bytes: u64,
    /// Its rate now, by stream and pull.
    pub rate: Rate,
    /// Share of datagrams lost, recently.
    pub loss: f64,
}

impl Row {
    fn is_over(&self) -> bool {
        matches!(self.state, "complete" | "failed" | "gone")
    }
}

/// Of a snapshot, whether anything has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stand {
    phase: &'static str,
    data_bytes: Option<u64>,
    done_bytes: u64,
    receivers: usize,
    over: usize,
}

impl Snapshot {
    /// Time until the receiver that is furthest behind has everything; `None` when nobody can tell.
    pub fn eta(&self) -> Option<Duration> {
        let total = self.data_bytes?;
        let waits = self.receivers.iter().filter(|row| !row.is_over()).map(|row| {
            let missing = total.saturating_sub(row.done_bytes);
            (row.rate.bps() > 0).then(|| row.rate.time_for(missing))
        });
        waits.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn slowest_bytes(&self) -> u64 {
        let done = self.receivers.iter().filter(|row| !matches!(row.state, "failed" | "gone"));
        done.map(|row| row.done_bytes).min().unwrap_or(0)
    }

    fn mean_loss(&self) -> f64 {
        let n = self.receivers.len().max(1) as f64;
        // Not `sum`: that of nothing is minus zero.
        self.receivers.iter().fold(0.0, |sum, row| sum + row.loss) / n
    }

    /// What does not change by the passing of time.
    fn stand(&self) -> Stand {
        Stand {
            phase: self.phase.word(),
            data_bytes: self.data_bytes,
            done_bytes: self.receivers.iter().map(|row| row.done_bytes).sum(),
            receivers: self.receivers.len(),
            over: self.receivers.iter().filter(|row| row.is_over()).count(),
        }
    }

    /// Nothing that is known to be there is still to come: what stands still before is a standstill, which is told.
    fn is_at_rest(&self) -> bool {
        let waits = matches!(self.phase, Phase::Waiting { .. });
        waits || self.data_bytes.is_none_or(|total| self.slowest_bytes() >= total)
    }

    /// The receivers that get a row of their own, in a stable order.
    fn shown(&self) -> Vec<&Row> {
        if self.receivers.len() <= ROWS_MAX {
            return self.receivers.iter().collect();
        }
        let mut rows: Vec<&Row> = self.receivers.iter().collect();
        rows.sort_by(|a, b| {
            (a.is_over(), a.done_bytes, &a.name).cmp(&(b.is_over(), b.done_bytes, &b.name))
        });
        rows.truncate(WORST_ROWS);
        rows
    }

    /// The snapshot as one plain line of `key=value` pairs.
    fn line(&self) -> String {
        let total = self.data_bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let over = self.receivers.iter().filter(|row| row.state == "complete").count();
        let eta = self.eta().map_or("unknown".to_owned(), |eta| eta.as_secs().to_string());
        format!(
            "progress phase={} elapsed_s={:.1} done_bytes={} data_bytes={total} rate_bps={} eta_s={eta} \
             loss={:.4} repair={:.4} receivers={} complete={over}",
            self.phase.word(),
            self.elapsed.as_secs_f64(),
            self.slowest_bytes(),
            self.rate.bps(),
            self.mean_loss(),
            self.repair,
            self.receivers.len(),
        )
    }
}

/// How progress is shown.
pub struct Progress(Mode);

enum Mode {
    Quiet,
    Lines { last: Option<(Duration, Stand)> },
    Bars(Bars),
}

impl Progress {
    /// Bars when standard error is a terminal, lines when not, nothing when `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self(match (quiet, io::stderr().is_terminal()) {
            (true, _) => Mode::Quiet,
            (false, true) => Mode::Bars(Bars::new(ProgressDrawTarget::stderr_with_hz(8))),
            (false, false) => Mode::Lines { last: None },
        })
    }

    /// Shows `snapshot`, if it is time to.
    pub fn show(&mut self, snapshot: &Snapshot) {
        match &mut self.0 {
            Mode::Quiet => {}
            Mode::Bars(bars) => bars.show(snapshot),
            Mode::Lines { last } => {
                if line_is_due(last.as_ref(), snapshot) {
                    *last = Some((snapshot.elapsed, snapshot.stand()));
                    // A closed standard error must not end a transfer.
                    let _ = writeln!(io::stderr(), "{}", snapshot.line());
                }
            }
        }
    }

    /// Prints a line above the bars.
    pub fn say(&self, text: &str) {
        match &self.0 {
            Mode::Quiet => {}
            Mode::Bars(bars) => {
                let _ = bars.multi.println(text);
            }
            Mode::Lines { .. } => {
                let _ = writeln!(io::stderr(), "{text}");
            }
        }
    }

    /// The same, also with `quiet`.
    pub fn warn(&self, text: &str) {
        match &self.0 {
            Mode::Quiet => {
                let _ = writeln!(io::stderr(), "{text}");
            }
            Mode::Lines { .. } | Mode::Bars(_) => self.say(text),
        }
    }

    /// Removes the bars; what follows is the summary.
    pub fn finish(&mut self) {
        if let Mode::Bars(bars) = &self.0 {
            let _ = bars.multi.clear();
        }
        self.0 = Mode::Quiet;
    }
}

fn line_is_due(last: Option<&(Duration, Stand)>, snapshot: &Snapshot) -> bool {
    let Some((at, before)) = last else { return true };
    let now = snapshot.stand();
    // Another session's time begins anew.
    let is_time = snapshot.elapsed < *at || snapshot.elapsed - *at >= LINE_INTERVAL;
    before.phase != now.phase || is_time && !(now == *before && snapshot.is_at_rest())
}

struct Bars {
    multi: MultiProgress,
    total: ProgressBar,
    rows: Vec<ProgressBar>,
}

impl Bars {
    fn new(target: ProgressDrawTarget) -> Self {
        let multi = MultiProgress::with_draw_target(target);
        let total = multi.add(ProgressBar::no_length());
        total.set_style(style("{prefix:<16!} {bar:16.cyan/blue} {wide_msg}"));
        Self { multi, total, rows: Vec::new() }
    }

    fn show(&mut self, snapshot: &Snapshot) {
        self.show_total(snapshot);
        let shown = snapshot.shown();
        while self.rows.len() < shown.len() {
            let row = self.multi.add(ProgressBar::no_length());
            row.set_style(style("{prefix:<16!} {bar:16} {wide_msg}"));
            self.rows.push(row);
        }
        for extra in self.rows.drain(shown.len()..) {
            self.multi.remove(&extra);
        }
        for (bar, row) in self.rows.iter().zip(shown) {
            set(bar, row.done_bytes, snapshot.data_bytes);
            bar.set_prefix(plain(&row.name));
            bar.set_message(format!(
                "{:>10}  {:>12}  {:<8}  loss {:.1} %",
                show_bytes(row.done_bytes),
                row.rate.to_string(),
                row.state,
                row.loss * 100.0,
            ));
        }
    }

    fn show_total(&self, snapshot: &Snapshot) {
        let eta = snapshot.eta().map_or("--".to_owned(), show_duration);
        set(&self.total, snapshot.slowest_bytes(), snapshot.data_bytes);
        self.total.set_prefix(snapshot.phase.word());
        self.total.set_message(match &snapshot.phase {
            Phase::Waiting { what } => what.clone(),
            Phase::Streaming | Phase::Finishing => format!(
                "{:>10}  {:>12}  ETA {eta}  loss {:.1} %  repair {:.1} %  receivers {}",
                snapshot.data_bytes.map_or("unknown".to_owned(), show_bytes),
                snapshot.rate.to_string(),
                snapshot.mean_loss() * 100.0,
                snapshot.repair * 100.0,
                snapshot.receivers.len(),
            ),
        });
    }
}

fn set(bar: &ProgressBar, done: u64, total: Option<u64>) {
    match total {
        Some(total) => bar.set_length(total.max(1)),
        None => bar.unset_length(),
    }
    bar.set_position(done);
}

fn style(template: &'static str) -> ProgressStyle {
    // Cannot fail: the templates above are constants, and a test draws with each.
    ProgressStyle::with_template(template).expect("template").progress_chars("━╸·")
}

#[cfg(test)]
mod tests {
    use super::{Bars, LINE_INTERVAL, Phase, Row, Snapshot, WORST_ROWS, line_is_due};
    use downpour_proto::Rate;
    use indicatif::{InMemoryTerm, ProgressDrawTarget};
    use std::time::Duration;

    fn snapshot(receivers: usize) -> Snapshot {
        let row = |i: usize| Row {
            name: format!("node{i:03}"),
            state: if i == 0 { "complete" } else { "stream" },
            done_bytes: 1_000_000 - 1_000 * i as u64,
            rate: Rate::from_mbps(8),
            loss: 0.02,
        };
        Snapshot {
            elapsed: Duration::from_secs(3),
            phase: Phase::Streaming,
            data_bytes: Some(2_000_000),
            rate: Rate::from_mbps(8),
            repair: 0.03,
            receivers: (0..receivers).map(row).collect(),
        }
    }

    fn draw(snapshots: &[Snapshot]) -> String {
        draw_in(140, snapshots)
    }

    fn draw_in(columns: u16, snapshots: &[Snapshot]) -> String {
        let term = InMemoryTerm::new(60, columns);
        let mut bars = Bars::new(ProgressDrawTarget::term_like(Box::new(term.clone())));
        for snapshot in snapshots {
            bars.show(snapshot);
            std::thread::sleep(Duration::from_millis(60));
            bars.show(snapshot);
        }
        term.contents()
    }

    #[test]
    fn up_to_sixteen_receivers_have_a_bar_each() {
        let text = draw(&[snapshot(16)]);
        assert!((0..16).all(|i| text.contains(&format!("node{i:03}"))), "{text}");
        assert!(text.contains("ETA") && text.contains("8.0 Mbit/s"), "{text}");
    }

    #[test]
    fn a_row_is_a_line_also_on_a_narrow_terminal() {
        for columns in [80, 60] {
            let text = draw_in(columns, &[snapshot(3)]);
            assert_eq!(text.lines().count(), 4, "{text}");
            assert!(text.lines().next().is_some_and(|line| line.contains("Mbit/s")), "{text}");
        }
        let text = draw_in(80, &[snapshot(3)]);
        assert!(text.contains("ETA 1.00 s") && text.contains("complete  loss 2.0 %"), "{text}");
    }

    #[test]
    fn a_name_turns_nothing_around() {
        let mut turned = snapshot(1);
        turned.receivers[0].name = "\u{202e}etelpmoc".to_owned();
        let text = draw(&[turned]);
        assert!(text.contains("?etelpmoc") && !text.contains('\u{202e}'), "{text}");
    }

    #[test]
    fn above_that_the_worst_are_shown_and_bars_go_away() {
        let text = draw(&[snapshot(16), snapshot(100)]);
        let rows = text.lines().filter(|line| line.starts_with("node")).count();
        assert_eq!(rows, WORST_ROWS, "{text}");
        assert!(text.contains("node099") && !text.contains("node000"), "{text}");
    }

    #[test]
    fn the_eta_is_that_of_the_last() {
        // 2,000,000 - 997,000 bytes at 1 MB/s.
        assert_eq!(snapshot(4).eta().unwrap().as_millis(), 1_003);
        let mut unknown = snapshot(4);
        unknown.data_bytes = None;
        assert_eq!(unknown.eta(), None);
        let mut stalled = snapshot(4);
        stalled.receivers[2].rate = Rate::from_bps(0);
        assert_eq!(stalled.eta(), None);
    }

    #[test]
    fn plain_lines_are_rare_but_never_miss_a_phase() {
        let now = snapshot(2);
        assert!(line_is_due(None, &now));
        let shown = (now.elapsed, now.stand());
        assert!(!line_is_due(Some(&shown), &now));
        let mut other = snapshot(2);
        other.phase = Phase::Finishing;
        assert!(line_is_due(Some(&shown), &other));
        let mut later = snapshot(2);
        later.elapsed += LINE_INTERVAL;
        assert!(line_is_due(Some(&shown), &later));
        let line = now.line();
        assert!(line.split(' ').skip(1).all(|pair| pair.contains('=')), "{line}");
        assert!(line.contains("eta_s=1 ") && line.contains("done_bytes=999000"), "{line}");
    }

    #[test]
    fn while_there_is_nothing_to_do_a_plain_line_tells_of_changes_only() {
        let mut now = snapshot(1);
        now.data_bytes = None;
        let shown = (now.elapsed, now.stand());
        now.elapsed += LINE_INTERVAL * 100;
        // As a mean does.
        now.rate = Rate::from_mbps(1);
        assert!(!line_is_due(Some(&shown), &now));
        now.receivers[0].done_bytes += 1;
        assert!(line_is_due(Some(&shown), &now));
        // Of what is known to be still to come it is told that it does not.
        now = snapshot(1);
        now.elapsed += LINE_INTERVAL;
        assert!(line_is_due(Some(&shown), &now));
        let shown = (Duration::ZERO, now.stand());
        assert!(line_is_due(Some(&shown), &now));
        now.data_bytes = Some(now.receivers[0].done_bytes);
        let shown = (Duration::ZERO, now.stand());
        assert!(!line_is_due(Some(&shown), &now));
    }
}
