//! Random walks, beside a model that is too simple to be wrong.
//!
//! The model knows a handful of files, each by state and revision and by who holds it, and the table. Whatever is asked, the
//! catalog and the model must answer alike; in the end they hold the same.

use crate::world::{LEASE_S, NOW, World, digest, receipt, waiting};
use downpour_catalog::{
    Applied, Change, Claimed, ErrorClass, Fence, FileId, Move, Next, Refused, Revision, State,
    Time, Work,
};
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, TestRunner};
use std::sync::atomic::{AtomicU64, Ordering};

const FILES: usize = 4;
const STEPS: usize = 60;
const WALKS: u32 = 12;

/// What a walk may do next.
#[derive(Clone, Debug)]
enum Act {
    Step { file: usize, to: usize, late: bool, with_fence: bool },
    Claim { lapsed: bool, limit: usize },
    Wake,
    Reopen,
    Pass { seconds: i64 },
}

struct Modelled {
    id: FileId,
    name: String,
    state: State,
    revision: i64,
    resume: State,
    fence: Option<Fence>,
    until: Time,
    next_try: Time,
}

fn act() -> impl Strategy<Value = Act> {
    (0..20u8, 0..FILES, 0..State::ALL.len(), any::<bool>(), 1..4i64).prop_map(
        |(kind, file, to, flag, count)| match kind {
            0..12 => Act::Step { file, to, late: kind == 0, with_fence: flag || kind < 9 },
            12..16 => Act::Claim { lapsed: flag, limit: count as usize },
            16 | 17 => Act::Wake,
            18 => Act::Reopen,
            _ => Act::Pass { seconds: count * LEASE_S / 2 },
        },
    )
}

