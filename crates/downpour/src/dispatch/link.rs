//! The way to one other site: whether it may be used now, how much is under way, what it brought.
//!
//! It knows whether the site is reached and takes what is offered (a breaker each), what an operator wants, and whose rule's turn
//! it is. `work` asks it before it claims files and tells it how a batch went; `links` and `why` show it. It has no I/O, no clock
//! and no task: time is an argument, and whoever tried says what failed.

use super::policy::{BREAKER, REFUSALS, blames_link};
use downpour_catalog::{ErrorClass, RuleId, Time};
use downpour_proto::transfer::{Breaker, Permit};
use downpour_proto::{Duration, Rng, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use utoipa::ToSchema;

/// What an operator wants of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// Use it.
    #[default]
    Open,
    /// Finish what is under way and begin nothing.
    Drained,
    /// Begin nothing, and refuse what that site offers.
    Banned,
}

/// A link as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkReport {
    /// The other site.
    pub site: String,
    /// What an operator wants of it.
    pub wanted: Wanted,
    /// Batches under way.
    pub active: usize,
    /// Batches at once at most.
    pub active_max: usize,
    /// Files and bytes that it took since the daemon's start.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files a second, over the last minutes.
    pub files_per_s: f64,
    /// Bytes a second, over the last minutes.
    pub bytes_per_s: f64,
    /// When its breaker lets the next probe through, or let the one that is under way, microseconds since 1970; absent while it is
    /// closed. It is open while the other site cannot be reached, or takes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_at_us: Option<i64>,
    /// Whether it is open because the other site cannot be reached.
    #[serde(default)]
    pub is_broken: bool,
    /// That nothing arrives of a batch under way; else the last failure of a whole batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why nothing begins on any link, and no probe goes out; absent while the service `dispatch` works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standstill: Option<String>,
}

/// The other site, as the dispatcher sees it.
#[derive(Debug)]
pub(super) struct Link {
    /// Whether the other site can be reached.
    breaker: Breaker,
    /// Whether it takes what is offered: it may have no room, or no time.
    takes: Breaker,
    /// The smallest file for which it had no room the last time; `None`: it took nothing for another reason.
    too_large: Option<u64>,
    /// Files of about this size were let through since, as smaller ones.
    passed: Option<u64>,
    pub(super) wanted: Wanted,
    pub(super) active: usize,
    trouble: Option<(ErrorClass, String)>,
    files: u64,
    bytes: u64,
    pace: Pace,
    /// What each rule was served, divided by its share.
    served: HashMap<RuleId, f64>,
    /// When each rule's files are looked through again for those that this link lacks.
    rested: HashMap<RuleId, Time>,
}

/// A rate that forgets: what came in a time that shrinks by half every so often.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    files: f64,
    bytes: f64,
    seconds: f64,
    last: Option<Time>,
}

const PACE_HALF_S: f64 = 60.0;
/// The longest time between two looks through a rule's files. A look takes the catalog's only writer.
pub(super) const REST_MAX: std::time::Duration = std::time::Duration::from_secs(600);

impl Pace {
    fn note(&mut self, now: Time, files: u64, bytes: u64, took_s: f64) {
        // Batches beside each other share the time.
        let since = self.last.map_or(took_s, |last| (now.0 - last.0) as f64 / 1e6);
        let since = since.clamp(1e-3, took_s.max(1e-3));
        let kept = (-since / PACE_HALF_S * core::f64::consts::LN_2).exp();
        self.files = self.files * kept + files as f64;
        self.bytes = self.bytes * kept + bytes as f64;
        self.seconds = self.seconds * kept + since;
        self.last = Some(now);
    }

    fn per_second(&self) -> (f64, f64) {
        match self.seconds > 0.0 {
            true => (self.files / self.seconds, self.bytes / self.seconds),
            false => (0.0, 0.0),
        }
    }
}

