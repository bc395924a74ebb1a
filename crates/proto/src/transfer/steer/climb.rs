//! The search of one link: a setting is tried, measured, and kept or taken back.
//!
//! 1. After each change the connections settle; then they are measured. At the start both are short: while losses hold
//!    the windows and no queue stands, twice as many connections follow at once.
//! 2. What binds decides what is worth a trial: nothing while a host binds or the windows still open; nothing on a path
//!    that a queue shows to be full, with no more connections than were planned and little sent again, for a trial could
//!    only cost; twice as many connections, half as many, or pacing otherwise.
//! 3. A trial stays when its [`utility`] is greater: bytes a second, less a charge for each connection, less a
//!    punishment for what is sent again, less what other links lost by it. Half as many stay when they bring the same.
//!    In doubt it is measured for longer. When other links began or ended meanwhile nothing is learnt: it is taken back,
//!    unless they do so all the time; also when nothing was seen of the link for a while.
//! 4. When nothing is left to try the link rests, and is tried again after a minute, then after two, up to ten; at once
//!    when what it brings changes for good.

use super::memory::Memory;
use super::seen::{Binding, Seen};
use super::{Limits, Setting};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::format;
use alloc::string::{String, ToString};

/// A connection costs so much of what all bring; a share sent again so many times itself.
const CHARGE: f64 = 0.001;
const PUNISHMENT: f64 = 5.0;

/// More connections, or pacing, must be better by this; fewer must bring this part of what was brought lately, and of
/// the best.
const BETTER: f64 = 1.02;
const SAME: f64 = 0.97;
const SAME_AS_BEST: f64 = 0.93;

/// Beside other links: more connections are better when they are by this part of what the link brought.
const SURE: f64 = 0.25;

/// Half as many bring less than this part: each one counts.
const PROPORTIONAL: f64 = 0.75;

/// Pacing is worth a trial when this share is sent again. Headers take four of its five percent.
const PACE_LOSS: f64 = 0.002;
const PACE: f64 = 1.05;

/// What brings this part of the ceiling is held by it. Headers take four percent.
const AT_CEILING: f64 = 0.9;

/// A path changed when it brings so much more or less, in so many measurements in a row.
const CHANGED: f64 = 0.25;
const CHANGED_TIMES: u32 = 2;
/// Windows that open bring so much more each time.
const OPENING: f64 = 1.1;
/// The newest measurement's part in the mean.
const NEWEST: f64 = 0.25;
/// Where other links begin or end in more measurements than that in a row, it is no longer waited until they do not.
const CHURN_MAX: u32 = 5;

const SETTLE: Duration = Duration::from_millis(1_000);
const MEASURE: Duration = Duration::from_millis(2_000);
const SETTLE_ROUND_TRIPS: u32 = 10;
const MEASURE_ROUND_TRIPS: u32 = 20;
/// At the start, so long for both; twice as many are clearly better when they bring so much more.
const START: Duration = Duration::from_millis(500);
const START_ROUND_TRIPS: u32 = 5;
const CLEARLY: f64 = 1.3;
/// As much is lost by windows that have opened too far: more of them would not help.
const MUCH_LOSS: f64 = 0.05;
/// Losses count against a setting after so many measurements, and for one however many they are: what is lost when
/// windows open says nothing of those that are open, and is told some seconds later.
const LASTING: u32 = 5;
/// A path that brings this part of what it brought when a queue stood is full: what is to be won is not worth a trial.
const NEARLY: f64 = 0.95;
/// A trial whose rate differs by less than this part is measured for so many times as long.
const DOUBT: f64 = 0.1;
const DOUBT_TIMES: u32 = 3;
/// Connections that end take their time, but no more than this.
const SETTLE_MAX: Duration = Duration::from_secs(10);

const REST_FIRST: Duration = Duration::from_secs(60);
const REST_MAX: Duration = Duration::from_secs(600);

