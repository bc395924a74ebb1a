//! All sources of a site, and how what they say becomes one figure of each kind.
//!
//! 1. Sources that only tell are asked at once. Those that load the path are asked afterwards, and only if throughput or round
//!    trip is missing or older than a half-life, and so it is in what they found before, which counts until they find it anew.
//! 2. Samples of other pairs, of the other IP, of a time too long ago or still to come are left out. What answers with
//!    nothing, and why, is named.
//! 3. A sample counts 2^(−age / half-life). A source is as strong as its newest sample, and each place further down the list costs
//!    one half-life. The strongest source gives the figure, and of its samples those with one key that together count most: the
//!    weighted median of throughput and round trip, the weighted mean of loss.
//! 4. Somebody's word ([`Source::is_word`]) has no age: it holds where no source before it has measured.
//!
//! A round trip under load counts only where no idle one is known.

use super::sample::{IpVersion, Key, Metric, Sample};
use super::source::{Ask, Found, Source, SourceError};
use crate::output::one_line;
use downpour_catalog::Time;
use downpour_proto::Rate;
use downpour_proto::transfer::{Figure, Measured};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;

/// A clock may be this much ahead of ours.
const AHEAD_MAX_US: i64 = 300_000_000;
/// Samples of one source that are looked at.
const SAMPLES_MAX: usize = 10_000;

/// What a source did not bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Which source.
    pub source: String,
    /// What was the matter.
    pub what: String,
    /// How often.
    pub times: usize,
    /// The source gave no answer at all.
    pub silent: bool,
}

/// What is known of a path, and where from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Combined {
    /// One figure of each kind, for the plan.
    pub measured: Measured,
    /// All samples that could be used, the newest first.
    pub samples: Vec<Sample>,
    /// What could not be.
    pub left_out: Vec<LeftOut>,
    /// Those of them for which the path was loaded, for the next ask ([`super::Means::probed`]).
    pub probed: Vec<Sample>,
}

/// A source and how long it may take.
pub(super) struct Entry {
    pub(super) source: Box<dyn Source>,
    pub(super) time_max: Duration,
}

/// All sources, in the order of trust.
pub struct Registry {
    pub(super) entries: Vec<Entry>,
    pub(super) half_life: Duration,
    /// What those that load the path found before.
    pub(super) probed: Vec<Sample>,
    /// Sources that could not be set up.
    pub(super) unusable: Vec<LeftOut>,
}

/// What one source said.
struct Answer {
    place: usize,
    source: String,
    is_word: bool,
    said: Result<Found, SourceError>,
}

impl Registry {
    /// Asks all sources and combines what they say.
    pub async fn ask(&self, ask: &Ask) -> Combined {
        let mut answers = self.ask_those(ask, |place| !self.is_active(place)).await;
        answers.extend((0..self.entries.len()).filter_map(|place| self.before(place)));
        let known = self.combine(ask, &answers);
        if self.is_recent(&known) {
            return known;
        }
        let found_it = |own| self.is_recent(&self.combine(ask, &[own]));
        let is_due = |place| self.is_active(place) && !self.before(place).is_some_and(found_it);
        answers.extend(self.ask_those(ask, is_due).await);
        self.combine(ask, &answers)
    }

    fn is_active(&self, place: usize) -> bool {
        self.entries[place].source.is_active()
    }

    fn is_recent(&self, known: &Combined) -> bool {
        let recent = |age: Option<Duration>| age.is_some_and(|age| age <= self.half_life);
        let Measured { throughput, rtt, .. } = &known.measured;
        recent(throughput.as_ref().map(|figure| figure.age))
            && recent(rtt.as_ref().map(|figure| figure.age))
    }

    /// What a source that loads the path found before, if anything.
    fn before(&self, place: usize) -> Option<Answer> {
        let source = self.entries[place].source.name().to_owned();
        let own = self.probed.iter().filter(|sample| sample.origin.source == source);
        let samples: Vec<_> = own.cloned().collect();
        let is_some = self.is_active(place) && !samples.is_empty();
        let said = Ok(Found { samples, refused: Vec::new() });
        is_some.then_some(Answer { place, source, is_word: false, said })
    }

    async fn ask_those(&self, ask: &Ask, which: impl Fn(usize) -> bool) -> Vec<Answer> {
        let entries = self.entries.iter().enumerate();
        let chosen = entries.filter(|(place, _)| which(*place));
        let asked = chosen.map(|(place, Entry { source, time_max })| async move {
            let said = in_time(*time_max, source.ask(ask)).await;
            Answer { place, source: source.name().to_owned(), is_word: source.is_word(), said }
        });
        futures_util::future::join_all(asked).await
    }