/// Microseconds since 1970 as the breaker's time.
fn stamp(now: Time) -> Timestamp {
    let micros = u64::try_from(now.0).unwrap_or(0);
    Timestamp::ZERO + Duration::from_micros(micros)
}

fn time(at: Timestamp) -> Time {
    Time(i64::try_from(at.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX))
}

impl Link {
    pub(super) fn new(seed: u64, wanted: Wanted) -> Self {
        Self {
            breaker: Breaker::new(BREAKER, seed),
            takes: Breaker::new(REFUSALS, seed),
            too_large: None,
            passed: None,
            wanted,
            active: 0,
            trouble: None,
            files: 0,
            bytes: 0,
            pace: Pace::default(),
            served: HashMap::new(),
            rested: HashMap::new(),
        }
    }

    /// How many files of about this size may go into a batch that begins now.
    pub(super) fn permit_of(
        &mut self,
        size: u64,
        now: Time,
        active_max: usize,
        files_max: usize,
    ) -> usize {
        if self.wanted != Wanted::Open || self.active >= active_max {
            return 0;
        }
        let files = match self.breaker.permit(stamp(now)) {
            Permit::Yes => files_max,
            // A probe costs little, whether it succeeds or not.
            Permit::Probe => 1,
            Permit::No(_) => return 0,
        };
        match self.takes.permit(stamp(now)) {
            // Whether there is room depends on the file: one would say little.
            Permit::Yes | Permit::Probe => files,
            Permit::No(_) if self.is_smaller(size) => {
                self.passed = Some(size);
                files
            }
            Permit::No(_) => {
                self.breaker.unprobe(stamp(now));
                0
            }
        }
    }

    /// Whether files of about this size may be offered, as far as it is known what it takes. What found no room says nothing of smaller
    /// files.
    pub(super) fn may_take(&self, now: Time, size: u64) -> bool {
        let is_held = self.takes.opens_until().is_some_and(|until| until > stamp(now));
        !is_held || self.is_smaller(size)
    }

    fn is_smaller(&self, size: u64) -> bool {
        self.too_large.is_some_and(|too_large| size < too_large)
    }

    /// What was permitted found nothing to send, or ended without a word of the other side: a probe is given back.
    pub(super) fn unprobe(&mut self, now: Time) {
        self.passed = None;
        self.breaker.unprobe(stamp(now));
        self.takes.unprobe(stamp(now));
    }

    /// It took so long to find those of a rule's files that this link lacks; whether as many were found as were asked for.
    pub(super) fn searched(
        &mut self,
        rule: RuleId,
        now: Time,
        took: std::time::Duration,
        is_full: bool,
    ) {
        // The one file of a probe is soon found again, and again in vain.
        let is_full = is_full && !self.is_broken();
        self.rested.insert(rule, super::book::until(now, rest(took, is_full)));
    }

    /// Whether a rule's files may be looked through again.
    pub(super) fn may_search(&self, rule: RuleId, now: Time) -> bool {
        self.rested.get(&rule).is_none_or(|at| *at <= now)
    }

    /// The other side answered, and brought the batch to its end.
    pub(super) fn succeed(&mut self) {
        self.answered();
        self.taken();
        self.trouble = None;
    }

    /// The other side takes some of an offer, or has it.
    pub(super) fn taken(&mut self) {
        self.takes.succeed();
        self.too_large = None;
    }

    /// An operator says what it may do. Who opens it knows that it works.
    pub(super) fn set(&mut self, wanted: Wanted) {
        self.wanted = wanted;
        if wanted == Wanted::Open {
            self.begin_anew();
        }
    }

    /// The clock was set back, or an operator opened it: what the breaker knows of time is void.
    pub(super) fn begin_anew(&mut self) {
        self.breaker = Breaker::new(BREAKER, seed());
        self.takes = Breaker::new(REFUSALS, seed());
        self.too_large = None;
        self.pace = Pace::default();
        self.rested.clear();
    }