/// What a setting brought.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Bytes a second.
    rate: f64,
    loss: f64,
    /// Bytes a second of all other links, when they were the same ones all the time.
    others: Option<f64>,
}

/// What a setting is worth.
fn utility(mark: &Mark, connections: u16) -> f64 {
    mark.rate * (1.0 - CHARGE * f64::from(connections) - PUNISHMENT * mark.loss)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    More,
    Fewer,
    Pace,
}

#[derive(Debug)]
struct Trial {
    what: Try,
    back: Setting,
    base: Mark,
    /// Which others there were.
    generation: u64,
}

/// What was tried from the present setting, in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    more: bool,
    fewer: bool,
    pace: bool,
}

/// All bytes of the other links so far, here and at the sender, and which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) bytes: u64,
    pub(super) generation: u64,
    /// Of them, those of which only the sender tells.
    pub(super) told: u32,
}

/// One link's search.
#[derive(Debug)]
pub(super) struct Climb {
    limits: Limits,
    setting: Setting,
    settling: bool,
    window: Seen,
    others: Others,
    trial: Option<Trial>,
    base: Option<Mark>,
    best: f64,
    /// What came while a queue stood, in the mean: what the path takes.
    full_at: f64,
    /// Which host bound last, and what came then.
    host_at: Option<(Binding, f64)>,
    /// The last measurement.
    last: f64,
    /// More connections, or fewer, brought the same.
    flat: bool,
    tried: Tried,
    /// More connections were tried in vain because a host bound.
    by_host: bool,
    changed: u32,
    /// Each doubling so far was clearly better, or none was tried.
    starting: bool,
    /// Measurements of the present setting, those at the start left out.
    measured: u32,
    /// The link has rested: even a full path is tried with more.
    rested: bool,
    rest: Duration,
    again_at: Option<Timestamp>,
    /// Nothing was left to try. So it is taken to be after a trial that was in vain, until the next one begins: what is
    /// remembered is written down then.
    ended: bool,
    binding: Binding,
    rtt_min: Duration,
    /// Something is being tried, or would be if it might.
    wants: bool,
    /// Measurements in a row in which other links began or ended.
    churn: u32,
}

/// Whether a link may try something now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum May {
    Try,
    /// It has to say first that it wants to, and after a trial others have their turn.
    Ask,
    /// Another one tries.
    Wait,
}

/// A change, or a new verdict, with its reason.
pub(super) struct Turn {
    pub(super) binding: Binding,
    pub(super) rate: f64,
    pub(super) loss: f64,
    pub(super) why: String,
}

impl Climb {
    pub(super) fn new(limits: Limits, memory: Option<&Memory>) -> Self {
        let least = limits.least.max(1);
        let limits = Limits { least, most: limits.most.max(least), ..limits };
        let first = memory.map_or(limits.first, |memory| memory.connections);
        // One that was cut off begins there, and goes on as at the start.
        let memory = memory.filter(|memory| memory.ended);
        let mut climb = Self {
            setting: Setting { connections: first.clamp(least, limits.most), pacing: None },
            limits,
            settling: true,
            window: Seen::default(),
            others: Others::default(),
            trial: None,
            base: None,
            best: 0.0,
            full_at: 0.0,
            host_at: None,
            last: 0.0,
            flat: false,
            tried: Tried::default(),
            by_host: false,
            changed: 0,
            starting: memory.is_none(),
            measured: 0,
            rested: false,
            rest: REST_FIRST,
            again_at: None,
            ended: memory.is_some(),
            binding: Binding::Opening,
            rtt_min: Duration::ZERO,
            wants: memory.is_none() && !limits.is_fixed(),
            churn: 0,
        };
        climb.setting.pacing = climb.paced(None);
        if let Some(memory) = memory.filter(|_| !climb.limits.is_fixed()) {
            climb.recall(memory);
        }
        climb
    }

