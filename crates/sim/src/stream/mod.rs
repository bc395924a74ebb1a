//! A bare stream against one bottleneck: what the rate controllers are judged by.
//!
//! A session here has no blocks and no repair: datagrams leave at the pacer's word, polls go with them
//! in the engine's cadence, and each receiver answers each poll with its counts. All flows share one
//! link; behind it each receiver may have a narrower link of its own, its delay, its loss, its clock
//! drift and its host's noise. TCP flows (CUBIC) may share the link.
//!
//! As every link is a FIFO, a datagram's whole way is computed when it leaves: the event queue holds
//! only departures, answers and acknowledgements.

mod cubic;
mod dynamics;
mod matrix;
mod session;

pub use dynamics::{Bed, Beside, Joined, Kind};
pub use matrix::{Cell, Verdict, median};
pub use session::{Answers, Noise, Outcome, ReceiverSetup, SessionSetup};

use crate::link::{Link, LinkConfig};
use crate::rng::Rng;
use cubic::Cubic;
use downpour_proto::rate::Load;
use downpour_proto::{Duration, Rate, Timestamp};
use session::{Answer, Session};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How often a session tells the others what it takes.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Everything about a run.
#[derive(Debug)]
pub struct Setup {
    /// Of all randomness.
    pub seed: u64,
    /// The link that all flows share; its delay should be zero (delays are the receivers').
    pub shared: LinkConfig,
    /// When the shared link's rate changes, and to what.
    pub changes: Vec<(Duration, Rate)>,
    /// The multicast sessions.
    pub sessions: Vec<SessionSetup>,
    /// Round-trip times of TCP flows that run all the time.
    pub cubic_rtts: Vec<Duration>,
    /// How the sessions hear one another.
    pub words: Words,
    /// A session behind some other link that all hear.
    pub stranger: Option<Load>,
    /// What TCP and the shared link carried counts from here on.
    pub counted_from: Duration,
    /// When to stop, unless all sessions are done before.
    pub end: Duration,
}

/// What sessions hear of one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Nothing.
    None,
    /// Their senders are on one network.
    Heard,
    /// Their receivers are, and pass on what they are told: it takes a round trip, and [`PASSED_ON`] besides.
    PassedOn,
}

/// For so long words wait at the sender for a poll and at a receiver for its next look.
pub const PASSED_ON: Duration = Duration::from_millis(75);