    fn answered(&mut self) {
        if self.is_broken() {
            // Its probe found one file: there may be many.
            self.rested.clear();
        }
        self.breaker.succeed();
    }

    /// A batch failed as a whole: the way did, or the other side answered that it takes none.
    pub(super) fn fail(&mut self, now: Time, class: ErrorClass, what: &str) {
        if blames_link(class) {
            self.breaker.fail(stamp(now));
            self.takes.unprobe(stamp(now));
        } else {
            self.answered();
            self.takes.fail(stamp(now));
            self.too_large = None;
        }
        self.trouble = Some((class, what.to_owned()));
    }

    /// None of a batch found room, whose smallest file has this size.
    pub(super) fn has_no_room(&mut self, now: Time, smallest: u64, what: &str) {
        // Sizes are means of a rule's files, of which the first may be larger: such a rule waits for the probe, too.
        // What was let through and taken since says nothing.
        let passed = self.passed.take().filter(|_| self.too_large.is_some());
        let known = [passed, self.too_large];
        self.fail(now, ErrorClass::DestinationFull, what);
        self.too_large = known.into_iter().flatten().chain([smallest]).min();
    }

    /// Files of a batch are at the other side.
    pub(super) fn delivered(&mut self, now: Time, files: u64, bytes: u64, took_s: f64) {
        self.files += files;
        self.bytes += bytes;
        self.pace.note(now, files, bytes, took_s);
    }

    /// Whether the other site cannot be reached, as far as is known.
    pub(super) fn is_broken(&self) -> bool {
        self.breaker.opens_until().is_some()
    }

    /// Whether nothing is asked of it for now, as it cannot be reached. Where nothing is to be sent nobody probes it, and it may be
    /// back.
    pub(super) fn is_left_alone(&self, now: Time) -> bool {
        self.breaker.opens_until().is_some_and(|until| until > stamp(now))
    }

    /// When the next probe goes out, or the one that is under way did; `None` while nothing is held back.
    pub(super) fn probe_at(&self) -> Option<Time> {
        self.breaker.probe_at().max(self.takes.probe_at()).map(time)
    }

    /// While nothing is held back but for want of room: the size from which on files are.
    pub(super) const fn too_large(&self) -> Option<u64> {
        self.too_large
    }

    pub(super) fn trouble(&self) -> Option<&(ErrorClass, String)> {
        self.trouble.as_ref()
    }

    /// Files and bytes a second, over the last minutes.
    pub(super) fn pace(&self) -> (f64, f64) {
        self.pace.per_second()
    }

    /// Of these rules, each with its priority and share, the one whose turn it is: of the lowest priority, the one that got least.
    pub(super) fn next_rule(&self, ready: &BTreeMap<RuleId, (i64, f64)>) -> Option<RuleId> {
        let lowest = ready.values().map(|(priority, _)| *priority).min()?;
        let candidates = ready.iter().filter(|(_, (priority, _))| *priority == lowest);
        let got = |rule: &RuleId| self.served.get(rule).copied().unwrap_or(0.0);
        candidates.map(|(rule, _)| *rule).min_by(|a, b| got(a).total_cmp(&got(b)))
    }

    /// A rule was served. One that comes back after a pause does not catch up on what it missed.
    pub(super) fn serve(&mut self, rule: RuleId, bytes: u64, share: f64) {
        let least = self.served.values().copied().fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 0.0 };
        let got = self.served.entry(rule).or_insert(least);
        // Small files cost more than their bytes.
        *got += (bytes as f64 + 1e6) / share.max(1e-6);
    }

    pub(super) fn report(&self, site: &str, active_max: usize) -> LinkReport {
        let (files_per_s, bytes_per_s) = self.pace();
        LinkReport {
            site: site.to_owned(),
            wanted: self.wanted,
            active: self.active,
            active_max,
            files: self.files,
            bytes: self.bytes,
            files_per_s,
            bytes_per_s,
            probe_at_us: self.probe_at().map(|at| at.0),
            is_broken: self.is_broken(),
            trouble: self.trouble.as_ref().map(|(class, what)| format!("{class}: {what}")),
            standstill: None,
        }
    }
}