    /// Where the search had ended; it goes on from there when the path is another now.
    fn recall(&mut self, memory: &Memory) {
        let rate = memory.rate.bps() as f64 / 8.0;
        self.base = Some(Mark { rate, loss: 0.0, others: None });
        self.best = rate;
        self.setting.pacing = self.paced(memory.pacing);
        self.tried = Tried { more: true, fewer: true, pace: true };
        self.flat = memory.binding == Binding::Saturation;
        self.rtt_min = memory.rtt_min;
    }

    pub(super) const fn setting(&self) -> Setting {
        self.setting
    }

    pub(super) const fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    pub(super) const fn wants(&self) -> bool {
        self.wants
    }

    /// What to remember; `None` while nothing is known of the path: also where nothing is searched for, and at the ceiling,
    /// which may not be there the next time.
    pub(super) fn memory(&self) -> Option<Memory> {
        let setting = self.trial.as_ref().map_or(self.setting, |trial| trial.back);
        let mark = self.base.filter(|_| !self.limits.is_fixed())?;
        let held = |ceiling: Rate| mark.rate * 8.0 >= AT_CEILING * ceiling.bps() as f64;
        if self.limits.ceiling.is_some_and(held) {
            return None;
        }
        Some(Memory {
            connections: setting.connections,
            // What was asked for is asked for anew, or no longer.
            pacing: setting.pacing.filter(|_| setting.pacing != self.paced(None)),
            rate: Rate::from_bps((mark.rate * 8.0) as u64),
            rtt_min: self.rtt_min,
            binding: self.binding,
            ended: self.ended,
        })
    }

    /// Takes what was seen since the last time. A turn when something is to change, or binds that did not before.
    pub(super) fn look(
        &mut self,
        now: Timestamp,
        seen: &Seen,
        others: Others,
        may: May,
    ) -> Option<Turn> {
        self.window.add(seen);
        if !seen.rtt_min.is_zero() {
            self.rtt_min =
                if self.rtt_min.is_zero() { seen.rtt_min } else { self.rtt_min.min(seen.rtt_min) };
        }
        if self.settling {
            let span = self.span(SETTLE, SETTLE_ROUND_TRIPS);
            let drained = seen.connections <= self.setting.connections;
            if self.window.span >= span && (drained || self.window.span >= SETTLE_MAX) {
                self.settling = false;
                self.begin_window(others);
            }
            return None;
        }
        let span = self.span(MEASURE, MEASURE_ROUND_TRIPS);
        if self.window.span < span || (self.is_in_doubt() && self.window.span < span * DOUBT_TIMES)
        {
            return None;
        }
        self.measured += u32::from(!self.starting);
        let (window, mark) = (self.window, self.mark(others));
        self.churn = if mark.others.is_some() { 0 } else { self.churn.saturating_add(1) };
        self.begin_window(others);
        let before = self.binding;
        let opens = window.binding(false) == Binding::Opening && mark.rate > OPENING * self.last;
        self.last = mark.rate;
        let trial = self.trial.take();
        let yields = trial.is_some() && may == May::Ask;
        let why = match &trial {
            Some(trial) => Some(self.judge(now, trial, mark, &window)),
            None if opens => {
                (self.base, self.best) = (Some(mark), mark.rate);
                None
            }
            // What another one tries may be why this one brings more or less just now.
            None if may == May::Wait => None,
            None => self.rest(now, mark, &window),
        };
        // What binds fewer connections, or paced ones, that were taken back does not bind those that are in force.
        if trial.is_none_or(|trial| trial.what == Try::More || self.setting != trial.back) {
            self.binding = self.verdict(&window, &mark);
        }
        self.starting &= opens || (self.binding == Binding::Loss && mark.loss < MUCH_LOSS);
        let may_act = !opens && !self.settling && !self.limits.is_fixed();
        let may_act = may_act
            && !window.is_starved()
            && self.changed == 0
            && (self.churn == 0 || self.churn > CHURN_MAX)
            && !yields;
        self.wants = false;
        let more = may_act.then(|| self.next(now, mark, may)).flatten();
        let why = match (why, more) {
            (Some(why), Some(more)) => format!("{why}; {more}"),
            (Some(why), None) | (None, Some(why)) => why,
            (None, None) if self.binding != before => {
                format!("{}: left as it is", self.state(&mark, self.binding))
            }
            (None, None) => return None,
        };
        Some(Turn { binding: self.binding, rate: mark.rate, loss: mark.loss, why })
    }

