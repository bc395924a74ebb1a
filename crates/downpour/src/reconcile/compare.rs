//! The comparison of two catalogs, as a machine without a database and without a network.
//!
//! 1. Sums of rules, then of days, then down each day's tree: only where the two differ.
//! 2. Where a last node differs, the files of either side that the other has not are *candidates*; their side says what they are called.
//! 3. Each candidate is looked at again in both catalogs, near, far, near, and only then judged.
//!
//! Why no transfer in flight is taken for a difference: a holder records a file before its sender does, for the sender records the
//! holder's receipt. So "the sender has it recorded, the holder has not" is true if the holder was looked at *after* the sender, and
//! "the holder has it, the sender has not recorded it" if the sender was looked at after the holder and the file is not on its way
//! there. Near, far, near gives both orders, whoever is the holder. No clock is compared. What was on its way is left to the next run.
//!
//! What both have alike, but under another day or rule (each took it in by itself), is no difference: its hash is on both sides.
//!
//! [`Compare::step`] says what to ask either side; [`Compare::answer`] takes the answers. It goes down one 256th of the keys after the
//! other, in each all days of all rules, so that what is alike meets early, and a day's deepest nodes first: what waits stays small. What
//! is alike is left out whenever [`HASHES_MAX`] are there; if more than half stay it goes no further down, and of more than
//! [`CANDIDATES_MAX`], or [`DAYS_MAX`] days, it takes so many; it says so.

use super::ask::{
    Answer, FANOUT, Level, NODES_MAX, Named, Packed, QUESTIONS_MAX, Question, Scope, Stand, Sum,
    fit,
};
use super::report::{Finding, Kind};
use downpour_catalog::DEPTH_MAX;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Hashes of which only one side is known to have them.
const HASHES_MAX: usize = if cfg!(test) { 1 << 15 } else { 1 << 20 };
/// Candidates of one comparison, of either side.
pub const CANDIDATES_MAX: usize = 10_000;
/// Hashes whose names are asked in one step: names at their longest are below what one site takes from another.
const NAMED_MAX: usize = 2_000;
/// Days that wait for their turn, however many the other side tells of.
const DAYS_MAX: usize = if cfg!(test) { 8 } else { 1 << 20 };

/// Who of the two is the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The side that compares.
    Near,
    /// The other one.
    Far,
}

/// What to ask, near and far; near first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Of the catalog here.
    pub near: Vec<Question>,
    /// Of the other one.
    pub far: Vec<Question>,
}

/// The other side answered something else than it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonsense(pub String);

impl std::fmt::Display for Nonsense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the other site answers what it was not asked: {}", self.0)
    }
}

impl std::error::Error for Nonsense {}

/// What a comparison has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files that the holder has, by the catalog here.
    pub files_near: i64,
    /// And by the other one.
    pub files_far: i64,
    /// Real differences.
    pub findings: Vec<Finding>,
    /// Candidates that were on their way, or came right meanwhile.
    pub in_flight: usize,
    /// Whether there may be more.
    pub is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Rules,
    Days,
    Tree,
    Names,
    LookNear,
    LookFar,
    LookAgain,
    Done,
}

/// A node that differs. The greatest is asked first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    /// The first eight bits of its last key.
    part: u8,
    rule: Arc<str>,
    day: i64,
    depth: u8,
    prefix: u16,
}

impl Node {
    fn new(rule: Arc<str>, day: i64, depth: u8, prefix: u16) -> Self {
        let end = (u32::from(prefix) + 1) << (16 - 4 * u32::from(depth));
        Self { part: ((end - 1) >> 8) as u8, rule, day, depth, prefix }
    }
}

/// Hashes of one level, each with its node, in order. The level itself has no nodes.
type Unnamed = (Level, Vec<(u16, u64)>);

