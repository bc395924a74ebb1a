//! What the page shows: the last look at the daemon, the events since, and what the person is doing.
//!
//! A look replaces the one before. Only rates are carried over: what arrived since the number last grew, over that time by the
//! daemon's clock, smoothed. Until it has grown a rate is that since the batch began.

use super::keys::Command;
use crate::dispatch::{BatchReport, LinkReport, Why};
use crate::site::{ServiceReport, SiteEvent};
use std::collections::VecDeque;

/// Events that are kept.
const EVENTS_MAX: usize = 200;
/// How much of a rate is still of before a second ago.
const KEPT: f64 = 0.7;
/// What has not grown for so many seconds stands.
const STANDS_S: f64 = 5.0;

/// What one look at a daemon gave.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The site's name.
    pub site: String,
    /// Its time, microseconds since 1970.
    pub now_us: i64,
    /// What runs.
    pub services: Vec<ServiceReport>,
    /// Links to other sites.
    pub links: Vec<LinkReport>,
    /// Batches under way.
    pub batches: Vec<BatchReport>,
    /// Files that do not move, each with its reason.
    pub waiting: Vec<Why>,
    /// Whether there are more of them.
    pub more_wait: bool,
}

/// A batch and how fast it goes.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The batch.
    pub batch: BatchReport,
    /// Bytes a second.
    pub rate: f64,
    /// When it was first seen, or grew last.
    grown_us: i64,
}

impl Flow {
    /// As it is at a first look.
    fn new(batch: BatchReport, now_us: i64) -> Self {
        let age_s = (now_us - batch.since_us) as f64 / 1e6;
        let stands = batch.stands_s.is_some();
        let rate = if age_s > 0.0 && !stands { batch.arrived as f64 / age_s } else { 0.0 };
        Self { batch, rate, grown_us: now_us }
    }

    /// As it is after another look.
    fn after(&self, batch: BatchReport, now_us: i64) -> Self {
        let since_s = (now_us - self.grown_us) as f64 / 1e6;
        let more = batch.arrived.saturating_sub(self.batch.arrived) as f64;
        let (rate, grown_us) = match more > 0.0 {
            true if since_s > 0.0 => {
                let new = more / since_s;
                (new + KEPT.powf(since_s) * (self.rate - new), now_us)
            }
            true => (self.rate, now_us),
            false if batch.stands_s.is_some() => (0.0, self.grown_us),
            false if since_s > STANDS_S => (self.rate * KEPT, self.grown_us),
            false => (self.rate, self.grown_us),
        };
        Self { batch, rate, grown_us }
    }

    /// Seconds until it is there, at this rate.
    pub fn eta_s(&self) -> Option<f64> {
        let left = self.batch.bytes.saturating_sub(self.batch.arrived) as f64;
        (self.rate > 0.0).then(|| left / self.rate)
    }
}

/// Whether the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It was not heard yet.
    Opening,
    /// It answered just now.
    Live,
    /// It does not answer: why.
    Lost(String),
}

/// A part of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    /// What runs.
    Services,
    /// Other sites.
    Links,
    /// Batches under way.
    Transfers,
    /// Files that do not move.
    Waiting,
    /// What happened.
    Events,
}

impl Pane {
    /// From top to bottom.
    pub const ALL: [Self; 5] =
        [Self::Services, Self::Links, Self::Transfers, Self::Waiting, Self::Events];

    /// Its place in [`Pane::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What the person is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Looking.
    Looking,
    /// Writing the filter.
    Filtering,
    /// Asked whether this is meant.
    Sure(Command),
    /// Reading the keys.
    Help,
}

/// What became of the last command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Whether it was done.
    pub good: bool,
    /// In words.
    pub text: String,
}

/// All that the page is drawn from.
#[derive(Clone, Debug)]
pub struct State {
    /// Where the daemon is.
    pub address: String,
    /// Whether it answers.
    pub contact: Contact,
    /// What it said last.
    pub look: Look,
    /// Its batches, with their rates.
    pub flows: Vec<Flow>,
    /// What happened, newest first.
    pub events: VecDeque<SiteEvent>,
    /// The part that keys work on.
    pub pane: Pane,
    /// The row of each part that keys work on.
    pub rows: [usize; 5],
    /// Only rows with this text are shown.
    pub filter: String,
    /// What the person is doing.
    pub mode: Mode,
    /// What became of the last command.
    pub said: Option<Said>,
}

