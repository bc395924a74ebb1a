//! The bytes of one file, from one or several sites, into a part file.
//!
//! 1. The file is cut into pieces of 4 MiB; those that are here already are not asked for. A source that is asked has
//!    connections, sockets and requests ahead as the plan of its path says, made when its turn comes ([`Asking`]), and what
//!    steers the links to this site changes them meanwhile ([`Steered`]).
//! 2. A short file comes from one source at a time, the best of [`Sources`], which also says when to change. A long one
//!    comes from all usable ones at once: who is fast takes more, and at the end takes over what the slow still owe
//!    (`proto::transfer::Ranges`).
//! 3. A source that fails three times in a row, and of which nothing has come for 20 s, is not asked any more: a connection
//!    that fails while others bring is only made anew. Nor is one of which all that comes is lost. What has come is kept, and it is
//!    written down which pieces are complete (`journal`).
//!
//! `gather/line` has what one connection does. Whether the bytes are the right ones is found out by who knows the digest.

mod line;

use super::super::ledger::Session;
use super::super::pieces::{PIECE_LEN_MAX, Piece};
use super::part::Part;
use super::task::blocking;
use super::{decisive, keep_newest};
use crate::report::PlanLine;
use crate::site::{Fault, Remote};
use downpour_catalog::ErrorClass;
use downpour_proto::transfer::steer::{Decision, Seen as LinkSeen};
use downpour_proto::transfer::{CONNECTIONS_MAX, Plan, Ranges, Source, Sources};
use downpour_proto::{Rate, Timestamp};
use downpour_transport::pull::{Course, Sight, Steered};
use downpour_transport::stream::Tuning;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// From this size on a file comes from several sources at once.
pub(super) const AT_ONCE_MIN: u64 = 64 << 20;
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Ranges are taken over from a multiple of this on.
const STEP: u64 = 64 << 10;
/// Bytes that are written at a time: so many of each connection are in memory.
pub(in crate::dispatch) const WRITE_LEN: u64 = 512 << 10;

/// Where a file comes from.
pub(super) struct Gather {
    piece: Piece,
    size: u64,
    /// Bytes that are to come, and pieces.
    rest: u64,
    pieces: u64,
    places: Vec<Place>,
    into: Arc<Target>,
    begun: Instant,
    state: Mutex<State>,
    changed: Notify,
}

/// A site that has the file, and the places of its connections.
struct Place {
    remote: Arc<Remote>,
    begin: Begin,
    lines: Range<usize>,
}

/// The same before it is asked. Without a remote it is barred.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) remote: Option<Arc<Remote>>,
    pub(super) source: Source,
    /// Requests on a connection before the first is answered, at least.
    pub(super) depth: usize,
}

/// How a site is asked, from now on until this is dropped.
pub(super) struct Asking {
    pub(super) plan: Plan,
    /// What changes it meanwhile.
    pub(super) course: Option<Course>,
    pub(super) session: Option<Session>,
}

/// Begins to ask a site.
pub(super) type Begin = Box<dyn Fn() -> Asking + Send + Sync>;

/// Where the bytes go, until it is closed.
struct Target {
    part: Arc<Part>,
    is_open: RwLock<bool>,
}

impl Target {
    /// Works on the part where that may block.
    async fn with(
        self: &Arc<Self>,
        work: impl FnOnce(&Part) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let into = self.clone();
        blocking(move || {
            let is_open = into.is_open.read().unwrap_or_else(PoisonError::into_inner);
            if !*is_open {
                return Err(io::Error::other("it has ended"));
            }
            work(&into.part)
        })
        .await
    }
}

struct State {
    ranges: Ranges,
    pieces: u64,
    sources: Sources,
    ways: Vec<Way>,
    at_once: bool,
    told: Vec<String>,
    /// Of the sources that failed the last one, or of those the last for which that may pass.
    failed: Option<Fault>,
    /// It is over.
    error: Option<Fault>,
}