    /// Nothing was seen of it for so long that others may have tried meanwhile: what it tries is taken back.
    pub(super) fn give_up(&mut self) -> Option<Turn> {
        let trial = self.trial.take()?;
        let why = self.void(&trial, "nothing came for a while");
        let Mark { rate, loss, .. } = trial.base;
        Some(Turn { binding: self.binding, rate, loss, why })
    }

    /// What came since the window began.
    fn mark(&self, others: Others) -> Mark {
        let same = others.generation == self.others.generation;
        let came = others.bytes.saturating_sub(self.others.bytes) as f64;
        Mark {
            rate: self.window.rate(),
            loss: self.window.loss(),
            others: same.then(|| came / self.window.span.as_secs_f64()),
        }
    }

    /// What binds, and whether the path was seen to be full, or a host to be waited for.
    fn verdict(&mut self, window: &Seen, mark: &Mark) -> Binding {
        let binding = window.binding(self.flat);
        let of_path = matches!(binding, Binding::Loss | Binding::Opening);
        if binding.is_host() {
            self.host_at = Some((binding, mark.rate));
        } else if let Some((host, rate)) = self.host_at.filter(|_| of_path)
            && (mark.rate - rate).abs() < DOUBT * rate
        {
            // It is not waited for just now.
            return host;
        }
        if window.binding(false) == Binding::Saturation {
            let before = if self.full_at > 0.0 { self.full_at } else { mark.rate };
            // What had waited behind losses comes at once: in a short measurement, of the start, more than the path takes.
            if window.span >= MEASURE {
                self.full_at = mean(before, mark.rate);
            }
        } else if self.full_at > 0.0 && mark.rate >= NEARLY * self.full_at {
            // The queue is empty just now.
            return if of_path { Binding::Saturation } else { binding };
        }
        binding
    }

    fn span(&self, least: Duration, round_trips: u32) -> Duration {
        match self.starting {
            true => START.max(self.rtt_min * START_ROUND_TRIPS),
            false => least.max(self.rtt_min * round_trips),
        }
    }

    /// What is tried seems neither better nor worse so far.
    fn is_in_doubt(&self) -> bool {
        let differs =
            |trial: &Trial| (self.window.rate() - trial.base.rate).abs() / trial.base.rate;
        !self.starting && self.trial.as_ref().is_some_and(|trial| differs(trial) < DOUBT)
    }

    fn begin_window(&mut self, others: Others) {
        self.window = Seen::default();
        self.others = others;
    }