    fn combine(&self, ask: &Ask, answers: &[Answer]) -> Combined {
        let mut left_out = Notes::default();
        let mut usable = Vec::new();
        for Answer { place, source, is_word, said } in answers {
            match said {
                Err(error) => left_out.add(source, error.to_string(), true),
                Ok(found) => {
                    found.refused.iter().for_each(|why| left_out.note(source, why.clone()));
                    for sample in found.samples.iter().take(SAMPLES_MAX) {
                        match fits(sample, ask) {
                            Ok(()) => usable.push(Weighed::of(sample, *place, *is_word, ask, self)),
                            Err(why) => left_out.note(source, why),
                        }
                    }
                    if found.samples.is_empty() && found.refused.is_empty() {
                        left_out.note(source, "nothing of this pair".to_owned());
                    }
                }
            }
        }
        usable.sort_by(|one, other| one.age.total_cmp(&other.age));
        // Of what a source finds anew the newest counts.
        let mut newest = BTreeSet::new();
        usable.retain(|one| {
            !self.is_active(one.place) || newest.insert((one.place, one.sample.metric))
        });
        let probed = usable.iter().filter(|one| self.is_active(one.place));
        let probed = probed.map(|one| one.sample.clone()).collect();
        let mut all = self.unusable.clone();
        all.extend(left_out.0.into_iter().map(|((source, what, silent), times)| LeftOut {
            source,
            what,
            times,
            silent,
        }));
        Combined {
            measured: measured(&usable),
            samples: usable.into_iter().map(|weighed| weighed.sample.clone()).collect(),
            left_out: all,
            probed,
        }
    }
}

/// What a source does, if it does not take too long.
pub(super) async fn in_time<T>(
    time_max: Duration,
    work: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    let late = |_| Err(SourceError::Silent(format!("not answered within {time_max:?}")));
    timeout(time_max, work).await.unwrap_or_else(late)
}

/// What is left out, counted; and whether its source was silent.
#[derive(Default)]
struct Notes(BTreeMap<(String, String, bool), usize>);

impl Notes {
    fn note(&mut self, source: &str, what: String) {
        self.add(source, what, false);
    }

    fn add(&mut self, source: &str, what: String, silent: bool) {
        *self.0.entry((source.to_owned(), one_line(&what), silent)).or_default() += 1;
    }
}

/// Whether a sample is of what was asked.
fn fits(sample: &Sample, ask: &Ask) -> Result<(), String> {
    let Key { source, destination, ip, .. } = &sample.key;
    let there = ask.source.is(source) && ask.destination.is(destination);
    let back = ask.destination.is(source) && ask.source.is(destination);
    let both_ways = matches!(sample.metric, Metric::Rtt | Metric::RttLoaded);
    if !there && !back {
        let (from, to) = (&source.name, &destination.name);
        return Err(format!("a {} from {from} to {to}, which was not asked", sample.metric));
    }
    if !there && !both_ways {
        return Err(format!("a {} of the way back", sample.metric));
    }
    if ask.ip.is_some_and(|asked| ip.is_some_and(|ip| ip != asked)) {
        return Err("samples over the other IP".to_owned());
    }
    if sample.at < ask.since() {
        return Err(format!("samples older than {}", words(ask.age_max)));
    }
    if sample.at > Time(ask.now.0.saturating_add(AHEAD_MAX_US)) {
        return Err("samples dated in the future".to_owned());
    }
    Ok(())
}

/// A sample and how much it counts.
struct Weighed<'a> {
    sample: &'a Sample,
    place: usize,
    is_word: bool,
    /// Seconds.
    age: f64,
    /// Half-lives that have passed. Weights are compared as their logarithms: those of old saved replies are no numbers.
    halved: f64,
}

impl<'a> Weighed<'a> {
    fn of(sample: &'a Sample, place: usize, is_word: bool, ask: &Ask, by: &Registry) -> Self {
        let age = (ask.now.0.saturating_sub(sample.at.0)).max(0) as f64 / 1e6;
        let halved = age / by.half_life.as_secs_f64().max(1.0);
        Self { sample, place, is_word, age, halved }
    }
}

