//! The bytes of one file, from one or several sites, into a part file.
//!
//! 1. The file is cut into pieces of 4 MiB; those that are here already are not asked for. Each source has as many
//!    connections as the plan of its path says, each with one request out.
//! 2. A short file comes from one source at a time, the best of [`Sources`], which also says when to change. A long one
//!    comes from all usable ones at once: who is fast takes more, and at the end takes over what the slow still owe
//!    (`proto::transfer::Ranges`).
//! 3. A source whose connections fail three times in a row is not asked any more. What has come is kept, and it is written
//!    down which pieces are complete (`journal`).
//!
//! Whether the bytes are the right ones is found out by who knows the digest.

use super::super::pieces::{PIECE_LEN_MAX, Piece};
use super::part::Part;
use super::task::blocking;
use crate::site::{Remote, RemoteError};
use downpour_proto::Timestamp;
use downpour_proto::transfer::{Ask, Ranges, Source, Sources};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// From this size on a file comes from several sources at once.
pub(super) const AT_ONCE_MIN: u64 = 64 << 20;
/// Failures in a row of one connection.
const TRIES_MAX: u32 = 3;
/// After a failure, and between two looks.
const PAUSE: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Ranges are taken over from a multiple of this on.
const STEP: u64 = 64 << 10;
/// Bytes that are written at a time.
const WRITE_LEN: usize = 512 << 10;
/// A source that brings nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(20);

/// Where a file comes from.
pub(super) struct Gather {
    piece: Piece,
    size: u64,
    /// Bytes that are to come.
    rest: u64,
    places: Vec<Place>,
    into: Arc<Target>,
    begun: Instant,
    state: Mutex<State>,
    changed: Notify,
}

/// A site that has the file, and the connections to it.
struct Place {
    remote: Arc<Remote>,
    lines: Range<usize>,
}

/// The same before it is asked. Without a remote it is barred.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) remote: Option<Arc<Remote>>,
    pub(super) source: Source,
    pub(super) connections: u16,
}

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
    /// Which sources are asked.
    active: Vec<bool>,
    /// Since when, and for how long before that.
    since: Vec<Instant>,
    asked: Vec<Duration>,
    at_once: bool,
    /// What each brought.
    brought: Vec<u64>,
    told: Vec<String>,
    error: Option<String>,
}

/// How far it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Each site, what it brought, and how long it was asked.
    pub(super) brought: Vec<(String, u64, Duration)>,
    /// Bytes that are here, whoever brought them.
    pub(super) arrived: u64,
    pub(super) told: Vec<String>,
    pub(super) at_once: bool,
}

impl State {
    fn set_active(&mut self, index: usize, active: bool) {
        if active != self.active[index] {
            self.asked[index] = self.asked_for(index);
            self.since[index] = Instant::now();
            self.active[index] = active;
        }
    }

    fn asked_for(&self, index: usize) -> Duration {
        let now = if self.active[index] { self.since[index].elapsed() } else { Duration::ZERO };
        self.asked[index] + now
    }
}

enum Broken {
    /// Others brought it, or this source is not asked any more.
    InVain,
    Failed(String),
}