impl State {
    /// Nothing is known yet.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            contact: Contact::Opening,
            look: Look::default(),
            flows: Vec::new(),
            events: VecDeque::new(),
            pane: Pane::Transfers,
            rows: [0; 5],
            filter: String::new(),
            mode: Mode::Looking,
            said: None,
        }
    }

    /// The daemon answered.
    pub fn seen(&mut self, mut look: Look) {
        let now_us = look.now_us;
        let flow =
            |batch: BatchReport| match self.flows.iter().find(|flow| flow.batch.id == batch.id) {
                Some(flow) => flow.after(batch, now_us),
                None => Flow::new(batch, now_us),
            };
        let batches = std::mem::take(&mut look.batches);
        let mut flows: Vec<_> = batches.into_iter().map(flow).collect();
        flows.sort_by(|a, b| (a.batch.since_us, &a.batch.id).cmp(&(b.batch.since_us, &b.batch.id)));
        self.change(&Pane::ALL, |state| {
            (state.flows, state.look, state.contact) = (flows, look, Contact::Live);
        });
    }

    /// The daemon did not answer. What it said last stays on the page.
    pub fn lost(&mut self, why: impl Into<String>) {
        self.contact = Contact::Lost(why.into());
    }

    /// Something happened.
    pub fn heard(&mut self, event: SiteEvent) {
        self.change(&[Pane::Events], |state| {
            state.events.push_front(event);
            state.events.truncate(EVENTS_MAX);
        });
    }

    /// Changes what parts show. The cursor of each stays on what it is on, as long as that is shown; at the top of the events
    /// it stays on the newest.
    pub(super) fn change(&mut self, panes: &[Pane], change: impl FnOnce(&mut Self)) {
        let under = |pane: &Pane| self.ids(*pane).into_iter().nth(self.rows[pane.index()]);
        let under: Vec<_> = panes.iter().map(under).collect();
        change(self);
        for (pane, under) in panes.iter().zip(under) {
            let at_top = *pane == Pane::Events && self.rows[pane.index()] == 0;
            let found = under.and_then(|id| self.ids(*pane).iter().position(|other| *other == id));
            match found.filter(|_| !at_top) {
                Some(row) => self.rows[pane.index()] = row,
                None => self.hold(*pane),
            }
        }
    }

    /// What the rows of a part are, whatever is said of it.
    fn ids(&self, pane: Pane) -> Vec<String> {
        match pane {
            Pane::Services => self.services().iter().map(|one| one.name.clone()).collect(),
            Pane::Links => self.links().iter().map(|one| one.site.clone()).collect(),
            Pane::Transfers => self.transfers().iter().map(|one| one.batch.id.clone()).collect(),
            Pane::Waiting => self.waiting().iter().map(|one| one.file.to_string()).collect(),
            // Numbers begin again with the daemon.
            Pane::Events => {
                self.happened().iter().map(|one| format!("{} {}", one.at_us, one.number)).collect()
            }
        }
    }

    /// Services that the filter lets through.
    pub fn services(&self) -> Vec<&ServiceReport> {
        let keep = |s: &&ServiceReport| self.lets(&[&s.name, s.stage.name(), &s.status.line]);
        self.look.services.iter().filter(keep).collect()
    }

    /// Links that the filter lets through.
    pub fn links(&self) -> Vec<&LinkReport> {
        let keep = |link: &&LinkReport| {
            self.lets(&[&link.site, link_word(link), link.trouble.as_deref().unwrap_or("")])
        };
        self.look.links.iter().filter(keep).collect()
    }

    /// Batches that the filter lets through.
    pub fn transfers(&self) -> Vec<&Flow> {
        let keep = |flow: &&Flow| self.lets(&[&flow.batch.site, &flow.batch.rule, &flow.batch.id]);
        self.flows.iter().filter(keep).collect()
    }

    /// Files that do not move and that the filter lets through.
    pub fn waiting(&self) -> Vec<&Why> {
        let keep = |why: &&Why| self.lets(&[&why.name, &why.state, &why.text]);
        self.look.waiting.iter().filter(keep).collect()
    }

    /// Events that the filter lets through.
    pub fn happened(&self) -> Vec<&SiteEvent> {
        let keep =
            |e: &&SiteEvent| self.filter.is_empty() || self.lets(&[&e.kind, &e.about.to_string()]);
        self.events.iter().filter(keep).collect()
    }

    fn lets(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    /// Rows of a part, and how many there are without the filter.
    pub fn count(&self, pane: Pane) -> (usize, usize) {
        match pane {
            Pane::Services => (self.services().len(), self.look.services.len()),
            Pane::Links => (self.links().len(), self.look.links.len()),
            Pane::Transfers => (self.transfers().len(), self.flows.len()),
            Pane::Waiting => (self.waiting().len(), self.look.waiting.len()),
            Pane::Events => (self.happened().len(), self.events.len()),
        }
    }

    /// The row that keys work on.
    pub fn row(&self) -> usize {
        self.rows[self.pane.index()]
    }

    /// Moves to another row of the part.
    pub(super) fn move_to(&mut self, row: usize) {
        self.rows[self.pane.index()] = row;
        self.hold(self.pane);
    }

    /// Keeps the row among those that there are.
    pub(super) fn hold(&mut self, pane: Pane) {
        let last = self.count(pane).0.saturating_sub(1);
        let row = &mut self.rows[pane.index()];
        *row = (*row).min(last);
    }
}