impl Words {
    fn delay(self, round_trip: Duration) -> Duration {
        match self {
            Self::None | Self::Heard => round_trip / 2,
            Self::PassedOn => round_trip + PASSED_ON,
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// One for each session.
    pub sessions: Vec<Outcome>,
    /// Frame bytes that the TCP flows got through since [`Setup::counted_from`].
    pub cubic_bytes: u64,
    /// Frame bytes that the shared link carried since then.
    pub shared_bytes: u64,
    /// What the shared queue dropped.
    pub shared_dropped: u64,
    /// When the run ended.
    pub ended: Timestamp,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Depart {
        session: usize,
    },
    Answer {
        session: usize,
        answer: Answer,
    },
    CubicStart {
        flow: usize,
    },
    CubicAck {
        flow: usize,
        delivered: bool,
    },
    Change {
        rate_bps: u64,
    },
    /// Each session in turn tells the others what it takes.
    Tell {
        session: usize,
    },
    Told {
        session: usize,
        by: usize,
        load: Load,
    },
}

/// Events in order of time, and of insertion within one instant.
#[derive(Debug, Default)]
struct Events {
    heap: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    inserted: u64,
}

impl Events {
    fn push(&mut self, at: Timestamp, event: Event) {
        self.inserted += 1;
        self.heap.push(Reverse((at, self.inserted, event)));
    }

    fn pop(&mut self) -> Option<(Timestamp, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

/// A session's load is told to the others, and the stranger's to it.
fn tell(
    events: &mut Events,
    at: Timestamp,
    session: usize,
    count: usize,
    (load, stranger): (Option<Load>, Option<Load>),
) {
    for other in (0..count).filter(|other| *other != session) {
        load.into_iter()
            .for_each(|load| events.push(at, Event::Told { session: other, by: session, load }));
    }
    if let Some(load) = stranger {
        events.push(at, Event::Told { session, by: count, load });
    }
}

/// Frame bytes that TCP got through, and that the link carried, so far.
fn carried(cubics: &[Cubic], shared: &Link) -> (u64, u64) {
    (cubics.iter().map(|c| c.delivered_bytes).sum(), shared.carried_bytes)
}

fn first_events(setup: &Setup) -> Events {
    let mut events = Events::default();
    for (index, session) in setup.sessions.iter().enumerate() {
        events.push(Timestamp::ZERO + session.start, Event::Depart { session: index });
    }
    for (at, rate) in &setup.changes {
        events.push(Timestamp::ZERO + *at, Event::Change { rate_bps: rate.bps() });
    }
    for flow in 0..setup.cubic_rtts.len() {
        events.push(Timestamp::ZERO, Event::CubicStart { flow });
    }
    if setup.words != Words::None || setup.stranger.is_some() {
        for (index, session) in setup.sessions.iter().enumerate() {
            events.push(Timestamp::ZERO + session.start, Event::Tell { session: index });
        }
    }
    events
}

/// Runs to the end.
pub fn run(setup: Setup) -> Report {
    let mut rng = Rng::new(setup.seed);
    let mut shared = Link::new(setup.shared);
    let mut events = first_events(&setup);
    let mut sessions: Vec<Session> =
        setup.sessions.into_iter().map(|s| Session::new(s, &mut rng)).collect();
    let mut cubics: Vec<Cubic> =
        setup.cubic_rtts.iter().map(|rtt| Cubic::new(*rtt, rng.fork())).collect();
    let (counted_from, end) = (Timestamp::ZERO + setup.counted_from, Timestamp::ZERO + setup.end);
    let (mut now, mut before) = (Timestamp::ZERO, None);
    while let Some((at, event)) = events.pop() {
        if at > end || sessions.iter().all(Session::is_done) && !sessions.is_empty() {
            break;
        }
        now = at;
        if now >= counted_from {
            before.get_or_insert_with(|| carried(&cubics, &shared));
        }
        if let Event::Depart { session } | Event::Answer { session, .. } = &event {
            let awake = sessions[*session].awake(now);
            if awake > now {
                events.push(awake, event);
                continue;
            }
        }
        match event {
            Event::Depart { session } => {
                let next = sessions[session].depart(now, &mut shared, |at, answer| {
                    events.push(at, Event::Answer { session, answer });
                });
                events.push(next, Event::Depart { session });
            }
            Event::Answer { session, answer } => sessions[session].on_answer(now, answer),
            Event::Tell { session } => {
                events.push(now + TELL_EVERY, Event::Tell { session });
                let load = sessions[session].load().filter(|_| setup.words != Words::None);
                let at = now + setup.words.delay(sessions[session].round_trip());
                tell(&mut events, at, session, sessions.len(), (load, setup.stranger));
            }
            Event::Told { session, by, load } => sessions[session].on_neighbour(now, by, load),
            Event::CubicStart { flow } | Event::CubicAck { flow, .. } => {
                if let Event::CubicAck { delivered, .. } = event {
                    cubics[flow].on_ack(now, delivered);
                }
                while let Some((at, delivered)) = cubics[flow].send(now, &mut shared) {
                    events.push(at, Event::CubicAck { flow, delivered });
                }
            }
            Event::Change { rate_bps } => shared.set_rate(Rate::from_bps(rate_bps)),
        }
    }
    let after = carried(&cubics, &shared);
    let before = before.unwrap_or(after);
    Report {
        sessions: sessions.into_iter().map(Session::outcome).collect(),
        cubic_bytes: after.0 - before.0,
        shared_bytes: after.1 - before.1,
        shared_dropped: shared.dropped,
        ended: now,
    }
}
