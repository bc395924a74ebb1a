//! Which of several places a file comes from, and when that one is left.
//!
//! 1. [`rank`] orders the sources by when the file would be here: what waits before it and its own length, at the rate that
//!    the path is expected to bring, after a few round trips. A source of which nobody can say comes after all others, and
//!    one that cannot be used last, with the reason. No figure is made up.
//! 2. [`Sources`] begins with the best and looks at what it brings. A source that would take more than twice as long for the
//!    rest as the next best, three looks in a row, is left; so is one that fails.
//! 3. A source that was left is expected to bring what it brought last. So nothing goes to and fro.
//!
//! What has come is kept: a change only decides where the rest comes from. Deliberately absent: who has the file, and how it
//! is asked for.

use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Asking, joining and the first bytes.
const ROUND_TRIPS: u32 = 4;
/// A look is at least so long, and so many round trips.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_ROUND_TRIPS: u32 = 10;
/// So many slow looks in a row.
const SLOW_LOOKS: u32 = 3;
/// A source is slow when the rest would take so many times as long as from the next best,
const SLOW: u32 = 2;
/// or, where nobody knows what that would bring, when it brings less than this part of what it did.
const FALLEN: f64 = 0.25;

/// A place that has the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// What its path is expected to bring; `None`: nobody can say.
    pub expected: Option<Rate>,
    /// Why that is expected, in words.
    pub by: String,
    /// Round trip to it.
    pub rtt: Option<Duration>,
    /// Bytes that come from there before.
    pub queued: u64,
    /// Why it cannot be used.
    pub barred: Option<String>,
}

/// A source in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Its number in the list that was given.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// In how long the file would be here; `None`: nobody can say.
    pub takes: Option<Duration>,
    /// Why it stands here.
    pub why: String,
}

impl Source {
    /// In how long `len` bytes would be here.
    pub fn takes(&self, len: u64) -> Option<Duration> {
        let rate = self.expected.filter(|rate| rate.bps() > 0)?;
        let start = self.rtt.unwrap_or_default() * ROUND_TRIPS;
        Some(rate.time_for(len.saturating_add(self.queued)).saturating_add(start))
    }

    fn why(&self) -> String {
        match (&self.barred, self.expected) {
            (Some(why), _) => why.clone(),
            (None, None) => "nobody can say what its path brings".into(),
            (None, Some(rate)) => {
                let by = if self.by.is_empty() { "" } else { ": " };
                let mut why = format!("{rate}{by}{}", self.by);
                if self.queued > 0 {
                    why.push_str(&format!(", after {} bytes that wait before it", self.queued));
                }
                why
            }
        }
    }
}

/// The best first. Of equals the one that was named first.
pub fn rank(len: u64, sources: &[Source]) -> Vec<Ranked> {
    let mut ranked: Vec<(bool, Duration, Ranked)> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| {
            let takes = source.takes(len).filter(|_| source.barred.is_none());
            let ranked = Ranked { index, name: source.name.clone(), takes, why: source.why() };
            (source.barred.is_some(), takes.unwrap_or(Duration::MAX), ranked)
        })
        .collect();
    ranked.sort_by_key(|(barred, takes, _)| (*barred, *takes));
    ranked.into_iter().map(|(_, _, ranked)| ranked).collect()
}

/// Where it comes from now.
#[derive(Clone, Copy, Debug)]
struct Current {
    index: usize,
    /// Begin of the present look, and the bytes that were here then.
    since: Timestamp,
    done: u64,
    /// The first look is not counted: it begins.
    begun: bool,
    best: Option<Rate>,
    slow: u32,
}

/// A file, the places that have it, and the one that it comes from.
#[derive(Debug)]
pub struct Sources {
    len: u64,
    list: Vec<Source>,
    current: Option<Current>,
    why: String,
}

impl Sources {
    /// A file of `len` bytes; none of it is here.
    pub fn new(len: u64, list: Vec<Source>) -> Self {
        Self { len, list, current: None, why: String::new() }
    }

    /// The best first, for what is still to come.
    pub fn ranking(&self) -> Vec<Ranked> {
        rank(self.rest(), &self.list)
    }