/// How a source does.
struct Way {
    /// It is asked; since when, and for how long before that.
    active: bool,
    since: Instant,
    asked: Duration,
    /// How often what it was asked for was given to others.
    turn: u64,
    brought: u64,
    /// How often it failed since bytes of it were stored, and how many were lost with its connections.
    failures: u32,
    lost: u64,
    /// When bytes of it came.
    came_at: Option<Instant>,
    /// How its connections are set, and what its plan says of that.
    tuning: Tuning,
    plan: Vec<PlanLine>,
    receive_buffer_bytes: u64,
    /// What it lacks was told.
    lacks: bool,
    sight: Sight,
    /// Connections of which bytes are being stored.
    storing: usize,
}

/// What a site did.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenOf {
    pub(super) name: String,
    pub(super) brought: u64,
    /// How long it was asked.
    pub(super) asked: Duration,
    pub(super) plan: Vec<PlanLine>,
    pub(super) receive_buffer_bytes: u64,
}

impl SeenOf {
    /// What is expected of it from now on, if this was enough to learn that from.
    pub(super) fn pace(&self) -> Option<Rate> {
        let is_enough = crate::tuner::Seen::is_enough(self.brought, self.asked);
        is_enough.then(|| Rate::of(self.brought, self.asked))
    }
}

/// How far it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) sites: Vec<SeenOf>,
    /// Bytes that are here, whoever brought them.
    pub(super) arrived: u64,
    /// Pieces that have come whole.
    pub(super) pieces: u64,
    pub(super) told: Vec<String>,
    pub(super) at_once: bool,
}

impl Way {
    fn new() -> Self {
        Self {
            active: false,
            since: Instant::now(),
            asked: Duration::ZERO,
            turn: 0,
            brought: 0,
            failures: 0,
            lost: 0,
            came_at: None,
            tuning: Tuning::default(),
            plan: Vec::new(),
            receive_buffer_bytes: 0,
            lacks: false,
            sight: Sight::new(CONNECTIONS_MAX.into()),
            storing: 0,
        }
    }

    fn set_active(&mut self, active: bool) {
        if active != self.active {
            (self.asked, self.since) = (self.asked_for(), Instant::now());
            self.active = active;
        }
    }

    fn asked_for(&self) -> Duration {
        self.asked + if self.active { self.since.elapsed() } else { Duration::ZERO }
    }
}

impl State {
    fn tell(&mut self, what: String) {
        self.told.push(what);
        keep_newest(&mut self.told);
    }

    fn brought(&self) -> u64 {
        self.ways.iter().map(|way| way.brought).sum()
    }
}