    /// Keeps what was tried, or goes back.
    fn judge(&mut self, now: Timestamp, trial: &Trial, mark: Mark, window: &Seen) -> String {
        if trial.generation != self.others.generation && self.churn <= CHURN_MAX {
            return self.void(trial, "other transfers began or ended");
        }
        let base = trial.base;
        let mut taken = others_changed(&base, &mark);
        if taken < 0.0 && base.rate * f64::from(self.others.told) > base.others.unwrap_or(0.0) {
            // Who has more than an even share already leaves to others what is hardly more than theirs.
            taken *= 2.0;
        }
        let new = utility(&mark, self.setting.connections) + taken;
        let old = utility(&base, trial.back.connections);
        let same = mark.rate + taken >= SAME * base.rate && mark.rate >= SAME_AS_BEST * self.best;
        let host = window.binding(false).is_host();
        let keeps = match trial.what {
            // Beside others chance gives and takes more.
            Try::More => {
                new - old
                    > ((BETTER - 1.0) * (old + base.others.unwrap_or(0.0))).min(SURE * base.rate)
            }
            Try::Fewer => new >= old && same && !host,
            Try::Pace => new > BETTER * old && same && !host,
        };
        (self.again_at, self.ended) = (Some(now + self.rest), !keeps);
        let brought = format!("{} brought {}", self.setting.show(), outcome(&mark));
        let after = format!("after {} with {}", outcome(&base), trial.back.show());
        self.starting &= keeps && mark.rate > CLEARLY * base.rate;
        if keeps {
            (self.base, self.best) = (Some(mark), self.best.max(mark.rate));
            self.tried = Tried {
                more: trial.what == Try::Fewer,
                fewer: trial.what == Try::More,
                pace: trial.what == Try::Pace,
            };
            self.flat = trial.what != Try::More;
            return format!("{brought} {after}: kept");
        }
        match trial.what {
            // Where a host bound nothing was learnt of the path; where more came it is not full, but more would be lost.
            Try::More => {
                let came = mark.rate + taken > (1.0 + DOUBT) * base.rate;
                (self.tried.more, self.flat, self.by_host) = (true, !host && !came, host);
            }
            // As if more would bring more: that is to be tried, whatever it seemed before.
            Try::Fewer if mark.rate < PROPORTIONAL * base.rate => {
                self.tried = Tried { fewer: true, ..Tried::default() };
                self.flat = false;
            }
            Try::Fewer => self.tried.fewer = true,
            Try::Pace => self.tried.pace = true,
        }
        self.change(trial.back);
        let theirs = if taken < 0.0 { ", taken from other transfers" } else { "" };
        format!("{brought}{theirs} {after}: taken back")
    }

    /// What came says nothing of what was tried.
    fn void(&mut self, trial: &Trial, reason: &str) -> String {
        let why = format!("{}: {reason}, taken back", self.setting.show());
        self.change(trial.back);
        why
    }

    /// Nothing is being tried: is it as before?
    fn rest(&mut self, now: Timestamp, mark: Mark, window: &Seen) -> Option<String> {
        let starved = window.is_starved();
        let Some(base) = self.base.filter(|_| !starved) else {
            if !starved {
                (self.base, self.best) = (Some(mark), mark.rate);
            }
            return None;
        };
        if (mark.rate - base.rate).abs() > CHANGED * base.rate {
            self.changed += 1;
            if self.changed < CHANGED_TIMES {
                return None;
            }
            let why =
                format!("{} after {}: the path is another now", outcome(&mark), outcome(&base));
            (self.base, self.best) = (Some(mark), mark.rate);
            (self.tried, self.flat, self.changed) = (Tried::default(), false, 0);
            self.ended = false;
            (self.rest, self.again_at, self.full_at, self.host_at) = (REST_FIRST, None, 0.0, None);
            let lifted = self.lift();
            return lifted.then_some(why);
        }
        if self.by_host && !window.binding(false).is_host() {
            (self.by_host, self.tried.more) = (false, false);
        }
        self.changed = 0;
        let (rate, loss) = (mean(base.rate, mark.rate), mean(base.loss, mark.loss));
        (self.base, self.best) = (Some(Mark { rate, loss, ..mark }), self.best.max(rate));
        let lossy = window.binding(false) == Binding::Loss;
        if self.flat && lossy && rate < SAME_AS_BEST * self.best {
            // The windows were still greater than losses leave them.
            (self.flat, self.tried.more) = (false, false);
        }
        if self.again_at.is_some_and(|at| now >= at) {
            (self.again_at, self.rested, self.ended) = (None, true, false);
            self.rest = (self.rest * 2).min(REST_MAX);
            self.tried = Tried::default();
            return self.lift().then(|| "no longer paced, to see what the path takes".into());
        }
        None
    }