    /// Where it comes from now.
    pub fn current(&self) -> Option<&Source> {
        self.list.get(self.current?.index)
    }

    /// Why that was chosen.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Begins with the best. `None`: none can be used.
    pub fn begin(&mut self, now: Timestamp) -> Option<&Source> {
        self.best_but(now, None)
    }

    /// The best that can be used, but for one.
    fn best_but(&mut self, now: Timestamp, but: Option<usize>) -> Option<&Source> {
        let done = self.current.map_or(0, |current| current.done);
        let mut ranking = self.ranking().into_iter();
        let usable = |r: &Ranked| Some(r.index) != but && self.list[r.index].barred.is_none();
        let best = ranking.find(usable)?;
        self.why = best.why;
        let index = best.index;
        self.current = Some(Current { index, since: now, done, begun: false, best: None, slow: 0 });
        self.list.get(index)
    }

    /// A source failed, and is not asked again. Where the file comes from now; `None`: no source is left.
    pub fn bar(&mut self, now: Timestamp, index: usize, why: &str) -> Option<&Source> {
        self.list.get_mut(index)?.barred = Some(why.into());
        match self.current {
            Some(current) if current.index != index => self.current(),
            _ if (0..self.list.len()).any(|index| self.is_usable(index)) => self.begin(now),
            _ => {
                self.current = None;
                None
            }
        }
    }

    /// Whether a source may be asked.
    pub fn is_usable(&self, index: usize) -> bool {
        self.list.get(index).is_some_and(|source| source.barred.is_none())
    }

    /// So many bytes of the file are here by now. The source to change to, if it is to be changed.
    pub fn look(&mut self, now: Timestamp, done: u64) -> Option<&Source> {
        let mut current = self.current?;
        let rtt = self.list[current.index].rtt.unwrap_or_default();
        let span = now.since(current.since);
        if span < LOOK.max(rtt * LOOK_ROUND_TRIPS) {
            return None;
        }
        let rate = Rate::of(done.saturating_sub(current.done), span);
        (current.since, current.done) = (now, done);
        if current.begun {
            current.slow = if self.is_slow(&current, rate) { current.slow + 1 } else { 0 };
            current.best = current.best.max(Some(rate));
        }
        current.begun = true;
        self.current = Some(current);
        if current.slow < SLOW_LOOKS {
            return None;
        }
        let left = &mut self.list[current.index];
        left.expected = Some(rate);
        let name = left.name.clone();
        self.best_but(now, Some(current.index))?;
        self.why = format!("{name} brings {rate} only; {}", self.why);
        self.current()
    }

    fn rest(&self) -> u64 {
        self.len.saturating_sub(self.current.map_or(0, |current| current.done))
    }