impl Gather {
    /// `piece` says which file; `here`, which pieces need not come.
    pub(super) fn new(
        piece: Piece,
        (size, here): (u64, &BTreeSet<u64>),
        holders: Vec<(Holder, Begin)>,
        (part, at_once): (Arc<Part>, bool),
    ) -> Self {
        let rtt = holders.iter().filter_map(|(holder, _)| holder.source.rtt).max();
        let depth = holders.iter().map(|(holder, _)| holder.depth).max();
        let (mut places, mut sources, mut lines) = (Vec::new(), Vec::new(), 0);
        for (Holder { remote, source, .. }, begin) in holders {
            let Some(remote) = remote else { continue };
            let first = lines;
            lines += usize::from(CONNECTIONS_MAX);
            places.push(Place { remote, begin, lines: first..lines });
            sources.push(source);
        }
        let mut ranges = Ranges::new(lines, rtt.unwrap_or_default(), depth.unwrap_or(1));
        ranges.set_active_of(0..lines, 0);
        let (mut pieces, mut rest) = (0, 0);
        for id in (0..size.div_ceil(PIECE_LEN_MAX)).filter(|id| !here.contains(id)) {
            let len = PIECE_LEN_MAX.min(size - id * PIECE_LEN_MAX);
            ranges.want(id, len, STEP);
            (pieces, rest) = (pieces + 1, rest + len);
        }
        ranges.set_ending(true);
        let state = State {
            ranges,
            pieces,
            sources: Sources::new(rest, sources),
            ways: places.iter().map(|_| Way::new()).collect(),
            at_once,
            told: Vec::new(),
            failed: None,
            error: None,
        };
        Self {
            piece,
            size,
            rest,
            pieces,
            places,
            into: Arc::new(Target { part, is_open: RwLock::new(true) }),
            begun: Instant::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        let state = self.lock();
        let site = |(place, way): (&Place, &Way)| SeenOf {
            name: place.remote.name().to_owned(),
            brought: way.brought,
            asked: way.asked_for(),
            plan: way.plan.clone(),
            receive_buffer_bytes: way.receive_buffer_bytes,
        };
        Seen {
            sites: self.places.iter().zip(&state.ways).map(site).collect(),
            arrived: self.size - self.rest + state.brought().min(self.rest),
            pieces: self.pieces - state.pieces,
            told: state.told.clone(),
            at_once: state.at_once,
        }
    }

    /// Nothing is written from then on. Who was stopped may still have been writing.
    pub(super) async fn close(&self) {
        let into = self.into.clone();
        let close = move || {
            *into.is_open.write().unwrap_or_else(PoisonError::into_inner) = false;
            Ok(())
        };
        if let Err(error) = blocking(close).await {
            tracing::error!(file = %self.piece.name, %error, "it may be written to still");
        }
    }

    /// Fetches all of it. `Err`: why nobody brings it.
    pub(super) async fn run(self: &Arc<Self>) -> Result<(), Fault> {
        if self.rest == 0 {
            return Ok(());
        }
        self.begin();
        let mut asked: Vec<_> = self.places.iter().map(|_| None).collect();
        let mut workers = JoinSet::new();
        for (source, place) in self.places.iter().enumerate() {
            for line in place.lines.clone() {
                workers.spawn(self.clone().work(source, line));
            }
        }
        loop {
            {
                let mut state = self.lock();
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if state.pieces == 0 {
                    return Ok(());
                }
                self.look(&mut state);
            }
            self.follow(&mut asked);
            let _ = tokio::time::timeout(LOOK_EVERY, self.changed.notified()).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.begun.elapsed()
    }

    fn begin(&self) {
        let mut state = self.lock();
        let ranking = state.sources.ranking();
        let now = self.now();
        if state.sources.begin(now).is_none() {
            let what = "no source can be used";
            state.error = Some(Fault::new(ErrorClass::SourceUnreachable, what));
            return;
        }
        let State { ways, sources, at_once, .. } = &mut *state;
        for (index, way) in ways.iter_mut().enumerate() {
            way.set_active(index == ranking[0].index || *at_once && sources.is_usable(index));
        }
    }

    /// Begins to ask those who are to be asked, and ends it with the others.
    fn follow(self: &Arc<Self>, asked: &mut [Option<JoinSet<()>>]) {
        for (source, asked) in asked.iter_mut().enumerate() {
            let active = self.lock().ways[source].active;
            if !active {
                *asked = None;
            } else if asked.is_none() {
                *asked = Some(self.clone().ask(source));
            }
        }
    }

    fn ask(self: Arc<Self>, source: usize) -> JoinSet<()> {
        let Asking { plan, course, session } = (self.places[source].begin)();
        {
            let way = &mut self.lock().ways[source];
            (way.tuning, way.plan) = (Tuning::from(&plan), PlanLine::all(&plan));
        }
        let from = FromSite { gather: self, source };
        from.set(plan.connections.value, plan.pacing.value);
        let mut asked = JoinSet::new();
        asked.spawn(async move {
            let _session = session;
            match course {
                Some(course) => course.hold(Arc::new(from)).await,
                None => std::future::pending().await,
            }
        });
        asked
    }

    /// Whether another source had better take over.
    fn look(&self, state: &mut State) {
        if state.at_once {
            return;
        }
        let done = state.brought().min(self.rest);
        let next = state.sources.look(self.now(), done).map(|s| s.name.clone());
        if let Some(next) = next {
            let why = state.sources.why().to_owned();
            self.change(state, &next, &why);
        }
    }

    /// From now on another one alone.
    fn change(&self, state: &mut State, next: &str, why: &str) {
        for (index, place) in self.places.iter().enumerate() {
            state.ways[index].set_active(place.remote.name() == next);
        }
        self.take_back(state);
        let told = format!("now from {next}: {why}");
        tracing::info!(file = %self.piece.name, "{told}");
        state.tell(told);
        self.changed.notify_waiters();
    }

    /// What inactive sources were asked for is for others.
    fn take_back(&self, state: &mut State) {
        let State { ranges, ways, .. } = state;
        for (place, way) in self.places.iter().zip(ways).filter(|(_, way)| !way.active) {
            way.turn += 1;
            ranges.set_active_of(place.lines.clone(), 0);
            place.lines.clone().for_each(|line| ranges.broke(line));
        }
    }

    /// A source failed for good.
    fn fail(&self, source: usize, Fault { class, what }: &Fault) {
        let state = &mut *self.lock();
        if !state.ways[source].active {
            return;
        }
        state.ways[source].set_active(false);
        let name = self.places[source].remote.name();
        state.tell(format!("{name} failed: {what}"));
        let fault = Fault::new(*class, format!("{name}: {what}"));
        state.failed = Some(match state.failed.take() {
            Some(before) => decisive(before, fault),
            None => fault,
        });
        let next = state.sources.bar(self.now(), source, what).map(|s| s.name.clone());
        match next {
            None => state.error.clone_from(&state.failed),
            Some(_) if state.at_once && state.ways.iter().any(|way| way.active) => {
                self.take_back(state);
            }
            Some(next) => {
                let why = state.sources.why().to_owned();
                self.change(state, &next, &why);
            }
        }
        self.changed.notify_waiters();
    }
}

/// What comes from one of the sources, as it is steered.
struct FromSite {
    gather: Arc<Gather>,
    source: usize,
}

impl FromSite {
    fn lines(&self) -> Range<usize> {
        self.gather.places[self.source].lines.clone()
    }
}

impl Steered for FromSite {
    fn set(&self, connections: u16, each: Option<Rate>) {
        let state = &mut *self.gather.lock();
        let way = &mut state.ways[self.source];
        // It may just have been left.
        if way.active {
            way.tuning.pacing = each;
            state.ranges.set_active_of(self.lines(), connections.into());
            self.gather.changed.notify_waiters();
        }
    }

    fn waited_for_sink(&self, time: Duration) -> Duration {
        let state = self.gather.lock();
        let (busy, _) = state.ranges.busy_of(self.lines());
        let storing = state.ways[self.source].storing;
        // A connection that is emptied a moment later has lost nothing.
        if storing > 0 && 2 * storing >= busy { time * storing as u32 } else { Duration::ZERO }
    }

    fn ends(&self) -> bool {
        self.gather.lock().ranges.waiting() == 0
    }

    fn take_seen(&self, span: Duration, sink_wait: Duration) -> Option<LinkSeen> {
        let state = &mut *self.gather.lock();
        let busy = state.ranges.busy_of(self.lines());
        state.ways[self.source].sight.take(busy, span, sink_wait)
    }

    fn decided(&self, decision: &Decision) {
        let name = self.gather.places[self.source].remote.name();
        self.gather.lock().tell(format!("{name}: {}", decision.why));
    }
}

#[cfg(test)]
mod tests {
    use super::super::CHANGES_MAX;
    use super::{Asking, Begin, Gather, Holder, Part, Piece, Seen, SeenOf, Source};
    use crate::site::{Fault, Remote, RemoteSection};
    use axum::body::{Body, to_bytes};
    use axum::http::header::CONTENT_LENGTH;
    use axum::http::{HeaderMap, Request, Response};
    use downpour_proto::Rate;
    use downpour_proto::transfer::{Known, Plan, Wishes};
    use downpour_transport::control::{Endpoint, ServerLimits};
    use downpour_transport::identity::Identity;
    use futures_util::{StreamExt as _, stream};
    use std::collections::BTreeSet;
    use std::io::ErrorKind;
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;
    use tokio::sync::watch;

    fn plan(connections: u16) -> Plan {
        Plan::new(&Known {
            range_len: 1 << 20,
            memory: 8 << 20,
            wishes: Wishes {
                connections: Some(connections),
                buffer: Some(40_000),
                pacing: Some(Rate::from_mbps(800)),
                ..Wishes::default()
            },
            ..Known::default()
        })
    }

    const LEN: u64 = 3 << 20;

    fn sevens(len: usize) -> Response<Body> {
        Response::new(Body::from(vec![7; len]))
    }

    /// What comes of a file of [`LEN`] sevens over so many connections, each with so many asks at least, from a source that
    /// answers requests for so many bytes like this.
    async fn gathered(
        (connections, depth): (u16, usize),
        answers: impl Fn(&HeaderMap, usize) -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> (Result<(), Fault>, Seen) {
        let (server, own) = (Identity::generate(), Arc::new(Identity::generate()));
        let any = "127.0.0.1:0".parse().unwrap();
        let endpoint = Endpoint::bind(any, &server, ServerLimits::default()).await.unwrap();
        let (key, address) = (server.public_key(), endpoint.local_addr());
        let answer = move |request: Request<_>| {
            let ((head, body), answers) = (request.into_parts(), answers.clone());
            async move {
                let wish = to_bytes(Body::new(body), 10_000).await.unwrap();
                let piece: Piece = serde_json::from_slice(&wish).unwrap();
                answers(&head.headers, piece.len as usize)
            }
        };
        let serving = tokio::spawn(endpoint.serve(answer, std::future::pending(), Duration::ZERO));
        let section = format!("name = 'a'\nkey = '{key}'\naddress = '{address}'");
        let section: RemoteSection = toml::from_str(&section).unwrap();
        let source = Source { name: "a".to_owned(), ..Source::default() };
        let holder = Holder { remote: Some(Arc::new(Remote::new(section, &own))), source, depth };
        let begin: Begin =
            Box::new(move || Asking { plan: plan(connections), course: None, session: None });
        let folder = tempfile::tempdir().unwrap();
        let part = Arc::new(Part::open(folder.path().join("whole.part"), LEN, "b").unwrap());
        let into = (part.clone(), false);
        let none = BTreeSet::new();
        let gather = Arc::new(Gather::new(piece(), (LEN, &none), vec![(holder, begin)], into));
        let done = gather.run().await;
        assert_eq!(gather.seen().pieces, u64::from(done.is_ok()), "it is one piece");
        if done.is_ok() {
            assert_eq!(std::fs::read(part.path()).unwrap(), vec![7; LEN as usize]);
        }
        serving.abort();
        (done, gather.seen())
    }

    #[tokio::test]
    async fn sockets_at_both_ends_are_set_as_planned() {
        let heard: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let hears = heard.clone();
        let (done, seen) = gathered((2, 2), move |headers, len| {
            let asked = headers["downpour-stream"].to_str().unwrap().to_owned();
            hears.lock().unwrap().insert(asked);
            sevens(len)
        })
        .await;
        assert_eq!((done, seen.arrived), (Ok(()), LEN));
        // What a connection took over from a slower one may come twice.
        assert!(seen.sites[0].brought >= LEN);
        let asked = Duration::from_secs(1);
        let few = SeenOf { brought: LEN, asked, ..SeenOf::default() };
        assert_eq!(few.pace(), None, "that is too little to tell");
        let more = SeenOf { brought: 10_000_000, asked, ..SeenOf::default() };
        assert_eq!(more.pace(), Some(Rate::from_mbps(80)));
        // The kernel books twice what is set.
        assert_eq!(seen.sites[0].receive_buffer_bytes, 80_000);
        let heard = heard.lock().unwrap().clone();
        assert_eq!(heard.into_iter().collect::<Vec<_>>(), ["buffer=40000 pacing=400000000"]);
    }

    /// A source that gives no bytes to the requests of these numbers.
    async fn without(which: Range<usize>, ways: (u16, usize)) -> (Result<(), Fault>, usize) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let answers = move |_: &HeaderMap, len| {
            let is_answered = !which.contains(&counted.fetch_add(1, Ordering::SeqCst));
            sevens(if is_answered { len } else { 0 })
        };
        let (done, _) = gathered(ways, answers).await;
        (done, requests.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn a_source_has_failed_when_it_brings_nothing_time_and_again() {
        // Something has come before.
        assert_eq!(without(1..5, (1, 1)).await.0, Ok(()));
        let (failed, requests) = without(0..usize::MAX, (1, 1)).await;
        assert!(failed.is_err_and(|fault| fault.what == "a: its answer has another length"));
        assert_eq!(requests, 3);
    }

    #[tokio::test]
    async fn connections_that_break_at_once_are_one_failure_of_their_source() {
        let requests = Arc::new(watch::channel(0).0);
        let (done, _) = gathered((4, 1), move |_, len| match number_of_next(&requests) {
            // They break when each has asked.
            0..4 => awaiting(&requests, 4, len, (0, Err(ErrorKind::ConnectionReset.into()))),
            _ => sevens(len),
        })
        .await;
        assert_eq!(done, Ok(()));
    }

    #[tokio::test]
    async fn a_connection_that_fails_while_another_one_brings_is_made_anew() {
        let requests = Arc::new(watch::channel(0).0);
        let (done, _) = gathered((2, 1), move |_, len| match number_of_next(&requests) {
            // The rest of it when the other connection has failed three times.
            0 => awaiting(&requests, 5, len, (1000, Ok(vec![7; len - 1000]))),
            1..4 => sevens(0),
            _ => sevens(len),
        })
        .await;
        assert_eq!(done, Ok(()));
    }

    fn number_of_next(requests: &watch::Sender<usize>) -> usize {
        let mut number = 0;
        requests.send_modify(|n| (number, *n) = (*n, *n + 1));
        number
    }

    /// An answer of which so many bytes come at once, and the rest when there were so many requests.
    fn awaiting(
        requests: &watch::Sender<usize>,
        count: usize,
        len: usize,
        (first, rest): (usize, std::io::Result<Vec<u8>>),
    ) -> Response<Body> {
        let mut requests = requests.subscribe();
        let rest = async move {
            requests.wait_for(|n| *n >= count).await.unwrap();
            rest
        };
        let first = stream::once(async move { Ok(vec![7; first]) });
        let mut answer = Response::new(Body::from_stream(first.chain(stream::once(rest))));
        answer.headers_mut().insert(CONTENT_LENGTH, len.into());
        answer
    }

    fn piece() -> Piece {
        let (site, name) = ("a".to_owned(), "whole".to_owned());
        Piece { site, name, version: 1, blake3: String::new(), start: 0, len: 0 }
    }

    #[test]
    fn of_what_is_told_the_newest_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let part = Arc::new(Part::open(folder.path().join("whole.part"), LEN, "b").unwrap());
        let gather = Gather::new(piece(), (LEN, &BTreeSet::new()), Vec::new(), (part, false));
        (0..=CHANGES_MAX).for_each(|n| gather.lock().tell(n.to_string()));
        let told = gather.seen().told;
        assert_eq!((told.len(), told[0].as_str()), (CHANGES_MAX, "1"));
    }
}