/// One comparison.
#[derive(Debug)]
pub struct Compare {
    scope: Scope,
    holder: Holder,
    stage: Stage,
    rules: Vec<String>,
    /// Nodes that differ.
    waiting: BTreeSet<Node>,
    /// What was asked last.
    asked: Vec<Question>,
    /// Hashes whose names are asked for, by the nodes that they are in: near, far.
    unnamed: [Vec<Unnamed>; 2],
    candidates: Vec<Named>,
    looked: Vec<Vec<Stand>>,
    done: Compared,
}

impl Compare {
    /// Of what `scope.holder` has of `scope.origin`.
    pub fn new(scope: Scope, holder: Holder) -> Self {
        Self {
            scope,
            holder,
            stage: Stage::Rules,
            rules: Vec::new(),
            waiting: BTreeSet::new(),
            asked: Vec::new(),
            unnamed: [Vec::new(), Vec::new()],
            candidates: Vec::new(),
            looked: Vec::new(),
            done: Compared::default(),
        }
    }

    /// What to ask next; `None` when it is done.
    pub fn step(&mut self) -> Option<Step> {
        let both = |questions: Vec<Question>| Step { near: questions.clone(), far: questions };
        let step = match self.stage {
            Stage::Rules => both(vec![Question::Rules(self.scope.clone())]),
            Stage::Days => {
                let rules = self.rules.iter().take(QUESTIONS_MAX);
                let days = |rule: &String| Question::Days(self.scope.clone(), rule.clone());
                both(rules.map(days).collect())
            }
            Stage::Tree => both(self.next_nodes()),
            Stage::Names => {
                let [near, far] = &self.unnamed;
                Step { near: next_names(near), far: next_names(far) }
            }
            Stage::LookNear | Stage::LookAgain => Step { near: self.look(), far: Vec::new() },
            Stage::LookFar => Step { near: Vec::new(), far: self.look() },
            Stage::Done => return None,
        };
        self.asked.clone_from(&step.near);
        Some(step)
    }

    /// Takes the answers to what was asked last.
    pub fn answer(&mut self, near: Vec<Answer>, far: Vec<Answer>) -> Result<(), Nonsense> {
        match self.stage {
            Stage::Rules => self.rules(near, far)?,
            Stage::Days => self.days(near, far)?,
            Stage::Tree => self.tree(near, far)?,
            Stage::Names => self.names(near, far)?,
            Stage::LookNear => self.looks(near, Stage::LookFar)?,
            Stage::LookFar => self.looks(far, Stage::LookAgain)?,
            Stage::LookAgain => {
                self.looks(near, Stage::Done)?;
                self.judge();
            }
            Stage::Done => {}
        }
        Ok(())
    }

    /// What it has come to.
    pub fn finish(self) -> Compared {
        self.done
    }

    fn rules(&mut self, near: Vec<Answer>, far: Vec<Answer>) -> Result<(), Nonsense> {
        let [Answer::Rules(near), Answer::Rules(far)] = [only(near)?, only(far)?] else {
            return Err(Nonsense("sums of rules were asked".to_owned()));
        };
        let files = |of: &BTreeMap<String, Sum>| {
            of.values().map(|sum| sum.files).fold(0, i64::saturating_add)
        };
        (self.done.files_near, self.done.files_far) = (files(&near), files(&far));
        self.rules = differing(&near, &far);
        self.stage = Stage::Days;
        self.skip_empty();
        Ok(())
    }

    fn days(&mut self, near: Vec<Answer>, far: Vec<Answer>) -> Result<(), Nonsense> {
        let asked = self.rules.len().min(QUESTIONS_MAX);
        let rules: Vec<String> = self.rules.drain(..asked).collect();
        for ((rule, near), far) in rules.into_iter().zip(near).zip(far) {
            let (Answer::Days(near), Answer::Days(far)) = (near, far) else {
                return Err(Nonsense("sums of days were asked".to_owned()));
            };
            let (rule, days) = (Arc::<str>::from(rule), differing(&near, &far));
            let room = DAYS_MAX - self.waiting.len();
            self.done.is_cut |= days.len() > room;
            let days = days.into_iter().take(room);
            self.waiting.extend(days.map(|day| Node::new(rule.clone(), day, 0, 0)));
        }
        if self.rules.is_empty() {
            self.stage = Stage::Tree;
        }
        self.skip_empty();
        Ok(())
    }