    fn is_slow(&self, current: &Current, rate: Rate) -> bool {
        let rest = self.len.saturating_sub(current.done);
        let others = self.list.iter().enumerate();
        let mut others =
            others.filter(|(index, source)| *index != current.index && source.barred.is_none());
        let known = others.clone().filter_map(|(_, source)| source.takes(rest)).min();
        match known {
            // A change costs about a look.
            Some(other) => rate.time_for(rest) > other.saturating_mul(SLOW).saturating_add(LOOK),
            None => {
                let fallen = current.best.is_some_and(|best| rate < best.scale(FALLEN));
                fallen && others.next().is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, Sources, rank};
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    fn source(name: &str, mbps: u64, ms: u64) -> Source {
        Source {
            name: name.to_string(),
            expected: (mbps > 0).then(|| Rate::from_mbps(mbps)),
            rtt: Some(Duration::from_millis(ms)),
            ..Source::default()
        }
    }

    fn names(len: u64, sources: &[Source]) -> Vec<alloc::string::String> {
        rank(len, sources).into_iter().map(|ranked| ranked.name).collect()
    }

    #[test]
    fn the_file_comes_from_where_it_would_be_here_first() {
        let (near, far) = (source("near", 100, 1), source("far", 400, 200));
        let unknown = source("unknown", 0, 1);
        let mut broken = source("broken", 10_000, 1);
        broken.barred = Some("its link is broken".to_string());
        let mut all = [unknown, broken, far, near];
        assert_eq!(names(1_000_000_000, &all), ["far", "near", "unknown", "broken"]);
        // A small file is here before the far one has answered.
        assert_eq!(names(1_000_000, &all)[0], "near");
        // What waits before it counts.
        all[2].queued = 4_000_000_000;
        assert_eq!(names(1_000_000_000, &all)[0], "near");
        assert_eq!(rank(1, &all)[2].takes, None, "nobody can say");
    }

    /// Moves a file second by second: when it is here, and who was asked.
    fn run(
        len: u64,
        list: Vec<Source>,
        mbps: impl Fn(&str, u64) -> u64,
    ) -> (u64, Vec<alloc::string::String>) {
        let mut sources = Sources::new(len, list);
        let mut from = sources.begin(Timestamp::ZERO).unwrap().name.clone();
        let (mut done, mut asked) = (0, Vec::from([from.clone()]));
        for second in 0..100_000 {
            done += mbps(&from, second) * 125_000;
            if done >= len {
                return (second + 1, asked);
            }
            let now = Timestamp::ZERO + Duration::from_secs(second + 1);
            if let Some(next) = sources.look(now, done) {
                from = next.name.clone();
                asked.push(from.clone());
            }
        }
        panic!("it never came")
    }

    #[test]
    fn a_source_that_turns_slow_is_left_once() {
        let list = || Vec::from([source("a", 400, 20), source("b", 200, 20), source("c", 100, 20)]);
        // 10 GB; the best falls to 10 Mbit/s after a minute.
        let degrades = |name: &str, second: u64| match name {
            "a" if second >= 60 => 10,
            "a" => 400,
            "b" => 200,
            _ => 100,
        };
        let (took, asked) = run(10_000_000_000, list(), degrades);
        assert_eq!(asked, ["a", "b"]);
        // Known afterwards: b alone would have taken 400 s; the change costs six seconds.
        assert!((346..=348).contains(&took), "{took}");
        let (took, asked) = run(10_000_000_000, list(), |name, _| degrades(name, 0));
        assert_eq!((took, asked.len()), (200, 1), "one that stays as it was is kept");
    }

    #[test]
    fn where_all_are_slow_each_is_tried_once() {
        let list = Vec::from([source("a", 400, 20), source("b", 400, 20), source("c", 400, 20)]);
        let (_, asked) = run(2_000_000_000, list, |_, _| 10);
        assert_eq!(asked, ["a", "b", "c"]);
    }

    #[test]
    fn a_short_rest_is_not_worth_a_change() {
        let list = Vec::from([source("a", 400, 20), source("b", 200, 20)]);
        let (_, asked) = run(1_000_000_000, list, |_, second| if second < 19 { 400 } else { 50 });
        assert_eq!(asked, ["a"]);
    }

    #[test]
    fn without_figures_a_source_is_left_when_it_falls_far_below_itself() {
        let list = Vec::from([source("a", 0, 20), source("b", 0, 20)]);
        let (_, asked) = run(1_000_000_000, list.clone(), |_, _| 5);
        assert_eq!(asked, ["a"], "slow from the start: who knows what the other brings");
        let falls = |name: &str, second| if name == "a" && second > 20 { 5 } else { 100 };
        assert_eq!(run(1_000_000_000, list, falls).1, ["a", "b"]);
    }

    #[test]
    fn a_source_that_fails_is_not_asked_again() {
        let mut sources = Sources::new(1, Vec::from([source("a", 400, 20), source("b", 200, 20)]));
        let now = Timestamp::ZERO;
        assert_eq!(sources.begin(now).unwrap().name, "a");
        assert_eq!(sources.bar(now, 0, "it does not answer").unwrap().name, "b");
        assert_eq!(sources.bar(now, 1, "nor does it").map(|s| s.name.clone()), None);
        assert_eq!(sources.ranking()[0].why, "it does not answer");
        assert!(sources.current().is_none());
    }
}