impl Gather {
    /// `piece` says which file; `here`, which pieces need not come.
    pub(super) fn new(
        piece: Piece,
        (size, here): (u64, &BTreeSet<u64>),
        holders: Vec<Holder>,
        (part, at_once): (Arc<Part>, bool),
    ) -> Self {
        let (mut places, mut sources, mut lines) = (Vec::new(), Vec::new(), 0);
        for Holder { remote, source, connections } in holders {
            let Some(remote) = remote else { continue };
            let first = lines;
            lines += usize::from(connections.max(1));
            places.push(Place { remote, lines: first..lines });
            sources.push(source);
        }
        let mut ranges = Ranges::new(lines, Duration::ZERO, 1);
        let (mut pieces, mut rest) = (0, 0);
        for id in (0..size.div_ceil(PIECE_LEN_MAX)).filter(|id| !here.contains(id)) {
            let len = PIECE_LEN_MAX.min(size - id * PIECE_LEN_MAX);
            ranges.want(id, len, STEP);
            (pieces, rest) = (pieces + 1, rest + len);
        }
        ranges.set_ending(true);
        let count = places.len();
        let state = State {
            ranges,
            pieces,
            sources: Sources::new(rest, sources),
            active: vec![false; count],
            since: vec![Instant::now(); count],
            asked: vec![Duration::ZERO; count],
            at_once,
            brought: vec![0; count],
            told: Vec::new(),
            error: None,
        };
        Self {
            piece,
            size,
            rest,
            places,
            into: Arc::new(Target { part, is_open: RwLock::new(true) }),
            begun: Instant::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        let state = self.lock();
        let brought = self.places.iter().enumerate().map(|(index, place)| {
            (place.remote.name().to_owned(), state.brought[index], state.asked_for(index))
        });
        let came: u64 = state.brought.iter().sum();
        Seen {
            brought: brought.collect(),
            arrived: self.size - self.rest + came.min(self.rest),
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
    pub(super) async fn run(self: &Arc<Self>) -> Result<(), String> {
        if self.rest == 0 {
            return Ok(());
        }
        self.begin();
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
            state.error = Some("no source can be used".to_owned());
            return;
        }
        let best = ranking[0].index;
        state.set_active(best, true);
        if state.at_once {
            for index in 0..self.places.len() {
                let usable = state.sources.is_usable(index);
                state.set_active(index, usable);
            }
        }
    }

    /// Whether another source had better take over.
    fn look(&self, state: &mut State) {
        if state.at_once {
            return;
        }
        let done: u64 = state.brought.iter().sum();
        let next = state.sources.look(self.now(), done.min(self.rest)).map(|s| s.name.clone());
        if let Some(next) = next {
            let why = state.sources.why().to_owned();
            self.change(state, &next, &why);
        }
    }

    /// From now on another one alone.
    fn change(&self, state: &mut State, next: &str, why: &str) {
        for (index, place) in self.places.iter().enumerate() {
            state.set_active(index, place.remote.name() == next);
        }
        self.take_back(state);
        let told = format!("now from {next}: {why}");
        tracing::info!(file = %self.piece.name, "{told}");
        state.told.push(told);
        self.changed.notify_waiters();
    }

    /// What inactive sources were asked for is for others.
    fn take_back(&self, state: &mut State) {
        for (source, place) in self.places.iter().enumerate() {
            for line in place.lines.clone().filter(|_| !state.active[source]) {
                state.ranges.broke(line);
            }
        }
    }

    /// A source failed for good.
    fn fail(&self, source: usize, what: &str) {
        let state = &mut *self.lock();
        if !state.active[source] {
            return;
        }
        state.set_active(source, false);
        let name = self.places[source].remote.name();
        state.told.push(format!("{name} failed: {what}"));
        let next = state.sources.bar(self.now(), source, what).map(|s| s.name.clone());
        match next {
            None => state.error = Some(format!("{name}: {what}")),
            Some(_) if state.at_once && state.active.contains(&true) => self.take_back(state),
            Some(next) => {
                let why = state.sources.why().to_owned();
                self.change(state, &next, &why);
            }
        }
        self.changed.notify_waiters();
    }

    async fn work(self: Arc<Self>, source: usize, line: usize) {
        let mut tries = 0;
        loop {
            let ask = {
                let mut state = self.lock();
                let now = self.now();
                if state.active[source] { state.ranges.next(now, line) } else { None }
            };
            let Some(ask) = ask else {
                let _ = tokio::time::timeout(LOOK_EVERY, self.changed.notified()).await;
                continue;
            };
            match self.fetch(source, line, &ask).await {
                Ok(()) => tries = 0,
                Err(broken) => {
                    self.lock().ranges.broke(line);
                    if let Broken::Failed(what) = broken {
                        tries += 1;
                        if tries >= TRIES_MAX {
                            self.fail(source, &what);
                            tries = 0;
                        }
                        tokio::time::sleep(PAUSE * tries).await;
                    }
                }
            }
        }
    }

    async fn fetch(&self, source: usize, line: usize, ask: &Ask) -> Result<(), Broken> {
        let start = ask.id * PIECE_LEN_MAX + ask.span.start;
        let len = ask.span.end - ask.span.start;
        let wish = Piece { start, len, ..self.piece.clone() };
        let lost = |error: RemoteError| Broken::Failed(error.to_string());
        let mut answer =
            self.places[source].remote.bytes("/v1/site/pieces", &wish).await.map_err(lost)?;
        let (mut at, mut waiting) = (start, Vec::new());
        while at + (waiting.len() as u64) < start + len {
            let some = tokio::time::timeout(SILENCE, answer.some()).await;
            let some = some.map_err(|_| Broken::Failed("it fell silent".to_owned()))?;
            let some = some.map_err(|error| Broken::Failed(error.to_string()))?;
            let Some(some) = some else {
                return Err(Broken::Failed("its answer ended early".to_owned()));
            };
            waiting.extend(some);
            let here = at + waiting.len() as u64;
            if here > start + len {
                return Err(Broken::Failed("its answer is too long".to_owned()));
            }
            if waiting.len() >= WRITE_LEN || here == start + len {
                let bytes = std::mem::take(&mut waiting);
                at = here;
                self.write(here - bytes.len() as u64, bytes, (source, line, ask.id)).await?;
            }
        }
        Ok(())
    }

    /// Writes bytes to their place, and counts them.
    async fn write(
        &self,
        at: u64,
        bytes: Vec<u8>,
        (source, line, id): (usize, usize, u64),
    ) -> Result<(), Broken> {
        let len = bytes.len() as u64;
        let written = self.into.with(move |part| part.write(&bytes, at)).await;
        let complete = {
            let state = &mut *self.lock();
            if let Err(error) = written {
                state.error = Some(format!("writing: {error}"));
                return Err(Broken::InVain);
            }
            if !state.active[source] || !state.ranges.is_wanted(id) {
                return Err(Broken::InVain);
            }
            state.brought[source] += len;
            state.ranges.came(self.now(), line, len)
        };
        if let Some(piece) = complete {
            self.complete(piece).await;
        }
        Ok(())
    }

    /// A piece is here.
    async fn complete(&self, piece: u64) {
        if let Err(error) = self.into.with(move |part| part.note(piece)).await {
            // Who goes on after a crash asks for it again.
            tracing::warn!(file = %self.piece.name, %error, "it is not written down what is here");
        }
        let state = &mut *self.lock();
        state.pieces -= 1;
        if state.pieces == 0 {
            self.changed.notify_waiters();
        }
    }
}