    /// Up to [`NODES_MAX`] of the nodes that wait, those of one level of one day in one question.
    fn next_nodes(&mut self) -> Vec<Question> {
        let mut levels: BTreeMap<(Arc<str>, i64, u8), Vec<u16>> = BTreeMap::new();
        for _ in 0..NODES_MAX {
            let Some(Node { rule, day, depth, prefix, .. }) = self.waiting.pop_last() else {
                break;
            };
            levels.entry((rule, day, depth)).or_default().push(prefix);
            if levels.len() == QUESTIONS_MAX {
                break;
            }
        }
        let question = |((rule, day, depth), prefixes): ((Arc<str>, i64, u8), Vec<u16>)| {
            let (scope, prefixes) = (self.scope.clone(), Packed::of_u16(&prefixes));
            let level = Level { scope, rule: rule.to_string(), day, depth, prefixes };
            match depth {
                DEPTH_MAX => Question::Hashes(level),
                _ => Question::Children(level),
            }
        };
        levels.into_iter().map(question).collect()
    }

    fn tree(&mut self, near: Vec<Answer>, far: Vec<Answer>) -> Result<(), Nonsense> {
        let asked = std::mem::take(&mut self.asked);
        if near.len() != asked.len() || far.len() != asked.len() {
            return Err(Nonsense("there are more or fewer answers than questions".to_owned()));
        }
        for ((question, near), far) in asked.into_iter().zip(near).zip(far) {
            match (question, near, far) {
                (Question::Children(level), Answer::Children(near), Answer::Children(far)) => {
                    self.descend(&level, &near.u64s(), &far.u64s())?;
                }
                (Question::Hashes(level), Answer::Hashes(near), Answer::Hashes(far)) => {
                    self.differ(&level, &near, &far)?;
                }
                (question, ..) => return Err(Nonsense(format!("{question:?} was asked"))),
            }
        }
        self.choose_candidates();
        self.skip_empty();
        Ok(())
    }

    /// At the end of the tree, or when there is no room for more: which of the hashes are candidates.
    fn choose_candidates(&mut self) {
        if !self.waiting.is_empty() && self.found().into_iter().sum::<usize>() < HASHES_MAX {
            return;
        }
        self.leave_out_alike();
        let found = self.found();
        let goes_on = match self.waiting.is_empty() {
            true => found.iter().all(|found| *found <= CANDIDATES_MAX),
            // Of those in one 256th of the keys the other day may not have been read yet.
            false => found.into_iter().sum::<usize>() <= HASHES_MAX / 2,
        };
        if goes_on {
            return;
        }
        self.done.is_cut = true;
        self.waiting.clear();
        for unnamed in &mut self.unnamed {
            let mut room = CANDIDATES_MAX;
            for (_, hashes) in unnamed.iter_mut() {
                hashes.truncate(room);
                room -= hashes.len();
            }
            unnamed.retain(|(_, hashes)| !hashes.is_empty());
        }
    }

    /// Hashes that have been found, near and far.
    fn found(&self) -> [usize; 2] {
        [0, 1].map(|side: usize| self.unnamed[side].iter().map(|(_, hashes)| hashes.len()).sum())
    }

    /// Takes out what both sides have, each in its own place.
    fn leave_out_alike(&mut self) {
        let [near, far] = [0, 1].map(|side: usize| {
            let hashes = self.unnamed[side].iter().flat_map(|(_, hashes)| hashes);
            hashes.map(|(_, hash)| *hash).collect::<HashSet<u64>>()
        });
        for unnamed in &mut self.unnamed {
            for (_, hashes) in unnamed.iter_mut() {
                hashes.retain(|(_, hash)| !(near.contains(hash) && far.contains(hash)));
            }
            unnamed.retain(|(_, hashes)| !hashes.is_empty());
        }
    }