pub(crate) fn random_walks_agree_with_a_simple_model(world: &World) {
    let config = Config { cases: WALKS, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let walks = AtomicU64::new(0);
    let acts = proptest::collection::vec(act(), STEPS);
    let ran = runner.run(&acts, |acts| {
        let walk = walks.fetch_add(1, Ordering::Relaxed);
        walk_along(world, walk, &acts);
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn walk_along(world: &World, walk: u64, acts: &[Act]) {
    let mut daemon = world.daemon("walker");
    // What earlier walks left is not this one's.
    for state in [Work::QueuedOf(daemon.rule), Work::Lapsed] {
        for left in daemon.claim(Time(i64::MAX / 4), state, 1000) {
            daemon.step(left.file, left.revision, Next::Cancelled).unwrap();
        }
    }
    let mut now = NOW.plus_s(walk as i64 * 1_000_000);
    let mut files: Vec<Modelled> = (0..FILES)
        .map(|n| {
            let name = format!("{walk}/{n}");
            let id = daemon.take_in(&name).file;
            let (state, revision, resume) = (State::Found, 1, State::Found);
            let (until, next_try) = (now, now);
            Modelled { id, name, state, revision, resume, fence: None, until, next_try }
        })
        .collect();
    for act in acts {
        match act {
            Act::Pass { seconds } => now = now.plus_s(*seconds),
            Act::Reopen => {
                drop(daemon);
                daemon = world.daemon("walker");
                for file in files.iter_mut().filter(|file| file.fence.is_some()) {
                    file.until = Time(0);
                }
            }
            Act::Wake => {
                daemon.catalog.wake(now, now, 1000).wait().unwrap();
                for file in &mut files {
                    if file.state == State::Waiting && file.next_try <= now {
                        file.go(file.resume);
                    }
                }
            }
            Act::Claim { lapsed, limit } => {
                let work = if *lapsed { Work::Lapsed } else { Work::QueuedOf(daemon.rule) };
                for claimed in daemon.claim(now, work, *limit) {
                    let file = files.iter_mut().find(|file| file.id == claimed.file);
                    file.expect("one of this walk").claimed(now, claimed, *lapsed);
                }
                let left = files.iter().filter(|file| file.is_work(now, *lapsed)).count();
                assert!(left == 0 || *limit < FILES, "{left} were not given");
            }
            Act::Step { file, to, late, with_fence } => {
                let file = &mut files[*file];
                let next = next_to(State::ALL[*to], file, daemon.site, now);
                let at = Revision(file.revision - i64::from(*late));
                let fence = file.fence.filter(|_| *with_fence);
                let change = Change::Move(Move { file: file.id, at, fence, next: next.clone() });
                let expected = file.step(*late, fence, &next);
                let answer = daemon.change(now, change);
                assert_eq!(answer, expected, "{next:?} of {} at {at}", file.name);
            }
        }
    }
    for file in &files {
        let found = daemon.file(file.id);
        assert_eq!((found.state, found.revision.0), (file.state, file.revision));
        if !found.state.is_end() {
            daemon.step(found.id, found.revision, Next::Cancelled).unwrap();
        }
    }
}

fn next_to(to: State, file: &Modelled, site: downpour_catalog::SiteId, now: Time) -> Next {
    match to {
        State::Found | State::Sending | State::Adopted => Next::Resumed,
        State::Settled => Next::Settled { size: 5 },
        State::Hashed => Next::Hashed(vec![digest(&file.name)]),
        State::Queued => Next::Queued,
        State::Sent => Next::Sent { bytes: 5 },
        State::Verified => Next::Verified(site, "/v".to_owned()),
        State::Receipted => Next::Receipted(receipt(file.id)),
        State::Waiting => waiting(now.plus_s(20)),
        State::Quarantined => Next::Quarantined(ErrorClass::FileChanged),
        State::Cancelled => Next::Cancelled,
    }
}

impl Modelled {
    fn go(&mut self, to: State) {
        let stopped = matches!(self.state, State::Waiting | State::Quarantined);
        if !stopped {
            self.resume = self.state.resume();
        }
        if !matches!(to, State::Waiting | State::Quarantined) {
            self.resume = to.resume();
        }
        if !to.is_leased() {
            self.fence = None;
        }
        self.state = to;
        self.revision += 1;
    }

    fn is_work(&self, now: Time, lapsed: bool) -> bool {
        if lapsed {
            self.state.is_leased() && self.until <= now
        } else {
            self.state == State::Queued
        }
    }

    fn claimed(&mut self, now: Time, claimed: Claimed, lapsed: bool) {
        assert!(self.is_work(now, lapsed), "{} at {:?} was given", self.name, self.state);
        if self.state == State::Queued {
            self.state = State::Sending;
        }
        self.revision += 1;
        (self.fence, self.until) = (Some(claimed.fence), now.plus_s(LEASE_S));
        assert_eq!((claimed.revision.0, claimed.state), (self.revision, self.state));
    }

    fn step(&mut self, late: bool, fence: Option<Fence>, next: &Next) -> downpour_catalog::Answer {
        let from = self.state;
        let to = match next {
            Next::Settled { .. } => State::Settled,
            Next::Hashed(_) => State::Hashed,
            Next::Queued => State::Queued,
            Next::Sent { .. } => State::Sent,
            Next::Verified(..) => State::Verified,
            Next::Receipted(_) => State::Receipted,
            Next::Waiting { .. } => State::Waiting,
            Next::Resumed => self.resume,
            Next::Quarantined(_) => State::Quarantined,
            Next::Cancelled => State::Cancelled,
        };
        let revision = Revision(self.revision);
        let stands = |repeated| {
            Ok(Applied { file: self.id, revision, state: Some(from), repeated, transfer: None })
        };
        if late {
            return if to == from {
                stands(true)
            } else {
                Err(Refused::Stale { revision, state: from })
            };
        }
        let stopped = matches!(from, State::Waiting | State::Quarantined);
        let starts = matches!(to, State::Found | State::Settled | State::Hashed | State::Queued);
        let allowed = if stopped && starts {
            to == self.resume
        } else {
            from.allows(to) && *next != Next::Resumed
        };
        if !allowed {
            return Err(Refused::NotAllowed { from, to });
        }
        if self.fence != fence && !(fence.is_none() && to == State::Cancelled) {
            return Err(Refused::NoLease);
        }
        if let Next::Waiting { next_try, .. } = next {
            self.next_try = *next_try;
        }
        self.go(to);
        let (revision, state) = (Revision(self.revision), Some(self.state));
        Ok(Applied { file: self.id, revision, state, repeated: false, transfer: None })
    }
}