/// How long not to look again for those of a rule's files that somebody lacks, which may be few behind many: no more than a
/// tenth of the time is spent so. Who found as many as it asked for has not looked through them, and goes on at once.
pub(super) fn rest(took: std::time::Duration, is_full: bool) -> std::time::Duration {
    if is_full { std::time::Duration::ZERO } else { (took * 9).min(REST_MAX) }
}

/// How many of a rule's files to look for where `free` more may go under way, and `claim` are claimed at once. The first search
/// waits until that many may: finding a few may mean looking through all that others lack.
pub(super) fn search_limit(free: usize, claim: usize, is_first: bool) -> usize {
    if is_first && free < claim { 0 } else { free.min(claim) }
}

/// A seed for jitter.
pub(super) fn seed() -> u64 {
    let id = downpour_transport::control::SessionId::random();
    let bits = id.map_or([1; 16], |id| *id.as_bytes());
    let (head, _) = bits.split_first_chunk().unwrap_or((&[0; 8], &[]));
    Rng::new(u64::from_le_bytes(*head)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::{Link, Wanted, search_limit};
    use downpour_catalog::{ErrorClass, RuleId, Time};
    use std::collections::BTreeMap;

    const NOW: Time = Time(1_700_000_000_000_000);

    impl Link {
        /// Of files of whatever size.
        fn permit(&mut self, now: Time, active_max: usize, files_max: usize) -> usize {
            self.permit_of(u64::MAX, now, active_max, files_max)
        }
    }

    #[test]
    fn caps_bans_and_the_breaker_hold_batches_back() {
        let mut link = Link::new(1, Wanted::Open);
        assert_eq!(link.permit(NOW, 2, 1000), 1000);
        link.active = 2;
        assert_eq!(link.permit(NOW, 2, 1000), 0);
        link.active = 0;
        for wanted in [Wanted::Drained, Wanted::Banned] {
            link.wanted = wanted;
            assert_eq!(link.permit(NOW, 2, 1000), 0);
        }
        link.wanted = Wanted::Open;
        (0..3).for_each(|_| link.fail(NOW, ErrorClass::DestinationUnreachable, "no route"));
        assert_eq!(link.permit(NOW, 2, 1000), 0);
        let probe_at = link.probe_at().unwrap();
        assert!(probe_at > NOW);
        assert!(link.report("b", 2).is_broken);
        assert_eq!(link.permit(probe_at, 2, 1000), 1, "one file to see whether it works");
        assert_eq!(link.probe_at(), Some(probe_at), "it is under way");
        link.succeed();
        assert_eq!((link.permit(probe_at, 2, 1000), link.probe_at()), (1000, None));
    }

    #[test]
    fn one_that_broke_may_be_asked_when_its_time_is_over_or_it_is_opened() {
        let mut link = Link::new(1, Wanted::Open);
        let fail = |link: &mut Link| {
            (0..3).for_each(|_| link.fail(NOW, ErrorClass::TimedOut, "no answer"));
            assert!(link.is_left_alone(NOW));
        };
        fail(&mut link);
        assert!(!link.is_left_alone(link.probe_at().unwrap()), "nobody has anything to send");
        link.set(Wanted::Drained);
        assert!(link.is_left_alone(NOW));
        link.set(Wanted::Open);
        assert_eq!((link.is_left_alone(NOW), link.permit(NOW, 2, 9)), (false, 9));
    }

    #[test]
    fn one_that_takes_nothing_is_asked_by_one_batch_at_a_time_and_less_and_less_often() {
        let mut link = Link::new(1, Wanted::Open);
        let mut now = NOW;
        let mut refuse = |link: &mut Link| {
            link.fail(now, ErrorClass::DestinationFull, "no room");
            assert_eq!((link.permit(now, 2, 1000), link.report("b", 2).is_broken), (0, false));
            let before = std::mem::replace(&mut now, link.probe_at().unwrap());
            assert_eq!((link.permit(now, 2, 1000), link.permit(now, 2, 1000)), (1000, 0));
            now.0 - before.0
        };
        let waits: Vec<i64> = (0..8).map(|_| refuse(&mut link)).collect();
        assert!(waits[0] <= 2_000_000 && waits[7] >= 100_000_000, "{waits:?}");
        link.taken();
        assert_eq!(link.permit(now, 2, 1000), 1000);
    }

    #[test]
    fn what_finds_no_room_holds_up_no_smaller_file() {
        let mut link = Link::new(1, Wanted::Open);
        link.has_no_room(NOW, 130, "130 bytes are needed, 97 are free");
        assert_eq!((link.may_take(NOW, 130), link.permit_of(130, NOW, 2, 9)), (false, 0));
        assert_eq!((link.may_take(NOW, 5), link.permit_of(5, NOW, 2, 9)), (true, 9));
        assert_eq!(link.permit(NOW, 2, 9), 0, "of whatever size");
        link.active = 2;
        assert_eq!(link.permit_of(5, NOW, 2, 9), 0, "its cap holds");
        link.active = 0;
        link.has_no_room(NOW, 5, "5 bytes are needed, 1 is free");
        assert_eq!((link.may_take(NOW, 5), link.may_take(NOW, 4)), (false, true));
        // A rule of small files whose first are large.
        link.begin_anew();
        link.has_no_room(NOW, 5000, "5000 bytes are needed, 500 are free");
        assert_eq!(link.permit_of(99, NOW, 2, 9), 9);
        link.has_no_room(NOW, 5000, "5000 bytes are needed, 500 are free");
        assert_eq!((link.may_take(NOW, 99), link.may_take(NOW, 5)), (false, true));
        // Of them some were taken, or there were none to send: what is refused next is not they.
        for end in [Link::taken, |link: &mut Link| link.unprobe(NOW)] {
            link.begin_anew();
            link.has_no_room(NOW, 5000, "5000 bytes are needed, 500 are free");
            assert_eq!(link.permit_of(99, NOW, 2, 9), 9);
            end(&mut link);
            link.has_no_room(NOW, 5000, "5000 bytes are needed, 500 are free");
            assert_eq!((link.may_take(NOW, 99), link.too_large()), (true, Some(5000)));
        }
        link.begin_anew();
        link.has_no_room(NOW, 5, "5 bytes are needed, 1 is free");
        // One that is busy takes nothing, of whatever size.
        let probe_at = link.probe_at().unwrap();
        assert_eq!(link.permit_of(200, probe_at, 2, 9), 9);
        link.fail(probe_at, ErrorClass::OutOfResources, "busy");
        assert_eq!((link.may_take(probe_at, 0), link.permit_of(0, probe_at, 2, 9)), (false, 0));
        link.taken();
        assert_eq!((link.may_take(probe_at, 200), link.too_large()), (true, None));
    }

    #[test]
    fn a_probe_that_is_answered_with_no_fault_of_the_way_is_no_probe_any_more() {
        let mut link = Link::new(1, Wanted::Open);
        (0..3).for_each(|_| link.fail(NOW, ErrorClass::TimedOut, "no answer"));
        let mut now = link.probe_at().unwrap();
        assert_eq!(link.permit(now, 2, 9), 1);
        link.fail(now, ErrorClass::OutOfResources, "busy");
        assert!(!link.is_broken(), "it answers");
        now = link.probe_at().unwrap();
        assert_eq!(link.permit(now, 2, 9), 9);
        // The way fails again, before it is known whether it takes something.
        (0..3).for_each(|_| link.fail(now, ErrorClass::TimedOut, "no answer"));
        now = link.probe_at().unwrap();
        assert_eq!(link.permit(now, 2, 9), 1);
    }

    #[test]
    fn a_probe_that_found_nothing_is_given_back_and_long_searches_are_rare() {
        let mut link = Link::new(1, Wanted::Open);
        (0..3).for_each(|_| link.fail(NOW, ErrorClass::TimedOut, "no answer"));
        let probe_at = link.probe_at().unwrap();
        assert_eq!((link.permit(probe_at, 2, 9), link.permit(probe_at, 2, 9)), (1, 0));
        link.unprobe(probe_at);
        assert_eq!(link.permit(probe_at, 2, 9), 1);
        let (rule, other) = (RuleId(1), RuleId(2));
        link.searched(rule, NOW, std::time::Duration::from_secs(1), false);
        assert!(!link.may_search(rule, NOW.plus_s(8)) && link.may_search(rule, NOW.plus_s(9)));
        assert!(link.may_search(other, NOW));
        let searched = |link: &mut Link, took_s| {
            link.searched(rule, NOW, std::time::Duration::from_secs(took_s), false);
        };
        searched(&mut link, 20);
        assert!(!link.may_search(rule, NOW.plus_s(179)) && link.may_search(rule, NOW.plus_s(180)));
        searched(&mut link, 100);
        assert!(!link.may_search(rule, NOW) && link.may_search(rule, NOW.plus_s(600)));
        link.searched(rule, NOW, std::time::Duration::from_secs(100), true);
        assert!(!link.may_search(rule, NOW), "what a probe finds is no whole batch");
        link.fail(NOW, ErrorClass::DestinationFull, "full");
        assert!(link.may_search(rule, NOW), "it is reached, and there may be many");
        link.searched(rule, NOW, std::time::Duration::from_secs(100), true);
        assert!(link.may_search(rule, NOW), "it found as many as it wanted");
    }

    #[test]
    fn nothing_is_looked_for_until_a_whole_claim_may_go_under_way() {
        let limits =
            |is_first| [1990, 1501, 1500, 0].map(|n| search_limit(2000 - n, 500, is_first));
        assert_eq!(limits(true), [0, 0, 500, 500]);
        assert_eq!(limits(false), [10, 499, 500, 500], "another rule has found less");
    }

    #[test]
    fn rules_of_one_priority_get_their_shares_and_a_lower_number_goes_first() {
        let mut link = Link::new(1, Wanted::Open);
        let (big, small, late) = (RuleId(1), RuleId(2), RuleId(3));
        let ready: BTreeMap<_, _> =
            [(big, (100, 3.0)), (small, (100, 1.0)), (late, (200, 1.0))].into();
        let mut got: BTreeMap<RuleId, usize> = BTreeMap::new();
        for _ in 0..400 {
            let rule = link.next_rule(&ready).unwrap();
            *got.entry(rule).or_default() += 1;
            link.serve(rule, 10_000_000, ready[&rule].1);
        }
        assert_eq!((got[&big], got[&small], got.get(&late)), (300, 100, None));
        let urgent: BTreeMap<_, _> = [(big, (100, 3.0)), (late, (1, 1.0))].into();
        assert_eq!(link.next_rule(&urgent), Some(late));
        assert_eq!(link.next_rule(&BTreeMap::new()), None);
    }

    #[test]
    fn its_pace_is_that_of_the_last_minutes() {
        let mut link = Link::new(1, Wanted::Open);
        for second in 1..=600 {
            let rate = if second <= 300 { 10 } else { 1000 };
            link.delivered(NOW.plus_s(second), rate, rate * 100, 1.0);
        }
        let (files, bytes) = link.pace();
        assert!((900.0..=1000.0).contains(&files), "{files}");
        assert!((bytes / files - 100.0).abs() < 1.0);
    }
}