    /// Children that differ wait for their turn.
    fn descend(&mut self, level: &Level, near: &[u64], far: &[u64]) -> Result<(), Nonsense> {
        let prefixes = level.prefixes.u16s();
        if near.len() != FANOUT * prefixes.len() || far.len() != near.len() {
            return Err(Nonsense("a node has 16 children".to_owned()));
        }
        let rule = Arc::<str>::from(level.rule.as_str());
        for (index, prefix) in prefixes.into_iter().enumerate() {
            for child in 0..FANOUT {
                if near[FANOUT * index + child] != far[FANOUT * index + child] {
                    let (depth, prefix) = (level.depth + 1, prefix << 4 | child as u16);
                    self.waiting.insert(Node::new(rule.clone(), level.day, depth, prefix));
                }
            }
        }
        Ok(())
    }

    /// What one side has in a node and the other has not.
    fn differ(&mut self, level: &Level, near: &[Packed], far: &[Packed]) -> Result<(), Nonsense> {
        let prefixes = level.prefixes.u16s();
        if near.len() != prefixes.len() || far.len() != prefixes.len() {
            return Err(Nonsense("hashes of each node were asked".to_owned()));
        }
        let mut only = [Vec::new(), Vec::new()];
        for ((prefix, near), far) in prefixes.into_iter().zip(near).zip(far) {
            let [near, far]: [HashSet<u64>; 2] =
                [near.u64s().into_iter().collect(), far.u64s().into_iter().collect()];
            only[0].extend(near.difference(&far).map(|hash| (prefix, *hash)));
            only[1].extend(far.difference(&near).map(|hash| (prefix, *hash)));
        }
        for (unnamed, mut hashes) in self.unnamed.iter_mut().zip(only) {
            if !hashes.is_empty() {
                hashes.sort_unstable();
                let level = Level { prefixes: Packed::default(), ..level.clone() };
                let parts = hashes.chunks(NAMED_MAX);
                unnamed.extend(parts.map(|part| (level.clone(), part.to_vec())));
            }
        }
        Ok(())
    }

    fn names(&mut self, near: Vec<Answer>, far: Vec<Answer>) -> Result<(), Nonsense> {
        for (side, answers) in [near, far].into_iter().enumerate() {
            if answers.len() != next_names(&self.unnamed[side]).len() {
                return Err(Nonsense("names were asked".to_owned()));
            }
            for (answer, (_, hashes)) in answers.iter().zip(&self.unnamed[side]) {
                match answer {
                    Answer::Names(names) if names.len() <= hashes.len() => {
                        self.candidates.extend_from_slice(names);
                    }
                    _ => return Err(Nonsense("names were asked".to_owned())),
                }
            }
            self.unnamed[side].drain(..answers.len());
        }
        if self.unnamed.iter().all(Vec::is_empty) {
            // One that both have, with other content, was named twice.
            self.candidates.sort_unstable();
            self.candidates.dedup_by(|a, b| (&a.name, a.version) == (&b.name, b.version));
            self.stage = Stage::LookNear;
        }
        self.skip_empty();
        Ok(())
    }

    fn look(&self) -> Vec<Question> {
        let (mut questions, mut rest) = (Vec::new(), &self.candidates[..]);
        while !rest.is_empty() {
            let (slice, after) = rest.split_at(fit(rest.iter().map(|named| &*named.name)));
            let names = slice.iter().map(|named| (named.name.clone(), named.version)).collect();
            questions.push(Question::Look(self.scope.clone(), names));
            rest = after;
        }
        questions
    }

    fn looks(&mut self, answers: Vec<Answer>, next: Stage) -> Result<(), Nonsense> {
        let mut stands = Vec::with_capacity(self.candidates.len());
        for answer in answers {
            let Answer::Look(of) = answer else {
                return Err(Nonsense("a look at files was asked".to_owned()));
            };
            stands.extend(of);
        }
        if stands.len() != self.candidates.len() {
            return Err(Nonsense("each file was to be looked at".to_owned()));
        }
        self.looked.push(stands);
        self.stage = next;
        Ok(())
    }