    /// What is worth a trial now, and begins it if it may.
    fn next(&mut self, now: Timestamp, mark: Mark, may: May) -> Option<String> {
        let base = self.base?;
        let binding = self.binding;
        let (n, Limits { least, most, .. }) = (self.setting.connections, self.limits);
        let unpaced = self.setting.pacing == self.paced(None);
        let full = binding == Binding::Saturation;
        let lasts = self.measured >= LASTING;
        let lossy = lasts && base.loss.min(mark.loss) >= PACE_LOSS;
        let overshot = !lasts && binding == Binding::Loss && mark.loss >= MUCH_LOSS;
        let more = !self.tried.more && n < most && unpaced && (self.rested || !full) && !overshot;
        let fewer = !self.tried.fewer && n > least && full && (lossy || n > self.limits.first);
        let pace = !self.tried.pace && unpaced && full && lossy;
        let (what, to, why) = if fewer && (!more || !self.flat) {
            let to = Setting { connections: (n / 2).max(least), ..self.setting };
            (Try::Fewer, to, "trying half as many")
        } else if more {
            let to = Setting { connections: n.saturating_mul(2).min(most), ..self.setting };
            (Try::More, to, "trying twice as many")
        } else if pace {
            let pacing = Rate::from_bps((base.rate * 8.0 * PACE) as u64);
            let to = Setting { pacing: self.paced(Some(pacing)), ..self.setting };
            (Try::Pace, to, "trying to pace them to what the path takes")
        } else {
            self.again_at.get_or_insert(now + self.rest);
            self.ended = true;
            return None;
        };
        (self.wants, self.ended) = (true, false);
        if may != May::Try {
            return None;
        }
        let why = format!("{}: {why}", self.state(&mark, binding));
        // Of the mean and the newest: what comes may be falling still since the windows opened.
        let rate = f64::midpoint(base.rate, mark.rate);
        let base = Mark { rate, others: mark.others, ..base };
        self.starting &= what == Try::More;
        self.rested &= what != Try::More;
        let generation = self.others.generation;
        self.trial = Some(Trial { what, back: self.setting, base, generation });
        self.change(to);
        Some(why)
    }

    fn state(&self, mark: &Mark, binding: Binding) -> String {
        format!("{} bring {}, {}", self.setting.show(), outcome(mark), binding.means())
    }

    fn change(&mut self, to: Setting) {
        self.setting = to;
        self.measured = 0;
        self.settling = true;
        self.window = Seen::default();
    }

    /// No pacing any more but the one asked for. True when there was one.
    fn lift(&mut self) -> bool {
        let free = Setting { pacing: self.paced(None), ..self.setting };
        let lifted = free != self.setting;
        if lifted {
            self.change(free);
        }
        lifted
    }

    /// Never above what was asked for.
    fn paced(&self, pacing: Option<Rate>) -> Option<Rate> {
        match (pacing, self.limits.ceiling) {
            (Some(pacing), Some(ceiling)) => Some(pacing.min(ceiling)),
            (pacing, ceiling) => pacing.or(ceiling),
        }
    }
}

fn mean(old: f64, new: f64) -> f64 {
    old + NEWEST * (new - old)
}

/// What other links lost or won by a trial, but not more than this one won or lost: the rest is their own.
fn others_changed(base: &Mark, new: &Mark) -> f64 {
    let (Some(before), Some(after)) = (base.others, new.others) else { return 0.0 };
    let own = new.rate - base.rate;
    let bound = own.abs();
    let change = (after - before).clamp(-bound, bound);
    if change.signum() == own.signum() { 0.0 } else { change }
}

fn outcome(mark: &Mark) -> String {
    let shown = |rate: f64| Rate::from_bps((rate * 8.0) as u64).to_string();
    let mut text = shown(mark.rate);
    if mark.loss >= 0.00005 {
        text += &format!(" with {:.2} % sent again", mark.loss * 100.0);
    }
    if let Some(others) = mark.others.filter(|rate| *rate >= 1.0) {
        text += &format!(" beside {} of others", shown(others));
    }
    text
}
