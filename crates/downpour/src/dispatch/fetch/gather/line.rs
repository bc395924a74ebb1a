//! One connection of a gathering: what it is asked for ahead, the bytes that come by it, and what is done when it breaks.

use super::{Gather, LOOK_EVERY, PIECE_LEN_MAX, Piece, State, WRITE_LEN};
use crate::site::{BytesLine, RemoteError};
use downpour_proto::transfer::Ask;
use downpour_transport::control::Head;
use downpour_transport::stream::Tuning;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Failures in a row of one connection.
const TRIES_MAX: u32 = 3;
/// After a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// A source that brings nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(20);

/// One connection: what it was asked for and has not brought.
struct Line {
    source: usize,
    index: usize,
    open: Option<BytesLine>,
    out: VecDeque<Ask>,
    /// When it was asked ([`super::Way::turn`]).
    turn: u64,
}

/// Why a connection is not used on.
enum Broken {
    /// Others brought it, or this source is not asked any more.
    InVain,
    Failed(String),
}

impl From<RemoteError> for Broken {
    fn from(error: RemoteError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What a source does, unless it falls silent.
async fn soon<T>(what: impl Future<Output = Result<T, RemoteError>>) -> Result<T, Broken> {
    let done = tokio::time::timeout(SILENCE, what).await;
    Ok(done.map_err(|_| Broken::Failed("it fell silent".to_owned()))??)
}

impl Gather {
    pub(super) async fn work(self: Arc<Self>, source: usize, index: usize) {
        let mut line = Line { source, index, open: None, out: VecDeque::new(), turn: 0 };
        let mut tries = 0;
        loop {
            let broken = match self.step(&mut line).await {
                Ok(has_brought) => {
                    tries = if has_brought { 0 } else { tries };
                    continue;
                }
                Err(broken) => broken,
            };
            self.close_line(&mut line);
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

    /// What it has not brought is for others.
    fn close_line(&self, line: &mut Line) {
        line.open = None;
        line.out.clear();
        let state = &mut *self.lock();
        state.ranges.broke(line.index);
        let way = &mut state.ways[line.source];
        way.sight.told(line.index - self.places[line.source].lines.start, None);
        line.turn = way.turn;
    }

    /// Asks for more where there is room for it, and takes an answer. False: there was nothing to be asked for.
    async fn step(&self, line: &mut Line) -> Result<bool, Broken> {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let (asks, tuning, is_active) = {
            let State { ranges, ways, .. } = &mut *self.lock();
            let way = &ways[line.source];
            if way.turn != line.turn {
                return Err(Broken::InVain);
            }
            let now = self.now();
            let asks: Vec<Ask> = std::iter::from_fn(|| ranges.next(now, line.index)).collect();
            (asks, way.tuning.clone(), ranges.is_active(line.index))
        };
        for ask in asks {
            let wish = Piece {
                start: ask.id * PIECE_LEN_MAX + ask.span.start,
                len: ask.span.end - ask.span.start,
                ..self.piece.clone()
            };
            let open = match &mut line.open {
                Some(open) => open,
                none => none.insert(self.open(line.source, &tuning).await?),
            };
            soon(open.ask("/v1/site/pieces", &wish, &tuning)).await?;
            line.out.push_back(ask);
        }
        if !line.out.is_empty() {
            self.take(line).await?;
            line.out.pop_front();
            return Ok(true);
        }
        match is_active {
            true => drop(tokio::time::timeout(LOOK_EVERY, changed).await),
            false => {
                self.close_line(line);
                changed.await;
            }
        }
        Ok(false)
    }

    async fn open(&self, source: usize, tuning: &Tuning) -> Result<BytesLine, Broken> {
        let open = self.places[source].remote.bulk(tuning).await?;
        self.lock().ways[source].receive_buffer_bytes = open.report().receive_buffer_bytes;
        Ok(open)
    }

    /// Takes the answer to what it was asked for first.
    async fn take(&self, line: &mut Line) -> Result<(), Broken> {
        let (Some(open), Some(ask)) = (&mut line.open, line.out.front()) else { return Ok(()) };
        let (source, id, turn) = (line.source, ask.id, line.turn);
        let mut at = id * PIECE_LEN_MAX + ask.span.start;
        let end = id * PIECE_LEN_MAX + ask.span.end;
        let head = soon(open.head()).await?;
        self.hear(line.index, source, &head);
        if head.len != end - at {
            return Err(Broken::Failed("its answer has another length".to_owned()));
        }
        while at < end {
            let mut bytes = vec![0; (end - at).min(WRITE_LEN) as usize];
            let mut have = 0;
            while have < bytes.len() {
                let some = soon(open.some(&mut bytes[have..])).await?;
                self.lock().ways[source].sight.came(some as u64);
                have += some;
            }
            self.lock().ways[source].storing += 1;
            let stored = self.write(at, bytes, (source, line.index, id), turn).await;
            self.lock().ways[source].storing -= 1;
            stored?;
            at += have as u64;
        }
        Ok(())
    }

    /// What a source tells of a connection.
    fn hear(&self, line: usize, source: usize, head: &Head) {
        let (place, state) = (&self.places[source], &mut *self.lock());
        let way = &mut state.ways[source];
        way.sight.told(line - place.lines.start, head.told);
        // Once: it is told with each answer.
        if let (false, Some(lacks)) = (way.lacks, &head.lacks) {
            state.told.push(format!("{}: {lacks}", place.remote.name()));
            way.lacks = true;
        }
    }

    /// Writes bytes to their place, and counts them.
    async fn write(
        &self,
        at: u64,
        bytes: Vec<u8>,
        (source, line, id): (usize, usize, u64),
        turn: u64,
    ) -> Result<(), Broken> {
        let len = bytes.len() as u64;
        let written = self.into.with(move |part| part.write(&bytes, at)).await;
        let complete = {
            let state = &mut *self.lock();
            if let Err(error) = written {
                state.error = Some(format!("writing: {error}"));
                return Err(Broken::InVain);
            }
            if state.ways[source].turn != turn || !state.ranges.is_wanted(id) {
                return Err(Broken::InVain);
            }
            state.ways[source].brought += len;
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