    fn judge(&mut self) {
        let [before, far, after] = [0, 1, 2].map(|at| std::mem::take(&mut self.looked[at]));
        let candidates = std::mem::take(&mut self.candidates);
        let looks = before.into_iter().zip(far).zip(after);
        for (named, ((before, far), after)) in candidates.into_iter().zip(looks) {
            match judged(self.holder, &before, &far, &after) {
                Some(kind) => self.done.findings.push(Finding {
                    kind,
                    holder: self.scope.holder.clone(),
                    origin: self.scope.origin.clone(),
                    name: named.name,
                    version: named.version,
                    size: named.size,
                    note: String::new(),
                }),
                None => self.done.in_flight += 1,
            }
        }
    }

    /// Goes past stages that have nothing to ask.
    fn skip_empty(&mut self) {
        loop {
            self.stage = match self.stage {
                Stage::Days if self.rules.is_empty() => Stage::Tree,
                Stage::Tree if self.waiting.is_empty() => Stage::Names,
                Stage::Names if self.unnamed.iter().all(Vec::is_empty) => Stage::LookNear,
                Stage::LookNear if self.candidates.is_empty() => Stage::Done,
                _ => return,
            };
        }
    }
}

/// What the first of these are called: those of up to [`NODES_MAX`] nodes and [`NAMED_MAX`] hashes, which may be one level's.
fn next_names(unnamed: &[Unnamed]) -> Vec<Question> {
    let (mut questions, mut nodes, mut named) = (Vec::new(), 0, 0);
    for (level, hashes) in unnamed.iter().take(QUESTIONS_MAX) {
        let mut prefixes: Vec<u16> = hashes.iter().map(|(prefix, _)| *prefix).collect();
        prefixes.dedup();
        (nodes, named) = (nodes + prefixes.len(), named + hashes.len());
        if nodes > NODES_MAX || named > NAMED_MAX {
            break;
        }
        let level = Level { prefixes: Packed::of_u16(&prefixes), ..level.clone() };
        let hashes = Packed::of_u64(hashes.iter().map(|(_, hash)| *hash));
        questions.push(Question::Names(level, hashes));
    }
    questions
}

/// What a candidate is, by three looks; `None` when it is on its way, or right by now.
fn judged(holder: Holder, before: &Stand, far: &Stand, after: &Stand) -> Option<Kind> {
    let sender_moves = match holder {
        Holder::Far => before.moving || after.moving,
        Holder::Near => far.moving,
    };
    if sender_moves {
        return None;
    }
    let near_holds = before.holds.as_ref().and(after.holds.as_ref());
    let near_lacks = before.holds.is_none() && after.holds.is_none();
    match (near_holds, &far.holds) {
        (Some(near), Some(far)) => (near != far).then_some(Kind::WrongDigest),
        (Some(_), None) => Some(match holder {
            Holder::Far => Kind::MissingThere,
            Holder::Near if far.known => Kind::Unrecorded,
            Holder::Near => Kind::Extra,
        }),
        (None, Some(_)) if near_lacks => Some(match holder {
            Holder::Near => Kind::MissingHere,
            Holder::Far if after.known => Kind::Unrecorded,
            Holder::Far => Kind::Extra,
        }),
        _ => None,
    }
}

fn only(mut answers: Vec<Answer>) -> Result<Answer, Nonsense> {
    match (answers.pop(), answers.is_empty()) {
        (Some(answer), true) => Ok(answer),
        _ => Err(Nonsense("one answer was expected".to_owned())),
    }
}