fn measured(usable: &[Weighed<'_>]) -> Measured {
    let rtt = figure(usable, Metric::Rtt).or_else(|| figure(usable, Metric::RttLoaded));
    Measured {
        throughput: figure(usable, Metric::Throughput)
            .map(|figure| told(figure, |bps| Rate::from_bps(bps.round() as u64))),
        rtt: rtt.map(|figure| told(figure, Duration::from_secs_f64)),
        loss: figure(usable, Metric::Loss).map(|figure| told(figure, |share| share)),
    }
}

fn told<T>(figure: Figure<f64>, into: impl Fn(f64) -> T) -> Figure<T> {
    Figure { value: into(figure.value), age: figure.age, origin: figure.origin }
}

/// One figure of one kind, from the strongest source.
fn figure(usable: &[Weighed<'_>], metric: Metric) -> Option<Figure<f64>> {
    let of_kind: Vec<_> = usable.iter().filter(|one| one.sample.metric == metric).collect();
    let word = of_kind.iter().filter(|one| one.is_word).min_by_key(|one| one.place);
    let before =
        |one: &&&Weighed<'_>| !one.is_word && word.is_none_or(|word| one.place < word.place);
    let strength = |one: &Weighed<'_>| one.halved + one.place as f64;
    let strongest = of_kind
        .iter()
        .filter(before)
        .min_by(|one, other| strength(one).total_cmp(&strength(other)));
    let Some(strongest) = strongest else {
        let word = word?.sample;
        let origin = format!("{}: {}", word.origin.source, word.origin.place);
        return Some(Figure { value: word.spread.avg, age: Duration::ZERO, origin });
    };
    let mut groups: BTreeMap<&Key, Vec<(f64, &Weighed<'_>)>> = BTreeMap::new();
    for one in of_kind.iter().filter(|one| one.place == strongest.place) {
        let weight = (strongest.halved - one.halved).exp2();
        groups.entry(&one.sample.key).or_default().push((weight, one));
    }
    let sum = |group: &[(f64, &Weighed<'_>)]| group.iter().map(|(weight, _)| weight).sum::<f64>();
    let (key, mut group) =
        groups.into_iter().max_by(|(_, one), (_, other)| sum(one).total_cmp(&sum(other)))?;
    let all = sum(&group);
    let mean = |of: fn(&Weighed<'_>) -> f64| {
        group.iter().map(|(weight, one)| weight * of(one)).sum::<f64>() / all
    };
    let (age, average) = (mean(|one| one.age), mean(|one| one.sample.spread.avg));
    let value = if metric == Metric::Loss { average } else { median(&mut group, all) };
    let origin = origin(strongest.sample, key, group.len(), metric);
    Some(Figure { value, age: Duration::from_secs_f64(age), origin })
}

/// The value at which half of the weight is reached.
fn median(group: &mut [(f64, &Weighed<'_>)], all: f64) -> f64 {
    let value = |one: &Weighed<'_>| one.sample.spread.avg;
    group.sort_by(|(_, one), (_, other)| value(one).total_cmp(&value(other)));
    let mut sum = 0.0;
    let reached = group.iter().find(|(weight, _)| {
        sum += weight;
        sum >= all / 2.0
    });
    reached.or(group.last()).map_or(0.0, |(_, one)| value(one))
}

fn origin(newest: &Sample, key: &Key, count: usize, metric: Metric) -> String {
    let over = match key.ip {
        Some(IpVersion::V4) => " over IPv4",
        Some(IpVersion::V6) => " over IPv6",
        None => "",
    };
    let loaded = if metric == Metric::RttLoaded { ", under load" } else { "" };
    let (source, place) = (&newest.origin.source, &newest.origin.place);
    let count = if count == 1 { "1 sample".to_owned() } else { format!("{count} samples") };
    format!("{source}: {count} by {}{over}{loaded}, {place}", key.tool)
}

fn words(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::{Combined, Entry, Registry};
    use crate::tuner::sample::{Host, IpVersion, Key, Metric, Origin, Sample, Spread};
    use crate::tuner::source::{Ask, Asking, End, Found, Source, SourceError};
    use downpour_catalog::Time;
    use std::time::Duration;

    const HOUR: i64 = 3_600_000_000;
    const NOW: Time = Time(1_795_305_600_000_000);

    struct Says {
        name: &'static str,
        said: Result<Vec<Sample>, SourceError>,
        is_word: bool,
        is_active: bool,
    }

    impl Source for Says {
        fn name(&self) -> &str {
            self.name
        }

        fn is_word(&self) -> bool {
            self.is_word
        }

        fn is_active(&self) -> bool {
            self.is_active
        }

        fn ask<'a>(&'a self, _: &'a Ask) -> Asking<'a> {
            let said = self.said.clone();
            Box::pin(async { said.map(|samples| Found { samples, refused: Vec::new() }) })
        }
    }

    fn says(name: &'static str, samples: Vec<Sample>) -> Says {
        Says { name, said: Ok(samples), is_word: false, is_active: false }
    }

    fn sample(metric: Metric, avg: f64, hours: i64) -> Sample {
        let (source, destination) = (Host::new("a"), Host::new("b"));
        let key = Key { source, destination, direction: None, ip: None, tool: "iperf3".to_owned() };
        let origin = Origin { source: "s".to_owned(), place: "p".to_owned() };
        let at = Time(NOW.0 - hours * HOUR);
        Sample::checked(key, metric, Spread::of(avg), at, "bit/s", &origin).unwrap()
    }

    fn mbps(mbps: f64, hours: i64) -> Sample {
        sample(Metric::Throughput, mbps * 1e6, hours)
    }

    fn asked() -> Ask {
        let (source, destination) = (End::new("a"), End::new("b"));
        let age_max = Duration::from_secs(7 * 86_400);
        Ask { source, destination, ip: None, now: NOW, age_max }
    }

    async fn combine(sources: Vec<Says>) -> Combined {
        again(sources, Vec::new()).await
    }

    async fn again(sources: Vec<Says>, probed: Vec<Sample>) -> Combined {
        let entry = |source| {
            let source: Box<dyn Source> = Box::new(source);
            Entry { source, time_max: Duration::from_secs(60) }
        };
        let entries = sources.into_iter().map(entry).collect();
        let half_life = Duration::from_secs(6 * 3600);
        Registry { entries, half_life, probed, unusable: Vec::new() }.ask(&asked()).await
    }

    async fn rate(sources: Vec<Says>) -> Option<f64> {
        let combined = combine(sources).await;
        combined.measured.throughput.map(|figure| figure.value.bps() as f64 / 1e6)
    }

    #[tokio::test]
    async fn old_samples_fade() {
        // Five of two days ago together count less than one of now.
        let mut samples = vec![mbps(900.0, 0)];
        samples.extend([mbps(100.0, 48), mbps(101.0, 48), mbps(102.0, 48), mbps(99.0, 48)]);
        assert_eq!(rate(vec![says("archive", samples)]).await, Some(900.0));
        let samples = vec![mbps(900.0, 0), mbps(100.0, 0), mbps(110.0, 1)];
        assert_eq!(rate(vec![says("archive", samples)]).await, Some(110.0), "one outlier");
    }

    #[tokio::test]
    async fn a_place_further_down_costs_a_half_life() {
        let (first, second) = (vec![mbps(500.0, 5)], vec![mbps(200.0, 0)]);
        let both = vec![says("archive", first), says("history", second.clone())];
        assert_eq!(rate(both).await, Some(500.0));
        let older = vec![says("archive", vec![mbps(500.0, 7)]), says("history", second)];
        assert_eq!(rate(older).await, Some(200.0));
    }

    #[tokio::test]
    async fn a_dead_source_is_named_and_the_next_one_speaks() {
        let dead = Says {
            name: "archive",
            said: Err(SourceError::Silent("cannot connect".to_owned())),
            is_word: false,
            is_active: false,
        };
        let combined = combine(vec![dead, says("history", vec![mbps(200.0, 1)])]).await;
        let figure = combined.measured.throughput.unwrap();
        assert_eq!(figure.value.bps(), 200_000_000);
        assert_eq!(figure.age, Duration::from_secs(3600));
        assert_eq!(combined.left_out[0].source, "archive");
        assert_eq!(combined.left_out[0].what, "cannot connect");
    }

    #[tokio::test]
    async fn what_was_not_asked_is_left_out() {
        let mut other_pair = mbps(1.0, 0);
        other_pair.key.destination = Host::new("c");
        let mut back = sample(Metric::Rtt, 0.012, 0);
        (back.key.source, back.key.destination) = (Host::new("b"), Host::new("a"));
        let mut way_back = mbps(2.0, 0);
        way_back.key = back.key.clone();
        let old = mbps(3.0, 24 * 30);
        let future = mbps(4.0, -2);
        let samples = vec![other_pair, way_back, old, future, back];
        let combined = combine(vec![says("archive", samples)]).await;
        assert!(combined.measured.throughput.is_none(), "{combined:?}");
        let rtt = combined.measured.rtt.unwrap();
        assert_eq!(rtt.value, Duration::from_millis(12), "the way back has the same round trip");
        let told: Vec<_> = combined.left_out.iter().map(|left| left.what.as_str()).collect();
        let expected = ["from a to c", "way back", "dated in the future", "older than 7 d"];
        for words in expected {
            assert!(told.iter().any(|told| told.contains(words)), "{words}: {told:?}");
        }
    }

    #[tokio::test]
    async fn a_word_holds_where_nothing_was_measured_before_it() {
        let word = |rate| Says { is_word: true, ..says("said", vec![mbps(rate, 0)]) };
        let measured = || says("archive", vec![mbps(500.0, 100)]);
        assert_eq!(rate(vec![measured(), word(1000.0)]).await, Some(500.0));
        assert_eq!(rate(vec![word(1000.0), measured()]).await, Some(1000.0));
        assert_eq!(rate(vec![says("archive", vec![]), word(1000.0)]).await, Some(1000.0));
    }

    #[tokio::test]
    async fn a_path_is_loaded_only_when_nothing_recent_is_known() {
        let active = || Says { is_active: true, ..says("probe", vec![mbps(300.0, 0)]) };
        let rtt = sample(Metric::Rtt, 0.012, 1);
        let known = says("archive", vec![mbps(500.0, 1), rtt.clone()]);
        assert_eq!(combine(vec![known, active()]).await.samples.len(), 2, "nothing of the probe");
        let old = says("archive", vec![mbps(500.0, 20), rtt]);
        let combined = combine(vec![old, active()]).await;
        assert_eq!(combined.measured.throughput.unwrap().value.bps(), 300_000_000);
    }

    #[tokio::test]
    async fn a_path_is_not_loaded_again_within_a_half_life() {
        let probe = |said| Says { name: "s", said, is_word: false, is_active: true };
        let pair = |rate, hours| vec![mbps(rate, hours), sample(Metric::Rtt, 0.012, hours)];
        let found = async |sources, probed| {
            let combined = again(sources, probed).await;
            let rate = combined.measured.throughput.unwrap().value.bps() / 1_000_000;
            (rate, combined.probed)
        };
        let now = || probe(Ok(pair(200.0, 0)));
        let (before, old) = (pair(300.0, 5), pair(300.0, 7));
        assert_eq!(found(vec![now()], Vec::new()).await, (200, pair(200.0, 0)));
        assert_eq!(found(vec![now()], before.clone()).await, (300, before.clone()));
        assert_eq!(found(vec![now()], old.clone()).await, (200, pair(200.0, 0)));
        // Nor for a figure that a stronger source has, however old.
        let archive = || says("archive", vec![mbps(900.0, 7)]);
        let further = |probe| vec![archive(), says("none", vec![]), says("none", vec![]), probe];
        assert_eq!(found(further(now()), before.clone()).await, (900, before));
        // Who finds nothing now takes nothing back.
        let busy = probe(Err(SourceError::Silent("busy".to_owned())));
        assert_eq!(found(vec![busy], old.clone()).await, (300, old.clone()));
        let half = probe(Ok(vec![sample(Metric::Rtt, 0.01, 0)]));
        let (rate, probed) = found(vec![half], old).await;
        assert_eq!((rate, probed.len(), probed[0].spread.avg), (300, 2, 0.01));
    }

    #[tokio::test]
    async fn keys_are_not_mixed_and_a_loaded_round_trip_is_the_last_resort() {
        let mut six = mbps(100.0, 0);
        six.key.ip = Some(IpVersion::V6);
        let samples = vec![six, mbps(900.0, 1), mbps(910.0, 1), mbps(920.0, 2)];
        assert_eq!(rate(vec![says("archive", samples)]).await, Some(910.0));
        let loaded = sample(Metric::RttLoaded, 0.2, 0);
        let combined = combine(vec![says("archive", vec![loaded.clone()])]).await;
        let rtt = combined.measured.rtt.unwrap();
        assert!(rtt.value == Duration::from_millis(200) && rtt.origin.contains("under load"));
        let idle = says("other", vec![sample(Metric::Rtt, 0.02, 100)]);
        let combined = combine(vec![says("archive", vec![loaded]), idle]).await;
        assert_eq!(combined.measured.rtt.unwrap().value, Duration::from_millis(20));
    }
}