/// How a link stands, in a word.
pub(super) fn link_word(link: &LinkReport) -> &'static str {
    use crate::dispatch::LinkWanted as Wanted;
    match (link.wanted, link.probe_at_us) {
        (Wanted::Banned, _) => "banned",
        (Wanted::Drained, _) => "drained",
        (Wanted::Open, _) if link.is_broken => "BROKEN",
        // The other site answers, and takes nothing, or nothing that is as large.
        (Wanted::Open, Some(_)) => "held",
        (Wanted::Open, None) => "open",
    }
}

#[cfg(test)]
mod tests {
    use super::{Contact, Look, Pane, State};
    use crate::dispatch::BatchReport;
    use crate::site::SiteEvent;

    fn look(now_s: i64, arrived: u64) -> Look {
        let batch = BatchReport {
            id: "b1".into(),
            site: "west".into(),
            arrives: false,
            rule: "all".into(),
            files: 10,
            bytes: 100_000_000,
            arrived,
            failed: 0,
            since_us: 0,
            stands_s: None,
        };
        Look { now_us: now_s * 1_000_000, batches: vec![batch], ..Look::default() }
    }

    #[test]
    fn a_rate_is_that_since_the_beginning_and_then_that_between_looks() {
        let mut state = State::new("here");
        state.seen(look(10, 10_000_000));
        assert_eq!(state.flows[0].rate, 1_000_000.0);
        assert_eq!(state.flows[0].eta_s(), Some(90.0));
        for second in 11..30 {
            state.seen(look(second, 10_000_000 + (second as u64 - 10) * 4_000_000));
        }
        let rate = state.flows[0].rate;
        assert!((3_900_000.0..4_000_000.0).contains(&rate), "{rate}");
        // A clock that stands still or goes back changes no rate; a batch that stands has no end.
        state.seen(look(5, 90_000_000));
        assert_eq!(state.flows[0].rate, rate);
        (30..90).for_each(|second| state.seen(look(second, 90_000_000)));
        assert!(state.flows[0].eta_s().unwrap() > 1e6);
        // What its source says of it holds at the first look, too.
        let mut stands = look(90, 90_000_000);
        stands.batches[0].stands_s = Some(60);
        state.seen(stands.clone());
        assert_eq!(state.flows[0].eta_s(), None);
        state = State::new("here");
        state.seen(stands);
        assert_eq!(state.flows[0].eta_s(), None);
        state.seen(Look::default());
        assert!(state.flows.is_empty());
    }

    #[test]
    fn what_was_seen_stays_when_the_daemon_is_gone() {
        let mut state = State::new("here");
        state.seen(look(10, 1));
        state.lost("refused");
        assert_eq!(
            (state.flows.len(), state.contact == Contact::Lost("refused".into())),
            (1, true)
        );
        state.seen(look(11, 2));
        assert_eq!(state.contact, Contact::Live);
    }

    #[test]
    fn events_are_bounded_and_do_not_move_the_row_that_is_read() {
        let mut state = State::new("here");
        state.pane = Pane::Events;
        let event = |number| SiteEvent {
            number,
            at_us: 0,
            kind: "test".into(),
            about: serde_json::json!({}),
        };
        (0..300).for_each(|number| state.heard(event(number)));
        assert_eq!((state.events.len(), state.row()), (super::EVENTS_MAX, 0));
        state.move_to(5);
        state.heard(event(300));
        assert_eq!((state.row(), state.happened()[6].number), (6, 294));
        state.filter = "test".into();
        state.heard(SiteEvent { kind: "hidden".into(), ..event(301) });
        assert_eq!((state.row(), state.happened()[6].number), (6, 294));
        state.filter = "nothing".into();
        state.hold(Pane::Events);
        assert_eq!((state.row(), state.count(Pane::Events)), (0, (0, super::EVENTS_MAX)));
    }
}