/// Keys whose sums are not the same on both sides.
fn differing<K: Ord + Clone, V: PartialEq>(near: &BTreeMap<K, V>, far: &BTreeMap<K, V>) -> Vec<K> {
    let keys = near.keys().chain(far.keys().filter(|key| !near.contains_key(key)));
    keys.filter(|key| near.get(key) != far.get(key)).cloned().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::ask::short;
    use super::super::{Answer, Kind, Level, Named, Packed, Question, Scope, Stand, Sum};
    use super::{
        CANDIDATES_MAX, Compare, DAYS_MAX, DEPTH_MAX, FANOUT, HASHES_MAX, Holder, NAMED_MAX,
        NODES_MAX, Stage,
    };
    use std::collections::{BTreeMap, BTreeSet};
    use std::ops::Range;

    /// What a catalog has of one day. A file's number is its name; the digest of that is its hash, and its key.
    pub(in super::super) struct Held {
        day: i64,
        numbers: Range<usize>,
        /// In the order of the keys.
        files: Vec<(u64, usize)>,
        /// How each of them stands.
        stand: Stand,
    }

    impl Held {
        pub(in super::super) fn new(day: i64, numbers: Range<usize>, stand: Stand) -> Self {
            let hash = |n: usize| short(blake3::hash(&n.to_le_bytes()).as_bytes());
            let mut files: Vec<_> = numbers.clone().map(|n| (hash(n), n)).collect();
            files.sort_unstable();
            Self { day, numbers, files, stand }
        }

        fn node(&self, day: i64, depth: u8, prefix: u16) -> &[(u64, usize)] {
            let first = |prefix: u128| {
                let key = prefix << (64 - 4 * u32::from(depth));
                self.files.partition_point(|(hash, _)| u128::from(*hash) < key)
            };
            let prefix = u128::from(prefix);
            if day == self.day { &self.files[first(prefix)..first(prefix + 1)] } else { &[] }
        }

        fn sum(&self) -> Sum {
            let files = self.files.len() as i64;
            Sum { files, sum: Packed::of_u64([sum(&self.files)]) }
        }

        fn answer(&self, question: &Question) -> Answer {
            match question {
                Question::Rules(_) => Answer::Rules(BTreeMap::from([("raw".into(), self.sum())])),
                Question::Days(..) => Answer::Days(BTreeMap::from([(self.day, self.sum())])),
                Question::Children(level) => {
                    let children = |prefix: u16| (0..FANOUT as u16).map(move |c| prefix << 4 | c);
                    let sums = level.prefixes.u16s().into_iter().flat_map(children);
                    let sums = sums.map(|child| sum(self.node(level.day, level.depth + 1, child)));
                    Answer::Children(Packed::of_u64(sums))
                }
                Question::Hashes(level) => {
                    let of = |prefix| self.node(level.day, level.depth, prefix).iter();
                    let hashes = |prefix| Packed::of_u64(of(prefix).map(|(hash, _)| *hash));
                    Answer::Hashes(level.prefixes.u16s().into_iter().map(hashes).collect())
                }
                Question::Names(_, hashes) => {
                    let file = |hash: u64| {
                        let at = self.files.binary_search_by_key(&hash, |(hash, _)| *hash);
                        let name = self.files[at.expect("it has it")].1.to_string();
                        Named { name, version: 1, size: 7 }
                    };
                    Answer::Names(hashes.u64s().into_iter().map(file).collect())
                }
                Question::Look(_, names) => {
                    let has =
                        |name: &String| self.numbers.contains(&name.parse().expect("a number"));
                    let stand =
                        |name| if has(name) { self.stand.clone() } else { Stand::default() };
                    Answer::Look(names.iter().map(|(name, _)| stand(name)).collect())
                }
                Question::Receipts(..) => unreachable!("no receipt is asked for"),
            }
        }

        pub(in super::super) fn answer_all(&self, questions: &[Question]) -> Vec<Answer> {
            // More would not be answered.
            assert!(questions.iter().map(Question::nodes).sum::<usize>() <= NODES_MAX);
            questions.iter().map(|question| self.answer(question)).collect()
        }
    }

    fn sum(of: &[(u64, usize)]) -> u64 {
        of.iter().fold(0, |sum, (hash, _)| sum ^ hash)
    }

    fn machine() -> Compare {
        let scope = Scope { holder: "geneva".into(), origin: "berlin".into() };
        Compare::new(scope, Holder::Far)
    }

    /// A node of the last level.
    fn last_level() -> Level {
        let (scope, prefixes) = (machine().scope, Packed::of_u16(&[7]));
        Level { scope, rule: "raw".into(), day: 7, depth: DEPTH_MAX, prefixes }
    }

    #[test]
    fn names_as_odd_as_may_be_fit_into_questions_and_answers() {
        const FILES: u64 = 5 * NAMED_MAX as u64 / 2;
        let named =
            |n: u64| Named { name: "\u{1}".repeat(1016) + &n.to_string(), version: 1, size: 7 };
        let mut machine = machine();
        let near = [Packed::of_u64(0..FILES)];
        machine.differ(&last_level(), &near, &[Packed::default()]).unwrap();
        machine.stage = Stage::Names;
        while machine.stage == Stage::Names {
            let asked = machine.step().unwrap().near;
            let name = |question: &Question| -> Vec<Named> {
                let Question::Names(_, hashes) = question else { unreachable!("{question:?}") };
                hashes.u64s().into_iter().map(named).collect()
            };
            let answers: Vec<_> = asked.iter().map(|asked| Answer::Names(name(asked))).collect();
            assert!(serde_json::to_vec(&answers).unwrap().len() < 16 << 20);
            machine.answer(answers, Vec::new()).unwrap();
        }
        let looks = machine.look();
        let files = looks.iter().map(|question| match question {
            Question::Look(_, names) => names.len() as u64,
            _ => 0,
        });
        assert_eq!(files.sum::<u64>(), FILES);
        assert!(looks.iter().all(|look| serde_json::to_vec(look).unwrap().len() < 600 << 10));
    }

    #[test]
    fn what_the_other_side_says_without_end_is_not_kept() {
        let mut machine = machine();
        let sum = |files| Sum { files, sum: Packed::default() };
        let rules = ["a", "b"].map(|rule| (rule.to_owned(), sum(i64::MAX)));
        let both = vec![Answer::Rules(rules.into())];
        machine.answer(vec![Answer::Rules(BTreeMap::new())], both).unwrap();
        assert_eq!(machine.done.files_far, i64::MAX);
        let days = |days: Range<i64>| Answer::Days(days.map(|day| (day, sum(1))).collect());
        let far = (0..2).map(|_| days(0..DAYS_MAX as i64 - 1)).collect();
        machine.answer(vec![days(0..0), days(0..0)], far).unwrap();
        assert_eq!((machine.waiting.len(), machine.done.is_cut), (DAYS_MAX, true));
        let far = [Packed::of_u64([1])];
        machine.differ(&last_level(), &[Packed::default()], &far).unwrap();
        machine.stage = Stage::Names;
        let named = Named { name: "x".into(), version: 1, size: 7 };
        let more = vec![Answer::Names(vec![named.clone(), named])];
        assert!(machine.answer(Vec::new(), more).is_err());
    }

    #[test]
    fn what_is_lost_is_found_among_very_many_that_lie_under_other_days() {
        const LOST: usize = 64;
        let files = HASHES_MAX + CANDIDATES_MAX;
        let holds = Stand { known: true, moving: false, holds: Some(Packed(vec![7])) };
        let near = Held::new(7, 0..files, holds.clone());
        let far = Held::new(8, LOST..files, holds);
        let mut machine = machine();
        while let Some(step) = machine.step() {
            machine.answer(near.answer_all(&step.near), far.answer_all(&step.far)).unwrap();
        }
        let done = machine.finish();
        assert!(done.findings.iter().all(|finding| finding.kind == Kind::MissingThere));
        let found = done.findings.iter().map(|finding| finding.name.parse::<usize>().unwrap());
        assert_eq!(found.collect::<BTreeSet<_>>(), (0..LOST).collect());
        assert_eq!((done.in_flight, done.is_cut), (0, false));
    }
}
